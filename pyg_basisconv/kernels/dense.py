"""Dense products of many rows with narrow matrices."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from ..portable import portable
from .op import autocasting, derivative

_SMALL = 1 << 20  # numbers that several maps give, up to which they are one product


class _Products(torch.autograd.Function):
    """The sum of several products, each added to those before as it is made."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, *x: Tensor) -> Tensor:
        ctx.save_for_backward(weight, *x)
        y = x[0] @ weight[0]
        for x_k, weight_k in zip(x[1:], weight[1:], strict=True):
            y.addmm_(x_k, weight_k)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, *x = ctx.saved_tensors
        needed, *each = ctx.needs_input_grad
        grad_x = [grad @ weight_k.t() if need else None for weight_k, need in zip(weight, each, strict=True)]
        # x^T g as (g^T x)^T: x is read along its rows.
        grad_weight = torch.stack([grad.t() @ x_k for x_k in x]).transpose(1, 2) if needed else None
        return grad_weight, *grad_x


def _plain(x: Tensor) -> bool:
    return torch.compiler.is_compiling() or autocasting(x.device) or portable()


def matmul(x: Tensor, weight: Tensor) -> Tensor:
    """X W: (*, M, P), (P, Q) -> (*, M, Q). As `torch.matmul`, with the faster association in its gradient.

    >>> matmul(torch.ones(2, 3), torch.ones(3, 1)).flatten()
    tensor([3., 3.])
    """
    if _plain(x):
        return x @ weight
    return _products((x,), weight.unsqueeze(0))


def matmuls(x: Iterable[Tensor], weight: Tensor) -> Tensor:
    r""":math:`\sum_k X_k W_k`: K tensors (*, M, P) as they come, (K, P, Q) -> (*, M, Q).

    What comes more than once, as the identity does in several families, is multiplied once where all are kept.

    >>> matmuls([torch.ones(2, 3)] * 2, torch.ones(2, 3, 1)).flatten()
    tensor([6., 6.])
    """
    pairs = zip(x, weight.unbind(0), strict=True)
    if torch.is_grad_enabled():
        merged: dict[int, tuple[Tensor, Tensor]] = {}
        for x_k, weight_k in pairs:
            known = merged.get(id(x_k))
            merged[id(x_k)] = x_k, weight_k if known is None else known[1] + weight_k
        several, matrices = zip(*merged.values(), strict=True)
        if not _plain(several[0]):
            return _products(several, weight if len(several) == len(weight) else torch.stack(matrices))
        pairs = zip(several, matrices, strict=True)
    total: Tensor | None = None
    for x_k, weight_k in pairs:
        y_k = matmul(x_k, weight_k)
        total = y_k if total is None else total + y_k
    assert total is not None
    return total


def _products(x: Sequence[Tensor], weight: Tensor) -> Tensor:
    """Of K different ones. Where batches lie beside the width, as a sparse product has them, they stay there."""
    like = x[-1]
    beside = like.dim() > 2 and not like.is_contiguous() and like.movedim(-2, 0).is_contiguous()
    laid_out = [x_k.movedim(-2, 0) for x_k in x] if beside else x
    flat = [x_k.reshape(-1, x_k.shape[-1]) for x_k in laid_out]
    if len(flat) > 1 and weight[:, :, 0].numel() <= weight.shape[2]:  # narrower than what each would be added to
        flat, weight = [torch.cat(flat, 1)], weight.flatten(0, 1).unsqueeze(0)
    y: Tensor = _Products.apply(weight, *flat)
    if like.dim() == 2:
        return y
    y = y.view(*laid_out[0].shape[:-1], y.shape[-1])
    return y.movedim(0, -2) if beside else y


class Affine(NamedTuple):
    r"""The maps :math:`x W_k + b_k` of K members, side by side, times a number.

    weight: W, (K, P, D), or (K, P) where D = 1; bias: b, as many numbers as a row of the result, or None; scale: the
    number.
    """

    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0

    @property
    def matrix(self) -> Tensor:
        """(K D, P)."""
        return _matrix(self.weight)


def _matrix(weight: Tensor) -> Tensor:
    return weight if weight.dim() == 2 else weight.mT.reshape(-1, weight.shape[1])


