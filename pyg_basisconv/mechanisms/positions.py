"""Mechanisms that depend on positions in a sequence."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from ..content import Content
from ..entries import Entries
from ..errors import check_count, reject
from ..portable import any_seen, with_plain
from ..theta.base import param, project
from .base import Mechanism, Score, Sizes, copies, per_copy, table_score, upcast
from .rows import TermRows


class Uniform(Mechanism):
    r"""The score 0 for every pair. A softmax makes it the mean over the entries of the mask.

    With `normalize=None` and numbers for a mask, these are the matrices: of (\*, M, N), one for each graph of a batch.

    >>> from pyg_basisconv import BasisConv, bases
    >>> conv = BasisConv(8, 6, bases.Attention(1, Uniform(), normalize=None), bias=False)
    >>> x, A = torch.randn(2, 5, 8), torch.rand(2, 5, 5)
    >>> torch.allclose(conv(x, mask=A), A.mT @ x @ conv.weight[0], atol=1e-5)
    True
    """

    is_zero = True

    def score(self, content: Content, entries: Entries) -> Score:
        heads = self.sizes.heads if self.sizes is not None else 1
        zero = upcast(content.x.new_zeros(heads))
        return TermRows(constant=zero, targets=entries.N, batch=content.batch)


class Relative(Mechanism):
    r"""A learnt term for each relative position, :math:`w_{k, m - n}` (Cinar et al., arXiv:1703.10089).

    Args:
        window: (lo, hi): one term for each lo <= m - n <= hi, and none for others; or None.
        period: p: one term for each (m - n) mod p; or None. Give either window or period.

    >>> from pyg_basisconv import BasisConv, bases
    >>> from pyg_basisconv.mechanisms import Dot
    >>> BasisConv(8, 6, bases.Attention(2, Dot(4) + Relative((-2, 2))))(torch.randn(3, 8)).shape
    torch.Size([3, 6])
    """

    def __init__(self, window: tuple[int, int] | None = None, period: int | None = None) -> None:
        super().__init__()
        if (window is None) == (period is None):
            got = "neither" if period is None else "both"
            reject("window", "a window or a period", got, "for both, add two mechanisms")
        if window is not None:
            low, high = window if isinstance(window, tuple | list) and len(window) == 2 else (1, 0)
            if not (isinstance(low, int) and isinstance(high, int) and low <= high):
                reject("window", "(lo, hi), integers with lo <= hi", repr(window), "such as (-3, 3)")
            self.low, self.size = low, high - low + 1
        if period is not None:
            check_count("period", period)
        self.window, self.period = window, period

    def make(self, sizes: Sizes) -> None:
        self.parameter("weight", sizes.heads, self.period or self.size)

    def _place(self, m: Tensor, n: Tensor) -> Tensor:
        if self.period is not None:
            return (m - n) % self.period
        place = m - n - self.low
        return torch.where((place >= 0) & (place < self.size), place, self.size)  # the last index holds a zero

    def score(self, content: Content, entries: Entries) -> Score:
        if self.period == 1:  # the same term for all pairs
            constant = upcast(param(self, "weight")).reshape(-1)
            return TermRows(constant=constant, targets=entries.N, batch=content.batch)
        weight = self.weight.clone() if self.period is not None else F.pad(self.weight, (0, 1))
        size, name = weight.shape[1], ("relative", self.window, self.period)
        return table_score(
            per_copy(upcast(weight), content),
            lambda e: e.lookup(name, size, self._place),
            lambda e: e.table(self._place),
        )

    def extra_repr(self) -> str:
        return f"period={self.period}" if self.period is not None else f"window={self.window}"


@with_plain(lambda taps: F.pad(taps, (0, 1), value=-torch.inf))
def _with_hidden(taps: Tensor) -> Tensor:
    """The taps; in the portable path, where masks have all pairs, with one of -inf for pairs at other offsets."""
    return taps


class Tap(Mechanism):
    r"""A term of the target for each offset, :math:`y_n W_{k,o}` at :math:`o = n - m`: the taps of a dynamic
    convolution (Wu et al., arXiv:1901.10430), with `mask=bases.Shifts(None, offsets)`.

    Args:
        offsets: o, distinct integers.

    >>> from pyg_basisconv import BasisConv, bases, theta
    >>> offsets = range(-1, 2)
    >>> dynamic = BasisConv(8, 8, bases.Attention(2, Tap(offsets), bases.Shifts(None, offsets)), theta.Split())
    >>> dynamic(torch.randn(5, 3, 8)).shape
    torch.Size([5, 3, 8])
    """

    def __init__(self, offsets: Iterable[int]) -> None:
        super().__init__()
        offsets = list(offsets)
        whole = all(isinstance(o, int) and not isinstance(o, bool) for o in offsets)
        if not offsets or not whole or len(set(offsets)) < len(offsets):
            reject("offsets", "integers, at least one, each once", offsets, "such as range(-1, 2)")
        self.offsets = tuple(offsets)

    def make(self, sizes: Sizes) -> None:
        self.parameter("weight", sizes.heads, sizes.target, len(self.offsets))

    def score(self, content: Content, entries: Entries) -> Score:
        taps = project(content.target_features, self.weight)  # (H, *, N, O)
        taps = _with_hidden(taps)
        N, count = taps.shape[-2:]
        low = min(self.offsets)
        index = {offset: i for i, offset in enumerate(self.offsets)}
        listed = [index.get(offset, -1) for offset in range(low, max(self.offsets) + 2)]
        table = torch.tensor(listed, device=taps.device)

        def place(m: Tensor, n: Tensor) -> Tensor:
            offset = table[(n - m - low).clamp(-1, table.numel() - 1)]
            if any_seen(offset < 0):
                fix = "mask=bases.Shifts(None, offsets)"
                reject("mask", f"pairs with n - m in {list(self.offsets)}, which Tap scores", "others", fix)
            return n * count + torch.where(offset < 0, count - 1, offset)

        score = table_score(
            copies(upcast(taps).flatten(-2), content, self.weight.shape[0]),
            lambda e: e.lookup(("tap", self.offsets, count), N * count, place),
            lambda e: e.table(place),
        )
        return Score(score.tensors, score.sides, score.evaluate)

    def extra_repr(self) -> str:
        return str(list(self.offsets))
