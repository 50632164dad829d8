"""The Theta that is nearest to a linear operator is what dense least squares find, whatever the operator comes as."""

import copy
import gc
import importlib
import math
import pickle
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.testing import assert_close
from torch_geometric.nn import GCNConv, RGCNConv, TAGConv

from pyg_basisconv import BasisConv, GridConv, bases, convert, mechanisms, theta
from pyg_basisconv.algebra import probing
from pyg_basisconv.algebra.compose import compose
from pyg_basisconv.algebra.decompose import Decomposition, decompose
from pyg_basisconv.algebra.gram import Gram, Places, gram
from pyg_basisconv.algebra.probing import colours
from pyg_basisconv.basis import BoundBasis
from tests import cases, oracle
from tests.algebra.test_gram import families, family, pseudo_solution
from tests.contract import THETAS, bind, draw, make, tensors

DOUBLE = torch.float64
module = importlib.import_module("pyg_basisconv.algebra.decompose")  # the package has the function of its name


def operator(A: Tensor, Theta: Tensor) -> Tensor:
    """(M, N, P, Q), entry by entry of the definition."""
    phi = torch.zeros(*A.shape[1:], *Theta.shape[1:], dtype=DOUBLE)
    for k in range(len(A)):
        for m in range(A.shape[1]):
            for n in range(A.shape[2]):
                phi[m, n] += A[k, m, n] * Theta[k]
    return phi


def nearest(A: Tensor, phi: Tensor) -> tuple[Tensor, Tensor, float]:
    """The theta of least norm that is nearest, and what is left; and how well theta can be known."""
    found, rounding = pseudo_solution(A, phi)
    return found, phi - operator(A, found), rounding


def check(found: Decomposition, A: Tensor, phi: Tensor, tolerance: float = 1e-8) -> None:
    """All that a decomposition says."""
    phi = phi.detach().double()
    phi = phi if phi.dim() == 4 else phi[..., None, None]
    expected, left, rounding = nearest(A, phi)
    assert found.theta.dtype == DOUBLE
    scale = float(phi.norm()) or 1.0
    sized = A.flatten(1).norm(dim=1).view(-1, 1, 1)  # what a theta comes to in the operator
    bounds = {"rtol": tolerance, "atol": tolerance * scale}
    assert_close(operator(A, found.theta.detach()), phi - left, **bounds)
    bounds["atol"] = max(tolerance * scale, 64 * rounding * float((sized * expected).abs().max()))
    assert_close(sized * found.theta.detach(), sized * expected, **bounds)
    assert found.norm == pytest.approx(scale**2 if phi.norm() else 0.0, rel=max(1e-10, tolerance))
    unexplained = float(left.square().sum())
    assert found.unexplained == pytest.approx(unexplained, rel=1e-6, abs=tolerance * scale**2)
    assert found.r2 == pytest.approx(1 - unexplained / scale**2, rel=1e-6, abs=tolerance)
    on = torch.stack([left[A[k] != 0].square().sum() for k in range(len(A))])
    assert_close(found.on, on, rtol=1e-6, atol=tolerance * scale**2)
    for k in range(len(A)):
        without = torch.cat([A[:k], A[k + 1 :]])
        grown = nearest(without, phi)[1] if len(without) else phi
        growth = float(grown.square().sum()) - unexplained
        assert float(found.gain[k]) == pytest.approx(growth, rel=1e-5, abs=max(1e-9, tolerance) * scale**2), k


def as_function(phi: Tensor) -> Callable[[Tensor], Tensor]:
    """x -> y by a dense product."""
    phi = phi if phi.dim() == 4 else phi[..., None, None]
    return lambda x: torch.einsum("mnpq,bmp->bnq", phi.detach().to(x.dtype), x)


def kinds(phi: Tensor) -> dict[str, tuple[Any, int | None]]:
    """The same operator, as all that it may come as, with the width that has to be told."""
    P = 1 if phi.dim() == 2 else phi.shape[2]
    found: dict[str, tuple[Any, int | None]] = {"dense": (phi, None), "function": (as_function(phi), P)}
    found |= {f"sparse in {axes}": (phi.to_sparse(axes), None) for axes in range(2, phi.dim() + 1)}
    found["turned"] = (phi.transpose(0, 1).contiguous().transpose(0, 1), None)
    twice = torch.sparse_coo_tensor(
        torch.cat([phi.to_sparse().indices()] * 2, 1),
        torch.cat([phi.to_sparse().values() * part for part in (3, -2)]),
        phi.shape,
    )
    found["sparse, in parts"] = (twice, None)
    if phi.dim() == 2:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found |= {"csr": (phi.to_sparse_csr(), None), "csc": (phi.to_sparse_csc(), None)}
    return found


# Random families, random operators.


