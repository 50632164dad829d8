"""Continuous filters: gates of channels, made by a network of the features of edges."""

import math
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.models.schnet import CFConv

from ..mechanisms import Edge, Relative
from ..theta import Heads
from .attention import attention_conv
from .build import check_sum, fill
from .edge_functions import without_last
from .layers import Composite, Signature
from .registry import rule


@rule(CFConv)
class ConvertedCF(Composite):
    r""":math:`\sum_m c_{mn} \, x_m \Theta \odot (h(z_{mn}) U + u)`, a gate for each channel, and a Linear; c falls to
    zero at the cutoff. One number for each edge and channel is stored, where PyG stores four.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        check_sum(layer)
        self.call, self.cutoff = Signature.of(layer), layer.cutoff
        self.network, last = without_last(layer.nn)
        F, gate, constant = layer.lin1.out_features, Edge(last.in_features), Relative(period=1)
        score = gate if last.bias is None else gate + constant
        P = layer.lin1.in_features
        self.conv = attention_conv(layer, F, score, Heads(), P, F, normalize=None, weighted=True)
        fill(self.conv.theta, weight=layer.lin1.weight)
        fill(gate, weight=last.weight)
        if last.bias is not None:
            fill(constant, weight=last.bias)
        self.after = deepcopy(layer.lin2)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        call = self.call.read(args, kwargs)
        cut = 0.5 * (torch.cos(call["edge_weight"] * math.pi / self.cutoff) + 1.0)
        units = self.network(call["edge_attr"])
        y: Tensor = self.after(self.conv(call["x"], call["edge_index"], cut, edge_attr=units))
        return y
