"""Affine maps of the same rows in one product, which reads the rows once, forward and backward.

On a GPU an operation takes longer to start than a small one to run, too, and a bias is free in the product that it is
added to. On the CPU wide products are quicker than several narrow ones, if nobody has to copy their columns: kernels on
edges read them where they are, and write the gradients side by side.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional as F

from ..portable import with_plain
from .memory import room, side_by_side
from .op import PLAIN, Backward, Grads, autocasting, recorded


@with_plain(lambda x, *parameters: False)
def joins(x: Tensor, *parameters: Tensor | None) -> bool:
    """Whether one product may take these rows, and these parameters of maps."""
    if x.dim() != 2 or type(x) not in PLAIN or x.layout != torch.strided or not x.shape[1]:
        return False
    if torch.compiler.is_compiling() or autocasting(x.device):
        return False
    for t in parameters:
        if t is not None and not (type(t) in PLAIN and t.dtype == x.dtype and t.device == x.device):
            return False
    return True


def _by_output(weight: Tensor, scale: float) -> Tensor:
    """(K, D, P) from (K, P, D), a view unless it is scaled; (K, P) as it is."""
    matrix = weight if weight.dim() == 2 else weight.mT
    return matrix if scale == 1 else matrix * scale


def joined(x: Tensor, scales: Sequence[float], *given: Tensor) -> Sequence[Tensor]:
    r"""The maps s (x W + b) of rows, (\*, M, P) -> (\*, M, K D) each, side by side in memory.

    given: the weight W of each map, (K, P, D), or (K, P) for D = 1; then the bias b of each, of K D numbers, or none at
    all.

    >>> weights, biases = [torch.ones(1, 3, 2), torch.ones(4, 3)], [torch.ones(2), torch.ones(4)]
    >>> [y[0] for y in joined(torch.ones(2, 3), (1.0, 0.5), *weights, *biases)]
    [tensor([4., 4.]), tensor([2., 2., 2., 2.])]
    """
    matrix, bias, sizes = _stacked(x.shape[-1], scales, given)
    y = F.linear(x, matrix, bias)
    return (y,) if len(sizes) == 1 else y.split(sizes, -1)


def _stacked(P: int, scales: Sequence[float], given: Sequence[Tensor]) -> tuple[Tensor, Tensor | None, list[int]]:
    """The scaled matrices of all maps, one below the other, with P columns; their biases; and the rows of each."""
    count = len(scales)
    matrices = [_by_output(weight, scale) for weight, scale in zip(given[:count], scales, strict=True)]
    biases = [
        bias.reshape(-1) if scale == 1 else bias.reshape(-1) * scale
        for bias, scale in zip(given[count:], scales[: len(given) - count], strict=True)
    ]
    sizes = [t.numel() // P for t in matrices]
    if count == 1:
        return matrices[0].reshape(-1, P), biases[0] if biases else None, sizes
    if len({t.shape[1:] for t in matrices}) > 1:
        matrices = [t.reshape(-1, P) for t in matrices]
    return torch.cat(matrices).reshape(-1, P), torch.cat(biases) if biases else None, sizes


def _columns(scales: Sequence[float], x: Tensor, *given: Tensor) -> tuple[tuple[Tensor, ...], tuple[()]]:
    """`joined_columns`; views of views have the gradient of what these are views of, which here has none."""
    matrix, bias, sizes = _stacked(x.shape[1], scales, given)
    y = room(x, len(x), len(matrix))
    if bias is None:
        torch.mm(x, matrix.t(), out=y)
    else:
        torch.addmm(bias, x, matrix.t(), out=y)
    return tuple(part.detach() for part in y.split(sizes, 1)), ()


def _backward(given: Backward) -> Grads:
    """Gradients that lie side by side, as the results do, are multiplied at once, too."""
    grads, (needs_x, *needs), (scales,), (x, *parameters), _ = given
    matrix, _, sizes = _stacked(x.shape[1], scales, parameters)
    grads = [grads] if isinstance(grads, Tensor) else grads
    parts = [(g, i, i + 1) for i, g in enumerate(grads) if g is not None]
    whole = side_by_side([g for g, *_ in parts]) if len(parts) == len(sizes) else None
    if whole is not None:
        parts = [(whole, 0, len(sizes))]
    starts, count, d_x = [0, *accumulate(sizes)], len(sizes), None
    found: list[Tensor | None] = [None] * len(parameters)
    for grad, i, j in parts:
        rows = matrix[starts[i] : starts[j]]
        if needs_x:
            d_x = torch.mm(grad, rows, out=room(x, *x.shape)) if d_x is None else d_x.addmm_(grad, rows)
        if any(needs[i:j]):
            for k, d in enumerate((grad.t() @ x).split(sizes[i:j]), i):
                found[k] = _as_given(d, parameters[k], scales[k])
        if any(needs[count + i : count + j]):
            for k, d in enumerate(grad.sum(0).split(sizes[i:j]), i):
                found[count + k] = d.view(parameters[count + k].shape) * scales[k]
    return d_x, *found


def _as_given(grad: Tensor, weight: Tensor, scale: float) -> Tensor:
    """The gradient of a weight, given that of its rows in `_stacked`."""
    grad = grad if scale == 1 else grad * scale
    return grad if weight.dim() == 2 else grad.view(len(weight), -1, grad.shape[1]).mT


_record = recorded(1, _columns, _backward, lambda scales, x, *given: joined(x, scales, *given))


def joined_columns(x: Tensor, scales: Sequence[float], *given: Tensor) -> Sequence[Tensor]:
    r"""`joined` of many rows on the CPU, (M, P) -> (M, K D) each; see `joins`.

    >>> x, weights = torch.ones(2, 3), [torch.ones(1, 3, 2), torch.ones(4, 3)]
    >>> [y[0] for y in joined_columns(x, (1.0, 0.5), *weights)]
    [tensor([3., 3.]), tensor([1.5000, 1.5000, 1.5000, 1.5000])]
    """
    return _record(scales, x, *given)  # type: ignore[no-any-return]
