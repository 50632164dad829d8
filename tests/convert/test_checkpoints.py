"""Checkpoints into what is converted: how they are refused, and what is held; `test_recipes.py` has all layers."""

import copy
import pickle

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

from pyg_basisconv import convert
from pyg_basisconv.convert.checkpoints import tied
from pyg_basisconv.verify import N, P, Q, drawn, features, graph
from tests.convert.conversion import same_state


def test_what_is_loaded_is_learnt_on() -> None:
    ours, reference = convert(pyg.GCNConv(P, Q)), pyg.GCNConv(P, Q)
    parameters, saved = list(ours.parameters()), copy.deepcopy(reference.state_dict())
    ours.load_state_dict(reference.state_dict())
    assert all(p is q for p, q in zip(ours.parameters(), parameters, strict=True))
    with torch.no_grad():
        ours.weight.zero_()
    torch.testing.assert_close(dict(reference.state_dict()), dict(saved), rtol=0, atol=0)


def test_of_lazy_layers() -> None:
    for kind, width in ((pyg.GCNConv, P), (pyg.SAGEConv, (P, 3))):
        reference, ours = kind(width, Q), convert(kind(-1, Q))
        ours.load_state_dict(reference.state_dict())
        same_state(ours, convert(reference))


@pytest.mark.parametrize("kind", [pyg.GraphConv, pyg.SAGEConv, pyg.LEConv])
@pytest.mark.parametrize("called", [False, True])
def test_of_lazy_layers_whose_widths_are_equal(kind: type, called: bool) -> None:
    """Two matrices that would be one parameter, had their widths been known at the conversion."""
    x, edge_index = features(N, P), graph()[0]
    reference, ours = kind(P, Q).double(), convert(kind(-1, Q)).double()
    if called:
        ours(x, edge_index)
    ours.load_state_dict(reference.state_dict())
    torch.testing.assert_close(ours(x, edge_index), reference(x, edge_index))


def test_in_another_dtype() -> None:
    reference, ours = drawn(pyg.GATConv(P, Q)), convert(pyg.GATConv(P, Q)).double()
    ours.load_state_dict(reference.state_dict())
    same_state(ours, convert(reference).double())


def test_what_does_not_fit_is_told() -> None:
    model = nn.ModuleList([convert(pyg.GCNConv(P, Q))])
    with pytest.raises(RuntimeError, match=r"size mismatch for 0\.lin\.weight: \(\d+, \d+\), and not"):
        model.load_state_dict(nn.ModuleList([pyg.GCNConv(P + 1, Q)]).state_dict())
    saved = nn.ModuleList([pyg.GCNConv(P, Q)]).state_dict()
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "0\.lin\.bias"'):
        model.load_state_dict(saved | {"0.lin.bias": torch.ones(Q)})
    del saved["0.bias"]
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "0\.bias", "0\.theta\.weight"'):
        model.load_state_dict(saved)


@pytest.mark.parametrize("lost", ["lin_l.weight", "att"])
def test_what_lacks_is_named(lost: str) -> None:
    model, reference = nn.ModuleList([convert(pyg.GATv2Conv(P, Q))]), nn.ModuleList([pyg.GATv2Conv(P, Q)])
    saved = reference.state_dict()
    del saved[f"0.{lost}"]
    with pytest.raises(RuntimeError, match=rf'Missing key\(s\) in state_dict: "0\.{lost}", '):
        model.load_state_dict(saved)
    assert model.load_state_dict(saved, strict=False).missing_keys[0] == f"0.{lost}"
    assert model.load_state_dict({}, strict=False).unexpected_keys == []


def test_a_number_that_is_not_learnt_is_the_same() -> None:
    ours = convert(pyg.AGNNConv(requires_grad=False))
    ours.load_state_dict({"beta": torch.ones(1)})
    with pytest.raises(ValueError, match=r"beta: expected .* as when it was converted, got .*2"):
        ours.load_state_dict({"beta": 2 * torch.ones(1)})


@pytest.mark.parametrize("kind", [pyg.GINConv, pyg.DenseGINConv])
def test_statistics_of_a_network_are_loaded(kind: type) -> None:
    dense = kind is pyg.DenseGINConv
    norm = nn.BatchNorm1d(5 if dense else Q)  # of the nodes of a batch, or of channels
    reference = kind(nn.Sequential(nn.Linear(P, Q), norm, nn.Linear(Q, Q)))
    ours = convert(reference)
    x, edges = (torch.randn(2, 5, P), torch.ones(2, 5, 5)) if dense else (torch.randn(5, P), torch.randint(5, (2, 9)))
    reference(x, edges)
    ours.load_state_dict(reference.state_dict())
    same_state(ours, convert(reference))
    torch.testing.assert_close(ours.eval()(x, edges), reference.eval()(x, edges))


def test_numbers_are_held_once() -> None:
    reference = pyg.SGConv(200, 200, cached=True)
    reference(torch.randn(1000, 200), torch.randint(1000, (2, 3000)))
    assert len(pickle.dumps(convert(reference))) < 1.2 * 200 * 200 * 4


@pytest.mark.parametrize("how", ["its own, assigned", "the layer's, assigned", "to_empty"])
@pytest.mark.parametrize("kind", ["TransformerConv", "GeneralConv"])
def test_what_learns_as_one_parameter_stays_one(kind: str, how: str) -> None:
    """Keys and values of edges have the same matrix, which is one parameter of the layer."""
    reference = {
        "TransformerConv": lambda: pyg.TransformerConv(P, Q, edge_dim=3),
        "GeneralConv": lambda: pyg.GeneralConv(P, Q, 3, attention=True, attention_type="dot_product"),
    }[kind]()
    ours = convert(copy.deepcopy(reference))
    ours.conv.requires_grad_(False)  # as it was frozen, it stays
    ours.conv.basis.requires_grad_(True)
    names, learns = tied(ours), [p.requires_grad for p in ours.parameters()]
    saved = (reference if how.startswith("the layer's") else ours).state_dict()
    if how == "to_empty":
        ours = ours.to("meta").to_empty(device="cpu")
    ours.load_state_dict(saved, assign=how != "to_empty")
    assert tied(ours) == names
    assert len(names) >= 1
    assert [p.requires_grad for p in ours.parameters()] == learns
    same_state(ours, convert(reference))
