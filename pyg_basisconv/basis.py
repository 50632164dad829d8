"""A basis: says which family A of K sparse matrices, before any data is seen."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn

from .bound import COMPOSITES, BoundBasis, EdgeList, explicit
from .cache import cached_property, memo, underived
from .costs import Direction, Work
from .errors import check_count, reject
from .graph import Graph, Size, grid_shape, sizes
from .kernels.lists import List
from .orders.base import OnImage
from .orders.compacted import Compact, Compaction, End
from .orders.native import Native
from .portable import fixed_mode
from .reading import read_graph

__all__ = [
    "Basis",
    "BoundBasis",
    "Compact",
    "Compaction",
    "Direction",
    "EdgeList",
    "End",
    "Native",
    "OnImage",
    "Work",
    "bound_basis",
]


def _parts(module: nn.Module) -> "Iterator[Basis]":
    """The bases that a module holds, without those that these hold."""
    for part in module.children():
        if isinstance(part, Basis):
            yield part
        else:
            yield from _parts(part)


class Basis(nn.Module):
    """Says which K matrices, before any data is seen. A small value: printable, comparable by what it prints.

    To make a kind of your own, give its size to `super().__init__(K)` and its edges for a graph in `edges(graph)`;
    that is enough. Override `build(graph)` to return a faster `BoundBasis`.

    >>> from pyg_basisconv import bases
    >>> family = bases.Identity() + bases.Adjacency('mean')
    >>> family, family.K
    (Identity() + Adjacency(norm='mean'), 2)
    >>> family.bind(torch.tensor([[0, 1], [2, 2]])).to_coo().to_dense()[1]
    tensor([[0.0000, 0.0000, 0.5000],
            [0.0000, 0.0000, 0.5000],
            [0.0000, 0.0000, 0.0000]])

    `a + b` has the matrices of both, `a @ b` the products, `a.T` the transposes; `2 * a` and `a - b` are mixtures,
    matrix by matrix:

    >>> 0.5 * bases.Identity(), bases.Identity() - bases.Adjacency('sym')
    (Mix([[0.5]], Identity()), Mix([[1.0, -1.0]], Identity() + Adjacency(norm='sym')))
    """

    needs_edges = True  # False where a call without edge_index makes sense
    reads_target = False  # True where, in a bipartite call, some members read the target's own features
    reads_content = False  # True where the matrices are computed from the features
    pools = False  # True where the targets are the graphs of a batch
    counts_batch = False  # True where the numbers in a batch say how many targets there are
    variance_gain: float = (
        1  # how much larger the sum over all members is than one of them, in variance: see theta.Full
    )
    axes: int | None = None  # how many its grid has, where it is on one
    depth = 1  # how many are within each other, see `check_depth`
    moves = False  # True where each matrix moves the entries of a grid by one offset
    hides = True  # False where every target meets every source
    factors: "tuple[Basis, Basis] | None" = None  # of a product
    precedence = 2  # of the sign that it is written with: 0 for `+`, 1 for `@`

    def __init__(self, K: int) -> None:
        super().__init__()
        check_count("K", K)
        self.K = K

    @property
    def target_axes(self) -> int | None:
        """The same of the grid of the targets."""
        return self.axes

    @property
    def reads_edges(self) -> bool:
        """Whether it, or a part of it, is computed from features of edges."""
        return any(part.reads_edges for part in _parts(self))

    def complete(self, source: int, target: int, inner: int) -> None:
        """Makes the parameters of what is computed from content, for the widths of sources, targets and values."""

    def reset_parameters(self) -> None:
        """Draws the parameters anew, where there are any."""

    def sized(
        self, M: int | None, N: int | None, batch: Any, grid: tuple[int, ...] | None
    ) -> tuple[int | None, int | None]:
        """The numbers of sources and targets of a call, with those that the basis knows filled in."""
        return M, N

    def reach(self, grid: tuple[int, ...]) -> tuple[int, ...] | None:
        """The grid of the targets, for one of the sources; None where the family is not of grids."""
        return None

    def accept(self, bound: BoundBasis) -> BoundBasis:
        """A bound family that is given instead of a graph; refuses what is known to be of another basis."""
        return bound

    def edge_ids(self, graph: Graph) -> Tensor | None:
        """(E',) the edge of the graph that each entry is, -1 for a loop that the basis adds; None where its entries are
        not the edges of the graph, with or without loops.
        """
        return None

    def edges(self, graph: Graph) -> EdgeList:
        """The family on a graph as typed weighted edges; the tensors of the graph are kept, and to be read only."""
        raise NotImplementedError(f"{type(self).__name__} gives neither edges(graph) nor build(graph)")

    def listed(self, graph: Graph) -> Sequence[List] | None:
        """The same as lists in numpy, where the graph has one and that is all there is to know; None otherwise."""
        return None

    def build(self, graph: Graph) -> BoundBasis:
        """Binds to a graph, anew."""
        edges = self.edges(graph)
        if graph.mask is not None:
            edges = edges._replace(weight=edges.weight * self._share(graph, edges))
        return explicit(self.K, graph.M, graph.N, edges, dtype=graph.dtype)

    def _share(self, graph: Graph, edges: EdgeList) -> Tensor:
        """(E',) the mask of each entry: the graph's edges stand first, with or without loops, then the basis's own."""
        mine, theirs = (torch.stack([e.source.long(), e.target.long()]) for e in (edges, graph))
        for some in (slice(None), theirs[0] != theirs[1]):
            mask, count = cast(Tensor, graph.mask)[some], theirs[:, some].shape[1]
            if torch.equal(mine[:, :count], theirs[:, some]):
                return torch.cat([mask, torch.ones_like(edges.weight[count:])])
        fix = "multiply by graph.mask in its build(graph)"
        return reject("basis", "edges that begin with those of the graph, to be masked", self, fix)

    def on(self, graph: Graph) -> BoundBasis:
        """Binds to a graph; once for all bases of the same classes that print the same, anew for one that learns."""
        key = self.key
        if key is None or graph.learns or graph.mask is not None:
            return self._made(graph)
        bound: BoundBasis = memo(graph._memo, key, self._made, graph)
        return bound

    def _made(self, graph: Graph) -> BoundBasis:
        bound = self.build(graph)
        bound.origin = self, graph.bare  # a graph knows its families, and none of them knows the graph
        return bound

    @cached_property
    def keeps(self) -> bool:
        """Whether calls that are like an earlier one may take what was bound for that one, but for a content."""
        return self.reads_content or (type(self).on is Basis.on and self.key is not None)

    @cached_property
    def key(self) -> Hashable | None:
        """What tells this basis from others, or None for one with parameters or buffers, which change.

        A class whose own body does not say what its instances print is taken to hold more than they do.
        """
        if self.reads_content or any(True for _ in chain(self.parameters(), self.buffers())):
            return None
        parts = [part for part in self.modules() if isinstance(part, Basis)]
        for part in parts:
            part._frozen = True
        return repr(self), *((type(part), part.unsaid) for part in parts)

    @property
    def unsaid(self) -> Hashable:
        """What tells it from others, beside its class and what it prints."""
        own = vars(type(self)).keys() & {"extra_repr", "__repr__"}
        says_all = bool(own) or vars(self).keys() <= vars(Basis(1)).keys() | {"_frozen", "key", "keeps"}
        return None if says_all else self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in underived(self).items() if name != "_frozen"}  # a copy may be changed

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__dict__.get("_frozen") and name != "training" and not name.startswith("_"):
            raise AttributeError(f"{self} is a value, and has been bound with its {name}: make another")
        super().__setattr__(name, value)

    @fixed_mode
    def bind(
        self,
        edge_index: Any = None,
        edge_weight: Tensor | None = None,
        edge_type: Tensor | None = None,
        *,
        size: Size = None,
        dtype: torch.dtype | None = None,
        batch: Tensor | None = None,
        lambda_max: Tensor | float | None = None,
        grid: int | Sequence[int] | None = None,
    ) -> BoundBasis:
        """Pays once what depends on the graph: normalising and sorting.

        Args:
            edge_index: the graph in any of PyG's layouts, see `BasisConv.forward`.
            edge_weight: (E,), or (E, K) for `bases.Edges`.
            edge_type: (E,) for typed edges.
            size: (M, N), or one number for both; found from the edges where None.
            dtype: of the matrices; that of edge_weight, or torch's default, where None.
            batch: (M,) the graph that each node of a batch belongs to.
            lambda_max: for `bases.Chebyshev`, a number or one per graph of the batch.
            grid: the shape of the grid that the sources are, for `bases.Window` and its like without one.

        Raises:
            ValueError: what does not fit, with the fix.
        """
        shape = grid_shape(grid)
        size = self.sized(*sizes(size), batch, shape)
        if edge_index is None and self.axes is not None and None in size:
            reject("grid", f"the shape of the grid, for {self}", grid, "pass grid=, or make the basis with a shape")
        graph = read_graph(
            edge_index,
            edge_weight,
            edge_type,
            size=size,
            dtype=dtype,
            device=batch.device if isinstance(batch, Tensor) else None,
            batch=batch,
            lambda_max=lambda_max,
            grid=shape,
        )
        return self.on(graph)

    @property
    def T(self) -> "Basis":
        """The family of the transposed matrices."""
        return COMPOSITES["T"](self)

    def __add__(self, other: "Basis") -> "Basis":
        return COMPOSITES["+"](self, other) if isinstance(other, Basis) else NotImplemented

    def __sub__(self, other: "Basis") -> "Basis":
        """The differences of the matrices, one by one."""
        if not isinstance(other, Basis):
            return NotImplemented
        if other.K != self.K:
            reject("basis", f"{self.K} matrices to subtract, as in {self}", other.K, "mix them: bases.Mix(C, a + b)")
        K = self.K
        rows = [[float(k == h) - float(k == K + h) for k in range(2 * K)] for h in range(K)]
        return COMPOSITES["mix"](rows, self + other)

    def __mul__(self, factor: float) -> "Basis":
        """All matrices, times a number."""
        if not isinstance(factor, int | float):
            return NotImplemented
        return COMPOSITES["mix"]([[factor if k == h else 0.0 for k in range(self.K)] for h in range(self.K)], self)

    __rmul__ = __mul__

    def __neg__(self) -> "Basis":
        return self * -1.0

    def __matmul__(self, other: "Basis") -> "Basis":
        return COMPOSITES["@"](self, other) if isinstance(other, Basis) else NotImplemented

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"


def bound_basis(basis: Basis | BoundBasis, *args: Any, **kwargs: Any) -> BoundBasis:
    """The basis, bound; in double precision, unless a dtype is given."""
    if isinstance(basis, BoundBasis):
        if args or kwargs:
            reject("basis", "a Basis, where it is to be bound", type(basis).__name__, "leave out the other arguments")
        return basis
    if not isinstance(basis, Basis):
        reject("basis", "a Basis, or what basis.bind(...) gave", type(basis).__name__, "choose one from bases")
    if basis.reads_content:
        fix = "pass the A of y, A = layer(x, ..., return_attention=True)"
        reject("basis", "a bound one, where it is computed from features", basis, fix)
    edges, size, grid = (args[0] if args else kwargs.get("edge_index")), kwargs.get("size"), kwargs.get("grid")
    if edges is None:
        if basis.needs_edges:
            reject("basis", f"the edges that {basis} needs", None, "pass edge_index, or a bound basis")
        if size is None and grid is None and None in basis.sized(None, None, kwargs.get("batch"), None):
            fix = "pass size= or grid=, or a bound basis"
            reject("size", f"the numbers of sources and targets of {basis}", None, fix)
    if kwargs.setdefault("dtype", torch.float64) == torch.float64:
        args, kwargs = tuple(_doubled(args)), dict(zip(kwargs, _doubled(kwargs.values()), strict=True))
    return basis.bind(*args, **kwargs)


def _doubled(values: Iterable[Any]) -> list[Any]:
    """Floating point numbers in double precision."""
    return [v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for v in values]
