"""Products on the distinct pairs of a member and a node, from either side, and mixing before propagating."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import grad, gradcheck, gradgradcheck
from torch.func import functional_call
from torch.testing import assert_close

from pyg_basisconv import BasisConv, bases, theta
from pyg_basisconv.bases import Basis, BoundBasis
from pyg_basisconv.content import Inputs
from pyg_basisconv.kernels import Pairs, typed, typed_matmul
from pyg_basisconv.orders import ORDERS, compacted
from tests import cases, contract, oracle
from tests.contract import THETAS, Matrices, bind, call, close, draw, expected, make, take, tensors
from tests.kernels.test_kernels import Largest
from tests.oracle import Graph
from tests.walks import oracle as kg

FORMS = ("compacted, source", "compacted, target", "mixed, a_first", "mixed, theta_first")
SIDES = FORMS[:2]
# Every kind whose members are summed; the others have no matrix, or leave the members side by side.
SUMMED = (
    "Full",
    "Heads(mean)",
    "Depthwise",
    "Depthwise(softmax)",
    "Grouped",
    "Kernel",
    "Kernel(transposed)",
    "Separable",
    "Separable(depthwise)",
)

FAMILIES: dict[str, tuple[Callable[[], Basis], Callable[[], Graph], Matrices]] = {
    "Edges": (lambda: bases.Edges(3), lambda: cases.typed(3), lambda g: oracle.edges(g, 3)),
    "Edges-ones": (lambda: bases.Edges(3), lambda: cases.typed(3, False), lambda g: oracle.edges(g, 3)),
    "Edges-M>N": (lambda: bases.Edges(3), lambda: cases.typed(3, M=6, N=4), lambda g: oracle.edges(g, 3)),
    "Edges-M<N": (lambda: bases.Edges(3), lambda: cases.typed(3, M=3, N=8), lambda g: oracle.edges(g, 3)),
    "Edges-none": (lambda: bases.Edges(3), lambda: cases.typed(3, E=0), lambda g: oracle.edges(g, 3)),
    "Edges-one-node": (lambda: bases.Edges(3), lambda: cases.typed(3, M=1, E=3), lambda g: oracle.edges(g, 3)),
    "Edges-no-node": (lambda: bases.Edges(3), lambda: Graph(0, 0, [], type=[]), lambda g: oracle.edges(g, 3)),
    "Edges-N=0": (lambda: bases.Edges(3), lambda: Graph(3, 0, [], type=[]), lambda g: oracle.edges(g, 3)),
    "Edges.T": (
        lambda: bases.Edges(3).T,
        lambda: cases.typed(3),
        lambda g: oracle.transpose(oracle.edges(g, 3)),
    ),
    "Relations": (
        lambda: bases.Relations(3, "row", inverse=True),
        lambda: cases.typed(3),
        lambda g: kg.relations(g, 3, "row", True),
    ),
    "Relations-loop": (
        lambda: bases.Relations(3, "mean", inverse=True, self_loop=True),
        lambda: cases.typed(3, False),
        lambda g: kg.relations(g, 3, "mean", True, True),
    ),
    "Walks": (
        lambda: cases.walks("a.b c{0,2} b.(a|^b).c d a.b", norm="row"),
        cases.steps,
        lambda g: kg.walks(g, cases.sequences("a.b c{0,2} b.(a|^b).c d a.b"), "row"),
    ),
    "Walks-none": (
        lambda: cases.walks("a.b c{0,2} d"),
        lambda: cases.steps(E=0),
        lambda g: kg.walks(g, cases.sequences("a.b c{0,2} d")),
    ),
    "Relations+Walks": (
        lambda: bases.Relations(4, "mean") + cases.walks("a.b", norm="sym"),
        lambda: cases.steps(weighted=False),
        lambda g: oracle.concat(kg.relations(g, 4, "mean"), kg.walks(g, cases.sequences("a.b"), "sym")),
    ),
    "Identity+Relations": (
        lambda: bases.Identity() + bases.Relations(3, "sym") + bases.Adjacency("mean"),
        lambda: cases.typed(3),
        lambda g: oracle.concat(oracle.identity(g), kg.relations(g, 3, "sym"), oracle.adjacency(g, "mean")),
    ),
    "Powers+Relations": (
        lambda: bases.Powers(3) + bases.Relations(2, "row"),
        lambda: cases.typed(2),
        lambda g: oracle.concat(oracle.powers(oracle.adjacency(g, "sym"), 3), kg.relations(g, 2, "row")),
    ),
}


def by(form: str, conv: BasisConv, x: Tensor, bound: BoundBasis) -> Tensor:
    """The layer by one form of an order, whichever of the two the plan would take."""
    order, which = form.split(", ")
    found = ORDERS[order].run(bound, Inputs(x, conv.theta), conv.bias, which, False)
    return found.y if conv.bias is None or found.biased else found.y + conv.bias


def forms(kind: str, bound: BoundBasis) -> tuple[str, ...]:
    """Those that there are; walks are not written out, and cannot be mixed before."""
    return FORMS if kind == "Separable" and bound.mixing is not None else SIDES


def learning(g: Graph) -> tuple[Graph, list[Tensor]]:
    """The graph with weights that need a gradient, where it has any."""
    if g.weight is None:
        return g, []
    weight = g.weight.clone().requires_grad_()
    return g.but(weight=weight), [weight]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for i, name in enumerate(FAMILIES)
        for j, kind in enumerate(SUMMED)
        if kind == "Full" or (i + j) % 3 == 0
    ],
)
@pytest.mark.sweep(24, "Walks-none-Kernel(transposed)")
def test_every_form_is_the_formula(name: str, kind: str) -> None:
    """Values and all gradients, from both sides, with batches."""
    make_basis, graph, matrices = FAMILIES[name]
    basis = make_basis()
    conv = make(basis, kind)
    for batch in ((), (2, 2), (0,)) if kind in ("Full", "Grouped", "Separable") else ((2,),):
        g, weights = learning(graph())
        x = draw(*batch, g.M, conv.in_channels).requires_grad_()
        leaves = [x, *conv.parameters(), *weights]
        reference = expected(conv, matrices(g), x, kind)
        down = draw(*reference.shape, seed=3)
        theirs = grad(reference, leaves, down, allow_unused=True, materialize_grads=True)
        for form in forms(kind, bind(basis, g)):
            y = by(form, conv, x, bind(basis, g))
            assert_close(y, reference, rtol=1e-10, atol=1e-10, msg=lambda m, f=form: f"{f}: {m}")
            mine = grad(y, leaves, down, allow_unused=True, materialize_grads=True)
            for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
                assert_close(a, b, rtol=1e-10, atol=1e-10, msg=lambda m, f=form, i=i: f"gradient {i} by {f}: {m}")


@pytest.mark.parametrize("form", SIDES)
@pytest.mark.parametrize("name", ["Edges", "Relations-loop", "Identity+Relations", "Powers+Relations"])
def test_a_bias_is_added_once(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where one of the products adds it, if there is one that can."""
    monkeypatch.setattr(compacted, "joins", lambda *tensors: True)
    make_basis, graph, matrices = FAMILIES[name]
    conv, g = make(make_basis(), "Full"), graph()
    x = draw(g.M, conv.in_channels)
    close(by(form, conv, x, bind(conv.basis, g)), expected(conv, matrices(g), x))


