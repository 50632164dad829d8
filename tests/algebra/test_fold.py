"""A model with its linear neighbours in one layer each: the same function, and what is left as it is."""

import copy
import io
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.nn import global_add_pool

from pyg_basisconv import BasisConv, GridConv, bases, compose, convert, fold, theta
from pyg_basisconv.algebra import folding, rewrites, tracing
from pyg_basisconv.convert.registry import Unchanged
from pyg_basisconv.mechanisms import Dot
from pyg_basisconv.models import BasisGNN

N, P, H, Q = 7, 5, 8, 3
GCN = bases.Adjacency("sym", self_loops=True)


def drawn(model: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
    """In eval mode, with random parameters and statistics."""
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_()
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 2)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model.to(dtype).eval()


def graph() -> tuple[Tensor, Tensor]:
    return torch.randn(N, P, dtype=torch.float64), torch.randint(N, (2, 20))


def image(*shape: int) -> Tensor:
    return torch.randn(*(shape or (2, 3, 9, 8)), dtype=torch.float64)


def names(folded: Any) -> list[str]:
    """What was folded, without what it became."""
    return [line.split(" -> ")[0] for line in folded.folded]


def assert_same(folded: Any, model: Any, *args: Any, **kwargs: Any) -> None:
    with torch.no_grad():
        torch.testing.assert_close(folded(*args, **kwargs), model(*args, **kwargs), rtol=1e-10, atol=1e-10)


def check(model: nn.Module, args: tuple[Any, ...], expected: list[str], known: list[str] | None = None) -> Any:
    """Folds with and without an example call; returns the former.

    expected: what is folded; known: what is, with an example, where that is another.
    """
    drawn(model)
    before, state = copy.deepcopy(vars(model)), copy.deepcopy(model.state_dict())
    for given, wanted in (((), expected), (args, expected if known is None else known)):
        folded: Any = fold(model, *given)
        assert names(folded) == wanted, (folded.folded, folded.left)
        assert_same(folded, model, *args)
        assert not folded.training
    assert vars(model).keys() == before.keys()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert {p.data_ptr() for p in model.parameters()}.isdisjoint(p.data_ptr() for p in folded.parameters())
    return folded


CNNS: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
    "batch norm, 1x1": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.Dropout(), nn.BatchNorm2d(4)
        ),
        ["0, 1", "3, 5"],
    ),
    "GridConv": (
        lambda: nn.Sequential(
            GridConv(3, 4, bases.Window(None, (3, 3), padding=1), bias=False), nn.BatchNorm2d(4), nn.ReLU()
        ),
        ["0, 1"],
    ),
    "all kinds of parameters": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 6, 3, groups=3),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Conv2d(6, 6, 3, groups=6),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            GridConv(6, 4, bases.Window(None, (2, 2)), theta.Separable(depthwise=True)),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.BatchNorm2d(4),
        ),
        ["0, 1", "3, 4", "6, 7", "9, 10"],
    ),
    "transposed": (
        lambda: nn.Sequential(nn.ConvTranspose2d(3, 6, 2, 2), nn.BatchNorm2d(6), nn.Conv2d(6, 4, 1)),
        ["0, 1, 2"],
    ),
    "1x1 before": (lambda: nn.Sequential(nn.Conv2d(3, 6, 1), nn.Dropout2d(), nn.Conv2d(6, 4, 3, padding=1)), ["0, 2"]),
    "1x1 before, no bias": (
        lambda: nn.Sequential(nn.Conv2d(3, 6, 1, bias=False), nn.Conv2d(6, 4, 3, stride=2)),
        ["0, 1"],
    ),
    "batch norm before, padded": (lambda: nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3, padding=1)), ["0, 1"]),
    "batch norm on both sides": (
        lambda: nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3, padding="same"), nn.BatchNorm2d(4)),
        ["0, 1, 2"],
    ),
    "a group": (
        lambda: nn.Sequential(
            GridConv(3, 2, bases.Group("p4", bases.Window(None, (3, 3), padding=1), lift=True)), nn.BatchNorm3d(2)
        ),
        ["0, 1"],
    ),
    "no affine map": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False)), ["0, 1"]),
    "no statistics": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)), []),
    "nested": (
        lambda: nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3)), nn.Sequential(nn.Identity(), nn.BatchNorm2d(4))),
        ["0.0, 1.1"],
    ),
    "converted": (lambda: convert(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))), ["0, 1"]),
    "the last axis": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(6, 4)), []),
    "depthwise and 1x1": (lambda: nn.Sequential(nn.Conv2d(3, 3, 3, groups=3), nn.Conv2d(3, 8, 1)), []),
    "narrow between": (lambda: nn.Sequential(nn.Conv2d(3, 2, 3), nn.Conv2d(2, 9, 1)), []),
}


@pytest.mark.parametrize("name", CNNS)
@pytest.mark.sweep(6, "the last axis")
def test_images(name: str) -> None:
    make, expected = CNNS[name]
    check(make(), (image(),), expected)


@pytest.mark.parametrize("n", [1, 3])
def test_other_numbers_of_axes(n: int) -> None:
    conv = {1: nn.Conv1d, 3: nn.Conv3d}[n](3, 4, 2)
    norm = {1: nn.BatchNorm1d, 3: nn.BatchNorm3d}[n](4)
    check(nn.Sequential(conv, norm, nn.ReLU()), (image(2, 3, *[5] * n),), ["0, 1"])


def test_linear_layers() -> None:
    layers = [nn.Linear(P, 16), nn.BatchNorm1d(16), nn.Dropout(), pyg.Linear(16, 4, bias=False), nn.Linear(4, 20)]
    check(nn.Sequential(*layers), (image(N, P),), ["0, 1, 3, 4"])
    check(nn.Sequential(nn.BatchNorm1d(P), nn.Linear(P, 4)), (image(N, P),), ["0, 1"])
    check(nn.Sequential(nn.Linear(P, 2), nn.Linear(2, 9)), (image(N, P),), [])
    check(nn.Sequential(nn.Linear(P, P), nn.Linear(P, 4)), (image(2, N, P),), ["0, 1"])


