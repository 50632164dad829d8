"""Explainers: a mask over the edges that the user gave, which acts on every use that a basis makes of an edge.

The oracle has every entry of every matrix with the edge that it came from, and multiplies what normalisation has made
of it with the mask of this edge.
"""

import copy
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.autograd import grad
from torch_geometric.explain import (
    AttentionExplainer,
    CaptumExplainer,
    Explainer,
    GNNExplainer,
    GraphMaskExplainer,
    PGExplainer,
)
from torch_geometric.explain.algorithm.utils import clear_masks, set_masks

from pyg_basisconv import BasisConv, GridConv, bases, theta
from pyg_basisconv.bases import Basis, BoundBasis
from pyg_basisconv.basis import EdgeList
from pyg_basisconv.convert import convert
from pyg_basisconv.mechanisms import Additive, Dot, Edge
from tests import cases, oracle
from tests.contract import DOUBLE, call, close, draw, expected, make, take, tensors
from tests.mechanisms import oracle as attention_oracle
from tests.oracle import Graph
from tests.walks import oracle as walk_oracle

PATHS = ("auto", "a_first", "theta_first", "message")
ZERO = torch.zeros((), dtype=DOUBLE)


class Entry(NamedTuple):
    """A place, what stands there, and the edge that it came from; None for what is the basis's own."""

    m: int
    n: int
    value: Tensor
    edge: int | None


def written(M: int, N: int, entries: list[Entry], mask: Tensor) -> Tensor:
    """(M, N)"""
    A = torch.zeros(M, N, dtype=DOUBLE)
    for m, n, value, edge in entries:
        A = A + (value if edge is None else value * mask[edge]) * oracle.entry(M, N, m, n)
    return A


def entries(g: Graph, fill: float | None, existing: str) -> list[Entry]:
    """The edges, and loops where they are asked for, before normalisation."""
    own = [Entry(m, n, g.weights[e].double(), e) for e, (m, n) in enumerate(g.edges)]
    if fill is None:
        return own
    found = [entry for entry in own if entry.m != entry.n]
    for node in range(g.N):
        there = [entry for entry in own if entry.m == entry.n == node]
        loop = Entry(node, node, torch.tensor(fill, dtype=DOUBLE), None)
        found += {"keep": there[-1:] or [loop], "add": [*there, loop], "replace": [loop]}[existing]
    return found


def over(value: Tensor, total: Tensor) -> Tensor:
    return value / total if total else ZERO


def adjacency(g: Graph, mask: Tensor, norm=None, loops=None, existing="keep", diagonal=0.0) -> Tensor:
    """(1, M, N)"""
    there = entries(g, loops, existing)
    into = [sum((e.value for e in there if e.n == n), ZERO) for n in range(g.N)]
    out = [sum((e.value for e in there if e.m == m), ZERO) for m in range(g.M)]
    places = [(e.m, e.n) for e in there if e.m != e.n or loops is None]  # loops are one, of whatever they consist
    count = [sum(n == end for _, end in places) + (loops is not None) for n in range(g.N)]

    def normalised(e: Entry) -> Tensor:
        value = e.value * (1 + diagonal * (e.m == e.n))
        if norm == "sym":
            return over(value, (into[e.m] * into[e.n]).sqrt())
        if norm == "mean":
            return value / count[e.n]
        return over(value, out[e.m]) if norm == "rw" else value

    return written(g.M, g.N, [e._replace(value=normalised(e)) for e in there], mask)[None]


def laplacian(g: Graph, mask: Tensor, norm=None) -> Tensor:
    """(1, M, M); the diagonal is no edge."""
    there = [e for e in entries(g, None, "keep") if e.m != e.n]
    out = [sum((e.value for e in there if e.m == m), ZERO) for m in range(g.M)]
    found = [Entry(n, n, out[n] if norm is None else torch.ones((), dtype=DOUBLE), None) for n in range(g.N)]
    for e in there:
        scale = {None: ZERO + 1, "sym": (out[e.m] * out[e.n]).sqrt(), "rw": out[e.m]}[norm]
        found.append(e._replace(value=-over(e.value, scale)))
    return written(g.M, g.N, found, mask)[None]


def chebyshev(g: Graph, mask: Tensor, K: int, norm: str | None) -> Tensor:
    eye = torch.eye(g.M, dtype=DOUBLE)
    scaled = laplacian(g, mask, norm)[0] / oracle.laplacian(g, norm).max() - eye
    members = [eye, scaled]
    while len(members) < K:
        members.append(2 * scaled @ members[-1] - members[-2])
    return torch.stack(members)


def typed(g: Graph, mask: Tensor, R: int, norm=None, inverse=False, self_loop=False) -> Tensor:
    """Every relation by itself, in both directions."""
    members = []
    for turned in (False, True)[: 1 + inverse]:
        for r in range(R):
            mine = [e for e in range(g.E) if g.type[e] == r]
            h = g.but(edges=[g.edges[e][:: -1 if turned else 1] for e in mine], weight=g.weights[mine], type=None)
            members.append(adjacency(h, mask[mine], {"row": "rw"}.get(norm, norm))[0])
    return torch.stack(members + [torch.eye(g.M, dtype=DOUBLE)] * self_loop)


