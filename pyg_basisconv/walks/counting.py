"""How many walks there are, where, and some of them, by products of vectors with the matrices of steps."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, identity

from ..cache import cached_property
from .grammar import Sort, Step

Vector = NDArray[np.float64]


class StepMatrices:
    """The matrices of steps, (N, N), made when they are asked for.

    Args:
        edge_index: (2, E).
        edge_type: (E,).
        N: number of nodes.
    """

    def __init__(self, edge_index: NDArray[np.int64], edge_type: NDArray[np.int64], N: int) -> None:
        order = np.argsort(edge_type, kind="stable")
        self.edges, self.N = edge_index[:, order], N
        self._starts = np.searchsorted(edge_type[order], np.arange(int(edge_type.max(initial=-1)) + 2))
        self._made: dict[Step, csr_matrix] = {}

    def __call__(self, step: Step) -> csr_matrix:
        """The number of ways from node to node, float64."""
        if step not in self._made:
            parts = [self._ends(id)[:: -1 if inverse else 1] for id, inverse in step]
            rows, columns = np.concatenate(parts, 1)
            self._made[step] = csr_matrix((np.ones(len(rows)), (rows, columns)), (self.N, self.N))
        return self._made[step]

    def _ends(self, relation: int) -> NDArray[np.int64]:
        if relation >= len(self._starts) - 1:
            return self.edges[:, :0]
        return self.edges[:, self._starts[relation] : self._starts[relation + 1]]


class State(NamedTuple):
    """What may follow within a sort.

    ends: how many sequences are over; steps: the next ones, and the number of the state behind each.
    """

    ends: int
    steps: tuple[tuple[Step, int], ...]


def states_of(sequences: Iterable[tuple[Step, ...]]) -> list[State]:
    """The states of a sort: one for all beginnings of sequences with the same continuations.

    What sequences have in common, at their beginning or their end, is there once. States come behind those that follow
    them; the last is that in which walks begin.

    >>> states_of([("a",), ("a", "b"), ("c", "b")])  # steps may be called anything
    [State(ends=1, steps=()),
     State(ends=0, steps=(('b', 0),)),
     State(ends=1, steps=(('b', 0),)),
     State(ends=0, steps=(('a', 2), ('c', 1)))]
    """
    steps: list[dict[Step, int]] = [{}]
    ends = Counter[int]()
    for sequence in sequences:
        at = 0
        for step in sequence:
            if step not in steps[at]:
                steps[at][step] = len(steps)
                steps.append({})
            at = steps[at][step]
        ends[at] += 1
    numbers: dict[State, int] = {}
    of: dict[int, int] = {}
    for at in reversed(range(len(steps))):
        state = State(ends[at], tuple(sorted((step, of[behind]) for step, behind in steps[at].items())))
        of[at] = numbers.setdefault(state, len(numbers))
    return list(numbers)


class Instances:
    """The walks of one sort.

    Args:
        sort: the sort.
        steps: the matrices of the graph.
    """

    def __init__(self, sort: Sort, steps: StepMatrices) -> None:
        self.steps, self.N = steps, steps.N
        self.states = states_of(sort.sequences)

    @cached_property
    def onward(self) -> list[Vector]:
        """Per state: how many ways there are from each node to an end."""
        found: list[Vector] = []
        for ends, steps in self.states:
            ways = np.full(self.N, float(ends))
            with np.errstate(over="ignore"):
                for step, behind in steps:
                    ways += self.steps(step) @ found[behind]
            # Long sorts die out or overflow: then all their states have one vector.
            found.append(found[-1] if found and np.array_equal(ways, found[-1]) else ways)
        return found

    @property
    def starts(self) -> Vector:
        """(N,) how many walks begin at each node."""
        return self.onward[-1]

    @cached_property
    def ends(self) -> Vector:
        """(N,) how many walks end at each node."""
        return self.reached(np.ones(self.N))

    @cached_property
    def count(self) -> float:
        """How many walks there are: exact below 2^53."""
        with np.errstate(over="ignore"):
            return float(self.starts.sum())

    def reached(self, start: Vector) -> Vector:
        """(N,) how many walks end at each node, where `start` says how often each node begins one."""
        total = np.zeros(self.N)
        here = {len(self.states) - 1: start}
        with np.errstate(over="ignore"):
            for number, (ends, steps) in self._from_the_start():
                ways = here.pop(number)
                if ends:  # 0 times infinity is none
                    total = total + ends * ways
                for step, behind in steps:
                    here[behind] = here.get(behind, 0.0) + self.steps(step).T @ ways
        return total

    def pairs(self, most: float) -> tuple[float, bool]:
        """How many pairs of nodes walks join, and whether that is exact; it is where `most` operations are enough.

        Otherwise it is a bound: no more pairs than walks, nor than starts times ends. It is an operation to look at a
        node or at an entry of a matrix, and so is a multiply-add.
        """
        union = none = csr_matrix((self.N, self.N), dtype=bool)
        here = {len(self.states) - 1: identity(self.N, dtype=bool, format="csr")}
        for number, (ends, steps) in self._from_the_start():
            product = here.pop(number)
            if ends:
                union = union + product
                most -= self.N + union.nnz
            for step, behind in steps:
                matrix = self.steps(step)
                most -= self.N + matrix.nnz + float(np.diff(matrix.indptr)[product.indices].sum())
                if most < 0:
                    bound = float(np.count_nonzero(self.starts)) * float(np.count_nonzero(self.ends))
                    return min(self.count, bound), False
                here[behind] = here.get(behind, none) + product @ _pattern(matrix, self.onward[behind])
        return float(union.nnz), True

    def _from_the_start(self) -> Iterable[tuple[int, State]]:
        """The states with their numbers, each before those that follow it."""
        return reversed(list(enumerate(self.states)))

    def samples(self, number: int, random: np.random.Generator) -> list[list[int]]:
        """Some walks, each as likely as every other, none twice, as lists of their nodes."""
        if not 0 < self.count < np.inf:
            return []
        found: dict[tuple[int, ...], None] = {}
        for _ in range(4 * number):
            found[self._walk(random)] = None
            if len(found) == number:
                break
        return [list(walk) for walk in found]

    def _walk(self, random: np.random.Generator) -> tuple[int, ...]:
        """A walk: each node as likely as there are ways on from it."""
        walk = [_drawn(self.starts, random)]
        place = self._next(len(self.states) - 1, walk[0], random)
        while place is not None:
            walk.append(place[1])
            place = self._next(*place, random)
        return tuple(walk)

    def _next(self, number: int, node: int, random: np.random.Generator) -> tuple[int, int] | None:
        """The state and the node that come next; None where the walk is over."""
        ends, steps = self.states[number]
        places: list[tuple[int, int] | None] = [None]
        ways = [np.array([float(ends)])]
        for step, behind in steps:
            matrix = self.steps(step)
            some = slice(matrix.indptr[node], matrix.indptr[node + 1])
            nodes = matrix.indices[some]
            places += [(behind, int(n)) for n in nodes]
            ways.append(matrix.data[some] * self.onward[behind][nodes])
        return places[_drawn(np.concatenate(ways), random)]


def _pattern(matrix: csr_matrix, ways: Vector) -> csr_matrix:
    """Where a matrix has entries in columns from where a walk goes on."""
    some = matrix.astype(bool)
    some.data = some.data & (ways[some.indices] > 0)
    some.eliminate_zeros()
    return some


def _drawn(weights: Vector, random: np.random.Generator) -> int:
    total = np.cumsum(weights)
    return int(np.searchsorted(total, random.random() * total[-1], side="right"))
