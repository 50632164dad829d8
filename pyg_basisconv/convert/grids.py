"""Torch's own layers on grids: convolutions, also transposed, average pooling, upsampling, and patches."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from ..bases import Resampling, Window
from ..bases.bound_grid import Norm
from ..basis import BoundBasis
from ..errors import reject
from ..grid import GridConv, last_format
from ..kernels.grids import Ints
from ..program import Call
from ..theta import Kernel, Pass
from .build import META, check_parameters, parameter
from .composite import Composite
from .layers import PrintsAsBase
from .registry import Options, Unchanged, combinations, rule


class ConvertedGrid(PrintsAsBase, GridConv):
    """A `GridConv` that takes the call of the layer of torch that it replaces."""

    basis: Window
    # The format of the kernel, which torch's layers give their results, whatever that of the input.
    memory_format: torch.memory_format | None = None

    def forward(self, input: Tensor, bound: BoundBasis | None = None) -> Tensor:  # type: ignore[override]
        r"""Applies the layer to images (B, P, \*grid) or (P, \*grid); with another basis, bound."""
        if self.memory_format is None or torch._C._are_functorch_transforms_active():
            return self._images(input, bound)
        single = input.dim() == len(self.basis.kernel_size) + 1
        image = (input.unsqueeze(0) if single else input).contiguous(memory_format=self.memory_format)
        y = self._images(image.squeeze(0) if single else image, bound)
        # An image of one channel has both formats; torch's kernels then return the plain one.
        return y.contiguous(memory_format=self.memory_format) if image.shape[1] == 1 and not single else y

    def _images(self, image: Tensor, bound: BoundBasis | None = None) -> Tensor:
        return self._run(Call(image, bound, image=True), False)


class ConvertedTransposed(ConvertedGrid):
    """A `GridConv` that takes the call of a `torch.nn.ConvTranspose2d`, or one with another number of axes."""

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:  # type: ignore[override]
        r"""Applies the layer to images (B, P, \*grid) or (P, \*grid).

        Args:
            input: the images.
            output_size: of the grid of the result, or of the whole result; where a stride leaves several.
        """
        if output_size is None:
            return super().forward(input)
        window = self._reaching(input.shape, list(output_size))
        grid = tuple(map(int, input.shape[-len(window.kernel_size) :]))
        return super().forward(input, window.on_grid(grid, input.dtype, input.device))

    def _reaching(self, shape: torch.Size, size: list[int]) -> Window:
        """The window with the output padding for an output size."""
        window: Any = self.basis  # its padding is in numbers
        n = len(window.kernel_size)
        asked = size[-n:] if len(size) in (n, len(shape)) else []
        axes = zip(shape[-n:], window.kernel_size, window.stride, window.padding, window.dilation, strict=True)
        least = [(m - 1) * s - 2 * p + d * (k - 1) + 1 for m, k, s, p, d in axes]
        more = tuple(a - b for a, b in zip(asked, least, strict=False))
        if not asked or not all(0 <= o < s for o, s in zip(more, window.stride, strict=True)):
            most = [b + s - 1 for b, s in zip(least, window.stride, strict=True)]
            reject("output_size", f"a size from {least} to {most}", size, "the stride leaves no other")
        return transposed_window(window.kernel_size, window.stride, window.padding, window.dilation, more)


def convolution(layer: Any) -> nn.Module:
    """A window with a matrix for each tap."""
    kernel = weight_of(layer)
    n = kernel.dim() - 2
    padding: Any = layer.padding if isinstance(layer.padding, str) else axes(layer.padding, n)
    if layer.padding_mode != "zeros" and not isinstance(padding, str):
        around = [p for p in reversed(padding) for _ in range(2)]
        if list(layer._reversed_padding_repeated_twice) != around:
            raise Unchanged("its padding was changed after it was made")
    size = tuple(kernel.shape[2:])
    stride, dilation = axes(layer.stride, n), axes(layer.dilation, n)
    window = Window(None, size, stride, padding, dilation, layer.padding_mode)
    return with_kernel(ConvertedGrid, window, Kernel(size, layer.groups), layer)


def transposed(layer: Any) -> nn.Module:
    """A transposed window."""
    kernel = weight_of(layer)
    size = tuple(kernel.shape[2:])
    options = (layer.stride, layer.padding, layer.dilation, layer.output_padding)
    window = transposed_window(size, *(axes(value, len(size)) for value in options))
    return with_kernel(ConvertedTransposed, window, Kernel(size, layer.groups, transposed=True), layer)


def dimension(layer: Any) -> int:
    """The number of axes of a layer's grid, which its name tells."""
    return int(type(layer).__name__[-2])


def pooling(layer: Any) -> nn.Module:
    """A window with equal weights for all taps."""
    n = dimension(layer)
    kernel = axes(layer.kernel_size, n)
    divisor = getattr(layer, "divisor_override", None)
    norm: Norm = None
    if divisor is not None and not divisor:
        raise Unchanged("divisor_override=0")
    if divisor is None:
        divisor = math.prod(kernel)
        if not layer.count_include_pad or layer.ceil_mode:
            divisor, norm = 1, "padded" if layer.count_include_pad else "mean"
    stride, padding = axes(layer.stride or kernel, n), axes(layer.padding, n)
    window = Window(None, kernel, stride, padding, ceil_mode=layer.ceil_mode, norm=norm)
    return ConvertedGrid(-1, -1, window, Pass(scale=1 / divisor), bias=False)


