"""Structured parameters: block-diagonal matrices, kernels of convolutions, and mixtures of few matrices."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from ..cache import once
from ..errors import check_count, check_flags, reject
from ..kernels import matmul
from ..kernels.dense import from_diagonal_blocks
from ..printing import arguments
from ..sparse_input import sparse_matmul
from .base import Blocks, Members, Theta, draw_uniform, glorot, param, project
from .full import Full

_MIN_WIDTH = 64  # of blocks that are multiplied separately; narrower ones are merged


class Grouped(Theta):
    r"""Block-diagonal matrices: g separate groups of channels, as in `torch.nn.Conv2d(groups=g)`.

    Group j maps the input channels from j P/g on to the output channels from j Q/g on. K P Q / g numbers. With
    `bases.Relations` it is the block decomposition of R-GCN (Schlichtkrull et al., arXiv:1703.06103).

    Args:
        groups: g, which divides P and Q.

    Attributes:
        weight: the blocks, (K, g, P/g, Q/g).

    >>> theta = Grouped(2).build(1, 4, 2)
    >>> theta.weight.shape, theta.dense().ne(0).int()
    (torch.Size([1, 2, 2, 1]), tensor([[[1, 0],
             [1, 0],
             [0, 1],
             [0, 1]]], dtype=torch.int32))
    """

    of_types = True

    def __init__(self, groups: int) -> None:
        super().__init__()
        check_count("groups", groups)
        self.groups = groups

    def build(self, K: int, P: int, Q: int) -> "Theta":
        if Q > 0:  # P may be open
            self._check_divides("out_channels", Q)
        return super().build(K, P, Q)

    def shape(self, K: int, P: int, Q: int) -> tuple[int, ...]:
        self._check_divides("in_channels", P)
        return K, self.groups, P // self.groups, Q // self.groups

    def _check_divides(self, name: str, width: int) -> None:
        if width % self.groups:
            reject("groups", f"a divisor of {name}, {width}", self.groups, "correct one of them")

    def width(self, weight: Tensor) -> int:
        return weight.shape[1] * weight.shape[2]

    def reset_parameters(self) -> None:
        blocks = self.matrices
        glorot(blocks, blocks.shape[-2], blocks.shape[-1], self.variance_gains)

    @property
    def matrices(self) -> Tensor:
        """(K, g, P/g, Q/g) the blocks."""
        return self.weight

    def project(self, x: Tensor) -> Members:
        K, (*rows, _) = self.K, x.shape
        weight = self.matrices.permute(1, 2, 0, 3).flatten(2)  # (g, P/g, K Q/g)
        if x.layout == torch.strided:
            z = (x.flatten(0, -2).unflatten(-1, (self.groups, -1)).transpose(0, 1) @ weight).transpose(0, 1)
        else:
            z = sparse_matmul(_split_columns(x, self.groups), weight.flatten(0, 1)).unflatten(0, (*rows, self.groups))
        return z.unflatten(-1, (K, -1)).movedim(2, 0).reshape(K, *rows, self.Q)  # of (rows, g, K Q/g)

    def contract(self, u: Iterable[Tensor]) -> Tensor:
        # The members of a group side by side: one product of width K P/g is faster than K of width P/g.
        side_by_side = torch.cat([u_k.unflatten(-1, (self.groups, -1)) for u_k in u], -1)  # (*, g, K P/g)
        weight = self.matrices.transpose(0, 1).flatten(1, 2)  # (g, K P/g, Q/g)
        y = side_by_side.flatten(0, -3).transpose(0, 1) @ weight
        return y.transpose(0, 1).reshape(*side_by_side.shape[:-2], self.Q)

    def dense(self, width: int = -1) -> Tensor:
        return from_diagonal_blocks(self.matrices)

    def blocks(self, width: int) -> Blocks | None:
        return Blocks(self.matrices)

    def diagonal(self, width: int) -> Tensor:
        # Neighbouring blocks are merged, with zeros, up to `_MIN_WIDTH`.
        K, g, P, Q = (blocks := self.matrices).shape
        together = max(n for n in range(1, g + 1) if g % n == 0 and (n == 1 or n * max(P, Q) <= _MIN_WIDTH))
        return from_diagonal_blocks(blocks.reshape(K * (g // together), together, P, Q)).view(
            K, g // together, together * P, together * Q
        )

    def extra_repr(self) -> str:
        return f"groups={self.groups}"


class Kernel(Grouped):
    r"""The matrices of a window's taps, stored as `torch.nn.Conv2d` and its like store them: for their checkpoints, and
    so that a convolution of torch takes the weight as it is.

    Args:
        size: of the window, the kernel size of `bases.Window` for each axis; K is their product, the last axis fastest.
        groups: g, which divides P and Q; input channels of group j reach output channels of group j only.
        transposed: stored as `torch.nn.ConvTranspose2d` and its like store them.

    Attributes:
        weight: (Q, P/g, \*size); (P, Q/g, \*size) if transposed.

    >>> from pyg_basisconv import GridConv, bases
    >>> conv = torch.nn.Conv2d(4, 6, 3, padding=1, groups=2)
    >>> layer = GridConv(4, 6, bases.Window(None, (3, 3), padding=1), Kernel((3, 3), groups=2))
    >>> layer.theta.weight, layer.bias = conv.weight, conv.bias
    >>> x = torch.randn(5, 4, 8, 8)
    >>> torch.equal(layer(x), conv(x))
    True
    """

    of_types = False

    def __init__(self, size: Sequence[int], groups: int = 1, transposed: bool = False) -> None:
        super().__init__(groups)
        check_flags(transposed=transposed)
        if not isinstance(size, tuple | list) or not size:
            reject("size", "a positive integer for each axis", size, "such as (3, 3)")
        for length in size:
            check_count("size", length)
        self.size, self.transposed = tuple(size), transposed

    def build(self, K: int, P: int, Q: int) -> Theta:
        if math.prod(self.size) != K:
            reject("size", f"{K} taps, one for each matrix of the basis", self.size, "give it the window's kernel size")
        return super().build(K, P, Q)

    def shape(self, K: int, P: int, Q: int) -> tuple[int, ...]:
        super().shape(K, P, Q)  # checks the groups
        first, second = (P, Q) if self.transposed else (Q, P)
        return first, second // self.groups, *self.size

    def width(self, weight: Tensor) -> int:
        return weight.shape[0] if self.transposed else weight.shape[1] * self.groups

    @property
    def matrices(self) -> Tensor:
        taps = self.weight.flatten(2).unflatten(0, (self.groups, -1))  # (g, Q/g, P/g, K)
        return taps.permute(3, 0, 1, 2) if self.transposed else taps.permute(3, 0, 2, 1)

    def kernel(self, width: int) -> Tensor:
        return super().kernel(width) if self.transposed else param(self, "weight")

    def extra_repr(self) -> str:
        return arguments(self, f"size={self.size}", groups=1, transposed=False)


class Separable(Theta):
    r"""Mixtures of H matrices: :math:`\Theta_k = \sum_h c_{hk} W_h`; if depthwise,
    :math:`\Theta_k = \sum_h \mathrm{diag}(c_{hk}) W_h`.

    H (K + P Q) numbers, or H P (K + Q). The members are mixed first, for H products with a matrix instead of K. With
    `bases.Relations` it is the basis decomposition of R-GCN (Schlichtkrull et al., arXiv:1703.06103). With
    H = 1, `depthwise=True` and the shifts of a grid for A this is the depthwise separable convolution of Chollet
    (arXiv:1610.02357).

    Args:
        H: the number of matrices.
        depthwise: whether each input channel has its own coefficients.

    Attributes:
        weight: W, (H, P, Q).
        mix: c, (H, K), or (H, K, P).

    >>> theta = Separable(depthwise=True).build(9, 4, 8)
    >>> theta.mix.shape, theta.weight.shape, theta.dense().shape
    (torch.Size([1, 9, 4]), torch.Size([1, 4, 8]), torch.Size([9, 4, 8]))
    """

    mix: nn.Parameter | UninitializedParameter

    of_types = True

    def __init__(self, H: int = 1, depthwise: bool = False) -> None:
        super().__init__()
        check_count("H", H)
        check_flags(depthwise=depthwise)
        self.H, self.depthwise = H, depthwise

    def build(self, K: int, P: int, Q: int) -> "Theta":
        if "mix" not in self._parameters and Q > 0:
            self.mix = UninitializedParameter() if P < 0 else nn.Parameter(torch.empty(self._mixing(K, P)))
        return super().build(K, P, Q)

    def complete(self, P: int) -> None:
        if isinstance(self.mix, UninitializedParameter):
            self.mix.materialize(self._mixing(self.K, P))
        super().complete(P)

    def _mixing(self, K: int, P: int) -> tuple[int, ...]:
        return (self.H, K, P) if self.depthwise else (self.H, K)

    def shape(self, K: int, P: int, Q: int) -> tuple[int, ...]:
        return self.H, P, Q

    def reset_parameters(self) -> None:
        # A sum over H of products of independent numbers has H times the product of their variances. Uniform numbers
        # up to sqrt(3 / H) have the variance 1 / H, so that each Theta_k has the variance of the W_h, which is that of
        # the member with the least gain.
        least = min(self.variance_gains)
        glorot(self.weight, self.P, self.Q, (least,))
        draw_uniform(self.mix.transpose(0, 1), 3 / self.H, [gain / least for gain in self.variance_gains])

    def project(self, x: Tensor) -> Members:
        # Multiply-adds per row and output channel: H products of width P, mixed into K members; or K products.
        if self.depthwise or self.H * (self.P + self.K) >= self.K * self.P:
            return project(x, self.dense())
        z = project(x, self.weight)  # (H, *, M, Q)
        return torch.tensordot(self.mix.to(z.dtype), z, dims=([0], [0]))

    def contract(self, u: Iterable[Tensor]) -> Tensor:
        mixed: list[Tensor] = []
        for u_k, coefficients in zip(u, self.mix.unbind(1), strict=True):
            if not mixed:
                mixed = [u_k * c for c in coefficients.unbind(0)]
            else:
                mixed = [torch.addcmul(m, u_k, c) for m, c in zip(mixed, coefficients.unbind(0), strict=True)]
        return matmul(torch.cat(mixed, -1) if self.H > 1 else mixed[0], self.weight.flatten(0, 1))

    def dense(self, width: int = -1) -> Tensor:
        return torch.einsum("hkp,hpq->kpq" if self.depthwise else "hk,hpq->kpq", self.mix, self.weight)

    @property
    def mixtures(self) -> int | None:
        return None if self.depthwise else self.H

    def unmixed(self) -> tuple[Tensor, Theta]:
        matrices = Full()
        matrices.weight, matrices.K, matrices.P, matrices.Q = self.weight, self.H, self.P, self.Q
        return self.mix, matrices

    def blocks(self, width: int) -> Blocks | None:
        # Multiply-adds per target and input channel: K taps of H outputs, then all W_h; or K taps of Q outputs.
        if self.H * (self.K + self.Q) >= self.K * self.Q:
            return Blocks(self.dense().unsqueeze(1))
        mix = self.mix if self.depthwise else self.mix.unsqueeze(-1).expand(-1, -1, self.P)  # (H, K, P)
        return Blocks(mix.permute(1, 2, 0).unsqueeze(2), self.weight.transpose(0, 1).flatten(0, 1))

    def extra_repr(self) -> str:
        return arguments(self, H=1, depthwise=False)


@once
def _split_columns(x: Tensor, groups: int) -> Tensor:
    """A sparse (M, P) matrix as (M g, P), with a row for each group of columns; cached."""
    coo = x.to_sparse_coo()
    coo = coo.coalesce() if x.requires_grad else coo  # gradients pass through coalesced values only
    (row, column), values = coo._indices(), coo.values() if x.requires_grad else coo._values().clone()
    M, P = x.shape
    places = torch.stack([row * groups + column // (P // groups), column])
    return torch.sparse_coo_tensor(places, values, (M * groups, P), device=x.device, is_coalesced=coo.is_coalesced())
