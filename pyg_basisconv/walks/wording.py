"""How messages show names and values."""

_CONTROLS = {c: repr(chr(c))[1:-1] for c in (*range(32), *range(127, 160), 0x2028, 0x2029)}


def brief(text: str, most: int = 80) -> str:
    """A text in quotes; the middle of a long one is left out.

    >>> brief("played"), brief("a" * 100, 7)
    ("'played'", "'aa...aa'")
    """
    return repr(_shortened(text, most))


def shown(value: object, most: int = 80) -> str:
    """The repr of a value; its type where repr fails, as for huge integers and recursive lists.

    >>> shown(["played", 3]), shown(10**10000)
    ("['played', 3]", 'int')
    """
    try:
        return _shortened(repr(value), most)
    except (ValueError, RecursionError):
        return type(value).__name__


def printed(name: str) -> str:
    r"""A name on one line, with control characters escaped.

    >>> printed("七人の侍"), printed("two\nlines")
    ('七人の侍', 'two\\nlines')
    """
    return name.translate(_CONTROLS)


def _shortened(text: str, most: int) -> str:
    half = (most - 3) // 2
    return text if len(text) <= most else f"{text[:half]}...{text[-half:]}"
