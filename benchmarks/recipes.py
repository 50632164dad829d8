"""Rows of layers whose recipes are more than one convolution: propagation, gates, networks around it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.typing import WITH_TORCH_SPARSE

from pyg_basisconv import convert

from .contest import Arguments, Contest
from .data import Graph
from .drop_ins import DropIn
from .networks import PAN, cf_conv, gatv2_on_edges, general, heat, point_transformer, transformer_on_edges
from .result import Bench, Result, Row, Target, one_thread

WIDTH, TYPES, DIM = 64, 3, 8


def plain(graph: Graph) -> Arguments:
    return (graph.edge_index,)


def with_initial(graph: Graph) -> Arguments:
    return torch.randn(graph.N, WIDTH), graph.edge_index


def with_positions(graph: Graph) -> Arguments:
    return torch.rand(graph.N, 3), graph.edge_index


def with_types(graph: Graph) -> Arguments:
    return graph.edge_index, torch.randint(TYPES, (graph.E,))


def with_features(graph: Graph) -> Arguments:
    return graph.edge_index, torch.rand(graph.E, DIM)


def with_distances(graph: Graph) -> Arguments:
    return graph.edge_index, 5 * torch.rand(graph.E), torch.rand(graph.E, DIM)


def with_all_types(graph: Graph) -> Arguments:
    nodes, edges = torch.randint(TYPES, (graph.N,)), torch.randint(TYPES, (graph.E,))
    return graph.edge_index, nodes, edges, torch.rand(graph.E, DIM)


@dataclass(frozen=True)
class RecipeRow:
    """A layer on a graph, with gradients of its parameters and x.

    given: its arguments after x; converted: makes ours of it.
    """

    layer: str
    make: Callable[[], nn.Module]
    given: Callable[[Graph], Arguments]
    size: str
    target: Target
    converted: Callable[[nn.Module], nn.Module] = convert
    devices: tuple[str, ...] = ("cpu",)

    @property
    def name(self) -> str:
        return f"{self.layer}, {self.size}"

    def run(self, bench: Bench) -> Result:
        graph = bench.graph(self.size)
        torch.manual_seed(0)
        x = torch.randn(graph.N, WIDTH, requires_grad=True)
        start, call = self.make().state_dict(), (x, *self.given(graph))

        def peer(way: str) -> nn.Module:
            module = self.make()
            module.load_state_dict(start)
            return module

        contest = Contest(
            name=self.name,
            ways=["edge_index"],
            reference="edge_index",
            peer=peer,
            arguments=lambda way: call,
            convert=self.converted,
            ours=call,
            inputs=[x],
        )
        return contest.run(bench, target=self.target, graph=str(graph), E=graph.E, P=WIDTH, Q=WIDTH, ceiling=None)


class Seeded(nn.Module):
    """Draws the same random numbers in each call."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, *args: Any) -> Any:
        torch.manual_seed(0)
        return self.conv(*args)


DROPPING = DropIn(lambda library: Seeded(library.GATConv(WIDTH, WIDTH // 8, heads=8, dropout=0.6)))

Layer = tuple[str, Callable[[], nn.Module], Callable[[Graph], Arguments]]
W = WIDTH
PROPAGATING: list[Layer] = [
    ("APPNP K=10", lambda: pyg.APPNP(10, 0.1), plain),
    ("GCN2Conv", lambda: pyg.GCN2Conv(W, 0.1, 0.5, 1), with_initial),
    *([("PANConv", lambda: PAN(W, W), plain)] if WITH_TORCH_SPARSE else []),
]
POINTS: list[Layer] = [
    ("PointTransformerConv", lambda: pyg.PointTransformerConv(W, W), with_positions),
    ("PointTransformerConv, networks", lambda: point_transformer(W, W), with_positions),
]
OTHERS: list[Layer] = [
    ("ARMAConv", lambda: pyg.ARMAConv(W, W, num_layers=2), plain),
    ("AntiSymmetricConv", lambda: pyg.AntiSymmetricConv(W), plain),
    ("CFConv of SchNet", lambda: cf_conv(W, DIM), with_distances),
    ("EGConv", lambda: pyg.EGConv(W, W), plain),
    ("FiLMConv, 3 relations, linear", lambda: pyg.FiLMConv(W, W, TYPES, act=None), with_types),
    ("GATv2Conv 8 heads, edge features", lambda: gatv2_on_edges(W, W, DIM), with_features),
    ("GatedGraphConv, 2 layers", lambda: pyg.GatedGraphConv(W, 2), plain),
    ("GeneralConv, 4 heads, edge features", lambda: general(W, W, DIM), with_features),
    ("HEATConv, 2 heads", lambda: heat(W, W, TYPES, DIM), with_all_types),
    ("MFConv", lambda: pyg.MFConv(W, W), plain),
    ("TransformerConv 8 heads, edge features", lambda: transformer_on_edges(W, W, DIM), with_features),
]


def recipe_rows() -> list[Row]:
    rows: list[Row] = [
        *(RecipeRow(*layer, size, Target(2)) for layer in PROPAGATING for size in ("Cora", "large, 2M edges")),
        *(RecipeRow(*layer, "medium", Target(3)) for layer in POINTS),
        *(RecipeRow(*layer, "medium", Target(1)) for layer in OTHERS),
        *(
            RecipeRow(f"GATConv 8 heads, dropout 0.6, {note}", DROPPING.make, plain, size, Target(1), ours)
            for note, ours in (("converted", convert), ("of nn", DROPPING.convert))
            for size in ("Cora", "large")
        ),
    ]
    return [one_thread(row) for row in rows]
