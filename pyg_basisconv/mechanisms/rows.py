"""Scores whose heads stand side by side at each node: the kernels read them as they are, where they take them."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..cache import cached_property
from ..content import Content
from ..kernels import Affine, TermScores
from .base import Score, added, entry_score, node_score, wide

_TURNED = ("tensors", "sides", "on", "dots", "fresh", "ends")


def heads_first(t: Tensor, batch: tuple[int, ...]) -> Tensor:
    """(*, M, K), or (M, K) for all graphs of a batch -> (K, *, M), in the dtype of scores; a view."""
    t = wide(t).movedim(-1, 0)
    return t if t.dim() == len(batch) + 2 else t[:, *[None] * len(batch)].expand(-1, *batch, -1)


class RowScore(Score):
    """Scores as `kernels.scored_attention` takes them. A kind gives `turn`: the same heads first, for whoever else
    reads a score; it is made when it is asked for.

    Attributes:
        scoring: what makes them of the rows.
        rows: what it reads, (*, M, K d) for each source, and so on.
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


class EdgeTerms:
    """Terms of entries that are a product of their features, (E, R), and a weight, (K, R). Those of the same features
    are added before they are made: there are more entries than anything else.
    """

    def __init__(self, features: Tensor, weight: Tensor) -> None:
        self.features, self.weight = features, weight

    def __add__(self, other: "Tensor | EdgeTerms") -> "Tensor | EdgeTerms":
        if isinstance(other, EdgeTerms) and other.features is self.features:
            return EdgeTerms(self.features, self.weight + other.weight)
        return self.made + made(other)

    __radd__ = __add__

    @property
    def made(self) -> Tensor:
        """(E, K). The weight is laid out so that its gradient reads the features along their rows."""
        return self.features @ self.weight.t().contiguous()


def made(terms: Tensor | EdgeTerms) -> Tensor:
    """Terms as numbers."""
    return terms.made if isinstance(terms, EdgeTerms) else terms


class TermRows(RowScore):
    """Terms of sources, (*, M, K), targets, (*, N, K), and entries, (E, K), those that there are, under an activation;
    and one of all pairs, (K,), beside which the number of targets is given. batch: of the content.

    >>> import torch
    >>> score = TermRows(torch.zeros(3, 2), torch.ones(4, 2)) + TermRows(None, torch.ones(4, 2))
    >>> score.rows[1].sum(), score.map(torch.relu).scoring.activation, score.sides
    (tensor(16.), <built-in method relu of type object at ...>, ('source', 'target'))
    """

    entry: Tensor | EdgeTerms | None = None
    activation: Callable[[Tensor], Tensor] | None = None
    everywhere: Tensor | None = None
    targets = 0
    scoring = TermScores()

    def __init__(
        self,
        source: Tensor | None = None,
        target: Tensor | None = None,
        entry: Tensor | EdgeTerms | None = None,
        activation: Callable[[Tensor], Tensor] | None = None,
        everywhere: Tensor | None = None,
        targets: int = 0,
        batch: tuple[int, ...] = (),
    ) -> None:
        self.of_ends, self.entry, self.activation = (source, target), entry, activation
        self.everywhere, self.targets, self.batch = everywhere, targets, batch
        self.scoring = TermScores(activation)

    @cached_property
    def rows(self) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        source, target = self.of_ends
        if self.everywhere is not None:
            everywhere = self.everywhere  # a parameter: what is made of it is not to change with it
            target = everywhere.expand(self.targets, -1).clone() if target is None else target + everywhere
        return source, target, None if self.entry is None else made(self.entry), None

    def owned(self) -> Score:
        if self.everywhere is None:
            return self
        source, target, entry, _ = self.rows
        return TermRows(source, target, entry, self.activation, batch=self.batch)

    @property
    def is_constant(self) -> bool:
        """Whether it is a term of all pairs, and nothing else."""
        return self.of_ends == (None, None) and self.entry is None and self.activation is None

    def turn(self) -> Score:
        source, target, entry = [None if t is None else heads_first(t, self.batch) for t in self.rows[:3]]
        parts = [] if source is None and target is None else [node_score(source, target)]
        parts += [] if entry is None else [entry_score(entry)]
        score = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        return score if self.activation is None else score.map(self.activation)

    def __add__(self, other: Score) -> Score:
        if not isinstance(other, TermRows) or self.activation is not None or other.activation is not None:
            return super().__add__(other)
        source, target = map(added, self.of_ends, other.of_ends)
        everywhere, targets = added(self.everywhere, other.everywhere), self.targets or other.targets
        return TermRows(source, target, added(self.entry, other.entry), None, everywhere, targets, self.batch)

    def map(self, function: Callable[[Tensor], Tensor]) -> Score:
        activation = function if self.activation is None else _then(self.activation, function)
        return TermRows(*self.of_ends, self.entry, activation, self.everywhere, self.targets, self.batch)


class MappedRows(TermRows):
    """Terms of sources and targets that are maps of a content. They are made when they are read, so that a term of all
    pairs that is added before becomes the bias of the targets'.
    """

    def __init__(self, content: Content, of_source: Affine, of_target: Affine | None) -> None:
        self.content, self.of_source, self.of_target, self.batch = content, of_source, of_target, content.batch

    @cached_property
    def of_ends(self) -> tuple[Tensor | None, Tensor | None]:  # type: ignore[override]
        of_target = [] if self.of_target is None else [self.of_target]
        source, *target = self.content.affine([self.of_source], of_target)
        return source, target[0] if target else None

    def owned(self) -> Score:
        source, target = self.of_ends
        return TermRows(source, target, batch=self.batch)

    def __add__(self, other: Score) -> Score:
        target = self.of_target
        if target is None or target.bias is not None or not (type(other) is TermRows and other.is_constant):
            return super().__add__(other)
        if other.everywhere is None or other.everywhere.dtype != target.weight.dtype:  # it is wide, and they may not be
            return super().__add__(other)
        return MappedRows(self.content, self.of_source, target._replace(bias=other.everywhere))


def _then(first: Callable[[Tensor], Tensor], second: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda score: second(first(score))
