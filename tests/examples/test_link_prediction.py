import json
import math
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch_geometric.datasets import FB15k_237
from torch_geometric.nn import RGCNConv

from examples import link_prediction
from examples.link_prediction import (
    Checkpoint,
    CrossEntropy,
    Links,
    Questions,
    Training,
    Triples,
    arguments,
    compare,
    loss,
    measure,
    ranks,
    settle,
    unseen,
)

DATA = Path(os.environ.get("BASISCONV_DATA") or "datasets")
SMALL = "--channels 8 --batch 64 --epochs 4 --device cpu --threads 1 --lr 0.02 --models rgcn distmult"


def options(more: str = "") -> SimpleNamespace:
    return settle(arguments().parse_args(f"--dataset films {SMALL} {more}".split()))


@pytest.fixture(scope="module")
def graph() -> Triples:
    """Thirty entities and three relations; who is linked follows from two numbers of each."""
    torch.manual_seed(1)
    place = torch.randn(3, 30, 2)
    head, relation, tail = torch.cartesian_prod(*(torch.arange(n) for n in (30, 3, 30))).t()
    score = (place[relation, head] * place[relation, tail]).sum(-1)
    order = score.topk(300).indices[torch.randperm(300)]
    triples = torch.stack([head, relation, tail])[:, order]
    return Triples(30, 3, *triples.split([240, 30, 30], 1))


def listing(triples: torch.Tensor) -> set[tuple[int, ...]]:
    return {tuple(triple) for triple in triples.t().tolist()}


def rank(scores: list[float], right: int, others: list[int]) -> float:
    """By definition: one more than how many are above, and half of those that are equal."""
    above = sum(scores[i] > scores[right] for i in others)
    return 1 + above + sum(scores[i] == scores[right] for i in others) / 2


def test_ranks_are_filtered_and_shared_among_equals():
    torch.manual_seed(0)
    scores = torch.randint(4, (50, 12)).float()
    target = torch.randint(12, (50,))
    known = (torch.rand(50, 12) < 0.3).scatter(1, target[:, None], True)
    row, column = known.nonzero().t()
    expected = [rank(scores[i].tolist(), int(target[i]), [j for j in range(12) if not known[i, j]]) for i in range(50)]
    assert ranks(scores, target, row, column).tolist() == expected
    assert len({value % 1 for value in expected}) == 2


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_a_model_that_says_the_same_of_all_or_nothing_gains_nothing(value):
    row, known = torch.tensor([0, 0]), torch.tensor([2, 4])
    found = float(ranks(torch.full((1, 10), value), torch.tensor([4]), row, known))
    assert found == (11 if math.isnan(value) else 5)  # the mean of the ranks 1 to 9 of what is left


def test_questions_know_all_answers_of_both_directions(graph):
    questions = Questions(graph.train, graph.relations)
    expected: dict[tuple[int, int], set[int]] = {}
    for head, relation, tail in graph.train.t().tolist():
        expected.setdefault((head, relation), set()).add(tail)
        expected.setdefault((tail, relation + graph.relations), set()).add(head)
    chosen = torch.randperm(len(questions))
    source, relation = questions.ask(chosen)
    row, place = questions.answers(chosen)
    asked = list(zip(source.tolist(), relation.tolist(), strict=True))
    assert sorted(asked) == sorted(expected)
    assert torch.equal(questions.find(source, relation), chosen)
    found: dict[tuple[int, int], set[int]] = {key: set() for key in asked}
    for i, j in zip(row.tolist(), place.tolist(), strict=True):
        found[asked[i]].add(int(questions.targets[j]))
        triple = graph.train[:, questions.triple[j]].tolist()
        assert {asked[i][0], int(questions.targets[j])} == {triple[0], triple[2]}
        assert asked[i][1] % graph.relations == triple[1]
    assert found == expected


