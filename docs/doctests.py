"""Doctests in the reference as code: Markdown would take their `>>>` for quotations of quotations."""

import re
from typing import Any

from griffe import Extension, Object

# From a line that begins with >>> to the next empty one, wherever it stands.
DOCTEST = re.compile(r"^([ \t]*)(>>> .*(?:\n[ \t]*\S.*)*)", re.MULTILINE)


class Doctests(Extension):
    """Puts a fence around each."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(r"\1```pycon\n\1\2\n\1```", obj.docstring.value)
