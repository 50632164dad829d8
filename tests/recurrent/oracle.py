"""What recurrent cells are compared with: each as its paper has it, gates by name, node by node, in float64.

Nothing here comes from the library. A convolution is a loop over the entries of dense matrices A, (K, M, N); a cell
takes one sample, and a list of samples is gone through one after the other.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

Family = Callable[[str, Tensor], Tensor]  # the matrices (K, M, N) that a part of a cell applies to features (M, D)


@dataclass
class Parameters:
    """By the name of the gate: W of x and U of h, (K, P, H) and (K, H, H); b and b' of both, (H,); V of c."""

    W: dict[str, Tensor]
    U: dict[str, Tensor]
    b: dict[str, Tensor] = field(default_factory=dict)
    b_hidden: dict[str, Tensor] = field(default_factory=dict)
    V: dict[str, Tensor] = field(default_factory=dict)  # (H,) or (N, H)


def convolve(A: Tensor, x: Tensor, Theta: Tensor) -> Tensor:
    """y[n] = sum over k and m of A[k, m, n] x[m] Theta[k]."""
    K, M, N = A.shape
    y = [torch.zeros(Theta.shape[2], dtype=torch.float64) for _ in range(N)]
    there = A.detach() != 0
    for k in range(K):
        value = [x[m] @ Theta[k] for m in range(M)]
        for m in range(M):
            for n in range(N):
                if there[k, m, n] or A.requires_grad:
                    y[n] = y[n] + A[k, m, n] * value[m]
    return torch.stack(y)


def sigmoid(t: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-t))


def of_input(p: Parameters, gate: str, A: Family, x: Tensor) -> Tensor:
    y = convolve(A("input", x), x, p.W[gate])
    return y + p.b[gate] if gate in p.b else y


def of_state(p: Parameters, gate: str, A: Family, h: Tensor, part: str = "hidden") -> Tensor:
    y = convolve(A(part, h), h, p.U[gate])
    return y + p.b_hidden[gate] if gate in p.b_hidden else y


def rnn(p: Parameters, A: Family, x: Tensor, h: Tensor, nonlinearity: str = "tanh") -> Tensor:
    total = of_input(p, "h", A, x) + of_state(p, "h", A, h)
    return torch.tanh(total) if nonlinearity == "tanh" else torch.where(total > 0, total, 0 * total)


def gru(p: Parameters, A: Family, x: Tensor, h: Tensor, reset: str = "before") -> Tensor:
    reset_gate = sigmoid(of_input(p, "r", A, x) + of_state(p, "r", A, h))
    update_gate = sigmoid(of_input(p, "z", A, x) + of_state(p, "z", A, h))
    if reset == "before":  # Cho et al., Eq. 8, and Li et al., Eq. 3
        candidate = torch.tanh(of_input(p, "n", A, x) + of_state(p, "n", A, reset_gate * h, "candidate"))
    else:
        candidate = torch.tanh(of_input(p, "n", A, x) + reset_gate * of_state(p, "n", A, h))
    return update_gate * h + (1 - update_gate) * candidate


def lstm(p: Parameters, A: Family, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Shi et al., Eq. 3."""
    h, c = state
    peep = {gate: p.V.get(gate, torch.zeros(c.shape[-1], dtype=torch.float64)) for gate in ("i", "f", "o")}
    i = sigmoid(of_input(p, "i", A, x) + of_state(p, "i", A, h) + peep["i"] * c)
    f = sigmoid(of_input(p, "f", A, x) + of_state(p, "f", A, h) + peep["f"] * c)
    c_new = f * c + i * torch.tanh(of_input(p, "g", A, x) + of_state(p, "g", A, h))
    o = sigmoid(of_input(p, "o", A, x) + of_state(p, "o", A, h) + peep["o"] * c_new)
    return o * torch.tanh(c_new), c_new


def attention(x: Tensor, key: Tensor, query: Tensor) -> Tensor:
    """(K, M, M): head k of the target n looks at m with the softmax over m of key . query / sqrt(D)."""
    K, _, D = key.shape
    M = len(x)
    heads = []
    for k in range(K):
        columns = []
        for n in range(M):
            scores = torch.stack([(x[m] @ key[k]) @ (x[n] @ query[k]) / D**0.5 for m in range(M)])
            columns.append(torch.exp(scores) / torch.exp(scores).sum())
        heads.append(torch.stack(columns, 1))
    return torch.stack(heads)
