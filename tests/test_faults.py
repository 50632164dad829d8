"""Faults that were found from outside: each stood here as a test that failed, before it was mended."""

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.masked import masked_tensor
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves
from torch_geometric import nn as geometric

from pyg_basisconv import BasisConv, GridConv, bases, compose, mechanisms
from pyg_basisconv.bases import BoundBasis
from pyg_basisconv.convert import convert
from pyg_basisconv.expressions import read
from pyg_basisconv.walks import parse
from tests import contract
from tests.bases.test_contract import FORMS
from tests.cases import CASES

DOUBLE = torch.float64


# What a call returns is the caller's own: whatever is written to it, later results are as they were.


def spoil(given: Any) -> None:
    """Writes to all the tensors in what a call returned."""
    if isinstance(given, tuple | list):
        for part in given:
            spoil(part)
    elif isinstance(given, Tensor) and given.layout == torch.sparse_coo:
        spoil([given.indices(), given.values()])
    elif isinstance(given, Tensor):
        given.data.fill_(0 if given.dtype in (torch.int32, torch.int64) else 7)


def returned(bound: BoundBasis) -> Iterator[Any]:
    """What a bound family, the same turned round, and the same written out give when they are asked."""
    for b in (bound, bound.T, bound.explicit, bound.explicit.T):
        K, M = b.K, b.M
        yield b.edges()
        yield b.to_coo()
        yield b.to_dense()
        yield b.expand(contract.draw(M, 3))
        yield list(b.iterate(contract.draw(M, 3)))
        yield b.combine(contract.draw(K, M, 3))
        yield b.each(contract.draw(K, M, 3))


def results(bound: BoundBasis, conv: BasisConv) -> list[Tensor]:
    x = contract.draw(bound.M, 3)
    outcome = [contract.take(conv, path)((x, None), bound).detach() for path in contract.PATHS]
    return [*outcome, bound.to_dense().clone(), bound.T.to_dense().clone(), bound.to_coo().to_dense()]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.sweep(6)
def test_what_a_bound_basis_returns_may_be_written_to(name: str) -> None:
    case = CASES[name]
    basis = case.basis()
    bound = contract.bind(basis, case.graph())
    conv = contract.make(basis)
    before = results(bound, conv)
    for _ in range(2):  # what is kept is there the second time
        for given in returned(bound):
            spoil(given)
    for a, b in zip(results(bound, conv), before, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("layout", ["edge_index", "sparse"])
@pytest.mark.parametrize("kind", [geometric.GATConv, geometric.GATv2Conv])
def test_the_edges_that_attention_returns_may_be_written_to(kind: Any, layout: str) -> None:
    """Those with the loops that the layer adds, which are made once for a graph."""
    layer = convert(kind(3, 2, heads=2).double())
    x, edges = contract.draw(5, 3), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 3]])
    if layout == "sparse":
        edges = torch.sparse_coo_tensor(edges.flip(0), torch.ones(4, dtype=DOUBLE), (5, 5)).coalesce()

    def run() -> tuple[Tensor, Tensor]:
        y, (found, *_) = layer(x, edges, return_attention_weights=True)
        return y, found

    y, found = run()
    before, expected = y.clone(), found.clone()
    for _ in range(2):
        spoil(run())
    for a, b in zip(run(), (before, expected), strict=True):
        assert torch.equal(*((t.to_dense() if t.is_sparse else t) for t in (a, b)))


def test_the_constants_of_two_layers_may_be_written_to() -> None:
    both = compose(*(contract.make(bases.Adjacency(), P=3, Q=3) for _ in range(2)))  # with biases
    edges, x = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 3]]), contract.draw(4, 3)
    bound = both.basis.bind(edges, size=4, dtype=DOUBLE)
    before = both(x, bound).detach()
    assert bound.constant_weights.any()
    spoil(bound.constant_weights)
    assert torch.equal(both(x, bound), before)


