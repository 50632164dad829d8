"""Shifts of a grid by any offsets."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from ..basis import BoundBasis
from ..errors import check_choice, reject
from ..graph import Graph
from ..kernels.grids import Ints
from ..printing import arguments
from .bound_grid import MODES, BoundGrid, Lattice, Mode, ints
from .gridded import Gridded


class Shifts(Gridded):
    r"""Shifts of a grid: :math:`A_d[m, n] = 1` where position(n) - position(m) = d. One matrix for each offset d.

    The positions of a grid are numbered with the last axis fastest. With `theta.Full` this is a convolution with
    arbitrary taps; as the mask of `bases.Attention` it is a band. (J.-M. Andreoli, arXiv:1905.01289.)

    Args:
        shape: of the grid, one integer per axis; or None if calls give it: by the number of rows of x for a sequence,
            by `grid=` or an image for more axes.
        offsets: d, distinct integers, or tuples of one integer per axis; 1 moves each entry to the next position.
        padding_mode: 'zeros', 'circular', 'reflect' or 'replicate', as in `torch.nn.functional.pad`.

    >>> Shifts(3, [0, 1]).bind().to_dense()[1]
    tensor([[0., 1., 0.],
            [0., 0., 1.],
            [0., 0., 0.]])
    >>> Shifts((2, 2), [(1, 0)], padding_mode='circular').bind().to_dense()
    tensor([[[0., 0., 1., 0.],
             [0., 0., 0., 1.],
             [1., 0., 0., 0.],
             [0., 1., 0., 0.]]])
    """

    moves = True

    def __init__(
        self, shape: int | Sequence[int] | None, offsets: Iterable[int | Sequence[int]], padding_mode: Mode = "zeros"
    ) -> None:
        given = list(offsets) if isinstance(offsets, Iterable) and not isinstance(offsets, Tensor) else []
        if not given:
            reject("offsets", "integers, or tuples of them, at least one", offsets, "such as range(-1, 2)")
        axes = len(given[0]) if isinstance(given[0], tuple | list) else 1
        if not axes:
            reject("offsets", "integers, or tuples of them", given, "one integer for each axis")
        vectors = [ints(d, "offsets", axes) for d in given]
        if len(set(vectors)) < len(vectors):
            reject("offsets", "each one once", given, "remove those that repeat")
        check_choice("padding_mode", padding_mode, *MODES)
        super().__init__(len(vectors), shape, axes)
        self.any_targets = shape is None and axes == 1
        self.offsets, self.padding_mode = tuple(vectors), padding_mode
        if self.shape is not None:
            self.target_shape(self.shape)

    def target_shape(self, grid: Ints) -> Ints:
        for axis, size in enumerate(grid):
            most = max(abs(d[axis]) for d in self.offsets)
            if self.padding_mode == "reflect" and most >= max(size, 1):
                reject("offsets", f"less than {size}, the grid's size, under 'reflect'", most, "use a larger grid")
        return grid

    def build(self, graph: Graph) -> BoundBasis:
        shape = self.shape_of(graph)
        targets = (graph.N,) if self.any_targets and graph.grid is None else shape
        if targets != shape and self.padding_mode != "zeros":
            expected = f"as many targets as sources, under {self.padding_mode!r}"
            reject("size", expected, (shape[0], targets[0]), "only beyond zeros there are more")
        ones = (1,) * self.axes
        offsets = [tuple(-d for d in offset) for offset in self.offsets]
        if self.padding_mode == "circular":  # the smallest of all equivalent offsets
            offsets = [tuple((o + m // 2) % max(m, 1) - m // 2 for o, m in zip(v, shape, strict=True)) for v in offsets]
        lattice = Lattice(shape, targets, ones, ones, self.padding_mode)
        return BoundGrid(lattice, offsets, self.rows_of(graph, math.prod(shape)), graph.dtype, graph.device)

    def extra_repr(self) -> str:
        offsets: list[Any] = [d[0] for d in self.offsets] if self.axes == 1 else list(self.offsets)
        return arguments(self, self.shown_shape, offsets, padding_mode="zeros")
