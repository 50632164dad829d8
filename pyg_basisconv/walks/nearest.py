"""Names that are nearly the one that was written."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, names: Iterable[str], most: int = 3) -> list[str]:
    """The names that are most like this one, the likeliest first: by spelling, then those that contain it.

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
    """Words that offer the nearest names, or what is said where none is near.

    >>> suggestion("plaid", ["played", "genre"], "there is no such relation")
    "did you mean 'played'?"
    """
    found = nearest(name, names)
    return f"did you mean {' or '.join(map(repr, found))}?" if found else otherwise
