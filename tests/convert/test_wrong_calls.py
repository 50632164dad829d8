"""Wrong calls of converted layers end in an error that says so, and never in a result."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.nn import (
    DirGNNConv,
    GeneralConv,
    GraphConv,
    HEATConv,
    HGTConv,
    PointTransformerConv,
    RGATConv,
    SimpleConv,
)

from pyg_basisconv import convert
from pyg_basisconv.verify import N, P, Q, drawn, features, graph, made
from pyg_basisconv.verify.recipes import more_inputs
from tests.convert.conversion import ATTENDING, LINEAR

KINDS = [*LINEAR, *ATTENDING, "ARMAConv", "EGConv", "GINConv", "GatedGraphConv", "GeneralConv", "MFConv", "RGCNConv"]


def changed(row: int, value: int) -> Callable[[Tensor], Tensor]:
    def change(edges: Tensor) -> Tensor:
        edges = edges.clone()
        edges[row, 3] = value
        return edges

    return change


EDGES: dict[str, Callable[[Tensor], Any]] = {
    "no source": changed(0, N),
    "a negative source": changed(0, -1),
    "no target": changed(1, N),
    "a negative target": changed(1, -1),
    "transposed": lambda edges: edges.t(),
    "one row": lambda edges: edges[0],
    "bools": lambda edges: edges > 3,
    "a list": lambda edges: edges.tolist(),
    "an array": lambda edges: edges.numpy(),
    "a dense matrix": lambda edges: torch.eye(N),
    "a smaller matrix": lambda edges: torch.eye(N - 1, dtype=torch.float64).to_sparse_csr(),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sweep(8)
def test_edges(kind: str) -> None:
    (edge_index, _), reference = graph(), made(kind)
    given, types = more_inputs(reference, edge_index.shape[1])
    layer, more = convert(reference), {**given, **types}
    x = features(N, P)
    assert layer(x=x, edge_index=edge_index, **more).shape[0] == N
    for wrong, change in EDGES.items():
        with pytest.raises(ValueError, match=r"^edge_(index|type): expected "):
            pytest.fail(f"{wrong}: {layer(x=x, edge_index=change(edge_index), **more)}")


APART: dict[str, dict[str, Any]] = {
    "EGConv": {"aggregators": ["sum", "mean"], "add_self_loops": False, "num_heads": 2},
    "FastRGCNConv": {"num_blocks": 2},
    "GatedGraphConv": {},
    "RGCNConv": {"num_bases": 2},
}


@pytest.mark.parametrize("kind", APART)
@pytest.mark.parametrize("targets", [1, N - 1, N + 1])
def test_edges_to_fewer_or_more_targets(kind: str, targets: int) -> None:
    """The sums would meet the features of N nodes; one target would be added to all."""
    reference, edges = made(kind, APART[kind]), torch.tensor([[0, 1, 2], [0, 0, 0]])
    types = {"edge_type": torch.tensor([0, 1, 1])} if "edge_type" in more_inputs(reference, 3)[1] else {}
    layer, x = convert(reference), features(N, P)
    assert layer(x=x, edge_index=EdgeIndex(edges, sparse_size=(N, N)), **types).shape[0] == N
    with pytest.raises(ValueError, match=rf"^edge_index: expected N = {N} as x has rows"):
        layer(x=x, edge_index=EdgeIndex(edges, sparse_size=(N, targets)), **types)


@pytest.mark.parametrize("aggr", ["sum", "mean"])
def test_loops_of_fewer_or_more_targets(aggr: str) -> None:
    """The result had as many rows as there are targets, or indices beyond them."""
    layer, edges = convert(SimpleConv(aggr, combine_root="self_loop")), torch.tensor([[0, 1, 2], [0, 0, 0]])
    assert layer(features(N, P), EdgeIndex(edges, sparse_size=(N, N))).shape[0] == N
    for targets in (1, N - 1, N + 1):
        with pytest.raises(ValueError, match=r"^graph: expected as many sources as targets, for self loops"):
            layer(features(N, P), EdgeIndex(edges, sparse_size=(N, targets)))


def test_what_cannot_be_turned_round() -> None:
    (edge_index, _), x = graph(), features(N, P)
    layer = convert(drawn(DirGNNConv(GraphConv(P, Q))))
    assert layer(x, edge_index).shape == (N, Q)
    for wrong in (torch.eye(N).double().to_sparse_csr(), torch.eye(N).double().to_sparse(), edge_index.tolist()):
        with pytest.raises(ValueError, match=r"^edge_index: expected a \(2, E\) tensor"):
            layer(x, wrong)


@pytest.mark.parametrize("kind", ATTENDING)
def test_features(kind: str) -> None:
    (edge_index, _), reference = graph(), made(kind)
    given, types = more_inputs(reference, edge_index.shape[1])
    layer, x = convert(reference), features(N, P)
    for wrong in (None, (), (x,), (x, x, x), (None, x), x[:, 0], x.tolist()):
        with pytest.raises(ValueError, match=r"^x.*: expected "):
            pytest.fail(f"{wrong}: {layer(x=wrong, edge_index=edge_index, **given, **types)}")


@pytest.mark.parametrize("options", [{}, {"attention_mechanism": "within-relation"}], ids=str)
def test_types_of_attention(options: dict[str, Any]) -> None:
    """One type for all edges would go through, and so would a source that another relation has."""
    layer = convert(drawn(RGATConv(P, Q, num_relations=3, **options)))
    (edge_index, _), x = graph(), features(N, P)
    kind = torch.randint(3, edge_index.shape[1:])
    assert layer(x, edge_index, kind).shape == (N, Q)
    for wrong in (kind[:1], kind[:-1], kind.view(-1, 1), kind > 1, kind.to(torch.uint8), kind + 1, kind - 1):
        with pytest.raises(ValueError, match=r"^edge_type: expected "):
            layer(x, edge_index, wrong)


@pytest.mark.parametrize("attention", [True, False])
def test_features_of_edges_of_another_width(attention: bool) -> None:
    """They were cut, or filled with ones."""
    layer = convert(drawn(GeneralConv(P, Q, in_edge_channels=3, attention=attention)))
    (edge_index, _), x = graph(), features(N, P)
    assert layer(x, edge_index, features(edge_index.shape[1], 3)).shape == (N, Q)
    for width in (1, 2, 4, 5):
        with pytest.raises(ValueError, match=r"^(edge_attr|x\[0\]): expected 3 "):
            layer(x, edge_index, features(edge_index.shape[1], width))


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("value", [-1, 4])
def test_nodes_that_another_type_has(row: int, value: int) -> None:
    """PyG gives the features of a node of another type."""
    there, back = ("a", "to", "b"), ("b", "to", "a")
    layer = convert(drawn(HGTConv(P, Q, (["a", "b"], [there, back]), heads=2)))
    x = {"a": features(4, P), "b": features(4, P)}
    edges = {kind: torch.tensor([[0, 1, 2, 3], [1, 3, 3, 0]]) for kind in (there, back)}
    assert layer(x, edges)["a"].shape == (4, Q)
    for kind in edges:
        with pytest.raises(ValueError, match=r"^edge_index: expected (source|target) indices"):
            layer(x, {**edges, kind: changed(row, value)(edges[kind])})


@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
def test_one_position_for_all_points(flow: str) -> None:
    (edge_index, _), x, pos = graph(), features(N, P), features(N, 3)
    layer = convert(drawn(PointTransformerConv(P, Q, flow=flow)))
    assert layer(x, pos, edge_index).shape == (N, Q)
    for wrong in (pos[:1], pos[1:], torch.cat([pos, pos]), None, (pos[:1], pos[:1]), (pos, None)):
        with pytest.raises(ValueError, match=r"^(pos|x): expected "):
            pytest.fail(f"{wrong}: {layer(x, wrong, edge_index)}")


def test_types_of_nodes() -> None:
    layer, x = convert(drawn(HEATConv(P, Q, 2, 3, 2, 3, 5))), features(N, P)
    kind, edges, about = torch.arange(N) % 2, torch.tensor([[0, 1], [1, 2]]), (torch.tensor([0, 2]), features(2, 3))
    assert layer(x, edges, kind, *about).shape == (N, Q)
    for wrong in (kind[:1], kind[1:], torch.cat([kind, kind]), kind.view(-1, 1), kind + 1, -kind):
        with pytest.raises(ValueError, match=r"^node_type: expected "):
            pytest.fail(f"{wrong}: {layer(x, edges, wrong, *about)}")
    with pytest.raises(ValueError, match=r"^edge_attr: expected the features of the edges"):
        layer(x, edges, kind, about[0])
    with pytest.raises(TypeError, match="missing 2 required positional arguments: 'node_type' and 'edge_type'"):
        layer(x, edges)


def test_sides_that_windows_do_not_cover() -> None:
    layer, x = convert(nn.PixelUnshuffle(2)), features(2, 3, 6, 7)
    with pytest.raises(ValueError, match=r"^input: expected sides that are multiples of 2, got \(6, 7\)"):
        layer(x)
    torch.testing.assert_close(layer(x[..., :-1]), nn.PixelUnshuffle(2)(x[..., :-1]))
