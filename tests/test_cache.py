"""What is kept is kept for the very same tensors, unchanged, and for as long as they live."""

import copy
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pyg_basisconv import BasisConv, bases, graph, reading, sparse, theta
from pyg_basisconv.cache import IdentityCache
from pyg_basisconv.edge_set import EdgeSet
from tests import oracle
from tests.contract import DOUBLE, close, draw
from tests.oracle import Graph

CACHES = {name: value for name, value in vars(reading).items() if isinstance(value, IdentityCache)}


@pytest.fixture(autouse=True)
def _nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests keep alive is looked at in turn, and meanwhile takes the place of what has died."""
    for cache in CACHES.values():
        monkeypatch.setattr(cache, "_entries", {})


def random_edges(seed: int, M: int = 8, E: int = 20) -> Tensor:
    return torch.randint(M, (2, E), generator=torch.Generator().manual_seed(seed))


def reference(conv: BasisConv, x: Tensor, edge_index: Tensor, weight: Tensor | None = None) -> Tensor:
    g = Graph(x.shape[-2], x.shape[-2], list(zip(*edge_index.tolist(), strict=True)), weight)
    return oracle.apply(oracle.adjacency(g, "rw"), x, conv.weight, conv.bias)


def layer(**kwargs) -> BasisConv:
    return BasisConv(3, 2, bases.Adjacency("rw"), **kwargs).double()


@pytest.mark.parametrize("cached", [False, True])
def test_another_graph_of_the_same_shape(cached: bool) -> None:
    conv, x = layer(cached=cached, order="a_first"), draw(8, 3)
    for seed in range(5):
        edge_index = random_edges(seed)
        close(conv(x, edge_index), reference(conv, x, edge_index))


@pytest.mark.parametrize("cached", [False, True])
def test_a_tensor_at_the_address_of_one_that_died(cached: bool) -> None:
    """Memory that is freed is given out again: here the same arrays, under new tensors each time."""
    conv = layer(cached=cached, order="a_first")
    arrays = [torch.empty_like(t).numpy() for t in (random_edges(0), draw(20), draw(8, 3))]
    addresses = set()
    for seed in range(5):
        fresh = (random_edges(seed), draw(20, seed=seed).abs(), draw(8, 3, seed=seed))
        for array, values in zip(arrays, fresh, strict=True):
            array[...] = values.numpy()
        edge_index, weight, x = (torch.from_numpy(array) for array in arrays)
        addresses.add((edge_index.data_ptr(), edge_index._version))
        close(conv(x, edge_index, weight), reference(conv, x, edge_index, weight))
        del edge_index, weight, x
    assert len(addresses) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t["edge_index"].copy_(random_edges(9)),
        lambda t: t["edge_index"][0].copy_(random_edges(9)[0]),
        lambda t: t["edge_weight"].mul_(torch.linspace(1, 2, 20)),
        lambda t: t["edge_weight"][3:4].zero_(),
        lambda t: t["x"].add_(1),
        lambda t: t["x"].t()[1].zero_(),
    ],
    ids=["edge_index", "edge_index row", "edge_weight", "edge_weight slice", "x", "x column"],
)
@pytest.mark.parametrize("cached", [False, True])
def test_a_change_in_place_is_seen(change: Callable[[dict[str, Tensor]], Tensor], cached: bool) -> None:
    conv = layer(cached=cached, order="a_first")
    t = {"x": draw(8, 3), "edge_index": random_edges(0), "edge_weight": draw(20).abs()}
    before = conv(*t.values())
    change(t)
    after = conv(*t.values())
    close(after, reference(conv, t["x"], t["edge_index"], t["edge_weight"]))
    with pytest.raises(AssertionError):
        assert_close(after, before)


LAYOUTS = {"coo": Tensor.to_sparse_coo, "csr": Tensor.to_sparse_csr, "csc": Tensor.to_sparse_csc}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_change_in_place_of_sparse_values_is_seen(layout: str) -> None:
    """By the next call, and not by the gradients of the last."""
    dense = draw(4, 4).abs() * (draw(4, 4, seed=2) > 0)
    adj = LAYOUTS[layout](dense)
    conv, x = BasisConv(3, 2, bases.Adjacency(), bias=False).double(), draw(4, 3).requires_grad_()
    for scale in (1, 2, 4):
        y, expected = conv(x, adj), scale * dense @ x @ conv.weight[0]
        close(y, expected)
        adj.values().mul_(2)
        close(*(torch.autograd.grad(z.sin().sum(), x)[0] for z in (y, expected)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sparse_features_that_change(layout: str) -> None:
    """They are those of the call in its gradients, too."""
    edge_index, conv = random_edges(0), layer()
    x = LAYOUTS[layout](draw(8, 3))
    for _ in range(3):
        dense = x.to_dense()
        y = conv(x, edge_index)
        close(y, reference(conv, dense, edge_index))
        x.values().mul_(3)
        close(*(torch.autograd.grad(z.sin().sum(), conv.weight)[0] for z in (y, conv(dense, edge_index))))


def test_views_of_one_storage_are_told_apart() -> None:
    both, x = torch.stack([random_edges(0), random_edges(1)]), draw(2, 8, 3)
    conv = layer(cached=True, order="a_first")
    for i in (0, 1, 0):
        for j in (0, 1):
            close(conv(x[j], both[i]), reference(conv, x[j], both[i]))
    wide = draw(8, 6)
    close(conv(wide[:, :3], both[0]), reference(conv, wide[:, :3], both[0]))
    close(conv(wide[:, ::2], both[0]), reference(conv, wide[:, ::2], both[0]))


def test_the_same_tensors_are_bound_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    build = bases.Adjacency.build
    monkeypatch.setattr(bases.Adjacency, "build", lambda self, g: built.append(self) or build(self, g))
    first, second, x = layer(), layer(), draw(8, 3)
    edge_index, weight = random_edges(0), draw(20).abs()
    for conv in (first, second, first):
        conv(x, edge_index, weight)
        conv(x[:, :].clone(), edge_index, weight)
    assert len(built) == 1
    first(x, edge_index.clone(), weight)
    assert len(built) == 2


def test_learnt_weights_do_not_sort_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that change in every step leave the integer part as it is."""
    from pyg_basisconv.kernels import pattern

    sorts = []
    compress = pattern.compress
    monkeypatch.setattr(pattern, "compress", lambda *a: sorts.append(1) or compress(*a))
    edge_index = random_edges(0)
    for basis, shape in ((bases.Adjacency("sym", True), (20,)), (bases.Edges(3), (20, 3)), (bases.Chebyshev(3), (20,))):
        conv, x = BasisConv(3, 2, basis).double(), draw(8, 3)
        weight = torch.rand(shape, dtype=DOUBLE, requires_grad=True)
        counts = []
        for _ in range(3):
            before = len(sorts)
            conv(x, edge_index, weight).sum().backward()
            counts.append(len(sorts) - before)
        assert counts[1:] == [0, 0], basis


