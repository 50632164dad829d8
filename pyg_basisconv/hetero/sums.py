"""The basis of edges of several types, from sources of their own."""

from ..bases.edges import typed
from ..bases.relations import NORMS, Norm, normalised
from ..basis import Basis, BoundBasis
from ..bound import TypedEdges
from ..errors import reject
from ..graph import Graph
from ..kernels.pattern import tally


class TypedSum(Basis):
    r"""The sum of the matrices of `Relations`, as one matrix: :math:`A = \sum_r A_r`. K = 1.

    Where each type of edges has sources of its own, :math:`A^\top z` is :math:`\sum_r A_r^\top z_r`, which meets no row
    of z in vain.

    Args:
        num_relations: R; `edge_type` of a call has numbers from 0 to R - 1.
        norm: as in `Relations`, within each type.

    >>> import torch
    >>> edge_index, edge_type = torch.tensor([[0, 1, 2], [0, 0, 0]]), torch.tensor([0, 0, 1])
    >>> TypedSum(2, 'mean').bind(edge_index, edge_type=edge_type, size=(3, 1)).to_coo().to_dense()
    tensor([[[0.5000],
             [0.5000],
             [1.0000]]])
    """

    def __init__(self, num_relations: int, norm: Norm = None) -> None:
        super().__init__(1)
        if norm not in NORMS:
            reject("norm", "None, 'mean', 'row' or 'sym'", repr(norm), "see the table in help(bases.Relations)")
        self.num_relations, self.norm = num_relations, norm

    def build(self, graph: Graph) -> BoundBasis:
        edges, weight = typed(graph, self.num_relations), None if graph.weight is None else graph.weights
        if self.norm == "mean":  # counted without sorting the edges
            place = edges.type.long() * edges.N + edges.target
            mean = tally(place, self.num_relations * edges.N)[place].to(graph.wide).reciprocal()
            weight = mean if weight is None else weight * mean
        else:
            weight = normalised(edges, weight, self.norm, graph.wide)
        return TypedEdges(edges.merged, graph.thin(weight), graph.dtype)

    def extra_repr(self) -> str:
        return f"{self.num_relations}, norm={self.norm!r}"
