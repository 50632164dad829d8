"""The rows of recurrent cells can fail: with one thing wrong in a cell, those that are about it do."""

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from pyg_basisconv.recurrent import BasisCell, BasisGRUCell, BasisLSTMCell, BasisRNN, BasisRNNCell
from pyg_basisconv.verify import SYSTEMS, verify

Step = Callable[..., Any]


def each(state: Any, change: Callable[[Tensor], Tensor]) -> Any:
    return tuple(map(change, state)) if isinstance(state, tuple) else change(state)


def forgetful(step: Step) -> Step:
    """The state counts for nothing."""
    return lambda self, gates, h, **more: step(self, gates, each(h, lambda s: 0 * s), **more)


def detached(step: Step) -> Step:
    """Right values, and no gradient through the state."""
    return lambda self, gates, h, **more: step(self, gates, each(h, Tensor.detach), **more)


def other_order(step: Step) -> Step:
    """What is meant for one gate goes to the next one."""
    return lambda self, gates, h, **more: step(
        self, gates.roll(self.hidden_channels, -3 if self.images else -1), h, **more
    )


def twice(step: Step) -> Step:
    return lambda self, gates, h, **more: step(self, gates, step(self, gates, h, **more), **more)


ROWS = {
    BasisRNNCell: ["RNN cell", "RNN, sequences"],
    BasisGRUCell: ["GRU cell", "GRU, sequences", "DCRNN cell"],
    BasisLSTMCell: ["LSTM cell", "LSTM, sequences", "LSTM on a graph, peepholes", "ConvLSTM cell"],
}
WRONG = [
    (cell, change, row)
    for cell, rows in ROWS.items()
    for change in (forgetful, detached, other_order, twice)
    for row in rows
    if (cell, change) != (BasisRNNCell, other_order)  # which has one gate
]


@pytest.mark.parametrize(("cell", "change", "row"), WRONG, ids=[f"{row}-{change.__name__}" for _, change, row in WRONG])
@pytest.mark.sweep(11)
def test_a_wrong_step_fails(cell: type[BasisCell], change: Callable[[Step], Step], row: str, monkeypatch) -> None:
    monkeypatch.setattr(cell, "step", change(cell.step))
    assert not verify(SYSTEMS[row]).ok


@pytest.mark.parametrize("row", ["LSTM on a graph, peepholes", "ConvLSTM cell"])
def test_peepholes_of_other_gates_fail(row: str, monkeypatch) -> None:
    right = BasisLSTMCell.forward

    def turned(self: BasisLSTMCell, *args: Any, **kwargs: Any) -> Any:
        self._parameters["peephole"] = self.peephole.flip(0)
        return right(self, *args, **kwargs)

    monkeypatch.setattr(BasisLSTMCell, "forward", turned)
    assert not verify(SYSTEMS[row]).ok


@pytest.mark.parametrize("row", ["RNN, sequences", "GRU, sequences", "LSTM, sequences"])
def test_steps_past_the_end_fail(row: str, monkeypatch) -> None:
    """All sequences as long as the longest one."""
    right = BasisRNN.forward

    def longer(self: BasisRNN, x: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(x, PackedSequence):
            return right(self, x, *args, **kwargs)
        padded, lengths = pad_packed_sequence(x)
        outputs, end = right(self, padded, *args, **kwargs)
        return pack_padded_sequence(outputs, lengths, enforce_sorted=False), end

    monkeypatch.setattr(BasisRNN, "forward", longer)
    assert not verify(SYSTEMS[row]).ok