@pytest.mark.parametrize("form", SIDES)
@pytest.mark.parametrize("name", ["Edges", "Walks", "Identity+Relations"])
def test_groups_that_are_wide_stay_apart(name: str, form: str) -> None:
    make_basis, graph, matrices = FAMILIES[name]
    basis, g = make_basis(), graph()
    conv = BasisConv(64, 128, basis, theta.Grouped(2)).double()
    assert conv.theta.diagonal(64).shape == (basis.K, 2, 32, 64)
    assert theta.Grouped(2).build(basis.K, 64, 64).diagonal(64).shape == (basis.K, 1, 64, 64)
    x = draw(2, g.M, 64)
    close(by(form, conv, x, bind(basis, g)), expected(conv, matrices(g), x, "Grouped"))


@pytest.mark.parametrize("kind", THETAS)
@pytest.mark.parametrize("order", ["compacted", "mixed"])
@pytest.mark.sweep(9)
def test_forced_orders_are_obeyed_or_refused(order: str, kind: str) -> None:
    """Through the layer: equal to every other order, or a reason."""
    basis, g = bases.Relations(3, "mean", inverse=True, self_loop=True), cases.typed(3)
    A = kg.relations(g, 3, "mean", True, True)
    conv = make(basis, kind, order)
    x = draw(2, 6, conv.in_channels)
    possible = kind in SUMMED if order == "compacted" else kind == "Separable"
    if not possible:
        reason = "no parameter|are summed" if order == "compacted" else r"theta\.Separable"
        with pytest.raises(
            ValueError, match=rf"^order: '{order}' was asked for, but .*({reason}).*; leave order='auto'"
        ):
            call(conv, x, g)
        return
    assert conv.plan(x, **tensors(g)).order == order
    y = call(conv, x, g)
    close(y, expected(conv, A, x, kind))
    for path in ("auto", "a_first", "theta_first", "phi", "message"):
        close(call(take(conv, path), x, g), y)


