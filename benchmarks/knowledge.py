"""A knowledge graph, FB15k-237 if BASISCONV_DATA has it, and reference counts of its walks."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from .data import Missing
from .result import Bench

# The relations of the walks; the names in the files are long.
SHORT = {
    "company": "/film/film/production_companies",
    "country": "/film/film/country",
    "directed": "/film/director/film",
    "distributed": "/film/film_distributor/films_distributed./film/film_film_distributor_relationship/film",
    "language": "/film/film/language",
    "location": "/film/film/featured_film_locations",
    "music": "/film/film/music",
    "nationality": "/people/person/nationality",
    "nominated": "/award/award_category/nominees./award/award_nomination/nominated_for",
    "nominee": "/award/award_nominee/award_nominations./award/award_nomination/award",
    "played": "/film/actor/film./film/performance/film",
    "prequel": "/film/film/prequel",
    "producer": "/film/film/produced_by",
    "subject": "/film/film_subject/films",
    "won": "/award/award_winning_work/awards_won./award/award_honor/award",
    "writer": "/film/film/written_by",
}


@dataclass(eq=False)
class Facts:
    """edge_index: (2, E); edge_type: (E,) positions in `relations`, short names where there are."""

    N: int
    edge_index: Tensor
    edge_type: Tensor
    relations: list[str]
    real: bool = False

    @property
    def E(self) -> int:
        return self.edge_type.numel()

    def edges(self, step: str) -> tuple[Tensor, Tensor]:
        """The edges of a step of a walk, which is a relation, or ^ and a relation."""
        found = self._by_type[self.relations.index(step.removeprefix("^"))]
        source, target = found.flip(0) if step.startswith("^") else found
        return source, target

    @cached_property
    def _by_type(self) -> Sequence[Tensor]:
        order = self.edge_type.argsort(stable=True)
        counts = torch.bincount(self.edge_type, minlength=len(self.relations))
        return self.edge_index[:, order].split(counts.tolist(), 1)

    def walk(self, sort: str, x: Tensor) -> Tensor:
        """(N, P) -> (N, P) in float64: the sums over all walks of a sort."""
        x = x.double()
        for step in sort.split("."):
            source, target = self.edges(step)
            x = torch.zeros_like(x).index_add_(0, target, x[source])
        return x

    def count(self, sort: str) -> float:
        """The walks of a sort."""
        return float(self.walk(sort, torch.ones(self.N, 1)).sum())

    def with_inverses(self) -> tuple[Tensor, Tensor]:
        """(2, 2 E) and (2 E,): all edges and their inverses, which have types of their own."""
        edge_index = torch.cat([self.edge_index, self.edge_index.flip(0)], 1)
        return edge_index, torch.cat([self.edge_type, self.edge_type + len(self.relations)])

    def __str__(self) -> str:
        kind = "the dataset" if self.real else "random"
        return f"knowledge graph: {kind}, {self.N:,} nodes, {self.E:,} edges, {len(self.relations)} relations"


def fb15k() -> Facts:
    """FB15k-237: the edges of its training set and the nodes of all sets, in the order of the files."""
    raw = Path(os.environ.get("BASISCONV_DATA", ""), "FB15k-237", "raw")
    files = [raw / f"{part}.txt" for part in ("train", "valid", "test")]
    if not all(file.is_file() for file in files):
        raise Missing("the folder in BASISCONV_DATA has no FB15k-237/raw/train.txt, valid.txt and test.txt")
    nodes: dict[str, int] = {}
    relations: dict[str, int] = {}

    def ids(line: str) -> tuple[int, int, int]:
        source, relation, target = line.split("\t")
        ends = [nodes.setdefault(name, len(nodes)) for name in (source, target)]
        return ends[0], relations.setdefault(relation, len(relations)), ends[1]

    triples, *_ = [[ids(line) for line in file.read_text(encoding="utf-8").splitlines()] for file in files]
    source, kind, target = torch.tensor(triples).t().contiguous()
    names = {long: short for short, long in SHORT.items()}
    return Facts(len(nodes), torch.stack([source, target]), kind, [names.get(r, r) for r in relations], real=True)


def random_facts(N: int, R: int, per_relation: int, seed: int = 0) -> Facts:
    """Random edges, equally many of each relation; the first relations have the names above."""
    generator = torch.Generator().manual_seed(seed)
    E = R * per_relation
    names = [*SHORT, *(f"relation {r}" for r in range(len(SHORT), R))][:R]
    order = torch.randperm(E, generator=generator)
    edge_index = torch.randint(N, (2, E), generator=generator)
    return Facts(N, edge_index, torch.arange(R).repeat_interleave(per_relation)[order], names)


def facts(bench: Bench) -> Facts:
    """The knowledge graph of all rows; a small random one if quick."""
    found: Facts = bench.keep("knowledge", lambda: random_facts(300, 20, 90) if bench.quick else fb15k())
    return found
