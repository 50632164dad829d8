"""Rows of convolutions on grids: layers of torch against their conversions, and a grid as typed edges."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.nn import FastRGCNConv, RGCNConv

from pyg_basisconv import BasisConv, bases, convert

from .compare import assert_close, assert_same_gradients, step
from .contest import Contest, checked, measure
from .result import Bench, Result, Target

LAYER = Target(ratio=0.95, group="layers of torch on grids")


class GridRow(NamedTuple):
    """A layer of torch on images (B, P, *grid), against its conversion.

    layer: makes the layer, with P channels in and out.
    """

    kind: str
    layer: Callable[[int], nn.Module]
    shape: tuple[int, ...]
    channels_last: bool = False
    target: Target = LAYER
    devices: tuple[str, ...] = ("cpu", "cuda")

    @property
    def name(self) -> str:
        B, _, *grid = self.shape
        last = ", channels last" * self.channels_last
        return f"{self.kind}, {B} x {' x '.join(map(str, grid))}{last}"

    def run(self, bench: Bench) -> Result:
        B, P, *grid = self.shape
        if bench.quick:
            B, P, grid = 2, P // 8, [max(4, n // 4) for n in grid]
        form = torch.channels_last if self.channels_last else torch.contiguous_format
        torch.manual_seed(0)
        start = self.layer(P).state_dict()
        x = torch.randn(B, P, *grid, device=bench.device).to(memory_format=form).requires_grad_()

        def peer(way: str) -> nn.Module:
            module = self.layer(P)
            module.load_state_dict(start)
            return module.to(bench.device).to(memory_format=form)

        contest = Contest(
            name=self.name,
            ways=["torch"],
            reference="torch",
            peer=peer,
            arguments=lambda way: (x,),
            convert=convert,
            ours=(x,),
            inputs=[x],
        )
        return contest.run(bench.closely, P=P, Q=P, target=self.target)


def layer_rows() -> list[GridRow]:
    """The layers of networks on images, sequences and volumes."""
    image = (64, 64, 32, 32)

    def plane(kernel: int, **kwargs: Any) -> Callable[[int], nn.Module]:
        return lambda P: nn.Conv2d(P, P, kernel, **kwargs)

    around = {"padding": 1, "padding_mode": "circular"}
    return [
        GridRow("Conv2d 3 x 3", plane(3, padding=1), image),
        GridRow("Conv2d 1 x 1", plane(1), image),
        GridRow("Conv2d 3 x 3 stride 2", plane(3, stride=2, padding=1), image),
        GridRow("Conv2d 3 x 3", plane(3, padding=1), image, channels_last=True),
        GridRow("Conv1d 3 taps", lambda P: nn.Conv1d(P, P, 3, padding=1), (64, 64, 1024)),
        GridRow("Conv3d 3 x 3 x 3", lambda P: nn.Conv3d(P, P, 3, padding=1), (8, 32, 16, 32, 32)),
        GridRow("ConvTranspose2d 4 x 4 stride 2", lambda P: nn.ConvTranspose2d(P, P, 4, 2, 1), image),
        GridRow("AvgPool2d 2", lambda P: nn.AvgPool2d(2), image),
        GridRow("depthwise Conv2d 3 x 3", lambda P: nn.Conv2d(P, P, 3, padding=1, groups=P), image),
        GridRow("Conv2d 3 x 3 in 4 groups", plane(3, padding=1, groups=4), image),
        GridRow("Conv2d 3 x 3 circular", plane(3, **around), image),
    ]


class Block(nn.Module):
    """Two convolutions with a residual (He et al., arXiv:1512.03385)."""

    def __init__(self, P: int, Q: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(P, Q, 3, stride, 1, bias=False),
            nn.BatchNorm2d(Q),
            nn.ReLU(),
            nn.Conv2d(Q, Q, 3, 1, 1, bias=False),
            nn.BatchNorm2d(Q),
        )
        through = nn.Sequential(nn.Conv2d(P, Q, 1, stride, bias=False), nn.BatchNorm2d(Q))
        self.through = nn.Identity() if P == Q and stride == 1 else through

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.through(x))


class Residual(nn.Sequential):
    """A stem, two blocks for each of three widths, the mean over the image, ten classes."""

    def __init__(self, width: int) -> None:
        stem = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        steps = [(width, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2)]
        blocks = [block for P, Q, stride in steps for block in (Block(P, Q, stride), Block(Q, Q, 1))]
        super().__init__(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10))


def training(model: nn.Module, x: Tensor, labels: Tensor) -> Callable[[], None]:
    """One step: forward, backward and SGD with momentum."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def train() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()

    return train


