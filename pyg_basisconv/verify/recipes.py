"""The layers of PyG and torch that `convert` takes, under the options that stand with their recipes."""

import copy
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, cycle
from typing import Any

import torch
import torch_geometric.backend
from torch import Tensor

from ..conv import BasisConv
from ..convert import convert
from ..convert.registry import Options, example, sweeps
from .comparison import Case, system
from .data import GRIDS, B, E, H, L, M, N, P, Q, drawn, features, graph

R = 5  # relations, of which the last has no edge
COUNTS = {"a": 7, "b": 4, "c": 3}  # of nodes, by type
WIDTHS = {"a": 8, "b": 3, "c": 2}
KINDS = [("a", "to", "b"), ("b", "of", "a"), ("a", "in", "a"), ("b", "on", "a")]  # no edge leads to c

_LAYERS = {kind.__name__: kind for kinds in sweeps().values() for kind in kinds}
_GIVEN: Options = {  # what constructors ask for
    "in_channels": P,
    "out_channels": Q,
    "channels": P,
    "num_relations": R,
    "K": 3,
    "alpha": 0.1,
    "first_aggr": True,
    "embed_dim": E,
    "num_heads": H,
    "kernel_size": 3,
}
_TYPED: Options = {"in_channels": WIDTHS, "out_channels": WIDTHS["a"], "metadata": (list(WIDTHS), KINDS)}
_ON_GRIDS: Options = {"in_channels": 4, "out_channels": 6}


def is_grid(kind: str) -> bool:
    """Whether a layer is one of torch's on grids."""
    return _LAYERS[kind].__module__.startswith("torch.nn.") and kind != "MultiheadAttention"


def constructed(kind: str | type, options: Options | None = None, **given: Any) -> Any:
    """A layer as its constructor makes it.

    Args:
        kind: by name, or a class like the one of that name.
        options: of its constructor.
        **given: what the constructor asks for, where it is not as usual.
    """
    layer, kind = (_LAYERS[kind], kind) if isinstance(kind, str) else (kind, kind.__name__)
    typed = _TYPED if kind in ("HANConv", "HGTConv") else _ON_GRIDS if is_grid(kind) else {}
    options = {name: value(P, Q) if name == "conv" else value for name, value in (options or {}).items()}
    return example(layer, _GIVEN | typed | given, options)


def made(kind: str, options: Options | None = None, **given: Any) -> Any:
    """A layer with random parameters, small enough that no softmax is all or nothing."""
    layer = drawn(constructed(kind, options, **given), std=0.5)
    return layer.eval() if kind == "SuperGATConv" else layer  # in training it draws pairs that are no edges


def asks(layer: Any, name: str) -> bool:
    """Whether the call of a layer has an argument of this name."""
    return name in inspect.signature(type(layer).forward).parameters


def attends(module: Any) -> bool:
    """Whether some BasisConv in it reads weights from the features."""
    return any(part.basis.reads_content for part in module.modules() if isinstance(part, BasisConv))


