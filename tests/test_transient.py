"""Small graphs that are new are not bound: what the kernel makes of them has the bits of the bound family."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from pyg_basisconv import BasisConv, backends, bases, theta
from pyg_basisconv.backend import KERNELS
from pyg_basisconv.kernels.products import FEW
from pyg_basisconv.transient import TransientEdges
from tests.contract import draw

pytestmark = pytest.mark.skipif(KERNELS is None, reason=backends()["compiled"])
N, E, P = 9, 30, 4
NORMS = (None, "sym", "mean", "rw")
FAMILIES: dict[str, Callable[[], bases.Basis]] = {
    **{f"adjacency {norm}": lambda norm=norm: bases.Adjacency(norm) for norm in NORMS},
    **{f"loops {norm}": lambda norm=norm: bases.Adjacency(norm, True) for norm in NORMS},
    "loops replaced": lambda: bases.Adjacency("mean", 1.0, "replace"),
    "root last": lambda: bases.Adjacency("mean") + bases.Identity(),
    "root first": lambda: bases.Identity() + bases.Adjacency(),
    "three": lambda: bases.Adjacency("sym") + bases.Identity() + bases.Adjacency("rw", True),
}
OTHERS: dict[str, Callable[[], bases.Basis]] = {
    "heavy loops": lambda: bases.Adjacency(self_loops=2.0),
    "loops taken away": lambda: bases.Adjacency(self_loops=0, existing="replace"),
    "loops added": lambda: bases.Adjacency(self_loops=True, existing="add"),
    "a diagonal": lambda: bases.Adjacency("mean", diagonal=0.5),
    "powers": lambda: bases.Powers(2),
    "a sum with powers": lambda: bases.Identity() + bases.Powers(2),
    "a class of one's own": lambda: _Own(),
    "a root of one's own": lambda: _Root() + bases.Adjacency(),
}


class _Own(bases.Adjacency):
    """Whose matrices may be others."""


class _Root(bases.Identity):
    """The same."""


def edges(seed: int, count: int = E) -> Tensor:
    return torch.randint(N, (2, count), generator=torch.Generator().manual_seed(seed))


@st.composite
def graphs(draw_: st.DrawFn) -> tuple[Tensor, int]:
    """Edges among nodes, of which some are isolated, with loops and repetitions; none, too."""
    n, count = draw_(st.integers(1, 8)), draw_(st.integers(0, 20))
    ends = st.lists(st.integers(0, n - 1), min_size=count, max_size=count)
    return torch.tensor([draw_(ends), draw_(ends)], dtype=torch.long), n


@pytest.mark.parametrize("kind", FAMILIES)
@given(graph=graphs(), width=st.sampled_from([1, 2, 3, 4, 6, 7, 8, 20]), double=st.booleans(), narrow=st.booleans())
def test_products_are_those_of_the_bound_family(
    kind: str, graph: tuple[Tensor, int], width: int, double: bool, narrow: bool
) -> None:
    """Bit by bit, of the family, its transpose, its sum and both."""
    (e, n), dtype, basis = graph, torch.float64 if double else torch.float32, FAMILIES[kind]()
    found = TransientEdges.of(basis, draw(n, width, dtype=dtype), e.int() if narrow else e)
    assert found is not None
    bound: Any = basis.bind(e, size=n, dtype=dtype)
    pairs = [(found, bound), (found.adjoint, bound.adjoint), (found.total, bound.total)]
    pairs += [(found.total.adjoint, bound.total.adjoint), (found.adjoint.adjoint, bound)]
    x, z = draw(n, width, dtype=dtype), draw(n, width * basis.K, dtype=dtype)
    for one, other in pairs:
        assert one.K == other.K
        assert torch.equal(one.expand_rows(x), other.expand_rows(x))
        rows = z if one.K > 1 else x
        assert torch.equal(one.combine_rows(rows), other.combine_rows(rows))
        assert torch.equal(one.combine_rows(rows.neg()._neg_view()), other.combine_rows(rows))


@pytest.mark.parametrize("kind", OTHERS)
def test_other_families_are_bound(kind: str) -> None:
    assert TransientEdges.of(OTHERS[kind](), draw(N, P), edges(0)) is None


def test_what_is_not_small_is_bound() -> None:
    basis, x = bases.GCN(), draw(N, P)
    assert TransientEdges.of(basis, x, edges(0, FEW - N)) is not None
    assert TransientEdges.of(basis, x, edges(0, FEW - N + 1)) is None  # with its loops
    assert TransientEdges.of(bases.Adjacency(), x, edges(0, FEW)) is not None
    assert TransientEdges.of(bases.Adjacency(), x, edges(0, FEW + 1)) is None
    assert TransientEdges.of(bases.Identity() + bases.Adjacency(), x, edges(0, FEW - N + 1)) is None
    assert TransientEdges.of(basis, x.half(), edges(0)) is None
    assert TransientEdges.of(basis, x, edges(0).flatten()) is None
    assert TransientEdges.of(basis, x, edges(0).repeat(2, 1)) is None
    assert TransientEdges.of(basis, x, edges(0) + 1) is None  # the long way says what is wrong


Call = Callable[[BasisConv, Tensor], Any]  # of a layer, on some edges


def both(conv: BasisConv, monkeypatch: pytest.MonkeyPatch, call: Call) -> tuple[Any, Any]:
    """What a layer makes of a graph that it has not met, and does not bind; and what it makes of it bound."""
    other = copy.deepcopy(conv)
    for layer in (conv, other):
        call(layer, edges(99))
    with monkeypatch.context() as patch:
        patch.setattr(bases.Basis, "on", None)
        found = call(conv, edges(5))
    with monkeypatch.context() as patch:
        patch.setattr(TransientEdges, "of", lambda *_: None)
        return found, call(other, edges(5))


def check_same(monkeypatch: pytest.MonkeyPatch, conv: BasisConv, call: Call) -> None:
    for one, other in zip(*both(conv, monkeypatch, call), strict=True):
        assert torch.equal(one, other)


PARAMETERS: dict[str, Callable[[], theta.Theta]] = {
    "Full": theta.Full,
    "Pass": theta.Pass,
    "half": lambda: theta.Pass(0.5),
}


@pytest.mark.parametrize("order", ["a_first", "theta_first"])
@pytest.mark.parametrize("parameter", PARAMETERS)
@pytest.mark.parametrize("kind", ["loops sym", "root last", "three"])
def test_layers_give_the_same_bits(kind: str, parameter: str, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results and all gradients, though the edges change before the gradients are computed."""
    conv = BasisConv(P, P, FAMILIES[kind](), PARAMETERS[parameter](), order=order).double()

    def call(layer: BasisConv, e: Tensor) -> list[Tensor]:
        x = draw(N, P, seed=3).requires_grad_()
        y = layer(x, e)
        e.zero_()
        leaves = [x, *layer.parameters()]
        return [y.detach(), *torch.autograd.grad((y * draw(*y.shape, seed=4)).sum(), leaves)]

    check_same(monkeypatch, conv, call)


