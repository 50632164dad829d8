"""A grid brought to another size: by the nearest source, by linear interpolation, or by averages."""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ..basis import BoundBasis, Direction, EdgeList, Native, Work
from ..cache import kept
from ..errors import check_choice, check_flags, reject
from ..graph import Graph
from ..kernels.grids import AXES, Ints
from ..printing import arguments
from ..theta import Theta
from .bound_grid import ImageFamily, ints
from .by_member import MemberByMember
from .gridded import Gridded

Mode = Literal["average", "nearest", "nearest-exact", "linear"]
_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


class Resampling(Gridded):
    r"""A grid brought to another size. K = 1; the matrix is the Kronecker product of one for each axis.

    Args:
        shape: of the sources' grid, or None if each call gives it.
        axes: the number of axes of the grid, 1 to 3.
        size: of the targets' grid along each axis; None keeps that of the sources.
        scale: the ratio of targets to sources along each axis, in the place of `size`.
        mode: 'average' of the sources that a target covers, as `nn.AdaptiveAvgPool2d`; the 'nearest' source, of the
            corners of cells, or 'nearest-exact', of their centres; 'linear' between the nearest two of each axis, as
            `nn.Upsample`.
        align_corners: whether the first and last source and target are at the same places; for 'linear'.

    >>> Resampling(4, 1, size=2).bind().to_dense()
    tensor([[[0.5000, 0.0000],
             [0.5000, 0.0000],
             [0.0000, 0.5000],
             [0.0000, 0.5000]]])
    >>> Resampling(2, 1, scale=2, mode="linear").bind().to_dense()
    tensor([[[1.0000, 0.7500, 0.2500, 0.0000],
             [0.0000, 0.2500, 0.7500, 1.0000]]])
    """

    def __init__(
        self,
        shape: int | Sequence[int] | None,
        axes: int,
        size: int | Sequence[int | None] | None = None,
        scale: float | Sequence[float] | None = None,
        mode: Mode = "average",
        align_corners: bool = False,
    ) -> None:
        if axes not in AXES:
            reject("axes", "1, 2 or 3", repr(axes), "torch has kernels for these")
        super().__init__(1, shape, axes)
        self.variance_gain = 1
        check_choice("mode", mode, "average", "nearest", "nearest-exact", "linear")
        check_flags(align_corners=align_corners)
        if align_corners and mode != "linear":
            reject("align_corners", f"False under mode={mode!r}", True, "it is for mode='linear'")
        if scale is None:
            given = tuple(size) if isinstance(size, tuple | list) else (size,) * axes
            sizes = ints([1 if n is None else n for n in given], "size", axes, least=1)
            self.size = tuple(None if old is None else n for old, n in zip(given, sizes, strict=True))
        elif size is not None or mode == "average":
            reject("scale", "None beside size, and under mode='average'", scale, "give the size")
        self.scale = None
        if scale is not None:
            factors: Sequence[Any] = scale if isinstance(scale, tuple | list) else (scale,) * axes
            if len(factors) != axes or not all(isinstance(s, Real) and 0 < float(s) < math.inf for s in factors):
                reject("scale", f"a positive number, or {axes} of them", scale, "one for each axis")
            self.scale = tuple(map(float, factors))
            self.size = (None,) * axes
        self.mode, self.align_corners = mode, align_corners
        if self.shape is not None:
            self.target_shape(self.shape)

    def target_shape(self, grid: Ints) -> Ints:
        if self.scale is not None:
            found = tuple(math.floor(m * s) for m, s in zip(grid, self.scale, strict=True))
            if math.prod(grid) and not all(found):
                reject("scale", f"one that leaves targets of the grid {grid}", self.scale, "take a larger one")
        else:
            found = tuple(m if n is None else n for m, n in zip(grid, self.size, strict=True))
        if not math.prod(grid):
            reject("grid", "at least one source along each axis", grid, "there is nothing to read")
        return found

    def resample(self, image: Tensor, axes: Sequence[int]) -> Tensor:
        r"""The images, (B, P, \*grid), by torch's own function; of a grid that has these axes alone."""
        targets = [image.shape[2 + i] if (n := self.size[axis]) is None else n for i, axis in enumerate(axes)]
        n = len(axes)
        if self.mode == "average":
            return {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}[n](image, targets)  # type: ignore[arg-type]
        linear = self.mode == "linear"
        mode, corners = (_LINEAR[n], self.align_corners) if linear else (self.mode, None)
        if self.scale is None:
            return F.interpolate(image, size=targets, mode=mode, align_corners=corners)
        scale = [self.scale[axis] for axis in axes]
        return F.interpolate(image, scale_factor=scale, mode=mode, align_corners=corners)

    def along(self, axis: int, sources: int) -> Tensor:
        """(m, n) the matrix of one axis: what torch's function makes of unit vectors."""
        eye = torch.eye(sources, dtype=torch.float64, device="cpu")
        return self.resample(eye.unsqueeze(1), [axis]).squeeze(1)

    def build(self, graph: Graph) -> BoundBasis:
        shape = self.shape_of(graph)
        return BoundResampling(self, shape, self.rows_of(graph, math.prod(shape)), graph.dtype, graph.device)

    def extra_repr(self) -> str:
        def one(value: Sequence[object]) -> object:
            return value[0] if len(set(value)) == 1 else tuple(value)

        shown = [self.shown_shape, str(self.axes)]
        shown += [f"size={one(self.size)}"] if self.scale is None else [f"scale={one(self.scale)}"]
        return arguments(self, *shown, mode="average", align_corners=False)


