"""The two orders that every family has: one sparse product after the other, before Theta or after it."""

from typing import Any

from torch import Tensor

from ..content import Inputs
from ..costs import MACHINES, Estimate, Problem, Tally, Work
from ..sparse_input import condensed
from .base import Contracted, Order


class AFirst(Order):
    """(A_k^T x) Theta_k: sparse products at width P; the expansions are saved for the gradient of Theta, or made again
    where they are made in runs. The time is that of saved ones: which order is faster was measured so.
    """

    name, always, keeps_products = "a_first", ("",), True

    def estimate(self, p: Problem, offer: Any) -> Estimate:
        if p.sparse_x:
            return self.refuse("x is sparse, and its products with A would not be: only Theta first keeps it so")
        t = Tally(MACHINES[p.device], p.itemsize)
        wide, rows = p.B * p.P, p.B * p.N
        back = p.grad_x or p.grad_basis

        def expand(table: int) -> None:
            t.sparse(p.expand, wide, table)
            if p.B > 1:  # the batch is moved beside the width, where the results stay
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
            if not (p.rows and p.K == 1 and p.expand.products):  # of an identity, which has no products, x is copied
                t.copy(p.K * rows * p.P)
        if p.grad_basis:
            t.sparse(p.expand, wide, p.M)
        made = p.K * rows * p.P
        kept = made if p.learns and p.grad_theta and not (p.cached or p.runs) else 0
        memory = (p.runs or made * (2 if back else 1)) + rows * p.Q
        return t.estimate(self.name, memory, 0 if p.cached else made, kept=kept)

    def grounds(self, p: Problem, offer: Any) -> str:
        return "the A_k^T x are known" if p.cached else _narrower(p.P, p.inner)

    def run(self, family: Any, inputs: Inputs, bias: Tensor | None, form: str, cached: bool) -> Contracted:
        if cached:
            kept = family.expansions(inputs.x)
            return Contracted(inputs.theta.contract(kept), kept)
        return Contracted(inputs.theta.contract(family.iterate(inputs.theta.lift(inputs.x))))


class ThetaFirst(Order):
    """A_k^T (x Theta_k): x is read once, sparse products at width Q; saves only x, which may be sparse."""

    name, always = "theta_first", ("",)

    def estimate(self, p: Problem, offer: Any) -> Estimate:
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
            if p.K > 1 or p.B > 1:  # members and batch are moved beside the width
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
        return t.estimate(self.name, memory, p.K * rows * p.inner)

    def grounds(self, p: Problem, offer: Any) -> str:
        return _narrower(p.inner, p.P)

    def run(self, family: Any, inputs: Inputs, bias: Tensor | None, form: str, cached: bool) -> Contracted:
        if cached:
            inputs = Inputs(sparsest(inputs.x, cached), inputs.theta)
        return Contracted(inputs.theta.gather(family, inputs.projected))


def sparsest(x: Tensor, cached: bool) -> Tensor:
    """x, or its cached sparse copy if it is mostly zeros."""
    copy = condensed(x) if cached and x.dim() == 2 else None
    return x if copy is None else copy


def _narrower(width: int, other: int) -> str:
    if width == other:
        return f"both run the sparse products at width {width}; their dense sides differ"
    if width > other:  # what is saved elsewhere, such as steps, outweighs it
        return f"although its sparse products run at width {width}, not {other}"
    return f"sparse products run at width {width} instead of {other}"
