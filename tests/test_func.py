"""Transforms of torch.func, forward-mode derivatives, and derivatives of derivatives, for every kind of basis."""

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, grad, gradcheck, gradgradcheck
from torch.autograd.functional import jvp as double_vjp
from torch.func import functional_call, grad as func_grad, hessian, jacrev, jvp, vmap
from torch_geometric.nn import GATConv, ResGatedGraphConv, TransformerConv

from pyg_basisconv import BasisConv, GridConv, bases, convert
from pyg_basisconv.bases import bound_attention
from tests.cases import CASES, typed
from tests.contract import call, close, draw, make, tensors
from tests.mechanisms import cases as attention_cases

FIRST: dict[str, str] = {}  # one graph for each family
for _name, _case in CASES.items():
    _graph = _case.graph()
    if _graph.M > 1 and _graph.N > 1 and not _name.startswith("Walks(binary"):
        FIRST.setdefault(_name.split("-")[0], _name)
ATTENTIONS: dict[str, str] = {}  # one call for each mechanism, mask and normalisation
for _name, _attention in attention_cases.CASES.items():
    if min(_attention.M, _attention.M if _attention.N is None else _attention.N) > 1:
        ATTENTIONS.setdefault(_name.split(",")[0].split("-")[0], _name)


def check_transforms(layer: torch.nn.Module, run, x: Tensor) -> None:
    """An ensemble, forward-mode and per-sample gradients are what loops and backward passes give.

    Args:
        layer: of which parameters are.
        run: of parameters and features.
        x: the features.
    """
    parameters = {name: p.detach() for name, p in layer.named_parameters()}
    ensemble = {name: torch.stack([p, 0.5 * p - 0.1]) for name, p in parameters.items()}
    loop = torch.stack([run({name: p[i] for name, p in ensemble.items()}, x) for i in range(2)])
    for grad_mode in (True, False):
        with torch.set_grad_enabled(grad_mode):
            close(vmap(run, in_dims=(0, None))(ensemble, x), loop)

    names, along = list(parameters), draw(*x.shape, seed=11)
    values = tuple(parameters.values())
    tangents = tuple(draw(*v.shape, seed=12) for v in values)

    def f(x: Tensor, *values: Tensor) -> Tensor:
        return run(dict(zip(names, values, strict=True)), x)

    y, expected = double_vjp(f, (x, *values), (along, *tangents))
    found = jvp(f, (x, *values), (along, *tangents))
    close(found[0], y)
    close(found[1], expected)
    with forward_ad.dual_level():
        dual = f(forward_ad.make_dual(x, along), *map(forward_ad.make_dual, values, tangents))
        close(forward_ad.unpack_dual(dual).tangent, expected)

    samples = torch.stack([x, 2 * x - 0.3])
    each = vmap(lambda x: func_grad(lambda p: run(p, x).square().sum())(parameters))(samples)
    for i, sample in enumerate(samples):
        leaves = {name: p.clone().requires_grad_() for name, p in parameters.items()}
        theirs = grad(run(leaves, sample).square().sum(), list(leaves.values()), allow_unused=True)
        for name, g in zip(names, theirs, strict=True):
            close(each[name][i], torch.zeros_like(parameters[name]) if g is None else g)