@functools.cache
def unmasked(norm: str | None, per: str, binary: bool) -> tuple[Tensor, list[list[tuple[int, Tensor, list[int]]]]]:
    """(K, M, N) the walks on SMALL, and for each sort each walk: its place, its weight, and the edges that it takes."""
    g, found = SMALL, []
    for sort in SORTS:
        found.append([])
        for sequence in sort:
            lists = [walk_oracle.moves(g, step) for step in sequence]
            worth = [walk_oracle.factors(g, step, norm if per == "step" else None) for step in sequence]
            for m, n, taken in walk_oracle.instances(g, sequence):
                value = math.prod(float(worth[s][i]) for s, i in enumerate(taken)) if not binary else 1.0
                found[-1].append((m * g.N + n, value, [lists[s][i][0] for s, i in enumerate(taken)]))
    return walk_oracle.walks(g, SORTS, norm, per, binary), found


def walks(g: Graph, mask: Tensor, norm=None, per="walk", binary=False) -> Tensor:
    """Every walk by itself: as much of it is left as the product of the masks of its edges."""
    whole, found = unmasked(norm, per, binary)
    members = []
    for A, several in zip(whole, found, strict=True):
        place = torch.tensor([place for place, _, _ in several])
        value = torch.tensor([value for _, value, _ in several], dtype=DOUBLE)
        left = value * torch.stack([mask[taken].prod() for _, _, taken in several])
        sums = [torch.zeros(g.M * g.N, dtype=DOUBLE).index_add(0, place, t).view(g.M, g.N) for t in (value, left)]
        members.append(A * sums[1] / torch.where(sums[0] == 0, 1, sums[0]))
    return torch.stack(members)


RANDOM, TYPED, SMALL = cases.graph(), cases.typed(3), cases.typed(3, M=4, E=4)
ONES = cases.unweighted()
BIPARTITE = cases.graph(M=6, N=3)
SORTS = [
    [[[(0, False)], [(1, False)]]],
    [[[(0, False), (1, True)], [(0, False)]], [[(1, False)]]],
    [[], [[(0, False)]]],
]
TEXTS = ["0.1", "(0|^1).0|1", "0{0,1}"]


class Case(NamedTuple):
    """A kind of basis, a graph, and the family (K, M, N) under a mask."""

    basis: Callable[[], Basis]
    graph: Graph
    matrices: Callable[[Graph, Tensor], Tensor]


def plain(basis: Callable[[], Basis], *options: Any, graph: Graph = RANDOM, **more: Any) -> Case:
    return Case(basis, graph, lambda g, mask: adjacency(g, mask, *options, **more))


class Backwards(Basis):
    """A user's own basis: the edges turned round, and a loop of its own at each node."""

    def __init__(self) -> None:
        super().__init__(1)

    def edges(self, graph: Any) -> EdgeList:
        nodes = torch.arange(graph.N)
        source, target = torch.cat([graph.source, nodes]), torch.cat([graph.target, nodes])
        return EdgeList(torch.zeros_like(source), source, target, torch.cat([graph.weights, nodes + 0.5]))


def backwards(g: Graph, mask: Tensor) -> Tensor:
    own = [Entry(n, n, torch.tensor(n + 0.5, dtype=DOUBLE), None) for n in range(g.N)]
    return written(g.M, g.N, entries(g, None, "keep") + own, mask)[None]


def product(g: Graph, mask: Tensor) -> Tensor:
    return oracle.product(adjacency(g, mask, "mean"), oracle.powers(adjacency(g, mask, "sym", 1.0), 3))


