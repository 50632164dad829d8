"""Bound families: K matrices on a graph, ready to be applied."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from .cache import IdentityCache, cached_property, kept, memo, without_cached
from .compiled import serial_number
from .content import Content, Inputs
from .costs import Direction, Work
from .edge_set import EdgeSet
from .entries import Entries
from .errors import reject
from .graph import Graph
from .kernels import Matchings, NonzeroRows, Pattern
from .kernels.grids import Ints
from .kernels.lists import List, Matrix
from .kernels.pattern import tally
from .orders.compacted import Compact, End, tiled
from .orders.native import Native, after_theta
from .portable import with_plain
from .sparse import Evaluate, Sparse
from .theta import Theta

_T = TypeVar("_T")

# Constructors that basis.py and this file call, and files above them define and register: of `+`, `@` and `.T`, and of
# families with written-out edges.
CONSTRUCTORS: dict[str, Callable[..., Any]] = {}


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

    run: from the basis, a content and the bias to the output, reusing all that does not depend on content. If the
    content is observed, it returns the family, too; it returns None if the basis has changed and the step no longer
    applies. replay: a shorter way for the same, without a content: from the basis, the parameter, the features of
    sources, the bias and the call; it returns None if there is none. One of the two may be None.
    on_graph: from the basis and another graph to the step there, or None.
    """

    run: Callable[[Any, Content, Tensor | None], "Tensor | tuple[Tensor, BoundBasis] | None"] | None = None
    replay: Callable[[Any, Theta, Tensor, Tensor | None, Any], Tensor | None] | None = None
    on_graph: "Callable[[Any, Graph], ContentStep | None] | None" = None


