"""The orders of contraction of A, x and Theta, evaluated. What they cost is in plan.py."""

from collections.abc import Callable

import torch
from torch import Tensor

from .basis import BoundBasis
from .content import Inputs


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
    if theta.Q < 0:  # theta.Pass of any width
        weight = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device).expand(basis.K, -1, -1)
    else:
        weight = theta.dense().to(x)  # (K, P, Q)
    M, N, P, Q = basis.M, basis.N, weight.shape[1], weight.shape[2]
    operator = A.flatten(1).t() @ weight.flatten(1)  # (M N, P Q)
    operator = operator.view(M, N, P, Q).transpose(1, 2).reshape(M * P, N * Q)
    batch = x.shape[:-2]
    y = x.reshape(batch.numel(), M * P) @ operator
    return y.view(*batch, N, Q)


def native(basis: BoundBasis, inputs: Inputs) -> Tensor:
    """A and Theta at once, by a vendor's kernel."""
    found = basis.native(inputs.theta)
    assert found is not None  # the plan refuses it otherwise
    return found.run(inputs)


ORDERS: dict[str, Callable[[BoundBasis, Inputs], Tensor]] = {
    "a_first": a_first,
    "theta_first": theta_first,
    "phi": phi,
    "native": native,
}
