"""Attention along the edges of a graph: GAT, GATv2, GATE, SuperGAT, the Transformer's, and gates of channels."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GATConv, GATv2Conv, ResGatedGraphConv, SuperGATConv, TransformerConv
from torch_geometric.nn.models.attentive_fp import GATEConv
from torch_geometric.utils import is_torch_sparse_tensor

from ..bases.weighing import Normalize
from ..content import Content
from ..entries import Entries
from ..kernels import Affine
from ..mechanisms import MLP, Additive, Dot, Edge, Mechanism, Relative
from ..mechanisms.base import Score, Sizes
from ..mechanisms.rows import TermRows
from ..theta import Heads
from ..theta.base import param
from .attention import AttentionLayer, attention_conv, edge_width, multihead_conv
from .build import META, check_initialized, fill, heads_of, matrix
from .composite import GraphLayer, copied
from .edges import CallEdges
from .registry import Unchanged, combinations, rule, turned_round


@rule(
    GATConv,
    "GAT",
    [
        {"heads": 3, "concat": False, "negative_slope": 0.4},
        {"heads": 2, "concat": False, "residual": True, "bias": False},
        *combinations({"heads": 2, "edge_dim": 3}, fill_value=("mean", "add", 0.7, "max")),
        {"edge_dim": 1},
        {"heads": 2, "aggr": "mean"},
        *({"heads": 2, "edge_dim": 3} | one for one in turned_round(GATConv)),
    ],
    node_dim=0,
)
def gat(layer: Any) -> nn.Module:
    r""":math:`LeakyReLU(s_k \cdot x_m \Theta_k + t_k \cdot x_n \Theta_k)`, and a term of the edge."""
    shared = layer.lin is not None
    source, target = (layer.lin, layer.lin) if shared else (layer.lin_src, layer.lin_dst)
    additive = Additive(projected=True, target="shared" if shared else "own")
    R = edge_width(layer)
    edge = Edge(R, inner=layer.out_channels) if R else None
    score: Mechanism = additive if edge is None else additive + edge
    score = score.then(nn.LeakyReLU(layer.negative_slope))
    conv = multihead_conv(layer, score, source, None if shared else target, bias=layer.bias)
    fill(additive, source=layer.att_src, target=layer.att_dst)
    if not shared:
        fill(additive, weight=heads_of(target, layer.heads))
    if edge is not None:
        fill(edge, weight=heads_of(layer.lin_edge, layer.heads), out=layer.att_edge)
    return AttentionLayer(layer, conv, root=copied(layer.res), target_width=target.in_channels)


@rule(
    GATv2Conv,
    "GATv2",
    [
        {"heads": 3, "concat": False, "negative_slope": 0.4},
        {"heads": 2, "share_weights": True, "bias": False},
        *combinations({"heads": 2, "edge_dim": 3}, fill_value=("mean", "add", 0.7)),
        *({"heads": 2, "edge_dim": 3} | one for one in turned_round(GATv2Conv)),
    ],
    node_dim=0,
)
def gatv2(layer: Any) -> nn.Module:
    r""":math:`a_k \cdot LeakyReLU(x_m \Theta_k + x_n \Theta'_k)`, with a term of the edge inside."""
    source, target, H = layer.lin_l, None if layer.share_weights else layer.lin_r, layer.heads
    R = edge_width(layer)
    score = MLP(
        projected=True,
        activation=nn.LeakyReLU(layer.negative_slope),
        target="shared" if target is None else "own",
        bias=target is not None and target.bias is not None,
        edge_dim=R,
    )
    conv = multihead_conv(layer, score, source, target, bias=layer.bias)
    fill(score, out=layer.att)
    if target is not None:
        fill(score, target=heads_of(target, H), bias=target.bias)
    if R:
        fill(score, edge=heads_of(layer.lin_edge, H))
    return AttentionLayer(layer, conv, root=copied(layer.res))


@rule(GATEConv, node_dim=0)
class ConvertedGATE(GraphLayer):
    r"""Attention of AttentiveFP, by :math:`LeakyReLU(a \cdot LeakyReLU(x_m W + z_{mn} U) + r \cdot x_n)`."""

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        hidden, value = (matrix(linear, nn.Linear) for linear in (layer.lin1, layer.lin2))
        Q, P = value.shape
        if layer.att_r.shape[1] != P:
            raise Unchanged("its second Linear is as wide as its result and not as x, so that PyG's call fails")
        self.edge_dim = hidden.shape[1] - P
        score, target = MLP(Q, nn.LeakyReLU(), target=None, edge_dim=self.edge_dim), OfTarget()
        activated = (score + target).then(nn.LeakyReLU())
        self.conv = attention_conv(layer, 1, activated, Heads(), P, Q, dropout=layer.dropout, bias=layer.bias)
        fill(self.conv.theta, weight=value.t())
        fill(score, source=hidden[:, :P].t(), out=layer.att_l)
        if self.edge_dim:
            fill(score, edge=hidden[:, P:].t())
        fill(target, target=layer.att_r)

    def compute(self, x: Tensor, edge_index: Any, edge_attr: Tensor) -> Any:
        return self.conv(x, edge_index, edge_attr=edge_attr if self.edge_dim else None)


class OfTarget(Mechanism):
    r"""A term of the target alone, :math:`r_k \cdot y_n`."""

    def make(self, sizes: Sizes) -> None:
        self.parameter("target", sizes.heads, sizes.target)

    def score(self, content: Content, entries: Entries) -> Score:
        (rows,) = content.affine([], [Affine(param(self, "target"))])
        return TermRows(None, rows, batch=content.batch)


@rule(
    TransformerConv,
    "Transformer on a graph",
    [
        {"heads": 2, "beta": True, "concat": False, "edge_dim": 3},
        *({"heads": 2} | one for one in turned_round(TransformerConv)),
        *({"heads": 2, "edge_dim": 3} | one for one in turned_round(TransformerConv)),
    ],
    node_dim=0,
)
def transformer(layer: Any) -> nn.Module:
    r""":math:`(x_m K_k + z U_k) \cdot x_n Q_k / \sqrt D`; U makes values of the edges, too."""
    H, R, key, query = layer.heads, edge_width(layer), layer.lin_key, layer.lin_query
    score = Dot(layer.out_channels, bias=key.bias is not None, edge_dim=R)
    conv = multihead_conv(layer, score, layer.lin_value, query)
    fill(score, key=heads_of(key, H), query=heads_of(query, H))
    if key.bias is not None:
        fill(score, key_bias=key.bias, query_bias=query.bias)
    values: Any = None
    if R:
        fill(score, key_edge=heads_of(layer.lin_edge, H))
        with META:
            values = Heads("concat" if layer.concat else "mean").build(H, R, conv.out_channels)
        values.weight = score.key_edge
    return ConvertedTransformer(layer, conv, values=values, root=copied(layer.lin_skip))


class ConvertedTransformer(AttentionLayer):
    """Attention and the target's own features: their sum, or a learnt mixture of the two."""

    kept = ("lin_beta",)

    def attend(
        self, x: Any, edges: CallEdges, z: Any, size: Any, wanted: bool, call: dict[str, Any]
    ) -> tuple[Tensor, Any]:
        y, A = super().attend(x, edges, z, size, wanted, call)
        return y, A.undropped if wanted else A  # PyG returns the weights before dropout

    @property
    def adds_root(self) -> bool:
        return bool(self.root_weight) and self._modules.get("lin_beta") is None

    def finish(self, y: Tensor, target: Tensor | None, call: dict[str, Any]) -> Tensor:
        if not self.root_weight:
            return y
        skip, mixture = self.of_targets(target), self._modules.get("lin_beta")
        if mixture is None:
            return y + skip
        beta = mixture(torch.cat([y, skip, y - skip], dim=-1)).sigmoid()
        return beta * skip + (1 - beta) * y

    def returns_weights(self, asked: Any) -> bool:
        return isinstance(asked, bool)

    def weights(self, A: Any, edges: CallEdges, call: dict[str, Any]) -> Any:
        found, given = super().weights(A, edges, call), call["edge_index"]
        return (given, found[1]) if isinstance(given, Tensor) and is_torch_sparse_tensor(given) else found


