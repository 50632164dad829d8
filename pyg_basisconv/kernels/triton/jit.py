"""Most kernels in Triton: one forward pass and one backward pass for all forms of attention, gates, sparse products.

A program has one row of a compressed matrix, or a piece of one that is long, and some heads. It visits the entries of
the row in blocks; sums are held entry by entry of a block, and added up at the end, so that their order is fixed.
Nothing is added to memory that other programs write to. Rows and entries are numbered in int64: offsets exceed int32.

Letters: BE entries of a block, HB heads, WB columns of a row's head, DB of a term's head, FB features of an entry; all
powers of two, masked.
"""

import triton
import triton.language as tl

# Arguments that differ from graph to graph: a kernel is not compiled anew for a size that 16 divides.
_SIZES = ["rows", "others", "split"]


@triton.jit
def _tanh(u):
    """By exponentials; by its continued fraction where these would cancel."""
    e = tl.exp(-2.0 * tl.abs(u))
    far = (1.0 - e) / (1.0 + e)
    square = tl.where(tl.abs(u) < 0.5, u * u, 0.0)
    near = square / 17.0 + 15.0
    for k in tl.static_range(7):
        near = square / near + (13.0 - 2.0 * k)
    return tl.where(tl.abs(u) < 0.5, u / near, tl.where(u < 0.0, -far, far))


@triton.jit
def _activate(u, ACTIVATION: tl.constexpr, SLOPE: tl.constexpr):
    """By the numbers of `activations.ActivationCode`; 7 is the constant one."""
    v = u
    if ACTIVATION == 1:
        v = tl.where(u < 0.0, SLOPE * u, u)
    elif ACTIVATION == 2:
        v = tl.where(u < 0.0, 0.0, u)
    elif ACTIVATION == 3:
        v = 1.0 / (1.0 + tl.exp(-u))
    elif ACTIVATION == 4:
        v = _tanh(u)
    elif ACTIVATION == 5:
        v = tl.where(u == float("-inf"), 0.0, u)
    elif ACTIVATION == 6:
        v = _tanh(tl.where(u == float("-inf"), 0.0, u))
    elif ACTIVATION == 7:
        v = tl.full(u.shape, 1.0, u.dtype)
    return v


@triton.jit
def _derivative(u, v, ACTIVATION: tl.constexpr, SLOPE: tl.constexpr):
    """The derivative at u, where the function is v."""
    one = tl.full(u.shape, 1.0, u.dtype)
    d = one
    if ACTIVATION == 1:
        d = tl.where(u > 0.0, one, SLOPE * one)
    elif ACTIVATION == 2:
        d = tl.where(u > 0.0, one, 0.0)
    elif ACTIVATION == 3:
        d = v * (1.0 - v)
    elif ACTIVATION == 4:
        d = 1.0 - v * v
    elif ACTIVATION == 5:
        d = tl.where(u == float("-inf"), 0.0, one)
    elif ACTIVATION == 6:
        d = tl.where(u == float("-inf"), 0.0, 1.0 - v * v)
    elif ACTIVATION == 7:
        d = 0.0 * one
    return d


@triton.jit
def _base(top):
    """What is taken off the scores: the greatest, unless it is infinite."""
    return tl.where((top > float("-inf")) & (top < float("inf")), top, 0.0)


@triton.jit
def _greatest(score):
    """Of each head; what is no number is passed over here, and spoils the sums."""
    return tl.max(tl.where(score == score, score, float("-inf")), 0)


@triton.jit
def _span(ptr, piece_row, piece_start, rows, split):
    """The row of this program, and its first entry and the one past its last.

    Behind one program for each row come those for the pieces of rows of more than `split` entries, which have none
    in their own program.
    """
    pid = tl.program_id(0)
    row = pid
    if piece_row is not None:
        is_piece = pid >= rows
        piece = tl.maximum(pid - rows, 0)
        row = tl.where(is_piece, tl.load(piece_row + piece, mask=is_piece, other=0).to(tl.int32), pid)
    start = tl.load(ptr + row).to(tl.int64)
    end = tl.load(ptr + row + 1).to(tl.int64)
    if piece_row is not None:
        whole_end = tl.where(end - start > split, start, end)
        start = tl.where(is_piece, tl.load(piece_start + piece, mask=is_piece, other=0).to(tl.int64), start)
        end = tl.where(is_piece, tl.minimum(end, start + split), whole_end)
    return row.to(tl.int64), start, end


