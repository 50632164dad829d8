"""Dense matrices by their definitions, and the formula, for references."""

import torch
from torch import Tensor

from .data import N


def applied(x: Tensor, A: Tensor, theta: Tensor) -> Tensor:
    """The formula, by einsum."""
    return torch.einsum("...mp,kmn,kpq->...nq", x, A, theta)


def dense(edge_index: Tensor, weight: Tensor, kind: Tensor | None = None, K: int = 1) -> Tensor:
    """(K, N, N) the matrices of typed edges."""
    kind = torch.zeros_like(edge_index[0]) if kind is None else kind
    return weight.new_zeros(K, N, N).index_put((kind, edge_index[0], edge_index[1]), weight, accumulate=True)


def inverse(degree: Tensor) -> Tensor:
    """The inverse degrees; zero where the degree is zero."""
    return torch.where(degree == 0, 0, 1 / torch.where(degree == 0, 1, degree))


def powers(S: Tensor, K: int) -> Tensor:
    """(K, N, N) the powers 0 .. K - 1."""
    family = [torch.eye(N, dtype=S.dtype)]
    while len(family) < K:
        family.append(S @ family[-1])
    return torch.stack(family)


def diffusion(W: Tensor, K: int) -> Tensor:
    """(2 K, N, N) the powers of the random walks along the edges and against them (Li et al.)."""
    return torch.cat([powers(inverse(V.sum(1))[:, None] * V, K) for V in (W, W.t())])


def chebyshev(W: Tensor, K: int, lambda_max: float) -> Tensor:
    """(K, N, N) the polynomials of 2 L / lambda_max - I, of the symmetric Laplacian without loops."""
    W = W - torch.diag(W.diagonal())
    root = inverse(W.sum(1)).sqrt()
    eye = torch.eye(N, dtype=W.dtype)
    S = 2 * (eye - root[:, None] * W * root[None, :]) / lambda_max - eye
    family = [eye, S][:K]
    while len(family) < K:
        family.append(2 * S @ family[-1] - family[-2])
    return torch.stack(family)
