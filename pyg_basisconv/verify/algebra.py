"""Consequences of the formula: the inversion from operator to parameter, and one layer in the place of two."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg

from .. import bases, theta
from ..algebra.compose import compose
from ..algebra.decompose import decompose
from ..algebra.folding import fold
from ..basis import Basis, BoundBasis
from ..conv import BasisConv
from ..grid import GridConv
from .comparison import Case, system
from .data import N, P, Q, drawn, features, graph
from .matrices import dense

H, WIDE = 3, 256


def _family(A: Tensor) -> BoundBasis:
    """Any K matrices, bound: (K, M, N)."""
    K, M, N = A.shape
    ends = torch.cartesian_prod(torch.arange(M), torch.arange(N)).t()
    return bases.Edges(K).bind(ends, A.flatten(1).t().contiguous(), size=(M, N))


def _nearest(phi: Tensor, A: Tensor) -> Tensor:
    """(K, P, Q) the least squares solution of least norm, by the pseudo-inverse of the matrices as columns."""
    flat = torch.linalg.pinv(A.flatten(1).t()) @ phi.flatten(0, 1).flatten(1)
    return flat.view(len(A), *phi.shape[2:])


@system("inversion", "dense least squares, by the pseudo-inverse")
def _inversion() -> Iterator[Case]:
    basis_of_all, few = features(12, 3, 4), features(5, 3, 4)
    dependent = torch.cat([few, few[:2] - 2 * few[2:4]])
    for A in (basis_of_all, few, dependent):
        family = _family(A)
        yield Case(
            lambda phi, family=family: decompose(phi, family).theta,
            lambda phi, A=A: _nearest(phi, A),
            [features(3, 4, P, Q)],
        )
    edge_index, weight = graph()
    bound = (bases.Identity() + bases.Powers(3, bases.Adjacency())).bind(edge_index, weight, size=N)
    yield Case(
        lambda phi: decompose(phi, bound).theta, lambda phi: _nearest(phi, bound.to_dense()), [features(N, N, P, Q)]
    )


@system("inversion, recovered", "the Theta of the operator")
def _recovered() -> Iterator[Case]:
    edge_index, weight = graph()
    kind = torch.arange(weight.numel()) % 3
    A = dense(edge_index, weight, kind, 3)
    bound = bases.Edges(3).bind(edge_index, weight, kind, size=N)
    yield Case(
        lambda parameter: decompose(torch.einsum("kmn,kpq->mnpq", A, parameter), bound).theta,
        lambda parameter: parameter * 1,
        [features(3, P, Q)],
    )


class GraphSequential(nn.Sequential):
    """Layers in sequence; those that pass messages read the graph."""

    def __init__(self, *steps: nn.Module) -> None:
        super().__init__(*steps)
        self.reads = [isinstance(step, pyg.MessagePassing) for step in steps]

    def forward(self, x: Tensor, *graph: Tensor) -> Tensor:
        for step, reads in zip(self, self.reads, strict=True):
            x = step(x, *graph) if reads else step(x)
        return x


def _layers(first: Basis, second: Basis, *kinds: theta.Theta) -> GraphSequential:
    layers = [(P, H, first), (H, Q, second)]
    made = [BasisConv(*layer, kind) for layer, kind in zip(layers, kinds or (theta.Full(), theta.Full()), strict=True)]
    return drawn(GraphSequential(*made))  # type: ignore[no-any-return]


@system("composition, one layer", "two layers with biases, one after the other")
def _composed() -> Iterator[Case]:
    edge_index, weight = graph()
    A, mean = bases.Adjacency(), bases.Identity() + bases.Adjacency("mean")
    pairs = [
        (A, A),
        (bases.Powers(3), bases.Powers(2)),
        (bases.Chebyshev(3), bases.Chebyshev(2)),
        (bases.Diffusion(2), bases.Diffusion(2)),
        (mean, bases.Chebyshev(3)),
        (bases.Identity(), bases.Powers(3)),
        (bases.Powers(3, A), bases.Identity()),
        (bases.Adjacency("rw").T, bases.Mix([0.5, 0.0, 2.0], bases.Powers(3))),
    ]
    made = [_layers(*pair) for pair in pairs]
    made.append(_layers(mean, mean, theta.Separable(2), theta.LowRank(2, bias=True)))
    made.append(_layers(mean, mean, theta.LowRank(2, bias=True), theta.Heads()))
    for stacked in made:
        composed = compose(*stacked)
        yield Case(composed, stacked, [features(2, N, P), weight], lambda f, x, w: f(x, edge_index, w))


@system("composition, windows", "two convolutions with biases, one after the other")
def _windows() -> Iterator[Case]:
    options: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        ({"stride": 2, "padding": 1}, {"dilation": 2}),
        ({"padding": 1}, {"padding": 1}),
        ({"padding": 1, "padding_mode": "circular"}, {"padding": 1, "padding_mode": "circular"}),
        ({"stride": 2}, {"stride": 2, "transposed": True}),
    ]
    for first, second in options:
        one = GridConv(P, H, bases.Window(None, (3, 3), **first))
        two = GridConv(H, Q, bases.Window(None, (2, 3), **second))
        stacked = drawn(GraphSequential(one, two))
        yield Case(compose(one, two), stacked, [features(2, P, 9, 11)])


def with_statistics(model: Any) -> Any:
    """A model in eval mode, with random parameters and running statistics."""
    for name, buffer in drawn(model).named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_()
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 2.0)
    return model.eval()


FOLDED: dict[str, Callable[[], Any]] = {
    "images": lambda: nn.Sequential(
        nn.BatchNorm2d(P),
        nn.Conv2d(P, H, 3, padding=1),
        nn.BatchNorm2d(H),
        nn.ReLU(),
        nn.Conv2d(H, WIDE, 3),
        nn.Dropout(),
        nn.Conv2d(WIDE, Q, 3),
        nn.ReLU(),
        nn.Conv2d(Q, Q, 3, groups=Q),
        nn.BatchNorm2d(Q, affine=False),
    ),
    "convolutions": lambda: GraphSequential(
        nn.Linear(P, P), pyg.GCNConv(P, H), pyg.BatchNorm(H), nn.ReLU(), pyg.TAGConv(H, Q), nn.Linear(Q, Q)
    ),
    "chain": lambda: GraphSequential(
        *(BasisConv(*widths, bases.Powers(2)) for widths in ((P, WIDE), (WIDE, WIDE), (WIDE, Q)))
    ),
}


@system("folding", "the model as it was")
def _folding() -> Iterator[Case]:
    edge_index, weight = graph()
    for name, make in FOLDED.items():
        model = with_statistics(make())
        leaves = [features(2, P, 9, 11)] if name == "images" else [features(N, P), weight]

        def call(f: Any, x: Tensor, *weights: Tensor) -> Tensor:
            return f(x, edge_index, *weights) if weights else f(x)  # type: ignore[no-any-return]

        example = leaves if name == "images" else [leaves[0], edge_index, weight]
        known: Any = fold(model, *example)
        if not known.folded:
            raise LookupError("nothing was folded")
        for folded in (known, fold(model)):
            yield Case(_function(folded), _function(model), leaves, call)


def _function(model: Any) -> Callable[..., Tensor]:
    """A model as a plain function, so that its parameters are not compared."""
    return lambda *args: model(*args)
