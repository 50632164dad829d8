"""A graph: edges with weights and types, and cached results that were derived from them. `reading` makes it."""

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch
from torch import Tensor

from .cache import memo
from .content import Content
from .edge_set import EdgeSet
from .errors import reject
from .kernels.grids import Ints
from .kernels.lists import List, lists_of
from .kernels.op import acc_dtype

_T = TypeVar("_T")

_CPU = torch.device("cpu")
Counts = tuple[int | None, int | None]  # (M, N), None for unknown ones
Size = int | Counts | None


class Graph:
    """Edges m -> n with weights and types, as bases read them.

    Args:
        structure: the edges, without weights.
        weight: (E,) or (E, K) or None for ones.
        dtype: of bound families; normalisation is in float32 at least.
        batch: (M,) the graph of each node in a batch.
        lambda_max: the largest eigenvalue of a Laplacian, a number or one per graph of the batch.
        target_row: the row of x that holds the first target's own features; None if x has none.
        sources: how many rows of x are sources; the targets' own features may follow them. M by default.
        grid: the shape of the sources' grid, or None.
    """

    def __init__(
        self,
        structure: EdgeSet,
        weight: Tensor | None,
        dtype: torch.dtype,
        batch: Tensor | None = None,
        lambda_max: Tensor | float | None = None,
        target_row: int | None = 0,
        sources: int | None = None,
        grid: Ints | None = None,
    ) -> None:
        self.structure, self.M, self.N = structure, structure.M, structure.N
        self.weight, self.dtype, self.batch, self.lambda_max = weight, dtype, batch, lambda_max
        self.target_row, self.sources, self.grid = target_row, structure.M if sources is None else sources, grid
        self.content: Content | None = None
        self._edge_attr: Tensor | None = None
        self.mask: Tensor | None = None
        self.kind = ""  # of the layout that it was read from, see `Layout`
        self.learns = weight is not None and weight.requires_grad
        self.learns |= isinstance(lambda_max, Tensor) and lambda_max.requires_grad
        self._memo: dict[Hashable, Any] = {}
        self._bare: Graph | None = None

    if not TYPE_CHECKING:  # there, names that are not known are errors

        def __getattr__(self, name: str) -> NoReturn:
            offered = "source, target, type, weights, M, N, batch, dtype and device"
            raise AttributeError(f"the graph of a basis has no {name!r}; it has {offered}")

    @property
    def E(self) -> int:
        """The number of edges."""
        return self.structure.E

    @property
    def as_list(self) -> List | None:
        """The edges as numpy arrays, if they are on the CPU and have no weights; None otherwise."""
        arrays = self.structure.arrays
        if arrays is None or self.weight is not None or self.mask is not None:
            return None
        return List(0, *arrays, None) if lists_of(self.dtype, max(self.M, self.N)) else None

    def _replace(self, **changes: Any) -> "Graph":
        """The same graph with some attributes changed; pass an empty `_memo` to drop derived results."""
        graph = object.__new__(type(self))
        vars(graph).update({**vars(self), "_bare": None, **changes})
        return graph

    def holding(self, content: Content) -> "Graph":
        """The same graph and its derived results, with the content that a basis reads."""
        return self._replace(content=content)

    @property
    def plain(self) -> "Graph":
        """The same graph and its derived results, without features: what is kept must not hold those of one call."""
        alone = self.content is None and self._edge_attr is None
        return self if alone else self._replace(content=None, _edge_attr=None)

    def _changed(self, name: str, **changes: Any) -> "Graph":
        """The same graph with some attributes changed, without derived results; cached, but for its features."""
        key = name, *changes.values()
        graph: Graph = self.memo(key, lambda: self.plain._replace(**changes, _memo={}))
        return graph._replace(content=self.content, _edge_attr=self._edge_attr)

    def holding_weight(self, weight: Tensor | None) -> "Graph":
        """The same graph without derived results, with weights that are read in each call, or None for now."""
        return self._replace(weight=weight, learns=True, _memo={})

    @property
    def edge_attr(self) -> Tensor | None:
        """(E, R) the features of edges, of the content that a basis reads or given to `Basis.bind`; None without."""
        return self._edge_attr if self.content is None else self.content.edge_attr

    def with_edge_attr(self, edge_attr: Tensor | None) -> "Graph":
        """The same graph and its derived results, with features of edges."""
        return self._replace(_edge_attr=edge_attr)

    def masked(self, mask: Tensor | None) -> "Graph":
        """The same graph, with the normalised weight of each edge multiplied by its mask, (E,); None removes it."""
        return self._replace(mask=None if mask is None else mask.to(self.acc_dtype))

    @property
    def bare(self) -> "Graph":
        """The same graph without derived results; cached."""
        if self._bare is None:
            self._bare = self._replace(_memo={})
        return self._bare

    def apply_mask(self, weight: Tensor | None) -> Tensor | None:
        """(E,) or (E, K) weights of the edges, None for ones, times the mask."""
        if self.mask is None or weight is None:
            return self.mask if weight is None else weight
        return weight * (self.mask if weight.dim() == 1 else self.mask.unsqueeze(1))

    @property
    def with_masked_weights(self) -> "Graph":
        """The same graph with weights that are multiplied by the mask, and no mask."""
        # `learns` is True so that nothing that depends on the mask is cached.
        return self._replace(mask=None, weight=self.apply_mask(self.weight), learns=True, _memo={})

    def on_grid(self, grid: Ints | None) -> "Graph":
        """The same graph with another grid of sources, or none; cached."""
        return self if grid == self.grid else self._changed("on_grid", grid=grid)

    def resized(self, M: int, N: int, grid: Ints | None) -> "Graph":
        """A graph of these numbers of sources and targets: `on_grid` if they are the same, else without edges."""
        if (M, N) == (self.M, self.N):
            return self.on_grid(grid)

        def build() -> Graph:
            none = self.source[:0]
            structure = EdgeSet(1, M, N, None, none, none)
            return Graph(structure, None, self.dtype, self.batch, self.lambda_max, self.target_row, M, grid)

        graph: Graph = self.memo(("resized", M, N, grid), build)
        return graph._replace(content=self.content)

    @property
    def from_intermediate(self) -> "Graph":
        """The same graph, with the targets of another family as sources: each source has its row of x."""
        return self if self.target_row == 0 else self._changed("from_intermediate", target_row=0)

    @property
    def source(self) -> Tensor:
        """(E,) the source of each edge."""
        return self.structure.source

    @property
    def target(self) -> Tensor:
        """(E,) the target of each edge."""
        return self.structure.target

    @property
    def type(self) -> Tensor | None:
        """(E,) the type of each edge, or None."""
        return self.structure.type

    @property
    def device(self) -> torch.device:
        """The device of the edges."""
        return self.structure.source.device if self.structure.arrays is None else _CPU

    @property
    def acc_dtype(self) -> torch.dtype:
        """The dtype in which weights are normalised, float32 at least."""
        return acc_dtype(self.dtype)

    @property
    def weights(self) -> Tensor:
        """(E,) the weights, ones if none were given."""
        if self.weight is None:
            return torch.ones(self.source.numel(), dtype=self.acc_dtype, device=self.device)
        if self.weight.dim() != 1:
            several = "several weights per edge are for bases.Edges(K)"
            fix = "flatten it with .view(-1)" if self.weight.shape[1:] == (1,) else several
            reject("edge_weight", "one weight per edge, shape (E,)", tuple(self.weight.shape), fix)
        return self.weight.to(self.acc_dtype)

    @property
    def differentiable(self) -> bool:
        """Whether derived results depend on weights that learn or on a mask, so that they may not be cached."""
        return self.learns or self.mask is not None

    def memo(self, key: Hashable, build: Callable[[], _T]) -> _T:
        """The result of `build()`, cached under `key` unless `differentiable`."""
        if self.differentiable:
            return build()
        return memo(self._memo, key, build)

    @property
    def T(self) -> "Graph":
        """The graph of the reversed edges."""
        if self.M != self.N:
            reject("graph", "as many sources as targets, to be transposed", (self.M, self.N), "use a square graph")
        return self._changed("T", structure=self.structure.T)


