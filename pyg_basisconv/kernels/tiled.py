"""Products on the rows that all members touch, side by side: gather, multiply."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..cache import cached_property, kept, underived
from ..portable import portable
from .op import autocast, wide
from .pattern import index_dtype

_ROOM = {"cpu": 1 << 18, "cuda": 1 << 26}  # numbers of all members' rows that are gathered at a time


class Meetings:
    """Which of M sources and N targets meet in each of K matrices of zeros and ones, at most one of them each.

    Args:
        runs: K pairs, the sources and the targets that meet.
        M: how many sources there are.
        N: how many targets.

    >>> runs = [(torch.tensor([0, 1]), torch.tensor([1, 0])), (torch.tensor([1]), torch.tensor([1]))]
    >>> meetings = Meetings(runs, 2, 2)
    >>> meetings.entries, meetings.table.tolist()
    (3, [[1, 2], [0, 1]])
    """

    def __init__(self, runs: list[tuple[Tensor, Tensor]], M: int, N: int) -> None:
        self.runs, self.M, self.N = runs, M, N

    def __getstate__(self) -> dict[str, Any]:
        return underived(self)

    @cached_property
    def entries(self) -> int:
        """How many ones there are."""
        return sum(source.numel() for source, _ in self.runs)

    @property
    def many(self) -> bool:
        """Whether so many places are ones that the others may be multiplied as well."""
        return 4 * self.entries >= len(self.runs) * max(self.M, self.N)

    @kept
    def table(self) -> Tensor:
        """(N, K) the source that each target meets in each member, M where there is none."""
        table = self.runs[0][0].new_full((self.N, len(self.runs)), self.M, dtype=index_dtype(self.M + 1))
        for k, (source, target) in enumerate(self.runs):
            table[target.long(), k] = source.to(table.dtype)
        return table

    @kept
    def T(self) -> "Meetings":
        """The same seen from the targets."""
        return Meetings([(target, source) for source, target in self.runs], self.N, self.M)

    def to(self, device: torch.device) -> "Meetings":
        """The same on another device."""
        runs = [(source.to(device), target.to(device)) for source, target in self.runs]
        return Meetings(runs, self.M, self.N)

    def tiles(self, x: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        """The targets a few at a time, the first and behind the last; and what they meet, (n, K W), zeros for none."""
        K, W = len(self.runs), x.shape[1]
        size = max(16, _ROOM.get(x.device.type, _ROOM["cpu"]) // max(1, K * W))
        padded, room = torch.cat([x, x.new_zeros(1, W)]), x.new_empty(min(size, self.N) * K, W)
        for first in range(0, self.N, size):
            last = min(first + size, self.N)
            rows = room[: (last - first) * K]
            torch.index_select(padded, 0, self.table[first:last].flatten(), out=rows)
            yield first, last, rows.view(last - first, K * W)


class _TiledProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, meetings: Meetings) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.meetings = meetings
        y, flat = x.new_empty(meetings.N, weight.shape[2]), weight.flatten(0, 1)
        for first, last, rows in meetings.tiles(x):
            torch.mm(rows, flat, out=y[first:last])
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        turned = ctx.meetings.T
        if all(ctx.needs_input_grad[:2]) and not torch.is_grad_enabled():
            return (*_both(x, weight, grad, turned), None)
        grad_x = _TiledProducts.apply(grad, weight.transpose(1, 2), turned) if ctx.needs_input_grad[0] else None
        grad_weight = _TiledOuter.apply(x, grad, ctx.meetings) if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight, None


class _TiledOuter(torch.autograd.Function):
    """The derivative by the weights: for each member, the inner products of the rows that meet."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, meetings: Meetings) -> Tensor:
        ctx.save_for_backward(x, y)
        ctx.meetings = meetings
        K, P, Q = len(meetings.runs), x.shape[1], y.shape[1]
        weight = x.new_zeros((K, P, Q), dtype=wide(x))
        for first, last, rows in meetings.tiles(x):
            weight += (rows.t() @ y[first:last]).view(K, P, Q)
        return weight.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, y = ctx.saved_tensors
        grad_x = _TiledProducts.apply(y, grad.transpose(1, 2), ctx.meetings.T) if ctx.needs_input_grad[0] else None
        grad_y = _TiledProducts.apply(x, grad, ctx.meetings) if ctx.needs_input_grad[1] else None
        return grad_x, grad_y, None


def _both(x: Tensor, weight: Tensor, grad: Tensor, turned: Meetings) -> tuple[Tensor, Tensor]:
    """Both derivatives, of which each reads what is gathered of the gradient."""
    K, P, Q = weight.shape
    grad_x, flat = torch.empty_like(x), weight.transpose(1, 2).reshape(K * Q, P)
    grad_weight = x.new_zeros((P, K * Q), dtype=wide(x))
    for first, last, rows in turned.tiles(grad):
        torch.mm(rows, flat, out=grad_x[first:last])
        grad_weight += x[first:last].t() @ rows
    return grad_x, grad_weight.view(P, K, Q).transpose(0, 1).to(x.dtype)


def gather_matmul(x: Tensor, weight: Tensor, meetings: Meetings) -> Tensor:
    r""":math:`y_n = \sum_k \sum_{m: (m, n) \in run_k} x_m W_k`; no array of all the rows that meet is made, but zeros
    are multiplied where none meet: this is for members that are dense enough, see `Meetings.many`.

    Differentiable in both, any number of times; the gathered rows are not kept, but gathered again.

    Args:
        x: (*, M, P).
        weight: (K, P, Q).
        meetings: of K members.

    Returns:
        (*, N, Q).

    >>> runs = [(torch.tensor([0, 1]), torch.tensor([1, 0])), (torch.tensor([1]), torch.tensor([1]))]
    >>> meetings = Meetings(runs, 2, 2)
    >>> gather_matmul(torch.tensor([[1.], [2.]]), torch.tensor([[[10.]], [[1.]]]), meetings)
    tensor([[20.],
            [12.]])
    """
    x, weight = autocast(x, weight)
    if portable():
        y = x.new_zeros(*x.shape[:-2], meetings.N, weight.shape[2])
        for (source, target), matrix in zip(meetings.runs, weight.unbind(0), strict=True):
            y = y.index_add(-2, target, x.index_select(-2, source) @ matrix)
        return y
    if x.dim() == 2:
        y = _TiledProducts.apply(x.contiguous(), weight, meetings)
        return y
    flat = x.reshape(x.shape[:-2].numel(), *x.shape[-2:])
    y = torch.stack([gather_matmul(x_b, weight, meetings) for x_b in flat]) if len(flat) else x.new_zeros(0)
    return y.view(*x.shape[:-2], meetings.N, weight.shape[-1])
