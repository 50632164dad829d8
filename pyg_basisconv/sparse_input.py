"""Sparse features: x Theta where x is a torch.sparse matrix."""

import torch
from torch import Tensor

from .cache import constituents, once
from .errors import reject
from .kernels import Pattern
from .kernels.pattern import extremes, in_range
from .sparse import Sparse

_SPARSE = 0.05  # the share of nonzeros up to which a sparse copy of a dense x pays


def sparse_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """The product of a sparse (M, P) matrix, CSR, CSC or COO, and a dense one, differentiable in both.

    >>> sparse_matmul(torch.tensor([[0., 2.], [3., 0.]]).to_sparse_csr(), torch.tensor([[1.], [10.]]))
    tensor([[20.],
            [ 3.]])
    """
    return _matrix(x).apply(weight)


@once
def condensed(x: Tensor) -> Tensor | None:
    """A sparse copy of a dense (M, P) matrix that is mostly zeros, cached while the matrix is unchanged; else None.

    >>> condensed(torch.eye(100)).layout, condensed(torch.ones(2, 2))
    (torch.sparse_csr, None)
    """
    return x.to_sparse_csr() if int(x.count_nonzero()) <= _SPARSE * x.numel() else None


@once
def _matrix(x: Tensor) -> Sparse:
    if x.layout not in (torch.sparse_csr, torch.sparse_csc, torch.sparse_coo):
        reject("x", "a dense, CSR, CSC or COO layout", x.layout, "convert it with to_sparse_csr()")
    if x.layout == torch.sparse_coo and x.requires_grad:
        x = x.coalesce()  # gradients pass through the values of coalesced tensors only
    *ends, values = constituents(x)
    return Sparse(_pattern(x.layout, *x.shape, *ends), values if values.requires_grad else values.clone())


@once
def _pattern(layout: torch.layout, M: int, P: int, *ends: Tensor) -> Pattern:
    """The pattern is cached apart from the values, as dropout changes the values alone."""
    rows, columns = ends[0] if layout == torch.sparse_coo else (torch.repeat_interleave(ends[0].diff()), ends[1])
    if layout == torch.sparse_csc:
        rows, columns = columns, rows
    for name, index, size in (("row", rows, M), ("column", columns, P)):
        if not in_range(index, size):
            reject("x", f"{name} indices from 0 to {size - 1}", extremes(index), "rebuild the sparse tensor")
    # x Theta = A^T Theta for A = x^T: the entry (m, p) is an edge from column p to row m.
    return Pattern(columns.clone(), rows.clone(), P, M)
