"""A whole linear layer in one step: both orders of A and Theta, with their derivatives.

Everything here is node-major: the values of all K members at a node stand side by side in its row.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from ..portable import with_plain
from .op import derivative, raw_apply


class Rows(Protocol):
    """A fixed family of K matrices, M x N; the methods on rows record nothing for autograd."""

    K: int

    def expand_rows(self, x: Tensor) -> Tensor:
        """(M, P) -> (N, K P)."""

    def combine_rows(self, z: Tensor) -> Tensor:
        """(M, K Q) -> (N, Q)."""

    def expand(self, x: Tensor) -> Tensor:
        """(M, P) -> (K, N, P), in the portable path too."""

    def combine(self, z: Tensor) -> Tensor:
        """(K, M, Q) -> (N, Q), in the portable path too."""

    @property
    def adjoint(self) -> "Rows":
        """The family of the transposed matrices."""

    @property
    def total(self) -> "Rows | None":
        """The sum of the matrices as a family of one, or None if it costs as much as the family."""


class Copies:
    """A family on several copies of its graph, whose nodes stand side by side: row m B + b is node m of copy b.

    >>> from pyg_basisconv import bases
    >>> A = bases.Adjacency().bind(torch.tensor([[0], [1]]), size=2)
    >>> Copies(A, 3).expand_rows(torch.tensor([[1.0], [2.0], [3.0], [0.0], [0.0], [0.0]])).flatten()
    tensor([0., 0., 0., 1., 2., 3.])
    """

    def __init__(self, A: Rows, count: int) -> None:
        self.A, self.K, self.count = A, A.K, count

    def expand_rows(self, x: Tensor) -> Tensor:
        """(M B, P) -> (N B, K P)."""
        y = self.A.expand_rows(self._side_by_side(x))  # (N, K B P)
        N, P = y.shape[0], x.shape[1]
        return y.view(N, self.K, self.count, P).transpose(1, 2).reshape(N * self.count, self.K * P)

    def combine_rows(self, z: Tensor) -> Tensor:
        """(M B, K Q) -> (N B, Q)."""
        M, Q = z.shape[0] // self.count, z.shape[1] // self.K
        by_member = z.view(M, self.count, self.K, Q).transpose(1, 2)  # (M, K, B, Q)
        y = self.A.combine_rows(by_member.reshape(M, self.K * self.count * Q))  # (N, B Q)
        return y.view(y.shape[0] * self.count, Q)

    def expand(self, x: Tensor) -> Tensor:
        """(M B, P) -> (K, N B, P)."""
        y = self.A.expand(self._side_by_side(x))  # (K, N, B P)
        return y.reshape(self.K, y.shape[1] * self.count, x.shape[1])

    def combine(self, z: Tensor) -> Tensor:
        """(K, M B, Q) -> (N B, Q)."""
        K, rows, Q = z.shape
        y = self.A.combine(z.reshape(K, rows // self.count, self.count * Q))  # (N, B Q)
        return y.reshape(y.shape[0] * self.count, Q)

    @property
    def adjoint(self) -> "Copies":
        """The family of the transposed matrices."""
        return Copies(self.A.adjoint, self.count)

    @property
    def total(self) -> "Copies | None":
        """The sum of the matrices as a family of one, or None if it costs as much as the family."""
        one = self.A.total
        return None if one is None else Copies(one, self.count)

    def _side_by_side(self, x: Tensor) -> Tensor:
        """(M B, P) -> (M, B P), a view."""
        return x.view(x.shape[0] // self.count, self.count * x.shape[1])


class _Applied(torch.autograd.Function):
    """Expand or combine on rows; the derivative of either is the other, of the transposed family."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, A: Rows, expands: bool) -> Tensor:
        ctx.A, ctx.expands = A, expands
        y = A.expand_rows(rows) if expands else A.combine_rows(rows)
        return rows.clone() if y is rows else y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        applied = _combine if ctx.expands else _expand
        return applied(grad.contiguous(), ctx.A.adjoint), None, None


_record_applied: Callable[..., Tensor] = raw_apply(_Applied)


# A derivative may be taken under vmap.
@with_plain(lambda x, A: A.expand(x).movedim(0, 1).reshape(-1, A.K * x.shape[1]))
def _expand(x: Tensor, A: Rows) -> Tensor:
    """All products side by side, recorded for autograd where gradients are enabled."""
    return _record_applied(x, A, True) if torch.is_grad_enabled() else A.expand_rows(x)


