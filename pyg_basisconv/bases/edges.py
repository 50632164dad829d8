"""The user's own edges and weights."""

from ..basis import Basis, BoundBasis
from ..edge_set import EdgeSet
from ..errors import reject
from ..graph import Graph
from ..kernels.pattern import extremes
from ..portable import with_plain
from ..typed_edges import SharedEdges, TypedEdges


class Edges(Basis):
    r"""K matrices with the edges and weights of the call: :math:`A_{kmn} = \sum_{e: m \to n} w_{ke}`.

    With `edge_type` each edge belongs to one matrix, and `edge_weight` is (E,), or absent for ones. With `edge_weight`
    of shape (E, K) and no types, each edge has a weight in every matrix. Repeated edges add up.

    Args:
        K: how many matrices.

    >>> import torch
    >>> edge_index = torch.tensor([[0, 1, 2], [1, 2, 0]])
    >>> Edges(2).bind(edge_index, edge_type=torch.tensor([0, 1, 1])).to_coo().to_dense().sum((1, 2))
    tensor([1., 2.])
    >>> Edges(2).bind(edge_index, torch.tensor([[1., 5.], [2., 6.], [3., 7.]])).to_coo().to_dense().sum((1, 2))
    tensor([ 6., 18.])
    """

    binds_unseen = True

    def __init__(self, K: int = 1) -> None:
        super().__init__(K)

    def build(self, graph: Graph) -> BoundBasis:
        s, weight = graph.structure, graph.apply_mask(graph.weight)
        if weight is not None and weight.dim() == 2:
            if s.type is not None:
                reject("edge_weight", "shape (E,) beside edge_type", tuple(weight.shape), "give types or (E, K)")
            if weight.shape[1] != self.K:
                reject("edge_weight", f"(E, {self.K}) for {self}", tuple(weight.shape), "give one column per matrix")
            return SharedEdges(s, weight, graph.dtype)
        if s.type is None and self.K > 1:
            fix = f"pass edge_type, or edge_weight of shape (E, {self.K})"
            reject("edge_type", f"a type from 0 to {self.K - 1} for each edge", None, fix)
        return TypedEdges(typed_edge_set(graph, self.K), weight, graph.dtype)

    def edge_ids(self, graph: Graph) -> slice | None:
        return slice(None) if type(self) is Edges and self.K == 1 else None

    def extra_repr(self) -> str:
        return f"K={self.K}"


def typed_edge_set(graph: Graph, K: int) -> EdgeSet:
    """The edges of a graph with K types, checked; all of type 0 if the graph has no types."""
    count_types(graph.structure, K)
    return graph.structure.with_types(K)


@with_plain(lambda structure, most: 0)
def count_types(structure: EdgeSet, most: int | None) -> int:
    """One more than the largest edge type, or 0 if there are none or their values are not available; rejects negative
    types, and types from `most` on.
    """
    kind = structure.type
    if kind is None or not kind.numel():
        return 0
    low, high = structure.memo("types", lambda: extremes(kind))
    check_types(low, high, most)
    return int(high) + 1


def check_types(low: int, high: int, most: int | None) -> None:
    """Rejects edge types whose least and greatest are these, unless they are from 0 to `most` - 1."""
    if low < 0 or (most is not None and high >= most):
        fix = "number the types from 0 on" if low < 0 else f"there are {high + 1} types, if they are numbered from 0 on"
        reject("edge_type", "types from 0 " + ("on" if most is None else f"to {most - 1}"), f"{low} to {high}", fix)
