"""How scores become the weights of attention, and node-major evaluations of scores, weights and sums in one step."""

from collections.abc import Callable
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from ..backend import on_gpu
from ..content import Content, Inputs, joined_sums
from ..entries import Entries
from ..kernels import ProductScores, Sums, scored_attention, softmax
from ..kernels.activations import tanh_zero_hidden, zero_hidden
from ..kernels.all_pairs import pair_rows
from ..kernels.scored import observed_attention
from ..kernels.scoring import Scoring
from ..mechanisms import Score
from ..mechanisms.base import upcast
from ..mechanisms.rows import TermRows
from .dropout import AtOnce, Dropout

Normalize = Literal["source", "target", "heads", "sigmoid", "tanh"] | None
_BY_ROWS = ("source", "sigmoid", "tanh", None)  # normalisations within the entries of each target

ELEMENTWISE: dict[str | None, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "tanh": tanh_zero_hidden,
    None: zero_hidden,
}


class Weighing(NamedTuple):
    """How weights are computed from scores.

    score: the scores; normalize: see `Attention`; dropout: of the weights, or None; weighted: whether those of the mask
    are factors, too.
    """

    score: Score
    normalize: Normalize
    dropout: Dropout | None
    weighted: bool

    @property
    def in_rows(self) -> tuple[Scoring, tuple[Tensor | None, ...]] | None:
        """The node-major scoring with its tensors, an elementwise normalisation included; None if the scores have
        another form.
        """
        if self.normalize not in _BY_ROWS:
            return None
        score = self.score if self.normalize == "source" else self.score.map(ELEMENTWISE[self.normalize])
        return None if score.scoring is None else (score.scoring, score.rows)

    def written_out(self, entries: Entries) -> "Weighing":
        """The same in node-major form: where the scores have another, with a number for each entry and head."""
        if self.in_rows is not None:
            return self
        score, normalize = self.score, self.normalize
        if normalize == "heads" and isinstance(score, TermRows) and score.activation is None:  # no pair is hidden
            return self._replace(score=TermRows(entry=_softmax_of_heads(score.at(entries))), normalize=None)
        value = score.evaluate(score.tensors, entries)  # (K, E)
        if normalize not in _BY_ROWS:
            value, normalize = weights_across(value, normalize, entries), None
        return self._replace(score=TermRows(entry=value.t()), normalize=normalize)


def _softmax_of_heads(score: Tensor) -> Tensor:
    """(E, K) the softmax over the heads; on the CPU torch takes many times as long along short rows of memory."""
    return score.t().contiguous().softmax(0).t() if score.is_cpu else score.softmax(1)


def weights_across(score: Tensor, normalize: Normalize, entries: Entries) -> Tensor:
    """(K, *, E) the weights of scores that are normalised across targets: over the targets of each source, or heads."""
    if normalize == "target":
        return softmax(score, entries.pattern.at_source)
    hidden = score == -torch.inf  # a pair that is hidden from all heads gets zeros, and no gradient
    return torch.where(hidden, 0, torch.softmax(torch.where(hidden.all(0), 0, score), 0))


def attend_in_rows(
    weighing: Weighing,
    entries: Entries,
    inputs: Inputs,
    bias: Tensor | None,
    valued: Content | None,
    observed: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Theta first, node-major throughout; and, if observed, which is without dropout, the weights that were applied,
    (K, E), which are stored. `valued` has the values of entries, where they have some.
    """
    theta, weighing = inputs.theta, weighing.written_out(entries)
    scoring, rows = cast(tuple[Scoring, tuple[Tensor | None, ...]], weighing.in_rows)
    tensors = [None if t is None else upcast(t) for t in rows]
    factor = entries.weight if weighing.weighted else None
    factor = None if factor is None else factor.unsqueeze(1).expand(-1, theta.K)
    # After the scores, whose projections may have computed them in the same product; and a checkpoint compares what
    # calls save, in order.
    z = inputs.rows
    if weighing.dropout is not None:
        dtype = torch.promote_types(z.dtype, torch.float32)
        if isinstance(weighing.dropout, AtOnce):
            kept = weighing.dropout.factors(entries, theta.K, dtype)
        else:
            kept = weighing.dropout.factors(z.new_empty(theta.K, entries.E, dtype=dtype)).t()
        factor = kept if factor is None else factor * kept
    values = None if valued is None else valued.values_at(entries)
    about = Sums(scoring, weighing.normalize == "source", entries.pattern, theta.K), z, tensors, factor, values
    if not observed:
        if weighing.normalize == "source" and on_gpu(z):
            return joined_sums(theta, scored_attention(*about, read_only=True), bias), None
        return theta.join(scored_attention(*about), bias), None
    y, weights = observed_attention(*about)
    return theta.join(y, bias), weights.t()


def attend_given(matrices: Tensor, inputs: Inputs, bias: Tensor | None, order: str) -> Tensor:
    """All pairs with given weights, (M, N) or (*, M, N), the same for all heads: two dense products."""
    theta, A = inputs.theta, F.threshold(matrices, -torch.inf, 0.0).mT  # a hidden pair has no weight
    if order == "a_first" and theta.K == 1:
        return theta.join(theta.rows(A @ inputs.x), bias)
    return theta.join(A @ inputs.rows, bias)


def attend_all_pairs(
    weighing: Weighing, entries: Entries, inputs: Inputs, bias: Tensor | None, observed: bool
) -> tuple[Tensor | None, Tensor | None]:
    """All pairs by the vendor's kernel, node-major, and the weights if they are observed.

    None if the scores are not node-major, or if observed weights have dropout.
    """
    score, normalize, dropout, _ = weighing
    if normalize != "source" or not isinstance(score.scoring, ProductScores) or (observed and dropout is not None):
        return None, None
    p = 0.0 if dropout is None else dropout.p
    key, query = cast(tuple[Tensor, Tensor], score.rows)
    y, weights = pair_rows(query, key, inputs.rows, inputs.theta.K, entries.causal, observed, p)
    y = inputs.theta.join(y, bias)
    # A view that was made under no_grad may not be written to with gradients.
    return y if y._base is None or torch.is_grad_enabled() else y.detach(), weights
