"""The two products: values, derivatives, dtypes, edges of the domain, and what they allocate."""

import pickle
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.autograd import grad, gradcheck, gradgradcheck
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_leaves

from pyg_basisconv import BasisConv, bases
from pyg_basisconv.kernels import (
    Affine,
    Matchings,
    Pattern,
    affine,
    gather_matmul,
    matmul,
    products,
    sddmm,
    spmm,
    tiled,
)
from pyg_basisconv.kernels.pattern import compress, extremes, in_range, positions, split_groups
from pyg_basisconv.kernels.segments import collect, exponentials
from pyg_basisconv.kernels.typed import _grouped
from tests.contract import DOUBLE, close, draw

SHAPES = {
    # M, N, E
    "square": (5, 5, 12),
    "tall": (9, 2, 12),
    "wide": (2, 9, 12),
    "no edges": (3, 4, 0),
    "one": (1, 1, 1),
    "more edges than places": (2, 2, 50),
    "no sources": (0, 3, 0),
    "no targets": (3, 0, 0),
    "nothing": (0, 0, 0),
}
WIDTHS = (0, 1, 3, 8, 9, 40)


def pattern(M: int, N: int, E: int, sort: str = "no") -> Pattern:
    generator = torch.Generator().manual_seed(M + N + E)
    source = torch.randint(max(M, 1), (E,), generator=generator)
    target = torch.randint(max(N, 1), (E,), generator=generator)
    if sort == "target":
        target = target.sort().values
    if sort == "source":
        source = source.sort().values
    return Pattern(source, target, M, N)


def by_target(p: Pattern) -> tuple[Tensor, Tensor]:
    order = torch.sort(p.target.long(), stable=True).indices
    return p.source.long()[order], p.target.long()[order]