@st.composite
def problems(draw_: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Matrices, and an operator that they explain all, some or nothing of."""
    A = draw_(families())
    K, M, N = A.shape
    P, Q = draw_(st.integers(1, 3)), draw_(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw_(st.integers(0, 10**6)))
    phi = torch.zeros(M, N, P, Q, dtype=DOUBLE)
    if draw_(st.booleans()):
        phi = phi + operator(A, torch.randn(K, P, Q, generator=generator, dtype=DOUBLE))
    if draw_(st.booleans()):
        rest = torch.randn(M, N, P, Q, generator=generator, dtype=DOUBLE)
        phi = phi + rest * (torch.rand(M, N, 1, 1, generator=generator) < draw_(st.sampled_from([0.2, 1.0])))
    return A, phi


@settings(max_examples=20)
@given(problems())
def test_random_problems(problem: tuple[Tensor, Tensor]) -> None:
    A, phi = problem
    bound = family(A)
    found = decompose(phi, bound)
    check(found, A, phi)
    sized = A.flatten(1).norm(dim=1).view(-1, 1, 1)
    rounding = 64 * nearest(A, phi)[2] * float((sized * found.theta).abs().max())
    bounds = {"rtol": 1e-9, "atol": max(1e-9, rounding)}
    for name, (same, P) in kinds(phi).items():
        again = decompose(same, bound, P)
        assert_close(sized * again.theta, sized * found.theta, **bounds, msg=lambda m, name=name: f"{name}: {m}")
        assert again.unexplained == pytest.approx(found.unexplained, rel=1e-6, abs=1e-18 * max(1.0, found.norm)), name
        assert_close(again.on, found.on, rtol=1e-6, atol=1e-12)


@settings(max_examples=8)
@given(problems(), st.integers(1, 40))
def test_some_channels_at_a_time(problem: tuple[Tensor, Tensor], numbers: int) -> None:
    A, phi = problem
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_NUMBERS", numbers)
        patch.setattr(probing, "NUMBERS", numbers)
        for name, (same, P) in kinds(phi).items():
            if name not in ("turned", "sparse, in parts"):
                check(decompose(same, family(A), P), A, phi)


@pytest.mark.parametrize(("M", "P", "N", "Q", "together"), [(4, 2, 3, 5, 100 // 15), (6, 3, 2, 2, 100 // 18)])
def test_a_function_is_called_on_as_many_as_fit(
    M: int, P: int, N: int, Q: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more numbers than 100 in what it takes or gives."""
    monkeypatch.setattr(probing, "NUMBERS", 100)
    phi, called = draw(M, P, N, Q), []

    def function(x: Tensor) -> Tensor:
        called.append(len(x))
        return torch.einsum("bmp,mpnq->bnq", x, phi)

    decompose(function, family(draw(2, M, N)), P)
    assert max(called) == together > 3  # as many are called to see that it is linear


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=["half", "bfloat16", "single"])
@pytest.mark.parametrize("kind", ["dense", "sparse in 2", "function"])
def test_any_precision(dtype: torch.dtype, kind: str) -> None:
    A = draw(3, 5, 4) * (draw(3, 5, 4, seed=1) > 0)
    phi = operator(A, draw(3, 2, 3, seed=2)).to(dtype)
    same, P = kinds(phi)[kind]
    found = decompose(same, family(A), P)
    check(found, A, phi)
    assert found.dtype == (DOUBLE if kind == "function" else dtype)


def test_one_channel() -> None:
    A = draw(2, 4, 3)
    phi = draw(4, 3, seed=1)
    for same, P in kinds(phi).values():
        found = decompose(same, family(A), P)
        assert found.theta.shape == (2, 1, 1)
        check(found, A, phi)


def test_nothing_to_explain() -> None:
    found = decompose(torch.zeros(4, 3, 2, 2), family(draw(2, 4, 3)))
    assert (found.norm, found.unexplained, found.r2) == (0, 0, 1)
    assert not found.theta.any()


@pytest.mark.parametrize(("M", "N"), [(0, 3), (3, 0), (0, 0)])
def test_no_entries(M: int, N: int) -> None:
    bound = bases.Edges(2).bind(torch.empty(2, 0).long(), edge_type=torch.empty(0).long(), size=(M, N))
    for same, P in kinds(torch.zeros(M, N, 2, 3)).values():
        found = decompose(same, bound, P)
        assert found.theta.shape == (2, 2, 3)
        assert not found.theta.any()
        assert found.gram.dependent == ["A_0 = 0", "A_1 = 0"]


def test_a_basis_of_all_explains_all() -> None:
    # Prop. 1: as many independent matrices as there are places.
    A = draw(6, 2, 3)
    phi = draw(2, 3, 4, 5, seed=1)
    found = decompose(phi, family(A), unique=True)
    assert_close(operator(A, found.theta), phi, rtol=1e-10, atol=1e-10)
    assert found.unexplained <= 1e-24 * found.norm


def test_badly_conditioned_matrices() -> None:
    # Their inner products lose twice the digits that the matrices lose; a second look at what is left finds them.
    edge_index = torch.randint(60, (2, 400))
    edge_index = torch.cat([edge_index, edge_index.flip(0)], 1)
    bound = bases.Powers(10).bind(edge_index, size=60, dtype=DOUBLE)
    expected = draw(10, 3, 2)
    found = decompose(torch.einsum("kmn,kpq->mnpq", bound.to_dense(), expected), bound)
    assert 1e4 < found.gram.condition < 1e5
    assert found.gram.rank == 10
    assert_close(found.theta, expected, rtol=1e-9, atol=1e-9)


# Families, layers.


@pytest.mark.parametrize(
    "name", [name for name in cases.CONSTANT if name.endswith(("random", "M>N", "typed", "batch"))]
)
@pytest.mark.sweep(16)
def test_every_family(name: str) -> None:
    case = cases.CASES[name]
    g = case.graph()
    A = case.matrices(g)
    bound, basis = bind(case.basis(), g), case.basis()
    expected = nearest(A, operator(A, draw(len(A), 3, 2)))[0]
    conv = BasisConv(3, 2, basis).double()
    conv.weight.data.copy_(expected)
    conv.bias.data.fill_(1.0)
    for phi in (operator(A, expected), conv):
        found = decompose(phi, bound)
        assert_close(found.theta.detach(), expected, rtol=1e-8, atol=1e-8)
        assert found.unexplained <= 1e-20 * max(1.0, found.norm)
    again = found.layer()
    x = draw(A.shape[1], 3)
    kwargs = {**tensors(g), "size": (g.M, g.N)}
    assert_close(again(x, **kwargs), conv(x, **kwargs) - conv.bias, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", THETAS)
@pytest.mark.sweep(6)
def test_every_parameter_of_a_layer(kind: str) -> None:
    g = cases.typed(4)
    A = oracle.edges(g, 4)
    conv = make(bases.Edges(4), kind, P=3, Q=2)
    bound, P = bind(bases.Edges(4) + bases.Identity(), g), 3
    width = conv.theta.P if conv.theta.P > 0 else P
    parameters = {name: p.detach() for name, p in conv.theta.named_parameters()}
    Theta = oracle.theta(kind, 4, width, conv.out_channels, parameters)[:, :width]
    everything = torch.cat([A, oracle.identity(g)])
    check(decompose(conv, bound, in_channels=width), everything, operator(A, Theta))


GRIDS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: nn.Conv2d(3, 4, 3, padding=1),
    "grouped": lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2),
    "depthwise": lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4),
    "strided": lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1),
    "dilated": lambda: nn.Conv2d(3, 4, (3, 2), dilation=2),
    "circular": lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"),
    "reflect": lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"),
    "transposed": lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1),
    "average": lambda: nn.AvgPool2d(2, padding=1, count_include_pad=False),
}


