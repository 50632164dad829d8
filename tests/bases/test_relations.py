"""One matrix per relation: values by hand, norms, targets of their own, heterogeneous data, and R-GCN itself."""

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.backend
from torch import Tensor
from torch.autograd import grad
from torch_geometric.data import HeteroData
from torch_geometric.nn import FastRGCNConv, RGCNConv

from pyg_basisconv import BasisConv, bases, theta
from tests import cases
from tests.contract import DOUBLE, PATHS, bind, close, draw, expected, make, tensors
from tests.kernels.test_kernels import Largest
from tests.oracle import Graph
from tests.walks import oracle as kg

NORMS = (None, "mean", "row", "sym")
# Node 0 to node 2 twice, nodes 1 and 2 to node 2 once; of relation 1, node 0 to node 1.
EDGES = [(0, 2), (0, 2), (1, 2), (2, 2), (0, 1)]
BY_HAND = Graph(3, 3, EDGES, torch.tensor([1.0, 3.0, 4.0, 8.0, 5.0], dtype=DOUBLE), type=[0, 0, 0, 0, 1])


@pytest.mark.parametrize(
    ("norm", "column"),
    [(None, [4, 4, 8]), ("mean", [1, 1, 2]), ("row", [1, 1, 1]), ("sym", [4 / 64**0.5, 4 / 64**0.5, 8 / 128**0.5])],
    ids=str,
)
def test_by_hand(norm: str | None, column: list[float]) -> None:
    """Four edges of weights 1 + 3, 4 and 8 into node 2."""
    A = bind(bases.Relations(2, norm, inverse=True, self_loop=True), BY_HAND).to_dense()
    assert A.shape == (5, 3, 3)
    close(A[0], torch.tensor([[0, 0, column[0]], [0, 0, column[1]], [0, 0, column[2]]], dtype=DOUBLE))
    alone = 5.0 if norm in (None, "mean") else 1.0
    close(A[1], _single(0, 1, alone))
    close(A[3], _single(1, 0, alone))
    close(A[4], torch.eye(3, dtype=DOUBLE))


def _single(m: int, n: int, value: float) -> Tensor:
    A = torch.zeros(3, 3, dtype=DOUBLE)
    A[m, n] = value
    return A


@pytest.mark.parametrize(
    ("norm", "row"),
    [(None, [4, 4, 8]), ("mean", [2, 4, 8]), ("row", [0.25, 0.25, 0.5]), ("sym", [0.5, 0.5, 8 / 128**0.5])],
    ids=str,
)
def test_the_inverse_is_normalised_after_it_is_turned(norm: str | None, row: list[float]) -> None:
    """Out of node 2, turned round, go all four edges; two of them into node 0."""
    A = bind(bases.Relations(2, norm, inverse=True), BY_HAND).to_dense()
    close(A[2], torch.tensor([[0, 0, 0], [0, 0, 0], row], dtype=DOUBLE))


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_the_sums_that_norms_make(norm: str | None) -> None:
    g = cases.typed(4, weighted=False)
    A = bind(bases.Relations(4, norm, inverse=True), g).to_dense()
    rows, columns = A.sum(2), A.sum(1)
    for sums in {"row": (rows,), "mean": (columns,), "sym": (), None: ()}[norm]:
        assert bool(((sums - 1).abs().lt(1e-12) | sums.eq(0)).all())
        assert 0 < int(sums.ne(0).sum()) < sums.numel()
    if norm in (None, "sym"):
        close(A[4:], A[:4].transpose(1, 2))


