"""Rows of attention between all pairs: `F.scaled_dot_product_attention` with projections, against ours."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pyg_basisconv import BasisConv, bases, theta
from pyg_basisconv.mechanisms import Dot

from .contest import Contest
from .result import Bench, Result, Target

DENSE = Target(ratio=0.95, group="attention between all pairs")


class Projected(nn.Module):
    """Self-attention with H heads. packed: whether one product makes queries, keys and values."""

    def __init__(self, d: int, H: int, causal: bool, packed: bool) -> None:
        super().__init__()
        self.H, self.causal = H, causal
        widths = [3 * d] if packed else [d, d, d]
        self.inward = nn.ModuleList(nn.Linear(d, width) for width in widths)
        self.outward = nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        parts = [linear(x) for linear in self.inward]
        query, key, value = parts[0].chunk(3, -1) if len(parts) == 1 else parts
        sides = (side.unflatten(-1, (self.H, -1)).transpose(1, 2) for side in (query, key, value))
        y = F.scaled_dot_product_attention(*sides, is_causal=self.causal)
        return self.outward(y.transpose(1, 2).flatten(2))

    @property
    def weight(self) -> Tensor:
        """(3 d, d)"""
        return torch.cat([linear.weight for linear in self.inward])

    @property
    def bias(self) -> Tensor:
        """(3 d,)"""
        return torch.cat([linear.bias for linear in self.inward])

    @torch.no_grad()
    def take(self, other: "Projected") -> "Projected":
        """Copies the parameters of another, packed or not."""
        sizes = [linear.weight.shape[0] for linear in self.inward]
        for linear, weight, bias in zip(self.inward, other.weight.split(sizes), other.bias.split(sizes), strict=True):
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)
        self.outward.load_state_dict(other.outward.state_dict())
        return self


def ours(peer: Any) -> BasisConv:
    """The same function as a BasisConv."""
    d, H = peer.outward.in_features, peer.H
    D = d // H
    mask = bases.Causal() if peer.causal else None
    conv = BasisConv(d, d, bases.Attention(H, Dot(D, bias=True), mask), theta.LowRank(D, bias=True))
    query, key, value = peer.weight.view(3, H, D, d).transpose(2, 3)
    query_bias, key_bias, value_bias = peer.bias.view(3, H, D)
    dot: Any = conv.basis.mechanism
    with torch.no_grad():
        for ours, theirs in (
            (dot.query, query),
            (dot.key, key),
            (dot.query_bias, query_bias),
            (dot.key_bias, key_bias),
            (conv.theta.weight, value),
            (conv.theta.value_bias, value_bias),
            (conv.theta.output, peer.outward.weight.t().view(H, D, d)),
            (conv.bias, peer.outward.bias),
        ):
            ours.copy_(theirs)
    return conv.to(peer.outward.weight.device)


class DenseRow(NamedTuple):
    """B sequences of T positions and d channels, with H heads."""

    B: int
    T: int
    d: int
    H: int
    causal: bool
    target: Target = DENSE
    devices: tuple[str, ...] = ("cpu", "cuda")

    @property
    def name(self) -> str:
        kind = "causal" if self.causal else "all pairs"
        return f"dense attention, {kind}, {self.B} x {self.T}, {self.H} heads"

    def run(self, bench: Bench) -> Result:
        B, T, d, H, causal, *_ = self
        if bench.quick:
            B, T, d = min(B, 2), T // 16, d // 8
        torch.manual_seed(0)
        x = torch.randn(B, T, d, device=bench.device, requires_grad=True)
        start = Projected(d, H, causal, packed=True)
        contest = Contest(
            name=self.name,
            ways=["sdpa, packed", "sdpa, separate"],
            reference="sdpa, packed",
            peer=lambda way: Projected(d, H, causal, "packed" in way).take(start).to(bench.device),
            arguments=lambda way: (x,),
            convert=ours,
            ours=(x,),
            inputs=[x],
        )
        return contest.run(bench, P=d, Q=d, target=self.target)


def dense_rows() -> list[DenseRow]:
    shapes = [(8, 128, 256, 8), (2, 512, 512, 8), (1, 2048, 512, 8), (32, 64, 128, 4), (1, 16, 64, 4)]
    return [DenseRow(*shape, causal) for shape in shapes for causal in (False, True)]
