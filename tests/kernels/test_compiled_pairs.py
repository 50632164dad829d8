"""Attention between all pairs by compiled kernels, against plain loops: results, gradients, second derivatives."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from pyg_basisconv import convert
from pyg_basisconv.kernels import all_pairs
from pyg_basisconv.kernels.all_pairs import pair_rows
from pyg_basisconv.kernels.onepass import KERNELS
from tests.kernels.test_compiled_attention import check_threads

pytestmark = pytest.mark.skipif(KERNELS is None, reason="the kernels are not built")


def loops(query: Tensor, key: Tensor, value: Tensor, K: int, causal: bool) -> tuple[Tensor, Tensor]:
    """The definition, target by target."""
    sequences, weights = [], []
    for q, k, v in zip(query, key, value, strict=True):
        of_heads, own = [], []
        for qh, kh, vh in zip(q.chunk(K, -1), k.chunk(K, -1), v.chunk(K, -1), strict=True):
            rows = []
            for n in range(len(qh)):
                seen = n + 1 if causal else len(kh)
                e = torch.stack([(qh[n] * kh[m]).sum() for m in range(seen)]).exp()
                rows.append(torch.cat([e / e.sum(), e.new_zeros(len(kh) - seen)]))
            own.append(torch.stack(rows))
            of_heads.append(own[-1] @ vh)
        sequences.append(torch.cat(of_heads, -1))
        weights.append(torch.stack(own))
    return torch.stack(sequences), torch.stack(weights)


def sides(B: int, N: int, M: int, K: int, d: int, D: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
    """A query, a key and a value, parts of wider rows as those of joined maps are."""
    torch.manual_seed(seed)
    widths = ((N, K * d), (M, K * d), (M, K * D))
    return [torch.randn(B, rows, width + 3, dtype=dtype)[..., 2:-1].detach().requires_grad_() for rows, width in widths]


def both(run: Any, leaves: list[Tensor]) -> list[Tensor]:
    """The results, and the gradients by the sums, by the weights, and by both."""
    found = list(run(*leaves))
    down = [torch.linspace(-1, 2, t.numel(), dtype=t.dtype).view(t.shape) for t in found]
    for some in ([0], [1], [0, 1]):
        wanted, given = [found[i] for i in some], [down[i] for i in some]
        grads = torch.autograd.grad(wanted, leaves, given, retain_graph=True, materialize_grads=True, allow_unused=True)
        found += grads
    return [t.detach() for t in found]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that were called."""
    found: list[str] = []
    real = all_pairs._call
    monkeypatch.setattr(all_pairs, "_call", lambda name, *rest: (found.append(name), real(name, *rest))[1])
    return found


def test_kernel_and_loops_agree(calls: list[str]) -> None:
    @settings(max_examples=40, deadline=None)
    @given(
        sizes=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 35), st.integers(1, 3)),
        widths=st.tuples(st.integers(1, 18), st.integers(1, 18)),
        causal=st.booleans(),
        seed=st.integers(0, 99),
    )
    def check(sizes: tuple[int, ...], widths: tuple[int, int], causal: bool, seed: int) -> None:
        B, N, M, K = sizes
        leaves = sides(B, N, N if causal else M, K, *widths, seed=seed)
        before = len(calls)
        found = both(lambda *t: pair_rows(*t, K, causal, True), leaves)
        assert calls[before:] == ["pair_forward", *["pair_backward"] * 3]
        expected = both(lambda *t: loops(*t, K, causal), leaves)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)
        with torch.no_grad():
            y, weight = pair_rows(*leaves, K, causal)
        assert torch.equal(y, found[0])
        assert weight is None

    check()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.sweep(1)
def test_in_float32(causal: bool) -> None:
    leaves = sides(2, 33, 33, 3, 5, 8, torch.float32)
    found = both(lambda *t: pair_rows(*t, 3, causal, True), leaves)
    exact = both(lambda *t: loops(*t, 3, causal), [t.detach().double().requires_grad_() for t in leaves])
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=2e-5)


