"""The layer of the design space of graph networks: a sum or attention, of one end or both, with features of edges."""

from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GeneralConv

from ..cache import once
from ..conv import BasisConv
from ..errors import reject
from ..mechanisms import MLP, Additive, Dot, Edge
from ..theta import Heads
from .attention import AttentionLayer, attention_conv
from .build import META, adjacency, basis_conv, check_frozen_alike, check_initialized, fill, heads_of, parameter
from .composite import GraphLayer, copied, normalized
from .edges import CallEdges, count_edges, counts, features_of, read_edges, sums_of, targets_of
from .layers import both, pair
from .registry import Unchanged, combinations, rule

_DOT = {"heads": 2, "attention": True, "attention_type": "dot_product"}


@rule(
    GeneralConv,
    "GeneralConv",
    [
        {"heads": 2, "aggr": "mean"},
        *combinations({"heads": 3, "in_edge_channels": 3}, directed_msg=(True, False), attention=(True, False)),
        *combinations({"heads": 2, "attention": True, "aggr": "mean"}, directed_msg=(True, False)),
        {"heads": 2, "attention": True, "in_edge_channels": 3, "bias": False},
        *(_DOT | more for more in ({}, {"in_edge_channels": 3}, {"in_edge_channels": 3, "bias": False})),
    ],
    node_dim=0,
)
def general(layer: Any) -> nn.Module:
    """The mean over heads of a sum, or of an attention."""
    check_initialized(layer)
    return attended(layer) if layer.attention else ConvertedGeneral(layer)


class ConvertedGeneral(GraphLayer):
    r"""The mean over heads of :math:`A^\top x \Theta + Z + A^\top 1 (x \Theta' + b)`, for the sums Z of
    :math:`z_{mn} V` over edges, and the target's own features.
    """

    kept = ("lin_msg_i", "lin_self")

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        A, R = adjacency(layer), layer.in_edge_channels
        self.conv = basis_conv(layer, [layer.lin_msg], A)
        self.bias, self.edge, self.edge_bias = parameter(layer.lin_msg.bias), None, None
        if R is not None:
            self.edge = basis_conv(layer, [layer.lin_edge], A)  # the edges are its sources
            self.edge.flow = "source_to_target"
            self.edge_bias = parameter(layer.lin_edge.bias)

    def compute(self, x: Any, edge_index: Any, edge_attr: Tensor | None = None, size: Any = None) -> Tensor:
        source, target = both(x, "GeneralConv")
        size = size or (source.shape[-2], target.shape[-2])
        edges, values, *_ = read_edges(edge_index, self.flow, size=size)
        z = features_of(edge_attr, values)
        y = self.conv((source, None), edges, size=size)
        for_each = [self.bias, self.lin_msg_i and self.lin_msg_i(target)]  # edge into n
        if z is not None and self.edge is not None:
            y = y + self.edge((z, None), _into_targets(edges, self.flow), size=(z.shape[0], size[1]))
            for_each.append(self.edge_bias)
        own = [t for t in for_each if t is not None]
        if own:
            y = torch.addcmul(y, counts(self.conv, source, edges, size).to(y.dtype), reduce(add, own))
        y = y if self.heads == 1 else y.unflatten(-1, (self.heads, -1)).mean(-2)
        y = y + self.lin_self(target)
        return normalized(y, None) if self.normalize_l2 else y


@once
def _into_targets(edges: Tensor, flow: str) -> Tensor:
    """From edges, by their numbers, to their targets."""
    into = targets_of(edges, flow)
    return torch.stack([torch.arange(into.shape[0], device=edges.device), into])


