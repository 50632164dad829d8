"""Rows of training on batches of small graphs: a model of PyG's layers against its conversion."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

from pyg_basisconv import convert
from pyg_basisconv.nn import GINConv

from .loaders import CLASSES, LoadedRow, StepsRow, Training
from .networks import gin, normed_gin
from .result import Bench, Row, Target, one_thread

FEATURES, HEADS, GRAPHS, TOGETHER = 16, 8, 512, 32


class Pooled(nn.Module):
    """Three layers, the mean over each graph, and a linear map. layer: makes a layer for given widths."""

    def __init__(self, layer: Callable[[int, int], nn.Module], P: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([layer(P, width), layer(width, width), layer(width, width)])
        self.last = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, size: int) -> Tensor:
        for layer in self.layers:
            x = layer(x, edge_index).relu()
        y: Tensor = self.last(pyg.global_mean_pool(x, batch, size))
        return y


def molecule(nodes: int) -> Data:
    """A random tree of short bonds, closed to a ring: as many bonds as atoms, each with an edge in both directions."""
    later = torch.arange(1, nodes)
    earlier = (later - 1 - torch.randint(3, (nodes - 1,))).clamp(min=0)
    bonds = torch.cat([torch.stack([earlier, later]), torch.tensor([[0], [nodes - 1]])], 1)
    x, y = torch.randn(nodes, FEATURES), torch.randint(CLASSES, (1,))
    return Data(x=x, edge_index=torch.cat([bonds, bonds.flip(0)], 1), y=y)


def molecules(bench: Bench) -> Iterable[Any]:
    """Graphs of some 20 nodes and 40 edges, 32 to a batch."""
    sizes = torch.randint(10, 31, (2 * TOGETHER if bench.quick else GRAPHS,)).tolist()
    return DataLoader([molecule(nodes) for nodes in sizes], batch_size=TOGETHER, shuffle=True)


def called(batch: Batch) -> tuple[Any, ...]:
    return batch.x, batch.edge_index, batch.batch, batch.num_graphs


def as_drop_ins(model: nn.Module) -> nn.Module:
    """A copy of a model of GINConv, with the layers of `pyg_basisconv.nn`."""
    ours: Any = copy.deepcopy(model)
    ours.layers = nn.ModuleList([GINConv(layer.nn) for layer in ours.layers])
    ours.load_state_dict(model.state_dict())  # GINConv resets its network
    return ours


# A name, what makes a layer of PyG, and what makes ours of the model.
LAYERS: list[tuple[str, Callable[[int, int], nn.Module], Callable[[nn.Module], nn.Module]]] = [
    ("GCN", pyg.GCNConv, convert),
    ("GraphConv", pyg.GraphConv, convert),
    ("GIN", gin, convert),
    ("GIN with batch norms, of nn", normed_gin, as_drop_ins),
    ("GAT", lambda P, Q: pyg.GATConv(P, Q // HEADS, HEADS), convert),
]


def batch_rows() -> list[Row]:
    """Steps on batches in memory, with new edges in each step; and epochs with a loader."""
    rows: list[Row] = []
    for name, layer, to_ours in LAYERS:
        training = Training(
            f"{name} on batches of {TOGETHER} small graphs",
            lambda P, width, layer=layer: Pooled(layer, P, width),
            molecules,
            ["edge_index"],
            called,
            convert=to_ours,
        )
        rows += [StepsRow(training, Target(1)), LoadedRow(training, Target(1), most=None)]
    return [one_thread(row) for row in rows]
