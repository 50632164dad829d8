"""Weights of each channel by compiled kernels, against torch's operations: results, gradients, values of edges."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch_geometric.nn import ResGatedGraphConv

from pyg_basisconv import convert
from pyg_basisconv.kernels import Pattern, Sums, TermScores, Valued, onepass, scored_attention
from pyg_basisconv.kernels.activations import tanh_zero_hidden, zero_hidden
from pyg_basisconv.kernels.memory import side_by_side
from pyg_basisconv.kernels.scored import _plain
from tests.kernels.test_compiled_attention import check_threads

pytestmark = pytest.mark.skipif(onepass.KERNELS is None, reason="the kernels are not built")

ACTIVATIONS = [None, nn.LeakyReLU(0.2), torch.relu, torch.sigmoid, torch.tanh, zero_hidden, tanh_zero_hidden]
NAMES = ["z", "factor", "values", "source", "target", "entry"]


class Case:
    """Random entries from M sources to N targets, of c channels, and the tensors that are there."""

    def __init__(
        self,
        there: set[str],
        c: int = 8,
        activation: Any = torch.sigmoid,
        sizes: tuple[int, int, int] = (7, 5, 20),
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
        listed: bool = False,
    ) -> None:
        M, N, E = sizes
        torch.manual_seed(seed)
        self.c, self.scoring = c, TermScores(activation, listed)
        self.pattern = Pattern(torch.randint(M, (E,)), torch.randint(N, (E,)), M, N)
        rows = {"z": M, "source": M, "target": N}
        there = there | {"z"} | (set() if there & {"target", "entry"} else {"source"})
        self.tensors = [
            torch.randn(rows.get(name, E), c, dtype=dtype).requires_grad_() if name in there else None for name in NAMES
        ]

    def run(self, given: list[Tensor | None] | None = None, plain: bool = False) -> Tensor:
        z, factor, values, *terms = self.tensors if given is None else given
        assert z is not None
        sums = Sums(self.scoring, False, self.pattern, self.c)
        if plain:
            return _plain(sums, z, factor, values, None, None, *terms, None)
        valued = None
        if values is not None:  # which are their own features
            valued = Valued(values, torch.eye(self.c, dtype=values.dtype, device=values.device).unsqueeze(-1))
        return scored_attention(sums, z, (*terms, None), factor, valued)

    def both(self, plain: bool = False) -> tuple[Tensor, ...]:
        """The result and all gradients."""
        y, inputs = self.run(plain=plain), [t for t in self.tensors if t is not None]
        down = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
        return y.detach(), *torch.autograd.grad(y, inputs, down, materialize_grads=True)


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the calls of kernels were of gates."""
    found: list[bool] = []
    real = onepass.Attend.forward
    monkeypatch.setattr(onepass.Attend, "forward", lambda self, *a: (found.append(self.is_gate), real(self, *a))[1])
    return found


def check(case: Case, **tolerance: float) -> None:
    for found, expected in zip(case.both(), case.both(plain=True), strict=True):
        torch.testing.assert_close(found, expected, **tolerance)


def test_gates_and_twin_agree(calls: list[bool]) -> None:
    @settings(max_examples=80, deadline=None)
    @given(
        there=st.sets(st.sampled_from(NAMES)),
        c=st.sampled_from([4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 70]),
        activation=st.sampled_from(ACTIVATIONS),
        sizes=st.tuples(st.integers(1, 30), st.integers(1, 30), st.integers(0, 150)),
        seed=st.integers(0, 1000),
        listed=st.booleans(),
    )
    def run(**arguments: Any) -> None:
        calls.clear()
        check(Case(**arguments))
        assert calls == [True]  # else nothing is compared here

    run()


@pytest.mark.parametrize("c", [4, 16, 33])
def test_single_precision(c: int) -> None:
    check(Case(set(NAMES), c, sizes=(40, 40, 300), dtype=torch.float32), rtol=1e-4, atol=1e-4)


def test_any_number_of_threads_gives_the_same_bits() -> None:
    check_threads(Case(set(NAMES), 33, sizes=(500, 400, 20_000), dtype=torch.float32).both)


def test_gradients_that_are_asked_for_one_by_one() -> None:
    case = Case(set(NAMES))
    _, *together = case.both()
    for i, expected in enumerate(together):
        y = case.run([t if t is None or i == j else t.detach() for j, t in enumerate(case.tensors)])
        down = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
        one = case.tensors[i]
        assert one is not None
        torch.testing.assert_close(torch.autograd.grad(y, one, down)[0], expected)


