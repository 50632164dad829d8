"""The examples: where their data comes from, what their models compute, and their command lines."""

import json
import math
import os
import pickle
import re
import shutil
import threading
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.datasets import Planetoid
from torch_geometric.nn import GATConv, SSGConv

import examples.data
from examples import shift_heads
from examples.data import digits, load, planetoid
from examples.models import MODELS, drop_nodes, models
from examples.node_classification import (
    OURS,
    PYG,
    SIDES,
    Run,
    compare,
    difference,
    features,
    main,
    objective,
    random_split,
    search,
    train,
)

DATA = Path(os.environ.get("BASISCONV_DATA", "datasets"))
NODES, TEST = 640, 40  # of the made-up network: 60 nodes to train, 500 to validate, the last 40 to test


def write_made_up(folder: Path, name: str) -> None:
    """The eight raw files of a citation network, all made up: features, labels, and three rings of edges."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.RandomState(0)
    labels = np.eye(3, dtype=np.int32)[np.arange(NODES) % 3]
    features = scipy.sparse.csr_matrix(labels * 1.0 + 0.5 * draw.rand(NODES, 3), dtype=np.float32)
    known = NODES - TEST
    parts = {
        "x": features[:60],
        "allx": features[:known],
        "tx": features[known:],
        "y": labels[:60],
        "ally": labels[:known],
        "ty": labels[known:],
        "graph": {node: [(node - 3) % NODES, (node + 3) % NODES] for node in range(NODES)},
    }
    for part, content in parts.items():
        (folder / f"ind.{name.lower()}.{part}").write_bytes(pickle.dumps(content))
    (folder / f"ind.{name.lower()}.test.index").write_text("".join(f"{node}\n" for node in range(known, NODES)))


def run(arguments: str, **paths: Path) -> None:
    main([*arguments.split(), *(f"--{name}={path}" for name, path in paths.items())])


def listing(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def read_only(tmp_path):
    """Takes the right to write from a folder, by its mode, which binds no super-user, and gives it back."""
    changed = []

    def lock(folder: Path) -> Path:
        for path in (folder, *folder.rglob("*")):
            changed.append((path, path.stat().st_mode))
            path.chmod(path.stat().st_mode & ~0o222)
        return folder

    yield lock
    for path, mode in changed:
        path.chmod(mode)


@pytest.fixture
def offline(monkeypatch):
    """A network that refuses, as it does where there is none; the test may put another in its place."""

    def refuse(self: Planetoid) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(Planetoid, "download", refuse)


def test_a_read_only_root_is_copied_and_left_as_it_was(tmp_path, read_only, offline):
    root = tmp_path / "root"
    write_made_up(root / "PubMed" / "raw", "PubMed")
    before = listing(root)
    name, network = load("PubMed", read_only(root))
    assert name == "PubMed"
    assert network.num_nodes == NODES
    assert (int(network.train_mask.sum()), int(network.val_mask.sum()), int(network.test_mask.sum())) == (60, 500, TEST)
    torch.testing.assert_close(features(network, MODELS["gcn"], OURS).sum(-1), torch.ones(NODES))
    assert listing(root) == before


@pytest.mark.parametrize("locked", [False, True], ids=["writable", "read-only"])
def test_a_download_is_kept_where_the_root_may_be_written(tmp_path, monkeypatch, read_only, locked):
    source, root = tmp_path / "source", tmp_path / "root"
    write_made_up(source, "Cora")
    root.mkdir()
    if locked:
        read_only(root)

    def download(self: Planetoid) -> None:
        shutil.copytree(source, self.raw_dir, dirs_exist_ok=True)

    monkeypatch.setattr(Planetoid, "download", download)
    assert planetoid("Cora", root).num_nodes == NODES
    assert listing(root) == ({} if locked else {f"Cora/raw/{file}": text for file, text in listing(source).items()})


def test_without_data_and_network_one_line_says_where_they_are(tmp_path, capsys, offline):
    with pytest.raises(SystemExit) as error:
        run("--dataset CiteSeer", root=tmp_path / "none", out=tmp_path / "out")
    assert error.value.code == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "CiteSeer lacks 8 of its 8 files in" in line
    assert "no route to host" in line
    assert "put them there, from https://github.com/kimiyoung/planetoid" in line
    assert not (tmp_path / "none").exists()


def test_a_download_that_hangs_is_given_up_and_leaves_nothing_behind(tmp_path, monkeypatch):
    assert examples.data.PATIENCE <= 10
    monkeypatch.setattr(examples.data, "PATIENCE", 0.1)
    release = threading.Event()

    def half(self: Planetoid) -> None:
        Path(self.raw_dir, "ind.cora.x").write_bytes(b"half of")
        release.wait()
        raise OSError("released")

    monkeypatch.setattr(Planetoid, "download", half)
    try:
        with pytest.raises(ConnectionError, match="nothing came"):
            load("Cora", tmp_path)
    finally:
        release.set()
    assert listing(tmp_path) == {}


def test_broken_files_are_named_and_not_taken_for_missing_ones(tmp_path, capsys, offline):
    raw = tmp_path / "Cora" / "raw"
    write_made_up(raw, "Cora")
    (raw / "ind.cora.graph").write_bytes(b"half of")
    with pytest.raises(SystemExit):
        run("--dataset Cora", root=tmp_path, out=tmp_path / "out")
    assert f"the files in {raw} cannot be read" in capsys.readouterr().err


def test_digits():
    network = digits()
    assert network.x.shape == (1797, 64)
    assert (float(network.x.min()), float(network.x.max())) == (0, 1)
    assert network.is_undirected()
    assert not network.has_self_loops()
    assert int(torch.bincount(network.edge_index[1]).min()) >= 8
    assert torch.bincount(network.y[network.train_mask]).tolist() == [20] * 10
    assert (int(network.val_mask.sum()), int(network.test_mask.sum())) == (500, 1097)
    assert torch.equal(network.train_mask ^ network.val_mask ^ network.test_mask, torch.ones(1797, dtype=torch.bool))
    source, target = network.edge_index
    assert float((network.y[source] == network.y[target]).float().mean()) > 0.9
    assert torch.equal(network.edge_index, digits().edge_index)


def bias(layer: nn.Module) -> nn.Parameter:
    return layer.lin.bias if isinstance(layer, SSGConv) else layer.bias


def in_our_form(layer: nn.Module, of: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, torch.Tensor]:
    """Of the parameters of a layer of PyG's, by the names that they have in ours."""
    if isinstance(layer, GATConv):
        weight = of(layer.lin.weight).unflatten(0, (layer.heads, -1)).transpose(1, 2)
        ends = {"basis.source": of(layer.att_src)[0], "basis.target": of(layer.att_dst)[0]}
        return {"bias": of(layer.bias), "theta.weight": weight, **ends}
    matrices = [of(parameter).t() for parameter in layer.parameters() if parameter.dim() == 2]
    return {"bias": of(bias(layer)), "theta.weight": torch.stack(matrices)}


