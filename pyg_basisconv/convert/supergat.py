"""SuperGAT: attention that also learns to tell edges from other pairs of nodes."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import SuperGATConv

from ..mechanisms import Additive, Dot
from .attention import AttentionLayer, multihead_conv
from .build import fill
from .edges import CallEdges
from .registry import rule


@rule(
    SuperGATConv,
    "SuperGAT",
    [{"heads": 3, "concat": False, "negative_slope": 0.4}, {"heads": 2, "attention_type": "SD"}],
    node_dim=0,
)
def supergat(layer: Any) -> nn.Module:
    """GAT's score times a sigmoid of the dot product, or the dot product alone."""
    mixed = layer.attention_type == "MX"
    additive = Additive(projected=True)
    gate = Dot(scale=1.0, projected=True).then(nn.Sigmoid())
    score = additive * gate if mixed else Dot(projected=True)
    conv = multihead_conv(layer, score.then(nn.LeakyReLU(layer.negative_slope)), layer.lin, bias=layer.bias)
    if mixed:
        fill(additive, source=layer.att_l, target=layer.att_r)
    return ConvertedSuperGAT(layer, conv)


class ConvertedSuperGAT(AttentionLayer):
    """Attention that in training learns to tell edges from pairs of nodes that are none."""

    draws = True  # these pairs, in training
    positive_sampling = SuperGATConv.positive_sampling  # which read the options of the layer
    negative_sampling = SuperGATConv.negative_sampling

    def __init__(self, layer: Any, conv: Any) -> None:
        super().__init__(layer, conv)
        self.scale = 1.0 if layer.attention_type == "MX" else 1 / math.sqrt(layer.out_channels)
        self.att_x: Tensor | None = None
        self.att_y: Tensor | None = None

    def uses_operator(self, given: dict[str, Any]) -> bool:
        return not self.training and super().uses_operator(
            given
        )  # in training the layer keeps what its loss is made of

    def attend(
        self, x: Any, edges: CallEdges, z: Any, size: Any, wanted: bool, call: dict[str, Any]
    ) -> tuple[Tensor, Any]:
        y = super().attend(x, edges, z, size, wanted, call)
        if self.training:
            positive, negative = self.positive_sampling(edges.edge_index), call.get("neg_edge_index")
            if negative is None:
                negative = self.negative_sampling(edges.edge_index, x.shape[-2], call.get("batch"))
            h, pairs = self.conv.theta.rows(x), torch.cat([positive, negative], 1)  # (*, N, H C)
            ends = [h.index_select(-2, end) for end in pairs.unbind(0)]
            self.att_x = (ends[0] * ends[1]).unflatten(-1, (self.heads, -1)).sum(-1) * self.scale  # (*, E, H)
            self.att_y = self.att_x.new_zeros(self.att_x.shape[:-1])
            self.att_y[..., : positive.shape[1]] = 1.0
        return y

    def get_attention_loss(self) -> Tensor:
        """The loss of the last call in training."""
        if not self.training:
            return torch.tensor([0], device=self.conv.theta.weight.device)
        assert self.att_x is not None
        assert self.att_y is not None
        return F.binary_cross_entropy_with_logits(self.att_x.mean(-1), self.att_y)
