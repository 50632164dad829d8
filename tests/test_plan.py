"""The plan is a pure function, is obeyed, and goes where the sizes say."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pyg_basisconv import BasisConv, bases, theta
from pyg_basisconv.basis import BoundBasis
from pyg_basisconv.content import Inputs
from pyg_basisconv.costs import MACHINES, Estimate, Problem, Tally, Work, format_amount
from pyg_basisconv.mechanisms import Dot
from pyg_basisconv.orders import ORDERS, Contracted, Order
from pyg_basisconv.orders.compacted import Compaction, Offer
from pyg_basisconv.orders.mixed import Mixing
from pyg_basisconv.plan import Plan, _time, plan
from tests import cases
from tests.contract import THETAS, close, draw, make, take, tensors


def problem(**changes) -> Problem:
    K, M, E = 2, 3000, 20000
    sizes = {"K": K, "M": M, "N": M, "P": 64, "Q": 64, "B": 1, "inner": 64}
    work = {"expand": Work(K * E, K * M, 1), "gather": Work(K * E, M, 1)}
    changes.setdefault("inner", changes.get("Q", 64))
    return Problem(**{**sizes, **work, **changes})


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("gradients", [True, False])
def test_the_narrow_side_wins(device: str, gradients: bool) -> None:
    rest = {"device": device, "grad_x": gradients, "grad_theta": gradients}
    assert plan(problem(P=1024, Q=8, **rest)).order == "theta_first"
    assert plan(problem(P=8, Q=1024, **rest)).order == "a_first"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_large_batch_on_a_tiny_structure_takes_phi(device: str) -> None:
    tiny = {
        "K": 9,
        "M": 9,
        "N": 9,
        "P": 4,
        "Q": 4,
        "expand": Work(81, 81, 1),
        "gather": Work(81, 9, 1),
        "device": device,
    }
    assert plan(problem(B=20000, **tiny)).order == "phi"
    assert plan(problem(B=1)).order != "phi"


def test_the_plan_counts_that_a_gpu_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Whether a dense product is finite is looked at on the CPU, too, where it takes no time."""
    small = {"K": 3, "M": 50, "N": 50, "P": 4, "Q": 4, "expand": Work(600, 150, 1), "gather": Work(600, 50, 1)}
    p = problem(**small, device="cuda")
    seconds = [plan(p)[name].seconds for name in ("phi", "a_first")]
    machine = MACHINES["cuda"]
    monkeypatch.setitem(MACHINES, "cuda", machine._replace(wait=machine.wait + 1.0))
    plan.cache_clear()
    request.addfinalizer(plan.cache_clear)
    assert [plan(p)[name].seconds for name in ("phi", "a_first")] == pytest.approx([seconds[0] + 1, seconds[1]])
    assert MACHINES["cpu"].wait == 0 < machine.wait


def test_sparse_features_leave_one_order() -> None:
    p = plan(problem(P=1024, nnz=5000))
    assert (p.order, p.why) == ("theta_first", "the only order that is possible here")
    assert all(p[order].refused for order in ("a_first", "phi"))
    for order in ("a_first", "phi"):
        with pytest.raises(ValueError, match=rf"^order: '{order}' was asked for, but x is sparse"):
            plan(problem(nnz=5000), order)


@pytest.mark.parametrize(("P", "Q"), [(3, 5), (5, 3), (4, 4)])
def test_the_grounds_of_an_order_are_the_widths_of_its_products(P: int, Q: int) -> None:
    p, apart = problem(P=P, Q=Q), f"both run the sparse products at width {P}; their dense sides differ"
    for order, width, other in (("a_first", P, Q), ("theta_first", Q, P)):
        wider = f"although its sparse products run at width {width}, not {other}"
        narrower = f"sparse products run at width {width} instead of {other}"
        expected = apart if P == Q else wider if width > other else narrower
        assert ORDERS[order].grounds(p, None) == expected
    assert ORDERS["a_first"].grounds(p._replace(cached=True), None) == "the A_k^T x are known"
    assert (
        ORDERS["phi"].grounds(p._replace(B=7, M=8, N=9), None) == "one product for a batch of 7 on a structure of 8 x 9"
    )


def test_phi_beyond_the_limit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^order: 'phi' was asked for, but the operator"):
        plan(problem(M=10**5, N=10**5), "phi")


