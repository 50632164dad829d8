"""torch.compile without a graph break: one operator per layer, right for every kind of basis and for new sizes."""

import copy
import gc
import itertools
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint
from torch_geometric import EdgeIndex, nn as geometric
from torch_geometric.nn import GATConv, GCNConv, RGCNConv

from pyg_basisconv import BasisConv, BasisGRUCell, BasisRNN, GridConv, bases, mechanisms, theta
from pyg_basisconv.compiled import recording
from pyg_basisconv.convert import convert
from tests import contract
from tests.cases import CASES
from tests.mechanisms import cases as attention_cases

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
INDUCTOR = pytest.param("inductor", marks=pytest.mark.slow)  # which asks a compiler of C++


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def through(module: nn.Module, backend: str = "eager"):
    return torch.compile(module, fullgraph=True, dynamic=True, backend=backend)


def results(call, leaves: list[torch.Tensor], module: nn.Module) -> list[torch.Tensor]:
    """The result and all gradients."""
    module.zero_grad()
    for leaf in leaves:
        leaf.grad = None
    y = call()
    (y * contract.draw(*y.shape, seed=9).to(y.dtype)).sum().backward()
    return [y.detach(), *(torch.zeros_like(t) if t.grad is None else t.grad for t in (*leaves, *module.parameters()))]


def same(module: nn.Module, run, leaves: list[torch.Tensor], backend: str = "eager") -> None:
    """Compiled as uncompiled."""
    fast = through(module, backend)
    found, expected = (results(lambda f=f: run(f), leaves, module) for f in (fast, module))
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, rtol=1e-10, atol=1e-10)


# What the operator is given, and what its result has the size of. Families are inside of it, where none is seen.
EACH = [
    *("Edges(1)-random", "Edges(1)-no-node", "Edges(1)-N=0", "Edges(3)-typed", "Edges(3)-shared", "Adjacency-ones"),
    *("Bags(mean)-batch", "Complete-batch", "Chebyshev(4)-lambda-tensor"),
    *("Identity-random", "Causal-random", "Shifts(2,3)-random", "Window(2,3,transposed).T-random"),
    *("Window(sites)-random", "Edges@Edges-typed", "Identity+Relations@Relations-typed-ones"),
]


@pytest.mark.parametrize("name", EACH)
@pytest.mark.sweep(3)
def test_every_basis(name):
    case = CASES[name]
    g = case.graph()
    conv = contract.make(case.basis())
    x = contract.draw(g.M, 3).requires_grad_()
    same(conv, lambda layer: contract.call(layer, x, g), [x])


PRODUCTS = {
    "walks": lambda: bases.Walks(["0.1"], 3),
    "walks, mean": lambda: bases.Walks(["0.1"], 3, norm="mean"),
    "attention, masked by a product": lambda: bases.Attention(
        2, mechanisms.Dot(3), bases.Adjacency() @ bases.Adjacency(), weighted=True
    ),
}


@pytest.mark.parametrize("kind", PRODUCTS)
def test_products_of_sparse_matrices_whose_weights_learn(kind):
    conv, x = contract.make(PRODUCTS[kind]()), contract.draw(5, 3).requires_grad_()
    drawn = torch.Generator().manual_seed(0)  # a graph on which the walks are products that are built
    edges = torch.randint(5, (2, 9), generator=drawn)
    weight = contract.draw(edges.shape[1]).abs().requires_grad_()
    kinds = torch.randint(3, (9,), generator=drawn) if kind.startswith("walks") else None
    same(conv, lambda layer: layer(x, edges, weight, kinds), [x, weight])


@pytest.mark.parametrize("name", list(attention_cases.CASES)[::40])
@pytest.mark.sweep(1)
def test_every_attention(name):
    c = attention_cases.CASES[name]
    conv, _ = attention_cases.layer(c)
    args, named = attention_cases.inputs(c).arguments()
    pair = isinstance(args[0], tuple | list)
    leaves = [t.detach().clone().requires_grad_() for t in (args[0] if pair else args[:1]) if t is not None]
    x = (tuple(leaves) if len(leaves) > 1 else (leaves[0], None)) if pair else leaves[0]
    same(conv, lambda layer: layer(x, *args[1:], **named), leaves)


