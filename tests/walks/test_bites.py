"""The checks of relations and walks can fail: families with one thing wrong do not pass them."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pyg_basisconv import bases
from pyg_basisconv.bases import Basis, BoundBasis, EdgeList
from pyg_basisconv.graph import Graph
from pyg_basisconv.reading import read_graph
from tests import cases, contract
from tests.bases.test_bites import (
    DetachedWeight,
    HalfGradient,
    Random,
    RoughSum,
    Stale,
    Wrong,
    WrongTranspose,
    merge_repeats,
    rewrite,
    turn,
)
from tests.contract import Matrices
from tests.oracle import Graph as Given
from tests.walks import oracle as kg
from tests.walks.test_walks import of_walks


class OtherTypes(Basis):
    """A family that sees other types than those that were given."""

    def __init__(self, basis: Basis, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__(basis.K)
        self.part, self.change = basis, change

    def on(self, graph: Graph) -> BoundBasis:
        s = graph.structure
        other = read_graph(
            torch.stack([s.source, s.target]),
            graph.weight,
            self.change(s.type),
            size=(graph.M, graph.N),
            dtype=graph.dtype,
        )
        return self.part.build(other)


def members(basis: Basis, order: list[int]) -> Basis:
    """Some members of a family, in some order."""
    return bases.Mix(torch.eye(basis.K)[order], basis)


def scaled(basis: Basis, factors: list[float]) -> Basis:
    return bases.Mix(torch.diag(torch.tensor(factors)), basis)


def ones(e: EdgeList) -> EdgeList:
    return e._replace(weight=torch.ones_like(e.weight))


def halves_backwards(e: EdgeList) -> EdgeList:
    """The inverse relations not turned round."""
    inverse = e.type >= 3
    ends = torch.where(inverse, e.target, e.source), torch.where(inverse, e.source, e.target)
    return EdgeList(e.type, *ends, e.weight)


def relations(*args, **options) -> Basis:
    return bases.Relations(3, *args, **options)


def of_relations(*args, **options) -> Matrices:
    return lambda g: kg.relations(g, 3, *args, **options)


def typed() -> Given:
    return cases.typed(4)


def unweighted() -> Given:
    return cases.typed(4, weighted=False)


R, W = relations, cases.walks
WRONG: dict[str, tuple[Callable[[], Basis], Callable[[], Given], Matrices, str]] = {
    # what is wrong: (the wrong basis, graph, right matrices, the checks that must fail)
    "every edge turned": (
        lambda: Wrong(R(), rewrite(turn)),
        typed,
        of_relations(),
        "members written_out orders gradients layouts",
    ),
    "inverse not turned": (
        lambda: Wrong(R(inverse=True), rewrite(halves_backwards)),
        typed,
        of_relations(inverse=True),
        "members written_out orders gradients strides",
    ),
    "inverse is the family once more": (lambda: R() + R(), typed, of_relations(inverse=True), "members orders"),
    "inverse normalised before it is turned": (
        lambda: R("row") + R("row").T,
        typed,
        of_relations("row", inverse=True),
        "members orders gradients",
    ),
    "inverse first": (
        lambda: members(R(inverse=True), [3, 4, 5, 0, 1, 2]),
        typed,
        of_relations(inverse=True),
        "members written_out",
    ),
    "inverses beside their relations": (
        lambda: members(R(inverse=True), [0, 3, 1, 4, 2, 5]),
        typed,
        of_relations(inverse=True),
        "members orders",
    ),
    "normalised over the other side": (lambda: R("mean"), unweighted, of_relations("row"), "members orders precision"),
    "normalised over all relations": (
        lambda: MeanOfAll(),
        unweighted,
        of_relations("mean"),
        "members written_out orders",
    ),
    "mean over the weights of edges": (
        lambda: members(R("row", inverse=True), [3, 4, 5]).T,
        typed,
        of_relations("mean"),
        "members gradients",
    ),
    "sym as row": (lambda: R("row"), typed, of_relations("sym"), "members orders gradients"),
    "relations shifted": (
        lambda: OtherTypes(R(), lambda t: (t + 1) % 3),
        typed,
        of_relations(),
        "members written_out orders layouts",
    ),
    "types sorted": (lambda: OtherTypes(R(), lambda t: t.sort().values), typed, of_relations(), "members orders"),
    "self loop forgotten": (
        lambda: scaled(R("mean", self_loop=True), [1.0, 1.0, 1.0, 0.0]),
        typed,
        of_relations("mean", self_loop=True),
        "members orders",
    ),
    "self loop first": (
        lambda: bases.Identity() + R(),
        typed,
        of_relations(self_loop=True),
        "members written_out orders gradients",
    ),
    "repeats lost": (
        lambda: Wrong(R(), rewrite(merge_repeats)),
        lambda: repeated(),
        of_relations(),
        "members written_out orders",
    ),
    "weights ignored": (lambda: Wrong(R(), rewrite(ones)), typed, of_relations(), "members orders gradients"),
    "no gradient of the weights": (lambda: Wrong(R(), DetachedWeight), typed, of_relations(), "gradients"),
    "half a gradient": (lambda: Wrong(R("row"), HalfGradient), typed, of_relations("row"), "gradients strides"),
    "transpose as it is": (lambda: Wrong(R(), WrongTranspose), typed, of_relations(), "members adjoint"),
    "low precision": (lambda: Wrong(R("mean"), RoughSum), typed, of_relations("mean"), "members precision"),
    "other bits": (lambda: Wrong(R(), Random), typed, of_relations(), "determinism"),
    "types of the first call": (lambda: Stale(R()), typed, of_relations(), "freshness"),
    # ------------------------------------------------------------------------------------------------ walks
    "steps from the end": (lambda: W("^(a.b)"), cases.steps, of_walks("a.b"), "members written_out orders"),
    "walks turned": (
        lambda: W("a.b.c b.c").T,
        cases.steps,
        of_walks("a.b.c b.c"),
        "members written_out orders gradients layouts",
    ),
    "inverse step not turned": (
        lambda: W("a.b.c"),
        cases.steps,
        lambda g: kg.walks(g, [[[A, B, C_]]]),
        "members orders",
    ),
    "per step for the walk": (
        lambda: W("a.b b.c", norm="row", per="step"),
        cases.steps,
        of_walks("a.b b.c", norm="row"),
        "members orders gradients",
    ),
    "the walk for each step": (
        lambda: W("a.b b.c", norm="mean"),
        cases.steps,
        of_walks("a.b b.c", norm="mean", per="step"),
        "members orders gradients",
    ),
    "alternatives normalised apart": (
        lambda: bases.Mix([[1.0, 1.0]], W("a ^c", norm="row", per="step")),
        cases.steps,
        of_walks("(a|^c)", norm="row", per="step"),
        "members orders",
    ),
    "sequences normalised apart": (
        lambda: bases.Mix([[1.0, 1.0]], W("a.b c", norm="row")),
        cases.steps,
        of_walks("(a.b|c)", norm="row"),
        "members orders",
    ),
    "another's prefix": (
        lambda: bases.Walks(["a.c", "a.c"], list("abcd")),
        cases.steps,
        lambda g: kg.walks(g, [[[A, C]], [[B, C]]]),
        "members orders",
    ),
    "another's suffix": (
        lambda: bases.Walks(["a.b", "c.b"], list("abcd")),
        cases.steps,
        lambda g: kg.walks(g, [[[A, B]], [[C, A]]]),
        "members orders",
    ),
    "sorts exchanged": (lambda: W("b.c a.b.c"), cases.steps, of_walks("a.b.c b.c"), "members written_out orders"),
    "one repeat too few": (
        lambda: bases.Walks(["a{2}"], list("abcd")),
        cases.steps,
        of_walks("a{3}"),
        "members orders",
    ),
    "one repeat too many": (
        lambda: bases.Walks(["b.a{1,3}"], list("abcd")),
        cases.steps,
        of_walks("b.a{1,2}"),
        "members orders gradients",
    ),
    "staying forgotten": (
        lambda: bases.Walks(["c{1,2}"], list("abcd")),
        cases.steps,
        of_walks("c{0,2}"),
        "members written_out orders",
    ),
    "only the last of a range": (
        lambda: bases.Walks(["b.a{2}"], list("abcd")),
        cases.steps,
        of_walks("b.a{1,2}"),
        "members orders",
    ),
    "ids shifted": (
        lambda: OtherTypes(W("a.b b.c"), lambda t: (t + 1) % 4),
        cases.steps,
        of_walks("a.b b.c"),
        "members orders layouts",
    ),
    "counted twice": (lambda: scaled(W("a.b b.c"), [2.0, 1.0]), cases.steps, of_walks("a.b b.c"), "members orders"),
    "there and not counted": (
        lambda: W("b.a{1,2} c{0,2}", binary=True),
        lambda: cases.steps(weighted=False),
        of_walks("b.a{1,2} c{0,2}"),
        "members orders",
    ),
    "counted and not there": (
        lambda: W("b.a{1,2} c{0,2}"),
        lambda: cases.steps(weighted=False),
        of_walks("b.a{1,2} c{0,2}", binary=True),
        "members orders",
    ),
    "ones after the norm": (
        lambda: W("b.a{1,2} c{0,2}", norm="row"),
        lambda: cases.steps(weighted=False),
        of_walks("b.a{1,2} c{0,2}", norm="row", binary=True),
        "members orders",
    ),
    "mean over the weights of walks": (
        lambda: W("^b.^a ^c", norm="row").T,
        cases.steps,
        lambda g: kg.walks(g, [[[A, B]], [[C]]], norm="mean"),
        "members orders gradients",
    ),
    "fixed norms": (
        lambda: Wrong(W("a.b", norm="sym"), DetachedWeight),
        cases.steps,
        of_walks("a.b", norm="sym"),
        "gradients",
    ),
    "types of the first call, walks": (lambda: Stale(W("a.b")), cases.steps, of_walks("a.b"), "freshness"),
}
A, B, C, C_ = [(0, False)], [(1, False)], [(2, False)], [(2, True)]


def repeated() -> Given:
    """Edges that repeat within a relation."""
    g = cases.typed(3)
    return g.but(edges=g.edges * 2, weight=torch.cat([g.weight, 2 * g.weight]), type=g.type * 2)


class MeanOfAll(Basis):
    """The mean over all edges into a node, whatever their relation."""

    def __init__(self) -> None:
        super().__init__(3)

    def edges(self, graph: Graph) -> EdgeList:
        count = torch.bincount(graph.target, minlength=graph.N).to(graph.dtype)
        return EdgeList(graph.structure.type, graph.source, graph.target, 1 / count[graph.target])


PAIRS = [(name, check) for name, (*_, checks) in WRONG.items() for check in checks.split()]


@pytest.mark.parametrize(("name", "check"), PAIRS, ids=[f"{name}-{check}" for name, check in PAIRS])
@pytest.mark.sweep(36)
def test_wrong_family_fails(name: str, check: str) -> None:
    basis, graph, matrices, _ = WRONG[name]
    with pytest.raises(AssertionError):
        contract.CHECKS[check](basis(), graph(), matrices)


@pytest.mark.parametrize("check", ["members", "written_out", "adjoint", "orders", "gradients"])
def test_the_right_families_pass(check: str) -> None:
    """What the wrong ones are made with is harmless."""
    for basis, graph, matrices in (
        (OtherTypes(R("row", inverse=True), Tensor.clone), typed, of_relations("row", inverse=True)),
        (members(R(inverse=True), list(range(6))), typed, of_relations(inverse=True)),
        (scaled(R(self_loop=True), [1.0] * 4), typed, of_relations(self_loop=True)),
        (Wrong(R(), rewrite(lambda e: e)), repeated, of_relations()),
        (OtherTypes(W("a.b b.c"), Tensor.clone), cases.steps, of_walks("a.b b.c")),
        (W("^(a.b)").T, cases.steps, of_walks("a.b")),
    ):
        contract.CHECKS[check](basis, graph(), matrices)


def test_the_oracle_is_no_echo() -> None:
    """Its matrices tell everything apart that is to be told apart."""
    g = cases.steps()
    options = [(norm, per) for norm in ("row", "mean", "sym") for per in ("walk", "step")] + [(None, "walk")]
    sorts = cases.sequences("a.b ^(a.b) b.c (a.b|c) b.a{1,2}")
    found = {(i, *o): kg.walk(g, sort, *o) for i, sort in enumerate(sorts) for o in options}
    found |= {(i, "binary"): kg.walk(g, sort, binary=True) for i, sort in enumerate(sorts)}
    pairs = itertools.combinations(found, 2)
    assert not [(a, b) for a, b in pairs if torch.allclose(found[a], found[b])]
