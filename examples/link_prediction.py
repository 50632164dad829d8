"""Which triples does a knowledge graph lack? An R-GCN that reads the graph, and DistMult that scores triples.

    python -m examples.link_prediction --minutes 25 --checkpoint links.pt

The encoder is M. Schlichtkrull et al.'s (arXiv:1703.06103): learnt features of the entities go through

    BasisConv(C, C, bases.Relations(R, norm="mean", inverse=True, self_loop=True), theta.Separable(H))

and a triple (head, relation, tail) scores the sum over channels of the product of the three; a relation has one vector
for the question (head, relation, ?) and one for (?, relation, tail). DistMult alone, without a layer, is the baseline.
The encoder does not see the edges that a step predicts, nor a random share of the others.

Test triples are ranked for tails and heads among all entities, without other known triples of the three parts; entities
with equal scores share the mean of their ranks. An interrupted run continues from the last epoch in its checkpoint, and
gives the same result as an uninterrupted one.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn

from examples.data import in_a_copy
from examples.knowledge import FILES, HERE, parts
from examples.options import add_device, add_root, at_least, check_device, parser as options_of
from pyg_basisconv import BasisConv, bases, load_walks, theta

HITS = (1, 3, 10)
DEFAULTS = {
    "FB15k-237": {
        "channels": 128,
        "epochs": 100,
        "patience": 5,
        "dropout": 0.3,
        "batch": 2048,
        "lr": 0.02,
        "decay": 0.8,
    },
    "films": {"channels": 32, "epochs": 30, "patience": 30, "dropout": 0.5, "batch": 32, "lr": 0.03, "decay": 1},
}
TITLES = {"rgcn": "R-GCN + DistMult", "distmult": "DistMult"}


class Triples(NamedTuple):
    """A knowledge graph with its triples, (3, T) heads, relations and tails, in three parts."""

    entities: int
    relations: int
    train: Tensor
    validation: Tensor
    test: Tensor

    def to(self, device: str) -> "Triples":
        return Triples(*self[:2], *(part.to(device) for part in self[2:]))


def load(name: str, root: Path) -> tuple[str, Triples]:
    """FB15k-237, or the films; and the name of the data."""
    return name, freebase(root) if name == "FB15k-237" else films()


def freebase(root: Path) -> Triples:
    """FB15k-237 from the raw files in root/FB15k-237/raw, which are downloaded if they are missing."""
    return in_a_copy("FB15k-237", FILES["FB15k-237"], root, read)


def read(root: Path) -> Triples:
    """The three parts of root/FB15k-237, in PyG's numbering."""
    found = parts("FB15k-237", root / "FB15k-237")
    if not all(part.num_edges for part in found):
        raise ValueError("one of them holds no triple")
    triples = [torch.stack([part.edge_index[0], part.edge_type, part.edge_index[1]]) for part in found]
    relations = 1 + max(int(part[1].max()) for part in triples)
    return Triples(found[0].num_nodes, relations, *triples)


def films() -> Triples:
    """The films: a random fifth of the triples for validation and test, as long as their ends have other triples."""
    knowledge = load_walks(HERE / "films" / "walks.toml")
    triples = torch.stack([knowledge.edge_index[0], knowledge.edge_type, knowledge.edge_index[1]])
    triples = triples[:, torch.randperm(triples.shape[1], generator=torch.Generator().manual_seed(0))]
    left = triples[::2].flatten().bincount(minlength=knowledge.num_nodes).tolist()
    parts: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
    wanted = triples.shape[1] // 5
    for i, (head, _, tail) in enumerate(triples.t().tolist()):
        taken = len(parts["validation"]) + len(parts["test"])
        if taken < wanted and min(left[head], left[tail]) > 1:
            parts["test" if taken % 2 else "validation"].append(i)
            left[head] -= 1
            left[tail] -= 1
        else:
            parts["train"].append(i)
    names = knowledge.relations.names
    return Triples(knowledge.num_nodes, len(names), *(triples[:, part] for part in parts.values()))


