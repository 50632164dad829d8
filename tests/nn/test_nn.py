"""Drop-in layers: PyG's own in every respect, and the same function."""

import ast
import copy
import gc
import inspect
import pickle
import re
import subprocess
import sys
import weakref
from importlib import import_module
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch_geometric import EdgeIndex, seed_everything
from torch_geometric.data import HeteroData
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.explain.algorithm.utils import clear_masks, set_masks

import pyg_basisconv.nn as drop_in
from pyg_basisconv import BasisConv, GridConv, bases, convert, mechanisms, theta as thetas
from pyg_basisconv.__main__ import main
from pyg_basisconv.bases.dropout import AtOnce
from pyg_basisconv.convert import registry
from pyg_basisconv.convert.hypergraphs import Hyperedges
from pyg_basisconv.convert.refused import PARTLY, REFUSED
from pyg_basisconv.convert.spellings import spellings
from pyg_basisconv.nn import DropIn
from pyg_basisconv.nn.evaluator import Evaluator, Place, _view
from pyg_basisconv.verify import Case, N, P, Q, compare, drawn, features, graph, made
from pyg_basisconv.verify.recipes import constructed
from tests.convert.conversion import ENDS, agree, evaluated, example, like, over, runner, same_state, through_a_file
from tests.convert.test_left import LEFT

NAMES = [name for name in drop_in.__all__ if name not in ("DropIn", "Dropout", "drop_in")]
pytestmark = pytest.mark.filterwarnings("ignore:Converting sparse tensor to CSR", "ignore:Sparse invariant checks")


def original(name: str) -> Any:
    return getattr(drop_in, name).original


