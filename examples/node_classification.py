"""Classifies the nodes of a citation network with stacks of `BasisConv`, beside the same models of PyG's own layers.

    python -m examples.node_classification --dataset Cora --seeds 20 --minutes 60

All models are trained by one function, stopped early by the validation set, and judged on the test set as they were
when the validation set liked them best. The seeds are 0, 1, ...
"""

import argparse
import json
import math
import statistics
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn
from torch_geometric.data import Data

from examples.data import CITATIONS, load
from examples.models import MODELS, Model, models
from examples.options import add_root, at_least, check_device, parser as options_of

OURS, PYG = SIDES = ("BasisConv", "PyG")


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


def train(net: nn.Module, x: Tensor, data: Data, run: Run, model: Model, end: float = math.inf) -> Iterator[Run]:
    """Adam on the cross-entropy of the training nodes, until the loss on the validation nodes stops falling.

    Yields the run after each epoch. A run that the clock finds unfinished at the time `end` says so.
    """
    optimizer = torch.optim.Adam(net.parameters(), lr=model.lr, weight_decay=model.weight_decay)
    best, since = math.inf, 0
    for _ in range(model.epochs):
        start = time.perf_counter()
        if start > end and run.losses:
            run.cut = True
            return
        net.train()
        optimizer.zero_grad()
        scores = net(x, data.edge_index)
        F.cross_entropy(scores[data.train_mask], data.y[data.train_mask]).backward()
        optimizer.step()

        net.eval()
        with torch.no_grad():
            scores = net(x, data.edge_index)
        loss = F.cross_entropy(scores[data.val_mask], data.y[data.val_mask]).item()
        right = (scores.argmax(-1) == data.y).float()
        accuracy = right[data.val_mask].mean().item()
        run.seconds.append(time.perf_counter() - start)
        run.losses.append(loss)
        run.accuracies.append(accuracy)

        since += 1
        if loss < best:
            best, since = loss, 0
            run.validation, run.test = accuracy, right[data.test_mask].mean().item()
        yield run
        if since == model.patience:
            return


def compare(models: dict[str, Model], data: Data, options: argparse.Namespace) -> list[Run]:
    """Trains the models for each seed, ours in half of the time and then PyG's, while a bar tells how far it is.

    The first seed is trained whatever it takes, each model in a fair share of what is left of the time, where it is
    cut; another seed is only begun if all its epochs fit into what is left, and never cut.
    """
    sparse = int(data.x.count_nonzero()) < 0.1 * data.x.numel()
    features = {OURS: data.x.to_sparse_csr() if sparse else data.x, PYG: data.x}
    classes = int(data.y.max()) + 1
    names = list(models)
    jobs = [(side, seed, i) for side in SIDES for seed in range(options.seeds) for i in range(len(names))]
    begin = time.perf_counter()
    ends = {OURS: begin + 30 * options.minutes, PYG: begin + 60 * options.minutes}
    pace: dict[tuple[str, str], float] = {}  # seconds per epoch
    runs = []
    text, percent = TextColumn("{task.description:32}"), TextColumn("{task.percentage:3.0f} %")
    with Progress(text, BarColumn(), percent, TimeElapsedColumn()) as bar:
        task = bar.add_task("", total=sum(models[names[i]].epochs for _, _, i in jobs))
        done = 0
        for side, seed, i in jobs:
            name, start = names[i], time.perf_counter()
            model, left = models[name], ends[side] - start
            done += model.epochs
            if seed and model.epochs * pace[name, side] > left:
                continue
            end = math.inf if seed else start + left / (len(names) - i)
            bar.update(task, description=f"{model.title}, {side}, seed {seed}")
            torch.manual_seed(seed)
            net = model.build(data.num_features, classes, options.hidden, pyg=side == PYG).to(data.x.device)
            run = Run(name, side, seed)
            for _ in train(net, features[side], data, run, model, end):
                bar.advance(task)
            runs.append(run)
            pace[name, side] = statistics.mean(run.seconds)
            bar.update(task, completed=done)
        bar.update(task, completed=done, description="done")
    return runs


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


def table(summaries: dict[str, dict[str, dict[str, float | None]]]) -> Table:
    """Ours and PyG's side by side."""
    rows = Table(box=box.SIMPLE, pad_edge=False, show_edge=False)
    rows.add_column("\nmodel", no_wrap=True)
    for side in SIDES:
        for column in (f"{side}\ntest %", "\nseeds", "\ns/epoch"):
            rows.add_column(column, justify="right", no_wrap=True)
    for name, sides in summaries.items():
        cells = [MODELS[name].title]
        for side in SIDES:
            s = sides[side]
            spread = "" if s["deviation"] is None else f" ± {s['deviation']:.2f}"
            cells += [f"{s['test']:.2f}{spread}", f"{s['seeds']}{'*' if s['cut'] else ''}", f"{s['seconds']:.4f}"]
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
        "--dataset", choices=[*CITATIONS, "digits"], default="Cora", help="a citation network, or scikit-learn's digits"
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
    add("--epochs", type=at_least(1, int), help="of one training, at most; each model has its own number")
    add(
        "--patience",
        type=at_least(1, int),
        help="epochs without a smaller validation loss that end a training; each model has its own number",
    )
    add("--hidden", type=at_least(1, int), help="hidden channels; each model has its own number")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="where to train")
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
    for setting in ("epochs", "patience"):
        if value := getattr(options, setting):
            chosen = {name: model._replace(**{setting: value}) for name, model in chosen.items()}
    try:
        for model in chosen.values():
            model.build(1, 1, options.hidden)
    except ValueError as error:  # channels that are no multiple of the heads
        parser.error(f"--hidden {options.hidden}: {error}")
    runs = compare(chosen, data.to(options.device), options)
    summaries = {
        name: {side: summary([run for run in runs if (run.model, run.side) == (name, side)]) for side in SIDES}
        for name in options.models
    }
    title = f"{dataset}, {data.num_nodes:,} nodes, {data.num_edges:,} edges"
    print(f"\n{title}: test accuracy, mean ± standard deviation")
    Console().print(table(summaries))
    if any(run.cut for run in runs):
        print(f"* cut before its end, to be done in {options.minutes:g} minutes (--minutes)")

    stem = options.out / dataset.lower()
    draw(stem.with_suffix(".png"), title, runs)
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
    report = {"dataset": dataset, "settings": settings, "summary": summaries, "runs": [asdict(run) for run in runs]}
    stem.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    print(f"The curves are in {stem}.png, the numbers in {stem}.json.")


if __name__ == "__main__":
    main()
