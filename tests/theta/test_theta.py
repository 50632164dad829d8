"""What is particular to a kind of parameter; that all of them are the formula is in the contract."""

import copy
import pickle
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from pyg_basisconv import BasisConv, GridConv, bases, theta
from tests import cases, contract, oracle
from tests.contract import DOUBLE, PATHS, THETAS, call, close, draw, expected, layers, make, take, tensors, widths

NEW = (
    "Grouped",
    "Kernel",
    "Kernel(transposed)",
    "Separable",
    "Separable(depthwise)",
    "Pass(scale)",
    "Pass(concat)",
    "Pass(split)",
)
MATRICES = (lambda: bases.Powers(3), cases.graph, lambda g: oracle.powers(oracle.adjacency(g, "sym"), 3))
POWERS, X = bases.Powers(3), torch.ones(5, 4)
EDGES = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])


class HalfMade(theta.Theta):
    def __init__(self) -> None:
        self.dim = 3


REFUSED: dict[str, tuple[str, Callable[[], Any]]] = {
    "groups 0": ("groups", lambda: theta.Grouped(0)),
    "groups True": ("groups", lambda: theta.Grouped(True)),
    "groups a float": ("groups", lambda: theta.Grouped(2.0)),
    "groups a word": ("groups", lambda: theta.Grouped("2")),
    "groups and P": ("groups", lambda: BasisConv(5, 4, POWERS, theta.Grouped(2))),
    "groups and Q": ("groups", lambda: BasisConv(4, 5, POWERS, theta.Grouped(2))),
    "groups and Q, where P is open": ("groups", lambda: BasisConv(-1, 5, POWERS, theta.Grouped(2))),
    "groups and P, found in the call": ("groups", lambda: BasisConv(-1, 6, POWERS, theta.Grouped(3))(X, EDGES)),
    "out_channels of groups": ("out_channels", lambda: BasisConv(4, -1, POWERS, theta.Grouped(2), bias=False)),
    "size of another window": ("size", lambda: GridConv(4, 4, bases.Window(None, (3, 3)), theta.Kernel((3, 2)))),
    "size a number": ("size", lambda: theta.Kernel(3)),
    "size of no axis": ("size", lambda: theta.Kernel(())),
    "size 0": ("size", lambda: theta.Kernel((3, 0))),
    "groups of a kernel": ("groups", lambda: GridConv(4, 5, bases.Window(None, (3, 3)), theta.Kernel((3, 3), 2))),
    "transposed a word": ("transposed", lambda: theta.Kernel((3, 3), transposed="yes")),
    "H 0": ("H", lambda: theta.Separable(0)),
    "H True": ("H", lambda: theta.Separable(True)),
    "H a float": ("H", lambda: theta.Separable(1.0)),
    "depthwise a number": ("depthwise", lambda: theta.Separable(1, 2)),
    "out_channels of mixtures": ("out_channels", lambda: BasisConv(4, -1, POWERS, theta.Separable(), bias=False)),
    "scale nan": ("scale", lambda: theta.Pass(float("nan"))),
    "scale infinite": ("scale", lambda: theta.Pass([1.0, float("inf")])),
    "scale True": ("scale", lambda: theta.Pass(True)),
    "scale None": ("scale", lambda: theta.Pass(None)),
    "scale a word": ("scale", lambda: theta.Pass("mean")),
    "scale words": ("scale", lambda: theta.Pass(["a", "b"])),
    "scale a tensor": ("scale", lambda: theta.Pass(torch.ones(3))),
    "scale of other K": ("scale", lambda: BasisConv(4, 4, POWERS, theta.Pass([1.0, 2.0]))),
    "scale none": ("scale", lambda: BasisConv(4, 4, POWERS, theta.Pass([]))),
    "combine": ("combine", lambda: theta.Pass(combine="mean")),
    "out_channels of a sum": ("out_channels", lambda: BasisConv(4, 12, POWERS, theta.Pass())),
    "out_channels of a sum, open": ("out_channels", lambda: BasisConv(-1, 4, POWERS, theta.Pass())),
    "out_channels side by side": ("out_channels", lambda: BasisConv(4, 4, POWERS, theta.Pass(combine="concat"))),
    "out_channels side by side, open": (
        "out_channels",
        lambda: BasisConv(-1, 12, POWERS, theta.Pass(combine="concat")),
    ),
    "in_channels of their own": ("in_channels", lambda: BasisConv(4, 4, POWERS, theta.Pass(combine="split"))),
    "in_channels of their own, found in the call": (
        "in_channels",
        lambda: BasisConv(-1, -1, POWERS, theta.Pass(combine="split"), bias=False)(X, EDGES),
    ),
    "out_channels of their own": ("out_channels", lambda: BasisConv(6, 3, POWERS, theta.Pass(combine="split"))),
    "in_channels open": ("out_channels", lambda: BasisConv(4, -1, POWERS, theta.Pass(), bias=False)),
    "width": ("width", lambda: theta.Pass().build(3, -1, -1).dense()),
    "a constructor that forgets that of Theta": ("theta", lambda: BasisConv(4, 4, POWERS, HalfMade())),
    "two parameters of any width": ("first", lambda: theta.Chain(*(theta.Pass().build(1, -1, -1) for _ in range(2)))),
    "two layers of other sizes": (
        "theta",
        lambda: BasisConv(3, 5, POWERS, theta.Chain(theta.Full().build(3, 3, 4), theta.Full().build(1, 4, 4))),
    ),
    **{
        f"{kind} of two layers": ("theta", lambda kind=kind: THETAS[kind]().build(3, 4, 12).build(3, 8, 24))
        for kind in ("Grouped", "Separable", "Separable(depthwise)", "Pass(concat)")
    },
}


