"""What the user calls a graph, in any of PyG's layouts, checked once and brought to one form."""

import math
from collections.abc import Callable, Hashable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from .cache import IdentityCache, Witness, cached_property, memo
from .content import Content
from .errors import reject
from .kernels import Pattern, spmm
from .kernels.lists import Array, List, below, lists_of, narrow
from .kernels.pattern import extremes, index_dtype, within
from .layouts import Ends, Layout, check_form, layout
from .portable import checked, portable

_CPU = torch.device("cpu")
Size = int | tuple[int | None, int | None] | None
_STRUCTURES = IdentityCache()
_GRAPHS = IdentityCache()


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
        self.structure = structure
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

    @property
    def M(self) -> int:
        return self.structure.M

    @property
    def N(self) -> int:
        return self.structure.N

    @property
    def E(self) -> int:
        """How many edges there are."""
        return self.structure.E

    @property
    def as_list(self) -> List | None:
        """The edges as a list in numpy, where all are ones on the CPU, so that this is all there is to know."""
        arrays, of_ones = self.structure.arrays, self.weight is None and self.mask is None
        if arrays is None or not of_ones or portable() or not lists_of(self.dtype, max(self.M, self.N)):
            return None
        return List(0, *arrays, None)

    def _copy(self) -> "Graph":
        graph = object.__new__(type(self))
        vars(graph).update(vars(self))
        graph._bare = None
        return graph

    def holding(self, content: Content) -> "Graph":
        """The same graph, with all that was derived from it, for bases that read a content."""
        graph = self._copy()
        graph.content = content
        return graph

    def masked(self, mask: Tensor | None) -> "Graph":
        """The same graph, with the normalised weight of each edge multiplied by its mask; None removes the mask.

        Args:
            mask: (E,) numbers.
        """
        graph = self._copy()
        graph.mask = None if mask is None else mask.to(self.wide)
        return graph

    @property
    def bare(self) -> "Graph":
        """The same graph, without what was derived from it; made once."""
        if self._bare is None:
            graph = self._copy()
            graph._memo = {}
            self._bare = graph
        return self._bare

    def thin(self, weight: Tensor | None) -> Tensor | None:
        """(E,) or (E, K) numbers of the edges, None for ones, times the mask."""
        if self.mask is None or weight is None:
            return self.mask if weight is None else weight
        return weight * (self.mask if weight.dim() == 1 else self.mask.unsqueeze(1))

    @property
    def thinned(self) -> "Graph":
        """The same graph, with the mask in its weights."""
        graph = self.masked(None)
        graph.weight, graph._memo = self.thin(self.weight), {}
        graph.learns = True  # nothing that follows from a mask is kept
        return graph

    def over(self, grid: tuple[int, ...] | None) -> "Graph":
        """The same graph, whose sources are another grid, or none."""
        if grid == self.grid:
            return self

        def build() -> Graph:
            graph = self._copy()
            graph.grid, graph._memo = grid, {}
            return graph

        return self.memo(("over", grid), build)  # type: ignore[no-any-return]

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

        def build() -> Graph:
            graph = self._copy()
            graph.target_row, graph._memo = 0, {}
            return graph

        return self.memo("from_intermediate", build)  # type: ignore[no-any-return]

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
        if self.differentiable:
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

    @classmethod
    def of(
        cls,
        edge_index: Any,
        edge_weight: Tensor | None = None,
        edge_type: Tensor | None = None,
        *,
        size: Size = None,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        flow: str = "source_to_target",
        batch: Tensor | None = None,
        lambda_max: Tensor | float | None = None,
        target_row: int | None = 0,
        sources: int | None = None,
        grid: tuple[int, ...] | None = None,
        seen: Witness | None = None,
    ) -> "Graph":
        """Reads PyG's layouts; the same tensors, unchanged, give the same graph with all that was derived from it.

        Args:
            edge_index: a `Layout`, or what has one: (2, E) integers, `EdgeIndex`, a sparse tensor of the transposed
                adjacency (N, M) as PyG has it (`torch.sparse` COO, CSR, CSC, or `torch_sparse.SparseTensor`), or None
                for no edges.
            edge_weight: (E,) or (E, K) floating point.
            edge_type: (E,) integers.
            size: (M, N), or one number for both; what is None is found from the edges.
            dtype: of the weights; that of edge_weight, or torch's default, where None.
            device: where x is, to be compared.
            flow: PyG's; "target_to_source" turns every edge round.
            batch: (M,) integers.
            lambda_max: for Laplacians.
            target_row: see the class.
            sources: see the class.
            grid: see the class.
            seen: a witness of the tensors from before the call, where there is one; in the order of the arguments.

        Raises:
            ValueError: whatever does not fit, with what was expected, what came, and the fix.
        """
        size = sizes(size)
        edges = edge_index if isinstance(edge_index, Layout) else layout(edge_index, flow)
        if dtype is None:
            dtype = _dtype(edges.values if edge_weight is None else edge_weight)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            reject("dtype", "a floating point dtype", dtype, "matrices have real entries")
        eigen = lambda_max if isinstance(lambda_max, Tensor) else None
        for name, t in (
            ("edge_weight", edge_weight),
            ("edge_type", edge_type),
            ("batch", batch),
            ("lambda_max", eigen),
        ):
            if t is not None:
                check_form(name, t)
        number = None if eigen is not None else lambda_max

        def build() -> Graph:
            about = (batch, lambda_max, target_row, sources, grid)
            graph = cls._read(edges, edge_weight, edge_type, size, dtype, device, *about)
            graph.kind = edges.kind
            return graph

        graph: Graph = _GRAPHS.get(
            (*edges.tensors, edge_weight, edge_type, batch, eigen),
            (edges.form, size, dtype, device, number, target_row, sources, grid),
            build,
            seen,
        )
        return graph

    @classmethod
    def _read(
        cls,
        edges: Layout,
        edge_weight: Tensor | None,
        edge_type: Tensor | None,
        size: tuple[int | None, int | None],
        dtype: torch.dtype,
        device: torch.device | None,
        batch: Tensor | None,
        lambda_max: Tensor | float | None,
        target_row: int | None,
        sources: int | None,
        grid: tuple[int, ...] | None,
    ) -> "Graph":
        """Checks the call and makes the graph; the integer part of it, once for the same edges."""
        if edges.values is not None:
            if edge_weight is not None:
                reject(
                    "edge_weight", "None beside a sparse edge_index that has values", "both", "give the weights once"
                )
            edge_weight = edges.values
        ends = None if edges.ends is None else edges.ends()
        M, N = size
        rows = M if sources is None else sources  # behind the sources may stand rows that no edge reads
        for name, given, found in (("M", rows, edges.shape[0]), ("N", N, edges.shape[1])):
            if given is not None and found is not None and given != found:
                reject(
                    "edge_index",
                    f"{name} = {given} as x has rows",
                    f"a sparse matrix with {name} = {found}",
                    "pass the transposed adjacency of shape (N, M)",
                )
        M, N = edges.shape[0] if M is None else M, edges.shape[1] if N is None else N
        _check(ends, edge_weight, edge_type, batch, lambda_max, dtype, device)
        # Beside numbers that come and go, the same edges keep what was derived from them alone.
        varying = not (edge_weight is batch is None and isinstance(lambda_max, int | float | None))
        args = (edge_type, M, N, device, sources)
        structure = (
            _STRUCTURES.get((*edges.indices, edge_type), (edges.form, *args[1:]), lambda: _structure(ends, *args))
            if varying
            else _structure(ends, *args)
        )
        # What is kept owns its memory: the caller's tensors may die, or change.
        weight = edge_weight if edge_weight is None or edge_weight.requires_grad else edge_weight.clone()
        batch = None if batch is None else batch.clone()
        if isinstance(lambda_max, Tensor) and not lambda_max.requires_grad:
            lambda_max = lambda_max.clone()
        return cls(structure, weight, dtype, batch, lambda_max, target_row, sources, grid)


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


