"""Under another default device than that of the inputs: torch's "meta" stands in for a GPU, as it has no numbers."""

import ast
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.nn.utils.rnn import pack_padded_sequence
from torch.testing import assert_close
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_leaves
from torch_geometric.data import Data

import pyg_basisconv
import pyg_basisconv.nn as drop_in
from pyg_basisconv import (
    BasisConv,
    BasisGRUCell,
    BasisRNN,
    GridConv,
    bases,
    decompose,
    explain_head,
    gram,
    mechanisms,
    reading,
    theta,
    transforms,
)
from pyg_basisconv.bases.group import _square
from pyg_basisconv.cache import IdentityCache
from pyg_basisconv.kernels import multihead
from pyg_basisconv.verify import Case, cases, forget
from pyg_basisconv.verify.recipes import constructed
from pyg_basisconv.walks import Sort, Vocabulary
from pyg_basisconv.walks.counting import Instances
from tests.cases import CASES, SITES
from tests.contract import PATHS, THETAS, draw, make, tensors, widths
from tests.convert.conversion import ENDS, evaluated, example, like, runner

ROOT = Path(pyg_basisconv.__file__).parent
ELSEWHERE = torch.device("meta")
pytestmark = pytest.mark.filterwarnings("ignore:Converting sparse tensor to CSR", "ignore:Sparse invariant checks")


def compare(monkeypatch: pytest.MonkeyPatch, prepare: Callable[[], Callable[[], Any]]) -> None:
    """What is prepared outside of the mode gives the same within, where nothing is bound yet."""
    found = []
    for mode in (ELSEWHERE, nullcontext()):
        for name in ("_GRAPHS", "_STRUCTURES"):
            monkeypatch.setattr(reading, name, IdentityCache())
        monkeypatch.setattr(multihead, "_CONSTANTS", {})
        torch.default_generator.manual_seed(0)
        run = prepare()
        with mode:
            found.append([t.detach() if isinstance(t, Tensor) else t for t in tree_leaves(run())])
    within, outside = found
    assert within
    for a, b in zip(within, outside, strict=True):
        if isinstance(b, Tensor):
            assert_close(a, b, rtol=1e-9, atol=1e-9)
        else:
            assert a == b


def differentiated(call: Callable[..., Any], leaves: list[Tensor], parameters: list[Tensor]) -> Callable[[], Any]:
    """Results and gradients of two calls, the second of which finds what the first has kept."""

    def run() -> Any:
        for _ in range(2):
            y = call(*leaves)
            yield y, grad(y.square().sum(), [*leaves, *parameters], allow_unused=True)

    return lambda: [*run()]


# --- calls ---


