"""A whole linear layer in one step: both orders of A and Theta, with their derivatives.

Everything here is node-major: what the K members have at a node stands side by side in its row.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol

import torch
from torch import Tensor

from ..portable import portable
from .op import autocasting, derivative


class Rows(Protocol):
    """A fixed family of K matrices, M x N, applied to rows without a record for gradients."""

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


def _expanded(x: Tensor, A: Rows) -> Tensor:
    """All products side by side; by operations that can be transformed, where a derivative is taken under vmap."""
    return A.expand(x).movedim(0, 1).flatten(1) if portable() else A.expand_rows(x)


def _combined(z: Tensor, A: Rows) -> Tensor:
    """The sum of all products, in the same way."""
    if not portable():
        return A.combine_rows(z)
    return A.combine(z.unflatten(1, (A.K, -1)).movedim(1, 0))


def _exact(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A derivative in the dtype of what was computed, though it may be asked for under autocast."""

    @wraps(backward)
    def in_its_dtype(ctx: Any, grad: Tensor) -> Any:
        if not autocasting(grad.device):
            return backward(ctx, grad)
        with torch.autocast(grad.device.type, enabled=False):
            return backward(ctx, grad)

    return in_its_dtype


class _Expand(torch.autograd.Function):
    """A family applied to x; its derivative is the sum over the transposed family, and so on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, A: Rows) -> Tensor:
        ctx.A = A
        y = A.expand_rows(x)
        return x.clone() if y is x else y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _combine(grad.contiguous(), ctx.A.adjoint), None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, A: Rows) -> Tensor:
        ctx.A = A
        y = A.combine_rows(z)
        return z.clone() if y is z else y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _expand(grad.contiguous(), ctx.A.adjoint), None


def _expand(x: Tensor, A: Rows) -> Tensor:
    """The products side by side, with a record for gradients."""
    return _expanded(x, A) if portable() else _Expand.apply(x, A)  # type: ignore[no-any-return, no-untyped-call]


def _combine(z: Tensor, A: Rows) -> Tensor:
    """The sum of all products, with a record for gradients."""
    return _combined(z, A) if portable() else _Combine.apply(z, A)  # type: ignore[no-any-return, no-untyped-call]


def side_by_side(weight: Tensor) -> Tensor:
    """(K, P, Q) -> (P, K Q)."""
    K, P, Q = weight.shape
    return weight[0] if K == 1 else weight.transpose(0, 1).reshape(P, K * Q)


def _grad_stacked(z: Tensor, x: Tensor, K: int) -> Tensor:
    """The derivative by Theta: (M, K Q), (M, P) -> (K, P, Q). As (z^T x)^T: the wide one is read along its rows."""
    return (z.t() @ x).view(K, z.shape[1] // K, x.shape[1]).transpose(1, 2)


def _plain_a_first(x: Tensor, weight: Tensor, bias: Tensor | None, A: Rows) -> Tensor:
    y = _expand(x, A) @ weight.flatten(0, 1)
    return y if bias is None else y + bias


def _plain_theta_first(x: Tensor, weight: Tensor, bias: Tensor | None, A: Rows) -> Tensor:
    y = _combine(x @ side_by_side(weight), A)
    return y if bias is None else y + bias


def _a_first(x: Tensor, weight: Tensor, bias: Tensor | None, A: Rows) -> tuple[Tensor, Tensor]:
    """The result, and the expansions, (N, K P)."""
    u, flat = A.expand_rows(x), weight.flatten(0, 1)  # (N, K P), (K P, Q)
    return u @ flat if bias is None else torch.addmm(bias, u, flat), u


def _theta_first(x: Tensor, weight: Tensor, bias: Tensor | None, A: Rows) -> Tensor:
    y = A.combine_rows(x @ side_by_side(weight))  # of its own: at most the projected rows themselves
    return y if bias is None else y.add_(bias)


class _AFirst(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, A: Rows) -> Tensor:
        y, u = _a_first(x, weight, bias, A)
        ctx.save_for_backward(x, u, weight, bias)
        ctx.A = A
        return y

    @staticmethod
    @_exact
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, u, weight, bias = ctx.saved_tensors
        if torch.is_grad_enabled():
            return derivative(_plain_a_first, (x, weight, bias, ctx.A), grad)
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        grad_x = _combined(grad @ weight.flatten(0, 1).t(), ctx.A.adjoint) if needs_x else None
        # u^T g as (g^T u)^T: the wide one is read along its rows.
        grad_weight = (grad.t() @ u).t().view_as(weight) if needs_weight else None
        return grad_x, grad_weight, grad.sum(0) if needs_bias else None, None


class _ThetaFirst(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, A: Rows) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.A = A
        return _theta_first(x, weight, bias, A)

    @staticmethod
    @_exact
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        if torch.is_grad_enabled():
            return derivative(_plain_theta_first, (x, weight, bias, ctx.A), grad)
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        grad_x = grad_weight = None
        if needs_x or needs_weight:
            z = _expanded(grad.contiguous(), ctx.A.adjoint)  # (M, K Q)
            grad_x = z @ side_by_side(weight).t() if needs_x else None
            grad_weight = _grad_stacked(z, x, len(weight)) if needs_weight else None
        return grad_x, grad_weight, grad.sum(0) if needs_bias else None, None


# What `Function.apply` does besides is for transforms of `torch.func`, under which none of these is called.
_record_a_first: Callable[..., Tensor] = super(torch.autograd.Function, _AFirst).apply  # type: ignore[misc]
_record_theta_first: Callable[..., Tensor] = super(torch.autograd.Function, _ThetaFirst).apply  # type: ignore[misc]


def a_first(x: Tensor, weight: Tensor, bias: Tensor | None, A: Rows) -> Tensor:
    r""":math:`\sum_k (A_k^\top x) \Theta_k + b`: sparse products at width P.

    Differentiable in x, weight and bias, any number of times. What is kept for it are the expansions.

    Args:
        x: (M, P).
        weight: (K, P, Q).
        bias: (Q,) or None.
        A: the family.

    Returns:
        (N, Q).
    """
    bias = bias if bias is None or bias.dtype == x.dtype else bias.to(x.dtype)
    if torch.is_grad_enabled():
        return _record_a_first(x, weight, bias, A)
    return _a_first(x, weight, bias, A)[0]


def theta_first(x: Tensor, weight: Tensor, bias: Tensor | None, A: Rows) -> Tensor:
    r""":math:`\sum_k A_k^\top (x \Theta_k) + b`: sparse products at width Q; nothing is kept but x. See `a_first`."""
    bias = bias if bias is None or bias.dtype == x.dtype else bias.to(x.dtype)
    if torch.is_grad_enabled():
        return _record_theta_first(x, weight, bias, A)
    return _theta_first(x, weight, bias, A)
