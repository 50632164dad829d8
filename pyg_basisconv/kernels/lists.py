"""Lists of entries on the CPU: a graph that is new is bound by a few of these functions, and each of them counts.

They are compiled, see csrc/lists.cpp; where that was not built, numpy and scipy's loops do the same.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..backend import KERNELS
from ..errors import reject
from ..layouts import Ends

__all__ = ["Array", "List", "Matrix", "coo_tocsr"]

try:  # scipy's own loops; the public way to them makes a matrix, which costs more than they do on a small graph
    from scipy.sparse._sparsetools import coo_tocsr
except ImportError:  # a scipy that keeps them elsewhere
    coo_tocsr = None

Array = np.ndarray[Any, Any]
Matrix = tuple[Tensor | None, Tensor, Tensor]  # its weights, None for ones, ptr and index: what `spmm_rows` takes
LIMIT = 2**31 - 1
_OUT = {"sym": "sym", "rw": "mean"}  # norms that count the edges into a target, for edges that are turned round
_FLOATS = {torch.float32: np.float32, torch.float64: np.float64}


class List(NamedTuple):
    """Entries (source, target) of one matrix of a family, or of several.

    kind: the matrix, or (E,) that of each entry; source, target: (E,); weight: (E,) or None for ones.
    """

    kind: "int | Array"
    source: Array
    target: Array
    weight: Array | None

    @property
    def T(self) -> "List":
        """The entries turned round."""
        return List(self.kind, self.target, self.source, self.weight)

    def from_member(self, start: int) -> "List":
        """The same, of the matrices from number `start` on."""
        return List(self.kind + start, self.source, self.target, self.weight) if start else self


def lists_of(dtype: torch.dtype, size: int) -> bool:
    """Whether weights of a dtype, and indices up to some size, can stand in lists."""
    return coo_tocsr is not None and dtype in _FLOATS and size <= LIMIT


def arrays_of(ends: Ends) -> tuple[Array, Array]:
    """Sources and targets on the CPU in numpy."""
    if isinstance(ends, Tensor):
        rows = ends.numpy()
        return rows[0], rows[1]
    return ends[0].numpy(), ends[1].numpy()


def narrow(ends: Ends, sizes: tuple[int, int]) -> tuple[Array, Array] | None:
    """Sources and targets as 32-bit integers of their own, or None where one is not below the number of its nodes.

    >>> narrow(torch.tensor([[0, 2], [1, 0]]), (3, 2))
    (array([0, 2], dtype=int32), array([1, 0], dtype=int32))
    >>> narrow(torch.tensor([[0, 2], [1, 0]]), (2, 2))
    """
    if KERNELS is not None and type(ends) is Tensor and ends.is_contiguous():  # by addresses, the quickest way
        here, E, width = ends.data_ptr(), ends.shape[1], ends.itemsize
        into = np.empty((2, E), np.int32)
        return (into[0], into[1]) if KERNELS.narrow(here, here + E * width, E, width, *sizes, into) else None
    source, target = arrays_of(ends)
    if not (below(source, sizes[0]) and below(target, sizes[1])):
        return None
    return source.astype(np.int32), target.astype(np.int32)


def _compiled(edges: List) -> bool:
    """Whether there are compiled kernels for such edges."""
    return KERNELS is not None and edges.source.itemsize == 4


def looped(edges: List, N: int) -> List:
    """The edges, which have no weights, without the loops among them; and behind them a loop for each node.

    >>> looped(List(0, np.array([0, 1]), np.array([0, 0]), None), 2)
    List(kind=0, source=array([1, 0, 1]), target=array([0, 0, 1]), weight=None)
    """
    source, target = edges.source, edges.target
    if _compiled(edges):
        into = np.empty(source.size + N, np.int32), np.empty(source.size + N, np.int32)
        size = KERNELS.looped(source, target, N, *into)
        return List(edges.kind, into[0][:size], into[1][:size], None)
    some = (source != target).nonzero()[0]
    if some.size < source.size:
        source, target = source.take(some), target.take(some)
    nodes = np.arange(N, dtype=source.dtype)
    return List(edges.kind, np.concatenate((source, nodes)), np.concatenate((target, nodes)), None)


def over_degrees(edges: List, K: int, sizes: tuple[int, int], norm: str, dtype: torch.dtype) -> Array:
    """(E,) the weights of edges of weight 1, over the degrees of their ends in the matrix that each is of.

    norm: 'mean', over the number of edges into the target; 'rw', over that of the edges out of the source; 'sym', over
    the square roots of those into the source and into the target, zero where a source has none; 'ends', of those out of
    the source and into the target.

    >>> over_degrees(List(0, np.array([0, 1, 2]), np.array([2, 2, 1]), None), 1, (3, 3), "mean", torch.float32)
    array([0.5, 0.5, 1. ], dtype=float32)
    """
    source, target, kind = edges.source, edges.target, edges.kind
    if _compiled(edges):
        weight: Array = np.empty(source.size, _FLOATS[dtype])
        kinds = None if isinstance(kind, int) else kind
        if not KERNELS.over_degrees(kinds, K, source, target, *sizes, norm, weight):
            _reject([edges], K, sizes)
        return weight
    if K > 1:
        source, target, sizes = _member(source, kind, K), _member(target, kind, K), (sizes[0] * K, sizes[1] * K)
    if norm == "ends":
        out, into = _degrees(source, sizes[0], dtype), _degrees(target, sizes[1], dtype)
        return 1 / np.sqrt(out.take(source) * into.take(target))  # type: ignore[no-any-return]
    at, size = (source, sizes[0]) if norm == "rw" else (target, sizes[1])
    count = _degrees(at, size, dtype)
    some = np.maximum(count, 1)
    if norm != "sym":
        weight = (1 / some).take(at)
        return weight
    factor = np.minimum(count, 1) / np.sqrt(some)
    return factor.take(source) * factor.take(target)  # type: ignore[no-any-return]


def typed(edges: List, kind: Array, K: int, inverse: bool) -> List:
    """The edges, each of one of K matrices; and, behind them, turned round and of one of K more."""
    edges = edges._replace(kind=kind.astype(edges.source.dtype))
    if not inverse:
        return edges
    turned = edges.T.from_member(K)
    kind, source, target = (np.concatenate(pair) for pair in zip(edges[:3], turned[:3], strict=True))
    return List(kind, source, target, None)


def laplacian(edges: List, N: int, norm: str | None, dtype: torch.dtype) -> List:
    """The Laplacian of edges of weight 1, D - A, I - D^-1/2 A D^-1/2 or I - D^-1 A, with the loops last."""
    edges = looped(edges, N)
    some = edges.source.size - N
    plain = edges._replace(source=edges.source[:some], target=edges.target[:some])
    if norm is None:
        own, between = _degrees(plain.source, N, dtype), np.ones(some, _FLOATS[dtype])
    else:
        own, between = np.ones(N, _FLOATS[dtype]), over_degrees(plain.T, 1, (N, N), _OUT[norm], dtype)
    return edges._replace(weight=np.concatenate((-between, own)))


def scaled(L: List, N: int) -> List:
    """2 L / lambda - I, for twice the largest entry of L as lambda, which bounds its eigenvalues; 1 for L = 0."""
    assert L.weight is not None
    scale = 2 * L.weight.max() if L.weight.size else 0
    weight = 2 * L.weight / (scale or 1)
    weight[L.weight.size - N :] -= 1  # of the loops
    return L._replace(weight=weight)


def _degrees(ends: Array, size: int, dtype: torch.dtype) -> Array:
    return np.bincount(ends, minlength=size).astype(_FLOATS[dtype])


def compressed(lists: Sequence[List], K: int, sizes: tuple[int, int], members: str, dtype: torch.dtype) -> Matrix:
    """A family of K matrices as one, grouped by target.

    members: the end whose K members stand apart: 'target', for a matrix from M to N K, or 'source', for one from M K to
    N.
    """
    (M, N), at_target = sizes, members == "target"
    if _compiled(lists[0]):
        E = sum([e.source.size for e in lists])
        ptr: Array = np.empty((N * K if at_target else N) + 1, np.int32)
        index: Array = np.empty(E, np.int32)
        values = None if _of_ones(lists) else np.empty(E, _FLOATS[dtype])
        if not KERNELS.compressed(lists, K, at_target, M, N, ptr, index, values):
            _reject(lists, K, sizes)
        return _matrix(values, ptr, index)
    group = _joined([_member(e.target, e.kind, K) if at_target else e.target for e in lists])
    other = _joined([e.source if at_target else _member(e.source, e.kind, K) for e in lists])
    weight = _weights(lists, dtype)
    groups = N * K if at_target else N
    _check(group, groups)
    ptr, index = np.empty(groups + 1, group.dtype), np.empty_like(other)
    given = np.empty(group.size, np.bool_) if weight is None else weight
    grouped = np.empty_like(given)
    coo_tocsr(groups, M if at_target else M * K, group.size, group, other, given, ptr, index, grouped)
    return _matrix(None if weight is None else grouped, ptr, index)


def paired(lists: Sequence[List], K: int, sizes: tuple[int, int], dtype: torch.dtype) -> tuple[List, Array, list[int]]:
    """A family of K matrices by the pairs of a member and a target that an entry leads to, those of a member together.

    Returns the entries, at least one, with pairs for targets; the target of each pair; and how many pairs each member
    has.

    >>> edges = List(np.array([1, 0, 1]), np.array([0, 1, 2]), np.array([3, 3, 3]), None)
    >>> entries, at, counts = paired([edges], 2, (4, 4), torch.float32)
    >>> entries.target, at, counts
    (array([1, 0, 1]), array([3, 3]), [1, 1])
    """
    N = sizes[1]
    source, weight = _joined([e.source for e in lists]), _weights(lists, dtype)
    if _compiled(lists[0]):
        pair, counts = np.empty(source.size, np.int32), np.empty(K, np.int32)
        at: Array = np.empty(min(source.size, K * N), np.int32)
        bare = [e._replace(weight=None) for e in lists]  # `compressed` looks at weights, where it reads them
        count = KERNELS.paired(bare, K, *sizes, pair, at, counts)
        if count is False:
            _reject(lists, K, sizes)
        return List(0, source, pair, weight), at[:count], counts.tolist()
    group = _joined([e.kind * N + e.target for e in lists])
    _check(group, K * N)
    there: Array = np.zeros(K * N, np.bool_)
    there[group] = True
    number, distinct = there.cumsum(dtype=source.dtype), there.nonzero()[0].astype(source.dtype)
    counts = np.diff(number[N - 1 :: N], prepend=0)
    return List(0, source, number.take(group) - 1, weight), distinct % N, counts.tolist()


def kinds(lists: Sequence[List]) -> Tensor:
    """(E,) the matrix that each entry is of, list by list."""
    found = [np.full(e.source.size, e.kind, np.int32) if isinstance(e.kind, int) else e.kind for e in lists]
    return torch.from_numpy(_joined(found))


def ends(lists: Sequence[List]) -> tuple[Tensor, Tensor]:
    """(E,) the source and the target of each entry, in this order."""
    source, target = _joined([e.source for e in lists]), _joined([e.target for e in lists])
    return torch.from_numpy(source), torch.from_numpy(target)


def weights(lists: Sequence[List], dtype: torch.dtype) -> Tensor | None:
    """(E,) the weights in this order, None for ones."""
    weight = _weights(lists, dtype)
    return None if weight is None else torch.from_numpy(weight)


def _of_ones(lists: Sequence[List]) -> bool:
    return not [e for e in lists if e.weight is not None]


def _weights(lists: Sequence[List], dtype: torch.dtype) -> Array | None:
    if _of_ones(lists):
        return None
    return _joined([np.ones(e.source.size, _FLOATS[dtype]) if e.weight is None else e.weight for e in lists])


def _matrix(values: Array | None, ptr: Array, index: Array) -> Matrix:
    return None if values is None else torch.from_numpy(values), torch.from_numpy(ptr), torch.from_numpy(index)


def _joined(arrays: list[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _member(end: Array, kind: "int | Array", K: int) -> Array:
    """The member of a node at which each entry begins or ends: the K members of a node stand together."""
    if K == 1:
        return end
    member = end * K
    member += kind  # in place, and so in the dtype of the ends
    return member


def below(index: Array, size: int) -> bool:
    """Whether all integers, of 4 or 8 bytes, are numbers of `size` places: of a negative one the unsigned is large.

    >>> below(np.array([0, 2]), 3), below(np.array([0, -1]), 3)
    (True, False)
    """
    unsigned = index.view(np.uint32 if index.itemsize == 4 else np.uint64)
    return not index.size or int(np.maximum.reduce(unsigned)) < size


def _reject(lists: Sequence[List], K: int, sizes: tuple[int, int]) -> None:
    """Says which index was out of range, where a compiled kernel found one."""
    for edges in lists:
        for index, size in zip((edges.kind, edges.source, edges.target), (K, *sizes), strict=True):
            _check(np.atleast_1d(np.asarray(index, np.int32)), size)
    reject("lists", "kinds that are integers, and weights of the matrix's dtype", "others", "convert them")


def _check(index: Array, size: int) -> None:
    """Checks where scipy is told to write, which it does not."""
    if not below(index, size):
        reject("index", f"integers from 0 to {size - 1}", (int(index.min()), int(index.max())), "correct the edges")
