"""Hypergraph convolution: a product of two incidence matrices of nodes and hyperedges."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import HypergraphConv

from ..bases.adjacency import power_or_zero, sum_by_target
from ..bases.product import BoundProduct
from ..basis import Basis, BoundBasis
from ..binding import Binding
from ..cache import Witness, once
from ..conv import BasisConv
from ..errors import reject
from ..graph import Graph, sizes
from ..mechanisms import Additive
from ..plan import Plan
from ..program import Call
from ..reading import read_graph
from ..theta import Heads
from ..typed_edges import TypedEdges
from .attention import attention_conv
from .build import basis_conv, check_initialized, check_sum, fill, heads_of
from .composite import GraphLayer
from .layers import PrintsAsBase
from .operator_module import OperatorModule, promoted
from .registry import combinations, rule


@rule(
    HypergraphConv,
    "hypergraph",
    [
        *combinations({"use_attention": True, "heads": 3}, attention_mode=("node", "edge")),
        {"use_attention": True, "heads": 2, "concat": False, "negative_slope": 0.4},
        {"use_attention": True, "bias": False},
    ],
    fixed=("flow",),
    node_dim=0,
)
def hypergraph(layer: Any) -> nn.Module:
    """Means over hyperedges, averaged at each node; with attention, weighted."""
    check_sum(layer)
    if layer.use_attention:
        return ConvertedHypergraphAttention(layer)
    return basis_conv(layer, [layer.lin], Hyperedges(), layer.bias, kind=ConvertedHypergraph)


class Hyperedges(Basis):
    r"""From nodes to hyperedges and back, :math:`A = H B^{-1} H^\top D^{-1}`, for the incidence matrix H.

    The graph's edges are the incidences, from M nodes to N hyperedges, and their weights are those of the hyperedges:
    :math:`B_e = \sum_m H_{me}`, :math:`D_m = \sum_e H_{me} w_e`. Neither product is built. K = 1; A is M x M.

    PyG's `HypergraphConv` has the weights in D alone, and so has this.

    >>> incidence = torch.tensor([[0, 1, 1, 2], [0, 0, 1, 1]])
    >>> Hyperedges().bind(incidence, size=(3, 2)).to_coo().to_dense()
    tensor([[[0.5000, 0.2500, 0.0000],
             [0.5000, 0.5000, 0.5000],
             [0.0000, 0.2500, 0.5000]]])
    """

    def __init__(self) -> None:
        super().__init__(1)

    def build(self, graph: Graph) -> BoundBasis:
        s, back = graph.structure, graph.structure.T
        B, D = inverses(graph)
        there = TypedEdges(s, graph.apply_mask(s.at_target(B)), graph.dtype)
        return BoundProduct(there, TypedEdges(back, graph.apply_mask(back.at_target(D)), graph.dtype))


def inverses(graph: Graph) -> tuple[Tensor, Tensor]:
    """(N,) one over the number of nodes in each hyperedge, and (M,) one over the weight of the hyperedges of each node;
    zero where there are none.
    """
    back = graph.structure.T
    count = graph.structure.expand.by_target.ptr.diff().to(graph.acc_dtype)
    degree = sum_by_target(back.expand, None if graph.weight is None else graph.weights, graph.acc_dtype)
    return power_or_zero(count, -1.0), power_or_zero(degree, -1.0)


class ConvertedHypergraph(PrintsAsBase, BasisConv):
    """A `BasisConv` over `Hyperedges`, with the call of HypergraphConv."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:  # type: ignore[override]
        return self._run(self._arguments(*args, **kwargs), False)

    def plan(self, *args: Any, **kwargs: Any) -> Plan:  # type: ignore[override]
        """The plan of a call; takes what the PyG layer takes."""
        return super().plan(*self._arguments(*args, **kwargs))

    def fake_result(self, given: dict[str, Any], unknown: Callable[[], int]) -> Tensor:
        return super().fake_result({"x": given["x"]}, unknown)  # the targets are the nodes again

    @staticmethod
    def _arguments(
        x: Tensor,
        hyperedge_index: Tensor,
        hyperedge_weight: Tensor | None = None,
        hyperedge_attr: Tensor | None = None,
        num_edges: int | None = None,
    ) -> Call:
        return Call(x, hyperedge_index, hyperedge_weight, size=None if num_edges is None else (None, num_edges))

    def _edge_weight(self, call: Call) -> Tensor | None:
        return incidence_weights(call.edge_index, call.edge_weight, call.x.dtype)

    def _bind(self, call: Call, observed: bool = False, seen: Witness | None = None) -> Binding:
        """Counts hyperedges if their number is not given, and gives each incidence the weight of its hyperedge."""
        incidence, N = call.edge_index, sizes(call.size)[1]
        weight = self._edge_weight(call)
        size = (call.x.shape[-2], count_hyperedges(incidence) if N is None else N)
        return super()._bind(call._replace(edge_weight=weight, size=size), observed)  # `seen` witnesses other tensors


