"""Sequences of steps: each sequence as if it ran alone, and each step as the cell takes it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

from pyg_basisconv import bases
from pyg_basisconv.recurrent import BasisCell, BasisGRUCell, BasisRNN, sequence
from tests import cases
from tests.bases.grids.cases import draw
from tests.contract import alike
from tests.recurrent.test_cells import KINDS, PLACES, H, Kind, P, Place, edges, named, tensors

GRAPH = cases.graph(M=5, E=9)
LENGTHS = [2, 5, 1, 5]  # in no order, one of them twice
T, B = 5, len(LENGTHS)
Run = Callable[..., tuple[Any, Any]]


def joined(*states: Any) -> Any:
    """The states of a batch, of those of its entries."""
    if isinstance(states[0], tuple):
        return tuple(torch.stack(parts) for parts in zip(*states, strict=True))
    return torch.stack(states)


def part(state: Any, b: int) -> Any:
    return tuple(s[b] for s in state) if isinstance(state, tuple) else state[b]


def alone(rnn: BasisRNN, x: Tensor, state: Any, structure: dict[str, Any], truncate: int | None = None) -> Any:
    """Steps of the cells, one after the other, layer by layer; the state detached where a gradient is to end."""
    states = [state] if rnn.single else list(state)
    for i, cell in enumerate(rnn.cells):
        outputs = []
        for t, step in enumerate(x.unbind(0)):
            if truncate and t and t % truncate == 0:
                states[i] = tuple(s.detach() for s in states[i]) if isinstance(states[i], tuple) else states[i].detach()
            states[i] = cell(step, h=states[i], **structure)
            outputs.append(tensors(states[i])[0])
        x = torch.stack(outputs)
    return x, states[0] if rnn.single else states


def layers(kind: Kind, place: Place, count: int) -> BasisRNN:
    """One cell, or several."""
    first = kind.make(place)
    if count == 1:
        return BasisRNN(first).double()
    rest = [type(first)(H, H, place.basis(), images=place.images, **kind.options) for _ in range(count - 1)]
    return BasisRNN([first, *rest]).double()


def begin(rnn: BasisRNN, place: Place) -> tuple[Tensor, Any]:
    x = draw(T, *place.shape((B,), P), seed=1).requires_grad_()
    states = []
    for i, cell in enumerate(rnn.cells):
        state = [draw(*place.shape((B,), H), seed=10 * i + j + 2).requires_grad_() for j in range(len(cell.names))]
        states.append(tuple(state) if len(state) > 1 else state[0])
    return x, states[0] if rnn.single else states


def same(found: tuple[Any, Any], expected: tuple[Any, Any], leaves: dict[str, Tensor]) -> None:
    """Outputs, states and all gradients."""
    alike(found, expected, leaves, 1e-12)


def leaves_of(rnn: BasisRNN, x: Tensor, state: Any) -> dict[str, Tensor]:
    return {"x": x, **{f"state {i}": s for i, s in enumerate(tree_leaves(state))}, **dict(rnn.named_parameters())}


def each_alone(rnn: BasisRNN, x: Tensor, state: Any, structure: dict[str, Any], truncate: int | None = None) -> Any:
    """Each sequence of a batch for as long as it is, and zeros behind."""
    outputs, ends = [], []
    for b, length in enumerate(LENGTHS):
        mine = part(state, b) if rnn.single else [part(s, b) for s in state]
        if rnn.cells[0].images:
            y, end = alone(rnn, x[:length, b : b + 1], *lifted(rnn, mine), structure, truncate)
            y, end = y[:, 0], lowered(rnn, end)
        else:
            y, end = alone(rnn, x[:length, b], mine, structure, truncate)
        outputs.append(torch.cat([y, y.new_zeros(T - length, *y.shape[1:])]))
        ends.append(end)
    state = joined(*ends) if rnn.single else [joined(*of_layer) for of_layer in zip(*ends, strict=True)]
    return torch.stack(outputs, 1), state


def lifted(rnn: BasisRNN, state: Any) -> tuple[Any]:
    """With a batch of one."""
    if isinstance(state, Tensor):
        return (state.unsqueeze(0),)
    return (type(state)(lifted(rnn, s)[0] for s in state),)


def lowered(rnn: BasisRNN, state: Any) -> Any:
    return state.squeeze(0) if isinstance(state, Tensor) else type(state)(lowered(rnn, s) for s in state)


def packed(rnn: BasisRNN, x: Tensor, lengths: list[int], *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
    """The outputs, padded, of sequences that were packed, and the state."""
    given = pack_padded_sequence(x, torch.tensor(lengths), rnn.batch_first, enforce_sorted=False)
    outputs, end = rnn(given, *args, **kwargs)
    assert isinstance(outputs, PackedSequence)
    return pad_packed_sequence(outputs, rnn.batch_first, total_length=T)[0], end


def check_lengths(run: BasisRNN, kind: Kind, place: Place, truncate: int | None = None) -> None:
    """Packed, each sequence is as it is alone."""
    x, state = begin(run, place)
    found = packed(run, x, LENGTHS, h=state, truncate=truncate, **place.structure)
    same(found, each_alone(run, x, state, place.structure, truncate), leaves_of(run, x, state))


def check_truncated(run: BasisRNN, kind: Kind, place: Place, truncate: int) -> None:
    """As with the state detached by hand."""
    x, state = begin(run, place)
    found = run(x, h=state, truncate=truncate, **place.structure)
    same(found, alone(run, x, state, place.structure, truncate), leaves_of(run, x, state))


SOME = {name: PLACES[name] for name in ("diffusion", "window, images", "attention")}
RUNS = [  # one cell anywhere, and two layers where a step is cheap
    pytest.param(kind, SOME[place], count, id=f"{count} {name}, {place}")
    for name, kind in KINDS.items()
    for place, count in (("diffusion", 2), ("window, images", 1), ("attention", 1))
    if name in ("GRU", "LSTM, peepholes per position") or (name, place) == ("RNN", "diffusion")
]
COUNTS = [pytest.param(1, id="one cell"), pytest.param(2, id="two layers")]


@pytest.mark.parametrize(("kind", "place", "count"), RUNS)
def test_a_sequence_is_its_steps(kind: Kind, place: Place, count: int) -> None:
    rnn = layers(kind, place, count)
    x, state = begin(rnn, place)
    found = rnn(x, h=state, **place.structure)
    same(found, alone(rnn, x, state, place.structure), leaves_of(rnn, x, state))


@pytest.mark.parametrize(("kind", "place", "count"), RUNS)
def test_lengths(kind: Kind, place: Place, count: int) -> None:
    check_lengths(layers(kind, place, count), kind, place)


@pytest.mark.parametrize("truncate", [1, 2, 7])
@pytest.mark.parametrize("kind", named({name: KINDS[name] for name in ("GRU", "LSTM")}))
@pytest.mark.sweep(3)
def test_truncated_backpropagation(kind: Kind, truncate: int) -> None:
    for count in (1, 2):
        check_truncated(layers(kind, PLACES["diffusion"], count), kind, PLACES["diffusion"], truncate)
    check_lengths(layers(kind, PLACES["diffusion"], 1), kind, PLACES["diffusion"], truncate)


def test_a_gradient_goes_back_so_many_steps() -> None:
    rnn = layers(KINDS["GRU"], PLACES["diffusion"], 1)
    x, state = begin(rnn, PLACES["diffusion"])
    outputs, _ = rnn(x, edges, state, truncate=2)
    of_x, of_state = grad(outputs[3].sum(), [x, state])
    assert [bool(g.any()) for g in of_x] == [False, False, True, True, False]
    assert not of_state.any()


def test_packed_sequences_that_are_sorted_have_no_order() -> None:
    rnn = layers(KINDS["LSTM"], PLACES["diffusion"], 1)
    x, state = begin(rnn, PLACES["diffusion"])
    given = pack_padded_sequence(x, torch.tensor([5, 5, 2, 1]))
    assert given.sorted_indices is None
    found, end = rnn(given, edges, state)
    assert found.sorted_indices is None
    padded = pad_packed_sequence(found, total_length=T)[0]
    same((padded, end), packed(rnn, x, [5, 5, 2, 1], edges, state), leaves_of(rnn, x, state))


@pytest.mark.parametrize("place", named(SOME))
@pytest.mark.parametrize("lengths", [pytest.param(None, id="all"), pytest.param(LENGTHS, id="lengths")])
def test_batch_first(place: Place, lengths: list[int] | None) -> None:
    rnn = layers(KINDS["GRU"], place, 1)
    x, state = begin(rnn, place)
    first = BasisRNN(rnn.cells[0], batch_first=True)
    of_first, of_rnn = (one if lengths is None else partial(packed, one) for one in (first, rnn))
    given = () if lengths is None else (lengths,)
    outputs, end = of_first(x.transpose(0, 1), *given, h=state, **place.structure)
    right = of_rnn(x, *given, h=state, **place.structure)
    same((outputs.transpose(0, 1), end), right, leaves_of(rnn, x, state))


@pytest.mark.parametrize("batch", [pytest.param((), id="none"), pytest.param((2, 3), id="two")])
def test_batch_dimensions(batch: tuple[int, ...]) -> None:
    rnn = layers(KINDS["GRU"], PLACES["diffusion"], 2)
    x = draw(T, *batch, 5, P, seed=1).requires_grad_()
    states = [draw(*batch, 5, H, seed=2 + i) for i in range(2)]
    same(rnn(x, edges, states), alone(rnn, x, states, {"edge_index": edges}), {"x": x})


@pytest.mark.parametrize("count", COUNTS)
def test_no_state_is_zeros(count: int) -> None:
    rnn = layers(KINDS["LSTM"], PLACES["diffusion"], count)
    x, state = begin(rnn, PLACES["diffusion"])
    zeros = [tuple(torch.zeros_like(s) for s in of_cell) for of_cell in ([state] if count == 1 else state)]
    same(rnn(x, edges), rnn(x, edges, zeros[0] if count == 1 else zeros), {"x": x})


def test_images_without_a_batch() -> None:
    """Where the basis says how many axes a grid has."""
    rnn = layers(KINDS["LSTM"], PLACES["window, images"], 1)
    x, _ = begin(rnn, PLACES["window, images"])
    found, end = rnn(x[:, 0])
    right, right_end = rnn(x)
    same((found, end), (right[:, 0], part(right_end, 0)), {"x": x})


def test_images_of_one_axis_without_a_batch() -> None:
    """Of a basis that is of no grid, images have as many axes as there are; of a step without a batch, one."""
    rnn = BasisRNN(BasisGRUCell(P, H, bases.Identity(), images=True)).double()
    x = draw(T, 2, P, 5)
    assert_close(rnn(x[:, 0])[0], rnn(x)[0][:, 0])


# What depends on the structure is done once.


def test_the_structure_is_bound_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where edge weights learn, so that nothing is kept from one binding to the next."""
    rnn = layers(KINDS["GRU"], PLACES["diffusion"], 1)
    x, state = begin(rnn, PLACES["diffusion"])
    weight = GRAPH.weight.clone().requires_grad_()
    structure = {"edge_index": edges, "edge_weight": weight}
    right = alone(rnn, x, state, structure)
    bound, build = [], bases.Diffusion.build
    monkeypatch.setattr(bases.Diffusion, "build", lambda basis, graph: bound.append(graph) or build(basis, graph))
    found = rnn(x, h=state, **structure)
    assert len(bound) == 1
    same(found, right, leaves_of(rnn, x, state) | {"weight": weight})


