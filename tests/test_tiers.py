"""Of a sweep few cases are left for `make test`: as many as it says, and every value that there is room for."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tiers import leave_few


def quick(sweep: int | None, *values: str, kept: tuple[str, ...] = ()) -> list[str]:
    """The cases of a product that are not slow."""
    slow: list[str] = []

    def case(name: str) -> Any:
        mark = None if sweep is None else SimpleNamespace(args=(sweep, *kept))
        return SimpleNamespace(name=name, get_closest_marker=lambda _: mark, add_marker=lambda _: slow.append(name))

    cases = [case(f"test_it[{'-'.join(words)}]") for words in product(*values)]
    leave_few(cases)
    return [case.name for case in cases if case.name not in slow]


@pytest.mark.parametrize("sweep", [1, 5, 12])
def test_as_many_are_left_as_it_says(sweep: int) -> None:
    assert len(quick(sweep, "abcd", "xyz")) == sweep
    assert quick(sweep, "abcd", "xyz") == quick(sweep, "abcd", "xyz")


def test_all_are_left_of_what_is_no_sweep_or_a_short_one() -> None:
    assert len(quick(None, "abcd", "xyz")) == len(quick(20, "abcd", "xyz")) == 12


def test_each_value_is_shown() -> None:
    shown = "".join(quick(7, "abcd", "xyz"))
    assert all(f"[{a}-" in shown for a in "abcd")
    assert all(f"-{x}]" in shown for x in "xyz")


def test_those_of_some_ids_are_left_too() -> None:
    few = quick(3, "abcd", "xyz")
    gone = next(name for name in quick(None, "abcd", "xyz") if name not in few)
    assert set(quick(3, "abcd", "xyz", kept=(gone[8:-1],))) == {*few, gone}
    with pytest.raises(pytest.UsageError, match=r"none is \['e-x'\]"):
        quick(3, "abcd", "xyz", kept=("e-x",))
