"""Continuous filters: gates of channels, made by a network of the features of edges."""

import math
from typing import Any

from torch import Tensor
from torch_geometric.nn.models.schnet import CFConv

from ..content import Content
from ..entries import Entries
from ..mechanisms import Mechanism, Score
from ..mechanisms.edges import edge_features, edge_rows
from ..mechanisms.rows import ListedTerms, TermRows
from ..theta import Heads
from .attention import attention_conv
from .build import check_sum, fill
from .composite import GraphLayer
from .registry import rule


class EdgeChannels(Mechanism):
    """The features of edges themselves, one for each head."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.edge_dim = dim

    def score(self, content: Content, entries: Entries) -> Score:
        z = edge_features(content, self.edge_dim)
        listed = z.dim() == 2 and entries.are_edges
        terms = ListedTerms(content, entries) if listed else edge_rows(content, entries, self.edge_dim)
        return TermRows(entry=terms, batch=content.batch)

    def extra_repr(self) -> str:
        return str(self.edge_dim)


@rule(CFConv)
class ConvertedCF(GraphLayer):
    r""":math:`\sum_m c_{mn} \, x_m \Theta \odot h(z_{mn})`, with a gate for each channel by a network h, then a
    Linear; c falls to zero at the cutoff. Of numbers for each edge and channel there are only the gates.
    """

    kept = ("nn", "lin2")

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        check_sum(layer)
        first = layer.lin1
        F, P, gates = first.out_features, first.in_features, EdgeChannels(first.out_features)
        self.conv = attention_conv(layer, F, gates, Heads(), P, F, normalize=None)
        fill(self.conv.theta, weight=first.weight)

    def compute(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor, edge_attr: Tensor) -> Any:
        cut = (edge_weight * (math.pi / (2 * self.cutoff))).cos().square()  # half of 1 + the cosine of twice as much
        return self.lin2(self.conv(x, edge_index, edge_attr=self.nn(edge_attr) * cut.unsqueeze(-1)))
