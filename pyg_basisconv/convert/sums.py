"""Layers that add the features of the neighbours and the node's own."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import (
    ClusterGCNConv,
    GCN2Conv,
    GINConv,
    GraphConv,
    LEConv,
    SAGEConv,
    SimpleConv,
    WLConvContinuous,
)
from torch_geometric.nn.dense.linear import Linear
from torch_geometric.nn.models.linkx import SparseLinear

from ..bases import Adjacency, Identity
from ..bases.adjacency import check_square, reciprocal, sum_by_target
from ..basis import Basis, EdgeList
from ..conv import BasisConv
from ..graph import Graph
from ..theta import Pass
from .build import adjacency, basis_conv, check_sum, parameter, stackable, takes_mean
from .composite import GraphLayer, WithRoot, after_root, copied, normalized
from .layers import Signature, both, pair
from .polynomials import polynomial
from .registry import Options, Unchanged, combinations, rule, turned_round


def with_root(
    layer: Any,
    basis: Basis,
    neighbour: Linear,
    root: Linear | None,
    before: nn.Module | None = None,
    after: Callable[[Tensor, Tensor | None], Tensor] | None = None,
    **reads: Any,
) -> nn.Module:
    """Neighbours and the node itself: one BasisConv where they read the same features, and two otherwise."""
    linears, bias, own = [neighbour], neighbour.bias, None
    biases = root is not None and root.bias is not None and bias is not None
    if root is not None and before is None and not biases and stackable(neighbour, root):
        linears, basis, bias = [neighbour, root], basis + Identity(), root.bias if bias is None else bias
    elif root is not None:
        own = basis_conv(layer, [root], Identity(), root.bias)
    if own is None and before is None and after is None:
        return basis_conv(layer, linears, basis, bias, call=Signature.of(layer, **reads))
    return WithRoot(layer, basis_conv(layer, linears, basis, bias), own, before, after, **reads)


@rule(GraphConv, "GraphConv", [{"aggr": "mean"}])
def graph(layer: Any) -> nn.Module:
    """The sum or mean of the weighted neighbours, and the root."""
    return with_root(layer, adjacency(layer), layer.lin_rel, layer.lin_root)


@rule(
    SAGEConv, "SAGE", [{"aggr": "sum"}, *combinations({"normalize": True, "root_weight": False}, project=(True, False))]
)
def sage(layer: Any) -> nn.Module:
    """The same, unweighted; optionally a non-linear projection before and a normalisation after."""
    if layer.project and layer.flow == "target_to_source":
        raise Unchanged("project=True with flow='target_to_source', where PyG leaves the projection out")
    root = layer.lin_r if layer.root_weight else None
    before = nn.Sequential(copied(layer.lin), nn.ReLU()) if layer.project else None
    around = before, normalized if layer.normalize else None
    return with_root(layer, adjacency(layer), layer.lin_l, root, *around, values="drop")


@rule(ClusterGCNConv, "Cluster-GCN", [{"diag_lambda": 0.7} | one for one in turned_round(ClusterGCNConv)])
def cluster(layer: Any) -> BasisConv:
    """The enhanced mean over a node and its neighbours, and the root; PyG counts by column, whatever the flow."""
    check_sum(layer)
    A = EnhancedMean(layer.diag_lambda, layer.add_self_loops, outgoing=layer.flow == "target_to_source")
    call = Signature.of(layer, values="reject", merge=True)
    return basis_conv(layer, [layer.lin_out, layer.lin_root], A + Identity(), layer.lin_out.bias, call=call)


class EnhancedMean(Basis):
    r""":math:`A + \lambda \, diag(A)` for the unweighted mean A, `Adjacency('mean', loops, 'replace', diagonal)`.

    As in PyG, it is computed in torch's default dtype, whatever the dtype of x.

    Args:
        diagonal: lambda.
        self_loops: whether each node has just one loop.
        outgoing: divide by the number of edges out of m, not into n.

    >>> EnhancedMean(1.0).bind(torch.tensor([[0], [1]])).to_coo().to_dense()
    tensor([[[2.0000, 0.5000],
             [0.0000, 1.0000]]])
    """

    def __init__(self, diagonal: float, self_loops: bool = True, outgoing: bool = False) -> None:
        super().__init__(1)
        self.diagonal, self.self_loops, self.outgoing = float(diagonal), self_loops, outgoing

    def edges(self, graph: Graph) -> EdgeList:
        source, target = graph.structure.source.long(), graph.structure.target.long()
        if self.self_loops:
            nodes, plain = torch.arange(graph.N, device=graph.device), source != target
            source, target = torch.cat([source[plain], nodes]), torch.cat([target[plain], nodes])
        counted = source if self.outgoing else target
        count = torch.bincount(counted, minlength=graph.N).to(torch.get_default_dtype())
        weight = (1 / count)[counted]
        weight = torch.where(source == target, weight + self.diagonal * weight, weight)
        return EdgeList(torch.zeros_like(source), source, target, weight)

    def extra_repr(self) -> str:
        # The repr is the cache key of what is bound, so it has to tell dtypes apart.
        shown = f"diagonal={self.diagonal}" + ("" if self.self_loops else ", self_loops=False")
        return shown + (", outgoing=True" if self.outgoing else "") + f", dtype={torch.get_default_dtype()}"


@rule(SimpleConv, "sum and mean", combinations(aggr=("sum", "mean"), combine_root=(None, "sum", "cat", "self_loop")))
def simple(layer: Any) -> nn.Module:
    """A sum or mean without parameters; with the node's features added or concatenated, or with self loops."""
    call, A = Signature.of(layer), adjacency(layer)
    if layer.combine_root == "cat":
        return WithRoot(layer, basis_conv(layer, [], A), after=after_root)
    if layer.combine_root == "sum":
        return basis_conv(layer, [], A + Identity(), call=call)
    if layer.combine_root is None:
        return basis_conv(layer, [], A, call=call)
    added = Adjacency(A.norm, True, existing="add")
    others = {"sparse": added, "sparse_tensor": Adjacency(A.norm, True, existing="replace")}
    return basis_conv(layer, [], LoopedMean() if takes_mean(layer) else added, call=call, others=others)


