"""What happens between the entries of a pattern and its sources and targets: lifts, sums, softmax."""

from typing import Any

import torch
from torch import Tensor

from ..errors import reject
from .op import primitive
from .pattern import End, Pattern
from .products import samples, sddmm_raw

# Values of entries, (E,), stand in the order of `pattern.by_target` throughout. See `End` for the arrays.
Arrays = list[Tensor]

# Scores that differ by no more than this need no maximum for each target: exp of it is far from the smallest float.
_SPREAD = 60.0
_WIDE = {torch.float32, torch.float64}


def _collect(values: Tensor, groups: int, arrays: Arrays) -> Tensor:
    """The sum of each group, in a fixed order of summation."""
    group = arrays[0]
    if not values.numel():
        return values.new_zeros(groups)
    if len(arrays) != 2 and not values.is_cuda:
        # One after the other, and three times as fast as to bring them into order first.
        return values.new_zeros(groups).index_add_(0, group, values)
    ptr = arrays[1]
    if len(arrays) == 3:
        values = values.index_select(0, arrays[2])
    elif not values.is_cuda and values.dtype in _WIDE and not torch.is_autocast_enabled("cpu"):
        # A sparse matrix, whose columns may be the groups, times ones is twice as fast as segment_reduce.
        matrix = torch.sparse_csr_tensor(ptr, group, values, (groups, groups), check_invariants=False)
        return matrix @ values.new_ones(groups)
    return torch.segment_reduce(values, "sum", offsets=ptr.long(), unsafe=True)


def _collect_fake(values: Tensor, groups: int, arrays: Arrays) -> Tensor:
    return values.new_empty(groups)


def _context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.groups, ctx.arrays = inputs


def _collect_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return lift_raw(grad, ctx.groups, ctx.arrays), None, None


def _lift(values: Tensor, groups: int, arrays: Arrays) -> Tensor:
    return values.index_select(0, arrays[0])


def _lift_fake(values: Tensor, groups: int, arrays: Arrays) -> Tensor:
    return values.new_empty(arrays[0].numel())


def _lift_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return collect_raw(grad, ctx.groups, ctx.arrays), None, None


def _plain_collect(values: Tensor, groups: int, arrays: Arrays) -> Tensor:
    return values.new_zeros(groups).index_add(0, arrays[0], values)


def _plain_softmax(score: Tensor, groups: int, arrays: Arrays) -> Tensor:
    group = arrays[0]
    top = score.detach().new_full((groups,), -torch.inf).scatter_reduce(0, group.long(), score.detach(), "amax")
    weight = (score - torch.where(top.isinf(), 0, top).index_select(0, group)).exp()
    total = _plain_collect(weight, groups, arrays)
    return weight / torch.where(total == 0, 1, total).index_select(0, group)


lift_raw = primitive(
    "lift(Tensor values, int groups, Tensor[] arrays) -> Tensor", _lift, _lift_fake, _context, _lift_backward, _lift
)
collect_raw = primitive(
    "collect(Tensor values, int groups, Tensor[] arrays) -> Tensor",
    _collect,
    _collect_fake,
    _context,
    _collect_backward,
    _plain_collect,
)


def lift(values: Tensor, end: End) -> Tensor:
    """(G,) -> (E,) the value of each entry's group, that is of its source or target; see `Pattern.at_source`.

    >>> pattern = Pattern(torch.tensor([0, 2, 1]), torch.tensor([1, 0, 1]), 3, 2)
    >>> lift(torch.tensor([1., 2., 3.]), pattern.at_source)
    tensor([3., 1., 2.])
    """
    if values.numel() != end.groups:
        reject("values", f"{end.groups}, one for each group", values.numel(), "pass those of this pattern")
    return lift_raw(values, end.groups, end.arrays)


def collect(values: Tensor, end: End) -> Tensor:
    """(E,) -> (G,) the sum of the entries of each group, in a fixed order; the adjoint of `lift`.

    >>> pattern = Pattern(torch.tensor([0, 2, 1]), torch.tensor([1, 0, 1]), 3, 2)
    >>> collect(torch.tensor([1., 2., 4.]), pattern.at_target)
    tensor([1., 6.])
    """
    if values.numel() != end.arrays[0].numel():
        reject("values", f"{end.arrays[0].numel()}, one for each entry", values.numel(), "pass those of this pattern")
    return collect_raw(values, end.groups, end.arrays)


def _pair_sum(source: Tensor, target: Tensor, arrays: Arrays) -> Tensor:
    row, ptr, col = arrays[:3]
    if source.is_cuda or not samples(source, source.numel(), target.numel(), col.numel()):
        return source.index_select(0, col) + target.index_select(0, row)
    # As the inner product of (s, 1) and (1, t): one array as long as the entries instead of three.
    left, right = torch.ones_like(source), torch.ones_like(target)
    return sddmm_raw(torch.stack([source, left], 1), torch.stack([right, target], 1), [ptr, col])


