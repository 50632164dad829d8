"""Convolutions over finite groups, with and without a grid: their definition, and that they commute with the group."""

import copy
import itertools
import pickle
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.autograd import grad, gradcheck, gradgradcheck
from torch.nn import functional as F
from torch.testing import assert_close

from pyg_basisconv import BasisConv, GridConv, bases, theta
from tests import oracle
from tests.bases.grids import oracle as grids
from tests.bases.grids.cases import DOUBLE, draw
from tests.bases.grids.oracle import ELEMENTS, Position, act, turned
from tests.bases.grids.test_grids import PATHS, check_bound, check_layer, close, fill, take

Table = list[list[int]]
ORDERS = [path for path in PATHS if path != "native"]
NAMES = ("p4", "p4m")


# Groups from scratch: of permutations, composed.


def of(elements: Sequence[tuple[int, ...]]) -> Table:
    """The table of some permutations: (a b)(i) = a(b(i))."""
    index = {element: i for i, element in enumerate(elements)}
    return [[index[tuple(a[i] for i in b)] for b in elements] for a in elements]


def cyclic(n: int) -> Table:
    return of([tuple((i + k) % n for i in range(n)) for k in range(n)])


def dihedral(n: int) -> Table:
    turns = [tuple((i + k) % n for i in range(n)) for k in range(n)]
    return of(turns + [tuple((k - i) % n for i in range(n)) for k in range(n)])


def symmetric(n: int) -> Table:
    return of(list(itertools.permutations(range(n))))


def quaternion() -> Table:
    """1, i, j, k and their negatives, as products of signs and units."""
    units = {"11": (1, "1"), "ij": (1, "k"), "jk": (1, "i"), "ki": (1, "j"), "ji": (-1, "k"), "kj": (-1, "i")}
    units |= {"ik": (-1, "j")} | {a + a: (-1, "1") for a in "ijk"}
    units |= {"1" + a: (1, a) for a in "ijk"} | {a + "1": (1, a) for a in "ijk"}
    elements = [(sign, unit) for sign in (1, -1) for unit in "1ijk"]

    def times(a: tuple[int, str], b: tuple[int, str]) -> tuple[int, str]:
        sign, unit = units[a[1] + b[1]]
        return a[0] * b[0] * sign, unit

    return [[elements.index(times(a, b)) for b in elements] for a in elements]


def renamed(table: Table, seed: int) -> Table:
    """The same group with its elements in another order: the identity is anywhere."""
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(seed)).tolist()
    back = [order.index(a) for a in range(len(table))]
    return [[back[table[a][b]] for b in order] for a in order]


TABLES = {
    "trivial": cyclic(1),
    "C2": cyclic(2),
    "C5": cyclic(5),
    "C6-renamed": renamed(cyclic(6), 1),
    "D3": dihedral(3),
    "D4-renamed": renamed(dihedral(4), 2),
    "S3": symmetric(3),
    "S3-renamed": renamed(symmetric(3), 3),
    "Q8": quaternion(),
    "Q8-renamed": renamed(quaternion(), 4),
    "p4": grids.table("p4"),
    "p4m": grids.table("p4m"),
}


def test_the_tables_are_groups() -> None:
    """By hand: S3 and D3 do not commute, the quaternions have one element of order two."""
    for table in TABLES.values():
        n = len(table)
        for a, b, c in itertools.product(range(n), repeat=3):
            assert table[table[a][b]][c] == table[a][table[b][c]]
    assert TABLES["S3"] != [list(row) for row in zip(*TABLES["S3"], strict=True)]
    q = TABLES["Q8"]
    assert [a for a in range(8) if q[a][a] == 0] == [0, 4]
    assert [grids.inverse(q, a) for a in range(8)] == [0, 5, 6, 7, 4, 1, 2, 3]


# On the group itself.


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.sweep(5)
def test_on_the_group(name: str) -> None:
    table = TABLES[name]
    A, G = grids.group(table), len(table)
    for basis in (bases.Group(table), bases.Group(torch.tensor(table)), bases.Group(bases.FiniteGroup(table))):
        bound = basis.bind(dtype=DOUBLE)
        assert (bound.K, bound.M, bound.N) == (G, G, G)
        assert tuple(bound.target_grid) == (G,)
    check_bound(bound, A)
    check_layer(GridConv(3, 2, basis), A, (G,), (G,), ORDERS)
    conv = fill(BasisConv(3, 2, basis))
    x = draw(2, G, 3)
    for path in ORDERS:
        close(take(conv, path)(x), oracle.apply(A, x, conv.weight, conv.bias), what=path)


