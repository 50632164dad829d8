"""SplineConv beside B-splines by loops, since PyG's needs a compiled package; networks of edges; and SchNet."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import SchNet
from torch_geometric.nn.conv import spline_conv
from torch_geometric.nn.models.schnet import CFConv

import pyg_basisconv.nn as drop_in
from pyg_basisconv import convert
from pyg_basisconv.convert.edge_functions import spline
from pyg_basisconv.verify import Case, N, P, Q, drawn, features, graph
from tests import oracle
from tests.contract import refused
from tests.convert.conversion import agree, evaluated

pytestmark = pytest.mark.filterwarnings("ignore:We do not recommend using the non-optimized CPU")


def basis(pseudo: Tensor, sizes: Tensor, is_open: Tensor, degree: int) -> tuple[Tensor, Any]:
    """The places of the edges, and the splines."""
    return pseudo, oracle.splines(sizes.tolist(), degree, is_open.bool().tolist())


def weighting(x: Tensor, weight: Tensor, places: Tensor, spline: Callable[[int, Tensor], Tensor]) -> Tensor:
    rows = zip(x, places, strict=True)
    return torch.stack([sum(spline(k, z) * (row @ W) for k, W in enumerate(weight)) for row, z in rows])


@pytest.fixture
def with_splines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spline_conv, "spline_basis", basis)
    monkeypatch.setattr(spline_conv, "spline_weighting", weighting)


@pytest.mark.usefixtures("with_splines")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"aggr": "add"},
        {"root_weight": False},
        {"bias": False},
        {"flow": "target_to_source"},
        pytest.param({"degree": 2}, marks=pytest.mark.slow),
        pytest.param({"degree": 3, "kernel_size": 4}, marks=pytest.mark.slow),
        {"is_open_spline": False},
        pytest.param({"is_open_spline": [True, False], "kernel_size": [3, 5], "degree": 2}, marks=pytest.mark.slow),
        {"dim": 1, "kernel_size": 6},
        {"dim": 3, "kernel_size": [2, 3, 2]},
    ],
    ids=str,
)
def test_spline(options: dict[str, Any]) -> None:
    given = {"dim": 2, "kernel_size": 3} | options
    for width, x, sizes in ((3, [features(6, 3)], (6, 6)), ((3, 2), [features(5, 3), features(4, 2)], (5, 4))):
        if "flow" in options and len(x) > 1:
            continue
        reference = drawn(pyg.SplineConv(width, 4, **given))
        edges = torch.stack([torch.randint(n, (12,)) for n in sizes])
        z = torch.rand(12, given["dim"], dtype=torch.float64)
        z[0], z[1] = 0, 1

        def call(f: Any, *leaves: Tensor, edges: Tensor = edges) -> Tensor:
            *x, z = leaves
            return f(x[0] if len(x) == 1 else tuple(x), edges, z)

        agree(Case(spline(reference), reference, [*x, z], call))


@pytest.mark.usefixtures("with_splines")
def test_a_spline_that_is_left() -> None:
    from pyg_basisconv.convert.registry import Unchanged

    with pytest.raises(Unchanged, match=r"^kernel_size: expected an integer from 2 on, got 1"):
        spline(pyg.SplineConv(3, 4, 1, kernel_size=1))


def network(*end: torch.nn.Module) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.ReLU(), *end)


@pytest.mark.parametrize(
    "nn",
    [
        torch.nn.Linear(2, 12),
        network(torch.nn.Linear(5, 12, bias=False)),
        network(torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Linear(5, 12))),
        network(pyg.Linear(5, 12)),
        network(torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 12)),
    ],
    ids=["Linear", "no bias", "nested", "Linear of PyG", "BatchNorm"],
)
def test_networks(nn: torch.nn.Module) -> None:
    reference = drawn(pyg.NNConv(3, 4, nn))
    edges = torch.randint(6, (2, 12))
    leaves = [features(6, 3), features(12, 2)]
    agree(Case(convert(reference), reference, leaves, lambda f, x, z: f(x, edges, z)))


def test_sparse_layouts_are_refused() -> None:
    """Their edges may be in another order than their features."""
    ours = convert(pyg.NNConv(3, 4, network(torch.nn.Linear(5, 12))))
    sparse = torch.eye(4).to_sparse_csr()
    refused("edge_index", lambda: ours(torch.randn(4, 3), sparse, torch.randn(4, 2)))
    refused("edge_attr", lambda: ours(torch.randn(4, 3), torch.tensor([[0], [1]])))


@pytest.mark.parametrize("bias", [True, False])
def test_continuous_filters(bias: bool) -> None:
    """As `convert` makes it and as a drop-in, with gradients of distances and features of edges."""
    network = nn.Sequential(nn.Linear(3, 5), nn.Softplus(), nn.Linear(5, 8, bias=bias))
    reference, (edge_index, weight) = drawn(CFConv(P, Q, 8, network, cutoff=2.0)), graph()
    own = drop_in.drop_in(CFConv)(P, Q, 8, copy.deepcopy(network), cutoff=2.0).double()
    own.load_state_dict(reference.state_dict())
    leaves = [features(N, P), weight, features(len(weight), 3)]
    agree(Case(convert(reference), reference, leaves, lambda f, x, w, z: f(x, edge_index, w, z)), 1e-10, own)
    assert evaluated(own)


@pytest.mark.parametrize("filters", [3, 8], ids=["few", "gates"])
def test_continuous_filters_on_graph_after_graph(filters: int) -> None:
    """The kernels read filters in the order of the edges, which is another for each graph, or that of targets."""
    reference = drawn(
        CFConv(P, Q, filters, nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, filters)), cutoff=2.0)
    )
    ours, (first, _) = convert(reference), graph()
    by_target = first[:, first[1].argsort(stable=True)]
    for edges in (first, by_target, first.flip(1), first.flip(0), first):
        x, distance, z = features(N, P), torch.rand(edges.shape[1], dtype=torch.float64), features(edges.shape[1], 3)
        results = []
        for layer in (ours, reference):
            leaves = [t.detach().clone().requires_grad_() for t in (x, distance, z)]
            inputs = [*leaves, *layer.parameters()]
            y = layer(leaves[0], edges, *leaves[1:])
            forces = torch.autograd.grad(y.sin().sum(), inputs, create_graph=True)
            again = torch.autograd.grad(sum(f.square().sum() for f in forces), leaves)
            results.append([y, *forces[:3], *again])
        torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("filters", [3, 8], ids=["few", "gates"])
def test_continuous_filters_are_computed_again(filters: int) -> None:
    """By a checkpoint, on a graph that was new in the call before."""
    ours = convert(CFConv(P, Q, filters, nn.Linear(3, filters), cutoff=2.0).double())
    for _ in range(3):
        (edge_index, weight), x = graph(), features(N, P).requires_grad_()
        given = edge_index, weight, features(len(weight), 3)
        y = checkpoint(ours, x, *given, use_reentrant=False)
        found, expected = (torch.autograd.grad(f.sin().sum(), x) for f in (y, ours(x, *given)))
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_schnet_is_made_of_them() -> None:
    def graph_of(pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        pairs = (batch[:, None] == batch).fill_diagonal_(False).nonzero().t()
        return pairs, (pos[pairs[0]] - pos[pairs[1]]).norm(dim=-1)

    torch.manual_seed(0)
    reference = SchNet(8, 8, 2, 6, interaction_graph=graph_of).double()
    left: dict[str, str] = {}
    ours = convert(reference, left)
    assert not left
    assert not any(isinstance(part, CFConv) for part in ours.modules())
    z, pos, batch = torch.randint(1, 9, (9,)), features(9, 3), torch.arange(9) // 5
    found, expected = [], []
    for model, into in ((ours, found), (reference, expected)):
        moved = pos.clone().requires_grad_()
        energy = model(z, moved, batch)
        into += [energy, *torch.autograd.grad(energy.sum(), moved)]
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def in_layout(kind: str, edges: Tensor, z: Tensor, size: tuple[int, int]) -> Any:
    """The transposed adjacency matrix of some edges, whose values are their features."""
    source, target = edges
    if kind == "SparseTensor":
        torch_sparse = pytest.importorskip("torch_sparse")
        return torch_sparse.SparseTensor(row=target, col=source, value=z, sparse_sizes=size[::-1])
    matrix = torch.sparse_coo_tensor(edges.flip(0), z, (*size[::-1], z.shape[1]))
    return matrix if kind == "not coalesced" else matrix.coalesce()


@pytest.mark.parametrize("kind", ["coalesced", "not coalesced", "SparseTensor"])
@pytest.mark.parametrize("paired", [False, True], ids=["square", "sources-alone"])
@pytest.mark.parametrize("layer", ["NNConv", "GMMConv"])
def test_features_may_be_the_values_of_a_matrix(kind: str, paired: bool, layer: str) -> None:
    torch.manual_seed(0)
    edges = torch.tensor([[0, 3, 1, 2, 0], [1, 0, 1, 0, 0]])  # of 4 sources and 2 targets
    z, x = torch.rand(5, 3).double(), torch.randn(4, 6).double()
    make = {
        "NNConv": lambda: pyg.NNConv(6, 5, nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 30))),
        "GMMConv": lambda: pyg.GMMConv(6, 5, dim=3, kernel_size=4),
    }
    ours = convert(make[layer]()).double()
    given, size = ((x, None), (4, 2)) if paired else (x, (4, 4))
    expected = ours(given, edges, z, size=size)
    held = z.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(ours(given, edges, held, size=size).square().sum(), held)
    torch.testing.assert_close(ours(given, in_layout(kind, edges, z, size)), expected)
    for _ in range(2):
        values = z.clone().requires_grad_()
        y = ours(given, in_layout(kind, edges, values, size))
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(torch.autograd.grad(y.square().sum(), values)[0], wanted)


@pytest.mark.parametrize("kind", ["GCNConv", "GATv2Conv", "TransformerConv"])
def test_a_drop_ins_batch_can_be_viewed_as_rows(kind: str) -> None:
    """Rows of attention are computed node by node, for all entries of the batch."""
    conv, edges = getattr(drop_in, kind)(3, 4), torch.tensor([[0, 1, 2], [1, 2, 0]])
    y = conv(torch.randn(2, 3, 3), edges)
    assert y.view(6, 4).shape == (6, 4)


@pytest.mark.parametrize("kind", ["GCNConv", "EGConv", "MFConv", "TransformerConv"])
def test_a_batch_is_what_its_graphs_are(kind: str) -> None:
    """Which PyG's own layers do not all take."""
    reference = getattr(pyg, kind)(3, 8).double()
    ours, edges, x = convert(reference), torch.tensor([[0, 1, 2, 4], [1, 2, 0, 0]]), features(3, 5, 3)
    torch.testing.assert_close(ours(x, edges), torch.stack([reference(one, edges) for one in x]))
