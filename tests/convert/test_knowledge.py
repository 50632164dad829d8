"""Conversion of layers for knowledge graphs: relations, hyperedges, signs, directions, many types of nodes."""

import copy
import io
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric import EdgeIndex, seed_everything
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import to_torch_csr_tensor

from pyg_basisconv import BasisConv, convert
from pyg_basisconv.convert.registry import convertible
from pyg_basisconv.verify import KNOWLEDGE, Case, N, Q, features, graph, knowing, knowledge_cases
from pyg_basisconv.verify.knowledge import COUNTS, KINDS, WIDTHS, P, R, incidence, loop_path, typed_edges, typed_graph
from tests.convert.conversion import agree, left_of

SWEEP = [
    pytest.param(kind, options, id="-".join([kind, *(f"{k}={v}" for k, v in options.items())]))
    for kind, sweep in KNOWLEDGE.items()
    for options in sweep
]
FIRST = [pytest.param(kind, sweep[0], id=kind) for kind, sweep in KNOWLEDGE.items()]
RELATIONAL = ["RGCNConv", "FastRGCNConv"]
TYPED = ["HANConv", "HGTConv"]
METADATA = (list(WIDTHS), KINDS)


@pytest.fixture(autouse=True)
def _by_loop() -> Iterator[None]:
    with loop_path():
        yield


def call(kind: str, dtype: torch.dtype = torch.float64) -> Any:
    """A call of a layer, the same for the layer and what it became."""
    if kind in TYPED:
        x, edges = {k: torch.randn(COUNTS[k], WIDTHS[k], dtype=dtype) for k in COUNTS}, typed_edges()
        return lambda f: flat(f(x, edges))
    x = torch.randn(N, P, dtype=dtype)
    if kind in RELATIONAL:
        given: tuple[Any, ...] = typed_graph()
    elif kind == "HypergraphConv":
        given = incidence(), torch.rand(6, dtype=dtype)
    else:
        given = (graph()[0], graph()[0]) if kind == "SignedConv" else (graph()[0],)
    return lambda f: f(x, *given)


def flat(outcome: Any) -> Tensor:
    found = outcome.values() if isinstance(outcome, dict) else [outcome]
    return torch.cat([y.flatten() for y in found if y is not None])


# --- the same function ---


@pytest.mark.parametrize(("kind", "options"), SWEEP)
def test_options(kind: str, options: dict) -> None:
    for case in knowledge_cases(kind, options):
        agree(case)
        modules = [copy.deepcopy(f).float() for f in (case.ours, case.reference)]
        agree(Case(*modules, [leaf.float() for leaf in case.leaves], case.call), 2e-4)


@pytest.mark.parametrize(("kind", "options"), SWEEP)
def test_the_result_is_made_of_basis_convs(kind: str, options: dict) -> None:
    ours = convert(knowing(kind, options))
    assert any(isinstance(m, BasisConv) for m in ours.modules())
    assert not any(map(convertible, ours.modules()))


@pytest.mark.parametrize("options", KNOWLEDGE["RGCNConv"], ids=str)
def test_both_layers_of_relations_become_one(options: dict) -> None:
    loop, fast = (knowing(kind, options) for kind in RELATIONAL)
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


@pytest.mark.parametrize("kind", RELATIONAL)
@pytest.mark.parametrize("edges", [0, 1])
def test_few_edges(kind: str, edges: int) -> None:
    reference = knowing(kind, {})
    given = tuple(t[..., :edges] for t in typed_graph())
    agree(Case(convert(reference), reference, [features(N, P)], lambda f, x: f(x, *given)))


def test_unsorted_types_and_narrow_integers() -> None:
    reference, (edge_index, kind) = knowing("RGCNConv", {}), typed_graph()
    order = torch.randperm(kind.numel())
    edge_index, kind = edge_index[:, order], kind[order]
    ours, x = convert(reference), features(N, P)
    agree(Case(ours, reference, [x], lambda f, x: f(x, edge_index, kind)))
    torch.testing.assert_close(ours(x, edge_index, kind.int()), reference(x, edge_index, kind))


# --- nodes without features ---