def _dtype(weight: Tensor | None) -> torch.dtype:
    """That of the weights, torch's default where there are none."""
    if not isinstance(weight, Tensor):
        return torch.get_default_dtype()
    if not weight.dtype.is_floating_point:
        reject("edge_weight", "a floating point dtype", weight.dtype, "convert it with .float()")
    return weight.dtype


def _check(
    ends: Ends | None,
    edge_weight: Tensor | None,
    edge_type: Tensor | None,
    batch: Tensor | None,
    lambda_max: Tensor | float | None,
    dtype: torch.dtype,
    device: torch.device | None,
) -> None:
    """Shapes, dtypes and devices: what costs nothing and is looked at in every call."""
    E = 0
    if ends is not None:
        E = ends[0].numel()
        if ends[0].dtype not in (torch.int64, torch.int32):
            reject("edge_index", "dtype torch.int64 or torch.int32", ends[0].dtype, "convert it with .long()")
        device = device or ends[0].device
    for name, t in (
        ("edge_index", None if ends is None else ends[0]),
        ("edge_weight", edge_weight),
        ("edge_type", edge_type),
        ("batch", batch),
    ):
        if t is not None and not isinstance(t, Tensor):
            reject(name, "a tensor", type(t).__name__, "convert it with torch.as_tensor")
        if t is not None and device is not None and t.device != device:
            reject(name, f"a tensor on {device}, where x is", t.device, "move all inputs to one device")
    if edge_weight is not None:
        if not edge_weight.is_floating_point():
            fix = f"convert it with .to({dtype}); types go in edge_type, beside a matrix without values"
            reject("edge_weight", "a floating point dtype", edge_weight.dtype, fix)
        if edge_weight.dim() not in (1, 2) or edge_weight.shape[0] != E:
            reject(
                "edge_weight",
                f"one row per edge, shape ({E},) or ({E}, K)",
                tuple(edge_weight.shape),
                "give as many weights as edge_index has columns",
            )
        if edge_weight.dtype != dtype:
            reject("edge_weight", f"dtype {dtype}, as x", edge_weight.dtype, f"convert it with .to({dtype})")
    if edge_type is not None:
        if edge_type.shape != (E,):
            reject("edge_type", f"one type per edge, shape ({E},)", tuple(edge_type.shape), "give one type per edge")
        if edge_type.dtype not in (torch.int64, torch.int32):
            reject("edge_type", "dtype torch.int64 or torch.int32", edge_type.dtype, "convert it with .long()")
    if lambda_max is not None:
        if not isinstance(lambda_max, Tensor | float | int):
            reject("lambda_max", "a real number or a tensor", repr(lambda_max), "'exact' is for bases.Chebyshev")
        values = torch.as_tensor(lambda_max)
        if values.is_complex():
            reject("lambda_max", "real numbers", values.dtype, "take its real part, .real")
        if isinstance(lambda_max, Tensor) and device is not None and values.device not in (device, _CPU):
            reject("lambda_max", f"a tensor on {device}, where x is", values.device, "move all inputs to one device")
        if not values.numel():
            reject("lambda_max", "a number, or one per graph", tuple(values.shape), "leave it out")
        if values.numel() > 1 and batch is None:
            reject(
                "lambda_max", "a number where no batch is given", tuple(values.shape), "pass batch, or one lambda_max"
            )
        if portable():
            positive = isinstance(lambda_max, Tensor) or 0 < lambda_max < math.inf
        else:
            positive = bool((values > 0).all()) and bool(torch.isfinite(values).all())
        if not positive:
            reject(
                "lambda_max",
                "positive finite numbers",
                lambda_max if portable() else values.tolist(),
                "leave it out for twice the largest weight of the Laplacian",
            )


