"""Attention, bound: weights that are computed where they are needed."""

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from ..basis import BoundBasis, Direction, EdgeList, Work
from ..bound import Change, ContentStep, Explicit, SharedEdges, dense, members
from ..cache import cached_property
from ..content import Content, Inputs
from ..edge_set import EdgeSet
from ..entries import Entries
from ..errors import reject
from ..kernels import Pattern, Piece, ProductScores, attend, attention, scored_attention, softmax
from ..kernels.activations import tanh_zero_hidden, zero_hidden
from ..kernels.all_pairs import add_causal_mask, by_heads, pair_attention, pair_product, pair_rows, pair_weights
from ..kernels.attend import Side, Weights
from ..kernels.onepass import is_gate, one_pass_fits
from ..kernels.op import autocasting
from ..kernels.scored import Scoring
from ..mechanisms import Score
from ..mechanisms.base import wide
from ..portable import portable, refuse
from ..theta import Theta

# Entries of all copies that are evaluated together; more are taken in turns, and computed again for the gradient.
BLOCK = 1 << 20
# Weights of all pairs that are held where they are asked for; beyond, those of a mask are evaluated in turns.
PAIRS = 1 << 26
# Entries of one copy that are evaluated together, on the CPU and on CUDA; it bounds the memory, and is otherwise
# indifferent from 1 << 20 on.
RUN = (1 << 23, 1 << 26)

Normalize = Literal["source", "target", "heads", "sigmoid", "tanh"] | None
_BY_ROWS = ("source", "sigmoid", "tanh", None)  # normalisations that look at no more than the entries of a target


ELEMENTWISE: dict[str | None, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "tanh": tanh_zero_hidden,
    None: zero_hidden,
}


class Weighing(NamedTuple):
    """How weights are made of scores.

    score: the scores; normalize: see `Attention`; dropout: the probability that a weight is dropped, and the seed that
    decides; weighted: whether they are multiplied with the weights of the mask.
    """

    score: Score
    normalize: Normalize
    dropout: tuple[float, int]
    weighted: bool

    @property
    def in_rows(self) -> tuple[Scoring, tuple[Tensor | None, ...]] | None:
        """What makes the scores, or the weights where no sum of theirs is to be one, of rows, and these rows; None
        where they are made otherwise.
        """
        if self.normalize not in _BY_ROWS:
            return None
        score = self.score if self.normalize == "source" else self.score.map(ELEMENTWISE[self.normalize])
        return None if score.scoring is None else (score.scoring, score.rows)


class MemberByMember(BoundBasis):
    """Families whose `each` says it all: every member is evaluated for itself."""

    def combine(self, z: Tensor | Sequence[Tensor | None]) -> Tensor:
        y = self.each(dense(z))
        return y.squeeze(0) if self.K == 1 else y.sum(0)

    def iterate(self, x: Tensor) -> Iterator[Tensor]:
        return iter(cast(Sequence[Tensor], members(self.expand(x), self.K)))

    def expand(self, x: Tensor) -> Tensor:
        return self.each(x.expand(self.K, *x.shape))


