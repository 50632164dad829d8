"""Relations and walks as dense matrices, (K, M, N) in float64, by plain loops: every walk is enumerated.

Nothing here comes from the library. A sort is a list of sequences of steps, and a step lists the relations that it may
take, each with the direction: `[[[(0, False)], [(1, True)]]]` is "along 0, then against 1". A list with the empty
sequence has the walks that stay where they are.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from tests.oracle import Graph

Step = list[tuple[int, bool]]
Sort = list[list[Step]]
Move = tuple[int, int, int]  # the edge that is taken, from a node, to a node
Walk = tuple[int, int, list[int]]  # from a node, to a node, and the edges that are taken


def moves(g: Graph, step: Step) -> list[Move]:
    """The edges that a step may take, as the step sees them."""
    found = []
    for relation, inverse in step:
        for e, (m, n) in enumerate(g.edges):
            if g.type[e] == relation:
                found.append((e, n, m) if inverse else (e, m, n))
    return found


def over(value: Tensor, total: Tensor) -> Tensor:
    """A ratio; zero where nothing is to be divided by."""
    return value / total if total.detach() else value * 0


def factors(g: Graph, step: Step, norm: str | None) -> list[Tensor]:
    """What each move of a step is worth."""
    taken, w = moves(g, step), g.weights.double()

    def out(node: int) -> Tensor:
        return sum(w[f] for f, m, _ in taken if m == node)

    def into(node: int) -> Tensor:
        return sum(w[f] for f, _, n in taken if n == node)

    if norm == "row":
        return [over(w[e], out(m)) for e, m, _ in taken]
    if norm == "mean":
        return [w[e] / sum(end == n for _, _, end in taken) for e, _, n in taken]
    if norm == "sym":
        return [over(w[e], root(out(m) * into(n))) for e, m, n in taken]
    assert norm is None
    return [w[e] for e, _, _ in taken]


def root(value: Tensor) -> Tensor:
    return value.sqrt() if value.detach() else value * 0


def add(A: Tensor, entries: list[tuple[int, int, Tensor]]) -> Tensor:
    for m, n, value in entries:
        unit = torch.zeros_like(A)
        unit[m, n] = 1
        A = A + value * unit
    return A


def relation(g: Graph, step: Step, norm: str | None = None) -> Tensor:
    """The matrix of one step."""
    turned = step[0][1]
    A = torch.zeros(*((g.N, g.M) if turned else (g.M, g.N)), dtype=torch.float64)
    return add(A, [(m, n, f) for (_, m, n), f in zip(moves(g, step), factors(g, step, norm), strict=True)])


def relations(g: Graph, R: int, norm: str | None = None, inverse: bool = False, self_loop: bool = False) -> Tensor:
    members = [relation(g, [(r, False)], norm) for r in range(R)]
    if inverse:
        members += [relation(g, [(r, True)], norm) for r in range(R)]
    if self_loop:
        members.append(torch.eye(g.N, dtype=torch.float64))
    return torch.stack(members)


def instances(g: Graph, sequence: list[Step]) -> Iterator[Walk]:
    """All walks of a sequence of steps; the positions of their moves in the lists of the steps."""
    lists = [moves(g, step) for step in sequence]

    def follow(start: int, node: int, taken: list[int]) -> Iterator[Walk]:
        if len(taken) == len(lists):
            yield start, node, taken
            return
        for i, (_, m, n) in enumerate(lists[len(taken)]):
            if m == node:
                yield from follow(start, n, [*taken, i])

    for start in range(g.M):
        yield from follow(start, start, [])


def numbers(g: Graph, sort: Sort) -> list[list[int]]:
    """(M, N) how many walks there are."""
    table = [[0] * g.N for _ in range(g.M)]
    for sequence in sort:
        for m, n, _ in instances(g, sequence):
            table[m][n] += 1
    return table


def weighted(g: Graph, sort: Sort, norm: str | None = None) -> Tensor:
    """(M, N) the sum over all walks of the products of what their steps are worth."""
    A = torch.zeros(g.M, g.N, dtype=torch.float64)
    for sequence in sort:
        worth, entries = [factors(g, step, norm) for step in sequence], []
        for m, n, taken in instances(g, sequence):
            value = torch.ones((), dtype=torch.float64)
            for s, i in enumerate(taken):
                value = value * worth[s][i]
            entries.append((m, n, value))
        A = add(A, entries)
    return A


def walk(g: Graph, sort: Sort, norm: str | None = None, per: str = "walk", binary: bool = False) -> Tensor:
    """The matrix of one sort."""
    if per == "step":
        return weighted(g, sort, norm)
    table = numbers(g, sort)
    A = weighted(g, sort)
    if binary:
        table = [[min(count, 1) for count in row] for row in table]
        A = torch.tensor(table, dtype=torch.float64).reshape(g.M, g.N)
    worth = {
        None: lambda m, n: A[m, n],
        "row": lambda m, n: over(A[m, n], A[m].sum()),
        "mean": lambda m, n: A[m, n] / sum(row[n] for row in table),
        "sym": lambda m, n: over(A[m, n], root(A[m].sum() * A[:, n].sum())),
    }[norm]
    there = [(m, n) for m in range(g.M) for n in range(g.N) if table[m][n]]
    return add(torch.zeros(g.M, g.N, dtype=torch.float64), [(m, n, worth(m, n)) for m, n in there])


def walks(g: Graph, sorts: list[Sort], norm: str | None = None, per: str = "walk", binary: bool = False) -> Tensor:
    return torch.stack([walk(g, sort, norm, per, binary) for sort in sorts])


def ends(g: Graph, sort: Sort) -> tuple[list[int], list[int]]:
    """How many walks start, and end, at each node."""
    table = numbers(g, sort)
    return [sum(row) for row in table], [sum(row[n] for row in table) for n in range(g.N)]


def large_numbers(g: Graph, sequence: list[Step]) -> tuple[list[int], list[int]]:
    """The same for one sequence with more walks than can be enumerated: vectors of Python's integers."""

    def spread(vector: list[int], step: Step, back: bool) -> list[int]:
        result = [0] * g.M
        for _, m, n in moves(g, step):
            start, end = (n, m) if back else (m, n)
            result[end] += vector[start]
        return result

    starts = endings = [1] * g.M
    for step in reversed(sequence):
        starts = spread(starts, step, back=True)
    for step in sequence:
        endings = spread(endings, step, back=False)
    return starts, endings
