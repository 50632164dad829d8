"""Have heads of attention become shifts? Inspect them, and replace them by shifts.

    python -m examples.head_microscope --seeds 3 --picture docs/heads.svg

Attention with positional encodings can learn to attend to the previous position, whatever the content. Such a head is a
shift matrix (J.-M. Andreoli, arXiv:1905.01289), and `explain_head` tells how close a head is to one. A small language
model of characters (the text of `examples.shift_heads`) is trained without positions, with sines, and with a learnt
vector for each position.

1. Each head is compared with the span of the shifts by 0, 1, ..., 15 steps, by R^2 and the nearest mixture. For
   reference, there is the R^2 of uniform attention to all positions up to its own.
2. Heads with a large R^2 are replaced by their mixtures, which are the same for every text and need no keys
   and no queries,

       bases.Attention(4 - R, Dot(16), bases.Causal()) + bases.Mix(coefficients, bases.Shifts(None, range(16)))

   or each by its largest shift alone. As controls, the same heads are removed, and as many others, with the smallest
   R^2 (or all others, if they are fewer), are replaced by their mixtures. Each network is evaluated at once and after
   some more training. So is the network as learnt; the results are differences from it for the same seed, since not
   every training has such heads.

Heads are inspected on the validation text; losses are on the test text. The seeds are 0, 1, ... Sizes, learning rates
and numbers of steps are the same for all, and were not searched.
"""

import argparse
import copy
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from examples.options import add_machine, at_least, parsed, parser as options_of
from examples.shift_heads import on, sines, text
from examples.tables import spread
from pyg_basisconv import BasisConv, bases, explain_head, plot, theta
from pyg_basisconv.algebra import HeadReport
from pyg_basisconv.mechanisms import Dot

CHANNELS, HEADS, WIDTH, LAYERS = 64, 4, 16, 2
LENGTH, BATCH = 64, 32  # of the windows of text
LR, TUNING_LR = 0.01, 0.002
SHIFTS = bases.Shifts(None, range(16))

Positions = Literal["none", "sines", "learnt"]
TITLES: dict[Positions, str] = {"none": "no positions", "sines": "sines", "learnt": "learnt positions"}


def attention(content: int, fixed: Tensor | None = None) -> BasisConv:
    """Some computed heads, and R fixed mixtures of shifts, (R, 16)."""
    parts: list[bases.Basis] = [bases.Attention(content, Dot(WIDTH), bases.Causal())] if content else []
    if fixed is not None:
        parts.append(bases.Mix(fixed, SHIFTS))
    return BasisConv(CHANNELS, CHANNELS, sum(parts[1:], parts[0]), theta.LowRank(WIDTH))


class Reader(nn.Module):
    """A causal Transformer that reads characters: (B, N) -> (B, N, V) scores of each next one."""

    def __init__(self, alphabet: int, positions: Positions) -> None:
        super().__init__()
        self.positions = positions
        self.embedding = nn.Embedding(alphabet, CHANNELS)
        self.places = nn.Embedding(LENGTH, CHANNELS) if positions == "learnt" else None
        self.attention = nn.ModuleList(attention(HEADS) for _ in range(LAYERS))
        self.before = nn.ModuleList(nn.LayerNorm(CHANNELS) for _ in range(LAYERS))
        self.feed = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, 2 * CHANNELS), nn.GELU(), nn.Linear(2 * CHANNELS, CHANNELS)
            )
            for _ in range(LAYERS)
        )
        self.scores = nn.Sequential(nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, alphabet))

    def forward(self, characters: Tensor) -> Tensor:
        x: Tensor = self.embedding(characters)
        if self.positions == "sines":
            x = x + sines(characters.shape[1]).to(x)
        if self.places is not None:
            x = x + self.places.weight[: characters.shape[1]]
        for norm, heads, feed in zip(self.before, self.attention, self.feed, strict=True):
            x = x + heads(norm(x))
            x = x + feed(x)
        return self.scores(x)

    def explain(self, characters: Tensor) -> list[HeadReport]:
        """Explains the heads of each layer on these characters."""
        inputs: list[Tensor] = []
        hooks = [norm.register_forward_hook(lambda norm, given, z: inputs.append(z)) for norm in self.before]
        with torch.no_grad():
            self(characters)
        for hook in hooks:
            hook.remove()
        return [explain_head(heads, z, SHIFTS) for heads, z in zip(self.attention, inputs, strict=True)]


