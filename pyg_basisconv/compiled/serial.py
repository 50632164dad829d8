"""Serial numbers, by which an operator, which takes no objects, can name a layer or a bound basis."""

import os
import secrets
import weakref
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

_ALIVE: dict[int, weakref.ref[Any]] = {}
_NUMBERS: "count[int]"


def in_each_process(start: Callable[[], None]) -> Callable[[], None]:
    """Calls a function now, and again in each process that is forked from this one."""
    start()
    if hasattr(os, "register_at_fork"):  # Windows has no forks
        os.register_at_fork(after_in_child=start)
    return start


@in_each_process
def _restart() -> None:
    """Starts at a random number, as compiled code is kept on disk and must not name a layer of another process."""
    global _NUMBERS
    _NUMBERS = count(secrets.randbits(40) << 22)


def serial_number(thing: Any) -> int:
    """A new number, by which `of_serial` finds the object while it lives."""
    number = next(_NUMBERS)
    # The entry goes with the object. A `WeakValueDictionary` does the same at several times the cost.
    _ALIVE[number] = weakref.ref(thing, partial(_ALIVE.pop, number))
    return number


def of_serial(number: int) -> Any:
    """The object that has a number."""
    return _ALIVE[number]()
