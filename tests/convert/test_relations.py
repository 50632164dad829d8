"""Conversion of layers for knowledge graphs: relations, hyperedges, signs, directions, many types of nodes."""

from collections.abc import Iterator

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor
from torch_geometric import seed_everything
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import to_torch_csr_tensor

from pyg_basisconv import convert
from pyg_basisconv.verify import Case, N, P, Q, cases, features, graph, made
from pyg_basisconv.verify.recipes import (
    COUNTS,
    KINDS,
    WIDTHS,
    R,
    flat,
    incidence,
    loop_path,
    typed_edges,
    typed_graph,
)
from tests.convert.conversion import OPTIONS, agree, example, runner

RELATIONAL = ["RGCNConv", "FastRGCNConv"]
TYPED = ["HANConv", "HGTConv"]
METADATA = (list(WIDTHS), KINDS)


@pytest.fixture(autouse=True)
def _by_loop() -> Iterator[None]:
    with loop_path():
        yield


@pytest.mark.parametrize("options", OPTIONS["RGCNConv"], ids=str)
def test_both_layers_of_relations_become_one(options: dict) -> None:
    loop, fast = (made(kind, options) for kind in RELATIONAL)
    fast.load_state_dict(loop.state_dict())
    one, other = convert(loop), convert(fast)
    assert repr(one) == repr(other)
    assert one.state_dict().keys() == other.state_dict().keys()
    x, edges = features(N, P), typed_graph()
    assert torch.equal(one(x, *edges), other(x, *edges))


def test_what_relations_become() -> None:
    shown = "BasisConv(6, 4, Relations(5, norm='mean', self_loop=True), Full())"
    assert repr(convert(pyg.RGCNConv(P, Q, R))) == shown
    assert (
        repr(convert(pyg.RGCNConv(P, Q, R, aggr="add", root_weight=False))) == "BasisConv(6, 4, Relations(5), Full())"
    )
    based, blocks = (convert(pyg.RGCNConv(P, Q, R, **{name: 2})) for name in ("num_bases", "num_blocks"))
    assert repr(based) == "BasisConv(6, 4, Relations(5, norm='mean'), Separable(H=2))"
    assert repr(blocks) == "BasisConv(6, 4, Relations(5, norm='mean'), Grouped(groups=2))"
    assert based.root.weight.shape == blocks.root.weight.shape == (1, P, Q)
    pair = convert(pyg.RGCNConv((P, 3), Q, R))
    assert pair.root.weight.shape == (1, 3, Q)
    assert pair.in_channels == (P, 3)


def test_unsorted_types_and_narrow_integers() -> None:
    reference, (edge_index, kind) = made("RGCNConv"), typed_graph()
    order = torch.randperm(kind.numel())
    edge_index, kind = edge_index[:, order], kind[order]
    ours, x = convert(reference), features(N, P)
    agree(Case(ours, reference, [x], lambda f, x: f(x, edge_index, kind)))
    torch.testing.assert_close(ours(x, edge_index, kind.int()), reference(x, edge_index, kind))


# --- nodes without features ---


@pytest.mark.parametrize("options", [{}, {"num_bases": 2}, {"aggr": "add"}, {"root_weight": False}], ids=str)
def test_numbers_that_repeat(options: dict) -> None:
    reference, edges = made("RGCNConv", options, in_channels=N), typed_graph(9, 9)
    ours, numbers = convert(reference), torch.tensor([3, 3, 0, 11, 5, 3, 7, 0, 1])
    agree(Case(ours, reference, [], lambda f: f(numbers, *edges)))
    torch.testing.assert_close(ours(numbers.int(), *edges), reference(numbers, *edges))


def test_numbers_are_features_with_a_one_each() -> None:
    ours, edges = convert(made("RGCNConv", in_channels=N)), typed_graph()
    numbers = torch.randperm(N)
    torch.testing.assert_close(ours(numbers, *edges), ours(torch.eye(N).double()[numbers], *edges))
    plan = ours.plan(None, *edges)
    assert (plan.problem.P, plan.problem.nnz, plan.order) == (N, N, "theta_first")
    assert ours.plan((numbers[:7], numbers[7:11]), *typed_graph(7, 4)).problem.N == 4
    based = convert(made("RGCNConv", {"num_bases": 2}, in_channels=N))
    assert based.plan(None, *edges).order == "theta_first"
    assert based.order == "auto"


@pytest.mark.parametrize("options", [{}, {"num_bases": 2}], ids=str)
def test_message_passing_of_numbers(options: dict) -> None:
    ours, edges = (
        convert(made("RGCNConv", {"root_weight": False, "bias": False, **options}, in_channels=N)),
        typed_graph(),
    )
    fused = ours(None, *edges)
    ours.fuse = False
    torch.testing.assert_close(ours(None, *edges), fused)
    ours.register_message_forward_hook(lambda module, inputs, messages: 2 * messages)
    torch.testing.assert_close(ours(None, *edges), 2 * fused)


