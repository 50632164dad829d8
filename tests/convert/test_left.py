"""What is left as it was, and why; and how that is told."""

import warnings
from collections.abc import Callable

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch_geometric.nn.models.schnet import CFConv

from pyg_basisconv import BasisConv, GridConv, convert
from pyg_basisconv.convert.refused import why_not
from pyg_basisconv.verify import Case, N, P, Q, features, graph, made
from pyg_basisconv.verify.recipes import KINDS, WIDTHS, R
from tests.convert.conversion import agree, left_of

METADATA, E, H = (list(WIDTHS), KINDS), 8, 2


class OwnMessages(pyg.MessagePassing):
    pass


class OwnGCN(pyg.GCNConv):
    def message(self, x_j: Tensor, edge_weight: Tensor) -> Tensor:
        return super().message(x_j, edge_weight).relu()


class OwnRGCN(pyg.RGCNConv):
    pass


class OwnConv2d(nn.Conv2d):
    """Standardised weights."""

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight - self.weight.mean((1, 2, 3), keepdim=True), self.bias)


class OwnAttention(nn.MultiheadAttention):
    pass


def gcn() -> pyg.GCNConv:
    return pyg.GCNConv(P, Q)


class Adapted(nn.Module):
    """A Linear and a product of two narrow ones, with the attributes of the first."""

    def __init__(self, linear: nn.Module, **about: object) -> None:
        super().__init__()
        self.linear, self.low = linear, nn.Sequential(nn.Linear(P, 1, bias=False), nn.Linear(1, Q, bias=False))
        vars(self).update(about)

    weight = property(lambda self: self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.low(x)


def conv() -> nn.Conv2d:
    return nn.Conv2d(P, Q, 3)


def hooked(layer: nn.Module, part: str = "") -> nn.Module:
    layer.get_submodule(part).register_forward_hook(lambda module, inputs, output: None)
    return layer


def hooked_parameter() -> nn.Module:
    layer = conv()
    layer.weight.register_hook(lambda gradient: gradient.clamp(-1, 1))
    return layer


def weight_normalised() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the old one, on which many checkpoints stand
        return nn.utils.weight_norm(conv())


def changed(layer: nn.Module, **attributes: object) -> nn.Module:
    for name, value in attributes.items():
        setattr(layer, name, value)
    return layer


def bare(name: str) -> nn.Module:
    layer = conv()
    value = getattr(layer, name).detach()
    delattr(layer, name)
    return changed(layer, **{name: value})


def half_frozen() -> nn.Module:
    layer = nn.MultiheadAttention(E, H, add_bias_kv=True)
    layer.bias_k.requires_grad_(False)
    return layer


def edge_network(*end: nn.Module) -> nn.Module:
    return pyg.NNConv(3, 4, nn.Sequential(nn.Linear(2, 5), nn.ReLU(), *end))


def of_linear() -> nn.Module:
    return changed(pyg.DirGNNConv(gcn()), lin=pyg.Linear(P, Q))


def with_first(layer: pyg.ChebConv, matrix: pyg.Linear) -> pyg.ChebConv:
    layer.lins[0] = matrix
    return layer


LEFT: dict[str, Callable[[], nn.Module]] = {
    f"CGConv: {why_not('CGConv')}": lambda: pyg.CGConv(P),
    "OwnMessages: no BasisConv of it is known": OwnMessages,
    "OwnGCN: a subclass of GCNConv may compute something else": lambda: OwnGCN(P, Q),
    "GraphConv: aggr='max' is not linear, or not a sum or mean": lambda: pyg.GraphConv(P, Q, aggr="max"),
    "SAGEConv: aggr='lstm' is not linear, or not a sum or mean": lambda: pyg.SAGEConv(P, Q, aggr="lstm"),
    "SAGEConv: aggr=['mean', 'max'] is not": lambda: pyg.SAGEConv(P, Q, aggr=["mean", "max"]),
    "SimpleConv: aggr='median' is not": lambda: pyg.SimpleConv("median"),
    "GCNConv: aggr='mean' over messages": lambda: pyg.GCNConv(P, Q, aggr="mean"),
    "LEConv: aggr='mean' over messages": lambda: pyg.LEConv(P, Q, aggr="mean"),
    "SAGEConv: project=True with flow": lambda: pyg.SAGEConv(P, Q, project=True, flow="target_to_source"),
    "GCNConv: node_dim=0": lambda: pyg.GCNConv(P, Q, node_dim=0),
    "GCNConv: it has hooks": lambda: hooked(gcn(), "lin"),
    "GCNConv: its forward() was replaced": lambda: changed(gcn(), forward=lambda x, edge_index: x),
    "GCNConv: one of its matrices is in a Linear": lambda: changed(gcn(), lin=nn.Linear(P, Q)),
    "GCNConv: it has other parameters than its class makes, such as a bias": lambda: changed(
        gcn(), lin=pyg.Linear(P, Q)
    ),
    "GCNConv: it has other parameters than its class makes": lambda: changed(gcn(), scale=nn.Parameter(torch.ones(Q))),
    "ResGatedGraphConv: it has other parameters": lambda: changed(
        pyg.ResGatedGraphConv(P, Q), lin_query=pyg.Linear(P, Q, bias=False)
    ),
    "SAGEConv: another module stands in the place of one of its own: 'Adapted'": lambda: changed(
        pyg.SAGEConv(P, Q), lin_l=Adapted(pyg.Linear(P, Q), in_channels=P, out_channels=Q)
    ),
    "GraphConv: another module stands in the place of one of its own: 'NoneType'": lambda: changed(
        pyg.GraphConv(P, Q), lin_rel=None
    ),
    "PDNConv: one of its matrices is in a Adapted": lambda: changed(
        pyg.PDNConv(P, Q, 2, 3), lin=Adapted(nn.Linear(P, Q, bias=False))
    ),
    "DenseSAGEConv: one of its matrices is in a Adapted": lambda: changed(
        pyg.DenseSAGEConv(P, Q), lin_rel=Adapted(nn.Linear(P, Q, bias=False))
    ),
    "CFConv: one of its matrices is in a Adapted": lambda: changed(
        CFConv(P, Q, Q, nn.Linear(2, Q), 5.0), lin1=Adapted(nn.Linear(P, Q), out_features=Q, in_features=P)
    ),
    "ChebConv: its matrices differ in dtype": lambda: with_first(
        pyg.ChebConv(P, Q, 2), pyg.Linear(P, Q, bias=False).double()
    ),
    "ChebConv: its matrices differ in shape": lambda: with_first(
        pyg.ChebConv(P, Q, 2), pyg.Linear(P, Q + 1, bias=False)
    ),
    "GINConv: its network is no nn.Module": lambda: pyg.GINConv(torch.relu),
    "MultiheadAttention: its output projection is a Linear": lambda: changed(
        nn.MultiheadAttention(E, H), out_proj=nn.Linear(E, E)
    ),
    "GATConv: it is lazy: call it once before": lambda: pyg.GATConv(-1, Q),
    "GATConv: dropout=1.0 drops all weights": lambda: pyg.GATConv(P, Q, dropout=1.0),
    "MultiheadAttention: dropout=1.0 drops": lambda: nn.MultiheadAttention(E, H, dropout=1.0),
    "GATConv: aggr='max' is not linear": lambda: pyg.GATConv(P, Q, aggr="max"),
    "FAConv: aggr='mean' over messages": lambda: pyg.FAConv(P, aggr="mean"),
    "RGATConv: aggr='mean' over messages": lambda: pyg.RGATConv(P, Q, 3, aggr="mean"),
    "ResGatedGraphConv: its activation has parameters": lambda: pyg.ResGatedGraphConv(P, Q, act=nn.PReLU()),
    "OwnAttention: a subclass of MultiheadAttention": lambda: OwnAttention(E, H),
    "MultiheadAttention: it has hooks": lambda: hooked(nn.MultiheadAttention(E, H), "out_proj"),
    "MultiheadAttention: some of its matrices are frozen": half_frozen,
    "RGCNConv: aggr='max' is not linear, or not a sum or mean": lambda: pyg.RGCNConv(P, Q, R, aggr="max"),
    "FastRGCNConv: aggr='max' is not linear": lambda: pyg.FastRGCNConv(P, Q, R, aggr="max"),
    "OwnRGCN: a subclass of RGCNConv may compute something else": lambda: OwnRGCN(P, Q, R),
    "HypergraphConv: aggr='mean' over messages": lambda: pyg.HypergraphConv(P, Q, aggr="mean"),
    "HypergraphConv: aggr='max' is not linear": lambda: pyg.HypergraphConv(P, Q, aggr="max"),
    "HypergraphConv: it is lazy: call it once before": lambda: pyg.HypergraphConv(-1, Q, use_attention=True),
    "HypergraphConv: dropout=1.0 drops all": lambda: pyg.HypergraphConv(P, Q, use_attention=True, dropout=1.0),
    "SignedConv: aggr='max' is not linear": lambda: pyg.SignedConv(P, Q, True, aggr="max"),
    "SignedConv: aggr='median' is not linear": lambda: pyg.SignedConv(P, Q, False, aggr="median"),
    f"DirGNNConv: its CGConv is left: {why_not('CGConv')}": lambda: pyg.DirGNNConv(pyg.CGConv(P), root_weight=False),
    "DirGNNConv: its GraphConv is left: aggr='max' is": lambda: pyg.DirGNNConv(pyg.GraphConv(P, Q, aggr="max")),
    "DirGNNConv: one of its matrices is in a Linear": of_linear,
    "HANConv: flow='target_to_source' between nodes": lambda: pyg.HANConv(P, 8, METADATA, flow="target_to_source"),
    "HANConv: dropout=1.0 drops all weights": lambda: pyg.HANConv(P, 8, METADATA, dropout=1.0),
    "HGTConv: flow='target_to_source' between nodes": lambda: pyg.HGTConv(P, 8, METADATA, flow="target_to_source"),
    "NNConv: its network does not end in a Linear, but in a ReLU": edge_network,
    "NNConv: its network has 7 outputs instead of 3 x 4": lambda: edge_network(nn.Linear(5, 7)),
    "NNConv: aggr='max' is not linear, or not a sum or mean": lambda: pyg.NNConv(3, 4, nn.Linear(2, 12), aggr="max"),
    "GMMConv: it is lazy: call it once before": lambda: pyg.GMMConv(-1, 4, 2, 3),
    "GMMConv: separate_gaussians=True has a Gaussian for each pair of channels": lambda: pyg.GMMConv(
        3, 4, 2, 3, separate_gaussians=True
    ),
    "PANConv: flow='target_to_source', which PyG refuses": lambda: pyg.PANConv(P, Q, 2, flow="target_to_source"),
    "WLConvContinuous: flow='target_to_source', where PyG": lambda: pyg.WLConvContinuous(flow="target_to_source"),
    "EGConv: aggregators=['sum', 'max'] are not": lambda: pyg.EGConv(P, 8, ["sum", "max"]),
    "FiLMConv: its messages pass through an activation, unless act=None": lambda: pyg.FiLMConv(P, Q),
    "FiLMConv: aggr='max' is not linear": lambda: pyg.FiLMConv(P, Q, act=None, aggr="max"),
    "GeneralConv: its scores are products of sums of both ends": lambda: pyg.GeneralConv(
        P, Q, attention=True, attention_type="dot_product", directed_msg=False
    ),
    "HEATConv: dropout=1.0 drops all weights": lambda: pyg.HEATConv(P, Q, 3, 4, 2, 3, 5, dropout=1.0),
    "MFConv: it is lazy": lambda: pyg.MFConv(-1, Q),
    "OwnConv2d: a subclass of Conv2d may compute something else": lambda: OwnConv2d(P, Q, 3),
    "LazyConv2d: it is lazy: call it once before": lambda: nn.LazyConv2d(Q, 3),
    "LazyConvTranspose1d: it is lazy": lambda: nn.LazyConvTranspose1d(Q, 3),
    "ParametrizedConv2d: its parameters are computed from others": lambda: weight_norm(conv()),
    "ParametrizedConv2d: its parameters are computed": lambda: spectral_norm(conv()),
    "Conv2d: it has hooks, which see": weight_normalised,
    "Conv2d: it has hooks": lambda: hooked(conv()),
    "Conv2d: it has hooks, ": hooked_parameter,
    "Conv2d: its forward() was replaced": lambda: changed(conv(), forward=lambda x: x),
    "Conv2d: its _conv_forward() was replaced": lambda: changed(conv(), _conv_forward=lambda x, weight, bias: x),
    "Conv2d: its padding was changed after it was made": lambda: changed(
        nn.Conv2d(P, Q, 3, padding=1, padding_mode="circular"), padding=(2, 2)
    ),
    "Conv2d: its weight or bias is not a parameter of it": lambda: bare("weight"),
    "Conv2d: its weight or bias is not a parameter": lambda: bare("bias"),
    "Conv2d: its weights are complex": lambda: nn.Conv2d(P, Q, 3, dtype=torch.complex64),
    "DenseGraphConv: aggr='max' is not linear": lambda: pyg.DenseGraphConv(P, Q, aggr="max"),
    "AvgPool2d: divisor_override=0": lambda: nn.AvgPool2d(2, divisor_override=0),
}


@pytest.mark.parametrize("reason", LEFT)
def test_left_with_a_reason(reason: str) -> None:
    """Alone it is the very layer that was given; in a model, a copy. Layers inside of it are converted."""
    layer, left = LEFT[reason](), {}
    ours = convert(layer, left)
    assert left[""].startswith(reason)
    inside = [
        part for name, part in layer.named_modules() if name and name not in left and "conv" in name.split(".")[0]
    ]
    assert (ours is layer) != any(isinstance(part, pyg.MessagePassing) for part in inside)
    model, again = nn.Sequential(layer, nn.ReLU()), {}
    copied = convert(model, again)[0]
    assert again == {f"0.{name}".rstrip("."): told for name, told in left.items()}
    assert type(copied) is type(layer)
    assert copied is not layer


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.Upsample(scale_factor=2, mode="bicubic"), "mode='bicubic' has no basis"),
        (nn.Upsample(scale_factor=2, recompute_scale_factor=True), "recompute_scale_factor=True"),
        (nn.EmbeddingBag(5, 3, mode="max"), "mode='max' is not linear"),
        (nn.EmbeddingBag(5, 3, max_norm=1.0), "max_norm=1.0"),
        (nn.EmbeddingBag(5, 3, scale_grad_by_freq=True), "scale_grad_by_freq=True"),
        (nn.EmbeddingBag(5, 3, sparse=True), "sparse=True"),
    ],
)
def test_left_alone(layer: nn.Module, reason: str) -> None:
    assert left_of(layer) == {"": f"{type(layer).__name__}: {reason}"}


