"""Sorts that a graph suggests: every count and every gain against plain loops."""

import itertools
import json
import re
import shutil
import tomllib
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

import pyg_basisconv.walks.suggest as suggest
from pyg_basisconv import bases, load_walks, suggest_sorts
from pyg_basisconv.__main__ import main
from pyg_basisconv.walks.report import text_of_suggested

FILMS = Path(__file__).parents[2] / "datasets" / "films"
NODES, RELATIONS = 12, 3


def graph(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Facts of three relations, each once, among twelve nodes."""
    random = np.random.RandomState(seed)
    facts = sorted({tuple(random.randint((NODES, RELATIONS, NODES))) for _ in range(50)} | {(NODES - 1, 0, 0)})
    table = torch.tensor(np.array(facts))
    return table[:, ::2].t().contiguous(), table[:, 1].contiguous()


def facts_of(edges: torch.Tensor, types: torch.Tensor) -> list[tuple[int, int, int]]:
    return [(h, r, t) for (h, t), r in zip(edges.t().tolist(), types.tolist(), strict=True)]


def walks_from(start: int, ways: tuple, facts: list) -> list[tuple[int, ...]]:
    """All walks along these steps, one by one."""
    walks = [(start,)]
    for relation, inverse in ways:
        ends = [(t, h) if inverse else (h, t) for h, r, t in facts if r == relation]
        walks = [(*walk, b) for walk in walks for a, b in ends if a == walk[-1]]
    return walks


def shares(start: int, ways: tuple, facts: list, target: Any) -> dict[int, Fraction]:
    """f(start, .) by its definition; target is a relation, or a list of the sets of labels of the nodes."""
    if isinstance(target, int):
        known = [fact for fact in facts if not (fact[0] == start and fact[1] == target)]
        tails = {t for _, r, t in facts if r == target}
        ends = [walk[-1] for walk in walks_from(start, ways, known)]
        return {c: Fraction(ends.count(c), len(ends)) for c in set(ends) & tails}
    ends = [walk[-1] for walk in walks_from(start, ways, facts) if target[walk[-1]] and walk[-1] != start]
    said = {c for end in ends for c in target[end]}
    return {c: Fraction(sum(c in target[end] for end in ends), len(ends)) for c in said}


def oracle(facts: list, target: Any, length: int, symmetric: bool) -> tuple[dict, dict, list, list]:
    """y and f of every sort, as dicts by start and end, with the frequencies."""
    if isinstance(target, int):
        y = {(h, t) for h, r, t in facts if r == target}
    else:
        y = {(n, c) for n, labels in enumerate(target) for c in labels}
    starts, ends = sorted({s for s, _ in y}), sorted({c for _, c in y})
    steps = list(itertools.product(range(RELATIONS), (False, True)))
    sorts = [
        ways for n in range(1, length // (2 if symmetric else 1) + 1) for ways in itertools.product(steps, repeat=n)
    ]
    if symmetric:
        sorts = [(*ways, *((r, not inverse) for r, inverse in reversed(ways))) for ways in sorts]
    f = {ways: {(s, c): share for s in starts for c, share in shares(s, ways, facts, target).items()} for ways in sorts}
    others = len(starts) - 1
    prior = {(s, c): Fraction(sum((o, c) in y for o in starts if o != s), others) for s in starts for c in ends}
    return y, {ways: said for ways, said in f.items() if said}, starts, [prior, ends]


def vector(values: Any, starts: list, ends: list) -> np.ndarray:
    dense = values if isinstance(values, dict) else dict.fromkeys(values, 1)
    return np.array([float(dense.get((s, c), 0)) for s in starts for c in ends])


def unexplained(y: np.ndarray, columns: list[np.ndarray]) -> float:
    X = np.stack(columns, 1)
    return float(((y - X @ np.linalg.lstsq(X, y, rcond=None)[0]) ** 2).sum())


LABELS = [{0}, {1}, {0, 2}, {2}, set(), {1}, {0}, {2}, {0, 1}, set(), {1}, {2}]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("kind", "length", "symmetric"), [("relation", 2, False), ("labels", 2, False), ("labels", 4, True)]
)
def test_counts_and_gains(kind: str, length: int, symmetric: bool, seed: int) -> None:
    edges, types = graph(seed)
    facts, target = facts_of(edges, types), 0 if kind == "relation" else LABELS
    y, f, starts, (prior, ends) = oracle(facts, target, length, symmetric)
    told = 0 if kind == "relation" else torch.tensor([[float(c in labels) for c in range(3)] for labels in LABELS])
    found = suggest_sorts(edges, types, told, RELATIONS, length, symmetric=symmetric, least=0.0, most=4)
    assert len(found) > 1
    columns, whole = [vector(prior, starts, ends)], vector(y, starts, ends)
    before = every = unexplained(whole, columns)
    for one in found:
        (ways,) = [tuple(step[0] for step in sequence) for sequence in one.sort.sequences]
        said = f[ways]
        right = {pair: share for pair, share in said.items() if pair in y}
        assert one.coverage == pytest.approx(len(right) / len(y))
        assert one.confidence == pytest.approx(float(sum(right.values()) / sum(said.values())))
        gains = {}
        for other, values in f.items():
            column = vector(values, starts, ends)
            X = np.stack(columns, 1)
            rest = whole - X @ np.linalg.lstsq(X, whole, rcond=None)[0]
            gains[other] = before - unexplained(whole, [*columns, column]) if column @ rest > 0 else 0
        assert one.gain == pytest.approx(gains[ways] / every, rel=1e-6)
        assert one.gain == pytest.approx(max(gains.values()) / every, rel=1e-6), "the best of all sorts"
        columns.append(vector(said, starts, ends))
        before = unexplained(whole, columns)
        for walk in one.examples:
            hidden = [t for t in facts if not (kind == "relation" and t[0] == walk[0] and t[1] == 0)]
            assert walk in walks_from(walk[0], ways, hidden)
            if kind == "relation":
                assert (walk[0], walk[-1]) in y
            else:
                assert walk[-1] != walk[0]
                assert LABELS[walk[0]] & LABELS[walk[-1]]


@pytest.mark.parametrize("seed", range(3))
def test_heads_are_the_tails_of_the_graph_turned_round(seed: int) -> None:
    edges, types = graph(seed)
    heads, tails = suggest_sorts(edges, types, "^0", least=0.0), suggest_sorts(edges.flip(0), types, "0", least=0.0)
    assert len(heads) == len(tails) > 1
    for one, other in zip(heads, tails, strict=True):
        (ways,), (turned,) = one.sort.sequences, other.sort.sequences
        assert ways == tuple(tuple((relation, not inverse) for relation, inverse in step) for step in turned)
        assert one[1:] == other[1:]


def test_gains_are_what_least_squares_explain() -> None:
    rng = np.random.default_rng(0)
    drawn = [csr_matrix(rng.random((5, 3)) * (rng.random((5, 3)) < 0.5)) for _ in range(6)]
    y, *others = columns = [one.toarray().ravel() for one in drawn]
    fit, known = suggest._Fit(SimpleNamespace(y=drawn[0], prior=np.full((5, 3), 0.2))), [np.full(15, 0.2)]
    for other in others:
        fit.add(other)
        known.append(other)
        X = np.stack(known, 1)
        rest = y - X @ np.linalg.lstsq(X, y, rcond=None)[0]
        gains = [unexplained(y, known) - unexplained(y, [*known, c]) if c @ rest > 1e-9 else 0 for c in columns]
        assert gains[0] > 0
        assert [fit.gain(one) for one in drawn] == pytest.approx(gains)


def test_a_sample_of_walks_keeps_their_number() -> None:
    edges, types = graph(0)
    many = edges.repeat(1, 3)  # parallel edges: three walks where there was one
    told = suggest._target(many, types.repeat(3), 0, suggest.Vocabulary.of(RELATIONS), 256)
    ways = ((1, False), (1, True), (2, False))
    exact = suggest._Search(many, types.repeat(3), told, 100).walk(ways)
    thin = suggest._Search(many, types.repeat(3), told, 2)
    once = thin._thinned(exact.copy())
    assert int(np.diff(exact.indptr).max()) > 2
    assert int(np.diff(once.indptr).max()) == 2
    np.testing.assert_allclose(once.sum(1), exact.sum(1))
    assert ((once > 0) > (exact > 0)).nnz == 0, "only nodes that walks reach"


def test_some_starts_stand_for_all() -> None:
    random = np.random.RandomState(0)
    where = torch.from_numpy(random.randint(0, 5, 400))
    edges = torch.stack([torch.arange(400), 400 + where])
    labels = torch.cat([where, torch.full((5,), -1)])
    (found,) = suggest_sorts(edges, torch.zeros(400, dtype=torch.long), labels, ["lives"], samples=50, width=30)
    assert (found.sort.text, found.coverage, found.confidence) == ("lives.^lives", 1.0, 1.0)
    assert found.gain == pytest.approx(1.0)


def test_what_says_the_same_is_said_once() -> None:
    """A relation and its inverse under another name."""
    edges, types = graph(1)
    twice = (
        torch.cat([edges, edges[:, types == 1].flip(0)], 1),
        torch.cat([types, torch.full_like(types[types == 1], 3)]),
    )
    found = suggest_sorts(*twice, 0, 4, length=1, least=0.0)
    assert len({str(one.sort).replace("^3", "1").replace("3", "^1") for one in found}) == len(found)


def test_beginnings_beyond_the_beam_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    edges, types = graph(2)
    every = suggest_sorts(edges, types, 0, RELATIONS, 3, least=0.0)
    monkeypatch.setattr(suggest, "BEAM", 2)
    monkeypatch.setattr(suggest, "POOL", 3)
    some = suggest_sorts(edges, types, 0, RELATIONS, 3, least=0.0)
    assert 0 < sum(one.gain for one in some) <= sum(one.gain for one in every) + 1e-9


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"target": "plaid"}, "target: expected labels, or a relation with facts, got 'plaid'; did you mean 'played'"),
        ({"target": "never"}, "got 'never', which has no facts in edge_type; leave them in: no walk uses those of the"),
        ({"target": "^never"}, "got '^never', which has no facts in edge_type"),
        ({"target": 2}, "got 2, which has no facts in edge_type"),
        ({"target": 2, "relations": None}, "got 2, which has no facts in edge_type"),
        ({"target": 7}, "got 7; take the id of a relation that has edges"),
        ({"target": torch.full((6,), -1)}, "expected facts of two nodes or more, got those of 0"),
        ({"target": torch.tensor([0, -1, -1, -1, -1, -1])}, "got those of 1"),
        ({"target": torch.tensor([0, 1])}, "expected labels of 6 nodes or more, got (2,)"),
        ({"target": torch.rand(6)}, "expected integers as labels"),
        ({"target": torch.full((6, 2), 0.5)}, "expected zeros and ones"),
        ({"target": torch.tensor([0, 0, -1, -1, -1, -1]), "length": 1}, "got no sort with walks; "),
        ({"length": 0}, "length: expected an integer from 1 on"),
        ({"length": 1, "symmetric": True}, "length: expected at least 2 where symmetric=True"),
        ({"support": 2.0}, "support: expected a number from 0 to below 1"),
        ({"symmetric": 1}, "symmetric: "),
        (
            {"edge_index": torch.empty(2, 0).long(), "edge_type": torch.empty(0).long()},
            "a graph with edges, and their relations, got none",
        ),
        ({"edge_type": torch.zeros(2).long()}, "edge_type: expected one type per edge, shape (4,), got (2,)"),
        (
            {"edge_index": torch.zeros(3, 4).long()},
            "edge_index: expected shape (2, E), sources above targets, got (3, 4)",
        ),
        ({"edge_index": torch.zeros(2, 2, 2).long(), "edge_type": torch.zeros(2, 2).long()}, "expected shape (2, E)"),
        ({"relations": ["played"]}, "edge_type: expected types from 0 to 0, got 0 to 1"),
        ({"edge_type": torch.tensor([0, 0, -1, 1])}, "edge_type: expected types from 0 to 2, got -1 to 1"),
        ({"edge_index": torch.tensor([[0, 1, 2, -3], [4, 4, 5, 5]])}, "edge_index: expected source indices from 0 on"),
        ({"edge_index": None}, "edge_type: expected one type per edge, shape (0,), got (4,)"),
        ({"edge_type": None}, "edge_index, edge_type: expected a graph with edges, and their relations"),
        ({"edge_type": [0, 0, 1, 1]}, "edge_type: expected a tensor, got list"),
        ({"edge_index": torch.rand(2, 4)}, "edge_index: expected dtype torch.int64 or torch.int32, got torch.float32"),
        ({"edge_type": torch.zeros(4, dtype=torch.uint8)}, "edge_type: expected dtype torch.int64 or torch.int32, got"),
        ({"target": True}, "target: expected labels, or a relation with facts, got True"),
    ],
)
def test_mistakes(change: dict[str, Any], words: str) -> None:
    given = {
        "edge_index": torch.tensor([[0, 1, 2, 3], [4, 4, 5, 5]]),
        "edge_type": torch.tensor([0, 0, 1, 1]),
        "target": "played",
        "relations": ["played", "in", "never"],
    }
    with pytest.raises(ValueError, match=re.escape(words)):
        suggest_sorts(**given | change)


def test_integers_of_other_kinds() -> None:
    """In 32 bits, of numpy, and far apart."""
    edges, types = graph(0)
    found = suggest_sorts(edges, types, 1, RELATIONS)
    assert suggest_sorts(edges.int(), types.int(), np.int64(1), RELATIONS) == found
    labels = torch.arange(NODES) % 3
    assert suggest_sorts(edges, types, 10**12 * labels) == suggest_sorts(edges, types, labels)


def test_walks_that_predict_nothing() -> None:
    """The only step leads to somebody with another label; so do two, where there is a second relation."""
    edges, labels = torch.tensor([[0, 1, 2], [1, 0, 0]]), torch.tensor([0, 1, 1])
    message = r"got 1 sort with walks of up to 1 step that predict no .*, or let sorts use more relations$"
    with pytest.raises(ValueError, match=message):
        suggest_sorts(edges, torch.zeros(3, dtype=torch.long), labels, length=1, support=0.9)
    twice, types = edges.repeat(1, 2), torch.tensor([0, 0, 0, 1, 1, 1])
    with pytest.raises(ValueError, match=r"got 2 sorts with walks of up to 1 step that predict no more than a"):
        suggest_sorts(twice, types, labels, length=1, support=0.9)


@pytest.mark.parametrize("count", range(2, 21))
def test_what_a_constant_explains_is_not_explained_again(count: int) -> None:
    """All are the same thing, and one knows another: what is left to explain is zero, or of rounding."""
    people = torch.arange(count)
    known = torch.tensor([[0], [1]])
    edges = torch.cat([torch.stack([people, torch.full_like(people, count)]), known], 1)
    with pytest.raises(ValueError, match="predict no more than a constant would"):
        suggest_sorts(edges, torch.tensor([0] * count + [1]), "is", ["is", "knows"])


def test_up_to_three_examples_are_shown() -> None:
    """Of five people, each of whom is what somebody is whom they know."""
    people = torch.arange(5)
    edges = torch.cat([torch.stack([people, 5 + people]), torch.stack([people, (people + 1) % 5])], 1)
    edges = torch.cat([edges, torch.stack([people, 5 + (people + 1) % 5])], 1)
    found = suggest_sorts(edges, torch.arange(3).repeat_interleave(5), "seems", ["is", "knows", "seems"])
    assert [len(one.examples) for one in found] == [3]


def test_names_with_odd_characters_come_back() -> None:
    for name in ("a\x7fb", 'q"uote', "sla\\sh", "line\u2028", "tab\t"):
        sort = {"name": "one", "sort": name, "gain": 0.5, "coverage": 0.5, "confidence": 0.5, "examples": []}
        text = text_of_suggested({"target": "told", "sorts": [sort]})
        assert tomllib.loads(text)["sorts"]["one"] == name


def test_suggestions_are_no_sorts() -> None:
    edges, types = graph(0)
    found = suggest_sorts(edges, types, 1, RELATIONS)
    with pytest.raises(ValueError, match=r"as item 1; a sort is no step: pass \[one\.sort for one in found\]$"):
        bases.Walks(found, RELATIONS)


def test_the_basis_takes_them() -> None:
    edges, types = graph(0)
    found = suggest_sorts(edges, types, 1, RELATIONS)
    basis = bases.Walks([one.sort for one in found], RELATIONS, norm="row")
    assert basis.bind(edges, edge_type=types, size=NODES).to_coo().shape == (len(found), NODES, NODES)


def films(folder: Path) -> Path:
    """The films, without sorts."""
    shutil.copy(FILMS / "triples.tsv", folder)
    text = (FILMS / "walks.toml").read_text("utf-8")
    (folder / "walks.toml").write_text(text[: text.index("[sorts]")], "utf-8")
    return folder / "walks.toml"


def test_the_file_takes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = films(tmp_path)
    assert main(["walks", str(file), "--suggest", "genre"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[2].startswith('suggested_1 = "partOf.^partOf.genre" # gain ')
    with file.open("a", encoding="utf-8") as whole:
        whole.write(text)
    knowledge = load_walks(file)
    assert knowledge.basis.names[:2] == ("suggested_1", "suggested_2")
    assert main(["walks", str(file), "--sort", "suggested_1"]) == 0
    assert main(["walks", str(file), "--suggest", "genre", "--json"]) == 0
    proposal = json.loads(capsys.readouterr().out.partition("{")[2].join(["{", ""]))
    assert [one["sort"] for one in proposal["sorts"]] == [str(sort) for sort in knowledge.basis.sorts]
    facts = {tuple(line.split("\t")) for line in (tmp_path / "triples.tsv").read_text("utf-8").splitlines()}
    for work, franchise, other, genre in proposal["sorts"][0]["examples"]:
        assert {(work, "part of", franchise), (other, "part of", franchise), (other, "genre", genre)} <= facts


def test_sorts_have_up_to_three_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for length in ([], ["--length", "3"], ["--length", "4"]):
        assert main(["walks", str(films(tmp_path)), "--suggest", "genre", *length]) == 0
        found["".join(length)] = capsys.readouterr().out
    assert found[""] == found["--length3"]
    assert found["--length3"] != found["--length4"]


def test_labels_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, labels = films(tmp_path), tmp_path / "labels.tsv"
    facts = [line.split("\t") for line in (tmp_path / "triples.tsv").read_text("utf-8").splitlines()]
    labels.write_text("".join(f"{h}\t{t}\n" for h, r, t in facts if r == "genre"), "utf-8")
    asked = ["walks", str(file), "--suggest", str(labels), "--without", "genre", "--symmetric", "--length", "4"]
    assert main([*asked, "--json"]) == 0
    proposal = json.loads(capsys.readouterr().out)
    assert proposal["sorts"][0]["sort"] == "partOf.^partOf"
    assert not any("genre" in one["sort"] for one in proposal["sorts"])
    assert main([*asked, "--most", "1"]) == 0
    assert capsys.readouterr().out.count("suggested_") == 1


@pytest.mark.parametrize(
    ("labels", "arguments", "words"),
    [
        ("", [], "expected labels of entities, got an empty file"),
        ("Alien\n", [], "line 1: expected 2 fields"),
        ("Alein\tHorror\n", [], "line 1: entity: expected the name of an entity, got 'Alein'; did you mean 'Alien'"),
        ("Alien\tHorror\n", [], "expected facts of two nodes or more"),
        ("Alien\tHorror\n", ["--without", "gnre"], "did you mean 'genre'"),
        ("Alien\tHorror\n", ["--from", "Alien"], "--suggest: expected no --sort, --from or --to beside it"),
    ],
)
def test_mistakes_of_the_command(
    labels: str, arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "labels.tsv").write_text(labels, "utf-8")
    assert main(["walks", str(films(tmp_path)), "--suggest", str(tmp_path / "labels.tsv"), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_where_labels_are_sought(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not beside the configuration, but from the current folder."""
    file, here = films(tmp_path), tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (tmp_path / "genres.tsv").write_text("Alien\tHorror\n", "utf-8")
    for given in ("genres.tsv", "../genre"):
        assert main(["walks", str(file), "--suggest", given]) == 2
        error = capsys.readouterr().err
        assert f"got '{given}'; there is no file {here / given}, sought from the current folder, " in error
        assert "and no such relation: did you mean 'genre'" in error
    assert main(["walks", str(file), "--suggest", "gener"]) == 2
    assert capsys.readouterr().err.endswith("got 'gener'; did you mean 'genre'?\n"), "no path"
    assert main(["walks", str(file), "--suggest", "../genres.tsv"]) == 2
    assert "expected facts of two nodes or more" in capsys.readouterr().err, "read"


def test_without_belongs_to_suggest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["walks", str(FILMS / "walks.toml"), "--without", "genre"]) == 2
    assert "--without: expected --suggest beside it" in capsys.readouterr().err