class Questions:
    """Triples by their questions (source, relation, ?), where relation R + r asks for the heads of r.

    The targets of question i, in `keys`, are `targets[start[i] : start[i + 1]]`; `triple` has their triples.
    """

    def __init__(self, triples: Tensor, relations: int) -> None:
        head, relation, tail = triples
        self.relations = relations
        source, self.sided = torch.cat([head, tail]), torch.cat([relation, relation + relations])
        key, order = (source * 2 * relations + self.sided).sort(stable=True)
        self.targets, self.triple = torch.cat([tail, head])[order], order % triples.shape[1]
        self.keys, counts = key.unique_consecutive(return_counts=True)
        self.start = F.pad(counts.cumsum(0), (1, 0))

    def __len__(self) -> int:
        return len(self.keys)

    def ask(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Sources and relations of questions."""
        key = self.keys[chosen]
        return key // (2 * self.relations), key % (2 * self.relations)

    def answers(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """All pairs of a row of `chosen` and the place of one of its answers in `targets`."""
        first, count = self.start[chosen], self.start[chosen + 1] - self.start[chosen]
        row = torch.arange(len(chosen), device=count.device).repeat_interleave(count)
        within = torch.arange(len(row), device=count.device) - (count.cumsum(0) - count)[row]
        return row, first[row] + within

    def find(self, source: Tensor, relation: Tensor) -> Tensor:
        """The numbers of questions that are there."""
        return torch.searchsorted(self.keys, source * 2 * self.relations + relation)


class Links(nn.Module):
    """Features of the entities, any number of R-GCN layers, and vectors of the relations."""

    def __init__(self, graph: Triples, options: argparse.Namespace, layers: int) -> None:
        super().__init__()
        R, C = graph.relations, options.channels
        self.entity = nn.Parameter(torch.empty(graph.entities, C))
        self.relation = nn.Parameter(torch.empty(2 * R, C))
        for parameter in (self.entity, self.relation):
            nn.init.normal_(parameter, std=0.2)
        self.layers = nn.ModuleList(
            BasisConv(C, C, bases.Relations(R, norm="mean", inverse=True, self_loop=True), decomposition(options))
            for _ in range(layers)
        )
        self.dropout = options.dropout

    def encode(self, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        """(N, C) the encoded features of the entities in a graph."""
        x: Tensor = self.entity
        for layer in self.layers:
            x = x + F.dropout(layer(x, edge_index, edge_type=edge_type).tanh(), self.dropout, self.training)
        return x

    def ask(self, x: Tensor, source: Tensor, relation: Tensor) -> Tensor:
        """(B, C) vectors whose products with the features of the targets are the scores."""
        return F.dropout(x[source] * self.relation[relation], self.dropout, self.training)


def decomposition(options: argparse.Namespace) -> theta.Theta:
    return theta.Grouped(options.blocks) if options.blocks else theta.Separable(options.bases)


def unseen(triples: Tensor, asked: Tensor, dropout: float) -> tuple[Tensor, Tensor]:
    """Edges and types of a graph without the triples that are predicted, and without a random share of the others."""
    kept = torch.rand(triples.shape[1], device=triples.device) >= dropout
    kept[asked] = False
    head, relation, tail = triples[:, kept]
    return torch.stack([head, tail]), relation


class CrossEntropy(torch.autograd.Function):
    """The mean of -log softmax(question x^T)[row, target], some questions at a time and with the gradient at once: all
    scores of a batch, and what automatic differentiation keeps of them, would take longer to be written than computed.
    """

    @staticmethod
    def forward(
        ctx: Any, question: Tensor, x: Tensor, row: Tensor, targets: Tensor, dtype: torch.dtype, piece: int = 256
    ) -> Tensor:
        share = 1 / len(targets)
        weight = share * row.bincount(minlength=len(question)).to(x)[:, None]
        narrow, by_question, by_target = x.to(dtype), torch.empty_like(question), torch.zeros_like(x)
        begins = torch.arange(0, len(question) + piece, piece, device=row.device)
        ends = torch.searchsorted(row, begins).tolist()
        total = x.new_zeros(())
        for i, (first, last) in enumerate(pairwise(ends)):
            some = slice(i * piece, (i + 1) * piece)
            right, asked = (row[first:last] - i * piece, targets[first:last]), question[some].to(dtype)
            scores = (asked @ narrow.t()).to(x.dtype).log_softmax(-1)
            total -= share * scores[right].sum()
            slope = scores.exp_().mul_(weight[some])
            slope = slope.index_put_(right, slope.new_tensor(-share), accumulate=True).to(dtype)
            by_question[some] = slope @ narrow
            by_target += slope.t() @ asked
        ctx.save_for_backward(by_question, by_target)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        by_question, by_target = ctx.saved_tensors
        return grads[0] * by_question, grads[0] * by_target, None, None, None, None


def loss(net: Links, questions: Questions, batch: Tensor, triples: Tensor, options: argparse.Namespace) -> Tensor:
    """The loss of a batch of questions against all entities, or of a batch of answers against sampled negatives."""
    if options.negatives == "all":
        row, place = questions.answers(batch)
        source, relation = questions.ask(batch)
    else:
        place, asked = batch, torch.searchsorted(questions.start, batch, right=True) - 1
        source, relation = questions.ask(asked)
    x = net.encode(*unseen(triples, questions.triple[place], options.edge_dropout)) if net.layers else net.entity
    question, targets = net.ask(x, source, relation), questions.targets[place]
    if options.negatives == "all":
        return CrossEntropy.apply(question, x, row, targets, torch.bfloat16 if options.bfloat16 else x.dtype)
    others = torch.randint(len(x), (len(batch), options.negatives), device=x.device)
    scores = (x[torch.cat([targets[:, None], others], 1)] @ question[:, :, None]).squeeze(-1)
    return F.binary_cross_entropy_with_logits(scores, F.one_hot(torch.zeros_like(targets), scores.shape[1]).to(scores))


def ranks(scores: Tensor, target: Tensor, row: Tensor, known: Tensor) -> Tensor:
    """(B,) the ranks of targets among (B, N) scores, the mean one among equals, without the known pairs (row, known).

    A score that is not a number comes last.
    """
    own = scores.gather(1, target[:, None])
    scores = scores.index_put((row, known), scores.new_tensor(-math.inf))
    below, equal = (found.view(torch.uint8).sum(1, dtype=torch.int32) for found in (scores < own, scores == own))
    return 1 + scores.shape[1] - below - equal / 2


@torch.no_grad()
def measure(net: Links, graph: Triples, known: Questions, triples: Tensor, batch: int = 512) -> dict[str, float]:
    """Filtered mean reciprocal rank and hits, in both directions, of an encoder that sees the whole training graph."""
    net.eval()
    x = net.encode(graph.train[::2], graph.train[1])
    head, relation, tail = triples
    asked = torch.stack(
        [torch.cat(pair) for pair in ((head, tail), (relation, relation + graph.relations), (tail, head))]
    )
    found = []
    for source, sided, target in zip(*(part.split(batch) for part in asked), strict=True):
        row, place = known.answers(known.find(source, sided))
        found.append(ranks(net.ask(x, source, sided) @ x.t(), target, row, known.targets[place]))
    rank = torch.cat(found).double()
    return {"mrr": rank.reciprocal().mean().item()} | {f"hits@{k}": (rank <= k).double().mean().item() for k in HITS}


@dataclass
class Run:
    """One training: the results of each epoch, and the test results of the one with the best validation."""

    model: str
    parameters: int = 0
    seed: int = 0
    losses: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    test: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """What tells it from the other trainings of a checkpoint."""
        return f"{self.model} {self.seed}"

    @property
    def best(self) -> int:
        return max(range(len(self.validation)), key=self.validation.__getitem__)


class Training:
    """A model with all state that its next epoch depends on; `load` takes what `state` returns."""

    def __init__(self, name: str, graph: Triples, options: argparse.Namespace, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.graph, self.options = graph, options
        self.net = Links(graph, options, options.layers if name == "rgcn" else 0).to(options.device)
        self.best = deepcopy(self.net.state_dict())
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=options.lr)
        self.random = random_state(options.device)
        self.run = Run(name, sum(parameter.numel() for parameter in self.net.parameters()), seed)
        self.questions = Questions(graph.train, graph.relations)
        self.known = Questions(torch.cat(graph[2:], 1), graph.relations)
        order = torch.randperm(graph.validation.shape[1], generator=torch.Generator().manual_seed(0))
        self.validation = graph.validation[:, order[: options.validate].to(options.device)]

    def state(self) -> dict[str, Any]:
        parts = {"net": self.net.state_dict(), "best": self.best, "optimizer": self.optimizer.state_dict()}
        return parts | {"random": self.random, "run": asdict(self.run)}

    def load(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.best, self.random, self.run = state["best"], state["random"], Run(**state["run"])

    def left(self, seconds: float) -> bool:
        """Whether there is another epoch, which fits into the remaining seconds."""
        run, options = self.run, self.options
        if len(run.losses) >= options.epochs or (run.losses and len(run.losses) - 1 - run.best >= options.patience):
            return False
        return not run.seconds or sum(run.seconds) + max(run.seconds[-3:]) <= seconds

    def epoch(self) -> Iterator[float]:
        """Trains for an epoch; yields the finished share of it after each step."""
        begin, options, run = time.perf_counter(), self.options, self.run
        random_state(options.device, self.random)
        self.net.train()
        for group in self.optimizer.param_groups:
            group["lr"] = options.lr * options.decay ** len(run.losses)
        size = len(self.questions) if options.negatives == "all" else len(self.questions.targets)
        batches = torch.randperm(size, device=options.device).split(options.batch)
        total = 0.0
        for i, batch in enumerate(batches, 1):
            self.optimizer.zero_grad()
            value = loss(self.net, self.questions, batch, self.graph.train, options)
            value.backward()
            self.optimizer.step()
            total += value.item() * len(batch) / size
            yield i / len(batches)
        found = measure(self.net, self.graph, self.known, self.validation)["mrr"]
        run.losses.append(total)
        run.validation.append(found)
        if run.best == len(run.losses) - 1:
            self.best = deepcopy(self.net.state_dict())
        self.random = random_state(options.device)
        run.seconds.append(time.perf_counter() - begin)

    def test(self) -> None:
        net = deepcopy(self.net)
        net.load_state_dict(self.best)
        self.run.test = measure(net, self.graph, self.known, self.graph.test)


def random_state(device: str, state: list[Tensor] | None = None) -> list[Tensor]:
    """The state of the random generators of a training; sets it first, if one is given."""
    if state is not None:
        torch.set_rng_state(state[0])
        if len(state) > 1:
            torch.cuda.set_rng_state(state[1], device)
    return [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.startswith("cuda") else [])


# The options that may differ when a run continues.
FREE = ("epochs", "minutes", "patience", "checkpoint", "out", "root", "threads", "models", "seeds")


class Checkpoint:
    """A file with trainings and their settings."""

    def __init__(self, path: Path | None, options: argparse.Namespace) -> None:
        self.path = path
        self.settings = {key: value for key, value in vars(options).items() if key not in FREE}
        self.trainings: dict[str, Any] = {}
        if path is None:
            return
        if not path.parent.is_dir():
            raise ValueError(f"--checkpoint {path}: there is no folder {path.parent}; make it first")
        if not path.exists():
            return
        try:
            found = torch.load(path, weights_only=True, map_location="cpu")
            settings, self.trainings = found["settings"], found["trainings"]
        except Exception as error:  # zip, pickle and torch raise all kinds of errors
            raise ValueError(
                f"--checkpoint {path}: not a checkpoint of this program ({type(error).__name__})"
            ) from error
        for key, value in self.settings.items():
            if settings.get(key) != value:
                was = f"was begun with --{key.replace('_', '-')} {settings.get(key)}, not {value}"
                raise ValueError(f"--checkpoint {path}: {was}; take another file, or the same settings")

    def save(self, training: Training) -> None:
        """Saves atomically: a partial file never replaces a complete one."""
        self.trainings[training.run.key] = training.state()
        if self.path is not None:
            draft = self.path.with_name(self.path.name + ".new")
            torch.save({"settings": self.settings, "trainings": self.trainings}, draft)
            draft.replace(self.path)


def compare(graph: Triples, options: argparse.Namespace, checkpoint: Checkpoint) -> list[Run]:
    """Trains the models in turn, with each seed, in equal shares of the time, with a progress bar."""
    each = list(product(options.models, options.seeds))
    runs, seconds = [], 60 * options.minutes / len(each)
    columns = TextColumn("{task.description:44}"), BarColumn(), TextColumn("{task.percentage:3.0f} %")
    with Progress(*columns, TimeElapsedColumn()) as bar:
        for name, seed in each:
            training = Training(name, graph, options, seed)
            if training.run.key in checkpoint.trainings:
                training.load(checkpoint.trainings[training.run.key])
            run = training.run
            title = title_of(run, options)
            task = bar.add_task(title, total=1)
            while training.left(seconds):
                done, spent, begin = len(run.losses), sum(run.seconds), time.perf_counter()
                for part in training.epoch():
                    late = (spent + time.perf_counter() - begin) / max(seconds, 1)
                    bar.update(task, completed=max((done + part) / options.epochs, min(late, 1)))
                checkpoint.save(training)
                told = f"{title}: loss {run.losses[-1]:.3f}, MRR {run.validation[-1]:.3f}"
                bar.update(task, description=told)
            training.test()
            bar.update(task, completed=1, description=f"{title}: test MRR {run.test['mrr']:.3f}")
            runs.append(run)
    return runs


def title_of(run: Run, options: argparse.Namespace) -> str:
    return TITLES[run.model] + (f", seed {run.seed}" if len(options.seeds) > 1 else "")


def table(runs: Sequence[Run], options: argparse.Namespace) -> Table:
    rows = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)  # seeds, too, in 80 columns
    rows.add_column("\nmodel", no_wrap=True)
    for column in ("\ntime", "epochs\n(best)", "valid.\nMRR", "test\nMRR", *(f"hits\n@{k}" for k in HITS)):
        rows.add_column(column, justify="right", no_wrap=True)
    for run in runs:
        epochs = f"{len(run.losses)} ({run.best + 1})"
        figures = [run.validation[run.best], *run.test.values()]
        minutes, seconds = divmod(round(sum(run.seconds)), 60)
        rows.add_row(
            title_of(run, options), f"{minutes}:{seconds:02}", epochs, *(f"{figure:.3f}" for figure in figures)
        )
    return rows


def draw(path: Path, title: str, runs: Sequence[Run], options: argparse.Namespace) -> None:
    """Draws the validation results over time."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for run in runs:
        minutes = torch.tensor(run.seconds).cumsum(0) / 60
        axes.plot(minutes, run.validation, marker="o", markersize=3, label=title_of(run, options))
    axes.set(title=title, xlabel="minutes", ylabel="filtered MRR, validation triples")
    axes.legend()
    figure.savefig(path, dpi=120)


def negatives(text: str) -> str | int:
    return text if text == "all" else int(at_least(1, int)(text))


def share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"must be from 0 on and below 1, not {text}")
    return value


