"""A call that is like an earlier one takes the earlier one's program: that is never to be seen in a result."""

import copy
import gc
import pickle
import sys
import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.utils import parametrize, prune
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch_geometric import EdgeIndex
from torch_geometric.explain import Explainer, GNNExplainer

import pyg_basisconv
from pyg_basisconv import BasisConv, GridConv, bases, cache, mechanisms, reading, theta
from pyg_basisconv.cache import IdentityCache
from pyg_basisconv.convert.attention import weigh
from tests.bases.test_contract import FORMS
from tests.cases import CASES
from tests.contract import DOUBLE, bind, close, draw

N, E, P, Q = 9, 30, 4, 3
BASES: dict[str, Callable[[], bases.Basis]] = {
    "adjacency": lambda: bases.Adjacency("rw"),
    "GCN": lambda: bases.Adjacency("sym", True),
    "polynomial": lambda: bases.Chebyshev(3),
    "sum": lambda: bases.Identity() + bases.Adjacency("rw"),
    "one power": lambda: bases.Powers(1),
}
ORDERS = ["auto", "a_first", "theta_first"]
every_basis = pytest.mark.parametrize("kind", BASES)
every_order = pytest.mark.parametrize("order", ORDERS)


def edges(seed: int = 0, count: int = E) -> Tensor:
    return torch.randint(N, (2, count), generator=torch.Generator().manual_seed(seed))


def positive(seed: int = 0, count: int = E) -> Tensor:
    return 0.5 + draw(count, seed=seed).abs()


def make(kind: str = "GCN", order: str = "auto", **kwargs: Any) -> BasisConv:
    conv = BasisConv(P, Q, BASES[kind](), order=order, **kwargs).double()
    conv.bias.data = draw(Q, seed=3)
    return conv


def anew(value: Any) -> Any:
    """The same value in memory of its own."""
    if isinstance(value, tuple | list):
        return type(value)(anew(part) for part in value)
    return value.detach().clone() if isinstance(value, Tensor) else value


def fresh(conv: BasisConv, *args: Any, **kwargs: Any) -> Tensor:
    """What a layer makes of such arguments that has seen none, by messages."""
    new = copy.deepcopy(conv)
    new.fuse, new.order = False, "auto"
    return new(*anew(args), **{name: anew(value) for name, value in kwargs.items()}).detach()


def same(conv: BasisConv, *args: Any, **kwargs: Any) -> None:
    """The call as a fresh layer has it; by a program of before, or by one that is made and then taken."""
    for _ in range(2):
        close(conv(*args, **kwargs).detach(), fresh(conv, *args, **kwargs))


class Twice(nn.Module):
    def forward(self, t: Tensor) -> Tensor:
        return 2 * t


