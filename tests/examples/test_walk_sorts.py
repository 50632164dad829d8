"""The example of walk sorts: its tasks, what its models may see, what they compute, and its command line."""

import math
import os
from itertools import product
from pathlib import Path
from statistics import mean, stdev

import pytest
import scipy.sparse
import torch
import torch_geometric.datasets
from torch import nn
from torch_geometric.data import HeteroData

from examples.knowledge import FILES, load
from examples.walk_sorts import (
    MODELS,
    STEPS,
    Case,
    Ridge,
    Shared,
    WalkModel,
    choose,
    compare,
    fit,
    learn,
    main,
    results,
    solve,
    suggested,
    together,
    walks_and_neighbours,
)
from pyg_basisconv import load_walks

DATA = Path(os.environ.get("BASISCONV_DATA", "datasets"))
GENRE, NETFLIX = "/film/film/genre", "/media_common/netflix_genre/titles"


@pytest.fixture(scope="module")
def films():
    return load("films", Path("nowhere"))


@pytest.fixture
def offline(monkeypatch):
    def refuse(self) -> None:
        raise OSError("no route to host")

    for name in ("FB15k_237", "DBLP"):
        monkeypatch.setattr(getattr(torch_geometric.datasets, name), "download", refuse)


def made_up(root: Path, sort: str = "played.^played") -> Path:
    """A graph in the three files of FB15k-237, of 30 films in two genres with an actor for each, and its sorts."""
    facts = []
    for i in range(30):
        facts += [(f"/m/f{29 - i:02}", GENRE, f"/m/g{i % 2}"), (f"/m/f{29 - i:02}", "played", f"/m/a{i % 2}")]
    facts += [("/m/g0", NETFLIX, "/m/f00"), ("/m/a0", "knows", "/m/a1")]
    raw = root / "FB15k-237" / "raw"
    raw.mkdir(parents=True)
    for file, part in zip(FILES["FB15k-237"], (facts[:40], facts[40:50], facts[50:]), strict=True):
        (raw / file).write_text("".join("\t".join(fact) + "\n" for fact in part))
    config = root / "walks.toml"
    names = ", ".join(f'"FB15k-237/raw/{file}"' for file in FILES["FB15k-237"])
    config.write_text(f'[graph]\ntriples = [{names}]\n[sorts]\nactors = "{sort}"\n[walks]\nnorm = "sym"\n')
    return config


def test_fb15k_237_is_read_as_pyg_numbers_it_and_without_what_tells_the_genres(tmp_path):
    task = load("FB15k-237", tmp_path, made_up(tmp_path))
    k = task.knowledge
    assert [k.identifiers[i] for i in task.items] == [f"/m/f{i:02}" for i in range(30)]
    assert task.classes == ["/m/g0", "/m/g1"]
    assert torch.equal(task.y.argmax(1), (torch.arange(30) + 1) % 2)
    assert {k.relations.names[i] for i in k.edge_type.unique()} == {"played", "knows"}
    assert k.edge_index.shape[1] == 31
    assert sorted(p.name for p in (tmp_path / "FB15k-237").iterdir()) == ["raw"]  # left as it was


@pytest.mark.parametrize("sort", [f"<{GENRE}>.^<{GENRE}>", f"played.^played|^<{NETFLIX}>.<{NETFLIX}>"])
def test_no_sort_may_ask_for_the_genres(sort, tmp_path, capsys):
    config = made_up(tmp_path, sort)
    with pytest.raises(SystemExit):
        main(["--dataset", "FB15k-237", "--root", str(tmp_path), "--config", str(config)])
    assert "tells the classes" in capsys.readouterr().err


def test_a_configuration_of_other_triples_is_refused(tmp_path):
    config = made_up(tmp_path)
    config.write_text(config.read_text().replace(', "FB15k-237/raw/test.txt"', ""))
    with pytest.raises(ValueError, match="not that of FB15k_237"):
        load("FB15k-237", tmp_path, config)


def test_the_split(films):
    parts = films.split(3)
    assert [len(part) for part in parts] == [19, 7, 7]
    assert torch.equal(torch.cat(parts).sort()[0], torch.arange(33))
    assert not torch.equal(parts[0], films.split(4)[0])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sweep(2)
