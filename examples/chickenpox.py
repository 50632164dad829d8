"""How many cases of chickenpox come next week? DCRNN on the counties of Hungary, beside models that see no graph.

    python -m examples.chickenpox --seeds 3

The data (Rozemberczki et al., arXiv:2102.08100) are 521 weeks of 20 counties, and the graph of neighbouring counties,
with self loops. The authors standardised each county over all weeks, including those of the test. One week and the next
are correlated by -0.5, so that the numbers look like changes from week to week. The file is
ROOT/Chickenpox/raw/chickenpox.json, from the folder dataset/ of PyG-Temporal's repository.

The first tables follow the example in PyG-Temporal's documentation. The inputs are snapshots of four weeks, as four
features of each county; one step of the cell from a state of zeros, 32 channels, ReLU, and a linear map predict the
next week. Adam with a rate of 0.01 takes 200 steps on the mean over the training snapshots, which are the first ones;
the others are the test. DCRNN is `BasisGRUCell` over `bases.Diffusion(K)`. With K = 1, as in that example, it does not
use the graph.

To check the 200 steps, each network is also trained on the first four fifths of the training snapshots, and evaluated
on the last fifth after each step. `steps` is the step with the least error, and the last column is the test error after
so many steps on all training snapshots. The baselines are zero, which is the mean of standardised data; the country's
mean of last week; and linear regressions, the same for all counties, on the county's own weeks, and on these and the
means of its neighbours, which adds the graph.

The squared error compares forecasts (20,) with cases (20,). Older versions of that example subtracted cases (20,) from
forecasts (20, 1), which compares every county's forecast with every county's cases, so that the best forecast is the
mean of the country. `each with each` is this mean over all pairs, for networks trained by it for 200 steps.

The last tables are of sequences: an encoder reads twelve weeks step by step, and a decoder predicts the next four, over
the same families. In training the decoder reads the true last week instead of its own with a falling probability
(scheduled sampling; its rate was not tuned). The number of passes over the training windows is chosen likewise.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sklearn.linear_model import LinearRegression
from torch import Tensor, nn

from examples.options import add_machine, add_root, at_least, parsed, parser as options_of
from examples.tables import spread, table
from pyg_basisconv import bases
from pyg_basisconv.recurrent import DCRNN, BasisGRUCell, BasisRNN, inverse_sigmoid

LAGS, HIDDEN, RATE, STEPS = 4, 32, 0.01, 200
PAST, HORIZON, WINDOWS, PASSES, DECAY = 12, 4, 32, 10, 20  # of the encoder and decoder; WINDOWS in a batch
FEWEST = 50  # weeks; with less, some parts have no window
FITTED = 0.8  # the share of the training data to fit while the rest chooses the number of steps

SHARES = {0.2: "the first fifth", 0.9: "the first nine tenths"}  # of the snapshots, to train on
MOST = max(SHARES)

PUBLISHED = """\
Published: 0.742 on the first fifth by the squared error (K = 1, one seed; PyG-Temporal's documentation); 1.124 ± 0.015
and 1.123 ± 0.014, by a step for each snapshot and one for all (Rozemberczki et al., CIKM 2021), of which the split, K
and the shapes of the tensors are not known to us.
"""

MODELS = {"GRU, no graph": 0, **{f"DCRNN, K = {K}": K for K in (1, 2, 3)}}

Loss = Callable[[Tensor, Tensor], Tensor]
Found = TypeVar("Found")


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
    if cases.signal.dim() != 2 or cases.edge_index.shape[:1] != (2,) or len(cases.signal) < FEWEST:
        raise ValueError(f"{path} is not what it should be: {tuple(cases.signal.shape)} cases")
    return cases


class Windows(NamedTuple):
    """Inputs and targets of all windows, the graph, and the number of training windows, which are the first ones.

    x: (S, N, past); y: (S, N, horizon); edge_index: (2, E)
    """

    x: Tensor
    y: Tensor
    edge_index: Tensor
    first: int

    @property
    def learnt(self) -> slice:
        return slice(self.first)

    @property
    def fitted(self) -> int:
        """The number of windows to fit while the number of steps is chosen."""
        return int(FITTED * self.first)

    @property
    def validation(self) -> slice:
        return self.after(self.fitted, self.first)

    @property
    def test(self) -> slice:
        return self.after(self.first, None)

    def after(self, first: int, end: int | None) -> slice:
        """The windows up to `end` whose targets lie after all weeks of the first windows."""
        return slice(first + self.y.shape[-1] - 1, end)


def windows(cases: Cases, past: int, horizon: int, share: float) -> Windows:
    whole = cases.signal.unfold(0, past + horizon, 1)
    return Windows(whole[..., :past], whole[..., past:], cases.edge_index, int(share * len(whole)))


def squared(forecast: Tensor, cases: Tensor) -> Tensor:
    """The mean squared error of tensors of one shape, (*, N, horizon)."""
    assert forecast.shape == cases.shape
    return (forecast - cases).square().mean()


def broadcast(forecast: Tensor, cases: Tensor) -> Tensor:
    """The mean over all pairs of a county's forecast and a county's cases, (*, N, horizon)."""
    return (forecast.unsqueeze(-2) - cases.unsqueeze(-3)).square().mean()


class Forecaster(nn.Module):
    """One step of a gated unit from a state of zeros, and a linear map: (S, N, LAGS) -> (S, N, 1).

    Args:
        K: of DCRNN; 0 for no graph.
    """

    def __init__(self, K: int) -> None:
        super().__init__()
        basis = bases.Diffusion(K) if K else bases.Identity()
        self.cell, self.out = BasisGRUCell(LAGS, HIDDEN, basis), nn.Linear(HIDDEN, 1)

    def forward(self, x: Tensor, edge_index: Tensor, targets: Tensor | None = None) -> Tensor:
        edges = edge_index if self.cell.basis.needs_edges else None
        y: Tensor = self.out(self.cell(x, edges).relu())
        return y


class Sequences(nn.Module):
    """Encoder and decoder: (S, N, PAST) -> (S, N, HORIZON). Each call with targets reads fewer of them than the last.

    Args:
        K: of DCRNN; 0 for no graph.
    """

    def __init__(self, K: int) -> None:
        super().__init__()
        self.net, self.graph, self.calls = DCRNN(1, HIDDEN, 1, K or 1, horizon=HORIZON), K > 0, 0
        if not self.graph:
            self.net.encoder = BasisRNN([BasisGRUCell(1, HIDDEN, bases.Identity())])
            self.net.decoder = nn.ModuleList([BasisGRUCell(1, HIDDEN, bases.Identity())])

    def forward(self, x: Tensor, edge_index: Tensor, targets: Tensor | None = None) -> Tensor:
        edges, teacher = edge_index if self.graph else None, 0.0
        if targets is not None:
            targets, teacher = steps_first(targets), inverse_sigmoid(self.calls, DECAY)
            self.calls += 1
        y: Tensor = self.net(steps_first(x), edges, targets=targets, teacher=teacher)
        return y.squeeze(-1).permute(1, 2, 0)


def steps_first(x: Tensor) -> Tensor:
    """(S, N, T) -> (T, S, N, 1)"""
    return x.permute(2, 0, 1).unsqueeze(-1)


def fit(net: nn.Module, data: Windows, first: int, loss: Loss, passes: int, size: int) -> Iterator[int]:
    """Trains on the first windows, `size` in a batch; yields the number of each finished pass."""
    optimizer = torch.optim.Adam(net.parameters(), RATE)
    for done in range(1, passes + 1):
        for batch in torch.randperm(first).split(size):
            optimizer.zero_grad()
            loss(net(data.x[batch], data.edge_index, data.y[batch]), data.y[batch]).backward()
            optimizer.step()
        yield done


@torch.no_grad()
def error(net: nn.Module, data: Windows, part: slice, loss: Loss = squared) -> float:
    return float(loss(net(data.x[part], data.edge_index), data.y[part]))


class Row(NamedTuple):
    """The results of a model: the number of parameters, the training and test errors after all passes, the chosen
    number of passes, and the test error after these, also for each week of the horizon.
    """

    parameters: int
    learnt: float
    test: float
    passes: int | None
    chosen: float
    weeks: list[float]


Rows = dict[str, list[Row]]  # by model, one for each seed


def row(kind: Callable[[int], nn.Module], data: Windows, K: int, seed: int, *, passes: int, size: int) -> Row:
    """Chooses the number of passes on the validation windows, then trains on all training windows."""
    torch.manual_seed(seed)
    trial = kind(K).to(data.x.device)
    errors = [error(trial, data, data.validation) for _ in fit(trial, data, data.fitted, squared, passes, size)]
    chosen = 1 + errors.index(min(errors))
    torch.manual_seed(seed)
    net = kind(K).to(data.x.device)
    for done in fit(net, data, data.first, squared, passes, size):
        if done == chosen:
            with torch.no_grad():
                weeks = by_week(net(data.x[data.test], data.edge_index), data)
    parameters = sum(p.numel() for p in net.parameters())
    ends = error(net, data, data.learnt), error(net, data, data.test)
    return Row(parameters, *ends, chosen, statistics.mean(weeks), weeks)


def by_week(forecast: Tensor, data: Windows) -> list[float]:
    """The squared test errors for each week of the horizon."""
    return [squared(*both).item() for both in zip(forecast.split(1, -1), data.y[data.test].split(1, -1), strict=True)]


def simple(data: Windows) -> Rows:
    """Baselines that are not trained by steps."""
    x, y, edge_index, _ = data
    N = x.shape[1]
    border = x.new_zeros(N, N).index_put_(tuple(edge_index), x.new_ones(())).fill_diagonal_(0)
    around = (border / border.sum(0).clamp(min=1)).t() @ x

    def judged(forecast: Tensor, parameters: int = 0) -> list[Row]:
        weeks = by_week(forecast[data.test], data)
        learnt, test = float(squared(forecast[data.learnt], y[data.learnt])), statistics.mean(weeks)
        return [Row(parameters, learnt, test, None, test, weeks)]

    def regression(features: Tensor) -> list[Row]:
        learnt = features[data.learnt].flatten(0, 1), y[data.learnt].flatten(0, 1)
        model = LinearRegression().fit(*(one.double().cpu().numpy() for one in learnt))
        forecast = torch.from_numpy(model.predict(features.flatten(0, 1).double().cpu().numpy()))
        return judged(forecast.to(y).view_as(y), model.coef_.size + model.intercept_.size)

    return {
        "zero, always": judged(torch.zeros_like(y)),
        "last week's mean": judged(x[:, :, -1:].mean(1, keepdim=True).expand_as(y)),
        "linear": regression(x),
        "linear, graph": regression(torch.cat([x, around], -1)),
    }


def pairs(data: Windows, K: int, seed: int, *, steps: int) -> list[float]:
    """Trains with the broadcast loss; its test error, and the squared test error."""
    torch.manual_seed(seed)
    net = Forecaster(K).to(data.x.device)
    for _ in fit(net, data, data.first, broadcast, steps, data.first):
        pass
    return [error(net, data, data.test, loss) for loss in (broadcast, squared)]


def rows_table(rows: Rows, counted: str, passes: int) -> Table:
    """A table of the errors after all passes and after the chosen ones; baselines have one error."""
    made = table("model", "parameters", "learnt", f"after {passes}", counted, "error")
    for name, found in rows.items():
        chosen = [one.passes for one in found if one.passes is not None]
        last = spread([one.test for one in found]) if chosen else ""
        cells = [f"{found[0].parameters:,}", f"{statistics.mean(one.learnt for one in found):.3f}", last]
        cells.append(f"{statistics.mean(chosen):.0f}" if chosen else "")
        made.add_row(name, *cells, spread([one.chosen for one in found]))
    return made


def columns(found: Sequence[Sequence[float]]) -> list[str]:
    return [spread(values) for values in zip(*found, strict=True)]


def arguments() -> argparse.ArgumentParser:
    parser = options_of("chickenpox", __doc__)
    add_root(parser, "Chickenpox", downloads=False)
    add = parser.add_argument
    add("--seeds", type=at_least(1, int), default=1, help="number of trainings of each network")
    add_machine(parser, "of torch; more do not pay for so few counties", quick="one seed and few steps")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments()
    options = parsed(parser, argv)
    try:
        cases = Cases(*(t.to(options.device) for t in load(options.root.expanduser())))
    except ValueError as error:
        parser.error(str(error))
    seeds, steps, passes = (1, 2, 1) if options.quick else (options.seeds, STEPS, PASSES)
    start, console = time.perf_counter(), Console()
    snapshots = {share: windows(cases, LAGS, 1, share) for share in SHARES}
    sequences = windows(cases, PAST, HORIZON, MOST)

    shown = TextColumn("{task.description:40}"), BarColumn(), TextColumn("{task.completed} of {task.total}")
    with Progress(*shown, TimeElapsedColumn(), console=console) as bar:
        job = bar.add_task("", total=seeds * len(MODELS) * (2 * len(SHARES) + 1))

        def over_seeds(train: Callable[[int, int], Found], title: str) -> dict[str, list[Found]]:
            """The results of training each model with each seed."""
            found: dict[str, list[Found]] = {}
            for name, K in MODELS.items():
                bar.update(job, description=f"{name}, {title}")
                for seed in range(seeds):
                    found.setdefault(name, []).append(train(K, seed))
                    bar.advance(job)
            return found

        rows, every = {}, {}
        for share, data in snapshots.items():
            make = partial(row, Forecaster, data, passes=steps, size=len(data.x))
            rows[share] = simple(data) | over_seeds(make, SHARES[share])
            every[share] = over_seeds(partial(pairs, data, steps=steps), "each with each")
        make = partial(row, Sequences, sequences, passes=passes, size=WINDOWS)
        whole = simple(sequences) | over_seeds(make, "sequences")

    print(f"\n{len(cases.signal)} weeks of {cases.signal.shape[1]} counties; mean ± standard deviation, seeds: {seeds}")
    print("Squared errors: `learnt` of the training, after all steps; the others of the test")
    for share, found in rows.items():
        print(f"\nNext week from four, trained on {SHARES[share]}, tested on the rest")
        console.print(rows_table(found, "steps", steps))
    for share, errors in every.items():
        print(f"\nEach with each, trained on {SHARES[share]}, {steps} steps")
        made = table("model", "each with each", "squared error")
        for name, values in errors.items():
            made.add_row(name, *columns(values))
        console.print(made)
    print(f"\n{PUBLISHED}")
    print(f"The next {HORIZON} weeks from {PAST}, trained on {SHARES[MOST]}, tested on the rest")
    console.print(rows_table(whole, "passes", passes))
    print("\nThe same, week by week, after the passes that were chosen")
    made = table("model", *(f"week {t}" for t in range(1, HORIZON + 1)))
    for name, trainings in whole.items():
        made.add_row(name, *columns([one.weeks for one in trainings]))
    console.print(made)
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
