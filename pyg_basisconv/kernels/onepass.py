"""Attention on edges by kernels that store nothing of the size of all entries: compiled ones, `csrc/attend.cpp`, on the
CPU, and on a GPU those of `triton`, for which `Attend` has a subclass.

The forward pass visits the entries of each target once, the backward pass those of each source. Heads of one channel
without normalisation are gates, and have kernels of their own, which vectorise over channels.
"""

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from ..backend import KERNELS, is_watched, uses_triton
from ..errors import reject
from .memory import columns_like, room
from .op import PLAIN, acc_dtype
from .pattern import INT32_MAX, extremes
from .scoring import HIDDEN, PRODUCTS, PROJECTED, TERMS, ScoreForm, Sums, Tensors

Kernel = Callable[[bytes], int]
Saved = Sequence[Tensor | None]  # four tensors for the backward pass

_CALL = struct.Struct("=9qd53q")  # `Call` in the kernels: the fields that `Attend._run` packs, in order
_NO_FEATURES, _NO_WAY_BACK = (0,) * 7, (0,) * 19
_OUT_OF_RANGE = 1
_DTYPES = {torch.float32: "float", torch.float64: "double"}
_MANY = 1 << 22  # numbers gathered for a single head, 64 or more for an entry, from which torch's products are quicker
_KNOWN = 1 << 13  # entries from which finding their places by source takes less than computing their weights once more
_TOLD = 1 << 23  # numbers that one pass tells another at most: of more, reading takes as long as computing them again
_WIDE = 1 << 18  # numbers of rows from which gradients of columns lie side by side: see `joined`
_WIDEST = 2048  # columns of a head that a program in Triton holds


@cache
def kernel(name: str, dtype: torch.dtype) -> Kernel | None:
    """One of the kernels for a dtype; None if the kernels were not built, or do not take the dtype."""
    if KERNELS is None or dtype not in _DTYPES:
        return None
    found = ctypes.CDLL(KERNELS.__file__)[f"basisconv_{name}_{_DTYPES[dtype]}"]  # CDLL releases the GIL
    found.argtypes, found.restype = (ctypes.c_char_p,), ctypes.c_int
    return found


def one_pass_fits(form: ScoreForm | None, device: torch.device, entries: int) -> bool:
    """Whether the kernels take such scores; torch's operations would store a number per entry and head."""
    if form is None or uses_triton(device):
        return form is not None
    return KERNELS is not None and device.type == "cpu" and entries <= INT32_MAX


