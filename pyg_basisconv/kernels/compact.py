"""Products member by member, on the rows that each member touches: gather, multiply, add."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_PIECE = 1 << 14  # pairs at a time, whose rows fit into a near cache

Runs = list[tuple[Tensor, Tensor]]  # for each member the sources and the targets that meet, each at most once


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, runs: Runs, N: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.runs = runs
        wide = _wide(x)
        y = x.new_zeros((N, weight.shape[-1]), dtype=wide)
        rows, products = x.new_empty(_PIECE, x.shape[1]), x.new_empty(_PIECE, weight.shape[-1])
        matrices = weight.unbind(0)
        for k, source, target in _pieces(runs):
            u, v = rows[: source.numel()], products[: source.numel()]
            torch.index_select(x, 0, source, out=u)
            torch.mm(u, matrices[k], out=v)
            y.index_add_(0, target, v.to(wide))
        return y.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = _Products.apply(grad, weight.transpose(1, 2), _turned(ctx.runs), x.shape[0])
        if ctx.needs_input_grad[1]:
            grad_weight = _Outer.apply(x, grad, ctx.runs)
        return grad_x, grad_weight, None, None


class _Outer(torch.autograd.Function):
    """The derivative by the weights: for each member, the inner products of the rows that meet."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, runs: Runs) -> Tensor:
        ctx.save_for_backward(x, y)
        ctx.runs = runs
        weight = x.new_zeros((len(runs), x.shape[1], y.shape[1]), dtype=_wide(x))
        rows, others = x.new_empty(_PIECE, x.shape[1]), y.new_empty(_PIECE, y.shape[1])
        for k, source, target in _pieces(runs):
            u, v = rows[: source.numel()], others[: source.numel()]
            torch.index_select(x, 0, source, out=u)
            torch.index_select(y, 0, target, out=v)
            weight[k] += u.t() @ v
        return weight.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, y = ctx.saved_tensors
        grad_x = grad_y = None
        if ctx.needs_input_grad[0]:
            grad_x = _Products.apply(y, grad.transpose(1, 2), _turned(ctx.runs), x.shape[0])
        if ctx.needs_input_grad[1]:
            grad_y = _Products.apply(x, grad, ctx.runs, y.shape[0])
        return grad_x, grad_y, None


def _pieces(runs: Runs) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The members and their pairs, a few at a time: the first of all members, then the next of all members.

    Members that list their pairs in one order then meet the same rows soon after each other, while these are near.
    """
    count = -(-max((source.numel() for source, _ in runs), default=0) // _PIECE)
    for piece in range(count):
        for k, (source, target) in enumerate(runs):
            E = source.numel()
            start, end = piece * E // count, (piece + 1) * E // count
            if end > start:
                yield k, source[start:end], target[start:end]


def _wide(x: Tensor) -> torch.dtype:
    """Where sums of many terms are made: float32 at least."""
    return x.dtype if x.dtype in (torch.float32, torch.float64) else torch.float32


def _turned(runs: Runs) -> Runs:
    return [(target, source) for source, target in runs]


def products(x: Tensor, weight: Tensor, runs: Runs, N: int) -> Tensor:
    r""":math:`y_n = \sum_k \sum_{m: (m, n) \in run_k} x_m W_k`; nothing larger than one member's rows is made.

    Differentiable in both, any number of times; the gathered rows are not kept, but gathered again.

    Args:
        x: (*, M, P).
        weight: (K, P, Q).
        runs: K pairs of sources and targets; each occurs at most once in a pair.
        N: how many targets there are.

    Returns:
        (*, N, Q).

    >>> runs = [(torch.tensor([0, 1]), torch.tensor([1, 0])), (torch.tensor([1]), torch.tensor([1]))]
    >>> products(torch.tensor([[1.], [2.]]), torch.tensor([[[10.]], [[1.]]]), runs, 2)
    tensor([[20.],
            [12.]])
    """
    if x.dim() == 2:
        y: Tensor = _Products.apply(x, weight, runs, N)
        return y
    flat = x.reshape(x.shape[:-2].numel(), *x.shape[-2:])
    y = torch.stack([products(x_b, weight, runs, N) for x_b in flat]) if len(flat) else x.new_zeros(0)
    return y.view(*x.shape[:-2], N, weight.shape[-1])
