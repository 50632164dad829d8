"""The compiled product of a sparse matrix with a dense one: against loops, and torch's own."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from pyg_basisconv import backends
from pyg_basisconv.kernels import products
from pyg_basisconv.kernels.products import plain_spmm, rows_of, spmm_rows

pytestmark = pytest.mark.skipif(products.KERNELS is None, reason=backends()["compiled"])


def compressed(N: int, M: int, E: int, seed: int) -> tuple[Tensor, Tensor]:
    """Some targets have no entries, one of them has half of all."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.where(torch.rand(E, generator=generator) < 0.5, 0, torch.randint(N, (E,), generator=generator))
    ptr = torch.nn.functional.pad(torch.bincount(target, minlength=N).cumsum(0), (1, 0)).int()
    return ptr, torch.randint(M, (E,), generator=generator).int()


def by_loops(x: Tensor, weight: Tensor | None, ptr: Tensor, index: Tensor) -> Tensor:
    y = torch.zeros(ptr.numel() - 1, x.shape[1], dtype=x.dtype)
    for n in range(len(y)):
        for e in range(int(ptr[n]), int(ptr[n + 1])):
            y[n] += x[int(index[e])] * (1 if weight is None else weight[e])
    return y


def taken(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One for each call that the kernel takes from now on."""
    calls: list[None] = []
    real = products.KERNELS.spmm
    counting = SimpleNamespace(spmm=lambda *args: (calls.append(None), real(*args))[1])
    monkeypatch.setattr(products, "KERNELS", counting)
    return calls


of_every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
sizes = st.integers(1, 9)


@of_every_dtype
@given(N=sizes, M=sizes, E=st.integers(1, 40), W=st.integers(1, 290), seed=st.integers(0, 99), weighted=st.booleans())
def test_sums_are_those_of_loops(dtype: torch.dtype, N: int, M: int, E: int, W: int, seed: int, weighted: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(M, W, dtype=torch.float64, generator=generator)
    weight = torch.randn(E, dtype=torch.float64, generator=generator) if weighted else None
    given_weight = None if weight is None else weight.to(dtype)
    ptr, index = compressed(N, M, E, seed)
    with pytest.MonkeyPatch.context() as patch:
        calls = taken(patch)
        found = spmm_rows(x.to(dtype), given_weight, ptr, index)
        assert len(calls) == (dtype == torch.float64 or W % 4 == 0 or W in (1, 2))
        patch.setattr(products, "KERNELS", None)
        twin = spmm_rows(x.to(dtype), given_weight, ptr, index)
    near = {"rtol": 1e-13, "atol": 1e-13} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(found.double(), by_loops(x, weight, ptr, index), **near)
    torch.testing.assert_close(found, twin, **near)


@pytest.mark.parametrize(
    ("E", "W", "takes"),
    [(4096, 12, True), (4096, 6, False), (4097, 12, False), (4097, 16, True), (4097, 32, False), (4097, 1, True)],
)
def test_large_graphs_with_wide_rows_go_by_torch(E: int, W: int, takes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, (ptr, index) = taken(monkeypatch), compressed(50, 60, E, 4)
    x = torch.randn(60, W, generator=torch.Generator().manual_seed(5))
    found = spmm_rows(x, None, ptr, index)
    assert bool(calls) == takes
    expected = plain_spmm(x.double(), None, index.long(), rows_of(ptr, index), 50)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-3)


@of_every_dtype
@pytest.mark.parametrize("kernels", [True, False], ids=["by the kernel", "by torch"])
@pytest.mark.parametrize("W", [3, 8])
def test_rows_are_split_and_joined(W: int, kernels: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernels:
        monkeypatch.setattr(products, "KERNELS", None)
    (ptr, index), generator = compressed(6, 8, 30, 1), torch.Generator().manual_seed(2)
    x = torch.randn(4, 2 * W, dtype=torch.float64, generator=generator)
    expected = by_loops(x.view(8, W), None, ptr, index)
    found = spmm_rows(x.to(dtype), None, ptr, index, split=2, join=3)
    torch.testing.assert_close(found, expected.view(2, 3 * W).to(dtype), rtol=1e-5, atol=1e-5)
    nothing = torch.zeros(7, dtype=torch.int32)
    assert spmm_rows(x, None, nothing, index[:0], split=2, join=3).equal(torch.zeros(2, 3 * W, dtype=torch.float64))


@of_every_dtype
@pytest.mark.parametrize("W", [1, 16, 300])
def test_threads_change_no_bit(W: int, dtype: torch.dtype) -> None:
    """Although one target has half of all entries, and there may be more runs than targets."""
    x, (ptr, index) = torch.randn(500, W, dtype=dtype), compressed(500, 500, 20_000, 0)
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            found.append(spmm_rows(x, None, ptr, index))
    finally:
        torch.set_num_threads(threads)
    with ThreadPoolExecutor(4) as pool:
        found += pool.map(lambda _: spmm_rows(x, None, ptr, index), range(8))
    assert all(torch.equal(found[0], other) for other in found)
    wide = x.double()
    torch.testing.assert_close(
        found[0].double(), plain_spmm(wide, None, index.long(), rows_of(ptr, index), 500), rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize("wrong", [-1, 5, 2**31 - 1])
@pytest.mark.parametrize("W", [1, 3, 16])
def test_an_index_out_of_range_is_refused(W: int, wrong: int) -> None:
    ptr, index = torch.tensor([0, 1, 2], dtype=torch.int32), torch.tensor([0, wrong], dtype=torch.int32)
    with pytest.raises(ValueError, match="indices from 0 to 4"):
        spmm_rows(torch.randn(5, W, dtype=torch.float64), None, ptr, index)


@pytest.mark.parametrize("ptr", [[0, 3, 2], [0, 1, 9], [-1, 1, 2]], ids=str)
@pytest.mark.parametrize("W", [1, 3, 16])
def test_pointers_out_of_range_are_refused(W: int, ptr: list[int]) -> None:
    index = torch.tensor([0, 1], dtype=torch.int32)
    with pytest.raises(ValueError, match="pointers to 2 entries"):
        spmm_rows(torch.randn(5, W, dtype=torch.float64), None, torch.tensor(ptr, dtype=torch.int32), index)


@pytest.mark.parametrize("wrong", [-5, 20_001], ids=str)
@pytest.mark.parametrize("target", [0, 1, 137, 250, 499, 500])
def test_pointers_are_checked_on_several_threads(target: int, wrong: int) -> None:
    ptr = torch.arange(0, 20_040, 40, dtype=torch.int32)
    ptr[target], threads = wrong, torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with pytest.raises(ValueError, match="pointers to 20000 entries"):
            spmm_rows(torch.randn(500, 16), None, ptr, torch.zeros(20_000, dtype=torch.int32))
    finally:
        torch.set_num_threads(threads)


@of_every_dtype
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_trace_records_operations_of_torch(dtype: torch.dtype) -> None:
    """And not memory that nothing writes to."""
    ptr, index = compressed(6, 8, 30, 1)
    first, second = torch.randn(2, 8, 4, dtype=dtype)
    traced = torch.jit.trace(lambda x: spmm_rows(x, None, ptr, index), (first,), check_trace=False)
    torch.testing.assert_close(traced(second), spmm_rows(second, None, ptr, index))


@of_every_dtype
def test_weights_of_other_sizes_reach_no_kernel(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, (ptr, index) = taken(monkeypatch), compressed(6, 8, 30, 1)
    with pytest.raises(ValueError, match="weight: expected a number for each of 30 entries, got 29"):
        spmm_rows(torch.randn(8, 4, dtype=dtype), torch.ones(29, dtype=dtype), ptr, index)
    assert not calls


def test_what_it_does_not_take_goes_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are no plain tensors in a row, and integers of 64 bits."""
    calls = taken(monkeypatch)
    x, (ptr, index) = torch.randn(8, 6, dtype=torch.float64), compressed(5, 8, 20, 3)
    weight = torch.randn(40, dtype=torch.float64)[::2]
    expected = by_loops(x, weight, ptr, index)
    torch.testing.assert_close(spmm_rows(x, weight, ptr, index), expected, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(spmm_rows(x, weight.clone(), ptr.long(), index.long()), expected, rtol=1e-13, atol=1e-13)
    assert not calls
    turned = x.t().contiguous().t()
    torch.testing.assert_close(spmm_rows(turned, weight.clone(), ptr, index), expected, rtol=1e-13, atol=1e-13)
    assert calls
