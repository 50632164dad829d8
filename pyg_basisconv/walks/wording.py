"""How messages show what was written."""


def brief(text: str, most: int = 80) -> str:
    """A text in quotes, its middle left out where it is long.

    >>> brief("played"), brief("a" * 100, 7)
    ("'played'", "'aa...aa'")
    """
    half = (most - 3) // 2
    return repr(text if len(text) <= most else f"{text[:half]}...{text[-half:]}")


def shown(value: object) -> str:
    """A value as Python writes it; its type where Python cannot: numbers of thousands of digits, lists without end.

    >>> shown(["played", 3]), shown(10**10000)
    ("['played', 3]", 'int')
    """
    try:
        return repr(value)
    except (ValueError, RecursionError):
        return type(value).__name__
