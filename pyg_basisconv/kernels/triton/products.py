"""Products with sparse matrices by the kernels in Triton, in a fixed order of sums; see `products`."""

from functools import cache

from torch import Tensor

from ..op import acc_dtype
from . import jit
from .launch import NARROW, WIDE, RowLists, blocks, power_of_two

_ONE = 7  # the activation that is one
_WIDEST = 128  # columns of a head


def spmm(x: Tensor, weight: Tensor | None, ptr: Tensor, index: Tensor) -> Tensor:
    """`products.spmm_rows`: attention whose scores are all one, with as few heads as their widths allow."""
    W = _width(x.shape[1])
    c = x.shape[1] // W
    rows, options = RowLists(ptr, index, x.shape[0], acc_dtype(x.dtype)), blocks(NARROW, c, W)
    y, stride = rows.new(x.shape[1], x.dtype), 0 if weight is None else weight.stride(0)
    rows.run(
        jit.forward, -(-c // options["HB"]), (), x, x.stride(0), *(None, 0) * 3,
        None, None, None, weight, stride, 0, *(None, 0) * 2, None, y, None, None, c=c, W=W, D=1, F=1,
        WB=power_of_two(W), DB=1, FB=1, NORMALISED=False, PRODUCTS=False, ACTIVATION=_ONE, SLOPE=0.0, **options,
    )  # fmt: skip
    return rows.combined(y, c, x.dtype)


@cache
def _width(columns: int) -> int:
    """Of a head: the most that divides the columns, as each has a weight to read, and that one program can have."""
    return max(width for width in range(1, _WIDEST + 1) if columns % width == 0)


def sddmm(x: Tensor, y: Tensor, ptr: Tensor, index: Tensor) -> Tensor:
    """`products.sddmm` of compressed entries, without autograd."""
    W, rows, out = x.shape[1], RowLists(ptr, index, x.shape[0], acc_dtype(x.dtype)), x.new_empty(index.numel())
    columns = min(W, _WIDEST)
    options = {name: value for name, value in blocks(WIDE, 1, columns).items() if name != "HB"}
    rows.run(jit.sampled, 1, (), x.contiguous(), y.contiguous(), out, W=W, WB=power_of_two(columns), **options)
    return out
