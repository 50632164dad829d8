"""The table of `python -m pyg_basisconv verify`, and that it tells wrong from right."""

import subprocess
import sys

import pytest
import torch

from pyg_basisconv import BasisConv, bases, theta, verify
from pyg_basisconv.__main__ import main
from pyg_basisconv.verify import SYSTEMS, TOLERANCE, Case, System, compare, relative_error, table


@pytest.mark.parametrize("name", SYSTEMS)
def test_systems(name: str) -> None:
    result = verify.verify(SYSTEMS[name])
    assert result.cases
    assert max(result.forward, result.gradients) <= TOLERANCE


def test_a_verification_repeats_and_leaves_the_generator() -> None:
    state = torch.get_rng_state()
    first, second = (verify.verify(SYSTEMS["GCN"]) for _ in range(2))
    assert first == second
    assert torch.equal(state, torch.get_rng_state())


def wrong_forward():
    edge_index, weight = verify.graph()
    ours = BasisConv(5, 5, bases.Adjacency("mean"), theta.Pass(), bias=False)
    reference = BasisConv(5, 5, bases.Adjacency("rw"), theta.Pass(), bias=False)
    yield Case(ours, reference, [verify.features(verify.N, 5), weight], lambda f, x, w: f(x, edge_index, w))


def wrong_gradient():
    yield Case(lambda x: x * x.detach(), lambda x: x * x, [verify.features(3)])


def not_finite():
    yield Case(lambda x: x / 0, lambda x: x, [verify.features(3)])


@pytest.mark.parametrize("cases", [wrong_forward, wrong_gradient, not_finite])
def test_what_differs_fails(cases, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(SYSTEMS, "wrong", System("wrong", "right", cases))
    assert main(["verify", "--only", "wrong"]) == 1
    assert "FAILS" in capsys.readouterr().out


def test_an_error_fails_its_row_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken():
        yield Case(lambda x: x @ x, lambda x: x, [verify.features(2, 3)])

    monkeypatch.setitem(SYSTEMS, "broken", System("broken", "right", broken))
    assert main(["verify", "--only", "broken", "--only", "APPNP"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "RuntimeError" in lines[2]
    assert lines[3].endswith("ok")


def test_a_parameter_without_counterpart_is_an_error() -> None:
    linear = torch.nn.Linear(3, 2)
    other = torch.nn.Linear(3, 2)
    with pytest.raises(LookupError, match="no counterpart"):
        compare(Case(linear, other, [torch.randn(4, 3)]))


def test_parameters_are_found_by_their_numbers() -> None:
    class Turned(torch.nn.Module):
        """A Linear whose matrix lies otherwise, one column of which has another gradient."""

        def __init__(self, linear: torch.nn.Linear, factor: float) -> None:
            super().__init__()
            self.parts = torch.nn.ParameterList([linear.bias.detach(), *linear.weight.detach().t()])
            self.factor = factor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            bias, *rows = self.parts
            y = x @ torch.stack([*rows]) + bias
            return y + (self.factor - 1) * (rows[0] - rows[0].detach())

    linear, x = torch.nn.Linear(3, 2).double(), verify.features(4, 3)
    for factor, right in ((1.0, True), (1.5, False)):
        ours, theirs = compare(Case(Turned(linear, factor), linear, [x]))
        errors = [relative_error(*pair) for pair in zip(ours, theirs, strict=True)]
        assert (max(errors) < TOLERANCE) == right


def test_errors_are_relative_to_the_reference() -> None:
    assert relative_error(torch.tensor([100.0, 1.0]), torch.tensor([100.0, 2.0])) == 0.01
    assert relative_error(torch.tensor([0.5]), torch.tensor([0.0])) == 0.5
    assert relative_error(torch.tensor([float("nan")]), torch.tensor([1.0])) == float("inf")
    assert relative_error(torch.ones(2), torch.ones(3)) == float("inf")


def test_list_and_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == len(SYSTEMS) + 2
    assert main(["verify", "--only", "GCN", "--only", "APPNP"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["GCN", "APPNP"]
    assert all(line.endswith("ok") for line in lines[2:])
    with pytest.raises(SystemExit) as stop:
        main(["verify", "--only", "nothing"])
    assert stop.value.code == 2
    assert "no system is called 'nothing'" in capsys.readouterr().err


def test_the_module_is_a_command() -> None:
    command = [sys.executable, "-m", "pyg_basisconv", "verify", "--only", "APPNP"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "APPNP" in run.stdout


def test_tables_line_up() -> None:
    assert table([("a", "b"), ("long", "c")]) == "a     b\n-------\nlong  c"
