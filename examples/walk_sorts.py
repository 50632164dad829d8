"""Which genres has a film? Walks tell, through its people, countries and awards to films whose genres are known.

    python -m examples.walk_sorts --dataset FB15k-237 --seeds 10 --minutes 15

The walk model is one `BasisConv` over the walks that datasets/FB15k-237.toml writes down, each from film to film:

    y_n = b + sum_k c_k sum_m A_k[m, n] x_m

x are numbers for each training film and genre, zero for all others; c are the weights of the sorts. Given c, x is the
solution of (sum_k c_k A_k + ridge) x = y - b on the training films, kernel ridge regression. It tells what each
training film would be taken for if its own genres were not known: the values of c and of the ridge make the
correlation of that with its genres large, by Adam; the average precision, too, asks only for an order of the films. The
validation films say at which step to stop. The last three models have sorts that the genres of the training films
suggest, and none that is written down: the walk model; the same with one more A_k, which tells how alike the neighbours
of two films are; and the sum of what these two and logistic regression say.

Beside it: the frequencies of the classes; logistic regression, on the known genres of those that the walks lead to, on
neighbours, and on both; and an R-GCN of two layers. Each is trained on 60 % of the films, and what is chosen is chosen
by 20 %. What was chosen (the weights of sorts and the ridge, the penalty of logistic regression, the number of epochs)
stays, and each model is fitted again on both these parts before it is tested on the last 20 %. The seeds 0, 1, ... are
of the split; scores are means over the classes of the average precision. DBLP is about the fields of authors, and
without data and network there are the films of datasets/films.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from torch import Tensor, nn

from examples.knowledge import DATASETS, Task, load
from examples.options import add_machine, add_root, at_least, parsed, parser as options_of
from examples.tables import spread, table
from pyg_basisconv import BasisConv, bases, suggest_sorts, theta

STEPS, RATE, LOOK = 30, 0.3, 3  # of the weights of sorts: Adam, and a look at the validation set each third step
STRENGTHS = (0.3, 3.0)  # of logistic regression, the inverse of its penalty
LENGTH, MOST, NODES, LEAST = 4, 60, 64, 0.0  # of suggested sorts, see `suggest_sorts`; NODES is its width
WIDTH, MATRICES, EPOCHS, PATIENCE, DROPOUT = 32, 8, 60, 8, 0.5  # of R-GCN


class Case:
    """A task with one of its splits; all splits share what does not depend on them.

    The scores that models give are (n, C).
    """

    def __init__(self, task: Task, seed: int, shared: "Shared") -> None:
        self.task, self.seed, self.shared = task, seed, shared
        self.train, self.validation, self.test = task.split(seed)
        self._scores: dict[Model, Tensor] = {}

    def scores(self, model: "Model") -> Tensor:
        """What a model gives, which is fitted once."""
        if model not in self._scores:
            self._scores[model] = model(self)
        return self._scores[model]

    def precision(self, scores: Tensor, part: Tensor) -> float:
        """The mean of the average precision over the classes that occur."""
        y = self.task.y[part]
        there = y.any(0)
        return float(average_precision_score(y[:, there].numpy(), scores[part][:, there].numpy()))

    def validate(self, scores: Tensor) -> float:
        return self.precision(scores, self.validation)

    def chosen(self, fits: "Iterable[Fit]") -> Tensor:
        """The scores of the fit that tells the validation items best, from the training items.

        Those of the test items are what the same fit gives once the validation items are known, too.
        """
        scores, fit = max(((fit(self.train), fit) for fit in fits), key=lambda found: self.validate(found[0]))
        again = fit(torch.cat([self.train, self.validation]))
        return scores.index_copy(0, self.test, again[self.test])

    @cached_property
    def suggested(self) -> "Case | None":
        """With the sorts that the graph suggests for the classes of the training items; None if it suggests none."""
        k, (n, C) = self.task.knowledge, self.task.y.shape
        labels = torch.zeros(k.num_nodes, C)
        labels[self.task.items[self.train]] = self.task.y[self.train]
        settings: dict[str, Any] = {
            "length": LENGTH,
            "most": MOST,
            "samples": n,
            "width": NODES,
            "least": LEAST,
            "symmetric": True,
        }
        found = suggest_sorts(k.edge_index, k.edge_type, labels, k.relations, **settings)
        if not found:
            return None
        basis = bases.Walks([one.sort for one in found], k.relations, "sym")
        task = self.task._replace(knowledge=replace(k, basis=basis))
        return Case(task, self.seed, Shared(task, self.shared.device))


class Shared:
    """What all splits of a task share, and the device on which parameters are trained."""

    def __init__(self, task: Task, device: str = "cpu") -> None:
        self.task, self.device = task, device

    @cached_property
    def walks(self) -> Tensor:
        """(K, n, n) the matrices of the walks between the items. Built one by one: a few of them are nearly full."""
        k, items = self.task.knowledge, self.task.items
        w = k.basis
        place = torch.full((k.num_nodes,), -1)
        place[items] = torch.arange(len(items))
        found = torch.zeros(w.K, len(items), len(items))
        for matrix, sort in zip(found, w.sorts, strict=True):
            one = bases.Walks([sort], w.vocabulary, w.norm, w.per, w.binary, w.memory_limit)
            _, source, target, weight = one.bind(k.edge_index, edge_type=k.edge_type, size=k.num_nodes).edges()
            source, target = place[source], place[target]
            inside = (source >= 0) & (target >= 0)
            matrix.index_put_((source[inside], target[inside]), weight[inside])
        return found

    @cached_property
    def neighbours(self) -> scipy.sparse.csr_matrix:
        """(n, J) whether an item has a neighbour by a relation, in either direction; neighbours of one are left out."""
        k, items = self.task.knowledge, self.task.items.numpy()
        head, tail = k.edge_index.numpy()
        kinds, R, N = k.edge_type.numpy(), len(k.relations.names), k.num_nodes
        rows, columns = np.concatenate([head, tail]), np.concatenate([kinds * N + tail, (kinds + R) * N + head])
        columns = np.unique(columns, return_inverse=True)[1]
        every = scipy.sparse.csr_matrix((np.ones(len(rows)), (rows, columns)), (N, columns.max() + 1))[items]
        return every[:, np.asarray((every > 0).sum(0)).ravel() > 1]

    @cached_property
    def likeness(self) -> Tensor:
        """(n, n) the cosines between the neighbours of two items; one that k items have counts for log(n / k)."""
        x = torch.from_numpy(self.neighbours.toarray()).float()
        x = F.normalize(x * (len(x) / x.sum(0)).log().sqrt(), dim=1)
        return x @ x.t()

    def known_by_walks(self, known: Tensor) -> scipy.sparse.csr_matrix:
        """(n, K C) for each sort, the mean classes of the other known items that its walks reach."""
        seen = self.walks[:, known].clone()  # seen[k, m, n]: the weight of item m for item n
        seen[:, torch.arange(len(known)), known] = 0
        seen /= seen.sum(1, keepdim=True).clamp(min=1e-12)
        y = self.task.y[known]
        return scipy.sparse.csr_matrix(torch.einsum("kmn,mc->nkc", seen, y).flatten(1).double().numpy())


Model = Callable[[Case], Tensor]
Fit = Callable[[Tensor], Tensor]  # from the positions of the items whose classes it may read to scores


def frequencies(case: Case) -> Tensor:
    y = case.task.y
    return case.chosen([lambda known: y[known].mean(0).expand_as(y)])


def logistic(*features: Callable[[Shared, Tensor], scipy.sparse.csr_matrix]) -> Model:
    """A regression for each class, with the strength that is best on the validation set."""

    def fit(case: Case, strength: float, known: Tensor) -> Tensor:
        x = scipy.sparse.hstack([feature(case.shared, known) for feature in features], "csr")
        columns = [_logistic(x, known.numpy(), y.numpy(), strength) for y in case.task.y[known].t()]
        return torch.from_numpy(np.stack(columns, 1))

    return lambda case: case.chosen([partial(fit, case, strength) for strength in STRENGTHS])


def _logistic(x: scipy.sparse.csr_matrix, known: np.ndarray, y: np.ndarray, strength: float) -> np.ndarray:
    if y.min() == y.max() or not x.shape[1]:
        return np.full(x.shape[0], y.mean())
    fitted = LogisticRegression(C=strength, solver="liblinear", max_iter=200, random_state=0).fit(x[known], y)
    return fitted.decision_function(x)


class RGCN(nn.Module):
    """Two layers of R-GCN with basis decomposition, on learnt features of the nodes."""

    def __init__(self, nodes: int, relations: int, classes: int) -> None:
        super().__init__()
        self.x = nn.Parameter(0.1 * torch.randn(nodes, WIDTH))
        basis = bases.Relations(relations, norm="mean", inverse=True, self_loop=True)
        self.first = BasisConv(WIDTH, WIDTH, basis, theta.Separable(MATRICES))
        self.second = BasisConv(WIDTH, classes, basis, theta.Separable(MATRICES))

    def forward(self, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        x = F.dropout(self.x, DROPOUT, self.training)
        x = torch.relu(self.first(x, edge_index, edge_type=edge_type))
        return self.second(F.dropout(x, DROPOUT, self.training), edge_index, edge_type=edge_type)


def rgcn_epochs(case: Case, known: Tensor) -> Iterator[Tensor]:
    """The scores after each epoch of Adam on the binary cross-entropy of the known items."""
    k, device = case.task.knowledge, case.shared.device
    edge_index, edge_type, items, y = (
        t.to(device) for t in (k.edge_index, k.edge_type, case.task.items, case.task.y[known])
    )
    torch.manual_seed(case.seed)
    net = RGCN(k.num_nodes, len(k.relations.names), len(case.task.classes)).to(device)
    optimizer = torch.optim.Adam(net.parameters(), 0.01, weight_decay=5e-4)
    for _ in range(EPOCHS):
        net.train()
        optimizer.zero_grad()
        scores = net(edge_index, edge_type)[items[known]]
        F.binary_cross_entropy_with_logits(scores, y).backward()
        optimizer.step()
        net.eval()
        with torch.no_grad():
            yield net(edge_index, edge_type)[items].cpu()


def rgcn(case: Case) -> Tensor:
    """As many epochs as until the validation result stopped improving."""
    highest, epochs = -1.0, 0
    for epoch, scores in enumerate(rgcn_epochs(case, case.train), 1):
        value = case.validate(scores)
        if value > highest:
            highest, epochs = value, epoch
        if epoch - epochs == PATIENCE:
            break
    return case.chosen([lambda known: next(islice(rgcn_epochs(case, known), epochs - 1, None))])


class WalkModel(nn.Module):
    """`y = b + sum_k c_k A_k^T x`, at the items."""

    x: Tensor

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task, C = task, len(task.classes)
        self.conv = BasisConv(C, C, task.knowledge.basis, theta.Separable(1))
        self.register_buffer("x", torch.zeros(task.knowledge.num_nodes, C))

    def put(self, items: Tensor, x: Tensor, c: Tensor, b: Tensor) -> None:
        """Sets the x of some items, zeros for all others, the weights of the sorts, and the constant."""
        self.x.zero_()[items] = x
        self.conv.load_state_dict({"theta.weight": torch.eye(len(b))[None], "theta.mix": c[None], "bias": b})

    def forward(self) -> Tensor:
        k = self.task.knowledge
        return self.conv(self.x, k.edge_index, edge_type=k.edge_type)[self.task.items]


class Ridge(NamedTuple):
    """The weights of the sorts, (K,), and the ridge on the diagonal."""

    c: Tensor
    ridge: Tensor


def solve(A: Tensor, weights: Ridge, rest: Tensor) -> tuple[Tensor, Tensor]:
    """(t, C) the x of kernel ridge regression, and its leave-one-out errors.

    A is (K, t, t), A[k, m, n]; rest, (t, C), is the centred target. With G = (sum_k c_k A_k^T + ridge)^-1, x = G rest,
    and the error of leaving out i is x_i / G_ii.
    """
    total = torch.tensordot(weights.c, A, 1).t()
    inverse = torch.linalg.inv(total + weights.ridge * torch.eye(len(rest), device=rest.device))
    x = inverse @ rest
    return x, x / inverse.diagonal()[:, None]


def learn(A: Tensor, y: Tensor) -> Iterator[tuple[Ridge, Tensor]]:
    """Yields the weights and x after each LOOK steps, from the walks between training items and their classes."""
    rest = y - y.mean(0)
    size = A.diagonal(dim1=1, dim2=2).mean(1).clamp(min=1e-6)  # all sorts start with equal weight
    logs = [(-(len(A) * size).log()).requires_grad_(), torch.zeros((), device=A.device, requires_grad=True)]
    optimizer = torch.optim.Adam(logs, RATE)
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        told = rest - solve(A, Ridge(*(log.exp() for log in logs)), rest)[1]
        (-F.cosine_similarity(told - told.mean(0), rest, dim=0).mean()).backward()
        optimizer.step()
        if step % LOOK == 0:
            with torch.no_grad():
                weights = Ridge(*(log.exp() for log in logs))
                yield weights, solve(A, weights, rest)[0]


def choose(case: Case, A: Tensor) -> Ridge:
    """The weights at the step with the best validation result, from the (K, n, n) matrices between the items."""
    train, validation, device = case.train, case.validation, case.shared.device
    seen = A[:, train][:, :, validation]
    steps = learn(A[:, train][:, :, train].to(device), case.task.y[train].to(device))

    def precision(step: tuple[Ridge, Tensor]) -> float:
        scores = torch.zeros_like(case.task.y)
        scores[validation] = torch.tensordot(step[0].c.cpu(), seen, 1).t() @ step[1].cpu()
        return case.validate(scores)

    return max(steps, key=precision)[0]


def solution(case: Case, A: Tensor, weights: Ridge, known: Tensor) -> Tensor:
    """(t, C) the x of the known items."""
    y, device = case.task.y[known], case.shared.device
    return solve(A[:, known][:, :, known].to(device), weights, (y - y.mean(0)).to(device))[0].cpu()


def fit(case: Case, weights: Ridge, known: Tensor) -> WalkModel:
    """The model of the walks alone."""
    model = WalkModel(case.task)
    x = solution(case, case.shared.walks, weights, known)
    model.put(case.task.items[known], x, weights.c.cpu(), case.task.y[known].mean(0))
    return model


def walks(case: Case) -> Tensor:
    weights = choose(case, case.shared.walks)
    return case.chosen([lambda known: fit(case, weights, known)().detach()])


def walks_and_neighbours(case: Case) -> Tensor:
    """The same with the likeness of neighbours as one more matrix, whose weight is learnt with those of the sorts."""
    A = torch.cat([case.shared.walks, case.shared.likeness[None]])
    weights = choose(case, A)

    def told(known: Tensor) -> Tensor:
        x = solution(case, A, weights, known)
        return case.task.y[known].mean(0) + torch.tensordot(weights.c.cpu(), A[:, known], 1).t() @ x

    return case.chosen([told])


def suggested(model: Model) -> Model:
    """A model on the sorts that the graph suggests."""

    def scores(case: Case) -> Tensor:
        return frequencies(case) if case.suggested is None else case.suggested.scores(model)

    return scores


def together(*models: Model) -> Model:
    """The sum of what models say, each with mean 0 and deviation 1 for each class, on either part."""

    def scores(case: Case) -> Tensor:
        total = torch.zeros_like(case.task.y)
        for model in models:
            for part in (case.validation, case.test):
                found = case.scores(model)[part]
                total[part] += (found - found.mean(0)) / found.std(0).clamp(min=1e-9)
        return total

    return scores


both = logistic(Shared.known_by_walks, lambda shared, known: shared.neighbours)
MODELS: dict[str, Model] = {
    "class frequencies": frequencies,
    "logistic, walks": logistic(Shared.known_by_walks),
    "logistic, neighbours": logistic(lambda shared, known: shared.neighbours),
    "logistic, both": both,
    "R-GCN": rgcn,
    "BasisConv, bases.Walks": walks,
    "BasisConv, suggested sorts": suggested(walks),
    "that and likeness of neighbours": suggested(walks_and_neighbours),
    "these two and logistic, both": suggested(together(walks, walks_and_neighbours, both)),
}


class Run(NamedTuple):
    validation: float
    test: float
    seconds: float


def compare(
    task: Task, models: Mapping[str, Model], seeds: int, minutes: float, device: str = "cpu"
) -> dict[str, list[Run]]:
    """Runs all models on the first split, and on others while there is time."""
    begin, shared = time.perf_counter(), Shared(task, device)
    runs: dict[str, list[Run]] = {name: [] for name in models}
    columns = TextColumn("{task.description:34}"), BarColumn(), TextColumn("{task.completed} of {task.total}")
    with Progress(*columns, TimeElapsedColumn()) as bar:
        job = bar.add_task("walks between the items", total=seeds * len(models))
        shared.walks  # noqa: B018  computed here, so that no model is charged for it
        for seed in range(seeds):
            round_begins = time.perf_counter()
            case = Case(task, seed, shared)
            for name, model in models.items():
                bar.update(job, description=f"{name}, seed {seed}")
                start = time.perf_counter()
                scores = case.scores(model)
                seconds = time.perf_counter() - start
                runs[name].append(Run(case.validate(scores), case.precision(scores, case.test), seconds))
                bar.advance(job)
            now = time.perf_counter()
            if now + (now - round_begins) > begin + 60 * minutes:
                break
        bar.update(job, description="done")
    return runs


def results(runs: dict[str, list[Run]]) -> Table:
    rows = table("model", "validation", "test", "seeds", "s/seed")
    for name, found in runs.items():
        cells = [spread([run.validation for run in found]), spread([run.test for run in found]), str(len(found))]
        rows.add_row(name, *cells, f"{statistics.mean(run.seconds for run in found):.1f}")
    return rows


def arguments() -> argparse.ArgumentParser:
    parser = options_of("walk_sorts", __doc__)
    add = parser.add_argument
    add("--dataset", choices=DATASETS, default="films", help="whose nodes are classified")
    add_root(parser, "FB15k-237")
    add(
        "--config",
        type=Path,
        help="the sorts of walks, by default datasets/DATASET.toml, and the root is where its paths start",
    )
    add("--seeds", type=at_least(1, int), default=10, help="number of splits")
    add("--minutes", type=at_least(0, float), default=15.0, help="to be done in: fewer seeds, but one at least")
    add("--without", nargs="+", choices=list(MODELS), default=[], metavar="MODEL", help="models to leave out, by title")
    add_machine(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments()
    options = parsed(parser, argv)
    try:
        task = load(options.dataset, options.root.expanduser(), options.config)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    start = time.perf_counter()
    models = {title: model for title, model in MODELS.items() if title not in options.without}
    runs = compare(task, models, options.seeds, options.minutes, options.device)
    graph = f"{task.knowledge.num_nodes:,} nodes, {len(task.knowledge.edge_type):,} edges"
    counts = f"{len(task.items):,} items, {len(task.classes)} classes, {task.knowledge.basis.K} sorts of walks"
    print(f"\n{task.name}: {graph}, {counts}\nMean average precision over the classes, mean ± standard deviation")
    Console().print(results(runs))
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
