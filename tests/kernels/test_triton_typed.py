"""The kernels in Triton that multiply by the matrices of types, against loops over the edges; see `test_triton`."""

import pickle
from argparse import Namespace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from pyg_basisconv import BasisConv, backends, bases
from pyg_basisconv.backend import uses_triton
from pyg_basisconv.kernels import Pairs, typed, typed_matmul

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if not uses_triton(DEVICE):
    pytest.skip(f"triton: {backends()['triton']}", allow_module_level=True)

from pyg_basisconv.kernels.triton import launch, typed as by_triton  # noqa: E402 - only where it is installed

HALF = [torch.float16] + [torch.bfloat16] * (DEVICE.type == "cuda")  # numpy has no bfloat16
CLOSE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is launched."""
    seen: list[str] = []
    real = launch.RowLists.run

    def run(self: Any, kernel: Any, *rest: Any, **options: Any) -> None:
        seen.append(kernel.__name__)
        real(self, kernel, *rest, **options)

    monkeypatch.setattr(launch.RowLists, "run", run)
    return seen


class Case(NamedTuple):
    """Typed edges, and what they are multiplied by: x, (B, M, g P), W, (K, g, P, Q), and a weight for each edge."""

    kind: list[int]
    ends: list[tuple[int, int]]
    sizes: tuple[int, int, int]
    x: Tensor
    W: Tensor
    weight: Tensor | None
    turned: bool

    @property
    def inputs(self) -> list[Tensor]:
        return [self.x, self.W, *([] if self.weight is None else [self.weight])]

    @property
    def pairs(self) -> Pairs:
        source, target = torch.tensor(self.ends, dtype=torch.long, device=DEVICE).view(-1, 2).t()
        return Pairs(torch.tensor(self.kind, dtype=torch.long, device=DEVICE), source, target, self.sizes)

    def run(self, x: Tensor, W: Tensor, weight: Tensor | None = None) -> Tensor:
        pairs = self.pairs
        if weight is not None and pairs.order is not None:
            weight = weight.index_select(0, pairs.order)
        return typed_matmul(x, W, weight, pairs, self.turned)

    def looped(self, x: Tensor, W: Tensor, weight: Tensor | None = None) -> Tensor:
        """Edge by edge, row by row."""
        _, M, N = self.sizes
        full = [torch.block_diag(*blocks) for blocks in W]
        rows = [[x.new_zeros(W.shape[1] * W.shape[3]) for _ in range(M if self.turned else N)] for _ in x]
        for e, (k, (m, n)) in enumerate(zip(self.kind, self.ends, strict=True)):
            read, write = (n, m) if self.turned else (m, n)
            for b, row in enumerate(rows):
                row[write] = row[write] + (1 if weight is None else weight[e]) * (x[b, read] @ full[k])
        return torch.stack([torch.stack(row) for row in rows])


def case(
    K: int = 3, M: int = 5, N: int = 4, E: int = 30, B: int = 1, g: int = 1, P: int = 3, Q: int = 2,
    weighted: bool = True, turned: bool = False, dtype: torch.dtype = torch.float64, seed: int = 0,
) -> Case:  # fmt: skip
    """Edges of all types but one that is left out, if there are several."""
    torch.manual_seed(seed)
    kind = [k + (K > 1 and k >= K // 2) for k in torch.randint(max(1, K - 1), (E,)).tolist()]
    ends = list(zip(torch.randint(M, (E,)).tolist(), torch.randint(N, (E,)).tolist(), strict=True))
    shapes = (B, N if turned else M, g * P), (K, g, P, Q), (E,)
    x, W, weight = (torch.randn(s, dtype=torch.float64).to(DEVICE, dtype).requires_grad_() for s in shapes)
    return Case(kind, ends, (K, M, N), x, W, weight if weighted else None, turned)


def results(y: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    down = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape).to(y)
    return [y.detach(), *torch.autograd.grad(y, inputs, down, materialize_grads=True)]


def check(one: Case) -> None:
    """The result and all gradients, each relative to its greatest number."""
    exact = [t.detach().cpu().double().requires_grad_() for t in one.inputs]
    found, expected = results(one.run(*one.inputs), one.inputs), results(one.looped(*exact), exact)
    for a, b, like in zip(found, expected, [one.x, *one.inputs], strict=True):
        assert (a.dtype, a.device.type) == (like.dtype, DEVICE.type)
        scale, close = max(1.0, *b.abs().flatten().tolist()), CLOSE[a.dtype]
        torch.testing.assert_close(a.cpu().double() / scale, b / scale, rtol=close, atol=close)


@settings(max_examples=12, deadline=None)
@given(
    K=st.integers(1, 5),
    M=st.integers(1, 4),
    N=st.integers(1, 4),
    E=st.integers(1, 12),
    B=st.integers(1, 2),
    g=st.integers(1, 2),
    P=st.sampled_from([1, 3, 16, 35]),
    Q=st.sampled_from([1, 4, 17, 65]),
    weighted=st.booleans(),
    turned=st.booleans(),
    split=st.sampled_from([1, 3, 512]),
    seed=st.integers(0, 1000),
)
def test_sizes(split: int, **sizes: Any) -> None:
    """Widths on both sides of a block's, groups of many rows in pieces, types of no edge."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "SPLIT", split)
        check(case(**sizes))


