"""Bases of a user's own class: what they hold and print, what may change, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pyg_basisconv import BasisConv, bases
from tests.contract import refused

EDGES = torch.tensor([[0, 1, 2, 3, 3], [1, 2, 3, 3, 0]])
X = torch.arange(8.0).view(4, 2) + 1


class Scaled(bases.Basis):
    """The edges of a graph times what `factor` says."""

    def __init__(self) -> None:
        super().__init__(K=1)

    def edges(self, graph: Any) -> bases.EdgeList:
        weight = graph.weights * self.factor()
        return bases.EdgeList(torch.zeros_like(graph.source), graph.source, graph.target, weight)

    def factor(self) -> Any:
        raise NotImplementedError


class Rounded(Scaled):
    """It prints less than it is."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def factor(self) -> float:
        return self.rate

    def extra_repr(self) -> str:
        return f"rate={self.rate:.1f}"


class Around(Scaled):
    """It holds a basis, and does not print it."""

    def __init__(self, inner: bases.Basis) -> None:
        super().__init__()
        self.inner = inner

    def factor(self) -> float:
        return self.inner.rate

    def extra_repr(self) -> str:
        return ""


class Mode(Scaled):
    def factor(self) -> float:
        return 3.0 if self.training else 1.0


class Settings:
    rate = 1.0


class Holding(Scaled):
    """It holds something that may change within."""

    def __init__(self, held: Any, read: Callable[[Any], Any]) -> None:
        super().__init__()
        self.held, self.read = held, read

    def factor(self) -> Any:
        return self.read(self.held)


def conv(basis: bases.Basis) -> BasisConv:
    layer = BasisConv(2, 2, basis, bias=False)
    layer.load_state_dict({"theta.weight": torch.eye(2)[None]}, strict=False)
    return layer


def summed(layer: BasisConv) -> float:
    return layer(X, EDGES).sum().item()


ONE = summed(conv(bases.Adjacency()))


@pytest.mark.parametrize("make", [Rounded, lambda rate: Around(Rounded(rate)), lambda rate: Rounded(rate).T])
def test_bases_that_print_the_same_may_differ(make: Callable[[float], bases.Basis]) -> None:
    assert repr(make(1.01)) == repr(make(1.04))
    layers = [conv(make(rate)) for rate in (1.01, 1.04, 1.01)]
    for _ in range(3):
        assert [round(summed(layer) / ONE, 5) for layer in layers] == [1.01, 1.04, 1.01]


def test_equal_ones_share_what_is_bound() -> None:
    calls = []

    class Counted(Rounded):
        def factor(self) -> float:
            calls.append(self.rate)
            return self.rate

    for rate in (1.01, 1.01, 1.04):
        summed(conv(Counted(rate)))
    assert calls == [1.01, 1.04]


@pytest.mark.parametrize(
    "make", [Mode, lambda: Mode() + bases.Identity(), lambda: 1.0 * Mode()], ids=["alone", "sum", "mix"]
)
@pytest.mark.parametrize("cached", [False, True])
def test_the_mode_may_be_read(make: Callable[[], bases.Basis], cached: bool) -> None:
    layer = BasisConv(2, 2, make(), bias=False, cached=cached)
    here = {mode: [summed(layer.train(mode)) for _ in range(3)] for mode in (True, False)}
    again = [summed(layer.train(mode)) for mode in (True, False, True)]
    assert here[True][0] != here[False][0]
    assert again == pytest.approx([here[True][0], here[False][0], here[True][0]])
    assert len({round(y, 3) for y in here[True]}) == len({round(y, 3) for y in here[False]}) == 1


def _double(t: Tensor) -> None:
    t.mul_(2)


