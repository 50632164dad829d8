"""Attention between nodes of several types, along edges of several types with features."""

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import HEATConv

from ..kernels import Affine, repeated
from ..mechanisms import Additive, Edge
from ..theta import Heads
from ..theta.base import param
from .attention import attention_conv
from .build import META, check_initialized, fill, matrix
from .composite import GraphLayer
from .edges import read_edges, with_features
from .operator_module import OperatorModule
from .registry import rule
from .typed_linear import TypedLinear


def _of_last(weight: Tensor, skipped: int, heads: int) -> Affine:
    """A matrix of all heads, (1, R, D), as the map of features of which the first are skipped."""
    found = repeated(F.pad(weight, (0, 0, skipped, 0)), None, heads)
    return found._replace(made=(partial(_of_last, skipped=skipped, heads=heads), (weight,)))


class OfLast(Heads):
    """Values of the last features of edges alone, by one matrix for all members."""

    def __init__(self, skipped: int, combine: Literal["concat", "mean"]) -> None:
        super().__init__(combine, shared=True)
        self.skipped = skipped

    def shape(self, K: int, P: int, Q: int) -> tuple[int, ...]:
        return super().shape(K, P - self.skipped, Q)

    @property
    def map(self) -> Affine:
        return _of_last(param(self, "weight"), self.skipped, self.K)


@rule(
    HEATConv,
    "HEAT",
    [{"heads": 3}, {"heads": 2, "concat": False, "negative_slope": 0.4}, {"heads": 2, "aggr": "mean"}],
    node_dim=0,
)
class ConvertedHEAT(OperatorModule, GraphLayer):
    r"""Attention on :math:`h_m = x_m W_{t(m)} + b_{t(m)}`, whose values are :math:`h_m U + z_{mn} V + c` for all heads.

    The scores read a vector of each type of edges, too: these stand before z in what the attention has as features.
    """

    kept = ("edge_type_emb", "edge_attr_emb")

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        check_initialized(layer)
        typed, D, H = layer.hetero_lin, layer.out_channels, layer.heads
        self.width = Q = D * (H if layer.concat else 1)
        self.nodes = TypedLinear(typed.weight, typed.bias)
        of_target, of_source, of_edge = matrix(layer.att).split([D, D, matrix(layer.att).shape[1] - 2 * D], 1)
        R, T = of_edge.shape[1], layer.edge_type_emb.embedding_dim
        combine: Literal["concat", "mean"] = "concat" if layer.concat else "mean"
        ends, edge = Additive(), Edge(R)
        score = (ends + edge).then(nn.LeakyReLU(layer.negative_slope))
        theta = Heads(combine, layer.lin.bias is not None, shared=True)
        self.conv = attention_conv(layer, H, score, theta, D, Q, dropout=layer.dropout)
        with META:
            self.of_edges = OfLast(T, combine).build(H, R, Q)
        of_nodes, of_features = matrix(layer.lin).split([D, R - T], 1)
        fill(ends, source=of_source, target=of_target)
        fill(edge, weight=of_edge)
        fill(self.conv.theta, weight=of_nodes.t(), value_bias=layer.lin.bias)
        fill(self.of_edges, weight=of_features.t())

    def compute(self, **call: Any) -> Tensor:
        call = with_features(call)
        x, kinds, N = call["x"], call["node_type"], call["x"].shape[0]
        edges = read_edges(call["edge_index"], False, N, self.flow).edge_index
        h = self.nodes(x, kinds)
        z = torch.cat([self.edge_type_emb(call["edge_type"]), self.edge_attr_emb(call["edge_attr"])], 1)
        z = F.leaky_relu(z, self.negative_slope)
        y: Tensor = self.conv(h, edges, edge_attr=z, edge_values=self.of_edges)
        if not self.root_weight:
            return y
        return (y.unflatten(-1, (self.heads, -1)) + h.unsqueeze(-2)).flatten(-2) if self.concat else y + h
