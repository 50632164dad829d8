"""Graphs that are bound by the kernels in Triton, on a GPU or interpreted on the CPU (`make test-triton`), by loops."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from pyg_basisconv import backends, bases
from pyg_basisconv.backend import uses_triton
from pyg_basisconv.edge_set import EdgeSet
from pyg_basisconv.kernels.pattern import compress

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if not uses_triton(DEVICE):
    pytest.skip(f"triton: {backends()['triton']}", allow_module_level=True)

from pyg_basisconv.kernels.triton import bind  # noqa: E402 - only where it is installed

INTEGERS = [torch.int32, torch.int64]


@settings(max_examples=20, deadline=None)
@given(
    groups=st.lists(st.integers(0, 6), max_size=20),
    num_groups=st.sampled_from([7, 9, 300]),
    dtype=st.sampled_from(INTEGERS),
)
def test_compress(groups: list[int], num_groups: int, dtype: torch.dtype) -> None:
    """Groups of any number of entries, which stay in their order; many more groups than entries, and no entries."""
    group = torch.tensor(groups, dtype=dtype, device=DEVICE)
    other = torch.arange(100, 100 + len(groups), device=DEVICE)
    ptr, index, order = compress(group, other.to(dtype), num_groups)
    expected = [[e for e, g in enumerate(groups) if g == k] for k in range(num_groups)]
    assert ptr.dtype == index.dtype == order.dtype == dtype
    assert ptr.tolist() == [sum(map(len, expected[:k])) for k in range(num_groups + 1)]
    assert order.tolist() == [e for entries in expected for e in entries]
    assert index.tolist() == [100 + e for e in order.tolist()]


def test_compress_passes_over_groups_out_of_range() -> None:
    group, other = torch.tensor([2, -1, 0, 5, 2], device=DEVICE), torch.arange(5, device=DEVICE)
    ptr, index, _ = compress(group, other, 3)
    rows = [index[a:b].tolist() for a, b in zip(ptr.tolist(), ptr.tolist()[1:], strict=False)]
    assert rows == [[2], [], [0, 4]]


def degrees(end: list[int], weight: list[float], count: int) -> list[float]:
    return [sum(w for k, w in zip(end, weight, strict=True) if k == node) for node in range(count)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("weighted", [False, True], ids=["ones", "weights"])
@pytest.mark.parametrize("norm", ["sym", "mean", "rw", "ends"])
def test_norms(norm: str, weighted: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node without edges in, one without edges out, and edges that appear twice; some weights are zero."""
    calls: list[Any] = []
    real = bind.over_degrees
    monkeypatch.setattr(bind, "over_degrees", lambda *given: (calls.append(given), real(*given))[1])
    source, target, N = [0, 1, 1, 3, 1, 4, 4], [1, 2, 2, 1, 3, 4, 3], 5
    w = [0.5, 2.0, 0.0, 1.5, 3.0, 0.25, 4.0] if weighted else [1.0] * 7
    out, into = degrees(source, w, N), degrees(target, w, N)
    count = degrees(target, [1.0] * 7, N)
    over = {
        "sym": lambda m, n: math.sqrt(into[m] * into[n]),
        "mean": lambda m, n: count[n],
        "rw": lambda m, n: out[m],
        "ends": lambda m, n: math.sqrt(out[m] * into[n]),
    }[norm]
    found = [
        0.0 if not over(m, n) else w_e / over(m, n) for m, n, w_e in zip(source, target, w, strict=True)
    ]  # fmt: skip
    structure = EdgeSet(1, N, N, None, *(torch.tensor(t, device=DEVICE) for t in (source, target)))
    weight = torch.tensor(w, dtype=dtype, device=DEVICE) if weighted else None
    result = bases.adjacency.normalise(structure, weight, norm, dtype)
    assert len(calls) == 1
    assert result.dtype == dtype
    torch.testing.assert_close(result.cpu(), torch.tensor(found, dtype=dtype))