@pytest.mark.parametrize("learns", [True, False], ids=["x learns", "x is given"])
@pytest.mark.parametrize("shape", [(2, 3, N, P), (1, N, P), (N, P)], ids=str)
@pytest.mark.parametrize("narrow", [True, False], ids=["int32", "int64"])
def test_batches_give_the_same_bits(
    narrow: bool, shape: tuple[int, ...], learns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    conv = BasisConv(P, 3, FAMILIES["root last"](), order="a_first")

    def call(layer: BasisConv, e: Tensor) -> list[Tensor]:
        x = draw(*shape, seed=3, dtype=torch.float32).requires_grad_(learns)
        y = layer(x, e.int() if narrow else e)
        return [y.detach(), *torch.autograd.grad(y.sin().sum(), [x, layer.weight] if learns else [layer.weight])]

    check_same(monkeypatch, conv, call)


@pytest.mark.parametrize("shape", [(N, P), (2, N, P)], ids=str)
@pytest.mark.parametrize("parameter", PARAMETERS)
def test_pairs_of_as_many_nodes_give_the_same_bits(
    parameter: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of families that do not read the targets' own features, whose width may be another."""
    conv = BasisConv(P, P, bases.Adjacency("mean"), PARAMETERS[parameter](), order="a_first").double()

    def call(layer: BasisConv, e: Tensor) -> list[Tensor]:
        x, targets = draw(*shape, seed=3).requires_grad_(), draw(*shape[:-1], 7)
        y = layer((x, targets), e)
        return [y.detach(), *torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()])]

    check_same(monkeypatch, conv, call)


