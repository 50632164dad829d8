"""Relations, walks by sort, and hyperedges, against dense matrices."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch_geometric.data import HeteroData
from torch_geometric.transforms import AddMetaPaths

from .. import bases
from ..conv import BasisConv
from ..convert.hypergraphs import Hyperedges
from ..theta import Grouped, Separable, Theta
from .comparison import Case, system
from .data import N, P, Q, features
from .recipes import COUNTS, KINDS, R, incidence, typed_edges, typed_graph

NORMS: tuple[Any, ...] = (None, "row", "mean", "sym")
PER: tuple[Any, ...] = ("walk", "step")
Step = list[tuple[int, bool]]  # the relations that a step may follow, each with whether it is reversed

# Sorts over the relations a, b, c, ..., and the sequences of steps that each one stands for.
SORTS: dict[str, list[list[Step]]] = {
    "a.b": [[[(0, False)], [(1, False)]]],
    "^a.(b|c){1,2}": [
        [[(0, True)], [(1, False), (2, False)]],
        [[(0, True)], [(1, False), (2, False)], [(1, False), (2, False)]],
    ],
    "b{0,2}": [[], [[(1, False)]], [[(1, False)], [(1, False)]]],
    "(a|^c).d.(a.b|d)": [
        [[(0, False), (2, True)], [(3, False)], [(0, False)], [(1, False)]],
        [[(0, False), (2, True)], [(3, False)], [(3, False)]],
    ],
    "^(a.b.c)": [[[(2, True)], [(1, True)], [(0, True)]]],
    "e.a": [[[(4, False)], [(0, False)]]],  # relation e has no edge
}


def matrices(edge_index: Tensor, kind: Tensor, weight: Tensor, size: tuple[int, int] = (N, N)) -> Tensor:
    """(R, M, N) the weights of the edges of each type."""
    where = (kind, edge_index[0], edge_index[1])
    return weight.new_zeros(R, *size).index_put(where, weight, accumulate=True)


def over(A: Tensor, total: Tensor) -> Tensor:
    """A / total; zero where the total is zero."""
    return torch.where(total == 0, 0, A / torch.where(total == 0, 1, total))


def normalised(A: Tensor, norm: str | None, count: Tensor) -> Tensor:
    """Matrices (*, M, N), normalised; for a mean, `count` has the numbers of edges or walks."""
    row, column = A.sum(-1, keepdim=True), A.sum(-2, keepdim=True)
    if norm == "mean":
        return over(A, count.sum(-2, keepdim=True))
    if norm == "sym":
        return over(A, (row * column).sqrt())
    return A if norm is None else over(A, row)


def layer(basis: bases.Basis, theta: Theta | None = None, order: str = "auto") -> Callable[..., Tensor]:
    """A convolution as a function of its inputs and, by name, its parameters."""
    conv = BasisConv(P, Q, basis, theta, order=order, bias=False).double()

    def call(*args: Any, size: Any = None, **parameters: Tensor) -> Tensor:
        given = {f"theta.{name}": value for name, value in parameters.items()}
        y: Tensor = functional_call(conv, given, args, {"size": size})
        return y

    return call


def drawn_weights(kind: Tensor) -> tuple[Tensor, Tensor]:
    """A one and a random weight for each edge."""
    return torch.ones(kind.shape, dtype=torch.float64), torch.rand(kind.shape, dtype=torch.float64) + 0.1


@system("R-GCN, norms", "dense matrices of each relation")
def _norms() -> Iterator[Case]:
    for norm in NORMS:
        for inverse, loop, size in ((False, True, N), (True, False, N), (True, True, N), (False, True, 4)):
            yield _of_relations(bases.Relations(R, norm, inverse, loop), size)


def _of_relations(basis: bases.Relations, size: int) -> Case:
    edge_index, kind = typed_graph(N, size)
    ones, weight = drawn_weights(kind)
    count, call = matrices(edge_index, kind, ones, (N, size)), layer(basis)

    def ours(x: Tensor, w: Tensor, W: Tensor, *target: Tensor) -> Tensor:
        return call((x, *target) if target else x, edge_index, w, kind, weight=W)

    def theirs(x: Tensor, w: Tensor, W: Tensor, *target: Tensor) -> Tensor:
        A = matrices(edge_index, kind, w, (N, size))
        both = [(A, count), (A.mT, count.mT)][: 1 + basis.inverse]
        total = torch.cat([normalised(B, basis.norm, c) for B, c in both])
        y = torch.einsum("mp,kmn,kpq->nq", x, total, W[: len(total)])
        return y + (target[0] if target else x) @ W[-1] if basis.self_loop else y

    other = [] if size == N else [features(size, P)]
    return Case(ours, theirs, [features(N, P), weight, features(basis.K, P, Q), *other])


@system("R-GCN, bases and blocks", "dense matrices of each relation")
def _decompositions() -> Iterator[Case]:
    edge_index, kind = typed_graph()
    count = matrices(edge_index, kind, drawn_weights(kind)[0])
    A = normalised(count, "mean", count)
    for order in ("auto", "a_first", "theta_first", "phi", "compacted", "mixed"):
        yield _of_bases(edge_index, kind, A, order)
        if order != "mixed":  # only for decompositions into bases
            yield _of_blocks(edge_index, kind, A, order)


def _of_bases(edge_index: Tensor, kind: Tensor, A: Tensor, order: str) -> Case:
    call = layer(bases.Relations(R, "mean"), Separable(3), order)
    return Case(
        lambda x, W, mix: call(x, edge_index, None, kind, weight=W, mix=mix),
        lambda x, W, mix: torch.einsum("mp,kmn,hpq,hk->nq", x, A, W, mix),
        [features(N, P), features(3, P, Q), features(3, R)],
    )


def _of_blocks(edge_index: Tensor, kind: Tensor, A: Tensor, order: str) -> Case:
    call = layer(bases.Relations(R, "mean"), Grouped(2), order)
    return Case(
        lambda x, W: call(x, edge_index, None, kind, weight=W),
        lambda x, W: torch.einsum("mgp,kmn,kgpq->ngq", x.unflatten(-1, (2, -1)), A, W).flatten(1),
        [features(N, P), features(R, 2, P // 2, Q // 2)],
    )


def products(A: Tensor, count: Tensor, norm: str | None = None) -> tuple[Tensor, Tensor]:
    """(K, N, N) for each sort the sum of the products of its normalised steps; and the number of walks."""
    weighed, counted = [], []
    for sequences in SORTS.values():
        total, walks = torch.zeros_like(A[0]), torch.zeros_like(A[0])
        for steps in sequences:
            B = C = torch.eye(N, dtype=A.dtype)
            for step in steps:
                W, c = (sum(D[r].mT if inverse else D[r] for r, inverse in step) for D in (A, count))
                B, C = B @ normalised(W, norm, c), C @ c  # type: ignore[arg-type]
            total, walks = total + B, walks + C
        weighed.append(total)
        counted.append(walks)
    return torch.stack(weighed), torch.stack(counted)


@system("walks of a sort", "products of dense matrices")
def _walks() -> Iterator[Case]:
    edge_index, kind = typed_graph()
    for per, norm, order in product(PER, NORMS, ("auto", "a_first", "theta_first")):
        yield _of_walks(bases.Walks(list(SORTS), list("abcde"), norm, per), edge_index, kind, order)
    for norm in NORMS:
        yield _of_binary(bases.Walks(list(SORTS), list("abcde"), norm, binary=True), edge_index, kind)


def _of_walks(basis: bases.Walks, edge_index: Tensor, kind: Tensor, order: str) -> Case:
    ones, weight = drawn_weights(kind)
    count, call = matrices(edge_index, kind, ones), layer(basis, order=order)

    def theirs(x: Tensor, w: Tensor, W: Tensor) -> Tensor:
        each = basis.norm if basis.per == "step" else None
        A, walks = products(matrices(edge_index, kind, w), count, each)
        A = normalised(A, None if basis.per == "step" else basis.norm, walks)
        return torch.einsum("mp,kmn,kpq->nq", x, A, W)

    leaves = [features(N, P), weight, features(basis.K, P, Q)]
    return Case(lambda x, w, W: call(x, edge_index, w, kind, weight=W), theirs, leaves)


def _of_binary(basis: bases.Walks, edge_index: Tensor, kind: Tensor) -> Case:
    count, call = matrices(edge_index, kind, drawn_weights(kind)[0]), layer(basis)
    there = products(count, count)[1].ne(0).double()
    A = normalised(there, basis.norm, there)
    return Case(
        lambda x, W: call(x, edge_index, None, kind, weight=W),
        lambda x, W: torch.einsum("mp,kmn,kpq->nq", x, A, W),
        [features(N, P), features(basis.K, P, Q)],
    )


@system("metapaths", "torch_geometric.transforms.AddMetaPaths")
def _metapaths() -> Iterator[Case]:
    to, of, within, on = KINDS
    paths = [[to, of], [within, to], [of, within, within], [to, on, to, of]]
    data = HeteroData()
    for k, count in COUNTS.items():
        data[k].num_nodes = count
    for relation, edge_index in typed_edges().items():
        data[relation].edge_index = torch.unique(edge_index, dim=1).contiguous()  # torch's product may crash otherwise
    added, whole = AddMetaPaths(paths, weighted=True)(data.clone()), data.to_homogeneous()
    start, total = {"a": 0, "b": COUNTS["a"]}, sum(COUNTS.values())
    basis = bases.Walks(paths, data)
    call = layer(basis)

    def theirs(x: Tensor, W: Tensor) -> Tensor:
        y = x.new_zeros(total, Q)
        for k, path in enumerate(paths):
            first, last = path[0][0], path[-1][-1]
            found = added[first, f"metapath_{k}", last]
            place = found.edge_index + torch.tensor([[start[first]], [start[last]]])
            A = x.new_zeros(total, total).index_put(tuple(place), found.edge_weight.to(x), accumulate=True)
            y = y + A.t() @ x @ W[k]
        return y

    leaves = [features(total, P), features(basis.K, P, Q)]
    yield Case(lambda x, W: call(x, whole.edge_index, None, whole.edge_type, weight=W), theirs, leaves)


@system("hyperedges", "D^-1 H B^-1 H^T x, dense")
def _hyperedges() -> Iterator[Case]:
    index = incidence()
    H = torch.zeros(N, 7, dtype=torch.float64)
    H = H.index_put(tuple(index), torch.ones(index.shape[1]).double(), accumulate=True)

    def theirs(x: Tensor, w: Tensor, W: Tensor) -> Tensor:
        return over(H @ over(H.t() @ x, H.sum(0)[:, None]), (H @ w)[:, None]) @ W[0]

    for order in ("auto", "a_first", "theta_first", "phi"):
        call = layer(Hyperedges(), order=order)

        def ours(x: Tensor, w: Tensor, W: Tensor, call: Callable[..., Tensor] = call) -> Tensor:
            return call(x, index, w[index[1]], size=(N, 7), weight=W)

        yield Case(ours, theirs, [features(N, P), torch.rand(7, dtype=torch.float64) + 0.1, features(1, P, Q)])
