"""Rows of the memory of a process over many graphs, and many sizes of one graph, which must stay bounded."""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from pyg_basisconv import BasisConv, bases

from .resident import held, in_a_process
from .result import Bench, Result, Target

WIDTH = 16
GRAPHS, NODES, EDGES = 5_000, 640, 1_280
SIZES, MANY_NODES, MANY_EDGES = 300, 20_000, 200_000
WARM = 0.1  # of the calls come before the measurement, so that caches are full by then


@dataclass(frozen=True)
class GrowthRow:
    """Runs in a process of its own, and measures its growth."""

    kind: str
    name: str
    count: int
    edges: int
    target: Target
    devices: tuple[str, ...] = ("cpu",)

    def run(self, bench: Bench) -> Result:
        found = in_a_process("benchmarks.growth", self.kind, self.count // 50 if bench.quick else self.count)
        about = {"work": self.name, "E": self.edges, "P": WIDTH, "Q": WIDTH, "gradients": "Theta"}
        return Result(target=self.target, **about, **found)


Call = Callable[[int], object]  # the i-th


def passing(conv: BasisConv, count: int) -> Call:
    """On graphs that are freed after use, as batches are."""
    x = torch.randn(NODES, WIDTH)
    return lambda i: step(conv, x, torch.randint(NODES, (2, EDGES)))


def staying(conv: BasisConv, count: int) -> Call:
    """On graphs that stay in memory, as in a data set."""
    x, graphs = torch.randn(NODES, WIDTH), [torch.randint(NODES, (2, EDGES)) for _ in range(count)]
    return lambda i: step(conv, x, graphs[i])


def growing(conv: BasisConv, count: int) -> Call:
    """On one graph, with another number of nodes in each call."""
    x, edge_index = torch.randn(MANY_NODES + count, WIDTH), torch.randint(MANY_NODES, (2, MANY_EDGES))
    return lambda i: step(conv, x[: MANY_NODES + i], edge_index, size=(MANY_NODES + i, MANY_NODES + i))


def step(conv: BasisConv, x: Tensor, edge_index: Tensor, **kwargs: Any) -> None:
    """Forward and backward, to include what only gradients need."""
    torch.autograd.grad(conv(x, edge_index, **kwargs).sum(), list(conv.parameters()))


KINDS: dict[str, Callable[[BasisConv, int], Call]] = {"passing": passing, "staying": staying, "growing": growing}


def measured(kind: str, count: int) -> dict[str, Any]:
    """The growth of the process and the seconds per call, after the first tenth of the calls."""
    torch.manual_seed(0)
    call = KINDS[kind](BasisConv(WIDTH, WIDTH, bases.Adjacency("sym", self_loops=True)), count)
    first = max(1, round(WARM * count))
    for i in range(first):
        call(i)
    before, most, start = held(), 0, perf_counter()
    for i in range(first, count):
        call(i)
        most = max(most, held() - before)
    return {"ours_seconds": (perf_counter() - start) / (count - first), "ours_memory": most}


def growth_rows() -> list[GrowthRow]:
    graphs, sizes = (
        f"no growth: {GRAPHS:,} graphs of {EDGES:,} edges",
        f"no growth: {SIZES} sizes of {MANY_EDGES:,} edges",
    )
    return [
        GrowthRow("passing", f"{graphs}, each gone when it was used", GRAPHS, EDGES, Target(peak=32_000_000)),
        GrowthRow("staying", f"{graphs}, all kept by the caller", GRAPHS, EDGES, Target(peak=32_000_000)),
        GrowthRow("growing", sizes, SIZES, MANY_EDGES, Target(peak=256_000_000)),
    ]


if __name__ == "__main__":
    p = argparse.ArgumentParser("python -m benchmarks.growth", description=__doc__)
    p.add_argument("kind", choices=KINDS)
    p.add_argument("count", type=int)
    args = p.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(measured(args.kind, args.count)))
