"""The layers that add the neighbours' features and the node's own."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import ClusterGCNConv, GraphConv, LEConv, SAGEConv, SimpleConv
from torch_geometric.nn.dense.linear import Linear

from ..bases import Adjacency, Degree, Identity, Mix
from ..basis import Basis, EdgeList
from ..conv import BasisConv
from ..graph import Graph
from .build import agree, basis_conv, mean, only_sum, plain
from .layers import Beside, Normalize, Parts, Signature, one, pair, reset
from .registry import REVERSED, Left, over, rule


def rooted(
    layer: Any,
    call: Signature,
    basis: Basis,
    neighbour: Linear,
    root: Linear | None,
    before: nn.Module | None = None,
    after: nn.Module | None = None,
) -> nn.Module:
    """Neighbours and the node itself, in one BasisConv where they read the same features, and in two otherwise."""
    if root is not None and root.bias is not None:
        raise Left("the matrix of its root has a bias")
    linears, family = [neighbour], basis
    apart = root is not None and (before is not None or not agree(neighbour, root))
    if root is not None and not apart:
        linears, family = [neighbour, root], basis + Identity()
    if not apart and before is None and after is None:
        return basis_conv(layer, linears, family, neighbour.bias, call=call)
    conv = basis_conv(layer, linears, family, neighbour.bias)
    own = basis_conv(layer, [root], Identity()) if root is not None and apart else None
    return Parts(call, conv, own, before, after)


@rule(GraphConv, "GraphConv", [{}, {"aggr": "mean"}, {"bias": False}, REVERSED])
def graph(layer: Any) -> nn.Module:
    """The sum or mean of the weighted neighbours, and the root."""
    return rooted(layer, Signature.of(layer, merge=mean(layer)), plain(layer), layer.lin_rel, layer.lin_root)


@rule(
    SAGEConv,
    "SAGE",
    [
        {},
        {"aggr": "sum"},
        *over(normalize=(True,), root_weight=(True, False)),
        {"root_weight": False},
        {"project": True},
        {"project": True, "normalize": True, "root_weight": False},
        {"bias": False},
        REVERSED,
    ],
)
def sage(layer: Any) -> nn.Module:
    """The same, unweighted; optionally a non-linear projection before and a normalisation after."""
    if layer.project and layer.flow == "target_to_source":
        raise Left("project=True with flow='target_to_source', where PyG leaves the projection out")
    call, basis = Signature.of(layer, values="drop", merge=mean(layer)), plain(layer)
    root = layer.lin_r if layer.root_weight else None
    before = nn.Sequential(deepcopy(layer.lin), nn.ReLU()) if layer.project else None
    return rooted(layer, call, basis, layer.lin_l, root, before, Normalize() if layer.normalize else None)


@rule(
    ClusterGCNConv,
    "Cluster-GCN",
    [
        {},
        *over({"diag_lambda": 0.7}, add_self_loops=(True, False)),
        {"bias": False},
        {"diag_lambda": 0.7} | REVERSED,
    ],
)
def cluster(layer: Any) -> BasisConv:
    """The enhanced mean over a node and its neighbours, and the root; PyG counts by column, whatever the flow."""
    only_sum(layer)
    A = EnhancedMean(layer.diag_lambda, layer.add_self_loops, outgoing=layer.flow == "target_to_source")
    call = Signature.of(layer, values="reject", merge=True)
    return basis_conv(layer, [layer.lin_out, layer.lin_root], A + Identity(), layer.lin_out.bias, call=call)


class EnhancedMean(Basis):
    r""":math:`A + \lambda \, diag(A)` for the unweighted mean A, `Adjacency('mean', loops, 'replace', diagonal)`.

    Whatever the dtype of x, PyG computes it in torch's default dtype, and to the bit so does this.

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
        # What is bound is kept under this name, which has to tell the dtypes apart.
        shown = f"diagonal={self.diagonal}" + ("" if self.self_loops else ", self_loops=False")
        return shown + (", outgoing=True" if self.outgoing else "") + f", dtype={torch.get_default_dtype()}"


