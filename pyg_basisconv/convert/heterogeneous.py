"""HAN, HGT and HEAT: attention between nodes of several types."""

from collections.abc import Iterable
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import HANConv, HEATConv, HGTConv
from torch_geometric.nn.conv.han_conv import group

from ..cache import once
from ..errors import reject
from ..mechanisms import Additive, Dot, Edge
from ..reading import check_edges
from ..theta import Heads, Split
from .attention import attention_conv, weigh
from .build import META, check_initialized, fill, matrix
from .composite import GraphLayer
from .edges import read_edges, with_features
from .operator_module import OperatorModule
from .registry import Unchanged, combinations, rule
from .typed_linear import TypedLinear

Features = dict[str, Tensor]
Edges = dict[tuple[str, str, str], Any]
Pairs = tuple[tuple[int, int], ...]


def check_flow(layer: Any) -> None:
    """Rejects layers with flow='target_to_source'."""
    if layer.flow != "source_to_target":
        raise Unchanged("flow='target_to_source' between nodes of several types, which PyG confuses")


@rule(HANConv, "HAN", [{"heads": 4}, {"heads": 2, "negative_slope": 0.4}], fixed=("flow",), node_dim=0)
class ConvertedHAN(GraphLayer):
    r"""For each type of edges :math:`relu(A_k^\top h_k)` of projected features h, with the softmax of
    :math:`LeakyReLU(s_k \cdot h_{mk} + t_k \cdot h_{nk})` for A: a BasisConv. Their mixture, whose coefficients are a
    softmax over the types of edges into a node type, is not linear.
    """

    kept = ("proj", "k_lin", "q")

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        check_flow(layer)
        H, Q = layer.heads, layer.out_channels
        self.convs = nn.ModuleDict()
        for name in layer.lin_src:
            additive = Additive(projected=True)
            score = additive.then(nn.LeakyReLU(layer.negative_slope))
            self.convs[name] = attention_conv(layer, H, score, Split(), Q, Q, dropout=layer.dropout)
            fill(additive, source=layer.lin_src[name], target=layer.lin_dst[name])

    def forward(self, x_dict: Features, edge_index_dict: Edges, return_semantic_attention_weights: bool = False) -> Any:
        h = {kind: self.proj[kind](x) for kind, x in x_dict.items()}
        found: dict[str, list[Tensor]] = {kind: [] for kind in x_dict}
        for relation, edge_index in edge_index_dict.items():
            source, _, target = relation
            y = self.convs["__".join(relation)](h[source] if source == target else (h[source], h[target]), edge_index)
            found[target].append(F.relu(y))
        outcome, weights = {}, {}
        for kind, parts in found.items():
            outcome[kind], weights[kind] = group(parts, self.q, self.k_lin)
        return (outcome, weights) if return_semantic_attention_weights else outcome


@rule(HGTConv, "HGT", combinations(heads=(2, 4)), fixed=("flow",), node_dim=0)
class ConvertedHGT(GraphLayer):
    r"""Attention by scaled dot products along the edges of all types: a BasisConv whose sources are the pairs of a type
    of edges and a source node, with keys and values that are the node's, times a matrix for each head and type.
    """

    kept = ("kqv_lin", "out_lin", "k_rel", "v_rel", "skip", "p_rel")

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        check_flow(layer)
        self.kinds = {kind for *_, kind in layer.edge_types}
        self.place = {relation: i for i, relation in enumerate(layer.edge_types)}
        Q = layer.out_channels
        self.conv = attention_conv(layer, layer.heads, Dot(projected=True), Split(), Q, Q)

    def forward(self, x_dict: Features, edge_index_dict: Edges) -> dict[str, Tensor]:
        self._check_order(edge_index_dict)
        parts: Any = {kind: y.chunk(3, 1) for kind, y in self.kqv_lin(x_dict).items()}
        rows = {kind: key.shape[0] for kind, (key, _, _) in parts.items()}
        first = dict(zip(rows, list(accumulate(rows.values(), initial=0))[:-1], strict=True))
        keys, values, starts, before = [], [], [], 0
        for relation in edge_index_dict:
            key, _, value = parts[relation[0]]
            scale: Tensor = self.p_rel["__".join(relation)]
            keys.append(self._of_relation(key, self.k_rel, relation, scale.view(-1, 1, 1)))
            values.append(self._of_relation(value, self.v_rel, relation))
            starts.append((before, first[relation[2]]))
            before += rows[relation[0]]
        queries = torch.cat([query for _, query, _ in parts.values()])
        sizes = tuple((rows[relation[0]], rows[relation[2]]) for relation in edge_index_dict)
        given = torch.cat(values), torch.cat(keys), queries, tuple(edge_index_dict.values())
        y = self._attend(*given, tuple(starts), sizes)
        return self._finish(dict(zip(rows, y.split(list(rows.values())), strict=True)), x_dict)

    @torch.compiler.disable  # traced, what is bound to keys and queries would be a constant, without their gradients
    def _attend(
        self, values: Tensor, keys: Tensor, queries: Tensor, edges: tuple[Any, ...], starts: Pairs, sizes: Pairs
    ) -> Tensor:
        """(N, Q) what the nodes of all types attend to, along the edges of all types."""
        each = (read_edges(e, size=size).edge_index for e, size in zip(edges, sizes, strict=True))
        y: Tensor = self.conv(values, weigh(self.conv, keys, queries, joint_edges(starts, sizes, *each)))
        return y

    def _check_order(self, edge_index_dict: Edges) -> None:
        """Rejects types of edges in another order than the metadata's, for which PyG confuses the matrices."""
        places = [self.place[relation] for relation in edge_index_dict]
        if places != sorted(places):
            fix = "sort it: HGTConv takes the matrices of other types of edges then"
            reject("edge_index_dict", f"the order of the metadata, {list(self.place)}", list(edge_index_dict), fix)

    def _of_relation(self, x: Tensor, linear: Any, relation: tuple[str, str, str], scale: Any = 1.0) -> Tensor:
        """(N, Q) features of nodes, with each head multiplied by its matrix."""
        weight = linear.weight[self.place[relation] :: len(self.place)] * scale  # (H, D, D)
        return torch.einsum("nhd,hde->nhe", x.unflatten(1, (self.heads, -1)), weight).flatten(1)

    def _finish(self, found: Features, x_dict: Features) -> Features:
        """The output layers and skips, for types of nodes that edges may reach."""
        reached = {kind: F.gelu(y) for kind, y in found.items() if kind in self.kinds}
        outcome: Features = self.out_lin(reached)
        outcome = {kind: outcome[kind] for kind in reached}
        for kind, y in outcome.items():
            if y.shape[-1] == x_dict[kind].shape[-1]:
                alpha = self.skip[kind].sigmoid()
                outcome[kind] = alpha * y + (1 - alpha) * x_dict[kind]
        return outcome