@pytest.fixture
def exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one import, replaced."""
    for name in NAMES:
        monkeypatch.setattr(pyg if hasattr(pyg, name) else nn, name, getattr(drop_in, name))


# Those that `pyg_basisconv.nn` has by their names: of a name that PyG and torch both have, Linear, it has PyG's.
NAMED = [p for p in ENDS if p.values[0] != "Linear"]

# Those that drop weights of attention in training.
DROPPING = ["GATConv", "GATv2Conv", "TransformerConv", "FAConv", "SuperGATConv", "HEATConv", "HANConv", "DenseGATConv"]
DROPPING += ["RGATConv", "HypergraphConv"]


# --- the same function ---


@pytest.mark.parametrize(("kind", "options"), NAMED)
@pytest.mark.sweep(20)
def test_the_same_seed_gives_the_same_layer(kind: str, options: dict) -> None:
    """`test_recipes.py` compares what it computes."""
    found = []
    for kind_of in (original(kind), getattr(drop_in, kind)):
        torch.manual_seed(7)
        found.append((constructed(kind_of, options), torch.get_rng_state()))
    (reference, after), (ours, state) = found
    for layer in (reference, ours):
        if hasattr(layer, "l2"):  # which PyG leaves as the memory is
            nn.init.zeros_(layer.l2)
    assert isinstance(ours, DropIn)
    assert isinstance(ours, type(reference))
    assert torch.equal(state, after)
    assert str(ours) == str(reference)
    assert ours.extra_repr() == reference.extra_repr()
    tables = [(path, table) for path, one in reference.named_modules() for table in (one._parameters, one._buffers)]
    names = [
        ".".join(filter(None, (path, name))) for path, table in tables for name, t in table.items() if t is not None
    ]
    assert list(ours.state_dict()) == list(reference.state_dict()) == names
    same_state(ours, reference)
    if hasattr(reference, "reset_parameters"):
        for module in (ours, reference):
            torch.manual_seed(8)
            module.reset_parameters()
        same_state(ours, reference)


@pytest.mark.parametrize(("kind", "options"), NAMED)
@pytest.mark.sweep(8)
def test_states_copies_and_files(kind: str, options: dict) -> None:
    case = example(kind, options)
    reference, run = case.reference, runner(case)
    expected = run(reference)
    ours = like(drawn(copy.deepcopy(reference)))
    run(ours)
    assert str(ours.load_state_dict(through_a_file(reference.state_dict()))) == "<All keys matched successfully>"
    for same in (ours, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        torch.testing.assert_close(run(same), expected)
        assert type(same) is getattr(drop_in, kind)
        assert evaluated(same)
        assert not any(a is b for a in same.parameters() for b in ours.parameters()) or same is ours
    back = drawn(copy.deepcopy(reference))
    assert str(back.load_state_dict(ours.state_dict())) == "<All keys matched successfully>"
    torch.testing.assert_close(run(back), expected)
    new = convert(ours)
    assert str(new) == str(convert(reference))
    assert any(isinstance(part, BasisConv | GridConv) for part in new.modules())


def test_a_transformer_takes_it(exchanged: None) -> None:
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0).double()
    own = copy.deepcopy(encoder)
    encoder.self_attn = like(encoder.self_attn)
    x = features(2, 5, 8)
    agree(Case(encoder, own, [x]))
    encoder.eval(), own.eval()
    with torch.no_grad():
        torch.testing.assert_close(encoder(x), own(x))


# --- what it looks like ---


@pytest.mark.parametrize("name", NAMES)
def test_it_looks_like_the_original(name: str) -> None:
    ours, theirs = getattr(drop_in, name), original(name)
    assert issubclass(ours, theirs)
    assert ours.__name__ == ours.__qualname__ == name
    assert inspect.signature(ours) == inspect.signature(theirs)
    assert inspect.signature(ours.__init__) == inspect.signature(theirs.__init__)
    assert inspect.signature(ours.forward) == inspect.signature(theirs.forward)
    assert (ours.__doc__, ours.forward.__doc__) == (theirs.__doc__, theirs.forward.__doc__)
    assert getattr(drop_in, name) is ours  # one class
    assert name in dir(drop_in)


def test_editors_see_all_of_them() -> None:
    tree = ast.parse(inspect.getsource(drop_in))
    shown = next(node for node in tree.body if isinstance(node, ast.If)).body
    names: list[str] = []
    for node in shown:
        assert isinstance(node, ast.ImportFrom)
        if node.names[0].name == "*":  # all names of PyG, of which those without a recipe are PyG's own
            names += import_module(str(node.module)).__all__
        else:
            assert all(alias.asname == alias.name for alias in node.names)
            names += [alias.name for alias in node.names]
    assert set(NAMES) <= set(names)
    assert all(hasattr(pyg, name) or name in NAMES for name in names)


# --- what has no recipe ---


@pytest.mark.parametrize("name", [name for name in pyg.conv.classes if name not in NAMES])
def test_every_layer_is_there_or_refused_with_a_reason(name: str) -> None:
    if name in ("HeteroConv", "GPSConv", "MessagePassing"):  # a drop-in is given to them, or derived from them
        assert getattr(drop_in, name) is getattr(pyg, name)
        return
    if getattr(pyg, name).__name__ in NAMES:  # another name of it
        assert getattr(drop_in, name) is getattr(drop_in, getattr(pyg, name).__name__)
        return
    with pytest.raises(
        ImportError, match=f"{name}: .*; the nearest that is here is .*; torch_geometric.nn has {name} itself"
    ) as error:
        exec(f"from pyg_basisconv.nn import {name}")
    nearest = REFUSED[name].nearest
    assert any(known in nearest for known in NAMES)
    assert str(error.value).count("no BasisConv") == 0


def test_every_layer_with_a_recipe_in_part_is_tried() -> None:
    """The reasons of `test_left.py` have what their recipes refuse."""
    assert PARTLY.keys() - {"SplineConv"} <= {reason.split(":")[0] for reason in LEFT}
    assert PARTLY.keys() & REFUSED.keys() == {"SplineConv"}  # without pyg-lib there is none of PyG to convert


def test_what_is_no_layer_is_pygs_own() -> None:
    from pyg_basisconv.nn import BatchNorm, Linear, Sequential, global_mean_pool, to_hetero

    assert (BatchNorm, Linear, Sequential) == (pyg.BatchNorm, pyg.Linear, pyg.Sequential)
    assert (global_mean_pool, to_hetero) == (pyg.global_mean_pool, pyg.to_hetero)
    assert drop_in.GCN is pyg.GCN
    with pytest.raises(ImportError, match="cannot import name 'GTAConv'"):
        exec("from pyg_basisconv.nn import GTAConv")
    with pytest.raises(AttributeError, match="has no attribute 'GTAConv'"):
        _ = drop_in.GTAConv
    for name, meant in (("GCNconv", "GCNConv"), ("GatConv", "GATConv")):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'; did you mean '{meant}'"):
            getattr(drop_in, name)


OF_OPTIONS = ("aggr=", "node_dim=", "dropout=", "project=", "flow=", "divisor_", "its activation", "its CGConv")
OF_OPTIONS += ("aggregators=", "its messages pass", "its scores", "separate_", "it drops edges", "its network")


@pytest.mark.parametrize("reason", [r for r in LEFT if r.split(": ")[1].startswith(OF_OPTIONS)])
def test_options_that_no_recipe_covers(reason: str, exchanged: None) -> None:
    name, told = reason.split(": ", 1)
    with pytest.raises(
        ValueError, match=rf"{name}: .*{re.escape(told)}.*; import this one from torch(_geometric)?\.nn$"
    ):
        LEFT[reason]()


def test_a_rule_that_computes_numbers_makes_no_drop_in(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twice(nn.Linear):
        pass

    def twice(layer: Any) -> nn.Module:
        conv = BasisConv(3, 2, bases.Identity(), bias=False)
        conv.theta.weight = nn.Parameter(2 * layer.weight.t().unsqueeze(0))
        return conv

    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    registry.rule(Twice)(twice)
    with pytest.raises(ValueError, match=r"Twice: .*its rule computes new numbers"):
        drop_in.drop_in(Twice)(3, 2)


# --- in PyG ---


class Net(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        made: Any = getattr(pyg, kind)
        given: dict[str, Any] = {"add_self_loops": False} if "GAT" in kind else {}
        self.first, self.second = made((-1, -1), 8, **given), made((-1, -1), Q, **given)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


def hetero() -> HeteroData:
    seed_everything(1)
    data = HeteroData(a={"x": torch.randn(6, P)}, b={"x": torch.randn(4, P + 1)})
    data["a", "to", "b"].edge_index = torch.stack([torch.randint(6, (9,)), torch.randint(4, (9,))])
    data["b", "to", "a"].edge_index = torch.stack([torch.randint(4, (9,)), torch.randint(6, (9,))])
    data["a", "of", "a"].edge_index = torch.randint(6, (2, 9))
    return data


@pytest.mark.parametrize("kind", ["SAGEConv", "GATConv", "GATv2Conv", "GraphConv", "TransformerConv"])
@pytest.mark.sweep(2)
def test_to_hetero(kind: str, request: Any) -> None:
    data, found = hetero(), []
    for _ in range(2):
        seed_everything(2)
        model = pyg.to_hetero(Net(kind), data.metadata())
        with torch.no_grad():
            first = model(data.x_dict, data.edge_index_dict)  # which tells the widths
        y = model(data.x_dict, data.edge_index_dict)
        torch.testing.assert_close(y, first)
        sum(part.square().sum() for part in y.values()).backward()
        found.append((y, {name: p.grad for name, p in model.named_parameters()}))
        layers = [part for part in model.modules() if isinstance(part, original(kind))]
        request.getfixturevalue("exchanged")
    assert len(layers) == 6
    assert all(isinstance(part, DropIn) and evaluated(part) for part in layers)
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_hetero_conv(request: Any) -> None:
    data, found = hetero(), []
    for _ in range(2):
        seed_everything(2)
        convs = {
            ("a", "to", "b"): pyg.GATConv((P, P + 1), Q, add_self_loops=False),
            ("b", "to", "a"): pyg.SAGEConv((P + 1, P), Q),
            ("a", "of", "a"): pyg.GCNConv(P, Q),
        }
        model = pyg.HeteroConv(convs, aggr="sum")
        y = model(data.x_dict, data.edge_index_dict)
        found.append((y, model.state_dict()))
        request.getfixturevalue("exchanged")
    assert all(isinstance(part, DropIn) and evaluated(part) for part in model.convs.values())
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_sequential(request: Any) -> None:
    x, (edge_index, _) = torch.randn(N, P), graph()
    found = []
    for _ in range(2):
        torch.manual_seed(2)  # not Python's generator, which PyG names the model's module by
        steps = [
            (pyg.GCNConv(P, 8), "x, edge_index -> h"),
            nn.ReLU(inplace=True),
            (pyg.GATConv(8, Q, heads=2), "h, edge_index -> h"),
        ]
        model = pyg.Sequential("x, edge_index", steps)
        y = model(x, edge_index)
        y.square().sum().backward()
        found.append((y, {name: p.grad for name, p in model.named_parameters()}))
        request.getfixturevalue("exchanged")
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_models_and_directed_layers_take_it(exchanged: None) -> None:
    x, (edge_index, _) = features(N, P), graph()
    ours = pyg.DirGNNConv(drop_in.SAGEConv(P, Q)).double()
    assert isinstance(ours.conv_in, DropIn)
    plain = pyg.DirGNNConv(original("SAGEConv")(P, Q)).double()
    plain.load_state_dict(ours.state_dict())
    agree(Case(ours, plain, [x], lambda f, x: f(x, edge_index)))


@pytest.mark.parametrize("kind", ["GCNConv", "SAGEConv", "GATConv", "GATv2Conv", "TransformerConv", "ChebConv"])
def test_lazy_layers(kind: str) -> None:
    x, (edge_index, _) = torch.randn(N, P), graph()
    more = (2,) if kind == "ChebConv" else ()
    found = []
    for make in (original(kind), getattr(drop_in, kind)):
        torch.manual_seed(3)
        lazy = make(-1, Q, *more)
        found.append((lazy(x, edge_index), lazy(x, edge_index), dict(lazy.state_dict())))
    torch.testing.assert_close(found[0], found[1])
    assert evaluated(lazy)


WIDTHS_OF_CALLS = {  # layers whose options still say -1 after the first call
    "FeaStConv": ("FeaStConv", (-1, Q), {"heads": 2}),
    "FAConv": ("FAConv", (-1,), {}),
    "DenseGATConv": ("DenseGATConv", (-1, Q), {"heads": 2}),
    "HypergraphConv": ("HypergraphConv", (-1, Q), {"use_attention": True}),
    "GATConv of edges": ("GATConv", (P, Q), {"heads": 2, "edge_dim": -1}),
    "GATv2Conv of edges": ("GATv2Conv", (P, Q), {"edge_dim": -1}),
    "TransformerConv of edges": ("TransformerConv", (-1, Q), {"heads": 2, "edge_dim": -1}),
    "GeneralConv of edges": ("GeneralConv", (-1, Q, -1), {"heads": 2, "attention": True}),
}


@pytest.mark.parametrize("case", WIDTHS_OF_CALLS)
def test_lazy_layers_have_their_widths_from_their_matrices(case: str) -> None:
    kind, args, options = WIDTHS_OF_CALLS[case]
    x, (edge_index, _) = features(N, P), graph()
    given: dict[str, Any] = {"edge_index": edge_index}
    if kind == "DenseGATConv":
        given = {"adj": torch.ones(N, N)}
    elif kind == "HypergraphConv":
        given = {"hyperedge_index": edge_index, "hyperedge_attr": features(N, P)}
    elif kind == "FAConv":
        given["x_0"] = features(N, P)
    elif "edges" in case:
        given["edge_attr"] = features(edge_index.shape[1], 3)
    made = []
    for layer in (original(kind), getattr(drop_in, kind)):
        torch.manual_seed(3)
        made.append(layer(*args, **options).double())
        made[-1](x, **given)
    reference, ours = made
    agree(Case(ours, reference, [x], lambda f, x: f(x, **given)), 1e-10, convert(reference))
    assert evaluated(ours)


def test_a_lazy_signed_layer_cannot_tell_its_signs() -> None:
    x, edges = torch.randn(N, 2 * P), graph()[0]
    with pytest.raises(ValueError, match=r"SignedConv: .* in_channels=-1 does not say how many channels of x belong"):
        drop_in.SignedConv(-1, Q, first_aggr=False)(x, edges, edges)


def test_a_lazy_layer_with_other_options_says_so_in_each_call() -> None:
    lazy = drop_in.SAGEConv(-1, Q, aggr="max")
    for _ in range(3):
        with pytest.raises(ValueError, match=r"SAGEConv: .*aggr='max'"):
            lazy(torch.randn(N, P), graph()[0])


def test_options_of_a_layer_that_was_lazy_may_change() -> None:
    """As those of others: PyG's code computes those that no recipe covers."""
    (edge_index, _), x, lazy = graph(), torch.randn(N, P), drop_in.SAGEConv(-1, Q)
    lazy(x, edge_index)
    lazy.aggr_module = pyg.MaxAggregation()
    peer = original("SAGEConv")(P, Q, aggr="max")
    peer.load_state_dict(lazy.state_dict())
    torch.testing.assert_close(lazy(x, edge_index), peer(x, edge_index))