@rule(
    SimpleConv,
    "sum and mean",
    [*over(aggr=("sum", "mean"), combine_root=(None, "sum", "cat", "self_loop")), {"aggr": "add"} | REVERSED],
)
def simple(layer: Any) -> nn.Module:
    """Sum or mean without a parameter, alone, or added to the node itself, or beside it."""
    call, A = Signature.of(layer, merge=mean(layer)), plain(layer)
    if layer.combine_root == "cat":
        return Parts(call, basis_conv(layer, [], A), after=Beside())
    if layer.combine_root == "sum":
        return basis_conv(layer, [], A + Identity(), call=call)
    if layer.combine_root is None:
        return basis_conv(layer, [], A, call=call)
    added = Adjacency(A.norm, True, existing="add")
    others = {"sparse": added, "sparse_tensor": Adjacency(A.norm, True, existing="replace")}
    return basis_conv(layer, [], LoopedMean() if mean(layer) else added, call=call, others=others)


class LoopedMean(Basis):
    """The mean over the edges into n and one more, from n to itself.

    >>> LoopedMean().bind(torch.tensor([[0], [1]])).to_coo().to_dense()
    tensor([[[1.0000, 0.5000],
             [0.0000, 0.5000]]])
    """

    def __init__(self) -> None:
        super().__init__(1)

    def edges(self, graph: Graph) -> EdgeList:
        nodes = torch.arange(graph.N, device=graph.device)
        target = torch.cat([graph.structure.target.long(), nodes])
        source = torch.cat([graph.structure.source.long(), nodes])
        count = torch.bincount(target, minlength=graph.N)
        weight = torch.cat([graph.weights, nodes.new_ones(graph.N).to(graph.acc_dtype)])
        return EdgeList(torch.zeros_like(target), source, target, weight / count[target])


@rule(LEConv, "local extremum", [{}, {"bias": False}, REVERSED])
def le(layer: Any) -> nn.Module:
    """A local extremum."""
    only_sum(layer)
    return LocalExtremum(layer)


class LocalExtremum(nn.Module):
    r""":math:`y = A^\top x \Theta_1 - D x \Theta_2 + x \Theta_3 + b_3 + A^\top 1 b_1`, as LEConv.

    The bias of what is sent along the edges, :math:`b_1`, arrives once for each of them: it is a convolution of the
    constant 1. Where sources and targets differ in width they have a BasisConv each.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        less = Mix([-1.0], Degree())
        first, rest = [layer.lin1], [layer.lin2, layer.lin3]
        self.root = None
        if agree(layer.lin1, layer.lin3):
            self.conv = basis_conv(layer, first + rest, Adjacency() + less + Identity(), layer.lin3.bias)
        else:
            self.conv = basis_conv(layer, first, Adjacency())
            self.root = basis_conv(layer, rest, less + Identity(), layer.lin3.bias)
        self.constant = None
        if layer.lin1.bias is not None:
            with torch.device("meta"):
                self.constant = BasisConv(1, layer.lin1.out_channels, Adjacency(), bias=False, flow=layer.flow)
            bias = layer.lin1.bias
            self.constant.theta.weight = nn.Parameter(bias.detach().clone().view(1, 1, -1), bias.requires_grad)

    def forward(self, x: Any, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        if self.conv.flow != "source_to_target":
            x = one(x)
        source, target = pair(x)
        y: Tensor = self.conv((source, target), edge_index, edge_weight)
        if self.root is not None:
            assert target is not None
            nothing = source.new_zeros(*source.shape[:-1], target.shape[-1])
            y = y + self.root((nothing, target), edge_index, edge_weight)
        if self.constant is not None:
            y = y + self.constant((source.new_ones(source.shape[-2], 1), target), edge_index, edge_weight)
        return y

    def reset_parameters(self) -> None:
        """Draws all parameters anew."""
        reset(self.children())
