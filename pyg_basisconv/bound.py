"""Bound families: the base class, and the families with written-out edges that it falls back on."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from .cache import IdentityCache, cached_property, kept, lasting, underived
from .compiled import serial_number
from .content import Content, Inputs
from .costs import Direction, Work
from .edge_set import EdgeSet
from .entries import Entries
from .errors import reject
from .graph import Graph
from .kernels import Matchings, Pattern, spmm, spmm_rows, typed_matmul
from .kernels.grids import Ints
from .kernels.lists import List, Matrix, compressed, ends, kinds, weights
from .kernels.op import acc_dtype
from .kernels.pattern import extremes, in_range, tally
from .orders.compacted import Compact, Compaction, End, tiled
from .orders.native import Native, after_theta
from .portable import portable
from .sparse import Evaluate, Sparse, permute
from .theta import Theta

# The constructors behind `+`, `@` and `.T`, of bases and of bound families. Their files in `bases` register them.
COMPOSITES: dict[str, Callable[..., Any]] = {}


class EdgeList(NamedTuple):
    """A family written out: A[type, source, target] = the sum of the weights of its edges.

    type, source, target: (E,) integers; weight: (E,)

    >>> from pyg_basisconv import bases
    >>> bases.Adjacency('mean').bind(torch.tensor([[0, 1], [2, 2]])).edges().weight
    tensor([0.5000, 0.5000])
    """

    type: Tensor
    source: Tensor
    target: Tensor
    weight: Tensor


class ContentStep(NamedTuple):
    """A and Theta in one step on a graph, for a family that is computed from content.

    again: from the basis, a content and the bias to the output, reusing all that does not depend on content. If the
    content is observed, it returns the family, too; it returns None if the basis has changed and the step no longer
    applies. replay: a shorter way for the same, from the basis, the parameter, the features of sources and targets, and
    the bias; it returns None if there is none. on: from the basis and another graph to the step there, or None.
    """

    again: Callable[[Any, Content, Tensor | None], "Tensor | tuple[Tensor, BoundBasis] | None"]
    replay: Callable[[Any, Theta, Tensor, Tensor, Tensor | None], Tensor | None] | None = None
    on: "Callable[[Any, Graph], ContentStep | None] | None" = None


class BoundBasis:
    """A family of K matrices A_k, M x N, ready to be applied.

    A subclass defines `edges()`; everything else follows from it, and is overridden only to be faster.
    x may have leading batch dimensions everywhere (written *).

    >>> from pyg_basisconv import bases
    >>> bound = bases.Powers(3, bases.Adjacency()).bind(torch.tensor([[0, 1], [1, 2]]), size=3)
    >>> bound.K, bound.expand(torch.tensor([[1.], [0.], [0.]])).squeeze(-1)
    (3, tensor([[1., 0., 0.],
                [0., 1., 0.],
                [0., 0., 1.]]))
    >>> bound.T.combine(torch.ones(3, 3, 1)).squeeze(-1)
    tensor([3., 2., 1.])
    """

    K: int
    M: int
    N: int
    dtype: torch.dtype
    device: torch.device
    batch: Ints = ()  # batch dimensions, if each graph of a batch has matrices of its own
    source_grid: Ints | None = None  # the shape of the sources' grid, if they are on one
    target_grid: Ints | None = None  # the shape of the targets' grid
    written_out = False  # True if it holds its edges
    lists: Sequence[List] = ()  # its entries in numpy, if they are constant and known there
    factors: "tuple[BoundBasis, BoundBasis] | None" = None  # of a product
    origin: tuple[Any, Graph] | None = None  # the basis and the graph that it was bound from

    @cached_property
    def serial(self) -> int:
        """A number of its own, see `serial_number`."""
        return serial_number(self)

    def __getstate__(self) -> dict[str, Any]:
        # A copy has a serial number of its own, and computes derived results again.
        return {name: v for name, v in underived(self).items() if name != "origin"}

    @cached_property
    def _held(self) -> dict[Hashable, Any]:
        """Derived results, see `keep`."""
        return {}

    def keep(self, name: Hashable, build: Callable[[], Any]) -> Any:
        """The result of `build()`, cached unless a gradient passes through the matrices."""
        found = self._held.get(name)
        if found is not None:
            return found
        found = lasting(build)
        return found if self.requires_grad or portable() else self._held.setdefault(name, found)

    def edges(self) -> EdgeList:
        """The family as typed weighted edges, in fresh tensors."""
        raise NotImplementedError

    @property
    def explicit(self) -> "Explicit":
        """The same family with its edges written out."""
        return self.keep("explicit", lambda: explicit(self.K, self.M, self.N, self.edges()))  # type: ignore[no-any-return]

    def iterate(self, x: Tensor) -> Iterator[Tensor]:
        """The K products A_k^T x, (*, N, P) each, one at a time."""
        return self.explicit.iterate(x)

    def expand(self, x: Tensor) -> Tensor:
        r"""All products :math:`A_k^\top x`: (*, M, P) -> (K, *, N, P)."""
        return torch.stack(list(self.iterate(x)))

    def combine(self, z: Tensor | Sequence[Tensor | None]) -> Tensor:
        r"""The sum :math:`\sum_k A_k^\top z_k`: (K, *, M, Q) -> (*, N, Q); None in a sequence means zeros."""
        return self.explicit.combine(z)

    def each(self, z: Tensor) -> Tensor:
        r"""Member by member :math:`A_k^\top z_k`: (K, *, M, D) -> (K, *, N, D)."""
        return self.explicit.each(z)

    @property
    def takes_rows(self) -> bool:
        """Whether its matrices are constants, and it has `expand_rows` and `combine_rows`; see `kernels.contract`."""
        return False

    def expand_rows(self, x: Tensor) -> Tensor:
        """All products side by side, without autograd: (M, P) -> (N, K P)."""
        raise NotImplementedError

    def combine_rows(self, z: Tensor) -> Tensor:
        """The sum of all products, without autograd: (M, K Q) -> (N, Q)."""
        raise NotImplementedError

    @property
    def adjoint(self) -> "BoundBasis":
        """`T`, cached."""
        raise NotImplementedError

    @property
    def total(self) -> "BoundBasis | None":
        """The sum of the matrices as a family of one, for `expand_rows`; None if it costs as much as the family."""
        return self if self.K == 1 else None

    @property
    def typed(self) -> "TypedEdges | None":
        """The family as one list of typed edges, if writing it out costs little; None otherwise."""
        return None

    @property
    def constant_weights(self) -> Tensor | None:
        """(J, N) the weights of constants in a composition of two layers, see `bases.Composition`."""
        return None

    @property
    def matrices(self) -> "BoundBasis":
        """The family alone, without `constant_weights`."""
        return self

    @property
    def matchings(self) -> Matchings | None:
        """The index pairs of matrices of zeros and ones with at most one 1 per row and column; None for others."""
        return None

    @property
    def of_ones(self) -> bool:
        """Whether all its edges are known to have the weight 1."""
        return self.matchings is not None

    @property
    def stencil(self) -> Any:
        """The same family as a `BoundGrid` of ones, if its matrices are shifts of a grid."""
        return None

    def offsets_in(self, stencil: Any) -> list[Ints] | None:
        """The offsets of its matrices on the grid of a stencil, if they are shifts of that grid."""
        return None

    def compact(self, side: End) -> Compact | None:
        """The sum over members and Theta on the nonzero rows of each member, if that may pay."""
        return tiled(self, side)

    @property
    def alpha(self) -> Tensor | None:
        """(E, K) the weights of attention at the edges of the graph, followed by added loops, if these are known."""
        return None

    @property
    def mixing(self) -> Work | None:
        """The cost of one written-out mixture of the members, for typed edges."""
        return None

    def mixed(self, coefficients: Tensor) -> "BoundBasis":
        r"""The H mixtures :math:`\sum_k C_{hk} A_k` of (H, K) coefficients, written out."""
        return self.explicit.mixed(coefficients)

    @property
    def T(self) -> "BoundBasis":
        """The family of the transposed matrices."""
        return self.explicit.T

    def work(self, direction: Direction) -> Work:
        """The cost of one evaluation per unit of width."""
        return self.explicit.work(direction)

    @property
    def native_family(self) -> "BoundBasis | None":
        """The same family evaluated by a vendor's kernel, if there is one."""
        return None

    def native(self, theta: Theta, width: int) -> Native | None:
        """The evaluation of A and Theta together by a vendor's kernel, if there is one.

        Args:
            theta: the parameter.
            width: P.
        """
        fast = self.native_family
        return None if fast is None else after_theta(fast, theta, width)

    def content_step(self, theta: Theta, order: str) -> ContentStep | None:
        """An order in one step, for families that are computed from content and have one; see `Theta.step`."""
        return None

    def in_one_step(self, order: str, inputs: Inputs, bias: Tensor | None) -> Tensor:
        """The output of the `content_step` of an order, for the content that the family was computed from."""
        raise NotImplementedError

    @property
    def native_cost(self) -> tuple[int, int, int]:
        """For a `native_family`: operations and numbers per unit of width, and kernels. See `Native`."""
        each = self.work("each")
        return 2 * each.entries, 2 * each.rows, each.products

    def map(self, change: "Change") -> "BoundBasis":
        """The same family with `change` applied to each explicit part."""
        return change(self.explicit)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "BoundBasis":
        """The same family on another device; the signature with which PyG's `Data` moves its attributes."""
        return self.moved(torch.device(device))

    def cpu(self) -> "BoundBasis":
        """The same family on the CPU."""
        return self.to("cpu")

    def cuda(self, device: torch.device | str | int | None = None, non_blocking: bool = False) -> "BoundBasis":
        """The same family on a CUDA device, the current one for None."""
        return self.to(torch.device("cuda", device) if isinstance(device, int) else device or "cuda")

    def moved(self, device: torch.device) -> "BoundBasis":
        """The same family on another device; `to` calls it, and subclasses override it."""
        return self.map(lambda part: part.moved(device))

    def masked(self, mask: Callable[[Graph], Graph]) -> "BoundBasis":
        """The same basis, bound to the same graph with its edges masked."""
        if self.origin is None:
            fix = "pass the edges, or what basis.bind(edges) gave, as it is"
            reject("edge_index", "a bound basis that knows its graph", type(self).__name__, fix)
        basis, graph = self.origin
        return basis.build(mask(graph))

    def find_entries(self) -> Entries:
        """The entries of a mask: all edges of a single matrix, or the distinct pairs (m, n) of a family."""
        if self.K == 1:
            written = self.explicit
            return Entries(written.edge_set.expand, written.weight, alive=written.edge_set.alive)
        _, source, target, _ = self.edges()
        if portable():  # all pairs, of which some are alive
            pair = source.long() * self.N + target.long()
            alive = tally(pair, self.M * self.N) > 0
            pair = torch.arange(alive.numel(), device=pair.device)
            return Entries(Pattern(pair // self.N, pair % self.N, self.M, self.N), alive=alive)
        N = max(1, self.N)
        pair = torch.unique(source.long() * N + target.long())
        return Entries(Pattern(pair // N, pair % N, self.M, self.N))

    @property
    def kept_entries(self) -> Entries:
        """`find_entries`, cached unless a gradient passes through the matrices."""
        return self.keep("entries", self.find_entries)  # type: ignore[no-any-return]

    def to_coo(self) -> Tensor:
        """The whole family as one sparse tensor, (K, M, N), coalesced."""
        kind, source, target, weight = self.edges()
        indices = torch.stack([kind.long(), source.long(), target.long()])
        return torch.sparse_coo_tensor(indices, weight, (self.K, self.M, self.N), is_coalesced=False).coalesce()

    def to_dense(self) -> Tensor:
        """The whole family written out, (K, *, M, N)."""
        dense = self.dense
        return dense.clone() if "dense" in self._held else dense  # the caller may write to it

    @property
    def dense(self) -> Tensor:
        """`to_dense` without a copy, cached unless a gradient passes through the matrices. Do not write to it."""

        def write() -> Tensor:
            eye = torch.eye(self.M, dtype=self.dtype, device=self.device)
            return self.expand(eye.expand(*self.batch, self.M, self.M)).transpose(-1, -2)

        return self.keep("dense", write)  # type: ignore[no-any-return]

    def expansions(self, x: Tensor) -> tuple[Tensor, ...]:
        """The K products A_k^T x of an x without gradient, cached while x exists unchanged. Do not write to them."""

        def build() -> tuple[Tensor, ...]:
            # Cached tensors must not share the memory of x, which would keep it alive.
            own = x.untyped_storage()._cdata
            return tuple(u.clone() if u.untyped_storage()._cdata == own else u for u in self.iterate(x))

        return self._held.setdefault("expansions", IdentityCache()).get((x,), None, build)  # type: ignore[no-any-return]

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient passes through the matrices."""
        return False

    def __matmul__(self, other: "BoundBasis") -> "BoundBasis":
        """All products :math:`A'_k A''_l`, first of this family and then of another, bound to a graph of its own."""
        return COMPOSITES["bound @"](self, other) if isinstance(other, BoundBasis) else NotImplemented

    def __repr__(self) -> str:
        return f"{type(self).__name__}(K={self.K}, M={self.M}, N={self.N}, dtype={self.dtype})"


class Derived(BoundBasis):
    """A family computed from others, its parts.

    A subclass defines `parts`, and `remake(parts)`: the same family of other parts, such as those on another device.
    """

    parts: Sequence[BoundBasis]

    def remake(self, parts: Sequence[BoundBasis]) -> BoundBasis:
        """The same family of other parts."""
        raise NotImplementedError

    @property
    def requires_grad(self) -> bool:
        return any(part.requires_grad for part in self.parts)

    @property
    def T(self) -> BoundBasis:
        return self.remake([part.T for part in self.parts])

    def map(self, change: "Change") -> BoundBasis:
        return self.remake([part.map(change) for part in self.parts])

    def moved(self, device: torch.device) -> BoundBasis:
        return self.remake([part.moved(device) for part in self.parts])


class Explicit(BoundBasis):
    """A family with its edges written out."""

    edge_set: EdgeSet
    weight: Tensor | None
    evaluate: Evaluate | None
    written_out = True

    def __init__(
        self, edge_set: EdgeSet, weight: Tensor | None, dtype: torch.dtype, evaluate: Evaluate | None = None
    ) -> None:
        self.edge_set, self.evaluate, self.dtype = edge_set, evaluate, dtype
        self.weight = None if weight is None else weight.to(dtype)
        self.K, self.M, self.N = edge_set.K, edge_set.M, edge_set.N
        self.device = edge_set.source.device
        self.learns = self.requires_grad

    def _sparse(self, pattern: Pattern, weight: Tensor | None) -> Sparse:
        return Sparse(pattern, weight, self.evaluate, self.learns)

    @property
    def requires_grad(self) -> bool:
        return self.weight is not None and self.weight.requires_grad

    @property
    def of_ones(self) -> bool:
        return self.weight is None or super().of_ones

    @property
    def T(self) -> "Explicit":
        return type(self)(self.edge_set.T, self.weight, self.dtype, self.evaluate)

    def map(self, change: "Change") -> "Explicit":
        return change(self)

    def moved(self, device: torch.device) -> "Explicit":
        weight = None if self.weight is None else self.weight.to(device)
        return type(self)(self.edge_set.to(device), weight, self.dtype, self.evaluate)

    def via(self, evaluate: Evaluate) -> "Explicit":
        """The same family whose matrices are applied by `evaluate` instead of the kernel."""
        return type(self)(self.edge_set, self.weight, self.dtype, evaluate)


class TypedEdges(Explicit):
    """Each edge belongs to one matrix of the family; (E,) weights."""

    @kept
    def _expand(self) -> Sparse:
        return self._sparse(self.edge_set.expand, self.weight)

    @kept
    def _combine(self) -> Sparse:
        return self._expand if self.K == 1 else self._sparse(self.edge_set.combine, self.weight)

    @kept
    def _each(self) -> Sparse:
        return self._expand if self.K == 1 else self._sparse(self.edge_set.each, self.weight)

    @property
    def takes_rows(self) -> bool:
        return not self.learns and self.evaluate is None

    @property
    def _into(self) -> Matrix:
        """From M sources to the K members of N targets."""
        return self._expand.compressed  # type: ignore[no-any-return]

    @property
    def _from(self) -> Matrix:
        """From the K members of M sources to N targets."""
        return self._combine.compressed  # type: ignore[no-any-return]

    def expand_rows(self, x: Tensor) -> Tensor:
        y = spmm_rows(x, *self._into)  # (N K, P)
        return y if self.K == 1 else y.view(self.N, self.K * x.shape[1])

    def combine_rows(self, z: Tensor) -> Tensor:
        z = z if self.K == 1 else z.view(self.M * self.K, z.shape[1] // self.K)
        return spmm_rows(z, *self._from)

    @kept
    def adjoint(self) -> "TypedEdges":
        return self.T  # type: ignore[return-value]

    @property
    def total(self) -> "TypedEdges":
        return self if self.K == 1 else self._merged

    @kept
    def _merged(self) -> "TypedEdges":
        return TypedEdges(self.edge_set.merged, self.weight, self.dtype)

    @property
    def typed(self) -> "TypedEdges":
        return self

    @kept
    def matchings(self) -> Matchings | None:
        return None if self.weight is not None or self.K == 1 else self.edge_set.matchings

    def compact(self, side: End) -> Compact | None:
        e = self.edge_set
        if self.K == 1 or portable():
            return None
        tiled = super().compact(side)
        if tiled is not None:
            return tiled
        source = side == "source"
        pairs = e.T.pairs if source else e.pairs
        edges, rows = Work(e.source.numel(), pairs.count), Work(pairs.count, pairs.count)
        gather, scatter = (rows, edges) if source else (edges, rows)

        def run(x: Tensor, weight: Tensor) -> Tensor:
            return typed_matmul(x, weight, self._by_pair(side, pairs.order), pairs, turned=source)

        return Compact(run, Compaction(side, gather, pairs.count, scatter, pairs.members))

    def _by_pair(self, side: End, order: Tensor | None) -> Tensor | None:
        """The weights in the order of the pairs; cached if they are constants."""
        if self.weight is None:
            return None
        if self.learns or order is None:
            return permute(self.weight, order)
        return self.keep(side, lambda: permute(cast(Tensor, self.weight), order))  # type: ignore[no-any-return]

    @property
    def mixing(self) -> Work | None:
        return Work(self.E, self.N, 1) if self.K > 1 else None

    def mixed(self, coefficients: Tensor) -> "SharedEdges":
        e, C = self.edge_set, coefficients.to(self.dtype).t()  # (K, H)
        weight = spmm(C, None, e.type_pattern)  # (E, H), a gather whose derivative is summed in a fixed order
        if self.weight is not None:
            weight = weight * self.weight.unsqueeze(1)
        return SharedEdges(e.merged, weight, self.dtype)

    def edges(self) -> EdgeList:
        e = self.edge_set
        weight = torch.ones(e.source.numel(), dtype=self.dtype, device=self.device)
        kept = (e.type, e.source, e.target, weight if self.weight is None else self.weight)
        return EdgeList(*(t.clone() for t in kept))  # the caller may write to them

    @property
    def explicit(self) -> "Explicit":
        return self

    def iterate(self, x: Tensor) -> Iterator[Tensor]:
        return iter(cast(Sequence[Tensor], members(self.expand(x), self.K)))

    def expand(self, x: Tensor) -> Tensor:
        y = self._expand.apply(x)  # (*, N K, P)
        return y.unsqueeze(0) if self.K == 1 else self._members(y)

    def _members(self, y: Tensor) -> Tensor:
        """(*, N K, P) -> (K, *, N, P), a view."""
        return y.view(*y.shape[:-2], self.N, self.K, y.shape[-1]).movedim(-2, 0)

    def combine(self, z: Tensor | Sequence[Tensor | None]) -> Tensor:
        if self.K == 1:
            return self._expand.apply(cast(Tensor, members(z, 1)[0]))
        z = dense(check_members(z, self.K))
        return self._combine.apply(self._by_node(z))  # (*, N, Q)

    def each(self, z: Tensor) -> Tensor:
        return self._members(self._each.apply(self._by_node(z)))  # (K, *, N, D)

    def _by_node(self, z: Tensor) -> Tensor:
        """(K, *, M, D) -> (*, M K, D)"""
        return z.movedim(0, -2).reshape(*z.shape[1:-2], self.M * self.K, z.shape[-1])

    @property
    def E(self) -> int:
        """The number of edges."""
        return self.edge_set.source.numel()

    def work(self, direction: Direction) -> Work:
        rows = self.N if direction == "combine" else self.K * self.N
        return Work(self.E, rows, 1)


class ListedEdges(TypedEdges):
    """Constant typed edges on the CPU, in numpy lists; an `EdgeSet` is made on first use only.

    So a graph that is new in every step is bound in a few operations.
    """

    learns = requires_grad = False
    evaluate = None
    takes_rows = True
    device = torch.device("cpu")

    def __init__(self, K: int, M: int, N: int, lists: Sequence[List], dtype: torch.dtype) -> None:
        self.K, self.M, self.N, self.lists, self.dtype = K, M, N, lists, dtype

    @kept
    def edge_set(self) -> EdgeSet:
        return EdgeSet(self.K, self.M, self.N, None if self.K == 1 else kinds(self.lists), *ends(self.lists))

    def find_entries(self) -> Entries:
        if self.K > 1:
            return super().find_entries()
        return Entries(Pattern(*ends(self.lists), self.M, self.N), self.weight)

    @kept
    def weight(self) -> Tensor | None:
        return weights(self.lists, self.dtype)

    @cached_property
    def _into(self) -> Matrix:
        return lasting(compressed, self.lists, self.K, (self.M, self.N), "target", self.dtype)

    @cached_property
    def _from(self) -> Matrix:
        if self.K == 1:
            return self._into
        return lasting(compressed, self.lists, self.K, (self.M, self.N), "source", self.dtype)

    @kept
    def _merged(self) -> "ListedEdges":
        return ListedEdges(1, self.M, self.N, [List(0, e.source, e.target, e.weight) for e in self.lists], self.dtype)

    @cached_property
    def adjoint(self) -> "ListedEdges":  # cached in the portable path, too: transforms do not see numpy arrays
        return self.T

    @property
    def T(self) -> "ListedEdges":
        return ListedEdges(self.K, self.N, self.M, [e.T for e in self.lists], self.dtype)

    @property
    def _written(self) -> TypedEdges:
        return TypedEdges(self.edge_set, self.weight, self.dtype)

    def moved(self, device: torch.device) -> Explicit:
        return self._written.moved(device)

    def via(self, evaluate: Evaluate) -> Explicit:
        return self._written.via(evaluate)

    @property
    def E(self) -> int:
        return sum(e.source.size for e in self.lists)


class SharedEdges(Explicit):
    """Every edge belongs to all matrices of the family; (E, K) weights on one pattern."""

    weight: Tensor

    @property
    def _matrices(self) -> list[Sparse]:
        # Views of weights that learn are made for each use, as an in-place update would detach older ones.
        return self._columns() if self.learns else self._fixed_columns

    @kept
    def _fixed_columns(self) -> list[Sparse]:
        return self._columns()

    def _columns(self) -> list[Sparse]:
        columns = self.weight.t().contiguous().unbind(0)  # (E,) each, as kernels read them
        return [self._sparse(self.edge_set.expand, column) for column in columns]

    def __init__(
        self, edge_set: EdgeSet, weight: Tensor | None, dtype: torch.dtype, evaluate: Evaluate | None = None
    ) -> None:
        super().__init__(edge_set, weight, dtype, evaluate)
        self.K = self.weight.shape[1]

    def edges(self) -> EdgeList:
        e, E = self.edge_set, self.edge_set.source.numel()
        kind = torch.arange(self.K, device=self.device).repeat_interleave(E)
        weight = torch.cat(self.weight.unbind(1))  # always a copy
        return EdgeList(kind, e.source.repeat(self.K), e.target.repeat(self.K), weight)

    def iterate(self, x: Tensor) -> Iterator[Tensor]:
        return (matrix.apply(x) for matrix in self._matrices)

    def combine(self, z: Tensor | Sequence[Tensor | None]) -> Tensor:
        parts = [matrix.apply(z_k) for matrix, z_k in zip(self._matrices, z, strict=True) if z_k is not None]
        return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]

    def each(self, z: Tensor) -> Tensor:
        return torch.stack([matrix.apply(z_k) for matrix, z_k in zip(self._matrices, z, strict=True)])

    def work(self, direction: Direction) -> Work:
        return Work(self.edge_set.source.numel(), self.N, 1).times(self.K)


Change = Callable[[Explicit], Explicit]  # see `BoundBasis.map`


def members(z: Tensor | Sequence[Tensor | None], K: int) -> Sequence[Tensor | None]:
    """The K members of z as a sequence. A single member is not made by `unbind`, whose views cannot be written to."""
    z = check_members(z, K)
    if not isinstance(z, Tensor):
        return z
    return z.unbind(0) if K > 1 else (z.squeeze(0),)


def check_members(z: Tensor | Sequence[Tensor | None], K: int) -> Tensor | Sequence[Tensor | None]:
    """z, if it has K members; rejects others."""
    if len(z) != K:
        reject("z", f"{K} members, one for each matrix", len(z), "stack them along the first axis")
    return z


def dense(z: Tensor | Sequence[Tensor | None]) -> Tensor:
    """(K, *, M, Q) from a sequence in which None means zeros."""
    if isinstance(z, Tensor):
        return z
    like = next(z_k for z_k in z if z_k is not None)
    if len(z) == 1:
        return like.unsqueeze(0)  # no copy
    return torch.stack([torch.zeros_like(like) if z_k is None else z_k for z_k in z])


def edges_of_matrices(matrices: Sequence[Tensor], dtype: torch.dtype) -> EdgeList:
    """The edge list of members given as coalesced sparse matrices, (M, N) each; at least one."""
    kinds = [torch.full((one._nnz(),), k, device=one.device) for k, one in enumerate(matrices)]
    source, target = torch.cat([one.indices() for one in matrices], 1)
    return EdgeList(torch.cat(kinds), source, target, torch.cat([one.values() for one in matrices]).to(dtype))


def matrix_and_identity(family: BoundBasis) -> tuple[Tensor, Tensor]:
    """The one square matrix of a family, and the identity: (M, M), sparse, in float32 at least."""
    dtype = acc_dtype(family.dtype)
    nodes = torch.arange(family.M, device=family.device)
    ones = torch.ones(family.M, dtype=dtype, device=family.device)
    eye = torch.sparse_coo_tensor(torch.stack([nodes, nodes]), ones, (family.M, family.M)).coalesce()
    return torch.sparse.sum(family.to_coo().to(dtype), 0).coalesce(), eye


def explicit(K: int, M: int, N: int, edges: EdgeList, dtype: torch.dtype | None = None) -> TypedEdges:
    """The bound basis of a list of edges, checked.

    >>> edges = EdgeList(torch.tensor([0, 1]), torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([1., 2.]))
    >>> explicit(2, 2, 2, edges).expand(torch.tensor([[1.], [10.]])).squeeze(-1)
    tensor([[ 0.,  1.],
            [20.,  0.]])
    """
    kind, source, target, weight = edges
    for name, index, size in (("type", kind, K), ("source", source, M), ("target", target, N)):
        if index.shape != weight.shape:
            reject(f"edges.{name}", f"the weights' shape, {tuple(weight.shape)}", tuple(index.shape), "one per edge")
        if not portable() and not in_range(index, size):
            fix = "correct the edges of the basis"
            reject(f"edges.{name}", f"indices from 0 to {size - 1}", extremes(index), fix)
    return TypedEdges(EdgeSet(K, M, N, None if K == 1 else kind, source, target), weight, dtype or weight.dtype)
