"""The example of chickenpox: its errors, its splits and its command line."""

import json
import os
import re
from pathlib import Path

import pytest
import torch

from examples import chickenpox
from examples.chickenpox import Cases, broadcast, fit, fit_sequences, load, main, snapshots, squared, windows
from pyg_basisconv import bases

DATA = Path(os.environ.get("BASISCONV_DATA") or "datasets")
RING = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3], [1, 2, 3, 0, 0, 1, 2, 3]])


@pytest.fixture(autouse=True)
def threads():
    """The command sets how many torch takes."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def made_up(weeks: int = 60) -> Cases:
    """What comes is what was in the county before, and a little noise."""
    start = torch.randn(4)
    signal = torch.stack([start.roll(week) for week in range(weeks)])
    return Cases(signal + 0.05 * torch.randn(weeks, 4), RING)


def write(folder: Path, cases: Cases) -> Path:
    raw = folder / "Chickenpox" / "raw"
    raw.mkdir(parents=True)
    found = {"edges": cases.edge_index.t().tolist(), "FX": cases.signal.tolist(), "node_ids": {}}
    (raw / "chickenpox.json").write_text(json.dumps(found))
    return folder


def test_the_command_line_trains_and_reports(tmp_path, capsys):
    main(["--quick", "--root", str(write(tmp_path, made_up()))])
    shown = capsys.readouterr().out
    rows = re.findall(r"^(zero, always|GRU, no graph|DCRNN, K = \d) ((?: +[\d.]+)+)$", shown, re.MULTILINE)
    names = ["zero, always", *chickenpox.MODELS]
    assert [name for name, _ in rows] == [*names, *names, *(f"DCRNN, K = {K}" for K in chickenpox.STEPS)]
    assert [len(values.split()) for _, values in rows] == [3] * 10 + [4] * 3
    assert "1.124 ± 0.015" in shown
    assert "60 weeks of 4 counties" in shown


def test_forecasts_are_compared_with_cases_of_their_shape():
    forecast, cases = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 4.0]])
    assert squared(forecast, cases) == 2
    assert broadcast(forecast, cases) == (0 + 9 + 1 + 4) / 4
    as_in_the_example = torch.mean((forecast[0].unsqueeze(1) - cases[0]) ** 2)
    assert broadcast(forecast, cases) == as_in_the_example
    with pytest.raises(AssertionError):
        squared(forecast.unsqueeze(-1), cases)


def test_the_best_forecast_by_the_broadcast_is_the_mean_of_the_country():
    cases = torch.randn(7, 4)
    forecast = torch.zeros(7, 4, requires_grad=True)
    for _ in range(200):
        (gradient,) = torch.autograd.grad(broadcast(forecast, cases), forecast)
        forecast = (forecast - 5 * gradient).detach().requires_grad_()
    torch.testing.assert_close(forecast, cases.mean(1, keepdim=True).expand(-1, 4), atol=1e-4, rtol=0)


def test_a_snapshot_is_of_the_weeks_before():
    signal = torch.arange(40.0).view(10, 4)
    x, y = snapshots(signal)
    assert (x.shape, y.shape) == ((6, 4, 4), (6, 4))
    assert torch.equal(x[2], signal[2:6].t())
    assert torch.equal(y[2], signal[6])


def test_a_window_is_of_the_weeks_before_and_after():
    signal = torch.arange(80.0).view(20, 4)
    x, y = windows(signal)
    assert (x.shape, y.shape) == ((12, 5, 4, 1), (4, 5, 4, 1))
    assert torch.equal(x[:, 3, :, 0], signal[3:15])
    assert torch.equal(y[:, 3, :, 0], signal[15:19])


def test_no_sequence_is_trained_on_with_a_week_of_the_test(monkeypatch):
    nets = []

    class Kept(chickenpox.DCRNN):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            nets.append(self)

    monkeypatch.setattr(chickenpox, "DCRNN", Kept)
    cases, changed, known = made_up(), made_up(), 48
    changed.signal[:known] = cases.signal[:known]
    for one in (cases, changed):
        torch.manual_seed(0)
        assert len(fit_sequences(2, one, 0.8, 1)) == 4
    for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(a, b)
    changed.signal[known - 1] += 1
    torch.manual_seed(0)
    fit_sequences(2, changed, 0.8, 1)
    assert any((a != b).any() for a, b in zip(nets[0].parameters(), nets[2].parameters(), strict=True))


def test_the_graph_helps_where_what_comes_is_that_of_a_neighbour():
    cases, errors = Cases(torch.randn(200, 4), RING), {}
    for week in range(1, 200):
        cases.signal[week] = 0.9 * cases.signal[week - 1].roll(1) + 0.3 * cases.signal[week]
    for K in (1, 2):
        torch.manual_seed(0)
        errors[K], same = fit(bases.Diffusion(K), cases, 0.5, squared, 60)
        assert errors[K] == same
    assert errors[2] < errors[1]


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "No such file"), ("{", "not what it should be"), ('{"edges": [[0, 0]]}', "FX"), ("[]", "not what it")],
    ids=["missing", "half", "without cases", "a list"],
)
def test_what_is_wrong_with_the_data_is_said(tmp_path, capsys, text, said):
    raw = tmp_path / "Chickenpox" / "raw"
    raw.mkdir(parents=True)
    if text is not None:
        (raw / "chickenpox.json").write_text(text)
    with pytest.raises(SystemExit) as ended:
        main(["--root", str(tmp_path)])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.skipif(not (DATA / "Chickenpox" / "raw").is_dir(), reason="BASISCONV_DATA holds no Chickenpox")
def test_the_data():
    cases = load(DATA)
    assert cases.signal.shape == (521, 20)
    assert cases.edge_index.shape == (2, 102)
    y = snapshots(cases.signal)[1]
    assert len(y) == 517
    zero = y[int(0.9 * len(y)) :].square().mean()
    assert round(float(zero), 3) == 1.117
    torch.manual_seed(0)
    assert fit(bases.Diffusion(1), cases, 0.2, squared, 60)[1] < 0.95