CONVS: dict[str, Callable[[int, int], nn.Module]] = {
    "BasisConv": lambda P, Q: BasisConv(P, Q, GCN),
    "powers": lambda P, Q: BasisConv(P, Q, bases.Powers(3), bias=False),
    "GCNConv": pyg.GCNConv,
    "GCNConv, plain": lambda P, Q: pyg.GCNConv(P, Q, normalize=False, bias=False),
    "ChebConv": lambda P, Q: pyg.ChebConv(P, Q, 3),
    "TAGConv": pyg.TAGConv,
    "SAGEConv": pyg.SAGEConv,
    "GraphConv": pyg.GraphConv,
    "converted": lambda P, Q: convert(pyg.GCNConv(P, Q)),
}


class Net(nn.Module):
    """Two convolutions, with a linear layer at both ends."""

    def __init__(self, conv: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.first = nn.Linear(P, H)
        self.conv1, self.norm, self.conv2 = conv(H, H), pyg.BatchNorm(H), conv(H, H)
        self.lin = nn.Linear(H, Q)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.conv1(self.first(x), edge_index)
        x = self.norm(x).relu()
        x = F.dropout(x, p=0.5, training=self.training)
        return self.lin(F.dropout(self.conv2(x, edge_index), training=self.training))


@pytest.mark.parametrize("kind", CONVS)
@pytest.mark.sweep(2)
def test_graphs(kind: str) -> None:
    folded = check(Net(CONVS[kind]), graph(), ["first, conv1, norm", "conv2, lin"])
    other = torch.randint(N + 2, (2, 30))
    x = image(N + 2, P)
    model = drawn(Net(CONVS[kind]))
    folded = fold(model)
    assert_same(folded, model, x, other)


PARAMETERS: dict[str, Callable[[], theta.Theta]] = {
    "full": theta.Full,
    "grouped": lambda: theta.Grouped(2),
    "separable": lambda: theta.Separable(2),
    "depthwise separable": lambda: theta.Separable(2, depthwise=True),
    "depthwise": theta.Depthwise,
    "depthwise, shared": lambda: theta.Depthwise(2, normalize="softmax"),
    "passed": lambda: theta.Pass([0.5, 2.0]),
    "low rank": lambda: theta.LowRank(2, bias=True),
    "heads": lambda: theta.Heads(bias=True),
    "mean of heads": lambda: theta.Heads("mean", bias=True),
    "split": theta.Split,
}


@pytest.mark.parametrize("options", [{}, {"num_bases": 2}, {"num_blocks": 2}, {"root_weight": False}], ids=repr)
@pytest.mark.sweep(2)
def test_relations(options: dict[str, Any]) -> None:
    steps = [pyg.RGCNConv(6, 8, 3, **options), pyg.BatchNorm(8), nn.ReLU(), nn.Linear(8, 8), pyg.RGCNConv(8, 4, 3)]
    headers = ["x, edge_index, edge_type -> x" if "RGCN" in type(step).__name__ else "x -> x" for step in steps]
    model = pyg.Sequential("x, edge_index, edge_type", list(zip(steps, headers, strict=True)))
    folded = check(model, (image(N, 6), graph()[1], torch.randint(3, (20,))), ["module_0, module_1"])
    assert folded.left == {"module_3 and module_4": "one may read numbers of nodes instead of features"}


def test_relations_of_nodes_without_features() -> None:
    kind = torch.randint(3, (20,))
    parts = {"conv": pyg.RGCNConv(N, H, 3, num_bases=2), "norm": nn.BatchNorm1d(H)}
    model = drawn(Made(lambda m, x, e, _: m.norm(m.conv(None, e, kind)) * x, **parts))
    args = image(N, H), graph()[1]
    folded = fold(model, *args)
    assert names(folded) == ["conv, norm"]
    assert_same(folded, model, *args)


@pytest.mark.parametrize("after", ["batch norm", "linear"])
@pytest.mark.parametrize("kind", PARAMETERS)
@pytest.mark.sweep(4)
def test_parameters(kind: str, after: str) -> None:
    basis = bases.Identity() + bases.Adjacency("mean")
    conv = BasisConv(6, 6, basis, PARAMETERS[kind]())
    then = nn.BatchNorm1d(6) if after == "batch norm" else nn.Linear(6, 1)
    model = drawn(pyg.Sequential("x, edge_index", [(conv, "x, edge_index -> x"), then]))
    folded, args = fold(model), (image(N, 6), graph()[1])
    refused = {
        "heads": "biases",
        "passed": "multiply-adds",
        "split": "multiply-adds",
        "depthwise, shared": "multiply-adds",
    }
    assert_same(folded, model, *args)
    if after == "linear" and kind in refused:
        assert folded.folded == []
        assert refused[kind] in folded.left["module_0 and module_1"]
        return
    assert names(folded) == ["module_0, module_1"], folded.left
    if after == "batch norm" and kind not in ("passed", "depthwise, shared", "split"):
        assert repr(folded.module_0.theta) == repr(conv.theta)  # the kind stays


@pytest.mark.parametrize("shape", [(6,), (6, 4)], ids=["diagonal", "matrix"])
@pytest.mark.parametrize("kind", PARAMETERS)
def test_products_of_parameters(kind: str, shape: tuple[int, ...]) -> None:
    built = drawn(PARAMETERS[kind]().build(2, 6, 6))
    matrix, dense = image(*shape), built.dense().double()
    T = torch.diag(matrix) if matrix.dim() == 1 else matrix
    if kind == "heads" and matrix.dim() == 2:
        with pytest.raises(Unchanged, match="biases"):
            rewrites.followed(built, matrix)
    else:
        torch.testing.assert_close(rewrites.followed(built, matrix).dense(), dense @ T, rtol=1e-10, atol=1e-10)
    before = T.t() @ dense[:, :6]
    found = rewrites.preceded(built, matrix if matrix.dim() == 1 else matrix.t())
    torch.testing.assert_close(found.dense()[:, : len(T.t())], before, rtol=1e-10, atol=1e-10)
    assert (len(T.t()), 6) == (found.P, found.Q)
    if built.lifts:
        assert torch.equal(found.value_bias, built.value_bias)


@pytest.mark.parametrize("kind", sorted(PARAMETERS.keys() - {"passed", "split", "depthwise", "depthwise, shared"}))
@pytest.mark.sweep(3)
def test_parameters_after_a_linear_layer(kind: str) -> None:
    basis = bases.Identity() + bases.Adjacency("mean")
    conv = BasisConv(12, 6, basis, PARAMETERS[kind]())
    lin = nn.Linear(4, 12, bias=False)
    model = drawn(pyg.Sequential("x, edge_index", [(lin, "x -> x"), (conv, "x, edge_index -> x")]))
    folded = fold(model)
    assert names(folded) == ["module_0, module_1"]
    assert_same(folded, model, image(N, 4), graph()[1])


def test_what_was_composed_is_folded_further() -> None:
    both = compose(BasisConv(P, 9, GCN), BasisConv(9, 6, bases.Powers(2)))
    model = drawn(pyg.Sequential("x, edge_index", [(both, "x, edge_index -> x"), nn.BatchNorm1d(6), nn.Linear(6, 2)]))
    folded = fold(model)
    assert names(folded) == ["module_0, module_1, module_2"]
    assert_same(folded, model, *graph())


class Convs(nn.Module):
    """Convolutions with nothing between them."""

    def __init__(self, *convs: nn.Module) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)

    def forward(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        for conv in self.convs:
            x = conv(x, edge_index, edge_weight)
        return x


WIDE: dict[str, Callable[[], list[nn.Module]]] = {
    "BasisConv": lambda: [BasisConv(16, 1024, GCN), BasisConv(1024, 4, GCN)],
    "GCNConv": lambda: [pyg.GCNConv(16, 1024), pyg.GCNConv(1024, 4)],
    "unlike": lambda: [pyg.GCNConv(16, 1024, normalize=False), pyg.TAGConv(1024, 4, K=1, normalize=False)],
    "three": lambda: [pyg.GCNConv(16, 1024), pyg.GCNConv(1024, 512), pyg.GCNConv(512, 64)],
}


@pytest.mark.parametrize("kind", WIDE)
@pytest.mark.sweep(2)
def test_convolutions_on_one_graph(kind: str) -> None:
    convs, nodes = WIDE[kind](), 100
    x, edge_index = image(nodes, 16), torch.randint(nodes, (2, 400))
    weight = torch.rand(400, dtype=torch.float64)
    everything = ", ".join(f"convs.{i}" for i in range(len(convs)))
    model = Convs(*convs)
    folded = check(model, (x, edge_index, weight), [], [everything])
    assert_same(folded, model, x, edge_index.flip(0), weight)
    assert_same(folded, model, x, edge_index)
    if kind != "BasisConv":  # which reads it otherwise than PyG
        A = torch.sparse_coo_tensor(edge_index.flip(0), weight, (nodes, nodes)).to_sparse_csr()
        assert_same(folded, model, x, A)


def test_windows_on_one_grid() -> None:
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.Conv2d(64, 3, 3))
    folded = check(model, (image(),), ["0, 1"], ["0, 1, 2"])
    assert_same(folded, model, image(1, 3, 6, 7))
    for biases in product([False, True], repeat=2):
        convs = (nn.Conv2d(*widths, 3, bias=bias) for widths, bias in zip([(3, 64), (64, 3)], biases, strict=True))
        check(nn.Sequential(*convs), (image(),), [], ["0, 1"])


