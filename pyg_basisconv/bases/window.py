"""Regular windows of a grid: the convolutions, poolings and transposed convolutions of torch."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor

from ..basis import BoundBasis
from ..cache import IdentityCache
from ..errors import check_choice, check_flags, reject
from ..graph import Counts, Graph
from ..kernels.grids import Ints, pooling_targets
from ..portable import portable, refuse
from .bound_grid import MODES, BoundGrid, Lattice, Mode, Norm, ints
from .gridded import Gridded
from .sites import BoundSites, Sites, find_sites

_OPTIONS = {
    "stride": 1,
    "padding": 0,
    "dilation": 1,
    "padding_mode": "zeros",
    "transposed": False,
    "output_padding": 0,
    "ceil_mode": False,
    "norm": None,
}


class Window(Gridded):
    r"""A window that slides over a grid; one matrix for each of its taps, the last axis fastest.

    Tap k links the target n to the source :math:`m = n \cdot stride - padding + k \cdot dilation`, along each axis;
    transposed, :math:`n = m \cdot stride - padding + k \cdot dilation`. The arguments mean what they mean in
    `torch.nn.Conv2d`, `ConvTranspose2d` and `AvgPool2d`, for any number of axes; up to three are evaluated by torch's
    own convolutions. (J.-M. Andreoli, arXiv:1905.01289, Eq. 6.) :math:`\Theta`, (K, P, Q), is torch's kernel,
    (Q, P, h, w), with the taps first and the channels exchanged: `w.permute(2, 3, 1, 0).flatten(0, 1)`, and back
    `theta.unflatten(0, (h, w)).permute(3, 2, 0, 1)`.

    Args:
        shape: of the grid, one integer per axis; None if calls give it.
        kernel_size: the number of taps along each axis.
        stride: from one target to the next; transposed, from one source to the next.
        padding: around the grid, an integer from 0 on; or 'same', for as many targets as sources, or 'valid'.
        dilation: from one tap to the next.
        padding_mode: 'zeros', 'circular', 'reflect' or 'replicate'.
        transposed: whether it is a transposed convolution.
        output_padding: additional targets at the end of each axis, if transposed.
        ceil_mode: whether to add windows that reach beyond the padded grid, as in torch's poolings.
        norm: None; 'mean': each target is the mean of its sources; 'padded': their sum, divided by the number of taps
            within the padded grid.
        sites: (M, axes) the positions of the rows of x, for a sparse grid, which is zero elsewhere. With stride 1, and
            as many targets as sources on the whole grid, the targets are the same sites (a submanifold convolution);
            otherwise all positions that are linked to a site, in the order of samples and positions.

    Raises:
        ValueError: for a window that is larger than the padded grid; for more padding than a grid has to reflect or to
            repeat; for sites beyond the grid.

    >>> Window((4,), 3, padding=1).bind().to_dense()[0]
    tensor([[0., 1., 0., 0.],
            [0., 0., 1., 0.],
            [0., 0., 0., 1.],
            [0., 0., 0., 0.]])
    >>> from pyg_basisconv import BasisConv
    >>> x = torch.randn(5, 28 * 28, 3)
    >>> BasisConv(3, 8, Window((28, 28), 3, stride=2, padding=1))(x).shape
    torch.Size([5, 196, 8])
    """

    moves = True

    def __init__(
        self,
        shape: int | Sequence[int] | None,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | Literal["same", "valid"] = 0,
        dilation: int | Sequence[int] = 1,
        padding_mode: Mode = "zeros",
        transposed: bool = False,
        output_padding: int | Sequence[int] = 0,
        ceil_mode: bool = False,
        norm: Norm = None,
        sites: Tensor | None = None,
    ) -> None:
        sizes = next((v for v in (shape, kernel_size) if isinstance(v, tuple | list)), (0,))
        axes = len(sizes)
        if not axes:
            reject("shape", "at least one axis", shape, "give the size along each axis")
        kernel = ints(kernel_size, "kernel_size", axes, least=1)
        super().__init__(math.prod(kernel), shape, axes)
        self.kernel_size = kernel
        self.stride, self.dilation = ints(stride, "stride", axes, 1), ints(dilation, "dilation", axes, 1)
        check_flags(transposed=transposed, ceil_mode=ceil_mode)
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                reject("padding", "integers, 'same' or 'valid'", repr(padding), "see help(bases.Window)")
            if padding == "same" and (max(self.stride) > 1 or transposed or ceil_mode):
                reject("padding", "integers with a stride, transposed or ceil_mode", "'same'", "give a number")
            self.padding: Ints | Literal["same"] = "same" if padding == "same" else (0,) * axes
        else:
            self.padding = ints(padding, "padding", axes, 0)
        check_choice("padding_mode", padding_mode, *MODES)
        check_choice("norm", norm, None, "mean", "padded")
        if transposed and (padding_mode != "zeros" or ceil_mode or norm is not None):
            got = {"padding_mode": padding_mode, "ceil_mode": ceil_mode, "norm": norm}
            reject("transposed", "False with padding_mode, ceil_mode or norm", got, "torch has none of them either")
        if ceil_mode and padding_mode != "zeros":
            reject("ceil_mode", "False with another padding_mode than 'zeros'", True, "leave one out")
        if norm is not None and padding_mode != "zeros":
            reject("norm", "None with another padding_mode than 'zeros'", repr(norm), "leave one out")
        self.padding_mode, self.transposed, self.ceil_mode, self.norm = padding_mode, transposed, ceil_mode, norm
        self.output_padding = ints(output_padding, "output_padding", axes, 0)
        if not transposed and any(self.output_padding):
            reject("output_padding", "0 where not transposed", output_padding, "set transposed=True")
        for more, step, apart in zip(self.output_padding, self.stride, self.dilation, strict=True):
            if more and more >= max(step, apart):
                reject("output_padding", "less than stride or dilation", output_padding, "take a smaller one")
        self.variance_gain = (
            max(1.0, self.K / math.prod(self.stride)) if transposed else self.K if norm is None else 1 / self.K
        )
        if self.shape is not None:
            self.target_shape(self.shape)
        self._bound = IdentityCache(8)
        self._found: Sites | None = None  # the last result, for a batch with equal values
        if sites is not None:
            self._check_sites(sites)
        self.counts_batch = sites is not None
        self.register_buffer("sites", sites, persistent=False)

    sites: Tensor | None

    def _check_sites(self, sites: Tensor) -> None:
        if self.shape is None:
            reject("shape", "the shape of the grid that the sites are in", None, "give it")
        if self.padding_mode != "zeros" or self.norm is not None:
            got = {"padding_mode": self.padding_mode, "norm": self.norm}
            reject("sites", "None with another padding_mode than 'zeros', or with norm", got, "leave one out")
        if not isinstance(sites, Tensor) or sites.dtype not in (torch.int64, torch.int32):
            got_type = sites.dtype if isinstance(sites, Tensor) else type(sites).__name__
            reject("sites", "a tensor of integers", got_type, "convert it with .long()")
        if sites.layout != torch.strided:
            reject("sites", "a dense tensor", sites.layout, "use .to_dense()")
        if sites.dim() != 2 or sites.shape[1] != self.axes:
            reject("sites", f"shape (M, {self.axes}), one position per row", tuple(sites.shape), "one column per axis")
        if sites.numel():
            low, high = sites.amin(0).tolist(), sites.amax(0).tolist()
            if min(low) < 0 or any(h >= n for h, n in zip(high, self.shape, strict=True)):
                reject("sites", f"positions within the grid {self.shape}", (low, high), "correct them, or the shape")

    def at(self, sites: Tensor | None) -> "Window":
        """The same window on other sites, or on the whole grid for None."""
        options: dict[str, Any] = {name: getattr(self, name) for name in _OPTIONS}
        return Window(self.shape, self.kernel_size, **options, sites=sites)

    @property
    def before(self) -> Ints:
        """The padding before the grid."""
        if self.padding != "same":
            return self.padding
        return tuple(d * (k - 1) // 2 for k, d in zip(self.kernel_size, self.dilation, strict=True))

    @property
    def after(self) -> Ints:
        """The padding behind the grid."""
        if self.padding != "same":
            return self.padding
        spans = (d * (k - 1) for k, d in zip(self.kernel_size, self.dilation, strict=True))
        return tuple(span - b for span, b in zip(spans, self.before, strict=True))

    def target_shape(self, grid: Ints) -> Ints:
        if self.padding == "same":
            self._check_mode(grid)
            return grid
        found = []
        axes = zip(grid, self.kernel_size, self.stride, self.padding, self.dilation, self.output_padding, strict=True)
        for m, k, s, p, d, more in axes:
            span = d * (k - 1) + 1
            if self.transposed:
                n = (m - 1) * s - 2 * p + span + more if m else 0
            else:
                n = pooling_targets(m, span, s, p, self.ceil_mode) if m else 0
            if m and n < 1:
                if self.transposed:
                    reject("padding", f"less than all of the {n + 2 * p} targets", p, "take a smaller one")
                reject("kernel_size", f"a window that fits the padded grid, {m + 2 * p} places", span, "pad the grid")
            found.append(n)
        self._check_mode(grid)
        return tuple(found)

    def _check_mode(self, shape: Ints) -> None:
        for m, p in zip(shape, map(max, self.before, self.after), strict=True):
            most = {"reflect": m - 1, "circular": m, "replicate": p if m else 0}.get(self.padding_mode, p)
            if p > most and m:
                reject("padding", f"at most {most} under {self.padding_mode!r}, for the grid {shape}", p, "pad less")

    def lattice(self, shape: Ints) -> Lattice:
        """The geometry of sources and targets, on a grid of this shape."""
        ones = (1,) * self.axes
        targets = self.target_shape(shape)
        if self.transposed:
            return Lattice(shape, targets, ones, self.stride)
        return Lattice(shape, targets, self.stride, ones, self.padding_mode)

    def offsets(self) -> list[Ints]:
        """The offset of each tap, see `Lattice`."""
        sign = -1 if self.transposed else 1
        axes = zip(self.kernel_size, self.before, self.dilation, strict=True)
        along = [[sign * (tap * d - p) for tap in range(k)] for k, p, d in axes]
        return list(itertools.product(*along))

    def sized(self, M: int | None, N: int | None, batch: Any, grid: Ints | None) -> Counts:
        if self.sites is None:
            return super().sized(M, N, batch, grid)
        count = self.sites.shape[0]
        if grid is not None and grid != self.shape:
            reject("grid", f"the shape of the basis, {self.shape}", grid, "leave it out")
        if M is not None and count != M:
            reject("x", f"{count} rows, one for each site", M, "pass the features of these sites, see Window.at")
        targets = self._places(batch).targets.shape[0]
        if N is not None and targets != N:
            reject("size", f"N = {targets}, the sites of the targets", N, "leave it out")
        return count, targets

    def build(self, graph: Graph) -> BoundBasis:
        if self.sites is not None:
            if graph.device != self.sites.device:
                reject("x", f"a tensor on {self.sites.device}, as the sites", graph.device, "move one to the other")
            return self._at_sites(graph)
        shape = self.shape_of(graph)
        rows = self.rows_of(graph, math.prod(shape))
        args = (self.lattice(shape), self.offsets(), rows, graph.dtype, graph.device)
        return BoundGrid(*args, self.norm, (self.before, self.after), self.transposed)

    def _at_sites(self, graph: Graph) -> BoundSites:
        places = self._places(graph.batch)
        assert self.shape is not None
        M = self.rows_of(graph, places.sources.shape[0])
        return self._bound.get(
            (self.sites, graph.batch),
            (M, graph.dtype),
            lambda: BoundSites(places, self.target_shape(cast(Ints, self.shape)), M, graph.dtype),
        )

    def _places(self, batch: Tensor | None) -> Sites:
        """The sites of sources and targets, cached for the same ones."""
        assert self.sites is not None
        assert self.shape is not None
        sites, shape = self.sites, self.shape
        if not isinstance(batch, Tensor | None):
            reject("batch", "a tensor", type(batch).__name__, "convert it with torch.as_tensor")

        def search() -> Sites:
            if torch.compiler.is_exporting():
                refuse("basis", "a window of a whole grid", self)
            self._check_sites(sites)  # they may have changed since the constructor
            found = self._found
            if found is None or batch is None or not found.are_of(sites, batch):
                found = find_sites(sites, batch, self.lattice(shape), self.offsets())
                self._found = self._found if portable() else found
            return found

        return self._bound.get((sites, batch), None, search)

    def __getstate__(self) -> dict[str, object]:
        return super().__getstate__() | {"_found": None}  # copies search again

    def extra_repr(self) -> str:
        def one(value: Ints | str) -> object:
            return value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value

        kernel = self.kernel_size if self.shape is None and self.axes > 1 else one(self.kernel_size)
        shown = [self.shown_shape, str(kernel)]
        for name, default in _OPTIONS.items():
            value = one(getattr(self, name))
            shown += [] if value == default else [f"{name}={value!r}"]
        shown += [] if self.sites is None else [f"sites=<{self.sites.shape[0]} positions>"]
        return ", ".join(shown)
