"""The layer as a module: pairs of features, laziness, saving, copies, hooks, modes."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, grad, gradcheck, gradgradcheck
from torch_geometric import EdgeIndex

from pyg_basisconv import BasisConv, GridConv, bases, theta
from pyg_basisconv.features import is_head
from tests import cases, oracle
from tests.contract import DOUBLE, PATHS, THETAS, bind, call, close, draw, expected, layers, make, take, tensors, widths

BIPARTITE = bases.Identity() + bases.Adjacency("mean") + bases.Degree()


def bipartite_oracle(g: oracle.Graph, x: Tensor, target: Tensor | None, conv: BasisConv) -> Tensor:
    """The root and the degree read the target, the mean reads the source."""
    target = torch.zeros(g.N, x.shape[-1], dtype=DOUBLE) if target is None else target
    into = torch.diagonal(oracle.matrix(g.N, g.N, [(n, n) for _, n in g.edges], g.weights))
    mean = oracle.adjacency(g, "mean")[0]
    parts = [target, mean.T @ x, into[:, None] * target]
    return sum(u @ w for u, w in zip(parts, conv.weight, strict=True)) + conv.bias


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("kind", "M", "N"),
    [
        (kind, M, N)
        for kind in ("own target", "head of source", "no target")
        for M, N in ((6, 3), (3, 6), (4, 4), (5, 0), (0, 2))
        if N <= M or kind != "head of source"
    ],
)
@pytest.mark.sweep(20)
def test_pairs(kind: str, M: int, N: int, path: str) -> None:
    g = cases.graph(M=M, N=N, E=9 if M and N else 0)
    conv, x = make(BIPARTITE, path=path), draw(M, 3).requires_grad_()
    own = draw(N, 3, seed=1).requires_grad_()
    target = {"own target": own, "head of source": x[:N], "no target": None}[kind]
    y = conv((x, target), **tensors(g), size=(M, N))
    reference = bipartite_oracle(g, x, target, conv)
    close(y, reference)
    inputs = [x, own, *conv.parameters()]
    for a, b in zip(
        grad(y.square().sum(), inputs, allow_unused=True, materialize_grads=True),
        grad(reference.square().sum(), inputs, allow_unused=True, materialize_grads=True),
        strict=True,
    ):
        close(a, b)


def test_a_bound_family_is_moved_to_the_device_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    bound, asked = bases.Adjacency().bind(torch.tensor([[0, 1], [1, 2]])), []
    monkeypatch.setattr(type(bound), "to", lambda bound, device: asked.append(device))
    for device in (None, 1, "cuda:2"):
        bound.cuda(device)
    assert asked == ["cuda", torch.device("cuda", 1), "cuda:2"]


def test_a_product_on_one_source_and_several_targets() -> None:
    """Behind the first factor, targets stand where they stand in what it gives, and not behind the sources."""
    x, edges = (draw(1, 3), draw(3, 3, seed=1)), torch.tensor([[0, 0], [0, 2]])
    first = bases.Identity() + bases.Edges()
    alone, both = make(first), make(first @ bases.Identity())
    close(both(x, edges), alone(x, edges))


def test_pairs_in_batches() -> None:
    g, conv = cases.graph(M=6, N=3), make(BIPARTITE)
    x, target = draw(2, 2, 6, 3), draw(2, 2, 3, 3, seed=1)
    y = conv((x, target), **tensors(g))
    for i in range(2):
        for j in range(2):
            close(y[i, j], bipartite_oracle(g, x[i, j], target[i, j], conv))


def test_what_looks_like_the_head_and_is_not() -> None:
    """Another tensor, other strides, another offset, a detached head."""
    g, conv = cases.graph(M=6, N=3), make(BIPARTITE)
    x = draw(6, 3)
    for target in (x[1:4], x[::2], x[:3].clone(), x.flip(0)[:3], x[:3].detach()):
        close(conv((x, target), **tensors(g)), bipartite_oracle(g, x, target, conv))
    leaf = draw(6, 3).requires_grad_()
    y = conv((leaf, leaf[:3].detach()), **tensors(g))
    reference = bipartite_oracle(g, leaf, leaf[:3].detach(), conv)
    close(*(grad(t.square().sum(), leaf)[0] for t in (y, reference)))


def test_the_head_is_not_copied_and_has_all_channels() -> None:
    g, conv, x = cases.graph(M=6, N=3), make(BIPARTITE), draw(6, 3)
    assert all(is_head(x[:N], x) for N in range(1, 7))
    with pytest.raises(ValueError, match=r"x\[1\]: expected 3 channels"):
        conv((x, x[:3, :2]), **tensors(g))


@pytest.mark.parametrize("kind", ["leaf", "hook", "retained", "scaled", "rows of the same"])
def test_a_target_that_looks_like_the_head_has_its_own_gradient(kind: str) -> None:
    g, conv, table = cases.graph(M=6, N=3), make(BIPARTITE), draw(6, 3)

    def gradients(call: Any) -> list[Tensor]:
        memory = table.clone()
        x = memory[:6].requires_grad_()
        source = x if kind == "leaf" else 1 * x
        target = source[:3]
        if kind == "leaf":
            target = memory[:3].requires_grad_()
        elif kind == "hook":
            target.register_hook(lambda gradient: 3 * gradient)
        elif kind == "retained":
            target.retain_grad()
        elif kind == "scaled":
            target = Tripled.apply(target)
        else:
            source = source[:]
        call(source, target).square().sum().backward()
        return [t.grad for t in (x, target) if t.is_leaf or t.retains_grad]

    mine = gradients(lambda x, y: conv((x, y), **tensors(g)))
    for a, b in zip(mine, gradients(lambda x, y: bipartite_oracle(g, x, y, conv)), strict=True):
        close(a, b)


class Tripled(torch.autograd.Function):
    """A view whose gradient is not that of what it shows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 3 * gradient