@pytest.mark.parametrize("name", ["rgcn", "distmult"])
def test_the_measure_is_that_of_one_question_after_the_other(graph, name):
    training = Training(name, graph, options())
    found = measure(training.net, graph, training.known, graph.test, batch=7)
    net = training.net.eval()
    x = net.encode(graph.train[::2], graph.train[1]).detach()
    known, expected = listing(torch.cat(graph[2:], 1)), []
    for head, relation, tail in graph.test.t().tolist():
        for right, sided, triples in (
            (tail, relation, [(head, relation, i) for i in range(30)]),
            (head, relation + 3, [(i, relation, tail) for i in range(30)]),
        ):
            source = head if right == tail and sided == relation else tail
            scores = (x[source] * net.relation[sided] * x).sum(1).tolist()
            others = [i for i in range(30) if triples[i] not in known]
            expected.append(rank(scores, right, others))
    assert found["mrr"] == pytest.approx(sum(1 / r for r in expected) / len(expected), rel=1e-9)
    for k in (1, 3, 10):
        assert found[f"hits@{k}"] == pytest.approx(sum(r <= k for r in expected) / len(expected))


@pytest.mark.parametrize(("decomposition", "kind"), [("--bases 3", "num_bases"), ("--blocks 4", "num_blocks")])
def test_the_encoder_is_r_gcn(graph, decomposition, kind):
    net = Links(graph, options(decomposition), layers=1).double()
    conv, (head, relation, tail) = net.layers[0], graph.train
    peer = RGCNConv(8, 8, 6, **{kind: 3 if kind == "num_bases" else 4}).double()
    with torch.no_grad():
        if kind == "num_bases":
            peer.comp.copy_(conv.theta.mix[:, :6].t())
        peer.weight.copy_(conv.theta.weight if kind == "num_bases" else conv.theta.weight[:6])
        peer.root.copy_(conv.theta.dense()[6])
        peer.bias.copy_(torch.nn.init.normal_(conv.bias))
    edges = torch.stack([torch.cat([head, tail]), torch.cat([tail, head])])
    expected = peer(net.entity, edges, torch.cat([relation, relation + 3]))
    torch.testing.assert_close(conv(net.entity, torch.stack([head, tail]), edge_type=relation), expected)
    torch.testing.assert_close(net.eval().encode(graph.train[::2], relation), net.entity + expected.tanh())


def test_what_is_asked_for_is_dropped_and_a_share_of_the_rest():
    triples = torch.stack([torch.arange(10_000)] * 3)
    asked = torch.arange(0, 10_000, 10)
    edge_index, edge_type = unseen(triples, asked, 0.5)
    assert not set(edge_type.tolist()) & set(asked.tolist())
    assert edge_type.numel() == pytest.approx(4500, rel=0.1)
    assert torch.equal(edge_index, edge_type.expand(2, -1))
    assert unseen(triples, asked, 0.0)[1].numel() == 9000


@pytest.mark.parametrize("piece", [3, 4, 12, 99])
def test_the_cross_entropy_in_pieces(piece):
    question, x = (torch.randn(n, 5, dtype=torch.float64, requires_grad=True) for n in (12, 20))
    row, targets = (torch.rand(12, 20) < 0.2).logical_or(torch.eye(12, 20).bool()).nonzero().t()
    expected = -(question @ x.t()).log_softmax(-1)[row, targets].mean()
    found = CrossEntropy.apply(question, x, row, targets, torch.float64, piece)
    torch.testing.assert_close(found, expected)
    for one, other in zip(
        torch.autograd.grad(3 * found, (question, x)), torch.autograd.grad(3 * expected, (question, x)), strict=True
    ):
        torch.testing.assert_close(one, other)
    coarse = CrossEntropy.apply(question, x, row, targets, torch.bfloat16, piece)
    torch.testing.assert_close(coarse, expected, rtol=0.02, atol=0)


