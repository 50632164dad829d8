"""The layer whose gates are as many heads as there are channels."""

from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch_geometric.nn import ResGatedGraphConv

from ..bases.bound_attention import Normalize
from ..mechanisms import Additive, Edge, Relative
from ..theta import Heads
from .attention import Attending, attention_conv, fill, matrix, started
from .registry import REVERSED, Left, rule


@rule(
    ResGatedGraphConv,
    "channel-wise gates",
    [
        {},
        {"act": nn.Tanh()},
        {"edge_dim": 3},
        {"edge_dim": 3, "root_weight": False, "bias": False},
        {"aggr": "mean"},
        REVERSED,
    ],
)
def res_gated(layer: Any) -> nn.Module:
    r""":math:`\sum_m act(k_d \cdot x_n + q_d \cdot x_m) (x_m V)_d` for each channel d: heads of width 1.

    The two biases inside act stay two parameters: the second is a term of the relative position of period 1.
    """
    started(layer)
    if isinstance(layer.act, nn.Module) and next(layer.act.parameters(), None) is not None:
        raise Left("its activation has parameters")
    Q, R = layer.out_channels, layer.edge_dim or 0
    key, query, value = layer.lin_key, layer.lin_query, layer.lin_value
    P, target = value.in_channels - R, key.in_channels - R
    additive, second = Additive(target="own", bias=True), Relative(period=1)
    score = additive + second
    edges = [Edge(R), Edge(R)] if R else []
    for edge in edges:
        score = score + edge
    sigmoid = type(layer.act) is nn.Sigmoid
    if not sigmoid:
        score = score.then(deepcopy(layer.act))
    normalize: Normalize = "sigmoid" if sigmoid else None
    theta = Heads(bias=True)
    conv = attention_conv(layer, Q, score, theta, (P, target), Q, normalize=normalize, bias=layer.bias)
    W_key, W_query, W_value = map(matrix, (key, query, value))
    fill(additive, source=(W_query[:, :P], W_query), target=(W_key[:, :target], W_key), bias=query.bias)
    fill(second, weight=(key.bias.view(Q, 1), key.bias))
    fill(theta, weight=(W_value[:, :P].unsqueeze(-1), W_value), value_bias=(value.bias.view(Q, 1), value.bias))
    values = None
    if R:
        for edge, weight, width in ((edges[0], W_query, P), (edges[1], W_key, target)):
            fill(edge, weight=(weight[:, width:], weight))
        with torch.device("meta"):  # draws nothing, so that the state of torch's generator stays
            values = Heads().build(Q, R, Q)
        fill(values, weight=(W_value[:, P:].unsqueeze(-1), W_value))
    root = deepcopy(layer.lin_skip) if layer.root_weight else None
    return Attending(layer, conv, edge_dim=R, values=values, root=root)