def test_bad_numbers() -> None:
    edges, x = typed_graph(), features(N, N)
    ours, numbers = convert(made("RGCNConv", in_channels=N)), torch.arange(N)
    with pytest.raises(ValueError, match="numbers of both"):
        ours((x, numbers), *edges)
    with pytest.raises(ValueError, match="numbers of both"):
        ours((numbers, x), *edges)
    with pytest.raises(ValueError, match=r"x\[1\]"):
        ours((x, None), *edges)
    with pytest.raises(ValueError, match="num_blocks"):
        convert(made("RGCNConv", {"num_blocks": 2}, in_channels=N))(numbers, *edges)
    with pytest.raises(ValueError, match=r"x: expected numbers of nodes, torch.int64, got torch.int16; convert"):
        ours(numbers.short(), *edges)
    fast = convert(made("FastRGCNConv", in_channels=N))
    with pytest.raises(ValueError, match="FastRGCNConv"):
        fast(numbers.flip(0), *edges)
    assert torch.equal(fast(numbers, *edges), fast(None, *edges))


def test_the_layer_that_is_refused_reads_other_numbers() -> None:
    """PyG's two layers differ there, so that no conversion can be the same as both."""
    loop, fast = (made(kind, in_channels=N) for kind in RELATIONAL)
    fast.load_state_dict(loop.state_dict())
    numbers, edges = torch.arange(N).flip(0), typed_graph()
    assert not torch.allclose(loop(numbers, *edges), fast(numbers, *edges))


# --- the graph ---


def by_target(edge_index: Tensor) -> Tensor:
    """The places of the edges in a transposed adjacency matrix, in order, without repetition."""
    return torch.unique(edge_index.flip(0), dim=1).contiguous()


def test_types_in_the_values_of_a_sparse_matrix() -> None:
    edge_index, kind = typed_graph()
    _, place = torch.unique(edge_index.flip(0), dim=1, return_inverse=True)
    edge_index = by_target(edge_index)
    kind = torch.zeros(edge_index.shape[1], dtype=torch.long).index_put((place,), kind)
    adj_t = to_torch_csr_tensor(edge_index, kind, size=(N, N), is_coalesced=True)
    reference = made("FastRGCNConv")
    ours = convert(reference)
    agree(Case(ours, reference, [features(N, P)], lambda f, x: f(x, adj_t)))
    loop = convert(made("RGCNConv"))
    loop.load_state_dict(ours.state_dict())
    x = features(N, P)
    torch.testing.assert_close(loop(x, adj_t), ours(x, edge_index.flip(0), kind))
    if SparseTensor.__module__.startswith("torch_sparse"):
        adj_t = SparseTensor(row=edge_index[0], col=edge_index[1], value=kind, sparse_sizes=(N, N))
        for layer in RELATIONAL:
            reference = made(layer)
            agree(Case(convert(reference), reference, [x], lambda f, x: f(x, adj_t)))


@pytest.mark.parametrize("kind", TYPED)
def test_lazy_layers_stay_lazy(kind: str) -> None:
    x, edges = {k: torch.randn(COUNTS[k], WIDTHS[k]) for k in COUNTS}, typed_edges()
    lazy = getattr(pyg, kind)(-1, 8, METADATA, heads=2)
    assert flat(convert(lazy)(x, edges)).shape == flat(lazy(x, edges)).shape
    torch.testing.assert_close(convert(lazy)(x, edges), lazy(x, edges))  # now it is not


@pytest.mark.parametrize(("kind", "options"), [("HANConv", {}), ("HypergraphConv", {"use_attention": True})], ids=str)
def test_dropout_is_for_training(kind: str, options: dict) -> None:
    case = example(kind, {"heads": 2, "dropout": 0.6} | options)
    ours, run = case.ours, runner(case)
    assert not torch.equal(run(ours), run(ours))
    torch.testing.assert_close(run(ours.eval()), run(case.reference.eval()))


def transposed(edge_index: Tensor, size: tuple[int, int]) -> Tensor:
    edges = by_target(edge_index)
    return to_torch_csr_tensor(edges, torch.ones(edges.shape[1]).double(), size=size[::-1], is_coalesced=True)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *(("SignedConv", {"first_aggr": first, "aggr": aggr}) for first in (True, False) for aggr in ("mean", "add")),
        *((kind, {"heads": 2}) for kind in TYPED),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_edges_in_a_sparse_layout(kind: str, options: dict) -> None:
    agree(next(cases(kind, options, transposed)))


def test_hyperedges_without_nodes() -> None:
    reference = made("HypergraphConv")
    ours, index = convert(reference), incidence()
    for count in (6, 7, 20):
        agree(Case(ours, reference, [features(N, P)], lambda f, x, m=count: f(x, index, num_edges=m)))
    agree(Case(ours, reference, [features(N, P)], lambda f, x: f(x, index[:, :0])))
    weight = torch.tensor([1.0, 0.0, 2.0, 0.0, 1.0, 3.0], dtype=torch.float64)  # some nodes have no weight at all
    agree(Case(ours, reference, [features(N, P)], lambda f, x: f(x, index, weight)))
    x = features(N, P)
    torch.testing.assert_close(ours(x, index, weight.float()), reference(x, index, weight))


