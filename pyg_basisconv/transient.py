"""A family on a small graph that is new: its matrices are made within each product, and none of them is kept."""

from typing import Any

import torch
from torch import Tensor

from .backend import KERNELS
from .basis import Basis
from .edge_set import EdgeSet
from .graph import Graph
from .kernels.lists import Array, lists_of, narrow
from .kernels.op import PLAIN
from .kernels.products import in_short_lists

FEW = 1 << 12  # edges, up to which binding a graph takes longer than grouping its entries for each product
_MANY = 1 << 20  # nodes, beyond which nothing is small


class TransientEdges:
    """A family on a square graph that a layer has not met before, for one call and its gradients.

    Such a graph may never come again, and to bind it takes longer than to multiply. So it is not bound: a compiled
    kernel makes the matrices, groups their entries and multiplies, forward and backward. The sums are those of the
    bound family, bit by bit, and what is rarely needed is left to that. See `kernels.contract.Rows`.

    Args:
        basis: the family.
        letters: its matrices, see `Basis.letters`.
        edges: sources and targets, which nobody else writes to.
        N: the number of nodes.
        dtype: of the features.
        K: how many matrices: one for each letter, or 1, their sum.
        turned: whether they are transposed.

    >>> from pyg_basisconv import bases
    >>> basis = bases.Identity() + bases.Adjacency("mean")
    >>> x, edge_index = torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([[0, 1], [2, 2]])
    >>> A = TransientEdges.of(basis, x, edge_index)
    >>> A is None or A.expand_rows(x).tolist() == [[1.0, 0.0], [3.0, 0.0], [5.0, 2.0]]  # None without the kernels
    True
    """

    def __init__(
        self,
        basis: Basis,
        letters: str,
        edges: tuple[Array, Array],
        N: int,
        dtype: torch.dtype,
        K: int,
        turned: bool = False,
    ) -> None:
        self.basis, self.letters, self.edges, self.N, self.dtype = basis, letters, edges, N, dtype
        self.K, self.turned = K, turned

    @classmethod
    def of(cls, basis: Basis, x: Tensor, edges: Any) -> "TransientEdges | None":
        """The family for features x, (*, N, P), on plain edges; None where they have to be bound."""
        letters, N = basis.letters, x.shape[-2]
        if KERNELS is None or letters is None or type(edges) is not Tensor or edges.dim() != 2:
            return None
        if edges.shape[0] != 2 or edges.shape[1] > FEW:
            return None
        if not (edges.is_cpu and x.is_cpu) or N > _MANY or not lists_of(x.dtype, N):
            return None
        ends = narrow(edges, (N, N))
        return None if ends is None else cls(basis, letters, ends, N, x.dtype, len(letters))

    @property
    def adjoint(self) -> "TransientEdges":
        """The family of the transposed matrices."""
        return TransientEdges(self.basis, self.letters, self.edges, self.N, self.dtype, self.K, not self.turned)

    @property
    def total(self) -> "TransientEdges":
        """The sum of the matrices as a family of one."""
        return TransientEdges(self.basis, self.letters, self.edges, self.N, self.dtype, 1, self.turned)

    def expand_rows(self, x: Tensor) -> Tensor:
        """(N, P) -> (N, K P)"""
        y = self._product(x, x.shape[1], self.K * x.shape[1], True)
        return self._bound.expand_rows(x) if y is None else y

    def combine_rows(self, z: Tensor) -> Tensor:
        """(N, K Q) -> (N, Q)"""
        Q = z.shape[1] // self.K
        y = self._product(z, Q, Q, self.K == 1)
        return self._bound.combine_rows(z) if y is None else y

    def expand(self, x: Tensor) -> Tensor:
        """(N, P) -> (K, N, P)"""
        return self._bound.expand(x)

    def combine(self, z: Tensor) -> Tensor:
        """(K, N, Q) -> (N, Q)"""
        return self._bound.combine(z)

    @property
    def _bound(self) -> Any:
        """The bound family."""
        graph = Graph(EdgeSet.of_arrays(self.edges, None, self.N, self.N), None, self.dtype)
        family: Any = self.basis.on(graph)
        if self.K < family.K:
            family = family.total
        return family.adjoint if self.turned else family

    def _product(self, rows: Tensor, width: int, columns: int, at_target: bool) -> Tensor | None:
        """The product, with so many columns for each member, and in all; None where another kernel is to do it."""
        watched = torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state()
        if watched or type(rows) not in PLAIN or rows.dtype is not self.dtype or len(rows) != self.N:
            return None
        if not in_short_lists(width, self.dtype):
            return None
        rows = rows.resolve_neg().contiguous()
        y = rows.new_empty(self.N, columns)
        about = *self.edges, self.letters, self.K, self.N, self.turned, at_target
        KERNELS.summed(*about, rows.data_ptr(), y.data_ptr(), width, rows.itemsize)
        return y
