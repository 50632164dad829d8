"""The benchmarks of recurrent cells run, and compare what is the same; nothing here depends on how fast anything is."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import __main__ as command, recurrent
from benchmarks.data import Missing
from benchmarks.recurrent import DiffusionRow, OfPowers, PyGStep, gru, roads
from benchmarks.result import Bench

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of the peers' layouts


def quick(text: str, folder: Path) -> dict[str, Any]:
    file = folder / "found.json"
    command.main(["--quick", "--only", text, "--json", str(file)])
    return json.loads(file.read_text())


def test_as_many_roads_leave_a_node_as_arrive():
    edge_index = roads(207, 1722)
    source, target = edge_index
    assert edge_index.shape == (2, 1722)
    assert (source != target).all()
    assert edge_index.unique(dim=1).shape[1] == 1722
    assert torch.equal(source, source.sort().values)
    assert torch.equal(source, target.sort().values)
    one_way = {(n, m) for m, n in edge_index.t().tolist()} - set(map(tuple, edge_index.t().tolist()))
    assert len(one_way) > 1000


def test_every_layout_of_the_peer_is_one_function():
    edge_index, edge_weight = roads(10, 30), torch.rand(30) + 0.1
    x, h = torch.randn(3, 10, recurrent.READ), torch.randn(3, 10, 4)
    steps = [PyGStep(4, 3, edge_index, edge_weight, 10, 3, way) for way in recurrent.LAYOUTS]
    for step in steps[1:]:
        step.load_state_dict(steps[0].state_dict())
        torch.testing.assert_close(step(x, h), steps[0](x, h))


@pytest.mark.parametrize("wrong", ["gates", "directions"])
def test_a_step_that_is_another_is_found(wrong: str, monkeypatch: pytest.MonkeyPatch):
    def mistaken(step: Any) -> nn.Module:
        cell = gru(step)
        with torch.no_grad():
            if wrong == "gates":
                cell.hidden.weight.copy_(torch.cat(cell.hidden.weight.chunk(2, -1)[::-1], -1))
            else:
                cell.candidate.weight.copy_(torch.cat(cell.candidate.weight.chunk(2)[::-1]))
        return cell

    monkeypatch.setattr(recurrent, "gru", mistaken)
    with pytest.raises(AssertionError, match="the value differs"):
        DiffusionRow(2, False).run(Bench(quick=True))


def test_parameters_of_powers_are_those_of_the_polynomials_of_the_peer():
    P, x = torch.rand(5, 5, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    weight = torch.randn(2, 3, 2, 4, dtype=torch.float64)
    polynomials = [torch.eye(5, dtype=torch.float64), P, 2 * P @ P - torch.eye(5, dtype=torch.float64)]
    powers = [torch.linalg.matrix_power(P, k) for k in range(3)]
    for ours, theirs in zip(weight, OfPowers()(weight), strict=True):
        expected = sum(A @ x @ theta for A, theta in zip(powers, ours, strict=True))
        torch.testing.assert_close(sum(A @ x @ W for A, W in zip(polynomials, theirs, strict=True)), expected)
    assert torch.equal(OfPowers()(weight[:, :2]), weight[:, :2])


def test_the_row_of_a_peer_that_is_not_installed_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if "temporal" in name else find(name, *more)
    )
    recurrent.temporal.cache_clear()
    try:
        found = quick("PyG-Temporal", tmp_path)
    finally:
        recurrent.temporal.cache_clear()
    assert found["rows"] == []
    assert len(found["skipped"]) == 2
    assert all("torch_geometric_temporal is not installed" in line for line in found["skipped"])


def test_the_rows_of_pyg_temporal_where_it_is_installed(tmp_path: Path):
    try:
        recurrent.temporal()
    except Missing as missing:
        pytest.skip(str(missing))
    found = quick("PyG-Temporal", tmp_path)
    assert [row["way"] for row in found["rows"]] == ["BatchedDCRNN"] * 2
