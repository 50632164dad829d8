"""The contract can fail: families with one thing wrong do not pass it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pyg_basisconv import bases
from pyg_basisconv.bases import Basis, BoundBasis, EdgeList
from pyg_basisconv.basis import BoundBasis as Bound
from pyg_basisconv.graph import Graph
from pyg_basisconv.typed_edges import explicit
from tests import cases, contract, oracle


class Wrong(Basis):
    """A family after something was done to it when it was bound."""

    def __init__(self, basis: Basis, change: Callable[[BoundBasis], BoundBasis]) -> None:
        super().__init__(basis.K)
        self.part, self.change = basis, change

    def on(self, graph: Graph) -> BoundBasis:
        return self.change(self.part.build(graph))


def rewrite(change: Callable[[EdgeList], EdgeList]) -> Callable[[BoundBasis], BoundBasis]:
    return lambda b: explicit(b.K, b.M, b.N, change(b.edges()), b.dtype)


def drop_one(e: EdgeList) -> EdgeList:
    return EdgeList(*(t[1:] for t in e))


def turn(e: EdgeList) -> EdgeList:
    return EdgeList(e.type, e.target, e.source, e.weight)


def merge_repeats(e: EdgeList) -> EdgeList:
    """What writing, instead of adding, does to edges that repeat."""
    places = {(int(k), int(m), int(n)): i for i, (k, m, n) in enumerate(zip(*e[:3], strict=True))}
    return EdgeList(*(t[list(places.values())] for t in e))


class Broken(Bound):
    """Everything as it should be but for what a subclass overrides."""

    def __init__(self, right: BoundBasis) -> None:
        self.right = right
        self.K, self.M, self.N, self.dtype, self.device = right.K, right.M, right.N, right.dtype, right.device

    def edges(self) -> EdgeList:
        return self.right.edges()

    @property
    def explicit(self):
        return self.right.explicit

    @property
    def requires_grad(self) -> bool:
        return self.right.requires_grad

    @property
    def T(self) -> BoundBasis:
        return self.right.T

    def iterate(self, x):
        return self.right.iterate(x)

    def combine(self, z):
        return self.right.combine(z)

    def each(self, z):
        return self.right.each(z)


class DetachedWeight(Broken):
    def combine(self, z):
        return self.right.combine(z).detach() + (z if isinstance(z, Tensor) else torch.stack(list(z))).sum() * 0


class HalfGradient(Broken):
    """Right values and a wrong gradient of x."""

    def iterate(self, x):
        return self.right.iterate(0.5 * x + (0.5 * x).detach())


class WrongTranspose(Broken):
    @property
    def T(self) -> BoundBasis:
        return self.right


class SlotsSwapped(Broken):
    def each(self, z):
        return self.right.each(z).flip(0)


class RoughSum(Broken):
    """Accumulates at low precision."""

    def combine(self, z):
        return self.right.combine(z).to(torch.bfloat16).to(self.dtype)


class Random(Broken):
    """Right to 1e-11, but not the same bits twice."""

    def iterate(self, x):
        return (u * (1 + 1e-5 * torch.rand(())) for u in self.right.iterate(x))

    def combine(self, z):
        return self.right.combine(z) * (1 + 1e-5 * torch.rand(()))


class FirstNodeMarked(Broken):
    """Not equivariant: node 0 is told from the others."""

    def iterate(self, x):
        return (torch.cat([u[..., :1, :] * 2, u[..., 1:, :]], -2) for u in self.right.iterate(x))


class Stale(Basis):
    """Keeps what it was first bound to, as PyG's cached=True."""

    def __init__(self, basis: Basis) -> None:
        super().__init__(basis.K)
        self.part, self.kept = basis, None

    def on(self, graph: Graph) -> BoundBasis:
        self.kept = self.part.build(graph) if self.kept is None else self.kept
        return self.kept