def test_programs_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or nothing here would test anything."""
    conv, x, e, w = make(), draw(N, P), edges(), positive()
    bound = []
    bind_once = BasisConv._bind
    monkeypatch.setattr(BasisConv, "_bind", lambda self, *a: bound.append(1) or bind_once(self, *a))
    for _ in range(3):
        conv(x, e)
        conv(x, e, w)
        conv(x + 1, e)
    assert len(bound) == 2


# Arguments that change.

CHANGES: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "x": lambda t: t["x"].mul_(2),
    "x, its data": lambda t: t["x"].data.mul_(2),
    "edge_index": lambda t: t["edge_index"].copy_(edges(5)),
    "edge_index, a row": lambda t: t["edge_index"][1].copy_(edges(5)[1]),
    "edge_index, other data": lambda t: setattr(t["edge_index"], "data", edges(5)),
    "edge_index, fewer data": lambda t: setattr(t["edge_index"], "data", t["edge_index"].data[:, :7]),
    "edge_weight": lambda t: t["edge_weight"].copy_(positive(5)),
    "edge_weight, its data": lambda t: t["edge_weight"].data.copy_(positive(5)),
    "edge_weight, its storage": lambda t: t["edge_weight"].untyped_storage().copy_(positive(5).untyped_storage()),
    "edge_weight, other data": lambda t: setattr(t["edge_weight"], "data", positive(5)),
    "batch": lambda t: t["batch"].copy_(torch.arange(N) // 3),
    "lambda_max": lambda t: t["lambda_max"].mul_(torch.tensor([1.5, 2.0, 1.0], dtype=DOUBLE)),
    "lambda_max, its data": lambda t: t["lambda_max"].data.add_(1),
}


@pytest.mark.parametrize("cached", [False, True], ids=["", "cached"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.sweep(10)
def test_an_argument_that_changes(change: str, cached: bool) -> None:
    conv = make("polynomial", cached=cached)
    t = {
        "x": draw(N, P),
        "edge_index": edges(),
        "edge_weight": positive(),
        "batch": torch.arange(N) % 3,
        "lambda_max": torch.tensor([2.0, 2.5, 3.0], dtype=DOUBLE),
    }
    same(conv, **t)
    before = conv(**t).detach()
    CHANGES[change](t)
    if change == "edge_index, fewer data":
        t["edge_weight"] = t["edge_weight"][:7]
    same(conv, **t)
    with pytest.raises(AssertionError):
        close(conv(**t).detach(), before)


@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
def test_edge_types_that_change(kind: torch.dtype) -> None:
    conv, x, e = BasisConv(P, Q, bases.Relations(3)).double(), draw(N, P), edges()
    types = (torch.arange(E) % 3).to(kind)
    for _ in range(3):
        same(conv, x, e, None, types)
        types.copy_(types.roll(1))


@pytest.mark.parametrize("name", ["mask", "valid"])
def test_masks_that_change(name: str) -> None:
    conv = BasisConv(P, 4, bases.Attention(2, mechanisms.Dot(2)), theta.Heads()).double()
    given = {"mask": torch.eye(N, dtype=torch.bool), "valid": torch.arange(N) < 5}[name]
    for i in range(3):
        same(conv, draw(N, P), **{name: given})
        given.copy_(given.roll(i + 1, -1))


def test_another_graph_at_the_same_address_and_of_the_same_id() -> None:
    conv, x, seen, again = make(), draw(N, P), set(), 0
    for seed in range(1000):  # until the allocator has given some places a second time
        e = edges(seed)
        again += (id(e), e.data_ptr()) in seen
        seen.add((id(e), e.data_ptr()))
        same(conv, x, e)
        del e
        if again > 10 and seed > 20:
            break
    array = edges().numpy()
    for seed in range(5):
        array[...] = edges(seed).numpy()
        e = torch.from_numpy(array)
        same(conv, x, e)
        del e
    assert again


LAYOUTS: dict[str, Callable[[Tensor], Any]] = {
    "COO": lambda a: a.clone().coalesce(),
    "COO, not coalesced": lambda a: torch.sparse_coo_tensor(a.indices().clone(), a.values().clone(), a.shape),
    "CSR": lambda a: a.to_sparse_csr(),
    "CSC": lambda a: a.to_sparse_csc(),
}
INDICES: dict[str, Callable[[Any], Tensor]] = {
    "COO": lambda a: a._indices()[1],
    "COO, not coalesced": lambda a: a._indices()[1],
    "CSR": lambda a: a.col_indices(),
    "CSC": lambda a: a.row_indices(),
}
VALUES: dict[str, Callable[[Any], Tensor]] = {
    **dict.fromkeys(["COO", "CSR", "CSC"], lambda a: a.values()),
    "COO, not coalesced": lambda a: a._values(),
}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_edges_in_other_layouts(kind: str) -> None:
    some = torch.sparse_coo_tensor(edges(), positive(), (N, N)).coalesce()
    conv, x, plain = make("adjacency"), draw(N, P), edges()

    def expected(given: Any) -> Tensor:
        dense = given.to_dense()  # (N, M)
        target, source = dense.nonzero().unbind(1)
        return fresh(conv, x, torch.stack([source, target]), dense[target, source])

    given = LAYOUTS[kind](some)
    for step in range(4):
        for _ in range(2):
            close(conv(x, given).detach(), expected(given))
            same(conv, x, plain)  # in turn
        if step == 0:
            VALUES[kind](given).mul_(torch.linspace(1, 2, VALUES[kind](given).numel(), dtype=DOUBLE))
        elif step == 1:
            VALUES[kind](given).data.mul_(torch.linspace(2, 1, VALUES[kind](given).numel(), dtype=DOUBLE))
        elif step == 2:
            INDICES[kind](given).copy_(INDICES[kind](given).flip(0).clone())


@pytest.mark.parametrize("kind", [*LAYOUTS, "EdgeIndex", "bound"])
def test_programs_are_taken_for_other_layouts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    conv, x, some = make("adjacency"), draw(N, P), torch.sparse_coo_tensor(edges(), positive(), (N, N)).coalesce()
    if kind == "bound":
        given = conv.basis.bind(edges(), positive(), size=N)
    else:
        given = LAYOUTS[kind](some) if kind in LAYOUTS else EdgeIndex(edges(), sparse_size=(N, N))
    y = conv(x, given)
    monkeypatch.setattr(BasisConv, "_bind", None)
    assert torch.equal(conv(x, given), y)


def test_an_edge_index_that_changes() -> None:
    conv, x = make("adjacency"), draw(N, P)
    e = EdgeIndex(edges(), sparse_size=(N, N))
    close(conv(x, e).detach(), fresh(conv, x, edges()))
    e.as_tensor()[0].copy_(edges(1)[0])
    for _ in range(2):
        close(conv(x, e).detach(), fresh(conv, x, e.as_tensor()))


def test_numbers_that_are_written_while_the_program_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """By another thread, say: between what reads them and what keeps the program."""
    for name, change in (
        ("weight", lambda t: t.data.mul_(torch.linspace(1, 3, E))),
        ("edges", lambda t: t.copy_(edges(5))),
    ):
        conv, x, e, w = make("adjacency"), draw(N, P), edges(), positive()
        own = conv._evaluation
        written = w if name == "weight" else e
        conv._evaluation = lambda *a, own=own, t=written, change=change: (change(t), own(*a))[1]  # type: ignore[method-assign]
        conv(x, e, w)
        assert not len(conv._programs)
        del conv._evaluation
        same(conv, x, e, w)


# Parameters that change.

DEEDS: dict[str, Callable[[BasisConv], Any]] = {
    "in place": lambda c: c.weight.data.mul_(2),
    "another weight": lambda c: setattr(c.theta, "weight", nn.Parameter(draw(*c.weight.shape, seed=8))),
    "another bias": lambda c: setattr(c, "bias", nn.Parameter(draw(Q, seed=8))),
    "no bias": lambda c: setattr(c, "bias", None),
    "a weight laid out otherwise": lambda c: setattr(
        c.theta, "weight", nn.Parameter(draw(*c.weight.shape[::-1], seed=8).permute(2, 1, 0))
    ),
    "another theta": lambda c: setattr(c, "theta", theta.Full().build(c.basis.K, P, Q).double()),
    "theta of another kind": lambda c: setattr(c, "theta", theta.LowRank(2).build(c.basis.K, P, Q).double()),
    "another basis": lambda c: setattr(c, "basis", bases.Adjacency("mean") if c.basis.K == 1 else bases.Powers(3)),
    "load_state_dict": lambda c: c.load_state_dict({k: v + 1 for k, v in c.state_dict().items()}),
    "load_state_dict, assigned": lambda c: c.load_state_dict(
        {k: v + 1 for k, v in c.state_dict().items()}, assign=True
    ),
    "parametrized weight": lambda c: parametrize.register_parametrization(c.theta, "weight", Twice()),
    "parametrized bias": lambda c: parametrize.register_parametrization(c, "bias", Twice()),
    "pruned": lambda c: prune.l1_unstructured(c.theta, "weight", 0.5),
    "frozen": lambda c: c.requires_grad_(False),
    "swapped": lambda c: torch.utils.swap_tensors(c.theta.weight, nn.Parameter(draw(*c.weight.shape, seed=8))),
    "flow": lambda c: setattr(c, "flow", "target_to_source"),
    "order": lambda c: setattr(c, "order", "theta_first"),
    "cached": lambda c: setattr(c, "cached", True),
    "messages": lambda c: setattr(c, "fuse", False),
    "several messages": lambda c: setattr(c, "decomposed_layers", 2),
    "there and back": lambda c: c.float().double(),
}


@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("kind", ["GCN", "polynomial"])
@pytest.mark.sweep(12)
def test_a_layer_that_changes(kind: str, deed: str) -> None:
    conv, x, e = make(kind), draw(N, P), edges()
    same(conv, x, e)
    with torch.no_grad():
        same(conv, x, e)
    DEEDS[deed](conv)
    own = copy.deepcopy(conv.state_dict())
    if deed == "pruned":  # a copy cannot be made of what hooks have computed
        plain = make(kind)
        plain.weight.data, plain.bias.data = own["theta.weight_orig"] * own["theta.weight_mask"], own["bias"]
        close(conv(x, e).detach(), fresh(plain, x, e))
        return
    same(conv, x, e)
    with torch.no_grad():
        same(conv, x, e)
    for parameter in conv.parameters():
        parameter.data.mul_(3)
    same(conv, x, e)


def test_a_weight_norm_by_hooks() -> None:
    conv, x, e = make("adjacency"), draw(N, P), edges()
    y = conv(x, e)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.utils.weight_norm(conv.theta, "weight")
    with torch.no_grad():
        for factor in (2, 4):
            conv.theta.weight_g.mul_(2)
            close(conv(x, e) - conv.bias, factor * (y - conv.bias))
    nn.utils.remove_weight_norm(conv.theta)
    same(conv, x, e)


@every_basis
def test_functional_call_and_tied_weights(kind: str) -> None:
    conv, x, e = make(kind), draw(N, P), edges()
    same(conv, x, e)
    state = {name: (2 * t).detach().requires_grad_() for name, t in conv.state_dict().items()}
    y = torch.func.functional_call(conv, state, (x, e))
    close(y, 2 * conv(x, e))
    assert all(g.any() for g in torch.autograd.grad(y.sum(), [state["theta.weight"], state["bias"]]))
    other = make(kind)
    same(other, x, e)
    other.theta.weight, other.bias = conv.theta.weight, conv.bias
    close(other(x, e), conv(x, e))
    conv.weight.data.neg_()
    close(other(x, e), conv(x, e))
    gradients = torch.autograd.grad((other(x, e) + conv(x, e)).sum(), conv.weight)[0]
    close(gradients, 2 * torch.autograd.grad(conv(x, e).sum(), conv.weight)[0])


class DoubledBefore(theta.Full):
    def project(self, x: Tensor) -> Any:
        return 2 * super().project(x)


class DoubledAfter(theta.Full):
    def contract(self, u: Any) -> Tensor:
        return 2 * super().contract(u)


@pytest.mark.parametrize(("kind", "order"), [(DoubledBefore, "theta_first"), (DoubledAfter, "a_first")])
def test_a_kind_of_parameter_that_makes_something_else_of_its_weight(kind: type[theta.Full], order: str) -> None:
    conv = BasisConv(P, Q, bases.Adjacency(), kind(), order=order, bias=False).double()
    plain = BasisConv(P, Q, bases.Adjacency(), order=order, bias=False).double()
    plain.weight.data = conv.weight.data
    for _ in range(2):
        close(conv(draw(N, P), edges()), 2 * plain(draw(N, P), edges()))


@pytest.mark.parametrize("order", ["a_first", "theta_first"])
def test_fixed_numbers_that_are_set_anew(order: str) -> None:
    """One for all matrices, and then one for each."""
    conv = BasisConv(P, P, bases.Identity() + bases.Adjacency("rw"), theta.Pass(scale=2.0), order=order).double()
    x, e = draw(N, P), edges()
    for scale in (2.0, (1.0, 3.0), 0.5):
        conv.theta.scale = scale
        same(conv, x, e)


@pytest.mark.parametrize("given", ["image", "bound"])
@pytest.mark.parametrize("kind", ["window", "group", "lifted"])
def test_the_parameter_of_a_convolution_of_images(kind: str, given: str) -> None:
    """A program of a vendor's kernel reads it anew."""
    window = bases.Window((5, 5), (3, 3), padding=1)
    basis = window if kind == "window" else bases.Group("p4", window, lift=kind == "lifted")
    conv, image = GridConv(2, 3, basis).double(), draw(1, 2, *([4] if kind == "group" else []), 5, 5)
    more = {"edge_index": basis.bind(dtype=DOUBLE)} if given == "bound" else {}
    for seed in range(3):
        conv.theta.weight = nn.Parameter(draw(*conv.weight.shape, seed=seed))
        for _ in range(2):
            y = conv(image, **more)
            close(y.detach(), fresh(conv, image))
        assert torch.autograd.grad(y.sum(), conv.theta.weight)[0].any()
    parametrize.register_parametrization(conv.theta, "weight", Twice())
    for _ in range(2):
        close(conv(image, **more).detach(), fresh(conv, image))
        conv.theta.parametrizations.weight.original.data.mul_(3)