TOUCHED = Compaction("target", Work(40, 20, 1), 20, Work(20, 20, 1), 2, 2)
OFFERS = {"native": (1000, 100, 1, True), "compacted": Offer((TOUCHED,), 2), "mixed": Mixing(2, Work(40, 50, 1))}
WINDOW = bases.Window((5, 7), (2, 3))
SMALL = {"M": 50, "N": 50, "offers": tuple(OFFERS.items())}
MORE = {
    **OFFERS,
    "compacted": Offer((TOUCHED._replace(gather=Work(80, 40, 1), rows=80, products=4),), 3),
    "mixed": Mixing(3, Work(60, 50, 1)),
}


@pytest.mark.parametrize(("launches", "order"), [(474, "theta_first"), (1, "compacted")])
def test_types_that_one_launch_multiplies(launches: int, order: str) -> None:
    """FB15k-237 with inverses on a GPU: calls for each type would take longer than products of all nodes with all."""
    pairs, edges, N = 300_000, 544_230, 14_541
    one = Compaction("source", Work(pairs, pairs, 1), pairs, Work(edges, N, 1), 474, launches)
    sizes = {"K": 474, "M": N, "N": N, "P": 64, "Q": 64, "grad_x": True, "device": "cuda"}
    work = {"expand": Work(edges, 474 * N, 1), "gather": Work(edges, N, 1)}
    assert plan(problem(**sizes, **work, offers=(("compacted", Offer((one,), None)),))).order == order


def test_pure() -> None:
    p = problem(P=100, Q=7)
    assert plan(p) == plan(p) == plan(Problem(*p))
    assert hash(p) == hash(Problem(*p))
    small = problem(**SMALL)
    assert [plan(small, order).order for order in ORDERS] == list(ORDERS)
    assert all(plan(small, order).why == "asked for" for order in ORDERS)


def test_costs_grow_with_what_they_count() -> None:
    for order in ORDERS:
        least = plan(problem(**SMALL, grad_theta=False), order)[order]
        for change in (
            {"P": 128},
            {"Q": 128},
            {"grad_x": True},
            {"grad_theta": True},
            {"grad_basis": True},
            {"B": 8},
            {"K": 4, "offers": tuple(MORE.items())},
        ):
            more = plan(problem(**{**SMALL, "grad_theta": False, **change}), order)[order]
            assert more.operations > least.operations, (order, change)
            assert more.bytes > least.bytes
            assert more.seconds > least.seconds
    assert plan(problem(cached=True))["a_first"].seconds < plan(problem())["a_first"].seconds
    assert plan(problem(itemsize=2))["a_first"].bytes < plan(problem(itemsize=4))["a_first"].bytes


@pytest.mark.parametrize("learns", [(), ("x",), ("theta",), ("basis",), ("x", "theta", "basis")], ids=str)
def test_operations_of_sparse_orders_are_those_of_their_products(learns: tuple[str, ...]) -> None:
    """A multiplication and an addition each: of entries of A with rows, and of x with Theta."""
    K, M, N, P, inner, B, E = 2, 3, 5, 7, 11, 13, 17
    sizes = {"K": K, "M": M, "N": N, "P": P, "Q": inner, "B": B, "expand": Work(E, K * N, 1), "gather": Work(E, N, 1)}
    p = problem(**sizes, **{f"grad_{name}": name in learns for name in ("x", "theta", "basis")})
    x, weights, entries = "x" in learns, "theta" in learns, "basis" in learns
    A, Theta = E * P * B, K * N * P * inner * B
    products = A * (1 + (x or entries) + entries) + Theta * (1 + weights + (x or entries))
    assert plan(p)["a_first"].operations == 2 * products
    Theta, A = K * M * P * inner * B, E * inner * B
    products = Theta * (1 + weights + x) + A * (1 + bool(learns) + entries)
    assert plan(p)["theta_first"].operations == 2 * products


