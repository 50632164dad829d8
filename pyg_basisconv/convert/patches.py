"""Torch's layers that move the taps of a window to channels, and back."""

from typing import Any

from torch import Tensor, nn

from ..bases import Window
from ..errors import reject
from ..theta import Pass
from .grids import ConvertedGrid, axes, transposed_window
from .registry import Left, Options, rule

_WINDOWS: list[Options] = [
    *({"kernel_size": 3} | more for more in ({"padding": 1}, {"stride": 2}, {"dilation": 2})),
    {"kernel_size": (2, 1), "stride": (1, 2), "padding": (1, 0), "dilation": (3, 1)},
]


class ConvertedUnfold(ConvertedGrid):
    """A `GridConv` with the call and the result of a `torch.nn.Unfold`, which has the grid in one axis."""

    def forward(self, input: Tensor) -> Tensor:  # type: ignore[override]
        return by_channel(self._images(input).flatten(-2), -2, self.basis.K)


@rule(nn.Unfold, "patches", _WINDOWS)
def unfold(layer: Any) -> nn.Module:
    """A window whose taps are concatenated."""
    return ConvertedUnfold(-1, -1, Window(None, **window_of(layer)), Pass(combine="concat"), bias=False)


class ConvertedFold(ConvertedGrid):
    """A `GridConv` with the call of a `torch.nn.Fold`, for patches from a grid of a given shape."""

    def __init__(self, grid: tuple[int, ...], window: Window) -> None:
        super().__init__(-1, -1, window, Pass(combine="split"), bias=False)
        self.grid = grid

    def forward(self, input: Tensor) -> Tensor:  # type: ignore[override]
        if input.shape[-1] != self.grid[0] * self.grid[1]:
            reject("input", f"{self.grid[0]} x {self.grid[1]} patches", input.shape[-1], "correct it, or output_size")
        return self._images(by_tap(input, -2, self.basis.K).unflatten(-1, self.grid))


@rule(nn.Fold, "sums of patches", [{"output_size": 8}, *_WINDOWS], given={"output_size": (6, 7)}, alone=True)
def fold(layer: Any) -> nn.Module:
    """A transposed window whose taps read channels of their own."""
    window, size = window_of(layer), axes(layer.output_size, 2)
    free = [n + 2 * p - d * (k - 1) - 1 for n, k, _, p, d in zip(size, *window.values(), strict=True)]
    if min(free) < 0:
        raise Left(f"kernel_size={layer.kernel_size} does not fit output_size={layer.output_size}")
    steps, more = zip(*map(divmod, free, window["stride"]), strict=True)
    return ConvertedFold(tuple(n + 1 for n in steps), transposed_window(*window.values(), more))


class ConvertedPixelUnshuffle(ConvertedGrid):
    """A `GridConv` with the call and the result of a `torch.nn.PixelUnshuffle`."""

    def forward(self, input: Tensor) -> Tensor:  # type: ignore[override]
        return by_channel(self._images(input), -3, self.basis.K)


@rule(nn.PixelUnshuffle, "pixels to channels", [{"downscale_factor": 1}], alone=True)
def unshuffle(layer: Any) -> nn.Module:
    """Windows that do not overlap, whose taps are concatenated."""
    window = Window(None, (layer.downscale_factor,) * 2, layer.downscale_factor)
    return ConvertedPixelUnshuffle(-1, -1, window, Pass(combine="concat"), bias=False)


class ConvertedPixelShuffle(ConvertedGrid):
    """A `GridConv` with the call of a `torch.nn.PixelShuffle`."""

    def forward(self, input: Tensor) -> Tensor:  # type: ignore[override]
        return self._images(by_tap(input, -3, self.basis.K))


@rule(nn.PixelShuffle, "channels to pixels", [{"upscale_factor": 1}], alone=True)
def shuffle(layer: Any) -> nn.Module:
    """Transposed windows that do not overlap, whose taps read channels of their own."""
    window = Window(None, (layer.upscale_factor,) * 2, layer.upscale_factor, transposed=True)
    return ConvertedPixelShuffle(-1, -1, window, Pass(combine="split"), bias=False)


def window_of(layer: Any) -> dict[str, Any]:
    """The sizes of a layer's window, for each of two axes."""
    return {name: axes(getattr(layer, name), 2) for name in ("kernel_size", "stride", "padding", "dilation")}


def by_channel(y: Tensor, axis: int, taps: int) -> Tensor:
    """The channels of each tap side by side as the taps of each channel, as torch has them."""
    return y.unflatten(axis, (taps, -1)).transpose(axis - 1, axis).flatten(axis - 1, axis)


def by_tap(x: Tensor, axis: int, taps: int) -> Tensor:
    """The reverse of `by_channel`."""
    if x.shape[axis] % taps:
        reject("input", f"a multiple of {taps} channels, one for each tap", x.shape[axis], "correct it")
    return x.unflatten(axis, (-1, taps)).transpose(axis - 1, axis).flatten(axis - 1, axis)
