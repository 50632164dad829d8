"""Random graphs, relations, sorts, norms, orders: always what all walks by enumeration, and dense products, say."""

import torch
from hypothesis import assume, given, settings, strategies as st
from torch import Tensor

from pyg_basisconv import bases
from pyg_basisconv.walks import parse
from tests import cases
from tests.contract import DOUBLE, THETAS, bind, check_gradients, close, draw
from tests.oracle import Graph
from tests.walks import oracle as kg

R = 3
NORMS = (None, "mean", "row", "sym")
PATHS = ("auto", "a_first", "theta_first", "phi", "compacted", "mixed", "message")
Written = tuple[str, kg.Sort]  # how a sort is written, and what it is


@st.composite
def graphs(draw_: st.DrawFn, bipartite: bool = False) -> Graph:
    M = draw_(st.integers(1, 5), label="M")
    N = draw_(st.integers(1, 5), label="N") if bipartite else M
    edge = st.tuples(st.integers(0, M - 1), st.integers(0, N - 1), st.integers(0, R - 1))
    E = draw_(st.integers(0, 14))
    edges = draw_(st.lists(edge, min_size=E, max_size=E), label="edges")
    values = st.one_of(st.floats(0.1, 3), st.just(0.0))
    weights = draw_(st.none() | st.lists(values, min_size=len(edges), max_size=len(edges)), label="weights")
    weight = None if weights is None else torch.tensor(weights, dtype=DOUBLE)
    return Graph(M, N, [(m, n) for m, n, _ in edges], weight, type=[r for _, _, r in edges])


def product(first: kg.Sort, second: kg.Sort) -> kg.Sort:
    return [a + b for a in first for b in second]


def chain(parts: list[Written]) -> Written:
    total: kg.Sort = [[]]
    for _, sort in parts:
        total = product(total, sort)
    return ".".join(text for text, _ in parts), total


class Choice(str):
    """How a choice is written, and between what."""

    parts: list[Written]


def written(text: str, sort: kg.Sort, parts: list[Written]) -> Written:
    """What is a choice if there are parts; a choice within a choice is one with it."""
    if parts:
        text = Choice(text)
        text.parts = parts
    return text, sort


def parts_of(one: Written) -> list[Written]:
    return one[0].parts if isinstance(one[0], Choice) else []


def choice(parts: list[Written]) -> Written:
    """Those that are one step are one step together."""
    flat = [one for part in parts for one in parts_of(part) or [part]]
    single = [sort[0][0] for _, sort in flat if len(sort) == 1 and len(sort[0]) == 1]
    several = [sequence for _, sort in flat if not (len(sort) == 1 and len(sort[0]) == 1) for sequence in sort]
    together = [[[way for step in single for way in step]]] if single else []
    return written("(" + "|".join(text for text, _ in parts) + ")", together + several, flat)


def repeat(part: Written, least: int, more: int) -> Written:
    most = max(1, least + more)
    total: kg.Sort = []
    power: kg.Sort = [[]]
    for times in range(most + 1):
        total = total + power if times >= least else total
        power = product(power, part[1])
    return written(f"({part[0]}){{{least},{most}}}", total, parts_of(part) if least == most == 1 else [])


def turned(part: Written) -> Written:
    sort = [[[(r, not inverse) for r, inverse in step] for step in reversed(sequence)] for sequence in part[1]]
    return written(f"^({part[0]})", sort, [turned(one) for one in parts_of(part)])


relation = st.tuples(st.integers(0, R - 1), st.booleans())
sorts: st.SearchStrategy[Written] = st.recursive(
    relation.map(lambda way: ("^" * way[1] + str(way[0]), [[[way]]])),
    lambda part: st.one_of(
        st.lists(part, min_size=2, max_size=3).map(chain),
        st.lists(part, min_size=2, max_size=2).map(chain),
        st.lists(part, min_size=2, max_size=3).map(choice),
        st.builds(repeat, part, st.integers(0, 2), st.integers(0, 1)),
        part.map(turned),
    ),
    max_leaves=5,
).filter(lambda written: len(written[1]) <= 8 and max(map(len, written[1])) <= 5)
families = st.lists(sorts, min_size=1, max_size=4)


def brief(g: Graph, family: list[Written]) -> bool:
    """Whether all walks can be listed in no time."""
    return all(sum(kg.large_numbers(g, sequence)[0]) <= 500 for _, sort in family for sequence in sort)


def dense(g: Graph, sort: kg.Sort, norm: str | None, per: str, binary: bool) -> Tensor:
    """By products of matrices, and not by walks."""
    unit = g.but(weight=None)

    def products(h: Graph, norm: str | None) -> Tensor:
        total = torch.zeros(g.M, g.M, dtype=DOUBLE)
        for sequence in sort:
            term = torch.eye(g.M, dtype=DOUBLE)
            for step in sequence:
                term = term @ kg.relation(h, step, norm)
            total = total + term
        return total

    if per == "step":
        return products(g, norm)
    count = products(unit, None)
    A = products(g, None)
    if binary:
        count = A = (count > 0).double()
    rows, columns = A.sum(1, keepdim=True), A.sum(0, keepdim=True)
    below = {
        None: torch.ones_like(A),
        "row": rows.expand_as(A),
        "mean": count.sum(0, keepdim=True).expand_as(A),
        "sym": (rows * columns).sqrt(),
    }[norm]
    return torch.where(below > 0, A / torch.where(below > 0, below, 1), 0)


