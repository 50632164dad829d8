"""What converted layers with attention are made of: a BasisConv over the edges, and what PyG does around it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn.dense.linear import Linear
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import add_self_loops, is_torch_sparse_tensor, remove_self_loops

from ..bases import Adjacency, Attention
from ..bases.bound_attention import ELEMENTWISE, BoundAttention, Normalize
from ..basis import BoundBasis
from ..binding import bind, content_of
from ..content import Content, Inputs
from ..conv import BasisConv
from ..errors import reject
from ..kernels.backend import KERNELS
from ..kernels.op import autocasting
from ..mechanisms import Mechanism
from ..mechanisms.rows import EdgeTerms
from ..portable import portable
from ..program import Call
from ..reading import read_graph
from ..theta import Theta
from .build import mean
from .ends import Ends, by_edge, read_ends, returned, targets
from .layers import Signature, pair, reset
from .registry import Left
from .whole import Whole, check_forms

Loops = float | str | Tensor | None


class Unsupported(ValueError, NotImplementedError):
    """What PyG has not implemented either, and says so."""


class Attending(Whole):
    r"""A layer with attention over the edges of a graph, called as the layer of PyG that it replaces.

    Args:
        layer: of PyG.
        conv: with `bases.Attention` over the edges as they are.
        loops: how the features of the loops that PyG adds are made (`fill_value`); None where it adds none.
        edge_dim: the width of the edges' features; 0 where the layer has none.
        values: what makes values of the edges' features, beside those of the sources.
        root: of the target's own features, added to the result.
        blind: the width of the targets, where a call without them is a call with zeros.
    """

    brief = False  # whether a call of two arguments is of features and edges, and of nothing else

    def __init__(
        self,
        layer: Any,
        conv: BasisConv,
        *,
        loops: Loops = None,
        edge_dim: int | None = None,
        values: Theta | None = None,
        root: nn.Module | None = None,
        blind: int | None = None,
    ) -> None:
        super().__init__()
        self.call = Signature.of(layer)
        self.conv, self.values, self.root = conv, values, root
        self.loops, self.edge_dim, self.blind, self.average = loops, edge_dim or 0, blind, mean(layer)
        names, flow = self.call.names, self.call.flow
        self.brief = names[:2] == ("x", "edge_index") and flow == "source_to_target" and not self.edge_dim

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Applies the layer; takes what the PyG layer takes."""
        if len(args) == 2 and not kwargs and self._is_plain(*args):
            x, edges = args
            ends = Ends(edges) if self.loops is None else read_ends(edges, True, x.shape[-2])
            return self.finish(self.attend(x, ends, None, None, False, {})[0], x, {})
        call = self.call.read(args, kwargs)
        check_forms(call)
        if self.operates(call):
            y, *weights = self.operator(call)
            return (y, tuple(weights)) if weights else y
        x, edge_index, size = call["x"], call["edge_index"], call.get("size")
        source, target = pair(x)
        M, N = source.shape[-2], None
        if size is not None:
            count = min(size)
            N = size[1] if target is None else None
        else:
            count = M if target is None else min(M, target.shape[-2])
        ends = self.ends(edge_index, count)
        z = self._features(call, ends, count)
        if target is None and self.blind is not None:
            N = targets(edge_index, source) if size is None else size[1]
            x = (source, source.new_zeros(N, self.blind))
        replies = self.replies(call.get("return_attention_weights"))
        y, A = self.attend(x, ends, z, None if size is None and N is None else (M, N), replies, call)
        y = self.finish(y, target, call)
        return (y, self.reply(A, ends, call)) if replies else y

    def _is_plain(self, x: Any, edge_index: Any) -> bool:
        """Whether a call of two arguments is of features and edges as plain tensors, and nothing traces it."""
        for t in (x, edge_index):
            if type(t) is not Tensor or t.layout is not torch.strided or t.is_nested:
                return False
        return self.brief and not torch.compiler.is_dynamo_compiling()

    def ends(self, edge_index: Any, count: int) -> Ends:
        """The edges of a call."""
        if self.edge_dim and self.loops is not None and isinstance(edge_index, SparseTensor):
            raise Unsupported(
                "edge_index: expected a (2, E) tensor where loops with features are added, got a SparseTensor; "
                "pass the edges as (2, E), or make the layer with add_self_loops=False"
            )
        conv: Any = self._modules["conv"]
        return read_ends(edge_index, self.loops is not None, count, conv.flow)

    def attend(
        self, x: Any, ends: Ends, z: Tensor | None, size: Any, needed: bool, call: dict[str, Any]
    ) -> tuple[Tensor, Any]:
        """The result of the attention, and its weights where they are needed."""
        weight = call.get("edge_weight")
        if z is not None and not needed and self.gated:
            y = self._gated(Call(x, ends.edges, weight, edge_attr=z, size=size))
            if y is not None:
                return y, None
        parts: Any = self._modules
        conv, values = parts["conv"], parts.get("values")
        if not (needed or values is not None):
            return conv(x, ends.edges, weight, edge_attr=z, size=size), None
        y, A = conv(x, ends.edges, weight, edge_attr=z, size=size, return_attention=True)
        if values is not None and z is not None:
            y = y + values.gather(A.incidence, values.project(z))
        return y, A

    @property
    def gated(self) -> bool:
        """Whether edges have values, under weights of each channel: these are added on the way, by kernels of gates."""
        conv = self.conv
        single = self.values is not None and conv.theta.inner == 1 and conv.basis.normalize in ELEMENTWISE
        return single and KERNELS is not None and conv._fused and not (portable() or conv.is_lazy)

    def _gated(self, call: Call) -> Tensor | None:
        """The result of the attention, values of edges and all; None where it is made otherwise."""
        assert self.values is not None
        inputs, family, graph, _ = bind(self.conv, self.conv.basis, call)
        if not isinstance(family, BoundAttention) or graph is None or autocasting(inputs.x.device):
            return None
        content = content_of(self.conv, call, graph, inputs)
        values = EdgeTerms(content.edge_rows_at(family.entries), self.values.weight.squeeze(-1))
        return family.sums(inputs, self.conv.bias, values.tensor)

    def likeness(self, given: dict[str, Any], unknown: Callable[[], int]) -> list[Tensor]:
        (source, target), size = pair(given["x"]), given.get("size")
        if target is not None:
            N = target.shape[-2]
        else:
            N = source.shape[-2] if size is None or size[1] is None else size[1]
        y = self.conv.likeness({"x": (source, None), "size": (None, N)}, unknown)
        if not self.replies(given.get("return_attention_weights")):
            return [y]
        edges = given["edge_index"]
        E = edges.shape[1] if self.keeps_edges else unknown()
        return [y, edges.new_empty(2, E), self.reply_like(y, E)]

    @property
    def keeps_edges(self) -> bool:
        """Whether the edges that it returns are those that it was given."""
        return self.loops is None

    def reply_like(self, y: Tensor, E: int) -> Tensor:
        """An empty tensor like the weights that it returns."""
        return y.new_empty(E, self.conv.basis.K)

    def reply(self, A: Any, ends: Ends, call: dict[str, Any]) -> Any:
        """The graph and the weights of its edges, (E, K), as PyG returns them."""
        alpha = by_edge(A, ends.edges.shape[1])
        if self.average:  # PyG takes the mean of the messages, weights and all
            n = ends.edges[1 if self.conv.flow == "source_to_target" else 0]
            alpha = alpha * torch.bincount(n)[n].unsqueeze(-1)
        return returned(ends, call["edge_index"], alpha)

    def finish(self, y: Tensor, target: Tensor | None, call: dict[str, Any]) -> Tensor:
        """What is done with the sum over the edges."""
        root = self._modules.get("root")
        return y if root is None or target is None else y + root(target)

    def replies(self, asked: Any) -> bool:
        """Whether the call returns the weights too."""
        return bool(asked)

    def reset_parameters(self) -> None:
        """Draws all parameters anew."""
        reset(self.children())

    def _features(self, call: dict[str, Any], ends: Ends, count: int) -> Tensor | None:
        """(E, R) the features of the edges, those of the loops last."""
        z = call.get("edge_attr")
        if not self.edge_dim:
            if z is not None and self.call.layer != "GATConv":  # which does not look at it
                reject("edge_attr", "None for a layer without edge_dim", tuple(z.shape), "make it with edge_dim")
            return None
        if z is None:
            z = ends.values
            if z is None or z.dim() == 1 or self.loops is not None:
                return None if self.values is not None else self._none(call, ends)
            return z
        z = z.view(-1, 1) if z.dim() == 1 else z
        if self.loops is None:
            return z
        edges = call["edge_index"]
        if not isinstance(edges, Tensor) or is_torch_sparse_tensor(edges):
            fix = "pass them as edge_index, or leave add_self_loops to the graph"
            reject("edge_attr", "None where loops are added to a sparse layout", tuple(z.shape), fix)
        edges, z = remove_self_loops(edges, z)
        return add_self_loops(edges, z, fill_value=self.loops, num_nodes=count)[1]

    def _none(self, call: dict[str, Any], ends: Ends) -> Tensor:
        """Features that add nothing to a score."""
        return pair(call["x"])[0].new_zeros(ends.edges.shape[1], self.edge_dim)


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
    """A BasisConv that attends along the edges, its parameters still to be filled with `fill`."""
    some_left(dropout)
    average = mean(layer)
    if mask is None:
        mask = Adjacency("mean") if average else Adjacency()
    with torch.device("meta"):  # draws nothing, so that the state of torch's generator stays
        basis = Attention(heads, mechanism, mask, normalize, dropout, weighted or average)
        conv = BasisConv(P, Q, basis, theta, bias=False, flow=layer.flow, decomposed_layers=layer.decomposed_layers)
    conv.bias = None if bias is None else own(bias, bias)
    return conv