GRIDS = {
    "window": lambda: bases.Window(None, (3, 3), padding=1),
    "circular": lambda: bases.Window(None, (3, 3), padding="same", padding_mode="circular"),
    "transposed": lambda: bases.Window(None, (2, 2), stride=2, transposed=True),
    "turned": lambda: bases.Window(None, (3, 3), padding=1).T,
    "two": lambda: bases.Window(None, (3, 3), padding=1) @ bases.Window(None, (2, 2), stride=2),
    "beside": lambda: bases.Identity() + bases.Window(None, (3, 3), padding=1),
    "attention": lambda: bases.Attention(2, mechanisms.Dot(4)),
}


@pytest.mark.parametrize(
    ("kind", "last"),
    [*((kind, False) for kind in GRIDS), *((kind, True) for kind in ("window", "attention"))],
)
@pytest.mark.sweep(1)
def test_images_of_several_sizes(kind, last):
    layer = GridConv(4, 6, GRIDS[kind]()).double()
    fast = through(layer, "aot_eager")
    for H, W in ((6, 7), (9, 5)):
        image = contract.draw(2, 4, H, W)
        image = (image.contiguous(memory_format=torch.channels_last) if last else image).requires_grad_()
        found, expected = (results(lambda f=f, i=image: f(i), [image], layer) for f in (fast, layer))
        for a, b in zip(found, expected, strict=True):
            assert_close(a, b, rtol=1e-10, atol=1e-10)
    assert counters["stats"]["unique_graphs"] == 1