def test_what_does_not_pay_is_left() -> None:
    model = drawn(Convs(pyg.GCNConv(64, 2), pyg.GCNConv(2, 64)))
    x = image(N, 64)
    folded = fold(model, x, graph()[1])
    assert names(folded) == []
    assert "times as fast" in folded.left["convs.0 and convs.1"]
    assert "only an example call" in fold(model).left["convs.0 and convs.1"]


MODELS: dict[str, tuple[Callable[..., nn.Module], dict[str, Any], list[str]]] = {
    "BasisGNN": (BasisGNN, {"basis": GCN}, ["convs.0, norms.0", "convs.1, norms.1"]),
    "GCN": (pyg.GCN, {}, ["convs.0, norms.0", "convs.1, norms.1"]),
    "GraphSAGE": (pyg.GraphSAGE, {"dropout": 0.5}, ["convs.0, norms.0", "convs.1, norms.1"]),
    "GCN, jumping": (pyg.GCN, {"jk": "cat"}, ["convs.0, norms.0", "convs.1, norms.1", "convs.2, norms.2"]),
    "BasisGNN, jumping": (
        BasisGNN,
        {"basis": GCN, "jk": "max"},
        ["convs.0, norms.0", "convs.1, norms.1", "convs.2, norms.2"],
    ),
    "activation first": (pyg.GCN, {"act_first": True}, ["norms.0, convs.1", "norms.1, convs.2"]),
    "GAT": (pyg.GAT, {}, []),
    "GIN": (pyg.GIN, {}, []),
    "layer norm": (pyg.GCN, {"norm": "layer_norm"}, []),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sweep(4)
def test_models(name: str) -> None:
    make, kwargs, expected = MODELS[name]
    check(make(P, H, 3, Q, **({"norm": "batch_norm"} | kwargs)), graph(), expected)


def test_linear_models() -> None:
    """SGC, as it were: all layers become one, but for those whose results are kept for others."""
    check(pyg.GCN(P, 128, 3, Q, act=None), graph(), [], ["convs.0, convs.1, convs.2"])
    check(pyg.GCN(P, 128, 3, Q, act=None, jk="last"), graph(), ["convs.2, lin"], ["convs.0, convs.1, convs.2, lin"])
    check(pyg.GCN(P, 128, 3, Q, act=None, jk="max"), graph(), [])


def test_jumping_knowledge_reads_each_layer() -> None:
    model = drawn(BasisGNN(P, H, 3, Q, basis=GCN, act=None, jk="cat"))
    folded = fold(model, *graph())
    assert names(folded) == []
    assert_same(folded, model, *graph())


@pytest.mark.parametrize("pool", [pyg.global_mean_pool, pyg.MeanAggregation()], ids=["function", "module"])
def test_sequential_of_pyg(pool: Callable[..., Tensor]) -> None:
    model = pyg.Sequential(
        "x, edge_index, batch",
        [
            (pyg.GCNConv(P, H), "x, edge_index -> x"),
            pyg.BatchNorm(H),
            nn.ReLU(),
            (pyg.GCNConv(H, H), "x, edge_index -> x"),
            (pool, "x, batch -> x"),
            nn.Linear(H, Q),
        ],
    )
    drawn(model)
    batch = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    for example in ((), (*graph(), batch)):
        folded = fold(model, *example)
        assert names(folded) == ["module_0, module_1"]
        assert folded.left.keys() <= {"module_3 and module_5"}
        assert_same(folded, model, *graph(), batch)


POOLS: dict[str, Callable[..., Tensor]] = {
    "a function": lambda m, *args: global_add_pool(*args),
    "a function of a module": lambda m, *args: pyg.global_add_pool(*args),
    "a module": lambda m, *args: m.pool(*args),  # which looks at its arguments before torch.fx sees the call
}


@pytest.mark.parametrize("kind", POOLS)
def test_pools(kind: str) -> None:
    parts = {"lin": nn.Linear(P, H), "norm": nn.BatchNorm1d(H), "pool": pyg.MaxAggregation(), "last": nn.Linear(H, Q)}
    model = drawn(Made(lambda m, x, batch, _: m.last(POOLS[kind](m, m.norm(m.lin(x)), batch)), **parts))
    args = image(N, P), torch.tensor([0, 0, 0, 1, 1, 1, 1])
    check(model, args, ["lin, norm"])


class Made(nn.Module):
    """A model of parts by name, with a forward of its own."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Any, edge_index: Any = None, *, other: Any = None) -> Any:
        return self.function(self, x, edge_index, other)


def conv(P: int = P, Q: int = H) -> nn.Module:
    return BasisConv(P, Q, GCN)


def stays(forward: Callable[..., Any], *args: Any, reason: str = "", **parts: Any) -> Any:
    """Checks that nothing is folded, and that the result is the same."""
    model = drawn(Made(forward, **parts))
    folded: Any = fold(model, *args)
    assert folded.folded == []
    assert [reason] == list(folded.left.values()) or not reason
    assert_same(folded, model, *args)
    return folded


def test_a_result_that_is_read_twice() -> None:
    square = {"conv": conv(P, P), "norm": nn.BatchNorm1d(P), "drop": nn.Dropout()}
    x, e = graph()
    stays(lambda m, x, e, _: (h := m.conv(x, e)) + m.norm(h), x, e, **square)
    stays(lambda m, x, e, _: (h := m.conv(x, e), m.norm(h)), x, e, **square)
    stays(lambda m, x, e, _: m.norm(h := m.drop(m.conv(x, e))) * h, x, e, **square)
    stays(lambda m, x, e, _: m.norm(m.drop(h := m.conv(x, e))) * h, x, e, **square)
    around = drawn(Made(lambda m, x, e, _: x + m.norm(m.conv(x, e)), **square))
    folded = fold(around, x, e)
    assert names(folded) == ["conv, norm"]  # a residual around both is none of their business
    assert_same(folded, around, x, e)


def test_a_result_that_is_read_twice_by_one() -> None:
    x, e = graph()
    weigh = BasisConv(P, P, bases.Adjacency())

    def forward(m: Any, x: Any, e: Any, _: Any) -> Any:
        h = m.lin(x)
        return m.conv(h, e, h[: e.shape[1] % 2, 0].sum().expand(e.shape[1]))

    stays(forward, x, e, lin=nn.Linear(P, P), conv=weigh)
    stays(
        lambda m, x, e, _: m.both(m.lin(x), m.lin2(x)),
        x,
        e,
        lin=nn.Linear(P, 4),
        lin2=nn.Linear(P, 4),
        both=nn.Bilinear(4, 4, 2),
    )


def test_a_result_that_is_kept() -> None:
    def keeping(m: Any, x: Any, e: Any, _: Any) -> Any:
        m.seen = {"hidden": [m.conv(x, e)]}
        return m.norm(m.seen["hidden"][0])

    x, e = graph()
    model = drawn(Made(keeping, conv=conv(), norm=nn.BatchNorm1d(H)))
    folded = fold(model, x, e)
    assert not hasattr(model, "seen")
    assert folded.folded == []
    assert_same(folded, model, x, e)
    assert torch.equal(folded.seen["hidden"][0], model.seen["hidden"][0])


@pytest.mark.parametrize(
    "look",
    [bool, float, int, len, lambda h: 3.0 in h, lambda h: [*h]],
    ids=["bool", "float", "int", "len", "in", "iter"],
)
@pytest.mark.sweep(3)
def test_a_result_that_is_looked_at(look: Callable[[Any], Any]) -> None:
    """Nobody may decide by numbers: what it does is then not known."""
    parts = {"one": nn.Linear(P, 1), "two": nn.Linear(1, 1)}
    model = drawn(Made(lambda m, x, *_: (2 if look(h := m.one(x)) else 3) * m.two(h), **parts))
    for args in ((), (image(1, P),)):
        with pytest.raises(
            ValueError, match=r"^model: expected a model that torch.fx can trace, got Made: .*fold those"
        ):
            fold(model, *args)
    deep = drawn(nn.Sequential(nn.Linear(P, P), nn.BatchNorm1d(P), model))
    assert (names(fold(deep)), [*fold(deep).left]) == (["0, 1"], ["2"])


def test_layers_that_are_called_twice() -> None:
    x, e = graph()
    stays(lambda m, x, e, _: m.norm(m.conv(m.norm(m.conv(x, e)), e)), x, e, conv=conv(P, P), norm=nn.BatchNorm1d(P))
    twice = drawn(Made(lambda m, x, e, _: m.a(m.conv(x, e)) * m.conv(x, e), conv=conv(), a=nn.BatchNorm1d(H)))
    assert fold(twice, x, e).folded == []
    shared = nn.BatchNorm1d(H)
    one = drawn(nn.Sequential(nn.Linear(P, H), shared, nn.ReLU(), nn.Linear(H, H), shared))
    folded = fold(one)
    assert folded.folded == []
    assert_same(folded, one, x)


def test_a_layer_in_two_places_that_is_called_once() -> None:
    norm, convs = nn.BatchNorm1d(H), nn.ModuleList([conv()])
    model = drawn(Made(lambda m, x, e, _: m.norm(m.convs[0](x, e)), conv=convs[0], convs=convs, norm=norm, also=[norm]))
    folded = fold(model, *graph())
    assert names(folded) == ["conv, norm"]
    assert_same(folded, model, *graph())
    assert folded.conv is folded.convs[0]
    assert folded.norm is folded.also[0]


def test_different_graphs() -> None:
    x, e = graph()
    reason = "their graphs, or other arguments, are not the same"
    parts = {"one": conv(P, 128), "two": conv(128, Q)}
    stays(lambda m, x, e, o: m.two(m.one(x, e), e.flip(0)), x, e, reason=reason, **parts)
    stays(lambda m, x, e, o: m.two(m.one(x, e), e, e[0].double()), x, e, reason=reason, **parts)
    same = drawn(Made(lambda m, x, e, o: m.two(edge_index=e, x=m.one(x, e)), **parts))
    folded = fold(same, x, e)
    assert names(folded) == ["one, two"]
    assert_same(folded, same, x, e)


def test_something_between() -> None:
    x, e = graph()
    parts = {"conv": conv(), "norm": nn.BatchNorm1d(H)}
    stays(lambda m, x, e, _: m.norm(m.conv(x, e).relu()), x, e, **parts)
    stays(lambda m, x, e, _: m.norm(torch.tanh(m.conv(x, e))), x, e, **parts)
    stays(lambda m, x, e, _: m.norm(m.act(m.conv(x, e))), x, e, act=nn.PReLU(), **parts)
    stays(lambda m, x, e, _: m.norm(m.conv(x, e) + 1), x, e, **parts)
    active = drawn(Made(lambda m, x, e, _: m.norm(F.dropout(m.conv(x, e))), **parts))  # whatever the mode
    assert fold(active, x, e).folded == []
    for p, found in ((0.0, ["conv, norm"]), (1.0, [])):  # of which the first does nothing
        dropping = drawn(Made(lambda m, x, e, _, p=p: m.norm(F.dropout(m.conv(x, e), p)), **parts))
        assert names(fold(dropping, x, e)) == found
    for drop in (nn.Dropout().train(), nn.Dropout()):
        model = nn.Sequential(nn.Linear(P, H), drop, nn.BatchNorm1d(H))
        mode = drop.training
        drop.train(drawn(model).training or mode)
        assert names(fold(model)) == ([] if mode else ["0, 2"])


def test_changes_in_place() -> None:
    x, e = graph()
    parts = {"lin": nn.Linear(P, P, bias=False), "conv": conv(P, Q)}

    def changing(m: Any, x: Any, e: Any, _: Any) -> Any:
        x = x * 1
        h = m.lin(x)
        x.add_(1)
        return m.conv(h, e)

    stays(changing, x, e, reason="something is changed in place between them", **parts)

    def augmenting(m: Any, x: Any, e: Any, _: Any) -> Any:
        x = x * 1
        h = m.lin(x)
        x += 1
        return m.conv(h, e)

    stays(augmenting, x, e, reason="something is changed in place between them", **parts)

    def writing(write: Callable[[Tensor], Any]) -> Callable[..., Any]:
        def forward(m: Any, x: Any, e: Any, _: Any) -> Any:
            x = x * 1
            h = m.lin(x)
            write(x)
            return m.conv(h, e)

        return forward

    for write in (lambda x: torch.add(x, 1, out=x), lambda x: F.relu(x, inplace=True)):
        stays(writing(write), x, e, reason="something is changed in place between them", **parts)

    def weighing(m: Any, x: Any, e: Any, _: Any) -> Any:
        w = e[0].double()
        h = m.one(x, e, w)
        w[1:] = 2.0
        return m.two(h, e, w)

    wide = {"one": conv(P, 128), "two": conv(128, Q)}
    stays(weighing, x, e, reason="something is changed in place between them", **wide)
    after = drawn(nn.Sequential(nn.Linear(P, H), nn.BatchNorm1d(H), nn.ReLU(inplace=True)))
    folded, before = fold(after, x), x.clone()
    assert names(folded) == ["0, 1"]
    assert_same(folded, after, x)
    assert torch.equal(x, before)


def test_an_example_is_not_changed() -> None:
    model, x = drawn(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(P, Q))), image(N, P)
    before, state = x.clone(), torch.get_rng_state()
    fold(model, x)
    assert torch.equal(x, before)
    assert torch.equal(state, torch.get_rng_state())


def hook(*_: Any) -> None:
    pass


HOOKS: dict[str, Callable[[nn.Module], Any]] = {
    "forward": lambda m: m.register_forward_hook(hook),
    "before": lambda m: m.register_forward_pre_hook(hook),
    "backward": lambda m: m.register_full_backward_hook(hook),
}


@pytest.mark.parametrize("kind", HOOKS)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_hooks(kind: str, place: int) -> None:
    model = drawn(nn.Sequential(nn.Linear(P, H), nn.Dropout(), nn.BatchNorm1d(H)))
    handle = HOOKS[kind](model[place])
    assert fold(model).folded == []
    handle.remove()
    assert names(fold(model)) == ["0, 2"]
    handle = HOOKS[kind](model)  # sees the same as before
    assert names(fold(model)) == ["0, 2"]


def test_hooks_within_and_around() -> None:
    x, e = graph()
    layer = pyg.GCNConv(P, H)
    model = drawn(Made(lambda m, x, e, _: m.norm(m.conv(x, e)), conv=layer, norm=pyg.BatchNorm(H)))
    layer.lin.register_forward_hook(hook)
    assert fold(model, x, e).folded == []
    part = nn.Sequential(nn.Linear(P, H))
    model = drawn(nn.Sequential(part, nn.BatchNorm1d(H)))
    part.register_forward_hook(hook)  # it would see something else
    assert fold(model).folded == []


def test_numbers_that_are_drawn_twice_are_two_arguments() -> None:
    """Though the calls that draw them read alike, as reads of one attribute or item do."""
    nodes = torch.fx.Graph()
    data = nodes.placeholder("data")
    calls = [
        nodes.call_function(f, (data, *more)) for f, *more in [(torch.rand_like,), (getattr, "x")] for _ in range(2)
    ]
    assert not tracing.same_argument(*calls[:2])
    assert tracing.same_argument(*calls[2:])


def test_weights_that_are_computed() -> None:
    model = drawn(nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(P, H)), nn.BatchNorm1d(H)))
    folded = fold(model)
    assert folded.folded == []
    assert_same(folded, model, image(N, P))


def test_parameters_that_are_read_elsewhere() -> None:
    x, _ = graph()
    tied = {"lin": nn.Linear(P, P), "norm": nn.BatchNorm1d(P)}
    stays(lambda m, x, e, _: m.norm(m.lin(x)) @ m.lin.weight, x, **tied)
    stays(lambda m, x, e, _: m.norm(m.lin(x)) - m.norm.running_mean, x, **tied)
    deep = {"lin": pyg.GCNConv(P, P), "norm": pyg.BatchNorm(P)}
    stays(lambda m, x, e, _: m.norm(m.lin(x, e)) @ m.lin.lin.weight, *graph(), **deep)
    numbers = drawn(Made(lambda m, x, *_: m.norm(m.lin(x)) * m.norm.num_features, **tied))
    assert names(fold(numbers)) == ["lin, norm"]
    assert_same(fold(numbers), numbers, x)


def test_a_forward_that_asks_for_types() -> None:
    class Asking(nn.Module):
        def __init__(self, *layers: nn.Module) -> None:
            super().__init__()
            self.layers = nn.ModuleList(layers)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
                if isinstance(layer, nn.BatchNorm1d):
                    x = x.relu()
            return x

    x, _ = graph()
    model = drawn(Asking(nn.Linear(P, H), nn.BatchNorm1d(H), nn.Linear(H, Q)))
    for folded in (fold(model), fold(model, x)):
        assert folded.folded == []
        assert folded.left["layers.0, layers.1"] == "the model asks what its layers are"
        assert_same(folded, model, x)
    others = drawn(nn.Sequential(model, nn.Linear(Q, Q), nn.BatchNorm1d(Q)))
    for folded in (fold(others), fold(others, x)):  # what it does not ask for is folded
        assert names(folded) == ["0.layers.2, 1, 2"]
        assert_same(folded, others, x)


def test_a_result_that_is_kept_elsewhere() -> None:
    x, e = graph()

    def keeps(m: nn.Module, data: Data, *_: Any) -> Tensor:
        data.h = m.conv(data.x, data.edge_index)
        return m.norm(data.h)

    model = drawn(Made(keeps, conv=pyg.GCNConv(P, H), norm=pyg.BatchNorm(H)))
    data, same = Data(x=x, edge_index=e), Data(x=x, edge_index=e)
    folded = fold(model, Data(x=x, edge_index=e))
    close = torch.testing.assert_close
    close(folded(data), model(same))
    close(data.h, same.h)
    seen: list[Any] = []
    stays(lambda m, x, *_: m.norm((seen.append(m.lin(x)), seen[-1])[1]), x, lin=nn.Linear(P, H), norm=nn.BatchNorm1d(H))


def test_writes_by_what_is_not_followed() -> None:
    class Tripling(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mul_(3)

    def forward(m: nn.Module, x: Tensor, *_: Any) -> Tensor:
        y = m.norm(x)
        m.tripling(x)
        return m.lin(y) + x

    def data(m: nn.Module, x: Tensor, *_: Any) -> Tensor:
        y = m.norm(x)
        x.data = 3 * x
        return m.lin(y) + x

    parts = {"norm": nn.BatchNorm1d(P), "lin": nn.Linear(P, P)}
    tripling = Tripling()
    tripling.register_forward_hook(hook)
    x, _ = graph()
    for model in (drawn(Made(forward, tripling=tripling, **parts)), drawn(Made(data, **parts))):
        folded = fold(model, x.clone())
        torch.testing.assert_close(folded(x.clone()), model(x.clone()))


def test_a_forward_of_its_own() -> None:
    """As some libraries put in the place of a layer's."""
    model = drawn(nn.Sequential(nn.Linear(P, H), nn.BatchNorm1d(H)))
    linear = model[0]
    linear.forward = lambda x: nn.functional.linear(x, linear.weight).relu()
    assert fold(model).folded == []
    with pytest.raises(ValueError, match=r"^first: expected a layer without hooks"):
        compose(linear, model[1])


def test_attention_stays() -> None:
    attention = bases.Attention(2, Dot(4), bases.Adjacency())
    x, e = graph()
    stays(lambda m, x, e, _: m.norm(m.conv(x, e)), x, e, conv=BasisConv(P, H, attention), norm=nn.BatchNorm1d(H))
    stays(lambda m, x, e, _: m.norm(m.conv(x, e)), x, e, conv=pyg.GATConv(P, H), norm=nn.BatchNorm1d(H))


def test_a_batch_norm_of_another_axis() -> None:
    model, x = drawn(nn.Sequential(nn.Linear(P, N), nn.BatchNorm1d(N))), image(2, N, P)
    known = fold(model, x)
    assert known.left == {"0 and 1": "the channels of the batch norm are on another axis"}
    assert_same(known, model, x)
    with pytest.raises(ValueError, match=r"input: expected 2 axes, for which a batch norm was folded, got \(2, 7, 7\)"):
        fold(model)(x)
    lines = drawn(nn.Sequential(nn.Conv1d(3, 4, 2), nn.BatchNorm1d(4)))
    assert_same(fold(lines), lines, image(2, 3, 6))
    assert fold(lines, image(3, 5)).left == {"0 and 1": "the channels of the batch norm are on another axis"}
    with pytest.raises(ValueError, match="input: expected 3 axes"):
        fold(lines)(image(3, 5))
    flat = drawn(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm2d(4)))
    assert fold(flat).left == {"0 and 1": "the channels of the batch norm are on another axis"}


