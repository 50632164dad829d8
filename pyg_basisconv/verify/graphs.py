"""The formula, and the linear layers on graphs."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor
from torch.func import functional_call

from .. import bases
from ..conv import BasisConv
from ..convert import convert
from ..theta import Pass
from .comparison import Case, over_options, system
from .data import N, P, Q, drawn, features, graph
from .matrices import applied, chebyshev, dense, diffusion, inverse

# What is added to (P, Q) in the making of each layer; all of them are converted.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "GCNConv": [
        {},
        {"improved": True},
        {"add_self_loops": False},
        {"normalize": False},
        {"bias": False},
        {"cached": True},
        {"flow": "target_to_source"},
        {"normalize": False, "aggr": "mean"},
        {"decomposed_layers": 2},
    ],
    "ChebConv": [
        *({"K": K, "normalization": norm} for K in (1, 2, 4) for norm in ("sym", "rw", None)),
        {"K": 3, "bias": False},
        {"K": 3, "flow": "target_to_source"},
        {"K": 3, "normalization": "rw", "flow": "target_to_source"},
    ],
    "TAGConv": [
        {},
        {"K": 0},
        {"K": 2, "normalize": False},
        {"bias": False},
        {"flow": "target_to_source"},
        {"K": 2, "normalize": False, "aggr": "mean"},
    ],
    "SGConv": [
        {},
        {"K": 0},
        {"K": 3},
        {"K": 2, "add_self_loops": False},
        {"K": 2, "cached": True, "bias": False},
        {"K": 2, "flow": "target_to_source"},
    ],
    "SSGConv": [
        {"alpha": 0.1},
        {"alpha": 0.3, "K": 3},
        {"alpha": 0.0, "K": 2, "add_self_loops": False},
        {"alpha": 0.1, "K": 2, "cached": True, "bias": False},
        {"alpha": 0.1, "K": 2, "flow": "target_to_source"},
    ],
    "MixHopConv": [
        {},
        {"powers": [1]},
        {"powers": [0, 3]},
        {"powers": [2, 0, 1]},
        {"powers": [1, 2, 1]},
        {"powers": [1, 1], "bias": False},
        {"add_self_loops": False},
        {"bias": False},
        {"flow": "target_to_source"},
    ],
    "LGConv": [{}, {"normalize": False}, {"normalize": False, "aggr": "mean"}, {"flow": "target_to_source"}],
    "SimpleConv": [
        *(
            {"aggr": aggr, "combine_root": root}
            for aggr in ("sum", "mean")
            for root in (None, "sum", "cat", "self_loop")
        ),
        {"aggr": "add", "flow": "target_to_source"},
    ],
    "GraphConv": [
        {},
        {"aggr": "mean"},
        {"bias": False},
        {"flow": "target_to_source"},
    ],
    "SAGEConv": [
        {},
        {"aggr": "sum"},
        {"normalize": True},
        {"root_weight": False},
        {"root_weight": False, "normalize": True},
        {"project": True},
        {"project": True, "normalize": True, "root_weight": False},
        {"bias": False},
        {"flow": "target_to_source"},
    ],
    "ClusterGCNConv": [
        {},
        {"diag_lambda": 0.7},
        {"diag_lambda": 0.7, "add_self_loops": False},
        {"bias": False},
        {"diag_lambda": 0.7, "flow": "target_to_source"},
    ],
    "LEConv": [{}, {"bias": False}, {"flow": "target_to_source"}],
}
FORCED = ("a_first", "theta_first", "phi")
WITHOUT_WEIGHTS = ("SAGEConv", "ClusterGCNConv")
WITHOUT_CHANNELS = ("LGConv", "SimpleConv")


def layer(kind: str, **options: Any) -> Any:
    """A PyG layer with random parameters."""
    return drawn(getattr(pyg, kind)(*(() if kind in WITHOUT_CHANNELS else (P, Q)), **options))


def converted(kind: str, options: dict[str, Any]) -> Iterator[Case]:
    """A PyG layer and what `convert` makes of it: without weights, in a batch, and with weights."""
    reference = layer(kind, **options)
    ours = convert(reference)
    # PyG's ClusterGCNConv is defined for one loop per node, if need be given in order.
    every = kind == "ClusterGCNConv" and not options.get("add_self_loops", True)
    edge_index, weight = graph(range(N) if every else (2,))
    # PyG counts the first axis of x for SimpleConv's loops, and has no batch there.
    shapes = [(N, P)] if options.get("combine_root") == "self_loop" else [(N, P), (2, N, P)]
    for shape in shapes:
        forget(reference)
        yield Case(ours, reference, [features(*shape)], lambda f, x: f(x, edge_index))
    if kind not in WITHOUT_WEIGHTS:
        forget(reference)
        yield Case(ours, reference, [features(N, P), weight], lambda f, x, w: f(x, edge_index, w))


def forget(reference: Any) -> None:
    """What a reference with cached=True kept of another graph."""
    for name in ("_cached_edge_index", "_cached_adj_t", "_cached_x", "_cached_h"):
        if hasattr(reference, name):
            setattr(reference, name, None)


def _conv(basis: bases.Basis, P: int, Q: int, order: str = "auto") -> Callable[..., Tensor]:
    """The convolution as a function of x, Theta and the graph."""
    conv = BasisConv(P, Q, basis, order=order, bias=False).double()
    return lambda x, theta, *graph: functional_call(conv, {"theta.weight": theta}, (x, *graph))


@system("triangle", "dense einsum, three orders")
def _triangle() -> Iterator[Case]:
    edge_index, weight = graph()
    kind = torch.randint(0, 3, weight.shape)
    shared = torch.rand(weight.numel(), 3, dtype=torch.float64)
    for order in FORCED:
        conv = _conv(bases.Edges(3), P, Q, order)
        for x in (features(N, P), features(2, 3, N, P)):
            yield Case(
                lambda x, w, theta, conv=conv: conv(x, theta, edge_index, w, kind),
                lambda x, w, theta: applied(x, dense(edge_index, w, kind, 3), theta),
                [x, weight, features(3, P, Q)],
            )
            yield Case(
                lambda x, w, theta, conv=conv: conv(x, theta, edge_index, w),
                lambda x, w, theta: applied(x, torch.stack([dense(edge_index, v)[0] for v in w.unbind(1)]), theta),
                [x, shared, features(3, P, Q)],
            )


@system("mixed product", "dense einsum of a o b")
def _mixed_product() -> Iterator[Case]:
    edge_index, weight = graph()
    kind = torch.randint(0, 3, weight.shape)
    # All of x at once, so that what comes out is the operator itself: (M P, N Q) from the identity.
    eye = torch.eye(N * P, dtype=torch.float64).view(N * P, N, P)
    for order in FORCED:
        conv = _conv(bases.Edges(3), P, Q, order)
        yield Case(
            lambda w, theta, conv=conv: conv(eye, theta, edge_index, w, kind).view(N, P, N, Q),
            lambda w, theta: torch.einsum("kmn,kpq->mpnq", dense(edge_index, w, kind, 3), theta),
            [weight, features(3, P, Q)],
        )


@system("composition", "two layers, one after the other")
def _composition() -> Iterator[Case]:
    edge_index, weight = graph()
    families = [bases.Identity() + bases.Adjacency("mean"), bases.Diffusion(2), bases.Chebyshev(3)]
    for first, second in zip(families, families[1:] + families[:1], strict=True):
        one, two = _conv(first, P, 3), _conv(second, 3, Q)
        for order in FORCED:
            both = _conv(first @ second, P, Q, order)
            yield Case(
                lambda x, w, a, b, both=both: both(x, torch.einsum("kpr,lrq->klpq", a, b).flatten(0, 1), edge_index, w),
                lambda x, w, a, b, one=one, two=two: two(one(x, a, edge_index, w), b, edge_index, w),
                [features(N, P), weight, features(first.K, P, 3), features(second.K, 3, Q)],
            )


@system("ChebNet, dense", "the sum of dense T_k(2 L / lambda - I)")
def _chebyshev() -> Iterator[Case]:
    edge_index, weight = graph()

    def reference(x: Tensor, w: Tensor, theta: Tensor) -> Tensor:
        return applied(x, chebyshev(dense(edge_index, w)[0], len(theta), 1.7), theta)

    for K in (1, 2, 5):
        conv = _conv(bases.Chebyshev(K, lambda_max=1.7), P, Q)
        yield Case(
            lambda x, w, theta, conv=conv: conv(x, theta, edge_index, w),
            reference,
            [features(N, P), weight, features(K, P, Q)],
        )


@system("diffusion", "the formula of DCRNN, dense")
def _diffusion() -> Iterator[Case]:
    edge_index, weight = graph()

    def reference(x: Tensor, w: Tensor, theta: Tensor) -> Tensor:
        return applied(x, diffusion(dense(edge_index, w)[0], len(theta) // 2), theta)

    for K in (1, 2, 4):
        conv = _conv(bases.Diffusion(K), P, Q)
        yield Case(
            lambda x, w, theta, conv=conv: conv(x, theta, edge_index, w),
            reference,
            [features(N, P), weight, features(2 * K, P, Q)],
        )


@system("diffusion wavelets", "dense differences of dyadic powers")
def _wavelets() -> Iterator[Case]:
    edge_index, weight = graph()

    def reference(x: Tensor, w: Tensor, theta: Tensor, sym: bool) -> Tensor:
        W = dense(edge_index, w)[0]
        root = inverse(W.sum(0)).sqrt()
        S = root[:, None] * W * root[None, :] if sym else inverse(W.sum(1))[:, None] * W
        T = (torch.eye(N, dtype=W.dtype) + S) / 2
        scales = [0, *(2**j for j in range(len(theta) - 1))]
        powers = [torch.linalg.matrix_power(T, s) for s in scales]
        return applied(x, torch.stack([a - b for a, b in pairwise(powers)] + powers[-1:]), theta)

    for J, sym in ((1, False), (2, True), (4, False)):
        conv = _conv(bases.Wavelets(J, bases.Adjacency("sym" if sym else "rw")), P, Q)
        yield Case(
            lambda x, w, theta, conv=conv: conv(x, theta, edge_index, w),
            lambda x, w, theta, sym=sym: reference(x, w, theta, sym),
            [features(N, P), weight, features(J + 1, P, Q)],
        )


@system("APPNP", "torch_geometric.nn.APPNP")
def _appnp() -> Iterator[Case]:
    edge_index, weight = graph()
    for K, alpha, loops in ((1, 0.5, True), (4, 0.1, True), (10, 0.2, False)):
        powers = bases.Powers(K + 1, bases.Adjacency("sym", self_loops=loops))
        C = [alpha * (1 - alpha) ** k for k in range(K)] + [(1 - alpha) ** K]
        ours = BasisConv(-1, -1, bases.Mix(C, powers), Pass(), bias=False)
        reference = pyg.APPNP(K, alpha, add_self_loops=loops)
        yield Case(ours, reference, [features(N, P), weight], lambda f, x, w: f(x, edge_index, w))


for _name, _kind in {
    "GCN": "GCNConv",
    "ChebNet": "ChebConv",
    "TAG, powers": "TAGConv",
    "SGC, one power": "SGConv",
    "SSGC, mixed powers": "SSGConv",
    "MixHop, powers as heads": "MixHopConv",
    "LightGCN": "LGConv",
    "sum and mean": "SimpleConv",
    "GraphConv": "GraphConv",
    "SAGE": "SAGEConv",
    "Cluster-GCN": "ClusterGCNConv",
    "local extremum": "LEConv",
}.items():
    over_options(_name, _kind, converted, OPTIONS)
