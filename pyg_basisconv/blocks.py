"""Ready-made blocks: a BasisConv with the layers that its paper puts around it."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import bases, theta
from .conv import BasisConv
from .errors import check_count, check_flags, reject
from .features import check_features, check_like
from .mechanisms import MLP, Dot, Tap


class LightweightConv(nn.Module):
    r"""Lightweight convolution: :math:`y = \sum_d A_d^\top h \, \Theta_d \, W_o` with :math:`h = \mathrm{GLU}(x W_1)`.

    A_d shifts the sequence by d. Theta_d is diagonal and has one number per head, shared by its C / H channels: the
    softmax over the taps d of a learnt w[d, h]. The cost is linear in the length. Taps beyond an end read zeros. F. Wu
    et al., Pay Less Attention with Lightweight and Dynamic Convolutions (arXiv:1901.10430).

    Args:
        channels: C, a multiple of the heads.
        heads: H.
        taps: the number of positions in a window: its own and those before if `causal`, else centred (an even number
            has one more after than before).
        causal: whether an output sees only its own position and those before.
        dropout: on the normalised taps, in training.

    Shapes: (\*, N, C) -> (\*, N, C)

    >>> LightweightConv(8, heads=2, taps=3)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, channels: int, heads: int, taps: int, causal: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        _divide(channels, heads)
        self.linear_in, self.linear_out = nn.Linear(channels, 2 * channels), nn.Linear(channels, channels)
        window = bases.Shifts(None, _offsets(taps, causal))
        shared = theta.Depthwise(shared=heads, normalize="softmax", dropout=dropout)
        self.conv = BasisConv(channels, channels, window, shared, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        _check(x, self.conv)
        return self.linear_out(self.conv(F.glu(self.linear_in(x))))


class DynamicConv(nn.Module):
    r"""Dynamic convolution: :math:`y = [A_1^\top h_1 \dots A_H^\top h_H] \, W_o` with :math:`h = \mathrm{GLU}(x W_1)`.

    A lightweight convolution whose taps are computed from the features at each position: A_k[m, n], for m in the window
    of n, is the softmax over the offsets d = n - m of h_n . w[k, d]. It is attention without keys. h_k is the k-th
    group of channels. F. Wu et al., Pay Less Attention with Lightweight and Dynamic Convolutions (arXiv:1901.10430).

    Args:
        channels: C, a multiple of the heads.
        heads: H, the groups of channels that share their taps.
        taps, causal, dropout: as in `LightweightConv`.

    Shapes: (\*, N, C) -> (\*, N, C)

    >>> DynamicConv(8, heads=2, taps=3, causal=True)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, channels: int, heads: int, taps: int, causal: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        _divide(channels, heads)
        self.linear_in, self.linear_out = nn.Linear(channels, 2 * channels), nn.Linear(channels, channels)
        offsets = _offsets(taps, causal)
        self.before, self.after = offsets[-1], -offsets[0]
        window = bases.Attention(heads, Tap(offsets), bases.Shifts(None, offsets), dropout=dropout)
        self.conv = BasisConv(channels, channels, window, theta.Split(), bias=False)

    def forward(self, x: Tensor) -> Tensor:
        _check(x, self.conv)
        # As in the paper, the softmax includes the taps beyond an end, which read zeros.
        h = F.pad(F.glu(self.linear_in(x)), (0, 0, self.before, self.after))
        return self.linear_out(self.conv(h).narrow(-2, self.before, x.size(-2)))


class AttentionPooling(nn.Module):
    r"""Attention pooling: :math:`y_g = \sum_{m \in g} a_m x_m`, one output for each bag g.

    a is the softmax over the members of the bag of w . tanh(V x_m), or, gated, of w . (tanh(V x_m) * sigm(U x_m)).
    It does not depend on their order. M. Ilse, J. Tomczak and M. Welling, Attention-based Deep Multiple Instance
    Learning (arXiv:1802.04712).

    Args:
        channels: P.
        hidden: the number of rows of V and of U.
        gated: whether to use U.

    Shapes:
        - x: (\*, M, P); batch: (M,) the bag of each, 0 .. G-1, or None for a single one; size: G, where the last bags
          may be empty
        - y: (\*, G, P)

    >>> pooling = AttentionPooling(8, hidden=4)
    >>> pooling(torch.randn(5, 8), torch.tensor([0, 0, 1, 1, 1])).shape
    torch.Size([2, 8])
    """

    def __init__(self, channels: int, hidden: int, gated: bool = False) -> None:
        super().__init__()
        check_count("channels", channels)
        check_flags(gated=gated)
        bags = bases.Attention(1, MLP(hidden, target=None, gated=gated), bases.Bags())
        self.conv = BasisConv(channels, channels, bags, theta.Pass(), bias=False)

    def forward(self, x: Tensor, batch: Tensor | None = None, size: int | None = None) -> Tensor:
        """Pools the members x, (*, M, P), of each bag of `batch`, (M,): (*, G, P). None stands for one bag."""
        _check(x, self.conv, sparse=True)
        if batch is None:
            batch = torch.zeros(x.size(-2), dtype=torch.long, device=x.device)
        return self.conv(x, batch=batch, size=None if size is None else (x.size(-2), size))


class CausalAttention(nn.Module):
    r"""The attention layer of GPT: :math:`y = x + \sum_k A_k(z)^\top z \, V_k O_k + b`, :math:`z = \mathrm{norm}(x)`.

    A_k[m, n] is the softmax over m <= n of the scaled dot product of key m and query n: each token sees itself and
    those before. A. Radford et al., Language Models are Unsupervised Multitask Learners, 2019.

    Args:
        channels: C, a multiple of the heads.
        heads: H; keys, queries and values are C / H wide.
        dropout: on the attention weights and on what is added to x, in training.
        bias: whether keys, queries and values have a bias, as in GPT-2.

    Shapes: (\*, N, C) -> (\*, N, C)

    >>> CausalAttention(8, heads=2)(torch.randn(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    """

    def __init__(self, channels: int, heads: int, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__()
        width = _divide(channels, heads)
        check_flags(bias=bias)
        self.norm = nn.LayerNorm(channels)
        causal = bases.Attention(heads, Dot(width, bias=bias), bases.Causal(), dropout=dropout)
        self.conv = BasisConv(channels, channels, causal, theta.LowRank(width, bias=bias))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, **mask: Any) -> Tensor:
        """As above; `mask` and `valid` are those of `BasisConv.forward`."""
        _check(x, self.conv)
        return x + self.dropout(self.conv(self.norm(x), **mask))


class RoutingBlock(nn.Module):
    r"""Routing attention: :math:`h = \mathrm{BN}(x + \mathrm{MHA}(x))`, :math:`y = \mathrm{BN}(h + \mathrm{FF}(h))`.

    Attention over all pairs of nodes, then W_2 relu(W_1 h + b_1) + b_2 at each node, both with a residual and batch
    normalisation over the nodes of all instances. There are no positions: nodes may come in any order. W. Kool, H. van
    Hoof and M. Welling, Attention, Learn to Solve Routing Problems! (arXiv:1803.08475).

    Args:
        channels: C, a multiple of the heads; 128 in the paper.
        heads: H; 8 in the paper.
        hidden: of the feed-forward part; 512 in the paper.

    Shapes: (\*, N, C) -> (\*, N, C)

    >>> RoutingBlock(8, heads=2, hidden=16)(torch.randn(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    """

    def __init__(self, channels: int, heads: int, hidden: int) -> None:
        super().__init__()
        width = _divide(channels, heads)
        check_count("hidden", hidden)
        self.conv = BasisConv(channels, channels, bases.Attention(heads, Dot(width)), theta.LowRank(width), bias=False)
        self.feed = nn.Sequential(nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, channels))
        self.norms = nn.ModuleList(nn.BatchNorm1d(channels) for _ in range(2))

    def forward(self, x: Tensor, **mask: Any) -> Tensor:
        """As above; `mask` is that of `BasisConv.forward`."""
        _check(x, self.conv)
        h = self._norm(0, x + self.conv(x, **mask))
        return self._norm(1, h + self.feed(h))

    def _norm(self, i: int, x: Tensor) -> Tensor:
        return self.norms[i](x.flatten(0, -2)).view_as(x)


def _check(x: Any, conv: BasisConv, sparse: bool = False) -> None:
    """Rejects features that do not fit the parameters of a block."""
    check_features(x, "x", conv.theta)
    check_like(x, next(conv.parameters()))  # not every theta has one
    if x.layout != torch.strided and not sparse:
        reject("x", "a dense tensor", x.layout, "convert it with .to_dense()")


def _offsets(taps: int, causal: bool) -> Sequence[int]:
    """The offsets n - m of a window, ascending: positions after its own come first."""
    check_count("taps", taps)
    check_flags(causal=causal)
    first = 0 if causal else -(taps // 2)
    return range(first, first + taps)


def _divide(channels: int, heads: int) -> int:
    """The width of one head."""
    check_count("channels", channels)
    check_count("heads", heads)
    if channels % heads:
        reject("heads", f"a divisor of the {channels} channels", repr(heads), "choose another number of heads")
    return channels // heads