def _length() -> int:
    return sum(len(cache) for cache in CACHES.values())


@pytest.mark.parametrize("learnt", [False, True], ids=["fixed", "learnt weights"])
def test_entries_die_with_their_tensors(learnt: bool) -> None:
    assert CACHES
    conv = layer(cached=True)
    most = 0
    start = _length()
    for seed in range(100):
        weight = draw(20, seed=seed).abs().requires_grad_(learnt)
        conv(draw(8, 3), random_edges(seed), weight).sum().backward()
        most = max(most, _length())
    assert most <= start + 8


def test_graphs_without_tensors_are_not_collected() -> None:
    start = _length()
    for M in range(50):
        BasisConv(3, 2, bases.Identity()).double()(draw(M, 3))
    for _ in range(3):
        close(*(BasisConv(3, 3, bases.Identity(), theta.Pass(), bias=False)(draw(4, 3)) for _ in range(2)))
    assert _length() <= start


@pytest.mark.parametrize("which", ["batch", "lambda_max"])
def test_a_companion_that_is_made_anew_in_every_step(which: str) -> None:
    """One graph for good, and a batch vector or eigenvalues that come and go."""
    conv, x, edge_index = BasisConv(3, 2, bases.Chebyshev(3)).double(), draw(8, 3), random_edges(0)
    start = _length()
    for _ in range(20):
        companions = {"batch": torch.zeros(8, dtype=torch.long), "lambda_max": torch.full((1,), 1.5)}
        conv(x, edge_index, **{which: companions[which]})
    assert _length() <= start + 5


def test_nothing_keeps_the_tensors_alive() -> None:
    """The caller's tensors, features included, die when the caller lets go of them."""
    from torch.multiprocessing.reductions import StorageWeakRef

    conv = layer(cached=True, order="a_first")
    t = [draw(8, 3), random_edges(0), draw(20).abs(), torch.zeros(8, dtype=torch.long)]
    conv(t[0], t[1], t[2], batch=t[3])
    BasisConv(3, 2, bases.Identity() + bases.Edges(2), cached=True, order="a_first").double()(
        t[0], t[1], t[2], torch.arange(20) % 2
    )
    references = [StorageWeakRef(x.untyped_storage()) for x in t]
    del t
    gc.collect()
    assert [r.expired() for r in references] == [True] * 4