def beside(layer: Any, edges: int, nodes: int = N) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What the call of a layer takes beside x and edge_index, by name: features, and types of edges."""
    given = {"x_0": features(nodes, P)} if asks(layer, "x_0") else {}
    if asks(layer, "x_0") and not layer.normalize:
        given["edge_weight"] = features(edges)
    if getattr(layer, "edge_dim", None):
        given["edge_attr"] = features(edges, layer.edge_dim)
    return given, {"edge_type": torch.randint(R - 1, (edges,))} if asks(layer, "edge_type") else {}


def called(edge_index: Any, names: Any = (), **more: Any) -> Callable[..., Any]:
    """A call of a layer with x and other leaves, by name."""
    return lambda f, x, *leaves: f(x=x, edge_index=edge_index, **dict(zip(names, leaves, strict=True)), **more)


def forget(reference: Any) -> None:
    """What a reference with cached=True kept of another graph."""
    for name in ("_cached_edge_index", "_cached_adj_t", "_cached_x", "_cached_h"):
        if hasattr(reference, name):
            setattr(reference, name, None)


def cases(kind: str, options: Options) -> Iterator[Case]:
    """A layer and what `convert` makes of it."""
    yield from _CASES.get(kind, _on_grids if is_grid(kind) else _on_graphs)(kind, options)


def _on_graphs(kind: str, options: Options) -> Iterator[Case]:
    """Of features and in a batch, without weights of edges and with them; and the weights that attention returns."""
    reference = made(kind, options)
    ours = convert(reference)
    # PyG's ClusterGCNConv is defined for one loop per node, if need be given in order.
    every = kind == "ClusterGCNConv" and not options.get("add_self_loops", True)
    edge_index, weight = graph(range(N) if every else (2,))
    given, types = beside(reference, edge_index.shape[1])
    leaves, call = [features(N, P), *given.values()], called(edge_index, given, **types)
    yield Case(ours, reference, leaves, call)
    if attends(ours):
        if asks(reference, "return_attention_weights"):
            weighed = called(edge_index, given, return_attention_weights=True, **types)
            yield Case(ours, reference, leaves, lambda f, *leaves: flat(weighed(f, *leaves)))
        if kind == "GATConv" and options.get("edge_dim"):  # PyG then leaves the term of the edges out
            yield Case(ours, reference, leaves[:1], called(edge_index))
        return
    if options.get("combine_root") != "self_loop":  # where PyG counts the first axis of x, and has no batch
        forget(reference)
        yield Case(ours, reference, [features(2, N, P)], call)
    if asks(reference, "edge_weight"):
        forget(reference)
        yield Case(ours, reference, [features(N, P), weight], called(edge_index, ["edge_weight"]))


def flat(outcome: Any) -> Tensor:
    """All numbers that a layer returns, those of several types of nodes in the order of their names."""
    if isinstance(outcome, Tensor):
        return outcome.flatten()
    if isinstance(outcome, dict):
        outcome = [y for _, y in sorted(outcome.items()) if y is not None]
    return torch.cat([flat(part) for part in outcome if not (isinstance(part, Tensor) and part.dtype == torch.long)])


@contextmanager
def loop_path() -> Iterator[None]:
    """Has RGCNConv loop over relations: with pyg_lib it may else take a mean over the edges of all of them."""
    before = torch_geometric.backend.use_segment_matmul
    torch_geometric.backend.use_segment_matmul = False
    try:
        yield
    finally:
        torch_geometric.backend.use_segment_matmul = before


def typed_graph(sources: int = N, targets: int = N) -> tuple[Tensor, Tensor]:
    """Edges of R types, sorted by type; the last type has none, and the last nodes are alone."""
    edge_index = torch.stack([torch.randint(n - 1, (4 * N,)) for n in (sources, targets)])
    edge_index = torch.cat([edge_index, edge_index[:, :3]], 1)
    return edge_index, torch.randint(R - 1, edge_index.shape[1:]).sort().values


def _relational(kind: str, options: Options) -> Iterator[Case]:
    """Features of the nodes, of both sides, and nodes without any."""

    def case(width: Any, leaves: list[Tensor], call: Callable[..., Tensor]) -> Case:
        reference = made(kind, options, in_channels=width)

        def by_loop(f: Any, *given: Tensor) -> Tensor:
            with loop_path():
                return call(f, *given)

        return Case(convert(reference), reference, leaves, by_loop)

    edges = typed_graph()
    yield case(P, [features(N, P)], lambda f, x: f(x, *edges))
    numbers = torch.randint(N, (11,))
    if options.get("flow") != "target_to_source":  # where PyG mixes up the two sides
        both = typed_graph(7, 4)
        for width in (P, 3):
            yield case((P, width), [features(7, P), features(4, width)], lambda f, x, y: f((x, y), *both))
        if "num_blocks" not in options and kind == "RGCNConv":
            yield case(N, [], lambda f: f((numbers[:7], numbers[7:]), *both))
    if "num_blocks" not in options:
        yield case(N, [], lambda f: f(None, *edges))
        yield case(N, [], lambda f: f(torch.arange(N), *edges))
        if kind == "RGCNConv":  # FastRGCNConv reads other numbers than these
            few = typed_graph(11, 11)
            yield case(N, [], lambda f: f(numbers, *few))


def incidence() -> Tensor:
    """Nodes and hyperedges: one of each alone, and incidences that repeat."""
    found = torch.stack([torch.randint(N - 1, (3 * N,)), torch.randint(6, (3 * N,))])
    return torch.cat([found, found[:, :2]], 1)


def _hyper(kind: str, options: Options) -> Iterator[Case]:
    """Without weights, and with weights of 7 hyperedges, the last of which has no node."""
    reference, index = made(kind, options), incidence()
    ours, weight = convert(reference), torch.rand(7, dtype=torch.float64) + 0.1
    more = [features(7, P)] if options.get("use_attention") else []
    yield Case(ours, reference, [features(N, P), *more], lambda f, x, z=None: f(x, index, None, z))
    yield Case(ours, reference, [features(N, P), weight, *more], lambda f, x, w, z=None: f(x, index, w, z, 7))


def _signed(kind: str, options: Options) -> Iterator[Case]:
    """In a batch too, and from one side to another."""
    reference = made(kind, options)
    ours, (pos, _), (neg, _) = convert(reference), graph(), graph()
    width = P if options["first_aggr"] else 2 * P
    for shape in ((N, width), (2, N, width)):
        yield Case(ours, reference, [features(*shape)], lambda f, x: f(x, pos, neg))
    if "flow" not in options:
        pair = [features(N, width), features(N + 2, width)]
        yield Case(ours, reference, pair, lambda f, x, y: f((x, y), pos, neg))


def typed_edges() -> dict[tuple[str, str, str], Tensor]:
    """Edges of all kinds but for the last nodes of each type, which are alone."""
    return {r: torch.stack([torch.randint(COUNTS[k] - 1, (12,)) for k in (r[0], r[2])]) for r in KINDS}


def typed_features() -> list[Tensor]:
    """Those of the nodes of each type."""
    return [features(COUNTS[k], WIDTHS[k]) for k in COUNTS]


def typed_call(edges: Any, **more: Any) -> Callable[..., Tensor]:
    """A call of a layer with the features of each type."""
    return lambda f, *x: flat(f(dict(zip(COUNTS, x, strict=True)), edges, **more))


def _typed(kind: str, options: Options) -> Iterator[Case]:
    """Edges of all kinds, and of some; the weights of the kinds, where they are returned."""
    reference, edges = made(kind, options), typed_edges()
    ours, leaves = convert(reference), typed_features()
    for some in (edges, {r: edges[r] for r in KINDS[1:3]}):
        yield Case(ours, reference, leaves, typed_call(some))
    if kind == "HANConv":
        yield Case(ours, reference, leaves, typed_call(edges, return_semantic_attention_weights=True))


def dimensions(kind: str) -> int:
    """The number of axes of a layer of torch on grids."""
    return 2 if kind == "Unfold" else int(kind[-2])


def _on_grids(kind: str, options: Options) -> Iterator[Case]:
    """Images and one image, by any order and by torch's kernels; and to a given size, where a call takes one."""
    reference = made(kind, options)
    ours, grid = convert(reference), GRIDS[dimensions(kind)]
    natively: Any = copy.deepcopy(ours)
    natively.order = "auto" if kind == "Unfold" else "native"
    for lead in ((B,), ()):
        x = features(*lead, 4, *grid)
        yield Case(ours, reference, [x])
        yield Case(natively, reference, [x])
        if kind.startswith("ConvTranspose"):
            plain = reference(x).shape[-len(grid) :]
            sizes = [n - o for n, o in zip(plain, reference.output_padding, strict=True)]
            sizes[-1] += reference.stride[-1] - 1
            yield Case(ours, reference, [x], lambda f, x, size=sizes: f(x, output_size=size))