def supports(sums: Sums, form: ScoreForm, given: Tensors) -> bool:
    """Whether the kernels take these tensors, z first, and this pattern."""
    z, c, pattern = cast(Tensor, given[0]), sums.c, sums.pattern
    in_triton = uses_triton(z.device)
    if not (in_triton or (z.dtype in _DTYPES and z.is_cpu and kernel("attend_forward", z.dtype))):
        return False
    if torch.compiler.is_compiling() or is_watched():
        return False
    if not (c and form.inner and z.numel() and pattern.N) or z.shape[0] != pattern.M:
        return False
    there = [t for t in given if t is not None]
    for t in there:
        if type(t) not in PLAIN or t.device != z.device or t.is_neg():
            return False
    if in_triton:  # of any precision, of which half is no more than an input
        accumulated = acc_dtype(z.dtype)
        wide = max(z.shape[1] // c, form.inner, *(t.shape[1] for t in there if t.dim() == 3)) > _WIDEST
        if wide or not all(t.shape[1] for t in there):  # of features without columns, one would be read
            return False
        return all(t.is_floating_point() and acc_dtype(t.dtype) == accumulated for t in there)
    if c == 1 and form.kind != HIDDEN and pattern.E * max(z.shape[1], 64) >= _MANY:  # it fills one lane of a vector
        return False
    return pattern.by_target.ptr.dtype == torch.int32 and all(t.dtype == z.dtype for t in there)


def precision(z: Tensor) -> torch.dtype:
    """The dtype in which rows are given to the kernels: those of a GPU read them as they are."""
    return z.dtype if uses_triton(z.device) else acc_dtype(z.dtype)


def _like(t: Tensor | None) -> Tensor | None:
    """Memory for the gradient of vectors of heads."""
    return None if t is None else torch.empty_like(t, memory_format=torch.contiguous_format)


def _rows(t: Tensor, count: int, columns: int, name: str = "tensors") -> Tensor:
    """Rows of which each is contiguous. Others than so many are refused, as the kernels would read beyond them."""
    if t.shape != (count, columns):
        reject(name, f"{count} rows of {columns}", tuple(t.shape), "pass those of this pattern")
    return t if t.stride(1) == 1 else t.contiguous()


def _vectors(t: Tensor, c: int, columns: int) -> Tensor:
    """A contiguous vector for each head."""
    if t.shape != (c, columns):
        reject("tensors", f"a vector for each of {c} heads", tuple(t.shape), "pass this parameter's")
    return t.contiguous()


def _maps(t: Tensor, c: int, F: int, columns: int) -> Tensor:
    """A matrix for each head, of which each is contiguous; they may be one and the same."""
    if t.shape != (c, F, columns):
        reject("tensors", f"{c} matrices of {F} x {columns}", tuple(t.shape), "pass this parameter's")
    return t if t[0].is_contiguous() else t.contiguous()


def _there(t: Tensor | None) -> tuple[int, int]:
    """The address of rows, and their stride; of matrices, the step from one to the next."""
    return (0, 0) if t is None else (t.data_ptr(), t.stride(0))


def _addresses(tensors: Sequence[Tensor | None]) -> list[int]:
    return [0 if t is None else t.data_ptr() for t in tensors]


class Attend:
    """One evaluation by the kernels, forward and backward.

    Args:
        sums: what is computed.
        form: of the scores.
        given: z, (M, c W); factors, (E, c); values of entries, (E, c), for gates; for others features of entries,
            (E, F), and their map (c, F, W) to what is added to the rows of z; and the tensors of scores. All but z may
            be None.

    Attributes:
        read_only: whether nobody writes to the result of the forward pass, which then may be what it saves.
    """

    read_only = False

    def __init__(self, sums: Sums, form: ScoreForm, given: Tensors) -> None:
        _, self.normalised, self.pattern, self.c = sums
        of_z, factor, values, features, to_values, *terms = given
        source, target, entry, first, second = form.in_slots(terms)
        to_keys = None
        if form.kind == PRODUCTS and entry is not None:
            features, to_keys, entry, first = entry, first, None, None
        z: Any = of_z
        M, N, E, c, F = self.pattern.M, self.pattern.N, self.pattern.E, self.c, 0
        W, width, projected = z.shape[1] // c, c * form.inner, form.kind == PROJECTED
        if z.shape != (M, W * c) or (projected and M != N):
            expected = f"{M} rows of {c} heads" + ", which are targets too" * projected
            reject("z", expected, tuple(z.shape), "pass the rows of this pattern's sources")
        inner = W if projected else form.inner
        self.form, self.factor = form, factor
        self.z = _rows(z, M, W * c)  # they may be columns of wider ones
        self.source_is_z = source is of_z
        self.terms = [
            None if source is None else _rows(source, M, width),
            None if target is None else _rows(target, N, width),
            None if entry is None else _rows(entry, E, width),
            None if first is None else _vectors(first, c, inner),
            None if second is None else _vectors(second, c, inner),
        ]
        self.values = None if values is None else _rows(values, E, c * W, "values")
        self.features = self.to_keys = self.to_values = None
        if features is not None:
            F = features.shape[1]
            self.features = _rows(features, E, F, "features")
            self.to_keys = None if to_keys is None else _maps(to_keys, c, F, form.inner)
            self.to_values = None if to_values is None else _maps(to_values, c, F, W)
        if factor is not None and factor.shape != (E, c):
            reject("factor", f"{E} rows of {c}", tuple(factor.shape), "pass those of this pattern")
        self.width_of_features = F
        self.is_gate = sums.are_gates(form, z.shape[1])
        self.entry_rows = self.pattern.by_target.order if form.listed else None  # None: by target

    def _run(self, name: str, transposed: tuple[int, int, int], made: Sequence[int], back: Sequence[int]) -> None:
        """Calls a kernel: of the pattern by source, and of what it writes and reads on each way, it takes addresses."""
        form, z, c, factor = self.form, self.z, self.c, self.factor
        source, target, entry, *vectors = self.terms
        (ptr, index), order = self.pattern.one_way, self.entry_rows
        M, N = self.pattern.M, self.pattern.N
        of_features = _NO_FEATURES
        if self.features is not None:
            of_features = *_there(self.features), self.width_of_features, *_there(self.to_keys), *_there(self.to_values)
        call = _CALL.pack(
            *(N, M, index.numel(), c, z.shape[1] // c, form.inner, form.kind, form.activation.number, self.normalised),
            form.activation.slope,
            *(ptr.data_ptr(), index.data_ptr(), *transposed, *_there(z)),
            *(*_there(source), *_there(target), *_there(entry), 0 if order is None else order.data_ptr()),
            *_addresses(vectors),
            *((0, 0, 0) if factor is None else (factor.data_ptr(), *factor.stride())),
            *_there(self.values),
            *of_features,
            *made,
            *back,
        )
        found = kernel(f"gate_{name}" if self.is_gate else f"attend_{name}", z.dtype)
        assert found is not None
        code = found(call)
        if code == _OUT_OF_RANGE:
            reject("index", f"integers from 0 to {M - 1}", extremes(index), "correct the edges")
        if code:
            raise MemoryError

    @property
    def _knows(self) -> bool:
        """Whether the way back reads numbers of each target and head, `know` in the kernels."""
        return not self.is_gate and (self.normalised or self.form.kind == PROJECTED)

    @property
    def _bends(self) -> bool:
        """Whether the gradient of targets' terms follows from two sums of each target, without a pass over its entries:
        `pass_on_above` in the kernels.
        """
        _, target, entry, *_ = self.terms
        if not (self.normalised and self.form.activation.bends and entry is self.features is None):
            return False
        if self.factor is not None and self.factor.requires_grad:  # its gradient takes that pass anyway
            return False
        return self.form.kind == PROJECTED or (self.form.kind == TERMS and target is not None)

    def forward(self, keep: bool, weights: Tensor | None = None) -> tuple[Tensor, Saved]:
        """The sums (N, c W), and what the backward pass reads if `keep`, of which nothing is the same memory.

        To `weights`, (E, c), those of the entries are written, without their factors; this is not for gates.
        """
        z, c, N = self.z, self.c, self.pattern.N
        y, held, above, stats, summed = room(z, N, z.shape[1]), None, None, None, None
        if keep and self.is_gate and self.terms[1] is not None:
            stats = room(z, N, c)
        elif keep and self._knows:
            stats = room(z, N, 4 * c)
            held = room(y, *y.shape) if self.normalised else None
            above = room(y, *y.shape) if self._bends else None
        if keep and self.to_values is not None:
            summed = room(z, N, c * self.width_of_features)
        self._run("forward", (0, 0, 0), _addresses((y, held, above, stats, weights, summed)), _NO_WAY_BACK)
        return y, (held, above, stats, summed)

    def backward(
        self, saved: Saved, grad: Tensor, needs_rows: Sequence[bool], needs: Sequence[bool]
    ) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """The gradients that are needed: of z, factor, values, features and their map to values; and of the terms.

        That of features which both keys and values are made of is given once, as that of the former.
        """
        form, pattern, z, c = self.form, self.pattern, self.z, self.c
        N, E, width = pattern.N, pattern.E, c * form.inner
        needs_z, needs_factor, needs_values, of_features, of_map = needs_rows
        source, target, entry, vectors, others = needs
        held, above, stats, summed = saved
        d_features = d_keys = d_map = asked = passed = None
        if self.features is not None:
            F = self.width_of_features
            if self.to_keys is not None:
                asked, d_keys = room(z, N, c * F), room(z, c, F, form.inner) if vectors else None
                of_features, entry, vectors = of_features or entry, False, False
            if self.to_values is not None:
                passed, d_map = room(z, N, c * F), room(z, c, F, z.shape[1] // c) if of_map else None
            d_features = room(z, E, F) if of_features else None
        d_z, d_source, d_target = self._rooms(needs_z, source, target)
        if form.kind == PROJECTED:
            vectors = others = vectors or others
            d_target = room(z, N, c)
        elif self.is_gate and stats is not None and d_target is not None:
            torch.mul(grad, stats, out=d_target)
        d_entry = room(z, E, width) if entry else None
        d_vectors, d_others = _like(self.terms[3]) if vectors else None, _like(self.terms[4]) if others else None
        d_factor = room(z, E, c) if needs_factor else None
        d_values = room(z, E, c) if needs_values else None
        scratch = room(z, N, 4 * c) if self._knows else None
        if d_factor is not None or entry:
            above = None
        by_source = d_z is not None or source or form.kind == PROJECTED
        of_targets = d_target, d_entry, d_vectors, d_others, d_factor, d_features, d_keys
        at_entries = above is None and any(t is not None for t in of_targets)
        known = None  # what the pass over targets finds for that over sources, if it is much less than rows are
        pays = E >= _KNOWN and 2 * E * c <= _TOLD and z.shape[1] >= 8 * c
        if pays and by_source and at_entries and not self.is_gate:
            known = room(z, E, 2 * c)
        transposed = (0, 0, 0)
        if not (self.factor is self.terms[2] is self.values is self.features is known is None):
            _, _, t_ptr, t_index, _, t_back = pattern.both_ways_and_across
            transposed = t_ptr.data_ptr(), t_index.data_ptr(), t_back.data_ptr()
        elif by_source:
            _, _, t_ptr, t_index = pattern.both_ways
            transposed = t_ptr.data_ptr(), t_index.data_ptr(), 0
        made = None, held, above, stats, None, summed
        of_rows = *_there(d_z), *_there(d_source), *_there(d_target)
        written = d_entry, d_vectors, d_others, d_factor, d_values, d_features, d_keys, d_map
        back = *_addresses((grad, scratch, known, asked, passed)), *of_rows, *_addresses(written)
        self._run("backward", transposed, _addresses(made), back)
        if self.to_keys is not None:
            d_vectors = d_keys
            if self.to_values is None:
                d_entry, d_features = d_features, None
        d_source = None if d_source is d_z else d_source  # it is in that of z
        return [d_z, d_factor, d_values, d_features, d_map], [d_source, d_target, d_entry, d_vectors, d_others]

    def _rooms(self, of_z: bool, of_source: bool, of_target: bool) -> list[Tensor | None]:
        """Memory for the gradients of z, and of the terms of sources and targets; side by side where those are."""
        z, (source, target, *_) = self.z, self.terms
        once = of_z and of_source and self.source_is_z
        tables = z if of_z else None, source if of_source and not once else None, target if of_target else None
        made = [None if t is None else room(z, *t.shape) for t in tables] if z.numel() < _WIDE else columns_like(tables)
        return [made[0], made[0 if once else 1], made[2]]
