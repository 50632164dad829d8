"""Every recipe under all options that stand with it: what it makes is the same function, and keeps the same state."""

import copy
import pickle

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from pyg_basisconv import BasisConv, GridConv, compiled, convert
from pyg_basisconv.convert.attention import AttentionLayer
from pyg_basisconv.convert.operator_module import OperatorModule
from pyg_basisconv.convert.registry import convertible
from pyg_basisconv.verify import cases, drawn, forget, made
from pyg_basisconv.verify.recipes import attends, constructed, is_grid
from tests.convert.conversion import (
    ENDS,
    FIRST,
    KNOWLEDGE,
    OPTIONS,
    SWEEP,
    agree,
    evaluated,
    example,
    float32,
    like,
    over,
    runner,
    same_state,
    through_a_file,
)

# Where options say what parameters there are, all of them; of other layers the first and the last.
STRUCTURES = over(lambda kind, sweep: sweep if kind in KNOWLEDGE else [sweep[0], sweep[-1]])
# Those that a compiler sees as one operator each.
OPERATORS = ["GATConv", "GATv2Conv", "TransformerConv", "FAConv", "SuperGATConv", "RGATConv", "GeneralConv"]
OPERATORS += ["HypergraphConv", "HEATConv", "MultiheadAttention", "PointTransformerConv"]
FAILING_UNDER_AUTOCAST = ("MFConv",)  # of PyG's own
pytestmark = [
    pytest.mark.filterwarnings("ignore:Converting sparse tensor to CSR", "ignore:Sparse invariant checks"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
]


@pytest.mark.parametrize(("kind", "options"), SWEEP)
@pytest.mark.sweep(
    60,
    "LabelPropagation-num_layers=0",
    "EGConv-num_heads=2-num_bases=3-aggregators=['mean']",
    *(f"{kind}-flow=target_to_source" for kind in ("MFConv", "GeneralConv")),  # which count edges into targets
)
def test_options(kind: str, options: dict) -> None:
    """What `convert` makes, in both precisions, and the drop-in, which is evaluated by the recipe too."""
    new = None
    for case in cases(kind, options):
        forget(case.reference)
        if new is None or new[0] is not case.reference:
            new = case.reference, like(case.reference)
        natively = getattr(case.ours, "order", "auto") == "native"  # of `convert` alone
        agree(case, 1e-10, *([] if natively else new[1:]))
        assert natively or evaluated(new[1])
        if kind != "MultiheadAttention":
            agree(float32(case), 2e-4 if attends(case.ours) else 1e-5)


@pytest.mark.parametrize("kind", OPERATORS)
def test_results_are_described_to_compilers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their number, shapes and dtypes, without the values; a size that values decide may be any."""
    described, any_size = [], 4321

    def takes(self: OperatorModule, given: dict) -> bool:
        leaves = tree_leaves([part for part in given.values() if part is not None])
        return all(isinstance(t, bool | int) or (type(t) is Tensor and t.layout == torch.strided) for t in leaves)

    def results(self: OperatorModule, given: dict) -> list[Tensor]:
        found, told = self.evaluate(**given), self.fake_result(given, lambda: any_size)
        for one, expected in zip(found, told, strict=True):
            sizes = tuple(m if m == any_size else n for n, m in zip(one.shape, expected.shape, strict=True))
            assert (sizes, one.dtype) == (expected.shape, expected.dtype)
        described.extend(told)
        return found

    monkeypatch.setattr(OperatorModule, "uses_operator", takes)
    monkeypatch.setattr(compiled, "results", results)
    monkeypatch.setattr(AttentionLayer, "_is_plain", lambda *args: False)  # as under a compiler
    for options in OPTIONS[kind]:
        for case in cases(kind, options):
            with torch.no_grad():
                case.call(case.ours, *case.leaves)
    assert described


@pytest.mark.parametrize(("kind", "options"), STRUCTURES)
@pytest.mark.sweep(16)
def test_state(kind: str, options: dict) -> None:
    """The original and torch's generator stay; modes, copies, files and checkpoints of either carry over."""
    case = example(kind, options)
    reference, run = case.reference, runner(case)
    before, generator = copy.deepcopy(reference.state_dict()), torch.get_rng_state()
    ours = convert(reference.eval())
    assert torch.equal(generator, torch.get_rng_state())
    assert any(isinstance(part, BasisConv | GridConv) for part in ours.modules())
    assert not any(map(convertible, ours.modules()))
    assert not any(part.training for part in ours.modules())
    assert list(ours.state_dict()) == [name for name, _ in ours.named_parameters(remove_duplicate=False)]
    expected = run(ours)
    other, from_original = (convert(drawn(copy.deepcopy(reference))) for _ in range(2))
    other.load_state_dict(through_a_file(ours.state_dict()))
    saved = through_a_file(reference.state_dict())
    for same in (from_original, copy.deepcopy(other), pickle.loads(pickle.dumps(other))):
        same.load_state_dict(saved)
        same_state(same, ours)
    for same in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), other, from_original, convert(ours)):
        torch.testing.assert_close(run(same), expected, rtol=0, atol=0)
    assert repr(convert(ours)) == repr(ours)
    parameters = {name: p.detach().clone() for name, p in ours.named_parameters()}
    ours.reset_parameters()
    assert run(ours).isfinite().all()
    for name, parameter in ours.named_parameters():
        assert name == "l2" or not torch.equal(parameter, parameters[name])  # which PyG leaves as it is
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.zero_()
    same_state(reference, before)


