"""From the Linears of a PyG layer to one BasisConv."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch_geometric.nn.aggr import MeanAggregation, SumAggregation
from torch_geometric.nn.dense.linear import Linear

from ..bases import Adjacency
from ..basis import Basis
from ..conv import BasisConv
from ..theta import Pass, Theta
from .layers import Converted, Signature
from .registry import Left


def basis_conv(
    layer: Any,
    linears: Sequence[Linear],
    basis: Basis,
    bias: nn.Parameter | None = None,
    *,
    call: Signature | None = None,
    theta: Theta | None = None,
    heads: int = 1,
    kind: type[BasisConv] = BasisConv,
    **kwargs: Any,
) -> BasisConv:
    r"""A BasisConv whose :math:`\Theta_k` are the matrices of the linears, or the identity where there are none.

    Args:
        layer: whose flow and decomposition are kept.
        linears: K of them.
        basis: of K matrices.
        bias: b.
        call: of the layer, for a `Converted`; a plain BasisConv without it.
        theta: the kind of parameter.
        heads: how many times the width of a linear is there in the result.
        kind: of BasisConv, without a call.
        **kwargs: of Converted and BasisConv.
    """
    weight = stack(linears) if linears else None
    P, Q = (linears[0].in_channels, heads * linears[0].out_channels) if linears else (-1, -1)
    kwargs.update(flow=layer.flow, decomposed_layers=layer.decomposed_layers)
    args = (P, Q, basis, theta if linears else Pass())
    with torch.device("meta"):  # draws nothing, so that the state of torch's generator stays
        new = kind(*args, bias=False, **kwargs) if call is None else Converted(call, *args, bias=False, **kwargs)
    if weight is not None:
        new.theta.weight = weight
    new.bias = None if bias is None else nn.Parameter(bias.detach().clone(), bias.requires_grad)
    return new


def stack(linears: Sequence[Linear]) -> nn.Parameter | UninitializedParameter:
    """(K, P, Q) one parameter with the transposed matrices of the linears."""
    for linear in linears:
        if type(linear) is not Linear:
            raise Left(f"one of its matrices is in a {type(linear).__name__}")
    weights = [linear.weight for linear in linears]
    first = weights[0]
    if len({w.requires_grad for w in weights}) > 1:
        raise Left("some of its matrices are frozen and some are not")
    if len({(w.dtype, w.device) for w in weights}) > 1:
        raise Left("its matrices differ in dtype or device")
    lazy = [isinstance(w, UninitializedParameter) for w in weights]
    if all(lazy):
        return UninitializedParameter(first.requires_grad, first.device, first.dtype)  # type: ignore[call-arg]
    if any(lazy) or len({w.shape for w in weights}) > 1:
        raise Left("its matrices differ in shape")
    stacked = torch.stack([w.detach().t() for w in weights])
    return nn.Parameter(stacked, first.requires_grad)


def agree(first: Linear, second: Linear) -> bool:
    """Whether two linears may stand in one parameter, for one x."""
    widths = {first.in_channels, second.in_channels}
    return len(widths) == 1 and -1 not in widths and first.weight.requires_grad == second.weight.requires_grad


def mean(layer: Any) -> bool:
    """Whether the layer takes the mean of its messages rather than their sum."""
    kind = type(layer.aggr_module)
    if kind not in (SumAggregation, MeanAggregation):
        raise Left(f"aggr={layer.aggr!r} is not linear, or not a sum or mean")
    return kind is MeanAggregation


def only_sum(layer: Any) -> None:
    """Rejects a mean where the layer has weights of its own before it."""
    if mean(layer):
        raise Left("aggr='mean' over messages that the layer normalises itself")


def plain(layer: Any) -> Adjacency:
    """The adjacency as it is, summed or averaged."""
    return Adjacency("mean" if mean(layer) else None)
