"""What converted layers on graphs read: every layout, two sides, the call of the original, changing graphs."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric import EdgeIndex, seed_everything
from torch_geometric.utils import to_torch_coo_tensor, to_torch_csc_tensor, to_torch_csr_tensor

from pyg_basisconv import BasisConv, convert, nn as own
from pyg_basisconv.verify import Case, N, P, Q, cases, drawn, features, forget, graph, made
from pyg_basisconv.verify.recipes import attends, called, constructed, loop_path, more_inputs, takes
from tests.convert.conversion import ATTENDING, GRAPHS, LINEAR, agree, over

# CSC is refused by PyG's own normalisation; COO it converts, with a warning.
pytestmark = pytest.mark.filterwarnings("ignore:Converting sparse tensor to CSR", "ignore:Sparse invariant checks")
DROPPING = ("GATConv", "GATv2Conv", "TransformerConv", "FAConv", "SuperGATConv", "RGATConv")
READING = (*LINEAR, *ATTENDING)


def simple_graph() -> tuple[Tensor, Tensor]:
    """Without parallel edges, by target: what all layouts can say; with two loops."""
    edge_index, weight = graph((2, 5))
    W = torch.zeros(N, N, dtype=torch.float64).index_put(tuple(edge_index), weight)
    target, source = W.t().nonzero().t()
    return torch.stack([source, target]), W[source, target]


def in_layout(name: str, edge_index: Tensor, weight: Tensor) -> Tensor:
    if name == "coo":
        return torch.sparse_coo_tensor(edge_index.flip(0), weight, (N, N), is_coalesced=True)
    if name == "EdgeIndex":
        return EdgeIndex(edge_index.contiguous(), sparse_size=(N, N), sort_order="col")
    to = {"csr": to_torch_csr_tensor, "csc": to_torch_csc_tensor}[name]
    return to(edge_index.flip(0), weight, size=(N, N), is_coalesced=name == "csr")


def takes_sparse(kind: str, options: dict) -> bool:
    """Whether PyG's layer takes a sparse layout; its ClusterGCNConv is defined for one loop per node only."""
    looped = kind != "ClusterGCNConv" or options.get("add_self_loops", True)
    featured = "edge_dim" in options and options.get("add_self_loops", kind.startswith("GAT"))
    return kind in READING and kind != "ChebConv" and options.get("flow") is None and looped and not featured


@pytest.mark.parametrize("layout", ["csr", "coo"])
@pytest.mark.parametrize(("kind", "options"), over(lambda kind, sweep: [o for o in sweep if takes_sparse(kind, o)]))
@pytest.mark.sweep(40, "MixHopConv-powers=[1, 1]-bias=False-coo")
def test_sparse_layouts(kind: str, options: dict, layout: str) -> None:
    reference = made(kind, options)
    ours, (edge_index, weight) = convert(reference), simple_graph()
    if attends(ours):
        weight = torch.ones_like(weight)
    mean = options.get("aggr") == "mean" or kind == "SAGEConv"
    adj_t = in_layout(layout, edge_index, weight)
    if kind == "ClusterGCNConv":  # whose reference counts in the default dtype, and multiplies no other
        ours = convert(reference.float())
        return agree(Case(ours, reference, [features(N, P).float()], lambda f, x: f(x, adj_t.float())), 1e-5)
    if layout == "csr" and not mean and not attends(ours):  # torch has no gradient of a sparse mean
        leaves = [features(N, P), weight]
        return agree(Case(ours, reference, leaves, lambda f, x, w: f(x, in_layout(layout, edge_index, w))))
    given, types = more_inputs(reference, edge_index.shape[1])
    agree(Case(ours, reference, [features(N, P), *given.values()], called(adj_t, given, **types)))


CHANGES: dict[str, Callable[..., Tensor]] = {
    "EdgeIndex": lambda edge_index, size: EdgeIndex(edge_index, sparse_size=size),
    "no edges": lambda edge_index, size: edge_index[:, :0],
    "one edge": lambda edge_index, size: edge_index[:, :1],
}


@pytest.mark.parametrize(
    ("kind", "options", "change"),
    [
        (*p.values, change)
        for p in GRAPHS
        for change in CHANGES
        if change != "EdgeIndex"
        or p.values[0] not in ("HGTConv", "HypergraphConv", "PANConv", "SignedConv")  # PyG's refuse it themselves
        if change != "one edge" or p.values[0] != "WLConvContinuous"  # whose result does not depend on one weight
    ],
    ids=str,
)
@pytest.mark.sweep(20)
def test_other_edges(kind: str, options: dict, change: str) -> None:
    with loop_path():
        for case in cases(kind, options, CHANGES[change]):
            agree(case)


