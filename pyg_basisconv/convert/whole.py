"""Converted layers that torch.compile sees as one operator each, as it sees a `BasisConv`."""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from .. import compiled
from ..conv import BasisConv
from ..layouts import check_form


class Whole(nn.Module):
    """A layer whose call is one operator of a compiled graph, whatever it is made of.

    It is for layers that do more with a bound basis than a `BasisConv` does, which only eager mode can: read the
    weights of attention, or apply those of some features to others. A kind says in `likeness` what its results are
    like, and begins its `forward` with

        if self.operates(given):
            return ... self.operator(given)

    where `given` are its arguments by name. The operator then calls this very `forward`, in eager mode.
    """

    serial: int  # see `compiled.serial_number`

    def __new__(cls, *args: Any, **kwargs: Any) -> "Whole":
        self = super().__new__(cls)
        vars(self)["serial"] = compiled.serial_number(self)
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.serial = compiled.serial_number(self)  # a copy is a layer of its own

    def operates(self, given: dict[str, Any]) -> bool:
        """Whether torch.compile is tracing, and the operator can stand for a call with these arguments."""
        if not torch.compiler.is_dynamo_compiling():
            return False
        parts = [part for value in given.values() for part in (value if isinstance(value, tuple | list) else [value])]
        plain = all(part is None or isinstance(part, Tensor | bool | int) for part in parts)
        return plain and compiled.operates(self, *parts)

    def operator(self, given: dict[str, Any]) -> list[Tensor]:
        """All tensors that a call returns, by the operator."""
        return compiled.results(self, given)

    @property
    def explain(self) -> bool:
        """Whether a part of it is explained, by a mask that is none of the arguments."""
        return any(bool(part.explain) for part in self.modules() if isinstance(part, BasisConv))

    @property
    def is_lazy(self) -> bool:
        """Whether a part of it has yet to find its width."""
        return any(part.is_lazy for part in self.modules() if isinstance(part, BasisConv))

    def evaluate(self, **given: Any) -> list[Tensor]:
        """What the operator does."""
        return list(_tensors(self.forward(**given)))

    def laid_out(self, found: Sequence[Tensor], given: dict[str, Any]) -> list[Tensor]:
        """The results in the layout that `likeness` has."""
        return [t.contiguous() for t in found]

    def likeness(self, given: dict[str, Any], unknown: Callable[[], int]) -> list[Tensor]:
        """Empty tensors of the shapes and kinds that the results of a call have, without a look at numbers.

        Args:
            given: the arguments of the call by name.
            unknown: makes a size that only numbers tell.
        """
        raise NotImplementedError

    def dtypes(self, found: Sequence[Tensor], given: dict[str, Any], narrow: torch.dtype) -> list[torch.dtype]:
        """Those of floating point results under autocast: of the sums the narrow one, of weights that of x.

        Args:
            found: what `likeness` gave.
            given: the arguments of the call by name.
            narrow: the dtype of autocast.
        """
        return [narrow, *(t.dtype for t in found[1:])]


def check_forms(given: dict[str, Any]) -> None:
    """Rejects arguments in a form that nothing here reads, before anything is made of them."""
    for name, value in given.items():
        if value is None:
            continue
        if type(value) is tuple or type(value) is list:
            for part in value:
                check_form(name, part, sparse=True)
        else:
            check_form(name, value, sparse=True)


def joined(narrow: torch.dtype, *others: Tensor | None) -> torch.dtype:
    """The dtype of the sum of something narrow and others, where they are there."""
    return reduce(torch.promote_types, [t.dtype for t in others if t is not None], narrow)


def _tensors(outcome: Any) -> Iterator[Tensor]:
    """The tensors in what a layer returns."""
    if isinstance(outcome, Tensor):
        yield outcome
    elif isinstance(outcome, tuple):
        for part in outcome:
            yield from _tensors(part)
