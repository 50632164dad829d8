"""Attention: a basis that is computed from content."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..backend import on_gpu
from ..basis import Basis, BoundBasis
from ..content import Content
from ..entries import Entries
from ..errors import call_it, check_choice, check_count, check_depth, check_flags, check_made, check_probability, reject
from ..graph import Counts, Graph
from ..kernels.grids import Ints
from ..kernels.pattern import select
from ..mechanisms import Mechanism, Score, Sizes
from ..mechanisms.base import check_score, entry_score, node_score, table_score
from ..printing import arguments
from .bound_attention import BoundAttention, in_one_piece
from .dropout import AtOnce, Seeded
from .masks import Complete
from .weighing import ELEMENTWISE, Normalize, Weighing


class Attention(Basis):
    r"""Matrices that are computed from content: :math:`A_k[m, n]` is how much the target n attends to the source m.

    A mechanism scores the pairs of a mask, and a normalisation turns scores into weights, by default the column-wise
    softmax :math:`A_k[m, n] = exp(s_k[m, n]) / \sum_{m'} exp(s_k[m', n])` over the entries of the mask. A target
    without entries has zeros. (J.-M. Andreoli, arXiv:1905.01289, Section 4.)

    Args:
        heads: K, the number of matrices.
        mechanism: of scores, see `pyg_basisconv.mechanisms`.
        mask: a basis whose edges are the entries: all edges of a single matrix, including repeated ones, as in PyG; or
            the distinct pairs (m, n) of a family. None for all pairs.
        normalize: 'source', the softmax over the sources of each target; 'target', over the targets of each source;
            'heads', over k; 'sigmoid' or 'tanh' of each score; None for the scores themselves.
        dropout: the probability that a weight is dropped, in training.
        weighted: whether to multiply the weights by those of the mask, and so by `edge_weight`, which it ignores
            otherwise.

    Features of edges are zeros at self loops that the mask adds; `torch_geometric.utils.add_self_loops(fill_value=...)`
    gives others, with the loops themselves.

    >>> import torch
    >>> from pyg_basisconv import BasisConv, bases, theta
    >>> from pyg_basisconv.mechanisms import Additive
    >>> GAT = Additive(projected=True).then(torch.nn.LeakyReLU(0.2))
    >>> attention = bases.Attention(2, GAT, bases.Adjacency(self_loops=True))
    >>> conv = BasisConv(8, 6, attention, theta.Heads())
    >>> y, A = conv(torch.randn(3, 8), torch.tensor([[0, 1], [1, 2]]), return_attention=True)
    >>> y.shape, A.to_dense().sum(1).round(decimals=3)
    (torch.Size([3, 6]), tensor([[1., 1., 1.],
            [1., 1., 1.]], grad_fn=<RoundBackward1>))
    """

    reads_content = reads_nodes = True
    draws_at_once = False  # True if dropout draws as layers of PyG do, see `AtOnce`

    def __init__(
        self,
        heads: int,
        mechanism: Mechanism,
        mask: Basis | None = None,
        normalize: Normalize = "source",
        dropout: float = 0.0,
        weighted: bool = False,
    ) -> None:
        if isinstance(heads, Mechanism):
            reject("heads", "a number, before the mechanism", heads, "write the number first, such as (8, Dot(4))")
        check_count("heads", heads)
        super().__init__(heads)
        if not isinstance(mechanism, Mechanism):
            made = isinstance(mechanism, type) and issubclass(mechanism, Mechanism)
            fix = "call it, with its width" if made else "choose one from pyg_basisconv.mechanisms"
            reject("mechanism", "a Mechanism", repr(mechanism), fix)
        check_made("mechanism", "a Mechanism", mechanism)
        if mask is not None and not isinstance(mask, Basis):
            fix = call_it(mask, "such as bases.Adjacency(self_loops=True)")
            reject("mask", "a Basis, or None for all pairs", repr(mask), fix)
        if mask is not None:
            check_made("mask", "a Basis", mask, "K")
        if mask is not None and mask.reads_content:
            fix = "take mask=bases.Adjacency(), and score features of edges by mechanisms.Edge(dim)"
            reject("mask", "a basis that reads no features", mask, fix)
        check_flags(weighted=weighted)
        if weighted and mask is not None and mask.K > 1:
            reject("weighted", "False for a mask of several matrices", True, "mask by one matrix, such as a Mix")
        check_choice("normalize", normalize, "source", "target", "heads", *ELEMENTWISE)
        check_probability("dropout", dropout)
        self.mechanism = mechanism
        self.mask = Complete() if mask is None else mask
        self.needs_edges, self.pools, self.axes = self.mask.needs_edges, self.mask.pools, self.mask.axes
        self.counts_batch, self.reads_types = self.mask.counts_batch, self.mask.reads_types
        self.depth = check_depth("mask", self.mask)
        self.normalize, self.dropout, self.weighted = normalize, float(dropout), weighted

    @property
    def reads_edges(self) -> bool:
        return self.mechanism.reads_edges

    def complete(self, source: int, target: int, inner: int) -> None:
        self.mechanism.build(Sizes(self.K, source, target, inner))

    def sized(self, M: int | None, N: int | None, batch: Any, grid: Ints | None) -> Counts:
        return self.mask.sized(M, N, batch, grid)

    def target_shape(self, grid: Ints) -> Ints | None:
        return self.mask.target_shape(grid)

    def reset_parameters(self) -> None:
        """Draws the parameters of the mechanism anew."""
        self.mechanism.reset_parameters()

    def build(self, graph: Graph) -> BoundBasis:
        content = graph.content
        if content is None:
            reject("x", f"the content that {self} is computed from", None, "call the layer instead")
        if self.mechanism.sizes is None:
            reject("basis", "one that belongs to a layer", self, "make a BasisConv of it, and use conv.basis")
        mask, found = self.mask, self.entries_on(graph)
        self.check(content, found, graph)
        weighing = self.weighing(content, found)
        score = weighing.score.snapshot()
        if not (found.alive is content.valid is content.mask is None):
            score = _apply_call_masks(score, content, found, self.K, graph)
        share = None
        if graph.mask is not None and self.needs_edges:
            share = mask_share(found, mask, graph, self.weighted)
        return self.family_of(content, weighing._replace(score=score), found, graph.dtype, share)

    def family_of(
        self, content: Content, weighing: Weighing, entries: Entries, dtype: torch.dtype, share: Tensor | None = None
    ) -> BoundAttention:
        """The family of a content, given how its weights are computed; share: see `mask_share`."""
        about = content.batch, dtype, content.observed, content.has_edge_rows
        return BoundAttention(
            self.K, weighing, entries, *about, share, None if content.edge_values is None else content
        )

    def in_one_piece(self, entries: Entries) -> bool:
        """See `bound_attention.in_one_piece`."""
        return in_one_piece(self.K, entries)

    def check(self, content: Content, found: Entries, graph: Graph) -> None:
        """Checks a content against the entries of a graph, which get the numbers of their edges if it needs them."""
        content.check(graph.sources, found.N, self.K)
        attributed = content.has_edge_rows
        if (attributed or content.asks_edges) and not self.number_edges(found, graph) and attributed:
            fix = "mask by bases.Adjacency(), or give features of all pairs (M, N, R)"
            reject("mask", "one whose entries are the graph's edges, beside edge_attr", self.mask, fix)

    def number_edges(self, found: Entries, graph: Graph) -> bool:
        """Gives the entries on a graph the numbers of their edges; returns whether they have them."""
        if not found.has_edge_ids:
            ids = self.mask.edge_ids(graph)
            if ids is None:
                return False
            found.set_edge_ids(ids, graph.E)
        return True

    def weighing(self, content: Content, entries: Entries) -> Weighing:
        """The scores of a content, and how they become weights, in training with a new dropout."""
        score, dropout = self.mechanism.score(content, entries), None
        if getattr(score, "scoring", None) is None:  # those with rows are of this package
            check_score(score, self.mechanism, self.K, content, entries)
        if self.training and self.dropout:
            # A CUDA graph would repeat a seed of the host, whereas torch's own dropout draws anew in each replay.
            at_once = self.draws_at_once or on_gpu(content.x)
            dropout = AtOnce(self.dropout) if at_once else Seeded(self.dropout)
        return Weighing(score, self.normalize, dropout, self.weighted)

    def entries_on(self, graph: Graph) -> Entries:
        """The entries of the mask on a graph, cached with it."""
        mask = self.mask
        plain = graph if graph.mask is None else graph.masked(None)
        if plain.learns or mask.key is None:
            return mask.on(plain).kept_entries
        return plain.memo(("entries", mask.key), lambda: mask.on(plain).kept_entries)

    def extra_repr(self) -> str:
        shown = [str(self.K), repr(self.mechanism)]
        shown += [] if self.mask.is_complete else [f"mask={self.mask}"]
        return arguments(self, *shown, normalize="source", dropout=0.0, weighted=False)


def _apply_call_masks(score: Score, content: Content, found: Entries, K: int, graph: Graph) -> Score:
    """The score plus the call's masks, minus infinity where they hide a pair."""
    M, N = graph.sources, found.N
    dtype = torch.float64 if content.x.dtype == torch.float64 else torch.float32

    def log_mask(mask: Tensor) -> Tensor:
        if mask.dtype != torch.bool:
            return mask.to(dtype)
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -torch.inf)

    def expand_heads(t: Tensor, rest: int) -> Tensor:
        """(rest), (*, rest) or (*, K, rest) -> (K, *, rest)."""
        own, batch = t.dim() - rest, content.batch
        if own == len(batch) + 1:
            return t.movedim(len(batch), 0)
        return t.expand(K, *(batch if own == 0 else ()), *t.shape)

    if found.alive is not None:
        score = score + entry_score(expand_heads(log_mask(found.alive), 1))
    if content.valid is not None:
        valid = F.pad(content.valid, (0, found.M - M))
        hidden = node_score(expand_heads(log_mask(valid), 1), None)
        hidden.ends = None  # not merged with other terms: as part of an inner product -inf has no second derivative
        score = score + hidden
    if content.mask is not None:
        mask = F.pad(log_mask(content.mask), (0, 0, 0, found.M - M))
        table = expand_heads(mask, 2).flatten(-2)

        def place(m: Tensor, n: Tensor) -> Tensor:
            return m * N + n

        score = score + table_score(table, lambda e: e.lookup("pairs", found.M * N, place), lambda e: e.table(place))
    return score


