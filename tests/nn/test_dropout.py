"""Dropout of sparse features is torch's, of the entries that are there."""

import pytest
import torch
from torch import nn

from pyg_basisconv import BasisConv, bases
from pyg_basisconv.nn import Dropout
from pyg_basisconv.sparse_input import _matrix

LAYOUTS = {"CSR": torch.Tensor.to_sparse_csr, "CSC": torch.Tensor.to_sparse_csc, "COO": torch.Tensor.to_sparse}


def features() -> torch.Tensor:
    """Mostly zeros."""
    return torch.rand(60, 40, dtype=torch.float64).sub(0.8).relu()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_entries_are_dropped_and_keep_their_mean(layout: str) -> None:
    x = LAYOUTS[layout](torch.eye(1000))
    dropped = Dropout(0.2)(x)
    assert dropped.layout == x.layout
    assert layout != "COO" or dropped.is_coalesced(), "or layers would sort it"
    diagonal = dropped.to_dense().diagonal()
    assert set(diagonal.unique().tolist()) == {0.0, 1.25}
    assert abs(float(diagonal.mean()) - 1) < 0.1
    assert torch.equal(dropped.to_dense(), diagonal.diag())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_is_the_dropout_of_the_values_with_their_gradient(layout: str) -> None:
    x, y = features(), torch.randn(60, 40, dtype=torch.float64)
    x.requires_grad_()
    torch.manual_seed(0)
    dropped = Dropout(0.5)(LAYOUTS[layout](x)).to_dense()
    (dropped * y).sum().backward()
    kept = dropped != 0
    torch.testing.assert_close(dropped, torch.where(kept, 2 * x, 0))
    torch.testing.assert_close(x.grad[x != 0], torch.where(kept, 2 * y, 0)[x != 0])


def test_entries_that_stand_at_one_place_are_one_entry() -> None:
    x = torch.sparse_coo_tensor([[0] * 100, [0] * 100], torch.ones(100), (1, 1))
    assert Dropout(0.5)(x).to_dense().item() in (0.0, 200.0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_in_evaluation_it_is_nothing(layout: str, p: float) -> None:
    x = LAYOUTS[layout](features())
    assert Dropout(p).eval()(x) is x
    kept = Dropout(p)(x).to_dense()
    torch.testing.assert_close(kept, {0.0: x.to_dense(), 1.0: torch.zeros(60, 40, dtype=torch.float64)}.get(p, kept))


def test_of_a_dense_x_it_is_that_of_torch() -> None:
    x = torch.randn(20, 3)
    found = []
    for kind in (Dropout, nn.Dropout):
        torch.manual_seed(1)
        found.append(kind(0.4)(x))
    assert torch.equal(*found)
    assert isinstance(Dropout(), nn.Dropout)
    assert str(Dropout(0.4)) == str(nn.Dropout(0.4))
    assert Dropout(0.4, inplace=True)(x) is x


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layer_knows_the_pattern_again(layout: str) -> None:
    x, drop = LAYOUTS[layout](features()), Dropout(0.5)
    assert _matrix(drop(x)).pattern is _matrix(drop(x)).pattern


def test_layers_learn_from_what_is_left() -> None:
    x, edges = features(), torch.randint(60, (2, 200))
    conv = BasisConv(40, 3, bases.GCN()).double()
    dropped = Dropout(0.5)(x.to_sparse_csr())
    found, dense = [], []
    for gradients, given in ((found, dropped), (dense, dropped.to_dense())):
        y = conv(given, edges)
        gradients.extend([y, *torch.autograd.grad(y.sin().sum(), conv.parameters())])
    for a, b in zip(found, dense, strict=True):
        torch.testing.assert_close(a, b)
