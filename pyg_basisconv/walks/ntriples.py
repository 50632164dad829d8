"""RDF 1.1 N-Triples."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from ..errors import reject
from .files import lines_of
from .wording import brief

_CODE = r"\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8}"
_IRI = rf'<[A-Za-z][A-Za-z0-9+.\-]*:(?:[^\x00-\x20<>"{{}}|^`\\]|{_CODE})*>'
_BLANK = r"_:\w(?:[\w.:\-·]*[\w:\-·])?"
_TEXT = rf'"(?:[^"\\\r]|\\[tbnrf"\'\\]|{_CODE})*"'
_LITERAL = rf"{_TEXT}(?:\^\^{_IRI}|@[A-Za-z]+(?:-[A-Za-z0-9]+)*)?"
_SUBJECT = re.compile(rf"{_IRI}|{_BLANK}")
_PREDICATE = re.compile(_IRI)
_OBJECT = re.compile(rf"{_IRI}|{_BLANK}|{_LITERAL}")
_END = re.compile(r"\.[ \t]*(?:#.*)?$")
_BLANKS = re.compile(r"[ \t]*")
_ESCAPE = re.compile(rf"{_CODE}|\\.")
_SIGNS = {"t": "\t", "b": "\b", "n": "\n", "r": "\r", "f": "\f", '"': '"', "'": "'", "\\": "\\"}


def triples(path: Path) -> Iterator[tuple[str, str, str]]:
    """The triples of a file: IRIs without <>, blank nodes as _:label, literals as "text", "text"@en or "text"^^type."""
    for number, line in lines_of(path, "N-Triples"):
        at, terms = _skip(line, 0), []
        if line[at] == "#":
            continue
        for pattern, what in (
            (_SUBJECT, "a subject: an absolute <IRI> or _:label"),
            (_PREDICATE, "a predicate: an absolute <IRI>"),
            (_OBJECT, 'an object: an absolute <IRI>, _:label or "text"'),
        ):
            match = pattern.match(line, at)
            if match is None:
                _refuse(path, number, what, line, at)
            try:
                terms.append(_term(match.group()))
            except (ValueError, OverflowError):
                _refuse(path, number, "escapes that are characters", line, at)
            at = _skip(line, match.end())
        if not _END.match(line, at):
            _refuse(path, number, "'.' behind three terms", line, at)
        yield terms[0], terms[1], terms[2]


def text_of_literal(term: str) -> str:
    """What a literal says.

    >>> text_of_literal('"Leonard Nimoy"@en')
    'Leonard Nimoy'
    """
    return term[1 : term.rindex('"')]


def _refuse(path: Path, number: int, expected: str, line: str, at: int) -> NoReturn:
    got = brief(line[at:], 60) if at < len(line) else "the end of the line"
    fix = "write <subject> <predicate> <object> ."
    reject(f"{path}, line {number}", expected, f"{got} at column {at + 1}", fix)


def _skip(line: str, at: int) -> int:
    match = _BLANKS.match(line, at)
    return at if match is None else match.end()


def _term(text: str) -> str:
    plain = _ESCAPE.sub(_character, text) if "\\" in text else text
    plain.encode()  # a ValueError for halves of characters
    return plain[1:-1] if plain.startswith("<") else plain


def _character(match: re.Match[str]) -> str:
    code = match.group()[1:]
    return chr(int(code[1:], 16)) if code[0] in "uU" else _SIGNS[code]
