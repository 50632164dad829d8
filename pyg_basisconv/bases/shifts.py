"""Shifts of a sequence."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ..basis import Basis, BoundBasis, EdgeList, Native
from ..content import Inputs
from ..errors import reject
from ..explicit import members
from ..graph import Graph
from ..theta import Depthwise, Theta


class BoundShifts(BoundBasis):
    """Shifts as slices: no index is ever held."""

    def __init__(
        self,
        offsets: Sequence[int],
        M: int,
        N: int,
        dtype: torch.dtype,
        device: torch.device,
        sources: int | None = None,
    ) -> None:
        self.offsets, self.sources = tuple(offsets), M if sources is None else sources
        self.K, self.M, self.N, self.dtype, self.device = len(self.offsets), M, N, dtype, device

    def _shift(self, x: Tensor, offset: int) -> Tensor:
        """Row n of the result is row n - offset of x, or zero: (*, M, W) -> (*, N, W)."""
        first, last = max(0, offset), min(self.N, self.sources + offset)  # the targets that see something
        if first >= last:
            return F.pad(x[..., :0, :], (0, 0, 0, self.N))
        return F.pad(x[..., first - offset : last - offset, :], (0, 0, first, self.N - last))

    def iterate(self, x: Tensor) -> Iterator[Tensor]:
        return (self._shift(x, offset) for offset in self.offsets)

    def combine(self, z: Tensor | Sequence[Tensor | None]) -> Tensor:
        total: Tensor | None = None
        for offset, z_k in zip(self.offsets, members(z, self.K), strict=True):
            if z_k is not None:
                y_k = self._shift(z_k, offset)
                total = y_k if total is None else total + y_k
        assert total is not None
        return total

    def each(self, z: Tensor) -> Tensor:
        return torch.stack([self._shift(z_k, offset) for z_k, offset in zip(z, self.offsets, strict=True)])

    def edges(self) -> EdgeList:
        kinds, targets, sources = [], [], []
        for k, offset in enumerate(self.offsets):
            target = torch.arange(
                max(0, offset), max(0, offset, min(self.N, self.sources + offset)), device=self.device
            )
            kinds.append(torch.full_like(target, k))
            targets.append(target)
            sources.append(target - offset)
        kind, source, target = map(torch.cat, (kinds, sources, targets))
        return EdgeList(kind, source, target, torch.ones(kind.numel(), dtype=self.dtype, device=self.device))

    @property
    def T(self) -> BoundBasis:
        if self.sources < self.M:
            return self.explicit.T
        return BoundShifts([-offset for offset in self.offsets], self.N, self.M, self.dtype, self.device)

    def to(self, device: torch.device | str) -> "BoundShifts":
        return BoundShifts(self.offsets, self.M, self.N, self.dtype, torch.device(device), self.sources)

    def native(self, theta: Theta) -> Native | None:
        if not isinstance(theta, Depthwise) or not self.sources == self.M == self.N > 0:
            return None
        low, high = min(0, *self.offsets), max(0, *self.offsets)
        width = high - low + 1
        if width > 4 * self.K + 64:
            return None  # mostly zeros
        place = torch.tensor([high - offset for offset in self.offsets], device=self.device)

        def run(inputs: Inputs) -> Tensor:
            taps = theta.taps().to(inputs.x.dtype)  # (K, H)
            return _strips(inputs.x, taps.new_zeros(width, taps.shape[1]).index_copy(0, place, taps), high)

        return Native(run, 2 * (_strip(width) + width) * self.M, 6 * self.M, 1)


def _strip(width: int) -> int:
    """How many targets are computed together: so many that their windows have most entries in common."""
    return max(32, width)


def _strips(x: Tensor, kernel: Tensor, before: int) -> Tensor:
    """A depthwise convolution as dense products: in a strip of targets, the taps are a band of a matrix.

    Torch's own takes about three times as long on a processor, where channels share their taps.

    Args:
        x: (*, M, P).
        kernel: (W, H), of which tap j meets the entry j - before places away; consecutive channels share a column.
        before: how many entries are seen before one's own.
    """
    (M, P), (width, H) = x.shape[-2:], kernel.shape
    L = _strip(width)
    n, wide = -(-M // L), L + width - 1
    # Row i of the band is the taps from column i on: a row and its L zeros, end to end, are one longer than the band.
    band = F.pad(kernel.t(), (0, L)).unsqueeze(1).expand(H, L, L + width)
    band = band.reshape(H, L * (L + width))[:, : L * wide].view(H, L, wide)
    padded = F.pad(x, (0, 0, before, n * L - M + width - 1 - before))
    windows = padded.unfold(-2, wide, L).unflatten(-2, (H, P // H)).movedim(-3, 0)  # (H, *, n, P / H, wide)
    shape = windows.shape
    y = windows.reshape(H, shape[1:-1].numel(), wide) @ band.transpose(1, 2)
    y = y.view(*shape[:-1], L).movedim((0, -1), (-2, -3))  # (*, n, L, H, P / H)
    return y.reshape(*x.shape[:-2], n * L, P)[..., :M, :]


class Shifts(Basis):
    r"""Shifts of a sequence: :math:`A_d[m, n] = 1` where n - m = d, with zeros beyond its ends. One matrix per offset.

    With `theta.Full` this is a convolution (`torch.nn.Conv1d`, with the kernel in order of decreasing offset), and as a
    mask it is a band.

    Args:
        offsets: d, integers, each once; 1 brings each entry to the next place.

    >>> Shifts([0, 1]).bind(size=3).to_dense()[1]
    tensor([[0., 1., 0.],
            [0., 0., 1.],
            [0., 0., 0.]])
    """

    needs_edges = False

    def __init__(self, offsets: Iterable[int]) -> None:
        offsets = list(offsets)
        if not offsets or any(isinstance(d, bool) or not isinstance(d, int) for d in offsets):
            reject("offsets", "integers, at least one", offsets, "such as range(-1, 2)")
        if len(set(offsets)) < len(offsets):
            reject("offsets", "each one once", offsets, "remove those that repeat")
        super().__init__(len(offsets))
        self.offsets = tuple(offsets)

    def build(self, graph: Graph) -> BoundBasis:
        return BoundShifts(self.offsets, graph.M, graph.N, graph.dtype, graph.device, graph.sources)

    def extra_repr(self) -> str:
        return str(list(self.offsets))
