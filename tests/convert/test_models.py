"""Models: all their layers are converted, and they are the same functions, which learn the same."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.explain.algorithm.utils import clear_masks, set_masks
from torch_geometric.nn.models import GAT, GCN, GIN, LINKX, AttentiveFP, GraphSAGE
from torch_geometric.nn.models.attentive_fp import GATEConv
from torch_geometric.nn.models.linkx import SparseLinear

from pyg_basisconv import BasisConv, GridConv, convert
from pyg_basisconv.convert.registry import convertible
from pyg_basisconv.nn import drop_in
from pyg_basisconv.verify import Case, N, P, Q, drawn, features, graph, made
from pyg_basisconv.verify.recipes import R, default_dtype, loop_path, more_inputs, typed_graph
from tests.convert.conversion import agree, evaluated, same_state, through_a_file

SIZE = (18, 22)
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")


class Shared(nn.Module):
    """One layer in several places, in one of them unregistered."""

    def __init__(self) -> None:
        super().__init__()
        self.first = pyg.GCNConv(P, P)
        self.rest = nn.ModuleList([pyg.GraphConv(P, P), self.first, nn.ModuleDict({"again": self.first})])
        self.plain = [self.first]
        self.linear = nn.Linear(P, Q)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv in (self.first, self.rest[0], self.rest[1], self.rest[2]["again"], *self.plain):
            x = conv(x, edge_index).tanh()
        return self.linear(x)


class Relational(nn.Module):
    """Of nodes without features; the types of edges come by order."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.first, self.second = (kind(n, 8, R, num_bases=2) for n in (N, 8))
        self.directed, self.last = pyg.DirGNNConv(pyg.GCNConv(8, 8)), kind(8, Q, R)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        types = torch.arange(edge_index.shape[1]) * (R - 1) // edge_index.shape[1]
        with loop_path():
            h = self.second(self.first(None, edge_index, types).relu(), edge_index, types).relu()
            return self.last(self.directed(h, edge_index).relu(), edge_index, types)


