"""Layers that add features of the node itself, in a share, to a sum over its neighbours that has no parameter."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GCN2Conv, GINConv, WLConvContinuous

from ..bases import Identity
from ..bases.adjacency import reciprocal, sum_by_target
from ..basis import Basis, EdgeList
from ..graph import Graph
from .build import adjacency, basis_conv, parameter, takes_mean
from .layers import Composite, Signature, WithRoot, pair
from .polynomials import polynomial
from .registry import Left, combinations, rule, turned_round


@rule(
    GCN2Conv,
    "GCNII",
    [
        *({"theta": 0.5, "layer": 2} | one for one in turned_round(GCN2Conv)),
        *combinations({"normalize": False, "shared_weights": False}, aggr=("add", "mean")),
    ],
)
class ConvertedGCN2(Composite):
    r""":math:`y = (1 - \beta) u + \beta u \Theta` for :math:`u = (1 - \alpha) A^\top x + \alpha x_0`; the
    second term of u may have a parameter of its own.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.call, self.alpha, self.beta = Signature.of(layer), layer.alpha, layer.beta
        self.conv = polynomial(layer, [], loops=layer.normalize and layer.add_self_loops)
        first, second = layer.weight1, layer.weight2
        self.first = basis_conv(layer, first.unsqueeze(0), Identity())
        self.second = None if second is None else basis_conv(layer, second.unsqueeze(0), Identity())

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        call = self.call.read(args, kwargs)
        initial = self.alpha * call.pop("x_0")[: call["x"].shape[0]]
        sums = (1 - self.alpha) * self.conv(**call)
        if self.second is None:
            return self._mapped(self.first, sums + initial)
        return self._mapped(self.first, sums) + self._mapped(self.second, initial)

    def _mapped(self, conv: nn.Module, u: Tensor) -> Tensor:
        return (1 - self.beta) * u + self.beta * conv(u)


@rule(GINConv, "GIN, a network behind", [{"eps": 0.3}, {"aggr": "mean"}])
class ConvertedGIN(Composite):
    r""":math:`h(A^\top x + (1 + \epsilon) x)`, for a network h."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        if not isinstance(layer.nn, nn.Module):
            raise Left("its network is no nn.Module")
        self.call = Signature.of(layer, values="drop", merge=takes_mean(layer))
        self.conv = basis_conv(layer, [], adjacency(layer))
        self.initial_eps = layer.initial_eps
        if isinstance(layer.eps, nn.Parameter):
            self.eps: Tensor = parameter(layer.eps)
        else:
            self.register_buffer("eps", layer.eps.clone(), persistent=False)
        # A drop-in reads `clone` as the tensor itself, so that it shares the running means of a normalisation.
        self.network = deepcopy(layer.nn, {id(b): b.clone() for b in layer.nn.buffers()})

    def reset_parameters(self) -> None:
        super().reset_parameters()
        with torch.no_grad():
            self.eps.fill_(self.initial_eps)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        call = self.call.read(args, kwargs)
        source, target = pair(call.pop("x"))
        y: Tensor = self.conv((source, target), **call)
        y = self.network(y if target is None else y + (1 + self.eps) * target)
        return y


@rule(WLConvContinuous, "continuous Weisfeiler-Lehman", fixed=["flow"])
def wl(layer: Any) -> nn.Module:
    """The mean of a node and of the weighted mean of its neighbours."""
    if layer.flow == "target_to_source":
        raise Left("flow='target_to_source', where PyG divides by the weights of the other direction")
    return WithRoot(Signature.of(layer), basis_conv(layer, [], WeightedMean()), after=_halfway)


def _halfway(y: Tensor, target: Tensor | None) -> Tensor:
    return y if target is None else 0.5 * (target + y)


class WeightedMean(Basis):
    r""":math:`W_{mn} / \sum_m W_{mn}`; division by zero gives zero.

    >>> WeightedMean().bind(torch.tensor([[0, 1], [1, 1]]), torch.tensor([3.0, 1.0])).to_coo().to_dense()
    tensor([[[0.0000, 0.7500],
             [0.0000, 0.2500]]])
    """

    def __init__(self) -> None:
        super().__init__(1)

    def edges(self, graph: Graph) -> EdgeList:
        s, weight = graph.structure, graph.weights
        inverse = reciprocal(sum_by_target(s.pattern, weight, graph.acc_dtype))
        return EdgeList(torch.zeros_like(s.target), s.source, s.target, weight * s.at_target(inverse))