def test_graphs_die() -> None:
    """What was derived from a graph goes with it."""
    conv, x = layer(), draw(8, 3)
    gc.collect()
    start = sum(type(o) is EdgeSet for o in gc.get_objects())
    for seed in range(20):
        conv(x, random_edges(seed))
    conv(x, random_edges(99))
    gc.collect()
    assert sum(type(o) is EdgeSet for o in gc.get_objects()) <= start + 6


def test_expansions_of_no_columns_are_one_for_each_matrix() -> None:
    bound = bases.Powers(3).bind(torch.tensor([[0, 1], [1, 2]]), size=3)
    assert [tuple(y.shape) for y in bound.expansions(torch.randn(3, 0))] == [(3, 0)] * 3


def test_cached_expansions_are_used_and_right(monkeypatch: pytest.MonkeyPatch) -> None:
    conv = BasisConv(3, 2, bases.Powers(3), order="a_first", cached=True).double()
    x, edge_index = draw(8, 3), random_edges(0)
    first = conv(x, edge_index)

    monkeypatch.setattr(sparse, "spmm", None)  # any product from here on would fail
    close(conv(x, edge_index), first)
    conv(x, edge_index).sum().backward()
    with pytest.raises(TypeError):
        conv(x.clone(), edge_index)


def test_cached_is_off_for_features_that_learn() -> None:
    conv = BasisConv(3, 2, bases.Powers(3), order="a_first", cached=True).double()
    x, edge_index = draw(8, 3).requires_grad_(), random_edges(0)
    for _ in range(2):
        conv(x, edge_index).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("bound", [False, True], ids=["graph", "bound"])
@pytest.mark.parametrize("order", ["a_first", "theta_first", "phi"])
@pytest.mark.parametrize("basis", [bases.Adjacency(), bases.Edges(2)], ids=repr)
def test_cached_with_learnt_weights(basis: bases.Basis, order: str, bound: bool) -> None:
    """Steps of an optimiser on the edge weights; the first call is without gradients."""
    conv = BasisConv(3, 2, basis, order=order, cached=True).double()
    x, edge_index = draw(8, 3), random_edges(0)
    weight = torch.rand(20, basis.K, dtype=DOUBLE).squeeze(-1).requires_grad_()
    once = basis.bind(edge_index, weight, size=8)
    with torch.no_grad():
        conv(x, once if bound else edge_index, *([] if bound else [weight]))
    for _ in range(3):
        y = conv(x, once) if bound else conv(x, edge_index, weight)
        g = Graph(8, 8, list(zip(*edge_index.tolist(), strict=True)), weight)
        expected = oracle.apply(oracle.edges(g, basis.K), x, conv.weight, conv.bias)
        close(y, expected)
        mine, theirs = (torch.autograd.grad(t.square().sum(), weight)[0] for t in (y, expected))
        close(mine, theirs)
        with torch.no_grad():
            weight -= 0.01 * mine


class Learnt(bases.Basis):
    """A family with a parameter of its own, as attention has."""

    def __init__(self, K: int = 1, scale: float = 1.0) -> None:
        super().__init__(K)
        self.scale = torch.nn.Parameter(torch.tensor(scale, dtype=DOUBLE))

    def edges(self, graph) -> bases.EdgeList:
        s = graph.structure
        return bases.EdgeList(
            torch.zeros_like(s.source), s.source, s.target, self.scale.square().expand(s.source.numel())
        )


@pytest.mark.parametrize("order", ["a_first", "theta_first", "phi"])
def test_a_family_that_learns_is_bound_anew(order: str) -> None:
    conv = BasisConv(3, 2, Learnt(), order=order, bias=False).double()
    x, edge_index = draw(8, 3), random_edges(0)
    optimiser = torch.optim.SGD(conv.parameters(), 0.01)
    for _ in range(3):
        g = Graph(8, 8, list(zip(*edge_index.tolist(), strict=True)))
        expected = conv.basis.scale.square() * oracle.apply(oracle.adjacency(g), x, conv.weight)
        y = conv(x, edge_index)
        close(y, expected)
        optimiser.zero_grad()
        y.square().sum().backward()
        (theirs,) = torch.autograd.grad(expected.square().sum(), conv.basis.scale)
        close(conv.basis.scale.grad, theirs)
        optimiser.step()


