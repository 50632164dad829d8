"""The sparsity pattern of a matrix, compressed by target and by source."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..backend import KERNELS, starts_triton
from ..cache import drop_oldest, kept, memo, without_cached
from ..errors import reject
from ..portable import portable, with_plain
from .lists import below, coo_tocsr

INT32_MAX = 2**31 - 1
_COPIES = 4  # repeated patterns that are cached


class Compressed(NamedTuple):
    """Entries sorted by one of their two ends (compressed sparse rows).

    ptr:   (R + 1,) the entries of group r are ptr[r] .. ptr[r + 1] - 1
    other: (E,) the other end of each entry
    order: (E,) the position of each entry in the original list; None if that list is known to have been sorted
    """

    ptr: Tensor
    other: Tensor
    order: Tensor | None


class End(NamedTuple):
    """One end of the entries of a pattern, which are sorted by target.

    arrays: [group, ptr] for targets: the target of each entry, and the first entry of each target; [group, ptr, order]
    for sources, with the order that sorts the entries by source; [group] alone in the portable path.
    groups: the number of sources or targets.
    """

    arrays: list[Tensor]
    groups: int


def index_dtype(*sizes: int) -> torch.dtype:
    """int32 where every size allows it: half the memory traffic, and no conversion for torch's kernels."""
    return torch.int64 if portable() or max(sizes) > INT32_MAX else torch.int32


def positions(mask: Tensor) -> Tensor:
    """Where a mask is True; on the CPU by numpy, which starts no threads.

    >>> positions(torch.tensor([True, False, True])).tolist()
    [0, 2]
    """
    if mask.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return mask.nonzero().squeeze(1)


def select(t: Tensor, index: Tensor | None) -> Tensor:
    """The rows of a tensor at an index, all of them in their order for None."""
    return t if index is None else t.index_select(0, index)


def extremes(index: Tensor) -> tuple[int, int]:
    """The least and the greatest of some integers.

    >>> extremes(torch.tensor([3, 1, 2]))
    (1, 3)
    """
    if index.device.type == "cpu":
        numbers = index.numpy()
        return int(numbers.min()), int(numbers.max())
    low, high = index.aminmax()
    return int(low), int(high)


@with_plain(lambda index, size: True)
def in_range(index: Tensor, size: int) -> bool:
    """Whether all integers are from 0 to size - 1; True in the portable path, where no values are read.

    >>> in_range(torch.tensor([0, 2]), 3), in_range(torch.tensor([0, -1]), 3)
    (True, False)
    """
    if not index.numel():
        return True
    quick = index.device.type == "cpu" and index.dtype in (torch.int32, torch.int64)
    if quick and not torch.compiler.is_dynamo_compiling():  # which cannot trace it
        return below(index.numpy(), size)
    low, high = extremes(index)
    return low >= 0 and high < size


def split_groups(ptr: Tensor, size: int) -> list[tuple[int, int, int]]:
    """Ranges of whole groups with about `size` entries: the first group, one past the last, one past the last entry.

    >>> split_groups(torch.tensor([0, 2, 5, 5, 6]), 3)
    [(0, 2, 5), (2, 4, 6)]
    """
    E, G = int(ptr[-1]), ptr.numel() - 1
    # A range ends with the group of its last entry.
    ends = torch.arange(size, E + size, size, device=ptr.device).clamp_(max=E).to(ptr.dtype)
    last = sorted({*torch.searchsorted(ptr, ends).tolist(), G})
    return list(zip([0, *last[:-1]], last, ptr[last].tolist(), strict=True))


def _count_entries(group: Tensor, other: Tensor, num_groups: int) -> Compressed:
    return Compressed(F.pad(tally(group, num_groups).cumsum(0), (1, 0)), other, None)


@with_plain(_count_entries)
def compress(group: Tensor, other: Tensor, num_groups: int) -> Compressed:
    """Sorts entries by group, stably. A list that is sorted already stays as it is, except in Triton.

    In the portable path nothing is sorted: only the number of entries per group is read there.
    """
    if starts_triton(group.device):
        from .triton.bind import compressed

        return Compressed(*compressed(group, other, num_groups))
    small = group.dtype == torch.int32
    if KERNELS is not None and small and group.device.type == "cpu":
        return _compress_compiled(group, other.to(group.dtype), num_groups)
    if _is_sorted(group):
        return Compressed(_ptr(group, num_groups, small), other.contiguous(), None)
    if group.device.type == "cpu" and coo_tocsr is not None:
        return _compress_by_counting(group, other, num_groups)
    grouped, order = torch.sort(group, stable=True)
    order = order.to(group.dtype)
    return Compressed(_ptr(grouped, num_groups, small), other.index_select(0, order), order)