@pytest.mark.parametrize("kind", contract.THETAS)
@pytest.mark.parametrize("order", contract.ORDERS)
@pytest.mark.sweep(18)
def test_a_result_that_was_made_without_gradients_may_be_written_to_with_them(order: str, kind: str) -> None:
    """As in `with torch.no_grad(): y = conv(x, edge_index)`, and then `y *= parameter`."""
    conv = contract.make(bases.Identity() + bases.Adjacency("mean"), kind, order, bias=False)
    x, edges, scale = contract.draw(4, conv.in_channels), edges_of(4), torch.nn.Parameter(torch.ones(1, dtype=DOUBLE))
    for _ in range(2):
        with torch.no_grad():
            y = conv(x, edges)
        expected = y.clone()
        y *= scale
        y.sum().backward()
        assert torch.equal(y, expected)
        assert scale.grad == expected.sum()
        scale.grad = None


TURNS = [(0, "auto"), (1, "a_first"), (2, "theta_first"), (3, "a_first"), (4, "theta_first")]
ALONE = {
    "identity": bases.Identity,
    "power": lambda: bases.Powers(1),
    "adjacency": bases.Adjacency,
    "attention": lambda: bases.Attention(1, mechanisms.Dot(3)),
    "attention on edges": lambda: bases.Attention(1, mechanisms.Dot(3), bases.Adjacency()),
}


# Each family under each order, each parameter under some of both; all with those that pass on what they are given.
WRITTEN = [(order, kind, list(ALONE)[(i + j) % 5]) for i, kind in enumerate(contract.THETAS) for j, order in TURNS]
PASSES = [kind for kind in contract.THETAS if kind.startswith(("Pass", "Split"))]
WRITTEN += [(order, kind, family) for kind in PASSES for family in ALONE for _, order in TURNS[:3]]
WRITTEN = list(dict.fromkeys(WRITTEN))


@pytest.mark.parametrize(("order", "kind", "family"), WRITTEN)
@pytest.mark.sweep(20)
def test_a_result_may_be_written_to_where_gradients_are_recorded(order: str, kind: str, family: str) -> None:
    """As `torch.nn.ReLU(inplace=True)` does behind a layer, whatever views the result was made by."""
    conv = contract.make(ALONE[family](), kind, order, bias=False)
    edges = edges_of(5) if conv.basis.needs_edges else None
    for lead in ((), (2,)):
        x = contract.draw(*lead, 5, conv.in_channels).requires_grad_()
        expected = torch.autograd.grad((3 * conv(x, edges)).sin().sum(), x)
        found = torch.autograd.grad(conv(x, edges).mul_(3).sin().sum(), x)
        contract.close(found[0], expected[0], 1e-10)


FAMILIES = {
    "adjacency": lambda: bases.Adjacency("mean"),
    "powers": lambda: bases.Powers(3),
    "beside a root": lambda: bases.Identity() + bases.Adjacency(),
    "attention": lambda: bases.Attention(2, mechanisms.Dot(3), bases.Adjacency()),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("dtype", "order"), [(torch.float32, "auto"), *((DOUBLE, order) for order in contract.ORDERS)], ids=str
)
def test_several_gradients_at_once(dtype: torch.dtype, order: str, family: str) -> None:
    """As `torch.autograd.grad(is_grads_batched=True)` takes them, by a vmap that is no transform of torch.func."""
    conv = contract.make(FAMILIES[family](), path=order, dtype=dtype)
    x = contract.draw(4, 3, dtype=dtype).requires_grad_()
    leaves = [x, *conv.parameters()]
    y = conv(x, edges_of(4))
    down = contract.draw(3, *y.shape, seed=1, dtype=dtype)
    found = torch.autograd.grad(y, leaves, down, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(y, leaves, d, retain_graph=True) for d in down]
    for mine, *theirs in zip(found, *one_by_one, strict=True):
        contract.close(mine, torch.stack(theirs), 1e-5 if dtype == torch.float32 else 1e-10)


# Layers that torch.compile takes whole are taken whole when they are converted, whatever they return.


