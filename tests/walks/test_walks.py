"""Walks of a sort: every kind of sort and norm against all walks; what is counted, shared, and refused."""

import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import grad

from pyg_basisconv import BasisConv, bases, theta
from tests import cases, oracle
from tests.cases import SORTS
from tests.contract import (
    DOUBLE,
    PATHS,
    THETAS,
    bind,
    call,
    check_gradients,
    close,
    draw,
    expected,
    make,
    take,
    tensors,
)
from tests.kernels.test_kernels import Largest
from tests.oracle import Graph
from tests.walks import oracle as kg

OPTIONS: dict[str, dict[str, Any]] = {
    "counts": {},
    "row": {"norm": "row"},
    "mean": {"norm": "mean"},
    "sym": {"norm": "sym"},
    "step-row": {"norm": "row", "per": "step"},
    "step-mean": {"norm": "mean", "per": "step"},
    "step-sym": {"norm": "sym", "per": "step"},
    "binary": {"binary": True},
    "binary-row": {"binary": True, "norm": "row"},
    "binary-mean": {"binary": True, "norm": "mean"},
    "binary-sym": {"binary": True, "norm": "sym"},
}
ALL = " ".join(SORTS)


def of_walks(sorts: str, **options: Any) -> Callable[[Graph], Tensor]:
    return lambda g: kg.walks(g, cases.sequences(sorts), **options)


def test_by_hand() -> None:
    """Leonard Nimoy played Spock, who is in Star Trek and in another series, which is an adventure as well."""
    nimoy, spock, trek, other, scifi, adventure = range(6)
    names = ["played", "characterIn", "genre"]
    edges = [(nimoy, spock), (spock, trek), (spock, other), (trek, scifi), (other, scifi), (other, adventure)]
    g = Graph(6, 6, edges, type=[0, 1, 1, 2, 2, 2])
    sort = "played.characterIn.genre"

    def genres(**options: Any) -> Tensor:
        A = bind(bases.Walks([sort], names, **options), g).to_dense()
        assert A.shape == (1, 6, 6)
        rest = A.clone()
        rest[0, nimoy, scifi] = rest[0, nimoy, adventure] = 0
        assert not rest.count_nonzero()
        return A[0, nimoy, [scifi, adventure]]

    close(genres(), torch.tensor([2.0, 1.0]))
    close(genres(binary=True), torch.tensor([1.0, 1.0]))
    close(genres(norm="row"), torch.tensor([2 / 3, 1 / 3], dtype=DOUBLE))
    close(genres(norm="mean"), torch.tensor([1.0, 1.0]))
    close(genres(norm="row", binary=True), torch.tensor([1 / 2, 1 / 2]))
    # Half of the walks from Spock go each way, and of those to the other series again half.
    close(genres(norm="row", per="step"), torch.tensor([3 / 4, 1 / 4]))


