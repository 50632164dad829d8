"""Compiled attention on a few entries, each as a source of its own, so that entries can have values."""

from collections.abc import Sequence

from torch import Tensor

from .multihead import gather_sums
from .onepass import PRODUCTS, Attend, Form
from .pattern import Pattern


class AttendEntries:
    """`Attend` where the rows of sources, and values that are added to them, are stored at all entries.

    Args:
        kind: of the kernels, `Attend` or its subclass.
        form, normalised, c, pattern, z, factor, terms: its arguments.
        values: (E, c W) of the entries, by target.
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
        values: Tensor,
    ) -> None:
        self.pattern, self.are_products = pattern, form.kind == PRODUCTS
        source, target, entry, *vectors = terms
        at_entries = None if source is None else source.index_select(0, pattern.ends[0])
        if self.are_products:
            source = at_entries
        else:
            source = None
            entry = entry if at_entries is None else at_entries if entry is None else at_entries.add_(entry)
        z = z.index_select(0, pattern.ends[0]).add_(values)
        self.made = kind(form, normalised, c, pattern.of_entries, z, factor, (source, target, entry, *vectors))

    def forward(self, keep: bool) -> tuple[Tensor | None, Tensor, Tensor | None]:
        """See `Attend.forward`."""
        return self.made.forward(keep)

    def backward(
        self, made: Sequence[Tensor | None], grad: Tensor, needs_rows: Sequence[bool], needs: Sequence[bool]
    ) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """See `Attend.backward`."""
        (needs_z, needs_factor, needs_values), (source, target, entry, *vectors) = needs_rows, needs
        of_terms = (source, target, False) if self.are_products else (False, target, source or entry)
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
