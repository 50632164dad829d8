"""`torch_sparse.SparseTensor` wherever PyG takes one: into every kind of layer, and out of those that return one."""

import importlib.metadata
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
import torch_geometric.transforms as T
from torch import Tensor
from torch.testing import assert_close
from torch_geometric.data import Data
from torch_geometric.nn.models import GAT, GCN, GraphSAGE

from pyg_basisconv import BasisConv, bases, convert
from pyg_basisconv.mechanisms import MLP, Dot
from pyg_basisconv.theta import LowRank
from pyg_basisconv.verify import Case, N, P, Q, drawn, features, forget, graph, made
from pyg_basisconv.verify.recipes import called, more_inputs, takes
from tests.convert.conversion import ATTENDING as HEADED, LINEAR as SUMS, agree, over
from tests.convert.test_graphs import simple_graph

torch_sparse = pytest.importorskip("torch_sparse")
SparseTensor = torch_sparse.SparseTensor
Edges = tuple[Tensor, Tensor]


def adj(edge_index: Tensor, value: Tensor | None = None, size: tuple[int, int] = (N, N)) -> Any:
    source, target = edge_index
    return SparseTensor(row=target, col=source, value=value, sparse_sizes=size[::-1])


def test_what_is_here_is_the_extra() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    for wanted in project["optional-dependencies"]["sparse"]:
        name, least = wanted.split(">=")
        found = importlib.metadata.version(name)
        assert [int(part) for part in found.split(".")] >= [int(part) for part in least.split(".")]


# --- in, to a layer of ours ---

