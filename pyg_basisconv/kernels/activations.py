"""The activations of the compiled kernels, and their codes there."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook

Activation = Callable[[Tensor], Tensor]


class ActivationCode(NamedTuple):
    """The number of an activation in the kernels, and the negative slope of a leaky ReLU.

    >>> activation_code(nn.LeakyReLU(0.2)), activation_code(torch.sin)
    (ActivationCode(number=1, slope=0.2), None)
    """

    number: int
    slope: float = 0.0

    @property
    def bends(self) -> bool:
        """Whether it has one slope above zero, which is 1, and another below."""
        return self.number in (_RELU.number, _LEAKY)


def zero_hidden(score: Tensor) -> Tensor:
    """The scores, with zeros for minus infinity: a hidden pair has no weight and no gradient."""
    return score.masked_fill(score == -torch.inf, 0)


def tanh_zero_hidden(score: Tensor) -> Tensor:
    """Tanh of the scores, zero for hidden pairs; see `zero_hidden`."""
    return torch.tanh(zero_hidden(score))


_LEAKY = 1
_NONE, _RELU, _SIGMOID, _TANH = ActivationCode(0), ActivationCode(2), ActivationCode(3), ActivationCode(4)
_FUNCTIONS: dict[Any, ActivationCode] = {
    torch.relu: _RELU,
    F.relu: _RELU,
    torch.sigmoid: _SIGMOID,
    F.sigmoid: _SIGMOID,
    torch.tanh: _TANH,
    F.tanh: _TANH,
    F.leaky_relu: ActivationCode(_LEAKY, 0.01),
    zero_hidden: ActivationCode(5),
    tanh_zero_hidden: ActivationCode(6),
}
_MODULES: dict[type, ActivationCode] = {nn.Identity: _NONE, nn.ReLU: _RELU, nn.Sigmoid: _SIGMOID, nn.Tanh: _TANH}


def _is_hooked(module: nn.Module) -> bool:
    """Whether a module has hooks or a replaced `forward`, which the kernels would skip."""
    own = vars(module)
    if own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]:
        return True
    return "forward" in own or _has_any_global_hook()


def activation_code(activation: Activation | None) -> ActivationCode | None:
    """The code of an activation in the kernels; None for those that they do not have."""
    if activation is None:
        return _NONE
    if isinstance(activation, nn.Module):
        if _is_hooked(activation):
            return None
        if type(activation) is nn.LeakyReLU:
            return ActivationCode(_LEAKY, activation.negative_slope)
        return _MODULES.get(type(activation))
    try:
        return _FUNCTIONS.get(activation)
    except TypeError:  # an unhashable callable
        return None