@pytest.mark.parametrize("name", list(FIRST.values()), ids=list(FIRST))
@pytest.mark.sweep(14, "Mix(Gaussians)", "Relations(1,mean)")
def test_transforms(name: str) -> None:
    c = CASES[name]
    g = c.graph()
    conv = make(c.basis())
    features = draw(g.M, 3)
    arguments = tensors(g)
    pair = g.M != g.N

    def run(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(conv, parameters, ((x, None) if pair else x,), {**arguments, "size": (g.M, g.N)})

    check_transforms(conv, run, features)
    close(call(conv, features, g), run(dict(conv.named_parameters()), features))  # and nothing was left behind


@pytest.mark.parametrize("name", list(ATTENTIONS.values()), ids=list(ATTENTIONS))
@pytest.mark.sweep(12)
def test_attention_transforms(name: str) -> None:
    c = attention_cases.CASES[name]
    made = attention_cases.inputs(c)
    conv, _ = attention_cases.layer(c)
    names = list(dict(conv.named_parameters()))
    values = tuple(p.detach() for p in conv.parameters())
    tangents = tuple(draw(*v.shape, seed=12) for v in values)

    def f(*values: Tensor) -> Tensor:
        args, keywords = made.arguments()
        if c.mask == "bags":
            keywords["size"] = (c.M, c.targets)
        return functional_call(conv, dict(zip(names, values, strict=True)), args, keywords)

    found = jvp(f, values, tangents)
    conv.order = "theta_first"  # torch's own attention is differentiable once
    y, expected = double_vjp(f, values, tangents)
    conv.order = "auto"
    for a, b in zip(found, (y, expected), strict=True):
        close(a, b)
    stacked = [torch.stack([v, 0.5 * v]) for v in values]
    close(vmap(f)(*stacked), torch.stack([f(*values), f(*(0.5 * v for v in values))]))


@pytest.mark.parametrize(
    ("kind", "weights"),
    [(TransformerConv, False), (TransformerConv, True), (ResGatedGraphConv, False), (GATConv, True)],
)
def test_values_and_weights_of_edges(kind: type, weights: bool) -> None:
    """Of converted attention whose edges have features, and values that are made of them."""
    edge_index, z, layer = torch.randint(6, (2, 20)), draw(20, 3), convert(kind(5, 2, edge_dim=3)).double()
    asked = {"return_attention_weights": True} if weights else {}

    def run(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        y = functional_call(layer, parameters, (x, edge_index, z), asked)
        return torch.cat([y[0].flatten(), y[1][1].flatten()]) if weights else y

    check_transforms(layer, run, draw(6, 5))


TWICE = ["Adjacency(sym)", "GCN", "Chebyshev(4)", "Wavelets(3)", "Product", "Mix", "Edges(3)", "Relations(3,row)"]
TWICE += ["Walks(row)", "Sum"]


@pytest.mark.parametrize("family", TWICE)
@pytest.mark.sweep(3)
def test_second_derivatives(family: str) -> None:
    c = CASES[FIRST[family]]
    g = c.graph()
    conv, x = make(c.basis(), Q=1), draw(g.M, 3).requires_grad_()
    weight = None if g.weight is None else g.weight.clone().requires_grad_()

    def f(x: Tensor, *weight: Tensor) -> Tensor:
        return call(conv, x, g, **({"edge_weight": weight[0]} if weight else {}))

    leaves = (x,) if weight is None else (x, weight)
    assert gradcheck(f, leaves, fast_mode=True)
    assert gradgradcheck(f, leaves, fast_mode=True)


@pytest.mark.parametrize("order", ["compacted", "mixed", "a_first", "theta_first"])
def test_second_derivatives_of_typed_edges(order: str) -> None:
    g = typed(3)
    conv = make(bases.Edges(3), "Separable", order)
    weight, x = g.weight.clone().requires_grad_(), draw(g.M, 3).requires_grad_()
    assert gradgradcheck(lambda x, w: call(conv, x, g, edge_weight=w), (x, weight), fast_mode=True)


@pytest.mark.parametrize("pieces", ["copies", "runs"])
def test_second_derivatives_of_attention_in_pieces(pieces: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is evaluated a piece at a time is differentiated by the same formula."""
    c = attention_cases.CASES[next(iter(ATTENTIONS.values()))]
    conv, _ = attention_cases.layer(c)
    made = attention_cases.inputs(c)
    leaves = [p for p in conv.parameters() if p.requires_grad]

    def twice() -> list[Tensor]:
        args, keywords = made.arguments()
        first = grad(conv(*args, **keywords).square().sum(), leaves, create_graph=True)
        return list(grad(sum(f.square().sum() for f in first), leaves))

    conv.order = "theta_first"
    whole = twice()
    monkeypatch.setattr(bound_attention, "BLOCK", 1)
    if pieces == "runs":
        monkeypatch.setattr(bound_attention, "TARGETS_BLOCK", (3, 3))
    for a, b in zip(twice(), whole, strict=True):
        close(a, b)


def test_jacobians_and_hessians() -> None:
    g = CASES[FIRST["GCN"]].graph()
    conv = make(bases.Adjacency("sym", self_loops=True), Q=1)

    def f(x: Tensor) -> Tensor:
        return call(conv, x, g).tanh().sum()

    x = draw(g.M, 3)
    close(hessian(f)(x), torch.autograd.functional.hessian(f, x))
    close(jacrev(lambda x: call(conv, x, g))(x), torch.autograd.functional.jacobian(lambda x: call(conv, x, g), x))


def test_a_backward_pass_of_many_gradients() -> None:
    """The derivative of what was computed by kernels, for a batch of gradients at once."""
    g = CASES[FIRST["GCN"]].graph()
    conv, x = make(bases.Adjacency("sym", self_loops=True) + bases.Chebyshev(3)), draw(g.M, 3)
    vectorized = torch.autograd.functional.jacobian(lambda x: call(conv, x, g), x, vectorize=True)
    close(vectorized, torch.autograd.functional.jacobian(lambda x: call(conv, x, g), x))


def test_graphs_of_their_own() -> None:
    """One graph for each sample, of as many edges."""
    conv, x = BasisConv(3, 2, bases.Adjacency("sym", self_loops=True)).double(), draw(2, 5, 3)
    edges, weight = torch.randint(5, (2, 2, 9)), draw(2, 9).abs()
    found = vmap(lambda x, e, w: conv(x, e, w))(x, edges, weight)
    close(found, torch.stack([conv(*one) for one in zip(x, edges, weight, strict=True)]))


def test_what_is_bound_beforehand_stays_as_it_is() -> None:
    """A family that a transform sees first is sorted when kernels ask for it."""
    basis, edges = bases.Adjacency("sym", self_loops=True), torch.randint(6, (2, 20))
    conv, x = BasisConv(3, 2, basis).double(), draw(6, 3)
    bound = basis.bind(edges, size=6, dtype=torch.float64)
    found = vmap(lambda x: conv(x, bound))(x.expand(2, -1, -1))[0]
    jacrev(lambda x: conv(x, bound))(x)
    close(conv(x, bound), found)
    close(conv(x, edges), found)


def test_images() -> None:
    layer = GridConv(2, 3, bases.Window(None, (3, 3), padding=1)).double()
    check_transforms(layer, lambda p, x: functional_call(layer, p, (x,)), draw(1, 2, 5, 4))