class GeneralAttention(AttentionLayer):
    """Attention to messages, which may have a term of the target and one of the edge."""

    def __init__(self, layer: Any, conv: BasisConv, values: Heads | None) -> None:
        super().__init__(layer, conv, values=values, root=copied(layer.lin_self))
        self.edge_dim = 0
        if values is not None:
            self.edge_dim, self.in_edge_channels = values.P, layer.lin_edge.in_channels
        self.may_skip_checks = self.may_skip_checks and values is None

    def _features(self, call: dict[str, Any], edges: CallEdges, count: int) -> Tensor | None:
        if not self.edge_dim:
            return super()._features(call, edges, count)
        z = features_of(call.get("edge_attr"), edges.values)
        if z is None:
            return pair(call["x"])[0].new_zeros(edges.edge_index.shape[1], self.edge_dim)  # adds nothing, nor the bias
        if z.shape[1] != self.in_edge_channels:
            fix = "make the layer with in_edge_channels for their width"
            reject("edge_attr", f"{self.in_edge_channels} features", z.shape[1], fix)
        return F.pad(z, (0, self.edge_dim - z.shape[1]), value=1.0)  # which the bias multiplies

    def attend(
        self, x: Any, edges: CallEdges, z: Any, size: Any, wanted: bool, call: dict[str, Any]
    ) -> tuple[Tensor, Any]:
        explained = bool(self.conv.explain) and not self.directed_msg
        y, A = super().attend(x, edges, z, size, wanted or explained, call)
        if self.directed_msg:
            return y, A
        source, target = both(x, "GeneralConv")
        score: Any = self.conv.basis.mechanism.parts[0]  # type: ignore[union-attr, index]
        if explained:  # the mask leaves less of the weights of each head
            own = target @ score.target + (score.bias.unsqueeze(1) if score.has_bias else 0)
            return y + (sums_of(A, source) * own).mean(0), A
        count = count_edges(edges.edge_index, target.shape[-2], y.dtype, self.conv.flow)
        whole = count.clamp(max=1) if not self.average else (1 / count).masked_fill(count == 0, 0)
        own = target @ score.target.mean(0)
        return y + whole * (own + score.bias.mean(0) if score.has_bias else own), A

    def finish(self, y: Tensor, target: Tensor | None, call: dict[str, Any]) -> Tensor:
        y = super().finish(y, target, call)
        return normalized(y, None) if self.normalize_l2 else y


def attended(layer: Any) -> nn.Module:
    """Scores are an inner product of the message with a vector, or with the message of the other end."""
    H, D, message, directed = layer.heads, layer.out_channels, layer.lin_msg, layer.directed_msg
    by_dot, biased = layer.attention_type == "dot_product", message.bias is not None
    P = message.in_channels
    own = getattr(layer.lin_self, "in_channels", D)  # of the targets; PyG's lin_msg_i takes the sources' width for both
    values: Any = None
    R = 0
    if layer.in_edge_channels is not None:
        check_frozen_alike(layer.lin_edge.weight, layer.lin_edge.bias)
        weight = heads_of(layer.lin_edge, H)  # (H, R, D)
        if biased:
            weight = torch.cat([weight, layer.lin_edge.bias.view(H, 1, D)], 1)
        R = weight.shape[1]
        with META:
            values = Heads("mean").build(H, R, D)
        values.weight = parameter(weight)
    if by_dot and not directed:
        raise Unchanged("its scores are products of sums of both ends")
    ends, edge = Additive(projected=True, target=None), Edge(R, inner=D) if R else None
    score: Any = ends if edge is None else ends + edge
    if by_dot:
        scaler = D**0.5 if layer.scaler.is_meta else float(layer.scaler)  # it has no number there
        score = Dot(D, 1 / scaler, biased, edge_dim=R, mix="both" if R else "key")
    elif not directed:
        score = MLP(None, nn.Identity(), True, "own", bias=biased, edge_dim=R)
    activated, widths = score.then(nn.LeakyReLU(0.2)), (P, own) if directed and own != P else P
    conv: Any = attention_conv(layer, H, activated, Heads("mean", biased), widths, D)
    fill(conv.theta, weight=heads_of(message, H), value_bias=message.bias)
    if by_dot:  # some parameters of the scores are those of the values
        score.key = score.query = conv.theta.weight
        if biased:
            score.key_bias = score.query_bias = conv.theta.value_bias
        if R:
            score.key_edge = score.query_edge = values.weight
    elif directed:
        fill(ends, source=layer.att_msg)
        if edge is not None:
            edge.weight, edge.out = values.weight, ends.source
    else:
        fill(score, out=layer.att_msg, target=heads_of(layer.lin_msg_i, H), bias=layer.lin_msg_i.bias)
        if R:
            score.edge = values.weight
    return GeneralAttention(layer, conv, values)