ADJACENCY = (bases.Adjacency, cases.graph, oracle.adjacency)
POWERS = (lambda: bases.Powers(3), cases.graph, lambda g: oracle.powers(oracle.adjacency(g, "sym"), 3))
WRONG = {
    # name: (wrong basis, graph, right matrices, the checks that must fail)
    "dropped-edge": (
        lambda: Wrong(ADJACENCY[0](), rewrite(drop_one)),
        *ADJACENCY[1:],
        "members written_out orders gradients layouts",
    ),
    "A-for-A^T": (lambda: bases.Adjacency().T, *ADJACENCY[1:], "members written_out orders gradients strides"),
    "repeats-lost": (lambda: Wrong(ADJACENCY[0](), rewrite(merge_repeats)), *ADJACENCY[1:], "members orders"),
    "norm": (
        lambda: bases.Adjacency("mean"),
        cases.graph,
        lambda g: oracle.adjacency(g, "rw"),
        "members orders precision",
    ),
    "loops-added-twice": (
        lambda: bases.Adjacency("sym", 2.0),
        cases.graph,
        lambda g: oracle.adjacency(g, "sym", True),
        "members",
    ),
    "degree-of-the-other-end": (bases.Degree, cases.graph, lambda g: oracle.degree(g.turned), "members orders"),
    "off-by-one": (
        lambda: bases.Mix([[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]], bases.Powers(4)),
        *POWERS[1:],
        "members orders gradients",
    ),
    "swapped-factors": (
        lambda: bases.Diffusion(2, "out") @ bases.Powers(2),
        cases.graph,
        lambda g: oracle.product(oracle.powers(oracle.adjacency(g, "sym"), 2), oracle.diffusion(g, 2, "out")),
        "members orders",
    ),
    "swapped-slots": (
        lambda: bases.Mix(torch.eye(4)[[0, 2, 1, 3]], bases.Powers(2) @ bases.Diffusion(2, "out")),
        cases.graph,
        lambda g: oracle.product(oracle.powers(oracle.adjacency(g, "sym"), 2), oracle.diffusion(g, 2, "out")),
        "members",
    ),
    "lambda-ignored": (
        lambda: bases.Chebyshev(3),
        lambda: cases.batched(None),
        lambda g: oracle.chebyshev(g, 3, "sym", 1.5),
        "orders",
    ),
    "weight-detached": (lambda: Wrong(ADJACENCY[0](), DetachedWeight), *ADJACENCY[1:], "gradients"),
    "half-gradient": (lambda: Wrong(ADJACENCY[0](), HalfGradient), *ADJACENCY[1:], "gradients strides"),
    "T-is-A": (lambda: Wrong(ADJACENCY[0](), WrongTranspose), *ADJACENCY[1:], "members written_out adjoint"),
    "each-flipped": (lambda: Wrong(POWERS[0](), SlotsSwapped), *POWERS[1:], "members adjoint thetas"),
    "rough": (lambda: Wrong(ADJACENCY[0](), RoughSum), *ADJACENCY[1:], "members orders precision"),
    "random": (lambda: Wrong(ADJACENCY[0](), Random), *ADJACENCY[1:], "determinism"),
    "marked-node": (lambda: Wrong(ADJACENCY[0](), FirstNodeMarked), *ADJACENCY[1:], "permutation members"),
    "stale": (lambda: Stale(ADJACENCY[0]()), *ADJACENCY[1:], "freshness"),
    "stale-types": (lambda: Stale(bases.Edges(3)), lambda: cases.typed(3), lambda g: oracle.edges(g, 3), "freshness"),
}
PAIRS = [(name, check) for name, (*_, checks) in WRONG.items() for check in checks.split()]


@pytest.mark.parametrize(("name", "check"), PAIRS, ids=[f"{check}-{name}" for name, check in PAIRS])
@pytest.mark.sweep(14)
def test_wrong_family_fails(name: str, check: str) -> None:
    basis, graph, matrices, _ = WRONG[name]
    with pytest.raises(AssertionError):
        contract.CHECKS[check](basis(), graph(), matrices)


def test_every_check_can_fail() -> None:
    """But for two, which no wrong family fails: they are tested by wrong layers below."""
    assert {check for _, check in PAIRS} | {"sparse_features", "inference"} == set(contract.CHECKS)


def test_sparse_features_bite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pyg_basisconv.theta.base.sparse_matmul", lambda x, weight: x.to_dense().detach().abs() @ weight
    )
    with pytest.raises(AssertionError):
        contract.check_sparse_features(*(f() for f in ADJACENCY[:2]), ADJACENCY[2])


class KeepsProducts(Broken):
    """Keeps its first products, whatever mode they were made in."""

    def iterate(self, x):
        if "products" not in self.__dict__:
            self.products = list(self.right.iterate(x))
        return iter(self.products)


def test_inference_bites() -> None:
    basis = Wrong(ADJACENCY[0](), KeepsProducts)
    bound = contract.bind(basis, ADJACENCY[1]())
    basis.on = lambda graph: bound
    with pytest.raises((AssertionError, RuntimeError)):
        contract.check_inference(basis, *(ADJACENCY[1](), ADJACENCY[2]))


def test_the_right_families_pass() -> None:
    """The wrappers themselves are harmless: it is the change that the checks see."""
    for wrapper in (Broken, rewrite(lambda e: e)):
        for check in ("members", "adjoint", "orders", "gradients", "determinism", "permutation"):
            contract.CHECKS[check](Wrong(ADJACENCY[0](), wrapper), *(ADJACENCY[1](), ADJACENCY[2]))
