"""Conversion: the same function, called in the same way, whatever the options, the layout and the model around it."""

import copy
import io
import pickle

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.nn.models import GCN, GraphSAGE
from torch_geometric.utils import to_torch_coo_tensor, to_torch_csc_tensor, to_torch_csr_tensor

from pyg_basisconv import BasisConv, convert
from pyg_basisconv.verify import (
    OPTIONS,
    WITHOUT_WEIGHTS,
    Case,
    N,
    P,
    Q,
    converted,
    drawn,
    features,
    forget,
    graph,
    layer,
)
from tests.convert.conversion import agree, left_of

SWEEP = [
    pytest.param(kind, options, id="-".join([kind, *(f"{k}={v}" for k, v in options.items())]))
    for kind, sweep in OPTIONS.items()
    for options in sweep
]
# CSC is refused by PyG's own normalisation; COO it converts, with a warning.
pytestmark = pytest.mark.filterwarnings("ignore:Converting sparse tensor to CSR", "ignore:Sparse invariant checks")


def float32(case: Case) -> Case:
    forget(case.reference)
    modules = [copy.deepcopy(f).float() for f in (case.ours, case.reference)]
    return Case(*modules, [leaf.float() for leaf in case.leaves], case.call)


@pytest.mark.parametrize(("kind", "options"), SWEEP)
def test_options(kind: str, options: dict) -> None:
    for case in converted(kind, options):
        agree(case)
        agree(float32(case), 1e-5)


def test_the_result_is_made_of_basis_convs() -> None:
    for kind, sweep in OPTIONS.items():
        modules = list(convert(layer(kind, **sweep[0])).modules())
        assert any(isinstance(m, BasisConv) for m in modules)
        assert not any(type(m) is getattr(pyg, kind) for m in modules)


# --- layouts ---


def takes_sparse(kind: str, options: dict) -> bool:
    """Whether the reference does; PyG's ClusterGCNConv is defined for one loop per node only."""
    looped = kind != "ClusterGCNConv" or options.get("add_self_loops", True)
    return kind != "ChebConv" and options.get("flow") != "target_to_source" and looped


def simple_graph() -> tuple[Tensor, Tensor]:
    """Without parallel edges, by target: what all layouts can say; with two loops."""
    edge_index, weight = graph((2, 5))
    W = torch.zeros(N, N, dtype=torch.float64).index_put(tuple(edge_index), weight)
    target, source = W.t().nonzero().t()
    return torch.stack([source, target]), W[source, target]


def in_layout(name: str, edge_index: Tensor, weight: Tensor) -> Tensor:
    if name == "coo":
        return torch.sparse_coo_tensor(edge_index.flip(0), weight, (N, N), is_coalesced=True)
    to = {"csr": to_torch_csr_tensor, "csc": to_torch_csc_tensor}[name]
    adj_t = to(edge_index.flip(0), weight, size=(N, N), is_coalesced=name == "csr")
    return adj_t


@pytest.mark.parametrize("layout", ["csr", "coo"])
@pytest.mark.parametrize(("kind", "options"), [p for p in SWEEP if takes_sparse(*p.values)])
def test_sparse_layouts(kind: str, options: dict, layout: str) -> None:
    reference = layer(kind, **options)
    edge_index, weight = simple_graph()
    mean = options.get("aggr") == "mean" or kind == "SAGEConv"
    learnt = layout == "csr" and not mean and kind != "ClusterGCNConv"  # torch has no gradient of a sparse mean
    adj_t = in_layout(layout, edge_index, weight)
    if kind == "ClusterGCNConv":  # whose reference counts in the default dtype, and multiplies no other
        ours = convert(reference.float())
        return agree(Case(ours, reference, [features(N, P).float()], lambda f, x: f(x, adj_t.float())), 1e-5)
    if learnt:
        case = Case(
            convert(reference),
            reference,
            [features(N, P), weight],
            lambda f, x, w: f(x, in_layout(layout, edge_index, w)),
        )
    else:
        case = Case(convert(reference), reference, [features(N, P)], lambda f, x: f(x, adj_t))
    agree(case)


