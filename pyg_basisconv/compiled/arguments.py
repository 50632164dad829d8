"""The arguments of a call as an operator takes them: a list of tensors, a list of integers, and a text.

The text is the inside of a dictionary literal, such as `'x':'t0','size':('n0','n1'),`. It says by the name of each
argument where its value is: t0 is the first tensor, n0 the first integer, and f0 the float in the first tensor; None,
True and False stand for themselves. Names of parameters begin with a dot.
"""

import ast
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..cache import drop_oldest
from ..errors import reject

_PARSED: dict[str, dict[str, Any]] = {}
_LIMIT = 1024  # texts that are kept parsed


class Flattened:
    """Collects arguments one by one: `tensors`, `integers`, and the `text` that says where each of them is."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.integers: list[int] = []
        self.text = ""

    def add(self, name: str, value: Any) -> None:
        """Adds an argument."""
        self.text += f"'{name}':{self._place(name, value)},"

    def add_parameter(self, name: str, parameter: Tensor) -> None:
        """Adds a parameter of the layer, even if it is among the tensors already."""
        self.tensors.append(parameter)
        self.text += f"'.{name}':'t{len(self.tensors) - 1}',"

    def _place(self, name: str, value: Any) -> str:
        tensors = self.tensors
        if isinstance(value, Tensor):
            for i, other in enumerate(tensors):
                if other is value:
                    return f"'t{i}'"
            tensors.append(value)
            return f"'t{len(tensors) - 1}'"
        if value is None or isinstance(value, bool):
            return str(value)
        if isinstance(value, float):  # as a number, torch.compile would take it for a constant
            tensors.append(torch.scalar_tensor(value, dtype=torch.float64, device="cpu"))
            return f"'f{len(tensors) - 1}'"
        if isinstance(value, int):
            self.integers.append(value)
            return f"'n{len(self.integers) - 1}'"
        if isinstance(value, tuple | list):
            return "(" + "".join([self._place(name, part) + "," for part in value]) + ")"
        return reject(name, "a tensor, under torch.compile", type(value).__name__, "call this layer outside of it")


def _parsed(text: str) -> dict[str, Any]:
    """The places by name; do not write to them."""
    found = _PARSED.get(text)  # not an `lru_cache`, about which torch.compile would warn
    if found is None:
        found = _PARSED[text] = ast.literal_eval(f"{{{text}}}")
        drop_oldest(_PARSED, _LIMIT)
    return found


def arguments(text: str, tensors: Sequence[Tensor], integers: Sequence[int]) -> dict[str, Any]:
    """The arguments by name; floats as tensors.

    >>> arguments("'x':('t0',None),'size':('n0','n1'),", [torch.zeros(1)], [3, 4])
    {'x': (tensor([0.]), None), 'size': (3, 4)}
    """

    def at(place: Any) -> Any:
        if isinstance(place, tuple):
            return tuple(map(at, place))
        return (integers if place[0] == "n" else tensors)[int(place[1:])] if isinstance(place, str) else place

    return {name: at(place) for name, place in _parsed(text).items()}


def tensor_indices(text: str) -> dict[str, int]:
    """The indices, among the tensors, of the arguments that are one tensor."""
    return {name: int(p[1:]) for name, p in _parsed(text).items() if isinstance(p, str) and p[0] == "t"}


def is_float(text: str, name: str) -> bool:
    """Whether an argument was given as a float."""
    return bool(_parsed(text).get(name, "")[:1] == "f")