def test_a_head_with_a_tangent_of_its_own() -> None:
    g, conv, x, tangent = cases.graph(M=6, N=3), make(BIPARTITE), draw(6, 3), draw(3, 3, seed=1)
    with forward_ad.dual_level():
        target = forward_ad.make_dual(x[:3], tangent)
        found = conv((x, target), **tensors(g)), bipartite_oracle(g, x, target, conv)
        close(*(forward_ad.unpack_dual(y).tangent for y in found))


def test_size_gives_the_targets() -> None:
    g, x = cases.graph(M=6, N=3), draw(6, 3)
    conv = make(bases.Adjacency())
    call_ = tensors(g)
    for features, size in (((x, None), (6, 3)), ((x, None), (None, 3)), (x, (6, 3)), ((x, draw(3, 9)), None)):
        close(conv(features, **call_, size=size), expected(conv, oracle.adjacency(g), x))
    found = EdgeIndex(call_["edge_index"], sparse_size=(6, 3))
    close(conv((x, None), found, g.weight), conv((x, None), **call_, size=(6, 3)))


def test_a_bound_basis_is_an_edge_index() -> None:
    for case in ("Sum-random", "Edges(3)-shared", "Adjacency(mean)-M>N"):
        c = cases.CASES[case]
        g, basis = c.graph(), c.basis()
        bound, x = bind(basis, g), draw(g.M, 3)
        for _, conv in layers(basis):
            close(conv(x, bound), expected(conv, c.matrices(g), x))
            close(conv(x, bound.to("cpu")), expected(conv, c.matrices(g), x))


def test_hypergraph() -> None:
    """Nodes to edges to nodes: a product of families with M != N."""
    g, x = cases.graph(M=6, N=3), draw(6, 3)
    conv = make(bases.Adjacency() @ bases.Adjacency().T)
    W = oracle.adjacency(g)[0]
    close(conv((x, None), **tensors(g), size=(6, 3)), expected(conv, (W @ W.T)[None], x))


