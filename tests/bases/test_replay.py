"""Calls of attention that are replayed, on one graph or on new ones: as by the long way, and never stale."""

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch_geometric import nn as pyg

import pyg_basisconv.nn as drop_in
from pyg_basisconv import BasisConv, bases, reading, theta
from pyg_basisconv.backend import KERNELS
from pyg_basisconv.bases import replay
from pyg_basisconv.cache import IdentityCache
from pyg_basisconv.entries import Entries
from pyg_basisconv.mechanisms import MLP, Additive, Dot, Edge, Mechanism, Relative
from tests.contract import close, draw

M, N, P, R = 9, 6, 4, 3  # R: the width of the targets
MASK = bases.Adjacency()

pytestmark = pytest.mark.skipif(KERNELS is None, reason="needs the compiled kernels")


def leaky() -> nn.Module:
    return nn.LeakyReLU(0.2)


LAYERS: dict[str, Callable[[], tuple[bases.Attention, theta.Theta, int]]] = {
    "GAT": lambda: (bases.Attention(2, Additive(projected=True).then(leaky()), MASK), theta.Heads(), 6),
    "terms": lambda: (bases.Attention(3, Additive(bias=True).then(leaky()), MASK), theta.Heads("mean"), 2),
    "terms of sources": lambda: (bases.Attention(2, Additive(target=None), MASK), theta.LowRank(2), 5),
    "gates": lambda: (
        bases.Attention(5, Additive() + Relative(period=1), MASK, normalize="sigmoid"),
        theta.Heads(bias=True),
        5,
    ),
    "GATv2": lambda: (
        bases.Attention(2, MLP(projected=True, activation=leaky(), bias=True), MASK),
        theta.Heads(bias=True),
        6,
    ),
    "hidden": lambda: (bases.Attention(2, MLP(3, activation=nn.ReLU(), bias=True), MASK), theta.Heads(), 4),
    "products": lambda: (bases.Attention(2, Dot(3, bias=True), MASK), theta.Heads(bias=True), 6),
    "wide products": lambda: (bases.Attention(2, Dot(3), MASK), theta.Heads(), 12),  # values wider than x
    "scaled products": lambda: (bases.Attention(2, Dot(3, scale=1.5), MASK), theta.LowRank(2), 5),
}


def make(kind: str, two: bool = False, dropout: float = 0.0) -> BasisConv:
    basis, parameter, Q = LAYERS[kind]()
    basis.dropout = dropout
    conv = BasisConv((P, R) if two else P, Q, basis, parameter).double()
    for i, p in enumerate(conv.parameters()):
        p.data = draw(*p.shape, seed=i)
    return conv


def given(two: bool = False) -> tuple[Any, Tensor]:
    x = draw(M, P, seed=50)
    generator = torch.Generator().manual_seed(3)
    edges = torch.stack([torch.randint(m, (20,), generator=generator) for m in (M, N if two else M)])
    return ((x, draw(N, R, seed=51)) if two else x), edges


