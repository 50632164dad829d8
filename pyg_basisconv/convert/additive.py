"""The layers whose scores are sums of a term of the source and one of the target."""

from copy import deepcopy
from typing import Any

from torch import nn
from torch_geometric.nn import GATConv, GATv2Conv

from ..mechanisms import MLP, Additive, Edge, Mechanism
from ..theta import Heads
from .attention import Attending, attention_conv, fill, heads_of, started
from .registry import REVERSED, over, rule


def combined(layer: Any) -> tuple[Heads, int]:
    """The heads side by side or averaged, and the width of the result."""
    return Heads("concat" if layer.concat else "mean"), layer.out_channels * (layer.heads if layer.concat else 1)


@rule(
    GATConv,
    "GAT",
    [
        {},
        {"heads": 3},
        {"heads": 3, "concat": False, "negative_slope": 0.4},
        {"heads": 2, "add_self_loops": False, "bias": False},
        {"heads": 2, "residual": True},
        {"heads": 2, "concat": False, "residual": True, "bias": False},
        *over({"heads": 2, "edge_dim": 3}, fill_value=("mean", "add", 0.7, "max")),
        {"heads": 2, "edge_dim": 3, "add_self_loops": False},
        {"edge_dim": 1},
        {"heads": 2, "aggr": "mean"},
        {"heads": 2, "edge_dim": 3} | REVERSED,
    ],
    node_dim=0,
)
def gat(layer: Any) -> nn.Module:
    r""":math:`LeakyReLU(s_k \cdot x_m \Theta_k + t_k \cdot x_n \Theta_k)`, and a term of the edge."""
    started(layer)
    H, C = layer.heads, layer.out_channels
    both = layer.lin is not None
    source, target = (layer.lin, layer.lin) if both else (layer.lin_src, layer.lin_dst)
    additive = Additive(projected=True, target="shared" if both else "own")
    edge = None if layer.edge_dim is None else Edge(layer.edge_dim, inner=C)
    score: Mechanism = additive if edge is None else additive + edge
    (theta, Q), P = combined(layer), source.in_channels
    conv = attention_conv(
        layer,
        H,
        score.then(nn.LeakyReLU(layer.negative_slope)),
        theta,
        P if both else (P, target.in_channels),
        Q,
        dropout=layer.dropout,
        bias=layer.bias,
    )
    fill(conv.theta, weight=heads_of(source, H))
    fill(additive, source=(layer.att_src[0], layer.att_src), target=(layer.att_dst[0], layer.att_dst))
    if not both:
        fill(additive, weight=heads_of(target, H))
    if edge is not None:
        fill(edge, weight=heads_of(layer.lin_edge, H), out=(layer.att_edge[0], layer.att_edge))
    return Attending(
        layer,
        conv,
        loops=layer.fill_value if layer.add_self_loops else None,
        edge_dim=layer.edge_dim,
        root=deepcopy(layer.res),
        blind=target.in_channels,
    )


@rule(
    GATv2Conv,
    "GATv2",
    [
        {},
        {"heads": 3},
        {"heads": 3, "concat": False, "negative_slope": 0.4},
        *over({"heads": 2, "share_weights": True}, bias=(True, False)),
        {"heads": 2, "add_self_loops": False, "bias": False, "residual": True},
        *over({"heads": 2, "edge_dim": 3}, fill_value=("mean", "add", 0.7)),
        {"heads": 2, "edge_dim": 3, "add_self_loops": False},
        {"heads": 2} | REVERSED,
    ],
    node_dim=0,
)
def gatv2(layer: Any) -> nn.Module:
    r""":math:`a_k \cdot LeakyReLU(x_m \Theta_k + x_n \Theta'_k)`, with a term of the edge inside."""
    started(layer)
    H, R = layer.heads, layer.edge_dim or 0
    source, target = layer.lin_l, layer.lin_r
    theta, Q = combined(layer)
    theta = Heads(theta.combine, bias=source.bias is not None)
    score = MLP(
        projected=True,
        activation=nn.LeakyReLU(layer.negative_slope),
        target="shared" if layer.share_weights else "own",
        bias=target.bias is not None and not layer.share_weights,
        edge_dim=R,
    )
    P = source.in_channels if layer.share_weights else (source.in_channels, target.in_channels)
    conv = attention_conv(layer, H, score, theta, P, Q, dropout=layer.dropout, bias=layer.bias)
    fill(conv.theta, weight=heads_of(source, H))
    fill(score, out=(layer.att[0], layer.att))
    if source.bias is not None:
        fill(conv.theta, value_bias=(source.bias.view(H, -1), source.bias))
    if not layer.share_weights:
        fill(score, target=heads_of(target, H))
        if target.bias is not None:
            fill(score, bias=(target.bias.view(H, -1), target.bias))
    if R:
        fill(score, edge=heads_of(layer.lin_edge, H))
    loops = layer.fill_value if layer.add_self_loops else None
    return Attending(layer, conv, loops=loops, edge_dim=R, root=deepcopy(layer.res))
