"""Attention and gates on edges by the kernels in Triton."""

from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from ..multihead import to_heads, to_rows
from ..onepass import Attend, Saved
from ..op import acc_dtype
from ..scoring import HIDDEN, PRODUCTS, PROJECTED
from . import jit
from .launch import NARROW, WIDE, RowLists, blocks, power_of_two


def _strided(rows: Tensor | None) -> tuple[Tensor | None, int]:
    """Rows, and the stride from one to the next."""
    return rows, 0 if rows is None else rows.stride(0)


class TritonAttend(Attend):
    """`Attend` on a GPU. Sums are float32 at least, whatever the dtypes; a gradient has the dtype of its tensor."""

    def forward(self, keep: bool, weights: Tensor | None = None) -> tuple[Tensor, Saved]:
        assert weights is None, "torch computes the weights that are observed"
        z, c, rows = self.z, self.c, self._rows(False)
        y, summed = rows.new(z.shape[1], self._sums), None
        stats = rows.new(4 * c, self._sums) if self.normalised or self._projected else None
        of_softmax = stats if self.normalised else None
        if self.to_values is not None:
            summed = rows.new(c * self.width_of_features, self._sums)
        given = *_strided(z), *self._at_target, *self._at_source, *self._shared, self._asked, y, stats, summed
        self._launch(rows, jit.forward, (), *given)
        y = rows.combined(y, c, y.dtype, of_softmax)
        if summed is not None and self.to_values is not None:
            summed = rows.combined(summed, c, summed.dtype, of_softmax)
            y += self._mapped(summed, self.to_values)
        kept = y if keep and self.normalised else None
        if kept is not None and not self.read_only:
            kept = kept.clone()
        return y, (kept, stats, summed, None)

    def backward(
        self, saved: Saved, grad: Tensor, needs_rows: Sequence[bool], needs: Sequence[bool]
    ) -> tuple[list[Tensor | None], list[Tensor | None]]:
        y, stats, summed, _ = saved
        z, c, pattern, sums, projected = self.z, self.c, self.pattern, self._sums, self._projected
        E, width, F = pattern.E, c * self.form.inner, self.width_of_features
        at_source, at_target, at_entry, *learns = needs
        of_features, of_map, of_keys = *needs_rows[3:], False
        if self.to_keys is not None:
            of_features, of_keys, at_entry, learns = of_features or at_entry, learns[0], False, [False, False]
        if projected:
            at_source, at_target = any(learns), needs_rows[0] or any(learns)
        source, target = self._at_source, self._at_target

        def new(needed: bool, of: Tensor | None, rows: RowLists | None, width: int) -> Tensor | None:
            if not needed:
                return None
            dtype = sums if of is None else of.dtype
            return rows.new(width, dtype) if rows is not None else z.new_empty(E, width, dtype=dtype)

        def combined(rows: RowLists, table: Tensor | None, of: Tensor | None) -> Tensor | None:
            return None if table is None else rows.combined(table, c, table.dtype if of is None else of.dtype)

        by_target = self._rows(False)
        like_target = target[0] if self.to_keys is None else None  # else there is more to be added
        d_target = new(at_target, like_target, by_target, width)
        d_entry = new(at_entry, self.terms[2], None, width)
        d_vectors = new(self.form.kind == HIDDEN and learns[0], None, by_target, width)
        d_factor, d_values = new(needs_rows[1], self.factor, None, c), new(needs_rows[2], self.values, None, z.shape[1])
        d_asked = new(self.to_keys is not None and (at_target or of_keys), None, by_target, c * F)
        d_features = new(of_features, None, None, self._blocks_of_heads * F)
        asked, passed = self._asked, None if self.to_values is None else self._mapped(grad, self.to_values.mT)
        target_stats = None if stats is None else z.new_empty(pattern.N, 4 * c, dtype=sums)
        made = d_entry, d_vectors, d_factor, d_values, d_asked, d_features
        if any(t is not None for t in (d_target, target_stats, *made)):
            given = (
                *_strided(grad),
                *_strided(z),
                *target,
                *source,
                *self._shared,
                asked,
                passed,
                y,
                stats,
                target_stats,
            )
            given = *given, None, None, d_target
            self._launch(by_target, jit.backward, (None,), *given, *made, BY_SOURCE=False)
        d_target = combined(by_target, d_target, like_target)

        by_source = self._rows(True) if needs_rows[0] or at_source else by_target
        d_z, d_source = new(needs_rows[0], z, by_source, z.shape[1]), new(at_source, source[0], by_source, width)
        if d_z is not None or d_source is not None:
            place = None
            if not (self.factor is self.terms[2] is self.values is self.features is None):
                place = pattern.both_ways_and_across[5]
            given = (
                *_strided(z),
                *_strided(grad),
                *source,
                *target,
                *self._shared,
                asked,
                passed,
                None,
                None,
                target_stats,
            )
            given = *given, d_target if projected else None, d_z, d_source, *[None] * 6
            self._launch(by_source, jit.backward, (place,), *given, BY_SOURCE=True)
        d_z, d_source = combined(by_source, d_z, z), combined(by_source, d_source, source[0])

        found: list[Tensor | None] = [d_source, d_target, d_entry, None, None]
        d_vectors = combined(by_target, d_vectors, None)
        if d_vectors is not None and self.terms[3] is not None:
            found[3] = d_vectors.sum(0).view(self.terms[3].shape).to(self.terms[3].dtype)
        if projected:
            found[:2] = None, None
            if d_source is not None and d_target is not None:
                of_ends = self._of_maps(torch.stack([d_source, d_target], 2).flatten(1), z)  # (c, 2, W)
                found[3:] = of_ends.to(z.dtype).transpose(0, 1).contiguous().unbind(0)
        d_map = None
        if of_map and summed is not None and self.to_values is not None:
            d_map = self._of_maps(summed, grad).to(self.to_values.dtype)
        if d_asked is not None and self.to_keys is not None:
            d_asked, query = by_target.combined(d_asked, c, d_asked.dtype), cast(Tensor, self.terms[1])
            if d_target is not None:
                found[1] = (d_target + self._mapped(d_asked, self.to_keys)).to(query.dtype)
            if of_keys:
                found[3] = self._of_maps(d_asked, query).to(self.to_keys.dtype)
        if d_features is not None:
            d_features = d_features.view(E, self._blocks_of_heads, F).sum(1).to(cast(Tensor, self.features).dtype)
            if self.to_values is None:
                found[2], d_features = d_features, None
        return [d_z, d_factor, d_values, d_features, d_map], found

    def _mapped(self, rows: Tensor, maps: Tensor) -> Tensor:
        """What a matrix (c, A, B) of each head makes of rows, (N, c A) -> (N, c B), contiguous."""
        with torch.autocast(rows.device.type, enabled=False):
            return to_rows(torch.bmm(to_heads(rows.to(self._sums), self.c), maps.to(self._sums))).contiguous()

    def _of_maps(self, rows: Tensor, grad: Tensor) -> Tensor:
        """(c, A, B) the gradients of the matrices of heads, given rows, (N, c A), and the gradients of `_mapped`.

        One product for all pairs of heads: those of single heads do not cut the rows into parts that run side by side.
        """
        with torch.autocast(rows.device.type, enabled=False):
            of_pairs = rows.to(self._sums).t() @ grad.to(self._sums)
        c, (A, B) = self.c, (size // self.c for size in of_pairs.shape)
        return of_pairs.view(c, A, c, B).diagonal(dim1=0, dim2=2).permute(2, 0, 1)

    @property
    def _asked(self) -> Tensor | None:
        """(N, c F) what features of entries are multiplied by, where keys are made of them."""
        return None if self.to_keys is None else self._mapped(cast(Tensor, self.terms[1]), self.to_keys.mT)

    @property
    def _sums(self) -> torch.dtype:
        return acc_dtype(self.z.dtype)

    @property
    def _projected(self) -> bool:
        return self.form.kind == PROJECTED

    @property
    def _at_source(self) -> tuple[Tensor | None, int]:
        return _strided(self.terms[0])

    @property
    def _at_target(self) -> tuple[Tensor | None, int]:
        return _strided(self.terms[1])

    @property
    def _shared(self) -> tuple[Any, ...]:
        """What the passes by target and by source are both given."""
        vectors = self.terms[3:] if self.form.kind in (HIDDEN, PROJECTED) else (None, None)
        of_factors = *_strided(self.factor), 0 if self.factor is None else self.factor.stride(1)
        of_values = *_strided(self.values), *_strided(self.features)
        return *_strided(self.terms[2]), self.entry_rows, *vectors, *of_factors, *of_values

    def _rows(self, by_source: bool) -> RowLists:
        pattern = self.pattern
        ptr, index = pattern.both_ways[2:4] if by_source else pattern.one_way
        return RowLists(ptr, index, pattern.N if by_source else pattern.M, self._sums)

    @property
    def _sizes(self) -> tuple[int, int, int, int]:
        """The heads, the columns of a head, of its terms, and the features of an entry, one where there are none."""
        return self.c, self.z.shape[1] // self.c, self.form.inner, max(1, self.width_of_features)

    @property
    def _blocks_of_heads(self) -> int:
        return -(-self.c // int(blocks(WIDE, *self._sizes)["HB"]))

    def _launch(self, rows: RowLists, kernel: Any, place: Sequence[Tensor | None], *given: Any, **options: Any) -> None:
        kind, _, (activation, slope), *_ = self.form
        numbers = WIDE if kernel is jit.forward else NARROW
        constants = _constants(numbers, *self._sizes, self.normalised, kind == PRODUCTS, activation, slope)
        rows.run(kernel, self._blocks_of_heads, place, *given, **options, **constants)


@cache
def _constants(
    numbers: int, c: int, W: int, D: int, F: int, normalised: bool, products: bool, activation: int, slope: float
) -> dict[str, Any]:
    """What a kernel is compiled for; see `jit`, and `blocks` for the numbers."""
    return blocks(numbers, c, W, D, F) | {
        "c": c, "W": W, "D": D, "F": F, "WB": power_of_two(W), "DB": power_of_two(D), "FB": power_of_two(F),
        "NORMALISED": normalised, "PRODUCTS": products, "ACTIVATION": activation, "SLOPE": slope,
    }  # fmt: skip
