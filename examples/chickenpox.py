"""How many cases of chickenpox come next week? DCRNN on the counties of Hungary, beside a GRU that sees no graph.

    python -m examples.chickenpox --seeds 5

The data (Rozemberczki et al., arXiv:2102.08100): 521 weeks of 20 counties, standardised, and which counties border on
which, each on itself, too. One week and the next are correlated by -0.5, so that the numbers look like changes from
week to week. They are in ROOT/Chickenpox/raw/chickenpox.json, from the folder dataset/ of PyG-Temporal's repository.

The first tables follow the example in PyG-Temporal's documentation: what is read are snapshots of four weeks, as four
features of each county; one step of the cell from a state of zeros, 32 channels, ReLU, and a linear map say the next
week. Adam with a rate of 0.01 takes 200 steps on the mean of all training snapshots, the first ones; the others are the
test. DCRNN is `BasisGRUCell` over `bases.Diffusion(K)`: with K = 1, which that example has, there is no graph in it.

The squared error is that of forecasts (20,) and cases (20,). Older forms of that example took cases (20,) from
forecasts (20, 1), by which every county's forecast is compared with every county's cases, and the best forecast is the
mean of the country. The column `broadcast` is this mean of all pairs, of models that were trained by it; the last
column is the squared error of the same models.

The last table is of the whole DCRNN: an encoder reads twelve weeks, one after the other, and a decoder says the next
four; in training it reads the true last week instead of its own with a probability that falls (scheduled sampling).
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn

from examples.options import add_root, at_least
from examples.options import parser as options_of
from pyg_basisconv import bases
from pyg_basisconv.recurrent import BasisGRUCell
from pyg_basisconv.recurrent.seq2seq import DCRNN, inverse_sigmoid

LAGS, HIDDEN, RATE, EPOCHS = 4, 32, 0.01, 200
PAST, HORIZON, WINDOWS, PASSES, DECAY = 12, 4, 32, 10, 20  # of the encoder and decoder; WINDOWS in a batch
STEPS = (1, 2, 3)  # the K of DCRNN

SHARES = {0.2: "the first fifth", 0.9: "the first nine tenths"}  # of the snapshots, to train on
MOST = max(SHARES)

PUBLISHED = """\
Published: 0.742 on the first fifth by the squared error (K = 1, one seed; PyG-Temporal's documentation); 1.124 ± 0.015
and 1.123 ± 0.014, by a step for each snapshot and one for all (Rozemberczki et al., CIKM 2021), of which the split, K
and the shapes of the tensors are not known to us. K = 1 by the broadcast on the second split comes to the same.
"""

Loss = Callable[[Tensor, Tensor], Tensor]
Runs = dict[str, list[list[float]]]  # of each model the errors, a list for each seed


class Cases(NamedTuple):
    """signal: (weeks, counties); edge_index: (2, E)"""

    signal: Tensor
    edge_index: Tensor


def load(root: Path) -> Cases:
    path = root / "Chickenpox" / "raw" / "chickenpox.json"
    try:
        text = path.read_text()
    except OSError as error:
        where = "PyG-Temporal's repository has it as dataset/chickenpox.json"
        raise ValueError(f"{path}: {error.strerror}; {where}") from error
    try:
        found = json.loads(text)
        cases = Cases(torch.tensor(found["FX"], dtype=torch.float32), torch.tensor(found["edges"]).t().contiguous())
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not what it should be: {error!r}") from error
    if cases.signal.dim() != 2 or cases.edge_index.shape[:1] != (2,) or len(cases.signal) <= PAST + HORIZON:
        raise ValueError(f"{path} is not what it should be: {tuple(cases.signal.shape)} cases")
    return cases


def snapshots(signal: Tensor) -> tuple[Tensor, Tensor]:
    """(S, N, LAGS) weeks, and (S, N) the week after them."""
    return signal[:-1].unfold(0, LAGS, 1), signal[LAGS:]


def squared(forecast: Tensor, cases: Tensor) -> Tensor:
    """The mean squared error of tensors of one shape, (*, N)."""
    assert forecast.shape == cases.shape
    return (forecast - cases).square().mean()


def broadcast(forecast: Tensor, cases: Tensor) -> Tensor:
    """The mean over all pairs of a county's forecast and a county's cases."""
    return (forecast.unsqueeze(-1) - cases.unsqueeze(-2)).square().mean()


class Forecaster(nn.Module):
    """One step of a gated unit from a state of zeros, and a linear map: (S, N, LAGS) -> (S, N)."""

    def __init__(self, basis: bases.Basis) -> None:
        super().__init__()
        self.cell, self.out = BasisGRUCell(LAGS, HIDDEN, basis), nn.Linear(HIDDEN, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        edges = edge_index if self.cell.basis.needs_edges else None
        y: Tensor = self.out(self.cell(x, edges).relu()).squeeze(-1)
        return y


MODELS: dict[str, Callable[[], bases.Basis]] = {
    "GRU, no graph": bases.Identity,
    **{f"DCRNN, K = {K}": partial(bases.Diffusion, K) for K in STEPS},
}


def fit(basis: bases.Basis, cases: Cases, share: float, loss: Loss, epochs: int) -> tuple[float, float]:
    """Trains on the first share of the snapshots; on the others, the loss that was trained, and the squared error."""
    x, y = snapshots(cases.signal)
    first = int(share * len(x))
    net = Forecaster(basis)
    optimizer = torch.optim.Adam(net.parameters(), RATE)
    for _ in range(epochs):
        optimizer.zero_grad()
        loss(net(x[:first], cases.edge_index), y[:first]).backward()
        optimizer.step()
    with torch.no_grad():
        forecast = net(x[first:], cases.edge_index)
    return float(loss(forecast, y[first:])), float(squared(forecast, y[first:]))


def windows(signal: Tensor) -> tuple[Tensor, Tensor]:
    """(PAST, S, N, 1) weeks, and (HORIZON, S, N, 1) those that come after them."""
    whole = signal.unfold(0, PAST + HORIZON, 1).permute(2, 0, 1).unsqueeze(-1)
    return whole[:PAST], whole[PAST:]


def fit_sequences(K: int, cases: Cases, share: float, passes: int) -> list[float]:
    """The squared error of each week of the horizon, on windows whose forecasts begin after the training weeks."""
    x, y = windows(cases.signal)
    first = int(share * len(cases.signal)) - PAST - HORIZON + 1  # no training window reaches beyond its share
    net = DCRNN(1, HIDDEN, 1, K, horizon=HORIZON)
    optimizer = torch.optim.Adam(net.parameters(), RATE)
    step = 0
    for _ in range(passes):
        for batch in torch.randperm(first).split(WINDOWS):
            teacher = inverse_sigmoid(step, DECAY)
            optimizer.zero_grad()
            forecast = net(x[:, batch], cases.edge_index, targets=y[:, batch], teacher=teacher)
            squared(forecast.squeeze(-1), y[:, batch].squeeze(-1)).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            optimizer.step()
            step += 1
    test = slice(int(share * len(cases.signal)) - PAST, None)
    with torch.no_grad():
        forecast = net(x[:, test], cases.edge_index)
    return [float(squared(a, b)) for a, b in zip(forecast.squeeze(-1), y[:, test].squeeze(-1), strict=True)]


def snapshots_table(cases: Cases, share: float, runs: Runs) -> Table:
    """A row for each model, and one for a forecast of zero, which is of the same error by both measures."""
    rows = table(["squared error", "broadcast", "its squared error"])
    y = snapshots(cases.signal)[1]
    nothing = f"{float(y[int(share * len(y)) :].square().mean()):.3f}"
    rows.add_row("zero, always", nothing, nothing, nothing)
    for name, found in runs.items():
        rows.add_row(name, *spread(found))
    return rows


def table(headings: Sequence[str]) -> Table:
    rows = Table(box=box.SIMPLE, pad_edge=False, show_edge=False)
    rows.add_column("model", no_wrap=True)
    for heading in headings:
        rows.add_column(heading, justify="right", no_wrap=True)
    return rows


def spread(found: Sequence[Sequence[float]]) -> list[str]:
    """Mean and deviation over the seeds, of each column."""
    cells = []
    for values in zip(*found, strict=True):
        more = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
        cells.append(f"{statistics.mean(values):.3f}{more}")
    return cells


def compare(cases: Cases, seeds: int, epochs: int, passes: int) -> tuple[dict[float, Runs], Runs]:
    """The trainings on snapshots, by the share of them, and those on sequences."""
    single: dict[float, Runs] = {share: {name: [] for name in MODELS} for share in SHARES}
    whole: Runs = {f"DCRNN, K = {K}": [] for K in STEPS}
    columns = TextColumn("{task.description:40}"), BarColumn(), TextColumn("{task.completed} of {task.total}")
    with Progress(*columns, TimeElapsedColumn()) as bar:
        job = bar.add_task("", total=seeds * (len(SHARES) * len(MODELS) + len(STEPS)))
        for seed in range(seeds):
            for share, models in single.items():
                for name, found in models.items():
                    bar.update(job, description=f"{name}, {SHARES[share]}, seed {seed}")
                    errors = []
                    for loss in (squared, broadcast):
                        torch.manual_seed(seed)
                        errors.append(fit(MODELS[name](), cases, share, loss, epochs))
                    found.append([errors[0][1], *errors[1]])
                    bar.advance(job)
            for K, found in zip(STEPS, whole.values(), strict=True):
                bar.update(job, description=f"DCRNN, K = {K}, sequences, seed {seed}")
                torch.manual_seed(seed)
                found.append(fit_sequences(K, cases, MOST, passes))
                bar.advance(job)
    return single, whole


def arguments() -> argparse.ArgumentParser:
    parser = options_of("chickenpox", __doc__)
    add_root(parser, "Chickenpox")
    add = parser.add_argument
    add("--seeds", type=at_least(1, int), default=3, help="how many trainings of each model")
    add("--quick", action="store_true", help="one seed, few epochs: to see that it works")
    add("--threads", type=at_least(1, int), default=1, help="of torch; more do not pay with so few counties")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments()
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    try:
        cases = load(options.root.expanduser())
    except ValueError as error:
        parser.error(str(error))
    seeds, epochs, passes = (1, 2, 1) if options.quick else (options.seeds, EPOCHS, PASSES)
    start = time.perf_counter()
    single, whole = compare(cases, seeds, epochs, passes)
    console, N = Console(), cases.signal.shape[1]
    print(f"\n{len(cases.signal)} weeks of {N} counties; mean ± standard deviation, seeds: {seeds}")
    for share, runs in single.items():
        print(f"\nNext week from four, trained on {SHARES[share]}, tested on the rest")
        console.print(snapshots_table(cases, share, runs))
    print(f"\n{PUBLISHED}")
    print(f"The next {HORIZON} weeks from {PAST}, trained on {SHARES[MOST]}, tested on the rest: squared error")
    rows = table([f"week {t}" for t in range(1, HORIZON + 1)])
    for name, found in whole.items():
        rows.add_row(name, *spread(found))
    console.print(rows)
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
