"""Features of entries that the compiled kernels map to values and keys, against the twin in torch's operations."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from pyg_basisconv.kernels import (
    EdgeProductScores,
    Pattern,
    ProductScores,
    ProjectedScores,
    Sums,
    TermScores,
    Valued,
    onepass,
    scored_attention,
)
from tests.kernels import test_compiled_attention
from tests.kernels.test_compiled_attention import check_threads, in_torch, in_torch_once

pytestmark = pytest.mark.skipif(onepass.KERNELS is None, reason="the compiled kernels were not built")

KINDS = ["terms", "hidden", "projected", "products", "keys", "keys and values"]


class Case(test_compiled_attention.Case):
    """An attention whose entries have F features, with values that are made of them, and keys."""

    def __init__(
        self,
        kind: str,
        c: int = 2,
        W: int = 3,
        D: int = 3,
        F: int = 4,
        normalised: bool = True,
        factors: bool = False,
        shared: bool = False,
        sizes: tuple[int, int, int] = (7, 5, 20),
        dtype: torch.dtype = torch.float64,
    ) -> None:
        M, N, E = sizes
        if kind == "projected":
            M = N
        self.c, self.normalised, self.kind = c, normalised, kind
        self.pattern = Pattern(torch.randint(M, (E,)), torch.randint(N, (E,)), M, N)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, dtype=torch.float64).to(dtype).requires_grad_()

        ends, self.scoring = [draw(M, c * D), draw(N, c * D)], ProductScores()
        self.terms: list[Tensor | None] = [*ends]
        self.features, self.map = draw(E, F), draw(1 if shared else c, F, W)
        if kind == "terms":
            self.scoring: Any = TermScores(nn.LeakyReLU(0.2))
            self.terms = [draw(M, c), draw(N, c), draw(E, c), None]
        elif kind == "hidden":
            self.scoring, self.terms = TermScores(torch.tanh), [*ends, draw(E, c * D), draw(c, D)]
        elif kind == "projected":
            self.scoring, self.terms = ProjectedScores(nn.LeakyReLU(0.2)), [draw(c, W), draw(c, W)]
        elif kind != "products":
            self.scoring, self.terms = EdgeProductScores(), [*ends, self.features, draw(c, F, D)]
        self.factor = draw(E, c) if factors else None
        self.z = draw(M, c * W)

    @property
    def inputs(self) -> list[Tensor]:
        own = [self.features, self.map] if self.kind != "keys" else []
        rest = [t for t in (self.factor, *self.terms) if t is not None and t is not self.features]
        return [self.z, *rest, *(own or [self.features])]

    def run(self, given: None = None) -> Tensor:
        valued = Valued(self.features, self.map.expand(self.c, -1, -1)) if self.kind != "keys" else None
        sums = Sums(self.scoring, self.normalised, self.pattern, self.c)
        return scored_attention(sums, self.z, self.terms, self.factor, valued)


def check(case: Case, **tolerance: float) -> None:
    seen: list[Any] = []
    with pytest.MonkeyPatch.context() as m:
        real = onepass.Attend.forward
        m.setattr(onepass.Attend, "forward", lambda self, *a: (seen.append(self.features), real(self, *a))[1])
        mine = case.both()
    assert len(seen) == 1  # else nothing is compared here
    assert seen[0] is not None
    for found, expected in zip(mine, in_torch(case), strict=True):
        torch.testing.assert_close(found, expected, **tolerance)


def check_one_by_one(case: Case) -> None:
    """Each gradient is the same where no other is asked for."""
    _, *together = case.both()
    for i, expected in enumerate(together):
        for j, t in enumerate(case.inputs):
            t.requires_grad_(i == j)
        y = case.run()
        down = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).to(y)
        torch.testing.assert_close(torch.autograd.grad(y, case.inputs[i], down)[0], expected)


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from(KINDS[:3] + KINDS[4:] + ["products"]),
    c=st.sampled_from([1, 2, 3, 4, 5, 8, 9, 16]),
    W=st.sampled_from([2, 3, 4, 7, 8, 9, 16, 20, 33]),
    D=st.sampled_from([1, 3, 4, 8, 11, 16]),
    F=st.sampled_from([1, 2, 4, 5, 8, 17]),
    normalised=st.booleans(),
    factors=st.booleans(),
    shared=st.booleans(),
    sizes=st.tuples(st.integers(1, 30), st.integers(1, 30), st.integers(0, 150)),
    known=st.sampled_from([0, onepass._KNOWN]),
    seed=st.integers(0, 1000),
)
def test_kernels_and_twin_agree(known: int, seed: int, **arguments: Any) -> None:
    torch.manual_seed(seed)
    with pytest.MonkeyPatch.context() as m:
        m.setattr(onepass, "_KNOWN", known)
        check(Case(**arguments))


@pytest.mark.parametrize("kind", KINDS)
def test_single_precision_of_many_entries(kind: str) -> None:
    """A target of many entries, too, in blocks whose largest score comes late."""
    torch.manual_seed(0)
    for sizes in ((40, 40, 300), (500, 1, 500)):
        case = Case(kind, c=8, W=8, D=8, factors=True, sizes=sizes, dtype=torch.float32)
        check(case, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_threads_gives_the_same_bits(kind: str) -> None:
    torch.manual_seed(0)
    check_threads(Case(kind, c=8, W=8, D=8, sizes=(500, 500, 20_000), dtype=torch.float32).both)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_that_are_asked_for_one_by_one(kind: str) -> None:
    check_one_by_one(Case(kind, factors=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sweep(2)
def test_second_derivatives(kind: str) -> None:
    case = Case(kind, sizes=(3, 3, 5))

    def call(*given: Tensor) -> Tensor:
        held = dict(zip(map(id, case.inputs), given, strict=True))
        put = [None if t is None else held[id(t)] for t in (case.z, case.features, case.factor, *case.terms)]
        valued = None
        if kind != "keys":
            valued = Valued(held[id(case.features)], held[id(case.map)].expand(case.c, -1, -1))
        return scored_attention(Sums(case.scoring, True, case.pattern, case.c), put[0], put[3:], put[2], valued)

    assert torch.autograd.gradgradcheck(call, case.inputs)


def test_features_of_keys_and_values_that_are_not_the_same() -> None:
    """No kernel reads two tables; torch's operations do."""
    case = Case("keys and values")
    case.features = torch.randn_like(case.features).requires_grad_()
    torch.testing.assert_close(case.run(), in_torch_once(case))


