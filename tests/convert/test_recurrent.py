"""Conversion of torch's recurrent layers: dropout, packed sequences, and what is left or refused."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from pyg_basisconv import convert
from pyg_basisconv.verify import Case, features, made
from pyg_basisconv.verify.recipes import along
from tests.convert.conversion import agree, left_of, like

KINDS = ("RNN", "GRU", "LSTM")
P, H, T = 6, 3, 5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", [None, (2, T, 1)], ids=["all", "lengths"])
def test_dropout_draws_what_torch_draws(kind: str, lengths: tuple[int, ...] | None) -> None:
    reference = made(kind, {"input_size": P, "hidden_size": H, "num_layers": 3, "dropout": 0.5, "bidirectional": True})
    ours, own, x = convert(reference), like(reference), features(T, 3, P)
    for f in (ours, own):
        agree(Case(f, reference, [x], lambda f, x: _seeded(f, x, lengths)))
    assert not torch.equal(_seeded(ours, x, lengths), _seeded(ours.eval(), x, lengths))


def _seeded(f: nn.Module, x: torch.Tensor, lengths: tuple[int, ...] | None) -> torch.Tensor:
    torch.manual_seed(1)
    return along(f, x, lengths=lengths)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences_come_back_packed(kind: str, batch_first: bool) -> None:
    options = {"input_size": P, "hidden_size": H, "bidirectional": True, "batch_first": batch_first}
    reference = made(kind, options)
    x = features(3, T, P) if batch_first else features(T, 3, P)
    packed = pack_padded_sequence(x, torch.tensor([5, 3, 3]), batch_first)  # sorted, and none to sort back
    found, right = (f(packed)[0] for f in (convert(reference), reference))
    assert type(found) is type(right)
    torch.testing.assert_close(found.data, right.data, rtol=0, atol=1e-12)
    assert (found.batch_sizes == right.batch_sizes).all()
    assert found.sorted_indices is right.sorted_indices is None
    torch.testing.assert_close(*(pad_packed_sequence(part, batch_first)[0] for part in (found, right)))


@pytest.mark.parametrize("kind", KINDS)
def test_no_sequences(kind: str) -> None:
    reference = made(kind, {"input_size": P, "hidden_size": H, "num_layers": 2, "bidirectional": True})
    x = features(T, 0, P)
    found, right = (along(f, x) for f in (convert(reference), reference))
    assert found.shape == right.shape


def test_the_mode_says_which_function() -> None:
    """Which is what torch reads, whatever the name beside it."""
    reference = made("RNN", {"input_size": P, "hidden_size": H})
    reference.nonlinearity = "relu"
    agree(Case(convert(reference), reference, [features(T, 2, P)], along))


def test_a_weight_that_is_no_parameter() -> None:
    """As some regularisers of the hidden matrices leave it."""
    layer = nn.LSTM(P, H)
    weight = layer.weight_hh_l0.detach()
    del layer.weight_hh_l0
    layer.weight_hh_l0 = weight
    assert left_of(layer) == {"": "LSTM: its weight or bias is not a parameter of it"}


def of(kind: str, *shapes: tuple[int, ...], **options: int) -> Callable[[], object]:
    """A call with zeros of these shapes."""
    x, *state = map(torch.zeros, shapes)
    layer = getattr(nn, kind)(P, H, **options)
    return lambda: along(convert(layer), x, *state)


packed_images = pack_padded_sequence(torch.zeros(T, 2, 1, P), torch.tensor([5, 2]))
REFUSED: dict[str, Callable[[], object]] = {
    r"input: expected \(T, P\), \(T, B, P\), or .*, got \(6,\)": of("GRU", (P,)),
    r"input: expected \(S, P\), packed, got \(7, 1, 6\)": lambda: convert(nn.GRU(P, H))(packed_images),
    r"x: expected at least one step": of("LSTM", (0, 2, P)),
    r"x: expected 6 channels": of("RNN", (T, 2, P + 1)),
    r"hx: expected shapes \[\(1, 2, 3\)\], got \[\(1, 3, 3\)\]": of("GRU", (T, 2, P), (1, 3, H)),
    r"hx: expected shapes \[\(4, 2, 3\)\], got \[\(1, 2, 3\)\]": of(
        "RNN", (T, 2, P), (1, 2, H), num_layers=2, bidirectional=True
    ),
    r"hx: expected shapes \[\(1, 2, 3\), \(1, 2, 3\)\], got \[\(1, 2, 3\)\]": of("LSTM", (T, 2, P), (1, 2, H)),
    r"hx: expected shapes \[\(1, 2, 2\), \(1, 2, 3\)\], got": of("LSTM", (T, 2, P), (1, 2, H), (1, 2, H), proj_size=2),
    r"hx: expected shapes \[\(1, 3\)\], got \['int'\]": lambda: convert(nn.GRU(P, H))(torch.zeros(T, P), 1),
    r"h: expected shape \(2, 3\), as x, got \(3, 3\)": lambda: convert(nn.GRUCell(P, H))(
        torch.zeros(2, P), torch.zeros(3, H)
    ),
}


@pytest.mark.parametrize("said", REFUSED)
def test_refused(said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        REFUSED[said]()


def test_a_copy_is_a_layer_of_its_own() -> None:
    ours = convert(made("LSTM", {"input_size": P, "hidden_size": H, "proj_size": 2}))
    other, x = copy.deepcopy(ours), features(T, 2, P)
    with torch.no_grad():
        next(ours.parameters()).zero_()
    assert not torch.equal(along(ours, x), along(other, x))
