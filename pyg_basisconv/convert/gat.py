"""The layers whose scores are sums of a term of the source and one of the target."""

from copy import deepcopy
from typing import Any

from torch import nn
from torch_geometric.nn import GATConv, GATv2Conv

from ..mechanisms import MLP, Additive, Edge, Mechanism
from .attention import AttentionLayer, multihead_conv
from .build import fill, heads_of
from .registry import combinations, rule, turned_round


@rule(
    GATConv,
    "GAT",
    [
        {"heads": 3, "concat": False, "negative_slope": 0.4},
        {"heads": 2, "concat": False, "residual": True, "bias": False},
        *combinations({"heads": 2, "edge_dim": 3}, fill_value=("mean", "add", 0.7, "max")),
        {"edge_dim": 1},
        {"heads": 2, "aggr": "mean"},
        *({"heads": 2, "edge_dim": 3} | one for one in turned_round(GATConv)),
    ],
    node_dim=0,
)
def gat(layer: Any) -> nn.Module:
    r""":math:`LeakyReLU(s_k \cdot x_m \Theta_k + t_k \cdot x_n \Theta_k)`, and a term of the edge."""
    shared = layer.lin is not None
    source, target = (layer.lin, layer.lin) if shared else (layer.lin_src, layer.lin_dst)
    additive = Additive(projected=True, target="shared" if shared else "own")
    edge = Edge(layer.edge_dim, inner=layer.out_channels) if layer.edge_dim else None
    score: Mechanism = additive if edge is None else additive + edge
    score = score.then(nn.LeakyReLU(layer.negative_slope))
    conv = multihead_conv(layer, score, source, None if shared else target, bias=layer.bias)
    fill(additive, source=layer.att_src, target=layer.att_dst)
    if not shared:
        fill(additive, weight=heads_of(target, layer.heads))
    if edge is not None:
        fill(edge, weight=heads_of(layer.lin_edge, layer.heads), out=layer.att_edge)
    return AttentionLayer(layer, conv, root=deepcopy(layer.res), target_width=target.in_channels)


@rule(
    GATv2Conv,
    "GATv2",
    [
        {"heads": 3, "concat": False, "negative_slope": 0.4},
        {"heads": 2, "share_weights": True, "bias": False},
        *combinations({"heads": 2, "edge_dim": 3}, fill_value=("mean", "add", 0.7)),
        *({"heads": 2, "edge_dim": 3} | one for one in turned_round(GATv2Conv)),
    ],
    node_dim=0,
)
def gatv2(layer: Any) -> nn.Module:
    r""":math:`a_k \cdot LeakyReLU(x_m \Theta_k + x_n \Theta'_k)`, with a term of the edge inside."""
    source, target, H = layer.lin_l, None if layer.share_weights else layer.lin_r, layer.heads
    score = MLP(
        projected=True,
        activation=nn.LeakyReLU(layer.negative_slope),
        target="shared" if target is None else "own",
        bias=target is not None and target.bias is not None,
        edge_dim=layer.edge_dim or 0,
    )
    conv = multihead_conv(layer, score, source, target, bias=layer.bias)
    fill(score, out=layer.att)
    if target is not None:
        fill(score, target=heads_of(target, H), bias=target.bias)
    if layer.edge_dim:
        fill(score, edge=heads_of(layer.lin_edge, H))
    return AttentionLayer(layer, conv, root=deepcopy(layer.res))
