"""PyG's explainer masks, one for each type of edges, for an operator on edges of several types."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch_geometric.nn.conv import MessagePassing

from ..conv import BasisConv
from ..errors import reject
from .edges import TypeEdges


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
