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

    The first `alone` rows in `order` have programs of their own; behind these come those of the pieces of rows of more
    than `split` entries, which have none in their own program, and then those of the other rows, L in each.

    Returns:
        shared: whether all lanes have one row, or a piece of one.
        whole: whether it is no piece.
        row: (L,) of each lane.
        place: (L,) where the results of the lane's row stand.
        reads: (L,) whether there is a row.
        writes: (L,) whether the lane writes its results.
        start, end: (L,) the entries that a lane visits, in blocks of which it has one of each `step`.
        span: how far it goes.
    """
    pid = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, L)
    shared = pid < alone + pieces
    whole = (pid < alone) | (pid >= alone + pieces)
    slot = tl.where(shared, pid, alone + (pid - alone - pieces) * L + lane)
    reads = slot < tl.where(whole, rows, 0)
    row = slot
    if order is not None:
        row = tl.load(order + slot, mask=reads, other=0).to(tl.int64)
    place = row
    if piece_row is not None:
        piece = tl.where(whole, 0, slot - alone)
        is_piece = piece < tl.where(whole, 0, pieces)
        row = tl.where(whole, row, tl.load(piece_row + piece, mask=is_piece, other=0).to(tl.int64))
        place = tl.where(whole, row, rows + piece)
        reads = reads | is_piece
    start = tl.load(ptr + row, mask=reads, other=0).to(tl.int64)
    end = tl.load(ptr + row + 1, mask=reads, other=0).to(tl.int64)
    if piece_row is not None:
        whole_end = tl.where(end - start > split, start, end)
        start = tl.where(whole, start, tl.load(piece_start + piece, mask=is_piece, other=0).to(tl.int64))
        end = tl.where(whole, whole_end, tl.minimum(end, start + split))
    writes = tl.where(shared, lane == 0, reads)
    span, step = tl.max(end - start), tl.where(shared, L * BE, BE)
    return shared, whole, row, place, reads, writes, tl.where(shared, start + lane * BE, start), end, span, step


@triton.jit
def span(ptr, order, piece_row, piece_start, rows, alone, pieces, split):
    """Of a program with one lane: its row, where the results stand, the first entry and the one past the last."""
    _, _, row, place, _, _, start, end, _, _ = lanes(
        ptr, order, piece_row, piece_start, rows, alone, pieces, split, 1, 1
    )
    return tl.max(row), tl.max(place), tl.max(start), tl.max(end)


@triton.jit(do_not_specialize=["rows"])
def deal(ptr, order, piece_row, piece_start, long_rows, counts, rows, split, few, B: tl.constexpr):
    """Which rows have programs of their own, those of more than `few` entries, and which are cut into pieces.

    B rows at a time take the next places in `order`, from its beginning or, if they are short, from its end. Whose turn
    it is does not matter: a row's sums do not depend on its place. long_rows: of each the row, its first piece, and
    the one past its last. counts: of rows with programs of their own, of short rows, of pieces, of long rows.
    """
    row = tl.program_id(0) * B + tl.arange(0, B)
    there = row < rows
    start = tl.load(ptr + row, mask=there, other=0).to(tl.int64)
    size = tl.load(ptr + row + 1, mask=there, other=0).to(tl.int64) - start
    alone = _turn(counts, size > few)
    short = rows - 1 - _turn(counts + 1, there & (size <= few))
    tl.store(order + tl.where(size > few, alone, short), row, mask=there)
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