@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize("N", [6, 4, 9], ids="N={}".format)
@pytest.mark.sweep(4)
def test_a_self_loop_reads_the_target(N: int, norm: str | None) -> None:
    """In a bipartite call the identity's features are x_dst."""
    g = cases.typed(3, M=6, N=N)
    basis = bases.Relations(3, norm, self_loop=True)
    for path in PATHS:
        conv = make(basis, path=path)
        x, y = draw(2, 6, 3).requires_grad_(), draw(2, N, 3, seed=1).requires_grad_()
        weight = g.weight.clone().requires_grad_()
        result = conv((x, y), **(tensors(g) | {"edge_weight": weight}))
        A = kg.relations(g.but(weight=weight), 3, norm)
        reference = y @ conv.weight[3] + conv.bias
        for A_k, Theta_k in zip(A, conv.weight, strict=False):
            reference = reference + A_k.T @ x @ Theta_k
        close(result, reference)
        leaves, down = [x, y, weight, *conv.parameters()], draw(2, N, 2, seed=2)
        for a, b in zip(grad(result, leaves, down), grad(reference, leaves, down), strict=True):
            close(a, b)


def test_without_targets_of_their_own_there_is_nothing_to_read() -> None:
    conv = make(bases.Relations(3, self_loop=True))
    with pytest.raises(ValueError, match=r"^size: .*x_dst"):
        conv(draw(6, 3), **tensors(cases.typed(3, M=6, N=4)), size=(6, 4))


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_what_cannot_be_normalised_is_zero(norm: str | None) -> None:
    """Weights that are zero, or cancel: no NaN, forward or backward."""
    weights = [0.0, 0.0, 0.0, 2.0, -2.0, 3.0]
    g = Graph(4, 4, [(0, 1), (0, 2), (3, 3), (1, 3), (1, 3), (2, 0)], torch.tensor(weights, dtype=DOUBLE))
    g = g.but(type=[0, 0, 1, 1, 1, 0])
    weight = g.weight.clone().requires_grad_()
    for path in PATHS:
        conv = make(bases.Relations(2, norm, inverse=True), path=path)
        x = draw(4, 3).requires_grad_()
        y = conv(x, **(tensors(g) | {"edge_weight": weight}))
        reference = expected(conv, kg.relations(g.but(weight=weight), 2, norm, True), x)
        close(y, reference)
        for a, b in zip(grad(y.sum(), [x, weight]), grad(reference.sum(), [x, weight]), strict=True):
            close(a, b)


def test_one_relation_needs_no_types() -> None:
    g = cases.graph()
    for norm in NORMS:
        typed = bind(bases.Relations(1, norm), g.but(type=[0] * g.E))
        close(bind(bases.Relations(1, norm), g).to_dense(), typed.to_dense())


def test_names() -> None:
    assert repr(bases.Relations(3)) == "Relations(3)"
    assert repr(bases.Relations(3, "mean", inverse=True, self_loop=True)) == (
        "Relations(3, norm='mean', inverse=True, self_loop=True)"
    )
    assert [bases.Relations(5, **options).K for options in ({}, {"inverse": True}, {"self_loop": True})] == [5, 10, 6]
    assert bases.Relations(5, "row", True, True).K == 11


def test_products_of_relations_are_walks() -> None:
    g = cases.steps()
    product = bases.Relations(4, "row", inverse=True) @ bases.Relations(4, "row", inverse=True)
    sorts = [[[first], [second]] for first in _both(4) for second in _both(4)]
    close(bind(product, g).to_dense(), torch.stack([kg.walk(g, [sort], "row", "step") for sort in sorts]))


def _both(R: int) -> list[tuple[int, bool]]:
    return [(r, inverse) for inverse in (False, True) for r in range(R)]


# ---------------------------------------------------------------------------------------------- heterogeneous data


def films() -> HeteroData:
    data = HeteroData()
    data["actor"].x, data["film"].x, data["genre"].x = draw(4, 3), draw(5, 3, seed=1), draw(2, 3, seed=2)
    data["actor", "in", "film"].edge_index = torch.tensor([[0, 1, 1, 3, 2], [0, 0, 4, 2, 2]])
    data["film", "of", "genre"].edge_index = torch.tensor([[0, 1, 2, 4], [1, 1, 0, 0]])
    data["film", "after", "film"].edge_index = torch.tensor([[1], [0]])
    data["actor", "likes", "genre"].edge_index = torch.empty(2, 0, dtype=torch.long)
    return data


