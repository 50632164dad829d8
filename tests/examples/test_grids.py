"""The example of grids: what its networks compute, and its command line."""

import re
import xml.etree.ElementTree
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data

from examples import grids
from pyg_basisconv.testing import Symmetry, Trivial, assert_equivariant


@pytest.fixture
def few(monkeypatch):
    """A tenth of the images."""
    whole = grids.images

    def some(*dtype, validate=False):
        fit, test = whole(*dtype, validate=validate)
        return fit[::10], test[::10]

    monkeypatch.setattr(grids, "images", some)


@pytest.mark.slow
def test_the_command_line_trains_and_reports(tmp_path, capsys, few):
    picture = tmp_path / "new" / "shifts.svg"
    grids.main(["--quick", "--picture", str(picture)])
    shown = capsys.readouterr().out
    losses = re.findall(r"^(nn.Conv2d|GridConv.*?|bases.Edges)  +([\d.]+)  +([\d.]+)  +(\S+)$", shown, re.MULTILINE)
    assert [name.strip() for name, *_ in losses] == ["nn.Conv2d", *grids.WAYS]
    assert len({(first, last) for _, first, last, _ in losses}) == 1
    assert all(float(apart) < 1e-12 for *_, apart in losses)
    assert float(losses[0][2]) < float(losses[0][1])
    rows = dict(re.findall(r"^(\S.*?)  +([\d,]+(?:  +[\d.]+)+)$", shown, re.MULTILINE))
    for name in grids.HOLES:
        assert len(rows[name].split()) == 2
    for name in grids.TURNS:
        size, *accuracies = rows[name].split()
        assert abs(int(size.replace(",", "")) / 19146 - 1) < 0.02
        assert len(accuracies) == 4
    assert len(set(rows["bases.Group('p4')"].split()[1:])) == 1
    assert "±" in shown
    assert str(picture) in shown
    assert xml.etree.ElementTree.parse(picture).getroot().tag.endswith("svg")


def test_losses_that_come_apart_are_an_error():
    losses = {"nn.Conv2d": torch.tensor([2.0, 1.0]), "GridConv": torch.tensor([2.0, 1.25])}
    with pytest.raises(AssertionError, match=r"GridConv and nn\.Conv2d come apart by 2\.5e-01"):
        grids.same(losses)


@pytest.mark.parametrize("pool", ["max", "mean"])
def test_the_networks_are_one_function_of_the_same_weights(pool):
    image = Data(x=torch.rand(1, 1, 8, 8, dtype=torch.float64), y=3)
    peer = grids.Net(grids.dense, pool=pool).double()
    for name, layer in grids.WAYS.items():
        ours = grids.Net(layer, pool=pool).double()
        grids.same_weights(ours, peer)
        data = grids.as_graph(image, torch.ones(8, 8, dtype=torch.bool)) if name == "bases.Edges" else image
        torch.testing.assert_close(ours(Batch.from_data_list([data])), peer(Batch.from_data_list([image])))


def test_a_network_of_a_group_does_not_notice_turns_and_another_one_does():
    def scores(net):
        return lambda x: net(Batch.from_data_list([Data(x=x)]))

    x = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    for turn in (1, 2, 3):
        group, plain = (grids.Net(layer, 16).double() for layer in (grids.turning, grids.dense))
        assert_equivariant(scores(group), Symmetry("p4", turn), x, output_action=Trivial())
        with pytest.raises(AssertionError, match="not equivariant"):
            assert_equivariant(scores(plain), Symmetry("p4", turn), x, output_action=Trivial())


def test_a_fifth_is_missing_and_both_forms_miss_the_same():
    fit, test = grids.images()
    assert (len(fit), len(test)) == (700, 1097)
    assert fit[0].x.shape == (1, 1, 8, 8)
    whole = [Data(x=image.x + 1, y=image.y) for image in fit[:200]]  # so that a zero is a hole
    zeros, graphs = (grids.Holed(whole, form, seed=3) for form in (grids.with_zeros, grids.as_graph))
    assert len(zeros) == len(graphs) == 200
    missing = 0
    for i, image in enumerate(whole):
        one, other = zeros[i], graphs[i]
        there = one.x[0, 0] > 0
        missing += int((~there).sum())
        assert torch.equal(one.x[0, :, there].t(), other.x)
        assert torch.equal(one.x[:, :, there], image.x[:, :, there])
        assert torch.equal(other.pos, there.nonzero())
        assert one.y == other.y == image.y
    assert abs(missing / (200 * 64) - 0.2) < 0.02
    assert not torch.equal(zeros[0].x, zeros[0].x)  # others each time


def test_accuracy_is_in_percent():
    class Says(nn.Module):
        def forward(self, data):
            return nn.functional.one_hot(data.x, 10)

    assert grids.accuracy(Says(), Data(x=torch.tensor([1, 2, 3, 4]), y=torch.tensor([1, 2, 3, 5]))) == 75


@pytest.mark.slow
def test_the_picture_of_the_readme_is_the_one_that_is_drawn(tmp_path):
    grids.draw(tmp_path / "a.svg")
    grids.draw(tmp_path / "b.svg")
    grids.draw(tmp_path / "c.png")
    drawn = (tmp_path / "a.svg").read_bytes()
    assert drawn == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    shown = Path(grids.__file__).parents[1].joinpath("docs", "shifts.svg").read_bytes()
    for svg in (drawn, shown):
        assert len(svg) < 60_000
        assert svg.count(b"<use ") >= 8 + 36 + 100  # one for each entry: 2 of 10; (2, 4) of 8 x 10; nine of 4 x 4
        for title in (b"a line of 10", b"(2, 4)", b"a window of 3 x 3"):
            assert title in svg


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--seeds 0", "at least 1"),
        ("--epochs 0", "at least 1"),
        ("--threads 0", "at least 1"),
        ("--picture {}/shifts.abc", "--picture"),
        ("--picture {}/file/shifts.svg", "--picture"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_trained(arguments, said, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as ended:
        grids.main(arguments.format(tmp_path).split())
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_settings_are_chosen_on_training_images():
    fit, _ = grids.images()
    rest, kept = grids.images(validate=True)
    assert torch.equal(*(torch.cat([image.x for image in part]) for part in (fit, [*rest, *kept])))
    assert (len(rest), len(kept)) == (500, 200)


@pytest.mark.slow
def test_each_network_is_tried_with_all_settings(few, capsys):
    grids.main(["--choose", "--seeds", "1", "--epochs", "1"])
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if not line.startswith(" ")] == [*grids.HOLES, *grids.TURNS]
    tried = re.findall(r"^  [\d.]+ rate ([\d.]+), 1 epochs, the (max|mean) over an image$", "\n".join(said), re.M)
    assert Counter(tried) == dict.fromkeys(product(("0.002", "0.005", "0.01"), ("max", "mean")), 4)
