"""Diffusion wavelets: what they are, what they cost, what they refuse, and that the checks can fail."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pyg_basisconv import BasisConv, bases, theta
from pyg_basisconv.bases.adjacency import Adjacency
from pyg_basisconv.bases.mix import BoundMix
from pyg_basisconv.bases.polynomial import BoundPolynomial
from pyg_basisconv.bases.wavelets import lazy
from pyg_basisconv.basis import EdgeList
from pyg_basisconv.typed_edges import TypedEdges
from tests import cases, contract, oracle
from tests.contract import DOUBLE, bind, close, draw, tensors

GRAPHS = {
    "directed": cases.graph,
    "undirected": cases.undirected,
    "unweighted": cases.unweighted,
    "no edges": lambda: cases.graph(E=0),
    "larger": lambda: cases.undirected(M=30, E=60),
}
OPERATORS: dict[str, Callable[[], bases.Basis]] = {
    "rw": lambda: bases.Adjacency("rw"),
    "sym": lambda: bases.Adjacency("sym"),
    "GCN": lambda: bases.Adjacency("sym", True),
    "of a product": lambda: bases.Adjacency("mean") @ bases.Adjacency("rw"),
    "of no edges": bases.Identity,
}


def test_as_gao_wolf_and_hirn_have_it():
    """Psi_j x = P^(2^(j-1)) x - P^(2^j) x, with P = (I + W D^-1) / 2 whose columns sum to one."""
    g = cases.undirected(M=9, E=20)
    W = oracle.matrix(g.M, g.N, g.edges, g.weight)
    P = 0.5 * (torch.eye(9, dtype=DOUBLE) + W * oracle.power(W.sum(0), -1.0))
    x = draw(9, 3)
    found = bind(bases.Wavelets(5), g).expand(x)
    close(found[0], x - P @ x)
    for j in range(1, 5):
        low, high = (torch.linalg.matrix_power(P, n) for n in (2**j, 2 ** (j - 1)))
        close(found[j], high @ x - low @ x)
    close(found[5], torch.linalg.matrix_power(P, 16) @ x)
    linked = W.sum(0) > 0  # where a walk may start: what is nowhere linked fades
    assert bind(bases.Wavelets(5), g).to_dense()[:5, linked].sum(2).abs().max() < 1e-15


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("graph", GRAPHS)
def test_with_the_low_pass_they_sum_to_the_identity(graph: str, operator: str):
    g, J = GRAPHS[graph](), 4
    bound = bind(bases.Wavelets(J, OPERATORS[operator]()), g)
    x = draw(2, g.M, 3)
    close(bound.expand(x).sum(0), x, 1e-12)
    close(bound.combine(x.expand(J + 1, *x.shape)), x, 1e-12)
    without = bind(bases.Wavelets(J, OPERATORS[operator](), low_pass=False), g)
    close(without.combine(x.expand(J, *x.shape)), x - bound.expand(x)[-1], 1e-12)


@pytest.mark.parametrize("J", range(1, 7))
def test_a_bank_of_symmetric_ones_never_lengthens(J: int):
    """The squares of J + 1 responses in [0, 1] that sum to one sum to something between 1 / (J + 1) and 1."""
    g = cases.undirected(M=12, E=24, seed=J)
    bound = bind(bases.Wavelets(J, bases.Adjacency("sym")), g)
    x = draw(12, 50, seed=J)
    share = bound.expand(x).square().sum((0, 1)) / x.square().sum(0)
    assert share.max() <= 1 + 1e-12
    assert share.min() >= 1 / (J + 1)


@pytest.mark.parametrize("operator", [None, bases.Adjacency("mean") @ bases.Adjacency("rw")], ids=["edges", "product"])
def test_gradients_through_the_weights_of_edges(operator: bases.Basis | None):
    g = cases.graph(M=5, E=7)
    edge_index, weight = tensors(g)["edge_index"], g.weight.clone().requires_grad_()
    x, z = draw(5, 2).requires_grad_(), draw(4, 5, 2, seed=1).requires_grad_()

    def evaluations(w: Tensor, x: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        bound = bases.Wavelets(3, operator).bind(edge_index, w, size=5)
        return bound.expand(x), bound.combine(z), bound.each(z), bound.T.combine(z), bound.to_dense()

    assert torch.autograd.gradcheck(evaluations, (weight, x, z), fast_mode=True)


class Counted(TypedEdges):
    """A matrix that counts how often, and at which width, it is applied."""

    widths: list[int]

    def combine(self, z) -> Tensor:
        self.widths.append(z[0].numel() // self.M)
        return super().combine(z)


def counted(J: int, low_pass: bool) -> tuple[BoundMix, Counted]:
    bound = bind(bases.Wavelets(J, low_pass=low_pass), cases.graph())
    lazily = bound.family.operator
    walk = Counted(lazily.edge_set, lazily.weight, DOUBLE)
    walk.widths = []
    return bound.remake([bound.family.remake([walk])]), walk


@pytest.mark.parametrize("low_pass", [True, False])
@pytest.mark.parametrize("J", [1, 2, 3, 6])
def test_as_many_products_as_the_last_power_has(J: int, low_pass: bool):
    """2^(J-1), forward and backward; what is planned is what is done; and each member walks no further than it must."""
    bound, walk = counted(J, low_pass)
    widths = walk.widths
    for evaluate, kind in (
        (lambda: bound.expand(draw(6, 3)), "expand"),
        (lambda: bound.combine(draw(bound.K, 6, 3)), "combine"),
    ):
        widths.clear()
        evaluate()
        assert widths == [3] * 2 ** (J - 1)
        assert bound.work(kind) == walk.work("combine").times(2 ** (J - 1))
    widths.clear()
    bound.each(draw(bound.K, 6, 3))
    assert sum(widths) == 3 * (sum(2**j for j in range(J)) + low_pass * 2 ** (J - 1))
    assert bound.work("each").entries >= walk.work("combine").entries * sum(widths) // 3  # of mixtures it is a bound


def test_what_is_none_is_not_walked():
    bound, walk = counted(4, True)
    widths = walk.widths
    z = draw(6, 3)
    close(bound.combine([None, z, None, None, None]), bound.expand(z)[1])
    widths.clear()
    bound.combine([None, z, None, None, None])
    assert len(widths) == 2
    with pytest.raises(ValueError, match="z: expected at least one member"):
        bound.combine([None] * 5)


def test_nothing_is_built(monkeypatch: pytest.MonkeyPatch):
    """A layer with gradients never has the powers, whatever its order."""

    def built(self: BoundPolynomial) -> EdgeList:
        raise AssertionError("it is written out")

    monkeypatch.setattr(BoundPolynomial, "edges", built)
    nodes = torch.arange(2_000)
    edge_index = torch.stack([nodes.repeat(3), torch.cat([nodes.roll(1), nodes.roll(7), nodes.roll(77)])])
    edge_index = torch.cat([edge_index, edge_index.flip(0)], 1)
    weight = torch.rand(edge_index.shape[1]).requires_grad_()
    for kind in (theta.Full(), theta.Separable(1)):
        for order in ("a_first", "theta_first", "auto"):
            conv = BasisConv(2, 3, bases.Wavelets(5), kind, order=order)
            y = conv(torch.randn(2_000, 2), edge_index, weight)
            y.sum().backward()
            assert y.isfinite().all()
    assert weight.grad.isfinite().all()


def test_the_lazy_walk_is_written_out_where_its_walk_is():
    g = cases.graph()
    walk = bind(bases.Adjacency("rw"), g)
    assert isinstance(lazy(walk), TypedEdges)
    assert lazy(walk).edge_set.source.numel() == walk.edge_set.source.numel() + g.M
    composed = bind(bases.Adjacency("rw") @ bases.Adjacency("rw"), g)
    assert not isinstance(lazy(composed), TypedEdges)
    for bound in (walk, composed):
        half = (torch.eye(g.M, dtype=DOUBLE) + bound.to_dense()[0]) / 2
        close(lazy(bound).to_dense()[0], half)


def test_a_small_value():
    assert repr(bases.Wavelets(3)) == "Wavelets(J=3, operator=Adjacency(norm='rw'))"
    assert repr(bases.Wavelets(2, bases.Degree(), False)) == "Wavelets(J=2, operator=Degree(), low_pass=False)"
    assert (bases.Wavelets(3).K, bases.Wavelets(3, low_pass=False).K) == (4, 3)
    assert not bases.Wavelets(3, bases.Shifts(None, [1])).needs_edges
    g = tensors(cases.graph())
    graph = bases.Wavelets(3).bind(**g), bases.Wavelets(3, low_pass=False).bind(**g)
    assert (graph[0].K, graph[1].K) == (4, 3)


def test_on_a_sequence():
    """Of a shift: the walk that stays or goes one on, whose powers are binomial."""
    bound = bases.Wavelets(3, bases.Shifts(None, [1])).bind(size=6, dtype=DOUBLE)
    rows = [[16, 0, 0, 0, 0, 0], [8, 8, 0, 0, 0, 0], [4, 8, 4, 0, 0, 0], [1, 4, 6, 4, 1, 0]]
    stays, *walked = torch.tensor(rows, dtype=DOUBLE) / 16
    differences = [stays - walked[0], walked[0] - walked[1], walked[1] - walked[2]]
    close(bound.to_dense()[:, 0], torch.stack([*differences, walked[2]]))


BAD: dict[str, tuple[str, Callable[[], object]]] = {
    "J = 0": ("J: expected an integer from 1 to 24", lambda: bases.Wavelets(0)),
    "J negative": ("J: expected an integer", lambda: bases.Wavelets(-2)),
    "J a fraction": ("J: expected an integer", lambda: bases.Wavelets(2.0)),
    "J a truth": ("J: expected an integer", lambda: bases.Wavelets(True)),
    "operator of two": ("operator: expected a basis with K = 1", lambda: bases.Wavelets(2, bases.Powers(2))),
    "operator a word": ("operator: expected a basis with K = 1", lambda: bases.Wavelets(2, "rw")),
    "operator of content": (
        "operator: expected a basis that reads no features",
        lambda: bases.Wavelets(2, attention()),
    ),
    "low_pass a number": ("low_pass: expected True or False", lambda: bases.Wavelets(2, low_pass=1)),
    "more sources": ("graph: expected as many sources as targets", lambda: bind(bases.Wavelets(2), cases.graph(N=3))),
    "no edges given": ("edge_index: expected the edges", lambda: BasisConv(2, 2, bases.Wavelets(2))(torch.ones(3, 2))),
    "z of other K": ("z: expected 3 members", lambda: bind(bases.Wavelets(2), cases.graph()).combine(draw(2, 6, 1))),
}


def attention() -> bases.Basis:
    from pyg_basisconv.mechanisms import Dot

    return bases.Attention(1, Dot(2))


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str):
    message, call = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()


class Changed(bases.Wavelets):
    """Wavelets whose bound form has other classes or steps, or is of another walk."""

    def __init__(
        self,
        mix: type[BoundMix] = BoundMix,
        powers: type[BoundPolynomial] = BoundPolynomial,
        steps: tuple[int, ...] = (1, 1, 2),
        loops: float = 1.0,
    ) -> None:
        super().__init__(3)
        self.mix, self.powers, self.steps, self.loops = mix, powers, steps, loops

    def build(self, graph):
        made = super().build(graph)
        walk = made.family.operator
        if self.loops != 1:
            walk = TypedEdges(walk.edge_set, walk.weight * self.loops, walk.dtype)
        return self.mix(made.coefficients, self.powers(walk, 4, 1.0, 0.0, self.steps))


class PowersAlone(BoundMix):
    """Nothing is taken away."""

    def iterate(self, x: Tensor):
        return self.family.iterate(x)


class OnlyAdded(BoundMix):
    """The way back forgets what is taken away."""

    def combine(self, z):
        return self.family.combine(z)


class NotTurned(BoundMix):
    @property
    def T(self) -> BoundMix:
        return self


class Shifted(BoundMix):
    """Member by member, each gets what is the next one's."""

    def each(self, z: Tensor) -> Tensor:
        return super().each(z.roll(1, 0))


