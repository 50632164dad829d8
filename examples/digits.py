"""Kernels on relative positions: handwritten digits as sets of points, upright and turned.

    python -m examples.digits --seeds 3

Each digit is a set of points: the pixels with ink, with their position and their ink, joined to those
within 2.3 pixels. Features of an edge are where its source lies as seen from its target. Two layers, their kernels a
basis on these features (or, of plain Chebyshev polynomials and of the mean, on none), then the mean over the points
(`bases.Bags`):

    y = sum_k A_k^T x Theta_k + b,    (A_k)_mn = phi_k(position of m - position of n) / (edges into n)

The points of the tests are also turned by a random angle of up to 30 or up to 180 degrees, and joined anew. That
leaves the graph as it is, so networks that read no positions cannot tell.

All networks are as wide as gives about the same number of parameters. The learning rate of each is the better of two on
a validation set, of upright digits, with each seed; of the 1,797 digits 700 are for training, 300 for validation and
797 for the test, by the seed. The numbers of members are fixed beforehand.
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn

from examples.data import digits
from examples.options import add_machine, at_least, parsed, parser as options_of
from examples.tables import spread, table
from pyg_basisconv import BasisConv, bases, theta

SIZE, CLASSES, REACH = 8, 10, 2.3  # REACH: of neighbours, in pixels, between two distances of the grid
FIT, VALIDATE = 700, 300
BATCH, RATES = 50, (0.005, 0.02)
ANGLES = {"upright": 0.0, "up to 30°": 30.0, "up to 180°": 180.0}


class Points(NamedTuple):
    """A batch of digits: ink (M, 1), edges, relative positions (E, 2) in [0, 1], and the digit of each point (M,)."""

    x: Tensor
    edge_index: Tensor
    z: Tensor
    batch: Tensor


def around() -> list[list[float]]:
    """Kernel points: the middle, which is the target, and eight around it."""
    turns = [math.tau * i / 8 for i in range(8)]
    return [[0.5, 0.5], *([0.5 + 0.3 * math.cos(a), 0.5 + 0.3 * math.sin(a)] for a in turns)]


def moved(points: Points, device: str) -> Points:
    return Points(*(t.to(device) for t in points))


class Kernel(NamedTuple):
    """A basis, the width that gives about as many parameters, and whether it reads positions."""

    basis: Callable[[], bases.Basis]
    width: int
    positions: bool = True


KERNELS: dict[str, Kernel] = {
    "Adjacency + Identity": Kernel(lambda: bases.Adjacency("mean") + bases.Identity(), 69, False),
    "Chebyshev(3)": Kernel(lambda: bases.Chebyshev(3), 56, False),
    "Spline(3 x 3) + Identity": Kernel(lambda: bases.Spline((3, 3), norm="mean") + bases.Identity(), 30),
    "Gaussians(9) + Identity": Kernel(lambda: bases.Gaussians(9, 2, "mean") + bases.Identity(), 30),
    "Points(9) + Identity": Kernel(lambda: bases.Points(around(), 0.3, norm="mean") + bases.Identity(), 30),
}


class Net(nn.Module):
    """Two layers, each with batch norm and ReLU, and the scores of the mean over a digit's points: (B, 10)."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.positions = kernel.positions
        self.layers = nn.ModuleList(BasisConv(P, kernel.width, kernel.basis()) for P in (1, kernel.width))
        self.norms = nn.ModuleList(nn.BatchNorm1d(kernel.width) for _ in self.layers)
        self.readout = BasisConv(kernel.width, CLASSES, bases.Bags("mean"), theta.Full())

    def forward(self, points: Points) -> Tensor:
        x = points.x
        given = {"edge_attr": points.z} if self.positions else {}
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = torch.relu(norm(layer(x, points.edge_index, **given)))
        return self.readout(x, batch=points.batch)


@cache
def images() -> tuple[Tensor, Tensor]:
    """(B, 64) the ink of all digits, and (B,) their classes."""
    data = digits()
    return data.x, data.y


def as_points(ink: Tensor, degrees: Tensor) -> Points:
    """Digits (B, 64), each turned by its angle (B,), as points that are joined to those within reach."""
    B, side = len(ink), torch.arange(SIZE) - (SIZE - 1) / 2
    grid = torch.stack([side.repeat_interleave(SIZE), side.repeat(SIZE)], 1).double()
    cos, sin = degrees.double().deg2rad().cos(), degrees.double().deg2rad().sin()
    turn = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)  # (B, 2, 2)
    position = grid @ turn.mT  # (B, 64, 2)
    seen = ink > 0
    near = (torch.cdist(position, position) < REACH) & seen[:, :, None] & seen[:, None]
    digit, source, target = (near & ~torch.eye(SIZE**2, dtype=torch.bool)).nonzero(as_tuple=True)
    number = seen.flatten().cumsum(0).view(B, -1) - 1
    z = (position[digit, source] - position[digit, target]) / (2 * REACH) + 0.5
    edge_index = torch.stack([number[digit, source], number[digit, target]])
    return Points(ink[seen][:, None], edge_index, z.clamp(0, 1).to(ink), seen.nonzero()[:, 0])