@pytest.mark.parametrize("options", [{}, {"norm": "mean", "inverse": True, "self_loop": True}], ids=["plain", "all"])
def test_from_hetero(options: dict[str, Any]) -> None:
    """The relations of a HeteroData, in its order, on the graph that it becomes; results per node type."""
    data = films()
    basis = bases.Relations.from_hetero(data, **options)
    assert repr(basis) == repr(bases.Relations(4, **options))
    flat = data.to_homogeneous()
    conv = make(basis)
    y = conv(flat.x, flat.edge_index, edge_type=flat.edge_type)
    first = {"actor": 0, "film": 4, "genre": 9}
    edges, types = [], []
    for r, (source, _, target) in enumerate(data.edge_types):
        pairs = data[data.edge_types[r]].edge_index.t().tolist()
        edges += [(first[source] + m, first[target] + n) for m, n in pairs]
        types += [r] * len(pairs)
    reference = expected(conv, kg.relations(Graph(11, 11, edges, type=types), 4, **options), flat.x)
    close(y, reference)
    for i, kind in enumerate(data.node_types):
        of_kind = y[flat.node_type == i]
        assert of_kind.shape[0] == data[kind].num_nodes
        close(of_kind, reference[first[kind] : first[kind] + data[kind].num_nodes])


def test_from_hetero_of_something_else() -> None:
    with pytest.raises(ValueError, match=r"^data: expected .*, got .*; .+"):
        bases.Relations.from_hetero([("actor", "in", "film")])
    with pytest.raises(ValueError, match=r"^data: expected .*, got .*; .+"):
        bases.Relations.from_hetero(HeteroData())


# -------------------------------------------------------------------------------------------------------- R-GCN

RGCN_PATHS = ("auto", "a_first", "theta_first", "phi", "compacted", "message")
R = 4


@pytest.fixture
def by_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """R-GCN relation by relation, as its formula is written."""
    monkeypatch.setattr(torch_geometric.backend, "use_segment_matmul", False)


def rgcn(kind: type = RGCNConv, **options: Any) -> RGCNConv:
    peer = kind(4, 6, R, **options).double()
    for seed, parameter in enumerate(peer.parameters()):
        parameter.data = draw(*parameter.shape, seed=seed + 20)
    return peer


def same(
    peer: RGCNConv, conv: BasisConv, pairs: list[tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]], bipartite: bool
) -> None:
    """Outputs, and the gradients of the features and of the pairs (of the layer, of the peer, what to take of one)."""
    g = cases.typed(R, weighted=False, M=6, N=5) if bipartite else cases.typed(R, weighted=False)
    x, target = draw(6, 4).requires_grad_(), draw(5, 4, seed=1).requires_grad_()
    features = (x, target) if bipartite else x
    leaves = [x, target] if bipartite else [x]
    call = tensors(g)
    down = draw(5 if bipartite else 6, 6, seed=3)
    y = peer(features, call["edge_index"], call["edge_type"])
    theirs = grad(y, [*leaves, *(p for _, p, _ in pairs)], down, allow_unused=True, materialize_grads=True)
    for path in RGCN_PATHS:
        conv.fuse, conv.order = path != "message", "auto" if path == "message" else path
        result = conv(features, **call)
        close(result, y)
        mine = grad(result, [*leaves, *(p for p, _, _ in pairs)], down, allow_unused=True, materialize_grads=True)
        takes = [lambda t: t] * len(leaves) + [take for _, _, take in pairs]
        for a, b, take in zip(mine, theirs, takes, strict=True):
            close(take(a), b)


@pytest.mark.usefixtures("by_a_loop")
@pytest.mark.parametrize("bipartite", [False, True], ids=["square", "bipartite"])
@pytest.mark.parametrize("aggr", ["mean", "add"])
@pytest.mark.parametrize("kind", [RGCNConv, FastRGCNConv], ids=["loop", "fast"])
def test_is_rgcn(kind: type, aggr: str, bipartite: bool) -> None:
    peer = rgcn(kind, aggr=aggr)
    conv = BasisConv(4, 6, bases.Relations(R, {"mean": "mean", "add": None}[aggr], self_loop=True)).double()
    with torch.no_grad():
        conv.weight.copy_(torch.cat([peer.weight, peer.root[None]]))
        conv.bias.copy_(peer.bias)
    pairs = [
        (conv.weight, peer.weight, lambda t: t[:R]),
        (conv.weight, peer.root, lambda t: t[R]),
        (conv.bias, peer.bias, lambda t: t),
    ]
    same(peer, conv, pairs, bipartite)


