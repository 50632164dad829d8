"""One form for what is said at the door."""

from typing import Any, NoReturn

DEPTH = 100  # of what is written, or made, of something that is made of something
_CALLS = 1000  # within each other, of which Python allows no more


def reject(argument: str, expected: str, got: object, fix: str) -> NoReturn:
    """Raises a `ValueError` that names the argument, what was expected, what came, and what to do.

    >>> reject("order", "'auto' or 'a_first'", "'fast'", "leave it out to let the plan choose")
    Traceback (most recent call last):
    ...
    ValueError: order: expected 'auto' or 'a_first', got 'fast'; leave it out to let the plan choose
    """
    raise ValueError(f"{argument}: expected {expected}, got {got}; {fix}")


def check_flags(**flags: object) -> None:
    """Rejects what is neither True nor False.

    >>> check_flags(bias=True, cached="no")
    Traceback (most recent call last):
    ...
    ValueError: cached: expected True or False, got 'no'; give one of them
    """
    for name, value in flags.items():
        if not isinstance(value, bool):
            reject(name, "True or False", repr(value), "give one of them")


def check_count(name: str, value: object, least: int = 1, most: int = 1 << 31) -> None:
    """Rejects what is not an integer from `least` on, and what no memory holds.

    >>> check_count("heads", 0)
    Traceback (most recent call last):
    ...
    ValueError: heads: expected an integer from 1 on, got 0; give a number
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        reject(name, f"an integer from {least} on", repr(value), "give a number")


def check_depth(name: str, *parts: Any, calls: int = 20) -> int:
    """How deep something is nested that is made of these parts, rejected where it is too deep to be evaluated.

    calls: how many calls within each other one level takes, at most.

    >>> from pyg_basisconv import bases
    >>> check_depth("basis", bases.Identity(), bases.Adjacency().T)
    3
    """
    depth: int = 1 + max(getattr(part, "depth", 1) for part in parts)
    most = min(DEPTH, _CALLS // calls)
    if depth > most:
        reject(name, f"something nested at most {most} deep", depth, "make it of fewer parts; a sum of many is flat")
    return depth