# Modes.


@pytest.mark.parametrize("kind", [kind for kind in BASES if kind != "one power"])  # which reads no weights
@every_order
@pytest.mark.sweep(5)
def test_what_needs_a_gradient_gets_it(kind: str, order: str) -> None:
    conv, x, e, w = make(kind, order), draw(N, P), edges(), positive()
    leaves = [x, w, conv.theta.weight, conv.bias]
    for needs in [(i >> 0 & 1, i >> 1 & 1, i >> 2 & 1, i >> 3 & 1) for i in (0, 4, 1, 5, 15, 2, 8, 7, 12, 0)]:
        for leaf, need in zip(leaves, needs, strict=True):
            leaf.requires_grad_(bool(need))
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        for _ in range(2):
            y = conv(x, e, w)
            assert y.requires_grad == bool(wanted)
            close(y.detach(), fresh(conv, x, e, w))
        if not wanted:
            continue
        gradients = torch.autograd.grad(y.square().sum(), wanted, allow_unused=True)
        conv.fuse = False
        expected = torch.autograd.grad(conv(x, e, w).square().sum(), wanted, allow_unused=True)
        conv.fuse = True
        for mine, theirs in zip(gradients, expected, strict=True):
            close(torch.zeros(()) if mine is None else mine, torch.zeros(()) if theirs is None else theirs)


@every_basis
@every_order
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad], ids=["inference", "no grad"])
@pytest.mark.sweep(8)
def test_training_after_a_call_without_gradients(kind: str, order: str, mode: Any) -> None:
    conv, x, e, w = make(kind, order), draw(N, P), edges(), positive()
    for weight in (None, w):
        with mode():
            for _ in range(2):
                conv(x, e, weight)
        again = x.clone().requires_grad_()
        conv(again, e, weight).sum().backward()
        assert conv.weight.grad is not None
        assert again.grad is not None
        same(conv, x, e, weight)
        with torch.inference_mode():
            inside = draw(N, P)
            close(conv(inside, e, weight), fresh(conv, inside, e, weight))


@pytest.mark.parametrize("kind", [kind for kind in BASES if kind != "one power"])  # which reads no weights
@every_order
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad], ids=["inference", "no grad"])
@pytest.mark.parametrize("count", [N, 60])  # a large graph is evaluated in another way than a small one
@pytest.mark.sweep(10)
def test_weights_that_learn_are_read_without_gradients(kind: str, order: str, mode: Any, count: int) -> None:
    conv, x, e = make(kind, order), draw(count, P), torch.randint(count, (2, 4 * count))
    w = nn.Parameter(positive(count=4 * count))
    for seed in range(3):
        with mode():
            for _ in range(2):
                close(conv(x, e, w), fresh(conv, x, e, w))
                w.mul_(positive(seed, 4 * count))
            other = nn.Parameter(positive(seed, 4 * count))
            close(conv(x, e, other), fresh(conv, x, e, other))
        conv(x, e, w).sum().backward()


@pytest.mark.parametrize("kind", ["attention", "all pairs", "Depthwise"])
def test_dropout_in_training_alone(kind: str) -> None:
    if kind == "Depthwise":
        conv = BasisConv(P, P, bases.Powers(4), theta.Depthwise(normalize="softmax", dropout=0.5)).double()
    else:
        among = [bases.Adjacency()] if kind == "attention" else []
        conv = BasisConv(P, 4, bases.Attention(2, mechanisms.Dot(3), *among, dropout=0.5), theta.Heads()).double()
    x, e = draw(N, P), None if kind == "all pairs" else edges()
    for training in (False, True, False, True):
        conv.train(training)
        results = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            results.append(conv(x, e).detach())
        assert torch.equal(*results) is not training
        if not training:
            same(conv, x, e)