@pytest.mark.parametrize(("name", "dataset"), [*((name, "Cora") for name in MODELS), ("gat", "PubMed")])
@pytest.mark.sweep(2)
def test_each_model_is_its_peer(name, dataset):
    """With the same parameters, the stack of BasisConv and that of PyG's layers give the same, gradients included."""
    network = digits()
    x = network.x.double()
    model = models(dataset)[name]
    ours, peer = (model.build(64, 10, pyg=pyg).double().eval() for pyg in (False, True))
    # The mechanism's parameters, however deep they lie: basis.mechanism.source is basis.source.
    named = [{re.sub(r"^basis\..*\.", "basis.", k): p for k, p in conv.named_parameters()} for conv in ours.layers]
    for parameters, layer in zip(named, peer.layers, strict=True):
        nn.init.normal_(bias(layer))
        values = in_our_form(layer, lambda parameter: parameter.detach())
        assert parameters.keys() == values.keys()
        for key, value in values.items():
            parameters[key].data.copy_(value)
    y, expected = ours(x, network.edge_index), peer(x, network.edge_index)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(ours(x.to_sparse_csr(), network.edge_index), expected)
    weights = torch.randn_like(y)
    (y * weights).sum().backward()
    (expected * weights).sum().backward()
    for parameters, layer in zip(named, peer.layers, strict=True):
        for key, gradient in in_our_form(layer, lambda parameter: parameter.grad).items():
            torch.testing.assert_close(parameters[key].grad, gradient)


