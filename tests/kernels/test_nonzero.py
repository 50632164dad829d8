"""Linear layers on the nonzero rows of their products: against loops, and where a family or a kernel is not there."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from pyg_basisconv import BasisConv, bases, theta
from pyg_basisconv.bases import BoundBasis
from pyg_basisconv.kernels import NonzeroRows, a_first_nonzero, nonzero
from pyg_basisconv.orders import ORDERS
from tests.contract import close, draw

EDGES = torch.tensor([[0, 1, 2, 2, 4, 0, 3], [1, 1, 0, 3, 3, 1, 3]])
KIND = torch.tensor([0, 0, 3, 0, 1, 0, 1])  # of four kinds; none is of kind 2


def family(dtype: torch.dtype = torch.float64) -> BoundBasis:
    """Typed edges with loops among them, and the identity: of six members one is empty, and one has all targets."""
    return bases.Relations(4, "mean", self_loop=True).bind(EDGES, None, KIND, size=5, dtype=dtype)


def by_loops(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The definition: the mean over the edges of each kind into a node, and the node itself."""
    rows = []
    for n in range(5):
        y = x[n] @ weight[4]
        for k in range(4):
            sources = [
                m for (m, at), kind in zip(EDGES.t().tolist(), KIND.tolist(), strict=True) if (at, kind) == (n, k)
            ]
            for m in sources:
                y = y + x[m] @ weight[k] / len(sources)
        rows.append(y if bias is None else y + bias)
    return torch.stack(rows)