def edges_of(N: int) -> Tensor:
    place = torch.arange(3 * N)
    return torch.stack([place % N, (place * place + 2) % N])  # some are loops, and some are there twice


def incidences(N: int) -> Tensor:
    return torch.stack([edges_of(N)[0], edges_of(N)[1] % 3])


def sequences(layer: Any, N: int) -> list[Tensor]:
    return [contract.draw(2, N, 8, seed=i) for i in range(3)]


def nodes(layer: Any, N: int) -> list[Tensor]:
    made = [contract.draw(N, 4)]
    return [*made, contract.draw(3 * N, 3, seed=1)] if getattr(layer, "edge_dim", None) else made


def on_edges(f: Any, x: Tensor, *z: Tensor, **more: Any) -> Any:
    return f(x, edges_of(len(x)), *z, **more)


def on_relations(f: Any, x: Tensor, *z: Tensor, **more: Any) -> Any:
    return f(x, edges_of(len(x)), torch.arange(3 * len(x)) % 3, *z, **more)


def weighed(call: Any) -> Any:
    return lambda f, *leaves: call(f, *leaves, return_attention_weights=True)


def hidden(x: Tensor) -> dict[str, Tensor]:
    L = x.shape[-2]
    return {"attn_mask": torch.ones(L, L).triu(1).bool(), "key_padding_mask": torch.arange(L).expand(2, L) >= L - 1}


def causal(x: Tensor) -> Tensor:
    return nn.Transformer.generate_square_subsequent_mask(x.shape[-2], dtype=x.dtype)


def multihead(**options: Any) -> Any:
    return lambda: nn.MultiheadAttention(8, 2, batch_first=True, **options)


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


ATTENDING: dict[str, tuple[Any, Any, Any]] = {  # the layer, what it is given, and how
    "multihead": (multihead(), sequences, lambda f, x, *_: f(x, x, x)),
    "multihead, three inputs": (multihead(kdim=8, vdim=8), sequences, lambda f, *given: f(*given)),
    "multihead, keys are values": (multihead(), sequences, lambda f, x, y, _: f(x, y, y, average_attn_weights=False)),
    "multihead, masks": (multihead(), sequences, lambda f, x, *_: f(x, x, x, **hidden(x))),
    "multihead, no weights": (multihead(), sequences, lambda f, x, *_: f(x, x, x, need_weights=False)),
    "multihead, more rows": (multihead(add_bias_kv=True, add_zero_attn=True), sequences, lambda f, *given: f(*given)),
    "multihead, batch second": (
        lambda: nn.MultiheadAttention(8, 2),
        lambda _, N: [contract.draw(N, 2, 8)],
        lambda f, x: f(x, x, x),
    ),
    "multihead, no batch": (multihead(), lambda _, N: [contract.draw(N, 8)], lambda f, x: f(x, x, x)),
    "TransformerEncoder": (
        lambda: nn.TransformerEncoder(encoder(), 2),
        sequences,
        lambda f, x, *_: f(x, mask=causal(x), is_causal=True),
    ),
    "TransformerDecoderLayer": (
        lambda: nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        sequences,
        lambda f, x, y, _: f(x, y, tgt_mask=causal(x)),
    ),
    **{
        f"HypergraphConv, {mode}": (
            lambda mode=mode: geometric.HypergraphConv(4, 5, True, mode, heads=2, concat=mode == "node"),
            lambda _, N: [contract.draw(N, 4), contract.draw(3, 4, seed=1)],
            lambda f, x, z: f(x, incidences(len(x)), torch.arange(1.0, 4.0, dtype=x.dtype), z),
        )
        for mode in ("node", "edge")
    },
    "RGATConv, weights": (
        lambda: geometric.RGATConv(4, 5, 3, heads=2, edge_dim=3, concat=False),
        nodes,
        weighed(on_relations),
    ),
    "RGATConv, additive": (lambda: geometric.RGATConv(4, 5, 3, mod="additive", bias=False), nodes, on_relations),
    "RGATConv, scaled": (
        lambda: geometric.RGATConv(4, 5, 3, mod="scaled", attention_mechanism="within-relation"),
        nodes,
        on_relations,
    ),
    "GATConv, weights": (lambda: geometric.GATConv(4, 5, heads=2, residual=True), nodes, weighed(on_edges)),
    "GATv2Conv, weights, no loops": (
        lambda: geometric.GATv2Conv(4, 5, heads=2, add_self_loops=False, edge_dim=3),
        nodes,
        weighed(on_edges),
    ),
    "TransformerConv, weights": (
        lambda: geometric.TransformerConv(4, 5, beta=True, edge_dim=3),
        nodes,
        weighed(on_edges),
    ),
    "FAConv, weights": (
        lambda: geometric.FAConv(4),
        nodes,
        lambda f, x: f(x, x, edges_of(len(x)), return_attention_weights=True),
    ),
    "ResGatedGraphConv, edges": (lambda: geometric.ResGatedGraphConv(4, 5, edge_dim=3), nodes, on_edges),
    "SuperGATConv": (lambda: geometric.SuperGATConv(4, 4, heads=2).eval(), nodes, on_edges),
}


