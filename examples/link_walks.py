"""Which triples does a knowledge graph lack? An embedding ranks them, and walks that the graph suggests, with reasons.

    python -m examples.link_walks --dataset FB15k-237 --seeds 0 1 2 --bfloat16 --keep links

A triple is two questions, (head, relation, ?) and (?, relation, tail); for the latter each relation has an inverse.

*Embedding*: ComplEx (T. Trouillon et al., arXiv:1606.06357). Entity e scores Re <q, e>, where q is the product of the
head and the relation. It is trained by cross-entropy, over the answers of a question and other entities drawn at
random, and with a penalty on |h|^3 + |w|^3 + |e|^3 (T. Lacroix et al., arXiv:1806.07297).

*Walks*: the sorts that `suggest_sorts` finds for a relation or its inverse. An entity n scores

    y_n = theta_0 f_n + sum_k theta_k A_k[h, n]

where f is how frequent n is as an answer and A is `bases.Walks(sorts, norm="row")`: the share of the walks from h that
end in n. Theta is fitted by least squares to training triples that are hidden from the walks.

*Both*: Re <q, e> + b_0 log(1 + f_n / c) + sum_k b_k log(1 + A_k[h, n] / c), with b for each relation, fitted to
validation triples by cross-entropy. No b_k of walks is negative, so that they only ever speak for an answer. Negative
ones would learn how FB15k-237 was made: what a training triple joins, no validation or test triple does.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn

from examples import knowledge
from examples.link_prediction import HITS, Questions, Triples, load, ranks
from examples.options import add_machine, add_root, at_least, parsed, parser as options_of
from examples.tables import spread, table
from pyg_basisconv import bases, load_walks, suggest_sorts
from pyg_basisconv.walks.counting import Instances

HIDDEN, STARTS, RIDGE = 0.15, 48, 0.1  # of least squares: the share of hidden triples, the most starts, the penalty
SUGGEST: dict[str, Any] = {
    "length": 3,
    "most": 20,
    "samples": 64,
    "width": 64,
    "support": 0.3,
    "least": 1e-3,
}  # see `suggest_sorts`
FLOOR, LIKELIEST = 0.003, 200  # c, and the wrong answers to a validation triple, the likeliest by the embedding
STEPS, RATE, SHRINK = 30, 0.1, 3.0  # to fit b: Adam, and the penalty on b^2
MODELS = ("embedding", "walks", "both")
DEFAULTS = {
    "FB15k-237": {"rank": 128, "epochs": 10, "batch": 1024, "penalty": 0.05},
    "films": {"rank": 16, "epochs": 30, "batch": 32, "penalty": 0.02},
}
Results = dict[str, list[dict[str, float]]]


class ComplEx(nn.Module):
    """Complex numbers of the entities and relations, as pairs of real ones."""

    def __init__(self, graph: Triples, rank: int) -> None:
        super().__init__()
        self.entity = nn.Parameter(0.1 * torch.randn(graph.entities, rank, 2))
        self.relation = nn.Parameter(0.1 * torch.randn(2 * graph.relations, rank, 2))

    def forward(self, source: Tensor, relation: Tensor) -> Tensor:
        """(B, N) the scores of all entities."""
        return question(self.entity[source], self.relation[relation]).flatten(1) @ self.entity.flatten(1).t()


def question(head: Tensor, relation: Tensor) -> Tensor:
    return torch.view_as_real(torch.view_as_complex(head) * torch.view_as_complex(relation))


def cubes(x: Tensor) -> Tensor:
    """The mean over rows of the sum of |x|^3."""
    return (x.square().sum(-1) + 1e-9).pow(1.5).sum(-1).mean()


def loss(net: ComplEx, questions: Questions, batch: Tensor, options: argparse.Namespace) -> Tensor:
    """The mean over the answers of a batch of questions."""
    row, place = questions.answers(batch)
    (source, relation), target = questions.ask(batch), questions.targets[place]
    N = len(net.entity)
    share = min(1.0, options.others / N)
    right = torch.zeros(N, dtype=torch.bool, device=target.device)
    right[target] = True
    drawn = right | (torch.rand(N, device=target.device) < share)
    # An entity that is there by chance stands for 1 / share of its like.
    stands = torch.where(right, 1.0, 1 / share)[drawn].log()
    entity, head, w = net.entity[drawn], net.entity[source], net.relation[relation]
    dtype = torch.bfloat16 if options.bfloat16 else entity.dtype
    asked = nn.functional.dropout(question(head, w).flatten(1), options.dropout)
    scores = (asked.to(dtype) @ entity.flatten(1).to(dtype).t()).to(entity.dtype) + stands
    column = (drawn.cumsum(0) - 1)[target]
    found = -scores.log_softmax(1)[row, column].mean()
    return found + options.penalty * (cubes(head[row]) + cubes(w[row]) + cubes(entity[column]))


def train(graph: Triples, options: argparse.Namespace, seed: int, file: Path | None) -> Iterator[ComplEx]:
    """Yields the embedding after each epoch, and goes on from those in the file."""
    torch.manual_seed(seed)
    net = ComplEx(graph, options.rank).to(options.device)
    optimizer = torch.optim.Adagrad(net.parameters(), options.lr)
    questions, done = Questions(graph.train, graph.relations), 0
    settings = [options.rank, options.epochs, options.lr, options.batch, options.others, options.penalty, seed]
    if file is not None and file.exists():
        state = torch.load(file, map_location=options.device)
        if state["settings"] != settings:
            raise ValueError(f"{file} was written with other settings; take another folder, or the same settings")
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["done"]
        torch.set_rng_state(state["random"].cpu())
        yield net
    for epoch in range(done, options.epochs):
        batches = torch.randperm(len(questions), device=options.device).split(options.batch)
        for i, batch in enumerate(batches):
            optimizer.param_groups[0]["lr"] = options.lr * (1 - (epoch + i / len(batches)) / options.epochs)
            optimizer.zero_grad()
            loss(net, questions, batch, options).backward()
            optimizer.step()
        if file is not None:
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "done": epoch + 1}
            torch.save(state | {"random": torch.get_rng_state(), "settings": settings}, file)
        yield net


def asked(triples: Tensor, sided: int, relations: int) -> tuple[Tensor, Tensor]:
    """Sources and targets of the questions by a relation, or by the inverse of relation sided - relations."""
    head, _, tail = triples[:, triples[1] == sided % relations]
    return (head, tail) if sided < relations else (tail, head)


def suggested(graph: Triples, sided: int) -> list[str]:
    """Sorts of walks that tell the answers, in numbers."""
    head, relation, tail = graph.train.cpu()
    name = f"{'^' * (sided >= graph.relations)}{sided % graph.relations}"
    if (relation == sided % graph.relations).sum() < 2:
        return []
    try:
        found = suggest_sorts(torch.stack([head, tail]), relation, name, **SUGGEST)
    except ValueError:  # of facts of one node, or without a sort that says something
        return []
    return [one.sort.text for one in found]


class Rule:
    """y of a relation or of an inverse.

    Args:
        graph: in whose training triples walks are.
        sided: the relation.
        sorts: of walks.
        theta: of how frequent an answer is, and of the sorts; None to fit it.
    """

    def __init__(self, graph: Triples, sided: int, sorts: list[str], theta: list[float] | None = None) -> None:
        self.graph, self.sorts = graph, sorts
        answers = asked(graph.train, sided, graph.relations)[1]
        self.frequency = answers.bincount(minlength=graph.entities) / max(1, len(answers))
        self.basis = bases.Walks(sorts, norm="row") if sorts else None
        self.theta = self._fit(sided) if theta is None else torch.tensor(theta, device=answers.device)

    def shares(self, triples: Tensor, source: Tensor) -> Tensor:
        """(1 + K, Q, N) how frequent entities are, and the shares of the walks from the sources."""
        N, Q = self.graph.entities, len(source)
        prior = self.frequency.expand(1, Q, N)
        if self.basis is None:
            return prior
        x = torch.zeros(N, Q, device=source.device)
        x[source, torch.arange(Q, device=source.device)] = 1
        bound = self.basis.bind(triples[::2], edge_type=triples[1], size=N)
        return torch.cat([prior, bound.expand(x).transpose(1, 2)])

    def _fit(self, sided: int) -> Tensor:
        """Least squares on training triples that are hidden from the walks; the same for each relation."""
        train, random = self.graph.train, torch.Generator().manual_seed(0)
        hidden = (torch.rand(train.shape[1], generator=random) < HIDDEN).to(train.device)
        starts = asked(train[:, hidden], sided, self.graph.relations)[0].unique()
        starts = starts[torch.randperm(len(starts), generator=random)[:STARTS].sort().values]
        if not len(starts):
            return (torch.arange(1 + len(self.sorts), device=train.device) == 0).float()
        X = self.shares(train[:, ~hidden], starts)
        y, left = torch.zeros_like(X[0]), torch.ones_like(X[0])
        for facts, matrix, value in ((hidden, y, 1.0), (~hidden, left, 0.0)):  # what walks may use is no answer
            source, target = asked(train[:, facts], sided, self.graph.relations)
            there = torch.isin(source, starts)
            matrix[torch.searchsorted(starts, source[there]), target[there]] = value
        X = (X * left).flatten(1)
        return torch.linalg.solve(X @ X.t() + RIDGE * torch.eye(len(X), device=X.device), X @ y.flatten())


def both(embedding: Tensor, shares: Tensor, weights: Tensor) -> Tensor:
    """The scores of an embedding, and what walks add to them; shares has a first dimension more."""
    return embedding + torch.tensordot(weights, (shares / FLOOR).log1p(), 1)


@torch.enable_grad()
def weigh(embedding: Tensor, shares: Tensor) -> Tensor:
    """(1 + K,) b, from (Q, 1 + L) scores of answers, each followed by L wrong ones, and (1 + K, Q, 1 + L) shares."""
    weights = torch.zeros(len(shares), device=shares.device, requires_grad=True)
    optimizer = torch.optim.Adam([weights], RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        found = both(embedding, shares, weights).log_softmax(1)[:, 0].sum()
        (SHRINK * weights.square().sum() - found).backward()
        optimizer.step()
        weights.data[1:].clamp_(min=0)
    return weights.detach()


@torch.no_grad()
def measure(graph: Triples, triples: Tensor, scores: Callable[[Tensor, int], Iterable[Tensor]]) -> list[Tensor]:
    """The filtered ranks of triples, for both of their questions, by each of the scores of sources and a relation."""
    known, found = Questions(torch.cat(graph[2:], 1), graph.relations), []
    for sided in range(2 * graph.relations):
        for source, target in zip(*(part.split(64) for part in asked(triples, sided, graph.relations)), strict=True):
            row, place = known.answers(known.find(source, torch.full_like(source, sided)))
            found.append([ranks(one, target, row, known.targets[place]) for one in scores(source, sided)])
    return [torch.cat(part) for part in zip(*found, strict=True)]


def mrr(rank: Tensor) -> float:
    return float(rank.double().reciprocal().mean())


def rules_of(graph: Triples, file: Path | None) -> Iterator[Rule]:
    """The walks of all relations; those in the file have been suggested and fitted before."""
    kept: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file is not None and file.exists() else {}
    for sided in range(2 * graph.relations):
        found = kept.get(str(sided)) or {"sorts": suggested(graph, sided), "theta": None}
        rule = Rule(graph, sided, **found)
        yield rule
        if found["theta"] is None:
            kept[str(sided)] = found | {"theta": rule.theta.tolist()}
            if file is not None:
                file.write_text(json.dumps(kept))


@torch.no_grad()
def choose(graph: Triples, rules: Iterable[Rule], nets: list[ComplEx]) -> Iterator[list[Tensor]]:
    """For each relation the weights b beside each embedding."""
    R = graph.relations
    known = Questions(torch.cat([graph.train, graph.validation], 1), R)
    for sided, rule in enumerate(rules):
        pieces: list[list[tuple[Tensor, Tensor]]] = [[] for _ in nets]
        for source, target in zip(*(part.split(64) for part in asked(graph.validation, sided, R)), strict=True):
            shares, relation = rule.shares(graph.train, source), torch.full_like(source, sided)
            row, place = known.answers(known.find(source, relation))
            for net, found in zip(nets, pieces, strict=True):
                scores = net(source, relation)
                own = scores.gather(1, target[:, None])
                wrong = scores.index_put((row, known.targets[place]), scores.new_tensor(-torch.inf))
                likeliest = wrong.topk(min(LIKELIEST, graph.entities))
                answers = torch.cat([target[:, None], likeliest.indices], 1).expand(len(shares), -1, -1)
                found.append((torch.cat([own, likeliest.values], 1), shares.gather(2, answers)))
        yield [weigh(torch.cat([one for one, _ in found]), torch.cat([one for _, one in found], 1)) for found in pieces]


def compare(graph: Triples, options: argparse.Namespace) -> tuple[list[Rule], Results]:
    """The rules, and the test results of each model and seed."""
    keep, nets = options.keep, []
    columns = TextColumn("{task.description:40}"), BarColumn(), TextColumn("{task.completed} of {task.total}")
    with Progress(*columns, TimeElapsedColumn()) as bar:
        file = keep / f"walks_{options.dataset}.json" if keep else None
        rules = list(bar.track(rules_of(graph, file), total=2 * graph.relations, description="walks"))
        for seed in options.seeds:
            file = keep / f"embedding_{options.dataset}_{seed}.pt" if keep else None
            epochs = train(graph, options, seed, file)
            *_, net = bar.track(epochs, total=options.epochs, description=f"embedding, seed {seed}")
            nets.append(net)
        weights = list(bar.track(choose(graph, rules, nets), total=len(rules), description="weights of walks"))

        def scores(source: Tensor, sided: int) -> Iterator[Tensor]:
            shares = rules[sided].shares(graph.train, source)
            yield torch.tensordot(rules[sided].theta, shares, 1)
            for net, own in zip(nets, weights[sided], strict=True):
                embedding = net(source, torch.full_like(source, sided))
                yield from (embedding, both(embedding, shares, own))

        found = measure(graph, graph.test, scores)
    results: Results = {name: [] for name in MODELS}
    for name, rank in zip(["walks", *["embedding", "both"] * len(nets)], found, strict=True):
        hits = {f"hits@{k}": float((rank <= k).double().mean()) for k in HITS}
        results[name].append({"mrr": mrr(rank)} | hits)
    return rules, results


def reasons(graph: Triples, rules: list[Rule], triple: Tensor, name: Callable[[int], str], most: int = 3) -> list[str]:
    """The walks that carry the answer to (head, relation, ?), by name, with what they add to y."""
    head, relation, tail = triple.tolist()
    rule = rules[relation]
    parts = rule.theta * rule.shares(graph.train, triple[:1])[:, 0, tail]
    found = []
    for k in parts[1:].topk(min(most, len(rule.sorts))).indices.tolist():
        if parts[k + 1] > 0:
            walks = Instances(
                rule.basis.sorts[k], rule.basis.vocabulary, graph.train[::2].cpu(), graph.train[1].cpu(), graph.entities
            )
            (walk,) = walks.between(head, tail, 1)
            found.append(f"{parts[k + 1]:.3f}  {' - '.join(map(name, walk))}")
    return found


def summary(results: Results) -> Table:
    rows = table("model", "seeds", "MRR", *(f"hits@{k}" for k in HITS))
    for name, found in results.items():
        if found:
            values = [[one[key] for one in found] for key in found[0]]
            rows.add_row(name, str(len(found)), *(spread(value) for value in values))
    return rows


def names_of(dataset: str, root: Path) -> tuple[list[str], list[str]]:
    """Of the entities and relations."""
    if dataset == "films":
        graph = load_walks(knowledge.HERE / "films" / "walks.toml")
    else:
        graph = knowledge.load(dataset, root).knowledge
    file = root / dataset / "names.tsv"
    labels = dict(line.split("\t") for line in file.read_text("utf-8").splitlines()) if file.is_file() else {}
    return [labels.get(name, name) for name in graph.entities], [
        graph.relations.shown(i) for i in range(len(graph.relations))
    ]


def arguments() -> argparse.ArgumentParser:
    parser = options_of("link_walks", __doc__, epilog="Where the default is None, it depends on the dataset.")
    add = parser.add_argument
    add("--dataset", choices=list(DEFAULTS), default="films", help="the embedded films take seconds")
    add_root(parser, "FB15k-237")
    add("--seeds", type=int, nargs="+", default=[0], help="of the embeddings")
    add("--rank", type=at_least(1, int), help="complex numbers of an entity")
    add("--epochs", type=at_least(1, int), help="of a training; the rate falls to zero at their end")
    add("--lr", type=at_least(1e-8, float), default=0.1, help="of Adagrad in the first step")
    add("--batch", type=at_least(1, int), help="questions in a step")
    add("--others", type=at_least(1, int), default=2048, help="entities that are drawn as wrong answers of a step")
    add("--penalty", type=at_least(0, float), help="on the cubes")
    add("--dropout", type=float, default=0.0, help="of questions")
    add("--bfloat16", action="store_true", help="the scores of the training: faster where the processor can do it")
    add("--explain", type=at_least(0, int), default=5, help="predictions whose reasons are shown")
    add("--keep", type=Path, help="folder of what has been computed; the same command goes on from there")
    add_machine(parser, "of torch on the CPU")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments()
    options = parsed(parser, argv)
    for key, value in DEFAULTS[options.dataset].items():
        if getattr(options, key) is None:
            setattr(options, key, value)
    root = options.root.expanduser()
    try:
        if options.keep is not None:
            options.keep.mkdir(parents=True, exist_ok=True)
        graph = load(options.dataset, root)[1].to(options.device)
        entities, relations = names_of(options.dataset, root)
        rules, results = compare(graph, options)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    Console().print(summary(results))
    shown = 0
    for triple in graph.test.t():
        found = reasons(graph, rules, triple, entities.__getitem__) if shown < options.explain else []
        if found:
            head, relation, tail = triple.tolist()
            print(f"\n{entities[head]} - {relations[relation]} - {entities[tail]}, for", *found, sep="\n  ")
            shown += 1


if __name__ == "__main__":
    main()
