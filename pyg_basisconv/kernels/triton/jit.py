"""Most kernels in Triton: one forward pass and one backward pass for all forms of attention, gates, sparse products.

A program has some heads of a row, or of a piece of one; see `rows_jit`. Entries are visited in blocks; sums are held
entry by entry of a block, and added up at the end, so that their order is fixed. Nothing is added to memory. Rows and
entries are numbered in int64: offsets exceed int32.

Letters: BE entries of a block, HB heads, WB columns of a row's head, DB of a term's head, FB features of an entry; all
powers of two, masked.
"""

import triton
import triton.language as tl

from .rows_jit import SIZES, one_row


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
def _cells(c, W, HB: tl.constexpr, WB: tl.constexpr):
    """The columns of this program's heads in a row, (HB, WB), and which of them there are."""
    head = tl.program_id(1) * HB + tl.arange(0, HB)
    column = tl.arange(0, WB)
    return head[:, None] * W + column[None, :], (head < c)[:, None] & (column < W)[None, :]


@triton.jit
def _row(table, row, stride, cells, mask, ACC: tl.constexpr):
    """The cells of a row, (HB, WB)."""
    return tl.load(table + row * stride + cells, mask=mask, other=0.0).to(ACC)


@triton.jit
def _rows(table, rows, there, stride, cells, mask, ACC: tl.constexpr):
    """Cells of the rows of entries, (BE, HB, WB); zeros for rows that are not there."""
    at = rows[:, None, None] * stride + cells[None, :, :]
    return tl.load(table + at, mask=there[:, None, None] & mask[None, :, :], other=0.0).to(ACC)


@triton.jit
def _ends(index, first, end, BE: tl.constexpr):
    """The other ends of a block of entries; they are read one block ahead, as their rows wait for them."""
    p = first + tl.arange(0, BE)
    return tl.load(index + p, mask=p < end, other=0).to(tl.int64)


@triton.jit
def _entries(o, place, first, end, others, BE: tl.constexpr):
    """Of a block of entries with the other ends o: their positions in the order of targets, which there are, and which
    of these have an end that there is.
    """
    p = first + tl.arange(0, BE)
    here = p < end
    e = p
    if place is not None:
        e = tl.load(place + p, mask=here, other=0).to(tl.int64)
    return e, here, here & (o >= 0) & (o < others)


@triton.jit
def _block(index, place, entry_rows, o, head, c, first, end, others, BE: tl.constexpr):
    """Of a block of entries with the other ends o: the ends of the next; `_entries`; the rows of their terms, which are
    their positions by target where there is no list of them; and which heads of them there are, (BE, HB).
    """
    after = _ends(index, first + BE, end, BE)
    e, here, there = _entries(o, place, first, end, others, BE)
    at_entry = e
    if entry_rows is not None:
        at_entry = tl.load(entry_rows + e, mask=here, other=0).to(tl.int64)
    return after, e, here, there, at_entry, there[:, None] & (head < c)[None, :]


@triton.jit
def _factors(factor, stride, step, e, known, head, ACC: tl.constexpr):
    """The factors of entries, (BE, HB); ones where there are none. A step to the next head may pass all entries."""
    if factor is None:
        f = tl.full((1, 1), 1.0, ACC)
    else:
        at = e[:, None] * stride + head.to(tl.int64)[None, :] * step
        f = tl.load(factor + at, mask=known, other=0.0).to(ACC)
    return f


@triton.jit
def _features(features, stride, e, there, F: tl.constexpr, FB: tl.constexpr, ACC: tl.constexpr):
    """The features of entries, which are the same for all heads, (BE, 1, FB)."""
    column = tl.arange(0, FB)
    at = e[:, None] * stride + column[None, :]
    return tl.load(features + at, mask=there[:, None] & (column < F)[None, :], other=0.0).to(ACC)[:, None, :]