def test_data_as_an_argument() -> None:
    def forward(m: Any, data: Any, *_: Any) -> Any:
        if not isinstance(data, Data) or isinstance(data, Tensor) or not isinstance(data.x + 1, Tensor):
            raise TypeError
        data["seen"] = data.x
        h = m.one(data.x, data.edge_index)
        if data.edge_attr is not None:
            h = h.relu()
        return m.norm(m.two(h, data.edge_index))

    x, edge_index = graph()
    data = Data(x=x, edge_index=edge_index)
    model = drawn(Made(forward, one=conv(P, 128), two=conv(128, Q), norm=nn.BatchNorm1d(Q)))
    folded = fold(model, data)
    assert "seen" not in data  # which is as it was
    assert names(folded) == ["two, norm"]  # torch.fx takes all attributes to be there
    assert_same(folded, model, data)


def test_constants_and_containers_of_the_call() -> None:
    def forward(m: Any, x: Any, e: Any, other: Any) -> Any:
        x = x if isinstance(x, Tensor) else x[0]
        rows, _ = x.shape
        x = m.norm(m.conv(x, e)).view(rows, x.size(0) // rows * H)
        for _ in range(1 if other is None else other["times"]):
            x = x.relu()
        return x if other is None else x[other["index"]]

    x, e = graph()
    model = drawn(Made(forward, conv=conv(), norm=nn.BatchNorm1d(H)))
    for kwargs in ({}, {"other": {"index": torch.tensor([1, 2]), "times": 3}}):
        folded = fold(model, x, edge_index=e, **kwargs)
        assert names(folded) == ["conv, norm"]
        assert_same(folded, model, x, edge_index=e, **kwargs)


@pytest.mark.parametrize(
    "look",
    [lambda x: x.shape[0] > 3, lambda x: isinstance(x, Tensor) and x.sum() > 0, lambda x: range(len(x))],
    ids=["shape", "value", "length"],
)
def test_a_forward_that_depends_on_the_call(look: Callable[[Any], Any]) -> None:
    model = drawn(Made(lambda m, x, e, _: m.norm(m.conv(x, e)) if look(x) else x, conv=conv(), norm=nn.BatchNorm1d(H)))
    for args in ((), graph()):
        with pytest.raises(
            ValueError, match=r"^model: expected a model that torch.fx can trace, got Made: .*values or"
        ):
            fold(model, *args)


class Deep(nn.Module):
    """A part whose forward needs numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.norm = nn.Linear(H, H), nn.BatchNorm1d(H)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.lin(x)) if bool((x > 0).any()) else x.numpy()


def test_a_part_that_cannot_be_followed() -> None:
    model, x = drawn(nn.Sequential(nn.Linear(P, H), nn.BatchNorm1d(H), Deep())), image(N, P)
    folded = fold(model)
    assert names(folded) == ["0, 1"]
    assert "control flow" in folded.left["2"]
    assert_same(folded, model, x)
    assert names(fold(model, x)) == ["0, 1"]


def test_a_layer_that_a_hidden_part_calls_too() -> None:
    deep = Deep()
    model = drawn(Made(lambda m, x, *_: m.norm(m.lin(m.deep(x))), deep=deep, lin=deep.lin, norm=nn.BatchNorm1d(H)))
    folded = fold(model)
    assert folded.folded == []
    assert_same(folded, model, image(N, H))


def test_a_layer_alone() -> None:
    for layer in (nn.Linear(3, 2), conv(), pyg.GCNConv(3, 2), nn.ReLU()):
        assert fold(layer.eval()).folded == []


def test_what_was_of_torch_stays_of_torch() -> None:
    """With the numbers that torch's own layers have, and called as they are."""
    layers = {
        nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2): nn.BatchNorm1d(6),
        nn.Conv2d(4, 6, (1, 3), padding="same", padding_mode="reflect", bias=False): nn.BatchNorm2d(6),
        nn.Conv2d(4, 8, 3, groups=4): nn.BatchNorm2d(8),
        nn.Conv2d(4, 4, 3, groups=4): nn.BatchNorm2d(4),
        nn.Conv3d(4, 6, 2): nn.BatchNorm3d(6),
        nn.ConvTranspose1d(4, 6, 3, 2, 1, 1, groups=2): nn.BatchNorm1d(6),
        nn.ConvTranspose2d(4, 4, 3, dilation=2, groups=4): nn.BatchNorm2d(4),
        nn.ConvTranspose3d(4, 6, 2): nn.BatchNorm3d(6),
    }
    for layer, norm in layers.items():
        model, axes = drawn(nn.Sequential(layer, norm)), len(layer.kernel_size)
        folded = fold(model)
        assert type(folded[0]) is type(layer)
        assert repr(folded[0]).replace(", bias=False", "") == repr(layer).replace(", bias=False", "")
        assert folded[0].weight.is_contiguous()
        assert_same(folded, model, image(2, 4, *[9] * axes))
    model = drawn(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))).to(memory_format=torch.channels_last)
    assert fold(model)[0].weight.is_contiguous(memory_format=torch.channels_last)
    lines = drawn(nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2)))
    folded = fold(lines)
    assert repr(folded[0]) == "Linear(in_features=4, out_features=2, bias=True)"
    assert_same(folded, lines, image(4))


