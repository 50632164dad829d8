"""Layers of torch for those that are nothing else."""

from typing import Any

import torch
from torch import Tensor, nn

from ..bases import Identity, Window
from ..conv import BasisConv
from ..convert import grids
from ..theta import Depthwise, Full, Grouped

_CONVOLUTIONS = {
    False: (nn.Conv1d, nn.Conv2d, nn.Conv3d),
    True: (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
}


def plain(layer: BasisConv) -> nn.Module:
    """The layer of torch that does the same, where there is one, which checks and plans less; else the layer itself.

    >>> from pyg_basisconv import convert
    >>> plain(convert(nn.Conv2d(4, 6, 3, padding=1, groups=2)))
    Conv2d(4, 6, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), groups=2)
    >>> plain(BasisConv(3, 2, Identity()))
    Linear(in_features=3, out_features=2, bias=True)
    """
    basis, theta = layer.basis, layer.theta
    made: tuple[nn.Module, Tensor] | None = None
    if type(layer) is BasisConv and type(basis) is Identity and type(theta) is Full:
        with torch.device("meta"):
            made = nn.Linear(theta.P, theta.Q, bias=False), theta.weight[0].t()
    elif isinstance(layer, grids.ConvertedGrid) and type(basis) is Window:
        made = _convolution(basis, theta)
    if made is None:
        return layer
    new, weight = made
    form = layer.memory_format if isinstance(layer, grids.ConvertedGrid) else None
    weight = weight.detach().contiguous(memory_format=form or torch.contiguous_format)
    new.weight, new.bias = nn.Parameter(weight, theta.weight.requires_grad), layer.bias
    return new.train(layer.training)


def _convolution(basis: Window, theta: Any) -> tuple[nn.Module, Tensor] | None:
    """A convolution of torch, and its kernel; None for a window or a parameter that it does not have."""
    axes = len(basis.kernel_size)
    if axes > 3 or basis.ceil_mode or basis.norm is not None or basis.sites is not None or basis.shape is not None:
        return None
    if type(theta) is Full:
        blocks = theta.weight.unsqueeze(1)  # (K, g, P / g, Q / g)
    elif type(theta) is Grouped:
        blocks = theta.weight
    elif type(theta) is Depthwise and theta.shared is None and theta.normalize is None:
        blocks = theta.weight[:, :, None, None]
    else:
        return None
    options: dict[str, Any] = {"stride": basis.stride, "padding": basis.padding, "dilation": basis.dilation}
    if basis.transposed:
        options["output_padding"] = basis.output_padding
    else:
        options["padding_mode"] = basis.padding_mode
    with torch.device("meta"):
        kind = _CONVOLUTIONS[basis.transposed][axes - 1]
        made = kind(theta.P, theta.Q, basis.kernel_size, groups=blocks.shape[1], bias=False, **options)
    order = (1, 2, 3, 0) if basis.transposed else (1, 3, 2, 0)
    return made, blocks.permute(order).flatten(0, 1).unflatten(-1, basis.kernel_size)
