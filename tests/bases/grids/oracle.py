"""Families on grids as dense matrices, (K, M, N) in float64, by plain loops over positions and taps.

Nothing here comes from the library. A position is a tuple of integers, and positions are numbered with the last axis
fastest. A square grid is turned by torch's own rot90 and flip.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from functools import cache

import torch
from torch import Tensor

Position = tuple[int, ...]
Site = tuple[int, Position]  # the sample, and the position in it

MODES = ("zeros", "circular", "reflect", "replicate")


def positions(shape: Iterable[int]) -> list[Position]:
    return list(itertools.product(*map(range, shape)))


def numbers(shape: Iterable[int]) -> dict[Position, int]:
    return {position: i for i, position in enumerate(positions(shape))}


def inside(position: Position, shape: Position) -> bool:
    return all(0 <= p < s for p, s in zip(position, shape, strict=True))


def land(position: Position, shape: Position, mode: str = "zeros") -> Position | None:
    """The position of the grid whose value stands at a position of the padded grid; None where a zero stands."""
    if mode == "zeros":
        return position if inside(position, shape) else None
    return tuple(_land(p, s, mode) for p, s in zip(position, shape, strict=True))


def _land(p: int, size: int, mode: str) -> int:
    if mode == "circular":
        while p < 0:
            p += size
        while p >= size:
            p -= size
        return p
    if mode == "replicate":
        return 0 if p < 0 else size - 1 if p >= size else p
    assert mode == "reflect"
    line = list(range(size))
    return (line[:0:-1] + line + line[-2::-1])[p + size - 1]


def shifts(shape: Position, offsets: Sequence[int | Position], mode: str = "zeros") -> Tensor:
    """A_d[m, n] = 1 where position(n) - position(m) = d."""
    index = numbers(shape)
    A = torch.zeros(len(offsets), len(index), len(index), dtype=torch.float64)
    for k, offset in enumerate(offsets):
        d = (offset,) if isinstance(offset, int) else offset
        for target, n in index.items():
            source = land(tuple(t - e for t, e in zip(target, d, strict=True)), shape, mode)
            if source is not None:
                A[k, index[source], n] += 1
    return A


def per_axis(value, axes: int) -> tuple:
    return (value,) * axes if isinstance(value, int) else tuple(value)


def paddings(kernel: Position, padding, dilation: Position) -> list[tuple[int, int]]:
    """How many places stand before and after each axis."""
    if padding == "same":
        totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    return [(p, p) for p in per_axis(0 if padding == "valid" else padding, len(kernel))]


def steps(n: float, ceil_mode: bool) -> int:
    return math.ceil(n) if ceil_mode else math.floor(n)


def grid(
    shape, kernel, stride=1, padding=0, dilation=1, transposed=False, output_padding=0, ceil_mode=False
) -> Position:
    """The shape of the targets' grid."""
    axes = len(kernel)
    stride, dilation = per_axis(stride, axes), per_axis(dilation, axes)
    output_padding, around = per_axis(output_padding, axes), paddings(kernel, padding, dilation)
    sizes = []
    for i in range(axes):
        reach, (before, after) = dilation[i] * (kernel[i] - 1), around[i]
        if transposed:
            sizes.append((shape[i] - 1) * stride[i] - before - after + reach + output_padding[i] + 1)
            continue
        size = steps((shape[i] + before + after - reach - 1) / stride[i], ceil_mode) + 1
        # A window that starts behind the grid is none.
        if ceil_mode and (size - 1) * stride[i] >= shape[i] + before:
            size -= 1
        sizes.append(size)
    return tuple(sizes)


