"""Dense products of many rows with narrow matrices."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..portable import portable
from .op import autocasting


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad_x = grad @ weight.t() if ctx.needs_input_grad[0] else None
        # x^T g as (g^T x)^T: x is read along its rows.
        grad_weight = (grad.t() @ x).t() if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight


def matmul(x: Tensor, weight: Tensor) -> Tensor:
    """X W: (*, M, P), (P, Q) -> (*, M, Q). As `torch.matmul`, with the faster association in its gradient.

    >>> matmul(torch.ones(2, 3), torch.ones(3, 1)).flatten()
    tensor([3., 3.])
    """
    plain = x.dim() != 2 or torch.compiler.is_compiling() or autocasting(x.device)
    if plain or portable():
        return x @ weight
    y: Tensor = _Product.apply(x, weight)
    return y


class _Sum(torch.autograd.Function):
    """x_1 W_1 + ... + x_K W_K, of (R, P) each, into one array; the weights come after the x."""

    @staticmethod
    def forward(ctx: Any, *operands: Tensor) -> Tensor:
        ctx.save_for_backward(*operands)
        K = len(operands) // 2
        y = operands[0] @ operands[K]
        for x, weight in zip(operands[1:K], operands[K + 1 :], strict=True):
            y.addmm_(x, weight)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        operands, needs = ctx.saved_tensors, ctx.needs_input_grad
        K = len(operands) // 2
        xs, weights = operands[:K], operands[K:]
        grad_x = [grad @ weight.t() if need else None for weight, need in zip(weights, needs, strict=False)]
        grad_weight = [(grad.t() @ x).t() if need else None for x, need in zip(xs, needs[K:], strict=True)]
        return *grad_x, *grad_weight


def matmul_sum(pairs: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    r"""The sum of products :math:`\sum_k x_k W_k`: pairs of (\*, M, P) and (P, Q) -> (\*, M, Q), taken as they come.

    Where the first x comes back, as the identity does that stands in several families, its weights are added. An x
    whose M is the outermost axis in memory, before the batch, gives such a result, and is not copied.

    >>> x = torch.ones(2, 3)
    >>> matmul_sum([(x, torch.ones(3, 1)), (2 * x, torch.ones(3, 1)), (x, torch.ones(3, 1))]).flatten()
    tensor([12., 12.])
    """
    rest = iter(pairs)
    first, weight = next(rest)
    outer = first.dim() > 2 and not first.is_contiguous() and first.movedim(-2, 0).is_contiguous()
    plain = torch.compiler.is_compiling() or autocasting(first.device) or portable()
    total: Tensor | None = None
    kept: list[tuple[Tensor, Tensor]] = []  # what a gradient is for: its derivative needs them all at once
    for x, w in rest:
        if x is first:
            weight = weight + w
        elif plain:
            total = x @ w if total is None else total + x @ w
        elif torch.is_grad_enabled() and (x.requires_grad or w.requires_grad):
            kept.append((_rows(x, outer), w))
        elif total is None:
            total = _rows(x, outer) @ w
        else:
            total.addmm_(_rows(x, outer), w)
    if plain:
        return first @ weight if total is None else total + first @ weight
    xs, weights = zip((_rows(first, outer), weight), *kept, strict=True)
    y: Tensor = matmul(xs[0], weight) if len(xs) == 1 else _Sum.apply(*xs, *weights)
    y = y if total is None else y + total
    shape = first.movedim(-2, 0).shape if outer else first.shape
    y = y.view(*shape[:-1], y.shape[-1])
    return y.movedim(0, -2) if outer else y


def _rows(x: Tensor, outer: bool) -> Tensor:
    """(*, M, P) -> (R, P), in the order in which they lie in memory."""
    return (x.movedim(-2, 0) if outer else x).reshape(-1, x.shape[-1])
