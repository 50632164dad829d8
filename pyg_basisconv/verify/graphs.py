"""The formula, and the linear layers on graphs."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.func import functional_call

from .. import bases
from ..conv import BasisConv
from .comparison import Case, formula, system
from .data import N, P, Q, features, graph
from .matrices import by_matrices, chebyshev, dense, diffusion, layer, wavelets

FORCED = ("a_first", "theta_first", "phi")


@system("triangle", "dense einsum, three orders")
def _triangle() -> Iterator[Case]:
    edge_index, weight = graph()
    kind = torch.randint(0, 3, weight.shape)
    shared = torch.rand(weight.numel(), 3, dtype=torch.float64)
    for order, x in product(FORCED, (features(N, P), features(2, 3, N, P))):
        yield by_matrices(
            layer(bases.Edges(3), order=order),
            lambda w: dense(edge_index, w, kind, 3),
            [x, weight],
            lambda f, x, w: f(x, edge_index, w, kind),
        )
        yield by_matrices(
            layer(bases.Edges(3), order=order),
            lambda w: torch.cat([dense(edge_index, v) for v in w.unbind(1)]),
            [x, shared],
            lambda f, x, w: f(x, edge_index, w),
        )


@system("mixed product", "dense einsum of a o b")
def _mixed_product() -> Iterator[Case]:
    edge_index, weight = graph()
    kind = torch.randint(0, 3, weight.shape)
    # Applied to the identity, the convolution gives the operator itself, (M P, N Q).
    eye = torch.eye(N * P, dtype=torch.float64).view(N * P, N, P)
    for order in FORCED:
        yield formula(
            layer(bases.Edges(3), order=order),
            lambda c, w: torch.einsum("kmn,kpq->mpnq", dense(edge_index, w, kind, 3), c.theta.weight),
            [weight],
            lambda f, w: f(eye, edge_index, w, kind).view(N, P, N, Q),
        )


@system("composition", "two layers, one after the other")
def _composition() -> Iterator[Case]:
    edge_index, weight = graph()
    families = [bases.Identity() + bases.Adjacency("mean"), bases.Diffusion(2), bases.Chebyshev(3)]

    def conv(basis: bases.Basis, P: int, Q: int, order: str = "auto") -> Callable[..., Tensor]:
        made = BasisConv(P, Q, basis, order=order, bias=False).double()
        return lambda x, theta, w: functional_call(made, {"theta.weight": theta}, (x, edge_index, w))

    for first, second in zip(families, families[1:] + families[:1], strict=True):
        one, two = conv(first, P, 3), conv(second, 3, Q)
        for order in FORCED:
            both = conv(first @ second, P, Q, order)
            yield Case(
                lambda x, w, a, b, both=both: both(x, torch.einsum("kpr,lrq->klpq", a, b).flatten(0, 1), w),
                lambda x, w, a, b, one=one, two=two: two(one(x, a, w), b, w),
                [features(N, P), weight, features(first.K, P, 3), features(second.K, 3, Q)],
            )


def _of_graph(basis: bases.Basis, matrices: Callable[[Tensor], Tensor]) -> Case:
    """A basis against matrices that are a function of the weighted adjacency."""
    edge_index, weight = graph()
    return by_matrices(
        layer(basis),
        lambda w: matrices(dense(edge_index, w)[0]),
        [features(N, P), weight],
        lambda f, x, w: f(x, edge_index, w),
    )


@system("ChebNet, dense", "the sum of dense T_k(2 L / lambda - I)")
def _chebyshev() -> Iterator[Case]:
    for K in (1, 2, 5):
        yield _of_graph(bases.Chebyshev(K, lambda_max=1.7), partial(chebyshev, K=K, lambda_max=1.7))


@system("diffusion", "the formula of DCRNN, dense")
def _diffusion() -> Iterator[Case]:
    for K in (1, 2, 4):
        yield _of_graph(bases.Diffusion(K), partial(diffusion, K=K))


@system("diffusion wavelets", "dense differences of dyadic powers")
def _wavelets() -> Iterator[Case]:
    for J, sym in ((1, False), (2, True), (4, False)):
        walk = bases.Adjacency("sym" if sym else "rw")
        yield _of_graph(bases.Wavelets(J, walk), partial(wavelets, J=J, sym=sym))
