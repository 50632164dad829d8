"""Attention whose edges have values: of a few and of many edges, on new graphs, and what changes later."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GeneralConv, ResGatedGraphConv, TransformerConv

from pyg_basisconv import BasisConv, bases, convert, mechanisms, theta
from pyg_basisconv.bases.bound_attention import BoundAttention

N, E, P, R = 9, 24, 6, 3
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "Transformer": lambda: TransformerConv(P, 4, heads=2, edge_dim=R),
    "Transformer, averaged": lambda: TransformerConv(P, 8, heads=3, concat=False, beta=True, edge_dim=R),
    "general, additive": lambda: GeneralConv(P, P, R, heads=3, attention=True),
    "general, undirected": lambda: GeneralConv(P, P, R, heads=2, attention=True, directed_msg=False),
    "general, products": lambda: GeneralConv(P, P, R, heads=2, attention=True, attention_type="dot_product"),
    "gates": lambda: ResGatedGraphConv(P, 5, edge_dim=R),
}
SLOW = "general, undirected"  # whose scores have an activation behind their hidden layer, which no kernel takes
every_layer = pytest.mark.parametrize("kind", LAYERS)


def take_for_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is stored at all edges, and no kernel adds their values."""
    for name in ("inner", "outer"):
        monkeypatch.setattr(f"pyg_basisconv.mechanisms.{name}.HELD", 0)
        monkeypatch.setattr(f"pyg_basisconv.mechanisms.{name}.one_pass_fits", lambda *_: False)
    monkeypatch.setattr("pyg_basisconv.bases.bound_attention.BoundAttention.adds_values", False)


def pair(kind: str) -> tuple[nn.Module, Any]:
    """A layer of PyG and its conversion, in double precision."""
    torch.manual_seed(0)
    layer = LAYERS[kind]().double()
    return layer, convert(layer)


def drawn(seed: int, edges: int = E) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, z = (torch.randn(n, width, generator=generator, dtype=torch.float64) for n, width in ((N, P), (edges, R)))
    return x, torch.randint(N, (2, edges), generator=generator), z


def outcome(layer: nn.Module, x: Tensor, edge_index: Tensor, z: Tensor) -> list[Tensor]:
    """The result, and the gradients of all that may learn."""
    x, z = x.clone().requires_grad_(), z.clone().requires_grad_()
    y = layer(x, edge_index, z)
    learnt = [p for p in layer.parameters() if p.requires_grad]
    down = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
    return [y, *torch.autograd.grad(y, (x, z, *learnt), down, materialize_grads=True, allow_unused=True)]