def test_families_that_print_the_same_and_are_not() -> None:
    x, edge_index = draw(8, 3), random_edges(0)
    one, two = (BasisConv(3, 3, Learnt(scale=s), theta=None, bias=False).double() for s in (1.0, 2.0))
    two.theta.load_state_dict(one.theta.state_dict())
    close(two(x, edge_index), 4 * one(x, edge_index))


def test_identity_cache_forgets() -> None:
    cache = IdentityCache()
    t = torch.zeros(3)
    values = iter(range(100))

    def get(*tensors: Tensor | None, extra: str = "") -> int:
        return cache.get(tensors, extra, lambda: next(values))

    assert [get(t), get(t), get(t, None), get(t[:2]), get(t, extra="x"), get(t)] == [0, 0, 1, 2, 3, 0]
    t += 1
    assert get(t) == 4
    leaf = torch.zeros(3, requires_grad=True)
    assert get(leaf) != get(leaf)
    with torch.inference_mode():
        inside = torch.zeros(3)
        assert get(inside) != get(inside)
    del t
    get(torch.zeros(1))
    assert len(cache) == 1


def test_the_tensors_of_a_matrix_are_not_those_of_its_transpose() -> None:
    """A CSR matrix and its `.t()`, a CSC matrix, hold the very same tensors."""
    dense, x = draw(4, 4).abs() * (draw(4, 4, seed=2) > 0), draw(4, 3)
    conv = BasisConv(3, 2, bases.Adjacency(), bias=False).double()
    for adj in (dense.to_sparse_csr(), dense.to_sparse_csc(), dense.to_sparse_coo().coalesce()):
        for _ in range(2):
            close(conv(x, adj), dense @ x @ conv.weight[0])
            close(conv(x, adj.t()), dense.t() @ x @ conv.weight[0])


def test_the_tensors_of_a_matrix_of_another_shape() -> None:
    edge_index, weight = random_edges(0), draw(20)
    for size in (8, 9, 10):
        assert size == bases.Adjacency().bind(torch.sparse_coo_tensor(edge_index, weight, (size, size))).N


