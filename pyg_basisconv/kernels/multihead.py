"""Several matrices with one pattern, as the heads of attention are: one operation for all of them.

Of c heads a tensor is (c, G), with a number for each source, target or entry, or (c, G, W). Its memory is best laid out
node by node and entry by entry, (G, c W): a gathered row then holds what all heads read there, and nothing is copied
before. Entries stand by target throughout.
"""

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from ..cache import memo, shorten
from ..portable import faked, portable
from .op import autocasting, derivative, wide as wide_dtype
from .pattern import End, Pattern
from .products import sddmm, sddmm_raw, spmm, spmm_raw
from .segments import collect, exponentials

# Numbers of gathered rows that are held; where there are more, the heads are taken one by one, by a kernel that holds
# none.
HELD = 1 << 20
_BROAD = 16  # channels of a head from which on its weight is read for all of them at once
_SMALL = 1 << 14  # numbers in a constant that is kept
_LASTING = 32  # constants that are kept
_CONSTANTS: dict[Hashable, Tensor] = {}


def rows(t: Tensor) -> Tensor:
    """(c, G) or (c, G, W) -> (G, c W); a view where the memory is laid out so."""
    if t.dim() == 2:
        return t.t()
    c, G, W = t.shape
    return t.transpose(0, 1).reshape(G, c * W)