@pytest.mark.parametrize("name", GRIDS)
def test_layers_of_torch_on_grids(name: str) -> None:
    layer = GRIDS[name]().double()
    basis = convert(layer, {}).basis
    P = getattr(layer, "in_channels", 3)
    bound = basis.bind(grid=(5, 6), dtype=DOUBLE)
    image = draw(2, P, 5, 6)

    def linear(x: Tensor) -> Tensor:
        y = layer(x.transpose(1, 2).unflatten(2, (5, 6)))
        zero = layer(torch.zeros(1, P, 5, 6, dtype=DOUBLE))
        return (y - zero).flatten(2).transpose(1, 2)

    found, probed = decompose(layer, bound, P), decompose(linear, bound, P)
    for one in (found, probed):
        assert one.unexplained <= 1e-24 * one.norm
        assert_close(one.theta, found.theta, rtol=1e-10, atol=1e-10)
        x = image.flatten(2).transpose(1, 2)
        assert_close(one.layer()(x, bound), linear(x).detach(), rtol=1e-10, atol=1e-10)
    if isinstance(layer, nn.Conv2d) and layer.groups == 1:
        assert_close(found.theta, layer.weight.detach().flatten(2).permute(2, 1, 0))


def test_layers_of_pyg() -> None:
    edge_index, kind = torch.randint(8, (2, 30)), torch.randint(3, (30,))
    gcn, tag, rgcn = GCNConv(3, 2).double(), TAGConv(3, 2, 2).double(), RGCNConv(3, 2, 3, aggr="add").double()
    powers = bases.Powers(3).bind(edge_index, size=8, dtype=DOUBLE)
    assert_close(decompose(tag, powers).theta, torch.stack([lin.weight.detach().t() for lin in tag.lins]))
    loops = (bases.Adjacency("sym", True) + bases.Identity()).bind(edge_index, size=8, dtype=DOUBLE)
    expected = torch.stack([gcn.lin.weight.detach().t(), torch.zeros(3, 2).double()])
    assert_close(decompose(gcn, loops).theta, expected)
    typed = (bases.Edges(3) + bases.Identity()).bind(edge_index, None, kind, size=8, dtype=DOUBLE)
    expected = torch.cat([rgcn.weight, rgcn.root.unsqueeze(0)]).detach()
    assert_close(
        decompose(lambda x: torch.stack([rgcn(one, edge_index, kind) - rgcn.bias for one in x]), typed, 3).theta,
        expected,
    )


def test_layers_that_do_the_same_everywhere() -> None:
    basis, x = bases.Shifts(6, [-1, 0, 1]), draw(4, 6, 3)
    linear, norm = nn.Linear(3, 2).double(), nn.BatchNorm1d(3).double()
    for seed, tensor in enumerate([norm.running_mean, norm.running_var, norm.weight.data, norm.bias.data]):
        tensor.copy_(draw(3, seed=seed).abs() + 0.5)
    found = decompose(linear, basis)
    assert_close(
        found.theta, torch.stack([torch.zeros(3, 2).double(), linear.weight.detach().t(), torch.zeros(3, 2).double()])
    )
    with pytest.raises(ValueError, match=r"^phi: expected a batch norm in eval mode"):
        decompose(norm, basis)
    found = decompose(norm.eval(), basis)
    by_hand = norm(x.flatten(0, 1)) - norm(torch.zeros(1, 3).double())
    assert_close(found.layer()(x).flatten(0, 1), by_hand.detach())


def test_a_layer_on_other_edges() -> None:
    edge_index, other = torch.randint(6, (2, 20)), torch.randint(6, (2, 15))
    conv = BasisConv(3, 2, bases.Powers(3)).double()
    bound = bases.Diffusion(2).bind(edge_index, size=6, dtype=DOUBLE)
    own = bases.Powers(3).bind(other, size=6, dtype=DOUBLE)
    for phi_basis, A in ((None, bases.Powers(3).bind(edge_index, size=6, dtype=DOUBLE)), (own, own)):
        found = decompose(conv, bound, phi_basis=phi_basis)
        check(found, bound.to_dense(), operator(A.to_dense(), conv.weight.detach()))


def test_a_layer_whose_messages_flow_back() -> None:
    edge_index = torch.randint(6, (2, 20))
    conv = BasisConv(3, 2, bases.Adjacency("rw"), flow="target_to_source", bias=False).double()
    x = draw(6, 3)
    bound = (bases.Adjacency("rw") + bases.Edges().T).bind(edge_index, size=6, dtype=DOUBLE)
    phi = torch.zeros(6, 6, 3, 2, dtype=DOUBLE)
    for m in range(6):
        for p in range(3):
            unit = torch.zeros_like(x)
            unit[m, p] = 1
            phi[m, :, p] = conv(unit, edge_index).detach()
    check(decompose(conv, bound), bound.to_dense(), phi)


def test_a_composed_layer_without_its_biases() -> None:
    first, second = BasisConv(3, 4, bases.Adjacency("mean")), BasisConv(4, 2, bases.Identity() + bases.Adjacency("rw"))
    both = compose(first, second).double()
    for seed, parameter in enumerate(both.parameters()):
        parameter.data.copy_(draw(*parameter.shape, seed=seed))
    edge_index = torch.randint(6, (2, 20))
    bound = (first.basis @ second.basis).bind(edge_index, size=6, dtype=DOUBLE)
    A = bound.to_dense()
    Theta = torch.stack([first.weight[0] @ second.weight[0], first.weight[0] @ second.weight[1]]).detach()
    found = decompose(both, bound)
    check(found, A, operator(A, Theta))
    x, phi = draw(6, 3), both(torch.zeros(6, 3).double(), edge_index)
    assert_close(found.layer()(x, edge_index), (both(x, edge_index) - phi).detach())


