"""The models that are compared: stacks of `BasisConv`, and the same functions of PyG's own layers."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import APPNP, ChebConv, GCNConv, Linear

from pyg_basisconv import BasisConv, bases

RESTARTS = (0.2, 0.05)  # of the multi-basis model's random walks: one stays near its start, one goes far
STEPS = 20


class Stack(nn.Module):
    """Layers with a dropout before each and a ReLU between two; a layer takes x and edge_index."""

    def __init__(self, dropout: float, *layers: nn.Module) -> None:
        super().__init__()
        self.dropout = dropout
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = x.relu() if i else x
            x = layer(dropout(x, self.dropout, self.training), edge_index)
        return x


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Of a sparse x, among the entries that are there: the others are zero either way."""
    if x.layout == torch.strided or not training:
        return F.dropout(x, p) if training else x
    return torch.sparse_csr_tensor(x.crow_indices(), x.col_indices(), F.dropout(x.values(), p), x.shape)


def pagerank(restart: float) -> list[float]:
    """The weights of walks of 0 .. STEPS steps that start anew with this probability; the last has all that is left."""
    return [restart * (1 - restart) ** k for k in range(STEPS)] + [(1 - restart) ** STEPS]


NODE = bases.Identity()
GCN = bases.Adjacency("sym", self_loops=True)
PAGERANKS = bases.Mix([pagerank(restart) for restart in RESTARTS], bases.Powers(STEPS + 1, GCN))


class OnNode(Linear):
    """PyG's Linear, which has no use for the graph."""

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


class Model(NamedTuple):
    """Two layers: the basis of each, and the layer of PyG that is to do the same. The validation set of Cora chose."""

    title: str
    hidden: int
    dropout: float
    bases: tuple[bases.Basis, bases.Basis]
    peers: tuple[Callable[[int, int], nn.Module], Callable[[int, int], nn.Module]]

    def build(self, P: int, Q: int, hidden: int | None = None, pyg: bool = False) -> Stack:
        hidden = hidden or self.hidden
        sizes = (P, hidden), (hidden, Q)
        if pyg:
            return Stack(self.dropout, *(peer(*size) for peer, size in zip(self.peers, sizes, strict=True)))
        return Stack(self.dropout, *(BasisConv(*size, basis) for basis, size in zip(self.bases, sizes, strict=True)))


MODELS = {
    "gcn": Model("GCN", 32, 0.7, (GCN, GCN), (GCNConv, GCNConv)),
    "cheb2": Model("ChebNet K=2", 32, 0.7, (bases.Chebyshev(2),) * 2, (partial(ChebConv, K=2),) * 2),
    "cheb3": Model("ChebNet K=3", 32, 0.7, (bases.Chebyshev(3),) * 2, (partial(ChebConv, K=3),) * 2),
    "multi": Model("multi-basis", 64, 0.85, (NODE, PAGERANKS), (OnNode, PageRanks)),
}
