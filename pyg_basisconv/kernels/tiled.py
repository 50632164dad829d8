"""Products for members with at most one entry per row and column: gather the sources of each target, multiply."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..cache import cached_property, kept, without_cached
from .op import Backward, Grads, acc_dtype, autocast, recorded
from .pattern import index_dtype

_TILE = {"cpu": 1 << 18, "cuda": 1 << 26}  # gathered numbers per tile


class Matchings:
    """Index pairs of K matrices of zeros and ones, M x N, with at most one 1 per row and column.

    pairs: for each matrix, the sources and the targets of its ones.

    >>> pairs = [(torch.tensor([0, 1]), torch.tensor([1, 0])), (torch.tensor([1]), torch.tensor([1]))]
    >>> matchings = Matchings(pairs, 2, 2)
    >>> matchings.entries, matchings.table.tolist()
    (3, [[1, 2], [0, 1]])
    """

    def __init__(self, pairs: list[tuple[Tensor, Tensor]], M: int, N: int) -> None:
        self.pairs, self.M, self.N = pairs, M, N

    def __getstate__(self) -> dict[str, Any]:
        return without_cached(self)

    @cached_property
    def entries(self) -> int:
        """The number of ones."""
        return sum(source.numel() for source, _ in self.pairs)

    @property
    def is_dense(self) -> bool:
        """Whether ones are so frequent that multiplying by the zeros as well costs little."""
        return 4 * self.entries >= len(self.pairs) * max(self.M, self.N)

    @kept
    def table(self) -> Tensor:
        """(N, K) the source of each target in each member, M for none."""
        table = self.pairs[0][0].new_full((self.N, len(self.pairs)), self.M, dtype=index_dtype(self.M + 1))
        for k, (source, target) in enumerate(self.pairs):
            table[target.long(), k] = source.to(table.dtype)
        return table

    @kept
    def T(self) -> "Matchings":
        """The transposed matrices."""
        return Matchings([(target, source) for source, target in self.pairs], self.N, self.M)

    def to(self, device: torch.device) -> "Matchings":
        """The same on another device."""
        pairs = [(source.to(device), target.to(device)) for source, target in self.pairs]
        return Matchings(pairs, self.M, self.N)

    def tiles(self, x: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        """Ranges of targets, first and one past the last, with the rows of their sources, (n, K W), zeros for none."""
        K, W = len(self.pairs), x.shape[1]
        size = max(16, _TILE.get(x.device.type, _TILE["cpu"]) // max(1, K * W))
        padded, buffer = torch.cat([x, x.new_zeros(1, W)]), x.new_empty(min(size, self.N) * K, W)
        for first in range(0, self.N, size):
            last = min(first + size, self.N)
            rows = buffer[: (last - first) * K]
            torch.index_select(padded, 0, self.table[first:last].flatten(), out=rows)
            yield first, last, rows.view(last - first, K * W)


def _gather_matmul(matchings: Matchings, x: Tensor, weight: Tensor) -> tuple[Tensor, tuple[()]]:
    y, flat = x.new_empty(matchings.N, weight.shape[2]), weight.flatten(0, 1)
    for first, last, rows in matchings.tiles(x):
        torch.mm(rows, flat, out=y[first:last])
    return y, ()


def _gather_matmul_backward(given: Backward) -> Grads:
    """Rows are gathered again, once for both derivatives."""
    grad, needs, (matchings,), (x, weight), _ = given
    K, P, Q = weight.shape
    if not needs[1]:
        return _gather_matmul(matchings.T, grad, weight.transpose(1, 2))[0], None
    if not needs[0]:
        total = x.new_zeros((K, P, Q), dtype=acc_dtype(x.dtype))
        for first, last, rows in matchings.tiles(x):
            total += (rows.t() @ grad[first:last]).view(K, P, Q)
        return None, total.to(x.dtype)
    grad_x, flat = torch.empty_like(x), weight.transpose(1, 2).reshape(K * Q, P)
    total = x.new_zeros((P, K * Q), dtype=acc_dtype(x.dtype))
    for first, last, rows in matchings.T.tiles(grad):
        torch.mm(rows, flat, out=grad_x[first:last])
        total += x[first:last].t() @ rows
    return grad_x, total.view(P, K, Q).transpose(0, 1).to(x.dtype)


def _plain(matchings: Matchings, x: Tensor, weight: Tensor) -> Tensor:
    """The same by differentiable torch operations, which store the rows of all members."""
    rows = F.pad(x, (0, 0, 0, 1)).index_select(0, matchings.table.flatten())
    return rows.view(matchings.N, -1) @ weight.flatten(0, 1)


_record = recorded(1, _gather_matmul, _gather_matmul_backward, _plain)


def gather_matmul(x: Tensor, weight: Tensor, matchings: Matchings) -> Tensor:
    r""":math:`y_n = \sum_k \sum_{m: (m, n) \in pairs_k} x_m W_k`, tile by tile of targets.

    Targets without a source are multiplied as zeros, so members should be dense, see `Matchings.is_dense`.
    Differentiable in both, any number of times; the backward pass gathers the rows again, and only second derivatives
    store them. (*, M, P), (K, P, Q) -> (*, N, Q).

    >>> pairs = [(torch.tensor([0, 1]), torch.tensor([1, 0])), (torch.tensor([1]), torch.tensor([1]))]
    >>> matchings = Matchings(pairs, 2, 2)
    >>> gather_matmul(torch.tensor([[1.], [2.]]), torch.tensor([[[10.]], [[1.]]]), matchings)
    tensor([[20.],
            [12.]])
    """
    x, weight = autocast(x, weight)
    if x.dim() == 2:
        return _record(matchings, x.contiguous(), weight)
    flat = x.reshape(x.shape[:-2].numel(), *x.shape[-2:])
    y = torch.stack([gather_matmul(x_b, weight, matchings) for x_b in flat]) if len(flat) else x.new_zeros(0)
    return y.view(*x.shape[:-2], matchings.N, weight.shape[-1])
