"""Graphs and sorts of walks from a configuration file."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..bases import Walks
from ..errors import reject
from .document import Document, table_of
from .grammar import Sort, parse
from .sources import read
from .vocabulary import Ends, NamedGraph, Vocabulary
from .wording import shown

_NORMS = ("none", "mean", "row", "sym")


@dataclass(frozen=True, eq=False, repr=False)
class Knowledge(NamedGraph):
    r"""A graph with relations, its names, and the basis of its walks.

    Args:
        edge_index: (2, E) heads and tails.
        edge_type: (E,) relations.
        num_nodes: N.
        entities: names of the nodes, by id; their labels, if there are any.
        identifiers: names of the nodes in the graph's files.
        relations: their names, aliases and types, a `walks.Vocabulary`.
        types: of the nodes, each None where it is unknown; None for a graph without types.
        basis: of the sorts, a `bases.Walks`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "walks.toml")
    ...     _ = Path(folder, "facts.tsv").write_text("Nimoy\tplayed\tSpock\nSpock\tin\tStar Trek\n")
    ...     _ = path.write_text("[graph]\ntriples = 'facts.tsv'\n[sorts]\nwork = 'played.in'\n")
    ...     knowledge = load_walks(path)
    >>> knowledge
    Knowledge(3 entities, 2 facts, 2 relations)
    >>> knowledge.num_nodes, knowledge.entity("Spock"), knowledge.basis.names
    (3, 1, ('work',))
    """

    basis: Walks


def load_walks(path: str | os.PathLike[str]) -> Knowledge:
    r"""Reads a configuration of walks: a graph, names, and sorts.

    The file is TOML, and nothing in it is executed. Its tables, all but [graph] and [sorts] optional:

    - [graph] has one of: `triples`, the path of a file, or a list of paths, with a line `head<tab>relation<tab>tail`
      for each fact; `hetero`, the path of a `HeteroData` saved by `torch.save`, whose node stores may have `names`;
      `dataset`, the name of a class in `torch_geometric.datasets`, with its `root` and a table `options`. Paths start
      at the file's folder. `labels` is the path of a file with lines `identifier<tab>name`.
    - [relations]: `short = "long name"`; sorts may use both.
    - [types]: `relation = ["type of its heads", "type of its tails"]`. Then entities of these relations have
      types: one each. The steps of sorts must join. A graph from a `HeteroData` has its types already.
    - [sorts]: `name = "played.characterIn"`, or a list of steps; see `pyg_basisconv.walks.parse`.
    - [walks]: `norm` ("none", "row", "mean", "sym"), `per`, `binary` and `memory_limit` of `bases.Walks`.

    Entities and relations are numbered in the order of the files; a repeated triple counts once.

    Raises:
        ValueError: for every mistake in the files, with the file, the place in it, and what to do.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = Path(folder.name, "facts.tsv").write_text("Nimoy\tplayed\tSpock\nSpock\tcharacter in\tStar Trek\n")
    >>> text = '[graph]\ntriples = "facts.tsv"\n[relations]\nin = "character in"\n[sorts]\nworks = "played.in"'
    >>> _ = Path(folder.name, "walks.toml").write_text(text)
    >>> knowledge = load_walks(Path(folder.name, "walks.toml"))
    >>> knowledge.entities, knowledge.basis.names
    (['Nimoy', 'Spock', 'Star Trek'], ('works',))
    >>> folder.cleanup()
    """
    if not isinstance(path, str | os.PathLike):
        reject("path", "the path of a TOML file", type(path).__name__, 'such as "walks.toml"')
    document = Document(Path(path))
    if not document.table("sorts"):
        document.refuse("sorts", "", "at least one sort", "none", 'write name = "relation.relation" below [sorts]')
    graph = graph_of(document)
    sorts = {name: _sort(document, name, sort, graph.relations) for name, sort in document.table("sorts").items()}
    return Knowledge(**vars(graph), basis=_basis(document, sorts, graph.relations))


def graph_of(document: Document) -> NamedGraph:
    """The graph of a configuration, which may have no sorts."""
    graph = read(document)
    words = _vocabulary(document, graph.relations)
    types = graph.types if graph.relations.ends is not None else _types(document, graph, words)
    return replace(graph, entities=_labels(document, graph), relations=words, types=types)


def _basis(document: Document, sorts: dict[str, Sort], vocabulary: Vocabulary) -> Walks:
    options = dict(document.table("walks"))
    norm = options.get("norm", "none")
    if norm not in _NORMS:
        document.refuse("walks", "norm", "'none', 'mean', 'row' or 'sym'", shown(norm), "choose one")
    options["norm"] = None if norm == "none" else norm
    try:
        return Walks(sorts, vocabulary, **options)
    except ValueError as error:
        raise ValueError(f"{document.path}: [walks] {error}") from None


def _sort(document: Document, name: str, sort: object, vocabulary: Vocabulary) -> Sort:
    if not isinstance(sort, str | list):
        document.refuse("sorts", name, "a string or a list of steps", sort, f'write {name} = "relation.relation"')
    try:
        return parse(sort, vocabulary)
    except ValueError as error:
        raise ValueError(f"{document.path}: [sorts] {name}: {str(error).removeprefix('sorts: ')}") from None


def _vocabulary(document: Document, plain: Vocabulary) -> Vocabulary:
    """The relations with the aliases of [relations] and the types of [types]."""
    aliases = document.table("relations")
    for alias, name in aliases.items():
        if not isinstance(name, str) or not name:
            got = "''" if name == "" else name
            document.refuse("relations", alias, "the name of a relation", got, f'write {alias} = "..."')
        if plain.find(name) is None:
            document.refuse("relations", alias, "a relation of the graph", shown(name), plain.suggestion(name))
        if not alias or plain.find(alias) not in (None, plain.find(name)):
            expected = "an alias that is no relation" if alias else "an alias that is not empty"
            document.refuse("relations", alias, expected, repr(alias), "choose another alias")
    found = plain.extended(aliases)
    if "types" not in document.tables:
        return found
    if plain.ends is not None:
        document.refuse("types", "", "no types with a HeteroData, which has its own", "some", "leave out [types]")
    return found.extended({}, _ends(document, found))


def _ends(document: Document, words: Vocabulary) -> list[Ends | None]:
    ends: list[Ends | None] = [None] * len(words)
    for name, pair in document.table("types").items():
        relation = words.find(name)
        if relation is None:
            document.refuse("types", name, "a relation of the graph", shown(name), words.suggestion(name))
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(t, str) and t for t in pair):
            expected = "the types of its heads and of its tails"
            document.refuse("types", name, expected, pair, f'write {name} = ["type of heads", "type of tails"]')
        if ends[relation] is not None:
            document.refuse("types", name, "the types of each relation once", f"{name!r} again", "leave one out")
        ends[relation] = (pair[0], pair[1])
    return ends


def _types(document: Document, graph: NamedGraph, words: Vocabulary) -> tuple[str | None, ...] | None:
    """The types of the entities, by their relations; rejects an entity with two types."""
    if words.ends is None:
        return None
    found: dict[int, tuple[str, int]] = {}  # the type of an entity, and the relation that says so
    for *ends, relation in torch.cat([graph.edge_index, graph.edge_type.unsqueeze(0)]).t().tolist():
        for entity, kind in zip(ends, words.ends[relation] or (), strict=False):
            known, by = found.setdefault(entity, (kind, relation))
            if known != kind:
                roles = f"{known} by {words.shown(by)!r} and as {kind} by {words.shown(relation)!r}"
                fix = "write the type of the heads first, then that of the tails; "
                fix += "or tell two entities apart by their names, or leave a relation out of [types]"
                got = f"{graph.identifiers[entity]!r} as {roles}"
                document.refuse("types", "", "one type for each entity", got, fix)
    return tuple(found[entity][0] if entity in found else None for entity in range(len(graph.identifiers)))


def _labels(document: Document, graph: NamedGraph) -> list[str]:
    path = document.path_to("labels")
    if path is None:
        return graph.entities
    labels: dict[str, str] = {}
    for line, (identifier, label) in table_of(path, ("identifier", "name"), "labels"):
        if labels.setdefault(identifier, label) != label:
            got = f"{label!r} after {labels[identifier]!r} for {identifier!r}"
            reject(f"{path}, line {line}", "one name for each identifier", got, "leave one out")
    return [labels.get(i, name) for i, name in zip(graph.identifiers, graph.entities, strict=True)]