@pytest.mark.parametrize("negatives", ["all", "4"])
def test_a_step_sees_no_edge_that_it_predicts(graph, negatives, monkeypatch):
    chosen = options(f"--negatives {negatives} --edge-dropout 0")
    training = Training("rgcn", graph, chosen)
    seen = []
    encode = training.net.encode
    monkeypatch.setattr(training.net, "encode", lambda e, r: seen.append((e, r)) or encode(e, r))
    questions = training.questions
    batch = torch.arange(0, 20)
    loss(training.net, questions, batch, graph.train, chosen).backward()
    ((edge_index, edge_type),) = seen
    places = questions.answers(batch)[1] if negatives == "all" else batch
    hidden = listing(graph.train[:, questions.triple[places]])
    shown = listing(torch.stack([edge_index[0], edge_type, edge_index[1]]))
    assert hidden
    assert shown == listing(graph.train) - hidden
    assert training.net.relation.grad.abs().sum() > 0


@pytest.mark.parametrize(("name", "negatives"), [("rgcn", "all"), ("distmult", "4")])
@pytest.mark.sweep(1)
def test_training_learns(graph, name, negatives):
    training = Training(name, graph, options(f"--negatives {negatives} --epochs 40 --dropout 0"))
    before = measure(training.net, graph, training.known, graph.test)["mrr"]
    while training.left(math.inf):
        assert list(training.epoch())[-1] == 1
    training.test()
    assert training.run.losses[-1] < training.run.losses[0]
    assert training.run.test["mrr"] > 1.3 * before
    assert training.run.validation[training.run.best] == max(training.run.validation)
    assert measure(training.net, graph, training.known, training.validation)["mrr"] == training.run.validation[-1]


@pytest.mark.parametrize(("negatives", "steps"), [("all", 10), ("2", 45)])
@pytest.mark.slow
def test_a_training_that_is_broken_off_comes_to_the_same(graph, negatives, steps, tmp_path, monkeypatch):
    path = tmp_path / "links.pt"
    chosen = options(f"--negatives {negatives} --batch 16 --checkpoint {path}")
    whole = compare(graph, chosen, Checkpoint(None, chosen))

    left = iter(range(steps))

    def tire(*arguments):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return loss(*arguments)

    monkeypatch.setattr(link_prediction, "loss", tire)
    with pytest.raises(KeyboardInterrupt):
        compare(graph, chosen, Checkpoint(path, chosen))
    monkeypatch.undo()
    assert [file.name for file in tmp_path.iterdir()] == ["links.pt"]
    begun = Checkpoint(path, chosen)
    assert 0 < len(begun.trainings["rgcn 0"]["run"]["losses"]) < 4
    torch.rand(3)
    resumed = compare(graph, chosen, begun)
    for one, other in zip(whole, resumed, strict=True):
        assert (one.losses, one.validation, one.test) == (other.losses, other.validation, other.test)


def test_a_sequel_of_more_epochs_comes_to_the_same(graph, tmp_path):
    path = tmp_path / "links.pt"
    whole, short, long = options(), options("--epochs 2"), options()
    states = Checkpoint(None, whole)
    compare(graph, whole, states)
    compare(graph, short, Checkpoint(path, short))
    compare(graph, long, Checkpoint(path, long))
    for name, state in Checkpoint(path, long).trainings.items():
        expected = states.trainings[name]
        assert state["run"]["losses"] == expected["run"]["losses"]
        for part in ("net", "best"):
            assert state[part].keys() == expected[part].keys()
            assert all(torch.equal(state[part][key], expected[part][key]) for key in state[part])
        for i, moments in state["optimizer"]["state"].items():
            assert torch.equal(moments["exp_avg_sq"], expected["optimizer"]["state"][i]["exp_avg_sq"])


