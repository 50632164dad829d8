"""Rows of R-GCN on a knowledge graph: PyG's layers against their conversions."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch_geometric.nn import FastRGCNConv, RGCNConv

from pyg_basisconv import convert

from .contest import Contest
from .grids import LAYOUTS, lay_out
from .knowledge import facts
from .result import Bench, Result, Target

WIDTH = 64


@dataclass(frozen=True)
class RelationsRow:
    """A layer on the edges and their inverses. share: the random share of the edges; options: of the layer."""

    layer: type[RGCNConv]
    target: Target
    backward: bool = True
    share: float = 1.0
    options: dict[str, int] = field(default_factory=dict)
    devices: tuple[str, ...] = ("cpu", "cuda")

    @property
    def name(self) -> str:
        parts = [
            f"{self.layer.__name__} on a knowledge graph",
            f"{self.share:.0%} of the edges" * (self.share < 1),
            *(f"{value} {name.removeprefix('num_')}" for name, value in self.options.items()),
            "forward" * (not self.backward),
        ]
        return ", ".join(filter(None, parts))

    def run(self, bench: Bench) -> Result:
        graph = facts(bench)
        edge_index, edge_type = graph.with_inverses()
        R = 2 * len(graph.relations)
        if self.share < 1:
            generator = torch.Generator().manual_seed(0)
            some = torch.randperm(2 * graph.E, generator=generator)[: round(self.share * 2 * graph.E)]
            edge_index, edge_type = edge_index[:, some], edge_type[some]
        edge_index, edge_type = edge_index.to(bench.device), edge_type.to(bench.device)
        torch.manual_seed(0)
        start = self.layer(WIDTH, WIDTH, R, **self.options).state_dict()
        x = torch.randn(graph.N, WIDTH, device=bench.device, requires_grad=self.backward)

        def peer(way: str) -> nn.Module:
            module = self.layer(WIDTH, WIDTH, R, is_sorted="by type" in way, **self.options)
            module.load_state_dict(start)
            return module.to(bench.device)

        def arguments(way: str) -> tuple[Any, ...]:
            return x, *lay_out(way, edge_index, edge_type, graph.N)

        contest = Contest(
            name=self.name,
            ways=list(LAYOUTS),
            reference=LAYOUTS[0],
            peer=peer,
            arguments=arguments,
            convert=convert,
            ours=(x, edge_index, edge_type),
            inputs=[x] if self.backward else [],
            backward=self.backward,
        )
        fields = {"graph": str(graph), "E": edge_type.numel(), "P": WIDTH, "Q": WIDTH}
        return contest.run(bench, target=self.target, **fields)


def relations_rows() -> list[RelationsRow]:
    return [
        RelationsRow(RGCNConv, Target(9, memory=1), backward=False),
        RelationsRow(RGCNConv, Target(7, memory=1)),
        RelationsRow(RGCNConv, Target(5), options={"num_bases": 30}),
        RelationsRow(RGCNConv, Target(5), options={"num_blocks": 16}),
        RelationsRow(FastRGCNConv, Target(5, memory=10), share=0.1),
    ]
