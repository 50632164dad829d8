"""How kernels are started: which rows share a program, which have one, and which are cut into pieces that have one."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ...cache import outside_inference_mode
from . import jit, rows_jit

SPLIT = 512  # entries of a row beyond which several programs share it
FEW = 8  # entries of a row up to which it shares a program
_CELLS = 128  # columns of a program, of as many heads as fit
_BLOCK = 256  # numbers of a block of entries, for each warp: more would leave a thread too few registers
_LANE = 4  # entries of a lane's block
_ROWS = 256  # of a program that deals them out


class Shares(NamedTuple):
    """Who computes which rows.

    order: (R,) the rows, those with programs of their own first.
    alone: how many these are.
    row, start: of each piece of a long row, its row and first entry; None if there are none.
    pieces: how many there are.
    long_rows: (L, 3) of each long row itself, its first piece, and the one past its last.
    split: the entries of a piece.
    """

    order: Tensor
    alone: int
    row: Tensor | None
    start: Tensor | None
    pieces: int
    long_rows: Tensor
    split: int


# Of the pointers of each compressed matrix: what the shares depend on, and they.
_KNOWN: Any = WeakTensorKeyDictionary()


def shares_of(ptr: Tensor, entries: int) -> Shares | None:
    """Who computes which rows; None if each has a program of its own. The first call waits for the device."""
    if entries <= SPLIT:
        return None
    limits = SPLIT, FEW
    known, found = _KNOWN.get(ptr, (None, None))
    if known != limits:
        if ptr.is_cuda and torch.cuda.is_current_stream_capturing():
            return None  # nothing can be waited for
        found = outside_inference_mode(_dealt, ptr, entries, *limits)
        _KNOWN[ptr] = limits, found
    return found


def _dealt(ptr: Tensor, entries: int, split: int, few: int) -> Shares:
    """See `shares_of`."""
    rows, at_most = ptr.numel() - 1, entries // split  # long rows; they have no more than twice as many pieces
    order, long_rows = ptr.new_empty(rows), ptr.new_empty(at_most, 3)
    row, start, counts = ptr.new_empty(2 * at_most), ptr.new_empty(2 * at_most), ptr.new_zeros(4, dtype=torch.int64)
    with torch.cuda.device_of(ptr):
        rows_jit.deal[-(-rows // _ROWS),](ptr, order, row, start, long_rows, counts, rows, split, few, B=_ROWS)
    alone, _, pieces, long = counts.tolist()
    if not pieces:
        return Shares(order, alone, None, None, 0, long_rows[:0].clone(), split)
    return Shares(order, alone, row[:pieces].clone(), start[:pieces].clone(), pieces, long_rows[:long].clone(), split)


def blocks(c: int, *widths: int) -> dict[str, Any]:
    """The lanes and heads of a program, the entries of a block and what the compiler is told, for rows of c heads."""
    width = max(map(power_of_two, widths))
    HB = min(power_of_two(c), max(1, _CELLS // width))
    entries = max(_LANE, min(32, _BLOCK // (HB * width)))
    warps = max(1, min(8, entries * HB * width // _BLOCK))
    lanes = entries // _LANE if entries > 2 * _LANE else 1  # two lanes would take more registers than they save time
    return {"L": lanes, "BE": entries // lanes, "HB": HB, "num_warps": warps, "enable_fp_fusion": True}


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
        self.matrix, self.others, self.shares = (ptr, index), others, shares_of(ptr, index.numel())
        self.pieces = 0 if self.shares is None else self.shares.pieces

    def new(self, width: int, dtype: torch.dtype) -> Tensor:
        """Room for what each row has, and each piece, of which the sums are not rounded."""
        dtype = self.sums if self.pieces else dtype
        return torch.empty(self.rows + self.pieces, width, dtype=dtype, device=self.matrix[0].device)

    def run(self, kernel: Any, heads: int, place: Sequence[Tensor | None], *given: Any, **options: Any) -> None:
        """Runs a kernel for each row, piece and block of heads; place: what it takes behind the matrix."""
        shares, lanes = self.shares, options.get("L", 1)
        order, alone, row, start = (None, self.rows, None, None) if shares is None else shares[:4]
        if lanes == 1:
            order, alone = None, self.rows
        programs = alone + self.pieces + -(-(self.rows - alone) // lanes)
        ends = order, row, start, self.rows, alone, self.pieces, self.others, SPLIT if shares is None else shares.split
        with torch.cuda.device_of(self.matrix[0]):
            kernel[programs, heads](*self.matrix, *place, *ends, *given, ACC=self.ACC, **options)

    def combined(
        self, table: Tensor, c: int, dtype: torch.dtype, stats: Tensor | None = None, normalised: bool = False
    ) -> Tensor:
        """The rows of what a kernel has written, those of c heads that are long summed up from their pieces.

        normalised: whether their sums are divided by those of exponentials, which are in stats.
        """
        if self.shares is not None and self.pieces:
            W, options, long_rows = table.shape[1] // c, blocks(c, table.shape[1] // c), self.shares.long_rows
            with torch.cuda.device_of(table):
                jit.combine[len(long_rows), -(-c // options["HB"])](
                    table, stats if normalised else None, long_rows, self.rows, c=c, W=W, WB=power_of_two(W),
                    S=0 if stats is None else stats.shape[1] // c, ACC=self.ACC, **options
                )  # fmt: skip
            table.resize_(self.rows, table.shape[1])  # in place: a view could not be written to by the caller
        return table.to(dtype)
