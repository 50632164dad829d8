"""Windows and shifts on grids are torch's own convolutions and poolings, by every order, and their definitions."""

import copy
import io
import itertools
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn
from torch.autograd import grad, gradcheck, gradgradcheck
from torch.nn import functional as F
from torch.testing import assert_close

from pyg_basisconv import BasisConv, GridConv, bases, theta
from pyg_basisconv.bases import Basis
from pyg_basisconv.kernels.grids import banded_convolution
from pyg_basisconv.theta import Theta
from tests import oracle
from tests.bases.grids import oracle as grids
from tests.bases.grids.cases import DOUBLE, SHARES, SWEEP, Config, call_torch, draw
from tests.bases.grids.oracle import Position, image, rows
from tests.contract import same as close, take

ORDERS = ("auto", "native", "phi", "theta_first", "a_first")
PATHS = (*ORDERS, "message", "message/a_first")
EDGE_PATHS = ("phi", "theta_first", "a_first")


def fill(conv: BasisConv) -> BasisConv:
    for seed, parameter in enumerate(conv.parameters()):
        parameter.data = draw(*parameter.shape, seed=seed + 5)
    return conv.double()


def seen(pairs: list[tuple[str, Tensor, Tensor]], path: str, tolerance: float = 1e-10) -> None:
    for name, a, b in pairs:
        close(a, b, tolerance, f"{name} by {path}")


# The sweep: this library, torch and the oracle on random configurations.


def check_against_torch(c: Config, window: Basis | None = None, paths: tuple[str, ...] = ORDERS) -> None:
    """Values and all gradients of a layer on images."""
    layer = c.torch()
    x = c.image().requires_grad_()
    y = call_torch(layer, x)
    down = draw(*y.shape, seed=3)
    gx, *learnt = grad(y, [x, *layer.parameters()], down)
    right = {"x": gx}
    if learnt:
        right["weight"] = c.weight(learnt[0])
    if len(learnt) > 1:
        right["bias"] = learnt[1]
    conv = c.grid_conv(layer, window)
    for path in paths:
        mine = c.image().requires_grad_()
        found = take(conv, path)(mine)
        close(found, y, what=f"y by {path}")
        names = dict(conv.named_parameters())
        gradients = dict(zip(("x", *names), grad(found, [mine, *names.values()], down), strict=True))
        assert {name.removeprefix("theta.") for name in gradients} == set(right)
        for name, gradient in gradients.items():
            close(gradient, right[name.removeprefix("theta.")], what=f"the gradient of {name} by {path}")


def check_edges(c: Config, window: bases.Window | None = None) -> None:
    """The same layer on the typed edges of the grid, as on a graph."""
    layer = c.torch()
    x = c.image().requires_grad_()
    y = call_torch(layer, x)
    down = draw(*y.shape, seed=3)
    right = grad(y, [x, *layer.parameters()], down)
    kind, source, target, weight = (c.window(c.shape) if window is None else window).bind(dtype=DOUBLE).edges()
    N = math.prod(c.grid)
    conv = c.edge_conv(layer)
    graph = {"edge_index": torch.stack([source, target]), "edge_type": kind, "edge_weight": weight}
    if c.norm is None:
        assert bool(weight.eq(1).all())
        del graph["edge_weight"]
    for path in EDGE_PATHS:
        mine = rows(c.image(), c.axes).requires_grad_()
        found = take(conv, path)((mine, None), **graph, size=(mine.shape[-2], N))
        close(image(found, c.grid), y, what=f"y by {path}")
        leaves = [mine, *conv.theta.parameters(), *([] if conv.bias is None else [conv.bias])]
        gx, *learnt = grad(found, leaves, rows(down, c.axes))
        close(gx, rows(right[0], c.axes), what=f"the gradient of x by {path}")
        for i, (a, b) in enumerate(zip(learnt, right[1:], strict=True)):
            close(a, c.weight(b) if i == 0 else b, what=f"the gradient of the parameters by {path}")


def check_matrices(c: Config, basis: Basis | None = None) -> None:
    """The matrices of the window, however they are asked for; torch says that they are right too."""
    A, layer, x = c.matrices, c.torch(), c.image()
    y = image(oracle.apply(A, rows(x, c.axes), c.dense(layer), getattr(layer, "bias", None)), c.grid)
    close(y, call_torch(layer, x), what="the oracle")
    window = c.window(c.shape) if basis is None else basis
    bound = window.bind(dtype=DOUBLE)
    assert (bound.K, bound.M, bound.N, tuple(bound.target_grid)) == (*A.shape, c.grid)
    check_bound(bound, A)


def check_bound(bound: bases.BoundBasis, A: Tensor) -> None:
    """All that a bound basis promises."""
    K = A.shape[0]
    for b, a in ((bound, A), (bound.T, A.transpose(1, 2)), (bound.T.T, A)):
        assert a.shape == (b.K, b.M, b.N)
        close(b.to_dense(), a, what="to_dense")
        close(b.to_coo().to_dense(), a, what="to_coo")
        summed = torch.zeros(a.shape, dtype=DOUBLE)
        kind, source, target, weight = b.edges()
        summed.index_put_((kind.long(), source.long(), target.long()), weight, accumulate=True)
        close(summed, a, what="edges")
        for lead in ((), (2,), (0,)):
            x, z = draw(*lead, b.M, 3), draw(K, *lead, b.M, 2, seed=1)
            products = torch.einsum("kmn,...mp->k...np", a, x)
            close(b.expand(x), products, what="expand")
            close(torch.stack(list(b.iterate(x))), products, what="iterate")
            one_by_one = torch.einsum("kmn,k...mq->k...nq", a, z)
            close(b.each(z), one_by_one, what="each")
            close(b.combine(z), one_by_one.sum(0), what="combine")
            if K > 1:
                close(b.combine([None, *z[1:]]), one_by_one[1:].sum(0), what="combine without a member")


@pytest.mark.parametrize(("name", "other"), [*zip(SWEEP, itertools.cycle(ORDERS[1:]))])
@pytest.mark.sweep(70, "convT3d-4x3x3-k2x1x1-s1x1x1-p0x0x0-d3x2x3-o1x0x2-c2x3-a_first")
def test_sweep(name: str, other: str) -> None:
    """By the order that is chosen, and by another, in turn."""
    check_against_torch(SWEEP[name], paths=("auto", other))


@pytest.mark.parametrize("name", list(SWEEP)[1::4])
@pytest.mark.sweep(22)
def test_sweep_on_edges(name: str) -> None:
    check_edges(SWEEP[name])


@pytest.mark.parametrize("name", list(SWEEP)[::8])
@pytest.mark.sweep(12)
def test_sweep_of_matrices(name: str) -> None:
    check_matrices(SWEEP[name])


@pytest.mark.parametrize("name", list(SWEEP)[::16])
@pytest.mark.sweep(7)
def test_sweep_by_messages(name: str) -> None:
    check_against_torch(SWEEP[name], paths=("message", "message/a_first"))


def test_the_sweep_is_wide_enough() -> None:
    assert len(SWEEP) >= 300
    for share, member in SHARES.items():
        for axes in (1, 2, 3):
            assert sum(c.axes == axes and member(c) for c in SWEEP.values()) >= 2, f"{share} with {axes} axes"


def some(**wanted: Any) -> Config:
    """The first of the sweep that is as wanted."""
    return next(c for c in SWEEP.values() if all(getattr(c, name) == value for name, value in wanted.items()))