class Net(nn.Module):
    """Two layers, with something between that a compiler may write in place."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x, edge_index, **kwargs):
        h = self.first(x, edge_index, **kwargs)
        return self.second(torch.relu(h) * 2 + 1, edge_index, **kwargs).log_softmax(-1)


def net(basis, kind=None) -> Net:
    made = [BasisConv(P, Q, basis(), None if kind is None else kind()) for P, Q in ((5, 8), (8, 4))]
    return Net(*made).double()


def wired(N: int, seed: int = 0, **about: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed + N)
    E = 3 * N
    made = {"edge_index": torch.randint(N, (2, E), generator=generator)}
    if "types" in about:
        made["edge_type"] = torch.randint(about["types"], (E,), generator=generator)
    if "weight" in about:
        made["edge_weight"] = torch.rand(E, generator=generator, dtype=torch.float64)
    return made


NETS = {
    "GCN": (lambda: net(lambda: bases.Adjacency("sym", self_loops=True)), {"weight": 1}),
    "relations": (lambda: net(lambda: bases.Relations(3, "mean", self_loop=True)), {"types": 3}),
    "GAT": (
        lambda: net(
            lambda: bases.Attention(2, mechanisms.Additive(projected=True), bases.Adjacency(self_loops=True)),
            theta.Heads,
        ),
        {},
    ),
    "converted": (lambda: convert(Net(GCNConv(5, 8), GATConv(8, 4, add_self_loops=False)).double()), {}),
    "converted-RGCN": (lambda: convert(Net(RGCNConv(5, 8, 3), RGCNConv(8, 4, 3)).double()), {"types": 3}),
}


@pytest.mark.parametrize("kind", NETS)
@pytest.mark.sweep(1)
def test_several_sizes_one_graph(kind):
    make, about = NETS[kind]
    model = make()
    fast = through(model, "aot_eager")
    for N in (6, 10, 17, 25):
        x = contract.draw(N, 5, seed=N).requires_grad_()
        graph = wired(N, **about)
        found, expected = (results(lambda f=f, x=x, g=graph: f(x, **g), [x], model) for f in (fast, model))
        for a, b in zip(found, expected, strict=True):
            assert_close(a, b, rtol=1e-10, atol=1e-10)
    assert counters["stats"]["unique_graphs"] == 1


def test_series_of_several_sizes_one_graph():
    """Of few nodes, and of so many that the gates are computed step by step without compilation."""
    rnn = BasisRNN(BasisGRUCell(2, 16, bases.Adjacency("mean"))).double()
    fast = through(rnn)
    for N in (6, 1400, 10):
        x = contract.draw(2, N, 2, seed=N)
        assert_close(fast(x, **wired(N))[0], rnn(x, **wired(N))[0], rtol=1e-10, atol=1e-10)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.slow
def test_inductor_trains():
    make, about = NETS["GAT"]
    model = make()
    twin = copy.deepcopy(model)
    fast = through(model, "inductor")
    # Not Adam, which divides by gradients: some of these are zero but for rounding.
    optimisers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (model, twin)]
    for N in (8, 12, 16):
        for f, optimiser in zip((fast, twin), optimisers, strict=True):
            optimiser.zero_grad()
            f(contract.draw(N, 5, seed=N), **wired(N, **about))[:, 0].mean().backward()
            optimiser.step()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_inductor_may_reuse_memory():
    """What is kept of tensors that compiled code makes, and writes again, is not taken for what they are now."""
    conv = BasisConv(4, 4, bases.Adjacency(), theta.Pass(), bias=False).double()

    def run(f, x, edge_index, w):
        y = f(x, edge_index, w + 1)
        for step in range(3):
            y = f(y, edge_index, (w * (step + 2)).sin() + 1)
        return y

    fast = torch.compile(lambda x, e, w: run(conv, x, e, w), fullgraph=True, dynamic=True)
    graph = wired(9, weight=1)
    for seed in range(3):
        x, w = contract.draw(9, 4, seed=seed), graph["edge_weight"] * (seed + 1)
        assert_close(fast(x, graph["edge_index"], w), run(conv, x, graph["edge_index"], w), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_records_go_with_the_graph(monkeypatch):
    monkeypatch.setattr(recording, "_RECORDS", {})  # without what other tests left
    model = NETS["GCN"][0]()
    fast = through(model, "aot_eager")
    y = fast(contract.draw(8, 5).requires_grad_(), **wired(8))
    assert len(recording._RECORDS) == 2
    y.sum().backward()
    del y
    gc.collect()
    assert not recording._RECORDS
    with torch.no_grad():
        held = fast(contract.draw(8, 5), **wired(8))
    assert not recording._RECORDS
    del held


def test_backward_twice_and_never_again():
    conv = contract.make(bases.Adjacency())
    fast = through(conv, "eager")
    x = contract.draw(6, 3).requires_grad_()
    edges = wired(6)["edge_index"]
    y = fast(x, edges).sum()
    (first,) = torch.autograd.grad(y, x, retain_graph=True)
    (again,) = torch.autograd.grad(y, x, retain_graph=True)
    assert_close(first, again)
    (g,) = torch.autograd.grad(y.square(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="differentiable once"):
        torch.autograd.grad(g.sum(), x)


def test_a_bound_basis_is_no_new_graph():
    conv = contract.make(bases.Powers(2))
    fast = through(conv)
    for N in range(5, 15):
        bound = conv.basis.bind(wired(N)["edge_index"], size=N, dtype=torch.float64)
        x = contract.draw(N, 3, seed=N)
        assert_close(fast(x, bound), conv(x, bound))
    assert counters["stats"]["unique_graphs"] <= 2


@pytest.mark.parametrize(
    ("edges", "size", "backend"),
    [
        ([[0, 9], [1, 0]], None, "eager"),
        ([[0, -1], [1, 0]], None, "aot_eager"),
        pytest.param([[0, 1], [1, 7]], (3, 5), "inductor", marks=pytest.mark.slow),
    ],
    ids=["source", "negative", "target"],
)
def test_indices_out_of_range_raise(edges, size, backend):
    conv = contract.make(bases.Adjacency("mean"))
    fast = through(conv, backend)
    x = contract.draw(3, 3)
    features = x if size is None else (x, None)
    fast(features, torch.tensor([[0, 1], [1, 0]]), size=size)
    with pytest.raises(ValueError, match="edge_index: expected"):
        fast(features, torch.tensor(edges), size=size)


def test_targets_that_only_the_numbers_tell():
    conv = contract.make(bases.Bags("mean"))
    fast = through(conv, "aot_eager")
    for bags in ([0, 2, 2, 0], [0, 1, 1], [3, 3, 0, 1, 1]):
        x, batch = contract.draw(len(bags), 3), torch.tensor(bags)
        assert_close(fast(x, batch=batch), conv(x, batch=batch))


def test_pairs_of_several_sizes():
    conv = contract.make(bases.Identity() + bases.Adjacency("mean"))
    fast = through(conv, "aot_eager")
    for M, N in itertools.product((4, 6), (5, 7)):
        x, edges = (contract.draw(M, 3), contract.draw(N, 3)), torch.stack([torch.arange(N) % M, torch.arange(N)])
        assert_close(fast(x, edges), conv(x, edges))
    assert counters["stats"]["unique_graphs"] == 1


def test_an_edge_index_of_pyg():
    conv = contract.make(bases.Adjacency("sym"))
    fast = through(conv)
    edges = EdgeIndex(wired(6)["edge_index"], sparse_size=(6, 6)).sort_by("col").values
    x = contract.draw(6, 3)
    assert_close(fast(x, edges), conv(x, edges))


def test_autocast():
    conv = contract.make(bases.Adjacency("mean"), dtype=torch.float32)
    edges, x = wired(6)["edge_index"], contract.draw(6, 3, dtype=torch.float32).requires_grad_()

    def step(f):
        with torch.autocast("cpu", torch.bfloat16):
            return f(x, edges)

    found, expected = (results(lambda f=f: step(f), [x], conv) for f in (through(conv, "aot_eager"), conv))
    assert found[0].dtype == torch.bfloat16
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("kind", ["native", "theta_first", "taps"])
@pytest.mark.sweep(1)
def test_dropout_draws_anew(kind):
    taps = theta.Depthwise(dropout=0.5)
    basis = bases.Shifts(None, [0, 1]) if kind == "taps" else bases.Attention(2, mechanisms.Dot(4), dropout=0.5)
    conv = BasisConv(4, 4, basis, taps if kind == "taps" else None, order="auto" if kind == "taps" else kind)
    x = contract.draw(6, 4, dtype=torch.float32).requires_grad_()
    fast = torch.compile(lambda x: (conv(x), conv(x)), fullgraph=True, backend="aot_eager")
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        drawn.append(fast(x))
        torch.rand(2)
    (a, b), (c, d) = drawn
    assert not torch.equal(a, b)
    assert torch.equal(a, c)
    assert torch.equal(b, d)
    assert not torch.equal(fast(x)[0], fast(x)[0])


def test_what_draws_nothing_is_traced_once_for_training_and_evaluation():
    conv = contract.make(bases.Adjacency())
    fast, x, edges = through(conv), contract.draw(6, 3), wired(6)["edge_index"]
    for training in (True, False):
        conv.train(training)
        assert_close(fast(x, edges), conv(x, edges))
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("backend", ["aot_eager", INDUCTOR])
def test_checkpointing(backend):
    """What is computed again for the gradient is what was computed: the same is drawn."""
    conv = BasisConv(4, 4, bases.Attention(2, mechanisms.Dot(4), dropout=0.5), theta.LowRank(4)).double()
    x = contract.draw(6, 4).requires_grad_()

    def run(x, *options):
        return checkpoint(lambda x: conv(x.sin()).sin(), x, use_reentrant=False) if options else conv(x.sin()).sin()

    found = []
    for f in (lambda x: run(x, "checkpoint"), run):
        torch._dynamo.reset()
        torch.manual_seed(0)
        y = torch.compile(f, fullgraph=True, backend=backend)(x)
        found.append((y, *torch.autograd.grad(y.square().sum(), x)))
    assert_close(*found)


@pytest.mark.slow
def test_numbers_beside_the_tensors():
    conv = contract.make(bases.Chebyshev(3))
    fast = through(conv, "aot_eager")
    x, edges = contract.draw(6, 3), wired(6)["edge_index"]
    for value in (1.5, 1.7, 1.9, 2.5):
        largest = torch.tensor(value, dtype=torch.float64)
        assert_close(fast(x, edges, lambda_max=largest), conv(x, edges, lambda_max=value))
    assert counters["stats"]["unique_graphs"] == 1
    assert_close(fast(x, edges, lambda_max=1.5), conv(x, edges, lambda_max=1.5))
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match="size: expected"):  # while it is traced
        fast(x, edges, size=(6, -1))


def test_sparse_layouts_and_open_layers_are_left_uncompiled():
    conv, x = contract.make(bases.Adjacency("mean")), contract.draw(6, 3)
    adjacency = torch.eye(6, dtype=torch.float64).to_sparse_csr()
    assert_close(torch.compile(conv, backend="eager")(x, adjacency), conv(x, adjacency))
    lazy = BasisConv(-1, 4, bases.Adjacency()).double()
    fast = torch.compile(lazy, backend="aot_eager")
    assert_close(fast(x, wired(6)["edge_index"]), lazy(x, wired(6)["edge_index"]))
    assert_close(fast(x, wired(6)["edge_index"]), lazy(x, wired(6)["edge_index"]))


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
@pytest.mark.sweep(1)
def test_copies_are_layers_of_their_own(how):
    conv = contract.make(bases.Adjacency())
    twin = copy.deepcopy(conv) if how == "deepcopy" else pickle.loads(pickle.dumps(conv))
    assert twin.serial != conv.serial
    x, edges = contract.draw(6, 3), wired(6)["edge_index"]
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
    del conv
    gc.collect()
    assert not through(twin)(x, edges).any()


@pytest.mark.parametrize("own", ["learning", "frozen", "hooked"])
def test_parameters_of_another(own):
    conv = contract.make(bases.Adjacency()).requires_grad_(own != "frozen")
    if own == "hooked":
        conv.theta.weight.register_hook(torch.clone)
    others = {name: torch.zeros_like(p).requires_grad_() for name, p in conv.named_parameters()}
    edges, x = wired(6)["edge_index"], contract.draw(6, 3)
    fast = through(lambda p, x: torch.func.functional_call(conv, p, (x, edges)))
    assert not fast(others, x).any()
    assert conv(x, edges).any()


CONVERTED = {  # those that attend by weights of their own are compiled in test_faults
    "GCNConv": lambda: geometric.GCNConv(5, 4),
    "SSGConv": lambda: geometric.SSGConv(5, 4, 0.1, 2),
    "SAGEConv": lambda: geometric.SAGEConv(5, 4),
    "ClusterGCNConv": lambda: geometric.ClusterGCNConv(5, 4),
    "LEConv": lambda: geometric.LEConv(5, 4),
    "MixHopConv": lambda: geometric.MixHopConv(5, 4),
    "AGNNConv": lambda: geometric.AGNNConv(),
    "FeaStConv": lambda: geometric.FeaStConv(5, 4, 2),
    "HypergraphConv": lambda: geometric.HypergraphConv(5, 4),
}


@pytest.mark.parametrize("kind", CONVERTED)
@pytest.mark.sweep(1)
def test_converted_layers(kind):
    layer = convert(CONVERTED[kind]().double())
    fast = through(layer)
    for N in (6, 9):
        x, edges = contract.draw(N, 5, seed=N), wired(N)["edge_index"]
        assert_close(fast(x, edges), layer(x, edges), rtol=1e-10, atol=1e-10)
    assert counters["stats"]["unique_graphs"] == 1


def test_what_no_operator_returns_is_left_uncompiled():
    conv = contract.make(bases.Attention(1, mechanisms.Dot(4), bases.Adjacency()))
    x, edges = contract.draw(6, 3), wired(6)["edge_index"]
    fast = torch.compile(conv, backend="eager")
    (y, A), (expected, B) = fast(x, edges, return_attention=True), conv(x, edges, return_attention=True)
    assert_close(y, expected)
    assert_close(A.to_dense(), B.to_dense())


def test_saved_views_are_those_of_the_arguments_that_are_given():
    """Of arguments in memory that is laid out as before, they are views; of others, of a copy that is."""
    whole = torch.arange(24.0).view(4, 6)
    given = whole[:3, 1:5]
    views = [given, given.t(), given[1:], given[:, 2]]
    saved = recording.SavedArguments([given])
    packed = [saved.pack(t) for t in views]
    alike, other = (10 + whole).clone()[:3, 1:5], (10 + given).t().contiguous().t()
    for again in (alike, other):
        with saved.given([again]):
            for view, parts in zip(views, packed, strict=True):
                found = saved.unpack(parts)
                assert_close(found, 10 + view)
                assert found.stride() == view.stride()
                assert (found.untyped_storage()._cdata == again.untyped_storage()._cdata) == (again is alike)


FORKED = """
import os
from pyg_basisconv import BasisConv, bases
print(BasisConv(1, 1, bases.Identity()).serial, flush=True)
if hasattr(os, "fork"):
    child = os.fork()
    assert not child or os.waitpid(child, 0)[1] == 0  # one prints after the other
    print(BasisConv(1, 1, bases.Identity()).serial, flush=True)