def heads(t: Tensor, c: int) -> Tensor:
    """(G, c W) -> (c, G, W), a view."""
    return t.view(t.shape[0], c, t.shape[1] // c).transpose(0, 1)


def bags(table: Tensor, index: Tensor, ptr: Tensor) -> Tensor:
    """The sum of the rows of a table that each group's indices name, in a fixed order of summation."""
    if table.dtype == torch.float32 and index.numel() and table.shape[1]:
        return torch._embedding_bag_forward_only(table.contiguous(), index, ptr, False, 0, False, None, True, -1)[0]
    return spmm_raw(table, None, None, [ptr, index])


def consecutive(table: Tensor, ptr: Tensor) -> Tensor:
    """The sums of consecutive rows."""
    return bags(table, _numbers(table.shape[0], ptr), ptr)


def _numbers(count: int, like: Tensor) -> Tensor:
    """0, 1, 2 and so on; kept, where there are few."""

    def build() -> Tensor:
        return torch.arange(count, dtype=like.dtype, device=like.device)

    return _constant("numbers", count, like, build) if count <= _SMALL else build()


def _constant(name: str, size: Hashable, like: Tensor, build: Callable[[], Tensor]) -> Tensor:
    """A small tensor that depends on a size alone; the last ones are kept, of tensors that have numbers."""
    if type(like) is not Tensor:
        return build()
    key = name, size, like.dtype, like.device
    found = _CONSTANTS.get(key)
    if found is None:
        found = build() if faked() else memo(_CONSTANTS, key, build)
        shorten(_CONSTANTS, _LASTING)
    return found


def scale(table: Tensor, weight: Tensor) -> Tensor:
    """The rows, (G, c W), times the numbers of each head, (G, c); in place."""
    G, c = weight.shape
    W = table.shape[1] // c
    if W == 1:
        return table.mul_(weight)
    if W >= _BROAD:
        table.view(G, c, W).mul_(weight.unsqueeze(-1))
        return table
    # Rows of so few channels are multiplied faster where the numbers stand beside each other as often as they are read.
    return table.mul_(weight.index_select(1, _head_of_column(c, W, table)))


def _head_of_column(c: int, W: int, like: Tensor) -> Tensor:
    """(c W,) the head that each column of rows of c heads belongs to."""

    def build() -> Tensor:
        return torch.arange(c * W, device=like.device).div_(W, rounding_mode="floor")

    return _constant("heads", (c, W), like, build)


def weighted_sums(table: Tensor, weight: Tensor, ptr: Tensor, index: Tensor) -> Tensor:
    """The sums of gathered rows, (R, c W), under weights of each head, (E, c): (G, c W)."""
    E, c = weight.shape
    if c == 1:
        return spmm_raw(table, weight.reshape(E), None, [ptr, index])
    if E * table.shape[1] > HELD:
        each = zip(_unbind(table, c), weight.unbind(1), strict=True)
        return torch.cat([spmm_raw(z, w.contiguous(), None, [ptr, index]) for z, w in each], 1)
    return consecutive(scale(table.index_select(0, index), weight), ptr)


def inner_products(left: Tensor, right: Tensor, c: int, pattern: Pattern) -> Tensor:
    """Of each head's rows of sources, (M, c W), and targets, (N, c W), at the entries: (E, c)."""
    if c == 1:
        return sddmm_raw(left, right, pattern.one_way).unsqueeze(1)
    source, target = pattern.ends
    if source.numel() * left.shape[1] > HELD:
        each = zip(_unbind(left, c), _unbind(right, c), strict=True)
        return torch.stack([sddmm_raw(x, y, pattern.one_way) for x, y in each], 1)
    return sum_channels(left.index_select(0, source).mul_(right.index_select(0, target)), c)


def _unbind(table: Tensor, c: int) -> tuple[Tensor, ...]:
    """(G, c W) -> c times (G, W)."""
    return table.view(table.shape[0], c, table.shape[1] // c).unbind(1)


def sum_channels(table: Tensor, c: int) -> Tensor:
    """(G, c W) -> (G, c)."""
    G, W = table.shape[0], table.shape[1] // c
    if W == 1:
        return table
    if autocasting(table.device):  # which would round the product below
        return table.view(G, c, W).sum(-1)
    ones = _constant("ones", W, table, lambda: table.new_ones(W))
    return table.view(G * c, W).mv(ones).view(G, c)


def block_columns(vectors: Tensor) -> Tensor:
    """(*, c, D) -> (*, c D, c): the product with it is the inner product of each head's own columns."""
    *lead, c, D = vectors.shape
    eye = _constant("eye", c, vectors, lambda: torch.eye(c).to(vectors).unsqueeze(1))
    return (vectors.unsqueeze(-1) * eye).view(*lead, c * D, c)


def collected(values: Tensor, end: End) -> Tensor:
    """(E, c) -> (G, c) the sum of the entries of each group."""
    if values.shape[1] == 1:
        return collect(values.reshape(-1), end).unsqueeze(1)
    _, ptr, *order = end.arrays
    return bags(values, order[0], ptr) if order else consecutive(values, ptr)


def needs_gradient(*tensors: Tensor | None) -> bool:
    """Whether one of them does."""
    return any(t is not None and t.requires_grad for t in tensors)


class _Ends(torch.autograd.Function):
    """The sum of what each entry's source and target have, where they have something."""

    @staticmethod
    def forward(ctx: Any, source: Tensor | None, target: Tensor | None, pattern: Pattern) -> Tensor:
        ctx.pattern = pattern
        return _at_entries(source, target, pattern)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        pattern, (at_source, at_target, _) = ctx.pattern, ctx.needs_input_grad
        if torch.is_grad_enabled() or portable():
            m, n = pattern.ends
            return (
                _plain_collect(grad, m, pattern.M) if at_source else None,
                _plain_collect(grad, n, pattern.N) if at_target else None,
                None,
            )
        table = rows(grad)
        return (
            collected(table, pattern.at_source).t() if at_source else None,
            collected(table, pattern.at_target).t() if at_target else None,
            None,
        )


def _at_entries(source: Tensor | None, target: Tensor | None, pattern: Pattern) -> Tensor:
    found: Tensor | None = None
    for values, end in zip((source, target), pattern.ends, strict=True):
        if values is not None:
            here = rows(values).index_select(0, end)
            found = here if found is None else found.add_(here)
    assert found is not None
    return found.t()


def at_entries(source: Tensor | None, target: Tensor | None, pattern: Pattern) -> Tensor:
    """(c, M), (c, N) -> (c, E) the sum of what each entry's source and target have; one of them may be None.

    >>> pattern = Pattern(torch.tensor([0, 2, 1]), torch.tensor([1, 0, 1]), 3, 2)
    >>> at_entries(torch.tensor([[1., 2., 3.], [4., 5., 6.]]), torch.tensor([[10., 20.], [0., 0.]]), pattern)
    tensor([[13., 21., 22.],
            [ 6.,  4.,  5.]])
    """
    if portable():
        found = [t.index_select(1, end) for t, end in zip((source, target), pattern.ends, strict=True) if t is not None]
        return sum(found[1:], found[0])
    if torch.is_grad_enabled() and needs_gradient(source, target):
        return _Ends.apply(source, target, pattern)  # type: ignore[no-any-return]
    return _at_entries(source, target, pattern)


class _Inner(torch.autograd.Function):
    """See `inner`."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, target: Tensor, pattern: Pattern) -> Tensor:
        ctx.save_for_backward(source, target)
        ctx.pattern = pattern
        return inner_products(rows(source), rows(target), source.shape[0], pattern).t()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        source, target = ctx.saved_tensors
        pattern, c = ctx.pattern, source.shape[0]
        if torch.is_grad_enabled() or portable():
            return derivative(plain_inner, (source, target, pattern), grad)
        needs_source, needs_target, _ = ctx.needs_input_grad
        weight = rows(grad)
        d_source = heads(transposed_sums(rows(target), weight, pattern), c) if needs_source else None
        d_target = heads(weighted_sums(rows(source), weight, *pattern.one_way), c) if needs_target else None
        return d_source, d_target, None


def plain_inner(source: Tensor, target: Tensor, pattern: Pattern) -> Tensor:
    """`inner` by operations that have any derivatives."""
    if not portable() and len(source):
        return torch.stack([sddmm(*sides, pattern) for sides in zip(source, target, strict=True)])
    m, n = pattern.ends
    return (source.index_select(1, m) * target.index_select(1, n)).sum(-1)


def inner(source: Tensor, target: Tensor, pattern: Pattern) -> Tensor:
    """(c, M, W), (c, N, W) -> (c, E) the inner product of what each entry's source and target have.

    >>> pattern = Pattern(torch.tensor([0, 2, 1]), torch.tensor([1, 0, 1]), 3, 2)
    >>> inner(torch.tensor([[[1.], [2.], [3.]]] * 2), torch.tensor([[[10.], [20.]]] * 2), pattern)
    tensor([[30., 20., 40.],
            [30., 20., 40.]])
    """
    if source.shape[0] < 2 or portable():
        return plain_inner(source, target, pattern)
    if torch.is_grad_enabled() and needs_gradient(source, target):
        return _Inner.apply(source, target, pattern)  # type: ignore[no-any-return]
    return inner_products(rows(source), rows(target), source.shape[0], pattern).t()


class _Softmax(torch.autograd.Function):
    """See `softmax`."""

    @staticmethod
    def forward(ctx: Any, score: Tensor, end: End) -> Tensor:
        weight = exponentials(rows(score).contiguous(), end)
        weight = weight.div_(_divisor(collected(weight, end)).index_select(0, end.arrays[0])).t()
        ctx.save_for_backward(score, weight)
        ctx.end = end
        return weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        score, weight = ctx.saved_tensors
        if torch.is_grad_enabled() or portable():
            return derivative(_plain_softmax, (score, ctx.end), grad)
        weight = rows(weight)
        weighted = weight * rows(grad)
        mean = collected(weighted, ctx.end).index_select(0, ctx.end.arrays[0])
        return weighted.sub_(mean.mul_(weight)).t(), None


def softmax(score: Tensor, end: End) -> Tensor:
    r"""(c, E) -> (c, E) of each head the softmax over the entries of each group,
    :math:`w_e = exp(s_e) / \sum_{e'} exp(s_{e'})`, zero where :math:`s_e` is minus infinity, and all zeros where every
    score of a group is.

    >>> pattern = Pattern(torch.tensor([0, 2, 1]), torch.tensor([1, 0, 1]), 3, 2)
    >>> softmax(torch.tensor([[5., 1e4, 1e4]]), pattern.at_target)
    tensor([[1.0000, 0.5000, 0.5000]])
    """
    if portable():
        return _plain_softmax(score, end)
    return _Softmax.apply(score, end)  # type: ignore[no-any-return]


def _divisor(total: Tensor) -> Tensor:
    """What the sums of groups are divided by: one, where there is nothing."""
    return total.add_(total == 0)


def _plain_collect(values: Tensor, group: Tensor, groups: int) -> Tensor:
    return values.new_zeros(values.shape[0], groups).index_add(1, group, values)


def _plain_softmax(score: Tensor, end: End) -> Tensor:
    group = end.arrays[0]
    held = score.detach()
    top = held.new_full((score.shape[0], end.groups), -torch.inf)
    top = top.scatter_reduce(1, group.long().expand_as(held), held, "amax")
    weight = (score - torch.where(top.isinf(), 0, top).index_select(1, group)).exp()
    total = _plain_collect(weight, group, end.groups)
    return weight / torch.where(total == 0, 1, total).index_select(1, group)


def transposed_sums(table: Tensor, weight: Tensor, pattern: Pattern) -> Tensor:
    """The weighted sums of rows of targets, (N, c W), at the sources of the entries: (M, c W)."""
    _, _, t_ptr, t_index, _, t_back = pattern.both_ways_and_across
    if weight.shape[0] * table.shape[1] <= HELD:
        return bags(scale(table.index_select(0, pattern.row), weight.to(table.dtype)), t_back, t_ptr)
    return weighted_sums(table, weight.index_select(0, t_back).to(table.dtype), t_ptr, t_index)


def by_node(z: Tensor) -> Tensor:
    """The rows of z, in the dtype in which they are summed."""
    return rows(z).to(wide_dtype(z)).contiguous()


def raw_attention(
    weight: Tensor, factor: Tensor | None, table: Tensor, normalised: bool, pattern: Pattern, within: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The sums of rows, (M, c W), under weights or scores and their factors, (E, c), without a gradient.

    `within` says whether the scores may be written over.

    Returns:
        The sums, (N, c W); the weights before these are divided, (E, c); and what they are divided by, (N, c).
    """
    total = None
    if normalised:
        weight = exponentials(weight.contiguous(), pattern.at_target, within)
    weighted = weight if factor is None else weight * factor
    y = weighted_sums(table, weighted.to(table.dtype), *pattern.one_way)
    if normalised:
        total = _divisor(collected(weight, pattern.at_target))
        N, c = total.shape
        y.view(N, c, y.shape[1] // max(1, c)).div_(total.unsqueeze(-1))
    return y, weight, total


def plain_attention(values: Tensor, factor: Tensor | None, z: Tensor, normalised: bool, pattern: Pattern) -> Tensor:
    """`attention` by operations that have any derivatives."""
    weight = _plain_softmax(values, pattern.at_target) if normalised else values
    weight = weight if factor is None else weight * factor
    if not portable() and len(z):  # head by head: nothing of the size of all entries' rows is held
        return torch.stack([spmm(z_k, w_k.to(z.dtype), pattern) for z_k, w_k in zip(z, weight, strict=True)])
    m, n = pattern.ends
    found = z.index_select(1, m).to(wide_dtype(z)) * weight.unsqueeze(-1)
    return found.new_zeros(z.shape[0], pattern.N, z.shape[2]).index_add(1, n, found).to(z.dtype)
