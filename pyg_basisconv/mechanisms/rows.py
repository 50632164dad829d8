"""Scores with a node-major form, all heads side by side in a row, as the kernels of `scored_attention` read them."""

from typing import Any

from torch import Tensor

from ..cache import cached_property
from ..content import Content, Mapped
from ..entries import Entries
from ..kernels import Affine, TermScores
from ..kernels.activations import Activation
from ..kernels.op import add_optional
from ..kernels.scoring import scores_alone
from .base import Score, entry_score, node_score, upcast

_DELEGATED = ("tensors", "sides", "evaluate", "dots", "ends")


def heads_first(t: Tensor, batch: tuple[int, ...]) -> Tensor:
    """(*, M, K), or (M, K) for all graphs of a batch -> (K, *, M), in the dtype of scores."""
    t = upcast(t).movedim(-1, 0)
    return t if t.dim() == len(batch) + 2 else t[:, *[None] * len(batch)].expand(-1, *batch, -1)


class RowScore(Score):
    """A score with the form that `kernels.scored_attention` takes.

    A subclass defines `heads_first_score`, the general form, which is computed on first use of its attributes.

    Attributes:
        scoring: computes the scores from the rows.
        rows: its arguments, such as (*, M, K d) of sources.
        has_dots: whether the general form has `dots`.
    """

    has_dots = False

    @cached_property
    def _heads_first(self) -> Score:
        return self.heads_first_score()

    def heads_first_score(self) -> Score:
        """The same score, heads first."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name in _DELEGATED:
            return getattr(self._heads_first, name)
        raise AttributeError(name)


class EdgeTerms:
    """Terms of entries that are products of their features, (E, R) or (*, E, R), and the weight of a map, (K, R).

    Terms of the same features are added by their weights, before the product.
    """

    def __init__(self, content: Content, features: Tensor, map: Affine) -> None:
        self.content, self.features, self.map = content, features, map

    def __add__(self, other: "Tensor | EdgeTerms") -> "Tensor | EdgeTerms":
        if isinstance(other, EdgeTerms) and other.features is self.features:
            return EdgeTerms(self.content, self.features, _sum(self.map.weight, other.map.weight))
        return self.tensor + as_tensor(other)

    __radd__ = __add__

    @cached_property
    def tensor(self) -> Tensor:
        """(E, K) the terms. The weight is made contiguous so that its gradient reads the features along their rows."""
        found = self.features @ upcast(self.map.weight).t().contiguous()
        self.content.mapped.append(Mapped(2, (self.map,), (found,)))
        return found


class ListedTerms:
    """Terms of entries that are the features of edges themselves, (E, K), in the order of these.

    Kernels read them in this order.
    """

    def __init__(self, content: Content, entries: Entries) -> None:
        self.content, self.entries = content, entries

    @property
    def listed(self) -> Tensor:
        """(E, K) in the order of the edges."""
        return upcast(self.content.edge_features)

    @property
    def tensor(self) -> Tensor:
        """(E, K) by target."""
        return upcast(self.content.edge_rows_at(self.entries))


def _sum(first: Tensor, second: Tensor) -> Affine:
    return Affine(first + second, made=(_sum, (first, second)))


def as_tensor(terms: Tensor | EdgeTerms | ListedTerms) -> Tensor:
    """The terms as a tensor, by target."""
    return terms if isinstance(terms, Tensor) else terms.tensor


class TermRows(RowScore):
    """The sum of terms of sources, (*, M, K), targets, (*, N, K), and entries, (E, K), under an activation.

    Each may be None. A constant term of all pairs, (K,), comes with the number of targets. batch: of the content.

    >>> import torch
    >>> score = TermRows(torch.zeros(3, 2), torch.ones(4, 2)) + TermRows(None, torch.ones(4, 2))
    >>> score.rows[1].sum(), score.map(torch.relu).scoring.activation, score.sides
    (tensor(16.), <built-in method relu of type object at ...>, ('source', 'target'))
    """

    entry: Tensor | EdgeTerms | ListedTerms | None = None
    activation: Activation | None = None
    constant: Tensor | None = None
    targets = 0
    scoring = TermScores()

    def __init__(
        self,
        source: Tensor | None = None,
        target: Tensor | None = None,
        entry: Tensor | EdgeTerms | ListedTerms | None = None,
        activation: Activation | None = None,
        constant: Tensor | None = None,
        targets: int = 0,
        batch: tuple[int, ...] = (),
    ) -> None:
        self.of_ends, self.entry, self.activation = (source, target), entry, activation
        self.constant, self.targets, self.batch = constant, targets, batch
        self.scoring = TermScores(activation, isinstance(entry, ListedTerms))

    @cached_property
    def _ends(self) -> tuple[Tensor | None, Tensor | None]:
        """The terms of sources and targets, with the constant."""
        source, target = self.of_ends
        if self.constant is not None:
            constant = self.constant  # a parameter, hence the clone: scores must not change with it
            target = constant.expand(self.targets, -1).clone() if target is None else target + constant
        return source, target

    @cached_property
    def by_target(self) -> tuple[Tensor | None, ...]:
        """The terms of sources, of targets, and of entries by target."""
        return *self._ends, None if self.entry is None else as_tensor(self.entry)

    @cached_property
    def rows(self) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        if isinstance(self.entry, ListedTerms):
            return *self._ends, self.entry.listed, None
        return *self.by_target, None

    def snapshot(self) -> Score:
        if self.constant is None and not isinstance(self.entry, EdgeTerms):
            return self
        source, target, entry = self.by_target  # computed here, with constants and maps as they are now
        return TermRows(source, target, entry, self.activation, batch=self.batch)

    @property
    def has_dots(self) -> bool:  # type: ignore[override]
        return self.activation is None and self.entry is None

    @property
    def is_only_constant(self) -> bool:
        """Whether it is a constant term and nothing else."""
        return self.of_ends == (None, None) and self.entry is None and self.activation is None

    def at(self, entries: Entries) -> Tensor:
        """(E, K) the sum of the terms at the entries of a graph, by target."""
        terms = [None if t is None else upcast(t) for t in self.by_target]
        c = next(t.shape[1] for t in terms if t is not None)
        return scores_alone(TermScores(), c, entries.pattern, *terms, None)

    def heads_first_score(self) -> Score:
        source, target, entry = [None if t is None else heads_first(t, self.batch) for t in self.by_target]
        parts = [] if source is None and target is None else [node_score(source, target)]
        parts += [] if entry is None else [entry_score(entry)]
        score = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        return score if self.activation is None else score.map(self.activation)

    def __add__(self, other: Score) -> Score:
        if not isinstance(other, TermRows) or self.activation is not None or other.activation is not None:
            return super().__add__(other)
        source, target = map(add_optional, self.of_ends, other.of_ends)
        constant, targets = add_optional(self.constant, other.constant), self.targets or other.targets
        return TermRows(source, target, add_optional(self.entry, other.entry), None, constant, targets, self.batch)

    def __mul__(self, other: Score) -> Score:
        constant = self.constant if self.is_only_constant else None
        scaled = None if constant is None else other.times_heads(constant)
        return super().__mul__(other) if scaled is None else scaled

    def map(self, function: Activation) -> Score:
        activation = function if self.activation is None else _chained(self.activation, function)
        return TermRows(*self.of_ends, self.entry, activation, self.constant, self.targets, self.batch)


class MappedRows(TermRows):
    """Terms of sources and targets that are affine maps of a content.

    They are computed on first use, so that a constant term that is added before becomes the bias of the targets' map.
    """

    def __init__(self, content: Content, of_source: Affine, of_target: Affine | None) -> None:
        self.content, self.of_source, self.of_target, self.batch = content, of_source, of_target, content.batch

    @cached_property
    def of_ends(self) -> tuple[Tensor | None, Tensor | None]:  # type: ignore[override]
        of_target = [] if self.of_target is None else [self.of_target]
        source, *target = self.content.affine([self.of_source], of_target)
        return source, target[0] if target else None

    def snapshot(self) -> Score:
        source, target = self.of_ends
        return TermRows(source, target, batch=self.batch)

    def __add__(self, other: Score) -> Score:
        target = self.of_target
        if target is None or target.bias is not None or not (type(other) is TermRows and other.is_only_constant):
            return super().__add__(other)
        if other.constant is None or other.constant.dtype != target.weight.dtype:  # constants are float32 at least
            return super().__add__(other)
        return MappedRows(self.content, self.of_source, target._replace(bias=other.constant))


def _chained(first: Activation, second: Activation) -> Activation:
    return lambda score: second(first(score))