@pytest.mark.parametrize("case", CASES)
@pytest.mark.sweep(120)
def test_families(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    c, turn = CASES[case], list(CASES).index(case)
    kind, path = list(THETAS)[turn % len(THETAS)], PATHS[turn // 3 % len(PATHS)]

    def prepare() -> Callable[[], Any]:
        g, conv = c.graph(), make(c.basis(), kind, path)
        given = tensors(g)
        learnt = [name for name in ("edge_weight", "edge_attr") if name in given]
        leaves = [draw(2, g.M, conv.in_channels), *(given[name].clone() for name in learnt)]

        def call(x: Tensor, *values: Tensor) -> Tensor:
            features: Any = x if g.M == g.N else (x, None)
            return conv(features, **{**given, **dict(zip(learnt, values, strict=True))}, size=(g.M, g.N))

        return differentiated(call, [leaf.requires_grad_() for leaf in leaves], [*conv.parameters()])

    compare(monkeypatch, prepare)


@pytest.mark.parametrize("made", [lambda case: case.ours, lambda case: like(case.reference)], ids=["convert", "nn"])
@pytest.mark.parametrize(("kind", "options"), ENDS)
@pytest.mark.sweep(50)
def test_layers(kind: str, options: dict, made: Callable[[Case], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """In all calls that `test_recipes.py` compares with the original."""

    def prepare() -> Callable[[], Any]:
        runs = []
        for case in cases(kind, options):
            forget(case.reference)
            f, leaves = made(case), [leaf.requires_grad_() for leaf in case.leaves]
            runs.append(differentiated(lambda *given, f=f, call=case.call: call(f, *given), leaves, [*f.parameters()]))
        return lambda: [run() for run in runs]

    compare(monkeypatch, prepare)


# --- all else ---

EDGES = [[0, 1, 1, 2, 3], [1, 0, 2, 3, 3]]


def path() -> Tensor:
    return torch.tensor(EDGES)


def dropping() -> Callable[[], Any]:
    """Weights of attention that are dropped are drawn by a seed, or at once as PyG draws them."""
    conv = BasisConv(4, 4, bases.Attention(2, mechanisms.Additive(), bases.Adjacency(), dropout=0.5), theta.Heads())
    layer, x, edges = drop_in.GATConv(4, 4, dropout=0.5), torch.randn(4, 4), path()
    return lambda: [conv(x, edges), layer(x, edges)]


def sparse_features() -> Callable[[], Any]:
    x, edges, drop = torch.randn(4, 6).relu(), path(), drop_in.Dropout(0.5)
    layers = [BasisConv(6, 4, bases.GCN()), BasisConv(6, 4, bases.GCN(), theta.Grouped(2))]
    forms = [x.to_sparse_csr(), x.to_sparse_coo()]
    return lambda: [layer(drop(form), edges) for layer in layers for form in forms]


def sequences() -> Callable[[], Any]:
    rnn, x, edges = BasisRNN([BasisGRUCell(3, 4, bases.Diffusion(2))]), torch.randn(5, 2, 4, 3), path()
    return lambda: rnn(pack_padded_sequence(x, torch.tensor([5, 3], device="cpu")), edges)


def least_squares() -> Callable[[], Any]:
    """Of a matrix, a layer and a function."""
    phi, edges, basis = torch.randn(4, 4, dtype=torch.float64), path(), bases.Identity() + bases.Adjacency("sym")
    layer, shifts = GridConv(3, 2, bases.Window(4, 3, padding=1), bias=False).double(), bases.Shifts(4, range(3))
    bound = basis.bind(edges, dtype=torch.float64)

    def run() -> Any:
        yield [gram(basis, edges).matrix, gram(basis, edges).squared_distances]
        yield [decompose(phi, some).theta for some in (shifts, bound)] + [decompose(layer, shifts).theta]
        yield decompose(lambda x: phi @ x, bound, in_channels=1).theta

    return lambda: [*run()]


def heads() -> Callable[[], Any]:
    conv, x = BasisConv(4, 4, bases.Attention(2, mechanisms.Dot(3), bases.Complete())), torch.randn(5, 4)

    def run() -> Any:
        report = explain_head(conv, x, bases.Shifts(None, range(3)))
        return report.r2, report.matrices()

    return run


def transformed() -> Callable[[], Any]:
    window, image = bases.Window(None, (3, 3), padding=1), torch.randn(2, 4, 5)
    to_grid, shifted = transforms.ToGrid(window), transforms.AddBasis(bases.Shifts(None, [1]))
    data = Data(x=torch.randn(4, 2))
    return lambda: [to_grid(Data(x=image)).to_dict(), shifted(data).to_dict()]


def walks() -> Callable[[], Any]:
    types = torch.tensor([0, 1, 0, 1, 0])
    one = Instances(Sort("a.b", ((((0, False),), ((1, False),)),)), Vocabulary(["a", "b"]), path(), types, 4)
    return lambda: [one.count, one.pairs, one.samples(2), one.gap, one.between(0, 0, 3), one.reached(0)]


def lambda_max() -> Callable[[], Any]:
    conv, x, edges = BasisConv(3, 2, bases.Chebyshev(3)), torch.randn(4, 3), path()
    return lambda: conv(x, edges, lambda_max=1.5)


def symmetries() -> Callable[[], Any]:
    """Which the package makes as it is imported."""
    return lambda: _square(reflections=True)


OTHERS = [symmetries, dropping, sparse_features, sequences, least_squares, heads, transformed, walks, lambda_max]


@pytest.mark.parametrize("prepare", OTHERS, ids=lambda f: f.__name__)
def test_all_else(prepare: Callable[[], Callable[[], Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    compare(monkeypatch, prepare)


def test_what_no_tensor_places_is_on_the_default_device() -> None:
    """Each time, though what is bound without tensors is kept."""
    for mode in (nullcontext(), ELSEWHERE, nullcontext()):
        with mode:
            default = torch.get_default_device()
            assert bases.Shifts(None, [1]).bind(size=5).device == bases.Window(5, 3).bind().device == default


# --- construction ---

FAMILIES = {name.rpartition("-")[0]: c for name, c in CASES.items() if name != "Window(sites)-random"}


def emptied(made: Callable[[], nn.Module]) -> Any:
    """A module that is made elsewhere, and has arbitrary numbers until it is filled."""
    with ELSEWHERE:
        module: Any = made()
    assert not any(p.requires_grad and not p.is_meta for p in module.parameters())
    module.to_empty(device="cpu")
    for t in module.parameters():
        t.data.fill_(torch.nan)
    return module


@pytest.mark.parametrize("name", [*FAMILIES, *THETAS])
@pytest.mark.sweep(40)
def test_layers_are_made_elsewhere_and_drawn_here(name: str) -> None:
    """As torch's layers are where memory is short."""

    def made() -> BasisConv:
        basis = FAMILIES[name].basis() if name in FAMILIES else bases.Shifts(None, range(4))
        return BasisConv(*widths(name, basis.K), basis, THETAS.get(name, theta.Full)())

    conv, again = emptied(made), made()
    for layer in (conv, again):
        torch.default_generator.manual_seed(1)
        layer.reset_parameters()
    assert_close(dict(conv.named_parameters()), dict(again.named_parameters()), rtol=0, atol=0)
    assert str(conv) == str(again)  # which shows constants, too


def test_constants_of_a_basis_survive() -> None:
    """Those that no checkpoint has, as they are arguments."""
    points, sites = torch.rand(3, 2), torch.tensor(SITES)
    for basis in (bases.Points(points, 0.5), bases.Window((4, 4), 3, sites=sites)):
        conv = BasisConv(2, 2, basis).to_empty(device="cpu")
        (kept,) = conv.basis.buffers()
        assert torch.equal(kept, points if basis.reads_edges else sites)
        assert {t.dtype for t in conv.double().basis.buffers()} == {torch.float64 if basis.reads_edges else torch.int64}


@pytest.mark.parametrize(("kind", "options"), [p for p in ENDS if p.values[0] != "Linear"])
@pytest.mark.sweep(40)
def test_drop_ins_are_made_elsewhere_and_loaded_here(kind: str, options: dict) -> None:
    case = example(kind, options)
    expected = runner(case)(case.reference)
    first = {"batch_first": True} if kind == "MultiheadAttention" else {}  # as in the example
    with ELSEWHERE:
        layer: Any = constructed(getattr(drop_in, kind), first | options)
    layer = layer.double().to_empty(device="cpu").train(case.reference.training)
    layer.load_state_dict(case.reference.state_dict())
    assert_close(runner(case)(layer), expected)
    assert evaluated(layer)


# --- the sources ---


def test_every_tensor_is_given_a_device() -> None:
    """But parameters, and what a command makes for itself; also where no test here comes by."""
    makers, found = {f.__name__ for f in _device_constructors()}, []
    for path in ROOT.rglob("*.py"):
        if path.name == "planning.py" or path.parent.name == "verify":
            continue
        nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        parameters = {arg for call in calls if ast.unparse(call.func) == "nn.Parameter" for arg in call.args}
        for call in calls:
            module, _, name = ast.unparse(call.func).rpartition(".")
            if module == "torch" and name in makers and call not in parameters:
                placed = name in ("from_numpy", "load") or "device" in [keyword.arg for keyword in call.keywords]
                found += [] if placed else [f"{path.name}:{call.lineno}: {ast.unparse(call)}"]
    assert len(makers) > 20
    assert not found