def test_attention_is_dropped_in_the_training_only():
    network = digits()
    net = MODELS["gat"].build(64, 10)
    net.dropout.p = 0.0
    first, second = (net(network.x, network.edge_index) for _ in range(2))
    assert (first - second).abs().max() > 1e-3
    net.eval()
    first, second = (net(network.x, network.edge_index) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("pyg", [False, True], ids=["ours", "PyG's"])
def test_values_are_dropped_but_scores_see_all_of_them(pyg, monkeypatch):
    network = digits()
    net = MODELS["gat"].build(64, 10, pyg=pyg)
    for conv in net.layers:
        x = torch.rand(1797, conv.in_channels)
        whole = conv.eval()(x, network.edge_index)
        # Twice the values (heads, nodes, channels, in some order) in place of some; of the weights, none is dropped.
        with monkeypatch.context() as patch:
            patch.setattr(F, "dropout", lambda t, *_, **__: 2 * t if t.dim() == 3 else t)
            if not pyg:
                conv.basis.dropout = 0.0
            twice = conv.train()(x, network.edge_index)
        torch.testing.assert_close(twice, 2 * whole)


@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_csr], ids=["dense", "csr"])
def test_a_lost_node_has_no_features_and_the_mean_stays(layout):
    torch.manual_seed(0)
    x = torch.rand(2000, 3)
    found = drop_nodes(x.to_sparse_csr() if layout == torch.sparse_csr else x, 0.75)
    assert found.layout == layout
    ratio = found.to_dense() / x
    assert set(ratio.round().unique().tolist()) == {0.0, 4.0}
    assert torch.equal(ratio.round().min(1).values, ratio.round().max(1).values)  # whole rows
    assert abs(float(ratio.mean()) - 1) < 0.15


@pytest.mark.parametrize(("epoch", "share"), [(0, 0), (3, 0.3), (10, 1), (25, 1)])
def test_the_objective_is_its_definition(epoch: int, share: float):
    network, drawn = digits(), []
    model = MODELS["random"]._replace(samples=3, consistency=0.7, temperature=0.4, warmup=10)

    def net(x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        drawn.append(torch.randn(network.num_nodes, 10, dtype=torch.float64))
        return drawn[-1]

    loss = objective(net, network.x, network, model, epoch)
    p = torch.stack(drawn).softmax(-1)
    total = 0.0
    for n in range(network.num_nodes):
        mean = [sum(float(p[s, n, c]) for s in range(3)) / 3 for c in range(10)]
        sharp = [m ** (1 / 0.4) / sum(one ** (1 / 0.4) for one in mean) for m in mean]
        differ = sum(sharp[c] * math.log(sharp[c] / float(p[s, n, c])) for s in range(3) for c in range(10))
        total += share * 0.7 * differ / (3 * network.num_nodes)
        if network.train_mask[n]:
            nodes = int(network.train_mask.sum())
            total -= sum(math.log(float(p[s, n, network.y[n]])) for s in range(3)) / (3 * nodes)
    assert abs(float(loss) - total) < 1e-10
    assert len(drawn) == 3


class Drawn(torch.nn.Module):
    """Predicts at random, whatever it has learnt."""

    def __init__(self, shown: list[torch.Tensor]) -> None:
        super().__init__()
        self.weight, self.shown = torch.nn.Parameter(torch.zeros(())), shown

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        scores = torch.randn(x.shape[0], 10) + self.weight
        if not self.training:
            self.shown.append(scores.detach().softmax(-1))
        return scores


@pytest.mark.parametrize("by_accuracy", [False, True])
def test_when_a_training_ends_and_which_epoch_is_judged(by_accuracy):
    network, shown, lengths = digits(), [], set()
    model = MODELS["gcn"]._replace(epochs=60, patience=6, by_accuracy=by_accuracy)
    for seed in range(10):
        torch.manual_seed(seed)
        shown.clear()
        (*_, run) = train(Drawn(shown), network.x, network, Run("gcn", "ours", seed), model)
        lower = [all(loss < other for other in run.losses[:i]) for i, loss in enumerate(run.losses)]
        higher = [all(a >= other for other in run.accuracies[:i]) for i, a in enumerate(run.accuracies)]
        both = [a and b for a, b in zip(lower, higher, strict=True)]
        either = [a or b for a, b in zip(lower, higher, strict=True)]
        judged = (both if by_accuracy else lower)[::-1].index(True)
        last = (either if by_accuracy else lower)[::-1].index(True)
        assert run.validation == run.accuracies[-1 - judged]
        right = shown[-1 - judged].argmax(1)[network.test_mask] == network.y[network.test_mask]
        assert run.test == float(right.float().mean())
        assert last == model.patience
        lengths.add(len(run.losses))
    assert len(lengths) > 3


def test_a_running_mean_of_predictions_is_judged():
    network, shown = digits(), []
    model = MODELS["gcn"]._replace(averaged=0.75, epochs=4)
    (*_, run) = train(Drawn(shown), network.x, network, Run("gcn", "ours", 0), model)
    mean = shown[0]
    for epoch, p in enumerate(shown):
        mean = 0.75 * mean + 0.25 * p
        right = mean[network.val_mask].argmax(1) == network.y[network.val_mask]
        assert abs(run.accuracies[epoch] - float(right.float().mean())) < 1e-6
        picked = mean[network.val_mask].gather(1, network.y[network.val_mask].unsqueeze(1))
        assert abs(run.losses[epoch] + float(picked.log().mean())) < 1e-5


def test_random_splits_have_a_seed_of_their_own():
    network = digits()
    first, again, other = (random_split(network, seed) for seed in (0, 0, 1))
    for name, size in (("train_mask", 200), ("val_mask", 500), ("test_mask", 1000)):
        assert int(first[name].sum()) == size
        assert torch.equal(first[name], again[name])
        assert not torch.equal(first[name], other[name])
    assert not (
        first.train_mask & first.val_mask | first.val_mask & first.test_mask | first.train_mask & first.test_mask
    ).any()
    assert torch.bincount(network.y[first.train_mask]).tolist() == [20] * 10


def test_pyg_has_sparse_features_where_it_takes_them():
    network = digits()
    network.x = torch.eye(1797)
    layouts = {name: features(network, model, PYG).layout for name, model in MODELS.items()}
    dense = {name for name, layout in layouts.items() if layout == torch.strided}
    assert dense == {"cheb2", "cheb3", "random"}
    for name in MODELS.keys() - dense:
        net = MODELS[name].build(1797, 10, pyg=True)
        assert net(features(network, MODELS[name], PYG), network.edge_index).isfinite().all()


def test_the_search_sees_no_test_node(monkeypatch):
    """It chooses the same settings, whatever the labels of the test set are."""
    clock = iter(range(10**6))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))  # as many trials, on any machine
    found = []
    for spoilt in (False, True):
        network = digits()
        if spoilt:
            network.y[network.test_mask] = 0
        clock = iter(range(10**6))
        found.append(search({"gcn": MODELS["gcn"]._replace(epochs=3)}, network, 1.5))
    assert found[0] == found[1]