HOOKS = ["message", "propagate", "aggregate"]


@pytest.mark.parametrize("hook", [f"{name}{when}" for name in HOOKS for when in ("", "_pre")])
def test_hooks_that_come_and_go(hook: str) -> None:
    name, pre = hook.removesuffix("_pre"), hook.endswith("_pre")
    conv, x, e, seen = make(), draw(N, P), edges(), []
    same(conv, x, e)
    register = getattr(conv, f"register_{name}_forward_{'pre_' if pre else ''}hook")
    handle = register(lambda *a: seen.append(1) and None)
    same(conv, x, e)
    assert seen
    handle.remove()
    seen.clear()
    same(conv, x, e)
    assert not seen


def test_explainers() -> None:
    conv, x, e = make(), draw(N, P).float(), edges()
    conv.float()
    before = conv(x, e)
    how = {"explanation_type": "model", "node_mask_type": None, "edge_mask_type": "object"}
    config = {"mode": "regression", "task_level": "node", "return_type": "raw"}
    explained = Explainer(conv, GNNExplainer(epochs=3), model_config=config, **how)(x, e)
    assert explained.edge_mask.any()
    assert torch.equal(conv(x, e), before)


@every_basis
def test_autocast(kind: str) -> None:
    conv, x, e = make(kind).float(), draw(N, P).float(), edges()
    plain = conv(x, e)
    for _ in range(2):
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype):
                y = conv(x, e)
                assert y.dtype == dtype
                close(y.float(), plain, 0.1)
                with torch.autocast("cpu", enabled=False):
                    assert torch.equal(conv(x, e), plain)
        assert torch.equal(conv(x, e), plain)


@every_basis
@every_order
def test_a_derivative_that_is_asked_for_under_autocast(kind: str, order: str) -> None:
    """Of a result that was made before: products are rounded then, as torch rounds those of its own linear layer."""
    conv, x, e = make(kind, order).float(), draw(N, P).float().requires_grad_(), edges()
    leaves = [x, *conv.parameters()]
    expected = torch.autograd.grad(conv(x, e).square().sum(), leaves)
    y = conv(x, e).square().sum()
    with torch.autocast("cpu", torch.bfloat16):
        for mine, theirs in zip(torch.autograd.grad(y, leaves), expected, strict=True):
            assert mine.dtype == theirs.dtype
            close(mine, theirs, 0.1)


DTYPES = [torch.float16, torch.bfloat16, torch.float32, DOUBLE]


@pytest.mark.parametrize(
    ("kind", "order", "dtype"),
    [(kind, ORDERS[(i + j) % 3], dtype) for i, kind in enumerate(BASES) for j, dtype in enumerate(DTYPES)],
    ids=str,
)
@pytest.mark.sweep(6)
def test_dtypes_in_turn(kind: str, order: str, dtype: torch.dtype) -> None:
    conv, x, e, w = make(kind, order), draw(N, P), edges(), positive()
    same(conv, x, e, w)
    conv = conv.to(dtype)
    narrow = x.to(dtype).requires_grad_()
    exact = copy.deepcopy(conv).double()
    for _ in range(2):
        y = conv(narrow, e, w.to(dtype))
        assert y.dtype == dtype
        close(
            y.double().detach(),
            fresh(exact, narrow.double(), e, w.to(dtype).double()),
            {2: 0.1, 4: 1e-4, 8: 1e-9}[y.itemsize],
        )
        gradients = torch.autograd.grad(y.sum(), [narrow, *conv.parameters()])
        assert all(g.dtype == dtype for g in gradients)
    with pytest.raises(ValueError, match="dtype"):
        conv(x.to(torch.float32 if dtype == DOUBLE else DOUBLE), e)
    same(conv.double(), x, e, w)


@every_order
def test_a_bias_of_another_dtype(order: str) -> None:
    conv = BasisConv(P, Q, bases.Adjacency(), order=order)
    conv.theta.double()
    nn.init.ones_(conv.bias)
    for _ in range(2):
        y = conv(draw(N, P), edges())
        close(y.detach(), fresh(conv, draw(N, P), edges()))
        assert torch.autograd.grad(y.sum(), conv.bias)[0].dtype == torch.float32


def test_parameters_of_scores_in_another_dtype() -> None:
    """They are what x is compared with, where a layer has no weight."""
    conv = BasisConv(P, P, bases.Attention(1, mechanisms.Dot(3), bases.Adjacency()), theta.Pass(), bias=False)
    x, e = draw(N, P).float(), edges()
    for _ in range(2):
        conv(x, e)
    conv.basis.double()
    with pytest.raises(ValueError, match="dtype"):
        conv(x, e)
    same(conv, x.double(), e)


# Derivatives.