@pytest.mark.parametrize("kind", THETAS)
@pytest.mark.sweep(2)
def test_gradcheck(kind: str) -> None:
    """First and second derivatives, by finite differences."""
    g = cases.graph(M=3, E=2)
    plain = tensors(g)
    families = (bases.Identity() + bases.Adjacency("sym", True), bases.Chebyshev(3), bases.Edges(2))
    for basis in families if kind == "Full" else families[:1]:
        weight = 0.5 + torch.rand(g.E, 2, dtype=DOUBLE) if isinstance(basis, bases.Edges) else g.weight
        x = draw(3, widths(kind, basis.K, 2)[0]).requires_grad_()
        weight = weight.clone().requires_grad_()
        for path in ("a_first", "theta_first", "phi", "message"):
            conv = make(basis, kind, path, P=2, Q=2)
            names, values = zip(*conv.named_parameters(), strict=True)

            def f(x: Tensor, weight: Tensor, *values: Tensor, conv=conv, names=names) -> Tensor:
                parameters = dict(zip(names, values, strict=True))
                return torch.func.functional_call(conv, parameters, (x, plain["edge_index"], weight))

            gradcheck(f, (x, weight, *values))
            if path != "phi" and kind in ("Full", "Heads") and basis is families[0]:
                gradgradcheck(f, (x, weight, *values))


def test_third_derivative() -> None:
    """A product of three derivatives: sparse products of sampled products of sparse products."""
    g = cases.graph(M=4, E=5)
    conv, x = make(bases.Adjacency("sym"), path="theta_first"), draw(4, 3).requires_grad_()
    weight = g.weight.clone().requires_grad_()
    results = []
    for f in (
        lambda: call(conv, x, g, edge_weight=weight),
        lambda: expected(conv, oracle.adjacency(g.but(weight=weight), "sym"), x),
    ):
        value = f().pow(3).sum()
        for leaf in (weight, x, weight):
            value = grad(value, leaf, create_graph=True)[0].square().sum()
        results.append(value)
    close(*results, tolerance=1e-9)


@pytest.mark.parametrize("kind", THETAS)
def test_lazy(kind: str) -> None:
    (P, Q), learns = widths(kind, 3), not kind.startswith("Pass")
    conv = BasisConv(-1, Q if learns else -1, bases.Powers(3), THETAS[kind](), bias=learns)
    g, x = cases.graph(), draw(6, P).float()
    assert "-1" in repr(conv)
    y = call(conv, x, g)
    assert y.shape == (6, Q)
    for order in ("a_first", "theta_first", "phi"):
        torch.testing.assert_close(call(take(conv, order), x, g), y, rtol=1e-5, atol=1e-5)
        call(take(conv, order), x.expand(1000, 6, P), g)
    if learns:
        assert conv.in_channels == P
        assert {n: tuple(p.shape) for n, p in conv.named_parameters()}["theta.weight"] == conv.theta.shape(3, P, Q)


def test_lazy_takes_a_state() -> None:
    g, x = cases.graph(), draw(6, 3).float()
    known = make(bases.Powers(3), dtype=torch.float32)
    for make_one in (
        lambda: BasisConv(-1, 2, bases.Powers(3)),
        lambda: torch.nn.Sequential(BasisConv(-1, 2, bases.Powers(3)))[0],
    ):
        lazy = make_one()
        lazy.load_state_dict(known.state_dict())
        close(call(lazy, x, g), call(known, x, g))
    again = BasisConv(3, 2, bases.Powers(3))
    lazy = BasisConv(-1, 2, bases.Powers(3))
    again.load_state_dict(known.state_dict())
    assert set(lazy.state_dict()) == set(again.state_dict()) == {"theta.weight", "bias"}


def test_lazy_is_taken_from_the_first_call_by_both_of_a_pair() -> None:
    g = cases.graph(M=6, N=3)
    conv = BasisConv(-1, 2, BIPARTITE).double()
    conv((draw(6, 5), draw(3, 5)), **tensors(g))
    with pytest.raises(ValueError, match=r"^x: "):
        conv(draw(6, 4), **tensors(cases.graph()))


