"""What is left in the place of a layer that is folded into another."""

from inspect import signature
from typing import Any

from torch import nn

from ..convert.layers import Converted
from ..errors import reject


class Passed(nn.Module):
    """Stands where a layer was that is folded into another, and gives its argument back.

    Args:
        layer: what was there; its numbers, such as in_channels, are kept for who asks.
        axes: how many the argument has; None for any number.

    >>> gone = Passed(nn.Linear(2, 3))
    >>> gone("x"), gone.out_features
    ('x', 3)
    """

    def __init__(self, layer: nn.Module, axes: int | None = None) -> None:
        super().__init__()
        numbers = {name: v for name, v in vars(layer).items() if isinstance(v, int | float) and name[0] != "_"}
        vars(self).update(numbers)
        self.first, self.axes = names_of(layer)[0], axes

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The first argument; the others are what the layer would read."""
        x = args[0] if args else kwargs[self.first]
        if self.axes is not None and x.dim() != self.axes:
            fix = "a batch norm has its channels on the second axis: fold the model with an example call"
            reject(self.first, f"{self.axes} axes, for which a batch norm was folded", tuple(x.shape), fix)
        return x

    def extra_repr(self) -> str:
        return "" if self.axes is None else f"axes={self.axes}"


def names_of(module: nn.Module) -> list[str]:
    """The names of a module's arguments, in order."""
    if isinstance(module, Converted):
        return list(module.call.names)
    return list(signature(module.forward).parameters)