def mask_share(found: Entries, mask: Basis, graph: Graph, weighted: bool) -> Tensor:
    """(E,) the share of each entry that the mask of a graph leaves, by target.

    It is the mask of an edge, 1 for loops that the basis adds, and for an entry with several walks the masked part of
    their sum, in which weights of edges may count.
    """
    whole = graph.masked(None).bare
    whole.weight = whole.weight if weighted else None
    bound = [mask.build(g) for g in (whole, whole.masked(graph.mask))]
    pattern = found.pattern
    if mask.K == 1 and bound[0].written_out:
        total, left = (part.edges().weight for part in bound)
        place = pattern.by_target.order
    else:
        lists = [part.edges() for part in bound]
        if bool((lists[0].weight < 0).any()):
            reject("mask", "one without negative entries, to be explained", mask, "mask by bases.Powers")
        places = [edges.source.long() * found.N + edges.target.long() for edges in lists]
        distinct, places[0] = places[0].unique(return_inverse=True)
        places[1] = torch.searchsorted(distinct, places[1])
        none = torch.zeros(distinct.numel(), dtype=graph.acc_dtype, device=graph.device)
        total, left = (none.index_add(0, p, e.weight.to(none)) for p, e in zip(places, lists, strict=True))
        place = torch.searchsorted(distinct, pattern.by_target.other.long() * found.N + pattern.row.long())
    left = torch.where(total == 0, 1, left / torch.where(total == 0, 1, total))
    return select(left, place)