CHANGES: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    # what it holds, how it is read, and what changes it to twice as much
    "a tensor in a list": ([torch.ones(1)], lambda held: held[0], lambda held: _double(held[0])),
    "a tensor in a tuple": ((torch.ones(1),), lambda held: held[0], lambda held: _double(held[0])),
    "a tensor in a dictionary": ({"a": torch.ones(1)}, lambda held: held["a"], lambda held: _double(held["a"])),
    "a number in a dictionary": ({"a": 1.0}, lambda held: held["a"], lambda held: held.update(a=2.0)),
    "an object": (Settings(), lambda held: held.rate, lambda held: setattr(held, "rate", 2.0)),
    "a module": (nn.Dropout(0.0), lambda held: held.p + 1, lambda held: setattr(held, "p", 1.0)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_within_is_seen(change: str) -> None:
    held, read, double = CHANGES[change]
    layer = conv(Holding(held, read))
    assert [summed(layer) for _ in range(3)] == pytest.approx([ONE] * 3)
    double(held)
    assert summed(layer) == pytest.approx(2 * ONE)


def test_a_value_does_not_change() -> None:
    layer = conv(Rounded(1.0))
    summed(layer)
    with pytest.raises(AttributeError, match="is a value, and has been bound with its rate: make another"):
        layer.basis.rate = 2.0


OTHERS = {
    "the Laplacian for GCN": (bases.GCN(), bases.Laplacian()),
    "a mean for GCN": (bases.GCN(), bases.Adjacency("mean")),
    "powers for polynomials of Chebyshev": (bases.Chebyshev(3), bases.Powers(3)),
    "own ones that print the same": (Rounded(1.01), Rounded(1.04)),
    "products": (bases.Adjacency() @ bases.Adjacency("mean"), bases.Adjacency("mean") @ bases.Adjacency("sym")),
}


@pytest.mark.parametrize("which", OTHERS)
def test_another_basis_that_is_bound_is_refused(which: str) -> None:
    mine, other = OTHERS[which]
    layer = BasisConv(2, 3, mine)
    refused("edge_index", lambda: layer(X, other.bind(EDGES, size=4)))
    torch.testing.assert_close(layer(X, mine.bind(EDGES, size=4)), layer(X, EDGES))


class Wrong(bases.EdgeFunctions):
    def __init__(self, found: Any) -> None:
        super().__init__(2)
        self.found = found

    def values(self, z: Tensor) -> Any:
        return self.found


@pytest.mark.parametrize(
    "found",
    [torch.ones(5, 1), torch.ones(5, 3), torch.ones(5), torch.ones(2, 5), None],
    ids=lambda t: "None" if t is None else str(tuple(t.shape)),
)
def test_values_of_another_form_are_refused(found: Any) -> None:
    layer = BasisConv(2, 3, Wrong(found))
    refused("values", lambda: layer(X, EDGES, edge_attr=torch.ones(5, 1)))


def test_features_of_edges_are_for_functions_of_them() -> None:
    layer, z = conv(Rounded(1.0)), torch.ones(5, 1)
    with pytest.raises(ValueError, match="a basis of your own that does is a subclass"):
        layer(X, EDGES, edge_attr=z)
    with pytest.raises(ValueError, match=r"no part of this basis reads it$"):
        layer(X, EDGES, mask=torch.ones(5, dtype=torch.bool))
    with pytest.raises(NotImplementedError, match="Empty gives no values"):
        BasisConv(2, 3, type("Empty", (bases.EdgeFunctions,), {})(2))(X, EDGES, edge_attr=z)


def test_python_sums_bases() -> None:
    assert str(sum([bases.GCN(), bases.Identity()])) == str(bases.GCN() + bases.Identity())
    with pytest.raises(TypeError):
        sum([bases.GCN()], start=1)


def test_a_sum_knows_the_sizes_that_its_parts_know() -> None:
    pooled = BasisConv(2, 3, bases.Bags() + bases.Bags("mean"))
    assert pooled(X, batch=torch.tensor([0, 0, 1, 2])).shape == (3, 3)
    window = bases.Window((3, 4), (2, 2))
    bound = (window + window).bind()
    assert (bound.M, bound.N) == (12, 6)
    with pytest.raises(ValueError, match=r"^x: expected 12 rows, the grid \(3, 4\), got 4"):
        BasisConv(2, 3, window + window)(X)
