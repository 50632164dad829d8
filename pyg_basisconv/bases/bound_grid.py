"""Families on regular grids: each matrix links every target to the source at one offset."""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from ..basis import BoundBasis, Direction, EdgeList, ImageFunction, Native, Work
from ..cache import View, cached_property, kept
from ..content import Inputs
from ..errors import reject
from ..kernels import grids
from ..kernels.grids import AXES, Frame, Ints
from ..portable import with_plain
from ..theta import Blocks, Theta
from ..theta.base import add_bias
from ..typed_edges import members

Mode = Literal["zeros", "circular", "reflect", "replicate"]
MODES = ("zeros", "circular", "reflect", "replicate")
Norm = Literal["mean", "padded"] | None


class Lattice(NamedTuple):
    """The geometry of two grids: at offset o, source m belongs to target n if m upsampling = n stride + o on each axis.

    sources, targets: the shapes of the grids; mode: of the padding around the sources.
    """

    sources: Ints
    targets: Ints
    stride: Ints
    upsampling: Ints
    mode: Mode = "zeros"

    @property
    def T(self) -> "Lattice":
        return Lattice(self.targets, self.sources, self.upsampling, self.stride, self.mode)

    def overlap(self, offset: Ints) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """The slices of sources and targets that belong together at an offset, in the same order."""
        axes = zip(self.sources, self.targets, self.upsampling, self.stride, offset, strict=True)
        pairs = [_axis_overlap(*axis) for axis in axes]
        return tuple(m for m, _ in pairs), tuple(n for _, n in pairs)


