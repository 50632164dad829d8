"""Most kernels in Triton: one forward pass and one backward pass for all forms of attention, gates, sparse products.

A program has some heads of some rows; see `rows_jit`. Entries are visited in blocks; sums are held entry by entry of a
block, and added up at the end, so that their order is fixed. Nothing is added to memory. Rows and entries are numbered
in int64: offsets exceed int32.

Letters: L lanes, BE entries of a lane's block, HB heads, WB columns of a row's head, DB of a term's head, FB features
of an entry; all powers of two, masked.
"""

import triton
import triton.language as tl

from .rows_jit import SIZES, lanes


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
    """Of each lane and head; what is no number is passed over here, and spoils the sums."""
    return tl.max(tl.where(score == score, score, float("-inf")), 1)


@triton.jit
def _added(sums, shared):
    """The sums of the entries of each lane, (L, BE, ...), added up; those of all lanes where they share a row."""
    found = tl.sum(sums, 1)
    return tl.where(shared, tl.sum(found, 0)[None], found)


@triton.jit
def _cells(c, W, HB: tl.constexpr, WB: tl.constexpr):
    """The columns of this program's heads in a row, (HB, WB), and which of them there are."""
    head = tl.program_id(1) * HB + tl.arange(0, HB)
    column = tl.arange(0, WB)
    return head[:, None] * W + column[None, :], (head < c)[:, None] & (column < W)[None, :]


@triton.jit
def _row(table, row, stride, cells, mask, writes, ACC: tl.constexpr):
    """The cells of the rows of lanes, (L, 1, HB, WB)."""
    at = row[:, None, None] * stride + cells[None, :, :]
    return tl.load(table + at, mask=writes[:, None, None] & mask[None, :, :], other=0.0).to(ACC)[:, None, :, :]


@triton.jit
def _rows(table, rows, there, stride, cells, mask, ACC: tl.constexpr):
    """Cells of the rows of entries, (L, BE, HB, WB); zeros for rows that are not there."""
    at = rows[:, :, None, None] * stride + cells[None, None, :, :]
    return tl.load(table + at, mask=there[:, :, None, None] & mask[None, None, :, :], other=0.0).to(ACC)


@triton.jit
def _ends(index, start, end, BE: tl.constexpr):
    """The other ends of a block of entries of each lane; they are read one block ahead, as their rows wait for them."""
    p = start[:, None] + tl.arange(0, BE)[None, :]
    return tl.load(index + p, mask=p < end[:, None], other=0).to(tl.int64)


@triton.jit
def _entries(o, place, start, end, others, BE: tl.constexpr):
    """Of a block of entries of each lane with the other ends o: their positions in the order of targets, which there
    are, and which of these have an end that there is.
    """
    p = start[:, None] + tl.arange(0, BE)[None, :]
    here = p < end[:, None]
    e = p
    if place is not None:
        e = tl.load(place + p, mask=here, other=0).to(tl.int64)
    return e, here, here & (o >= 0) & (o < others)


@triton.jit
def _rows_of_terms(entry_rows, e, there):
    """The rows of the terms of entries, which are their positions by target where there is no list of them."""
    row = e
    if entry_rows is not None:
        row = tl.load(entry_rows + e, mask=there, other=0).to(tl.int64)
    return row


@triton.jit
def _factors(factor, stride, step, e, known, head, ACC: tl.constexpr):
    """The factors of entries, (L, BE, HB); ones where there are none. A step to the next head may pass all entries."""
    if factor is None:
        f = tl.full((1, 1, 1), 1.0, ACC)
    else:
        at = e[:, :, None] * stride + head.to(tl.int64)[None, None, :] * step
        f = tl.load(factor + at, mask=known, other=0.0).to(ACC)
    return f


@triton.jit
def _features(features, stride, e, there, F: tl.constexpr, FB: tl.constexpr, ACC: tl.constexpr):
    """The features of entries, which are the same for all heads, (L, BE, 1, FB)."""
    column = tl.arange(0, FB)
    known = there[:, :, None] & (column < F)[None, None, :]
    at = e[:, :, None] * stride + column[None, None, :]
    return tl.load(features + at, mask=known, other=0.0).to(ACC)[:, :, None, :]


