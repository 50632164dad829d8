"""Reports on the walks of each sort in a graph, and sorts that are suggested, as data and as text."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import reject
from .counting import Instances
from .document import table_of
from .grammar import Sort
from .suggest import suggest_sorts
from .vocabulary import NamedGraph
from .wording import printed, shown

EXACT = 1 << 53
SAMPLES = 3
ENTITIES = 10  # that are shown of those that a sort reaches


def report(graph: NamedGraph, sorts: Mapping[str, Sort]) -> dict[str, Any]:
    """The size of the graph, and the lengths, walks, density, coverage, cost and samples of each sort.

    density is the share of all pairs of nodes that a walk joins; cost is the number of multiply-adds of one application
    to one channel. They are upper bounds if `density_exact` or `cost_exact` is false.
    """
    return {
        "nodes": graph.num_nodes,
        "edges": graph.edge_index.shape[1],
        "relations": len(graph.relations),
        "types": Counter(kind for kind in graph.types or () if kind is not None),
        "sorts": [_sort(graph, name, sort) for name, sort in sorts.items()],
    }


def _instances(graph: NamedGraph, sort: Sort) -> Instances:
    return Instances(sort, graph.relations, graph.edge_index, graph.edge_type, graph.num_nodes)


def _sort(graph: NamedGraph, name: str, sort: Sort) -> dict[str, Any]:
    N, walks = graph.num_nodes, _instances(graph, sort)
    (pairs, all_pairs), (cost, least) = walks.pairs, walks.cost
    starts, ends = (int(part.count_nonzero()) for part in walks.ends)
    return {
        "name": name,
        "sort": sort.text,
        "shortest": sort.lengths[0],
        "longest": sort.lengths[1],
        "instances": whole(walks.count),
        "instances_exact": walks.count < EXACT,
        "density": pairs / max(N * N, 1),
        "density_exact": all_pairs,
        "starts": starts,
        "ends": ends,
        "cost": cost,
        "cost_exact": least,
        "samples": [[graph.entities[i] for i in walk] for walk in walks.samples(SAMPLES)],
        "gap": walks.gap if not walks.count else None,
    }


def followed(graph: NamedGraph, sorts: Mapping[str, Sort], entity: int) -> dict[str, Any]:
    """The entities that the walks of each sort reach from an entity, with the numbers of walks, most first."""
    found = []
    for name, sort in sorts.items():
        counts = _instances(graph, sort).reached(entity)
        nodes = [n for n in counts.argsort(descending=True, stable=True).tolist() if counts[n]]
        reached = [{"entity": graph.entities[n], "walks": whole(float(counts[n]))} for n in nodes]
        found.append({"name": name, "sort": sort.text, "instances": whole(float(counts.sum())), "reached": reached})
    return {"from": graph.entities[entity], "sorts": found}


def joined(graph: NamedGraph, sorts: Mapping[str, Sort], start: int, end: int) -> dict[str, Any]:
    """The walks of each sort from an entity to an entity: how many there are, and some of them by name."""
    found = []
    for name, sort in sorts.items():
        walks = _instances(graph, sort)
        named = [[graph.entities[n] for n in walk] for walk in walks.between(start, end, ENTITIES)]
        count = whole(float(walks.reached(start)[end]))
        found.append({"name": name, "sort": sort.text, "instances": count, "walks": named})
    return {"from": graph.entities[start], "to": graph.entities[end], "sorts": found}


def whole(count: float) -> int | float | None:
    """A count as an integer if it is exact; None if it exceeds floating point."""
    return int(count) if count < EXACT else float(count) if math.isfinite(count) else None


def text_of_report(found: Mapping[str, Any]) -> str:
    """A report as text."""
    parts = [f"{number:,} {printed(name)}" for name, number in found["types"].items()]
    untyped = found["nodes"] - sum(found["types"].values())
    types = ", ".join([*parts, f"{untyped:,} of no type"] if parts and untyped else parts)
    size = f"{found['nodes']:,} entities, {found['edges']:,} facts, {found['relations']:,} relations"
    lines = [size + (f" ({types})" if types else "")]
    for sort in found["sorts"]:
        lines += ["", *_lines(sort, found["nodes"])]
    return "\n".join(lines)


def _lines(sort: Mapping[str, Any], nodes: int) -> list[str]:
    low, high = sort["shortest"], sort["longest"]
    lines = [
        _title(sort),
        f"  length     {low if low == high else f'{low} to {high}'}",
        f"  instances  {_number(sort['instances'])}",
        f"  density    {_at_most(sort['density_exact'])}{100 * sort['density']:.3g} % of all pairs",
        f"  starts     {_share(sort['starts'], nodes)}",
        f"  ends       {_share(sort['ends'], nodes)}",
        f"  cost       {_at_most(sort['cost_exact'])}{sort['cost']:,} multiply-adds per channel",
    ]
    if sort["gap"] is not None:
        lines.append(f"  no walk    they end before step {sort['gap'][0]}, {printed(sort['gap'][1])}")
    for label, walk in zip(["samples", "", ""], sort["samples"], strict=False):
        lines.append(f"  {label:<10} {' - '.join(map(printed, walk))}")
    return lines


def _title(sort: Mapping[str, Any]) -> str:
    name, written = printed(sort["name"]), printed(sort["sort"])
    return name if name == written else f"{name} = {written}"


def _at_most(exact: bool) -> str:
    return "" if exact else "at most "


def _share(number: int, of: int) -> str:
    return f"{number:,} of {of:,} entities ({number / max(of, 1):.1%})"


def _number(count: int | float | None) -> str:
    if count is None:
        return "more than 1e308"
    return f"{count:,}" if isinstance(count, int) else f"about {count:.4g}"


def text_of_followed(found: Mapping[str, Any]) -> str:
    """The first entities that each sort reaches from an entity, as text."""
    lines = [f"from {printed(found['from'])}"]
    for sort in found["sorts"]:
        lines += ["", _title(sort), *_reached(sort["reached"])]
    return "\n".join(lines)


def text_of_joined(found: Mapping[str, Any]) -> str:
    """The walks from an entity to an entity, as text."""
    lines = [f"from {printed(found['from'])} to {printed(found['to'])}"]
    for sort in found["sorts"]:
        shown = [f"  {' - '.join(map(printed, walk))}" for walk in sort["walks"]]
        total = sort["instances"]
        more = "" if total is None or total <= len(shown) else f", of which {len(shown)}"
        count = f"  {_number(total)} walk{'s' * (total != 1)}{more}" if shown else "  no walk"
        lines += ["", _title(sort), count, *shown]
    return "\n".join(lines)


def _reached(reached: Sequence[Mapping[str, Any]]) -> list[str]:
    if not reached:
        return ["  nothing"]
    counts = [_number(r["walks"]) for r in reached[:ENTITIES]]
    width = max(map(len, counts))
    lines = [f"  {count:>{width}}  {printed(r['entity'])}" for count, r in zip(counts, reached, strict=False)]
    return lines + ([f"  and {len(reached) - ENTITIES:,} more"] if len(reached) > ENTITIES else [])


def suggested(graph: NamedGraph, target: str, without: Sequence[str], **settings: Any) -> dict[str, Any]:
    """The sorts for a target: a relation, `^relation` for its heads, or else the path of a file of labels; without some
    relations, which the sorts do not use.
    """
    relation = any(graph.relations.find(name) is not None for name in (target, target.removeprefix("^")))
    labels = None if relation else _labels(graph, target)
    hidden = graph.edge_type.new_tensor([graph.relations.id(name) for name in without])
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
    labels = torch.zeros(graph.num_nodes, len(classes), device="cpu")
    labels[tuple(zip(*found, strict=True))] = 1
    return labels


def text_of_suggested(found: Mapping[str, Any]) -> str:
    """A table [sorts] in TOML, with what each sort explains in comments."""
    lines = [f"[sorts] # suggested for {printed(found['target'])}, best first"]
    if not found["sorts"]:
        lines.append("# none: no sort tells more than how frequent each end is")
    for sort in found["sorts"]:
        numbers = ", ".join(f"{name} {sort[name]:.1%}" for name in ("gain", "coverage", "confidence"))
        written = json.dumps(sort["sort"], ensure_ascii=False).replace("\x7f", "\\u007f")  # unlike JSON
        lines += ["", f"{sort['name']} = {written} # {numbers}"]
        lines += [f"# {' - '.join(map(printed, walk))}" for walk in sort["examples"]]
    return "\n".join(lines)
