"""The kernels in Triton that multiply rows in groups, each group with a matrix of its own: one launch for all groups.

A program has a group of rows, or a piece of one that is long, and a block of the columns of its matrix. Its sums are
made in the order of its rows, and nothing is added to memory that other programs write to.

Letters: G blocks on the diagonal of a matrix, (P, Q) each; RB rows, PB and QB columns at a time; all masked.
"""

import triton
import triton.language as tl

from .rows_jit import SIZES, one_row


@triton.jit
def _at_nodes(index, r, there, batch, others):
    """Which row of a table each row is, where a node has `batch` rows in the table, and which of them there are."""
    node = tl.load(index + r // batch, mask=there, other=0).to(tl.int64)
    return node * batch + r % batch, there & (node >= 0) & (node < others)


@triton.jit
def _cut(table, rows, there, stride, columns, width):
    """Some columns of some rows, zeros where there are none."""
    mask = there[:, None] & (columns < width)[None, :]
    return tl.load(table + rows[:, None] * stride + columns[None, :], mask=mask, other=0.0)


@triton.jit(do_not_specialize=SIZES)
def multiplied(
    ptr, index, kind, piece_row, piece_start, rows, pieces, others, split, batch, table, weight,
    k_stride, g_stride, p_stride, q_stride, out,
    GATHERED: tl.constexpr, G: tl.constexpr, P: tl.constexpr, Q: tl.constexpr,
    PRECISION: tl.constexpr, ACC: tl.constexpr, RB: tl.constexpr, PB: tl.constexpr, QB: tl.constexpr,
):  # fmt: skip
    """Rows, (t B, G P), with the blocks of the matrices of their groups, (K, G, P, Q): (t B, G Q)."""
    _, row, _, start, end, _ = one_row(ptr, piece_row, piece_start, rows, pieces, split)
    g = tl.program_id(1).to(tl.int64) // tl.cdiv(Q, QB)
    q = (tl.program_id(1) % tl.cdiv(Q, QB) * QB + tl.arange(0, QB)).to(tl.int64)
    matrix = weight + tl.load(kind + row).to(tl.int64) * k_stride + g * g_stride
    for first in range(start * batch, end * batch, RB):
        r = first + tl.arange(0, RB)
        there = r < end * batch
        read, known = r, there
        if GATHERED:
            read, known = _at_nodes(index, r, there, batch, others)
        sums = tl.zeros((RB, QB), ACC)
        for column in range(0, P, PB):
            p = (column + tl.arange(0, PB)).to(tl.int64)
            a = _cut(table + g * P, read, known, G * P, p, P)
            at = p[:, None] * p_stride + q[None, :] * q_stride
            b = tl.load(matrix + at, mask=(p < P)[:, None] & (q < Q)[None, :], other=0.0)
            sums = tl.dot(a, b, sums, input_precision=PRECISION, out_dtype=ACC)
        at = r[:, None] * (G * Q) + g * Q + q[None, :]
        tl.store(out + at, sums, mask=there[:, None] & (q < Q)[None, :])


@triton.jit(do_not_specialize=SIZES)
def outer(
    ptr, index, piece_row, piece_start, rows, pieces, others, split, batch, x, z, out,
    G: tl.constexpr, P: tl.constexpr, Q: tl.constexpr,
    PRECISION: tl.constexpr, ACC: tl.constexpr, RB: tl.constexpr, PB: tl.constexpr, QB: tl.constexpr,
):  # fmt: skip
    """x^T z of each group: its rows x, (t B, G P), and those of z, (N B, G Q), at their nodes; (groups, G, P, Q)."""
    _, _, out_row, start, end, _ = one_row(ptr, piece_row, piece_start, rows, pieces, split)
    block = tl.program_id(1) // tl.cdiv(Q, QB)
    g = block.to(tl.int64) // tl.cdiv(P, PB)
    p = (block % tl.cdiv(P, PB) * PB + tl.arange(0, PB)).to(tl.int64)
    q = (tl.program_id(1) % tl.cdiv(Q, QB) * QB + tl.arange(0, QB)).to(tl.int64)
    sums = tl.zeros((PB, QB), ACC)
    for first in range(start * batch, end * batch, RB):
        r = first + tl.arange(0, RB)
        there = r < end * batch
        at, known = _at_nodes(index, r, there, batch, others)
        a = _cut(x + g * P, r, there, G * P, p, P)
        b = _cut(z + g * Q, at, known, G * Q, q, Q)
        sums = tl.dot(tl.trans(a), b, sums, input_precision=PRECISION, out_dtype=ACC)
    at = (out_row * G + g) * (P * Q) + p[:, None] * Q + q[None, :]
    tl.store(out + at, sums, mask=(p < P)[:, None] & (q < Q)[None, :])
