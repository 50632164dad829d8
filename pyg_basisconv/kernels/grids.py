"""Convolutions of regular grids, by torch's own kernels. Images are (B, P, *grid), as torch lays them out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor
from torch.nn import functional as F

from ..cache import cached_property

AXES = (1, 2, 3)  # the numbers of axes that torch has kernels for
_CONVOLVE: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED: dict[int, Callable[..., Tensor]] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}

Ints = tuple[int, ...]


@dataclass(frozen=True)
class Frame:
    """Where the taps of a regular window meet a grid, one number for each axis.

    sources, targets: the shapes of both grids; kernel: how many taps; before: how far the first tap of the first target
    lies before the grid (for `convolve_transposed`, how far the first source lies behind the first target); step: from
    one target (or source) to the next; dilation: from one tap to the next; mode: zeros, or a mode of F.pad, beyond the
    grid.
    """

    sources: Ints
    targets: Ints
    kernel: Ints
    before: Ints
    step: Ints
    dilation: Ints
    mode: str = "zeros"

    @cached_property
    def after(self) -> Ints | None:
        """How far the windows reach behind the grid, or before it ends; None where torch finds that out."""
        if self.mode == "zeros" and min(self.before) >= 0 and self._reached() == self.targets:
            return None
        axes = zip(self.targets, self.step, self.before, self.kernel, self.dilation, self.sources, strict=True)
        return tuple((n - 1) * s - b + (k - 1) * d - (m - 1) for n, s, b, k, d, m in axes)

    @cached_property
    def full(self) -> Ints:
        """The targets that the sources are spread over, be they kept or not."""
        axes = zip(self.sources, self.step, self.kernel, self.dilation, strict=True)
        return tuple((m - 1) * s + (k - 1) * d + 1 for m, s, k, d in axes)

    @cached_property
    def more(self) -> Ints | None:
        """How many more targets there are than the windows give, where torch can add them."""
        sizes = zip(self.targets, self.full, self.before, strict=True)
        more = tuple(n - (size - 2 * b) for n, size, b in sizes)
        axes = zip(self.before, more, self.step, self.dilation, strict=True)
        return more if all(b >= 0 and 0 <= o < max(s, d) for b, o, s, d in axes) else None

    @cached_property
    def pools(self) -> bool | None:
        """Whether torch pools by such windows: True where the last may leave the grid, None where it cannot."""
        half = all(0 <= 2 * b <= k for b, k in zip(self.before, self.kernel, strict=True))
        if self.mode != "zeros" or max(self.dilation) > 1 or not half:
            return None
        return next((up for up in (False, True) if self._reached(up) == self.targets), None)

    def _reached(self, up: bool = False) -> Ints:
        """The targets of torch's convolution, or pooling, with the same padding on both sides."""
        spans = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]
        axes = zip(self.sources, spans, self.step, self.before, strict=True)
        return tuple(pooling_targets(m, span, s, b, up) for m, span, s, b in axes)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, frame: Frame, groups: int = 1) -> Tensor:
    r""":math:`y[n] = \sum_j W_j \, x[n \cdot step - before + j \cdot dilation] + b`.

    Args:
        x: (B, P, *sources).
        weight: (Q, P / groups, *kernel).
        bias: (Q,).
        frame: of the window.
        groups: of channels.

    Returns:
        (B, Q, *targets).

    >>> import torch
    >>> frame = Frame(sources=(3,), targets=(3,), kernel=(2,), before=(1,), step=(1,), dilation=(1,))
    >>> convolve(torch.tensor([[[1., 2., 4.]]]), torch.tensor([[[10., 1.]]]), None, frame)
    tensor([[[ 1., 12., 24.]]])
    """
    evaluate = _CONVOLVE[len(frame.kernel)]
    if frame.after is None:
        return evaluate(x, weight, bias, frame.step, frame.before, frame.dilation, groups)
    x = framed(x, frame.before, frame.after, frame.mode)
    return evaluate(x, weight, bias, frame.step, 0, frame.dilation, groups)


def convolution(frame: Frame, groups: int, kernel: Callable[[], Tensor]) -> Callable[[Tensor, Tensor | None], Tensor]:
    """`convolve` as a function of x and the bias.

    Args:
        frame: of the window.
        groups: of channels.
        kernel: (Q, P / groups, *kernel), as it is when the function is called.
    """
    evaluate, alone = _CONVOLVE[len(frame.kernel)], frame.after is None
    step, before, dilation = frame.step, frame.before, frame.dilation

    def call(x: Tensor, bias: Tensor | None) -> Tensor:
        weight = kernel()
        if weight.dtype != x.dtype:
            weight = weight.to(x.dtype)
        if bias is not None and bias.dtype != x.dtype:
            bias = bias.to(x.dtype)
        if alone:
            return evaluate(x, weight, bias, step, before, dilation, groups)
        return convolve(x, weight, bias, frame, groups)

    return call


def convolve_transposed(x: Tensor, weight: Tensor, bias: Tensor | None, frame: Frame, groups: int = 1) -> Tensor:
    r""":math:`y[n] = \sum_{m,j} W_j \, x[m] + b`, over :math:`n = m \cdot step - before + j \cdot dilation`.

    Args:
        x: (B, P, *sources).
        weight: (P, Q / groups, *kernel).
        bias: (Q,).
        frame: of the window.
        groups: of channels.

    Returns:
        (B, Q, *targets).

    >>> import torch
    >>> frame = Frame(sources=(2,), targets=(4,), kernel=(2,), before=(0,), step=(2,), dilation=(1,))
    >>> convolve_transposed(torch.tensor([[[1., 2.]]]), torch.tensor([[[10., 1.]]]), None, frame)
    tensor([[[10.,  1., 20.,  2.]]])
    """
    evaluate, before = _TRANSPOSED[len(frame.kernel)], frame.before
    if frame.more is not None:
        return evaluate(x, weight, bias, frame.step, before, frame.more, groups, frame.dilation)
    y = evaluate(x, weight, None, frame.step, 0, 0, groups, frame.dilation)
    after = [n - (size - b) for n, size, b in zip(frame.targets, frame.full, before, strict=True)]
    y = framed(y, [-b for b in before], after)
    return y if bias is None else y + bias.view(-1, *[1] * len(before))


