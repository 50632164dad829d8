"""Scaled dot products on a graph."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import TransformerConv

from ..mechanisms import Dot
from ..theta import Heads
from .attention import AttentionLayer, multihead_conv
from .build import META, fill, heads_of
from .edges import CallEdges
from .registry import rule, turned_round


@rule(
    TransformerConv,
    "Transformer on a graph",
    [
        {"heads": 2, "beta": True, "concat": False, "edge_dim": 3},
        *({"heads": 2} | one for one in turned_round(TransformerConv)),
        *({"heads": 2, "edge_dim": 3} | one for one in turned_round(TransformerConv)),
    ],
    node_dim=0,
)
def transformer(layer: Any) -> nn.Module:
    r""":math:`(x_m K_k + z U_k) \cdot x_n Q_k / \sqrt D`; U makes values of the edges, too."""
    H, R, key, query = layer.heads, layer.edge_dim or 0, layer.lin_key, layer.lin_query
    score = Dot(layer.out_channels, bias=key.bias is not None, edge_dim=R)
    conv = multihead_conv(layer, score, layer.lin_value, query)
    fill(score, key=heads_of(key, H), query=heads_of(query, H))
    if key.bias is not None:
        fill(score, key_bias=key.bias, query_bias=query.bias)
    values: Any = None
    if R:
        fill(score, key_edge=heads_of(layer.lin_edge, H))
        with META:
            values = Heads("concat" if layer.concat else "mean").build(H, R, conv.out_channels)
        values.weight = score.key_edge
    return ConvertedTransformer(layer, conv, values=values, root=deepcopy(layer.lin_skip))


class ConvertedTransformer(AttentionLayer):
    """Attention and the target's own features: their sum, or a learnt mixture of the two."""

    kept = ("lin_beta",)

    def attend(
        self, x: Any, edges: CallEdges, z: Any, size: Any, wanted: bool, call: dict[str, Any]
    ) -> tuple[Tensor, Any]:
        y, A = super().attend(x, edges, z, size, wanted, call)
        return y, A.undropped if wanted else A  # PyG returns the weights before dropout

    def finish(self, y: Tensor, target: Tensor | None, call: dict[str, Any]) -> Tensor:
        if not self.root_weight:
            return y
        parts: Any = self._modules
        skip, mixture = parts["root"](target), parts.get("lin_beta")
        if mixture is None:
            return y + skip
        beta = mixture(torch.cat([y, skip, y - skip], dim=-1)).sigmoid()
        return beta * skip + (1 - beta) * y

    def returns_weights(self, asked: Any) -> bool:
        return isinstance(asked, bool)
