"""Windows and shifts of grids, which multiply to others."""

from collections.abc import Sequence
from itertools import product
from math import gcd, prod

from ..bases import Basis, Shifts, Window
from .joined import Joined, Rows


def windows(first: Basis, second: Basis) -> Joined | None:
    """The products of windows: each target of the second sees places that are there, or all places, round and round."""
    if not (isinstance(first, Window) and isinstance(second, Window) and type(first) is type(second) is Window):
        return None
    plain = all(w.sites is None and w.norm is None and not w.transposed and not w.ceil_mode for w in (first, second))
    if not plain or first.axes != second.axes or first.before != first.after or second.before != second.after:
        return None
    if second.shape is not None and (first.shape is None or first.targets(first.shape) != second.shape):
        return None
    padding = list(first.before)
    if any(second.before) or any(second.after):
        # The places around the grid of the first one's targets hold zeros, and not what it would give there.
        round_and_round = {first.padding_mode, second.padding_mode} == {"circular"}
        stays = {*first.stride, *second.stride} == {1} and _keeps(first) and _keeps(second)
        padding = [p + q for p, q in zip(padding, second.before, strict=True)]
        small = first.shape is None or any(p > m for p, m in zip(padding, first.shape, strict=True))
        if not (round_and_round and stays) or small:
            return None
    taps = [
        _taps(*axis)
        for axis in zip(
            first.kernel_size, first.dilation, first.stride, second.kernel_size, second.dilation, strict=True
        )
    ]
    kernel, dilation, places = zip(*taps, strict=True)
    if prod(kernel) > first.K * second.K:
        return None
    stride = tuple(s * t for s, t in zip(first.stride, second.stride, strict=True))
    joined = Window(first.shape, kernel, stride, padding, dilation, first.padding_mode)
    return Joined(joined, _counted(joined.K, [_index(tap, kernel) for tap in _pairs(first, second, places)]))


def _keeps(window: Window) -> bool:
    """Whether there are as many targets as sources."""
    spans = (d * (k - 1) for k, d in zip(window.kernel_size, window.dilation, strict=True))
    return all(b + a == span for b, a, span in zip(window.before, window.after, spans, strict=True))


def _taps(k: int, d: int, s: int, k2: int, d2: int) -> tuple[int, int, tuple[int, int]]:
    """Taps k of dilation d, s apart, with k2 of dilation d2 over them: how many, their dilation, the places of both."""
    between = gcd(d * (k > 1), s * d2 * (k2 > 1)) or 1
    return (d * (k - 1) + s * d2 * (k2 - 1)) // between + 1, between, (d // between, s * d2 // between)


def _pairs(first: Window, second: Window, places: Sequence[tuple[int, int]]) -> list[tuple[int, ...]]:
    """Where each pair of taps stands in the window of both."""
    of_first, of_second = (list(product(*map(range, w.kernel_size))) for w in (first, second))
    return [
        tuple(a * p + b * q for a, b, (p, q) in zip(tap, then, places, strict=True))
        for tap, then in product(of_first, of_second)
    ]


def _index(tap: Sequence[int], kernel: Sequence[int]) -> int:
    index = 0
    for t, k in zip(tap, kernel, strict=True):
        index = index * k + t
    return index


def _counted(J: int, places: Sequence[int]) -> Rows | None:
    """The mixtures that add up what stands in one place; None where that is everything in its order."""
    if list(places) == list(range(J)):
        return None
    return [[float(place == j) for place in places] for j in range(J)]


def shifts(first: Basis, second: Basis) -> Joined | None:
    """The products of shifts: those that do not leave the grid and come back."""
    if not (isinstance(first, Shifts) and isinstance(second, Shifts) and type(first) is type(second) is Shifts):
        return None
    alike = first.padding_mode == second.padding_mode and first.axes == second.axes
    if not alike or second.shape not in (None, first.shape):
        return None
    if first.padding_mode == "zeros":  # what leaves the grid does not come back, but where all go the same way
        ways = [{(d > 0) - (d < 0) for d in along} for along in zip(*first.offsets, *second.offsets, strict=True)]
        if any({1, -1} <= way for way in ways):
            return None
    elif first.padding_mode != "circular":
        return None
    sums = [tuple(map(sum, zip(a, b, strict=True))) for a, b in product(first.offsets, second.offsets)]
    offsets = list(dict.fromkeys(sums))
    return Joined(
        Shifts(first.shape, offsets, first.padding_mode), _counted(len(offsets), [offsets.index(s) for s in sums])
    )