@pytest.mark.usefixtures("by_a_loop")
@pytest.mark.parametrize("bipartite", [False, True], ids=["square", "bipartite"])
@pytest.mark.parametrize("H", [1, 3], ids="{} bases".format)
def test_is_rgcn_of_bases(H: int, bipartite: bool) -> None:
    """The basis decomposition; with a root weight, which is a matrix more that the self loop alone takes."""
    for root in (False, True):
        peer = rgcn(num_bases=H, root_weight=root)
        conv = BasisConv(4, 6, bases.Relations(R, "mean", self_loop=root), theta.Separable(H + root)).double()
        with torch.no_grad():
            conv.bias.copy_(peer.bias)
            conv.theta.mix.zero_()
            conv.theta.mix[:H, :R] = peer.comp.t()
            conv.weight[:H] = peer.weight
            if root:
                conv.theta.mix[H, R] = 1
                conv.weight[H] = peer.root
        pairs = [
            (conv.weight, peer.weight, lambda t: t[:H]),
            (conv.theta.mix, peer.comp, lambda t: t[:H, :R].t()),
            (conv.bias, peer.bias, lambda t: t),
        ]
        if root:
            pairs.append((conv.weight, peer.root, lambda t: t[H]))
        same(peer, conv, pairs, bipartite)


@pytest.mark.usefixtures("by_a_loop")
@pytest.mark.parametrize("bipartite", [False, True], ids=["square", "bipartite"])
def test_is_rgcn_of_blocks(bipartite: bool) -> None:
    peer = rgcn(num_blocks=2, root_weight=False)
    conv = BasisConv(4, 6, bases.Relations(R, "mean"), theta.Grouped(2)).double()
    with torch.no_grad():
        conv.weight.copy_(peer.weight)
        conv.bias.copy_(peer.bias)
    same(peer, conv, [(conv.weight, peer.weight, lambda t: t), (conv.bias, peer.bias, lambda t: t)], bipartite)


# ---------------------------------------------------------------------------------------------------- bad input

X = torch.ones(5, 3)
TO = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 3]])
KIND = torch.tensor([0, 1, 2, 0])


def conv(*args: Any, **options: Any) -> BasisConv:
    return BasisConv(3, 2, bases.Relations(*args, **options))


