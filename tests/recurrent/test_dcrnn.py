"""DCRNN against its paper written as plain loops; scheduled sampling; what does not fit."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from pyg_basisconv import bases
from pyg_basisconv.recurrent import BasisGRUCell
from pyg_basisconv.recurrent.seq2seq import DCRNN, inverse_sigmoid
from tests import oracle
from tests.oracle import Graph
from tests.recurrent import oracle as papers
from tests.recurrent.test_cells import KINDS, PLACES, parameters

N, T, B, P, H, Q, HORIZON = 5, 4, 3, 2, 6, 2, 3
EDGES = torch.tensor([[0, 1, 1, 2, 3, 4, 4], [1, 0, 2, 3, 4, 0, 2]])


def make(K: int = 3, num_layers: int = 1, **kwargs: bool) -> DCRNN:
    model = DCRNN(P, H, Q, K, num_layers, HORIZON, **kwargs).double()
    with torch.no_grad():  # biases, too
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn_like(parameter))
    return model


@pytest.fixture
def x() -> Tensor:
    return torch.randn(T, B, N, P, dtype=torch.float64)


@pytest.fixture
def weight() -> Tensor:
    return torch.rand(EDGES.shape[1], dtype=torch.float64) + 0.1


def unit(cell: BasisGRUCell, x: Tensor, h: Tensor, family: Tensor) -> Tensor:
    """The gated unit of the paper for one graph."""
    return papers.gru(parameters(cell, KINDS["GRU"], PLACES["diffusion"]), lambda part, x: family, x, h)


def loops(model: DCRNN, x: Tensor, weight: Tensor, taught: dict[int, Tensor] | None = None) -> Tensor:
    """(HORIZON, B, N, Q), one sequence after the other; taught: what the decoder reads in place of its own output."""
    graph = Graph(N, N, EDGES.t().tolist(), weight)
    family = oracle.diffusion(graph, model.encoder.cells[0].basis.K // 2)
    batch = []
    for b in range(x.shape[1]):
        states = [x.new_zeros(N, H) for _ in model.decoder]
        for t in range(len(x)):
            above = x[t, b]
            for i, cell in enumerate(model.encoder.cells):
                states[i] = above = unit(cell, above, states[i], family)
        y, steps = x.new_zeros(N, Q), []
        for t in range(model.horizon):
            above = taught[t][b] if taught and t in taught else y
            for i, cell in enumerate(model.decoder):
                states[i] = above = unit(cell, above, states[i], family)
            y = above @ model.out.weight.t() + model.out.bias
            steps.append(y)
        batch.append(torch.stack(steps))
    return torch.stack(batch, 1)


@pytest.mark.parametrize(("K", "num_layers"), [(1, 1), (2, 1), (3, 2)], ids=["no graph", "one step", "two layers"])
def test_it_is_the_paper_written_as_loops(x, weight, K, num_layers):
    model = make(K, num_layers)
    assert len(model.encoder.cells) == len(model.decoder) == num_layers
    y, expected = model(x, EDGES, weight), loops(model, x, weight)
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
    out = torch.randn_like(y)
    parameters = list(model.parameters())
    for ours, theirs in zip(
        torch.autograd.grad(y, parameters, out), torch.autograd.grad(expected, parameters, out), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_a_teacher_who_is_sure_gives_every_target_but_the_last(x, weight):
    model, targets = make(), torch.randn(HORIZON, B, N, Q, dtype=torch.float64)
    taught = {t: targets[t - 1] for t in range(1, HORIZON)}
    y = model(x, EDGES, weight, targets=targets, teacher=1.0)
    torch.testing.assert_close(y, loops(model, x, weight, taught), rtol=1e-10, atol=1e-10)
    assert not torch.allclose(y[1:], model(x, EDGES, weight)[1:])
    targets[-1] += 1
    torch.testing.assert_close(model(x, EDGES, weight, targets=targets, teacher=1.0), y)


def test_each_sequence_draws_for_itself(weight):
    model, many = make(), 400
    x = torch.randn(T, 1, N, P, dtype=torch.float64).expand(-1, many, -1, -1)
    targets = torch.randn(HORIZON, 1, N, Q, dtype=torch.float64).expand(-1, many, -1, -1)
    drawn = model(x, EDGES, weight, targets=targets, teacher=0.3)
    taught = model(x[:, :1], EDGES, weight, targets=targets[:, :1], teacher=1.0)
    second = (drawn[1] - taught[1]).abs().amax((-1, -2)) < 1e-9
    alone = (drawn[1] - model(x[:, :1], EDGES, weight)[1]).abs().amax((-1, -2)) < 1e-9
    assert (second ^ alone).all()  # all nodes of a sequence alike
    assert abs(second.double().mean() - 0.3) < 0.1
    third = (drawn[2] - taught[2]).abs().amax((-1, -2)) < 1e-9
    assert 0 < third.sum() < second.sum()  # drawn anew, so that few are taught twice


def test_targets_without_a_teacher_change_nothing(x, weight):
    model, targets = make(), torch.randn(HORIZON, B, N, Q, dtype=torch.float64)
    torch.testing.assert_close(model(x, EDGES, weight, targets=targets), model(x, EDGES, weight))


def test_layouts_of_a_batch_are_one_function(x, weight):
    model, targets = make(2, 2), torch.randn(HORIZON, B, N, Q, dtype=torch.float64)
    expected = model(x, EDGES, weight, targets=targets, teacher=1.0)
    bound = bases.Diffusion(2).bind(EDGES, weight, size=N)
    torch.testing.assert_close(model(x, bound, targets=targets, teacher=1.0), expected)
    torch.testing.assert_close(model(x[:, 0], EDGES, weight), model(x, EDGES, weight)[:, 0])
    first = DCRNN(P, H, Q, 2, 2, HORIZON, batch_first=True).double()
    first.load_state_dict(model.state_dict())
    found = first(x.transpose(0, 1), EDGES, weight, targets=targets.transpose(0, 1), teacher=1.0)
    torch.testing.assert_close(found, expected.transpose(0, 1))


def test_sequences_of_several_lengths(x, weight):
    model, lengths = make(2, 2), torch.tensor([2, 4, 1])
    y = model(pack_padded_sequence(x, lengths, enforce_sorted=False), EDGES, weight)
    for b, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(y[:, b], model(x[:length, b], EDGES, weight))


@pytest.mark.slow
def test_it_learns():
    """What comes is what was, one node further."""
    ring = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]])
    start = torch.randn(32, N)
    sequence = torch.stack([start.roll(t, -1) for t in range(T + HORIZON)]).unsqueeze(-1)
    x, y = sequence[:T], sequence[T:]
    model = DCRNN(1, 8, 1, K=2, horizon=HORIZON)
    optimizer = torch.optim.Adam(model.parameters(), 0.03)
    for step in range(60):
        optimizer.zero_grad()
        loss = (model(x, ring, targets=y, teacher=inverse_sigmoid(step, 10)) - y).square().mean()
        loss.backward()
        optimizer.step()
    assert (model(x, ring) - y).square().mean() < 0.1 * y.square().mean()


def test_drawn_anew_it_is_another_model(x, weight):
    model = make(2, 2)
    before = [parameter.clone() for parameter in model.parameters()]
    model.reset_parameters()
    assert all((a != b).any() for a, b in zip(model.parameters(), before, strict=True))


def test_the_probability_to_teach_falls_from_one_to_zero():
    decay = 20.0
    found = [inverse_sigmoid(step, decay) for step in range(0, 400, 10)]
    assert found == sorted(found, reverse=True)
    assert found[0] == decay / (decay + 1)
    assert found[-1] < 1e-6
    assert inverse_sigmoid(decay * math.log(decay), decay) == pytest.approx(0.5)
    assert inverse_sigmoid(37, decay) == pytest.approx(decay / (decay + math.exp(37 / decay)))
    assert inverse_sigmoid(10**9, decay) == 0


def test_it_prints_its_horizon() -> None:
    assert str(make()).splitlines()[1] == "  horizon=3"


def targets(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"teacher": 0.5}, "targets: expected the true steps, for teacher > 0, got None"),
        ({"teacher": 1.5}, "teacher: expected a probability"),
        ({"teacher": math.nan}, "teacher: expected a probability"),
        ({"teacher": 1, "targets": targets(HORIZON, B, N, Q + 1)}, r"targets: expected shape \(3, 3, 5, 2\), as y"),
        ({"teacher": 1, "targets": targets(HORIZON + 1, B, N, Q)}, r"targets: expected shape \(3, 3, 5, 2\), as y"),
        (
            {"teacher": 1, "targets": [targets(B, N, Q)] * HORIZON},
            "targets: expected a tensor on cpu, .*, got list",
        ),
        ({"teacher": 1, "targets": targets(HORIZON, B, N, Q).to("meta")}, "targets: expected .*, got a tensor on meta"),
    ],
    ids=["no targets", "above one", "no number", "width", "horizon", "a list", "another device"],
)
def test_what_does_not_fit_is_said(x, given, said):
    with pytest.raises(ValueError, match=said):
        make()(x, EDGES, **given)


def test_what_does_not_fit_is_said_batch_first(x):
    with pytest.raises(ValueError, match=r"targets: expected shape \(2, 3, 5, 2\), as y, got \(2, 4, 5, 2\)"):
        make(batch_first=True)(x[:, :2].transpose(0, 1), EDGES, targets=targets(2, 4, N, Q), teacher=1)
    with pytest.raises(ValueError, match="x: expected a sequence"):
        make(batch_first=True)(x[:, 0], EDGES)


@pytest.mark.parametrize("name", ["out_channels", "num_layers", "horizon", "K", "hidden_channels"])
def test_counts_are_from_one_on(name):
    sizes = {"in_channels": P, "hidden_channels": H, "out_channels": Q, "K": 2, "num_layers": 1, "horizon": 1}
    with pytest.raises(ValueError, match=f"{name}: expected"):
        DCRNN(**sizes | {name: 0})


@pytest.mark.parametrize(("given", "said"), [((1, 0.5), "decay"), ((-1, 2), "step")], ids=["decay", "step"])
def test_a_probability_needs_a_decay_and_a_step(given, said):
    with pytest.raises(ValueError, match=said):
        inverse_sigmoid(*given)
