"""Torch's layers on rows, without a graph or a grid: Linear, and the sums and means of embeddings."""

from typing import Any

import torch
from torch import Tensor, nn

from ..bases import Adjacency, Identity
from ..conv import BasisConv
from ..errors import reject
from ..program import Call
from ..theta import Full, Pass
from .build import META, parameter
from .composite import Composite
from .grids import weight_of
from .layers import repr_as
from .registry import Unchanged, combinations, rule


class ConvertedLinear(BasisConv):
    r"""A `BasisConv` with the call of a `torch.nn.Linear`, which takes (P,) and (\*, P)."""

    def forward(self, input: Tensor) -> Tensor:  # type: ignore[override]
        y: Tensor = self._run(Call(input.unsqueeze(0) if input.dim() == 1 else input), False)
        return y.squeeze(0) if input.dim() == 1 else y

    def __repr__(self) -> str:
        return repr_as(self, BasisConv)


@rule(nn.Linear, "fully connected", [{"in_features": 1}, {"out_features": 1, "bias": False}], alone=True)
def linear(layer: Any) -> nn.Module:
    """One matrix over the identity."""
    weight = weight_of(layer).t()
    with META:
        new = ConvertedLinear(layer.in_features, layer.out_features, Identity(), Full(), bias=False)
    new.theta.weight, new.bias = parameter(weight.unsqueeze(0)), parameter(layer.bias)
    return new


class ConvertedBags(Composite):
    """The rows of a table, along the edges from each to the bags that hold it."""

    kept = ("weight",)

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        if layer.mode == "max":
            raise Unchanged("mode='max' is not linear")
        for name in ("max_norm", "scale_grad_by_freq", "sparse"):
            if getattr(layer, name):
                raise Unchanged(f"{name}={getattr(layer, name)}")
        self.conv = BasisConv(-1, -1, Adjacency("mean" if layer.mode == "mean" else None), Pass(), bias=False)

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        if offsets is None and input.dim() != 2:
            reject("input", "(B, N) indices, or one axis with offsets", tuple(input.shape), "pass offsets")
        if offsets is None:  # a bag in each row
            bags, size = torch.arange(len(input), device=input.device).repeat_interleave(input.shape[1]), len(input)
        else:
            size = len(offsets) - self.include_last_offset
            bags = torch.searchsorted(offsets[:size].contiguous(), torch.arange(len(input)).to(offsets), right=True) - 1
        edges = torch.stack([input.flatten().long(), bags.long()])
        weights = None if per_sample_weights is None else per_sample_weights.flatten()
        if self.padding_idx is not None:
            held = edges[0] != self.padding_idx
            edges, weights = edges[:, held], None if weights is None else weights[held]
        y: Tensor = self.conv((self.weight, None), edges, weights, size=(len(self.weight), size))
        return y


rule(
    nn.EmbeddingBag,
    "bags of embeddings",
    [*combinations(mode=("sum", "mean"), include_last_offset=(False, True)), {"mode": "sum", "padding_idx": 2}]
    + [{"padding_idx": -1}],
    fixed=("scale_grad_by_freq", "sparse"),
    alone=True,
)(ConvertedBags)