class BoundAttention(MemberByMember):
    """K matrices of weights at the entries of a mask, for each graph of a batch; computed where they are needed.

    Args:
        K: how many.
        weighing: how they are made, of the scores of K x batch copies of the graph.
        entries: of the mask.
        batch: the batch dimensions of the content.
        dtype: of the matrices.
        observed: whether the weights have to be those that are applied.
        has_edge_attr: whether the entries are edges that have features.
        left: (E,) what the weights are multiplied with in the end, by target; None for ones.

    >>> from pyg_basisconv import BasisConv, bases, mechanisms
    >>> conv = BasisConv(4, 4, bases.Attention(2, mechanisms.Dot(3), bases.Causal()))
    >>> _, A = conv(torch.randn(5, 4), return_attention=True)
    >>> A.K, A.to_dense().shape, A.to_dense()[0, 1:, 0].tolist()  # nobody looks ahead
    (2, torch.Size([2, 5, 5]), [0.0, 0.0, 0.0, 0.0])
    """

    def __init__(
        self,
        K: int,
        weighing: Weighing,
        entries: Entries,
        batch: tuple[int, ...],
        dtype: torch.dtype,
        observed: bool = False,
        has_edge_attr: bool = False,
        left: Tensor | None = None,
    ) -> None:
        self.K, self.M, self.N = K, entries.M, entries.N
        self.weighing, self.entries, self.batch = weighing, entries, batch
        self.score, self.normalize, self.dropout, self.weighted = weighing
        self.dtype, self.device, self.observed = dtype, entries.device, observed
        self.has_edge_attr, self.left = has_edge_attr, left

    _pair_weights: Tensor | None = None

    @property
    def copies(self) -> int:
        """K x the graphs of the batch."""
        return self.K * prod(self.batch)

    @cached_property
    def pieces(self) -> list[tuple[Piece, Entries]]:
        """What is evaluated at a time: some copies, or a run of the targets of one."""
        e, C = self.entries, self.copies
        E, all_targets = e.E, slice(0, self.N)
        if portable() or C * E <= BLOCK:
            return [(Piece(slice(0, C), all_targets, slice(0, E), e.pattern), e)]
        size = RUN[self.device.type == "cuda"]
        whole = self.normalize in ("heads", "target")  # which compare what other pieces have
        step = max(1, C if self.normalize == "heads" else min(C, BLOCK // max(1, E)))
        blocks = [slice(start, min(C, start + step)) for start in range(0, C, step)]
        if len(blocks) == 1 or step > 1 or whole or size >= E:
            return [(Piece(b, all_targets, slice(0, E), e.pattern), e) for b in blocks]
        pieces, runs = [], e.runs(size)
        for block in blocks:
            start = 0
            for run in runs:
                targets = slice(run.first, run.first + run.N)
                pieces.append((Piece(block, targets, slice(start, start + run.E), run.pattern), run))
                start += run.E
        return pieces

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What the weights are computed from, (C, ...) each."""
        factor, scored = self.entries.weight if self.weighted else None, self.score.tensors
        if self.left is not None:
            factor = self.left if factor is None else factor * self.left
        if self.batch:
            scored = tuple(t.flatten(0, len(self.batch)) for t in scored)
        return scored if factor is None else (*scored, factor.expand(self.copies, -1))

    @property
    def sides(self) -> tuple[Side, ...]:
        """What the second axis of each is."""
        return (*self.score.sides, "entry") if self.has_factors else self.score.sides

    @property
    def undropped(self) -> "BoundAttention":
        """The same family, none of whose weights are dropped."""
        weighing = self.weighing._replace(dropout=(0.0, 0))
        about = weighing, self.entries, self.batch, self.dtype, self.observed, self.has_edge_attr, self.left
        return BoundAttention(self.K, *about)

    @property
    def has_factors(self) -> bool:
        """Whether the weights are multiplied with those of the mask, or with what an explainer leaves of them."""
        return self.left is not None or (self.weighted and self.entries.has_weight)

    def _weigh_piece(self, piece: Piece, tensors: Sequence[Tensor]) -> Weights:
        return self._weigh(self._entries_of[piece.targets.start], tensors, piece.copies.start)

    def _weigh(self, entries: Entries, tensors: Sequence[Tensor], first: int = 0) -> Weights:
        """Of some copies, from the first one on, at entries, (c, E) by target: the weights, or the scores of which they
        are the softmax into each target.
        """
        split = len(self.score.tensors)
        value = self.score.on(tensors[:split], entries)
        if self.normalize == "target":
            value = softmax(value, entries.pattern.at_source)
        elif self.normalize == "heads":
            # Where no head may look, the weights are zero, and so is the gradient.
            score = value.unflatten(0, (self.K, value.shape[0] // self.K))
            hidden = score == -torch.inf
            score = torch.where(hidden.all(0), 0, score)
            value = torch.where(hidden, 0, torch.softmax(score, 0)).flatten(0, 1)
        elif self.normalize != "source":
            value = ELEMENTWISE[self.normalize](value)
        factor = tensors[split] if len(tensors) > split else None
        p, seed = self.dropout
        if p:
            kept = _kept(value, p, seed + first * self.N + entries.first)
            factor = kept if factor is None else factor * kept
        return Weights(value, factor)

    @cached_property
    def _entries_of(self) -> dict[int, Entries]:
        return {piece.targets.start: entries for piece, entries in self.pieces}

    def weights_of(self, piece: Piece) -> Tensor:
        """(c, E) the weights at the entries of a piece, of c heads of graphs, by target."""
        cuts = [piece.cut(t[piece.copies], side) for t, side in zip(self.tensors, self.sides, strict=True)]
        return self._weigh_piece(piece, cuts).normalised(self.normalize == "source", piece.pattern)

    def weights(self) -> Tensor:
        """(K, *, E) the weights at the entries, by target."""
        parts = [self.weights_of(piece).flatten() for piece, _ in self.pieces]
        return torch.cat(parts).view(self.K, *self.batch, self.entries.E)

    @property
    def alpha(self) -> Tensor | None:
        e = self.entries
        if e.edge_ids is None or self.batch:
            return None
        weight, there = self.weights().t(), e.edge_ids >= 0  # (E, K)
        own = weight.new_zeros(e.num_edges, self.K).index_put((e.edge_ids[there],), weight[there])
        return torch.cat([own, weight[~there]])

    def each(self, z: Tensor) -> Tensor:
        extra = torch.Size()
        if self.batch or z.dim() > 3:
            z, extra = self._rows(z)
        normalised, pattern, tensors = self.normalize == "source", self.entries.pattern, self.tensors
        if len(self.pieces) == 1:
            y = attention(*self._weigh(self.entries, tensors), z, normalised, pattern)  # (C, N, W)
        else:
            pieces = [piece for piece, _ in self.pieces]
            y = attend(self._weigh_piece, normalised, pieces, pattern, z, tensors, self.sides)
        return self._unrows(y, extra)

    def _rows(self, z: Tensor) -> tuple[Tensor, torch.Size]:
        """(K, +, *, M, D) -> (C, M, + D), and the batch dimensions that the content does not have, +."""
        lead = z.shape[1:-2]
        more = len(lead) - len(self.batch)
        if more < 0 or tuple(lead[more:]) != self.batch:
            reject("x", f"the batch dimensions of the content, {self.batch}", tuple(lead), "bind with these features")
        extra = lead[:more]
        if extra:
            z = z.flatten(1, more).movedim(1, -2).flatten(-2)  # (K, *, M, + D)
        if self.batch:  # side by side at each source
            z = z.movedim(-2, 0).reshape(self.M, self.copies, z.shape[-1]).transpose(0, 1)
        return z, extra

    def _unrows(self, y: Tensor, extra: torch.Size) -> Tensor:
        y = y.unflatten(0, (self.K, *self.batch)) if self.batch else y
        return y.unflatten(-1, (prod(extra), -1)).movedim(-2, 1).unflatten(1, extra) if extra else y

    @property
    def explicit(self) -> Explicit:
        """The weights written out, on the disjoint union of the graphs of the batch."""
        written: Explicit | None = self._held.get("explicit")
        if written is None:
            count = prod(self.batch)
            weight = self.weights().flatten(1)  # (K, B E)
            pattern = self.entries.pattern.copies(count)
            written = _in_given_order(pattern, weight, self.dtype)
            if not self.requires_grad and not portable():
                self._held["explicit"] = written
        return written

    def edges(self) -> EdgeList:
        if self.batch:
            fix = "take to_dense(), or one of them with A[b]"
            reject("batch", "one graph, for a list of edges", f"a batch of {self.batch}", fix)
        return self.explicit.edges()

    def __getitem__(self, index: int | tuple[int, ...]) -> Explicit:
        """One graph of the batch."""
        one = index if isinstance(index, tuple) else (index,)
        if len(one) != len(self.batch):
            reject("index", f"one number for each of {self.batch}", index, "such as A[0]")
        weight = self.weights()
        for i in one:
            weight = weight.select(1, i)
        return _in_given_order(self.entries.pattern, weight, self.dtype)

    def __reduce__(self) -> tuple[Callable[[BoundBasis], BoundBasis], tuple[BoundBasis]]:
        return _itself, (self.map(lambda part: part),)  # a copy is written out: scores are functions

    @property
    def incidence(self) -> BoundBasis:
        """The same weights from the edges to their targets: K matrices E x N, for values that edges have.

        The edges are those of the graph where `edge_attr` was given, all pairs m N + n where there is no mask, and else
        the entries of the mask, in its order.
        """
        refuse("basis", "attention whose weights are not parted by edges", self)
        if self.batch:
            reject("batch", "one graph, for the weights of edges", f"a batch of {self.batch}", "take A[b]")
        e, order = self.entries, self.entries.pattern.by_target.order
        size = e.E
        if self.has_edge_attr and e.edge_ids is not None:
            edge, size = e.edge_ids, e.num_edges
        elif e.complete:
            edge = e.pattern.by_target.other.long() * e.N + e.pattern.row.long()
        else:
            edge = torch.arange(e.E, device=self.device) if order is None else order.long()
        weight = self.weights().flatten(1)
        there = edge >= 0
        if not bool(there.all()):
            edge, weight, row = edge[there], weight[:, there], e.pattern.row[there]
        else:
            row = e.pattern.row
        pattern = Pattern(edge, row, size, e.N)
        return SharedEdges(EdgeSet(1, size, e.N, None, edge, row, pattern), weight.t(), self.dtype)

    @property
    def T(self) -> BoundBasis:
        return Union(self.explicit, self.batch, self.M, self.N).T if self.batch else self.explicit.T

    def map(self, change: Change) -> BoundBasis:
        changed = change(self.explicit)
        return Union(changed, self.batch, self.M, self.N) if self.batch else changed

    def to_coo(self) -> Tensor:
        self.edges()  # of a batch, refused
        return super().to_coo()

    @cached_property
    def is_by_rows(self) -> bool:
        """Whether members may stand side by side from beginning to end; see `content_step`."""
        if portable() or self.batch or self.left is not None:
            return False
        found, E = self.weighing.in_rows, self.entries.E
        if found is None:
            return False
        if self.K * E <= BLOCK:
            return True
        # What is dropped is drawn for all entries.
        return not self.dropout[0] and one_pass_fits(found[0].form(found[1], self.K), self.device, E)

    def _native_step(self, theta: Theta) -> ContentStep | None:
        """All pairs in one step by the vendor's kernel, of batches of sequences from which no mask hides anything."""
        e, plain = self.entries, self.entries.bias is None and self._of_products
        if not (plain and theta.by_rows and self.is_native) or (self.observed and not self.few_pairs):
            return None
        K, dtype, has_edge_attr = self.K, self.dtype, self.has_edge_attr

        def run(inputs: Inputs, bias: Tensor | None) -> Tensor | None:
            y, self._pair_weights = _natively(self.weighing, e, inputs, bias, self.observed)
            return y

        def again(basis: Any, content: Content, bias: Tensor | None) -> Tensor | tuple[Tensor, "BoundAttention"] | None:
            if basis.weighted and e.has_weight:
                return None
            weighing = basis.weighing(content, e)
            y, held = _natively(weighing, e, content.inputs, bias, content.observed)
            if y is None or not content.observed:
                return y
            family = BoundAttention(K, weighing, e, content.batch, dtype, True, has_edge_attr)
            family._pair_weights = held
            return y, family

        return ContentStep(run, again)

    def content_step(self, theta: Theta, order: str) -> ContentStep | None:
        if order == "native":
            return self._native_step(theta)
        if order != "theta_first" or self.observed or not (theta.by_rows and self.is_by_rows):
            return None
        e = self.entries

        def run(inputs: Inputs, bias: Tensor | None) -> Tensor | None:
            return _in_rows(self.weighing, e, inputs, bias)

        def again(basis: Any, content: Content, bias: Tensor | None) -> Tensor | None:
            return _in_rows(basis.weighing(content, e), e, content.inputs, bias)

        return ContentStep(run, again)

    def sums(self, inputs: Inputs, bias: Tensor | None, values: Tensor) -> Tensor | None:
        """The result of a layer that adds values of the entries' own, (E, K D) by target, to those of the sources; None
        where no kernel adds them on the way.
        """
        z = inputs.rows
        found = self.weighing.in_rows if self.is_by_rows and z.dtype == wide(z).dtype else None
        if found is None or not inputs.theta.by_rows:
            return None
        form = found[0].form(found[1], self.K)
        if form is None or not one_pass_fits(form, self.device, self.entries.E):
            return None
        if not is_gate(form, self.normalize == "source", self.K, z.shape[1]):
            return None
        return _in_rows(self.weighing, self.entries, inputs, bias, values)

    @property
    def requires_grad(self) -> bool:
        factor = self.entries.weight if self.weighted else None
        return self.score.requires_grad or any(t is not None and t.requires_grad for t in (factor, self.left))

    def work(self, direction: Direction) -> Work:
        E = self.K * self.entries.E
        # What scoring and normalising reads and writes, whatever the width. The inputs are copied for each head.
        products = 3 if direction == "expand" else 1 if self.is_by_rows else 2
        return Work(E, self.K * self.N, products, 12 * E)

    @property
    def native_family(self) -> "BoundBasis | None":
        """The same family, evaluated by the vendor's attention."""
        return Fused(self) if self.is_native else None

    @cached_property
    def is_native(self) -> bool:
        """Whether a vendor's kernel evaluates it."""
        if self.normalize != "source" or self.has_factors:
            return False
        if not isinstance(self.score.scoring, ProductScores) and self.score.dots is None:
            return False
        # A vendor's kernel draws what it drops by itself.
        if self.observed and self.dropout[0]:
            return False
        # It has no forward-mode derivative; and is of all pairs, where those of a mask are not looked at.
        exported = torch.compiler.is_exporting() and (self.entries.complete or self.entries.causal)
        return exported or not portable()

    def heads_inside(self, t: Tensor) -> Tensor:
        """(K, *, L, d) -> (B, K, L, d), a view for up to one batch dimension."""
        if not self.batch:
            return t.unsqueeze(0)
        return (t if len(self.batch) == 1 else t.flatten(1, len(self.batch))).transpose(0, 1)

    def heads_first(self, t: Tensor) -> Tensor:
        """(B, K, L, d) -> (K, *, L, d), a view."""
        if not self.batch:
            return t.squeeze(0)
        t = t.transpose(0, 1)
        return t if len(self.batch) == 1 else t.unflatten(1, self.batch)

    def pairwise(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None]:
        """Queries (B, K, N, d), keys (B, K, M, d), and what is added to their products, (B, K, N, M) or (N, M)."""
        if self._of_products and self.entries.bias is None:
            key, query = (by_heads(cast(Tensor, t), self.K).to(dtype) for t in self.score.rows)
            return query, key, None
        e, dots = self.entries, self.score.dots
        assert dots is not None
        keys, queries, biases = dots(self.score.tensors, e)
        if not keys:
            shapes = ((self.K, *self.batch, size, 1) for size in (self.M, self.N))
            keys, queries = ([torch.zeros(shape, dtype=self.dtype, device=self.device)] for shape in shapes)
        key, query = (self.heads_inside(side[0] if len(side) == 1 else torch.cat(side, -1)) for side in (keys, queries))
        if e.bias is not None:
            biases = [*biases, e.bias]
        query, key = query.to(dtype), key.to(dtype)
        if not biases:
            return query, key, None
        bias = sum(biases[1:], biases[0]).transpose(-1, -2).to(dtype)  # (K, *, N, M), or (N, M) for all of them
        return query, key, bias if bias.dim() == 2 else self.heads_inside(bias)

    @property
    def _of_products(self) -> bool:
        """Whether scores are inner products that stand by rows, and nothing else, of a batch of sequences."""
        return len(self.batch) == 1 and isinstance(self.score.scoring, ProductScores)

    @property
    def few_pairs(self) -> bool:
        """Whether the weights of all pairs may be held, and are made in a dtype wide enough."""
        return not (portable() or autocasting(self.device)) and self.copies * self.M * self.N <= PAIRS

    def pair_weights(self) -> Tensor:
        """(B, K, N, M) the weights of all pairs; made once, so that a layer and who looks at it have the same."""
        grad, held = torch.is_grad_enabled(), self._pair_weights
        if held is None or held.is_inference() or (grad and self.requires_grad and not held.requires_grad):
            query, key, bias = self.pairwise(torch.promote_types(self.dtype, torch.float32))
            bias = add_causal_mask(bias, query, key) if self.entries.causal else bias
            held = self._pair_weights = pair_weights(query, key, bias)
        return held if grad else held.detach()

    @property
    def holds_pairs(self) -> bool:
        """Whether the weights of all pairs are what is written out."""
        return self._pair_weights is not None or (self.is_native and self.few_pairs and not self.dropout[0])

    def to_dense(self) -> Tensor:
        """The whole family written out, (K, *, M, N)."""
        if self.holds_pairs:  # a copy: the caller's own
            return self.heads_first(self.pair_weights().to(self.dtype, copy=True)).transpose(-1, -2)
        return super().to_dense()

    def mean(self) -> Tensor:
        """The mean of the matrices, written out, (*, M, N)."""
        if len(self.batch) == 1 and self.holds_pairs:
            mean = self.pair_weights().mean(1)
            return (mean if mean.dtype == self.dtype else mean.to(self.dtype)).mT
        return self.to_dense().mean(0)


def _kept(value: Tensor, p: float, seed: int) -> Tensor:
    """What each weight is multiplied with where some are dropped."""
    if portable():
        drawn = torch.rand_like(value)
    else:
        generator = torch.Generator(value.device).manual_seed(seed)
        drawn = torch.rand(value.shape, generator=generator, device=value.device)
    return (drawn >= p).to(value.dtype).div_(1 - p)


def _in_rows(
    weighing: Weighing, entries: Entries, inputs: Inputs, bias: Tensor | None, values: Tensor | None = None
) -> Tensor | None:
    """Theta first, members side by side from beginning to end; None where scores do not stand so."""
    theta, (p, seed), found = inputs.theta, weighing.dropout, weighing.in_rows
    if found is None:
        return None
    K, factor = theta.K, entries.weight if weighing.weighted else None
    scoring, tensors = found[0], [None if t is None else wide(t) for t in found[1]]
    z = inputs.rows  # which what is scored may have been made with
    factor = None if factor is None else factor.unsqueeze(1).expand(-1, K)
    if p:
        kept = _kept(z.new_empty(K, entries.E, dtype=torch.promote_types(z.dtype, torch.float32)), p, seed).t()
        factor = kept if factor is None else factor * kept
    y = scored_attention(scoring, tensors, z, K, weighing.normalize == "source", entries.pattern, factor, values)
    return theta.join(y, bias)


def _natively(
    weighing: Weighing, entries: Entries, inputs: Inputs, bias: Tensor | None, observed: bool
) -> tuple[Tensor | None, Tensor | None]:
    """All pairs by the vendor's kernel, members side by side before and after, and the weights where these are wanted.

    None where scores do not stand so, or where weights are wanted of which some are dropped.
    """
    score, normalize, (p, _), _ = weighing
    if normalize != "source" or not isinstance(score.scoring, ProductScores) or (observed and p):
        return None, None
    key, query = cast(tuple[Tensor, Tensor], score.rows)
    y, held = pair_rows(query, key, inputs.rows, inputs.theta.K, entries.causal, observed, p)
    y = inputs.theta.join(y, bias)
    # A view that was made without gradients may not be written to with them.
    return y if y._base is None or torch.is_grad_enabled() else y.detach(), held


def _itself(bound: BoundBasis) -> BoundBasis:
    return bound


def _in_given_order(pattern: Pattern, weight: Tensor, dtype: torch.dtype) -> SharedEdges:
    """Weights (K, E) by target, as a family on the pattern's entries in the order in which they were given."""
    if pattern.as_given is not None:
        weight = weight.index_select(1, pattern.as_given)
    edge_set = EdgeSet(1, pattern.M, pattern.N, None, pattern.source, pattern.target, pattern)
    return SharedEdges(edge_set, weight.t(), dtype)


class Union(MemberByMember):
    """A family for each graph of a batch, written out on their disjoint union."""

    def __init__(self, whole: BoundBasis, batch: tuple[int, ...], M: int, N: int) -> None:
        self.whole, self.batch = whole, batch
        self.K, self.M, self.N, self.dtype, self.device = whole.K, M, N, whole.dtype, whole.device

    def each(self, z: Tensor) -> Tensor:
        lead, more = z.shape[1:-2], z.dim() - 3 - len(self.batch)
        if more < 0 or tuple(lead[more:]) != self.batch:
            reject("x", f"the batch dimensions {self.batch}", tuple(lead), "bind with these features")
        z = z.flatten(1 + more, -2)
        return self.whole.each(z).unflatten(-2, (*self.batch, self.N))

    @property
    def T(self) -> BoundBasis:
        return Union(self.whole.T, self.batch, self.N, self.M)

    def work(self, direction: Direction) -> Work:
        return self.whole.work(direction)

    def map(self, change: Change) -> BoundBasis:
        return Union(self.whole.map(change), self.batch, self.M, self.N)

    @property
    def requires_grad(self) -> bool:
        return self.whole.requires_grad


class Fused(MemberByMember):
    """Attention by `F.scaled_dot_product_attention`: all pairs, those of the mask among them."""

    def __init__(self, attention: BoundAttention) -> None:
        a = self.attention = attention
        self.K, self.M, self.N, self.dtype, self.device = a.K, a.M, a.N, a.dtype, a.device
        self.batch, self.entries = a.batch, a.entries

    def each(self, z: Tensor) -> Tensor:
        a, lead = self.attention, z.shape[1:-2]
        if tuple(lead) != self.batch:
            reject("x", f"the batch dimensions of the content, {self.batch}", tuple(lead), "choose another order")
        value = a.heads_inside(z)
        if a.observed and a.few_pairs:
            y = pair_product(a.pair_weights().to(z.dtype), value)
        else:
            y = pair_attention(*a.pairwise(z.dtype), value, a.dropout[0], self.entries.causal)  # (B, K, N, D)
        return a.heads_first(y)

    @property
    def native_cost(self) -> tuple[int, int, int]:
        # Both products, of which the one with the keys is taken to be as wide as that with the values.
        e = self.entries
        pairs = self.K * self.M * self.N // (2 if e.causal else 1)
        # A mask is written out and added to the scores; the gradient then takes much longer.
        return 4 * pairs, self.K * (2 * self.M + 2 * self.N), 1 if e.complete or e.causal else 3