@pytest.mark.parametrize("name", TABLES)
def test_members_are_translations(name: str) -> None:
    """A_r[u, g] = 1 where u = g r."""
    table = TABLES[name]
    A = bases.Group(table).bind(dtype=DOUBLE).to_dense()
    for r, g in itertools.product(range(len(table)), repeat=2):
        assert A[r, :, g].nonzero().flatten().tolist() == [table[g][r]]


@pytest.mark.parametrize("name", TABLES)
def test_commutes_with_the_group(name: str) -> None:
    """From the left: (L_h x)(g) = x(h^-1 g)."""
    table = TABLES[name]
    conv = fill(BasisConv(3, 2, bases.Group(table)))
    x = draw(2, len(table), 3)
    for h in range(len(table)):
        back = table[grids.inverse(table, h)]
        close(conv(x[:, back]), conv(x)[:, back], what=f"element {h}")


def test_a_cyclic_group_is_a_circular_convolution() -> None:
    G = 6
    conv = fill(BasisConv(3, 2, bases.Group(cyclic(G))))
    x = draw(2, G, 3)
    kernel = conv.weight.permute(2, 1, 0)
    padded = F.pad(x.transpose(1, 2), (0, G - 1), "circular")
    close(conv(x), F.conv1d(padded, kernel, conv.bias).transpose(1, 2))
    window = bases.Window((G,), G, padding=G - 1, padding_mode="circular").bind(dtype=DOUBLE)
    close(window.to_dense()[:, :, G - 1 :], bases.Group(cyclic(G)).bind(dtype=DOUBLE).to_dense())


# p4 and p4m on images.


def test_the_named_groups() -> None:
    for name in NAMES:
        group = getattr(bases.group, name)
        table = torch.as_tensor(group.table).tolist()
        assert table == grids.table(name)
        assert group.order == ELEMENTS[name]
        assert list(torch.as_tensor(group.inverse).tolist()) == [grids.inverse(table, a) for a in range(group.order)]
        action = torch.as_tensor(group.action)
        for h in range(group.order):
            for offset in ((1, 0), (0, 1), (2, -1)):
                moved = (action[h] @ torch.tensor(offset)).tolist()
                assert tuple(moved) == turned(h, offset)


def matrices(name: str, shape: Position, kernel: Position, lift: bool, **kwargs: Any) -> Tensor:
    return grids.group_window(shape, kernel, grids.table(name), turned, lift=lift, **kwargs)


WINDOWS: dict[str, tuple[Position, Position, dict[str, Any]]] = {
    "3x3": ((4, 4), (3, 3), {"padding": 1}),
    "circular": ((3, 4), (3, 3), {"padding": 1, "padding_mode": "circular"}),
    "valid": ((4, 5), (3, 3), {}),
    "even": ((4, 4), (2, 2), {}),
    "even-same": ((3, 3), (2, 2), {"padding": "same"}),
    "dilated": ((5, 5), (3, 3), {"padding": 2, "dilation": 2}),
    "strided": ((5, 5), (3, 3), {"padding": 1, "stride": 2}),
    "one": ((3, 3), (1, 1), {}),
    "replicate": ((3, 3), (3, 3), {"padding": 1, "padding_mode": "replicate"}),
}


def check_images(
    name: str, window: str, lift: bool, paths: Sequence[str] = PATHS, basis: bases.Basis | None = None
) -> None:
    """A layer on images against the formula, by every path, with all gradients."""
    shape, kernel, arguments = WINDOWS[window]
    A, G = matrices(name, shape, kernel, lift, **arguments), ELEMENTS[name]
    keys = ("stride", "padding", "dilation")
    to = (G, *grids.grid(shape, kernel, **{k: v for k, v in arguments.items() if k in keys}))
    over = shape if lift else (G, *shape)
    if basis is None:
        basis = bases.Group(name, bases.Window(None, kernel, **arguments), lift=lift)
    bound = basis.bind(grid=over, dtype=DOUBLE)
    assert A.shape == (bound.K, bound.M, bound.N)
    assert tuple(bound.target_grid) == to
    check_layer(GridConv(2, 3, basis), A, over, to, paths)


