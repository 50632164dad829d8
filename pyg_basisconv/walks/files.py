"""Reads text files, line by line."""

from collections.abc import Iterator
from pathlib import Path

from ..errors import reject
from .wording import shown


def text_of(path: Path, what: str) -> str:
    """The text of a UTF-8 file, with or without a byte order mark; a `ValueError` if it cannot be read."""
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = "no file of this name" if isinstance(error, FileNotFoundError) else getattr(error, "strerror", error)
        reject(str(path), f"a file with {what}", reason, "give the path of a file that can be read")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        reject(f"{path}, line {line}", "text in UTF-8", f"the byte {data[error.start]:#04x}", "save the file in UTF-8")


def table_of(path: Path, columns: tuple[str, ...], what: str) -> Iterator[tuple[int, list[str]]]:
    """The lines of a file of tab-separated values that are not blank: their numbers, from 1 on, and fields, stripped;
    none may be empty.
    """
    lines = (line.rstrip("\r") for line in text_of(path, what).split("\n"))
    for number, line in ((number, line) for number, line in enumerate(lines, 1) if line.strip()):
        fields = [field.strip() for field in line.split("\t")]
        if len(fields) != len(columns) or "" in fields:
            got = shown(line) if len(fields) == len(columns) else f"{len(fields)} in {shown(line)}"
            expected = f"{len(columns)} fields with tabs between them"
            reject(f"{path}, line {number}", expected, got, f"write {'<tab>'.join(columns)}")
        if tuple(field.lower() for field in fields) == columns:
            reject(f"{path}, line {number}", "values", f"a line of headings, {shown(line)}", "delete it")
        yield number, fields
