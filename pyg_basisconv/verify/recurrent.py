"""Recurrent cells and sequences: against torch's, and against the formulas of their papers, gate by gate."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .. import bases
from ..recurrent import BasisCell, BasisGRUCell, BasisLSTMCell, BasisRNN, BasisRNNCell
from .comparison import Case, system
from .data import N, P, features, graph
from .matrices import applied, chebyshev, dense, diffusion

H, STEPS, LENGTHS = 3, 4, (2, 4, 1)
SIZE = (5, 6)  # of images

State = Tensor | tuple[Tensor, ...]
GATES: dict[str, tuple[type[nn.Module], Callable[[int], BasisCell], int]] = {
    # torch's cell, ours of the same kind, and the number of gates
    "RNN": (nn.RNNCell, lambda width: BasisRNNCell(width, H, bases.Identity()), 1),
    "GRU": (nn.GRUCell, lambda width: BasisGRUCell(width, H, bases.Identity(), reset="after"), 3),
    "LSTM": (nn.LSTMCell, lambda width: BasisLSTMCell(width, H, bases.Identity()), 4),
}


def _named(cell: BasisCell, w_x: Tensor, w_h: Tensor, b_x: Tensor, b_h: Tensor) -> dict[str, Tensor]:
    """Torch's parameters, (G H, P), (G H, H) and (G H,) twice, under the names of a cell with K = 1."""
    found = {"input.theta.weight": w_x.t()[None], "hidden.theta.weight": w_h.t()[None]}
    if cell.hidden.bias is None:  # only the sum of the two matters then
        return found | {"input.bias": b_x + b_h}
    return found | {"input.bias": b_x, "hidden.bias": b_h}


def _flat(state: State) -> Tensor:
    return state if isinstance(state, Tensor) else torch.cat(state)


def _parameters(width: int, gates: int) -> list[Tensor]:
    return [features(gates * H, width), features(gates * H, H), features(gates * H), features(gates * H)]


def _as_torch(kind: str) -> Iterator[Case]:
    """One step from a state; each node is an entry of torch's batch."""
    cls, ours, gates = GATES[kind]
    options: list[dict[str, Any]] = [{}, {"nonlinearity": "relu"}] if kind == "RNN" else [{}]
    for option in options:
        cell, reference = ours(P).double(), cls(P, H, **option).double()
        for name, value in option.items():
            setattr(cell, name, value)

        def mine(x: Tensor, h: Tensor, c: Tensor, *given: Tensor, cell: BasisCell = cell) -> Tensor:
            state = (h, c) if kind == "LSTM" else h
            return _flat(functional_call(cell, _named(cell, *given), (x, None, state)))

        def theirs(x: Tensor, h: Tensor, c: Tensor, *given: Tensor, reference: nn.Module = reference) -> Tensor:
            named = dict(zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), given, strict=True))
            return _flat(functional_call(reference, named, (x, (h, c) if kind == "LSTM" else h)))

        yield Case(mine, theirs, [features(N, P), features(N, H), features(N, H), *_parameters(P, gates)])


for _kind in GATES:
    system(f"{_kind} cell", f"torch.nn.{_kind}Cell")(partial(_as_torch, _kind))


def _sequences(kind: str) -> Iterator[Case]:
    """Two layers over sequences of several lengths, of two nodes each."""
    _, ours, gates = GATES[kind]
    rnn = BasisRNN([ours(P), ours(H)]).double()
    reference = getattr(nn, kind)(P, H, num_layers=2).double()
    both = torch.tensor(LENGTHS).repeat_interleave(2)

    def mine(x: Tensor, *given: Tensor) -> Tensor:
        named: dict[str, Tensor] = {}
        for layer, cell in enumerate(rnn.cells):
            parameters = _named(cell, *given[4 * layer : 4 * layer + 4])  # type: ignore[arg-type]
            named |= {f"cells.{layer}.{name}": value for name, value in parameters.items()}
        outputs, states = functional_call(rnn, named, (x,), {"lengths": torch.tensor(LENGTHS)})
        return torch.cat([outputs.flatten(), *(_flat(state).flatten() for state in states)])

    def theirs(x: Tensor, *given: Tensor) -> Tensor:
        kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        named = dict(zip([f"{name}_l{layer}" for layer in (0, 1) for name in kinds], given, strict=True))
        packed = pack_padded_sequence(x.flatten(1, 2), both, enforce_sorted=False)
        ragged, states = functional_call(reference, named, (packed,))
        outputs, _ = pad_packed_sequence(ragged)
        ends = states if isinstance(states, tuple) else (states,)
        return torch.cat([outputs.flatten(), *(end[layer].flatten() for layer in (0, 1) for end in ends)])

    yield Case(mine, theirs, [features(STEPS, len(LENGTHS), 2, P), *_parameters(P, gates), *_parameters(H, gates)])


for _kind in GATES:
    system(f"{_kind}, sequences", f"torch.nn.{_kind}, two layers, packed")(partial(_sequences, _kind))


