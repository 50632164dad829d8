"""Families whose weights are functions of the edges' features, against loops over the edges."""

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.explain import Explainer, GNNExplainer

from pyg_basisconv import BasisConv, bases, theta
from tests.contract import close

DOUBLE = torch.float64
M, N, P, Q, E, D = 6, 5, 4, 3, 17, 2


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def edges(M: int = M, N: int = M) -> Tensor:
    """Some repeat, and the last target has none."""
    g = torch.Generator().manual_seed(1)
    found = torch.stack([torch.randint(M, (E,), generator=g), torch.randint(N - 1, (E,), generator=g)])
    found[:, 3] = found[:, 5]
    return found


def network(units: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(D, units), nn.Tanh()).double()


def gaussians(K: int = 4, **options: Any) -> bases.Basis:
    torch.manual_seed(0)
    return bases.Gaussians(K, D, **options).double()


# Each family, and w_k(a) of one edge by the definition.


def gaussian(basis: Any, a: list[float]) -> list[float]:
    pairs = zip(basis.mean.tolist(), basis.width.tolist(), strict=True)
    return [math.exp(-sum((x - m) ** 2 / (2 * s * s) for x, m, s in zip(a, ms, ss, strict=True))) for ms, ss in pairs]


def of_network(basis: Any, a: list[float]) -> list[float]:
    return basis.network(torch.tensor(a, dtype=DOUBLE)).tolist() + [1.0] * basis.constant


def cox_de_boor(i: int, degree: int, v: float) -> float:
    """The B-spline of knots i, i + 1, ..."""
    if degree == 0:
        return float(i <= v < i + 1)
    left = (v - i) / degree * cox_de_boor(i, degree - 1, v)
    return left + (i + degree + 1 - v) / degree * cox_de_boor(i + 1, degree - 1, v)


def spline(basis: Any, a: list[float]) -> list[float]:
    axes = []
    for x, n, is_open in zip(a, basis.kernel_size, basis.is_open, strict=True):
        degree, points = basis.degree, [0.0] * n
        v = x * (n - degree if is_open else n)
        v = math.nextafter(v, 0) if is_open and x == 1 else v
        for j in range(-degree, n):
            points[(j + degree) % n] += cox_de_boor(j, degree, v)
        axes.append(points)
    return [math.prod(some) for some in map(reversed, product(*reversed([list(p) for p in axes])))]


FAMILIES: dict[str, tuple[Callable[[], bases.Basis], Callable[[Any, list[float]], list[float]]]] = {
    "Gaussians": (gaussians, gaussian),
    "Gaussians-mean": (lambda: gaussians(norm="mean"), gaussian),
    "EdgeNetwork": (lambda: bases.EdgeNetwork(network(), 3), of_network),
    "EdgeNetwork-no-constant": (lambda: bases.EdgeNetwork(network(), 3, constant=False, norm="mean"), of_network),
    "Spline": (lambda: bases.Spline((3, 4)), spline),
    "Spline-closed": (lambda: bases.Spline((3, 4), is_open=False), spline),
    "Spline-2": (lambda: bases.Spline((4, 3), degree=2, is_open=(True, False)), spline),
    "Spline-3-mean": (lambda: bases.Spline((5, 4), degree=3, norm="mean"), spline),
}
families = pytest.mark.parametrize("name", FAMILIES)


def matrices(name: str, basis: Any, index: Tensor, a: Tensor, sizes: tuple[int, int], weight: Tensor | None) -> Tensor:
    """(K, M, N) by a loop over the edges."""
    found = torch.zeros(basis.K, *sizes, dtype=DOUBLE)
    degree = torch.bincount(index[1], minlength=sizes[1])
    for e, (m, n) in enumerate(index.t().tolist()):
        share = 1 / int(degree[n]) if basis.norm == "mean" else 1.0
        share *= 1.0 if weight is None else float(weight[e])
        for k, w in enumerate(FAMILIES[name][1](basis, a[e].tolist())):
            found[k, m, n] += w * share
    return found


@families
@pytest.mark.parametrize("weighted", [False, True], ids=["ones", "edge-weights"])
def test_matrices_are_those_of_loops(name: str, weighted: bool) -> None:
    basis, index, a = FAMILIES[name][0](), edges(), drawn(E, D)
    a[0], a[1] = torch.zeros(D), torch.ones(D)
    weight = drawn(E, seed=2) if weighted else None
    conv = BasisConv(P, Q, basis).double()
    x, A = drawn(M, P), matrices(name, basis, index, a, (M, M), weight)
    y, bound = conv(x, index, weight, edge_attr=a, return_attention=True)
    close(bound.to_coo().to_dense(), A)
    close(y, torch.einsum("kmn,mp,kpq->nq", A, x, conv.weight) + conv.bias)


