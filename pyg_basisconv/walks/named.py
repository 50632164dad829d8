"""A graph whose nodes and relations have names."""

from dataclasses import dataclass, field

from torch import Tensor

from ..cache import cached_property
from ..errors import reject
from .nearest import suggestion
from .vocabulary import Vocabulary
from .wording import shown


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
