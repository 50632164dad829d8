"""Features without training: the scattering transform of a graph repeats diffusion wavelets and the modulus.

    python -m examples.scattering --seeds 5

    U_0 = x,    U_{l+1} = |psi_0 U_l|, ..., |psi_{J-1} U_l|,    features: the means of the powers 1 .. Q of all of them

(F. Gama, A. Ribeiro and J. Bruna, arXiv:1806.08829; F. Gao, G. Wolf and M. Hirn, arXiv:1810.03068). It consists of
`BasisConv`s without parameters: the wavelets are `bases.Wavelets` with `theta.Pass(combine='concat')`, the means
`bases.Bags('mean')`. The features do not depend on the numbering of the nodes.

Handwritten digits are graphs of 64 pixels, each joined to its up to eight neighbours; x is the ink. A ridge regression
on the standardised features, with the penalty chosen by leave-one-out, learns from 700 digits. It is tested on the
other 1,097: as they are; under a random symmetry of the square; and without a random 5 % of their edges. The same
regression is fitted to the moments of the ink alone, to a cascade of as many powers of the same walk in place of their
differences, and to the 64 pixels in order, which tells much more (though a linear model cannot use all of it). Last is
a trained network of two layers over the same wavelets, with batch norm, ReLU and a maximum over the graph.

The modulus has no effect on powers of the ink, which are not negative: their cascade is linear and repeats itself, as
T^a T^b = T^(a+b). So powers are taken of the ink minus its mean, and for comparison there is the scattering of that,
too. A rotated image is the same graph, and has the same features, but for the pixels in order; a rotated 6 stays a 6.

The seeds 0, 1, ... determine the splits, the symmetries and the missing edges. Only the penalty is chosen by data (and
the mean ink is that of all digits); the numbers of scales, layers and moments and the settings of the network are fixed
beforehand, without a validation set.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sklearn.linear_model import RidgeClassifierCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch_geometric.nn import global_max_pool
from torch_geometric.utils import to_undirected

from examples.data import digits
from examples.options import add_machine, at_least, parsed, parser as options_of
from examples.tables import spread, table
from pyg_basisconv import BasisConv, bases, theta

SIZE, CLASSES, FIT = 8, 10, 700
SCALES, DEPTH, MOMENTS = 5, 2, 4
MEAN = 0.305  # of the ink
LOST = 0.05  # of the edges
PENALTIES = np.logspace(-8, 3, 23)
WIDTH, BATCH, LR = 32, 50, 0.01  # of the network


class Graphs(NamedTuple):
    """A batch of digits: x (64 B, 1), the edges, and (64 B,) the number of the digit of each node."""

    x: Tensor
    edge_index: Tensor
    batch: Tensor

    def to(self, device: str) -> "Graphs":
        return Graphs(*(t.to(device) for t in self))


class Scattering(nn.Module):
    """The moments of a scattering cascade over K matrices: Q P (1 + K + ... + K^depth) numbers.

    Args:
        basis: the family.
        depth: the number of layers.
        moments: Q.
        centre: is subtracted from x.
    """

    def __init__(self, basis: bases.Basis, depth: int = DEPTH, moments: int = MOMENTS, *, centre: float = 0.0) -> None:
        super().__init__()
        self.depth, self.moments, self.centre = depth, moments, centre
        self.members = BasisConv(-1, -1, basis, theta.Pass(combine="concat"), bias=False)
        self.mean = BasisConv(-1, -1, bases.Bags("mean"), theta.Pass(), bias=False)

    def cascade(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """(*, N, P) -> (*, N, P (1 + K + ... + K^depth)), layer after layer."""
        layers = [x]
        for _ in range(self.depth):
            layers.append(self.members(layers[-1], edge_index).abs())
        return torch.cat(layers, -1)

    def forward(self, graphs: Graphs) -> Tensor:
        u = self.cascade(graphs.x - self.centre, graphs.edge_index)
        return torch.cat([self.mean(u**q, batch=graphs.batch) for q in range(1, self.moments + 1)], 1)


def powers(scales: int) -> bases.Basis:
    """The powers 1, 2, 4, ... of the lazy walk, whose differences are the wavelets."""
    lazy = bases.Mix([0.5, 0.5], bases.Identity() + bases.Adjacency("rw"))
    longest = 2 ** (scales - 1)
    chosen = torch.eye(longest + 1)[[2**j for j in range(scales)]]
    return bases.Mix(chosen, bases.Powers(longest + 1, lazy))


class Network(nn.Module):
    """Two layers over the same wavelets, with parameters, and the maxima over each graph: (B, 10)."""

    def __init__(self) -> None:
        super().__init__()
        wavelets = bases.Wavelets(SCALES)
        self.layers = nn.ModuleList(BasisConv(P, WIDTH, wavelets) for P in (1, WIDTH))
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in self.layers)
        self.scores = nn.Linear(WIDTH, CLASSES)

    def forward(self, graphs: Graphs) -> Tensor:
        x = graphs.x
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = torch.relu(norm(layer(x, graphs.edge_index)))
        return self.scores(global_max_pool(x, graphs.batch))


@cache
def pixels() -> tuple[Tensor, Tensor]:
    """(B, 8, 8) the ink of all digits, and (B,) their classes."""
    data = digits()
    return data.x.view(-1, SIZE, SIZE), data.y


def neighbours() -> Tensor:
    """(2, E) the pairs of neighbouring pixels, each once."""
    _, source, target, _ = bases.Window((SIZE, SIZE), (3, 3), padding=1).edges()
    once = source < target
    return torch.stack([source[once], target[once]]).long()


def as_graphs(images: Tensor, lost: float = 0.0, generator: torch.Generator | None = None) -> Graphs:
    """Images (B, 8, 8) as graphs, without a random share of their edges."""
    B, N, pairs = len(images), SIZE * SIZE, neighbours()
    edges = (pairs[:, None] + N * torch.arange(B)[None, :, None]).flatten(1)
    edges = edges[:, torch.rand(edges.shape[1], generator=generator) >= lost]
    return Graphs(images.reshape(-1, 1), to_undirected(edges, num_nodes=B * N), torch.arange(B).repeat_interleave(N))


def turned(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image under a random symmetry of the square."""
    every = [image.rot90(quarters, (-2, -1)) for image in (images, images.mT) for quarters in range(4)]
    return torch.stack(every)[torch.randint(8, (len(images),), generator=generator), torch.arange(len(images))]