def given_numbers(P: int, Q: int, with_bias: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    x, weight = draw(5, P).requires_grad_(), draw(5, P, Q).requires_grad_()
    return x, weight, draw(Q).requires_grad_() if with_bias else None


@pytest.fixture(params=["compiled", "torch"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(nonzero, "KERNELS", None)
    elif nonzero.KERNELS is None:
        pytest.skip("the kernels were not built")
    return request.param


@given(st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_rows_are_multiplied_and_added_up(P: int, Q: int, with_bias: bool) -> None:
    A, (x, weight, bias) = family(), given_numbers(P, Q, with_bias)
    inputs = [t for t in (x, weight, bias) if t is not None]
    gradient = draw(5, Q)
    found, wanted = a_first_nonzero(x, weight, bias, A), by_loops(x, weight, bias)
    close(found, wanted)
    of_found, of_wanted = (torch.autograd.grad(y, inputs, gradient) for y in (found, wanted))
    for a, b in zip(of_found, of_wanted, strict=True):
        close(a, b)
    with torch.no_grad():
        assert torch.equal(a_first_nonzero(x, weight, bias, A), found)


@pytest.mark.parametrize("learns", ["x", "weight", "bias", "x weight bias"])
def test_derivatives(learns: str, kernels: str) -> None:
    A, numbers = family(), given_numbers(3, 2, True)
    for name, t in zip(("x", "weight", "bias"), numbers, strict=True):
        t.requires_grad_(name in learns.split())
    assert gradcheck(lambda *t: a_first_nonzero(*t, A), numbers)
    assert gradgradcheck(lambda *t: a_first_nonzero(*t, A), numbers)


def test_single_precision(kernels: str) -> None:
    x, weight, bias = (t.detach().float() for t in given_numbers(7, 6, True))
    found = a_first_nonzero(x, weight, bias, family(torch.float32))
    torch.testing.assert_close(
        found.double(), by_loops(x.double(), weight.double(), bias.double()), rtol=1e-5, atol=1e-5
    )


def test_the_bias_is_not_written_to(kernels: str) -> None:
    """Not by a graph of one target either, whose rows of biases could be the bias itself."""
    A = bases.Relations(2).bind(EDGES * torch.tensor([[1], [0]]), None, KIND % 2, size=(5, 1), dtype=torch.float64)
    x, weight, bias = draw(5, 3), draw(2, 3, 4), draw(4)
    before, expected = bias.clone(), torch.einsum("knp,kpq->nq", A.expand(x), weight) + bias
    close(a_first_nonzero(x, weight, bias, A), expected)
    assert torch.equal(bias, before)


@pytest.mark.parametrize("of_all", [True, False])
def test_gradients_side_by_side(of_all: bool) -> None:
    """Of several gradients at once, as `jacobian(vectorize=True)` takes them."""
    A, numbers = family(), given_numbers(3, 2, True)
    inputs, gradients = numbers if of_all else numbers[:1], draw(4, 5, 2)
    y = a_first_nonzero(*numbers, A)
    found = torch.autograd.grad(y, inputs, gradients, retain_graph=True, is_grads_batched=True)
    for i, gradient in enumerate(gradients):
        for several, one in zip(found, torch.autograd.grad(y, inputs, gradient, retain_graph=True), strict=True):
            close(several[i], one)


def test_what_is_counted() -> None:
    at = family().nonzero_rows
    assert isinstance(at, NonzeroRows)
    assert at.counts == [2, 1, 0, 1, 5]
    assert at.targets.tolist() == [1, 3, 3, 0, 0, 1, 2, 3, 4]


def test_families_that_do_not_know_their_rows() -> None:
    """All rows are multiplied then."""
    weighted = bases.Relations(4, self_loop=True).bind(EDGES, torch.ones(7).double(), KIND, size=5)
    far = bases.Relations(4, self_loop=True).bind(EDGES, None, KIND, size=70_000, dtype=torch.float64)
    one, empty = bases.Adjacency().bind(EDGES, size=5), bases.Relations(4).bind(EDGES[:, :0], None, KIND[:0], size=5)
    for A in (weighted, far, one, empty):
        assert A.nonzero_rows is None
    x, weight, bias = given_numbers(3, 2, True)
    close(a_first_nonzero(x, weight, bias, weighted), torch.einsum("knp,kpq->nq", weighted.expand(x), weight) + bias)


def test_targets_out_of_range_are_refused(kernels: str) -> None:
    A = family()
    at = A.nonzero_rows._replace(targets=A.nonzero_rows.targets + 1)
    with pytest.raises((ValueError, IndexError)):
        nonzero._sums(at, 5, draw(9, 3), draw(5, 3, 2), None)


N, E, P = 640, 1280, 64


def graph(seed: int, n: int = N) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(n, (2, E), generator=g), torch.randint(8, (E,), generator=g)


THETAS = {
    "full": theta.Full,
    "mixtures": lambda: theta.Separable(2),
    "mixtures by channel": lambda: theta.Separable(2, depthwise=True),
    "blocks": lambda: theta.Grouped(4),
}


def relational(kind: str = "full", **options: Any) -> BasisConv:
    return BasisConv(P, P, bases.Relations(8, "mean", self_loop=True), THETAS[kind](), **options)


@pytest.mark.parametrize("kind", THETAS)
def test_every_parameter_that_can_be_written_out(kind: str) -> None:
    """With all gradients, as by another order."""
    conv, other = relational(kind).double(), relational(kind, order="theta_first").double()
    other.load_state_dict(conv.state_dict())
    x, (edges, types), gradient = draw(N, P).requires_grad_(), graph(0), draw(N, P)
    assert conv.plan(x, edges, None, types).chosen.name == "compacted, at once"
    ours, theirs = ((layer(x, edges, None, types), layer) for layer in (conv, other))
    close(ours[0], theirs[0])
    found, wanted = (torch.autograd.grad(y, [x, *layer.parameters()], gradient) for y, layer in (ours, theirs))
    for a, b in zip(found, wanted, strict=True):
        close(a, b)


def test_it_is_planned_where_most_rows_are_zero() -> None:
    conv, x = relational(), torch.randn(N, P)
    edges, kind = graph(0)
    plan = conv.plan(x, edges, None, kind)
    assert plan.chosen.name == "compacted, at once"
    everywhere = edges.repeat(1, 20), kind.repeat(20)
    shuffled = everywhere[0][:, torch.randperm(20 * E)]  # so that each kind reaches almost all
    assert conv.plan(x, shuffled, None, everywhere[1]).order == "a_first"
    for widths in ((64, 16), (16, 64), (8, 8)):  # the products cost less than what saves them
        conv = BasisConv(*widths, bases.Relations(8, "mean", self_loop=True))
        assert conv.plan(x[:, : widths[0]], edges, None, kind).order != "compacted"


def test_every_graph_of_the_form_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a plan, and also where the rows of a later one are not known."""
    conv, chosen, called = relational(), [], []
    choose, step = BasisConv._choose, nonzero._sums
    monkeypatch.setattr(BasisConv, "_choose", lambda self, *a: chosen.append(1) or choose(self, *a))
    monkeypatch.setattr(nonzero, "_sums", lambda *a: called.append(1) or step(*a))
    for seed in range(3):
        x, (edges, kind) = torch.randn(N, P, requires_grad=True), graph(seed)
        expected = relational(order="theta_first")
        expected.load_state_dict(conv.state_dict())
        ours, theirs = conv(x, edges, None, kind), expected(x, edges, None, kind)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        gradient = torch.randn_like(ours)
        for a, b in zip(*(torch.autograd.grad(y, x, gradient) for y in (ours, theirs)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert len(chosen) == 1 + 3
    assert len(called) == 3


@pytest.mark.parametrize("change", ["autocast", "batch", "hook", "subclass"])
def test_other_ways_to_call_the_layer(change: str) -> None:
    """Which have no step, or may not take it."""
    conv, x, (edges, kind) = relational(order="compacted").double(), draw(N, P), graph(0)
    plain = relational(order="theta_first").double()
    plain.load_state_dict(conv.state_dict())
    if change == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            found, wanted = conv.float()(x.float(), edges, None, kind), plain.float()(x.float(), edges, None, kind)
        torch.testing.assert_close(found, wanted, rtol=0.1, atol=0.1)
        return
    if change == "batch":
        x = torch.stack([x, 2 * x])
    if change == "hook":
        nn.utils.parametrize.register_parametrization(conv.theta, "weight", nn.Identity())
    if change == "subclass":
        edges = torch.Tensor.as_subclass(edges, type("Own", (Tensor,), {}))
    close(conv(x, edges, None, kind), plain(x, edges, None, kind))


def test_an_order_that_is_forced() -> None:
    conv, (edges, kind) = relational(order="compacted"), graph(0)
    bound = conv.basis.bind(edges, None, kind, size=N)
    assert ORDERS["compacted"].always == ("at once",)
    torch.testing.assert_close(conv(torch.ones(N, P), bound), conv(torch.ones(N, P), edges, None, kind))
