"""Rows of layers on a new graph in every step: a layer of PyG against its conversion."""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg

from pyg_basisconv import convert

from .compare import assert_close, assert_same_gradients, step
from .contest import Arguments, best, checked, measure
from .data import random_graph
from .drop_ins import LAYERS, drop_ins
from .layers import lay_out
from .measure import Effort, Work
from .networks import cf_conv, gatv2_on_edges, general, gmm_conv, heat, nn_conv, point_transformer, transformer_on_edges
from .result import Bench, Result, Row, Target, in_double, one_thread

WIDTH, HEADS, RELATIONS, DIM = 64, 8, 4, 4
SIZES = [(640, 1_280), (3_000, 12_000)]  # nodes and edges
TINY = 100, 400
IN_DOUBLE = (
    "GCNConv",
    "SAGEConv",
    "GraphConv",
    "ChebConv K=3",
    "RGCNConv",
    "GATConv 8 heads",
    "TransformerConv 8 heads",
)
POOL = 20  # graphs that are repeated
EFFORT = Effort(rounds=15, seconds=1.0, burst=0.02)


class Drawn(NamedTuple):
    """A random graph, without loops and repeated edges, and features that need a gradient.

    types: of the edges; attr: (E, 4), features of the edges; positions: (N, 3)
    """

    x: Tensor
    edge_index: Tensor
    types: Tensor
    attr: Tensor
    positions: Tensor

    @classmethod
    def of(cls, N: int, E: int, seed: int) -> "Drawn":
        graph = random_graph("drawn", N, E, WIDTH, seed=seed)
        types, attr, positions = torch.randint(RELATIONS, (E,)), torch.rand(E, DIM), torch.rand(N, 3)
        return cls(graph.x.requires_grad_(), graph.edge_index, types, attr, positions)

    def to(self, device: str) -> "Drawn":
        x, *others = (t.detach().to(device) for t in self)
        return Drawn(x.requires_grad_(), *others)


# What a layer is called with after x, given a drawn graph and its edges in a layout.
Given = Callable[[Drawn, Arguments], Arguments]


def plain(drawn: Drawn, edges: Arguments) -> Arguments:
    return edges


def typed(drawn: Drawn, edges: Arguments) -> Arguments:
    return *edges, drawn.types.clone()


def attributed(drawn: Drawn, edges: Arguments) -> Arguments:
    return *edges, drawn.attr


def distant(drawn: Drawn, edges: Arguments) -> Arguments:
    return *edges, 5 * drawn.attr[:, 0], drawn.attr


def positioned(drawn: Drawn, edges: Arguments) -> Arguments:
    return drawn.positions, *edges


def all_typed(drawn: Drawn, edges: Arguments) -> Arguments:
    nodes = torch.arange(drawn.x.shape[0], device=drawn.x.device) % RELATIONS
    return *edges, nodes, drawn.types.clone(), drawn.attr


