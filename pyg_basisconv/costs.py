"""What evaluations cost: counts in plain integers, and the time that they take on a machine."""

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torch import SymInt

Direction = Literal["expand", "combine", "each"]

_REUSED = 32 << 20  # bytes: allocators keep less than this for the next time


class Work(NamedTuple):
    """What one evaluation of a family costs per unit of width, in plain integers.

    entries: multiply-adds with gathered rows; rows: rows written; products: kernels launched; numbers: what is read and
    written in any case, whatever the width.
    """

    entries: int = 0
    rows: int = 0
    products: int = 0
    numbers: int = 0

    def plus(self, other: "Work") -> "Work":
        entries, rows, products, numbers = other
        return Work(self.entries + entries, self.rows + rows, self.products + products, self.numbers + numbers)

    def times(self, n: int) -> "Work":
        return Work(n * self.entries, n * self.rows, n * self.products, n * self.numbers)


class Machine(NamedTuple):
    """Rates that turn counts into time. Only their ratios matter, and these to a factor or so.

    `python -m benchmarks.orders` measures what they were set to agree with.
    """

    arithmetic: float  # operations per second in a dense product
    stream: float  # bytes per second, read or written in order
    gather: float  # bytes per second of gathered rows
    near: float  # the same, where the rows fit into the cache
    cache: int  # bytes
    sparse: float  # seconds that a sparse product takes before it starts
    dense: float  # the same for a dense product
    small: float  # the same for anything else
    image: float  # the same for each image of a convolution, be it as small as it may
    fresh: float  # bytes per second of memory that comes from the system, and not from what was used before


MACHINES = {
    "cpu": Machine(2.2e11, 1.4e10, 2.3e10, 4.5e10, 16 << 20, 8e-5, 4e-6, 7e-5, 2.5e-7, 2.5e9),
    "cuda": Machine(4.0e13, 3.0e12, 2.0e12, 6.0e12, 40 << 20, 6e-5, 2e-5, 4e-5, 0.0, math.inf),
}


class Problem(NamedTuple):
    """Sizes of one application, in plain integers.

    nnz: entries of x where it, or a copy of it that is at hand, is sparse; -1 where it is dense.
    inner: the width of a projected member. cached: the A_k^T x are at hand from an earlier call.
    """

    K: int
    M: int
    N: int
    P: int
    Q: int
    B: int
    inner: int
    expand: Work
    gather: Work
    nnz: int = -1
    grad_x: bool = False
    grad_theta: bool = True
    grad_basis: bool = False
    itemsize: int = 4
    device: str = "cpu"
    cached: bool = False
    learns: bool = True  # False where there is no Theta to multiply with
    messages: bool = False  # True where PyG's message passing is to do it
    offers: tuple[tuple[str, Any], ...] = ()  # by the names of orders, what each alone reads of the family

    @property
    def sparse_x(self) -> bool:
        """Whether x was given sparse, and not only has a sparse copy beside it."""
        return self.nnz >= 0 and not self.cached

    @property
    def coarse(self) -> "Problem":
        """The same with sizes rounded up to three binary digits: what is planned for batches that differ a little."""
        return self._replace(
            M=rounded(self.M),
            N=rounded(self.N),
            nnz=rounded(self.nnz),
            expand=_coarse(self.expand),
            gather=_coarse(self.gather),
        )

    @property
    def of_example(self) -> "Problem":
        """The same where sizes are symbols: with those of the example, for which the plan is made."""
        return Problem(*map(_hint, self))


def _coarse(work: Work) -> Work:
    return Work(rounded(work.entries), rounded(work.rows), work.products, rounded(work.numbers))


def rounded(n: int) -> int:
    """A number of at least its size, with three binary digits and zeros behind them.

    >>> [rounded(n) for n in (-1, 7, 9, 1000)]
    [-1, 7, 10, 1024]
    """
    zeros = max(0, n.bit_length() - 3)
    return -(-n >> zeros) << zeros


_UNKNOWN = 1 << 13  # in the place of a size that only numbers tell, such as how many edges are no loops


def _hint(value: Any) -> Any:
    if isinstance(value, tuple):
        return type(value)(*map(_hint, value)) if hasattr(value, "_fields") else tuple(map(_hint, value))
    if not isinstance(value, SymInt):
        return value
    hint = value.node.hint
    return _UNKNOWN if hint is None else hint


@dataclass
class Tally:
    """Adds up operations, bytes and seconds on a machine."""

    machine: Machine
    itemsize: int
    operations: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def product(self, m: int, k: int, n: int, times: int = 1) -> None:
        """Dense products (m, k) (k, n)."""
        operations, moved = 2 * m * k * n * times, (m * k + k * n + m * n) * self.itemsize * times
        self.operations += operations
        self.bytes += moved
        busy = max(operations / self.machine.arithmetic, moved / self.machine.stream)
        self.seconds += self.machine.dense * times + busy

    def sparse(self, work: Work, width: int, table: int) -> None:
        """Sparse products, gathering rows of the given width from a table of so many rows."""
        row = width * self.itemsize
        gathered = work.entries * max(row, 64)  # a cache line at least
        rate = self.machine.near if table * row <= self.machine.cache else self.machine.gather
        streamed = work.entries * (4 + self.itemsize) + work.rows * row + work.numbers * self.itemsize
        self.operations += 2 * work.entries * width
        self.bytes += gathered + streamed
        self.seconds += work.products * self.machine.sparse + gathered / rate + streamed / self.machine.stream

    def near(self, rows: int, width: int) -> None:
        """Rows gathered a few at a time, so that they stay in the cache."""
        moved = rows * max(width * self.itemsize, 64)
        self.bytes += moved
        self.seconds += moved / self.machine.near

    def kernel(self, operations: int, numbers: int, share: float) -> None:
        """A vendor's kernel, which reaches a share of the arithmetic that a product does."""
        moved = numbers * self.itemsize
        self.operations += operations
        self.bytes += moved
        rate = self.machine.arithmetic * share
        self.seconds += max(operations / rate, moved / self.machine.stream)

    def times(self, n: int) -> "Tally":
        """The same so many times."""
        return Tally(self.machine, self.itemsize, n * self.operations, n * self.bytes, n * self.seconds)

    def estimate(self, order: str, numbers: int, largest: int = 0, form: str = "") -> "Estimate":
        """All of it, for an order that holds so many numbers, and so many of these in one array."""
        seconds, fresh = self.seconds, largest * self.itemsize
        seconds += fresh / self.machine.fresh if fresh > _REUSED else 0
        return Estimate(order, self.operations, self.bytes, numbers * self.itemsize, seconds, form=form)

    def copy(self, numbers: int) -> None:
        """Something read and written once."""
        moved = 2 * numbers * self.itemsize
        self.bytes += moved
        self.seconds += self.machine.small + moved / self.machine.stream


class Estimate(NamedTuple):
    """One row of the plan: an order, its cost forward and backward, or why it cannot be taken."""

    order: str
    operations: int
    bytes: int
    memory: int
    seconds: float
    refused: str | None = None
    form: str = ""  # of the order, where there are two: the side that is compacted, the order after mixing

    @property
    def name(self) -> str:
        """The order with its form."""
        return f"{self.order}, {self.form}" if self.form else self.order


def amount(n: float) -> str:
    """A number in few digits.

    >>> amount(1 << 30)
    '1.07 G'
    """
    for unit in ("", "K", "M", "G", "T"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} P"