@pytest.mark.parametrize("kind", ["GraphConv", "SAGEConv", "SimpleConv"])
@pytest.mark.parametrize("aggr", ["sum", "mean"])
def test_csc_and_parallel_edges_in_coo(kind: str, aggr: str) -> None:
    reference = layer(kind, aggr=aggr)
    edge_index, weight = graph()
    csc = in_layout("csc", *simple_graph())
    coo = torch.sparse_coo_tensor(edge_index.flip(0), weight, (N, N))
    for adj_t in (csc, coo):
        agree(Case(convert(reference), reference, [features(N, P)], lambda f, x, a=adj_t: f(x, a)))


@pytest.mark.parametrize("kind", OPTIONS)
def test_edge_index_class(kind: str) -> None:
    reference = layer(kind, **OPTIONS[kind][0])
    edge_index, weight = simple_graph()
    edges = EdgeIndex(edge_index, sparse_size=(N, N), sort_order="col")
    rest = () if kind in WITHOUT_WEIGHTS else (weight,)
    agree(Case(convert(reference), reference, [features(N, P), *rest], lambda f, x, *w: f(x, edges, *w)))


# --- two sides ---


def two_sides() -> tuple[Tensor, Tensor]:
    edge_index = torch.stack([torch.randint(0, 7, (20,)), torch.randint(0, 4, (20,))])
    return edge_index, torch.rand(20, dtype=torch.float64)


BIPARTITE = [
    ("GraphConv", {}),
    ("GraphConv", {"aggr": "mean", "bias": False}),
    ("SAGEConv", {}),
    ("SAGEConv", {"normalize": True}),
    ("SAGEConv", {"project": True, "normalize": True}),
    ("SAGEConv", {"root_weight": False}),
    ("LEConv", {}),
    ("LEConv", {"bias": False}),
]


@pytest.mark.parametrize("widths", [(5, 5), (5, 3)], ids=str)
@pytest.mark.parametrize(("kind", "options"), BIPARTITE)
def test_bipartite(kind: str, options: dict, widths: tuple[int, int]) -> None:
    if kind == "LEConv" and widths[0] != widths[1]:
        widths = (5, 3)
    reference = drawn(getattr(pyg, kind)(widths, Q, **options))
    edge_index, weight = two_sides()
    weights = () if kind in WITHOUT_WEIGHTS else (weight,)
    ours = convert(reference)
    pair = [features(7, widths[0]), features(4, widths[1])]
    agree(Case(ours, reference, [*pair, *weights], lambda f, x, y, *w: f((x, y), edge_index, *w)))
    agree(Case(ours, reference, pair, lambda f, x, y: f((x, y), edge_index)))
    if kind != "LEConv":
        sized = Case(ours, reference, pair, lambda f, x, y: f((x, y), edge_index, size=(7, 4)))
        agree(sized)
        agree(Case(ours, reference, pair[:1], lambda f, x: f((x, None), edge_index, size=(7, 4))))


