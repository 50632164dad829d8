"""Families of matrices with drawn arguments, beside their oracles, and graphs that they are bound to."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from pyg_basisconv import bases
from pyg_basisconv.bases import Basis
from tests import oracle
from tests.oracle import Graph
from tests.walks import oracle as kg
from tests.walks.test_properties import sorts


@dataclass
class Family:
    """A basis, its matrices on a graph, and what the graph must be."""

    basis: Basis
    matrices: Callable[[Graph], Tensor]
    square: bool = False
    types: int = 0  # of edges; 0 for none
    columns: int = 0  # of the weights; 0 for one weight per edge
    positive: bool = False  # weights, or degrees, are not negative
    local: bool = True  # only edges and loops join what is not zero
    reads_target: bool = False
    batch: bool = False


norms = st.sampled_from([None, "sym", "mean", "rw"])


@st.composite
def adjacencies(draw: st.DrawFn) -> Family:
    norm = draw(norms)
    loops = draw(st.sampled_from([False, True, 0.5, 2, 0]))
    existing, diagonal = draw(st.sampled_from(["keep", "add", "replace"])), draw(st.sampled_from([0.0, 0.0, 0.3, -1]))
    told = False if loops == 0 and existing != "replace" else loops  # a loop of weight 0 is none
    return Family(
        bases.Adjacency(norm, loops, existing, diagonal),
        lambda g: oracle.adjacency(g, norm, told, existing, diagonal),
        square=norm == "sym" or bool(loops) or existing == "replace" or bool(diagonal),
        positive=norm == "sym",
    )


@st.composite
def laplacians(draw: st.DrawFn) -> Family:
    norm = draw(st.sampled_from([None, "sym", "rw"]))
    return Family(bases.Laplacian(norm), lambda g: oracle.laplacian(g, norm), True, positive=norm == "sym")


@st.composite
def chebyshevs(draw: st.DrawFn) -> Family:
    K, norm = draw(st.integers(1, 4)), draw(st.sampled_from(["sym", "rw", None]))
    eigen = draw(st.sampled_from([None, None, 1.7, 3]))
    return Family(
        bases.Chebyshev(K, norm, eigen), lambda g: oracle.chebyshev(g, K, norm, eigen), True, positive=norm != "rw"
    )


@st.composite
def powers(draw: st.DrawFn) -> Family:
    K, of = draw(st.integers(1, 4)), draw(st.one_of(adjacencies(), laplacians()))
    return Family(bases.Powers(K, of.basis), lambda g: oracle.powers(of.matrices(g), K), True, positive=of.positive)


@st.composite
def wavelets(draw: st.DrawFn) -> Family:
    J, low_pass, of = draw(st.integers(1, 3)), draw(st.booleans()), draw(adjacencies())
    return Family(
        bases.Wavelets(J, of.basis, low_pass),
        lambda g: oracle.wavelets(of.matrices(g), J, low_pass),
        True,
        positive=of.positive,
    )


@st.composite
def diffusions(draw: st.DrawFn) -> Family:
    K, way = draw(st.integers(1, 3)), draw(st.sampled_from(["both", "out", "in"]))
    return Family(bases.Diffusion(K, way), lambda g: oracle.diffusion(g, K, way), True)


@st.composite
def own_edges(draw: st.DrawFn) -> Family:
    K, shared = draw(st.integers(1, 3)), draw(st.booleans())
    return Family(bases.Edges(K), lambda g: oracle.edges(g, K), types=0 if shared else K, columns=K if shared else 0)


@st.composite
def relations(draw: st.DrawFn) -> Family:
    R, norm = draw(st.integers(1, 3)), draw(st.sampled_from([None, "mean", "row", "sym"]))
    inverse, loop = draw(st.booleans()), draw(st.booleans())
    return Family(
        bases.Relations(R, norm, inverse, loop),
        lambda g: kg.relations(g, R, norm, inverse, loop),
        square=inverse or loop,
        types=R,
        positive=norm == "sym",
        reads_target=loop,
    )


def few(written: tuple[str, kg.Sort]) -> bool:
    return len(written[1]) <= 3 and all(len(sequence) <= 3 for sequence in written[1])


@st.composite
def walks(draw: st.DrawFn) -> Family:
    family = draw(st.lists(sorts.filter(few), min_size=1, max_size=2))
    norm = draw(st.sampled_from([None, "mean", "row", "sym"]))
    per, binary = draw(st.sampled_from(["walk", "step"])), draw(st.booleans())
    binary = binary and not (per == "step" and norm is not None)
    limit = draw(st.sampled_from([1 << 30, 1 << 12]))
    return Family(
        bases.Walks([text for text, _ in family], 3, norm, per, binary, limit),
        lambda g: kg.walks(g, [sort for _, sort in family], norm, "walk" if binary else per, binary),
        square=True,
        types=3,
        positive=True,
    )


@st.composite
def positions(draw: st.DrawFn) -> Family:
    kind = draw(st.sampled_from(["Identity", "Degree", "Complete", "Causal", "start", "end", "Shifts"]))
    if kind == "Shifts":
        offsets = draw(st.lists(st.integers(-3, 3), min_size=1, max_size=3, unique=True))
        return Family(bases.Shifts(None, offsets), lambda g: oracle.shifts(g, offsets), local=False)
    return {
        "Identity": Family(bases.Identity(), oracle.identity, True, reads_target=True),
        "Degree": Family(bases.Degree(), oracle.degree, True, reads_target=True),
        "Complete": Family(bases.Complete(), oracle.complete, local=False),
        "Causal": Family(bases.Causal(), oracle.causal, True, local=False),
        "start": Family(bases.Causal("start"), oracle.causal, local=False),
        "end": Family(bases.Causal("end"), lambda g: oracle.causal(g, "end"), local=False),
    }[kind]


leaves = st.one_of(
    adjacencies(),
    laplacians(),
    chebyshevs(),
    powers(),
    diffusions(),
    own_edges(),
    relations(),
    walks(),
    positions(),
    wavelets(),
)


def together(basis: Basis, matrices: Callable[[Graph], Tensor], *parts: Family) -> Family:
    """What is made of families: it asks for all that its parts ask for."""
    return Family(
        basis,
        matrices,
        square=True,
        types=min((part.types for part in parts if part.types), default=0),
        positive=any(part.positive for part in parts),
        local=all(part.local for part in parts),
        reads_target=any(part.reads_target for part in parts),
    )


def plain(*parts: Family) -> bool:
    """Whether the weights of a call suit all of them."""
    return not any(part.columns for part in parts) and len({part.types for part in parts if part.types}) < 2


def summed(parts: tuple[Family, Family]) -> Family:
    a, b = parts
    return together(a.basis + b.basis, lambda g: oracle.concat(a.matrices(g), b.matrices(g)), a, b)


def multiplied(parts: tuple[Family, Family]) -> Family:
    a, b = parts
    return together(a.basis @ b.basis, lambda g: oracle.product(a.matrices(g), b.matrices(g)), a, b)


def transposed(a: Family) -> Family:
    return together(a.basis.T, lambda g: oracle.transpose(a.matrices(g)), a)


@st.composite
def mixtures(draw: st.DrawFn, of: st.SearchStrategy[Family]) -> Family:
    a = draw(of.filter(lambda family: not family.columns))
    values = st.sampled_from([0.0, 1.0, -2.0, 0.5])
    rows = draw(st.lists(st.lists(values, min_size=a.basis.K, max_size=a.basis.K), min_size=1, max_size=2))
    return together(bases.Mix(rows, a.basis), lambda g: oracle.mix(rows, a.matrices(g)), a)


def small(family: Family) -> bool:
    return family.basis.K <= 8


families: st.SearchStrategy[Family] = st.one_of(
    leaves,
    leaves,
    st.recursive(
        leaves.filter(lambda family: not family.columns),
        lambda part: st.one_of(
            st.tuples(part, part).filter(lambda parts: plain(*parts)).map(summed),
            st.tuples(part, part).filter(lambda parts: plain(*parts)).map(multiplied),
            part.map(transposed),
            mixtures(part),
        ),
        max_leaves=3,
    ).filter(small),
)


@st.composite
def graphs(draw: st.DrawFn, family: Family, values: str = "plain") -> Graph:
    """A graph that a family may be bound to: with loops, edges that repeat, nodes alone, no edges, or no nodes."""
    M = draw(st.integers(0, 5))
    N = M if family.square else draw(st.one_of(st.just(M), st.integers(0, 5)))
    E = draw(st.integers(0, 7)) if M and N else 0
    ends = st.tuples(st.integers(0, max(M - 1, 0)), st.integers(0, max(N - 1, 0)))
    edges = draw(st.lists(ends, min_size=E, max_size=E))
    weight = None
    if family.columns or draw(st.booleans()):
        shape = (E, family.columns) if family.columns else (E,)
        weight = torch.rand(
            shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))), dtype=torch.float64
        )
        if draw(st.booleans()):
            weight[::2] = 0.0
        if values == "huge":
            weight[1::2] *= 1e30
        if values == "negative" and not family.positive:
            weight[1::3] *= -1
    kinds = draw(st.lists(st.integers(0, family.types - 1), min_size=E, max_size=E)) if family.types else None
    return Graph(M, N, edges, weight, type=kinds)