@settings(max_examples=40)
@given(
    g=graphs(),
    family=families,
    norm=st.sampled_from(NORMS),
    per=st.sampled_from(["walk", "step"]),
    binary=st.booleans(),
    limit=st.sampled_from([1 << 30, 1 << 12]),
)
def test_norms(g: Graph, family: list[Written], norm: str | None, per: str, binary: bool, limit: int) -> None:
    """All norms, per walk and per step, against all walks, and against dense products."""
    assume(brief(g, family))
    binary = binary and per == "walk"
    basis = bases.Walks([text for text, _ in family], R, norm, per, binary, limit)
    bound = bind(basis, g)
    for k, (_, sort) in enumerate(family):
        A = kg.walk(g, sort, norm, per, binary)
        close(A, dense(g, sort, norm, per, binary))
        close(bound.to_dense()[k], A)
    x, z = draw(2, g.M, 2), draw(basis.K, g.M, 2, seed=1)
    A = bound.to_dense()
    close(bound.combine(z), torch.einsum("kmn,kmq->nq", A, z))
    close(bound.each(z), torch.einsum("kmn,kmq->knq", A, z))
    close(bound.T.expand(x), torch.einsum("kmn,bnp->kbmp", A, x))


@settings(max_examples=25)
@given(g=graphs(), family=st.lists(sorts, min_size=2, max_size=5), norm=st.sampled_from(NORMS))
def test_what_sorts_share_changes_nothing(g: Graph, family: list[Written], norm: str | None) -> None:
    """Together, alone, and in another order; entry for entry in the same bits where nothing is rounded."""
    texts = [text for text, _ in family]
    ones = g.but(weight=None)
    together = bind(bases.Walks(texts, R, norm), g).to_dense()
    close(bind(bases.Walks(texts[::-1], R, norm), g).to_dense().flip(0), together)
    counts = bind(bases.Walks(texts, R), ones).to_dense()
    for k, text in enumerate(texts):
        close(bind(bases.Walks([text], R, norm), g).to_dense()[0], together[k])
        assert torch.equal(bind(bases.Walks([text], R), ones).to_dense()[0], counts[k])


@settings(max_examples=40)
@given(written=sorts)
def test_what_is_written_is_what_is_meant(written: Written) -> None:
    """The sequences, as a sum: in any order, each as often; and again when written out."""
    text, sort = written
    meant = sorted(tuple(tuple(sorted(step)) for step in sequence) for sequence in sort)
    found = parse(text, R)
    assert sorted(found.sequences) == meant
    assert sorted(parse(found.text, R).sequences) == meant


@settings(max_examples=40)
@given(data=st.data(), g=graphs(bipartite=True), norm=st.sampled_from(NORMS), loop=st.booleans(), inverse=st.booleans())
def test_relations(data: st.DataObject, g: Graph, norm: str | None, loop: bool, inverse: bool) -> None:
    """Values and gradients, of the weights, too, by every order that there is."""
    square = g.M == g.N
    inverse, loop = inverse and square, loop and square
    kind = data.draw(st.sampled_from(["Full", "Grouped", "Separable", "Heads", "Depthwise"]), label="theta")
    paths = [p for p in PATHS if p not in {"Heads": ("compacted", "mixed"), "Separable": ()}.get(kind, ("mixed",))]
    basis = bases.Relations(R, norm, inverse, loop)
    check_gradients(basis, g, lambda g: kg.relations(g, R, norm, inverse, loop), kind, paths, 1e-9)


@settings(max_examples=25)
@given(data=st.data(), g=graphs(), family=families, norm=st.sampled_from(NORMS), per=st.sampled_from(["walk", "step"]))
def test_layers_of_walks(data: st.DataObject, g: Graph, family: list[Written], norm: str | None, per: str) -> None:
    assume(brief(g, family))
    kind = data.draw(st.sampled_from(sorted(THETAS)), label="theta")
    path = data.draw(st.sampled_from(["auto", "a_first", "theta_first", "phi", "message"]), label="path")
    basis = bases.Walks([text for text, _ in family], R, norm, per)
    check_gradients(basis, g, lambda g: kg.walks(g, [sort for _, sort in family], norm, per), kind, [path], 1e-9)


def test_the_registry_is_difficult_enough() -> None:
    """Its graph of walks has repeats within a relation, loops, an empty relation, and nodes with several ways on."""
    g = cases.steps()
    keys = list(zip(g.edges, g.type, strict=True))
    assert len(set(keys)) < len(keys)
    assert any(m == n for m, n in g.edges)
    assert 3 not in g.type
    for r in range(3):
        out = [m for (m, _), kind in keys if kind == r]
        assert max(out.count(m) for m in out) > 1