@pytest.fixture
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def tensors_of(outcome: Any) -> list[Tensor]:
    return [t for t in tree_leaves(outcome) if t is not None]


def with_gradients(call: Any, f: nn.Module, leaves: list[Tensor]) -> list[Tensor]:
    """All that a call returns, and the gradients of all inputs and parameters."""
    leaves = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    found = tensors_of(call(f, *leaves))
    total = sum((t * contract.draw(*t.shape, seed=i)).sum() for i, t in enumerate(found) if t.requires_grad)
    inputs = [*leaves, *f.parameters()]
    return [*found, *torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)]


@pytest.mark.usefixtures("_fresh")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", ATTENDING)
@pytest.mark.sweep(1)
def test_converted_attention_compiles_whole(kind: str) -> None:
    """As in eager mode, in numbers and gradients, for several sizes without a compilation of each."""
    make, given, call = ATTENDING[kind]
    layer = convert(make().double())
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    fast = torch.compile(layer, fullgraph=True, dynamic=True, backend="eager")
    counters.clear()
    for N in (5, 8):
        leaves = given(layer, N)
        found, expected = (with_gradients(call, f, leaves) for f in (fast, layer))
        assert_close(found, expected, rtol=1e-10, atol=1e-10)
    assert counters["stats"]["unique_graphs"] <= 2


KNOWN = geometric.HGTConv(4, 4, (["a", "b"], [("a", "to", "b"), ("b", "of", "a")]), heads=2)


@pytest.mark.usefixtures("_fresh")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")  # Dynamo's, where the graph breaks
@pytest.mark.parametrize(
    ("layer", "call"),
    [
        (KNOWN, lambda f, x, e: f({"a": x, "b": x}, {("a", "to", "b"): e, ("b", "of", "a"): e.flip(0)})),
        (geometric.RGCNConv(5, 4, 2), lambda f, x, e: f(torch.arange(5), e, torch.arange(9) % 2)),
    ],
    ids=["HGTConv", "RGCNConv, numbers of nodes"],
)
def test_layers_that_check_indices_themselves_compile(layer: nn.Module, call: Any) -> None:
    """Such a check breaks the graph, as PyG's own code does; it must not end in an error of the compiler."""
    ours, edges = convert(layer.double()), torch.randint(5, (2, 9))
    fast = torch.compile(ours, backend="eager")
    found, expected = (with_gradients(lambda f, x: call(f, x, edges), f, [contract.draw(5, 4)]) for f in (fast, ours))
    assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("_fresh")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    "kind",
    [
        *("multihead, keys are values", "HypergraphConv, node", "RGATConv, weights", "GATConv, weights"),
        *("TransformerConv, weights", "FAConv, weights", "ResGatedGraphConv, edges"),
    ],
)
@pytest.mark.slow
def test_converted_attention_compiles_under_autocast(kind: str) -> None:
    """What comes after it in a compiled graph is told the dtypes that come."""
    make, given, call = ATTENDING[kind]
    layer = convert(make())
    leaves = [leaf.float() for leaf in given(layer, 6)]

    def run(f: nn.Module) -> list[tuple[Tensor, Tensor]]:
        with torch.autocast("cpu", torch.bfloat16):
            return [(t, torch.zeros((), dtype=t.dtype)) for t in tensors_of(call(f, *leaves))]

    for (a, told), (b, _) in zip(torch.compile(run, fullgraph=True, backend="eager")(layer), run(layer), strict=True):
        assert a.dtype == told.dtype
        assert_close(a, b)