KINDS = {
    "Adjacency": plain(lambda: bases.Adjacency()),
    "Adjacency-ones": plain(lambda: bases.Adjacency(), graph=ONES),
    "Adjacency-mean": plain(lambda: bases.Adjacency("mean"), "mean"),
    "Adjacency-rw": plain(lambda: bases.Adjacency("rw"), "rw"),
    "Adjacency-bipartite": plain(lambda: bases.Adjacency("mean"), "mean", graph=BIPARTITE),
    "GCN": plain(lambda: bases.Adjacency("sym", True), "sym", 1.0),
    "GCN-ones": plain(lambda: bases.Adjacency("sym", True), "sym", 1.0, graph=ONES),
    "loops-add": plain(lambda: bases.Adjacency("sym", 2.0, "add"), "sym", 2.0, "add"),
    "loops-add-mean": plain(lambda: bases.Adjacency("mean", 2.0, "add"), "mean", 2.0, "add"),
    "loops-replace": plain(lambda: bases.Adjacency("rw", True, "replace"), "rw", 1.0, "replace"),
    "diagonal": plain(lambda: bases.Adjacency("mean", diagonal=0.5), "mean", diagonal=0.5),
    "transposed": Case(lambda: bases.Adjacency("rw").T, RANDOM, lambda g, mask: adjacency(g, mask, "rw").mT),
    "Laplacian": Case(lambda: bases.Laplacian(), RANDOM, laplacian),
    "Laplacian-sym": Case(lambda: bases.Laplacian("sym"), RANDOM, lambda g, mask: laplacian(g, mask, "sym")),
    "Laplacian-rw": Case(lambda: bases.Laplacian("rw"), RANDOM, lambda g, mask: laplacian(g, mask, "rw")),
    "Chebyshev": Case(lambda: bases.Chebyshev(4), RANDOM, lambda g, mask: chebyshev(g, mask, 4, "sym")),
    "Chebyshev-unnormalised": Case(
        lambda: bases.Chebyshev(3, norm=None), RANDOM, lambda g, mask: chebyshev(g, mask, 3, None)
    ),
    "Powers": Case(lambda: bases.Powers(4), RANDOM, lambda g, mask: oracle.powers(adjacency(g, mask, "sym"), 4)),
    "Powers-loops": Case(
        lambda: bases.Powers(3, bases.Adjacency("rw", True)),
        RANDOM,
        lambda g, mask: oracle.powers(adjacency(g, mask, "rw", 1.0), 3),
    ),
    "Diffusion": Case(
        lambda: bases.Diffusion(3),
        RANDOM,
        lambda g, mask: torch.cat([oracle.powers(adjacency(h, mask, "rw"), 3) for h in (g, g.turned)]),
    ),
    "Wavelets": Case(lambda: bases.Wavelets(3), RANDOM, lambda g, mask: oracle.wavelets(adjacency(g, mask, "rw"), 3)),
    "Edges-typed": Case(lambda: bases.Edges(3), TYPED, lambda g, mask: typed(g, mask, 3)),
    "Edges-shared": Case(
        lambda: bases.Edges(2),
        cases.shared(2),
        lambda g, mask: torch.stack([adjacency(g.but(weight=g.weight[:, k]), mask)[0] for k in range(2)]),
    ),
    "Relations": Case(lambda: bases.Relations(3, "mean"), TYPED, lambda g, mask: typed(g, mask, 3, "mean")),
    "Relations-both-ways": Case(
        lambda: bases.Relations(3, "row", inverse=True, self_loop=True),
        TYPED,
        lambda g, mask: typed(g, mask, 3, "row", True, True),
    ),
    "Walks": Case(lambda: bases.Walks(TEXTS, 3), SMALL, lambda g, mask: walks(g, mask)),
    "Walks-row": Case(lambda: bases.Walks(TEXTS, 3, "row"), SMALL, lambda g, mask: walks(g, mask, "row")),
    "Walks-mean": Case(lambda: bases.Walks(TEXTS, 3, "mean"), SMALL, lambda g, mask: walks(g, mask, "mean")),
    "Walks-sym-steps": Case(
        lambda: bases.Walks(TEXTS, 3, "sym", per="step"), SMALL, lambda g, mask: walks(g, mask, "sym", "step")
    ),
    "Walks-binary": Case(
        lambda: bases.Walks(TEXTS, 3, "sym", binary=True),
        SMALL,
        lambda g, mask: walks(g, mask, "sym", binary=True),
    ),
    "sum": Case(
        lambda: bases.Identity() + bases.Adjacency("mean") + bases.Degree(),
        RANDOM,
        lambda g, mask: torch.cat([oracle.identity(g), adjacency(g, mask, "mean"), oracle.degree(g)]),
    ),
    "product": Case(lambda: bases.Adjacency("mean") @ bases.Powers(3, bases.Adjacency("sym", True)), RANDOM, product),
    "product-transposed": Case(
        lambda: (bases.Adjacency("mean") @ bases.Powers(3, bases.Adjacency("sym", True))).T,
        RANDOM,
        lambda g, mask: product(g, mask).mT,
    ),
    "mixture": Case(
        lambda: bases.Mix([[0.0, 0.5, 2.0], [1.0, 0.0, -1.0]], bases.Powers(3)),
        RANDOM,
        lambda g, mask: oracle.mix([[0, 0.5, 2], [1, 0, -1]], oracle.powers(adjacency(g, mask, "sym"), 3)),
    ),
    "own": Case(Backwards, RANDOM, backwards),
}


def masks(E: int) -> dict[str, Tensor]:
    """Ones, some zeros, all zeros, and fractions."""
    return {
        "ones": torch.ones(E, dtype=DOUBLE),
        "zeros": torch.tensor([float(e % 3 > 0) for e in range(E)], dtype=DOUBLE),
        "none": torch.zeros(E, dtype=DOUBLE),
        "fractions": torch.linspace(0.1, 1.3, E, dtype=DOUBLE),
    }


def explained(conv: nn.Module, edge_index: Tensor, mask: Tensor, f: Callable[[], Any]) -> Any:
    """What f gives while the mask is set, as an explainer sets it."""
    set_masks(conv, mask, edge_index, apply_sigmoid=False)
    try:
        return f()
    finally:
        clear_masks(conv)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.sweep(10, "Walks-binary")