@pytest.mark.cuda
def test_on_a_device() -> None:
    model, (x, edge_index) = drawn(Net(pyg.GCNConv)).cuda(), graph()
    args = x.cuda(), edge_index.cuda()
    folded = fold(model, *args)
    assert names(folded) == ["first, conv1, norm", "conv2, lin"]
    assert {p.device.type for p in folded.parameters()} == {"cuda"}
    assert_same(folded, model, *args)


@pytest.mark.slow
def test_compiled() -> None:
    model, args = drawn(Net(pyg.GCNConv)), graph()
    compiled = torch.compile(fold(model), backend="eager")
    assert_same(compiled, model, *args)


def test_folded_again() -> None:
    model, args = drawn(Net(pyg.GCNConv)), graph()
    once = fold(model)
    again = fold(once, *args)
    assert again.folded == []
    assert_same(again, model, *args)
    chain = drawn(nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.Conv2d(64, 3, 3)))
    assert names(fold(fold(chain), image())) == ["0, 2"]
    assert_same(fold(fold(chain), image()), chain, image())


def test_checkpoints() -> None:
    model, args = drawn(Net(pyg.GCNConv)), graph()
    folded = fold(model)
    other = copy.deepcopy(folded)
    drawn(other)
    other.load_state_dict(folded.state_dict())
    assert_same(other, model, *args)
    file = io.BytesIO()
    torch.save(folded, file)
    file.seek(0)
    assert_same(torch.load(file, weights_only=False), model, *args)
    with pytest.raises(RuntimeError, match="state_dict"):
        folded.load_state_dict(model.state_dict())


