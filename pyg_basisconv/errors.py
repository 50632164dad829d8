"""One form for what is said at the door."""

from typing import NoReturn


def reject(argument: str, expected: str, got: object, fix: str) -> NoReturn:
    """Raises a `ValueError` that names the argument, what was expected, what came, and what to do.

    >>> reject("order", "'auto' or 'a_first'", "'fast'", "leave it out to let the plan choose")
    Traceback (most recent call last):
    ...
    ValueError: order: expected 'auto' or 'a_first', got 'fast'; leave it out to let the plan choose
    """
    raise ValueError(f"{argument}: expected {expected}, got {got}; {fix}")
