"""Two layers in one: the same function, by the definition, whatever the families, parameters, sizes and paths."""

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch_geometric.nn import BatchNorm, CGConv, GATConv, GCNConv, Linear, RGCNConv, SAGEConv

from pyg_basisconv import BasisConv, GridConv, bases, theta
from pyg_basisconv.algebra import compare, compose
from pyg_basisconv.algebra.products import join
from pyg_basisconv.bases import Basis
from pyg_basisconv.costs import MACHINES, Tally
from pyg_basisconv.mechanisms import Dot
from pyg_basisconv.theta import chain
from tests import cases, oracle
from tests.contract import DOUBLE, PATHS, THETAS, alike, bind, close, draw, take, tensors, widths
from tests.oracle import Graph

# Families of every kind, with and without a structure that products keep; and their matrices by loops.
FAMILIES: dict[str, tuple[Callable[[], Basis], Callable[[Graph], Tensor]]] = {
    "Identity": (bases.Identity, oracle.identity),
    "Adjacency": (bases.Adjacency, oracle.adjacency),
    "mean": (lambda: bases.Adjacency("mean"), lambda g: oracle.adjacency(g, "mean")),
    "Laplacian": (lambda: bases.Laplacian("sym"), lambda g: oracle.laplacian(g, "sym")),
    "Powers(3)": (lambda: bases.Powers(3), lambda g: oracle.powers(oracle.adjacency(g, "sym"), 3)),
    "Powers(2,mean)": (
        lambda: bases.Powers(2, bases.Adjacency("mean")),
        lambda g: oracle.powers(oracle.adjacency(g, "mean"), 2),
    ),
    "SAGE": (
        lambda: bases.Identity() + bases.Adjacency("mean"),
        lambda g: oracle.concat(oracle.identity(g), oracle.adjacency(g, "mean")),
    ),
    "SGC": (
        lambda: bases.Mix([0.0, 0.5, 1.0], bases.Powers(3)),
        lambda g: torch.einsum(
            "k,kmn->mn", torch.tensor([0, 0.5, 1], dtype=DOUBLE), oracle.powers(oracle.adjacency(g, "sym"), 3)
        ).unsqueeze(0),
    ),
    "Chebyshev(3)": (lambda: bases.Chebyshev(3), lambda g: oracle.chebyshev(g, 3)),
    "Diffusion(2)": (lambda: bases.Diffusion(2), lambda g: oracle.diffusion(g, 2)),
    "Diffusion(3,in)": (lambda: bases.Diffusion(3, "in"), lambda g: oracle.diffusion(g, 3, "in")),
    "Diffusion(2).T": (lambda: bases.Diffusion(2).T, lambda g: oracle.transpose(oracle.diffusion(g, 2))),
    "Product": (
        lambda: bases.Adjacency("rw") @ bases.Powers(2),
        lambda g: oracle.product(oracle.adjacency(g, "rw"), oracle.powers(oracle.adjacency(g, "sym"), 2)),
    ),
}
PAIRS = [
    ("Powers(3)", "Powers(3)"),
    ("Chebyshev(3)", "Chebyshev(3)"),
    ("Diffusion(2)", "Diffusion(2)"),
    ("SAGE", "SAGE"),
    ("SGC", "Powers(3)"),
    ("Powers(3)", "Diffusion(2).T"),
]


def stacked(first: BasisConv, second: BasisConv, A: Tensor, B: Tensor, x: Tensor) -> Tensor:
    """Both, as the formula says, one after the other."""
    for conv, matrices in ((first, A), (second, B)):
        weight = conv.theta.dense(x.shape[-1]).to(x)
        if weight.shape[1] > x.shape[-1]:  # the values have a bias
            x = torch.cat([x, torch.ones_like(x[..., :1])], -1)
        x = oracle.apply(matrices, x, weight, conv.bias)
    return x


def pair(a: Basis, b: Basis, kinds: tuple[str, str] = ("Full", "Full"), biases: tuple[bool, bool] = (True, True)):
    """Two layers whose widths join."""
    P, R = widths(kinds[0], a.K, 3, 4)
    R2, Q = widths(kinds[1], b.K, R, 2)
    P = P if R == R2 or kinds[0] not in ("Pass", "Pass(scale)") else R2
    first = BasisConv(P, R2, a, THETAS[kinds[0]](), bias=biases[0]).double()
    second = BasisConv(R2, Q, b, THETAS[kinds[1]](), bias=biases[1]).double()
    for seed, parameter in enumerate([*first.parameters(), *second.parameters()]):
        parameter.data = draw(*parameter.shape, seed=seed + 3)
    return first, second


def same(g: Graph, first: BasisConv, second: BasisConv, A: Tensor, B: Tensor, composed: BasisConv, **call: Any) -> None:
    """The outputs, and the gradients of x and of all parameters of both."""
    x = draw(2, g.M, first.theta.P).requires_grad_()
    arguments = call or {**tensors(g), "size": (g.M, g.N)}
    y, reference = composed(x, **arguments), stacked(first, second, A, B, x)
    alike(y, reference, dict(enumerate([x, *first.parameters(), *second.parameters()])))
    with torch.no_grad():
        close(composed(x, **arguments), reference)