@pytest.mark.parametrize(("argument", "make_it"), REFUSED.values(), ids=REFUSED)
def test_refused(argument: str, make_it: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=rf"(?s)^{argument}: expected .*, got .*; .+") as caught:
        make_it()
    assert len(str(caught.value)) < 200


def test_a_refused_width_leaves_it_open() -> None:
    conv = BasisConv(-1, 6, POWERS, theta.Grouped(3))
    with pytest.raises(ValueError, match=r"^groups: "):
        conv(X, EDGES)
    assert conv.theta.P == -1
    assert conv(torch.ones(5, 9), EDGES).shape == (5, 6)


COUNTS = {
    # name: (kind, K, P, Q, numbers)
    "groups": (lambda: theta.Grouped(4), 9, 8, 12, 9 * 8 * 12 // 4),
    "one group": (lambda: theta.Grouped(1), 9, 8, 12, 9 * 8 * 12),
    "a kernel": (lambda: theta.Kernel((3, 3), 4), 9, 8, 12, 9 * 8 * 12 // 4),
    "a transposed kernel": (lambda: theta.Kernel((3, 3), 4, transposed=True), 9, 8, 12, 9 * 8 * 12 // 4),
    "mixtures": (lambda: theta.Separable(3), 9, 8, 12, 3 * (9 + 8 * 12)),
    "depthwise separable": (lambda: theta.Separable(depthwise=True), 9, 8, 12, 9 * 8 + 8 * 12),
    "two of them": (lambda: theta.Separable(2, depthwise=True), 9, 8, 12, 2 * 8 * (9 + 12)),
    "none": (lambda: theta.Pass(0.5), 9, 8, 8, 0),
    "none, side by side": (lambda: theta.Pass(combine="concat"), 9, 8, 72, 0),
    "none, of channels of their own": (lambda: theta.Pass(combine="split"), 9, 72, 8, 0),
}


@pytest.mark.parametrize(("kind", "K", "P", "Q", "numbers"), COUNTS.values(), ids=COUNTS)
def test_numbers(kind: Callable[[], theta.Theta], K: int, P: int, Q: int, numbers: int) -> None:
    built = kind().build(K, P, Q)
    assert sum(p.numel() for p in built.parameters()) == numbers
    assert not list(built.buffers())
    assert built.dense().shape == (K, P, Q)
    assert (built.inputs(Q), built.outputs(P)) == (P, Q)


@pytest.mark.parametrize("kind", NEW)
def test_features_of_any_shape(kind: str) -> None:
    g, A = cases.graph(), MATRICES[2](cases.graph())
    for _, conv in layers(POWERS, kind, PATHS[1:]):
        P = conv.in_channels
        views = [draw(*batch, g.M, P) for batch in ((), (1,), (2, 3), (0,), (2, 0))]
        views += [draw(P, g.M).t(), draw(2, g.M * 2, 2 * P)[:, ::2, ::2], draw(1, P).expand(2, g.M, P)]
        for x in [*views, draw(g.M, 2, P).movedim(0, 1)]:
            close(call(conv, x, g), expected(conv, A, x, kind))


@pytest.mark.parametrize("kind", NEW)
def test_no_nodes(kind: str) -> None:
    nothing = torch.empty(2, 0, dtype=torch.long)
    for _, conv in layers(POWERS, kind, PATHS[1:]):
        assert conv(draw(0, conv.in_channels), nothing).shape == (0, conv.out_channels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", NEW)
@pytest.mark.sweep(6)
def test_precision(kind: str, dtype: torch.dtype) -> None:
    """As the contract's check for free matrices, for which errors are measured against the sizes of the terms."""
    g, A = cases.graph(), MATRICES[2](cases.graph())
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for path, conv in layers(POWERS, kind, dtype=dtype):
        x = draw(2, g.M, conv.in_channels, dtype=dtype)
        y, right = call(conv, x, g, **tensors(g, dtype)), expected(conv, A, x, kind).detach()
        assert y.dtype == dtype, path
        torch.testing.assert_close(y.double(), right, rtol=tolerance, atol=tolerance * float(right.abs().max()))


@pytest.mark.parametrize("kind", NEW)
def test_autocast(kind: str) -> None:
    g, A = cases.graph(), MATRICES[2](cases.graph())
    for path, conv in layers(POWERS, kind, dtype=torch.float32):
        x = draw(2, g.M, conv.in_channels, dtype=torch.float32).requires_grad_()
        right = expected(conv, A, x, kind).detach()
        with torch.autocast("cpu", torch.bfloat16):
            y = call(conv, x, g, **tensors(g, torch.float32))
        torch.testing.assert_close(y.double(), right, rtol=5e-2, atol=5e-2 * float(right.abs().max()), msg=path)
        y.sum().backward()
        assert all(p.grad.dtype == torch.float32 for p in (x, *conv.parameters()))


class Largest(TorchDispatchMode):
    """The size of the largest dense tensor that is made."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and made.layout == torch.strided:
            self.numbers = max(getattr(self, "numbers", 0), made.numel())
        return made


def applied(built: theta.Theta, x: Tensor) -> Iterator[Tensor]:
    """By project, and by contract."""
    z = built.project(x)
    yield z if isinstance(z, Tensor) else torch.stack([*z])
    yield built.contract([x if x.layout == torch.strided else x.to_dense()] * built.K)


def test_groups_are_never_written_out() -> None:
    K, P, Q, g, M = 3, 64, 96, 16, 2
    built = theta.Grouped(g).build(K, P, Q)
    for x in (torch.randn(M, P), torch.randn(M, P).relu().to_sparse_csr()):
        with Largest() as largest:
            y = [*applied(built, x)]
            sum(t.sum() for t in y).backward()
        assert largest.numbers <= K * P * Q // g
        products = torch.einsum("mp,kpq->kmq", x.to_dense(), built.dense())
        torch.testing.assert_close(y[0], products, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(y[1], products.sum(0), rtol=1e-4, atol=1e-5)


def flops(f: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        f()
    return counter.get_total_flops()


def test_products_are_no_more_than_needed() -> None:
    """Of multiplications of matrices: of blocks for groups, and H instead of K for mixtures."""
    K, P, Q, M = 9, 32, 48, 10
    x = torch.randn(M, P)
    groups = theta.Grouped(8).build(K, P, Q)
    assert flops(lambda: groups.project(x)) == flops(lambda: groups.contract([x] * K)) == 2 * K * M * P * Q // 8
    for H in (1, 2):
        mixtures = theta.Separable(H).build(K, P, Q)
        assert flops(lambda t=mixtures: t.contract([x] * K)) == 2 * H * M * P * Q
        assert flops(lambda t=mixtures: t.project(x)) == 2 * H * M * P * Q + 2 * K * H * M * Q
    many = theta.Separable(K).build(K, P, Q)  # mixing K products is more than making K
    assert flops(lambda: many.project(x)) == 2 * K * M * P * Q + flops(many.dense)
    separable = theta.Separable(depthwise=True).build(K, P, Q)
    assert flops(lambda: separable.contract([x] * K)) == 2 * M * P * Q


@pytest.mark.parametrize(("g", "P", "Q"), [(1, 4, 6), (2, 4, 6), (3, 9, 6), (4, 4, 8), (4, 8, 4), (6, 6, 6)])
def test_groups_as_torch_has_them(g: int, P: int, Q: int) -> None:
    x, peers = draw(5, P), [nn.Conv1d(P, Q, 1, groups=g, bias=False).double() for _ in range(3)]
    built = theta.Grouped(g).build(3, P, Q).double()
    with torch.no_grad():
        built.weight.copy_(torch.stack([p.weight.view(g, Q // g, P // g).transpose(1, 2) for p in peers]))
    right = torch.stack([p(x.t()).t() for p in peers])
    for z in (x, x.to_sparse_csr(), x.to_sparse_csc(), x.to_sparse_coo()):
        projected, contracted = applied(built, z)
        close(projected, right)
        close(contracted, right.sum(0))
    blocks = torch.stack([torch.block_diag(*w) for w in built.weight])
    close(built.dense(), blocks)
    for path in PATHS:
        free = take(BasisConv(P, Q, POWERS, bias=False).double(), path)
        free.weight.data = blocks
        grouped = take(BasisConv(P, Q, POWERS, theta.Grouped(g), bias=False).double(), path)
        grouped.weight.data = built.weight.data
        close(*(conv(x, EDGES) for conv in (grouped, free)))


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("H", [1, 2, 7])
def test_mixtures_written_out(H: int, depthwise: bool) -> None:
    K, P, Q = 4, 3, 5
    built = theta.Separable(H, depthwise).build(K, P, Q).double()
    right = torch.zeros(K, P, Q, dtype=DOUBLE)
    for k in range(K):
        for h in range(H):
            for p in range(P):
                c = built.mix[h, k, p] if depthwise else built.mix[h, k]
                right[k, p] += c.detach() * built.weight[h, p].detach()
    close(built.dense(), right)
    x = draw(6, P)
    for z in (x, x.to_sparse_csr()):
        projected, contracted = applied(built, z)
        close(projected, torch.einsum("mp,kpq->kmq", x, right))
        close(contracted, torch.einsum("mp,kpq->mq", x, right))


def test_depthwise_separable_by_hand() -> None:
    """Each channel is filtered by itself, and then the channels are mixed."""
    built = theta.Separable(depthwise=True).build(2, 2, 1)
    with torch.no_grad():
        built.mix.copy_(torch.tensor([[[1.0, 2], [3, 4]]]))
        built.weight.copy_(torch.tensor([[[1.0], [10]]]))
    assert built.dense().tolist() == [[[1], [20]], [[3], [40]]]
    assert built.contract([torch.tensor([[1.0, 1]]), torch.tensor([[1.0, 2]])]).tolist() == [[1 + 20 + 3 + 80]]


def test_results_of_values_are_drawn_for_the_sum_of_all_members() -> None:
    made = theta.LowRank(7).build(5, 3, 60)
    for _ in range(2):
        largest = float(made.output.detach().abs().max())
        assert 0.99 < largest / (6 / (5 * 7 + 60)) ** 0.5 <= 1
        made.reset_parameters()


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("H", [1, 4])
def test_initial_variance(H: int, depthwise: bool) -> None:
    torch.manual_seed(0)
    K, P, Q = 1000, 24, 72
    built = theta.Separable(H, depthwise).build(K, P, Q)
    for _ in range(2):
        assert float(built.dense().detach().square().mean() * (P + Q) / 2) == pytest.approx(1, abs=0.1)
        built.reset_parameters()


def test_initial_groups() -> None:
    """Each block is drawn as if it were alone."""
    torch.manual_seed(0)
    weight = theta.Grouped(4).build(9, 64, 32).weight.detach()
    assert float(weight.var() * (16 + 8) / 2) == pytest.approx(1, abs=0.05)
    assert float(weight.abs().max()) <= (6 / (16 + 8)) ** 0.5


REPRS = [
    "Pass()",
    "Pass(scale=0.25)",
    "Pass(scale=(1.0, 0.5))",
    "Pass(combine='concat')",
    "Pass(combine='split')",
    "Pass(scale=2.0, combine='concat')",
    "Split()",
    "Grouped(groups=2)",
    "Separable()",
    "Separable(H=3)",
    "Separable(depthwise=True)",
    "Separable(H=3, depthwise=True)",
]


@pytest.mark.parametrize("shown", REPRS)
def test_repr_is_a_value(shown: str) -> None:
    assert repr(eval(shown, vars(theta).copy())) == shown


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
@pytest.mark.parametrize("kind", NEW)
def test_copies(kind: str, copied: Callable[[BasisConv], BasisConv]) -> None:
    """Of a layer with its sizes, and of one without, which is drawn by itself."""
    g, conv = cases.graph(), make(POWERS, kind)
    x = draw(g.M, conv.in_channels)
    other = copied(conv)
    close(call(other, x, g), call(conv, x, g))
    assert not {p.data_ptr() for p in other.parameters()} & {p.data_ptr() for p in conv.parameters()}
    if kind.startswith("Pass"):
        return
    lazy = BasisConv(-1, conv.out_channels, POWERS, THETAS[kind]()).double()
    other = copied(lazy).double()  # pickled, torch's open parameters forget their dtype
    other.load_state_dict(lazy.state_dict())
    call(lazy, x, g)
    assert isinstance(other.theta.weight, UninitializedParameter)
    y = call(other, x, g)
    assert y.dtype == DOUBLE
    assert all(p.isfinite().all() and p.dtype == DOUBLE for p in other.parameters())
    other.reset_parameters()
    assert not torch.equal(call(other, x, g), y)


@pytest.mark.parametrize("kind", THETAS)
def test_blocks_are_the_matrices(kind: str) -> None:
    K = 3
    P, Q = widths(kind, K)
    for open_ in [False, True][: 1 + (kind in ("Pass", "Pass(scale)"))]:
        built = THETAS[kind]().build(K, *((-1, -1) if open_ else (P, Q))).double()
        blocks = built.blocks(P)
        if blocks is None:
            assert kind not in ("Full", "Depthwise", "Pass", "Pass(scale)", "Grouped", "Separable(depthwise)")
            continue
        weight, then = blocks
        right = torch.stack([torch.block_diag(*w) for w in weight])
        close(built.dense(P), right if then is None else right @ then)


@pytest.mark.parametrize(("H", "fewer"), [(1, True), (2, True), (3, False), (9, False)])
def test_blocks_of_mixtures(H: int, fewer: bool) -> None:
    """One product after the taps, where that is less than taps of P x Q."""
    for depthwise in (False, True):
        built = theta.Separable(H, depthwise).build(4, 3, 6).double()
        weight, then = built.blocks(3)
        assert weight.shape == ((4, 3, 1, H) if fewer else (4, 1, 3, 6))
        right = torch.stack([torch.block_diag(*w) for w in weight])
        close(built.dense(), right if then is None else right @ then)


def test_sparse_features_of_groups_are_fresh() -> None:
    conv = make(POWERS, "Grouped", "theta_first")
    g, dense = cases.graph(), draw(6, 4).relu()
    x = dense.to_sparse_csr()
    before = call(conv, x, g)
    close(call(conv, x, g), before)
    x.values().mul_(2)
    close(call(conv, x, g), call(conv, 2 * dense, g))


def test_pass_costs_nothing() -> None:
    x = draw(5, 2)
    for scale in (1.0, 1, [1.0, 1.0]):
        built = theta.Pass(scale).build(2, 2, 2)
        assert all(z is x for z in built.project(x))
        assert flops(lambda t=built: t.contract([x, x])) == 0
    assert theta.Pass().build(1, 2, 2).contract([x]) is x
    first, second = theta.Pass(0.5).build(2, 2, 2).project(x)
    assert first is second
    assert (first == x / 2).all()


def test_one_number_or_several() -> None:
    assert theta.Pass(0.5).build(3, 2, 2).common_scale == theta.Pass([0.5] * 3).build(3, 2, 2).common_scale == 0.5
    assert theta.Pass([0.5, 0.5, 1]).build(3, 2, 2).common_scale is None
    assert theta.Pass(0.5, "concat").build(3, 2, 6).common_scale is None
    assert theta.Pass(0.5, "split").build(3, 6, 2).common_scale is None
    assert theta.Pass(0.5, "concat").build(1, 2, 2).common_scale == 0.5  # of one member there is nothing beside


@pytest.mark.parametrize("scale", [1.0, -0.5, 1 / 3, 0, [1.0, 0.0, -1 / 3]], ids=str)
@pytest.mark.parametrize("combine", ["sum", "concat", "split"])
@pytest.mark.parametrize("open_", [False, True], ids=["sized", "open"])
@pytest.mark.sweep(3)
def test_fixed_numbers(scale: Any, combine: str, open_: bool) -> None:
    g, A = cases.graph(), MATRICES[2](cases.graph())
    numbers = scale if isinstance(scale, list) else [scale] * 3
    for width in (2, 5) if open_ else (2,):
        P, Q = (3 * width if combine == way else width for way in ("split", "concat"))
        conv = BasisConv(*((-1, -1) if open_ else (P, Q)), POWERS, theta.Pass(scale, combine), bias=False)
        for path in PATHS:
            for batch in ((), (2,), (0,)):
                x = draw(*batch, g.M, P).requires_grad_()
                parts = x.split(Q, -1) if combine == "split" else [x] * 3
                members = [s * (a.t() @ part) for s, a, part in zip(numbers, A, parts, strict=True)]
                right = torch.cat(members, -1) if combine == "concat" else sum(members)
                y = call(take(conv, path), x, g)
                close(y, right)
                close(*(torch.autograd.grad(t.square().sum(), x)[0] for t in (y, right)))
        plan = take(conv, "auto").plan(x, **tensors(g))
        assert (plan.problem.P, plan.problem.inner, plan.problem.Q) == (P, width, Q)
        close(call(conv, x[0:0].sum(0).to_sparse_csr(), g), 0 * right.sum(0))


def test_a_mean() -> None:
    conv = BasisConv(-1, -1, bases.Identity() + bases.Identity(), theta.Pass(1 / 2), bias=False)
    close(conv(X), X)


class Interleaved(theta.Grouped):
    """Group j takes the input channels j, j + g, ..."""

    def order(self) -> Tensor:
        return torch.arange(self.P).view(self.groups, -1).t().flatten()

    def project(self, x):
        return super().project((x if x.layout == torch.strided else x.to_dense())[..., self.order()])

    def contract(self, u):
        return super().contract(u_k[..., self.order()] for u_k in u)

    def dense(self, width=-1):
        return super().dense(width)[:, self.order().argsort()]


class InterleavedOutput(theta.Grouped):
    """Group j gives the output channels j, j + g, ..."""

    def order(self) -> Tensor:
        return torch.arange(self.Q).view(self.groups, -1).t().flatten()

    def project(self, x):
        return super().project(x)[..., self.order()]

    def contract(self, u):
        return super().contract(u)[..., self.order()]

    def dense(self, width=-1):
        return super().dense(width)[..., self.order()]


class InterleavedProjection(Interleaved):
    """By one way alone."""

    contract, dense = theta.Grouped.contract, theta.Grouped.dense


class WrongSparse(theta.Grouped):
    def project(self, x):
        return super().project(x if x.layout == torch.strided else x.to_dense().flip(-1))


class Shifted(theta.Separable):
    """Each member has the coefficients of the next."""

    def contract(self, u):
        u = list(u)
        return super().contract([u[-1], *u[:-1]])


class Unmixed(theta.Separable):
    """No gradient of the coefficients by one way."""

    def project(self, x):
        mix, weight = self.mix, self.weight
        return torch.einsum("...mp,hk,hpq->k...mq", x, mix.detach(), weight)


class Unscaled(theta.Pass):
    def contract(self, u):
        return sum(u)


class ScaledTwice(theta.Pass):
    def dense(self, width=-1):
        return super().dense(width) * self.scales[0]


class Backwards(theta.Pass):
    def gather(self, basis, z):
        return super().gather(basis, z).flip(-1)


WRONG = {
    "Interleaved": ("Grouped", lambda: Interleaved(2), "thetas sparse_features"),
    "InterleavedOutput": ("Grouped", lambda: InterleavedOutput(2), "thetas sparse_features"),
    "InterleavedProjection": ("Grouped", lambda: InterleavedProjection(2), "thetas sparse_features"),
    "WrongSparse": ("Grouped", lambda: WrongSparse(2), "sparse_features"),
    "Shifted": ("Separable", lambda: Shifted(2), "thetas"),
    "Unmixed": ("Separable", lambda: Unmixed(2), "thetas"),
    "Unscaled": ("Pass(scale)", lambda: Unscaled(1 / 3), "thetas"),
    "ScaledTwice": ("Pass(scale)", lambda: ScaledTwice(1 / 3), "thetas"),
    "Backwards": ("Pass(concat)", lambda: Backwards(combine="concat"), "thetas sparse_features"),
}
PAIRS = [(name, check) for name, (*_, checks) in WRONG.items() for check in checks.split()]


@pytest.mark.parametrize(("name", "check"), PAIRS, ids=[f"{check}-{name}" for name, check in PAIRS])
@pytest.mark.sweep(6)
def test_a_wrong_parameter_fails(name: str, check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, wrong, _ = WRONG[name]
    basis, graph, matrices = MATRICES
    right = THETAS[kind]
    monkeypatch.setattr(contract, "THETAS", {"Full": theta.Full, "Heads": theta.Heads, **THETAS, kind: wrong})
    with pytest.raises(AssertionError, match=r"not close|mismatch|Mismatch"):
        contract.CHECKS[check](basis(), graph(), matrices, kinds=[kind])
    monkeypatch.setitem(contract.THETAS, kind, right)
    contract.CHECKS[check](basis(), graph(), matrices, kinds=[kind])


def test_every_kind_is_exported() -> None:
    for shown in REPRS:
        assert re.match(r"\w+", shown)[0] in theta.__all__


@pytest.mark.parametrize("kind", [theta.LowRank(2), theta.Separable(2)], ids=str)
def test_sizes_that_are_refused_leave_no_parameter(kind: theta.Theta) -> None:
    with pytest.raises(ValueError, match=r"^out_channels: expected a positive integer, got 0"):
        kind.build(2, 4, 0)
    assert not list(kind.parameters())
    assert kind.build(2, 4, 6).dense().shape == (2, 4, 6)


@pytest.mark.parametrize("kind", THETAS)
def test_what_is_not_built_has_a_state(kind: str) -> None:
    """A module may keep it for the layers that it makes."""
    holder = nn.ModuleDict({"kind": THETAS[kind](), "layer": nn.Linear(2, 2)})
    assert list(holder.state_dict()) == ["layer.weight", "layer.bias"]
    holder.load_state_dict(holder.state_dict())
