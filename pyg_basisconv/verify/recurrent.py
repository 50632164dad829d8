"""Recurrent cells and sequences: against torch's, and against the formulas of their papers, gate by gate."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .. import bases
from ..recurrent import BasisCell, BasisGRUCell, BasisLSTMCell, BasisRNN, BasisRNNCell
from .comparison import Case, formula, system
from .data import N, P, features, graph
from .grids import kernel
from .matrices import applied, chebyshev, dense, diffusion

H, STEPS, LENGTHS = 3, 4, (2, 4, 1)
SIZE = (5, 6)  # of images

State = Tensor | tuple[Tensor, ...]
CELLS: dict[str, Callable[[int], BasisCell]] = {
    "RNN": lambda width: BasisRNNCell(width, H, bases.Identity()),
    "GRU": lambda width: BasisGRUCell(width, H, bases.Identity(), reset="after"),
    "LSTM": lambda width: BasisLSTMCell(width, H, bases.Identity()),
}


def _named(cell: Any, suffix: str = "") -> dict[str, Tensor]:
    """The parameters of a cell with K = 1 under torch's names; torch adds a second bias where ours has one."""
    found = {
        "weight_ih": cell.input.theta.weight[0].t(),
        "weight_hh": cell.hidden.theta.weight[0].t(),
        "bias_ih": cell.input.bias,
        "bias_hh": torch.zeros_like(cell.input.bias) if cell.hidden.bias is None else cell.hidden.bias,
    }
    return {name + suffix: value for name, value in found.items()}


def _flat(state: State) -> Tensor:
    return state if isinstance(state, Tensor) else torch.cat(state)


def _state(parts: tuple[Tensor, ...]) -> State:
    return parts if len(parts) > 1 else parts[0]


def _as_torch(kind: str) -> Iterator[Case]:
    """One step from a state; each node is an entry of torch's batch."""
    options: list[dict[str, Any]] = [{}, {"nonlinearity": "relu"}] if kind == "RNN" else [{}]
    for option in options:
        cell, peer = CELLS[kind](P), getattr(nn, f"{kind}Cell")(P, H, **option).double()
        for name, value in option.items():
            setattr(cell, name, value)
        yield formula(
            cell,
            lambda c, x, *s, peer=peer: _flat(functional_call(peer, _named(c), (x, _state(s)))),
            [features(N, width) for width in (P, H, H)[: 3 if kind == "LSTM" else 2]],
            lambda f, x, *s: _flat(f(x, None, _state(s))),
        )


def _sequences(kind: str) -> Iterator[Case]:
    """Two layers over sequences of several lengths, of two nodes each."""
    peer = getattr(nn, kind)(P, H, num_layers=2).double()
    lengths = torch.tensor(LENGTHS)

    def mine(f: Any, x: Tensor) -> Tensor:
        outputs, states = f(x, lengths=lengths)
        return torch.cat([outputs.flatten(), *(_flat(state).flatten() for state in states)])

    def theirs(c: Any, x: Tensor) -> Tensor:
        packed = pack_padded_sequence(x.flatten(1, 2), lengths.repeat_interleave(2), enforce_sorted=False)
        named = _named(c.cells[0], "_l0") | _named(c.cells[1], "_l1")
        ragged, states = functional_call(peer, named, (packed,))
        outputs, _ = pad_packed_sequence(ragged)
        ends = states if isinstance(states, tuple) else (states,)
        return torch.cat([outputs.flatten(), *(end[layer].flatten() for layer in (0, 1) for end in ends)])

    rnn = BasisRNN([CELLS[kind](P), CELLS[kind](H)])
    yield formula(rnn, theirs, [features(STEPS, len(LENGTHS), 2, P)], mine)


for _kind in CELLS:
    system(f"{_kind} cell", f"torch.nn.{_kind}Cell")(partial(_as_torch, _kind))
    system(f"{_kind}, sequences", f"torch.nn.{_kind}, two layers, packed")(partial(_sequences, _kind))