@pytest.mark.parametrize(("kind", "options"), GRAPHS)
@pytest.mark.sweep(14)
def test_a_graph_that_changes_in_place(kind: str, options: dict) -> None:
    edges: list[Tensor] = []
    case = next(cases(kind, options, lambda edge_index, size: edges.append(edge_index) or edge_index))
    for _ in range(3):
        agree(case)
        for edge_index in edges:
            edge_index[:, 0] = torch.randint(3, (2,))


@pytest.mark.parametrize("kind", ["GraphConv", "SAGEConv", "SimpleConv"])
@pytest.mark.parametrize("aggr", ["sum", "mean"])
def test_csc_and_parallel_edges_in_coo(kind: str, aggr: str) -> None:
    reference = made(kind, {"aggr": aggr})
    edge_index, weight = graph()
    csc = in_layout("csc", *simple_graph())
    coo = torch.sparse_coo_tensor(edge_index.flip(0), weight, (N, N))
    for adj_t in (csc, coo):
        agree(Case(convert(reference), reference, [features(N, P)], lambda f, x, a=adj_t: f(x, a)))


@pytest.mark.parametrize("kind", ["GATConv", "GATv2Conv", "TransformerConv"])
@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_weights_in_the_layout_of_the_graph(kind: str, layout: str) -> None:
    reference = made(kind)
    edge_index, weight = simple_graph()
    x, adj_t = features(N, P), in_layout(layout, edge_index, torch.ones_like(weight))
    (y, (ours, *alpha)), (z, (theirs, *beta)) = (
        (out, held if isinstance(held, tuple) else (held,))
        for out, held in (f(x, adj_t, return_attention_weights=True) for f in (convert(reference), reference))
    )
    torch.testing.assert_close(y, z)
    torch.testing.assert_close(alpha, beta)
    assert type(ours) is type(theirs)
    assert ours.layout == theirs.layout


@pytest.mark.parametrize("options", [{}, {"add_self_loops": False}, {"normalize": False}], ids=str)
@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_weights_of_fa_in_the_layout_of_the_graph(layout: str, options: dict) -> None:
    reference, (edge_index, weight) = made("FAConv", options), simple_graph()
    x, adj_t = features(N, P), in_layout(layout, edge_index, weight)
    (y, (ours, alpha)), (z, (theirs, beta)) = (
        f(x, x, adj_t, return_attention_weights=True) for f in (convert(reference), reference)
    )
    torch.testing.assert_close((y, alpha), (z, beta))
    torch.testing.assert_close(ours.to_dense(), theirs.to_dense())
    assert ours.layout == theirs.layout


def test_values_that_are_computed_keep_their_gradient() -> None:
    reference, (edge_index, weight) = made("FAConv", {"normalize": False}), simple_graph()
    leaves = [features(N, P), weight]
    agree(Case(convert(reference), reference, leaves, lambda f, x, w: f(x, x, in_layout("coo", edge_index, w))))


@pytest.mark.parametrize("options", [{}, {"add_self_loops": False}, {"normalize": False}], ids=str)
def test_weights_of_fa_in_a_sparse_tensor(options: dict) -> None:
    torch_sparse = pytest.importorskip("torch_sparse")
    reference, (edge_index, weight) = made("FAConv", options), simple_graph()
    x, places = features(N, P), {"row": edge_index[1], "col": edge_index[0], "sparse_sizes": (N, N)}
    value = None if options.get("normalize", True) else weight  # PyG computes its own to normalise
    adj_t = torch_sparse.SparseTensor(value=value, **places)
    (y, ours), (z, theirs) = (f(x, x, adj_t, return_attention_weights=True) for f in (convert(reference), reference))
    torch.testing.assert_close(y, z)
    torch.testing.assert_close(ours.to_dense(), theirs.to_dense())


# --- two sides ---


def two_sides() -> tuple[Tensor, Tensor]:
    edge_index = torch.stack([torch.randint(0, 7, (20,)), torch.randint(0, 4, (20,))])
    return edge_index, torch.rand(20, dtype=torch.float64)


SUMS, HEADS = ["GraphConv", "SAGEConv", "LEConv"], ["GATConv", "GATv2Conv", "TransformerConv", "ResGatedGraphConv"]
BY_TARGET, ALIKE = ["MFConv", "FiLMConv", "GeneralConv"], ["FeaStConv", "RGATConv"]  # of one width
TWO_SIDED = over(
    lambda kind, sweep: [o for o in sweep if kind in (*SUMS, *HEADS, *BY_TARGET, *ALIKE) and "flow" not in o]
)
SIDES = [
    (*p.values, widths)
    for p in TWO_SIDED
    for widths in (P, (P, P), (P, 3))
    if not (p.values[0] in ALIKE and widths != P)
    if not (p.values[0] == "GeneralConv" and widths == (P, 3))  # which may apply one matrix to both sides
    if not ("share_weights" in p.values[1] and widths == (P, 3))
]


