"""The activations that compiled kernels know, and by which number."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook


class Known(NamedTuple):
    """The number of an activation in the kernels, and the slope of a leaky one.

    >>> known(nn.LeakyReLU(0.2)), known(torch.sin)
    (Known(number=1, slope=0.2), None)
    """

    number: int
    slope: float = 0.0


def seen(score: Tensor) -> Tensor:
    """The scores, and zero where a score of minus infinity hides a pair: it has no weight, and no gradient."""
    return score.masked_fill(score == -torch.inf, 0)


def seen_tanh(score: Tensor) -> Tensor:
    """Tanh of the scores; zero where one of minus infinity hides a pair."""
    return torch.tanh(seen(score))


_NONE, _RELU, _SIGMOID, _TANH = Known(0), Known(2), Known(3), Known(4)
_FUNCTIONS: dict[Any, Known] = {
    torch.relu: _RELU,
    F.relu: _RELU,
    torch.sigmoid: _SIGMOID,
    F.sigmoid: _SIGMOID,
    torch.tanh: _TANH,
    F.tanh: _TANH,
    F.leaky_relu: Known(1, 0.01),
    seen: Known(5),
    seen_tanh: Known(6),
}
_MODULES: dict[type, Known] = {nn.Identity: _NONE, nn.ReLU: _RELU, nn.Sigmoid: _SIGMOID, nn.Tanh: _TANH}


def _watched(module: nn.Module) -> bool:
    """Whether somebody looks at what a module does, or has it do something else."""
    own = vars(module)
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return "forward" in own or any(own[name] for name in hooks) or _has_any_global_hook()


def known(activation: Callable[[Tensor], Tensor] | None) -> Known | None:
    """How the kernels know an activation; None where they do not."""
    if activation is None:
        return _NONE
    if isinstance(activation, nn.Module):
        if _watched(activation):
            return None
        if type(activation) is nn.LeakyReLU:
            return Known(1, activation.negative_slope)
        return _MODULES.get(type(activation))
    try:
        return _FUNCTIONS.get(activation)
    except TypeError:  # what has no hash is none of these
        return None
