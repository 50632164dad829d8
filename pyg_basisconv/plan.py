"""The plan: what each order of contraction costs, and which one is taken; a pure function of integers.

The compilers SENSEi, GRANII and GALA also choose the order of the products in a graph layer by its sizes. Here users
can print the estimates and force an order.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from .basis import BoundBasis
from .content import Inputs
from .costs import Estimate, Problem, format_amount
from .errors import reject
from .orders import LINKED, ORDERS
from .orders.sparse import AFirst, sparsest
from .portable import any_seen, in_fake_mode, portable, with_plain


@dataclass(frozen=True)
class Plan:
    """The orders, the cost of each for one call with its gradients, and the one that is taken.

    `print(plan)` shows the table, and `plan[order]` is the estimate of an order.

    Attributes:
        problem: the sizes.
        estimates: of all orders, those that are not possible with the reason.
        order: the choice.
        why: its reason.
        hint: what would be quicker, such as x as a sparse matrix; or "".

    >>> from pyg_basisconv import BasisConv, bases
    >>> plan = BasisConv(1433, 16, bases.GCN()).plan(torch.rand(100, 1433), torch.randint(100, (2, 400)))
    >>> plan.order
    'theta_first'
    """

    problem: Problem
    estimates: tuple[Estimate, ...]
    order: str
    why: str
    hint: str = ""

    def __getitem__(self, order: str) -> Estimate:
        return next(e for e in self.estimates if e.order == order)

    @property
    def chosen(self) -> Estimate:
        """The estimate of the order that is taken."""
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
                counts = format_amount(e.operations), format_amount(e.bytes) + "B", format_amount(e.memory) + "B"
                cells = zip((*counts, _time(e.seconds)), (11, 9, 9, 9), strict=True)
                lines.append(" ".join([f"{mark} {e.name:<18}", *(f"{cell:>{width}}" for cell, width in cells)]))
        return "\n".join([*lines, f"{self.order}: {self.why}", *filter(None, [self.hint])])


def check_order(order: object) -> None:
    """Rejects what is neither 'auto' nor the name of an order."""
    if order not in ("auto", *ORDERS):  # a tuple, as the argument may be unhashable
        reject("order", f"'auto' or one of {', '.join(map(repr, ORDERS))}", repr(order), "'auto' lets the plan choose")


@lru_cache(maxsize=1024)
def plan(problem: Problem, order: str = "auto") -> Plan:
    """Chooses an order, for 'auto', or rejects a forced one that is not possible here, with the reason.

    >>> from pyg_basisconv.costs import Work
    >>> Cora = Problem(K=3, M=2708, N=2708, P=1433, Q=16, B=1, inner=16,
    ...                expand=Work(26528, 5416, 2), gather=Work(26528, 5416, 2))
    >>> plan(Cora).order
    'theta_first'
    """
    check_order(order)
    offers = dict(problem.offers)
    estimates = tuple(one.estimate(problem, offers.get(name)) for name, one in ORDERS.items())
    if order != "auto":
        chosen = next(e for e in estimates if e.order == order)
        if chosen.refused:
            raise ValueError(f"order: {order!r} was asked for, but {chosen.refused}; leave order='auto'")
        return Plan(problem, estimates, order, "asked for")
    # Of equal ones, that which keeps less, where that is much; else that which `ORDERS` has first.
    best, *others = sorted(estimates, key=lambda e: (round(e.seconds, 12), e.fills))
    possible = [e for e in others if not e.refused]
    if not possible:
        why = "the only order that is possible here"
    else:
        gain = possible[0].seconds / max(best.seconds, 1e-9)  # empty problems take no time
        grounds = ORDERS[best.order].grounds(problem, offers.get(best.order))
        faster = f"about {gain:.1f} times faster than" if gain >= 1.05 else "about as fast as"
        why = f"{faster} {possible[0].order}; {grounds}"
    return Plan(problem, estimates, best.order, why)


def _time(seconds: float) -> str:
    for unit, size in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * size:  # more would print as 1e+03
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.4g} s"


def reaches_unlinked(chosen: Plan, y: Tensor) -> bool:
    """Whether a dense product may have spread NaN or infinities to nodes that are not linked, as 0 * inf is NaN."""
    if not ORDERS[chosen.order].mixes_nodes:
        return False
    if _has_no_values(y) or (y.is_cuda and torch.cuda.is_current_stream_capturing()):
        return False
    return any_seen(~y.detach().isfinite())


def _has_no_values(t: Tensor) -> bool:
    """Whether a tensor has a shape, but no numbers to read: on 'meta', or a fake one."""
    return t.is_meta or in_fake_mode()


def measured(inputs: Inputs, family: BoundBasis, order: str, cached: bool, messages: bool) -> Problem:
    """The sizes of a call.

    order: that the user asks for, or 'auto'; cached: whether results that depend on the features alone are cached;
    messages: whether PyG's message passing is used.
    """
    # What draws is planned as with gradients: a reentrant checkpoint evaluates it first without, then with them, and in
    # another order it would draw otherwise.
    x, theta, draws = inputs.x, inputs.theta, family.draws
    grad = draws or torch.is_grad_enabled()
    weight, P, features = theta.reference, x.size(-1), sparsest(x, cached)
    orders = ORDERS.items()
    found = [(name, one.measure(family, inputs, messages, name == order)) for name, one in orders if one.measures]
    problem = Problem(
        K=family.K,
        M=family.M,
        N=family.N,
        P=P,
        Q=theta.outputs(P),
        B=1 if x.dim() == 2 else prod(x.shape[:-2]),
        inner=theta.inner if theta.Q >= 0 else theta.outputs(P) if theta.sums else P,
        expand=family.work("expand"),
        gather=family.work("combine" if theta.sums else "each"),
        nnz=-1 if features.layout == torch.strided else features._nnz(),
        grad_x=grad and x.requires_grad,
        grad_theta=grad and weight is not None and weight.requires_grad,
        grad_basis=draws or (grad and family.requires_grad),
        itemsize=x.element_size(),
        device="cuda" if x.is_cuda else "cpu",
        cached=cached,
        learns=weight is not None,
        messages=messages,
        runs=family.runs(x) if theta.sums_runs and not cached and x.layout == torch.strided else None,
        rows=family.takes_rows and theta.step(AFirst.name) is not None,
        offers=tuple([one for one in found if one[1] is not None]),
    )
    return problem.with_hints if portable() else problem


def sparser(chosen: Plan, x: Any) -> str:
    """What the same call would take with a sparse x, where x is one matrix, mostly of zeros, and this is faster."""
    p = chosen.problem
    if not isinstance(x, Tensor) or x.layout != torch.strided or x.dim() != 2 or x.requires_grad or _has_no_values(x):
        return ""
    if p.nnz >= 0 or not p.learns:  # a sparse copy is kept already; nothing multiplies x
        return ""
    nnz = int(x.count_nonzero())
    seconds = plan(p._replace(nnz=nnz, offers=())).chosen.seconds
    if 2 * nnz > x.numel() or seconds >= chosen.chosen.seconds:
        return ""
    return f"x is {1 - nnz / x.numel():.1%} zeros: as torch.sparse_csr this call would take {_time(seconds)}"


def _planned_unseen(problem: Problem, order: str) -> Plan:
    if order in ORDERS and ORDERS[order].reads_numbers:
        reject("order", "one that looks at no values, under torch.export and torch.func", repr(order), "use 'auto'")
    chosen = plan(problem, order)
    # Of an order that mixes nodes, finiteness could not be checked.
    return plan(problem, LINKED) if order == "auto" and ORDERS[chosen.order].mixes_nodes else chosen


@with_plain(_planned_unseen)
def planned(problem: Problem, order: str) -> Plan:
    """The plan; where values are not available, of an order that does not need them."""
    return plan(problem, order)
