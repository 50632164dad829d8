"""The relations of a graph by name, and a graph whose nodes have names, too."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

from torch import Tensor
from torch_geometric.data import HeteroData

from ..cache import cached_property
from ..errors import reject
from .wording import shown, suggestion

Ends = tuple[str, str]
IDS = 10**9  # the bound on ids of an open vocabulary
MOST = 10**6  # relations that may be given by their number


class Vocabulary:
    """The relations of a graph: their names, whose positions are the types of its edges, and the types that they join.

    Args:
        names: one name per relation, all different.
        ends: the types of heads and tails of each relation, or None if they are unknown; None if all are unknown.
        aliases: further names for relations; sorts print a relation's first alias.

    >>> films = Vocabulary(["played", "/film/genre"], [("Actor", "Character"), None], {"genre": "/film/genre"})
    >>> films.id("played"), films.id("genre"), films.id("/film/genre"), films.shown(1)
    (0, 1, 1, 'genre')
    >>> films.id("plaid")
    Traceback (most recent call last):
    ...
    ValueError: relations: expected a relation of the graph, got 'plaid'; did you mean 'played'?
    """

    def __init__(
        self, names: Sequence[str], ends: Sequence[Ends | None] | None = None, aliases: Mapping[str, str] | None = None
    ) -> None:
        self.names = _distinct(names)
        self.ends = None if ends is None else _ends(ends, len(self.names))
        self.open = False
        self._ids = {name: i for i, name in enumerate(self.names)}
        self._shown: dict[int, str] = {}
        if not isinstance(aliases, Mapping | None):
            reject("aliases", "a dict from aliases to names", shown(aliases), "such as {'genre': '/film/genre'}")
        for alias, name in (aliases or {}).items():
            self._alias(alias, name)

    def extended(self, aliases: Mapping[str, str], ends: Sequence[Ends | None] | None = None) -> "Vocabulary":
        """The same relations with more aliases, and maybe types."""
        found = copy(self)
        found._ids, found._shown = dict(self._ids), dict(self._shown)
        found.ends = self.ends if ends is None else _ends(ends, len(self))
        for alias, name in aliases.items():
            found._alias(alias, name)
        return found

    def _alias(self, alias: str, name: str) -> None:
        id = self.id(name)
        _check_name(alias)
        if self._ids.setdefault(alias, id) != id:
            reject("relations", "aliases that are no relation's name", repr(alias), "choose another alias")
        self._shown.setdefault(id, alias)

    @classmethod
    def of(cls, relations: Any) -> "Vocabulary":
        """A vocabulary from various sources.

        Args:
            relations: a `Vocabulary`; a sequence of names; a number R > 0, for the names '0' to 'R-1'; a `HeteroData`,
                whose edge types (src, rel, dst) are called src__rel__dst, and rel if that is unique; or None for an
                open vocabulary, of all numbers from '0' on.

        >>> Vocabulary.of(3).names
        ('0', '1', '2')
        >>> import torch
        >>> data, edges = HeteroData(), torch.tensor([[0], [0]])
        >>> data["actor", "played", "character"].edge_index = edges
        >>> data["character", "in", "film"].edge_index = edges
        >>> data["actor", "in", "film"].edge_index = edges
        >>> Vocabulary.of(data).names
        ('played', 'character__in__film', 'actor__in__film')
        """
        if isinstance(relations, Vocabulary):
            return relations
        if relations is None:
            vocabulary = cls(())
            vocabulary.open = True
            return vocabulary
        if isinstance(relations, HeteroData):
            return cls._of_hetero(relations)
        if isinstance(relations, Integral) and not isinstance(relations, bool) and 0 < int(relations) <= MOST:
            return cls([str(i) for i in range(int(relations))])
        if isinstance(relations, Sequence) and not isinstance(relations, str):
            return cls(relations)
        named = isinstance(getattr(relations, "relations", None), Vocabulary)  # a graph of `load_walks`
        fix = "pass its attribute relations" if named else "pass a list of names"
        reject("relations", f"names, a number from 1 to {MOST}, or a HeteroData", shown(relations), fix)

    @classmethod
    def _of_hetero(cls, data: HeteroData) -> "Vocabulary":
        types = data.edge_types
        for kind in types:
            if not isinstance(data[kind].get("edge_index"), Tensor):
                fix = "data.to_homogeneous() does not number it: delete it, or give it an empty edge_index"
                reject("data", f"an edge_index for the edge type {kind}", None, fix)
        long = ["__".join(t) for t in types]
        short = [rel for _, rel, _ in types]
        once = {rel for rel in short if short.count(rel) == 1 and rel not in long}
        names = [rel if rel in once else name for rel, name in zip(short, long, strict=True)]
        vocabulary = cls(names, [(src, dst) for src, _, dst in types])
        for name, other in zip(names, long, strict=True):
            vocabulary._ids.setdefault(other, vocabulary._ids[name])
        return vocabulary

    def __len__(self) -> int:
        return len(self.names)

    def find(self, name: str) -> int | None:
        """The id of a name or alias; None for unknown names."""
        if self.open:
            return int(name) if name.isascii() and name.isdecimal() and len(name) < len(str(IDS)) else None
        return self._ids.get(name)

    def id(self, name: str) -> int:
        """The id of a name or alias; a `ValueError` with the nearest names for unknown ones."""
        _check_name(name)
        found = self.find(name)
        if found is None:
            reject("relations", "a relation of the graph", repr(name), self.suggestion(name))
        return found

    def edge(self, ends: tuple[str, ...]) -> list[int]:
        """The ids of the relations of an edge type: (head type, name, tail type), or (head type, tail type)."""
        if self.ends is None:
            return []
        pairs = [i for i, e in enumerate(self.ends) if e == (ends[0], ends[-1])]
        return pairs if len(ends) == 2 else [i for i in pairs if i in (self.find(ends[1]), self.find("__".join(ends)))]

    def suggestion(self, name: str) -> str:
        """A hint at the names nearest to an unknown one."""
        some = ", ".join(repr(self.shown(i)) for i in range(min(5, len(self)))) + (", ..." if len(self) > 5 else "")
        none = "the graph has no relations"
        none = "pass their names as relations=, or name relations by their ids" if self.open else none
        return suggestion(name, self._ids, f"there are {some}" if some else none)

    def shown(self, id: int) -> str:
        """The name by which a relation is shown: its first alias, or its name."""
        return str(id) if self.open else self._shown.get(id, self.names[id])

    def __repr__(self) -> str:
        return "Vocabulary(any ids)" if self.open else f"Vocabulary({len(self)} relations)"


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    seen = set()
    for name in names:
        _check_name(name)
        if name in seen:
            reject("relations", "names that differ", f"{name!r} twice", "name every relation once")
        seen.add(name)
    return tuple(names)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        reject("relations", "names that are strings, and not empty", shown(name), "name every relation by a string")


def _ends(ends: Sequence[Ends | None], number: int) -> tuple[Ends | None, ...]:
    if len(ends) != number:
        reject("ends", f"one pair of types for each of {number} relations", len(ends), "use None where types are open")
    for pair in ends:
        whole = isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2
        if pair is not None and not (whole and all(isinstance(t, str) for t in pair)):
            reject("ends", "pairs of types (head type, tail type)", shown(pair), "name both types")
    return tuple(None if pair is None else (pair[0], pair[1]) for pair in ends)


@dataclass(frozen=True, eq=False, repr=False)
class NamedGraph:
    r"""A graph with relations, and its names.

    Args:
        edge_index: (2, E) heads and tails.
        edge_type: (E,) relations.
        num_nodes: N.
        entities: names of the nodes, by id; their labels, if there are any.
        identifiers: names of the nodes in the graph's files.
        relations: their names, aliases and types.
        types: of the nodes, each None where it is unknown; None for a graph without types.
    """

    edge_index: Tensor
    edge_type: Tensor
    num_nodes: int
    entities: list[str]
    identifiers: list[str]
    relations: Vocabulary
    types: tuple[str | None, ...] | None = field(default=None, kw_only=True)

    def __repr__(self) -> str:
        about = f"{self.num_nodes} entities, {self.edge_type.numel()} facts, {len(self.relations)} relations"
        return f"{type(self).__name__}({about})"

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.identifiers)}

    @cached_property
    def _labelled(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for i, name in enumerate(self.entities):
            found.setdefault(name, []).append(i)
        return found

    def entity(self, name: str) -> int:
        """The id of the entity with this identifier or name; a `ValueError` if there is none, or more than one."""
        if not isinstance(name, str):
            reject("entity", "the name of an entity", shown(name), "pass a string")
        if name in self._ids:
            return self._ids[name]
        ids = self._labelled.get(name, [])
        if len(ids) > 1:
            some = ", ".join(self.identifiers[i] for i in ids[:4]) + (", ..." if len(ids) > 4 else "")
            reject("entity", "the name of one entity", f"{name!r}, which {len(ids)} have", f"use one of {some}")
        if not ids:
            fix = suggestion(name, [*self._labelled, *self._ids], "take a name from the graph's files")
            reject("entity", "the name of an entity", shown(name), fix)
        return ids[0]