def test_nothing_is_measured_in_vain() -> None:
    """Where the order is refused anyway, nobody looks for rows."""
    measure, bound, x = ORDERS["compacted"].measure, bind(bases.Edges(3), cases.typed(3)), draw(6, 3)
    of = {kind: make(bases.Edges(3), kind).theta for kind in ("Full", "Pass", "Heads")}
    assert measure(bound, Inputs(x, of["Full"]), False, True) is not None
    assert measure(bound, Inputs(x, of["Full"]), True, True) is None
    assert measure(bound, Inputs(x.to_sparse(), of["Full"]), False, True) is None
    for kind in ("Pass", "Heads"):
        assert measure(bound, Inputs(x, of[kind]), False, True) is None


REFUSED: dict[str, tuple[str, Callable[[str], Any]]] = {
    "fuse=False": ("messages", lambda order: messages(layer(order))(X, TO, edge_type=KIND)),
    "decomposed": ("messages", lambda order: layer(order, decomposed_layers=2)(X, TO, edge_type=KIND)),
    "products": ("typed edges", lambda order: layer(order, bases.Powers(2) @ bases.Powers(2))(X, TO)),
    "weights shared by K matrices": (
        "typed edges",
        lambda order: layer(order, bases.Edges(2))(X, TO, torch.ones(3, 2)),
    ),
}
X, TO, KIND = torch.ones(4, 3), torch.tensor([[0, 1, 2], [1, 1, 3]]), torch.tensor([0, 1, 1])


def layer(order: str, basis: Basis | None = None, **options: Any) -> BasisConv:
    return BasisConv(3, 2, bases.Edges(2) if basis is None else basis, theta.Separable(1), order, **options)


def messages(conv: BasisConv) -> BasisConv:
    conv.fuse = False
    return conv


@pytest.mark.parametrize("order", ["compacted", "mixed"])
@pytest.mark.parametrize(("reason", "run"), REFUSED.values(), ids=REFUSED)
def test_refused(order: str, reason: str, run: Callable[[str], Any]) -> None:
    with pytest.raises(ValueError, match=rf"^order: '{order}' was asked for, but .*; leave order='auto'") as caught:
        run(order)
    assert reason in str(caught.value)


def test_sparse_features() -> None:
    """Are gathered by no order, and multiplied by mixtures as by others."""
    dense = draw(4, 3).float() * (draw(4, 3, seed=1) > 0)
    mixed, plain, compacted = (layer(order) for order in ("mixed", "theta_first", "compacted"))
    for other in (plain, compacted):
        other.load_state_dict(mixed.state_dict())
    for x in (dense.to_sparse_csr(), dense.to_sparse_coo()):
        y = mixed(x, TO, edge_type=KIND)
        assert_close(y, plain(dense, TO, edge_type=KIND))
        parameters = [list(conv.parameters()) for conv in (mixed, plain)]
        again = plain(dense, TO, edge_type=KIND)
        for a, b in zip(*(grad(r.square().sum(), p) for r, p in zip((y, again), parameters, strict=True)), strict=True):
            assert_close(a, b)
        with pytest.raises(ValueError, match=r"^order: 'compacted' was asked for, but x is sparse"):
            compacted(x, TO, edge_type=KIND)


