"""Convolutions on regular grids by torch's kernels.

Images are (B, P, *grid) as in torch: (B, P, *sources), and results (B, Q, *targets). Weights are
(Q, P / groups, *kernel), of transposed convolutions (P, Q / groups, *kernel), and biases (Q,).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor
from torch.nn import functional as F

from ..cache import cached_property

AXES = (1, 2, 3)  # the dimensions that torch has kernels for
_CONVOLVE: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED: dict[int, Callable[..., Tensor]] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}

Ints = tuple[int, ...]


@dataclass(frozen=True)
class Frame:
    """The geometry of a convolution, one number per axis.

    sources, targets: the shapes of both grids; kernel: the number of taps; before: the padding before the grid (for
    `convolve_transposed`, the cropping before the targets); stride, dilation: as in torch; mode: of the padding,
    'zeros' or a mode of F.pad.
    """

    sources: Ints
    targets: Ints
    kernel: Ints
    before: Ints
    stride: Ints
    dilation: Ints
    mode: str = "zeros"

    @cached_property
    def after(self) -> Ints | None:
        """The padding behind the grid, negative to crop; None where torch's own convolution implies it."""
        if self.mode == "zeros" and min(self.before) >= 0 and self._targets() == self.targets:
            return None
        axes = zip(self.targets, self.stride, self.before, self.kernel, self.dilation, self.sources, strict=True)
        return tuple((n - 1) * s - b + (k - 1) * d - (m - 1) for n, s, b, k, d, m in axes)

    @cached_property
    def full(self) -> Ints:
        """The targets of a transposed convolution before cropping."""
        axes = zip(self.sources, self.stride, self.kernel, self.dilation, strict=True)
        return tuple((m - 1) * s + (k - 1) * d + 1 for m, s, k, d in axes)

    @cached_property
    def output_padding(self) -> Ints | None:
        """The output padding of torch's transposed convolution; None where it cannot give these targets."""
        sizes = zip(self.targets, self.full, self.before, strict=True)
        output_padding = tuple(n - (size - 2 * b) for n, size, b in sizes)
        axes = zip(self.before, output_padding, self.stride, self.dilation, strict=True)
        return output_padding if all(b >= 0 and 0 <= o < max(s, d) for b, o, s, d in axes) else None

    @cached_property
    def ceil_mode(self) -> bool | None:
        """The `ceil_mode` with which torch's pooling has these targets; None where it has none."""
        half = all(0 <= 2 * b <= k for b, k in zip(self.before, self.kernel, strict=True))
        if self.mode != "zeros" or max(self.dilation) > 1 or not half:
            return None
        return next((ceil for ceil in (False, True) if self._targets(ceil) == self.targets), None)

    def _targets(self, ceil_mode: bool = False) -> Ints:
        """The targets of torch's convolution or pooling with this padding on both sides."""
        spans = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]
        axes = zip(self.sources, spans, self.stride, self.before, strict=True)
        return tuple(pooling_targets(m, span, s, b, ceil_mode) for m, span, s, b in axes)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, frame: Frame, groups: int = 1) -> Tensor:
    r""":math:`y[n] = \sum_j W_j \, x[n \cdot stride - before + j \cdot dilation] + b`.

    >>> import torch
    >>> frame = Frame(sources=(3,), targets=(3,), kernel=(2,), before=(1,), stride=(1,), dilation=(1,))
    >>> convolve(torch.tensor([[[1., 2., 4.]]]), torch.tensor([[[10., 1.]]]), None, frame)
    tensor([[[ 1., 12., 24.]]])
    """
    return convolution(frame, groups, lambda: weight)(x, bias)


def convolution(frame: Frame, groups: int, kernel: Callable[[], Tensor]) -> Callable[[Tensor, Tensor | None], Tensor]:
    """`convolve` as a function of x and the bias; `kernel` returns the current weights."""
    evaluate, stride, dilation = _CONVOLVE[len(frame.kernel)], frame.stride, frame.dilation
    before, after, mode = frame.before, frame.after, frame.mode

    def call(x: Tensor, bias: Tensor | None) -> Tensor:
        weight = kernel()
        if weight.dtype != x.dtype:
            weight = weight.to(x.dtype)
        if bias is not None and bias.dtype != x.dtype:
            bias = bias.to(x.dtype)
        if after is None:
            return evaluate(x, weight, bias, stride, before, dilation, groups)
        return evaluate(pad_or_crop(x, before, after, mode), weight, bias, stride, 0, dilation, groups)

    return call


def convolve_transposed(x: Tensor, weight: Tensor, bias: Tensor | None, frame: Frame, groups: int = 1) -> Tensor:
    r""":math:`y[n] = \sum_{m,j} W_j \, x[m] + b`, over :math:`n = m \cdot stride - before + j \cdot dilation`.

    >>> import torch
    >>> frame = Frame(sources=(2,), targets=(4,), kernel=(2,), before=(0,), stride=(2,), dilation=(1,))
    >>> convolve_transposed(torch.tensor([[[1., 2.]]]), torch.tensor([[[10., 1.]]]), None, frame)
    tensor([[[10.,  1., 20.,  2.]]])
    """
    evaluate, before = _TRANSPOSED[len(frame.kernel)], frame.before
    if frame.output_padding is not None:
        return evaluate(x, weight, bias, frame.stride, before, frame.output_padding, groups, frame.dilation)
    y = evaluate(x, weight, None, frame.stride, 0, 0, groups, frame.dilation)
    after = [n - (size - b) for n, size, b in zip(frame.targets, frame.full, before, strict=True)]
    y = pad_or_crop(y, [-b for b in before], after)
    return y if bias is None else y + bias.view(-1, *[1] * len(before))