@triton.jit
def _cells(c, W, HB: tl.constexpr, WB: tl.constexpr):
    """The columns of this program's heads in a row, (HB, WB), and which of them there are."""
    head = tl.program_id(1) * HB + tl.arange(0, HB)
    column = tl.arange(0, WB)
    return head[:, None] * W + column[None, :], (head < c)[:, None] & (column < W)[None, :]


@triton.jit
def _row(table, row, stride, cells, mask, ACC: tl.constexpr):
    """A row's cells, (HB, WB)."""
    return tl.load(table + row * stride + cells, mask=mask, other=0.0).to(ACC)


@triton.jit
def _rows(table, rows, there, stride, cells, mask, ACC: tl.constexpr):
    """Cells of several rows, (BE, HB, WB); zeros for rows that are not there."""
    at = rows[:, None, None] * stride + cells[None, :, :]
    return tl.load(table + at, mask=there[:, None, None] & mask[None, :, :], other=0.0).to(ACC)


@triton.jit
def _entries(index, place, start, end, others, BE: tl.constexpr):
    """A block of entries: their other ends, their positions in the order of targets, and which of them there are."""
    p = start + tl.arange(0, BE)
    there = p < end
    o = tl.load(index + p, mask=there, other=0).to(tl.int64)
    e = p
    if place is not None:
        e = tl.load(place + p, mask=there, other=0).to(tl.int64)
    return o, e, there & (o >= 0) & (o < others)


@triton.jit
def _rows_of_terms(entry_rows, e, there):
    """The rows of the terms of entries, which are their positions by target where there is no list of them."""
    row = e
    if entry_rows is not None:
        row = tl.load(entry_rows + e, mask=there, other=0).to(tl.int64)
    return row


@triton.jit
def _factors(factor, stride, step, e, there, head, c, ACC: tl.constexpr):
    """The factors of entries, (BE, HB); ones where there are none. A step to the next head may pass all entries."""
    if factor is None:
        f = tl.full((1, 1), 1.0, ACC)
    else:
        known = there[:, None] & (head < c)[None, :]
        at = e[:, None] * stride + head.to(tl.int64)[None, :] * step
        f = tl.load(factor + at, mask=known, other=0.0).to(ACC)
    return f


@triton.jit
def _features(features, stride, e, there, F: tl.constexpr, FB: tl.constexpr, ACC: tl.constexpr):
    """The features of entries, which are the same for all heads, (BE, 1, FB)."""
    column = tl.arange(0, FB)
    known = there[:, None] & (column < F)[None, :]
    return tl.load(features + e[:, None] * stride + column[None, :], mask=known, other=0.0).to(ACC)[:, None, :]


