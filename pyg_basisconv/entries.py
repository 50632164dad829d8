"""The entries of a mask: the pairs (m, n) at which scores are computed."""

from collections.abc import Callable, Hashable
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from .cache import kept, memo
from .kernels import Pattern, spmm
from .kernels.pattern import index_dtype, positions, select, split_groups
from .portable import few, with_plain

Index = Callable[[Tensor, Tensor], Tensor]
_FEW = 1 << 20  # pairs for which the bias of a softmax is cached


class Entries:
    """E pairs (m, n), in the order of `pattern.by_target`, and cached results that depend on the pairs alone.

    Args:
        pattern: the pairs.
        weight: (E,) of the mask, in the pattern's own order, None for ones.
        first: the index of the first target, for the entries of a range of targets.
        alive: (E,) False for entries that do not exist; None if all do. The portable path cannot leave entries out.
    """

    complete = False  # True for all M x N pairs, once each, target by target
    causal = False  # True for all pairs m <= n of as many sources as targets

    def __init__(
        self, pattern: Pattern, weight: Tensor | None = None, first: int = 0, alive: Tensor | None = None
    ) -> None:
        self.pattern, self._weight, self.first, self.alive = pattern, weight, first, alive
        self.M, self.N, self.E, self.device = pattern.M, pattern.N, pattern.E, pattern.source.device
        self._edges: Tensor | slice | None = None  # see `set_edge_ids`
        self._lookups: dict[Hashable, Any] = {}

    @property
    def has_weight(self) -> bool:
        """Whether the mask has weights other than ones."""
        return self._weight is not None

    @property
    def weight(self) -> Tensor | None:
        """(E,) the weights of the mask, by target."""
        if self._weight is None:
            return None
        return select(self._weight, self.pattern.by_target.order)

    def lookup(self, name: Hashable, size: int, index: Index) -> Pattern:
        """The pattern from a table of the given size to the entries: entry (m, n) reads the row index(m, n); cached."""

        def build() -> Pattern:
            m, n = self.pattern.ends
            places = index(m.long(), n.long() + self.first).to(index_dtype(size))
            return Pattern(places, n, size, self.N)

        return memo(self._lookups, name, build)

    def _incidence(self, more: int) -> tuple[Pattern, Tensor | None]:
        edge, row, which = _of_edges(cast(Tensor, self.edge_ids), self.pattern.row)
        return Pattern(edge, row, self.num_edges + more, self.N), which

    @with_plain(_incidence)
    def incidence(self, more: int) -> tuple[Pattern, Tensor | None]:
        """From the edges, and some rows more, to the targets of the entries; cached.

        The second part says which entries these are, as others have no edge: their positions, or None for all. In the
        portable path all are there, those of no edge at the first one, and it is (E,) which of them have an edge.
        """
        return memo(self._lookups, ("incidence", more), lambda: self._incidence(more))

    def runs(self, size: int) -> list["Entries"]:
        """The entries, split into ranges of whole targets with about `size` entries; cached."""

        def cut() -> list[Entries]:
            cuts = split_groups(self.pattern.by_target.ptr, size)
            return [Entries(self.pattern.run(n, last), first=n) for n, last, _ in cuts]

        return memo(self._lookups, ("runs", size), cut)

    def table(self, index: Index) -> Tensor:
        """(M, N) index(m, n) of all pairs."""
        m, n = (torch.arange(size, device=self.device) for size in (self.M, self.N))
        return index(m[:, None], n[None, :]).expand(self.M, self.N)

    @kept
    def each_pair(self) -> Pattern:
        """The pattern from all M N pairs to the entries."""
        m, n = self.pattern.ends
        place = m.long() * self.N + n.long()
        return Pattern(place, torch.arange(self.E, device=place.device), self.M * self.N, self.E)

    @property
    def has_edge_ids(self) -> bool:
        """Whether it is known which edge of the graph is at each entry."""
        return self._edges is not None

    @property
    def are_edges(self) -> bool:
        """Whether it is known that the entries are the graph's edges, given in the order of these."""
        return isinstance(self._edges, slice)

    def set_edge_ids(self, edge_ids: Tensor | slice, num_edges: int) -> None:
        """Sets the graph's edge of each entry, see `Basis.edge_ids`."""
        self._edges, self.num_edges = edge_ids, num_edges

    @kept
    def edge_ids(self) -> Tensor | None:
        """(E,) the graph's edge at each entry, -1 for loops that the mask adds; None if that is not known."""
        ids, order = self._edges, self.pattern.by_target.order
        if isinstance(ids, slice):
            return torch.arange(self.E, device=self.device) if order is None else order.long()
        return ids if ids is None or order is None else ids.index_select(0, order)

    @kept
    def _from_edges(self) -> Pattern:
        """The pattern from the graph's edges, and a row of zeros for no edge, to the entries."""
        edge = cast(Tensor, self.edge_ids)
        position = torch.arange(self.E, dtype=edge.dtype, device=edge.device)
        return Pattern(torch.where(edge < 0, self.num_edges, edge), position, self.num_edges + 1, self.E)

    def rows_of_edges(self, rows: Tensor) -> Tensor:
        """The rows of the graph's edges at the entries, (edges, R) -> (E, R) by target; zeros for loops of the mask."""
        if isinstance(self._edges, slice):
            return select(rows, self.pattern.by_target.order)
        padded, pattern = F.pad(rows, (0, 0, 0, 1)), self._from_edges
        if rows.requires_grad:  # a product has a derivative of fixed order
            return spmm(padded, None, pattern)
        return padded.index_select(0, pattern.source)

    def _logarithms(self) -> Tensor:
        count = torch.zeros(self.M * self.N, dtype=torch.float64, device=self.pattern.source.device)
        place = self.pattern.source.long() * self.N + self.pattern.target.long()
        count = count.index_add(0, place, torch.ones_like(place, dtype=count.dtype))
        return count.log().view(self.M, self.N)

    @property
    def bias(self) -> Tensor | None:
        """(M, N) the bias that restricts a softmax over all pairs to the entries: the logarithm of their counts."""
        if self.complete or self.causal:
            return None
        kept = few(self.M * self.N, _FEW)
        return memo(self._lookups, "bias", self._logarithms) if kept else self._logarithms()


class LazyEntries(Entries):
    """Entries that follow from the sizes; their pattern is written out on first use."""

    def __init__(
        self, write: Callable[[], Pattern], M: int, N: int, E: int, device: torch.device, complete: bool, causal: bool
    ) -> None:
        self._write, self.M, self.N, self.E, self.device = write, M, N, E, device
        self.complete, self.causal, self.first = complete, causal, 0
        self._weight = self._edges = self.alive = None
        self._lookups = {}

    @kept
    def pattern(self) -> Pattern:
        return self._write()


@with_plain(lambda edge, row: (edge.clamp(min=0), row, edge >= 0))
def _of_edges(edge: Tensor, row: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """The edge and the target of those entries that have an edge, whose number is not -1; and which these are."""
    which = positions(edge >= 0)
    if which.numel() == edge.numel():
        return edge, row, None
    return edge.index_select(0, which), row.index_select(0, which), which