class NewGraphRow(NamedTuple):
    """Forward and backward. given: what the layer reads besides x. convert: makes ours of the layer."""

    layer: str
    make: Callable[[], nn.Module]
    target: Target
    size: tuple[int, int]
    given: Given = plain
    convert: Callable[[nn.Module], nn.Module] = convert
    devices: tuple[str, ...] = ("cpu", "cuda")

    @property
    def name(self) -> str:
        N, E = self.size
        return f"new graph in every step: {self.layer}, {N:,} nodes, {E:,} edges"

    def run(self, bench: Bench) -> Result:
        N, E = (n // 10 if bench.quick else n for n in self.size)
        torch.manual_seed(0)
        peer = self.make().to(bench.device)
        ours = checked(self.convert(peer))
        pool = [Drawn.of(N, E, seed).to(bench.device) for seed in range(POOL)]
        gradient = torch.randn(N, WIDTH, device=bench.device)

        def build(layout: str) -> Work:
            self._assert_same(peer, ours, pool[:3], gradient, layout)
            return self._steps(peer, pool, gradient, layout)

        build("edge_index")  # a difference is an error here; other layouts are skipped if they differ
        layout, theirs, skipped = best(
            ["edge_index", "CSR"] if self.given is plain else ["edge_index"], build, bench.device
        )
        about = {"E": E, "P": WIDTH, "Q": WIDTH, "gradients": "Theta, x", "way": layout, "skipped": skipped}
        mine = self._steps(ours, pool, gradient)
        return measure(theirs, mine, bench.at(EFFORT), work=self.name, target=self.target, **about)

    def _steps(
        self, module: nn.Module, pool: Sequence[Drawn], gradient: Tensor, layout: str = "edge_index"
    ) -> Callable[[], tuple[Tensor, ...]]:
        """Steps on the graphs in turn, each on a fresh copy of the edges; other layouts are made within the step, as a
        user would have to. The parameters are listed once, as by an optimiser.
        """
        turn, parameters = itertools.cycle(pool), list(module.parameters())

        def work() -> tuple[Tensor, ...]:
            drawn = next(turn)
            given = self.given(drawn, lay_out(drawn.edge_index.clone(), drawn.x.shape[0], layout))
            return step(lambda: module(drawn.x, *given), [drawn.x, *parameters], gradient)

        return work

    def _assert_same(
        self, peer: nn.Module, ours: nn.Module, pool: Sequence[Drawn], gradient: Tensor, layout: str
    ) -> None:
        """Compares values and all gradients on some of the graphs."""
        name = f"{self.name}, {layout}"
        theirs, mine = self._steps(peer, pool, gradient, layout), self._steps(ours, pool, gradient)
        for _ in pool:
            expected, found = theirs(), mine()
            assert_close(found[0], expected[0], f"{name}: the value")
            assert_close(found[1], expected[1], f"{name}: the gradient of x")
            twin = self.make().to(gradient.device)
            assert_same_gradients(twin, self.convert, expected[2:], found[2:], name)


def new_graph_rows() -> list[Row]:
    same, more = Target(1), Target(1.5)
    on_edges: list[tuple[str, Callable[[], nn.Module], Target]] = [
        ("GCNConv", lambda: pyg.GCNConv(WIDTH, WIDTH), more),
        ("SAGEConv", lambda: pyg.SAGEConv(WIDTH, WIDTH), same),
        ("GraphConv", lambda: pyg.GraphConv(WIDTH, WIDTH), same),
        ("ChebConv K=3", lambda: pyg.ChebConv(WIDTH, WIDTH, K=3), more),
        ("GATConv 8 heads", lambda: pyg.GATConv(WIDTH, WIDTH // HEADS, HEADS), same),
        ("TransformerConv 8 heads", lambda: pyg.TransformerConv(WIDTH, WIDTH // HEADS, HEADS), same),
        ("APPNP K=10", lambda: pyg.APPNP(10, 0.1), same),
        ("ARMAConv", lambda: pyg.ARMAConv(WIDTH, WIDTH, num_layers=2), same),
        ("GatedGraphConv", lambda: pyg.GatedGraphConv(WIDTH, 2), same),
        ("AntiSymmetricConv", lambda: pyg.AntiSymmetricConv(WIDTH), same),
        ("EGConv", lambda: pyg.EGConv(WIDTH, WIDTH), same),
        ("MFConv", lambda: pyg.MFConv(WIDTH, WIDTH), same),
        ("GeneralConv", lambda: pyg.GeneralConv(WIDTH, WIDTH), same),
    ]
    layers: list[tuple[str, Callable[[], nn.Module], Target, Given]] = [
        *((*layer, plain) for layer in on_edges),
        ("RGCNConv", lambda: pyg.RGCNConv(WIDTH, WIDTH, RELATIONS), more, typed),
        ("FiLMConv", lambda: pyg.FiLMConv(WIDTH, WIDTH, RELATIONS, act=None), same, typed),
        ("NNConv", lambda: nn_conv(WIDTH, WIDTH, DIM), same, attributed),
        ("GMMConv", lambda: gmm_conv(WIDTH, WIDTH, DIM), same, attributed),
        ("PDNConv", lambda: pyg.PDNConv(WIDTH, WIDTH, DIM, 8), same, attributed),
        ("GeneralConv, 4 heads, edge features", lambda: general(WIDTH, WIDTH, DIM), same, attributed),
        ("GATv2Conv 8 heads, edge features", lambda: gatv2_on_edges(WIDTH, WIDTH, DIM), same, attributed),
        ("TransformerConv 8 heads, edge features", lambda: transformer_on_edges(WIDTH, WIDTH, DIM), same, attributed),
        ("CFConv of SchNet", lambda: cf_conv(WIDTH, DIM), same, distant),
        ("PointTransformerConv", lambda: pyg.PointTransformerConv(WIDTH, WIDTH), same, positioned),
        ("PointTransformerConv, networks", lambda: point_transformer(WIDTH, WIDTH), same, positioned),
        ("HEATConv, 2 heads", lambda: heat(WIDTH, WIDTH, RELATIONS, DIM), same, all_typed),
    ]
    rows = [
        one_thread(NewGraphRow(name, make, target, size, given))
        for size in SIZES
        for name, make, target, given in layers
    ]
    rows += [
        one_thread(NewGraphRow(name, one.make, same, size, convert=one.convert))
        for size in (TINY, SIZES[0])
        for name, one in drop_ins(WIDTH)
    ]
    rows += [one_thread(NewGraphRow(name, make, same, TINY)) for name, make, _ in on_edges if name in LAYERS]
    double = [layer for layer in layers if layer[0] in IN_DOUBLE]
    return rows + [
        one_thread(in_double(NewGraphRow(name, make, same, SIZES[-1], given))) for name, make, _, given in double
    ]