@families
@pytest.mark.parametrize("order", ["a_first", "theta_first", "phi"])
@pytest.mark.parametrize("kind", ["full", "separable", "concat"])
def test_every_order_and_all_gradients(name: str, order: str, kind: str) -> None:
    basis, index, a = FAMILIES[name][0](), edges(M, N), drawn(E, D, seed=3).requires_grad_()
    made = {"full": theta.Full(), "separable": theta.Separable(2), "concat": theta.Pass(combine="concat")}[kind]
    conv = BasisConv(P, P * basis.K if kind == "concat" else Q, basis, made, order=order).double()
    x = drawn(2, M, P).requires_grad_()
    A = conv(x, index, edge_attr=a, size=(M, N), return_attention=True)[1].to_dense()
    expected = conv.theta.contract(torch.einsum("kmn,bmp->kbnp", A, x)) + conv.bias
    found = conv(x, index, edge_attr=a, size=(M, N))
    close(found, expected)
    leaves = [x, a, *conv.parameters()]
    for mine, theirs in zip(
        torch.autograd.grad(found.square().sum(), leaves),
        torch.autograd.grad(expected.square().sum(), leaves),
        strict=True,
    ):
        close(mine, theirs)


@families
def test_gradients_are_those_of_differences(name: str) -> None:
    conv, index = BasisConv(P, 2, FAMILIES[name][0]()).double(), edges()
    x, a = drawn(M, P).requires_grad_(), drawn(E, D, seed=4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, a: conv(x, index, edge_attr=a), (x, a))
    assert torch.autograd.gradgradcheck(lambda x, a: conv(x, index, edge_attr=a), (x, a))


@families
def test_sums_products_and_pairs(name: str) -> None:
    make, index, a = FAMILIES[name][0], edges(M, N), drawn(E, D)
    x, target = drawn(M, P), drawn(N, P)
    both = BasisConv(P, Q, make() + bases.Identity()).double()
    y, A = both((x, target), index, edge_attr=a, return_attention=True)
    own = torch.einsum("kmn,mp,kpq->nq", A.to_dense()[:-1, :M], x, both.weight[:-1])
    close(y, own + target @ both.weight[-1] + both.bias)
    twice = BasisConv(P, Q, make() @ bases.Adjacency("mean")).double()
    index = edges()
    alone = BasisConv(P, Q, make(), theta.Pass() if make().K == 1 else theta.Full()).double()
    first = alone(x, index, edge_attr=a, return_attention=True)[1].to_dense()
    second = bases.Adjacency("mean").bind(index, size=M, dtype=DOUBLE).to_dense()
    expected = torch.einsum("kml,oln,mp,kpq->nq", first, second, x, twice.weight) + twice.bias
    close(twice(x, index, edge_attr=a), expected)


@families
def test_nothing_is_stale(name: str) -> None:
    """Features that change in place, other features, other parameters, another graph."""
    torch.manual_seed(0)
    conv, index, a, x = BasisConv(P, Q, FAMILIES[name][0]()).double(), edges(), drawn(E, D), drawn(M, P)

    def fresh() -> Tensor:
        other = BasisConv(P, Q, FAMILIES[name][0]()).double()
        other.load_state_dict(conv.state_dict())
        return other(x.clone(), index.clone(), edge_attr=a.clone())

    for _ in range(3):
        close(conv(x, index, edge_attr=a), fresh())
    a.data.mul_(0.5)
    close(conv(x, index, edge_attr=a), fresh())
    for p in conv.parameters():
        p.data.mul_(0.7)
    close(conv(x, index, edge_attr=a), fresh())
    index[:, 0] = index[:, 1]
    close(conv(x, index, edge_attr=a), fresh())


@families
def test_a_graph_without_edges(name: str) -> None:
    conv = BasisConv(P, Q, FAMILIES[name][0]()).double()
    y = conv(drawn(M, P), edges()[:, :0], edge_attr=drawn(0, D))
    close(y, conv.bias.expand(M, Q))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@families