def test_the_search_takes_what_validates_best(monkeypatch):
    """Of two settings, the declared one learns nothing."""
    monkeypatch.setattr("examples.node_classification.SPACE", {"lr": (0.02,)})
    clock = iter(range(10**6))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    declared = MODELS["gcn"]._replace(epochs=8, lr=0.0)
    assert search({"gcn": declared}, digits(), 2.0)["gcn"].lr == 0.02
    assert search({"gcn": declared}, digits(), 0.0)["gcn"].lr == 0.0  # there was time for the first alone


def test_differences_are_taken_seed_by_seed():
    runs = [
        Run("gcn", side, seed, test=test)
        for side, tests in ((OURS, (0.5, 0.7)), (PYG, (0.4, 0.4)))
        for seed, test in enumerate(tests)
    ]
    found = difference(runs)
    assert found["mean"] == pytest.approx(20)
    assert found["error"] == pytest.approx(10)
    assert difference([run for run in runs if not run.seed])["error"] is None


def test_the_clock_cuts_the_first_seed_and_leaves_out_the_others():
    options = SimpleNamespace(alone=False, seeds=3, minutes=0.0, split="public")
    runs = compare({name: MODELS[name] for name in ("gcn", "multi")}, digits(), options)
    assert [(run.model, run.side, run.seed, len(run.losses), run.cut) for run in runs] == [
        (name, side, 0, 1, True) for name in ("gcn", "multi") for side in SIDES
    ]


def test_both_sides_have_the_same_seeds():
    options = SimpleNamespace(alone=False, seeds=2, minutes=10.0, split="random")
    runs = compare({"gcn": MODELS["gcn"]._replace(epochs=2)}, digits(), options)
    assert [(run.side, run.seed) for run in runs] == [(side, seed) for seed in range(2) for side in SIDES]


