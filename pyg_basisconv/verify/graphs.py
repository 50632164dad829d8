"""The formula, and the linear layers on graphs."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor
from torch.func import functional_call

from .. import bases
from ..conv import BasisConv
from .comparison import Case, system
from .data import N, P, Q, features, graph
from .matrices import applied, chebyshev, dense, diffusion, inverse

FORCED = ("a_first", "theta_first", "phi")


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
    # Applied to the identity, the convolution gives the operator itself, (M P, N Q).
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
