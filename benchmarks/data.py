"""The graphs: Cora, if BASISCONV_DATA has it, and random ones of given sizes."""

import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from examples.data import planetoid


class Missing(LookupError):
    """A data set is missing, and has no substitute."""


@dataclass(eq=False)
class Graph:
    """A graph with features, labels and nodes to train on.

    edge_index: (2, E) without loops and repeated edges; x: (N, P)
    """

    name: str
    edge_index: Tensor
    x: Tensor
    undirected: bool = False
    real: bool = False
    y: Tensor | None = None
    train: Tensor | None = None

    @property
    def N(self) -> int:
        return self.x.shape[0]

    @property
    def E(self) -> int:
        return self.edge_index.shape[1]

    def to(self, device: str) -> "Graph":
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **moved)

    def __str__(self) -> str:
        kind = "the dataset" if self.real else "random"
        return f"{self.name}: {kind}, {self.N:,} nodes, {self.E:,} edges, {self.x.shape[1]} features"

    @cached_property
    def sparse_x(self) -> Tensor:
        return self.x.to_sparse_csr()


def random_graph(
    name: str, N: int, E: int, P: int, *, density: float = 1.0, undirected: bool = False, seed: int = 0
) -> Graph:
    """E edges in random order, features of the given density, 7 classes and 140 nodes to train on."""
    generator = torch.Generator().manual_seed(seed)
    wanted = E // 2 if undirected else E
    codes = torch.randint(N * N, (wanted + wanted // 4 + 64,), generator=generator)  # source N + target
    source, target = codes // N, codes % N
    if undirected:
        source, target = torch.minimum(source, target), torch.maximum(source, target)
    codes = (source * N + target)[source != target].unique()
    codes = codes[torch.randperm(codes.numel(), generator=generator)[:wanted]]
    edge_index = torch.stack([codes // N, codes % N])
    if undirected:
        edge_index = torch.cat([edge_index, edge_index.flip(0)], 1)
        edge_index = edge_index[:, torch.randperm(edge_index.shape[1], generator=generator)]
    x = torch.randn(N, P, generator=generator)
    if density < 1:
        x = torch.where(torch.rand(N, P, generator=generator) < density, x, 0)
    y = torch.randint(7, (N,), generator=generator)
    return Graph(name, edge_index.contiguous(), x, undirected, False, y, torch.arange(min(140, N)))


def cora() -> Graph | None:
    """Cora from the folder BASISCONV_DATA, which is never written; None if it is missing."""
    root = os.environ.get("BASISCONV_DATA")
    if not root or not Path(root, "Cora", "raw").is_dir():
        return None
    data = planetoid("Cora", Path(root))
    return Graph("Cora", data.edge_index, data.x, True, True, data.y, data.train_mask.nonzero().squeeze(1))


class Size(NamedTuple):
    """The sizes of a graph. first: whether x is data, as in a first layer, and needs no gradient."""

    nodes: int
    edges: int
    width_in: int
    width_out: int
    density: float = 1.0
    undirected: bool = False
    first: bool = False


SIZES = {
    "Cora": Size(2708, 10556, 1433, 16, density=0.0127, undirected=True, first=True),
    "PubMed-sized": Size(19717, 88648, 500, 16, density=0.1, undirected=True, first=True),
    "medium": Size(20_000, 200_000, 64, 64),
    "large": Size(200_000, 4_000_000, 64, 64),
    "large, 2M edges": Size(200_000, 2_000_000, 64, 64),
}


def graph(name: str, quick: bool = False) -> Graph:
    """One of SIZES, on the CPU; if quick, at most a tenth of it."""
    N, E, P, _, density, undirected, _ = SIZES[name]
    if quick:
        shrink = 100 if E >= 1_000_000 else 10
        return random_graph(name, N // shrink, E // shrink, max(16, P // 10), density=density, undirected=undirected)
    real = cora() if name == "Cora" else None
    if real is not None:
        return real
    return random_graph(name, N, E, P, density=density, undirected=undirected)