def test_patience_and_the_clock_end_a_training(graph):
    training = Training("distmult", graph, options("--patience 2 --epochs 9"))
    assert training.left(0)  # a first epoch in any case
    run = training.run
    run.losses, run.seconds, run.validation = [1.0] * 3, [5.0, 7.0, 6.0], [0.1, 0.2, 0.1]
    assert training.left(25.0)
    assert not training.left(24.0)
    run.losses, run.seconds, run.validation = [1.0] * 4, [5.0] * 4, [0.1, 0.2, 0.1, 0.2]
    assert not training.left(math.inf)
    run.losses, run.seconds, run.validation = [1.0] * 9, [5.0] * 9, [0.1 * i for i in range(9)]
    assert not training.left(math.inf)


def test_the_same_seed_gives_the_same_and_another_does_not(graph):
    found = [compare(graph, given, Checkpoint(None, given)) for given in map(options, ("", "", "--seeds 1"))]
    both = options("--seeds 0 1")
    together = compare(graph, both, Checkpoint(None, both))
    assert [(run.model, run.seed, run.test) for run in together] == [
        (run.model, run.seed, run.test) for runs in zip(found[0], found[2], strict=True) for run in runs
    ]
    losses = [[run.losses for run in runs] for runs in found]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


def write_raw(folder: Path, triples: int = 60) -> None:
    """Made-up triples in the files of FB15k-237."""
    folder.mkdir(parents=True)
    for i, part in enumerate(("train", "valid", "test")):
        lines = [f"/m/{j % 11}\t/r/{j % 4}\t/m/{(j * 3 + i) % 13}\n" for j in range(triples)]
        (folder / f"{part}.txt").write_text("".join(lines))


def refuse(self: FB15k_237) -> None:
    raise OSError("no route to host")


def test_raw_files_are_read_and_left_as_they_were(tmp_path, monkeypatch):
    monkeypatch.setattr(FB15k_237, "download", refuse)
    raw = tmp_path / "FB15k-237" / "raw"
    write_raw(raw)
    name, found = link_prediction.load("FB15k-237", tmp_path)
    assert (name, found.entities, found.relations) == ("FB15k-237", 13, 4)
    assert [part.shape for part in found[2:]] == [(3, 60)] * 3
    names: dict[str, int] = {}
    for file, part in zip(("train", "valid", "test"), found[2:], strict=True):
        for line, (head, relation, tail) in zip(
            (raw / f"{file}.txt").read_text().splitlines(), part.t().tolist(), strict=True
        ):
            for key, value in zip(line.split("\t"), (head, relation, tail), strict=True):
                assert names.setdefault(key, value) == value
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "FB15k-237",
        "raw",
        "test.txt",
        "train.txt",
        "valid.txt",
    ]


def test_what_is_downloaded_is_kept(tmp_path, monkeypatch):
    source = tmp_path / "source"
    write_raw(source)

    def download(self: FB15k_237) -> None:
        shutil.copytree(source, self.raw_dir, dirs_exist_ok=True)

    monkeypatch.setattr(FB15k_237, "download", download)
    assert link_prediction.load("FB15k-237", tmp_path / "root")[1].entities == 13
    assert (tmp_path / "root/FB15k-237/raw/test.txt").read_bytes() == (source / "test.txt").read_bytes()


def test_without_data_and_network_one_line_says_where_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(FB15k_237, "download", refuse)
    with pytest.raises(ConnectionError, match=r"FB15k-237 lacks .*no route to host.*; put them there, from https://"):
        link_prediction.load("FB15k-237", tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["half of", "/m/1\t/r/1\n"])
def test_broken_files_are_named(text, tmp_path, capsys):
    raw = tmp_path / "FB15k-237" / "raw"
    write_raw(raw)
    (raw / "valid.txt").write_text(text)
    with pytest.raises(SystemExit):
        run(f"--dataset FB15k-237 --root {tmp_path} --out {tmp_path / 'out'}")
    assert f"the files in {raw} cannot be read" in capsys.readouterr().err


def run(arguments: str) -> None:
    link_prediction.main(arguments.split())


