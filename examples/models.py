"""The models that are compared: stacks of `BasisConv`, and the same functions of PyG's own layers."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import APPNP, ChebConv, GATConv, GCNConv, Linear, SSGConv

from pyg_basisconv import BasisConv, bases, theta
from pyg_basisconv.mechanisms import Additive
from pyg_basisconv.nn import Dropout


class Stack(nn.Module):
    """Layers with a dropout before each and an activation between two; a layer takes x and edge_index.

    Args:
        dropout: of entries, before each layer.
        activation: between the layers.
        layers: these.
        lost: the probability that a node loses all its features, in training; those of the others are scaled up.
    """

    def __init__(
        self, dropout: float, activation: Callable[[Tensor], Tensor], *layers: nn.Module, lost: float = 0.0
    ) -> None:
        super().__init__()
        self.dropout, self.lost, self.activation = Dropout(dropout), lost, activation
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = drop_nodes(x, self.lost) if self.training and self.lost else x
        for i, layer in enumerate(self.layers):
            x = self.activation(x) if i else x
            x = layer(self.dropout(x), edge_index)
        return x


def drop_nodes(x: Tensor, p: float) -> Tensor:
    """x with the rows of some nodes set to zero, and the others divided by 1 - p; a sparse x stays sparse."""
    keep = (torch.rand(x.shape[0], device=x.device) >= p).to(x.dtype) / (1 - p)
    if x.layout == torch.strided:
        return x * keep[:, None]
    ptr, index = x.crow_indices(), x.col_indices()
    return torch.sparse_csr_tensor(ptr, index, x.values() * keep.repeat_interleave(ptr.diff()), x.shape)


NODE = bases.Identity()
GCN = bases.Adjacency("sym", self_loops=True)


class OnNode(Linear):
    """PyG's Linear, called with a graph, which it ignores."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x)


class PageRanks(nn.Module):
    """PyG's Linear and APPNP for each probability of a restart, and their sum."""

    def __init__(self, P: int, Q: int, restarts: Sequence[float], steps: int) -> None:
        super().__init__()
        self.linear = nn.ModuleList(Linear(P, Q, bias=False, weight_initializer="glorot") for _ in restarts)
        self.walk = nn.ModuleList(APPNP(steps, restart) for restart in restarts)
        self.bias = nn.Parameter(torch.zeros(Q))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        walks = (walk(linear(x), edge_index) for linear, walk in zip(self.linear, self.walk, strict=True))
        return sum(walks, self.bias)


Layer = Callable[[int, int], nn.Module]  # from the numbers of channels, in and out


def conv(basis: bases.Basis) -> Layer:
    return partial(BasisConv, basis=basis)


def pageranks(*restarts: float, steps: int) -> tuple[Layer, Layer]:
    """Personalised PageRanks as one basis, and PyG's layers of the same function.

    A walk of at most so many steps restarts with one of these probabilities, before each step: 0.2 keeps it near its
    start, 0.05 lets it go far.
    """
    walks = [[r * (1 - r) ** k for k in range(steps)] + [(1 - r) ** steps] for r in restarts]
    mix = bases.Mix(walks, bases.Powers(steps + 1, GCN))
    return conv(mix), partial(PageRanks, restarts=restarts, steps=steps)


def steps_alike(steps: int) -> tuple[Layer, Layer]:
    """The mean of the walks of 0, 1, ... and so many steps as one basis, and PyG's layer of the same function."""
    share = 1 / (steps + 1)
    mix = bases.Mix([share] * (steps + 1), bases.Powers(steps + 1, GCN))
    return conv(mix), partial(SSGConv, alpha=share, K=steps)


class DroppedHeads(theta.Heads):
    """Heads that drop entries of the values, after the scores were computed from all of them."""

    def __init__(self, combine: Literal["concat", "mean"], dropout: float) -> None:
        super().__init__(combine)
        self.dropout = nn.Dropout(dropout)

    def gather(self, family: Any, z: Any) -> Tensor:
        return super().gather(family, self.dropout(z))  # (heads, nodes, channels)


class DroppedGATConv(GATConv):
    """PyG's layer with the same dropout of values, which it has not."""

    def propagate(self, edge_index: Tensor, x: tuple[Tensor, Tensor], **kwargs: Any) -> Tensor:
        values = F.dropout(x[0], self.dropout, self.training), x[1]
        return super().propagate(edge_index, x=values, **kwargs)