def adaptive(layer: Any) -> nn.Module:
    """Averages of the sources that each target covers."""
    return ConvertedGrid(-1, -1, Resampling(None, dimension(layer), layer.output_size), Pass(), bias=False)


_UPSAMPLING = {"linear": [1], "bilinear": [2], "trilinear": [3], "nearest": [1, 2, 3], "nearest-exact": [1, 2, 3]}


class ConvertedUpsample(Composite):
    """`GridConv`s with the call of a `torch.nn.Upsample`, which takes images of 1 to 3 axes under some modes."""

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        if layer.mode not in _UPSAMPLING:
            raise Unchanged(f"mode={layer.mode!r} has no basis")
        if layer.recompute_scale_factor:
            raise Unchanged("recompute_scale_factor=True")
        size, scale = layer.size, layer.scale_factor
        several = next((v for v in (size, scale) if isinstance(v, tuple | list)), None)
        mode: Any = "linear" if layer.mode.endswith("linear") else layer.mode
        found = [n for n in _UPSAMPLING[layer.mode] if several is None or len(several) == n]
        bases = [Resampling(None, n, size, scale, mode, bool(layer.align_corners)) for n in found]
        self.convs = nn.ModuleDict({f"{b.axes}d": ConvertedGrid(-1, -1, b, Pass(), bias=False) for b in bases})

    def forward(self, input: Tensor) -> Tensor:
        key = f"{input.dim() - 2}d"
        if key not in self.convs:
            reject("input", f"images of {' or '.join(self.convs)}", tuple(input.shape), "(B, P, *grid)")
        y: Tensor = self.convs[key](input)
        return y


_TWICE: Options = {"scale_factor": 2.0}
_SIZED: list[Options] = [{"scale_factor": 1.7}, {"scale_factor": 0.6}]
_SIZED += [{"scale_factor": None, "size": size} for size in (5, (9, 4))]
rule(nn.UpsamplingNearest2d, "upsampling", _SIZED, given=_TWICE, alone=True)(ConvertedUpsample)
rule(nn.UpsamplingBilinear2d, "upsampling", _SIZED, given=_TWICE, alone=True)(ConvertedUpsample)
rule(
    nn.Upsample,
    "upsampling",
    [
        *_SIZED,
        *combinations({"mode": "nearest-exact"}, scale_factor=(2.0, 1.7, 0.6)),
        *combinations(
            mode=("linear", "bilinear", "trilinear"), align_corners=(True, False), scale_factor=(2.0, 1.7, 0.6)
        ),
        *combinations({"scale_factor": None, "size": 5}, mode=("linear", "trilinear"), align_corners=(True, False)),
    ],
    given=_TWICE,
    alone=True,
)(ConvertedUpsample)


@lru_cache(maxsize=256)
def transposed_window(kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, more: Ints) -> Window:
    """The window of a transposed convolution; cached, since each output size of a call needs its own."""
    return Window(None, kernel, stride, padding, dilation, transposed=True, output_padding=more)


def axes(value: int | Sequence[int], n: int) -> Ints:
    """One number for each of n axes."""
    found = (value,) if isinstance(value, int) else tuple(value)
    return found * n if len(found) == 1 else found


def weight_of(layer: Any) -> nn.Parameter:
    """The kernel of a layer."""
    check_parameters(layer.weight, layer.bias)
    return layer.weight


def with_kernel(kind: type[ConvertedGrid], window: Window, theta: Kernel, layer: Any) -> nn.Module:
    """A layer with the kernel and the bias of a convolution of torch."""
    first, second = layer.weight.shape[0], layer.weight.shape[1] * theta.groups
    P, Q = (first, second) if theta.transposed else (second, first)
    with META:
        new = kind(P, Q, window, theta, bias=False)
    new.theta.weight, new.bias = parameter(layer.weight), parameter(layer.bias)
    new.memory_format = last_format(layer.weight)
    return new


def _last(n: int, **values: tuple[int, int, int]) -> Options:
    """Options with a value for each axis, of which the last n of three are taken."""
    return {name: of_axes[-n:] for name, of_axes in values.items()}


_MODES = ("zeros", "reflect", "replicate", "circular")

