"""Families that are applied member by member."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from ..basis import BoundBasis, Direction, Work
from ..bound import Derived
from ..errors import reject
from ..kernels.grids import Ints
from ..typed_edges import dense, members


class MemberByMember(BoundBasis):
    """Families that define `each`, from which `expand` and `combine` follow."""

    def combine(self, z: Tensor | Sequence[Tensor | None]) -> Tensor:
        y = self.each(dense(z))
        return y.squeeze(0) if self.K == 1 else y.sum(0)

    def iterate(self, x: Tensor) -> Iterator[Tensor]:
        return iter(members(self.expand(x), self.K))

    def expand(self, x: Tensor) -> Tensor:
        return self.each(x.expand(self.K, *x.shape))


class DisjointUnion(MemberByMember, Derived):
    """Families of the graphs of a batch, written out as one on their disjoint union."""

    def __init__(self, whole: BoundBasis, batch: Ints, M: int, N: int) -> None:
        self.parts, self.batch = (whole,), batch
        self.K, self.M, self.N, self.dtype, self.device = whole.K, M, N, whole.dtype, whole.device

    def each(self, z: Tensor) -> Tensor:
        lead, more = z.shape[1:-2], z.dim() - 3 - len(self.batch)
        if more < 0 or tuple(lead[more:]) != self.batch:
            reject("x", f"the batch dimensions {self.batch}", tuple(lead), "bind with these features")
        z = z.flatten(1 + more, -2)
        return self.parts[0].each(z).unflatten(-2, (*self.batch, self.N))

    @property
    def T(self) -> BoundBasis:
        return DisjointUnion(self.parts[0].T, self.batch, self.N, self.M)

    def remake(self, parts: Sequence[BoundBasis]) -> BoundBasis:
        return DisjointUnion(parts[0], self.batch, self.M, self.N)

    def work(self, direction: Direction) -> Work:
        return self.parts[0].work(direction)
