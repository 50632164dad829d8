"""Memory for what kernels write."""

import ctypes
import sys
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
