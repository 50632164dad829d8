"""What each order of contraction would cost, and which one to take: a pure function of integers.

That the order of the products in a graph layer should follow from its sizes is known: the compilers SENSEi, GRANII and
GALA choose it. Here the orders, and what each is estimated to cost, are in the open, and the user has the last word.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from torch import SymInt

from .costs import Compaction, Work
from .errors import reject

PHI_LIMIT = 1 << 30  # bytes: an operator (M, P, N, Q) beyond this is not built
_REUSED = 32 << 20  # bytes: allocators keep less than this for the next time


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
    native: tuple[int, int, int, bool] | None = None  # what a vendor's kernel costs, see `basis.Native`
    compact: tuple[Compaction, ...] = ()  # what an evaluation on the rows that each member touches costs
    mixing: tuple[int, Work] | None = None  # H and what one mixture of the A_k costs, for theta.Separable
    batched: bool = False  # True where each graph of the batch has matrices of its own

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


def _hint(value: Any) -> Any:
    if isinstance(value, tuple):
        return type(value)(*map(_hint, value)) if hasattr(value, "_fields") else tuple(map(_hint, value))
    return value.node.hint if isinstance(value, SymInt) else value


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


def a_first(p: Problem) -> Estimate:
    """Expand at width P, then contract; the expansions are kept for the gradient of Theta."""
    if p.nnz >= 0 and not p.cached:
        return _refuse("a_first", "x is sparse, and its products with A would not be: only Theta first keeps it so")
    t = Tally(MACHINES[p.device], p.itemsize)
    wide, rows = p.B * p.P, p.B * p.N
    back = p.grad_x or p.grad_basis

    def expand(table: int) -> None:
        t.sparse(p.expand, wide, table)
        if p.B > 1:  # the batch is laid beside the width, where the products stay
            t.copy(p.B * p.M * p.P)

    if not p.cached:
        expand(p.M)
    if p.learns:
        t.product(rows, p.P, p.inner, p.K)
    if p.learns and p.grad_theta:
        t.product(p.P, rows, p.inner, p.K)
    if p.learns and back:
        t.product(rows, p.inner, p.P, p.K)
    if back:
        expand(p.N)
        t.copy(p.K * rows * p.P)
    if p.grad_basis:
        t.sparse(p.expand, wide, p.M)
    memory = p.K * rows * p.P * (2 if back else 1) + rows * p.Q
    return t.estimate("a_first", memory, 0 if p.cached else p.K * rows * p.P)


def theta_first(p: Problem) -> Estimate:
    """Project, x read once, then combine at width Q; nothing is kept but x."""
    t = Tally(MACHINES[p.device], p.itemsize)
    wide, rows = p.B * p.inner, p.B * p.M
    back = p.grad_theta or p.grad_x or p.grad_basis

    def features(m: int, k: int, n: int) -> None:
        if p.nnz >= 0:
            t.sparse(Work(p.nnz, m, 1), p.K * p.inner, k)
        elif p.learns:
            t.product(m, k, n)

    def gather(table: int) -> None:
        t.sparse(p.gather, wide, table)
        if p.K > 1 or p.B > 1:  # members and batches are brought to where the product reads them
            t.copy(p.K * rows * p.inner)

    features(rows, p.P, p.K * p.inner)
    gather(p.K * p.M)
    if back:
        gather(p.N)
    if p.grad_theta:
        features(p.P, rows, p.K * p.inner)
    if p.grad_x and p.learns:
        t.product(rows, p.K * p.inner, p.P)
    if p.grad_basis:
        t.sparse(p.gather, wide, p.K * p.M)
    memory = 2 * p.K * rows * p.inner + p.B * p.N * p.Q + (rows * p.P if p.grad_x else 0)
    return t.estimate("theta_first", memory, p.K * rows * p.inner)


def phi(p: Problem) -> Estimate:
    """Build the operator (M P, N Q) and apply it to the whole batch at once."""
    if p.nnz >= 0:
        return _refuse("phi", "x is sparse, and the operator is dense")
    if p.messages:
        return _refuse("phi", "hooks, decomposed_layers or fuse=False ask for messages, and it sends none")
    if p.batched:
        return _refuse("phi", "each graph of the batch has matrices of its own")
    size = p.M * p.P * p.N * p.Q
    if size * p.itemsize > PHI_LIMIT:
        return _refuse("phi", f"the operator ({p.M} x {p.P}, {p.N} x {p.Q}) takes over {_amount(PHI_LIMIT)}B")
    t = Tally(MACHINES[p.device], p.itemsize)
    if p.gather.numbers:  # matrices that are computed have to be written out before
        for _ in range(3 if p.grad_basis else 1):
            t.sparse(p.gather, 1, p.M)
            t.copy(p.K * p.M * p.N)
    t.product(p.M * p.N, p.K, p.P * p.Q)
    t.copy(size)
    t.product(p.B, p.M * p.P, p.N * p.Q)
    if p.grad_theta or p.grad_basis:
        t.product(p.M * p.P, p.B, p.N * p.Q)
        t.copy(size)
        t.product(p.K, p.M * p.N, p.P * p.Q)
    if p.grad_x:
        t.product(p.B, p.N * p.Q, p.M * p.P)
    if p.grad_basis:
        t.product(p.M * p.N, p.P * p.Q, p.K)
        t.copy(p.K * p.M * p.N)
    memory = size * (4 if p.grad_theta or p.grad_basis else 2) + p.K * p.M * p.N + p.B * p.N * p.Q
    return t.estimate("phi", memory, size)


def native(p: Problem) -> Estimate:
    """A vendor's kernel, on what is projected, or on x itself."""
    if p.native is None:
        return _refuse("native", "no vendor's kernel evaluates this basis with this parameter")
    if p.messages:
        return _refuse("native", "hooks, decomposed_layers or fuse=False ask for messages, and it sends none")
    t = Tally(MACHINES[p.device], p.itemsize)
    operations, numbers, kernels, projects = p.native
    if p.nnz >= 0 and not projects:
        return _refuse("native", "x is sparse, and the kernel reads it whole")
    back = p.grad_theta or p.grad_x or p.grad_basis
    learns = p.learns and projects
    if learns:
        t.product(p.B * p.M, p.P, p.K * p.inner)
    share, start = (0.5, t.machine.small) if projects else (1.0, t.machine.small / 4 + p.B * t.machine.image)
    for _ in range(3 if back else 1):  # the gradient takes about twice as long
        t.kernel(operations * p.B, numbers * p.B, share)  # attention, or a convolution
        t.seconds += kernels * start
    if p.grad_theta and learns:
        t.product(p.P, p.B * p.M, p.K * p.inner)
    if p.grad_x and learns:
        t.product(p.B * p.M, p.K * p.inner, p.P)
    if p.grad_basis:  # of what keys and queries are made of
        t.product(p.B * p.M, p.K * p.inner, p.P)
        t.product(p.B * p.N, p.K * p.inner, p.P)
    memory = (2 * p.K * p.B * p.M * p.inner if projects else p.B * p.M * p.P) + 2 * p.B * p.N * p.Q
    return t.estimate("native", memory)


