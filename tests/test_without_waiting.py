"""Calls that may not wait for a GPU: weights of edges, features and dropout, without a look at numbers."""

from collections.abc import Callable, Sequence
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch_geometric import nn as pyg

from pyg_basisconv import BasisConv, bases, convert
from pyg_basisconv.basis import Basis
from pyg_basisconv.cache import Witness

N, E, P, Q = 9, 30, 4, 3

BASES: dict[str, Callable[[], Basis]] = {
    "weights as they are": bases.Adjacency,
    "sym": lambda: bases.Adjacency("sym", self_loops=True),
    "mean": lambda: bases.Adjacency("mean"),
    "rw, loops added": lambda: bases.Adjacency("rw", self_loops=True, existing="add"),
    "transposed": lambda: bases.Adjacency("sym").T,
    "Laplacian": lambda: bases.Laplacian("sym"),
    "powers": lambda: bases.Powers(3),
    "Chebyshev": lambda: bases.Chebyshev(3),
    "diffusion": lambda: bases.Diffusion(2),
    "sum": lambda: bases.Identity() + bases.Adjacency("sym"),
    "product": lambda: bases.Adjacency("sym") @ bases.Adjacency("mean"),
    "mixture": lambda: 0.5 * bases.Adjacency("sym"),
    "edges": bases.Edges,
}


def graph(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(N, (2, E), generator=generator)
    return edge_index, torch.rand(E, generator=generator, dtype=torch.float64)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyg_basisconv.program.on_gpu", lambda t: True)


def unseen(conv: nn.Module, *args: Tensor) -> Tensor:
    """The result of a call in which no numbers are compared."""
    agrees = Witness.agrees

    def of_integers(self: Witness, parts: Sequence[Tensor]) -> bool:
        assert not self.compares
        return agrees(self, parts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Witness, "agrees", of_integers)
        return conv(*args)


@pytest.mark.parametrize("grad", [True, False], ids=["with gradients", "without"])
@pytest.mark.parametrize("name", BASES)
def test_every_call_has_the_weights_of_its_time(name: str, grad: bool, on_gpu: None) -> None:
    basis, x = BASES[name](), torch.randn(N, P, dtype=torch.float64, requires_grad=grad)
    assert basis.binds_unseen
    conv, (edge_index, weight) = BasisConv(P, Q, basis).double(), graph(0)
    same = deepcopy(conv)
    with torch.set_grad_enabled(grad):
        for _ in range(4):
            y = unseen(conv, x, edge_index, weight)
            assert_close(y, same(x, BASES[name]().bind(edge_index, weight.clone())))
            assert len(conv._programs) == 1
            weight.data.mul_(torch.rand(E, dtype=torch.float64))  # which no version tells
        for seed in range(1, 5):  # graphs that are new
            edges = graph(seed)
            assert_close(unseen(conv, x, *edges), same(x, BASES[name]().bind(*edges)))


def test_a_converted_layer(on_gpu: None) -> None:
    reference, (edge_index, weight) = pyg.GCNConv(P, Q).double(), graph(0)
    conv, x = convert(reference), torch.randn(N, P, dtype=torch.float64)
    for _ in range(4):
        assert_close(unseen(conv, x, edge_index, weight), reference(x, edge_index, weight))
        weight.data.mul_(torch.rand(E, dtype=torch.float64))


def test_what_would_look_at_numbers_is_compared(on_gpu: None) -> None:
    x, edge_index = torch.randn(N, P, dtype=torch.float64), graph(0)[0]
    weight, basis = torch.ones(E, dtype=torch.float64), bases.Relations(1, "mean")
    assert not basis.binds_unseen
    conv = BasisConv(P, Q, basis).double()
    for factor in (1.0, 1.0, 2.0):
        weight.data.mul_(factor)
        assert_close(conv(x, edge_index, weight), conv(x, basis.bind(edge_index, weight.clone())))


@pytest.mark.parametrize("basis", [bases.Gaussians(3, 2), bases.Points([[0.0, 1.0]], 2.0)], ids=["Gaussians", "Points"])
def test_features_are_looked_at_in_the_first_call(basis: Basis, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("bases.edge_functions", "edge_set"):
        monkeypatch.setattr(f"pyg_basisconv.{module}.on_gpu", lambda t: True)
    conv, x, (edge_index, _) = BasisConv(P, Q, basis).double(), torch.randn(N, P).double(), graph(0)
    z = torch.rand(E, 2, dtype=torch.float64)
    z[4, 1] = torch.inf
    with pytest.raises(ValueError, match="finite numbers"):
        conv(x, edge_index, edge_attr=z)
    z[4, 1] = 0.5
    y = conv(x, edge_index, edge_attr=z)
    monkeypatch.setattr("pyg_basisconv.bases.edge_functions.any_seen", None)  # nobody looks at them any more
    torch.testing.assert_close(conv(x, edge_index, edge_attr=z), y)
    z[4, 1] = torch.inf
    wrong = conv(x, edge_index, edge_attr=z).isnan().any(1)
    assert wrong.nonzero().flatten().tolist() == [int(edge_index[1, 4])]


def test_dropout_has_no_seed_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyg_basisconv.bases.attention.on_gpu", lambda t: True)
    monkeypatch.setattr("pyg_basisconv.bases.attention.Seeded", None)
    reference, x, (edge_index, _) = pyg.GATConv(P, Q, 2, dropout=0.5).double(), torch.randn(N, P).double(), graph(0)
    conv = convert(reference)
    conv.conv.basis.draws_at_once = False
    found = []
    for layer in (conv, reference):
        torch.manual_seed(0)
        found.append(layer(x, edge_index))
    assert_close(*found)