@pytest.mark.parametrize("options", [{}, {"num_bases": 2}, {"aggr": "add"}, {"root_weight": False}], ids=str)
def test_numbers_that_repeat(options: dict) -> None:
    reference, edges = knowing("RGCNConv", options, N), typed_graph(9, 9)
    ours, numbers = convert(reference), torch.tensor([3, 3, 0, 11, 5, 3, 7, 0, 1])
    agree(Case(ours, reference, [], lambda f: f(numbers, *edges)))
    torch.testing.assert_close(ours(numbers.int(), *edges), reference(numbers, *edges))


def test_numbers_are_features_with_a_one_each() -> None:
    ours, edges = convert(knowing("RGCNConv", {}, N)), typed_graph()
    numbers = torch.randperm(N)
    torch.testing.assert_close(ours(numbers, *edges), ours(torch.eye(N).double()[numbers], *edges))
    plan = ours.plan(None, *edges)
    assert (plan.problem.P, plan.problem.nnz, plan.order) == (N, N, "theta_first")
    assert ours.plan((numbers[:7], numbers[7:11]), *typed_graph(7, 4)).problem.N == 4
    based = convert(knowing("RGCNConv", {"num_bases": 2}, N))
    assert based.plan(None, *edges).order == "theta_first"
    assert based.order == "auto"


@pytest.mark.parametrize("options", [{}, {"num_bases": 2}], ids=str)
def test_message_passing_of_numbers(options: dict) -> None:
    ours, edges = convert(knowing("RGCNConv", {"root_weight": False, "bias": False, **options}, N)), typed_graph()
    fused = ours(None, *edges)
    ours.fuse = False
    torch.testing.assert_close(ours(None, *edges), fused)
    ours.register_message_forward_hook(lambda module, inputs, messages: 2 * messages)
    torch.testing.assert_close(ours(None, *edges), 2 * fused)


def test_bad_numbers() -> None:
    edges, x = typed_graph(), features(N, N)
    ours, numbers = convert(knowing("RGCNConv", {}, N)), torch.arange(N)
    with pytest.raises(ValueError, match="numbers of both"):
        ours((x, numbers), *edges)
    with pytest.raises(ValueError, match="numbers of both"):
        ours((numbers, x), *edges)
    with pytest.raises(ValueError, match=r"x\[1\]"):
        ours((x, None), *edges)
    with pytest.raises(ValueError, match="num_blocks"):
        convert(knowing("RGCNConv", {"num_blocks": 2}, N))(numbers, *edges)
    fast = convert(knowing("FastRGCNConv", {}, N))
    with pytest.raises(ValueError, match="FastRGCNConv"):
        fast(numbers.flip(0), *edges)
    assert torch.equal(fast(numbers, *edges), fast(None, *edges))


def test_the_layer_that_is_refused_reads_other_numbers() -> None:
    """PyG's two layers differ there, so that no conversion can be the same as both."""
    loop, fast = (knowing(kind, {}, N) for kind in RELATIONAL)
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
    reference = knowing("FastRGCNConv", {})
    ours = convert(reference)
    agree(Case(ours, reference, [features(N, P)], lambda f, x: f(x, adj_t)))
    loop = convert(knowing("RGCNConv", {}))
    loop.load_state_dict(ours.state_dict())
    x = features(N, P)
    torch.testing.assert_close(loop(x, adj_t), ours(x, edge_index.flip(0), kind))
    if SparseTensor.__module__.startswith("torch_sparse"):
        adj_t = SparseTensor(row=edge_index[0], col=edge_index[1], value=kind, sparse_sizes=(N, N))
        for layer in RELATIONAL:
            reference = knowing(layer, {})
            agree(Case(convert(reference), reference, [x], lambda f, x: f(x, adj_t)))


@pytest.mark.parametrize("kind", [*RELATIONAL, "DirGNNConv"])
def test_edge_index_class(kind: str) -> None:
    edge_index, types = typed_graph()
    edges = EdgeIndex(edge_index, sparse_size=(N, N))
    reference = knowing(kind, KNOWLEDGE[kind][0])
    given = (types,) if kind in RELATIONAL else ()
    agree(Case(convert(reference), reference, [features(N, P)], lambda f, x: f(x, edges, *given)))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("aggr", ["mean", "add"])
