"""The compiled kernel for polynomials of a matrix: against the recurrence of dense matrices, and torch's operations."""

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from pyg_basisconv import backends, bases
from pyg_basisconv.bases import BoundBasis
from pyg_basisconv.kernels import recurrence
from pyg_basisconv.kernels.recurrence import polynomials

pytestmark = pytest.mark.skipif(recurrence.KERNELS is None, reason=backends()["compiled"])
DTYPES = (torch.float32, torch.float64)
Compressed = tuple[Tensor | None, Tensor, Tensor]


def matrix(N: int, E: int, seed: int, weighted: bool, dtype: torch.dtype) -> tuple[Compressed, Tensor]:
    """Entries by target, some of them of one place; and the same as a dense matrix, targets by sources."""
    generator = torch.Generator().manual_seed(seed)
    source, target = torch.randint(N, (2, E), generator=generator)
    target = target.sort().values
    weight = torch.randn(E, generator=generator).to(dtype) if weighted else None
    ptr = torch.nn.functional.pad(torch.bincount(target, minlength=N).cumsum(0), (1, 0)).int()
    dense = torch.zeros(N, N, dtype=torch.float64)
    for e in range(E):
        dense[target[e], source[e]] += 1.0 if weight is None else weight[e]
    return (weight, ptr, source.int()), dense


def members(dense: Tensor, K: int, a: float, c: float) -> list[Tensor]:
    """The polynomials, written out."""
    found = [torch.eye(len(dense), dtype=torch.float64), dense]
    while len(found) < K:
        found.append(a * dense @ found[-1] + c * found[-2])
    return found[:K]


@given(
    st.integers(1, 9),
    st.integers(0, 20),
    st.integers(1, 70),
    st.integers(2, 6),
    st.sampled_from([(1.0, 0.0), (2.0, -1.0), (0.5, 0.25)]),
    st.booleans(),
    st.sampled_from(DTYPES),
    st.integers(0, 99),
)
def test_they_are_those_of_the_recurrence(
    N: int, E: int, W: int, K: int, coefficients: tuple[float, float], weighted: bool, dtype: torch.dtype, seed: int
) -> None:
    S, dense = matrix(N, E, seed, weighted, dtype)
    family = members(dense / 3, K, *coefficients)  # smaller, so that high powers stay near 1
    S = (torch.full((E,), 1 / 3, dtype=dtype) if S[0] is None else S[0] / 3, *S[1:])
    generator = torch.Generator().manual_seed(seed)
    x, z = torch.randn(N, W, generator=generator).to(dtype), torch.randn(N, K * W, generator=generator).to(dtype)
    y, total = polynomials(x, S, K, *coefficients, False), polynomials(z, S, K, *coefficients, True)
    assert y is not None
    assert total is not None
    expected = torch.cat([p @ x.double() for p in family], 1)
    torch.testing.assert_close(y, expected.to(dtype), rtol=1e-4, atol=1e-4)
    expected = sum(p @ z_k.double() for p, z_k in zip(family, z.split(W, 1), strict=True))
    torch.testing.assert_close(total, expected.to(dtype), rtol=1e-4, atol=1e-4)


FAMILIES = {
    "powers": bases.Powers(4, bases.Adjacency()),
    "powers of weights": bases.Powers(3),
    "Chebyshev": bases.Chebyshev(4),
    "two": bases.Powers(2, bases.Adjacency("mean")),
}


def bound(name: str, dtype: torch.dtype = torch.float64) -> BoundBasis:
    generator = torch.Generator().manual_seed(0)
    return FAMILIES[name].bind(torch.randint(30, (2, 90), generator=generator), size=30, dtype=dtype)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("W", [1, 5, 8, 40])
