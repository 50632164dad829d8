"""Classifies the nodes of a graph with stacks of `BasisConv`, beside the same models of PyG's own layers.

    python -m examples.node_classification --dataset Cora --seeds 20 --minutes 60
    python -m examples.node_classification --dataset mine.pt --search 20  # torch.save(data, "mine.pt")

All models are trained by one function, stopped early by the validation set, and judged on the test set as they were
when the validation set liked them best. The seeds are 0, 1, ..., the same on both sides. PyG's layers get sparse
features where they take them. With --search the validation set chooses the settings of each model, too.
"""

import argparse
import copy
import json
import math
import random
import statistics
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.transforms import NormalizeFeatures

from examples.data import CITATIONS, SPLIT, load
from examples.models import LOSING_SPACE, MODELS, SPACE, Model, models
from examples.options import add_device, add_root, at_least, check_device, parser as options_of

OURS, PYG = SIDES = ("BasisConv", "PyG")
SEARCHED = (1000, 1001)  # the seeds by which settings are compared


@dataclass
class Run:
    """One training: loss and accuracy on the validation set after each epoch, and the results of the best epoch."""

    model: str
    side: str
    seed: int
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    validation: float = 0.0
    test: float = 0.0
    cut: bool = False  # whether the time limit ended it


def objective(net: nn.Module, x: Tensor, data: Data, model: Model, epoch: int) -> Tensor:
    """The cross-entropy of the training nodes; and what several predictions of all nodes differ by, see `Model`."""
    mask = data.train_mask
    drawn = torch.stack([net(x, data.edge_index).log_softmax(-1) for _ in range(model.samples)])  # (S, N, classes)
    loss = torch.stack([F.nll_loss(one[mask], data.y[mask]) for one in drawn]).mean()
    if model.samples == 1:
        return loss
    with torch.no_grad():
        sharp = drawn.exp().mean(0) ** (1 / model.temperature)
        sharp /= sharp.sum(-1, keepdim=True)
    weight = model.consistency * min(1.0, epoch / model.warmup)
    return loss + weight * F.kl_div(drawn, sharp.expand_as(drawn), reduction="none").sum(-1).mean()


def train(net: nn.Module, x: Tensor, data: Data, run: Run, model: Model, end: float = math.inf) -> Iterator[Run]:
    """Adam on the objective, until the validation nodes show nothing better, see `Model`.

    Yields the run after each epoch. A run that the clock finds unfinished at the time `end` says so.
    """
    optimizer = torch.optim.Adam(net.parameters(), lr=model.lr, weight_decay=model.weight_decay)
    lowest, highest, since, mean = math.inf, -math.inf, 0, None
    for epoch in range(model.epochs):
        start = time.perf_counter()
        if start > end and run.losses:
            run.cut = True
            return
        net.train()
        optimizer.zero_grad()
        objective(net, x, data, model, epoch).backward()
        optimizer.step()

        net.eval()
        with torch.no_grad():
            found = net(x, data.edge_index).softmax(-1)
        mean = found if mean is None else torch.lerp(found, mean, model.averaged)
        scores = mean.clamp_min(torch.finfo(mean.dtype).tiny).log()
        loss = F.nll_loss(scores[data.val_mask], data.y[data.val_mask]).item()
        right = (mean.argmax(-1) == data.y).float()
        accuracy = right[data.val_mask].mean().item()
        run.seconds.append(time.perf_counter() - start)
        run.losses.append(loss)
        run.accuracies.append(accuracy)

        lower, higher = loss < lowest, accuracy >= highest
        lowest, highest = min(loss, lowest), max(accuracy, highest)
        since = 0 if lower or (higher and model.by_accuracy) else since + 1
        if lower and (higher or not model.by_accuracy):
            run.validation, run.test = accuracy, right[data.test_mask].mean().item()
        yield run
        if since == model.patience:
            return


def features(data: Data, model: Model, side: str) -> Tensor:
    """The features, as a sparse matrix if they are mostly zeros and the layers take it."""
    x: Tensor = data.x
    if model.rows and x.numel() and float(x.min()) >= 0:
        x = NormalizeFeatures()(copy.copy(data)).x
    sparse = int(x.count_nonzero()) < 0.1 * x.numel()
    return x.to_sparse_csr() if sparse and (side == OURS or model.sparse) else x