def hidden(*shape: int) -> Tensor:
    """True where not to look; never everywhere."""
    mask = torch.rand(shape) < 0.4
    mask[..., 0] = False
    return mask


def _masks(lead: tuple[int, ...]) -> list[Options]:
    """What may be hidden from L queries of M keys."""
    count = H * (B if lead else 1)
    both = {"attn_mask": hidden(count, L, M), "key_padding_mask": hidden(*lead, M)}
    soft = {"attn_mask": features(count, L, M), "key_padding_mask": features(*lead, M)}
    apart = [{name: mask} for name, mask in (*both.items(), *soft.items())]
    return [{}, {"attn_mask": hidden(L, M)}, {"attn_mask": features(L, M)}, *apart, both, soft]


def attended(f: Any, *leaves: Tensor, **call: Any) -> Tensor:
    """The result, and the weights beside it."""
    return flat([part for part in f(*leaves, **call) if part is not None])


def _sequences(kind: str, options: Options) -> Iterator[Case]:
    """Batches either way round and single sequences, under all masks; also where values are the keys."""
    for first, lead in ((True, (B,)), (False, (B,)), (False, ())):
        reference = made(kind, {"batch_first": first} | options)
        ours, how = convert(reference), cycle([{"need_weights": False}, {}, {"average_attn_weights": False}])
        widths = (L, E), (M, options.get("kdim", E)), (M, options.get("vdim", E))
        leaves = [features(*((*lead, n, w) if first else (n, *lead, w))) for n, w in widths]
        for mask, weights in zip(_masks(lead), how, strict=False):
            call: Options = mask | weights
            yield Case(ours, reference, leaves, lambda f, *t, c=call: attended(f, *t, **c))
            if leaves[1].shape == leaves[2].shape:
                yield Case(ours, reference, leaves[:2], lambda f, q, k, c=call: attended(f, q, k, k, **c))


_CASES: dict[str, Callable[[str, Options], Iterator[Case]]] = {
    "RGCNConv": _relational,
    "FastRGCNConv": _relational,
    "HypergraphConv": _hyper,
    "SignedConv": _signed,
    "HANConv": _typed,
    "HGTConv": _typed,
    "MultiheadAttention": _sequences,
}


def _register() -> None:
    """Makes each recipe, over its options, a row of the table."""

    def row(kinds: Any) -> Callable[[], Iterator[Case]]:
        return lambda: chain.from_iterable(cases(k.__name__, one) for k, options in kinds.items() for one in options)

    for name, kinds in sweeps().items():
        first = next(iter(kinds))
        source = (
            "torch.nn" if is_grid(first.__name__) or first.__name__ == "MultiheadAttention" else "torch_geometric.nn"
        )
        known = first.__name__ if len(kinds) == 1 else re.sub(r"\d(?=d$)", "N", first.__name__)
        system(name, f"{source}.{known}")(row(kinds))


_register()
