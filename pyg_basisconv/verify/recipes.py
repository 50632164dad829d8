"""The layers of PyG and torch that `convert` takes, under the options that their rules are checked with."""

import copy
import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import chain, cycle
from math import prod
from typing import Any
from unittest.mock import patch

import torch
import torch_geometric.backend
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch_geometric.typing import SparseTensor

from ..conv import BasisConv
from ..convert import convert
from ..convert.registry import Options, example, of_edges, sweeps
from .comparison import Case, System

N, P, Q = 12, 6, 4  # nodes, and the widths of x and y
E, H, M, L = 8, 2, 7, 5  # a Transformer's width and heads, and the numbers of keys and queries
B, GRIDS = 2, {1: (9,), 2: (6, 7), 3: (5, 6, 7)}  # images
R = 5  # relations; the last has no edge
COUNTS = {"a": 7, "b": 4, "c": 3}  # of nodes, by type
WIDTHS = {"a": 8, "b": 3, "c": 2}
KINDS = [("a", "to", "b"), ("b", "of", "a"), ("a", "in", "a"), ("b", "on", "a")]  # no edge leads to c

_LAYERS = {kind.__name__: kind for kinds in sweeps().values() for kind in kinds}
_TYPED: Options = {"in_channels": WIDTHS, "out_channels": WIDTHS["a"], "metadata": (list(WIDTHS), KINDS)}
_WIDER: dict[str, Options] = {
    "GatedGraphConv": {"out_channels": P + 2},  # than x is wide, which is padded by zeros
    "EGConv": {"out_channels": 8},  # a channel for each head
}
# They, too, count nodes on the first axis of x.
_UNBATCHED = ("EGConv", "GCN2Conv", "GatedGraphConv", "GeneralConv", "WLConvContinuous")
_ON_GRIDS: Options = {"in_channels": 4, "out_channels": 6}


def graph(loops: Sequence[int] = (2,)) -> tuple[Tensor, Tensor]:
    """A directed graph with parallel edges, some loops and an isolated node, and positive weights."""
    edge_index = torch.randint(0, N - 1, (2, 3 * N))  # node N - 1 is isolated
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    edge_index = torch.cat([edge_index, edge_index[:, :3], torch.tensor([list(loops)] * 2)], 1)
    return edge_index, torch.rand(edge_index.shape[1], dtype=torch.float64) + 0.1


def features(*shape: int) -> Tensor:
    """Random numbers in float64."""
    return torch.randn(*shape, dtype=torch.float64)


def drawn(module: Any, std: float = 1.0) -> Any:
    """A module in float64 with random parameters, no two numbers of which are equal."""
    module = module.double()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=std)
    return module


def of_torch(kind: str) -> bool:
    """Whether a layer is one of torch's."""
    return _LAYERS[kind].__module__.startswith("torch.nn.")


def is_grid(kind: str) -> bool:
    """Whether a layer is one of torch's on grids."""
    return of_torch(kind) and kind not in _CASES


def constructed(kind: str | type, options: Options | None = None, **given: Any) -> Any:
    """A layer as its constructor makes it: by name, or of a class like the one of that name."""
    layer, kind = (_LAYERS[kind], kind) if isinstance(kind, str) else (kind, kind.__name__)
    typed = _TYPED if kind in ("HANConv", "HGTConv") else _ON_GRIDS if is_grid(kind) else {}
    return example(layer, options, P, Q, **({"num_relations": R} | typed | _WIDER.get(kind, {}) | given))


def made(kind: str, options: Options | None = None, **given: Any) -> Any:
    """A layer with random parameters, small enough that no softmax saturates."""
    layer = drawn(constructed(kind, options, **given), std=0.5)
    return layer.eval() if kind == "SuperGATConv" else layer  # in training it samples negative edges


def takes(layer: Any, name: str) -> bool:
    """Whether the call of a layer has an argument of this name."""
    return name in inspect.signature(type(layer).forward).parameters