def compare(models: dict[str, Model], data: Data, options: argparse.Namespace) -> list[Run]:
    """Trains ours and PyG's for each seed and model, while a bar tells how far it is.

    The first seed is trained whatever it takes, each model in a fair share of what is left of the time, where it is
    cut. Another seed of a model is only begun if all epochs of both sides fit into what is left, and never cut.
    """
    jobs = [(seed, name) for seed in range(options.seeds) for name in models]
    end = time.perf_counter() + 60 * options.minutes
    sides = SIDES[:1] if options.alone else SIDES
    given = {(name, side): features(data, model, side) for name, model in models.items() for side in sides}
    runs: list[Run] = []
    with bar() as progress:
        task = progress.add_task("", total=len(sides) * options.seeds * sum(model.epochs for model in models.values()))
        for i, (seed, name) in enumerate(jobs):
            model, split = models[name], (random_split if options.split == "random" else public_split)(data, seed)
            paces = [statistics.mean(run.seconds) for run in runs if run.model == name and run.seed == 0]
            if seed and model.epochs * sum(paces) > end - time.perf_counter():
                progress.advance(task, len(sides) * model.epochs)
                continue
            for j, side in enumerate(sides):
                start = time.perf_counter()
                cut = math.inf if seed else start + (end - start) / (len(sides) * (len(models) - i) - j)
                progress.update(task, description=f"{model.title}, {side}, seed {seed}")
                run = Run(name, side, seed)
                for _ in train(begin(model, data, seed, side), given[name, side], split, run, model, cut):
                    progress.advance(task)
                progress.advance(task, model.epochs - len(run.losses))
                runs.append(run)
        progress.update(task, description="done")
    return runs


def begin(model: Model, data: Data, seed: int, side: str = OURS) -> nn.Module:
    """The untrained network of a seed."""
    torch.manual_seed(seed)
    return model.build(data.num_features, int(data.y.max()) + 1, pyg=side == PYG).to(data.x.device)


def bar() -> Progress:
    text, percent = TextColumn("{task.description:32}"), TextColumn("{task.percentage:3.0f} %")
    return Progress(text, BarColumn(), percent, TimeElapsedColumn())


def public_split(data: Data, seed: int) -> Data:
    """The data with a split of its own: of several, that of the seed."""
    found = copy.copy(data)
    for name in SPLIT:
        mask = data[name]
        found[name] = mask if mask.dim() == 1 else mask[:, seed % mask.shape[1]]
    return found