def window(
    shape,
    kernel,
    stride=1,
    padding=0,
    dilation=1,
    padding_mode="zeros",
    transposed=False,
    output_padding=0,
    ceil_mode=False,
    norm=None,
) -> Tensor:
    """Tap k of the target n reads the source n * stride - padding + k * dilation, on each axis; or is read by it."""
    axes = len(kernel)
    to = grid(shape, kernel, stride, padding, dilation, transposed, output_padding, ceil_mode)
    stride, dilation = per_axis(stride, axes), per_axis(dilation, axes)
    around = paddings(kernel, padding, dilation)
    taps, source_numbers, target_numbers = positions(kernel), numbers(shape), numbers(to)
    A = torch.zeros(len(taps), len(source_numbers), len(target_numbers), dtype=torch.float64)
    in_padded = [0] * len(target_numbers)
    for k, tap in enumerate(taps):
        for position, i in (source_numbers if transposed else target_numbers).items():
            met = tuple(position[a] * stride[a] - around[a][0] + tap[a] * dilation[a] for a in range(axes))
            if transposed:
                if inside(met, to):
                    A[k, i, target_numbers[met]] += 1
                continue
            source = land(met, shape, padding_mode)
            if source is not None:
                A[k, source_numbers[source], i] += 1
            in_padded[i] += all(-around[a][0] <= met[a] < shape[a] + around[a][1] for a in range(axes))
    if norm == "mean":
        return A / torch.tensor([max(1.0, float(A[:, :, n].sum())) for n in range(A.shape[2])], dtype=torch.float64)
    if norm == "padded":
        return A / torch.tensor([float(max(1, count)) for count in in_padded], dtype=torch.float64)
    return A


def sites(
    at: Sequence[Position],
    shape: Position,
    kernel: Position,
    stride=1,
    padding=0,
    dilation=1,
    transposed=False,
    output_padding=0,
    batch: Sequence[int] | None = None,
) -> tuple[Tensor, list[Site], Position]:
    """A window on the rows of some positions alone: the matrices, the targets, and the grid that these are in.

    Where that grid is the sources' and the stride is 1, the targets are the sources. Otherwise they are what sees one.
    """
    axes = len(kernel)
    to = grid(shape, kernel, stride, padding, dilation, transposed, output_padding)
    stride, dilation = per_axis(stride, axes), per_axis(dilation, axes)
    around = paddings(kernel, padding, dilation)
    samples = [0] * len(at) if batch is None else list(batch)
    here = {(b, tuple(position)): m for m, (b, position) in enumerate(zip(samples, at, strict=True))}
    seen: list[tuple[int, Site, Site]] = []  # tap, source, target
    for b in sorted(set(samples)):
        for k, tap in enumerate(positions(kernel)):
            for position in positions(shape if transposed else to):
                met = tuple(position[a] * stride[a] - around[a][0] + tap[a] * dilation[a] for a in range(axes))
                source, target = (position, met) if transposed else (met, position)
                if (b, source) in here and inside(target, to):
                    seen.append((k, (b, source), (b, target)))
    same = to == tuple(shape) and set(stride) == {1}
    targets = list(here) if same else sorted({target for _, _, target in seen})
    places = {target: n for n, target in enumerate(targets)}
    A = torch.zeros(math.prod(kernel), len(here), len(targets), dtype=torch.float64)
    for k, source, target in seen:
        if target in places:
            A[k, here[source], places[target]] += 1
    return A, targets, to


# Groups that act on images: p4 are the rotations, p4m with reflections.

ELEMENTS = {"p4": 4, "p4m": 8}


def act(h: int, image: Tensor) -> Tensor:
    """(L_h x)(p) = x(h^-1 p) on the last two axes: rotations, and from 4 on a reflection before the rotation."""
    return torch.rot90(image if h < 4 else image.flip(-1), h % 4, (-2, -1))


@cache
def turned(h: int, offset: Position) -> Position:
    """h offset, found by watching a mark move round the centre of an image."""
    n = max(map(abs, offset))
    image = torch.zeros(2 * n + 1, 2 * n + 1)
    image[offset[0] + n, offset[1] + n] = 1
    (place,) = act(h, image).nonzero().tolist()
    return place[0] - n, place[1] - n


def times(a: int, b: int) -> int:
    """a b: b is done first."""
    image = torch.arange(9).view(3, 3)
    (product,) = [c for c in range(8) if torch.equal(act(c, image), act(a, act(b, image)))]
    return product


def inverse(table: Sequence[Sequence[int]], a: int) -> int:
    return [row.index(identity(table)) for row in map(list, table)][a]


def identity(table: Sequence[Sequence[int]]) -> int:
    (e,) = [a for a, row in enumerate(table) if list(row) == list(range(len(table)))]
    return e


def table(group: str) -> list[list[int]]:
    G = ELEMENTS[group]
    return [[times(a, b) for b in range(G)] for a in range(G)]