def split(seed: int) -> list[Tensor]:
    """The digits for training, for validation and for the test."""
    order = torch.randperm(len(images()[1]), generator=torch.Generator().manual_seed(seed))
    return [order[:FIT], order[FIT : FIT + VALIDATE], order[FIT + VALIDATE :]]


def turned(seed: int, which: Tensor, most: float) -> Points:
    """Digits, each turned by a random angle."""
    angles = 2 * torch.rand(len(which), generator=torch.Generator().manual_seed(seed)) - 1
    return as_points(images()[0][which], most * angles)


def train(kernel: Kernel, seed: int, epochs: int, rate: float, device: str = "cpu") -> Net:
    """Trains a network on upright digits, by Adam with a rate that falls to zero."""
    (ink, y), fit = images(), split(seed)[0]
    torch.manual_seed(seed)
    net, generator = Net(kernel).to(device), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(net.parameters(), rate)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    batches = [fit[i : i + BATCH] for i in range(0, len(fit), BATCH)]
    ready = [(moved(as_points(ink[some], torch.zeros(len(some))), device), y[some].to(device)) for some in batches]
    for _ in range(epochs):
        for i in torch.randperm(len(ready), generator=generator):
            points, label = ready[int(i)]
            optimizer.zero_grad()
            F.cross_entropy(net(points), label).backward()
            optimizer.step()
        falling.step()
    return net.eval()


@torch.no_grad()
def accuracy(net: Net, points: Points, which: Tensor) -> float:
    """In percent."""
    return 100 * float((net(points).argmax(1).cpu() == images()[1][which]).double().mean())


class Run(NamedTuple):
    """The parameters of a network, the learning rate that validation chose, and its accuracies under each angle."""

    parameters: int
    rate: float
    accuracies: list[float]


def run(kernel: Kernel, seed: int, epochs: int, advance: Callable[[], None] = lambda: None, device: str = "cpu") -> Run:
    """Trains with each rate, and tests the one that is best on the upright digits for validation."""
    _, validate, test = split(seed)
    upright, tried = moved(turned(seed, validate, 0.0), device), []
    for rate in RATES:
        net = train(kernel, seed, epochs, rate, device)
        tried.append((accuracy(net, upright, validate), rate, net))
        advance()
    _, rate, best = max(tried, key=lambda one: one[0])
    found = [accuracy(best, moved(turned(seed, test, most), device), test) for most in ANGLES.values()]
    return Run(sum(p.numel() for p in best.parameters()), rate, found)


def compare(seeds: int, epochs: int, device: str = "cpu") -> dict[str, list[Run]]:
    """The runs of all kernels."""
    runs: dict[str, list[Run]] = {name: [] for name in KERNELS}
    columns = TextColumn("{task.description:36}"), BarColumn(), TextColumn("{task.completed} of {task.total}")
    with Progress(*columns, TimeElapsedColumn()) as bar:
        job = bar.add_task("digits", total=seeds * len(runs) * len(RATES))
        for seed in range(seeds):
            for name, kernel in KERNELS.items():
                bar.update(job, description=f"seed {seed}: {name}")
                runs[name].append(run(kernel, seed, epochs, lambda: bar.advance(job), device))
    return runs


def results(runs: dict[str, list[Run]]) -> Table:
    rows = table("kernel", "parameters", *ANGLES)
    for name, found in runs.items():
        accuracies = zip(*(run.accuracies for run in found), strict=True)
        rows.add_row(name, f"{found[0].parameters:,}", *(spread(values, 1) for values in accuracies))
    return rows


def arguments() -> argparse.ArgumentParser:
    parser = options_of("digits", __doc__)
    add = parser.add_argument
    add("--seeds", type=at_least(1, int), default=3, help="number of splits and trainings")
    add("--epochs", type=at_least(1, int), default=10, help="of a training")
    add_machine(parser, quick="one seed and one epoch")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments()
    options = parsed(parser, argv)
    if options.quick:
        options.seeds = options.epochs = 1
    start = time.perf_counter()
    runs = compare(options.seeds, options.epochs, options.device)
    print(f"\nHandwritten digits as points, {FIT} upright ones to learn from, the tests turned by a random angle:")
    print(f"accuracy in percent, mean ± standard deviation of {options.seeds} seeds")
    Console().print(results(runs))
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
