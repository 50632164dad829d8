"""The orders of contraction of A, x and Theta, evaluated; `native` is the basis's. What they cost is in plan.py."""

from collections.abc import Callable

from torch import Tensor

from .basis import BoundBasis
from .content import Inputs
from .kernels import gather_matmul


def a_first(basis: BoundBasis, inputs: Inputs) -> Tensor:
    """(A_k^T x) Theta_k: sparse products at width P."""
    return inputs.theta.contract(basis.iterate(inputs.theta.lift(inputs.x)))


def theta_first(basis: BoundBasis, inputs: Inputs) -> Tensor:
    """A_k^T (x Theta_k): sparse products at width Q; x may be sparse."""
    return inputs.theta.gather(basis, inputs.projected)


def phi(basis: BoundBasis, inputs: Inputs) -> Tensor:
    """X (A o Theta): the operator, once, for the whole batch."""
    x, theta = inputs.theta.lift(inputs.x), inputs.theta
    A = basis.to_dense()  # (K, M, N)
    weight = theta.dense(x.shape[-1]).to(x)  # (K, P, Q)
    M, N, P, Q = basis.M, basis.N, weight.shape[1], weight.shape[2]
    operator = A.flatten(1).t() @ weight.flatten(1)  # (M N, P Q)
    operator = operator.view(M, N, P, Q).transpose(1, 2).reshape(M * P, N * Q)
    batch = x.shape[:-2]
    y = x.reshape(batch.numel(), M * P) @ operator
    return y.view(*batch, N, Q)


def compacted(basis: BoundBasis, inputs: Inputs) -> Tensor:
    """Member by member, on the rows that it touches: gathered, multiplied with Theta_k, added."""
    meetings = basis.meetings
    assert meetings is not None  # the plan refuses it otherwise
    x = inputs.theta.lift(inputs.x)[..., : meetings.M, :]
    return gather_matmul(x, inputs.theta.dense(x.shape[-1]).to(x), meetings)


ORDERS: dict[str, Callable[[BoundBasis, Inputs], Tensor]] = {
    "a_first": a_first,
    "theta_first": theta_first,
    "phi": phi,
    "compacted": compacted,
}