def test_a_lazy_layer_waits_for_every_type_of_nodes() -> None:
    """A sample without nodes of some type leaves their width unknown; the layer computes as PyG's until they come."""
    relations = [("user", "rates", "film"), ("critic", "rates", "film")]
    metadata = (["user", "film", "critic"], relations)
    made = []
    for cls in (original("HGTConv"), drop_in.HGTConv):
        torch.manual_seed(3)
        made.append(cls(-1, 2 * Q, metadata, heads=2))
    x = {"user": torch.randn(4, P), "film": torch.randn(3, P + 1)}
    edges = {relations[0]: torch.tensor([[0, 1, 3], [2, 0, 2]])}
    more = {relations[1]: torch.tensor([[0, 1], [1, 1]])}
    for x_dict, edge_index_dict in ((x, edges), (x, edges), ({**x, "critic": torch.randn(2, 5)}, edges | more)):
        found = []
        for layer in made:
            torch.manual_seed(3)
            found.append(layer(x_dict, edge_index_dict))
        torch.testing.assert_close(*found)
    assert evaluated(made[1])


# --- what may be done to a layer ---


def other(name: str, *args: Any, **options: Any) -> tuple[Any, Any]:
    reference = drawn(original(name)(*args, **options))
    return like(reference), reference


def both(modules: tuple[Any, Any], change: Any) -> None:
    """The same change of both, after a call, is a change of both."""
    x, (edge_index, _) = features(N, P), graph()
    ours, reference = modules
    ours.edges = reference.edges = edge_index.shape[1]
    before = ours(x, edge_index)
    assert evaluated(ours)
    change(ours), change(reference)
    after = ours(x, edge_index)
    torch.testing.assert_close(after, reference(x, edge_index))
    assert not torch.allclose(before, after)


def halve(p: nn.Parameter) -> None:
    with torch.no_grad():
        p.mul_(0.5)


def halved(linear: nn.Module) -> nn.Module:
    new = copy.deepcopy(linear)
    halve(new.weight)
    return new


def masked(layer: Any, edges: int) -> None:
    layer._edge_mask, layer.explain = torch.zeros(edges).double(), True


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