TESTS = "as they are", "turned", "edges lost"


def as_tested(images: Tensor, seed: int) -> list[Graphs]:
    """The digits as they are, under symmetries, and with edges missing."""
    turn, lose = (torch.Generator().manual_seed(seed) for _ in range(2))
    return [as_graphs(images), as_graphs(turned(images, turn)), as_graphs(images, LOST, lose)]


FEATURES: dict[str, Callable[[Graphs], Tensor]] = {
    "moments of the ink": Scattering(bases.Identity(), 0),
    "centred powers": Scattering(powers(SCALES), centre=MEAN),
    "scattering, depth 1": Scattering(bases.Wavelets(SCALES, low_pass=False), 1),
    "scattering, depth 2": Scattering(bases.Wavelets(SCALES, low_pass=False)),
    "centred scattering": Scattering(bases.Wavelets(SCALES, low_pass=False), centre=MEAN),
    "pixels in order": lambda digits: digits.x.view(-1, SIZE * SIZE),
}
NETWORK = "network over wavelets"


class Run(NamedTuple):
    """The number of features or parameters, and the test accuracies in percent, for a split."""

    numbers: int
    accuracies: list[float]


def split(seed: int) -> tuple[Tensor, Tensor]:
    """The training and the test digits."""
    order = torch.randperm(len(pixels()[1]), generator=torch.Generator().manual_seed(seed))
    return order[:FIT], order[FIT:]


