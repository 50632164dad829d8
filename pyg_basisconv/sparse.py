"""One sparse matrix: what every evaluation of a family comes down to."""

from collections.abc import Callable
from math import prod
from typing import cast

import torch
from torch import Tensor

from .cache import kept
from .kernels import Pattern, spmm

# Evaluates one sparse matrix on (*, M, W) by other means than the kernel; see BasisConv's message passing.
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
        """The weights in the order of targets, for weights that no gradient reaches."""
        return permute(cast(Tensor, self.weight), self.pattern.by_target.order)

    @kept
    def _by_source(self) -> Tensor:
        """The same in the order of sources."""
        return permute(cast(Tensor, self.weight), self.pattern.by_source.order)

    def apply(self, x: Tensor) -> Tensor:
        """A^T x: (*, M, W) -> (*, N, W)."""
        if x.dim() == 2:
            return self._apply(x) if self.evaluate is None else self.evaluate(self, x)
        if self.evaluate is not None:
            return self.evaluate(self, x)
        # Batches lie side by side in the width: one product for all of them.
        flat = x.movedim(-2, 0)  # (M, *, W)
        y = self._apply(flat.reshape(x.shape[-2], prod(flat.shape[1:])))
        return y.reshape(self.pattern.N, *flat.shape[1:]).movedim(0, -2)  # (*, N, W)

    @kept
    def compressed(self) -> tuple[Tensor | None, Tensor, Tensor]:
        """The fixed weights by target, and where they stand: what `spmm_rows` takes."""
        ptr, index, _ = self.pattern.by_target
        return None if self.weight is None else self._by_target, ptr, index

    def _apply(self, x: Tensor) -> Tensor:
        if self.weight is None:
            return spmm(x, None, self.pattern)
        if self.learns:  # now, or when it was bound: its owner may change it
            return spmm(x, permute(self.weight, self.pattern.by_target.order).to(x.dtype), self.pattern)
        needs = torch.is_grad_enabled() and x.requires_grad
        weight, t_weight = self._by_target, self._by_source if needs else None
        if weight.dtype != x.dtype:  # under autocast
            weight, t_weight = weight.to(x.dtype), None if t_weight is None else t_weight.to(x.dtype)
        return spmm(x, weight, self.pattern, t_weight)


def permute(weight: Tensor, order: Tensor | None) -> Tensor:
    """Weights in an order, None for their own."""
    return weight if order is None else weight.index_select(0, order)