@pytest.mark.parametrize("second", FAMILIES)
@pytest.mark.parametrize("first", FAMILIES)
@pytest.mark.sweep(40)
def test_all_pairs_of_families(first: str, second: str) -> None:
    g = cases.graph()
    (a, A), (b, B) = FAMILIES[first], FAMILIES[second]
    one, then = pair(a(), b())
    same(g, one, then, A(g), B(g), compose(one, then))


@settings(max_examples=40)
@given(
    first=st.sampled_from(sorted(FAMILIES)),
    second=st.sampled_from(sorted(FAMILIES)),
    kinds=st.tuples(st.sampled_from(sorted(THETAS)), st.sampled_from(sorted(THETAS))),
    biases=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 20),
    apart=st.booleans(),
    path=st.sampled_from(PATHS),
)
def test_any_pair(first, second, kinds, biases, seed, apart, path) -> None:
    g = cases.graph(seed=seed)
    (a, A), (b, B) = FAMILIES[first], FAMILIES[second]
    try:
        one, then = pair(a(), b(), kinds, biases)
    except ValueError:
        return  # widths that do not join, of parameters that do not have any
    torch.set_default_dtype(DOUBLE)  # in which two layers without numbers, and so without a dtype, are one with some
    try:
        composed = take(compose(one, then, same_graph=not apart), path)
    finally:
        torch.set_default_dtype(torch.float32)
    call = {"edge_index": bind(one.basis, g) @ bind(then.basis, g)} if apart else {}
    same(g, one, then, A(g), B(g), composed, **call)


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=lambda name: name)
def test_three_layers(first: str, second: str) -> None:
    g = cases.graph()
    (a, A), (b, B) = FAMILIES[first], FAMILIES[second]
    one, then = pair(a(), b())
    last = BasisConv(then.out_channels, 3, a()).double()
    nn.init.normal_(last.bias)
    x = draw(g.M, 3)
    expected = oracle.apply(A(g), stacked(one, then, A(g), B(g), x), last.theta.weight, last.bias)
    close(compose(compose(one, then), last)(x, **tensors(g)), expected)
    close(compose(one, compose(then, last))(x, **tensors(g)), expected)


def test_sizes_that_differ() -> None:
    """Each layer with a graph of its own, M and N of any size."""
    g, h = cases.graph(M=6, N=4), cases.graph(M=4, N=7, seed=1)
    first, second = pair(bases.Edges(), bases.Adjacency("mean"))
    composed = compose(first, second, same_graph=False)
    bound = bind(first.basis, g) @ bind(second.basis, h)
    same(Graph(6, 7, []), first, second, oracle.edges(g, 1), oracle.adjacency(h, "mean"), composed, edge_index=bound)


def test_pooling_after_convolution() -> None:
    g = cases.graph()
    batch = torch.tensor([0, 0, 1, 1, 1, 2])
    first, second = pair(bases.Adjacency("sym"), bases.Bags("mean"))
    x = draw(g.M, 3)
    y = compose(first, second, same_graph=False)(
        x, bind(first.basis, g) @ second.basis.bind(batch=batch, size=(6, 3), dtype=DOUBLE)
    )
    assert y.shape == (3, 2)
    close(y, second(first(x, **tensors(g)), batch=batch))


def test_gradients_of_edge_weights() -> None:
    g = cases.graph()
    first, second = pair(bases.Powers(2), bases.Adjacency("mean"))
    weight = g.weight.clone().requires_grad_()
    x = draw(g.M, 3)
    call = {**tensors(g), "edge_weight": weight}
    down = draw(g.M, 2, seed=1)
    mine = torch.autograd.grad(compose(first, second)(x, **call), weight, down)
    close(mine[0], torch.autograd.grad(second(first(x, **call), **call), weight, down)[0])