@triton.jit
def _scores(
    own, projected, other, other_stride, entry, entry_stride, a, o, row, there, cells, mask,
    PRODUCTS: tl.constexpr, PROJECTED: tl.constexpr, ACTIVATION: tl.constexpr, SLOPE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Of a block of entries the terms u, (L, BE, HB, DB), their activation v, and scores, (L, BE, HB).

    Of PRODUCTS the terms are those of the other ends. The terms of an entry are in a row of their own. If PROJECTED,
    those of the other ends are `projected`, (L, BE, HB).
    """
    if PRODUCTS:
        u = _rows(other, o, there, other_stride, cells, mask, ACC)
        v = u
        score = tl.sum(u * own, 3)
    else:
        u = tl.where(there[:, :, None, None], own, 0.0)
        if PROJECTED:
            u += projected[:, :, :, None]
        if other is not None:
            u += _rows(other, o, there, other_stride, cells, mask, ACC)
        if entry is not None:
            u += _rows(entry, row, there, entry_stride, cells, mask, ACC)
        v = _activate(u, ACTIVATION, SLOPE)
        score = tl.sum(v * a, 3)
    return u, v, score


@triton.jit
def _vectors(vectors, cells, mask, HB: tl.constexpr, DB: tl.constexpr, ACC: tl.constexpr):
    """What the terms of each head are multiplied by, (1, 1, HB, DB); ones where there is nothing."""
    if vectors is None:
        a = tl.full((1, 1, HB, DB), 1.0, ACC)
    else:
        a = tl.load(vectors + cells, mask=mask, other=0.0).to(ACC)[None, None, :, :]
    return a


@triton.jit(do_not_specialize=SIZES)
def forward(
    ptr, index, order, piece_row, piece_start, rows, alone, pieces, others, split,
    z, z_stride, own, own_stride, other, other_stride, entry, entry_stride, entry_rows, vectors, of_targets,
    factor, factor_stride, factor_step, values, values_stride, features, features_stride, asked, y, stats, summed,
    c: tl.constexpr, W: tl.constexpr, D: tl.constexpr, F: tl.constexpr,
    NORMALISED: tl.constexpr, PRODUCTS: tl.constexpr, ACTIVATION: tl.constexpr, SLOPE: tl.constexpr, ACC: tl.constexpr,
    L: tl.constexpr, BE: tl.constexpr, HB: tl.constexpr, WB: tl.constexpr, DB: tl.constexpr, FB: tl.constexpr,
):  # fmt: skip
    """The weighted sums y of each row; and its statistics, of which each head has two or three numbers.

    If the weights are NORMALISED, the first two are what is taken off scores, and the inverse of the sum of
    exponentials; of a piece the greatest score and the sum, and its y is not divided. Terms that are inner products of
    rows of z with `vectors`, and at targets with the vectors `of_targets`, are computed where the rows are read; those
    of targets are the third number. The features of entries are `summed` with the same weights; their products with
    what the heads of a row have `asked`, (rows, c F), are added to the scores.
    """
    shared, whole, row, out_row, reads, writes, start, end, span, step = lanes(
        ptr, order, piece_row, piece_start, rows, alone, pieces, split, L, BE
    )
    head = tl.program_id(1) * HB + tl.arange(0, HB)
    cells, mask = _cells(c, W, HB, WB)
    term_cells, term_mask = _cells(c, D, HB, DB)
    feature_cells, feature_mask = _cells(c, F, HB, FB)
    PROJECTED: tl.constexpr = of_targets is not None
    mine = tl.zeros((L, 1, HB, DB), ACC)
    if own is not None:
        mine = _row(own, row, own_stride, term_cells, term_mask, reads, ACC)
    if PROJECTED:
        a = _vectors(None, cells, mask, HB, DB, ACC)
        of_source = _vectors(vectors, cells, mask, HB, WB, ACC)
        of_target = _vectors(of_targets, cells, mask, HB, WB, ACC)
        at_target = tl.sum(_row(z, row, z_stride, cells, mask, reads, ACC) * of_target, 3)  # (L, 1, HB)
        mine = at_target[:, :, :, None]
    else:
        a = _vectors(vectors, term_cells, term_mask, HB, DB, ACC)
    if asked is not None:
        asks = _row(asked, row, c * F, feature_cells, feature_mask, reads, ACC)
    top = tl.full((L, HB), float("-inf"), ACC)
    total = tl.zeros((L, BE, HB), ACC)
    sums = tl.zeros((L, BE, HB, WB), ACC)
    feature_sums = tl.zeros((L, BE, HB, FB), ACC)
    after = _ends(index, start, end, BE)
    for gone in range(0, span, step):
        o = after
        after = _ends(index, start + gone + step, end, BE)
        e, _, there = _entries(o, None, start + gone, end, others, BE)
        at_entry = _rows_of_terms(entry_rows, e, there)
        known = there[:, :, None] & (head < c)[None, None, :]
        x = _rows(z, o, there, z_stride, cells, mask, ACC)
        projected = 0.0
        if PROJECTED:
            projected = tl.sum(x * of_source, 3)
        _, _, score = _scores(
            mine, projected, other, other_stride, entry, entry_stride, a, o, at_entry, there, term_cells, term_mask,
            PRODUCTS, PROJECTED, ACTIVATION, SLOPE, ACC,
        )  # fmt: skip
        if features is not None:
            z_entry = _features(features, features_stride, e, there, F, FB, ACC)
        if asked is not None:
            score += tl.sum(z_entry * asks, 3)
        weight = tl.where(known, score, 0.0)
        if NORMALISED:
            above = tl.maximum(top, _greatest(tl.where(known, score, float("-inf"))))
            base = _base(above)
            weight = tl.where(known, tl.exp(score - base[:, None, :]), 0.0)
            scale = tl.where(above > top, tl.exp(top - base), 1.0)
            total = total * scale[:, None, :] + weight
            sums = sums * scale[:, None, :, None]
            feature_sums = feature_sums * scale[:, None, :, None]
            top = above
        weight *= _factors(factor, factor_stride, factor_step, e, known, head, ACC)
        if values is not None:
            x += _rows(values, e, there, values_stride, cells, mask, ACC)
        sums += weight[:, :, :, None] * x
        if summed is not None:
            feature_sums += weight[:, :, :, None] * z_entry
    S: tl.constexpr = 3 if PROJECTED else 2
    at = out_row[:, None] * (S * c) + head[None, :]
    known_heads = writes[:, None] & (head < c)[None, :]
    if NORMALISED:
        above = tl.where(shared, tl.max(top, 0)[None, :], top)
        base = _base(above)
        scale = tl.where(above > top, tl.exp(top - base), 1.0)
        down = _added(total * scale[:, None, :], shared)
        found = _added(sums * scale[:, None, :, None], shared)
        found_features = _added(feature_sums * scale[:, None, :, None], shared)
        inverse = 1.0 / tl.where(down == 0.0, 1.0, down)
        if piece_row is not None:
            base = tl.where(whole, base, above)
            found = tl.where(whole, found * inverse[:, :, None], found)
            found_features = tl.where(whole, found_features * inverse[:, :, None], found_features)
            inverse = tl.where(whole, inverse, down)
        else:
            found = found * inverse[:, :, None]
            found_features = found_features * inverse[:, :, None]
        tl.store(stats + at, base, mask=known_heads)
        tl.store(stats + at + c, inverse, mask=known_heads)
    else:
        found = _added(sums, shared)
        found_features = _added(feature_sums, shared)
    if PROJECTED:
        tl.store(stats + at + 2 * c, tl.sum(at_target, 1), mask=known_heads)
    _write(y, out_row, c * W, cells, mask, writes, found)
    if summed is not None:
        _write(summed, out_row, c * F, feature_cells, feature_mask, writes, found_features)


@triton.jit
def _write(table, out_row, stride, cells, mask, writes, found):
    """Writes the cells of the rows of lanes, (L, HB, WB)."""
    at = out_row[:, None, None] * stride + cells[None, :, :]
    tl.store(table + at, found, mask=writes[:, None, None] & mask[None, :, :])


@triton.jit(do_not_specialize=SIZES)
def backward(
    ptr, index, place, order, piece_row, piece_start, rows, alone, pieces, others, split,
    own_rows, own_rows_stride, other_rows, other_rows_stride,
    own, own_stride, other, other_stride, entry, entry_stride, entry_rows, vectors, of_targets,
    factor, factor_stride, factor_step, values, values_stride, features, features_stride, asked, passed, y, stats,
    delta, d_targets, d_rows, d_own, d_entry, d_vectors, d_factor, d_values, d_asked, d_features,
    c: tl.constexpr, W: tl.constexpr, D: tl.constexpr, F: tl.constexpr,
    NORMALISED: tl.constexpr, PRODUCTS: tl.constexpr, ACTIVATION: tl.constexpr, SLOPE: tl.constexpr, ACC: tl.constexpr,
    L: tl.constexpr, BE: tl.constexpr, HB: tl.constexpr, WB: tl.constexpr, DB: tl.constexpr, FB: tl.constexpr,
    BY_SOURCE: tl.constexpr,
):  # fmt: skip
    """The way back at each target, whose own rows are gradients, or at each source, whose own rows are those of z.

    With w the weight of an entry and f its factor, the gradient of a score is w (f <z, g> - delta), where delta is
    <y, g> of its target; and f <z, g> where weights are not normalised. The pass over targets writes delta for the
    one over sources, and what entries have. Each row has its own part of `d_vectors`, and a program the part of its
    heads of `d_features`, (E, blocks of heads, F). `passed`, (targets, c F), is what multiplies the features of entries
    in the place of <z, g>. Where terms are inner products with rows of z, the pass over sources adds to the gradients
    of these what comes by the terms, of which `d_targets`, (targets, c), are the gradients at targets.
    """
    shared, _, row, out_row, reads, writes, start, end, span, step = lanes(
        ptr, order, piece_row, piece_start, rows, alone, pieces, split, L, BE
    )
    head = tl.program_id(1) * HB + tl.arange(0, HB)
    cells, mask = _cells(c, W, HB, WB)
    term_cells, term_mask = _cells(c, D, HB, DB)
    PROJECTED: tl.constexpr = of_targets is not None
    S: tl.constexpr = 3 if PROJECTED else 2
    known_heads = reads[:, None] & (head < c)[None, :]
    own_stats = row[:, None] * (S * c) + head[None, :]
    mine_rows = _row(own_rows, row, own_rows_stride, cells, mask, reads, ACC)
    mine = tl.zeros((L, 1, HB, DB), ACC)
    if own is not None:
        mine = _row(own, row, own_stride, term_cells, term_mask, reads, ACC)
    if PROJECTED:
        a = _vectors(None, cells, mask, HB, DB, ACC)
        of_source = _vectors(vectors, cells, mask, HB, WB, ACC)
        of_target = _vectors(of_targets, cells, mask, HB, WB, ACC)
        if BY_SOURCE:
            mine = tl.sum(mine_rows * of_source, 3)[:, :, :, None]
        else:
            mine = tl.load(stats + own_stats + 2 * c, mask=known_heads, other=0.0)[:, None, :, None]
    else:
        a = _vectors(vectors, term_cells, term_mask, HB, DB, ACC)
    feature_cells, feature_mask = _cells(c, F, HB, FB)
    if not BY_SOURCE:
        if asked is not None:
            asks = _row(asked, row, c * F, feature_cells, feature_mask, reads, ACC)
        if passed is not None:
            passes = _row(passed, row, c * F, feature_cells, feature_mask, reads, ACC)
    if NORMALISED and not BY_SOURCE:
        top = tl.load(stats + own_stats, mask=known_heads, other=0.0)[:, None, :]
        inverse = tl.load(stats + own_stats + c, mask=known_heads, other=0.0)[:, None, :]
        mean = tl.sum(mine_rows * _row(y, row, c * W, cells, mask, reads, ACC), 3)  # (L, 1, HB)
        own_delta = row[:, None, None] * c + head[None, None, :]
        tl.store(delta + own_delta, mean, mask=(writes & (out_row < rows))[:, None, None] & (head < c)[None, None, :])
    of_rows = d_rows is not None or d_own is not None or d_vectors is not None or d_asked is not None
    of_entries = d_entry is not None or d_factor is not None or d_values is not None or d_features is not None
    if not (of_rows or of_entries):
        span = span * 0  # delta is all that was wanted
    sums = tl.zeros((L, BE, HB, WB), ACC)
    term_sums = tl.zeros((L, BE, HB, DB), ACC)
    vector_sums = tl.zeros((L, BE, HB, DB), ACC)
    asked_sums = tl.zeros((L, BE, HB, FB), ACC)
    after = _ends(index, start, end, BE)
    for gone in range(0, span, step):
        o = after
        after = _ends(index, start + gone + step, end, BE)
        # Of entries that are here, but not there, the gradients are zero.
        e, here, there = _entries(o, place, start + gone, end, others, BE)
        at_entry = _rows_of_terms(entry_rows, e, here)
        known = there[:, :, None] & (head < c)[None, None, :]
        at_stats = o[:, :, None] * (S * c) + head[None, None, :]
        theirs = _rows(other_rows, o, there, other_rows_stride, cells, mask, ACC)
        projected = 0.0
        if PROJECTED:
            if BY_SOURCE:
                projected = tl.load(stats + at_stats + 2 * c, mask=known, other=0.0)
            else:
                projected = tl.sum(theirs * of_source, 3)
        u, v, score = _scores(
            mine, projected, other, other_stride, entry, entry_stride, a, o, at_entry, there, term_cells, term_mask,
            PRODUCTS, PROJECTED, ACTIVATION, SLOPE, ACC,
        )  # fmt: skip
        if features is not None:
            z_entry = _features(features, features_stride, e, there, F, FB, ACC)
        if asked is not None:
            if BY_SOURCE:
                asks = _rows(asked, o, there, c * F, feature_cells, feature_mask, ACC)
            score += tl.sum(z_entry * asks, 3)
        weight = tl.where(known, score, 0.0)
        if NORMALISED:
            if BY_SOURCE:
                top = tl.load(stats + at_stats, mask=known, other=0.0)
                inverse = tl.load(stats + at_stats + c, mask=known, other=0.0)
                mean = tl.load(delta + o[:, :, None] * c + head[None, None, :], mask=known, other=0.0)
            weight = tl.where(known, tl.exp(score - top) * inverse, 0.0)
        f = _factors(factor, factor_stride, factor_step, e, known, head, ACC)
        x = theirs
        g = mine_rows
        if BY_SOURCE:
            x = mine_rows
            g = theirs
        if values is not None:
            x = x + _rows(values, e, there, values_stride, cells, mask, ACC)
        dot = tl.sum(x * g, 3)
        if passed is not None:
            if BY_SOURCE:
                passes = _rows(passed, o, there, c * F, feature_cells, feature_mask, ACC)
            dot += tl.sum(z_entry * passes, 3)
        down = f * dot
        if NORMALISED:
            down = weight * (down - mean)
        down = tl.where(known, down, 0.0)[:, :, :, None]
        at = e[:, :, None] * c + head[None, None, :]
        if d_factor is not None:
            tl.store(d_factor + at, weight * dot, mask=here[:, :, None] & (head < c)[None, None, :])
        weight = (weight * f)[:, :, :, None]
        if d_values is not None:
            at_cells = e[:, :, None, None] * (c * W) + cells[None, None, :, :]
            tl.store(d_values + at_cells, weight * g, mask=here[:, :, None, None] & mask[None, None, :, :])
        if d_rows is not None:
            sums += weight * theirs
        if d_asked is not None:
            asked_sums += down * z_entry
        if d_features is not None:
            d_z_entry = tl.zeros((L, BE, HB, FB), ACC)
            if asked is not None:
                d_z_entry += down * asks
            if passed is not None:
                d_z_entry += weight * passes
            column = tl.arange(0, FB)
            at_features = (e * tl.num_programs(1) + tl.program_id(1))[:, :, None] * F + column[None, None, :]
            known_features = here[:, :, None] & (column < F)[None, None, :]
            tl.store(d_features + at_features, tl.sum(d_z_entry, 2), mask=known_features)
        if d_vectors is not None:
            vector_sums += down * v
        if PRODUCTS:
            term_sums += down * u
        else:
            d_u = down * a * _derivative(u, v, ACTIVATION, SLOPE)
            d_u = tl.where(there[:, :, None, None], d_u, 0.0)
            if d_entry is not None:
                at_terms = at_entry[:, :, None, None] * (c * D) + term_cells[None, None, :, :]
                tl.store(d_entry + at_terms, d_u, mask=here[:, :, None, None] & term_mask[None, None, :, :])
            term_sums += d_u
    found_terms = _added(term_sums, shared)
    if d_rows is not None:
        found = _added(sums, shared)
        if PROJECTED:
            found += found_terms * tl.sum(of_source, 1)
            once = writes & (start == tl.load(ptr + row, mask=reads, other=0).to(tl.int64))  # of pieces, the first
            at = row[:, None] * c + head[None, :]
            of_own_target = tl.load(d_targets + at, mask=once[:, None] & (head < c)[None, :], other=0.0)
            found += of_own_target[:, :, None] * tl.sum(of_target, 1)
        _write(d_rows, out_row, c * W, cells, mask, writes, found)
    if d_own is not None:
        _write(d_own, out_row, c * D, term_cells, term_mask, writes, found_terms)
    if d_vectors is not None:
        _write(d_vectors, out_row, c * D, term_cells, term_mask, writes, _added(vector_sums, shared))
    if d_asked is not None:
        _write(d_asked, out_row, c * F, feature_cells, feature_mask, writes, _added(asked_sums, shared))


@triton.jit(do_not_specialize=["rows"])
def combine(
    table, stats, long_rows, rows,
    c: tl.constexpr, W: tl.constexpr, S: tl.constexpr, ACC: tl.constexpr,
    L: tl.constexpr, BE: tl.constexpr, HB: tl.constexpr, WB: tl.constexpr,
):  # fmt: skip
    """The sums of the pieces of each long row, which stand behind the rows, in their order; see `forward` for stats."""
    row = tl.load(long_rows + tl.program_id(0) * 3).to(tl.int64)
    start = tl.load(long_rows + tl.program_id(0) * 3 + 1).to(tl.int64)
    end = tl.load(long_rows + tl.program_id(0) * 3 + 2).to(tl.int64)
    head = tl.program_id(1) * HB + tl.arange(0, HB)
    cells, mask = _cells(c, W, HB, WB)
    block = tl.arange(0, L)[:, None] * BE + tl.arange(0, BE)[None, :]
    top = tl.full((L, HB), float("-inf"), ACC)
    if stats is not None:
        for p in range(start, end, L * BE):
            piece = p + block
            at = (rows + piece)[:, :, None] * (S * c) + head[None, None, :]
            known = (piece < end)[:, :, None] & (head < c)[None, None, :]
            top = tl.maximum(top, _greatest(tl.load(stats + at, mask=known, other=float("-inf"))))
    base = _base(tl.max(top, 0))[None, None, :]
    total = tl.zeros((L, BE, HB), ACC)
    sums = tl.zeros((L, BE, HB, WB), ACC)
    for p in range(start, end, L * BE):
        piece = p + block
        there = piece < end
        part = _rows(table, rows + piece, there, c * W, cells, mask, ACC)
        if stats is not None:
            at = (rows + piece)[:, :, None] * (S * c) + head[None, None, :]
            known = there[:, :, None] & (head < c)[None, None, :]
            scale = tl.exp(tl.load(stats + at, mask=known, other=float("-inf")) - base)
            total += scale * tl.load(stats + at + c, mask=known, other=0.0)
            part = scale[:, :, :, None] * part
        sums += part
    found = tl.sum(tl.sum(sums, 1), 0)
    if stats is not None:
        down = tl.sum(tl.sum(total, 1), 0)
        inverse = 1.0 / tl.where(down == 0.0, 1.0, down)
        found = found * inverse[:, None]
        tl.store(stats + row * (S * c) + head, tl.sum(tl.sum(base, 0), 0), mask=head < c)
        tl.store(stats + row * (S * c) + c + head, inverse, mask=head < c)
    tl.store(table + row * (c * W) + cells, found, mask=mask)


@triton.jit(do_not_specialize=SIZES)
def sampled(
    ptr, index, order, piece_row, piece_start, rows, alone, pieces, others, split, x, y, out,
    W: tl.constexpr, ACC: tl.constexpr, L: tl.constexpr, BE: tl.constexpr, WB: tl.constexpr,
):  # fmt: skip
    """Of each entry the inner product of two rows, however wide: x of its other end, and y of its own."""
    _, _, row, _, reads, _, start, end, span, step = lanes(
        ptr, order, piece_row, piece_start, rows, alone, pieces, split, L, BE
    )
    after = _ends(index, start, end, BE)
    for gone in range(0, span, step):
        o = after
        after = _ends(index, start + gone + step, end, BE)
        e, here, there = _entries(o, None, start + gone, end, others, BE)
        sums = tl.zeros((L, BE, WB), ACC)
        for w in range(0, W, WB):
            column = (w + tl.arange(0, WB))[None, :]
            mine = tl.load(y + row[:, None] * W + column, mask=reads[:, None] & (column < W), other=0.0).to(ACC)
            known = there[:, :, None] & (column < W)[:, None, :]
            theirs = tl.load(x + o[:, :, None] * W + column[:, None, :], mask=known, other=0.0).to(ACC)
            sums += mine[:, None, :] * theirs
        tl.store(out + e, tl.sum(sums, 2), mask=here)
