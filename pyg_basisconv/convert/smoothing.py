"""The layers that smooth features along the edges: by cosine, by sign, by a soft assignment."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import AGNNConv, FAConv, FeaStConv
from torch_geometric.typing import SparseTensor, torch_sparse
from torch_geometric.utils import add_remaining_self_loops, add_self_loops, is_torch_sparse_tensor

from ..bases import Adjacency
from ..content import Content
from ..entries import Entries
from ..graph import Counts
from ..kernels import Affine
from ..mechanisms import Additive, Cosine, Mechanism, Relative, Score, Sizes
from ..mechanisms.rows import MappedRows, TermRows
from ..theta import Full, Pass
from .attention import AttentionLayer, attention_conv
from .build import check_initialized, check_sum, fill, heads_of, matrix
from .edges import CallEdges, as_returned
from .operator_module import promoted
from .registry import rule, turned_round


@rule(AGNNConv, "AGNN, cosine")
def agnn(layer: Any) -> nn.Module:
    r""":math:`\beta \cos(x_m, x_n)`; a learnt beta is a term of the relative position of period 1."""
    beta = Relative(period=1) if layer.requires_grad else float(layer.beta)
    conv = attention_conv(layer, 1, beta * Cosine(), Pass(), -1, -1)
    if isinstance(beta, Relative):
        fill(beta, weight=layer.beta)
    return AttentionLayer(layer, conv)


@rule(FAConv, "FAGCN, signed tanh", [{"eps": 0.0}, {"eps": 0.3, "add_self_loops": False}])
def fa(layer: Any) -> nn.Module:
    r""":math:`\tanh(s \cdot x_m + t \cdot x_n)` times the weights of GCN."""
    check_initialized(layer)
    check_sum(layer)
    score, P = Additive(target="own"), layer.att_l.in_channels
    mask = Adjacency("sym", layer.add_self_loops) if layer.normalize else Adjacency()
    about: Any = {"mask": mask, "weighted": True, "dropout": layer.dropout}
    conv = attention_conv(layer, 1, score, Pass(), P, P, normalize="tanh", **about)
    fill(score, source=matrix(layer.att_l), target=matrix(layer.att_r))
    return ConvertedFA(layer, conv)


class ConvertedFA(AttentionLayer):
    """The sum, and a share of the initial features."""

    def __init__(self, layer: Any, conv: Any) -> None:
        super().__init__(layer, conv)
        self.loops = None  # those that are added belong to the mask
        self.looped = layer.normalize and layer.add_self_loops

    def edges(self, edge_index: Any, count: int, size: Counts = (None, None)) -> CallEdges:
        if self.looped and isinstance(edge_index, SparseTensor):
            edge_index = torch_sparse.fill_diag(edge_index, 1.0)
        elif self.looped and is_torch_sparse_tensor(edge_index):  # whose loops PyG does not replace, but adds to
            edge_index = add_self_loops(edge_index, fill_value=1.0)[0]
        return super().edges(edge_index, count, size)

    def attend(
        self, x: Any, edges: CallEdges, z: Any, size: Any, wanted: bool, call: dict[str, Any]
    ) -> tuple[Tensor, Any]:
        if edges.values is not None and call.get("edge_weight") is None:
            call = {**call, "edge_weight": edges.values}
        return super().attend(x, edges, z, size, False, call)

    @property
    def keeps_edges(self) -> bool:
        return not self.looped

    def weights_like(self, y: Tensor, E: int) -> Tensor:
        return y.new_empty(E)

    def dtypes(self, found: Sequence[Tensor], given: dict[str, Any], narrow: torch.dtype) -> list[torch.dtype]:
        return [promoted(narrow, given["x_0"] if self.eps != 0.0 else None), *[narrow] * (len(found) - 1)]

    def finish(self, y: Tensor, target: Tensor | None, call: dict[str, Any]) -> Tensor:
        return y + self.eps * call["x_0"] if self.eps != 0.0 else y

    def returns_weights(self, asked: Any) -> bool:
        return isinstance(asked, bool)

    def weights(self, A: Any, edges: CallEdges, call: dict[str, Any]) -> Any:
        """The signs and strengths alone, (E,), without the weights of the edges."""
        x, index = call["x"], edges.edge_index
        if self.looped and edges.matrix is None:
            index = add_remaining_self_loops(index, num_nodes=x.shape[-2])[0]
        j, i = index if self.conv.flow == "source_to_target" else index.flip(0)
        score: Any = self.conv.basis.mechanism
        alpha = ((x @ score.source[0])[j] + (x @ score.target[0])[i]).tanh()
        return as_returned(edges._replace(edge_index=index), call["edge_index"], alpha)


@rule(
    FeaStConv, "FeaStNet, softmax over k", [{"heads": 2} | one for one in ({"aggr": "add"}, *turned_round(FeaStConv))]
)
def feast(layer: Any) -> nn.Module:
    r""":math:`u_k \cdot (x_m - x_n) + c_k`, a softmax over k."""
    check_initialized(layer)
    score, P, Q = Steered(), layer.lin.in_channels, layer.out_channels
    conv = attention_conv(layer, layer.heads, score, Full(), P, Q, normalize="heads", bias=layer.bias)
    fill(conv.theta, weight=heads_of(layer.lin, layer.heads))
    fill(score, source=matrix(layer.u), bias=layer.c)
    return AttentionLayer(layer, conv)


class Steered(Mechanism):
    r"""A term of the difference of the features, :math:`u_k \cdot (x_m - y_n) + c_k`."""

    def make(self, sizes: Sizes) -> None:
        self.parameter("source", sizes.heads, sizes.source)
        self.parameter("bias", sizes.heads)

    def score(self, content: Content, entries: Entries) -> Score:
        if content.target_features is not content.x:
            return MappedRows(content, Affine(self.source, self.bias), Affine(self.source, scale=-1.0))
        (rows,) = content.affine([Affine(self.source)])  # one product for both ends
        return TermRows(rows + self.bias, -rows, batch=content.batch)