@with_plain(lambda z, A: A.combine(z.view(z.shape[0], A.K, -1).movedim(1, 0)))
def _combine(z: Tensor, A: Rows) -> Tensor:
    """The sum of all products, recorded for autograd where gradients are enabled."""
    return _record_applied(z, A, False) if torch.is_grad_enabled() else A.combine_rows(z)


def side_by_side(weight: Tensor) -> Tensor:
    """(K, P, Q) -> (P, K Q)."""
    K, P, Q = weight.shape
    return weight[0] if K == 1 else weight.transpose(0, 1).reshape(P, K * Q)


def _grad_stacked(z: Tensor, x: Tensor, K: int) -> Tensor:
    """The derivative by Theta: (M, K Q), (M, P) -> (K, P, Q).

    Computed as (z^T x)^T, which reads the wider factor along its rows; x^T z for one matrix with a narrow x, as that
    already has the layout of the parameter.
    """
    if K == 1 and x.shape[1] <= z.shape[1]:
        return (x.t() @ z).unsqueeze(0)
    return (z.t() @ x).view(K, z.shape[1] // K, x.shape[1]).transpose(1, 2)


def _plain_theta_first(x: Tensor, weight: Tensor, bias: Tensor | None, A: Rows) -> Tensor:
    y = _combine(x @ side_by_side(weight), A)
    return y if bias is None else y + bias


def _theta_first(x: Tensor, weight: Tensor, bias: Tensor | None, A: Rows) -> Tensor:
    y = A.combine_rows(x @ side_by_side(weight))  # fresh memory, so the bias can be added in place
    return y if bias is None else y.add_(bias)


class _ThetaFirst(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, A: Rows) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.A = A
        return _theta_first(x, weight, bias, A)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        if torch.is_grad_enabled():
            return derivative(_plain_theta_first, (x, weight, bias, ctx.A), grad)
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        grad_x = grad_weight = None
        if needs_x or needs_weight:
            z = _expand(grad.contiguous(), ctx.A.adjoint)  # (M, K Q)
            grad_x = z @ side_by_side(weight).t() if needs_x else None
            grad_weight = _grad_stacked(z, x, weight.shape[0]) if needs_weight else None
        return grad_x, grad_weight, grad.sum(0) if needs_bias else None, None


_record_theta_first: Callable[..., Tensor] = raw_apply(_ThetaFirst)


def a_first(x: Tensor, weight: Tensor, bias: Tensor | None, A: Rows) -> Tensor:
    r""":math:`\sum_k (A_k^\top x) \Theta_k + b`: sparse products at width P.

    (M, P), (K, P, Q), (Q) or None -> (N, Q); differentiable in x, weight and bias, any number of times. The expansions
    are saved for the backward pass.
    """
    return times_theta(_products(x, A), weight, bias)


def times_theta(u: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    r""":math:`\sum_k u_k \Theta_k + b` of products u that stand side by side, (N, K P). See `a_first`."""
    flat = weight.flatten(0, 1)  # (K P, Q)
    if bias is None:
        return u @ flat
    return torch.addmm(bias if bias.dtype == u.dtype else bias.to(u.dtype), u, flat)


def _products(x: Tensor, A: Rows) -> Tensor:
    """All products side by side, (N, K P), recorded for autograd if x requires a gradient."""
    learns = x.requires_grad and torch.is_grad_enabled()
    return _record_applied(x, A, True) if learns else A.expand_rows(x)


def summed(x: Tensor, A: Rows) -> Tensor:
    r""":math:`\sum_k A_k^\top x`, in fresh memory: (M, P) -> (N, P). Differentiable in x any number of times."""
    one = A.total
    if one is None:
        u = _products(x, A)
        return u.view(u.shape[0], A.K, x.shape[1]).sum(1)
    y = _products(x, one)
    return x.clone() if y is x else y


def theta_first(x: Tensor, weight: Tensor, bias: Tensor | None, A: Rows) -> Tensor:
    r""":math:`\sum_k A_k^\top (x \Theta_k) + b`: sparse products at width Q; saves only x. See `a_first`."""
    bias = bias if bias is None or bias.dtype == x.dtype else bias.to(x.dtype)
    if torch.is_grad_enabled():
        return _record_theta_first(x, weight, bias, A)
    return _theta_first(x, weight, bias, A)