def regression(found: Sequence[Tensor], seed: int) -> Run:
    """Fits a ridge regression to the features of the digits as they are, which come first."""
    y, (fit, test) = pixels()[1], split(seed)
    model = make_pipeline(StandardScaler(), RidgeClassifierCV(PENALTIES))
    arrays = [one.cpu().numpy() for one in found]
    model.fit(arrays[0][fit], y[fit].numpy())
    return Run(arrays[0].shape[1], [100 * model.score(one[test], y[test].numpy()) for one in arrays])


def network(several: Sequence[Graphs], seed: int, epochs: int, device: str = "cpu") -> Run:
    """Trains the network on the digits as they are, by Adam with a rate that falls to zero."""
    (images, y), (fit, test) = pixels(), split(seed)
    torch.manual_seed(seed)
    net, generator = Network().to(device), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(net.parameters(), LR)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for some in fit[torch.randperm(FIT, generator=generator)].split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(net(as_graphs(images[some]).to(device)), y[some].to(device)).backward()
            optimizer.step()
        rate.step()
    net.eval()
    with torch.no_grad():
        found = [net(one._replace(x=one.x.float())).argmax(1).cpu() for one in several]
    right = [100 * (digit == y)[test].double().mean().item() for digit in found]
    return Run(sum(parameter.numel() for parameter in net.parameters()), right)


def compare(seeds: int, epochs: int, device: str = "cpu") -> tuple[dict[str, list[Run]], dict[str, float]]:
    """The runs of all models, and their seconds, for the features of all digits or a training."""
    images = pixels()[0].double()  # in double precision, since some features of powers are nearly sums of others
    runs: dict[str, list[Run]] = {name: [] for name in (*FEATURES, NETWORK)}
    seconds = dict.fromkeys(runs, 0.0)
    columns = TextColumn("{task.description:36}"), BarColumn(), TextColumn("{task.completed} of {task.total}")
    with Progress(*columns, TimeElapsedColumn()) as bar:
        job = bar.add_task("features", total=seeds * len(runs))
        for seed in range(seeds):
            several = [graphs.to(device) for graphs in as_tested(images, seed)]
            for name in runs:
                bar.update(job, description=f"seed {seed}: {name}")
                start = time.perf_counter()
                if name == NETWORK:
                    runs[name].append(network(several, seed, epochs, device))
                    seconds[name] += (time.perf_counter() - start) / seeds
                else:
                    found = [FEATURES[name](one) for one in several]
                    seconds[name] += (time.perf_counter() - start) / seeds / len(TESTS)
                    runs[name].append(regression(found, seed))
                bar.advance(job)
    return runs, seconds


def results(runs: dict[str, list[Run]], seconds: dict[str, float]) -> Table:
    rows = table("model", "numbers", *TESTS, "s")
    for name, found in runs.items():
        accuracies = zip(*(run.accuracies for run in found), strict=True)
        cells = [spread(values, 1) for values in accuracies]
        rows.add_row(name, f"{found[0].numbers:,}", *cells, f"{seconds[name]:.1f}")
    return rows


def arguments() -> argparse.ArgumentParser:
    parser = options_of("scattering", __doc__)
    add = parser.add_argument
    add("--seeds", type=at_least(1, int), default=5, help="number of splits")
    add("--epochs", type=at_least(1, int), default=40, help="of the training of the network")
    add_machine(parser, quick="one seed and one epoch")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments()
    options = parsed(parser, argv)
    if options.quick:
        options.seeds = options.epochs = 1
    start = time.perf_counter()
    runs, seconds = compare(options.seeds, options.epochs, options.device)
    print(f"\nHandwritten digits as graphs, {FIT} to learn from: accuracy in percent on the others,")
    print(f"mean ± standard deviation of {options.seeds} splits; and the features, or parameters, of a model")
    Console().print(results(runs, seconds))
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