@pytest.mark.usefixtures("_fresh")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    ("kind", "backend"),
    [("multihead, masks", "aot_eager"), ("GATConv, weights", "inductor"), ("RGATConv, weights", "aot_eager")],
)
@pytest.mark.slow
def test_converted_attention_compiles_by_other_backends(kind: str, backend: str) -> None:
    make, given, call = ATTENDING[kind]
    layer = convert(make().double())
    leaves = given(layer, 6)
    fast = torch.compile(layer, fullgraph=True, dynamic=True, backend=backend)
    found, expected = (with_gradients(call, f, leaves) for f in (fast, layer))
    assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("_fresh")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.slow
def test_compiled_attention_draws_anew_and_copies_are_layers_of_their_own() -> None:
    layer = convert(nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True).double())
    x = contract.draw(2, 6, 8)
    fast = torch.compile(lambda f, x: (f(x, x, x), f(x, x, x)), fullgraph=True, backend="aot_eager")
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        drawn.append(tree_leaves(fast(layer, x)))
    assert_close(*drawn, rtol=0, atol=0)
    assert not torch.equal(drawn[0][0], drawn[0][2])
    twin = copy.deepcopy(layer).eval()
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not fast(twin, x)[0][0].any()
    assert fast(layer.eval(), x)[0][0].any()


# What is in no form that is read is refused at the door.

LINE = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
FORMS = {
    "nested": lambda t: torch.nested.nested_tensor([t, t[:1]]),
    "jagged": lambda t: torch.nested.nested_tensor([t, t[:1]], layout=torch.jagged),
    "mkldnn": lambda t: t.to_mkldnn(),
    "masked": lambda t: masked_tensor(t, torch.ones_like(t).bool()),
}


def ready(basis: Any, *args: Any, **kwargs: Any) -> BasisConv:
    return BasisConv(3, 2, basis, *args, **kwargs)


def edge_scores() -> BasisConv:
    return ready(bases.Attention(1, mechanisms.Additive() + mechanisms.Edge(2), bases.Adjacency()))


def pairwise() -> BasisConv:
    return ready(bases.Attention(1, mechanisms.Dot(2)))


def image_layer() -> GridConv:
    return GridConv(3, 2, bases.Window(None, (3, 3), padding=1))