def test_state_dict() -> None:
    conv = make(bases.Powers(3))
    assert {name: tuple(t.shape) for name, t in conv.state_dict().items()} == {"theta.weight": (3, 3, 2), "bias": (2,)}
    assert conv.weight is conv.theta.weight
    assert dict(make(bases.Powers(3), "Pass", bias=False).state_dict()) == {}


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
@pytest.mark.parametrize("case", ["Sum-random", "Mix+Product-random", "Edges(3)-typed", "Chebyshev(4)-lambda-scalar"])
def test_copies(case: str, copied: Callable[[BasisConv], BasisConv]) -> None:
    c = cases.CASES[case]
    g = c.graph()
    conv, x = make(c.basis(), cached=True, path="a_first"), draw(g.M, 3)
    before = call(conv, x, g)
    other = copied(conv)
    assert repr(other) == repr(conv)
    close(call(other, x, g), before)
    with torch.no_grad():
        other.weight.zero_()
    close(call(conv, x, g), before)
    call(other, x, g).sum().backward()


@pytest.mark.parametrize("kind", THETAS)
@pytest.mark.parametrize("path", ["a_first", "theta_first", "auto"])
def test_cached_with_any_parameter(kind: str, path: str) -> None:
    g, A = cases.graph(), oracle.powers(oracle.adjacency(cases.graph(), "sym"), 3)
    conv = make(bases.Powers(3), kind, path, cached=True)
    x = draw(g.M, conv.in_channels)
    for _ in range(3):
        close(call(conv, x, g), expected(conv, A, x, kind))
        x[0] += 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_to_dtype(dtype: torch.dtype) -> None:
    g, conv = cases.graph(), make(bases.Chebyshev(3))
    before = call(conv, draw(6, 3), g)
    conv.to(dtype)
    y = call(conv, draw(6, 3, dtype=dtype), g)
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), before, rtol=5e-2, atol=5e-2)
    close(call(conv.double(), draw(6, 3), g), expected(conv, oracle.chebyshev(g, 3), draw(6, 3)))


def test_reset_parameters() -> None:
    for kind in THETAS:
        conv = make(bases.Powers(2), kind)
        conv.reset_parameters()
        assert conv.bias.eq(0).all()
        if conv.weight is not None:
            first = conv.weight.detach().clone()
            conv.reset_parameters()
            assert not torch.equal(first, conv.weight)


@pytest.mark.parametrize(
    "text",
    [
        "(Degree() @ Adjacency()).T",
        "(Degree() + Adjacency()).T",
        "Degree() @ (Adjacency() + Identity())",
        "(Degree() + Adjacency()) @ Adjacency().T",
        "Degree() @ Adjacency() + Identity()",
    ],
)
def test_operators_are_in_brackets_where_they_have_to_be(text: str) -> None:
    assert repr(eval(text, vars(bases))) == text


def test_repr_is_a_value() -> None:
    for case in cases.CASES.values():
        basis = case.basis()
        if getattr(basis, "sites", None) is not None:  # which are only counted
            assert f"sites=<{len(basis.sites)} positions>" in repr(basis)
            continue
        if "Walks" in repr(basis):  # of which the names of relations are only counted
            assert "relations=<" in repr(basis)
            continue
        names = vars(torch.nn) | vars(bases) | {"Mix": bases.Mix}  # networks are made of torch.nn
        assert repr(eval(repr(basis), names)) == repr(basis)
    conv = make(bases.Edges(2), "Heads", "phi", cached=True)
    assert repr(conv) == "BasisConv(3, 4, Edges(K=2), Heads(combine='concat'), order='phi', cached=True)"
    conv = BasisConv(3, 4, bases.Edges(2), bias=False, flow="target_to_source")
    assert repr(conv) == "BasisConv(3, 4, Edges(K=2), Full(), bias=False, flow='target_to_source')"


