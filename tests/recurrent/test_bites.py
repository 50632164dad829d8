"""The checks of recurrent cells can fail: cells and sequences with one thing wrong do not pass them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils._pytree import tree_map

from pyg_basisconv.recurrent import BasisCell, BasisGRUCell, BasisLSTMCell, BasisRNN, BasisRNNCell, sequence
from pyg_basisconv.verify import SYSTEMS, verify
from tests.recurrent.test_cells import KINDS, PLACES, H, Kind, check, named
from tests.recurrent.test_sequences import LENGTHS, check_lengths, check_truncated, layers

PLACE = PLACES["diffusion"]
Step = Callable[..., Any]


def gru(
    order: str = "rzn",
    turned: bool = False,
    after: bool = False,
    resets: bool = True,
    reads: bool = True,
    squash: Callable[[Tensor], Tensor] = torch.tanh,
    cut: bool = False,
) -> Step:
    """A step of a GRU; with the defaults, the right one."""

    def step(cell: Any, gates: Tensor, h: Tensor, **structure: Any) -> Tensor:
        x = dict(zip(order, gates.split(H, -1), strict=True))
        u = dict(zip([gate for gate in order if gate != "n"], cell.hidden(h, **structure).split(H, -1), strict=True))
        r, z = (x["r"] + u["r"]).sigmoid(), (x["z"] + u["z"]).sigmoid()
        if not resets:
            r = torch.ones_like(r)
        of_h = r * cell.candidate(h, **structure) if after else cell.candidate(r * h, **structure)
        n = squash(x["n"] + of_h if reads else of_h)
        before = h.detach() if cut else h
        return (1 - z) * before + z * n if turned else z * before + (1 - z) * n

    return step


def lstm(
    order: str = "ifgo",
    peeps: str = "ifo",
    late: bool = True,
    opened: bool = True,
    cut: bool = False,
    swap: bool = False,
) -> Step:
    """A step of an LSTM; with the defaults, the right one."""

    def step(cell: Any, gates: Tensor, state: tuple[Tensor, Tensor], **structure: Any) -> tuple[Tensor, Tensor]:
        h, c = state
        pre = dict(zip(order, (gates + cell.hidden(h, **structure)).split(H, -1), strict=True))
        V = dict.fromkeys("ifo", 0.0) | dict(zip(peeps, () if cell.peephole is None else cell.peephole, strict=False))
        i, f = (pre["i"] + V["i"] * c).sigmoid(), (pre["f"] + V["f"] * c).sigmoid()
        new = f * (c.detach() if cut else c) + i * pre["g"].tanh()
        o = (pre["o"] + V["o"] * (new if late else c)).sigmoid()
        h = o * (new.tanh() if opened else new)
        return (new, h) if swap else (h, new)

    return step


WRONG: dict[str, tuple[str, Step]] = {
    "r and z exchanged": ("GRU", gru(order="zrn")),
    "z turned": ("GRU", gru(turned=True)),
    "reset after": ("GRU", gru(after=True)),
    "no reset": ("GRU", gru(resets=False)),
    "a candidate without x": ("GRU", gru(reads=False)),
    "a candidate by a sigmoid": ("GRU", gru(squash=torch.sigmoid)),
    "no gradient through the state": ("GRU", gru(cut=True)),
    "i and f exchanged": ("LSTM", lstm(order="figo")),
    "g and o exchanged": ("LSTM", lstm(order="ifog")),
    "h without tanh": ("LSTM", lstm(opened=False)),
    "h and c exchanged": ("LSTM", lstm(swap=True)),
    "no gradient through c": ("LSTM", lstm(cut=True)),
    "o peeps at the c before": ("LSTM, peepholes per channel", lstm(late=False)),
    "peepholes of i and f exchanged": ("LSTM, peepholes per channel", lstm(peeps="fio")),
    "no peephole of o": ("LSTM, peepholes per channel", lstm(peeps="if")),
}


def changed(kind: Kind, **methods: Any) -> BasisCell:
    """A cell with other methods."""
    cell = kind.make(PLACE)
    cell.__class__ = type(kind.cell.__name__, (kind.cell,), methods)
    return cell


@pytest.mark.parametrize(
    ("name", "step"),
    [pytest.param("GRU", gru(), id="GRU"), pytest.param("LSTM, peepholes per channel", lstm(), id="LSTM")],
)
def test_the_right_steps_pass(name: str, step: Step) -> None:
    check(KINDS[name], PLACE, changed(KINDS[name], step=step))


@pytest.mark.parametrize(("name", "step"), [pytest.param(*row, id=about) for about, row in WRONG.items()])
@pytest.mark.sweep(6)
def test_a_wrong_step_fails(name: str, step: Step) -> None:
    with pytest.raises(AssertionError):
        check(KINDS[name], PLACE, changed(KINDS[name], step=step))


def without_weights(cell: BasisCell, x: Tensor, **structure: Any) -> Tensor:
    return BasisCell.read(cell, x, edge_index=structure["edge_index"])


def against_the_edges(cell: BasisCell, x: Tensor, **structure: Any) -> Tensor:
    return BasisCell.read(cell, x, **structure | {"edge_index": structure["edge_index"].flip(0)})


def without_bias(cell: BasisCell, x: Tensor, **structure: Any) -> Tensor:
    return BasisCell.read(cell, x, **structure) - cell.input.bias


READS = {"edge weights left out": without_weights, "edges turned round": against_the_edges, "no bias": without_bias}


@pytest.mark.parametrize("read", named(READS))
@pytest.mark.parametrize("kind", named({name: KINDS[name] for name in ("RNN", "GRU", "LSTM")}))
def test_a_wrong_reading_fails(kind: Kind, read: Callable[..., Tensor]) -> None:
    with pytest.raises(AssertionError):
        check(kind, PLACE, changed(kind, read=read))


# What is wrong with any cell, seen by comparison with torch's or with the formula.


def forgetful(step: Step) -> Step:
    """The state counts for nothing."""
    return lambda self, gates, h, **more: step(self, gates, tree_map(lambda s: 0 * s, h), **more)


def detached(step: Step) -> Step:
    """Right values, and no gradient through the state."""
    return lambda self, gates, h, **more: step(self, gates, tree_map(Tensor.detach, h), **more)


def other_order(step: Step) -> Step:
    """What is meant for one gate goes to the next one."""
    return lambda self, gates, h, **more: step(
        self, gates.roll(self.hidden_channels, -3 if self.images else -1), h, **more
    )


def twice(step: Step) -> Step:
    return lambda self, gates, h, **more: step(self, gates, step(self, gates, h, **more), **more)


PEEPING = ["LSTM, peepholes per channel; diffusion", "LSTM, peepholes per position; window, images"]
COMPARISONS = {  # systems of `verify`, or a kind and a place
    BasisRNNCell: ["RNN cell", "RNN, sequences"],
    BasisGRUCell: ["GRU cell", "GRU, sequences", "GRU; diffusion"],
    BasisLSTMCell: ["LSTM cell", "LSTM, sequences", *PEEPING],
}
ANY = [
    pytest.param(cell, change, name, id=f"{name}-{change.__name__}")
    for cell, names in COMPARISONS.items()
    for change in (forgetful, detached, other_order, twice)
    for name in names
    if (cell, change) != (BasisRNNCell, other_order)  # which has one gate
]


def assert_seen(name: str) -> None:
    """A comparison fails."""
    if name in SYSTEMS:
        assert not verify(SYSTEMS[name]).ok
        return
    kind, place = name.split("; ")
    with pytest.raises(AssertionError):
        check(KINDS[kind], PLACES[place])


@pytest.mark.parametrize(("cell", "change", "name"), ANY)
@pytest.mark.sweep(11)
def test_what_is_wrong_with_any_cell_fails(cell: type[BasisCell], change: Any, name: str, monkeypatch) -> None:
    monkeypatch.setattr(cell, "step", change(cell.step))
    assert_seen(name)


@pytest.mark.parametrize("name", PEEPING)
def test_peepholes_of_other_gates_fail(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = BasisLSTMCell._peepholes
    monkeypatch.setattr(BasisLSTMCell, "_peepholes", lambda cell, c: right(cell, c).flip(0))
    assert_seen(name)


# Sequences.


@pytest.mark.parametrize("name", ["RNN, sequences", "GRU, sequences", "LSTM, sequences"])
@pytest.mark.sweep(1)
def test_steps_past_the_end_fail(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All sequences as long as the longest one."""
    right = BasisRNN.forward

    def longer(self: BasisRNN, x: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(x, PackedSequence):
            return right(self, x, *args, **kwargs)
        padded, lengths = pad_packed_sequence(x)
        outputs, end = right(self, padded, *args, **kwargs)
        return pack_padded_sequence(outputs, lengths, enforce_sorted=False), end

    monkeypatch.setattr(BasisRNN, "forward", longer)
    assert_seen(name)


class Padded(BasisRNN):
    """The state after the last step of all."""

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        right, _ = super().forward(x, *args, **kwargs)
        return right, super().forward(pad_packed_sequence(x)[0], *args, **kwargs)[1]


class Unsorted(BasisRNN):
    """States in the order of the lengths."""

    def _packed(self, x: Any, *args: Any) -> Any:
        outputs, state = super()._packed(x, *args)
        return outputs, tree_map(lambda s: s.index_select(0, x.sorted_indices), state)


class Taken(BasisRNN):
    """First states taken as if they stood in the order of the lengths."""

    def _run(self, x: Tensor, sizes: Any, states: Any, truncate: Any, structure: Any, order: Any = None) -> Any:
        return super()._run(x, sizes, states, truncate, structure, None)


class Whole(BasisRNN):
    """Gradients through the whole sequence."""

    def forward(self, *args: Any, truncate: Any = None, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


class Later(BasisRNN):
    """Gradients through one step more."""

    def forward(self, *args: Any, truncate: Any = None, **kwargs: Any) -> Any:
        return super().forward(*args, truncate=truncate + 1, **kwargs)


def wrong(kind: type[BasisRNN], name: str) -> BasisRNN:
    rnn = layers(KINDS[name], PLACE, 1)
    rnn.__class__ = kind
    return rnn


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.__doc__) for kind in (Padded, Unsorted, Taken)])
@pytest.mark.parametrize("name", ["GRU", "LSTM"])
def test_wrong_lengths_fail(kind: type[BasisRNN], name: str) -> None:
    assert sorted(LENGTHS, reverse=True) != LENGTHS
    with pytest.raises(AssertionError):
        check_lengths(wrong(kind, name), KINDS[name], PLACE)


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.__doc__) for kind in (Whole, Later)])
@pytest.mark.parametrize("name", ["GRU", "LSTM"])
def test_wrong_truncation_fails(kind: type[BasisRNN], name: str) -> None:
    with pytest.raises(AssertionError):
        check_truncated(wrong(kind, name), KINDS[name], PLACE, 2)


def test_truncation_of_a_part_of_the_state_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of an LSTM goes back by c as well as by h."""

    def first_only(change: Callable[[Tensor], Tensor], state: Any) -> Any:
        return (change(state[0]), *state[1:]) if change is Tensor.detach else tree_map(change, state)

    monkeypatch.setattr(sequence, "tree_map", first_only)
    with pytest.raises(AssertionError):
        check_truncated(layers(KINDS["LSTM"], PLACE, 1), KINDS["LSTM"], PLACE, 2)
