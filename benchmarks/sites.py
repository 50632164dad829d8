"""Rows of convolutions on the active sites of a large grid, whose time should be linear in their number.

A site reads those of its 27 neighbours that are sites (Graham and van der Maaten, arXiv:1706.01307). The dense grid
would have 128 million positions, so ours has no peer there, and is compared with `F.conv3d` on a grid of 64 x 64 x 64.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pyg_basisconv import BasisConv, bases

from .contest import Contest, measure
from .result import Bench, Result, Target

CHANNELS, SIDE = 32, 512
COUNTS = (10_000, 30_000, 100_000, 300_000, 1_000_000)
CELL, RADIUS = 16, 5


@dataclass(eq=False)
class Cloud:
    """Sites (N, 3) in lexicographic order, as in voxels of a point cloud."""

    side: int
    sites: Tensor

    @property
    def N(self) -> int:
        return self.sites.shape[0]

    @cached_property
    def E(self) -> int:
        """The pairs of sites within a window of 3 x 3 x 3, with each site itself."""
        wide = self.side + 2
        code = _code(self.sites + 1, wide)
        total = 0
        for step in product((-1, 0, 1), repeat=3):
            other = code + _code(torch.tensor(step, device=code.device), wide)
            place = torch.searchsorted(code, other).clamp(max=self.N - 1)
            total += int((code[place] == other).sum())
        return total

    def to(self, device: str) -> "Cloud":
        return Cloud(self.side, self.sites.to(device))

    def __str__(self) -> str:
        return f"{self.N:,} sites of {self.side}^3, each sees {self.E / self.N:.3g}, itself included"


def _code(sites: Tensor, side: int) -> Tensor:
    """(..., 3) -> (...) the positions in a flattened grid."""
    a, b, c = sites.long().unbind(-1)
    return (a * side + b) * side + c


def cloud(count: int, side: int, seed: int = 0) -> Cloud:
    """Disjoint spherical shells of voxels at random positions of a grid, for equal neighbourhoods at all sizes."""
    generator = torch.Generator().manual_seed(seed)
    span = torch.arange(-RADIUS, RADIUS + 1)
    ball = torch.cartesian_prod(span, span, span)
    shell = ball[(ball.float().norm(dim=1) - RADIUS).abs() < 0.5]
    shells, cells = -(-count // len(shell)), side // CELL
    assert shells <= cells**3, f"no room for {count} sites in {side}^3"
    cell = torch.randperm(cells**3, generator=generator)[:shells]
    corner = CELL * torch.stack([cell // cells**2, cell // cells % cells, cell % cells], 1)
    centre = corner + torch.randint(RADIUS, CELL - RADIUS, (shells, 3), generator=generator)
    sites = (centre.unsqueeze(1) + shell).flatten(0, 1)[:count]
    return Cloud(side, sites[_code(sites, side).argsort()].contiguous())


class OnGrid(nn.Module):
    """The same convolution on the dense grid, with zeros elsewhere, read at the sites."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side
        self.conv = nn.Conv3d(CHANNELS, CHANNELS, 3, padding=1)

    def forward(self, x: Tensor, sites: Tensor) -> Tensor:
        place = _code(sites, self.side)
        grid = x.new_zeros(self.side**3, CHANNELS).index_copy(0, place, x)
        grid = grid.t().reshape(1, CHANNELS, *[self.side] * 3)
        y = F.conv3d(grid, self.conv.weight, self.conv.bias, padding=1)
        return y.flatten(2)[0].t().index_select(0, place)


class SitesRow(NamedTuple):
    """A convolution 3 x 3 x 3 of N sites. dense: whether the whole grid is small enough for the peer."""

    N: int
    target: Target
    side: int = SIDE
    dense: bool = False
    devices: tuple[str, ...] = ("cpu", "cuda")

    @property
    def name(self) -> str:
        return f"submanifold 3 x 3 x 3, {self.N:,} sites of {self.side}^3"

    def run(self, bench: Bench) -> Result:
        side = self.side // 2 if bench.quick and self.dense else self.side
        cloud = some(bench, self.N, side)
        window = bases.Window((side,) * 3, 3, padding=1)
        torch.manual_seed(0)
        start = OnGrid(side).state_dict()
        x = torch.randn(cloud.N, CHANNELS, device=bench.device, requires_grad=True)

        def peer(way: str) -> nn.Module:
            module = OnGrid(side)
            module.load_state_dict(start)
            return module.to(bench.device)

        def ours(module: Any) -> nn.Module:
            conv = BasisConv(CHANNELS, CHANNELS, window).to(bench.device)
            with torch.no_grad():
                conv.weight.copy_(module.conv.weight.permute(2, 3, 4, 1, 0).flatten(0, 2))
                conv.bias.copy_(module.conv.bias)
            return conv

        contest = Contest(
            name=self.name,
            ways=["dense grid"] if self.dense else [],
            reference="dense grid",
            peer=peer,
            arguments=lambda way: (x, cloud.sites),
            convert=ours,
            ours=(x, window.at(cloud.sites).bind()),
            inputs=[x],
        )
        fields: dict[str, Any] = {} if self.dense else {"series": "submanifold 3 x 3 x 3", "length": cloud.N}
        return contest.run(bench, graph=str(cloud), E=cloud.E, P=CHANNELS, Q=CHANNELS, target=self.target, **fields)


class SetUpRow(NamedTuple):
    """The set-up for N sites: finding their neighbours."""

    N: int
    target: Target
    devices: tuple[str, ...] = ("cpu", "cuda")

    @property
    def name(self) -> str:
        return f"set-up of a window 3 x 3 x 3, {self.N:,} sites of {SIDE}^3"

    def run(self, bench: Bench) -> Result:
        cloud = some(bench, self.N, SIDE)
        window = bases.Window((SIDE,) * 3, 3, padding=1)

        def bind() -> object:
            return window.at(cloud.sites).bind()

        fields = {"series": "set-up of a window 3 x 3 x 3", "length": cloud.N, "gradients": "none"}
        return measure(None, bind, bench, work=self.name, graph=str(cloud), E=cloud.E, target=self.target, **fields)


def some(bench: Bench, count: int, side: int) -> Cloud:
    """The cloud that rows with the same number of sites share."""
    count = count // 100 if bench.quick else count
    return bench.keep(f"{count} of {side}", lambda: cloud(count, side).to(bench.device))


def sites_rows() -> list[Any]:
    # Thirty arrays of the sites' features: input and output, and the products of 27 members.
    most = {100_000: 30 * 100_000 * CHANNELS * 4}
    rows = [SitesRow(N, Target(slope=1.1, peak=most.get(N))) for N in COUNTS]
    setups = [SetUpRow(N, Target(slope=1.1)) for N in COUNTS]
    return [SitesRow(10_000, Target(), side=64, dense=True), *rows, *setups]
