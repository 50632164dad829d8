"""Suggests names that are similar to an unknown one."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, names: Iterable[str], most: int = 3) -> list[str]:
    """The names most similar to this one, best first: by spelling, then those that contain it.

    >>> nearest("Gener", ["played", "genre", "/film/genre"])
    ['genre']
    >>> nearest("genre", ["played", "/film/film/genre"])
    ['/film/film/genre']
    """
    folded: dict[str, str] = {}
    for other in names:
        folded.setdefault(other.casefold(), other)
    word = name.casefold()
    found = get_close_matches(word, folded, most)
    if len(word) > 2 and len(found) < most:
        found += sorted((other for other in folded if word in other and other not in found), key=len)
    return [folded[other] for other in found[:most]]


def suggestion(name: str, names: Iterable[str], otherwise: str) -> str:
    """A hint at the nearest names; `otherwise` if none is near.

    >>> suggestion("plaid", ["played", "genre"], "there is no such relation")
    "did you mean 'played'?"
    """
    found = nearest(name, names)
    return f"did you mean {' or '.join(map(repr, found))}?" if found else otherwise
