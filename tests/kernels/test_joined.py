"""Several affine maps of the same rows in one product, on a GPU and on the CPU, against a product for each."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric import nn as pyg

from pyg_basisconv import content, convert
from pyg_basisconv.convert import attention
from pyg_basisconv.kernels import dense, joined as of_joined, onepass, typed
from pyg_basisconv.kernels.joined import joined, joined_columns
from pyg_basisconv.kernels.memory import side_by_side

M, P = 5, 3
Joined = Callable[..., Any]


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


WAYS = pytest.mark.parametrize("joined", [joined, joined_columns], ids=["GPU", "CPU"])


@WAYS
@pytest.mark.parametrize("turned", [False, True], ids=["by input", "by output"])
@pytest.mark.parametrize("biased", [True, False], ids=["biased", ""])
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(joined: Joined, name: str, biased: bool, turned: bool) -> None:
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


@WAYS
def test_second_derivatives(joined: Joined) -> None:
    scales, shapes = CASES["of several shapes"]
    inputs = [drawn(M, P), *(drawn(*s) for s in shapes), *(drawn(s[0], *s[2:]) for s in shapes)]
    assert torch.autograd.gradgradcheck(lambda x, *given: joined(x, scales, *given), inputs)


@WAYS
def test_gradients_that_are_missing(joined: Joined) -> None:
    """Of maps that nothing reads, of parameters that do not learn, and of rows that do not."""
    scales, shapes = CASES["several"]
    x, weights, biases = drawn(M, P), [drawn(*s) for s in shapes], [drawn(s[0], *s[2:]) for s in shapes]
    ys = joined(x, scales, *weights, *biases)
    found = torch.autograd.grad(ys[1].sum(), [x, *weights, *biases], materialize_grads=True)
    theirs = torch.autograd.grad(
        each(x, scales, weights, biases)[1].sum(), [x, *weights, *biases], materialize_grads=True
    )
    torch.testing.assert_close(found, theirs)
    for frozen in ([x], weights, biases, [*weights, *biases]):
        learn = [t for t in (x, *weights, *biases) if not any(t is one for one in frozen)]
        given = [t.detach() if any(t is one for one in frozen) else t for t in (x, *weights, *biases)]
        runs = joined(given[0], scales, *given[1:]), each(x, scales, weights, biases)
        torch.testing.assert_close(*(torch.autograd.grad([y.square().sum() for y in run], learn) for run in runs))


@WAYS
def test_a_gradient_that_is_one_row_for_all(joined: Joined) -> None:
    x, weight, bias = drawn(M, P), drawn(1, P, 4), drawn(4)
    (y,) = joined(x, (1.0,), weight, bias)
    theirs = F.linear(x, weight[0].t(), bias)
    torch.testing.assert_close(*(torch.autograd.grad(t.sum(), [x, weight, bias]) for t in (y, theirs)))


@WAYS
def test_a_parameter_that_has_changed_is_noticed(joined: Joined) -> None:
    x, weight = drawn(M, P), drawn(1, P, 4)
    (y,) = joined(x, (1.0,), weight)
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("order", ["side by side", "turned round", "apart", "in two"])
@pytest.mark.parametrize("frozen", ["", "rows", "parameters"])
def test_gradients_anywhere_in_memory(order: str, frozen: str) -> None:
    """Those that lie side by side, as the results do, are multiplied at once; it makes no difference."""
    scales, shapes = CASES["of several shapes"]
    x, weights, biases = drawn(M, P), [drawn(*s) for s in shapes], [drawn(s[0], *s[2:]) for s in shapes]
    learn = [*([] if frozen == "rows" else [x]), *([] if frozen == "parameters" else [*weights, *biases])]
    for t in (x, *weights, *biases):
        t.requires_grad_(any(t is one for one in learn))
    ys = joined_columns(x, scales, *weights, *biases)
    assert side_by_side(ys) is not None
    sizes = [y.shape[1] for y in ys]
    down = torch.randn(M, sum(sizes), dtype=torch.float64)
    parts = [*down.split(sizes, 1)]
    if order == "turned round":
        parts = [*down.split(sizes[::-1], 1)][::-1]
    elif order == "apart":
        parts = [t.clone() for t in parts]
    elif order == "in two":
        parts[2] = parts[2].clone()
    assert (side_by_side(parts) is not None) == (order == "side by side")
    theirs = each(x, scales, weights, biases)
    torch.testing.assert_close(*(torch.autograd.grad(run, learn, parts) for run in (ys, theirs)))


@WAYS
def test_views_without_gradients_have_them_later(joined: Joined) -> None:
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
    "RGCN": (lambda: pyg.FastRGCNConv(P, 4, 50000), 0),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, but by the kernels for the CPU; in the second and third call, which may be replayed, too."""
    make, together = LAYERS[name]
    seen = []
    for module in (dense, content, attention, typed):
        monkeypatch.setattr(module, "on_gpu", lambda t: True)
    monkeypatch.setattr(
        dense, "joined", lambda x, scales, *given: (seen.append(len(scales)), joined(x, scales, *given))[1]
    )
    theirs = make().double()
    mine, edges, x = convert(theirs), torch.randint(M, (2, 14)), drawn(M, P)
    more: tuple[Any, ...] = (torch.randint(50000, (14,)),) if name == "RGCN" else ()

    expected = gradients(theirs, x, edges, *more)
    for _ in range(3):
        seen.clear()
        torch.testing.assert_close(gradients(mine, x, edges, *more), expected)
        assert seen == [together] * (together > 0)


