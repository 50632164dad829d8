"""Layers with two kinds of edges, or with both directions of the edges."""

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.nn import DirGNNConv, GATConv, GraphConv, SAGEConv, SignedConv

from ..bases import Identity
from ..cache import once
from ..errors import reject
from .build import adjacency, basis_conv, matrix
from .composite import Composite, GraphLayer
from .edges import is_matrix
from .layers import both
from .registry import REVERSED, Unchanged, combinations, rebuild_part, rule
from .sums import with_root

_READS: dict[str, Any] = {"names": ("x", "edge_index"), "values": "drop"}  # how the parts of a SignedConv are called


@rule(
    SignedConv,
    "signed",
    [
        one | more
        for more in ({}, {"bias": False}, {"aggr": "add"}, REVERSED)
        for one in combinations(first_aggr=(True, False))
    ],
)
def signed(layer: Any) -> nn.Module:
    """Positive and negative edges, each with a mean of its own, and the root."""
    return FirstSigned(layer) if layer.first_aggr else DeepSigned(layer)


class FirstSigned(GraphLayer):
    """The first layer: the results of positive and negative edges, concatenated."""

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        A = adjacency(layer)
        self.pos = with_root(layer, A, layer.lin_pos_l, layer.lin_pos_r, **_READS)
        self.neg = with_root(layer, A, layer.lin_neg_l, layer.lin_neg_r, **_READS)

    def forward(self, x: Any, pos_edge_index: Any, neg_edge_index: Any) -> Tensor:
        return torch.cat([self.pos(x, pos_edge_index), self.neg(x, neg_edge_index)], -1)


class DeepSigned(GraphLayer):
    """A later layer, on features of both signs: friends of friends and foes of foes are friends.

    For each half of the result, `like` reads the half of x with the same sign, along positive edges and at the node
    itself, and `unlike` reads the other half, along negative edges.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__(layer, **_READS)
        if layer.in_channels < 1:
            raise Unchanged("in_channels=-1 does not say how many channels of x belong to each sign")
        F, A = layer.in_channels, adjacency(layer)
        self.like, self.unlike, self.root = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        linears = ((layer.lin_pos_l, layer.lin_pos_r), (layer.lin_neg_l, layer.lin_neg_r))
        stacked = all(first.weight.requires_grad == second.weight.requires_grad for first, second in linears)
        for neighbour, root in linears:
            both, own = matrix(neighbour).t(), matrix(root).t()
            like, unlike = both[:F], both[F:]
            if stacked:
                self.like.append(basis_conv(layer, torch.stack([like, own]), A + Identity(), root.bias))
            else:
                self.like.append(basis_conv(layer, like.unsqueeze(0), A))
                self.root.append(basis_conv(layer, own.unsqueeze(0), Identity(), root.bias))
            self.unlike.append(basis_conv(layer, unlike.unsqueeze(0), A))

    def forward(self, x: Any, pos_edge_index: Any, neg_edge_index: Any) -> Tensor:
        calls = [self.call.read((x, edges), {}) for edges in (pos_edge_index, neg_edge_index)]
        positive, negative = (call["edge_index"] for call in calls)
        source, target = both(calls[0]["x"], "SignedConv")
        halves = source.chunk(2, -1)
        targets = halves if target is source else target.chunk(2, -1)
        outcome = []
        for i, (like, unlike) in enumerate(zip(self.like, self.unlike, strict=True)):
            y = like((halves[i], targets[i]), positive) + unlike((halves[1 - i], targets[1 - i]), negative)
            outcome.append(y + self.root[i](targets[i]) if self.root else y)
        return torch.cat(outcome, -1)


@rule(
    DirGNNConv,
    "directed",
    [
        {"alpha": 0.2, "root_weight": False},
        {"conv": lambda P, Q: SAGEConv(P, Q, root_weight=False), "alpha": 1.0},
        {"conv": lambda P, Q: GATConv(P, Q, heads=2, concat=False), "root_weight": False},
        {"conv": lambda P, Q: GraphConv(P, Q, aggr="mean"), "alpha": 0.0},
    ],
)
class ConvertedDirGNN(Composite):
    r""":math:`\alpha \, f(x, E^\top) + (1 - \alpha) \, g(x, E) + x W + b`, of two converted layers f and g.

    The edges of a graph are reversed once.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        self.conv_in, self.conv_out = (rebuild_part(part) for part in (layer.conv_in, layer.conv_out))
        self.lin = None
        if layer.root_weight:
            weight = matrix(layer.lin, nn.Linear).t().unsqueeze(0)
            self.lin = basis_conv(layer, weight, Identity(), layer.lin.bias)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        if is_matrix(edge_index):
            fix = "pass the edges themselves"
            reject("edge_index", "a (2, E) tensor, which is turned round", "a sparse matrix", fix)
        along = self.conv_in(x, edge_index)  # first, as in PyG, for the same random numbers
        against = reverse(edge_index.as_tensor() if isinstance(edge_index, EdgeIndex) else edge_index)
        y: Tensor = self.alpha * self.conv_out(x, against) + (1 - self.alpha) * along
        return y if self.lin is None else y + self.lin(x)


@once
def reverse(edges: Tensor) -> Tensor:
    """The reversed edges; the same tensor for the same edges."""
    return edges.flip(0)