class _Affine(torch.autograd.Function):
    """See `affine`."""

    @staticmethod
    def forward(ctx: Any, scales: Sequence[float], x: Tensor, *tensors: Tensor | None) -> Sequence[Tensor]:
        matrix, widths, found = _joined(scales, x, tensors)
        ctx.save_for_backward(x, matrix, *tensors)
        ctx.scales, ctx.widths = scales, widths
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, matrix, *tensors = ctx.saved_tensors
        scales, (_, needs_x, *needs) = ctx.scales, ctx.needs_input_grad
        if torch.is_grad_enabled() or portable():
            return derivative(_plain_affine, (scales, x, *tensors), torch.cat(grads, -1))
        down = torch.cat([g if s == 1 else g * s for g, s in zip(grads, scales, strict=True)], -1)
        down, flat = (t if t.dim() == 2 else t.reshape(-1, t.shape[-1]) for t in (down, x))
        d_x = down.mm(matrix).view(x.shape) if needs_x else None
        n, found = len(scales), cast(list[Tensor | None], [None] * len(tensors))
        if any(needs[:n]):
            found[:n] = down.t().mm(flat).split_with_sizes(ctx.widths)
        if any(needs[n:]):
            found[n:] = down.sum(0).split_with_sizes(ctx.widths)
        shaped = zip(found, tensors, needs, strict=True)
        return None, d_x, *(_as(d, t) if need and d is not None else None for d, t, need in shaped)


def _joined(
    scales: Sequence[float], x: Tensor, tensors: Sequence[Tensor | None]
) -> tuple[Tensor, list[int], Sequence[Tensor]]:
    """The matrix of all maps, how many rows of it each has, and their results, without a record for gradients."""
    n = len(scales)
    weights: Sequence[Tensor] = tensors[:n]  # type: ignore[assignment]
    biases = [b for b in tensors[n:] if b is not None]
    widths = [w.shape[0] if w.dim() == 2 else w.shape[0] * w.shape[2] for w in weights]
    matrix = _above_each_other([w if w.dim() == 2 else w.mT for w in weights], x.shape[-1])
    flat = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    if biases:
        if len(biases) < n:
            biases = [x.new_zeros(w) if b is None else b.view(-1) for b, w in zip(tensors[n:], widths, strict=True)]
        rows = torch.addmm(_above_each_other(biases, -1), flat, matrix.t())
    else:
        rows = flat.mm(matrix.t())
    found = (rows if x.dim() == 2 else rows.view(*x.shape[:-1], rows.shape[1])).split_with_sizes(widths, -1)
    for part, scale in zip(found, scales, strict=True):
        if scale != 1:
            part.mul_(scale)
    return matrix, widths, found


def _above_each_other(tensors: list[Tensor], width: int) -> Tensor:
    """All as rows of some width, or as one row for -1."""
    if len({t.shape[1:] for t in tensors}) > 1:
        tensors = [t.reshape(-1) if width < 0 else t.reshape(-1, width) for t in tensors]
    found = torch.cat(tensors)
    return found if found.dim() == 1 + (width > 0) else found.view(-1) if width < 0 else found.view(-1, width)


def _as(d: Tensor, t: Tensor) -> Tensor:
    """A gradient in the shape of what it is of."""
    return d.view(t.shape[0], t.shape[2], t.shape[1]).mT if t.dim() == 3 else d.view(t.shape)


def _plain_affine(scales: Sequence[float], x: Tensor, *tensors: Tensor | None) -> Tensor:
    """All of them in one row, by operations that have any derivatives."""
    found = []
    for weight, bias, scale in zip(tensors[: len(scales)], tensors[len(scales) :], scales, strict=True):
        assert weight is not None
        rows = F.linear(x, _matrix(weight), None if bias is None else bias.flatten())
        found.append(rows if scale == 1 else rows * scale)
    return torch.cat(found, -1)


# What `Function.apply` does besides is for transforms of `torch.func`, under which this is not called.
_record: Callable[..., Sequence[Tensor]] = super(torch.autograd.Function, _Affine).apply  # type: ignore[misc]


def joins(x: Tensor, maps: Sequence[Affine]) -> bool:
    """Whether `affine` is to be asked for several maps of the same rows."""
    numbers = sum([m.weight.numel() for m in maps])
    return x.layout == torch.strided and 0 < x.numel() * numbers <= _SMALL * x.shape[-1] ** 2 and not _plain(x)


def affine(x: Tensor, maps: Sequence[Affine]) -> Sequence[Tensor]:
    """What several maps give, in one product: (*, M, P) -> (*, M, K D) each; where they are to be joined, see `joins`.

    >>> one, two = affine(torch.ones(2, 3), [Affine(torch.ones(1, 3)), Affine(torch.ones(2, 3, 4), None, 0.5)])
    >>> one.flatten(), two.shape, two[0, 0]
    (tensor([3., 3.]), torch.Size([2, 8]), tensor(1.5000))
    """
    weights, biases, scales = zip(*maps, strict=True)
    if torch.is_grad_enabled():
        return _record(scales, x, *weights, *biases)
    return _joined(scales, x, (*weights, *biases))[2]


def whole(blocks: Tensor) -> Tensor:
    """Matrices of their diagonal blocks: (K, g, P / g, Q / g) -> (K, P, Q)."""
    if blocks.shape[1] == 1:
        return blocks.squeeze(1)
    apart = torch.diag_embed(blocks.permute(0, 2, 3, 1))  # (K, P / g, Q / g, g, g)
    return apart.permute(0, 3, 1, 4, 2).flatten(3).flatten(1, 2)
