"""From the parameters of a layer to those of a `BasisConv`, and why some cannot be taken over."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch_geometric.nn.aggr import MeanAggregation, SumAggregation
from torch_geometric.nn.dense.linear import Linear

from ..bases import Adjacency
from ..basis import Basis
from ..conv import BasisConv
from ..theta import Pass, Theta
from .checkpoints import is_lazy
from .layers import Converted, Signature
from .registry import Unchanged

META = torch.device("meta")  # parameters made here draw no random numbers: torch's generator keeps its state


def basis_conv(
    layer: Any,
    matrices: Sequence[Linear] | Tensor,
    basis: Basis,
    bias: Tensor | None = None,
    *,
    call: Signature | None = None,
    theta: Theta | None = None,
    heads: int = 1,
    kind: type[BasisConv] = BasisConv,
    **kwargs: Any,
) -> BasisConv:
    r"""A BasisConv with given matrices :math:`\Theta_k`, or with the identity where there are none.

    Args:
        layer: whose flow and decomposition are kept.
        matrices: K linears, or (K, P, Q).
        basis: of K matrices.
        bias: b.
        call: of the layer, for a `Converted`; a plain BasisConv without it.
        theta: the kind of parameter; one without a weight, such as `Pass`, goes without matrices.
        heads: how many times the width of a linear the result has.
        kind: of BasisConv, without a call.
        **kwargs: of Converted and BasisConv.
    """
    P = Q = -1
    weight: Tensor | None = None
    if isinstance(matrices, Tensor):
        weight, (P, Q) = matrices, matrices.shape[1:]
    elif matrices:
        weight, P, Q = stack(matrices), matrices[0].in_channels or -1, heads * matrices[0].out_channels
    if hasattr(layer, "flow"):
        kwargs.update(flow=layer.flow, decomposed_layers=layer.decomposed_layers)
    args = (P, Q, basis, Pass() if weight is None and theta is None else theta)
    with META:
        new = kind(*args, bias=False, **kwargs) if call is None else Converted(call, *args, bias=False, **kwargs)
    if weight is not None:
        new.theta.weight = parameter(weight)
    new.bias = parameter(bias)
    return new


def parameter(value: Tensor | None) -> Any:
    """A new parameter with these numbers, which is frozen if the parameter is that they are a view of."""
    if value is None or isinstance(value, UninitializedParameter):
        return value
    learns = value.requires_grad or value.is_inference()  # a view of what was made in inference mode cannot tell
    return nn.Parameter(value.detach().clone(), learns)  # clone keeps the layout, which kernels are chosen by


def fill(module: nn.Module, **values: Tensor | None) -> None:
    """Sets parameters of a module that was made without numbers: name=views of a layer's parameters, in any shape of
    the same entries; None is left out.
    """
    for name, value in values.items():
        if value is not None:
            setattr(module, name, parameter(value.reshape(getattr(module, name).shape)))


def stack(linears: Sequence[Linear]) -> Tensor:
    """(K, P, Q) the transposed matrices of the linears."""
    weights = [matrix(linear) for linear in linears]
    first = weights[0]
    check_frozen_alike(*weights)
    if len({(w.dtype, w.device) for w in weights}) > 1:
        raise Unchanged("its matrices differ in dtype or device")
    lazy = [isinstance(w, UninitializedParameter) for w in weights]
    if all(lazy):
        return UninitializedParameter(first.requires_grad, first.device, first.dtype)  # type: ignore[call-arg, arg-type]
    if any(lazy) or len({w.shape for w in weights}) > 1:
        raise Unchanged("its matrices differ in shape")
    return torch.stack([w.t() for w in weights])


def matrix(linear: Any, kind: type[nn.Module] = Linear) -> Any:
    """The (Q, P) of a Linear, of PyG's or of another kind; another module may stand in its place."""
    if type(linear) is not kind:
        raise Unchanged(f"one of its matrices is in a {type(linear).__name__}")
    return linear.weight


def heads_of(linear: Linear, heads: int) -> Tensor:
    """The (H D, P) of a Linear as the (H, P, D) of a parameter."""
    return matrix(linear).unflatten(0, (heads, -1)).transpose(1, 2)


def stackable(first: Linear, second: Linear) -> bool:
    """Whether the matrices of two linears may be one parameter, which is applied to one x."""
    widths = {first.in_channels, second.in_channels}
    return len(widths) == 1 and min(widths) > 0 and first.weight.requires_grad == second.weight.requires_grad


def takes_mean(layer: Any) -> bool:
    """Whether the layer takes the mean of its messages rather than their sum."""
    kind = type(layer.aggr_module)
    if kind not in (SumAggregation, MeanAggregation):
        raise Unchanged(f"aggr={layer.aggr!r} is not linear, or not a sum or mean")
    return kind is MeanAggregation


def adjacency(layer: Any) -> Adjacency:
    """The adjacency as it is given, summed or averaged."""
    return Adjacency("mean" if takes_mean(layer) else None)


def check_sum(layer: Any) -> None:
    """Rejects a mean where the layer has weights of its own before it."""
    if takes_mean(layer):
        raise Unchanged("aggr='mean' over messages that the layer normalises itself")


def check_initialized(layer: Any) -> None:
    """Rejects a layer whose widths are not known yet."""
    if is_lazy(layer):
        raise Unchanged("it is lazy: call it once before")


def check_parameters(*parameters: Tensor | None) -> None:
    """Rejects what stands in the place of a parameter, and complex numbers."""
    if not all(isinstance(p, nn.Parameter | None) for p in parameters):
        raise Unchanged("its weight or bias is not a parameter of it")
    if any(p is not None and p.is_complex() for p in parameters):
        raise Unchanged("its weights are complex")


def check_dropout(dropout: float) -> None:
    """Rejects a dropout of all weights, after which nothing is normalised."""
    if not dropout < 1:
        raise Unchanged(f"dropout={dropout} drops all weights")


def check_frozen_alike(*parameters: Tensor | None) -> None:
    """Rejects parameters that would become one, some of them frozen and some not."""
    if len({p.requires_grad for p in parameters if p is not None}) > 1:
        raise Unchanged("some of its matrices are frozen and some are not")
