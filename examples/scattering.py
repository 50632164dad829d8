"""Features that nobody trains: the scattering transform of a graph is diffusion wavelets, modulus, and again.

    python -m examples.scattering --seeds 5

    U_0 = x,    U_{l+1} = |psi_0 U_l|, ..., |psi_{J-1} U_l|,    features: the means of the powers 1 .. Q of all of them

(F. Gama, A. Ribeiro and J. Bruna, arXiv:1806.08829; F. Gao, G. Wolf and M. Hirn, arXiv:1810.03068). All of it is
`BasisConv`, and none of it has a parameter: the wavelets are `bases.Wavelets` with `theta.Pass(combine='concat')`, the
means `bases.Bags('mean')`. The features do not depend on how the nodes are numbered.

Handwritten digits are graphs of 64 pixels, each joined to the up to eight around it; x is the ink. A ridge regression
on the standardised features, with the penalty that leaving one out chooses, learns from 700 digits, and is judged on
the other 1,097: as they are; turned or mirrored, each by lot; and with 5 % of their edges gone. Beside it the same
regression on the moments of the ink alone, on a cascade of as many powers of the same walk in place of their
differences, and on the 64 pixels in their order, which is much to know (and of which a model that is linear in them
does not make the most); and a network of two layers over the same wavelets, with batch norm, ReLU and a maximum over
the graph, whose parameters are learnt.

The modulus would do nothing to powers of the ink, none of which is negative: their cascade is linear and repeats
itself, as T^a T^b = T^(a+b). Powers are therefore those of the ink less its mean; so that both see the same, there is
the scattering of that, too. What is turned is the same graph, and must be read as it was by all but the pixels in their
order; a 6 upside down stays a 6 there.

The seeds 0, 1, ... are of the splits, of what is turned and how, and of the edges that are lost. The penalty alone is
chosen by data (and the mean ink is that of all digits): the numbers of scales, layers and moments, and all that there
is to set of the network, are one setting each, and no part of the digits is kept to choose among others.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from rich import box
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
from examples.options import at_least, parser as options_of
from pyg_basisconv import BasisConv, bases, theta

SIZE, CLASSES, FIT = 8, 10, 700
SCALES, DEPTH, MOMENTS = 5, 2, 4
MEAN = 0.305  # of the ink
LOST = 0.05  # of the edges
PENALTIES = np.logspace(-8, 3, 23)
WIDTH, BATCH, LR = 32, 50, 0.01  # of the network


class Graphs(NamedTuple):
    """Digits as one graph of many parts: x (64 B, 1), the edges, and (64 B,) the digit of each node."""

    x: Tensor
    edge_index: Tensor
    batch: Tensor


class Scattering(nn.Module):
    """The moments of the cascades of a family of K matrices with the modulus: Q P (1 + K + ... + K^depth) numbers.

    Args:
        basis: the family.
        depth: how many times.
        moments: Q.
        centre: what is taken from x before all.
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
    """The same wavelets with parameters, twice, and the maxima over each graph: (B, 10)."""

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
    """(B, 8, 8) the ink of all digits, and which they are."""
    data = digits()
    return data.x.view(-1, SIZE, SIZE), data.y


def neighbours() -> Tensor:
    """(2, E) the pairs of neighbouring pixels, one way round."""
    _, source, target, _ = bases.Window((SIZE, SIZE), (3, 3), padding=1).edges()
    once = source < target
    return torch.stack([source[once], target[once]]).long()


def as_graphs(images: Tensor, lost: float = 0.0, lot: torch.Generator | None = None) -> Graphs:
    """Images (B, 8, 8) as graphs, without a share of their edges, others in each."""
    B, N, pairs = len(images), SIZE * SIZE, neighbours()
    edges = (pairs[:, None] + N * torch.arange(B)[None, :, None]).flatten(1)
    edges = edges[:, torch.rand(edges.shape[1], generator=lot) >= lost]
    return Graphs(images.reshape(-1, 1), to_undirected(edges, num_nodes=B * N), torch.arange(B).repeat_interleave(N))


def turned(images: Tensor, lot: torch.Generator) -> Tensor:
    """Each image under one of the eight symmetries of the square."""
    every = [image.rot90(quarters, (-2, -1)) for image in (images, images.mT) for quarters in range(4)]
    return torch.stack(every)[torch.randint(8, (len(images),), generator=lot), torch.arange(len(images))]


TESTS = "as they are", "turned", "edges lost"


