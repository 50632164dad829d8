"""A graph that is new in every step: bound by lists in numpy, planned by the form of its call, and never another's."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric import EdgeIndex

from pyg_basisconv import BasisConv, GridConv, bases, theta
from pyg_basisconv.bases import EdgeList
from pyg_basisconv.cache import Witness, place
from pyg_basisconv.graph import Graph
from pyg_basisconv.kernels import lists
from pyg_basisconv.kernels.lists import List
from pyg_basisconv.reading import read_edges, read_graph
from pyg_basisconv.typed_edges import ListedEdges, explicit
from tests.contract import DOUBLE, close, draw

N, E, P, Q, R = 9, 30, 4, 3, 3
NORMS = (None, "sym", "mean", "rw")
LISTED: dict[str, Callable[[], bases.Basis]] = {
    **{f"adjacency {norm}": lambda norm=norm: bases.Adjacency(norm) for norm in NORMS},
    **{f"loops {norm}": lambda norm=norm: bases.Adjacency(norm, True) for norm in NORMS},
    **{f"laplacian {norm}": lambda norm=norm: bases.Laplacian(norm) for norm in (None, "sym", "rw")},
    **{f"chebyshev {norm}": lambda norm=norm: bases.Chebyshev(3, norm) for norm in (None, "sym", "rw")},
    "root": lambda: bases.Adjacency("mean") + bases.Identity(),
    "three": lambda: bases.Identity() + bases.Adjacency("rw") + bases.Adjacency("sym", True, "replace"),
    **{
        f"relations {norm} {inverse} {loop}": lambda o=(norm, inverse, loop): bases.Relations(R, *o)
        for norm in (None, "mean", "row", "sym")
        for inverse in (False, True)
        for loop in (False, True)
    },
}
every_family = pytest.mark.parametrize("kind", LISTED)


def edges(seed: int, n: int = N, count: int = E) -> Tensor:
    return torch.randint(n, (2, count), generator=torch.Generator().manual_seed(seed))


def types(basis: bases.Basis, count: int = E) -> Tensor | None:
    return torch.arange(count) % R if isinstance(basis, bases.Relations) else None


def by_messages(conv: BasisConv, x: Tensor, edge_index: Tensor, kind: Tensor | None = None) -> Tensor:
    """What a layer makes of it that has seen nothing, by PyG's message passing."""
    new = copy.deepcopy(conv)
    new.fuse, new.order = False, "auto"
    return new(x, edge_index.clone(), None, kind)