def test_what_the_test_items_are_is_not_seen(name, films):
    """Nor by way of the choice: the labels of the test change, and no score does."""
    found = []
    for turned in (False, True):
        task = films._replace(y=films.y.clone())
        case = Case(task, 1, Shared(task))
        if turned:
            task.y[case.test] = 1 - task.y[case.test]
        found.append(MODELS[name](case))
    assert found[0].shape == films.y.shape
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sweep(2)
def test_what_the_validation_items_are_is_learnt_for_the_test_items_alone(name, films, monkeypatch):
    """Where there is nothing to choose."""
    monkeypatch.setattr("examples.walk_sorts.STRENGTHS", (3.0,))
    monkeypatch.setattr("examples.walk_sorts.EPOCHS", 1)
    monkeypatch.setattr("examples.walk_sorts.LOOK", STEPS)
    found = []
    for turned in (False, True):
        task = films._replace(y=films.y.clone())
        case = Case(task, 1, Shared(task))
        if turned:
            task.y[case.validation] = 1 - task.y[case.validation]
        found.append(MODELS[name](case))
    torch.testing.assert_close(found[0][case.validation], found[1][case.validation], rtol=0, atol=0)
    assert (found[0][case.test] - found[1][case.test]).abs().max() > 1e-4


def test_the_best_fit_on_the_validation_items_is_fitted_again_for_the_test(films):
    case, asked = Case(films, 0, Shared(films)), []

    def right(known):
        asked.append(known.tolist())
        return films.y + len(known)

    scores = case.chosen([lambda known: 1 - films.y, right, lambda known: 1 - films.y])
    both = [*case.train.tolist(), *case.validation.tolist()]
    assert asked == [case.train.tolist(), both]
    torch.testing.assert_close(scores[case.validation], films.y[case.validation] + len(case.train))
    torch.testing.assert_close(scores[case.test], films.y[case.test] + len(both))


def test_what_the_validation_items_are_only_chooses_the_step(films):
    shared = Shared(films)
    case = Case(films, 0, shared)
    steps = [c for (c, _), _ in learn(shared.walks[:, case.train][:, :, case.train], films.y[case.train])]
    for turned in (False, True):
        task = films._replace(y=films.y.clone())
        if turned:
            task.y[case.validation] = 1 - task.y[case.validation]
        c, _ = choose(Case(task, 0, shared), shared.walks)
        assert any(torch.equal(c, step) for step in steps)


def test_the_model_reads_known_items_alone(films):
    case = Case(films, 0, Shared(films))
    x = fit(case, choose(case, case.shared.walks), case.train).x
    outside = torch.ones(len(x), dtype=torch.bool)
    outside[films.items[case.train]] = False
    assert x[outside].count_nonzero() == 0


def test_errors_of_leaving_out_are_what_leaving_out_gives():
    torch.manual_seed(0)
    A, rest = torch.rand(3, 12, 12, dtype=torch.float64), torch.randn(12, 2, dtype=torch.float64)
    weights = Ridge(torch.tensor([0.2, 0.7, 0.1], dtype=torch.float64), torch.tensor(3.0, dtype=torch.float64))
    _, errors = solve(A, weights, rest)
    total = torch.tensordot(weights.c, A, 1)
    for i in range(12):
        others = torch.arange(12) != i
        system = total[others][:, others].t() + 3 * torch.eye(11, dtype=torch.float64)
        prediction = total[others, i] @ torch.linalg.solve(system, rest[others])
        torch.testing.assert_close(errors[i], rest[i] - prediction)


def test_the_weights_of_sorts_are_learnt():
    """A sort that leads to items of the same class counts for more than one that leads anywhere."""
    torch.manual_seed(0)
    y = nn.functional.one_hot(torch.arange(40) % 2).float()
    noise = (torch.rand(40, 40) < 0.2).float()
    *_, (weights, _) = learn(torch.stack([y @ y.t() / 20, noise @ noise.t() / 8]), y)
    assert STEPS >= 10
    assert weights.c[0] > 5 * weights.c[1]


def test_the_model_is_the_formula(films):
    case = Case(films, 0, Shared(films))
    weights = choose(case, case.shared.walks)
    known = torch.cat([case.train, case.validation])
    model = fit(case, weights, known)
    assert isinstance(model, WalkModel)
    b, x = model.conv.bias, model.x[films.items]
    torch.testing.assert_close(b, films.y[known].mean(0))
    torch.testing.assert_close(model.conv.theta.mix[0], weights.c)
    told = torch.einsum("k,kmn,mc->nc", weights.c, case.shared.walks, x)
    torch.testing.assert_close(model(), b + told)
    torch.testing.assert_close((told + weights.ridge * x)[known], films.y[known] - b, rtol=1e-4, atol=1e-4)