def attends(module: Any) -> bool:
    """Whether a BasisConv in it computes its weights from the features."""
    return any(part.basis.reads_content for part in module.modules() if isinstance(part, BasisConv))


def more_inputs(layer: Any, edges: int, nodes: int = N) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The inputs of a layer besides x and edge_index, by name: those with gradients, and the types of edges."""
    given = {"x_0": features(nodes, P)} if takes(layer, "x_0") else {}
    if takes(layer, "x_0") and not layer.normalize:
        given["edge_weight"] = features(edges)
    dim = getattr(layer, "edge_dim", None) or getattr(layer, "in_edge_channels", None)
    if dim:
        given["edge_attr"] = features(edges, dim)
    return given, {"edge_type": torch.randint(R - 1, (edges,))} if takes(layer, "edge_type") else {}


def called(edge_index: Any, names: Any = (), **more: Any) -> Callable[..., Any]:
    """Calls a layer with x and other leaves, by name."""
    return lambda f, x, *leaves: f(x=x, edge_index=edge_index, **dict(zip(names, leaves, strict=True)), **more)


def forget(reference: Any) -> None:
    """Clears what a reference with cached=True keeps of another graph."""
    for name in ("_cached_edge_index", "_cached_adj_t", "_cached_x", "_cached_h"):
        if hasattr(reference, name):
            setattr(reference, name, None)


def cases(
    kind: str, options: Options, change: Callable[..., Any] = lambda edge_index, size: edge_index
) -> Iterator[Case]:
    """The cases that compare a layer with its conversion, on graphs that were changed by `change(edge_index, size)`."""
    yield from _CASES.get(kind, _on_grids if is_grid(kind) else _on_graphs)(kind, options, change)


def compared(reference: Any) -> partial[Case]:
    """Makes cases of a layer and its conversion, by their leaves and maybe their call."""
    return partial(Case, convert(reference), reference)


def _on_graphs(kind: str, options: Options, change: Any) -> Iterator[Case]:
    """One graph and a batch, with and without edge weights; and the weights that attention returns."""
    reference = made(kind, options)
    case = compared(reference)
    # PyG's ClusterGCNConv is defined for one loop per node; where it adds none, they have to be given in order.
    every = kind == "ClusterGCNConv" and not options.get("add_self_loops", True)
    edge_index, weight = graph(range(N) if every else (2,))
    edge_index = change(edge_index, (N, N))
    given, types = more_inputs(reference, edge_index.shape[1])
    leaves, call = [features(N, P), *given.values()], called(edge_index, given, **types)
    yield case(leaves, call if given or types else lambda f, x: f(x, edge_index))
    if attends(case.args[0]):
        if takes(reference, "return_attention_weights"):
            weighed = called(edge_index, given, return_attention_weights=True, **types)
            yield case(leaves, lambda f, *leaves: flat(weighed(f, *leaves)))
        if kind == "GATConv" and options.get("edge_dim"):  # without edge_attr, PyG leaves out the term of the edges
            yield case(leaves[:1], called(edge_index))
        return
    if options.get("combine_root") != "self_loop" and kind not in _UNBATCHED:
        forget(reference)
        yield case([features(2, N, P), *leaves[1:]], call)
    if takes(reference, "edge_weight") and "edge_weight" not in given:
        forget(reference)
        yield case([*leaves, weight[: edge_index.shape[1]]], called(edge_index, [*given, "edge_weight"]))


def flat(outcome: Any) -> Tensor:
    """All numbers that a layer returns, in one vector; those of several node types in the order of their names."""
    if isinstance(outcome, Tensor):
        return outcome.flatten()
    if isinstance(outcome, dict):
        outcome = [y for _, y in sorted(outcome.items()) if y is not None]
    return torch.cat([flat(part) for part in outcome if not (isinstance(part, Tensor) and part.dtype == torch.long)])


def loop_path() -> AbstractContextManager[Any]:
    """Makes RGCNConv loop over relations; with pyg_lib it may take one mean over the edges of all relations."""
    return patch.object(torch_geometric.backend, "use_segment_matmul", False)


def typed_graph(sources: int = N, targets: int = N) -> tuple[Tensor, Tensor]:
    """Edges of R types, sorted by type; the last type has no edges, and the last nodes are isolated."""
    edge_index = torch.stack([torch.randint(n - 1, (4 * N,)) for n in (sources, targets)])
    edge_index = torch.cat([edge_index, edge_index[:, :3]], 1)
    return edge_index, torch.randint(R - 1, edge_index.shape[1:]).sort().values


def _relational(kind: str, options: Options, change: Any) -> Iterator[Case]:
    """Nodes with features, pairs of sources and targets, and nodes without features."""

    def case(width: Any, leaves: list[Tensor], call: Callable[..., Tensor]) -> Case:
        def by_loop(f: Any, *given: Tensor) -> Tensor:
            with loop_path():
                return call(f, *given)

        return compared(made(kind, options, in_channels=width))(leaves, by_loop)

    edge_index, types = typed_graph()
    edge_index = change(edge_index, (N, N))
    edges = edge_index, types[: edge_index.shape[1]]
    yield case(P, [features(N, P)], lambda f, x: f(x, *edges))
    numbers, every = torch.randint(N, (11,)), torch.arange(N)
    if options.get("flow") != "target_to_source":  # PyG confuses the two sides there
        both = typed_graph(7, 4)
        for width in (P, 3):
            yield case((P, width), [features(7, P), features(4, width)], lambda f, x, y: f((x, y), *both))
        if "num_blocks" not in options and kind == "RGCNConv":
            yield case(N, [], lambda f: f((numbers[:7], numbers[7:]), *both))
    if "num_blocks" not in options:
        yield case(N, [], lambda f: f(None, *edges))
        yield case(N, [], lambda f: f(every, *edges))
        if kind == "RGCNConv":  # FastRGCNConv ignores which numbers are given
            few = typed_graph(11, 11)
            yield case(N, [], lambda f: f(numbers, *few))


def incidence() -> Tensor:
    """Incidences of nodes and hyperedges: one of each is isolated, and some incidences repeat."""
    found = torch.stack([torch.randint(N - 1, (3 * N,)), torch.randint(6, (3 * N,))])
    return torch.cat([found, found[:, :2]], 1)


def _hyper(kind: str, options: Options, change: Any) -> Iterator[Case]:
    """Without and with weights of 7 hyperedges, of which the last has no node."""
    case, index = compared(made(kind, options)), change(incidence(), (N, 7))
    weight = torch.rand(7, dtype=torch.float64) + 0.1
    more = [features(7, P)] if options.get("use_attention") else []
    yield case([features(N, P), *more], lambda f, x, z=None: f(x, index, None, z))
    yield case([features(N, P), weight, *more], lambda f, x, w, z=None: f(x, index, w, z, 7))


def _signed(kind: str, options: Options, change: Any) -> Iterator[Case]:
    """One graph, a batch, and a pair of sources and targets."""
    reference = made(kind, options)
    case, (pos, neg) = compared(reference), (change(graph()[0], (N, N)) for _ in range(2))
    width = P if reference.first_aggr else 2 * P
    for shape in ((N, width), (2, N, width)):
        yield case([features(*shape)], lambda f, x: f(x, pos, neg))
    if "flow" not in options:
        pair = [features(N, width), features(N + 2, width)]
        yield case(pair, lambda f, x, y: f((x, y), pos, neg))


def typed_edges() -> dict[tuple[str, str, str], Tensor]:
    """Edges of all types; the last node of each type is isolated."""
    return {r: torch.stack([torch.randint(COUNTS[k] - 1, (12,)) for k in (r[0], r[2])]) for r in KINDS}


def _attributed(kind: str, options: Options, change: Any) -> Iterator[Case]:
    """One graph, sources and targets of different widths, and sources alone, with features of edges that learn."""

    def case(width: Any, x: list[Tensor], sizes: tuple[int, int], call: Callable[..., Any]) -> Case:
        reference = made(kind, options, in_channels=width, nn=lambda _, Q: of_edges(P, Q))
        # No width near zero, beyond which a Gaussian is zero at all edges.
        if kind == "GMMConv":
            reference.sigma.data.abs_().add_(0.5)
        edge_index = torch.stack([torch.randint(n - 1, (3 * N,)) for n in sizes])
        edge_index = change(torch.cat([edge_index, edge_index[:, :3]], 1), sizes)
        z = torch.rand(edge_index.shape[1], 2, dtype=torch.float64)
        return compared(reference)([*x, z], lambda f, *leaves: call(f, edge_index, *leaves))

    yield case(P, [features(N, P)], (N, N), lambda f, edges, x, z: f(x, edges, z))
    if "flow" not in options:
        both = [features(7, P), features(4, 3)]
        yield case((P, 3), both, (7, 4), lambda f, edges, x, y, z: f((x, y), edges, z))
        yield case(P, both[:1], (7, 4), lambda f, edges, x, z: f((x, None), edges, z, size=(7, 4)))


def _typed(kind: str, options: Options, change: Any) -> Iterator[Case]:
    """Edges of all types and of some; and the weights of the types, where a layer returns them."""

    def call(f: Any, *x: Tensor, **more: Any) -> Tensor:
        return flat(f(dict(zip(COUNTS, x, strict=True)), **more))

    case, leaves = compared(made(kind, options)), [features(COUNTS[k], WIDTHS[k]) for k in COUNTS]
    edges = {r: change(e, (COUNTS[r[0]], COUNTS[r[2]])) for r, e in typed_edges().items()}
    for some in (edges, {r: edges[r] for r in KINDS[1:3]}):
        yield case(leaves, partial(call, edge_index_dict=some))
    if kind == "HANConv":
        yield case(leaves, partial(call, edge_index_dict=edges, return_semantic_attention_weights=True))


def _points(kind: str, options: Options, change: Any) -> Iterator[Case]:
    """Points with positions, and two sets of points."""
    case, edge_index = compared(made(kind, options)), change(graph()[0], (N, N))
    yield case([features(N, P), features(N, 3)], lambda f, x, p: f(x, p, edge_index))
    if "flow" not in options:
        case = compared(made(kind, options, in_channels=(P, 3)))
        edges = torch.stack([torch.randint(n - 1, (3 * N,)) for n in (7, 4)])
        leaves, y = [features(7, P), features(7, 3), features(4, 3)], features(4, 3)  # without a network, y cancels
        yield case(leaves, lambda f, x, p, q: f((x, y.to(x)), (p, q), edges))


def _with_matrix(kind: str, options: Options, change: Any) -> Iterator[Case]:
    """The result, and the entries of the matrix that a layer returns beside it."""

    def call(f: Any, x: Tensor) -> Tensor:
        with default_dtype(x.dtype), differentiable_products():
            y, M = f(x, edge_index)
        return torch.cat([y.flatten(), M.to_dense().flatten()])

    case, edge_index = compared(made(kind, options)), change(graph()[0], (N, N))
    yield case([features(N, P)], call)


def _types_of_nodes(kind: str, options: Options, change: Any) -> Iterator[Case]:
    """Nodes of several types, along edges of several types."""
    case, edge_index = compared(made(kind, options)), change(graph()[0], (N, N))
    E = edge_index.shape[1]
    types = torch.randint(3, (N,)), torch.randint(4, (E,))
    yield case([features(N, P), features(E, 3)], lambda f, x, z: f(x, edge_index, *types, z))


def _dense(kind: str, options: Options, change: Any) -> Iterator[Case]:
    """A batch of graphs with a matrix each, one matrix for all, one graph; with padding, and without loops."""
    reference = made(kind, options)
    case = compared(reference)
    A = torch.rand(B, N, N, dtype=torch.float64) * (torch.rand(B, N, N) < 0.4)
    if kind == "DenseGATConv":  # a softmax of nothing is NaN there
        A.diagonal(dim1=1, dim2=2).fill_(1)
    padding = torch.rand(B, N) < 0.7
    yield case([features(B, N, P), A], lambda f, x, a: f(x, a))
    yield case([features(B, N, P), A], lambda f, x, a: f(x, a, padding))
    yield case([features(N, P), A[0]], lambda f, x, a: f(x, a))
    yield case([features(B, N, P), A[0]], lambda f, x, a: f(x, a))
    if takes(reference, "add_loop"):
        yield case([features(B, N, P), A], lambda f, x, a: f(x, a, add_loop=False))


def _labels(kind: str, options: Options, change: Any) -> Iterator[Case]:
    """All labels, and some of them along edges with weights; with a product, since the layer has no gradient."""
    case, (edge_index, weight) = compared(made(kind, options)), graph()
    edges, mask = change(edge_index, (N, N)), torch.rand(N) < 0.5
    weight, labels = weight[: edges.shape[1]], torch.arange(N) % 3

    def step(y: Tensor) -> Tensor:
        return y.clamp(-1.0, 1.0)

    def times(f: Any, y: Tensor, *given: Any) -> Tensor:
        with default_dtype(y.dtype):
            return y * f(given[0] if given else y, edges, *given[1:]).to(y)

    yield case([features(N, 1)], times)
    yield case([features(N, P)], lambda f, y: times(f, y, y, mask, weight.to(y), step))
    yield case([features(N, 1)], lambda f, y: times(f, y, labels))


def differentiable_products() -> AbstractContextManager[Any]:
    """Makes products of two SparseTensors by dense ones; torch_sparse's have no gradient of the first."""
    before = SparseTensor.__matmul__

    def product(a: Any, b: Any) -> Any:
        if not isinstance(b, SparseTensor):
            return before(a, b)
        return SparseTensor.from_dense(a.to_dense() @ b.to_torch_sparse_coo_tensor().to_dense())  # adds repeated edges

    return patch.object(SparseTensor, "__matmul__", product)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Sets torch's default dtype, in which PyG normalises some graphs, whatever the dtype of the features."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def dimensions(kind: str, options: Options | None = None) -> int:
    """The number of axes of a layer of torch on grids."""
    if kind == "Upsample":
        return {"linear": 1, "trilinear": 3}.get((options or {}).get("mode", ""), 2)
    return 2 if kind in ("Unfold", "PixelUnshuffle") else int(kind[-2])