def test_a_fault_of_a_rule_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BasisConv, "__setattr__", lambda self, name, value: self.missing)
    with pytest.raises(AttributeError, match="missing"):
        convert(gcn())


def test_what_is_converted_alone_stays_in_a_model() -> None:
    """Silently: there is nothing to gain."""
    on_grids = nn.Upsample(scale_factor=2), nn.AdaptiveAvgPool2d(1), nn.PixelUnshuffle(2), nn.Fold(4, 2)
    for layer in (*on_grids, nn.Linear(4, 2), nn.LSTM(4, 2), nn.GRUCell(4, 2)):
        assert type(convert(layer)) is not type(layer)
        model = nn.Sequential(conv(), layer)
        assert left_of(model) == {}
        assert type(convert(model)[1]) is type(layer)


def test_layers_inside_one_that_is_left_are_converted() -> None:
    layer = of_linear().double()
    assert left_of(layer).keys() == {""}
    with pytest.warns(UserWarning, match="left 1 of 3 layers"):
        ours = convert(layer)
    assert type(ours) is pyg.DirGNNConv
    assert isinstance(ours.conv_in, BasisConv)
    edge_index, _ = graph()
    agree(Case(ours, layer, [features(N, P)], lambda f, x: f(x, edge_index)))


@pytest.mark.parametrize("kind", [pyg.SAGEConv, pyg.TransformerConv, pyg.GraphConv])
def test_a_root_that_is_turned_off_is_not_read(kind: type[nn.Module]) -> None:
    """A DirGNNConv turns the roots of its parts off, whose matrices stay."""
    layer, x = pyg.DirGNNConv(kind(P, Q)).double(), features(N, P)
    edge_index, _ = graph()
    ours = convert(layer)
    assert type(ours) is not pyg.DirGNNConv
    torch.testing.assert_close(ours(x, edge_index), layer(x, edge_index))


