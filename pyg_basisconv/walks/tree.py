"""A sort of walks as it is written: relations, chains, alternatives and repeats."""

import unicodedata
from dataclasses import dataclass

from .vocabulary import Vocabulary


@dataclass(frozen=True)
class Name:
    """A step along a relation, or against it; the column says where it stands."""

    id: int
    inverse: bool
    column: int | None


@dataclass(frozen=True)
class Concatenation:
    """One part after the other."""

    parts: tuple["Node", ...]


@dataclass(frozen=True)
class Choice:
    """Any one of the parts."""

    parts: tuple["Node", ...]


@dataclass(frozen=True)
class Repetition:
    """A part `least` to `most` times."""

    part: "Node"
    least: int
    most: int
    column: int


Node = Name | Concatenation | Choice | Repetition


def join(kind: type[Concatenation] | type[Choice], parts: list[Node]) -> Node:
    """A chain or a choice; of one part, that part; those inside one of the same kind are opened."""
    flat = [
        p
        for part in parts
        for p in (part.parts if isinstance(part, Concatenation | Choice) and type(part) is kind else [part])
    ]
    return flat[0] if len(flat) == 1 else kind(tuple(flat))


def turned(node: Node) -> Node:
    """The same walks from their ends to their starts."""
    match node:
        case Name(id, inverse, column):
            return Name(id, not inverse, column)
        case Concatenation(parts):
            return Concatenation(tuple(turned(p) for p in reversed(parts)))
        case Choice(parts):
            return Choice(tuple(turned(p) for p in parts))
        case Repetition(part, least, most, column):
            return Repetition(turned(part), least, most, column)


def written(node: Node, vocabulary: Vocabulary) -> str:
    """The canonical way to write it."""
    match node:
        case Name(id, inverse, _):
            return "^" * inverse + quoted(vocabulary.shown(id))
        case Concatenation(parts):
            return ".".join(written(p, vocabulary) for p in parts)
        case Choice(parts):
            return "(" + "|".join(written(p, vocabulary) for p in parts) + ")"
        case Repetition(part, least, most, _):
            times = str(least) if least == most else f"{least},{most}"
            text = written(part, vocabulary)
            return (f"({text})" if isinstance(part, Concatenation | Repetition) else text) + "{" + times + "}"


def quoted(name: str) -> str:
    """A name as a sort has it: in <> where it is not all letters, digits, _, - and :.

    >>> quoted("characterIn"), quoted("/film/film/genre"), quoted("a->b")
    ('characterIn', '</film/film/genre>', '<a->>b>')
    """
    return name if all(map(plain, name)) else "<" + name.replace(">", ">>") + ">"


def plain(character: str) -> bool:
    """Whether a name may have this character outside of <>: letters of any script with their marks, digits, _, -, :."""
    return character.isalnum() or character in "_-:" or unicodedata.category(character).startswith("M")