ATTENDING = {
    "additive": lambda: BasisConv(P, Q, bases.Attention(2, Dot(3), bases.Adjacency(self_loops=True)), LowRank(2)),
    "edges": lambda: BasisConv(P, Q, bases.Attention(2, MLP(4, edge_dim=3), bases.Adjacency()), LowRank(2)),
}
KINDS: dict[str, Callable[[], BasisConv]] = {
    "adjacency": lambda: BasisConv(P, Q, bases.Adjacency()),
    "GCN": lambda: BasisConv(P, Q, bases.Adjacency("sym", True)),
    "mean": lambda: BasisConv(P, Q, bases.Adjacency("mean")),
    "polynomial": lambda: BasisConv(P, Q, bases.Chebyshev(3)),
    "powers": lambda: BasisConv(P, Q, bases.Powers(3, bases.Adjacency("rw", True))),
    "diffusion": lambda: BasisConv(P, Q, bases.Diffusion(2)),
    "several": lambda: BasisConv(P, Q, bases.Identity() + bases.Adjacency("mean") @ bases.Adjacency()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_weights(kind: str) -> None:
    conv, (edge_index, weight) = KINDS[kind]().double(), simple_graph()
    x = features(N, P)

    def all_of(given: Callable[[Tensor], tuple[Any, ...]]) -> list[Tensor]:
        leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
        y = conv(leaves[0], *given(leaves[1]))
        return [y, *torch.autograd.grad(y.square().sum(), [*leaves, *conv.parameters()])]

    assert_close(all_of(lambda w: (adj(edge_index, w),)), all_of(lambda w: (edge_index, w)))
    assert_close(conv(x, adj(edge_index)), conv(x, edge_index))
    assert_close(conv(x, conv.basis.bind(adj(edge_index, weight))), conv(x, edge_index, weight))


@pytest.mark.parametrize("kind", ATTENDING)
def test_attention(kind: str) -> None:
    conv, (edge_index, _), x = ATTENDING[kind]().double(), simple_graph(), features(N, P)
    given = {"edge_attr": features(edge_index.shape[1], 3)} if kind == "edges" else {}
    expected = conv(x, edge_index, **given)
    assert_close(conv(x, adj(edge_index), **given), expected)


@pytest.mark.parametrize(
    "basis",
    [bases.Relations(3, norm="mean"), bases.Walks(["0.1", "^2.(0|1)"], 3)],
    ids=lambda basis: type(basis).__name__,
)
def test_types_go_beside(basis: bases.Basis) -> None:
    """Integers among the values may be types or weights: neither is guessed."""
    (edge_index, _), x = simple_graph(), features(N, P)
    kind = torch.randint(0, 3, edge_index.shape[1:])
    conv = BasisConv(P, Q, basis).double()
    held = adj(edge_index, kind)
    types = held.storage.value()
    assert_close(conv(x, held.set_value(None), edge_type=types), conv(x, edge_index, edge_type=kind))
    for given in ({}, {"edge_type": types}):
        with pytest.raises(ValueError, match="floating point"):
            conv(x, held, **given)


def two_sides() -> Edges:
    """From seven sources to four targets."""
    edge_index = torch.stack([torch.randint(0, 7, (24,)), torch.randint(0, 4, (24,))])
    edge_index = torch.unique(edge_index.flip(0), dim=1).flip(0)
    return edge_index, torch.rand(edge_index.shape[1], dtype=torch.float64)


def test_two_sides() -> None:
    edge_index, weight = two_sides()
    conv = BasisConv(P, Q, bases.Adjacency("mean")).double()
    x, held = features(7, P), adj(edge_index, weight, (7, 4))
    expected = conv((x, None), edge_index, weight, size=(7, 4))
    assert_close(conv((x, None), held), expected)
    assert_close(conv((x, features(4, P)), held), expected)
    for wrong in ((features(6, P), None), (x, features(5, P))):
        with pytest.raises(ValueError, match="expected"):
            conv(wrong, held)


def test_by_pointers_alone() -> None:
    """What a loader yields: no rows, until they are asked for."""
    edge_index, weight = simple_graph()
    made = adj(edge_index, weight)
    rowptr, col, value = made.csr()
    bare = SparseTensor(rowptr=rowptr, col=col, value=value, sparse_sizes=(N, N))
    conv, x = KINDS["GCN"]().double(), features(N, P)
    assert_close(conv(x, bare), conv(x, made))


def test_the_same_graph_is_bound_once_and_a_changed_one_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    build = bases.Adjacency.build
    monkeypatch.setattr(bases.Adjacency, "build", lambda self, g: built.append(self) or build(self, g))
    edge_index, weight = simple_graph()
    conv, x, a = KINDS["mean"]().double(), features(N, P), adj(edge_index, weight)
    first = conv(x, a)
    assert_close(conv(x, a), first)
    assert len(built) == 1
    a.storage.value().mul_(torch.linspace(1, 2, weight.numel(), dtype=torch.float64))
    assert_close(conv(x, a), conv(x, edge_index, a.storage.value().clone()))
    other = a.set_value(torch.ones_like(weight), layout="coo")
    assert_close(conv(x, other), conv(x, edge_index))
    with pytest.raises(AssertionError):
        assert_close(conv(x, a), first)


def test_against_the_flow_is_rejected() -> None:
    edge_index, _ = simple_graph()
    conv = BasisConv(P, Q, bases.Adjacency(), flow="target_to_source").double()
    with pytest.raises(ValueError, match="target_to_source"):
        conv(features(N, P), adj(edge_index))


def test_weights_inside_and_beside_are_rejected() -> None:
    edge_index, weight = simple_graph()
    with pytest.raises(ValueError, match="both"):
        KINDS["mean"]().double()(features(N, P), adj(edge_index, weight), weight)


# --- in and out, of what PyG's layers are made into ---

LINEAR = [  # but for what PyG takes no SparseTensor in
    p
    for p in over(lambda kind, sweep: sweep if kind in SUMS else [])
    if p.values[0] != "ChebConv" and "flow" not in p.values[1]
]


@pytest.mark.parametrize(("kind", "options"), LINEAR)
def test_converted_layers(kind: str, options: dict[str, Any]) -> None:
    edge_index, weight = simple_graph()
    reference = made(kind, options)
    ours = convert(reference)

    def plain(f: Any, x: Tensor) -> Tensor:
        forget(f)
        return f(x, adj(edge_index))

    def weighed(f: Any, x: Tensor, w: Tensor) -> Tensor:
        forget(f)
        return f(x, adj(edge_index, w))

    if not (kind == "ClusterGCNConv" and not options.get("add_self_loops", True)):  # PyG's cannot then
        agree(Case(ours, reference, [features(N, P)], plain))
    if kind != "ClusterGCNConv":  # which reads the values in one place and not in the other
        agree(Case(ours, reference, [features(N, P), weight], weighed))


def test_values_that_pyg_reads_by_halves_are_rejected() -> None:
    edge_index, weight = simple_graph()
    with pytest.raises(ValueError, match="without values"):
        convert(made("ClusterGCNConv"))(features(N, P), adj(edge_index, weight))


def test_chebyshev_takes_what_pyg_does_not() -> None:
    ours, (edge_index, weight), x = convert(made("ChebConv")), simple_graph(), features(N, P)
    assert_close(ours(x, adj(edge_index, weight)), ours(x, edge_index, weight))


def flat(out: Any) -> Tensor:
    """A result and its weights, with the places where they stand, as one tensor."""
    y, held = out
    assert isinstance(held, SparseTensor)
    row, col, alpha = held.coo()
    return torch.cat([y.flatten(), alpha.flatten(), *(t.to(y.dtype) for t in (row, col, torch.tensor(held.sizes())))])


def featured_loops(kind: str, options: dict[str, Any]) -> bool:
    """Whether there are to be features of loops that are added to a SparseTensor, for which PyG has none."""
    return kind in ("GATConv", "GATv2Conv") and "edge_dim" in options and options.get("add_self_loops", True)


HEADS = [
    p
    for p in over(lambda kind, sweep: sweep if kind in HEADED else [])
    if "flow" not in p.values[1] and not featured_loops(*p.values)
]


@pytest.mark.parametrize(("kind", "options"), HEADS)
def test_converted_attention(kind: str, options: dict[str, Any]) -> None:
    reference, (edge_index, weight) = made(kind, options), simple_graph()
    ours, E = convert(reference), edge_index.shape[1]
    given, more = more_inputs(reference, E)
    by_value = given.pop("edge_weight", None)
    held = adj(edge_index, None if by_value is None else weight)
    x = features(N, P)
    agree(Case(ours, reference, [x, *given.values()], called(held, tuple(given), **more)))
    if takes(reference, "return_attention_weights"):
        call = called(held, tuple(given), return_attention_weights=True, **more)
        agree(Case(ours, reference, [x, *given.values()], lambda f, *leaves: flat(call(f, *leaves))))
    if kind != "FAConv":  # which reads them as weights
        agree(Case(ours, reference, [x, *given.values()], called(adj(edge_index, weight), tuple(given), **more)))


FEATURED = [p for p in HEADS if p.values[1].get("edge_dim")]


@pytest.mark.parametrize(("kind", "options"), FEATURED)
def test_features_of_edges_as_values(kind: str, options: dict[str, Any]) -> None:
    reference, (edge_index, _) = made(kind, options), simple_graph()
    _, more = more_inputs(reference, edge_index.shape[1])
    leaves = [features(N, P), features(edge_index.shape[1], options["edge_dim"])]
    agree(Case(convert(reference), reference, leaves, lambda f, x, z: f(x, adj(edge_index, z), **more)))


def test_features_as_values_where_loops_are_added_are_rejected() -> None:
    edge_index, _ = simple_graph()
    for kind in ("GATConv", "GATv2Conv"):
        ours = convert(made(kind, {"edge_dim": 3}))
        for held in (adj(edge_index), adj(edge_index, features(edge_index.shape[1], 3))):
            with pytest.raises(ValueError, match="loops"):
                ours(features(N, P), held)


@pytest.mark.parametrize("kind", ["GraphConv", "SAGEConv", "LEConv", "GATConv", "GATv2Conv", "TransformerConv"])
def test_converted_layers_of_two_sides(kind: str) -> None:
    options = {"add_self_loops": False} if kind == "GATConv" else {}
    reference = drawn(getattr(pyg, kind)((5, 3), Q, **options))
    leaves = [features(7, 5), features(4, 3)]
    held = adj(two_sides()[0], None, (7, 4))
    agree(Case(convert(reference), reference, leaves, lambda f, x, y: f((x, y), held)))


# --- pipelines ---


@pytest.mark.parametrize("model", [GCN, GraphSAGE, GAT])
@pytest.mark.parametrize("attribute", [None, "edge_weight"])
def test_transform_to_sparse_tensor(model: type, attribute: str | None) -> None:
    edge_index, weight = simple_graph()
    apart = (
        edge_index[0] != edge_index[1]
    )  # PyG keeps the weights of loops in one layout, and replaces them in the other
    edge_index, weight = edge_index[:, apart], weight[apart]
    data = Data(features(N, P), edge_index, edge_weight=weight if attribute else None)
    held = T.ToSparseTensor(attr=attribute)(data.clone())
    reference = drawn(model(P, 8, 2, Q))
    ours = convert(reference).eval()
    y = ours(held.x, held.adj_t)
    assert_close(y, reference.eval()(held.x, held.adj_t))
    weights = {"edge_weight": weight} if attribute and model is GCN else {}
    if model is not GraphSAGE or attribute is None:
        assert_close(y, ours(data.x, data.edge_index, **weights))


def test_transform_of_a_normalised_graph() -> None:
    data = Data(features(N, P), graph((2, 5))[0], num_nodes=N)
    held = T.Compose([T.GCNNorm(), T.ToSparseTensor(attr="edge_weight")])(data.clone())
    conv = BasisConv(P, Q, bases.Adjacency()).double()
    whole = BasisConv(P, Q, bases.Adjacency("sym", True)).double()
    whole.load_state_dict(conv.state_dict())
    held.adj_t = held.adj_t.set_value(held.adj_t.storage.value().double(), layout="coo")
    assert_close(conv(held.x, held.adj_t), whole(data.x, data.edge_index), rtol=1e-5, atol=1e-6)