def test_signed_edges_in_a_sparse_layout(first: bool, aggr: str) -> None:
    reference = knowing("SignedConv", {"first_aggr": first, "aggr": aggr})
    pos, neg = (by_target(graph()[0]) for _ in range(2))
    ones = [torch.ones(e.shape[1], dtype=torch.float64) for e in (pos, neg)]
    adj = [to_torch_csr_tensor(e, w, size=(N, N), is_coalesced=True) for e, w in zip((pos, neg), ones, strict=True)]
    agree(Case(convert(reference), reference, [features(N, P if first else 2 * P)], lambda f, x: f(x, *adj)))


@pytest.mark.parametrize("kind", TYPED)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_typed_edges_in_a_sparse_layout(kind: str) -> None:
    reference = knowing(kind, {"heads": 2})
    edges = {r: by_target(e) for r, e in typed_edges().items()}
    adj = {
        r: to_torch_csr_tensor(e, torch.ones(e.shape[1]).double(), size=(COUNTS[r[2]], COUNTS[r[0]]), is_coalesced=True)
        for r, e in edges.items()
    }
    leaves = [features(COUNTS[k], WIDTHS[k]) for k in COUNTS]
    agree(Case(convert(reference), reference, leaves, lambda f, *x: flat(f(dict(zip(COUNTS, x, strict=True)), adj))))


@pytest.mark.parametrize(("kind", "options"), FIRST)
def test_a_graph_that_changes_in_place(kind: str, options: dict) -> None:
    reference = knowing(kind, options)
    ours = convert(reference)
    if kind in TYPED:
        given: Any = {k: features(COUNTS[k], WIDTHS[k]) for k in COUNTS}, typed_edges()
        changing = given[1][KINDS[0]]
    else:
        types = (typed_graph()[1],) if kind in RELATIONAL else (graph()[0],) if kind == "SignedConv" else ()
        changing = incidence() if kind == "HypergraphConv" else typed_graph()[0]
        given = (features(N, P), changing, *types)
    for _ in range(3):
        torch.testing.assert_close(flat(ours(*given)), flat(reference(*given)))
        changing[:, 0] = torch.stack([torch.randint(3, ()), torch.randint(3, ())])


def test_hyperedges_without_nodes() -> None:
    reference = knowing("HypergraphConv", {})
    ours, index = convert(reference), incidence()
    for count in (6, 7, 20):
        agree(Case(ours, reference, [features(N, P)], lambda f, x, m=count: f(x, index, num_edges=m)))
    agree(Case(ours, reference, [features(N, P)], lambda f, x: f(x, index[:, :0])))
    weight = torch.tensor([1.0, 0.0, 2.0, 0.0, 1.0, 3.0], dtype=torch.float64)  # some nodes have no weight at all
    agree(Case(ours, reference, [features(N, P)], lambda f, x: f(x, index, weight)))
    x = features(N, P)
    torch.testing.assert_close(ours(x, index, weight.float()), reference(x, index, weight))


def test_hyperedges_that_need_features() -> None:
    ours = convert(knowing("HypergraphConv", {"use_attention": True}))
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


@pytest.mark.parametrize("kind", ["HANConv", "HypergraphConv"])
def test_dropout_is_for_training(kind: str) -> None:
    options = {"heads": 2, "dropout": 0.6} | ({"use_attention": True} if kind == "HypergraphConv" else {})
    reference = knowing(kind, options)
    ours = convert(reference)
    if kind == "HANConv":
        run = call(kind)
    else:
        x, z, index = features(N, P), features(6, P), incidence()
        run = lambda f: f(x, index, None, z)  # noqa: E731
    assert not torch.equal(run(ours), run(ours))
    torch.testing.assert_close(run(ours.eval()), run(reference.eval()))


# --- the call ---


def test_calls_by_name_and_in_order() -> None:
    x, (edge_index, kind) = features(N, P), typed_graph()
    ours = convert(knowing("RGCNConv", {}))
    torch.testing.assert_close(ours(x=x, edge_index=edge_index, edge_type=kind), ours(x, edge_index, kind))
    with pytest.raises(TypeError, match="has no argument 'edge_weight'"):
        ours(x, edge_index, edge_weight=None)
    with pytest.raises(ValueError, match="edge_type"):
        ours(x, edge_index)
    with pytest.raises(ValueError, match="edge_type"):
        ours(x, edge_index, kind + 2)
    with pytest.raises(ValueError, match="edge_type"):
        ours(x, edge_index, kind[1:])


