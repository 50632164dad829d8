"""Rows of layers whose matrices are functions of the features of edges."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from pyg_basisconv import convert

from .contest import Contest
from .networks import gmm_conv, nn_conv
from .result import Bench, Result, Target


@dataclass(frozen=True)
class EdgeFunctionsRow:
    """A layer on a graph. dim: of the features of edges; width: of those of nodes."""

    layer: str
    make: Callable[[int, int, int], nn.Module]
    dim: int
    width: int
    size: str
    target: Target
    learns_x: bool = False
    devices: tuple[str, ...] = ("cpu", "cuda")

    @property
    def name(self) -> str:
        return f"{self.layer}, {self.size}" + ", x learns" * self.learns_x

    def run(self, bench: Bench) -> Result:
        graph, width = bench.graph(self.size), self.width
        torch.manual_seed(0)
        x = torch.randn(graph.N, width, device=bench.device, requires_grad=self.learns_x)
        z = torch.rand(graph.E, self.dim, device=bench.device)
        start = self.make(width, width, self.dim).state_dict()

        def peer(way: str) -> nn.Module:
            module = self.make(width, width, self.dim)
            module.load_state_dict(start)
            return module.to(bench.device)

        call = x, graph.edge_index, z
        contest = Contest(
            name=self.name,
            ways=["edge_index"],
            reference="edge_index",
            peer=peer,
            arguments=lambda way: call,
            convert=convert,
            ours=call,
            inputs=[x] if self.learns_x else [],
        )
        return contest.run(bench, target=self.target, graph=str(graph), E=graph.E, P=width, Q=width)


def edge_functions_rows() -> list[EdgeFunctionsRow]:
    network, gaussians = ("NNConv, 32 hidden", nn_conv, 4), ("GMMConv K=25", gmm_conv, 2)
    return [
        EdgeFunctionsRow(*network, 64, "medium", Target(5, memory=20)),
        EdgeFunctionsRow(*network, 64, "medium", Target(5, memory=20), learns_x=True),
        EdgeFunctionsRow(*gaussians, 32, "medium", Target(5, memory=10)),
        EdgeFunctionsRow(*gaussians, 32, "medium", Target(5, memory=10), learns_x=True),
    ]