def _split(gates: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Splits the Theta (K, P + H, H) of each gate into one for x, (K, P, G H), and one for h, (K, H, G H)."""
    whole = torch.cat(list(gates), -1)
    return whole[:, :P], whole[:, P:]


@system("DCRNN cell", "the formulas of Li et al., dense, gate by gate")
def _dcrnn() -> Iterator[Case]:
    edge_index, weight = graph()
    for K in (1, 2, 3):
        cell = BasisGRUCell(P, H, bases.Diffusion(K)).double()

        def mine(x: Tensor, h: Tensor, w: Tensor, *given: Tensor, cell: BasisCell = cell) -> Tensor:
            r, u, c, *biases = given
            of_x, _ = _split([r, u, c])
            named = {"input.theta.weight": of_x, "input.bias": torch.cat(biases)}
            named |= {"hidden.theta.weight": _split([r, u])[1], "candidate.theta.weight": _split([c])[1]}
            for _ in range(2):
                h = functional_call(cell, named, (x, edge_index, h), {"edge_weight": w})
            return h

        def theirs(x: Tensor, h: Tensor, w: Tensor, *given: Tensor, K: int = K) -> Tensor:
            theta_r, theta_u, theta_c, b_r, b_u, b_c = given
            A = diffusion(dense(edge_index, w)[0], K)
            for _ in range(2):
                r = torch.sigmoid(applied(torch.cat([x, h], -1), A, theta_r) + b_r)
                u = torch.sigmoid(applied(torch.cat([x, h], -1), A, theta_u) + b_u)
                c = torch.tanh(applied(torch.cat([x, r * h], -1), A, theta_c) + b_c)
                h = u * h + (1 - u) * c
            return h

        theta = [features(2 * K, P + H, H) for _ in range(3)]
        bias = [features(H) for _ in range(3)]
        yield Case(mine, theirs, [features(2, N, P), features(2, N, H), weight, *theta, *bias])


@system("LSTM on a graph, peepholes", "the formulas of Graves with dense matrices, gate by gate")
def _peepholes() -> Iterator[Case]:
    edge_index, weight = graph()
    for peepholes, shape in ((True, (H,)), (N, (N, H))):
        cell = BasisLSTMCell(P, H, bases.Chebyshev(3, lambda_max=1.7), peepholes=peepholes).double()

        def mine(x: Tensor, h: Tensor, c: Tensor, w: Tensor, *given: Tensor, cell: BasisCell = cell) -> Tensor:
            of_x, of_h = _split(given[:4])
            named = {"input.theta.weight": of_x, "hidden.theta.weight": of_h, "input.bias": torch.cat(given[4:8])}
            named["peephole"] = torch.stack(given[8:])
            return _flat(functional_call(cell, named, (x, edge_index, (h, c)), {"edge_weight": w}))

        def theirs(x: Tensor, h: Tensor, c: Tensor, w: Tensor, *given: Tensor) -> Tensor:
            theta_i, theta_f, theta_g, theta_o, b_i, b_f, b_g, b_o, v_i, v_f, v_o = given
            A = chebyshev(dense(edge_index, w)[0], 3, 1.7)
            xh = torch.cat([x, h], -1)
            i = torch.sigmoid(applied(xh, A, theta_i) + v_i * c + b_i)
            f = torch.sigmoid(applied(xh, A, theta_f) + v_f * c + b_f)
            c = f * c + i * torch.tanh(applied(xh, A, theta_g) + b_g)
            o = torch.sigmoid(applied(xh, A, theta_o) + v_o * c + b_o)
            return torch.cat([o * torch.tanh(c), c])

        theta, bias = [features(3, P + H, H) for _ in range(4)], [features(H) for _ in range(4)]
        peeps = [features(*shape) for _ in range(3)]
        yield Case(mine, theirs, [features(N, P), features(N, H), features(N, H), weight, *theta, *bias, *peeps])


@system("ConvLSTM cell", "the formulas of Shi et al. with F.conv2d, gate by gate")
def _convlstm() -> Iterator[Case]:
    for kernel in ((3, 3), (1, 5)):
        padding = tuple(k // 2 for k in kernel)
        basis = bases.Window(SIZE, kernel, padding=padding)
        cell = BasisLSTMCell(2, H, basis, images=True, peepholes=SIZE).double()

        def mine(x: Tensor, h: Tensor, c: Tensor, *given: Tensor, cell: BasisCell = cell) -> Tensor:
            # Of kernels (H, P, *kernel) to Theta (K, P, G H).
            of_x, of_h = (torch.cat(some).flatten(2).permute(2, 1, 0) for some in (given[:4], given[4:8]))
            named = {"input.theta.weight": of_x, "hidden.theta.weight": of_h}
            named |= {"input.bias": torch.cat(given[8:12]), "peephole": torch.stack(given[12:])}
            for _ in range(2):
                h, c = functional_call(cell, named, (x, None, (h, c)))
            return torch.cat([h, c])

        def theirs(x: Tensor, h: Tensor, c: Tensor, *given: Tensor, padding: tuple[int, ...] = padding) -> Tensor:
            w_xi, w_xf, w_xc, w_xo, w_hi, w_hf, w_hc, w_ho, b_i, b_f, b_c, b_o, w_ci, w_cf, w_co = given

            def conv(z: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
                return F.conv2d(z, weight, bias, padding=padding)

            for _ in range(2):
                i = torch.sigmoid(conv(x, w_xi, b_i) + conv(h, w_hi) + w_ci * c)
                f = torch.sigmoid(conv(x, w_xf, b_f) + conv(h, w_hf) + w_cf * c)
                c = f * c + i * torch.tanh(conv(x, w_xc, b_c) + conv(h, w_hc))
                o = torch.sigmoid(conv(x, w_xo, b_o) + conv(h, w_ho) + w_co * c)
                h = o * torch.tanh(c)
            return torch.cat([h, c])

        kernels = [features(H, width, *kernel) for width in (2, H) for _ in range(4)]
        others = [*(features(H) for _ in range(4)), *(features(H, *SIZE) for _ in range(3))]
        images = [features(2, 2, *SIZE), features(2, H, *SIZE), features(2, H, *SIZE)]
        yield Case(mine, theirs, [*images, *kernels, *others])