HOOKS = {
    "message": lambda conv, seen: conv.register_message_forward_hook(lambda *a: seen.append(1)),
    "message, before": lambda conv, seen: conv.register_message_forward_pre_hook(lambda *a: seen.append(1)),
    "aggregate": lambda conv, seen: conv.register_aggregate_forward_hook(lambda *a: seen.append(1)),
    "propagate": lambda conv, seen: conv.register_propagate_forward_hook(lambda *a: seen.append(1)),
    "propagate, before": lambda conv, seen: conv.register_propagate_forward_pre_hook(lambda *a: seen.append(1)),
}


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_see_messages(hook: str) -> None:
    g, x, seen = cases.graph(), draw(6, 3), []
    for order in ("auto", "a_first", "theta_first"):
        conv = make(bases.Identity() + bases.Chebyshev(3), path=order)
        fused = call(conv, x, g)
        seen.clear()
        handle = HOOKS[hook](conv, seen)
        close(call(conv, x, g), fused)
        assert seen, "the hook was not called"
        handle.remove()
        seen.clear()
        close(call(conv, x, g), fused)
        assert not seen


def test_a_hook_may_change_messages() -> None:
    g, x = cases.graph(), draw(6, 3)
    conv = make(bases.Adjacency(), bias=False)
    before = call(conv, x, g)
    conv.register_message_forward_hook(lambda module, args, messages: 2 * messages)
    close(call(conv, x, g), 2 * before)


@pytest.mark.parametrize("path", ["a_first", "theta_first"])
@pytest.mark.parametrize("pieces", [2, 3, 5])  # of 4 and 2 columns: PyG makes no more pieces than it can
def test_decomposed_layers(pieces: int, path: str) -> None:
    g, x = cases.graph(), draw(6, 4)
    conv = make(bases.Powers(3), path=path, P=4, decomposed_layers=pieces)
    close(call(conv, x, g), expected(conv, oracle.powers(oracle.adjacency(g, "sym"), 3), x))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("basis", [bases.Chebyshev(3), bases.Window((2, 3), 3, padding=1)], ids=str)
def test_features_without_columns(basis: bases.Basis, path: str) -> None:
    conv = make(basis, path=path, P=0)
    close(call(conv, draw(6, 0), cases.graph()), conv.bias.expand(6, 2))


def test_images_without_channels() -> None:
    conv = GridConv(0, 2, bases.Window((2, 3), 3, padding=1))
    torch.nn.init.normal_(conv.bias)
    close(conv(torch.randn(4, 0, 2, 3)), conv.bias.view(2, 1, 1).expand(4, 2, 2, 3))


@pytest.mark.parametrize("path", PATHS)
def test_autocast(path: str) -> None:
    g, basis = cases.graph(), bases.Identity() + bases.Chebyshev(3)
    conv, x = make(basis, path=path, dtype=torch.float32), draw(6, 3).float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = call(conv, x, g)
        assert y.dtype in (torch.float32, torch.bfloat16)
        low = call(conv, x.bfloat16(), g)
    y.sum().backward()
    assert x.grad.dtype == conv.weight.grad.dtype == torch.float32
    A = oracle.concat(oracle.identity(g), oracle.chebyshev(g, 3))
    for result in (y, low):
        torch.testing.assert_close(result.double(), expected(conv, A, x), rtol=5e-2, atol=5e-2)