REFUSED: dict[str, tuple[str, Callable[[], Any]]] = {
    "num_relations 0": ("num_relations", lambda: bases.Relations(0)),
    "num_relations negative": ("num_relations", lambda: bases.Relations(-2)),
    "num_relations float": ("num_relations", lambda: bases.Relations(2.0)),
    "num_relations bool": ("num_relations", lambda: bases.Relations(True)),
    "num_relations names": ("num_relations", lambda: bases.Relations(["a", "b"])),
    "norm unknown": ("norm", lambda: bases.Relations(2, "rw")),
    "norm True": ("norm", lambda: bases.Relations(2, True)),
    "norm a list": ("norm", lambda: bases.Relations(2, ["mean"])),
    "edge_type missing": ("edge_type", lambda: conv(3)(X, TO)),
    "edge_type missing, inverses": ("edge_type", lambda: conv(3, inverse=True, norm="mean")(X, TO)),
    "edge_type of one relation": ("edge_type", lambda: conv(1)(X, TO, None, KIND)),
    "edge_type too large": ("edge_type", lambda: conv(2)(X, TO, None, KIND)),
    "edge_type too large, inverses": ("edge_type", lambda: conv(2, inverse=True, self_loop=True)(X, TO, None, KIND)),
    "edge_type negative": ("edge_type", lambda: conv(3)(X, TO, None, KIND - 1)),
    "edge_type too short": ("edge_type", lambda: conv(3)(X, TO, None, KIND[:3])),
    "edge_type too long": ("edge_type", lambda: conv(3)(X, TO, None, KIND.repeat(2))),
    "edge_type float": ("edge_type", lambda: conv(3)(X, TO, None, KIND.float())),
    "edge_type one-hot": ("edge_type", lambda: conv(3)(X, TO, None, torch.eye(4, 3).long())),
    "edge_weight too short": ("edge_weight", lambda: conv(3)(X, TO, torch.ones(3), KIND)),
    "edge_weight (E, K)": ("edge_weight", lambda: conv(3)(X, TO, torch.ones(4, 3), KIND)),
    "edge_weight (E, 1)": ("edge_weight", lambda: conv(3)(X, TO, torch.ones(4, 1), KIND)),
    "edge_weight (E, K) without types": ("edge_", lambda: conv(3)(X, TO, torch.ones(4, 3))),
    "edge_weight integers": ("edge_weight", lambda: conv(3)(X, TO, KIND, KIND)),
    "edge_index missing": ("edge_index", lambda: conv(3)(X)),
    "edge_index missing, self loop": ("edge_index", lambda: conv(3, self_loop=True)(X)),
    "edge_index too large": ("edge_index", lambda: conv(3)(X[:3], TO, None, KIND)),
    "inverse of a bipartite graph": ("graph", lambda: conv(3, inverse=True)((X, X[:4]), TO, None, KIND)),
    "inverse of a bipartite graph, by size": (
        "graph",
        lambda: conv(3, inverse=True)((X, None), TO, None, KIND, size=(5, 4)),
    ),
    "x of other width": ("x", lambda: conv(3, self_loop=True)((X, X[:4, :2]), TO, None, KIND)),
}


@pytest.mark.parametrize(("argument", "call"), REFUSED.values(), ids=REFUSED)
def test_refused(argument: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=rf"^{argument}[\w.\[\]]*: expected .*, got .*; .+") as caught:
        call()
    assert len(str(caught.value)) < 400
    assert re.match(r"^[\w.\[\]]+: ", str(caught.value))


def test_refused_every_time() -> None:
    """A refusal leaves nothing behind, and what was fine becomes wrong when it is changed in place."""
    layer, kind = conv(3, "mean", inverse=True), KIND.clone()
    right = layer(X, TO, None, kind)
    for wrong in (3, -1):
        kind[2] = wrong
        for _ in range(2):
            with pytest.raises(ValueError, match=r"^edge_type: "):
                layer(X, TO, None, kind)
        kind[2] = 2
        close(layer(X, TO, None, kind), right)


@pytest.mark.slow
def test_very_many_relations() -> None:
    """10^5, most without an edge: nothing of the size of relations x nodes is made, and empty ones take no time."""
    count, nodes, E = 10**5, 2000, 5000
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(nodes, (2, E), generator=generator)
    kind = torch.randint(count, (E,), generator=generator)
    layer = BasisConv(4, 4, bases.Relations(count, "mean"))
    x = draw(nodes, 4).float().requires_grad_()
    start = time.process_time()
    with Largest() as largest:
        y = layer(x, edge_index, edge_type=kind)
        y.sum().backward()
    assert time.process_time() - start < 10
    assert largest.numel <= 20 * count, largest.name
    counts: dict[tuple[int, int], int] = {}
    for r, n in zip(kind.tolist(), edge_index[1].tolist(), strict=True):
        counts[r, n] = counts.get((r, n), 0) + 1
    reference = torch.zeros(nodes, 4)
    for (m, n), r in zip(edge_index.t().tolist(), kind.tolist(), strict=True):
        reference[n] += (x[m] @ layer.weight[r]).detach() / counts[r, n]
    torch.testing.assert_close(y, reference, rtol=1e-4, atol=1e-5)
    assert layer.weight.grad.count_nonzero(dim=(1, 2)).bool().sum() == kind.unique().numel()