CONV = Config("conv", (5, 4), (3, 2), (2, 1), (1, 1), (1, 2), "zeros", P=3, Q=2)
SAMPLES = {
    "conv1d": some(kind="conv", axes=1, groups=1, mode="circular"),
    "conv2d": CONV,
    "conv2d-groups": some(kind="conv", axes=2, groups=2, depthwise=False),
    "conv2d-depthwise": some(kind="conv", axes=2, depthwise=True),
    "conv2d-same": some(kind="conv", axes=2, padding="same", mode="reflect"),
    "conv2d-replicate": some(kind="conv", axes=2, mode="replicate", groups=1),
    "conv3d": some(kind="conv", axes=3, mode="circular", groups=1),
    "convT2d": some(kind="convT", axes=2, groups=1),
    "convT3d-groups": some(kind="convT", axes=3, groups=2, depthwise=False),
    "avgpool2d": some(kind="avgpool", axes=2, ceil_mode=True, include_pad=True),
    "avgpool2d-seen": some(kind="avgpool", axes=2, include_pad=False),
}
sampled = pytest.mark.parametrize("c", SAMPLES.values(), ids=SAMPLES)


@sampled
def test_batch_of_none(c: Config) -> None:
    layer = c.torch()
    conv = c.grid_conv(layer)
    for path in PATHS:
        x = c.but(B=0).image().requires_grad_()
        y = take(conv, path)(x)
        assert y.shape == (0, c.Q, *c.grid)
        gradients = grad(y.sum(), [x, *conv.parameters()])
        assert gradients[0].shape == x.shape
        assert all(not g.any() for g in gradients[1:])


@sampled
def test_unbatched_image(c: Config) -> None:
    layer, x = c.torch(), c.image()[1]
    conv = c.grid_conv(layer)
    for path in PATHS:
        y = take(conv, path)(x)
        assert y.shape == (c.Q, *c.grid)
        close(y, call_torch(layer, x[None])[0], what=path)


@sampled
@pytest.mark.sweep(4)
def test_strides_of_the_image(c: Config) -> None:
    """An image may be any view."""
    layer = c.torch()
    conv = c.grid_conv(layer)
    last = [*range(2, 2 + c.axes)]
    views = {
        "transposed": draw(*c.shape[::-1], c.P, c.B).permute(-1, -2, *[i - 2 for i in reversed(last)]),
        "sliced": draw(c.B, 2 * c.P, *(2 * s for s in c.shape))[(slice(None), *[slice(None, None, 2)] * (c.axes + 1))],
        "expanded": draw(1, c.P, *c.shape).expand(c.B, c.P, *c.shape),
        "channels expanded": draw(c.B, 1, *c.shape).expand(c.B, c.P, *c.shape),
        "flipped": draw(c.B, c.P, *c.shape).flip(*last),
    }
    for name, view in views.items():
        assert view.shape == (c.B, c.P, *c.shape)
        for path in PATHS:
            mine, own = view.detach().requires_grad_(), view.detach().clone().contiguous().requires_grad_()
            y, right = take(conv, path)(mine), call_torch(layer, own)
            close(y, right, what=f"{name} by {path}")
            down = draw(*y.shape, seed=3)
            close(grad(y, mine, down)[0], grad(right, own, down)[0], what=f"the gradient of {name} by {path}")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("c", [c for c in SAMPLES.values() if c.axes > 1], ids=lambda c: c.name)
@pytest.mark.sweep(16)
def test_channels_last_stays(c: Config, order: str) -> None:
    layer = c.torch()
    kept = torch.channels_last if c.axes == 2 else torch.channels_last_3d
    x = c.but(P=c.P).image().to(memory_format=kept)
    conv = c.grid_conv(layer, order=order)
    y, right = conv(x), call_torch(layer, x)
    # Torch itself loses it where it pads, and in groups.
    assert y.is_contiguous(memory_format=kept) or (order in ("auto", "native") and y.stride() == right.stride())
    close(y, right, what=order)
    plain = conv(c.image())
    close(plain, y)
    assert plain.is_contiguous()


@sampled
@pytest.mark.sweep(4)
def test_precision(c: Config) -> None:
    """float32, bfloat16 and float16 come out as they went in, near the oracle."""
    layer = c.torch()
    A = c.matrices
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-2)):
        conv = c.grid_conv(layer).to(dtype)
        for path in PATHS:
            x = c.image().to(dtype).requires_grad_()
            y = take(conv, path)(x)
            assert y.dtype == dtype
            leaves = [x, *conv.parameters()]
            # Terms may cancel: errors are measured against the sum of the sizes of the terms.
            exact = [t.detach().double().requires_grad_() for t in leaves]
            sizes = [t.detach().double().abs().requires_grad_() for t in leaves]
            reference, total = (_by_matrices(c, a, conv, own) for a, own in ((A, exact), (A.abs(), sizes)))
            mine = [y, *grad(y.sum(), leaves)]
            theirs = [reference, *grad(reference.sum(), exact)]
            scales = [total, *grad(total.sum(), sizes)]
            for a, b, scale in zip(mine, theirs, scales, strict=True):
                assert a.dtype == dtype
                assert_close(a.double(), b, rtol=tolerance, atol=tolerance * float(scale.detach().max()), msg=path)


def _by_matrices(c: Config, A: Tensor, conv: GridConv, leaves: list[Tensor]) -> Tensor:
    """The oracle of a layer whose image and parameters are `leaves`."""
    x, named = leaves[0], dict(zip(dict(conv.named_parameters()), leaves[1:], strict=True))
    Theta = c.dense(c.torch()) if c.kind == "avgpool" else blocks(named["theta.weight"], c.P, c.Q)
    return image(oracle.apply(A, rows(x, c.axes), Theta, named.get("bias")), c.grid)


def blocks(weight: Tensor, P: int, Q: int) -> Tensor:
    """(K, P, Q) of a weight of Full (K, P, Q), Depthwise (K, P), or Grouped (K, g, P / g, Q / g)."""
    if weight.dim() == 3:
        return weight
    if weight.dim() == 2:
        return torch.stack([torch.diag(w) for w in weight])
    return torch.stack([torch.block_diag(*own) for own in weight])


def kernel(weight: Tensor, groups: int) -> Tensor:
    """(K, P, Q) of a weight of torch, (Q, P / groups, *size)."""
    taps = weight.flatten(2).unbind(-1)
    return torch.stack([torch.block_diag(*(own.t() for own in tap.chunk(groups))) for tap in taps])


@sampled
def test_flat_rows(c: Config) -> None:
    """On rows instead of images, with the grid beside them, or said by the basis."""
    layer, x = c.torch(), c.image()
    for window, call in ((c.window(), {"grid": c.shape}), (c.window(c.shape), {})):
        widths = (-1, -1) if c.kind == "avgpool" else (c.P, c.Q)
        conv = BasisConv(*widths, window, c.theta(), bias=c.bias and c.kind != "avgpool")
        c.fill(conv, layer)
        for path in PATHS:
            y = take(conv, path)(rows(x, c.axes), **call)
            close(image(y, c.grid), call_torch(layer, x), what=path)


@sampled
def test_bound_once(c: Config) -> None:
    """A bound window stands for the graph of a call."""
    layer, x = c.torch(), c.image()
    widths = (-1, -1) if c.kind == "avgpool" else (c.P, c.Q)
    conv = c.fill(BasisConv(*widths, c.window(c.shape), c.theta(), bias=c.bias and c.kind != "avgpool"), layer)
    bound = c.window().bind(grid=c.shape, dtype=DOUBLE)
    for path in PATHS:
        close(image(take(conv, path)(rows(x, c.axes), bound), c.grid), call_torch(layer, x), what=path)


def check_sizes(c: Config, window: Basis | None = None, paths: tuple[str, ...] = PATHS) -> None:
    """One layer takes images of many sizes: nothing of the one before is kept."""
    layer = c.torch()
    conv = c.grid_conv(layer, window)
    for path in paths:
        for shape in ((5, 4), (4, 5), (7, 7), (10, 2), (5, 4), (2, 10), (4, 5)):
            if c.mode != "zeros" and min(shape) < 4:
                continue
            x = c.but(shape=shape).image(seed=sum(shape))
            if min(c.but(shape=shape).grid) > 0 and _fits(c.but(shape=shape)):
                close(take(conv, path)(x), call_torch(layer, x), what=f"{shape} by {path}")


