"""What the fuzz tests share: how often they run, what is no argument of anything, and what may come of a call."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from pyg_basisconv import bases

USUAL = 60  # examples of a test in the profile of the tests; a longer profile has more, of every kind as many times
EXAMPLES: Counter[str] = Counter()


def fuzz(examples: int, equal: float, refused: float = 0.0) -> Callable[[Callable[..., str]], Callable[[], None]]:
    """A test that draws cases, of which some share must be equal to the oracle, and some must be refused.

    The test returns what came of its case: 'equal' or 'refused'.
    """

    def decorate(check: Callable[..., str]) -> Callable[[], None]:
        strategies = {name: value for name, value in check.__annotations__.items() if name != "return"}
        EXAMPLES[check.__name__] = examples

        def test() -> None:
            came: Counter[str] = Counter()

            @settings(max_examples=examples * settings.default.max_examples // USUAL)
            @given(**strategies)
            def run(**case: Any) -> None:
                came[check(**case)] += 1

            run()
            total = sum(came.values())
            assert total >= examples * settings.default.max_examples // USUAL
            if settings.default.max_examples < USUAL:
                return  # shares of so few say little
            assert came["equal"] >= equal * total, f"too few are valid: {came}"
            assert came["refused"] >= refused * total, f"too few are refused: {came}"

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return decorate


def refused(call: Callable[[], Any]) -> bool:
    """Whether a call raises a ValueError or a TypeError that says something; any other exception passes through."""
    try:
        call()
    except (ValueError, TypeError) as error:
        return bool(str(error))
    return False


# Nothing takes any of these: a call that has one is refused, if the argument is read at all.
JUNK: dict[str, Callable[[], Any]] = {
    "a word": lambda: "sum",
    "bytes": lambda: b"x",
    "an object": object,
    "a class": lambda: int,
    "a dict": lambda: {"a": 1},
    "a set": lambda: {1},
    "a complex number": lambda: 1j,
    "nan": lambda: float("nan"),
    "a function": lambda: len,
    "a numpy array of words": lambda: np.array(["a", "b"]),
    "a complex tensor": lambda: torch.ones(2, 2, dtype=torch.complex64),
    "a tensor of bools": lambda: torch.ones(2, 2, dtype=torch.bool),
    "a tensor elsewhere": lambda: torch.ones(2, 2, device="meta"),
    "a sparse tensor of five axes": lambda: torch.ones(1, 1, 1, 1, 2).to_sparse(),
    "a basis": bases.Adjacency,
}
# These are something to some arguments.
ODD: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "0": lambda: 0,
    "-1": lambda: -1,
    "2": lambda: 2,
    "2**70": lambda: 2**70,
    "0.5": lambda: 0.5,
    "inf": lambda: float("inf"),
    "empty": list,
    "a list": lambda: [1, 2],
    "a list of lists": lambda: [[0, 1], [1, 0]],
    "a tuple": lambda: (2, 1),
    "a numpy number": lambda: np.int64(2),
    "a numpy array": lambda: np.ones((2, 2)),
    "no axes": lambda: torch.tensor(1),
    "one number": lambda: torch.tensor(0.5),
    "no numbers": lambda: torch.zeros(0),
    "integers": lambda: torch.tensor([1, 0]),
    "numbers": lambda: torch.tensor([0.5, -1.0]),
    "half": lambda: torch.ones(2, 2, dtype=torch.float16),
    "nan inside": lambda: torch.full((2,), float("nan")),
}
junk = st.sampled_from(sorted(JUNK)).map(lambda name: JUNK[name]())
alien = junk.filter(lambda value: not isinstance(value, Tensor))
anything = st.sampled_from(sorted(JUNK | ODD)).map(lambda name: (JUNK | ODD)[name]())


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Drawn from the normal distribution."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
