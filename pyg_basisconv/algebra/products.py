"""The products of two families, as a family of the same kind where there is one."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, product, zip_longest
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial.chebyshev import chebmul
from numpy.polynomial.polynomial import polymul

from ..bases import (
    Adjacency,
    Basis,
    Chebyshev,
    Composition,
    Concat,
    Diffusion,
    Identity,
    Laplacian,
    Mix,
    Powers,
    Product,
    Shifts,
    Walks,
    Window,
)
from ..walks import Sort
from ..walks.grammar import LONGEST, MOST

Rows = list[list[float]]


class Joined(NamedTuple):
    r"""A family that the products :math:`A'_k A''_l` are mixtures of.

    basis: of J matrices.
    mixtures: (J, K' K''); :math:`\Theta_j` is the mixture of the :math:`\Theta'_k \Theta''_l` by row j. None where the
    matrices are the products themselves.
    """

    basis: Basis
    mixtures: Rows | None = None


def join(first: Basis, second: Basis) -> Joined:
    """The products of two families on one graph or grid, in the order k K'' + l.

    >>> from pyg_basisconv import bases
    >>> join(bases.Powers(3), bases.Powers(2)).basis
    Powers(K=4, operator=Adjacency(norm='sym'))
    >>> join(bases.Window(None, (3, 3), padding=1), bases.Window(None, (3, 3))).basis
    Window(None, (5, 5), padding=1)
    >>> join(bases.Adjacency(), bases.Chebyshev(2)).basis
    Adjacency() @ Chebyshev(K=2)
    """
    first, second = products_of(first), products_of(second)
    for rule in (_identity, _polynomials, _windows, _shifts, _walks, _parts):
        joined = rule(first, second)
        if joined is not None:
            return joined
    return Joined(Product(first, second))


def products_of(basis: Basis) -> Basis:
    """The family of a composition, without its constants; any other family itself."""
    return basis.parts[0] if isinstance(basis, Composition) else basis  # type: ignore[return-value]


def _identity(first: Basis, second: Basis) -> Joined | None:
    if type(first) is Identity:
        return Joined(second)
    return Joined(first) if type(second) is Identity else None


# Polynomials of one matrix


@dataclass(frozen=True)
class _Polynomials:
    """A family of polynomials of one matrix, by their coefficients in rows.

    key: identifies the matrix, and Chebyshev polynomials or powers; None where all are multiples of the identity.
    family: the first J powers or Chebyshev polynomials.
    times: multiplies two polynomials, given by their coefficients.
    """

    rows: np.ndarray
    key: Hashable = None
    family: Callable[[int], Basis] = lambda J: Identity()
    times: Callable[[Any, Any], Any] = polymul


def _as_polynomials(basis: Basis) -> _Polynomials | None:
    """The family as polynomials of one matrix, if it is that."""
    if type(basis) is Identity:
        return _Polynomials(np.ones((1, 1)))
    if type(basis) is Adjacency or type(basis) is Laplacian:
        return _Polynomials(np.array([[0.0, 1.0]]), basis.key, lambda J: Powers(J, basis))
    if type(basis) is Powers:
        operator = basis.operator
        return _Polynomials(np.eye(basis.K), operator.key, lambda J: Powers(J, operator)) if operator.key else None
    if type(basis) is Diffusion and basis.direction != "both":
        if basis.direction == "out":
            return _as_polynomials(Powers(basis.steps, Adjacency("rw")))
        return _Polynomials(np.eye(basis.K), "in", lambda J: Diffusion(J, "in"))
    if type(basis) is Chebyshev:
        about = basis.laplacian.norm, basis.lambda_max
        return _Polynomials(np.eye(basis.K), ("chebyshev", *about), lambda J: Chebyshev(J, *about), chebmul)
    if type(basis) is Mix:
        part = _as_polynomials(basis.parts[0])  # type: ignore[arg-type]
        return None if part is None else replace(part, rows=np.array(basis.coefficients) @ part.rows)
    if type(basis) is Concat:
        return _concatenated([_as_polynomials(part) for part in basis.parts])  # type: ignore[arg-type]
    return None


def _concatenated(parts: Sequence[_Polynomials | None]) -> _Polynomials | None:
    known = [part for part in parts if part is not None]
    kinds = {part.key: part for part in known if part.key is not None}
    if len(known) < len(parts) or len(kinds) > 1:
        return None
    return replace(next(iter(kinds.values()), known[0]), rows=_padded([row for part in known for row in part.rows]))


def _polynomials(first: Basis, second: Basis) -> Joined | None:
    a, b = _as_polynomials(first), _as_polynomials(second)
    both = _concatenated([a, b])
    if a is None or b is None or both is None or both.key is None:
        return None
    rows = _padded([both.times(s, t) for s in a.rows for t in b.rows])
    J = max(1, len(np.trim_zeros(np.any(rows, axis=0), "b")))
    rows = rows[:, :J]
    if len(rows) > J:
        return Joined(both.family(J), rows.T.tolist())
    same = rows.shape == (J, J) and (rows == np.eye(J)).all()
    return Joined(both.family(J) if same else Mix(rows.tolist(), both.family(J)))


def _padded(rows: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([*zip_longest(*rows, fillvalue=0.0)]).T


# Windows and shifts of grids


def _windows(first: Basis, second: Basis) -> Joined | None:
    """Two windows of which the second reads no padding, or both are circular and keep the size."""
    if type(first) is not Window or type(second) is not Window:
        return None
    plain = all(w.sites is None and w.norm is None and not w.transposed and not w.ceil_mode for w in (first, second))
    if not plain or first.axes != second.axes or first.before != first.after or second.before != second.after:
        return None
    if second.shape is not None and (first.shape is None or first.target_shape(first.shape) != second.shape):
        return None
    padding = [p + q for p, q in zip(first.before, second.before, strict=True)]
    if any(second.before):  # the second one reads zeros there, not results of the first one
        around = {first.padding_mode, second.padding_mode} == {"circular"}
        stays = {*first.stride, *second.stride} == {1} and _keeps_size(first) and _keeps_size(second)
        small = first.shape is None or any(p > m for p, m in zip(padding, first.shape, strict=True))
        if not (around and stays) or small:
            return None
    options = (first.kernel_size, first.dilation, first.stride, second.kernel_size, second.dilation)
    kernel, dilation, steps = zip(*(_taps(*axis) for axis in zip(*options, strict=True)), strict=True)
    if prod(kernel) > first.K * second.K:
        return None
    stride = [s * t for s, t in zip(first.stride, second.stride, strict=True)]
    taps = [
        int(np.ravel_multi_index([a * p + b * q for a, b, (p, q) in zip(tap, then, steps, strict=True)], kernel))
        for tap, then in product(np.ndindex(*first.kernel_size), np.ndindex(*second.kernel_size))
    ]
    joined = Window(first.shape, kernel, stride, padding, dilation, first.padding_mode)
    return Joined(joined, _summed(joined.K, taps))


def _keeps_size(window: Window) -> bool:
    """Whether there are as many targets as sources."""
    spans = (d * (k - 1) for k, d in zip(window.kernel_size, window.dilation, strict=True))
    return all(b + a == span for b, a, span in zip(window.before, window.after, spans, strict=True))


def _taps(k: int, d: int, s: int, k2: int, d2: int) -> tuple[int, int, tuple[int, int]]:
    """The taps of two windows joined along an axis: their number, their dilation, and the steps of both windows.

    The first has k taps of dilation d and stride s, the second k2 taps of dilation d2.
    """
    between = gcd(d * (k > 1), s * d2 * (k2 > 1)) or 1
    return (d * (k - 1) + s * d2 * (k2 - 1)) // between + 1, between, (d // between, s * d2 // between)


def _summed(J: int, indices: Sequence[int]) -> Rows | None:
    """The mixtures that sum products with the same index; None where the indices are 0 .. J - 1 in order."""
    return None if list(indices) == list(range(J)) else [[float(i == j) for i in indices] for j in range(J)]


def _shifts(first: Basis, second: Basis) -> Joined | None:
    """Shifts that are circular, or go one way along each axis, so that none leaves the grid and comes back."""
    if type(first) is not Shifts or type(second) is not Shifts:
        return None
    mode = first.padding_mode
    if mode != second.padding_mode or first.axes != second.axes or second.shape not in (None, first.shape):
        return None
    steps = zip(*first.offsets, *second.offsets, strict=True)  # along each axis
    one_way = all(min(along) >= 0 or max(along) <= 0 for along in steps)
    if mode != "circular" and not (mode == "zeros" and one_way):
        return None
    sums = [tuple(map(sum, zip(a, b, strict=True))) for a, b in product(first.offsets, second.offsets)]
    offsets = list(dict.fromkeys(sums))
    return Joined(Shifts(first.shape, offsets, mode), _summed(len(offsets), [offsets.index(s) for s in sums]))


# Walks, and families side by side


def _walks(first: Basis, second: Basis) -> Joined | None:
    if type(first) is not Walks or type(second) is not Walks:
        return None
    counted = all(w.norm is None or w.per == "step" for w in (first, second)) and first.norm == second.norm
    known = first.vocabulary.names == second.vocabulary.names
    if not counted or not known or first.binary or second.binary:
        return None
    sorts = {}
    for (a, one), (b, other) in product(*(zip(w.names, w.sorts, strict=True) for w in (first, second))):
        sequences = tuple(s + t for s in one.sequences for t in other.sequences)
        if len(sequences) > MOST or sum(map(len, sequences)) > LONGEST:
            return None
        sorts[f"{a}.{b}"] = Sort(f"{one.text}.{other.text}", sequences)
    if len(sorts) < first.K * second.K:  # two have the same name
        return None
    memory = max(first.memory_limit, second.memory_limit)
    return Joined(Walks(sorts, first.vocabulary, first.norm, first.per, memory_limit=memory))


def _parts(first: Basis, second: Basis) -> Joined | None:
    """Part by part, where that leaves fewer matrices."""
    before, after = _opened(first), _opened(second)
    if len(before) == len(after) == 1:
        return None
    made = [join(one, other) for one, other in product(before, after)]
    J = sum(joined.basis.K for joined in made)
    if J >= first.K * second.K:
        return None
    mixtures = np.zeros((J, first.K, second.K))
    blocks = product(*(_blocks([basis.K for basis in parts]) for parts in (before, after)))
    for (k, l), j, joined in zip(blocks, _blocks([joined.basis.K for joined in made]), made, strict=True):  # noqa: E741
        block = mixtures[j, k, l]
        block[:] = np.reshape(np.eye(len(block)) if joined.mixtures is None else joined.mixtures, block.shape)
    return Joined(Concat(*(joined.basis for joined in made)), mixtures.reshape(J, -1).tolist())


def _blocks(sizes: Sequence[int]) -> list[slice]:
    return [slice(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]


def _opened(basis: Basis) -> list[Basis]:
    if type(basis) is Concat:
        return list(basis.parts)  # type: ignore[arg-type]
    if type(basis) is Diffusion and basis.direction == "both":
        return [Diffusion(basis.steps, "out"), Diffusion(basis.steps, "in")]
    return [basis]
