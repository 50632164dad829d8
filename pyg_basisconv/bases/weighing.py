"""How scores become the weights of attention, and node-major evaluations of scores, weights and sums in one step."""

from collections.abc import Callable
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor

from ..content import Inputs
from ..entries import Entries
from ..kernels import ProductScores, scored_attention
from ..kernels.activations import tanh_zero_hidden, zero_hidden
from ..kernels.all_pairs import pair_rows
from ..kernels.scored import Scoring
from ..mechanisms import Score
from ..mechanisms.base import upcast
from ..portable import portable

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


def dropout_factors(value: Tensor, p: float, seed: int) -> Tensor:
    """The factors of dropout: 0, or 1 / (1 - p)."""
    if portable():
        drawn = torch.rand_like(value)
    else:
        generator = torch.Generator(value.device).manual_seed(seed)
        drawn = torch.rand(value.shape, generator=generator, device=value.device)
    return (drawn >= p).to(value.dtype).div_(1 - p)


def attend_in_rows(
    weighing: Weighing, entries: Entries, inputs: Inputs, bias: Tensor | None, values: Tensor | None = None
) -> Tensor | None:
    """Theta first, node-major throughout; None if the scores are not node-major."""
    theta, (p, seed), found = inputs.theta, weighing.dropout, weighing.in_rows
    if found is None:
        return None
    K, factor = theta.K, entries.weight if weighing.weighted else None
    scoring, tensors = found[0], [None if t is None else upcast(t) for t in found[1]]
    z = inputs.rows  # after the scores, whose projections may have computed it in the same product
    factor = None if factor is None else factor.unsqueeze(1).expand(-1, K)
    if p:
        kept = dropout_factors(
            z.new_empty(K, entries.E, dtype=torch.promote_types(z.dtype, torch.float32)), p, seed
        ).t()
        factor = kept if factor is None else factor * kept
    y = scored_attention(scoring, tensors, z, K, weighing.normalize == "source", entries.pattern, factor, values)
    return theta.join(y, bias)


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