CHANGES = {
    "in place": lambda f: halve(f.lin.weight),
    "data": lambda f: setattr(f.lin.weight, "data", 3 * f.lin.weight.data),
    "transposed data": lambda f: setattr(f.lin.weight, "data", (3 * f.lin.weight.data).t().contiguous().t()),
    "a parameter": lambda f: setattr(f.lin, "weight", nn.Parameter(3 * f.lin.weight.detach())),
    "a part": lambda f: setattr(f, "lin", halved(f.lin)),
    "an option": lambda f: setattr(f, "negative_slope", -0.7),
    "an aggregation": lambda f: setattr(f, "aggr_module", pyg.MaxAggregation()),
    "a hook inside": lambda f: f.lin.register_forward_hook(lambda module, args, y: 2 * y),
    "a hook of messages": lambda f: f.register_message_forward_hook(lambda module, args, y: 2 * y),
    "a hook outside": lambda f: f.register_forward_hook(lambda module, args, y: 2 * y),
    "a method": lambda f: setattr(f, "message", lambda x_j, alpha: x_j.unsqueeze(0).mean(0)),
    "a parametrization": lambda f: nn.utils.parametrize.register_parametrization(f.lin, "weight", Doubled()),
    "pruning": lambda f: prune.ln_structured(f.lin, "weight", 0.5, n=2, dim=0),
    "a mask": lambda f: masked(f, f.edges),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_seen(name: str) -> None:
    both(other("GATConv", P, Q, heads=2, add_self_loops=name != "a mask"), CHANGES[name])


def tied(f: Any) -> None:
    f.lin_r.weight = f.lin_l.weight


def weight_of(f: Any) -> nn.Parameter:
    torch.manual_seed(8)
    return nn.Parameter(torch.randn_like(f.lin_r.weight))


PARAMETERS = {
    "tied": tied,
    "untied": lambda f: setattr(f.lin_r, "weight", weight_of(f)),
    "no bias": lambda f: setattr(f.lin_l, "bias", None),
    "a bias": lambda f: setattr(f.lin_l, "bias", nn.Parameter(torch.ones(Q).double())),
    "a bias that it has not by default": lambda f: setattr(f.lin_r, "bias", nn.Parameter(torch.ones(Q).double())),
    "a parametrized weight": lambda f: nn.utils.parametrize.register_parametrization(f.lin_l, "weight", Doubled()),
    "a pruned weight": lambda f: prune.ln_structured(f.lin_l, "weight", 0.5, n=2, dim=0),
    "a tensor": lambda f: (delattr(f.lin_l, "weight"), setattr(f.lin_l, "weight", 2 * weight_of(f))),
    "a forward": lambda f: setattr(f.lin_r, "forward", lambda x: 2 * x[:, :1].expand(-1, Q)),
}
STEPS = [
    *((name,) for name in PARAMETERS if name != "untied"),
    *(("tied", "untied"), ("no bias", "a bias"), ("no bias", "a bias that it has not by default")),
]


@pytest.mark.parametrize("early", [True, False], ids=["before the first call", "after it"])
@pytest.mark.parametrize("steps", STEPS, ids=", ".join)
def test_parameters_inside_that_change(steps: tuple[str, ...], early: bool) -> None:
    x, (edge_index, _) = features(N, P).requires_grad_(), graph()
    modules = other("SAGEConv", P, Q)
    if not early:
        modules[0](x, edge_index)
    for step in steps:
        found = []
        for module in modules:
            PARAMETERS[step](module)
            y = module(x, edge_index)
            read = [p for p in module.parameters() if p.requires_grad]
            found.append((y, torch.autograd.grad(y.square().sum(), [x, *read], allow_unused=True)))
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("kind", ["GCNConv", "GATConv", "SAGEConv", "GATv2Conv", "ARMAConv"])
def test_the_first_call_may_be_in_inference_mode(kind: str) -> None:
    """After a checkpoint was loaded, say; or in a layer that was made there."""
    x, (edge_index, _) = features(N, P), graph()
    ours, reference = other(kind, P, Q)
    ours.load_state_dict(reference.state_dict())
    with torch.inference_mode():
        torch.testing.assert_close(ours(x, edge_index), reference(x, edge_index))
    assert evaluated(ours)
    for f in (ours, reference):
        f(x, edge_index).sum().backward()
    torch.testing.assert_close(*([p.grad for p in f.parameters() if p.grad is not None] for f in (ours, reference)))
    with torch.inference_mode():
        inside = type(ours)(P, Q).double()
        inside.load_state_dict(reference.state_dict())
        torch.testing.assert_close(inside(x, edge_index), reference(x, edge_index))


def test_a_parameter_that_pruning_gives_back() -> None:
    x, (edge_index, _) = features(N, P), graph()
    ours, reference = other("SAGEConv", P, Q, project=True)
    for f in (ours, reference):
        prune.ln_structured(f.lin, "weight", 0.5, n=2, dim=0)
        f.double()(x, edge_index)
        prune.remove(f.lin, "weight")
    torch.testing.assert_close(ours(x, edge_index), reference(x, edge_index))


@pytest.mark.parametrize("kind", ["GATConv", "Conv2d"])
def test_a_parametrization_of_its_own(kind: str) -> None:
    """And back: as long as it is there, the layer is PyG's."""
    case = example(kind, {})
    ours, reference = like(case.reference), case.reference
    torch.testing.assert_close(runner(case)(ours), runner(case)(reference))
    for module in (ours, reference):
        nn.utils.parametrize.register_parametrization(module, "bias", Doubled())
    torch.testing.assert_close(runner(case)(ours), runner(case)(reference))
    for module in (ours, reference):
        nn.utils.parametrize.remove_parametrizations(module, "bias")
    torch.testing.assert_close(runner(case)(ours), runner(case)(reference))
    assert evaluated(ours)


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_a_parametrization_that_is_taken_away_after_a_call(kind: str) -> None:
    """Torch keeps the weight that it made."""
    case = example(kind, {})
    modules = like(case.reference), case.reference
    for module in modules:
        nn.utils.parametrize.register_parametrization(module, "weight_ih_l0", Doubled())
        runner(case)(module)
        nn.utils.parametrize.remove_parametrizations(module, "weight_ih_l0")
    torch.testing.assert_close(*[runner(case)(module) for module in modules])
    assert evaluated(modules[0])


@pytest.mark.parametrize(
    ("kind", "options", "part", "name"),
    [("FiLMConv", {"act": None}, "film_skip", "weight"), ("GatedGraphConv", {}, "rnn", "weight_hh")],
)
def test_a_tensor_in_place_of_a_parameter_of_a_kept_part(kind: str, options: Any, part: str, name: str) -> None:
    """As a hypernetwork sets it; and another one later, with its gradient."""
    case = example(kind, options)
    modules = like(case.reference), case.reference
    for factor in (1.2, 0.7):
        made = torch.tensor(factor, dtype=torch.float64, requires_grad=True)
        found = []
        for module in modules:
            owner = getattr(module, part)
            old = getattr(owner, name)
            owner._parameters.pop(name, None)
            setattr(owner, name, torch.linspace(-1, 1, old.numel(), dtype=torch.float64).view_as(old) * made)
            y = runner(case)(module)
            found.append((y, *torch.autograd.grad(y.square().sum(), made, retain_graph=True)))
        torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("normalize", [parametrizations.spectral_norm, parametrizations.weight_norm])
def test_normalised_weights(normalize: Any) -> None:
    """A parametrization of an inner layer, which may have buffers; moved, and taken back."""
    case = example("GCNConv", {})
    modules = like(case.reference), case.reference
    for _ in range(2):
        torch.testing.assert_close(*map(runner(case), modules))
        for module in modules:
            torch.manual_seed(0)
            normalize(module.lin, "weight")
            module.eval()
            runner(case)(module).sum().backward()
            module.double()
        torch.testing.assert_close(*map(runner(case), modules))
        for module in modules:
            nn.utils.parametrize.remove_parametrizations(module.lin, "weight")
    torch.testing.assert_close(*map(runner(case), modules))


class Adapted(nn.Module):
    """A Linear, and a term beside it."""

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear = linear

    weight = property(lambda self: self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + x.mean(-1, keepdim=True)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("GCNConv", "lin"),
        ("SAGEConv", "lin_l"),
        ("GATv2Conv", "lin_l"),
        ("PDNConv", "lin"),
        ("DenseSAGEConv", "lin_rel"),
    ],
)
@pytest.mark.parametrize("early", [False, True], ids=["at-once", "after-a-call"])
def test_another_module_in_the_place_of_a_linear(kind: str, name: str, early: bool) -> None:
    """As adapters of low rank, and quantisation, put it there."""
    case = example(kind, {})
    modules = like(case.reference), copy.deepcopy(case.reference)
    if early:
        torch.testing.assert_close(*map(runner(case), modules))
    for module in modules:
        setattr(module, name, Adapted(getattr(module, name)))
    torch.testing.assert_close(*map(runner(case), modules))


def test_parts_that_are_changed_in_place() -> None:
    def steeper(f: Any) -> None:
        f.act.negative_slope = 0.9

    both(other("ResGatedGraphConv", P, Q, act=nn.LeakyReLU(0.1)), steeper)

    def stronger(f: Any) -> None:
        f.beta.fill_(3.0)

    both(other("AGNNConv", requires_grad=False), stronger)

    def without_weights(f: Any) -> None:
        f.conv_in.normalize = f.conv_out.normalize = False

    both(other("DirGNNConv", original("GCNConv")(P, Q)), without_weights)


STATISTICS = {
    "in place": lambda norm: norm.running_mean.fill_(0.5),
    "another tensor": lambda norm: setattr(norm, "running_mean", torch.full((P,), 0.5).double()),
    "none": lambda norm: setattr(norm, "running_mean", None) or setattr(norm, "running_var", None),
    "learnt": lambda norm: norm(torch.arange(3.0 * P).double().view(3, P)),
    "forgotten": lambda norm: norm.reset_running_stats(),
}


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("change", STATISTICS)
def test_statistics_of_a_norm(change: str, mode: str) -> None:
    x, (edge_index, _) = features(N, P), graph()
    modules = other("GINConv", nn.Sequential(nn.Linear(P, P), nn.BatchNorm1d(P), nn.ReLU(), nn.Linear(P, Q)))
    for module in modules:
        module(x, edge_index), module(x, edge_index)
        STATISTICS[change](module.nn[1])
        getattr(module, mode)()
    for _ in range(2):
        torch.testing.assert_close(*(module(x, edge_index) for module in modules))
    assert evaluated(modules[0])
    same_state(*modules)