def average(x: Tensor, frame: Frame, divisor: int | None, padded: bool) -> Tensor:
    """The mean over a window, or its sum by a divisor, where `frame.pools`.

    Args:
        x: (B, P, *sources).
        frame: of the window.
        divisor: of the sum; None for how many places there are.
        padded: whether places of the padding count, where divisor is None.

    Returns:
        (B, P, *targets).

    >>> import torch
    >>> frame = Frame(sources=(4,), targets=(2,), kernel=(2,), before=(0,), step=(2,), dilation=(1,))
    >>> average(torch.tensor([[[1., 3., 5., 7.]]]), frame, 2, True)
    tensor([[[2., 6.]]])
    """
    kernel, step, before, up = frame.kernel, frame.step, frame.before, bool(frame.pools)
    if len(kernel) == 1:  # which has no divisor
        pooled = F.avg_pool2d(x.unsqueeze(2), (1, *kernel), (1, *step), (0, *before), up, padded, divisor)
        return pooled.squeeze(2)
    pool = F.avg_pool2d if len(kernel) == 2 else F.avg_pool3d
    return pool(x, kernel, step, before, up, padded, divisor)


def pointwise(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """One matrix at each place: (B, P, *grid), (Q, P, 1, ...) -> (B, Q, *grid).

    >>> import torch
    >>> pointwise(torch.tensor([[[1., 2.]]]), torch.tensor([[[3.]]]), torch.tensor([1.]))
    tensor([[[4., 7.]]])
    """
    return _CONVOLVE[x.dim() - 2](x, weight, bias)


def pooling_targets(size: int, kernel: int, step: int, before: int, up: bool) -> int:
    """How many windows there are along an axis; with `up`, also one that the padded grid cuts off.

    >>> pooling_targets(5, 2, 2, 0, False), pooling_targets(5, 2, 2, 0, True)
    (2, 3)
    """
    room = size + 2 * before - kernel
    n = (room + step - 1 if up else room) // step + 1
    if up and (n - 1) * step >= size + before:  # it would begin in the padding behind
        n -= 1
    return n


def framed(x: Tensor, before: Sequence[int], after: Sequence[int], mode: str = "zeros") -> Tensor:
    """The grid with more around it, or less where a number is negative."""
    if mode == "zeros":
        sizes = x.shape[-len(before) :]
        pairs = [_within(*axis) for axis in zip(before, after, sizes, strict=True)]
        pads = [n for pair in reversed(pairs) for n in pair]
        return F.pad(x, pads) if any(pads) else x
    # What is cut off is cut after: the other modes read the whole grid.
    added = [
        n for pair in zip(reversed(before), reversed(after), strict=True) for n in (max(0, pair[0]), max(0, pair[1]))
    ]
    x = F.pad(x, added, mode) if any(added) else x
    cut = [min(0, n) for pair in zip(reversed(before), reversed(after), strict=True) for n in pair]
    return F.pad(x, cut) if any(cut) else x


def _within(before: int, after: int, size: int) -> tuple[int, int]:
    """The same, where no more is taken away on one side than there is."""
    left = size + before + after
    if before < -size:
        return -size, left
    return (left, -size) if after < -size else (before, after)


def strips(x: Tensor, kernel: Tensor, before: int) -> Tensor:
    """A depthwise convolution of sequences as dense products: in a strip of targets, the taps are a band of a matrix.

    Torch's own takes about three times as long on a processor, where channels share their taps.

    Args:
        x: (*, M, P).
        kernel: (W, H), of which tap j meets the entry j - before places away; consecutive channels share a column.
        before: how many entries are seen before one's own.

    >>> import torch
    >>> strips(torch.tensor([[1.], [2.], [4.]]), torch.tensor([[10.], [1.]]), 1).flatten()
    tensor([ 1., 12., 24.])
    """
    (M, P), (width, H) = x.shape[-2:], kernel.shape
    L = strip(width)
    n, wide = -(-M // L), L + width - 1
    # Row i of the band is the taps from column i on: a row and its L zeros, end to end, are one longer than the band.
    band = F.pad(kernel.t(), (0, L)).unsqueeze(1).expand(H, L, L + width)
    band = band.reshape(H, L * (L + width))[:, : L * wide].view(H, L, wide)
    padded = F.pad(x, (0, 0, before, n * L - M + width - 1 - before))
    windows = padded.unfold(-2, wide, L).unflatten(-2, (H, P // H)).movedim(-3, 0)  # (H, *, n, P / H, wide)
    shape = windows.shape
    y = windows.reshape(H, prod(shape[1:-1]), wide) @ band.transpose(1, 2)
    y = y.view(*shape[:-1], L).movedim((0, -1), (-2, -3))  # (*, n, L, H, P / H)
    return y.reshape(*x.shape[:-2], n * L, P)[..., :M, :]


def strip(width: int) -> int:
    """How many targets are computed together: so many that their windows have most entries in common."""
    return max(32, width)