@system("DCRNN cell", "the formulas of Li et al., dense, gate by gate")
def _dcrnn() -> Iterator[Case]:
    edge_index, weight = graph()

    def theirs(cell: Any, x: Tensor, h: Tensor, w: Tensor) -> Tensor:
        W_r, W_u, W_c = cell.input.theta.weight.chunk(3, -1)
        U_r, U_u = cell.hidden.theta.weight.chunk(2, -1)
        b_r, b_u, b_c = cell.input.bias.chunk(3)
        A = diffusion(dense(edge_index, w)[0], len(W_r) // 2)
        for _ in range(2):
            r = torch.sigmoid(applied(x, A, W_r) + applied(h, A, U_r) + b_r)
            u = torch.sigmoid(applied(x, A, W_u) + applied(h, A, U_u) + b_u)
            c = torch.tanh(applied(x, A, W_c) + applied(r * h, A, cell.candidate.theta.weight) + b_c)
            h = u * h + (1 - u) * c
        return h

    def ours(f: Any, x: Tensor, h: Tensor, w: Tensor) -> Tensor:
        return f(x, edge_index, f(x, edge_index, h, edge_weight=w), edge_weight=w)

    for K in (1, 2, 3):
        cell = BasisGRUCell(P, H, bases.Diffusion(K))
        yield formula(cell, theirs, [features(2, N, P), features(2, N, H), weight], ours)


def _lstm(c: Any, x: Tensor, h: Tensor, s: Tensor, linear: Callable[[Any, Tensor, int], Tensor]) -> Tensor:
    """A step with peepholes, gate by gate (Graves): h and s; `linear(part, z, k)` is the k-th gate of a part."""
    i, f, g, o = (linear(c.input, x, k) + linear(c.hidden, h, k) for k in range(4))
    v_i, v_f, v_o = c.peephole
    i, f = torch.sigmoid(i + v_i * s), torch.sigmoid(f + v_f * s)
    s = f * s + i * torch.tanh(g)
    return torch.stack([torch.sigmoid(o + v_o * s) * torch.tanh(s), s])


def _gate(part: Any, k: int) -> tuple[Tensor, Tensor]:
    """(K, P, H) and (H,) the matrices and the bias of a gate."""
    weight = part.theta.weight.unflatten(-1, (4, H))[..., k, :]
    return weight, weight.new_zeros(H) if part.bias is None else part.bias.unflatten(0, (4, H))[k]


@system("LSTM on a graph, peepholes", "the formulas of Graves with dense matrices, gate by gate")
def _peepholes() -> Iterator[Case]:
    edge_index, weight = graph()

    def theirs(c: Any, x: Tensor, h: Tensor, s: Tensor, w: Tensor) -> Tensor:
        A = chebyshev(dense(edge_index, w)[0], 3, 1.7)

        def linear(part: Any, z: Tensor, k: int) -> Tensor:
            theta, bias = _gate(part, k)
            return applied(z, A, theta) + bias

        return _lstm(c, x, h, s, linear)

    for peepholes in (True, N):
        cell = BasisLSTMCell(P, H, bases.Chebyshev(3, lambda_max=1.7), peepholes=peepholes)
        leaves = [features(N, P), features(N, H), features(N, H), weight]
        yield formula(cell, theirs, leaves, lambda f, x, h, s, w: torch.stack(f(x, edge_index, (h, s), edge_weight=w)))


@system("ConvLSTM cell", "the formulas of Shi et al. with F.conv2d, gate by gate")
def _convlstm() -> Iterator[Case]:
    for size in ((3, 3), (1, 5)):

        def linear(part: Any, z: Tensor, k: int, size: tuple[int, int] = size) -> Tensor:
            theta, bias = _gate(part, k)
            return F.conv2d(z, kernel(theta, size), bias, padding=(size[0] // 2, size[1] // 2))

        def theirs(c: Any, x: Tensor, h: Tensor, s: Tensor, linear: Callable[..., Tensor] = linear) -> Tensor:
            h, s = _lstm(c, x, h, s, linear)
            return _lstm(c, x, h, s, linear)

        def ours(f: Any, x: Tensor, *state: Tensor) -> Tensor:
            return torch.stack(f(x, None, f(x, None, state)))

        basis = bases.Window(SIZE, size, padding=tuple(k // 2 for k in size))
        cell = BasisLSTMCell(2, H, basis, images=True, peepholes=SIZE)
        yield formula(cell, theirs, [features(2, width, *SIZE) for width in (2, H, H)], ours)