@triton.jit
def _scores(
    own, other, other_stride, entry, entry_stride, a, o, row, there, cells, mask,
    PRODUCTS: tl.constexpr, ACTIVATION: tl.constexpr, SLOPE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Of a block of entries the terms u, (BE, HB, DB), their activation v, and scores, (BE, HB).

    Of PRODUCTS the terms are those of the other ends. The terms of an entry are in a row of their own.
    """
    if PRODUCTS:
        u = _rows(other, o, there, other_stride, cells, mask, ACC)
        v = u
        score = tl.sum(u * own[None, :, :], 2)
    else:
        u = tl.where(there[:, None, None], own[None, :, :], 0.0)
        if other is not None:
            u += _rows(other, o, there, other_stride, cells, mask, ACC)
        if entry is not None:
            u += _rows(entry, row, there, entry_stride, cells, mask, ACC)
        v = _activate(u, ACTIVATION, SLOPE)
        score = tl.sum(v * a[None, :, :], 2)
    return u, v, score


@triton.jit(do_not_specialize=_SIZES)
def forward(
    ptr, index, piece_row, piece_start, rows, others, split,
    z, own, own_stride, other, other_stride, entry, entry_stride, entry_rows, vectors,
    factor, factor_stride, factor_step, values, values_stride, features, features_stride, asked, y, stats, summed,
    c: tl.constexpr, W: tl.constexpr, D: tl.constexpr, F: tl.constexpr,
    PRODUCTS: tl.constexpr, ACTIVATION: tl.constexpr, SLOPE: tl.constexpr, ACC: tl.constexpr,
    BE: tl.constexpr, HB: tl.constexpr, WB: tl.constexpr, DB: tl.constexpr, FB: tl.constexpr,
):  # fmt: skip
    """The weighted sums y of each row; normalised where there are statistics, of which each head has two numbers.

    These are what is taken off scores and the inverse of the sum of exponentials; of a piece the greatest score and
    the sum, and its y is not divided. The features of entries are `summed` with the same weights; their products with
    what the heads of a row have `asked`, (rows, c F), are added to the scores.
    """
    pid = tl.program_id(0).to(tl.int64)
    row, start, end = _span(ptr, piece_row, piece_start, rows, split)
    head = tl.program_id(1) * HB + tl.arange(0, HB)
    cells, mask = _cells(c, W, HB, WB)
    term_cells, term_mask = _cells(c, D, HB, DB)
    mine = tl.zeros((HB, DB), ACC)
    if own is not None:
        mine = _row(own, row, own_stride, term_cells, term_mask, ACC)
    a = tl.full((HB, DB), 1.0, ACC)
    if vectors is not None:
        a = _row(vectors, 0, 0, term_cells, term_mask, ACC)
    feature_cells, feature_mask = _cells(c, F, HB, FB)
    if asked is not None:
        asks = _row(asked, row, c * F, feature_cells, feature_mask, ACC)
    top = tl.full((HB,), float("-inf"), ACC)
    total = tl.zeros((BE, HB), ACC)
    sums = tl.zeros((BE, HB, WB), ACC)
    feature_sums = tl.zeros((BE, HB, FB), ACC)
    for p in range(start, end, BE):
        o, e, there = _entries(index, None, p, end, others, BE)
        at_entry = _rows_of_terms(entry_rows, e, there)
        known = there[:, None] & (head < c)[None, :]
        _, _, score = _scores(
            mine, other, other_stride, entry, entry_stride, a, o, at_entry, there, term_cells, term_mask,
            PRODUCTS, ACTIVATION, SLOPE, ACC,
        )  # fmt: skip
        if features is not None:
            z_entry = _features(features, features_stride, e, there, F, FB, ACC)
        if asked is not None:
            score += tl.sum(z_entry * asks[None, :, :], 2)
        weight = tl.where(known, score, 0.0)
        if stats is not None:
            above = tl.maximum(top, _greatest(tl.where(known, score, float("-inf"))))
            base = _base(above)
            weight = tl.where(known, tl.exp(score - base[None, :]), 0.0)
            scale = tl.where(above > top, tl.exp(top - base), 1.0)
            total = total * scale[None, :] + weight
            sums = sums * scale[None, :, None]
            feature_sums = feature_sums * scale[None, :, None]
            top = above
        weight *= _factors(factor, factor_stride, factor_step, e, there, head, c, ACC)
        x = _rows(z, o, there, W * c, cells, mask, ACC)
        if values is not None:
            x += _rows(values, e, there, values_stride, cells, mask, ACC)
        sums += weight[:, :, None] * x
        if summed is not None:
            feature_sums += weight[:, :, None] * z_entry
    found = tl.sum(sums, 0)
    found_features = tl.sum(feature_sums, 0)
    if stats is not None:
        base = _base(top)
        down = tl.sum(total, 0)
        inverse = 1.0 / tl.where(down == 0.0, 1.0, down)
        if piece_row is not None:
            whole = pid < rows
            base = tl.where(whole, base, top)
            found = tl.where(whole, found * inverse[:, None], found)
            found_features = tl.where(whole, found_features * inverse[:, None], found_features)
            inverse = tl.where(whole, inverse, down)
        else:
            found = found * inverse[:, None]
            found_features = found_features * inverse[:, None]
        tl.store(stats + pid * (2 * c) + head, base, mask=head < c)
        tl.store(stats + pid * (2 * c) + c + head, inverse, mask=head < c)
    tl.store(y + pid * (c * W) + cells, found, mask=mask)
    if summed is not None:
        tl.store(summed + pid * (c * F) + feature_cells, found_features, mask=feature_mask)


@triton.jit(do_not_specialize=_SIZES)
def backward(
    ptr, index, place, piece_row, piece_start, rows, others, split,
    own_rows, other_rows, own, own_stride, other, other_stride, entry, entry_stride, entry_rows, vectors,
    factor, factor_stride, factor_step, values, values_stride, features, features_stride, asked, passed, y, stats,
    delta, d_rows, d_own, d_entry, d_vectors, d_factor, d_values, d_asked, d_features,
    c: tl.constexpr, W: tl.constexpr, D: tl.constexpr, F: tl.constexpr,
    PRODUCTS: tl.constexpr, ACTIVATION: tl.constexpr, SLOPE: tl.constexpr, ACC: tl.constexpr,
    BE: tl.constexpr, HB: tl.constexpr, WB: tl.constexpr, DB: tl.constexpr, FB: tl.constexpr,
    BY_SOURCE: tl.constexpr,
):  # fmt: skip
    """The way back at each target, whose own rows are gradients, or at each source, whose own rows are those of z.

    With w the weight of an entry and f its factor, the gradient of a score is w (f <z, g> - delta), where delta is
    <y, g> of its target; and f <z, g> where weights are not normalised. The pass over targets writes delta for the
    one over sources, and what entries have. Of `d_vectors` each program writes its own part, and of `d_features`,
    (E, blocks of heads, F), the part of its heads. `passed`, (targets, c F), is what multiplies the features of entries
    in the place of <z, g>.
    """
    pid = tl.program_id(0).to(tl.int64)
    row, start, end = _span(ptr, piece_row, piece_start, rows, split)
    head = tl.program_id(1) * HB + tl.arange(0, HB)
    cells, mask = _cells(c, W, HB, WB)
    term_cells, term_mask = _cells(c, D, HB, DB)
    mine = tl.zeros((HB, DB), ACC)
    if own is not None:
        mine = _row(own, row, own_stride, term_cells, term_mask, ACC)
    a = tl.full((HB, DB), 1.0, ACC)
    if vectors is not None:
        a = _row(vectors, 0, 0, term_cells, term_mask, ACC)
    mine_rows = _row(own_rows, row, c * W, cells, mask, ACC)
    feature_cells, feature_mask = _cells(c, F, HB, FB)
    if not BY_SOURCE:
        if asked is not None:
            asks = _row(asked, row, c * F, feature_cells, feature_mask, ACC)[None, :, :]
        if passed is not None:
            passes = _row(passed, row, c * F, feature_cells, feature_mask, ACC)[None, :, :]
    if stats is not None and not BY_SOURCE:
        top = tl.load(stats + row * (2 * c) + head, mask=head < c, other=0.0)[None, :]
        inverse = tl.load(stats + row * (2 * c) + c + head, mask=head < c, other=0.0)[None, :]
        mean = tl.sum(mine_rows * _row(y, row, c * W, cells, mask, ACC), 1)
        tl.store(delta + row * c + head, mean, mask=head < tl.where(pid < rows, c, 0))
        mean = mean[None, :]
    of_rows = d_rows is not None or d_own is not None or d_vectors is not None or d_asked is not None
    of_entries = d_entry is not None or d_factor is not None or d_values is not None or d_features is not None
    if not (of_rows or of_entries):
        end = start  # delta is all that was wanted
    sums = tl.zeros((BE, HB, WB), ACC)
    term_sums = tl.zeros((BE, HB, DB), ACC)
    vector_sums = tl.zeros((BE, HB, DB), ACC)
    asked_sums = tl.zeros((BE, HB, FB), ACC)
    for p in range(start, end, BE):
        o, e, there = _entries(index, place, p, end, others, BE)
        here = p + tl.arange(0, BE) < end  # with entries that are passed over, whose gradients are zero
        at_entry = _rows_of_terms(entry_rows, e, here)
        known = there[:, None] & (head < c)[None, :]
        u, v, score = _scores(
            mine, other, other_stride, entry, entry_stride, a, o, at_entry, there, term_cells, term_mask,
            PRODUCTS, ACTIVATION, SLOPE, ACC,
        )  # fmt: skip
        if features is not None:
            z_entry = _features(features, features_stride, e, there, F, FB, ACC)
        if asked is not None:
            if BY_SOURCE:
                asks = _rows(asked, o, there, c * F, feature_cells, feature_mask, ACC)
            score += tl.sum(z_entry * asks, 2)
        weight = tl.where(known, score, 0.0)
        if stats is not None:
            if BY_SOURCE:
                at = o[:, None] * (2 * c) + head[None, :]
                top = tl.load(stats + at, mask=known, other=0.0)
                inverse = tl.load(stats + at + c, mask=known, other=0.0)
                mean = tl.load(delta + o[:, None] * c + head[None, :], mask=known, other=0.0)
            weight = tl.where(known, tl.exp(score - top) * inverse, 0.0)
        f = _factors(factor, factor_stride, factor_step, e, there, head, c, ACC)
        theirs = _rows(other_rows, o, there, c * W, cells, mask, ACC)
        x = theirs
        g = mine_rows[None, :, :]
        if BY_SOURCE:
            x = mine_rows[None, :, :]
            g = theirs
        if values is not None:
            x = x + _rows(values, e, there, values_stride, cells, mask, ACC)
        dot = tl.sum(x * g, 2)
        if passed is not None:
            if BY_SOURCE:
                passes = _rows(passed, o, there, c * F, feature_cells, feature_mask, ACC)
            dot += tl.sum(z_entry * passes, 2)
        down = f * dot
        if stats is not None:
            down = weight * (down - mean)
        down = tl.where(known, down, 0.0)[:, :, None]
        at = e[:, None] * c + head[None, :]
        if d_factor is not None:
            tl.store(d_factor + at, weight * dot, mask=here[:, None] & (head < c)[None, :])
        weight = (weight * f)[:, :, None]
        if d_values is not None:
            at_cells = e[:, None, None] * (c * W) + cells[None, :, :]
            tl.store(d_values + at_cells, weight * g, mask=here[:, None, None] & mask[None, :, :])
        if d_rows is not None:
            sums += weight * theirs
        if d_asked is not None:
            asked_sums += down * z_entry
        if d_features is not None:
            d_z_entry = tl.zeros((BE, HB, FB), ACC)
            if asked is not None:
                d_z_entry += down * asks
            if passed is not None:
                d_z_entry += weight * passes
            column = tl.arange(0, FB)
            at_features = (e * tl.num_programs(1) + tl.program_id(1))[:, None] * F + column[None, :]
            tl.store(d_features + at_features, tl.sum(d_z_entry, 1), mask=here[:, None] & (column < F)[None, :])
        if d_vectors is not None:
            vector_sums += down * v
        if PRODUCTS:
            term_sums += down * u
        else:
            d_u = down * a[None, :, :] * _derivative(u, v, ACTIVATION, SLOPE)
            d_u = tl.where(there[:, None, None], d_u, 0.0)
            if d_entry is not None:
                at_terms = at_entry[:, None, None] * (c * D) + term_cells[None, :, :]
                tl.store(d_entry + at_terms, d_u, mask=here[:, None, None] & term_mask[None, :, :])
            term_sums += d_u
    if d_rows is not None:
        tl.store(d_rows + pid * (c * W) + cells, tl.sum(sums, 0), mask=mask)
    if d_own is not None:
        tl.store(d_own + pid * (c * D) + term_cells, tl.sum(term_sums, 0), mask=term_mask)
    if d_vectors is not None:
        tl.store(d_vectors + pid * (c * D) + term_cells, tl.sum(vector_sums, 0), mask=term_mask)
    if d_asked is not None:
        tl.store(d_asked + pid * (c * F) + feature_cells, tl.sum(asked_sums, 0), mask=feature_mask)


@triton.jit(do_not_specialize=["rows"])
def combine(
    table, stats, first, long_row, rows,
    c: tl.constexpr, W: tl.constexpr, ACC: tl.constexpr, BE: tl.constexpr, HB: tl.constexpr, WB: tl.constexpr,
):  # fmt: skip
    """The sums of the pieces of each long row, which stand behind the rows, in their order; see `forward` for stats."""
    start = tl.load(first + tl.program_id(0)).to(tl.int64)
    end = tl.load(first + tl.program_id(0) + 1).to(tl.int64)
    row = tl.load(long_row + tl.program_id(0)).to(tl.int64)
    head = tl.program_id(1) * HB + tl.arange(0, HB)
    cells, mask = _cells(c, W, HB, WB)
    top = tl.full((HB,), float("-inf"), ACC)
    if stats is not None:
        for p in range(start, end, BE):
            piece = p + tl.arange(0, BE)
            at = (rows + piece)[:, None] * (2 * c) + head[None, :]
            here = tl.load(stats + at, mask=(piece < end)[:, None] & (head < c)[None, :], other=float("-inf"))
            top = tl.maximum(top, _greatest(here))
    base = _base(top)
    total = tl.zeros((BE, HB), ACC)
    sums = tl.zeros((BE, HB, WB), ACC)
    for p in range(start, end, BE):
        piece = p + tl.arange(0, BE)
        there = piece < end
        part = _rows(table, rows + piece, there, c * W, cells, mask, ACC)
        if stats is not None:
            at = (rows + piece)[:, None] * (2 * c) + head[None, :]
            known = there[:, None] & (head < c)[None, :]
            scale = tl.exp(tl.load(stats + at, mask=known, other=float("-inf")) - base[None, :])
            total += scale * tl.load(stats + at + c, mask=known, other=0.0)
            part = scale[:, :, None] * part
        sums += part
    found = tl.sum(sums, 0)
    if stats is not None:
        down = tl.sum(total, 0)
        inverse = 1.0 / tl.where(down == 0.0, 1.0, down)
        found = found * inverse[:, None]
        tl.store(stats + row * (2 * c) + head, base, mask=head < c)
        tl.store(stats + row * (2 * c) + c + head, inverse, mask=head < c)
    tl.store(table + row * (c * W) + cells, found, mask=mask)


@triton.jit(do_not_specialize=_SIZES)
def sampled(
    ptr, index, piece_row, piece_start, rows, others, split, x, y, out,
    W: tl.constexpr, ACC: tl.constexpr, BE: tl.constexpr, WB: tl.constexpr,
):  # fmt: skip
    """Of each entry the inner product of two rows, however wide: x of its other end, and y of its own."""
    row, start, end = _span(ptr, piece_row, piece_start, rows, split)
    for p in range(start, end, BE):
        o, e, there = _entries(index, None, p, end, others, BE)
        sums = tl.zeros((BE, WB), ACC)
        for w in range(0, W, WB):
            column = w + tl.arange(0, WB)
            mine = tl.load(y + row * W + column, mask=column < W, other=0.0).to(ACC)
            known = there[:, None] & (column < W)[None, :]
            sums += mine[None, :] * tl.load(x + o[:, None] * W + column[None, :], mask=known, other=0.0).to(ACC)
        tl.store(out + e, tl.sum(sums, 1), mask=p + tl.arange(0, BE) < end)