def attention(heads: int, combine: Literal["concat", "mean"], dropout: float) -> tuple[Layer, Layer]:
    """A layer of GAT, and PyG's: each node attends to its neighbours and to itself.

    As in the code of its authors, entries of the values are dropped as weights are.
    """

    def ours(P: int, Q: int) -> nn.Module:
        score = Additive(projected=True).then(nn.LeakyReLU(0.2))
        neighbours = bases.Adjacency(self_loops=True, existing="replace")
        basis = bases.Attention(heads, score, neighbours, dropout=dropout)
        # In the order of values, then their sums: where x is summed first, there are no values to drop.
        return BasisConv(P, Q, basis, DroppedHeads(combine, dropout), order="theta_first")

    def peer(P: int, Q: int) -> nn.Module:
        concat = combine == "concat"
        return DroppedGATConv(P, Q // heads if concat else Q, heads, concat=concat, dropout=dropout)

    return ours, peer


def gat(heads: int) -> tuple[tuple[Layer, Layer], tuple[Layer, Layer]]:
    """A layer that concatenates eight heads, and one that averages some: ours, and PyG's."""
    (first, peer), (last, last_peer) = attention(8, "concat", 0.6), attention(heads, "mean", 0.6)
    return (first, last), (peer, last_peer)


class Model(NamedTuple):
    """Two layers, the layers of PyG that are to do the same, and how both are trained.

    The validation set of Cora chose the numbers. A training ends after `patience` epochs without a smaller loss on the
    validation set, and is judged where that was smallest.

    Where there are several samples, each step predicts so often, each time with other entries and nodes dropped, and
    the predictions of all nodes are drawn to their sharpened mean (W. Feng et al., Graph Random Neural Network for
    Semi-Supervised Learning on Graphs, arXiv:2005.11079), by the Kullback-Leibler divergence.

    Args:
        lost: see `Stack`.
        samples: predictions in each step.
        consistency: the weight of what they differ by.
        warmup: epochs over which this weight grows from nothing: before anything is learnt, the predictions that agree
            best are those that are the same for all nodes, and some trainings stay there.
        temperature: by which their mean is sharpened: 1 leaves it as it is, 0 would make it one class.
        averaged: the share of earlier epochs in the running mean of predictions that is judged; 0 for none.
        by_accuracy: as in the code of GAT's authors, an epoch with the best accuracy on the validation set so far keeps
            the training going, too, and the last epoch that is best by loss and accuracy is judged.
        rows: whether each node's features are divided by their sum, see PyG's `NormalizeFeatures`. Features with
            negative numbers are left as they are.
        sparse: whether PyG's layers take sparse features.
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
    lost: float = 0.0
    samples: int = 1
    consistency: float = 0.0
    warmup: int = 1
    temperature: float = 0.3
    averaged: float = 0.0
    by_accuracy: bool = False
    rows: bool = True
    sparse: bool = True

    def build(self, P: int, Q: int, pyg: bool = False) -> Stack:
        first, last = self.peers if pyg else self.layers
        return Stack(self.dropout, self.activation, first(P, self.hidden), last(self.hidden, Q), lost=self.lost)


_GAT = Model("GAT", 64, 0.7, *gat(1), F.elu, lr=0.01, epochs=1000, patience=100, by_accuracy=True)
_FAR, _FAR_PEER = pageranks(0.2, 0.05, steps=20)
_NEAR, _NEAR_PEER = steps_alike(8)
_CHEB2, _CHEB3 = (((conv(bases.Chebyshev(K)),) * 2, (partial(ChebConv, K=K),) * 2) for K in (2, 3))

_RANDOM: dict[str, Any] = {"lr": 0.01, "lost": 0.5, "temperature": 0.5, "consistency": 1.0, "warmup": 200}
_RANDOM |= {"averaged": 0.95, "epochs": 1500, "patience": 100, "samples": 2, "sparse": False}
# Among which a search for the settings of a model draws.
SPACE: dict[str, tuple[float, ...]] = {
    "rows": (True, False),
    "hidden": (16, 32, 64, 128),
    "dropout": (0.3, 0.5, 0.6, 0.7, 0.8),
    "lr": (0.005, 0.01, 0.02),
    "weight_decay": (1e-4, 5e-4, 1e-3, 5e-3),
}
LOSING_SPACE: dict[str, tuple[float, ...]] = {
    "lost": (0.3, 0.5, 0.7),
    "temperature": (0.2, 0.3, 0.5),
    "consistency": (0.5, 1.0, 2.0),
}

MODELS = {
    "gcn": Model("GCN", 32, 0.7, (conv(GCN),) * 2, (GCNConv,) * 2),
    "cheb2": Model("ChebNet K=2", 32, 0.7, *_CHEB2, sparse=False),
    "cheb3": Model("ChebNet K=3", 32, 0.7, *_CHEB3, sparse=False),
    "multi": Model("multi-basis", 64, 0.85, (conv(NODE), _FAR), (OnNode, _FAR_PEER)),
    "random": Model("random walks", 64, 0.7, (_NEAR, conv(NODE)), (_NEAR_PEER, OnNode), **_RANDOM),
    "gat": _GAT,
}
# Data sets with settings of their own for GAT: the validation set chose the weight decay for CiteSeer and the mean
# for PubMed, whose others are those of P. Velickovic et al., Graph Attention Networks (arXiv:1710.10903).
OWN = {
    "CiteSeer": _GAT._replace(weight_decay=1e-3),
    "PubMed": _GAT._replace(layers=gat(8)[0], peers=gat(8)[1], dropout=0.6, weight_decay=1e-3, averaged=0.95),
}


def models(dataset: str) -> dict[str, Model]:
    """The models, with a data set's own settings, if it has any."""
    found = MODELS | {"gat": OWN.get(dataset, _GAT)}
    if dataset == "digits":  # whose features are pixels
        return {name: model._replace(rows=False) for name, model in found.items()}
    return found
