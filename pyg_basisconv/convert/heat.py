"""Attention between nodes of several types, along edges of several types with features."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import HEATConv

from ..bases import Relations
from ..cache import IdentityCache
from ..mechanisms import Additive, Edge
from ..theta import Pass
from .attention import attention_conv
from .build import basis_conv, check_initialized, fill, matrix, parameter
from .edges import read_edges, with_features
from .layers import Signature
from .operator_module import OperatorModule
from .registry import rule

_LOOPS = IdentityCache()


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

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        check_initialized(layer)
        self.call, self.heads, self.slope = Signature.of(layer), layer.heads, layer.negative_slope
        self.concat, self.root_weight = layer.concat, layer.root_weight
        typed, D = layer.hetero_lin, layer.out_channels
        self.nodes = basis_conv(layer, typed.weight, Relations(typed.num_types))
        self.biases = parameter(typed.bias)
        self.type_embedding, self.edge_map, self.value = map(
            deepcopy, (layer.edge_type_emb, layer.edge_attr_emb, layer.lin)
        )
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
        edges = read_edges(call["edge_index"], False, N, self.conv.flow).edge_index
        loops = _LOOPS.get((kinds,), (), lambda: torch.arange(N, device=kinds.device).expand(2, N).contiguous())
        h = self.nodes(x, loops, edge_type=kinds)
        h = h if self.biases is None else h + self.biases.index_select(0, kinds)
        embedded = F.leaky_relu(self.type_embedding(call["edge_type"]), self.slope)
        z = F.leaky_relu(self.edge_map(call["edge_attr"]), self.slope)
        sums, A = self.conv(h, edges, edge_attr=torch.cat([embedded, z], 1), return_attention=True)
        of_edges = A.incidence.expand(F.pad(z, (0, 1), value=1.0)).movedim(0, -2)  # (N, H, R + 1), the last for c
        sums = torch.cat([sums.unflatten(-1, (self.heads, -1)), of_edges[..., :-1]], -1)
        y = sums @ self.value.weight.t()
        y = y if self.value.bias is None else y + of_edges[..., -1:] * self.value.bias
        y = y if self.concat else y.mean(-2, keepdim=True)
        y = y + h.unsqueeze(-2) if self.root_weight else y
        return y.flatten(-2)

    def likeness(self, given: dict[str, Any], unknown: Callable[[], int]) -> list[Tensor]:
        x = given["x"]
        return [x.new_empty(x.shape[0], self.nodes.theta.Q * (self.heads if self.concat else 1))]
