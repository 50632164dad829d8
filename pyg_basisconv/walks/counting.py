"""How many walks of a sort there are, where, and some of them."""

from collections import Counter

import torch
from torch import Tensor

from ..bases import Walks
from ..bases.bound_walks import BoundWalks
from ..cache import cached_property
from .grammar import Sort
from .vocabulary import Vocabulary

PAIRS = 1 << 25  # bytes that a product may take to count pairs of nodes
WORK = 1e8  # what all sequences may take if they shared nothing: multiply-adds, and looks at nodes


class Instances:
    """The walks of one sort.

    Args:
        sort: the sort.
        relations: of the graph.
        edge_index: (2, E).
        edge_type: (E,).
        N: number of nodes.

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
        """The walks, step by step: in a product there may be more than a float64 can hold, which zeros would meet."""
        return self._bound(0)

    @cached_property
    def ends(self) -> tuple[Tensor, Tensor]:
        """(N,) how many walks begin at each node, and how many end."""
        return self.stepwise.ends_of(0)

    @cached_property
    def count(self) -> float:
        """How many walks there are: exact below 2^53."""
        return float(self.ends[0].sum())

    def reached(self, node: int) -> Tensor:
        """(N,) how many walks lead from a node to each node."""
        start = torch.zeros(self.N, 1, dtype=torch.float64)
        start[node] = 1
        return self.stepwise.expand(start)[0, :, 0]

    @cached_property
    def _apart(self) -> int:
        """Multiply-adds per channel of all sequences if they shared nothing."""
        taken = Counter(step for sequence in self.sort.sequences for step in sequence)
        return sum(times * self.stepwise.steps((step, False)).source.numel() for step, times in taken.items())

    @property
    def _affordable(self) -> bool:
        return self._apart + sum(map(len, self.sort.sequences)) * self.N <= WORK

    @property
    def pairs(self) -> tuple[float, bool]:
        """How many pairs of nodes walks join, and whether that is exact.

        Where it would take long or much memory it is a bound: no more than walks, nor than starts times ends.
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
        """Multiply-adds per channel of the cheaper direction, and whether that is exact; else what they are at most."""
        if not self._affordable:
            return self._apart, False
        bound = self._bound(1 << 30)
        return min(bound.work("expand").entries, bound.work("combine").entries), True

    def samples(self, number: int) -> list[list[int]]:
        """Some walks, none twice, as lists of their nodes: those of one sequence each as likely as every other."""
        random, found = torch.Generator().manual_seed(1), dict[tuple[int, ...], None]()
        for sequence in torch.randperm(len(self.sort.sequences), generator=random).tolist():
            steps = [self.stepwise.steps((step, False)) for step in self.sort.sequences[sequence]]
            ways = [torch.ones(self.N, dtype=torch.float64)]  # how many lead on from each node, from the last step on
            for source, target, _ in reversed(steps):
                ways.append(torch.zeros_like(ways[0]).index_add(0, source.long(), ways[-1][target.long()]))
            if 0 < float(ways[-1].sum()) < torch.inf:
                for _ in range(4 * number):
                    walk = [_drawn(ways[-1], random)]
                    for (source, target, _), left in zip(steps, ways[-2::-1], strict=True):
                        on = target[source == walk[-1]]
                        walk.append(int(on[_drawn(left[on.long()], random)]))
                    found[tuple(walk)] = None
                    if len(found) == number:
                        return [list(walk) for walk in found]
        return [list(walk) for walk in found]


def _drawn(weights: Tensor, random: torch.Generator) -> int:
    total = weights.cumsum(0)
    drawn = torch.rand(1, generator=random, dtype=torch.float64) * total[-1]
    return int(torch.searchsorted(total, drawn, right=True).clamp(max=len(total) - 1))
