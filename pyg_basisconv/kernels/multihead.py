"""Several matrices with one pattern, such as the heads of attention: one operation for all of them.

Tensors of c heads are (c, G), with a number for each source, target or entry, or (c, G, W). The memory layout (G, c W)
is the fastest: one gathered row then holds the values of all heads, without a copy. Entries are sorted by target.
"""

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from ..cache import drop_oldest, memo
from ..portable import in_fake_mode, with_plain
from .op import Backward, Grads, acc_dtype, autocasting, recorded
from .pattern import End, Pattern
from .products import sddmm, sddmm_raw, spmm, spmm_raw, spmm_rows
from .segments import collect, exponentials

# Numbers of gathered rows that may be stored; beyond, heads are evaluated one by one by a kernel that stores none.
HELD = 1 << 20
_BROAD = 16  # channels per head from which on its weight is broadcast, and not repeated
_SMALL = 1 << 14  # numbers in a constant that is cached
_LIMIT = 32  # constants that are cached
_CONSTANTS: dict[Hashable, Tensor] = {}


def to_rows(t: Tensor) -> Tensor:
    """(c, G) -> (G, c), or (c, *, G, W) -> (*, G, c W); a view if the memory has this layout."""
    if t.dim() == 2:
        return t.t()
    return (t.transpose(0, 1) if t.dim() == 3 else t.movedim(0, -2)).flatten(-2)