def test_masks_act_on_every_use_of_an_edge(name: str) -> None:
    case = KINDS[name]
    g, conv = case.graph, make(case.basis())
    x, edge_index = draw(g.M, 3), tensors(g)["edge_index"]
    before = call(conv, x, g)
    for i, (kind, mask) in enumerate(masks(g.E).items(), list(KINDS).index(name)):
        mask = mask.requires_grad_()
        reference = expected(conv, case.matrices(g, mask), x)
        inputs = [mask, *conv.parameters()]
        grads = grad(reference.square().sum(), inputs)
        for path in PATHS[i % 2 :: 2]:  # in turn
            take(conv, path)
            y = explained(conv, edge_index, mask, lambda: call(conv, x, g))
            close(y, reference)
            if kind == "ones":
                close(y, before)
            for mine, theirs in zip(grad(y.square().sum(), inputs), grads, strict=True):
                close(mine, theirs, 1e-9)
    close(call(take(conv, "auto"), x, g), before)


def additive() -> attention_oracle.Mechanism:
    return attention_oracle.Mechanism("Additive", Additive())


def at_edges(g: Graph, loops: str | None) -> list[tuple[attention_oracle.Entry, int | None]]:
    """The entries of a mask of attention, and their edges."""
    ones = [e._replace(value=e.value.detach()) for e in entries(g, None if loops is None else 1.0, loops or "keep")]
    return [(attention_oracle.Entry(m, n, value), edge) for m, n, value, edge in ones]


class Attending(NamedTuple):
    """A mask of attention, its loops, the rest of its options, and the heads that stand beside it."""

    mask: Callable[[], Basis]
    loops: str | None = None
    options: dict[str, Any] = {}


ATTENTIONS = {
    "edges": Attending(lambda: bases.Adjacency()),
    "edges-as-they-are": Attending(lambda: bases.Edges()),
    "loops-kept": Attending(lambda: bases.Adjacency("sym", True), "keep"),
    "loops-replaced": Attending(lambda: bases.Adjacency("rw", True, "replace"), "replace"),
    "weighted": Attending(lambda: bases.Adjacency(), None, {"weighted": True}),
    "over-targets": Attending(lambda: bases.Adjacency(), None, {"normalize": "target"}),
    "over-heads": Attending(lambda: bases.Adjacency(), None, {"normalize": "heads"}),
    "sigmoid": Attending(lambda: bases.Adjacency(), None, {"normalize": "sigmoid"}),
    "scores": Attending(lambda: bases.Adjacency(self_loops=True), "keep", {"normalize": None}),
}


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.sweep(3)
def test_masks_act_after_attention_is_normalised(name: str) -> None:
    made, g, H = ATTENTIONS[name], RANDOM, 2
    mechanism = additive()
    conv = make(bases.Attention(H, mechanism.module, made.mask(), **made.options))
    x, there = draw(g.M, 3), at_edges(g, made.loops)
    listed = [entry for entry, _ in there]
    options = {"normalize": "source", "weighted": False} | made.options
    before = call(conv, x, g)
    for kind, mask in masks(g.E).items():
        mask = mask.requires_grad_()
        alpha = attention_oracle.weights(mechanism, H, x, x, listed, **options)
        members = []
        for k in range(H):
            weighed = [Entry(e.m, e.n, alpha[k, i], edge) for i, (e, edge) in enumerate(there)]
            members.append(written(g.M, g.N, weighed, mask))
        reference = expected(conv, torch.stack(members), x)
        inputs = [mask, *conv.parameters()]
        grads = grad(reference.square().sum(), inputs)
        for path in PATHS:
            take(conv, path)
            y = explained(conv, tensors(g)["edge_index"], mask, lambda: call(conv, x, g))
            close(y, reference)
            if kind == "ones":
                close(y, before)
            for mine, theirs in zip(grad(y.square().sum(), inputs), grads, strict=True):
                close(mine, theirs, 1e-9)


def test_masks_of_attention_over_walks() -> None:
    """A pair is attended to by as much as is left of the walks that lead from one to the other."""
    g, x = RANDOM, draw(6, 3)
    conv = make(bases.Attention(1, Additive(), bases.Powers(3, bases.Adjacency())))
    _, bound = conv(x, **tensors(g), return_attention=True)
    mask = masks(g.E)["fractions"].requires_grad_()
    ones = torch.ones(g.E, dtype=DOUBLE)
    counts = [oracle.powers(adjacency(g.but(weight=None), m), 3).sum(0) for m in (ones, mask)]
    share = counts[1] / counts[0].clamp(min=1)
    reference = expected(conv, bound.to_dense().detach() * share, x)
    y = explained(conv, tensors(g)["edge_index"], mask, lambda: call(conv, x, g))
    close(y, reference)
    close(grad(y.sum(), mask)[0], grad(reference.sum(), mask)[0])
    conv = make(bases.Attention(1, Additive(), bases.Identity() + -1.0 * bases.Adjacency()))
    for given in (mask, masks(g.E)["none"]):  # whatever it leaves of them
        with pytest.raises(ValueError, match="negative"):
            explained(conv, tensors(g)["edge_index"], given, lambda: call(conv, x, g))


