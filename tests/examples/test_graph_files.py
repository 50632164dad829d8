"""Graphs of a user's own in `examples/node_classification.py`: files, their splits, and what is wrong with them."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from examples.data import SPLIT, load
from examples.models import MODELS, models
from examples.node_classification import OURS, features, main, public_split, random_split
from tests.examples.test_examples import NODES, write_made_up

N, CLASSES = 90, 3


def rings(**more: Any) -> Data:
    """Three classes, on a ring each, with features that tell them apart."""
    y = torch.arange(N) % CLASSES
    nodes = torch.arange(N)
    edges = torch.stack([nodes, (nodes + CLASSES) % N])
    x = torch.nn.functional.one_hot(y) + 0.3 * torch.rand(N, CLASSES, generator=torch.Generator().manual_seed(0))
    return Data(x=x, y=y, edge_index=torch.cat([edges, edges.flip(0)], 1), **more)


def masks(splits: int = 0) -> dict[str, torch.Tensor]:
    """Thirds of the nodes, or several ways to take them."""
    third = torch.stack([(torch.arange(N) // CLASSES + s) % 3 for s in range(max(splits, 1))], 1)
    return {name: (third == i) if splits else (third == i).squeeze(1) for i, name in enumerate(SPLIT)}


def saved(folder: Path, data: Any, name: str = "mine.pt") -> Path:
    torch.save(data, folder / name)
    return folder / name


def test_a_saved_graph_is_read_as_it_was(tmp_path):
    data = rings(**masks())
    name, found = load(str(saved(tmp_path, data)), tmp_path)
    assert name == "mine"
    for key in ("x", "y", "edge_index", *SPLIT):
        assert torch.equal(found[key], data[key]), key


def test_what_the_models_do_not_read_is_left_out(tmp_path):
    """And what they read in another dtype or shape is brought to theirs."""
    data = rings(edge_attr=torch.rand(2 * N, 4), name="ring")
    data.x, data.y, data.edge_index = data.x.double(), data.y.int().unsqueeze(1), data.edge_index.int()
    _, found = load(str(saved(tmp_path, data)), tmp_path)
    assert set(found.keys()) == {"x", "y", "edge_index"}
    assert (found.x.dtype, found.y.dtype, found.edge_index.dtype) == (torch.float32, torch.int64, torch.int64)
    assert torch.equal(found.y, rings().y)


def test_another_network_is_read_from_its_raw_files(tmp_path):
    write_made_up(tmp_path / "Rings" / "raw", "Rings")
    name, found = load("Rings", tmp_path)
    assert (name, found.num_nodes, int(found.val_mask.sum())) == ("Rings", NODES, 500)


def test_of_several_splits_each_seed_has_its_own():
    data = rings(**masks(3))
    for seed in range(5):
        found = public_split(data, seed)
        for name in SPLIT:
            assert torch.equal(found[name], data[name][:, seed % 3])
    data.test_mask = masks()["test_mask"]  # as in data with one test set
    assert torch.equal(public_split(data, 1).test_mask, data.test_mask)


def test_a_random_split_of_a_small_graph_tests_what_is_left():
    data = rings()
    data.y[:9] = -1  # without a label
    found = random_split(data, 4)
    sizes = [int(found[name].sum()) for name in SPLIT]
    assert sizes == [60, 7, 14]  # 20 of each class; of the other 21, a third validates
    assert not any(found[name][:9].any() for name in SPLIT)
    assert int((found.train_mask.int() + found.val_mask + found.test_mask).max()) == 1


@pytest.mark.parametrize("rows", [True, False])
def test_rows_are_divided_by_their_sum_if_the_model_says_so(rows):
    data, model = rings(), MODELS["gcn"]._replace(rows=rows)
    found, given = features(data, model, OURS), data.x / data.x.sum(1, keepdim=True)
    torch.testing.assert_close(found if not rows else found.sum(1), data.x if not rows else torch.ones(N))
    if rows:
        assert found.argmax(1).equal(given.argmax(1))


def test_negative_features_and_pixels_stay_as_they_are():
    data = rings()
    data.x = data.x - 0.5
    assert torch.equal(features(data, MODELS["gcn"], OURS), data.x)
    assert not any(model.rows for model in models("digits").values())


WRONG = {
    "x: none": ({"x": None}, "data.x to be"),
    "x: sparse": ({"x": rings().x.to_sparse()}, "data.x to be"),
    "y: none": ({"y": None}, "data.y to be"),
    "y: floats": ({"y": torch.rand(N)}, "data.y to be"),
    "y: too few": ({"y": torch.ones(N - 1).long()}, "data.y to be"),
    "y: one class": ({"y": torch.zeros(N).long()}, "two classes"),
    "edges: none": ({"edge_index": None}, "data.edge_index to be"),
    "edges: of floats": ({"edge_index": torch.rand(2, 5)}, "data.edge_index to be"),
    "edges: beyond x": ({"edge_index": torch.tensor([[0], [N]])}, f"numbers from 0 to {N - 1}"),
    "mask: numbers": (masks() | {"val_mask": torch.arange(N)}, "data.val_mask to be"),
    "mask: too short": (masks() | {"val_mask": torch.ones(3).bool()}, "data.val_mask to be"),
    "mask: empty": (masks() | {"test_mask": torch.zeros(N).bool()}, "True for some nodes"),
    "mask: no label": (masks() | {"y": rings().y - 1}, "False where y is negative"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_a_graph_is_said(case, tmp_path, capsys):
    changes, said = WRONG[case]
    data = copy.copy(rings())
    for key, value in changes.items():
        data[key] = value
    with pytest.raises(SystemExit) as ended:
        main(["--dataset", str(saved(tmp_path, data)), "--out", str(tmp_path)])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.pt", None, "no such file"),
        ("text.pt", b"a graph", "saved by torch.save(data, path)"),
        ("Corra", None, "expected one of Cora, CiteSeer, PubMed, digits"),
    ],
)
def test_what_is_no_graph_is_refused(name, content, said, tmp_path, capsys):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    path = name if name == "Corra" else str(tmp_path / name)
    with pytest.raises(SystemExit):
        main(["--dataset", path, "--root", str(tmp_path), "--out", str(tmp_path)])
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_file_runs_no_code_of_its_own(tmp_path):
    """A pickle may call anything; of these only graphs are read."""

    class Calls:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "called",)

    with pytest.raises(ValueError, match=r"saved by torch\.save"):
        load(str(saved(tmp_path, Calls())), tmp_path)
    with pytest.raises(ValueError, match="a Data of PyG's, got dict"):
        load(str(saved(tmp_path, {"x": torch.ones(2)})), tmp_path)
    assert not (tmp_path / "called").exists()


def test_without_a_split_random_ones_are_asked_for(tmp_path, capsys):
    path = saved(tmp_path, rings())
    with pytest.raises(SystemExit):
        main(["--dataset", str(path), "--out", str(tmp_path)])
    assert "it has no train_mask, val_mask, test_mask; take --split random" in capsys.readouterr().err
    several = saved(tmp_path, rings(**masks(2)), "several.pt")
    with pytest.raises(SystemExit):
        main(["--dataset", str(several), "--search", "1", "--out", str(tmp_path)])
    assert "give data with one split" in capsys.readouterr().err


def test_a_file_is_trained_on(tmp_path):
    path = saved(tmp_path, rings(**masks()))
    main(["--dataset", str(path), "--models", "gcn", "--seeds", "1", "--search", "0", "--out", str(tmp_path)])
    report = json.loads((tmp_path / "mine.json").read_text())
    assert report["models"]["gcn"]["rows"] is True
    assert report["summary"]["gcn"][OURS]["test"] > 90
