"""The layers of PyG on batches of dense adjacency matrices, which are the mask of an attention with equal scores."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import DenseGATConv, DenseGCNConv, DenseGINConv, DenseGraphConv, DenseSAGEConv

from ..bases import Attention, Identity
from ..conv import BasisConv
from ..mechanisms import Additive, Uniform
from ..theta import Heads
from .build import META, basis_conv, check_dropout, check_initialized, fill, heads_of, matrix, parameter
from .composite import Composite, copied
from .registry import Unchanged, rule


class DenseLayer(Composite):
    r""":math:`A^\top x \Theta` for a matrix of each graph in a batch, and what PyG does around it.

    Args:
        layer: that it replaces.
        conv: with an attention that reads the matrix as its mask.
        norm: 'mean', or 'sym', which multiplies the features as well as the sums; both are smaller than the matrices.
        binary: whether entries only say where there is an edge.
        root: of the node's own features, added to the result.
        after: a function of the sum.
        loop: the entry of each node's loop, where the call asks for loops; None for a layer that adds none.
        bias: of the sum, if there is a norm.
    """

    def __init__(
        self,
        layer: Any,
        conv: BasisConv,
        norm: Literal["mean", "sym"] | None = None,
        binary: bool = False,
        root: nn.Module | None = None,
        after: Callable[[Tensor], Tensor] | None = None,
        loop: float | None = None,
        bias: Tensor | None = None,
    ) -> None:
        super().__init__(layer)
        self.conv, self.norm, self.binary, self.root, self.after, self.loop = conv, norm, binary, root, after, loop
        self.bias = parameter(bias)

    def forward(self, x: Tensor, adj: Tensor, mask: Tensor | None = None, add_loop: bool = True) -> Tensor:
        x, adj = x.unsqueeze(0) if x.dim() == 2 else x, adj.unsqueeze(0) if adj.dim() == 2 else adj
        adj = adj if adj.is_floating_point() else adj.to(x.dtype)  # or a mask of truth values would hide entries
        if add_loop and self.loop is not None:
            adj = adj.clone()
            adj.diagonal(dim1=1, dim2=2).fill_(self.loop)
        norm = None if self.norm is None else adj.sum(-1, keepdim=True).clamp(min=1)
        norm = norm if norm is None else norm.pow(-0.5) if self.norm == "sym" else 1 / norm
        A = adj != 0 if self.binary else adj  # (B, N, N), whose entry (n, m) is that of the edge m to n
        if x.shape[0] != A.shape[0]:
            batch = torch.broadcast_shapes(x.shape[:1], A.shape[:1])
            x, A = x.expand(*batch, -1, -1), A.expand(*batch, -1, -1)
        y: Tensor = self.conv(x * norm if norm is not None and self.norm == "sym" else x, mask=A.mT)
        y = y if norm is None else y * norm
        y = y if self.bias is None else y + self.bias
        own = self.own(x, add_loop)
        y = y if own is None else y + own
        y = y if self.after is None else self.after(y)
        return y if mask is None or x.shape[1] == 0 else y * mask.view(-1, x.shape[1], 1).to(x.dtype)

    def own(self, x: Tensor, add_loop: bool) -> Tensor | None:
        """What a node adds to the sum."""
        return None if self.root is None else self.root(x)


def _as_given() -> Attention:
    """The basis of the matrices that the mask gives."""
    return Attention(1, Uniform(), normalize=None)


def _matrices(linear: nn.Linear) -> Tensor:
    """(1, P, Q) of a Linear of torch's, which some of these layers have."""
    weight: Tensor = matrix(linear, nn.Linear)
    return weight.t().unsqueeze(0)


@rule(DenseGCNConv, "GCN, dense")
def gcn(layer: Any) -> nn.Module:
    """The symmetric norm of the matrix with its loops."""
    conv = basis_conv(layer, [layer.lin], _as_given())
    return DenseLayer(layer, conv, "sym", loop=2.0 if layer.improved else 1.0, bias=layer.bias)


@rule(DenseGraphConv, "GraphConv, dense", [{"aggr": "mean"}])
def graph(layer: Any) -> nn.Module:
    """The sum or mean over the neighbours, and the root."""
    if layer.aggr == "max":
        raise Unchanged("aggr='max' is not linear")
    conv = basis_conv(layer, _matrices(layer.lin_rel), _as_given())
    root = basis_conv(layer, _matrices(layer.lin_root), Identity())
    return DenseLayer(layer, conv, "mean" if layer.aggr == "mean" else None, root=root, bias=layer.lin_rel.bias)


@rule(DenseSAGEConv, "SAGE, dense")
def sage(layer: Any) -> nn.Module:
    """The mean over the neighbours, and the root."""
    conv = basis_conv(layer, _matrices(layer.lin_rel), _as_given())
    root = basis_conv(layer, _matrices(layer.lin_root), Identity(), layer.lin_root.bias)
    after = partial(F.normalize, p=2.0, dim=-1) if layer.normalize else None
    return DenseLayer(layer, conv, "mean", root=root, after=after)


@rule(DenseGINConv, "GIN, dense", [{"train_eps": True, "eps": 0.3}])
class ConvertedDenseGIN(DenseLayer):
    """The sum over the neighbours and the node, weighted by 1 + eps, and then a network."""

    def __init__(self, layer: Any) -> None:
        super().__init__(layer, basis_conv(layer, [], _as_given()), after=copied(layer.nn))
        learns = isinstance(layer.eps, nn.Parameter)
        self.eps = parameter(layer.eps) if learns else float(layer.initial_eps if layer.eps.is_meta else layer.eps)

    def own(self, x: Tensor, add_loop: bool) -> Tensor | None:
        if not add_loop:
            return None
        learnt = next(self.parameters(), x)  # in the dtype of PyG's eps, which makes that of the sum
        return (1 + self.eps) * x.to(torch.promote_types(x.dtype, learnt.dtype))


@rule(DenseGATConv, "GAT, dense", [{"heads": 3, "concat": False, "negative_slope": 0.4}, {"heads": 2}])
def gat(layer: Any) -> nn.Module:
    """Attention to the neighbours; a node without any gets the bias, where PyG's softmax of nothing is NaN."""
    check_initialized(layer)
    check_dropout(layer.dropout)
    score = Additive(projected=True)
    attention = Attention(layer.heads, score.then(nn.LeakyReLU(layer.negative_slope)), dropout=layer.dropout)
    attention.draws_at_once = True
    theta = Heads("concat" if layer.concat else "mean")
    Q = layer.out_channels * (layer.heads if layer.concat else 1)
    with META:
        conv = BasisConv(layer.lin.in_channels, Q, attention, theta, bias=False)
    fill(conv.theta, weight=heads_of(layer.lin, layer.heads))
    fill(score, source=layer.att_src, target=layer.att_dst)
    conv.bias = parameter(layer.bias)
    return DenseLayer(layer, conv, binary=True, loop=1.0)
