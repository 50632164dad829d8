"""How kernels are started: a program for each row of a matrix, and several for one that is long, a piece for each."""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ...cache import outside_inference_mode
from . import jit

SPLIT = 512  # entries of a row beyond which several programs share it
# Numbers of a block of entries. The forward pass of attention computes much of a wide one; narrow are those of the way
# back, which holds several at a time, and of plain sums, which wait for memory.
WIDE, NARROW = 256, 128
_CELLS = 128  # columns of a program, of as many heads as fit
_ENTRIES = 8  # of a block, at most
_WARP = 256  # numbers of a block for each warp: more would leave a thread too few registers


class RowPieces(NamedTuple):
    """The pieces of long rows.

    row, start: of each piece its row and first entry; those of a row stand side by side.
    long_rows: (L, 3) of each long row itself, its first piece, and the one past its last, behind all rows.
    split: the entries of a piece.
    """

    row: Tensor
    start: Tensor
    long_rows: Tensor
    split: int


# Of the pointers of each compressed matrix: what the pieces depend on, and they.
_KNOWN: Any = WeakTensorKeyDictionary()


def pieces_of(ptr: Tensor, entries: int) -> RowPieces | None:
    """The pieces of long rows; None if no row is long. The first call waits for the device."""
    if entries <= SPLIT:
        return None
    known, found = _KNOWN.get(ptr, (None, None))
    if known != SPLIT:
        if ptr.is_cuda and torch.cuda.is_current_stream_capturing():
            return None  # nothing can be waited for
        found = outside_inference_mode(_cut, ptr, SPLIT)
        _KNOWN[ptr] = SPLIT, found
    return found


def _cut(ptr: Tensor, split: int) -> RowPieces | None:
    """See `pieces_of`."""
    sizes = ptr.diff()
    long = (sizes > split).nonzero().squeeze(1)
    if not len(long):
        return None
    counts = (sizes[long] + split - 1) // split
    last = counts.cumsum(0)
    first = last - counts
    row = long.repeat_interleave(counts)
    start = ptr[row] + split * (torch.arange(len(row), device=ptr.device) - first.repeat_interleave(counts))
    return RowPieces(row, start, torch.stack([long, first, last], 1), split)


@cache
def blocks(numbers: int, c: int, *widths: int) -> dict[str, Any]:
    """The heads of a program, the entries of a block of some numbers, and what the compiler is told, for c heads."""
    width = max(map(power_of_two, widths))
    HB = min(power_of_two(c), max(1, _CELLS // width))
    entries = max(1, min(_ENTRIES, numbers // (HB * width)))
    warps = max(1, min(8, entries * HB * width // _WARP))
    return {"BE": entries, "HB": HB, "num_warps": warps, "enable_fp_fusion": True}


def of_sums(dtype: torch.dtype) -> Any:
    """The dtype of sums, as kernels are told."""
    return tl.float64 if dtype == torch.float64 else tl.float32


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
        self.rows, self.sums, self.ACC = ptr.numel() - 1, sums, of_sums(sums)
        self.matrix, self.others, self.pieces = (ptr, index), others, pieces_of(ptr, index.numel())
        self.count = 0 if self.pieces is None else len(self.pieces.row)

    def new(self, width: int, dtype: torch.dtype) -> Tensor:
        """Room for what each row has, and each piece, of which the sums are not rounded."""
        dtype = self.sums if self.count else dtype
        return torch.empty(self.rows + self.count, width, dtype=dtype, device=self.matrix[0].device)

    def run(self, kernel: Any, heads: int, place: Sequence[Tensor | None], *given: Any, **options: Any) -> None:
        """Runs a kernel for each row, piece and block of heads; place: what it takes behind the matrix."""
        row, start, _, split = self.pieces or (None, None, None, SPLIT)
        sizes = self.rows, self.count, self.others, split
        with torch.cuda.device_of(self.matrix[0]):
            kernel[self.rows + self.count, heads](
                *self.matrix, *place, row, start, *sizes, *given, ACC=self.ACC, **options
            )

    def combined(self, table: Tensor, c: int, dtype: torch.dtype, stats: Tensor | None = None) -> Tensor:
        """The rows of what a kernel has written, those of c heads that are long summed up from their pieces.

        stats: of a softmax, by which their sums are divided.
        """
        if self.pieces is not None:
            W, long_rows = table.shape[1] // c, self.pieces.long_rows
            options = blocks(WIDE, c, W)
            with torch.cuda.device_of(table):
                jit.combine[len(long_rows), -(-c // options["HB"])](
                    table, stats, long_rows, self.rows, c=c, W=W, WB=power_of_two(W), ACC=self.ACC, **options
                )
            table.resize_(self.rows, table.shape[1])  # in place: a view could not be written to by the caller
        return table.to(dtype)
