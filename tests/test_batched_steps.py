"""Small features with leading batch dimensions: one step for all of the batch, against graph by graph."""

from collections.abc import Callable
from functools import partial
from math import prod

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pyg_basisconv import BasisConv, bases, conv, theta

from .contract import DOUBLE, close, draw

N, P, Q = 7, 3, 2
EDGES = torch.tensor([[0, 1, 2, 3, 4, 4, 0, 5], [1, 2, 2, 0, 1, 3, 4, 0]])
KINDS = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1])
FAMILIES = {
    "one matrix": bases.GCN(),
    "identity beside": bases.Identity() + bases.Adjacency("mean"),
    "polynomial": bases.Chebyshev(3),
    "typed": bases.Relations(2, norm="mean"),
    "product": bases.Degree() @ bases.Powers(3),
}
CASES = [
    pytest.param(family, order, id=f"{name}-{order}") for name, family in FAMILIES.items() for order in conv.ORDERS
]
CASES = [case for case in CASES if case.values[1] in ("a_first", "theta_first")]


def called(layer: BasisConv, x: Tensor) -> Tensor:
    return layer(x, EDGES, edge_type=KINDS) if "Relations" in str(layer.basis) else layer(x, EDGES)


def graph_by_graph(layer: BasisConv, x: Tensor) -> Tensor:
    *lead, n, width = x.shape
    one_by_one = [called(layer, one) for one in x.reshape(prod(lead), n, width)]
    return torch.stack(one_by_one).reshape(*lead, n, -1)


@pytest.mark.parametrize("lead", [(1,), (4,), (2, 3)], ids=str)
@pytest.mark.parametrize(("family", "order"), CASES)
def test_values_and_gradients_are_those_of_each_graph(family: bases.Basis, order: str, lead: tuple[int, ...]) -> None:
    layer = BasisConv(P, Q, family, order=order).to(DOUBLE)
    x = draw(*lead, N, P).requires_grad_()
    wanted = [x, *layer.parameters()]
    for _ in range(2):  # as it is first bound, and by the program
        y, expected = called(layer, x), graph_by_graph(layer, x)
        close(y, expected)
        assert y.is_contiguous()
        towards = draw(*y.shape, seed=1)
        for mine, theirs in zip(
            torch.autograd.grad(y, wanted, towards), torch.autograd.grad(expected, wanted, towards), strict=True
        ):
            close(mine, theirs)


@pytest.mark.parametrize(("family", "order"), CASES)
def test_gradients_are_differentiated_again(family: bases.Basis, order: str) -> None:
    layer = BasisConv(P, Q, family, order=order).to(DOUBLE)
    weight = layer.weight.detach()
    more = {"edge_type": KINDS} if "Relations" in str(family) else {}

    def of(x: Tensor, weight: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"theta.weight": weight}, (x, EDGES), more)

    inputs = draw(2, N, P).requires_grad_(), weight.clone().requires_grad_()
    assert torch.autograd.gradgradcheck(of, inputs)


@pytest.mark.parametrize("lead", [(), (2,)], ids=str)
@pytest.mark.parametrize(("family", "order"), CASES)
def test_several_gradients_at_once(family: bases.Basis, order: str, lead: tuple[int, ...]) -> None:
    layer, x = BasisConv(P, Q, family, order=order).to(DOUBLE), draw(*lead, N, P).requires_grad_()
    y = called(layer, x)
    several = draw(3, *y.shape, seed=2)
    at_once = torch.autograd.grad(y, x, several, is_grads_batched=True, retain_graph=True)[0]
    close(at_once, torch.stack([torch.autograd.grad(y, x, g, retain_graph=True)[0] for g in several]))


@pytest.mark.parametrize("family", [bases.GCN(), bases.Chebyshev(3)], ids=str)
@pytest.mark.parametrize("parameter", [theta.Full, partial(theta.Separable, 2)], ids=["full", "separable"])
def test_several_gradients_at_once_of_a_checkpoint(family: bases.Basis, parameter: Callable[[], theta.Theta]) -> None:
    """The tensors that it computes again are plain ones, and have to be those that it computed first."""
    layer, x = BasisConv(P, Q, family, parameter(), order="a_first").to(DOUBLE), draw(N, P).requires_grad_()
    several = draw(3, N, Q, seed=2)
    expected = torch.stack([torch.autograd.grad(layer(x, EDGES), x, g)[0] for g in several])
    for edges in (EDGES, EDGES.clone(), EDGES):  # whose program is known, that are new of a known form, and again
        y = checkpoint(layer, x, edges, use_reentrant=False)
        close(torch.autograd.grad(y, x, several, is_grads_batched=True)[0], expected)


@pytest.mark.parametrize("seen", [0, 1, 3])
@pytest.mark.parametrize("parameter", [theta.Full, partial(theta.Separable, 2)], ids=["full", "separable"])
@pytest.mark.parametrize("order", ["a_first", "theta_first"])
def test_several_gradients_through_a_layer_at_once(order: str, parameter: Callable[[], theta.Theta], seen: int) -> None:
    """A hook may apply a layer to them, whether it has seen their graph or not."""
    layer, x = BasisConv(P, P, bases.GCN(), parameter(), order=order).to(DOUBLE), draw(N, P).requires_grad_()
    for edges in [EDGES.flip(0)] * seen:
        layer(draw(N, P), edges.clone())
    several, y = draw(3, N, P, seed=2), x * 1
    expected = torch.stack([layer(g, EDGES.clone()) for g in several])
    y.register_hook(lambda g: layer(g, EDGES))
    for _ in range(2):
        close(torch.autograd.grad(y, x, several, is_grads_batched=True, retain_graph=True)[0], expected)


@pytest.mark.parametrize(("family", "order"), CASES)
def test_expanded_features(family: bases.Basis, order: str) -> None:
    layer = BasisConv(P, Q, family, order=order).to(DOUBLE)
    for x in (draw(N, P).expand(3, N, P), draw(1, P).expand(3, N, P), draw(N, 3, P).transpose(0, 1)):
        close(called(layer, x), graph_by_graph(layer, x.clone()))


def test_a_result_is_the_callers_own() -> None:
    layer = BasisConv(P, P, bases.Adjacency(), theta.Pass(), bias=False)
    x = torch.randn(2, N, P)
    with torch.no_grad():
        y = layer(x, EDGES)
    before = y.clone()
    y.relu_()  # written to where gradients are recorded
    close(layer(x, EDGES), before)


def test_large_and_small_batches_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    x = draw(4, N, P)
    layers = [BasisConv(P, Q, bases.Chebyshev(3), order="theta_first").to(DOUBLE) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    small = layers[0](x, EDGES)
    monkeypatch.setattr(conv, "_BATCH", 0)
    close(layers[1](x, EDGES), small)


def test_no_copies_at_all() -> None:
    assert BasisConv(P, Q, bases.GCN())(torch.randn(0, N, P), EDGES).shape == (0, N, Q)
