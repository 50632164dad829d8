"""Several matrices on one pattern by compiled kernels: against loops, torch's operations, and in all derivatives."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from pyg_basisconv import BasisConv, backends, bases, theta
from pyg_basisconv.kernels import Pattern, onepass, shared
from tests.kernels.test_compiled_attention import check_threads

pytestmark = pytest.mark.skipif(onepass.KERNELS is None, reason=backends()["compiled"])


class Case:
    """Random entries from M sources to N targets, half of them into one; K weights at each."""

    def __init__(
        self,
        K: int = 3,
        W: int = 5,
        sizes: tuple[int, int, int] = (7, 5, 20),
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        M, N, E = sizes
        torch.manual_seed(seed)
        self.K, self.W = K, W
        target = torch.where(torch.rand(E) < 0.5, 0, torch.randint(N, (E,)))
        self.pattern = Pattern(torch.randint(M, (E,)), target, M, N)
        self.x, self.z, self.weight = (torch.randn(s, dtype=dtype) for s in ((M, W), (M, K * W), (E, K)))

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {"expand": self.x, "combine": self.z}

    def run(self, name: str) -> tuple[Tensor, ...]:
        """The result of `expand` or `combine`, and its gradients."""
        x, weight = self.tensors[name].detach().requires_grad_(), self.weight.detach().requires_grad_()
        y: Tensor = getattr(shared, name)(x, weight, self.pattern)
        down = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
        return y.detach(), *torch.autograd.grad(y, (x, weight), down)


def by_loops(case: Case, name: str) -> Tensor:
    (source, target), K, W = case.pattern.ends, case.K, case.W
    if name == "expand":
        y = torch.zeros(case.pattern.N, K, W, dtype=case.x.dtype)
        for m, n, w in zip(source.tolist(), target.tolist(), case.weight, strict=True):
            for k in range(K):
                y[n, k] += w[k] * case.x[m]
        return y.flatten(1)
    y = torch.zeros(case.pattern.N, W, dtype=case.x.dtype)
    for m, n, w in zip(source.tolist(), target.tolist(), case.weight, strict=True):
        for k in range(K):
            y[n] += w[k] * case.z[m, k * W : (k + 1) * W]
    return y


def twin(work: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Without the kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared, "kernel", lambda name, dtype: None)
        return work()


@pytest.mark.parametrize("name", ["expand", "combine"])
def test_kernels_loops_and_twin_agree(name: str) -> None:
    @settings(max_examples=60, deadline=None)
    @given(
        K=st.integers(1, 35),
        W=st.sampled_from([1, 2, 3, 7, 8, 9, 16, 17, 31, 33, 70]),
        sizes=st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(0, 30)),
        seed=st.integers(0, 1000),
    )
    def run(K: int, W: int, sizes: tuple[int, int, int], seed: int) -> None:
        case = Case(K, W, sizes, seed)
        calls: list[Tensor | None] = []
        with pytest.MonkeyPatch.context() as patch:
            real = shared._compiled
            patch.setattr(shared, "_compiled", lambda *args: (calls.append(real(*args)), calls[-1])[1])
            found = case.run(name)
        assert [y is not None for y in calls] == [True] * 3  # the result, and two gradients
        torch.testing.assert_close(found[0], by_loops(case, name), rtol=1e-12, atol=1e-12)
        for mine, theirs in zip(found, twin(lambda: case.run(name)), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)

    run()


@pytest.mark.parametrize("name", ["expand", "combine"])
@pytest.mark.parametrize("W", [4, 16, 64, 67])
def test_single_precision(name: str, W: int) -> None:
    case = Case(33, W, (40, 30, 300), dtype=torch.float32)
    for mine, theirs in zip(case.run(name), twin(lambda: case.run(name)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["expand", "combine"])
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "twin"])
def test_second_derivatives(name: str, compiled: bool) -> None:
    case = Case(2, 2, (3, 2, 4))
    inputs = [case.tensors[name].requires_grad_(), case.weight.requires_grad_()]

    def work() -> tuple[Tensor, ...]:
        assert torch.autograd.gradgradcheck(lambda *t: getattr(shared, name)(*t, case.pattern), inputs)
        return ()

    work() if compiled else twin(work)


@pytest.mark.parametrize("name", ["expand", "combine"])
def test_any_number_of_threads_gives_the_same_bits(name: str) -> None:
    case = Case(9, 33, (500, 400, 20_000), dtype=torch.float32)
    check_threads(lambda: case.run(name))


@pytest.mark.parametrize("name", ["expand", "combine"])
def test_views_that_are_negative_or_not_contiguous(name: str) -> None:
    case = Case()
    expected = case.run(name)
    for tensor in ("x", "z", "weight"):
        t = getattr(case, tensor)
        setattr(case, tensor, torch._neg_view(-t) if tensor == "weight" else t.t().contiguous().t())
    for mine, theirs in zip(case.run(name), expected, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("name", ["expand", "combine"])
@pytest.mark.parametrize("wrong", [-1, 7, 2**31 - 1])
def test_an_index_out_of_range_is_refused(name: str, wrong: int) -> None:
    case = Case()
    case.pattern.by_target.other[3] = wrong
    with pytest.raises(ValueError, match="integers from 0 to 6"):
        getattr(shared, name)(case.tensors[name], case.weight, case.pattern)


def multiplied(x: Tensor, weight: Tensor, pattern: Pattern, theta: Tensor) -> Tensor:
    """By matrices, (K, W, Q), or diagonals, (K, W)."""
    products = shared.Expanded(x, weight, pattern)
    return products.matmul(theta) if theta.dim() == 3 else products.times_diagonals(theta)


FORMS = pytest.mark.parametrize("form", [(3,), ()], ids=["matrices", "diagonals"])


@FORMS
@pytest.mark.parametrize("W", [1, 5, 16, 31, 64])
@pytest.mark.parametrize("needed", ["x", "weight", "theta", "x weight theta", ""], ids=lambda names: names or "none")
def test_large_products_are_made_for_some_targets_at_a_time(
    W: int, needed: str, form: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    case, matrices = Case(9, W, (12, 10, 60)), torch.randn(9, W, *form, dtype=torch.float64)
    tensors = {"x": case.x, "weight": case.weight, "theta": matrices}
    inputs = [t.requires_grad_(name in needed.split()) for name, t in tensors.items()]
    wanted = [t for t in inputs if t.requires_grad]
    runs: list[None] = []
    real = shared._runs
    monkeypatch.setattr(shared, "_runs", lambda *args: (runs.append(None), real(*args))[1])
    monkeypatch.setattr(shared, "_RUN", 3 * 9 * W)  # three targets

    def work() -> tuple[Tensor, ...]:
        y = multiplied(case.x, case.weight, case.pattern, matrices)
        down = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
        return y.detach(), *(torch.autograd.grad(y, wanted, down) if wanted else ())

    expected = work()
    assert not runs
    monkeypatch.setattr(shared, "_HELD", 0)
    for mine, theirs in zip(work(), expected, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert len(runs) == 1 + bool(wanted)


def test_pieces_fit_a_cache() -> None:
    """Up to 2^20 numbers are made at once; of more, 2^18 at a time, but one target at least."""
    for N, are_few in ((1 << 8, True), ((1 << 8) + 1, False)):
        weight, pattern = torch.ones(1, 1 << 4), Pattern(torch.tensor([0]), torch.tensor([0]), 1, N)
        assert shared.Expanded(torch.ones(1, 1 << 8), weight, pattern)._are_few == are_few
    for width, sizes in ((1 << 10, [256, 256, 88]), (1 << 20, [1] * 600)):
        ptr = torch.zeros(601, dtype=torch.int32)
        assert [targets.stop - targets.start for targets, _ in shared._runs([ptr], width)] == sizes


@FORMS
def test_derivatives_of_large_products(form: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "_HELD", 0)
    monkeypatch.setattr(shared, "_RUN", 4)
    case, matrices = Case(2, 2, (3, 2, 4)), torch.randn(2, 2, *form, dtype=torch.float64)
    inputs = [t.requires_grad_() for t in (case.x, case.weight, matrices)]

    def work(x: Tensor, weight: Tensor, matrices: Tensor) -> Tensor:
        return multiplied(x, weight, case.pattern, matrices)

    assert torch.autograd.gradcheck(work, inputs)
    assert torch.autograd.gradgradcheck(work, inputs)


@pytest.mark.parametrize("form", [(1,), ()], ids=["matrices", "diagonals"])
def test_threads_change_no_bit_of_large_products(form: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "_HELD", 0)
    case, matrices = Case(9, 70, (500, 400, 20_000), dtype=torch.float32), torch.ones(9, 70, *form)
    inputs = [t.requires_grad_() for t in (case.x, case.weight, matrices)]

    def work() -> tuple[Tensor, ...]:
        y = multiplied(case.x, case.weight, case.pattern, matrices)
        return torch.autograd.grad(y.sum(), inputs)

    check_threads(work)


@pytest.mark.parametrize("parameter", [theta.Full, theta.Depthwise])
def test_a_layer_holds_no_products_of_all_members(parameter: Callable[[], theta.Theta]) -> None:
    """Of 2,000 nodes, 33 members and 32 channels, forward or back; the largest allocation is seen by the profiler."""
    net = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.ReLU())
    conv = BasisConv(32, 32, bases.EdgeNetwork(net, 32), parameter(), order="a_first")
    edge_index, z, x = torch.randint(2000, (2, 6000)), torch.rand(6000, 2), torch.randn(2000, 32, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        conv(x, edge_index, edge_attr=z).sum().backward()
    largest = max(event.self_cpu_memory_usage for event in profiler.events())
    assert 4 * 2000 * 32 < largest <= 4 * (1 << 18)  # in bytes; all products are 2,112,000 numbers


@pytest.mark.parametrize("parameter", [theta.Full, theta.Depthwise])
def test_the_plan_says_what_is_held(parameter: Callable[[], theta.Theta]) -> None:
    """Of many products those of some targets, of few all, and so where torch's operations make them."""
    K, W, Q = 33, 32, 32
    conv = BasisConv(W, Q, bases.EdgeNetwork(torch.nn.Linear(2, K - 1), K - 1), parameter())
    edge_index, z = torch.randint(990, (2, 6000)), torch.rand(6000, 2)

    def memory(N: int, dtype: torch.dtype = torch.float32) -> int:
        x = torch.randn(N, W, requires_grad=True, dtype=dtype)
        return conv.to(dtype).plan(x, edge_index, edge_attr=z.to(dtype))["a_first"].memory // x.element_size()

    assert memory(990) == 2 * K * 990 * W + 990 * Q  # 1,045,440 numbers
    assert memory(1000) == memory(1000, torch.float64) == (1 << 18) + 1000 * Q
    held = 2 * K * 1000 * W + 1000 * Q
    assert memory(1000, torch.bfloat16) == held
    conv.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert memory(1000) == held


