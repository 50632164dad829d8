"""Relations, walks by sort, and hyperedges, against dense matrices."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.transforms import AddMetaPaths

from .. import bases
from ..convert.hypergraphs import Hyperedges
from ..theta import Grouped, Separable
from .comparison import Case, formula, system
from .data import N, P, features
from .matrices import applied, by_matrices, dense, layer, normalised, over
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


def weights(kind: Tensor) -> Tensor:
    """Random weights of edges."""
    return torch.rand(kind.shape, dtype=torch.float64) + 0.1


def counts(edge_index: Tensor, kind: Tensor, size: tuple[int, int] = (N, N)) -> Tensor:
    """(R, M, N) the numbers of edges of each type."""
    return dense(edge_index, torch.ones(kind.shape, dtype=torch.float64), kind, R, size)


@system("R-GCN, norms", "dense matrices of each relation")
def _norms() -> Iterator[Case]:
    for norm in NORMS:
        for inverse, loop, size in ((False, True, N), (True, False, N), (True, True, N), (False, True, 4)):
            yield _of_relations(bases.Relations(R, norm, inverse, loop), size)


def _of_relations(basis: bases.Relations, size: int) -> Case:
    edge_index, kind = typed_graph(N, size)
    count = counts(edge_index, kind, (N, size))

    def theirs(c: Any, x: Tensor, w: Tensor, *target: Tensor) -> Tensor:
        A, W = dense(edge_index, w, kind, R, (N, size)), c.theta.weight
        both = [(A, count), (A.mT, count.mT)][: 1 + basis.inverse]
        total = torch.cat([normalised(B, basis.norm, n) for B, n in both])
        y = applied(x, total, W[: len(total)])
        return y + (target[0] if target else x) @ W[-1] if basis.self_loop else y

    leaves = [features(N, P), weights(kind), *([] if size == N else [features(size, P)])]
    return formula(
        layer(basis), theirs, leaves, lambda f, x, w, *target: f((x, *target) if target else x, edge_index, w, kind)
    )


@system("R-GCN, bases and blocks", "dense matrices of each relation")
def _decompositions() -> Iterator[Case]:
    edge_index, kind = typed_graph()
    A = normalised(counts(edge_index, kind), "mean", counts(edge_index, kind))

    def of_bases(c: Any, x: Tensor) -> Tensor:
        return torch.einsum("mp,kmn,hpq,hk->nq", x, A, c.theta.weight, c.theta.mix)

    def of_blocks(c: Any, x: Tensor) -> Tensor:
        return torch.einsum("mgp,kmn,kgpq->ngq", x.unflatten(-1, (2, -1)), A, c.theta.weight).flatten(1)

    for order in ("auto", "a_first", "theta_first", "phi", "compacted", "mixed"):
        for theta, theirs in ((Separable(3), of_bases), (Grouped(2), of_blocks)):
            if order != "mixed" or theirs is of_bases:  # it is only for decompositions into bases
                conv = layer(bases.Relations(R, "mean"), theta, order)
                yield formula(conv, theirs, [features(N, P)], lambda f, x: f(x, edge_index, None, kind))


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
    count, sorts = counts(edge_index, kind), (list(SORTS), list("abcde"))

    def walked(basis: bases.Walks, w: Tensor) -> Tensor:
        stepwise = basis.per == "step"
        A, walks = products(dense(edge_index, w, kind, R), count, basis.norm if stepwise else None)
        return A if stepwise else normalised(A, basis.norm, walks)

    for per, norm, order in product(PER, NORMS, ("auto", "a_first", "theta_first")):
        basis = bases.Walks(*sorts, norm, per)
        yield by_matrices(
            layer(basis, order=order),
            lambda w, basis=basis: walked(basis, w),
            [features(N, P), weights(kind)],
            lambda f, x, w: f(x, edge_index, w, kind),
        )
    there = products(count, count)[1].ne(0).double()
    for norm in NORMS:
        yield by_matrices(
            layer(bases.Walks(*sorts, norm, binary=True)),
            lambda norm=norm: normalised(there, norm, there),
            [features(N, P)],
            lambda f, x: f(x, edge_index, None, kind),
        )


@system("metapaths", "torch_geometric.transforms.AddMetaPaths")
def _metapaths() -> Iterator[Case]:
    to, of, within, on = KINDS
    paths = [[to, of], [within, to], [of, within, within], [to, on, to, of]]
    data = HeteroData()
    for node_type, count in COUNTS.items():
        data[node_type].num_nodes = count
    for relation, edge_index in typed_edges().items():
        data[relation].edge_index = torch.unique(edge_index, dim=1).contiguous()  # torch's product may crash otherwise
    added, whole = AddMetaPaths(paths, weighted=True)(data.clone()), data.to_homogeneous()
    start, total = {"a": 0, "b": COUNTS["a"]}, sum(COUNTS.values())
    members = []
    for k, path in enumerate(paths):
        first, last = path[0][0], path[-1][-1]
        found = added[first, f"metapath_{k}", last]
        place = found.edge_index + torch.tensor([[start[first]], [start[last]]])
        members.append(dense(place, found.edge_weight.double(), size=(total, total)))
    yield by_matrices(
        layer(bases.Walks(paths, data)),
        lambda: torch.cat(members),
        [features(total, P)],
        lambda f, x: f(x, whole.edge_index, None, whole.edge_type),
    )


@system("hyperedges", "D^-1 H B^-1 H^T x, dense")
def _hyperedges() -> Iterator[Case]:
    index = incidence()
    H = dense(index, torch.ones(index.shape[1], dtype=torch.float64), size=(N, 7))[0]
    weight = torch.rand(7, dtype=torch.float64) + 0.1
    for order in ("auto", "a_first", "theta_first", "phi"):
        yield formula(
            layer(Hyperedges(), order=order),
            lambda c, x, w: over(H @ over(H.t() @ x, H.sum(0)[:, None]), (H @ w)[:, None]) @ c.theta.weight[0],
            [features(N, P), weight],
            lambda f, x, w: f(x, index, w[index[1]], size=(N, 7)),
        )