@pytest.mark.parametrize("layout", ["csr", "coo"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [*BIPARTITE, ("SimpleConv", {"combine_root": "sum"}), ("SimpleConv", {"combine_root": "cat"})],
)
def test_bipartite_sparse_layouts(kind: str, options: dict, layout: str) -> None:
    widths = () if kind == "SimpleConv" else ((5, 5), Q)
    reference = drawn(getattr(pyg, kind)(*widths, **options))
    to = {"csr": to_torch_csr_tensor, "coo": to_torch_coo_tensor}[layout]
    adj_t = to(torch.tensor([[0, 0, 2, 3], [1, 5, 6, 0]]), torch.rand(4).double(), size=(4, 7))
    pair = [features(7, 5), features(4, 5)]
    agree(Case(convert(reference), reference, pair, lambda f, x, y: f((x, y), adj_t)))
    if kind != "LEConv":
        agree(Case(convert(reference), reference, pair[:1], lambda f, x: f((x, None), adj_t)))


@pytest.mark.parametrize("root", [None, "sum", "cat"])
def test_bipartite_without_parameters(root: str | None) -> None:
    reference = pyg.SimpleConv("mean", combine_root=root)
    edge_index, weight = two_sides()
    leaves = [features(7, 5), features(4, 5), weight]
    agree(Case(convert(reference), reference, leaves, lambda f, x, y, w: f((x, y), edge_index, w, (7, 4))))
    agree(Case(convert(reference), reference, leaves[:1], lambda f, x: f((x, None), edge_index, size=(7, 4))))


def test_chebyshev_takes_batch_and_lambda_max_in_order() -> None:
    reference = layer("ChebConv", K=3)
    edge_index, weight = graph()
    edge_index = edge_index % (N // 2) + (torch.rand(edge_index.shape[1]) < 0.5) * (N // 2)
    batch = torch.arange(N) // (N // 2)
    for given in (torch.tensor([1.5, 2.5], dtype=torch.float64), torch.tensor(1.7, dtype=torch.float64), 2.0):
        leaves = [features(N, P), weight]
        agree(Case(convert(reference), reference, leaves, lambda f, x, w, g=given: f(x, edge_index, w, batch, g)))
        agree(
            Case(
                convert(reference),
                reference,
                leaves[:1],
                lambda f, x, g=given: f(x, edge_index, lambda_max=g, batch=batch),
            )
        )


# --- the call ---


def test_wrong_calls_are_type_errors() -> None:
    ours = convert(layer("GraphConv"))
    x, (edge_index, weight) = features(N, P), graph()
    with pytest.raises(TypeError, match="takes 4 arguments"):
        ours(x, edge_index, weight, None, None)
    with pytest.raises(TypeError, match="has no argument 'batch'"):
        ours(x, edge_index, batch=None)
    with pytest.raises(TypeError, match="got twice argument 'x'"):
        ours(x, edge_index, x=x)
    with pytest.raises(TypeError, match="needs argument 'edge_index'"):
        ours(x)


def test_a_pair_against_the_flow_is_rejected() -> None:
    x, (edge_index, _) = features(N, P), graph()
    for kind in ("GraphConv", "LEConv"):
        reference = layer(kind, flow="target_to_source")
        ours = convert(reference)
        torch.testing.assert_close(ours((x, x), edge_index), reference((x, x), edge_index))
        with pytest.raises(ValueError, match="target_to_source"):
            ours((x, x.clone()), edge_index)


# --- what carries over ---


def test_state_of_the_generator_and_original_stay() -> None:
    reference = layer("GraphConv")
    before, state = copy.deepcopy(reference.state_dict()), torch.get_rng_state()
    ours = convert(reference)
    assert torch.equal(state, torch.get_rng_state())
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.zero_()
    torch.testing.assert_close(dict(reference.state_dict()), dict(before), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtype_and_mode(dtype: torch.dtype) -> None:
    for kind, sweep in OPTIONS.items():
        ours = convert(layer(kind, **sweep[0]).to(dtype).eval())
        assert not any(m.training for m in ours.modules())
        assert {p.dtype for p in ours.parameters()} <= {dtype}


def test_frozen_parameters() -> None:
    reference = layer("GraphConv")
    reference.lin_rel.requires_grad_(False)
    ours = convert(reference)  # half of it is frozen: two parameters, then
    assert sorted(p.requires_grad for p in ours.parameters()) == [False, False, True]
    x, (edge_index, _) = features(N, P), graph()
    torch.testing.assert_close(ours(x, edge_index), reference(x, edge_index))
    assert not any(p.requires_grad for p in convert(reference.requires_grad_(False)).parameters())
    mixed = layer("TAGConv")
    mixed.lins[0].requires_grad_(False)
    assert left_of(mixed) == {"": "TAGConv: some of its matrices are frozen and some are not"}


@pytest.mark.parametrize("kind", ["GCNConv", "SGConv", "GraphConv", "SAGEConv", "LEConv"])
def test_lazy_layers_stay_lazy(kind: str) -> None:
    lazy = getattr(pyg, kind)(-1, Q)
    ours = convert(lazy)
    x, (edge_index, _) = torch.randn(N, P), graph()
    assert ours(x, edge_index).shape == lazy(x, edge_index).shape
    agree(Case(convert(lazy.double()), lazy, [features(N, P)], lambda f, x: f(x, edge_index)))  # now it is not


def test_lazy_layers_of_two_widths() -> None:
    edge_index, _ = two_sides()
    for widths in (-1, (-1, -1)):
        ours = convert(pyg.SAGEConv(widths, Q))
        assert ours((torch.randn(7, 5), torch.randn(4, 3)), edge_index).shape == (4, Q)
    saved = ours.state_dict()
    again = convert(pyg.SAGEConv((-1, -1), Q))
    again.load_state_dict(saved)
    x = (torch.randn(7, 5), torch.randn(4, 3))
    torch.testing.assert_close(again(x, edge_index), ours(x, edge_index))


# --- caching ---


@pytest.mark.parametrize(
    ("kind", "options"),
    [("GCNConv", {}), ("SGConv", {"K": 2}), ("SSGConv", {"alpha": 0.1, "K": 2})],
    ids=["GCNConv", "SGConv", "SSGConv"],
)
def test_cached_layers_see_new_graphs(kind: str, options: dict) -> None:
    ours = convert(layer(kind, cached=True, **options))
    fresh = layer(kind, **options)
    fresh.load_state_dict(dict(zip(fresh.state_dict(), ours_as_pyg(ours, fresh), strict=True)))
    x, (edge_index, weight) = features(N, P), graph()
    other = edge_index.flip(0).contiguous()
    for edges in (edge_index, other, edge_index):
        for _ in range(2):
            torch.testing.assert_close(ours(x, edges, weight), fresh(x, edges, weight), rtol=1e-10, atol=1e-10)
    weight[3] *= 5
    torch.testing.assert_close(ours(x, edge_index, weight), fresh(x, edge_index, weight), rtol=1e-10, atol=1e-10)
    edge_index[:, 0] = torch.tensor([4, 7])
    torch.testing.assert_close(ours(x, edge_index, weight), fresh(x, edge_index, weight), rtol=1e-10, atol=1e-10)
    x[0] += 1
    torch.testing.assert_close(ours(x, edge_index, weight), fresh(x, edge_index, weight), rtol=1e-10, atol=1e-10)


def ours_as_pyg(ours: BasisConv, reference: nn.Module) -> list[Tensor]:
    """The state of a layer with one matrix, in the order of the reference's."""
    found = {"bias": ours.bias, "lin.bias": ours.bias, "lin.weight": ours.weight[0].t()}
    return [found[name] for name in reference.state_dict()]


def test_a_used_cache_is_not_taken_along() -> None:
    reference = layer("SGConv", cached=True)
    x, (edge_index, _) = features(N, P).requires_grad_(), graph()
    before = reference(x, edge_index)
    ours = convert(reference)
    torch.testing.assert_close(ours(x, edge_index), before)
    other = edge_index.flip(0)
    reference.reset_parameters, reference._cached_x = reference.reset_parameters, None
    torch.testing.assert_close(ours(x, other), reference(x, other))


# --- models ---


class Shared(nn.Module):
    """One layer in several places, in one of them unregistered."""

    def __init__(self) -> None:
        super().__init__()
        self.first = pyg.GCNConv(P, P)
        self.rest = nn.ModuleList([pyg.GraphConv(P, P), self.first, nn.ModuleDict({"again": self.first})])
        self.plain = [self.first]
        self.linear = nn.Linear(P, Q)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv in (self.first, self.rest[0], self.rest[1], self.rest[2]["again"], *self.plain):
            x = conv(x, edge_index).tanh()
        return self.linear(x)


def test_shared_layers_stay_shared() -> None:
    model = Shared().double()
    ours = convert(model)
    assert ours.first is ours.rest[1] is ours.rest[2]["again"] is ours.plain[0]
    assert type(ours.first).__name__ == "Converted"
    assert type(ours.linear) is nn.Linear
    assert ours.linear.weight is not model.linear.weight
    assert type(model.first) is pyg.GCNConv
    edge_index, _ = graph()
    torch.testing.assert_close(*(results(f, edge_index) for f in (ours, model)))


def results(model: nn.Module, edge_index: Tensor, *rest: Tensor) -> list[Tensor]:
    """The output and the gradient of x and of the first linear, where there is one."""
    x = torch.linspace(-1, 1, N * P, dtype=torch.float64).view(N, P).requires_grad_()
    y = model(x, edge_index, *rest)
    y.square().sum().backward()
    return [y, x.grad]


def models() -> dict[str, nn.Module]:
    step, weighted = "x, edge_index -> x", "x, edge_index, edge_weight -> x"
    return {
        "GCN": GCN(P, 8, 3, Q, norm="layer"),
        "GraphSAGE": GraphSAGE(P, 8, 2, Q, jk="cat"),
        "Sequential": pyg.Sequential(
            "x, edge_index", [(pyg.ChebConv(P, 8, 2), step), nn.ReLU(), (pyg.SAGEConv(8, Q), step)]
        ),
        "weighted Sequential": pyg.Sequential("x, edge_index, edge_weight", [(pyg.TAGConv(P, Q), weighted)]),
        "DataParallel": nn.DataParallel(GCN(P, 8, 2, Q)),
        "SAGPooling": Pooled(),
    }


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool = pyg.SAGPooling(P, ratio=0.5)
        self.lin = nn.Linear(P, Q)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.lin(self.pool(x, edge_index)[0])


@pytest.mark.parametrize("name", models())
def test_models(name: str) -> None:
    model = models()[name].double()
    ours = convert(model)
    assert not any(isinstance(m, pyg.MessagePassing) and not isinstance(m, BasisConv) for m in ours.modules())
    edge_index, weight = graph()
    rest = (weight,) if name.startswith("weighted") else ()
    torch.testing.assert_close(*(results(f, edge_index, *rest) for f in (ours, model)))
    if hasattr(ours, "reset_parameters"):
        ours.reset_parameters()
        assert ours(features(N, P), edge_index, *rest).isfinite().all()


def test_explainer_masks_reach_the_converted() -> None:
    model = GCN(P, 8, 2, Q, act=None).double().eval()
    edge_index, _ = graph()
    config = {"mode": "regression", "task_level": "node", "return_type": "raw"}
    masks = []
    for f in (convert(model), model):
        explainer = Explainer(f, GNNExplainer(epochs=1), "model", config, "attributes", "object")
        torch.manual_seed(0)
        masks.append(explainer(features(N, P), edge_index, index=2).edge_mask)
    ours, theirs = masks
    plain = edge_index[0] != edge_index[1]  # PyG takes all loops for its own, and masks none
    torch.testing.assert_close(ours[plain], theirs[plain])


@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_hooks_see_the_messages_of_pyg(pieces: int) -> None:
    reference = layer("GCNConv")
    ours, edge_index = convert(reference), graph()[0]
    seen: list[torch.Size] = []
    for f in (ours, reference):
        f.decomposed_layers = pieces
        f.register_message_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]["x_j"].shape))
        f(features(N, P), edge_index)
    assert seen == [(seen[0][0], Q // pieces)] * (2 * pieces)


def test_hetero() -> None:
    keys = [("a", "to", "b"), ("b", "of", "a")]
    model = pyg.HeteroConv({key: pyg.SAGEConv((P, 3) if key[0] == "a" else (3, P), Q) for key in keys}).double()
    ours = convert(model)
    x = {"a": features(7, P), "b": features(4, 3)}
    edge_index, _ = two_sides()
    edges = {keys[0]: edge_index, keys[1]: edge_index.flip(0)}
    torch.testing.assert_close(ours(x, edges), model(x, edges))


def test_converting_twice_changes_nothing() -> None:
    once = convert(GCN(P, 8, 2, Q))
    assert repr(convert(once)) == repr(once)


def test_same_training_curve() -> None:
    model = GCN(P, 8, 2, Q).double()
    edge_index, weight = graph()
    x, target = features(N, P), torch.randint(0, Q, (N,))
    curves = []
    for f in (convert(model), model):
        optimizer = torch.optim.SGD(f.parameters(), lr=0.3, momentum=0.9, weight_decay=1e-3)
        curve = []
        for _ in range(10):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(f(x, edge_index, weight), target)
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
        curves.append(curve)
    torch.testing.assert_close(*curves, rtol=1e-10, atol=0)
    assert curves[0][-1] < curves[0][0]


@pytest.mark.parametrize("kind", OPTIONS)
def test_copies_and_files(kind: str) -> None:
    options = OPTIONS[kind][4 if kind == "MixHopConv" else 0]
    ours = convert(layer(kind, **options))
    x, (edge_index, _) = features(N, P), graph()
    expected = ours(x, edge_index)
    file = io.BytesIO()
    torch.save(ours.state_dict(), file)
    file.seek(0)
    other = convert(layer(kind, **options))
    other.load_state_dict(torch.load(file))
    for same in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), other):
        torch.testing.assert_close(same(x, edge_index), expected, rtol=0, atol=0)