def random_split(data: Data, seed: int) -> Data:
    """The same data, with 20 nodes of each class to train, 500 others to validate and 1,000 to test, by a seed; of a
    small graph a third of the others validates, and the rest is tested.
    """
    y, order = data.y.cpu(), torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(seed))
    order = order[y[order] >= 0]
    train = torch.cat([order[y[order] == label][:20] for label in range(int(y.max()) + 1)])
    rest = order[~torch.isin(order, train)]
    validating = min(500, len(rest) // 3)
    parts = train, rest[:validating], rest[validating : validating + 1000]
    found = copy.copy(data)
    for name, nodes in zip(SPLIT, parts, strict=True):
        found[name] = torch.isin(torch.arange(data.num_nodes), nodes).to(data.y.device)
    return found


def search(models: dict[str, Model], data: Data, minutes: float) -> dict[str, Model]:
    """The models with settings that the validation set chose: of those they have, and of others drawn at random.

    Each is trained on two seeds of its own, and the mean accuracy on the validation set compared; every model has the
    same share of the time. Nothing looks at the test set.
    """
    chosen, end = {}, time.perf_counter() + 60 * minutes
    for i, (name, model) in enumerate(models.items()):
        share = (end - time.perf_counter()) / (len(models) - i)
        stop, draw = time.perf_counter() + share, random.Random(name)
        space = SPACE | (LOSING_SPACE if model.lost else {})
        x, best, tried = features(data, model, OURS), (-math.inf, -math.inf), 0
        found = some = model
        while time.perf_counter() < stop or not tried:
            runs = [Run(name, OURS, seed) for seed in SEARCHED]
            for run in runs:
                for _ in train(begin(some, data, run.seed), x, data, run, some, stop):
                    pass
            if tried and any(run.cut for run in runs):
                break
            tried += 1
            result = statistics.mean(r.validation for r in runs), -statistics.mean(min(r.losses) for r in runs)
            if result > best:
                found, best = some, result
            drawn: dict[str, Any] = {key: draw.choice(values) for key, values in space.items()}
            some = model._replace(**drawn)
        settings = ", ".join(f"{key} {getattr(found, key)}" for key in space)
        print(f"{model.title}: {settings}; {100 * best[0]:.1f} % of the validation set, best of {tried}")
        chosen[name] = found
    return chosen


def summary(runs: Sequence[Run]) -> dict[str, float | None]:
    """Accuracies in percent over the seeds, and the median seconds per epoch, with its validation."""
    tests = [100 * run.test for run in runs]
    return {
        "seeds": len(runs),
        "validation": 100 * statistics.mean(run.validation for run in runs),
        "test": statistics.mean(tests),
        "deviation": statistics.stdev(tests) if len(tests) > 1 else None,
        "seconds": statistics.median(second for run in runs for second in run.seconds),
        "cut": sum(run.cut for run in runs),
    }


def difference(runs: Sequence[Run]) -> dict[str, float | None]:
    """The accuracy of ours less that of PyG's in percent, seed by seed: its mean, and the standard error of that."""
    tests = {(run.side, run.seed): 100 * run.test for run in runs}
    pairs = [tests[OURS, seed] - tests[PYG, seed] for side, seed in tests if side == OURS]
    error = statistics.stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else None
    return {"mean": statistics.mean(pairs), "error": error}


def table(summaries: dict[str, dict[str, dict[str, float | None]]]) -> Table:
    """Ours and PyG's side by side, and what they differ by."""
    rows = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)  # fits into 80 columns
    rows.add_column("\nmodel")
    for side in SIDES:
        for column in (f"{side}\ntest %", "\nruns", "ms an\nepoch"):
            rows.add_column(column, justify="right", no_wrap=True)
    rows.add_column("ours\n- PyG's", justify="right", no_wrap=True)
    for name, sides in summaries.items():
        cells = [MODELS[name].title]
        for side in SIDES:
            if side not in sides:
                cells += ["", "", ""]
                continue
            s = sides[side]
            ms = 1000 * (s["seconds"] or 0)
            spread = "" if s["deviation"] is None else f" ± {s['deviation']:.2f}"
            cells += [f"{s['test']:.2f}{spread}", f"{s['seeds']}{'*' if s['cut'] else ''}", f"{ms:.{int(ms < 100)}f}"]
        if "difference" in sides:
            d = sides["difference"]
            cells.append(f"{d['mean']:+.2f}" + ("" if d["error"] is None else f" ± {d['error']:.2f}"))
        rows.add_row(*cells)
    return rows