def arguments() -> argparse.ArgumentParser:
    parser = options_of("link_prediction", __doc__, epilog="Where the default is None, it depends on the dataset.")
    add = parser.add_argument
    add("--dataset", choices=["FB15k-237", "films"], default="films", help="the embedded films take seconds")
    add_root(parser, "FB15k-237")
    add("--models", nargs="+", choices=list(TITLES), default=list(TITLES), help="which ones")
    add("--minutes", type=at_least(0, float), default=25.0, help="to train in, all models and seeds together")
    add("--epochs", type=at_least(1, int), help="of a training, at most")
    add("--patience", type=at_least(1, int), help="epochs without a better validation that end a training")
    add("--checkpoint", type=Path, help="file to go on from if it is there, and to write after each epoch")
    add("--seeds", type=int, nargs="+", default=[0], help="of all random numbers: a training of each model for each")
    add("--negatives", type=negatives, default="all", help="for each triple, or all: cross-entropy over all entities")
    add("--channels", type=at_least(1, int), help="of the features of entities and relations")
    add("--layers", type=at_least(1, int), default=1, help="of the R-GCN")
    add("--bases", type=at_least(1, int), default=2, help="of the basis decomposition")
    add("--blocks", type=at_least(0, int), default=0, help="of the block decomposition; 0 for bases")
    add("--dropout", type=share, help="of features")
    add("--edge-dropout", type=share, default=0.5, help="of the edges that the encoder sees in the training")
    add("--batch", type=at_least(1, int), help="questions in a step; triples with sampled negatives")
    add("--lr", type=at_least(1e-8, float), help="of Adam in the first epoch")
    add("--decay", type=at_least(1e-3, float), help="factor of the rate from one epoch to the next")
    add("--validate", type=at_least(1, int), default=5000, help="triples to choose the epoch by, at most")
    add("--bfloat16", action="store_true", help="the scores of the training: faster where the processor can do it")
    add_device(parser)
    add("--threads", type=at_least(1, int), default=2, help="of torch on the CPU")
    add("--out", type=Path, default=Path("results"), help="folder for the picture and the numbers")
    return parser