@pytest.mark.parametrize(
    ("name", "window"), [*(("p4", window) for window in WINDOWS), ("p4m", "3x3"), ("p4m", "even-same")]
)
@pytest.mark.parametrize("lift", [True, False], ids=["lift", "group"])
@pytest.mark.sweep(8)
def test_images(name: str, window: str, lift: bool) -> None:
    paths = PATHS if name == "p4" or lift else ("auto", "native", "theta_first", "a_first")
    check_images(name, window, lift, paths)


@pytest.mark.parametrize("window", ["3x3", "circular", "even", "strided"])
@pytest.mark.parametrize("lift", [True, False], ids=["lift", "group"])
@pytest.mark.sweep(3)
def test_families(lift: bool, window: str) -> None:
    shape, kernel, arguments = WINDOWS[window]
    A = matrices("p4", shape, kernel, lift, **arguments)
    for made, grid in ((shape, None), (None, shape if lift else (4, *shape))):
        basis = bases.Group("p4", bases.Window(made, kernel, **arguments), lift=lift)
        check_bound(basis.bind(grid=grid, dtype=DOUBLE), A)


@pytest.mark.parametrize("arguments", [{"padding": 1}, {"stride": 2}, {"padding": 2, "dilation": 2}], ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sweep(2)
def test_lifting_is_a_stack_of_turned_kernels(name: str, arguments: dict[str, int]) -> None:
    """As with torch alone: turn the kernel, convolve, stack."""
    for kernel in ((3, 3), (2, 2)):
        basis = bases.Group(name, bases.Window(None, kernel, **arguments), lift=True)
        conv = fill(GridConv(3, 2, basis))
        x = draw(2, 3, 6, 6)
        weight = conv.weight.unflatten(0, kernel).permute(3, 2, 0, 1)
        right = torch.stack([F.conv2d(x, act(h, weight), conv.bias, **arguments) for h in range(ELEMENTS[name])], 2)
        for path in PATHS:
            close(take(conv, path)(x), right, what=path)
        A = matrices(name, (6, 6), kernel, True, **arguments)
        flat = oracle.apply(A, grids.rows(x, 2), conv.weight, conv.bias)
        close(grids.image(flat, right.shape[2:]), right, what="the oracle")


@pytest.mark.parametrize("name", NAMES)
def test_group_to_group_is_a_stack_of_turned_kernels(name: str) -> None:
    """The kernel of element h: its images turned, and its sheets in the order h^-1."""
    table, G = grids.table(name), ELEMENTS[name]
    conv = fill(GridConv(3, 2, bases.Group(name, bases.Window(None, (3, 3), padding=1))))
    x = draw(2, 3, G, 5, 5)
    weight = conv.weight.view(G, 3, 3, 3, 2).permute(4, 3, 0, 1, 2)  # (Q, P, G, 3, 3)
    parts = []
    for h in range(G):
        back = table[grids.inverse(table, h)]
        kernel = act(h, weight[:, :, back])
        parts.append(F.conv2d(x.flatten(1, 2), kernel.flatten(1, 2), conv.bias, padding=1))
    right = torch.stack(parts, 2)
    for path in PATHS:
        close(take(conv, path)(x), right, what=path)


def moved(h: int, y: Tensor, name: str) -> Tensor:
    """(L_h y)(g, t) = y(h^-1 g, h^-1 t), for sheets on the axis before the last two."""
    table = grids.table(name)
    return act(h, y[..., table[grids.inverse(table, h)], :, :])


def check_equivariance(
    name: str, net: nn.Module, x: Tensor, translations: Sequence[Position] = (), tolerance: float = 1e-10
) -> None:
    """f(h x) = h f(x), for all elements, and for translations of a torus."""
    y = net(x)
    assert y.abs().mean() > 0.01
    for h in range(ELEMENTS[name]):
        close(net(act(h, x)), moved(h, y, name), tolerance, f"element {h}")
    for shift in translations:
        close(net(x.roll(shift, (-2, -1))), y.roll(shift, (-2, -1)), tolerance, f"translation {shift}")


class Chain(nn.Sequential):
    """A lifting layer and two more, with a nonlinearity between them."""

    def __init__(self, name: str, order: str = "auto", **arguments: Any) -> None:
        def window() -> bases.Window:
            return bases.Window(None, (3, 3), **arguments)

        super().__init__(
            GridConv(2, 3, bases.Group(name, window(), lift=True), order=order),
            nn.Tanh(),
            GridConv(3, 3, bases.Group(name, window()), order=order),
            nn.Tanh(),
            GridConv(3, 2, bases.Group(name, window()), order=order),
        )
        for i in (0, 2, 4):
            fill(self[i])


@pytest.mark.parametrize(
    ("name", "order"),
    [*(("p4", order) for order in ("auto", "native", "theta_first", "a_first")), ("p4m", "auto")],
)
@pytest.mark.sweep(2)
def test_equivariance(name: str, order: str) -> None:
    x = draw(2, 2, 5, 5)
    check_equivariance(name, Chain(name, order, padding=1), x)
    check_equivariance(name, Chain(name, order, padding=1, padding_mode="circular"), x, [(1, 0), (2, 3), (-1, 2)])
    check_equivariance(name, Chain(name, order, padding=1, padding_mode="replicate"), x)
    check_equivariance(name, Chain(name, order), draw(1, 2, 8, 8))


@pytest.mark.parametrize("name", NAMES)
def test_invariance_after_pooling(name: str) -> None:
    """The mean over the group turns with the image, and over the grid too it stays."""
    net = Chain(name, padding=1, padding_mode="circular")
    x = draw(2, 2, 5, 5)
    y = net(x)
    for h in range(ELEMENTS[name]):
        z = net(act(h, x))
        close(z.mean(2), act(h, y.mean(2)))
        close(z.amax(2), act(h, y.amax(2)))
        close(z.mean((2, 3, 4)), y.mean((2, 3, 4)))


def test_plain_windows_are_not_equivariant() -> None:
    """What the checks above would say of a convolution that knows no group, or one of another group."""
    window = bases.Window(None, (3, 3), padding=1)

    class Lifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = fill(GridConv(2, 3, window))

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x).unsqueeze(2).expand(-1, -1, 4, -1, -1)

    with pytest.raises(AssertionError):
        check_equivariance("p4", Lifted(), draw(2, 2, 5, 5))
    turned_only = Chain("p4", padding=1)

    class Doubled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([turned_only(x)] * 2, 2)

    with pytest.raises(AssertionError):
        check_equivariance("p4m", Doubled(), draw(2, 2, 5, 5))