def to_heads(t: Tensor, c: int) -> Tensor:
    """(*, G, c W) -> (c, *, G, W), a view."""
    *lead, width = t.shape
    t = t.view(*lead, c, width // c)
    return t.transpose(0, 1) if len(lead) == 1 else t.movedim(-2, 0)


def gather_sums(table: Tensor, index: Tensor, ptr: Tensor) -> Tensor:
    """For each group of indices the sum of these rows of a table, in a fixed order of summation."""
    if table.dtype == torch.float32:  # without the ways to a derivative, which no caller takes
        return spmm_rows(table, None, ptr, index)
    return spmm_raw(table, None, None, [ptr, index])


def segment_sums(table: Tensor, ptr: Tensor) -> Tensor:
    """The sums of consecutive rows, from ptr[g] to ptr[g + 1]."""
    count = table.shape[0]

    def build() -> Tensor:
        return torch.arange(count, dtype=ptr.dtype, device=ptr.device)

    return gather_sums(table, _constant("numbers", count, ptr, build) if count <= _SMALL else build(), ptr)


def _constant(name: str, size: Hashable, like: Tensor, build: Callable[[], Tensor]) -> Tensor:
    """A small constant tensor that depends on a size alone; the most recent ones are cached."""
    if type(like) is not Tensor:
        return build()
    key = name, size, like.dtype, like.device
    found = _CONSTANTS.get(key)
    if found is None:
        found = build() if in_fake_mode() else memo(_CONSTANTS, key, build)
        drop_oldest(_CONSTANTS, _LIMIT)
    return found


def scale_rows(table: Tensor, weight: Tensor) -> Tensor:
    """Rows (G, c W) times a number per head (G, c); in place."""
    G, c = weight.shape
    W = table.shape[1] // c
    if W == 1:
        return table.mul_(weight)
    if W >= _BROAD:
        table.view(G, c, W).mul_(weight.unsqueeze(-1))
        return table
    # For few channels, repeating the numbers is faster than broadcasting them.
    numbers = _constant("heads", (c, W), table, lambda: torch.arange(c, device=table.device).repeat_interleave(W))
    return table.mul_(weight.index_select(1, numbers))


def weighted_sums(table: Tensor, weight: Tensor, ptr: Tensor, index: Tensor) -> Tensor:
    """Weighted sums of gathered rows: a table (R, c W), weights (E, c) -> (G, c W)."""
    E, c = weight.shape
    if c == 1:
        return spmm_raw(table, weight.reshape(E), None, [ptr, index])
    if E * table.shape[1] > HELD:
        each = zip(_unbind(table, c), weight.unbind(1), strict=True)
        return torch.cat([spmm_raw(z, w.contiguous(), None, [ptr, index]) for z, w in each], 1)
    return segment_sums(scale_rows(table.index_select(0, index), weight), ptr)


def inner_products(left: Tensor, right: Tensor, c: int, pattern: Pattern) -> Tensor:
    """Inner products per head of rows of sources (M, c W) and targets (N, c W), at the entries: (E, c)."""
    if c == 1:
        return sddmm_raw(pattern.one_way, left, right).unsqueeze(1)
    source, target = pattern.ends
    if source.numel() * left.shape[1] > HELD:
        each = zip(_unbind(left, c), _unbind(right, c), strict=True)
        return torch.stack([sddmm_raw(pattern.one_way, x, y) for x, y in each], 1)
    return sum_channels(left.index_select(0, source).mul_(right.index_select(0, target)), c)


def _unbind(table: Tensor, c: int) -> tuple[Tensor, ...]:
    """(G, c W) -> c times (G, W)."""
    return table.view(table.shape[0], c, table.shape[1] // c).unbind(1)


def sum_channels(table: Tensor, c: int) -> Tensor:
    """(G, c W) -> (G, c)."""
    G, W = table.shape[0], table.shape[1] // c
    if W == 1:
        return table
    if autocasting(table.device):  # autocast would round the product below
        return table.view(G, c, W).sum(-1)
    ones = _constant("ones", W, table, lambda: table.new_ones(W))
    return table.view(G * c, W).mv(ones).view(G, c)


def block_columns(vectors: Tensor) -> Tensor:
    """(*, c, D) -> (*, c D, c): the product with it is one inner product per head."""
    return torch.diag_embed(vectors.mT, dim1=-3, dim2=-1).flatten(-3, -2)


def group_sums(values: Tensor, end: End) -> Tensor:
    """(E, c) -> (G, c) the sum of the entries of each group."""
    if values.shape[1] == 1:
        return collect(values.reshape(-1), end).unsqueeze(1)
    _, ptr, *order = end.arrays
    return gather_sums(values, order[0], ptr) if order else segment_sums(values, ptr)


def _inner_at_once(source: Tensor, target: Tensor, pattern: Pattern) -> Tensor:
    m, n = pattern.ends
    return (source.index_select(1, m) * target.index_select(1, n)).sum(-1)


@with_plain(_inner_at_once)
def plain_inner(source: Tensor, target: Tensor, pattern: Pattern) -> Tensor:
    """`inner` by differentiable torch operations; head by head, without storing the rows of all entries."""
    if not len(source):
        return _inner_at_once(source, target, pattern)
    return torch.stack([sddmm(*sides, pattern) for sides in zip(source, target, strict=True)])


def _softmax(end: End, score: Tensor) -> tuple[Tensor, tuple[Tensor]]:
    weight = exponentials(to_rows(score).contiguous(), end)
    weight = weight.div_(_divisor(group_sums(weight, end)).index_select(0, end.arrays[0])).t()
    return weight, (weight,)


def _softmax_backward(given: Backward) -> Grads:
    grad, _, (end,), _, (weight,) = given
    weight = to_rows(weight)
    weighted = weight * to_rows(grad)
    mean = group_sums(weighted, end).index_select(0, end.arrays[0])
    return (weighted.sub_(mean.mul_(weight)).t(),)


def _plain_softmax(score: Tensor, end: End) -> Tensor:
    group = end.arrays[0]
    held = score.detach()
    top = held.new_full((score.shape[0], end.groups), -torch.inf)
    top = top.scatter_reduce(1, group.long().expand_as(held), held, "amax")
    weight = (score - torch.where(top.isinf(), 0, top).index_select(1, group)).exp()
    total = _plain_collect(weight, group, end.groups)
    return weight / torch.where(total == 0, 1, total).index_select(1, group)


_record_softmax = recorded(1, _softmax, _softmax_backward, lambda end, score: _plain_softmax(score, end))


def softmax(score: Tensor, end: End) -> Tensor:
    r"""(c, E) -> (c, E) the softmax over the entries of each group, :math:`w_e = exp(s_e) / \sum_{e'} exp(s_{e'})`.

    Zero where :math:`s_e` is minus infinity; all zeros in a group where every score is.

    >>> pattern = Pattern(torch.tensor([0, 2, 1]), torch.tensor([1, 0, 1]), 3, 2)
    >>> softmax(torch.tensor([[5., 1e4, 1e4]]), pattern.at_target)
    tensor([[1.0000, 0.5000, 0.5000]])
    """
    return _record_softmax(end, score)


def _divisor(total: Tensor) -> Tensor:
    """The sums of groups, with ones for zeros, to divide by; in place."""
    return total.add_(total == 0)


def _plain_collect(values: Tensor, group: Tensor, groups: int) -> Tensor:
    return values.new_zeros(values.shape[0], groups).index_add(1, group, values)


def transposed_sums(table: Tensor, weight: Tensor, pattern: Pattern) -> Tensor:
    """Weighted sums over the transposed pattern: rows of targets (N, c W) -> (M, c W)."""
    _, _, t_ptr, t_index, _, t_back = pattern.both_ways_and_across
    if weight.shape[0] * table.shape[1] <= HELD:
        return gather_sums(scale_rows(table.index_select(0, pattern.row), weight.to(table.dtype)), t_back, t_ptr)
    return weighted_sums(table, weight.index_select(0, t_back).to(table.dtype), t_ptr, t_index)


def raw_attention(
    weight: Tensor, factor: Tensor | None, table: Tensor, normalised: bool, pattern: Pattern, inplace: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Weighted sums of rows (M, c W) under weights, or scores of a softmax, and factors, (E, c); without a gradient.

    `inplace` says whether the scores may be overwritten.

    Returns:
        The sums, (N, c W); the weights before division, (E, c); and the divisors of a softmax, (N, c).
    """
    total = None
    if normalised:
        weight = exponentials(weight.contiguous(), pattern.at_target, inplace)
    weighted = weight if factor is None else weight * factor
    y = weighted_sums(table, weighted.to(table.dtype), *pattern.one_way)
    if normalised:
        total = _divisor(group_sums(weight, pattern.at_target))
        N, c = total.shape
        y.view(N, c, y.shape[1] // max(1, c)).div_(total.unsqueeze(-1))
    return y, weight, total


def _sums_at_once(weight: Tensor, z: Tensor, pattern: Pattern) -> Tensor:
    m, n = pattern.ends
    found = z.index_select(1, m).to(acc_dtype(z.dtype)) * weight.unsqueeze(-1)
    return found.new_zeros(z.shape[0], pattern.N, z.shape[2]).index_add(1, n, found).to(z.dtype)


@with_plain(_sums_at_once)
def _sums(weight: Tensor, z: Tensor, pattern: Pattern) -> Tensor:
    """Weighted sums, (c, N, W); head by head, without storing the rows of all entries."""
    if not len(z):
        return _sums_at_once(weight, z, pattern)
    return torch.stack([spmm(z_k, w_k.to(z.dtype), pattern) for z_k, w_k in zip(z, weight, strict=True)])


def plain_attention(values: Tensor, factor: Tensor | None, z: Tensor, normalised: bool, pattern: Pattern) -> Tensor:
    """`attention` by differentiable torch operations."""
    weight = _plain_softmax(values, pattern.at_target) if normalised else values
    return _sums(weight if factor is None else weight * factor, z, pattern)