@pytest.mark.parametrize("weighted", [False, True], ids=["ones", "weights"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.sweep(8)
def test_every_sort(options: dict[str, Any], weighted: bool) -> None:
    g = cases.steps(weighted)
    bound = bind(cases.walks(ALL, **options), g)
    for k, (name, sort) in enumerate(SORTS.items()):
        torch.testing.assert_close(
            bound.to_dense()[k], kg.walk(g, sort, **options), rtol=1e-12, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.sweep(2)
def test_weights_that_learn(options: dict[str, Any]) -> None:
    """All gradients by all paths; a binary family has none by the weights."""
    sorts = "a.b c{0,2} b.(a|^b).c (a.b|c) ^a.b.c"
    matrices = of_walks(sorts, **options)
    check_gradients(cases.walks(sorts, **options), cases.steps(), matrices)
    weight = cases.steps().weight.requires_grad_()
    assert matrices(cases.steps().but(weight=weight)).requires_grad != ("binary" in options)


@pytest.mark.parametrize("kind", THETAS)
@pytest.mark.sweep(4)
def test_every_parameter(kind: str) -> None:
    """And the compacted order, which is obeyed where members are summed."""
    sorts = "a.b ^b c{0,2} b.(a|^b).c d"
    basis, g = cases.walks(sorts, norm="row"), cases.steps()
    conv = make(basis, kind)
    obeyed = conv.theta.sums and conv.weight is not None
    check_gradients(basis, g, of_walks(sorts, norm="row"), kind, [*PATHS, *["compacted"] * obeyed])
    if not obeyed:
        with pytest.raises(ValueError, match=r"^order: 'compacted' was asked for"):
            call(take(conv, "compacted"), draw(2, 6, conv.in_channels), g)


# ------------------------------------------------------------------------------------------- how sorts are given


def test_names_and_what_is_kept() -> None:
    basis = bases.Walks({"there": "a.b", "and back": "^b.^a"}, list("abcd"), norm="row", per="step")
    assert (basis.K, basis.names) == (2, ("there", "and back"))
    assert [sort.text for sort in basis.sorts] == ["a.b", "^b.^a"]
    assert [sort.sequences for sort in basis.sorts] == [
        ((((0, False),), ((1, False),)),),
        ((((1, True),), ((0, True),)),),
    ]
    assert list(basis.vocabulary.names) == list("abcd")
    plain = bases.Walks(["a.b", ["^b", "^a"]], list("abcd"))
    assert plain.names == ("a.b", "^b.^a")
    close(bind(plain, cases.steps()).to_dense(), bind(bases.Walks(basis.sorts, list("abcd")), cases.steps()).to_dense())


def test_what_tells_bases_apart() -> None:
    """What was bound to a graph is kept: never for another vocabulary, norm or limit, also inside of other bases."""
    g, options = cases.steps(), ({}, {"norm": "row"}, {"norm": "row", "per": "step"}, {"binary": True})
    everything = [([sort], list("abcd"), o) for sort in ("a.b", "a.c") for o in options]
    everything += [
        (["a.b"], list("bacd"), {}),
        (["a.b"], list("cbad"), {}),
        (["a.b"], list("abcd"), {"memory_limit": 1}),
    ]
    arguments = {**tensors(g), "size": 6, "dtype": DOUBLE}
    compositions: list[Callable[[bases.Basis], bases.Basis]] = [
        lambda basis: basis,
        lambda basis: bases.Identity() + basis,
        lambda basis: basis.T,
        lambda basis: bases.Mix([[2.0]], basis),
        lambda basis: bases.Relations(4) @ basis,
    ]
    for compose in compositions:
        kept = [compose(bases.Walks(sorts, names, **o)).bind(**arguments) for sorts, names, o in everything]
        assert len({id(bound) for bound in kept}) == len(kept)
        again = [compose(bases.Walks(sorts, names, **o)).bind(**arguments) for sorts, names, o in everything]
        assert all(first is second for first, second in zip(kept, again, strict=True)), "but for the same ones"
    b_a, b_c = kept[-3], kept[-2]
    R = kg.relations(g, 4)
    close(b_a.to_dense(), oracle.product(R, kg.walks(g, [[[[(1, False)], [(0, False)]]]])))
    close(b_c.to_dense(), oracle.product(R, kg.walks(g, [[[[(2, False)], [(1, False)]]]])))


def test_a_smaller_vocabulary_is_refused_after_a_larger_one() -> None:
    call = {"edge_index": TO, "edge_type": KIND, "size": 5}
    for _ in range(2):
        assert bases.Walks(["0"], 3).bind(**call).K == 1
        with pytest.raises(ValueError, match=r"^edge_type: "):
            bases.Walks(["0"], 2).bind(**call)


def test_edges_that_no_sort_names_are_not_seen() -> None:
    g = cases.steps()
    less = [e for e in range(g.E) if g.type[e] != 2]
    few = Graph(6, 6, [g.edges[e] for e in less], g.weight[less], type=[g.type[e] for e in less])
    close(*(bind(cases.walks("a.b ^a.b.^b", norm="sym"), h).to_dense() for h in (g, few)))


# -------------------------------------------------------------------------------------------- counts


def test_how_many_walks_start_and_end() -> None:
    """The number of walks, whatever the weights and the norm."""
    g = cases.steps()
    bound = bind(cases.walks(ALL, norm="sym"), g)
    for k, sort in enumerate(SORTS.values()):
        starts, ends = bound.ends_of(k)
        assert starts.dtype == ends.dtype == DOUBLE
        assert (starts.tolist(), ends.tolist()) == kg.ends(g, sort)
        assert bound.count(k) == sum(kg.ends(g, sort)[0])


def test_a_count_is_by_number() -> None:
    """The basis has the names."""
    basis = bases.Walks({"twice": "a.a", "back": "^a"}, ["a"])
    bound = basis.bind(torch.tensor([[0, 1, 1], [1, 2, 3]]), size=4)
    message = r"^k: expected the number of a sort, got 'back'; that of a name is basis\.names\.index\('back'\)$"
    for ask in (bound.count, bound.ends_of):
        with pytest.raises(ValueError, match=message):
            ask("back")
    assert bound.count(basis.names.index("back")) == 3


def test_binary_ones_where_weights_are_zero() -> None:
    """There is a walk, be its edges as light as they may."""
    g = cases.steps()
    for weight in (g.weight * 0, -g.weight, g.weight):
        bound = bind(cases.walks("a.b (a|^c) c{0,2}", binary=True), g.but(weight=weight))
        close(bound.to_dense(), kg.walks(g, cases.sequences("a.b (a|^c) c{0,2}"), binary=True))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_what_cannot_be_normalised_is_zero(options: dict[str, Any]) -> None:
    """Weights that are zero, or cancel on the way: no NaN, forward or backward."""
    edges = [(0, 1), (0, 1), (1, 2), (1, 3), (2, 3), (3, 0)]
    g = Graph(4, 4, edges, torch.tensor([2.0, -2.0, 0.0, 0.0, 3.0, 1.0], dtype=DOUBLE), type=[0, 0, 1, 1, 1, 0])
    weight = g.weight.clone().requires_grad_()
    a, b, either = ([(0, False)], [(1, False)], [(0, False), (1, False)])
    basis = bases.Walks(["0.1", "1.0", "(0|1)"], 2, **options)
    A = kg.walks(g.but(weight=weight), [[[a, b]], [[b, a]], [[either]]], **options)
    conv = make(basis)
    x = draw(4, 3).requires_grad_()
    y = call(conv, x, g, edge_weight=weight)
    close(y, expected(conv, A, x))
    for slope in grad(y.square().sum(), [x, weight], allow_unused=True, materialize_grads=True):
        assert bool(torch.isfinite(slope).all())


# --------------------------------------------------------------------------------- many walks, few numbers


def dense_ish(M: int = 1500, degree: int = 15) -> Graph:
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(M, (2, M * degree), generator=generator)
    return Graph(M, M, ends.t().tolist(), type=(torch.arange(M * degree) % 2).tolist())


def test_very_many_walks() -> None:
    """A sort of length 6 with more than 10^8 walks: nothing larger than the edges and the features is made."""
    g = dense_ish()
    step, other = [(0, False), (1, False)], [(0, True), (1, True)]
    starts, ends = kg.large_numbers(g, [step, step, other, step, step, other])
    assert sum(starts) == sum(ends) > 10**9
    basis = bases.Walks(["((a|b){2}.(^a|^b)){2}"], ["a", "b"], memory_limit=2**20)
    bound = bind(basis, g)
    assert bound.count(0) == float(sum(starts))
    assert bound.ends_of(0)[0].tolist() == starts
    assert bound.ends_of(0)[1].tolist() == ends
    conv = BasisConv(4, 4, basis, bias=False).double()
    x = torch.ones(g.M, 4, dtype=DOUBLE).requires_grad_()
    for order in ("a_first", "theta_first", "compacted"):
        conv.order = order
        with Largest() as largest:
            y = conv(x, **tensors(g))
            y.sum().backward()
        assert largest.numel <= 20 * g.E, largest.name
        torch.testing.assert_close(
            y, torch.tensor(ends, dtype=DOUBLE)[:, None] * conv.weight[0].sum(0), rtol=1e-9, atol=0
        )


@pytest.mark.parametrize("name", [name for name in OPTIONS if "binary" not in name])
def test_step_by_step(name: str) -> None:
    """Under transforms no walk is counted: every step is applied, with the norm of all."""
    g, x = cases.steps(), draw(2, cases.steps().M, 3)
    conv = make(bases.Walks(["a.b", "^a.(b|c)", "c{0,2}"], list("abcd"), **OPTIONS[name]))
    close(torch.func.vmap(lambda x: call(conv, x, g))(x), call(conv, x, g))


@pytest.mark.parametrize("norm", ["row", "mean", "sym"])
def test_more_walks_than_float32_can_count(norm: str) -> None:
    """10^50 of them: what is normalised is of ordinary size, forward and backward."""
    g = dense_ish(100, 10).but(type=[0] * 1000)
    bound = bind(bases.Walks(["a{50}"], ["a"], norm), g, dtype=torch.float32)
    assert bound.count(0) > 1e49
    W = kg.relation(g, [(0, False)])
    A = torch.eye(100, dtype=DOUBLE)
    for _ in range(50):
        A = A @ W
        A = A / A.sum()
    A = A / {"row": A.sum(1, True), "mean": A.sum(0, True), "sym": (A.sum(1, True) * A.sum(0, True)).sqrt()}[norm]
    x, z = draw(100, 2).float(), draw(1, 100, 2, seed=1).float()
    torch.testing.assert_close(bound.expand(x)[0].double(), A.T @ x.double(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(bound.combine(z).double(), A.T @ z[0].double(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(bound.T.expand(x)[0].double(), A @ x.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "run",
    [
        lambda b: b.to_coo(),
        lambda b: b.edges(),
        lambda b: b.explicit,
    ],
    ids=["to_coo", "edges", "explicit"],
)
def test_what_would_take_too_much_memory(run: Callable[[bases.BoundBasis], Any]) -> None:
    g = dense_ish()
    bound = bind(bases.Walks(["a", "a.b.(a|b){4}"], ["a", "b"], memory_limit=2**20), g)
    with pytest.raises(ValueError, match=r"^sorts: expected .*, got .*; .*memory_limit") as caught:
        run(bound)
    message = str(caught.value)
    assert "a.b.(a|b){4}" in message
    estimate = re.search(r"([\d.e+]+) bytes, for", message)
    assert estimate is not None
    assert 2**20 < float(estimate[1]) <= 2 * 24 * g.M**2, "no more than an entry for each pair"


def test_a_product_of_as_many_bytes_as_are_allowed_is_built() -> None:
    """An entry takes 24: two integers and a number."""
    g = cases.steps()
    with pytest.raises(ValueError, match="memory_limit") as caught:
        bind(bases.Walks(["a.b"], list("abcd"), memory_limit=1), g).edges()
    found = re.search(r"up to ([\d.e+]+) entries, ([\d.e+]+) bytes", str(caught.value))
    assert found is not None
    assert float(found[2]) == pytest.approx(24 * float(found[1]), rel=0.01)
    least = 24 * round(float(found[1]))
    for limit in (least, least - 1):
        bound = bind(bases.Walks(["a.b"], list("abcd"), memory_limit=limit), g)
        with nullcontext() if limit == least else pytest.raises(ValueError, match="memory_limit"):
            bound.edges()


def test_binary_beyond_the_limit() -> None:
    g = dense_ish()
    basis = bases.Walks(["a", "a.b.(a|b){4}"], ["a", "b"], binary=True, memory_limit=2**20)
    conv = make(basis, P=2)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^sorts: expected .*, got .*a\.b\.\(a\|b\)\{4\}.*; .*memory_limit"):
            conv(draw(g.M, 2), **tensors(g))
    few = bases.Walks(["a", "a.b"], ["a", "b"], binary=True, memory_limit=2**24)
    assert bind(few, g).to_coo().values().unique().tolist() == [1]


@pytest.mark.parametrize("limit", [1, 2**10, 2**30])
def test_the_limit_changes_no_result(limit: int) -> None:
    """What is not written out is applied factor by factor."""
    g = cases.steps()
    sorts = "a.b a.b.c b.(a.b|^c).a (a.^b){2} c{0,2}"
    for norm in (None, "row"):
        bound = bind(cases.walks(sorts, norm=norm, memory_limit=limit), g)
        A, x, z = kg.walks(g, cases.sequences(sorts), norm), draw(6, 3), draw(5, 6, 2)
        close(bound.expand(x), torch.einsum("kmn,mp->knp", A, x))
        close(bound.combine(z), torch.einsum("kmn,kmq->nq", A, z))
        close(bound.T.expand(x), torch.einsum("knm,mp->knp", A, x))


def test_a_narrow_product_is_written_out() -> None:
    """From 40 nodes to one and on to 40: where the product is small it may be made, and results are the same."""
    hub = 80
    edges = [(m, hub) for m in range(3)] + [(hub, 40 + n) for n in range(3)]
    edges += [(40 + n, n) for n in range(40)]
    g = Graph(81, 81, edges, type=[0] * 3 + [1] * 3 + [2] * 40)
    sorts = [[[[(0, False)], [(1, False)], [(2, False)]]], [[[(2, False)], [(0, False)], [(1, False)]]]]
    for limit in (1, 2**30):
        bound = bind(bases.Walks(["a.b.c", "c.a.b"], list("abc"), memory_limit=limit), g)
        close(bound.expand(torch.eye(81, dtype=DOUBLE)).transpose(1, 2), kg.walks(g, sorts))


def test_products_that_are_no_more_work_are_written_out() -> None:
    """Where each node has one way on, six steps are one; weights that learn are left apart."""
    M = 40
    a, b = [(m, (7 * m + 3) % M) for m in range(M)], [(m, m // 2) for m in range(M)]
    weight = 0.5 + torch.rand(2 * M, dtype=DOUBLE)
    g = Graph(M, M, a + b, weight, type=[0] * M + [1] * M)
    A, B = [(0, False)], [(1, False)]
    for learns in (False, True):
        bound = bind(bases.Walks(["a.b.a.b.b.a"], ["a", "b"]), g, edge_weight=weight.clone().requires_grad_(learns))
        entries = bound.work("expand").entries
        assert entries >= 3 * M if learns else entries <= M
        close(bound.to_dense().detach(), kg.walks(g, [[[A, B, A, B, B, A]]]))


def test_costs_grow_with_what_is_not_shared() -> None:
    """64 sorts of length 6: 384 steps, of which 126 differ in what comes before them (or after them)."""
    g = dense_ish(300, 12)
    names = ["a", "b"]
    sorts = [".".join(names[i >> s & 1] for s in range(6)) for i in range(64)]
    bound = bind(bases.Walks(sorts, names, memory_limit=1), g)
    alone = [bind(bases.Walks([sort], names, memory_limit=1), g).work("expand").entries for sort in sorts]
    for b in (bound, bound.T):
        for direction in ("expand", "combine"):
            assert b.work(direction).entries < 0.4 * sum(alone)
            assert b.work(direction).products <= 126 + 64 + 1  # and what gathers where they start
    one = bind(bases.Walks(["a.b.a.b.a.b.a", "a.b.a.b.a.b.b"], names, memory_limit=1), g)
    assert one.work("expand").products <= 8 + 2 + 1
    x = draw(300, 2)
    for k in (0, 21, 63):
        close(list(bound.iterate(x))[k], bind(bases.Walks([sorts[k]], names), g).expand(x)[0], 1e-6)


# ---------------------------------------------------------------------------------------------- bad input

X = torch.ones(5, 3)
TO = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 3]])
KIND = torch.tensor([0, 1, 2, 0])
ABC = ["a", "b", "c"]


def conv(sorts: Any = ("a.b", "c"), relations: Any = ABC, **options: Any) -> BasisConv:
    return BasisConv(3, 2, bases.Walks(sorts, relations, **options))


REFUSED: dict[str, tuple[str, Callable[[], Any]]] = {
    "no sort": ("sorts", lambda: conv([])),
    "no sort, dict": ("sorts", lambda: conv({})),
    "sorts one string": ("sorts", lambda: conv("a.b")),
    "sorts None": ("sorts", lambda: conv(None)),
    "sorts a number": ("sorts", lambda: conv(3)),
    "norm unknown": ("norm", lambda: conv(norm="rw")),
    "norm True": ("norm", lambda: conv(norm=True)),
    "norm a list": ("norm", lambda: conv(norm=["row"])),
    "per unknown": ("per", lambda: conv(per="edge")),
    "per None": ("per", lambda: conv(norm="row", per=None)),
    "binary a word": ("binary", lambda: conv(binary="yes")),
    "binary per step": ("per", lambda: conv(norm="row", per="step", binary=True)),
    "memory_limit negative": ("memory_limit", lambda: conv(memory_limit=-1)),
    "memory_limit a word": ("memory_limit", lambda: conv(memory_limit="1GB")),
    "edge_type missing": ("edge_type", lambda: conv()(X, TO)),
    "edge_type too large": ("edge_type", lambda: conv()(X, TO, None, KIND + 1)),
    "edge_type negative": ("edge_type", lambda: conv()(X, TO, None, KIND - 1)),
    "edge_type negative, any id": ("edge_type", lambda: conv(["0.1"], None)(X, TO, None, KIND - 1)),
    "edge_type too short": ("edge_type", lambda: conv()(X, TO, None, KIND[:3])),
    "edge_type float": ("edge_type", lambda: conv()(X, TO, None, KIND.float())),
    "edge_weight too short": ("edge_weight", lambda: conv()(X, TO, torch.ones(3), KIND)),
    "edge_weight too short, binary": ("edge_weight", lambda: conv(binary=True)(X, TO, torch.ones(3), KIND)),
    "edge_weight (E, K)": ("edge_weight", lambda: conv()(X, TO, torch.ones(4, 2), KIND)),
    "edge_weight (E, K), per step": (
        "edge_weight",
        lambda: conv(norm="row", per="step")(X, TO, torch.ones(4, 2), KIND),
    ),
    "edge_index missing": ("edge_index", lambda: conv()(X)),
    "edge_index too large": ("edge_index", lambda: conv()(X[:3], TO, None, KIND)),
    "bipartite": ("graph", lambda: conv()((X, X[:4]), TO, None, KIND)),
    "bipartite, by size": ("graph", lambda: conv()((X, None), TO, None, KIND, size=(5, 4))),
    "bipartite, one step": ("graph", lambda: conv(["a"])((X, None), TO, None, KIND, size=(5, 7))),
    "x of other width": ("x", lambda: conv()(X[:, :2], TO, None, KIND)),
}


@pytest.mark.parametrize(("argument", "run"), REFUSED.values(), ids=REFUSED)
def test_refused(argument: str, run: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=rf"^({argument}): expected .*, got .*; .+") as caught:
        run()
    assert len(str(caught.value)) < 400


def test_refused_every_time() -> None:
    layer, kind = conv(norm="row"), KIND.clone()
    right = layer(X, TO, None, kind)
    for wrong in (3, -1):
        kind[1] = wrong
        for _ in range(2):
            with pytest.raises(ValueError, match=r"^edge_type: "):
                layer(X, TO, None, kind)
        kind[1] = 1
        close(layer(X, TO, None, kind), right)


def test_fine_after_all() -> None:
    """Near misses that are right."""
    close(conv()(X, TO[:, :0], None, KIND[:0]), torch.zeros(5, 2))
    assert conv(["a{0,1}"])(X, TO[:, :0], None, KIND[:0]).shape == (5, 2)
    assert conv(binary=True, norm="row")(X.expand(0, 5, 3), TO, None, KIND).shape == (0, 5, 2)
    assert conv(["c.c.c.c"])(X, TO, None, KIND).count_nonzero() == 0, "no two edges of it join"
    many = BasisConv(3, 2, bases.Walks(["7.99999"], 10**5))
    assert many(X, TO, None, KIND * 49_999).count_nonzero() == 0
    identity = bind(bases.Walks(["a{0,1}"], ["a"]), Graph(3, 3, [], type=[]))
    close(identity.to_dense(), torch.eye(3, dtype=DOUBLE)[None])


def test_cycles() -> None:
    """Round a ring of three: after each third step one is back."""
    ring = Graph(3, 3, [(0, 1), (1, 2), (2, 0)], type=[0, 0, 0])
    turn = oracle.matrix(3, 3, ring.edges, torch.ones(3))
    A = bind(bases.Walks(["a{3}", "a{30}", "a{31}", "(a.^a){7}", "a{0,4}"], ["a"]), ring).to_dense()
    eye = torch.eye(3, dtype=DOUBLE)
    close(A, torch.stack([eye, eye, turn, eye, 2 * eye + 2 * turn + turn.T]))


def test_ends_are_turned_with_the_walks() -> None:
    bound = bind(cases.walks("a.b ^b.a"), cases.steps())
    starts, ends = bound.ends_of(0)
    close(bound.T.ends_of(0)[0], ends)
    close(bound.T.ends_of(0)[1], starts)
    assert bound.T.T.count(1) == bound.count(1)


@pytest.mark.parametrize("norm", [None, "row", "mean", "sym"])
def test_a_bound_basis_sees_its_weights_learn(norm: str | None) -> None:
    """Steps of an optimizer change weights in place; and a gradient passes at each evaluation."""
    g, x = cases.steps(), draw(6, 2)
    weight = g.weight.clone().requires_grad_()
    basis = cases.walks("a.b (a|^b){0,2}", norm=norm)
    bound = bind(basis, g, edge_weight=weight)
    for _ in range(2):
        now = bind(basis, g.but(weight=weight.detach().clone()))
        close(bound.expand(x), now.expand(x))
        close(bound.combine(bound.expand(x)), now.combine(now.expand(x)))
        bound.expand(x).sum().backward()
        assert weight.grad is not None
        with torch.no_grad():
            weight *= torch.rand(g.E, dtype=DOUBLE) + 0.5


def test_a_subclass_is_told_apart_by_what_it_holds() -> None:
    class Scaled(bases.Walks):
        def __init__(self, scale: float) -> None:
            super().__init__(["a"], ["a", "b", "c", "d"])
            self.scale = scale

    arguments = {**tensors(cases.steps()), "size": 6}
    assert Scaled(2.0).bind(**arguments) is not Scaled(3.0).bind(**arguments)


@pytest.mark.parametrize("kind", [theta.Full, lambda: theta.Separable(2)], ids=["Full", "Separable"])
@pytest.mark.parametrize("order", ["a_first", "theta_first", "compacted"])
def test_autocast_gives_its_dtype_whatever_the_order(order: str, kind: Callable[[], theta.Theta]) -> None:
    call = tensors(cases.steps().but(weight=None), torch.float32)
    for basis in (cases.walks("a.b ^b.a c"), bases.Relations(4)):
        conv = BasisConv(3, 4, basis, kind(), order=order)
        with torch.autocast("cpu", torch.bfloat16):
            y = conv(draw(6, 3).float(), **call)
        assert y.dtype == torch.bfloat16
        y.float().sum().backward()
        torch.testing.assert_close(y.float(), conv(draw(6, 3).float(), **call), rtol=0.1, atol=0.1)


def test_weights_that_are_no_numbers_pass_through() -> None:
    g = cases.steps()
    weight = g.weight.clone()
    weight[0] = torch.nan
    for sorts in ("a b c", "c b a"):
        assert bind(cases.walks(sorts, norm="row"), g, edge_weight=weight).expand(draw(6, 1)).isnan().any()


def test_what_leads_nowhere_costs_nothing() -> None:
    """Relations whose ends do not meet: the sorts stay, as zeros, forward and backward."""
    g = Graph(6, 6, [(0, 1), (1, 2), (4, 5)], None, type=[0, 1, 2])
    bound = bind(bases.Walks(["a.c.b", "a.b", "c.c"], ["a", "b", "c"]), g)
    assert bound.forward.num_ends == bound.backward.num_ends == 1
    A = torch.zeros(3, 6, 6, dtype=DOUBLE)
    A[1, 0, 2] = 1
    close(bound.to_dense(), A)
    close(bound.to_coo().to_dense(), A)
    nowhere = BasisConv(2, 3, bases.Walks(["a.c"], ["a", "b", "c"]), order="compacted", bias=False).double()
    x = draw(6, 2).requires_grad_()
    call = tensors(g)
    for path in ("compacted", "a_first", "theta_first"):
        y = take(nowhere, path)(x, **call)
        y.sum().backward()
        assert not y.any()
        assert not x.grad.any()
        assert not nowhere.weight.grad.any()


@pytest.mark.parametrize("norm", [None, "row"])
@pytest.mark.sweep(1)
def test_sorts_that_start_apart_write_no_full_rows(norm: str | None) -> None:
    """Each starts at a few nodes of many: no array has a row for each node and sort."""
    N, names = 5000, [str(r) for r in range(40)]
    edges = [(100 * r + i, 100 * r + i + 50) for r in range(40) for i in range(20)]
    g = Graph(N, N, edges, None, type=[r for r in range(40) for _ in range(20)])
    bound = bind(bases.Walks([f"{r}.^{r}.{r}" for r in names], names, norm), g)
    for side in ("target", "source"):
        compact = bound.compact(side)
        assert compact is not None
        with Largest() as mode:
            y = compact.run(draw(N, 4).requires_grad_(), draw(40, 1, 4, 4).requires_grad_())
            y.sum().backward()
        assert mode.numel <= 2 * N * 4
    assert bound.work("combine").rows < 3 * N


def test_a_sort_of_other_relations_is_refused() -> None:
    sort = bases.Walks(["b"], ["a", "b"]).sorts[0]
    with pytest.raises(ValueError, match=r"^sorts: expected relations from 0 to 0, got 1"):
        bases.Walks([sort], ["c"])


def test_long_chains_share_what_comes_again() -> None:
    """From the same rows a step is the same matrix, which is held once."""
    g = dense_ish(60, 4).but(type=[0] * 240)
    bound = bind(bases.Walks(["(a|^a).(a{2}){100}"], ["a"], "row", "step"), g)
    parts = {id(node.part) for node in bound.forward.nodes}
    assert len(parts) < 30 < len(bound.forward.nodes)
    W = kg.relation(g, [(0, False)])
    step, first = W / W.sum(1, True).clamp(min=1e-300), W + W.T
    A = (first / first.sum(1, True)) @ torch.linalg.matrix_power(step, 200)
    close(bound.to_dense()[0], A)


def test_merged_products_keep_within_the_limit() -> None:
    g = Graph(3, 3, [(0, 1), (1, 2)], None, type=[0, 1])
    assert len(bind(bases.Walks(["a.b"], ["a", "b"]), g).forward.nodes) == 1
    assert len(bind(bases.Walks(["a.b"], ["a", "b"], memory_limit=10), g).forward.nodes) == 2


def test_it_prints_its_arguments() -> None:
    basis = bases.Walks(["a.b"], ["a", "b"], "row", "step", memory_limit=10)
    assert repr(basis) == "Walks(['a.b'], relations=<2 names>, norm='row', per='step', memory_limit=10)"


@pytest.mark.parametrize("norm", ["row", "mean", "sym"])
def test_walks_too_light_for_float32(norm: str) -> None:
    """Forty steps of weight 1e-3: what is normalised is of ordinary size."""
    g = dense_ish(30, 4).but(type=[0] * 120)
    weight = torch.full((120,), 1e-3)
    light = bind(bases.Walks(["a{40}"], ["a"], norm), g, edge_weight=weight, dtype=torch.float32)
    exact = bind(bases.Walks(["a{40}"], ["a"], norm), g, edge_weight=weight.double())
    torch.testing.assert_close(light.to_dense().double(), exact.to_dense(), rtol=1e-3, atol=1e-6)


def test_walks_that_no_float_can_count_are_refused_with_weights_too() -> None:
    g = dense_ish(30, 10).but(type=[0] * 300)
    for weight in (None, torch.ones(300, dtype=DOUBLE)):
        with pytest.raises(ValueError, match=r"^sorts: expected walks that a float64 can count"):
            bind(bases.Walks(["a{400}"], ["a"], "mean"), g.but(weight=weight)).expand(draw(30, 1))