class TrainingRow(NamedTuple):
    """A residual network of torch and its conversion; values and gradients of a first step are compared.

    width: of the first blocks; narrow ones show the overhead around the kernels.
    """

    width: int
    target: Target = Target(ratio=0.95)
    devices: tuple[str, ...] = ("cpu", "cuda")

    @property
    def name(self) -> str:
        return f"training step of a residual network of width {self.width}, 32 images of 32 x 32"

    def run(self, bench: Bench) -> Result:
        B, side, width = (4, 8, 4) if bench.quick else (32, 32, self.width)
        torch.manual_seed(0)
        start = Residual(width).state_dict()

        def make() -> nn.Module:
            model = Residual(width)
            model.load_state_dict(start)
            return model.to(bench.device)

        x = torch.randn(B, 3, side, side, device=bench.device)
        labels = torch.randint(10, (B,), device=bench.device)
        gradient = torch.randn(B, 10, device=bench.device)
        peer, ours = make(), checked(convert(make()))
        expected, found = (step(lambda m=m: m(x), list(m.parameters()), gradient) for m in (peer, ours))
        assert_close(found[0], expected[0], f"{self.name}: the value")
        assert_same_gradients(make(), convert, expected[1:], found[1:], self.name)
        works = [training(model, x, labels) for model in (peer, ours)]
        # No ceiling: plans do not include normalisation and the optimizer.
        fields = {"work": self.name, "P": 3, "Q": 10, "gradients": "Theta", "way": "torch"}
        return measure(*works, bench.closely, target=self.target, **fields)


LAYOUTS = ("edges by type", "edges by target", "EdgeIndex")


def lay_out(way: str, edge_index: Tensor, kind: Tensor, N: int) -> tuple[Tensor, Tensor]:
    """Typed edges of N nodes, and their types, in one of the layouts."""
    order = (kind if "by type" in way else edge_index[1]).argsort(stable=True)
    edges: Tensor = edge_index[:, order]
    if "EdgeIndex" in way:
        edges = EdgeIndex(edges, sparse_size=(N, N), sort_order="col").fill_cache_()
    return edges, kind[order]


class TypedRow(NamedTuple):
    """Conv2d 3 x 3 on images as one graph, with nine types of edges, one for each tap of the window.

    layer: of PyG; the fast one makes a matrix for every edge, and needs more memory for as many images.
    """

    layer: type[RGCNConv]
    images: int
    backward: bool
    target: Target = Target(ratio=8)
    devices: tuple[str, ...] = ("cpu", "cuda")

    @property
    def name(self) -> str:
        kind = f"{self.layer.__name__}, 3 x 3 window as typed edges, {self.images} x 32 x 32"
        return kind + ", forward" * (not self.backward)

    def run(self, bench: Bench) -> Result:
        B, side, P = (2, 8, 8) if bench.quick else (self.images, 32, 64)
        window = bases.Window((B, side, side), (1, 3, 3), padding=(0, 1, 1))
        kind, source, target, _ = (part.to(bench.device) for part in window.edges())
        edge_index, E = torch.stack([source, target]), kind.numel()
        torch.manual_seed(0)
        start = RGCNConv(P, P, window.K, aggr="add", root_weight=False).state_dict()
        x = torch.randn(B * side**2, P, device=bench.device, requires_grad=self.backward)

        def peer(way: str) -> nn.Module:
            module = self.layer(P, P, window.K, aggr="add", root_weight=False)
            module.load_state_dict(start)
            return module.to(bench.device)

        def arguments(way: str) -> tuple[Any, ...]:
            return x, *lay_out(way, edge_index, kind, len(x))

        def ours(module: Any) -> nn.Module:
            conv = BasisConv(P, P, bases.Edges(window.K)).to(bench.device)
            with torch.no_grad():
                conv.weight.copy_(module.weight)
                conv.bias.copy_(module.bias)
            return conv

        contest = Contest(
            name=self.name,
            ways=list(LAYOUTS),
            reference=LAYOUTS[0],
            peer=peer,
            arguments=arguments,
            convert=ours,
            ours=(x, edge_index, None, kind),
            inputs=[x] if self.backward else [],
            backward=self.backward,
        )
        return contest.run(bench, graph="images", E=E, P=P, Q=P, target=self.target)


class WrittenRow:
    """Builds the edges of a window."""

    name = "edges of a 3 x 3 window, 1024 x 1024"
    target = Target(seconds=2)
    devices = ("cpu",)

    def run(self, bench: Bench) -> Result:
        side = 64 if bench.quick else 1024
        window = bases.Window((side, side), 3, padding=1)
        E = window.edges().type.numel()
        assert (3 * side - 2) ** 2 == E
        return measure(None, window.edges, bench, work=self.name, E=E, gradients="none", target=self.target)


def grid_rows() -> list[Any]:
    peers = ((RGCNConv, 64), (FastRGCNConv, 16))
    typed = [TypedRow(layer, images, backward) for layer, images in peers for backward in (False, True)]
    return [*layer_rows(), TrainingRow(16), TrainingRow(64), *typed, WrittenRow()]
