"""What is done with the entries of each source or target together: sums, and exponentials for a softmax."""

import torch
from torch import Tensor

from .pattern import End

# Scores that differ by no more than this need no maximum for each target: exp of it is far from the smallest float.
_SPREAD = 60.0
_WIDE = {torch.float32, torch.float64}


def collect(values: Tensor, end: End) -> Tensor:
    """(E,) -> (G,) the sum of the entries of each group, in a fixed order of summation, without a gradient.

    Entries stand by target; see `Pattern.at_source` for the groups.

    >>> from pyg_basisconv.kernels import Pattern
    >>> pattern = Pattern(torch.tensor([0, 2, 1]), torch.tensor([1, 0, 1]), 3, 2)
    >>> collect(torch.tensor([1., 2., 4.]), pattern.at_target)
    tensor([1., 6.])
    """
    groups, (group, ptr, *order) = end.groups, end.arrays
    if not values.numel():
        return values.new_zeros(groups)
    if order and not values.is_cuda:
        # One after the other, and three times as fast as to bring them into order first.
        return values.new_zeros(groups).index_add_(0, group, values)
    if order:
        values = values.index_select(0, order[0])
    elif not values.is_cuda and values.dtype in _WIDE and not torch.is_autocast_enabled("cpu"):
        # A sparse matrix, whose columns may be the groups, times ones is twice as fast as segment_reduce.
        matrix = torch.sparse_csr_tensor(ptr, group, values, (groups, groups), check_invariants=False)
        return matrix @ values.new_ones(groups)
    return torch.segment_reduce(values, "sum", offsets=ptr.long(), unsafe=True)


def exponentials(score: Tensor, end: End, within: bool = False) -> Tensor:
    """Softmax before it is divided: exp(s - b), for a bound b of each group that keeps it from overflow.

    (E,) or (E, c) of several heads, without a gradient; in place of the scores where `within` says so. The same scores,
    the same bits.
    """
    if not score.numel():
        return torch.empty_like(score)
    group, ptr, *order = end.arrays
    near = False
    if not score.is_cuda:
        low, high = torch.aminmax(score)
        near = float(high) - float(low) <= _SPREAD  # False where something is infinite, or no number
    if near:
        weight = score.sub_(high) if within else score - high
    else:
        grouped = score.index_select(0, order[0]) if order else score
        top = torch.segment_reduce(grouped, "max", offsets=ptr.long(), axis=0, unsafe=True)
        weight = score - top.masked_fill_(torch.isinf(top), 0).index_select(0, group)
    return weight.exp_()