def test_attention_that_has_been_computed() -> None:
    conv = BasisConv(4, 3, bases.Attention(2, mechanisms.Dot(2)), theta.LowRank(2, bias=True)).double()
    x, basis = draw(5, 4), bases.Shifts(5, range(-4, 5))
    _, attention = conv(x, return_attention=True)
    dense = basis.bind(dtype=DOUBLE).to_dense()
    phi = operator(attention.to_dense().detach(), conv.theta.weight.detach() @ conv.theta.output.detach())
    check(decompose(conv, basis, phi_basis=attention), dense, phi)
    # And the other way round, in the span of the heads.
    phi = draw(5, 5, 2, 2)
    check(decompose(phi, attention), attention.to_dense().detach(), phi)
    with pytest.raises(
        ValueError, match=r"^phi: expected a basis that does not depend on x|^phi: expected a layer whose"
    ):
        decompose(conv, basis)
    with pytest.raises(ValueError, match=r"^basis: expected a Basis that does not depend on x"):
        decompose(phi, attention).layer()
    _, batched = conv(draw(3, 5, 4), return_attention=True)
    with pytest.raises(ValueError, match=r"^basis: expected one graph, got a batch of \(3,\)"):
        decompose(phi, batched)
    assert decompose(phi, batched[1]).theta.shape == (2, 2, 2)


# Functions.


def counted(function: Callable[[Tensor], Tensor]) -> tuple[Callable[[Tensor], Tensor], list[int]]:
    sizes: list[int] = []

    def call(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return function(x)

    return call, sizes


def test_few_calls_where_the_pattern_is_known() -> None:
    weight = draw(3, 2, 3, 3)
    call, sizes = counted(
        lambda x: F.conv2d(x.transpose(1, 2).unflatten(2, (12, 12)), weight, padding=1).flatten(2).transpose(1, 2)
    )
    found = decompose(call, bases.Window((12, 12), 3, padding=1), 2)
    assert_close(found.theta, weight.flatten(2).permute(2, 1, 0))
    assert sum(sizes) == 9 * 2 + 1 + 5  # nine colours, two channels; is that all, is it linear


def test_entries_elsewhere_are_found() -> None:
    # Beyond the pattern stands what the probes of many sources at once would mix up with what is within.
    A = torch.stack([torch.eye(9, dtype=DOUBLE), torch.eye(9, dtype=DOUBLE).roll(1, 1)])
    for place in ((0, 5), (8, 1), (4, 7)):
        phi = operator(A, draw(2, 2, 3))
        phi[place] += 1e-3 * draw(2, 3, seed=1)
        call, sizes = counted(as_function(phi))
        found = decompose(call, family(A), 2)
        check(found, A, phi)
        assert found.unexplained == pytest.approx(float((1e-3 * draw(2, 3, seed=1)).square().sum()), rel=1e-9)
        assert sum(sizes) >= 9 * 2


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**31))
@settings(max_examples=60)
def test_sources_of_one_colour_meet_no_target_twice(M: int, N: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    meets = torch.rand(M, N, generator=generator) < torch.rand(1, generator=generator)
    found = colours(*meets.nonzero(as_tuple=True), M, N)
    for m in range(M):
        assert (found[m] == -1) == (not meets[m].any())
        for other in range(m):
            assert found[m] == -1 or found[m] != found[other] or not (meets[m] & meets[other]).any()
    degree = int(meets.sum(0).max())
    assert max(found) + 1 >= degree  # the sources of one target are all of another colour


def test_as_many_colours_as_taps() -> None:
    for shape, kernel in (((30,), 5), ((9, 12), 3), ((4, 5, 6), 3)):
        places = Places.of(bases.Window(shape, kernel, padding=kernel // 2).bind())
        M = math.prod(shape)
        assert max(colours(places.place // M, places.place % M, M, M)) + 1 == kernel ** len(shape)


def test_a_function_that_gives_what_it_got() -> None:
    found = decompose(lambda x: x, bases.Shifts(4, [1]), 2)  # not one entry is within
    assert (found.norm, found.unexplained, found.theta.abs().sum()) == (8, 8, 0)
    wide = decompose(lambda x: x.sum(1, keepdim=True).expand(-1, 4, -1), bases.Shifts(4, [0, 1]), 2)
    assert (wide.norm, wide.unexplained) == (32, 18)


def test_a_module_in_single_precision() -> None:
    basis = bases.Shifts(6, [0, 1])
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 2, bias=False))
    found = decompose(model, basis, 3)
    assert found.dtype == torch.float32
    assert_close(found.theta[0], (model[1].weight @ model[0].weight).t().double(), rtol=1e-5, atol=1e-6)
    assert found.unexplained < 1e-10
    assert found.layer().weight.dtype == torch.float32
    assert not found.theta.requires_grad


def test_the_state_of_the_generator_stays() -> None:
    state = torch.get_rng_state()
    decompose(lambda x: x.cumsum(1), bases.Shifts(4, [0]), 1)
    assert torch.equal(torch.get_rng_state(), state)


NOT_LINEAR: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "relu": (torch.relu, r"with f\(a x \+ b y\) = a f\(x\) \+ b f\(y\), got a difference"),
    "square": (lambda x: x * x, r"with f\(a x"),
    "abs of a sum": (lambda x: x.sum(1, keepdim=True).abs().expand_as(x), r"with f\(a x"),
    "constant": (lambda x: torch.ones_like(x), r"with f\(0\) = 0, got 4.24 for 0; decompose its linear part"),
    "bias": (nn.Sequential(nn.Linear(3, 3)), r"with f\(0\) = 0"),
    "dropout": (nn.Dropout(0.5), r"with f\(a x"),
    "softmax": (lambda x: x.softmax(1), r"with f\(0\) = 0"),
    "over the batch": (lambda x: x - x.mean(0, keepdim=True), "with f"),
    "hardly": (lambda x: x + 1e-5 * x.abs(), r"with f\(a x"),
    "nan": (lambda x: x * torch.nan, r"with f\(0\) = 0"),
}


@pytest.mark.parametrize("name", NOT_LINEAR)
def test_what_is_not_linear(name: str) -> None:
    function, message = NOT_LINEAR[name]
    with pytest.raises(ValueError, match=r"^phi: expected a linear function, " + message):
        decompose(function, bases.Shifts(6, [0, 1]), 3)


# Gradients.


def gradient_problem() -> tuple[BoundBasis, Tensor]:
    return family(draw(3, 4, 5) * (draw(3, 4, 5, seed=1) > 0)), draw(4, 5, 2, 2, seed=2)


@pytest.mark.parametrize(
    ("kind", "numbers"), [("dense", 4), ("sparse in 2", 1 << 20), ("sparse in 3", 4), ("sparse in 4", 4)]
)
@pytest.mark.sweep(1)
def test_gradients_of_numbers(kind: str, numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NUMBERS", numbers)
    bound, phi = gradient_problem()
    given_, _ = kinds(phi)[kind]
    if kind == "dense":
        assert gradcheck(lambda phi: decompose(phi, bound).theta, (phi.requires_grad_(),))
        return
    index, values = given_.indices(), given_.values().requires_grad_()

    def of(values: Tensor) -> Tensor:
        return decompose(torch.sparse_coo_tensor(index, values, phi.shape), bound).theta

    assert gradcheck(of, (values,))


def test_gradients_of_a_layer() -> None:
    edge_index = torch.randint(6, (2, 20))
    bound = bases.Diffusion(2).bind(edge_index, size=6, dtype=DOUBLE)
    conv = BasisConv(3, 2, bases.Powers(3), theta.LowRank(2)).double()

    def of(value: Tensor, output: Tensor) -> Tensor:
        weights = {"theta.weight": value, "theta.output": output}
        other = copy.deepcopy(conv)
        for name, weight in weights.items():
            part = other.get_submodule(name.rpartition(".")[0])
            del part._parameters[name.rpartition(".")[2]]
            setattr(part, name.rpartition(".")[2], weight)
        return decompose(other, bound).theta

    assert gradcheck(of, (conv.theta.weight, conv.theta.output))
    decompose(conv, bound).theta.sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in conv.theta.parameters())
    assert not any(p.grad is not None for name, p in conv.named_parameters() if name == "bias")


def test_gradients_of_the_basis() -> None:
    edge_index, weight, phi = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]]), draw(4).requires_grad_(), draw(3, 3, 2, 2)

    def of(weight: Tensor) -> Tensor:
        return decompose(phi, (bases.Edges() + bases.Identity()).bind(edge_index, weight)).theta

    assert gradcheck(of, (weight,))


