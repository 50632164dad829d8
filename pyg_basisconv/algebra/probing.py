"""The entries of a linear function, found by calling it."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import reject
from .gram import Places
from .operators import Operator

NUMBERS = 1 << 17  # in one call, at most: more than a cache holds is slower, and a function holds more inside
MOST = 1 << 35  # of the numbers that all unit inputs give, about a minute's
_COARSEST = 0.03  # of what is left, in a dtype of few digits
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def colours(source: Tensor, target: Tensor, M: int, N: int) -> list[int]:
    """A colour for each source, so that no two of one colour meet the same target; -1 for one that meets none.

    Each takes the first that is free, one source after the other, as for sparse Jacobians (Curtis, Powell and Reid,
    1974): for windows, as many colours as taps, or few more.

    Args:
        source: (E,) in order.
        target: (E,)
        M: the number of sources.
        N: the number of targets.

    >>> edges = torch.tensor([[0, 0, 1, 1, 2, 2, 3], [0, 1, 1, 2, 2, 3, 3]])
    >>> colours(*edges, 5, 4)
    [0, 1, 0, 1, -1]
    """
    first = torch.searchsorted(source, torch.arange(M + 1, device=source.device)).tolist()
    targets, taken, found = target.tolist(), [0] * N, [-1] * M  # taken: a bit for each colour
    for m in range(M):
        theirs = targets[first[m] : first[m + 1]]
        used = 0
        for n in theirs:
            used |= taken[n]
        free = ~used & (used + 1)
        for n in theirs:
            taken[n] |= free
        if theirs:
            found[m] = free.bit_length() - 1
    return found


def _by_kind(kind: Tensor, count: int) -> tuple[Tensor, ...]:
    """The places of each of the kinds 0, 1, ..., in order; those of -1 are left out."""
    order = kind.argsort(stable=True)
    sizes = torch.bincount(kind + 1, minlength=count + 1).tolist()
    return order.split(sizes)[1:]


class Colour(NamedTuple):
    """Sources that are probed together, and the rows of the places that they have something at."""

    sources: Tensor
    rows: Tensor


class Probed(Operator):
    r"""A linear function :math:`y = f(x)` of (B, M, P), whose entries at some places are wanted.

    Args:
        function: f, from (B, M, P) to (B, N, Q), for any B.
        places: which ones.
        sizes: M, N.
        in_channels: P.

    Raises:
        ValueError: a function of something else, or that is not linear.
    """

    def __init__(
        self, function: Callable[[Tensor], Tensor], places: Places, sizes: tuple[int, int], in_channels: int
    ) -> None:
        super().__init__(places, in_channels, 0)
        self.function = function
        self.M, self.N = sizes
        self.device = places.place.device
        self.random = torch.Generator().manual_seed(0)  # the state of torch's own stays
        self.dtype, y = self._accepted()
        self.Q = y.shape[2]
        self.precision = max(torch.finfo(dtype).eps for dtype in (self.dtype, y.dtype))
        self.source, self.target = places.place // max(1, self.N), places.place % max(1, self.N)
        self._check_linear()
        self.probes: list[Colour] | None = self._colours()  # None where there is more than the places have

    def _accepted(self) -> tuple[torch.dtype, Tensor]:
        """The widest dtype that the function takes, and what it makes of zeros."""
        failed: Exception | None = None
        for dtype in _DTYPES:
            try:
                return dtype, self._call(torch.zeros(1, self.M, self.P, dtype=dtype, device=self.device))
            except (RuntimeError, TypeError) as error:
                failed = error if failed is None or dtype == torch.get_default_dtype() else failed
        expected = f"a function of (B, {self.M}, {self.P})"
        raise ValueError(f"phi: expected {expected}, got an error: {failed}; reshape within the function") from failed

    @torch.no_grad()
    def _call(self, x: Tensor) -> Tensor:
        y = self.function(x.clone())  # it may change what it gets
        if not isinstance(y, Tensor) or y.dim() != 3 or y.shape[:2] != (len(x), self.N):
            got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
            expected = f"a function from (B, {self.M}, {self.P}) to (B, {self.N}, Q), the sizes of the basis"
            reject("phi", expected, f"{got} for B = {len(x)}", "reshape within the function")
        if y.layout != torch.strided or not y.is_floating_point():
            reject("phi", "a function that gives dense real numbers", f"{y.dtype}, {y.layout}", "convert what it gives")
        return y

    def _drawn(self, count: int) -> Tensor:
        x = torch.randn(count, self.M, self.P, dtype=torch.float64, generator=self.random)
        return x.to(self.dtype).to(self.device)

    def _check_linear(self) -> None:
        """f(0) = 0 and f(a x + b y) = a f(x) + b f(y), on random probes, to the square root of the precision."""
        x, y = self._drawn(2)
        zero, fx, fy = self._call(torch.stack([torch.zeros_like(x), x, y])).double()
        mixed = self._call((0.75 * x - 1.25 * y).unsqueeze(0))[0].double()
        size, least = float(fx.norm() + fy.norm()), math.sqrt(self.precision)
        fix = "decompose its linear part: leave out bias, dropout and what is not linear"
        if not float(zero.norm()) <= least * size:
            reject("phi", "a linear function, with f(0) = 0", f"{float(zero.norm()):.3g} for 0", fix)
        apart = float((mixed - 0.75 * fx + 1.25 * fy).norm())
        if not apart <= least * size:
            got = f"a difference of {apart:.3g}, of {size:.3g}, on random probes"
            reject("phi", "a linear function, with f(a x + b y) = a f(x) + b f(y)", got, fix)

    def _colours(self) -> list[Colour]:
        colour = torch.tensor(colours(self.source, self.target, self.M, self.N), dtype=torch.int64, device=self.device)
        count = int(colour.max()) + 1 if self.M else 0
        return [
            Colour(*both) for both in zip(_by_kind(colour, count), _by_kind(colour[self.source], count), strict=True)
        ]

    @property
    def _together(self) -> int:
        return max(1, NUMBERS // max(1, self.M * self.P, self.N * self.Q))

    def at(self, channels: range) -> Tensor:
        if self.probes is not None:
            values = self._by_colours(channels, self.probes)
            if self._complete(channels, values):
                return values
            self.probes = None
        return self._one_by_one(channels)

    def _by_colours(self, channels: range, probes: list[Colour]) -> Tensor:
        values = torch.empty(self.rows, len(channels), self.Q, dtype=torch.float64, device=self.device)
        every = [(colour, p) for colour in probes for p in channels]
        for start in range(0, len(every), self._together):
            some = every[start : start + self._together]
            x = torch.zeros(len(some), self.M, self.P, dtype=self.dtype, device=self.device)
            for i, (colour, p) in enumerate(some):
                x[i, colour.sources, p] = 1
            y = self._call(x)
            for i, (colour, p) in enumerate(some):
                values[colour.rows, p - channels.start] = y[i, self.target[colour.rows]].double()
        return values

    def _complete(self, channels: range, values: Tensor) -> bool:
        """Whether the values are all there is, on a random probe."""
        x = torch.zeros(1, self.M, self.P, dtype=self.dtype, device=self.device)
        some = x[0, :, channels.start : channels.stop]
        some.copy_(torch.randn(some.shape, dtype=torch.float64, generator=self.random))
        y = self._call(x)[0].double()
        weight = some[self.source].double().unsqueeze(1)
        expected = torch.zeros_like(y).index_add(0, self.target, (weight @ values).squeeze(1))
        rounding = min(32 * self.precision, _COARSEST)
        return float((y - expected).norm()) <= rounding * float(y.norm() + expected.norm())

    def _one_by_one(self, channels: range) -> Tensor:
        """By each unit input alone: what is not at the places is then known as well."""
        numbers = self.M * self.P * max(self.M * self.P, self.N * self.Q)
        if numbers > MOST:
            got = (
                f"something beside them, of a function whose {self.M * self.P:,} unit inputs give {numbers:.3g} numbers"
            )
            reject("phi", "entries where the basis has some", got, "take a larger basis, or less of the function")
        values = torch.empty(self.rows, len(channels), self.Q, dtype=torch.float64, device=self.device)
        for p in channels:
            for start in range(0, self.M, self._together):
                stop = min(self.M, start + self._together)
                x = torch.zeros(stop - start, self.M, self.P, dtype=self.dtype, device=self.device)
                x[range(stop - start), range(start, stop), p] = 1
                y = self._call(x).double().clone()  # it may be the function's own
                ends = torch.tensor([start, stop], device=self.device)
                rows = slice(*torch.searchsorted(self.source, ends).tolist())
                at = self.source[rows] - start, self.target[rows]
                values[rows, p - channels.start] = y[at]
                y[at] = 0
                self.outside += float(y.square().sum())
        return values
