"""Fixed mixtures of the matrices of a family."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..basis import Basis, BoundBasis, Direction, EdgeList, Work, check_bases
from ..bound import CONSTRUCTORS, Derived
from ..errors import reject
from ..portable import refuse, with_plain
from ..typed_edges import members
from .composed import Composed, real


def _zeros(t: Tensor) -> Tensor:
    """Zeros in the shape of t, even if it has NaN; they depend on t for autograd."""
    return t.masked_fill(torch.ones((), dtype=torch.bool, device=t.device), 0)


@with_plain(lambda factor: slice(None))
def _nonzero(factor: Tensor) -> Tensor:
    return factor.nonzero().squeeze(1)


class BoundMix(Derived):
    r"""Fixed mixtures :math:`B_h = \sum_k C_{hk} A_k` of a family."""

    def __init__(self, coefficients: Sequence[Sequence[float]], family: BoundBasis) -> None:
        self.family, self.parts = family, (family,)
        self.coefficients = [list(row) for row in coefficients]
        self.K, self.M, self.N = len(self.coefficients), family.M, family.N
        self.source_grid, self.target_grid = family.source_grid, family.target_grid
        self.dtype, self.device, self.batch = family.dtype, family.device, family.batch

    def _matrix(self) -> Tensor:
        return torch.tensor(self.coefficients, dtype=self.dtype, device=self.device)

    def iterate(self, x: Tensor) -> Iterator[Tensor]:
        mixed: list[Tensor | None] = [None] * self.K
        for k, u in enumerate(self.family.iterate(x)):
            for h, row in enumerate(self.coefficients):
                if row[k]:
                    now = mixed[h]
                    mixed[h] = (u if row[k] == 1 else row[k] * u) if now is None else torch.add(now, u, alpha=row[k])
        return iter([_zeros(u) if u_h is None else u_h for u_h in mixed])

    def combine(self, z: Tensor | Sequence[Tensor | None]) -> Tensor:
        given = [(h, z_h) for h, z_h in enumerate(members(z, self.K)) if z_h is not None]
        unmixed: list[Tensor | None] = []
        for k in range(self.family.K):
            total: Tensor | None = None
            for h, z_h in given:
                c = self.coefficients[h][k]
                if c:
                    scaled = z_h if c == 1 else c * z_h
                    total = scaled if total is None else total + scaled
            unmixed.append(total)
        if all(total is None for total in unmixed):
            unmixed[0] = _zeros(given[0][1])
        return self.family.combine(unmixed)

    def each(self, z: Tensor) -> Tensor:
        # Mixture h is applied to z_h alone, by a pass of the whole family.
        rows = zip(self.coefficients, z, strict=True)
        return torch.stack([BoundMix([row], self.family).combine([z_h]) for row, z_h in rows])

    def edges(self) -> EdgeList:
        if not all(all(row) for row in self.coefficients):
            refuse("basis", "a mixture without zeros, where it is written out", self)
        kind, source, target, weight = self.family.edges()
        lists = []
        for h, row in enumerate(self._matrix()):
            factor = row.index_select(0, kind.long())
            some = _nonzero(factor)
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