@pytest.mark.parametrize(("K", "B"), [(1, 1), (2, 1), (1, 2), (3, 2)])
def test_bytes_of_sparse_orders_are_those_that_they_read_and_write(K: int, B: int) -> None:
    """Of entries sources, weights and rows; the rows of results, and copies where these stand in another order."""
    M, N, P, Q, E = 31, 53, 37, 23, 300
    sizes = {"K": K, "M": M, "N": N, "P": P, "Q": Q, "B": B, "expand": Work(E, K * N, 1, 5), "gather": Work(E, N, 1, 5)}
    found = plan(problem(**sizes, grad_theta=False))
    copied = 2 * B * M * P if B > 1 else 0
    dense = K * (B * N * P + P * Q + B * N * Q)
    assert found["a_first"].bytes == 4 * (E * (2 + B * P) + K * N * B * P + 5 + copied + dense)
    assert found["a_first"].memory == 4 * B * N * (K * P + Q)
    copied = 2 * K * B * M * Q if K > 1 or B > 1 else 0
    dense = B * M * P + P * K * Q + B * M * K * Q
    assert found["theta_first"].bytes == 4 * (E * (2 + B * Q) + N * B * Q + 5 + copied + dense)
    assert found["theta_first"].memory == 4 * B * (2 * K * M * Q + N * Q)


def test_operations_of_what_is_there_already() -> None:
    """Features without a parameter, those that are mostly zeros, and products with A that are kept."""
    p = problem(K=2, M=3, N=5, P=7, Q=11, B=13, expand=Work(17, 10, 1), gather=Work(17, 5, 1), grad_theta=False)
    gathered = 2 * 17 * 11 * 13
    assert plan(p._replace(learns=False))["theta_first"].operations == gathered
    assert plan(p._replace(nnz=19))["theta_first"].operations == gathered + 2 * 19 * 2 * 11
    assert plan(p._replace(learns=False))["a_first"].operations == 2 * 17 * 7 * 13
    assert plan(p._replace(cached=True))["a_first"].operations == 2 * 2 * 5 * 7 * 11 * 13


@pytest.mark.parametrize("learns", [(), ("x",), ("theta",), ("basis",), ("x", "theta", "basis")], ids=str)
def test_operations_of_phi_are_those_of_its_products(learns: tuple[str, ...]) -> None:
    """A multiplication and an addition each: for the operator, its application, and the derivatives by each factor."""
    K, M, N, P, Q, B = 2, 3, 5, 7, 11, 13
    operator, applied = K * M * N * P * Q, B * M * P * N * Q
    by_operator = applied if {"theta", "basis"} & {*learns} else 0  # from which those by both of its factors follow
    products = operator + applied + by_operator
    products += applied * ("x" in learns) + operator * bool(by_operator) + operator * ("basis" in learns)
    sizes = {"K": K, "M": M, "N": N, "P": P, "Q": Q, "B": B, "expand": Work(), "gather": Work()}
    gradients = {f"grad_{name}": name in learns for name in ("x", "theta", "basis")}
    assert plan(problem(**sizes, **gradients), "phi")["phi"].operations == 2 * products