# --- what is left ---


class Own(pyg.GCNConv):
    def message(self, x_j: Tensor, edge_weight: Tensor) -> Tensor:
        return super().message(x_j, edge_weight).relu()


def hooked() -> nn.Module:
    conv = layer("GCNConv")
    conv.lin.register_forward_hook(lambda module, inputs, output: None)
    return conv


def replaced() -> nn.Module:
    conv = layer("GCNConv")
    conv.forward = lambda x, edge_index: x
    return conv


def other_linear() -> nn.Module:
    conv = layer("GCNConv")
    conv.lin = nn.Linear(P, Q)
    return conv


LEFT = {
    "CGConv: no BasisConv of it is known": lambda: pyg.CGConv(P),
    "Own: a subclass of GCNConv may compute something else": lambda: Own(P, Q),
    "GraphConv: aggr='max' is not linear, or not a sum or mean": lambda: pyg.GraphConv(P, Q, aggr="max"),
    "SAGEConv: aggr='lstm' is not linear, or not a sum or mean": lambda: pyg.SAGEConv(P, Q, aggr="lstm"),
    "SAGEConv: aggr=['mean', 'max'] is not": lambda: pyg.SAGEConv(P, Q, aggr=["mean", "max"]),
    "SimpleConv: aggr='median' is not": lambda: pyg.SimpleConv("median"),
    "GCNConv: aggr='mean' over messages": lambda: pyg.GCNConv(P, Q, aggr="mean"),
    "LEConv: aggr='mean' over messages": lambda: pyg.LEConv(P, Q, aggr="mean"),
    "SAGEConv: project=True with flow": lambda: pyg.SAGEConv(P, Q, project=True, flow="target_to_source"),
    "GCNConv: node_dim=0": lambda: pyg.GCNConv(P, Q, node_dim=0),
    "GCNConv: it has hooks": hooked,
    "GCNConv: its forward() was replaced": replaced,
    "GCNConv: one of its matrices is in a Linear": other_linear,
}


