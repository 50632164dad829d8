"""How many walks there are, where, and some of them, by products of vectors with the matrices of steps."""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, identity

from .grammar import Sort, Step

Vector = NDArray[np.float64]


class Steps:
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


class Instances:
    """The walks of one sort.

    Args:
        sort: the sort.
        steps: the matrices of the graph.
    """

    def __init__(self, sort: Sort, steps: Steps) -> None:
        self.sort, self.N = sort, steps.N
        self.chains = [[steps(step) for step in sequence] for sequence in sort.sequences]

    @cached_property
    def onward(self) -> list[list[Vector]]:
        """Per sequence, per step and behind the last: how many ways there are from each node to the end."""
        found = []
        for chain in self.chains:
            ways = [np.ones(self.N)]
            for matrix in reversed(chain):
                ways.append(matrix @ ways[-1])
            found.append(ways[::-1])
        return found

    @cached_property
    def starts(self) -> Vector:
        """(N,) how many walks begin at each node."""
        with np.errstate(over="ignore"):
            return np.sum([ways[0] for ways in self.onward], 0)

    @cached_property
    def ends(self) -> Vector:
        """(N,) how many walks end at each node."""
        return self.reached(np.ones(self.N))

    @property
    def count(self) -> float:
        """How many walks there are: exact below 2^53."""
        with np.errstate(over="ignore"):
            return float(self.starts.sum())

    def reached(self, start: Vector) -> Vector:
        """(N,) how many walks end at each node, where `start` says how often each node begins one."""
        total = np.zeros(self.N)
        for chain in self.chains:
            here = start
            for matrix in chain:
                here = matrix.T @ here
            with np.errstate(over="ignore"):
                total += here
        return total

    def pairs(self, most: float) -> tuple[float, bool]:
        """How many pairs of nodes walks join, and whether that is exact; it is where `most` multiply-adds are enough.

        Otherwise it is a bound: no more pairs than walks, nor than starts times ends.
        """
        union = csr_matrix((self.N, self.N), dtype=bool)
        for chain, onward in zip(self.chains, self.onward, strict=True):
            product = identity(self.N, dtype=bool, format="csr")
            for matrix, ways in zip(chain, onward[1:], strict=True):
                degrees = np.diff(matrix.indptr)
                work = float(degrees[product.indices].sum())
                most -= work
                if most < 0:
                    bound = float(np.count_nonzero(self.starts)) * float(np.count_nonzero(self.ends))
                    return min(self.count, bound), False
                product = product @ _pattern(matrix, ways)
            union = union + product
        return float(union.nnz), True

    def samples(self, number: int, random: np.random.Generator) -> list[list[int]]:
        """Some walks, each as likely as every other, none twice, as lists of their nodes."""
        if not 0 < self.count < np.inf:
            return []
        found: dict[tuple[int, ...], None] = {}
        weights = np.array([ways[0].sum() for ways in self.onward]) / self.count
        for _ in range(4 * number):
            k = int(random.choice(len(weights), p=weights / weights.sum()))
            found[self._walk(k, random)] = None
            if len(found) == number:
                break
        return [list(walk) for walk in found]

    def _walk(self, k: int, random: np.random.Generator) -> tuple[int, ...]:
        """A walk of sequence k: each node as likely as there are ways on from it."""
        ways = self.onward[k]
        walk = [_drawn(ways[0], random)]
        for matrix, onward in zip(self.chains[k], ways[1:], strict=True):
            some = slice(matrix.indptr[walk[-1]], matrix.indptr[walk[-1] + 1])
            nodes = matrix.indices[some]
            walk.append(int(nodes[_drawn(matrix.data[some] * onward[nodes], random)]))
        return tuple(walk)


def _pattern(matrix: csr_matrix, ways: Vector) -> csr_matrix:
    """Where a matrix has entries in columns from where a walk goes on."""
    some = matrix.astype(bool)
    some.data = some.data & (ways[some.indices] > 0)
    some.eliminate_zeros()
    return some


def _drawn(weights: Vector, random: np.random.Generator) -> int:
    total = np.cumsum(weights)
    return int(np.searchsorted(total, random.random() * total[-1], side="right"))
