"""The entries of a mask: the pairs (m, n) at which scores are computed."""

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from .cache import cached_property, kept, memo
from .kernels import Pattern
from .kernels.pattern import index_dtype, split_groups
from .portable import portable

Index = Callable[[Tensor, Tensor], Tensor]
_FEW = 1 << 20  # pairs of which something is kept that is not written out otherwise


class Entries:
    """E pairs (m, n), in the order of `pattern.by_target`, and what depends on their places alone.

    Args:
        pattern: the pairs.
        weight: (E,) of the mask, in the pattern's own order, None for ones.
        complete: whether these are all M x N pairs, once each, target by target.
        causal: whether these are all pairs m <= n of as many sources as targets.
        first: the number of the first target, where these are the entries of a run of targets.
        alive: (E,) which of them are there at all; None for all, as it always is but in the portable path.
    """

    def __init__(
        self,
        pattern: Pattern,
        weight: Tensor | None = None,
        complete: bool = False,
        causal: bool = False,
        first: int = 0,
        alive: Tensor | None = None,
    ) -> None:
        self.pattern, self.complete, self.causal, self.first = pattern, complete, causal, first
        self._weight, self.alive = weight, alive
        self.edge: Tensor | None = None  # (E,) the edge of the graph at each entry, -1 at loops that the mask adds
        self._lookups: dict[Hashable, Pattern] = {}
        self._runs: tuple[int, list[Entries]] | None = None

    @cached_property
    def device(self) -> torch.device:
        """Where the entries are."""
        return self.pattern.source.device

    @cached_property
    def E(self) -> int:
        return self.pattern.by_target.other.numel()

    @cached_property
    def M(self) -> int:
        return self.pattern.M

    @cached_property
    def N(self) -> int:
        return self.pattern.N

    @property
    def has_weight(self) -> bool:
        """Whether the mask has weights that are not ones."""
        return self._weight is not None

    @property
    def weight(self) -> Tensor | None:
        """(E,) the weights of the mask, by target."""
        if self._weight is None:
            return None
        order = self.pattern.by_target.order
        return self._weight if order is None else self._weight.index_select(0, order)

    def lookup(self, name: Hashable, size: int, index: Index) -> Pattern:
        """From a table of the given size to the entries: entry (m, n) reads the place index(m, n)."""

        def build() -> Pattern:
            m, n = self.pattern.ends
            places = index(m.long(), n.long() + self.first).to(index_dtype(size))
            return Pattern(places, n, size, self.N)

        return memo(self._lookups, name, build)

    def runs(self, size: int) -> list["Entries"]:
        """The entries of runs of whole targets, of about so many entries; kept."""
        if self._runs is None or self._runs[0] != size:
            with torch.inference_mode(False):
                cuts = split_groups(self.pattern.by_target.ptr, size)
                self._runs = size, [Entries(self.pattern.run(n, last), first=n) for n, last, _ in cuts]
        return self._runs[1]

    def places(self, index: Index) -> Tensor:
        """(M, N) the same for all pairs."""
        m, n = (torch.arange(size, device=self.device) for size in (self.M, self.N))
        return index(m[:, None], n[None, :]).expand(self.M, self.N)

    @kept
    def each_pair(self) -> Pattern:
        """From all M N pairs to the entries that they are."""
        m, n = self.pattern.ends
        place = m.long() * self.N + n.long()
        return Pattern(place, torch.arange(self.E, device=place.device), self.M * self.N, self.E)

    @kept
    def edge_patterns(self) -> tuple[Pattern | None, Pattern | None]:
        """From the edges of the graph to the entries that they are, None where these are the same in the same order;
        and from them to the loops at their targets, None where the mask adds none.
        """
        edge = self.edge
        assert edge is not None
        place = torch.arange(self.E, dtype=edge.dtype, device=edge.device)
        if bool((edge == place).all()) and self.edges == self.E:
            return None, None
        there = (edge >= 0).nonzero().squeeze(1)
        own = Pattern(edge[there], place[there], self.edges, self.E)
        if there.numel() == self.E:
            return own, None
        loop = torch.full((self.N,), -1, dtype=edge.dtype, device=edge.device)  # of each target, where one is added
        added = (edge < 0).nonzero().squeeze(1)
        loop[self.pattern.row[added].long()] = place[added]
        at = loop[self.pattern.row[there].long()]
        some = at >= 0
        return own, Pattern(edge[there][some], at[some], self.edges, self.E)

    def number_edges(self, edge: Tensor, edges: int) -> None:
        """Learns the edges that its entries are, (E,) in the pattern's own order, -1 for none, of so many."""
        order = self.pattern.by_target.order
        self.edge, self.edges = edge if order is None else edge.index_select(0, order), edges

    @property
    def bias(self) -> Tensor | None:
        """(M, N) what a softmax over all pairs adds to the scores: the logarithm of how often each pair is there."""
        if self.complete or self.causal:
            return None
        if not portable() and self.M * self.N <= _FEW:
            return memo(self.__dict__, "_bias", self._logarithms)  # type: ignore[no-any-return]
        return self._logarithms()

    def _logarithms(self) -> Tensor:
        count = torch.zeros(self.M * self.N, dtype=torch.float64, device=self.pattern.source.device)
        place = self.pattern.source.long() * self.N + self.pattern.target.long()
        count = count.index_add(0, place, torch.ones_like(place, dtype=count.dtype))
        return count.log().view(self.M, self.N)


class Later(Entries):
    """Entries that follow from the sizes, and are written out when they are first asked for."""

    def __init__(
        self, write: Callable[[], Pattern], M: int, N: int, E: int, device: torch.device, complete: bool, causal: bool
    ) -> None:
        self._write, self.M, self.N, self.E, self.device = write, M, N, E, device
        self.complete, self.causal, self.first = complete, causal, 0
        self._weight = self.edge = self.alive = None
        self._lookups, self._runs = {}, None

    @kept
    def pattern(self) -> Pattern:
        return self._write()