def compacted(p: Problem) -> Estimate:
    """Only the rows of each member where there is something; what is gathered is gathered again for the gradient."""
    if p.nnz >= 0:
        return _refuse("compacted", "x is sparse, and its rows are gathered as they are")
    if p.messages:
        return _refuse("compacted", "hooks, decomposed_layers or fuse=False ask for messages")
    if not p.learns:
        return _refuse("compacted", "there is no parameter to multiply with")
    if not p.compact:
        return _refuse(
            "compacted",
            "this is for typed edges, walks and sparse grids, whose members are several and are summed",
        )
    return sorted((_compacted(p, one) for one in p.compact), key=lambda e: e.seconds)[0]


def _compacted(p: Problem, c: Compaction) -> Estimate:
    t = Tally(MACHINES[p.device], p.itemsize)
    each = -(-c.rows // max(1, c.products))
    beside = 1 if c.tiled else p.B  # batches lie beside the width, or come one by one

    def gather(work: Work, width: int, table: int) -> None:
        if c.tiled:
            t.near(work.entries, width)
        else:
            t.sparse(work, width * beside, table)

    def product(width: int, other: int) -> None:
        t.product(each * beside, width * (p.K if c.tiled else 1), other, c.products)
        t.seconds += 2 * t.machine.dense * c.products + (0 if c.tiled else 2 * t.machine.small)

    gather(c.enter, p.P, p.M)
    product(p.P, p.Q)
    gather(c.leave, p.Q, p.N)
    if p.grad_x or p.grad_basis:
        gather(c.enter if c.tiled else c.leave, p.Q, p.N)
        product(p.Q, p.P)
        gather(c.leave if c.tiled else c.enter, p.P, p.M)
    if p.grad_theta:
        if not (c.tiled and p.grad_x):
            gather(c.enter, p.P, p.M)
        product(p.P, p.Q)
        gather(c.leave, p.Q, p.N)
    t = t.times(p.B if c.tiled else 1)
    held = 0 if c.tiled else min(each * beside * (p.P + p.Q), 3 << 20)
    if p.mixing is not None:  # all K matrices are written out
        t.product(p.K, p.mixing[0], p.P * p.Q, 3 if p.grad_theta else 1)
        held += p.K * p.P * p.Q * (2 if p.grad_theta else 1)
    return t.estimate("compacted", held + (p.B * p.M * p.P if p.grad_x else 0) + p.B * p.N * p.Q, form=c.side)


def mixed(p: Problem) -> Estimate:
    """Mix the members of A by the coefficients of Theta, which then learn as weights do; then H matrices."""
    if p.messages:
        return _refuse("mixed", "hooks, decomposed_layers or fuse=False ask for messages")
    if p.mixing is None:
        return _refuse(
            "mixed", "this is for typed edges of several types with theta.Separable, whose matrices are mixtures"
        )
    H, work = p.mixing
    rest = p._replace(
        K=H,
        expand=work.times(H),
        gather=work.times(H),
        grad_basis=p.grad_theta or p.grad_basis,
        cached=False,
        compact=(),
        mixing=None,
    )
    best = sorted((a_first(rest), theta_first(rest)), key=lambda e: e.seconds)[0]
    t = Tally(MACHINES[p.device], p.itemsize)
    for _ in range(2 if rest.grad_basis else 1):
        t.sparse(Work(work.entries, work.entries, 1), H, p.K)
        t.copy(work.entries * H)
    return Estimate(
        "mixed",
        best.operations + t.operations,
        best.bytes + t.bytes,
        best.memory + work.entries * H * p.itemsize,
        best.seconds + t.seconds,
        form=best.order,
    )


ORDERS = {
    "a_first": a_first,
    "theta_first": theta_first,
    "phi": phi,
    "native": native,
    "compacted": compacted,
    "mixed": mixed,
}

ALWAYS = ("a_first", "theta_first")  # those that no graph makes impossible, where they are possible for one


def _refuse(order: str, reason: str) -> Estimate:
    return Estimate(order, 0, 0, 0, math.inf, reason)


@dataclass(frozen=True)
class Plan:
    """The orders, what each would cost for one application and its gradients, and the one that is taken.

    `print(plan)` shows the table; `plan.order` is the choice, `plan.why` its reason.
    """

    problem: Problem
    estimates: tuple[Estimate, ...]
    order: str
    why: str

    def __getitem__(self, order: str) -> Estimate:
        return next(e for e in self.estimates if e.order == order)

    @property
    def chosen(self) -> Estimate:
        """That of the order."""
        return self[self.order]

    def __str__(self) -> str:
        p = self.problem
        x = "dense" if p.nnz < 0 else f"sparse ({p.nnz} numbers)"
        gradients = [name for name, on in (("x", p.grad_x), ("Theta", p.grad_theta), ("A", p.grad_basis)) if on]
        lines = [
            f"K={p.K}  M={p.M}  N={p.N}  P={p.P}  Q={p.Q}  B={p.B}  x {x}, {p.itemsize} bytes each, on {p.device}; "
            f"gradients: {', '.join(gradients) or 'none'}",
            f"  {'order':<18} {'operations':>11} {'bytes':>9} {'memory':>9} {'time':>9}",
        ]
        for e in self.estimates:
            mark = ">" if e.order == self.order else " "
            if e.refused:
                lines.append(f"{mark} {e.order:<18} not possible: {e.refused}")
            else:
                cells = (
                    _amount(e.operations),
                    _amount(e.bytes) + "B",
                    _amount(e.memory) + "B",
                    _time(e.seconds),
                )
                lines.append(f"{mark} {e.name:<18} {cells[0]:>11} {cells[1]:>9} {cells[2]:>9} {cells[3]:>9}")
        return "\n".join([*lines, f"{self.order}: {self.why}"])


@lru_cache(maxsize=1024)
def plan(problem: Problem, order: str = "auto") -> Plan:
    """Chooses an order, or says why a forced one cannot be had.

    Args:
        problem: the sizes.
        order: 'auto', or the name of an order to be obeyed.

    Raises:
        ValueError: a forced order is not possible here, with the reason.

    >>> Cora = Problem(K=3, M=2708, N=2708, P=1433, Q=16, B=1, inner=16,
    ...                expand=Work(26528, 5416, 2), gather=Work(26528, 5416, 2))
    >>> plan(Cora).order
    'theta_first'
    """
    if order != "auto" and order not in ORDERS:
        reject("order", f"'auto' or one of {', '.join(map(repr, ORDERS))}", repr(order), "'auto' lets the plan choose")
    estimates = tuple(estimate(problem) for estimate in ORDERS.values())
    if order != "auto":
        chosen = next(e for e in estimates if e.order == order)
        if chosen.refused:
            raise ValueError(f"order: {order!r} was asked for, but {chosen.refused}; leave order='auto'")
        return Plan(problem, estimates, order, "asked for")
    best, *others = sorted(estimates, key=lambda e: e.seconds)
    possible = [e for e in others if not e.refused]
    if not possible:
        why = "the only order that is possible here"
    else:
        gain = possible[0].seconds / max(best.seconds, 1e-9)  # nothing to do takes no time
        why = f"about {gain:.1f} times faster than {possible[0].order}; {_grounds(best.order, problem)}"
    return Plan(problem, estimates, best.order, why)


def _grounds(order: str, p: Problem) -> str:
    if order == "native":
        return "a vendor's kernel does all of it"
    if order == "compacted":
        return "only the rows that a member touches are multiplied"
    if order == "mixed":
        return f"{p.mixing[0] if p.mixing else 0} mixtures are applied instead of {p.K} matrices"
    if order == "phi":
        return f"one product for a batch of {p.B} on a structure of {p.M} x {p.N}"
    if p.cached and order == "a_first":
        return "the A_k^T x are at hand"
    width, other = (p.P, p.inner) if order == "a_first" else (p.inner, p.P)
    if width == other:
        return f"both run the sparse products at width {width}; their dense sides differ"
    return f"sparse products run at width {width} instead of {other}"


def _amount(n: float) -> str:
    for unit in ("", "K", "M", "G", "T"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} P"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"