def _pair_sum_fake(source: Tensor, target: Tensor, arrays: Arrays) -> Tensor:
    return source.new_empty(arrays[0].numel())


def _pair_sum_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    source, target, ctx.arrays = inputs
    ctx.groups = source.numel(), target.numel()


def _pair_sum_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    row, ptr, col, *order = ctx.arrays
    M, N = ctx.groups
    at_source, at_target = (need for need in ctx.needs_input_grad[:2])
    grad_source = collect_raw(grad, M, [col, *order]) if at_source else None
    return grad_source, collect_raw(grad, N, [row, ptr]) if at_target else None, None


pair_sum_raw = primitive(
    "pair_sum(Tensor source, Tensor target, Tensor[] arrays) -> Tensor",
    _pair_sum,
    _pair_sum_fake,
    _pair_sum_context,
    _pair_sum_backward,
    lambda source, target, a: source.index_select(0, a[2]) + target.index_select(0, a[0]),
)


def pair_sum(source: Tensor, target: Tensor, pattern: Pattern) -> Tensor:
    """(M,), (N,) -> (E,) the sum of what each entry's source and target have.

    >>> pattern = Pattern(torch.tensor([0, 2, 1]), torch.tensor([1, 0, 1]), 3, 2)
    >>> pair_sum(torch.tensor([1., 2., 3.]), torch.tensor([10., 20.]), pattern)
    tensor([13., 21., 22.])
    """
    for name, values, size in (("source", source, pattern.M), ("target", target, pattern.N)):
        if values.numel() != size:
            reject(name, f"{size} numbers", values.numel(), "pass those of this pattern")
    (col, *order), (row, ptr) = pattern.at_source.arrays, pattern.at_target.arrays
    return pair_sum_raw(source, target, [row, ptr, col, *order])


def exponentials(score: Tensor, end: End, within: bool = False) -> Tensor:
    """Softmax before it is divided: exp(s - b), for a bound b of each group that keeps it from overflow.

    (E,) or (E, c) of several heads, without a gradient; in place of the scores where `within` says so. The same scores,
    the same bits.
    """
    return _exponentials(score, end.arrays, within)


def _exponentials(score: Tensor, arrays: Arrays, within: bool = False) -> Tensor:
    if not score.numel():
        return torch.empty_like(score)
    group, ptr = arrays[:2]
    near = False
    if not score.is_cuda:
        low, high = torch.aminmax(score)
        near = float(high) - float(low) <= _SPREAD  # False where something is infinite, or no number
    if near:
        weight = score.sub_(high) if within else score - high
    else:
        grouped = score if len(arrays) == 2 else score.index_select(0, arrays[2])
        top = torch.segment_reduce(grouped, "max", offsets=ptr.long(), axis=0, unsafe=True)
        weight = score - top.masked_fill_(torch.isinf(top), 0).index_select(0, group)
    return weight.exp_()


def _softmax(score: Tensor, groups: int, arrays: Arrays) -> Tensor:
    weight, group = _exponentials(score, arrays), arrays[0]
    total = _collect(weight, groups, arrays)
    return weight.mul_(total.reciprocal().masked_fill_(total == 0, 0).index_select(0, group))


def _softmax_fake(score: Tensor, groups: int, arrays: Arrays) -> Tensor:
    return torch.empty_like(score)


def _softmax_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.groups, ctx.arrays = inputs
    ctx.save_for_backward(output)


def _softmax_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (weight,) = ctx.saved_tensors
    weighted = weight * grad
    mean = lift_raw(collect_raw(weighted, ctx.groups, ctx.arrays), ctx.groups, ctx.arrays)
    return torch.addcmul(weighted, weight, mean, value=-1), None, None


softmax_raw = primitive(
    "segment_softmax(Tensor score, int groups, Tensor[] arrays) -> Tensor",
    _softmax,
    _softmax_fake,
    _softmax_context,
    _softmax_backward,
    _plain_softmax,
)


def segment_softmax(score: Tensor, end: End) -> Tensor:
    r"""Softmax over the entries of each group, :math:`w_e = exp(s_e) / \sum_{e'} exp(s_{e'})`, zero where :math:`s_e`
    is minus infinity, and all zeros where every score of a group is.

    >>> pattern = Pattern(torch.tensor([0, 2, 1]), torch.tensor([1, 0, 1]), 3, 2)
    >>> segment_softmax(torch.tensor([5., 1e4, 1e4]), pattern.at_target)
    tensor([1.0000, 0.5000, 0.5000])
    """
    if score.numel() != end.arrays[0].numel():
        reject("score", f"{end.arrays[0].numel()}, one for each entry", score.numel(), "pass those of this pattern")
    return softmax_raw(score, end.groups, end.arrays)
