"""The layers that are compared, and the layouts in which PyG takes their graph."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric import nn as pyg
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.typing import WITH_TORCH_SPARSE, SparseTensor
from torch_geometric.utils import to_torch_csr_tensor

from .data import Graph


class Layer(NamedTuple):
    """A layer of PyG: make(P, Q, cached), where cached says that x is constant, so that a layer may keep what it makes
    of it; and, where there is one, the same function of a graph that was normalised beforehand.
    """

    name: str
    make: Callable[[int, int, bool], nn.Module]
    normalised: Callable[[int, int], nn.Module] | None = None


LAYERS = [
    Layer("GCNConv", lambda P, Q, cached: pyg.GCNConv(P, Q, cached=True)),
    Layer("ChebConv K=3", lambda P, Q, cached: pyg.ChebConv(P, Q, K=3)),
    Layer(
        "TAGConv K=3",
        lambda P, Q, cached: pyg.TAGConv(P, Q, K=3),
        lambda P, Q: pyg.TAGConv(P, Q, K=3, normalize=False),
    ),
    Layer("SGConv K=2", lambda P, Q, cached: pyg.SGConv(P, Q, K=2, cached=cached)),
    Layer("SSGConv K=2", lambda P, Q, cached: pyg.SSGConv(P, Q, alpha=0.1, K=2, cached=cached)),
    Layer("LGConv", lambda P, Q, cached: pyg.LGConv(), lambda P, Q: pyg.LGConv(normalize=False)),
    Layer("SimpleConv sum", lambda P, Q, cached: pyg.SimpleConv("sum")),
    Layer("SimpleConv mean", lambda P, Q, cached: pyg.SimpleConv("mean")),
    Layer("GraphConv add", lambda P, Q, cached: pyg.GraphConv(P, Q, aggr="add")),
    Layer("GraphConv mean", lambda P, Q, cached: pyg.GraphConv(P, Q, aggr="mean")),
    Layer("SAGEConv mean", lambda P, Q, cached: pyg.SAGEConv(P, Q, aggr="mean")),
    Layer("SAGEConv sum", lambda P, Q, cached: pyg.SAGEConv(P, Q, aggr="sum")),
    Layer("ClusterGCNConv", lambda P, Q, cached: pyg.ClusterGCNConv(P, Q)),
    Layer("LEConv", lambda P, Q, cached: pyg.LEConv(P, Q)),
    Layer("MixHopConv", lambda P, Q, cached: pyg.MixHopConv(P, Q, powers=[0, 1, 2])),
]

LAYOUTS = ["edge_index", "CSR", "EdgeIndex"] + (["SparseTensor"] if WITH_TORCH_SPARSE else [])
NORMALISED = ["CSR, normalised before", "edge_index, normalised before"]


def layer(name: str) -> Layer:
    return next(candidate for candidate in LAYERS if candidate.name == name)


def layouts(layer: Layer) -> list[str]:
    """The ways to call PyG's layer; not every layer takes every one."""
    return LAYOUTS + (NORMALISED if layer.normalised else [])


def lay_out(graph: Graph, layout: str) -> tuple[Any, ...]:
    """What a layer gets beside x: edge_index, in a layout, and maybe edge_weight."""
    edge_index, N = graph.edge_index, graph.N
    if layout == "edge_index":
        return (edge_index,)
    if layout == "CSR":
        return (transposed_csr(edge_index, None, N),)
    if layout == "EdgeIndex":
        sides = EdgeIndex(edge_index, sparse_size=(N, N), is_undirected=graph.undirected)
        return (sides.sort_by("col").values.fill_cache_(),)
    if layout == "SparseTensor":
        row, col = edge_index
        return (SparseTensor(row=col, col=row, sparse_sizes=(N, N)).fill_cache_(),)
    edge_index, weight = gcn_norm(edge_index, None, N, add_self_loops=False)
    if layout == "edge_index, normalised before":
        return edge_index, weight
    return (transposed_csr(edge_index, weight, N),)


def transposed_csr(edge_index: Tensor, weight: Tensor | None, N: int) -> Tensor:
    return to_torch_csr_tensor(edge_index.flip(0), weight, size=(N, N))


def peer(layer: Layer, layout: str, P: int, Q: int, constant_x: bool, parameters: dict[str, Tensor]) -> nn.Module:
    """PyG's layer for a layout, with the given parameters."""
    if layout in NORMALISED:
        assert layer.normalised is not None
        module = layer.normalised(P, Q)
    else:
        module = layer.make(P, Q, constant_x)
    module.load_state_dict(parameters)
    return module.to(next(iter(parameters.values())).device if parameters else torch.device("cpu"))