def loss(net: nn.Module, windows: Tensor) -> Tensor:
    """Bits per character, for the next character."""
    return F.cross_entropy(net(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()) / math.log(2)


def windows(blocks: Sequence[Tensor]) -> Tensor:
    """(B, 65) adjacent windows, each with the next character."""
    return torch.cat([block.unfold(0, LENGTH + 1, LENGTH) for block in blocks])


def measure(net: nn.Module, windows: Tensor) -> float:
    with torch.no_grad():
        return loss(net, windows).item()


def train(net: nn.Module, characters: Tensor, steps: int, lr: float, seed: int) -> None:
    """AdamW on random windows; the rate warms up for 50 steps, and then falls linearly to zero."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr, betas=(0.9, 0.98), weight_decay=0.01)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 50, 1 - step / steps))
    for _ in range(steps):
        begin = torch.randint(len(characters) - LENGTH, (BATCH, 1), generator=generator)
        optimizer.zero_grad()
        loss(net, characters[begin + torch.arange(LENGTH + 1)]).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        rate.step()


def with_fixed(layer: Any, heads: Sequence[int], mixtures: Tensor) -> nn.Module:
    """The layer with R of its heads replaced by mixtures of shifts, (R, 16); values and outputs stay."""
    kept = [h for h in range(layer.basis.K) if h not in heads]
    new: Any = attention(len(kept), mixtures).to(layer.bias)
    with torch.no_grad():
        for name in ("weight", "output"):
            getattr(new.theta, name).copy_(getattr(layer.theta, name)[[*kept, *heads]])
        new.bias.copy_(layer.bias)
        if kept:
            for name in ("key", "query"):
                getattr(new.basis.parts[0].mechanism, name).copy_(getattr(layer.basis.mechanism, name)[kept])
    return new


Head = tuple[int, int]  # the numbers of its layer and in the layer
AS_LEARNT = "as learnt"


def replaced(net: Reader, mixtures: dict[Head, Tensor]) -> Reader:
    """A copy of the network with mixtures of shifts, (16,), in place of some heads."""
    new = copy.deepcopy(net)
    for i, layer in enumerate(net.attention):
        heads = [h for at, h in mixtures if at == i]
        if heads:
            new.attention[i] = with_fixed(layer, heads, torch.stack([mixtures[i, h] for h in heads]))
    return new


def ways(reports: Sequence[HeadReport], least: float) -> dict[str, dict[Head, Tensor]]:
    """The replacements of all heads with at least this R^2, and of others, as controls."""
    mean = {(i, h): c.float() for i, report in enumerate(reports) for h, c in enumerate(report.coefficients)}
    share = {(i, h): r2 for i, report in enumerate(reports) for h, r2 in enumerate(report.r2_fixed.tolist())}
    order = sorted(mean, key=lambda head: share[head])
    alike = [head for head in order if share[head] >= least]
    others = [head for head in order if head not in alike][: len(alike)]
    every = {
        "mixtures": {head: mean[head] for head in alike},
        "one shift each": {head: F.one_hot(mean[head].argmax(), SHIFTS.K).float() for head in alike},
        "nothing": {head: torch.zeros(SHIFTS.K) for head in alike},
        "others: mixtures": {head: mean[head] for head in others},
    }
    return {title: mixtures for title, mixtures in every.items() if mixtures}


class Row(NamedTuple):
    """A network with some heads replaced: bits per character before and after some more training."""

    positions: Positions
    seed: int
    least: float | None
    title: str
    heads: int
    before: float
    after: float


def study(positions: Positions, seed: int, options: argparse.Namespace) -> tuple[list[HeadReport], list[Row]]:
    """Trains, explains the heads, replaces some, and trains on."""
    alphabet, characters, _, test = on(options.device)
    torch.manual_seed(seed)
    net, rows = Reader(alphabet, positions).to(options.device), []
    train(net, characters, options.steps, LR, seed)
    reports = copy.deepcopy(net).cpu().explain(windows(text().validation)[:, :-1])
    some: list[tuple[float | None, str, dict[Head, Tensor]]] = [(None, AS_LEARNT, {})]
    some += [(least, *way) for least in dict.fromkeys(options.least) for way in ways(reports, least).items()]
    for least, title, mixtures in some:
        new = replaced(net, mixtures).to(options.device)
        before = measure(new, windows(test))
        train(new, characters, options.more, TUNING_LR, seed)
        rows.append(Row(positions, seed, least, title, len(mixtures), before, measure(new, windows(test))))
    return reports, rows


def alike_all() -> float:
    """The R^2 of uniform attention to all positions up to one's own."""
    layer: Any = attention(1)
    nn.init.zeros_(layer.basis.mechanism.key)
    return explain_head(layer, torch.zeros(LENGTH, CHANNELS), SHIFTS).r2.item()


def table(rows: Sequence[Row]) -> Table:
    """A line for each replacement: its increase of the loss, over the seeds that have such heads."""
    learnt = {(row.positions, row.seed): row for row in rows if row.title == AS_LEARNT}
    lines = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)  # within 80 columns
    for heading in ("\nplaces", "\nR2 ≥", "in the place\nof heads"):
        lines.add_column(heading, no_wrap=True)
    for heading in ("\nseeds", "\nheads", "bits,\nat once", "bits,\ntrained on"):
        lines.add_column(heading, justify="right", no_wrap=True)
    last = None
    for way in dict.fromkeys((row.positions, row.least, row.title) for row in rows):
        own = [row for row in rows if (row.positions, row.least, row.title) == way]
        positions, least, title = way
        if last not in (None, positions):
            lines.add_section()
        last = positions
        heads = ", ".join(str(count) for count in sorted({row.heads for row in own}))
        if title == AS_LEARNT:
            bits = [spread([row.before for row in own]), spread([row.after for row in own])]
        else:
            pairs = [(row, learnt[positions, row.seed]) for row in own]
            more = [row.before - same.before for row, same in pairs], [row.after - same.after for row, same in pairs]
            bits = [spread(values, sign="+") for values in more]
        lines.add_row(positions, "" if least is None else f"{least}", title, str(len(own)), heads, *bits)
    return lines


