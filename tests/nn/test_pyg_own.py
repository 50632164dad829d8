"""The run of PyG's own tests, where they are; and that this run is worth something."""

from pathlib import Path

import pytest
from torch_geometric.nn import SAGEConv, SimpleConv

from pyg_basisconv import convert
from pyg_basisconv.nn.evaluator import Evaluator
from tests.nn import pyg_own

TINY = """
import torch
from torch_geometric.nn import SimpleConv

def test_sum():
    conv = SimpleConv('sum')
    assert str(conv) == 'SimpleConv()'
    assert isinstance(conv, SimpleConv) and SimpleConv.__name__ == 'SimpleConv'
    assert conv._cached is None
    jit = torch.jit.script(conv)
    out = jit(torch.ones(3, 1), torch.tensor([[0, 1], [2, 2]]))
    assert out.sum() == 100
    out = conv(torch.ones(3, 1), torch.tensor([[0, 1], [2, 2]]))
    assert out.tolist() == [[0.0], [0.0], [2.0]]
"""


def ran(folder: Path, text: str = TINY, name: str = "test_tiny.py", through_nn: bool = False) -> bool:
    (folder / "nn").mkdir()
    (folder / "nn" / "test_tiny.py").write_text(text)
    return pyg_own.run(folder, [name], through_nn)


@pytest.mark.skipif(pyg_own.sources() is None, reason="needs PyG's tests: set PYG_TESTS to their folder")
def test_of_pyg_all_pass(capsys: pytest.CaptureFixture) -> None:
    code = pyg_own.main([])
    assert code == 0, capsys.readouterr().out


def test_a_right_conversion_passes(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert ran(tmp_path)
    said = capsys.readouterr().out
    assert "test_tiny.py      1       1       0        0                 1     0\n" in said
    assert "test_tiny.py::test_sum: the text of a layer; lines 7\n" in said
    assert "test_tiny.py::test_sum: TorchScript; lines 10, 11, 12\n" in said
    assert "test_tiny.py::test_sum: a private attribute of PyG's layer, or the name of one; lines 9\n" in said


@pytest.mark.skipif(pyg_own.sources() is None, reason="needs PyG's tests: set PYG_TESTS to their folder")
def test_of_pyg_all_pass_through_nn(capsys: pytest.CaptureFixture) -> None:
    code = pyg_own.main(["--nn"])
    assert code == 0, capsys.readouterr().out


SCRIPTED = TINY.replace("assert out.sum() == 100", "assert out.sum() == 2")


def test_a_right_drop_in_passes(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Its text and TorchScript of it are PyG's."""
    assert ran(tmp_path, SCRIPTED, through_nn=True)
    said = capsys.readouterr().out
    assert "test_tiny.py      1       1       0        0                 1     0\n" in said
    assert "test_tiny.py::test_sum: a private attribute of PyG's layer, or the name of one; lines 9\n" in said
    assert "TorchScript" not in said


def test_a_wrong_drop_in_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    evaluate = Evaluator.__call__
    monkeypatch.setattr(Evaluator, "__call__", lambda self, *args: 2 * evaluate(self, *args))
    assert not ran(tmp_path, SCRIPTED, through_nn=True)
    assert "assert [[0.0], [0.0], [4.0]] == [[0.0], [0.0], [2.0]]" in capsys.readouterr().out


def test_what_a_drop_in_refuses_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    text = "from torch_geometric.nn import SAGEConv\n\ndef test_max():\n    SAGEConv(3, 2, aggr='max')\n"
    assert not ran(tmp_path, TINY + text, through_nn=True)  # TorchScript gives another sum
    said = capsys.readouterr().out
    assert "refused:\n  test_tiny.py::test_max: " in said
    assert "aggr='max' is not linear" in said


def test_a_wrong_conversion_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(pyg_own, "convert", lambda layer, left: convert(SimpleConv("mean"), left))
    assert not ran(tmp_path)
    assert "assert [[0.0], [0.0], [1.0]] == [[0.0], [0.0], [2.0]]" in capsys.readouterr().out


def test_a_layer_that_is_not_converted_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(pyg_own, "convert", lambda layer, left: layer)
    assert not ran(tmp_path)
    assert "AssertionError: SimpleConv was not converted" in capsys.readouterr().out


def test_a_layer_may_be_left_for_its_aggregation() -> None:
    made: list[tuple[str, str]] = []
    layer = pyg_own.converting(SAGEConv, made)
    assert type(layer(4, 3, aggr="max")) is SAGEConv
    assert made[0][1] == "SAGEConv: aggr='max' is not linear, or not a sum or mean"
    with pytest.raises(AssertionError, match="was not converted: SAGEConv: project=True"):
        layer(4, 3, project=True, flow="target_to_source")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        pytest.param(TINY, "test_other.py", id="a file that is not there"),
        pytest.param("import nowhere\n", "test_tiny.py", id="a file that cannot be read"),
        pytest.param("def test_nothing():\n    pass\n", "test_tiny.py", id="no layer"),
        pytest.param("import pytest\n\ndef test_no():\n    pytest.skip('no')\n", "test_tiny.py", id="all skipped"),
    ],
)
@pytest.mark.sweep(1)
def test_silence_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture, text: str, name: str) -> None:
    assert not ran(tmp_path, text, name)


KEPT = [
    "assert torch.allclose(conv(x, adj), out)",
    "assert str(conv) == 'GCNConv(4, 3)' and out.sum() == 0",
    "assert conv.weight is not None",
    "assert result[1]._nnz() == 7",
    "conv._cached = None",
    "if flag:\n        assert out.sum() == 0",
    "jit = torch.jit.script(conv)\n    jit = conv\n    assert jit(x).sum() == 0",
]


@pytest.mark.parametrize("statements", KEPT)
def test_what_is_asked_of_numbers_is_run(statements: str) -> None:
    text, dropped = pyg_own.neutral(f"def test_it():\n    {statements}\n")
    assert text.splitlines()[-1] == statements.splitlines()[-1].rjust(len(text.splitlines()[-1]))
    assert len(dropped) == statements.count("torch.jit")


def test_lines_stay_where_they_are() -> None:
    source = "def test_it():\n    assert str(conv) == (\n        'A'\n    )\n    with no_grad():\n        repr(conv)\n"
    text, dropped = pyg_own.neutral(source)
    assert text.splitlines() == ["def test_it():", "    pass", "", "", *source.splitlines()[4:]]
    assert dropped == [("test_it", 2, pyg_own.TEXT)]


def test_subclasses_are_left() -> None:
    made: list[tuple[str, str]] = []
    face = pyg_own.converting(SimpleConv, made)

    class Own(face):  # type: ignore[misc, valid-type]
        """A layer that a test writes."""

    assert type(Own()) is Own
    assert made[0][1] == "Own: a subclass of SimpleConv may compute something else"
    assert isinstance(Own(), face)
    assert isinstance(face(), face)
    assert not isinstance(face(), Own)
