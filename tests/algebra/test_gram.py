"""The inner products of the matrices of a family, and what follows from them, are what dense matrices say."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.autograd import gradcheck
from torch.testing import assert_close

from pyg_basisconv import BasisConv, bases, mechanisms
from pyg_basisconv.algebra.gram import Gram, Places, gram
from pyg_basisconv.basis import BoundBasis, EdgeList
from pyg_basisconv.typed_edges import explicit
from tests import cases
from tests.contract import bind, draw

DOUBLE = torch.float64


def family(A: Tensor) -> BoundBasis:
    """A family of the entries of dense matrices that are not zero, in any order, some of them in two parts."""
    kind, source, target = (A != 0).nonzero(as_tuple=True)
    weight = A[kind, source, target]
    kind, source, target = (torch.cat([t, t[::2]]) for t in (kind, source, target))
    weight = torch.cat([torch.where(torch.arange(len(weight)) % 2 == 0, 0.25, 1.0) * weight, 0.75 * weight[::2]])
    order = torch.randperm(len(kind), generator=torch.Generator().manual_seed(3))
    edges = EdgeList(kind[order], source[order], target[order], weight[order])
    return explicit(*A.shape, edges, dtype=DOUBLE)


def inner_products(A: Tensor) -> Tensor:
    G = torch.zeros(len(A), len(A), dtype=DOUBLE)
    for k in range(len(A)):
        for l in range(len(A)):  # noqa: E741
            for m in range(A.shape[1]):
                for n in range(A.shape[2]):
                    G[k, l] += A[k, m, n] * A[l, m, n]
    return G


def pseudo_solution(A: Tensor, phi: Tensor) -> tuple[Tensor, float]:
    """The theta of least norm of all that are nearest, (K, M, N), (M, N, *) -> (K, *), and how well it can be known.

    What is independent is told of matrices that are scaled to norm 1: (1e3, 1e-3) are, though one is small.
    """
    columns = A.flatten(1).t()  # (M N, K)
    size = columns.norm(dim=0)
    size = torch.where(size > 0, size, 1)
    found = torch.linalg.pinv(columns / size, rtol=1e-7) @ phi.reshape(columns.shape[0], -1) / size.unsqueeze(1)
    # Of all that are nearest, the one without a part that makes nothing.
    _, S, V = torch.linalg.svd(columns / size, full_matrices=True)
    rank = int((S > 1e-7).sum())
    vectors = V[rank:].t() / size.unsqueeze(1)
    rounding = 0.0
    if vectors.shape[1]:
        q = torch.linalg.qr(vectors).Q
        found = found - q @ (q.t() @ found)
        # A number of V is off by eps / the least of S, whatever its size; here it is divided by one of the sizes.
        rounding = torch.finfo(DOUBLE).eps * float(size.max() / size.min()) / (float(S[rank - 1]) if rank else 1.0)
    return found.reshape(len(A), *phi.shape[2:]), rounding


def check_gram(bound: BoundBasis, A: Tensor, made: Callable[[BoundBasis], Gram] = gram) -> None:
    found, G = made(bound), inner_products(A)
    assert_close(found.matrix, G, rtol=1e-10, atol=1e-12)
    scaled = A.flatten(1) / A.flatten(1).norm(dim=1, keepdim=True).clamp(min=1e-300)
    singular = torch.linalg.svdvals(scaled) if scaled.numel() else torch.zeros(0, dtype=DOUBLE)
    rank = int((singular > 1e-6).sum())
    assert found.rank == rank == len(A) - len(found.dependent)
    if rank == len(A):
        assert found.condition == pytest.approx(float(singular[0] / singular[-1]), rel=1e-6)
    else:
        assert found.condition == math.inf
    # There are as many relations as matrices too many, and they hold.
    assert found.relations.shape == (len(A), len(A) - rank)
    assert torch.linalg.matrix_rank(found.relations).item() == len(A) - rank
    assert_close(
        torch.tensordot(found.relations.t(), A, 1), A.new_zeros(len(A) - rank, *A.shape[1:]), rtol=0, atol=1e-7
    )
    products = torch.tensordot(A.flatten(1), draw(A[0].numel(), 3), 1)
    phi = draw(A[0].numel(), 3).view(*A.shape[1:], 3)
    expected, rounding = pseudo_solution(A, phi)
    bound = 64 * rounding * float(expected.abs().max())
    assert_close(found.solve(products), expected, rtol=1e-6, atol=max(1e-7, bound))
    rows = A.flatten(1)
    size = rows.norm(dim=1, keepdim=True)
    scaled = rows / torch.where(size > 0, size, 1)
    for k in range(len(A)):
        others = torch.cat([scaled[:k], scaled[k + 1 :]])
        nearest = torch.linalg.pinv(others.t(), rtol=1e-7) @ rows[k] if len(others) else rows.new_zeros(0)
        left = (rows[k] - nearest @ others).square().sum()
        assert_close(
            found.squared_distances[k], left, rtol=1e-6, atol=1e-9, msg=lambda m, k=k: f"A_{k} from the others: {m}"
        )


@pytest.mark.parametrize(
    "name", [name for name in cases.CONSTANT if name.endswith(("random", "batch", "typed", "none"))]
)
@pytest.mark.sweep(30)
def test_every_family(name: str) -> None:
    case = cases.CASES[name]
    g = case.graph()
    check_gram(bind(case.basis(), g), case.matrices(g))


@st.composite
def families(draw_: st.DrawFn) -> Tensor:
    """Random sparse matrices, some of them zero, sums of others, or much larger than the others."""
    K, M, N = draw_(st.integers(1, 6)), draw_(st.integers(1, 5)), draw_(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw_(st.integers(0, 10**6)))
    A = torch.randint(-3, 4, (K, M, N), generator=generator).double()
    A = A * (torch.rand(K, M, N, generator=generator) < draw_(st.sampled_from([0.2, 0.5, 1.0])))
    for k in range(K):
        how = draw_(st.sampled_from(["own", "own", "own", "sum", "zero", "large", "small"]))
        if how == "sum" and k:
            A[k] = torch.tensordot(torch.randint(-2, 3, (k,), generator=generator).double(), A[:k], 1)
        A[k] = A[k] * {"zero": 0, "large": 1e3, "small": 1e-3}.get(how, 1)
    return A


@settings(max_examples=60)
@given(families())
def test_random_families(A: Tensor) -> None:
    check_gram(family(A), A)


SENTENCES = {
    "a sum": (lambda a, b: [a, b, a - 2 * b], ["A_2 = A_0 - 2 A_1"]),
    "the issue's": (lambda a, b: [a, b, a * b, 2 * a + b], ["A_3 = 2 A_0 + A_1"]),
    "a multiple": (lambda a, b: [a, -a, b], ["A_1 = -A_0"]),
    "a zero": (lambda a, b: [0 * a, a, b], ["A_0 = 0"]),
    "two of them": (lambda a, b: [a, 0.125 * a, b, 0 * a, a + b], ["A_1 = 0.125 A_0", "A_3 = 0", "A_4 = A_0 + A_2"]),
    "of other sizes": (lambda a, b: [1e6 * a, 1e-6 * b, a + b], ["A_2 = 1e-06 A_0 + 1e+06 A_1"]),
    "none": (lambda a, b: [a, b], []),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_dependent_matrices_are_named(name: str) -> None:
    make, expected = SENTENCES[name]
    found = gram(family(torch.stack(make(draw(4, 5), draw(4, 5, seed=1)))))
    assert found.dependent == expected
    assert all(sentence in repr(found) for sentence in expected)


def test_a_later_matrix_that_is_more_independent_is_taken_before() -> None:
    a, b = draw(4, 5), draw(4, 5, seed=1)
    found = gram(family(torch.stack([a, a + 1e-4 * b, b])))
    assert found.dependent == ["A_1 = A_0 + 0.0001 A_2"]


def test_nearly_dependent_matrices_are_not_dependent() -> None:
    a, b = draw(4, 5), draw(4, 5, seed=1)
    b = b / b.norm() * a.norm()
    found = gram(family(torch.stack([a, a + 1e-4 * b])))
    assert (found.rank, found.dependent) == (2, [])
    assert 1e4 < found.condition < 4e4


def test_the_rounding_of_many_products_makes_no_rank() -> None:
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(3000, (2, 60_000), generator=generator)
    basis = bases.Identity() + bases.Adjacency("sym") + bases.Laplacian("sym")
    found = gram(basis, edge_index, 0.5 + torch.rand(60_000, generator=generator), size=3000)
    assert found.rank == 3  # loops are no part of a Laplacian
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    both = torch.cat([edge_index, edge_index.flip(0)], 1)
    assert gram(basis, both, size=3000).dependent == ["A_2 = A_0 - A_1"]


def test_a_basis_is_bound_in_double_precision() -> None:
    edge_index = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]])
    found, expected = gram(bases.Chebyshev(3), edge_index), bases.Chebyshev(3).bind(edge_index, dtype=DOUBLE)
    assert_close(found.matrix, inner_products(expected.to_dense()), rtol=1e-14, atol=1e-14)


def test_one_graph_of_a_batch() -> None:
    conv = BasisConv(4, 4, bases.Attention(3, mechanisms.Dot(2)) + bases.Identity()).double()
    _, A = conv(draw(2, 5, 4), return_attention=True)
    check_gram(A[1], A[1].to_dense().detach())
    with pytest.raises(ValueError, match=r"^basis: expected one graph, got a batch of \(2,\); take one of them"):
        gram(A)


def test_gradients_reach_weights_that_learn() -> None:
    edge_index, kind = torch.tensor([[0, 1, 2, 2, 0], [1, 2, 0, 1, 1]]), torch.tensor([0, 1, 0, 1, 0])
    weight, products = draw(5).requires_grad_(), draw(3, 2)

    def both(weight: Tensor) -> tuple[Tensor, Tensor]:
        found = gram((bases.Edges(2) + bases.Identity()).bind(edge_index, weight, kind))
        return found.matrix, found.solve(products)

    assert gradcheck(both, (weight,))


def test_gradients_pass_dependent_matrices() -> None:
    edge_index, weight = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]]), draw(4).requires_grad_()
    basis = bases.Mix([[1.0, 0.0], [0.0, 1.0], [1.0, 2.0]], bases.Identity() + bases.Edges())

    def solve(weight: Tensor) -> Tensor:
        return gram(basis, edge_index, weight).solve(draw(3, 2))

    assert gram(basis, edge_index, weight).rank == 2
    assert gradcheck(solve, (weight,))


def test_nothing_of_the_size_of_the_matrices_is_made() -> None:
    N = 10**6
    edge_index, weight = torch.tensor([[0, 5, 5, 5], [9, N - 1, N - 1, N - 1]]), torch.tensor([1.0, 2.0, 3.0, 4.0])
    found = gram(bases.Edges(3), edge_index, weight, torch.tensor([0, 0, 0, 1]), size=N)
    assert_close(found.matrix, torch.tensor([[26.0, 20.0, 0.0], [20.0, 16.0, 0.0], [0.0, 0.0, 0.0]]).double())
    assert found.dependent == ["A_2 = 0"]


BAD = {
    "no basis": (lambda: gram(3), r"^basis: expected a Basis, or what basis.bind"),
    "no edges": (lambda: gram(bases.Adjacency()), r"^basis: expected the edges that Adjacency\(\) needs, got None"),
    "bound, and edges": (
        lambda: gram(bases.Shifts(4, [0]).bind(), size=4),
        r"^basis: expected a Basis, where it is to be bound",
    ),
    "no size": (lambda: gram(bases.Identity()), r"^size: expected the numbers of sources and targets of Identity"),
    "no grid": (lambda: gram(bases.Window(None, (3, 3))), r"^size: expected the numbers of sources and targets"),
    "content": (
        lambda: gram(bases.Attention(2, mechanisms.Dot(2)), size=4),
        r"^basis: expected a bound one, where it is computed from features",
    ),
    "other products": (
        lambda: gram(bases.Shifts(4, [0, 1])).solve(torch.zeros(3)),
        r"^products: expected 2 rows, one for each matrix, got \(3,\)",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()


def _each_by_itself(bound: BoundBasis) -> Gram:
    """Entries meet nothing but themselves, and those of one place and matrix are not summed."""
    kind, _, _, weight = bound.edges()
    each = torch.arange(len(kind))
    return Places(each, bound.K, each, kind.long(), weight).gram


WRONG: dict[str, Callable[[BoundBasis], Gram]] = {
    "counts": lambda bound: Places.of(bound).pattern.gram,
    "each entry by itself": _each_by_itself,
    "no products of different ones": lambda bound: Gram(gram(bound).matrix.diagonal().diag(), 4),
    "a rank too many": lambda bound: Gram(gram(bound).matrix + 1e-3 * torch.eye(bound.K), 4),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_check_can_fail(name: str) -> None:
    A = draw(3, 4, 5)
    A = torch.stack([*A, A[0] + A[1]])
    check_gram(family(A), A)
    with pytest.raises(AssertionError):
        check_gram(family(A), A, WRONG[name])
