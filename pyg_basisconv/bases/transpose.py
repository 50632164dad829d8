"""`a.T`: the transposed matrices of a family."""

from typing import Any

from ..basis import Basis, BoundBasis, check_bases
from ..bound import CONSTRUCTORS
from ..graph import Counts, Graph
from ..kernels.grids import Ints
from .composed import Composed, operand_repr


class Transpose(Composed):
    """`a.T`: the transposed matrices.

    >>> from pyg_basisconv import bases
    >>> bases.Adjacency('rw').T
    Adjacency(norm='rw').T
    """

    keeps_members = True

    def __init__(self, basis: Basis) -> None:
        check_bases(basis)
        super().__init__(basis.K, basis)
        self.axes = basis.target_axes

    @property
    def target_axes(self) -> int | None:
        return self.parts[0].axes

    def sized(self, M: int | None, N: int | None, batch: Any, grid: Ints | None) -> Counts:
        N, M = self.parts[0].sized(N, M, batch, self._inner(grid, batch))
        return M, N

    def target_shape(self, grid: Ints) -> Ints | None:
        if self.target_axes is None:
            return None
        shapes = (getattr(part, "shape", None) for part in self.modules())
        return next((shape for shape in shapes if shape is not None), grid)

    def build(self, graph: Graph) -> BoundBasis:
        return super().build(graph.on_grid(self._inner(graph.grid, graph.batch))).T

    def _inner(self, grid: Ints | None, batch: Any) -> Ints | None:
        """The sources' grid of the family that is transposed: that of the call, unless it has its own."""
        if grid is None:
            return None
        own: Any = self.parts[0].sized(None, None, batch, None)
        return grid if own[0] is None else None

    def join(self, bound: list[BoundBasis]) -> BoundBasis:
        return bound[0]

    @property
    def T(self) -> Basis:
        return self.parts[0]

    def __repr__(self) -> str:
        return f"{operand_repr(self.parts[0], self.precedence)}.T"


CONSTRUCTORS["T"] = Transpose