def test_gradients_and_frozen_parameters() -> None:
    model = drawn(nn.Sequential(nn.Linear(P, H), nn.BatchNorm1d(H), nn.ReLU(), nn.Linear(H, H), nn.BatchNorm1d(H)))
    model[0].requires_grad_(False)
    model[1].requires_grad_(False)
    folded, x = fold(model), image(N, P).requires_grad_()
    assert [p.requires_grad for p in folded.parameters()] == [False] * 2 + [True] * 2
    ours, theirs = (torch.autograd.grad(f(x).square().sum(), x)[0] for f in (folded, model))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.float16, 1e-2), (torch.bfloat16, 1e-1)],
    ids=["float32", "float16", "bfloat16"],
)
def test_float_types(dtype: torch.dtype, tolerance: float) -> None:
    exact = drawn(nn.Sequential(nn.Linear(P, H), nn.BatchNorm1d(H), nn.Linear(H, Q)), dtype).double()
    x = image(N, P).to(dtype)
    folded = fold(copy.deepcopy(exact).to(dtype))
    with torch.no_grad():
        y, wanted = folded(x), exact(x.double())
    assert y.dtype == dtype
    assert {p.dtype for p in folded.parameters()} == {dtype}
    assert float((y.double() - wanted).norm() / wanted.norm()) < tolerance