@pytest.mark.parametrize("name", ["conv2d", "convT2d", "avgpool2d", "conv2d-same"])
def test_sizes_one_after_the_other(name: str) -> None:
    c = SAMPLES[name]
    check_sizes(c.but(mode="circular") if name == "conv2d-same" else c)


def _fits(c: Config) -> bool:
    around = grids.paddings(c.kernel, c.padding, c.dilation)
    reach = [d * (k - 1) + 1 for k, d in zip(c.kernel, c.dilation, strict=True)]
    return c.transposed or all(s + a + b >= r for s, (a, b), r in zip(c.shape, around, reach, strict=True))


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 3), (2, 2)], ids=str)
@pytest.mark.parametrize("mode", ["zeros", "replicate"])
@pytest.mark.sweep(3)
def test_smaller_than_the_kernel(shape: Position, mode: str) -> None:
    """A window that is wider than the grid, whose size stays."""
    for kernel, dilation in (((3, 3), (1, 1)), ((5, 4), (1, 1)), ((2, 3), (3, 2))):
        c = Config("conv", shape, kernel, (1, 1), "same", dilation, mode, P=2, Q=3)
        assert c.grid == shape
        check_against_torch(c, paths=PATHS)
        check_edges(c)
        check_matrices(c)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("mode", grids.MODES)
@pytest.mark.sweep(5)
def test_grid_of_no_place(shape: Position, mode: str) -> None:
    """Of no row and no column there is nothing to be seen, forward and backward."""
    for basis in (
        bases.Window(shape, (3, 3), padding=1, padding_mode=mode),
        bases.Window(shape, (2, 3), padding="same", padding_mode=mode),
        bases.Shifts(shape, [(0, 0), (0, 1)], padding_mode=mode if shape == (0, 3) else "zeros"),
    ):
        bound = basis.bind(dtype=DOUBLE)
        assert (bound.M, bound.N, tuple(bound.target_grid)) == (0, 0, shape)
        check_bound(bound, torch.zeros(bound.K, 0, 0, dtype=DOUBLE))
    conv = fill(GridConv(2, 3, bases.Window(None, (3, 3), padding=1, padding_mode=mode)))
    for path in PATHS[2:]:
        x = draw(2, 2, *shape).requires_grad_()
        y = take(conv, path)(x)
        assert y.shape == (2, 3, *shape)
        assert all(not g.any() for g in grad(y.sum(), [x, *conv.parameters()]))


FOUR = {
    "plain": {},
    "strided": {"stride": (2, 1, 1, 2), "padding": (1, 0, 1, 0)},
    "circular": {"padding": 1, "padding_mode": "circular"},
    "reflect": {"padding": "same", "padding_mode": "reflect"},
    "dilated": {"dilation": (1, 2, 1, 1), "padding": (0, 1, 0, 0)},
    "transposed": {"stride": (2, 1, 1, 1), "transposed": True, "output_padding": (1, 0, 0, 0)},
    "mean": {"padding": (1, 1, 0, 0), "norm": "mean"},
}


@pytest.mark.parametrize("name", FOUR)
@pytest.mark.sweep(3)
def test_four_axes(name: str) -> None:
    """Where torch has no layer there is the definition."""
    shape, kernel = (3, 3, 2, 3), (2, 3, 1, 2)
    A = grids.window(shape, kernel, **FOUR[name])
    window = bases.Window(shape, kernel, **FOUR[name])
    check_bound(window.bind(dtype=DOUBLE), A)
    keys = ("stride", "padding", "dilation", "transposed", "output_padding")
    to = grids.grid(shape, kernel, **{k: v for k, v in FOUR[name].items() if k in keys})
    check_layer(GridConv(3, 2, window), A, shape, to, [path for path in PATHS if path != "native"])


def check_layer(
    conv: GridConv,
    A: Tensor,
    shape: Position,
    to: Position,
    paths: list[str] | tuple[str, ...] = PATHS,
    Theta: Callable[[GridConv], Tensor] | None = None,
    lead: tuple[int, ...] = (2,),
    P: int = 3,
) -> None:
    """A layer on images against the oracle, with all gradients."""
    fill(conv)
    P = conv.in_channels if conv.in_channels > 0 else P
    dense = (lambda c: c.theta.dense()) if Theta is None else Theta
    for path in paths:
        x = draw(*lead, P, *shape).requires_grad_()
        leaves = {"x": x, **dict(conv.named_parameters())}
        y = take(conv, path)(x)
        reference = image(oracle.apply(A, rows(x, len(shape)), dense(conv), conv.bias), to)
        close(y, reference, what=f"y by {path}")
        down = draw(*y.shape, seed=3)
        theirs = grad(reference, list(leaves.values()), down)
        for name, a, b in zip(leaves, grad(y, list(leaves.values()), down), theirs, strict=True):
            close(a, b, what=f"the gradient of {name} by {path}")


# Shifts.


SHIFTS: dict[str, tuple[Position, list]] = {
    "1d": ((5,), [0, -1, 2, 9]),
    "1d-tuples": ((4,), [(1,), (-2,)]),
    "2d": ((3, 4), [(0, 0), (1, -1), (0, 2), (-2, 1), (5, 0)]),
    "2d-one-row": ((1, 4), [(0, 1), (0, -1)]),
    "3d": ((2, 3, 2), [(0, 1, 0), (-1, 0, 1), (1, 2, -1)]),
    "4d": ((2, 2, 3, 2), [(0, 1, 0, -1), (1, 0, 2, 0)]),
}


@pytest.mark.parametrize("mode", grids.MODES)
@pytest.mark.parametrize("name", SHIFTS)
@pytest.mark.sweep(7)
def test_shifts(name: str, mode: str) -> None:
    shape, offsets = SHIFTS[name]
    if mode == "reflect":
        offsets = [d for d in offsets if _in_room(d, shape)]
    basis = bases.Shifts(shape[0] if len(shape) == 1 else shape, offsets, padding_mode=mode)
    check_shifts(shape, offsets, mode, basis)
    unsaid = bases.Shifts(None, offsets, padding_mode=mode)
    A = grids.shifts(shape, offsets, mode)
    close(unsaid.bind(grid=shape, dtype=DOUBLE).to_dense(), A)
    check_layer(GridConv(3, 2, unsaid), A, shape, shape, ["auto"])


def check_shifts(shape: Position, offsets: list, mode: str, basis: Basis) -> None:
    A = grids.shifts(shape, offsets, mode)
    bound = basis.bind(dtype=DOUBLE)
    assert tuple(bound.target_grid) == shape
    check_bound(bound, A)
    # One vendor's window may have them all as taps, or they are too far apart.
    check_layer(GridConv(3, 2, basis), A, shape, shape, [p for p in PATHS if p != "native"])


def _in_room(offset: int | Position, shape: Position) -> bool:
    d = (offset,) if isinstance(offset, int) else offset
    return all(abs(e) < s for e, s in zip(d, shape, strict=True))