def test_a_pair_against_the_flow_is_rejected() -> None:
    x, (edge_index, kind) = features(N, P), typed_graph()
    for name in RELATIONAL:
        reference = knowing(name, {"flow": "target_to_source"})
        ours = convert(reference)
        torch.testing.assert_close(ours((x, x), edge_index, kind), reference((x, x), edge_index, kind))
        with pytest.raises(ValueError, match="target_to_source"):
            ours((x, x.clone()), edge_index, kind)


def test_types_of_edges_in_another_order() -> None:
    """PyG's HGT takes the matrices of other relations then; HAN does not mind."""
    x, edges = {k: features(COUNTS[k], WIDTHS[k]) for k in COUNTS}, typed_edges()
    turned = dict(reversed(edges.items()))
    for kind in TYPED:
        reference = knowing(kind, {"heads": 2})
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
    reference = knowing(kind, {})
    for some in (edges, {KINDS[0]: edges[KINDS[0]]}):
        ours, theirs = (f(x, some) for f in (convert(reference), reference))
        assert {k: y is None for k, y in ours.items()} == {k: y is None for k, y in theirs.items()}


# --- what carries over ---


@pytest.mark.parametrize(("kind", "options"), FIRST)
def test_state_of_the_generator_and_original_stay(kind: str, options: dict) -> None:
    reference = knowing(kind, options)
    before, state = copy.deepcopy(reference.state_dict()), torch.get_rng_state()
    ours = convert(reference)
    assert torch.equal(state, torch.get_rng_state())
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.zero_()
    torch.testing.assert_close(dict(reference.state_dict()), dict(before), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("kind", "options"), FIRST)
def test_dtype_and_mode(kind: str, options: dict, dtype: torch.dtype) -> None:
    ours = convert(knowing(kind, options).to(dtype).eval())
    assert not any(m.training for m in ours.modules())
    assert {p.dtype for p in ours.parameters()} == {dtype}
    assert call(kind, dtype)(ours).dtype == dtype


@pytest.mark.parametrize(("kind", "options"), FIRST)
def test_autocast(kind: str, options: dict) -> None:
    reference, run = knowing(kind, options).float(), call(kind, torch.float32)
    results = []
    for f in (convert(reference), reference):
        with torch.autocast("cpu", torch.bfloat16):
            y = run(f)
        y.float().sum().backward()
        results.append(y.detach().float())
    ours, theirs = results
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0.02 * float(theirs.abs().max()))


def test_explainer_masks_reach_the_converted() -> None:
    """PyG's own two layers take no explainer: a mask says how much each edge matters for one node."""
    ours, (edge_index, kind) = convert(knowing("RGCNConv", {})).eval(), typed_graph()
    config = {"mode": "regression", "task_level": "node", "return_type": "raw"}
    explainer = Explainer(ours, GNNExplainer(epochs=3), "model", config, "attributes", "object")
    mask = explainer(features(N, P), edge_index, edge_type=kind, index=2).edge_mask
    assert torch.equal(mask > 0, edge_index[1] == 2)


@pytest.mark.parametrize(("kind", "options"), SWEEP)
def test_frozen_parameters(kind: str, options: dict) -> None:
    reference = knowing(kind, options).requires_grad_(False)
    assert not any(p.requires_grad for p in convert(reference).parameters())
    for name, parameter in reference.named_parameters():
        parameter.requires_grad_(True)
        ours = convert(reference)
        free = sum(p.numel() for p in ours.parameters() if p.requires_grad)
        assert free == parameter.numel(), name
        parameter.requires_grad_(False)


@pytest.mark.parametrize("options", [{}, {"num_bases": 2}, {"num_blocks": 2}], ids=str)
@pytest.mark.parametrize("frozen", ["weight", "root", "bias"])
def test_half_of_it_frozen(options: dict, frozen: str) -> None:
    reference, edges = knowing("RGCNConv", options), typed_graph()
    getattr(reference, frozen).requires_grad_(False)
    ours, x = convert(reference), features(N, P)
    torch.testing.assert_close(ours(x, *edges), reference(x, *edges))


