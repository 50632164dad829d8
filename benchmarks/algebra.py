"""Rows of decomposition: the kernel of a convolution, recovered from its operator."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pyg_basisconv import bases
from pyg_basisconv.algebra.decompose import decompose

from .contest import measure
from .result import Bench, Result, Target

PRECISION = 1e-8  # of the recovered kernel, in float64
WITHIN = Target(seconds=2, peak=200_000_000)


def as_layer(conv: nn.Conv2d, side: int) -> tuple[Any, int | None]:
    """The layer itself, which `decompose` converts."""
    return conv, None


def as_function(conv: nn.Conv2d, side: int) -> tuple[Any, int | None]:
    """A function from nodes to nodes, which can only be called."""

    def function(x: Tensor) -> Tensor:
        image = x.transpose(1, 2).unflatten(2, (side, side))
        return torch.conv2d(image, conv.weight, padding=1).flatten(2).transpose(1, 2)

    return function, conv.in_channels


def as_entries(conv: nn.Conv2d, side: int) -> tuple[Any, int | None]:
    """A sparse tensor (M, N, P, Q) of blocks P x Q."""
    window = bases.Window((side, side), 3, padding=1).bind(dtype=conv.weight.dtype).to(conv.weight.device)
    kind, source, target, weight = window.edges()
    blocks = conv.weight.detach().flatten(2).permute(2, 1, 0)[kind] * weight.view(-1, 1, 1)
    index = torch.stack([source, target])
    return torch.sparse_coo_tensor(index, blocks, (side**2, side**2, *blocks.shape[1:])).coalesce(), None


class DecomposeRow(NamedTuple):
    """A convolution 3 x 3, 16 -> 16, on a grid, in the span of the nine shifts of its window."""

    kind: str
    given: Callable[[nn.Conv2d, int], tuple[Any, int | None]]
    target: Target = WITHIN
    devices: tuple[str, ...] = ("cpu", "cuda")

    @property
    def name(self) -> str:
        return f"decompose a convolution 3 x 3, 64 x 64, as {self.kind}"

    def run(self, bench: Bench) -> Result:
        side, P = (8, 4) if bench.quick else (64, 16)
        torch.manual_seed(0)
        conv = nn.Conv2d(P, P, 3, padding=1).double().to(bench.device)
        phi, width = self.given(conv, side)
        bound = bases.Window((side, side), 3, padding=1).bind(dtype=torch.float64).to(torch.device(bench.device))
        found = decompose(phi, bound, width)
        error = float((found.theta - conv.weight.flatten(2).permute(2, 1, 0)).abs().max())
        assert error <= PRECISION, f"{self.name}: the kernel differs by {error:.3g}"
        assert 1 - found.r2 <= PRECISION, f"{self.name}: R2 is {found.r2}"
        return measure(
            None,
            lambda: decompose(phi, bound, width),
            bench,
            work=self.name,
            graph="grid",
            E=(3 * side - 2) ** 2,
            P=P,
            Q=P,
            gradients="none",
            target=self.target,
        )


def decompose_rows() -> list[DecomposeRow]:
    """All forms of an operator but the dense tensor, which would have 4 billion numbers."""
    return [
        DecomposeRow("a layer", as_layer),
        DecomposeRow("a function", as_function),
        DecomposeRow("a sparse tensor", as_entries),
    ]


def algebra_rows() -> list[Any]:
    return [*decompose_rows()]