def test_shifts_are_a_window() -> None:
    """The taps of a window, each as the way from its source to its target."""
    shape = (4, 5)
    for dilation in (1, 2):
        offsets = [(-dilation * a, -dilation * b) for a in (-1, 0, 1) for b in (-1, 0, 1)]
        for mode in grids.MODES:
            window = bases.Window(shape, 3, padding=dilation, dilation=dilation, padding_mode=mode)
            shifts = bases.Shifts(shape, offsets, padding_mode=mode)
            close(*(basis.bind(dtype=DOUBLE).to_dense() for basis in (window, shifts)), what=mode)


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 2)], ids=str)
def test_circular_shifts_multiply(shape: Position) -> None:
    """One after the other they are the shift by the sum, and the transposed one is the way back."""
    d, e = (2, -1, 1)[: len(shape)], (-1, 3, 1)[: len(shape)]

    def shift(*offset: int) -> bases.Shifts:
        return bases.Shifts(shape, [offset], padding_mode="circular")

    both = (shift(*d) @ shift(*e)).bind(dtype=DOUBLE).to_dense()
    close(both, shift(*(a + b for a, b in zip(d, e, strict=True))).bind(dtype=DOUBLE).to_dense())
    close(shift(*d).T.bind(dtype=DOUBLE).to_dense(), shift(*(-a for a in d)).bind(dtype=DOUBLE).to_dense())
    x = draw(math.prod(shape), 3)
    rolled = x.view(*shape, 3).roll(d, tuple(range(len(shape)))).flatten(0, -2)
    close(shift(*d).bind(dtype=DOUBLE).expand(x)[0], rolled)


def test_edges_without_a_graph() -> None:
    """A family that knows its grid gives its typed edges, for any layer on graphs."""
    for basis, A in (
        (bases.Window((4, 5), 3, stride=2, padding=1), grids.window((4, 5), (3, 3), 2, 1)),
        (bases.Shifts((4, 5), [(0, 1), (1, 0)]), grids.shifts((4, 5), [(0, 1), (1, 0)])),
    ):
        kind, source, target, weight = basis.edges()
        assert weight.dtype == torch.get_default_dtype()
        assert not any(end.is_floating_point() for end in (kind, source, target))
        found = torch.zeros(A.shape, dtype=DOUBLE)
        found[kind.long(), source.long(), target.long()] = weight.double()
        close(found, A)
        assert len(weight) == int(A.count_nonzero())


def test_a_sequence_says_its_length() -> None:
    """Without a shape, shifts of one axis take the rows as they come."""
    conv = fill(BasisConv(3, 2, bases.Shifts(None, [0, 1, -2])))
    for M in (1, 2, 5, 3):
        x = draw(2, M, 3)
        A = grids.shifts((M,), [0, 1, -2])
        close(conv(x), oracle.apply(A, x, conv.weight, conv.bias))
    window = fill(BasisConv(3, 2, bases.Window(None, 3, padding=1)))
    for M in (1, 4, 2):
        x = draw(2, M, 3)
        close(window(x), oracle.apply(grids.window((M,), (3,), padding=1), x, window.weight, window.bias))


# Parameters.


def separable(conv: GridConv) -> Tensor:
    W, c = conv.theta.weight, conv.theta.mix
    if c.dim() == 2:
        return torch.stack([sum(c[h, k] * W[h] for h in range(len(W))) for k in range(c.shape[1])])
    return torch.stack([sum(torch.diag(c[h, k]) @ W[h] for h in range(len(W))) for k in range(c.shape[1])])


def named(kind: str) -> Callable[[GridConv], Tensor]:
    def Theta(conv: GridConv) -> Tensor:
        return oracle.theta(kind, conv.theta.K, conv.theta.P, conv.theta.Q, dict(conv.theta.named_parameters()))

    return Theta


def scaled(scale: list[float], P: int, concat: bool = False) -> Callable[[GridConv], Tensor]:
    def Theta(conv: GridConv) -> Tensor:
        K = len(scale)
        dense = torch.zeros(K, P, K * P if concat else P, dtype=DOUBLE)
        for k in range(K):
            for p in range(P):
                dense[k, p, k * P + p if concat else p] = scale[k]
        return dense

    return Theta


THETAS: dict[str, tuple[int, int, Callable[[], Theta], Callable[[GridConv], Tensor]]] = {
    # name: (P, Q, theta for a window of 4 members, the dense matrices)
    "Full": (3, 2, theta.Full, named("Full")),
    "Depthwise": (3, 3, theta.Depthwise, named("Depthwise")),
    "Depthwise(2)": (
        4,
        4,
        lambda: theta.Depthwise(2),
        lambda c: torch.stack([torch.diag(w.repeat_interleave(2)) for w in c.theta.weight]),
    ),
    "Depthwise(softmax)": (3, 3, lambda: theta.Depthwise(normalize="softmax"), named("Depthwise(softmax)")),
    "Grouped(1)": (3, 2, lambda: theta.Grouped(1), lambda c: blocks(c.theta.weight, 3, 2)),
    "Grouped(2)": (4, 6, lambda: theta.Grouped(2), lambda c: blocks(c.theta.weight, 4, 6)),
    "Grouped(3)": (3, 6, lambda: theta.Grouped(3), lambda c: blocks(c.theta.weight, 3, 6)),
    "Kernel(1)": (3, 2, lambda: theta.Kernel((2, 2)), lambda c: kernel(c.theta.weight, 1)),
    "Kernel(3)": (3, 6, lambda: theta.Kernel((2, 2), 3), lambda c: kernel(c.theta.weight, 3)),
    "Kernel(2, transposed)": (
        4,
        6,
        lambda: theta.Kernel((2, 2), 2, transposed=True),
        lambda c: kernel(c.theta.weight, 2).transpose(1, 2),
    ),
    "Separable": (3, 2, theta.Separable, separable),
    "Separable(2)": (3, 4, lambda: theta.Separable(2), separable),
    "Separable(depthwise)": (3, 2, lambda: theta.Separable(depthwise=True), separable),
    "Separable(3, depthwise)": (3, 4, lambda: theta.Separable(3, depthwise=True), separable),
    "Heads": (3, 8, theta.Heads, named("Heads")),
    "Heads(mean)": (3, 2, lambda: theta.Heads("mean"), named("Heads(mean)")),
    "LowRank": (3, 2, lambda: theta.LowRank(2), named("LowRank")),
    "Pass": (3, 3, theta.Pass, scaled([1.0] * 4, 3)),
    "Pass(0.25)": (3, 3, lambda: theta.Pass(scale=0.25), scaled([0.25] * 4, 3)),
    "Pass(scales)": (2, 2, lambda: theta.Pass(scale=[0.5, -1.0, 0.0, 2.0]), scaled([0.5, -1.0, 0.0, 2.0], 2)),
    "Pass(concat)": (3, 12, lambda: theta.Pass(combine="concat"), scaled([1.0] * 4, 3, True)),
    "Pass(scales, concat)": (
        2,
        8,
        lambda: theta.Pass(scale=[0.5, -1.0, 0.0, 2.0], combine="concat"),
        scaled([0.5, -1.0, 0.0, 2.0], 2, True),
    ),
    "Pass(split)": (8, 2, lambda: theta.Pass(combine="split"), named("Pass(split)")),
}
KERNELLESS = ("Heads", "LowRank", "Pass(concat)", "Pass(scales, concat)", "Pass(split)")  # that no vendor evaluates
WINDOWS: dict[str, dict[str, Any]] = {
    "plain": {},
    "strided": {"stride": (1, 2), "padding": 1},
    "circular": {"padding": "same", "padding_mode": "circular"},
    "transposed": {"stride": 2, "padding": (1, 0), "transposed": True},
    "mean": {"padding": 1, "norm": "mean"},
}


# Each kind of parameter on two windows, each window under many kinds.
MET = [(kind, list(WINDOWS)[(i + j) % len(WINDOWS)]) for i, kind in enumerate(THETAS) for j in (0, 2)]


