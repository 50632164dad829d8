"""The compiled fingerprint: equal for equal bytes, and another one whatever is changed; and what is known by it."""

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from pyg_basisconv import backends, cache
from pyg_basisconv.backend import KERNELS
from pyg_basisconv.cache import Witness

compiled = pytest.mark.skipif(KERNELS is None, reason=backends()["compiled"])
SIZES = st.one_of(st.integers(1, 300), st.sampled_from([1023, 1024, 1025, 65_536, 65_537, 70_000, 4_200_000]))


def fingerprint(t: Tensor) -> tuple[int, int]:
    found = cache._fingerprint(t)
    assert found is not None
    return found


@compiled
@given(SIZES, st.integers(0, 2**31), st.integers(0, 7), st.integers(0, 9))
def test_one_bit_anywhere_changes_it(size: int, place: int, bit: int, offset: int) -> None:
    t = torch.arange(size + offset).to(torch.uint8)[offset:]  # at any address
    before = fingerprint(t)
    assert fingerprint(t.clone()) == before
    t[place % size] ^= 1 << bit
    assert fingerprint(t) != before


@compiled
@given(st.integers(2, 70_000), st.integers(0, 2**31), st.integers(1, 2**31))
def test_exchanged_numbers_change_it(size: int, place: int, other: int) -> None:
    t = torch.arange(float(size))
    before, (i, j) = fingerprint(t), (place % size, (place + 1 + other % (size - 1)) % size)
    t[[i, j]] = t[[j, i]]
    assert fingerprint(t) != before


@compiled
def test_no_two_of_many_coincide() -> None:
    numbers = torch.eye(3000)
    assert len({fingerprint(row) for row in numbers} | {fingerprint(2 * row) for row in numbers}) == 6000


@compiled
def test_no_bytes_have_one() -> None:
    assert fingerprint(torch.empty(0)) == fingerprint(torch.empty(0, 3))
    with pytest.raises(ValueError, match="fingerprint: no bytes at this address"):
        KERNELS.fingerprint(0, 8)


MADE = {
    "a tensor": lambda: torch.randn(50, 7),
    "a view of some columns": lambda: torch.randn(50, 7)[:, 2:5],
    "its transpose": lambda: torch.randn(50, 7).t(),
    "a tensor with its sign turned lazily": lambda: torch.randn(50, 7, dtype=torch.complex64).conj().imag,
    "double precision": lambda: torch.randn(50, 7, dtype=torch.float64),
    "half precision": lambda: torch.randn(50, 7).bfloat16(),
    "a parameter": lambda: torch.nn.Parameter(torch.randn(50, 7)),
    "a single number": lambda: torch.randn(()),
}


KERNELS_OR_NOT = [pytest.param(KERNELS, marks=compiled, id="compiled"), pytest.param(None, id="torch")]


@pytest.mark.parametrize("kernels", KERNELS_OR_NOT)
@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_a_witness_sees_uncounted_writes(kernels: object, make: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "KERNELS", kernels)
    t = make()  # type: ignore[operator]
    witness, version = Witness([t]), t._version
    assert witness.agrees([t])
    t.data.view(-1)[-1:].mul_(1.5) if t.is_contiguous() else t.data[-1:].mul_(1.5)
    assert t._version == version
    assert not witness.agrees([t])


def test_a_witness_tells_a_tensor_from_its_negative() -> None:
    """Two views of the same memory, in the same place."""
    t = torch.randn(5, dtype=torch.complex64)
    plain, turned = t.imag, t.conj().imag
    assert cache.place(plain) == cache.place(turned)
    assert not Witness([plain]).agrees([turned])
    assert not Witness([turned]).agrees([plain])
