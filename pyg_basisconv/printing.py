"""The printed form of values: the Python expression that makes them."""


def arguments(thing: object, *first: object, **defaults: object) -> str:
    """The arguments in a `repr`: `first` as given, then by name the attributes that differ from their defaults.

    >>> from types import SimpleNamespace
    >>> arguments(SimpleNamespace(norm='sym', diagonal=0.0), 3, norm=None, diagonal=0)
    "3, norm='sym'"
    """
    named = []
    for name, default in defaults.items():
        value = getattr(thing, name)
        if value != default or isinstance(value, bool) != isinstance(default, bool):  # 0 is not False
            named.append(f"{name}={value!r}")
    return ", ".join([*map(str, first), *named])