@pytest.mark.parametrize(("kind", "window"), MET)
@pytest.mark.sweep(14)
def test_parameters_on_windows(kind: str, window: str) -> None:
    P, Q, make, Theta = THETAS[kind]
    shape, kernel = (4, 3), (2, 2)
    A = grids.window(shape, kernel, **WINDOWS[window])
    arguments = {k: v for k, v in WINDOWS[window].items() if k not in ("padding_mode", "norm")}
    to = grids.grid(shape, kernel, **arguments)
    conv = GridConv(P, Q, bases.Window(None, kernel, **WINDOWS[window]), make())
    check_layer(conv, A, shape, to, ["auto", *EDGE_PATHS, "message", "message/a_first"], Theta)
    native = fill(GridConv(P, Q, bases.Window(None, kernel, **WINDOWS[window]), make(), order="native"))
    if kind in KERNELLESS:
        with pytest.raises(ValueError, match=r"^order: 'native' was asked for"):
            native(draw(2, P, *shape))
    else:
        check_layer(native, A, shape, to, ["native"], Theta)


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("order", ["auto", "a_first", "theta_first", "phi"])
def test_unfold(axes: int, order: str) -> None:
    """Members side by side are the columns of torch's unfolding, with the tap and the channel in the other order."""
    shape, kernel = (4, 3, 5)[:axes], (2, 3, 2)[:axes]
    K, P = math.prod(kernel), 2
    conv = GridConv(-1, -1, bases.Window(None, kernel), theta.Pass(combine="concat"), bias=False, order=order)
    x = draw(2, P, *shape)
    windows = x
    for axis in range(axes):
        windows = windows.unfold(2 + axis, kernel[axis], 1)
    to = windows.shape[2 : 2 + axes]
    right = windows.reshape(2, P, *to, K).permute(0, -1, 1, *range(2, 2 + axes)).reshape(2, K * P, *to)
    close(conv(x), right)
    if axes == 2:
        unfolded = nn.Unfold(kernel)(x).unflatten(1, (P, K)).transpose(1, 2).flatten(1, 2)
        close(conv(x).flatten(2), unfolded)


def test_divisor_of_a_pool() -> None:
    """A pooling that divides by a number of its own."""
    x = draw(2, 3, 5, 6)
    conv = GridConv(-1, -1, bases.Window(None, (2, 3), stride=2, padding=1), theta.Pass(scale=1 / 5), bias=False)
    close(conv(x), F.avg_pool2d(x, (2, 3), 2, 1, divisor_override=5))


def test_any_width() -> None:
    """A pool takes images of any number of channels, one after the other; a first call says an open width."""
    pool = GridConv(-1, -1, bases.Window(None, (2, 2)), theta.Pass(scale=0.25), bias=False)
    for P in (1, 3, 2):
        close(pool(draw(2, P, 4, 4)), F.avg_pool2d(draw(2, P, 4, 4), 2, 1))
    conv = GridConv(-1, 2, bases.Window(None, (2, 2))).double()
    assert conv(draw(2, 3, 4, 4)).shape == (2, 2, 3, 3)
    assert conv.in_channels == 3
    assert conv.weight.shape == (4, 3, 2)


# Families side by side, turned round, and multiplied.


SQUARE = {"padding": 1, "padding_mode": "circular"}


def compositions() -> dict[str, tuple[Callable[[Position], Basis], Callable[[Position], Tensor]]]:
    """name: (the basis on a grid, its matrices)."""

    def W(shape: Position) -> bases.Window:
        return bases.Window(shape, (3, 3), **SQUARE)

    def A(shape: Position) -> Tensor:
        return grids.window(shape, (3, 3), **SQUARE)

    def eye(shape: Position) -> Tensor:
        return torch.eye(math.prod(shape), dtype=DOUBLE)[None]

    def small(shape: Position) -> Tensor:
        return grids.window(shape, (1, 3), padding=(0, 1))

    down = {"stride": 2, "padding": 1}

    def pair(shape: Position, **kwargs: Any) -> tuple[bases.Window, Tensor, Position]:
        to = grids.grid(shape, (3, 2), 2, 1)
        return bases.Window(to, (2, 2), **kwargs), grids.window(to, (2, 2), **kwargs), to

    return {
        "+ Identity": (lambda s: W(s) + bases.Identity(), lambda s: oracle.concat(A(s), eye(s))),
        "Identity +": (lambda s: bases.Identity() + W(s), lambda s: oracle.concat(eye(s), A(s))),
        "+ Window": (
            lambda s: W(s) + bases.Window(s, (1, 3), padding=(0, 1)),
            lambda s: oracle.concat(A(s), small(s)),
        ),
        "+ Shifts": (
            lambda s: W(s) + bases.Shifts(s, [(1, 2)]),
            lambda s: oracle.concat(A(s), grids.shifts(s, [(1, 2)])),
        ),
        "+ Complete": (
            lambda s: W(s) + bases.Complete(),
            lambda s: oracle.concat(A(s), torch.ones(1, *[math.prod(s)] * 2, dtype=DOUBLE)),
        ),
        ".T": (lambda s: W(s).T, lambda s: oracle.transpose(A(s))),
        "strided + strided": (
            lambda s: bases.Window(s, (3, 2), **down) + bases.Window(s, (3, 2), **down, norm="mean"),
            lambda s: oracle.concat(grids.window(s, (3, 2), **down), grids.window(s, (3, 2), **down, norm="mean")),
        ),
        "@": (
            lambda s: bases.Window(s, (1, 3), padding=(0, 1)) @ W(s),
            lambda s: oracle.product(small(s), A(s)),
        ),
        "@ to another grid": (
            lambda s: bases.Window(s, (3, 2), **down) @ pair(s)[0],
            lambda s: oracle.product(grids.window(s, (3, 2), **down), pair(s)[1]),
        ),
        "Mix": (
            lambda s: bases.Mix([[1.0, -2.0, 1.0]], bases.Window(s, (1, 3), padding=(0, 1))),
            lambda s: oracle.mix([[1.0, -2.0, 1.0]], small(s)),
        ),
    }


COMPOSED = compositions()


@pytest.mark.parametrize("name", COMPOSED)
@pytest.mark.sweep(5)
def test_composed(name: str) -> None:
    for shape in ((4, 5), (3, 3)):
        make, matrices = COMPOSED[name]
        A = matrices(shape)
        basis = make(shape)
        M, N = A.shape[1:]
        check_bound(basis.bind(size=(M, N), dtype=DOUBLE), A)
        conv = fill(BasisConv(3, 2, basis))
        for path in [p for p in PATHS if p != "native"]:
            x = draw(2, M, 3).requires_grad_()
            y = take(conv, path)((x, None) if M != N else x, size=(M, N))
            reference = oracle.apply(A, x, conv.weight, conv.bias)
            close(y, reference, what=path)
            down = draw(*y.shape, seed=3)
            leaves = [x, *conv.parameters()]
            for a, b in zip(grad(y, leaves, down), grad(reference, leaves, down), strict=True):
                close(a, b, what=path)


@pytest.mark.parametrize("name", ["+ Identity", "+ Window", "+ Shifts", "strided + strided", ".T"])
def test_composed_on_images(name: str) -> None:
    """A sum of families on one grid is a layer on images too."""
    shape = (4, 5)
    make, matrices = COMPOSED[name]
    to = grids.grid(shape, (3, 2), 2, 1) if name == "strided + strided" else shape
    check_layer(GridConv(3, 2, make(shape)), matrices(shape), shape, to, [p for p in PATHS if p != "native"])