def test_deterministic_algorithms() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        for case in ("Sum-random", "Edges(3)-typed", "Edges(3)-shared", "Mix+Product-random"):
            c = cases.CASES[case]
            g = c.graph()
            for path, conv in layers(c.basis()):
                x = draw(2, g.M, 3).requires_grad_()
                weight = g.weight.clone().requires_grad_()
                y = call(conv, x, g, edge_weight=weight)
                y.sum().backward()
                close(y, expected(conv, c.matrices(g), x))
                assert weight.grad is not None, path
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_long_sums(dtype: torch.dtype) -> None:
    """A hub with 3000 neighbours: low precision adds up in a wider one, forward and backward."""
    M = 3000
    g = oracle.Graph(M, M, [(m, 0) for m in range(M)])
    for path in ("a_first", "theta_first"):
        conv = BasisConv(1, 1, bases.Adjacency(), theta.Pass(), path, bias=False)
        for turned in (False, True):
            edge_index = tensors(g.turned if turned else g)["edge_index"]
            x = torch.ones(M, 1, dtype=dtype, requires_grad=True)
            y = conv(x, edge_index)
            y.sum().backward()
            hub = x.grad[0] if turned else y[0]
            torch.testing.assert_close(hub.detach().double(), torch.tensor([3000.0]).double(), rtol=2e-2, atol=0)
        weight = torch.full((M,), 0.5, dtype=dtype, requires_grad=True)
        y = conv(torch.ones(M, 1, dtype=dtype), tensors(g)["edge_index"], weight)
        torch.testing.assert_close(y[0].double(), torch.tensor([1500.0]).double(), rtol=2e-2, atol=0)


