"""Where does a Transformer get the order of its input from? Shift heads beside content heads, or a positional encoding.

    python -m examples.shift_heads --task masked --steps 2000

Attention alone ignores order. The usual remedy adds sines of the position to the input. J.-M. Andreoli
(arXiv:1905.01289) suggests another: some heads whose matrices are fixed shifts, without any positions,

    bases.Attention(6, Dot(8)) + bases.Shifts(None, [1, 2, 3, 4])

The same small language model of characters is trained with either, with neither, with learnt terms for the distance in
the scores, with both these and shift heads, and with shift heads alone. All have the same number of parameters, since
two shift heads (values and outputs) have as many as one content head (values, outputs, keys and queries); the learnt
terms add a few.

The text is the documentation of Python, as Python includes it, without repeated paragraphs. The model predicts the next
character, or masked characters. Bits per character are measured on held-out text, in windows of the training's length,
and in shorter and longer ones. The validation text chose the learning rate for each kind of model and task, but for
both, masked, which has that of the others. The seeds are 0, 1, ... More steps show how much of a difference is one of
speed.
"""

import argparse
import json
import math
import platform
import statistics
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from pydoc_data.topics import topics
from typing import NamedTuple

import torch
import torch.nn.functional as F
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn

from examples.options import add_device, at_least, check_device, parser as options_of
from pyg_basisconv import BasisConv, bases, theta
from pyg_basisconv.mechanisms import Dot, Mechanism, Relative

CHANNELS, HIDDEN, WIDTH, LAYERS = 64, 128, 8, 2
LENGTH, BATCH = 64, 32  # of the windows of the training
LENGTHS = (16, 32, 64, 128, 256)  # of the windows of the test
BLOCKS = 60  # of the text; of every ten, one is for validation and one for the test
MASKED = 0.15


class Kind(NamedTuple):
    """The settings of a kind of model."""

    title: str
    content: int
    shifts: int
    sines: bool
    reach: int  # of learnt terms of the scores, one for each head and each distance up to this
    lr: dict[str, float]  # for each task


KINDS = {
    "none": Kind("8 content heads", 8, 0, False, 0, {"next": 0.02, "masked": 0.01}),
    "sines": Kind("8 content heads, sines", 8, 0, True, 0, {"next": 0.02, "masked": 0.01}),
    "relative": Kind("8 content heads, distances", 8, 0, False, 16, {"next": 0.04, "masked": 0.01}),
    "shifts": Kind("6 content heads, 4 shift heads", 6, 4, False, 0, {"next": 0.02, "masked": 0.01}),
    "both": Kind("6 with distances, 4 shift heads", 6, 4, False, 16, {"next": 0.02, "masked": 0.01}),
    "window": Kind("16 shift heads", 0, 16, False, 0, {"next": 0.02, "masked": 0.01}),
}


def heads(kind: Kind, task: str) -> BasisConv:
    """All heads of a layer, as one basis of computed and fixed matrices."""
    causal, half = task == "next", kind.shifts // 2
    offsets = range(1, kind.shifts + 1) if causal else [*range(-half, 0), *range(1, half + 1)]
    score: Mechanism = Dot(WIDTH)
    if kind.reach:
        score = score + Relative(window=(-kind.reach, 0 if causal else kind.reach))
    parts: list[bases.Basis] = []
    if kind.content:
        parts.append(bases.Attention(kind.content, score, bases.Causal() if causal else None))
    if kind.shifts:
        parts.append(bases.Shifts(None, offsets))
    basis = sum(parts[1:], parts[0])
    return BasisConv(CHANNELS, CHANNELS, basis, theta.LowRank(WIDTH))


def sines(length: int) -> Tensor:
    """The encoding of A. Vaswani et al. (arXiv:1706.03762): (N, C)."""
    angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, CHANNELS, 2) / CHANNELS)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


class Reader(nn.Module):
    """A Transformer that reads characters: (B, N) -> (B, N, V) scores of each character of the alphabet."""

    def __init__(self, kind: Kind, task: str, alphabet: int) -> None:
        super().__init__()
        self.sines, self.mask = kind.sines, alphabet
        self.embedding = nn.Embedding(alphabet + 1, CHANNELS)  # the last one is the mask
        self.attention = nn.ModuleList(nn.Sequential(nn.LayerNorm(CHANNELS), heads(kind, task)) for _ in range(LAYERS))
        self.feed = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, CHANNELS))
            for _ in range(LAYERS)
        )
        self.scores = nn.Sequential(nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, alphabet))

    def forward(self, text: Tensor) -> Tensor:
        x = self.embedding(text)
        if self.sines:
            x = x + sines(text.shape[1]).to(x)
        for attention, feed in zip(self.attention, self.feed, strict=True):
            x = x + attention(x)
            x = x + feed(x)
        return self.scores(x)


