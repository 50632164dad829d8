"""Scores of one graph whose heads stand side by side at each node: the kernels read them as they are."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..cache import cached_property
from ..content import Content
from ..kernels import TermScores
from ..portable import portable
from .base import Score, added, entry_score, node_score, wide

_TURNED = ("tensors", "sides", "on", "dots", "fresh", "ends")


def by_rows(content: Content) -> bool:
    """Whether the scores of a content may stand so."""
    return not (content.batch or portable())


class RowScore(Score):
    """Scores as `kernels.scored_attention` takes them. A kind gives `turn`: the same heads first, for whoever else
    reads a score; it is made when it is asked for.

    Attributes:
        scoring: what makes them of the rows.
        rows: what it reads, (M, K d) for each source, and so on.
    """

    @cached_property
    def _turned(self) -> Score:
        return self.turn()

    def turn(self) -> Score:
        """The same, heads first."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name in _TURNED:
            return getattr(self._turned, name)
        raise AttributeError(name)


class TermRows(RowScore):
    """Terms of sources, (M, K), targets, (N, K), and entries, (E, K), those that there are, under an activation.

    >>> import torch
    >>> score = TermRows(torch.zeros(3, 2), torch.ones(4, 2)) + TermRows(None, torch.ones(4, 2))
    >>> score.rows[1].sum(), score.map(torch.relu).scoring.activation, score.sides
    (tensor(16.), <built-in method relu of type object at ...>, ('source', 'target'))
    """

    def __init__(
        self,
        source: Tensor | None,
        target: Tensor | None = None,
        entry: Tensor | None = None,
        activation: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.terms, self.activation = (source, target, entry), activation
        self.scoring, self.rows = TermScores(activation), (*self.terms, None)

    def turn(self) -> Score:
        source, target, entry = [None if t is None else wide(t).t() for t in self.terms]
        parts = [] if source is None and target is None else [node_score(source, target)]
        parts += [] if entry is None else [entry_score(entry)]
        score = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        return score if self.activation is None else score.map(self.activation)

    def __add__(self, other: Score) -> Score:
        if not isinstance(other, TermRows) or self.activation is not None or other.activation is not None:
            return super().__add__(other)
        source, target, entry = map(added, self.terms, other.terms)
        return TermRows(source, target, entry)

    def map(self, function: Callable[[Tensor], Tensor]) -> Score:
        return TermRows(*self.terms, function if self.activation is None else _then(self.activation, function))


def _then(first: Callable[[Tensor], Tensor], second: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda score: second(first(score))
