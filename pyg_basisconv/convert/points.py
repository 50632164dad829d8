"""Attention whose weights are one for each channel: between points, and continuous filters."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import PointTransformerConv
from torch_geometric.nn.dense.linear import Linear
from torch_geometric.nn.models.schnet import CFConv

from ..cache import once
from ..content import Content
from ..entries import Entries
from ..errors import reject, shape_or_type
from ..kernels import Pattern, spmm
from ..mechanisms import Mechanism, Score
from ..mechanisms.edges import edge_features, edge_rows
from ..mechanisms.rows import ListedTerms, TermRows
from ..reading import read_graph
from ..theta import Heads, Split
from .attention import apply_weights, attention_conv, weigh
from .build import check_initialized, check_sum, fill, matrix
from .composite import GraphLayer
from .edges import count_edges, read_edges, sums_of
from .layers import both, parts_of, unpaired
from .operator_module import OperatorModule
from .registry import combinations, rule, turned_round


class Channels(Mechanism):
    """Channel by channel, the sum of the features of both ends: as many heads as there are channels."""

    def score(self, content: Content, entries: Entries) -> Score:
        return TermRows(content.x, content.target, batch=content.batch)


def _network(of: int | None) -> Callable[[int, int], nn.Module]:
    return lambda P, Q: nn.Sequential(nn.Linear(of or Q, 5), nn.Tanh(), nn.Linear(5, Q))


@rule(
    PointTransformerConv,
    "Point Transformer",
    [
        {"pos_nn": lambda P, Q: nn.Linear(3, Q, bias=False)},
        *combinations({"pos_nn": _network(3)}, attn_nn=(lambda P, Q: None, _network(None))),
        *({"attn_nn": _network(None)} | one for one in turned_round(PointTransformerConv)),
    ],
)
class ConvertedPointTransformer(OperatorModule, GraphLayer):
    r"""The softmax of :math:`h(x_n W - x_m W' + \delta_{mn})` over m, for each channel, applied to
    :math:`x_m V + \delta_{mn}`, where :math:`\delta_{mn} = g(p_n - p_m)`.

    Where g is linear and there is no h, all of it are terms of nodes, and nothing of size edges x channels is made.
    Networks are applied to each edge; then the edges are the sources.
    """

    kept = ("lin", "lin_src", "lin_dst", "pos_nn", "attn_nn")

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        check_initialized(layer)
        check_sum(layer)
        self.width = Q = layer.out_channels
        self.conv = attention_conv(layer, Q, Channels(), Split(), Q, Q)
        self.conv.flow = "source_to_target"
        self.of_nodes = layer.attn_nn is None and type(layer.pos_nn) in (nn.Linear, Linear)

    def compute(self, x: Any, pos: Any, edge_index: Any) -> Tensor:
        forward = self.flow == "source_to_target"
        positions: Any = parts_of(pos if forward else unpaired(pos))
        source, target = both(x, "PointTransformerConv")
        size = source.shape[0], target.shape[0]
        for rows, p in zip(size, positions, strict=True):
            if not isinstance(p, Tensor) or p.shape[:1] != (rows,):
                reject("pos", f"{rows} positions, as x has rows", shape_or_type(p), "give each node one")
        count = min(size)
        edges = read_edges(edge_index, self.flow, count if self.add_self_loops else None, size).edge_index
        edges = edges if forward else edges.flip(0)
        keys, queries, values = self.lin_src(source), self.lin_dst(target), self.lin(source)
        if not self.of_nodes:
            return self._by_edges(keys, queries, values, positions, edges, size)
        weight, bias = self.pos_nn.weight.t(), self.pos_nn.bias
        of_source, of_target = (p @ weight for p in positions)
        of_target = of_target if bias is None else of_target + bias
        A = weigh(self.conv, -keys - of_source, queries + of_target, edges)
        y: Tensor = apply_weights(self.conv, values - of_source, A)
        if self.conv.explain:
            return torch.addcmul(y, of_target, sums_of(A, values).squeeze(-1).t())
        return torch.addcmul(y, of_target, count_edges(edges, size[1], y.dtype, self.conv.flow).clamp(max=1))

    def _by_edges(
        self, keys: Tensor, queries: Tensor, values: Tensor, positions: Any, edges: Tensor, size: tuple[int, int]
    ) -> Tensor:
        both, all_rows, into = _ends(edges, size)
        source, target = positions
        delta = self.pos_nn(spmm(torch.cat([-source, target]), None, both))
        rows = spmm(torch.cat([-keys, queries, values]), None, all_rows)
        score, values = rows.reshape(2, into.shape[1], self.width)  # torch.export cannot halve a number of edges
        score = score + delta
        score = score if self.attn_nn is None else self.attn_nn(score)
        A = weigh(self.conv, score, torch.zeros_like(queries), into)
        return apply_weights(self.conv, values + delta, A)


@once
def _ends(edges: Tensor, size: tuple[int, int]) -> tuple[Pattern, Pattern, Tensor]:
    """From sources, and targets behind them, to edges; the same, and from sources once more, behind both, to edges
    behind the first; from edges to targets.
    """
    graph = read_graph(edges, size=size, dtype=torch.float32, device=edges.device)  # which checks the indices
    source, target, E = graph.source, graph.target + size[0], graph.E
    each = torch.arange(E, device=edges.device)
    both = Pattern(torch.cat([source, target]), torch.cat([each, each]), sum(size), E)
    rows = torch.cat([source, target, source + sum(size)])
    all_rows = Pattern(rows, torch.cat([each, each, each + E]), sum(size) + size[0], 2 * E)
    return both, all_rows, torch.stack([each, edges[1]])


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
        fill(self.conv.theta, weight=matrix(first, nn.Linear))

    def compute(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor, edge_attr: Tensor) -> Any:
        cut = (edge_weight * (math.pi / (2 * self.cutoff))).cos().square()  # half of 1 + the cosine of twice as much
        return self.lin2(self.conv(x, edge_index, edge_attr=self.nn(edge_attr) * cut.unsqueeze(-1)))
