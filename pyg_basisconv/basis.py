"""A basis: describes a family A of K sparse matrices, before any data is seen."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from .bound import CONSTRUCTORS, BoundBasis, EdgeList
from .cache import cached_property, memo, without_cached
from .costs import Direction, Work
from .errors import call_it, check_count, check_made, reject
from .graph import Counts, Graph, Size, grid_shape, sizes
from .kernels.grids import Ints
from .kernels.lists import List
from .orders.base import ImageFunction
from .orders.compacted import Compact, Compaction, End
from .orders.native import Native
from .portable import fixed_mode
from .reading import read_graph
from .typed_edges import explicit

__all__ = ["Basis", "BoundBasis", "Compact", "Compaction", "Direction", "EdgeList", "End", "ImageFunction", "Native"]
__all__ += ["Work", "bound_basis", "check_bases", "check_types"]


_VALUES = {int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size}
_OF_MODULES = {*vars(nn.Module()), "_frozen"}


def _is_value(thing: object) -> bool:
    """Whether it cannot change, and prints all that it is."""
    if type(thing) in (tuple, frozenset):
        return all(map(_is_value, thing))  # type: ignore[call-overload]
    return type(thing) in _VALUES or isinstance(thing, np.generic)


def _parts(module: nn.Module) -> "Iterator[Basis]":
    """The bases directly within a module, without the parts of these."""
    for part in module.children():
        if isinstance(part, Basis):
            yield part
        else:
            yield from _parts(part)


class Basis(nn.Module):
    """Describes K matrices, before any data is seen. A value: bases of one class with equal attributes have the same
    matrices, and share what is kept with a graph. (`==` tells objects apart, as for any module of torch.)

    A basis of your own calls `super().__init__(K)` and defines `edges(graph)`, which depends on the attributes and the
    graph alone. Override `build(graph)` as well to return a faster `BoundBasis`.

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

    needs_edges = True  # False if a call may have no edge_index
    reads_target = False  # True if, in a bipartite call, some members read the target's own features
    reads_content = False  # True if the matrices are computed from the features
    reads_types = True  # False if types of edges mean nothing to it
    pools = False  # True if the targets are the graphs of a batch
    weights_are_new = False  # True if each call has other weights of edges, such as the results of a network
    binds_unseen = False  # True if binding it to new weights of known edges is quick, and looks at no numbers
    counts_batch = False  # True if the values of `batch` determine the number of targets
    variance_gain: float = 1  # the variance of the sum over all members, relative to one of them: see `glorot`
    axes: int | None = None  # the number of axes of its grid, None for families that are not on a grid
    depth = 1  # the nesting depth, see `check_depth`
    moves = False  # True if each matrix shifts the entries of a grid by one offset
    is_complete = False  # True if every target is linked to every source
    factors: "tuple[Basis, Basis] | None" = None  # of a product
    precedence = 2  # of the operator that it is written with: 0 for `+`, 1 for `@`

    def __init__(self, K: int) -> None:
        super().__init__()
        check_count("K", K)
        self.K = K

    @property
    def target_axes(self) -> int | None:
        """The number of axes of the targets' grid."""
        return self.axes

    @property
    def reads_edges(self) -> bool:
        """Whether it, or a part of it, reads features of edges."""
        return any(part.reads_edges for part in _parts(self))

    @property
    def reads_nodes(self) -> bool:
        """Whether it, or a part of it, computes its matrices from features of nodes."""
        return any(part.reads_nodes for part in _parts(self))

    @property
    def takes_edges(self) -> bool:
        """Whether a call may give edges. Attention whose pairs come from elsewhere would silently ignore them."""
        return self.needs_edges or self.pools or not self.reads_nodes

    @property
    def variance_gains(self) -> Sequence[float]:
        """`variance_gain` for each of the K members, which differ in a sum of bases."""
        return (self.variance_gain,) * self.K

    def complete(self, source: int, target: int, inner: int) -> None:
        """Creates the parameters of parts that read content, for the widths of sources, targets and values."""

    def reset_parameters(self) -> None:
        """Draws the parameters, if there are any, anew."""

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "Basis":
        constants = {name: self._buffers[name] for name in self._non_persistent_buffers_set}
        super()._apply(fn, recurse)
        for name, t in constants.items():
            if t is not None and not t.is_meta:  # `to_empty` drops the numbers, which no checkpoint has
                self._buffers[name] = t.to(self._buffers[name])
        return self

    def sized(self, M: int | None, N: int | None, batch: Any, grid: Ints | None) -> Counts:
        """The numbers of sources and targets of a call; fills in those that are None and that the basis knows."""
        return M, N

    def target_shape(self, grid: Ints) -> Ints | None:
        """The shape of the targets' grid, given that of the sources; None if the family is not on a grid."""
        return None

    def accept(self, bound: BoundBasis) -> BoundBasis:
        """Checks a bound family that a call gives instead of a graph; refuses one known to be of another basis."""
        other = self if bound.origin is None else bound.origin[0]
        keys = self.key, other.key
        if self.axes is None and None not in keys and keys[0] != keys[1]:  # a grid's shape may be left open
            reject("edge_index", f"{self}, the basis of the layer, bound to a graph", other, "bind that of the layer")
        return bound

    def edge_ids(self, graph: Graph) -> Tensor | slice | None:
        """(E',) the edge of the graph at each entry, -1 for a loop that the basis adds; or `slice(None)` for all edges
        in turn; None if the entries are others than the edges of the graph, with or without loops.
        """
        return None

    def edges(self, graph: Graph) -> EdgeList:
        """The family on a graph as typed weighted edges. The graph's tensors are shared: do not write to them."""
        raise NotImplementedError(f"{type(self).__name__} gives neither edges(graph) nor build(graph)")

    def listed(self, graph: Graph) -> Sequence[List] | None:
        """The same in numpy, for graphs with `Graph.as_list`; None if the basis needs more than these edges."""
        return None

    @property
    def letters(self) -> str | None:
        """Its matrices as the kernel of `TransientEdges` makes them, a letter for each; None if they have none.

        I is the identity, n the adjacency of edges without weights, m, r and s the same with the norms 'mean', 'rw' and
        'sym'; a capital is the same of the graph with a loop at each node in place of its own.
        """
        return None

    def build(self, graph: Graph) -> BoundBasis:
        """Binds to a graph."""
        edges = self.edges(graph)
        if graph.mask is not None:
            edges = edges._replace(weight=edges.weight * self._entry_mask(graph, edges))
        return explicit(self.K, graph.M, graph.N, edges, dtype=graph.dtype)

    def _entry_mask(self, graph: Graph, edges: EdgeList) -> Tensor:
        """(E',) the mask of each entry: the graph's edges have to come first; ones for others."""
        mine, theirs = (torch.stack([e.source.long(), e.target.long()]) for e in (edges, graph))
        for subset in (slice(None), theirs[0] != theirs[1]):
            mask, count = cast(Tensor, graph.mask)[subset], theirs[:, subset].shape[1]
            if torch.equal(mine[:, :count], theirs[:, subset]):
                return torch.cat([mask, torch.ones_like(edges.weight[count:])])
        fix = "set explain = False on its layer: its entries are not the edges that are explained"
        return reject("basis", "edges that begin with those of the graph, to be masked", self, fix)

    def on(self, graph: Graph) -> BoundBasis:
        """Binds to a graph; cached with it for all bases of the same `key`, unless weights or masks may change."""
        key = self.key
        if key is None or graph.learns or graph.mask is not None:
            return self._made(graph)
        return memo(graph._memo, (key, self.has_custom and self.training), self._made, graph.plain)

    def _made(self, graph: Graph) -> BoundBasis:
        bound = self.build(graph)
        if isinstance(bound, EdgeList):
            reject("basis", f"a bound family from build(graph) of {self}", "an EdgeList", "call the method edges")
        bound.origin = self, graph.bare  # `graph` itself would make a reference cycle, as it caches its families
        return bound

    @cached_property
    def keeps(self) -> bool:
        """Whether what was bound for a call may be used for later ones like it, apart from what depends on content."""
        return self.reads_content or (type(self).on is Basis.on and self.key is not None)

    @cached_property
    def key(self) -> Hashable | None:
        """A hashable value that identifies the family, or None for bases with something that may change unseen.

        That are tensors, and in a custom class all but numbers, strings and the like.

        It is what the basis prints, its class, and the `extra_key` of its parts.
        """
        parts = [part for part in self.modules() if isinstance(part, Basis)]
        arrays = (value for part in parts for value in vars(part).values() if isinstance(value, Tensor | np.ndarray))
        if self.reads_content or any(True for _ in chain(self.parameters(), self.buffers(), arrays)):
            return None
        if not all(part._holds_values for part in parts if part.is_custom):
            return None
        for part in parts:
            part._frozen = True
        return repr(self), *((type(part), part.extra_key) for part in parts)

    @property
    def extra_key(self) -> Hashable:
        """What identifies it beside its class and what it prints: of a custom class, which may print less than all, the
        attributes and the bases within it.
        """
        if not self.is_custom:
            return None
        return repr(sorted(self._attributes.items())), *(part.key for part in _parts(self))

    @property
    def is_custom(self) -> bool:
        """Whether its class is not one of this package."""
        return not type(self).__module__.startswith(f"{__package__}.")

    @cached_property
    def has_custom(self) -> bool:
        """Whether it, or a part of it, is of a custom class, whose matrices may depend on `training`."""
        return any(isinstance(part, Basis) and part.is_custom for part in self.modules())

    @property
    def _attributes(self) -> dict[str, Any]:
        """Those that `nn.Module` does not have."""
        return {name: value for name, value in without_cached(self).items() if name not in _OF_MODULES}

    @property
    def _holds_values(self) -> bool:
        """Whether nothing that it holds may change within."""
        held = [*self._attributes.values(), *(part for part in self.children() if not isinstance(part, Basis))]
        return all(map(_is_value, held))

    def __getstate__(self) -> dict[str, Any]:
        # Copies may be changed.
        return {name: value for name, value in without_cached(self).items() if name != "_frozen"}

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
        edge_attr: Tensor | None = None,
    ) -> BoundBasis:
        """Does once the work that depends on the graph alone: normalising and sorting.

        Args:
            edge_index: the graph in any of PyG's layouts, see `BasisConv.forward`.
            edge_weight: (E,), or (E, K) for `bases.Edges`.
            edge_type: (E,) for typed edges.
            size: (M, N), or one number for both; inferred from the edges if None.
            dtype: of the matrices; that of edge_weight, of edge_attr, or torch's default, if None.
            batch: (M,) the graph of each node in a batch.
            lambda_max: for `bases.Chebyshev`, a number or one per graph of the batch.
            grid: the shape of the sources' grid, for families on grids that were made without a shape.
            edge_attr: (E, D) the features of edges, for `bases.EdgeFunctions`.
        """
        check_bases(self)
        if dtype is None and edge_weight is None and isinstance(edge_attr, Tensor) and edge_attr.is_floating_point():
            dtype = edge_attr.dtype
        shape = grid_shape(grid)
        size = self.sized(*sizes(size), batch, shape)
        if edge_index is None and self.axes is not None and None in size:
            reject("grid", f"the shape of the grid, for {self}", grid, "pass grid=, or make the basis with a shape")
        check_types(self, edge_type)
        device = batch.device if isinstance(batch, Tensor) else None
        if edge_index is None and device is None:
            device = torch.get_default_device()  # which may be another one in the next call
        graph = read_graph(
            edge_index,
            edge_weight,
            edge_type,
            size=size,
            dtype=dtype,
            device=device,
            batch=batch,
            lambda_max=lambda_max,
            grid=shape,
        )
        if edge_attr is not None and not self.reads_edges:
            reject("edge_attr", f"None, for {self}", type(edge_attr).__name__, "no part of this basis reads it")
        bound = self.on(graph if edge_attr is None else graph.with_edge_attr(edge_attr))
        _ = bound.serial  # made now: torch.compile would compile anew once it is there
        return bound

    def on_grid(
        self, grid: Ints | None, dtype: torch.dtype, device: torch.device, size: Counts = (None, None)
    ) -> BoundBasis:
        """Binds a family that needs no edges, on a device, whatever torch's default one is; see `bind`."""
        size = self.sized(*size, None, grid)
        bound = self.on(read_graph(None, size=size, dtype=dtype, device=device, grid=grid))
        _ = bound.serial
        return bound

    @property
    def T(self) -> "Basis":
        """The family of the transposed matrices."""
        return CONSTRUCTORS["T"](self)

    def __add__(self, other: "Basis") -> "Basis":
        return CONSTRUCTORS["+"](self, other) if isinstance(other, Basis) else NotImplemented

    def __radd__(self, other: object) -> "Basis":
        return self if type(other) is int and other == 0 else NotImplemented  # with which Python's sum() begins

    def __sub__(self, other: "Basis") -> "Basis":
        """The differences of the matrices, one by one."""
        if not isinstance(other, Basis):
            return NotImplemented
        if other.K != self.K:
            reject("basis", f"{self.K} matrices to subtract, as in {self}", other.K, "mix them: bases.Mix(C, a + b)")
        K = self.K
        rows = [[float(k == h) - float(k == K + h) for k in range(2 * K)] for h in range(K)]
        return CONSTRUCTORS["mix"](rows, self + other)

    def __mul__(self, factor: float) -> "Basis":
        """All matrices times a number."""
        if not isinstance(factor, int | float):
            return NotImplemented
        return CONSTRUCTORS["mix"]([[factor if k == h else 0.0 for k in range(self.K)] for h in range(self.K)], self)

    __rmul__ = __mul__

    def __neg__(self) -> "Basis":
        return self * -1.0

    def __matmul__(self, other: "Basis") -> "Basis":
        return CONSTRUCTORS["@"](self, other) if isinstance(other, Basis) else NotImplemented

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"


