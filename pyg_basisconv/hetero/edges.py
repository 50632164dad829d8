"""The edges of several types as typed edges between the concatenated nodes, and explainers' masks of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.nn.conv import MessagePassing

from ..cache import IdentityCache
from ..conv import BasisConv
from ..errors import reject, shape_or_type
from ..kernels.pattern import extremes, in_range
from ..layouts import Ends, Layout, layout
from ..portable import portable

EdgeType = tuple[str, str, str]
_TYPED = IdentityCache()
_WEIGHTS = IdentityCache()
_SIDES = ("source", "target")


class TypeEdges(NamedTuple):
    """The edges of one type.

    name: the type.
    kind: its number.
    edges: as the user gave them.
    weight: (E,), or None for ones.
    M: the number of sources.
    first: the position of the first target among those of all types.
    N: the number of targets.
    """

    name: EdgeType
    kind: int
    edges: Layout
    weight: Tensor | None
    M: int
    first: int
    N: int

    @classmethod
    def of(
        cls, name: EdgeType, kind: int, edge_index: Any, edge_weight: Tensor | None, M: int, first: int, N: int
    ) -> "TypeEdges":
        """Reads edges in any of PyG's layouts."""
        edges, key = layout(edge_index), f"edge_index_dict[{name}]"
        if edges.ends is None:
            reject(key, "edges in one of PyG's layouts", None, "leave the type out where it has no edges")
        for node_type, found, nodes in zip((name[0], name[2]), edges.shape, (M, N), strict=True):
            if found is not None and found != nodes:
                fix = "pass the transposed adjacency, (targets, sources)"
                reject(key, f"a matrix for {nodes} nodes of type {node_type!r}, as in x_dict", found, fix)
        part = cls(name, kind, edges, edges.values if edge_weight is None else edge_weight, M, first, N)
        if edge_weight is not None:
            part._check(edge_weight)
        return part

    def _check(self, edge_weight: Any) -> None:
        key, E = f"edge_weight_dict[{self.name}]", self.ends[0].numel()
        if self.edges.values is not None:
            reject(key, "no weights with a sparse matrix that has values", "both", "give them once")
        if not isinstance(edge_weight, Tensor) or edge_weight.shape != (E,):
            fix = "give as many as there are edges"
            reject(key, f"one weight per edge, shape ({E},)", shape_or_type(edge_weight), fix)
        if not edge_weight.is_floating_point():
            reject(key, "a floating point dtype", edge_weight.dtype, "convert it with .float()")
        if edge_weight.device != self.ends[0].device:
            expected = f"a tensor on {self.ends[0].device}, as the edges"
            reject(key, expected, edge_weight.device, "move one to the other")

    @property
    def ends(self) -> Ends:
        """(E,) the sources and (E,) the targets."""
        assert self.edges.ends is not None
        return self.edges.ends()


def typed_edges(parts: Sequence[TypeEdges]) -> tuple[Tensor, Tensor | None, Tensor]:
    """The edges of all parts, (2, E), their weights, (E,) or None, and their types, (E,).

    They are cached as long as the tensors that they come from live.
    """
    tensors = tuple(t for part in parts for t in part.edges.indices)
    forms = tuple(part.edges.form for part in parts)
    places = tuple((part.name, part.kind, part.M, part.first, part.N) for part in parts)

    def build_weights() -> Tensor:
        dtype, *others = dict.fromkeys(part.weight.dtype for part in parts if part.weight is not None)
        if others:
            fix = "convert one to the other's"
            reject("edge_weight_dict", f"weights of one dtype, such as {dtype}", others[0], fix)
        return torch.cat([torch.ones_like(p.ends[0], dtype=dtype) if p.weight is None else p.weight for p in parts])

    edge_index, edge_type = _TYPED.get(tensors, (places, forms), lambda: _typed_edges(parts))
    given = tuple(part.weight for part in parts)
    edge_weight = given[0]
    if len(parts) > 1 and any(weight is not None for weight in given):
        edge_weight = _WEIGHTS.get((*tensors, *given), forms, build_weights)
    return edge_index, edge_weight, edge_type


def _typed_edges(parts: Sequence[TypeEdges]) -> tuple[Tensor, Tensor]:
    """(2, E) sources and targets, and (E,) types.

    An index that is too large would be a node of another type, and is rejected. Where values cannot be read, it becomes
    negative, so that the layer rejects it.
    """
    unseen = portable() or torch.compiler.is_compiling()
    rows: tuple[list[Tensor], list[Tensor]] = [], []
    for part in parts:
        spans = (0, part.M), (part.first, part.N)
        for row, side, end, (first, count) in zip(rows, _SIDES, part.ends, spans, strict=True):
            if end.dtype not in (torch.int64, torch.int32):
                fix = "convert it with .long()"
                reject(f"edge_index_dict[{part.name}]", "dtype torch.int64 or torch.int32", end.dtype, fix)
            end = end.long()
            if unseen:
                end = torch.where((end >= 0) & (end < count), end, -1 - first)
            elif not in_range(end, count):
                low, high = extremes(end)
                expected, got = f"{side} indices from 0 to {count - 1}", low if low < 0 else high
                reject(f"edge_index_dict[{part.name}]", expected, got, "check the edges, or x_dict")
            row.append(end + first)
    types = [torch.full_like(end, part.kind) for end, part in zip(rows[0], parts, strict=True)]
    return torch.stack([torch.cat(row) for row in rows]), torch.cat(types)


class EdgeMask(MessagePassing):
    """A module on which explainers set the mask of one type of edges; it computes nothing.

    >>> EdgeMask().of(3) is None
    True
    """

    def of(self, E: int) -> Tensor | None:
        """(E,) the mask, or None without an explainer."""
        if not self.explain:
            return None
        mask = self._edge_mask
        if mask is None:
            reject("explain", "a mask, where it is True", None, "call an Explainer, or set explain = None")
        if mask.numel() != E:
            reject("edge_index_dict", f"the {mask.numel()} edges that are explained", E, "pass the same edges")
        return mask.sigmoid() if self._apply_sigmoid else mask

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        """Does nothing: there are no messages to compile."""


def set_mask(masks: Sequence[EdgeMask], parts: Sequence[TypeEdges], conv: BasisConv) -> None:
    """Sets the mask of all edges on a layer, in their order, or removes that of an earlier call."""
    if any(mask.explain for mask in masks):
        counts = [part.ends[0].numel() for part in parts]
        found = [mask.of(E) for mask, E in zip(masks, counts, strict=True)]
        like = next(mask for mask in found if mask is not None)
        whole = torch.cat([like.new_ones(E) if mask is None else mask for mask, E in zip(found, counts, strict=True)])
        conv._parameters.pop("_edge_mask", None)  # PyG's set_masks of a homogeneous model may have registered one
        conv.explain, conv._apply_sigmoid, conv._edge_mask = True, False, whole
    elif conv.explain:
        conv.explain, conv._apply_sigmoid, conv._edge_mask = None, True, None
