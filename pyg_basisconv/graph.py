"""A graph: edges with weights and types, and all that was derived from them. It is made in `reading`."""

from collections.abc import Callable, Hashable
from typing import Any, cast

import torch
from torch import Tensor

from .cache import cached_property, memo
from .content import Content
from .errors import reject
from .kernels import Pattern, spmm
from .kernels.lists import Array, List, lists_of
from .portable import portable

_CPU = torch.device("cpu")
Size = int | tuple[int | None, int | None] | None


class Structure:
    """The integer part of a graph: E edges from M sources to N targets, and whatever was derived from them alone.

    Attributes:
        alive: (E,) which edges are there at all, where some are without a weight instead of left out: in the portable
            path. None for all.
        arrays: the sources and targets in numpy, where it was made of these; None otherwise.
    """

    arrays: tuple[Array, Array] | None = None

    def __init__(self, source: Tensor, target: Tensor, type: Tensor | None, M: int, N: int) -> None:
        self.source, self.target, self.type, self.M, self.N = source, target, type, M, N
        self.alive: Tensor | None = None
        self._memo: dict[Hashable, Any] = {}

    @classmethod
    def of_arrays(cls, arrays: tuple[Array, Array], type: Tensor | None, M: int, N: int) -> "Structure":
        """The same of edges on the CPU, whose tensors are made when they are asked for."""
        structure = object.__new__(cls)
        structure.arrays, structure.type, structure.M, structure.N = arrays, type, M, N
        structure.alive, structure._memo = None, {}
        return structure

    @cached_property
    def source(self) -> Tensor:
        """(E,) where each edge comes from."""
        return torch.from_numpy(cast(tuple[Array, Array], self.arrays)[0])

    @cached_property
    def target(self) -> Tensor:
        """(E,) where each edge goes."""
        return torch.from_numpy(cast(tuple[Array, Array], self.arrays)[1])

    @property
    def E(self) -> int:
        """How many edges there are."""
        return self.source.numel() if self.arrays is None else self.arrays[0].size

    def memo(self, key: Hashable, build: Callable[[], Any]) -> Any:
        """What `build()` gave when first asked for under `key`."""
        return memo(self._memo, key, build)

    @property
    def pattern(self) -> Pattern:
        return self.memo("pattern", lambda: Pattern(self.source, self.target, self.M, self.N))  # type: ignore[no-any-return]

    def at_source(self, values: Tensor) -> Tensor:
        """(M,) -> (E,) the value of each edge's source."""
        return self._lift(values, "source", self.source)

    def at_target(self, values: Tensor) -> Tensor:
        """(N,) -> (E,) the value of each edge's target."""
        return self._lift(values, "target", self.target)

    def _lift(self, values: Tensor, name: str, end: Tensor) -> Tensor:
        return gather(values, end, lambda: self.memo(("lift", name), lambda: lifting(end, values.numel())))

    @property
    def T(self) -> "Structure":
        """The edges turned round."""
        turned: Structure = self.memo("T", lambda: Structure(self.target, self.source, self.type, self.N, self.M))
        turned.alive = self.alive
        if portable():
            return turned
        turned._memo.setdefault("pattern", self.pattern.T)
        return turned


def lifting(index: Tensor, count: int) -> Pattern:
    """From `count` places to those that an index names, one after the other."""
    return Pattern(index, torch.arange(index.numel(), device=index.device), count, index.numel())


def gather(values: Tensor, index: Tensor, pattern: Callable[[], Pattern] | None = None) -> Tensor:
    """(V,) -> (n,) the values at some places.

    Where a gradient passes it is a sparse product, and so is its gradient: summed in a fixed order, which a scatter is
    not. pattern: gives the `lifting`, where it is kept.
    """
    if portable() or not values.requires_grad:
        return values.index_select(0, index)
    lifted = lifting(index, values.numel()) if pattern is None else pattern()
    return spmm(values.unsqueeze(1), None, lifted).squeeze(1)