def sizes(size: Size) -> Counts:
    """(M, N) of a user's size, checked.

    >>> sizes(3), sizes([3, None])
    ((3, 3), (3, None))
    """
    if size is None:
        return None, None
    pair = tuple(size) if isinstance(size, tuple | list) else (size, size)
    for n in pair:
        if n is not None and (not isinstance(n, int | torch.SymInt) or n < 0):
            fix = _unless_traced("pass size=(M, N)")
            reject("size", "(M, N), of integers from 0 on or None", size, fix)
    if len(pair) != 2:
        reject("size", "(M, N), or one number for both", size, "pass size=(M, N)")
    return pair


def grid_shape(grid: Any) -> Ints | None:
    """The shape of a user's grid, checked.

    >>> grid_shape(3), grid_shape([3, 4])
    ((3,), (3, 4))
    """
    if grid is None:
        return None
    shape = tuple(grid) if isinstance(grid, tuple | list) else (grid,)
    if not shape or any(isinstance(n, bool) or not isinstance(n, int | torch.SymInt) or n < 0 for n in shape):
        fix = _unless_traced("pass the shape of the grid, such as (28, 28)")
        reject("grid", "one integer from 0 on for each axis", grid, fix)
    return shape


def _unless_traced(fix: str) -> str:
    """What to do about sizes that are no integers: `torch.jit.trace` makes tensors of them."""
    traced = torch.jit.is_tracing()  # type: ignore[attr-defined]
    return "use torch.export in place of torch.jit.trace" if traced else fix
