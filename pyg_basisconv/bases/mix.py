"""Fixed mixtures of the matrices of a family."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..basis import Basis, BoundBasis, Direction, EdgeList, Work, check_bases
from ..bound import CONSTRUCTORS, Derived
from ..errors import reject
from ..kernels.op import add_times
from ..portable import refuse
from ..typed_edges import members
from .composed import Composed, real


def _zeros(t: Tensor) -> Tensor:
    """Zeros in the shape of t, even if it has NaN; they depend on t for autograd."""
    return t.masked_fill(torch.ones((), dtype=torch.bool, device=t.device), 0)


def _add_to(sums: list[Tensor | None], factors: Sequence[float], z: Tensor) -> None:
    """Adds to each sum its factor times z, unless that is zero."""
    for i, factor in enumerate(factors):
        if factor:
            sums[i] = add_times(sums[i], factor, z)


class BoundMix(Derived):
    r"""Fixed mixtures :math:`B_h = \sum_k C_{hk} A_k` of a family."""

    def __init__(self, coefficients: Sequence[Sequence[float]], family: BoundBasis) -> None:
        self.family, self.parts = family, (family,)
        self.coefficients = [list(row) for row in coefficients]
        self.K, self.M, self.N = len(self.coefficients), family.M, family.N
        self.source_grid, self.target_grid = family.source_grid, family.target_grid
        self.dtype, self.device, self.batch = family.dtype, family.device, family.batch

    def iterate(self, x: Tensor) -> Iterator[Tensor]:
        sums: list[Tensor | None] = [None] * self.K
        for u, column in zip(self.family.iterate(x), zip(*self.coefficients, strict=True), strict=True):
            _add_to(sums, column, u)
        return iter([_zeros(u) if total is None else total for total in sums])

    def combine(self, z: Tensor | Sequence[Tensor | None]) -> Tensor:
        given = [(z_h, row) for z_h, row in zip(members(z, self.K), self.coefficients, strict=True) if z_h is not None]
        sums: list[Tensor | None] = [None] * self.family.K
        for z_h, row in given:
            _add_to(sums, row, z_h)
        if all(total is None for total in sums):
            sums[0] = _zeros(given[0][0])
        return self.family.combine(sums)

    def each(self, z: Tensor) -> Tensor:
        # Mixture h is applied to z_h alone, by a pass of the whole family.
        rows = zip(self.coefficients, z, strict=True)
        return torch.stack([BoundMix([row], self.family).combine([z_h]) for row, z_h in rows])

    def edges(self) -> EdgeList:
        if not all(all(row) for row in self.coefficients):
            refuse("basis", "a mixture without zeros, where it is written out", self)
        kind, source, target, weight = self.family.edges()
        lists = []
        for h, row in enumerate(self.coefficients):
            factor = torch.tensor(row, dtype=weight.dtype, device=weight.device).index_select(0, kind.long())
            some = slice(None) if all(row) else factor.nonzero().squeeze(1)
            lists.append([t[some] for t in (torch.full_like(kind, h), source, target, weight * factor)])
        return EdgeList(*(torch.cat(column) for column in zip(*lists, strict=True)))

    def remake(self, parts: Sequence[BoundBasis]) -> "BoundMix":
        return BoundMix(self.coefficients, parts[0])

    def work(self, direction: Direction) -> Work:
        if direction == "each":
            return self.family.work("combine").times(self.K)
        return self.family.work(direction)


class Mix(Composed):
    r"""Fixed mixtures of a family: :math:`B_h = \sum_k C_{hk} A_k`, H matrices of K.

    With a row of the identity as coefficients it selects one member (SGC is the last power alone); mixtures of powers
    are fixed polynomials (personalised PageRank, SSGC).

    Args:
        coefficients: C, (H, K), or (K,) for one mixture.
        basis: the family.

    >>> from pyg_basisconv import bases
    >>> Mix([0., 0., 1.], bases.Powers(3))
    Mix([[0.0, 0.0, 1.0]], Powers(K=3, operator=Adjacency(norm='sym')))
    """

    def __init__(self, coefficients: Sequence[float] | Sequence[Sequence[float]] | Tensor, basis: Basis) -> None:
        check_bases(basis)
        C = real(coefficients, torch.float64)
        if C is None:
            got, fix = repr(coefficients)[:200], "give rows of one length, of numbers in the range of float64"
            reject("coefficients", f"numbers of shape (H, {basis.K})", got, fix)
        C = C.unsqueeze(0) if C.dim() == 1 else C
        if C.dim() != 2 or C.shape[1] != basis.K or not C.shape[0]:
            reject("coefficients", f"shape (H, {basis.K})", tuple(C.shape), f"one number for each matrix of {basis}")
        if not bool(torch.isfinite(C).all()):
            reject("coefficients", "finite numbers", C.tolist(), "remove what is not finite")
        super().__init__(C.shape[0], basis)
        self.coefficients: list[list[float]] = C.tolist()

    def join(self, bound: list[BoundBasis]) -> BoundBasis:
        return BoundMix(self.coefficients, bound[0])

    def __repr__(self) -> str:
        return f"Mix({self.coefficients}, {self.parts[0]!r})"


CONSTRUCTORS["mix"] = Mix