@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("W", [3, 40])
def test_products_with_negative_views(W: int, dtype: torch.dtype) -> None:
    """Their memory holds the negated numbers; that of a gradient may, too, which is a weight in the derivative."""
    M, N, E = SHAPES["square"]
    p, tolerance = pattern(M, N, E), 1e-12 if dtype == DOUBLE else 5e-2
    source, target = by_target(p)
    x, y, weight = (draw(*shape).to(dtype) for shape in ((M, W), (N, W), (E,)))
    A = torch.zeros(M, N, dtype=DOUBLE).index_put((source, target), weight.double(), accumulate=True)
    found = spmm(torch._neg_view(-x), torch._neg_view(-weight), p)
    assert_close(found.double(), A.t() @ x.double(), rtol=tolerance, atol=tolerance)
    found = sddmm(torch._neg_view(-x), torch._neg_view(-y), p)
    assert_close(found.double(), (x[source] * y[target]).double().sum(-1), rtol=tolerance, atol=tolerance)
    x, y = x.requires_grad_(), y.requires_grad_()
    found_x, found_y = grad(sddmm(x, y, p), [x, y], torch._neg_view(-weight))
    assert_close(found_x.double(), A @ y.double(), rtol=tolerance, atol=tolerance)
    assert_close(found_y.double(), A.t() @ x.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("sort", ["no", "target", "source"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.sweep(6)
def test_products(shape: str, sort: str) -> None:
    M, N, E = SHAPES[shape]
    p = pattern(M, N, E, sort)
    source, target = by_target(p)
    for dtype in (DOUBLE, torch.float32, torch.bfloat16, torch.float16):
        tolerance = {DOUBLE: 1e-12, torch.float32: 1e-5}.get(dtype, 5e-2)
        for W in WIDTHS:
            x, y = (draw(n, W).to(dtype).requires_grad_() for n in (M, N))
            weight = draw(E, seed=2).to(dtype).requires_grad_()
            wide_x, wide_y, wide_weight = (t.detach().double().requires_grad_() for t in (x, y, weight))
            for w, wide_w in ((None, torch.ones(E, dtype=DOUBLE)), (weight, wide_weight)):
                A = torch.zeros(M, N, dtype=DOUBLE).index_put((source, target), wide_w, accumulate=True)
                result, reference = spmm(x, w, p), A.t() @ wide_x
                assert result.dtype == dtype
                assert result.shape == (N, W)
                assert_close(result.double(), reference, rtol=tolerance, atol=tolerance)
                leaves, wide_leaves = ([x], [wide_x]) if w is None else ([x, weight], [wide_x, wide_weight])
                for a, b in zip(grad(result.sum(), leaves), grad(reference.sum(), wide_leaves), strict=True):
                    assert a.dtype == dtype
                    assert_close(a.double(), b, rtol=tolerance, atol=tolerance)
            result, reference = sddmm(x, y, p), (wide_x[source] * wide_y[target]).sum(-1)
            assert_close(result.double(), reference, rtol=tolerance, atol=tolerance)
            for a, b in zip(grad(result.sum(), [x, y]), grad(reference.sum(), [wide_x, wide_y]), strict=True):
                assert_close(a.double(), b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", ["square", "tall", "more edges than places"])
def test_derivatives(shape: str) -> None:
    p = pattern(*SHAPES[shape][:2], 7)
    x, y = draw(p.M, 2).requires_grad_(), draw(p.N, 2, seed=1).requires_grad_()
    weight = draw(7, seed=2).requires_grad_()
    for f, inputs in ((lambda x, w: spmm(x, w, p), (x, weight)), (lambda x, y: sddmm(x, y, p), (x, y))):
        gradcheck(f, inputs)
        gradgradcheck(f, inputs)


def test_only_what_is_asked_for() -> None:
    """A gradient of one factor alone, and fixed weights that come in both orders."""
    p = pattern(*SHAPES["square"])
    x, weight = draw(5, 3), draw(12)
    (only_weight,) = grad(spmm(x, w := weight.clone().requires_grad_(), p).square().sum(), w)
    (only_x,) = grad(spmm(leaf := x.clone().requires_grad_(), weight, p).square().sum(), leaf)
    # by_target position -> entry -> by_source position
    entry = (
        weight if p.by_target.order is None else torch.empty(12, dtype=DOUBLE).index_put((p.by_target.order,), weight)
    )
    t_weight = entry if p.by_source.order is None else entry[p.by_source.order]
    (given,) = grad(spmm(leaf, weight, p, t_weight).square().sum(), leaf)
    both = grad(spmm(leaf, w, p).square().sum(), [leaf, w])
    for a, b in ((only_x, both[0]), (given, both[0]), (only_weight, both[1])):
        close(a, b)


def test_transposed_pattern() -> None:
    p = pattern(*SHAPES["tall"])
    x = draw(2, 3)
    A = torch.zeros(9, 2, dtype=DOUBLE).index_put(
        (p.source.long(), p.target.long()), torch.ones(12, dtype=DOUBLE), True
    )
    for fresh in (True, False):
        close(spmm(x, None, p.T if fresh else pattern(*SHAPES["tall"]).T), A @ x)
        assert torch.equal(p.T.T.by_target.other, p.by_target.other)
    assert p.E == 12


def test_patterns_are_saved_without_what_follows_from_them() -> None:
    p = pattern(*SHAPES["tall"])
    copies = p.copies(3)
    assert p.by_target.ptr.numel() == 3
    for one in (p, copies):
        saved = pickle.loads(pickle.dumps(one))
        assert {*vars(saved)} == {"source", "target", "M", "N"}
        assert torch.equal(saved.source, one.source)
        assert torch.equal(saved.target, one.target)
        assert (saved.M, saved.N) == (one.M, one.N)


@pytest.mark.parametrize("form", ["by_target", "by_source"])
def test_copies_of_a_pattern_are_not_sorted_again(form: str) -> None:
    copies = pattern(*SHAPES["tall"]).copies(3)
    sorted_anew = getattr(Pattern(copies.source, copies.target, copies.M, copies.N), form)
    torch.testing.assert_close(vars(copies)[form], sorted_anew, rtol=0, atol=0)


def test_groups_without_entries_are_one_range() -> None:
    assert split_groups(torch.tensor([0, 0, 0]), 3) == [(0, 2, 0)]
    assert split_groups(torch.tensor([0]), 3) == [(0, 0, 0)]


def test_the_last_four_counts_of_copies_are_kept() -> None:
    p = pattern(*SHAPES["tall"])
    found = {count: p.copies(count) for count in range(2, 7)}
    assert all((p.copies(count) is found[count]) == (count > 2) for count in (6, 5, 4, 3, 2))


class Largest(TorchDispatchMode):
    """The numbers in the largest tensor that any operation gives."""

    def __init__(self) -> None:
        super().__init__()
        self.numel, self.name = 0, ""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for t in tree_iter(result):
            # Views of one number, expanded, take no room.
            if isinstance(t, Tensor) and t.layout == torch.strided:
                room = t.untyped_storage().nbytes() // t.element_size()
                if min(t.numel(), room) > self.numel:
                    self.numel, self.name = min(t.numel(), room), str(func)
        return result


N_NODES, N_EDGES, P, Q = 60, 3000, 16, 16


def largest(conv: BasisConv, x: Tensor, edge_index: Tensor, weight: Tensor | None, types: Tensor | None) -> Largest:
    with Largest() as mode:
        conv(x, edge_index, weight, types).square().sum().backward()
    return mode


FAMILIES = {
    "Adjacency": (lambda: bases.Adjacency("sym", True), "weight"),
    "Edges(4) typed": (lambda: bases.Edges(4), "types"),
    "Edges(4) shared": (lambda: bases.Edges(4), "shared"),
    "Chebyshev(3)": (lambda: bases.Chebyshev(3), "weight"),
    "Diffusion(2)": (lambda: bases.Diffusion(2), "weight"),
    "sum and product": (lambda: bases.Identity() + bases.Powers(2) @ bases.Adjacency("rw"), "weight"),
}


# Sampled products of half precision, for weights that learn, go in chunks of constant size: tested below.
@pytest.mark.parametrize(
    ("dtype", "learnt"),
    [(torch.float32, False), (torch.float32, True), (torch.float64, True), (torch.bfloat16, False)],
    ids=["float32", "float32, learnt", "float64, learnt", "bfloat16"],
)
@pytest.mark.parametrize("order", ["a_first", "theta_first"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.sweep(10)
def test_nothing_of_size_edges_by_width(family: str, order: str, dtype: torch.dtype, learnt: bool) -> None:
    """E x P or E x Q, forward or backward; the message path, beside it, makes it."""
    make_basis, kind = FAMILIES[family]
    edge_index = torch.randint(N_NODES, (2, N_EDGES))
    types = torch.randint(4, (N_EDGES,)) if kind == "types" else None
    weight = torch.rand((N_EDGES, 4) if kind == "shared" else (N_EDGES,), dtype=dtype, requires_grad=learnt)
    x = torch.randn(N_NODES, P, dtype=dtype, requires_grad=True)
    conv = BasisConv(P, Q, make_basis(), order=order).to(dtype)
    # The largest things allowed: the indices and weights themselves.
    assert (mode := largest(conv, x, edge_index, weight, types)).numel < N_EDGES * 12, mode.name
    conv.fuse = False
    assert largest(conv, x, edge_index, weight, types).numel >= N_EDGES * P


def test_chunks_of_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch has no sampled product, the fallback goes in pieces."""
    from pyg_basisconv.kernels import products

    p = pattern(20, 20, 300)
    x, y = draw(20, 8).bfloat16(), draw(20, 8, seed=1).bfloat16()
    whole = sddmm(x, y, p)
    for chunk in (80, 2):  # of which the latter is narrower than a row
        monkeypatch.setattr(products, "_CHUNK", chunk)
        with Largest() as mode:
            pieces = sddmm(x, y, p)
        assert mode.numel <= 300
        assert_close(pieces, whole, rtol=0, atol=0)


def matchings(few: bool) -> Matchings:
    """Five sources and four targets in three members; `few` leaves most places out, and a member without any."""
    pairs = [[(0, 1)], [], [(4, 0)]] if few else [[(0, 1), (1, 0), (4, 3)], [(2, 2), (0, 0)], [(1, 1), (3, 3), (2, 0)]]
    pairs = [torch.tensor(member, dtype=torch.long).reshape(-1, 2).t().unbind(0) for member in pairs]
    return Matchings(pairs, 5, 4)


@pytest.mark.parametrize("few", [True, False], ids=["few", "many"])
def test_products_by_their_definition(few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "_TILE", {"cpu": 1})
    met = matchings(few)
    assert met.is_dense is not few
    x, weight = draw(2, 5, 3).requires_grad_(), draw(3, 3, 2, seed=1).requires_grad_()
    A = torch.zeros(3, 5, 4, dtype=torch.float64)
    for k, (source, target) in enumerate(met.pairs):
        for m, n in zip(source.tolist(), target.tolist(), strict=True):
            A[k, m, n] = 1
    expected = torch.einsum("kmn,bmp,kpq->bnq", A, x, weight)
    y = gather_matmul(x, weight, met)
    close(y, expected)
    probe = draw(2, 4, 2, seed=2)
    by_x, by_weight = grad(expected, [x, weight], probe)
    for a, b in zip(grad(y, [x, weight], probe), (by_x, by_weight), strict=True):
        close(a, b)
    close(*grad(gather_matmul(x, weight.detach(), met), x, probe), by_x)
    close(*grad(gather_matmul(x.detach(), weight, met), weight, probe), by_weight)
    assert gradcheck(lambda x, w: gather_matmul(x, w, met), (x, weight))
    assert gradgradcheck(lambda x, w: gather_matmul(x, w, met), (x, weight))
    assert torch.equal(met.T.T.table, met.table)
    close(gather_matmul(draw(4, 2), draw(3, 2, 3), met.T), torch.einsum("kmn,np,kpq->mq", A, draw(4, 2), draw(3, 2, 3)))


def test_typed_edges_that_meet_once_are_gathered() -> None:
    edge_index, edge_type = torch.tensor([[0, 1, 2, 1, 0], [1, 2, 0, 1, 2]]), torch.tensor([0, 0, 0, 1, 1])
    bound = bases.Edges(2).bind(edge_index, edge_type=edge_type, dtype=torch.float64)
    assert bound.matchings is not None
    assert (bound.matchings.entries, bound.matchings.is_dense) == (5, True)
    conv, x = BasisConv(3, 2, bases.Edges(2)).double(), draw(3, 3)
    results = {}
    for order in ("compacted", "a_first"):
        conv.order = order
        results[order] = conv(x, edge_index, edge_type=edge_type)
    close(results["compacted"], results["a_first"])
    for edges, types, weight in (
        (torch.cat([edge_index, edge_index[:, :1]], 1), torch.cat([edge_type, edge_type[:1]]), None),  # an edge twice
        (torch.tensor([[0, 1, 2], [1, 1, 2]]), torch.tensor([0, 0, 1]), None),  # two sources of one target
        (torch.tensor([[0, 0, 2], [0, 1, 2]]), torch.tensor([0, 0, 1]), None),  # two targets of one source
        (edge_index, edge_type, torch.rand(5, dtype=torch.float64)),
    ):
        assert bases.Edges(2).bind(edges, weight, types, dtype=torch.float64).matchings is None


@pytest.mark.parametrize(
    ("lead", "shape", "bias"),
    [((), (2, 3, 2), True), ((2,), (4, 3), True), ((), (2, 3, 2), False)],
    ids=["rows", "batch", "rows without biases"],
)
@pytest.mark.sweep(1)
def test_several_maps_in_one_product(lead: tuple[int, ...], shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    scales = (1.0, 0.5, -2.0)
    weights = [torch.randn(shape, dtype=torch.float64).requires_grad_() for _ in scales]
    shifts = [torch.randn(4, dtype=torch.float64).requires_grad_() if bias else None for _ in scales]
    x = torch.randn(*lead, 2, 3, dtype=torch.float64).requires_grad_()
    leaves = [t for t in (x, *weights, *shifts) if t is not None]
    maps = [Affine(*one) for one in zip(weights, shifts, scales, strict=True)]

    def each() -> list[Tensor]:
        found = []
        for w, b, s, _ in maps:
            members = [w] if w.dim() == 2 else [member.t() for member in w]
            y = torch.cat([x @ member.t() for member in members], -1)
            found.append(s * (y if b is None else y + b))
        return found

    for found, expected in zip(affine(x, maps), each(), strict=True):
        assert_close(found, expected)
    with torch.no_grad():
        for found, expected in zip(affine(x, maps), each(), strict=True):
            assert_close(found, expected)
    assert gradcheck(lambda *_: tuple(affine(x, maps)), leaves)
    assert gradgradcheck(lambda *_: tuple(affine(x, maps)), leaves)


@pytest.mark.parametrize("shape", [(5, 3), (2, 5, 3)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_matmul_with_a_bias(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Of the dtype of the product, or of another, to which it is raised as torch does."""
    x, weight, bias = (
        draw(*shape).requires_grad_(),
        draw(3, 4).requires_grad_(),
        draw(4).detach().to(dtype).requires_grad_(),
    )
    close(matmul(x, weight, bias), x @ weight + bias)
    assert gradcheck(lambda x, w: matmul(x, w, bias), (x, weight))
    down = torch.randn(*shape[:-1], 4, dtype=torch.float64)
    (found,) = torch.autograd.grad(matmul(x, weight, bias), bias, down)
    torch.testing.assert_close(found, down.flatten(0, -2).sum(0).to(dtype))


class Elsewhere(Tensor):
    """Says that it is on a GPU, though it is not: what is done there in other operations than on the CPU."""

    device = SimpleNamespace(type="elsewhere", index=0)
    is_cuda, is_cpu = True, False


SORTED, UNSORTED = torch.tensor([0, 0, 2, 2, 2, 5]), torch.tensor([2, 0, 5, 2, 0, 2])
OTHER, VALUES = torch.tensor([3, 1, 0, 2, 2, 4]), torch.tensor([100.0, -3.0, 0.5, 2.0, 7.0, 1.0])
IN_OTHER_OPERATIONS = {
    "positions": lambda here: positions(here(SORTED > 1)),
    "extremes": lambda here: extremes(here(UNSORTED)),
    "in range": lambda here: [in_range(here(UNSORTED - low), size) for low in (0, 1) for size in (5, 6)],
    **{
        f"{name}, {group}, {dtype}": lambda here, f=f, group=group, dtype=dtype: f(
            here(group.to(dtype)), here(OTHER.to(dtype)), 6
        )
        for name, f in (("compress", compress), ("grouped", _grouped))
        for group in (SORTED, UNSORTED)
        for dtype in (torch.int32, torch.int64)
    },
    **{
        f"{name}, {by}": lambda here, f=f, by=by: f(here(VALUES), getattr(Pattern(OTHER, SORTED, 6, 6), by))
        for name, f in (("collect", collect), ("exponentials", exponentials))
        for by in ("at_source", "at_target")
    },
}


@pytest.mark.parametrize("name", IN_OTHER_OPERATIONS)
def test_what_is_done_on_another_device(name: str) -> None:
    operation = IN_OTHER_OPERATIONS[name]
    expected, found = (tree_leaves(operation(here)) for here in (lambda t: t, lambda t: t.as_subclass(Elsewhere)))
    for one, other in zip(found, expected, strict=True):
        assert isinstance(one, Tensor) == isinstance(other, Tensor)
        if isinstance(one, Tensor):
            assert_close(one.as_subclass(Tensor).to(other.dtype), other, rtol=1e-6, atol=0)
        else:
            assert one == other


def test_which_tensors_kernels_in_triton_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain ones, of one device: they read memory."""
    x = draw(3, 2)
    assert not products._in_triton(x)
    monkeypatch.setattr(products, "starts_triton", lambda device: True)
    assert products._in_triton(x, None, x.long())
    for other in (x.as_subclass(Elsewhere), x.to("meta"), torch._neg_view(x)):
        assert not products._in_triton(x, other)
    assert not products._in_triton(x.long())
