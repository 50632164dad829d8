"""The compiled product of a sparse matrix with a dense one, in double precision: against loops, and torch's own."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from pyg_basisconv import backends
from pyg_basisconv.kernels import products
from pyg_basisconv.kernels.products import spmm_rows

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
    real = products._compiled
    monkeypatch.setattr(products, "_compiled", lambda *args: (calls.append(None), real(*args))[1])
    return calls


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 40), st.integers(1, 70), st.integers(0, 99), st.booleans())
def test_sums_are_those_of_loops(N: int, M: int, E: int, W: int, seed: int, weighted: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(M, W, dtype=torch.float64, generator=generator)
    weight = torch.randn(E, dtype=torch.float64, generator=generator) if weighted else None
    ptr, index = compressed(N, M, E, seed)
    with pytest.MonkeyPatch.context() as patch:
        calls = taken(patch)
        found = spmm_rows(x, weight, ptr, index)
        assert calls
        patch.setattr(products, "KERNELS", None)
        twin = spmm_rows(x, weight, ptr, index)
    torch.testing.assert_close(found, by_loops(x, weight, ptr, index), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(found, twin, rtol=1e-13, atol=1e-13)


def test_threads_change_no_bit() -> None:
    x, (ptr, index) = torch.randn(500, 40, dtype=torch.float64), compressed(500, 500, 20_000, 0)
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


@pytest.mark.parametrize("wrong", [-1, 5, 2**31 - 1])
def test_an_index_out_of_range_is_refused(wrong: int) -> None:
    ptr, index = torch.tensor([0, 1, 2], dtype=torch.int32), torch.tensor([0, wrong], dtype=torch.int32)
    with pytest.raises(ValueError, match="indices from 0 to 4"):
        spmm_rows(torch.randn(5, 3, dtype=torch.float64), None, ptr, index)


@pytest.mark.parametrize("ptr", [[0, 3, 2], [0, 1, 9], [-1, 1, 2]], ids=str)
def test_pointers_out_of_range_are_refused(ptr: list[int]) -> None:
    index = torch.tensor([0, 1], dtype=torch.int32)
    with pytest.raises(ValueError, match="pointers to 2 entries"):
        spmm_rows(torch.randn(5, 3, dtype=torch.float64), None, torch.tensor(ptr, dtype=torch.int32), index)


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
