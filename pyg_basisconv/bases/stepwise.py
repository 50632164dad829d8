"""Walks in the portable path, which may not read indices: step by step, on all nodes."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ..basis import BoundBasis, Direction, EdgeList, Work
from ..edge_set import EdgeSet
from ..errors import reject
from ..graph import Graph
from ..portable import refuse
from ..typed_edges import TypedEdges, members
from ..walks import Step
from .adjacency import inverse_sqrt, reciprocal
from .relations import Norm, normalised

Sequences = Sequence[Sequence[Step]]


class Stepwise(BoundBasis):
    """Each member is a sum of products of the matrices of steps; for the portable path, see `BoundWalks`.

    Args:
        graph: the graph.
        sorts: the sequences of steps of each member.
        norm: of the walks.
        each: of each step.
        turned: whether all are transposed.
    """

    def __init__(self, graph: Graph, sorts: Sequence[Sequences], norm: Norm, each: Norm, turned: bool = False) -> None:
        self.graph, self.sorts, self.norm, self.each_norm, self.turned = graph, sorts, norm, each, turned
        self.K, self.M, self.N = len(sorts), graph.M, graph.N
        self.dtype, self.device, self.acc_dtype = graph.dtype, graph.device, graph.acc_dtype
        if graph.structure.type is None and any(step != ((0, False),) and step != ((0, True),) for step in self._all()):
            reject("edge_type", "a relation for each edge", None, "pass edge_type")
        self._steps = {step: self._step(step, graph.weights) for step in self._all()}
        ones = torch.ones(graph.source.numel(), dtype=self.acc_dtype, device=self.device)
        self._counting = {step: self._step(step, ones) for step in self._all()} if norm == "mean" else {}

    def _all(self) -> Iterator[Step]:
        return (step for several in self.sorts for sequence in several for step in sequence)

    def _step(self, step: Step, weights: Tensor) -> TypedEdges:
        """The matrix of a step: all edges, once for each alternative, with the weight 0 for other relations."""
        s, sources, targets, alive = self.graph.structure, [], [], []
        for relation, inverse in step:
            ends = (s.target, s.source) if inverse else (s.source, s.target)
            sources.append(ends[0])
            targets.append(ends[1])
            alive.append(torch.ones_like(s.source, dtype=torch.bool) if s.type is None else s.type == relation)
        edges = EdgeSet(1, self.M, self.N, None, torch.cat(sources), torch.cat(targets))
        edges.alive = torch.cat(alive)
        weight = torch.where(edges.alive, weights.repeat(len(step)), 0)
        return TypedEdges(edges, normalised(edges, weight, self.each_norm, self.acc_dtype), self.acc_dtype)

    def _chain(self, sequence: Sequence[Step], x: Tensor, matrices: dict[Step, TypedEdges], back: bool) -> Tensor:
        for step in reversed(sequence) if back else sequence:
            x = (matrices[step].T if back else matrices[step]).combine([x])
        return x

    def _sum(self, k: int, x: Tensor, matrices: dict[Step, TypedEdges], back: bool) -> Tensor:
        """The product of x with the transposed matrix of a sort; with the matrix itself for `back`."""
        chains = [self._chain(sequence, x, matrices, back) for sequence in self.sorts[k]]
        return sum(chains[1:], chains[0]) if chains else torch.zeros_like(x)

    def _scale(self, k: int, at_end: bool) -> Tensor | None:
        """(M, 1) the factors of the norm at the beginning of walks, or at their end."""
        if self.norm is None or self.norm == ("row" if at_end else "mean"):
            return None
        matrices = self._counting if self.norm == "mean" else self._steps
        total = self._sum(k, torch.ones(self.M, 1, dtype=self.acc_dtype, device=self.device), matrices, not at_end)
        return inverse_sqrt(total) if self.norm == "sym" else reciprocal(total)

    def _apply(self, k: int, x: Tensor) -> Tensor:
        dtype, x = x.dtype, x.to(torch.promote_types(x.dtype, self.acc_dtype))
        before, after = self._scale(k, self.turned), self._scale(k, not self.turned)
        x = x if before is None else x * before
        y = self._sum(k, x, self._steps, self.turned)
        return (y if after is None else y * after).to(dtype)

    def iterate(self, x: Tensor) -> Iterator[Tensor]:
        return (self._apply(k, x) for k in range(self.K))

    def combine(self, z: Tensor | Sequence[Tensor | None]) -> Tensor:
        parts = [self._apply(k, z_k) for k, z_k in enumerate(members(z, self.K)) if z_k is not None]
        return sum(parts[1:], parts[0])

    def each(self, z: Tensor) -> Tensor:
        return torch.stack([self._apply(k, z_k) for k, z_k in enumerate(z)])

    def edges(self) -> EdgeList:
        refuse("basis", "a family that is applied, and not written out", self)
        raise NotImplementedError

    @property
    def T(self) -> "Stepwise":
        return Stepwise(self.graph, self.sorts, self.norm, self.each_norm, not self.turned)

    @property
    def requires_grad(self) -> bool:
        return self.graph.differentiable

    def work(self, direction: Direction) -> Work:
        steps = sum(1 for _ in self._all())
        return Work(self.graph.source.numel(), self.N, 1).times(steps)

    def map(self, change: Callable[[TypedEdges], TypedEdges]) -> "Stepwise":  # type: ignore[override]
        mapped = Stepwise(self.graph, self.sorts, self.norm, self.each_norm, self.turned)
        mapped._steps = {step: change(matrix) for step, matrix in self._steps.items()}
        return mapped
