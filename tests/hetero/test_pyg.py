"""BasisConv in PyG's own ways to several types of nodes: to_hetero, to_hetero_with_bases, HeteroConv."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import (
    GATConv,
    GraphConv,
    HeteroConv,
    LEConv,
    Linear,
    SAGEConv,
    to_hetero,
    to_hetero_with_bases,
)
from torch_geometric.nn.fx import Transformer

from pyg_basisconv import BasisConv, bases, convert, theta
from pyg_basisconv.mechanisms import Additive
from tests.contract import alike
from tests.peers import copy_parameters

DOUBLE = torch.float64
SIZES = {"author": 5, "paper": 7, "venue": 3}
TYPES = [
    ("author", "writes", "paper"),
    ("paper", "by", "author"),
    ("paper", "cites", "paper"),
    ("paper", "at", "venue"),
    ("venue", "of", "paper"),
]
METADATA = (list(SIZES), TYPES)
P, HIDDEN, Q = 4, 6, 2


def gat() -> bases.Basis:
    return bases.Attention(2, Additive(projected=True).then(nn.LeakyReLU(0.2)), bases.Adjacency())


# What makes our layer and PyG's for some widths.
KINDS: dict[str, Any] = {
    "neighbours": (
        lambda p, q: BasisConv(p, q, bases.Adjacency("mean")),
        lambda p, q: SAGEConv(p, q, root_weight=False),
    ),
    "sage": (lambda p, q: BasisConv(p, q, bases.Adjacency("mean") + bases.Identity()), SAGEConv),
    "graph": (lambda p, q: BasisConv(p, q, bases.Adjacency() + bases.Identity()), GraphConv),
    "gat": (
        lambda p, q: BasisConv(p, q, gat(), theta.Heads()),
        lambda p, q: GATConv(p, q // 2, heads=2, add_self_loops=False),
    ),
}


class Net(nn.Module):
    def __init__(self, make: Any, p: int = P) -> None:
        super().__init__()
        self.conv1, self.conv2 = make(p, HIDDEN), make(HIDDEN if p > 0 else p, Q)
        self.lin = Linear(p, Q)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index) + self.lin(x)


def graph() -> tuple[dict[str, Tensor], dict[tuple[str, str, str], Tensor]]:
    x = {t: torch.randn(N, P, dtype=DOUBLE, requires_grad=True) for t, N in SIZES.items()}
    return x, {t: torch.stack([torch.randint(SIZES[end], (9,)) for end in (t[0], t[2])]) for t in TYPES}


def modules(model: nn.Module, kind: type) -> dict[str, nn.Module]:
    return {name: module for name, module in model.named_modules() if isinstance(module, kind)}


def fill(model: nn.Module, peer: nn.Module) -> None:
    """Copies all parameters: of what both have under one name, and of the layers."""
    theirs = dict(peer.named_parameters())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in theirs and parameter.shape == theirs[name].shape:
                parameter.copy_(theirs[name])
        for name, conv in modules(model, BasisConv).items():
            copy_parameters(conv, peer.get_submodule(name))


def assert_same(model: nn.Module, peer: nn.Module, x: dict[str, Tensor], *args: Any) -> None:
    found, expected = model(x, *args), peer(x, *args)
    assert isinstance(found, Tensor) or found.keys() == expected.keys()
    alike(found, {t: expected[t] for t in found} if isinstance(found, dict) else expected, x)


@pytest.mark.parametrize("aggr", ["sum", "mean", "max"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sweep(4)
def test_to_hetero(kind: str, aggr: str):
    model, peer = (to_hetero(Net(one), METADATA, aggr).double() for one in KINDS[kind])
    x, edges = graph()
    assert len(modules(model, BasisConv)) == 2 * len(TYPES)
    fill(model, peer)
    assert_same(model, peer, x, edges)


@pytest.mark.parametrize("kind", KINDS)
def test_to_hetero_with_open_widths(kind: str):
    make, make_peer = KINDS[kind]
    if kind == "gat":
        make_peer = lambda p, q: GATConv((p, p), q // 2, heads=2, add_self_loops=False)  # noqa: E731
    model, peer = (to_hetero(Net(one, -1), METADATA).double() for one in (make, make_peer))
    x, edges = graph()
    with torch.no_grad():
        model(x, edges), peer(x, edges)
    if kind == "gat":  # where widths are open PyG has two matrices, for sources and for targets
        with torch.no_grad():
            for conv in modules(peer, GATConv).values():
                conv.lin_dst.weight.copy_(conv.lin_src.weight)
    fill(model, peer)
    assert_same(model, peer, x, edges)


def test_types_of_different_widths():
    x, edges = graph()
    x["paper"] = torch.randn(SIZES["paper"], P + 1, dtype=DOUBLE, requires_grad=True)
    model, peer = (to_hetero(Net(one, -1), METADATA).double() for one in KINDS["neighbours"])
    with torch.no_grad():
        model(x, edges), peer(x, edges)
    fill(model, peer)
    assert_same(model, peer, x, edges)
    with pytest.raises(ValueError, match=r"x\[1\]: expected 4 channels"):  # one Theta_k for each matrix, one width
        to_hetero(Net(KINDS["sage"][0], -1), METADATA).double()(x, edges)


@pytest.mark.parametrize("kind", ["neighbours", "sage", "graph"])
def test_to_hetero_with_bases(kind: str):
    make, make_peer = KINDS[kind]
    in_channels = {"x": P}
    model, peer = (
        to_hetero_with_bases(Net(one), METADATA, num_bases=3, in_channels=in_channels).double()
        for one in (make, make_peer)
    )
    x, edges = graph()
    with torch.no_grad():
        model(x, edges), peer(x, edges)
    fill(model, peer)
    assert_same(model, peer, x, edges)


def test_to_hetero_with_bases_and_layers_of_parts():
    x, edges = graph()
    made = Net(lambda p, q: LEConv(p, q))
    with pytest.raises(ValueError, match=r"^hook: .* or before `convert`, which leaves layers that have hooks"):
        to_hetero_with_bases(convert(made), METADATA, num_bases=3, in_channels={"x": P})
    peer, left = to_hetero_with_bases(made, METADATA, num_bases=3, in_channels={"x": P}).double(), {}
    expected = peer(x, edges)
    for t, y in convert(peer, left)(x, edges).items():
        torch.testing.assert_close(y, expected[t])
    assert set(left.values()) == {"LEConv: it has hooks, which see what happens inside"}


@pytest.mark.parametrize("aggr", ["sum", "mean", "cat"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sweep(6)
def test_hetero_conv(kind: str, aggr: str):
    model, peer = (HeteroConv({t: one(P, Q) for t in TYPES}, aggr).double() for one in KINDS[kind])
    x, edges = graph()
    fill(model, peer)
    assert_same(model, peer, x, edges)
    del edges["venue", "of", "paper"]
    found, expected = model(x, edges), peer(x, edges)
    for t, y in expected.items():
        torch.testing.assert_close(found[t], y, rtol=1e-10, atol=1e-10)


def test_hetero_conv_with_weights():
    model, peer = (HeteroConv({t: one(P, Q) for t in TYPES}).double() for one in KINDS["graph"])
    x, edges = graph()
    fill(model, peer)
    weight = {t: torch.rand(9, dtype=DOUBLE) for t in TYPES}
    found, expected = (one(x, edges, edge_weight_dict=weight) for one in (model, peer))
    for t, y in expected.items():
        torch.testing.assert_close(found[t], y, rtol=1e-10, atol=1e-10)


def test_copies_share_nothing():
    model = to_hetero(Net(KINDS["gat"][0]), METADATA)
    convs = list(modules(model, BasisConv).values())
    assert len({id(conv.basis) for conv in convs}) == len({id(conv.theta) for conv in convs}) == len(convs)
    places = [p.data_ptr() for p in model.parameters()]
    assert len(set(places)) == len(places)
    drawn = [conv.weight for conv in convs if conv.in_channels == P]
    assert not any(torch.equal(drawn[0], other) for other in drawn[1:])  # each copy is drawn anew


def test_a_leaf_of_traces():
    transformed = Transformer(Net(KINDS["sage"][0]))
    calls = [node.target for node in transformed.graph.nodes if node.op == "call_module"]
    assert calls == ["conv1", "conv2", "lin"]
