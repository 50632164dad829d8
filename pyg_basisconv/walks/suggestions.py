"""Sorts that are suggested for a relation or for labels in a file, as data and as a table [sorts]."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import reject
from .files import table_of
from .named import NamedGraph
from .suggest import suggest_sorts
from .wording import printed, shown


def suggested(graph: NamedGraph, target: str, without: Sequence[str], **settings: Any) -> dict[str, Any]:
    """The sorts for a target: a relation, or else the path of a file of labels.

    Args:
        graph: in which walks are.
        target: a relation, `^relation` for its heads, or a path.
        without: relations that the sorts do not use.
        settings: of `suggest_sorts`.
    """
    relation = any(graph.relations.find(name) is not None for name in (target, target.removeprefix("^")))
    labels = None if relation else _labels(graph, target)
    hidden = torch.tensor([graph.relations.id(name) for name in without], dtype=torch.long)
    kept = ~torch.isin(graph.edge_type, hidden)
    told = target if labels is None else labels
    found = suggest_sorts(graph.edge_index[:, kept], graph.edge_type[kept], told, graph.relations, **settings)
    sorts = [
        {
            "name": f"suggested_{at}",
            "sort": one.sort.text,
            "gain": one.gain,
            "coverage": one.coverage,
            "confidence": one.confidence,
            "examples": [[graph.entities[node] for node in walk] for walk in one.examples],
        }
        for at, one in enumerate(found, 1)
    ]
    return {"target": target, "sorts": sorts}


def _labels(graph: NamedGraph, path: str) -> Tensor:
    """(N, C) the labels of the entities; an entity may have several."""
    file = Path(path)
    if not file.is_file():
        fix = graph.relations.suggestion(path)
        if file.suffix or file.name != path:
            fix = f"there is no file {file.absolute()}, sought from the current folder, and no such relation: {fix}"
        reject("target", "a relation, or a file of labels", shown(path), fix)
    found, classes = [], dict[str, int]()
    for line, (name, label) in table_of(file, ("entity", "label"), "labels"):
        try:
            entity = graph.entity(name)
        except ValueError as error:
            raise ValueError(f"{path}, line {line}: {error}") from None
        found.append((entity, classes.setdefault(label, len(classes))))
    if not found:
        reject(path, "labels of entities", "an empty file", "write entity<tab>label")
    labels = torch.zeros(graph.num_nodes, len(classes))
    labels[tuple(torch.tensor(found).t())] = 1
    return labels


def _quoted(text: str) -> str:
    """A string of TOML, which escapes one character more than JSON does."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def text_of_suggested(found: Mapping[str, Any]) -> str:
    """A table [sorts] in TOML, with what each sort explains in comments."""
    lines = [f"[sorts] # suggested for {printed(found['target'])}, best first"]
    if not found["sorts"]:
        lines.append("# none: no sort tells more than how frequent each end is")
    for sort in found["sorts"]:
        numbers = ", ".join(f"{name} {sort[name]:.1%}" for name in ("gain", "coverage", "confidence"))
        lines += ["", f"{sort['name']} = {_quoted(sort['sort'])} # {numbers}"]
        lines += [f"# {' - '.join(map(printed, walk))}" for walk in sort["examples"]]
    return "\n".join(lines)
