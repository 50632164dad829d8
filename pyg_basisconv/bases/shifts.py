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

    def __init__(self, offsets: Sequence[int], M: int, N: int, dtype: torch.dtype, device: torch.device) -> None:
        self.offsets = tuple(offsets)
        self.K, self.M, self.N, self.dtype, self.device = len(self.offsets), M, N, dtype, device

    def _shift(self, x: Tensor, offset: int) -> Tensor:
        """Row n of the result is row n - offset of x, or zero: (*, M, W) -> (*, N, W)."""
        first, last = max(0, offset), min(self.N, self.M + offset)  # the targets that see something
        if first >= last:
            return x.new_zeros(*x.shape[:-2], self.N, x.shape[-1])
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
            target = torch.arange(max(0, offset), max(0, offset, min(self.N, self.M + offset)), device=self.device)
            kinds.append(torch.full_like(target, k))
            targets.append(target)
            sources.append(target - offset)
        kind, source, target = map(torch.cat, (kinds, sources, targets))
        return EdgeList(kind, source, target, torch.ones(kind.numel(), dtype=self.dtype, device=self.device))

    @property
    def T(self) -> "BoundShifts":
        return BoundShifts([-offset for offset in self.offsets], self.N, self.M, self.dtype, self.device)

    def to(self, device: torch.device | str) -> "BoundShifts":
        return BoundShifts(self.offsets, self.M, self.N, self.dtype, torch.device(device))

    def native(self, theta: Theta) -> Native | None:
        if not isinstance(theta, Depthwise) or self.M != self.N:
            return None
        # The vendor's depthwise convolution, over the window from the least offset to the greatest.
        low, high = min(self.offsets), max(self.offsets)
        if not -2 * self.M <= low <= high <= 2 * self.M:
            return None
        tap = torch.tensor([high - offset for offset in self.offsets], device=self.device)

        def run(inputs: Inputs) -> Tensor:
            x = inputs.x  # (*, M, P)
            P = x.shape[-1]
            taps = theta.taps().to(x.dtype)  # (K, H)
            kernel = taps.new_zeros(high - low + 1, taps.shape[1]).index_add(0, tap, taps)
            H = taps.shape[1]
            # Channels that share a weight are a batch of their own: (B, P, M) -> (B P / H, H, M).
            rows = x.reshape(-1, self.M, H, P // H).permute(0, 3, 2, 1).reshape(-1, H, self.M)
            rows = F.pad(rows, (max(high, 0), max(-low, 0)))
            y = F.conv1d(rows, kernel.t().unsqueeze(1), groups=H)
            first = max(high, 0) - high  # windows wholly to one side begin later
            y = y[..., first : first + self.N]
            y = y.view(-1, P // H, H, self.N).permute(0, 3, 2, 1)
            return y.reshape(*x.shape[:-2], self.N, P)

        return Native(run, 2 * (high - low + 1) * self.M, 4 * self.M, 1)


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
        return BoundShifts(self.offsets, graph.M, graph.N, graph.dtype, graph.device)

    def extra_repr(self) -> str:
        return str(list(self.offsets))
