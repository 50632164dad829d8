"""Binds a call: checks its arguments, and returns the features and the family that is applied to them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .basis import Basis, BoundBasis, check_types
from .cache import Place, Witness
from .content import Content, Inputs
from .errors import reject
from .features import check_bound, check_like, num_rows, read_features
from .graph import Graph, grid_shape, sizes
from .kernels.op import autocasting
from .layouts import layout
from .program import Call, reads_in_each_call
from .reading import read_edges, read_graph
from .theta import Theta

Reader = Callable[[Any], Tensor]  # from the x of a call to the rows that the family reads


class Binding(NamedTuple):
    """A call, bound.

    inputs: the features, with the parameter that multiplies them; family: reads the features; graph: the one that the
    family is bound to, without content, None for a family that was bound before; reads: takes the features from the x
    of a call.
    """

    inputs: Inputs
    family: BoundBasis
    graph: Graph | None
    reads: Reader


def whole(x: Tensor) -> Tensor:
    """One tensor for sources and targets."""
    return x


def sources(x: tuple[Tensor, Tensor | None]) -> Tensor:
    """The sources' features alone: nothing reads those of the targets, or the first sources are the targets."""
    return x[0]


def both(x: tuple[Tensor, Tensor]) -> Tensor:
    """The sources' features, followed by those of the targets."""
    return torch.cat([x[0], x[1]], -2)


