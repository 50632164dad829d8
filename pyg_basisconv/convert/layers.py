"""The call of a layer of PyG, and a `BasisConv` that takes it."""

import inspect
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.aggr import MeanAggregation
from torch_geometric.typing import SparseTensor

from ..basis import Basis, BoundBasis
from ..cache import once
from ..content import Inputs
from ..conv import BasisConv
from ..errors import reject, shape_or_type
from ..graph import sizes
from ..plan import Plan
from ..program import Call


@dataclass(frozen=True)
class Signature:
    """How a PyG layer is called.

    Args:
        layer: its name.
        names: of its arguments, in order.
        flow: its direction.
        values: what it does with the values of a `SparseTensor`: 'keep', 'drop', or 'reject' where PyG reads them only
            in some places.
        merge: whether repeated edges of a sparse COO tensor count once, as they do in a mean of PyG's.
    """

    layer: str
    names: tuple[str, ...]
    flow: str = "source_to_target"
    values: str = "keep"
    merge: bool = False
    _alike: int = field(init=False, repr=False)  # how many of the first names are those of BasisConv

    @classmethod
    def of(cls, layer: Any, names: tuple[str, ...] = (), values: str = "keep", merge: bool = False) -> "Signature":
        """The call of a layer, with the names of its `forward`, or others; a layer that takes a mean merges."""
        merge = merge or type(getattr(layer, "aggr_module", None)) is MeanAggregation
        names = names or tuple(inspect.signature(type(layer).forward).parameters)[1:]
        return cls(type(layer).__name__, names, getattr(layer, "flow", "source_to_target"), values, merge)

    def __post_init__(self) -> None:
        pairs = zip(self.names, Call._fields, strict=False)
        alike = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        object.__setattr__(self, "_alike", alike if self.flow == "source_to_target" else 0)

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Those of BasisConv; see `read`."""
        if 2 <= len(args) <= self._alike and not kwargs:  # in the order of BasisConv's own, and taken as they are
            edges = args[1]
            if type(edges) is Tensor and edges.layout is torch.strided:
                return Call(*args)
        return Call(**self.read(args, kwargs))

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name, with x and edge_index as BasisConv takes them."""
        if len(args) > len(self.names):
            raise TypeError(f"{self.layer} takes {len(self.names)} arguments {self.names}, got {len(args)}")
        call = dict(zip(self.names, args, strict=False))
        for name, value in kwargs.items():
            if name in call or name not in self.names:
                fault = "got twice" if name in call else "has no"
                raise TypeError(f"{self.layer} {fault} argument {name!r}, takes {self.names}")
            call[name] = value
        if "x" not in call or "edge_index" not in call:
            name = "edge_index" if "x" in call else "x"
            raise TypeError(f"{self.layer} needs argument {name!r}, takes {self.names}")
        if self.flow != "source_to_target":
            call["x"] = unpaired(call["x"])
        if call.get("size") is not None:
            sizes(call["size"])  # checks it
        edges = call["edge_index"]
        if type(edges) is not Tensor or edges.layout != torch.strided:
            call["edge_index"] = self._graph(edges)
        return call

    def _graph(self, edge_index: Any) -> Any:
        if self.values != "keep" and isinstance(edge_index, SparseTensor) and edge_index.has_value():
            if self.values == "reject":
                fix = "drop them with .set_value(None)"
                reject("edge_index", f"a SparseTensor without values in {self.layer}", "values", fix)
            return edge_index.set_value(None, layout=None)
        if self.merge and isinstance(edge_index, Tensor) and edge_index.layout == torch.sparse_coo:
            return coalesced(edge_index)
        return edge_index


def unpaired(x: Any) -> Any:
    """The features of a layer with flow='target_to_source', which takes no pair, since PyG confuses its parts."""
    source, target = parts_of(x)
    if source is not target:
        fix = "turn edge_index round with .flip(0) and convert the layer with the default flow"
        reject("x", "one tensor with flow='target_to_source'", "a pair", fix)
    return source


def pair(x: Any) -> tuple[Tensor, Tensor | None]:
    """Features of sources and targets."""
    source, target = parts_of(x)
    if not isinstance(source, Tensor) or source.dim() < 2:
        reject("x", "features (*, M, P) of the sources", shape_or_type(source), "pass x, or (x_src, x_dst)")
    return source, target


def parts_of(x: Any) -> tuple[Any, Any]:
    """What x has for the sources, and for the targets."""
    if isinstance(x, tuple | list):
        if len(x) != 2:
            reject("x", "a tensor or a pair (x_src, x_dst)", f"{len(x)} parts", "pass two")
        return x[0], x[1]
    return x, x


def both(x: Any, layer: str) -> tuple[Tensor, Tensor]:
    """Features of sources and targets, for a layer that reads both."""
    source, target = pair(x)
    if target is None:
        reject("x", f"features of the targets, which {layer} reads", None, "pass x=(x_src, x_dst)")
    return source, target


def coalesced(matrix: Tensor) -> Tensor:
    """A sparse COO matrix whose repeated entries are added, once for a matrix."""
    return matrix if matrix.is_coalesced() else _coalesce(matrix)


_coalesce = once(lambda matrix: matrix.coalesce())


class PrintsAsBase:
    """A layer that prints under the name of its base class of the package, so that it can be typed."""

    def __repr__(self) -> str:
        kind = next(one for one in type(self).__mro__ if not one.__module__.startswith(__package__))
        return super().__repr__().replace(type(self).__name__, kind.__name__, 1)


class Converted(PrintsAsBase, BasisConv):
    """A `BasisConv` that takes the call of the PyG layer it replaces.

    Args:
        call: that call.
        *args: of BasisConv.
        others: the bases for graphs that PyG reads differently: 'sparse' for `torch.sparse` layouts, 'sparse_tensor'
            for a `torch_sparse.SparseTensor`, 'bare' for others without weights.
        messages: PyG's order of evaluation, so that hooks on messages see the same messages as in PyG.
        **kwargs: of BasisConv.
    """

    def __init__(
        self, call: Signature, *args: Any, others: dict[str, Basis] | None = None, messages: str = "auto", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.call, self.messages = call, messages
        self.others = others or {}  # they hold no tensors, and need no registration

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._run(self.call.arguments(args, kwargs), False)

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan of a call; takes what the PyG layer takes."""
        return super().plan(*self.call.arguments(args, kwargs))

    def _choose(self, inputs: Inputs, family: BoundBasis, order: str | None = None) -> Plan:
        messages = not self._fused and self.order == "auto"
        return super()._choose(inputs, family, self.messages if messages else order)

    def _basis_for(self, call: Call) -> Basis:
        own: Any = self._modules["basis"]
        return self.others.get(_graph_form(call.edge_index, call.edge_weight), own) if self.others else own


def _graph_form(edge_index: Any, edge_weight: Tensor | None) -> str:
    """How PyG reads a graph, see `Converted`."""
    if isinstance(edge_index, SparseTensor):
        return "sparse_tensor"
    if isinstance(edge_index, Tensor) and edge_index.layout != torch.strided:
        return "sparse"
    return "bare" if edge_weight is None and isinstance(edge_index, Tensor) else ""