def test_masks_of_attention_that_reads_edges() -> None:
    g, x = ONES, draw(6, 3)
    conv = make(bases.Attention(2, Additive() + Edge(2), bases.Adjacency(self_loops=True)))
    z, mask = draw(g.E, 2, seed=3), torch.ones(g.E, dtype=DOUBLE)
    y = explained(conv, tensors(g)["edge_index"], mask, lambda: call(conv, x, g, edge_attr=z))
    close(y, call(conv, x, g, edge_attr=z))


@pytest.mark.parametrize("name", ["GCN", "Chebyshev", "Relations-both-ways", "Walks-row", "product-transposed", "own"])
def test_bound_bases_are_masked(name: str) -> None:
    case = KINDS[name]
    g, conv = case.graph, make(case.basis())
    x, edge_index, mask = draw(g.M, 3), tensors(g)["edge_index"], masks(g.E)["fractions"]
    bound = conv.basis.bind(**tensors(g), size=(g.M, g.N))
    close(explained(conv, edge_index, mask, lambda: conv(x, bound)), expected(conv, case.matrices(g, mask), x))
    close(conv(x, bound), call(conv, x, g))


def test_bound_bases_of_unknown_edges_are_refused() -> None:
    g, conv = RANDOM, make(bases.Adjacency())
    x, edge_index = draw(g.M, 3), tensors(g)["edge_index"]
    turned: BoundBasis = conv.basis.bind(edge_index, size=6, dtype=DOUBLE).T
    with pytest.raises(ValueError, match="edge_index: expected a bound basis that knows its graph"):
        explained(conv, edge_index, torch.ones(g.E), lambda: conv(x, turned))


class Reversed(bases.Basis):
    """The edges turned round, as a basis of one's own may give them."""

    def edges(self, graph: Any) -> bases.EdgeList:
        return bases.EdgeList(torch.zeros_like(graph.source), graph.target, graph.source, graph.weights)


def test_entries_that_are_not_the_edges_are_refused() -> None:
    g, conv = RANDOM, make(Reversed(1))
    x, edge_index = draw(g.M, 3), tensors(g)["edge_index"]
    with pytest.raises(ValueError, match="basis: expected edges that begin with those of the graph, to be masked"):
        explained(conv, edge_index, torch.ones(g.E), lambda: call(conv, x, g))
    symmetric = torch.tensor([[0, 1, 2], [0, 1, 2]])
    found = explained(conv, symmetric, torch.tensor([1.0, 0.0, 0.5]).double(), lambda: conv(x, symmetric))
    close(found, conv(torch.diag_embed(torch.tensor([1, 0, 0.5, 0, 0, 0]).double()[: g.M]) @ x, symmetric))


def test_masks_that_do_not_fit_are_refused() -> None:
    g, conv = RANDOM, make(bases.Adjacency())
    x, edge_index = draw(g.M, 3), tensors(g)["edge_index"]
    with pytest.raises(ValueError, match="edge_index: expected the 4 edges that are explained, got 19"):
        explained(conv, edge_index[:, :4], torch.ones(4), lambda: call(conv, x, g))
    conv.explain = True
    with pytest.raises(ValueError, match="explain: expected a mask"):
        call(conv, x, g)


@pytest.mark.parametrize("added", [False, True], ids=["taken-away", "set-anew"])
def test_loops_that_the_model_changes(added: bool) -> None:
    """As in PyG: the mask of the edges without loops, and ones for a loop at each node."""
    g, conv = ONES, make(bases.Adjacency())
    x, edge_index = draw(g.M, 3), tensors(g)["edge_index"]
    plain = edge_index[0] != edge_index[1]
    mask = masks(g.E)["fractions"]
    given, left = edge_index[:, plain], mask[plain]
    if added:
        given = torch.cat([given, torch.arange(6).repeat(2, 1)], 1)
        left = torch.cat([left, torch.ones(6, dtype=DOUBLE)])
    y = explained(conv, edge_index, mask, lambda: conv(x, given))
    close(y, conv(x, given, left))


def test_sigmoid_of_the_mask() -> None:
    g, conv = RANDOM, make(bases.Adjacency("mean"))
    x, edge_index, mask = draw(g.M, 3), tensors(g)["edge_index"], draw(g.E, seed=2)
    close(
        explained(conv, edge_index, mask.sigmoid(), lambda: call(conv, x, g)),
        expected(conv, adjacency(g, mask.sigmoid(), "mean"), x),
    )
    set_masks(conv, mask, edge_index)
    close(call(conv, x, g), expected(conv, adjacency(g, mask.sigmoid(), "mean"), x))


