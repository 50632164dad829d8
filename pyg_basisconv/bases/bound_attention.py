"""Attention, bound: weights that are computed where they are needed."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from ..basis import BoundBasis, Direction, EdgeList, Work
from ..bound import Change, ContentStep, Explicit
from ..cache import cached_property
from ..content import Content, Inputs
from ..edge_set import EdgeSet
from ..entries import Entries
from ..errors import reject
from ..graph import Graph
from ..kernels import Pattern, Piece, attend, attention
from ..kernels.attend import Pieces, Side, Weights
from ..kernels.grids import Ints
from ..kernels.onepass import one_pass_fits
from ..kernels.op import autocasting
from ..portable import portable, with_plain
from ..theta import Theta
from ..typed_edges import SharedEdges
from .attention_steps import is_mask, step_by_rows, step_of_mask, step_of_pairs
from .by_member import DisjointUnion, MemberByMember
from .dropout import AtOnce, Seeded
from .native_attention import NativeAttention
from .replay import Replays
from .weighing import ELEMENTWISE, Weighing, attend_all_pairs, attend_given, attend_in_rows, weights_across

# Entries of all copies up to which all are evaluated together; beyond, in blocks that the backward pass recomputes.
BLOCK = 1 << 20
# Pairs up to which the weights of all pairs may be stored for the caller.
PAIRS = 1 << 26
# Entries of one copy that are evaluated together, on the CPU and on CUDA. It bounds the memory; from 1 << 20 on, the
# time does not depend on it.
TARGETS_BLOCK = (1 << 23, 1 << 26)


def in_one_piece(K: int, entries: Entries) -> bool:
    """Whether K copies are few enough to be evaluated together, and numbers of all their entries to be stored."""
    return K * entries.E <= BLOCK


class BoundAttention(MemberByMember):
    """K matrices of weights at the entries of a mask, for each graph of a batch; weights are computed on use.

    Args:
        K: the number of matrices.
        weighing: how weights are computed from the scores of K x batch copies of the graph.
        entries: of the mask.
        batch: the batch dimensions of the content.
        dtype: of the matrices.
        observed: whether the caller gets the weights, which then have to be those that are applied.
        has_edge_attr: whether the entries are edges that have features.
        mask_share: (E,) factors of the weights by target, from the mask of an explainer; None for ones.
        valued: the content, if edges have values; None otherwise.

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
        batch: Ints,
        dtype: torch.dtype,
        observed: bool = False,
        has_edge_attr: bool = False,
        mask_share: Tensor | None = None,
        valued: Content | None = None,
    ) -> None:
        self.K, self.M, self.N = K, entries.M, entries.N
        self.weighing, self.entries, self.batch = weighing, entries, batch
        self.copies = K * prod(batch)  # of the entries
        self.score, self.normalize, self.dropout, self.weighted = weighing
        self.dtype, self.device, self.observed = dtype, entries.device, observed
        self.has_edge_attr, self.mask_share, self.valued = has_edge_attr, mask_share, valued

    takes_edge_values = True
    _pair_weights: Tensor | None = None  # see `NativeAttention.weights`
    _weights: Tensor | None = None  # (K, E) those that the layer has applied, if it has stored them

    @cached_property
    def pieces(self) -> list[tuple[Piece, Entries]]:
        """The blocks of the evaluation: some copies, or a range of targets of one copy."""
        e, C = self.entries, self.copies
        E, all_targets = e.E, slice(0, self.N)
        if portable() or C * E <= BLOCK:
            return [(Piece(slice(0, C), all_targets, slice(0, E), e.pattern), e)]
        size = TARGETS_BLOCK[self.device.type == "cuda"]
        whole = self.normalize in ("heads", "target")  # which compare entries of different targets
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
        """The tensors that the weights are computed from, (C, ...) each."""
        factor, scored = self.entries.weight if self.weighted else None, self.score.tensors
        for more in (self.mask_share, self._drawn_factors):
            if more is not None:
                factor = more if factor is None else factor * more
        if self.batch:
            scored = tuple(t.flatten(0, len(self.batch)) for t in scored)
        return scored if factor is None else (*scored, factor.expand(self.copies, -1))

    @property
    def sides(self) -> tuple[Side, ...]:
        """The second axis of each tensor, see `kernels.attend`."""
        factors = self.has_factors or self._drawn_factors is not None
        return (*self.score.sides, "entry") if factors else self.score.sides

    @cached_property
    def _drawn_factors(self) -> Tensor | None:
        """(C, E) the factors of a dropout that draws for all entries at once, by target; None without."""
        if not isinstance(self.dropout, AtOnce):
            return None
        dtype = torch.promote_types(self.dtype, torch.float32)
        return self.dropout.factors(self.entries, self.K, dtype, self.batch).movedim(-1, 0).flatten(0, -2)

    @property
    def undropped(self) -> "BoundAttention":
        """The same family without dropout."""
        if self.dropout is None:
            return self
        return self._remade(self.weighing._replace(dropout=None), self.mask_share)

    @property
    def unmasked(self) -> "BoundAttention":
        """The same family without the mask of an explainer."""
        return self if self.mask_share is None else self._remade(self.weighing, None)

    @property
    def unweighted(self) -> "BoundAttention":
        """The same family without the weights of its mask as factors."""
        return self._remade(self.weighing._replace(weighted=False), self.mask_share) if self.weighted else self

    def _remade(self, weighing: Weighing, mask_share: Tensor | None) -> "BoundAttention":
        about = self.entries, self.batch, self.dtype, self.observed, self.has_edge_attr
        return BoundAttention(self.K, weighing, *about, mask_share)

    @property
    def has_factors(self) -> bool:
        """Whether the weights are multiplied by those of the mask, or by an explainer's."""
        return self.mask_share is not None or (self.weighted and self.entries.has_weight)

    def _weigh(self, piece: Piece, tensors: Sequence[Tensor]) -> Weights:
        """(c, E) by target: the weights of a piece, or the scores of their softmax over sources."""
        split, entries = len(self.score.tensors), self._entries_of[piece.targets.start]
        value = self.score.evaluate(tensors[:split], entries)
        if self.normalize == "target":
            value = weights_across(value, "target", entries)
        elif self.normalize == "heads":
            value = weights_across(value.unflatten(0, (self.K, value.shape[0] // self.K)), "heads", entries)
            value = value.flatten(0, 1)
        elif self.normalize != "source":
            value = ELEMENTWISE[self.normalize](value)
        factor = tensors[split] if len(tensors) > split else None
        if isinstance(self.dropout, Seeded):
            kept = self.dropout.factors(value, piece.copies.start * self.N + entries.first)
            factor = kept if factor is None else factor * kept
        return Weights(value, factor)

    @cached_property
    def _entries_of(self) -> dict[int, Entries]:
        return {piece.targets.start: entries for piece, entries in self.pieces}

    def weights_of(self, piece: Piece) -> Tensor:
        """(c, E) the weights at the entries of a piece, by target."""
        cuts = [piece.cut(t[piece.copies], side) for t, side in zip(self.tensors, self.sides, strict=True)]
        return self._weigh(piece, cuts).normalised(self.normalize == "source", piece.pattern)

    def weights(self) -> Tensor:
        """(K, *, E) the weights at the entries, by target."""
        known, grad = self._weights, torch.is_grad_enabled()
        learns = grad and self.requires_grad
        if known is not None and not known.is_inference() and (known.requires_grad or not learns):
            return known if grad else known.detach()
        parts = [self.weights_of(piece).flatten() for piece, _ in self.pieces]
        return torch.cat(parts).view(self.K, *self.batch, self.entries.E)

    @property
    def alpha(self) -> Tensor | None:
        e = self.entries
        if e.edge_ids is None or self.batch:
            return None
        weight, is_edge = self.unweighted.weights().t(), e.edge_ids >= 0  # (E, K)
        own = weight.new_zeros(e.num_edges, self.K).index_put((e.edge_ids[is_edge],), weight[is_edge])
        return torch.cat([own, weight[~is_edge]])

    def each(self, z: Tensor) -> Tensor:
        extra = torch.Size()
        if self.batch or z.dim() > 3:
            z, extra = self._to_copies(z)
        normalised, pattern, tensors = self.normalize == "source", self.entries.pattern, self.tensors
        pieces = [piece for piece, _ in self.pieces]
        if len(pieces) == 1:
            y = attention(*self._weigh(pieces[0], tensors), z, normalised, pattern)  # (C, N, W)
        else:
            y = attend(Pieces(self._weigh, normalised, pieces, pattern, self.sides), z, *tensors)
        y = y.unflatten(0, (self.K, *self.batch)) if self.batch else y
        return y.unflatten(-1, (prod(extra), -1)).movedim(-2, 1).unflatten(1, extra) if extra else y

    def _to_copies(self, z: Tensor) -> tuple[Tensor, torch.Size]:
        """(K, +, *, M, D) -> (C, M, + D), and +, the batch dimensions of z that the content does not have."""
        lead = z.shape[1:-2]
        more = len(lead) - len(self.batch)
        if more < 0 or tuple(lead[more:]) != self.batch:
            reject("x", f"the batch dimensions of the content, {self.batch}", tuple(lead), "bind with these features")
        extra = lead[:more]
        if extra:
            z = z.flatten(1, more).movedim(1, -2).flatten(-2)  # (K, *, M, + D)
        if self.batch:  # node-major
            z = z.movedim(-2, 0).reshape(self.M, self.copies, z.shape[-1]).transpose(0, 1)
        return z, extra

    @property
    def explicit(self) -> Explicit:
        """The weights written out, on the disjoint union of the graphs of the batch."""

        def write() -> Explicit:
            weight = self.weights().flatten(1)  # (K, B E)
            return _as_shared_edges(self.entries.pattern.copies(prod(self.batch)), weight, self.dtype)

        return self.keep("explicit", write)

    def edges(self) -> EdgeList:
        if self.batch:
            fix = "take to_dense(), or one of them with A[b]"
            reject("batch", "one graph, for a list of edges", f"a batch of {self.batch}", fix)
        return self.explicit.edges()

    def __getitem__(self, index: int | Ints) -> Explicit:
        """One graph of the batch."""
        one = index if isinstance(index, tuple) else (index,)
        if len(one) != len(self.batch):
            reject("index", f"one number for each of {self.batch}", index, "such as A[0]")
        weight = self.weights()
        for i in one:
            weight = weight.select(1, i)
        return _as_shared_edges(self.entries.pattern, weight, self.dtype)

    def __reduce__(self) -> tuple[Callable[[BoundBasis], BoundBasis], tuple[BoundBasis]]:
        return _identity, (self.map(lambda part: part),)  # written out, as scores hold functions

    @property
    def incidence(self) -> BoundBasis:
        """The same weights as K matrices E x N from edges to their targets, to sum values of edges.

        The edges are those of the graph if `edge_attr` was given, all pairs m N + n if there is no mask, and otherwise
        the entries of the mask, in its order.
        """
        return self._incidence(0)

    def _incidence(self, more: int) -> BoundBasis:
        """The same, with so many rows more, of no edges."""
        if self.batch:
            reject("batch", "one graph, for the weights of edges", f"a batch of {self.batch}", "take A[b]")
        e, order = self.entries, self.entries.pattern.by_target.order
        if self.has_edge_attr and e.edge_ids is not None:
            pattern, which = e.incidence(more)
            weight = _weights_of(self.weights().flatten(1), which)
        else:
            if e.complete:
                edge = e.pattern.by_target.other.long() * e.N + e.pattern.row.long()
            else:
                edge = torch.arange(e.E, device=self.device) if order is None else order.long()
            pattern, weight = Pattern(edge, e.pattern.row, e.E + more, e.N), self.weights().flatten(1)
        return SharedEdges(EdgeSet.of_pattern(pattern), weight.t(), self.dtype)

    def _weights_by_incidence(self, edges: int) -> Tensor:
        kind, edge, _, weight = self.incidence.edges()
        place = edge.long() * self.K + kind.long()
        return weight.new_zeros(edges * self.K).index_put((place,), weight, accumulate=True).view(edges, self.K)

    @with_plain(_weights_by_incidence)
    def weights_by_edge(self, edges: int) -> Tensor:
        """(E, K) the weights of the graph's edges in their order, in memory of their own; see `incidence`."""
        e = self.entries
        if not (self.batch or self.has_edge_attr or e.complete) and edges == e.E:
            weight, place = self.weights().t(), e.pattern.as_given
            return weight.clone() if place is None else weight.index_select(0, place)
        return self._weights_by_incidence(edges)

    def edge_sums(self, values: Theta, edge_attr: Tensor) -> Tensor:
        more = _rows_of_no_edge()
        edge_attr = F.pad(edge_attr, (0, 0, 0, more)) if more else edge_attr
        sums = self._incidence(more)  # of features, or of values where these are narrower: those of all are not stored
        if values.inner > values.P:
            return values.contract(sums.expand(edge_attr))
        return values.gather(sums, values.project(edge_attr))

    @property
    def T(self) -> BoundBasis:
        return DisjointUnion(self.explicit, self.batch, self.M, self.N).T if self.batch else self.explicit.T

    def map(self, change: Change) -> BoundBasis:
        changed = change(self.explicit)
        return DisjointUnion(changed, self.batch, self.M, self.N) if self.batch else changed

    def to_coo(self) -> Tensor:
        self.edges()  # rejects a batch
        return super().to_coo()

    @cached_property
    @with_plain(lambda self: False)
    def is_by_rows(self) -> bool:
        """Whether the evaluation may be node-major throughout; see `content_step`."""
        if self.batch or self.mask_share is not None:
            return False
        return in_one_piece(self.K, self.entries) or self._fits_one_pass  # scores of another form are written out

    @property
    def _fits_one_pass(self) -> bool:
        """Whether compiled kernels compute the scores, and store none of them."""
        found = self.weighing.in_rows
        return found is not None and one_pass_fits(found[0].form(found[1], self.K), self.device, self.entries.E)

    def content_step(self, theta: Theta, order: str) -> ContentStep | None:
        basis, graph = cast(tuple[Any, Graph], self.origin)
        if self.valued is not None:
            if not self.adds_values:
                return None
            order = "theta_first"
        if order == "native":
            fits = theta.by_rows and self.is_pairs_by_rows
            return step_of_pairs(basis.mask, self.entries, self.dtype) if fits else None
        if self.given is not None and theta.by_rows and not theta.lifts:
            return step_of_mask(basis.mask, order)
        if order != "theta_first" or not (theta.by_rows and self.is_by_rows):
            return None
        if self.observed and (self.draws or not in_one_piece(self.K, self.entries)):
            return None
        content = graph.content
        if content is None or content.mask is not None or content.valid is not None:
            return None
        return step_by_rows(basis.mask, self.entries, Replays())

    @property
    def given(self) -> Tensor | None:
        """The mask of the call, if its numbers are the matrices, the same for all heads; None otherwise."""
        basis, graph = cast(tuple[Any, Graph], self.origin)
        content = graph.content
        if content is None or content.mask is None or not content.mask.is_floating_point():
            return None
        plain = content.valid is None and self.valued is None and self.entries.complete and is_mask(basis)
        same = content.mask.dim() <= 2 + len(self.batch)
        return content.mask if plain and same and not (self.observed or self.has_factors) else None

    @property
    def is_pairs_by_rows(self) -> bool:
        """Whether a vendor's kernel may read the rows of queries, keys and values as they are."""
        if self.entries.bias is not None or not (NativeAttention(self).is_row_product and self.is_native):
            return False
        return not self.observed or self.may_hold_pairs

    def in_one_step(self, order: str, inputs: Inputs, bias: Tensor | None) -> Tensor:
        if order == "native" and self.valued is None:
            y, self._pair_weights = attend_all_pairs(self.weighing, self.entries, inputs, bias, self.observed)
        elif self.given is not None:
            y = attend_given(self.given, inputs, bias, order)
        else:
            about = self.valued, self.observed
            y, self._weights = attend_in_rows(self.weighing, self.entries, inputs, bias, *about)
        return cast(Tensor, y)

    @cached_property
    def adds_values(self) -> bool:
        """Whether compiled kernels add the values of entries."""
        return self.valued is not None and self.is_by_rows and self._fits_one_pass

    @property
    def requires_grad(self) -> bool:
        factor = self.entries.weight if self.weighted else None
        return self.score.requires_grad or any(t is not None and t.requires_grad for t in (factor, self.mask_share))

    @property
    def draws(self) -> bool:
        return self.dropout is not None

    def work(self, direction: Direction) -> Work:
        E = self.K * self.entries.E
        # `numbers`: reads and writes of scoring and normalising. `expand` copies its input for each head.
        products = 3 if direction == "expand" else 1 if self.is_by_rows else 2
        return Work(E, self.K * self.N, products, 12 * E)

    @property
    def native_family(self) -> "BoundBasis | None":
        """The same family, evaluated by the vendor's attention."""
        return NativeAttention(self) if self.is_native else None

    @cached_property
    def is_native(self) -> bool:
        """Whether a vendor's kernel evaluates it."""
        if self.normalize != "source" or self.has_factors or not self.score.has_dots:
            return False
        # The vendor's kernel does not return the weights that it drops.
        if self.observed and self.draws:
            return False
        # It has no forward-mode derivative, and in the portable path no mask but a causal one.
        exported = torch.compiler.is_exporting() and (self.entries.complete or self.entries.causal)
        return exported or not portable()

    @property
    @with_plain(lambda self: False)
    def may_hold_pairs(self) -> bool:
        """Whether the weights of all pairs may be stored, and are not narrowed by autocast."""
        return not autocasting(self.device) and self.copies * self.M * self.N <= PAIRS

    def to_dense(self) -> Tensor:
        return NativeAttention(self).to_dense() if self.holds_pairs else super().to_dense()

    def mean(self) -> Tensor:
        """The mean of the matrices, written out, (*, M, N)."""
        if len(self.batch) == 1 and self.holds_pairs:
            return NativeAttention(self).mean()
        return self.to_dense().mean(0)

    @property
    def holds_pairs(self) -> bool:
        """Whether `to_dense` may use the weights of all pairs."""
        return self._pair_weights is not None or (self.is_native and self.may_hold_pairs and not self.draws)


@with_plain(lambda weight, is_edge: weight.where(is_edge, 0))
def _weights_of(weight: Tensor, which: Tensor | None) -> Tensor:
    """(K, E) the weights of those entries that `Entries.incidence` has."""
    return weight if which is None else weight.index_select(1, which)


@with_plain(lambda: 1)
def _rows_of_no_edge() -> int:
    """How many rows stand behind the edges: one where entries of no edge read the first edge, of maybe none."""
    return 0


def _identity(bound: BoundBasis) -> BoundBasis:
    return bound


def _as_shared_edges(pattern: Pattern, weight: Tensor, dtype: torch.dtype) -> SharedEdges:
    """Weights (K, E) by target, as a family on the pattern's entries in their given order."""
    if pattern.as_given is not None:
        weight = weight.index_select(1, pattern.as_given)
    return SharedEdges(EdgeSet.of_pattern(pattern), weight.t(), dtype)