@pytest.mark.parametrize(("kind", "options", "widths"), SIDES, ids=str)
@pytest.mark.sweep(16, "FeaStConv-{'heads': 2, 'add_self_loops': False}-6")
def test_bipartite(kind: str, options: dict, widths: Any) -> None:
    # So large that scores have both signs: where they are positive throughout, a softmax does not read the target.
    reference = drawn(made(kind, options, in_channels=widths))
    ours, (edge_index, weight) = convert(reference), two_sides()
    given, types = more_inputs(reference, edge_index.shape[1])
    pair = [features(7, P), features(4, widths if isinstance(widths, int) else widths[1])]

    def call(f: Any, x: Tensor, y: Tensor | None, *leaves: Tensor, **more: Any) -> Tensor:
        return f((x, y), edge_index, **dict(zip(given, leaves, strict=False)), **types, **more)

    agree(Case(ours, reference, [*pair, *given.values()], call))
    if takes(reference, "edge_weight"):
        agree(Case(ours, reference, [*pair, weight], lambda f, x, y, w: call(f, x, y, edge_weight=w)))
    if takes(reference, "size") and (kind == "GATConv" or not attends(ours)):
        agree(Case(ours, reference, [*pair, *given.values()], lambda f, *leaves: call(f, *leaves, size=(7, 4))))
        if not attends(ours) and kind != "GeneralConv":  # which reads the targets
            agree(Case(ours, reference, pair[:1], lambda f, x: call(f, x, None, size=(7, 4))))


@pytest.mark.parametrize("kind", [*SUMS, *HEADS])
def test_sides_of_two_widths(kind: str) -> None:
    """Of every layer, as there is a matrix of its own for the targets then."""
    test_bipartite(kind, {}, (P, 3))


@pytest.mark.parametrize("layout", ["csr", "coo"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *(p for p in TWO_SIDED if p.values[0] in SUMS),
        *(("SimpleConv", {"combine_root": root}) for root in ("sum", "cat")),
    ],
)
@pytest.mark.sweep(6)
def test_bipartite_sparse_layouts(kind: str, options: dict, layout: str) -> None:
    reference = made(kind, options, in_channels=(P, P))
    to = {"csr": to_torch_csr_tensor, "coo": to_torch_coo_tensor}[layout]
    adj_t = to(torch.tensor([[0, 0, 2, 3], [1, 5, 6, 0]]), torch.rand(4).double(), size=(4, 7))
    pair = [features(7, P), features(4, P)]
    agree(Case(convert(reference), reference, pair, lambda f, x, y: f((x, y), adj_t)))
    if kind != "LEConv":
        agree(Case(convert(reference), reference, pair[:1], lambda f, x: f((x, None), adj_t)))


def test_a_sparse_matrix_says_how_many_targets_there_are() -> None:
    """PyG's own layer takes a SparseTensor alone."""
    ours, x = convert(made("MFConv", in_channels=(P, P))), features(7, P)
    edge_index = torch.tensor([[1, 5, 6, 0], [0, 0, 2, 3]])
    adj_t = to_torch_coo_tensor(edge_index, size=(7, 5)).t().double()
    torch.testing.assert_close(ours((x, None), adj_t), ours((x, None), edge_index, size=(7, 5)))


@pytest.mark.parametrize("root", [None, "sum", "cat"])
def test_bipartite_without_parameters(root: str | None) -> None:
    reference = pyg.SimpleConv("mean", combine_root=root)
    edge_index, weight = two_sides()
    leaves = [features(7, P), features(4, P), weight]
    agree(Case(convert(reference), reference, leaves, lambda f, x, y, w: f((x, y), edge_index, w, (7, 4))))
    agree(Case(convert(reference), reference, leaves[:1], lambda f, x: f((x, None), edge_index, size=(7, 4))))


@pytest.mark.parametrize("channels", [P, (P, 3)], ids=str)
@pytest.mark.parametrize("size", [None, (7, 7), (7, 4)], ids=str)
def test_attention_without_features_of_the_targets(channels: Any, size: Any) -> None:
    options = {"heads": 2, "residual": True, "add_self_loops": size != (7, 4)}
    reference, (edge_index, _) = made("GATConv", options, in_channels=channels), two_sides()
    agree(Case(convert(reference), reference, [features(7, P)], lambda f, x: f((x, None), edge_index, size=size)))


