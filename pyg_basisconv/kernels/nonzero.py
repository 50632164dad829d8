"""A linear layer in one step, like those in contract.py, on the rows of the A_k^T x that are not zero."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..backend import KERNELS
from ..errors import reject
from .contract import Rows, a_first
from .op import Backward, Grads, compilable, recorded
from .pattern import extremes


class NonzeroRows(NamedTuple):
    """The pairs (k, n) of a member and a target to which an entry leads: A_k^T x is zero at all other targets.

    enter: from M sources to t pairs, those of a member together; targets: (t,) the target of each pair, none of them
    twice in a member; counts: how many pairs each member has.
    """

    enter: Rows
    targets: Tensor
    counts: list[int]

    def of_members(self, rows: Tensor) -> tuple[Tensor, ...]:
        """The rows of each member, of (t, W) rows."""
        return rows.split_with_sizes(self.counts)


def _sums(at: NonzeroRows, N: int, u: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The rows of each member times its matrix, added up at their targets: (t, P), (K, P, Q) -> (N, Q)."""
    Q = weight.shape[2]
    y = u.new_zeros(N, Q) if bias is None else u.new_empty(N, Q).copy_(bias)  # never the bias itself
    by_kernel = KERNELS is not None and compilable(u, weight, bias) and compilable(at.targets)
    for rows, matrix, targets in zip(at.of_members(u), weight.unbind(0), at.of_members(at.targets), strict=True):
        z = torch.mm(rows, matrix)
        if not by_kernel:
            y.index_add_(0, targets, z)
            continue
        where = z.data_ptr(), targets.data_ptr(), y.data_ptr()
        if not KERNELS.add_rows(*where, len(z), *y.shape, y.itemsize):
            reject("targets", f"integers from 0 to {N - 1}", extremes(targets), "correct the edges")
    return y


def _by_nonzero_rows(
    A: Any, at: NonzeroRows, x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, tuple[Tensor]]:
    u = at.enter.expand_rows(x)  # (t, P)
    return _sums(at, A.N, u, weight, bias), (u,)


def _backward(given: Backward) -> Grads:
    grad, (needs_x, needs_weight, needs_bias), (_, at), (_, weight, _), (u,) = given
    v = torch.empty_like(u) if needs_x else None  # (t, P) the gradient of u
    grad_weight = torch.empty_like(weight) if needs_weight else None
    members = zip(at.of_members(u), at.of_members(at.targets), at.of_members(u if v is None else v), strict=True)
    for k, (rows, targets, into) in enumerate(members if needs_x or needs_weight else ()):
        z = grad.index_select(0, targets)
        if grad_weight is not None:
            torch.mm(rows.t(), z, out=grad_weight[k])
        if v is not None:
            torch.mm(z, weight[k].t(), out=into)
    grad_x = None if v is None else at.enter.adjoint.expand_rows(v)
    return grad_x, grad_weight, grad.sum(0) if needs_bias else None


_record = recorded(2, _by_nonzero_rows, _backward, lambda A, at, x, weight, bias: a_first(x, weight, bias, A))


def a_first_nonzero(x: Tensor, weight: Tensor, bias: Tensor | None, A: Any) -> Tensor:
    r""":math:`\sum_k (A_k^\top x) \Theta_k + b` as `a_first`, but each Theta_k multiplies only the nonzero rows of
    A_k^T x; all rows, if `nonzero_rows` of the family is None.
    """
    at: NonzeroRows | None = A.nonzero_rows
    if at is None:
        return a_first(x, weight, bias, A)
    return _record(A, at, x, weight, bias if bias is None or bias.dtype == x.dtype else bias.to(x.dtype))