@triton.jit
def _scores(
    own, projected, other, other_stride, entry, entry_stride, a, o, row, there, cells, mask,
    PRODUCTS: tl.constexpr, PROJECTED: tl.constexpr, ACTIVATION: tl.constexpr, SLOPE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Of a block of entries the terms u, (BE, HB, DB), their activation v, and scores, (BE, HB).

    Of PRODUCTS the terms are those of the other ends. The terms of an entry are in a row of their own. If PROJECTED,
    those of the other ends are `projected`, (BE, HB).
    """
    if PRODUCTS:
        u = _rows(other, o, there, other_stride, cells, mask, ACC)
        v = u
        score = tl.sum(u * own[None, :, :], 2)
    else:
        u = tl.where(there[:, None, None], own[None, :, :], 0.0)
        if PROJECTED:
            u += projected[:, :, None]
        if other is not None:
            u += _rows(other, o, there, other_stride, cells, mask, ACC)
        if entry is not None:
            u += _rows(entry, row, there, entry_stride, cells, mask, ACC)
        v = _activate(u, ACTIVATION, SLOPE)
        score = tl.sum(v * a[None, :, :], 2)
    return u, v, score


@triton.jit
def _vectors(vectors, cells, mask, HB: tl.constexpr, DB: tl.constexpr, ACC: tl.constexpr):
    """What the terms of each head are multiplied by, (HB, DB); ones where there is nothing."""
    if vectors is None:
        a = tl.full((HB, DB), 1.0, ACC)
    else:
        a = tl.load(vectors + cells, mask=mask, other=0.0).to(ACC)
    return a


@triton.jit(do_not_specialize=SIZES)
def forward(
    ptr, index, piece_row, piece_start, rows, pieces, others, split,
    z, z_stride, own, own_stride, other, other_stride, entry, entry_stride, entry_rows, vectors, of_targets,
    factor, factor_stride, factor_step, values, values_stride, features, features_stride, asked, y, stats, summed,
    c: tl.constexpr, W: tl.constexpr, D: tl.constexpr, F: tl.constexpr,
    NORMALISED: tl.constexpr, PRODUCTS: tl.constexpr, ACTIVATION: tl.constexpr, SLOPE: tl.constexpr, ACC: tl.constexpr,
    BE: tl.constexpr, HB: tl.constexpr, WB: tl.constexpr, DB: tl.constexpr, FB: tl.constexpr,
):  # fmt: skip
    """The weighted sums y of each row; and its statistics, (rows, 4 c), of which each head has the first two or three.

    If the weights are NORMALISED, the first two are what is taken off scores, and the inverse of the sum of
    exponentials; of a piece the greatest score and the sum, and its y is not divided. Terms that are inner products of
    rows of z with `vectors`, and at targets with the vectors `of_targets`, are computed where the rows are read; those
    of targets are the third number. The features of entries are `summed` with the same weights; their products with
    what the heads of a row have `asked`, (rows, c F), are added to the scores.
    """
    is_piece, row, out_row, start, end, _row_start = one_row(ptr, piece_row, piece_start, rows, pieces, split)
    head = tl.program_id(1) * HB + tl.arange(0, HB)
    cells, mask = _cells(c, W, HB, WB)
    term_cells, term_mask = _cells(c, D, HB, DB)
    feature_cells, feature_mask = _cells(c, F, HB, FB)
    PROJECTED: tl.constexpr = of_targets is not None
    mine = tl.zeros((HB, DB), ACC)
    if own is not None:
        mine = _row(own, row, own_stride, term_cells, term_mask, ACC)
    if PROJECTED:
        a = _vectors(None, cells, mask, HB, DB, ACC)
        of_source = _vectors(vectors, cells, mask, HB, WB, ACC)
        at_target = tl.sum(_row(z, row, z_stride, cells, mask, ACC) * _vectors(of_targets, cells, mask, HB, WB, ACC), 1)
        mine = at_target[:, None]
    else:
        a = _vectors(vectors, term_cells, term_mask, HB, DB, ACC)
    if asked is not None:
        asks = _row(asked, row, c * F, feature_cells, feature_mask, ACC)
    top = tl.full((HB,), float("-inf"), ACC)
    total = tl.zeros((BE, HB), ACC)
    sums = tl.zeros((BE, HB, WB), ACC)
    feature_sums = tl.zeros((BE, HB, FB), ACC)
    after = _ends(index, start, end, BE)
    for first in range(start, end, BE):
        o = after
        after, e, _, there, at_entry, known = _block(index, None, entry_rows, o, head, c, first, end, others, BE)
        x = _rows(z, o, there, z_stride, cells, mask, ACC)
        projected = 0.0
        if PROJECTED:
            projected = tl.sum(x * of_source[None, :, :], 2)
        _, _, score = _scores(
            mine, projected, other, other_stride, entry, entry_stride, a, o, at_entry, there, term_cells, term_mask,
            PRODUCTS, PROJECTED, ACTIVATION, SLOPE, ACC,
        )  # fmt: skip
        if features is not None:
            z_entry = _features(features, features_stride, e, there, F, FB, ACC)
        if asked is not None:
            score += tl.sum(z_entry * asks[None, :, :], 2)
        weight = tl.where(known, score, 0.0)
        if NORMALISED:
            above = tl.maximum(top, _greatest(tl.where(known, score, float("-inf"))))
            base = _base(above)
            weight = tl.where(known, tl.exp(score - base[None, :]), 0.0)
            scale = tl.where(above > top, tl.exp(top - base), 1.0)
            total = total * scale[None, :] + weight
            sums = sums * scale[None, :, None]
            feature_sums = feature_sums * scale[None, :, None]
            top = above
        weight *= _factors(factor, factor_stride, factor_step, e, known, head, ACC)
        if values is not None:
            x += _rows(values, e, there, values_stride, cells, mask, ACC)
        sums += weight[:, :, None] * x
        if summed is not None:
            feature_sums += weight[:, :, None] * z_entry
    at = out_row * (4 * c) + head * 4
    found, found_features = tl.sum(sums, 0), tl.sum(feature_sums, 0)
    if NORMALISED:
        down = tl.sum(total, 0)
        inverse = 1.0 / tl.where(down == 0.0, 1.0, down)
        divided = tl.where(is_piece, 1.0, inverse)
        found, found_features = found * divided[:, None], found_features * divided[:, None]
        tl.store(stats + at, tl.where(is_piece, top, _base(top)), mask=head < c)
        tl.store(stats + at + 1, tl.where(is_piece, down, inverse), mask=head < c)
    if PROJECTED:
        tl.store(stats + at + 2, at_target, mask=head < c)
    tl.store(y + out_row * (c * W) + cells, found, mask=mask)
    if summed is not None:
        tl.store(summed + out_row * (c * F) + feature_cells, found_features, mask=feature_mask)


@triton.jit(do_not_specialize=SIZES)
def backward(
    ptr, index, place, piece_row, piece_start, rows, pieces, others, split,
    own_rows, own_rows_stride, other_rows, other_rows_stride,
    own, own_stride, other, other_stride, entry, entry_stride, entry_rows, vectors, of_targets,
    factor, factor_stride, factor_step, values, values_stride, features, features_stride, asked, passed, y, stats,
    target_stats, d_targets, d_rows, d_own, d_entry, d_vectors, d_factor, d_values, d_asked, d_features,
    c: tl.constexpr, W: tl.constexpr, D: tl.constexpr, F: tl.constexpr,
    NORMALISED: tl.constexpr, PRODUCTS: tl.constexpr, ACTIVATION: tl.constexpr, SLOPE: tl.constexpr, ACC: tl.constexpr,
    BE: tl.constexpr, HB: tl.constexpr, WB: tl.constexpr, DB: tl.constexpr, FB: tl.constexpr,
    BY_SOURCE: tl.constexpr,
):  # fmt: skip
    """The way back at each target, whose own rows are gradients, or at each source, whose own rows are those of z.

    With w the weight of an entry and f its factor, the gradient of a score is w (f <z, g> - delta), where delta is
    <y, g> of its target; and f <z, g> where weights are not normalised. The pass over targets writes what entries have,
    and the `target_stats` that the one over sources reads, (targets, 4 c): the statistics of each head, and as its
    fourth number delta. Each row has its own part of `d_vectors`, and a program the part of its heads of `d_features`,
    (E, blocks of heads, F). `passed`, (targets, c F), is what multiplies the features of entries in the place of <z,
    g>. Where scores are computed from rows of z, the pass over sources adds the gradients that these have by them;
    `d_targets`, (targets, c), are those of the targets' terms, which are added once for each row.
    """
    _, row, out_row, start, end, row_start = one_row(ptr, piece_row, piece_start, rows, pieces, split)
    head = tl.program_id(1) * HB + tl.arange(0, HB)
    cells, mask = _cells(c, W, HB, WB)
    term_cells, term_mask = _cells(c, D, HB, DB)
    feature_cells, feature_mask = _cells(c, F, HB, FB)
    PROJECTED: tl.constexpr = of_targets is not None
    mine_rows = _row(own_rows, row, own_rows_stride, cells, mask, ACC)
    if not BY_SOURCE:
        if asked is not None:
            asks = _row(asked, row, c * F, feature_cells, feature_mask, ACC)
        if passed is not None:
            passes = _row(passed, row, c * F, feature_cells, feature_mask, ACC)
        at_target = tl.zeros((HB,), ACC)
        own_stats = row * (4 * c) + head * 4
        if PROJECTED:
            at_target = tl.load(stats + own_stats + 2, mask=head < c, other=0.0)
        if NORMALISED:
            top = tl.load(stats + own_stats, mask=head < c, other=0.0)
            inverse = tl.load(stats + own_stats + 1, mask=head < c, other=0.0)
            delta = tl.sum(mine_rows * _row(y, row, c * W, cells, mask, ACC), 1)
            tl.store(target_stats + own_stats, top, mask=head < c)  # by each piece of a row, the same
            tl.store(target_stats + own_stats + 1, inverse, mask=head < c)
            tl.store(target_stats + own_stats + 3, delta, mask=head < c)
            top, inverse, delta = top[None, :], inverse[None, :], delta[None, :]
        if target_stats is not None:
            tl.store(target_stats + own_stats + 2, at_target, mask=head < c)
    mine = tl.zeros((HB, DB), ACC)
    if own is not None:
        mine = _row(own, row, own_stride, term_cells, term_mask, ACC)
    if PROJECTED:
        a = _vectors(None, cells, mask, HB, DB, ACC)
        of_source = _vectors(vectors, cells, mask, HB, WB, ACC)
        if BY_SOURCE:
            mine = tl.sum(mine_rows * of_source, 1)[:, None]
        else:
            mine = at_target[:, None]
    else:
        a = _vectors(vectors, term_cells, term_mask, HB, DB, ACC)
    of_rows = d_rows is not None or d_own is not None or d_vectors is not None or d_asked is not None
    of_entries = d_entry is not None or d_factor is not None or d_values is not None or d_features is not None
    if not (of_rows or of_entries):
        end = start  # the statistics are all that was wanted
    sums = tl.zeros((BE, HB, WB), ACC)
    term_sums = tl.zeros((BE, HB, DB), ACC)
    vector_sums = tl.zeros((BE, HB, DB), ACC)
    asked_sums = tl.zeros((BE, HB, FB), ACC)
    after = _ends(index, start, end, BE)
    for first in range(start, end, BE):
        o = after
        # Of entries that are here, but not there, the gradients are zero.
        after, e, here, there, at_entry, known = _block(index, place, entry_rows, o, head, c, first, end, others, BE)
        theirs = _rows(other_rows, o, there, other_rows_stride, cells, mask, ACC)
        projected = 0.0
        if BY_SOURCE:
            if target_stats is not None:
                top, inverse, at_target, delta = _stats_at(target_stats, o, known, head, c, BE, HB)
                projected = at_target
        elif PROJECTED:
            projected = tl.sum(theirs * of_source[None, :, :], 2)
        u, v, score = _scores(
            mine, projected, other, other_stride, entry, entry_stride, a, o, at_entry, there, term_cells, term_mask,
            PRODUCTS, PROJECTED, ACTIVATION, SLOPE, ACC,
        )  # fmt: skip
        if features is not None:
            z_entry = _features(features, features_stride, e, there, F, FB, ACC)
        if asked is not None:
            if BY_SOURCE:
                score += tl.sum(z_entry * _rows(asked, o, there, c * F, feature_cells, feature_mask, ACC), 2)
            else:
                score += tl.sum(z_entry * asks[None, :, :], 2)
        weight = tl.where(known, score, 0.0)
        if NORMALISED:
            weight = tl.where(known, tl.exp(score - top) * inverse, 0.0)
        f = _factors(factor, factor_stride, factor_step, e, known, head, ACC)
        if BY_SOURCE:
            x = mine_rows[None, :, :]
            g = theirs
        else:
            x = theirs
            g = mine_rows[None, :, :]
        if values is not None:
            x = x + _rows(values, e, there, values_stride, cells, mask, ACC)
        dot = tl.sum(x * g, 2)
        if passed is not None:
            if BY_SOURCE:
                dot += tl.sum(z_entry * _rows(passed, o, there, c * F, feature_cells, feature_mask, ACC), 2)
            else:
                dot += tl.sum(z_entry * passes[None, :, :], 2)
        down = f * dot
        if NORMALISED:
            down = weight * (down - delta)
        down = tl.where(known, down, 0.0)[:, :, None]
        if d_factor is not None:
            at = e[:, None] * c + head[None, :]
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
                d_z_entry += down * asks[None, :, :]
            if passed is not None:
                d_z_entry += weight * passes[None, :, :]
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
    found_terms = tl.sum(term_sums, 0)
    if d_rows is not None:
        found = tl.sum(sums, 0)
        if PROJECTED:
            found += found_terms * of_source
            of_own_target = tl.load(d_targets + row * c + head, mask=head < c, other=0.0)
            once = tl.where(start == row_start, of_own_target, 0.0)  # of pieces, the first
            found += once[:, None] * _vectors(of_targets, cells, mask, HB, WB, ACC)
        tl.store(d_rows + out_row * (c * W) + cells, found, mask=mask)
    if d_own is not None:
        tl.store(d_own + out_row * (c * D) + term_cells, found_terms, mask=term_mask)
    if d_vectors is not None:
        tl.store(d_vectors + out_row * (c * D) + term_cells, tl.sum(vector_sums, 0), mask=term_mask)
    if d_asked is not None:
        tl.store(d_asked + out_row * (c * F) + feature_cells, tl.sum(asked_sums, 0), mask=feature_mask)


@triton.jit
def _stats_at(target_stats, o, known, head, c, BE: tl.constexpr, HB: tl.constexpr):
    """The four numbers of each head of the targets of entries, (BE, HB) each, which are read at once."""
    at = o[:, None, None] * (4 * c) + head[None, :, None] * 4 + tl.arange(0, 4)[None, None, :]
    found = tl.load(target_stats + at, mask=known[:, :, None], other=0.0)
    even, odd = tl.split(tl.reshape(found, (BE, HB, 2, 2)))
    top, at_target = tl.split(even)
    inverse, delta = tl.split(odd)
    return top, inverse, at_target, delta


@triton.jit(do_not_specialize=["rows"])
def combine(
    table, stats, long_rows, rows,
    c: tl.constexpr, W: tl.constexpr, ACC: tl.constexpr, BE: tl.constexpr, HB: tl.constexpr, WB: tl.constexpr,
):  # fmt: skip
    """The sums of the pieces of each long row, which stand behind the rows, in their order; see `forward` for stats."""
    row = tl.load(long_rows + tl.program_id(0) * 3).to(tl.int64)
    start = tl.load(long_rows + tl.program_id(0) * 3 + 1).to(tl.int64)
    end = tl.load(long_rows + tl.program_id(0) * 3 + 2).to(tl.int64)
    head = tl.program_id(1) * HB + tl.arange(0, HB)
    cells, mask = _cells(c, W, HB, WB)
    block = tl.arange(0, BE)
    top = tl.full((HB,), float("-inf"), ACC)
    if stats is not None:
        for p in range(start, end, BE):
            piece = p + block
            at = (rows + piece)[:, None] * (4 * c) + head[None, :] * 4
            known = (piece < end)[:, None] & (head < c)[None, :]
            top = tl.maximum(top, _greatest(tl.load(stats + at, mask=known, other=float("-inf"))))
    base = _base(top)
    total = tl.zeros((BE, HB), ACC)
    sums = tl.zeros((BE, HB, WB), ACC)
    for p in range(start, end, BE):
        piece = p + block
        there = piece < end
        part = _rows(table, rows + piece, there, c * W, cells, mask, ACC)
        if stats is not None:
            at = (rows + piece)[:, None] * (4 * c) + head[None, :] * 4
            known = there[:, None] & (head < c)[None, :]
            scale = tl.exp(tl.load(stats + at, mask=known, other=float("-inf")) - base[None, :])
            total += scale * tl.load(stats + at + 1, mask=known, other=0.0)
            part = scale[:, :, None] * part
        sums += part
    found = tl.sum(sums, 0)
    if stats is not None:
        down = tl.sum(total, 0)
        inverse = 1.0 / tl.where(down == 0.0, 1.0, down)
        found = found * inverse[:, None]
        at_row = row * (4 * c) + head * 4
        tl.store(stats + at_row, base, mask=head < c)
        tl.store(stats + at_row + 1, inverse, mask=head < c)
    tl.store(table + row * (c * W) + cells, found, mask=mask)


@triton.jit(do_not_specialize=SIZES)
def sampled(
    ptr, index, piece_row, piece_start, rows, pieces, others, split, x, y, out,
    W: tl.constexpr, ACC: tl.constexpr, BE: tl.constexpr, WB: tl.constexpr,
):  # fmt: skip
    """Of each entry the inner product of two rows, however wide: x of its other end, and y of its own."""
    _, row, _, start, end, _ = one_row(ptr, piece_row, piece_start, rows, pieces, split)
    after = _ends(index, start, end, BE)
    for first in range(start, end, BE):
        o = after
        after = _ends(index, first + BE, end, BE)
        e, here, there = _entries(o, None, first, end, others, BE)
        sums = tl.zeros((BE, WB), ACC)
        for w in range(0, W, WB):
            column = w + tl.arange(0, WB)
            mine = tl.load(y + row * W + column, mask=column < W, other=0.0).to(ACC)
            known = there[:, None] & (column < W)[None, :]
            theirs = tl.load(x + o[:, None] * W + column[None, :], mask=known, other=0.0).to(ACC)
            sums += mine[None, :] * theirs
        tl.store(out + e, tl.sum(sums, 1), mask=here)
