import math
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from examples import link_walks
from examples.link_prediction import Questions, Triples, films
from examples.link_walks import (
    FLOOR,
    RIDGE,
    SHRINK,
    ComplEx,
    Rule,
    arguments,
    asked,
    both,
    choose,
    loss,
    measure,
    reasons,
    train,
    weigh,
)

N, R = 12, 3


def options(more: str = "") -> SimpleNamespace:
    given = "--rank 4 --epochs 3 --batch 16 --penalty 0.1 --device cpu"
    return arguments().parse_args(f"{given} {more}".split())


@pytest.fixture
def graph() -> Triples:
    """Random facts of three relations among twelve nodes, in three parts."""
    random = np.random.RandomState(0)
    facts = np.array(sorted({tuple(random.randint((N, R, N))) for _ in range(110)}))
    triples = torch.from_numpy(random.permutation(facts)).t()
    return Triples(N, R, triples[:, :70], triples[:, 70:80], triples[:, 80:])


def answers(triples: torch.Tensor) -> dict[tuple[int, int], set[int]]:
    """The answers of each question, by source and relation."""
    found: dict[tuple[int, int], set[int]] = {}
    for head, relation, tail in triples.t().tolist():
        found.setdefault((head, relation), set()).add(tail)
        found.setdefault((tail, relation + R), set()).add(head)
    return found


def score(net: ComplEx, source: int, relation: int) -> np.ndarray:
    """Re sum_d h_d w_d conj(e_d) for all entities e."""
    e, w = (np.array([[complex(*z) for z in row] for row in x.tolist()]) for x in (net.entity, net.relation))
    return (e.conj() @ (e[source] * w[relation])).real


def test_the_loss_is_that_of_one_answer_after_the_other(graph: Triples) -> None:
    net, given = ComplEx(graph, 4).double(), options(f"--others {N}")
    questions = Questions(graph.train, R)
    batch = torch.arange(9)
    known, terms = answers(graph.train), []
    size = [((x.detach() ** 2).sum(-1) ** 1.5).sum(-1) for x in (net.entity, net.relation)]
    for source, relation in zip(*(part.tolist() for part in questions.ask(batch)), strict=True):
        scores = score(net, source, relation)
        for target in known[source, relation]:
            cubes = sum(float(part[i]) for part, i in zip((*size, size[0]), (source, relation, target), strict=True))
            terms.append(math.log(sum(np.exp(scores))) - scores[target] + 0.1 * cubes)
    found = loss(net, questions, batch, given)
    assert float(found.detach()) == pytest.approx(sum(terms) / len(terms), rel=1e-6)


def test_others_stand_for_those_that_are_not_drawn(graph: Triples) -> None:
    torch.manual_seed(0)
    net, questions, batch = ComplEx(graph, 4).double().requires_grad_(False), Questions(graph.train, R), torch.arange(2)
    whole = float(loss(net, questions, batch, options(f"--others {N} --penalty 0")))
    drawn = [float(loss(net, questions, batch, options("--others 6 --penalty 0"))) for _ in range(400)]
    assert np.std(drawn) > 0.05
    assert np.mean(drawn) == pytest.approx(whole, abs=0.1)


def shares_by_hand(triples: torch.Tensor, sort: tuple, start: int) -> list[float]:
    """The share of the walks from a start that end in each node."""
    ends = [start]
    for relation, inverse in sort:
        facts = [(t, h) if inverse else (h, t) for h, r, t in triples.t().tolist() if r == relation]
        ends = [b for end in ends for a, b in facts if a == end]
    return [ends.count(n) / max(1, len(ends)) for n in range(N)]


SORTS = {"1": ((1, False),), "^0.2": ((0, True), (2, False))}


@pytest.mark.parametrize("sided", [0, 4])
def test_the_weights_of_walks_are_least_squares_on_hidden_triples(
    graph: Triples, sided: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_walks, "HIDDEN", 0.4)
    hidden = torch.rand(graph.train.shape[1], generator=torch.Generator().manual_seed(0)) < 0.4
    rule = Rule(graph, sided, list(SORTS))
    kept, gone, all_ = answers(graph.train[:, ~hidden]), answers(graph.train[:, hidden]), answers(graph.train)
    counts = [sum(n in ends for (_, r), ends in all_.items() if r == sided) for n in range(N)]
    frequency = [count / sum(counts) for count in counts]
    X, y = [], []
    for source in sorted(source for source, relation in gone if relation == sided):
        shares = [frequency, *(shares_by_hand(graph.train[:, ~hidden], sort, source) for sort in SORTS.values())]
        for n in range(N):
            if n not in kept.get((source, sided), ()):
                X.append([one[n] for one in shares])
                y.append(float(n in gone[source, sided]))
    A, b = np.array(X), np.array(y)
    theta = np.linalg.solve(A.T @ A + RIDGE * np.eye(3), A.T @ b)
    np.testing.assert_allclose(rule.theta, theta, rtol=1e-3, atol=1e-5)
    expected = [[frequency, *(shares_by_hand(graph.train, sort, s) for sort in SORTS.values())] for s in (3, 7)]
    shares = rule.shares(graph.train, torch.tensor([3, 7])).transpose(0, 1)
    np.testing.assert_allclose(shares, expected, rtol=1e-3, atol=1e-5)


