"""Attention and gates on edges by the kernels in Triton."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from ..multihead import block_columns, to_heads, to_rows
from ..onepass import Attend, Saved
from ..op import acc_dtype
from ..scoring import HIDDEN, PRODUCTS, PROJECTED
from . import jit
from .launch import RowLists, blocks, power_of_two


class TritonAttend(Attend):
    """`Attend` on a GPU. Sums are float32 at least, whatever the dtypes; a gradient has the dtype of its tensor."""

    def forward(self, keep: bool, weights: Tensor | None = None) -> tuple[Tensor, Saved]:
        assert weights is None, "torch computes the weights that are observed"
        self.check()
        z, c, projected = self.z, self.c, None
        if self.form.kind == PROJECTED:
            with torch.autocast(z.device.type, enabled=False):
                projected = torch.bmm(z.to(self._sums).expand(2, *z.shape), self._columns)  # (2, M, c)
        rows = self._rows(False)
        y, summed = rows.new(z.shape[1], self._sums), None
        stats = rows.new(2 * c, self._sums) if self.normalised else None
        if self.to_values is not None:
            summed = rows.new(c * self.width_of_features, self._sums)
        source, target = self._ends(projected)
        self._launch(rows, jit.forward, (), z, *target, *source, *self._shared, self._asked, y, stats, summed)
        y = rows.combined(y, c, y.dtype, stats)
        if summed is not None and self.to_values is not None:
            summed = rows.combined(summed, c, summed.dtype, stats)
            y += self._mapped(summed, self.to_values)
        return y, (projected, y.clone() if keep and self.normalised else None, stats, summed)

    def backward(
        self, saved: Saved, grad: Tensor, needs_rows: Sequence[bool], needs: Sequence[bool]
    ) -> tuple[list[Tensor | None], list[Tensor | None]]:
        projected, y, stats, summed = saved
        z, c, pattern, sums = self.z, self.c, self.pattern, self._sums
        E, width, F = pattern.E, c * self.form.inner, self.width_of_features
        at_source, at_target, at_entry, *learns = needs
        of_features, of_map, of_keys = *needs_rows[3:], False
        if self.to_keys is not None:
            of_features, of_keys, at_entry, learns = of_features or at_entry, learns[0], False, [False, False]
        if projected is not None:
            at_source = at_target = needs_rows[0] or any(learns)
        source, target = self._ends(projected)

        def new(needed: bool, of: Tensor | None, rows: RowLists | None, width: int) -> Tensor | None:
            if not needed:
                return None
            dtype = sums if of is None else of.dtype
            return rows.new(width, dtype) if rows is not None else z.new_empty(E, width, dtype=dtype)

        def combined(rows: RowLists, table: Tensor | None, of: Tensor | None) -> Tensor | None:
            return None if table is None else rows.combined(table, c, table.dtype if of is None else of.dtype)

        by_target = self._rows(False)
        like_target = target[0] if projected is self.to_keys is None else None  # else there is more to be added
        d_target = new(at_target, like_target, by_target, width)
        d_entry = new(at_entry, self.terms[2], None, width)
        d_vectors = new(self.form.kind == HIDDEN and learns[0], None, by_target, width)
        d_factor, d_values = new(needs_rows[1], self.factor, None, c), new(needs_rows[2], self.values, None, z.shape[1])
        d_asked = new(self.to_keys is not None and (at_target or of_keys), None, by_target, c * F)
        d_features = new(of_features, None, None, self._blocks_of_heads * F)
        asked, passed = self._asked, None if self.to_values is None else self._mapped(grad, self.to_values.mT)
        delta = z.new_empty(pattern.N, c, dtype=sums) if self.normalised else None
        made = d_entry, d_vectors, d_factor, d_values, d_asked, d_features
        if any(t is not None for t in (d_target, delta, *made)):
            given = grad, z, *target, *source, *self._shared, asked, passed, y, stats, delta, None, d_target
            self._launch(by_target, jit.backward, (None,), *given, *made, BY_SOURCE=False)
        d_target = combined(by_target, d_target, like_target)

        by_source = self._rows(True) if needs_rows[0] or at_source else by_target
        d_z = new(needs_rows[0], z if projected is None else None, by_source, z.shape[1])
        d_source = new(at_source, source[0] if projected is None else None, by_source, width)
        if d_z is not None or d_source is not None:
            place = None
            if not (self.factor is self.terms[2] is self.values is self.features is None):
                place = pattern.both_ways_and_across[5]
            given = z, grad, *source, *target, *self._shared, asked, passed, None, stats, delta, d_z, d_source
            given = *given, *[None] * 6
            self._launch(by_source, jit.backward, (place,), *given, BY_SOURCE=True)
        d_z = combined(by_source, d_z, z if projected is None else None)
        d_source = combined(by_source, d_source, source[0] if projected is None else None)

        found: list[Tensor | None] = [d_source, d_target, d_entry, None, None]
        d_vectors = combined(by_target, d_vectors, None)
        if d_vectors is not None and self.terms[3] is not None:
            found[3] = d_vectors.sum(0).view(self.terms[3].shape).to(self.terms[3].dtype)
        if d_source is not None and d_target is not None and projected is not None:
            with torch.autocast(z.device.type, enabled=False):
                d_z = self._through_projections(d_z, d_source, d_target, learns, found)
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
        """(c, A, B) the gradients of the matrices of heads, given rows, (N, c A), and the gradients of `_mapped`."""
        with torch.autocast(rows.device.type, enabled=False):
            left, right = (to_heads(t.to(self._sums), self.c) for t in (rows, grad))
            return torch.bmm(left.mT, right)

    @property
    def _asked(self) -> Tensor | None:
        """(N, c F) what features of entries are multiplied by, where keys are made of them."""
        return None if self.to_keys is None else self._mapped(cast(Tensor, self.terms[1]), self.to_keys.mT)

    @property
    def _sums(self) -> torch.dtype:
        return acc_dtype(self.z.dtype)

    @property
    def _columns(self) -> Tensor:
        """(2, c W, c) the vectors of projected scores, so that a product with them is one inner product per head."""
        return block_columns(torch.stack(cast(list[Tensor], self.terms[3:5]))).to(self._sums)

    def _through_projections(
        self, d_z: Tensor | None, d_source: Tensor, d_target: Tensor, learns: Sequence[bool], found: list[Tensor | None]
    ) -> Tensor | None:
        """The gradient of z with that by the terms of its ends, added in place; those of both vectors go to `found`."""
        z, c, ends = self.z, self.c, torch.stack([d_source, d_target])  # (2, M, c)
        found[:2] = None, None
        if any(learns):
            rows = z.to(self._sums).t()
            own = torch.bmm(rows.expand(2, *rows.shape), ends).view(2, c, -1, c).diagonal(dim1=1, dim2=3)
            found[3:] = own.transpose(1, 2).to(z.dtype).contiguous().unbind(0)
        if d_z is None:
            return None
        for end, columns in zip(ends.unbind(0), self._columns.mT.unbind(0), strict=True):
            d_z.addmm_(end, columns)
        return d_z.to(z.dtype)

    def _ends(self, projected: Tensor | None) -> list[tuple[Tensor | None, int]]:
        """The terms of sources and of targets, and the strides of their rows."""
        ends = self.terms[:2] if projected is None else projected.unbind(0)
        return [(t, 0 if t is None else t.stride(0)) for t in ends]

    @property
    def _shared(self) -> tuple[Any, ...]:
        """What the passes by target and by source are both given."""
        entry, vectors, factor, values = self.terms[2], self.terms[3], self.factor, self.values
        if self.form.kind != HIDDEN:
            vectors = None
        read = entry, factor, values, self.features
        entry_stride, factor_stride, values_stride, features_stride = (0 if t is None else t.stride(0) for t in read)
        of_factors = factor, factor_stride, 0 if factor is None else factor.stride(1)
        of_values = values, values_stride, self.features, features_stride
        return entry, entry_stride, self.entry_rows, vectors, *of_factors, *of_values

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
        return -(-self.c // int(blocks(*self._sizes)["HB"]))

    def _launch(self, rows: RowLists, kernel: Any, place: Sequence[Tensor | None], *given: Any, **options: Any) -> None:
        form, (c, W, D, F) = self.form, self._sizes
        options |= blocks(c, W, D, F)
        rows.run(
            kernel, self._blocks_of_heads, place, *given, **options, c=c, W=W, D=D, F=F,
            WB=power_of_two(W), DB=power_of_two(D), FB=power_of_two(F), PRODUCTS=form.kind == PRODUCTS,
            ACTIVATION=form.activation.number, SLOPE=form.activation.slope,
        )  # fmt: skip