@rule(
    ResGatedGraphConv,
    "channel-wise gates",
    [{"act": nn.Tanh()}, {"aggr": "mean"}, *({"edge_dim": 3} | one for one in turned_round(ResGatedGraphConv))],
)
def res_gated(layer: Any) -> nn.Module:
    r""":math:`\sum_m act(k_d \cdot x_n + q_d \cdot x_m) (x_m V)_d` for each channel d: heads of width 1.

    The two biases inside act stay two parameters: the second is a term of the relative position of period 1.
    """
    check_initialized(layer)
    if isinstance(layer.act, nn.Module) and next(layer.act.parameters(), None) is not None:
        raise Unchanged("its activation has parameters")
    key, query, value = layer.lin_key, layer.lin_query, layer.lin_value
    Q, R = layer.out_channels, layer.edge_dim or 0
    P, target = value.in_channels - R, key.in_channels - R  # the linears read x and, behind it, the edges' features
    additive, key_bias = Additive(target="own", bias=True), Relative(period=1)
    edges = [Edge(R), Edge(R)] if R else []
    score = sum(edges, additive + key_bias)
    sigmoid = type(layer.act) is nn.Sigmoid
    normalize: Normalize = "sigmoid" if sigmoid else None
    gate = score if sigmoid else score.then(copied(layer.act))
    conv = attention_conv(layer, Q, gate, Heads(bias=True), (P, target), Q, normalize=normalize, bias=layer.bias)
    W_key, W_query, W_value = map(matrix, (key, query, value))
    fill(additive, source=W_query[:, :P], target=W_key[:, :target], bias=query.bias)
    fill(key_bias, weight=key.bias)
    fill(conv.theta, weight=W_value[:, :P], value_bias=value.bias)
    values = None
    if R:
        fill(edges[0], weight=W_query[:, P:])
        fill(edges[1], weight=W_key[:, target:])
        with META:
            values = Heads().build(Q, R, Q)
        fill(values, weight=W_value[:, P:])
    root = copied(layer.lin_skip) if layer.root_weight else None
    return AttentionLayer(layer, conv, values=values, root=root)