class Graph:
    """Edges m -> n with weights and types, as a basis reads them.

    Args:
        structure: the edges.
        weight: (E,) or (E, K) or None for ones.
        dtype: of the weights of what is bound; normalisation happens in float32 at least.
        batch: (M,) the graph of a batch that each node belongs to.
        lambda_max: the largest eigenvalue of a Laplacian, a number or one per graph of the batch.
        target_row: the row of x that holds the first target's own features; None where there are none.
        sources: the rows of x that are sources, M where it is not said; behind them stand the targets' own features.
        grid: the shape of the grid that the sources are, where they are one.
    """

    def __init__(
        self,
        structure: Structure,
        weight: Tensor | None,
        dtype: torch.dtype,
        batch: Tensor | None = None,
        lambda_max: Tensor | float | None = None,
        target_row: int | None = 0,
        sources: int | None = None,
        grid: tuple[int, ...] | None = None,
    ) -> None:
        self.structure, self.M, self.N = structure, structure.M, structure.N
        self.weight = weight
        self.dtype = dtype
        self.batch = batch
        self.lambda_max = lambda_max
        self.target_row = target_row
        self.sources = structure.M if sources is None else sources
        self.grid = grid
        self.content: Content | None = None
        self.mask: Tensor | None = None
        self.kind = ""  # of the layout that it was read from, see `Layout`
        self.learns = weight is not None and weight.requires_grad
        self.learns |= isinstance(lambda_max, Tensor) and lambda_max.requires_grad
        self._memo: dict[Hashable, Any] = {}
        self._bare: Graph | None = None
        self._list: List | None = None
        arrays = structure.arrays
        if arrays is not None and weight is None and lists_of(dtype, max(self.M, self.N)):
            self._list = List(0, arrays[0], arrays[1], None)

    @property
    def E(self) -> int:
        """How many edges there are."""
        return self.structure.E

    @property
    def as_list(self) -> List | None:
        """The edges as a list in numpy, where all are ones on the CPU, so that this is all there is to know."""
        return None if self.mask is not None or self._list is None or portable() else self._list

    def _but(self, **changes: Any) -> "Graph":
        """The same graph with some attributes changed; an empty `_memo` leaves behind what was derived from it."""
        graph = object.__new__(type(self))
        vars(graph).update({**vars(self), "_bare": None, **changes})
        return graph

    def holding(self, content: Content) -> "Graph":
        """The same graph, with all that was derived from it, for bases that read a content."""
        return self._but(content=content)

    def masked(self, mask: Tensor | None) -> "Graph":
        """The same graph, with the normalised weight of each edge multiplied by its mask; None removes the mask.

        Args:
            mask: (E,) numbers.
        """
        return self._but(mask=None if mask is None else mask.to(self.wide))

    @property
    def bare(self) -> "Graph":
        """The same graph, without what was derived from it; made once."""
        if self._bare is None:
            self._bare = self._but(_memo={})
        return self._bare

    def thin(self, weight: Tensor | None) -> Tensor | None:
        """(E,) or (E, K) numbers of the edges, None for ones, times the mask."""
        if self.mask is None or weight is None:
            return self.mask if weight is None else weight
        return weight * (self.mask if weight.dim() == 1 else self.mask.unsqueeze(1))

    @property
    def thinned(self) -> "Graph":
        """The same graph, with the mask in its weights."""
        # As if it learned: nothing that follows from a mask is kept.
        return self._but(mask=None, weight=self.thin(self.weight), learns=True, _list=None, _memo={})

    def over(self, grid: tuple[int, ...] | None) -> "Graph":
        """The same graph, whose sources are another grid, or none."""
        if grid == self.grid:
            return self
        return self.memo(("over", grid), lambda: self._but(grid=grid, _memo={}))  # type: ignore[no-any-return]

    def between(self, M: int, N: int, grid: tuple[int, ...] | None) -> "Graph":
        """The same graph, of other numbers of sources and targets, and then without its edges; see `over`."""
        if (M, N) == (self.M, self.N):
            return self.over(grid)

        def build() -> Graph:
            none = self.source[:0]
            structure = Structure(none, none, None, M, N)
            return Graph(structure, None, self.dtype, self.batch, self.lambda_max, self.target_row, M, grid)

        graph: Graph = self.memo(("between", M, N, grid), build)
        return graph if self.content is None else graph.holding(self.content)

    @property
    def from_intermediate(self) -> "Graph":
        """The same graph, whose sources are what another family gave: each has a row, which is its target's own."""
        if self.target_row == 0:
            return self
        return self.memo("from_intermediate", lambda: self._but(target_row=0, _memo={}))  # type: ignore[no-any-return]

    @property
    def source(self) -> Tensor:
        """(E,) where each edge comes from."""
        return self.structure.source

    @property
    def target(self) -> Tensor:
        """(E,) where each edge goes."""
        return self.structure.target

    @property
    def type(self) -> Tensor | None:
        """(E,) the type of each edge, where types were given."""
        return self.structure.type

    @property
    def device(self) -> torch.device:
        """Where the edges are."""
        return self.structure.source.device if self.structure.arrays is None else _CPU

    @property
    def wide(self) -> torch.dtype:
        """The dtype in which weights are computed."""
        return self.dtype if self.dtype in (torch.float32, torch.float64) else torch.float32

    @property
    def weights(self) -> Tensor:
        """(E,) the weights, ones where none were given."""
        if self.weight is None:
            return torch.ones(self.source.numel(), dtype=self.wide, device=self.device)
        if self.weight.dim() != 1:
            reject(
                "edge_weight",
                "one weight per edge, shape (E,)",
                tuple(self.weight.shape),
                "several weights per edge are for bases.Edges(K)",
            )
        return self.weight.to(self.wide)

    @property
    def differentiable(self) -> bool:
        """Whether a gradient passes through what is derived from it, or a mask that changes."""
        return self.learns or self.mask is not None

    def memo(self, key: Hashable, build: Callable[[], Any]) -> Any:
        """What `build()` gave when first asked for under `key`; never kept where a gradient passes through it."""
        if self.learns or self.mask is not None:
            return build()
        return memo(self._memo, key, build)

    @property
    def T(self) -> "Graph":
        """The graph with every edge turned round."""
        if self.M != self.N:
            reject("graph", "as many sources as targets to turn it round", (self.M, self.N), "use a square graph")
        about = self.dtype, self.batch, self.lambda_max, self.target_row, self.sources, self.grid

        def build() -> Graph:
            return Graph(self.structure.T, self.weight, *about).masked(self.mask)

        return self.memo("T", build)  # type: ignore[no-any-return]


def sizes(size: Size) -> tuple[int | None, int | None]:
    """(M, N) of a user's size, checked.

    >>> sizes(3), sizes([3, None])
    ((3, 3), (3, None))
    """
    if size is None:
        return None, None
    pair = tuple(size) if isinstance(size, tuple | list) else (size, size)
    for n in pair:
        if n is not None and (not isinstance(n, int | torch.SymInt) or n < 0):
            reject("size", "(M, N), of integers from 0 on or None", size, "pass size=(M, N)")
    if len(pair) != 2:
        reject("size", "(M, N), or one number for both", size, "pass size=(M, N)")
    return pair


def grid_shape(grid: Any) -> tuple[int, ...] | None:
    """The shape of a user's grid, checked.

    >>> grid_shape(3), grid_shape([3, 4])
    ((3,), (3, 4))
    """
    if grid is None:
        return None
    shape = tuple(grid) if isinstance(grid, tuple | list) else (grid,)
    if not shape or any(isinstance(n, bool) or not isinstance(n, int | torch.SymInt) or n < 0 for n in shape):
        reject("grid", "one integer from 0 on for each axis", grid, "pass the shape of the grid, such as (28, 28)")
    return shape