def test_they_are_those_of_torch(name: str, dtype: torch.dtype, W: int, monkeypatch: pytest.MonkeyPatch) -> None:
    A = bound(name, dtype)
    x, z = torch.randn(30, W, dtype=dtype), torch.randn(30, A.K * W, dtype=dtype)
    compiled = A.expand_rows(x), A.combine_rows(z)
    with monkeypatch.context() as patch:
        patch.setattr(recurrence, "KERNELS", None)
        twin = A.expand_rows(x), A.combine_rows(z)
    for one, other in zip(compiled, twin, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_what_it_does_not_take() -> None:
    """Numbers of two bytes, integers of eight, other strides; and more numbers than pay."""
    A = bound("powers", torch.float32)
    S = A.operator.by_target
    x = torch.randn(30, 8)
    assert polynomials(x, S, 4, 1.0, 0.0, False) is not None
    half = x.bfloat16(), (None, *S[1:])
    wide = torch.randn(30, 8 << 12), S
    longs = x, (None, S[1].long(), S[2].long())
    turned = x.t().contiguous().t(), S
    odd = torch.randn(30, 77), S
    for given_x, given_S in (half, wide, longs, turned, odd):
        assert polynomials(given_x, given_S, 4, 1.0, 0.0, False) is None


@pytest.mark.parametrize(("W", "most"), [(1, 1 << 12), (8, 3 << 16)], ids=["of no vectors", "of vectors"])
def test_one_call_is_for_small_graphs(W: int, most: int) -> None:
    """Up to as many numbers, of nodes and of entries, as it was measured to be quicker."""
    for N, taken in ((most // W - 5, True), (most // W - 4, False)):
        index, ptr = torch.arange(5, dtype=torch.int32), torch.arange(N + 1, dtype=torch.int32).clamp(max=5)
        found = polynomials(torch.ones(N, W), (None, ptr, index), 2, 1.0, 0.0, False)
        assert (found is not None) == taken


@pytest.mark.parametrize("wrong", [-1, 5, 2**31 - 1])
@pytest.mark.parametrize("combines", [False, True])
def test_an_index_out_of_range_is_refused(wrong: int, combines: bool) -> None:
    ptr, index = torch.tensor([0, 1, 2, 2, 2, 2], dtype=torch.int32), torch.tensor([0, wrong], dtype=torch.int32)
    with pytest.raises(ValueError, match="indices from 0 to 4"):
        polynomials(torch.randn(5, 6), (None, ptr, index), 3, 1.0, 0.0, combines)


@pytest.mark.parametrize("ptr", [[0, 3, 2], [0, 1, 9], [-1, 1, 2]], ids=str)
def test_pointers_out_of_range_are_refused(ptr: list[int]) -> None:
    index = torch.tensor([0, 1], dtype=torch.int32)
    with pytest.raises(ValueError, match="pointers to 2 entries"):
        polynomials(torch.randn(2, 3), (None, torch.tensor(ptr, dtype=torch.int32), index), 3, 2.0, -1.0, False)


@pytest.mark.parametrize(
    "fault", [(-1, 2, 2, 3, 4), (3, -2, 2, 3, 4), (3, 2, -2, 3, 4), (3, 2, 2, 1, 4), (3, 2, 2, 3, 2)], ids=str
)
def test_sizes_that_do_not_fit_are_refused(fault: tuple[int, ...]) -> None:
    W, N, E, K, width = fault
    with pytest.raises(ValueError, match="polynomials: sizes"):
        recurrence.KERNELS.polynomials(0, 0, 0, 0, 0, W, N, E, K, 1.0, 0.0, width, False)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_trace_records_operations_of_torch() -> None:
    """And not memory that nothing writes to."""
    bound = bases.Chebyshev(3).bind(torch.tensor([[0, 1, 2, 4], [1, 2, 0, 3]]), size=5)
    first, second = torch.randn(2, 5, 8)
    traced = torch.jit.trace(bound.expand_rows, (first,), check_trace=False)
    torch.testing.assert_close(traced(second), bound.expand_rows(second))
