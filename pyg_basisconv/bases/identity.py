"""The identity matrix."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..basis import Basis, BoundBasis, Direction, EdgeList, End, Work
from ..cache import kept
from ..edge_set import EdgeSet
from ..errors import reject
from ..graph import Graph
from ..kernels import Matchings
from ..kernels.grids import Ints
from ..kernels.lists import List, lists_of
from ..kernels.pattern import index_dtype
from ..portable import with_plain
from ..typed_edges import ListedEdges, TypedEdges, explicit, members


class BoundIdentity(BoundBasis):
    """The M x M identity matrix."""

    def __init__(self, M: int, dtype: torch.dtype, device: torch.device) -> None:
        self.K, self.M, self.N = 1, M, M
        self.dtype, self.device = dtype, device

    def edges(self) -> EdgeList:
        nodes = torch.arange(self.M, device=self.device)
        return EdgeList(torch.zeros_like(nodes), nodes, nodes, torch.ones(self.M, dtype=self.dtype, device=self.device))

    def iterate(self, x: Tensor) -> Iterator[Tensor]:
        if x.size(-2) != self.M:
            reject("x", f"{self.M} rows, one for each entry", x.size(-2), "pass the features of this very graph")
        return iter((x,))

    def combine(self, z: Tensor | Sequence[Tensor | None]) -> Tensor:
        return next(self.iterate(cast(Tensor, members(z, 1)[0])))

    def each(self, z: Tensor) -> Tensor:
        return z

    takes_rows = True

    def expand_rows(self, x: Tensor) -> Tensor:
        return x

    def combine_rows(self, z: Tensor) -> Tensor:
        return z

    @property
    def adjoint(self) -> "BoundIdentity":
        return self

    @property
    @with_plain(lambda self: ())
    def lists(self) -> Sequence[List]:  # type: ignore[override]
        if self.device.type != "cpu" or not lists_of(self.dtype, self.M):
            return ()
        return (_diagonal(self.M),)

    @kept
    def typed(self) -> TypedEdges:
        if self.lists:
            return ListedEdges(1, self.M, self.M, self.lists, self.dtype)
        nodes = torch.arange(self.M, dtype=index_dtype(self.M), device=self.device)
        return TypedEdges(EdgeSet(1, self.M, self.M, None, nodes, nodes), None, self.dtype)

    @kept
    def matchings(self) -> Matchings:
        nodes = torch.arange(self.M, device=self.device)
        return Matchings([(nodes, nodes)], self.M, self.M)

    def offsets_in(self, stencil: Any) -> list[Ints] | None:
        lattice = stencil.lattice
        here = lattice.sources == lattice.targets and {*lattice.stride, *lattice.upsampling} == {1}
        return [(0,) * len(lattice.sources)] if here else None

    def compact(self, side: End) -> None:
        return None  # every row is nonzero

    @property
    def T(self) -> "BoundIdentity":
        return self

    def work(self, direction: Direction) -> Work:
        return Work()

    def map(self, change: object) -> "BoundIdentity":
        return self

    def moved(self, device: torch.device) -> "BoundIdentity":
        return BoundIdentity(self.M, self.dtype, device)


def _diagonal(M: int) -> List:
    places = np.arange(M, dtype=np.int32)
    return List(0, places, places, None)


class Identity(Basis):
    r"""The identity, :math:`A = I`: a 1 x 1 convolution, and the root or skip term of many layers. K = 1.

    In a bipartite call, with `(x_src, x_dst)`, it reads the target's own features `x_dst`.

    >>> import torch
    >>> Identity().bind(size=2).to_coo().to_dense()
    tensor([[[1., 0.],
             [0., 1.]]])
    """

    needs_edges = reads_types = False
    reads_target = binds_unseen = True

    def __init__(self) -> None:
        super().__init__(1)

    def listed(self, graph: Graph) -> Sequence[List] | None:
        listed = graph.M == graph.N and graph.target_row == 0 and graph.as_list is not None
        return [_diagonal(graph.M)] if listed else None

    @property
    def letters(self) -> str:
        return "I"

    def build(self, graph: Graph) -> BoundBasis:
        if graph.M == graph.N and graph.target_row == 0:
            return BoundIdentity(graph.M, graph.dtype, graph.device)
        ones = torch.ones(graph.N, dtype=graph.dtype, device=graph.device)
        return explicit(1, graph.M, graph.N, target_diagonal(graph, ones))


def target_diagonal(graph: Graph, values: Tensor) -> EdgeList:
    """One edge for each target, from the row of x that holds its own features; no edges if there is no such row."""
    count = 0 if graph.target_row is None else graph.N
    if count and (graph.target_row or 0) + count > graph.M:
        fix = "pass x=(x_src, x_dst), or a size of a square graph"
        reject("size", f"a row of x for each of the {graph.N} targets", f"{graph.M} rows", fix)
    target = torch.arange(count, device=graph.device)
    source = target + (graph.target_row or 0)
    return EdgeList(torch.zeros_like(target), source, target, values[:count])
