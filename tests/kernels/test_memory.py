"""Memory for what kernels write."""

import mmap
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pyg_basisconv.kernels.memory import room

SMAPS = Path("/proc/self/smaps")


def flags_at(address: int) -> list[str]:
    """What Linux notes of the memory at an address."""
    inside = False
    for line in SMAPS.read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            start, end = (int(part, 16) for part in first.split("-"))
            inside = start <= address < end
        elif inside and first == "VmFlags:":
            return rest
    raise AssertionError(f"no memory at {address:x}")


@pytest.mark.parametrize("shape", [(3, 5), (0, 4), (40_001, 63)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_tensor_like_another(shape: tuple[int, int], dtype: torch.dtype) -> None:
    like = torch.ones(2, dtype=dtype)
    found = room(like, *shape)
    assert (tuple(found.shape), found.dtype, found.is_contiguous()) == (shape, dtype, True)
    assert found.fill_(1).double().sum() == shape[0] * shape[1]


@pytest.mark.skipif(sys.platform != "linux" or not SMAPS.exists(), reason="of Linux alone")
def test_large_ones_are_in_huge_pages_if_there_are_any() -> None:
    def middle(t: Tensor) -> int:
        return t.data_ptr() + t.nbytes // 2

    # Memory that nobody had before: what torch.empty gives may have been room that was given back.
    new = mmap.mmap(-1, 24_000_000, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    large, plain = room(torch.ones(1), 6_000_000), torch.frombuffer(new, dtype=torch.float32)
    if not Path("/sys/kernel/mm/transparent_hugepage/enabled").exists():
        pytest.skip("this Linux has no huge pages on demand")
    assert "hg" in flags_at(middle(large))
    assert "hg" not in flags_at(middle(plain))
