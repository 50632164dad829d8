"""Edges without weights: of a graph, or of a family of matrices."""

from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from .backend import on_gpu
from .cache import cached_property, kept, memo, without_cached
from .kernels import Matchings, Pairs, Pattern, spmm
from .kernels.lists import Array
from .kernels.pattern import index_dtype
from .portable import checked, with_plain

_T = TypeVar("_T")


class EdgeSet:
    """E edges (k, m, n) of K matrices, M x N, without weights; and what follows from them alone, which is kept.

    The family is one matrix from M to N K for expand, from M K to N for combine, and from M K to N K for each, with the
    K members of a node side by side. For a single matrix these patterns are the same.

    Args:
        type, source, target: (E,) of each edge. With K = 1 the type is not read, but may be there, see `with_types`.
        alive: (E,) False for edges that do not exist; None if all do. The portable path cannot leave edges out, and
            gives them the weight 0.

    Attributes:
        arrays: the sources and targets in numpy, if it was made from arrays; None otherwise.
    """

    arrays: tuple[Array, Array] | None = None

    def __init__(
        self,
        K: int,
        M: int,
        N: int,
        type: Tensor | None,
        source: Tensor,
        target: Tensor,
        alive: Tensor | None = None,
    ) -> None:
        self.K, self.M, self.N, self.type, self.source, self.target = K, M, N, type, source, target
        self.alive = alive
        self._memo: dict[Hashable, Any] = {}

    @classmethod
    def of_arrays(cls, arrays: tuple[Array, Array], type: Tensor | None, M: int, N: int) -> "EdgeSet":
        """The edges of one matrix on the CPU, given as arrays; tensors are made of them on first use."""
        edges = object.__new__(cls)
        edges.arrays, edges.K, edges.M, edges.N, edges.type = arrays, 1, M, N, type
        edges.alive, edges._memo = None, {}
        return edges

    @classmethod
    def of_pattern(cls, pattern: Pattern) -> "EdgeSet":
        """The entries of a pattern."""
        edges = cls(1, pattern.M, pattern.N, None, pattern.source, pattern.target)
        edges.__dict__["expand"] = pattern
        return edges

    def __getstate__(self) -> dict[str, Any]:
        return without_cached(self) | {"source": self.source, "target": self.target, "arrays": None, "_memo": {}}

    @cached_property
    def source(self) -> Tensor:
        """(E,) the source of each edge."""
        return torch.from_numpy(cast(tuple[Array, Array], self.arrays)[0])

    @cached_property
    def target(self) -> Tensor:
        """(E,) the target of each edge."""
        return torch.from_numpy(cast(tuple[Array, Array], self.arrays)[1])

    @property
    def E(self) -> int:
        """The number of edges."""
        return self.source.numel() if self.arrays is None else self.arrays[0].size

    @property
    def kinds(self) -> Tensor:
        """(E,) the matrix of each edge."""
        return torch.zeros_like(self.source) if self.K == 1 or self.type is None else self.type

    def memo(self, key: Hashable, build: Callable[[], _T]) -> _T:
        """The result of `build()`, cached under `key`."""
        return memo(self._memo, key, build)

    def check(self, key: Hashable, look: Callable[[], None]) -> None:
        """Calls `look`, which rejects numbers; where that waits for the device, in the first call with `key` alone."""
        if on_gpu(self.source):
            self.memo(key, look)
        else:
            look()

    def with_types(self, K: int) -> "EdgeSet":
        """The edges of one matrix as those of K, by their types; cached."""
        if K == 1:
            return self

        def build() -> EdgeSet:
            return EdgeSet(K, self.M, self.N, self.type, self.source, self.target, self.alive)

        return self.memo(("with types", K), build)

    def at_source(self, values: Tensor) -> Tensor:
        """(M,) -> (E,) the value of each edge's source."""
        return self._gather_ends(values, "source", self.source)

    def at_target(self, values: Tensor) -> Tensor:
        """(N,) -> (E,) the value of each edge's target."""
        return self._gather_ends(values, "target", self.target)

    def _gather_ends(self, values: Tensor, name: str, end: Tensor) -> Tensor:
        return gather(values, end, lambda: self.memo(("lift", name), lambda: gather_pattern(end, values.numel())))

    def _checked_members(self, size: int, end: Tensor) -> Tensor:
        """`_members`, where an invalid node or type does not become the index of another one."""
        K = self.K
        valid = (end >= 0) & (end < size) & (self.kinds >= 0) & (self.kinds < K)
        return checked(torch.where(valid, end * K + self.kinds, -1), K * size)

    @with_plain(_checked_members)
    def _members(self, size: int, end: Tensor) -> Tensor:
        """The index node K + type of each edge at one end."""
        dtype = index_dtype(self.K * size)
        return torch.add(self.kinds.to(dtype), end.to(dtype), alpha=self.K)

    @kept
    def expand(self) -> Pattern:
        if self.K == 1:
            return Pattern(self.source, self.target, self.M, self.N)
        return Pattern(self.source, self._members(self.N, self.target), self.M, self.N * self.K)

    @kept
    def combine(self) -> Pattern:
        if self.K == 1:
            return self.expand
        return Pattern(self._members(self.M, self.source), self.target, self.M * self.K, self.N)

    @kept
    def each(self) -> Pattern:
        if self.K == 1:
            return self.expand
        source = self._members(self.M, self.source)
        return Pattern(source, self._members(self.N, self.target), self.M * self.K, self.N * self.K)

    @kept
    @with_plain(lambda self: None)
    def matchings(self) -> Matchings | None:
        """The index pairs of each matrix, if it has at most one per row and column, and pairs for most of them."""
        E, least, most = self.E, self.K * min(self.M, self.N), self.K * max(self.M, self.N)
        if not most <= 4 * E <= 4 * least or not E:
            return None
        for size, end in ((self.N, self.target), (self.M, self.source)):
            if int(torch.bincount(self._members(size, end)).max()) > 1:
                return None
        kind = self.kinds.long()
        by_type = Pattern(self.source, kind * self.N + self.target, self.M, self.K * self.N)
        ptr, source, _ = by_type.by_target
        bounds, target = ptr[:: self.N].tolist(), by_type.row.long() % self.N
        return Matchings([(source[a:b].long(), target[a:b]) for a, b in pairwise(bounds)], self.M, self.N)

    @kept
    def pairs(self) -> Pairs:
        """The edges grouped by the distinct pairs of type and target."""
        return Pairs(self.kinds, self.source, self.target, (self.K, self.M, self.N))

    def _by_each_pair(self) -> "EdgeSet":
        each = self.each
        return EdgeSet(1, each.M, each.N, None, each.source, each.target, self.alive)

    @kept
    @with_plain(_by_each_pair)
    def by_pair(self) -> "EdgeSet":
        """The edges of one matrix from (type, source) to (type, target) pairs: the distinct ones, unless portable."""
        source, target = self.T.pairs, self.pairs
        return EdgeSet(1, source.count, target.count, None, source.place, target.place)

    @kept
    def merged(self) -> "EdgeSet":
        """The edges as those of one matrix."""
        return EdgeSet(1, self.M, self.N, None, self.source, self.target)

    @kept
    def type_pattern(self) -> Pattern:
        """The type of each edge, as a matrix from K types to E edges."""
        return gather_pattern(self.kinds, self.K)

    @kept
    def T(self) -> "EdgeSet":
        """The reversed edges. Their `combine` is the transpose of `expand` here."""
        turned = EdgeSet(self.K, self.N, self.M, self.type, self.target, self.source, self.alive)
        if self.K == 1:
            turned.__dict__["expand"] = self.expand.T
            return turned
        for mine, theirs in (("expand", "combine"), ("combine", "expand"), ("each", "each")):
            if mine in self.__dict__:
                turned.__dict__[theirs] = self.__dict__[mine].T
        return turned

    def to(self, device: torch.device) -> "EdgeSet":
        kind = None if self.type is None else self.type.to(device)
        return EdgeSet(self.K, self.M, self.N, kind, self.source.to(device), self.target.to(device))


