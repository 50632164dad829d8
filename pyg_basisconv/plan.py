"""What each order of contraction would cost, and which one to take: a pure function of integers.

That the order of the products in a graph layer should follow from its sizes is known: the compilers SENSEi, GRANII and
GALA choose it. Here the orders, and what each is estimated to cost, are in the open, and the user has the last word.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from .basis import BoundBasis
from .content import Inputs
from .costs import Estimate, Problem, amount
from .errors import reject
from .orders import LINKED, ORDERS, Contracted
from .orders.sparse import sparsest
from .portable import faked, portable


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
                    amount(e.operations),
                    amount(e.bytes) + "B",
                    amount(e.memory) + "B",
                    _time(e.seconds),
                )
                lines.append(f"{mark} {e.name:<18} {cells[0]:>11} {cells[1]:>9} {cells[2]:>9} {cells[3]:>9}")
        return "\n".join([*lines, f"{self.order}: {self.why}"])


def check_order(order: object) -> None:
    """Rejects what is neither 'auto' nor the name of an order."""
    if order not in ("auto", *ORDERS):  # not by a look-up: a list has no hash
        reject("order", f"'auto' or one of {', '.join(map(repr, ORDERS))}", repr(order), "'auto' lets the plan choose")


@lru_cache(maxsize=1024)
def plan(problem: Problem, order: str = "auto") -> Plan:
    """Chooses an order, or says why a forced one cannot be had.

    Args:
        problem: the sizes.
        order: 'auto', or the name of an order to be obeyed.

    Raises:
        ValueError: a forced order is not possible here, with the reason.

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
    best, *others = sorted(estimates, key=lambda e: e.seconds)
    possible = [e for e in others if not e.refused]
    if not possible:
        why = "the only order that is possible here"
    else:
        gain = possible[0].seconds / max(best.seconds, 1e-9)  # nothing to do takes no time
        grounds = ORDERS[best.order].grounds(problem, offers.get(best.order))
        why = f"about {gain:.1f} times faster than {possible[0].order}; {grounds}"
    return Plan(problem, estimates, best.order, why)


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def contract(chosen: Plan, family: BoundBasis, inputs: Inputs, bias: Tensor | None) -> Contracted:
    """The result in the order that was chosen."""
    return ORDERS[chosen.order].run(family, inputs, bias, chosen.chosen.form, chosen.problem.cached)


def reaches_unlinked(chosen: Plan, y: Tensor) -> bool:
    """Whether a dense product may have brought what is not finite to nodes that are not linked, by its zeros."""
    return ORDERS[chosen.order].mixes_nodes and not _finite(y)


def _finite(y: Tensor) -> bool:
    """Whether all numbers are finite, where there are numbers to look at."""
    if portable() or faked() or (y.is_cuda and torch.cuda.is_current_stream_capturing()):
        return True
    return bool(y.detach().isfinite().all())


def measured(inputs: Inputs, family: BoundBasis, order: str, cached: bool, messages: bool) -> Problem:
    """The sizes of a call.

    Args:
        inputs: the features and the parameter.
        family: that reads them.
        order: that is asked for.
        cached: whether what follows from the features alone is kept.
        messages: whether messages are passed as PyG does.
    """
    x, theta, grad = inputs.x, inputs.theta, torch.is_grad_enabled()
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
        inner=P if theta.Q < 0 else theta.inner,
        expand=family.work("expand"),
        gather=family.work("combine" if theta.sums else "each"),
        nnz=-1 if features.layout == torch.strided else features._nnz(),
        grad_x=grad and x.requires_grad,
        grad_theta=grad and weight is not None and weight.requires_grad,
        grad_basis=grad and family.requires_grad,
        itemsize=x.element_size(),
        device="cuda" if x.is_cuda else "cpu",
        cached=cached,
        learns=weight is not None,
        messages=messages,
        offers=tuple([one for one in found if one[1] is not None]),
    )
    return problem.of_example if portable() else problem


def planned(problem: Problem, order: str) -> Plan:
    """The plan, of an order that looks at no values where there are none."""
    if order in ORDERS and ORDERS[order].reads_numbers and portable():
        reject("order", "one that looks at no values, under torch.export and torch.func", repr(order), "use 'auto'")
    chosen = plan(problem, order)
    if order == "auto" and ORDERS[chosen.order].mixes_nodes and portable():  # whose result would have to be looked at
        chosen = plan(problem, LINKED)
    return chosen