@every_family
@pytest.mark.parametrize(("n", "count"), [(N, E), (5, 0), (1, 2), (40, 60)])
@pytest.mark.sweep(24)
def test_lists_are_the_family(kind: str, n: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same matrices as by the operations of torch, that weights and other devices need, in all that is applied."""
    basis, e = LISTED[kind](), edges(1, n, count)
    made = basis.bind(e, edge_type=types(basis, count), size=n, dtype=DOUBLE)
    assert any(isinstance(part, ListedEdges) for part in (made, made.typed, getattr(made, "operator", None)))
    monkeypatch.setattr(Graph, "as_list", None)
    plain = basis.bind(e.clone(), edge_type=types(basis, count), size=n, dtype=DOUBLE)
    assert not isinstance(plain.typed, ListedEdges) or kind == "identity"
    close(made.to_dense(), plain.to_coo().to_dense())
    close(made.to_coo().to_dense(), plain.to_coo().to_dense())
    close(made.T.to_dense(), plain.T.to_dense())
    x, z = draw(n, P), draw(n, made.K * Q, seed=2)
    A = made.to_dense()
    turned = made.adjoint  # before and after it is applied itself, which gives its transpose another start
    for rows, matrices in ((made, A), (made.adjoint, A.transpose(1, 2)), (turned, A.transpose(1, 2))):
        expected = torch.einsum("kmn,mp->nkp", matrices, x).flatten(1)
        close(rows.expand_rows(x), expected)
        expected = torch.einsum("kmn,mkq->nq", matrices, z.unflatten(1, (made.K, Q)))
        close(rows.combine_rows(z), expected)


@every_family
@pytest.mark.sweep(10)
def test_a_new_graph_in_every_step(kind: str) -> None:
    """Graphs of one form, and with them all gradients, one after the other and again."""
    conv = BasisConv(P, Q, LISTED[kind]()).double()
    graphs = [edges(seed) for seed in range(3)]
    for i in (0, 1, 0, 2, 1):
        x = draw(N, P, seed=i).requires_grad_()
        leaves = (x, conv.weight, conv.bias)
        first, second = (conv(x, graphs[i].clone(), None, types(conv.basis)) for _ in range(2))
        close(first, by_messages(conv, x, graphs[i], types(conv.basis)))
        g = draw(*first.shape, seed=7)
        gradients = [torch.autograd.grad((y * g).sum(), leaves) for y in (first, second, _dense(conv, x, graphs[i]))]
        for a, b, c in zip(*gradients, strict=True):
            assert torch.equal(a, b)
            close(a, c)


def _dense(conv: BasisConv, x: Tensor, edge_index: Tensor) -> Tensor:
    """The formula, by dense matrices."""
    A = conv.basis.bind(edge_index.clone(), edge_type=types(conv.basis), size=N, dtype=DOUBLE).to_coo().to_dense()
    return torch.einsum("kmn,mp,kpq->nq", A, x, conv.theta.dense()) + conv.bias


@pytest.mark.parametrize("parameter", [theta.Full, theta.Depthwise])
@pytest.mark.parametrize("order", ["a_first", "theta_first"])
def test_weights_that_learn_on_new_graphs(order: str, parameter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their graphs are planned once, and neither their form nor their program is that of fixed weights."""
    kind = torch.arange(E) % R
    conv = BasisConv(P, P, bases.Relations(R, "sym"), parameter(), order=order).double()
    x, weights = draw(N, P), [draw(E, seed=seed).abs() for seed in range(8)]
    conv(x, edges(1), weights[0], kind)
    conv(x, edges(2), weights[1].clone().requires_grad_(), kind)
    choose, planned = BasisConv._choose, []

    def noted(layer: BasisConv, *args: Any) -> Any:
        planned.append(layer)
        return choose(layer, *args)

    monkeypatch.setattr(BasisConv, "_choose", noted)
    again, peer = edges(3), copy.deepcopy(conv)
    peer.fuse, peer.order = False, "auto"
    for seed, weight in enumerate(weights[2:]):
        e = again if seed % 2 else edges(seed + 4)
        one, other = weight.clone().requires_grad_(), weight.clone().requires_grad_()
        y, expected = conv(x, e, one, kind), peer(x, e.clone(), other, kind)
        close(y, expected)
        close(*(torch.autograd.grad(v.sin().sum(), w)[0] for v, w in ((y, one), (expected, other))))
    assert not any(layer is conv for layer in planned)


KNOWN: dict[str, tuple[Callable[[], bases.Basis], Any, bool]] = {  # the basis, the parameter, whether weights learn
    "one step": (bases.GCN, theta.Full, False),
    "an order": (bases.GCN, lambda: theta.Separable(2), False),
    "weights that learn": (bases.GCN, theta.Full, True),
    "attention": (lambda: bases.GAT(2), theta.Heads, False),
}


@pytest.mark.parametrize("kind", KNOWN)
def test_new_graphs_of_a_known_form_are_not_bound_as_first_ones(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    basis, parameter, learns = KNOWN[kind]
    conv = BasisConv(P, 4, basis(), parameter(), order="auto" if kind == "attention" else "a_first").double()
    graphs = [(edges(seed), draw(E, seed=seed).abs().requires_grad_(learns)) for seed in range(5)]
    calls = [graph if kind != "attention" else graph[:1] for graph in graphs]
    peer, x = copy.deepcopy(conv), draw(N, P)
    peer.fuse = False
    expected = [peer(x, *call) for call in calls]
    for call in calls[:3]:
        conv(x, *call)
    monkeypatch.setattr(BasisConv, "_bind", None)
    for call, y in zip(calls[3:], expected[3:], strict=True):
        close(conv(x, *call), y)


@pytest.mark.parametrize("alone", [True, False], ids=["one graph", "a batch"])
@pytest.mark.parametrize("kind", ["one step", "an order", "weights that learn"])
def test_eigenvalues_that_are_given_are_read_on_new_graphs(kind: str, alone: bool) -> None:
    _, parameter, learns = KNOWN[kind]
    conv = BasisConv(P, 4, bases.Chebyshev(3), parameter(), order="a_first").double()
    peer, x = copy.deepcopy(conv), draw(N, P)
    peer.fuse = False
    graph = torch.arange(N) // (N // 2 + 1)  # two of them
    for seed in range(5):
        e, value = edges(seed), 1.5 + seed / 4
        e = e if alone else e[:, graph[e[0]] == graph[e[1]]][:, :4]
        given = {"lambda_max": value} if alone else {"lambda_max": torch.tensor([value, 2.0]), "batch": graph}
        weight = draw(e.shape[1], seed=seed).abs().requires_grad_(learns)
        close(conv(x, e, weight, **given), peer(x, e.clone(), weight, **given))


def test_a_wrong_graph_of_a_known_form_is_refused() -> None:
    """Whatever was looked up by form, each graph's own numbers are looked at."""
    conv, x, good = BasisConv(P, Q, bases.Relations(R, "mean")).double(), draw(N, P), edges(0)
    kind = torch.arange(E) % R
    conv(x, good, None, kind)
    for at, wrong in ((0, N), (1, N), (0, -1), (1, -1)):
        bad = good.clone()
        bad[at, 7] = wrong
        with pytest.raises(ValueError, match=r"^edge_index: expected .* indices .*, got -?\d+; "):
            conv(x, bad, None, kind)
    for wrong in (R, -1):
        other = kind.clone()
        other[3] = wrong
        with pytest.raises(ValueError, match=r"^edge_type: expected types from 0 .*, got .*; "):
            conv(x, good.clone(), None, other)
    with pytest.raises(ValueError, match=r"^edge_type: expected one type per edge"):
        conv(x, good.clone(), None, kind[:-1])
    with pytest.raises(ValueError, match=r"^x: expected dtype torch\.float64"):
        conv(x.float(), good.clone(), None, kind)
    close(conv(x, good.clone(), None, kind), by_messages(conv, x, good, kind))


def test_wrong_arguments_of_a_known_form_are_refused() -> None:
    """As they are by a layer that has seen nothing, word by word."""
    conv, x, weight = BasisConv(P, Q, bases.Identity() + bases.Adjacency()).double(), draw(N, P), draw(E).abs()
    for seed in range(2):
        conv(x, edges(seed))
        conv(x, edges(seed), weight)
    beyond, below = edges(5), edges(6)
    beyond[0, 3], below[1, 4] = N, -1
    wrong: list[tuple[Any, ...]] = [
        (x, beyond),
        (x, below),
        (x, beyond, weight),
        (draw(N - 2, P), edges(7)),  # rows of about as many nodes
        (x, edges(7).float()),
        (x, edges(7).view(3, -1)),
        (x, edges(7), weight[:-1]),
        (x, edges(7), weight.float()),
        (x, edges(7), weight.view(1, -1)),
        (x, edges(7), None, torch.arange(E)[:-1]),
        (draw(N, P + 1), edges(7)),
    ]
    for args in wrong:
        with pytest.raises(ValueError, match="expected") as fresh:
            BasisConv(P, Q, bases.Identity() + bases.Adjacency()).double()(*args)
        with pytest.raises(ValueError, match="expected") as known:
            conv(*args)
        assert str(known.value) == str(fresh.value)
        close(conv(x, edges(8), weight), by_weights(conv, x, edges(8), weight))


def by_weights(conv: BasisConv, x: Tensor, edge_index: Tensor, weight: Tensor) -> Tensor:
    """The sum over the edges, as it is written."""
    first, second = conv.weight
    y = x @ first + conv.bias
    return y.index_add(0, edge_index[1], weight.unsqueeze(1) * (x @ second)[edge_index[0]])


def test_a_graph_is_known_again_when_it_is_seen_again() -> None:
    """Of a known form nothing is kept at first sight, and nothing that is kept outlives a change of the graph."""
    basis, x, first, e = bases.Adjacency("mean") + bases.Identity(), draw(N, P), edges(0), edges(1)
    conv = BasisConv(P, Q, basis, order="a_first").double()
    conv(x, first)
    kept = len(conv._programs)
    conv(x, e)
    assert len(conv._programs) == kept
    conv(x, e)
    assert len(conv._programs) == kept + 1
    for sight in range(4):
        e[0, sight] = (e[0, sight] + 1) % N
        for _ in range(sight):
            close(conv(x, e), by_messages(conv, x, e))


@pytest.mark.parametrize("sources", [None, N], ids=["square", "pair"])
def test_edges_alone_are_read_to_the_same_graph(sources: int | None) -> None:
    """By the short way of calls of a known form and by the long one."""
    e, cpu = edges(3), torch.device("cpu")
    short = read_edges(place(e), e, N, N, DOUBLE, cpu, 0, sources, Witness([e]))
    assert short is read_graph(e, size=(N, N), dtype=DOUBLE, device=cpu, target_row=0, sources=sources)
    long = read_graph(e.clone(), size=(N, N), dtype=DOUBLE, device=cpu, target_row=0, sources=sources)
    assert vars(short).keys() == vars(long).keys()
    for name in ("M", "N", "dtype", "target_row", "sources", "grid", "kind", "learns", "weight", "batch"):
        assert getattr(short, name) == getattr(long, name), name
    for name in ("source", "target"):
        assert torch.equal(getattr(short, name), getattr(long, name)), name


class Hidden(bases.Basis):
    """Matrices that have fewer rows than x, for graphs that end in a loop."""

    def __init__(self) -> None:
        super().__init__(1)

    def build(self, graph: Graph) -> bases.BoundBasis:
        M = graph.M - int(graph.source[-1] == graph.target[-1])
        none = torch.zeros(0, dtype=torch.long)
        return explicit(1, M, graph.N, EdgeList(none, none, none, torch.zeros(0, dtype=graph.dtype)))


def test_what_is_bound_to_a_graph_of_a_known_form_fits_x() -> None:
    conv, x = BasisConv(P, Q, Hidden()).double(), draw(N, P)
    for seed in range(3):
        conv(x, torch.cat([edges(seed), torch.tensor([[0], [1]])], 1))
    for _ in range(2):
        with pytest.raises(ValueError, match=f"^basis: expected matrices with the {N} rows of x"):
            conv(x, torch.cat([edges(3), torch.tensor([[1], [1]])], 1))


def test_edges_that_know_their_sizes_are_of_another_form() -> None:
    e, x = torch.randint(4, (2, E)), draw(N, P)
    conv = BasisConv(P, Q, bases.Adjacency("mean"), order="a_first").double()
    conv(x, e)
    known = EdgeIndex(e.clone(), sparse_size=(N, 4))
    close(conv(x, known), by_messages(conv, x, known))
    assert conv(x, known).shape == (4, Q)


@pytest.mark.filterwarnings("ignore")  # torch says of itself that this is deprecated, and what it cannot follow
def test_tracing_of_torchscript_is_refused_as_ever() -> None:
    conv, x, e = BasisConv(P, Q, bases.Adjacency()).double(), draw(N, P), edges(0)
    conv(x, e)
    for traced in (conv, lambda a, b: conv(a, b)):
        with pytest.raises(ValueError, match=r"use torch\.export in place of torch\.jit\.trace"):
            torch.jit.trace(traced, (x, edges(1)), check_trace=False)
    with pytest.raises(ValueError, match=r"use torch\.export in place of torch\.jit\.trace"):
        torch.jit.trace(GridConv(P, Q, bases.Window(None, (3, 3))), torch.randn(1, P, 8, 8), check_trace=False)


def test_options_that_change_between_graphs_of_one_form() -> None:
    conv, x = BasisConv(P, Q, bases.Identity() + bases.Adjacency("rw")).double(), draw(N, P)
    changes: list[Callable[[], object]] = [
        lambda: setattr(conv, "order", "theta_first"),
        lambda: setattr(conv, "order", "phi"),
        lambda: setattr(conv, "flow", "target_to_source"),
        lambda: setattr(conv, "basis", bases.Adjacency("mean") + bases.Identity()),
        lambda: setattr(conv, "theta", theta.Separable(1).build(2, P, Q).double()),
        lambda: setattr(conv, "cached", True),
        lambda: conv.float(),
        lambda: setattr(conv, "order", "auto"),
        lambda: setattr(conv, "fuse", False),
    ]
    for seed, change in enumerate(changes):
        conv(x, edges(seed))
        change()
        x = x.to(conv.bias.dtype)
        torch.testing.assert_close(conv(x, edges(seed + 50)), by_messages(conv, x, edges(seed + 50)))


def test_plans_are_looked_up_by_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for graphs of about one size; anew where something is different that a plan reads."""
    conv, n = BasisConv(P, Q, bases.Adjacency("sym", True)).double(), 200  # so many that no operator is built
    chosen = []
    choose = BasisConv._choose
    monkeypatch.setattr(BasisConv, "_choose", lambda self, *a: chosen.append(1) or choose(self, *a))
    calls = draw(n, P), draw(n, P).requires_grad_(), draw(3 * n, P), draw(2, n, P)
    for i, x in enumerate(calls, start=1):
        for seed in range(4):
            conv(x, edges(seed, n, 800 + seed))
        assert len(chosen) == i
    conv.order = "theta_first"
    conv(x, edges(6, n))
    assert len(chosen) == i + 1


def test_an_order_that_a_graph_may_lack_is_planned_for_each() -> None:
    """Compaction and operators follow from what a graph is like: their plans are not taken over."""
    conv, x = BasisConv(P, Q, bases.Relations(R), order="compacted").double(), draw(N, P)
    kind, ones = torch.arange(E) % R, torch.ones(E, dtype=torch.float64)  # edges with weights are not listed
    for seed in range(3):
        close(conv(x, edges(seed), ones, kind), by_messages(conv, x, edges(seed), kind))
    assert not conv._programs.forms


def test_plans_are_few() -> None:
    conv = BasisConv(P, Q, bases.Adjacency())
    for n in range(4, 90):
        conv(torch.randn(n, P), edges(n, n))
    assert len(conv._programs.forms) <= 32
    assert not copy.deepcopy(conv)._programs.forms


@pytest.mark.parametrize("wrong", [3, -1])
def test_scipy_writes_nowhere_else(wrong: int) -> None:
    source, target = np.array([0, 1, 2], np.int32), np.array([0, wrong, 1], np.int32)
    with pytest.raises(ValueError, match=r"^index: expected integers from 0 to 2"):
        lists.compressed([List(0, source, target, None)], 1, (3, 3), "target", torch.float32)


@pytest.mark.parametrize("kind", ["root", "chebyshev sym", "relations mean True True"])
def test_without_the_loops_of_scipy(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scipy that keeps them elsewhere: all is bound by public means."""
    basis, e = LISTED[kind](), edges(0)
    listed = basis.bind(e, edge_type=types(basis), size=N, dtype=DOUBLE).to_dense()
    monkeypatch.setattr(lists, "coo_tocsr", None)
    bound = basis.bind(e.clone(), edge_type=types(basis), size=N, dtype=DOUBLE)
    assert not isinstance(bound.typed, ListedEdges)
    close(bound.to_dense(), listed)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("size", [None, N, (N, None)], ids=str)
def test_indices_are_narrow_where_nodes_are_few(dtype: torch.dtype, size: Any) -> None:
    graph = read_graph(edges(0).to(dtype), size=size)
    assert {graph.source.dtype, graph.target.dtype} == {torch.int32}


def test_half_precision_is_bound_by_torch() -> None:
    bound = bases.Adjacency("mean").bind(edges(0), size=N, dtype=torch.bfloat16)
    assert not isinstance(bound, ListedEdges)
    assert bound.expand_rows(torch.ones(N, 2, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_a_witness_sees_other_memory_and_another_shape() -> None:
    t = edges(0)
    witness = Witness([t])
    assert witness.agrees([t])
    assert not witness.compares
    assert not witness.agrees([t.clone()])
    assert not witness.agrees([t[:, :7]])
    t += 1
    assert not witness.agrees([t])


@pytest.mark.parametrize("self_loops", [0, 0.0, 1, True, 2.5])
@pytest.mark.parametrize("existing", ["replace", "keep", "add"])
@pytest.mark.parametrize("norm", [None, "sym", "mean"])
def test_loops_are_the_same_beside_weights_of_one(norm: Any, existing: Any, self_loops: float) -> None:
    basis = bases.Adjacency(norm, self_loops, existing)
    e = torch.tensor([[0, 0, 1, 2, 2], [0, 1, 1, 0, 2]])
    bare, weighted = (basis.bind(e, w, size=4, dtype=DOUBLE).to_dense() for w in (None, torch.ones(5, dtype=DOUBLE)))
    close(bare, weighted)
