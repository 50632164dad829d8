"""Layers that add features of the node itself, in a share, to a sum over its neighbours that has no parameter."""

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GCN2Conv, GINConv, WLConvContinuous
from torch_geometric.nn.dense.linear import Linear

from ..bases import Identity
from ..bases.adjacency import reciprocal, sum_by_target
from ..basis import Basis, EdgeList
from ..graph import Graph
from ..theta import Pass
from .build import adjacency, basis_conv, parameter, takes_mean
from .composite import GraphLayer, WithRoot, copied
from .layers import pair
from .polynomials import polynomial
from .registry import Unchanged, combinations, rule, turned_round


def _narrowing(P: int, Q: int) -> nn.Module:
    return nn.Sequential(nn.Linear(P, Q - 1), nn.ReLU(), nn.Linear(Q - 1, Q))


@rule(
    GCN2Conv,
    "GCNII",
    [
        *({"theta": 0.5, "layer": 2} | one for one in turned_round(GCN2Conv)),
        *combinations({"normalize": False, "shared_weights": False}, aggr=("add", "mean")),
    ],
)
class ConvertedGCN2(GraphLayer):
    r""":math:`y = (1 - \beta) u + \beta u \Theta` for :math:`u = (1 - \alpha) A^\top x + \alpha x_0`; the
    second term of u may have a parameter of its own.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        self.conv = polynomial(layer, [], loops=layer.normalize and layer.add_self_loops)
        first, second = layer.weight1, layer.weight2
        self.first = basis_conv(layer, first.unsqueeze(0), Identity())
        self.second = None if second is None else basis_conv(layer, second.unsqueeze(0), Identity())

    def compute(self, x: Tensor, x_0: Tensor, **call: Any) -> Tensor:
        initial = self.alpha * x_0[: x.shape[0]]
        sums = (1 - self.alpha) * self.conv(x, **call)
        if self.second is None:
            return self._mapped(self.first, sums + initial)
        return self._mapped(self.first, sums) + self._mapped(self.second, initial)

    def _mapped(self, conv: nn.Module, u: Tensor) -> Tensor:
        return (1 - self.beta) * u + self.beta * conv(u)


@rule(GINConv, "GIN, a network behind", [{"eps": 0.3}, {"aggr": "mean"}, {"nn": _narrowing}])
class ConvertedGIN(GraphLayer):
    r""":math:`h(A^\top x + (1 + \epsilon) x)`, for a network h.

    If h begins with a Linear that makes x narrower, its matrix comes before the sum.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__(layer, values="drop", merge=takes_mean(layer))
        if not isinstance(layer.nn, nn.Module):
            raise Unchanged("its network is no nn.Module")
        A, self.eps = adjacency(layer), None
        if isinstance(layer.eps, nn.Parameter):
            self.conv, self.eps = basis_conv(layer, [], A), parameter(layer.eps)
        else:
            own = 1.0 + float(layer.initial_eps if layer.eps.is_meta else layer.eps)
            self.conv = basis_conv(layer, [], A + Identity(), theta=Pass() if own == 1 else Pass([1.0, own]))
        network: Any = copied(layer.nn)
        first: Any = network[0] if type(network) is nn.Sequential and len(network) else network
        self.first = self.bias = None
        if type(first) in (nn.Linear, Linear) and first.weight.shape[0] < first.weight.shape[1]:
            self.first = basis_conv(layer, first.weight.t().unsqueeze(0), Identity())
            self.bias, network = parameter(first.bias), nn.Identity() if network is first else network[1:]
        self.network = network

    def compute(self, x: Any, **call: Any) -> Any:
        if self.first is not None:
            x = self.first(x) if isinstance(x, Tensor) else tuple(None if t is None else self.first(t) for t in x)
        y: Tensor = self.conv(x, **call)
        _, target = pair(x)
        y = y if self.eps is None or target is None else torch.addcmul(y, 1 + self.eps, target)
        return self.network(y if self.bias is None else y + self.bias)


@rule(WLConvContinuous, "continuous Weisfeiler-Lehman", fixed=["flow"])
def wl(layer: Any) -> nn.Module:
    """The mean of a node and of the weighted mean of its neighbours."""
    if layer.flow == "target_to_source":
        raise Unchanged("flow='target_to_source', where PyG divides by the weights of the other direction")
    return WithRoot(layer, basis_conv(layer, [], WeightedMean()), after=_mean_with_root)


def _mean_with_root(y: Tensor, target: Tensor | None) -> Tensor:
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
