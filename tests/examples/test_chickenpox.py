"""The example of chickenpox: its errors, its splits and its command line."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from examples import chickenpox
from examples.chickenpox import (
    Cases,
    Forecaster,
    Sequences,
    broadcast,
    error,
    fit,
    load,
    main,
    row,
    simple,
    squared,
    windows,
)

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
    simpler = ["zero, always", "last week's mean", "linear", "linear, graph"]
    names = "|".join([*simpler, *chickenpox.MODELS])
    rows = re.findall(rf"^({names}) ((?: +[\d.,]+)+) *$", shown, re.MULTILINE)
    both, trained = [*simpler, *chickenpox.MODELS], list(chickenpox.MODELS)
    assert [name for name, _ in rows] == [*both * 2, *trained * 2, *both * 2]
    errors = [3] * 4 + [5] * 4
    assert [len(values.split()) for _, values in rows] == [*errors * 2, *[2] * 8, *errors, *[4] * 8]
    assert "1.124 ± 0.015" in shown
    assert "60 weeks of 4 counties" in shown


def test_forecasts_are_compared_with_cases_of_their_shape():
    forecast, cases = torch.tensor([[[1.0], [2.0]]]), torch.tensor([[[1.0], [4.0]]])
    assert squared(forecast, cases) == 2
    assert broadcast(forecast, cases) == (0 + 9 + 1 + 4) / 4
    as_in_the_example = torch.mean((forecast[0] - cases[0].squeeze(-1)) ** 2)
    assert broadcast(forecast, cases) == as_in_the_example
    with pytest.raises(AssertionError):
        squared(forecast, cases.squeeze(-1))


def test_the_best_forecast_by_the_broadcast_is_the_mean_of_the_country():
    cases = torch.randn(7, 4, 1)
    forecast = torch.zeros(7, 4, 1, requires_grad=True)
    for _ in range(200):
        (gradient,) = torch.autograd.grad(broadcast(forecast, cases), forecast)
        forecast = (forecast - 5 * gradient).detach().requires_grad_()
    torch.testing.assert_close(forecast, cases.mean(1, keepdim=True).expand(-1, 4, 1), atol=1e-4, rtol=0)


def test_a_window_is_of_the_weeks_before_and_after():
    signal = torch.arange(80.0).view(20, 4)
    data = windows(Cases(signal, RING), 12, 4, 0.5)
    assert (data.x.shape, data.y.shape, data.first) == ((5, 4, 12), (5, 4, 4), 2)
    assert torch.equal(data.x[3], signal[3:15].t())
    assert torch.equal(data.y[3], signal[15:19].t())


@pytest.mark.parametrize("weeks", [chickenpox.FEWEST, 521], ids=["fewest", "as the data"])
@pytest.mark.parametrize(
    ("past", "horizon", "share"),
    [(4, 1, 0.2), (4, 1, 0.9), (12, 4, 0.9)],
    ids=["a fifth", "nine tenths", "sequences"],
)
def test_no_week_that_is_forecast_is_one_that_was_trained_on(past, horizon, weeks, share):
    signal = torch.arange(float(weeks)).view(-1, 1)
    data = windows(Cases(signal, torch.zeros(2, 1, dtype=torch.long)), past, horizon, share)
    parts = slice(data.fitted), data.validation, data.learnt, data.test
    fitted, validation, learnt, test = (set(data.y[part].flatten().int().tolist()) for part in parts)
    assert fitted
    assert validation
    assert test
    assert not fitted & validation
    assert not learnt & test
    assert fitted | validation <= learnt
    assert data.x[data.learnt].max() < min(test)
    assert max(test) == weeks - 1


@pytest.mark.parametrize("K", [0, 2], ids=["no graph", "DCRNN"])
def test_no_sequence_is_trained_on_with_a_week_of_the_test(K):
    cases = made_up()
    known = windows(cases, 12, 4, 0.8).first + 15

    def trained(weeks: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        net, data = Sequences(K), windows(Cases(weeks, RING), 12, 4, 0.8)
        assert list(fit(net, data, data.first, squared, 1, 32)) == [1]
        return torch.nn.utils.parameters_to_vector(net.parameters())

    after, last = cases.signal.clone(), cases.signal.clone()
    after[known:] += 1
    last[known - 1] += 1
    assert torch.equal(trained(cases.signal), trained(after))
    assert not torch.equal(trained(cases.signal), trained(last))


def test_sequences_without_a_graph_see_their_county_only():
    x = torch.randn(2, 4, 12)
    other = x.clone()
    other[:, 1:] += 1
    for K, sees in ((0, False), (1, False), (2, True)):
        net = Sequences(K)
        assert torch.allclose(net(x, RING)[:, 0], net(other, RING)[:, 0]) != sees


def test_sequences_are_taught_less_and_less(monkeypatch):
    taught = []
    monkeypatch.setattr(chickenpox.DCRNN, "_targets", lambda self, targets, y: taught.append(targets) or targets)
    x, y = torch.randn(2, 4, 12), torch.randn(2, 4, 4)
    net = Sequences(1)
    first = net(x, RING, y)
    net.calls = 10**4
    assert torch.equal(net(x, RING, y), net(x, RING))
    assert not torch.allclose(first, net(x, RING))
    assert net.calls == 10**4 + 1
    assert torch.equal(taught[0][..., 0].permute(1, 2, 0), y)


@pytest.mark.slow
def test_the_number_of_steps_is_that_of_least_validation_error_and_the_error_that_of_a_training_of_as_many():
    data, size = windows(made_up(), 4, 1, 0.5), 1000
    data = data._replace(y=data.y + 0.5 * torch.randn_like(data.y))
    found = row(Forecaster, data, 2, 3, passes=60, size=size)
    torch.manual_seed(3)
    net = Forecaster(2)
    errors = [error(net, data, data.validation) for _ in fit(net, data, data.fitted, squared, 60, size)]
    assert found.passes == 1 + int(np.argmin(errors)) < 60
    ends = []
    for steps in (found.passes, 60):
        torch.manual_seed(3)
        net = Forecaster(2)
        assert len(list(fit(net, data, data.first, squared, steps, size))) == steps
        ends.append(error(net, data, data.test))
    assert [found.chosen, found.test] == pytest.approx(ends, rel=1e-5)
    assert found.weeks == [found.chosen]
    assert found.learnt == pytest.approx(error(net, data, data.learnt))
    assert found.parameters == sum(p.numel() for p in net.parameters())


def test_the_models_without_steps():
    cases = Cases(torch.randn(60, 4), torch.tensor([[0, 1, 1, 2, 0, 3], [1, 0, 2, 1, 0, 3]]))  # 3 has no neighbour
    data = windows(cases, 2, 2, 0.5)
    x, y = data.x.double().numpy(), data.y.double().numpy()
    found = {name: of for name, (of,) in simple(data).items()}
    known, first = data.first, data.first + 1
    around = np.stack([x[:, 1], (x[:, 0] + x[:, 2]) / 2, x[:, 1], 0 * x[:, 3]], 1)
    for name, features in (("linear", x), ("linear, graph", np.concatenate([x, around], -1))):
        width = features.shape[-1]
        ones = np.ones((known * 4, 1))
        learnt = np.concatenate([features[:known].reshape(-1, width), ones], 1)
        solution = np.linalg.lstsq(learnt, y[:known].reshape(-1, 2))[0]
        forecast = features[first:] @ solution[:-1] + solution[-1]
        assert found[name].test == found[name].chosen == pytest.approx(((forecast - y[first:]) ** 2).mean())
        assert found[name].weeks == pytest.approx(((forecast - y[first:]) ** 2).mean((0, 1)))
        assert found[name].learnt == pytest.approx(((learnt @ solution - y[:known].reshape(-1, 2)) ** 2).mean())
        assert found[name].parameters == 2 * (width + 1)
    assert found["zero, always"].test == pytest.approx((y[first:] ** 2).mean())
    mean = x[first:, :, -1].mean(1)[:, None, None]
    assert found["last week's mean"].test == pytest.approx(((mean - y[first:]) ** 2).mean())
    assert all(of.passes is None for of in found.values())


@pytest.mark.slow
def test_the_graph_helps_where_what_comes_is_that_of_a_neighbour():
    cases = Cases(torch.randn(200, 4), RING)
    for week in range(1, 200):
        cases.signal[week] = 0.9 * cases.signal[week - 1].roll(1) + 0.3 * cases.signal[week]
    data = windows(cases, 4, 1, 0.5)
    errors = [row(Forecaster, data, K, 0, passes=60, size=100).chosen for K in (1, 2)]
    assert errors[1] < errors[0]
    assert simple(data)["linear, graph"][0].test < simple(data)["linear"][0].test


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("{", "not what it should be"),
        ('{"edges": [[0, 0]]}', "FX"),
        ("[]", "not what it"),
        (json.dumps({"edges": [[0, 0]], "FX": [[0.0]] * (chickenpox.FEWEST - 1)}), "(49, 1) cases"),
    ],
    ids=["missing", "half", "without cases", "a list", "few weeks"],
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


def test_no_download_is_promised(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "download" not in capsys.readouterr().out


@pytest.mark.skipif(not (DATA / "Chickenpox" / "raw").is_dir(), reason="BASISCONV_DATA holds no Chickenpox")
def test_the_data():
    cases = load(DATA)
    assert cases.signal.shape == (521, 20)
    assert cases.edge_index.shape == (2, 102)
    data = windows(cases, 4, 1, 0.9)
    assert len(data.y) == 517
    std, mean = torch.std_mean(cases.signal, 0, correction=0)
    torch.testing.assert_close((std, mean), (torch.ones(20), torch.zeros(20)))
    errors = {name: round(of.test, 3) for name, (of,) in simple(data).items()}
    assert errors == {"zero, always": 1.117, "last week's mean": 1.385, "linear": 0.819, "linear, graph": 0.818}
    assert row(Forecaster, windows(cases, 4, 1, 0.2), 1, 0, passes=60, size=1000).chosen < 0.95
