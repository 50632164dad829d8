"""Several affine maps of the same rows in one product, which layers use on a GPU, against a product for each."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric import nn as pyg

from pyg_basisconv import content, convert
from pyg_basisconv.convert import attention
from pyg_basisconv.kernels import dense, joined as of_joined, typed
from pyg_basisconv.kernels.joined import joined

M, P = 5, 3


def drawn(*shape: int, turned: bool = False) -> Tensor:
    t = torch.randn(shape, dtype=torch.float64)
    return (t.mT.contiguous().mT if turned else t).requires_grad_()


def each(x: Tensor, scales: tuple[float, ...], weights: list[Tensor], biases: list[Tensor]) -> list[Tensor]:
    """The definition: s (x W + b), head by head."""
    found = []
    for i, (scale, weight) in enumerate(zip(scales, weights, strict=True)):
        of_heads = weight.unsqueeze(2) if weight.dim() == 2 else weight
        heads = torch.cat([x @ matrix for matrix in of_heads], 1)
        found.append(scale * (heads + biases[i].flatten() if biases else heads))
    return found


CASES = {
    "one": ((1.0,), [(2, P, 4)]),
    "one with a scale": ((0.5,), [(2, P, 4)]),
    "one of vectors": ((1.0,), [(4, P)]),
    "several": ((1.0, 0.5, 1.0), [(2, P, 4)] * 3),
    "of several shapes": ((2.0, 1.0, 3.0), [(2, P, 4), (1, P, 3), (2, P)]),
}


@pytest.mark.parametrize("turned", [False, True], ids=["by input", "by output"])
@pytest.mark.parametrize("biased", [True, False], ids=["biased", ""])
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name: str, biased: bool, turned: bool) -> None:
    """Weights in memory by input, as parameters here, and by output, as in PyG's linear layers."""
    scales, shapes = CASES[name]
    x, weights = drawn(M, P), [drawn(*shape, turned=turned) for shape in shapes]
    biases = [drawn(s[0], *s[2:]) for s in shapes] if biased else []
    inputs = [x, *weights, *biases]
    found, expected = joined(x, scales, *weights, *biases), each(x, scales, weights, biases)
    with torch.no_grad():
        for y, again in zip(found, joined(x, scales, *weights, *biases), strict=True):
            assert y.equal(again)
    torch.testing.assert_close([*found], expected)
    down = [torch.randn_like(y) for y in expected]
    torch.testing.assert_close(*(torch.autograd.grad(ys, inputs, down) for ys in (found, expected)))


def test_second_derivatives() -> None:
    scales, shapes = CASES["of several shapes"]
    inputs = [drawn(M, P), *(drawn(*s) for s in shapes), *(drawn(s[0], *s[2:]) for s in shapes)]
    assert torch.autograd.gradgradcheck(lambda x, *given: joined(x, scales, *given), inputs)


def test_gradients_that_are_missing() -> None:
    """Of maps that nothing reads, of parameters that do not learn, and of rows that do not."""
    scales, shapes = CASES["several"]
    x, weights, biases = drawn(M, P), [drawn(*s) for s in shapes], [drawn(s[0], *s[2:]) for s in shapes]
    ys = joined(x, scales, *weights, *biases)
    found = torch.autograd.grad(ys[1].sum(), [x, *weights, *biases])
    theirs = torch.autograd.grad(
        each(x, scales, weights, biases)[1].sum(), [x, *weights, *biases], materialize_grads=True
    )
    torch.testing.assert_close(found, theirs)
    for frozen in ([x], weights, biases, [*weights, *biases]):
        learn = [t for t in (x, *weights, *biases) if not any(t is one for one in frozen)]
        given = [t.detach() if any(t is one for one in frozen) else t for t in (x, *weights, *biases)]
        runs = joined(given[0], scales, *given[1:]), each(x, scales, weights, biases)
        torch.testing.assert_close(*(torch.autograd.grad([y.square().sum() for y in run], learn) for run in runs))


def test_a_gradient_that_is_one_row_for_all() -> None:
    x, weight, bias = drawn(M, P), drawn(1, P, 4), drawn(4)
    (y,) = joined(x, (1.0,), weight, bias)
    theirs = F.linear(x, weight[0].t(), bias)
    torch.testing.assert_close(*(torch.autograd.grad(t.sum(), [x, weight, bias]) for t in (y, theirs)))


def test_a_parameter_that_has_changed_is_noticed() -> None:
    x, weight = drawn(M, P), drawn(1, P, 4)
    (y,) = joined(x, (1.0,), weight)
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_views_without_gradients_have_them_later() -> None:
    """As those of other tensors: a basis may be looked at before it is differentiated."""
    x, weight = drawn(M, P), drawn(1, P, 4)
    ys = joined(x, (1.0, 2.0), weight, weight)
    with torch.no_grad():
        views = [y.view(M, 2, 2) for y in ys]
    assert all(view.requires_grad for view in views)


# Layers, and how many maps of x there are in one product; those of a residual without a bias are apart from others.
LAYERS: dict[str, tuple[Callable[[], torch.nn.Module], int]] = {
    "GAT": (lambda: pyg.GATConv(P, 3, heads=2, residual=True), 2),
    "GATv2": (lambda: pyg.GATv2Conv(P, 3, heads=2, residual=True), 2),
    "Transformer": (lambda: pyg.TransformerConv(P, 3, heads=2), 4),
    "Transformer, a mixture": (lambda: pyg.TransformerConv(P, 3, heads=2, beta=True, bias=False), 4),
    "ResGated": (lambda: pyg.ResGatedGraphConv(P, 3), 3),
    "RGCN": (lambda: pyg.RGCNConv(P, 4, 50000), 0),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, but by the kernels for the CPU; in the second and third call, which may be replayed, too."""
    make, together = LAYERS[name]
    seen = []
    for module in (dense, content, attention, of_joined, typed):
        monkeypatch.setattr(module, "on_gpu", lambda t: True)
    monkeypatch.setattr(
        dense, "joined", lambda x, scales, *given: (seen.append(len(scales)), joined(x, scales, *given))[1]
    )
    theirs = make().double()
    mine, edges, x = convert(theirs), torch.randint(M, (2, 14)), drawn(M, P)
    more: tuple[Any, ...] = (torch.randint(50000, (14,)),) if name == "RGCN" else ()

    def gradients(layer: torch.nn.Module) -> tuple[Tensor, ...]:
        y = layer(x, edges, *more)
        return y.detach(), *torch.autograd.grad(y.square().sum(), x)

    expected = gradients(theirs)
    for _ in range(3):
        seen.clear()
        torch.testing.assert_close(gradients(mine), expected)
        assert seen == [together] * (together > 0)