"""


@pytest.mark.slow
def test_another_process_has_other_numbers():
    """Compiled code is kept on disk, by what its graph says of a layer: that is the number."""
    numbers = [int(line) for line in subprocess.check_output([sys.executable, "-c", FORKED], text=True).split()]
    numbers = sorted([*numbers, contract.make(bases.Identity()).serial])
    near = [b - a for a, b in itertools.pairwise(numbers) if b - a <= 1 << 20]
    assert near == ([1] if len(numbers) == 4 else [])  # two layers of one process


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_hooks_of_parameters_run_once(backend):
    conv = contract.make(bases.Adjacency())
    conv.theta.weight.register_hook(lambda g: 2 * g)
    x = contract.draw(6, 3)
    same(conv, lambda layer: layer(x, wired(6)["edge_index"]), [], backend)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_parameters_between_the_two_passes(backend):
    """What happens to them after the call is not for the gradient of the operator: as without compilation."""
    conv = contract.make(bases.Adjacency())
    x, edges = contract.draw(6, 3).requires_grad_(), wired(6)["edge_index"]

    def hooked(layer: nn.Module) -> torch.Tensor:
        y, hook = layer(x, edges), conv.theta.weight.register_hook(lambda g: 2 * g)
        handles.append(hook)
        return y

    def frozen(layer: nn.Module) -> torch.Tensor:
        y = layer(x, edges)
        conv.requires_grad_(False)
        return y

    handles: list[torch.utils.hooks.RemovableHandle] = []
    for run in (hooked, frozen):
        found = []
        for layer in (through(conv, backend), conv):
            found.append(results(lambda layer=layer, run=run: run(layer), [x], conv))
            conv.requires_grad_()
            while handles:
                handles.pop().remove()
        for a, b in zip(*found, strict=True):
            assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("backend", ["aot_eager", INDUCTOR])
def test_a_layer_that_does_nothing(backend):
    conv = BasisConv(4, 4, bases.Identity(), theta.Pass(), bias=False)
    x = contract.draw(6, 4).requires_grad_()
    fast = torch.compile(lambda x: conv(x * 2).sin_() + conv(x), fullgraph=True, backend=backend)
    expected = (x * 2).sin() + x
    y = fast(x)
    assert_close(y, expected)
    assert_close(torch.autograd.grad(y.square().sum(), x), torch.autograd.grad(expected.square().sum(), x))


def test_what_has_no_part_has_no_gradient():
    conv = BasisConv(4, 4, bases.Identity(), theta.Pass(), bias=False)
    w = torch.ones(8, dtype=torch.float64, requires_grad=True)
    x, edges = contract.draw(6, 4), torch.arange(8).remainder(6).expand(2, 8)
    fast = torch.compile(lambda w: conv(x, edges, w).sum() + w.sum(), fullgraph=True, backend="aot_eager")
    fast(w).backward()
    assert_close(w.grad, torch.ones_like(w))


VIEWS = {
    "turned": lambda image: image.transpose(-1, -2),
    "expanded": lambda image: image[:, :1].expand(-1, 2, -1, -1),
    "one": lambda image: image[0],
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.slow
def test_inductor_takes_images_as_they_lie(view):
    image = VIEWS[view](contract.draw(3, 2, 6, 8))
    layer = GridConv(2, 3, bases.Window(None, (3, 3), padding=1)).double()
    fast = torch.compile(lambda i: layer(i).relu(), fullgraph=True, dynamic=True)
    assert_close(fast(image), layer(image).relu())


def test_saved_tensors_that_are_copied_are_refused():
    conv = contract.make(bases.Adjacency())
    x = contract.draw(6, 3).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda t: t):
        y = through(conv, "aot_eager")(x, wired(6)["edge_index"])
    with pytest.raises(RuntimeError, match="saved_tensors_hooks"):
        y.sum().backward()


@pytest.mark.slow
def test_nothing_stays_of_a_step():
    conv = BasisConv(4, 4, bases.Attention(2, mechanisms.Dot(4)), order="theta_first").double()
    fast, x = through(conv, "aot_eager"), contract.draw(6, 4)

    def alive() -> int:
        gc.collect()
        return sum(issubclass(type(t), torch.Tensor) for t in gc.get_objects())  # a dead proxy has no __class__

    for _ in range(2):
        fast(x).sum().backward()
    before = alive()
    for _ in range(5):
        fast(x).sum().backward()
    assert alive() <= before


def test_a_parameter_under_two_names():
    conv = contract.make(bases.Adjacency())
    conv.register_parameter("again", conv.theta.weight)
    x = contract.draw(6, 3)
    same(conv, lambda layer: layer(x, wired(6)["edge_index"]), [], "aot_eager")


@pytest.mark.parametrize(
    ("options", "weighted"),
    [
        ({"improved": True}, True),
        ({"improved": True}, False),
        ({"cached": True}, True),
        ({"add_self_loops": False}, False),
    ],
    ids=str,
)
@pytest.mark.sweep(1)
def test_options_of_a_converted_layer_are_compiled_whole(options: dict[str, bool], weighted: bool):
    """Also those under which graphs without weights have another basis."""
    layer, given = convert(GCNConv(3, 4, **options)).double(), wired(6)
    weight = contract.draw(given["edge_index"].shape[1]).abs() if weighted else None
    same(layer, lambda f: f(contract.draw(6, 3), given["edge_index"], weight), [])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # torch reads it
@pytest.mark.parametrize("kind", ["GCNConv", "GATConv", "SuperGATConv"])
def test_compiled_autograd(kind: str) -> None:
    """Traced, the way back gave kernels the addresses of an earlier call."""
    conv = convert(getattr(geometric, kind)(6, 4)).eval()
    edge_index = torch.tensor([[0, 1, 2, 0, 1], [1, 0, 3, 3, 1]])
    x = torch.randn(4, 6, requires_grad=True)
    (expected,) = torch.autograd.grad(conv(x, edge_index).square().sum(), x)
    for _ in range(3):
        x.grad, y = None, conv(x, edge_index).square().sum()
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            y.backward()
        torch.testing.assert_close(x.grad, expected)