@pytest.mark.parametrize("norm", ["sym", "rw", "mean"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_normalisation_is_wide(norm: str, dtype: torch.dtype) -> None:
    """Degrees beyond what the dtype can count still normalise."""
    M = 3000
    edge_index = torch.stack([torch.arange(M), torch.zeros(M, dtype=torch.long)])
    weight = bases.Adjacency(norm).bind(edge_index, size=M, dtype=dtype).edges().weight
    reference = bases.Adjacency(norm).bind(edge_index, size=M, dtype=DOUBLE).edges().weight
    torch.testing.assert_close(weight.double(), reference, rtol=1e-2, atol=1e-6)


def test_a_stack_trains() -> None:
    g = cases.graph()
    basis = bases.Identity() + bases.Adjacency("sym", True)
    first, second = BasisConv(3, 8, basis), BasisConv(8, 1, basis)
    optimiser = torch.optim.Adam([*first.parameters(), *second.parameters()], 0.05)
    x, goal, arguments = draw(6, 3).float(), draw(6, 1, seed=9).float(), tensors(g, torch.float32)
    losses = []
    for _ in range(60):
        loss = (second(first(x, **arguments).relu(), **arguments) - goal).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.2 * losses[0]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
def test_lazy_copies(copied: Callable[[BasisConv], BasisConv]) -> None:
    lazy = copied(BasisConv(-1, 2, bases.Powers(3)))
    lazy.load_state_dict(BasisConv(-1, 2, bases.Powers(3)).state_dict())
    assert call(lazy, draw(6, 3).float(), cases.graph()).shape == (6, 2)


def test_a_sparse_matrix_says_how_many_targets() -> None:
    dense, x = draw(4, 6) * (draw(4, 6, seed=2) > 0), draw(6, 3)
    for conv in (make(bases.Adjacency(), path=path) for path in ("auto", "message")):
        for adj in (dense.to_sparse_coo(), dense.to_sparse_csr(), dense.to_sparse_csc()):
            for features in (x, (x, None), (x, draw(4, 3))):
                close(conv(features, adj), dense @ x @ conv.weight[0] + conv.bias)


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_gradients_of_a_sparse_matrix(layout: str) -> None:
    """Learnt values of a sparse adjacency get their gradient."""
    dense, x = draw(4, 6) * (draw(4, 6, seed=2) > 0), draw(6, 3)
    adj = {"coo": dense.to_sparse_coo, "csr": dense.to_sparse_csr, "csc": dense.to_sparse_csc}[layout]()
    adj = adj.detach().requires_grad_()
    leaf = dense.clone().requires_grad_()
    for path in ("a_first", "theta_first", "phi", "message"):
        conv = make(bases.Adjacency(), path=path)
        (mine,) = grad(conv((x, None), adj).square().sum(), adj)
        (theirs,) = grad((leaf @ x @ conv.weight[0] + conv.bias).square().sum(), leaf)
        close(mine.to_dense()[dense != 0], theirs[dense != 0])


def test_an_output_that_a_hook_keeps_is_not_changed_after() -> None:
    conv, kept = BasisConv(3, 2, bases.Adjacency(), order="theta_first").double(), []
    torch.nn.init.ones_(conv.bias)
    conv.register_propagate_forward_hook(lambda module, inputs, output: kept.append(output))
    y = conv(draw(6, 3), torch.randint(6, (2, 9)))
    close(kept[0] + conv.bias, y)


def test_phi_sends_no_messages_and_says_so() -> None:
    conv = BasisConv(3, 2, bases.Adjacency(), order="phi")
    call_ = torch.randn(6, 3), torch.randint(6, (2, 9))
    assert conv.plan(*call_).order == "phi"
    conv.fuse = False
    for method in (conv, conv.plan):
        with pytest.raises(ValueError, match=r"^order: .*sends none"):
            method(*call_)


def test_lazy_layers_may_be_reset_before_the_first_call() -> None:
    conv = BasisConv(-1, 2, bases.Adjacency())
    conv.reset_parameters()
    assert conv(torch.randn(6, 3), torch.randint(6, (2, 9))).shape == (6, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_bound_basis_checks_what_it_is_given(dtype: torch.dtype) -> None:
    for basis in (bases.Adjacency(), bases.Powers(3), bases.Identity(), bases.Degree() + bases.Identity()):
        bound = basis.bind(torch.randint(6, (2, 9)), size=6, dtype=dtype)
        for rows in (2, 8):
            with pytest.raises(ValueError, match="rows"):
                bound.combine(torch.ones(bound.K, rows, 4, dtype=dtype))
            with pytest.raises(ValueError, match="rows"):
                bound.expand(torch.ones(rows, 4, dtype=dtype))
        with pytest.raises(ValueError, match=f"^z: expected {bound.K} members"):
            bound.combine(torch.ones(bound.K + 1, 6, 4, dtype=dtype))


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "messages"])
def test_transforms_are_taken(fuse: bool) -> None:
    edge_index, x = torch.randint(6, (2, 9)), draw(6, 3)
    conv = BasisConv(3, 2, bases.Chebyshev(3), order="theta_first").double()
    batch, direction = torch.stack([x, 2 * x]), draw(6, 3, seed=1)
    expected, along = torch.stack([conv(x, edge_index), conv(2 * x, edge_index)]), conv(direction, edge_index)
    conv.fuse = fuse
    close(torch.func.vmap(lambda x: conv(x, edge_index))(batch), expected)
    close(torch.func.jvp(lambda x: conv(x, edge_index), (x,), (direction,))[1], along - conv.bias)


def test_no_edge_comes_from_a_target() -> None:
    """The targets' own features stand behind those of the sources: no edge reaches them."""
    x, edge_index = (draw(3, 2), draw(2, 2)), torch.tensor([[4], [0]])
    with pytest.raises(ValueError, match=r"^edge_index: expected source indices below 3, the number of sources, got 4"):
        make(bases.Identity() + bases.Adjacency(), P=2)(x, edge_index)


def test_inverse_relations_beside_features_of_targets() -> None:
    """Two arrays of features of the same nodes: relations and their inverses read the first, self loops the second."""
    edge_index, edge_type = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]]), torch.tensor([0, 1, 1, 0])
    conv = make(bases.Relations(2, "mean", inverse=True, self_loop=True))
    source, target = draw(3, 3), draw(3, 3, seed=1)
    A = conv.basis.bind(edge_index, edge_type=edge_type, size=3, dtype=torch.float64).to_dense()
    read = torch.stack([source] * 4 + [target])
    expected = torch.einsum("kmn,kmp,kpq->nq", A, read, conv.weight) + conv.bias
    close(conv((source, target), edge_index, edge_type=edge_type), expected)