def test_gradients_of_the_basis_and_a_layer() -> None:
    edge_index, weight = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]]), draw(4).requires_grad_()
    conv = BasisConv(2, 3, bases.Adjacency(), bias=False).double()
    own = conv.basis.bind(edge_index, draw(4, seed=1))

    def of(weight: Tensor, theta: Tensor) -> Tensor:
        conv.theta._parameters.pop("weight", None)
        conv.theta.weight = theta
        bound = (bases.Edges() + bases.Identity()).bind(edge_index, weight)
        return decompose(conv, bound, phi_basis=own).theta

    assert gradcheck(of, (weight, draw(1, 2, 3).requires_grad_()))


# Printing, copies, memory.


def test_the_table() -> None:
    A = torch.stack([torch.eye(3), torch.eye(3).roll(1, 1), torch.eye(3) + torch.eye(3).roll(1, 1)]).double()
    found = decompose(draw(3, 3, 2, 2), family(A))
    lines = str(found).splitlines()
    assert lines[0] == "M=3  N=3  P=2  Q=2  K=3: rank 2, condition inf"
    assert lines[1].startswith(f"explained: {100 * found.r2:.6g}% of {found.norm:.4g}, unexplained")
    assert [line.split()[0] for line in lines[3:6]] == ["0", "1", "2"]
    assert lines[6:] == ["A_2 = A_0 + A_1"]
    assert repr(found).startswith("Decomposition(K=3, P=2, Q=2, r2=")
    many = decompose(torch.ones(40, 40), bases.Shifts(40, range(30)))
    assert str(many).splitlines()[-1] == "  ... and 10 more"


def test_copies() -> None:
    found = decompose(draw(4, 4, 2, 2), bases.Shifts(4, [0, 1]))
    for same in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert torch.equal(same.theta, found.theta)
        assert same.layer().basis.K == 2
        assert str(same) == str(found)


def peak(work: Callable[[], object]) -> int:
    """Bytes that torch holds at most, above what it held."""
    gc.collect()  # what goes in the middle of the work would count as room
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
    events = sorted(
        (e.start_ns(), e.nbytes()) for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"
    )
    held = most = 0
    for _, size in events:
        held += size
        most = max(most, held)
    return most


@pytest.mark.parametrize("kind", ["layer", "function"])
@pytest.mark.sweep(1)
def test_a_convolution_of_images(kind: str) -> None:
    layer = nn.Conv2d(16, 16, 3, padding=1).double()

    def function(x: Tensor) -> Tensor:
        image = x.transpose(1, 2).unflatten(2, (64, 64))
        return F.conv2d(image, layer.weight, padding=1).flatten(2).transpose(1, 2)

    found: list[Decomposition] = []
    basis = bases.Window((64, 64), 3, padding=1)
    phi, P = (layer, None) if kind == "layer" else (function, 16)
    used = peak(lambda: found.append(decompose(phi, basis, P)))
    kernel = layer.weight.detach().flatten(2).permute(2, 1, 0)
    assert_close(found[0].theta, kernel, rtol=0, atol=1e-8)
    assert found[0].r2 == 1
    assert 1e6 < used < 200e6  # the operator has 4 billion numbers, of which 9 million are not zero


