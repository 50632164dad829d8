"""How scores become the weights of attention, and node-major evaluations of scores, weights and sums in one step."""

from collections.abc import Callable
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from ..content import Content, Inputs
from ..entries import Entries
from ..kernels import ProductScores, Valued, scored_attention, softmax
from ..kernels.activations import tanh_zero_hidden, zero_hidden
from ..kernels.all_pairs import pair_rows
from ..kernels.scored import Scoring, observed_attention
from ..mechanisms import Score
from ..mechanisms.base import upcast
from ..mechanisms.rows import TermRows
from ..portable import with_plain

Normalize = Literal["source", "target", "heads", "sigmoid", "tanh"] | None
_BY_ROWS = ("source", "sigmoid", "tanh", None)  # normalisations within the entries of each target

ELEMENTWISE: dict[str | None, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "tanh": tanh_zero_hidden,
    None: zero_hidden,
}


class Weighing(NamedTuple):
    """How weights are computed from scores.

    score: the scores; normalize: see `Attention`; dropout: the probability, and the seed; weighted: whether to multiply
    by the weights of the mask.
    """

    score: Score
    normalize: Normalize
    dropout: tuple[float, int]
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
            return self._replace(score=TermRows(entry=score.at(entries).softmax(1)), normalize=None)
        value = score.evaluate(score.tensors, entries)  # (K, E)
        if normalize not in _BY_ROWS:
            value, normalize = weights_across(value, normalize, entries), None
        return self._replace(score=TermRows(entry=value.t()), normalize=normalize)


def weights_across(score: Tensor, normalize: Normalize, entries: Entries) -> Tensor:
    """(K, *, E) the weights of scores that are normalised across targets: over the targets of each source, or heads."""
    if normalize == "target":
        return softmax(score, entries.pattern.at_source)
    hidden = score == -torch.inf  # a pair that is hidden from all heads gets zeros, and no gradient
    return torch.where(hidden, 0, torch.softmax(torch.where(hidden.all(0), 0, score), 0))


@with_plain(lambda value, seed: torch.rand_like(value))
def _draw(value: Tensor, seed: int) -> Tensor:
    generator = torch.Generator(value.device).manual_seed(seed)
    return torch.rand(value.shape, generator=generator, device=value.device)


@with_plain(lambda: 0)
def new_seed() -> int:
    """A seed for dropout, from torch's generator; in the portable path none is needed."""
    return int(torch.randint(1 << 60, ()))


def dropout_factors(value: Tensor, p: float, seed: int) -> Tensor:
    """The factors of dropout: 0, or 1 / (1 - p)."""
    return (_draw(value, seed) >= p).to(value.dtype).div_(1 - p)


def attend_in_rows(
    weighing: Weighing, entries: Entries, inputs: Inputs, bias: Tensor | None, valued: Content | None = None
) -> Tensor:
    """Theta first, node-major throughout; `valued` has the values of entries, where they have some."""
    theta, (p, seed), weighing = inputs.theta, weighing.dropout, weighing.written_out(entries)
    K, (scoring, tensors), factor = theta.K, _upcast(weighing), _factor(weighing, entries, theta.K)
    z = inputs.rows  # after the scores, whose projections may have computed it in the same product
    if p:
        kept = dropout_factors(
            z.new_empty(K, entries.E, dtype=torch.promote_types(z.dtype, torch.float32)), p, seed
        ).t()
        factor = kept if factor is None else factor * kept
    values = _values(valued, entries)
    y = scored_attention(scoring, tensors, z, K, weighing.normalize == "source", entries.pattern, factor, values)
    return theta.join(y, bias)


def attend_observed(
    weighing: Weighing, entries: Entries, inputs: Inputs, bias: Tensor | None, valued: Content | None = None
) -> tuple[Tensor, Tensor]:
    """The same without dropout, and the weights that were applied, (K, E); they are stored."""
    theta, weighing = inputs.theta, weighing.written_out(entries)
    K, (scoring, tensors), factor = theta.K, _upcast(weighing), _factor(weighing, entries, theta.K)
    z, normalised, values = inputs.rows, weighing.normalize == "source", _values(valued, entries)
    y, weights = observed_attention(scoring, tensors, z, K, normalised, entries.pattern, factor, values)
    return theta.join(y, bias), weights.t()


def attend_given(matrices: Tensor, inputs: Inputs, bias: Tensor | None, order: str) -> Tensor:
    """All pairs with given weights, (M, N) or (*, M, N), the same for all heads: two dense products."""
    theta, A = inputs.theta, F.threshold(matrices, -torch.inf, 0.0).mT  # a hidden pair has no weight
    if order == "a_first" and theta.K == 1:
        return theta.join(theta.rows(A @ inputs.x), bias)
    return theta.join(A @ inputs.rows, bias)


def _upcast(weighing: Weighing) -> tuple[Scoring, list[Tensor | None]]:
    """The node-major scoring, and its tensors in the precision of scores."""
    scoring, tensors = cast(tuple[Scoring, tuple[Tensor | None, ...]], weighing.in_rows)
    return scoring, [None if t is None else upcast(t) for t in tensors]


def _values(valued: Content | None, entries: Entries) -> Valued | None:
    """The values of the entries, by target, which are added to those of the sources; None for none.

    Scores are computed before them, as the plan of a first call does: a checkpoint compares what calls save, in order.
    """
    return None if valued is None else valued.values_at(entries)


def _factor(weighing: Weighing, entries: Entries, K: int) -> Tensor | None:
    """(E, K) the weights of the mask, if they count."""
    factor = entries.weight if weighing.weighted else None
    return None if factor is None else factor.unsqueeze(1).expand(-1, K)


def attend_all_pairs(
    weighing: Weighing, entries: Entries, inputs: Inputs, bias: Tensor | None, observed: bool
) -> tuple[Tensor | None, Tensor | None]:
    """All pairs by the vendor's kernel, node-major, and the weights if they are observed.

    None if the scores are not node-major, or if observed weights have dropout.
    """
    score, normalize, (p, _), _ = weighing
    if normalize != "source" or not isinstance(score.scoring, ProductScores) or (observed and p):
        return None, None
    key, query = cast(tuple[Tensor, Tensor], score.rows)
    y, weights = pair_rows(query, key, inputs.rows, inputs.theta.K, entries.causal, observed, p)
    y = inputs.theta.join(y, bias)
    # A view that was made under no_grad may not be written to with gradients.
    return y if y._base is None or torch.is_grad_enabled() else y.detach(), weights