def test_large_scores_and_what_is_not_finite() -> None:
    query, key, value = (t.detach() for t in sides(1, 4, 20, 2, 3, 3))
    y, weight = pair_rows(1e4 * query, key, value, 2, False, True)
    assert y.isfinite().all()
    torch.testing.assert_close(weight.sum(-1), torch.ones(1, 2, 4, dtype=torch.float64))
    query[0, 1, 0] = math.nan
    y, weight = pair_rows(query, key, value, 2, False, True)
    assert weight[0, 0, 1].isnan().all()
    assert y[0, 1, :3].isnan().all()
    assert y[0, 0].isfinite().all()
    assert y[0, 1, 3:].isfinite().all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.sweep(1)
def test_derivatives(causal: bool) -> None:
    leaves = sides(1, 3, 3, 2, 2, 1)
    assert torch.autograd.gradcheck(lambda *t: pair_rows(*t, 2, causal, True), leaves)
    assert torch.autograd.gradgradcheck(lambda *t: pair_rows(*t, 2, causal, True), leaves)


@pytest.mark.parametrize("weighted", [False, True])
def test_several_gradients_at_once(weighted: bool) -> None:
    """By the vmap of `torch.autograd.grad(is_grads_batched=True)`, whose tensors have no memory to be pointed to."""
    leaves = sides(2, 4, 5, 2, 3, 2)
    ends = [t for t in pair_rows(*leaves, 2, False, weighted) if t is not None]
    torch.manual_seed(1)
    down = [torch.randn(3, *t.shape, dtype=t.dtype) for t in ends]
    found = torch.autograd.grad(ends, leaves, down, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(ends, leaves, some, retain_graph=True) for some in zip(*down, strict=True)]
    for mine, *theirs in zip(found, *one_by_one, strict=True):
        torch.testing.assert_close(mine, torch.stack(theirs))


def test_threads() -> None:
    leaves = sides(4, 40, 70, 6, 9, 11, torch.float32)
    check_threads(lambda: both(lambda *t: pair_rows(*t, 6, False, True), leaves))


@pytest.mark.parametrize("others", ["half", "wide", "weighed"])
def test_what_the_kernel_leaves(others: str, calls: list[str]) -> None:
    """Narrow numbers and wide heads are the vendor's."""
    leaves = sides(2, 4, 5, 1, 70 if others == "wide" else 3, 2, torch.bfloat16 if others == "half" else torch.float64)
    y, weight = pair_rows(*leaves, 1, False, others == "weighed", p=0.0)
    expected = loops(*(t.double() for t in leaves), 1, False)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if others == "half" else {}
    torch.testing.assert_close(y.double(), expected[0], **tolerance)
    assert (weight is not None) == (others == "weighed") == bool(calls)


@pytest.mark.parametrize("weights", [False, True])
def test_of_torch(weights: bool, calls: list[str]) -> None:
    torch.manual_seed(0)
    peer = nn.MultiheadAttention(12, 3, batch_first=True).double()
    layer, x = convert(peer), torch.randn(2, 7, 12, dtype=torch.float64)
    for _ in range(3):  # the first call, and programs
        calls.clear()
        given = [x.clone().requires_grad_() for _ in range(2)]
        found, expected = (one(t, t, t, need_weights=weights) for one, t in zip((layer, peer), given, strict=True))
        for y, other in zip(found, expected, strict=True):
            torch.testing.assert_close(y, other)
        for y in (found, expected):
            (y[0].sin().sum() + (y[1].cos().sum() if weights else 0)).backward()
        torch.testing.assert_close(given[0].grad, given[1].grad)
        assert calls == ["pair_forward", "pair_backward"]


@pytest.mark.parametrize("which", [(0, 0, 0), (0, 1, 1), (0, 0, 1), (0, 1, 2)], ids=str)
def test_nothing_is_projected_in_vain(which: tuple[int, ...]) -> None:
    """The values are joined with what else is made of the same features, and only with that."""
    peer = nn.MultiheadAttention(12, 3, batch_first=True)
    sequences = [torch.ones(2, 5, 12) for _ in range(3)]
    given = [sequences[i] for i in which]
    counts = []
    for layer in (convert(peer), peer):
        with FlopCounterMode(display=False) as counter:
            layer(*given)
        counts.append(counter.get_total_flops())
    assert counts[0] <= counts[1]
