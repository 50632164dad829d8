"""Dense matrices by their definitions, and the formula, for references."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ..basis import Basis
from ..conv import BasisConv
from ..theta import Theta
from .comparison import Case, formula
from .data import N, P, Q


def applied(x: Tensor, A: Tensor, theta: Tensor) -> Tensor:
    """The formula, by einsum; A may have batch dimensions."""
    return torch.einsum("...mp,...kmn,kpq->...nq", x, A, theta)


def layer(basis: Basis, theta: Theta | None = None, order: str = "auto") -> BasisConv:
    """A convolution without bias."""
    return BasisConv(P, Q, basis, theta, order=order, bias=False)


def by_matrices(
    conv: BasisConv,
    matrices: Callable[..., Tensor],
    leaves: Sequence[Tensor],
    call: Callable[..., Tensor],
) -> Case:
    """Compares a convolution with the formula.

    matrices: (K, M, N), of the leaves but the first, which is x.
    """
    return formula(conv, lambda c, x, *rest: applied(x, matrices(*rest), c.theta.weight), leaves, call)


def dense(
    edge_index: Tensor, weight: Tensor, kind: Tensor | None = None, K: int = 1, size: tuple[int, int] = (N, N)
) -> Tensor:
    """(K, M, N) the matrices of typed edges."""
    kind = torch.zeros_like(edge_index[0]) if kind is None else kind
    return weight.new_zeros(K, *size).index_put((kind, edge_index[0], edge_index[1]), weight, accumulate=True)


def over(A: Any, total: Tensor) -> Tensor:
    """A / total; zero where the total is zero."""
    return torch.where(total == 0, 0, A / torch.where(total == 0, 1, total))


def normalised(A: Tensor, norm: str | None, count: Any = None) -> Tensor:
    """Matrices (*, M, N), normalised; for a mean, `count` has the numbers of edges or walks."""
    row, column = A.sum(-1, keepdim=True), A.sum(-2, keepdim=True)
    if norm == "mean":
        return over(A, count.sum(-2, keepdim=True))
    if norm == "sym":
        return over(A, (row * column).sqrt())
    return A if norm is None else over(A, row)


def powers(S: Tensor, K: int) -> Tensor:
    """(K, N, N) the powers 0 .. K - 1."""
    family = [torch.eye(N, dtype=S.dtype)]
    while len(family) < K:
        family.append(S @ family[-1])
    return torch.stack(family)


def diffusion(W: Tensor, K: int) -> Tensor:
    """(2 K, N, N) the powers of the random walks along the edges and against them (Li et al.)."""
    return torch.cat([powers(normalised(V, "row"), K) for V in (W, W.t())])


def chebyshev(W: Tensor, K: int, lambda_max: float) -> Tensor:
    """(K, N, N) the polynomials of 2 L / lambda_max - I, of the symmetric Laplacian without loops."""
    W = W - torch.diag(W.diagonal())
    root = over(1, W.sum(1)).sqrt()
    eye = torch.eye(N, dtype=W.dtype)
    S = 2 * (eye - root[:, None] * W * root[None, :]) / lambda_max - eye
    family = [eye, S][:K]
    while len(family) < K:
        family.append(2 * S @ family[-1] - family[-2])
    return torch.stack(family)


def wavelets(W: Tensor, J: int, sym: bool) -> Tensor:
    """(J + 1, N, N) the differences of the dyadic powers of a lazy walk, and the last power."""
    root = over(1, W.sum(0)).sqrt()
    S = root[:, None] * W * root[None, :] if sym else normalised(W, "row")
    T = (torch.eye(N, dtype=W.dtype) + S) / 2
    scales = [torch.linalg.matrix_power(T, s) for s in (0, *(2**j for j in range(J)))]
    return torch.stack([a - b for a, b in pairwise(scales)] + scales[-1:])