def _compress_compiled(group: Tensor, other: Tensor, num_groups: int) -> Compressed:
    """`compress` by a compiled kernel."""
    E = group.numel()
    ptr, index, order = np.empty(num_groups + 1, np.int32), np.empty(E, np.int32), np.empty(E, np.int32)
    in_order = KERNELS.grouped(group.contiguous().numpy(), other.contiguous().numpy(), num_groups, ptr, index, order)
    if in_order is None:
        reject("index", f"integers from 0 to {num_groups - 1}", extremes(group), "correct the edges")
    if in_order:
        return Compressed(torch.from_numpy(ptr), other.contiguous(), None)
    return Compressed(torch.from_numpy(ptr), torch.from_numpy(index), torch.from_numpy(order))


def tally(group: Tensor, num_groups: int) -> Tensor:
    """The number of entries of each group."""
    return group.new_zeros(num_groups).index_add(0, group, torch.ones_like(group))


def _is_sorted(group: Tensor) -> bool:
    """Whether the entries are sorted by group."""
    if group.device.type == "cpu":
        numbers = group.numpy()
        return bool((numbers[1:] >= numbers[:-1]).all())
    return bool((group[1:] >= group[:-1]).all())


def _ptr(grouped: Tensor, num_groups: int, small: bool) -> Tensor:
    """The first entry of each group, of sorted entries."""
    # The conversion assumes contiguous memory.
    return torch._convert_indices_from_coo_to_csr(grouped.contiguous(), num_groups, out_int32=small)


def _compress_by_counting(group: Tensor, other: Tensor, num_groups: int) -> Compressed:
    """`compress` on the CPU by a counting sort, linear and stable."""
    if not in_range(group, num_groups):  # the sort does not check bounds
        reject("index", f"integers from 0 to {num_groups - 1}", extremes(group), "correct the edges")
    rows, columns = group.numpy(), other.to(group.dtype).numpy()
    E, dtype = rows.size, rows.dtype
    place = np.arange(E, dtype=dtype)
    ptr, index, order = np.empty(num_groups + 1, dtype), np.empty(E, dtype), np.empty(E, dtype)
    coo_tocsr(num_groups, E, E, rows, columns, place, ptr, index, order)
    return Compressed(torch.from_numpy(ptr), torch.from_numpy(index), torch.from_numpy(order))


