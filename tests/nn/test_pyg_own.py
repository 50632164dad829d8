"""The run of PyG's own tests, where they are; and that this run is worth something."""

from pathlib import Path

import pytest

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
    assert out.sum() == 2
    out = conv(torch.ones(3, 1), torch.tensor([[0, 1], [2, 2]]))
    assert out.tolist() == [[0.0], [0.0], [2.0]]
"""


def ran(folder: Path, text: str = TINY, name: str = "test_tiny.py") -> bool:
    (folder / "nn").mkdir()
    (folder / "nn" / "test_tiny.py").write_text(text)
    return pyg_own.run(folder, [name])


@pytest.mark.skipif(pyg_own.sources() is None, reason="needs PyG's tests: set PYG_TESTS to their folder")
def test_of_pyg_all_pass(capsys: pytest.CaptureFixture) -> None:
    code = pyg_own.main([])
    assert code == 0, capsys.readouterr().out


def test_a_right_drop_in_passes(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Its text and TorchScript of it are PyG's."""
    assert ran(tmp_path)
    said = capsys.readouterr().out
    assert "test_tiny.py      1       1       0        0                1\n" in said
    assert "not run:\n  test_tiny.py::test_sum: lines 9\n" in said


def test_a_wrong_drop_in_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    evaluate = Evaluator.__call__
    monkeypatch.setattr(Evaluator, "__call__", lambda self, *args: 2 * evaluate(self, *args))
    assert not ran(tmp_path)
    assert "assert [[0.0], [0.0], [4.0]] == [[0.0], [0.0], [2.0]]" in capsys.readouterr().out


def test_what_a_drop_in_refuses_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    text = "from torch_geometric.nn import SAGEConv\n\ndef test_max():\n    SAGEConv(3, 2, aggr='max')\n"
    assert ran(tmp_path, TINY + text)
    said = capsys.readouterr().out
    assert "refused:\n  test_tiny.py::test_max: " in said
    assert "aggr='max' is not linear" in said


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


@pytest.mark.parametrize(
    "statement",
    [
        "assert torch.allclose(conv(x, adj), out)",
        "assert str(conv) == 'GCNConv(4, 3)' and out.sum() == 0",
        "assert conv.weight is not None",
        "assert result[1]._nnz() == 7",
        "conv._cached = None",
        "jit = torch.jit.script(conv)",
    ],
)
def test_all_but_what_is_asked_of_private_attributes_is_run(statement: str) -> None:
    text = f"def test_it():\n    {statement}\n"
    assert pyg_own.neutral(text) == (text, {})


def test_lines_stay_where_they_are() -> None:
    source = "def test_it():\n    if flag:\n        assert (conv._cached\n            is None)\n    repr(conv)\n"
    text, dropped = pyg_own.neutral(source)
    assert text.splitlines() == ["def test_it():", "    if flag:", "        pass", "", "    repr(conv)"]
    assert dropped == {"test_it": [3]}