def grid_of(kind: str, options: Options | None = None) -> tuple[int, ...]:
    """A grid for a layer of torch; for one that has windows side by side, with whole ones."""
    return (6, 8) if kind == "PixelUnshuffle" else GRIDS[dimensions(kind, options)]


def _on_grids(kind: str, options: Options, change: Any) -> Iterator[Case]:
    """A batch and one image, by the planned order and by torch's kernels, and with an output size."""
    reference = made(kind, options)
    ours, grid = convert(reference), grid_of(kind, options)
    natively: Any = copy.deepcopy(ours)
    for part in natively.modules():
        if isinstance(part, BasisConv) and kind not in ("Unfold", "PixelUnshuffle"):
            part.order = "native"
    for lead in ((B,),) if kind.startswith("Upsampl") else ((B,), ()):
        x = features(*lead, getattr(reference, "in_channels", 4), *grid)
        yield Case(ours, reference, [x])
        yield Case(natively, reference, [x])
        if kind.startswith("ConvTranspose"):
            plain = reference(x).shape[-len(grid) :]
            sizes = [n - o for n, o in zip(plain, reference.output_padding, strict=True)]
            sizes[-1] += reference.stride[-1] - 1
            yield Case(ours, reference, [x], lambda f, x, size=sizes: f(x, output_size=size))