class Scaled(bases.Adjacency):
    """A subclass that holds more than its parent prints."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def build(self, graph: graph.Graph) -> bases.BoundBasis:
        return bases.Mix([self.scale], bases.Adjacency()).build(graph)


class Buffered(bases.Basis):
    """A basis with a buffer, which a state_dict may change."""

    def __init__(self, scale: float) -> None:
        super().__init__(1)
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float64))

    def edges(self, graph: graph.Graph) -> bases.EdgeList:
        return bases.EdgeList(torch.zeros_like(graph.source), graph.source, graph.target, graph.weights * self.scale)


def redefined(scale: float) -> bases.Basis:
    """A class that is defined again, as in a notebook, under the same name."""

    class Cell(bases.Basis):
        def __init__(self) -> None:
            super().__init__(1)

        def edges(self, graph: graph.Graph) -> bases.EdgeList:
            return bases.EdgeList(torch.zeros_like(graph.source), graph.source, graph.target, graph.weights * scale)

    return Cell()


class Holding(bases.Basis):
    """A basis with an array among its attributes, as one would write it."""

    def __init__(self, scale: Any) -> None:
        super().__init__(1)
        self.scale = scale

    def edges(self, graph: graph.Graph) -> bases.EdgeList:
        weight = graph.weights * torch.as_tensor(self.scale)
        return bases.EdgeList(torch.zeros_like(graph.source), graph.source, graph.target, weight)


def doubled_buffer() -> tuple[bases.Basis, torch.Tensor]:
    basis = Buffered(1.0)
    return basis, basis.scale


def doubled_attribute() -> tuple[bases.Basis, torch.Tensor]:
    scale = torch.ones((), dtype=torch.float64)
    return Holding(scale), scale


def doubled_array() -> tuple[bases.Basis, np.ndarray]:
    scale = np.ones(1)
    return Holding(scale), scale


@pytest.mark.parametrize("make", [doubled_buffer, doubled_attribute, doubled_array], ids=["buffer", "tensor", "numpy"])
@pytest.mark.parametrize("within", ["alone", "sum", "product"])
def test_an_array_of_a_basis_that_is_written_to_is_read_again(make: Callable[[], Any], within: str) -> None:
    basis, scale = make()
    whole = {"sum": basis + bases.Identity(), "product": basis @ bases.Adjacency("mean")}.get(within, basis)
    conv = BasisConv(3, 2, whole).double()
    x, edge_index = torch.randn(8, 3, dtype=torch.float64), random_edges(0)
    for _ in range(3):  # by the program of the first call, if it were kept
        before = conv(x, edge_index)
    scale *= 2
    fresh = copy.deepcopy(conv)
    after = conv(x, edge_index)
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, fresh(x, edge_index))


@pytest.mark.parametrize("make", [Scaled, Buffered, redefined], ids=["subclass", "buffer", "redefined"])
def test_bases_that_print_alike_are_told_apart(make: Callable[[float], bases.Basis]) -> None:
    edge_index = random_edges(0)
    one, five = (make(scale).bind(edge_index, dtype=torch.float64).to_dense() for scale in (1.0, 5.0))
    close(five, 5 * one)


def test_a_changed_buffer_is_seen() -> None:
    edge_index, basis = random_edges(0), Buffered(1.0)
    one = basis.bind(edge_index, dtype=torch.float64).to_dense()
    basis.scale.mul_(3)
    close(basis.bind(edge_index, dtype=torch.float64).to_dense(), 3 * one)


def test_a_basis_that_was_bound_is_a_value() -> None:
    basis = bases.Powers(2, bases.Adjacency("rw"))
    basis.operator.norm = "sym"
    basis.bind(random_edges(0))
    basis.train()
    with pytest.raises(AttributeError, match="make another"):
        basis.operator.norm = "rw"


def test_the_default_dtype_of_the_moment() -> None:
    edge_index = random_edges(0)
    assert bases.Adjacency().bind(edge_index).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert bases.Adjacency().bind(edge_index).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_weights_that_learnt_when_they_were_bound_are_not_kept() -> None:
    weight = torch.rand(20, dtype=torch.float64, requires_grad=True)
    bound = bases.Adjacency().bind(random_edges(0), weight, size=8)
    weight.requires_grad_(False)
    one = bound.expand(torch.eye(8, dtype=torch.float64))
    weight.mul_(2)
    close(bound.expand(torch.eye(8, dtype=torch.float64)), 2 * one)


def test_views_of_one_living_tensor_do_not_pile_up() -> None:
    cache, big = IdentityCache(limit=10), torch.zeros(100)
    for i in range(50):
        cache.get((big[i:],), None, object)
    assert len(cache) == 10


def test_dual_tensors_keep_their_tangents() -> None:
    conv, x, edge_index = layer(bias=False), draw(8, 3), random_edges(0)
    conv.fuse = False
    weight, tangent = draw(20).abs(), draw(20, seed=1)
    conv(x, edge_index, weight)
    _, expected = torch.autograd.functional.jvp(lambda w: conv(x, edge_index, w), weight, tangent)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(weight, tangent)
        close(torch.autograd.forward_ad.unpack_dual(conv(x, edge_index, dual)).tangent, expected)


@pytest.mark.parametrize("order", ["auto", "a_first", "theta_first", "phi"])
def test_a_dense_x_that_is_mostly_zeros_is_kept_sparse_and_its_changes_are_seen(order: str) -> None:
    edge_index = random_edges(0, M=40, E=100)
    x = torch.zeros(40, 3, dtype=torch.float64)
    x[::20, 0] = 1.0
    conv, plain = layer(cached=True, order=order), layer()
    plain.load_state_dict(conv.state_dict())
    for change in (lambda: None, lambda: x.mul_(3), lambda: x.add_(draw(40, 3)), lambda: x.requires_grad_()):
        change()
        for _ in range(2):
            close(conv(x, edge_index), plain(x, edge_index))
            gradients = [torch.autograd.grad(c(x, edge_index).sin().sum(), c.weight)[0] for c in (conv, plain)]
            close(*gradients)


@pytest.mark.parametrize("order", ["phi", "compacted"])
def test_no_order_is_refused_for_a_sparse_copy(order: str) -> None:
    """Nor for one of an x without numbers."""
    basis, kind = bases.Relations(3), torch.arange(30) % 3
    conv, plain = (BasisConv(3, 2, basis, order=order, cached=cached).double() for cached in (True, False))
    plain.load_state_dict(conv.state_dict())
    for n, e in ((9, random_edges(0, M=9, E=30)), (0, torch.empty(2, 0, dtype=torch.long))):
        x = torch.zeros(n, 3, dtype=torch.float64)
        close(conv(x, e, None, kind[: e.shape[1]]), plain(x, e, None, kind[: e.shape[1]]))
