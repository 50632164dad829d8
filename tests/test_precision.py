"""Precision, over all kinds of basis and of theta: autocast, half precision, sums, the default dtype, determinism."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import grad

from pyg_basisconv import BasisConv, GridConv, bases, theta
from tests import cases, oracle
from tests.contract import DOUBLE, THETAS, conv_dtype, expected, make, take, tensors
from tests.mechanisms import cases as attention_cases

LOWS = (torch.bfloat16, torch.float16)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def first_cases() -> dict[str, cases.Case]:
    """One of each kind of basis, on the first of its graphs that has edges."""
    found: dict[str, cases.Case] = {}
    for name, case in cases.CASES.items():
        g = case.graph()
        if g.M and g.N:
            found.setdefault(name.split("-")[0], case)
    return found


KINDS = first_cases()
ATTENTIONS = ("GAT-graph", "dot-none", "GATv2(shared,edge,bias)-graph", "dot-causal", "Perceptron-graph", "pooling")


def calls(case: cases.Case, kind: str, device: str = "cpu") -> tuple[BasisConv, Tensor, Callable[[], Tensor]]:
    """A layer in float32, its input, which is a leaf, and the call."""
    g = case.graph()
    conv = make(case.basis(), kind, P=4, dtype=torch.float32).to(device)
    x = torch.randn(2, g.M, conv.in_channels, device=device, requires_grad=True)
    arguments = tensors(g, torch.float32, device) | {"size": (g.M, g.N)}
    return conv, x, lambda: conv(x if g.M == g.N else (x, None), **arguments)


def attention(name: str, dtype: torch.dtype) -> tuple[BasisConv, Tensor, Callable[[], Tensor]]:
    """The same of a case of attention."""
    c = attention_cases.CASES[name]
    conv = attention_cases.layer(c)[0].to(dtype)
    made = attention_cases.inputs(c).to(dtype).require_grad()
    return conv, made.x, lambda: attention_cases.call(conv, made)


def check_autocast(case: cases.Case, low: torch.dtype, device: str = "cpu") -> None:
    conv, x, call = calls(case, "Full", device)
    leaves = [x, conv.weight, conv.bias]
    right = call()
    # Terms may cancel: errors are measured against the sum of the sizes of the terms.
    sizes = [t.detach().double().cpu().abs().requires_grad_() for t in leaves]
    total = oracle.apply(case.matrices(case.graph()).abs(), *sizes)
    scales = (total, *grad(total.sum(), sizes))
    exact, came = (right, *grad(right.sum(), leaves)), set()
    for path in ("auto", "a_first", "theta_first", "message"):
        take(conv, path)
        with torch.autocast(device, low):
            y = call()
        came.add(y.dtype)
        found = grad(y.float().sum(), leaves)
        assert {gradient.dtype for gradient in found} == {torch.float32}
        for a, b, terms in zip((y, *found), exact, scales, strict=True):
            bound = 3e-2 * float(terms.detach().max())
            torch.testing.assert_close(a.float(), b, rtol=3e-2, atol=bound)
    assert len(came) == 1, "the dtype depends on the order"


@pytest.mark.parametrize("order", ["auto", "native", "a_first", "theta_first"])
@pytest.mark.parametrize("kind", [theta.Full, theta.Depthwise, theta.Pass])
def test_autocast_of_images(order: str, kind: Callable[[], theta.Theta]) -> None:
    """One dtype whatever the order, in the first call and in those that are like it."""
    conv, x = GridConv(4, 4, bases.Window(None, (3, 3), padding=1), kind(), order=order), torch.randn(2, 4, 5, 5)
    whole = conv(x)
    assert whole.dtype == torch.float32
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            y = conv(x)
        assert y.dtype == torch.bfloat16
        torch.testing.assert_close(y.float(), whole, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("low", LOWS, ids=["bfloat16", "float16"])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.sweep(24)
def test_autocast(name: str, low: torch.dtype) -> None:
    """One dtype whatever the order, near the numbers of float32; gradients in the dtype of what they are of."""
    check_autocast(KINDS[name], low)


@pytest.mark.parametrize("kind", THETAS)
def test_autocast_of_parameters(kind: str) -> None:
    """Each kind of theta: one dtype whatever the order; gradients in float32."""
    conv, x, call = calls(KINDS["Powers(4)"], kind)
    right, came = call(), set()
    for path in ("auto", "a_first", "theta_first", "phi", "message"):
        take(conv, path)
        with torch.autocast("cpu", torch.bfloat16):
            y = call()
        came.add(y.dtype)
        torch.testing.assert_close(y.float(), right, rtol=8e-2, atol=8e-2 * float(right.detach().abs().max()))
        for gradient in grad(y.float().sum(), [x, *conv.parameters()]):
            assert gradient.dtype == torch.float32
            assert gradient.isfinite().all()
    assert len(came) == 1, "the dtype depends on the order"


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("low", LOWS, ids=["bfloat16", "float16"])
def test_attention_in_its_own_dtype(name: str, low: torch.dtype) -> None:
    conv, x, call = attention(name, low)
    y = call()
    assert y.dtype == low
    assert {gradient.dtype for gradient in grad(y.sum(), [x, *conv.parameters()])} == {low}
    with torch.inference_mode():
        torch.testing.assert_close(call(), y, rtol=0, atol=0)


N = 3000
HUB = torch.stack([torch.arange(N), torch.zeros(N, dtype=torch.long)])
# What sums N numbers into one: (the basis, the arguments of the call, what each number counts).
SUMS: dict[str, tuple[Callable[[], bases.Basis], dict[str, Any], float]] = {
    "Adjacency": (bases.Adjacency, {"edge_index": HUB}, 1),
    "Adjacency(mean)": (lambda: bases.Adjacency("mean"), {"edge_index": HUB}, 1 / N),
    "Edges": (lambda: bases.Edges(2), {"edge_index": HUB, "edge_type": torch.arange(N) % 2}, 1),
    "Relations": (lambda: bases.Relations(3), {"edge_index": HUB, "edge_type": torch.arange(N) % 3}, 1),
    "Walks": (lambda: bases.Walks(["0"], 1), {"edge_index": HUB, "edge_type": torch.zeros(N, dtype=torch.long)}, 1),
    "Mix": (lambda: bases.Mix([[0.0, 1.0]], bases.Powers(2, bases.Adjacency())), {"edge_index": HUB}, 1),
    "Complete": (bases.Complete, {}, 1),
    "Causal": (lambda: bases.Causal().T, {}, 1),
    "Bags": (bases.Bags, {"batch": torch.zeros(N, dtype=torch.long)}, 1),
}


@pytest.mark.parametrize("low", LOWS, ids=["bfloat16", "float16"])
@pytest.mark.parametrize("name", SUMS)
@pytest.mark.sweep(4)
def test_small_numbers_add_up(name: str, low: torch.dtype) -> None:
    """A sum that is rounded to bfloat16 after each term stops at 256 times the term, one in float16 at 2048 times."""
    make_it, arguments, worth = SUMS[name]
    size = 2**-6  # a term; a power of two, which has no error of its own
    for order in ("a_first", "theta_first"):
        conv = BasisConv(1, 1, make_it(), order=order, bias=False)
        torch.nn.init.ones_(conv.weight)
        x = torch.full((N, 1), size, dtype=low)
        y = conv.to(low)(x, **arguments)
        assert y.dtype == low
        assert float(y[0].detach()) == pytest.approx(N * size * worth, rel=1e-2), order


@pytest.mark.parametrize("low", LOWS, ids=["bfloat16", "float16"])
def test_gradients_add_up(low: torch.dtype) -> None:
    """The gradient of what N targets read is a sum, too; and so are those of Theta and of the bias."""
    conv = BasisConv(1, 1, bases.Adjacency()).to(low)
    torch.nn.init.ones_(conv.weight)
    x = torch.full((N, 1), 2**-6, dtype=low, requires_grad=True)
    for order in ("a_first", "theta_first"):
        conv.order = order
        y = conv(x, HUB.flip(0))
        of_x, of_weight, of_bias = grad(y.sum(), [x, conv.weight, conv.bias])
        assert float(of_x[0]) == pytest.approx(N, rel=1e-2)
        assert float(of_weight) == pytest.approx(N * 2**-6, rel=1e-2)
        assert float(of_bias) == pytest.approx(N, rel=1e-2)


@pytest.fixture
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def check_bits(call: Callable[[], Tensor], leaves: list[Tensor]) -> None:
    runs = []
    for _ in range(2):
        y = call()
        runs.append((y, *grad(y.square().sum(), leaves, allow_unused=True, materialize_grads=True)))
    torch.testing.assert_close(runs[0], runs[1], rtol=0, atol=0)


@pytest.mark.usefixtures("_deterministic")
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.sweep(15)
def test_deterministic(name: str) -> None:
    """Deterministic algorithms are all that is used, forward and backward, and give the same bits twice."""
    for path in ("auto", "a_first", "theta_first", "message"):
        conv, x, call = calls(KINDS[name], "Full")
        take(conv, path)
        check_bits(call, [x, *conv.parameters()])


@pytest.mark.usefixtures("_deterministic")
@pytest.mark.parametrize("kind", THETAS)
def test_deterministic_parameters(kind: str) -> None:
    conv, x, call = calls(KINDS["Edges(3)"], kind)
    check_bits(call, [x, *conv.parameters()])


@pytest.mark.usefixtures("_deterministic")
@pytest.mark.parametrize("name", ATTENTIONS)
def test_deterministic_attention(name: str) -> None:
    conv, x, call = attention(name, torch.float32)
    check_bits(call, [x, *conv.parameters()])


@pytest.fixture
def _double() -> Iterator[None]:
    torch.set_default_dtype(DOUBLE)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("_double")
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.sweep(20)
def test_default_dtype(name: str) -> None:
    """Under another default everything is made in it, without a word, and is as exact."""
    case = KINDS[name]
    g = case.graph()
    conv = BasisConv(3, 2, case.basis())
    x = torch.randn(g.M, 3)
    assert conv_dtype(conv, x) == x.dtype == DOUBLE
    y = conv(x if g.M == g.N else (x, None), **tensors(g), size=(g.M, g.N))
    torch.testing.assert_close(y, expected(conv, case.matrices(g), x), rtol=1e-10, atol=1e-10)
    assert case.basis().bind(**tensors(g), size=(g.M, g.N)).dtype == DOUBLE


@pytest.mark.parametrize("device", DEVICES)
def test_scaled_gradients(device: str) -> None:
    """A `GradScaler` scales, finds what overflows, and steps where nothing does."""
    conv, _, call = calls(KINDS["Chebyshev(4)"], "Full", device)
    optimiser = torch.optim.SGD(conv.parameters(), 0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    before = conv.weight.detach().clone()
    with torch.autocast(device, torch.float16):
        loss = call().float().square().mean()
    plain = grad(loss, conv.weight, retain_graph=True)[0]
    scaler.scale(loss).backward()
    scaler.unscale_(optimiser)
    torch.testing.assert_close(conv.weight.grad, plain, rtol=1e-2, atol=1e-3)
    scaler.step(optimiser)
    scaler.update()
    assert not torch.equal(before, conv.weight)

    after, optimiser = conv.weight.detach().clone(), torch.optim.SGD(conv.parameters(), 0.1)
    scaler.scale(call().sum() * torch.inf).backward()
    scaler.step(optimiser)
    scaler.update()
    torch.testing.assert_close(conv.weight.detach(), after, rtol=0, atol=0)
    assert scaler.get_scale() == 2.0**7


@pytest.mark.cuda
@pytest.mark.usefixtures("_deterministic")
@pytest.mark.parametrize("name", KINDS)
def test_on_a_device(name: str) -> None:
    """Autocast, and the same bits twice, on CUDA."""
    check_autocast(KINDS[name], torch.bfloat16, "cuda")
    conv, x, call = calls(KINDS[name], "Full", "cuda")
    check_bits(call, [x, *conv.parameters()])
