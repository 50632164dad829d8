"""Attention between all pairs: torch's kernel, with the second derivatives that it lacks, and the compiled kernels."""

from collections.abc import Sequence
from struct import Struct
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..backend import is_watched
from ..errors import reject
from ..portable import portable
from .onepass import kernel
from .op import PLAIN, Backward, Grads, acc_dtype, derivative, recorded

_CALL = Struct("=24q")  # `PairCall` in the kernels
_FEW = 1 << 25  # multiply-adds up to which the compiled kernels beat torch's by far: how far, depends on the machine
_WIDEST = 64  # channels of a head up to which the compiled kernels are used


def pair_weights(query: Tensor, key: Tensor, bias: Tensor | None) -> Tensor:
    """The softmax over sources: (*, N, d), (*, M, d), (*, N, M) -> (*, N, M); zeros for a target without sources.

    >>> pair_weights(torch.zeros(1, 1), torch.zeros(4, 1), None)
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """
    score = pair_product(query, key.transpose(-1, -2))
    return torch.softmax(score, -1) if bias is None else torch._safe_softmax(score + bias, -1)


def pair_product(left: Tensor, right: Tensor) -> Tensor:
    """The product of matrices, (B, K, n, m) and (B, K, m, l), without the checks of `matmul`."""
    if left.dim() != 4:
        return left @ right
    return torch.bmm(left.flatten(0, 1), right.flatten(0, 1)).view(*left.shape[:3], right.shape[3])


class _TwiceDifferentiable(torch.autograd.Function):
    """The kernel's result; its second derivative is that of the plain form."""

    @staticmethod
    def forward(
        ctx: Any, y: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, causal: bool, p: float
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, bias)
        ctx.causal, ctx.p = causal, p
        return y.clone()  # the caller may write to what it gets, and the kernel's own gradient reads y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if not torch.is_grad_enabled():
            return grad, *[None] * 6  # the kernel's own backward goes on from here
        if ctx.p:
            fix = "leave dropout out, or take order='theta_first'"
            reject("order", "one whose gradient has a derivative", "'native' with dropout, on this device", fix)
        query, key, value, bias = ctx.saved_tensors

        def plain(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
            return pair_weights(query, key, add_causal_mask(bias, query, key) if ctx.causal else bias) @ value

        return None, *derivative(plain, (query, key, value, bias), grad), None, None


def _pairs(
    heads: int, causal: bool, weighted: bool, keep: bool, query: Tensor, key: Tensor, value: Tensor
) -> tuple[tuple[Tensor, Tensor | None], tuple[Tensor | None]]:
    """See `pair_rows`; by the compiled kernels, which `keep` the softmax statistics for the backward pass."""
    B, N, _ = query.shape
    y = value.new_empty(B, N, value.shape[2])
    weight = value.new_empty(B, heads, N, key.shape[1]) if weighted else None
    stats = value.new_empty(B, heads, N, 2) if keep else None
    _call("pair_forward", (query, key, value), heads, causal, (y, weight, stats, *[None] * 5))
    return (y, weight), (stats,)


def _pairs_backward(given: Backward) -> Grads:
    (grad, grad_weight), _, (heads, causal, *_), (query, key, value), (stats,) = given
    B, N, _ = query.shape
    grad = value.new_zeros(B, N, value.shape[2]) if grad is None else grad.resolve_neg().contiguous()
    grad_weight = None if grad_weight is None else grad_weight.resolve_neg().contiguous()
    # Hooks on saved tensors may give them back with other strides.
    sides = tuple(t if t.stride(2) == 1 else t.contiguous() for t in (query, key, value))
    found = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in sides]
    _call("pair_backward", sides, heads, causal, (None, None, stats.contiguous(), grad, grad_weight, *found))
    return found


