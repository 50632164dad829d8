"""Attention between nodes of several types, along edges of several types with features."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import HEATConv

from ..bases import Relations
from ..cache import once
from ..mechanisms import Additive, Edge
from ..theta import Pass
from .attention import attention_conv
from .build import basis_conv, check_initialized, fill, matrix, parameter
from .edges import read_edges, with_features
from .operator_module import OperatorModule
from .registry import rule


@rule(
    HEATConv,
    "HEAT",
    [{"heads": 3}, {"heads": 2, "concat": False, "negative_slope": 0.4}, {"heads": 2, "aggr": "mean"}],
    node_dim=0,
)
class ConvertedHEAT(OperatorModule):
    r"""Attention on :math:`h_m = x_m W_{t(m)} + b_{t(m)}`, whose values are :math:`h_m U + z_{mn} V + c`.

    The heads share the matrices of the values: they are multiplied once for each target, after the sum.
    """

    kept = ("edge_type_emb", "edge_attr_emb", "lin")

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        check_initialized(layer)
        typed, D = layer.hetero_lin, layer.out_channels
        self.width = D * (layer.heads if layer.concat else 1)
        self.nodes = basis_conv(layer, typed.weight, Relations(typed.num_types))
        self.biases = parameter(typed.bias)
        of_target, of_source, of_edge = matrix(layer.att).split([D, D, matrix(layer.att).shape[1] - 2 * D], 1)
        ends, edge = Additive(), Edge(of_edge.shape[1])
        score = (ends + edge).then(nn.LeakyReLU(layer.negative_slope))
        theta = Pass(combine="concat")
        self.conv = attention_conv(layer, layer.heads, score, theta, D, D * layer.heads, dropout=layer.dropout)
        fill(ends, source=of_source, target=of_target)
        fill(edge, weight=of_edge)

    def compute(self, **call: Any) -> Tensor:
        call = with_features(call)
        x, kinds, N = call["x"], call["node_type"], call["x"].shape[0]
        edges = read_edges(call["edge_index"], False, N, self.flow).edge_index
        h = self.nodes(x, loops_at(kinds), edge_type=kinds)
        h = h if self.biases is None else h + self.biases.index_select(0, kinds)
        embedded = F.leaky_relu(self.edge_type_emb(call["edge_type"]), self.negative_slope)
        z = F.leaky_relu(self.edge_attr_emb(call["edge_attr"]), self.negative_slope)
        sums, A = self.conv(h, edges, edge_attr=torch.cat([embedded, z], 1), return_attention=True)
        of_edges = A.incidence.expand(F.pad(z, (0, 1), value=1.0)).movedim(0, -2)  # (N, H, R + 1), the last for c
        sums = torch.cat([sums.unflatten(-1, (self.heads, -1)), of_edges[..., :-1]], -1)
        y: Tensor = sums @ self.lin.weight.t()
        y = y if self.lin.bias is None else y + of_edges[..., -1:] * self.lin.bias
        y = y if self.concat else y.mean(-2, keepdim=True)
        y = y + h.unsqueeze(-2) if self.root_weight else y
        return y.flatten(-2)


@once
def loops_at(kinds: Tensor) -> Tensor:
    """A loop for each node, whose types these are."""
    return torch.arange(len(kinds), device=kinds.device).expand(2, -1).contiguous()