def test_one_may_say_otherwise_how_messages_are_explained() -> None:
    """As PyG's own GraphMaskExplainer does."""
    g, conv = RANDOM, make(bases.Adjacency())
    x = draw(g.M, 3)

    def explain_message(self: BasisConv, out: Tensor, x_j: Tensor) -> Tensor:
        return out * 2 + x_j

    conv.explain_message = explain_message.__get__(conv, BasisConv)
    conv.explain = True
    A = adjacency(g, torch.ones(g.E, dtype=DOUBLE)) * 2 + adjacency(ONES, torch.ones(g.E, dtype=DOUBLE))
    conv.order = "a_first"
    close(call(conv, x, g), expected(conv, A, x))


def test_what_has_no_edges_is_left_alone() -> None:
    dense = BasisConv(4, 4, bases.Attention(2, Dot(2)), theta.LowRank(2))
    for layer in (GridConv(1, 1, bases.Window(None, (3, 3))), dense, BasisConv(2, 2, bases.Identity())):
        assert layer.explain is False


def test_layers_that_are_not_to_be_explained() -> None:
    g, x = RANDOM, draw(6, 3)
    first, second = make(bases.Adjacency("mean")), make(bases.Powers(3))
    model = nn.ModuleList([first, second])
    second.explain = False
    mask = torch.zeros(g.E, dtype=DOUBLE)
    ys = explained(model, tensors(g)["edge_index"], mask, lambda: [call(conv, x, g) for conv in model])
    close(ys[0], first.bias.expand(6, -1))
    close(ys[1], call(second, x, g))
    assert first.explain is None
    assert second.explain is False


N, RED, EPOCHS = 100, 20, 12
PLANTED = torch.Generator().manual_seed(1)
EDGES = torch.stack([torch.randint(N, (4 * N,), generator=PLANTED), torch.arange(N).repeat_interleave(4)])
EDGES = EDGES[:, EDGES[0] != EDGES[1]]
TYPES = torch.randint(2, (EDGES.shape[1],), generator=PLANTED)
FEATURES = torch.nn.functional.one_hot((torch.arange(N) >= RED).long()).float()
TRUE = EDGES[0] < RED  # a node is of the first class if one that is red points to it
LABEL = torch.ones(N, dtype=torch.long).index_fill(0, EDGES[1, TRUE], 0)


class Net(nn.Module):
    """Convolutions and a readout."""

    def __init__(self, *convs: nn.Module) -> None:
        super().__init__()
        self.convs, self.readout = nn.ModuleList(convs), nn.Linear(8, 2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor | None = None) -> Tensor:
        for conv in self.convs:
            x = conv(x, edge_index, **({} if edge_type is None else {"edge_type": edge_type})).relu()
        return self.readout(x)


def own_first(family: Basis) -> Basis:
    return bases.Identity() + family


MODELS: dict[str, Callable[[], Net]] = {
    "mean": lambda: Net(BasisConv(2, 8, own_first(bases.Adjacency("mean")))),
    "two-layers": lambda: Net(*(BasisConv(P, 8, own_first(bases.Adjacency("mean"))) for P in (2, 8))),
    "Powers": lambda: Net(BasisConv(2, 8, bases.Powers(3, bases.Adjacency("mean")))),
    "Chebyshev": lambda: Net(BasisConv(2, 8, bases.Chebyshev(3, "rw"))),
    "Relations": lambda: Net(BasisConv(2, 8, bases.Relations(2, "mean", inverse=True, self_loop=True))),
    "Walks": lambda: Net(BasisConv(2, 8, own_first(bases.Walks(["0|1", "(0|1).(0|1)"], 2, "mean")))),
    "attention": lambda: Net(BasisConv(2, 8, own_first(bases.Attention(2, Additive(), bases.Adjacency())))),
    "FastRGCN": lambda: Net(convert(pyg.FastRGCNConv(2, 8, 2))),
}


@functools.cache
def trained(name: str) -> Net:
    torch.manual_seed(0)
    model = MODELS[name]()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(120):
        optimizer.zero_grad()
        given = of_types(name)
        loss = nn.functional.cross_entropy(model(FEATURES, EDGES, **given), LABEL)
        nothing = model(FEATURES, EDGES[:, :0], **{key: value[:0] for key, value in given.items()})
        (loss + nn.functional.cross_entropy(nothing, torch.ones_like(LABEL))).backward()  # nothing points to a node
        optimizer.step()
    return model.eval()


def of_types(name: str) -> dict[str, Tensor]:
    return {"edge_type": TYPES} if name in ("Relations", "Walks", "FastRGCN") else {}


EXPLAINERS: dict[str, Callable[[], Any]] = {
    "GNNExplainer": lambda: GNNExplainer(epochs=30, lr=0.2, edge_size=0.2, edge_ent=0.0),
    "CaptumExplainer": lambda: CaptumExplainer("IntegratedGradients", n_steps=10),
    "PGExplainer": lambda: PGExplainer(epochs=EPOCHS, lr=0.01, edge_size=2.0, edge_ent=0.0),
    "PGExplainer-deep": lambda: PGExplainer(epochs=EPOCHS, lr=0.01, edge_size=0.5, edge_ent=0.0),
}


CONFIG = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}


def into(node: int) -> Tensor:
    return EDGES[1] == node