def gather_pattern(index: Tensor, count: int) -> Pattern:
    """The pattern of `index_select` from `count` rows."""
    return Pattern(index, torch.arange(index.numel(), device=index.device), count, index.numel())


@with_plain(lambda values, index, pattern=None: values.index_select(0, index))
def gather(values: Tensor, index: Tensor, pattern: Callable[[], Pattern] | None = None) -> Tensor:
    """(V,) -> (n,) the values at an index.

    If they require a gradient this is a sparse product, so that the backward pass sums in a fixed order, which
    `index_select` does not on CUDA. pattern: returns the cached `gather_pattern`, if there is one.
    """
    if not values.requires_grad:
        return values.index_select(0, index)
    lifted = gather_pattern(index, values.numel()) if pattern is None else pattern()
    return spmm(values.unsqueeze(1), None, lifted).squeeze(1)


def disjoint(index: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """The indices into several ranges, as indices into their concatenation.

    >>> disjoint([torch.tensor([0, 2]), torch.tensor([1])], [3, 2])
    tensor([0, 2, 4], dtype=torch.int32)
    """
    first = accumulate(sizes, initial=0)
    numbers = torch.cat([one.long() + start for one, start in zip(index, first, strict=False)])
    return numbers.to(index_dtype(sum(sizes)))