def test_parameters_of_two_types_stay() -> None:
    model = nn.Sequential(nn.Linear(P, H), nn.BatchNorm1d(H).double()).eval()
    assert fold(model).left == {"0 and 1": "they differ in dtype or device"}


def test_lazy_layers_stay() -> None:
    model = nn.Sequential(nn.LazyLinear(H), nn.BatchNorm1d(H)).eval()
    assert fold(model).folded == []
    model = Made(lambda m, x, e, _: m.norm(m.conv(x, e)), conv=BasisConv(-1, H, GCN), norm=nn.BatchNorm1d(H)).eval()
    assert fold(model, *(t.float() if t.is_floating_point() else t for t in graph())).folded == []


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(2, 2), "model: expected a model in eval mode, got one in training mode; call model.eval"),
        (
            nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval(),
            "model: expected a model in eval mode, got a batch norm in training mode, 1;",
        ),
        (lambda x: x, "model: expected a model, got function"),
        (
            Made(lambda m, x, *_: m.lin(x) if x.sum() > 0 else x, lin=nn.Linear(2, 2)).eval(),
            "got Made: TraceError: symbolically traced variables cannot be used as inputs to control flow; fold those",
        ),
        (Made(lambda m, x, *_: torch.from_numpy(x.numpy()), lin=nn.Linear(2, 2)).eval(), "can trace, got Made: "),
    ],
    ids=["training", "batch norm in training", "a function", "values", "numpy"],
)
def test_bad_models(model: Any, message: str) -> None:
    if isinstance(model, nn.Sequential):
        model[1].train()
    with pytest.raises(ValueError, match=message):
        fold(model)