class Mixed(nn.Module):
    """A GNN whose nodes are images, with a reading of both."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2)
        self.gnn = pyg.GCNConv(4, 6)
        self.attention = nn.MultiheadAttention(6, heads, batch_first=True) if heads else None
        self.readout = nn.Conv1d(6, Q, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.gnn(self.conv(x.repeat(1, 21).view(-1, 3, 7, 6)).relu().mean((-2, -1)), edge_index)
        if self.attention is not None:
            h = h + self.attention(h[None], h[None], h[None])[0][0]
        return self.readout(h.t()).t()


STEP, WEIGHTED = "x, edge_index -> x", "x, edge_index, edge_weight -> x"
ON_GRAPHS: dict[str, Callable[[], nn.Module]] = {
    "GCN": lambda: GCN(P, 8, 3, Q, norm="layer"),
    "GraphSAGE": lambda: GraphSAGE(P, 8, 2, Q, jk="cat"),
    "GAT": lambda: GAT(P, 8, 2, Q, heads=2, jk="cat"),
    "GATv2": lambda: GAT(P, 8, 2, Q, heads=2, v2=True),
    "GPS": lambda: pyg.GPSConv(P, pyg.GCNConv(P, P), heads=1),
    "Sequential": lambda: pyg.Sequential(
        "x, edge_index", [(pyg.ChebConv(P, 8, 2), STEP), nn.ReLU(), (pyg.SAGEConv(8, Q), STEP)]
    ),
    "GIN": lambda: GIN(P, 8, 2, Q),
    "jumping GCN": lambda: GCN(P, 8, 2, Q, jk="max", act="elu"),
    "models in a Sequential": lambda: pyg.Sequential(
        "x, edge_index", [(GraphSAGE(P, 8, 2), STEP), (GAT(8, 8, 1, Q, heads=2), STEP)]
    ),
    "weighted Sequential": lambda: pyg.Sequential("x, edge_index, edge_weight", [(pyg.TAGConv(P, Q), WEIGHTED)]),
    "weighted GCN": lambda: GCN(P, 8, 2, Q),
    "LINKX": lambda: LINKX(N, P, 8, Q, 2),
    "weighted LINKX": lambda: LINKX(N, P, 8, Q, 2, num_edge_layers=2),
    "DataParallel": lambda: nn.DataParallel(GCN(P, 8, 2, Q)),
    "SAGPooling": lambda: pyg.Sequential(
        "x, edge_index", [(pyg.SAGPooling(P), "x, edge_index -> x, e, w, b, p, s"), (nn.Linear(P, Q), "x -> x")]
    ),
    "shared": Shared,
    "R-GCN": lambda: Relational(pyg.RGCNConv),
    "R-GCN, fast": lambda: Relational(pyg.FastRGCNConv),
    "graphs and grids": lambda: Mixed(heads=2),
}


class Residual(nn.Module):
    """Two convolutions around which the input goes, through a 1x1 where the sizes change."""

    def __init__(self, P: int, Q: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(P, Q, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(Q, Q, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(Q), nn.BatchNorm2d(Q)])
        self.shortcut = nn.Identity()
        if stride > 1 or P != Q:
            self.shortcut = nn.Sequential(nn.Conv2d(P, Q, 1, stride, bias=False), nn.BatchNorm2d(Q))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norms[0](self.first(x)).relu()
        return (self.norms[1](self.second(h)) + self.shortcut(x)).relu()


def resnet() -> nn.Module:
    stem = [nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    blocks = [nn.MaxPool2d(3, stride=2, padding=1), Residual(8, 8, 1), Residual(8, 12, 2)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5))


def mobilenet() -> nn.Module:
    def block(P: int, Q: int, stride: int) -> list[nn.Module]:
        apart = nn.Conv2d(P, P, 3, stride, padding=1, groups=P, bias=False)
        return [apart, nn.BatchNorm2d(P), nn.ReLU6(), nn.Conv2d(P, Q, 1, bias=False), nn.BatchNorm2d(Q), nn.ReLU6()]

    stem = nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=False)
    blocks = [*block(6, 8, 1), *block(8, 12, 2), *block(12, 12, 1)]
    return nn.Sequential(stem, nn.BatchNorm2d(6), *blocks, nn.AvgPool2d(2), nn.Flatten(), nn.LazyLinear(5))


class UNet(nn.Module):
    """Down, and up again to the very size, beside what was there before."""

    def __init__(self) -> None:
        super().__init__()
        down = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1, padding_mode="reflect")
        self.down = nn.ModuleList(down)
        self.bottom = nn.Conv2d(8, 8, 3, padding=2, dilation=2)
        self.up = nn.ModuleList([nn.ConvTranspose2d(8, 8, 2, stride=2), nn.ConvTranspose2d(8, 6, 2, stride=2)])
        self.back = nn.ModuleList([nn.Conv2d(16, 8, 3, padding=1), nn.Conv2d(12, 5, 3, padding=1)])
        self.pool = nn.AvgPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for conv in self.down:
            x = conv(x).relu()
            kept.append(x)
            x = self.pool(x)
        x = self.bottom(x).relu()
        for up, back in zip(self.up, self.back, strict=True):
            skip = kept.pop()
            x = back(torch.cat([up(x, output_size=skip.shape[-2:]), skip], 1))
        return x.mean((-2, -1))


class Tokens(nn.Module):
    """The grid in one axis, after the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2)


def vision_transformer(*patches: nn.Module) -> nn.Module:
    encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.Sequential(*patches, encoder, nn.Flatten(), nn.LazyLinear(5))