def draw(path: Path, title: str, runs: Sequence[Run]) -> None:
    """Draws the validation curves: a column for each model, a line for each seed."""
    names = list(dict.fromkeys(run.model for run in runs))
    figure = Figure(figsize=(3.2 * len(names), 5.5), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(2, len(names), sharex=True, sharey="row", squeeze=False)
    for column, name in enumerate(names):
        above, below = axes[:, column]
        above.set_title(MODELS[name].title)
        below.set_xlabel("epoch")
        for side, colour in zip(SIDES, ("tab:blue", "tab:orange"), strict=True):
            for i, run in enumerate(run for run in runs if (run.model, run.side) == (name, side)):
                style = {"color": colour, "alpha": 0.6, "linewidth": 1, "label": None if i else side}
                above.plot(run.losses, **style)
                below.plot([100 * accuracy for accuracy in run.accuracies], **style)
    axes[0, 0].set_ylabel("validation loss")
    axes[1, 0].set_ylabel("validation accuracy, %")
    axes[0, 0].legend()
    figure.savefig(path, dpi=120)


def arguments() -> argparse.ArgumentParser:
    parser = options_of("node_classification", __doc__)
    add = parser.add_argument
    add(
        "--dataset",
        default="Cora",
        metavar="NAME",
        help=f"{', '.join(CITATIONS)}, or another network with raw files of their kind; digits, those of scikit-learn; "
        "or a graph of your own, NAME.pt, a Data that torch.save wrote",
    )
    add_root(parser, "Cora")
    add("--models", nargs="+", choices=list(MODELS), default=list(MODELS), help="which ones")
    add("--seeds", type=at_least(1, int), default=5, help="number of trainings of each model")
    add(
        "--minutes",
        type=at_least(0, float),
        default=2.5,
        help="to be done in: fewer seeds, and if need be a first one cut, marked in the table",
    )
    add("--alone", action="store_true", help="train BasisConv's models only")
    add("--epochs", type=at_least(1, int), help="of one training, at most; each model has its own number")
    add(
        "--patience",
        type=at_least(1, int),
        help="epochs without a smaller validation loss that end a training; each model has its own number",
    )
    add("--hidden", type=at_least(1, int), help="hidden channels; each model has its own number")
    add("--split", choices=["public", "random"], default="public", help="the data's own, or one for each seed")
    add("--search", type=at_least(0, float), metavar="MINUTES", help="let the validation set choose the settings first")
    add_device(parser)
    add("--threads", type=at_least(1, int), default=1, help="of torch on the CPU; more than one pays on larger graphs")
    add("--out", type=Path, default=Path("results"), help="folder for the picture and the numbers")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments()
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    # torch warns once that sparse_csr, the layout of the features, is in beta.
    warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
    check_device(parser, options.device)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        dataset, data = load(options.dataset, options.root.expanduser())
    except (OSError, ValueError) as error:
        parser.error(str(error))

    options.models = list(dict.fromkeys(options.models))
    chosen = {name: models(dataset)[name] for name in options.models}
    for setting in ("epochs", "patience", "hidden"):
        if value := getattr(options, setting):
            chosen = {name: model._replace(**{setting: value}) for name, model in chosen.items()}
    try:
        for model in chosen.values():
            model.build(1, 1)
    except ValueError as error:  # channels that are no multiple of the heads
        parser.error(f"--hidden {options.hidden}: {error}")
    missing = [name for name in SPLIT if name not in data]
    if missing and options.split == "public":
        parser.error(f"--dataset {dataset}: it has no {', '.join(missing)}; take --split random")
    data = data.to(options.device)
    if options.search is not None:
        if options.split == "random":
            parser.error(
                "--search: the nodes that validate one random split are tested in another; take --split public"
            )
        if any(data[name].dim() > 1 for name in SPLIT):
            parser.error("--search: the nodes that validate one split are tested in another; give data with one split")
        chosen = search(chosen, data, options.search)
    runs = compare(chosen, data, options)
    summaries = {}
    for name in options.models:
        mine = [run for run in runs if run.model == name]
        sides = [side for side in SIDES if any(run.side == side for run in mine)]
        summaries[name] = {side: summary([run for run in mine if run.side == side]) for side in sides}
        if PYG in sides:
            summaries[name]["difference"] = difference(mine)
    title = f"{dataset}, {data.num_nodes:,} nodes, {data.num_edges:,} edges"
    print(f"\n{title}: test accuracy, mean ± standard deviation; the difference, mean ± standard error")
    Console().print(table(summaries))
    if any(run.cut for run in runs):
        print(f"* cut before its end, to be done in {options.minutes:g} minutes (--minutes)")

    stem = options.out / dataset.lower()
    draw(stem.with_suffix(".png"), title, runs)
    about = {name: {key: getattr(model, key) for key in SPACE | LOSING_SPACE} for name, model in chosen.items()}
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
    report = {
        "dataset": dataset,
        "settings": settings,
        "models": about,
        "summary": summaries,
        "runs": [asdict(run) for run in runs],
    }
    stem.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    print(f"The curves are in {stem}.png, the numbers in {stem}.json.")


if __name__ == "__main__":
    main()