@pytest.mark.parametrize(("kind", "options"), ENDS)
def test_parameters_have_the_widths_that_layers_say(kind: str, options: dict) -> None:
    for part in convert(constructed(kind, options)).modules():
        weight = part.theta.weight if isinstance(part, BasisConv | GridConv) else None
        if weight is not None and not is_lazy(weight):
            assert part.theta.shape(part.basis.K, part.theta.P, part.theta.Q) == weight.shape


@pytest.mark.parametrize(("kind", "options"), STRUCTURES)
@pytest.mark.sweep(16)
def test_frozen_parameters(kind: str, options: dict) -> None:
    """One parameter cannot be frozen in part: it is two, or the layer is left."""
    case = example(kind, options)
    reference, run = case.reference.requires_grad_(False), runner(case)
    expected = run(reference)
    assert not any(p.requires_grad for p in convert(reference).parameters())
    for name, parameter in reference.named_parameters():
        parameter.requires_grad_(True)
        left: dict[str, str] = {}
        ours = convert(reference, left)
        free = sum(p.numel() for p in ours.parameters() if p.requires_grad)
        assert free == parameter.numel() or (kind not in KNOWLEDGE and "frozen" in left[""]), name
        torch.testing.assert_close(run(ours), expected)
        parameter.requires_grad_(False)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("kind", "options"), FIRST)
@pytest.mark.sweep(30, "ResGatedGraphConv-dtype3")
def test_dtype(kind: str, options: dict, dtype: torch.dtype) -> None:
    case = example(kind, options)
    ours = convert(case.reference.to(dtype))
    assert {p.dtype for p in ours.parameters()} <= {dtype}
    assert {p.device.type for p in convert(made(kind, options).to("meta")).parameters()} <= {"meta"}
    if kind == "AvgPool3d" and dtype.itemsize == 2:
        return  # torch has none on a processor
    leaves = [leaf.to(dtype) for leaf in case.leaves]
    y = case.call(ours, *leaves)
    assert y.dtype == dtype
    if is_grid(kind):
        expected = case.call(case.reference, *leaves).detach()
        scale = float(expected.abs().max())
        torch.testing.assert_close(y.double(), expected.double(), rtol=0, atol=4 * torch.finfo(dtype).eps * scale)


@pytest.mark.parametrize(("kind", "options"), [p for p in FIRST if p.values[0] not in FAILING_UNDER_AUTOCAST])
@pytest.mark.sweep(12)
def test_autocast(kind: str, options: dict) -> None:
    if kind == "LSTM" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("torch's own LSTM takes no bfloat16 on this processor")
    case, results = float32(example(kind, options)), []
    for f in (case.ours, case.reference):
        with torch.autocast("cpu", torch.bfloat16):
            y = case.call(f, *[leaf.requires_grad_() for leaf in case.leaves])
        y.float().sum().backward()
        results.append(y.detach().float())
    ours, theirs = results
    if is_grid(kind):
        torch.testing.assert_close(ours, theirs, rtol=1.6e-2, atol=1e-5)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0.02 * float(theirs.abs().max()))


@pytest.mark.parametrize("width", [2, 4])
def test_a_network_behind_keeps_its_running_means(width: int) -> None:
    """GINConv's network may normalise batches; its drop-in updates the means of the layer itself, as PyG does."""
    network = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.BatchNorm1d(width))
    peer = pyg.GINConv(network, train_eps=True).double()
    own, converted = like(peer), convert(peer)
    x, edge_index = torch.randn(5, 3, dtype=torch.float64), torch.randint(5, (2, 9))
    for _ in range(3):
        expected = peer(x, edge_index)
        for ours in (own, converted):
            torch.testing.assert_close(ours(x, edge_index), expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(dict(own.state_dict()), dict(peer.state_dict()), rtol=0, atol=1e-12)
    for ours in (own.eval(), converted.eval()):
        torch.testing.assert_close(ours(x, edge_index), peer.eval()(x, edge_index), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "kind", ["ARMAConv", "GINConv", "HANConv", "HGTConv", "MFConv", "MultiheadAttention", "RGATConv"]
)
def test_parameters_are_drawn_anew_as_the_layer_draws_its_own(kind: str) -> None:
    reference = constructed(kind, {"train_eps": True, "eps": 0.3} if kind == "GINConv" else None)
    ours = convert(drawn(copy.deepcopy(reference)).float())
    torch.manual_seed(5)
    ours.reset_parameters()
    torch.manual_seed(5)
    for part in (*reference.modules(), reference):
        again = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
        _ = again and again()
    for (name, found), expected in zip(ours.named_parameters(), convert(reference).parameters(), strict=True):
        assert name == "l2" or torch.equal(found, expected), name  # which PyG leaves as it is


@pytest.mark.parametrize("kind", ["GraphConv", "LEConv"])
def test_layers_of_open_widths_are_drawn_anew(kind: str) -> None:
    """By their parts, as the layer has no widths to draw by."""
    ours = convert(getattr(pyg, kind)(-1, 3))
    ours(torch.randn(2, 5), torch.tensor([[0, 1], [1, 0]]))
    before = {name: p.clone() for name, p in ours.named_parameters() if p.dim() > 1}
    ours.reset_parameters()
    assert not any(torch.equal(p, before[name]) for name, p in ours.named_parameters() if p.dim() > 1)
