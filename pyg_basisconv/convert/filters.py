"""Continuous filters: gates of channels, made by a network of the features of edges."""

import math
from typing import Any

from torch import Tensor
from torch_geometric.nn.models.schnet import CFConv

from ..cache import once
from ..content import Content
from ..entries import Entries
from ..kernels import Pattern
from ..mechanisms import Mechanism, Score
from ..mechanisms.edges import edge_rows
from ..mechanisms.rows import TermRows
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
        return TermRows(entry=edge_rows(content, entries, self.edge_dim), batch=content.batch)

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
        in_order = by_target(edge_index, len(x), self.flow)
        if in_order is not None:
            edge_index, order = in_order
            edge_weight, edge_attr = edge_weight.index_select(0, order), edge_attr.index_select(0, order)
        cut = (edge_weight * (math.pi / (2 * self.cutoff))).cos().square()  # half of 1 + the cosine of twice as much
        return self.lin2(self.conv(x, edge_index, edge_attr=self.nn(edge_attr) * cut.unsqueeze(-1)))


@once
def by_target(edges: Tensor, N: int, flow: str) -> tuple[Tensor, Tensor] | None:
    """The edges in the order of kernels, so that gates need not be permuted, and the order; None if they are sorted."""
    source, target = edges if flow == "source_to_target" else edges.flip(0)
    order = Pattern(source, target, N, N).by_target.order
    return None if order is None else (edges.index_select(1, order), order)
