"""Rows of recurrent cells: a step of DCRNN on a graph of the size of METR-LA, and a step of ConvLSTM."""

import importlib.util
import random
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch_geometric.nn import SimpleConv
from torch_geometric.utils import to_torch_csr_tensor

from pyg_basisconv import bases
from pyg_basisconv.recurrent import BasisGRUCell, BasisLSTMCell

from .contest import Arguments, Contest
from .data import Missing
from .result import Bench, Result, Target

SENSORS, LINKS, BATCH, READ, UNITS = 207, 1722, 64, 2, 64


def roads(N: int, E: int, seed: int = 0) -> Tensor:
    """(2, E) directed links, sorted by source, E a multiple of three; in- and out-degrees are equal.

    They are E / 3 triangles. PyG-Temporal weights the reverse walk in the order of the forward one, which is the
    diffusion of the paper only on graphs like this one, without weights.
    """
    draw, links = random.Random(seed), set[tuple[int, int]]()
    while len(links) < E:
        a, b, c = draw.sample(range(N), 3)
        new = {(a, b), (b, c), (c, a)}
        if not links & new:
            links |= new
    return torch.tensor(sorted(links)).t().contiguous()


@cache
def temporal() -> ModuleType:
    """PyG-Temporal's DCRNN, from its file alone, since importing the whole package requires others."""
    found = importlib.util.find_spec("torch_geometric_temporal")
    if found is None or found.origin is None:
        raise Missing("torch_geometric_temporal is not installed")
    path = Path(found.origin).parent / "nn" / "recurrent" / "dcrnn.py"
    spec = importlib.util.spec_from_file_location("torch_geometric_temporal_dcrnn", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class OfPowers(nn.Module):
    """Converts parameters of I, P and P^2 to PyG-Temporal's, of I, P and 2 P^2 - I: (2, K, P, Q), K up to 3."""

    def forward(self, weight: Tensor) -> Tensor:
        if weight.shape[1] < 3:
            return weight
        still, one, two = weight.unbind(1)
        return torch.stack([still + two / 2, one, two / 2], 1)


class TemporalStep(nn.Module):
    """A step of PyG-Temporal's `BatchedDCRNN` from a given state, with a copy of the graph for each entry.

    Its own call runs a sequence from zeros; this is one of its steps, with its cached graph. The parameters are those
    of the powers of the walks.
    """

    def __init__(self, units: int, K: int, edge_index: Tensor, N: int, B: int) -> None:
        super().__init__()
        self.cell = temporal().BatchedDCRNN(READ, units, K)
        self.convs = [self.cell.conv_x_r, self.cell.conv_x_z, self.cell.conv_x_h]
        for conv in self.convs:
            parametrize.register_parametrization(conv, "weight", OfPowers())
        self.edges = self.cell._replicate_edge_index(edge_index, B, N)
        self.weights = torch.ones(self.edges.shape[1], device=edge_index.device)
        self.known = False

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        X, H = x.flatten(0, 1), h.flatten(0, 1)
        graph, cell = (self.edges, self.weights), self.cell
        with parametrize.cached():
            Z = cell._calculate_update_gate(X, *graph, H, self.known)
            R = cell._calculate_reset_gate(X, *graph, H, self.known)
            candidate = cell._calculate_candidate_state(X, *graph, H, R, self.known)
        self.known = True
        return cell._calculate_hidden_state(Z, H, candidate).view_as(h)

    def gates(self) -> tuple[Tensor, Tensor]:
        """The parameters of r, z and the candidate: (2 K, P + H, 3 H), (3 H)."""
        weights: list[Any] = [conv.parametrizations.weight.original.flatten(0, 1) for conv in self.convs]
        return torch.cat(weights, -1), torch.cat([conv.bias for conv in self.convs])


LAYOUTS = ("edge_index", "copies of the graph, torch.sparse", "nodes first, torch.sparse")


class PyGStep(nn.Module):
    """The same step by `SimpleConv`s along and against the links, weighted as the walks; one product makes r and z.

    way: the graph with a batch of features; one block-diagonal matrix of the batch; or the nodes on the first axis, so
    that one product takes all features of a node.
    """

    def __init__(self, units: int, K: int, edge_index: Tensor, edge_weight: Tensor, N: int, B: int, way: str) -> None:
        super().__init__()
        self.way, self.K = way, K
        self.weight = nn.Parameter(torch.randn(2 * K, READ + units, 3 * units) / (2 * K * units) ** 0.5)
        self.bias = nn.Parameter(torch.randn(3 * units))
        self.conv = SimpleConv(aggr="sum")
        self.walks = []
        for source, target in (edge_index, edge_index.flip(0)):
            out = torch.zeros(N, device=source.device).index_add_(0, source, edge_weight)
            walk: list[Any] = [torch.stack([source, target]), edge_weight / out[source]]
            if way == LAYOUTS[1]:
                ahead = N * torch.arange(B, device=source.device).repeat_interleave(len(source))
                walk = [walk[0].repeat(1, B) + ahead, walk[1].repeat(B)]
            if way != LAYOUTS[0]:
                size = (N * B,) * 2 if way == LAYOUTS[1] else (N,) * 2
                walk = [to_torch_csr_tensor(walk[0].flip(0), walk[1], size)]  # PyG takes the transposed matrix
            self.walks.append(walk)

    def expand(self, x: Tensor) -> Tensor:
        """All powers of both walks, concatenated."""
        parts = []
        for walk in self.walks:
            now = x
            parts.append(now)
            for _ in range(1, self.K):
                now = self.conv(now.flatten(1) if self.way == LAYOUTS[2] else now, *walk).view_as(x)
                parts.append(now)
        return torch.cat(parts, -1)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        shape, H = h.shape, h.shape[-1]
        if self.way == LAYOUTS[1]:
            x, h = x.flatten(0, 1), h.flatten(0, 1)
        elif self.way == LAYOUTS[2]:
            x, h = x.transpose(0, 1), h.transpose(0, 1)
        weight = self.weight.flatten(0, 1)
        r, z = (self.expand(torch.cat([x, h], -1)) @ weight[:, : 2 * H] + self.bias[: 2 * H]).sigmoid().chunk(2, -1)
        n = (self.expand(torch.cat([x, r * h], -1)) @ weight[:, 2 * H :] + self.bias[2 * H :]).tanh()
        h = z * h + (1 - z) * n
        return h.transpose(0, 1) if self.way == LAYOUTS[2] else h.view(shape)

    def gates(self) -> tuple[Tensor, Tensor]:
        return self.weight, self.bias


def gru(step: Any) -> nn.Module:
    """Our cell with the parameters of one of these steps."""
    weight, bias = step.gates()
    K, width, H = weight.shape[0] // 2, weight.shape[1], weight.shape[2] // 3
    cell = BasisGRUCell(width - H, H, bases.Diffusion(K)).to(weight.device)
    with torch.no_grad():
        cell.input.weight.copy_(weight[:, :-H])
        cell.input.bias.copy_(bias)
        cell.hidden.weight.copy_(weight[:, -H:, : 2 * H])
        cell.candidate.weight.copy_(weight[:, -H:, 2 * H :])
    return cell


class DiffusionRow(NamedTuple):
    """A step of DCRNN, forward and backward, with the gradients of the state and of the parameters.

    As within a sequence, ours is bound to the graph, and the peer has cached it.

    K: the number of powers of the walks in each direction, with the zeroth.
    """

    K: int
    temporal: bool
    target: Target = Target()
    devices: tuple[str, ...] = ("cpu", "cuda")

    @property
    def name(self) -> str:
        peer = "PyG-Temporal" if self.temporal else "PyG's layers"
        return f"DCRNN step of {peer}, 64 x 207 nodes, {self.K} powers both ways"

    def run(self, bench: Bench) -> Result:
        B, N, E, units = (3, 20, 60, 8) if bench.quick else (BATCH, SENSORS, LINKS, UNITS)
        device = bench.device
        edge_index = roads(N, E).to(device)
        torch.manual_seed(0)
        edge_weight = None if self.temporal else torch.rand(E, device=device) + 0.1
        x = torch.randn(B, N, READ, device=device)
        h = torch.randn(B, N, units, device=device, requires_grad=True)

        def make(way: str) -> nn.Module:
            if edge_weight is None:
                return TemporalStep(units, self.K, edge_index, N, B).to(device)
            return PyGStep(units, self.K, edge_index, edge_weight, N, B, way).to(device)

        ways = ["BatchedDCRNN"] if self.temporal else list(LAYOUTS)
        start = make(ways[0]).state_dict()

        def peer(way: str) -> nn.Module:
            module = make(way)
            module.load_state_dict(start)
            return module

        ours: Arguments = (x, bases.Diffusion(self.K).bind(edge_index, edge_weight, size=N), h)
        contest = Contest(
            name=self.name,
            ways=ways,
            reference=ways[0],
            peer=peer,
            arguments=lambda way: (x, h),
            convert=gru,
            ours=ours,
            inputs=[h],
        )
        # No ceiling: plans do not include elementwise operations.
        return contest.run(bench, graph="roads", E=E, P=READ, Q=units, target=self.target, ceiling=None)


TOGETHER, APART = "one F.conv2d", "two F.conv2d"


class ConvLSTMStep(nn.Module):
    """The cell of Shi et al. (arXiv:1506.04214), with its peepholes; gates i, f, g, o.

    way: one convolution of x and h concatenated, or one of each.
    """

    def __init__(self, width: int, side: int, way: str) -> None:
        super().__init__()
        self.way = way
        self.weight = nn.Parameter(torch.randn(4 * width, 2 * width, 3, 3) / (18 * width) ** 0.5)
        self.bias = nn.Parameter(torch.randn(4 * width))
        self.peephole = nn.Parameter(torch.randn(3, width, side, side))

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> Tensor:
        h, c = state
        if self.way == TOGETHER:
            gates = F.conv2d(torch.cat([x, h], 1), self.weight, self.bias, padding=1)
        else:
            of_x, of_h = self.weight.split(x.shape[1], 1)
            gates = F.conv2d(x, of_x, self.bias, padding=1) + F.conv2d(h, of_h, padding=1)
        i, f, g, o = gates.chunk(4, 1)
        peep_i, peep_f, peep_o = self.peephole
        c = (f + peep_f * c).sigmoid() * c + (i + peep_i * c).sigmoid() * g.tanh()
        return torch.cat([(o + peep_o * c).sigmoid() * c.tanh(), c], 1)


class Joined(nn.Module):
    """Our cell, with h and c concatenated, as the peer returns them."""

    def __init__(self, cell: BasisLSTMCell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> Tensor:
        return torch.cat(self.cell(x, h=state), 1)


def lstm(step: Any) -> nn.Module:
    """Our cell with the peer's parameters."""
    width, side = step.weight.shape[1] // 2, step.peephole.shape[-1]
    window = bases.Window((side, side), 3, padding=1)
    cell = BasisLSTMCell(width, width, window, images=True, peepholes=(side, side)).to(step.weight.device)
    taps = [part.permute(2, 3, 1, 0).flatten(0, 1) for part in step.weight.split(width, 1)]
    with torch.no_grad():
        cell.input.weight.copy_(taps[0])
        cell.input.bias.copy_(step.bias)
        cell.hidden.weight.copy_(taps[1])
        cell.peephole.copy_(step.peephole)
    return Joined(cell)


class ConvLSTMRow:
    """A step of ConvLSTM, forward and backward, with the gradients of the state and of the parameters."""

    name = "ConvLSTM step, 3 x 3, 16 x 32 x 32"
    target = Target(ratio=0.95)
    devices = ("cpu", "cuda")

    def run(self, bench: Bench) -> Result:
        B, width, side = (2, 8, 8) if bench.quick else (16, 64, 32)
        torch.manual_seed(0)
        start = ConvLSTMStep(width, side, TOGETHER).state_dict()
        x, h, c = (torch.randn(B, width, side, side, device=bench.device) for _ in range(3))
        state = (h.requires_grad_(), c.requires_grad_())

        def peer(way: str) -> nn.Module:
            module = ConvLSTMStep(width, side, way)
            module.load_state_dict(start)
            return module.to(bench.device)

        contest = Contest(
            name=self.name,
            ways=[TOGETHER, APART],
            reference=TOGETHER,
            peer=peer,
            arguments=lambda way: (x, state),
            convert=lstm,
            ours=(x, state),
            inputs=state,
        )
        return contest.run(bench.closely, P=width, Q=width, target=self.target, ceiling=None)


def recurrent_rows() -> list[Any]:
    temporal = [DiffusionRow(K, True, Target(ratio=4)) for K in (2, 3)]
    return [*temporal, DiffusionRow(2, False), DiffusionRow(3, False), ConvLSTMRow()]
