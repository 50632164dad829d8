"""The orders of contraction of A, x and Theta, evaluated. What they cost is in plan.py."""

from collections.abc import Callable

import torch
from torch import Tensor

from .basis import BoundBasis
from .theta import Theta


def a_first(basis: BoundBasis, x: Tensor, theta: Theta) -> Tensor:
    """(A_k^T x) Theta_k: sparse products at width P."""
    return theta.contract(basis.iterate(x))


def theta_first(basis: BoundBasis, x: Tensor, theta: Theta) -> Tensor:
    """A_k^T (x Theta_k): sparse products at width Q; x may be sparse."""
    return theta.gather(basis, theta.project(x))


def phi(basis: BoundBasis, x: Tensor, theta: Theta) -> Tensor:
    """X (A o Theta): the operator, once, for the whole batch."""
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


ORDERS: dict[str, Callable[[BoundBasis, Tensor, Theta], Tensor]] = {
    "a_first": a_first,
    "theta_first": theta_first,
    "phi": phi,
}