def _structure(
    ends: Ends | None,
    edge_type: Tensor | None,
    M: int | None,
    N: int | None,
    device: torch.device | None,
    sources: int | None,
) -> Structure:
    """Checks the values of the indices, once for a graph, and copies them into the narrowest integers."""
    if ends is None:
        if M is None or N is None:
            reject("size", "(M, N) where there is no edge_index", (M, N), "pass size=(M, N)")
        none = torch.empty(0, dtype=torch.int32, device=device)
        return Structure(none, none, None, M, N)
    source, target = ends
    if portable():
        if M is None or N is None:
            reject("size", "(M, N), where indices are not looked at", (M, N), "pass size=(M, N)")
        source = checked(source.long(), M if sources is None else sources)
        return Structure(source, checked(target.long(), N), edge_type, M, N)
    if source.is_meta:
        reject("edge_index", "numbers", "a tensor on 'meta', which has none", "make it on a device")
    sizes, given = [], (source.numpy(), target.numpy()) if source.device.type == "cpu" else None
    if given is not None and M is not None and N is not None and index_dtype(M, N) == torch.int32:
        arrays = narrow(given, (M if sources is None else sources, N))
        if arrays is not None:
            return Structure.of_arrays(arrays, None if edge_type is None else edge_type.clone(), M, N)
    for i, (name, end, count) in enumerate(
        (("source", source, M if sources is None else sources), ("target", target, N))
    ):
        if count is None or not (within(end, count) if given is None else below(given[i], count)):
            low, high = extremes(end) if end.numel() else (0, -1)
            if low < 0:
                reject("edge_index", f"{name} indices from 0 on", low, "remove the negative indices")
            if count is not None:
                reject(
                    "edge_index",
                    f"{name} indices below {count}, the number of {name}s",
                    high,
                    "check the edges, or pass x (or size) for all nodes",
                )
            count = high + 1
        sizes.append(count)
    if M is None and N is None:
        sizes = [max(sizes)] * 2
    sizes[0] = sizes[0] if M is None else M  # behind the sources may stand rows that no edge reads
    dtype = index_dtype(*sizes)
    edge_type = None if edge_type is None else edge_type.clone()
    if given is not None:
        width = np.int32 if dtype == torch.int32 else np.int64
        arrays = given[0].astype(width), given[1].astype(width)
        return Structure.of_arrays(arrays, edge_type, sizes[0], sizes[1])
    return Structure(source.to(dtype, copy=True), target.to(dtype, copy=True), edge_type, sizes[0], sizes[1])
