"""Two layers as one with parameters of its own, in double precision."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from ..bases import Identity, Window
from ..basis import Basis
from ..conv import BasisConv
from ..convert import layers
from ..convert.registry import Left
from ..convert.rgcn import Related
from ..grid import GridConv
from ..theta import Depthwise, Full, Grouped, Heads, LowRank, Pass, Separable, Theta
from .channels import Channels, depthwise, full
from .compose import compose
from .passed import names_of


def pointwise(basis: Basis) -> bool:
    """Whether a family does nothing but to give each entry to itself.

    >>> pointwise(Window(None, (1, 1))), pointwise(Window(None, (1, 1), stride=2))
    (True, False)
    """
    if type(basis) is not Window:
        return type(basis) is Identity
    once = {*basis.kernel_size, *basis.stride} == {1} and not any((*basis.before, *basis.after))
    return once and not any(basis.output_padding) and basis.norm is None and basis.sites is None


def written(theta: Theta, width: int = -1) -> Full:
    """The matrices of a parameter as free ones; `width` is P, where any is taken."""
    if theta.lifts:
        raise Left("its values have biases")
    return full(theta.dense(width), theta.constant_values)


def followed(theta: Theta, matrix: Tensor) -> Theta:
    r""":math:`\Theta_k T`, of the same kind where that has as few numbers.

    Args:
        theta: of K matrices (P, Q).
        matrix: T, (Q, R), or (Q,) a diagonal.

    >>> import torch
    >>> followed(Depthwise().build(9, 4, 4), torch.ones(4)), followed(Depthwise().build(9, 4, 4), torch.ones(4, 2))
    (Depthwise(), Full())
    """
    kind, diagonal = type(theta), matrix.dim() == 1

    def times(weight: Tensor) -> Tensor:
        return weight * matrix if diagonal else weight @ matrix

    if kind in (Full, Separable):
        return _changed(theta, Q=matrix.shape[-1], weight=times(theta.weight))
    if isinstance(theta, LowRank):
        return _changed(theta, Q=matrix.shape[-1], output=times(theta.output))
    if isinstance(theta, Heads) and theta.sums:
        return _changed(theta, Q=matrix.shape[-1], **{name: times(p) for name, p in theta.named_parameters()})
    if isinstance(theta, Heads) and diagonal:
        apart = matrix.view(theta.K, -1)
        scaled = {"weight": theta.weight * apart.unsqueeze(1)}
        if theta.value_bias is not None:
            scaled["value_bias"] = theta.value_bias * apart
        return _changed(theta, **scaled)
    if isinstance(theta, Grouped) and diagonal:
        return _changed(theta, weight=theta.weight * matrix.view(theta.groups, 1, -1))
    if diagonal and _diagonals(theta, matrix) is not None:
        return depthwise(_diagonals(theta, matrix) * matrix)  # type: ignore[operator]
    free = written(theta, matrix.shape[0] // theta.outputs(1) if theta.P < 0 else theta.P).to(matrix)
    return full(times(free.weight), None if free.constant_values is None else times(free.constant_values))


def preceded(theta: Theta, matrix: Tensor) -> Theta:
    r""":math:`T \Theta_k`, of the same kind where that has as few numbers.

    Args:
        theta: of K matrices (P, Q).
        matrix: T, (R, P), or (P,) a diagonal.

    >>> import torch
    >>> preceded(Separable().build(9, 4, 8), torch.ones(5, 4)).dense().shape
    torch.Size([9, 5, 8])
    """
    diagonal = matrix.dim() == 1

    def times(weight: Tensor) -> Tensor:
        return weight * matrix.unsqueeze(-1) if diagonal else matrix @ weight

    mixed = isinstance(theta, Separable) and (diagonal or not theta.depthwise)
    if type(theta) is Full or isinstance(theta, LowRank | Heads) or mixed:
        return _changed(theta, P=matrix.shape[0], weight=times(theta.weight))
    if isinstance(theta, Grouped) and diagonal:
        return _changed(theta, weight=theta.weight * matrix.view(theta.groups, -1, 1))
    if diagonal and _diagonals(theta, matrix) is not None:
        return depthwise(_diagonals(theta, matrix) * matrix)  # type: ignore[operator]
    free = written(theta, matrix.shape[-1]).to(matrix)
    return full(times(free.weight), free.constant_values)


def after(layer: BasisConv, channels: Channels) -> BasisConv:
    """A layer with something behind it that is done to each entry by itself."""
    matrix, shift = channels
    bias = None if layer.bias is None else layer.bias.double()
    if bias is not None:
        bias = bias * matrix if matrix.dim() == 1 else bias @ matrix
    if shift is not None:
        bias = shift.clone() if bias is None else bias + shift
    new = replaced(layer, followed(deepcopy(layer.theta).double(), matrix), bias)
    if isinstance(new, Related) and new.root is not None:
        new.root = after(new.root, Channels(matrix, None))
    return new


def before(channels: Channels, layer: BasisConv) -> BasisConv:
    """A layer with something in front of it that is done to each entry by itself."""
    if channels.shift is not None:
        return together(channels.layer(isinstance(layer, GridConv)), layer, layer)
    _check_features(layer)
    bias = None if layer.bias is None else layer.bias.double()
    return replaced(layer, preceded(deepcopy(layer.theta).double(), channels.matrix), bias)


def together(first: BasisConv, second: BasisConv, like: BasisConv) -> BasisConv:
    """Both as `compose` makes them one; it is called as one of them is, `like`."""
    for layer in (first, second):
        _check_features(layer)
    one, then = (deepcopy(layer).double() for layer in (first, second))
    bias = None if then.bias is None else then.bias
    if one.bias is not None and keeps_constants(then.basis) and not then.theta.lifts:
        shift = one.bias @ then.theta.dense(len(one.bias)).to(one.bias).sum(0)
        bias, one.bias = shift if bias is None else bias + shift, None
    try:
        made = compose(one, then)
    except ValueError as error:
        raise Left(str(error)) from error
    new = replaced(made, made.theta if type(made.theta) is Pass else written(made.theta), bias)
    if isinstance(new, layers.Converted):
        new.call = replace(new.call, names=tuple(names_of(like)))
    return new


def keeps_constants(basis: Basis) -> bool:
    """Whether each matrix makes the constant 1 of the constant 1.

    >>> keeps_constants(Window(None, 3)), keeps_constants(Window(None, 3, padding=1))
    (True, False)
    """
    if type(basis) is not Window:
        return type(basis) is Identity
    inside = basis.padding_mode != "zeros" or not any((*basis.before, *basis.after))
    return inside and not (basis.transposed or basis.ceil_mode) and basis.norm is None and basis.sites is None


def _check_features(layer: BasisConv) -> None:
    if isinstance(layer, Related):
        raise Left("one may read numbers of nodes instead of features")


def replaced(layer: BasisConv, theta: Theta, bias: Tensor | None) -> BasisConv:
    """A copy of a layer, with another parameter and bias."""
    new = deepcopy(layer, {id(layer.theta): theta, id(layer.bias): None})
    new.bias = None if bias is None else nn.Parameter(bias)
    new.in_channels, new.out_channels = theta.P, theta.Q
    new._load_state_dict_pre_hooks.clear()  # of a layer that was converted: a checkpoint of that is none of this
    if type(theta) is not type(layer.theta):
        new.order = "auto"
    return new


def _changed(theta: Theta, **values: Any) -> Theta:
    new = deepcopy(theta)
    for name, value in values.items():
        setattr(new, name, nn.Parameter(value.detach()) if isinstance(value, Tensor) else value)
    return new


def _diagonals(theta: Theta, like: Tensor) -> Tensor | None:
    """(K, P) the diagonals of diagonal matrices."""
    if isinstance(theta, Depthwise):
        return theta.diagonals()
    if type(theta) is Pass and not theta.concatenates:
        return like.new_tensor(theta.scales).unsqueeze(1).expand(-1, like.shape[0])
    return None