def test_statistics_in_a_functional_call() -> None:
    """Those that are given are read, and in training they are the ones that change."""
    x, (edge_index, _) = features(N, P), graph()
    modules = other("GINConv", nn.Sequential(nn.Linear(P, P), nn.BatchNorm1d(P), nn.ReLU(), nn.Linear(P, Q)))
    for training in (False, True):
        found = []
        for module in modules:
            module.train(training)(x, edge_index)
            given = {name: 2 + b.detach() for name, b in module.named_buffers()}
            found.append((torch.func.functional_call(module, given, (x, edge_index)), given))
        torch.testing.assert_close(*found)
    same_state(*modules)


def test_a_method_may_be_given_back() -> None:
    x, (edge_index, _) = features(N, P), graph()
    ours, _ = other("SAGEConv", P, Q)
    before = ours(x, edge_index)
    ours.message = lambda x_j: 2 * x_j
    assert not torch.allclose(ours(x, edge_index), before)
    assert not evaluated(ours)
    del ours.message
    torch.testing.assert_close(ours(x, edge_index), before, rtol=0, atol=0)
    assert evaluated(ours)


def test_a_replica_is_pygs_own() -> None:
    x, (edge_index, _) = features(N, P), graph()
    ours, reference = other("SAGEConv", P, Q)
    ours(x, edge_index)
    replica = ours._replicate_for_data_parallel()
    for name, part in ours.named_children():
        replica._modules[name] = part
    torch.testing.assert_close(replica(x, edge_index), reference(x, edge_index), rtol=0, atol=0)


def test_others_may_be_tied_and_frozen() -> None:
    x, (edge_index, _) = features(N, P), graph()
    ours, reference = other("GraphConv", P, Q)
    for module in (ours, reference):
        module(x, edge_index)
        module.lin_root = module.lin_rel
        module.lin_rel.bias.requires_grad_(False)
        module(x, edge_index).square().sum().backward()
        assert module.lin_rel.bias.grad is None
    torch.testing.assert_close(ours.lin_rel.weight.grad, reference.lin_rel.weight.grad)
    for module in (ours, reference):
        module.requires_grad_(False)
        assert not module(x, edge_index).requires_grad


def test_views_of_all_of_a_parameter_copy_nothing_on_their_way_back() -> None:
    whole = torch.arange(24.0).view(4, 6).requires_grad_()
    for part in (
        *(whole, whole.t(), whole.view(2, 2, 6), whole.view(1, 4, 6).mT, whole.view(2, 2, 6).mT, whole.flatten()),
        *(t.permute(p) for t in (whole.view(4, 2, 3), whole.view(2, 2, 6)) for p in permutations(range(3))),
    ):
        view = _view(Place.of(whole), Place.of(part))(whole)
        assert torch.equal(view, part)
        assert view.is_set_to(part)
        assert "AsStrided" not in str(view.grad_fn.next_functions) + str(view.grad_fn)
    for part in (whole[1:], whole[:, 2:].t(), whole[0], whole.detach().t().contiguous().t()[1:3]):
        other = part if part._base is None else part._base
        assert torch.equal(_view(Place.of(other), Place.of(part))(other), part)


ALL_OF_IT: dict[str, Any] = {
    "in place": lambda f: [halve(p) for p in f.parameters()],
    "data": lambda f: [setattr(p, "data", 2 * p.data) for p in f.parameters()],
    "data in place": lambda f: [p.data.mul_(2) for p in f.parameters()],
    "a state": lambda f: f.load_state_dict({name: 2 * t for name, t in f.state_dict().items()}),
    "a state, assigned": lambda f: f.load_state_dict({k: 2 * t for k, t in f.state_dict().items()}, assign=True),
    "frozen": lambda f: [halve(p.requires_grad_(p.dim() == 1)) for p in f.parameters()],
    "another precision": lambda f: f.float().double(),
}


@pytest.mark.parametrize("change", ALL_OF_IT)
@pytest.mark.parametrize("kind", ["GCNConv", "GraphConv", "ChebConv", "RGCNConv", "TransformerConv"])
def test_weights_that_a_call_joins_or_views_are_those_of_now(kind: str, change: str) -> None:
    case = example(kind, {})
    modules = like(case.reference), case.reference
    runner(case)(modules[0])
    found = []
    for f in modules:
        ALL_OF_IT[change](f)
        y = case.call(f, *case.leaves)
        learns = [p for p in f.parameters() if p.requires_grad]
        found.append((y, torch.autograd.grad(y.square().sum(), learns, allow_unused=True)))
    torch.testing.assert_close(*found)
    assert evaluated(modules[0])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", ["GCNConv", "GraphConv", "ChebConv", "GATConv"])
def test_optimisers_that_write_in_one_kernel(kind: str, fused: bool) -> None:
    case, found = example(kind, {}), []
    for f in (like(case.reference), case.reference):
        optimizer = torch.optim.Adam(f.parameters(), lr=0.1, fused=fused, foreach=not fused)
        for _ in range(3):
            optimizer.zero_grad()
            case.call(f, *case.leaves).square().mean().backward()
            optimizer.step()
        found.append((case.call(f, *case.leaves), [p.grad for p in f.parameters()]))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("kind", ["GCNConv", "GraphConv", "ChebConv", "RGCNConv", "GATConv", "TransformerConv"])
def test_second_derivatives_of_all_parameters(kind: str) -> None:
    case, found = example(kind, {}), []
    for f in (like(case.reference), case.reference):
        parameters = list(f.parameters())
        first = torch.autograd.grad(case.call(f, *case.leaves).pow(3).sum(), parameters, create_graph=True)
        loss = sum((i + 1) * g.square().sum() for i, g in enumerate(first))
        found.append((first, torch.autograd.grad(loss, parameters, allow_unused=True)))
    torch.testing.assert_close(*found)


def test_a_shallow_copy_reads_its_own_parameters() -> None:
    x, (edge_index, _) = features(N, P), graph()
    ours, reference = other("GATConv", P, Q)
    before, found = ours(x, edge_index), []
    for f in (ours, reference):
        new = copy.copy(f)
        new._parameters = {name: p if p is None else nn.Parameter(2 * p.detach()) for name, p in f._parameters.items()}
        found.append(new(x, edge_index))
    torch.testing.assert_close(*found)
    torch.testing.assert_close(ours(x, edge_index), before)
    assert not torch.allclose(found[0], before)


@pytest.mark.parametrize("kind", ["GCNConv", "GraphConv", "GATConv"])
def test_it_dies_at_once(kind: str) -> None:
    """What a layer keeps of its calls does not hold the layer."""
    x, (edge_index, _) = torch.randn(N, P), graph()
    ours = getattr(drop_in, kind)(P, Q)
    for _ in range(3):
        ours(x, edge_index)
    there = [weakref.ref(ours), *map(weakref.ref, ours.parameters())]
    gc.collect()
    gc.disable()
    try:
        del ours
        assert all(one() is None for one in there)
    finally:
        gc.enable()


