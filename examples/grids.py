"""Convolution on a grid is the formula with shifts for a basis: three uses, on handwritten digits of 8 x 8 pixels.

    python -m examples.grids --seeds 5 --picture shifts.svg

1. A network of `GridConv` is one of `nn.Conv2d`: from the same weights, the losses of a training agree at every step,
   whether torch's own convolution evaluates the formula, or sparse products do.
2. As typed edges (`ToGrid`, `bases.Edges`), the same layers take grids with holes: a random fifth of the pixels is
   missing in each image and epoch, and these are no nodes. The network of `nn.Conv2d` gets zeros there.
3. With a group of rotations (`bases.Group`), a network that learns from upright digits recognises rotated ones.

All networks have three layers of 3 x 3 windows, the maximum or the mean over an image of the last layer's result (and
the mean over the group), and a linear layer. They are trained on 700 images and tested on the other 1,097
(`examples.data.digits`). The seeds are 0, 1, ...
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from matplotlib import rc_context
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn
from torch.utils.data import Dataset
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import global_max_pool, global_mean_pool

from examples.data import digits
from examples.options import add_machine, at_least, parsed, parser as options_of
from examples.tables import spread, table
from pyg_basisconv import BasisConv, GridConv, bases
from pyg_basisconv.transforms import ToGrid

SIZE, CLASSES, WIDTH, BATCH = 8, 10, 32, 50
FIT = 500  # of the training images, on which `--choose` trains; it decides by the others
MISSING, TEST_SEED = 0.2, 1000
QUARTERS = range(4)
WINDOW = bases.Window(None, (3, 3), padding=1)
TO_GRID = ToGrid(WINDOW)
SAME_EPOCHS, TOLERANCE = 10, 1e-9  # of losses in float64

Layer = Callable[[int, int], nn.Module]  # from the numbers of channels, in and out


def dense(P: int, Q: int) -> nn.Module:
    return nn.Conv2d(P, Q, 3, padding=1)


def grid(P: int, Q: int) -> nn.Module:
    return GridConv(P, Q, WINDOW)


def edges(P: int, Q: int) -> nn.Module:
    return BasisConv(P, Q, bases.Edges(WINDOW.K))


def turning(P: int, Q: int) -> nn.Module:
    """The first layer maps images to images over the group of four rotations, later ones map these."""
    return GridConv(P, Q, bases.Group("p4", WINDOW, lift=P == 1))


class Settings(NamedTuple):
    """How a network is trained, and what it takes of an image."""

    rate: float = 0.005
    epochs: int = 40
    pool: str = "max"
    device: str = "cpu"


Pool = Callable[..., Tensor]
POOLS: dict[str, tuple[Pool, Pool]] = {  # of graphs, and of images
    "max": (global_max_pool, torch.amax),
    "mean": (global_mean_pool, torch.mean),
}
# Among which `--choose` decides.
SPACE = [Settings(*each) for each in product((0.002, 0.005, 0.01), (20, 40, 80), POOLS)]


class Net(nn.Module):
    """Three layers, the maximum or the mean over an image, the mean over the group, and scores: (B, 10)."""

    def __init__(self, layer: Layer, width: int = WIDTH, pool: str = "max") -> None:
        super().__init__()
        self.pool = pool
        self.layers = nn.ModuleList(layer(P, width) for P in (1, width, width))
        self.scores = nn.Linear(width, CLASSES)

    def forward(self, data: Batch) -> Tensor:
        x, on_edges = data.x, data.edge_index is not None
        for layer in self.layers:
            x = torch.relu(layer(x, data.edge_index, edge_type=data.edge_type) if on_edges else layer(x))
        of_graphs, of_images = POOLS[self.pool]
        x = of_graphs(x, data.batch, data.num_graphs) if on_edges else of_images(x, (-2, -1))
        return self.scores(x if x.dim() == 2 else x.mean(2))


def images(dtype: torch.dtype = torch.float32, validate: bool = False) -> tuple[list[Data], list[Data]]:
    """The training and the test images; x is (1, 1, 8, 8), which a batch concatenates.

    To validate, some of the training images take the place of the test images.
    """
    data = digits()
    every = [Data(x=x.view(1, 1, SIZE, SIZE), y=y) for x, y in zip(data.x.to(dtype), data.y, strict=True)]
    fit = [every[i] for i in (~data.test_mask).nonzero()]
    return (fit[:FIT], fit[FIT:]) if validate else (fit, [every[i] for i in data.test_mask.nonzero()])


def with_zeros(image: Data, mask: Tensor) -> Data:
    return Data(x=image.x * mask, y=image.y)


def as_graph(image: Data, mask: Tensor) -> Data:
    return TO_GRID(Data(x=image.x[0], mask=mask, y=image.y))


class Holed(Dataset[Data]):
    """Images with random pixels missing, others in each call; the mask is True at pixels that are left."""

    def __init__(self, images: Sequence[Data], form: Callable[[Data, Tensor], Data], seed: int) -> None:
        self.images, self.form, self.generator = images, form, torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> Data:
        return self.form(self.images[i], torch.rand(SIZE, SIZE, generator=self.generator) >= MISSING)


def train(net: nn.Module, data: Sequence[Data] | Dataset[Data], seed: int, settings: Settings) -> list[float]:
    """Adam on the cross-entropy; the loss at each step."""
    optimizer = torch.optim.Adam(net.parameters(), settings.rate)
    loader = DataLoader(data, BATCH, shuffle=True, generator=torch.Generator().manual_seed(seed))
    losses = []
    for _ in range(settings.epochs):
        for batch in loader:
            batch = batch.to(settings.device)
            optimizer.zero_grad()
            loss = F.cross_entropy(net(batch), batch.y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def accuracy(net: nn.Module, data: Batch) -> float:
    """In percent."""
    with torch.no_grad():
        return 100 * (net(data).argmax(1) == data.y).double().mean().item()


def same_weights(ours: Net, peer: Net) -> None:
    """Copies the kernels of Conv2d, (Q, P, 3, 3), into our layers, Theta (K, P, Q)."""
    ours.scores.load_state_dict(peer.scores.state_dict())
    for conv, reference in zip(ours.layers, peer.layers, strict=True):
        found = reference.state_dict()
        weight = found["weight"].permute(2, 3, 1, 0).flatten(0, 1)
        conv.load_state_dict({"theta.weight": weight, "bias": found["bias"]})


# The same layer evaluated by torch's convolution, by slices of the image, and by sparse products.
WAYS: dict[str, Layer] = {
    "GridConv": grid,
    "GridConv, order='a_first'": partial(GridConv, basis=WINDOW, order="a_first"),
    "bases.Edges": edges,
}


def losses_of_all(epochs: int) -> dict[str, Tensor]:
    """The losses at each step of the network of Conv2d, and of ours from the same weights, in float64."""
    data, _ = images(torch.float64)
    graphs = [as_graph(image, torch.ones(SIZE, SIZE, dtype=torch.bool)) for image in data]
    torch.manual_seed(0)
    peer = Net(dense).double()
    nets = {name: Net(layer).double() for name, layer in WAYS.items()}
    for net in nets.values():
        same_weights(net, peer)
    nets = {"nn.Conv2d": peer, **nets}
    data_of = {name: graphs if name == "bases.Edges" else data for name in nets}
    found = {name: train(net, data_of[name], 0, Settings(epochs=epochs)) for name, net in nets.items()}
    return {name: torch.tensor(losses, dtype=torch.float64) for name, losses in found.items()}


class Run(NamedTuple):
    """One training: its accuracies on the test images; on rotated ones, for each quarter turn."""

    parameters: int
    test: list[float]


def with_holes(
    layer: Layer, form: Callable[[Data, Tensor], Data], seed: int, settings: Settings, validate: bool = False
) -> Run:
    """Trains on images with holes, and tests on others with holes, which are the same for every network."""
    fit, test = images(validate=validate)
    torch.manual_seed(seed)
    net = Net(layer, pool=settings.pool).to(settings.device)
    train(net, Holed(fit, form, seed), seed, settings)
    holed = Holed(test, form, TEST_SEED)
    batch = Batch.from_data_list([holed[i] for i in range(len(holed))]).to(settings.device)
    return Run(parameters(net), [accuracy(net, batch)])


def turned(layer: Layer, width: int, seed: int, settings: Settings, validate: bool = False) -> Run:
    """Trains on upright digits, and tests on rotated ones."""
    fit, test = images(validate=validate)
    torch.manual_seed(seed)
    net = Net(layer, width, settings.pool).to(settings.device)
    train(net, fit, seed, settings)
    batch, found = Batch.from_data_list(test).to(settings.device), []
    for _ in QUARTERS:
        found.append(accuracy(net, batch))
        batch.x = batch.x.rot90(1, (-2, -1))
    return Run(parameters(net), found)


def parameters(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


Job = Callable[..., Run]  # from a seed and settings
HOLES: dict[str, Job] = {
    "nn.Conv2d, zeros there": partial(with_holes, dense, with_zeros),
    "bases.Edges, no nodes there": partial(with_holes, edges, as_graph),
}
# Sixteen channels for each of four rotations have as many parameters as 32 channels of one.
TURNS: dict[str, Job] = {
    "nn.Conv2d": partial(turned, dense, WIDTH),
    "bases.Group('p4')": partial(turned, turning, WIDTH // 2),
}
# What `--choose` found for each: its mean accuracy over three seeds on 200 of the training images was the greatest.
CHOSEN = {
    "nn.Conv2d, zeros there": Settings(0.005, 80, "max"),
    "bases.Edges, no nodes there": Settings(0.005, 80, "max"),
    "nn.Conv2d": Settings(0.002, 40, "max"),
    "bases.Group('p4')": Settings(0.002, 80, "max"),
}


def choose(seeds: int, space: Sequence[Settings] = SPACE) -> dict[str, dict[Settings, float]]:
    """For each network and settings, the accuracy on training images that were kept apart, upright."""
    found: dict[str, dict[Settings, float]] = {}
    for name, job in (HOLES | TURNS).items():
        runs = {some: [job(seed, some, validate=True).test[0] for seed in range(seeds)] for some in space}
        found[name] = {some: statistics.mean(values) for some, values in runs.items()}
        print(name)
        for some, mean in sorted(found[name].items(), key=itemgetter(1), reverse=True):
            print(f"  {mean:.1f} rate {some.rate}, {some.epochs} epochs, the {some.pool} over an image", flush=True)
    return found


def compare(seeds: int, epochs: int | None, device: str = "cpu") -> tuple[dict[str, Tensor], dict[str, list[Run]]]:
    """The losses of the first comparison, and the trainings of the others, of so many epochs or of those chosen."""
    jobs = HOLES | TURNS
    runs: dict[str, list[Run]] = {name: [] for name in jobs}
    columns = TextColumn("{task.description:36}"), BarColumn(), TextColumn("{task.completed} of {task.total}")
    with Progress(*columns, TimeElapsedColumn()) as bar:
        task = bar.add_task("the same losses", total=1 + seeds * len(jobs))
        losses = losses_of_all(min(epochs or SAME_EPOCHS, SAME_EPOCHS))
        bar.advance(task)
        for seed in range(seeds):
            for name, job in jobs.items():
                bar.update(task, description=f"{name}, seed {seed}")
                chosen = CHOSEN[name]._replace(epochs=epochs or CHOSEN[name].epochs, device=device)
                runs[name].append(job(seed, chosen))
                bar.advance(task)
    return losses, runs


def same(losses: dict[str, Tensor]) -> Table:
    """A row for each way to evaluate the layers: how far its losses are from those of Conv2d."""
    rows = table("layers", "first loss", "last loss", "largest difference")
    for name, found in losses.items():
        apart = float((found - losses["nn.Conv2d"]).abs().max())
        if not apart <= TOLERANCE:
            raise AssertionError(f"the losses of {name} and nn.Conv2d come apart by {apart:.1e}")
        rows.add_row(name, f"{found[0]:.6f}", f"{found[-1]:.6f}", f"{apart:.1e}")
    return rows


def results(headings: Sequence[str], runs: dict[str, list[Run]]) -> Table:
    """A row for each network: its parameters, and its accuracies over the seeds."""
    rows = table("layers", "params", *headings)
    for name, found in runs.items():
        accuracies = zip(*(run.test for run in found), strict=True)
        rows.add_row(name, f"{found[0].parameters:,}", *(spread(values, 1) for values in accuracies))
    return rows


def draw(path: Path) -> None:
    """Draws matrices of shifts: A[m, n] = 1 where the target n reads the source m; lines separate rows of the grid."""
    families: dict[str, tuple[bases.Basis, int]] = {  # with the length of a row
        "a line of 10, shifted by 2": (bases.Shifts((10,), [2]), 10),
        "a grid of 8 x 10, shifted by (2, 4)": (bases.Shifts((8, 10), [(2, 4)]), 10),
        "a window of 3 x 3 on a grid of 4 x 4": (bases.Window((4, 4), 3, padding=1), 4),
    }
    # Text as text and fixed ids make a small and reproducible file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "shifts"}):
        figure = Figure(figsize=(10, 3.6), layout="constrained")
        for i, (title, (basis, width)) in enumerate(families.items()):
            part = figure.add_subfigure(figure.add_gridspec(1, len(families))[i])
            part.suptitle(title, fontsize=11)
            side = math.isqrt(basis.K)
            for k, A in enumerate(basis.bind().to_dense(), 1):
                axes = part.add_subplot(side, side, k)
                axes.spy(A, marker="s", markersize=180 / (side * len(A)), color="#2c6fbb")
                between = torch.arange(width, len(A), width) - 0.5
                axes.hlines(between, -0.5, len(A) - 0.5, color="#dddddd", linewidth=0.5)
                axes.vlines(between, -0.5, len(A) - 0.5, color="#dddddd", linewidth=0.5)
                axes.set(xticks=[], yticks=[])
                if side == 1:
                    axes.set(xlabel="target n", ylabel="source m")
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def arguments() -> argparse.ArgumentParser:
    parser = options_of("grids", __doc__)
    add = parser.add_argument
    add("--seeds", type=at_least(1, int), default=3, help="number of trainings of each network")
    add("--epochs", type=at_least(1, int), help="of a training; each network has its own number")
    add("--choose", action="store_true", help="print what other settings reach on images kept from training")
    add_machine(parser, "of torch; more do not pay with such small images", quick="one seed and two epochs")
    add("--picture", type=Path, default=Path("results/shifts.svg"), help="where the matrices of shifts are drawn")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments()
    options = parsed(parser, argv)
    if options.quick:
        options.seeds, options.epochs = 1, min(options.epochs or 2, 2)
    if options.choose:
        space = dict.fromkeys(
            some._replace(epochs=options.epochs or some.epochs, device=options.device) for some in SPACE
        )
        choose(options.seeds, list(space))
        return
    try:
        options.picture.parent.mkdir(parents=True, exist_ok=True)
        draw(options.picture)
    except (OSError, ValueError) as error:  # no such folder or format
        parser.error(f"--picture {options.picture}: {error}")

    start = time.perf_counter()
    losses, runs = compare(options.seeds, options.epochs, options.device)
    console, after = Console(), f"mean ± standard deviation of {options.seeds} seeds"
    print(f"\nTrained from the same weights in float64: {len(losses['nn.Conv2d'])} steps, and their losses")
    console.print(same(losses))
    print(f"\nA fifth of the pixels missing: accuracy in percent,\n{after}")
    console.print(results(["test"], {name: runs[name] for name in HOLES}))
    print(f"\nTrained upright, tested upright and turned by quarters: accuracy in percent,\n{after}")
    console.print(results([f"{90 * quarters}°" for quarters in QUARTERS], {name: runs[name] for name in TURNS}))
    print(f"\n{time.perf_counter() - start:.0f} s. The matrices of shifts are in {options.picture}.")


if __name__ == "__main__":
    main()
