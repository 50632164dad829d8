"""Compiled attention on a few entries, each as a source of its own, so that entries can have values and keys."""

from collections.abc import Sequence

from torch import Tensor

from .multihead import group_sums, rows_at
from .onepass import PRODUCTS, Attend, Saved, ScoreForm
from .pattern import Pattern


def at_entries_of(
    form: ScoreForm, pattern: Pattern, z: Tensor, terms: Sequence[Tensor | None], values: Tensor | None
) -> tuple[Tensor, list[Tensor | None]]:
    """The rows z and the terms of sources, with what entries add to them, as `Attend` reads them on
    `Pattern.of_entries`.
    """
    source, target, entry, *vectors = terms
    found = entry if source is None else rows_at(source, pattern.ends[0], entry)
    ends = (found, target, None) if form.kind == PRODUCTS else (None, target, found)
    return rows_at(z, pattern.ends[0], values), [*ends, *vectors]


class AttendEntries:
    """`Attend` where the rows of sources, and what entries add to them, are stored at all entries.

    Args:
        made: of what `at_entries_of` gives.
        pattern: of the entries.
    """

    def __init__(self, made: Attend, pattern: Pattern) -> None:
        self.made, self.pattern = made, pattern

    def forward(self, keep: bool, weights: Tensor | None = None) -> tuple[Tensor, Saved]:
        """See `Attend.forward`."""
        return self.made.forward(keep, weights)

    def backward(
        self, saved: Saved, grad: Tensor, needs_rows: Sequence[bool], needs: Sequence[bool]
    ) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """See `Attend.backward`."""
        (needs_z, needs_factor, needs_values), (source, target, entry, *vectors) = needs_rows, needs
        either, are_products = source or entry, self.made.form.kind == PRODUCTS
        of_terms = (either, target, False) if are_products else (False, target, either)
        rows = needs_z or needs_values, needs_factor, False
        (d_z, d_factor, _), found = self.made.backward(saved, grad, rows, (*of_terms, *vectors))
        at_entries = found[0] if are_products else found[2]
        found[0] = self._to_sources(at_entries) if source else None
        found[2] = at_entries if entry else None
        return [self._to_sources(d_z) if needs_z else None, d_factor, d_z if needs_values else None], found

    def _to_sources(self, rows: Tensor | None) -> Tensor:
        """(E, W) -> (M, W) the sums over the entries of each source."""
        assert rows is not None
        return group_sums(rows, self.pattern.at_source)