def told_apart(mask: Tensor, node: int) -> list[float]:
    """Whether each edge into a node from a red one has more than each other into it; a half where it has the same."""
    return [float(a > b) + float(a == b) / 2 for a in mask[into(node) & TRUE] for b in mask[into(node) & ~TRUE]]


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")  # in PyG's PGExplainer
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "GNNExplainer") for name in MODELS),
        *((name, kind) for name in ("two-layers", "attention") for kind in ("CaptumExplainer", "PGExplainer")),
    ],
)
@pytest.mark.sweep(2)
def test_explainers_find_what_is_planted(name: str, kind: str) -> None:
    if kind == "CaptumExplainer":
        pytest.importorskip("captum")
    model, given = copy.deepcopy(trained(name)), of_types(name)
    before, state = model(FEATURES, EDGES, **given), list(model.state_dict())
    assert (before.argmax(1) == LABEL).float().mean() > 0.9
    torch.manual_seed(0)
    learns = kind == "PGExplainer"
    algorithm = EXPLAINERS[kind + "-deep" if learns and len(model.convs) > 1 else kind]()
    explainer = Explainer(model, algorithm, "phenomenon" if learns else "model", CONFIG, edge_mask_type="object")
    nodes = [node for node in range(N) if TRUE[into(node)].sum() == 1 < into(node).sum()][:8]
    if learns:
        given["target"] = LABEL
        for epoch in range(EPOCHS):
            for node in nodes:
                algorithm.train(epoch, model, FEATURES, EDGES, index=torch.tensor([node]), **given)
    right = []
    for node in nodes[: None if learns else 3]:
        mask = explainer(FEATURES, EDGES, index=torch.tensor([node]), **given).edge_mask
        assert mask.shape == (EDGES.shape[1],)
        right += told_apart(mask, node)
    assert sum(right) > 0.8 * len(right)  # by chance a half
    for module in model.modules():
        if isinstance(module, BasisConv):
            assert (module.explain, module._edge_mask, module._alpha, module._fused) == (None, None, None, True)
    assert torch.equal(model(FEATURES, EDGES, **of_types(name)), before)
    assert list(model.state_dict()) == state


ATTENTIVE: dict[str, Callable[[], list[nn.Module]]] = {
    "GATConv": lambda: [pyg.GATConv(3, 4, 2), pyg.GATConv(8, 2, 3, concat=False)],
    "GATConv-no-loops": lambda: [pyg.GATConv(3, 4, 2, add_self_loops=False)],
    "GATv2Conv": lambda: [pyg.GATv2Conv(3, 4, 2), pyg.GATv2Conv(8, 2)],
    "TransformerConv": lambda: [pyg.TransformerConv(3, 4, 2), pyg.TransformerConv(8, 2, 3, concat=False)],
}


@pytest.mark.parametrize("reduce", ["max", "mean", "sum"])
@pytest.mark.parametrize("name", ATTENTIVE)
@pytest.mark.sweep(4)
def test_attention_is_shown_as_by_the_layers_of_pyg(name: str, reduce: str) -> None:
    torch.manual_seed(0)
    model = (
        pyg.Sequential("x, edge_index", [(conv, "x, edge_index -> x") for conv in ATTENTIVE[name]()]).double().eval()
    )
    edge_index, x = tensors(ONES)["edge_index"], draw(6, 3)
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    shown = []
    for f in (convert(model), model):
        explainer = Explainer(f, AttentionExplainer(reduce), "model", CONFIG, edge_mask_type="object")
        shown.append(explainer(x, edge_index, index=1).edge_mask)
    reached = shown[1] != 0  # explainers count hops by layers: by converted ones, with their parts, they reach further
    close(*(mask[reached] for mask in shown))
    assert reached.sum() > 2


WEIGHED = {  # attention that is multiplied by weights of edges afterwards, or that is no layer of its own
    "FAConv": (lambda: pyg.Sequential("x, edge_index", [(pyg.FAConv(3), "x, x, edge_index -> x")]), {}),
    "GATConv-mean": (lambda: pyg.GATConv(3, 4, 2, aggr="mean"), {}),
    "RGATConv": (lambda: pyg.RGATConv(3, 4, 3, heads=2), {"edge_type": torch.arange(TYPED.E) % 3}),
    "RGATConv-within-relation": (
        lambda: pyg.RGATConv(3, 4, 3, heads=2, attention_mechanism="within-relation", mod="additive"),
        {"edge_type": torch.arange(TYPED.E) % 3},
    ),
}


@pytest.mark.parametrize("name", WEIGHED)
def test_attention_is_shown_before_what_is_done_with_it(name: str) -> None:
    torch.manual_seed(0)
    make_layer, given = WEIGHED[name]
    layer, edges = make_layer().double().eval(), tensors(TYPED)["edge_index"]
    apart = edges[0] != edges[1]  # PyG moves loops to the end, and then shows the attention of other edges
    given = {key: t[apart] if key == "edge_type" else t for key, t in given.items()}
    config = {**CONFIG, "task_level": "graph"}
    shown = []
    for f in (convert(layer), layer):
        explainer = Explainer(f, AttentionExplainer("sum"), "model", config, edge_mask_type="object")
        shown.append(explainer(draw(6, 3), edges[:, apart], **given).edge_mask)
    close(*shown)
    assert len(shown[1].unique()) > 2


