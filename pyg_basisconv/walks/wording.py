"""How messages show names and values, and which names they suggest for an unknown one."""

import reprlib
from collections.abc import Iterable
from difflib import get_close_matches

_CONTROLS = {c: repr(chr(c))[1:-1] for c in (*range(32), *range(127, 160), 0x2028, 0x2029)}
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 80


def shown(value: object) -> str:
    """The repr of a value, without the middle of a long one; its type where repr fails, as for huge integers.

    >>> shown("played"), shown(["played", 3]), shown(10**10000)
    ("'played'", "['played', 3]", 'int')
    """
    try:
        return _SHORT.repr(value)
    except ValueError:
        return type(value).__name__


def printed(name: str) -> str:
    r"""A name on one line, with control characters escaped.

    >>> printed("七人の侍"), printed("two\nlines")
    ('七人の侍', 'two\\nlines')
    """
    return name.translate(_CONTROLS)


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