WINDOWS: dict[str, tuple[Basis, Basis, str]] = {
    "3,3": (bases.Window(None, (3, 3), padding=1), bases.Window(None, (3, 3)), "Window"),
    "padded": (bases.Window(None, (3, 3), padding=1), bases.Window(None, (3, 3), padding=1), "Product"),
    "strided": (bases.Window(None, (3, 2), stride=(2, 1)), bases.Window(None, (2, 2), stride=2), "Window"),
    "stride,pointwise": (bases.Window(None, (3, 3), stride=2, padding=1), bases.Window(None, (1, 1)), "Window"),
    "pointwise,stride": (bases.Window(None, (1, 1)), bases.Window(None, (3, 3), stride=2, padding=1), "Product"),
    "dilated": (bases.Window(None, (3, 3), dilation=2), bases.Window(None, (2, 2), dilation=2), "Window"),
    "gaps": (bases.Window(None, (2, 2), dilation=3), bases.Window(None, (2, 2)), "Product"),
    "circular": (
        bases.Window((9, 8), 3, padding=1, padding_mode="circular"),
        bases.Window(None, (5, 3), padding=(2, 1), padding_mode="circular"),
        "Window",
    ),
    "circular,zeros": (
        bases.Window((9, 8), 3, padding=1, padding_mode="circular"),
        bases.Window(None, (3, 3), padding=1),
        "Product",
    ),
    "reflect": (bases.Window(None, (3, 3), padding=1, padding_mode="reflect"), bases.Window(None, (3, 3)), "Window"),
    "same": (bases.Window(None, (4, 4), padding="same"), bases.Window(None, (3, 3)), "Product"),
    "transposed": (bases.Window(None, (2, 2), stride=2, transposed=True), bases.Window(None, (3, 3)), "Product"),
    "pooled": (bases.Window(None, (3, 3)), bases.Window(None, (2, 2), stride=2, norm="mean"), "Product"),
    "causal": (bases.Shifts(None, [(0, 0), (1, 0)]), bases.Shifts(None, [(0, 0), (1, 1), (2, 0)]), "Shifts"),
    "both-ways": (bases.Shifts(None, [(0, 1), (0, -1)]), bases.Shifts(None, [(0, 1), (0, -1)]), "Product"),
    "round": (
        bases.Shifts(None, [(0, 1), (0, -1)], "circular"),
        bases.Shifts(None, [(0, 1), (0, -1), (2, 2)], "circular"),
        "Shifts",
    ),
    "circular,same": (
        bases.Window((9, 8), 3, padding=1, padding_mode="circular"),
        bases.Window(None, (2, 2), padding="same", padding_mode="circular"),
        "Product",
    ),
    "identity": (bases.Identity(), bases.Window(None, (3, 3), padding=1), "Window"),
    "group": (
        bases.Window(None, (3, 3), padding=1),
        bases.Group("p4", bases.Window(None, (3, 3), padding=1), lift=True),
        "Product",
    ),
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.sweep(6, "gaps", "both-ways")
def test_images(name: str) -> None:
    a, b, kind = WINDOWS[name]
    first, second = GridConv(3, 4, copy.deepcopy(a)).double(), GridConv(4, 2, copy.deepcopy(b)).double()
    for seed, parameter in enumerate([*first.parameters(), *second.parameters()]):
        parameter.data = draw(*parameter.shape, seed=seed)
    composed = compose(first, second)
    assert type(composed) is GridConv
    assert type(composed.basis.parts[0]).__name__ == kind
    image = draw(2, 3, 9, 8).requires_grad_()
    expected = second(first(image))
    for _ in range(2):  # the second call knows what the first has found
        close(composed(image), expected)
    down = draw(*expected.shape, seed=1)
    leaves = [image, *first.parameters(), *second.parameters()]
    for x, y in zip(*(torch.autograd.grad(f, leaves, down) for f in (composed(image), expected)), strict=True):
        close(x, y)
    assert composed.basis.K <= a.K * b.K


def test_structures_stay() -> None:
    """Where the products are polynomials, windows, or walks again, there are as few of them as there can be."""
    W = bases.Walks
    for first, second, expected in (
        (bases.Powers(3), bases.Powers(4), bases.Powers(6)),
        (bases.Chebyshev(3), bases.Chebyshev(2), bases.Chebyshev(4)),
        (bases.Chebyshev(3, None), bases.Chebyshev(2), bases.Chebyshev(3, None) @ bases.Chebyshev(2)),
        (bases.Diffusion(3, "out"), bases.Diffusion(2, "out"), bases.Powers(4, bases.Adjacency("rw"))),
        (bases.Identity(), bases.Relations(3), bases.Relations(3)),
        (bases.Adjacency(), bases.Adjacency(), bases.Mix([0, 0, 1], bases.Powers(3, bases.Adjacency()))),
        (bases.Mix([[0, 2], [1, 0]], bases.Powers(2)), bases.Powers(1), bases.Mix([[0, 2], [1, 0]], bases.Powers(2))),
        (bases.Chebyshev(1), bases.Mix([3], bases.Chebyshev(1)), bases.Mix([3], bases.Chebyshev(1))),
        (bases.Window(None, (5, 5), padding=2), bases.Window(None, (3, 3)), bases.Window(None, (7, 7), padding=2)),
        (bases.Window(None, 3, dilation=2), bases.Window(None, 2, dilation=2), bases.Window(None, 4, dilation=2)),
        (W(["a", "b"], ["a", "b"]), W(["^a"], ["a", "b"]), W(["a.^a", "b.^a"], ["a", "b"])),
        (W(["a|b"], ["a", "b"]), W(["^a"], ["a", "b"]), W(["(a|b).^a"], ["a", "b"])),
        (W(["a"], ["a"], norm="row"), W(["a"], ["a"]), W(["a"], ["a"], norm="row") @ W(["a"], ["a"])),
    ):
        assert repr(join(first, second).basis) == repr(expected)


@pytest.mark.parametrize(
    "options", [{}, {"norm": "mean", "per": "step"}, {"norm": "row"}], ids=["counts", "step", "row"]
)
def test_walks(options: dict[str, Any]) -> None:
    g = cases.graph()
    types = torch.arange(g.E) % 2
    first = BasisConv(3, 4, bases.Walks(["a", "a|b", "^b.a"], ["a", "b"], **options)).double()
    second = BasisConv(4, 2, bases.Walks(["b{0,2}", "^a"], ["a", "b"], **options)).double()
    nn.init.normal_(first.bias)
    composed = compose(first, second)
    call = {**tensors(g), "edge_type": types}
    x = draw(g.M, 3)
    close(composed(x, **call), second(first(x, **call), **call))
    assert isinstance(composed.basis.parts[0], bases.Product if options.get("norm") == "row" else bases.Walks)


# --- what else there is of layers


def test_layers_of_others() -> None:
    g = cases.graph()
    edges = tensors(g)
    x = draw(g.M, 3)
    conv, linear, norm = GCNConv(3, 4).double(), nn.Linear(4, 5).double(), BatchNorm(4).double()
    norm.module.running_mean, norm.module.running_var = draw(4, seed=1), draw(4, seed=2).abs()
    nn.init.normal_(norm.module.weight)
    norm.eval()
    call = (x, edges["edge_index"], edges["edge_weight"])
    close(compose(conv, linear)(*call), linear(conv(*call)))
    two = GCNConv(4, 2).double()
    A = (
        torch.sparse_coo_tensor(edges["edge_index"].flip(0), edges["edge_weight"], (g.N, g.M))
        .coalesce()
        .to_sparse_csr()
    )
    for graph in (call[1:], call[1:2], (A,)):  # graphs that PyG reads each in its own way
        close(compose(conv, two)(x, *graph), two(conv(x, *graph), *graph))
    close(compose(conv, norm)(*call), norm(conv(*call)))
    first, then = nn.Linear(3, 3).double(), compose(linear, nn.Linear(5, 2).double())
    close(compose(first, conv)(*call), conv(first(x), *call[1:]))
    assert isinstance(then.basis, bases.Composition)
    image = draw(2, 3, 6, 6)
    conv2d, norm2d = nn.Conv2d(3, 4, 3, groups=1).double(), nn.BatchNorm2d(4, affine=False).double().eval()
    norm2d.running_mean, norm2d.running_var = draw(4, seed=1), draw(4, seed=2).abs()
    close(compose(conv2d, norm2d)(image), norm2d(conv2d(image)))
    padded = nn.Conv2d(4, 2, 3, padding=1).double()  # the bias of the norm ends where the image does
    close(compose(norm2d, padded)(conv2d(image)), padded(norm2d(conv2d(image))))


def test_parameters_are_those_of_both() -> None:
    first, second = pair(bases.Powers(2), bases.Powers(2))
    composed = compose(first, second)
    assert {id(p) for p in composed.parameters()} == {id(p) for p in (*first.parameters(), *second.parameters())}
    g = cases.graph()
    x = draw(g.M, 3)
    with torch.no_grad():
        before = composed(x, **tensors(g))
        first.theta.weight.add_(1)
        first.bias.mul_(2)
        close(composed(x, **tensors(g)), second(first(x, **tensors(g)), **tensors(g)))
        assert not torch.equal(composed(x, **tensors(g)), before)
    again = pickle.loads(pickle.dumps(composed))
    close(again(x, **tensors(g)), composed(x, **tensors(g)))
    apart = copy.deepcopy(composed)
    apart.load_state_dict(composed.state_dict())
    close(apart(x, **tensors(g)), composed(x, **tensors(g)))
    composed.reset_parameters()
    assert not torch.equal(apart.theta.weight, composed.theta.weight)
    assert torch.equal(first.bias, torch.zeros_like(first.bias))


def test_frozen_parameters_may_be_written_to() -> None:
    """As an average over the steps of a training does, by `.data`."""
    first, second = pair(bases.Powers(2), bases.Powers(2))
    g = cases.graph()
    x = draw(g.M, 3)
    composed = compose(first, second).requires_grad_(False)
    composed(x, **tensors(g))
    for parameter in composed.parameters():
        parameter.data.mul_(0.9)
    close(composed(x, **tensors(g)), second(first(x, **tensors(g)), **tensors(g)))


def test_autocast_leaves_nothing() -> None:
    g = cases.graph()
    first, second = (layer.float() for layer in pair(bases.Powers(2), bases.Powers(2)))
    composed = compose(first, second).requires_grad_(False)
    x, call = draw(g.M, 3, dtype=torch.float32), tensors(g, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        composed(x, **call)
    close(composed(x, **call), second(first(x, **call), **call), 1e-5)


def test_without_memory() -> None:
    """On torch's device for shapes alone, which knows no autocast."""
    first, second = pair(bases.Powers(2), bases.Powers(2))
    assert compose(first.to("meta"), second.to("meta")).weight.shape == (3, 3, 2)


def test_norms_of_images() -> None:
    """Two batch norms say by themselves that they are of images."""
    norms = [nn.BatchNorm2d(4).double().eval() for _ in range(2)]
    for seed, norm in enumerate(norms):
        norm.running_mean, norm.running_var = draw(4, seed=seed), draw(4, seed=seed + 2).abs()
    image = draw(2, 4, 9, 4)
    close(compose(*norms)(image), norms[1](norms[0](image)))


def test_mixtures_are_not_narrowed() -> None:
    """Parameters that were narrow for a while have lost digits, and what is constant has not."""
    g = cases.graph()
    first, second = pair(*(bases.Mix([[0.3, 0.7], [0.1, 0.9], [0.7, 0.2]], bases.Powers(2)) for _ in range(2)))
    composed = compose(first, second)
    assert composed.theta.mixing is not None
    composed.to(torch.bfloat16).double()
    x, call = draw(g.M, 3), tensors(g)
    close(composed(x, **call), second(first(x, **call), **call))


def test_long_chains_are_not_slower_with_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products that are needed once are made once: as many as layers, and as many for the constants."""
    counts = []
    monkeypatch.setattr(chain, "_products", lambda *args, make=chain._products: counts.append(1) or make(*args))
    layers = [BasisConv(4, 4, bases.Adjacency("mean")).double() for _ in range(9)]
    whole = layers[0]
    for layer in layers[1:]:
        whole = compose(whole, layer)
    g = cases.graph()
    counts.clear()
    with torch.no_grad():
        whole(draw(g.M, 4), **tensors(g))
    assert len(counts) <= 4 * len(layers)


def test_flow_is_that_of_the_layer_with_edges() -> None:
    g = cases.graph()
    turned, linear = BasisConv(3, 3, bases.Edges(), flow="target_to_source").double(), nn.Linear(3, 3).double()
    x = draw(g.M, 3)
    close(compose(turned, linear)(x, **tensors(g)), linear(turned(x, **tensors(g))))
    close(compose(linear, turned)(x, **tensors(g)), turned(linear(x), **tensors(g)))


def test_an_identity_after_another_grid() -> None:
    up = GridConv(2, 3, bases.Window(None, 3, stride=2, transposed=True)).double()
    for family in (
        bases.Mix([[-2.0], [1.0]], bases.Identity()),
        bases.Identity().T,
        bases.Identity() @ bases.Identity(),
    ):
        second = GridConv(3, 3, family).double()
        image = draw(2, 2, 8)
        close(compose(up, second)(image), second(up(image)))


def test_mixtures_come_back_from_meta() -> None:
    g = cases.graph()
    first, second = pair(*(bases.Mix([[0.3, 0.7], [0.1, 0.9], [0.7, 0.2]], bases.Powers(2)) for _ in range(2)))
    x, call, composed = draw(g.M, 3), tensors(g), compose(first, second)
    expected, state = composed(x, **call), {name: t.clone() for name, t in composed.state_dict().items()}
    composed.to("meta").to_empty(device="cpu").load_state_dict(state)
    close(composed(x, **call), expected)


@pytest.mark.slow
def test_a_grid_is_known_before_an_identity() -> None:
    down, image = bases.Window(None, (3, 2), stride=2), draw(2, 2, 7, 8, dtype=torch.float32)
    one = bases.Identity()
    for family in (one @ down, one @ one @ down, one @ down @ (one @ one)):
        layer, plain = GridConv(2, 3, family), GridConv(2, 3, down)
        plain.load_state_dict(layer.state_dict())
        close(layer(image), plain(image), 1e-5)
    close(torch.compile(layer, backend="aot_eager")(image), plain(image), 1e-5)


def test_only_the_first_factor_reads_targets() -> None:
    """Of (x_src, x_dst), whose widths may then be any."""
    g = cases.graph()
    x, other, call = draw(g.M, 3), draw(g.N, 7), tensors(g)
    layers = [BasisConv(3, 2, family).double() for family in (bases.Powers(2), bases.Powers(2) @ bases.Identity())]
    layers[1].load_state_dict(layers[0].state_dict())
    close(layers[1]((x, other), **call), layers[0]((x, other), **call))
    chain = compose(compose(*pair(bases.Powers(2), bases.Identity().T)), nn.Linear(2, 2).double())
    close(chain((x, None), **call), chain(x, **call))


def test_a_grid_is_known_behind_an_identity() -> None:
    down, window = GridConv(2, 3, bases.Window(None, (3, 2), stride=2)), bases.Window(None, (2, 2), padding=1)
    for family in (bases.Identity().T, bases.Identity() @ bases.Identity()):
        second, third = GridConv(3, 3, family), GridConv(3, 2, window)
        image = draw(2, 2, 7, 8, dtype=torch.float32)
        expected, both = second(down(image)), compose(down, second)
        close(both(image), expected, 1e-5)
        close(compose(both, third)(image), third(expected), 1e-5)
        close(compose(down, compose(second, third))(image), third(expected), 1e-5)
    close(torch.compile(both, backend="aot_eager")(image), expected, 1e-5)


def test_constants_need_their_basis() -> None:
    first, second = pair(bases.Powers(2), bases.Adjacency())
    lost = BasisConv(3, 2, first.basis @ second.basis, compose(first, second).theta).double()
    with pytest.raises(ValueError, match=r"^theta: expected one without constants"):
        lost(draw(6, 3), **tensors(cases.graph()))


def test_factors_of_two_dtypes() -> None:
    g = cases.graph()
    with pytest.raises(ValueError, match=r"^basis: expected a second factor of torch.float64"):
        bind(bases.Powers(2), g) @ bases.Powers(2).bind(**tensors(g, torch.float32), size=g.M, dtype=torch.float32)


@pytest.mark.parametrize("kinds", [("Split", "Pass"), ("Pass", "Split"), ("Split", "Split")], ids="-".join)
def test_parameters_without_numbers(kinds: tuple[str, str]) -> None:
    """Which are not all plain sums."""
    g = cases.graph()
    first, second = (BasisConv(4, 4, bases.Powers(2), getattr(theta, kind)(), bias=False) for kind in kinds)
    x = draw(g.M, 4, dtype=torch.float32)
    call = tensors(g, torch.float32)
    close(compose(first, second)(x, **call), second(first(x, **call), **call), 1e-5)


@pytest.mark.parametrize(
    "combine",
    [("concat", "sum"), ("sum", "concat"), ("concat", "concat"), ("concat", "split"), ("split", "sum")],
    ids="-".join,
)
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE], ids=str)
def test_parameters_without_numbers_take_any_dtype(combine: tuple[str, str], dtype: torch.dtype) -> None:
    g, wide, P = cases.graph(), [], 4
    for way in combine:
        Q = {"sum": P, "concat": 2 * P, "split": P // 2}[way]
        wide.append(BasisConv(P, Q, bases.Powers(2), theta.Pass(combine=way), bias=False))
        P = Q
    x, call = draw(g.M, 4, dtype=dtype), tensors(g, dtype)
    expected, tolerance = wide[1](wide[0](x, **call), **call), 1e-12 if dtype == DOUBLE else 1e-5
    for path in PATHS:
        y = take(compose(*wide), path)(x, **call)
        assert y.dtype == dtype
        close(y, expected, tolerance)


@pytest.mark.parametrize("widths", [(4, 4), (4, -1), (-1, 4), (-1, -1)], ids=str)
def test_parameters_without_numbers_keep_the_width_that_is_known(widths: tuple[int, int]) -> None:
    first, second = (BasisConv(P, P, bases.Powers(2), theta.Pass(), bias=False) for P in widths)
    found = compose(first, second).theta
    assert (max(widths), max(widths)) == (found.P, found.Q)


@pytest.mark.parametrize("biases", [(True, True), (False, False)], ids=str)
def test_sources_alone(biases: tuple[bool, bool]) -> None:
    """With (x, None) the first layer has no features of targets; the second one reads what the first one gives."""
    g = cases.graph()
    x, call = draw(g.M, 3), tensors(g)
    for family in (bases.Identity() + bases.Adjacency("mean"), bases.Degree(), bases.Identity(), bases.Powers(2)):
        first, second = pair(bases.Adjacency(), family, biases=biases)
        close(compose(first, second)((x, None), **call), second(first((x, None), **call), **call))
    for family in (bases.Identity() + bases.Adjacency(), bases.Degree(), bases.Identity()):
        first, second = pair(family, bases.Adjacency(), biases=biases)
        for composed in (compose(first, second), compose(compose(first, second), nn.Linear(2, 2).double())):
            with pytest.raises(ValueError, match=r"^x: expected one tensor, for two layers in one"):
                composed((x, None), **call)


@pytest.mark.parametrize("bias", [True, False])
def test_from_some_nodes_to_others(bias: bool) -> None:
    g = cases.graph(M=6, N=9)
    first, second = pair(bases.Adjacency("mean"), bases.Identity(), biases=(bias, True))
    x, call = (draw(6, 3), None), {**tensors(g), "size": (6, 9)}
    close(compose(first, second)(x, **call), second(first(x, **call)))


@pytest.mark.parametrize("bias", [True, False])
def test_factors_in_another_order_are_refused(bias: bool) -> None:
    g = cases.graph()
    layers = *pair(bases.Powers(2), bases.Diffusion(1), biases=(bias, bias)), BasisConv(2, 2, bases.Adjacency("mean"))
    one, two, three = layers[0], layers[1], layers[2].double()
    a, b, c = (bind(layer.basis, g) for layer in (one, two, three))
    for same_graph in (True, False):
        composed = compose(one, two, same_graph)
        close(composed(draw(g.M, 3), a @ b), two(one(draw(g.M, 3), a), b))
        for turned in (b @ a, bind(two.basis @ one.basis, g)):
            with pytest.raises(ValueError, match=r"^edge_index: "):
                composed(draw(g.M, 3), turned)
    all_three = compose(compose(one, two, same_graph=False), three, same_graph=False)
    close(all_three(draw(g.M, 3), (a @ b) @ c), three(two(one(draw(g.M, 3), a), b), c))
    with pytest.raises(ValueError, match=r"^edge_index: "):
        all_three(draw(g.M, 3), (b @ a) @ c)


def test_modes_stay() -> None:
    first, second = pair(bases.Powers(2), bases.Powers(2))
    second.eval()
    assert not compose(first, second).training
    assert first.training
    assert first.theta.training


def test_each_its_own_graph_in_three_layers() -> None:
    """In either association, and biases through all."""
    a, b, c = cases.graph(M=6, N=4), cases.graph(M=4, N=7, seed=1), cases.graph(M=7, N=5, seed=2)
    layers = [BasisConv(P, Q, bases.Edges()).double() for P, Q in ((3, 4), (4, 2), (2, 3))]
    for layer in layers:
        nn.init.normal_(layer.bias)
    x = expected = draw(6, 3)
    for layer, g in zip(layers, (a, b, c), strict=True):
        expected = oracle.apply(oracle.edges(g, 1), expected, layer.theta.weight, layer.bias)
    p, q, r = (bind(bases.Edges(), g) for g in (a, b, c))
    apart = partial(compose, same_graph=False)
    close(apart(apart(*layers[:2]), layers[2])(x, (p @ q) @ r), expected)
    close(apart(layers[0], apart(*layers[1:]))(x, p @ (q @ r)), expected)


def test_a_joined_family_is_no_product() -> None:
    """Where the matrices stand in another order, what was bound as a product is refused."""
    first, second = bases.Window((9,), 3, padding=1), bases.Window((9,), 2, dilation=3)
    composed = compose(*(layer.double() for layer in (BasisConv(3, 4, first), BasisConv(4, 2, second))))
    assert composed.basis.K == 6
    x = draw(9, 3)
    with pytest.raises(ValueError, match=r"^edge_index: "):
        composed(
            x,
            bases.Window((9,), 3, padding=1).bind(dtype=DOUBLE) @ bases.Window((9,), 2, dilation=3).bind(dtype=DOUBLE),
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_float_types(dtype: torch.dtype) -> None:
    g = cases.graph()
    first, second = (layer.to(dtype) for layer in pair(bases.Powers(2), bases.Powers(3)))
    x = draw(g.M, 3, dtype=dtype)
    call = tensors(g, dtype)
    y, expected = compose(first, second)(x, **call), second(first(x, **call), **call)
    assert y.dtype == dtype
    scale = expected.abs().max()
    close(y / scale, expected / scale, 1e-5 if dtype == torch.float32 else 4e-2)


@pytest.mark.slow
def test_compiled_and_explained() -> None:
    g = cases.graph()
    first, second = pair(bases.Powers(2), bases.Adjacency("mean"))
    composed = compose(first, second)
    x = draw(g.M, 3).requires_grad_()
    compiled = torch.compile(composed, backend="aot_eager", fullgraph=True)
    y, expected = compiled(x, **tensors(g)), composed(x, **tensors(g))
    close(y, expected)
    leaves = [x, *composed.parameters()]
    down = draw(*y.shape, seed=1)
    for a, b in zip(*(torch.autograd.grad(z, leaves, down) for z in (y, expected)), strict=True):
        close(a, b)
    composed.explain = True
    composed._edge_mask = torch.ones(g.E, dtype=DOUBLE)
    composed._apply_sigmoid = False
    close(composed(x, **tensors(g)), expected)


def test_comparison_says_when() -> None:
    x, edge_index = torch.randn(2000, 16), torch.randint(2000, (2, 16000))
    wide, narrow = BasisConv(16, 512, bases.Adjacency("sym")), BasisConv(512, 16, bases.Adjacency("sym"))
    found = compare(wide, narrow, x, edge_index)
    assert found.pays
    assert found.gain > 2
    assert "it pays" in str(found)
    small = compare(BasisConv(16, 2, bases.Powers(3)), BasisConv(2, 512, bases.Diffusion(3)), x, edge_index)
    assert not small.pays
    assert "does not pay" in str(small)


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
def test_what_a_composed_layer_computes_of_its_parameters(mixed: bool, learns: bool) -> None:
    """Products of two matrices, mixtures of these where several pairs have one matrix, and the constant of a bias."""
    one, then = bases.Powers(2), bases.Powers(3) if mixed else bases.Identity()
    first, second = BasisConv(5, 300, one, bias=learns), BasisConv(300, 70, then)
    for layer in (first, second):
        layer.requires_grad_(learns)
    x, edge_index = torch.randn(40, 5), torch.randint(40, (2, 90))
    times = 3 if learns else 1  # the derivatives by both factors
    tally = Tally(MACHINES["cpu"], 4)
    tally.product(2 * 5, 300, 3 * 70 if mixed else 70, times)
    if mixed:
        tally.product(4, 6, 5 * 70, times)
    tally.seconds += (times - 1) * tally.machine.small
    if learns:
        tally.product(40, 1, 70, times)
        tally.kernel(0, 3 * 40 * 70, 1.0)
    assert compare(first, second, x, edge_index).constants == pytest.approx(tally.seconds, rel=1e-9)


# --- what is refused

conv = partial(BasisConv, 3, 4, bases.Adjacency())


class Wrapped(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


class Rectified(BasisConv):
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return super().forward(*args, **kwargs).relu()


def hooked(layer: nn.Module) -> nn.Module:
    layer.register_forward_hook(lambda module, inputs, output: output.relu())
    return layer


BAD: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], str]] = {
    "pooling": (conv, lambda: BasisConv(4, 2, bases.Bags()), "second: expected as many targets as the first layer"),
    "widths": (conv, conv, "second: expected in_channels = 4"),
    "activation": (conv, nn.ReLU, "second: expected a layer that is linear in x, got ReLU"),
    "not-linear": (conv, lambda: CGConv(4), "second: expected a layer that is linear in x, got CGConv"),
    "attention": (
        lambda: BasisConv(3, 4, bases.Attention(1, Dot(2)), theta.LowRank(2)),
        lambda: BasisConv(4, 2, bases.Adjacency()),
        "first: expected a basis that does not depend on x",
    ),
    "GAT": (lambda: GATConv(3, 4), lambda: nn.Linear(4, 2), "first: expected a basis that does not depend on x"),
    "training": (conv, lambda: nn.BatchNorm1d(4), "second: expected a batch norm in eval mode"),
    "no-statistics": (conv, lambda: nn.BatchNorm1d(4, track_running_stats=False).eval(), "track_running_stats=False"),
    "lazy": (
        lambda: BasisConv(-1, 4, bases.Adjacency()),
        lambda: nn.Linear(4, 2),
        "first: expected a layer whose width",
    ),
    "lazy linear": (conv, lambda: Linear(-1, 2), "second: expected a layer whose width is known"),
    "function": (lambda: torch.relu, conv, "first: expected a layer, got"),
    "images": (lambda: nn.Conv2d(3, 4, 3), lambda: nn.Linear(4, 2), "second: expected a layer on images"),
    "images-nodes": (lambda: nn.Conv2d(3, 4, 3), lambda: BasisConv(4, 2, bases.Adjacency()), "two layers on images"),
    "axes": (lambda: nn.Conv2d(3, 4, 3), lambda: nn.Conv1d(4, 2, 3), "second: expected a grid of 2 axes"),
    "module": (conv, lambda: Wrapped(nn.BatchNorm1d(4)).eval(), "a layer that is linear in x, got Wrapped"),
    "subclass": (conv, lambda: Rectified(4, 2, bases.Adjacency()), "a layer that is linear in x, got Rectified"),
    "root": (
        lambda: RGCNConv(3, 4, 2, num_bases=2),
        lambda: nn.Linear(4, 2),
        "a layer that is linear in x, got RGCNConv",
    ),
    "hooks": (conv, lambda: hooked(BasisConv(4, 2, bases.Adjacency())), "second: expected a layer without hooks"),
    "dropout": (
        lambda: BasisConv(3, 3, bases.Shifts(None, [0, 1]), theta.Depthwise(dropout=0.5)),
        lambda: nn.Linear(3, 2),
        "first: expected a parameter that drops nothing",
    ),
    "flow": (
        conv,
        lambda: BasisConv(4, 2, bases.Adjacency(), flow="target_to_source"),
        "second: expected flow = 'source_to_target'",
    ),
    "dtype": (
        conv,
        lambda: BasisConv(4, 2, bases.Adjacency()).double(),
        "second: expected parameters of torch.float32",
    ),
    "layouts": (lambda: GCNConv(3, 4), lambda: SAGEConv(4, 2), "second: expected a layer that reads sparse graphs as"),
}


@pytest.mark.parametrize("name", BAD)
def test_refused(name: str) -> None:
    first, second, message = BAD[name]
    with pytest.raises(ValueError, match=r"^(first|second): ") as caught:
        compose(first(), second())
    assert message in str(caught.value)


def test_pairs_are_refused() -> None:
    first, second = pair(bases.Identity() + bases.Adjacency(), bases.Identity() + bases.Adjacency())
    g = cases.graph()
    with pytest.raises(ValueError, match=r"^x: expected one tensor, for two layers in one, got a pair"):
        compose(first, second)((draw(6, 3), draw(6, 3)), **tensors(g))


def test_bound_elsewhere_is_refused() -> None:
    first, second = pair(bases.Powers(2), bases.Powers(2))
    g = cases.graph()
    composed = compose(first, second)
    assert composed(draw(6, 3), bind(composed.basis, g)).shape == (6, 2)
    with pytest.raises(ValueError, match=r"^edge_index: expected what Composition"):
        composed(draw(6, 3), bind(bases.Powers(3), g))


def test_same_graph_is_a_flag() -> None:
    with pytest.raises(ValueError, match=r"^same_graph: "):
        compose(*pair(bases.Powers(2), bases.Powers(2)), same_graph=1)


# --- and it can fail


def test_the_checks_bite() -> None:
    """Other orders of the factors, no constants, and mixtures of something else are not the same."""
    g = cases.graph()
    (a, A), (b, B) = FAMILIES["Powers(3)"], FAMILIES["Diffusion(2)"]
    first, second = pair(a(), b())
    turned, plain, shifted = (compose(first, second) for _ in range(3))
    turned.basis = bases.Composition(first.basis, second.basis, turned.basis.constants, second.basis @ first.basis)
    plain.basis = first.basis @ second.basis
    shifted.theta.shift = nn.Parameter(2 * first.bias)
    for wrong in (turned, plain, shifted):
        with pytest.raises((AssertionError, RuntimeError, ValueError)):
            same(g, first, second, A(g), B(g), wrong)
    both = pair(a(), a())
    mixed = compose(*both)
    mixed.theta.mixing = mixed.theta.mixing.flip(0)
    with pytest.raises(AssertionError):
        same(g, *both, A(g), A(g), mixed)