def _on_taps(kind: str, options: Options, change: Any) -> Iterator[Case]:
    """A batch and one image, whose channels are those of all taps of a window."""
    reference = made(kind, options)
    ours: Any = convert(reference)
    grid = (prod(ours.grid),) if kind == "Fold" else (3, 5)
    for lead in ((B,), ()):
        yield Case(ours, reference, [features(*lead, 4 * ours.basis.K, *grid)])


def hidden(*shape: int) -> Tensor:
    """A random mask, True where hidden; the first entry of each row stays visible."""
    mask = torch.rand(shape) < 0.4
    mask[..., 0] = False
    return mask


def _masks(lead: tuple[int, ...]) -> list[Options]:
    """The masks of calls with L queries and M keys: none, hard ones, soft ones, and both kinds together."""
    count = H * (B if lead else 1)
    both = {"attn_mask": hidden(count, L, M), "key_padding_mask": hidden(*lead, M)}
    soft = {"attn_mask": features(count, L, M), "key_padding_mask": features(*lead, M)}
    apart = [{name: mask} for name, mask in (*both.items(), *soft.items())]
    return [{}, {"attn_mask": hidden(L, M)}, {"attn_mask": features(L, M)}, *apart, both, soft]


def attended(f: Any, *leaves: Tensor, **call: Any) -> Tensor:
    """The result and the weights of an attention, in one vector."""
    return flat([part for part in f(*leaves, **call) if part is not None])