def test_it_moves_and_changes_its_precision() -> None:
    x, (edge_index, _) = features(N, P), graph()
    ours, reference = other("GATv2Conv", P, Q, heads=2)
    ours(x, edge_index)
    ours.float(), reference.float()
    torch.testing.assert_close(ours(x.float(), edge_index), reference(x.float(), edge_index))
    conv = drop_in.Conv2d(3, 4, 3)
    image = torch.randn(2, 3, 6, 6)
    before = conv(image)
    conv.to(memory_format=torch.channels_last)
    torch.testing.assert_close(conv(image), before)
    assert conv(image).is_contiguous(memory_format=torch.channels_last)


def test_functional_call_and_transforms() -> None:
    x, (edge_index, _) = features(N, P), graph()
    ours, reference = other("GraphConv", P, Q)
    given = {name: 2 * p.detach() for name, p in ours.named_parameters()}

    def loss(given: dict, module: nn.Module) -> Tensor:
        return torch.func.functional_call(module, given, (x, edge_index)).square().sum()

    torch.testing.assert_close(loss(given, ours), loss(given, reference))
    torch.testing.assert_close(torch.func.grad(loss)(given, ours), torch.func.grad(loss)(given, reference))
    torch.testing.assert_close(ours(x, edge_index), reference(x, edge_index))  # its own again


class Greatest(drop_in.SAGEConv):
    """Messages of one's own."""

    def message(self, x_j: Tensor) -> Tensor:
        return x_j.square()


class Scaled(drop_in.GCNConv):
    """A layer that does more than the one it is derived from."""

    def __init__(self, P: int, Q: int, scale: float) -> None:
        super().__init__(P, Q)
        self.scale = scale

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.scale * super().forward(x, edge_index)


def test_subclasses() -> None:
    x, (edge_index, _) = torch.randn(N, P), graph()
    squares, plain = Greatest(P, Q), original("SAGEConv")(P, Q)
    plain.load_state_dict(squares.state_dict())
    expected = plain.lin_l(torch.zeros(N, P).index_add(0, edge_index[1], x.square()[edge_index[0]]))
    count = torch.bincount(edge_index[1], minlength=N).clamp(min=1).unsqueeze(1)
    expected = plain.lin_l(torch.zeros(N, P).index_add(0, edge_index[1], x.square()[edge_index[0]]) / count)
    torch.testing.assert_close(squares(x, edge_index), expected + plain.lin_r(x))
    scaled = Scaled(P, Q, 3.0)
    assert isinstance(scaled, drop_in.GCNConv)
    gcn = original("GCNConv")(P, Q)
    gcn.load_state_dict(scaled.state_dict())
    torch.testing.assert_close(scaled(x, edge_index), 3 * gcn(x, edge_index))
    assert evaluated(scaled)


@pytest.mark.parametrize(
    ("kind", "options"), over(lambda kind, sweep: [o for o in sweep if kind in DROPPING and not o.get("mod")])
)
@pytest.mark.sweep(12)
def test_dropout_draws_what_the_layer_draws(kind: str, options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn_here = []

    def counted(*args: Any) -> Tensor:
        drawn_here.append(args)
        return factors(*args)

    factors = AtOnce.factors
    monkeypatch.setattr(AtOnce, "factors", counted)
    case, states = example(kind, options | {"dropout": 0.5}), []

    def call(f: nn.Module, *leaves: Tensor) -> Tensor:
        torch.manual_seed(4)
        y = case.call(f.train(), *leaves)
        states.append(torch.get_rng_state())
        return y

    agree(case._replace(call=call), 1e-10, like(case.reference))
    assert len({tuple(state.tolist()) for state in states}) == 1
    per_call = 4 if kind == "HANConv" else int(options.get("use_attention", kind != "HypergraphConv"))
    assert len(drawn_here) == per_call * (1 if kind == "SuperGATConv" else 2)  # which draws pairs of nodes, too


def after_a_seed(layer: nn.Module, *args: Any, **kwargs: Any) -> tuple[Any, Tensor]:
    torch.manual_seed(4)
    return layer(*args, **kwargs), torch.get_rng_state()


@pytest.mark.parametrize("kind", ["GINConv", "NNConv", "PointTransformerConv"])
def test_dropout_of_a_network_draws_what_the_layer_draws(kind: str) -> None:
    x, (edge_index, _) = features(N, P), graph()
    made_with = {
        "GINConv": lambda layer: layer(nn.Sequential(nn.Linear(P, 5), nn.Dropout(0.5), nn.Linear(5, Q))),
        "NNConv": lambda layer: layer(P, Q, nn.Sequential(nn.Linear(2, 5), nn.Dropout(0.5), nn.Linear(5, P * Q))),
        "PointTransformerConv": lambda layer: layer(P, Q, attn_nn=nn.Sequential(nn.Linear(Q, Q), nn.Dropout(0.5))),
    }[kind]
    more = {
        "NNConv": {"edge_attr": features(edge_index.shape[1], 2)},
        "PointTransformerConv": {"pos": features(N, 3)},
    }.get(kind, {})
    ours, reference = (made_with(getattr(layers, kind)).double() for layers in (drop_in, pyg))
    reference.load_state_dict(ours.state_dict())
    found = [after_a_seed(layer, x, edge_index=edge_index, **more) for layer in (ours, reference)]
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("options", registry.turned_round(pyg.APPNP, fixed=["cached"]), ids=str)
def test_dropout_of_steps_draws_what_the_layer_draws(options: dict) -> None:
    """Each drops some of the edges that the one before left."""
    x, (edge_index, weight) = features(N, P), graph()
    ours, reference = other("APPNP", 3, 0.2, dropout=0.5, **options)
    for layer in (ours, convert(reference)):
        assert not torch.equal(layer(x, edge_index, weight), layer(x, edge_index, weight))
        agree(Case(layer, reference, [x, weight], lambda f, x, w: after_a_seed(f, x, edge_index, w)[0]))
        torch.testing.assert_close(*(after_a_seed(f, x, edge_index, weight) for f in (layer, reference)))
        torch.testing.assert_close(*(f.eval()(x, edge_index, weight) for f in (layer, reference)))
        layer.train(), reference.train()
    assert evaluated(ours)


@pytest.mark.parametrize("options", [{}, {"normalize": False}], ids=str)
def test_steps_that_drop_everything(options: dict) -> None:
    x, (edge_index, _) = features(N, P), graph()
    matrix = torch.sparse_coo_tensor(edge_index.flip(0), torch.ones(edge_index.shape[1]).double(), (N, N))
    layer = convert(pyg.APPNP(3, 0.2, dropout=1.0, **options))
    for edges in (edge_index, matrix.to_sparse_csr(), EdgeIndex(edge_index)):
        torch.testing.assert_close(layer(x, edges), 0.2 * x)


@pytest.mark.parametrize("explained", [False, True], ids=["as it is", "explained"])
@pytest.mark.parametrize("kind", ["GATConv", "GATv2Conv", "TransformerConv", "RGATConv"])
def test_weights_are_returned_of_the_same_draw(kind: str, explained: bool) -> None:
    x, (edge_index, _) = features(N, P), graph()
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    more = {"edge_type": torch.arange(edge_index.shape[1]) % 3} if kind == "RGATConv" else {}
    options = {"num_relations": 3} if more else {} if kind == "TransformerConv" else {"add_self_loops": False}
    ours, reference = other(kind, P, Q, heads=2, dropout=0.5, **options)
    converted, mask = convert(reference), nn.Parameter(features(edge_index.shape[1]))
    found = []
    for layer in (converted, ours, reference):
        if explained:
            set_masks(layer, mask, edge_index)
        found.append(after_a_seed(layer, x, edge_index, return_attention_weights=True, **more))
    for one in found[:2]:
        torch.testing.assert_close(one, found[2])


@pytest.mark.parametrize("kind", ["GATConv", "TransformerConv"])
def test_both_directions_draw_in_turn(kind: str) -> None:
    x, (edge_index, _) = features(N, P), graph()
    options = {"add_self_loops": False} if kind == "GATConv" else {}
    reference = pyg.DirGNNConv(getattr(pyg, kind)(P, Q, dropout=0.5, **options)).double()
    ours = drop_in.DirGNNConv(getattr(drop_in, kind)(P, Q, dropout=0.5, **options)).double()
    ours.load_state_dict(reference.state_dict())
    expected = after_a_seed(reference, x, edge_index)
    for layer in (ours, convert(reference)):
        torch.testing.assert_close(after_a_seed(layer, x, edge_index), expected)


def test_dropout_of_edges_in_another_order_is_pygs() -> None:
    x, (edge_index, _) = features(N, P), graph()
    ours, reference = other("TransformerConv", P, Q, heads=2, dropout=0.5)
    matrix = torch.sparse_coo_tensor(edge_index.flip(0), torch.ones(edge_index.shape[1]).double(), (N, N))
    for edges in (edge_index, matrix.coalesce().to_sparse_csr(), EdgeIndex(edge_index)):
        found = []
        for module in (ours, reference):
            torch.manual_seed(4)
            found.append((module.train()(x, edges), module(x, edges), module.eval()(x, edges)))
        torch.testing.assert_close(*found)
    assert evaluated(ours)


def test_super_gat_learns_from_pairs_that_are_no_edges() -> None:
    x, (edge_index, _) = features(N, P), graph()
    found = []
    for module in other("SuperGATConv", P, Q, heads=2, neg_sample_ratio=0.9):
        seed_everything(4)
        y = module(x, edge_index)
        found.append((y, module.get_attention_loss(), module.eval()(x, edge_index), module.get_attention_loss()))
    torch.testing.assert_close(*found)


def test_threads_have_parameters_of_their_own_call() -> None:
    from concurrent.futures import ThreadPoolExecutor

    x, (edge_index, _) = features(N, P), graph()
    ours, reference = other("GATConv", P, Q)

    def learns(number: int) -> list[Tensor]:
        with torch.set_grad_enabled(bool(number % 2)):
            y = ours(x, edge_index)
        return list(torch.autograd.grad(y.sum(), list(ours.parameters()))) if number % 2 else [y.detach()]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(learns, range(64)))
    y = reference(x, edge_index)
    expected = list(torch.autograd.grad(y.sum(), list(reference.parameters())))
    for number, one in enumerate(found):
        torch.testing.assert_close(one, expected if number % 2 else [y.detach()])