class Text(NamedTuple):
    """A text as numbers of characters, in blocks."""

    alphabet: int
    train: Tensor
    validation: list[Tensor]
    test: list[Tensor]


@cache
def text() -> Text:
    """The topics of Python's help, without repeated paragraphs, which would leak into the test."""
    paragraphs = [paragraph for topic in sorted(topics) for paragraph in topics[topic].split("\n\n")]
    characters = "\n\n".join({" ".join(paragraph.split()): paragraph for paragraph in paragraphs}.values())
    numbers = {character: i for i, character in enumerate(sorted(set(characters)))}
    blocks = torch.tensor([numbers[character] for character in characters]).chunk(BLOCKS)
    part: dict[int, list[Tensor]] = {i: [block for j, block in enumerate(blocks) if j % 10 == i] for i in (4, 9)}
    train = torch.cat([block for j, block in enumerate(blocks) if j % 10 not in part])
    return Text(len(numbers), train, part[4], part[9])


def on(device: str) -> Text:
    """The text on a device."""
    alphabet, train, validation, test = text()
    return Text(alphabet, train.to(device), [t.to(device) for t in validation], [t.to(device) for t in test])


def loss(net: Reader, windows: Tensor, task: str, generator: torch.Generator) -> Tensor:
    """Bits per character: of the next character (windows are one longer then), or of randomly masked ones."""
    if task == "next":
        scores, wanted = net(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()
    else:
        hidden = (torch.rand(windows.shape, generator=generator) < MASKED).to(windows.device)
        scores, wanted = net(windows.masked_fill(hidden, net.mask))[hidden], windows[hidden]
    return F.cross_entropy(scores, wanted) / math.log(2)


def measure(net: Reader, blocks: Iterable[Tensor], task: str, length: int) -> float:
    """Bits per character over adjacent windows; all lengths cover the same characters."""
    extra, longest = int(task == "next"), max(LENGTHS)
    pieces = []
    for block in blocks:
        used = (len(block) - extra) // longest * longest
        pieces.append(block[: used + extra].unfold(0, length + extra, length))
    net.eval()
    with torch.no_grad():
        return loss(net, torch.cat(pieces), task, torch.Generator().manual_seed(0)).item()


@dataclass
class Run:
    """One training: bits per character on the validation text over time, and on the test text for each length."""

    task: str
    kind: str
    seed: int
    lr: float
    parameters: int = 0
    steps: list[int] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    test: dict[int, float] = field(default_factory=dict)
    seconds: float = 0.0


def train(task: str, kind: str, seed: int, steps: int, device: str = "cpu", lr: float | None = None) -> Run:
    """AdamW on random windows; the rate warms up for 50 steps, and then falls linearly to zero."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    run = Run(task, kind, seed, KINDS[kind].lr[task] if lr is None else lr)
    alphabet, characters, validation, test = on(device)
    net = Reader(KINDS[kind], task, alphabet).to(device)
    run.parameters = sum(parameter.numel() for parameter in net.parameters())
    optimizer = torch.optim.AdamW(net.parameters(), lr=run.lr, betas=(0.9, 0.98), weight_decay=0.01)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 50, 1 - step / steps))
    window = torch.arange(LENGTH + (task == "next"))
    for step in range(1, steps + 1):
        net.train()
        begin = torch.randint(len(characters) - len(window), (BATCH, 1), generator=generator)
        optimizer.zero_grad()
        loss(net, characters[begin + window], task, generator).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        rate.step()
        if step % max(steps // 10, 1) == 0 or step == steps:
            run.steps.append(step)
            run.validation.append(measure(net, validation, task, LENGTH))
    run.test = {length: measure(net, test, task, length) for length in LENGTHS}
    run.seconds = time.perf_counter() - start
    return run


def compare(options: argparse.Namespace) -> list[Run]:
    """Trains every kind with every seed, in worker processes with one thread of torch each."""
    jobs = [
        (options.task, kind, seed, options.steps, options.device)
        for seed in range(options.seeds)
        for kind in options.kinds
    ]
    runs = []
    columns = TextColumn("{task.description:44}"), BarColumn(), TextColumn("{task.completed} of {task.total}")
    with Progress(*columns, TimeElapsedColumn()) as bar:
        task = bar.add_task("", total=len(jobs))

        def done(run: Run) -> None:
            runs.append(run)
            last = f"{KINDS[run.kind].title}, seed {run.seed}: {run.test[LENGTH]:.3f}"
            bar.update(task, advance=1, description=last)

        if options.workers == 1:
            for job in jobs:
                done(train(*job))
        else:
            with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
                futures: list[Future[Run]] = [pool.submit(train, *job) for job in jobs]
                for future in as_completed(futures):
                    done(future.result())
    return sorted(runs, key=lambda run: (options.kinds.index(run.kind), run.seed))


def summary(runs: Sequence[Run]) -> dict[str, dict[str, float | None]]:
    """Bits per character over the seeds, mean and standard deviation."""

    def over(values: list[float]) -> dict[str, float | None]:
        return {"mean": statistics.mean(values), "deviation": statistics.stdev(values) if len(values) > 1 else None}

    found = {f"test {length}": over([run.test[length] for run in runs]) for length in LENGTHS}
    return {"validation": over([run.validation[-1] for run in runs]), **found}


def table(summaries: dict[str, dict[str, dict[str, float | None]]]) -> Table:
    """A row for each kind of model, in 80 columns."""
    rows = Table(box=box.SIMPLE, pad_edge=False, show_edge=False)
    rows.add_column("\nheads", no_wrap=True)
    shown = {"validation": f"validation\n{LENGTH}"}
    shown |= {f"test {length}": f"test\n{length}" for length in (LENGTH, max(LENGTHS))}
    for heading in shown.values():
        rows.add_column(heading, justify="right", no_wrap=True)
    for kind, found in summaries.items():
        cells = []
        for column in shown:
            mean, deviation = found[column]["mean"], found[column]["deviation"]
            cells.append(f"{mean:.3f}" + ("" if deviation is None else f" ± {deviation:.3f}"))
        rows.add_row(KINDS[kind].title, *cells)
    return rows


def draw(path: Path, title: str, runs: Sequence[Run]) -> None:
    """Draws the learning curves, and the test results over the length of windows."""
    from matplotlib.figure import Figure  # imported here, since other examples need only the text

    figure = Figure(figsize=(10, 4.6), layout="constrained")
    figure.suptitle(title)
    left, right = figure.subplots(1, 2)
    for i, kind in enumerate(dict.fromkeys(run.kind for run in runs)):
        own = [run for run in runs if run.kind == kind]
        for axes, x, lines in (
            (left, own[0].steps, [run.validation for run in own]),
            (right, list(LENGTHS), [[run.test[length] for length in LENGTHS] for run in own]),
        ):
            y = torch.tensor(lines)
            axes.plot(x, y.mean(0), color=f"C{i}", marker="o", markersize=3, label=KINDS[kind].title)
            axes.fill_between(x, y.amin(0), y.amax(0), color=f"C{i}", alpha=0.2, linewidth=0)
    left.set(xlabel="step", ylabel="bits per character, validation text")
    right.set(xlabel="length of the window", ylabel="bits per character, test text", xscale="log")
    right.set_xticks(LENGTHS, [str(length) for length in LENGTHS])
    right.minorticks_off()
    right.axvline(LENGTH, color="grey", linestyle=":", linewidth=1)
    right.annotate(
        "trained with", (LENGTH, 0.98), xycoords=("data", "axes fraction"), rotation=90, va="top", ha="right"
    )
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=120)


def arguments() -> argparse.ArgumentParser:
    parser = options_of("shift_heads", __doc__)
    add = parser.add_argument
    add("--task", choices=["next", "masked"], default="next", help="which characters the model predicts")
    add("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), help="of models")
    add("--seeds", type=at_least(1, int), default=3, help="number of trainings of each")
    add("--steps", type=at_least(1, int), default=500, help="of a training")
    add_device(parser)
    add("--quick", action="store_true", help="one seed and 100 steps, as a smoke test")
    add("--workers", type=at_least(1, int), default=2, help="trainings at a time, each in a process with one thread")
    add("--out", type=Path, default=Path("results"), help="folder for the picture and the numbers")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments()
    options = parser.parse_args(argv)
    check_device(parser, options.device)
    if options.quick:
        options.seeds, options.steps = 1, min(options.steps, 100)
    options.kinds = list(dict.fromkeys(options.kinds))
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(str(error))

    runs = compare(options)
    summaries = {kind: summary([run for run in runs if run.kind == kind]) for kind in options.kinds}
    wanted = "the next character" if options.task == "next" else f"{MASKED:.0%} masked characters"
    title = f"{wanted}, after {options.steps} steps"
    print(f"\n{title}: bits per character, in windows of so many,\nmean ± standard deviation of {options.seeds} seeds")
    Console().print(table(summaries))
    sizes = sorted({run.parameters for run in runs})
    print(f"Each has {' or '.join(f'{size:,}' for size in sizes)} parameters.")

    stem = options.out / f"shift_heads_{options.task}"
    draw(stem.with_suffix(".png"), title, runs)
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
    settings["python"] = platform.python_version()  # whose documentation it is
    report = {"settings": settings, "summary": summaries, "runs": [asdict(run) for run in runs]}
    stem.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    print(f"The curves are in {stem}.png, the numbers in {stem}.json.")


if __name__ == "__main__":
    main()
