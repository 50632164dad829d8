"""Polynomials of one matrix, which multiply to others."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import product

from ..bases import Adjacency, Basis, Chebyshev, Concat, Diffusion, Identity, Laplacian, Mix, Powers
from .joined import Joined, Rows, unit


@dataclass(frozen=True)
class Polynomial:
    """A family of polynomials of one matrix: each a row of coefficients of those that a recurrence gives.

    key: what tells the matrix and the recurrence from others, None where all matrices are multiples of the identity.
    """

    rows: Rows
    key: Hashable = None
    family: Callable[[int], Basis] | None = None
    chebyshev: bool = False

    def times(self, a: Sequence[float], b: Sequence[float]) -> list[float]:
        """The coefficients of a product."""
        c = [0.0] * (len(a) + len(b) - 1)
        for (i, s), (j, t) in product(enumerate(a), enumerate(b)):
            if self.chebyshev:  # T_i T_j = (T_{i+j} + T_{|i-j|}) / 2
                c[i + j] += s * t / 2
                c[abs(i - j)] += s * t / 2
            else:
                c[i + j] += s * t
        return c


def _polynomial(basis: Basis) -> Polynomial | None:
    """The family as polynomials of one matrix, if it is one of them."""
    kind = type(basis)
    if kind is Identity:
        return Polynomial([[1.0]])
    if isinstance(basis, Adjacency | Laplacian) and kind in (Adjacency, Laplacian):
        return Polynomial([[0.0, 1.0]], basis.key, lambda J: Powers(J, basis))
    if isinstance(basis, Powers) and kind is Powers:
        operator = basis.operator
        return Polynomial(unit(basis.K), operator.key, lambda J: Powers(J, operator)) if operator.key else None
    if isinstance(basis, Diffusion) and kind is Diffusion and basis.direction != "both":
        if basis.direction == "out":
            return _polynomial(Powers(basis.steps, Adjacency("rw")))
        return Polynomial(unit(basis.K), "in", lambda J: Diffusion(J, "in"))
    if isinstance(basis, Chebyshev) and kind is Chebyshev:
        about = basis.laplacian.norm, basis.lambda_max
        return Polynomial(unit(basis.K), ("chebyshev", *about), lambda J: Chebyshev(J, *about), chebyshev=True)
    if isinstance(basis, Mix) and kind is Mix:
        part = _polynomial(basis.parts[0])  # type: ignore[arg-type]
        return None if part is None else _mixed(part, basis.coefficients)
    if isinstance(basis, Concat) and kind is Concat:
        return _beside([_polynomial(part) for part in basis.parts])  # type: ignore[arg-type]
    return None


def _mixed(part: Polynomial, coefficients: Rows) -> Polynomial:
    columns = list(zip(*_padded(part.rows), strict=True))
    rows = [[sum(c * v for c, v in zip(row, column, strict=True)) for column in columns] for row in coefficients]
    return Polynomial(rows, part.key, part.family, part.chebyshev)


def _beside(parts: Sequence[Polynomial | None]) -> Polynomial | None:
    known = [part for part in parts if part is not None]
    kinds = {part.key: part for part in known if part.key is not None}
    if len(known) < len(parts) or len(kinds) > 1:
        return None
    kind = next(iter(kinds.values()), known[0])
    return Polynomial([row for part in known for row in part.rows], kind.key, kind.family, kind.chebyshev)


def polynomials(first: Basis, second: Basis) -> Joined | None:
    """The products of polynomials of one matrix."""
    a, b = _polynomial(first), _polynomial(second)
    both = None if a is None or b is None else _beside([a, b])
    if a is None or b is None or both is None or both.family is None:
        return None
    rows = _padded([both.times(s, t) for s in a.rows for t in b.rows])
    J = max((j + 1 for row in rows for j, c in enumerate(row) if c), default=1)
    rows = [row[:J] for row in rows]
    if len(rows) > J:
        return Joined(both.family(J), [list(column) for column in zip(*rows, strict=True)])
    return Joined(both.family(J) if rows == unit(J) else Mix(rows, both.family(J)))


def _padded(rows: Rows) -> Rows:
    J = max(map(len, rows))
    return [[*row, *[0.0] * (J - len(row))] for row in rows]
