"""Products with sparse matrices by the kernels in Triton, in a fixed order of sums; see `products`."""

from torch import Tensor

from ..op import acc_dtype
from . import jit
from .launch import RowLists, blocks

_ONE = 7  # the activation that is one


def spmm(x: Tensor, weight: Tensor | None, ptr: Tensor, index: Tensor) -> Tensor:
    """`products.spmm_rows`: attention whose scores are all one, each column a head."""
    c = x.shape[1]
    rows, options = RowLists(ptr, index, x.shape[0], acc_dtype(x.dtype)), blocks(c, 1)
    y, stride = rows.new(c, x.dtype), 0 if weight is None else weight.stride(0)
    rows.run(
        jit.forward, -(-c // options["HB"]), (), x, *(None, 0) * 3,
        None, None, weight, stride, 0, *(None, 0) * 2, None, y, None, None,
        c=c, W=1, D=1, F=1, WB=1, DB=1, FB=1, PRODUCTS=False, ACTIVATION=_ONE, SLOPE=0.0, **options,
    )  # fmt: skip
    return rows.combined(y, c, x.dtype)


def sddmm(x: Tensor, y: Tensor, ptr: Tensor, index: Tensor) -> Tensor:
    """`products.sddmm` of compressed entries, without autograd."""
    W, rows, out = x.shape[1], RowLists(ptr, index, x.shape[0], acc_dtype(x.dtype)), x.new_empty(index.numel())
    options = blocks(min(W, 128), 1)
    rows.run(jit.sampled, 1, (), x.contiguous(), y.contiguous(), out, W=W, WB=options.pop("HB"), **options)
    return out
