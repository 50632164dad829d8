"""The layer whose gates are as many heads as there are channels."""

from copy import deepcopy
from typing import Any

from torch import nn
from torch_geometric.nn import ResGatedGraphConv

from ..bases.weighing import Normalize
from ..mechanisms import Additive, Edge, Relative
from ..theta import Heads
from .attention import AttentionLayer, attention_conv
from .build import META, check_initialized, fill, matrix
from .registry import Left, rule, turned_round


@rule(
    ResGatedGraphConv,
    "channel-wise gates",
    [{"act": nn.Tanh()}, {"aggr": "mean"}, *({"edge_dim": 3} | one for one in turned_round(ResGatedGraphConv))],
)
def res_gated(layer: Any) -> nn.Module:
    r""":math:`\sum_m act(k_d \cdot x_n + q_d \cdot x_m) (x_m V)_d` for each channel d: heads of width 1.

    The two biases inside act stay two parameters: the second is a term of the relative position of period 1.
    """
    check_initialized(layer)
    if isinstance(layer.act, nn.Module) and next(layer.act.parameters(), None) is not None:
        raise Left("its activation has parameters")
    key, query, value = layer.lin_key, layer.lin_query, layer.lin_value
    Q, R = layer.out_channels, layer.edge_dim or 0
    P, target = value.in_channels - R, key.in_channels - R  # the linears read x and, behind it, the edges' features
    additive, key_bias = Additive(target="own", bias=True), Relative(period=1)
    edges = [Edge(R), Edge(R)] if R else []
    score = sum(edges, additive + key_bias)
    sigmoid = type(layer.act) is nn.Sigmoid
    normalize: Normalize = "sigmoid" if sigmoid else None
    gate = score if sigmoid else score.then(deepcopy(layer.act))
    conv = attention_conv(layer, Q, gate, Heads(bias=True), (P, target), Q, normalize=normalize, bias=layer.bias)
    W_key, W_query, W_value = map(matrix, (key, query, value))
    fill(additive, source=W_query[:, :P], target=W_key[:, :target], bias=query.bias)
    fill(key_bias, weight=key.bias)
    fill(conv.theta, weight=W_value[:, :P], value_bias=value.bias)
    values = None
    if R:
        fill(edges[0], weight=W_query[:, P:])
        fill(edges[1], weight=W_key[:, target:])
        with META:
            values = Heads().build(Q, R, Q)
        fill(values, weight=W_value[:, P:])
    root = deepcopy(layer.lin_skip) if layer.root_weight else None
    return AttentionLayer(layer, conv, values=values, root=root)
