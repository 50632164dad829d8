"""Memory for what kernels write, and how tensors lie in it."""

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

from torch import Tensor

_LARGE = 1 << 23  # bytes; the C library gives memory of this size back, so that each of its pages is new in each call
_PAGE = 1 << 21
_HUGE = 14  # MADV_HUGEPAGE
_LIBRARY: Any = ctypes.CDLL(None) if sys.platform == "linux" else None


def room(like: Tensor, *shape: int) -> Tensor:
    """An empty tensor of the dtype and device of another. If it is large, in huge pages where Linux gives them on
    demand: the first write to small ones takes longer than most kernels.
    """
    found = like.new_empty(*shape)  # which torch reads faster than a tuple
    if found.nbytes >= _LARGE and _LIBRARY is not None and found.is_cpu and type(found) is Tensor:
        start = -(-found.data_ptr() // _PAGE) * _PAGE
        size = (found.data_ptr() + found.nbytes - start) // _PAGE * _PAGE
        _LIBRARY.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _HUGE)  # a request, which may be refused
    return found


def side_by_side(parts: Sequence[Tensor]) -> Tensor | None:
    """The rows that several tensors are the columns of, each behind the one before it; None if they are not.

    >>> import torch
    >>> x = torch.randn(3, 5)
    >>> found = side_by_side(x.split([3, 2], 1))
    >>> found is not None and found.equal(x), side_by_side([x[:, :2], x[:, 3:]])
    (True, None)
    """
    if len(parts) < 2:
        return None
    first, width = parts[0], 0
    rows, stride, start, storage = len(first), first.stride(0), first.storage_offset(), first.untyped_storage()._cdata
    for t in parts:
        alike = t.dim() == 2 and len(t) == rows and t.dtype == first.dtype and t.untyped_storage()._cdata == storage
        if not alike or t.stride() != (stride, 1) or t.storage_offset() != start + width:
            return None
        width += t.shape[1]
    return first.as_strided((rows, width), (stride, 1), start) if width <= stride else None


def columns_like(tables: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Memory for each table that is there; side by side for those that lie side by side, in their order.

    >>> import torch
    >>> x = torch.randn(3, 5)
    >>> found = columns_like([x[:, 2:], None, x[:, :2]])
    >>> [None if t is None else (tuple(t.shape), t.stride()) for t in found]
    [((3, 3), (5, 1)), None, ((3, 2), (5, 1))]
    """
    groups: list[list[tuple[int, Tensor]]] = []
    there = [(i, t) for i, t in enumerate(tables) if t is not None]  # which may be the same tensor twice
    for i, t in sorted(there, key=lambda one: one[1].data_ptr()):
        if groups and side_by_side([*(other for _, other in groups[-1]), t]) is not None:
            groups[-1].append((i, t))
        else:
            groups.append([(i, t)])
    made: list[Tensor | None] = [None] * len(tables)
    for group in groups:
        (_, first), widths = group[0], [t.shape[1] for _, t in group]
        for (i, _), columns in zip(group, room(first, len(first), sum(widths)).split(widths, 1), strict=True):
            made[i] = columns
    return made