# Tables that act on a grid, or do not.


def signed(*rows: Sequence[int]) -> list[list[int]]:
    return [list(row) for row in rows]


ACTIONS: dict[str, tuple[Table, list | None, int]] = {
    # name: (table, action, axes)
    "C2-flip-1d": (cyclic(2), [[[1]], [[-1]]], 1),
    "C2-flip-2d": (cyclic(2), [signed((1, 0), (0, 1)), signed((-1, 0), (0, 1))], 2),
    "C2-swap-2d": (cyclic(2), [signed((1, 0), (0, 1)), signed((0, 1), (1, 0))], 2),
    "C3-turn-3d": (
        cyclic(3),
        [
            signed((1, 0, 0), (0, 1, 0), (0, 0, 1)),
            signed((0, 0, 1), (1, 0, 0), (0, 1, 0)),
            signed((0, 1, 0), (0, 0, 1), (1, 0, 0)),
        ],
        3,
    ),
    "C4-through-C2": (cyclic(4), [signed((1, 0), (0, 1)), signed((-1, 0), (0, -1))] * 2, 2),
    "C3-still-2d": (cyclic(3), None, 2),
    "S3-still-1d": (symmetric(3), None, 1),
}


@pytest.mark.parametrize("lift", [True, False], ids=["lift", "group"])
@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.sweep(5)
def test_tables_that_act(name: str, lift: bool) -> None:
    table, action, axes = ACTIONS[name]
    G = len(table)
    shape, kernel = (3,) * axes if axes == 3 else (4,) * axes, (3,) * axes if axes < 3 else (2,) * axes
    arguments = {"padding": 1} if axes < 3 else {}

    def move(h: int, offset: Position) -> Position:
        if action is None:
            return offset
        return tuple(sum(c * d for c, d in zip(row, offset, strict=True)) for row in action[h])

    A = grids.group_window(shape, kernel, table, move, lift=lift, **arguments)
    window = bases.Window(None, kernel, **arguments)
    basis = bases.Group(bases.FiniteGroup(table, action), window, lift=lift)
    to = (G, *grids.grid(shape, kernel, **arguments))
    over = shape if lift else (G, *shape)
    check_bound(basis.bind(grid=over, dtype=DOUBLE), A)
    paths = PATHS if axes < 4 else ORDERS
    check_layer(GridConv(2, 3, basis), A, over, to, paths)


