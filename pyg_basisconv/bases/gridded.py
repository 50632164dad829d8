"""The base class of bases on grids: a shape, given to the basis or with the call."""

import math
from collections.abc import Sequence
from typing import Any

from ..basis import Basis, EdgeList
from ..errors import reject
from ..graph import Counts, Graph
from ..kernels.grids import Ints
from ..portable import any_seen
from .bound_grid import ints


class Gridded(Basis):
    """A family on a grid with so many axes, whose shape each call gives if it is None here."""

    needs_edges = reads_types = False
    axes: int
    any_targets = False  # True if a sequence may have more or fewer targets than sources

    def __init__(self, K: int, shape: int | Sequence[int] | None, axes: int) -> None:
        super().__init__(K)
        self.axes, self.variance_gain = axes, K
        self.shape = None if shape is None else ints(shape, "shape", axes, least=0)

    def target_shape(self, grid: Ints) -> Ints:
        """The shape of the targets' grid, given that of the sources, which is checked."""
        raise NotImplementedError

    def sized(self, M: int | None, N: int | None, batch: Any, grid: Ints | None) -> Counts:
        shape = self._shape(grid, M)
        if shape is None:
            return M, N
        rows, count = math.prod(shape), math.prod(self.target_shape(shape))
        if M is not None and rows != M:
            reject("x", f"{rows} rows, the grid {shape}", M, "flatten images, last axis fastest, or see GridConv")
        if self.any_targets and grid is None:
            return rows, N
        if N is not None and count != N:
            reject("size", f"N = {count}, the targets of the grid {shape}", N, "leave it out")
        return rows, count

    def _shape(self, grid: Ints | None, M: int | None) -> Ints | None:
        if self.shape is not None:
            if grid is not None and grid != self.shape:
                reject("grid", f"the shape of the basis, {self.shape}", grid, "make the basis with shape=None")
            return self.shape
        if grid is not None:
            if len(grid) != self.axes:
                reject("grid", f"{self.axes} axes, for {self}", grid, "give as many as the basis has")
            return grid
        return None if M is None or self.axes > 1 else (M,)

    def shape_of(self, graph: Graph) -> Ints:
        """The shape of the sources' grid in a call."""
        batch = graph.batch
        if batch is not None and any_seen(batch != batch[:1]):
            fix = "give x a leading axis, for grids of one shape, or a transform to the data set, before it is batched"
            reject("batch", f"one grid, for {self}", "several", fix)
        shape = self._shape(graph.grid, graph.sources)
        if shape is None:
            reject("grid", f"the shape of the grid, for {self}", None, "pass grid=, or make the basis with a shape")
        self.target_shape(shape)
        return shape

    @staticmethod
    def rows_of(graph: Graph, sources: int) -> int:
        """The rows of x: the sources, which the targets' own features may follow."""
        return graph.M if graph.sources == sources else sources

    def edges(self, graph: Graph | None = None) -> EdgeList:
        """The family as typed weighted edges, on a graph, or on the grid of its own shape."""
        return (self.bind() if graph is None else self.build(graph)).edges()

    @property
    def shown_shape(self) -> str:
        """The shape as it is printed."""
        return str(self.shape[0] if self.shape is not None and self.axes == 1 else self.shape)
