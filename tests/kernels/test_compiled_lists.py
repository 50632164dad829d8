"""The compiled kernels for lists of entries, against the same in numpy; and what they are asked that no array holds."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from pyg_basisconv import backends
from pyg_basisconv.kernels import lists, pattern
from pyg_basisconv.kernels.lists import List
from pyg_basisconv.kernels.pattern import Pattern

KERNELS = lists.KERNELS
pytestmark = pytest.mark.skipif(KERNELS is None, reason=backends()["compiled"])
DTYPES = (torch.float32, torch.float64)
NORMS = ("mean", "rw", "sym", "ends")


def both(function: Callable[[], Any]) -> tuple[Any, Any]:
    """What the compiled kernel gives, and what its twin does."""
    compiled = function()
    with pytest.MonkeyPatch.context() as patch:
        for module in (lists, pattern):
            patch.setattr(module, "KERNELS", None)
        return compiled, function()


def check_same(compiled: Any, twin: Any) -> None:
    if isinstance(twin, tuple):
        for one, other in zip(compiled, twin, strict=True):
            check_same(one, other)
    elif isinstance(twin, Tensor | np.ndarray):
        one, other = np.asarray(compiled), np.asarray(twin)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_allclose(one, other, rtol=1e-6)
    else:
        assert compiled is twin or compiled == twin


@st.composite
def edges(draw: st.DrawFn) -> tuple[List, int, int]:
    """Edges of K kinds among N nodes."""
    N, K, E = draw(st.integers(1, 7)), draw(st.integers(1, 3)), draw(st.integers(0, 16))
    source, target = (draw(st.lists(st.integers(0, N - 1), min_size=E, max_size=E)) for _ in range(2))
    kind = draw(st.lists(st.integers(0, K - 1), min_size=E, max_size=E))
    return List(*(np.array(column, np.int32) for column in (kind, source, target)), None), N, K


@given(edges(), st.sampled_from([np.int64, np.int32]), st.integers(-2, 2))
def test_ends_are_narrowed(given_edges: tuple[List, int, int], dtype: Any, off: int) -> None:
    """Ends that are no numbers of N places are found, and none else."""
    edges, N, _ = given_edges
    ends = torch.from_numpy(np.stack([edges.source + off, edges.target]).astype(dtype))
    compiled, twin = both(lambda: lists.narrow(ends, (N, N)))
    check_same(compiled, twin)
    wrong = any(not 0 <= m < N for m in ends[0].tolist())
    assert (compiled is None) == wrong
    check_same(*both(lambda: lists.narrow(ends.flip(0), (N, N))))
    check_same(compiled, lists.narrow(ends.t().contiguous().t(), (N, N)))  # not one row after the other
    check_same(compiled, lists.narrow((ends[0], ends[1]), (N, N)))


@given(edges(), st.sampled_from(DTYPES))
def test_weights_are_those_of_numpy(given_edges: tuple[List, int, int], dtype: torch.dtype) -> None:
    edges, N, K = given_edges
    one = edges._replace(kind=0)
    check_same(*both(lambda: lists.looped(one, N)))
    for norm in NORMS:
        check_same(*both(lambda norm=norm: lists.over_degrees(one, 1, (N, N), norm, dtype)))
        check_same(*both(lambda norm=norm: lists.over_degrees(edges, K, (N, N), norm, dtype)))
    for norm in (None, "sym", "rw"):
        check_same(*both(lambda norm=norm: lists.laplacian(one, N, norm, dtype)))


@given(edges(), st.sampled_from(DTYPES), st.sampled_from(["source", "target"]), st.booleans())
def test_entries_are_grouped_in_their_order(
    given_edges: tuple[List, int, int], dtype: torch.dtype, members: str, of_ones: bool
) -> None:
    edges, N, K = given_edges
    weight = np.arange(1, edges.source.size + 1).astype(str(dtype).removeprefix("torch."))
    some = [edges if of_ones else edges._replace(weight=weight), lists.looped(edges._replace(kind=K), N)]
    for parts in (some, some[:1], some[::-1]):
        check_same(*both(lambda parts=parts: lists.compressed(parts, K + 1, (N, N), members, dtype)))


@given(edges(), st.sampled_from(DTYPES), st.booleans())
def test_entries_are_paired(given_edges: tuple[List, int, int], dtype: torch.dtype, of_ones: bool) -> None:
    """As numpy does it; and as the definition says, pair by pair."""
    edges, N, K = given_edges
    weight = np.arange(1, edges.source.size + 1).astype(str(dtype).removeprefix("torch."))
    some = [edges if of_ones else edges._replace(weight=weight), lists.looped(edges._replace(kind=K), N)]
    for parts in (some, some[1:], some[::-1]):
        compiled, twin = both(lambda parts=parts: lists.paired(parts, K + 1, (N, N), dtype))
        check_same(compiled, twin)
        entries, targets, counts = twin
        members = np.repeat(np.arange(K + 1), counts)
        pairs = list(zip(members.tolist(), targets.tolist(), strict=True))
        columns = [(np.broadcast_to(e.kind, e.target.shape).tolist(), e.target.tolist()) for e in parts]
        reached = [pair for column in columns for pair in zip(*column, strict=True)]
        assert pairs == sorted(set(reached))
        assert [pairs[p] for p in entries.target] == reached
        assert entries.source.tolist() == [m for e in parts for m in e.source.tolist()]


@given(edges(), st.sampled_from(["as they come", "by source", "by target"]))
def test_patterns_are_those_of_numpy(given_edges: tuple[List, int, int], order: str) -> None:
    edges, N, _ = given_edges
    source, target = (torch.from_numpy(end.copy()) for end in (edges.source, edges.target))
    if order != "as they come":
        places = (source if order == "by source" else target).argsort(stable=True)
        source, target = source[places], target[places]

    def found() -> tuple[Any, ...]:
        made = Pattern(source, target, N, N)
        return tuple(made.by_target), tuple(made.by_source), *made.both_ways_and_across, made.as_given

    check_same(*both(found))


ONES = np.zeros(2, np.int32)
FLOATS = np.zeros(2, np.float32)
HERE = ONES.ctypes.data, ONES.ctypes.data
ENTRIES = List(0, ONES, ONES, None)
FAULTS = {
    "narrow into fewer": (ValueError, "narrow", (*HERE, 2, 4, 3, 3, np.empty(3, np.int32))),
    "narrow into 64 bits": (ValueError, "narrow", (*HERE, 2, 4, 3, 3, np.empty(4, np.int64))),
    "narrow into every other": (ValueError, "narrow", (*HERE, 2, 4, 3, 3, np.empty(8, np.int32)[::2])),
    "narrow of three": (ValueError, "narrow", (*HERE, 2)),
    "narrow of what is no address": (TypeError, "narrow", (ONES, HERE[1], 2, 4, 3, 3, np.empty(4, np.int32))),
    "narrow of fewer than none": (ValueError, "narrow", (*HERE, -2, 4, 3, 3, np.empty(4, np.int32))),
    "looped into too few": (ValueError, "looped", (ONES, ONES, 3, ONES.copy(), ONES.copy())),
    "looped of other lengths": (ValueError, "looped", (ONES, ONES[:1].copy(), 0, ONES.copy(), ONES.copy())),
    "weights of integers": (ValueError, "over_degrees", (None, 1, ONES, ONES, 3, 3, "rw", ONES.copy())),
    "roots of two sizes": (ValueError, "over_degrees", (None, 1, ONES, ONES, 3, 4, "sym", FLOATS.copy())),
    "a short pointer": (ValueError, "compressed", ([List(0, ONES, ONES, None)], 1, True, 3, 3, ONES, ONES, None)),
    "too many members": (
        ValueError,
        "compressed",
        ([List(0, ONES, ONES, None)], 1 << 20, True, 1 << 20, 3, ONES, ONES, None),
    ),
    "pairs of fewer entries": (ValueError, "paired", ([ENTRIES], 1, 3, 3, ONES[:1].copy(), ONES, ONES[:1].copy())),
    "pairs of fewer targets": (ValueError, "paired", ([ENTRIES], 1, 3, 3, ONES, ONES[:1].copy(), ONES[:1].copy())),
    "pairs of two members": (ValueError, "paired", ([ENTRIES], 2, 3, 3, ONES, ONES, ONES[:1].copy())),
    "pairs of 64 bits": (ValueError, "paired", ([ENTRIES], 1, 3, 3, np.zeros(2, np.int64), ONES, ONES[:1].copy())),
    "too many pairs": (ValueError, "paired", ([ENTRIES], 1 << 20, 3, 1 << 20, ONES, ONES, ONES)),
    "sums of other lengths": (ValueError, "summed", (ONES, ONES[:1].copy(), "n", 1, 3, False, True, *HERE, 1, 4)),
    "sums of two by three letters": (ValueError, "summed", (ONES, ONES, "nnI", 2, 3, False, True, *HERE, 1, 4)),
    "sums of no matrix": (ValueError, "summed", (ONES, ONES, "", 1, 3, False, True, *HERE, 1, 4)),
    "sums of bytes": (ValueError, "summed", (ONES, ONES, "n", 1, 3, False, True, *HERE, 1, 1)),
    "sums of 64 bits": (ValueError, "summed", (np.zeros(2, np.int64), ONES, "n", 1, 3, False, True, *HERE, 1, 4)),
    "sums of too many members": (
        ValueError,
        "summed",
        (ONES, ONES, "n" * 1024, 1024, 1 << 22, False, True, *HERE, 1, 4),
    ),
    "rows of bytes": (ValueError, "add_rows", (*HERE, HERE[0], 1, 3, 1, 1)),
    "rows below none": (ValueError, "add_rows", (*HERE, HERE[0], -1, 3, 1, 4)),
    "groups of other lengths": (ValueError, "grouped", (ONES, FLOATS[:1].copy(), 3, ONES, ONES, ONES)),
    "an order of other lengths": (ValueError, "translated", (ONES[:1].copy(), None, ONES.copy(), ONES.copy())),
    "an order beyond the entries": (ValueError, "translated", (None, ONES + 2, ONES.copy(), ONES.copy())),
    "more nodes than 32 bits": (ValueError, "over_degrees", (None, 1, ONES, ONES, 1 << 31, 3, "rw", FLOATS.copy())),
    "no matrix": (ValueError, "over_degrees", (None, 0, ONES, ONES, 3, 3, "rw", FLOATS.copy())),
    "fewer nodes than none": (ValueError, "looped", (ONES, ONES, -1, ONES.copy(), ONES.copy())),
    "fewer groups than none": (ValueError, "grouped", (ONES[:0].copy(), ONES[:0].copy(), -1, *[ONES[:0].copy()] * 3)),
    "narrow beyond 32 bits": (ValueError, "narrow", (*HERE, 2, 4, 1 << 32, 3, np.empty(4, np.int32))),
    "ends of bytes": (ValueError, "narrow", (*HERE, 2, 1, 3, 3, np.empty(4, np.int32))),
    "a list of three": (
        IndexError,
        "compressed",
        ([(0, ONES, ONES)], 1, True, 3, 3, np.zeros(4, np.int32), ONES, None),
    ),
    "weights of integers, grouped": (
        ValueError,
        "compressed",
        ([List(0, ONES, ONES, FLOATS)], 1, True, 3, 3, np.zeros(4, np.int32), ONES.copy(), ONES.copy()),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_arrays_that_do_not_fit_are_refused(fault: str) -> None:
    error, name, args = FAULTS[fault]
    with pytest.raises(error):
        getattr(KERNELS, name)(*args)


def test_what_would_be_written_elsewhere_is_refused() -> None:
    """Indices out of range, which the lists of a graph never have."""
    wrong = List(0, np.array([0, 5], np.int32), np.array([1, 0], np.int32), None)
    for edges in (wrong, wrong.T, List(np.array([0, 7], np.int32), ONES, ONES, None), List(7, ONES, ONES, None)):
        with pytest.raises(ValueError, match="index: expected"):
            lists.compressed([edges], 2, (3, 3), "target", torch.float32)
        with pytest.raises(ValueError, match="index: expected"):
            lists.paired([edges], 2, (3, 3), torch.float32)
    for edges in (wrong, wrong.T):
        with pytest.raises(ValueError, match="index: expected"):
            lists.over_degrees(edges, 1, (3, 3), "mean", torch.float32)
        x, y = torch.ones(3, 1), torch.full((3, 1), 7.0)
        assert not KERNELS.summed(*edges[1:3], "n", 1, 3, False, True, x.data_ptr(), y.data_ptr(), 1, 4)
        assert bool((y == 7).all())