def check_types(basis: Basis, edge_type: object) -> None:
    """Rejects types of edges that no part of a basis reads."""
    if edge_type is not None and not basis.reads_types:
        fix = "leave them out, or take a basis with a matrix for each type, such as bases.Relations(R)"
        reject("edge_type", f"None, for {basis}, which reads no types", type(edge_type).__name__, fix)


def check_bases(*parts: object) -> None:
    """Rejects arguments that are not bases, and calls without any."""
    for part in parts or (None,):
        if not isinstance(part, Basis):
            fix = call_it(part, "choose one from pyg_basisconv.bases")
            fix = "add the bases up: a + b" if isinstance(part, list | tuple) else fix
            reject("basis", "a Basis", repr(part), fix)
        check_made("basis", "a Basis", part, "K")


def bound_basis(basis: Basis | BoundBasis, *args: Any, **kwargs: Any) -> BoundBasis:
    """Binds a basis, in double precision unless a dtype is given; a bound one is returned as it is."""
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
        args, kwargs = tuple(_to_double(args)), dict(zip(kwargs, _to_double(kwargs.values()), strict=True))
    return basis.bind(*args, **kwargs)


def _to_double(values: Iterable[Any]) -> list[Any]:
    """Floating point numbers in double precision."""
    return [v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for v in values]