@pytest.mark.parametrize("width", [3, 8])
@pytest.mark.parametrize("options", [{}, {"eps": 0.3}, {"train_eps": True}], ids=str)
def test_two_sides_of_a_network(options: dict, width: int) -> None:
    """Whether the network's first Linear comes before the sum or behind it, with targets and without."""
    network = nn.Sequential(nn.Linear(P, width), nn.Tanh(), nn.Linear(width, Q))
    reference, (edge_index, _) = drawn(pyg.GINConv(network, **options)), two_sides()
    leaves = [features(7, P), features(4, P)]
    agree(Case(convert(reference), reference, leaves, lambda f, x, y: f((x, y), edge_index)))
    if not options:
        agree(Case(convert(reference), reference, leaves[:1], lambda f, x: f((x, None), edge_index, size=(7, 4))))


def test_one_tensor_for_both_sides_of_a_layer_of_two() -> None:
    edge_index, _ = graph()
    for kind in ("GATConv", "GATv2Conv", "TransformerConv"):
        reference = made(kind, {"heads": 2}, in_channels=(P, P))
        agree(Case(convert(reference), reference, [features(N, P)], lambda f, x: f(x, edge_index)))


# --- the call ---


def test_chebyshev_takes_batch_and_lambda_max_in_order() -> None:
    reference = made("ChebConv")
    edge_index, weight = graph()
    edge_index = edge_index % (N // 2) + (torch.rand(edge_index.shape[1]) < 0.5) * (N // 2)
    batch, ours = torch.arange(N) // (N // 2), convert(reference)
    for given in (torch.tensor([1.5, 2.5], dtype=torch.float64), torch.tensor(1.7, dtype=torch.float64), 2.0):
        leaves, named = [features(N, P), weight], {"lambda_max": given, "batch": batch}
        agree(Case(ours, reference, leaves, lambda f, x, w, g=given: f(x, edge_index, w, batch, g)))
        agree(Case(ours, reference, leaves[:1], lambda f, x, named=named: f(x, edge_index, **named)))
    plan = ours.plan(features(N, P), edge_index, weight, None, torch.tensor(2.0))
    assert plan.problem.K == 3
    assert str(plan)


def test_wrong_calls_are_type_errors() -> None:
    ours = convert(made("GraphConv"))
    x, (edge_index, weight) = features(N, P), graph()
    with pytest.raises(TypeError, match="takes 4 arguments"):
        ours(x, edge_index, weight, None, None)
    with pytest.raises(TypeError, match="has no argument 'batch'"):
        ours(x, edge_index, batch=None)
    with pytest.raises(TypeError, match="got twice argument 'x'"):
        ours(x, edge_index, x=x)
    with pytest.raises(TypeError, match="needs argument 'edge_index'"):
        ours(x)


def test_calls_in_order() -> None:
    edge_index, _ = graph()
    x, z, size = features(N, P), features(edge_index.shape[1], 3), (N, N)
    reference = made("GATConv", {"heads": 2, "edge_dim": 3})
    for args in ((x, edge_index), (x, edge_index, z), (x, edge_index, z, size), (x, edge_index, None, None, False)):
        torch.testing.assert_close(convert(reference)(*args), reference(*args))
    reference = made("FAConv", {"normalize": False})
    w = features(edge_index.shape[1])
    torch.testing.assert_close(convert(reference)(x, x, edge_index, w), reference(x, x, edge_index, w))
    with pytest.raises(TypeError, match="has no argument 'batch'"):
        convert(reference)(x, x, edge_index, batch=None)


@pytest.mark.parametrize("kind", ["GraphConv", "LEConv", "RGCNConv", "FastRGCNConv"])
def test_a_pair_against_the_flow_is_rejected(kind: str) -> None:
    x, (edge_index, _) = features(N, P), graph()
    reference = made(kind, {"flow": "target_to_source"})
    ours, types = convert(reference), more_inputs(reference, edge_index.shape[1])[1]
    torch.testing.assert_close(ours((x, x), edge_index, **types), reference((x, x), edge_index, **types))
    with pytest.raises(ValueError, match="target_to_source"):
        ours((x, x.clone()), edge_index, **types)


@pytest.mark.parametrize(
    ("make", "typed"),
    [
        pytest.param(lambda: pyg.FiLMConv(4, 4, 2, act=None), True, id="FiLMConv"),
        pytest.param(lambda: pyg.GeneralConv(4, 4), False, id="GeneralConv"),
        pytest.param(lambda: pyg.LEConv(4, 4), False, id="LEConv"),
        pytest.param(lambda: pyg.RGATConv(4, 4, 2), True, id="RGATConv"),
    ],
)
def test_layers_that_read_their_targets_ask_for_them(make: Callable[[], nn.Module], typed: bool) -> None:
    types = [torch.tensor([0, 1])] if typed else []
    with pytest.raises(ValueError, match=r"features of the targets, which .* reads, got None"):
        convert(make())((torch.rand(3, 4), None), torch.tensor([[0, 1], [1, 2]]), *types)


@pytest.mark.parametrize("kind", [kind for kind in DROPPING if kind != "SuperGATConv"])
def test_weights_are_returned_when_pyg_returns_them(kind: str) -> None:
    edge_index, _ = graph()
    reference = made(kind, {"heads": 2} if kind != "FAConv" else {})
    given, types = more_inputs(reference, edge_index.shape[1])
    for asked in (None, False, True):
        more = types | given | {"return_attention_weights": asked}
        ours, theirs = (f(features(N, P), edge_index=edge_index, **more) for f in (convert(reference), reference))
        assert type(ours) is type(theirs)
        if isinstance(ours, tuple):
            torch.testing.assert_close(ours[1][0], theirs[1][0])
            assert ours[1][1].shape == theirs[1][1].shape


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_the_transformer_returns_the_graph_as_it_was_given(layout: str) -> None:
    adj_t = in_layout(layout, *simple_graph())
    reference = made("TransformerConv", {"heads": 2})
    for f in (convert(reference), reference):
        _, (graph_, alpha) = f(features(N, P), adj_t, return_attention_weights=True)
        assert graph_ is adj_t
        assert alpha.shape == (adj_t._nnz(), 2)


@pytest.mark.parametrize("edges", [7, N], ids=["fewer hyperedges than incidences", "as many"])
def test_weights_of_hyperedges_that_learn(edges: int) -> None:
    index = torch.stack([torch.arange(9) % N, torch.arange(9) % min(edges, 7)])
    index = index if edges == 7 else torch.stack([torch.arange(N), torch.arange(N).roll(1)])
    reference, x = made("HypergraphConv"), features(N, P)
    ours = convert(reference)
    for _ in range(3):
        weight = (1 + features(edges).abs()).requires_grad_()
        found = [f(x, index, weight) for f in (ours, reference)]
        torch.testing.assert_close(*found)
        torch.testing.assert_close(*(torch.autograd.grad(y.square().sum(), weight)[0] for y in found))


GENERAL = [{}, {"attention": True}, {"attention": True, "attention_type": "dot_product"}]


@pytest.mark.parametrize("options", GENERAL, ids=str)
def test_features_of_edges_that_general_conv_has_not(options: dict) -> None:
    """Single numbers in a matrix are no features; a graph without edges has none; and a call may leave them out."""
    edge_index, weight = simple_graph()
    adj_t, x = in_layout("coo", edge_index, weight), features(N, P)
    reference = made("GeneralConv", options | {"in_edge_channels": 1})
    ours = convert(reference)
    for args in (
        (x, adj_t),
        (x, edge_index),
        (x, edge_index[:, :0], weight[:0, None]),
        (x, edge_index, weight[:, None]),
    ):
        torch.testing.assert_close(ours(*args), reference(*args))


@pytest.mark.parametrize("options", [{"attention": True}, {"attention": True, "in_edge_channels": 1}, {}], ids=str)
def test_general_conv_between_sides_of_two_widths(options: dict) -> None:
    edge_index, z = torch.tensor([[0, 4, 1], [1, 0, 2]]), features(3, 1) if "in_edge_channels" in options else None
    reference = pyg.GeneralConv((P, 2), Q, **options).double()
    given = (features(5, P), features(3, 2)), edge_index, z
    torch.testing.assert_close(convert(reference)(*given), reference(*given))


def test_weights_that_pygs_egconv_reads_in_part_are_rejected() -> None:
    edge_index, weight = simple_graph()
    reference = pyg.EGConv(P, 4, aggregators=["sum", "symnorm"], num_heads=2, num_bases=2).double()
    ours, x = convert(reference), features(N, P)
    for layout in ("coo", "csr"):
        ones = in_layout(layout, edge_index, torch.ones_like(weight))
        torch.testing.assert_close(ours(x, ones), reference(x, ones))
        with pytest.raises(ValueError, match="a sparse matrix of ones"):
            ours(x, in_layout(layout, edge_index, weight))


@pytest.mark.parametrize("loops", [False, True])
def test_edges_that_know_how_many_targets_there_are(loops: bool) -> None:
    edges = EdgeIndex(torch.tensor([[0, 1, 2, 5], [1, 3, 2, 0]]), sparse_size=(6, 4))
    reference = made("GATConv", {"add_self_loops": loops})
    x = features(6, P), None
    torch.testing.assert_close(convert(reference)(x, edges), reference(x, edges))


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("kind", ["GATConv", "TransformerConv", "ResGatedGraphConv", "FAConv"])
def test_a_matrix_that_learns(kind: str, layout: str) -> None:
    reference, (edge_index, weight) = made(kind, {"normalize": False} if kind == "FAConv" else {}), simple_graph()
    if kind == "GATConv":
        reference.add_self_loops = False
    x, found = features(N, P), []
    for f in (convert(reference), reference):
        adj_t = in_layout(layout, edge_index, weight).detach().requires_grad_()
        y = f(x, x, adj_t) if kind == "FAConv" else f(x, adj_t)
        y.square().sum().backward()
        found.append((y, torch.zeros(()) if adj_t.grad is None else adj_t.grad.to_dense()))
    torch.testing.assert_close(*found)


DENSE = ["DenseGCNConv", "DenseSAGEConv", "DenseGraphConv", "DenseGATConv", "DenseGINConv"]


@pytest.mark.parametrize("kind", DENSE)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_dense_matrices_of_truth_values_and_of_integers(kind: str, dtype: torch.dtype) -> None:
    reference, x = made(kind), features(2, N, P)
    adj = (features(2, N, N) > 0).to(dtype)
    torch.testing.assert_close(convert(reference)(x, adj), reference(x, adj.double()))


@pytest.mark.parametrize("kind", DENSE)
def test_a_mask_of_no_nodes(kind: str) -> None:
    reference, x, adj = made(kind), features(2, 0, P), features(2, 0, 0)
    mask = torch.ones(2, 0, dtype=torch.bool)
    torch.testing.assert_close(convert(reference)(x, adj, mask), reference(x, adj))


@pytest.mark.parametrize("learns", [False, True])
def test_a_dense_sum_has_the_dtype_of_eps(learns: bool) -> None:
    reference = pyg.DenseGINConv(nn.Linear(P, Q), eps=0.3, train_eps=learns)
    x, adj = features(2, N, P).bfloat16(), (features(2, N, N) > 0).bfloat16()
    torch.testing.assert_close(convert(reference)(x, adj), reference(x, adj))


def test_features_of_edges_that_no_one_reads() -> None:
    edge_index, _ = graph()
    x, z = features(N, P), features(edge_index.shape[1], 3)
    reference = made("GATConv")
    torch.testing.assert_close(convert(reference)(x, edge_index, z), reference(x, edge_index, z))
    with pytest.raises(ValueError, match="edge_dim"):
        convert(made("GATv2Conv"))(x, edge_index, z)


def test_features_wider_than_a_state() -> None:
    with pytest.raises(ValueError, match=r"^x: expected at most 2 channels, got 3; make the layer as wide"):
        convert(pyg.GatedGraphConv(2, 1))(torch.ones(N, 3), graph()[0])


@pytest.mark.parametrize("kind", ["GATConv", "GATv2Conv"])
def test_loops_with_features_in_a_sparse_tensor_are_implemented_nowhere(kind: str) -> None:
    torch_sparse = pytest.importorskip("torch_sparse")
    reference = made(kind, {"edge_dim": 3})
    places = {"row": torch.tensor([0, 1]), "col": torch.tensor([1, 2]), "sparse_sizes": (N, N)}
    for value in (None, torch.rand(2, dtype=torch.float64), features(2, 3)):
        adj_t = torch_sparse.SparseTensor(value=value, **places)
        for f, error in (
            (convert(reference), ValueError),
            (convert(reference), NotImplementedError),
            (reference, NotImplementedError),
        ):
            with pytest.raises(error, match="loops"):
                f(features(N, P), adj_t)


# --- graphs that change, and that have nothing ---


@pytest.mark.parametrize("kind", ["GCNConv", "SGConv", "SSGConv"])
def test_cached_layers_see_new_graphs(kind: str) -> None:
    options = {} if kind == "GCNConv" else {"K": 2}
    reference = made(kind, {"cached": True} | options)
    fresh = made(kind, options)
    fresh.load_state_dict(reference.state_dict())
    ours, x, (edge_index, weight) = convert(reference), features(N, P), graph()

    def same(edges: Tensor) -> None:
        torch.testing.assert_close(ours(x, edges, weight), fresh(x, edges, weight), rtol=1e-10, atol=1e-10)

    other = edge_index.flip(0).contiguous()
    for edges in (edge_index, other, edge_index, edge_index):
        same(edges)
    weight[3] *= 5
    same(edge_index)
    edge_index[:, 0] = torch.tensor([4, 7])
    same(edge_index)
    x[0] += 1
    same(edge_index)


def test_a_used_cache_is_not_taken_along() -> None:
    reference = made("SGConv", {"cached": True})
    x, (edge_index, _) = features(N, P).requires_grad_(), graph()
    before = reference(x, edge_index)
    ours = convert(reference)
    torch.testing.assert_close(ours(x, edge_index), before)
    other = edge_index.flip(0)
    forget(reference)
    torch.testing.assert_close(ours(x, other), reference(x, other))


# --- in training ---

COPIES = 300


@pytest.mark.parametrize("kind", DROPPING)
def test_dropout(kind: str) -> None:
    """As much as PyG's: in many copies of a graph side by side, in one call."""
    reference = made(kind, {"dropout": 0.5}).train()
    ours = convert(reference)
    (dropout,) = {m.basis.dropout for m in ours.modules() if isinstance(m, BasisConv) and hasattr(m.basis, "dropout")}
    assert dropout == 0.5
    edge_index, _ = graph()
    given, types = more_inputs(reference, edge_index.shape[1])
    many = torch.cat([edge_index + N * copy for copy in range(COPIES)], 1)
    given = {name: t.repeat(COPIES, *[1] * (t.dim() - 1)) for name, t in (given | types).items()}
    if kind == "SuperGATConv":
        given["neg_edge_index"] = many[:, :0]  # drawing them is not what is compared

    def run(f: nn.Module) -> Tensor:
        return f(torch.ones(COPIES * N, P, dtype=torch.float64), edge_index=many, **given)

    assert not torch.equal(run(ours), run(ours))
    torch.testing.assert_close(run(ours.eval()), run(reference.eval()))
    spread = [run(f.train()).unflatten(0, (COPIES, N)).std(0).mean() for f in (ours, reference)]
    torch.testing.assert_close(*spread, rtol=0.2, atol=0)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("options", [{}, {"attention_type": "SD", "is_undirected": True}], ids=str)
def test_supergat_learns_to_tell_edges(options: dict, given: bool) -> None:
    reference = made("SuperGATConv", {"heads": 2, "edge_sample_ratio": 0.7, **options}).train()
    ours = convert(reference)
    x, (edge_index, _) = features(N, P), graph()
    negative = torch.randint(0, N, (2, 9)) if given else None
    results = []
    for f in (ours, reference):
        seed_everything(1)
        y = f(x, edge_index, negative)
        loss = f.get_attention_loss()
        weight = f.conv.theta.weight if f is ours else f.lin.weight
        grad = torch.autograd.grad(y.square().sum() + loss, weight)[0]
        results.append((y, loss, grad if f is ours else grad.view(2, Q, P).transpose(1, 2)))
    torch.testing.assert_close(*results)
    assert ours.eval().get_attention_loss() == 0


def test_supergat_learns_from_a_batch() -> None:
    """Of features on the same edges: the loss is the mean of those of each."""
    ours = convert(made("SuperGATConv", {"heads": 2, "edge_sample_ratio": 1.0})).train()
    x, (edge_index, _) = torch.stack([features(N, P), features(N, P).flip(0)]), graph()
    negative = torch.randint(0, N, (2, 9))
    results = []
    for given in (x, *x):
        seed_everything(1)
        results.append((ours(given, edge_index, negative), ours.get_attention_loss()))
    torch.testing.assert_close(results[0][0], torch.stack([y for y, _ in results[1:]]))
    torch.testing.assert_close(results[0][1], torch.stack([loss for _, loss in results[1:]]).mean())


# --- lazy layers ---


@pytest.fixture
def nan_in_new_memory() -> Iterator[None]:
    """Memory that nothing has written to holds NaN, for one test."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


LAZY = ["GCNConv", "SGConv", "SSGConv", "ClusterGCNConv", "GraphConv", "SAGEConv", "LEConv"]


@pytest.mark.parametrize("width", [-1, 0])  # PyG takes 0, the width of a dataset without features, as -1
@pytest.mark.parametrize("kind", [*LAZY, "HypergraphConv", "SignedConv"])
@pytest.mark.usefixtures("nan_in_new_memory")
def test_lazy_layers_stay_lazy(kind: str, width: int) -> None:
    x, (edge_index, _) = torch.randn(N, P), graph()
    third = {"SignedConv": (True,), "SSGConv": (0.1,)}
    lazy = getattr(pyg, kind)(width, Q, *third.get(kind, ()))
    edges = (edge_index,) if kind != "SignedConv" else (edge_index, graph()[0])
    y = convert(lazy)(x, *edges)
    assert y.shape == lazy(x, *edges).shape
    assert y.isfinite().all()  # its biases are drawn
    agree(Case(convert(lazy.double()), lazy, [x.double()], lambda f, x: f(x, *edges)))  # now it is not lazy


@pytest.mark.parametrize("kind", ["GATConv", "GATv2Conv", "RGCNConv", "SGConv", "TransformerConv"])
def test_layers_of_features_without_columns(kind: str) -> None:
    (edge_index, _), x = graph(), features(N, 0)
    given = {"edge_type": torch.arange(edge_index.shape[1]) % 3} if kind == "RGCNConv" else {}
    call, every = called(edge_index, **given), (getattr(pyg, kind), getattr(own, kind))
    reference, ours = (constructed(one, in_channels=0).double() for one in every)
    for layer in (reference, ours):
        call(layer, x)  # the first call of a lazy layer tells it that there are none
    ours.load_state_dict(drawn(reference).state_dict())
    agree(Case(convert(reference), reference, [x], call))
    agree(Case(ours, reference, [x], call))


def test_lazy_layers_of_two_widths() -> None:
    edge_index, _ = two_sides()
    x = (torch.randn(7, 5), torch.randn(4, 3))
    for widths in (-1, (-1, -1)):
        ours = convert(pyg.SAGEConv(widths, Q))
        assert ours(x, edge_index).shape == (4, Q)
    again = convert(pyg.SAGEConv((-1, -1), Q))
    again.load_state_dict(ours.state_dict())
    torch.testing.assert_close(again(x, edge_index), ours(x, edge_index))


# --- hooks ---


@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_hooks_see_the_messages_of_pyg(pieces: int) -> None:
    reference = made("GCNConv")
    ours, edge_index = convert(reference), graph()[0]
    seen: list[torch.Size] = []
    for f in (ours, reference):
        f.decomposed_layers = pieces
        f.register_message_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]["x_j"].shape))
        f(features(N, P), edge_index)
    assert seen == [(seen[0][0], Q // pieces)] * (2 * pieces)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("kind", ["GATConv", "GraphConv", "RGCNConv", "TransformerConv"])
def test_what_learns_does_not_depend_on_the_mode(kind: str, mode: Any) -> None:
    reference = made(kind)
    next(reference.parameters()).requires_grad_(False)
    expected = convert(reference)
    with mode():
        ours = convert(reference)
    assert [p.requires_grad for p in ours.parameters()] == [p.requires_grad for p in expected.parameters()]
    assert not any(p.is_inference() for p in ours.parameters())


def test_a_layer_of_inference_mode_learns() -> None:
    with torch.inference_mode():
        reference = pyg.GATConv(P, Q)
    assert all(p.requires_grad for p in convert(reference).parameters())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("width", [P, 3])
def test_a_root_with_a_bias(width: int, bias: bool) -> None:
    reference, edge_index = pyg.GraphConv((P, width), Q, bias=bias), graph()[0]
    reference.lin_root = pyg.Linear(width, Q)
    pair = [features(N, P), features(N, width)]
    drawn(reference)
    agree(Case(convert(reference), reference, pair, lambda f, x, y: f((x, y), edge_index)))


@pytest.mark.parametrize("aggr", ["add", "mean"])
@pytest.mark.parametrize("width", [P, 3])
def test_films_of_networks(width: int, aggr: str) -> None:
    network = nn.Sequential(nn.Linear(width, 4), nn.Tanh(), nn.Linear(4, 2 * Q))
    reference, edge_index = pyg.FiLMConv((P, width), Q, 3, nn=network, act=None, aggr=aggr), graph()[0]
    kind = torch.arange(edge_index.shape[1]) % 3
    pair = [features(N, P), features(N, width)]
    drawn(reference)
    agree(Case(convert(reference), reference, pair, lambda f, x, y: f((x, y), edge_index, kind)))


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_weights_of_a_matrix_for_sums_and_means(layout: str) -> None:
    """EGConv reads them, but beside 'symnorm'."""
    reference = pyg.EGConv(4, 4, ["sum", "mean"], num_heads=2, num_bases=2, add_self_loops=False)
    weights = torch.sparse_coo_tensor(torch.tensor([[1, 2, 0, 0], [0, 1, 2, 3]]), torch.rand(4), (4, 4)).coalesce()
    x, matrix = torch.randn(4, 4), weights if layout == "coo" else weights.to_sparse_csr()
    torch.testing.assert_close(convert(reference)(x, matrix), reference(x, matrix))


@pytest.mark.parametrize("targets", [1, N - 1])
def test_the_first_features_of_fewer_targets(targets: int) -> None:
    """GCN2Conv takes as many rows of x_0 as there are targets."""
    reference = made("GCN2Conv", {"normalize": False})
    edges = EdgeIndex([[0, 1, 2], [0, 0, targets - 1]], sparse_size=(N, targets))
    agree(Case(convert(reference), reference, [features(N, P), features(N, P)], lambda f, x, x_0: f(x, x_0, edges)))
