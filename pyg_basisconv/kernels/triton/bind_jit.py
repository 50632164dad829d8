"""The kernels in Triton that bind a graph: what is left of it once its edges are sorted."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["entries", "groups", "steps"])
def compressed(keys, order, other, ptr, index, by_group, entries, groups, steps, B: tl.constexpr):
    """Of entries sorted by group, and the order that sorted them: where each group begins, and the entries' other ends.

    keys: (E,) the groups, ascending. ptr: (groups + 1,), found by halving what is left of the entries `steps` times.
    by_group: the order, in the dtype of ptr.
    """
    at = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    there = at < entries
    entry = tl.load(order + at, mask=there, other=0).to(tl.int64)
    tl.store(index + at, tl.load(other + entry, mask=there, other=0), mask=there)
    tl.store(by_group + at, entry, mask=there)
    low = tl.zeros_like(at)
    high = low + entries
    for _ in range(steps):
        middle = (low + high) // 2
        between = middle < high
        below = between & (tl.load(keys + middle, mask=between, other=0).to(tl.int64) < at)
        low = tl.where(below, middle + 1, low)
        high = tl.where(below, high, middle)
    tl.store(ptr + at, low, mask=at <= groups)


@triton.jit
def _power(degrees, node, there, count, ROOT: tl.constexpr, ACC: tl.constexpr):
    """1 over the degrees of nodes, or over their square roots; 0 where a degree is 0, and for a node out of range."""
    if degrees is None:
        found = tl.full((1,), 1.0, ACC)
    else:
        d = tl.load(degrees + node, mask=there & (node >= 0) & (node < count), other=0).to(ACC)
        root = d
        if ROOT:
            root = tl.sqrt(d)
        found = tl.where(d == 0.0, 0.0, 1.0 / tl.where(d == 0.0, 1.0, root))
    return found


@triton.jit(do_not_specialize=["entries", "sources", "targets"])
def over_degrees(
    source, target, weight, out, into, result, entries, sources, targets,
    ROOT: tl.constexpr, ACC: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """The weights of entries, or ones, over the degrees of their ends, or over the square roots of these."""
    at = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    there = at < entries
    total = tl.full((1,), 1.0, ACC)
    if weight is not None:
        total = tl.load(weight + at, mask=there, other=0.0).to(ACC)
    m = tl.load(source + at, mask=there, other=0).to(tl.int64)
    n = tl.load(target + at, mask=there, other=0).to(tl.int64)
    total = total * _power(out, m, there, sources, ROOT, ACC) * _power(into, n, there, targets, ROOT, ACC)
    tl.store(result + at, total, mask=there)
