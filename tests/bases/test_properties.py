"""Random sizes, graphs, families, orders and layouts: always the formula."""

import pytest
import torch
from hypothesis import given, strategies as st

from pyg_basisconv import bases
from tests import cases, oracle
from tests.contract import DOUBLE, PATHS, THETAS, bind, close, draw, expected, layouts, make
from tests.oracle import Graph

FAMILIES = {
    "Adjacency": (lambda K: bases.Adjacency(), lambda g, K: oracle.adjacency(g)),
    "mean": (lambda K: bases.Adjacency("mean"), lambda g, K: oracle.adjacency(g, "mean")),
    "rw": (lambda K: bases.Adjacency("rw"), lambda g, K: oracle.adjacency(g, "rw")),
}
SQUARE = {
    "Sum": (
        lambda K: bases.Identity() + bases.Powers(K, bases.Adjacency("sym", 0.5, "add")),
        lambda g, K: oracle.concat(oracle.identity(g), oracle.powers(oracle.adjacency(g, "sym", 0.5, "add"), K)),
    ),
    "Chebyshev": (lambda K: bases.Chebyshev(K), lambda g, K: oracle.chebyshev(g, K)),
    "Chebyshev(None).T": (
        lambda K: bases.Chebyshev(K, None).T,
        lambda g, K: oracle.transpose(oracle.chebyshev(g, K, None)),
    ),
    "Diffusion": (lambda K: bases.Diffusion(K), lambda g, K: oracle.diffusion(g, K)),
    "Product": (
        lambda K: bases.Laplacian("rw") @ bases.Diffusion(K, "in"),
        lambda g, K: oracle.product(oracle.laplacian(g, "rw"), oracle.diffusion(g, K, "in")),
    ),
}


@st.composite
def graphs(draw_: st.DrawFn) -> Graph:
    M = draw_(st.integers(0, 7), label="M")
    N = draw_(st.one_of(st.just(M), st.integers(0, 7)), label="N")
    E = draw_(st.integers(0, 20)) if M and N else 0
    ends = st.tuples(st.integers(0, max(M - 1, 0)), st.integers(0, max(N - 1, 0)))
    edges = draw_(st.lists(ends, min_size=E, max_size=E), label="edges")
    weighted = draw_(st.booleans(), label="weighted")
    # Zeros are weights too.
    values = st.one_of(st.floats(0.1, 3), st.just(0.0))
    weight = torch.tensor(draw_(st.lists(values, min_size=E, max_size=E)), dtype=DOUBLE) if weighted else None
    return Graph(M, N, edges, weight)


@given(data=st.data(), g=graphs(), K=st.integers(1, 4), P=st.integers(1, 5), Q=st.integers(1, 5))
def test_the_formula(data: st.DataObject, g: Graph, K: int, P: int, Q: int) -> None:
    choices = {**FAMILIES, **(SQUARE if g.M == g.N else {})}
    name = data.draw(st.sampled_from([*choices, "typed", "shared"]), label="family")
    if name in choices:
        make_basis, matrices = choices[name]
        basis, A = make_basis(K), matrices(g, K)
    else:
        basis = bases.Edges(K)
        if name == "typed":
            g = g.but(type=data.draw(st.lists(st.integers(0, K - 1), min_size=g.E, max_size=g.E), label="types"))
        else:
            g = g.but(weight=draw(g.E, K))
        A = oracle.edges(g, K)
    kind = data.draw(st.sampled_from(list(THETAS)), label="theta")
    path = data.draw(st.sampled_from(PATHS), label="path")
    options = list(layouts(g))
    _, arguments = options[data.draw(st.integers(0, len(options) - 1), label="layout")]
    B = data.draw(st.sampled_from([(), (0,), (1,), (3,), (2, 2)]), label="B")
    conv = make(basis, kind, path, P, Q, bias=data.draw(st.booleans(), label="bias"))
    x = draw(*B, g.M, conv.in_channels).requires_grad_()
    y = conv(x if g.M == g.N else (x, None), **arguments, size=(g.M, g.N))
    reference = expected(conv, A, x, kind)
    close(y, reference, 1e-9)
    leaves = [x, *conv.parameters()]
    down = draw(*y.shape, seed=1)
    for a, b in zip(torch.autograd.grad(y, leaves, down), torch.autograd.grad(reference, leaves, down), strict=True):
        close(a, b, 1e-9)


@given(g=graphs(), order=st.randoms(use_true_random=False))
def test_the_order_of_the_edges_is_nothing(g: Graph, order) -> None:
    positions = list(range(g.E))
    order.shuffle(positions)
    mixed = g.but(edges=[g.edges[e] for e in positions], weight=None if g.weight is None else g.weight[positions])
    basis = bases.Adjacency("mean") if g.M != g.N else bases.Chebyshev(3) + bases.Adjacency("sym", True, "add")
    a, b = (
        basis.bind(torch.tensor(h.edges).long().reshape(-1, 2).t(), h.weight, size=(h.M, h.N), dtype=DOUBLE).to_dense()
        for h in (g, mixed)
    )
    close(a, b)


def test_the_generator_is_difficult_enough() -> None:
    """The registry's random graph has what its docstring says."""
    g = cases.graph()
    assert len(set(g.edges)) < len(g.edges)
    assert any(m == n for m, n in g.edges)
    assert g.M - 1 not in {m for m, _ in g.edges} | {n for _, n in g.edges}
    assert oracle.adjacency(g)[0].T.ne(oracle.adjacency(g)[0]).any()


def test_arithmetic() -> None:
    """With numbers and with bases; of anything else Python says that it cannot."""
    g = cases.graph()
    A, B = (bind(basis, g).to_dense() for basis in (bases.Powers(2), bases.Chebyshev(2)))
    for basis, matrices in (
        (-bases.Powers(2), -A),
        (2 * bases.Powers(2), 2 * A),
        (bases.Powers(2) * 0.5, 0.5 * A),
        (bases.Powers(2) - bases.Chebyshev(2), A - B),
        (sum([bases.Powers(2), bases.Chebyshev(2)]), torch.cat([A, B])),
    ):
        close(bind(basis, g).to_dense(), matrices)
    for wrong in (
        lambda: bases.Powers(2) + 1,
        lambda: 1 + bases.Powers(2),
        lambda: bases.Powers(2) - 1,
        lambda: bases.Powers(2) * "2",
        lambda: bases.Powers(2) @ 2,
    ):
        with pytest.raises(TypeError, match=r"unsupported operand|can't multiply"):
            wrong()