UNSAID: dict[str, tuple[Callable[[], Basis], Callable[[], Tensor], Position]] = {
    # name: (a basis that the image tells the grid, the matrices on 4 x 5, the grid of the targets)
    "+ Window": (
        lambda: bases.Window(None, (3, 3), padding=1) + bases.Window(None, (1, 3), padding=(0, 1)),
        lambda: oracle.concat(grids.window((4, 5), (3, 3), padding=1), grids.window((4, 5), (1, 3), padding=(0, 1))),
        (4, 5),
    ),
    "+ Identity": (
        lambda: bases.Window(None, (3, 3), **SQUARE) + bases.Identity(),
        lambda: oracle.concat(grids.window((4, 5), (3, 3), **SQUARE), torch.eye(20, dtype=DOUBLE)[None]),
        (4, 5),
    ),
    "strided + strided": (
        lambda: bases.Window(None, (3, 3), stride=2, padding=1) + bases.Window(None, (1, 1), stride=2),
        lambda: oracle.concat(grids.window((4, 5), (3, 3), 2, 1), grids.window((4, 5), (1, 1), 2)),
        (2, 3),
    ),
    "@": (
        lambda: bases.Window(None, (3, 3), padding=1) @ bases.Window(None, (1, 2)),
        lambda: oracle.product(grids.window((4, 5), (3, 3), padding=1), grids.window((4, 5), (1, 2))),
        (4, 4),
    ),
    "@ strided": (
        lambda: bases.Window(None, (3, 3), stride=2, padding=1) @ bases.Window(None, (1, 3), padding=(0, 1)),
        lambda: oracle.product(grids.window((4, 5), (3, 3), 2, 1), grids.window((2, 3), (1, 3), padding=(0, 1))),
        (2, 3),
    ),
    ".T": (
        lambda: bases.Window(None, (3, 2), padding=1, padding_mode="replicate", dilation=(1, 2)).T,
        lambda: oracle.transpose(grids.window((4, 5), (3, 2), padding=1, padding_mode="replicate", dilation=(1, 2))),
        (4, 5),
    ),
    "Mix": (
        lambda: bases.Mix([[1.0, -2.0, 1.0]], bases.Window(None, (1, 3), padding=(0, 1))),
        lambda: oracle.mix([[1.0, -2.0, 1.0]], grids.window((4, 5), (1, 3), padding=(0, 1))),
        (4, 5),
    ),
    "Identity": (bases.Identity, lambda: torch.eye(20, dtype=DOUBLE)[None], (4, 5)),
    "Complete": (bases.Complete, lambda: torch.ones(1, 20, 20, dtype=DOUBLE), (4, 5)),
}


@pytest.mark.parametrize("name", UNSAID)
def test_composed_without_a_shape(name: str) -> None:
    """The image says what grid it is, to every part."""
    make, matrices, to = UNSAID[name]
    check_layer(GridConv(3, 2, make()), matrices(), (4, 5), to, [p for p in PATHS if p != "native"])


@pytest.mark.parametrize("arguments", [{"padding": 1}, {"padding": 1, "stride": 2}, {"stride": (1, 3)}], ids=str)
def test_transposed_family_on_images(arguments: dict[str, Any]) -> None:
    """The sources of the transposed family are the grid of the window's targets."""
    A = oracle.transpose(grids.window((4, 5), (3, 2), **arguments))
    conv = GridConv(3, 2, bases.Window((4, 5), (3, 2), **arguments).T)
    check_layer(conv, A, grids.grid((4, 5), (3, 2), **arguments), (4, 5), PATHS)


@pytest.mark.parametrize("name", ["1d", "2d", "3d"])
def test_shifts_natively(name: str) -> None:
    """Shifts near one another are some of the taps of a window, which torch evaluates."""
    shape, offsets = SHIFTS[name]
    near = [d for d in offsets if max(abs(e) for e in ((d,) if isinstance(d, int) else d)) < 3]
    A = grids.shifts(shape, near)
    for kind in (theta.Full(), theta.Depthwise()):
        check_layer(GridConv(3, 3, bases.Shifts(shape, near), kind), A, shape, shape, ["native"])


def test_transposed_windows() -> None:
    """A transposed convolution is the transposed family of the convolution, with its Theta turned round."""
    for c in SWEEP.values():
        if c.kind != "conv" or c.mode != "zeros" or c.padding == "same" or c.axes != 2:
            continue
        arguments = {k: v for k, v in c.arguments.items() if k != "padding_mode"}
        A = c.window(c.shape).T.bind(dtype=DOUBLE).to_dense()
        back = grids.grid(c.grid, c.kernel, **arguments, transposed=True)
        rest = tuple(s - b for s, b in zip(c.shape, back, strict=True))
        if all(r < max(s, d) for r, s, d in zip(rest, c.stride, c.dilation, strict=True)):
            window = bases.Window(c.grid, c.kernel, **arguments, transposed=True, output_padding=rest)
            close(window.bind(dtype=DOUBLE).to_dense(), A, what=c.name)


def test_beside_attention() -> None:
    """Convolution and attention as heads of one layer."""
    from pyg_basisconv.mechanisms import Dot

    shape = (3, 4)
    window = bases.Window(shape, (3, 3), padding=1)
    conv = fill(BasisConv(4, 6, bases.Attention(2, Dot(3)) + window))
    x = draw(2, 12, 4).requires_grad_()
    y, A = conv(x, return_attention=True)
    dense = A.to_dense()  # (K, 2, M, N)
    assert dense.shape == (11, 2, 12, 12)
    close(dense[2:, 0], grids.window(shape, (3, 3), padding=1))
    close(dense[:2].sum(-2), torch.ones(2, 2, 12, dtype=DOUBLE))
    right = sum(dense[k].transpose(-1, -2) @ x @ conv.weight[k] for k in range(11)) + conv.bias
    close(y, right)
    down = draw(*y.shape, seed=3)
    leaves = [x, *conv.parameters()]
    first = grad(y, leaves, down, retain_graph=True)
    for order in ("a_first", "theta_first"):
        conv.order = order
        for a, b in zip(grad(conv(x), leaves, down), first, strict=True):
            close(a, b, what=order)
    # Each by itself, with the same parameters, add up to the same.
    alone = BasisConv(4, 6, window, bias=False).double()
    alone.theta.weight.data = conv.weight.data[2:]
    rest = sum(dense[k].transpose(-1, -2) @ x @ conv.weight[k] for k in range(2)) + conv.bias
    close(y - alone(x), rest)


@pytest.mark.parametrize("shape", [(4, 5), None], ids=str)
def test_attention_on_images(shape: Position | None) -> None:
    """Attention that looks at a window, or everywhere, is that of the rows."""
    from pyg_basisconv.mechanisms import Dot

    x = draw(2, 3, 4, 5)
    for mask, seen_ in (
        (None, torch.ones(20, 20, dtype=torch.bool)),
        (bases.Window(shape, (3, 3), padding=1), grids.window((4, 5), (3, 3), padding=1).sum(0) > 0),
        (bases.Shifts(shape, [(0, 0), (1, -1)]), grids.shifts((4, 5), [(0, 0), (1, -1)]).sum(0) > 0),
    ):
        conv = fill(GridConv(3, 4, bases.Attention(2, Dot(3), mask), theta.Heads()))
        rows_only = fill(BasisConv(3, 4, bases.Attention(2, Dot(3)), theta.Heads()))
        right = rows_only(rows(x, 2), mask=seen_)
        close(rows(conv(x), 2), right, what=str(mask))
        y, A = conv(x, return_attention=True)
        close(rows(y, 2), right, what=str(mask))
        assert not A.to_dense()[..., ~seen_].any()


def test_beside_what_the_targets_know() -> None:
    """Targets with features of their own, beside a window that is strided."""
    A = grids.window((4, 5), (3, 3), 2, 1)
    conv = fill(BasisConv(3, 2, bases.Window((4, 5), (3, 3), stride=2, padding=1) + bases.Identity()))
    x, target = draw(2, 20, 3).requires_grad_(), draw(2, 6, 3, seed=7).requires_grad_()
    right = oracle.apply(A, x, conv.weight[:9], conv.bias) + target @ conv.weight[9]
    down = draw(*right.shape, seed=3)
    leaves = [x, target, *conv.parameters()]
    theirs = grad(right, leaves, down)
    for path in [p for p in PATHS if p != "native"]:
        y = take(conv, path)((x, target))
        close(y, right, what=path)
        for a, b in zip(grad(y, leaves, down), theirs, strict=True):
            close(a, b, what=path)


