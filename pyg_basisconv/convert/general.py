"""The layer of the design space of graph networks: a sum or attention, of one end or both, with features of edges."""

from collections.abc import Callable
from copy import deepcopy
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GeneralConv

from ..cache import once
from ..conv import BasisConv
from ..mechanisms import MLP, Additive, Dot, Edge, Mechanism
from ..theta import Heads
from .attention import AttentionLayer, attention_conv
from .build import META, adjacency, basis_conv, check_frozen_alike, check_initialized, fill, heads_of, parameter
from .composite import GraphLayer, normalized
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
        edges, values, *_ = read_edges(edge_index, self.flow)
        z = features_of(values) if edge_attr is None else edge_attr
        y = self.conv((source, None), edges, size=size)
        for_each = [self.bias, self.lin_msg_i and self.lin_msg_i(target)]  # edge into n
        if z is not None and self.edge is not None:
            y = y + self.edge((_as_matrix(z), None), _into_targets(edges, self.flow), size=(z.shape[0], size[1]))
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


def _as_matrix(z: Tensor) -> Tensor:
    """(E,) or (E, R) -> (E, R)."""
    return z.unsqueeze(-1).flatten(1)


class GeneralAttention(AttentionLayer):
    """Attention to messages, which may have a term of the target and one of the edge."""

    def __init__(self, layer: Any, conv: BasisConv, values: Heads | None) -> None:
        super().__init__(layer, conv, values=values, root=deepcopy(layer.lin_self))
        self.edge_dim = 0 if values is None else values.P
        self.may_skip_checks = self.may_skip_checks and values is None

    def _features(self, call: dict[str, Any], edges: CallEdges, count: int) -> Tensor | None:
        z = features_of(edges.values) if call.get("edge_attr") is None else call["edge_attr"]
        if not self.edge_dim:
            return super()._features(call, edges, count)
        if z is None:
            return pair(call["x"])[0].new_zeros(edges.edge_index.shape[1], self.edge_dim)  # adds nothing, nor the bias
        z = _as_matrix(z)
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
    H, D, R, message = layer.heads, layer.out_channels, layer.in_edge_channels, layer.lin_msg
    biased = message.bias is not None
    values: Any = None
    theta, P = Heads("mean", biased), message.in_channels
    own = getattr(layer.lin_self, "in_channels", D)  # of the targets; PyG's lin_msg_i takes the sources' width for both
    P = P if own == P or not layer.directed_msg else (P, own)
    if R is not None:
        check_frozen_alike(layer.lin_edge.weight, layer.lin_edge.bias)
        weight = heads_of(layer.lin_edge, H)  # (H, R, D)
        if biased:
            weight = torch.cat([weight, layer.lin_edge.bias.view(H, 1, D)], 1)
        R = weight.shape[1]
        with META:
            values = Heads("mean").build(H, R, D)
        values.weight = parameter(weight)
    score, share = _scored(layer, values)
    conv = attention_conv(layer, H, score.then(nn.LeakyReLU(0.2)), theta, P, D)
    fill(conv.theta, weight=heads_of(message, H), value_bias=message.bias)
    share(conv.theta)
    return GeneralAttention(layer, conv, values)


def _scored(layer: Any, values: Heads | None) -> tuple[Mechanism, Callable[[Any], None]]:
    """The scores, and what gives them their parameters, some of which are those of the values."""
    D, H, R, biased = layer.out_channels, layer.heads, 0 if values is None else values.P, layer.lin_msg.bias is not None
    of_edges: Any = None if values is None else values.weight
    if layer.attention_type == "dot_product":
        if not layer.directed_msg:
            raise Unchanged("its scores are products of sums of both ends")
        dot = Dot(D, 1 / float(layer.scaler), biased, edge_dim=R, mix="both" if R else "key")

        def of_values(theta: Any) -> None:
            dot.key = dot.query = theta.weight
            if biased:
                dot.key_bias = dot.query_bias = theta.value_bias
            if of_edges is not None:
                dot.key_edge = dot.query_edge = of_edges

        return dot, of_values
    if layer.directed_msg:
        ends, edge = Additive(projected=True, target=None), Edge(R, inner=D) if R else None

        def vectors(theta: Any) -> None:
            fill(ends, source=layer.att_msg)
            if edge is not None and of_edges is not None:
                edge.weight, edge.out = of_edges, ends.source

        return ends if edge is None else ends + edge, vectors
    hidden = MLP(None, nn.Identity(), True, "own", bias=biased, edge_dim=R)

    def layers(theta: Any) -> None:
        fill(hidden, out=layer.att_msg, target=heads_of(layer.lin_msg_i, H), bias=layer.lin_msg_i.bias)
        if of_edges is not None:
            hidden.edge = of_edges

    return hidden, layers