def anew(conv: BasisConv, x: Any, edges: Tensor) -> Tensor:
    """By a layer that has never been called."""
    return copy.deepcopy(conv)(x, edges)


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call, from the second on, was replayed."""
    found: list[bool] = []
    call = replay.Replays.__call__

    def spy(self: Any, *args: Any) -> Any:
        y = call(self, *args)
        found.append(y is not None)
        return y

    monkeypatch.setattr(replay.Replays, "__call__", spy)
    return found


# GAT projects targets as it does sources, and so takes one kind of nodes.
@pytest.mark.parametrize(
    ("kind", "two"), [(kind, two) for kind in LAYERS for two in (False, True) if not (two and kind == "GAT")]
)
def test_the_numbers_and_derivatives_of_a_call_that_is_replayed(kind: str, two: bool, replayed: list[bool]) -> None:
    conv, (x, edges) = make(kind, two), given(two)
    features = [t.requires_grad_() for t in (x if two else (x,))]
    ends = tuple(features) if two else features[0]
    with torch.no_grad():
        for _ in range(4):
            close(conv(ends, edges), anew(conv, ends, edges))
    assert replayed == [False, True, True], "two calls are recorded"
    other = copy.deepcopy(conv)
    learnt = dict(conv.named_parameters())
    for _ in range(4):
        results = []
        for layer in (conv, copy.deepcopy(other)):
            inputs = [*features, *(p for _, p in sorted(layer.named_parameters()))]
            y = layer(ends, edges)
            first = torch.autograd.grad(y.sin().sum(), inputs, create_graph=True, materialize_grads=True)
            second = torch.autograd.grad(sum(g.cos().sum() for g in first), inputs, materialize_grads=True)
            results.append([y, *first, *second])
        for mine, theirs in zip(*results, strict=True):
            close(mine.detach(), theirs.detach(), 1e-9)
    assert replayed[-1]
    assert len(learnt) + len(features) == len(inputs)


@pytest.mark.parametrize("kind", ["GATConv", "GATv2Conv", "TransformerConv", "ResGatedGraphConv"])
def test_drop_ins_whose_parameters_are_views_are_replayed(kind: str, replayed: list[bool]) -> None:
    reference = getattr(pyg, kind)(P, 4).double()
    ours = getattr(drop_in, kind)(P, 4).double()
    ours.load_state_dict(reference.state_dict())
    x, edges = given()

    def same() -> None:
        with torch.no_grad():
            for _ in range(4):
                close(ours(x, edges), reference(x, edges))

    same()
    assert replayed[-1]
    if kind in ("TransformerConv", "ResGatedGraphConv"):  # tied biases, and untied again
        for layer in (ours, reference):
            layer.lin_key.bias = layer.lin_query.bias
        same()
        for layer in (ours, reference):
            layer.lin_query.bias = nn.Parameter(draw(4, seed=9))
        same()


EDGE_DIM = 3
EDGE_SCORES: dict[str, Callable[[], Mechanism]] = {
    "edge, of a matrix and a vector": lambda: (Additive(projected=True, target=None) + Edge(EDGE_DIM, inner=2)).then(
        leaky()
    ),
    "edge": lambda: (Additive() + Edge(EDGE_DIM)).then(leaky()),
    "hidden layer": lambda: MLP(projected=True, activation=leaky(), edge_dim=EDGE_DIM),
    "products": lambda: Dot(3, edge_dim=EDGE_DIM),
    "both products": lambda: Dot(3, edge_dim=EDGE_DIM, mix="both"),
    "nodes": lambda: Additive(bias=True),
}


def on_edges(score: str, values: str, combine: Any = "concat") -> tuple[BasisConv, theta.Theta | None]:
    """A layer, and the parameter of the values of edges; 'tied' where that is the matrix of the score."""
    conv = BasisConv(P, 4, bases.Attention(2, EDGE_SCORES[score](), MASK), theta.Heads(combine, bias=True)).double()
    of_edges = None if values == "none" else theta.Heads(combine).build(2, EDGE_DIM, 4).double()
    for i, p in enumerate([*conv.parameters(), *([] if of_edges is None else of_edges.parameters())]):
        p.data = draw(*p.shape, seed=i)
    if values == "tied":
        leaf_of_edges = next(m for m in conv.basis.modules() if getattr(m, "edge_dim", 0) and m._parameters)
        of_edges.weight = leaf_of_edges.weight
    return conv, of_edges


@pytest.mark.parametrize("new_graphs", [False, True])
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize(
    ("score", "values"),
    [(score, values) for score in EDGE_SCORES for values in ("none", "own") if (score, values) != ("nodes", "none")]
    + [("edge, of a matrix and a vector", "tied")],
)
def test_features_of_edges(score: str, values: str, learns: bool, new_graphs: bool, replayed: list[bool]) -> None:
    conv, of_edges = on_edges(score, values)
    x = draw(M, P, seed=50).requires_grad_()
    for i in range(5):
        edges, z = (
            some_edges(i if new_graphs else 3, M, 20 + i % 2 * new_graphs),
            draw(20 + i % 2 * new_graphs, EDGE_DIM),
        )
        options = {"edge_attr": z.requires_grad_(learns), "edge_values": of_edges}
        inputs = [x, *([z] if learns else []), *conv.parameters(), *([] if of_edges is None else of_edges.parameters())]
        results = []
        for run in (conv, conv.evaluate):
            y = run(x, edges, **options)
            first = torch.autograd.grad(y.sin().sum(), inputs, create_graph=True, materialize_grads=True)
            second = torch.autograd.grad(sum(g.cos().sum() for g in first), inputs, materialize_grads=True)
            results.append([y, *first, *second])
        for mine, theirs in zip(*results, strict=True):
            close(mine.detach(), theirs.detach(), 1e-9)
    assert replayed[-1] == (score != "both products")  # which are sums of terms that are products


@pytest.mark.parametrize(
    ("z", "expected"),
    [(draw(21, EDGE_DIM), "one row per edge"), (draw(20, 2), "3 features"), (draw(20, 3).float(), "dtype")],
)
def test_features_of_edges_that_do_not_fit_are_refused(z: Tensor, expected: str) -> None:
    conv, _ = on_edges("edge", "none")
    x = draw(M, P)
    for i in range(4):
        conv(x, some_edges(i, M, 20), edge_attr=draw(20, EDGE_DIM))
    with pytest.raises(ValueError, match=expected):
        conv(x, some_edges(5, M, 20), edge_attr=z)
    with pytest.raises(ValueError, match="edge_attr"):
        conv(x, some_edges(6, M, 20))


def test_a_parameter_of_edges_that_is_tied_no_more(replayed: list[bool]) -> None:
    conv, of_edges = on_edges("edge, of a matrix and a vector", "tied")
    x, edges, z = draw(M, P), some_edges(3, M, 20), draw(20, EDGE_DIM)

    def check() -> None:
        close(
            conv(x, edges, edge_attr=z, edge_values=of_edges),
            conv.evaluate(x, edges, edge_attr=z, edge_values=of_edges),
        )

    for _ in range(3):
        check()
    of_edges.weight = another(of_edges.weight)
    check()
    assert replayed == [False, True, False]


class Twice(nn.Module):
    def forward(self, t: Tensor) -> Tensor:
        return 2 * t


def leaf(conv: BasisConv) -> Mechanism:
    """The mechanism that has parameters."""
    modules = [m for m in conv.basis.modules() if isinstance(m, Mechanism) and m._parameters]
    return modules[0]


def name(conv: BasisConv) -> str:
    return next(iter(leaf(conv)._parameters))


def another(t: Tensor) -> nn.Parameter:
    return nn.Parameter(draw(*t.shape, seed=99))


def slope(conv: BasisConv) -> None:
    for m in conv.basis.modules():
        if isinstance(m, nn.LeakyReLU):
            m.negative_slope = 0.9


CHANGES: dict[str, Callable[[BasisConv], Any]] = {
    "in place": lambda c: [p.data.mul_(-1.5) for p in c.parameters()],
    "another parameter": lambda c: setattr(leaf(c), name(c), another(getattr(leaf(c), name(c)))),
    "another theta": lambda c: setattr(c.theta, "weight", another(c.theta.weight)),
    "other memory": lambda c: setattr(c.theta.weight, "data", draw(*c.theta.weight.shape, seed=98)),
    "swapped": lambda c: torch.utils.swap_tensors(c.theta.weight, another(c.theta.weight)),
    "parametrized": lambda c: parametrize.register_parametrization(leaf(c), name(c), Twice()),
    "parametrized theta": lambda c: parametrize.register_parametrization(c.theta, "weight", Twice()),
    "another mask": lambda c: setattr(c.basis, "mask", bases.Adjacency(self_loops=True)),
    "another normalisation": lambda c: setattr(c.basis, "normalize", "sigmoid"),
    "no normalisation": lambda c: setattr(c.basis, "normalize", None),
    "another slope": slope,
    "another activation": lambda c: [
        setattr(m, "activation", nn.Tanh()) for m in c.basis.modules() if hasattr(m, "activation")
    ],
    "another mechanism": lambda c: (
        setattr(c.basis, "mechanism", Dot(2)),
        c.basis.complete(P, P, c.theta.inner),
        c.basis.double(),
    ),
    "another scale": lambda c: setattr(leaf(c), "scale", 0.3),
    "another part": lambda c: [m.parts.__setitem__(0, part(c)) for m in c.basis.modules() if hasattr(m, "parts")],
    "frozen": lambda c: c.basis.requires_grad_(False),
    "single precision and back": lambda c: c.float().double(),
    "another bias": lambda c: setattr(c, "bias", another(c.bias)),
    "no bias": lambda c: setattr(c, "bias", None),
    "messages": lambda c: setattr(c, "fuse", False),
}


def part(conv: BasisConv) -> Mechanism:
    new = Additive(projected=leaf(conv).projected)
    new.build(leaf(conv).sizes)
    for i, p in enumerate(new.parameters()):
        p.data = draw(*p.shape, seed=90 + i)
    return new


KINDS = [*LAYERS]
# Each change with three of the kinds, in turn.
CHANGED = [(KINDS[(i + step) % len(KINDS)], change) for i, change in enumerate(CHANGES) for step in (0, 3, 5)]


@pytest.mark.parametrize("graph", ["one graph", "new graphs"])
@pytest.mark.parametrize(("kind", "change"), CHANGED)
@pytest.mark.sweep(60)
def test_a_call_after_a_change(kind: str, change: str, graph: str) -> None:
    conv, (x, edges) = make(kind), given()

    def check(calls: int) -> None:
        nonlocal edges
        for mode in (torch.enable_grad, torch.no_grad):
            with mode():
                for _ in range(calls):
                    edges = edges if graph == "one graph" else edges.roll(1, 0).roll(1, 1)
                    close(conv(x, edges).detach(), anew(conv, x, edges).detach())

    check(3)
    CHANGES[change](conv)
    check(4)
    for p in conv.parameters():
        p.data.mul_(0.5)
    check(1)


def some_edges(seed: int, n: int, count: int) -> Tensor:
    return torch.randint(n, (2, count), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", LAYERS)
def test_one_record_serves_all_graphs(kind: str, replayed: list[bool]) -> None:
    """Of about one size, empty ones included; values and gradients, recorded or not."""
    conv = make(kind)
    for i in range(12):
        n, count = 17 + i % 2, 0 if i == 5 else 21 + i % 3
        x, edges = draw(n, P, seed=i).requires_grad_(i > 5), some_edges(i, n, count)
        results = []
        for layer in (conv, copy.deepcopy(conv)):
            y = layer(x, edges)
            inputs = [*[x] * x.requires_grad, *(p for _, p in sorted(layer.named_parameters()))]
            results.append([y, *torch.autograd.grad(y.sin().sum(), inputs, materialize_grads=True)])
        for mine, theirs in zip(*results, strict=True):
            close(mine.detach(), theirs.detach(), 1e-9)
    assert sum(replayed) >= 6


def test_a_graph_whose_mask_has_weights_is_evaluated() -> None:
    """Loops of the graph count twice in this mask, which has weights for graphs with loops alone."""
    basis = bases.Attention(2, Dot(3), bases.Adjacency(self_loops=1, existing="add"), weighted=True)
    conv, x = BasisConv(P, 4, basis, theta.Heads()).double(), draw(M, P)
    plain = torch.stack([torch.arange(M), (torch.arange(M) + 1) % M])
    looped = torch.stack([torch.arange(M), torch.arange(M)])
    for shift in range(4):
        close(conv(x, plain.roll(shift, 1)), anew(conv, x, plain.roll(shift, 1)))
    close(conv(x, looped), anew(conv, x, looped))
    assert not torch.allclose(conv(x, looped), conv(x, looped[:, :-1]))


def test_a_wrong_graph_is_refused_as_by_a_layer_that_is_new() -> None:
    conv, x = make("GAT"), draw(M, P)
    for seed in range(4):
        conv(x, some_edges(seed, M, 20))
    wrong = some_edges(5, M, 20)
    wrong[0, 3] = M
    with pytest.raises(ValueError, match="expected") as fresh:
        anew(conv, x, wrong)
    with pytest.raises(ValueError, match="expected") as known:
        conv(x, wrong)
    assert str(known.value) == str(fresh.value)


def test_a_layer_holds_no_graph_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[weakref.ref[Any]] = []
    init = Entries.__init__

    def noting(self: Entries, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        held.append(weakref.ref(self))

    monkeypatch.setattr(Entries, "__init__", noting)
    cache = IdentityCache()  # of graphs, of all layers: it lets go of them as others come
    monkeypatch.setattr(reading, "_GRAPHS", cache)
    conv, x, graphs = make("GATv2"), draw(M, P), [some_edges(seed, M, 20) for seed in range(6)]
    for edges in graphs:
        conv(x, edges)
    cache._entries.clear()
    gc.collect()
    assert len(held) >= 6
    assert sum(one() is not None for one in held) <= 1  # of the first graph, which has a program


def test_a_hook_on_an_activation_is_called() -> None:
    conv, (x, edges) = make("GAT"), given()
    for _ in range(3):
        conv(x, edges)
    for m in conv.basis.modules():
        if isinstance(m, nn.LeakyReLU):
            m.register_forward_hook(lambda module, args, y: 2 * y)
    close(conv(x, edges), anew(conv, x, edges))


def test_weights_are_dropped_in_training_and_not_in_evaluation(replayed: list[bool]) -> None:
    conv, (x, edges) = make("GAT", dropout=0.5), given()
    plain = make("GAT")
    conv.eval()
    for _ in range(4):
        close(conv(x, edges), plain(x, edges))
    assert replayed[-1]
    conv.train()
    assert len({conv(x, edges).sum().item() for _ in range(5)}) == 5
    assert not any(replayed[-5:])
    conv.eval()
    close(conv(x, edges), plain(x, edges))


class Own(Additive):
    """Reads something that nobody here knows of."""

    factor = 1.0

    def score(self, content: Any, entries: Any) -> Any:
        return super().score(content, entries).times(self.factor)


class Bent(Additive):
    """The same, in the form that kernels take."""

    function: Any = torch.tanh

    def score(self, content: Any, entries: Any) -> Any:
        return super().score(content, entries).map(type(self).function)


def test_a_mechanism_of_the_user_is_never_replayed(replayed: list[bool]) -> None:
    conv, (x, edges) = BasisConv(P, 4, bases.Attention(2, Own(), MASK), theta.Heads()).double(), given()
    for Own.factor in (1.0, 1.0, 1.0, 3.0):
        close(conv(x, edges), anew(conv, x, edges))
    conv = BasisConv(P, 4, bases.Attention(2, Bent(), MASK), theta.Heads()).double()
    for function in (torch.tanh, torch.tanh, torch.tanh, torch.sigmoid):
        Bent.function = function
        close(conv(x, edges), anew(conv, x, edges))
    assert not any(replayed)


def test_weights_of_edges_and_masks_are_not_left_out(replayed: list[bool]) -> None:
    basis = bases.Attention(2, Dot(3), MASK, weighted=True)
    conv, (x, edges) = BasisConv(P, 4, basis, theta.Heads()).double(), given()
    weight, valid = draw(edges.shape[1], seed=4).abs(), torch.arange(M) % 3 > 0
    for options in ({"edge_weight": weight}, {"valid": valid}):
        for _ in range(4):
            close(conv(x, edges, **options), copy.deepcopy(conv)(x, edges, **options))
    assert not any(replayed)


def test_tied_parameters_that_are_untied(replayed: list[bool]) -> None:
    conv, (x, edges) = make("hidden"), given()
    conv.basis.mechanism.target = conv.basis.mechanism.source
    for _ in range(4):
        close(conv(x, edges), anew(conv, x, edges))
    conv.basis.mechanism._parameters["source"] = another(conv.basis.mechanism.target)
    close(conv(x, edges), anew(conv, x, edges))
    assert replayed == [False, True, True, False]


# Widths at which values are joined with the terms, and not; and many features, which another product takes.
SIZES = {"joined": (40, 8, 4), "apart": (50, 4, 9), "many": (1100, 64, 8)}
WIDE: dict[str, Callable[[int], Mechanism]] = {
    "GAT": lambda D: Additive(projected=True).then(leaky()),
    "terms": lambda D: Additive(bias=True),
    "GATv2": lambda D: MLP(projected=True, activation=leaky(), bias=True),
    "products": lambda D: Dot(D, bias=True),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", WIDE)
def test_a_call_that_is_replayed_takes_the_products_of_one_that_is_not(
    kind: str, size: str, replayed: list[bool]
) -> None:
    """So it gives the same bits; and so do checkpoints, which compute something again."""
    nodes, width, D = SIZES[size]
    basis = bases.Attention(2, WIDE[kind](D), MASK)
    conv, x = BasisConv(width, 2 * D, basis, theta.Heads(bias=True)), torch.randn(nodes, width, requires_grad=True)
    edges = torch.randint(nodes, (2, 4 * nodes))
    nn.init.normal_(conv.theta.value_bias)
    leaves = [x, *conv.parameters()]
    results = []
    for _ in range(3):
        y = conv(x, edges)
        results.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
    assert replayed == [False, True]
    for result in results[1:]:
        for mine, first in zip(result, results[0], strict=True):
            assert torch.equal(mine, first)
    again = copy.deepcopy(conv)
    again(x, edges)
    with set_checkpoint_early_stop(False):
        checkpoint(again, x, edges, use_reentrant=False).square().sum().backward()
    assert not replayed[-1], "a checkpoint takes the long way"
    assert torch.equal(x.grad, results[0][1])


def test_every_call_saves_the_same_tensors() -> None:
    """The first, and those that are like it: a checkpoint may compute any of them again."""
    x, edges, z = draw(M, P, seed=50).requires_grad_(), some_edges(3, M, 20), draw(20, EDGE_DIM).requires_grad_()
    layers = [(f"{kind}, {normalize}", make(kind), {}) for kind in LAYERS for normalize in ("source", "tanh")]
    for name, conv, _ in layers:
        conv.basis.normalize = name.rpartition(", ")[2]
    for score in EDGE_SCORES:
        for values in ("none", "own") if score != "nodes" else ("own",):
            conv, of_edges = on_edges(score, values)
            layers.append((f"{score}, {values}", conv, {"edge_attr": z, "edge_values": of_edges}))
    for name, conv, options in layers:
        saved: list[list[Any]] = []

        def keep(t: Tensor, saved: list[list[Any]] = saved) -> Tensor:
            saved[-1].append((t.shape, t.dtype))
            return t

        for _ in range(4):
            saved.append([])
            with saved_tensors_hooks(keep, lambda t: t):
                conv(x, edges, **options)
        assert saved[1:] == saved[:-1], name
        inputs = [x, *conv.parameters()]
        expected = torch.autograd.grad(conv(x, edges, **options).square().sum(), inputs)
        new = copy.deepcopy(conv)
        for _ in range(3):
            y = checkpoint(lambda x, new=new, options=options: new(x, edges, **options), x, use_reentrant=False)
            close(torch.autograd.grad(y.square().sum(), x)[0], expected[0])


@pytest.mark.parametrize("kind", LAYERS)
def test_features_are_not_kept(kind: str) -> None:
    conv, (x, edges) = make(kind), given()
    for _ in range(4):
        features = x * torch.ones((), requires_grad=True)
        reference = StorageWeakRef(features.untyped_storage())
        conv(features, edges).sum().backward()
        del features
        gc.collect()
        assert reference.expired()


@pytest.mark.parametrize("kind", LAYERS)
def test_parameters_that_the_kernel_cannot_read(kind: str) -> None:
    """On another device, where it would read from no address; and of the other sign, which is a bit of the tensor."""
    for part in ("theta", "basis"):
        conv, (x, edges) = make(kind), given()
        for _ in range(3):
            conv(x, edges)
        for module in getattr(conv, part).modules():
            for key, t in module._parameters.items():
                if t is not None:
                    module._parameters[key] = nn.Parameter(torch._neg_view(t.detach()))
        for _ in range(3):
            close(conv(x, edges), anew(conv, x, edges))
    conv.basis.to("meta")
    with pytest.raises((RuntimeError, NotImplementedError, ValueError)):
        conv(x, edges)


def test_parameters_that_were_views_of_another(replayed: list[bool]) -> None:
    basis = bases.Attention(2, Additive(bias=True) + Relative(period=1), MASK, normalize="sigmoid")
    conv, (x, edges) = BasisConv(P, 4, basis, theta.Heads()).double(), given()
    nn.init.ones_(conv.basis.mechanism.parts[0].bias)
    places = {id(t): key for key, t in conv.named_parameters()}
    first, second = conv.basis.mechanism.parts[0].bias, conv.basis.mechanism.parts[1].weight
    tied = {places[id(first)]: first, places[id(second)]: first.view(second.shape)}
    for _ in range(4):
        functional_call(conv, tied, (x, edges))
    assert not any(replayed)
    close(conv(x, edges), anew(conv, x, edges))


def test_a_mechanism_of_another_package_is_never_replayed(replayed: list[bool]) -> None:
    """Though its name begin with that of this one."""
    kind = type("Theirs", (Own,), {"__module__": "pyg_basisconv_extras"})
    conv, (x, edges) = BasisConv(P, 4, bases.Attention(2, kind(), MASK), theta.Heads()).double(), given()
    for _ in range(4):
        conv(x, edges)
    assert not any(replayed)


def test_a_parameter_that_is_gone() -> None:
    conv, (x, edges) = make("GAT"), given()
    for _ in range(3):
        conv(x, edges)
    leaf(conv)._parameters["source"] = None
    with pytest.raises((TypeError, AttributeError)):
        conv(x, edges)