def _mark_pairs(source: Tensor, target: Tensor, M: int, N: int) -> Entries:
    """All pairs, of which some are alive."""
    alive = tally(source.long() * N + target.long(), M * N) > 0
    pair = torch.arange(alive.numel(), device=alive.device)
    return Entries(Pattern(pair // N, pair % N, M, N), alive=alive)


@with_plain(_mark_pairs)
def _distinct_pairs(source: Tensor, target: Tensor, M: int, N: int) -> Entries:
    columns = max(1, N)
    pair = torch.unique(source.long() * columns + target.long())
    return Entries(Pattern(pair // columns, pair % columns, M, N))


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
    takes_edge_values = False  # True if edges may have values, see `BasisConv.forward`
    lists: Sequence[List] = ()  # its entries in numpy, if they are constant and known there
    factors: "tuple[BoundBasis, BoundBasis] | None" = None  # of a product
    origin: tuple[Any, Graph] | None = None  # the basis and the graph that it was bound from

    @cached_property
    def serial(self) -> int:
        """A number of its own, see `serial_number`."""
        return serial_number(self)

    def __getstate__(self) -> dict[str, Any]:
        # A copy has a serial number of its own, and computes derived results again.
        return {name: v for name, v in without_cached(self).items() if name != "origin"}

    @cached_property
    def _held(self) -> dict[Hashable, Any]:
        """Derived results, see `keep`."""
        return {}

    def keep(self, name: Hashable, build: Callable[[], _T]) -> _T:
        """The result of `build()`, cached unless a gradient passes through the matrices."""
        held = self._held
        return memo(held, name, build) if name in held or not self.requires_grad else build()

    def edges(self) -> EdgeList:
        """The family as typed weighted edges, in fresh tensors."""
        raise NotImplementedError

    @property
    def explicit(self) -> "Explicit":
        """The same family with its edges written out."""
        return self.keep("explicit", lambda: CONSTRUCTORS["explicit"](self.K, self.M, self.N, self.edges()))

    def iterate(self, x: Tensor) -> Iterable[Tensor]:
        """The K products A_k^T x, (*, N, P) each, one at a time."""
        return self.explicit.iterate(x)

    def runs(self, x: Tensor) -> int | None:
        """How many numbers of the products are held at once by parameters with `sums_runs`; None if all are."""
        return None

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
    def by_target(self) -> Matrix | None:
        """Its matrix, if it is one of constants that is written out; None for others."""
        return None

    @kept
    def adjoint(self) -> "BoundBasis":
        """`T` of constant matrices, cached."""
        return self.T

    @property
    def total(self) -> "BoundBasis | None":
        """The sum of the matrices as a family of one, for `expand_rows`; None if it costs as much as the family."""
        return self if self.K == 1 else None

    @property
    def nonzero_rows(self) -> NonzeroRows | None:
        """Which rows of its products are not zero; None if that is not known without a search."""
        return None

    @property
    def typed(self) -> "Explicit | None":
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
        """(E, K) the attention at the edges of the graph, followed by added loops, if these are known: without the
        weights of edges that it may be multiplied by.
        """
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
        """The evaluation of A and Theta together by a vendor's kernel, if there is one. width: P."""
        fast = self.native_family
        return None if fast is None else after_theta(fast, theta, width)

    def content_step(self, theta: Theta, order: str) -> ContentStep | None:
        """An order in one step, for families that are computed from content and have one; see `Theta.step`."""
        return None

    def in_one_step(self, order: str, inputs: Inputs, bias: Tensor | None) -> Tensor:
        """The output of the `content_step` of an order, for the content that the family was computed from."""
        raise NotImplementedError

    def edge_sums(self, values: Theta, edge_attr: Tensor) -> Tensor:
        """(N, Q) the sums of values that edges have, of families that take them."""
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
        return _distinct_pairs(source, target, self.M, self.N)

    @property
    def kept_entries(self) -> Entries:
        """`find_entries`, cached unless a gradient passes through the matrices."""
        return self.keep("entries", self.find_entries)

    def to_coo(self) -> Tensor:
        """The whole family as one sparse tensor, (K, M, N), coalesced."""
        kind, source, target, weight = self.edges()
        indices = torch.stack([kind.long(), source.long(), target.long()])
        size = self.K, self.M, self.N
        return torch.sparse_coo_tensor(indices, weight, size, device=weight.device, is_coalesced=False).coalesce()

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

        return self.keep("dense", write)

    def expansions(self, x: Tensor) -> tuple[Tensor, ...]:
        """The K products A_k^T x of an x without gradient, cached while x exists unchanged. Do not write to them."""
        return self.known_rows(x).tensor_split(self.K, -1)

    def known_rows(self, x: Tensor) -> Tensor:
        """The same side by side, (*, N, K P)."""
        kept = self._held.setdefault("rows", IdentityCache())
        return kept.get((x,), None, lambda: torch.cat(list(self.iterate(x)), -1))

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient passes through the matrices."""
        return False

    @property
    def draws(self) -> bool:
        """Whether the matrices are drawn: dropout of weights."""
        return False

    def __matmul__(self, other: "BoundBasis") -> "BoundBasis":
        """All products :math:`A'_k A''_l`, first of this family and then of another, bound to a graph of its own."""
        return CONSTRUCTORS["bound @"](self, other) if isinstance(other, BoundBasis) else NotImplemented

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
    def draws(self) -> bool:
        return any(part.draws for part in self.parts)

    @property
    def T(self) -> BoundBasis:
        return self.remake([part.T for part in self.parts])

    @kept
    def adjoint(self) -> BoundBasis:
        return self.remake([part.adjoint for part in self.parts])

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

    @property
    def E(self) -> int:
        """The number of edges."""
        return self.edge_set.source.numel()

    def _sparse(self, pattern: Pattern, weight: Tensor | None) -> Sparse:
        return Sparse(pattern, weight, self.evaluate, self.learns)

    @property
    def requires_grad(self) -> bool:
        return self.weight is not None and self.weight.requires_grad

    @property
    def of_ones(self) -> bool:
        return self.weight is None

    def _of(self, edge_set: EdgeSet, weight: Tensor | None, evaluate: Evaluate | None) -> "Explicit":
        """A family of this kind, with other edges."""
        return type(self)(edge_set, weight, self.dtype, evaluate)

    @property
    def T(self) -> "Explicit":
        return self._of(self.edge_set.T, self.weight, self.evaluate)

    def map(self, change: "Change") -> "Explicit":
        return change(self)

    def moved(self, device: torch.device) -> "Explicit":
        weight = None if self.weight is None else self.weight.to(device)
        return self._of(self.edge_set.to(device), weight, self.evaluate)

    def via(self, evaluate: Evaluate) -> "Explicit":
        """The same family whose matrices are applied by `evaluate` instead of the kernel."""
        return self._of(self.edge_set, self.weight, evaluate)


Change = Callable[[Explicit], Explicit]  # see `BoundBasis.map`
