"""The cost model: operations and bytes in plain integers, and the time that they take on a machine."""

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torch import SymInt

Direction = Literal["expand", "combine", "each"]

_REUSED = 32 << 20  # bytes up to which allocators reuse freed memory


class Work(NamedTuple):
    """What one evaluation of a family costs per unit of width, in plain integers.

    entries: multiply-adds with gathered rows; rows: rows written; products: kernels launched; numbers: read and written
    independently of the width.
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
    """Rates that turn counts into time. Only their ratios matter, and only roughly.

    They are fitted to what `python -m benchmarks.orders` measures.
    """

    arithmetic: float  # operations per second in a dense product
    stream: float  # bytes per second, read or written in order
    gather: float  # bytes per second of gathered rows
    gather_cached: float  # the same for rows that fit into the cache
    cache: int  # bytes
    sparse: float  # seconds of overhead per sparse product
    dense: float  # the same per dense product
    small: float  # the same per other operation
    image: float  # the same per image of a convolution
    fresh: float  # bytes per second of memory newly allocated from the system
    wait: float  # seconds that it takes to look at a number on the device


MACHINES = {
    "cpu": Machine(2.2e11, 1.4e10, 2.3e10, 4.5e10, 16 << 20, 8e-5, 4e-6, 7e-5, 2.5e-7, 2.5e9, 0.0),
    "cuda": Machine(4.0e13, 3.0e12, 2.0e12, 6.0e12, 40 << 20, 6e-5, 2e-5, 4e-5, 0.0, math.inf, 2e-5),
}


class Problem(NamedTuple):
    """The sizes of one call, in plain integers.

    nnz: entries of x if it, or a cached copy, is sparse; -1 otherwise. inner: the width of a projected member.
    cached: whether the A_k^T x are kept from an earlier call.
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
    learns: bool = True  # False if Theta has no weight to multiply by
    messages: bool = False  # True if PyG's message passing is used
    rows: bool = False  # True if the family is applied to rows, all members side by side, and Theta then in one step
    runs: int | None = None  # how many numbers of the A_k^T x are held at once, None for all
    offers: tuple[tuple[str, Any], ...] = ()  # (name of an order, what its `measure` returned)

    @property
    def sparse_x(self) -> bool:
        """Whether x itself is sparse, and not only a cached copy of it."""
        return self.nnz >= 0 and not self.cached

    @property
    def coarse(self) -> "Problem":
        """The same with sizes rounded up to three binary digits, so that similar batches share a plan."""
        return self._replace(
            M=rounded(self.M),
            N=rounded(self.N),
            nnz=rounded(self.nnz),
            expand=_coarse(self.expand),
            gather=_coarse(self.gather),
        )

    @property
    def with_hints(self) -> "Problem":
        """The same with symbolic sizes replaced by those of the example input."""
        return Problem(*map(_hint, self))


def _coarse(work: Work) -> Work:
    return Work(rounded(work.entries), rounded(work.rows), work.products, rounded(work.numbers))


def rounded(n: int) -> int:
    """The number, rounded up to three binary digits.

    >>> [rounded(n) for n in (-1, 7, 9, 1000)]
    [-1, 7, 10, 1024]
    """
    zeros = max(0, n.bit_length() - 3)
    return -(-n >> zeros) << zeros


_UNKNOWN = 1 << 13  # assumed for a symbolic size without a hint, such as a number of edges after filtering


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

    def product(self, m: int, k: int, n: int, times: int = 1, launches: int | None = None) -> None:
        """Dense products (m, k) (k, n), each by a call of its own unless there are fewer launches."""
        operations, moved = 2 * m * k * n * times, (m * k + k * n + m * n) * self.itemsize * times
        self.operations += operations
        self.bytes += moved
        busy = max(operations / self.machine.arithmetic, moved / self.machine.stream)
        self.seconds += self.machine.dense * (times if launches is None else launches) + busy

    def sparse(self, work: Work, width: int, table: int) -> None:
        """Sparse products that gather rows of the given width from a table with `table` rows."""
        row = width * self.itemsize
        gathered = work.entries * max(row, 64)  # a cache line at least
        rate = self.machine.gather_cached if table * row <= self.machine.cache else self.machine.gather
        streamed = work.entries * (4 + self.itemsize) + work.rows * row + work.numbers * self.itemsize
        self.operations += 2 * work.entries * width
        self.bytes += gathered + streamed
        self.seconds += work.products * self.machine.sparse + gathered / rate + streamed / self.machine.stream

    def gather_cached(self, rows: int, width: int) -> None:
        """Rows gathered in tiles that stay in the cache."""
        moved = rows * max(width * self.itemsize, 64)
        self.bytes += moved
        self.seconds += moved / self.machine.gather_cached

    def kernel(self, operations: int, numbers: int, share: float) -> None:
        """A vendor's kernel, which reaches a share of the arithmetic rate of a dense product."""
        moved = numbers * self.itemsize
        self.operations += operations
        self.bytes += moved
        rate = self.machine.arithmetic * share
        self.seconds += max(operations / rate, moved / self.machine.stream)

    def times(self, n: int) -> "Tally":
        """The same, n times."""
        return Tally(self.machine, self.itemsize, n * self.operations, n * self.bytes, n * self.seconds)

    def estimate(self, order: str, numbers: int, largest: int = 0, form: str = "", kept: int = 0) -> "Estimate":
        """The estimate of an order that stores `numbers` numbers, the `largest` array of them newly allocated, and some
        `kept` for the gradients beside x.
        """
        seconds, fresh = self.seconds, largest * self.itemsize
        seconds += fresh / self.machine.fresh if fresh > _REUSED else 0
        fills = kept * self.itemsize > _REUSED
        return Estimate(order, self.operations, self.bytes, numbers * self.itemsize, seconds, form=form, fills=fills)

    def copy(self, numbers: int) -> None:
        """A copy of so many numbers."""
        moved = 2 * numbers * self.itemsize
        self.bytes += moved
        self.seconds += self.machine.small + moved / self.machine.stream


class Estimate(NamedTuple):
    """One row of the plan: an order and its cost, forward and backward, or the reason why it is not possible."""

    order: str
    operations: int
    bytes: int
    memory: int
    seconds: float
    refused: str | None = None
    form: str = ""  # the variant of an order that has several: the side that is compacted, the order after mixing
    fills: bool = False  # whether much memory is kept until the gradients are computed, beside that of x

    @property
    def name(self) -> str:
        """The order with its form."""
        return f"{self.order}, {self.form}" if self.form else self.order


def format_amount(n: float) -> str:
    """A number with three digits and a prefix.

    >>> format_amount(1 << 30)
    '1.07 G'
    """
    for unit in ("", "K", "M", "G", "T"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} P"
