"""What PyG's explainers set for the edges of each type, for an operator that has the edges of several types."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch_geometric.nn.conv import MessagePassing

from ..conv import BasisConv
from ..errors import reject
from .edges import TypeEdges


class EdgeMask(MessagePassing):
    """Where an explainer sets the mask of the edges of one type; it is a layer for it, and computes nothing.

    >>> EdgeMask().of(3) is None
    True
    """

    def of(self, E: int) -> Tensor | None:
        """(E,) the mask, where an explainer has set one."""
        if not self.explain:
            return None
        mask = self._edge_mask
        if mask is None:
            reject("explain", "a mask, where it is True", None, "call an Explainer, or set explain = None")
        if mask.numel() != E:
            reject("edge_index_dict", f"the {mask.numel()} edges that are explained", E, "pass the same edges")
        return mask.sigmoid() if self._apply_sigmoid else mask

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        """There is nothing to compile."""


def lend(masks: Sequence[EdgeMask], parts: Sequence[TypeEdges], conv: BasisConv) -> None:
    """Gives a layer the masks of all edges, in their order, or takes those of an earlier call from it."""
    if any(mask.explain for mask in masks):
        counts = [part.ends[0].numel() for part in parts]
        found = [mask.of(E) for mask, E in zip(masks, counts, strict=True)]
        like = next(mask for mask in found if mask is not None)
        whole = torch.cat([like.new_ones(E) if mask is None else mask for mask, E in zip(found, counts, strict=True)])
        conv._parameters.pop("_edge_mask", None)  # where PyG's set_masks, of a model of one type, has put one
        conv.explain, conv._apply_sigmoid, conv._edge_mask = True, False, whole
    elif conv.explain:
        conv.explain, conv._apply_sigmoid, conv._edge_mask = None, True, None
