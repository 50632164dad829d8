"""Products of rows in groups, each group with a matrix of its own, by the kernels in Triton; see `kernels.typed`.

Groups are [ptr, index, kind]: group i has the rows ptr[i] .. ptr[i + 1] - 1 and the matrix kind[i], row r has the node
index[r]. Each row is B rows below each other, one for each member of a batch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..op import acc_dtype
from . import typed_jit
from .launch import RowLists, power_of_two

COMPILED = {"num_warps": 4, "enable_fp_fusion": True}  # what the compiler is told
_SIDE = 64  # rows and columns of a block of a product
_BYTES = 128  # of each of its rows and columns that are multiplied at a time
_LEAST = 16  # of both: what tensor cores take
_TF32 = 8, 0  # the capability from which on they have TF32


def multiplied(table: Tensor, weight: Tensor, groups: Sequence[Tensor], batch: int, gathered: bool) -> Tensor:
    """The rows of each group with the blocks of its matrix.

    Args:
        table: (t B, G P) the rows; where `gathered`, (N B, G P), those of all nodes.
        weight: (K, G, P, Q), of any strides.
        groups: of the t rows.
        batch: B.
        gathered: whether the rows are those of their nodes.

    Returns:
        (t B, G Q), of the dtype of the table.
    """
    ptr, index, kind = groups
    _, G, P, Q = weight.shape
    rows = RowLists(ptr, index, table.shape[0] // batch, acc_dtype(table.dtype))
    out = table.new_empty(index.numel() * batch, G * Q)
    PB, QB = _width(P, _BYTES // table.itemsize), _width(Q, _SIDE)
    rows.run(
        typed_jit.multiplied, G * -(-Q // QB), (kind,), batch, table.contiguous(), weight, *weight.stride(), out,
        GATHERED=gathered, G=G, P=P, Q=Q, PRECISION=_precision(table), RB=_SIDE, PB=PB, QB=QB, **COMPILED,
    )  # fmt: skip
    return out


def outer(x: Tensor, z: Tensor, groups: Sequence[Tensor], batch: int, blocks: int) -> Tensor:
    """The inner products of the rows of each group with those of their nodes.

    Args:
        x: (t B, G P) the rows.
        z: (N B, G Q) those of the nodes.
        groups: of the t rows.
        batch: B.
        blocks: G.

    Returns:
        (groups, G, P, Q), of the dtype of sums.
    """
    ptr, index, _ = groups
    G, P, Q = blocks, x.shape[1] // blocks, z.shape[1] // blocks
    rows = RowLists(ptr, index, z.shape[0] // batch, acc_dtype(x.dtype))
    out = rows.new(G * P * Q, rows.sums)
    PB, QB = _width(P, _SIDE), _width(Q, _SIDE)
    rows.run(
        typed_jit.outer, G * -(-P // PB) * -(-Q // QB), (), batch, x.contiguous(), z.contiguous(), out,
        G=G, P=P, Q=Q, PRECISION=_precision(x), RB=_BYTES // x.itemsize, PB=PB, QB=QB, **COMPILED,
    )  # fmt: skip
    return rows.combined(out, G * P, out.dtype).view(-1, G, P, Q)


def _width(size: int, most: int) -> int:
    return max(_LEAST, min(most, power_of_two(size)))


def _precision(rows: Tensor) -> str:
    """TF32 only where torch's products of matrices have it."""
    asked = rows.is_cuda and torch.backends.cuda.matmul.fp32_precision == "tf32"
    return "tf32" if asked and torch.cuda.get_device_capability(rows.device) >= _TF32 else "ieee"
