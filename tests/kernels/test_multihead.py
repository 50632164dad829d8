"""The kernels of several heads, against loops over their entries."""

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from pyg_basisconv.kernels import Pattern, at_entries, attention, inner, multihead, softmax

M, N, W = 5, 4, 2
SOURCE, TARGET = torch.tensor([0, 4, 2, 2, 1, 0, 3, 2]), torch.tensor([3, 0, 0, 0, 3, 3, 1, 3])  # nothing enters 2
INFINITE = (0, 3)  # a head and an entry by target, whose score is minus infinity


def pattern() -> Pattern:
    return Pattern(SOURCE, TARGET, M, N)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def by_target() -> list[tuple[int, int, int]]:
    """The place, the source and the target of each entry, in the order of targets."""
    order = sorted(range(len(SOURCE)), key=lambda e: int(TARGET[e]))  # stable
    return [(place, int(SOURCE[e]), int(TARGET[e])) for place, e in enumerate(order)]


def expected(values: Tensor, factor: Tensor | None, z: Tensor, normalised: bool) -> Tensor:
    c = len(values)
    y = torch.zeros(c, N, W, dtype=torch.float64)
    for k in range(c):
        for n in range(N):
            into = [(e, m) for e, m, target in by_target() if target == n]
            weights = [values[k, e].item() for e, _ in into]
            if normalised:
                total = sum(math.exp(w) for w in weights)
                weights = [math.exp(w) / total if total else 0.0 for w in weights]
            for (e, m), w in zip(into, weights, strict=True):
                y[k, n] += w * (1 if factor is None else factor[k, e].item()) * z[k, m].detach()
    return y


@pytest.fixture(params=[1 << 20, 1], ids=["rows", "heads"])
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are gathered; where there are more, heads are taken one by one."""
    monkeypatch.setattr("pyg_basisconv.kernels.multihead.HELD", request.param)


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize(
    ("side_by_side", "normalised", "factors", "c"),
    [
        *((False, normalised, factors, 2) for normalised in (False, True) for factors in (False, True)),
        *((True, normalised, normalised, 2) for normalised in (False, True)),
        *((False, normalised, not normalised, 1) for normalised in (False, True)),
    ],
)
@pytest.mark.sweep(2)
def test_attention(side_by_side: bool, normalised: bool, factors: bool, c: int) -> None:
    E = len(SOURCE)
    values, factor, z = draw(c, E), draw(c, E) if factors else None, draw(c, M, W)

    def layout(t: Tensor) -> Tensor:
        return t.transpose(0, 1).contiguous().transpose(0, 1) if side_by_side else t

    def call(values: Tensor, z: Tensor, *factor: Tensor) -> Tensor:
        given = layout(factor[0]) if factor else None
        return attention(layout(values), given, layout(z), normalised, pattern())

    inputs = (values, z, factor) if factor is not None else (values, z)
    found = call(*inputs)
    torch.testing.assert_close(found, expected(values, factor, z, normalised))
    with torch.no_grad():
        torch.testing.assert_close(call(*inputs), found)
    assert gradcheck(call, inputs)
    assert gradgradcheck(call, inputs)


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("spread", [1, 100])
def test_infinite_scores(spread: float) -> None:
    """An entry, or all of a target, may be left out; scores may be far from each other."""
    values = (spread * draw(2, len(SOURCE))).detach()
    values[INFINITE] = -torch.inf
    alone = next(place for place, _, target in by_target() if target == 1)
    values[1, alone] = -torch.inf
    z = draw(2, M, W)
    values.requires_grad_()
    y = attention(values, None, z, True, pattern())
    torch.testing.assert_close(y, expected(values, None, z, True))
    for g in torch.autograd.grad(y.square().sum(), (values, z)):
        assert g.isfinite().all()


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("c", [1, 3])
def test_at_entries(c: int) -> None:
    source, target = draw(c, M), draw(c, N)
    found = at_entries(source, target, pattern())
    for e, m, n in by_target():
        torch.testing.assert_close(found[:, e], source[:, m] + target[:, n])
    torch.testing.assert_close(at_entries(source, None, pattern()), found - at_entries(None, target, pattern()))
    assert gradcheck(lambda *t: at_entries(*t, pattern()), (source, target))
    assert gradgradcheck(lambda *t: at_entries(*t, pattern()).square(), (source, target))


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("c", [1, 3])
@pytest.mark.sweep(1)
def test_inner(c: int) -> None:
    left, right = draw(c, M, W), draw(c, N, W)
    found = inner(left, right, pattern())
    for e, m, n in by_target():
        torch.testing.assert_close(found[:, e], (left[:, m] * right[:, n]).sum(-1))
    assert gradcheck(lambda *t: inner(*t, pattern()), (left, right))
    assert gradgradcheck(lambda *t: inner(*t, pattern()), (left, right))


@pytest.mark.parametrize("c", [1, 3])
@pytest.mark.parametrize("end", ["source", "target"])
def test_softmax(c: int, end: str) -> None:
    score, p = draw(c, len(SOURCE)), pattern()
    at = p.at_target if end == "target" else p.at_source
    found = softmax(score, at)
    for e, *ends in by_target():
        own = ends[end == "target"]
        among = [f for f, *others in by_target() if others[end == "target"] == own]
        torch.testing.assert_close(found[:, e], score[:, e].exp() / score[:, among].exp().sum(-1))
    assert gradcheck(lambda t: softmax(t, at), (score,))
    assert gradgradcheck(lambda t: softmax(t, at), (score,))


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    """Sums are taken in float32."""
    values, z = draw(3, len(SOURCE)).detach(), draw(3, M, W).detach().to(dtype)
    y = attention(values.float(), None, z, True, pattern())
    assert y.dtype == dtype
    torch.testing.assert_close(y, expected(values.float().double(), None, z.double(), True).to(dtype))


@pytest.mark.parametrize("held", [31, 32])
def test_rows_of_all_entries_are_held_where_they_are_few(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here 8 x 4 numbers, for two heads of two channels."""
    monkeypatch.setattr(multihead, "HELD", held)
    gathered, select = [], Tensor.index_select
    monkeypatch.setattr(Tensor, "index_select", lambda t, *at: gathered.append(select(t, *at)) or gathered[-1])
    p, c = pattern(), 2
    left, right, weight = draw(M, c * W).detach(), draw(N, c * W).detach(), draw(len(SOURCE), c).detach()
    sums, back = torch.zeros(N, c * W).double(), torch.zeros(M, c * W).double()
    products = torch.zeros(len(SOURCE), c).double()
    for e, m, n in by_target():
        sums[n] += left[m] * weight[e].repeat_interleave(W)
        back[m] += right[n] * weight[e].repeat_interleave(W)
        products[e] = (left[m] * right[n]).view(c, W).sum(1)
    for found, expected in (
        (lambda: multihead.weighted_sums(left, weight, *p.one_way), sums),
        (lambda: multihead.transposed_sums(right, weight, p), back),
        (lambda: multihead.inner_products(left, right, c, p), products),
    ):
        gathered.clear()
        torch.testing.assert_close(found(), expected)
        assert any(t.numel() == 32 for t in gathered) == (held == 32)