def test_neighbours_that_few_items_have_make_items_alike(films):
    shared = Shared(films)
    x, n = shared.neighbours.toarray().tolist(), len(films.items)
    worth = [math.log(n / sum(column)) for column in zip(*x, strict=True)]
    dot = [[sum(w for w, p, q in zip(worth, a, b, strict=True) if p and q) for b in x] for a in x]
    expected = [[dot[i][j] / math.sqrt(dot[i][i] * dot[j][j]) for j in range(n)] for i in range(n)]
    torch.testing.assert_close(shared.likeness, torch.tensor(expected))


def test_likeness_of_neighbours_is_one_more_matrix(films):
    """With the walks between items gone, only that is left to tell the classes."""
    shared = Shared(films)
    shared.walks = torch.zeros(1, len(films.items), len(films.items))
    case = Case(films, 0, shared)
    A, known = shared.likeness, films.y[case.train]
    steps = learn(A[case.train][:, case.train][None], known)
    expected = [known.mean(0) + weights.c * A[:, case.train] @ x for weights, x in steps]
    best = max(expected, key=case.validate)
    scores = walks_and_neighbours(case)
    assert case.validate(scores) == pytest.approx(case.validate(best), abs=1e-3)


def test_features_of_the_baselines(films):
    shared = Shared(films)
    case = Case(films, 0, shared)
    k = films.knowledge
    neighbours = shared.neighbours
    assert scipy.sparse.issparse(neighbours)
    assert neighbours.max() == 1
    assert (neighbours > 0).sum(0).min() >= 2
    place = [k.entities[i] for i in films.items].index("Star Trek")
    inside = (k.edge_index == films.items[place]).any(0)
    assert neighbours[place].sum() <= int(inside.sum())
    known = torch.from_numpy(shared.known_by_walks(case.train).toarray()).view(33, k.basis.K, -1)
    A = shared.walks.double()
    for n in range(0, 33, 5):
        seen = [int(m) for m in case.train if m != n]
        for i in range(k.basis.K):
            weights = A[i, seen, n]
            expected = weights @ films.y[seen].double() / weights.sum().clamp(min=1e-12)
            torch.testing.assert_close(known[n, i], expected, rtol=1e-5, atol=1e-6)


def authors() -> HeteroData:
    """A small world with the node and edge types of DBLP; papers of field f are at conference f."""
    torch.manual_seed(0)
    data, field, number = HeteroData(), torch.arange(40) % 4, torch.arange(120)
    data["author"].x, data["author"].y = torch.rand(40, 3), field
    data["paper"].x, data["term"].x = torch.rand(120, 3), torch.rand(10, 3)
    data["conference"].num_nodes = 4
    pairs = {
        ("author", "paper"): torch.stack([torch.cat([number, number + 4]) % 40, number.repeat(2)]),
        ("paper", "term"): torch.stack([number, torch.randint(10, (120,))]),
        ("paper", "conference"): torch.stack([number, number % 4]),
    }
    for (source, target), edges in pairs.items():
        data[source, "to", target].edge_index = edges
        data[target, "to", source].edge_index = edges.flip(0)
    return data


def test_what_two_models_share_is_fitted_once(films, monkeypatch):
    fitted = []
    monkeypatch.setattr("examples.walk_sorts.fit", lambda *given: fitted.append(given) or fit(*given))
    compare(films, MODELS, 1, 1.0)
    assert len(fitted) == 4  # on written sorts and on suggested ones, for the validation items and for the test


@pytest.mark.slow
def test_what_models_say_together(films):
    """Each counts as much on either part, whatever its scale, and what it says of training items does not matter."""
    case, random = Case(films, 0, Shared(films)), torch.Generator().manual_seed(0)
    one, two = (torch.randn(films.y.shape, generator=random) for _ in range(2))
    far = two.index_fill(0, case.train, 1e3)
    for scale, second in ((1, two), (100, two), (1, far)):
        found = together(lambda case, scale=scale: 5 + scale * one, lambda case, second=second: second)(case)
        for part, c in product((case.validation.tolist(), case.test.tolist()), range(films.y.shape[1])):
            columns = [[float(x[i, c]) for i in part] for x in (one, two)]
            means, sizes = [mean(column) for column in columns], [stdev(column) for column in columns]
            expected = [sum((columns[j][i] - means[j]) / sizes[j] for j in range(2)) for i in range(len(part))]
            assert found[part, c].tolist() == pytest.approx(expected, abs=1e-4)


def test_a_model_on_suggested_sorts_sees_no_written_ones(films, monkeypatch):
    seen = []
    case = Case(films, 0, Shared(films))
    suggested(lambda case: seen.append(case.task.knowledge.basis) or case.task.y)(case)
    (basis,) = seen
    assert basis.norm == "sym"
    assert all(len(sequence) in (2, 4) for sort in basis.sorts for sequence in sort.sequences)
    monkeypatch.setattr("examples.walk_sorts.suggest_sorts", lambda *args, **settings: [])
    scores = suggested(lambda case: 1 / 0)(Case(films, 0, Shared(films)))
    torch.testing.assert_close(scores, MODELS["class frequencies"](case))