NODES, WEIGHTS = torch.ones(5, 3), torch.ones(4)
PLACES: dict[str, tuple[str, Any]] = {  # the argument that is named, and a call that passes it in some form
    "x": ("x", lambda form: ready(bases.Adjacency())(form(NODES), LINE)),
    "x of a pair": (r"x\[0\]", lambda form: ready(bases.Adjacency())((form(NODES), None), LINE)),
    "x of targets": (r"x\[1\]", lambda form: ready(bases.Identity() + bases.Adjacency())((NODES, form(NODES)), LINE)),
    "x, unread": (r"x\[1\]", lambda form: ready(bases.Adjacency())((NODES, form(NODES)), LINE)),
    "edge_weight": ("edge_weight", lambda form: ready(bases.Adjacency())(NODES, LINE, form(WEIGHTS))),
    "edge_weight, bound": ("edge_weight", lambda form: bases.Adjacency().bind(LINE, form(WEIGHTS))),
    "edge_attr": ("edge_attr", lambda form: edge_scores()(NODES, LINE, edge_attr=form(torch.ones(4, 2)))),
    "mask": ("mask", lambda form: pairwise()(NODES, mask=form(torch.zeros(5, 5)))),
    "lambda_max": ("lambda_max", lambda form: ready(bases.Chebyshev(2))(NODES, LINE, lambda_max=form(torch.ones(1)))),
    "image": ("image", lambda form: image_layer()(form(torch.ones(3, 6, 6)))),
    "GCNConv": ("x", lambda form: convert(geometric.GCNConv(3, 2))(form(NODES), LINE)),
    "GATConv": ("x", lambda form: convert(geometric.GATConv(3, 2))(form(NODES), LINE)),
    "RGATConv": ("x", lambda form: convert(geometric.RGATConv(3, 2, 1))(form(NODES), LINE, torch.zeros(4).long())),
    "HypergraphConv": (
        "hyperedge_attr",
        lambda form: convert(geometric.HypergraphConv(3, 2, True))(NODES, LINE, hyperedge_attr=form(NODES)),
    ),
    "MultiheadAttention": ("query", lambda form: convert(nn.MultiheadAttention(3, 1))(*[form(NODES)] * 3)),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of:UserWarning")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", PLACES)
def test_forms_that_are_not_read_are_refused(place: str, form: str) -> None:
    argument, call = PLACES[place]
    with pytest.raises(ValueError, match=rf"^{argument}: expected a dense .*, got .*; .+"):
        call(FORMS[form])


@pytest.mark.parametrize("place", ["edge_weight", "mask", "lambda_max"])
def test_sparse_tensors_are_refused_where_dense_ones_are_read(place: str) -> None:
    argument, call = PLACES[place]
    with pytest.raises(ValueError, match=rf"^{argument}: expected a dense tensor, got torch.sparse_coo; .+"):
        call(lambda t: t.to_sparse())


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("number", [2 + 0j, torch.tensor(2 + 0j)], ids=["number", "tensor"])
def test_a_complex_lambda_max_is_refused(number: Any, compiled: bool) -> None:
    conv = ready(bases.Chebyshev(2))
    call = torch.compile(conv, backend="eager") if compiled else conv
    with pytest.raises(Exception, match=r"lambda_max: expected .*, got .*; ") as caught:
        call(NODES, LINE, lambda_max=number)
    assert compiled or caught.type is ValueError


# The weights that TransformerConv returns are those before dropout, and nobody's mode is changed for them.


def test_weights_before_dropout_leave_the_mode_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = convert(geometric.TransformerConv(3, 2, heads=2, edge_dim=2, dropout=0.5).double())
    x, z = contract.draw(5, 3), contract.draw(4, 2)
    _, (_, expected) = layer.eval()(x, LINE, z, return_attention_weights=True)
    layer.train()

    def touched(*args: Any) -> None:
        raise AssertionError("other threads read it, too")

    monkeypatch.setattr(nn.Module, "train", touched)
    monkeypatch.setattr(nn.Module, "eval", touched)
    drawn = [layer(x, LINE, z, return_attention_weights=True) for _ in range(3)]
    assert all(torch.equal(weights, expected) for _, (_, weights) in drawn)
    assert not torch.equal(drawn[0][0], drawn[1][0])
    assert all(part.training for part in layer.modules())


# Of several weighted loops at one node PyG takes the last, and gives its gradient to all of them.