# What a layer of torch can do.


def test_sparse_rows() -> None:
    x = draw(20, 3) * (draw(20, 3, seed=2) > 0)
    A = grids.window((4, 5), (3, 3), padding=1)
    conv = fill(BasisConv(3, 2, bases.Window((4, 5), (3, 3), padding=1)))
    right = oracle.apply(A, x, conv.weight, conv.bias)
    for path in ("auto", "theta_first", "message"):
        for sparse in (x.to_sparse_csr(), x.to_sparse_coo()):
            close(take(conv, path)(sparse), right, what=path)
    for path in ("native", "phi", "a_first"):
        with pytest.raises(ValueError, match=f"^order: '{path}' was asked for, but x is sparse"):
            take(conv, path)(x.to_sparse_csr())


@sampled
def test_mapped_over_images(c: Config) -> None:
    layer, x = c.torch(), c.image()
    conv = c.grid_conv(layer)
    for path in ORDERS:
        close(torch.func.vmap(take(conv, path))(x), call_torch(layer, x), what=path)


@pytest.mark.parametrize("path", PATHS)
def test_autocast(path: str) -> None:
    c = CONV
    layer, x = c.torch(), c.image()
    conv = take(c.grid_conv(layer).float(), path)
    leaf = x.float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y, low = conv(leaf), conv(x.bfloat16())
    assert y.dtype in (torch.float32, torch.bfloat16)
    y.sum().backward()
    assert leaf.grad.dtype == conv.weight.grad.dtype == torch.float32
    for result in (y, low):
        assert_close(result.double(), call_torch(layer, x), rtol=5e-2, atol=5e-2)


def test_cached_products_are_fresh() -> None:
    """cached=True keeps nothing of an image that has changed."""
    c = CONV
    layer, x = c.torch(), c.image()
    conv = GridConv(c.P, c.Q, c.window(), cached=True)
    c.fill(conv, layer)
    for path in PATHS:
        for _ in range(3):
            close(take(conv, path)(x), call_torch(layer, x), what=path)
            x.mul_(1.25)


def test_more_batch_dimensions() -> None:
    c = CONV
    layer, x = c.torch(), draw(2, 3, c.P, *c.shape)
    conv = c.grid_conv(layer)
    for path in PATHS:
        close(take(conv, path)(x).flatten(0, 1), call_torch(layer, x.flatten(0, 1)), what=path)


@pytest.mark.parametrize("order", ORDERS[1:])
@pytest.mark.parametrize("name", ["conv1d", "conv2d-groups", "conv2d-same", "convT2d", "avgpool2d-seen"])
@pytest.mark.sweep(3)
def test_gradcheck(name: str, order: str) -> None:
    c = SAMPLES[name]
    c = c.but(B=1, P=c.groups, Q=c.groups if c.kind == "avgpool" else 2 * c.groups)
    smaller = [c.but(shape=tuple(min(s, most) for s in c.shape)) for most in (3, 4)]
    c = next((small for small in smaller if _fits(small)), c)
    conv = c.grid_conv(c.torch(), order=order)
    named = dict(conv.named_parameters())

    def function(x: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(conv, dict(zip(named, parameters, strict=True)), x)

    inputs = [c.image().requires_grad_(), *(p.detach().clone().requires_grad_() for p in named.values())]
    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)


@sampled
def test_copied_pickled_loaded(c: Config) -> None:
    layer, x = c.torch(), c.image()
    right = call_torch(layer, x)
    conv = c.grid_conv(layer)
    close(conv(x), right)  # what a call keeps is copied too
    close(copy.deepcopy(conv)(x), right)
    close(pickle.loads(pickle.dumps(conv))(x), right)
    file = io.BytesIO()
    torch.save(conv.state_dict(), file)
    file.seek(0)
    other = c.grid_conv(c.torch())
    for parameter in other.parameters():
        nn.init.zeros_(parameter)
    other.load_state_dict(torch.load(file))
    close(other(x), right)
    assert set(conv.state_dict()) == ({"theta.weight", "bias"} if c.bias else {"theta.weight"}) & set(conv.state_dict())


def test_plan_says_what_it_does() -> None:
    conv = GridConv(3, 2, bases.Window(None, (3, 3), padding=1)).double()
    x = draw(2, 3, 8, 8)
    for order in ("native", "phi", "a_first", "theta_first"):
        conv.order = order
        plan = conv.plan(x)
        assert plan.order == order
        assert order in str(plan)
    conv.order = "auto"
    assert conv.plan(x).order in ("native", "phi", "a_first", "theta_first")


def test_plan_takes_the_kernel_of_torch_for_images() -> None:
    for kind in (theta.Full(), theta.Grouped(4), theta.Depthwise()):
        conv = GridConv(16, 16, bases.Window(None, (3, 3), padding=1), kind)
        assert conv.plan(torch.randn(4, 16, 40, 40)).order == "native", str(kind)


def test_messages_are_seen() -> None:
    """Hooks on the messages of a layer of PyG work on a grid too, and are asked."""
    c = CONV
    layer, x = c.torch(), c.image()
    conv = c.grid_conv(layer)
    seen_ = []
    handle = conv.register_message_forward_hook(lambda module, inputs, output: seen_.append(output.shape))
    close(conv(x), call_torch(layer, x))
    assert seen_
    handle.remove()
    seen_.clear()
    close(conv(x), call_torch(layer, x))
    assert not seen_


def test_reset_parameters() -> None:
    conv = GridConv(3, 2, bases.Window(None, (3, 3)))
    before = conv.weight.clone()
    nn.init.ones_(conv.bias)
    conv.reset_parameters()
    assert not torch.equal(conv.weight, before)
    assert not conv.bias.any()


def test_prints() -> None:
    assert "Window(" in repr(GridConv(3, 2, bases.Window((4, 4), 3, padding=1)))
    assert repr(GridConv(3, 2, bases.Window(None, (3, 3)))).startswith("GridConv(3, 2, Window(")
    printed = [
        bases.Window((4, 4), 3),
        bases.Window(None, (3, 3)),
        bases.Window((4, 4), 3, stride=2),
        bases.Window((4, 4), 3, padding=1),
        bases.Window((4, 4), 3, padding="same"),
        bases.Window((4, 4), 3, padding=1, padding_mode="circular"),
        bases.Window((4, 4), 3, dilation=2, padding=1),
        bases.Window((4, 4), 3, transposed=True),
        bases.Window((4, 4), 3, stride=2, transposed=True),
        bases.Window((4, 4), 3, stride=2, transposed=True, output_padding=1),
        bases.Window((4, 4), 3, stride=2, ceil_mode=True),
        bases.Window((4, 4), 3, norm="mean"),
        bases.Window((4, 4), 3, norm="padded"),
        bases.Window((4, 5), 3),
        bases.Window((4, 4), (3, 1)),
        bases.Shifts((4, 4), [(0, 1)]),
        bases.Shifts((4, 4), [(1, 0)]),
        bases.Shifts((4, 4), [(0, 1)], padding_mode="circular"),
        bases.Shifts(None, [(0, 1)]),
    ]
    assert len({repr(basis) for basis in printed}) == len(printed), "bases that differ print differently"