TAKES = [  # (the layer, rows of x, products of two numbers, numbers read and written) of an entry of a batch
    ("convolution", lambda: BasisConv(3, 10, WINDOW), 35, 6 * 20 * 3 * 10, 35 * 3 + 20 * 10),
    ("transposed", lambda: BasisConv(3, 10, WINDOW.T), 20, 6 * 20 * 3 * 10, 20 * 3 + 35 * 10),
    ("two groups", lambda: BasisConv(4, 10, WINDOW, theta.Grouped(2)), 35, 6 * 20 * 4 * 10 // 2, 35 * 4 + 20 * 10),
    (
        "depthwise, and then a matrix",
        lambda: BasisConv(3, 10, WINDOW, theta.Separable(2)),
        35,
        6 * 20 * 6 + 20 * 6 * 10,
        35 * 3 + 20 * 6 + 20 * 6 + 20 * 10,
    ),
    ("pooling", lambda: BasisConv(3, 3, WINDOW, theta.Pass(scale=1 / 6)), 35, 6 * 20 * 3, 35 * 3 + 20 * 3),
    (
        "attention",  # values of both heads; then scores, and sums of values, as wide as the values of a head
        lambda: BasisConv(3, 10, bases.Attention(2, Dot(5)), theta.Heads()),
        7,
        7 * 3 * 10 + 2 * 2 * 7 * 7 * 5,
        7 * 3 + 3 * 10 + 7 * 10 + 2 * (7 + 7 + 7 + 7) * 5,
    ),
    (
        "causal attention",  # of half of the pairs
        lambda: BasisConv(3, 10, bases.Attention(2, Dot(5), mask=bases.Causal()), theta.Heads()),
        6,
        6 * 3 * 10 + 2 * 2 * 6 * 6 // 2 * 5,
        6 * 3 + 3 * 10 + 6 * 10 + 2 * (6 + 6 + 6 + 6) * 5,
    ),
]


@pytest.mark.parametrize(("conv", "M", "products", "numbers"), [t[1:] for t in TAKES], ids=[t[0] for t in TAKES])
def test_what_kernels_of_torch_take(conv: Callable[[], BasisConv], M: int, products: int, numbers: int) -> None:
    """Of a window of 2 x 3 taps on 5 x 7 points, which has 4 x 5 places; and of attention between all pairs."""
    B, layer = 4, conv()
    found = layer.requires_grad_(False).plan(torch.ones(B, M, layer.in_channels))["native"]
    assert found.operations == 2 * B * products
    once = 3 * 10 if "Attention" in str(layer) else 0  # a parameter, which is read once for the batch
    assert found.bytes == 4 * (B * (numbers - once) + once)


def test_what_attention_by_a_kernel_of_torch_takes_to_learn() -> None:
    """The kernel's derivative takes twice as long as the kernel; keys and queries are taken to be as wide as values."""
    B, M, P, Q = 4, 7, 3, 10
    layer = BasisConv(P, Q, bases.Attention(2, Dot(5)), theta.Heads())
    pairs, values = 2 * 2 * M * M * 5, M * P * Q
    fixed, learning = torch.ones(B, M, P), torch.ones(B, M, P, requires_grad=True)
    assert layer.plan(fixed)["native"].operations == 2 * B * (3 * pairs + values * (1 + 1 + 2))
    assert layer.plan(learning)["native"].operations == 2 * B * (3 * pairs + values * (1 + 2 + 2))
    assert layer.plan(learning)["phi"][1:5] == (0, 0, 0, math.inf)  # refused: it takes nothing


def test_expansions_are_held_twice_where_x_learns() -> None:
    p = problem(**SMALL)
    least, more = (plan(problem(**SMALL, grad_x=learns), "a_first")["a_first"].memory for learns in (False, True))
    assert more - least == p.K * p.M * p.P * p.itemsize


def test_a_part_with_a_kernel_of_its_own_is_offered_to_the_sum() -> None:
    of_content, fixed = bases.Attention(2, Dot(8)), bases.Shifts(None, [-1, 1])
    words = torch.randn(2, 10, 16)
    for basis, order in ((of_content + fixed, "native"), (fixed + fixed, "a_first")):
        layer = BasisConv(16, 16, basis, theta.LowRank(8), order=order)
        assert layer.plan(words).order == order
    with pytest.raises(ValueError, match=r"^order: 'native' was asked for"):
        BasisConv(16, 16, bases.Powers(2) + bases.Identity(), order="native")(words[0], torch.zeros(2, 1).long())


@pytest.mark.parametrize("sizes", [{"M": 0, "N": 0}, {"B": 0}, {"N": 0}, {"P": 1, "Q": 1}, {"K": 1}])
def test_no_size_is_too_small(sizes: dict[str, int]) -> None:
    assert str(plan(problem(**sizes, expand=Work(), gather=Work())))


def test_nothing_to_do() -> None:
    """The identity with no parameter: every order is free."""
    conv, x = BasisConv(3, 3, bases.Identity(), theta.Pass(), bias=False), draw(4, 3)
    assert str(conv.plan(x))
    close(conv(x), x)


@pytest.mark.parametrize("Q", [4, 400], ids=str)
def test_columns_line_up(Q: int) -> None:
    """Each number ends where its heading does."""
    _, header, *rows = str(plan(problem(Q=Q))).splitlines()
    ends = [header.index(word) + len(word) for word in ("operations", "bytes", "memory", "time")]
    possible = [row for row in rows if row[:2] in ("  ", "> ") and "not possible" not in row]
    assert len(possible) > 1
    for row in possible:
        assert len(row) == ends[-1]
        assert all(row[end - 1] != " " and row[end : end + 1] in ("", " ") for end in ends)


def test_table() -> None:
    conv, g = BasisConv(64, 4, bases.Chebyshev(3)), cases.graph()
    table = conv.plan(draw(6, 64).float(), **tensors(g, torch.float32))
    text = str(table)
    assert isinstance(table, Plan)
    for word in ("order", "operations", "bytes", "memory", "time", *ORDERS, "K=3", "P=64", "Q=4", "Theta"):
        assert word in text
    (chosen,) = [line for line in text.splitlines() if line.startswith(">")]
    assert chosen.split()[1] == table.order
    assert text.splitlines()[-1] == f"{table.order}: {table.why}"
    sparse = str(conv.plan(draw(6, 64).float().to_sparse_csr(), **tensors(g, torch.float32)))
    assert sparse.count("not possible") == len(ORDERS) - 1  # all but theta_first


def test_every_gradient_is_in_the_plan() -> None:
    conv, g = BasisConv(3, 2, bases.Adjacency()).double(), cases.graph()
    x, weight = draw(6, 3).requires_grad_(), g.weight.clone().requires_grad_()
    edge_index = tensors(g)["edge_index"]
    p = conv.plan(x, edge_index, weight).problem
    assert (p.grad_x, p.grad_theta, p.grad_basis) == (True, True, True)
    with torch.no_grad():
        p = conv.plan(x, edge_index, weight).problem
    assert (p.grad_x, p.grad_theta, p.grad_basis) == (False, False, False)
    conv.theta.requires_grad_(False)
    p = conv.plan(x.detach(), edge_index, g.weight).problem
    assert (p.grad_x, p.grad_theta, p.grad_basis) == (False, False, False)


@pytest.mark.parametrize("kind", THETAS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.sweep(20)
def test_a_forced_order_is_obeyed(order: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def spied(name: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *args: taken.append(name) or function(*args)

    def watched(cls: type[theta.Theta]) -> Callable[..., Callable[..., Tensor] | None]:
        whole = cls.step

        def step(kind: theta.Theta, order: str) -> Callable[..., Tensor] | None:
            found = whole(kind, order)
            return found and spied(order, found)

        return step

    for cls in (theta.Full, theta.Pass):
        monkeypatch.setattr(cls, "step", watched(cls))
    for name, one in ORDERS.items():
        monkeypatch.setattr(one, "run", spied(name, one.run))
    g = cases.graph()
    sites = torch.tensor([[0, 1], [2, 2], [1, 1], [2, 0], [0, 0], [1, 2]])
    basis = {
        "native": lambda: bases.Attention(2, Dot(3)),
        "compacted": lambda: bases.Window((3, 3), (1, 2), padding="same", sites=sites),
        "mixed": lambda: bases.Relations(1, inverse=True),
    }.get(order, lambda: bases.Powers(2))()
    conv, given = make(basis, kind, order), tensors(g) if basis.needs_edges else {}
    possible = {"compacted": conv.theta.sums and conv.weight is not None, "mixed": conv.theta.mixtures is not None}
    if not possible.get(order, True):
        with pytest.raises(ValueError, match=r"are summed|no parameter|are mixtures"):
            conv(draw(6, conv.in_channels), **given)
        return
    x = draw(6, conv.in_channels)
    y = conv(x, **given)
    assert taken == [order] == [conv.plan(x, **given).order]
    auto = take(conv, "auto")
    close(auto(x, **given), y)
    assert taken[-1] == conv.plan(x, **given).order


class Written(Order):
    """A_k^T x with the matrices written out: an order of one's own, in one class."""

    name, measures = "written", True

    def measure(self, family: BoundBasis, inputs: Inputs, messages: bool, asked: bool) -> int | None:
        return None if family.batch else family.M * family.N

    def estimate(self, p: Problem, offer: int | None) -> Estimate:
        if offer is None:
            return self.refuse("there are other matrices for each graph")
        t = Tally(MACHINES[p.device], p.itemsize)
        t.product(p.N, p.M, p.P, p.K)
        return t.estimate(self.name, p.K * offer)

    def grounds(self, p: Problem, offer: int) -> str:
        return f"{offer} entries are few"

    def run(self, family: BoundBasis, inputs: Inputs, bias: Tensor | None, form: str, cached: bool) -> Contracted:
        return Contracted(inputs.theta.contract([A.T @ inputs.x for A in family.to_dense()]))


def test_an_order_of_ones_own(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The layer and the plan take, print, obey and refuse one that they have never heard of."""
    g, x = cases.graph(), draw(6, 3)
    before = BasisConv(3, 2, bases.Powers(2)).double()
    expected = before(x, **tensors(g))
    with pytest.raises(ValueError, match=r"^order: expected 'auto' or one of"):
        BasisConv(3, 2, bases.Powers(2), order="written")
    monkeypatch.setitem(ORDERS, "written", Written())
    plan.cache_clear()
    request.addfinalizer(plan.cache_clear)
    conv = BasisConv(3, 2, bases.Powers(2), order="written").double()
    conv.load_state_dict(before.state_dict())
    close(conv(x, **tensors(g)), expected)
    assert conv.plan(x, **tensors(g))["written"].memory == conv.basis.K * 36 * 8
    free = take(conv, "auto").plan(x, **tensors(g))
    assert (free.order, free.why.split("; ")[1]) == ("written", "36 entries are few")
    heads = BasisConv(3, 2, bases.Attention(1, Dot(3)), order="written").double()
    with pytest.raises(ValueError, match=r"^order: 'written' was asked for, but there are other matrices"):
        heads(draw(2, 6, 3))


def test_the_layer_plans_by_its_widths() -> None:
    edge_index = torch.randint(500, (2, 4000))
    for P, Q, order in ((256, 4, "theta_first"), (4, 256, "a_first")):
        conv = BasisConv(P, Q, bases.Adjacency("sym"))
        assert conv.plan(torch.randn(500, P), edge_index).order == order
    conv = BasisConv(2, 2, bases.Powers(3))
    tiny = torch.tensor([[0, 1, 2], [1, 2, 0]])
    assert conv.plan(torch.randn(50000, 3, 2), tiny).order == "phi"


@pytest.mark.parametrize(("P", "kept", "said"), [(2000, 0.02, True), (2000, 0.6, False), (4, 0.02, False)])
def test_the_plan_says_when_a_sparse_x_would_be_faster(P: int, kept: float, said: bool) -> None:
    x, edges = (torch.rand(500, P) < kept).float(), torch.randint(500, (2, 1000))
    conv = BasisConv(P, 8, bases.GCN())
    found, sparse = conv.plan(x, edges), conv.plan(x.to_sparse_csr(), edges)
    time = str(sparse).splitlines()[3].rpartition("B ")[2].strip()
    assert (f"98.0% zeros: as torch.sparse_csr this call would take {time}" in found.hint) is said
    assert str(found).endswith(found.hint)
    assert sparse.hint == ""


def test_no_hint_where_a_sparse_x_cannot_be() -> None:
    x, edges = torch.eye(2000), torch.randint(2000, (2, 100))
    assert BasisConv(2000, 8, bases.GCN()).plan(x, edges).hint
    assert not BasisConv(2000, 8, bases.GCN()).plan(x.clone().requires_grad_(), edges).hint
    assert not BasisConv(2000, 8, bases.GCN()).plan((x, x.clone()), edges).hint
    assert not BasisConv(2000, 8, bases.GCN(), cached=True).plan(x, edges).hint  # it keeps a sparse copy by itself
    assert not BasisConv(2000, 2000, bases.GCN(), theta.Pass()).plan(x, edges).hint


@pytest.mark.parametrize("M", [101, 150, 260, 390, 700])
def test_the_sentence_agrees_with_the_times(M: int) -> None:
    """Of the very sizes of the call, though calls of about its size share a plan."""
    x, edge_index = torch.randn(M, 48), torch.randint(M, (2, 5 * M))
    plan = BasisConv(48, 7, bases.Chebyshev(3)).plan(x, edge_index)
    others = [e.seconds for e in plan.estimates if not e.refused and e.order != plan.order]
    assert f"about {min(others) / plan.chosen.seconds:.1f} times faster than" in plan.why


def test_times_are_in_units_that_fit() -> None:
    found = [_time(s) for s in (2e-7, 0.00061264, 0.00099949, 0.0009996, 0.0025, 0.9994, 0.9996, 1.93, 75.25)]
    assert found == ["0.2 us", "613 us", "999 us", "1 ms", "2.5 ms", "999 ms", "0.9996 s", "1.93 s", "75.25 s"]


def test_amounts_are_in_units_that_fit() -> None:
    found = [format_amount(n) for n in (0, 999, 1000, 123_456, 2e9, 9.99e14, 2.5e15, 1.5e18)]
    assert found == ["0 ", "999 ", "1 K", "123 K", "2 G", "999 T", "2.5 P", "1.5e+03 P"]


@pytest.mark.parametrize("N", [10, 300, 3_000])
def test_of_equal_widths_the_bias_decides(N: int) -> None:
    """A family on rows is applied first, and the bias is part of the product that follows; others, that bring gradients
    together in an array of their own, are applied last, and so is an identity, which would be a copy."""
    x, e = torch.zeros(N, 8, requires_grad=True), torch.arange(N).repeat(2, 1)
    on_rows = bases.Adjacency("sym")
    others = bases.Mix([[0.0, 1.0]], bases.Powers(2, on_rows)), bases.Identity()
    taken = [BasisConv(8, 8, basis).plan(x, e).order for basis in (on_rows, *others)]
    assert taken == ["a_first", "theta_first", "theta_first"]
    several = BasisConv(8, 8, on_rows, theta.Separable(2))  # products, whose gradients are added
    assert several.plan(x, e).order == "theta_first"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_of_equal_widths_what_is_large_is_not_kept_twice(device: str) -> None:
    """The gradient of Theta takes x, which is there, after theta_first; after a_first another array of its size."""
    one = {"K": 1, "rows": True, "grad_x": True, "device": device}

    def taken(M: int, **changes: bool) -> str:
        work = Work(3 * M, M, 1)
        return plan(problem(**{**one, **changes}, M=M, N=M, expand=work, gather=work)).order

    few, many = 100_000, 200_000  # with 64 channels, of less than 32 MiB and of more
    assert [taken(M) for M in (few, many)] == ["a_first", "theta_first"]
    assert taken(many, grad_x=False) == "a_first"  # which then needs no product on the way back
    assert taken(many, grad_x=False, grad_theta=False) == taken(many, grad_theta=False) == "a_first"


def test_what_is_as_fast_is_not_called_faster() -> None:
    """Of graphs some of which are so small that the orders take the same time."""
    seen, conv = set(), BasisConv(1433, 16, bases.GCN())
    for M in range(20, 300, 20):
        plan = conv.plan(torch.ones(M, 1433), torch.randint(M, (2, 3 * M)))
        first, second = sorted(e.seconds for e in plan.estimates if not e.refused)[:2]
        assert plan.why.startswith("about as fast as ") == (second / first < 1.05), M
        seen.add(plan.why.startswith("about as fast as "))
    assert seen == {True, False}


@pytest.mark.parametrize(
    ("conv", "shape"),
    [
        (lambda: BasisConv(2, 2, bases.Window((3, 3), (2, 2))), (500, 9, 2)),  # one dense product
        (lambda: BasisConv(3, 4, bases.Attention(2, Dot(3)), theta.Heads()), (5, 3)),
        (lambda: BasisConv(3, 4, bases.Shifts(None, [1])), (5, 3)),
    ],
    ids=["window", "attention", "shifts"],
)
def test_shapes_are_planned_and_computed_without_numbers(conv: Callable[[], BasisConv], shape: tuple[int, ...]) -> None:
    """On 'meta', as tools do that count memory and operations beforehand."""
    layer, x = conv(), torch.randn(*shape)
    elsewhere = conv().to("meta")
    assert elsewhere.plan(x.to("meta")).order == layer.plan(x).order
    for _ in range(2):
        assert elsewhere(x.to("meta")).shape == layer(x).shape


def test_what_is_taken_for_sizes_about_these_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    conv, x, edges = BasisConv(4, 4, bases.Powers(2)), torch.randn(5, 4), torch.randint(5, (2, 9))
    exact = conv.plan(x, edges)
    other = "phi" if exact.order != "phi" else "a_first"
    monkeypatch.setattr(conv, "_choose", lambda *_: replace(exact, order=other, why="cheaper"))
    found = conv.plan(x, edges)
    assert (found.order, found.why) == (other, "taken for all sizes about these, for which it is cheaper")
    assert found.estimates == exact.estimates