def test_a_call_that_fails() -> None:
    model = drawn(nn.Sequential(nn.Linear(P, H), nn.BatchNorm1d(H)))
    with pytest.raises(ValueError, match=r"got Sequential: RuntimeError: mat1 and mat2 .*such as model.encoder"):
        fold(model, image(N, P + 1))


BITES: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "the variance without eps": (folding, "of_norm", lambda f: lambda norm: f(_with_eps(norm))),
    "no shift": (folding, "after", lambda f: lambda layer, affine: f(layer, affine._replace(shift=None))),
    "no bias before": (folding, "before", lambda f: lambda affine, layer: f(affine._replace(shift=None), layer)),
    "constants that stay": (rewrites, "keeps_constants", lambda f: lambda basis: True),
    "rows for columns": (rewrites, "followed", lambda f: lambda kind, matrix: f(kind, matrix.flip(-1))),
    "what is between": (
        tracing,
        "returns_argument",
        lambda f: lambda node, parts: node.target == "act" or f(node, parts),
    ),
    "all graphs are one": (tracing, "same_argument", lambda f: lambda a, b: True),
}


def _with_eps(norm: Any) -> Any:
    norm = copy.deepcopy(norm)
    norm.eps = 0.0
    return norm


@pytest.mark.parametrize("kind", BITES)
@pytest.mark.sweep(2)
def test_what_is_wrong_shows(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(m: Any, x: Any, e: Any, _: Any) -> Any:
        return m.norm(m.last(m.act(m.two(m.one(m.lin(x), e), e.flip(0)))))

    parts = {"one": conv(H, 256), "two": conv(256, Q), "act": nn.ReLU(), "norm": nn.BatchNorm1d(Q)}
    model = drawn(Made(forward, lin=nn.Linear(P, H), last=nn.Linear(Q, Q), **parts))
    with torch.no_grad():
        model.norm.eps = 0.1
    where, name, wrong = BITES[kind]
    args = graph()
    assert_same(fold(model, *args), model, *args)
    monkeypatch.setattr(where, name, wrong(getattr(where, name)))
    with pytest.raises(
        ValueError, match="a forward that does the same with folded layers, got a diff"
    ):  # fold sees it itself
        fold(model, *args)
    monkeypatch.setattr(folding, "_check_same", lambda *_: None)
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        assert_same(fold(model, *args), model, *args)


def test_a_copy_that_gives_something_else_is_refused() -> None:
    """What torch.fx does not see: that an attribute of an argument is not there."""

    def forward(m: nn.Module, data: Data, *_: Any) -> Tensor:
        h = m.lin(data.x)
        return m.norm(h if data.edge_attr is not None else h.relu())

    model, (x, _) = drawn(Made(forward, lin=nn.Linear(P, H), norm=nn.BatchNorm1d(H))), graph()
    with pytest.raises(
        ValueError, match=r"^model: expected a forward that does the same with folded layers, got a diff"
    ):
        fold(model, Data(x=x))


def test_names_that_are_taken() -> None:
    model = drawn(Made(lambda m, x, *_: m.left(x), left=nn.Linear(P, H), norm=nn.BatchNorm1d(H)))
    with pytest.raises(ValueError, match=r"^model: expected one without an attribute of the name folded or left"):
        fold(model)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*")
def test_a_model_that_cannot_be_copied() -> None:
    model = drawn(nn.Sequential(nn.utils.weight_norm(nn.Linear(P, H)), nn.BatchNorm1d(H)))
    model(image(N, P))
    with pytest.raises(ValueError, match=r"^model: expected one that can be copied by copy.deepcopy"):
        fold(model)


def test_an_example_of_data_is_not_changed() -> None:
    def forward(m: nn.Module, data: Data, *_: Any) -> Tensor:
        return m.norm(m.conv(data.x.mul_(2), data.edge_index))

    x, e = graph()
    data = Data(x=x.clone(), edge_index=e)
    fold(drawn(Made(forward, conv=pyg.GCNConv(P, H), norm=pyg.BatchNorm(H))), data)
    assert torch.equal(data.x, x)
