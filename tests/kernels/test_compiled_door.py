"""What does not go to the compiled kernels as it came: hooks, traces, results that are written to, misfits."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv

from pyg_basisconv import BasisConv, bases, convert, theta
from pyg_basisconv.kernels import Pattern, ProjectedScores, Sums, lists, scored_attention
from pyg_basisconv.mechanisms import MLP

LAYERS = {
    "GAT": lambda: GATConv(8, 4, heads=2, bias=False),
    "GATv2": lambda: GATv2Conv(8, 4, heads=2, bias=False),
    "Transformer": lambda: TransformerConv(8, 4, heads=2, root_weight=False),
}


def given() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(7, 8, dtype=torch.float64), torch.randint(0, 7, (2, 30))


def converted(name: str) -> tuple[Tensor, Tensor, nn.Module]:
    x, edges = given()
    torch.manual_seed(1)
    return x, edges, convert(LAYERS[name]()).double()


def hidden(activation: Callable[[Tensor], Tensor]) -> BasisConv:
    torch.manual_seed(1)
    basis = bases.Attention(2, MLP(4, activation=activation), bases.Adjacency())
    return BasisConv(8, 6, basis, theta.Heads()).double()


@pytest.mark.parametrize("name", LAYERS)
def test_a_result_may_be_written_to_in_place(name):
    """`F.relu(conv(x), inplace=True)` is what many models do; PyG's layers let it happen."""
    x, edges, layer = converted(name)
    x.requires_grad_()
    (expected,) = torch.autograd.grad(F.elu(layer(x, edges)).sum(), x)
    (found,) = torch.autograd.grad(F.elu_(layer(x, edges)).sum(), x)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_that_are_negative_views(name):
    """Their memory holds the negated numbers."""
    x, edges, layer = converted(name)
    x.requires_grad_()
    y = layer(x, edges)
    grad = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, x, grad, retain_graph=True)
    (found,) = torch.autograd.grad(y, x, torch._neg_view(-grad))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", [*LAYERS, "Pairs"])
def test_hooks_that_give_saved_tensors_back_with_other_strides(name):
    """As those that write them to a file of columns do."""
    if name == "Pairs":
        x, edges, layer = torch.randn(2, 7, 8, dtype=torch.float64), None, convert(nn.MultiheadAttention(8, 2)).double()
    else:
        x, edges, layer = converted(name)
    x.requires_grad_()

    def run() -> Tensor:
        y = layer(x, x, x)[0] if edges is None else layer(x, edges)
        return y.square().sum()

    learn = [x, *layer.parameters()]
    expected = torch.autograd.grad(run(), learn, materialize_grads=True)
    with saved_tensors_hooks(Tensor.detach, lambda t: torch.from_numpy(np.asfortranarray(t.numpy()))):
        y = run()
    torch.testing.assert_close(torch.autograd.grad(y, learn, materialize_grads=True), expected)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.sweep(1)
def test_what_is_traced_reads_its_input(name):
    """A trace records torch's operations: it may be refused, and not have the result in it as a constant."""
    x, edges, layer = converted(name)
    layer.requires_grad_(False)
    try:
        traced = make_fx(lambda x: layer(x, edges))(x)
    except RuntimeError:
        return
    torch.testing.assert_close(traced(2 * x), layer(2 * x, edges))


def test_hooks_on_the_gradient_of_an_activation():
    x, edges = given()
    activation, called = nn.ReLU(), []
    activation.register_full_backward_hook(lambda *_: called.append(True))
    hidden(activation)(x, edges).sum().backward()
    assert called


def test_hooks_on_all_modules_may_change_an_activation():
    x, edges = given()

    def hook(module: nn.Module, args: tuple[Tensor], y: Tensor) -> Tensor | None:
        return args[0].sin() if type(module) is nn.ReLU else None

    handle = nn.modules.module.register_module_forward_hook(hook)
    try:
        found = hidden(nn.ReLU())(x, edges)
    finally:
        handle.remove()
    torch.testing.assert_close(found, hidden(torch.sin)(x, edges))


def test_an_activation_whose_forward_was_replaced():
    x, edges = given()
    activation = nn.ReLU()
    activation.forward = torch.sin
    torch.testing.assert_close(hidden(activation)(x, edges), hidden(torch.sin)(x, edges))


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param((0, np.ones(1, np.float64)), id="weights of another dtype"),
        pytest.param((np.int64(0), None), id="a kind that is numpy's"),
    ],
)
def test_lists_that_do_not_fit_are_refused_or_read(entry):
    """What the kernel did not write is never given back."""
    kind, weight = entry
    edges = lists.List(kind, np.array([0], np.int32), np.array([1], np.int32), weight)
    try:
        _, ptr, index = lists.compressed([edges], 1, (2, 2), "target", torch.float32)
    except ValueError:
        return
    assert ptr.tolist() == [0, 0, 1]
    assert index.tolist() == [0]


def test_vectors_of_another_shape_are_refused():
    """The kernels would read beyond them."""
    x, edges = given()
    layer = hidden(nn.ReLU())
    layer.basis.mechanism.out = nn.Parameter(layer.basis.mechanism.out[:1].detach().clone())
    with pytest.raises((ValueError, RuntimeError)):
        layer(x, edges)


def test_vectors_of_another_width_are_refused_by_the_kernels():
    ends = torch.tensor([0, 1])
    a, b = torch.randn(2, 1), torch.randn(2, 1)
    with pytest.raises((ValueError, RuntimeError)):
        scored_attention(Sums(ProjectedScores(), True, Pattern(ends, ends, 2, 2), 2), torch.randn(2, 8), [a, b])
