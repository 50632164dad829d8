"""Dense products of many rows with narrow matrices."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..backend import KERNELS, on_gpu
from ..portable import portable, with_plain
from .joined import joined, joined_columns, joins
from .memory import room
from .op import Backward, Grads, acc_dtype, autocasting, needs_gradient, recorded

_SMALL = 1 << 20  # outputs of several maps, up to which one product computes all
_FEW = 1 << 16  # numbers of rows up to which the association does not matter


def _sum_of_products(weight: Tensor, *x: Tensor) -> tuple[Tensor, tuple[()]]:
    """The sum of several products, accumulated in place."""
    y = torch.mm(x[0], weight[0], out=room(x[0], len(x[0]), weight.shape[2]))
    for x_k, weight_k in zip(x[1:], weight[1:], strict=True):
        y.addmm_(x_k, weight_k)
    return y, ()


def _sum_of_products_backward(given: Backward) -> Grads:
    grad, (needed, *each), _, (weight, *x), _ = given
    grad_x = [grad @ weight_k.t() if need else None for weight_k, need in zip(weight, each, strict=True)]
    if not needed:
        return None, *grad_x
    each_weight = [grad.t() @ x_k for x_k in x]  # x^T g as (g^T x)^T, which reads x along its rows
    stacked = each_weight[0].unsqueeze(0) if len(x) == 1 else torch.stack(each_weight)
    return stacked.transpose(1, 2), *grad_x


_record = recorded(
    0, _sum_of_products, _sum_of_products_backward, lambda weight, *x: reduce(torch.add, map(torch.mm, x, weight))
)


class Products(Iterable[Tensor]):
    """K tensors that are made from x where they are read, and can be multiplied without holding all of them."""

    x: Tensor

    def matmul(self, weight: Tensor) -> Tensor:
        """See `matmuls`."""
        raise NotImplementedError

    def times_diagonals(self, diagonals: Tensor) -> Tensor:
        """See `times_diagonals`."""
        raise NotImplementedError


def needs_plain_matmul(x: Tensor) -> bool:
    """Whether torch has to see its own operations, to compile, cast or transform them."""
    return torch.compiler.is_compiling() or autocasting(x.device) or portable()


def matmul(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """X W + b: (*, M, P), (P, Q), (Q) -> (*, M, Q). As `torch.matmul`, with the faster association in its gradient.

    >>> matmul(torch.ones(2, 3), torch.ones(3, 1), torch.ones(1)).flatten()
    tensor([4., 4.])
    """
    plain = needs_plain_matmul(x)
    if bias is not None and on_gpu(x) and joins(x, weight, bias):
        return torch.addmm(bias, x, weight)
    small = plain or (x.dim() == 2 and x.numel() <= _FEW)
    y = x @ weight if small else _products((x,), weight.unsqueeze(0))
    if bias is None:
        return y
    return y + bias if plain or y.dim() > 2 or bias.dtype != y.dtype else y.add_(bias)


def matmuls(x: Iterable[Tensor], weight: Tensor) -> Tensor:
    r""":math:`\sum_k X_k W_k`: an iterable of K tensors (*, M, P), or one, and (K, P, Q) -> (*, M, Q).

    A tensor that repeats, as the identity's does in several families, is multiplied once, by the sum of its matrices.

    >>> matmuls([torch.ones(2, 3)] * 2, torch.ones(2, 3, 1)).flatten()
    tensor([6., 6.])
    """
    if isinstance(x, Products) and not needs_plain_matmul(x.x):
        return x.matmul(weight)
    if isinstance(x, Tensor) and x.dim() == 3 and not needs_plain_matmul(x):
        rows = x.movedim(0, 1)  # (N, K, P), which is contiguous if the products of a node lie side by side
        if rows.is_contiguous():
            return _products((rows.flatten(1),), weight.flatten(0, 1).unsqueeze(0))
    pairs = zip(x, weight.unbind(0), strict=True)
    if torch.is_grad_enabled():
        merged: dict[int, tuple[Tensor, Tensor]] = {}
        for x_k, weight_k in pairs:
            known = merged.get(id(x_k))
            merged[id(x_k)] = x_k, weight_k if known is None else known[1] + weight_k
        several, matrices = zip(*merged.values(), strict=True)
        if not needs_plain_matmul(several[0]):
            return _products(several, weight if len(several) == len(weight) else torch.stack(matrices))
        pairs = zip(several, matrices, strict=True)
    return reduce(torch.add, (matmul(x_k, weight_k) for x_k, weight_k in pairs))


def times_diagonals(x: Iterable[Tensor], diagonals: Tensor) -> Tensor:
    r""":math:`\sum_k X_k \, diag(d_k)`: an iterable of K tensors (*, M, P), and (K, P) -> (*, M, P).

    >>> times_diagonals([torch.ones(1, 2)] * 2, torch.tensor([[1., 2.], [3., 4.]]))
    tensor([[4., 6.]])
    """
    if isinstance(x, Products) and not needs_plain_matmul(x.x):
        return x.times_diagonals(diagonals)
    total: Tensor | None = None
    for x_k, diagonal in zip(x, diagonals.unbind(0), strict=True):
        total = x_k * diagonal if total is None else torch.addcmul(total, x_k, diagonal)
    assert total is not None
    return total


def _products(x: Sequence[Tensor], weight: Tensor) -> Tensor:
    """The sum of K products; keeps the memory layout of sparse products, whose batch is beside the width."""
    like = x[-1]
    node_major = like.dim() > 2 and not like.is_contiguous() and like.movedim(-2, 0).is_contiguous()
    laid_out = [x_k.movedim(-2, 0) for x_k in x] if node_major else x
    flat = [x_k.flatten(0, -2) for x_k in laid_out]
    if len(flat) > 1 and weight[:, :, 0].numel() <= weight.shape[2]:  # a concatenation smaller than the result
        flat, weight = [torch.cat(flat, 1)], weight.flatten(0, 1).unsqueeze(0)
    learns = torch.is_grad_enabled() and needs_gradient(weight, *flat)
    y = _record(weight, *flat) if learns else _sum_of_products(weight, *flat)[0]
    if like.dim() == 2:
        return y
    y = y.view(*laid_out[0].shape[:-1], y.shape[-1])
    return y.movedim(0, -2) if node_major else y


class Affine(NamedTuple):
    r"""The maps :math:`s (x W_k + b_k)` of K members, side by side.

    weight: W, (K, P, D), or (K, P) for D = 1; bias: b, with K D numbers, or None; scale: s.
    made: the function that made the map, and the tensors that it made it of; None if the map consists of parameters.
    """

    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    made: "tuple[Callable[..., Affine], tuple[Tensor | None, ...]] | None" = None

    @property
    def matrix(self) -> Tensor:
        """(P, K D)."""
        weight = self.weight
        return weight.t() if weight.dim() == 2 else weight.transpose(0, 1).flatten(1)


def contracted(matrices: Tensor, vectors: Tensor, bias: Tensor | None = None) -> Affine:
    """The map to inner products with vectors, one for each head, of what matrices (K, P, D) make of features.

    >>> contracted(torch.ones(2, 4, 3), torch.ones(2, 3)).weight.shape
    torch.Size([2, 4])
    """
    weight = (matrices * vectors.unsqueeze(1)).sum(-1)
    bias_of_products = None if bias is None else (bias * vectors).sum(1)
    return Affine(weight, bias_of_products, made=(contracted, (matrices, vectors, bias)))


def repeated(matrix: Tensor, bias: Tensor | None, heads: int) -> Affine:
    """A map that is the same for all heads, (1, P, D) and (1, D), as the map of all.

    >>> repeated(torch.ones(1, 4, 3), None, 2).weight.shape
    torch.Size([2, 4, 3])
    """
    of_all = None if bias is None else bias.expand(heads, -1)
    return Affine(matrix.expand(heads, -1, -1), of_all, made=(partial(repeated, heads=heads), (matrix, bias)))


@with_plain(lambda x, maps: False)  # sizes may be symbols there
def can_join(x: Tensor, maps: Sequence[Affine]) -> bool:
    """Whether several maps of the same rows may be computed as one product, and gain by it.

    On a GPU they may if `joined` takes them. On the CPU a small product takes three matrices or more, all of one shape,
    as to put two together, or some of several shapes, takes longer than their products; a large one takes matrices of
    one width, and the compiled kernels, which read columns of wider rows. The result of a frozen map must not require a
    gradient because of the others.
    """
    if on_gpu(x) and joins(x, *[t for one in maps for t in one[:2]]):
        return len({(w.requires_grad, b is None or (b.requires_grad,)) for w, b, *_ in maps}) == 1 < len(maps)
    if x.layout != torch.strided or len(maps) < 2 or not x.numel():
        return False
    small = _is_small(x, maps)
    forms = {
        (w.shape if small else w.numel(), w.requires_grad, b is None or (b.shape if small else 0, b.requires_grad))
        for w, b, *_ in maps
    }
    if small or len(forms) > 1:
        return small and len(forms) == 1 and len(maps) > 2
    compiled = KERNELS is not None and x.is_cpu and acc_dtype(x.dtype) == x.dtype
    return compiled and joins(x, *[t for one in maps for t in one[:2]])


def _is_small(x: Tensor, maps: Sequence[Affine]) -> bool:
    """Whether maps as wide as the first have few outputs."""
    return x.numel() * len(maps) * maps[0].weight.numel() <= _SMALL * x.shape[-1] ** 2


def affine(x: Tensor, maps: Sequence[Affine]) -> Sequence[Tensor]:
    """Several maps as one product: (*, M, P) -> (*, M, K D) each; see `can_join`.

    >>> one, two = affine(torch.ones(2, 3), [Affine(torch.ones(2, 3, 4)), Affine(torch.ones(2, 3, 4), None, 0.5)])
    >>> one.shape, one[0, 0], two[0, 0]
    (torch.Size([2, 8]), tensor(3.), tensor(1.5000))
    """
    biases = [bias for _, bias, *_ in maps if bias is not None]
    if on_gpu(x) or not _is_small(x, maps):
        join = joined if on_gpu(x) else joined_columns
        return join(x, [one.scale for one in maps], *[one.weight for one in maps], *biases)
    matrix = torch.cat([weight if weight.dim() == 2 else weight.mT for weight, *_ in maps]).view(-1, x.shape[-1])
    found = F.linear(x, matrix, torch.cat(biases).view(-1) if biases else None).chunk(len(maps), -1)
    return [y if scale == 1 else y * scale for y, (_, _, scale, _) in zip(found, maps, strict=True)]


def from_diagonal_blocks(blocks: Tensor) -> Tensor:
    """Block-diagonal matrices from their blocks: (K, g, P / g, Q / g) -> (K, P, Q)."""
    if blocks.shape[1] == 1:
        return blocks.squeeze(1)
    blocks_on_diagonal = torch.diag_embed(blocks.permute(0, 2, 3, 1))  # (K, P / g, Q / g, g, g)
    return blocks_on_diagonal.permute(0, 3, 1, 4, 2).flatten(3).flatten(1, 2)