class LoopedMean(Basis):
    """The mean over the edges into n and one more, from n to itself.

    >>> LoopedMean().bind(torch.tensor([[0], [1]])).to_coo().to_dense()
    tensor([[[1.0000, 0.5000],
             [0.0000, 0.5000]]])
    """

    def __init__(self) -> None:
        super().__init__(1)

    def edges(self, graph: Graph) -> EdgeList:
        check_square(graph, "for self loops", "make the layer with another combine_root")
        nodes = torch.arange(graph.N, device=graph.device)
        target = torch.cat([graph.structure.target.long(), nodes])
        source = torch.cat([graph.structure.source.long(), nodes])
        count = torch.bincount(target, minlength=graph.N)
        weight = torch.cat([graph.weights, nodes.new_ones(graph.N).to(graph.acc_dtype)])
        return EdgeList(torch.zeros_like(target), source, target, weight / count[target])


@rule(SparseLinear)
class ConvertedSparseLinear(GraphLayer):
    r""":math:`A^\top W + b`, of LINKX, for rows of W in the place of features."""

    kept = ("weight",)

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        self.conv = basis_conv(layer, [], adjacency(layer), layer.bias)

    def forward(self, edge_index: Any, edge_weight: Tensor | None = None) -> Any:
        return self.conv(self.weight, edge_index, edge_weight)


@rule(LEConv, "local extremum")
class ConvertedLE(GraphLayer):
    r""":math:`y = A^\top x \Theta_1 + x \Theta_3 + b_3 + A^\top 1 \odot (b_1 - x \Theta_2)`, as LEConv.

    What each message has of its target is added for each edge: :math:`A^\top 1` is a convolution of the constant 1.
    Sources and targets of different widths have a BasisConv each.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        check_sum(layer)
        A, first, last, bias = Adjacency(), layer.lin1, layer.lin3, layer.lin3.bias
        self.root = None
        if stackable(first, last):
            self.conv = basis_conv(layer, [first, last], A + Identity(), bias)
        else:
            self.conv, self.root = basis_conv(layer, [first], A), basis_conv(layer, [last], Identity(), bias)
        self.own, self.sums = basis_conv(layer, [layer.lin2], Identity()), basis_conv(layer, [], A)
        self.bias = parameter(first.bias)

    def compute(self, x: Any, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        source, target = both(x, "LEConv")
        y: Tensor = self.conv((source, target), edge_index, edge_weight)
        if self.root is not None:
            y = y + self.root(target)
        ones = torch.ones(source.shape[-2], 1, dtype=source.dtype, device=source.device)
        size, own = (source.shape[-2], target.shape[-2]), self.own(target)
        sums = self.sums((ones, None), edge_index, edge_weight, size=size)
        return y - sums * (own if self.bias is None else own - self.bias)


_NARROWING: Options = {"nn": lambda P, Q: nn.Sequential(nn.Linear(P, Q - 1), nn.ReLU(), nn.Linear(Q - 1, Q))}


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
        sums = (1 - self.alpha) * self.conv(x, **call)
        initial = self.alpha * x_0[: len(sums)]
        if self.second is None:
            return self._mapped(self.first, sums + initial)
        return self._mapped(self.first, sums) + self._mapped(self.second, initial)

    def _mapped(self, conv: nn.Module, u: Tensor) -> Tensor:
        return (1 - self.beta) * u + self.beta * conv(u)


@rule(GINConv, "GIN, a network behind", [{"eps": 0.3}, {"aggr": "mean"}, _NARROWING])
class ConvertedGIN(GraphLayer):
    r""":math:`h(A^\top x + (1 + \epsilon) x)`, for a network h.

    If h begins with a Linear that makes x narrower, its matrix comes before the sum.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__(layer, values="drop")
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
        if self.eps is not None:
            _, target = pair(x)
            y = y if target is None else torch.addcmul(y, 1 + self.eps, target)
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
        inverse = reciprocal(sum_by_target(s.expand, weight, graph.acc_dtype))
        return EdgeList(torch.zeros_like(s.target), s.source, s.target, weight * s.at_target(inverse))
