"""Rewrites of layers: two as one with parameters of its own, in double precision; and as a layer of torch."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..bases import Identity, Window
from ..basis import Basis
from ..conv import BasisConv
from ..convert.grids import ConvertedGrid
from ..convert.layers import Converted
from ..convert.registry import Unchanged
from ..convert.rgcn import ConvertedRGCN
from ..grid import GridConv
from ..theta import Depthwise, Full, Grouped, Heads, Kernel, LowRank, Pass, Separable, Theta
from .affine import AffineMap, by_matrix, depthwise, full
from .compose import compose
from .tracing import names_of


def pointwise(basis: Basis) -> bool:
    """Whether each matrix of a family is the identity.

    >>> pointwise(Window(None, (1, 1))), pointwise(Window(None, (1, 1), stride=2))
    (True, False)
    """
    if type(basis) is not Window:
        return type(basis) is Identity
    once = {*basis.kernel_size, *basis.stride} == {1} and not any((*basis.before, *basis.after))
    return once and not any(basis.output_padding) and basis.norm is None and basis.sites is None


def keeps_constants(basis: Basis) -> bool:
    """Whether each matrix maps the constant 1 to the constant 1.

    >>> keeps_constants(Window(None, 3)), keeps_constants(Window(None, 3, padding=1))
    (True, False)
    """
    if type(basis) is not Window:
        return type(basis) is Identity
    inside = basis.padding_mode != "zeros" or not any((*basis.before, *basis.after))
    return inside and not (basis.transposed or basis.ceil_mode) and basis.norm is None and basis.sites is None


def followed(theta: Theta, matrix: Tensor) -> Theta:
    r""":math:`\Theta_k T`, (P, Q) times (Q, R), or (Q,) a diagonal; in the same kind of parameter where that needs no
    more numbers.

    >>> followed(Depthwise().build(9, 4, 4), torch.ones(4)), followed(Depthwise().build(9, 4, 4), torch.ones(4, 2))
    (Depthwise(), Full())
    """
    theta, diagonal = by_matrix(theta), matrix.dim() == 1

    def times(weight: Tensor) -> Tensor:
        return weight * matrix if diagonal else weight @ matrix

    last: dict[str, Tensor] = {}  # parameters whose last axis is Q
    if isinstance(theta, LowRank):
        last = {"output": theta.output}
    elif type(theta) in (Full, Separable) or (isinstance(theta, Heads) and theta.sums):
        last = dict(theta.named_parameters()) if isinstance(theta, Heads) else {"weight": theta.weight}
    if last:
        return _changed(theta, Q=matrix.shape[-1], **{name: times(parameter) for name, parameter in last.items()})
    if diagonal and isinstance(theta, Heads) and not theta.shared:
        blocks = matrix.view(theta.K, -1)
        bias = {} if theta.value_bias is None else {"value_bias": theta.value_bias * blocks}
        return _changed(theta, weight=theta.weight * blocks.unsqueeze(1), **bias)
    if diagonal and isinstance(theta, Grouped):
        return _changed(theta, weight=theta.weight * matrix.view(theta.groups, 1, -1))
    if diagonal and (diagonals := _diagonals(theta, matrix)) is not None:
        return depthwise(diagonals * matrix)
    free = _free(theta, theta.inputs(matrix.shape[0])).to(matrix)
    return full(times(free.weight), None if free.constant_values is None else times(free.constant_values))


def preceded(theta: Theta, matrix: Tensor) -> Theta:
    r""":math:`T \Theta_k`, (R, P), or (P,) a diagonal, times (P, Q); in the same kind of parameter where that needs no
    more numbers.

    >>> preceded(Separable().build(9, 4, 8), torch.ones(5, 4)).dense().shape
    torch.Size([9, 5, 8])
    """
    theta, diagonal = by_matrix(theta), matrix.dim() == 1

    def times(weight: Tensor) -> Tensor:
        return weight * matrix.unsqueeze(-1) if diagonal else matrix @ weight

    mixed = isinstance(theta, Separable) and (diagonal or not theta.depthwise)
    if type(theta) is Full or isinstance(theta, LowRank | Heads) or mixed:
        return _changed(theta, P=matrix.shape[0], weight=times(theta.weight))
    if diagonal and isinstance(theta, Grouped):
        return _changed(theta, weight=theta.weight * matrix.view(theta.groups, -1, 1))
    if diagonal and (diagonals := _diagonals(theta, matrix)) is not None:
        return depthwise(diagonals * matrix)
    free = _free(theta, matrix.shape[-1]).to(matrix)
    return full(times(free.weight), free.constant_values)


def _free(theta: Theta, width: int = -1) -> Full:
    """A parameter as free matrices; `width` is P for parameters that take any width."""
    if theta.lifts:
        raise Unchanged("its values have biases")
    return full(theta.dense(width), theta.constant_values)


def _changed(theta: Theta, **values: Any) -> Theta:
    new = deepcopy(theta)
    for name, value in values.items():
        setattr(new, name, nn.Parameter(value.detach()) if isinstance(value, Tensor) else value)
    return new


def _diagonals(theta: Theta, like: Tensor) -> Tensor | None:
    """(K, P) the diagonals of diagonal matrices."""
    if isinstance(theta, Depthwise):
        return theta.diagonals()
    if type(theta) is Pass and theta.combine == "sum":
        return like.new_tensor(theta.scales).unsqueeze(1).expand(-1, like.shape[0])
    return None


def after(layer: BasisConv, affine: AffineMap) -> BasisConv:
    """A layer followed by an affine map of each entry."""
    matrix, shift = affine
    bias = None if layer.bias is None else layer.bias.double()
    if bias is not None:
        bias = bias * matrix if matrix.dim() == 1 else bias @ matrix
    if shift is not None:
        bias = shift.clone() if bias is None else bias + shift
    new = _replaced(layer, followed(deepcopy(layer.theta).double(), matrix), bias)
    if isinstance(new, ConvertedRGCN) and new.root is not None:
        new.root = after(new.root, AffineMap(matrix, None))
    return new


def before(affine: AffineMap, layer: BasisConv) -> BasisConv:
    """A layer preceded by an affine map of each entry."""
    if affine.shift is not None:
        return together(affine.layer(isinstance(layer, GridConv)), layer, layer)
    _check_features(layer)
    bias = None if layer.bias is None else layer.bias.double()
    return _replaced(layer, preceded(deepcopy(layer.theta).double(), affine.matrix), bias)


def together(first: BasisConv, second: BasisConv, like: BasisConv) -> BasisConv:
    """Two layers as one, by `compose`; it is called as `like` is."""
    _check_features(first)
    _check_features(second)
    one, then = (deepcopy(layer).double() for layer in (first, second))
    bias = then.bias
    if one.bias is not None and keeps_constants(then.basis) and not then.theta.lifts:
        shift = one.bias @ then.theta.dense(len(one.bias)).to(one.bias).sum(0)
        bias, one.bias = shift if bias is None else bias + shift, None
    try:
        made = compose(one, then)
    except ValueError as error:
        raise Unchanged(str(error)) from error
    new = _replaced(made, made.theta if type(made.theta) is Pass else _free(made.theta), bias)
    if isinstance(new, Converted):
        new.call = replace(new.call, names=tuple(names_of(like)))
    return new


def _check_features(layer: BasisConv) -> None:
    if isinstance(layer, ConvertedRGCN):
        raise Unchanged("one may read numbers of nodes instead of features")


def _replaced(layer: BasisConv, theta: Theta, bias: Tensor | None) -> BasisConv:
    """A copy of a layer, with another parameter and bias."""
    new = deepcopy(layer, {id(layer.theta): theta, id(layer.bias): None})
    new.bias = None if bias is None else nn.Parameter(bias)
    new.in_channels, new.out_channels = theta.P, theta.Q
    new._load_state_dict_pre_hooks.clear()  # checkpoints of a converted original do not fit it
    if type(theta) is not type(layer.theta):
        new.order = "auto"
    return new


def plain(layer: BasisConv) -> nn.Module:
    """The equal layer of torch, which has no checks and plans, if there is one; else the layer itself.

    >>> from pyg_basisconv import convert
    >>> plain(convert(nn.Conv2d(4, 6, 3, padding=1, groups=2)))
    Conv2d(4, 6, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), groups=2)
    >>> plain(BasisConv(3, 2, Identity()))
    Linear(in_features=3, out_features=2, bias=True)
    """
    basis, theta, form = layer.basis, layer.theta, torch.contiguous_format
    made: tuple[nn.Module, Tensor] | None = None
    with torch.device("meta"):
        if type(layer) is BasisConv and type(basis) is Identity and type(theta) is Full:
            made = nn.Linear(theta.P, theta.Q, bias=False), theta.weight[0].t()
        elif isinstance(layer, ConvertedGrid) and type(basis) is Window:
            made, form = _convolution(basis, theta), layer.memory_format or form
    if made is None:
        return layer
    new, weight = made
    new.weight = nn.Parameter(weight.detach().contiguous(memory_format=form), theta.weight.requires_grad)
    new.bias = layer.bias
    return new.train(layer.training)


def _convolution(basis: Window, theta: Any) -> tuple[nn.Module, Tensor] | None:
    """A convolution of torch and its kernel; None for a window or a parameter that torch does not support."""
    axes = len(basis.kernel_size)
    if axes > 3 or basis.ceil_mode or basis.norm is not None or basis.sites is not None or basis.shape is not None:
        return None
    if type(theta) not in (Full, Grouped, Depthwise, Kernel):
        return None
    blocks = theta.blocks(theta.P).weight  # (K, g, P / g, Q / g)
    options: dict[str, Any] = {"stride": basis.stride, "padding": basis.padding, "dilation": basis.dilation}
    options |= {"output_padding": basis.output_padding} if basis.transposed else {"padding_mode": basis.padding_mode}
    kind = getattr(nn, f"Conv{'Transpose' * basis.transposed}{axes}d")
    made = kind(theta.P, theta.Q, basis.kernel_size, groups=blocks.shape[1], bias=False, **options)
    order = (1, 2, 3, 0) if basis.transposed else (1, 3, 2, 0)
    return made, blocks.permute(order).flatten(0, 1).unflatten(-1, basis.kernel_size)
