"""What converted layers with attention are made of: a BasisConv over the edges, and what PyG does around it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch_geometric import EdgeIndex
from torch_geometric.nn.dense.linear import Linear
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import add_self_loops

from ..backend import on_gpu
from ..bases import Adjacency, Attention
from ..bases.bound_attention import BoundAttention
from ..bases.weighing import Normalize
from ..basis import BoundBasis
from ..content import Beside, Content, Inputs, beside
from ..conv import BasisConv
from ..errors import reject
from ..graph import Counts
from ..kernels import Affine
from ..kernels.op import autocasting
from ..mechanisms import Mechanism
from ..portable import portable
from ..reading import read_graph
from ..theta import Heads, Theta
from .build import META, check_dropout, check_initialized, fill, heads_of, matrix, parameter, takes_mean
from .composite import GraphLayer
from .edges import CallEdges, as_returned, count_targets, features_of, read_edges, targets_of
from .layers import pair
from .operator_module import OperatorModule


class Unsupported(ValueError, NotImplementedError):
    """What PyG has not implemented either, and says so."""


class AttentionLayer(OperatorModule, GraphLayer):
    r"""A layer with attention over the edges of a graph, called as the layer of PyG that it replaces.

    Self loops and features of edges are those of that layer: `loops` says how the features of added loops are made
    (`fill_value`), or is None where none are added; `edge_dim` is 0 where edges have no features.

    Args:
        layer: of PyG.
        conv: with `bases.Attention` over the edges as they are.
        values: makes values of the edges' features, which are added to those of the sources.
        root: of the target's own features, added to the result.
        target_width: of the zeros that stand for targets in a call without any.
    """

    def __init__(
        self,
        layer: Any,
        conv: BasisConv,
        *,
        values: Theta | None = None,
        root: nn.Module | None = None,
        target_width: int | None = None,
    ) -> None:
        super().__init__(layer)
        self.average = takes_mean(layer)
        self.conv, self.values, self.root, self.target_width = conv, values, root, target_width
        self.edge_dim = edge_width(layer)
        self.loops = getattr(layer, "fill_value", 1.0) if getattr(layer, "add_self_loops", False) else None
        self.may_skip_checks = self.call.names[:2] == ("x", "edge_index") and not self.edge_dim

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Applies the layer; takes what the PyG layer takes."""
        if len(args) == 2 and not kwargs and self._is_plain(*args):
            x, edge_index = args
            edges = self.edges(edge_index, x.shape[-2])
            if on_gpu(x):
                return self._attended(x, x, edges, None, None, False, {})[0]
            return self.finish(self.attend(x, edges, None, None, False, {})[0], x, {})
        return super().forward(*args, **kwargs)

    def _is_plain(self, x: Any, edge_index: Any) -> bool:
        """Whether a call with two arguments passes features and edges as plain tensors, and is not traced."""
        for t in (x, edge_index):
            if type(t) is not Tensor or t.layout is not torch.strided or t.is_nested:
                return False
        return self.may_skip_checks and x.dim() > 1 and not torch.compiler.is_dynamo_compiling()

    def compute(self, **call: Any) -> Any:
        x, edge_index, size = call["x"], call["edge_index"], call.get("size")
        source, target = pair(x)
        M, N = source.shape[-2], None if target is None else target.shape[-2]
        count = min(size) if size is not None else M if N is None else min(M, N)
        if N is None and size is not None:
            N = size[1]
        elif N is None and self.loops is None and isinstance(edge_index, EdgeIndex):
            N = edge_index.sparse_size(1)
        edges = self.edges(edge_index, count, (M, N))
        z = self._features(call, edges, count)
        if target is None and self.target_width is not None:
            N = count_targets(edge_index, source) if N is None else N
            x = (source, source.new_zeros(N, self.target_width))
        wanted = self.returns_weights(call.get("return_attention_weights"))
        size = (M, N) if target is None and N is not None else size
        y, A = self._attended(x, target, edges, z, size, wanted, call)
        return (y, self.weights(A, edges, call)) if wanted else y

    def _attended(
        self, x: Any, target: Tensor | None, edges: CallEdges, z: Tensor | None, size: Any, wanted: bool, call: Any
    ) -> tuple[Tensor, Any]:
        """The result of a call, and the weights of the attention where they are wanted."""
        own = self._map_of_targets if target is not None and on_gpu(target) else None
        if target is None or own is None:
            y, A = self.attend(x, edges, z, size, wanted, call)
            return self.finish(y, target, call), A
        parts: Any = self._modules
        with Beside(target, own, self.adds_root and not parts["conv"]._forward_hooks) as own_part:
            y, A = self.attend(x, edges, z, size, wanted, call)
            return y if own_part.added else self.finish(y, target, call), A

    @property
    def adds_root(self) -> bool:
        """Whether `finish` adds what `root` makes of the targets' features, and does nothing else."""
        return type(self).finish is AttentionLayer.finish

    @property
    def _map_of_targets(self) -> Affine | None:
        """What `root` is, if it is no more than a map."""
        root: Any = self._modules.get("root")
        if type(root) not in (nn.Linear, Linear) or torch.compiler.is_compiling():
            return None
        hooks = root._forward_hooks, root._forward_pre_hooks, root._backward_hooks, root._backward_pre_hooks
        own = root._parameters
        if any(hooks) or _has_any_global_hook() or own.get("weight") is None:  # parametrized
            return None
        return Affine(own["weight"], own.get("bias"))

    def edges(self, edge_index: Any, count: int, size: Counts = (None, None)) -> CallEdges:
        """The edges of a call, with loops for the first `count` nodes where the layer adds them."""
        if self.edge_dim and self.loops is not None and isinstance(edge_index, SparseTensor):
            raise Unsupported(
                "edge_index: expected a (2, E) tensor where loops with features are added, got a SparseTensor; "
                "pass the edges as (2, E), or make the layer with add_self_loops=False"
            )
        conv: Any = self._modules["conv"]
        return read_edges(edge_index, conv.flow, None if self.loops is None else count, size)

    def attend(
        self, x: Any, edges: CallEdges, z: Tensor | None, size: Any, wanted: bool, call: dict[str, Any]
    ) -> tuple[Tensor, Any]:
        """The result of the attention, and its weights where they are wanted."""
        parts: Any = self._modules
        given = {"edge_attr": z, "size": size, "edge_values": None if z is None else parts.get("values")}
        given |= {"return_attention": True} if wanted else {}
        found = parts["conv"](x, edges.edge_index, call.get("edge_weight"), **given)
        return found if wanted else (found, None)

    def fake_result(self, given: dict[str, Any], unknown: Callable[[], int]) -> list[Tensor]:
        (source, target), size = pair(given["x"]), given.get("size")
        if target is not None:
            N = target.shape[-2]
        else:
            N = source.shape[-2] if size is None or size[1] is None else size[1]
        y = self.conv.fake_result({"x": (source, None), "size": (None, N)}, unknown)
        if not self.returns_weights(given.get("return_attention_weights")):
            return [y]
        index = given["edge_index"]
        E = index.shape[1] if self.keeps_edges else unknown()
        return [y, index.new_empty(2, E), self.weights_like(y, E)]

    @property
    def keeps_edges(self) -> bool:
        """Whether the edges that it returns are those that it was given."""
        return self.loops is None

    def weights_like(self, y: Tensor, E: int) -> Tensor:
        """An empty tensor like the weights that it returns."""
        return y.new_empty(E, self.conv.basis.K)

    def weights(self, A: Any, edges: CallEdges, call: dict[str, Any]) -> Any:
        """The graph and the weights of its edges, (E, K), as PyG returns them: without the mask of an explainer."""
        alpha = A.unmasked.weights_by_edge(edges.edge_index.shape[1])
        if self.average:  # PyG takes the mean of the messages, and so scales the weights
            n = targets_of(edges.edge_index, self.conv.flow)
            alpha = alpha * torch.bincount(n)[n].unsqueeze(-1)
        return as_returned(edges, call["edge_index"], alpha)

    def finish(self, y: Tensor, target: Tensor | None, call: dict[str, Any]) -> Tensor:
        """What is done with the sum over the edges."""
        root = self._modules.get("root")
        return y if root is None or target is None else y + self.of_targets(target)

    def of_targets(self, target: Tensor | None) -> Tensor:
        """What `root` makes of the targets' features, which may be known by now."""
        known = beside()
        if known is not None and known.result is not None and known.x is target:
            return known.result
        found: Tensor = self._modules["root"](target)  # type: ignore[misc]
        return found

    def returns_weights(self, asked: Any) -> bool:
        """Whether a call with this `return_attention_weights` returns the weights, too."""
        return bool(asked)

    def _features(self, call: dict[str, Any], edges: CallEdges, count: int) -> Tensor | None:
        """(E, R) the features of the edges, those of the loops last."""
        z = call.get("edge_attr")
        if not self.edge_dim:
            if z is not None and self.call.layer != "GATConv":  # which ignores it
                reject("edge_attr", "None for a layer without edge_dim", tuple(z.shape), "make it with edge_dim")
            return None
        z = features_of(z, edges.values if self.loops is None else None)
        if z is None:
            if self.values is not None:
                return None
            return pair(call["x"])[0].new_zeros(edges.edge_index.shape[1], self.edge_dim)  # adds nothing to a score
        if self.loops is None:
            return z
        kept = edges.kept
        if kept is None:
            fix = "pass them as edge_index, or leave add_self_loops to the graph"
            reject("edge_attr", "None where loops are added to a sparse layout", tuple(z.shape), fix)
        E = call["edge_index"].shape[1]
        if z.shape[0] != E:
            fix = "give as many rows as edge_index has columns"
            reject("edge_attr", f"one row for each of {E} edges", tuple(z.shape), fix)
        plain = edges.edge_index[:, : kept.shape[0]].long()  # torch's gradient of sums by targets in int32 is wrong
        return add_self_loops(plain, z.index_select(0, kept), fill_value=self.loops, num_nodes=count)[1]