def test_precisions(name: str, dtype: torch.dtype) -> None:
    conv, index, a, x = BasisConv(P, Q, FAMILIES[name][0]()).double(), edges(), drawn(E, D), drawn(M, P)
    a = a.to(dtype).double()
    narrow = BasisConv(P, Q, FAMILIES[name][0]()).to(dtype)
    narrow.load_state_dict(conv.state_dict())
    y = narrow(x.to(dtype), index, edge_attr=a.to(dtype))
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), conv(x, index, edge_attr=a), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", ["Gaussians", "EdgeNetwork", "Spline"])
def test_explained(name: str) -> None:
    """A mask of zeros for one edge is its removal."""
    conv, index, a, x = BasisConv(P, Q, FAMILIES[name][0]()).double(), edges(), drawn(E, D), drawn(M, P)
    mask = torch.ones(E, dtype=DOUBLE)
    mask[4] = 0
    conv.explain, conv._edge_mask, conv._apply_sigmoid = True, nn.Parameter(mask), False
    left = torch.arange(E) != 4
    conv._loop_mask = torch.ones(E, dtype=torch.bool)
    masked = conv(x, index, edge_attr=a)
    conv.explain = False
    close(masked, conv(x, index[:, left], edge_attr=a[left]))
    about = {"mode": "regression", "task_level": "node", "return_type": "raw"}
    kinds = {"explanation_type": "model", "edge_mask_type": "object", "node_mask_type": None}
    model = BasisConv(P, 1, FAMILIES[name][0]()).double()
    found = Explainer(model, GNNExplainer(epochs=2), model_config=about, **kinds)(x, index, edge_attr=a)
    assert found.edge_mask.shape == (E,)


def test_transforms_see_the_same() -> None:
    conv, index, a, x = BasisConv(P, Q, bases.Spline((3, 4))).double(), edges(), drawn(E, D), drawn(M, P)
    y = conv(x, index, edge_attr=a)
    several = torch.func.vmap(lambda x: conv(x, index, edge_attr=a, size=(M, M)))(torch.stack([x, 2 * x]))
    close(several[0], y)
    slope = torch.func.jvp(lambda x: conv(x, index, edge_attr=a, size=(M, M)), (x,), (x,))[1]
    close(slope, y - conv.bias)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "no-attributes": (lambda: gaussians(), "edge_attr: expected features of the edges"),
    "width": (lambda: (gaussians(), drawn(E, 3)), "edge_attr: expected 2 features of each edge"),
    "rows": (lambda: (gaussians(), drawn(E - 1, 2)), "edge_attr: expected one row per edge"),
    "pairs": (lambda: (gaussians(), drawn(M, M, 2)), r"edge_attr: expected shape \(E, D\)"),
    "outside": (lambda: (bases.Spline((3, 3)), drawn(E, 2) + (torch.arange(E) == 7)[:, None]), "at edge 7"),
    "nan": (lambda: (bases.Spline((3, 3)), drawn(E, 2).log().sqrt()), r"expected numbers in \[0, 1\]"),
    "axes": (lambda: (bases.Spline((3, 3)), drawn(E, 3)), "edge_attr: expected 2 features of each edge, one for each"),
    "units": (lambda: (bases.EdgeNetwork(network(), 4), drawn(E, 2)), r"network: expected one that gives \(E, 4\)"),
    "points": (lambda: bases.Spline((3, 1)), "kernel_size: expected more than 1 control points"),
    "degree": (lambda: bases.Spline((9, 9), degree=4), "degree: expected an integer from 1 to 3"),
    "ends": (lambda: bases.Spline((3, 3), is_open=(True,)), "is_open: expected one flag, or one for each of 2 axes"),
    "norm": (lambda: bases.Gaussians(3, 2, norm="sym"), "norm: expected None or 'mean'"),
    "network": (lambda: bases.EdgeNetwork(torch.relu, 4), "network: expected a Module"),
    "no-layer": (lambda: gaussians().bind(edges()), "call the layer with edge_attr="),
}


@pytest.mark.parametrize("name", WRONG)
def test_refused(name: str) -> None:
    make, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        found = make()
        basis, a = found if isinstance(found, tuple) else (found, None)
        BasisConv(P, Q, basis).double()(drawn(M, P), edges(), edge_attr=a)


@families
def test_prints_what_makes_it(name: str) -> None:
    basis = FAMILIES[name][0]()
    if not isinstance(basis, bases.EdgeNetwork):
        assert repr(eval(repr(basis), vars(bases))) == repr(basis)
    assert "\n" not in repr(basis)


@pytest.mark.parametrize("broken", ["points", "share", "ends"])
def test_wrong_variants_fail(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyg_basisconv.bases import attributes

    if broken == "points":
        monkeypatch.setitem(attributes._PIECES, 1, (lambda r: r, lambda r: 1 - r))
    elif broken == "share":
        monkeypatch.setattr(attributes, "_over_in_degree", lambda graph: torch.ones(graph.E, dtype=DOUBLE))
    else:
        monkeypatch.setattr(attributes, "prod", lambda some: max([1, *some]))
    name = {"share": "Gaussians-mean"}.get(broken, "Spline-3-mean" if broken == "ends" else "Spline")
    with pytest.raises((AssertionError, RuntimeError, ValueError, IndexError)):
        test_matrices_are_those_of_loops(name, False)