def test_dblp(tmp_path, monkeypatch):
    raw = tmp_path / "DBLP" / "raw"
    raw.mkdir(parents=True)
    for file in FILES["DBLP"]:
        (raw / file).touch()
    data = authors()

    class DBLP:
        def __init__(self, root, transform=None, pre_transform=None, force_reload=False):
            assert Path(root, "raw", "labels.npy").exists()

        def __getitem__(self, i):
            return data

    monkeypatch.setattr(torch_geometric.datasets, "DBLP", DBLP)
    task = load("DBLP", tmp_path)
    assert torch.equal(task.items, torch.arange(40))
    assert torch.equal(task.y.argmax(1), data["author"].y)
    assert task.knowledge.basis.names == ("papers", "conferences", "terms")
    conferences = Shared(task).walks[1]
    same = data["author"].y[:, None] == data["author"].y
    torch.testing.assert_close(conferences, same.float() / 10)  # as many walks to each of the ten of the field
    found = compare(task, MODELS, 2, 1.0)
    assert min(run.test for run in found["BasisConv, bases.Walks"]) > 0.99


@pytest.mark.parametrize("name", FILES)
@pytest.mark.sweep(1)
def test_without_data_and_network_one_line_says_where_they_are(name, tmp_path, capsys, offline):
    with pytest.raises(SystemExit) as error:
        main(["--dataset", name, "--root", str(tmp_path), "--seeds", "1"])
    assert error.value.code == 2
    shown = capsys.readouterr().err
    assert f"{name} lacks" in shown
    assert "no route to host" in shown
    assert "put them there, from https://" in shown
    assert not list(tmp_path.iterdir())


def test_the_films_need_neither(capsys, offline):
    main(["--seeds", "1"])
    shown = capsys.readouterr().out
    assert "films: 192 nodes" in shown
    assert all(title in shown for title in MODELS)


def test_models_that_are_left_out(capsys):
    main(["--seeds", "1", "--without", *MODELS.keys() - {"class frequencies"}])
    shown = capsys.readouterr().out
    assert [title for title in MODELS if title in shown] == ["class frequencies"]


def test_a_download_is_kept(tmp_path, monkeypatch):
    config = made_up(tmp_path / "there")

    def download(self) -> None:
        for file in FILES["FB15k-237"]:
            Path(self.raw_dir, file).write_bytes((tmp_path / "there" / "FB15k-237" / "raw" / file).read_bytes())

    monkeypatch.setattr(torch_geometric.datasets.FB15k_237, "download", download)
    assert len(load("FB15k-237", tmp_path, config).items) == 30
    assert sorted(p.name for p in (tmp_path / "FB15k-237" / "raw").iterdir()) == sorted(FILES["FB15k-237"])


@pytest.mark.slow
def test_walks_tell_more_of_the_films_than_frequencies(films):
    runs = compare(films, MODELS, 3, 1.0)
    test = {name: mean(run.test for run in found) for name, found in runs.items()}
    assert test["BasisConv, bases.Walks"] > test["class frequencies"] + 0.2
    assert results(runs).row_count == len(MODELS)


def test_the_clock_leaves_out_seeds_but_the_first(films):
    assert {len(found) for found in compare(films, MODELS, 3, 0.0).values()} == {1}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--seeds 0", "at least 1"),
        ("--minutes -1", "at least 0"),
        ("--dataset flims", "invalid choice"),
        ("--device abacus", "--device abacus"),
        ("--without R-CNN", "invalid choice"),
        ("--dataset films --config nowhere.toml", "nowhere.toml"),
    ],
)
def test_what_is_wrong_is_said(arguments, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.skipif(not (DATA / "FB15k-237" / "raw").is_dir(), reason="BASISCONV_DATA holds no FB15k-237")
def test_fb15k_237():
    task = load("FB15k-237", DATA)
    assert task.y.shape == (1885, 20)
    assert task.y[:, 0].sum() == 1097  # dramas
    assert len(task.knowledge.relations.names) == 237
    case = Case(task, 0, Shared(task))
    scores = MODELS["BasisConv, bases.Walks"](case)
    assert case.precision(scores, case.test) > 0.49


def test_the_configurations_are_there_for_the_command_line():
    assert load_walks(Path(__file__).parents[2] / "datasets" / "films.toml").basis.K == 8