def test_nothing_of_the_size_of_the_operator_is_made() -> None:
    N = 10**6
    index = torch.tensor([[0, 1, N - 1], [1, 2, 0]])
    phi = torch.sparse_coo_tensor(index, torch.tensor([[[1.0]], [[2.0]], [[4.0]]]), (N, N, 1, 1))
    bound = bases.Edges().bind(torch.tensor([[0, 1], [1, 2]]), size=N)
    found: list[Decomposition] = []
    assert peak(lambda: found.append(decompose(phi, bound))) < 1e7
    assert (float(found[0].theta), found[0].unexplained, found[0].norm) == (1.5, 16.5, 21.0)


# Errors.

SQUARE = bases.Shifts(4, [0, 1])
DEPENDENT = bases.Mix([[1.0, 0.0], [0.0, 1.0], [2.0, -1.0]], SQUARE)
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "another shape": (
        lambda: decompose(torch.zeros(4, 5), SQUARE.bind()),
        r"^phi: expected \(4, 4, P, Q\) or \(4, 4\), the sizes of the basis, got \(4, 5\)",
    ),
    "another shape, not bound": (lambda: decompose(torch.zeros(3, 3), SQUARE), r"^x: expected 4 rows, the grid \(4,\)"),
    "three axes": (lambda: decompose(torch.zeros(4, 4, 2), SQUARE), r"^phi: expected \(4, 4, P, Q\)"),
    "one axis": (lambda: decompose(torch.zeros(4), SQUARE), r"^phi: expected \(4, 4, P, Q\)"),
    "integers": (lambda: decompose(torch.zeros(4, 4).long(), SQUARE), r"^phi: expected real numbers, got torch.int64"),
    "complex": (lambda: decompose(torch.zeros(4, 4) * 1j, SQUARE), r"^phi: expected real numbers"),
    "sparse in one axis": (
        lambda: decompose(torch.ones(4, 4).to_sparse(1), SQUARE),
        r"^phi: expected a tensor that is sparse in its first two axes, got in 1",
    ),
    "no channel": (
        lambda: decompose(torch.zeros(4, 4, 0, 2), SQUARE),
        r"^phi: expected at least one channel in and out, got \(4, 4, 0, 2\); there is nothing to decompose",
    ),
    "another device": (
        lambda: decompose(torch.zeros(4, 4, device="meta"), SQUARE.bind()),
        r"^phi: expected a tensor on cpu, as the basis, got meta; move one to the other",
    ),
    "a layer on another device": (
        lambda: decompose(BasisConv(3, 2, SQUARE).to("meta"), SQUARE.bind()),
        r"^phi: expected a layer on cpu, as the basis, got meta; move one to the other",
    ),
    "a basis that is not bound": (
        lambda: decompose(BasisConv(3, 2, SQUARE), SQUARE, phi_basis=SQUARE),
        r"^phi_basis: expected a bound basis, got Shifts",
    ),
    "no operator": (
        lambda: decompose("phi", SQUARE),
        r"^phi: expected a tensor, a layer or a linear function, got str",
    ),
    "no basis": (lambda: decompose(torch.zeros(4, 4), 3), r"^basis: expected a Basis"),
    "no edges": (lambda: decompose(torch.zeros(4, 4), bases.Adjacency()), r"^basis: expected the edges that Adjacency"),
    "no sizes": (lambda: decompose(lambda x: x, bases.Identity(), 3), r"^size: expected the numbers of sources"),
    "dependent": (
        lambda: decompose(torch.zeros(4, 4), DEPENDENT, unique=True),
        r"^basis: expected 3 independent matrices, for a unique theta, got A_2 = 2 A_0 - A_1; leave these out",
    ),
    "unique": (lambda: decompose(torch.zeros(4, 4), SQUARE, unique=1), r"^unique: expected True or False"),
    "no width": (lambda: decompose(lambda x: x, SQUARE), r"^in_channels: expected the width P"),
    "no width of a layer": (
        lambda: decompose(BasisConv(-1, -1, SQUARE, theta.Pass(), bias=False), SQUARE),
        r"^in_channels: expected the width P, of BasisConv",
    ),
    "a width that is none": (lambda: decompose(lambda x: x, SQUARE, 0), r"^in_channels: expected an integer from 1 on"),
    "another width": (lambda: decompose(BasisConv(3, 2, SQUARE), SQUARE, 4), r"^in_channels: expected 3, of BasisConv"),
    "another width of numbers": (
        lambda: decompose(torch.zeros(4, 4, 2, 2), SQUARE, 3),
        r"^in_channels: expected P of phi, \(4, 4, 2, 2\), got 3",
    ),
    "lazy": (lambda: decompose(BasisConv(-1, 2, SQUARE), SQUARE), r"^phi: expected a layer whose width is known"),
    "a layer of other sizes": (
        lambda: decompose(BasisConv(3, 2, bases.Shifts(5, [0])), SQUARE),
        r"^phi: expected an operator of 4 x 4, the sizes of the basis, got 5 x 5, of BasisConv",
    ),
    "a layer with edges": (
        lambda: decompose(BasisConv(3, 2, bases.Adjacency()), copy.copy(SQUARE.bind())),
        r"^phi_basis: expected the edges that Adjacency\(\) needs",
    ),
    "a basis of another layer": (
        lambda: decompose(BasisConv(3, 2, SQUARE), SQUARE, phi_basis=bases.Shifts(4, [0]).bind()),
        r"^phi_basis: expected 2 matrices",
    ),
    "a basis of other sizes": (
        lambda: decompose(BasisConv(3, 2, SQUARE), SQUARE, phi_basis=bases.Shifts(5, [0, 1]).bind()),
        r"^phi: expected an operator of 4 x 4",
    ),
    "a basis of numbers": (
        lambda: decompose(torch.zeros(4, 4), SQUARE, phi_basis=SQUARE.bind()),
        r"^phi_basis: expected None, where phi is no layer",
    ),
    "a layer that is not linear": (
        lambda: decompose(nn.MultiheadAttention(4, 2), SQUARE),
        r"^phi: expected a basis that does not depend on x",
    ),
    "channels in another order": (
        lambda: decompose(nn.Unfold(3, padding=1), bases.Window((4, 4), 3, padding=1), 2),
        r"^phi: expected a layer that is linear in x, got Unfold, which is not, or not known to be",
    ),
    "a function of another shape": (
        lambda: decompose(lambda x: x[:, 1:], SQUARE, 3),
        r"^phi: expected a function from \(B, 4, 3\) to \(B, 4, Q\), the sizes of the basis, got \(1, 3, 3\) for B = 1",
    ),
    "a function of no tensor": (
        lambda: decompose(lambda x: 3, SQUARE, 3),
        r"^phi: expected a function from .* got int",
    ),
    "a function that fails": (
        lambda: decompose(lambda x: x @ torch.ones(2, 2), SQUARE, 3),
        r"^phi: expected a function of \(B, 4, 3\), got an error: mat1 and mat2 shapes cannot be multiplied",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_a_basis_bound_by_other_means_makes_no_layer() -> None:
    found = decompose(torch.ones(4, 4), family(draw(2, 4, 4)))
    with pytest.raises(ValueError, match=r"^basis: expected a Basis .* got a bound one made by other means"):
        found.layer()


@pytest.mark.cuda
@pytest.mark.parametrize("kind", ["dense", "sparse in 2", "sparse in 4", "function", "layer"])
def test_on_cuda(kind: str) -> None:
    basis, conv = bases.Window((4, 5), 3, padding=1), nn.Conv2d(2, 3, 3, padding=1).double()
    expected = decompose(conv, basis)
    phi = operator(basis.bind(dtype=DOUBLE).to_dense(), expected.theta)
    phi[3, 17] += 1
    same, P = (conv, None) if kind == "layer" else kinds(phi.cuda())[kind]
    same = same.cuda() if kind == "layer" else same
    found = decompose(same, basis.bind(dtype=DOUBLE).to("cuda"), P)
    assert found.theta.device.type == "cuda"
    check(
        Decomposition(**{**vars(found), "theta": found.theta.cpu(), "on": found.on.cpu(), "gain": found.gain.cpu()}),
        basis.bind(dtype=DOUBLE).to_dense(),
        operator(basis.bind(dtype=DOUBLE).to_dense(), expected.theta) if kind == "layer" else phi,
    )
    assert decompose(same, basis, P).theta.device.type == "cuda" or kind == "function"


def test_more_matrices_than_channels() -> None:
    conv = BasisConv(1, 2, bases.Shifts(6, range(-3, 4)), bias=False).double()
    found = decompose(conv, bases.Shifts(6, range(-5, 6)))
    assert_close(found.theta[2:9].detach(), conv.weight.detach())
    assert not found.theta[:2].any()


def test_an_image_layer_is_a_layer_of_its_grid() -> None:
    conv = GridConv(3, 2, bases.Window(None, (3, 3), padding=1)).double()
    found = decompose(conv, bases.Window((4, 5), 3, padding=1))
    assert_close(found.theta.detach(), conv.weight.detach())


# The checks can fail.


def test_nearly_dependent_matrices_explain_no_less_than_nothing() -> None:
    # What is dependent to within rounding is left out; of the rest the nearest is found, however badly conditioned.
    for seed in range(30):
        A = draw(5, 4, 4, seed=seed)
        for k, apart in ((2, 1e-6), (3, 1e-7), (4, 3e-8)):
            A[k] = torch.tensordot(draw(k, seed=seed + k), A[:k], 1) + apart * A[k]
        phi = draw(4, 4, 2, 2, seed=seed + 100)
        found = decompose(phi, family(A))
        few = decompose(phi, family(A[:2]))
        assert found.unexplained <= few.unexplained * (1 + 1e-6)


def check_conditioned() -> None:
    test_badly_conditioned_matrices()


def check_dependent(kind: str = "dense") -> None:
    A = draw(4, 5, 4) * (draw(4, 5, 4, seed=1) > 0.6)
    A = torch.stack([*A, 3 * A[1], A[0] - 2 * A[2]])
    phi = operator(A, draw(6, 2, 3, seed=2)) + draw(5, 4, 2, 3, seed=3)
    same, P = kinds(phi)[kind]
    check(decompose(same, family(A), P), A, phi)


def check_function() -> None:
    check_dependent("function")


def _patch(name: str, patch: pytest.MonkeyPatch) -> None:
    """Puts one thing wrong."""
    solve, at = Gram.solve, probing.Probed.at

    def any_solution(self: Gram, products: Tensor) -> Tensor:
        found = solve(self, products)
        return found + self.relations.sum(1).view(-1, *[1] * (products.dim() - 1))

    def by_scaled_norm(self: Gram, products: Tensor) -> Tensor:
        flat = products.flatten(1) / self.norms.unsqueeze(1)
        scaled = torch.linalg.pinv(self._scaled, hermitian=True, rtol=1e-10) @ flat
        return (scaled / self.norms.unsqueeze(1)).view_as(products)

    def not_refined(values: Tensor, theta: Tensor, places: Places) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(theta), values - places.sums(theta)

    def one_colour(source: Tensor, target: Tensor, M: int, N: int) -> list[int]:
        return [0] * M

    def without_the_rest(self: probing.Probed, channels: range) -> Tensor:
        values = at(self, channels)
        self.outside = 0.0
        return values

    def weighted(self: Places) -> Places:
        return Places(self.place, self.K, self.row, self.kind, self.weight.detach().abs())

    match name:
        case "any solution":
            patch.setattr(Gram, "solve", any_solution)
        case "least norm of other numbers":
            patch.setattr(Gram, "solve", by_scaled_norm)
        case "one look":
            patch.setattr(module, "_refined", not_refined)
        case "one colour, and no doubt":
            patch.setattr(probing, "colours", one_colour)
            patch.setattr(probing.Probed, "_complete", lambda *_: True)
        case "no doubt":
            patch.setattr(probing.Probed, "_complete", lambda *_: True)
        case "nothing outside":
            patch.setattr(probing.Probed, "at", without_the_rest)
        case "weights on the pattern":
            patch.setattr(Places, "pattern", property(weighted))
        case "gain of what stands there":
            patch.setattr(Gram, "squared_distances", property(lambda self: self.norms.square()))
        case "no gain without the others":
            patch.setattr(Gram, "squared_distances", property(lambda self: torch.zeros_like(self.norms)))


WRONG: dict[str, Callable[[], None]] = {
    "any solution": check_dependent,
    "least norm of other numbers": check_dependent,
    "one look": check_conditioned,
    "one colour, and no doubt": check_function,
    "no doubt": check_function,
    "nothing outside": check_function,
    "weights on the pattern": check_dependent,
    "gain of what stands there": check_dependent,
    "no gain without the others": check_dependent,
}


@pytest.mark.parametrize("name", WRONG)
def test_the_checks_can_fail(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    WRONG[name]()
    _patch(name, monkeypatch)
    with pytest.raises(AssertionError):
        WRONG[name]()


def test_one_colour_is_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "colours", lambda source, target, M, N: [0] * M)
    check_function()


def test_what_few_digits_may_hide() -> None:
    """In half precision, too, an entry beside the pattern is seen, and not taken for one within."""
    identity = bases.Identity().bind(size=50, dtype=DOUBLE)
    found = decompose(lambda x: x.bfloat16() + 0.15 * x.bfloat16().roll(1, 1), identity, in_channels=1)
    assert_close(found.theta.item(), 1.0, rtol=0, atol=1e-2)
    assert found.r2 == pytest.approx(1 / (1 + 0.15**2), rel=1e-2)


def test_functions_that_give_something_else() -> None:
    identity = bases.Identity().bind(size=5, dtype=DOUBLE)
    for function, said in (
        (lambda x: x * (1 + 2j), "a function that gives dense real numbers"),
        (lambda x: x[:1], r"for B = 3"),
        (lambda x: x.to_sparse(), "a function that gives dense real numbers"),
    ):
        with pytest.raises(ValueError, match=f"^phi: .*{said}"):
            decompose(function, identity, in_channels=1)
    assert decompose(lambda x: x.mul_(2), identity, in_channels=1).theta.item() == 2  # of a copy


def test_too_many_unit_inputs_are_refused() -> None:
    huge = bases.Identity().bind(size=300_000, dtype=DOUBLE)
    with pytest.raises(ValueError, match=r"^phi: expected entries where the basis has some, got entries elsewhere"):
        decompose(lambda x: x.roll(1, 1), huge, in_channels=1)


@pytest.mark.parametrize(("N", "Q", "numbers"), [(4, 2, 6 * 8), (2, 2, 6 * 6)], ids=["given", "taken"])
def test_results_are_counted_by_the_larger_side(N: int, Q: int, numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many numbers as there are unit inputs, times what one takes or gives."""
    phi, nothing = draw(3, 2, N, Q), torch.zeros(1, 3, N, dtype=DOUBLE)
    for most in (numbers, numbers - 1):
        monkeypatch.setattr(probing, "MOST", most)
        with nullcontext() if most == numbers else pytest.raises(ValueError, match=f"6 unit inputs give {numbers}"):
            assert decompose(lambda x: torch.einsum("bmp,mpnq->bnq", x, phi), family(nothing), 2).r2 == 0


def test_what_is_not_finite() -> None:
    phi = draw(4, 4)
    phi[1, 2] = float("nan")
    for one in (phi, phi.to_sparse()):
        with pytest.raises(ValueError, match=r"^phi: expected finite numbers"):
            decompose(one, bases.Shifts(4, [0, 1]))
    with pytest.raises(ValueError, match=r"^basis: expected entries whose squares are finite"):
        gram(bases.Edges(), torch.tensor([[0], [1]]), torch.tensor([float("nan")]))


def test_bare_graphs_are_read_as_pyg_reads_them() -> None:
    edge_index = torch.tensor([[0, 1, 2], [1, 2, 0]])
    layer = GCNConv(1, 1, improved=True, bias=False).double()
    layer.lin.weight.data.fill_(1)
    basis = (bases.Identity() + bases.Adjacency()).bind(edge_index, size=3, dtype=DOUBLE)
    assert_close(decompose(layer, basis).theta.flatten(), torch.tensor([0.5, 0.5], dtype=DOUBLE))


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc], ids=str)
def test_sparse_graphs_are_read_as_pyg_reads_them(layout: torch.layout) -> None:
    """It adds to loops that are there."""
    dense = torch.tensor([[0.5, 1.0, 0.0], [0.0, 0.0, 2.0], [1.0, 0.0, 3.0]], dtype=DOUBLE)
    transposed = dense.t().to_sparse(layout=layout)
    layer = GCNConv(1, 1, bias=False).double()
    layer.lin.weight.data.fill_(1)
    basis = bases.Adjacency("sym", self_loops=True, existing="add").bind(transposed)
    found = decompose(layer, basis)
    assert_close(found.r2, 1.0)
    if layout == torch.sparse_csr:  # PyG warns of the others
        assert_close(layer(torch.eye(3, dtype=DOUBLE)[:, :1], transposed), basis.to_dense()[0, 0].unsqueeze(1))


def test_numbers_in_blocks() -> None:
    phi = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    expected = decompose(phi, bases.Shifts(4, [0, 1])).theta
    for sparse in (phi.to_sparse_bsr((2, 2)), phi.to_sparse_bsc((2, 2))):
        assert_close(decompose(sparse, bases.Shifts(4, [0, 1])).theta, expected)
