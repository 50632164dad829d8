"""The operator A o Theta, built once: for small graphs and large batches."""

from math import prod
from typing import Any

from torch import Tensor

from ..content import Inputs
from ..costs import MACHINES, Estimate, Problem, Tally, format_amount
from .base import MESSAGES, Contracted, Order

PHI_LIMIT = 1 << 30  # the most bytes of the operator (M, P, N, Q)


class Phi(Order):
    """X (A o Theta): the operator (M P, N Q), built once for the whole batch."""

    name, measures, mixes_nodes = "phi", True, True

    def measure(self, family: Any, inputs: Inputs, messages: bool, forced: bool) -> bool | None:
        return True if family.batch else None  # of a batch whose graphs have matrices of their own

    def estimate(self, p: Problem, offer: Any) -> Estimate:
        if p.sparse_x:
            return self.refuse("x is sparse, and the operator is dense")
        if p.messages:
            return self.refuse(f"{MESSAGES}, and it sends none")
        if offer:
            return self.refuse("each graph of the batch has matrices of its own")
        size = p.M * p.P * p.N * p.Q
        if size * p.itemsize > PHI_LIMIT:
            return self.refuse(f"the operator ({p.M} x {p.P}, {p.N} x {p.Q}) takes over {format_amount(PHI_LIMIT)}B")
        t = Tally(MACHINES[p.device], p.itemsize)
        if p.gather.numbers:  # computed matrices are written out first
            for _ in range(3 if p.grad_basis else 1):
                t.sparse(p.gather, 1, p.M)
                t.copy(p.K * p.M * p.N)
        t.product(p.M * p.N, p.K, p.P * p.Q)
        t.copy(size)
        t.product(p.B, p.M * p.P, p.N * p.Q)
        t.seconds += t.machine.wait  # whether the result is finite, see `plan.reaches_unlinked`
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
        return t.estimate(self.name, memory, size)

    def grounds(self, p: Problem, offer: Any) -> str:
        return f"one product for a batch of {p.B} on a structure of {p.M} x {p.N}"

    def run(self, family: Any, inputs: Inputs, bias: Tensor | None, form: str, cached: bool) -> Contracted:
        x, theta = inputs.theta.lift(inputs.x), inputs.theta
        A = family.dense  # (K, M, N)
        weight = theta.dense(x.shape[-1]).to(x)  # (K, P, Q)
        M, N, P, Q = family.M, family.N, weight.shape[1], weight.shape[2]
        operator = A.flatten(1).t() @ weight.flatten(1)  # (M N, P Q)
        operator = operator.view(M, N, P, Q).transpose(1, 2).reshape(M * P, N * Q)
        batch = x.shape[:-2]
        y = x.reshape(prod(batch), M * P) @ operator
        return Contracted(y.view(*batch, N, Q))