@pytest.mark.parametrize("kind", ["GATConv", "RGATConv", "MFConv"])
def test_layers_of_several_parts_refuse_to_have_their_messages_replaced(kind: str) -> None:
    layer = convert(pyg.RGATConv(3, 4, 2) if kind == "RGATConv" else getattr(pyg, kind)(3, 4))
    config = {**CONFIG, "task_level": "graph"}
    about = {"node_mask_type": "attributes", "edge_mask_type": "object"}
    explainer = Explainer(layer, GraphMaskExplainer(1, epochs=1, log=False), "model", config, **about)
    given = {"edge_type": torch.zeros(TYPED.E, dtype=torch.long)} if kind == "RGATConv" else {}
    with pytest.raises(ValueError, match=r"explain_message: .* GNNExplainer"):
        explainer(draw(6, 3).float(), tensors(TYPED)["edge_index"], **given)


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside-others"])
def test_attention_is_shown_by_the_edges_of_the_user(beside: bool) -> None:
    """With the weights of loops that the user gave in their places."""
    g, x, H = RANDOM, draw(6, 3), 2
    attention = bases.Attention(H, Additive(), bases.Adjacency(self_loops=True, existing="keep"))
    conv = make(bases.Identity() + attention if beside else attention)
    explainer = Explainer(conv, AttentionExplainer("sum"), "model", CONFIG, edge_mask_type="object")
    shown = explainer(x, **tensors(g), index=None).edge_mask
    _, bound = conv(x, **tensors(g), return_attention=True)
    part = bound.parts[1] if beside else bound
    per_edge = torch.zeros(g.E, dtype=DOUBLE)
    alpha = attention_oracle.weights(
        attention_oracle.Mechanism("Additive", attention.mechanism),
        H,
        x,
        x,
        [entry for entry, _ in at_edges(g, "keep")],
    )
    for i, (_, edge) in enumerate(at_edges(g, "keep")):
        if edge is not None:
            per_edge[edge] = sum(alpha[k, i] for k in range(H)).detach()
    close(shown, per_edge)
    assert part.K == H
    assert conv._alpha is None


def test_attention_of_other_layers_is_not_shown() -> None:
    conv = make(bases.Adjacency("mean"))
    explainer = Explainer(conv, AttentionExplainer(), "model", CONFIG, edge_mask_type="object")
    with pytest.raises(ValueError, match="attention"):
        explainer(draw(6, 3), **tensors(RANDOM))


def test_attention_that_is_planted_is_shown() -> None:
    conv = BasisConv(2, 8, bases.Attention(2, Additive(), bases.Adjacency()))
    with torch.no_grad():
        conv.basis.mechanism.source.copy_(torch.tensor([[2.0, 0.0], [1.0, 0.0]]))
    explainer = Explainer(Net(conv), AttentionExplainer(), "model", CONFIG, edge_mask_type="object")
    for node in range(N):
        assert all(told_apart(explainer(FEATURES, EDGES, index=node).edge_mask, node))


def test_hetero_masks() -> None:
    """Every edge type has a mask of its own, which acts on its layer, as in PyG."""
    keys = [("a", "to", "b"), ("b", "of", "a")]
    convs = {key: BasisConv(3, 2, bases.Identity() + bases.Adjacency("mean")) for key in keys}
    model = pyg.HeteroConv(convs).double()
    x = {"a": draw(6, 3), "b": draw(3, 3, seed=1)}
    edges = {keys[0]: tensors(BIPARTITE)["edge_index"], keys[1]: tensors(BIPARTITE)["edge_index"].flip(0)}

    class Only(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: dict, edges: dict) -> Tensor:
            y = self.model(x, edges)
            return y["b"] + y["a"][:3]

    explainer = Explainer(Only(), GNNExplainer(epochs=3), "model", CONFIG, edge_mask_type="object")
    explanation = explainer(x, edges, index=0)
    for key in keys:
        assert torch.equal(explanation[key].edge_mask > 0, edges[key][1] == 0)
    assert all(conv.explain is None for conv in convs.values())


@pytest.mark.slow
def test_compiled_models_are_explained() -> None:
    g, conv = RANDOM, make(bases.Adjacency("mean"))
    x, edge_index, mask = draw(g.M, 3), tensors(g)["edge_index"], masks(g.E)["fractions"].requires_grad_()
    compiled = torch.compile(conv, backend="eager")
    before = compiled(x, **tensors(g))
    y = explained(conv, edge_index, mask, lambda: compiled(x, **tensors(g)))
    reference = expected(conv, adjacency(g, mask, "mean"), x)
    close(y, reference)
    close(grad(y.sum(), mask)[0], grad(reference.sum(), mask)[0])
    close(compiled(x, **tensors(g)), before)