@pytest.mark.parametrize("reason", LEFT)
def test_left_with_a_reason(reason: str) -> None:
    (told,) = left_of(LEFT[reason]()).values()
    assert told.startswith(reason)


def test_tied_parameters_are_left() -> None:
    model = nn.ModuleList([pyg.GCNConv(P, P), pyg.GCNConv(P, P), pyg.GCNConv(P, P)])
    model[1].lin.weight = model[0].lin.weight
    assert left_of(model) == dict.fromkeys("01", "GCNConv: it shares a parameter with another layer")


def test_the_warning_names_what_is_left() -> None:
    model = pyg.Sequential("x, e", [(pyg.GCNConv(P, P), "x, e -> x"), nn.ReLU(), (pyg.CGConv(P), "x, e -> x")])
    with pytest.warns(UserWarning, match=r"left 1 of 2 layers as they were\n  module_2: CGConv: no BasisConv"):
        ours = convert(model)
    assert type(ours.module_2) is pyg.CGConv
    assert ours.module_2 is not model.module_2
    with pytest.warns(UserWarning, match="the layer: CGConv"):
        assert convert(model.module_2) is model.module_2


def test_nothing_is_said_of_other_modules() -> None:
    assert left_of(nn.Sequential(nn.Linear(P, Q), nn.ReLU(), nn.LayerNorm(Q))) == {}


def test_the_plan_takes_the_call_of_the_layer() -> None:
    layer = convert(pyg.ChebConv(8, 4, K=3))
    x, edge_index = torch.randn(6, 8), torch.randint(6, (2, 12))
    plan = layer.plan(x, edge_index, torch.rand(12), None, torch.tensor(2.0))
    assert plan.problem.K == 3
    assert str(plan)
