"""Sparse features: x Theta where x is a torch.sparse matrix."""

import torch
from torch import Tensor

from .cache import IdentityCache
from .errors import reject
from .kernels import Pattern, spmm

# Features keep their places while their values change (dropout): the compressed forms are kept for the places.
_PATTERNS = IdentityCache()


def sparse_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """The product of a sparse (M, P) matrix, CSR, CSC or COO, and a dense one, differentiable in both.

    >>> sparse_matmul(torch.tensor([[0., 2.], [3., 0.]]).to_sparse_csr(), torch.tensor([[1.], [10.]]))
    tensor([[20.],
            [ 3.]])
    """
    M, P = x.shape
    if x.layout == torch.sparse_csr:
        outer, inner, values = x.crow_indices(), x.col_indices(), x.values()
    elif x.layout == torch.sparse_csc:
        outer, inner, values = x.ccol_indices(), x.row_indices(), x.values()
    elif x.layout == torch.sparse_coo:
        (outer, inner), values = x._indices(), x.coalesce().values() if x.requires_grad else x._values()
        if x.requires_grad:
            outer, inner = x.coalesce().indices()
    else:
        reject("x", "a dense, CSR, CSC or COO layout", x.layout, "convert it with to_sparse_csr()")

    def build() -> Pattern:
        rows, columns = outer, inner
        if x.layout != torch.sparse_coo:
            rows = torch.repeat_interleave(outer.diff())
        if x.layout == torch.sparse_csc:
            rows, columns = columns, rows
        for name, index, size in (("row", rows, M), ("column", columns, P)):
            if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < size:
                got = (int(index.min()), int(index.max()))
                reject("x", f"{name} indices from 0 to {size - 1}", got, "rebuild the sparse tensor")
        # Entry (m, p) is an edge from column p to row m: x Theta is A^T Theta for A = x^T.
        return Pattern(columns.clone(), rows.clone(), P, M)

    pattern: Pattern = _PATTERNS.get((outer, inner), (x.layout, M, P), build)
    order = pattern.by_target.order
    if order is not None:
        values = values.index_select(0, order)
    return spmm(weight, values, pattern)