def test_weights_of_another_dtype_than_the_sequence_under_autocast() -> None:
    """As the cells take them, step by step."""
    rnn, structure = network(), {"edge_index": edges, "edge_weight": GRAPH.weight.float()}
    x = torch.randn(T, 5, 3).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = rnn(x, **structure)
        expected, _ = alone(rnn, x, torch.zeros(5, 4), structure)
    assert_close(found.float(), expected.float(), rtol=0, atol=0.05)


def test_small_steps_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a call costs more than what it computes; large ones one at a time, with the same results."""
    rnn = layers(KINDS["GRU"], PLACES["diffusion"], 2)
    calls: list[tuple[int, ...]] = []
    read = BasisCell.read
    monkeypatch.setattr(BasisCell, "read", lambda cell, x, **k: calls.append(tuple(x.shape)) or read(cell, x, **k))
    x, state = begin(rnn, PLACES["diffusion"])
    at_once = [rnn(x, edges, state), packed(rnn, x, LENGTHS, edges, state)]
    assert calls == [(T, B, 5, P), (T, B, 5, H), (sum(LENGTHS), 5, P), (sum(LENGTHS), 5, H)]
    calls.clear()
    monkeypatch.setattr(sequence, "_SMALL", 0)
    apart = [rnn(x, edges, state), packed(rnn, x, LENGTHS, edges, state)]
    there = [sum(length > t for length in LENGTHS) for t in range(T)]
    assert calls == [(n, 5, width) for of_all in ([B] * T, there) for width in (P, H) for n in of_all]
    for found, expected in zip(apart, at_once, strict=True):
        same(found, expected, leaves_of(rnn, x, state))


def test_a_bound_basis_in_place_of_edges() -> None:
    rnn = layers(KINDS["GRU"], PLACES["diffusion"], 2)
    x, state = begin(rnn, PLACES["diffusion"])
    bound = bases.Diffusion(2).bind(edges, size=5, dtype=torch.float64)
    same(rnn(x, bound, state), rnn(x, edges, state), leaves_of(rnn, x, state))


@pytest.mark.slow
def test_a_compiled_sequence() -> None:
    rnn = layers(KINDS["GRU"], PLACES["diffusion"], 1)
    x, state = begin(rnn, PLACES["diffusion"])
    torch._dynamo.reset()
    fast, x = torch.compile(rnn, fullgraph=True, backend="aot_eager"), x[:2].detach().requires_grad_()
    same(fast(x, edges, state), rnn(x, edges, state), leaves_of(rnn, x, state))
    torch._dynamo.reset()


# Errors at the door.


def network(**options: Any) -> BasisRNN:
    return BasisRNN(BasisGRUCell(3, 4, bases.Diffusion(2)), **options)


def made(*cells: Any) -> Callable[[], Any]:
    return lambda: BasisRNN(list(cells))


def run(*shape: int, **given: Any) -> Callable[[], Any]:
    """A call of a network on x of a shape."""
    return lambda: network()(torch.randn(*shape), edges, **given)


X = (6, 2, 5, 3)


def run_packed(**given: Any) -> Callable[[], Any]:
    return lambda: network()(pack_padded_sequence(torch.randn(*X), torch.tensor([6, 2])), edges, **given)


FAULTY = {
    "no cell": (made(), "cells: expected a cell, or a list of them"),
    "another module": (made(nn.GRUCell(3, 4)), "cells: expected a cell, or a list of them, got .'GRUCell'."),
    "widths that do not join": (
        made(BasisGRUCell(3, 4, bases.Identity()), BasisGRUCell(3, 4, bases.Identity())),
        r"cells\[1\]: expected in_channels = 4",
    ),
    "rows after images": (
        made(
            BasisGRUCell(3, 4, bases.Window(None, (3, 3), padding=1), images=True), BasisGRUCell(4, 4, bases.Identity())
        ),
        r"cells\[1\]: expected images=True",
    ),
    "batch_first": (lambda: network(batch_first=1), "batch_first: expected True or False, got 1"),
    "x no tensor": (lambda: network()([[1.0]], edges), "x: expected a tensor, or a PackedSequence, got list"),
    "one step": (run(5, 3), r"x: expected a sequence \(T, \*, M, P\), got shape \(5, 3\)"),
    "one step, batch first": (
        lambda: network(batch_first=True)(torch.randn(2, 5, 3), edges),
        r"x: expected a sequence \(B, T, M, P\), got shape \(2, 5, 3\)",
    ),
    "T = 0": (run(0, 2, 5, 3), "x: expected at least one step, got shape .*T = 0"),
    "T = 0, batch first": (
        lambda: network(batch_first=True)(torch.randn(2, 0, 5, 3), edges),
        "x: expected at least one step, got shape .*T = 0",
    ),
    "T = 0 of images": (
        lambda: BasisRNN(BasisGRUCell(3, 4, bases.Window(None, (3, 3), padding=1), images=True))(
            torch.randn(0, 2, 3, 5, 5)
        ),
        "x: expected at least one step",
    ),
    "one image": (
        lambda: BasisRNN(BasisGRUCell(3, 4, bases.Window(None, (3, 3), padding=1), images=True))(torch.randn(3, 5, 5)),
        r"x: expected a sequence \(T, \*, P, \*grid\)",
    ),
    "channels": (run(6, 2, 5, 7), "x: expected 3 channels"),
    "lengths beside x": (run(*X, lengths=[6, 2]), "lengths: expected no such .*; pack the sequences"),
    "a PackedSequence without nodes": (
        lambda: network()(pack_padded_sequence(torch.randn(6, 2, 3), torch.tensor([6, 2])), edges),
        r"x: expected a sequence \(S, M, P\), got shape \(8, 3\)",
    ),
    "truncate 0": (run(*X, truncate=0), "truncate: expected an integer from 1 on, got 0"),
    "truncate a number": (run(*X, truncate=2.0), "truncate: expected an integer from 1 on, got 2.0"),
    "a state of another batch": (
        run(*X, h=torch.zeros(3, 5, 4)),
        r"h: expected shape \(2, 5, 4\), as x, got \(3, 5, 4\)",
    ),
    "a state of another batch, lengths": (
        run_packed(h=torch.zeros(3, 5, 4)),
        r"h: expected shape \(2, 5, 4\), as x, got \(3, 5, 4\)",
    ),
    "states for one cell": (run(*X, h=[torch.zeros(2, 5, 4)]), "h: expected a tensor, got list"),
    "a state for several cells": (
        lambda: BasisRNN([network().cells[0]])(torch.randn(*X), edges, torch.zeros(2, 5, 4)),
        "h: expected a list of 1 states, one for each cell, got Tensor",
    ),
    "too many states": (
        lambda: BasisRNN([network().cells[0]])(torch.randn(*X), edges, [None, None]),
        "h: expected a list of 1 states, one for each cell, got 2 of them",
    ),
    "no edges": (lambda: network()(torch.randn(*X)), "edge_index: expected the edges that Diffusion.* needs"),
    "edges out of range": (
        lambda: network()(torch.randn(*X), torch.tensor([[0], [5]])),
        "edge_index",
    ),
    "masks of each sequence": (
        run_packed(mask=torch.ones(2, 5, 5)),
        r"mask: expected one for all sequences, where these are packed, got shape \(2, 5, 5\)",
    ),
    "sources of each sequence": (run_packed(valid=torch.ones(2, 5) > 0), "valid: expected one for all"),
    "features of edges": (run(*X, edge_attr=torch.zeros(9, 2)), "edge_attr: expected None, for Diffusion"),
}


@pytest.mark.parametrize(("call", "message"), [pytest.param(*row, id=name) for name, row in FAULTY.items()])
def test_errors_at_the_door(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_hooks_and_cells_of_ones_own_are_called() -> None:
    class Doubled(BasisGRUCell):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return 2 * super().forward(*args, **kwargs)

    x = draw(3, 2, 4, 2)
    plain, doubled = (kind(2, 5, bases.Identity()).double() for kind in (BasisGRUCell, Doubled))
    doubled.load_state_dict(plain.state_dict())
    expected = None
    for step in x:
        expected = 2 * plain(step, h=expected)
    assert_close(BasisRNN(doubled)(x)[1], expected)
    seen: list[int] = []
    plain.register_forward_hook(lambda *_: seen.append(1))
    BasisRNN(plain)(x)
    assert len(seen) == 3