def test_training_stops_when_the_validation_loss_falls_no_more():
    network = digits()
    network.x = torch.zeros_like(network.x)  # nothing to learn from
    network.y[network.val_mask] = 0
    network.y[network.train_mask] = 1
    torch.manual_seed(0)
    run = Run("gcn", OURS, 0)
    model = MODELS["gcn"]._replace(epochs=50, patience=3)
    epochs = list(train(model.build(64, 10), network.x, network, run, model))
    assert len(epochs) == len(run.losses) == len(run.seconds) == 4
    assert not run.cut
    assert run.losses[0] == min(run.losses)
    assert run.validation == run.accuracies[0]


@pytest.mark.slow
def test_the_command_line_trains_and_reports(tmp_path, capsys):
    run("--dataset digits --models gcn multi random gat --seeds 1 --epochs 20 --hidden 32 --search 0", out=tmp_path)
    shown = capsys.readouterr().out
    assert "GCN" in shown
    assert "multi-basis" in shown
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")
    report = json.loads((tmp_path / "digits.json").read_text())
    assert report["settings"]["hidden"] == 32
    assert report["models"]["gcn"]["hidden"] == 32
    for name in ("gcn", "multi", "random", "gat"):
        assert report["summary"][name]["difference"]["error"] is None
        for side in (OURS, PYG):
            found = report["summary"][name][side]
            assert found["seeds"] == 1
            assert found["deviation"] is None
            assert found["seconds"] > 0
            assert found["test"] > 40
    assert [len(run["losses"]) for run in report["runs"]] == [20] * 8


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--seeds 0", "at least 1"),
        ("--minutes -1", "at least 0"),
        ("--models gut", "invalid choice"),
        ("--dataset digits --models gat --hidden 30", "--hidden 30"),
        ("--dataset digits --split random --search 1", "take --split public"),
        ("--device abacus", "--device abacus"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_trained(arguments, said, capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        run(arguments, root=tmp_path, out=tmp_path / "out")
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [("--task last", "invalid choice"), ("--steps 0", "at least 1"), ("--kinds vans", "invalid choice")],
)
def test_what_is_wrong_with_shift_heads_is_said(arguments, said, capsys):
    with pytest.raises(SystemExit):
        shift_heads.main(arguments.split())
    assert said in capsys.readouterr().err


@pytest.mark.skipif(not (DATA / "Cora" / "raw").is_dir(), reason="BASISCONV_DATA holds no Cora")
def test_cora(tmp_path):
    run("--dataset Cora --models gcn --seeds 1 --epochs 40", root=DATA, out=tmp_path)
    found = json.loads((tmp_path / "cora.json").read_text())["summary"]["gcn"]
    assert min(found[side]["test"] for side in SIDES) > 70


@pytest.mark.skipif(not (DATA / "PubMed" / "raw").is_dir(), reason="BASISCONV_DATA holds no PubMed")
def test_pubmed_with_made_up_features(tmp_path, offline):
    """The real graph and labels; the features of the training nodes are made up where their file is missing."""
    raw = tmp_path / "PubMed" / "raw"
    raw.mkdir(parents=True)
    for file in (DATA / "PubMed" / "raw").iterdir():
        shutil.copyfile(file, raw / file.name)
    if not (raw / "ind.pubmed.allx").exists():
        made_up = scipy.sparse.random(18717, 500, 0.1, "csr", np.float32, random_state=0)
        (raw / "ind.pubmed.allx").write_bytes(pickle.dumps(made_up))
    run("--dataset PubMed --models multi gat --seeds 1 --epochs 2", root=tmp_path, out=tmp_path / "out")
    report = json.loads((tmp_path / "out" / "pubmed.json").read_text())
    assert report["dataset"] == "PubMed"
    assert [len(run["losses"]) for run in report["runs"]] == [2] * 4


def test_two_shift_heads_cost_as_much_as_one_content_head():
    counts = {
        (task, kind): sum(parameter.numel() for parameter in shift_heads.Reader(found, task, 50).parameters())
        for task in ("next", "masked")
        for kind, found in shift_heads.KINDS.items()
        if found.reach == 0
    }
    assert len(set(counts.values())) == 1


@pytest.mark.parametrize("kind", shift_heads.KINDS)
def test_the_next_character_is_not_seen_and_those_before_are(kind):
    net = shift_heads.Reader(shift_heads.KINDS[kind], "next", 20).eval()
    text = torch.randint(20, (2, 30))
    other = text.clone()
    other[:, 17:] = (text[:, 17:] + 1) % 20
    torch.testing.assert_close(net(other)[:, :17], net(text)[:, :17])
    assert (net(other)[:, 17] - net(text)[:, 17]).abs().max() > 1e-3
    other = text.clone()
    other[:, 15] = (text[:, 15] + 1) % 20
    assert (net(other)[:, 16] - net(text)[:, 16]).abs().max() > 1e-4


@pytest.mark.parametrize("kind", shift_heads.KINDS)
def test_only_content_heads_without_positions_are_blind_to_order(kind):
    net = shift_heads.Reader(shift_heads.KINDS[kind], "masked", 20).double().eval()
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.3)
    text, order = torch.randint(20, (2, 12)), torch.randperm(12)
    same = torch.allclose(net(text[:, order]), net(text)[:, order])
    assert same == (kind == "none")