def settle(options: argparse.Namespace) -> argparse.Namespace:
    """Fills settings that are not given with the defaults for the data."""
    for key, value in DEFAULTS[options.dataset].items():
        if getattr(options, key) is None:
            setattr(options, key, value)
    return options


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments()
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    options.models, options.seeds = (list(dict.fromkeys(given)) for given in (options.models, options.seeds))
    check_device(parser, options.device)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        options.dataset, graph = load(options.dataset, options.root.expanduser())
        settle(options)
        checkpoint = Checkpoint(options.checkpoint, options)
        decomposition(options).build(1, options.channels, options.channels)
    except (OSError, ValueError) as error:
        parser.error(str(error))

    try:
        runs = compare(graph.to(options.device), options, checkpoint)
    except KeyboardInterrupt:
        then = f"; the same command goes on from {options.checkpoint}" if options.checkpoint else ""
        raise SystemExit(f"stopped{then}") from None
    sizes = ", ".join(f"{part.shape[1]:,}" for part in graph[2:])
    title = f"{options.dataset}, {graph.entities:,} entities, {graph.relations} relations"
    print(f"\n{title}, {sizes} triples\nto train, validate and test: filtered ranks, threads: {options.threads}")
    Console().print(table(runs, options))

    stem = options.out / f"links_{options.dataset.lower()}"
    draw(stem.with_suffix(".png"), title, runs, options)
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
    report = {"settings": settings, "runs": [asdict(run) for run in runs]}
    stem.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    print(f"The curves are in {stem}.png, the numbers in {stem}.json.")


if __name__ == "__main__":
    main()
