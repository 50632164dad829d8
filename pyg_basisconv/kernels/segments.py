"""Sums over the entries of each source or target, and the exponentials of a softmax."""

import torch
from torch import Tensor

from .pattern import End

# Scores in a range this narrow need no maximum per target: exp(-60) is far from the smallest float.
_SPREAD = 60.0
_WIDE = {torch.float32, torch.float64}


def collect(values: Tensor, end: End) -> Tensor:
    """(E,) -> (G,) the sum of the entries of each group, in a fixed order of summation, without a gradient.

    The entries are sorted by target; for the groups see `Pattern.at_source`.

    >>> from pyg_basisconv.kernels import Pattern
    >>> pattern = Pattern(torch.tensor([0, 2, 1]), torch.tensor([1, 0, 1]), 3, 2)
    >>> collect(torch.tensor([1., 2., 4.]), pattern.at_target)
    tensor([1., 6.])
    """
    groups, (group, ptr, *order) = end.groups, end.arrays
    if not values.numel():
        return values.new_zeros(groups)
    if order and not values.is_cuda:
        # On the CPU index_add sums in order, and is three times as fast as sorting first.
        return values.new_zeros(groups).index_add_(0, group, values)
    if order:
        values = values.index_select(0, order[0])
    elif not values.is_cuda and values.dtype in _WIDE and not torch.is_autocast_enabled("cpu"):
        # A sparse matrix times ones is twice as fast as segment_reduce; its columns do not matter.
        size = groups, groups
        matrix = torch.sparse_csr_tensor(ptr, group, values, size, device=values.device, check_invariants=False)
        return matrix @ values.new_ones(groups)
    return torch.segment_reduce(values, "sum", offsets=ptr.long(), unsafe=True)


def exponentials(score: Tensor, end: End, inplace: bool = False) -> Tensor:
    """The numerators of a softmax: exp(s - b), where a bound b of each group keeps them from overflow.

    (E,), or (E, c) of several heads; without a gradient. `inplace` says whether the scores may be overwritten. The same
    scores give the same bits.
    """
    if not score.numel():
        return torch.empty_like(score)
    group, ptr, *order = end.arrays
    narrow_range = False
    if not score.is_cuda:
        low, high = torch.aminmax(score)
        narrow_range = float(high) - float(low) <= _SPREAD  # False for infinities and NaN
    if narrow_range:
        weight = score.sub_(high) if inplace else score - high
    else:
        grouped = score.index_select(0, order[0]) if order else score
        top = torch.segment_reduce(grouped, "max", offsets=ptr.long(), axis=0, unsafe=True)
        weight = score - top.masked_fill_(torch.isinf(top), 0).index_select(0, group)
    return weight.exp_()