def group(multiplication: Sequence[Sequence[int]]) -> Tensor:
    """On the group itself: the source u is seen by the target g with the parameter of g^-1 u."""
    G = len(multiplication)
    A = torch.zeros(G, G, G, dtype=torch.float64)
    for u in range(G):
        for g in range(G):
            A[multiplication[inverse(multiplication, g)][u], u, g] = 1
    return A


def group_window(
    shape,
    kernel,
    multiplication,
    move,
    stride=1,
    padding=0,
    dilation=1,
    padding_mode="zeros",
    lift=False,
) -> Tensor:
    """C(x)(g) = sum_u <x(u), theta(g^-1 u)>, where g = (h, t) and u are in the group, or u is in the grid to be lifted.

    g^-1 u = (h^-1 h', h^-1 (u - t)) for u = (h', u). A target stands at the centre of what it sees. As that may lie
    between two places, all places are doubled. `move(h, offset)` is h offset.
    """
    axes, G = len(kernel), len(multiplication)
    to = grid(shape, kernel, stride, padding, dilation)
    stride, dilation = per_axis(stride, axes), per_axis(dilation, axes)
    around = paddings(kernel, padding, dilation)
    reach = [dilation[a] * (kernel[a] - 1) for a in range(axes)]  # twice from the first tap to the centre
    offsets = {
        tuple(2 * tap[a] * dilation[a] - reach[a] for a in range(axes)): k for k, tap in enumerate(positions(kernel))
    }
    source_numbers, M, N = numbers(shape), math.prod(shape), math.prod(to)
    K = len(offsets)
    places = itertools.product(*(range(-b, s + a) for s, (b, a) in zip(shape, around, strict=True)))
    padded = [(p, q) for p in places if (q := land(p, shape, padding_mode)) is not None]
    A = torch.zeros(K if lift else G * K, M if lift else G * M, G * N, dtype=torch.float64)
    back = [inverse(multiplication, h) for h in range(G)]
    for n, t in enumerate(positions(to)):
        centre = tuple(2 * (t[a] * stride[a] - around[a][0]) + reach[a] for a in range(axes))
        for place, source in padded:
            away = tuple(2 * place[a] - centre[a] for a in range(axes))
            if any(abs(d) > max(reach) for d in away):
                continue
            for h in range(G):
                k = offsets.get(tuple(move(back[h], away)))
                if k is None:
                    continue
                if lift:
                    A[k, source_numbers[source], h * N + n] += 1
                    continue
                for other in range(G):
                    r = multiplication[back[h]][other]
                    A[r * K + k, other * M + source_numbers[source], h * N + n] += 1
    return A


# Images and rows.


def rows(image: Tensor, axes: int) -> Tensor:
    """(*, P, *shape) -> (*, M, P)."""
    return image.flatten(-axes).transpose(-1, -2)


def image(y: Tensor, shape: Position) -> Tensor:
    """(*, N, Q) -> (*, Q, *shape)."""
    return y.transpose(-1, -2).reshape(*y.shape[:-2], y.shape[-1], *shape)


def resampling(shape: tuple[int, ...], targets: tuple[int, ...], mode: str, scale: tuple[float, ...] = ()) -> Tensor:
    """(1, M, N) a grid brought to another size, axis by axis: how much of a source each target has."""

    def share(m: int, n: int, M: int, N: int, ratio: float) -> float:
        if mode == "average":
            first, last = n * M // N, -(-(n + 1) * M // N)
            return 1 / (last - first) if first <= m < last else 0.0
        if mode == "nearest":
            return float(m == n * M // N)
        at = n * (M - 1) / (N - 1) if mode == "corners" else max(0.0, (n + 0.5) / ratio - 0.5)
        return max(0.0, 1 - abs(min(at, M - 1) - m))

    A = torch.zeros(1, math.prod(shape), math.prod(targets), dtype=torch.float64)
    for i, m in enumerate(itertools.product(*map(range, shape))):
        for j, n in enumerate(itertools.product(*map(range, targets))):
            axes = zip(m, n, shape, targets, scale or [b / a for a, b in zip(shape, targets, strict=True)], strict=True)
            A[0, i, j] = math.prod(share(*axis) for axis in axes)
    return A
