"""The layers that are compared, and the layouts of graphs that PyG takes."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex, nn as pyg
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.typing import WITH_TORCH_SPARSE, SparseTensor
from torch_geometric.utils import add_remaining_self_loops, to_torch_csr_tensor

from .data import Graph

Edges = tuple[Any, ...]  # edge_index in a layout, and maybe edge_weight

LAYOUTS = ["edge_index", "CSR", "EdgeIndex"] + (["SparseTensor"] if WITH_TORCH_SPARSE else [])


def lay_out(edge_index: Tensor, N: int, layout: str, weight: Tensor | None = None, undirected: bool = False) -> Edges:
    """A graph in a layout, which may hold the weights."""
    if layout == "edge_index":
        return (edge_index,) if weight is None else (edge_index, weight)
    if layout == "CSR":
        return (to_torch_csr_tensor(edge_index.flip(0), weight, size=(N, N)),)  # PyG takes the transposed matrix
    if layout == "EdgeIndex":
        assert weight is None
        sides = EdgeIndex(edge_index, sparse_size=(N, N), is_undirected=undirected)
        return (sides.sort_by("col").values.fill_cache_(),)
    row, col = edge_index
    return (SparseTensor(row=col, col=row, value=weight, sparse_sizes=(N, N)).fill_cache_(),)


def normalised(graph: Graph, layout: str) -> Edges:
    edge_index, weight = gcn_norm(graph.edge_index, None, graph.N, add_self_loops=False)
    return lay_out(edge_index, graph.N, layout, weight)


def with_loops(graph: Graph, layout: str) -> Edges:
    edge_index, _ = add_remaining_self_loops(graph.edge_index, num_nodes=graph.N)
    return lay_out(edge_index, graph.N, layout, undirected=graph.undirected)


class Before(NamedTuple):
    """A preparation of the graph before calls of a layer of PyG: its name, the layouts it applies to, and a
    function."""

    name: str
    layouts: Sequence[str]
    edges: Callable[[Graph, str], Edges]


NORMALISED = Before("normalised before", ["CSR", "edge_index"], normalised)
WITH_LOOPS = Before("loops added before", LAYOUTS, with_loops)

Make = Callable[[int, int], nn.Module]  # of the widths in and out


class Layer(NamedTuple):
    """A layer of PyG.

    cached: a variant that may cache a function of x, for a constant x.
    prepared: a variant that is the same function of a prepared graph.
    """

    name: str
    make: Make
    cached: Make | None = None
    prepared: tuple[Before, Make] | None = None

    def layouts(self) -> list[str]:
        """The ways to call it; not every layer takes all."""
        if self.prepared is None:
            return LAYOUTS
        before, _ = self.prepared
        return LAYOUTS + [f"{layout}, {before.name}" for layout in before.layouts]

    def module(self, layout: str, P: int, Q: int, constant_x: bool, parameters: dict[str, Tensor]) -> nn.Module:
        """The layer for a layout, with the given parameters."""
        make = self.make if self.cached is None or not constant_x else self.cached
        if layout not in LAYOUTS:
            assert self.prepared is not None
            make = self.prepared[1]
        module = make(P, Q)
        module.load_state_dict(parameters)
        return module.to(next(iter(parameters.values())).device if parameters else torch.device("cpu"))

    def edges(self, graph: Graph, layout: str) -> Edges:
        """Its arguments after x."""
        if layout in LAYOUTS:
            return lay_out(graph.edge_index, graph.N, layout, undirected=graph.undirected)
        assert self.prepared is not None
        return self.prepared[0].edges(graph, layout.split(",")[0])


CONVOLUTIONS = [
    Layer("GCNConv", lambda P, Q: pyg.GCNConv(P, Q, cached=True)),
    Layer("ChebConv K=3", lambda P, Q: pyg.ChebConv(P, Q, K=3)),
    Layer(
        "TAGConv K=3",
        lambda P, Q: pyg.TAGConv(P, Q, K=3),
        prepared=(NORMALISED, lambda P, Q: pyg.TAGConv(P, Q, K=3, normalize=False)),
    ),
    Layer("SGConv K=2", lambda P, Q: pyg.SGConv(P, Q, K=2), lambda P, Q: pyg.SGConv(P, Q, K=2, cached=True)),
    Layer(
        "SSGConv K=2",
        lambda P, Q: pyg.SSGConv(P, Q, alpha=0.1, K=2),
        lambda P, Q: pyg.SSGConv(P, Q, alpha=0.1, K=2, cached=True),
    ),
    Layer("LGConv", lambda P, Q: pyg.LGConv(), prepared=(NORMALISED, lambda P, Q: pyg.LGConv(normalize=False))),
    Layer("SimpleConv sum", lambda P, Q: pyg.SimpleConv("sum")),
    Layer("SimpleConv mean", lambda P, Q: pyg.SimpleConv("mean")),
    Layer("GraphConv add", lambda P, Q: pyg.GraphConv(P, Q, aggr="add")),
    Layer("GraphConv mean", lambda P, Q: pyg.GraphConv(P, Q, aggr="mean")),
    Layer("SAGEConv mean", lambda P, Q: pyg.SAGEConv(P, Q, aggr="mean")),
    Layer("SAGEConv sum", lambda P, Q: pyg.SAGEConv(P, Q, aggr="sum")),
    Layer("ClusterGCNConv", lambda P, Q: pyg.ClusterGCNConv(P, Q)),
    Layer("LEConv", lambda P, Q: pyg.LEConv(P, Q)),
    Layer("MixHopConv", lambda P, Q: pyg.MixHopConv(P, Q, powers=[0, 1, 2])),
]

ATTENTION = [  # eight heads, Q channels together
    Layer(
        "GATConv 8 heads",
        lambda P, Q: pyg.GATConv(P, Q // 8, heads=8),
        prepared=(WITH_LOOPS, lambda P, Q: pyg.GATConv(P, Q // 8, heads=8, add_self_loops=False)),
    ),
    Layer(
        "GATv2Conv 8 heads",
        lambda P, Q: pyg.GATv2Conv(P, Q // 8, heads=8),
        prepared=(WITH_LOOPS, lambda P, Q: pyg.GATv2Conv(P, Q // 8, heads=8, add_self_loops=False)),
    ),
    Layer("TransformerConv 8 heads", lambda P, Q: pyg.TransformerConv(P, Q // 8, heads=8)),
    Layer(
        "SuperGATConv 8 heads",  # in evaluation mode: training samples negative edges
        lambda P, Q: pyg.SuperGATConv(P, Q // 8, heads=8).eval(),
        prepared=(WITH_LOOPS, lambda P, Q: pyg.SuperGATConv(P, Q // 8, heads=8, add_self_loops=False).eval()),
    ),
    Layer(
        "FeaStConv 8 heads",
        lambda P, Q: pyg.FeaStConv(P, Q, heads=8),
        prepared=(WITH_LOOPS, lambda P, Q: pyg.FeaStConv(P, Q, heads=8, add_self_loops=False)),
    ),
    Layer(
        "AGNNConv",
        lambda P, Q: pyg.AGNNConv(),
        prepared=(WITH_LOOPS, lambda P, Q: pyg.AGNNConv(add_self_loops=False)),
    ),
    Layer("ResGatedGraphConv", lambda P, Q: pyg.ResGatedGraphConv(P, Q)),
]

LAYERS = CONVOLUTIONS + ATTENTION


def layer(name: str) -> Layer:
    return next(candidate for candidate in LAYERS if candidate.name == name)
