"""Compiled attention on a few entries, each as a source of its own, so that entries can have values and keys."""

from collections.abc import Sequence

from torch import Tensor

from .multihead import gather_sums
from .onepass import PRODUCTS, Attend, Form
from .pattern import Pattern


class AttendEntries:
    """`Attend` where the rows of sources, and what entries add to them, are stored at all entries.

    Args:
        kind: of the kernels, `Attend` or its subclass.
        form, normalised, c, pattern, z, factor, terms: its arguments.
        values: (E, c W) of the entries, by target, or None.
    """

    def __init__(
        self,
        kind: type[Attend],
        form: Form,
        normalised: bool,
        c: int,
        pattern: Pattern,
        z: Tensor,
        factor: Tensor | None,
        terms: Sequence[Tensor | None],
        values: Tensor | None,
    ) -> None:
        self.pattern, self.are_products = pattern, form.kind == PRODUCTS
        source, target, entry, *vectors = terms
        found = entry if source is None else _at_entries(source, entry, pattern)
        terms = (found, target, None, *vectors) if self.are_products else (None, target, found, *vectors)
        self.made = kind(form, normalised, c, pattern.of_entries, _at_entries(z, values, pattern), factor, terms)

    def forward(self, keep: bool) -> tuple[Tensor | None, Tensor, Tensor | None]:
        """See `Attend.forward`."""
        return self.made.forward(keep)

    def backward(
        self, made: Sequence[Tensor | None], grad: Tensor, needs_rows: Sequence[bool], needs: Sequence[bool]
    ) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """See `Attend.backward`."""
        (needs_z, needs_factor, needs_values), (source, target, entry, *vectors) = needs_rows, needs
        either = source or entry
        of_terms = (either, target, False) if self.are_products else (False, target, either)
        rows = needs_z or needs_values, needs_factor, False
        (d_z, d_factor, _), found = self.made.backward(made, grad, rows, (*of_terms, *vectors))
        at_entries = found[0] if self.are_products else found[2]
        found[0] = self._to_sources(at_entries) if source else None
        found[2] = at_entries if entry else None
        return [self._to_sources(d_z) if needs_z else None, d_factor, d_z if needs_values else None], found

    def _to_sources(self, rows: Tensor | None) -> Tensor:
        """(E, W) -> (M, W) the sums over the entries of each source."""
        assert rows is not None
        _, _, t_ptr, _, _, t_back = self.pattern.both_ways_and_across
        return gather_sums(rows, t_back, t_ptr)


def _at_entries(rows: Tensor, more: Tensor | None, pattern: Pattern) -> Tensor:
    """(E, W) the row of each entry's source, plus what the entry adds; in the more precise of the two dtypes."""
    found = rows.index_select(0, pattern.ends[0])
    if more is None:
        return found
    return found.add_(more) if found.dtype == more.dtype else found + more