def _call(
    name: str, sides: tuple[Tensor, Tensor, Tensor], heads: int, causal: bool, others: Sequence[Tensor | None]
) -> None:
    query, key, value = sides
    (B, N, width), (C, M, other), (F, L, values) = query.shape, key.shape, value.shape
    if not (B == C == F and M == L and width == other) or width % heads or values % heads or (causal and N != M):
        shapes = tuple(query.shape), tuple(key.shape), tuple(value.shape)
        reject("x", f"rows of {heads} heads of the same sequences", shapes, "pass those of this parameter")
    numbers = [B, heads, N, M, width // heads, values // heads, causal]
    for t in sides:
        numbers += t.data_ptr(), t.stride(0), t.stride(1)
    found = kernel(name, query.dtype)
    assert found is not None
    if found(_CALL.pack(*numbers, *[0 if t is None else t.data_ptr() for t in others])):
        raise MemoryError


def _takes(query: Tensor, key: Tensor, value: Tensor, heads: int, weighted: bool) -> bool:
    """Whether the compiled kernels take these: narrow heads, and few pairs unless their weights are wanted."""
    if kernel("pair_forward", query.dtype) is None or is_watched():
        return False
    numbers, widest = query.numel() * key.shape[1], max(query.shape[2], value.shape[2])
    if not (numbers and value.numel()) or widest > heads * _WIDEST or (numbers > _FEW and not weighted):
        return False
    for t in (query, key, value):
        if type(t) not in PLAIN or t.dtype != query.dtype or not t.is_cpu or t.stride(2) != 1 or t.is_neg():
            return False
    return True


def by_heads(rows: Tensor, heads: int) -> Tensor:
    """(B, M, K d) -> (B, K, M, d), a view."""
    B, M, width = rows.shape
    return rows.view(B, M, heads, width // heads).transpose(1, 2)


def _plain_rows(query: Tensor, key: Tensor, value: Tensor, heads: int, causal: bool) -> tuple[Tensor, Tensor]:
    """The same by differentiable torch operations."""
    q, k, v = (by_heads(t, heads) for t in (query, key, value))
    q, k = q.to(acc_dtype(q.dtype)), k.to(acc_dtype(k.dtype))
    weight = pair_weights(q, k, add_causal_mask(None, q, k) if causal else None)
    return pair_product(weight.to(v.dtype), v).transpose(1, 2).flatten(2), weight


_record = recorded(
    4, _pairs, _pairs_backward, lambda heads, causal, weighted, keep, q, k, v: _plain_rows(q, k, v, heads, causal)
)


def pair_rows(
    query: Tensor, key: Tensor, value: Tensor, heads: int, causal: bool, weighted: bool = False, p: float = 0.0
) -> tuple[Tensor, Tensor | None]:
    """Attention between all pairs, heads side by side in the last axis, and its weights.

    From scaled queries, (B, N, K d), keys, (B, M, K d), and values, (B, M, K D), to (B, N, K D), and (B, K, N, M), or
    None where these are not `weighted`. With `causal`, target n sees only the sources m <= n. p: the dropout
    probability of weights; 0 where they are returned.

    >>> y, weight = pair_rows(torch.zeros(1, 2, 3), torch.zeros(1, 4, 3), torch.ones(1, 4, 6), 3, False, True)
    >>> y.shape, weight.shape, weight[0, 0, 0]
    (torch.Size([1, 2, 6]), torch.Size([1, 3, 2, 4]), tensor([0.2500, 0.2500, 0.2500, 0.2500]))
    """
    if not p and _takes(query, key, value, heads, weighted):
        return _record(heads, causal, weighted, torch.is_grad_enabled(), query, key, value)  # type: ignore[no-any-return]
    if weighted:
        return _plain_rows(query, key, value, heads, causal)
    q, k, v = (by_heads(t if t.dtype == value.dtype else t.to(value.dtype), heads) for t in (query, key, value))
    return pair_attention(q, k, None, v, p, causal).transpose(1, 2).flatten(2), None


def add_causal_mask(bias: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
    """(*, N, M) the bias, minus infinity where the source comes after the target."""
    later = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril().logical_not()
    bias = query.new_zeros(later.shape) if bias is None else bias
    return bias.masked_fill(later, -torch.inf)


def pair_attention(query: Tensor, key: Tensor, bias: Tensor | None, value: Tensor, p: float, causal: bool) -> Tensor:
    """`F.scaled_dot_product_attention` without a scale, differentiable any number of times."""
    if causal and bias is not None:
        bias = add_causal_mask(bias, query, key)
    causal = causal and bias is None
    y = F.scaled_dot_product_attention(query, key, value, bias, p, causal, scale=1.0)
    if not y.requires_grad or not torch.is_grad_enabled() or portable() or (p and not y.is_cuda):
        return y  # with dropout, torch composes it of differentiable operations except on CUDA
    return _TwiceDifferentiable.apply(y, query, key, value, bias, causal, p)  # type: ignore[no-any-return]