class ConvertedHypergraphAttention(OperatorModule, GraphLayer):
    r"""With attention between nodes and their hyperedges, :math:`D^{-1} \alpha B^{-1} \alpha^\top x V`.

    The same :math:`\alpha`, after dropout, leads from nodes to hyperedges and back.
    """

    kept = ("bias",)

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        check_initialized(layer)
        H, P, additive = layer.heads, layer.lin.in_channels, Additive(projected=True)
        score = additive.then(nn.LeakyReLU(layer.negative_slope))
        normalize = "source" if layer.attention_mode == "node" else "target"
        about: Any = {"normalize": normalize, "dropout": layer.dropout}
        self.conv = attention_conv(layer, H, score, Heads(), P, H * layer.out_channels, **about)
        fill(self.conv.theta, weight=heads_of(layer.lin, H))
        source, target = layer.att.chunk(2, -1)
        fill(additive, source=source, target=target)
        self.width = layer.out_channels * (H if layer.concat else 1)

    def forward(
        self,
        x: Tensor,
        hyperedge_index: Tensor,
        hyperedge_weight: Tensor | None = None,
        hyperedge_attr: Tensor | None = None,
        num_edges: int | None = None,
    ) -> Tensor:
        if hyperedge_attr is None:
            reject("hyperedge_attr", "features of the hyperedges, which are attended to", None, "pass (N, P)")
        edges = {"hyperedge_index": hyperedge_index, "hyperedge_weight": hyperedge_weight}
        return self.run({"x": x, **edges, "hyperedge_attr": hyperedge_attr})

    def compute(
        self, x: Tensor, hyperedge_index: Tensor, hyperedge_attr: Tensor, hyperedge_weight: Tensor | None = None
    ) -> Tensor:
        size = (x.shape[-2], hyperedge_attr.shape[-2])
        u, A = self.conv((x, hyperedge_attr), hyperedge_index, size=size, return_attention=True)
        weight = incidence_weights(hyperedge_index, hyperedge_weight, x.dtype)
        B, D = inverses(read_graph(hyperedge_index, weight, size=size, dtype=x.dtype, device=x.device))
        u = u * B.to(u.dtype).unsqueeze(-1)
        y = A.T.each(u.unflatten(-1, (self.heads, -1)).movedim(-2, 0)) * D.to(u.dtype).unsqueeze(-1)  # (H, M, C)
        y = y.movedim(0, -2).flatten(-2) if self.concat else y.mean(0)
        return y if self.bias is None else y + self.bias

    def dtypes(self, found: Sequence[Tensor], given: dict[str, Any], narrow: torch.dtype) -> list[torch.dtype]:
        return [promoted(narrow, self.bias)]


@once
def count_hyperedges(hyperedge_index: Tensor) -> int:
    """The number of hyperedges up to the last one with a node."""
    found = int(hyperedge_index[1].max()) + 1 if hyperedge_index.numel() else 0
    if torch.compiler.is_compiling():
        torch._check(found >= 0)  # tells the compiler that it is a size
    return found


@once
def incidence_weights(hyperedge_index: Tensor, weight: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """(E,) the weight of each incidence, which is that of its hyperedge."""
    return None if weight is None else weight.to(dtype)[hyperedge_index[1]]
