"""Rows of convolutions along a sequence, whose time should be linear in its length: band matrices against ours.

LightweightConv and DynamicConv of Wu et al. (arXiv:1901.10430), in the form that its authors take for training: the
taps are laid into a matrix (T, T) for each head.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pyg_basisconv import BasisConv, bases, theta
from pyg_basisconv.mechanisms import Tap

from .contest import Contest
from .result import Bench, Result, Target

CHANNELS, HEADS, OFFSETS = 256, 8, range(-15, 16)
LENGTHS = (512, 1024, 2048, 4096, 8192)


def band(taps: Tensor, fill: float) -> Tensor:
    """(H, T, O) taps of each position, O odd -> (H, T, T) with tap O // 2 on the diagonal, later ones above it."""
    H, T, O = taps.shape  # noqa: E741
    wide = taps.new_full((H, T, T + O - 1), fill)
    wide.as_strided((H, T, O), (T * (T + O - 1), T + O, 1)).copy_(taps)
    return wide.narrow(2, O // 2, T)


def by_heads(matrix: Tensor, x: Tensor) -> Tensor:
    """Each matrix (H, T, T) times its channels of x (T, P)."""
    H, T, _ = matrix.shape
    return torch.bmm(matrix, x.view(T, H, -1).transpose(0, 1)).transpose(0, 1).reshape(x.shape)


class Lightweight(nn.Module):
    """The taps of a head are a softmax of parameters, the same at each position."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(HEADS, len(OFFSETS)))

    def forward(self, x: Tensor) -> Tensor:
        taps = self.weight.softmax(-1)
        return by_heads(band(taps.unsqueeze(1).expand(-1, x.shape[0], -1), 0.0), x)

    def ours(self) -> BasisConv:
        kind = theta.Depthwise(shared=HEADS, normalize="softmax")
        conv = BasisConv(CHANNELS, CHANNELS, bases.Shifts(None, OFFSETS), kind, bias=False)
        with torch.no_grad():
            conv.weight.copy_(self.weight.flip(1).t())  # the first tap is offset 15: it reads 15 positions before
        return conv


class Dynamic(nn.Module):
    """The taps of a position are a softmax of a linear function of its features, over positions in the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CHANNELS, HEADS, len(OFFSETS)) / CHANNELS**0.5)

    def forward(self, x: Tensor) -> Tensor:
        taps = (x @ self.weight.flatten(1)).view(-1, *self.weight.shape[1:]).transpose(0, 1)
        return by_heads(band(taps, -torch.inf).softmax(-1), x)

    def ours(self) -> BasisConv:
        basis = bases.Attention(HEADS, Tap(OFFSETS), bases.Shifts(None, OFFSETS))
        conv = BasisConv(CHANNELS, CHANNELS, basis, theta.Split(), bias=False)
        with torch.no_grad():
            basis.mechanism.weight.copy_(self.weight.flip(2).transpose(0, 1))
        return conv


KINDS: dict[str, Any] = {"LightweightConv": Lightweight, "DynamicConv": Dynamic}


class SequenceRow(NamedTuple):
    """A sequence of T positions; matrices: whether the peer's are small enough."""

    kind: str
    T: int
    target: Target
    matrices: bool = True
    devices: tuple[str, ...] = ("cpu", "cuda")

    @property
    def name(self) -> str:
        return f"{self.kind}, 31 taps, T = {self.T}"

    def run(self, bench: Bench) -> Result:
        T = self.T // 16 if bench.quick else self.T
        torch.manual_seed(0)
        start = KINDS[self.kind]().to(bench.device)
        x = torch.randn(T, CHANNELS, device=bench.device, requires_grad=True)

        def peer(way: str) -> nn.Module:
            module: nn.Module = KINDS[self.kind]()
            module.load_state_dict(start.state_dict())
            return module.to(bench.device)

        contest = Contest(
            name=self.name,
            ways=["band matrix"] if self.matrices else [],
            reference="band matrix",
            peer=peer,
            arguments=lambda way: (x,),
            convert=lambda module: module.ours().to(bench.device),
            ours=(x,),
            inputs=[x],
        )
        fields = {"series": self.kind, "length": T}
        return contest.run(bench, P=CHANNELS, Q=CHANNELS, target=self.target, **fields)


def sequence_rows() -> list[SequenceRow]:
    asked = {512: 1.0, 8192: 5.0}
    rows = [SequenceRow("LightweightConv", T, Target(ratio=asked.get(T), slope=1.1)) for T in LENGTHS]
    # Band matrices of the longest, their softmax and the gradients of both take over 8 GB.
    return rows + [SequenceRow("DynamicConv", T, Target(slope=1.1), matrices=T < 8192) for T in LENGTHS]
