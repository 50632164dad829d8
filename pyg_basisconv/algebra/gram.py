"""The inner products of the matrices of a family, and from them its rank, dependences and least squares."""

import math
from collections.abc import Iterable
from typing import Any

import scipy.linalg
import torch
from torch import Tensor

from ..basis import Basis, BoundBasis, bound_basis
from ..cache import cached_property
from ..errors import reject
from ..kernels import Pattern
from ..sparse import Sparse

_DENSE = 16  # with at least one entry in so many, columns are multiplied as dense ones
_NUMBERS = 1 << 20  # of dense columns, at a time
_LATE = 0.1  # the weight of the last matrix against the first one, when independent ones are chosen


class Places:
    """A family of K matrices on one graph as one sparse matrix: a row for each place (m, n) where one may be nonzero.

    place: (U,) the numbers m N + n, ascending; row, kind, weight: (E,) of each entry, with the matrix that it is of, by
    rows, in which no two are of the same; in double precision.
    """

    def __init__(self, place: Tensor, K: int, row: Tensor, kind: Tensor, weight: Tensor) -> None:
        self.place, self.K = place, K
        self.row, self.kind, self.weight = row, kind, weight

    @classmethod
    def of(cls, bound: BoundBasis) -> "Places":
        """The places of a bound basis, on one graph."""
        if bound.batch:
            reject("basis", "one graph", f"a batch of {bound.batch}", "take one of them, such as A[0]")
        kind, source, target, weight = bound.edges()
        place, row = (source.long() * bound.N + target.long()).unique(return_inverse=True)
        index, shape = torch.stack([row, kind.long()]), (place.numel(), bound.K)
        apart = torch.sparse_coo_tensor(index, weight.double(), shape, device=weight.device, is_coalesced=False)
        matrix = apart.coalesce()
        row, kind = matrix.indices()
        return cls(place, bound.K, row, kind, matrix.values())

    @property
    def U(self) -> int:
        """The number of places."""
        return self.place.numel()

    @cached_property
    def _to_matrices(self) -> Sparse:
        return Sparse(Pattern(self.row, self.kind, self.U, self.K), self.weight)

    @cached_property
    def _to_places(self) -> Sparse:
        return Sparse(self._to_matrices.pattern.T, self.weight)

    def products(self, values: Tensor) -> Tensor:
        """The inner products of the matrices with values at the places: (U, W) -> (K, W)."""
        return self._to_matrices.apply(values)

    def sums(self, theta: Tensor) -> Tensor:
        """The values at the places of weighted sums of the matrices: (K, W) -> (U, W)."""
        return self._to_places.apply(theta)

    @property
    def pattern(self) -> "Places":
        """The same places with ones for all non-zero entries."""
        return Places(self.place, self.K, self.row, self.kind, (self.weight.detach() != 0).double())

    def inner_products(self, others: "Places") -> Tensor:
        """(K, K') the inner products with the matrices of others at the same places."""
        if _DENSE * min(self.weight.numel(), others.weight.numel()) < self.U * max(self.K, others.K):
            return torch.sparse.mm(self._matrix.t().coalesce(), others._matrix).to_dense()
        some = self.weight.new_ones(others.K).diag().split(max(1, _NUMBERS // max(1, self.U)), 1)
        return torch.cat([self.products(others.sums(columns)) for columns in some], 1)

    @property
    def _matrix(self) -> Tensor:
        index, weight = torch.stack([self.row, self.kind]), self.weight
        return torch.sparse_coo_tensor(index, weight, (self.U, self.K), device=weight.device, is_coalesced=True)

    @cached_property
    def gram(self) -> "Gram":
        """The inner products of the matrices."""
        return Gram(self.inner_products(self), self.U)

    def find(self, place: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of these places, and whether each is one of the family's."""
        if not self.U:
            return torch.zeros_like(place), torch.zeros_like(place, dtype=torch.bool)
        row = torch.searchsorted(self.place, place).clamp(max=self.U - 1)
        return row, self.place[row] == place

    def among(self, others: "Places") -> tuple["Places", "Places"]:
        """The entries at places of others, by the rows there; and the entries at no place of theirs."""
        row, there = others.find(self.place[self.row])
        inside = Places(others.place, self.K, row[there], self.kind[there], self.weight[there])
        return inside, Places(self.place, self.K, self.row[~there], self.kind[~there], self.weight[~there])


class Gram:
    r"""The inner products :math:`\langle A_k, A_l \rangle = \sum_{mn} A_k[m, n] \, A_l[m, n]` of a family.

    Args:
        matrix: see Attributes.
        places: the number of places (m, n) that the sums are over.

    Attributes:
        matrix: (K, K), float64.
        rank: the number of independent matrices; dependences up to about 1e-7 of their size count.
        condition: of the matrices, scaled to norm 1: the largest singular value over the smallest; infinite where some
            are dependent. (The scaled `matrix` has the square of it.)
        dependent: a sentence for each matrix that is a sum of others, such as 'A_3 = 2 A_0 + A_1'.

    >>> import torch
    >>> from pyg_basisconv import bases
    >>> found = gram(bases.Identity() + bases.Adjacency('sym') + bases.Laplacian('sym'), torch.tensor([[0, 1], [1, 0]]))
    >>> found.rank, found.dependent, found.condition
    (2, ['A_2 = A_0 - A_1'], inf)
    >>> found.matrix
    tensor([[ 2.,  0.,  2.],
            [ 0.,  2., -2.],
            [ 2., -2.,  4.]], dtype=torch.float64)
    """

    def __init__(self, matrix: Tensor, places: int) -> None:
        if not matrix.isfinite().all():
            reject("basis", "entries whose squares are finite", "some that are not", "correct, or scale, its weights")
        self.matrix, self.places, self.K = matrix, places, matrix.shape[-1]

    @property
    def rounding(self) -> float:
        """A bound on the rounding error of the scaled matrix's eigenvalues."""
        return torch.finfo(torch.float64).eps * self.K * max(8.0, math.sqrt(self.places))

    @cached_property
    def norms(self) -> Tensor:
        r"""(K,) the norms :math:`\|A_k\|`."""
        return self.matrix.diagonal().detach().sqrt()

    @cached_property
    def _scale(self) -> Tensor:
        return torch.where(self.norms > 0, self.norms, 1)

    @property
    def _scaled(self) -> Tensor:
        """The Gram matrix of the matrices scaled to norm 1; zero matrices stay zero."""
        return self.matrix / (self._scale.unsqueeze(1) * self._scale)

    @cached_property
    def _spectrum(self) -> tuple[Tensor, Tensor]:
        """The eigenvalues of the scaled matrix, ascending, and its eigenvectors."""
        return torch.linalg.eigh(self._scaled.detach())

    @cached_property
    def rank(self) -> int:
        return int((self._spectrum[0] > self.rounding).sum())

    @property
    def condition(self) -> float:
        least, most = float(self._spectrum[0][0]), float(self._spectrum[0][-1])
        return math.inf if self.rank < self.K else math.sqrt(most / least)

    @cached_property
    def _independent(self) -> Tensor:
        """The indices of independent matrices that span all, by pivoted QR; earlier matrices are preferred."""
        if self.rank == self.K:
            return torch.arange(self.K, device=self.matrix.device)
        values, vectors = self._spectrum
        columns = values.clamp(min=0).sqrt().unsqueeze(1) * vectors.t()  # these have the same inner products
        early = torch.logspace(0, math.log10(_LATE), self.K, dtype=values.dtype, device=values.device)
        pivots = scipy.linalg.qr((columns * early).cpu().numpy(), mode="r", pivoting=True)[1]
        return torch.tensor(sorted(pivots[: self.rank].tolist()), dtype=torch.int64, device=values.device)

    def _solve(self, right: Tensor) -> Tensor:
        """The coefficients of the independent matrices, scaled to norm 1, from the inner products with each of them."""
        S = self._independent
        return torch.linalg.solve(self._scaled[S][:, S], right)

    @cached_property
    def _dependent(self) -> list[int]:
        return sorted({*range(self.K)} - {*self._independent.tolist()})

    @property
    def _scaled_relations(self) -> Tensor:
        """(K, K - rank) the `relations` of the matrices scaled to norm 1."""
        S, D = self._independent, self._dependent
        found = self._scaled.new_zeros(self.K, len(D)).index_copy(0, S, -self._solve(self._scaled[S][:, D]))
        found[D, range(len(D))] = 1
        return found

    @property
    def relations(self) -> Tensor:
        r"""(K, K - rank) a basis, in columns, of all coefficients r with :math:`\sum_k r_k A_k = 0`."""
        return self._scaled_relations * self._scale[self._dependent] / self._scale.unsqueeze(1)

    @cached_property
    def dependent(self) -> list[str]:
        found, scaled, sentences = -self.relations.detach(), self._scaled_relations.detach(), []
        for j, d in enumerate(self._dependent):
            large = scaled[:, j].abs() > math.sqrt(self.rounding)  # none of a matrix of zeros
            terms = [(float(found[k, j]), k) for k in large.nonzero().flatten().tolist() if k != d]
            sentences.append(f"A_{d} = {written(terms)}")
        return sentences

    @cached_property
    def squared_distances(self) -> Tensor:
        """(K,) the squared distance of each matrix from the span of the others."""
        S = self._independent
        eye = self.matrix.new_ones(self.rank).diag()
        distances = self._scale[S].square() / self._solve(eye).detach().diagonal()
        replaced = (self._scaled_relations[S].detach().abs() > math.sqrt(self.rounding)).any(1)
        return self.norms.new_zeros(self.K).index_copy(0, S, torch.where(replaced, 0, distances))

    def solve(self, products: Tensor) -> Tensor:
        r"""The least squares coefficients, of least norm where there are several: :math:`G^+ R`.

        Args:
            products: R, (K, \*), the inner products of the A_k with what they are to approximate.
        """
        found = self.basic(products)
        null = torch.linalg.qr(self.relations).Q
        flat = found.reshape(self.K, -1)
        return (flat - null @ (null.t() @ flat)).view_as(found)

    def basic(self, products: Tensor) -> Tensor:
        """The least squares coefficients with zeros for the dependent matrices."""
        if products.shape[:1] != self.matrix.shape[:1]:
            reject("products", f"{self.K} rows, one for each matrix", tuple(products.shape), "stack them on axis 0")
        S, scale = self._independent, self._scale[self._independent].unsqueeze(1)
        R = products.double().reshape(self.K, math.prod(products.shape[1:]))
        return torch.zeros_like(R).index_copy(0, S, self._solve(R[S] / scale) / scale).reshape(products.shape)

    def __repr__(self) -> str:
        said = "".join(f", {sentence}" for sentence in self.dependent)
        return f"Gram(K={self.K}, rank={self.rank}, condition={self.condition:.3g}{said})"


def written(terms: Iterable[tuple[float, int]]) -> str:
    """A sum of matrices as text, such as 2 A_0 - A_1."""
    text = ""
    for c, k in terms:
        size = f"{abs(c):.4g}"
        sign = (" - " if c < 0 else " + ") if text else "-" if c < 0 else ""
        text += f"{sign}{'' if size == '1' else size + ' '}A_{k}"
    return text or "0"


def gram(basis: Basis | BoundBasis, *args: Any, **kwargs: Any) -> Gram:
    r"""The inner products :math:`\langle A_k, A_l \rangle` of the matrices of a basis, and what they tell.

    They are summed over the entries; no dense matrix is built. Gradients pass to the weights.

    Args:
        basis: a bound basis, or a basis.
        *args: of `basis.bind`, for a basis; in double precision unless a dtype is given.
        **kwargs: the same.

    Raises:
        ValueError: for a basis that cannot be bound with these arguments.

    >>> from pyg_basisconv import bases
    >>> gram(bases.Window((4, 4), 3, padding=1))
    Gram(K=9, rank=9, condition=1)
    >>> gram(bases.Shifts(4, [0, 1, 2])).matrix.diagonal()
    tensor([4., 3., 2.], dtype=torch.float64)
    """
    return Places.of(bound_basis(basis, *args, **kwargs)).gram
