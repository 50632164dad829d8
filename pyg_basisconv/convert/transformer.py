"""Scaled dot products on a graph."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import TransformerConv

from ..conv import BasisConv
from ..mechanisms import Dot
from ..theta import Heads
from .attention import Attending, attention_conv, fill, heads_of, started
from .ends import Ends
from .registry import REVERSED, over, rule


@rule(
    TransformerConv,
    "Transformer on a graph",
    [
        {},
        *over({"heads": 3}, concat=(True, False)),
        {"heads": 2, "beta": True},
        {"heads": 2, "beta": True, "concat": False, "edge_dim": 3},
        *over({"heads": 2, "edge_dim": 3}, bias=(True, False)),
        {"heads": 2, "root_weight": False},
        {"heads": 2, "edge_dim": 3} | REVERSED,
    ],
    node_dim=0,
)
def transformer(layer: Any) -> nn.Module:
    r""":math:`(x_m K_k + z U_k) \cdot x_n Q_k / \sqrt D`; U makes values of the edges, too."""
    started(layer)
    H, R, C = layer.heads, layer.edge_dim or 0, layer.out_channels
    key, query, value = layer.lin_key, layer.lin_query, layer.lin_value
    bias = value.bias is not None
    score = Dot(C, bias=bias, edge_dim=R)
    theta = Heads("concat" if layer.concat else "mean", bias=bias)
    Q = C * (H if layer.concat else 1)
    P = (key.in_channels, query.in_channels)
    conv = attention_conv(layer, H, score, theta, P, Q, dropout=layer.dropout)
    fill(theta, weight=heads_of(value, H))
    fill(score, key=heads_of(key, H), query=heads_of(query, H))
    if bias:
        fill(theta, value_bias=(value.bias.view(H, C), value.bias))
        fill(score, key_bias=(key.bias.view(H, C), key.bias), query_bias=(query.bias.view(H, C), query.bias))
    values = None
    if R:
        fill(score, key_edge=heads_of(layer.lin_edge, H))
        with torch.device("meta"):  # draws nothing, so that the state of torch's generator stays
            values = Heads(theta.combine).build(H, R, Q)
        values.weight = score._parameters["key_edge"]  # type: ignore[assignment]
    return Skipping(layer, conv, values, deepcopy(layer.lin_skip))


class Skipping(Attending):
    """Attention and the target's own features: their sum, or a learnt mixture of the two."""

    def __init__(self, layer: Any, conv: BasisConv, values: Any, root: nn.Module) -> None:
        super().__init__(layer, conv, edge_dim=layer.edge_dim, values=values, root=root)
        self.lin_beta = deepcopy(layer.lin_beta)
        self.root_weight = layer.root_weight

    def attend(self, x: Any, ends: Ends, z: Any, size: Any, needed: bool, call: dict[str, Any]) -> tuple[Tensor, Any]:
        y, A = super().attend(x, ends, z, size, needed, call)
        if self.replies(call.get("return_attention_weights")):
            A = A.undropped  # the weights that PyG returns here are those before dropout
        return y, A

    def finish(self, y: Tensor, target: Tensor | None, call: dict[str, Any]) -> Tensor:
        if not self.root_weight:
            return y
        parts: Any = self._modules
        skip, mixture = parts["root"](target), parts.get("lin_beta")
        if mixture is None:
            return y + skip
        beta = mixture(torch.cat([y, skip, y - skip], dim=-1)).sigmoid()
        return beta * skip + (1 - beta) * y

    def replies(self, asked: Any) -> bool:
        return isinstance(asked, bool)
