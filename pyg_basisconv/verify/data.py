"""The inputs of all comparisons: small graphs, features, and modules with random parameters."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

N, P, Q = 12, 6, 4  # nodes, and the widths of x and y
E, H, M, L = 8, 2, 7, 5  # a Transformer's width and heads, and the numbers of keys and queries
B, GRIDS = 2, {1: (9,), 2: (6, 7), 3: (5, 6, 7)}  # images


def graph(loops: Sequence[int] = (2,)) -> tuple[Tensor, Tensor]:
    """A directed graph with parallel edges, some loops and an isolated node, and positive weights."""
    edge_index = torch.randint(0, N - 1, (2, 3 * N))  # node N - 1 is isolated
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    edge_index = torch.cat([edge_index, edge_index[:, :3], torch.tensor([list(loops)] * 2)], 1)
    return edge_index, torch.rand(edge_index.shape[1], dtype=torch.float64) + 0.1


def features(*shape: int) -> Tensor:
    """Random numbers in float64."""
    return torch.randn(*shape, dtype=torch.float64)


def drawn(module: Any, std: float = 1.0) -> Any:
    """A module in float64 with random parameters, no two numbers of which are equal."""
    module = module.double()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=std)
    return module
