"""Which rows of a compressed matrix the programs of a kernel have.

A program has L lanes. A short row has one of them; the entries of another row, or of a piece of one that is long, are
dealt to all lanes of a program, in blocks of BE for each.
"""

import triton
import triton.language as tl

# Arguments that differ from graph to graph: a kernel is not compiled anew for a size that 16 divides.
SIZES = ["rows", "alone", "pieces", "others", "split"]


@triton.jit
def lanes(ptr, order, piece_row, piece_start, rows, alone, pieces, split, L: tl.constexpr, BE: tl.constexpr):
    """What the lanes of this program do.

    Programs come in three runs: one for each of the first `alone` rows in `order`, one for each piece, and one for
    every L of the other rows. A row of more than `split` entries has its entries in its pieces, and none in its own
    program.

    Returns:
        shared: whether all lanes have one row, or a piece of one.
        whole: whether it is no piece.
        row: (L,) of each lane.
        out_row: (L,) the row of a table of results that the lane writes; those of pieces stand behind the others.
        reads: (L,) whether there is a row.
        writes: (L,) whether the lane writes its results.
        start, end: (L,) the first entry that a lane visits, and the one past the last; a block begins every `step`.
        span: how many entries there are from the first block to the end, of the lane that has most.
    """
    pid = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, L)
    first_short = alone.to(tl.int64) + pieces
    shared = pid < first_short
    whole = (pid < alone) | (pid >= first_short)
    slot = tl.where(shared, pid, alone + (pid - first_short) * L + lane)
    reads = slot < tl.where(whole, rows, 0)
    row = slot
    if order is not None:
        row = tl.load(order + slot, mask=reads, other=0).to(tl.int64)
    out_row = row
    if piece_row is not None:
        piece = tl.where(whole, 0, slot - alone)
        is_piece = piece < tl.where(whole, 0, pieces)
        row = tl.where(whole, row, tl.load(piece_row + piece, mask=is_piece, other=0).to(tl.int64))
        out_row = tl.where(whole, row, rows + piece)
        reads = reads | is_piece
    start = tl.load(ptr + row, mask=reads, other=0).to(tl.int64)
    end = tl.load(ptr + row + 1, mask=reads, other=0).to(tl.int64)
    if piece_row is not None:
        whole_end = tl.where(end - start > split, start, end)
        start = tl.where(whole, start, tl.load(piece_start + piece, mask=is_piece, other=0).to(tl.int64))
        end = tl.where(whole, whole_end, tl.minimum(end, start + split))
    writes = tl.where(shared, lane == 0, reads)
    span, step = tl.max(end - start), tl.where(shared, L * BE, BE)
    return shared, whole, row, out_row, reads, writes, tl.where(shared, start + lane * BE, start), end, span, step


@triton.jit
def one_lane(ptr, order, piece_row, piece_start, rows, alone, pieces, split):
    """Of a program with one lane: its row, that of its results, its first entry and the one past its last."""
    _, _, row, out_row, _, _, start, end, _, _ = lanes(
        ptr, order, piece_row, piece_start, rows, alone, pieces, split, 1, 1
    )
    return tl.max(row), tl.max(out_row), tl.max(start), tl.max(end)


@triton.jit(do_not_specialize=["rows"])
def deal(ptr, order, piece_row, piece_start, long_rows, counts, rows, split, few, B: tl.constexpr):
    """Which rows have programs of their own, those of more than `few` entries, and which are cut into pieces.

    B rows at a time take the next places in `order`, from its beginning or, if they are short, from its end, by atomic
    counts. Whose turn it is does not matter: what is computed for a row does not depend on its place. piece_row and
    piece_start: of each piece the row and the first entry. long_rows: of each the row, its first piece, and
    the one past its last. counts: of rows with programs of their own, of short rows, of pieces, of long rows.
    """
    row = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    there = row < rows
    start = tl.load(ptr + row, mask=there, other=0).to(tl.int64)
    size = tl.load(ptr + row + 1, mask=there, other=0).to(tl.int64) - start
    own = _turn(counts, size > few)
    short = rows - 1 - _turn(counts + 1, there & (size <= few))
    tl.store(order + tl.where(size > few, own, short), row, mask=there)
    is_long = size > split
    many = tl.where(is_long, (size + split - 1) // split, 0)
    first = tl.cumsum(many, 0) - many + tl.atomic_add(counts + 2, tl.sum(many, 0))
    at = _turn(counts + 3, is_long) * 3
    tl.store(long_rows + at, row, mask=is_long)
    tl.store(long_rows + at + 1, first, mask=is_long)
    tl.store(long_rows + at + 2, first + many, mask=is_long)
    for k in range(tl.max(many, 0)):
        tl.store(piece_row + first + k, row, mask=k < many)
        tl.store(piece_start + first + k, start + k * split, mask=k < many)


@triton.jit
def _turn(count, takes):
    """The next numbers, for those that take one."""
    one = takes.to(tl.int64)
    return tl.cumsum(one, 0) - one + tl.atomic_add(count, tl.sum(one, 0))