def weigh(conv: BasisConv, x: Tensor, target: Tensor, edge_index: Any = None, **about: Any) -> BoundBasis:
    """The weights of a layer for sources whose features x are not the values that it is to sum.

    Args:
        conv: with `bases.Attention`, whose scores do not read what Theta projects.
        x: of the sources.
        target: features of the targets.
        edge_index: (2, E), or None for all pairs.
        **about: as in a call: edge_attr, mask, valid.
    """
    size = (x.shape[-2], target.shape[-2])
    graph = read_graph(edge_index, size=size, dtype=x.dtype, device=x.device)
    edges = 0 if edge_index is None else edge_index.shape[1]
    content = Content(Inputs(x, conv.theta, summed=False), target, edges=edges, **about)
    return conv.basis.on(conv.masked(graph.holding(content)))


def own(value: Tensor, like: Tensor) -> nn.Parameter:
    """A parameter with these numbers, frozen if the one that they come from is."""
    return nn.Parameter(value.detach().clone(), like.requires_grad)  # in the layout of the vendors' products


def fill(module: nn.Module, **values: tuple[Tensor, Tensor] | Tensor | None) -> None:
    """Sets parameters of a module that was made without any.

    Args:
        module: to be filled.
        **values: a parameter, or the numbers and the parameter that they come from; None is left out.
    """
    for name, value in values.items():
        if value is None:
            continue
        numbers, like = value if isinstance(value, tuple) else (value, value)
        found = module._parameters[name]
        assert found is not None, name
        assert found.shape == numbers.shape, (name, found.shape, numbers.shape)
        module._parameters[name] = own(numbers, like)


def heads_of(linear: Linear, heads: int) -> tuple[Tensor, Tensor]:
    """The (H D, P) of a Linear as the (H, P, D) of a parameter, and the parameter that it comes from."""
    weight = matrix(linear)
    return weight.view(heads, -1, weight.shape[-1]).transpose(1, 2), weight


def matrix(linear: Linear) -> Tensor:
    """The (Q, P) of a Linear."""
    if type(linear) is not Linear:
        raise Left(f"one of its matrices is in a {type(linear).__name__}")
    return linear.weight


def started(layer: Any) -> None:
    """Rejects a layer whose sizes are not known yet."""
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in layer.parameters()):
        raise Left("it is lazy: call it once before")


def some_left(dropout: float) -> None:
    """Rejects a dropout of all weights, after which nothing is normalised."""
    if not dropout < 1:
        raise Left(f"dropout={dropout} drops all weights")


def one_fate(*parameters: Tensor | None) -> None:
    """Rejects parameters that are to be one, some of them frozen and some not."""
    if len({p.requires_grad for p in parameters if p is not None}) > 1:
        raise Left("some of its matrices are frozen and some are not")