def test_the_text_is_split_without_a_paragraph_in_two_parts():
    text = shift_heads.text()
    assert text.train.numel() > 8 * sum(block.numel() for block in text.test) > 10_000
    parts = [text.train, torch.cat(text.validation), torch.cat(text.test)]
    assert max(int(part.max()) for part in parts) < text.alphabet
    train, validation, test = (bytes(part.tolist()) for part in parts)
    known = {train[i : i + 100] for i in range(len(train))} | {validation[i : i + 100] for i in range(len(validation))}
    seen = [test[i : i + 100] in known for i in range(len(test) - 100)]
    assert sum(seen) / len(seen) < 0.02


def test_the_same_characters_are_asked_for_in_windows_of_any_length():
    """A model that knows nothing but how often characters are gives the same for all lengths."""

    class Constant(nn.Module):
        def forward(self, text):
            return torch.arange(shift_heads.text().alphabet).div(50).expand(*text.shape, -1)

    found = [shift_heads.measure(Constant(), shift_heads.text().test, "next", n) for n in shift_heads.LENGTHS]
    torch.testing.assert_close(found, [found[0]] * len(found))


@pytest.fixture
def short(monkeypatch):
    """A hundredth of the text."""
    whole = shift_heads.text()
    blocks = [[block[:600] for block in part] for part in (whole.validation, whole.test)]
    text = shift_heads.Text(whole.alphabet, whole.train[:20_000], *blocks)
    monkeypatch.setattr(shift_heads, "text", lambda: text)


@pytest.mark.parametrize("task", ["next", "masked"])
@pytest.mark.slow
def test_shift_heads_trains_and_reports(task, tmp_path, capsys, short):
    arguments = f"--task {task} --kinds sines shifts --quick --steps 12 --workers 1 --out {tmp_path}"
    shift_heads.main(arguments.split())
    shown = capsys.readouterr().out
    assert shift_heads.KINDS["shifts"].title in shown
    assert (tmp_path / f"shift_heads_{task}.png").read_bytes().startswith(b"\x89PNG")
    report = json.loads((tmp_path / f"shift_heads_{task}.json").read_text())
    assert report["settings"]["seeds"] == 1
    for found in report["summary"].values():
        assert 2 < found["test 64"]["mean"] < 5.5
        assert found["test 64"]["deviation"] is None
    assert {run["kind"]: run["steps"][-1] for run in report["runs"]} == {"sines": 12, "shifts": 12}
    assert len({run["parameters"] for run in report["runs"]}) == 1


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.slow
def test_shift_heads_in_processes_gives_what_one_process_gives(tmp_path, monkeypatch, short):
    monkeypatch.setattr(shift_heads, "get_context", lambda _: get_context("fork"))  # in which the text is short, too
    found = []
    for workers in (1, 2):
        out = tmp_path / str(workers)
        shift_heads.main(f"--kinds window --quick --steps 1 --workers {workers} --out {out}".split())
        found.append(json.loads((out / "shift_heads_next.json").read_text())["summary"])
    assert found[0] == found[1]


def test_every_script_is_listed():
    folder = Path(examples.data.__file__).parent
    listed = re.findall(r"^\| \[(\w+)\]\(\1\.py\) \|", (folder / "README.md").read_text("utf-8"), re.MULTILINE)
    scripts = [path for path in folder.glob("*.py") if '__name__ == "__main__"' in path.read_text("utf-8")]
    assert sorted(listed) == sorted(path.stem for path in scripts)
