"""From the arguments of a call to features and the family that reads them: all that is checked at the door."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .basis import Basis, BoundBasis
from .cache import Witness
from .content import Content, Inputs
from .errors import reject
from .features import check_bound, check_like, num_rows, read
from .graph import Graph, grid_shape, sizes
from .kernels.op import autocasting
from .layouts import layout
from .program import Call
from .reading import read_graph
from .theta import Theta

Reader = Callable[[Any], Tensor]  # from what the user calls x to the rows that the family reads


class Layer(Protocol):
    """What is read of a layer; see `BasisConv`."""

    basis: Basis
    theta: Theta
    _modules: dict[str, Any]  # which has these, without the detour by `nn.Module.__getattr__`
    in_channels: int | tuple[int, int]
    target_channels: int
    flow: str
    explain: Any
    takes_pairs: bool
    takes_sources: bool

    @property
    def numbers_edges(self) -> bool:
        """Whether what is computed from content is to say which edges its weights are of."""
        ...

    def masked(self, graph: Graph) -> Graph:
        """The graph with the masks of an explainer."""
        ...


class Binding(NamedTuple):
    """What a call comes to.

    Args:
        inputs: the features, with the parameter that they meet.
        family: that reads them.
        graph: that it was bound to, without content; None where it was bound before.
        reads: takes such features from the x of a call.
    """

    inputs: Inputs
    family: BoundBasis
    graph: Graph | None
    reads: Reader


def whole(x: Tensor) -> Tensor:
    """One tensor for sources and targets."""
    return x


def sources(x: tuple[Tensor, Tensor | None]) -> Tensor:
    """The sources' features, where nothing reads the targets' own, or these are the first of them."""
    return x[0]


def both(x: tuple[Tensor, Tensor]) -> Tensor:
    """The sources' features above, and the targets' own below."""
    return torch.cat([x[0], x[1]], -2)


def bind(layer: Layer, basis: Basis, call: Call, observed: bool = False, seen: Witness | None = None) -> Binding:
    """Checks a call, and binds a basis to it.

    Args:
        layer: whose call it is.
        basis: the layer's own, or one that stands for it in this call, without content.
        call: its arguments.
        observed: whether weights that are computed from content are to be looked at.
        seen: a witness of the tensors that the basis is bound to, where there is one.

    Raises:
        ValueError: whatever does not fit, with the argument, what was expected, what came, and the fix.
    """
    modules, x, edge_index = layer._modules, call.x, call.edge_index
    theta: Theta = modules["theta"]
    given, pair = isinstance(edge_index, BoundBasis), isinstance(x, tuple | list) and len(x) == 2
    if not layer.takes_pairs and pair and not (x[1] is None and layer.takes_sources):
        fix = "apply the two layers, each to its own pair"
        reject("x", "one tensor, for two layers in one", "a pair", fix)
    edges, shape = layout(None if given else edge_index, layer.flow), grid_shape(call.grid)
    M, N = sizes(call.size)
    if not given:
        M, N = basis.sized(num_rows(x) if M is None else M, N, call.batch, shape)
    features, M, N, target_row = read(x, M, N, edges.shape[1], theta, basis.reads_target)
    reads: Reader = whole if features is x else sources if features is x[0] else both
    if layer.in_channels == -1:
        layer.in_channels = theta.P  # found in this call
    if theta.reference is None and basis.reads_content:
        own = next(basis.parameters(), None)
        if own is not None:
            check_like(features, own)
    if given:
        asked = N if pair and x[1] is not None else sizes(call.size)[1]
        _alone(call)
        check_bound(edge_index, basis, features, asked)
        family = basis.accept(edge_index)
        family = family.masked(layer.masked) if layer.explain else family
        return _with_constants(layer, Binding(Inputs(features, theta), family, None, reads))
    if edge_index is None and basis.needs_edges:
        reject("edge_index", f"the edges that {basis} needs", None, "pass edge_index, or a bound basis")
    dtype, weight = features.dtype, edges.values if call.edge_weight is None else call.edge_weight
    if weight is not None and autocasting(features.device):
        dtype = weight.dtype
    graph = read_graph(
        edges,
        call.edge_weight,
        call.edge_type,
        size=(M, N),
        dtype=dtype,
        device=features.device,
        batch=call.batch,
        lambda_max=call.lambda_max,
        target_row=target_row,
        sources=x[0].shape[-2] if isinstance(x, tuple | list) else None,
        grid=shape,
        seen=seen,
    )
    for name in ("edge_attr",) if basis.reads_content else ("edge_attr", "mask", "valid"):
        value = getattr(call, name)
        if value is not None and not basis.reads_edges:
            reject(name, f"None, for {basis}", type(value).__name__, "no part of this basis reads it")
    bound = _on_graph(layer, basis, call, graph, Inputs(features, theta), reads, observed)
    family = bound.family
    if features.shape[-2] != family.M:
        reject(
            "basis",
            f"matrices with the {features.shape[-2]} rows of x",
            f"{family.M} x {family.N}, of {basis}",
            "turn the edges round instead of the basis, for a graph with M != N",
        )
    return _with_constants(layer, bound)


def _with_constants(layer: Layer, bound: Binding) -> Binding:
    """The same, where the parameter has constants only beside a family that says what becomes of them."""
    theta = bound.inputs.theta
    if theta.has_constants and bound.family.constant_weights is None:
        fix = "give the parameter of two layers the basis that compose gave with it"
        reject("theta", f"one without constants, for {layer.basis}", theta, fix)
    return bound


def bind_content(layer: Layer, call: Call, graph: Graph, reads: Reader, observed: bool = False) -> Binding:
    """Binds the basis to a graph that was checked, and to the content of a call where it is computed from that."""
    modules = layer._modules
    inputs = Inputs(reads(call.x), modules["theta"])
    return _on_graph(layer, modules["basis"], call, graph, inputs, reads, observed)


def _on_graph(
    layer: Layer, basis: Basis, call: Call, graph: Graph, inputs: Inputs, reads: Reader, observed: bool
) -> Binding:
    read = graph
    if basis.reads_content:
        read = graph.holding(content_of(layer, call, graph, inputs, observed))
    return Binding(inputs, basis.on(layer.masked(read)), graph, reads)


def content_of(layer: Layer, call: Call, graph: Graph, inputs: Inputs, observed: bool = False) -> Content:
    """What the weights of a call are computed from."""
    x, basis = call.x, layer._modules["basis"]
    square = graph.M == graph.N and not basis.pools
    target = x[1] if isinstance(x, tuple | list) else inputs.x if square else None
    if target is not None and layer.target_channels not in (-1, target.shape[-1]):
        fix = "pass x=(x_src, x_dst), and in_channels=(P, P') where they differ"
        reject("x[1]", f"{layer.target_channels} channels of the targets", target.shape[-1], fix)
    E, asks_edges = graph.source.numel(), layer.numbers_edges
    return Content(inputs, target, call.edge_attr, call.mask, call.valid, observed, E, asks_edges)


def _alone(call: Call) -> None:
    """Rejects what a family that is bound already does not read."""
    for name in ("edge_weight", "edge_type", "batch", "lambda_max", "edge_attr", "mask", "valid", "grid"):
        value = getattr(call, name)
        if value is not None:
            got = tuple(value.shape) if isinstance(value, Tensor) else value
            reject(name, "None beside a bound basis", got, "bind the basis with it instead")
