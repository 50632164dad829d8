"""`a @ b`: the product of families."""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from ..basis import Basis, BoundBasis, Direction, EdgeList, Work, check_bases
from ..bound import CONSTRUCTORS, Derived
from ..cache import kept
from ..errors import reject
from ..graph import Counts, Graph
from ..kernels.grids import Ints
from ..kernels.op import acc_dtype
from ..portable import refuse
from ..typed_edges import check_members, dense
from .composed import Composed, operand_repr
from .mix import BoundMix


class BoundProduct(Derived):
    r"""All products :math:`A'_k A''_l`, member k K'' + l, applied without being written out."""

    def __init__(self, first: BoundBasis, second: BoundBasis) -> None:
        if first.N != second.M:
            reject("basis", f"{first.N} rows in the second factor", second.M, "multiply families whose sizes join")
        if (first.dtype, first.device) != (second.dtype, second.device):
            got = f"{second.dtype} on {second.device}"
            reject("basis", f"a second factor of {first.dtype} on {first.device}", got, "bind both alike")
        self.first, self.second = self.parts = self.factors = first, second
        self.K, self.M, self.N = first.K * second.K, first.M, second.N
        self.source_grid, self.target_grid = first.source_grid, second.target_grid
        if second.target_grid is None and second.M == second.N:  # such as an identity
            self.target_grid = first.target_grid
        self.dtype, self.device = first.dtype, first.device
        self.batch = max(first.batch, second.batch, key=len)

    def iterate(self, x: Tensor) -> Iterator[Tensor]:
        return chain.from_iterable(self.second.iterate(u) for u in self.first.iterate(x))

    def combine(self, z: Tensor | Sequence[Tensor | None]) -> Tensor:
        z = dense(check_members(z, self.K))
        z = z.view(self.first.K, self.second.K, *z.shape[1:])  # (K', K'', *, M, Q)
        return self.second.combine(self.first.combine(z))

    def each(self, z: Tensor) -> Tensor:
        z = z.view(self.first.K, self.second.K, *z.shape[1:])  # (K', K'', *, M, D)
        z = self.first.each(z).transpose(0, 1)  # (K'', K', *, N', D)
        return self.second.each(z).transpose(0, 1).flatten(0, 1)

    @kept
    def takes_rows(self) -> bool:
        # If both factors have several members, those of the transposed product are in another order.
        return 1 in (self.first.K, self.second.K) and self.first.takes_rows and self.second.takes_rows

    def expand_rows(self, x: Tensor) -> Tensor:
        return self.second.expand_rows(self.first.expand_rows(x))

    def combine_rows(self, z: Tensor) -> Tensor:
        return self.second.combine_rows(self.first.combine_rows(z))

    @kept
    def adjoint(self) -> BoundBasis:
        return BoundProduct(self.second.adjoint, self.first.adjoint)

    def edges(self) -> EdgeList:
        refuse("basis", "a product that is applied, and not written out", self)
        # The products of all members at once: one matrix with rows (k, m), times one with columns (l, n).
        dtype = acc_dtype(self.dtype)
        k, m, j, v = self.first.edges()
        second, i, n, w = self.second.edges()
        K2, N = self.second.K, self.N
        rows = torch.stack([k.long() * self.M + m.long(), j.long()])
        columns = torch.stack([i.long(), second.long() * N + n.long()])
        left = torch.sparse_coo_tensor(rows, v.to(dtype), (self.first.K * self.M, self.first.N), device=v.device)
        right = torch.sparse_coo_tensor(columns, w.to(dtype), (self.first.N, K2 * N), device=w.device)
        product = torch.sparse.mm(left, right).coalesce()
        row, column = product.indices()
        kind = (row // self.M) * K2 + column // N
        return EdgeList(kind, row % self.M, column % N, product.values().to(self.dtype))

    def remake(self, parts: Sequence[BoundBasis]) -> "BoundProduct":
        return BoundProduct(*parts)

    @property
    def T(self) -> BoundBasis:
        # (A' A'')^T = A''^T A'^T; its members, in order (l, k), are permuted to (k, l).
        product = BoundProduct(self.second.T, self.first.T)
        if 1 in (self.first.K, self.second.K):
            return product
        order = [j * self.first.K + i for i in range(self.first.K) for j in range(self.second.K)]
        return BoundMix([[float(n == one) for n in range(self.K)] for one in order], product)

    def work(self, direction: Direction) -> Work:
        first, second = self.first.work(direction), self.second.work(direction)
        if direction == "expand":
            return first.plus(second.times(self.first.K))
        if direction == "combine":
            return first.times(self.second.K).plus(second)
        return first.times(self.second.K).plus(second.times(self.first.K))


class Product(Composed):
    r"""`a @ b`: all products :math:`A'_k A''_l`, first a then b, K = K' K'' (Prop. 3: composition).

    Args:
        first: a.
        second: b, from the targets of a.

    >>> from pyg_basisconv import bases
    >>> (bases.Powers(2) @ bases.Diffusion(2)).K
    8
    """

    precedence = 1

    def __init__(self, first: Basis, second: Basis) -> None:
        check_bases(first, second)
        super().__init__(first.K * second.K, first, second)
        self.variance_gain = first.variance_gain * second.variance_gain
        self.reads_target = first.reads_target and self.axes is None  # on grids an identity reads the sources

    @property
    def factors(self) -> tuple[Basis, Basis]:  # type: ignore[override]
        first, second = self.parts
        return first, second

    @property
    def target_axes(self) -> int | None:
        first, second = self.parts
        return (first if second.axes is None else second).target_axes

    def sized(self, M: int | None, N: int | None, batch: Any, grid: Ints | None) -> Counts:
        first, second = self.parts
        M, between = first.sized(M, None, batch, grid)
        on = None if grid is None else self._between(grid)
        _, N = second.sized(between, N, batch, on)
        return M, between if N is None and not second.needs_edges else N

    def target_shape(self, grid: Ints) -> Ints | None:
        second, between = self.parts[1], self._between(grid)
        found = second.target_shape(between)
        return between if found is None and not (second.needs_edges or second.pools) else found

    def _between(self, grid: Ints) -> Ints:
        """The grid of the first factor's targets; that of the sources if the factor is not on a grid."""
        found: Ints | None = self.parts[0].target_shape(grid)
        return grid if found is None else found

    def bind_parts(self, graph: Graph) -> list[BoundBasis]:
        return list(bind_in_sequence(*self.parts, graph))  # type: ignore[arg-type, call-arg]

    def join(self, bound: list[BoundBasis]) -> BoundBasis:
        return BoundProduct(*bound)

    def accept(self, bound: BoundBasis) -> BoundBasis:
        if self.is_reordered(bound):
            fix = "pass first_bound @ second_bound"
            reject("edge_index", f"the factors of {self} in their order", "another order", fix)
        return super().accept(bound)

    def is_reordered(self, bound: BoundBasis) -> bool:
        """Whether a bound product is known to have the same factors in another order."""
        mine, theirs = _factors(self), _bound_factors(bound)
        return mine != theirs and Counter(mine) == Counter(theirs)

    def __repr__(self) -> str:
        return " @ ".join(operand_repr(part, self.precedence) for part in self.parts)


def _factors(basis: Basis) -> list[Hashable]:
    """The keys of the factors of a product."""
    if type(basis) is not Product:
        return [basis.key]
    return [key for part in basis.parts for key in _factors(part)]


def _bound_factors(bound: BoundBasis) -> list[Hashable]:
    """The keys of the factors of a bound product; None for unknown ones."""
    if isinstance(bound, BoundProduct):
        return _bound_factors(bound.first) + _bound_factors(bound.second)
    return [None if bound.origin is None else bound.origin[0].key]


def bind_in_sequence(first: Basis, second: Basis, graph: Graph) -> tuple[BoundBasis, BoundBasis]:
    """Binds two families: the first from the sources, the second from the targets of the first."""
    between = first.sized(graph.M, None, graph.batch, graph.grid)[1]
    start = graph if first.needs_edges else graph.resized(graph.M, graph.M if between is None else between, graph.grid)
    before, behind = first.on(start), graph.from_intermediate
    if second.needs_edges:
        return before, second.on(behind if before.target_grid is None else behind.on_grid(before.target_grid))
    return before, second.on(behind.resized(before.N, graph.N, before.target_grid or graph.grid))


CONSTRUCTORS.update({"@": Product, "bound @": BoundProduct})