def edge_width(layer: Any) -> int:
    """How many features edges have, 0 for none; a lazy layer knows it from its first call, and its options do not."""
    check_initialized(layer)
    linear = getattr(layer, "lin_edge", None)
    return (getattr(layer, "edge_dim", None) or 0) if linear is None else int(matrix(linear).shape[1])


def attention_conv(
    layer: Any,
    heads: int,
    mechanism: Mechanism,
    theta: Theta,
    P: int | tuple[int, int],
    Q: int,
    *,
    mask: Adjacency | None = None,
    normalize: Normalize = "source",
    weighted: bool = False,
    dropout: float = 0.0,
    bias: Tensor | None = None,
) -> BasisConv:
    """A BasisConv that attends along the edges; its parameters are still to be filled with `fill`."""
    check_dropout(dropout)
    average = takes_mean(layer)
    if mask is None:
        mask = Adjacency("mean") if average else Adjacency()
    with META:
        basis = Attention(heads, mechanism, mask, normalize, dropout, weighted or average)
        basis.draws_at_once = True
        conv = BasisConv(P, Q, basis, theta, bias=False, flow=layer.flow, decomposed_layers=layer.decomposed_layers)
    conv.bias = parameter(bias)
    return conv


def multihead_conv(
    layer: Any, mechanism: Mechanism, value: Linear, target: Linear | None = None, **kwargs: Any
) -> BasisConv:
    """The same, where the values of the layer's heads are parts of one Linear, (H D, P), whose parameters are taken
    over, and are concatenated or averaged; another Linear may read the targets.
    """
    check_initialized(layer)
    H, Q = layer.heads, layer.out_channels * (layer.heads if layer.concat else 1)
    theta = Heads("concat" if layer.concat else "mean", bias=value.bias is not None)
    P = value.in_channels if target is None else (value.in_channels, target.in_channels)
    conv = attention_conv(layer, H, mechanism, theta, P, Q, dropout=layer.dropout, **kwargs)
    fill(conv.theta, weight=heads_of(value, H), value_bias=value.bias)
    return conv