def sequences() -> nn.Module:
    first = [nn.Conv1d(3, 8, 5, dilation=2, padding="same"), nn.GELU(), nn.AvgPool1d(3, 2, 1)]
    second = [nn.Conv1d(8, 8, 4, padding="same", groups=2, padding_mode="circular"), nn.Tanh()]
    last = [nn.ConvTranspose1d(8, 4, 3, 2), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 5)]
    return nn.Sequential(nn.Flatten(2), *first, *second, *last)


def volumes() -> nn.Module:
    """Images as the slices of a volume."""
    pooled = [nn.AvgPool3d(2, ceil_mode=True), nn.ConvTranspose3d(4, 4, 2, 2), nn.AdaptiveAvgPool3d(1)]
    conv = nn.Unflatten(1, (1, 3)), nn.Conv3d(1, 4, 3, padding=1), nn.ReLU()
    return nn.Sequential(*conv, *pooled, nn.Flatten(), nn.Linear(4, 5))


OF_IMAGES: dict[str, Callable[[], nn.Module]] = {
    "ResNet": resnet,
    "MobileNet": mobilenet,
    "U-Net": UNet,
    "patches by a convolution": lambda: vision_transformer(nn.Conv2d(3, 8, 4, stride=4), Tokens()),
    "patches by Unfold": lambda: vision_transformer(nn.Unfold(4, stride=4), Tokens(), nn.Linear(3 * 16, 8)),
    "sequences": sequences,
    "volumes": volumes,
    "DataParallel of images": lambda: nn.DataParallel(resnet()),
}
MODELS = [*ON_GRAPHS, *OF_IMAGES]


def model_of(name: str, training: bool = True) -> tuple[nn.Module, list[Tensor], Callable[..., Tensor]]:
    """A model, what it is differentiated by, and its call."""
    if name in OF_IMAGES:
        model = OF_IMAGES[name]()
        model(torch.randn(2, 3, *SIZE))  # what is lazy is now not
        return model.double().train(training), [features(4, 3, *SIZE)], lambda f, x: f(x)
    edge_index, weight = graph()
    leaves = [features(N, P), weight] if "weighted" in name else [features(N, P)]
    model = ON_GRAPHS[name]().double()
    return model.train(training and name != "GPS"), leaves, lambda f, x, *w: f(x, edge_index, *w)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sweep(12)
