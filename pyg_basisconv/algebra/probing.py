"""Finds the entries of a linear function by calling it."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import reject, shape_or_type
from .gram import Places
from .operators import Operator

NUMBERS = 1 << 17  # in one call, at most: larger calls leave the cache, and are slower
MOST = 1 << 35  # results of all unit inputs, at most: about a minute
_COARSEST = 0.03  # the largest relative rounding that is accepted, for dtypes of few digits
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def colours(source: Tensor, target: Tensor, M: int, N: int) -> list[int]:
    """A colour for each source, so that no two of one colour have a common target; -1 for sources without targets.

    It is the greedy colouring of sparse Jacobians (Curtis, Powell and Reid, 1974): a window needs about as many colours
    as it has taps. source, target: (E,), by source.

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


def _split(numbers: Tensor, size: int, count: int) -> tuple[Tensor, ...]:
    """The positions of the numbers 0, 1, ..., in groups of `size` numbers; negative numbers are left out."""
    ends = torch.arange(0, count + size, size, device=numbers.device)
    order = numbers.argsort(stable=True)
    return order.tensor_split(torch.searchsorted(numbers[order], ends).cpu())[1:-1]


class Probed(Operator):
    r"""A linear function :math:`y = f(x)` from (B, M, P) to (B, N, Q), for any B, whose entries at some places are
    wanted; rejects functions of something else, and those that are not linear.
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
        found = colours(self.source, self.target, self.M, self.N)
        self.colour = torch.tensor(found, dtype=torch.int64, device=self.device)
        self.covered = True  # whether the places have all entries, as far as is known

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
            expected = f"a function from (B, {self.M}, {self.P}) to (B, {self.N}, Q), the sizes of the basis"
            reject("phi", expected, f"{shape_or_type(y)} for B = {len(x)}", "reshape within the function")
        if y.layout != torch.strided or not y.is_floating_point():
            reject("phi", "a function that gives dense real numbers", f"{y.dtype}, {y.layout}", "convert what it gives")
        return y

    def _drawn(self, count: int) -> Tensor:
        x = torch.randn(count, self.M, self.P, dtype=torch.float64, device="cpu", generator=self.random)
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

    def at(self, channels: range) -> Tensor:
        if self.covered:
            values, _ = self._probed(channels, self.colour)
            if self._complete(channels, values):
                return values
            self.covered = False
        numbers = self.M * self.P * max(self.M * self.P, self.N * self.Q)
        if numbers > MOST:
            count = f"{self.M * self.P:,} unit inputs give {numbers:.3g} numbers"
            got = f"entries elsewhere, of a function whose {count}"
            reject("phi", "entries where the basis has some", got, "take a larger basis, or less of the function")
        values, outside = self._probed(channels, torch.arange(self.M, device=self.device))
        self.outside += outside
        return values

    def _probed(self, channels: range, colour: Tensor) -> tuple[Tensor, float]:
        """(U, g, Q) what all sources of one colour give at once, at their places; the squared norm of all else.

        colour: (M,) of the sources; -1 for those that are left out.
        """
        g, outside = len(channels), 0.0
        values = torch.empty(self.rows, g, self.Q, dtype=torch.float64, device=self.device)
        probe = colour.unsqueeze(1) * g + torch.arange(g, device=self.device)  # (M, g) which input has it
        asked, read = probe.flatten(), probe[self.source].flatten()
        count = max(0, int(asked.max()) + 1) if self.M else 0
        together = max(1, NUMBERS // max(1, self.M * self.P, self.N * self.Q))
        parts = zip(*(_split(numbers, together, count) for numbers in (asked, read)), strict=True)
        for start, (some, rows) in zip(range(0, count, together), parts, strict=True):
            x = torch.zeros(min(together, count - start), self.M, self.P, dtype=self.dtype, device=self.device)
            x[asked[some] - start, some // g, some % g + channels.start] = 1
            y = self._call(x).double().clone()  # it may be the function's own
            at = read[rows] - start, self.target[rows // g]
            values.view(-1, self.Q)[rows] = y[at]
            y[at] = 0
            outside += float(y.square().sum())
        return values, outside

    def _complete(self, channels: range, values: Tensor) -> bool:
        """Whether the values are all there is, on a random probe."""
        x = torch.zeros(1, self.M, self.P, dtype=self.dtype, device=self.device)
        some = x[0, :, channels.start : channels.stop]
        some.copy_(torch.randn(some.shape, dtype=torch.float64, device="cpu", generator=self.random))
        y = self._call(x)[0].double()
        weight = some[self.source].double().unsqueeze(1)
        expected = torch.zeros_like(y).index_add(0, self.target, (weight @ values).squeeze(1))
        rounding = min(32 * self.precision, _COARSEST)
        return float((y - expected).norm()) <= rounding * float(y.norm() + expected.norm())
