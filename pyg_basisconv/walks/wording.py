"""How messages show names and values."""

import reprlib

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