@pytest.mark.parametrize("turned", [False, True])
def test_launches(turned: bool, kernels: list[str]) -> None:
    """One for the rows of all types and one for their matrices' gradients, however many types there are."""
    for K in (2, 9):
        one = case(K=K, weighted=False, turned=turned)
        kernels.clear()
        y = one.run(*one.inputs)
        assert kernels.count("multiplied") == 1
        results(y, one.inputs)
        assert (kernels.count("multiplied"), kernels.count("outer")) == (2, 1)


@pytest.mark.parametrize(("turned", "split"), [(False, 512), (True, 66)])
def test_rows_of_several_blocks(turned: bool, split: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A type of about seventy pairs, more than a block has, in one piece or in two."""
    one = case(K=1, M=2, N=100, E=150, turned=turned)
    monkeypatch.setattr(launch, "SPLIT", split)
    assert one.pairs.count > 66
    check(one)


@pytest.mark.parametrize("size", [1, 4])
def test_a_few_pairs_at_a_time(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs are cut within types."""
    monkeypatch.setattr(Pairs, "pieces", lambda self, width: list(self._cut(size)))
    for turned in (False, True):
        check(case(turned=turned))


@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
def test_precisions(dtype: torch.dtype) -> None:
    check(case(P=33, Q=20, dtype=dtype, turned=True, weighted=False))
    check(case(P=33, Q=20, dtype=dtype, weighted=False))


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_sums_are_not_rounded(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """One hundredth is added to a thousand sixty times, over columns and over the rows of a type; half loses it."""
    monkeypatch.setattr(launch, "SPLIT", 8)
    n = 61
    nodes, ones = torch.arange(n, device=DEVICE), torch.ones(n, 1, dtype=dtype, device=DEVICE)
    pairs = Pairs(torch.zeros_like(nodes), nodes, nodes, (1, n, n))
    column = torch.full((n, 1), 0.01, dtype=dtype, device=DEVICE)
    column[0] = 1000
    expected = column.double().sum().to(dtype)
    W = column.view(1, 1, n, 1)
    assert typed_matmul(torch.ones(1, n, dtype=dtype, device=DEVICE).expand(n, n), W, None, pairs).eq(expected).all()
    W = torch.ones(1, 1, 1, 1, dtype=dtype, device=DEVICE, requires_grad=True)
    (found,) = torch.autograd.grad(typed_matmul(column, W, None, pairs), W, ones)
    assert found == expected


def test_tensors_of_any_strides() -> None:
    one = case(P=3, Q=3)
    x, W, _ = (t.detach() for t in one.inputs)
    for rows in (torch.cat([x, x], 2)[..., :3], x.mT.contiguous().mT):
        for matrices in (W.mT.contiguous().mT, W[:, :, :1].expand_as(W)):
            check(one._replace(x=rows.requires_grad_(), W=matrices.detach().requires_grad_()))


def test_no_edges_and_no_batch() -> None:
    for changed in ({"E": 0}, {"B": 0}):
        one = case(**changed)
        y, *gradients = results(one.run(*one.inputs), one.inputs)
        assert not any(t.count_nonzero() for t in (y, *gradients))


def test_second_derivatives() -> None:
    for turned in (False, True):
        one = case(K=2, M=2, N=2, E=3, P=1, Q=2, turned=turned)
        assert torch.autograd.gradgradcheck(one.run, one.inputs)


def test_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "SPLIT", 4)
    one = case(M=6, N=6, E=40, P=8, Q=8, dtype=torch.float32)
    first, again = (results(one.run(*one.inputs), one.inputs) for _ in range(2))
    assert all(a.equal(b) for a, b in zip(first, again, strict=True))


def test_a_layer_for_each_relation(kernels: list[str]) -> None:
    """Of a knowledge graph, against the order that multiplies by all matrices at once."""
    edges, kind = torch.randint(20, (2, 60), device=DEVICE), torch.randint(6, (60,), device=DEVICE)
    x = torch.randn(20, 5, dtype=torch.float64, device=DEVICE, requires_grad=True)
    layer, found = BasisConv(5, 4, bases.Relations(6, "mean", inverse=True)).double().to(DEVICE), []
    for order in ("compacted", "theta_first"):
        kernels.clear()
        layer.order = order
        y = layer(x, edges, edge_type=kind)
        found.append(results(y, [x, *layer.parameters()]))
        assert ("outer" in kernels) == (order == "compacted")
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


def test_pairs_are_pickled_without_what_they_keep() -> None:
    """Constant weights are kept by the weights themselves, which no file has."""
    edges, kind = torch.randint(9, (2, 30), device=DEVICE), torch.randint(3, (30,), device=DEVICE)
    pairs, x = Pairs(kind, edges[0], edges[1], (3, 9, 9)), torch.randn(9, 4, device=DEVICE, requires_grad=True)
    given = torch.randn(3, 1, 4, 2, device=DEVICE), torch.rand(30, device=DEVICE)
    y = typed_matmul(x, *given, pairs)
    torch.autograd.grad(y.sum(), x)
    assert typed_matmul(x, *given, pickle.loads(pickle.dumps(pairs))).equal(y)


def test_all_types_are_one_launch_to_the_planner() -> None:
    edges, kind = torch.randint(20, (2, 60), device=DEVICE), torch.arange(60, device=DEVICE) % 6
    sizes = bases.Relations(6).bind(edges, edge_type=kind, size=20).compact("source").sizes
    assert (sizes.products, sizes.launches) == (6, 1)


@pytest.mark.parametrize("wrong", ["index", "kind", "ptr"])
def test_wrong_groups_fail(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: with nodes or types of others, or with the last row of each type left to the next."""
    changes = {"ptr": lambda t: t - (t > 0).to(t), "index": lambda t: t.flip(0), "kind": lambda t: t.flip(0)}
    place, real = ["ptr", "index", "kind"].index(wrong), typed.Chunk.groups.func

    def groups(self: typed.Chunk) -> list[Tensor]:
        found = real(self)
        found[place] = changes[wrong](found[place])
        return found

    check(case(turned=True))
    monkeypatch.setattr(typed.Chunk, "groups", property(groups))
    with pytest.raises(AssertionError):
        check(case(turned=True))


def test_tf32_only_where_torch_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, matmul = Namespace(is_cuda=True, device=None), torch.backends.cuda.matmul
    assert by_triton._precision(torch.ones(1)) == "ieee"
    before = matmul.fp32_precision
    try:
        for asked, capability in (("tf32", (8, 0)), ("tf32", (7, 5)), ("ieee", (9, 0))):
            matmul.fp32_precision = asked
            monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
            assert by_triton._precision(rows) == ("tf32" if asked == "tf32" and capability >= (8, 0) else "ieee")
    finally:
        matmul.fp32_precision = before
