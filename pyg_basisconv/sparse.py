"""One sparse matrix, by which all families with written-out edges are evaluated."""

from collections.abc import Callable
from math import prod
from typing import cast

import torch
from torch import Tensor

from .cache import kept
from .kernels import Pattern, spmm
from .kernels.pattern import select

# Applies a sparse matrix to (*, M, W) in another way than by the kernel, such as BasisConv's message passing.
Evaluate = Callable[["Sparse", Tensor], Tensor]


class Sparse:
    """One sparse matrix, M x N: a pattern and (E,) weights in the pattern's order, None for ones."""

    def __init__(
        self, pattern: Pattern, weight: Tensor | None, evaluate: Evaluate | None = None, learns: bool = False
    ) -> None:
        self.pattern, self.weight, self.evaluate = pattern, weight, evaluate
        self.learns = learns or (weight is not None and weight.requires_grad)

    @kept
    def _by_target(self) -> Tensor:
        """The weights sorted by target; of constant weights only, as it is cached."""
        return select(cast(Tensor, self.weight), self.pattern.by_target.order)

    @kept
    def _by_source(self) -> Tensor:
        """The weights sorted by source; of constant weights only."""
        return select(cast(Tensor, self.weight), self.pattern.by_source.order)

    def apply(self, x: Tensor) -> Tensor:
        """A^T x: (*, M, W) -> (*, N, W)."""
        if self.evaluate is not None:
            return self.evaluate(self, x)
        if x.dim() == 2:
            return self._apply(x)
        # The batch is moved beside the width, so that one product evaluates all of it.
        flat = x.movedim(-2, 0)  # (M, *, W)
        y = self._apply(flat.reshape(x.shape[-2], prod(flat.shape[1:])))
        return y.reshape(self.pattern.N, *flat.shape[1:]).movedim(0, -2)  # (*, N, W)

    @kept
    def compressed(self) -> tuple[Tensor | None, Tensor, Tensor]:
        """The constant weights by target, ptr and index: the arguments of `spmm_rows`."""
        ptr, index, _ = self.pattern.by_target
        return None if self.weight is None else self._by_target, ptr, index

    def _apply(self, x: Tensor) -> Tensor:
        if self.weight is None:
            return spmm(x, None, self.pattern)
        if self.learns:  # weights that learned when they were bound may change even if they do not learn now
            return spmm(x, select(self.weight, self.pattern.by_target.order).to(x.dtype), self.pattern)
        needs = torch.is_grad_enabled() and x.requires_grad
        weight, t_weight = self._by_target, self._by_source if needs else None
        if weight.dtype != x.dtype:  # autocast
            weight, t_weight = weight.to(x.dtype), None if t_weight is None else t_weight.to(x.dtype)
        return spmm(x, weight, self.pattern, t_weight)