def tied(first: nn.Module, second: nn.Module, part: str, name: str = "weight", other: str = "") -> nn.ModuleList:
    setattr(second.get_submodule(other or part), name, getattr(first.get_submodule(part), name))
    return nn.ModuleList([first, second])


def directed() -> nn.Module:
    layer = pyg.DirGNNConv(gcn())
    layer.conv_in.lin.weight = layer.conv_out.lin.weight
    return layer


TIED: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
    "GCNConv": (lambda: tied(gcn(), gcn(), "lin").append(gcn()), ["0", "1"]),
    "attention": (
        lambda: tied(nn.MultiheadAttention(E, H), nn.MultiheadAttention(E, H), "", "in_proj_weight"),
        ["0", "1"],
    ),
    "directed": (directed, ["", "conv_in", "conv_out"]),
    "convolutions": (lambda: tied(conv(), nn.ConvTranspose2d(Q, P, 3), "").append(conv()), ["0", "1"]),
    "a Linear": (lambda: tied(nn.Conv1d(P, Q, 1), nn.Linear(P, Q), "", "bias"), ["0"]),
}


@pytest.mark.parametrize("name", TIED)
def test_tied_parameters_are_left(name: str) -> None:
    make, places = TIED[name]
    model = make()
    shared = "it shares a parameter with another layer"
    assert left_of(model) == {at: f"{type(model.get_submodule(at)).__name__}: {shared}" for at in places}