def test_maps_of_other_sizes_are_refused() -> None:
    for kind, name in (("terms", "map"), ("keys and values", "map")):
        case = Case(kind)
        setattr(case, name, torch.randn(2, 4, 5, dtype=torch.float64))
        with pytest.raises(ValueError, match="2 matrices of 4 x 3"):
            case.run()
    case = Case("terms")
    case.features = case.features.detach()[1:]
    with pytest.raises(ValueError, match="20 rows of 4"):
        case.run()


@pytest.mark.parametrize("wrong", ["features", "values", "keys"])
def test_wrong_calls_fail(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above can fail: kernels that are given something else do not pass it."""
    torch.manual_seed(0)
    case, real = Case("keys and values"), onepass.Attend._run
    check(case)

    def run(self: Any, *rest: Any) -> None:
        name = {"features": "features", "values": "to_values", "keys": "to_keys"}[wrong]
        kept = getattr(self, name)
        setattr(self, name, kept.flip(0))
        try:
            real(self, *rest)
        finally:
            setattr(self, name, kept)

    monkeypatch.setattr(onepass.Attend, "_run", run)
    with pytest.raises(AssertionError):
        check(case)


def test_by_hand() -> None:
    """Two entries of one target with scores that are equal: y is the mean of z + u V."""
    z, pattern = torch.tensor([[2.0, 0.0], [4.0, 0.0]]), Pattern(torch.tensor([0, 1]), torch.tensor([0, 0]), 2, 1)
    valued = Valued(torch.tensor([[1.0], [3.0]]), torch.tensor([[[10.0, 1.0]]]))
    y = scored_attention(Sums(TermScores(), True, pattern, 1), z, (torch.zeros(2, 1), None, None, None), None, valued)
    assert y.tolist() == [[23.0, 2.0]]
