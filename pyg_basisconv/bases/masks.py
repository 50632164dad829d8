"""Families of ones: masks of attention, and pooling."""

from typing import Any, Literal

import torch
from torch import Tensor

from ..basis import Basis, BoundBasis, EdgeList
from ..edge_set import EdgeSet
from ..entries import Entries, LazyEntries
from ..errors import check_choice, reject
from ..graph import Counts, Graph
from ..kernels.grids import Ints
from ..kernels.pattern import extremes, in_range, tally
from ..portable import refuse, with_plain
from ..printing import arguments
from ..typed_edges import TypedEdges, explicit
from .by_member import MemberByMember


def _all_pairs(M: int, N: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The sources and the targets of all pairs, target by target."""
    source, target = torch.arange(M, device=device), torch.arange(N, device=device)
    return source.expand(N, M).flatten(), target.unsqueeze(1).expand(N, M).flatten()


class BoundPairs(BoundBasis):
    """Pairs that follow from the sizes, and are written out on first use only."""

    complete = causal = False  # True for all pairs, or all pairs m <= n, of rows of x that are sources

    def __init__(self, graph: Graph) -> None:
        self.K, self.M, self.N = 1, graph.M, graph.N
        self.sources = graph.sources
        self.dtype, self.device = graph.dtype, graph.device

    def count(self) -> int:
        """The number of pairs."""
        raise NotImplementedError

    def find_entries(self) -> Entries:
        sizes = self.M, self.N, self.count()
        full = self.sources == self.M
        causal = full and self.causal and self.M == self.N
        return LazyEntries(lambda: self.explicit.edge_set.expand, *sizes, self.device, full and self.complete, causal)


class BoundComplete(MemberByMember, BoundPairs):
    """Ones everywhere: every target sees the sum of all sources."""

    complete = True

    def count(self) -> int:
        return self.sources * self.N

    def each(self, z: Tensor) -> Tensor:
        total = z[..., : self.sources, :].sum(-2, keepdim=True)
        return total.expand(*z.shape[:-2], self.N, z.shape[-1])

    def edges(self) -> EdgeList:
        source, target = _all_pairs(self.sources, self.N, self.device)
        return EdgeList(torch.zeros_like(source), source, target, source.new_ones(source.numel()).to(self.dtype))


class BoundCausal(BoundPairs):
    """Target n sees the sources up to n + first."""

    causal = True

    def __init__(self, graph: Graph, first: int) -> None:
        super().__init__(graph)
        self.first = first

    def count(self) -> int:
        M = self.sources

        def up_to(n: int) -> int:
            """The pairs of targets that see 1, 2, ... n sources, M at most."""
            full = min(max(n, 0), M)
            return full * (full + 1) // 2 + max(n - M, 0) * M

        return up_to(self.first + self.N) - up_to(self.first)

    def edges(self) -> EdgeList:
        counts = (torch.arange(self.N, device=self.device) + self.first + 1).clamp(0, self.sources)
        first, E = counts.cumsum(0) - counts, self.count()
        # The target of an entry is the number of targets whose first entry is not after it, less 1.
        target = first.new_zeros(E + 1).index_add(0, first, torch.ones_like(first)).cumsum(0)[:E] - 1
        source = torch.arange(E, device=self.device) - first.index_select(0, target)
        return EdgeList(torch.zeros_like(source), source, target, source.new_ones(source.numel()).to(self.dtype))


def _all_pairs_of_a_batch(graph: Graph, batch: Tensor, causal: bool) -> BoundBasis:
    """All pairs; those that are not there have the weight 0, and repeat the loop of their target."""
    N = graph.N
    source, target = _all_pairs(N, N, graph.device)
    alive = batch.index_select(0, source) == batch.index_select(0, target)
    alive = alive & (source <= target) if causal else alive
    edges = EdgeSet(1, graph.M, N, None, torch.where(alive, source, target), target, alive)
    return TypedEdges(edges, alive.to(graph.dtype), graph.dtype)


@with_plain(_all_pairs_of_a_batch)
def _within_graphs(graph: Graph, batch: Tensor, causal: bool) -> BoundBasis:
    """The pairs within each graph of a batch, or those m <= n of them."""
    N = graph.N
    sizes = torch.bincount(batch, minlength=1)
    order, first = torch.argsort(batch, stable=True), sizes.cumsum(0) - sizes
    start = first.index_select(0, batch)
    # Each entry sees all entries of its graph, or those up to itself.
    counts = order.argsort() - start + 1 if causal else sizes.index_select(0, batch)
    target = torch.repeat_interleave(counts)
    starts = (counts.cumsum(0) - counts).index_select(0, target)
    position = torch.arange(target.numel(), device=target.device) - starts  # of the source in its graph
    source = order.index_select(0, start.index_select(0, target) + position)
    weight = torch.ones(target.numel(), dtype=graph.dtype, device=target.device)
    return explicit(1, graph.M, N, EdgeList(torch.zeros_like(source), source, target, weight))


def _batch_of(graph: Graph) -> Tensor | None:
    """(N,) the graph of each entry, checked; None where there is one graph."""
    N, batch = graph.N, graph.batch
    if batch is not None and (graph.sources != N or batch.shape != (N,)):
        expected = "the graph of each entry, where sources and targets are the same"
        fix = "mask= says which pairs there are between others"
        reject("batch", expected, f"{tuple(batch.shape)}, for {graph.sources} and {N}", fix)
    return None if batch is None else batch.long()


class Complete(Basis):
    """All pairs: every target sees every source. K = 1. With `batch`, these are the pairs within each of its graphs.

    >>> import torch
    >>> Complete().bind(size=(2, 3)).to_dense()
    tensor([[[1., 1., 1.],
             [1., 1., 1.]]])
    """

    is_complete = True
    needs_edges = reads_types = False

    def __init__(self) -> None:
        super().__init__(1)

    def build(self, graph: Graph) -> BoundBasis:
        batch = _batch_of(graph)
        return BoundComplete(graph) if batch is None else _within_graphs(graph, batch, False)


class Causal(Basis):
    """The pairs m <= n: a step of a sequence sees itself and those before it. K = 1. With `batch`, these are the pairs
    within each of its sequences.

    Args:
        align: for different numbers of sources and targets: 'start' if the sequences begin together, 'end' if they end
            together (the pairs are m - M <= n - N then).

    >>> Causal().bind(size=3).to_dense()
    tensor([[[1., 1., 1.],
             [0., 1., 1.],
             [0., 0., 1.]]])
    """

    needs_edges = reads_types = False

    def __init__(self, align: Literal["start", "end"] | None = None) -> None:
        super().__init__(1)
        check_choice("align", align, None, "start", "end")
        self.align = align

    def build(self, graph: Graph) -> BoundBasis:
        M, N = graph.sources, graph.N
        if M != N and self.align is None:
            fix = "say which ends meet, with Causal(align='start') or align='end'"
            reject("basis", "as many sources as targets, for Causal()", f"M = {M}, N = {N}", fix)
        batch = _batch_of(graph)
        if batch is not None:
            return _within_graphs(graph, batch, True)
        return BoundCausal(graph, M - N if self.align == "end" else 0)

    def extra_repr(self) -> str:
        return arguments(self, align=None)


class Bags(Basis):
    r"""Pooling: :math:`A_{mg} = 1` if entry m belongs to graph g of a batch, `batch[m] = g`. K = 1, N graphs.

    Args:
        norm: None for the sum over a graph, 'mean' for the mean.

    >>> import torch
    >>> Bags().bind(size=(3, None), batch=torch.tensor([0, 0, 1])).to_dense()
    tensor([[[1., 0.],
             [1., 0.],
             [0., 1.]]])
    """

    needs_edges = reads_types = False
    pools = counts_batch = True

    def __init__(self, norm: Literal["mean"] | None = None) -> None:
        super().__init__(1)
        fix = "None is the sum; a maximum is not linear in x: torch_geometric.nn.global_max_pool"
        check_choice("norm", norm, None, "mean", fix=fix)
        self.norm = norm

    def sized(self, M: int | None, N: int | None, batch: Any, grid: Ints | None) -> Counts:
        if N is None and isinstance(batch, Tensor) and not batch.is_floating_point():
            if batch.is_meta:
                reject("batch", "numbers", "a tensor on 'meta', which has none", "make it on a device")
            refuse("size", "size=(M, N) with the number N of graphs", None)
            N = int(batch.max()) + 1 if batch.numel() else 0
        return M, N

    def edges(self, graph: Graph) -> EdgeList:
        if graph.batch is None:
            fix = "pass it by name, batch=; zeros for one graph"
            reject("batch", "(M,) the graph of each entry, for bases.Bags", None, fix)
        M, N, batch = graph.sources, graph.N, graph.batch
        if batch.is_floating_point() or batch.shape != (M,):
            reject("batch", f"integers of shape ({M},)", f"{batch.dtype} {tuple(batch.shape)}", "one for each entry")
        if not in_range(batch, N):
            reject("batch", f"graphs from 0 to {N - 1}", extremes(batch), "correct batch, or size=(M, N)")
        target = batch.long()
        source = torch.arange(target.numel(), device=graph.device)
        weight = torch.ones(target.numel(), dtype=graph.acc_dtype, device=graph.device)
        if self.norm == "mean":
            weight = weight / tally(target, N).to(graph.acc_dtype).index_select(0, target)
        return EdgeList(torch.zeros_like(source), source, target, weight)

    def extra_repr(self) -> str:
        return arguments(self, norm=None)
