"""Rows of layers on graphs: PyG's layer against its conversion."""

from typing import Any, NamedTuple

import torch
from torch import nn

from pyg_basisconv import convert

from .contest import Contest
from .data import SIZES
from .layers import ATTENTION, CONVOLUTIONS, LAYOUTS, Layer, layer
from .result import Bench, Result, Target

EVERY = Target(ratio=1, group="any layer, any size")
SPARSE = ", sparse x"  # the suffix of ways in which PyG has sparse features, too


class LayerRow(NamedTuple):
    """A layer on one of the graphs.

    sparse_x: whether ours has sparse features; PyG gets sparse or dense ones, whichever is faster.
    layouts: of the graph, for PyG; None for all.
    Q: the width of the result, if it is not the graph's.
    backward: whether to run the backward pass, too.
    """

    layer: Layer
    size: str
    target: Target
    sparse_x: bool = False
    layouts: tuple[str, ...] | None = None
    note: str = ""
    Q: int | None = None
    backward: bool = True
    devices: tuple[str, ...] = ("cpu", "cuda")
    seed: int = 0  # of the parameters: see `attention_rows`

    @property
    def name(self) -> str:
        parts = [self.layer.name, self.size, "sparse x" * self.sparse_x, "forward" * (not self.backward), self.note]
        return ", ".join(filter(None, parts))

    def run(self, bench: Bench) -> Result:
        layer, graph, size = self.layer, bench.graph(self.size), SIZES[self.size]
        P, Q = graph.x.shape[1], self.Q or size.width_out
        torch.manual_seed(self.seed)
        state = {name: value.to(bench.device) for name, value in layer.make(P, Q).state_dict().items()}
        # A first layer reads data, a later one features that need a gradient; so does a layer without parameters.
        grad_x = self.backward and (not size.first or not state)
        x = graph.x.clone().requires_grad_(grad_x)

        ways = list(self.layouts or layer.layouts())
        if self.sparse_x:
            ways += [layout + SPARSE for layout in ways]

        def peer(way: str) -> nn.Module:
            return layer.module(way.removesuffix(SPARSE), P, Q, not grad_x and self.backward, state)

        def arguments(way: str) -> tuple[Any, ...]:
            features = graph.sparse_x if way.endswith(SPARSE) else x
            return features, *layer.edges(graph, way.removesuffix(SPARSE))

        contest = Contest(
            name=self.name,
            ways=ways,
            reference="edge_index",
            peer=peer,
            arguments=arguments,
            convert=convert,
            ours=(graph.sparse_x if self.sparse_x else x, *layer.edges(graph, "edge_index")),
            inputs=[x] if grad_x else [],
            backward=self.backward,
        )
        fields = {"graph": graph.name, "E": graph.E, "P": P, "Q": Q, "target": self.target}
        # Without parameters the plan counts a product with the identity, which is not computed.
        return contest.run(bench, **fields, **({} if state else {"ceiling": None}))


def convolution_rows() -> list[LayerRow]:
    """Convolutions with a target of their own."""
    sparse = tuple(name for name in LAYOUTS if name != "edge_index")
    cheb, gcn, tag = layer("ChebConv K=3"), layer("GCNConv"), layer("TAGConv K=3")
    return [
        LayerRow(cheb, "Cora", Target(15)),
        LayerRow(cheb, "Cora", Target(100), sparse_x=True),
        LayerRow(gcn, "Cora", Target(1.2)),
        LayerRow(gcn, "Cora", Target(8), sparse_x=True),
        LayerRow(gcn, "large", Target(10), layouts=("edge_index",), note="against edge_index"),
        LayerRow(gcn, "large", Target(2.5), layouts=sparse, note="against sparse layouts"),
        LayerRow(tag, "PubMed-sized", Target(8)),
    ]


def attention_rows() -> list[LayerRow]:
    """Attention with a target of its own: 8 heads of width 8.

    With most seeds, one of the 34 million scores of the large row is so near to zero that rounding decides its sign,
    and with it the slope of LeakyReLU, so that the gradients of two nodes differ. With seed 2 there is none.
    """
    gat, v2, transformer = ATTENTION[:3]
    return [
        LayerRow(gat, "large", Target(5), Q=64, backward=False),
        LayerRow(gat, "large", Target(4.5, memory=8), Q=64, seed=2),
        LayerRow(gat, "Cora", Target(2.5), Q=64, sparse_x=True),
        LayerRow(gat, "PubMed-sized", Target(2), Q=64),
        LayerRow(v2, "large, 2M edges", Target(2.5, memory=4), Q=64),
        LayerRow(transformer, "large, 2M edges", Target(2.5, memory=4), Q=64),
    ]


def every_row() -> list[LayerRow]:
    """All other layers on the smaller graphs, and some on a large one."""
    have = {(row.layer.name, row.size) for row in convolution_rows() + attention_rows()}
    rows = [LayerRow(one, size, EVERY) for size in ("Cora", "PubMed-sized", "medium") for one in CONVOLUTIONS]
    rows += [LayerRow(one, size, EVERY, Q=64) for size in ("Cora", "PubMed-sized", "medium") for one in ATTENTION]
    rows += [LayerRow(layer(name), "large", EVERY) for name in ("ChebConv K=3", "SAGEConv mean")]
    return [row for row in rows if (row.layer.name, row.size) not in have]
