"""What a graph has of its sorts of walks, as data and as text."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..bases import Walks
from .config import Knowledge
from .counting import Instances, StepMatrices
from .grammar import Sort
from .wording import printed

EXACT = 1 << 53
WORK = 5e6
BOUND = 1e8
SAMPLES = 3


def report(knowledge: Knowledge, sorts: Mapping[str, Sort]) -> dict[str, Any]:
    """The size of the graph, and of each sort: its lengths, walks, density, coverage, cost and samples.

    density is the share of all pairs of nodes that a walk joins; cost is the number of multiply-adds that one
    application to one channel takes. They are upper bounds where `density_exact` and `cost_exact` are false.
    """
    steps = _steps(knowledge)
    return {
        "nodes": knowledge.num_nodes,
        "edges": knowledge.edge_index.shape[1],
        "relations": len(knowledge.relations),
        "types": Counter(kind for kind in knowledge.types or () if kind is not None),
        "sorts": [_sort(knowledge, name, sort, steps) for name, sort in sorts.items()],
    }


def _steps(knowledge: Knowledge) -> StepMatrices:
    return StepMatrices(knowledge.edge_index.numpy(), knowledge.edge_type.numpy(), knowledge.num_nodes)


def _sort(knowledge: Knowledge, name: str, sort: Sort, steps: StepMatrices) -> dict[str, Any]:
    N, walks = knowledge.num_nodes, Instances(sort, steps)
    pairs, exact = walks.pairs(WORK)
    cost, least = _cost(knowledge, sort, steps)
    samples = walks.samples(SAMPLES, np.random.default_rng(0))
    return {
        "name": name,
        "sort": sort.text,
        "shortest": sort.lengths[0],
        "longest": sort.lengths[1],
        "instances": whole(walks.count),
        "instances_exact": walks.count < EXACT,
        "density": pairs / max(N * N, 1),
        "density_exact": exact,
        "starts": int(np.count_nonzero(walks.starts)),
        "ends": int(np.count_nonzero(walks.ends)),
        "cost": cost,
        "cost_exact": least,
        "samples": [[knowledge.entities[i] for i in walk] for walk in samples],
    }


def _cost(knowledge: Knowledge, sort: Sort, steps: StepMatrices) -> tuple[int, bool]:
    """Multiply-adds per channel of the cheaper direction, and whether that is exact.

    Where it would take long to find out what sequences share, it is what they cost if they shared nothing.
    """
    taken = Counter(step for sequence in sort.sequences for step in sequence)
    apart = sum(times * int(steps(step).sum()) for step, times in taken.items())
    if apart + taken.total() * knowledge.num_nodes > BOUND:
        return apart, False
    basis = Walks([sort], knowledge.relations)
    bound = basis.bind(knowledge.edge_index, edge_type=knowledge.edge_type, size=knowledge.num_nodes)
    return min(bound.work("expand").entries, bound.work("combine").entries), True


def followed(knowledge: Knowledge, sorts: Mapping[str, Sort], entity: int) -> dict[str, Any]:
    """What the walks of each sort reach from an entity, most walks first, and how many walks that are."""
    steps = _steps(knowledge)
    start = np.zeros(knowledge.num_nodes)
    start[entity] = 1.0
    found = []
    for name, sort in sorts.items():
        counts = Instances(sort, steps).reached(start)
        nodes = sorted(counts.nonzero()[0].tolist(), key=lambda n: (-counts[n], n))
        reached = [{"entity": knowledge.entities[n], "walks": whole(counts[n])} for n in nodes]
        found.append({"name": name, "sort": sort.text, "instances": whole(counts.sum()), "reached": reached})
    return {"from": knowledge.entities[entity], "sorts": found}


def whole(count: float) -> int | float | None:
    """A count as an integer where it is exact, None where it is beyond floating point."""
    return int(count) if count < EXACT else float(count) if np.isfinite(count) else None


def text_of_report(found: Mapping[str, Any]) -> str:
    """A report for reading."""
    types = ", ".join(f"{number:,} {printed(name)}" for name, number in found["types"].items())
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


def text_of_followed(found: Mapping[str, Any], most: int) -> str:
    """What is reached from an entity, for reading; of each sort the `most` first."""
    lines = [f"from {printed(found['from'])}"]
    for sort in found["sorts"]:
        lines += ["", _title(sort), *_reached(sort["reached"], most)]
    return "\n".join(lines)


def _reached(reached: Sequence[Mapping[str, Any]], most: int) -> list[str]:
    if not reached:
        return ["  nothing"]
    counts = [_number(r["walks"]) for r in reached[:most]]
    width = max(map(len, counts))
    lines = [f"  {count:>{width}}  {printed(r['entity'])}" for count, r in zip(counts, reached, strict=False)]
    return lines + ([f"  and {len(reached) - most:,} more"] if len(reached) > most else [])