def average(x: Tensor, frame: Frame, divisor: int | None, padded: bool) -> Tensor:
    """Average pooling, for a frame whose `ceil_mode` is not None.

    The sum over a window is divided by `divisor`; if that is None, by the number of positions in it, which includes
    the padding if `padded`.

    >>> import torch
    >>> frame = Frame(sources=(4,), targets=(2,), kernel=(2,), before=(0,), stride=(2,), dilation=(1,))
    >>> average(torch.tensor([[[1., 3., 5., 7.]]]), frame, 2, True)
    tensor([[[2., 6.]]])
    """
    kernel, stride, before, ceil_mode = frame.kernel, frame.stride, frame.before, bool(frame.ceil_mode)
    if len(kernel) == 1:  # torch's avg_pool1d takes no divisor
        pooled = F.avg_pool2d(x.unsqueeze(2), (1, *kernel), (1, *stride), (0, *before), ceil_mode, padded, divisor)
        return pooled.squeeze(2)
    pool = F.avg_pool2d if len(kernel) == 2 else F.avg_pool3d
    return pool(x, kernel, stride, before, ceil_mode, padded, divisor)


def pointwise(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution with one tap.

    >>> import torch
    >>> pointwise(torch.tensor([[[1., 2.]]]), torch.tensor([[[3.]]]), torch.tensor([1.]))
    tensor([[[4., 7.]]])
    """
    return _CONVOLVE[x.dim() - 2](x, weight, bias)


def pooling_targets(size: int, kernel: int, stride: int, before: int, ceil_mode: bool) -> int:
    """The number of windows along an axis; with `ceil_mode`, including one that reaches beyond the padded grid.

    >>> pooling_targets(5, 2, 2, 0, False), pooling_targets(5, 2, 2, 0, True)
    (2, 3)
    """
    room = size + 2 * before - kernel
    n = (room + stride - 1 if ceil_mode else room) // stride + 1
    if ceil_mode and (n - 1) * stride >= size + before:  # it would begin in the padding behind the grid
        n -= 1
    return n


def pad_or_crop(x: Tensor, before: Sequence[int], after: Sequence[int], mode: str = "zeros") -> Tensor:
    """The grid padded on each side, or cropped where a number is negative."""
    if mode == "zeros":
        sizes = x.shape[-len(before) :]
        pairs = [_crop_at_most(*axis) for axis in zip(before, after, sizes, strict=True)]
        pads = [n for pair in reversed(pairs) for n in pair]
        return F.pad(x, pads) if any(pads) else x
    # Padding first, as the other modes read the whole grid; then cropping.
    sides = [n for pair in zip(reversed(before), reversed(after), strict=True) for n in pair]
    added, cut = [max(0, n) for n in sides], [min(0, n) for n in sides]
    x = F.pad(x, added, mode) if any(added) else x
    return F.pad(x, cut) if any(cut) else x


def _crop_at_most(before: int, after: int, size: int) -> tuple[int, int]:
    """Padding of one axis that crops no more than its size on one side."""
    left = size + before + after
    if before < -size:
        return -size, left
    return (left, -size) if after < -size else (before, after)


def banded_convolution(x: Tensor, kernel: Tensor, before: int) -> Tensor:
    """A depthwise convolution of sequences as dense products with banded matrices, one for each strip of targets.

    About three times as fast as torch's on a CPU, where channels share their taps. Of x, (*, M, P), and a kernel,
    (W, H), tap j reads the entry j - before places away; consecutive channels share a column.

    >>> import torch
    >>> banded_convolution(torch.tensor([[1.], [2.], [4.]]), torch.tensor([[10.], [1.]]), 1).flatten()
    tensor([ 1., 12., 24.])
    """
    (M, P), (width, H) = x.shape[-2:], kernel.shape
    L = strip_length(width)
    n, wide = -(-M // L), L + width - 1
    # Row i of the band has the taps from column i on. Rows of taps and L zeros, end to end, are one longer than those
    # of the band, so each is shifted by one.
    band = F.pad(kernel.t(), (0, L)).unsqueeze(1).expand(H, L, L + width)
    band = band.reshape(H, L * (L + width))[:, : L * wide].view(H, L, wide)
    padded = F.pad(x, (0, 0, before, n * L - M + width - 1 - before))
    windows = padded.unfold(-2, wide, L).unflatten(-2, (H, P // H)).movedim(-3, 0)  # (H, *, n, P / H, wide)
    shape = windows.shape
    y = windows.reshape(H, prod(shape[1:-1]), wide) @ band.transpose(1, 2)
    y = y.view(*shape[:-1], L).movedim((0, -1), (-2, -3))  # (*, n, L, H, P / H)
    return y.reshape(*x.shape[:-2], n * L, P)[..., :M, :]


def strip_length(width: int) -> int:
    """The number of targets per strip, so many that their windows have most entries in common."""
    return max(32, width)
