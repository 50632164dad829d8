"""The tables and keys of a configuration file, and checks of their values; lines of files of text."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from ..errors import reject
from .wording import shown, suggestion

KEYS: dict[str, tuple[str, ...] | None] = {
    "graph": ("triples", "hetero", "dataset", "root", "options", "labels"),
    "relations": None,
    "types": None,
    "sorts": None,
    "walks": ("norm", "per", "binary", "memory_limit"),
}
GRAPHS = ("triples", "hetero", "dataset")


class Document:
    """A configuration in TOML with known tables and keys, whose values are checked when they are read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = text_of(path, "TOML")
        try:
            self.tables: dict[str, Any] = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            reject(str(path), "TOML", str(error) or "values inside of values without end", _meant(text, str(error)))
        for name, table in self.tables.items():
            if name not in KEYS:
                reject(str(path), "a known table", f"[{name}]", suggestion(name, KEYS, f"there are {_listed(KEYS)}"))
            if not isinstance(table, dict):
                self.refuse(name, "", f"a table [{name}]", table, f"write [{name}] and its keys below")
            known = KEYS[name]
            for key in table:
                if known is not None and key not in known:
                    fix = suggestion(key, known, f"there are {_listed(known)}")
                    reject(f"{path}: [{name}]", "a known key", repr(key), fix)

    def refuse(self, table: str, key: str, expected: str, got: Any, fix: str) -> NoReturn:
        """Rejects a value."""
        reject(f"{self.path}: [{table}] {key}".rstrip(), expected, got if isinstance(got, str) else _shown(got), fix)

    def table(self, name: str) -> dict[str, Any]:
        """A table; empty if it is not in the file."""
        return self.tables.get(name, {})

    def path_to(self, key: str) -> Path | None:
        """The path under a key of [graph], relative to the folder of the file."""
        value = self.table("graph").get(key)
        return None if value is None else self._path(key, value)

    def paths_to(self, key: str) -> list[Path]:
        """The paths under a key of [graph], which is a path or a list of paths."""
        value = self.table("graph")[key]
        values = value if isinstance(value, list) else [value]
        if not values:
            self.refuse("graph", key, "a path, or a list of paths", "an empty list", "name a file")
        return [self._path(key, v) for v in values]

    def _path(self, key: str, value: Any) -> Path:
        if not isinstance(value, str) or not value or "\0" in value:
            self.refuse("graph", key, "a path", _shown(value), f'write {key} = "file"')
        return self.path.parent / value

    def kind(self) -> str:
        """The key that gives the graph."""
        given = [key for key in GRAPHS if key in self.table("graph")]
        if len(given) != 1:
            got = " and ".join(given) or "none of them"
            self.refuse("graph", "", f"one of {', '.join(GRAPHS)}", got, 'write for example triples = "triples.tsv"')
        for key in ("root", "options"):
            if key in self.table("graph") and given != ["dataset"]:
                self.refuse("graph", key, "it only with dataset", f"it with {given[0]}", "leave it out")
        return given[0]


def _meant(text: str, error: str) -> str:
    """What to write in place of a line that is no TOML."""
    found = re.search(r"at line (\d+)", error)
    if found is None:
        return "correct the line"
    line = text.split("\n")[int(found[1]) - 1].strip()
    key, _, value = (part.strip() for part in line.partition("#")[0].partition("="))
    if line.startswith("[") and "twice" in error:
        return f"write {line} once, with all its keys below"
    if "overwrite" in error:
        return f"write {shown(key)} once"
    if value.lower() in ("true", "false"):
        return f"write {key} = {value.lower()}"
    if value[:1].isalpha() or value[:1] in ("^", "<", "("):
        return f'write {key} = "{value}"'
    return f"correct the line {shown(line)}"


def _shown(value: Any) -> str:
    return shown(value) if isinstance(value, str) else f"{shown(value)} ({type(value).__name__})"


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names))


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