def test_it_learns() -> None:
    x, (edge_index, _) = features(N, P), graph()
    modules, losses = other("ChebConv", P, Q, 3), []
    for module in modules:
        optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            loss = module(x, edge_index).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    torch.testing.assert_close(losses[:5], losses[5:])
    assert losses[4] < losses[0]


def test_nothing_is_held_twice() -> None:
    ours = drop_in.GCNConv(200, 200)
    ours(torch.randn(N, 200), graph()[0])
    assert len(pickle.dumps(ours)) < 1.2 * 200 * 200 * 4
    held = [p for part in ours._evaluators.found.module.modules() for p in part._parameters.values() if p is not None]
    assert {p.untyped_storage()._cdata for p in held} == {p.untyped_storage()._cdata for p in ours.parameters()}


@pytest.mark.parametrize(("kind", "options"), NAMED)
@pytest.mark.sweep(20)
def test_it_is_converted_once(kind: str, options: dict) -> None:
    case = example(kind, options)
    ours, run = like(case.reference), runner(case)
    run(ours)
    first = ours._evaluators.found
    for training in (False, True):
        run(ours.train(training))
        assert ours._evaluators.found is first is not None


# --- a training script, with one import replaced ---

SCRIPT = """
import torch
import torch.nn.functional as F
from torch_geometric.nn import LAYER

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = LAYER(FIRST), LAYER(SECOND)

    def forward(self, x, *edges):
        x = F.dropout(F.elu(self.conv1(x, *edges)), p=0.5, training=self.training)
        return self.conv2(x, *edges)

model = Net()
first = dict(params=model.conv1.parameters(), weight_decay=5e-4)
optimizer = torch.optim.Adam([first, dict(params=model.conv2.parameters(), weight_decay=0)], lr=0.01)
arguments = (ARGUMENTS)
"""
RELATIONS = {"FIRST": "120, 16, relations, num_bases=30", "SECOND": "16, classes, relations, num_bases=30"}
RELATIONS["ARGUMENTS"] = "None, data.edge_index, data.edge_type"
SCRIPTS = {
    "GCNConv": {
        "FIRST": "32, 16, cached=True",
        "SECOND": "16, classes, cached=True",
        "ARGUMENTS": "data.x, data.edge_index, data.edge_attr",
    },
    "GATConv": {
        "FIRST": "32, 8, 8, dropout=0.6",
        "SECOND": "64, classes, heads=1, concat=False, dropout=0.6",
        "ARGUMENTS": "data.x, data.edge_index",
    },
    "RGCNConv": RELATIONS,
    "FastRGCNConv": RELATIONS,
}
LOOP = """
losses = []
for epoch in range(20):
    model.train()
    optimizer.zero_grad()
    out = model(*arguments)
    loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        valued = F.cross_entropy(model(*arguments), data.y)
    losses += [loss.item(), valued.item()]
"""