def gradients(layer: torch.nn.Module, x: Tensor, *structure: Any) -> tuple[Tensor, ...]:
    """The result, and the gradients of the features and of all parameters, by their sizes."""
    y = layer(x, *structure)
    found = torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])
    return y.detach(), found[0], torch.cat([t.flatten() for t in found[1:]]).sort().values


# Layers of many nodes, and how many maps of x there are in one product.
LARGE: dict[str, tuple[Callable[[], torch.nn.Module], int]] = {
    "GATv2": (lambda: pyg.GATv2Conv(P, 3, heads=2, residual=True), 2),
    "GATv2, shared": (lambda: pyg.GATv2Conv(P, 3, heads=2, share_weights=True), 0),
    "Transformer": (lambda: pyg.TransformerConv(P, 3, heads=2), 3),
    "Transformer, edges": (lambda: pyg.TransformerConv(P, 3, heads=2, edge_dim=2), 3),
    "ResGated": (lambda: pyg.ResGatedGraphConv(P, 5), 3),
}


@pytest.mark.skipif(dense.KERNELS is None, reason="the compiled kernels were not built")
@pytest.mark.parametrize("name", LARGE)
def test_layers_of_many_nodes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU their kernels read the columns of one product, whose gradient they write side by side."""
    make, together = LARGE[name]
    seen, multiplied = [], []
    monkeypatch.setattr(dense, "_SMALL", 0)
    monkeypatch.setattr(onepass, "_WIDE", 0)
    monkeypatch.setattr(
        dense,
        "joined_columns",
        lambda x, scales, *given: (seen.append(len(scales)), joined_columns(x, scales, *given))[1],
    )
    monkeypatch.setattr(
        of_joined,
        "side_by_side",
        lambda parts: (multiplied.append(side_by_side(parts) is not None), side_by_side(parts))[1],
    )
    theirs = make().double()
    mine, edges, x = convert(theirs), torch.randint(M, (2, 14)), drawn(M, P)
    more = (torch.randn(14, 2, dtype=torch.float64),) if "edges" in name else ()
    expected = gradients(theirs, x, edges, *more)
    for _ in range(3):
        seen.clear()
        multiplied.clear()
        torch.testing.assert_close(gradients(mine, x, edges, *more), expected)
        assert (seen, multiplied) == ([together] * (together > 0), [True] * (together > 0))
