"""A linear map for each type of rows."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..cache import once
from ..errors import reject
from ..kernels import Pattern
from ..kernels.contract import side_by_side
from ..kernels.pattern import extremes, in_range
from ..portable import checked, with_plain
from .build import parameter


class TypedLinear(nn.Module):
    r""":math:`x_n W_{t(n)} + b_{t(n)}` for the type t of each row.

    Args:
        weight: W, (T, P, Q).
        bias: b, (T, Q), or None.

    Shapes:
        - x: (\*, N, P); kinds, t: (N,)
        - y: (\*, N, Q)

    >>> one = TypedLinear(torch.tensor([[[1.0]], [[10.0]]]), torch.tensor([[0.5], [0.0]]))
    >>> one(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([1, 0, 1])).flatten().tolist()
    [10.0, 2.5, 30.0]
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias = parameter(weight), parameter(bias)

    def forward(self, x: Tensor, kinds: Tensor) -> Tensor:
        """Applies the maps."""
        apply = _gathered if torch.compiler.is_compiling() else _sorted
        return apply(x, self.weight, self.bias, kinds)


def _gathered(x: Tensor, weight: Tensor, bias: Tensor | None, kinds: Tensor) -> Tensor:
    """All maps of each row, of which one is taken; for calls in which the types are not looked at."""
    kinds = checked(kinds.long(), len(weight))
    every = (x @ side_by_side(weight)).unflatten(-1, (len(weight), -1))  # (*, N, T, Q)
    y = every.gather(-2, kinds.view(-1, 1, 1).expand(*every.shape[:-2], 1, every.shape[-1])).squeeze(-2)
    return y if bias is None else y + bias.index_select(0, kinds).to(y.dtype)


@with_plain(_gathered)
def _sorted(x: Tensor, weight: Tensor, bias: Tensor | None, kinds: Tensor) -> Tensor:
    """The rows of each type in one product."""
    if kinds.shape != x.shape[-2:-1]:
        fix = "give each node one"
        reject("node_type", f"one type per node, shape ({x.shape[-2]},)", tuple(kinds.shape), fix)
    order, place, counts = _by_type(kinds, len(weight))
    rows = x if order is None else x.index_select(-2, order)
    biases = [None] * len(weight) if bias is None else bias.unbind(0)
    groups = zip(rows.split(counts, -2), weight.unbind(0), biases, counts, strict=True)
    y = torch.cat([_mapped(x_t, w, b) for x_t, w, b, count in groups if count or not len(kinds)], -2)
    return y if place is None else y.index_select(-2, place)


def _mapped(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if x.dim() == 2 and bias is not None:
        return torch.addmm(bias, x, weight)
    return F.linear(x, weight.t(), bias)


@once
def _by_type(kinds: Tensor, T: int) -> tuple[Tensor | None, Tensor | None, list[int]]:
    """The order that sorts rows by their types, and its inverse, or None for both; how many there are of each type."""
    if not in_range(kinds, T):
        fix = "number the types from 0 on"
        reject("node_type", f"types from 0 to {T - 1}", "{} to {}".format(*extremes(kinds)), fix)
    rows = torch.arange(len(kinds), device=kinds.device)
    by_type = Pattern(rows, kinds, len(kinds), T)
    return by_type.by_target.order, by_type.as_given, by_type.by_target.ptr.diff().tolist()