@pytest.mark.parametrize("first", [True, False])
def test_signed_with_frozen_matrices(first: bool) -> None:
    reference = knowing("SignedConv", {"first_aggr": first})
    for linear in (reference.lin_pos_l, reference.lin_neg_l):
        linear.requires_grad_(False)
    ours, x, edges = convert(reference), features(N, P if first else 2 * P), (graph()[0], graph()[0])
    torch.testing.assert_close(ours(x, *edges), reference(x, *edges))
    pair = x, features(N + 1, x.shape[1])
    torch.testing.assert_close(ours(pair, *edges), reference(pair, *edges))


def test_lazy_layers_stay_lazy() -> None:
    x, edges = {k: torch.randn(COUNTS[k], WIDTHS[k]) for k in COUNTS}, typed_edges()
    for kind in TYPED:
        lazy = getattr(pyg, kind)(-1, 8, METADATA, heads=2)
        ours = convert(lazy)
        assert flat(ours(x, edges)).shape == flat(lazy(x, edges)).shape
        torch.testing.assert_close(convert(lazy)(x, edges), lazy(x, edges))  # now it is not
    x, index = torch.randn(N, P), incidence()
    for lazy, given in ((pyg.HypergraphConv(-1, Q), (index,)), (pyg.SignedConv(-1, Q, True), (graph()[0], graph()[0]))):
        ours = convert(lazy)
        assert ours(x, *given).shape == lazy(x, *given).shape
        torch.testing.assert_close(convert(lazy)(x, *given), lazy(x, *given))


@pytest.mark.parametrize(("kind", "options"), SWEEP)
def test_copies_and_files(kind: str, options: dict) -> None:
    ours, run = convert(knowing(kind, options)), call(kind)
    if kind == "SignedConv" and not options["first_aggr"]:
        x, edges = features(N, 2 * P), (graph()[0], graph()[0])
        run = lambda f: f(x, *edges)  # noqa: E731
    if options.get("use_attention"):
        x, z, index = features(N, P), features(6, P), incidence()
        run = lambda f: f(x, index, None, z)  # noqa: E731
    expected = run(ours)
    file = io.BytesIO()
    torch.save(ours.state_dict(), file)
    file.seek(0)
    other = convert(knowing(kind, options))
    other.load_state_dict(torch.load(file))
    for same in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), other):
        torch.testing.assert_close(run(same), expected, rtol=0, atol=0)
    before = {name: p.detach().clone() for name, p in ours.named_parameters()}
    ours.reset_parameters()
    assert all(not torch.equal(p, before[name]) for name, p in ours.named_parameters())
    assert run(ours).isfinite().all()