def close(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@every_layer
def test_few_edges_and_many(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of a few edges are stored at all of them; of many, the sums of their features are multiplied."""
    _, ours = pair(kind)
    given = drawn(1)
    few = outcome(ours, *given)
    added, real = [], BoundAttention.edge_sums
    monkeypatch.setattr(BoundAttention, "edge_sums", lambda *args: (added.append(1), real(*args))[1])
    close(outcome(ours, *given), few)
    assert bool(added) == (kind == SLOW)
    take_for_many(monkeypatch)
    close(outcome(copy.deepcopy(ours), *given), few)
    assert added


@every_layer
def test_new_graphs(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer is bound in the first call, and each result is that of a layer that has seen nothing."""
    reference, ours = pair(kind)
    built, build = [], bases.Attention.build
    monkeypatch.setattr(bases.Attention, "build", lambda self, graph: built.append(1) or build(self, graph))
    for seed in range(4):
        given = drawn(seed)
        y = ours(*given)
        torch.testing.assert_close(y, reference(*given), rtol=1e-9, atol=1e-9)
        with torch.no_grad():
            torch.testing.assert_close(ours(given[0], given[1].clone(), given[2]), y)
    assert len(built) == (8 if kind == SLOW else 2)  # with gradients, and without


@every_layer
def test_features_of_another_graph_are_refused(kind: str) -> None:
    _, ours = pair(kind)
    for seed in range(3):
        ours(*drawn(seed))
    x, edge_index, z = drawn(3)
    for wrong in (z[:-1], z.repeat(2, 1), z[:, :-1].repeat_interleave(2, 0)):
        with pytest.raises(ValueError, match="edge_attr"):
            ours(x, edge_index, wrong)
    with pytest.raises(ValueError, match="edge_index"):
        ours(x, edge_index + N, z)


@pytest.mark.parametrize("rows", [E - 1, E + 1])
def test_features_beside_loops_are_one_row_for_each_edge(rows: int) -> None:
    x, edge_index, z = drawn(0, rows)
    with pytest.raises(ValueError, match=f"edge_attr: expected one row for each of {E} edges"):
        convert(GATConv(P, 4, edge_dim=R).double())(x, torch.cat([edge_index, edge_index], 1)[:, :E], z)


@pytest.mark.parametrize("fill", ["mean", "add", "max"])
def test_features_of_loops_on_edges_in_int32(fill: str) -> None:
    """They are made of those of the edges into a node, which have their gradients."""
    layer, (x, edge_index, z) = convert(GATConv(P, 4, edge_dim=R, fill_value=fill).double()), drawn(0)
    close(outcome(layer, x, edge_index.int(), z), outcome(layer, x, edge_index, z))


@every_layer
def test_parameters_that_change(kind: str) -> None:
    """In place, by others in their place, and by what may learn."""
    _, ours = pair(kind)
    given = drawn(1)
    before = outcome(ours, *given)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.data.mul_(1.5)
    changed = outcome(ours, *given)
    assert not torch.allclose(changed[0], before[0])
    close(outcome(copy.deepcopy(ours), *given), changed)
    ours.values.weight.requires_grad_(False)
    close(outcome(ours, *given)[:3], changed[:3])
    ours.load_state_dict({name: t / 1.5 for name, t in ours.state_dict().items()}, assign=True)
    close(outcome(ours, *given)[:3], before[:3])
    torch.testing.assert_close(ours(*given), before[0])


@every_layer
@pytest.mark.sweep(2)
def test_second_derivatives(kind: str) -> None:
    _, ours = pair(kind)
    x, edge_index, z = drawn(1)
    assert torch.autograd.gradgradcheck(
        lambda x, z: ours(x, edge_index, z), (x[:, :].requires_grad_(), z.requires_grad_()), atol=1e-4
    )


@pytest.mark.parametrize("combine", ["concat", "mean"])
@pytest.mark.parametrize("many", [False, True], ids=["few", "many"])
def test_a_layer_of_ones_own(combine: Any, many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By plain loops; with the weights returned, and under torch.compile, which breaks the graph there."""
    if many:
        take_for_many(monkeypatch)
    torch.manual_seed(0)
    attention = bases.Attention(2, mechanisms.Dot(3, edge_dim=R), bases.Adjacency())
    conv = BasisConv(P, 4, attention, theta.Heads(combine)).double()
    values = theta.Heads(combine).build(2, R, 4).double()
    x, edge_index, z = drawn(5)
    y, A = conv(x, edge_index, edge_attr=z, edge_values=values, return_attention=True)
    weight = A.incidence.to_dense()  # (2, E, N)
    expected = torch.zeros(N, 2, values.inner, dtype=torch.float64)
    for e, (m, n) in enumerate(edge_index.t().tolist()):
        for k in range(2):
            expected[n, k] += weight[k, e, n] * (x[m] @ conv.theta.weight[k] + z[e] @ values.weight[k])
    expected = (expected.flatten(1) if combine == "concat" else expected.mean(1)) + conv.bias
    for _ in range(2):
        torch.testing.assert_close(conv(x, edge_index, edge_attr=z, edge_values=values), expected)
    torch.testing.assert_close(y, expected)
    found = torch.compile(conv, backend="eager")(x, edge_index, edge_attr=z, edge_values=values)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("edges", [0, 2])
def test_no_edges_but_loops_under_transforms(edges: int) -> None:
    """Loops that the mask adds have no values."""
    torch.manual_seed(0)
    mask = bases.Adjacency(self_loops=True)
    conv = BasisConv(P, 4, bases.Attention(2, mechanisms.Dot(3), mask), theta.Heads()).double()
    values = theta.Heads().build(2, R, 4).double()
    x, edge_index, z = drawn(5, edges)
    expected = conv(x, edge_index, edge_attr=z, edge_values=values)
    found, _ = torch.func.vjp(lambda x: conv(x, edge_index, edge_attr=z, edge_values=values), x)
    torch.testing.assert_close(found, expected)


def attend(**given: Any) -> Tensor:
    conv = BasisConv(P, 4, bases.Attention(2, mechanisms.Dot(3), bases.Adjacency()), theta.Heads())
    x, edge_index, z = (t.float() if t.is_floating_point() else t for t in drawn(5))
    return conv(x, edge_index, **({"edge_attr": z, "edge_values": theta.Heads().build(2, R, 4)} | given))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"edge_attr": None}, "edge_attr: expected features .E, R. of the edges, whose values are added, got None"),
        ({"edge_values": theta.Heads("mean").build(2, R, 4)}, "edge_values: expected theta.Heads of 2 members"),
        ({"edge_values": theta.Heads(bias=True).build(2, R, 4)}, "edge_values: .* without a bias"),
        ({"edge_values": theta.Heads().build(4, R, 4)}, "edge_values: expected theta.Heads of 2 members"),
        ({"edge_values": theta.Heads()}, "edge_values: .* make it with theta.Heads\\(\\).build\\(2, R, 4"),
        ({"edge_values": 1}, "edge_values: expected theta.Heads"),
        ({"edge_values": theta.Heads().build(2, R + 1, 4)}, "edge_attr: expected 4 features, for edge_values, got 3"),
    ],
    ids=["no features", "averaged", "biased", "other heads", "not built", "a number", "wider"],
)
def test_values_that_do_not_fit(given: dict[str, Any], expected: str) -> None:
    assert attend().shape == (N, 4)
    with pytest.raises(ValueError, match=expected):
        attend(**given)


def test_a_basis_that_is_no_attention_takes_no_values() -> None:
    conv, values = BasisConv(P, 4, bases.Adjacency()), theta.Heads().build(1, R, 4)
    x, edge_index, z = (t.float() if t.is_floating_point() else t for t in drawn(5))
    with pytest.raises(ValueError, match="edge_values: expected None"):
        conv(x, edge_index, edge_attr=z, edge_values=values)


@pytest.mark.parametrize("size", [torch.tensor([9, 9]), "9", (9,), (9, -1)], ids=["tensor", "text", "one", "negative"])
@pytest.mark.parametrize("attention", [False, True], ids=["sum", "attention"])
def test_sizes_that_are_none(attention: bool, size: Any) -> None:
    """Such as features of edges, if they come in this place."""
    x, edge_index, z = drawn(1)
    ours = convert(GeneralConv(P, P, R, heads=3, attention=attention).double())
    with pytest.raises(ValueError, match=r"^size: expected \(M, N\)"):
        ours(x, edge_index, z, size=size)
