"""Torch's layers that move the taps of a window to channels, and back."""

import math
from typing import Any

from torch import Tensor, nn

from ..bases import Window
from ..errors import reject
from ..theta import Pass
from .grids import ConvertedGrid, axes, transposed_window
from .registry import Options, Unchanged, rule

_WINDOWS: list[Options] = [
    *({"kernel_size": 3} | more for more in ({"padding": 1}, {"stride": 2}, {"dilation": 2})),
    {"kernel_size": (2, 1), "stride": (1, 2), "padding": (1, 0), "dilation": (3, 1)},
]


class ToChannels(ConvertedGrid):
    """A `GridConv` whose taps become channels, as torch orders them.

    Args:
        window: of the taps.
        flat: whether the result has the grid in one axis.
    """

    def __init__(self, window: Window, flat: bool = False) -> None:
        super().__init__(-1, -1, window, Pass(combine="concat"), bias=False)
        self.flat = flat

    def forward(self, input: Tensor) -> Tensor:  # type: ignore[override]
        y = self._images(input).unflatten(-3, (self.basis.K, -1)).transpose(-4, -3).flatten(-4, -3)
        return y.flatten(-2) if self.flat else y


class FromChannels(ConvertedGrid):
    """A `GridConv` whose taps read channels of their own, in torch's order.

    Args:
        window: of the taps.
        grid: the shape of a grid that the input has in one axis.
    """

    def __init__(self, window: Window, grid: tuple[int, ...] | None = None) -> None:
        super().__init__(-1, -1, window, Pass(combine="split"), bias=False)
        self.grid = grid

    def forward(self, input: Tensor) -> Tensor:  # type: ignore[override]
        taps, grid = self.basis.K, self.grid
        axis = -3 if grid is None else -2
        if grid is not None and input.shape[-1] != math.prod(grid):
            reject("input", f"{grid[0]} x {grid[1]} patches", input.shape[-1], "correct it, or output_size")
        if input.shape[axis] % taps:
            reject("input", f"a multiple of {taps} channels, one for each tap", input.shape[axis], "correct it")
        x = input if grid is None else input.unflatten(-1, grid)
        return self._images(x.unflatten(-3, (-1, taps)).transpose(-4, -3).flatten(-4, -3))


@rule(nn.Unfold, "patches", _WINDOWS)
def unfold(layer: Any) -> nn.Module:
    """A window whose taps are concatenated."""
    return ToChannels(Window(None, **window_of(layer)), flat=True)


@rule(nn.Fold, "sums of patches", [{"output_size": 8}, *_WINDOWS], given={"output_size": (6, 7)}, alone=True)
def fold(layer: Any) -> nn.Module:
    """A transposed window whose taps read channels of their own."""
    window, size = window_of(layer), axes(layer.output_size, 2)
    free = [n + 2 * p - d * (k - 1) - 1 for n, k, _, p, d in zip(size, *window.values(), strict=True)]
    if min(free) < 0:
        raise Unchanged(f"kernel_size={layer.kernel_size} does not fit output_size={layer.output_size}")
    steps, more = zip(*map(divmod, free, window["stride"]), strict=True)
    return FromChannels(transposed_window(*window.values(), more), tuple(n + 1 for n in steps))


@rule(nn.PixelUnshuffle, "pixels to channels", [{"downscale_factor": 1}], alone=True)
def unshuffle(layer: Any) -> nn.Module:
    """Windows that do not overlap, whose taps are concatenated."""
    return ToChannels(Window(None, (layer.downscale_factor,) * 2, layer.downscale_factor))


@rule(nn.PixelShuffle, "channels to pixels", [{"upscale_factor": 1}], alone=True)
def shuffle(layer: Any) -> nn.Module:
    """Transposed windows that do not overlap, whose taps read channels of their own."""
    return FromChannels(Window(None, (layer.upscale_factor,) * 2, layer.upscale_factor, transposed=True))


def window_of(layer: Any) -> dict[str, Any]:
    """The sizes of a layer's window, for each of two axes."""
    return {name: axes(getattr(layer, name), 2) for name in ("kernel_size", "stride", "padding", "dilation")}
