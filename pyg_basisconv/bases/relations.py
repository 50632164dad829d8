"""One matrix for each relation of a knowledge graph."""

from typing import Any, Literal

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from ..basis import Basis, BoundBasis
from ..edge_set import EdgeSet
from ..errors import check_choice, check_count, check_flags, reject
from ..graph import Graph
from ..kernels import lists
from ..kernels.lists import lists_of, over_degrees
from ..printing import arguments
from ..typed_edges import ListedEdges, TypedEdges
from .adjacency import normalise
from .concat import BoundConcat
from .edges import count_types, typed_edge_set
from .identity import Identity

NORMS = (None, "mean", "row", "sym")
Norm = Literal["mean", "row", "sym"] | None
_OVER = {"mean": "mean", "row": "rw", "sym": "ends"}  # what `normalise` and `over_degrees` call them
_FEW = 1 << 16
_IDENTITY = Identity()  # a value, whose key is found once


class Relations(Basis):
    r"""One matrix for each relation r of a knowledge graph, from the edges of type r (R-GCN, Schlichtkrull et al.,
    arXiv:1703.06103). With W the weights of the edges of one relation, in one direction:

    | norm | :math:`A_{r,mn}` |
    | --- | --- |
    | None | :math:`W_{mn}` |
    | `'mean'` | :math:`W_{mn}` over the number of edges of the relation into n: the mean of the messages |
    | `'row'` | :math:`W_{mn} / o_m`, :math:`o_m = \sum_n W_{mn}`: the probability of a step from m to n |
    | `'sym'` | :math:`W_{mn} / \sqrt{o_m d_n}`, :math:`d_n = \sum_m W_{mn}` |

    Division by zero gives zero. One sparse product applies all matrices, and only the rows that a relation touches are
    multiplied by its parameter. `theta.Separable(H)` is the basis decomposition of the paper, `theta.Grouped(g)` its
    block decomposition.

    Args:
        num_relations: R; the `edge_type` of a call is from 0 to R - 1.
        norm: one of the table.
        inverse: whether to add R matrices of the reversed edges, at R + r.
        self_loop: whether to add the identity as the last matrix: the node's own features, `x_dst` in a bipartite call.

    Raises:
        ValueError: without `edge_type` where R > 1, and for types from R on; with `inverse`, for other numbers of
            sources than of targets; under `'sym'`, for negative degrees.

    >>> import torch
    >>> family = Relations(2, 'mean', inverse=True, self_loop=True)
    >>> edge_index, edge_type = torch.tensor([[0, 1, 0], [2, 2, 1]]), torch.tensor([0, 0, 1])
    >>> family.K, family.bind(edge_index, edge_type=edge_type).to_coo().to_dense()[0]
    (5, tensor([[0.0000, 0.0000, 0.5000],
            [0.0000, 0.0000, 0.5000],
            [0.0000, 0.0000, 0.0000]]))
    """

    def __init__(self, num_relations: int, norm: Norm = None, inverse: bool = False, self_loop: bool = False) -> None:
        check_count("num_relations", num_relations)
        check_choice("norm", norm, *NORMS, fix="see the table in help(bases.Relations)")
        check_flags(inverse=inverse, self_loop=self_loop)
        super().__init__(num_relations * (1 + inverse) + self_loop)
        self.num_relations, self.norm, self.inverse, self.self_loop = num_relations, norm, inverse, self_loop
        self.reads_target = self_loop

    @classmethod
    def from_hetero(cls, data: Any, norm: Norm = None, inverse: bool = False, self_loop: bool = False) -> "Relations":
        """One relation for each edge type of a `HeteroData`, in the order of `data.to_homogeneous()`.

        Args:
            data: the `HeteroData`.
            norm: as in the class.
            inverse: as in the class.
            self_loop: as in the class.

        >>> from torch_geometric.data import HeteroData
        >>> data = HeteroData()
        >>> data['author', 'writes', 'paper'].edge_index = torch.tensor([[0], [0]])
        >>> Relations.from_hetero(data, 'mean')
        Relations(1, norm='mean')
        """
        if not isinstance(data, HeteroData) or not data.edge_types:
            reject("data", "a HeteroData with edges", type(data).__name__, "or give the number of relations")
        return cls(len(data.edge_types), norm, inverse, self_loop)

    def build(self, graph: Graph) -> BoundBasis:
        R, s = self.num_relations, graph.structure
        if s.type is None and R > 1:
            reject("edge_type", f"a relation from 0 to {R - 1} for each edge", None, "pass edge_type")
        if self.inverse and graph.sources != graph.N:
            fix = "use inverse=False on a bipartite graph"
            reject("graph", "as many sources as targets, for inverse relations", (graph.sources, graph.N), fix)
        family = self._bind_lists(graph)
        if family is None:
            family = self._bind_typed(graph)
        return BoundConcat([family, _IDENTITY.on(graph)]) if self.self_loop else family

    def _bind_lists(self, graph: Graph) -> TypedEdges | None:
        """The family in numpy, for edges of weight 1 on the CPU, if R x nodes is not much more than the edges."""
        R, s, edges = self.num_relations, graph.structure, graph.as_list
        members = R * max(s.M, s.N)
        if edges is None or s.type is None or not lists_of(graph.dtype, 2 * members) or members > _FEW + 4 * graph.E:
            return None
        count_types(s, R)
        K = R * (1 + self.inverse)
        edges = lists.typed(edges, s.type.numpy(), R, self.inverse)
        if self.norm is not None:
            edges = edges._replace(weight=over_degrees(edges, K, (s.M, s.N), _OVER[self.norm], graph.dtype))
        return ListedEdges(K, s.M, s.N, [edges], graph.dtype)

    def _bind_typed(self, graph: Graph) -> TypedEdges:
        R, s = self.num_relations, graph.structure
        edges, weight, mask = typed_edge_set(graph, R), None if graph.weight is None else graph.weights, graph.mask
        if self.inverse:
            edges = s.memo(("both ways", R), lambda: _both_ways(edges))
            weight = None if weight is None else torch.cat([weight, weight])
            mask = None if mask is None else torch.cat([mask, mask])
        weight = normalised(edges, weight, self.norm, graph.acc_dtype)
        if mask is not None:
            weight = mask if weight is None else weight * mask
        return TypedEdges(edges, weight, graph.dtype)

    def extra_repr(self) -> str:
        return arguments(self, self.num_relations, norm=None, inverse=False, self_loop=False)


def _both_ways(edges: EdgeSet) -> EdgeSet:
    """The edges, followed by the reversed edges, whose types follow theirs."""
    ends = torch.cat([edges.source, edges.target]), torch.cat([edges.target, edges.source])
    return EdgeSet(2 * edges.K, edges.M, edges.N, torch.cat([edges.kinds, edges.kinds + edges.K]), *ends)


def normalised(edges: EdgeSet, weight: Tensor | None, norm: Norm, dtype: torch.dtype) -> Tensor | None:
    """(E,) the weights of typed edges, normalised within each type; None for ones."""
    return weight if norm is None else normalise(edges.by_pair if edges.K > 1 else edges, weight, _OVER[norm], dtype)
