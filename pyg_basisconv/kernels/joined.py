"""Affine maps of the same rows in one product, for a GPU.

There an operation takes longer to start than a small one to run, a bias is free in the product that it is added to, and
one product of all maps reads the rows once, forward and backward.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ..backend import on_gpu
from ..portable import with_plain
from .op import PLAIN, autocasting


@with_plain(lambda x, *parameters: False)
def joins(x: Tensor, *parameters: Tensor | None) -> bool:
    """Whether one product may take these rows, and these parameters of maps."""
    if not on_gpu(x) or x.dim() != 2 or type(x) not in PLAIN or x.layout != torch.strided or not x.shape[1]:
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

    Args:
        x: the rows.
        scales: s of each map.
        *given: the weight W of each map, (K, P, D), or (K, P) for D = 1; then the bias b of each, of K D numbers, or
            none at all.

    >>> weights, biases = [torch.ones(1, 3, 2), torch.ones(4, 3)], [torch.ones(2), torch.ones(4)]
    >>> [y[0] for y in joined(torch.ones(2, 3), (1.0, 0.5), *weights, *biases)]
    [tensor([4., 4.]), tensor([2., 2., 2., 2.])]
    """
    P, count = x.shape[-1], len(scales)
    matrices = [_by_output(weight, scale) for weight, scale in zip(given[:count], scales, strict=True)]
    biases = [
        bias.reshape(-1) if scale == 1 else bias.reshape(-1) * scale
        for bias, scale in zip(given[count:], scales[: len(given) - count], strict=True)
    ]
    if count == 1:
        return (F.linear(x, matrices[0].reshape(-1, P), biases[0] if biases else None),)
    if len({t.shape[1:] for t in matrices}) > 1:
        matrices = [t.reshape(-1, P) for t in matrices]
    y = F.linear(x, torch.cat(matrices).reshape(-1, P), torch.cat(biases) if biases else None)
    return y.split([t.numel() // P for t in matrices], -1)