def trained(script: str, seed: int = 5) -> tuple[list[float], Any]:
    """The losses of 20 epochs, in training and after each, on a graph with communities."""
    from torch_geometric.data import Data

    seed_everything(0)
    n, classes, relations = 120, 4, 5
    y = torch.arange(n) % classes
    source = torch.randint(n, (900,))
    target = (source + classes * torch.randint(n // classes, (900,)) + (torch.rand(900) < 0.2)) % n
    data = Data(torch.eye(classes)[y].repeat(1, 8) + torch.randn(n, 32), torch.stack([source, target]), y=y)
    data.edge_attr, data.edge_type = torch.rand(900), torch.randint(relations, (900,))
    data.train_mask = torch.rand(n) < 0.5
    seed_everything(seed)
    names: dict[str, Any] = {"data": data, "classes": classes, "relations": relations}
    exec(script + LOOP, names)
    return names["losses"], names["model"]


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.sweep(1)
def test_a_training_script_with_the_import_replaced(name: str) -> None:
    script = SCRIPT.replace("LAYER", name)
    for place, text in SCRIPTS[name].items():
        script = script.replace(place, text)
    replaced = script.replace("from torch_geometric.nn import", "from pyg_basisconv.nn import")
    assert replaced != script
    expected, _ = trained(script)
    losses, model = trained(replaced)
    assert all(isinstance(part, DropIn) and evaluated(part) for part in model.children())
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-4)
    assert losses[-2] < 0.9 * losses[0]
    another, _ = trained(replaced, seed=6)
    assert max(abs(a - b) for a, b in zip(losses, another, strict=True)) > 1e-2


@pytest.mark.slow
def test_importing_it_makes_no_layer() -> None:
    count = "n._made.cache_info().currsize"
    code = f"import pyg_basisconv.nn as n; assert {count} == 0; assert n.GCNConv is n.GCNConv; assert {count} == 1"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


# --- the table of recipes ---


def test_the_table_says_what_is_of_converted_layers_alone() -> None:
    head, rows = (Path(__file__).parents[2] / "docs" / "RECIPES.md").read_text(encoding="utf-8").split("| --- |", 1)
    public = {name for module in (bases, mechanisms, thetas, nn) for name in dir(module)} | {"MLP"}
    own = set(re.findall(r"\b([A-Z]\w+)\(", rows)) - public
    assert own == set(re.findall(r"`([A-Z]\w+)`", re.split(r"of converted\s+layers", head)[1]))


def test_the_table_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    printed = capsys.readouterr().out
    kept = Path(__file__).parents[2] / "docs" / "RECIPES.md"
    assert kept.read_text(encoding="utf-8") == printed, "run python -m pyg_basisconv recipes > docs/RECIPES.md"


def test_the_table_has_every_layer() -> None:
    state = torch.get_rng_state()
    rows = spellings()
    assert torch.equal(torch.get_rng_state(), state)
    more = ["CFConv", "GATEConv", "SparseLinear", "Linear"]  # parts of models; and torch's, whose name is PyG's here
    assert sorted(row.layer for row in rows) == sorted([*NAMES, *more])
    assert all(row.basis and row.theta for row in rows)


@pytest.mark.parametrize("name", ["ChebConv", "GraphConv", "SAGEConv", "TAGConv", "RGCNConv"])
def test_a_spelling_can_be_typed(name: str) -> None:
    """One that needs no numbers but those that it shows: its text makes it."""
    row = next(row for row in spellings() if row.layer == name)
    basis, theta = (eval(text, vars(bases) | vars(thetas)) for text in (row.basis, row.theta))
    given = (8, 8) if name in ("GraphConv", "SAGEConv", "TAGConv") else (8, 8, 3)
    reference = drawn(original(name)(*given))
    typed = BasisConv(8, 8, basis, theta).double()
    typed.load_state_dict(convert(reference).state_dict())
    x, (edge_index, _) = features(N, 8), graph()
    more = {"edge_type": torch.randint(3, edge_index.shape[1:])} if name == "RGCNConv" else {}
    torch.testing.assert_close(typed(x, edge_index, **more), reference(x, edge_index, **more))


@pytest.mark.parametrize("name", ["ChebConv", "SAGEConv", "GraphConv", "Conv2d", "HypergraphConv", "TAGConv"])
def test_a_converted_layer_prints_what_could_be_typed(name: str) -> None:
    given = (8, 8) if name in ("GraphConv", "SAGEConv", "TAGConv", "HypergraphConv") else (8, 8, 3)
    text = str(convert(getattr(drop_in, name)(*given)))
    made: Any = {"BasisConv": BasisConv, "GridConv": GridConv, "Hyperedges": Hyperedges}
    assert str(eval(text, vars(bases) | vars(thetas) | made)) == text


# --- torch's compiler, TorchScript, explainers ---


@pytest.mark.slow
def test_compiled_exported_and_scripted_as_pygs_own() -> None:
    x, (edge_index, _) = torch.randn(N, P), graph()
    for name in ("GCNConv", "GATConv", "SAGEConv"):
        conv = getattr(drop_in, name)(P, Q).eval()
        y = conv(x, edge_index)
        assert evaluated(conv)
        torch._dynamo.reset()
        compiled = torch.compile(conv, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(x, edge_index), y)
        exported = torch.export.export(conv, (x, edge_index)).module()
        torch.testing.assert_close(exported(x, edge_index), y)
        if name != "GATConv":  # PyG's own cannot be
            torch.testing.assert_close(torch.jit.script(conv)(x, edge_index), y)
        torch.testing.assert_close(conv(x, edge_index), y)


def test_explainers_see_pygs_own() -> None:
    x, (edge_index, _) = torch.randn(N, P), graph()
    config = {"mode": "regression", "task_level": "node", "return_type": "raw"}
    state, found = drop_in.GCNConv(P, Q).state_dict(), []
    for kind in (original("GCNConv"), drop_in.GCNConv):
        conv = kind(P, Q).eval()
        conv.load_state_dict(state)
        before = conv(x, edge_index)
        seed_everything(3)
        explainer = Explainer(conv, GNNExplainer(epochs=5), "model", config, "attributes", "object")
        found.append(explainer(x, edge_index, index=2).edge_mask)
        torch.testing.assert_close(conv(x, edge_index), before)
    assert evaluated(conv)
    torch.testing.assert_close(found[0], found[1])
    assert found[0].std() > 0


@pytest.mark.parametrize("kind", ["DirGNNConv", "AntiSymmetricConv"])
def test_masks_of_inner_layers(kind: str) -> None:
    """Explainers know layers of message passing, and what holds them as the layer of PyG."""
    reference, (edge_index, _) = made(kind).eval(), graph()
    ours, x, found = like(reference), features(N, P), []
    for f in (reference, ours):
        before = f(x, edge_index)
        set_masks(f, torch.linspace(-2, 2, edge_index.shape[1]), edge_index)
        found.append(f(x, edge_index))
        clear_masks(f)
        torch.testing.assert_close(f(x, edge_index), before, rtol=0, atol=1e-12)
    assert evaluated(ours)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)
    assert not torch.allclose(found[0], before)


def test_hooks_on_messages_of_inner_layers() -> None:
    (edge_index, _), x = graph(), torch.randn(N, P)
    layer = drop_in.DirGNNConv(pyg.GATConv(P, Q))
    y, seen = layer(x, edge_index), []
    handle = layer.conv_in.register_message_forward_hook(lambda module, inputs, messages: seen.append(messages))
    torch.testing.assert_close(layer(x, edge_index), y)
    assert len(seen) == 1
    handle.remove()
    layer(x, edge_index)
    assert len(seen) == 1


# --- what is wrong is caught ---


def test_bites(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter that is read from another place, or not read again, or a recipe that is another's."""
    case = example("GATConv", {"heads": 2})
    assert isinstance(case.reference, nn.Module)
    right = Evaluator.__call__

    def not_again(self: Any, layer: Any, args: Any, kwargs: Any) -> Any:
        if not hasattr(self, "kept"):
            self.kept = [(own, name, read().detach().clone()) for own, name, read in self.slots]
        for own, name, t in self.kept:
            own[name] = t
        return self.module.forward(*args, **kwargs)

    def exchanged_ends(self: Any, layer: Any, args: Any, kwargs: Any) -> Any:
        if not hasattr(self, "right"):
            self.right, other = self.slots, {"source": "target", "target": "source"}
            self.slots = [(own, other.get(name, name), read) for own, name, read in self.right]
        return right(self, layer, args, kwargs)

    for wrong in (not_again, exchanged_ends):
        ours = like(case.reference)
        monkeypatch.setattr(Evaluator, "__call__", wrong)
        with pytest.raises(AssertionError):
            agree(case._replace(ours=ours))
        monkeypatch.undo()
    agree(case._replace(ours=like(case.reference)))
    assert compare(case)


def test_a_stale_layer_bites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DropIn, "_changed", lambda self: None)
    modules = (drop_in.GATConv(P, Q, heads=2).double(), original("GATConv")(P, Q, heads=2).double())
    modules[1].load_state_dict(modules[0].state_dict())
    with pytest.raises(AssertionError):
        both(modules, CHANGES["an option"])