def weigh(conv: BasisConv, x: Tensor, target: Tensor, edge_index: Any = None, **about: Any) -> BoundBasis:
    """The weights of a layer for sources whose features x are not the values that it is to sum, along edges, (2, E),
    or of all pairs. The scores do not read what Theta projects; the other arguments are those of the `Content`.
    """
    size = (x.shape[-2], target.shape[-2])
    graph = read_graph(edge_index, size=size, dtype=x.dtype, device=x.device)
    edges = 0 if edge_index is None else edge_index.shape[1]
    about |= {"edges": edges, "asks_edges": conv.numbers_edges}
    content = Content(Inputs(x, conv.theta, summed=False), target, **about)
    return conv.basis.on(conv.masked(graph.holding(content)))


def apply_weights(conv: BasisConv, x: Tensor, A: BoundBasis) -> Tensor:
    """The weights of `weigh`, applied to other features than those that they were computed from."""
    plain = conv.theta.by_rows and conv._fused and not (portable() or autocasting(x.device))
    if plain and isinstance(A, BoundAttention) and (*x.shape[:-2], x.shape[-2]) == (*A.batch, A.M):
        order = "theta_first" if A.is_by_rows else "native" if A.is_pairs_by_rows else None
        if order is not None:
            return A.in_one_step(order, Inputs(x, conv.theta), conv.bias)
    y: Tensor = conv(x, A)
    return y
