"""The base class of bases that are made of other bases."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..basis import Basis, BoundBasis
from ..errors import check_depth
from ..graph import Counts, Graph
from ..kernels.grids import Ints


class Composed(Basis):
    """A basis made of others."""

    keeps_members = False  # True if matrix k is made of matrix k of its part alone
    parts: Sequence[Basis]  # a `ModuleList`, which registers them

    def __init__(self, K: int, *parts: Basis) -> None:
        super().__init__(K)
        self.depth = check_depth("basis", *parts)
        self.parts = torch.nn.ModuleList(parts)  # type: ignore[assignment]
        self.needs_edges = any(part.needs_edges for part in parts)
        self.reads_target = any(part.reads_target for part in parts)
        self.reads_content = any(part.reads_content for part in parts)
        self.reads_types = any(part.reads_types for part in parts)
        self.pools = any(part.pools for part in parts)
        self.binds_unseen = all(part.binds_unseen for part in parts)
        self.counts_batch = any(part.counts_batch for part in parts)
        self.variance_gain = parts[0].variance_gain
        self.axes = next((part.axes for part in parts if part.axes is not None), None)

    @property
    def variance_gains(self) -> Sequence[float]:
        return self.parts[0].variance_gains if self.keeps_members else super().variance_gains

    @property
    def _parts(self) -> Iterable[Basis]:
        """`parts`, without the slow `nn.Module.__getattr__`."""
        return self._modules["parts"]._modules.values()  # type: ignore[union-attr, return-value]

    def complete(self, source: int, target: int, inner: int) -> None:
        for part in self._parts:
            part.complete(source, target, inner)

    def sized(self, M: int | None, N: int | None, batch: Any, grid: Ints | None) -> Counts:
        for part in self._parts:
            M, N = part.sized(M, N, batch, grid)
        return M, N

    def target_shape(self, grid: Ints) -> Ints | None:
        return next((r for part in self.parts if (r := part.target_shape(grid)) is not None), None)

    def reset_parameters(self) -> None:
        for part in self.parts:
            part.reset_parameters()

    def build(self, graph: Graph) -> BoundBasis:
        if graph.content is not None and not self.keeps_members:
            graph = graph.holding(replace(graph.content, members=None))
        return self.join(self.bind_parts(graph))

    def bind_parts(self, graph: Graph) -> list[BoundBasis]:
        """The parts, bound."""
        return [part.on(graph) for part in self._parts]

    def join(self, bound: list[BoundBasis]) -> BoundBasis:
        """The bound basis, made of bound parts."""
        raise NotImplementedError


def real(numbers: Any, dtype: torch.dtype | None = None) -> Tensor | None:
    """Numbers as a dense real tensor; None if they are not."""
    try:
        found = numbers if isinstance(numbers, Tensor) else torch.as_tensor(numbers, dtype=dtype, device="cpu")
    except (OverflowError, TypeError, ValueError, RuntimeError):
        return None
    if found.is_complex() or found.is_meta or found.layout != torch.strided:
        return None
    return found if dtype is None else found.to(dtype)


def operand_repr(part: Any, precedence: int) -> str:
    """The `repr` of an operand: in brackets if its own operator binds less tightly."""
    return repr(part) if part.precedence >= precedence else f"({part!r})"