@pytest.mark.slow
def test_films_are_learnt_in_seconds(tmp_path, capsys):
    run(f"--dataset films --epochs 12 --device cpu --threads 1 --out {tmp_path}")
    shown = capsys.readouterr().out
    assert "R-GCN + DistMult" in shown
    assert "films" in shown
    assert (tmp_path / "links_films.png").read_bytes().startswith(b"\x89PNG")
    report = json.loads((tmp_path / "links_films.json").read_text())
    assert report["settings"]["channels"] == 32
    for found in report["runs"]:
        assert 0.15 < found["test"]["mrr"] <= 1
        assert found["test"]["hits@1"] <= found["test"]["hits@3"] <= found["test"]["hits@10"]


def test_no_triple_of_the_films_is_in_two_parts():
    name, films = link_prediction.load("films", None)
    parts = [listing(part) for part in films[2:]]
    assert name == "films"
    assert len(set.union(*parts)) == sum(map(len, parts)) > 300
    assert min(map(len, parts)) > 20
    entities, relations = torch.cat([films.train[::2].flatten()]).unique(), films.train[1].unique()
    assert len(relations) == films.relations
    assert torch.isin(torch.cat([films.validation, films.test], 1)[::2], entities).all()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--negatives 0", "at least 1"),
        ("--negatives some", "invalid"),
        ("--dropout 1", "below 1"),
        ("--models gcn", "invalid choice"),
        ("--dataset film", "invalid choice"),
        ("--dataset films --channels 9 --blocks 2", "a divisor of"),
        ("--device abacus", "--device abacus"),
        ("--dataset films --checkpoint nowhere/links.pt", "there is no folder nowhere"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_trained(arguments, said, capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        run(f"{arguments} --out {tmp_path / 'out'}")
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_key_stops_it_and_the_same_command_goes_on(tmp_path, monkeypatch):
    path, given = tmp_path / "links.pt", f"--dataset films {SMALL} --epochs 2 --out {tmp_path}"
    report = tmp_path / "links_films.json"
    run(given)
    whole = json.loads(report.read_text())["runs"]
    report.unlink()

    def press(*arguments):
        if path.exists():
            raise KeyboardInterrupt
        return loss(*arguments)

    monkeypatch.setattr(link_prediction, "loss", press)
    with pytest.raises(SystemExit, match=r"goes on from .*links\.pt"):
        run(f"{given} --checkpoint {path}")
    assert not report.exists()
    monkeypatch.undo()
    run(f"{given} --checkpoint {path}")
    for one, other in zip(whole, json.loads(report.read_text())["runs"], strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}


def test_a_checkpoint_of_something_else_is_refused(tmp_path, capsys):
    path, given = tmp_path / "links.pt", f"--dataset films {SMALL} --epochs 1 --out {tmp_path}"
    run(f"{given} --checkpoint {path}")
    before = path.read_bytes()
    for content, more, said in (
        (before, "--edge-dropout 0", "was begun with --edge-dropout 0.5, not 0.0"),
        (before[:1000], "", "not a checkpoint"),
        (b"", "", "not a checkpoint"),
    ):
        path.write_bytes(content)
        with pytest.raises(SystemExit):
            run(f"{given} --checkpoint {path} {more}")
        assert said in capsys.readouterr().err
        assert path.read_bytes() == content


@pytest.mark.skipif(not (DATA / "FB15k-237" / "raw").is_dir(), reason="BASISCONV_DATA holds no FB15k-237")
def test_fb15k_237():
    name, graph = link_prediction.load("FB15k-237", DATA)
    assert (name, graph.entities, graph.relations) == ("FB15k-237", 14541, 237)
    assert [part.shape[1] for part in graph[2:]] == [272_115, 17_535, 20_466]
    training = Training("rgcn", graph, settle(arguments().parse_args(["--device", "cpu", "--threads", "1"])))
    assert len(training.questions) == 149_689
    next(training.epoch())
    assert measure(training.net, graph, training.known, graph.test[:, :50])["mrr"] < 0.2