class Detached(BoundPolynomial):
    """The walk back is a constant."""

    def _walk(self, k: int, x: Tensor) -> Tensor:
        return super()._walk(k, x.detach()) + 0 * x.sum()


WRONG: dict[str, tuple[Callable[[], bases.Basis], str]] = {
    "the scales": (lambda: Changed(steps=(1, 2, 4)), "members written_out orders"),
    "no differences": (lambda: Changed(PowersAlone), "members adjoint orders"),
    "no differences back": (lambda: Changed(OnlyAdded), "members orders gradients"),
    "A for A^T": (lambda: Changed(NotTurned), "members written_out adjoint"),
    "members exchanged": (lambda: Changed(Shifted), "members adjoint"),
    "a constant": (lambda: Changed(powers=Detached), "gradients strides"),
    "not half": (lambda: Changed(loops=2.0), "members written_out orders precision"),
    "another walk": (lambda: bases.Wavelets(3, bases.Adjacency("mean")), "members orders gradients"),
    "walks in one direction": (lambda: bases.Wavelets(3, bases.Adjacency("rw").T), "members written_out strides"),
    "not lazy": (lambda: not_lazy(), "members orders"),
    "loops beside the edges": (lambda: bases.Wavelets(3, Adjacency("rw", True)), "members orders"),
}


def not_lazy() -> bases.Basis:
    rows = [[1.0, -1.0, 0, 0, 0], [0, 1.0, -1.0, 0, 0], [0, 0, 1.0, 0, -1.0], [0, 0, 0, 0, 1.0]]
    return bases.Mix(rows, bases.Powers(5, bases.Adjacency("rw")))


PAIRS = [(name, check) for name, (_, checks) in WRONG.items() for check in checks.split()]


@pytest.mark.parametrize(("name", "check"), PAIRS, ids=[f"{check}-{name}" for name, check in PAIRS])
@pytest.mark.sweep(10)
def test_wrong_wavelets_fail(name: str, check: str):
    right = cases.CASES["Wavelets(3)-random"]
    with pytest.raises(AssertionError):
        contract.CHECKS[check](WRONG[name][0](), right.graph(), right.matrices)


def test_the_unchanged_pass():
    """It is the change that the checks see."""
    right = cases.CASES["Wavelets(3)-random"]
    for check in {check for _, check in PAIRS}:
        contract.CHECKS[check](Changed(), right.graph(), right.matrices)