def test_one_matrix_has_nothing_to_leave_out() -> None:
    with pytest.raises(ValueError, match=r"^order: 'compacted' was asked for, but .*several"):
        layer("compacted", bases.Adjacency())(X, TO)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["float32", "bfloat16", "float16"]
)
@pytest.mark.parametrize("name", ["Edges", "Relations", "Relations-loop", "Identity+Relations", "Walks"])
@pytest.mark.sweep(5)
def test_low_precision(name: str, dtype: torch.dtype) -> None:
    """Sums of many terms are as good as the dtype can say, and come out in it; gradients, too."""
    make_basis, graph, matrices = FAMILIES[name]
    basis, g = make_basis(), graph()
    tolerance = {torch.float32: 1e-5}.get(dtype, 2e-2)
    for kind in ("Full", "Grouped", "Separable"):
        conv = make(basis, kind, dtype=dtype)
        x = draw(2, g.M, conv.in_channels).to(dtype).requires_grad_()
        leaves = [x, *conv.parameters()]
        exact = make(basis, kind)
        with torch.no_grad():
            for a, b in zip(exact.parameters(), conv.parameters(), strict=True):
                a.copy_(b)
        wide = x.detach().double().requires_grad_()
        reference = expected(exact, matrices(g), wide, kind)
        theirs = [reference, *grad(reference.sum(), [wide, *exact.parameters()])]
        bound = bind(basis, g, edge_weight=_as(g.weight, dtype), dtype=dtype)
        for form in forms(kind, bound):
            y = by(form, conv, x, bound)
            for a, b in zip([y, *grad(y.sum(), leaves)], theirs, strict=True):
                assert a.dtype == dtype
                assert_close(a.double(), b, rtol=tolerance, atol=tolerance * max(1.0, float(b.detach().abs().max())))