def _sequences(kind: str, options: Options, change: Any) -> Iterator[Case]:
    """Batches in both layouts and single sequences, under all masks; also with the keys as values, or as all three."""
    for first, lead in ((True, (B,)), (False, (B,)), (False, ())):
        reference = made(kind, {"batch_first": first} | options)
        ours: Any = convert(reference)
        how = cycle([{"need_weights": False}, {}, {"average_attn_weights": False}])
        widths = (L, E), (M, options.get("kdim", E)), (M, options.get("vdim", E))
        leaves = [features(*((*lead, n, w) if first else (n, *lead, w))) for n, w in widths]
        for mask, weights in zip(_masks(lead), how, strict=False):
            call: Options = mask | weights
            yield Case(ours, reference, leaves, lambda f, *t, c=call: attended(f, *t, **c))
            if leaves[1].shape == leaves[2].shape:
                yield Case(ours, reference, leaves[:2], lambda f, q, k, c=call: attended(f, q, k, k, **c))
        if leaves[1].shape[-1] == leaves[2].shape[-1] == E:
            later = torch.ones(M, M, dtype=torch.bool).triu(1)  # with added sources, torch reads `is_causal` otherwise
            causal = {"attn_mask": later, "is_causal": not ours.rows, "need_weights": False}
            for call in ({}, causal):
                yield Case(ours, reference, leaves[1:2], lambda f, x, c=call: attended(f, x, x, x, **c))


