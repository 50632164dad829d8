"""Channelwise parameters: each output channel depends on one input channel."""

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from ..errors import check_choice, check_count, check_probability, reject
from ..kernels.dense import times_diagonals
from ..kernels.multihead import to_heads
from ..printing import arguments
from .base import Blocks, Members, Theta
from .full import Pass


class Depthwise(Theta):
    r"""Diagonal matrices: :math:`y_q = \sum_k A_k^\top x_q \, w_{k,h(q)}`, where consecutive channels share a weight.

    With shifts for A this is a depthwise convolution, and with `normalize='softmax'` the lightweight convolution of Wu
    et al. (arXiv:1901.10430), whose taps are a softmax over k. K H numbers; P = Q.

    Args:
        shared: H, the number of groups of channels that share weights; None for one group per channel.
        normalize: 'softmax' over the K members, or None.
        dropout: on the (normalised) weights, in training.

    >>> theta = Depthwise(shared=2, normalize='softmax').build(3, 8, 8)
    >>> theta.weight.shape, theta.taps().sum(0).round(decimals=3).tolist()
    (torch.Size([3, 2]), [1.0, 1.0])
    """

    sums_runs = True

    def __init__(
        self, shared: int | None = None, normalize: Literal["softmax"] | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if shared is not None:
            check_count("shared", shared)
        check_choice("normalize", normalize, None, "softmax")
        check_probability("dropout", dropout)
        self.shared, self.normalize, self.dropout = shared, normalize, float(dropout)

    def shape(self, K: int, P: int, Q: int) -> tuple[int, ...]:
        if P != Q:
            reject("out_channels", f"in_channels, {P}, under theta.Depthwise", Q, "project before, or after")
        if self.shared is not None and P % self.shared:
            reject("in_channels", f"a multiple of shared = {self.shared}", P, "correct one of them")
        return K, P if self.shared is None else self.shared

    def width(self, weight: Tensor) -> int:
        return self.Q

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.weight.uniform_(-(self.K**-0.5), self.K**-0.5)

    @property
    def tap_groups(self) -> int | None:
        return self.shared

    def taps(self) -> Tensor:
        """(K, H) the weights as they are applied."""
        taps: Tensor = self.weight if self.normalize is None else self.weight.softmax(0)
        return torch.nn.functional.dropout(taps, self.dropout, self.training) if self.dropout else taps

    def diagonals(self) -> Tensor:
        """(K, P) the diagonals of the matrices."""
        taps, times = self.taps(), self.P // self.weight.shape[1]
        return taps if times == 1 else taps.repeat_interleave(times, 1)

    def project(self, x: Tensor) -> Members:
        x = x if x.layout == torch.strided else x.to_dense()
        return [x * diagonal for diagonal in self.diagonals().unbind(0)]

    def contract(self, u: Iterable[Tensor]) -> Tensor:
        return times_diagonals(u, self.diagonals())

    def dense(self, width: int = -1) -> Tensor:
        return torch.diag_embed(self.diagonals())

    def blocks(self, width: int) -> Blocks | None:
        return Blocks(self.diagonals()[:, :, None, None])

    def extra_repr(self) -> str:
        return arguments(self, shared=None, normalize=None, dropout=0.0)


class Split(Pass):
    """No parameter: member k acts on the k-th of K equal groups of channels. P = Q.

    With heads computed from content this is the dynamic convolution of Wu et al. (arXiv:1901.10430).

    >>> Split().build(2, 4, 4).dense()[1]
    tensor([[0., 0., 0., 0.],
            [0., 0., 0., 0.],
            [0., 0., 1., 0.],
            [0., 0., 0., 1.]])
    """

    splits, sums = True, False

    def __init__(self) -> None:
        super().__init__()

    def build(self, K: int, P: int, Q: int) -> Theta:
        if P < 1 or P % K:
            reject("in_channels", f"a multiple of the {K} members that the channels are split among", P, "correct it")
        return super().build(K, P, Q)

    @property
    def by_rows(self) -> bool:
        return type(self) is Split

    def project(self, x: Tensor) -> Members:
        return to_heads(self.rows(x), self.K)

    def dense(self, width: int = -1) -> Tensor:
        group, members = torch.arange(self.P, device="cpu") // self.inner, torch.arange(self.K, device="cpu")
        return torch.diag_embed((group == members[:, None]).to(torch.get_default_dtype()))
