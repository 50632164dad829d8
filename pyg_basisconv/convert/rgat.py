"""RGAT: attention between nodes that each relation projects by its own matrix."""

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import RGATConv

from ..bases import Adjacency, Attention
from ..bases.edges import check_types
from ..cache import once
from ..content import Content
from ..conv import BasisConv
from ..entries import Entries
from ..errors import reject
from ..kernels.pattern import extremes, in_range, tally
from ..mechanisms import Additive, Edge, Mechanism, Score, Sizes
from ..mechanisms.base import copies, table_score, upcast
from ..reading import check_edges
from ..theta import Pass, Split
from .attention import apply_weights, weigh
from .build import META, check_dropout, check_initialized, check_sum, fill, matrix
from .composite import GraphLayer
from .edges import as_returned, features_of, read_edges
from .layers import both, pair
from .operator_module import OperatorModule, promoted
from .registry import REVERSED, combinations, rule

_MULTIPLIED = {"heads": 2, "attention_mode": "multiplicative-self-attention"}


class OfRelation(Mechanism):
    """A term of the target's features, as the relation of the source projects them.

    Sources are ordered by relation, and targets have a group of features for each relation.
    """

    def __init__(self, relations: int) -> None:
        super().__init__()
        self.relations = relations

    def make(self, sizes: Sizes) -> None:
        self.parameter("weight", sizes.heads, sizes.target // self.relations)

    def score(self, content: Content, entries: Entries) -> Score:
        weight: Any = self.weight
        groups = content.target_features.unflatten(-1, (self.relations, -1))  # (*, N, R, D)
        table = (groups @ weight.t()).movedim(-1, 0).flatten(-2)  # (H, *, N R)
        N, count = content.target_features.shape[-2], content.x.shape[-2] // self.relations

        def place(m: Tensor, n: Tensor) -> Tensor:
            return n * self.relations + m // max(1, count)

        return table_score(
            copies(upcast(table), content, weight.shape[0]),
            lambda e: e.lookup(("relation", self.relations), N * self.relations, place),
            lambda e: e.table(place),
        )

    def extra_repr(self) -> str:
        return str(self.relations)


@rule(
    RGATConv,
    "RGAT, relational",
    [
        {"heads": 2, "negative_slope": 0.4},
        {"heads": 2, "concat": False, "num_bases": 2},
        {"heads": 4, "num_blocks": 1, "bias": False},
        {"heads": 2, "edge_dim": 3},
        _MULTIPLIED | {"edge_dim": 3},
        _MULTIPLIED | {"dim": 3},
        _MULTIPLIED | {"dim": 2, "concat": False, "mod": "additive"},
        {"heads": 2, "attention_mechanism": "within-relation", "edge_dim": 3},
        *combinations({"heads": 2}, mod=("additive", "scaled", "f-additive", "f-scaled")),
        *combinations({"heads": 2, "attention_mechanism": "within-relation"}, mod=("additive", "scaled")),
        {"heads": 2, "edge_dim": 3} | REVERSED,
    ],
    node_dim=0,
)
class ConvertedRGAT(OperatorModule, GraphLayer):
    r""":math:`\sum_{r, m} a_{rmn} \, x_m W_r` with the softmax of :math:`LeakyReLU(k \cdot x_m W_r + q \cdot x_n W_r)`
    for a, or of the product of the two: a BasisConv whose sources are the pairs of a relation and a node.

    A head may have several weights for an edge (`dim`); its values are then repeated. With a softmax within relations,
    targets are pairs as well, and their results are summed.
    """

    kept = ("weight", "att", "basis", "w", "l1", "b1", "l2", "b2", "bias")

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        check_initialized(layer)
        check_sum(layer)
        check_dropout(layer.dropout)
        D, K = layer.heads * layer.out_channels, layer.heads * layer.dim
        self.width = layer.dim * (D if layer.concat else layer.out_channels)
        self.within = layer.attention_mechanism == "within-relation"
        self.additive = layer.attention_mode == "additive-self-attention"
        parts = 1 if self.within else layer.num_relations
        source, target = Additive(target=None), OfRelation(parts)
        terms: list[Mechanism] = [source, target]
        self.lin_edge = None
        if layer.lin_edge is not None:
            weight = matrix(layer.lin_edge)
            self.lin_edge = nn.Linear(weight.shape[1], D, bias=False, device="meta")
            fill(self.lin_edge, weight=weight)
            terms.append(Edge(D))
        score = reduce(operator.add if self.additive else operator.mul, terms)
        if self.additive:
            score = score.then(nn.LeakyReLU(layer.negative_slope))
        with META:
            basis = Attention(K, score, Adjacency(), dropout=0.0 if layer.mod else layer.dropout)
            basis.draws_at_once = True
            self.conv = BasisConv((D, parts * D), D, basis, Pass(), bias=False)
            self.conv.theta = Split().build(K, layer.dim * D, layer.dim * D)
            self.sum = BasisConv(-1, -1, Adjacency(), Pass(), bias=False)
        fill(source, source=layer.k.t())
        fill(target, weight=layer.q.t())
        if self.lin_edge is not None:
            fill(terms[2], weight=layer.e.t())

    def compute(self, x: Any, edge_index: Any, edge_type: Any = None, edge_attr: Any = None, **call: Any) -> Any:
        source, target = both(x, "RGATConv")
        (M, N), R = (source.shape[0], target.shape[0]), self.num_relations
        read = read_edges(edge_index, self.flow, size=(M, N))
        # Beside types, a matrix may have features as its values.
        kind, z = (read.values, None) if edge_type is None else (edge_type, read.values)
        z = features_of(edge_attr, z)
        assert kind is not None, "RGATConv needs edge_type"
        if isinstance(kind, Tensor) and kind.is_floating_point():  # such as the values of a matrix
            reject("edge_type", "integers, for RGATConv", kind.dtype, "give the types beside edge_index")
        if z is not None:
            assert self.lin_edge is not None, "RGATConv was made without edge_dim"
            z = self.lin_edge(z)
        elif self.lin_edge is not None:
            assert self.additive, "RGATConv multiplies with edge_attr"
            z = source.new_zeros(kind.numel(), self.lin_edge.out_features)
        edges = joint_edges(read.edge_index, kind, (M, N), R, self.within, self.flow)
        matrices = self.matrices()
        h = source @ matrices  # (R, M, H C)
        own = h if target is source else target @ matrices
        sources = h.flatten(0, 1)
        targets = own.flatten(0, 1) if self.within else own.transpose(0, 1).flatten(1)
        A: Any = weigh(self.conv, sources, targets, edges, edge_attr=z)
        sent = sources.unflatten(1, (self.heads, -1)).repeat_interleave(self.dim, 1).flatten(1)
        y = apply_weights(self.conv, sent, A)
        y = y.unflatten(0, (R, N)).sum(0) if self.within else y
        y = self._modified(y, sent, edges)
        y = y if self.concat else y.unflatten(-1, (self.heads, -1)).mean(1)
        y = y if self.bias is None else y + self.bias
        if not isinstance(call.get("return_attention_weights"), bool):
            return y
        return y, as_returned(read, edge_index, A.unmasked.undropped.weights_by_edge(kind.numel()))

    def fake_result(self, given: dict[str, Any], unknown: Callable[[], int]) -> list[Tensor]:
        (x, _), edges = pair(given["x"]), given["edge_index"]
        y = super().fake_result(given, unknown)
        if not isinstance(given.get("return_attention_weights"), bool):
            return y
        return [*y, torch.empty_like(edges), x.new_empty(edges.shape[1], self.conv.basis.K)]

    def dtypes(self, found: Sequence[Tensor], given: dict[str, Any], narrow: torch.dtype) -> list[torch.dtype]:
        learnt: Any = {"additive": self.w, "scaled": self.b2}.get(self.mod)
        return [promoted(narrow, self.bias, learnt), *[narrow] * (len(found) - 1)]

    def _modified(self, y: Tensor, values: Tensor, edges: Tensor) -> Tensor:
        """Applies `mod`, which changes the weights of edges after the softmax."""
        if self.mod is None:
            return y
        N, R = y.shape[0], self.num_relations
        if self.mod in ("additive", "f-additive"):
            total = self.sum((values, None), edges, size=(values.shape[0], N * R if self.within else N))
            total = total.unflatten(0, (R, N)).sum(0) if self.within else total
            return y + (total if self.mod == "f-additive" else total * self._per_head(self.w))
        degree = tally(edges[1] % N, N).to(y.dtype).unsqueeze(-1)
        if self.mod == "f-scaled":
            return y * degree
        hidden = (degree @ self.l1 + self.b1).relu()
        return y * self._per_head(hidden @ self.l2 + self.b2)

    def _per_head(self, t: Any) -> Tensor:
        """(*, C) -> (*, K C), repeated for each of the K weights."""
        return torch.cat([t] * (self.heads * self.dim), -1)

    def matrices(self) -> Tensor:
        """(R, P, H C) of the relations."""
        weight: Tensor = self.weight
        if self.att is not None:
            return torch.einsum("rb,bpq->rpq", self.att, self.basis)
        if weight.dim() == 4:  # (R, B, P / B, H C / B) blocks
            return torch.stack([torch.block_diag(*blocks) for blocks in weight])
        return weight


@once
def joint_edges(edges: Tensor, kind: Tensor, size: tuple[int, int], R: int, within: bool, flow: str) -> Tensor:
    """The edges from pairs of a relation r and a source m of M, which have the number r M + m, to the targets, or such
    pairs.
    """
    check_edges(edges, kind, size if flow == "source_to_target" else size[::-1])
    if not in_range(kind, R):
        check_types(*extremes(kind), R)
    source, target = edges if flow == "source_to_target" else edges.flip(0)
    M, N = size
    return torch.stack([source + kind.long() * M, target + kind.long() * N if within else target])