def test_weights_that_learn_have_their_gradients() -> None:
    source, target = (torch.tensor(t, device=DEVICE) for t in ([0, 1, 2, 2], [1, 2, 0, 1]))
    structure = EdgeSet(1, 3, 3, None, source, target)
    weight = torch.rand(4, dtype=torch.float64, device=DEVICE).add_(0.1).requires_grad_()
    for norm in ("sym", "rw", "ends"):
        normalised = partial(bases.adjacency.normalise, structure, norm=norm, dtype=weight.dtype)
        assert torch.autograd.gradcheck(normalised, weight)


def test_without_gradients_weights_that_learn_are_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    real = bind.over_degrees
    monkeypatch.setattr(bind, "over_degrees", lambda *given: (calls.append(given), real(*given))[1])
    source, target = (torch.tensor(t, device=DEVICE) for t in ([0, 1, 2, 2], [1, 2, 0, 1]))
    structure = EdgeSet(1, 3, 3, None, source, target)
    weight = torch.rand(4, dtype=torch.float64, device=DEVICE).add_(0.1).requires_grad_()
    for norm in ("sym", "rw", "ends", "mean"):
        expected = bases.adjacency.normalise(structure, weight, norm, weight.dtype)
        with torch.no_grad():
            torch.testing.assert_close(bases.adjacency.normalise(structure, weight, norm, weight.dtype), expected)
    assert len(calls) == 4


def test_negated_views() -> None:
    source, target = (torch.tensor(t, device=DEVICE) for t in ([0, 1], [1, 1]))
    structure = EdgeSet(1, 2, 2, None, source, target)
    weight = torch.tensor([2.0, 4.0], device=DEVICE)
    found = bases.adjacency.normalise(structure, torch._neg_view(-weight), "mean", weight.dtype)
    torch.testing.assert_close(found, weight / 2)


def test_negative_degrees_are_refused() -> None:
    structure = EdgeSet(1, 2, 2, None, *torch.tensor([[0, 1], [1, 0]], device=DEVICE))
    with pytest.raises(ValueError, match=r"^edge_weight: "):
        bases.adjacency.normalise(structure, torch.tensor([1.0, -1.0], device=DEVICE), "sym", torch.float32)


@pytest.mark.parametrize("name", ["GCN", "Laplacian", "Relations"])
def test_bases(name: str) -> None:
    """Families that are bound so are those that numpy binds."""
    edges, kind = torch.randint(6, (2, 20)), torch.randint(2, (20,))
    weight = torch.rand(20, dtype=torch.float64)
    basis, call = {
        "GCN": (bases.Adjacency("sym", self_loops=True), {"edge_weight": weight}),
        "Laplacian": (bases.Laplacian("sym"), {"edge_weight": weight}),
        "Relations": (bases.Relations(2, norm="mean"), {"edge_type": kind}),
    }[name]
    there = {key: t.to(DEVICE) for key, t in call.items()}
    found = basis.bind(edges.to(DEVICE), size=(6, 6), dtype=torch.float64, **there).to_dense().cpu()
    expected = torch.zeros_like(found)
    for k in range(basis.K):
        mine = kind == k if name == "Relations" else torch.ones(20, dtype=torch.bool)
        W = torch.zeros(6, 6, dtype=torch.float64)
        for e in mine.nonzero().flatten().tolist():
            W[tuple(edges[:, e])] += 1.0 if name == "Relations" else weight[e]
        if name == "Relations":
            expected[k] = W / W.sum(0).clamp(min=1)
        elif name == "GCN":
            loops = [float(weight[(edges == n).all(0)][-1]) if (edges == n).all(0).any() else 1.0 for n in range(6)]
            W = W - W.diag().diag() + torch.diag(torch.tensor(loops, dtype=torch.float64))
            d = W.sum(0).rsqrt()
            expected[k] = d[:, None] * W * d
        else:
            W = W - W.diag().diag()
            d = W.sum(1)
            d = torch.where(d > 0, d.rsqrt(), 0)
            expected[k] = torch.eye(6, dtype=torch.float64) - d[:, None] * W * d
    torch.testing.assert_close(found, expected)
