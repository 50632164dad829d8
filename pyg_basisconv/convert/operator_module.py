"""Converted layers that torch.compile sees as one operator each, as it sees a `BasisConv`."""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from .. import compiled
from ..conv import BasisConv
from ..layouts import check_form
from .composite import Composite
from .layers import pair


class OperatorModule(Composite):
    """A layer whose call is one operator of a compiled graph.

    It is for layers that do with a bound basis what torch.compile cannot trace: read the weights of attention, or apply
    the weights of some features to others. A subclass computes its results in `compute`, which the operator calls in
    eager mode, and describes them in `fake_result`.
    """

    width: int  # of the result
    serial: int  # see `compiled.serial_number`

    def __new__(cls, *args: Any, **kwargs: Any) -> "OperatorModule":
        self = super().__new__(cls)
        vars(self)["serial"] = compiled.serial_number(self)
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.serial = compiled.serial_number(self)  # a copy is a layer of its own

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Applies the layer; takes what the layer takes that it replaces."""
        return self.run(self.call.read(args, kwargs))

    def run(self, given: dict[str, Any]) -> Any:
        """The results of a call, whose arguments are given by name; as one operator where torch.compile traces it."""
        check_forms(given)
        if not self.uses_operator(given):
            return self.compute(**given)
        y, *weights = compiled.results(self, given)
        return (y, tuple(weights)) if weights else y

    def uses_operator(self, given: dict[str, Any]) -> bool:
        """Whether torch.compile is tracing, and the operator can stand for a call with these arguments."""
        if not torch.compiler.is_dynamo_compiling():
            return False
        parts = [part for value in given.values() for part in (value if isinstance(value, tuple | list) else [value])]
        plain = all(part is None or isinstance(part, Tensor | bool | int) for part in parts)
        return plain and compiled.applies(self, *parts)

    @property
    def is_explained(self) -> bool:
        """Whether an explainer has set a mask on a part of it."""
        return any(bool(part.explain) for part in self.modules() if isinstance(part, BasisConv))

    @property
    def is_lazy(self) -> bool:
        """Whether the width of a part of it is not known yet."""
        return any(part.is_lazy for part in self.modules() if isinstance(part, BasisConv))

    def evaluate(self, **given: Any) -> list[Tensor]:
        """What the operator does."""
        return list(_tensors(self.compute(**given)))

    def laid_out(self, found: Sequence[Tensor], given: dict[str, Any]) -> list[Tensor]:
        """The results in the layout that `fake_result` has."""
        return [t.contiguous() for t in found]

    def fake_result(self, given: dict[str, Any], unknown: Callable[[], int]) -> list[Tensor]:
        """Empty tensors with the shapes and dtypes of a call's results, found without reading any values; `unknown`
        makes a size that depends on these.
        """
        source, target = pair(given["x"])
        rows = source if target is None else target
        return [rows.new_empty(*rows.shape[:-1], self.width)]

    def dtypes(self, found: Sequence[Tensor], given: dict[str, Any], narrow: torch.dtype) -> list[torch.dtype]:
        """The dtypes of the floating point results that `fake_result` found, under autocast to a narrow one: that one
        for sums, that of x for weights.
        """
        return [narrow, *(t.dtype for t in found[1:])]


def check_forms(given: dict[str, Any]) -> None:
    """Rejects arguments whose type or layout is not supported."""
    for name, value in given.items():
        for part in value if type(value) in (tuple, list) else (value,):
            check_form(name, part, sparse=True)


def promoted(narrow: torch.dtype, *others: Tensor | None) -> torch.dtype:
    """The dtype of the sum of something narrow and these tensors."""
    return reduce(torch.promote_types, [t.dtype for t in others if t is not None], narrow)


def _tensors(outcome: Any) -> Iterator[Tensor]:
    """The tensors in what a layer returns."""
    if isinstance(outcome, Tensor):
        yield outcome
    elif isinstance(outcome, tuple):
        for part in outcome:
            yield from _tensors(part)