def test_gradients_of_several_loops_at_a_node_are_those_of_finite_differences() -> None:
    edges = torch.tensor([[0, 1, 1, 2, 1], [1, 1, 2, 0, 1]])  # the second and the last are loops at node 1
    x, w, down = contract.draw(3, 3), contract.draw(5, seed=1).abs() + 0.5, contract.draw(3, 2, seed=2)
    theirs = geometric.GCNConv(3, 2).double()
    ours = convert(theirs)

    def loss(layer: nn.Module, w: Tensor) -> Tensor:
        return (layer(x, edges, w) * down).sum()

    steps = 1e-6 * torch.eye(5, dtype=DOUBLE)
    differences = torch.stack([(loss(theirs, w + step) - loss(theirs, w - step)).detach() / 2e-6 for step in steps])
    leaf = w.clone().requires_grad_()
    (mine,), (reference,) = (torch.autograd.grad(loss(layer, leaf), leaf) for layer in (ours, theirs))
    assert_close(loss(ours, w), loss(theirs, w))
    assert_close(mine, differences, rtol=1e-6, atol=1e-8)
    assert mine[1] == 0
    assert reference[1] == reference[4] != 0  # PyG's, which is no derivative
    assert_close(reference[[0, 2, 3, 4]], mine[[0, 2, 3, 4]])


# What is nested too deep to be evaluated is refused where it is made, and what is not is evaluated.

NESTED: dict[str, tuple[Any, Any]] = {  # how one more is put around it, and the first
    "Product": (lambda b: b @ bases.Adjacency("mean"), bases.Adjacency("mean")),
    "Product, from the right": (lambda b: bases.Adjacency("mean") @ b, bases.Adjacency("mean")),
    "Mix": (lambda b: bases.Mix([1.0], b), bases.Adjacency("mean")),
    "Powers": (lambda b: bases.Powers(1, b), bases.Adjacency("mean")),
    "Transpose": (bases.Transpose, bases.Adjacency("mean")),
    "Product and Transpose": (lambda b: (b @ bases.Identity()).T, bases.Adjacency("mean")),
    "then": (lambda m: m.then(torch.tanh), mechanisms.Additive()),
    "a multiple": (lambda m: 0.5 * m, mechanisms.Additive()),
    "a sum of mechanisms": (lambda m: m + mechanisms.Additive(), mechanisms.Additive()),
}


@pytest.mark.parametrize("kind", NESTED)
@pytest.mark.sweep(3, "Powers")
def test_what_is_nested(kind: str) -> None:
    around, deepest = NESTED[kind]
    most = 100 if isinstance(deepest, mechanisms.Mechanism) else 50
    for _ in range(900):
        try:
            deepest = around(deepest)
        except ValueError as error:
            assert re.search(rf"expected something nested at most {most} deep, got {most + 1}; .+", str(error))  # noqa: PT017
            break
    assert most - 1 <= deepest.depth <= most
    basis = deepest if isinstance(deepest, bases.Basis) else bases.Attention(1, deepest, bases.Adjacency())
    assert repr(basis)
    x = contract.draw(5, 3).requires_grad_()
    ready(basis).double()(x, LINE).sum().backward()
    assert x.grad is not None


def test_transposes_of_products_do_not_pile_up() -> None:
    """A bound product is transposed by its factors alone, where one of them has a single matrix."""

    def depth(bound: Any) -> int:
        return 1 + max(map(depth, getattr(bound, "parts", ())), default=0)

    basis: Any = bases.Powers(2)
    for _ in range(20):
        basis = (basis @ bases.Identity()).T
    assert depth(basis.bind(LINE, size=(5, 5))) <= 22


@pytest.mark.parametrize("text", ["Identity() + (" * 900 + "Identity()" + ")" * 900, "Adjacency()" + ".T" * 900])
def test_expressions_that_are_nested_too_deep(text: str) -> None:
    with pytest.raises(ValueError, match=r"nested more than 100 times|too much|too many nested"):
        read(text)


@pytest.mark.parametrize("text", ["(" * 900 + "a" + ")" * 900, "^(" * 900 + "a" + ")" * 900])
def test_sorts_of_walks_that_are_nested_too_deep(text: str) -> None:
    with pytest.raises(ValueError, match="at most 100 open parentheses"):
        parse(text, ["a"])


def test_a_sum_of_many_bases_is_flat() -> None:
    many = sum((bases.Identity() for _ in range(150)), start=bases.Adjacency())
    assert many.depth == 2
    assert many.K == 151