def test_ranks_of_walks_embeddings_and_both(graph: Triples) -> None:
    torch.manual_seed(0)
    rules = [Rule(graph, sided, list(SORTS)) for sided in range(2 * R)]
    net, weights = ComplEx(graph, 4), torch.tensor([-0.5, 0.25, 1.0])

    def scores(source: torch.Tensor, sided: int) -> list[torch.Tensor]:
        shares, embedding = rules[sided].shares(graph.train, source), net(source, torch.full_like(source, sided))
        return [shares[1], embedding, both(embedding, shares, weights)]

    found = measure(graph, graph.test, scores)
    known, at = answers(torch.cat(graph[2:], 1)), 0
    for sided in range(2 * R):
        for source, target in zip(*(part.tolist() for part in asked(graph.test, sided, R)), strict=True):
            shares = rules[sided].shares(graph.train, torch.tensor([source]))[:, 0].double().numpy()
            s, logs = score(net, source, sided), [[math.log(1 + share / FLOOR) for share in one] for one in shares]
            mixed = [s[n] - 0.5 * logs[0][n] + 0.25 * logs[1][n] + logs[2][n] for n in range(N)]
            others = [n for n in range(N) if n not in known[source, sided]]
            for ranked, scores in zip(found, (shares[1], s, mixed), strict=True):
                above, equal = (sum(test(scores[n] - scores[target]) for n in others) for test in (above_, equal_))
                assert float(ranked[at]) == 1 + above + equal / 2
            at += 1
    assert at == 2 * graph.test.shape[1]


def test_weights_lower_the_cross_entropy_and_those_of_walks_only_speak_for_an_answer() -> None:
    torch.manual_seed(0)
    embedding, shares = torch.randn(30, 6), 0.1 * torch.rand(4, 30, 6)
    shares[2, :, 0] += 0.1  # speaks for the answers, and the next against them
    shares[3, :, 1:] += 0.1
    shares[0, :, 1:] += 0.1  # frequency, which may

    def objective(weights: np.ndarray | list[float]) -> float:
        total = SHRINK * sum(b * b for b in weights)
        for q in range(30):
            scores = [
                float(embedding[q, n])
                + sum(b * math.log(1 + float(shares[k, q, n]) / FLOOR) for k, b in enumerate(weights))
                for n in range(6)
            ]
            total += math.log(sum(math.exp(s) for s in scores)) - scores[0]
        return total

    weights = weigh(embedding, shares).tolist()
    assert weights[0] < 0 < weights[2]
    assert weights[3] == 0
    least = minimize(objective, np.zeros(4), bounds=[(None, None), *[(0, None)] * 3]).fun
    assert least - 1e-3 < objective(weights) < 1.1 * least < objective(np.zeros(4)) - 10


def test_weights_see_validation_triples_and_no_test_triples(graph: Triples) -> None:
    torch.manual_seed(0)
    rules = [Rule(graph, sided, list(SORTS)) for sided in range(2 * R)]
    nets = [ComplEx(graph, 4), ComplEx(graph, 4)]

    def chosen(graph: Triples) -> torch.Tensor:
        return torch.stack([torch.stack(each) for each in choose(graph, rules, nets)])

    found = chosen(graph)
    assert found.shape == (2 * R, 2, 1 + len(SORTS))
    assert torch.equal(found, chosen(graph._replace(test=graph.test.flip(0))))
    assert not torch.equal(found, chosen(graph._replace(validation=graph.test, test=graph.validation)))


def above_(difference: float) -> bool:
    return difference > 1e-6


def equal_(difference: float) -> bool:
    return abs(difference) <= 1e-6


def test_a_training_goes_on_where_it_was(graph, tmp_path) -> None:
    *_, whole = train(graph, options(), 0, None)
    file = tmp_path / "embedding.pt"
    for _ in zip(range(2), train(graph, options(), 0, file), strict=False):
        pass
    *_, rest = train(graph, options(), 0, file)
    for one, other in zip(whole.parameters(), rest.parameters(), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(ValueError, match="other settings"):
        next(train(graph, options("--lr 0.2"), 0, file))


def test_reasons_are_walks_of_the_graph() -> None:
    graph = films()
    relation = 3
    rules: list = [None] * graph.relations
    rules[relation] = Rule(graph, relation, link_walks.suggested(graph, relation))
    facts = {(h, t) for h, _, t in graph.train.t().tolist()} | {(t, h) for h, _, t in graph.train.t().tolist()}
    told = 0
    for triple in graph.train[:, graph.train[1] == relation].t():
        for reason in reasons(graph, rules, triple, str):
            worth, walk = reason.split("  ")
            nodes = [int(node) for node in walk.split(" - ")]
            assert float(worth) >= 0
            assert (nodes[0], nodes[-1]) == (int(triple[0]), int(triple[2]))
            assert all(pair in facts for pair in pairwise(nodes))
            told += 1
    assert told > 3


def test_films_take_seconds(tmp_path, capsys) -> None:
    command = f"--device cpu --epochs 4 --seeds 0 1 --explain 2 --keep {tmp_path}".split()
    link_walks.main(command)
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("embedding", "walks", "both", "hits@10", ", for\n"))
    link_walks.main(command)
    assert capsys.readouterr().out.split("model")[1] == shown.split("model")[1]
    assert {file.name for file in tmp_path.iterdir()} == {
        "walks_films.json",
        "embedding_films_0.pt",
        "embedding_films_1.pt",
    }


@pytest.mark.parametrize(("arguments", "said"), [("--device abacus", "--device abacus"), ("--rank 0", "at least 1")])
def test_what_is_wrong_is_said(arguments, said, capsys) -> None:
    with pytest.raises(SystemExit):
        link_walks.main(arguments.split())
    assert said in capsys.readouterr().err