@pytest.mark.parametrize("kind", [*BASES, "typed"])
@pytest.mark.parametrize("order", [*ORDERS, "phi"])
@pytest.mark.sweep(3)
def test_second_derivatives(kind: str, order: str) -> None:
    basis = bases.Relations(2) if kind == "typed" else BASES[kind]()
    conv = BasisConv(2, 2, basis, order=order).double()
    e = torch.randint(4, (2, 8), generator=torch.Generator().manual_seed(0))
    types = (torch.arange(8) % 2,) if kind == "typed" else ()

    def call(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.func.functional_call(conv, {"theta.weight": weight, "bias": bias}, (x, e, None, *types))

    leaves = [draw(4, 2).requires_grad_(), conv.weight.detach().requires_grad_(), draw(2).requires_grad_()]
    gradcheck(call, leaves)  # the first of many calls makes the program
    gradgradcheck(call, leaves)
    gradgradcheck(lambda x, bias: call(x, leaves[1].detach(), bias), [leaves[0], leaves[2]])


@every_basis
def test_a_sum_without_a_parameter(kind: str) -> None:
    """Whose programs are one step, of the sum of the matrices where they are lists of edges."""
    conv, x, e = BasisConv(P, P, BASES[kind](), theta.Pass(0.5)).double(), draw(N, P).requires_grad_(), edges()
    conv.bias.data = draw(P, seed=3)
    for _ in range(3):
        same(conv, x, e)
        conv(x.detach(), e).relu_()  # in memory of its own
    assert gradcheck(lambda x, b: functional_call(conv, {"bias": b}, (x, e)), (x, conv.bias))
    assert gradgradcheck(lambda x: conv(x, e).sin(), x)
    same(conv, x, e)
    conv.theta.scale = 3.0
    same(conv, x, e)
    conv.theta.scale = tuple(float(k) for k in range(conv.basis.K))
    same(conv, x, e)


@every_basis
@every_order
@pytest.mark.parametrize("create", [False, True], ids=["first", "to be differentiated again"])
@pytest.mark.sweep(10)
def test_a_derivative_under_vmap(kind: str, order: str, create: bool) -> None:
    """Of a result that was made outside of it."""
    conv, x, e = make(kind, order), draw(N, P).requires_grad_(), edges()
    y = conv(x, e)
    leaves = [x, conv.weight]
    rows = torch.eye(y.numel(), dtype=DOUBLE).view(-1, *y.shape)
    mine = torch.func.vmap(lambda g: torch.autograd.grad(y, leaves, g, retain_graph=True, create_graph=create))(rows)
    for i, leaf in enumerate(leaves):
        close(mine[i], torch.stack([torch.autograd.grad(y, leaf, g, retain_graph=True)[0] for g in rows]))


@every_basis
def test_checkpoints(kind: str) -> None:
    """What is computed again saves as many tensors as what was computed first."""
    conv, x, e = make(kind), draw(N, P).requires_grad_(), edges()
    expected = torch.autograd.grad(make_like(conv)(x, e).square().sum(), x)[0]
    for reentrant in (False, True):
        with set_checkpoint_early_stop(False):
            x.grad = None
            checkpoint(conv, x, e, use_reentrant=reentrant).square().sum().backward()
        close(x.grad, expected)


def make_like(conv: BasisConv) -> BasisConv:
    new = copy.deepcopy(conv)
    new.fuse = False
    return new


@every_basis
@every_order
@pytest.mark.sweep(6)
def test_layouts_of_features(kind: str, order: str) -> None:
    conv, e = make(kind, order), edges()
    conv.theta.weight = nn.Parameter(draw(Q, P, conv.basis.K).permute(2, 1, 0))
    wide = draw(N, 2 * P)
    for x in (draw(P, N).t(), wide[:, ::2], wide[:, P:], draw(1, P).expand(N, P), draw(N, P)):
        leaves = [x.detach().requires_grad_(), conv.theta.weight, conv.bias]
        for _ in range(2):
            y = conv(leaves[0], e)
            close(y.detach(), fresh(conv, x, e))
        plain = make_like(conv)
        theirs = [leaves[0], plain.theta.weight, plain.bias]
        expected = torch.autograd.grad(plain(x.detach(), e).sum() * 0 + plain(leaves[0], e).square().sum(), theirs)
        for a, b in zip(torch.autograd.grad(y.square().sum(), leaves), expected, strict=True):
            close(a, b)


@every_order
@every_basis
@pytest.mark.parametrize("nodes", [0, 1, 4])
@pytest.mark.sweep(12)
def test_graphs_without_edges(nodes: int, kind: str, order: str) -> None:
    conv, x = make(kind, order), draw(nodes, P).requires_grad_()
    for _ in range(2):
        y = conv(x, torch.zeros(2, 0, dtype=torch.long))
        close(y.detach(), fresh(conv, x, torch.zeros(2, 0, dtype=torch.long)))
        y.sum().backward()


def test_features_without_channels() -> None:
    conv = BasisConv(-1, -1, bases.Powers(2), theta.Pass(), bias=False)
    for width in (0, 2, 0):
        assert conv(torch.ones(N, width), edges()).shape == (N, width)


@pytest.mark.parametrize("basis", [bases.Adjacency("rw"), bases.Identity() + bases.Adjacency("rw")], ids=str)
@every_order
@pytest.mark.sweep(2)
def test_pairs(basis: bases.Basis, order: str) -> None:
    """Of views, the same tensor twice, targets alone, lists; in turn."""
    conv, e = BasisConv(P, Q, basis, order=order).double(), torch.stack([edges()[0], edges()[1] % 5])
    source, other = draw(N, P), draw(5, P, seed=2)
    for _ in range(2):
        for x in ((source, other), (source, source[:5]), [source, source[:5].clone()], (source, other.clone())):
            same(conv, x, e)
        if not basis.reads_target:
            same(conv, (source, None), e, size=(N, 5))
            same(conv, (source, None), e, size=[N, None])
        same(conv, (source, source), e)
        same(conv, source, e)


def test_sizes_in_turn() -> None:
    conv, x, e = make("adjacency"), draw(N, P), edges()
    for _ in range(2):
        for size, rows in ((None, N), (N, N), ((N, N), N), ([N, None], N), ((N, N + 3), N + 3), ([N, N + 3], N + 3)):
            y = conv(x, e, size=size)
            assert len(y) == rows
            close(y.detach(), fresh(conv, x, e, size=size))
        with pytest.raises(ValueError, match="size"):
            conv(x, e, size=(N + 1, N))


def test_lambda_max_in_turn() -> None:
    conv, x, e = make("polynomial"), draw(N, P), edges()
    learnt = torch.tensor(2.5, dtype=DOUBLE, requires_grad=True)
    for _ in range(2):
        for value in (None, 2, 2.0, 3.5, torch.tensor(2.5, dtype=DOUBLE), torch.tensor([3]), learnt):
            close(conv(x, e, lambda_max=value).detach(), fresh(conv, x, e, lambda_max=value))
    assert torch.autograd.grad(conv(x, e, lambda_max=learnt).sum(), learnt)[0] != 0


@every_basis
def test_sparse_and_dense_features_in_turn(kind: str) -> None:
    conv, e, dense = make(kind), edges(), draw(N, P) * (draw(N, P, seed=1) > 0)
    for x in (dense.to_sparse_csr(), dense, dense.to_sparse_coo(), dense.to_sparse_csc(), dense, dense.to_sparse_csr()):
        for _ in range(2):
            close(conv(x, e).detach(), fresh(conv, dense, e))
    values = dense.to_sparse_csr()
    for _ in range(3):
        close(conv(values, e).detach(), fresh(conv, values.to_dense(), e))
        values.values().data.mul_(2)


@pytest.mark.parametrize("kind", [kind for kind in BASES if kind != "one power"])
def test_bound_bases_in_turn(kind: str) -> None:
    conv, x = make(kind), draw(N, P)
    learnt = positive().requires_grad_()
    weighted = conv.basis.bind(edges(), learnt, size=N)
    given = [conv.basis.bind(edges(seed), size=N, dtype=DOUBLE) for seed in range(3)]
    for _ in range(2):
        for seed, one in enumerate(given):
            close(conv(x, one).detach(), fresh(conv, x, edges(seed)))
        close(conv(x, weighted).detach(), fresh(conv, x, edges(), learnt))
    assert torch.autograd.grad(conv(x, weighted).sum(), learnt)[0].any()
    moved = copy.deepcopy(given[1])
    close(conv(x, moved), conv(x, given[1]))


@every_basis
@every_order
def test_weights_of_edges_that_learn(kind: str, order: str) -> None:
    """They are read in each call, by a program of the first: in place, others, of other edges, and none."""
    conv, x, graphs = make(kind, order), draw(N, P, seed=1).requires_grad_(), (edges(0), edges(1))
    for step in range(6):
        e, w = graphs[step // 4], positive(seed=step // 2).requires_grad_()
        if step == 3:
            w.data.mul_(0.5)
        results = []
        for run in (conv, conv.evaluate):
            y = run(x, e, w)
            learnt: Any = {"create_graph": True, "materialize_grads": True}
            first = torch.autograd.grad(y.sin().sum(), [x, w, *conv.parameters()], **learnt)
            second = torch.autograd.grad(sum(g.cos().sum() for g in first), [x, w], materialize_grads=True)
            results.append([y, *first, *second])
        for mine, theirs in zip(*results, strict=True):
            close(mine.detach(), theirs.detach())
        close(y.detach(), fresh(conv, x, e, w))
        if step != 4:  # a graph of a known form has a program from its second call on
            assert len(conv._programs) == 1 + (step == 5)
    close(conv(x, e).detach(), fresh(conv, x, e))
    with pytest.raises(ValueError, match="edge_weight"):
        conv(x, e, w[:-1])


def test_what_weights_that_learn_were_computed_from_is_let_go() -> None:
    conv, x, e = make(), draw(N, P), edges()
    for _ in range(3):
        w = positive() * torch.ones((), dtype=DOUBLE, requires_grad=True)
        conv(x, e, w).sum().backward()
        reference = StorageWeakRef(w.untyped_storage())
        del w
        reading._GRAPHS._entries.clear()
        gc.collect()
        assert reference.expired()


@pytest.mark.parametrize("self_loops", [False, True])
def test_symmetric_weights_that_learn(self_loops: bool) -> None:
    """And nodes without an edge, whose degree is zero."""
    basis, ends = bases.Adjacency("sym", self_loops), torch.tensor([[0, 1, 1, 2, 2, 4], [1, 0, 2, 2, 1, 0]])

    def weights(w: Tensor) -> Tensor:
        return basis.bind(ends, w, size=6).edges().weight

    w = positive(count=6).requires_grad_()
    assert gradcheck(weights, w)
    assert gradgradcheck(weights, w)


def test_a_bound_basis_with_weights_that_learn_in_place() -> None:
    conv, x, e, w = BasisConv(P, Q, bases.Adjacency()).double(), draw(N, P), edges(), positive().requires_grad_()
    once = conv.basis.bind(e, w, size=N)
    for _ in range(4):
        close(conv(x, once).detach(), fresh(conv, x, e, w))
        with torch.no_grad():
            close(conv(x, once), fresh(conv, x, e, w))
            w.mul_(torch.linspace(1, 2, E))
    w.requires_grad_(False)
    for _ in range(3):
        close(conv(x, once).detach(), fresh(conv, x, e, w))
        w.data.mul_(torch.linspace(2, 1, E))


# Fault 1.


@pytest.mark.parametrize("cached", [False, True], ids=["", "cached"])
@pytest.mark.parametrize(
    ("name", "kind"), [("Adam", "adjacency"), ("AdamW", "GCN"), ("SGD", "polynomial"), ("Adagrad", "GCN")]
)
def test_fused_optimisers(name: str, kind: str, cached: bool) -> None:
    conv, e = make(kind, cached=cached, order="a_first" if cached else "auto"), edges()
    weight, embedding = nn.Parameter(positive() + 5), nn.Parameter(draw(N, P))
    optimizer = getattr(torch.optim, name)([weight, embedding], lr=0.1, fused=True)
    for _ in range(3):
        with torch.no_grad():
            same(conv, embedding.detach(), e, weight.detach())
        weight.requires_grad_(False)
        same(conv, embedding.detach(), e, weight)
        weight.requires_grad_(True)
        conv(embedding, e, weight).square().sum().backward()
        optimizer.step()


# Fault 2.


@pytest.mark.parametrize("cached", [False, True], ids=["", "cached"])
@pytest.mark.parametrize(
    ("kind", "compiled"),
    [*((kind, False) for kind in BASES), ("one power", True), ("sum", True)],
    ids=lambda value: value if isinstance(value, str) else "compiled" * value,
)
@pytest.mark.sweep(6)
def test_results_without_a_parameter_are_the_callers_own(kind: str, compiled: bool, cached: bool) -> None:
    conv = BasisConv(P, P, BASES[kind](), theta.Pass(), cached=cached, bias=False).double()
    call = torch.compile(conv, backend="eager") if compiled else conv
    x, e = draw(N, P), edges()
    kept, expected = x.clone(), fresh(conv, x, e)
    for _ in range(3):
        y = call(x, e)
        close(y, expected)
        y.relu_().add_(7)
        assert torch.equal(x, kept)


@pytest.mark.parametrize("cached", [False, True], ids=["", "cached"])
@pytest.mark.parametrize("combine", ["sum", "concat"])
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.sweep(12)
def test_results_without_a_parameter_under_every_basis(name: str, combine: Any, cached: bool) -> None:
    case = CASES[name]
    basis = case.basis()
    bound = bind(basis, case.graph())
    x = draw(bound.M, P)
    for order in ("auto", "a_first", "theta_first"):
        width = basis.K * P if combine == "concat" else P
        conv = BasisConv(P, width, basis, theta.Pass(combine=combine), order, bias=False, cached=cached).double()
        first, kept = conv((x, None), bound).clone(), x.clone()
        for _ in range(2):
            y = conv((x, None), bound)
            assert torch.equal(y, first)
            assert y.untyped_storage()._cdata != x.untyped_storage()._cdata
            y.data.fill_(7)
            assert torch.equal(x, kept)


@every_basis
@pytest.mark.parametrize("order", ORDERS[1:])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_results_may_be_written_to(kind: str, order: str, bias: bool) -> None:
    """With a gradient, which a view of something would refuse, and without."""
    conv, x, e = BasisConv(P, Q, BASES[kind](), order=order, bias=bias).double(), draw(N, P), edges()
    factor = torch.ones(Q, dtype=DOUBLE, requires_grad=True)
    for _ in range(2):
        expected = torch.autograd.grad(conv(x, e).relu().sum(), conv.weight)[0]
        close(torch.autograd.grad(conv(x, e).relu_().sum(), conv.weight)[0], expected)
        with torch.no_grad():
            y = conv(x, e)
        y.mul_(factor).sum().backward()


# Fault 6, and what is kept.


@pytest.mark.parametrize("name", ["x", "edge_index", "edge_weight", "lambda_max", "weight", "bias"])
@pytest.mark.sweep(2)
def test_tensors_that_are_swapped(name: str) -> None:
    conv = make("polynomial", cached=True)
    t = {
        "x": draw(N, P),
        "edge_index": edges(),
        "edge_weight": positive(),
        "lambda_max": torch.tensor(2.5, dtype=DOUBLE),
    }
    same(conv, **t)
    conv(**t).sum().backward()
    others = {
        "x": draw(N, P, seed=5),
        "edge_index": edges(5),
        "edge_weight": positive(5),
        "lambda_max": t["lambda_max"] + 1,
    }
    conv.zero_grad()
    gc.collect()
    if name in t:
        torch.utils.swap_tensors(t[name], others[name])
    else:
        one = conv.weight if name == "weight" else conv.bias
        torch.utils.swap_tensors(one, nn.Parameter(draw(*one.shape, seed=5)))
    same(conv, **t)


def caches() -> list[IdentityCache]:
    return [value for value in vars(reading).values() if isinstance(value, IdentityCache)]


@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.sweep(1)
def test_many_graphs_hold_no_memory(weighted: bool) -> None:
    conv, x = make("GCN"), draw(N, P)

    def several(count: int) -> tuple[int, int]:
        for seed in range(count):
            conv(x, edges(seed), positive(seed) if weighted else None)
        gc.collect()
        held = [o for o in gc.get_objects() if type(o) in (Tensor, nn.Parameter)]
        return len(held), sum(t.nbytes for t in held if t.layout == torch.strided)

    first, last = several(100), several(600)
    assert last[0] <= first[0] + 50
    assert last[1] <= first[1] + 50_000
    assert len(conv._programs) <= 8


@pytest.mark.slow
def test_many_sizes_of_one_graph_hold_bounded_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys are the same tensor each time; what is made of it is not."""
    count, rows = 50_000, 5_000
    monkeypatch.setattr(cache, "_MAX_BYTES", cache._MAX_BYTES // 4)
    conv, e = BasisConv(2, 2, bases.Adjacency("sym", True)), torch.randint(rows, (2, count))

    def held() -> int:
        gc.collect()
        seen = {
            t.untyped_storage()._cdata: t.untyped_storage().nbytes()
            for t in map(tensor, gc.get_objects())
            if t is not None
        }
        return sum(seen.values())

    before = held()
    with torch.no_grad():
        for i in range(300):
            conv(torch.ones(rows + i, 2), e, size=rows + i)
    assert held() - before < 125_000_000
    del e
    torch.randint(9, (2, 3))
    conv(draw(N, 2).float(), edges())


def tensor(thing: object) -> Tensor | None:
    return thing if type(thing) is Tensor and thing.layout == torch.strided else None


def test_programs_keep_neither_features_nor_graphs_alive() -> None:
    for cached in (False, True):
        for kind in BASES:
            conv = make(kind, cached=cached)
            t = [draw(N, P).requires_grad_(), edges(), positive(), draw(N, P)]
            for x in (t[0], t[3]):
                for _ in range(2):
                    conv(x, t[1], t[2]).sum().backward()
            references = [StorageWeakRef(one.untyped_storage()) for one in t]
            del t, x
            gc.collect()
            assert [reference.expired() for reference in references] == [True] * 4


def test_programs_keep_no_bound_basis_alive() -> None:
    window = bases.Window((5, 5), (3, 3), padding=1)
    for conv, x, basis in (
        *((make(kind), draw(N, P), None) for kind in BASES),
        (GridConv(P, Q, window).double(), draw(1, P, 5, 5), window),
    ):
        bound = copy.deepcopy(
            conv.basis.bind(edges(), size=N, dtype=DOUBLE) if basis is None else basis.bind(dtype=DOUBLE)
        )
        for _ in range(2):
            conv(x, edge_index=bound).sum().backward()
        reference = weakref.ref(bound)
        del bound
        gc.collect()
        assert reference() is None


def test_programs_are_few() -> None:
    conv, x = make(), draw(N, P)
    kept = [edges(seed) for seed in range(30)]
    for e in kept:
        same(conv, x, e)
    assert len(conv._programs) <= 8
    for e in kept:
        same(conv, x, e)


def test_a_call_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    conv, x, e = make(), draw(N, P), edges()
    wrong = e.clone()
    wrong[0, 0] = N
    for _ in range(2):
        with pytest.raises(ValueError, match="edge_index"):
            conv(x, wrong)
    for name in ("_bind", "_choose", "_evaluation"):
        with monkeypatch.context() as patch:
            patch.setattr(BasisConv, name, lambda *a: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                conv(x, e)
    assert not len(conv._programs)
    same(conv, x, e)


@pytest.mark.parametrize("how", ["deepcopy", "copy", "pickle"])
def test_copies_have_programs_of_their_own(how: str) -> None:
    conv, x, e = make(), draw(N, P), edges()
    same(conv, x, e)
    ways = {"deepcopy": copy.deepcopy, "copy": copy.copy, "pickle": lambda c: pickle.loads(pickle.dumps(c))}
    other = ways[how](conv)
    close(other(x, e), conv(x, e))
    if how != "copy":
        assert other._programs is not conv._programs
        other.weight.data.mul_(2)
    other.bias = nn.Parameter(draw(Q, seed=9))
    same(other, x, e)
    same(conv, x, e)


def test_threads() -> None:
    conv, x = make(), draw(N, P)
    graphs = [edges(seed) for seed in range(12)]
    expected = [fresh(conv, x, e) for e in graphs]
    wrong: list[Any] = []

    def work(start: int) -> None:
        try:
            for i in range(200):
                j = (start + i * (start + 1)) % len(graphs)
                close(conv(x, graphs[j]).detach(), expected[j])
        except BaseException as error:
            wrong.append(error)

    threads = [Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# What a call costs.


def test_calls_with_sizes_have_programs() -> None:
    conv, x, edges = BasisConv(3, 2, bases.Adjacency()), torch.randn(5, 3), torch.tensor([[0, 1, 4], [2, 0, 1]])
    for size in (None, 5, (5, 5), [5, None]):
        before = len(conv._programs)
        for _ in range(2):
            conv(x, edges, size=size)
        assert len(conv._programs) == before + 1, size


def calls(run: Callable[[], object]) -> Counter[str]:
    """The Python calls inside of the package, by file."""
    home, found = str(Path(pyg_basisconv.__file__).parent), Counter[str]()

    def seen(frame: Any, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(home):
            found[name.removeprefix(home)] += 1

    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
def test_a_warm_call_is_a_few_python_calls(grad: bool) -> None:
    conv, x, e = BasisConv(16, 16, bases.Adjacency("sym", True)), torch.randn(100, 16), torch.randint(100, (2, 400))
    with torch.set_grad_enabled(grad):
        for _ in range(2):
            conv(x, e)
        found = calls(lambda: conv(x, e))
    print(dict(found))
    assert 0 < found.total() <= (17 if grad else 15)
    assert len(found) <= 6


# Attention, of which a program takes one step from content to result.

STEPS: dict[str, tuple[Callable[[], mechanisms.Mechanism], dict[str, Any]]] = {
    "GAT": (lambda: mechanisms.Additive(projected=True).then(nn.LeakyReLU(0.2)), {}),
    "GAT, with edges": (lambda: (mechanisms.Additive(projected=True) + mechanisms.Edge(2)).then(nn.LeakyReLU(0.2)), {}),
    "GATv2": (lambda: mechanisms.MLP(projected=True, activation=nn.LeakyReLU(0.2)), {}),
    "GATv2, with edges": (lambda: mechanisms.MLP(projected=True, activation=nn.LeakyReLU(0.2), edge_dim=2), {}),
    "Transformer": (lambda: mechanisms.Dot(3, bias=True), {}),
    "Transformer, with edges": (lambda: mechanisms.Dot(3, bias=True, edge_dim=2), {}),
    "products, with edges": (lambda: mechanisms.Dot(3, edge_dim=2, mix="both").then(nn.LeakyReLU(0.2)), {}),
    "general, with edges": (
        lambda: (mechanisms.Additive(projected=True, target=None) + mechanisms.Edge(2, inner=2)).then(nn.Tanh()),
        {},
    ),
    "gates": (lambda: mechanisms.Additive(bias=True) + mechanisms.Relative(period=1), {"normalize": "sigmoid"}),
    "sums": (lambda: mechanisms.Additive(), {"normalize": None, "weighted": True}),
}


def attending(kind: str, **kwargs: Any) -> tuple[BasisConv, dict[str, Tensor]]:
    """A layer, and what it is called with."""
    mechanism, about = STEPS[kind]
    basis = bases.Attention(2, mechanism(), bases.Adjacency(), **about, **kwargs)
    given = {"edge_index": edges()} | ({"edge_attr": draw(E, 2, seed=4)} if "edges" in kind else {})
    given |= {"edge_weight": positive()} if about.get("weighted") else {}
    return BasisConv(P, 4, basis, theta.Heads(), order="theta_first").double(), given


@pytest.mark.parametrize("kind", STEPS)
def test_attention_in_one_step(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    conv, given = attending(kind)
    built, build = [], bases.Attention.build
    monkeypatch.setattr(bases.Attention, "build", lambda self, graph: built.append(1) or build(self, graph))
    for seed in range(3):
        conv(draw(N, P, seed=seed), **given)
    assert len(built) == 1
    monkeypatch.undo()
    for seed in range(3):
        same(conv, draw(N, P, seed=seed), **given)
    for change in (lambda p: p.data.mul_(0.5), lambda p: p.requires_grad_(False)):
        for parameter in conv.parameters():
            change(parameter)
        same(conv, draw(N, P), **given)
    for part in conv.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = nn.Parameter(2 * parameter.detach())
    same(conv, draw(N, P), **given)


@pytest.mark.parametrize("kind", STEPS)
def test_attention_in_one_step_drops_in_training_alone(kind: str) -> None:
    conv, given = attending(kind, dropout=0.5)
    x = draw(N, P)
    for _ in range(2):
        torch.manual_seed(0)
        first = conv(x, **given)
        torch.manual_seed(0)
        close(conv(x, **given), first)
        torch.manual_seed(1)
        with pytest.raises(AssertionError):
            close(conv(x, **given), first)
        conv.eval()
        same(conv, x, **given)
        conv.train()


@pytest.mark.parametrize("kind", STEPS)
def test_attention_of_some_features_applied_to_others(kind: str) -> None:
    """One step is for the features that the scores are made of."""
    conv, given = attending(kind)
    x, other = draw(N, P), draw(N, P, seed=7)
    A = weigh(conv, x, x, given["edge_index"], edge_attr=given.get("edge_attr"))
    for _ in range(2):
        y = conv(other, A)
        z = torch.stack([other @ weight for weight in conv.theta.weight])
        close(y, torch.cat([*(A.to_dense().transpose(1, 2) @ z)], -1) + conv.bias)


HEADS: dict[str, Callable[[], theta.Theta]] = {
    "side by side": lambda: theta.Heads(),
    "averaged": lambda: theta.Heads("mean", bias=True),
    "projected": lambda: theta.LowRank(3, bias=True),
}


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("observed", [False, True], ids=["", "observed"])
@pytest.mark.parametrize("mask", [(), (bases.Causal(),)], ids=["all", "causal"])
@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.sweep(6)
def test_all_pairs_of_sequences_in_one_step(
    kind: str, mask: tuple[bases.Basis, ...], observed: bool, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    basis = bases.Attention(2, mechanisms.Dot(3, bias=True), *mask)
    conv = BasisConv(P, 4, basis, HEADS[kind](), order="native", bias=bias).double()
    plain = copy.deepcopy(conv)
    plain.order = "theta_first"
    both = list(zip(conv.parameters(), plain.parameters(), strict=True))

    def called(layer: BasisConv, *x: Tensor) -> Tensor:
        given = x if len(x) > 1 else x[0]
        return layer(given, return_attention=True)[0] if observed else layer(given)

    for i in range(3):
        with torch.no_grad():
            for j, (own, other) in enumerate(both):
                other.copy_(own.copy_(draw(*own.shape, seed=10 * i + j)))
            called(conv, draw(2, N, P)).relu_()
        x, y = draw(2, N, P, seed=i).requires_grad_(), draw(2, N, P, seed=i + 7).requires_grad_()
        for given in ((x,), (x, y)):
            found, expected = called(conv, *given), called(plain, *given)
            close(found, expected)
            leaves = [[*given, *layer.parameters()] for layer in (conv, plain)]
            pairs = zip((found, expected), leaves, strict=True)
            for own, other in zip(*(torch.autograd.grad(v.sin().sum(), some) for v, some in pairs), strict=True):
                close(own, other)
    small = draw(1, 3, P).requires_grad_()
    assert gradgradcheck(lambda x: called(conv, x), small)
    with torch.no_grad():
        written = called(conv, draw(2, N, P))
    written.mul_(x.sum()).sum().backward()
    monkeypatch.setattr(BasisConv, "_in_order", None)  # or nothing here would test the step
    called(conv, draw(2, N, P))


@pytest.mark.parametrize("kind", ["constant", "of content", "bound", "image"])
def test_the_basis_is_returned_in_every_call(kind: str) -> None:
    """Between calls that return none, which have programs of their own."""
    basis = {"of content": bases.GAT(2), "image": bases.Window(None, (3, 3))}.get(kind, bases.Chebyshev(2))
    conv = (GridConv if kind == "image" else BasisConv)(P, P, basis).double()
    graph = basis.bind(edges(), size=N, dtype=DOUBLE) if kind == "bound" else edges()
    given = (draw(1, P, 5, 6),) if kind == "image" else (draw(N, P), graph)
    with torch.no_grad():
        expected, matrices = conv(*given), conv(*given, return_attention=True)[1].to_dense()
        for _ in range(3):
            y, A = conv(*given, return_attention=True)
            close(y, expected)
            close(conv(*given), expected)
            assert torch.equal(A.to_dense(), matrices)