@once
def joint_edges(starts: Pairs, sizes: Pairs, *edges: Tensor) -> Tensor:
    """The edges of all types, from the pairs of a type and a node to the nodes of all types."""
    for e, size in zip(edges, sizes, strict=True):
        check_edges(e, size=size)
    return torch.cat([e + e.new_tensor(start).view(2, 1) for e, start in zip(edges, starts, strict=True)], 1)


class OfLast(Heads):
    """Values of the last features of edges alone, by one matrix for all members."""

    def __init__(self, skipped: int, combine: Literal["concat", "mean"]) -> None:
        super().__init__(combine, shared=True)
        self.skipped = skipped

    def shape(self, K: int, P: int, Q: int) -> tuple[int, ...]:
        return super().shape(K, P - self.skipped, Q)

    def rows(self, x: Tensor) -> Tensor:
        return super().rows(x[..., self.skipped :])

    def contract(self, u: Iterable[Tensor]) -> Tensor:
        return super().contract(u_k[..., self.skipped :] for u_k in u)


@rule(
    HEATConv,
    "HEAT",
    [{"heads": 3}, {"heads": 2, "concat": False, "negative_slope": 0.4}, {"heads": 2, "aggr": "mean"}],
    node_dim=0,
)
class ConvertedHEAT(OperatorModule, GraphLayer):
    r"""Attention on :math:`h_m = x_m W_{t(m)} + b_{t(m)}`, whose values are :math:`h_m U + z_{mn} V + c` for all heads.

    The scores read a vector of each type of edges, too: these stand before z in what the attention has as features.
    """

    kept = ("edge_type_emb", "edge_attr_emb")

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        check_initialized(layer)
        typed, D, H = layer.hetero_lin, layer.out_channels, layer.heads
        self.width = Q = D * (H if layer.concat else 1)
        self.nodes = TypedLinear(typed.weight, typed.bias)
        of_target, of_source, of_edge = matrix(layer.att).split([D, D, matrix(layer.att).shape[1] - 2 * D], 1)
        R, T = of_edge.shape[1], layer.edge_type_emb.embedding_dim
        combine: Literal["concat", "mean"] = "concat" if layer.concat else "mean"
        ends, edge = Additive(), Edge(R)
        score = (ends + edge).then(nn.LeakyReLU(layer.negative_slope))
        theta = Heads(combine, layer.lin.bias is not None, shared=True)
        self.conv = attention_conv(layer, H, score, theta, D, Q, dropout=layer.dropout)
        with META:
            self.of_edges = OfLast(T, combine).build(H, R, Q)
        of_nodes, of_features = matrix(layer.lin).split([D, R - T], 1)
        fill(ends, source=of_source, target=of_target)
        fill(edge, weight=of_edge)
        fill(self.conv.theta, weight=of_nodes.t(), value_bias=layer.lin.bias)
        fill(self.of_edges, weight=of_features.t())

    def compute(self, node_type: Tensor, edge_type: Tensor, **call: Any) -> Tensor:
        call = with_features(call)
        if call.get("edge_attr") is None:
            reject("edge_attr", "the features of the edges, which HEATConv reads", None, "pass edge_attr")
        h = self.nodes(call["x"], node_type)
        z = torch.cat([self.edge_type_emb(edge_type), self.edge_attr_emb(call["edge_attr"])], 1)
        z = F.leaky_relu(z, self.negative_slope)
        y: Tensor = self.conv(h, call["edge_index"], edge_attr=z, edge_values=self.of_edges)
        if not self.root_weight:
            return y
        return (y.unflatten(-1, (self.heads, -1)) + h.unsqueeze(-2)).flatten(-2) if self.concat else y + h