@rule(
    SuperGATConv,
    "SuperGAT",
    [{"heads": 3, "concat": False, "negative_slope": 0.4}, {"heads": 2, "attention_type": "SD"}],
    node_dim=0,
)
def supergat(layer: Any) -> nn.Module:
    """GAT's score times a sigmoid of the dot product, or the dot product alone."""
    mixed = layer.attention_type == "MX"
    additive = Additive(projected=True)
    gate = Dot(scale=1.0, projected=True).then(nn.Sigmoid())
    score = additive * gate if mixed else Dot(projected=True)
    conv = multihead_conv(layer, score.then(nn.LeakyReLU(layer.negative_slope)), layer.lin, bias=layer.bias)
    if mixed:
        fill(additive, source=layer.att_l, target=layer.att_r)
    return ConvertedSuperGAT(layer, conv)


class ConvertedSuperGAT(AttentionLayer):
    """Attention that in training learns to tell edges from pairs of nodes that are none."""

    draws = True  # these pairs, in training
    positive_sampling = SuperGATConv.positive_sampling  # which read the options of the layer
    negative_sampling = SuperGATConv.negative_sampling

    def __init__(self, layer: Any, conv: Any) -> None:
        super().__init__(layer, conv)
        self.scale = 1.0 if layer.attention_type == "MX" else 1 / math.sqrt(layer.out_channels)
        self.att_x: Tensor | None = None
        self.att_y: Tensor | None = None

    def uses_operator(self, given: dict[str, Any]) -> bool:
        # In training the layer keeps what its loss is made of.
        return not self.training and super().uses_operator(given)

    def attend(
        self, x: Any, edges: CallEdges, z: Any, size: Any, wanted: bool, call: dict[str, Any]
    ) -> tuple[Tensor, Any]:
        y = super().attend(x, edges, z, size, wanted, call)
        if self.training:
            positive, negative = self.positive_sampling(edges.edge_index), call.get("neg_edge_index")
            if negative is None:
                negative = self.negative_sampling(edges.edge_index, x.shape[-2], call.get("batch"))
            h, pairs = self.conv.theta.rows(x), torch.cat([positive, negative], 1)  # (*, N, H C)
            ends = [h.index_select(-2, end) for end in pairs.unbind(0)]
            self.att_x = (ends[0] * ends[1]).unflatten(-1, (self.heads, -1)).sum(-1) * self.scale  # (*, E, H)
            self.att_y = self.att_x.new_zeros(self.att_x.shape[:-1])
            self.att_y[..., : positive.shape[1]] = 1.0
        return y

    def get_attention_loss(self) -> Tensor:
        """The loss of the last call in training."""
        if not self.training:
            return torch.tensor([0], device=self.conv.theta.weight.device)
        assert self.att_x is not None
        assert self.att_y is not None
        return F.binary_cross_entropy_with_logits(self.att_x.mean(-1), self.att_y)