def _axis_overlap(M: int, N: int, upsampling: int, stride: int, offset: int) -> tuple[slice, slice]:
    if upsampling > 1:
        n, m = _axis_overlap(N, M, stride, upsampling, -offset)
        return m, n
    first, last = max(0, -(offset // stride)), min(N - 1, (M - 1 - offset) // stride)
    if last < first:
        return slice(0, 0), slice(0, 0)
    return slice(first * stride + offset, last * stride + offset + 1, stride), slice(first, last + 1)


class Taps(NamedTuple):
    """The smallest regular window that has all offsets among its taps, and the tap of each offset."""

    frame: Frame
    place: list[int] | None  # None if the offsets are the taps, in order
    transposed: bool

    @property
    def taps(self) -> int:
        return math.prod(self.frame.kernel)


class ImageFamily(BoundBasis):
    """A family whose sources are a grid, the first rows of x."""

    source_grid: Ints
    target_grid: Ints

    @cached_property
    def sources(self) -> int:
        """The number of rows of x that are sources."""
        return math.prod(self.source_grid)

    def native_on_images(self, function: ImageFunction, operations: int, numbers: int) -> Native:
        """The native evaluation by a function of images, (B, P, *shape) -> (B, Q, *grid)."""

        def run(inputs: Inputs, bias: Tensor | None) -> Tensor:
            x = inputs.x[..., : self.sources, :]
            batch = x.shape[:-2]
            image = x.transpose(-1, -2).unflatten(-1, self.source_grid)
            image = image if len(batch) == 1 else image.reshape(math.prod(batch), *image.shape[len(batch) :])
            y = function(image, bias).flatten(2).transpose(1, 2)  # (B, N, Q)
            return y if len(batch) == 1 else y.reshape(*batch, *y.shape[1:])

        return Native(run, operations, numbers, 1, on_images=function)


class BoundGrid(ImageFamily):
    """One matrix for each offset, of M rows, the first of which are the sources. It stores no indices: at an offset,
    slices of both grids belong together.

    norm: None; 'mean', divided by the number of sources of each target; 'padded', divided by the number of offsets that
    stay within the sources and their padding, before and behind; transposed: whether to evaluate it as a transposed
    convolution.
    """

    def __init__(
        self,
        lattice: Lattice,
        offsets: Sequence[Ints],
        M: int,
        dtype: torch.dtype,
        device: torch.device,
        norm: Norm = None,
        padding: tuple[Ints, Ints] = ((), ()),
        transposed: bool = False,
    ) -> None:
        self.lattice, self.offsets, self.norm, self.padding = lattice, list(offsets), norm, padding
        self.transposed = transposed
        self.K, self.M, self.N = len(self.offsets), M, math.prod(lattice.targets)
        self.dtype, self.device = dtype, device
        self.source_grid, self.target_grid = lattice.sources, lattice.targets

    @property
    def stencil(self) -> "BoundGrid | None":
        return self if self.norm is None else None

    def offsets_in(self, stencil: "BoundGrid") -> list[Ints] | None:
        alike = (self.lattice, self.transposed, self.norm) == (stencil.lattice, stencil.transposed, None)
        return self.offsets if alike else None

    def with_offsets(self, offsets: Sequence[Ints]) -> "BoundGrid":
        """Ones on the same grids, at other offsets."""
        return BoundGrid(self.lattice, offsets, self.M, self.dtype, self.device, transposed=self.transposed)

    @cached_property
    def _reach(self) -> tuple[Ints, Ints]:
        """How far the offsets reach beyond the sources, before and behind them."""
        low, high = (tuple(f(axis) for axis in zip(*self.offsets, strict=True)) for f in (min, max))
        last = [
            (n - 1) * s + o - (m - 1)
            for n, s, o, m in zip(self.lattice.targets, self.lattice.stride, high, self.lattice.sources, strict=True)
        ]
        return tuple(max(0, -o) for o in low), tuple(max(0, o) for o in last)

    @property
    def _is_padded(self) -> bool:
        """Whether the padding repeats sources, and is not zeros."""
        return self.lattice.mode != "zeros" and self.sources > 0

    @cached_property
    def _slices(self) -> list[tuple[tuple[slice, ...], tuple[slice, ...]]]:
        if self._is_padded:
            return self._overlaps_within(*self._reach)
        return [self.lattice.overlap(offset) for offset in self.offsets]

    def _overlaps_within(self, before: Ints, after: Ints) -> list[tuple[tuple[slice, ...], tuple[slice, ...]]]:
        """The overlap at each offset, with so much padding before and behind the sources."""
        sizes = tuple(b + m + a for b, m, a in zip(before, self.lattice.sources, after, strict=True))
        padded = self.lattice._replace(sources=sizes)
        return [padded.overlap(tuple(o + b for o, b in zip(offset, before, strict=True))) for offset in self.offsets]

    def _padded_index(self, axis: int) -> Tensor:
        """The source at each position of the padded axis."""
        before, after = (side[axis] for side in self._reach)
        size, mode = self.lattice.sources[axis], self.lattice.mode
        place = torch.arange(-before, size + after, device=self.device)
        if mode == "circular":
            return place % size
        if mode == "reflect":
            return size - 1 - (size - 1 - place.abs()).abs()
        return place.clamp(0, size - 1)

    def _as_image(self, x: Tensor) -> Tensor:
        """(*, M, W) -> (*, *sources, W), padded unless by zeros."""
        image = x[..., : self.sources, :].unflatten(-2, self.lattice.sources)
        if self._is_padded:
            first = x.dim() - 2
            for axis in range(len(self.lattice.sources)):
                image = image.index_select(first + axis, self._padded_index(axis))
        return image

    @with_plain(lambda self, image, k: self._gather_member(image, k))
    def _apply_member(self, image: Tensor, k: int) -> Tensor:
        """A_k^T x of an image x: (*, *sources, W) -> (*, N, W)."""
        source, target = self._slices[k]
        part = image[_index(source)]
        if any(n != slice(0, size) for n, size in zip(target, self.lattice.targets, strict=True)):
            whole = image.new_zeros((*image.shape[: -len(source) - 1], *self.lattice.targets, image.shape[-1]))
            whole[_index(target)] = part
            part = whole
        return part.flatten(-len(source) - 1, -2)

    def _gather_member(self, image: Tensor, k: int) -> Tensor:
        """The same with symbolic sizes: gathers a source for each target, and zeros those without one."""
        before = self._reach[0] if self.lattice.mode != "zeros" else (0,) * len(self.lattice.sources)
        sizes, stride, upsampling = self.lattice.targets, self.lattice.stride, self.lattice.upsampling
        axes = zip(sizes, stride, upsampling, self.offsets[k], before, strict=True)
        first = image.dim() - 1 - len(self.lattice.targets)
        for axis, (size, step, up, offset, shift) in enumerate(axes, first):
            place = torch.arange(size, device=image.device) * step + offset + shift
            has_source = (place >= 0) & (place < image.shape[axis] * up) & (place % up == 0)
            image = image.index_select(axis, (place // up).clamp(0, image.shape[axis] - 1))
            image = torch.where(has_source.view(-1, *[1] * (image.dim() - axis - 1)), image, 0)
        return image.flatten(first, -2)

    @kept
    def _scale(self) -> Tensor | None:
        """(N, 1) the factor of each target's sum, None for ones."""
        if self.norm is None:
            return None
        count = torch.zeros(self.lattice.targets, dtype=self.dtype, device=self.device)
        for _, target in self._overlaps_within(*self.padding) if self.norm == "padded" else self._slices:
            count[target] += 1
        return count.clamp(min=1).reciprocal().view(self.N, 1)

    def _scaled(self, y: Tensor) -> Tensor:
        return y if self._scale is None else y * self._scale.to(y.dtype)

    def iterate(self, x: Tensor) -> Iterator[Tensor]:
        image = self._as_image(x)
        return (self._scaled(self._apply_member(image, k)) for k in range(self.K))

    def combine(self, z: Tensor | Sequence[Tensor | None]) -> Tensor:
        given = ((k, z_k) for k, z_k in enumerate(members(z, self.K)) if z_k is not None)
        return self._scaled(reduce(torch.add, (self._apply_member(self._as_image(z_k), k) for k, z_k in given)))

    def each(self, z: Tensor) -> Tensor:
        return self._scaled(torch.stack([self._apply_member(self._as_image(z_k), k) for k, z_k in enumerate(z)]))

    def edges(self) -> EdgeList:
        folded = [self._padded_index(i) for i in range(len(self.lattice.sources))] if self._is_padded else None
        kinds, sources, targets = [], [], []
        for k, (source, target) in enumerate(self._slices):
            coordinates = [torch.arange(s.start, s.stop, s.step or 1, device=self.device) for s in source]
            if folded is not None:
                coordinates = [places[index] for places, index in zip(folded, coordinates, strict=True)]
            sources.append(self._flat(coordinates, self.lattice.sources))
            onto = [torch.arange(s.start, s.stop, s.step or 1, device=self.device) for s in target]
            targets.append(self._flat(onto, self.lattice.targets))
            kinds.append(torch.full_like(sources[-1], k))
        kind, source_index, target_index = map(torch.cat, (kinds, sources, targets))
        weight = torch.ones(kind.numel(), dtype=self.dtype, device=self.device)
        if self._scale is not None:
            weight = self._scale.flatten().index_select(0, target_index)
        return EdgeList(kind, source_index, target_index, weight)

    def _flat(self, coordinates: Sequence[Tensor], shape: Ints) -> Tensor:
        """The flat indices of the product of coordinates along each axis, the last axis fastest."""
        total = torch.zeros(1, dtype=torch.int64, device=self.device)
        for index, size in zip(coordinates, shape, strict=True):
            total = (total.unsqueeze(-1) * size + index).flatten()
        return total

    @property
    def T(self) -> BoundBasis:
        if self.sources < self.M or self.lattice.mode != "zeros" or self.norm is not None:
            return with_grids(self.explicit.T, self.target_grid, self.source_grid)
        offsets = [tuple(-o for o in offset) for offset in self.offsets]
        return BoundGrid(self.lattice.T, offsets, self.N, self.dtype, self.device, transposed=not self.transposed)

    @cached_property
    @with_plain(lambda self: self.K * self.N)
    def entries(self) -> int:
        """The number of nonzero entries; an estimate if sizes are symbols."""
        return sum(math.prod(len(range(n.start, n.stop, n.step or 1)) for n in target) for _, target in self._slices)

    def work(self, direction: Direction) -> Work:
        # Each member is sliced, copied, and added or stacked.
        return Work(self.entries, 3 * self.K * self.N, self.K)

    def moved(self, device: torch.device) -> "BoundGrid":
        args = (self.lattice, self.offsets, self.M, self.dtype, device)
        return BoundGrid(*args, self.norm, self.padding, self.transposed)

    @cached_property
    def window(self) -> Taps | None:
        """The regular window with these offsets as taps, if torch has a kernel for it and few taps are zeros."""
        lattice = self.lattice
        if len(lattice.sources) not in AXES or max(lattice.upsampling if not self.transposed else lattice.stride) > 1:
            return None
        transposed = self.transposed
        axes = [sorted(set(axis)) for axis in zip(*self.offsets, strict=True)]
        dilation = tuple(math.gcd(*(o - axis[0] for o in axis)) or 1 for axis in axes)
        kernel = tuple((axis[-1] - axis[0]) // d + 1 for axis, d in zip(axes, dilation, strict=True))
        if math.prod(kernel) > 4 * self.K + 64:
            return None
        first = [axis[-1 if transposed else 0] for axis in axes]
        before = tuple(o if transposed else -o for o in first)
        stride = lattice.upsampling if transposed else lattice.stride
        steps = abs(np.subtract(self.offsets, first)) // dilation  # (K, r)
        places = np.ravel_multi_index(steps.T, kernel).tolist()
        frame = Frame(lattice.sources, lattice.targets, kernel, before, stride, dilation, lattice.mode)
        return Taps(frame, None if places == list(range(math.prod(kernel))) else places, transposed)

    def native(self, theta: Theta, width: int) -> Native | None:
        window = self.window
        if window is None or not self.sources or not self.N:
            return None
        if self._is_shared_depthwise(theta, window):
            length = window.frame.kernel[0]
            return Native(
                lambda inputs, bias: add_bias(self._by_banded_convolution(inputs, window), bias),
                2 * (grids.strip_length(length) + length) * self.M * width,
                6 * self.M * width,
                1,
            )
        divisor = self._divisor(theta, window)
        if divisor is not None:
            return self.native_on_images(
                lambda image, bias: self._pooled(image, bias, divisor, window),
                2 * window.taps * self.N * width,
                (self.sources + self.N) * width,
            )
        blocks = theta.blocks(width)
        if blocks is None:
            return None
        g, p, q = blocks.weight.shape[1:]
        operations = 2 * window.taps * (self.sources if window.transposed else self.N) * g * p * q
        numbers = self.sources * g * p + self.N * g * q
        if blocks.then is not None:
            operations += 2 * self.N * blocks.then.numel()
            numbers += self.N * (g * q + blocks.then.shape[1])
        direct = self.norm is None and blocks.then is None and window.place is None and not window.transposed
        if direct:
            kernel = _kept_view(theta, partial(_kernel, theta, width, (-1, p, *window.frame.kernel)))
            return self.native_on_images(grids.convolution(window.frame, g, kernel), operations, numbers)
        return self.native_on_images(
            lambda image, bias: self._convolved(image, bias, cast(Blocks, theta.blocks(width)), window),
            operations,
            numbers,
        )

    def _convolved(self, image: Tensor, bias: Tensor | None, blocks: Blocks, window: Taps) -> Tensor:
        own = bias if self.norm is None and blocks.then is None else None
        y = convolve_window(image, blocks.weight, own, window)
        if self._scale is not None:
            y = y * self._scale.to(y.dtype).view(self.lattice.targets)
        if blocks.then is not None:
            kernel = blocks.then.to(y).t().reshape(-1, y.shape[1], *[1] * len(window.frame.kernel))
            return grids.pointwise(y, kernel, _cast(bias, y))
        return y if own is not None else _add_image_bias(y, bias)

    def _divisor(self, theta: Theta, window: Taps) -> tuple[int | None, float] | None:
        """The divisor (None for a mean) and the scale of the result with which torch's pooling evaluates the layer;
        None if it cannot.
        """
        scale = theta.common_scale
        if not scale or window.place is not None or window.transposed or window.frame.ceil_mode is None:
            return None
        if self.norm is not None:
            return None, scale
        divisor = round(1 / scale) if 1e-9 < scale <= 1 else 0
        return (divisor, 1.0) if divisor and abs(scale * divisor - 1) <= 1e-12 else None

    def _pooled(self, image: Tensor, bias: Tensor | None, divisor: tuple[int | None, float], window: Taps) -> Tensor:
        y = grids.average(image, window.frame, divisor[0], self.norm != "mean")
        return _add_image_bias(y if divisor[1] == 1 else y * divisor[1], bias)

    def _is_shared_depthwise(self, theta: Theta, window: Taps) -> bool:
        """Whether this is a depthwise convolution of sequences in which several channels share their taps."""
        shared = theta.tap_groups is not None and 4 * theta.tap_groups <= theta.P
        frame, lattice = window.frame, self.lattice
        plain = len(frame.kernel) == 1 and frame.mode == "zeros" and not window.transposed and self.norm is None
        steps = plain and frame.stride == frame.dilation == (1,) and 0 <= frame.before[0] < frame.kernel[0]
        return shared and steps and lattice.sources == lattice.targets == (self.M,)  # sizes, which may be symbols, last

    def _by_banded_convolution(self, inputs: Inputs, window: Taps) -> Tensor:
        taps = inputs.theta.taps().to(inputs.x.dtype)  # (K, H)
        return grids.banded_convolution(inputs.x, _at_taps(taps, window), window.frame.before[0])


@with_plain(lambda theta, make: make)
def _kept_view(theta: Theta, make: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """What `make` returns, a view of the weight."""
    return View(theta._parameters, "weight", make)


def _kernel(theta: Theta, width: int, shape: Ints) -> Tensor:
    """The weights of torch's convolution."""
    kernel = theta.kernel(width)
    return kernel if kernel.shape[2:] == shape[2:] else kernel.reshape(shape)  # a view takes its part of a small call


def convolve_window(image: Tensor, weight: Tensor, bias: Tensor | None, window: Taps) -> Tensor:
    """The convolution of (B, P, *sources) by a window with blocks (K, g, P / g, Q / g) of channels."""
    weight = _at_taps(weight.to(image), window)  # (taps, g, p, q)
    g, p, q = weight.shape[1:]
    if window.transposed:
        kernel = weight.permute(1, 2, 3, 0).reshape(g * p, q, *window.frame.kernel)
        return grids.convolve_transposed(image, kernel, _cast(bias, image), window.frame, g)
    kernel = weight.permute(1, 3, 2, 0).reshape(g * q, p, *window.frame.kernel)
    return grids.convolve(image, kernel, _cast(bias, image), window.frame, g)


def _at_taps(weight: Tensor, window: Taps) -> Tensor:
    """The weights of the members at the taps of the window, zeros at other taps: (K, ...) -> (taps, ...)."""
    if window.place is None:
        return weight
    place = torch.tensor(window.place, device=weight.device)
    return weight.new_zeros(window.taps, *weight.shape[1:]).index_add(0, place, weight)


def _cast(bias: Tensor | None, like: Tensor) -> Tensor | None:
    return None if bias is None else bias.to(like.dtype)


def _index(slices: tuple[slice, ...]) -> tuple[Any, ...]:
    """The index that applies slices to the axes before the last."""
    return (..., *slices, slice(None))


def _add_image_bias(image: Tensor, bias: Tensor | None) -> Tensor:
    return image if bias is None else image + bias.to(image.dtype).view(-1, *[1] * (image.dim() - 2))


def with_grids(bound: BoundBasis, shape: Ints, grid: Ints) -> BoundBasis:
    """The family, with the shapes of its sources' and its targets' grid."""
    bound.source_grid, bound.target_grid = shape, grid
    return bound


def ints(value: object, name: str, axes: int, least: int | None = None) -> Ints:
    """One integer per axis, from one number for all or a sequence; checked."""
    given: tuple[Any, ...] = tuple(value) if isinstance(value, tuple | list) else (value,) * axes
    expected = "an integer" + ("" if least is None else f" from {least} on") + f", or {axes} of them"
    try:
        some = tuple(-1 if isinstance(v, bool) else operator.index(v) for v in given)
    except TypeError:
        some = ()
    if len(some) != axes or any(isinstance(v, bool) for v in given) or max(map(abs, some)) >= 1 << 31:
        reject(name, expected, value, "one number for all axes, or one for each")
    if least is not None and min(some) < least:
        reject(name, expected, value, "correct it")
    return some
