"""Recurrent cells against the formulas of their papers, gate by gate; `recipes.py` has torch's."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import bases
from ..recurrent import BasisGRUCell, BasisLSTMCell
from .comparison import Case, formula, system
from .data import N, P, features, graph
from .grids import kernel
from .matrices import applied, chebyshev, dense, diffusion

H = 3
SIZE = (5, 6)  # of images


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
