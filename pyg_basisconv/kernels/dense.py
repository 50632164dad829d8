"""Dense product of many rows with a narrow matrix."""

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
