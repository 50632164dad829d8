"""A family on a small graph that is new: its matrices are made within each product, and none of them is kept."""

from typing import Any

import torch
from torch import Tensor

from .backend import KERNELS
from .basis import Basis
from .edge_set import EdgeSet
from .graph import Graph
from .kernels.lists import lists_of, narrow
from .kernels.op import PLAIN
from .kernels.products import FEW, in_short_lists


class TransientEdges:
    """A family on a square graph that a layer has not met before, for one call and its gradients.

    Such a graph may never come again, and to bind it takes longer than to multiply. So it is not bound: a compiled
    kernel makes the matrices, groups their entries and multiplies, forward and backward. The sums are those of the
    bound family, bit by bit, and what is rarely needed is left to that. See `kernels.contract.Rows`.

    letters: see `Basis.letters`; graph: with edges in arrays, which nobody else writes to; K: how many matrices, one
    for each letter, or 1, their sum; turned: whether they are transposed.

    >>> from pyg_basisconv import bases
    >>> basis = bases.Identity() + bases.Adjacency("mean")
    >>> x, edge_index = torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([[0, 1], [2, 2]])
    >>> A = TransientEdges.of(basis, x, edge_index)
    >>> A is None or A.expand_rows(x).tolist() == [[1.0, 0.0], [3.0, 0.0], [5.0, 2.0]]  # None without the kernels
    True
    """

    def __init__(self, basis: Basis, letters: str, graph: Graph, K: int, turned: bool = False) -> None:
        self.basis, self.letters, self.graph, self.K, self.turned = basis, letters, graph, K, turned

    @classmethod
    def of(cls, basis: Basis, x: Tensor, edges: Any) -> "TransientEdges | None":
        """The family for features x, (*, N, P), on plain edges; None where they have to be bound."""
        letters, N = None if basis.has_custom else basis.letters, x.shape[-2]
        if KERNELS is None or letters is None or type(edges) is not Tensor or edges.dim() != 2 or edges.shape[0] != 2:
            return None
        loops = sum(letter.isupper() for letter in letters)  # of each node
        entries = loops * N + (len(letters) - letters.count("I")) * edges.shape[1]
        # More than few entries the bound family may leave to another kernel, with other bits.
        if entries > FEW or not (edges.is_cpu and x.is_cpu and lists_of(x.dtype, len(letters) * (N + edges.shape[1]))):
            return None
        arrays = narrow(edges, (N, N))
        if arrays is None:
            return None
        return cls(basis, letters, Graph(EdgeSet.of_arrays(arrays, None, N, N), None, x.dtype), len(letters))

    @property
    def adjoint(self) -> "TransientEdges":
        """The family of the transposed matrices."""
        return TransientEdges(self.basis, self.letters, self.graph, self.K, not self.turned)

    @property
    def total(self) -> "TransientEdges":
        """The sum of the matrices as a family of one."""
        return TransientEdges(self.basis, self.letters, self.graph, 1, self.turned)

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
        family: Any = self.basis.on(self.graph)  # kept with the graph
        if self.K < family.K:
            family = family.total
        return family.adjoint if self.turned else family

    def _product(self, rows: Tensor, width: int, columns: int, at_target: bool) -> Tensor | None:
        """The product, with so many columns for each member, and in all; None where another kernel is to do it."""
        graph, dtype = self.graph, rows.dtype
        watched = torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state()
        if watched or type(rows) not in PLAIN or dtype is not graph.dtype or len(rows) != graph.N:
            return None
        if not in_short_lists(width, dtype):
            return None
        rows = rows.resolve_neg().contiguous()
        y = rows.new_empty(graph.N, columns)
        about = *graph.structure.arrays, self.letters, self.K, graph.N, self.turned, at_target  # type: ignore[misc]
        KERNELS.summed(*about, rows.data_ptr(), y.data_ptr(), width, rows.itemsize)
        return y
