"""HAN and HGT: attention between nodes of several types, with dicts of features and edges."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import HANConv, HGTConv
from torch_geometric.nn.conv.han_conv import group

from ..cache import once
from ..errors import reject
from ..mechanisms import Additive, Dot
from ..theta import Split
from .attention import attention_conv, weigh
from .build import fill
from .composite import GraphLayer
from .edges import read_edges
from .registry import Unchanged, combinations, rule

Features = dict[str, Tensor]
Edges = dict[tuple[str, str, str], Any]


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
        first, rows = {}, 0
        for kind, (key, _, _) in parts.items():
            first[kind] = rows
            rows += key.shape[0]
        keys, values, starts, before = [], [], [], 0
        for relation in edge_index_dict:
            key, _, value = parts[relation[0]]
            scale: Tensor = self.p_rel["__".join(relation)]
            keys.append(self._of_relation(key, self.k_rel, relation, scale.view(-1, 1, 1)))
            values.append(self._of_relation(value, self.v_rel, relation))
            starts.append((before, first[relation[2]]))
            before += key.shape[0]
        queries = torch.cat([query for _, query, _ in parts.values()])
        read = [read_edges(edge_index, False, 0).edge_index for edge_index in edge_index_dict.values()]
        edges = joint_edges(tuple(starts), *read)
        y = self.conv(torch.cat(values), weigh(self.conv, torch.cat(keys), queries, edges))
        return self._finish(
            dict(zip(first, y.split([key.shape[0] for key, _, _ in parts.values()]), strict=True)), x_dict
        )

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
def joint_edges(starts: tuple[tuple[int, int], ...], *edges: Tensor) -> Tensor:
    """The edges of all types, from the pairs of a type and a node to the nodes of all types."""
    return torch.cat([e + e.new_tensor(start).view(2, 1) for e, start in zip(edges, starts, strict=True)], 1)