def test_products_that_are_made_in_runs_change_no_choice() -> None:
    """Here Theta first takes 16 ms, and A first 26."""
    x, edge_index, z = torch.randn(1000, 64), torch.randint(1000, (2, 2000)), torch.rand(2000, 2)
    conv = BasisConv(64, 32, bases.EdgeNetwork(torch.nn.Linear(2, 32), 32))
    found = conv.plan(x, edge_index, edge_attr=z)
    assert found.problem.runs
    assert found.order == "theta_first"
    assert not found["a_first"].fills


def test_members_are_made_in_parts_where_nothing_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    conv = BasisConv(6, 6, bases.Gaussians(21, 2), theta.Heads("mean")).double()
    edge_index, z, x = torch.randint(9, (2, 40)), torch.rand(40, 2).double(), torch.randn(9, 6).double()
    expected = conv(x, edge_index, edge_attr=z).detach()
    monkeypatch.setattr(shared, "_HELD", 0)
    with torch.no_grad():
        torch.testing.assert_close(conv(x, edge_index, edge_attr=z), expected)


@pytest.mark.parametrize("name", ["expand", "combine"])
def test_gradients_of_a_batch_at_once(name: str) -> None:
    """By the vmap of `torch.autograd.grad(is_grads_batched=True)`, whose tensors have no memory to be pointed to."""
    case = Case()
    x, weight = case.tensors[name].requires_grad_(), case.weight.requires_grad_()
    y = getattr(shared, name)(x, weight, case.pattern)
    down = torch.randn(4, *y.shape, dtype=y.dtype)
    found = torch.autograd.grad(y, (x, weight), down, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(y, (x, weight), d, retain_graph=True) for d in down]
    for batched, each in zip(found, zip(*one_by_one, strict=True), strict=True):
        torch.testing.assert_close(batched, torch.stack(each), rtol=1e-10, atol=1e-10)