@pytest.mark.parametrize(
    ("basis", "rows"),
    [(bases.Identity() + bases.Adjacency(), N), (bases.Adjacency("mean"), N + 1), (bases.Adjacency("mean"), None)],
    ids=["targets' own features", "more targets", "no targets"],
)
def test_other_pairs_are_bound(basis: bases.Basis, rows: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    conv, target = BasisConv(P, 3, basis).double(), None if rows is None else draw(rows, P)
    conv((draw(N, P), target), edges(99))
    monkeypatch.setattr(TransientEdges, "of", None)
    assert conv((draw(N, P), target), edges(5)).shape == (rows or N, 3)


@pytest.mark.parametrize("order", ["a_first", "theta_first"])
def test_what_is_rare_is_left_to_the_bound_family(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Second derivatives, and a batch of gradients; the family is bound for them, where it has to be."""
    conv = BasisConv(P, 3, FAMILIES["three"](), order=order).double()

    def call(layer: BasisConv, e: Tensor) -> list[Tensor]:
        x = draw(N, P, seed=3).requires_grad_()
        leaves = [x, layer.weight]
        y = layer(x, e)
        several = torch.autograd.grad(y, leaves, draw(4, *y.shape), is_grads_batched=True, retain_graph=True)
        first = torch.autograd.grad(y.sin().sum(), leaves, create_graph=True)
        return [*several, *torch.autograd.grad(sum(g.pow(2).sum() for g in first), leaves)]

    call(conv, edges(99))
    found, other = call(conv, edges(5)), copy.deepcopy(conv)
    monkeypatch.setattr(TransientEdges, "of", lambda *_: None)
    for one, peer in zip(found, call(other, edges(5)), strict=True):
        torch.testing.assert_close(one, peer, rtol=1e-12, atol=1e-12)


def test_a_graph_that_comes_again_is_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    conv, x, e = BasisConv(P, 3, bases.GCN(), order="theta_first").double(), draw(N, P), edges(5)
    first = edges(99)
    made, of = [], TransientEdges.of.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(TransientEdges, "of", classmethod(lambda *args: made.append(args) or of(*args)))
    conv(x, first)
    assert not made  # its form was not known
    results = [conv(x, e) for _ in range(3)]
    assert len(made) == 1
    for y in results:
        assert torch.equal(y, results[0])
    assert len(conv._programs) == 2


@pytest.mark.parametrize(
    "args",
    [(None, None, N), (draw(E).abs(),), (None, torch.zeros(E, dtype=torch.long))],
    ids=["size", "weights", "types"],
)
def test_calls_with_more_than_edges_are_bound(args: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    basis = bases.Relations(1) if len(args) == 2 else bases.GCN()
    conv = BasisConv(P, 3, basis).double()
    more = dict(zip(("edge_weight", "edge_type", "size"), args, strict=False))
    conv(draw(N, P), edges(99), **more)
    monkeypatch.setattr(TransientEdges, "of", None)
    conv(draw(N, P), edges(5), **more)
