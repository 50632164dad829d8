"""Counts the walks of a sort, and draws samples of them."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from ..bases import Walks
from ..bases.bound_walks import BoundWalks
from ..cache import cached_property
from .grammar import Sort
from .vocabulary import Vocabulary

PAIRS = 1 << 25  # bytes of a product, at most, to count pairs of nodes
WORK = 1e8  # multiply-adds and visits of nodes of all sequences, at most, for exact counts


class Instances:
    """The walks of one sort along the edges of a graph of N nodes.

    >>> edge_index, edge_type = torch.tensor([[0, 1, 1], [1, 2, 3]]), torch.tensor([0, 1, 1])
    >>> sort, relations = Sort("a.b", ((((0, False),), ((1, False),)),)), Vocabulary(["a", "b"])
    >>> walks = Instances(sort, relations, edge_index, edge_type, 4)
    >>> walks.count, walks.pairs, walks.samples(2)
    (2.0, (2, True), [[0, 1, 2], [0, 1, 3]])
    """

    def __init__(self, sort: Sort, relations: Vocabulary, edge_index: Tensor, edge_type: Tensor, N: int) -> None:
        self.sort, self.relations, self.N = sort, relations, N
        self.edge_index, self.edge_type = edge_index, edge_type

    def _bound(self, memory_limit: int) -> BoundWalks:
        basis = Walks([self.sort], self.relations, memory_limit=memory_limit)
        bound: BoundWalks = basis.bind(self.edge_index, edge_type=self.edge_type, size=self.N, dtype=torch.float64)  # type: ignore[assignment]
        return bound

    @cached_property
    def stepwise(self) -> BoundWalks:
        """The walks, multiplied step by step: products of matrices may overflow, and infinity times zero is NaN."""
        return self._bound(0)

    @cached_property
    def ends(self) -> tuple[Tensor, Tensor]:
        """(N,) the numbers of walks that begin, and that end, at each node."""
        return self.stepwise.ends_of(0)

    @cached_property
    def count(self) -> float:
        """The number of walks; exact below 2^53."""
        return float(self.ends[0].sum())

    def reached(self, node: int) -> Tensor:
        """(N,) the number of walks from a node to each node."""
        start = torch.zeros(self.N, 1, dtype=torch.float64, device=self.edge_index.device)
        start[node] = 1
        return self.stepwise.expand(start)[0, :, 0]

    def between(self, start: int, end: int, most: int) -> list[list[int]]:
        """Walks from a node to a node, as lists of nodes, up to a number of them."""
        found: dict[tuple[int, ...], None] = {}
        for sequence in self.sort.sequences:
            steps, last = self._steps(sequence), torch.zeros(self.N, dtype=torch.float64, device=self.edge_index.device)
            last[end] = 1
            first, *lefts = _completions(steps, last)
            walks = [[start]] if first[start] else []
            for (source, target, _), left in zip(steps, lefts, strict=True):
                walks = [
                    [*walk, node]
                    for walk in walks
                    for node in dict.fromkeys(target[source == walk[-1]].tolist())
                    if left[node]
                ][:most]  # each of them leads to the end
            found.update(dict.fromkeys(map(tuple, walks)))
        return [list(walk) for walk in list(found)[:most]]

    @property
    def gap(self) -> tuple[int, str] | None:
        """Where there is no walk: the step at which they end, from 1 on, in the sequence that leads farthest."""
        farthest: tuple[int, str] | None = None
        for sequence in self.sort.sequences:
            here = torch.ones(self.N, dtype=torch.bool, device=self.edge_index.device)
            for at, (step, (source, target, _)) in enumerate(zip(sequence, self._steps(sequence), strict=True), 1):
                there = torch.zeros_like(here)
                there[target[here[source.long()]].long()] = True
                if not bool(there.any()):
                    if farthest is None or at > farthest[0]:
                        names = "|".join("^" * inverse + self.relations.shown(id) for id, inverse in step)
                        farthest = at, names
                    break
                here = there
            else:
                return None
        return farthest

    def _steps(self, sequence: Any) -> list[Any]:
        """The edges of each step: sources, targets and weights."""
        return [self.stepwise.steps((step, False)) for step in sequence]

    @cached_property
    def _unshared_cost(self) -> int:
        """Multiply-adds per channel of all sequences, without sharing of prefixes."""
        taken = Counter(step for sequence in self.sort.sequences for step in sequence)
        return sum(times * self.stepwise.steps((step, False)).source.numel() for step, times in taken.items())

    @property
    def _affordable(self) -> bool:
        return self._unshared_cost + sum(map(len, self.sort.sequences)) * self.N <= WORK

    @property
    def pairs(self) -> tuple[float, bool]:
        """The number of pairs of nodes that walks join, and whether it is exact.

        Where counting takes too much time or memory, it is a bound: the number of walks, or of starts times ends.
        """
        try:
            if self._affordable:
                return self._bound(PAIRS).to_coo()._nnz(), True
        except ValueError:  # a product is too large
            pass
        starts, ends = (float(part.count_nonzero()) for part in self.ends)
        return min(self.count, starts * ends), False

    @property
    def cost(self) -> tuple[int, bool]:
        """Multiply-adds per channel of the cheaper direction, and whether that is exact or an upper bound."""
        if not self._affordable:
            return self._unshared_cost, False
        bound = self._bound(1 << 30)
        return min(bound.work("expand").entries, bound.work("combine").entries), True

    def samples(self, number: int) -> list[list[int]]:
        """Some distinct walks, as lists of nodes; all walks of a sequence are equally likely."""
        random, found = torch.Generator().manual_seed(1), dict[tuple[int, ...], None]()
        for sequence in torch.randperm(len(self.sort.sequences), generator=random, device="cpu").tolist():
            steps = self._steps(self.sort.sequences[sequence])
            ones = torch.ones(self.N, dtype=torch.float64, device=self.edge_index.device)
            first, *lefts = _completions(steps, ones)
            if 0 < float(first.sum()) < torch.inf:
                for _ in range(4 * number):
                    walk = [_drawn(first, random)]
                    for (source, target, _), left in zip(steps, lefts, strict=True):
                        on = target[source == walk[-1]]
                        walk.append(int(on[_drawn(left[on.long()], random)]))
                    found[tuple(walk)] = None
                    if len(found) == number:
                        return [list(walk) for walk in found]
        return [list(walk) for walk in found]


def _completions(steps: list[Any], last: Tensor) -> list[Tensor]:
    """In how many ways walks go on from each node to an end, (N,) before each step, and after all of them, `last`."""
    found = [last]
    for source, target, _ in reversed(steps):
        found.append(torch.zeros_like(last).index_add(0, source.long(), found[-1][target.long()]))
    return found[::-1]


def _drawn(weights: Tensor, random: torch.Generator) -> int:
    total = weights.cumsum(0)
    drawn = torch.rand(1, generator=random, dtype=torch.float64, device="cpu").to(total.device) * total[-1]
    return int(torch.searchsorted(total, drawn, right=True).clamp(max=len(total) - 1))