def _rows(kind: str, options: Options, change: Any) -> Iterator[Case]:
    """One row, a matrix, a batch, no rows."""
    reference = made(kind, options)
    case = compared(reference)
    for lead in ((N,), (), (B, 2, N), (0,)):
        yield case([features(*lead, reference.in_features)])


def _bags(kind: str, options: Options, change: Any) -> Iterator[Case]:
    """Bags side by side, of which some are empty; bags of one size; and weights that learn, which only sums take."""
    reference = made(kind, options)
    case, held = compared(reference), torch.randint(reference.num_embeddings, (12,))
    offsets = torch.tensor([0, 3, 3, 7, 12, 12])
    yield case([], lambda f: f(held, offsets))
    yield case([], lambda f: f(held.view(3, 4)))
    if reference.mode == "sum":
        yield case([features(12)], lambda f, w: f(held, offsets, w))
        yield case([features(3, 4)], lambda f, w: f(held.view(3, 4), per_sample_weights=w))


def _cells(kind: str, options: Options, change: Any) -> Iterator[Case]:
    """A batch and one entry, from zeros and from a state."""
    reference = made(kind, options)
    case = compared(reference)
    for lead in ((B,), ()):
        x = features(*lead, reference.input_size)
        state = [features(*lead, reference.hidden_size) for _ in range(1 + (kind == "LSTMCell"))]
        yield case([x], lambda f, x: flat(f(x)))
        yield case([x, *state], lambda f, x, *s: flat(f(x, s if len(s) > 1 else s[0])))


