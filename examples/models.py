"""The models that are compared: stacks of `BasisConv`, and the same functions of PyG's own layers."""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import APPNP, ChebConv, GATConv, GCNConv, Linear

from pyg_basisconv import BasisConv, bases, theta
from pyg_basisconv.mechanisms import Additive
from pyg_basisconv.nn import Dropout

RESTARTS = (0.2, 0.05)  # of the multi-basis model's random walks: one stays near its start, one goes far
STEPS = 20


class Stack(nn.Module):
    """Layers with a dropout before each and an activation between two; a layer takes x and edge_index."""

    def __init__(self, dropout: float, activation: Callable[[Tensor], Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.dropout, self.activation = Dropout(dropout), activation
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = self.activation(x) if i else x
            x = layer(self.dropout(x), edge_index)
        return x


def pagerank(restart: float) -> list[float]:
    """The weights of walks of 0 .. STEPS steps that restart with this probability; the last one has the remainder."""
    return [restart * (1 - restart) ** k for k in range(STEPS)] + [(1 - restart) ** STEPS]


NODE = bases.Identity()
GCN = bases.Adjacency("sym", self_loops=True)
PAGERANKS = bases.Mix([pagerank(restart) for restart in RESTARTS], bases.Powers(STEPS + 1, GCN))


class OnNode(Linear):
    """PyG's Linear, called with a graph, which it ignores."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x)


class PageRanks(nn.Module):
    """PyG's Linear and APPNP for each restart, and their sum."""

    def __init__(self, P: int, Q: int) -> None:
        super().__init__()
        self.linear = nn.ModuleList(Linear(P, Q, bias=False, weight_initializer="glorot") for _ in RESTARTS)
        self.walk = nn.ModuleList(APPNP(STEPS, restart) for restart in RESTARTS)
        self.bias = nn.Parameter(torch.zeros(Q))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        walks = (walk(linear(x), edge_index) for linear, walk in zip(self.linear, self.walk, strict=True))
        return sum(walks, self.bias)


Layer = Callable[[int, int], nn.Module]  # from the numbers of channels, in and out


def conv(basis: bases.Basis) -> Layer:
    return partial(BasisConv, basis=basis)


def attention(heads: int, combine: Literal["concat", "mean"], dropout: float) -> tuple[Layer, Layer]:
    """A layer of GAT, and PyG's: each node attends to its neighbours and to itself."""

    def ours(P: int, Q: int) -> nn.Module:
        score = Additive(projected=True).then(nn.LeakyReLU(0.2))
        neighbours = bases.Adjacency(self_loops=True, existing="replace")
        return BasisConv(P, Q, bases.Attention(heads, score, neighbours, dropout=dropout), theta.Heads(combine))

    def peer(P: int, Q: int) -> nn.Module:
        concat = combine == "concat"
        return GATConv(P, Q // heads if concat else Q, heads, concat=concat, dropout=dropout)

    return ours, peer


def gat(heads: int) -> tuple[tuple[Layer, Layer], tuple[Layer, Layer]]:
    """A layer that concatenates eight heads, and one that averages some: ours, and PyG's."""
    (first, peer), (last, last_peer) = attention(8, "concat", 0.6), attention(heads, "mean", 0.6)
    return (first, last), (peer, last_peer)


class Model(NamedTuple):
    """Two layers, the layers of PyG that are to do the same, and how both are trained.

    The validation set of Cora chose the numbers. A training ends after `patience` epochs without a smaller loss on the
    validation set.
    """

    title: str
    hidden: int
    dropout: float
    layers: tuple[Layer, Layer]
    peers: tuple[Layer, Layer]
    activation: Callable[[Tensor], Tensor] = torch.relu
    lr: float = 0.02
    weight_decay: float = 5e-4
    epochs: int = 150
    patience: int = 20

    def build(self, P: int, Q: int, hidden: int | None = None, pyg: bool = False) -> Stack:
        hidden = hidden or self.hidden
        first, last = self.peers if pyg else self.layers
        return Stack(self.dropout, self.activation, first(P, hidden), last(hidden, Q))


_GAT = Model("GAT", 64, 0.8, *gat(1), F.elu, lr=0.01, epochs=500, patience=50)
_CHEB2, _CHEB3 = (((conv(bases.Chebyshev(K)),) * 2, (partial(ChebConv, K=K),) * 2) for K in (2, 3))

MODELS = {
    "gcn": Model("GCN", 32, 0.7, (conv(GCN),) * 2, (GCNConv,) * 2),
    "cheb2": Model("ChebNet K=2", 32, 0.7, *_CHEB2),
    "cheb3": Model("ChebNet K=3", 32, 0.7, *_CHEB3),
    "multi": Model("multi-basis", 64, 0.85, (conv(NODE), conv(PAGERANKS)), (OnNode, PageRanks)),
    "gat": _GAT,
}
# The settings of P. Velickovic et al., Graph Attention Networks (arXiv:1710.10903), for PubMed.
PUBMED = {"gat": _GAT._replace(layers=gat(8)[0], peers=gat(8)[1], dropout=0.6, weight_decay=1e-3)}


def models(dataset: str) -> dict[str, Model]:
    """The models, with a data set's own settings, if it has any."""
    return MODELS | PUBMED if dataset == "PubMed" else MODELS