def bind(layer: Any, basis: Basis, call: Call, observed: bool = False, seen: Witness | None = None) -> Binding:
    """Checks a call, and binds a basis to it: the layer's own, or one without content that replaces it in this call.

    observed: whether the caller wants the weights that are computed from content; seen: a witness of the tensors that
    the basis is bound to, if there is one.
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
    features, M, N, target_row = read_features(x, M, N, edges.shape[1], theta, basis.reads_target)
    reads: Reader = whole if features is x else sources if features is x[0] else both
    if layer.in_channels == -1:
        layer.in_channels = theta.P  # found in this call
    if theta.reference is None and basis.reads_content:
        own = next(basis.parameters(), None)
        if own is not None:
            check_like(features, own)
    if given:
        asked = N if pair and x[1] is not None else sizes(call.size)[1]
        _check_bound_call(call)
        check_bound(edge_index, basis, features, asked)
        family = basis.accept(edge_index)
        family = family.masked(layer.masked) if layer.explain else family
        return _with_constants(layer, Binding(Inputs(features, theta), family, None, reads))
    if edge_index is None and basis.needs_edges:
        reject("edge_index", f"the edges that {basis} needs", None, "pass edge_index, or a bound basis")
    if edge_index is not None and not basis.takes_edges:
        fix = "attend along edges by mask=bases.Adjacency(), or leave edge_index out"
        reject("edge_index", f"None, for {basis}, which takes its pairs from elsewhere", type(edge_index).__name__, fix)
    check_types(basis, call.edge_type)
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
        in_each_call=reads_in_each_call(modules["basis"], call.edge_weight),
    )
    for name in ("edge_attr",) if basis.reads_content else ("edge_attr", "mask", "valid"):
        value = getattr(call, name)
        if value is not None and not basis.reads_edges and call.edge_values is None:
            fix = "no part of this basis reads it"
            if name == "edge_attr" and basis.has_custom:
                fix += "; a basis of your own that does is a subclass of bases.EdgeFunctions"
            elif name == "edge_attr" and basis.reads_content:
                fix += ": give its mechanism edge_dim=, if it has one, or add mechanisms.Edge(R)"
            reject(name, f"None, for {basis}", type(value).__name__, fix)
    inputs = Inputs(features, theta)
    content = content_of(layer, call, graph, inputs, observed) if basis.reads_content else None
    family = basis.on(layer.masked(graph if content is None else graph.holding(content)))
    if call.edge_values is not None:
        _check_edge_values(call, family, inputs.theta)
    if features.shape[-2] != family.M:
        reject(
            "basis",
            f"matrices with the {features.shape[-2]} rows of x",
            f"{family.M} x {family.N}, of {basis}",
            "turn the edges round instead of the basis, for a graph with M != N",
        )
    return _with_constants(layer, Binding(inputs, family, graph, reads))


def read_alike(layer: Any, basis: Basis, call: Call, where: Place, seen: Witness | None) -> tuple[Graph, Reader] | None:
    """The graph of a call whose other arguments are like those of a checked call, and how x is read; None if the call
    has to be bound like a first one.

    where: the place of the edges.
    """
    x, (M, N) = call.x, (None, None) if call.size is None else sizes(call.size)
    pair = isinstance(x, tuple | list)
    source = x[0] if pair else x
    rows = source.shape[-2]
    M, N = basis.sized(rows if M is None else M, N, None, None)
    target_row: int | None = 0
    if pair or rows != M or N not in (None, rows):
        features, M, N, target_row = read_features(x, M, N, None, layer._modules["theta"], basis.reads_target)
        if features is not source:
            return None
    N, of_sources, dtype, device = rows if N is None else N, rows if pair else None, source.dtype, source.device
    edges, weight, kind = call[1:4]
    graph = None
    if weight is None and kind is None and M is not None and layer.flow == "source_to_target":
        graph = read_edges(where, edges, M, N, dtype, device, target_row, of_sources, seen)
    if graph is None:
        graph = read_graph(
            edges,
            weight,
            kind,
            size=(M, N),
            dtype=dtype,
            device=device,
            target_row=target_row,
            sources=of_sources,
            flow=layer.flow,
            seen=seen,
            in_each_call=reads_in_each_call(layer._modules["basis"], weight),
        )
    return graph, sources if pair else whole


def _with_constants(layer: Any, bound: Binding) -> Binding:
    """Checks that a parameter with constants has a family that gives their weights."""
    theta = bound.inputs.theta
    if theta.has_constants and bound.family.constant_weights is None:
        fix = "give the parameter of two layers the basis that compose gave with it"
        reject("theta", f"one without constants, for {layer.basis}", theta, fix)
    return bound


def content_of(layer: Any, call: Call, graph: Graph, inputs: Inputs, observed: bool = False) -> Content:
    """The content of a call, from which weights are computed."""
    x, basis = call.x, layer._modules["basis"]
    square = graph.M == graph.N and not basis.pools
    target = x[1] if isinstance(x, tuple | list) else inputs.x if square else None
    if target is not None and layer.target_channels not in (-1, target.shape[-1]):
        fix = "pass x=(x_src, x_dst), and in_channels=(P, P') where they differ"
        reject("x[1]", f"{layer.target_channels} channels of the targets", target.shape[-1], fix)
    E, asks_edges = graph.source.numel(), layer.numbers_edges
    about = call.edge_attr, call.mask, call.valid, observed, E, asks_edges
    return Content(inputs, target, *about, edge_values=call.edge_values)


def _check_edge_values(call: Call, family: BoundBasis, theta: Theta) -> None:
    """Rejects values of edges that cannot be added to those of their sources."""
    values, z = call.edge_values, call.edge_attr
    if not family.takes_edge_values:
        reject(
            "edge_values", "None, for a basis that is not bases.Attention", values, "give an attention its own layer"
        )
    if not isinstance(z, Tensor) or z.dim() != 2:
        got = tuple(z.shape) if isinstance(z, Tensor) else z
        reject("edge_attr", "features (E, R) of the edges, whose values are added", got, "pass them, or no edge_values")
    if not (isinstance(values, Theta) and theta.takes_edge_values(values)):
        expected = f"theta.Heads of {theta.K} members that are combined as those of {theta}, without a bias"
        reject("edge_values", expected, values, f"make it with theta.Heads().build({theta.K}, R, {theta.Q})")
    if z.shape[1] != values.P:
        reject("edge_attr", f"{values.P} features, for edge_values", z.shape[1], "build edge_values for their width")


def _check_bound_call(call: Call) -> None:
    """Rejects arguments that a bound family does not read."""
    names = "edge_weight", "edge_type", "batch", "lambda_max", "edge_attr", "mask", "valid", "grid", "edge_values"
    for name in names:
        value = getattr(call, name)
        if value is not None:
            got = tuple(value.shape) if isinstance(value, Tensor) else value
            reject(name, "None with a bound basis", got, "bind the basis with it instead")