def test_the_warning_names_what_is_left() -> None:
    model = pyg.Sequential("x, e", [(pyg.GCNConv(P, P), "x, e -> x"), nn.ReLU(), (pyg.CGConv(P), "x, e -> x")])
    with pytest.warns(UserWarning, match=r"left 1 of 2 layers as they were\n  module_2: CGConv: its messages"):
        ours = convert(model)
    assert type(ours.module_2) is pyg.CGConv
    assert ours.module_2 is not model.module_2
    with pytest.warns(UserWarning, match="the layer: CGConv"):
        assert convert(model.module_2) is model.module_2
    with pytest.warns(UserWarning, match=r"left 1 of 2 layers as they were\n  1: OwnConv2d: a subclass of Conv2d"):
        ours = convert(nn.Sequential(conv(), OwnConv2d(Q, Q, 3), nn.BatchNorm2d(Q)))
    assert isinstance(ours[0], GridConv)


def test_nothing_is_said_of_other_modules() -> None:
    assert left_of(nn.Sequential(nn.Linear(P, Q), nn.ReLU(), nn.LayerNorm(Q))) == {}
    others = nn.Linear(3, 3), nn.MaxPool2d(2), nn.Fold(4, 2), nn.LPPool2d(2, 2), nn.AdaptiveAvgPool1d(1)
    assert left_of(nn.Sequential(*others)) == {}


def test_a_left_layer_with_a_computed_weight_still_learns() -> None:
    model = nn.Sequential(weight_normalised(), nn.ReLU(), nn.Conv2d(Q, P, 1))
    ours = convert(model, {})
    x = torch.randn(2, P, 6, 7)
    torch.testing.assert_close(ours(x), model(x))
    ours(x).sum().backward()
    assert ours[0].weight_g.grad is not None
    assert model[0].weight_g.grad is None


def test_parts_that_are_frozen() -> None:
    """`test_recipes.py` freezes all parameters but one of each layer."""
    mixed = made("TAGConv")
    mixed.lins[0].requires_grad_(False)
    assert left_of(mixed) == {"": "TAGConv: some of its matrices are frozen and some are not"}
