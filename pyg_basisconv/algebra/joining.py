"""The products of two families, as a family of the same kind where there is one."""

from itertools import accumulate, product

from ..bases import Basis, Composition, Concat, Diffusion, Identity, Product, Walks
from ..walks import Sort
from ..walks.grammar import MOST
from ..walks.syntax import LONGEST
from .joined import Joined, unit
from .polynomials import polynomials
from .windows import shifts, windows


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
    first, second = (b.parts[0] if isinstance(b, Composition) else b for b in (first, second))  # type: ignore[assignment]
    for rule in (_identity, polynomials, windows, shifts, _walks, _parts):
        joined = rule(first, second)
        if joined is not None:
            return joined
    return Joined(Product(first, second))


def _identity(first: Basis, second: Basis) -> Joined | None:
    if type(first) is Identity:
        return Joined(second)
    return Joined(first) if type(second) is Identity else None


def _walks(first: Basis, second: Basis) -> Joined | None:
    if not (isinstance(first, Walks) and isinstance(second, Walks) and type(first) is type(second) is Walks):
        return None
    counted = all(w.norm is None or w.per == "step" for w in (first, second)) and first.norm == second.norm
    known = first.vocabulary.names == second.vocabulary.names
    if not counted or not known or first.binary or second.binary:
        return None
    sorts = {}
    for (a, one), (b, other) in product(
        zip(first.names, first.sorts, strict=True), zip(second.names, second.sorts, strict=True)
    ):
        sequences = tuple(s + t for s in one.sequences for t in other.sequences)
        if len(sequences) > MOST or sum(map(len, sequences)) > LONGEST:
            return None
        sorts[f"{a}.{b}"] = Sort(f"{one.text}.{other.text}", sequences)
    if len(sorts) < first.K * second.K:  # names that come together
        return None
    memory = max(first.memory_limit, second.memory_limit)
    return Joined(Walks(sorts, first.vocabulary, first.norm, first.per, memory_limit=memory))


def _parts(first: Basis, second: Basis) -> Joined | None:
    """Of families side by side: part by part, where that leaves fewer matrices."""
    before, after = _opened(first), _opened(second)
    if len(before) == len(after) == 1:
        return None
    made = [join(one, other) for one, other in product(before, after)]
    J = sum(joined.basis.K for joined in made)
    if J >= first.K * second.K:
        return None
    mixtures = [[0.0] * (first.K * second.K) for _ in range(J)]
    starts = product(*(list(accumulate((b.K for b in part[:-1]), initial=0)) for part in (before, after)))
    j = 0
    for (one, other), (k, k2), joined in zip(product(before, after), starts, made, strict=True):
        places = [(k + i) * second.K + k2 + i2 for i in range(one.K) for i2 in range(other.K)]
        for row in unit(len(places)) if joined.mixtures is None else joined.mixtures:
            for place, c in zip(places, row, strict=True):
                mixtures[j][place] = c
            j += 1
    return Joined(Concat(*(joined.basis for joined in made)), mixtures)


def _opened(basis: Basis) -> list[Basis]:
    if type(basis) is Concat:
        return list(basis.parts)  # type: ignore[arg-type]
    if isinstance(basis, Diffusion) and type(basis) is Diffusion and basis.direction == "both":
        return [Diffusion(basis.steps, "out"), Diffusion(basis.steps, "in")]
    return [basis]