def test_only_targets_learn() -> None:
    """Where nothing is wanted of the entries or the sources, there is no pass over these."""
    case = Case({"source", "target"})
    given = [t if t is None or name == "target" else t.detach() for t, name in zip(case.tensors, NAMES, strict=True)]
    target = case.tensors[4]
    assert target is not None
    mine, theirs = (torch.autograd.grad(case.run(given, plain).sum(), target)[0] for plain in (False, True))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.slow
def test_second_derivatives() -> None:
    case = Case(set(NAMES), 4, sizes=(2, 2, 3))
    inputs = [t for t in case.tensors if t is not None]
    assert torch.autograd.gradgradcheck(lambda *t: case.run(list(t)), inputs)


@pytest.mark.parametrize("c", [4, 8, 13])
def test_columns_of_wider_rows(c: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and terms that lie side by side are read where they are, and have gradients that do, too."""
    monkeypatch.setattr(onepass, "_WIDE", 0)
    case = Case({"source", "target"}, c, sizes=(6, 6, 20))
    expected, there = case.both(), [i for i, t in enumerate(case.tensors) if t is not None]
    assert [NAMES[i] for i in there] == ["z", "source", "target"]
    wide = torch.cat([torch.full((6, 1), math.nan), *(case.tensors[i].detach() for i in there)], 1)
    for i, t in zip(there, wide[:, 1:].split(c, 1), strict=True):
        case.tensors[i] = t.detach().requires_grad_()
    found = case.both()
    torch.testing.assert_close(found, expected)
    assert side_by_side(found[1:]) is not None


@pytest.mark.parametrize("c", [4, 8, 13])
def test_gates_of_the_very_rows_that_are_summed(c: int) -> None:
    case = Case({"source", "target", "factor"}, c)
    case.tensors[NAMES.index("source")] = case.tensors[0]
    check(case)


def test_factors_may_stand_anywhere() -> None:
    """One number for all channels, or numbers channel by channel."""
    case = Case({"factor", "source", "target"}, 9)
    for factor in (torch.randn(20, 1).double().expand(20, 9), torch.randn(9, 20).double().t()):
        case.tensors[1] = factor.requires_grad_()
        check(case)


def test_indices_out_of_range_reach_no_memory() -> None:
    case = Case({"source"})
    for wrong in (7, -1):
        case.pattern.by_target.other[3] = wrong
        with pytest.raises(ValueError, match="integers from 0 to 6"):
            case.run()


def test_values_of_other_sizes_are_refused() -> None:
    case = Case({"values"})
    values = case.tensors[2]
    assert values is not None
    case.tensors[2] = values.detach()[1:]
    with pytest.raises(ValueError, match="pass those of this pattern"):
        case.run()


def test_by_hand() -> None:
    """Two entries of one target, with weights 1/2 and, where a score is hidden, 0; and a target without any."""
    z = torch.tensor([[2.0], [4.0]]).expand(2, 4)
    pattern = Pattern(torch.tensor([0, 1]), torch.tensor([1, 1]), 2, 3)
    source = torch.tensor([[0.0], [-torch.inf]]).expand(2, 4)
    values = Valued(torch.full((2, 1), 6.0), torch.ones(4, 1, 1))
    sums = Sums(TermScores(torch.sigmoid), False, pattern, 4)
    y = scored_attention(sums, z, (source, None, None, None), None, values)
    assert y.tolist() == [[0.0] * 4, [4.0] * 4, [0.0] * 4]


@pytest.mark.parametrize("act", [nn.Sigmoid(), nn.Tanh(), nn.ELU()])
@pytest.mark.parametrize("R", [None, 3])
@pytest.mark.parametrize("root", [True, False])
def test_converted_layers(R: int | None, root: bool, act: nn.Module, calls: list[bool]) -> None:
    """As PyG's, with features of edges in another order than that of targets, all gradients included."""
    torch.manual_seed(0)
    theirs = ResGatedGraphConv((5, 6), 9, act=act, edge_dim=R, root_weight=root).double()
    mine = convert(theirs)
    edges = torch.randint(7, (2, 30))
    given = [torch.randn(8, 5), torch.randn(7, 6), *([] if R is None else [torch.randn(30, R)])]
    given = [t.double().requires_grad_() for t in given]
    results = []
    for layer in (theirs, mine, mine):
        y = layer(tuple(given[:2]), edges, *given[2:])
        results.append((y.detach(), *torch.autograd.grad(y.square().sum(), given)))
    for found in results[1:]:
        for a, b in zip(found, results[0], strict=True):
            torch.testing.assert_close(a, b)
    if isinstance(act, nn.Sigmoid):  # the kernels do not know others behind which hidden pairs are looked for
        assert calls
        assert all(calls)
