"""How kernels are started: a program for each row and for each piece of a long row."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F
from torch.utils.weak import WeakTensorKeyDictionary

from ...cache import outside_inference_mode
from . import jit

SPLIT = 512  # entries of a row from which on several programs share it
_CELLS = 128  # columns of a program, of as many heads as fit
_BLOCK = 512  # numbers of a block of entries, for each warp: more would leave a thread too few registers


class Pieces(NamedTuple):
    """The pieces of long rows: of each its row and first entry; of each long row its first piece, and which it is."""

    row: Tensor
    start: Tensor
    first: Tensor
    long_row: Tensor


# Of the pointers of each compressed matrix: how long a piece is, and what there is.
_KNOWN: Any = WeakTensorKeyDictionary()


def pieces_of(ptr: Tensor, entries: int) -> Pieces | None:
    """The pieces of rows of more than `SPLIT` entries; None if there are none. The first call waits for the device."""
    if entries <= SPLIT:
        return None
    split, found = _KNOWN.get(ptr, (None, None))
    if split != SPLIT:
        if ptr.is_cuda and torch.cuda.is_current_stream_capturing():
            return None  # nothing can be waited for: long rows stay whole
        found = outside_inference_mode(_cut, ptr, SPLIT)
        _KNOWN[ptr] = SPLIT, found
    return found


def _cut(ptr: Tensor, split: int) -> Pieces | None:
    """See `pieces_of`.

    >>> _cut(torch.tensor([0, 2, 7]), 2)
    Pieces(row=tensor([1, 1, 1]), start=tensor([2, 4, 6]), first=tensor([0, 3]), long_row=tensor([1]))
    """
    degree = ptr.diff()
    long_row = (degree > split).nonzero().squeeze(1)
    if not long_row.numel():
        return None
    count = (degree.index_select(0, long_row) + split - 1) // split
    first = F.pad(count.cumsum(0), (1, 0))
    which = torch.repeat_interleave(count)
    within = torch.arange(which.numel(), device=ptr.device) - first.index_select(0, which)
    row = long_row.index_select(0, which)
    return Pieces(row, ptr.index_select(0, row) + split * within, first, long_row)


def blocks(c: int, *widths: int) -> dict[str, Any]:
    """The heads of a program, the entries of a block and what the compiler is told, for rows of c heads so wide."""
    width = max(map(power_of_two, widths))
    HB = min(power_of_two(c), max(1, _CELLS // width))
    BE = max(4, min(32, _BLOCK // (HB * width)))
    warps = max(1, min(8, BE * HB * width // _BLOCK))
    return {"HB": HB, "BE": BE, "num_warps": warps, "enable_fp_fusion": True}


def power_of_two(size: int) -> int:
    """The least that is not smaller."""
    return 1 << (size - 1).bit_length()


class RowLists:
    """The programs for the rows of a compressed matrix.

    ptr, index: the matrix.
    others: the number of columns, which no index exceeds.
    sums: the dtype of sums.
    """

    def __init__(self, ptr: Tensor, index: Tensor, others: int, sums: torch.dtype) -> None:
        self.rows, self.sums, self.ACC = ptr.numel() - 1, sums, tl.float64 if sums == torch.float64 else tl.float32
        self.pieces = pieces_of(ptr, index.numel())
        row, start = (None, None) if self.pieces is None else self.pieces[:2]
        self.programs = self.rows + (0 if row is None else row.numel())
        self.matrix, self.ends = (ptr, index), (row, start, self.rows, others, SPLIT)

    def new(self, width: int, dtype: torch.dtype) -> Tensor:
        """Room for what each row has, and each piece, of which the sums are not rounded."""
        dtype = dtype if self.pieces is None else self.sums
        return torch.empty(self.programs, width, dtype=dtype, device=self.matrix[0].device)

    def run(self, kernel: Any, heads: int, place: Sequence[Tensor | None], *given: Any, **options: Any) -> None:
        """Runs a kernel for each row, piece and block of heads; place: what it takes behind the matrix."""
        with torch.cuda.device_of(self.matrix[0]):
            kernel[self.programs, heads](*self.matrix, *place, *self.ends, *given, ACC=self.ACC, **options)

    def combined(self, table: Tensor, c: int, dtype: torch.dtype, stats: Tensor | None = None) -> Tensor:
        """The rows of what a kernel has written, those of c heads that are long summed up from their pieces."""
        if self.pieces is not None:
            W, options = table.shape[1] // c, blocks(c, table.shape[1] // c)
            with torch.cuda.device_of(table):
                jit.combine[self.pieces.long_row.numel(), -(-c // options["HB"])](
                    table, stats, *self.pieces[2:], self.rows, c=c, W=W, WB=power_of_two(W), ACC=self.ACC, **options
                )
            table.resize_(self.rows, table.shape[1])  # in place: a view could not be written to by the caller
        return table.to(dtype)