def test_p4_by_its_table_is_p4() -> None:
    for name in NAMES:
        group = getattr(bases.group, name)
        window = bases.Window((4, 4), (3, 3), padding=1)
        own = bases.Group(bases.FiniteGroup(torch.as_tensor(group.table), torch.as_tensor(group.action)), window)
        close(own.bind(dtype=DOUBLE).to_dense(), bases.Group(name, window).bind(dtype=DOUBLE).to_dense())
        given = bases.Group(group, window)
        close(given.bind(dtype=DOUBLE).to_dense(), bases.Group(name, window).bind(dtype=DOUBLE).to_dense())


# As layers.


GROUP = bases.Group("p4", bases.Window(None, (3, 3), padding=1))


@pytest.mark.parametrize("kind", ["Depthwise", "Grouped", "Separable", "LowRank", "Pass"])
def test_parameters(kind: str) -> None:
    make = {
        "Depthwise": theta.Depthwise,
        "Grouped": lambda: theta.Grouped(2),
        "Separable": lambda: theta.Separable(2),
        "LowRank": lambda: theta.LowRank(2),
        "Pass": lambda: theta.Pass(scale=0.5),
    }[kind]
    shape = (4, 3, 3)
    A = matrices("p4", shape[1:], (3, 3), False, padding=1)
    conv = fill(GridConv(4, 4, GROUP, make()))
    check_layer(conv, A, shape, shape, ("auto", "a_first", "theta_first", "phi"), lambda c: c.theta.dense(4).double())


def test_unbatched_and_empty_batches() -> None:
    conv = fill(GridConv(2, 3, GROUP))
    x = draw(2, 2, 4, 5, 5)
    for path in PATHS:
        y = take(conv, path)(x)
        close(conv(x[0]), y[0], what=path)
        assert conv(x[:0]).shape == (0, 3, 4, 5, 5)


@pytest.mark.slow
def test_sizes_one_after_the_other() -> None:
    conv = fill(GridConv(2, 3, GROUP))
    for path in PATHS:
        for shape in ((4, 4), (3, 5), (5, 3), (2, 2), (4, 4)):
            x = draw(2, 2, 4, *shape)
            A = matrices("p4", shape, (3, 3), False, padding=1)
            right = grids.image(oracle.apply(A, grids.rows(x, 3), conv.weight, conv.bias), (4, *shape))
            close(take(conv, path)(x), right, what=f"{shape} by {path}")


@pytest.mark.parametrize("order", ["native", "theta_first", "a_first", "phi"])
@pytest.mark.parametrize("lift", [True, False], ids=["lift", "group"])
@pytest.mark.sweep(2)
def test_gradcheck(lift: bool, order: str) -> None:
    conv = fill(GridConv(1, 2, bases.Group("p4", bases.Window(None, (2, 2)), lift=lift), order=order))
    x = draw(1, 1, *([] if lift else [4]), 3, 3).requires_grad_()

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.func.functional_call(conv, {"theta.weight": weight, "bias": bias}, x)

    inputs = [x, *(p.detach().clone().requires_grad_() for p in (conv.weight, conv.bias))]
    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.sweep(2)
