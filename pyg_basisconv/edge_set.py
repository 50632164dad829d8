"""The edges of a family of matrices, without weights."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from .cache import kept, without_cached
from .graph import Structure, gather_pattern
from .kernels import Matchings, Pairs, Pattern
from .kernels.pattern import index_dtype
from .portable import checked, with_plain


class EdgeSet:
    """E typed edges (k, m, n) in a family of K matrices, M x N, and the three patterns that evaluate it.

    The family is one matrix from M to N K for expand, from M K to N for combine, and from M K to N K for each, with the
    K members of a node side by side. For a single matrix these are the same.
    """

    def __init__(
        self,
        K: int,
        M: int,
        N: int,
        type: Tensor | None,
        source: Tensor,
        target: Tensor,
        pattern: Pattern | None = None,
    ) -> None:
        self.K, self.M, self.N = K, M, N
        self.source, self.target = source, target
        self._type = type
        self.alive: Tensor | None = None  # see `Structure`
        if K == 1 and pattern is not None:
            self.__dict__["expand"] = pattern

    def __getstate__(self) -> dict[str, Any]:
        return without_cached(self)

    @property
    def type(self) -> Tensor:
        return torch.zeros_like(self.source) if self._type is None else self._type

    def _checked_members(self, size: int, end: Tensor) -> Tensor:
        """`_members`, where an invalid node or type does not become the index of another one."""
        K = self.K
        valid = (end >= 0) & (end < size) & (self.type >= 0) & (self.type < K)
        return checked(torch.where(valid, end * K + self.type, -1), K * size)

    @with_plain(_checked_members)
    def _members(self, size: int, end: Tensor) -> Tensor:
        """The index node K + type of each edge at one end."""
        dtype = index_dtype(self.K * size)
        return torch.add(self.type.to(dtype), end.to(dtype), alpha=self.K)

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
        E, least, most = self.source.numel(), self.K * min(self.M, self.N), self.K * max(self.M, self.N)
        if not most <= 4 * E <= 4 * least or not E:
            return None
        for size, end in ((self.N, self.target), (self.M, self.source)):
            if int(torch.bincount(self._members(size, end)).max()) > 1:
                return None
        kind = self.type.long()
        by_type = Pattern(self.source, kind * self.N + self.target, self.M, self.K * self.N)
        ptr, source, _ = by_type.by_target
        bounds, target = ptr[:: self.N].tolist(), by_type.row.long() % self.N
        return Matchings([(source[a:b].long(), target[a:b]) for a, b in pairwise(bounds)], self.M, self.N)

    @kept
    def pairs(self) -> Pairs:
        """The edges grouped by the distinct pairs of type and target."""
        return Pairs(self.type, self.source, self.target, (self.K, self.M, self.N))

    def _by_each_pair(self) -> Structure:
        each = self.each
        structure = Structure(each.source, each.target, None, each.M, each.N)
        structure.alive = self.alive
        return structure

    @kept
    @with_plain(_by_each_pair)
    def by_pair(self) -> Structure:
        """The edges as a graph from (type, source) to (type, target) pairs: the distinct ones, unless portable."""
        source, target = self.T.pairs, self.pairs
        return Structure(source.place, target.place, None, source.count, target.count)

    @kept
    def merged(self) -> "EdgeSet":
        """The edges without types, as those of one matrix."""
        return EdgeSet(1, self.M, self.N, None, self.source, self.target)

    @kept
    def type_pattern(self) -> Pattern:
        """The type of each edge, as a matrix from K types to E edges."""
        return gather_pattern(self.type, self.K)

    @kept
    def T(self) -> "EdgeSet":
        """The reversed edges. Their `combine` is the transpose of `expand` here."""
        turned = EdgeSet(self.K, self.N, self.M, self._type, self.target, self.source)
        turned.alive = self.alive
        for mine, theirs in (("expand", "combine"), ("combine", "expand"), ("each", "each")):
            if mine in self.__dict__:
                turned.__dict__[theirs] = self.__dict__[mine].T
        return turned

    def to(self, device: torch.device) -> "EdgeSet":
        kind = None if self._type is None else self._type.to(device)
        return EdgeSet(self.K, self.M, self.N, kind, self.source.to(device), self.target.to(device))


def edge_set(s: Structure, K: int = 1) -> EdgeSet:
    """The edges of a structure with K types, or without types for K = 1; cached with the structure."""

    def build() -> EdgeSet:
        edges = EdgeSet(K, s.M, s.N, None if K == 1 else s.type, s.source, s.target, s.pattern if K == 1 else None)
        edges.alive = s.alive
        return edges

    return s.memo(("edges", K), build)  # type: ignore[no-any-return]


def disjoint(index: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """The indices into several ranges, as indices into their concatenation.

    >>> disjoint([torch.tensor([0, 2]), torch.tensor([1])], [3, 2])
    tensor([0, 2, 4], dtype=torch.int32)
    """
    first = accumulate(sizes, initial=0)
    numbers = torch.cat([one.long() + start for one, start in zip(index, first, strict=False)])
    return numbers.to(index_dtype(sum(sizes)))