def as_tested(images: Tensor, seed: int) -> list[Graphs]:
    """The digits as they are, and twice as no model has seen them."""
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
    """Of a split: how many numbers are features, or parameters; and the accuracies on the tests, in percent."""

    numbers: int
    accuracies: list[float]


def split(seed: int) -> tuple[Tensor, Tensor]:
    """The digits to learn from, and the others."""
    order = torch.randperm(len(pixels()[1]), generator=torch.Generator().manual_seed(seed))
    return order[:FIT], order[FIT:]


def regression(found: Sequence[Tensor], seed: int) -> Run:
    """Learns from the features of the digits as they are, the first of those found."""
    y, (fit, test) = pixels()[1], split(seed)
    model = make_pipeline(StandardScaler(), RidgeClassifierCV(PENALTIES))
    model.fit(found[0][fit].numpy(), y[fit].numpy())
    return Run(found[0].shape[1], [100 * model.score(one[test].numpy(), y[test].numpy()) for one in found])


def network(several: Sequence[Graphs], seed: int, epochs: int) -> Run:
    """Adam on the cross-entropy of the digits as they are, with a rate that falls to zero."""
    (images, y), (fit, test) = pixels(), split(seed)
    torch.manual_seed(seed)
    net, lot = Network(), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(net.parameters(), LR)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for some in fit[torch.randperm(FIT, generator=lot)].split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(net(as_graphs(images[some])), y[some]).backward()
            optimizer.step()
        rate.step()
    net.eval()
    with torch.no_grad():
        found = [net(one._replace(x=one.x.float())).argmax(1) for one in several]
    right = [100 * (digit == y)[test].double().mean().item() for digit in found]
    return Run(sum(parameter.numel() for parameter in net.parameters()), right)


def compare(seeds: int, epochs: int) -> tuple[dict[str, list[Run]], dict[str, float]]:
    """The runs of all models, and the seconds of each: for the features of all digits, or for a training."""
    images = pixels()[0].double()  # some features of powers are sums of others, but for little
    runs: dict[str, list[Run]] = {name: [] for name in (*FEATURES, NETWORK)}
    seconds = dict.fromkeys(runs, 0.0)
    columns = TextColumn("{task.description:36}"), BarColumn(), TextColumn("{task.completed} of {task.total}")
    with Progress(*columns, TimeElapsedColumn()) as bar:
        job = bar.add_task("features", total=seeds * len(runs))
        for seed in range(seeds):
            several = as_tested(images, seed)
            for name in runs:
                bar.update(job, description=f"seed {seed}: {name}")
                start = time.perf_counter()
                if name == NETWORK:
                    runs[name].append(network(several, seed, epochs))
                    seconds[name] += (time.perf_counter() - start) / seeds
                else:
                    found = [FEATURES[name](one) for one in several]
                    seconds[name] += (time.perf_counter() - start) / seeds / len(TESTS)
                    runs[name].append(regression(found, seed))
                bar.advance(job)
    return runs, seconds


def table(runs: dict[str, list[Run]], seconds: dict[str, float]) -> Table:
    rows = Table(box=box.SIMPLE, pad_edge=False, show_edge=False)
    rows.add_column("model", no_wrap=True)
    for heading in ("numbers", *TESTS, "s"):
        rows.add_column(heading, justify="right", no_wrap=True)
    for name, found in runs.items():
        cells = [name, f"{found[0].numbers:,}"]
        for values in zip(*(run.accuracies for run in found), strict=True):
            spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.1f}{spread}")
        rows.add_row(*cells, f"{seconds[name]:.1f}")
    return rows


def arguments() -> argparse.ArgumentParser:
    parser = options_of("scattering", __doc__)
    add = parser.add_argument
    add("--seeds", type=at_least(1, int), default=5, help="how many splits")
    add("--epochs", type=at_least(1, int), default=40, help="of the training of the network")
    add("--quick", action="store_true", help="one seed, one epoch: to see that it works")
    add("--threads", type=at_least(1, int), default=1, help="of torch")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    options = arguments().parse_args(argv)
    torch.set_num_threads(options.threads)
    if options.quick:
        options.seeds = options.epochs = 1
    start = time.perf_counter()
    runs, seconds = compare(options.seeds, options.epochs)
    print(f"\nHandwritten digits as graphs, {FIT} to learn from: accuracy in percent on the others,")
    print(f"mean ± standard deviation of {options.seeds} splits; and the features, or parameters, of a model")
    Console().print(table(runs, seconds))
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