def draw(path: Path, found: Sequence[tuple[Positions, list[HeadReport]]]) -> None:
    """Draws the layer that has the head with the largest R^2."""
    every = [(positions, report) for positions, reports in found for report in reports]
    positions, report = max(every, key=lambda one: one[1].r2_fixed.max().item())
    from matplotlib import rc_context  # matplotlib is optional; main has checked that it is there

    # Text as text and fixed ids make a small and reproducible file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "heads"}):
        figure = plot.heads(report)
        figure.suptitle(f"{TITLES[positions]}: the heads of a layer, the nearest mixtures of shifts, and the rest")
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def part(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be from 0 to 1, not {text}")
    return value


def arguments() -> argparse.ArgumentParser:
    parser = options_of("head_microscope", __doc__)
    add = parser.add_argument
    add("--positions", nargs="+", choices=list(TITLES), default=list(TITLES), help="how the networks encode positions")
    add("--seeds", type=at_least(1, int), default=1, help="number of trainings of each")
    add("--steps", type=at_least(1, int), default=1200, help="of a training")
    add("--more", type=at_least(1, int), default=150, help="steps of training after heads are replaced")
    add("--least", nargs="+", type=part, default=[0.9, 0.5], help="R2, fixed, from which on heads are replaced")
    add_machine(parser, quick="one seed and 50 steps")
    add("--picture", type=Path, default=Path("results/heads.svg"), help="where heads are drawn")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments()
    options = parsed(parser, argv)
    if options.quick:
        options.seeds, options.steps, options.more = 1, min(options.steps, 50), min(options.more, 10)
    start = time.perf_counter()
    try:
        options.picture.parent.mkdir(parents=True, exist_ok=True)
        plot.spy(SHIFTS, size=LENGTH, members=[0]).savefig(options.picture)
    except (
        ImportError,
        OSError,
        ValueError,
    ) as error:  # no matplotlib, or no such folder or format
        parser.error(f"--picture {options.picture}: {error}")

    found, rows = [], []
    for positions in dict.fromkeys(options.positions):
        for seed in range(options.seeds):
            reports, own = study(positions, seed, options)
            found.append((positions, reports))
            rows += own
            for layer, report in enumerate(reports, 1):
                print(f"\n{TITLES[positions]}, seed {seed}, layer {layer}: {report}")
    print(f"\nTo tell what is much: attention to all places before alike has R2 = {alike_all():.2f}.")
    print("\nHeads replaced: bits per character of the test text, at once and after")
    print(f"{options.more} more steps of training, as learnt, and how many more there are than")
    print("as learnt, of the same seed; mean ± standard deviation of the seeds that have such heads")
    Console().print(table(rows))
    nets = [Reader(text().alphabet, positions) for positions in TITLES]
    sizes = dict.fromkeys(f"{sum(parameter.numel() for parameter in net.parameters()):,}" for net in nets)
    print(f"Each head with shifts in its place has {2 * CHANNELS * WIDTH:,} parameters less, of {' or '.join(sizes)}.")
    draw(options.picture, found)
    print(f"\n{time.perf_counter() - start:.0f} s. Heads and their projections are in {options.picture}.")


if __name__ == "__main__":
    main()