def _as(weight: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if weight is None else weight.to(dtype)


@pytest.mark.parametrize("check", ["permutation", "strides", "precision", "determinism", "freshness", "inference"])
@pytest.mark.parametrize("name", ["Edges", "Edges-M>N", "Relations-loop", "Walks"])
@pytest.mark.sweep(6)
def test_keeps_the_contract(name: str, check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other orders promise: any view of x, changes in place, a first call in inference mode ..."""

    def compacted(
        basis: Basis, kind: str = "Full", paths: Any = None, **options: Any
    ) -> Iterator[tuple[str, BasisConv]]:
        yield "compacted", make(basis, kind, "compacted", **options)

    monkeypatch.setattr(contract, "layers", compacted)
    monkeypatch.setattr(contract, "PATHS", ("auto", "compacted", "auto"))
    make_basis, graph, matrices = FAMILIES[name]
    contract.CHECKS[check](make_basis(), graph(), matrices)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("empty", ["batch", "edges", "nodes"])
def test_nothing_is_learnt_from_nothing(empty: str, form: str) -> None:
    """An empty batch, or graph, has a gradient, and it is zero."""
    g = {"batch": cases.typed(3), "edges": cases.typed(3, E=0), "nodes": Graph(0, 0, [], type=[])}[empty]
    conv = make(bases.Relations(3, "mean"), "Separable", bias=False)
    x = draw(*(0,) * (empty == "batch"), g.M, 3).requires_grad_()
    y = by(form, conv, x, bind(conv.basis, g))
    for slope in grad(y.sum(), [x, *conv.parameters()]):
        assert not slope.any()


@pytest.mark.parametrize("form", FORMS)
def test_sums_of_very_many_terms(form: str) -> None:
    """4096 edges into one node: a sum in bfloat16 itself would stop growing at 256."""
    E = 4096
    edge_index = torch.stack([torch.arange(E), torch.zeros(E, dtype=torch.long)])
    conv = BasisConv(1, 1, bases.Edges(2), theta.Separable(1), bias=False).to(torch.bfloat16)
    with torch.no_grad():
        conv.weight.fill_(1)
        conv.theta.mix.fill_(1)
    bound = conv.basis.bind(edge_index, edge_type=torch.arange(E) % 2, size=(E, E), dtype=torch.bfloat16)
    x = torch.ones(E, 1, dtype=torch.bfloat16).requires_grad_()
    y = by(form, conv, x, bound)
    assert y.tolist() == [[E]] + [[0]] * (E - 1)
    (slope,) = grad(y.sum(), conv.theta.mix)
    assert slope.tolist() == [[E / 2, E / 2]]


@pytest.mark.parametrize(
    ("name", "form"),
    [
        (name, form)
        for name in ("Edges", "Relations", "Relations-loop", "Walks")
        for form in FORMS
        if not name.startswith("Walks") or form in SIDES
    ],
)
@pytest.mark.sweep(6)
def test_the_same_bits_every_time(name: str, form: str) -> None:
    make_basis, graph, _ = FAMILIES[name]
    basis = make_basis()
    conv = make(basis, "Separable", dtype=torch.float32)
    results = []
    for _ in range(3):
        g, weights = learning(graph())
        x = draw(2, g.M, 3, dtype=torch.float32).requires_grad_()
        bound = bind(basis, g, edge_weight=_as(g.weight, torch.float32), dtype=torch.float32)
        y = by(form, conv, x, bound)
        results.append((y, *grad(y.square().sum(), [x, *conv.parameters(), *weights])))
    assert_close(results[0], results[1], rtol=0, atol=0)
    assert_close(results[0], results[2], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("kind", "weighted"),
    [("Full", False), ("Grouped", True), ("Separable", True)],
    ids=["Full", "Grouped", "Separable"],
)
@pytest.mark.sweep(1)
def test_second_derivatives(kind: str, weighted: bool) -> None:
    """By x and all parameters, of every form; the weights of edges stand still."""
    basis, g = bases.Relations(2, "row", inverse=True), cases.typed(3, weighted, M=4, E=5)
    conv, bound = make(basis, kind, P=2, Q=1), bind(basis, g)
    for form in forms(kind, bound):
        module = Apply(conv, form, bound)
        names = [name for name, _ in module.named_parameters()]

        def f(x: Tensor, *parameters: Tensor, module: Apply = module, names: list[str] = names) -> Tensor:
            return functional_call(module, dict(zip(names, parameters, strict=True)), x)

        inputs = [draw(4, conv.in_channels), *(p.detach().clone() for p in module.parameters())]
        inputs = [t.requires_grad_() for t in inputs]
        assert gradcheck(f, inputs)
        assert gradgradcheck(f, inputs)


class Apply(torch.nn.Module):
    """One form of an order as a module, whose parameters can be replaced."""

    def __init__(self, conv: BasisConv, form: str, bound: BoundBasis) -> None:
        super().__init__()
        self.conv, self.form, self.bound = conv, form, bound

    def forward(self, x: Tensor) -> Tensor:
        return by(self.form, self.conv, x, self.bound)


@pytest.mark.parametrize("form", FORMS)
def test_first_derivatives_by_weights(form: str) -> None:
    g, basis = cases.typed(3, M=4, E=5), bases.Relations(2, "sym", inverse=True)
    conv, x = make(basis, "Separable", P=2, Q=1), draw(4, 2)

    def f(weight: Tensor) -> Tensor:
        return by(form, conv, x, bind(basis, g, edge_weight=weight))

    assert gradcheck(f, g.weight.clone().requires_grad_())


@pytest.mark.parametrize("form", FORMS)
def test_second_derivatives_by_weights(form: str) -> None:
    g, basis = cases.typed(3), bases.Edges(3)
    conv, weight = make(basis, "Separable"), g.weight.clone().requires_grad_()
    x = draw(6, 3).requires_grad_()

    def twice(y: Tensor) -> Tensor:
        (first,) = grad(y.square().sum(), x, create_graph=True)
        return grad(first.square().sum(), weight)[0]

    bound = bind(basis, g, edge_weight=weight)
    close(twice(by(form, conv, x, bound)), twice(expected(conv, oracle.edges(g.but(weight=weight), 3), x, "Separable")))


def test_nothing_of_the_size_of_the_family_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither K N rows, nor one for each pair or edge, forward or backward, with weights that learn."""
    monkeypatch.setitem(typed._NUMBERS, "cpu", 1 << 14)
    K, M, E, P = 50, 4000, 60_000, 16
    generator = torch.Generator().manual_seed(0)
    edge_index, kind = torch.randint(M, (2, E), generator=generator), torch.randint(K, (E,), generator=generator)
    weight = torch.rand(E, generator=generator).requires_grad_()
    x = draw(M, P).float().requires_grad_()
    for form in SIDES:
        conv = BasisConv(P, P, bases.Relations(K))
        bound = conv.basis.bind(edge_index, weight, kind, size=M)
        by(form, conv, x.detach(), bound).detach()  # what is found once and kept
        with Largest() as largest:
            by(form, conv, x, bound).sum().backward()
        assert largest.numel <= max(M * P, E, 1 << 14), f"{form}: {largest.name} of {largest.numel}"


# ------------------------------------------------------------------------------------------------------ the plan


def knowledge(K: int, M: int, E: int, P: int, kind: theta.Theta | None = None, **options: Any) -> tuple[BasisConv, Any]:
    generator = torch.Generator().manual_seed(0)
    call = {
        "edge_index": torch.randint(M, (2, E), generator=generator),
        "edge_type": torch.randint(K, (E,), generator=generator),
    }
    return BasisConv(P, P, bases.Relations(K, "mean", **options), kind), call


@pytest.mark.parametrize("learns", [True, False], ids=["x learns", "x given"])
@pytest.mark.parametrize("kind", [theta.Full, lambda: theta.Grouped(8)], ids=["Full", "Grouped"])
def test_many_relations_are_compacted(kind: Callable[[], theta.Theta], learns: bool) -> None:
    conv, arguments = knowledge(200, 3000, 20_000, 32, kind(), inverse=True)
    plan = conv.plan(torch.randn(3000, 32).requires_grad_(learns), **arguments)
    assert plan.order == "compacted"
    assert plan["compacted"].seconds * 2 < min(plan["a_first"].seconds, plan["theta_first"].seconds)
    assert plan["compacted"].memory * 10 < plan["theta_first"].memory
    assert plan["mixed"].refused
    held = plan["compacted"].memory - 4 * 3000 * 32 * (2 if learns else 1)  # beyond the result, and what x learns from
    assert 4 * 50 * 64 < held < 4 * 200 * 64  # about a hundred rows at a time, in and out


def test_few_bases_are_mixed_first() -> None:
    conv, arguments = knowledge(200, 3000, 20_000, 32, theta.Separable(1), inverse=True)
    plan = conv.plan(torch.randn(3000, 32), **arguments)
    assert plan.order == "mixed"
    assert "1 mixtures" in plan.why or "mixture" in plan.why


def test_many_bases_are_not() -> None:
    """More mixtures than matrices."""
    conv, arguments = knowledge(4, 3000, 20_000, 32, theta.Separable(64))
    assert conv.plan(torch.randn(3000, 32), **arguments).order != "mixed"


@pytest.mark.parametrize(
    ("sources", "targets", "side"), [(5, 3000, "source"), (3000, 5, "target")], ids=["few sources", "few targets"]
)
def test_the_side_with_fewer_pairs_is_compacted(sources: int, targets: int, side: str) -> None:
    generator = torch.Generator().manual_seed(0)
    ends = [torch.randint(n, (20_000,), generator=generator) for n in (sources, targets)]
    kind = torch.randint(100, (20_000,), generator=generator)
    conv = BasisConv(32, 32, bases.Relations(100), order="compacted")
    plan = conv.plan(torch.randn(3000, 32), torch.stack(ends), edge_type=kind)
    assert plan.chosen.form == side
    assert f"> compacted, {side}" in str(plan)


def test_few_relations_with_every_pair_are_not_compacted() -> None:
    """Where each relation meets each node there is nothing to leave out: one product for all is as good."""
    conv, arguments = knowledge(2, 300, 60_000, 8)
    x = torch.randn(300, 8)
    plan = conv.plan(x, **arguments)
    least = min(plan["a_first"].seconds, plan["theta_first"].seconds)
    assert plan["compacted"].seconds > least / 2


# -------------------------------------------------------------------------------------------------- the kernel


@pytest.fixture(params=["counted", "sorted"])
def grouping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to group entries: few groups are counted, many are sorted."""
    if request.param == "sorted":
        monkeypatch.setattr(typed, "_FEW", -(1 << 40))


@pytest.mark.usefixtures("grouping")
def test_pairs() -> None:
    g = cases.typed(4)
    call = tensors(g)
    (source, target), kind = call["edge_index"], call["edge_type"]
    for order in (torch.arange(g.E), torch.randperm(g.E), kind.sort(stable=True).indices):
        pairs = Pairs(kind[order], source[order], target[order], (4, g.M, g.N))
        there = sorted({(k, n) for (_, n), k in zip(g.edges, g.type, strict=True)})
        assert pairs.count == len(there)
        assert pairs.at.tolist() == [n for _, n in there]
        assert pairs.members == len({k for k, _ in there})
        found = [there[p] for p in pairs.place.tolist()]
        assert found == [(g.type[e], g.edges[e][1]) for e in order.tolist()]


@pytest.mark.usefixtures("grouping")
@pytest.mark.parametrize("size", [1, 2, 64])
@pytest.mark.parametrize("turned", [False, True], ids=["reach", "spread"])
def test_pieces_of_any_size(turned: bool, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut anywhere, also within a member and within a target's run, the result is the same."""
    monkeypatch.setattr(Pairs, "pieces", lambda self, width: list(self._cut(size)))
    g = cases.typed(4, M=6, N=5, E=30)
    call = tensors(g)
    kind = call["edge_type"]
    pairs = Pairs(kind, *call["edge_index"], (4, g.M, g.N))
    weight = g.weight.clone().requires_grad_()
    x, W = draw(2, g.N if turned else g.M, 4).requires_grad_(), draw(4, 2, 2, 3, seed=1).requires_grad_()
    edge = weight if pairs.order is None else weight[pairs.order]
    y = typed_matmul(x, W, edge, pairs, turned)
    A = oracle.edges(g.but(weight=weight), 4)
    Theta = torch.stack([torch.block_diag(*blocks) for blocks in W])
    reference = oracle.apply(oracle.transpose(A) if turned else A, x, Theta)
    close(y, reference)
    down = draw(*y.shape, seed=2)
    for a, b in zip(grad(y, [x, W, weight], down), grad(reference, [x, W, weight], down), strict=True):
        close(a, b)


def test_large_enough_for_several_pieces() -> None:
    """Wide rows are held a few thousand numbers at a time."""
    pairs = Pairs(torch.zeros(500).long(), torch.arange(500), torch.arange(500), (1, 500, 500))
    pieces = pairs.pieces(typed._NUMBERS["cpu"])
    assert len(pieces) > 1
    assert sum(piece.at.numel() for piece in pieces) == 500
    assert pairs.pieces(typed._NUMBERS["cpu"]) is pieces
    assert len(pairs.pieces(1)) == 1


def test_layers_of_a_model_share_what_was_found() -> None:
    """The pairs belong to the edges: two layers on one graph find them once."""
    arguments = {**tensors(cases.typed(3)), "size": 6}
    first, second = (bases.Relations(3, norm).bind(**arguments) for norm in ("mean", "mean"))
    other = bases.Relations(3, "row").bind(**arguments)
    assert first is second
    assert first is not other
    assert first.edge_set.pairs is other.edge_set.pairs
    arguments["edge_weight"] = 2 * arguments["edge_weight"]  # as weights that learn have changed in the next call
    assert bases.Relations(3, "row").bind(**arguments).edge_set.pairs is other.edge_set.pairs


@pytest.mark.parametrize("turned", [False, True])
def test_pieces_are_small_for_batches_of_blocks(turned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that are multiplied at a time have as many numbers as are allowed, batch and blocks included."""
    B, n, blocks, P, allowed, held = 3, 2000, 2, 2, 1 << 12, []
    real = typed._multiply
    monkeypatch.setattr(typed, "_NUMBERS", {"cpu": allowed})
    monkeypatch.setattr(typed, "_multiply", lambda *given: (held.append(real(*given)), held[-1])[1])
    kind, nodes = torch.arange(n) % 2, torch.arange(n)
    x, W = draw(B, n, blocks * P), draw(2, blocks, P, P)
    found = typed_matmul(x, W, None, Pairs(kind, nodes, nodes.flip(0), (2, n, n)), turned)
    # Edge e leads from node e to node n - 1 - e.
    at, of = (nodes, nodes.flip(0)) if turned else (nodes.flip(0), nodes)
    full = torch.stack([torch.block_diag(*member) for member in W])
    assert_close(found[:, at], torch.einsum("bnp,npq->bnq", x[:, of], full[kind]))
    assert max(map(torch.numel, held)) <= allowed


def test_weights_that_are_kept_on_a_gpu_are_those_of_the_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of sources, for the gradient; others of the same edges, and those that learn, have their own."""
    edge_index, kind = torch.randint(5, (2, 30)), torch.randint(3, (30,))
    x, basis = torch.rand(5, 2, dtype=torch.float64, requires_grad=True), bases.Relations(3)
    conv = BasisConv(2, 4, basis, order="compacted").double()

    def gradient(bound: BoundBasis) -> torch.Tensor:
        return torch.autograd.grad(conv(x, bound).square().sum(), x)[0]

    for learns in (False, True):
        for _ in range(2):
            weight = torch.rand(30, dtype=torch.float64, requires_grad=learns)
            bound = basis.bind(edge_index, weight, kind)
            for _ in range(2):
                expected = gradient(basis.bind(edge_index, weight.clone(), kind))
                with monkeypatch.context() as m:
                    m.setattr(typed, "on_gpu", lambda t: True)
                    for _ in range(2):
                        torch.testing.assert_close(gradient(bound), expected)
                if learns:
                    weight.data.mul_(2)