def test_bases_that_print_the_same_are_bound_once_and_others_not() -> None:
    """Families that differ in one argument, one after the other on the same rows."""
    x = draw(16, 3)
    for mode in grids.MODES:
        for padding in (0, 1):
            for dilation in (1, 1, 2):
                if padding == 0 and dilation == 2 and mode != "zeros":
                    continue
                window = bases.Window((4, 4), 2, padding=padding, dilation=dilation, padding_mode=mode)
                conv = fill(BasisConv(3, 2, window))
                A = grids.window((4, 4), (2, 2), padding=padding, dilation=dilation, padding_mode=mode)
                close(conv(x), oracle.apply(A, x, conv.weight, conv.bias), what=str(window))


@sampled
@pytest.mark.sweep(4)
def test_without_gradients_and_in_inference(c: Config) -> None:
    """A first call in either mode leaves nothing behind that hurts training, with the window bound once or not."""
    layer, x = c.torch(), c.image()
    right = call_torch(layer, x)
    for path in PATHS:
        for guard in (torch.inference_mode, torch.no_grad):
            conv = take(c.grid_conv(layer), path)
            bound = c.window().bind(grid=c.shape, dtype=DOUBLE)
            flat = rows(x, c.axes)
            with guard():
                close(conv(x), right, what=path)
                BasisConv.forward(conv, flat, bound)
            leaf, own = (x.clone().requires_grad_() for _ in range(2))
            y, z = conv(leaf), image(BasisConv.forward(conv, rows(leaf, c.axes), bound), c.grid)
            reference = call_torch(layer, own)
            down = draw(*y.shape, seed=3)
            gx, *learnt = grad(reference, [own, *layer.parameters()], down)
            for found in (y, z):
                close(found, right, what=path)
                leaves = [leaf, *conv.theta.parameters()]
                mine = grad(found, leaves, down, retain_graph=True)
                theirs = [gx, *(c.weight(g) for g in learnt[:1])]
                for a, b in zip(mine, theirs, strict=True):
                    close(a, b, what=path)


@pytest.mark.parametrize("width", [1, 5, 40])
@pytest.mark.parametrize("length", [1, 31, 32, 33, 100])
def test_images_of_one_axis_by_strips(length: int, width: int) -> None:
    """Of 32 entries, or as many as the window has; consecutive channels share their taps."""
    before = width // 2 + 1 if width > 1 else 0
    x, kernel = draw(2, length, 4), draw(width, 2)
    padded = F.pad(x, (0, 0, before, width - 1 - before))
    taps = kernel.repeat_interleave(2, 1)
    expected = sum(padded[:, j : j + length] * taps[j] for j in range(width))
    assert_close(banded_convolution(x, kernel, before), expected)


def test_changes_in_place_are_seen() -> None:
    c = CONV
    layer, x = c.torch(), c.image()
    for path in PATHS:
        conv = take(c.grid_conv(layer), path)
        conv(x)
        with torch.no_grad():
            x.mul_(1.5)
            for mine, own in ((conv.theta.weight, layer.weight), (conv.bias, layer.bias)):
                mine.mul_(0.5)
                own.mul_(0.5)
        close(conv(x), call_torch(layer, x), what=path)


@pytest.mark.parametrize("order", ORDERS)
def test_the_same_bits_twice(order: str) -> None:
    c = CONV
    results = []
    for _ in range(2):
        conv = c.grid_conv(c.torch(), order=order).float()
        x = c.image().float().requires_grad_()
        y = conv(x)
        results.append((y, *grad(y.square().sum(), [x, *conv.parameters()])))
    assert_close(results[0], results[1], rtol=0, atol=0)


def test_in_a_network() -> None:
    """Between torch's own layers, trained for some steps beside its twin."""

    def net(convs: list[nn.Module]) -> nn.Sequential:
        return nn.Sequential(convs[0], nn.ReLU(), convs[1], nn.Flatten(), nn.LazyLinear(3))

    first = Config("conv", (6, 6), (3, 3), (1, 1), (1, 1), (1, 1), P=2, Q=4)
    second = Config("conv", (6, 6), (2, 2), (2, 2), (0, 0), (1, 1), P=4, Q=4, groups=4)
    layers = [first.torch(), second.torch()]
    mine = net([first.grid_conv(layers[0]), second.grid_conv(layers[1])]).double()
    theirs = net(layers).double()
    x = first.image()
    mine(x), theirs(x)
    mine[-1].load_state_dict(theirs[-1].state_dict())
    for model in (mine, theirs):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    close(mine(x), theirs(x), 1e-9)


@pytest.mark.cuda
def test_to_a_device() -> None:
    for c in SAMPLES.values():
        layer, x = c.torch(), c.image()
        conv = c.grid_conv(layer)
        right = call_torch(layer, x)
        close(conv(x), right)
        for path in PATHS:
            close(take(conv, path).cuda()(x.cuda()).cpu(), right, 1e-9, path)


@pytest.mark.parametrize("mode", grids.MODES)
@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
@pytest.mark.parametrize("given", [True, False], ids=["shape", "any shape"])
def test_an_axis_without_sources_has_no_targets(mode: str, shape: tuple[int, int], given: bool) -> None:
    """There is nothing that padding could repeat."""
    window = bases.Window(shape if given else None, (3, 3), padding=2, padding_mode=mode)
    conv = GridConv(2, 3, window).double()
    y = conv(torch.randn(5, 2, *shape, dtype=DOUBLE))
    assert y.shape == (5, 3, *(m and m + 2 for m in shape))
    assert not given or window.bind(dtype=DOUBLE).to_dense().shape == (9, 0, 0)


SIZES = st.integers(1, 6)


@given(data=st.data(), axes=st.integers(1, 4), order=st.sampled_from([p for p in PATHS if p != "native"]))
def test_any_window(data: st.DataObject, axes: int, order: str) -> None:
    """Whatever fits is the definition."""

    def each(low: int, high: int, what: str) -> Position:
        return tuple(data.draw(st.integers(low, high), label=what) for _ in range(axes))

    shape = each(1, 5 if axes < 3 else 3, "shape")
    kernel, dilation = each(1, 3, "kernel"), each(1, 2, "dilation")
    stride = each(1, 3, "stride")
    mode = data.draw(st.sampled_from(grids.MODES), label="mode")
    arguments: dict[str, Any] = {"dilation": dilation, "padding": each(0, 2, "padding"), "stride": stride}
    if data.draw(st.booleans(), label="transposed"):
        bound = [max(s, d) - 1 for s, d in zip(stride, dilation, strict=True)]
        arguments |= {
            "transposed": True,
            "output_padding": tuple(data.draw(st.integers(0, b), label="output_padding") for b in bound),
        }
        if min(grids.grid(shape, kernel, **arguments)) < 1:
            return
        to = grids.grid(shape, kernel, **arguments)
    else:
        if data.draw(st.booleans(), label="same"):
            arguments |= {"padding": "same", "stride": (1,) * axes}
        around = grids.paddings(kernel, arguments["padding"], dilation)
        for s, (before, after), k, d in zip(shape, around, kernel, dilation, strict=True):
            limit = {"circular": s, "reflect": s - 1}.get(mode, 99)
            if s + before + after < d * (k - 1) + 1 or max(before, after) > limit:
                return
        if mode == "zeros" and arguments["padding"] != "same":
            arguments["ceil_mode"] = data.draw(st.booleans(), label="ceil_mode")
        to = grids.grid(shape, kernel, **arguments)
        arguments["padding_mode"] = mode
        if mode == "zeros":
            arguments["norm"] = data.draw(st.sampled_from([None, "mean", "padded"]), label="norm")
    A = grids.window(shape, kernel, **arguments)
    window = bases.Window(shape, kernel, **arguments)
    close(window.bind(dtype=DOUBLE).to_dense(), A)
    if math.prod(shape) * math.prod(to) < 2000:
        check_layer(GridConv(2, 1, window), A, shape, to, [order, "auto"])