class Pattern:
    """E entries (source, target) of an M x N matrix, in the order in which their weights are given.

    Both compressed forms are computed on first use and cached.

    >>> pattern = Pattern(torch.tensor([0, 2, 1]), torch.tensor([1, 0, 1]), 3, 2)
    >>> pattern.by_target.ptr.tolist(), pattern.by_target.other.tolist()
    ([0, 1, 3], [2, 0, 1])
    """

    def __init__(self, source: Tensor, target: Tensor, M: int, N: int) -> None:
        dtype = index_dtype(M, N, source.numel())
        self.source = source if source.dtype == dtype else source.to(dtype)
        self.target = target if target.dtype == dtype else target.to(dtype)
        self.M, self.N = M, N

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in without_cached(self).items() if name != "_copies"}

    @property
    def E(self) -> int:
        return self.source.numel()

    @kept
    def by_target(self) -> Compressed:
        return compress(self.target, self.source, self.N)

    @kept
    def by_source(self) -> Compressed:
        return compress(self.source, self.target, self.M)

    @kept
    @with_plain(lambda self: self.by_target.ptr.diff())
    def in_degree(self) -> Tensor:
        """(N,) the number of entries of each target."""
        if "by_target" in self.__dict__ or self.target.is_cuda:
            return self.by_target.ptr.diff()
        return torch.from_numpy(np.bincount(self.target.numpy(), minlength=self.N))

    @kept
    def one_way(self) -> list[Tensor]:
        """[ptr, index] by target."""
        return [*self.by_target[:2]]

    @kept
    def both_ways(self) -> list[Tensor]:
        """[ptr, index] by target, and by source."""
        return [*self.by_target[:2], *self.by_source[:2]]

    @kept
    def both_ways_and_across(self) -> list[Tensor]:
        """`both_ways`, then for each position by target the position by source, and the reverse; (E,) both."""
        return [*self.both_ways, *_translate(self.by_target.order, self.by_source.order, self.source)]

    def _gathered_row(self) -> Tensor:
        return select(self.target, self.by_target.order)

    @kept
    @with_plain(_gathered_row)
    def row(self) -> Tensor:
        """(E,) the target of each entry, by target."""
        ptr = self.by_target.ptr
        return torch.repeat_interleave(ptr.diff(), output_size=self.by_target.other.numel()).to(ptr.dtype)

    @kept
    @with_plain(lambda self: End([self.by_target.other], self.M))
    def at_source(self) -> End:
        """The sources of the entries, which are sorted by target."""
        arrays = self.both_ways_and_across
        return End([arrays[1], arrays[2], arrays[5]], self.M)

    @kept
    def at_target(self) -> End:
        """The targets of the entries."""
        return End([self.row, self.by_target.ptr], self.N)

    @property
    def ends(self) -> tuple[Tensor, Tensor]:
        """(E,) the source and the target of each entry, by target."""
        return self.by_target.other, self.row

    @kept
    def of_entries(self) -> "Pattern":
        """From the entries, by target, to their targets: each is a source of its own."""
        return Pattern(torch.arange(self.E, dtype=self.row.dtype, device=self.row.device), self.row, self.E, self.N)

    def run(self, first: int, last: int) -> "Pattern":
        """The entries into the targets first .. last - 1, an M x (last - first) matrix."""
        by_target = self.by_target
        ptr = by_target.ptr[first : last + 1]
        start, end = int(ptr[0]), int(ptr[-1])
        pattern = object.__new__(Pattern)
        pattern.M, pattern.N = self.M, last - first
        pattern.__dict__["by_target"] = Compressed(ptr - start, by_target.other[start:end], None)
        pattern.source = by_target.other[start:end]
        pattern.target = pattern.row
        return pattern

    def copies(self, count: int) -> "Pattern":
        """The block-diagonal pattern of `count` copies, (count M) x (count N), without sorting again."""
        if count == 1:
            return self
        kept_copies: dict[int, Pattern] = self.__dict__.setdefault("_copies", {})
        found = memo(kept_copies, count, lambda: self._copy(count))
        drop_oldest(kept_copies, _COPIES)
        return found  # type: ignore[no-any-return]

    def _copy(self, count: int) -> "Pattern":
        dtype = index_dtype(count * self.M, count * self.N, count * self.E)

        def repeat(index: Tensor, step: int) -> Tensor:
            """An index, `count` times, each time `step` higher."""
            first = torch.arange(count, dtype=dtype, device=index.device).unsqueeze(1) * step
            return (index.to(dtype) + first).flatten()

        def compressed(one: Compressed, size: int) -> Compressed:
            total = torch.full((1,), count * self.E, dtype=dtype, device=self.source.device)
            ptr = torch.cat([repeat(one.ptr[:-1], self.E), total])
            return Compressed(ptr, repeat(one.other, size), None if one.order is None else repeat(one.order, self.E))

        pattern = Pattern(repeat(self.source, self.M), repeat(self.target, self.N), count * self.M, count * self.N)
        for name, size in (("by_target", self.M), ("by_source", self.N)):
            if name in self.__dict__ or not portable():
                pattern.__dict__[name] = compressed(getattr(self, name), size)
        return pattern

    @kept
    def as_given(self) -> Tensor | None:
        """(E,) the position by target of each entry, in the given order; None if the given order is by target."""
        order = self.by_target.order
        return None if order is None else _translate(None, order, self.source)[0]

    @kept
    def T(self) -> "Pattern":
        """The pattern of the transposed matrix, which shares the compressed forms."""
        pattern = Pattern(self.target, self.source, self.N, self.M)
        for mine, theirs in (("by_target", "by_source"), ("by_source", "by_target")):
            if mine in self.__dict__:
                pattern.__dict__[theirs] = self.__dict__[mine]
        return pattern

    def to(self, device: torch.device) -> "Pattern":
        return Pattern(self.source.to(device), self.target.to(device), self.M, self.N)


def _plain_translate(order: Tensor | None, other_order: Tensor | None, like: Tensor) -> tuple[Tensor, Tensor]:
    position = torch.arange(like.numel(), dtype=like.dtype, device=like.device)

    def places(of: Tensor | None, into: Tensor | None) -> Tensor:
        found = position if into is None else torch.empty_like(position).scatter_(0, into.long(), position)
        return found if of is None else found.index_select(0, of)

    return places(order, other_order), places(other_order, order)


@with_plain(_plain_translate)
def _translate(order: Tensor | None, other_order: Tensor | None, like: Tensor) -> tuple[Tensor, Tensor]:
    """(E,) for each position in one order, the position of the same entry in another; and the reverse."""
    if KERNELS is not None and like.dtype == torch.int32 and like.device.type == "cpu":
        E = like.numel()
        there, back = np.empty(E, np.int32), np.empty(E, np.int32)
        into = None if other_order is None else other_order.numpy()
        KERNELS.translated(None if order is None else order.numpy(), into, there, back)
        return torch.from_numpy(there), torch.from_numpy(back)
    return _plain_translate(order, other_order, like)
