"""Affine maps of the same rows in one product, for a GPU.

There an operation takes longer to start than a small one to run, a bias is free in the product that it is added to, and
one product of all maps reads the rows once, forward and backward.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..backend import waits
from ..portable import with_plain
from .op import PLAIN, autocasting, derivative, differentiated_again, needs_gradient, raw_apply


class _Maps(NamedTuple):
    """What several maps are, beside their weights and biases.

    scales: of the maps; widths: how many columns each makes; P: of the rows.
    """

    scales: Sequence[float]
    widths: list[int]
    P: int

    def scale(self, *parts: Sequence[Tensor]) -> None:
        """Multiplies what belongs to each map by its scale, in place."""
        for i, scale in enumerate(self.scales):
            if scale != 1 and parts:
                torch._foreach_mul_([of_all[i] for of_all in parts], scale)


@with_plain(lambda x, *parameters: False)
def joins(x: Tensor, *parameters: Tensor | None) -> bool:
    """Whether `joined` takes these rows, and these parameters of maps."""
    if not waits(x.device) or x.dim() != 2 or type(x) not in PLAIN or x.layout != torch.strided or not x.shape[1]:
        return False
    if torch.compiler.is_compiling() or autocasting(x.device):
        return False
    for t in parameters:
        if t is not None and not (type(t) in PLAIN and t.dtype == x.dtype and t.device == x.device):
            return False
    return True


def _by_output(weight: Tensor) -> Tensor:
    """(K, D, P) from (K, P, D), a view; (K, P) as it is."""
    return weight if weight.dim() == 2 else weight.mT


def _packed(maps: _Maps, given: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """The matrix of all maps, (columns, P), and their biases; of several maps, or with a scale, in new memory."""
    (scales, widths, P), count = maps, len(maps.scales)
    matrices, biases = [_by_output(weight) for weight in given[:count]], given[count:]
    if count == 1 and scales[0] == 1:
        return matrices[0].reshape(-1, P), biases[0].reshape(-1) if biases else None
    rows, alike = sum(widths), len({t.shape[1:] for t in matrices}) == 1
    if alike and not all(t.is_contiguous() for t in matrices):  # a concatenation reads parts of any strides
        matrix = torch.cat(matrices).view(rows, P)
        bias = torch.cat([t.reshape(-1) for t in biases]) if biases else None
    else:
        flat = torch.cat([t.reshape(-1) for t in (*matrices, *biases)])
        matrix, bias = flat[: rows * P].view(rows, P), flat[rows * P :] if biases else None
    maps.scale(*(t.split(widths) for t in (matrix, bias) if t is not None))
    return matrix, bias


def _compute(maps: _Maps, x: Tensor, given: Sequence[Tensor]) -> tuple[Sequence[Tensor], Tensor]:
    """The results, and the matrix of all maps."""
    matrix, bias = _packed(maps, given)
    y = x @ matrix.t() if bias is None else torch.addmm(bias, x, matrix.t())
    return (y,) if len(maps.widths) == 1 else y.split(maps.widths, 1), matrix


def _plain(maps: _Maps, x: Tensor, *given: Tensor) -> list[Tensor]:
    """The results by differentiable torch operations."""
    count = len(maps.scales)
    biases: Sequence[Tensor | None] = given[count:] or [None] * count
    found = []
    for weight, bias, scale in zip(given[:count], biases, maps.scales, strict=True):
        y = F.linear(x, _by_output(weight).reshape(-1, maps.P), None if bias is None else bias.flatten())
        found.append(y * scale)
    return found


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: _Maps, x: Tensor, *given: Tensor) -> Any:
        results, matrix = _compute(maps, x, given)
        view = matrix.data_ptr() == given[0].data_ptr()  # of a parameter, which is saved itself
        ctx.save_for_backward(x, None if view else matrix, *given)
        ctx.maps = maps
        ctx.set_materialize_grads(False)
        # No views, for autograd: those that are made of a view without gradients would have none ever.
        return results[0] if len(results) == 1 else tuple([y.detach() for y in results])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, matrix, *given = ctx.saved_tensors
        maps, (_, needs_x, *needs) = ctx.maps, ctx.needs_input_grad
        widths, count = maps.widths, len(maps.widths)
        parts = [x.new_zeros(x.shape[0], width) if g is None else g for g, width in zip(grads, widths, strict=True)]
        if differentiated_again():
            return None, *derivative(_plain, (maps, x, *given), parts)[1:]
        grad = _rows(parts[0]) if count == 1 else torch.cat(parts, 1)
        matrix = _by_output(given[0]).reshape(-1, maps.P) if matrix is None else matrix
        of_weights: Sequence[Tensor] = ()
        of_biases: Sequence[Tensor] = ()
        if any(needs[:count]):
            by_input = count == 1 and not matrix.is_contiguous()  # in the memory layout of the weight
            of_weights = ((x.t() @ grad).t() if by_input else grad.t() @ x).split(widths)
        if any(needs[count:]):
            of_biases = grad.sum(0).split(widths)
        maps.scale(*filter(None, (of_weights, of_biases)))
        found: list[Tensor | None] = [None] * len(given)
        for i, part in enumerate(of_weights):
            if needs[i]:
                part = part.reshape(_by_output(given[i]).shape)
                found[i] = part if given[i].dim() == 2 else part.mT
        for i, part in enumerate(of_biases, count):
            if needs[i]:
                found[i] = part.reshape(given[i].shape)
        return None, grad @ matrix if needs_x else None, *found


def _rows(grad: Tensor) -> Tensor:
    """Rows as products read them; a gradient may be one row for all, which each product would copy."""
    return grad if grad.stride(1) == 1 and grad.stride(0) >= grad.shape[1] else grad.contiguous()


_record: Callable[..., Any] = raw_apply(_Joined)


def joined(x: Tensor, scales: Sequence[float], *given: Tensor) -> Sequence[Tensor]:
    """The maps s (x W + b) of rows, (M, P) -> (M, K D) each, side by side in memory; see `joins`.

    Args:
        x: the rows.
        scales: s of each map.
        *given: the weight W of each map, (K, P, D), or (K, P) for D = 1; then the bias b of each, of K D numbers, or
            none at all.

    >>> weights, biases = [torch.ones(1, 3, 2), torch.ones(4, 3)], [torch.ones(2), torch.ones(4)]
    >>> [y[0] for y in joined(torch.ones(2, 3), (1.0, 0.5), *weights, *biases)]
    [tensor([4., 4.]), tensor([2., 2., 2., 2.])]
    """
    P = x.shape[1]
    maps = _Maps(scales, [weight.numel() // P for weight in given[: len(scales)]], P)
    if torch.is_grad_enabled() and needs_gradient(x, *given):
        found: Any = _record(maps, x, *given)
        return (found,) if len(scales) == 1 else found  # type: ignore[no-any-return]
    return _compute(maps, x, given)[0]
