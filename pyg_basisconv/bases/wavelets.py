"""Diffusion wavelets: differences of dyadic powers of a lazy walk, evaluated step by step without building powers."""

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor

from ..basis import Basis, BoundBasis, Direction, EdgeList, Work
from ..bound import Derived
from ..errors import check_count, check_flags
from ..graph import Graph
from ..portable import refuse
from ..printing import arguments
from ..typed_edges import explicit, members
from .adjacency import Adjacency
from .concat import BoundConcat
from .identity import BoundIdentity
from .mix import BoundMix
from .polynomial import OfSquareMatrix, edges_of_matrices, matrix_and_identity

MOST = 24  # scales; J scales take 2^(J - 1) steps


class BoundWavelets(Derived):
    r"""The differences :math:`T^{s_j} - T^{s_{j+1}}`, s = 0, 1, 2, 4, ..., followed by the last power for `low_pass`.

    `expand` walks from each scale to the next; `combine` walks back, by
    :math:`y_j = z_j + T^{s_{j+1} - s_j} (y_{j+1} - z_j)`. Both take as many products with T as the last power.
    """

    def __init__(self, walk: BoundBasis, J: int, low_pass: bool) -> None:
        self.walk, self.J, self.low_pass, self.K = walk, J, low_pass, J + low_pass
        self.parts = (walk,)
        self.M, self.N, self.dtype, self.device = walk.M, walk.N, walk.dtype, walk.device

    def _walk(self, j: int, x: Tensor) -> Tensor:
        """T^{s_{j+1} - s_j} x."""
        for _ in range(_steps(j)):
            x = self.walk.combine([x])
        return x

    def iterate(self, x: Tensor) -> Iterator[Tensor]:
        for j in range(self.J):
            now, x = x, self._walk(j, x)
            yield now - x
        if self.low_pass:
            yield x

    def combine(self, z: Tensor | Sequence[Tensor | None]) -> Tensor:
        z = members(z, self.K)
        total = z[-1] if self.low_pass else None
        for j in reversed(range(self.J)):
            z_j = z[j]
            if z_j is not None:
                total = z_j + self._walk(j, -z_j if total is None else total - z_j)
            elif total is not None:
                total = self._walk(j, total)
        return cast(Tensor, total)

    def each(self, z: Tensor) -> Tensor:
        done, now = [], z  # (K - j, *, N, D): T^{s_j} applied to the members from j on
        for j in range(self.J):
            after = self._walk(j, now)
            done.append(now[0] - after[0])
            now = after[1:]
        return torch.stack([*done, *now])

    def edges(self) -> EdgeList:
        refuse("basis", "a family that is applied, and not written out", self)
        after, now = matrix_and_identity(self.walk)
        found = []
        for j in range(self.J):
            found.append((now - after).coalesce())
            now = after
            if j < self.J - 1:
                after = torch.sparse.mm(after, after).coalesce()
        return edges_of_matrices(found + [now] * self.low_pass, self.dtype)

    def remake(self, parts: Sequence[BoundBasis]) -> "BoundWavelets":
        return BoundWavelets(parts[0], self.J, self.low_pass)

    def work(self, direction: Direction) -> Work:
        steps = [_steps(j) * (self.K - j if direction == "each" else 1) for j in range(self.J)]
        return self.walk.work("combine").times(sum(steps))


def _steps(j: int) -> int:
    """The number of steps from scale j to the next: 1, 1, 2, 4, ..."""
    return 1 << max(0, j - 1)


class Wavelets(OfSquareMatrix):
    r"""Diffusion wavelets of J scales: differences of dyadic powers of the lazy walk :math:`T = (I + S) / 2`.

    :math:`\psi_0 = I - T, \quad \psi_j = T^{2^{j-1}} - T^{2^j}, \; j = 1 .. J - 1, \quad \phi = T^{2^{J-1}}`

    (R. R. Coifman and M. Maggioni, 2006; as in F. Gao, G. Wolf and M. Hirn, arXiv:1810.03068, and with
    `Adjacency('sym')` in F. Gama, A. Ribeiro and J. Bruna, arXiv:1806.08829). With the low pass they sum to the
    identity. A call takes :math:`2^{J-1}` products with T.

    Args:
        J: the number of scales.
        operator: S, a basis of one square matrix; by default the random walk, `Adjacency('rw')`.
        low_pass: whether to add :math:`\phi` as the last member: K = J + 1 with it, and J without.

    >>> family = Wavelets(2).bind(torch.tensor([[0, 1], [1, 0]]))
    >>> family.to_coo().to_dense()
    tensor([[[ 0.5000, -0.5000],
             [-0.5000,  0.5000]],
    <BLANKLINE>
            [[ 0.0000,  0.0000],
             [ 0.0000,  0.0000]],
    <BLANKLINE>
            [[ 0.5000,  0.5000],
             [ 0.5000,  0.5000]]])
    """

    def __init__(self, J: int, operator: Basis | None = None, low_pass: bool = True) -> None:
        check_count("J", J, most=MOST)
        check_flags(low_pass=low_pass)
        super().__init__(J + low_pass, Adjacency("rw") if operator is None else operator)
        self.J, self.low_pass = J, low_pass

    def build(self, graph: Graph) -> BoundBasis:
        return BoundWavelets(lazy(self.bind_operator(graph)), self.J, self.low_pass)

    def extra_repr(self) -> str:
        return arguments(self, f"J={self.J}", f"operator={self.operator}", low_pass=True)


def lazy(operator: BoundBasis) -> BoundBasis:
    """The matrix (I + S) / 2, as one list of edges if S is one."""
    both = BoundConcat([BoundIdentity(operator.M, operator.dtype, operator.device), operator])
    if not operator.written_out:
        return BoundMix([[0.5, 0.5]], both)
    kind, source, target, weight = both.edges()
    return explicit(1, operator.M, operator.N, EdgeList(torch.zeros_like(kind), source, target, weight / 2))
