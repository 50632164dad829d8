"""Convolutions on grids against torch's, and on groups against rotated kernels and inputs."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from .. import bases
from ..conv import BasisConv
from ..grid import GridConv
from ..theta import Pass, Separable
from .comparison import Case, formula, system
from .data import GRIDS, B, drawn, features

P, Q = 4, 6  # channels
Options = dict[str, Any]
_CONVOLVE: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def kernel(weight: Tensor, size: Sequence[int]) -> Tensor:
    """(K, P, Q) as (Q, P, *size)."""
    return weight.unflatten(0, tuple(size)).movedim((-2, -1), (1, 0))


def channels_last(x: Tensor) -> Tensor:
    """(*, P, H, W) as (*, H W, P)."""
    return x.flatten(-2).transpose(-1, -2)


@system("depthwise separable", "two torch.nn.Conv2d")
def _separable() -> Iterator[Case]:
    for options in (
        {"padding": 1},
        {"stride": 2, "padding": 2, "dilation": 2},
        {"padding": 2, "padding_mode": "reflect"},
    ):
        apart = nn.Conv2d(P, P, 3, groups=P, bias=False, **options)  # type: ignore[arg-type]
        peer = nn.Sequential(apart, nn.Conv2d(P, Q, 1))

        def two(c: Any, x: Tensor, peer: nn.Module = peer) -> Tensor:
            taps, matrix = c.theta.mix[0].t().view(P, 1, 3, 3), c.theta.weight[0].t().view(Q, P, 1, 1)
            return functional_call(peer, {"0.weight": taps, "1.weight": matrix, "1.bias": c.bias}, (x,))

        window = bases.Window(None, (3, 3), **options)  # type: ignore[arg-type]
        yield formula(GridConv(P, Q, window, Separable(depthwise=True)), two, [features(B, P, 6, 7)])


@system("controlled separability", "sums of H convolutions")
def _controlled() -> Iterator[Case]:
    def summed(c: Any, x: Tensor) -> Tensor:
        t = c.theta
        H = t.weight.shape[0]
        parts = []
        for h in range(H):
            if t.depthwise:  # the taps of each channel first, then the matrix
                taps = t.mix[h].t().view(P, 1, 3, 2)
                apart = F.conv2d(x, taps, padding=(1, 0), groups=P)
                parts.append(torch.einsum("...pij,pq->...qij", apart, t.weight[h]))
            else:
                whole = torch.einsum("k,pq->qpk", t.mix[h], t.weight[h]).view(Q, P, 3, 2)
                parts.append(F.conv2d(x, whole, padding=(1, 0)))
        return torch.stack(parts).sum(0) + c.bias.view(-1, 1, 1)

    for H, depthwise, order in product((1, 3), (False, True), ("auto", "a_first", "theta_first")):
        conv = GridConv(P, Q, bases.Window(None, (3, 2), padding=(1, 0)), Separable(H, depthwise), order=order)
        yield formula(conv, summed, [features(B, P, 5, 6)])


@system("1 x 1", "torch.nn.Linear")
def _pointwise() -> Iterator[Case]:
    for n, grid in GRIDS.items():
        yield formula(
            GridConv(P, Q, bases.Window(None, (1,) * n)),
            lambda c, x: F.linear(x.movedim(1, -1), c.theta.weight[0].t(), c.bias).movedim(-1, 1),
            [features(B, P, *grid)],
        )


@system("sub-sampling, dilated", "x[::s], convolved")
def _subsampling() -> Iterator[Case]:
    for s, grid in product((2, 3), ((6, 7), (7, 9))):
        only = GridConv(-1, -1, bases.Window(None, (1, 1), stride=s), Pass(), bias=False)
        yield Case(only, lambda x, s=s: x[..., ::s, ::s], [features(B, P, *grid)])

        def convolved(c: Any, x: Tensor, s: int = s) -> Tensor:
            return F.conv2d(x[..., ::s, ::s], kernel(c.theta.weight, (3, 3)), c.bias, padding=1)

        window = bases.Window(None, (3, 3), stride=s, padding=s, dilation=s)
        yield formula(GridConv(P, Q, window), convolved, [features(B, P, *grid)])
        fewer = bases.Window(grid, 1, stride=s)
        then = bases.Window([-(-n // s) for n in grid], 3, padding=1)
        both = BasisConv(P, Q, fewer @ then)
        yield formula(
            both,
            lambda c, x, f=convolved: channels_last(f(c, x)),
            [features(B, P, *grid)],
            lambda f, x: f(channels_last(x)),
        )


@system("shifts, r dimensions", "torch.roll; slices")
def _shifts() -> Iterator[Case]:
    shapes: list[tuple[tuple[int, ...], list[tuple[int, ...]]]] = [
        ((7,), [(0,), (2,), (-1,)]),
        ((4, 5), [(0, 0), (1, 0), (-1, 2), (0, -3)]),
        ((3, 4, 5), [(0, 0, 0), (1, -1, 2), (0, 3, -1)]),
    ]

    def rolled(x: Tensor, theta: Tensor, offsets: list[tuple[int, ...]]) -> Tensor:
        axes = tuple(range(1, len(offsets[0]) + 1))
        return sum(torch.roll(x, d, axes) @ t for d, t in zip(offsets, theta, strict=True))  # type: ignore[return-value]

    def cut(x: Tensor, theta: Tensor, offsets: list[tuple[int, ...]]) -> Tensor:
        far, r = 4, x.dim() - 2
        wide = F.pad(x, [0, 0] + [far] * 2 * r)
        return rolled(wide, theta, offsets)[(slice(None), *[slice(far, -far)] * r)]

    for (shape, offsets), order in product(shapes, ("auto", "a_first", "theta_first", "phi")):
        circular, cut_off = bases.Shifts(shape, offsets, "circular"), bases.Shifts(shape, offsets)
        for basis, reference in ((circular, rolled), (cut_off, cut)):
            yield formula(
                BasisConv(P, Q, basis, order=order, bias=False),
                lambda c, x, f=reference, d=offsets: f(x, c.theta.weight, d).flatten(1, -2),
                [features(B, *shape, P)],
                lambda f, x: f(x.flatten(1, -2)),
            )


@system("circular: translations", "the translated result")
def _translations() -> Iterator[Case]:
    for n, grid in GRIDS.items():
        layer = drawn(GridConv(P, Q, bases.Window(None, (3,) * n, padding=1, padding_mode="circular")))
        by, over = (2, -1, 3)[:n], tuple(range(2, n + 2))
        yield Case(
            lambda x, f=layer, by=by, over=over: f(torch.roll(x, by, over)),
            lambda x, f=layer, by=by, over=over: torch.roll(f(x), by, over),
            [features(B, P, *grid)],
        )


def sites_of(shape: Sequence[int], share: float = 0.4) -> Tensor:
    """(M, r) some sites of a grid, in random order."""
    chosen = torch.randperm(torch.Size(shape).numel())[: round(share * torch.Size(shape).numel())]
    return torch.stack(torch.unravel_index(chosen, tuple(shape)), 1)


def filled_in(x: Tensor, sites: Tensor, shape: Sequence[int], batch: Tensor | None = None) -> Tensor:
    """(M, P) features at some sites as images (B, P, *shape), with zeros elsewhere."""
    batch = sites.new_zeros(len(sites)) if batch is None else batch
    image = x.new_zeros(int(batch.max()) + 1, *shape, x.shape[1])
    return image.index_put((batch, *sites.t()), x).movedim(-1, 1)


def _on_sites(
    c: Any, x: Tensor, sites: Tensor, batch: Tensor | None, read: Tensor, read_batch: Tensor | None, **options: Any
) -> Tensor:
    """A dense convolution of features at some sites, read at others."""
    n = sites.shape[1]
    image = filled_in(x, sites, GRIDS[n], batch)
    y = _CONVOLVE[n](image, kernel(c.theta.weight, (3,) * n), c.bias, **options)
    return y.movedim(1, -1)[(0 if read_batch is None else read_batch, *read.t())]


@system("masked and irregular grids", "a dense convolution of zeros elsewhere")
def _masked() -> Iterator[Case]:
    windows: list[tuple[int, Options]] = [
        (1, {"stride": 2, "padding": 1}),
        (2, {"stride": 2, "padding": 1}),
        (2, {"padding": 2}),
        (2, {"padding": 2, "dilation": 2, "stride": 3}),
        (3, {"stride": 2, "padding": 1}),
    ]

    for (n, options), several in product(windows, (False, True)):
        sites = sites_of(GRIDS[n])
        batch = torch.arange(len(sites)) % 2 if several else None
        window = bases.Window(GRIDS[n], 3, sites=sites, **options)
        bound = window.bind(dtype=torch.float64, batch=batch)
        yield formula(
            BasisConv(P, Q, window),
            lambda c, x, s=sites, b=batch, bound=bound, o=options: _on_sites(
                c, x, s, b, bound.sites, bound.site_batch if b is not None else None, **o
            ),
            [features(len(sites), P)],
            lambda f, x, b=batch: f(x, batch=b),
        )


@system("submanifold", "a dense convolution, read where x is")
def _submanifold() -> Iterator[Case]:
    for shape, dilation, order in product(GRIDS.values(), (1, 2), ("auto", "compacted", "a_first", "theta_first")):
        options, sites = {"padding": dilation, "dilation": dilation}, sites_of(shape)
        yield formula(
            BasisConv(P, Q, bases.Window(shape, 3, sites=sites, **options), order=order),  # type: ignore[arg-type]
            lambda c, x, s=sites, o=options: _on_sites(c, x, s, None, s, None, **o),
            [features(len(sites), P)],
        )


def turned(x: Tensor, g: int) -> Tensor:
    """Element g of p4m acts on images: a reflection of the columns for g >= 4, then g % 4 quarter turns."""
    return torch.rot90(x.flip(-1) if g >= 4 else x, g % 4, (-2, -1))


def group_table(order: int) -> list[list[int]]:
    """The multiplication table of the first elements of p4m, from their action on an image without symmetry."""
    image = torch.arange(9).view(3, 3)
    found = {tuple(turned(image, g).flatten().tolist()): g for g in range(order)}
    return [[found[tuple(turned(turned(image, b), a).flatten().tolist())] for b in range(order)] for a in range(order)]


def lifting(weight: Tensor, order: int) -> Callable[[Tensor], Tensor]:
    """Convolutions with the kernel (Q, P, s, s) in all its poses: (B, P, H, W) -> (B, Q, G, H, W)."""
    pad = weight.shape[-1] // 2
    return lambda x: torch.stack([F.conv2d(x, turned(weight, h), padding=pad) for h in range(order)], 2)


def group_convolution(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """Convolutions with the kernel (Q, P, G, s, s) in all its poses: (B, P, G, H, W) -> (B, Q, G, H, W)."""
    order, pad = weight.shape[2], weight.shape[-1] // 2
    table = group_table(order)

    def pose(h: int) -> Tensor:
        seen = [table[h].index(g) for g in range(order)]  # h^-1 g, at g
        return turned(weight[:, :, seen], h).flatten(1, 2)

    return lambda x: torch.stack([F.conv2d(x.flatten(1, 2), pose(h), padding=pad) for h in range(order)], 2)


def _group(order: int) -> Iterator[Case]:
    """The lifting convolution, and the convolution on the group."""
    name, shape = {4: "p4", 8: "p4m"}[order], (5, 6)
    for size in (3, 1):
        window = bases.Window(shape, size, padding=size // 2)

        def lifted(c: Any, x: Tensor, s: int = size) -> Tensor:
            return lifting(kernel(c.theta.weight, (s, s)), order)(x) + c.bias.view(-1, 1, 1, 1)

        def convolved(c: Any, x: Tensor, s: int = size) -> Tensor:
            return group_convolution(kernel(c.theta.weight, (order, s, s)))(x) + c.bias.view(-1, 1, 1, 1)

        yield formula(GridConv(P, Q, bases.Group(name, window, lift=True)), lifted, [features(B, P, *shape)])
        yield formula(GridConv(P, Q, bases.Group(name, window)), convolved, [features(B, P, order, *shape)])

    def alone(c: Any, x: Tensor) -> Tensor:
        table = group_table(order)
        rows = [sum(x[..., table[g][r], :] @ c.theta.weight[r] for r in range(order)) for g in range(order)]
        return torch.stack(rows, -2) + c.bias  # type: ignore[arg-type]

    for order_of in ("auto", "a_first", "theta_first", "phi"):
        yield formula(BasisConv(P, Q, bases.Group(name), order=order_of), alone, [features(B, order, P)])


system("group convolution, p4", "rotations of the kernel, stacked")(lambda: _group(4))
system("group convolution, p4m", "rotations and reflections of the kernel, stacked")(lambda: _group(8))


def moved(y: Tensor, g: int, axis: int = -3) -> Tensor:
    """Element g acts on functions of the group and the grid: the value at (h, t) is the one from g^-1 (h, t)."""
    table = group_table(y.shape[axis])
    return turned(y, g).index_select(axis, torch.tensor([table[g].index(h) for h in range(y.shape[axis])]))


@system("p4 and p4m: rotations, reflections", "the rotated result")
def _equivariance() -> Iterator[Case]:
    for name, order in (("p4", 4), ("p4m", 8)):
        window = bases.Window((5, 5), 3, padding=1)
        lift = drawn(GridConv(P, Q, bases.Group(name, window, lift=True)))
        conv = drawn(GridConv(Q, P, bases.Group(name, window)))
        both = nn.Sequential(lift, nn.Tanh(), conv)
        for g in range(order):
            for layer, leaf, act in (
                (lift, features(B, P, 5, 5), turned),
                (conv, features(B, Q, order, 5, 5), moved),
                (both, features(B, P, 5, 5), turned),
            ):
                yield Case(
                    lambda x, f=layer, act=act, g=g: f(act(x, g)),
                    lambda x, f=layer, g=g: moved(f(x), g),
                    [leaf],
                )


@system("pervasive attention", "a masked torch.nn.functional.conv2d")
def _pervasive() -> Iterator[Case]:
    S, T = 5, 4

    def masked(c: Any, x: Tensor, rows: int, columns: int) -> Tensor:
        # conv2d correlates: the last column of `left` is the current one, and zeros mask the columns after it.
        left = kernel(c.theta.weight, (rows, columns)).flip(2, 3)
        image = x.unflatten(-2, (S, T)).movedim(-1, 1)
        return channels_last(F.conv2d(image, F.pad(left, (0, columns - 1)), c.bias, (1, 1), (rows // 2, columns - 1)))

    for rows, columns in ((3, 2), (1, 3), (5, 1)):
        seen = product(range(-(rows // 2), rows // 2 + 1), range(columns))  # on both sides, and what is written already
        conv = BasisConv(P, Q, bases.Shifts((S, T), seen))
        yield formula(conv, lambda c, x, r=rows, n=columns: masked(c, x, r, n), [features(B, S * T, P)])
