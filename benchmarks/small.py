"""Rows of small calls: a layer on one small graph that it has seen before, where overhead outweighs the kernels.

PyG's layer is called as users call it, with an `edge_index`; in further rows it has a CSR matrix, made beforehand.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg

from pyg_basisconv import convert

from .compare import assert_close
from .contest import Arguments, Contest
from .data import random_graph
from .drop_ins import drop_ins
from .layers import lay_out
from .measure import Effort
from .networks import (
    cf_conv,
    gatv2_on_edges,
    general,
    gin,
    gmm_conv,
    heat,
    nn_conv,
    point_transformer,
    transformer_on_edges,
)
from .result import Bench, Result, Row, Target, in_double, one_thread

NODES, EDGES, WIDTH, HEADS, RELATIONS, DIM = 100, 400, 16, 8, 3, 4
EFFORT = Effort(rounds=25, seconds=1.0, burst=0.01)


def features() -> Tensor:
    return torch.randn(NODES, WIDTH)


def edges() -> Tensor:
    """Without loops and repeated edges, which a CSR matrix would change."""
    return random_graph("small", NODES, EDGES, WIDTH).edge_index


def on_graph() -> Arguments:
    return features(), edges()


def on_batch() -> Arguments:
    """Features of four graphs with the same edges."""
    return torch.randn(4, NODES, WIDTH), edges()


def on_dense() -> Arguments:
    """Four graphs, with a matrix each."""
    return torch.randn(4, NODES, WIDTH), (torch.rand(4, NODES, NODES) < EDGES / NODES**2).float()


def on_relations() -> Arguments:
    return features(), edges(), torch.randint(RELATIONS, (EDGES,))


def with_initial() -> Arguments:
    return features(), features(), edges()


def with_features() -> Arguments:
    return features(), edges(), torch.rand(EDGES, DIM)


def with_distances() -> Arguments:
    return features(), edges(), 5 * torch.rand(EDGES), torch.rand(EDGES, DIM)


def with_all_types() -> Arguments:
    nodes, edge_types = torch.randint(RELATIONS, (NODES,)), torch.randint(RELATIONS, (EDGES,))
    return features(), edges(), nodes, edge_types, torch.rand(EDGES, DIM)


def with_positions() -> Arguments:
    return features(), torch.rand(NODES, 3), edges()


def on_hypergraph() -> Arguments:
    return features(), torch.stack([torch.randint(NODES, (EDGES,)), torch.randint(20, (EDGES,))])


def on_sequence() -> Arguments:
    return (torch.randn(1, NODES, WIDTH),)


def on_image() -> Arguments:
    return (torch.randn(1, WIDTH, 10, 10),)


class Attended(nn.Module):
    """`nn.MultiheadAttention` of a sequence with itself. weights: whether it returns them, as it does by default."""

    def __init__(self, weights: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.weights = weights

    def forward(self, x: Tensor) -> Tensor:
        return self.both(x)[0]

    def both(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        found: tuple[Tensor, Tensor | None] = self.attention(x, x, x, need_weights=self.weights)
        return found


def assert_same_weights(peer: Any, ours: Any, x: Tensor) -> None:
    """Compares the weights that attention returns."""
    (_, expected), (_, found) = peer.both(x), ours.both(x)
    assert_close(found, expected, "the weights of attention")


class Weighed(nn.Module):
    """A GATConv that is asked for its weights, too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.GATConv(WIDTH, WIDTH // HEADS, HEADS)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        y: Tensor = self.conv(x, edge_index, return_attention_weights=True)[0]
        return y


class Call(NamedTuple):
    """A layer, and what it is called with.

    forward: the target of the ratio without gradients.
    both: the target with gradients of the parameters.
    convert: makes ours of the layer.
    check: further assertions.
    learns: whether it has parameters.
    """

    name: str
    make: Callable[[], nn.Module]
    given: Callable[[], Arguments]
    forward: float | None
    both: float | None
    convert: Callable[[nn.Module], nn.Module] = convert
    check: Callable[[nn.Module, nn.Module, Tensor], None] | None = None
    learns: bool = True


class SmallRow(NamedTuple):
    """A call of a layer and of its conversion. csr: whether PyG gets the graph as a matrix, made beforehand."""

    call: Call
    backward: bool
    csr: bool = False
    devices: tuple[str, ...] = ("cpu", "cuda")

    @property
    def name(self) -> str:
        note = ", against CSR" * self.csr + ", forward" * (not self.backward)
        return f"small call: {self.call.name}{note}"

    def run(self, bench: Bench) -> Result:
        call = self.call
        torch.manual_seed(0)
        start, given = call.make().state_dict(), tuple(t.to(bench.device) for t in call.given())

        def peer(way: str = "") -> nn.Module:
            module = call.make()
            module.load_state_dict(start)
            return module.to(bench.device)

        if call.check is not None:
            call.check(peer(), call.convert(peer()), *given)
        way = "CSR" if self.csr else "itself"
        contest = Contest(
            name=self.name,
            ways=[way],
            reference=way,
            peer=peer,
            arguments=lambda way: (given[0], *lay_out(given[1], NODES, way)) if self.csr else given,
            convert=call.convert,
            ours=given,
            backward=self.backward,
        )
        asked = Target(None if self.csr else call.both if self.backward else call.forward)
        # No ceiling: overhead dominates at this size.
        return contest.run(bench.at(EFFORT), P=WIDTH, Q=WIDTH, target=asked, ceiling=None)


CALLS = [
    Call("GCNConv, cached", lambda: pyg.GCNConv(WIDTH, WIDTH, cached=True), on_graph, 2.5, 1.8),
    Call("SAGEConv", lambda: pyg.SAGEConv(WIDTH, WIDTH), on_graph, 2.5, 1.8),
    Call("GraphConv", lambda: pyg.GraphConv(WIDTH, WIDTH), on_graph, 2.5, 1.8),
    Call("GCNConv", lambda: pyg.GCNConv(WIDTH, WIDTH), on_graph, 6, 3.5),
    Call("ChebConv K=3", lambda: pyg.ChebConv(WIDTH, WIDTH, K=3), on_graph, 6, 3.5),
    Call("TAGConv K=3", lambda: pyg.TAGConv(WIDTH, WIDTH, K=3), on_graph, 6, 3.5),
    Call("RGCNConv", lambda: pyg.RGCNConv(WIDTH, WIDTH, RELATIONS), on_relations, 6, 3.5),
    Call("HypergraphConv", lambda: pyg.HypergraphConv(WIDTH, WIDTH), on_hypergraph, 6, 3.5),
    Call("GINConv", lambda: gin(WIDTH, WIDTH), on_graph, 1, 1),
    Call("GCN2Conv", lambda: pyg.GCN2Conv(WIDTH, 0.1, 0.5, 1), with_initial, 1, 1),
    Call("ARMAConv", lambda: pyg.ARMAConv(WIDTH, WIDTH, num_layers=2), on_graph, 1, 1),
    Call("GatedGraphConv", lambda: pyg.GatedGraphConv(WIDTH, 2), on_graph, 1, 1),
    Call("AntiSymmetricConv", lambda: pyg.AntiSymmetricConv(WIDTH), on_graph, 1, 1),
    Call("EGConv", lambda: pyg.EGConv(WIDTH, WIDTH), on_graph, 1, 1),
    Call("MFConv", lambda: pyg.MFConv(WIDTH, WIDTH), on_graph, 1, 1),
    Call("FiLMConv", lambda: pyg.FiLMConv(WIDTH, WIDTH, RELATIONS, act=None), on_relations, 1, 1),
    Call("GeneralConv", lambda: pyg.GeneralConv(WIDTH, WIDTH), on_graph, 1, 1),
    Call("PointTransformerConv", lambda: pyg.PointTransformerConv(WIDTH, WIDTH), with_positions, 1, 1),
    Call("PointTransformerConv, networks", lambda: point_transformer(WIDTH, WIDTH), with_positions, 1, 1),
    Call("APPNP K=10", lambda: pyg.APPNP(10, 0.1), on_graph, 1, None, learns=False),
    Call("NNConv", lambda: nn_conv(WIDTH, WIDTH, DIM), with_features, 1, 1),
    Call("GMMConv", lambda: gmm_conv(WIDTH, WIDTH, DIM), with_features, 1, 1),
    Call("PDNConv", lambda: pyg.PDNConv(WIDTH, WIDTH, DIM, 8), with_features, 1, 1),
    Call("CFConv of SchNet", lambda: cf_conv(WIDTH, DIM), with_distances, 1, 1),
    Call("GeneralConv, 4 heads, edge features", lambda: general(WIDTH, WIDTH, DIM), with_features, 1, 1),
    Call("HEATConv, 2 heads", lambda: heat(WIDTH, WIDTH, RELATIONS, DIM), with_all_types, 1, 1),
    Call("GATConv 8 heads", lambda: pyg.GATConv(WIDTH, WIDTH // HEADS, HEADS), on_graph, 1.5, 1.2),
    Call("GATv2Conv 8 heads", lambda: pyg.GATv2Conv(WIDTH, WIDTH // HEADS, HEADS), on_graph, 1.5, 1.2),
    Call("TransformerConv 8 heads", lambda: pyg.TransformerConv(WIDTH, WIDTH // HEADS, HEADS), on_graph, 1.5, 1.2),
    Call("GATv2Conv 8 heads, edge features", lambda: gatv2_on_edges(WIDTH, WIDTH, DIM), with_features, 1, 1),
    Call(
        "TransformerConv 8 heads, edge features", lambda: transformer_on_edges(WIDTH, WIDTH, DIM), with_features, 1, 1
    ),
    Call("GATConv 8 heads, weights returned", Weighed, on_graph, 1, 1),
    Call("AGNNConv", lambda: pyg.AGNNConv(), on_graph, 1, 1),
    Call("FAConv", lambda: pyg.FAConv(WIDTH), with_initial, 1, 1),
    Call("FeaStConv 8 heads", lambda: pyg.FeaStConv(WIDTH, WIDTH, HEADS), on_graph, 1, 1),
    Call("DenseGCNConv, four graphs", lambda: pyg.DenseGCNConv(WIDTH, WIDTH), on_dense, 1, 1),
    Call("GCNConv, a batch of 4", lambda: pyg.GCNConv(WIDTH, WIDTH), on_batch, 1, 1),
    Call("GraphConv, a batch of 4", lambda: pyg.GraphConv(WIDTH, WIDTH), on_batch, 1, 1),
    Call("ResGatedGraphConv", lambda: pyg.ResGatedGraphConv(WIDTH, WIDTH), on_graph, 0.7, 0.7),
    Call("MultiheadAttention", lambda: Attended(True), on_sequence, 0.7, 0.7, check=assert_same_weights),
    Call("MultiheadAttention without weights", lambda: Attended(False), on_sequence, 0.7, 0.7),
    Call("Conv2d 3 x 3", lambda: nn.Conv2d(WIDTH, WIDTH, 3, padding=1), on_image, 0.85, 0.88),
]


IN_DOUBLE = ("GCNConv", "ChebConv K=3", "RGCNConv", "GATConv 8 heads", "MultiheadAttention", "Conv2d 3 x 3")
IN_EVALUATION = Call("MultiheadAttention in evaluation", lambda: Attended(True).eval(), on_sequence, None, None)


def small_rows() -> list[Row]:
    """Forward, and forward with backward; torch's attention without gradients is one kernel in evaluation mode."""
    both = (False, True)
    calls = [*CALLS, *(Call(name, one.make, on_graph, 1, 1, convert=one.convert) for name, one in drop_ins(WIDTH))]
    rows = [SmallRow(call, backward) for call in calls for backward in both if call.learns or not backward]
    rows += [SmallRow(call, backward, csr=True) for call in CALLS[:3] for backward in both]
    double = [call._replace(forward=1, both=1) for call in CALLS if call.name in IN_DOUBLE]
    others: list[Row] = [SmallRow(IN_EVALUATION, backward=False)]
    others += [in_double(SmallRow(call, backward)) for call in double for backward in both]
    return [one_thread(row) for row in [*rows, *others]]
