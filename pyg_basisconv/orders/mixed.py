"""The order that mixes the members of A before it applies them: for typed edges with theta.Separable."""

from typing import Any, NamedTuple

from torch import Tensor

from ..content import Inputs
from ..costs import MACHINES, Estimate, Problem, Tally, Work
from .base import MESSAGES, Contracted, Order
from .sparse import AFirst, ThetaFirst

_THEN: dict[str, Order] = {order.name: order for order in (AFirst(), ThetaFirst())}


class Mixing(NamedTuple):
    """H, and the cost of one mixture of the A_k."""

    mixtures: int
    work: Work


class Mixed(Order):
    """(sum_k c_hk A_k)^T x W_h: the members are mixed, and then H matrices are applied.

    The gradient reaches the coefficients of Theta through weights of edges.
    """

    name, measures = "mixed", True

    def measure(self, family: Any, inputs: Inputs, messages: bool, forced: bool) -> Mixing | None:
        H = inputs.theta.mixtures
        work = None if messages or H is None else family.mixing
        return None if work is None or H is None else Mixing(H, work)

    def estimate(self, p: Problem, offer: Mixing | None) -> Estimate:
        if p.messages:
            return self.refuse(MESSAGES)
        if offer is None:
            return self.refuse("this is for typed edges with theta.Separable, whose matrices are mixtures")
        H, work = offer
        rest = p._replace(
            K=H,
            expand=work.times(H),
            gather=work.times(H),
            grad_basis=p.grad_theta or p.grad_basis,
            cached=False,
            offers=(),
        )
        best = min((then.estimate(rest, None) for then in _THEN.values()), key=lambda e: e.seconds)
        t = Tally(MACHINES[p.device], p.itemsize)
        for _ in range(2 if rest.grad_basis else 1):
            t.sparse(Work(work.entries, work.entries, 1), H, p.K)
            t.copy(work.entries * H)
        return Estimate(
            self.name,
            best.operations + t.operations,
            best.bytes + t.bytes,
            best.memory + work.entries * H * p.itemsize,
            best.seconds + t.seconds,
            form=best.order,
        )

    def grounds(self, p: Problem, offer: Mixing) -> str:
        return f"{offer.mixtures} mixtures are applied instead of {p.K} matrices"

    def run(self, family: Any, inputs: Inputs, bias: Tensor | None, form: str, cached: bool) -> Contracted | None:
        coefficients, matrices = inputs.theta.unmixed()
        return _THEN[form].run(family.mixed(coefficients), Inputs(inputs.x, matrices), bias, "", False)