def along(f: Any, x: Tensor, *state: Tensor, lengths: Sequence[int] | None = None) -> Tensor:
    """What a recurrent layer gives for sequences, from a state or from zeros; packed ones, where they have lengths."""
    given = x if lengths is None else pack_padded_sequence(x, torch.tensor(lengths, device="cpu"), f.batch_first, False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "LSTM with projections is not supported with oneDNN")  # torch, of its kernels
        return flat(f(given, (state if len(state) > 1 else state[0]) if state else None))


def _along(kind: str, options: Options, change: Any) -> Iterator[Case]:
    """A batch of sequences, one sequence, and sequences of several lengths, from zeros and from a state."""
    reference = made(kind, options).eval()
    case = compared(reference)
    widths = [reference.proj_size or reference.hidden_size, reference.hidden_size][: 1 + (kind == "LSTM")]
    count = len(reference.all_weights)
    for lead, lengths in (((B,), None), ((), None), ((3,), (2, L, 1))):
        x = features(*((*lead, L) if reference.batch_first else (L, *lead)), reference.input_size)
        state = [features(count, *lead, width) for width in widths]
        for leaves in ([x], [x, *state]):
            yield case(leaves, partial(along, lengths=lengths))


_CASES: dict[str, Callable[..., Iterator[Case]]] = {
    "RGCNConv": _relational,
    "FastRGCNConv": _relational,
    "HypergraphConv": _hyper,
    "SignedConv": _signed,
    "GMMConv": _attributed,
    "NNConv": _attributed,
    "SplineConv": _attributed,
    "LabelPropagation": _labels,
    **dict.fromkeys(("DenseGATConv", "DenseGCNConv", "DenseGINConv", "DenseGraphConv", "DenseSAGEConv"), _dense),
    "PANConv": _with_matrix,
    "PointTransformerConv": _points,
    "HEATConv": _types_of_nodes,
    "HANConv": _typed,
    "HGTConv": _typed,
    "MultiheadAttention": _sequences,
    "Fold": _on_taps,
    "PixelShuffle": _on_taps,
    **dict.fromkeys(("RNNCell", "GRUCell", "LSTMCell"), _cells),
    **dict.fromkeys(("RNN", "GRU", "LSTM"), _along),
    "Linear": _rows,
    "EmbeddingBag": _bags,
}


def _system(name: str, kinds: dict[type, Sequence[Options]]) -> System:
    """A row of the table: the layers of a rule, with its options."""
    first = next(iter(kinds))
    source = "torch.nn" if of_torch(first.__name__) else "torch_geometric.nn"
    alike: dict[str, list[str]] = {}  # of other numbers of axes
    for kind in kinds:
        alike.setdefault(re.sub(r"\d(?=d$)", "N", kind.__name__), []).append(kind.__name__)
    known = ", ".join(names[0] if len(names) == 1 else name for name, names in alike.items())
    every = [(kind.__name__, one) for kind, options in kinds.items() for one in options]
    return System(name, f"{source}.{known}", lambda: chain.from_iterable(cases(*one) for one in every))


SYSTEMS = {name: _system(name, kinds) for name, kinds in sweeps().items()}
