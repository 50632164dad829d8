"""Continuous filters: gates of channels, made by a network of the features of edges."""

import math
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.models.schnet import CFConv

from ..cache import IdentityCache
from ..content import Content
from ..entries import Entries
from ..mechanisms import Mechanism, Score
from ..mechanisms.edges import edge_rows
from ..mechanisms.rows import TermRows
from ..theta import Heads
from .attention import attention_conv
from .build import check_sum, fill
from .composite import Composite
from .layers import Signature
from .registry import rule

_SORTED = IdentityCache()


class EdgeChannels(Mechanism):
    """The features of edges themselves, one for each head."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.edge_dim = dim

    def score(self, content: Content, entries: Entries) -> Score:
        return TermRows(entry=edge_rows(content, entries, self.edge_dim), batch=content.batch)

    def extra_repr(self) -> str:
        return str(self.edge_dim)


@rule(CFConv)
class ConvertedCF(Composite):
    r""":math:`\sum_m c_{mn} \, x_m \Theta \odot h(z_{mn})`, with a gate for each channel by a network h, then a
    Linear; c falls to zero at the cutoff. Of numbers for each edge and channel there are only the gates.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        check_sum(layer)
        self.call, self.cutoff, first = Signature.of(layer), layer.cutoff, layer.lin1
        F, P, gates = first.out_features, first.in_features, EdgeChannels(first.out_features)
        self.network = deepcopy(layer.nn, {id(b): b.clone() for b in layer.nn.buffers()})
        self.conv = attention_conv(layer, F, gates, Heads(), P, F, normalize=None)
        fill(self.conv.theta, weight=first.weight)
        self.after = deepcopy(layer.lin2)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        call = self.call.read(args, kwargs)
        edges, order = _SORTED.get((call["edge_index"],), self.conv.flow, lambda: self._by_target(call["edge_index"]))
        distance, z = call["edge_weight"].index_select(0, order), call["edge_attr"].index_select(0, order)
        cut = 0.5 * (torch.cos(distance * math.pi / self.cutoff) + 1.0)
        y: Tensor = self.after(self.conv(call["x"], edges, edge_attr=self.network(z) * cut.unsqueeze(-1)))
        return y

    def _by_target(self, edges: Tensor) -> tuple[Tensor, Tensor]:
        """The edges in the order of kernels, so that gates need not be permuted."""
        order = edges[1 if self.conv.flow == "source_to_target" else 0].argsort(stable=True)
        return edges[:, order].contiguous(), order
