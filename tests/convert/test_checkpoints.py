"""Files of parameters: of PyG's and torch's layers, into what is converted before or after; and those of its own."""

import copy
import io
import pickle

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.nn.models import GAT, GCN

from pyg_basisconv import convert
from pyg_basisconv.verify import ATTENTION, KNOWLEDGE, LAYERS, OPTIONS, P, Q, attending, knowing, layer, torch_layer

MAKERS = [(OPTIONS, lambda kind, options: layer(kind, **options)), (ATTENTION, attending), (KNOWLEDGE, knowing)]
MAKERS.append((LAYERS, torch_layer))
KINDS = [
    pytest.param(make, kind, options, id=f"{kind}-{number}")
    for table, make in MAKERS
    for kind, sweep in table.items()
    for number, options in enumerate((sweep[0], sweep[-1]))
]
MODELS = {
    "GCN": lambda: GCN(P, 8, 3, Q, norm="batch"),
    "GAT": lambda: GAT(P, 8, 2, Q, heads=2),
    "HeteroConv": lambda: pyg.HeteroConv({("a", "to", "a"): pyg.SAGEConv(P, Q), ("a", "of", "a"): pyg.GATConv(P, Q)}),
    "Transformer": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2),
    "CNN": lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 3, 2, 2)),
}
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")


def random(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for tensor in module.parameters():
            tensor.uniform_(-1, 1)
    return module


def through_a_file(state: dict[str, Tensor]) -> dict[str, Tensor]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def assert_same(ours: nn.Module, expected: nn.Module) -> None:
    torch.testing.assert_close(dict(ours.state_dict()), dict(expected.state_dict()), rtol=0, atol=0)


@pytest.mark.parametrize(("make", "kind", "options"), KINDS)
def test_of_every_layer(make, kind: str, options: dict) -> None:
    reference, ours = random(make(kind, options)), convert(random(make(kind, options)))
    expected = convert(reference)
    assert list(ours.state_dict()) == [name for name, _ in ours.named_parameters(remove_duplicate=False)]
    saved = through_a_file(reference.state_dict())
    for same in (ours, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        same.load_state_dict(saved)
        assert_same(same, expected)
    other = convert(random(make(kind, options)))
    other.load_state_dict(through_a_file(ours.state_dict()))
    assert_same(other, expected)


@pytest.mark.parametrize("name", MODELS)
def test_of_models(name: str) -> None:
    reference, before, ours = random(MODELS[name]()), MODELS[name](), convert(MODELS[name]())
    saved = through_a_file(reference.state_dict())
    before.load_state_dict(saved)
    assert str(ours.load_state_dict(saved)) == "<All keys matched successfully>"
    assert_same(ours, convert(reference))
    assert_same(convert(before), convert(reference))
    twice = convert(ours)
    twice.load_state_dict(saved)
    assert_same(twice, ours)


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
        assert_same(ours, convert(reference))


def test_in_another_dtype() -> None:
    reference, ours = random(pyg.GATConv(P, Q)), convert(pyg.GATConv(P, Q)).double()
    ours.load_state_dict(reference.state_dict())
    assert_same(ours, convert(reference).double())


def test_what_does_not_fit_is_told() -> None:
    model = nn.ModuleList([convert(pyg.GCNConv(P, Q))])
    with pytest.raises(RuntimeError, match=r"size mismatch for lin\.weight"):
        model.load_state_dict(nn.ModuleList([pyg.GCNConv(P + 1, Q)]).state_dict())
    saved = nn.ModuleList([pyg.GCNConv(P, Q)]).state_dict()
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "0\.lin\.bias"'):
        model.load_state_dict(saved | {"0.lin.bias": torch.ones(Q)})
    del saved["0.bias"]
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "0\.bias", "0\.theta\.weight"'):
        model.load_state_dict(saved)


def test_a_number_that_is_not_learnt_is_the_same() -> None:
    ours = convert(pyg.AGNNConv(requires_grad=False))
    ours.load_state_dict({"beta": torch.ones(1)})
    with pytest.raises(ValueError, match=r"beta: expected .* as when it was converted, got .*2"):
        ours.load_state_dict({"beta": 2 * torch.ones(1)})


def test_numbers_are_held_once() -> None:
    reference = pyg.SGConv(200, 200, cached=True)
    reference(torch.randn(1000, 200), torch.randint(1000, (2, 3000)))
    assert len(pickle.dumps(convert(reference))) < 1.2 * 200 * 200 * 4