class BoundResampling(MemberByMember, ImageFamily):
    """One matrix for each axis of a grid, of which the first of M rows of x are the sources."""

    def __init__(self, basis: Resampling, shape: Ints, M: int, dtype: torch.dtype, device: torch.device) -> None:
        self.basis, self.source_grid, self.target_grid = basis, shape, basis.target_shape(shape)
        self.K, self.M, self.N = 1, M, math.prod(self.target_grid)
        self.dtype, self.device = dtype, device

    @kept
    def axes(self) -> list[Tensor]:
        """The matrices of the axes, (m, n) each."""
        sizes = enumerate(self.source_grid)
        return [self.basis.along(axis, m).to(self.device, self.dtype) for axis, m in sizes]

    def each(self, z: Tensor) -> Tensor:
        y = z[..., : self.sources, :].unflatten(-2, self.source_grid)
        first = y.dim() - 1 - len(self.source_grid)
        for axis, A in enumerate(self.axes, first):
            y = (y.movedim(axis, -1) @ A.to(y.dtype)).movedim(-1, axis)
        return y.flatten(first, -2)

    def edges(self) -> EdgeList:
        source = target = torch.zeros(1, dtype=torch.int64, device=self.device)
        weight = torch.ones(1, dtype=self.dtype, device=self.device)
        for A in self.axes:
            m, n = A.nonzero().unbind(1)
            source = (source[:, None] * A.shape[0] + m).flatten()
            target = (target[:, None] * A.shape[1] + n).flatten()
            weight = (weight[:, None] * A[m, n]).flatten()
        return EdgeList(torch.zeros_like(source), source, target, weight)

    def work(self, direction: Direction) -> Work:
        return Work(max(self.sources, self.N) * sum(self.source_grid), 2 * self.N, 2 * len(self.source_grid))

    def moved(self, device: torch.device) -> BoundBasis:
        return BoundResampling(self.basis, self.source_grid, self.M, self.dtype, device)

    def native(self, theta: Theta, width: int) -> Native | None:
        scale = theta.common_scale
        if scale is None:
            return None

        def run(image: Tensor, bias: Tensor | None) -> Tensor:
            y = self.basis.resample(image, range(len(self.source_grid)))
            y = y if scale == 1 else y * scale
            return y if bias is None else y + bias.to(y.dtype).view(-1, *[1] * len(self.source_grid))

        numbers = (self.sources + self.N) * width
        return self.native_on_images(run, 4 * numbers, numbers)
