"""The orders of contraction of A, x and Theta, evaluated; `native` is the basis's. What they cost is in plan.py."""

from collections.abc import Callable
from functools import partial
from math import prod

from torch import Tensor

from .basis import BoundBasis, Side
from .content import Inputs
from .plan import Estimate


def a_first(basis: BoundBasis, inputs: Inputs) -> Tensor:
    """(A_k^T x) Theta_k: sparse products at width P."""
    return inputs.theta.contract(basis.iterate(inputs.theta.lift(inputs.x)))


def theta_first(basis: BoundBasis, inputs: Inputs) -> Tensor:
    """A_k^T (x Theta_k): sparse products at width Q; x may be sparse."""
    return inputs.theta.gather(basis, inputs.projected)


def phi(basis: BoundBasis, inputs: Inputs) -> Tensor:
    """X (A o Theta): the operator, once, for the whole batch."""
    x, theta = inputs.theta.lift(inputs.x), inputs.theta
    A = basis.dense  # (K, M, N)
    weight = theta.dense(x.shape[-1]).to(x)  # (K, P, Q)
    M, N, P, Q = basis.M, basis.N, weight.shape[1], weight.shape[2]
    operator = A.flatten(1).t() @ weight.flatten(1)  # (M N, P Q)
    operator = operator.view(M, N, P, Q).transpose(1, 2).reshape(M * P, N * Q)
    batch = x.shape[:-2]
    y = x.reshape(prod(batch), M * P) @ operator
    return y.view(*batch, N, Q)


def compacted(basis: BoundBasis, inputs: Inputs, side: Side) -> Tensor:
    """A_k^T x Theta_k on the rows of each member where there is something, of its sources or of its targets."""
    compact = basis.compact(side)
    assert compact is not None  # the plan refuses it otherwise
    x = inputs.theta.lift(inputs.x)
    return compact.run(x, inputs.theta.diagonal(x.shape[-1]).to(x))


def mixed(basis: BoundBasis, inputs: Inputs, then: Callable[[BoundBasis, Inputs], Tensor]) -> Tensor:
    """(sum_k c_hk A_k)^T x W_h: the members are mixed as the parameter says, and then H matrices are applied."""
    coefficients, matrices = inputs.theta.unmixed
    return then(basis.mixed(coefficients), Inputs(inputs.x, matrices))


ORDERS: dict[str, Callable[[BoundBasis, Inputs], Tensor]] = {
    "a_first": a_first,
    "theta_first": theta_first,
    "phi": phi,
    "compacted, source": partial(compacted, side="source"),
    "compacted, target": partial(compacted, side="target"),
    "mixed, a_first": partial(mixed, then=a_first),
    "mixed, theta_first": partial(mixed, then=theta_first),
}


def contract(estimate: Estimate, basis: BoundBasis, inputs: Inputs) -> Tensor:
    """The result, by the order that was estimated."""
    return ORDERS[estimate.name](basis, inputs)
