"""Attention between all pairs: the vendor's kernel, with the derivatives that it has not."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import reject
from ..portable import portable
from .op import derivative


def pair_weights(query: Tensor, key: Tensor, bias: Tensor | None) -> Tensor:
    """The softmax over sources: (*, N, d), (*, M, d), (*, N, M) -> (*, N, M); zero where no source may be seen.

    >>> pair_weights(torch.zeros(1, 1), torch.zeros(4, 1), None)
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """
    score = pair_product(query, key.transpose(-1, -2))
    return torch.softmax(score, -1) if bias is None else torch._safe_softmax(score + bias, -1)


def pair_product(left: Tensor, right: Tensor) -> Tensor:
    """The product of matrices, (B, K, n, m) and (B, K, m, l), without what `matmul` asks before."""
    if left.dim() != 4:
        return left @ right
    return torch.bmm(left.flatten(0, 1), right.flatten(0, 1)).view(*left.shape[:3], right.shape[3])


class _Twice(torch.autograd.Function):
    """What the kernel gave; its gradient, where that is to be differentiated again, is the plain form's."""

    @staticmethod
    def forward(
        ctx: Any, y: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, causal: bool, p: float
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, bias)
        ctx.causal, ctx.p = causal, p
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if not torch.is_grad_enabled():
            return grad, *[None] * 6  # by the kernel's own
        if ctx.p:
            fix = "leave dropout out, or take order='theta_first'"
            reject("order", "one whose gradient has a derivative", "'native' with dropout, on this device", fix)
        query, key, value, bias = ctx.saved_tensors

        def plain(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
            return pair_weights(query, key, later_hidden(bias, query, key) if ctx.causal else bias) @ value

        return None, *derivative(plain, (query, key, value, bias), grad), None, None


def later_hidden(bias: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
    """(N, M) or more: minus infinity where a source comes after the target."""
    later = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril().logical_not()
    bias = query.new_zeros(later.shape) if bias is None else bias
    return bias.masked_fill(later, -torch.inf)


def pair_attention(query: Tensor, key: Tensor, bias: Tensor | None, value: Tensor, p: float, causal: bool) -> Tensor:
    """`F.scaled_dot_product_attention` without a scale, as often differentiable as its plain form."""
    if causal and bias is not None:
        bias = later_hidden(bias, query, key)
    causal = causal and bias is None
    y = F.scaled_dot_product_attention(query, key, value, bias, p, causal, scale=1.0)
    if not y.requires_grad or not torch.is_grad_enabled() or portable() or (p and not y.is_cuda):
        return y  # with dropout it is made of plain operations, but on CUDA
    return _Twice.apply(y, query, key, value, bias, causal, p)  # type: ignore[no-any-return]
