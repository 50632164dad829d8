"""Diffusion wavelets: differences of dyadic powers of a lazy walk, evaluated step by step without building powers."""

import torch

from ..basis import Basis, BoundBasis, EdgeList
from ..errors import check_count, check_flags
from ..graph import Graph
from ..printing import arguments
from ..typed_edges import explicit
from .adjacency import Adjacency
from .concat import BoundConcat
from .identity import BoundIdentity
from .mix import BoundMix
from .polynomial import BoundPolynomial, OfSquareMatrix

MOST = 24  # scales; J scales take 2^(J - 1) steps


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
        J, powers = self.J, [*range(self.J + 1)]  # T^0, T^1, T^2, T^4, ...
        steps = [1 << max(0, j - 1) for j in range(J)]  # from each of them to the next
        rows = [[float(k == j) - float(k == j + 1 <= J) for k in powers] for j in range(self.K)]
        return BoundMix(rows, BoundPolynomial(lazy(self.bind_operator(graph)), J + 1, 1.0, 0.0, steps))

    def extra_repr(self) -> str:
        return arguments(self, f"J={self.J}", f"operator={self.operator}", low_pass=True)


def lazy(operator: BoundBasis) -> BoundBasis:
    """The matrix (I + S) / 2, as one list of edges if S is one."""
    both = BoundConcat([BoundIdentity(operator.M, operator.dtype, operator.device), operator])
    if not operator.written_out:
        return BoundMix([[0.5, 0.5]], both)
    kind, source, target, weight = both.edges()
    return explicit(1, operator.M, operator.N, EdgeList(torch.zeros_like(kind), source, target, weight / 2))