def test_models(name: str, training: bool) -> None:
    model, leaves, call = model_of(name, training)
    ours = convert(model)
    assert not any(map(convertible, ours.modules()))
    assert any(isinstance(m, GridConv if name in OF_IMAGES else BasisConv) for m in ours.modules())
    agree(Case(ours, model, leaves, call))
    single, theirs = (copy.deepcopy(f).float() for f in (ours, model))
    found, expected = (call(f, *[leaf.float() for leaf in leaves]) for f in (single, theirs))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    if hasattr(ours, "reset_parameters"):
        ours.reset_parameters()
        assert call(ours, *leaves).isfinite().all()


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("GPS", "SAGPooling")])
@pytest.mark.sweep(4)
def test_same_training_curve(name: str) -> None:
    model, leaves, call = model_of(name)
    curves = []
    for f in (convert(model), model):
        optimizer = torch.optim.SGD(f.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
        curve = []
        for _ in range(8):
            optimizer.zero_grad()
            y = call(f, *leaves)
            loss = F.cross_entropy(y, torch.arange(len(y)) % Q)
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
        curves.append(curve)
    torch.testing.assert_close(*curves, rtol=1e-9 if "GAT" in name else 1e-10, atol=1e-10 if name in OF_IMAGES else 0)
    assert curves[0][-1] < curves[0][0]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_attentive_fp(dropout: float) -> None:
    """Its first layer, which reads edges, as `convert` makes it and as a drop-in, and all of it."""
    (edge_index, _), batch = graph(), torch.arange(N) // 5
    reference = drawn(GATEConv(P, P, 3, dropout))
    own = drop_in(GATEConv)(P, P, 3, dropout).double()
    own.load_state_dict(reference.state_dict())

    def call(f: nn.Module, x: Tensor, z: Tensor, *more: Tensor) -> Any:
        torch.manual_seed(4)
        return f(x, edge_index, z, *more)

    leaves = [features(N, P), features(edge_index.shape[1], 3)]
    agree(Case(convert(reference), reference, leaves, call), 1e-10, own)
    assert evaluated(own)
    model, left = drawn(AttentiveFP(P, 8, Q, 3, 2, 2, dropout)), {}
    ours = convert(model, left)
    assert not left
    agree(Case(ours.eval(), model.eval(), leaves, lambda f, *given: call(f, *given, batch)))


def test_the_attention_of_attentive_fp_without_features_of_edges() -> None:
    reference, (edge_index, _) = drawn(GATEConv(P, P, 0)), graph()
    leaves = [features(N, P), torch.empty(edge_index.shape[1], 0)]
    agree(Case(convert(reference), reference, leaves, lambda f, x, z: f(x, edge_index, z.to(x.dtype))))


def test_the_attention_of_attentive_fp_takes_one_width() -> None:
    left: dict[str, str] = {}
    convert(GATEConv(P, P + 1, 3), left)
    assert left == {"": "GATEConv: its second Linear is as wide as its result and not as x, so that PyG's call fails"}


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_of_edges(bias: bool) -> None:
    reference, (edge_index, weight) = drawn(SparseLinear(N, Q, bias)), graph()
    ours, own = convert(reference), drop_in(SparseLinear)(N, Q, bias).double()
    own.load_state_dict(reference.state_dict())
    agree(Case(ours, reference, [], lambda f: f(edge_index)), 1e-10, own)
    agree(Case(ours, reference, [weight], lambda f, w: f(edge_index, w)), 1e-10, own)
    assert evaluated(own)
    matrix = torch.sparse_coo_tensor(edge_index.flip(0), weight, (N, N)).to_sparse_csr()
    torch.testing.assert_close(ours(matrix), reference(edge_index, weight))


@pytest.mark.parametrize("options", [{}, {"autoscale": False, "scale": 0.4}], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_correct_and_smooth(options: dict, weighted: bool) -> None:
    """A container of two propagations; its own steps between them stay."""
    reference = pyg.CorrectAndSmooth(3, 0.8, 4, 0.6, **options)
    ours, (edge_index, weight) = convert(reference), graph()
    assert sum(isinstance(part, BasisConv) for part in ours.modules()) == 4
    assert (ours.autoscale, ours.scale) == (reference.autoscale, reference.scale)
    y, mask = features(N, 3).softmax(-1), torch.arange(N) % 2 == 0
    given = y, torch.randint(3, (int(mask.sum()),)), mask, edge_index, *([weight] if weighted else [])
    with default_dtype(y.dtype):
        for name in ("correct", "smooth", "forward"):
            found, expected = (getattr(f, name)(*given) for f in (ours, reference))
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_a_layer_in_several_places_stays_one() -> None:
    model = Shared().double()
    ours = convert(model)
    assert ours.first is ours.rest[1] is ours.rest[2]["again"] is ours.plain[0]
    assert type(ours.first).__name__ == "Converted"
    assert type(ours.linear) is nn.Linear
    assert ours.linear.weight is not model.linear.weight
    assert type(model.first) is pyg.GCNConv
    conv = nn.Conv2d(P, P, 3, padding=1)
    ours = convert(nn.Sequential(conv, nn.ReLU(), conv))
    assert ours[0] is ours[2]


def test_other_modules_stay_as_they_are() -> None:
    kinds = [type(m) for m in convert(resnet())]
    assert kinds[1:4] == [nn.BatchNorm2d, nn.ReLU, nn.MaxPool2d]
    assert kinds[6:] == [nn.AdaptiveAvgPool2d, nn.Flatten, nn.Linear]


@pytest.mark.parametrize("name", ["ResNet", "U-Net", "GCN", "GAT", "patches by Unfold"])
@pytest.mark.sweep(2)
def test_checkpoints_and_copies(name: str) -> None:
    (reference, leaves, call), (other, *_) = model_of(name, False), model_of(name, False)
    saved, ours = through_a_file(reference.state_dict()), convert(other)
    other.load_state_dict(saved)
    assert str(ours.load_state_dict(saved)) == "<All keys matched successfully>"
    same_state(ours, convert(reference))
    same_state(convert(other), convert(reference))
    torch.testing.assert_close(call(ours, *leaves), call(reference, *leaves), rtol=1e-10, atol=1e-10)
    twice = convert(ours)
    twice.load_state_dict(saved)
    for same in (twice, copy.deepcopy(ours)):
        same_state(same, ours)
        torch.testing.assert_close(call(same, *leaves), call(ours, *leaves), rtol=0, atol=0)
        assert repr(same) == repr(ours)


@pytest.mark.parametrize("name", ["ResNet", "MobileNet", "U-Net"])
@pytest.mark.parametrize("of_model", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("of_input", [torch.contiguous_format, torch.channels_last])
@pytest.mark.sweep(4)
def test_memory_format_through_a_model(name: str, of_model: Any, of_input: Any) -> None:
    model, (x,), _ = model_of(name)
    model, x = model.to(memory_format=of_model), x.to(memory_format=of_input)
    found: list[list[tuple[int, ...]]] = []
    kinds = nn.BatchNorm2d | nn.MaxPool2d | GridConv | nn.Conv2d | nn.ConvTranspose2d | nn.AvgPool2d
    for f in (convert(model), model):
        seen: list[tuple[int, ...]] = []
        for part in f.modules():
            if isinstance(part, kinds):
                part.register_forward_hook(lambda module, given, y, seen=seen: seen.append(y.stride()))
        f(x)
        found.append(seen)
    assert found[0] == found[1]


EXPLAINED: dict[str, tuple[Callable[[], nn.Module], int, str | None]] = {  # a model, epochs, and its mask of nodes
    "GCN": (lambda: GCN(P, 8, 2, Q, act=None), 1, "attributes"),
    "GAT": (lambda: GAT(P, 8, 2, Q, act=None, heads=2, add_self_loops=False), 2, "attributes"),
    "GAT, loops": (lambda: GAT(P, 8, 2, Q, act=None, heads=2), 2, "attributes"),
    "graphs and grids": (lambda: Mixed(heads=0), 1, None),  # of which the grid is not masked
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_explainer_masks_reach_the_converted(name: str) -> None:
    make, epochs, of_nodes = EXPLAINED[name]
    model, (edge_index, _) = make().double().eval(), graph()
    config = {"mode": "regression", "task_level": "node", "return_type": "raw"}
    x, masks = features(N, P), []
    for f in (convert(model), model):
        explainer = Explainer(f, GNNExplainer(epochs=epochs), "model", config, of_nodes, "object")
        torch.manual_seed(0)
        masks.append(explainer(x, edge_index, index=2).edge_mask)
    ours, theirs = masks
    assert ours.any()
    plain = edge_index[0] != edge_index[1]  # PyG takes all loops for its own, and masks none
    torch.testing.assert_close(ours[plain], theirs[plain])
    if name.startswith("GAT"):
        torch.testing.assert_close(ours, theirs)


def test_explainer_masks_reach_relations() -> None:
    """PyG's own two layers take no explainer: a mask says how much each edge matters for one node."""
    ours, (edge_index, kind) = convert(made("RGCNConv")).eval(), typed_graph()
    config = {"mode": "regression", "task_level": "node", "return_type": "raw"}
    explainer = Explainer(ours, GNNExplainer(epochs=3), "model", config, "attributes", "object")
    mask = explainer(features(N, P), edge_index, edge_type=kind, index=2).edge_mask
    assert torch.equal(mask > 0, edge_index[1] == 2)


OF_TARGETS: dict[str, list[dict[str, Any]]] = {  # layers whose messages have a term of their target
    "LEConv": [{}, {"bias": False}, {"flow": "target_to_source"}],
    "FiLMConv": [{"act": None}, {"act": None, "aggr": "mean"}],
    "GeneralConv": [
        *(
            {"directed_msg": False, "heads": 2, "aggr": aggr, "attention": yes}
            for aggr in ("add", "mean")
            for yes in (0, 1)
        ),
        {"in_edge_channels": 3},
    ],
    "PointTransformerConv": [{}],
}


@pytest.mark.parametrize(("kind", "options"), [(kind, one) for kind, every in OF_TARGETS.items() for one in every])
def test_masks_reach_whole_messages(kind: str, options: dict[str, Any]) -> None:
    """The terms of targets, too, which are added for all edges at once."""
    edge_index = torch.stack([torch.randint(N, (3 * N,)), torch.arange(3 * N) % N])
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    reference = made(kind, options)
    given, _ = more_inputs(reference, edge_index.shape[1])
    leaves = [features(N, P), *([features(N, 3)] if kind == "PointTransformerConv" else []), *given.values()]

    def call(f: Any, mask: Tensor, x: Tensor, *more: Tensor) -> Tensor:
        set_masks(f, mask, edge_index, apply_sigmoid=False)
        y: Tensor = f(x, *more, edge_index) if kind == "PointTransformerConv" else f(x, edge_index, *more)
        clear_masks(f)
        return y

    agree(Case(convert(reference), reference, [features(edge_index.shape[1]), *leaves], call))


@pytest.mark.parametrize("kind", ["GATConv", "TransformerConv", "RGATConv"])
def test_weights_are_returned_without_the_mask(kind: str) -> None:
    """An explainer's mask is of messages, and not of the weights that a layer returns."""
    edge_index = torch.stack([torch.arange(N), (torch.arange(N) + 1) % N])
    reference, mask = made(kind), torch.linspace(-1, 1, N)
    more = {"edge_type": torch.arange(N) % 2} if kind == "RGATConv" else {}

    def call(f: Any, x: Tensor) -> Tensor:
        set_masks(f, mask.to(x), edge_index)
        y, (_, alpha) = f(x, edge_index, return_attention_weights=True, **more)
        return torch.cat([y.flatten(), alpha.flatten()])

    agree(Case(convert(reference), reference, [features(N, P)], call))


@pytest.mark.parametrize("kind", [pyg.GATConv, pyg.GCNConv, pyg.LEConv])
def test_layers_that_are_not_to_be_explained(kind: Any) -> None:
    """What is said of a layer before the conversion, or after it, is said of all its parts."""
    (edge_index, _), x = graph(), torch.randn(N, P)
    layer = kind(P, Q)
    after, y = convert(layer), layer(x, edge_index)
    layer.explain = after.explain = False
    before, mask = convert(layer), torch.zeros(edge_index.shape[1])
    for f in (before, after):
        set_masks(f, mask, edge_index)
        torch.testing.assert_close(f(x, edge_index), y)
        f.explain = None
        set_masks(f, mask, edge_index)
        assert not torch.allclose(f(x, edge_index), y)


@pytest.mark.parametrize("aggr", ["sum", "mean"])
def test_to_hetero(aggr: str) -> None:
    """A model for each type of edges: all its layers are converted, before or after."""
    keys = [("a", "to", "b"), ("b", "of", "a"), ("a", "in", "a")]
    whole = pyg.to_hetero(GraphSAGE((-1, -1), 8, 2, Q), (["a", "b"], keys), aggr=aggr)
    edges = {k: torch.stack([torch.randint(7 if t == "a" else 4, (20,)) for t in (k[0], k[2])]) for k in keys}
    leaves = [features(7, P), features(4, 3)]

    def call(f: Any, a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([*f({"a": a, "b": b}, edges).values()])

    call(whole.double(), *leaves)  # finds the widths
    drawn(whole)
    ours = convert(whole)
    assert not any(map(convertible, ours.modules()))
    assert sum(isinstance(part, BasisConv) for part in ours.modules()) >= 6
    agree(Case(ours, whole, leaves, call))


@pytest.mark.parametrize(
    "make",
    [
        lambda p, q: pyg.GATConv(p, q, add_self_loops=False),
        lambda p, q: pyg.GATv2Conv(p, q, add_self_loops=False),
        pyg.TransformerConv,
        lambda p, q: pyg.GINConv(nn.Linear(p, q)),
        pyg.GraphConv,
        pyg.LEConv,
        pyg.MFConv,
    ],
    ids=["GAT", "GATv2", "Transformer", "GIN", "GraphConv", "LE", "MF"],
)
def test_to_hetero_of_converted_layers(make: Any) -> None:
    """Layers made of several parts are layers of message passing, too: each type of edges gets one of its own."""
    metadata = (["a", "b"], [("a", "to", "b"), ("b", "of", "a"), ("a", "in", "a")])
    x = {"a": torch.randn(7, P), "b": torch.randn(4, P)}
    edges = {k: torch.stack([torch.randint(len(x[t]), (20,)) for t in (k[0], k[2])]) for k in metadata[1]}
    model = pyg.Sequential(
        "x, edge_index", [(make(P, 8), "x, edge_index -> x"), nn.ReLU(), (make(8, Q), "x, edge_index -> x")]
    )
    peer, ours = pyg.to_hetero(model, metadata), pyg.to_hetero(convert(model), metadata)
    ours.load_state_dict(convert(peer).state_dict())
    torch.testing.assert_close(ours(x, edges), peer(x, edges), rtol=1e-4, atol=1e-5)


def test_messages_are_of_parts() -> None:
    with pytest.raises(ValueError, match=r"a part of the layer that passes messages, conv, got"):
        convert(pyg.TransformerConv(P, Q)).register_message_forward_hook(print)


def test_hetero() -> None:
    keys = [("a", "to", "b"), ("b", "of", "a"), ("a", "in", "b")]
    layers = [pyg.SAGEConv((P, 3), Q), pyg.TransformerConv((3, P), Q), pyg.GATConv((P, 3), Q, add_self_loops=False)]
    model = drawn(pyg.HeteroConv(dict(zip(keys, layers, strict=True))))
    ours = convert(model)
    edge_index = torch.stack([torch.randint(0, 7, (20,)), torch.randint(0, 4, (20,))])
    edges = dict(zip(keys, (edge_index, edge_index.flip(0), edge_index), strict=True))
    agree(
        Case(
            ours,
            model,
            [features(7, P), features(4, 3)],
            lambda f, a, b: torch.cat([*f({"a": a, "b": b}, edges).values()]),
        )
    )
    ours.load_state_dict(model.state_dict())
    same_state(ours, convert(model))


def test_parameters_can_be_made_contiguous() -> None:
    """As the documentation says, for what of torch requires it."""
    ours, x, edge_index = convert(pyg.GATConv(4, 2, heads=2)), torch.randn(3, 4), torch.tensor([[0, 1, 2], [1, 2, 0]])
    expected = ours(x, edge_index)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        nn.utils.parameters_to_vector(ours.parameters())
    for p in ours.parameters():
        p.data = p.data.contiguous()
    torch.testing.assert_close(ours(x, edge_index), expected)
    assert len(nn.utils.parameters_to_vector(ours.parameters())) == sum(p.numel() for p in ours.parameters())
    optimizer = torch.optim.LBFGS(ours.parameters())

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = ours(x, edge_index).pow(2).sum()
        loss.backward()
        return loss

    before = optimizer.step(closure)
    assert closure() < before