@pytest.mark.parametrize("kind", RELATIONAL)
def test_same_training_curve(kind: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (getattr(pyg, kind)(n, 8, R, num_bases=2) for n in (N, 8))
            self.directed, self.last = pyg.DirGNNConv(pyg.GCNConv(8, 8)), getattr(pyg, kind)(8, Q, R)

        def forward(self, edge_index: Tensor, types: Tensor) -> Tensor:
            h = self.second(self.first(None, edge_index, types).relu(), edge_index, types).relu()
            return self.last(self.directed(h, edge_index).relu(), edge_index, types)

    seed_everything(1)
    model, edges, target = Model().double(), typed_graph(), torch.randint(0, Q, (N,))
    ours = convert(model)
    assert not any(isinstance(m, pyg.MessagePassing) and not isinstance(m, BasisConv) for m in ours.modules())
    curves = []
    for f in (ours, model):
        optimizer = torch.optim.SGD(f.parameters(), lr=0.2, momentum=0.9, weight_decay=1e-3)
        curve = []
        for _ in range(10):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(f(*edges), target)
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
        curves.append(curve)
    torch.testing.assert_close(*curves, rtol=1e-10, atol=0)
    assert curves[0][-1] < curves[0][0]


def test_converting_twice_changes_nothing() -> None:
    for kind, sweep in KNOWLEDGE.items():
        once = convert(knowing(kind, sweep[0]))
        assert repr(convert(once)) == repr(once)


# --- what is left ---


class Own(pyg.RGCNConv):
    def message(self, x_j: Tensor, edge_type_ptr: Any) -> Tensor:
        return x_j.relu()


def of_linear() -> nn.Module:
    layer = pyg.DirGNNConv(pyg.GCNConv(P, Q))
    layer.lin = pyg.Linear(P, Q)
    return layer


LEFT = {
    "RGCNConv: aggr='max' is not linear, or not a sum or mean": lambda: pyg.RGCNConv(P, Q, R, aggr="max"),
    "FastRGCNConv: aggr='max' is not linear": lambda: pyg.FastRGCNConv(P, Q, R, aggr="max"),
    "Own: a subclass of RGCNConv may compute something else": lambda: Own(P, Q, R),
    "HypergraphConv: aggr='mean' over messages": lambda: pyg.HypergraphConv(P, Q, aggr="mean"),
    "HypergraphConv: aggr='max' is not linear": lambda: pyg.HypergraphConv(P, Q, aggr="max"),
    "HypergraphConv: it is lazy: call it once before": lambda: pyg.HypergraphConv(-1, Q, use_attention=True),
    "HypergraphConv: dropout=1.0 drops all": lambda: pyg.HypergraphConv(P, Q, use_attention=True, dropout=1.0),
    "SignedConv: aggr='max' is not linear": lambda: pyg.SignedConv(P, Q, True, aggr="max"),
    "SignedConv: aggr='median' is not linear": lambda: pyg.SignedConv(P, Q, False, aggr="median"),
    "DirGNNConv: its CGConv is left: no BasisConv of it is known": lambda: pyg.DirGNNConv(
        pyg.CGConv(P), root_weight=False
    ),
    "DirGNNConv: its GraphConv is left: aggr='max' is": lambda: pyg.DirGNNConv(pyg.GraphConv(P, Q, aggr="max")),
    "DirGNNConv: one of its matrices is in a Linear": of_linear,
    "HANConv: flow='target_to_source' between nodes": lambda: pyg.HANConv(P, 8, METADATA, flow="target_to_source"),
    "HANConv: dropout=1.0 drops all weights": lambda: pyg.HANConv(P, 8, METADATA, dropout=1.0),
    "HGTConv: flow='target_to_source' between nodes": lambda: pyg.HGTConv(P, 8, METADATA, flow="target_to_source"),
}


@pytest.mark.parametrize("reason", LEFT)
def test_left_with_a_reason(reason: str) -> None:
    layer = LEFT[reason]()
    left: dict[str, str] = {}
    ours = convert(layer, left)
    assert left[""].startswith(reason)
    if type(layer) is not pyg.DirGNNConv or len(left) > 1:
        assert ours is layer


def test_layers_inside_one_that_is_left_are_converted() -> None:
    layer = of_linear().double()
    assert left_of(layer).keys() == {""}
    with pytest.warns(UserWarning, match="left 1 of 3 layers"):
        ours = convert(layer)
    assert type(ours) is pyg.DirGNNConv
    assert isinstance(ours.conv_in, BasisConv)
    edge_index, _ = graph()
    agree(Case(ours, layer, [features(N, P)], lambda f, x: f(x, edge_index)))


def test_tied_parameters_are_left() -> None:
    layer = pyg.DirGNNConv(pyg.GCNConv(P, Q))
    layer.conv_in.lin.weight = layer.conv_out.lin.weight
    shared = "it shares a parameter with another layer"
    assert left_of(layer) == {
        "": f"DirGNNConv: {shared}",
        "conv_in": f"GCNConv: {shared}",
        "conv_out": f"GCNConv: {shared}",
    }


@pytest.mark.parametrize("numbers", [[0, 99], [-1, 0]], ids=["beyond", "negative"])
def test_numbers_of_no_node_are_refused(numbers: list[int]) -> None:
    conv = convert(pyg.RGCNConv(5, 3, 2))
    with pytest.raises(ValueError, match=r"^x: expected numbers of nodes from 0 to 4"):
        conv(torch.tensor(numbers), torch.tensor([[0], [1]]), torch.tensor([0]))


def test_a_compiled_hypergraph_has_the_shape_of_its_nodes() -> None:
    reference = knowing("HypergraphConv", {})
    ours = convert(reference)

    def step(x: Tensor, incidence: Tensor, more: Tensor) -> Tensor:
        return ours(x, incidence) + more

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="eager")
    for nodes, edges in ((7, 3), (4, 9)):
        incidence = torch.stack([torch.randint(0, nodes, (20,)), torch.randint(0, edges, (20,))])
        x, more = features(nodes, P), features(nodes, Q)
        torch.testing.assert_close(compiled(x, incidence, more), reference(x, incidence) + more)
