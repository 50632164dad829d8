"""Which entries of a compressed matrix a program of a kernel has: those of a row, or of a piece of a long one."""

import triton
import triton.language as tl

# Arguments that differ from graph to graph: a kernel is not compiled anew for a size that 16 divides.
SIZES = ["rows", "pieces", "others", "split"]


@triton.jit
def one_row(ptr, piece_row, piece_start, rows, pieces, split):
    """What this program has. The first programs have pieces, as these take longest; then there is one for each row.

    A row of more than `split` entries has its entries in its pieces, and none in its own program.

    Returns:
        is_piece: whether it is a piece.
        row: the row.
        out_row: the row of a table of results that it writes; those of pieces stand behind the others.
        start, end: its first entry, and the one past the last.
        row_start: the first entry of the row.
    """
    pid = tl.program_id(0).to(tl.int64)
    is_piece = pid < pieces
    row = pid - pieces
    out_row = row
    if piece_row is not None:
        piece = tl.where(is_piece, pid, 0)
        row = tl.where(is_piece, tl.load(piece_row + piece).to(tl.int64), row)
        out_row = tl.where(is_piece, rows + pid, row)
    row_start = tl.load(ptr + row).to(tl.int64)
    start = row_start
    end = tl.load(ptr + row + 1).to(tl.int64)
    if piece_row is not None:
        start = tl.where(is_piece, tl.load(piece_start + piece).to(tl.int64), row_start)
        whole_end = tl.where(end - row_start > split, row_start, end)
        end = tl.where(is_piece, tl.minimum(end, start + split), whole_end)
    return is_piece, row, out_row, start, end, row_start
