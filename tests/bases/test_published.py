"""The families that go by the names of layers are those of PyG's layers."""

from collections.abc import Callable

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

from pyg_basisconv import BasisConv, bases, convert, theta
from pyg_basisconv.expressions import read

LAYERS: dict[str, tuple[Callable[[], bases.Basis], Callable[[], theta.Theta], Callable[[], nn.Module]]] = {
    "GCN": (bases.GCN, theta.Full, lambda: pyg.GCNConv(6, 8)),
    "GAT": (lambda: bases.GAT(4), theta.Heads, lambda: pyg.GATConv(6, 2, 4)),
    "GATv2": (
        lambda: bases.GATv2(4, 0.1),
        lambda: theta.Heads(bias=True),
        lambda: pyg.GATv2Conv(6, 2, 4, negative_slope=0.1),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_it_is_the_layer_of_its_name(name: str) -> None:
    basis, parameter, original = LAYERS[name]
    reference = original().double()
    conv = BasisConv(6, 8, basis(), parameter()).double()
    conv.load_state_dict({key.removeprefix("conv."): t for key, t in convert(reference).state_dict().items()})
    x, edge_index = torch.randn(10, 6, dtype=torch.float64), torch.randint(10, (2, 40))
    torch.testing.assert_close(conv(x, edge_index), reference(x, edge_index))


@pytest.mark.parametrize(
    ("text", "basis"), [("GCN()", bases.GCN()), ("GAT(8) + Shifts(None, [1])", bases.GAT(8) + bases.Shifts(None, [1]))]
)
def test_it_can_be_written_in_a_file(text: str, basis: bases.Basis) -> None:
    assert str(read(text)) == str(basis)


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ValueError, match="heads: expected an integer from 1 on, got 0"):
        bases.GAT(0)
