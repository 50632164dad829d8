"""Polynomials of a sparse matrix, applied by their recurrence in one call of a compiled kernel."""

import torch
from torch import Tensor

from ..backend import KERNELS
from ..errors import reject
from .lists import Matrix
from .op import compilable
from .pattern import extremes

# Numbers up to which a call of torch for each product takes longer; of widths that fill no vectors, and of others.
_FEW, _MANY = 1 << 12, 3 << 16
_DTYPES = (torch.float32, torch.float64)


def polynomials(x: Tensor, matrix: Matrix, K: int, a: float, c: float, combines: bool) -> Tensor | None:
    r"""Applies :math:`p_0 = I, p_1 = S, p_{k+1} = a \, S \, p_k + c \, p_{k-1}` to rows, without autograd.

    Of two or more polynomials of S, a square matrix. From (N, W) to all products side by side, (N, K W); if it
    combines, from (N, K W), whose k-th block is multiplied by p_k, to the sum of products, (N, W). None where there is
    no kernel for x, and where products one by one are faster.

    >>> ptr, index = torch.tensor([0, 0, 1], dtype=torch.int32), torch.tensor([0], dtype=torch.int32)
    >>> y = polynomials(torch.ones(2, 1), (None, ptr, index), 2, 1.0, 0.0, False)
    >>> y is None or y.tolist() == [[1.0, 0.0], [1.0, 1.0]]
    True
    """
    (N, W), (weight, ptr, index) = x.shape, matrix
    W, E = W // K if combines else W, index.numel()
    numbers = (E + N) * W
    if KERNELS is None or numbers > (_FEW if W % 8 else _MANY):
        return None
    if x.dtype not in _DTYPES or ptr.dtype != torch.int32 or not (compilable(x, weight) and compilable(ptr, index)):
        return None
    y = x.new_empty(N, W if combines else K * W)
    of_weight = 0 if weight is None else weight.data_ptr()
    where = x.data_ptr(), y.data_ptr(), of_weight, ptr.data_ptr(), index.data_ptr()
    if not KERNELS.polynomials(*where, W, N, E, K, a, c, x.itemsize, combines):
        reject("index", f"pointers to {E} entries, indices from 0 to {N - 1}", extremes(index), "correct the edges")
    return y