def test_hyperedges_that_need_features() -> None:
    ours = convert(made("HypergraphConv", {"use_attention": True}))
    with pytest.raises(ValueError, match="hyperedge_attr"):
        ours(features(N, P), incidence())


def test_one_weight_there_and_back() -> None:
    """Each node alone in a hyperedge: what dropout keeps on the way there, it keeps on the way back."""
    seed_everything(0)
    reference = pyg.HypergraphConv(1, 1, use_attention=True, dropout=0.5)
    count = 4000
    index, x = torch.arange(count).repeat(2, 1), torch.ones(count, 1)
    values = []
    for f in (convert(reference), reference):
        y = f(x, index, None, x) / reference.lin.weight
        values.append(y.flatten().round(decimals=4))
    for y in values:
        assert set(y.tolist()) == {0.0, 4.0}
        assert abs(float((y > 0).float().mean()) - 0.5) < 0.05


# --- the call ---


def test_calls_by_name_and_in_order() -> None:
    x, (edge_index, kind) = features(N, P), typed_graph()
    ours = convert(made("RGCNConv"))
    torch.testing.assert_close(ours(x=x, edge_index=edge_index, edge_type=kind), ours(x, edge_index, kind))
    with pytest.raises(TypeError, match="has no argument 'edge_weight'"):
        ours(x, edge_index, edge_weight=None)
    with pytest.raises(ValueError, match="edge_type"):
        ours(x, edge_index)
    with pytest.raises(ValueError, match="edge_type"):
        ours(x, edge_index, kind + 2)
    with pytest.raises(ValueError, match="edge_type"):
        ours(x, edge_index, kind[1:])


def test_types_of_edges_in_another_order() -> None:
    """PyG's HGT takes the matrices of other relations then; HAN does not mind."""
    x, edges = {k: features(COUNTS[k], WIDTHS[k]) for k in COUNTS}, typed_edges()
    turned = dict(reversed(edges.items()))
    for kind in TYPED:
        reference = made(kind, {"heads": 2})
        ours = convert(reference)
        same = torch.allclose(flat(reference(x, turned)), flat(reference(x, edges)))
        assert same == (kind == "HANConv")
        if same:
            torch.testing.assert_close(ours(x, turned), reference(x, turned))
        else:
            with pytest.raises(ValueError, match="order of the metadata"):
                ours(x, turned)
        others = {k: x[k] for k in reversed(x)}
        torch.testing.assert_close(flat(ours(others, edges)), flat(reference(others, edges)))


@pytest.mark.parametrize("kind", TYPED)
def test_the_same_types_come_out(kind: str) -> None:
    x, edges = {k: features(COUNTS[k], WIDTHS[k]) for k in COUNTS}, typed_edges()
    reference = made(kind)
    for some in (edges, {KINDS[0]: edges[KINDS[0]]}):
        ours, theirs = (f(x, some) for f in (convert(reference), reference))
        assert {k: y is None for k, y in ours.items()} == {k: y is None for k, y in theirs.items()}


# --- what carries over ---


@pytest.mark.parametrize("first", [True, False])
def test_a_signed_pair_with_frozen_matrices(first: bool) -> None:
    reference = made("SignedConv", {"first_aggr": first})
    for linear in (reference.lin_pos_l, reference.lin_neg_l):
        linear.requires_grad_(False)
    width, edges = P if first else 2 * P, (graph()[0], graph()[0])
    pair = features(N, width), features(N + 1, width)
    torch.testing.assert_close(convert(reference)(pair, *edges), reference(pair, *edges))


@pytest.mark.parametrize("numbers", [[0, 99], [-1, 0]], ids=["beyond", "negative"])
def test_numbers_of_no_node_are_refused(numbers: list[int]) -> None:
    conv = convert(pyg.RGCNConv(5, 3, 2))
    with pytest.raises(ValueError, match=r"^x: expected numbers of nodes from 0 to 4"):
        conv(torch.tensor(numbers), torch.tensor([[0], [1]]), torch.tensor([0]))


def test_a_compiled_hypergraph_has_the_shape_of_its_nodes() -> None:
    reference = made("HypergraphConv")
    ours = convert(reference)

    def step(x: Tensor, incidence: Tensor, more: Tensor) -> Tensor:
        return ours(x, incidence) + more

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="eager")
    for nodes, edges in ((7, 3), (4, 9)):
        incidence = torch.stack([torch.randint(0, nodes, (20,)), torch.randint(0, edges, (20,))])
        x, more = features(nodes, P), features(nodes, Q)
        torch.testing.assert_close(compiled(x, incidence, more), reference(x, incidence) + more)


def test_types_of_attention_are_integers() -> None:
    ours, (edge_index, weight) = convert(made("RGATConv")), graph()
    with pytest.raises(ValueError, match=r"edge_type: expected integers, for RGATConv, got torch\.float64"):
        ours(features(N, P), edge_index, weight)