# The options that the rules are checked under; by default, layers have 4 channels and a kernel of size 3.
for _n in (1, 2, 3):
    _conv, _transposed, _pool, _adaptive = (
        getattr(nn, f"{name}{_n}d") for name in ("Conv", "ConvTranspose", "AvgPool", "AdaptiveAvgPool")
    )
    rule(
        _conv,
        f"CNN, {_n}-D",
        [
            *combinations(kernel_size=(1, 2), stride=(1, 2, 3)),
            *combinations({"padding": 2, "stride": 2}, dilation=(1, 2), padding_mode=_MODES),
            *combinations(padding_mode=_MODES, bias=(True, False)),
            *combinations(padding=("valid", "same"), dilation=(1, 2)),
            {"kernel_size": 4, "dilation": 2, "padding": "same"},
            {"kernel_size": 2, "padding": "same", "dilation": 3, "padding_mode": "circular"},
            *combinations({"padding": 1}, in_channels=(1, 4), out_channels=(1, 6)),
            _last(_n, kernel_size=(1, 3, 2), stride=(1, 1, 2), padding=(0, 2, 1), dilation=(1, 1, 2)),
            {"padding_mode": "reflect"} | _last(_n, kernel_size=(2, 1, 3), stride=(2, 1, 1), padding=(1, 0, 2)),
            {"groups": 2, "padding": 1},
            {"groups": 2, "stride": 2, "padding": 1, "bias": False, "padding_mode": "circular"},
            {"groups": 4, "out_channels": 4, "padding": 1},
            {"groups": 4, "out_channels": 4, "stride": 2, "dilation": 2, "padding": 2, "padding_mode": "replicate"},
            {"groups": 4, "out_channels": 8, "dilation": 2, "padding": "same"},
        ],
    )(convolution)
    rule(
        _transposed,
        "CNN, transposed",
        [
            {"bias": False, "padding": 1},
            *combinations({"stride": 2}, padding=(0, 1), output_padding=(0, 1)),
            {"kernel_size": 2, "stride": 3, "output_padding": 2},
            {"kernel_size": 1, "stride": 2},
            {"kernel_size": 2, "padding": 2},
            {"dilation": 2, "output_padding": 1},
            {"stride": 2, "padding": 1, "dilation": 2, "groups": 2},
            *combinations({"stride": 2, "groups": 4}, out_channels=(4, 8), bias=(True, False)),
            _last(_n, kernel_size=(1, 3, 2), stride=(1, 1, 2), padding=(0, 1, 0), output_padding=(0, 0, 1)),
        ],
    )(transposed)
    _pools = combinations(ceil_mode=(False, True), count_include_pad=(False, True))
    if _n > 1:
        _pools += combinations({"ceil_mode": True}, count_include_pad=(False, True), divisor_override=(3, -2))
    rule(
        _pool,
        "average pooling",
        [
            size | more
            for size in (
                {"kernel_size": 2},
                {"kernel_size": (2,), "stride": (1,), "padding": (1,)},
                {"kernel_size": 3, "stride": 2, "padding": 1},
                {"kernel_size": 2, "stride": 3},
                _last(_n, kernel_size=(2, 1, 4), stride=(2, 1, 3), padding=(1, 0, 2)),
            )
            for more in _pools
        ],
    )(pooling)
    rule(
        _adaptive,
        "adaptive average pooling",
        [{"output_size": 1}, {"output_size": 8}, _last(_n, output_size=(2, 9, 4))]
        + [{"output_size": (None, 3, None)[-_n:]}] * (_n > 1),
        alone=True,
    )(adaptive)

_WINDOWS: list[Options] = [
    *({"kernel_size": 3} | more for more in ({"padding": 1}, {"stride": 2}, {"dilation": 2})),
    {"kernel_size": (2, 1), "stride": (1, 2), "padding": (1, 0), "dilation": (3, 1)},
]


class ToChannels(ConvertedGrid):
    """A `GridConv` whose taps become channels, as torch orders them; flat: with the grid of the result in one axis. The
    sides of its own grid have to be multiples of a factor.
    """

    def __init__(self, window: Window, flat: bool = False, factor: int = 1) -> None:
        super().__init__(-1, -1, window, Pass(combine="concat"), bias=False)
        self.flat, self.factor = flat, factor

    def forward(self, input: Tensor) -> Tensor:  # type: ignore[override]
        if any(n % self.factor for n in input.shape[-2:]):
            fix = "crop or pad it"
            reject("input", f"sides that are multiples of {self.factor}", tuple(input.shape[-2:]), fix)
        y = self._images(input).unflatten(-3, (self.basis.K, -1)).transpose(-4, -3).flatten(-4, -3)
        return y.flatten(-2) if self.flat else y


class FromChannels(ConvertedGrid):
    """A `GridConv` whose taps read channels of their own, in torch's order, of inputs that may have a grid in one
    axis.
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
    factor = layer.downscale_factor
    return ToChannels(Window(None, (factor,) * 2, factor), factor=factor)


@rule(nn.PixelShuffle, "channels to pixels", [{"upscale_factor": 1}], alone=True)
def shuffle(layer: Any) -> nn.Module:
    """Transposed windows that do not overlap, whose taps read channels of their own."""
    return FromChannels(Window(None, (layer.upscale_factor,) * 2, layer.upscale_factor, transposed=True))


def window_of(layer: Any) -> dict[str, Any]:
    """The sizes of a layer's window, for each of two axes."""
    return {name: axes(getattr(layer, name), 2) for name in ("kernel_size", "stride", "padding", "dilation")}