def test_precision(path: str) -> None:
    A = matrices("p4", (3, 3), (3, 3), False, padding=1)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-2)):
        conv = take(fill(GridConv(2, 3, GROUP)).to(dtype), path)
        x = draw(2, 2, 4, 3, 3).to(dtype).requires_grad_()
        y = conv(x)
        leaves = [x, conv.weight, conv.bias]
        # Terms may cancel: errors are measured against the sum of the sizes of the terms.
        exact = [t.detach().double().requires_grad_() for t in leaves]
        sizes = [t.detach().double().abs().requires_grad_() for t in leaves]

        def apply(A: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return grids.image(oracle.apply(A, grids.rows(x, 3), weight, bias), (4, 3, 3))

        reference, total = apply(A, *exact), apply(A, *sizes)
        mine = [y, *grad(y.sum(), leaves)]
        theirs = [reference, *grad(reference.sum(), exact)]
        scales = [total, *grad(total.sum(), sizes)]
        for a, b, scale in zip(mine, theirs, scales, strict=True):
            assert a.dtype == dtype
            assert_close(a.double(), b, rtol=tolerance, atol=tolerance * float(scale.detach().max()))


def test_inference_first() -> None:
    """A first call in inference mode, or without gradients, leaves nothing behind that hurts training."""
    x = draw(2, 2, 4, 3, 3).requires_grad_()
    right = grad(fill(GridConv(2, 3, GROUP))(x).square().sum(), x)
    for path in PATHS:
        for guard in (torch.inference_mode, torch.no_grad):
            conv = take(fill(GridConv(2, 3, GROUP)), path)
            flat = grids.rows(x, 3)
            with guard():
                bound = GROUP.bind(grid=(4, 3, 3), dtype=DOUBLE)
                conv(x), BasisConv.forward(conv, flat, bound)
            close(*grad(conv(x).square().sum(), x), *right, what=path)
            close(*grad(BasisConv.forward(conv, flat, bound).square().sum(), x, retain_graph=True), *right, what=path)


def test_copied_pickled_printed() -> None:
    x = draw(2, 2, 4, 4, 4)
    conv = fill(GridConv(2, 3, GROUP))
    y = conv(x)
    for other in (copy.deepcopy(conv), pickle.loads(pickle.dumps(conv))):
        close(other(x), y)
    printed = {
        repr(basis)
        for basis in (
            GROUP,
            bases.Group("p4m", bases.Window(None, (3, 3), padding=1)),
            bases.Group("p4", bases.Window(None, (3, 3))),
            bases.Group("p4", bases.Window(None, (3, 3), padding=1), lift=True),
            bases.Group(cyclic(3)),
            bases.Group(cyclic(4)),
            bases.Group(symmetric(3)),
            bases.Group(bases.FiniteGroup(cyclic(2), ACTIONS["C2-flip-1d"][1]), bases.Window(None, (3,))),
            bases.Group(cyclic(2), bases.Window(None, (3,))),
        )
    }
    assert len(printed) == 9, "bases that differ print differently"


def test_beside_other_families() -> None:
    """A group convolution and the identity, in one layer."""
    basis = bases.Group(symmetric(3)) + bases.Identity()
    A = oracle.concat(grids.group(symmetric(3)), torch.eye(6, dtype=DOUBLE)[None])
    check_bound(basis.bind(size=6, dtype=DOUBLE), A)
    conv = fill(BasisConv(3, 2, basis))
    x = draw(2, 6, 3)
    for path in ORDERS:
        close(take(conv, path)(x), oracle.apply(A, x, conv.weight, conv.bias), what=path)


@pytest.mark.cuda
def test_to_a_device() -> None:
    for name in NAMES:
        net = Chain(name, padding=1)
        x = draw(2, 2, 5, 5)
        y = net(x)
        close(net.cuda()(x.cuda()).cpu(), y, 1e-9)


@settings(max_examples=20)
@given(data=st.data())
def test_any_group(data: st.DataObject) -> None:
    """Subgroups of S4 that two permutations make, in any order of their elements."""
    some = st.permutations(range(4)).map(tuple)
    found = {tuple(range(4)), data.draw(some, label="a"), data.draw(some, label="b")}
    while True:
        more = {tuple(a[i] for i in b) for a in found for b in found}
        if more <= found:
            break
        found |= more
    table = renamed(of(sorted(found)), data.draw(st.integers(0, 99), label="order"))
    A = grids.group(table)
    bound = bases.Group(table).bind(dtype=DOUBLE)
    close(bound.to_dense(), A)
    x = draw(len(table), 2)
    close(bound.expand(x), torch.einsum("kmn,mp->knp", A, x))
