"""The layers on nodes and edges of several types, on signed and directed edges, and on hyperedges."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch_geometric.backend
import torch_geometric.nn as pyg
from torch import Tensor

from ..convert import convert
from .comparison import Case, over_options
from .data import N, Q, drawn, features, graph

P, R = 6, 5  # a width that has divisors, and the number of relations, of which the last has no edge
COUNTS = {"a": 7, "b": 4, "c": 3}
WIDTHS = {"a": 8, "b": 3, "c": 2}
KINDS = [("a", "to", "b"), ("b", "of", "a"), ("a", "in", "a"), ("b", "on", "a")]  # no edge leads to c
BOTH_WAYS = [{}, {"num_bases": 2}, {"num_blocks": 2}]

# What is added in the making of each layer; all of them are converted.
KNOWLEDGE: dict[str, list[dict[str, Any]]] = {
    **{
        kind: [
            *({**parameter, "aggr": aggr} for parameter in BOTH_WAYS for aggr in ("mean", "add")),
            *({**parameter, "root_weight": False} for parameter in BOTH_WAYS),
            *({**parameter, "bias": False} for parameter in BOTH_WAYS),
            {"is_sorted": True},
            {"flow": "target_to_source"},
        ]
        for kind in ("RGCNConv", "FastRGCNConv")
    },
    "HypergraphConv": [
        {},
        {"bias": False},
        *({"use_attention": True, "heads": 3, "attention_mode": mode} for mode in ("node", "edge")),
        {"use_attention": True, "heads": 2, "concat": False, "negative_slope": 0.4},
        {"use_attention": True, "bias": False},
    ],
    "SignedConv": [
        {"first_aggr": first, **more}
        for first in (True, False)
        for more in ({}, {"bias": False}, {"aggr": "add"}, {"flow": "target_to_source"})
    ],
    "DirGNNConv": [
        {"conv": pyg.GCNConv(P, Q)},
        {"conv": pyg.GCNConv(P, Q), "alpha": 0.2, "root_weight": False},
        {"conv": pyg.SAGEConv(P, Q, root_weight=False), "alpha": 1.0},
        {"conv": pyg.GATConv(P, Q // 2, heads=2, concat=False), "root_weight": False},
        {"conv": pyg.GraphConv(P, Q, aggr="mean"), "alpha": 0.0},
    ],
    "HANConv": [{}, {"heads": 4}, {"heads": 2, "negative_slope": 0.4}],
    "HGTConv": [{}, {"heads": 2}, {"heads": 4}],
}


def knowing(kind: str, options: dict[str, Any], channels: Any = P) -> Any:
    """A PyG layer with random parameters."""
    if kind == "DirGNNConv":
        return drawn(pyg.DirGNNConv(**options))
    if kind in ("HANConv", "HGTConv"):
        return drawn(getattr(pyg, kind)(WIDTHS, WIDTHS["a"], (list(WIDTHS), KINDS), **options))
    count = (R,) if kind.endswith("RGCNConv") else ()
    return drawn(getattr(pyg, kind)(channels, Q, *count, **options))


@contextmanager
def loop_path() -> Iterator[None]:
    """Has RGCNConv loop over relations: with pyg_lib it may else take a mean over the edges of all of them."""
    before = torch_geometric.backend.use_segment_matmul
    torch_geometric.backend.use_segment_matmul = False
    try:
        yield
    finally:
        torch_geometric.backend.use_segment_matmul = before


def typed_graph(M: int = N, targets: int = N) -> tuple[Tensor, Tensor]:
    """Edges of R types, sorted by type; the last type has none, and the last nodes are alone."""
    edge_index = torch.stack([torch.randint(M - 1, (4 * N,)), torch.randint(targets - 1, (4 * N,))])
    edge_index = torch.cat([edge_index, edge_index[:, :3]], 1)
    return edge_index, torch.randint(R - 1, edge_index.shape[1:]).sort().values


def relational_cases(kind: str, options: dict[str, Any]) -> Iterator[Case]:
    """Features of the nodes, of both sides, and nodes without any."""

    def case(channels: Any, leaves: list[Tensor], call: Callable[..., Tensor]) -> Case:
        reference = knowing(kind, options, channels)

        def by_loop(f: Any, *given: Tensor) -> Tensor:
            with loop_path():
                return call(f, *given)

        return Case(convert(reference), reference, leaves, by_loop)

    edges = typed_graph()
    yield case(P, [features(N, P)], lambda f, x: f(x, *edges))
    numbers = torch.randint(N, (11,))
    if options.get("flow") != "target_to_source":  # where PyG mixes up the two sides
        both = typed_graph(7, 4)
        for width in (P, 3):
            yield case((P, width), [features(7, P), features(4, width)], lambda f, x, y: f((x, y), *both))
        if "num_blocks" not in options and kind == "RGCNConv":
            yield case(N, [], lambda f: f((numbers[:7], numbers[7:]), *both))
    if "num_blocks" not in options:
        yield case(N, [], lambda f: f(None, *edges))
        yield case(N, [], lambda f: f(torch.arange(N), *edges))
        if kind == "RGCNConv":  # FastRGCNConv reads other numbers than these
            few = typed_graph(11, 11)
            yield case(N, [], lambda f: f(numbers, *few))


def incidence() -> Tensor:
    """Nodes and hyperedges: one of each alone, and incidences that repeat."""
    found = torch.stack([torch.randint(N - 1, (3 * N,)), torch.randint(6, (3 * N,))])
    return torch.cat([found, found[:, :2]], 1)


def hyper_cases(kind: str, options: dict[str, Any]) -> Iterator[Case]:
    """Without weights, and with weights of 7 hyperedges, the last of which has no node."""
    reference, index = knowing(kind, options), incidence()
    ours, weight = convert(reference), torch.rand(7, dtype=torch.float64) + 0.1
    more = [features(7, P)] if options.get("use_attention") else []
    yield Case(ours, reference, [features(N, P), *more], lambda f, x, z=None: f(x, index, None, z))
    yield Case(ours, reference, [features(N, P), weight, *more], lambda f, x, w, z=None: f(x, index, w, z, 7))


def signed_cases(kind: str, options: dict[str, Any]) -> Iterator[Case]:
    """In a batch too, and from one side to another."""
    reference = knowing(kind, options)
    ours, (pos, _), (neg, _) = convert(reference), graph(), graph()
    width = P if options["first_aggr"] else 2 * P
    for shape in ((N, width), (2, N, width)):
        yield Case(ours, reference, [features(*shape)], lambda f, x: f(x, pos, neg))
    if "flow" not in options:
        pair = [features(N, width), features(N + 2, width)]
        yield Case(ours, reference, pair, lambda f, x, y: f((x, y), pos, neg))


def directed_cases(kind: str, options: dict[str, Any]) -> Iterator[Case]:
    """On a directed graph."""
    reference, (edge_index, _) = knowing(kind, options), graph()
    yield Case(convert(reference), reference, [features(N, P)], lambda f, x: f(x, edge_index))


def typed_edges() -> dict[tuple[str, str, str], Tensor]:
    """Edges of all kinds but for the last nodes of each type, which are alone."""
    return {r: torch.stack([torch.randint(COUNTS[k] - 1, (12,)) for k in (r[0], r[2])]) for r in KINDS}


def typed_cases(kind: str, options: dict[str, Any]) -> Iterator[Case]:
    """Edges of all kinds, and of some; the weights of the kinds, where they are returned."""
    reference, edges = knowing(kind, options), typed_edges()
    ours, leaves = convert(reference), [features(COUNTS[k], WIDTHS[k]) for k in COUNTS]
    for some in (edges, {r: edges[r] for r in KINDS[1:3]}):
        yield Case(ours, reference, leaves, lambda f, *x, some=some: _flat(f(dict(zip(COUNTS, x, strict=True)), some)))
    if kind == "HANConv":
        yield Case(ours, reference, leaves, lambda f, *x: _weights(f, dict(zip(COUNTS, x, strict=True)), edges))


def _flat(outcome: dict[str, Tensor | None]) -> Tensor:
    return torch.cat([y.flatten() for _, y in sorted(outcome.items()) if y is not None])


def _weights(f: Any, x: dict[str, Tensor], edges: Any) -> Tensor:
    y, weights = f(x, edges, return_semantic_attention_weights=True)
    return torch.cat([_flat(y), _flat(weights)])


CASES = {
    "RGCNConv": relational_cases,
    "FastRGCNConv": relational_cases,
    "HypergraphConv": hyper_cases,
    "SignedConv": signed_cases,
    "DirGNNConv": directed_cases,
    "HANConv": typed_cases,
    "HGTConv": typed_cases,
}


def knowledge_cases(kind: str, options: dict[str, Any]) -> Iterator[Case]:
    """A layer and what `convert` makes of it."""
    return CASES[kind](kind, options)


for _name, _kind in {
    "R-GCN": "RGCNConv",
    "R-GCN, fast": "FastRGCNConv",
    "hypergraph": "HypergraphConv",
    "signed": "SignedConv",
    "directed": "DirGNNConv",
    "HAN": "HANConv",
    "HGT": "HGTConv",
}.items():
    over_options(_name, _kind, knowledge_cases, KNOWLEDGE)
