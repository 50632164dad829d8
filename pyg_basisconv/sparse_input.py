"""Sparse features: x Theta where x is a torch.sparse matrix."""

import torch
from torch import Tensor

from .cache import IdentityCache, constituents
from .errors import reject
from .kernels import Pattern
from .kernels.pattern import extremes, in_range
from .sparse import Sparse

# The pattern is cached apart from the values, as dropout changes the values alone.
_PATTERNS = IdentityCache()
_MATRICES = IdentityCache()
_CONDENSED = IdentityCache()
_SPARSE = 0.05  # the share of nonzeros up to which a sparse copy of a dense x pays


def sparse_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """The product of a sparse (M, P) matrix, CSR, CSC or COO, and a dense one, differentiable in both.

    >>> sparse_matmul(torch.tensor([[0., 2.], [3., 0.]]).to_sparse_csr(), torch.tensor([[1.], [10.]]))
    tensor([[20.],
            [ 3.]])
    """
    found: Sparse = _MATRICES.get((x,), None, lambda: _matrix(x))
    return found.apply(weight)


def condensed(x: Tensor) -> Tensor | None:
    """A sparse copy of a dense (M, P) matrix that is mostly zeros, cached while the matrix is unchanged; else None.

    >>> condensed(torch.eye(100)).layout, condensed(torch.ones(2, 2))
    (torch.sparse_csr, None)
    """

    def build() -> Tensor | None:
        return x.to_sparse_csr() if int(x.count_nonzero()) <= _SPARSE * x.numel() else None

    copy: Tensor | None = _CONDENSED.get((x,), None, build)
    return copy


def _matrix(x: Tensor) -> Sparse:
    M, P = x.shape
    if x.layout not in (torch.sparse_csr, torch.sparse_csc, torch.sparse_coo):
        reject("x", "a dense, CSR, CSC or COO layout", x.layout, "convert it with to_sparse_csr()")
    if x.layout == torch.sparse_coo and x.requires_grad:
        x = x.coalesce()  # gradients pass through the values of coalesced tensors only
    *ends, values = constituents(x)

    def read_pattern() -> Pattern:
        if x.layout == torch.sparse_coo:
            rows, columns = ends[0]
        else:
            rows, columns = torch.repeat_interleave(ends[0].diff()), ends[1]
        if x.layout == torch.sparse_csc:
            rows, columns = columns, rows
        for name, index, size in (("row", rows, M), ("column", columns, P)):
            if not in_range(index, size):
                reject("x", f"{name} indices from 0 to {size - 1}", extremes(index), "rebuild the sparse tensor")
        # x Theta = A^T Theta for A = x^T: the entry (m, p) is an edge from column p to row m.
        return Pattern(columns.clone(), rows.clone(), P, M)

    pattern: Pattern = _PATTERNS.get(tuple(ends), (x.layout, M, P), read_pattern)
    return Sparse(pattern, values if values.requires_grad else values.clone())
