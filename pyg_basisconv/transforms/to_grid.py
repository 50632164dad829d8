"""Images as graphs of their pixels."""

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import BaseTransform

from ..bases.gridded import Gridded
from ..bases.shifts import Shifts
from ..bases.window import Window
from ..basis import Basis
from ..cache import drop_oldest, memo
from ..errors import reject, shape_or_type

_KEPT = 16  # shapes whose edges are cached
_OF_A_GRAPH = {"edge_index", "edge_type", "edge_weight", "edge_attr", "adj_t", "num_nodes"}


class ToGrid(BaseTransform):
    r"""Turns an image into the graph of its pixels, whose typed edges are the shifts of a window.

    `BasisConv(P, Q, bases.Edges(window.K))` on the graph is the same layer as `GridConv(P, Q, window)` on the image. It
    also takes images with missing pixels, which are no nodes, and images of different shapes in one batch of PyG's
    `DataLoader`.

    Args:
        window: `bases.Window` or `bases.Shifts`, with as many targets as sources; without a shape, for images of any.
        attr: the name of the image.
        mask: the name of a boolean tensor that is True at pixels; without one, no pixel is missing.

    Shapes:
        - the image (P, \*shape), and the mask (\*shape); both are replaced by
        - x: (M, P) the pixels, the last axis fastest
        - pos: (M, r) their coordinates, whole numbers in float32 or more, so that PyG's transforms take them;
          a window with a shape, on these pixels alone, is `window.at(data.pos.long())`
        - edge_index: (2, E); edge_type: (E,) from 0 to K-1
        - edge_weight: (E,) where the window has a `norm`, floating even if the image is not

    Attributes of an earlier graph (edge_index, edge_type, edge_weight, edge_attr, adj_t, num_nodes) are deleted, all
    others are kept. Images of one shape, without a mask, share their edges: do not write to them.

    >>> from pyg_basisconv import BasisConv, bases
    >>> window = bases.Window(None, (3, 3), padding=1)
    >>> data = ToGrid(window)(Data(x=torch.randn(1, 8, 8), y=3))  # one of a data set of images with labels
    >>> data
    Data(y=3, x=[64, 1], pos=[64, 2], edge_index=[2, 484], edge_type=[484])
    >>> conv = BasisConv(1, 16, bases.Edges(window.K))
    >>> conv(data.x, data.edge_index, edge_type=data.edge_type).shape
    torch.Size([64, 16])
    >>> ToGrid(window)(Data(x=torch.randn(1, 8, 8), mask=torch.rand(8, 8) > 0.2)).num_nodes < 64
    True
    """

    def __init__(self, window: Window | Shifts, attr: str = "x", mask: str = "mask") -> None:
        if not (isinstance(window, Basis) and window.moves):
            reject("window", "bases.Window or bases.Shifts", repr(window), "make one, such as Window(None, (3, 3))")
        if getattr(window, "sites", None) is not None:
            fix = "take window.at(None): the mask says which pixels there are"
            reject("window", "one on the whole grid", window, fix)
        for name, value in (("attr", attr), ("mask", mask)):
            if not isinstance(value, str) or not value:
                reject(name, "the name of an attribute of the data", repr(value), "such as 'image'")
        self.window, self.attr, self.mask = window, attr, mask
        self._grids: dict[tuple[Any, ...], _Grid] = {}

    def forward(self, data: Data) -> Data:
        image, mask = self._read(data)
        grid = self._grid(tuple(image.shape[1:]), image.device)
        x, pos, edge_index, edge_type, edge_weight = image.flatten(1).t(), *grid
        if mask is not None:
            there = mask.flatten()
            x, pos = x[there], pos[there]
            kept = there[edge_index].all(0)
            number = there.cumsum(0) - 1
            edge_index, edge_type = number[edge_index[:, kept]], edge_type[kept]
            edge_weight = None if edge_weight is None else edge_weight[kept]
            if edge_weight is not None and getattr(self.window, "norm", None) == "mean":  # over the remaining pixels
                edge_weight = torch.bincount(edge_index[1]).to(edge_weight).reciprocal()[edge_index[1]]
        for name in {self.attr, self.mask, *_OF_A_GRAPH} & set(data.keys()):
            del data[name]
        dtype = torch.result_type(image, 1.0)
        pos = pos.to(torch.promote_types(dtype.to_real(), torch.float32))  # half precision does not count far
        data.x, data.pos, data.edge_index, data.edge_type = x.contiguous(), pos, edge_index, edge_type
        if edge_weight is not None:
            data.edge_weight = edge_weight.to(dtype)
        return data

    def _read(self, data: Any) -> tuple[Tensor, Tensor | None]:
        """The image and the mask, checked."""
        if not isinstance(data, Data):
            reject("data", "torch_geometric.data.Data", type(data).__name__, "make one: Data(x=image, y=label)")
        if isinstance(data, Batch):  # it concatenates images along their channels
            reject("data", "one image", type(data).__name__, "give the transform to the data set, then make batches")
        image, mask, axes = data.get(self.attr), data.get(self.mask), self.window.axes
        if not isinstance(image, Tensor) or image.dim() != axes + 1:
            fix = "add an axis for the channel with image[None], or name another attribute with attr="
            expected = f"an image (P, *shape) with {axes} axes of a grid"
            reject(f"data.{self.attr}", expected, shape_or_type(image), fix)
        if image.layout != torch.strided:
            reject(f"data.{self.attr}", "a dense tensor", image.layout, "convert it with .to_dense()")
        shape = tuple(image.shape[1:])
        if mask is None:
            return image, None
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != shape:
            came = f"{mask.dtype} {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
            fix = "True where a pixel is there, or name another attribute with mask="
            reject(f"data.{self.mask}", f"a boolean tensor {shape}", came, fix)
        return image, mask.to(image.device)

    def _grid(self, shape: tuple[int, ...], device: torch.device) -> "_Grid":
        """The pixels and the edges of a whole image, computed once."""
        key = shape, device
        found: _Grid = memo(self._grids, key, lambda: _grid(self.window, shape, device))
        drop_oldest(self._grids, _KEPT)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_grids": {}}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.window}, attr={self.attr!r}, mask={self.mask!r})"


_Grid = tuple[Tensor, Tensor, Tensor, Tensor | None]  # positions, ends, types and weights


def _grid(window: Gridded, shape: tuple[int, ...], device: torch.device) -> _Grid:
    bound = window.on_grid(shape, torch.float64, torch.device("cpu"))
    if bound.target_grid != shape:
        fix = "pad it, such as padding='same' with stride 1"
        reject("window", f"as many targets as sources on the grid {shape}", f"{bound.target_grid} targets", fix)
    kind, source, target, weight = (part.to(device) for part in bound.edges())
    pos = torch.stack(torch.meshgrid(*(torch.arange(n, device=device) for n in shape), indexing="ij"), -1)
    weights = None if getattr(window, "norm", None) is None else weight
    return pos.view(-1, len(shape)), torch.stack([source, target]), kind, weights
