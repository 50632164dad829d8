"""The propagation of labels, by which other layers correct and smooth what they predict."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.nn import LabelPropagation
from torch_geometric.typing import SparseTensor

from ..bases import Adjacency
from .build import basis_conv
from .composite import Composite
from .layers import Signature
from .polynomials import polynomial
from .registry import rule


@rule(LabelPropagation, "labels, propagated", [{"num_layers": 3, "alpha": 0.7}, {"num_layers": 0}])
class ConvertedLabelPropagation(Composite):
    r"""Steps :math:`\alpha A^\top y + (1 - \alpha) y_0`, each followed by a function; without gradients, as PyG's.

    Weights of edges that are given are taken as they are. Others are normalised in the dtype of y; PyG does so in
    torch's default dtype.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        call = Signature.of(layer, ("x", "edge_index", "edge_weight"))
        self.conv, self.weighted = polynomial(layer, [], call=call), basis_conv(layer, [], Adjacency(), call=call)

    @torch.no_grad()
    def forward(
        self,
        y: Tensor,
        edge_index: Any,
        mask: Tensor | None = None,
        edge_weight: Tensor | None = None,
        post_step: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        if y.dtype == torch.long and y.shape[0] == y.numel():
            y = F.one_hot(y.view(-1)).to(torch.get_default_dtype())
        if mask is not None:
            known, y = y, torch.zeros_like(y)
            y[mask] = known[mask]
        held = isinstance(edge_index, SparseTensor) and edge_index.has_value()
        conv = self.weighted if held or (edge_weight is not None and isinstance(edge_index, Tensor)) else self.conv
        given, start = (edge_index, edge_weight), (1 - self.alpha) * y
        for _ in range(self.num_layers):
            y = torch.add(start, conv(y, *given), alpha=self.alpha)
            y = y.clamp_(0.0, 1.0) if post_step is None else post_step(y)
        return y
