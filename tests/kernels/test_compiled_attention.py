"""Attention in one pass by the compiled kernels, against its twin in torch's operations."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from pyg_basisconv import BasisConv, bases, mechanisms, theta
from pyg_basisconv.backend import KERNELS
from pyg_basisconv.kernels import (
    Pattern,
    ProductScores,
    ProjectedScores,
    Sums,
    TermScores,
    onepass,
    scored,
    scored_attention,
)
from pyg_basisconv.kernels.activations import activation_code, tanh_zero_hidden, zero_hidden
from pyg_basisconv.kernels.memory import side_by_side

pytestmark = pytest.mark.skipif(KERNELS is None, reason="the compiled kernels were not built")

ACTIVATIONS: list[Any] = [None, nn.LeakyReLU(0.2), torch.relu, nn.Sigmoid(), torch.tanh, zero_hidden, tanh_zero_hidden]
KINDS = ["source", "target", "entry", "all", "hidden", "hidden, entries", "projected", "products"]


class Case:
    """An attention with random numbers: `inputs` are z, the factors and what is scored, those that there are."""

    def __init__(
        self,
        kind: str = "all",
        activation: Any = None,
        c: int = 2,
        W: int = 3,
        D: int = 3,
        normalised: bool = True,
        factors: bool = False,
        sizes: tuple[int, int, int] = (7, 5, 20),
        dtype: torch.dtype = torch.float64,
        edges: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        M, N, E = sizes
        if kind == "projected":
            M = N
        source, target = (torch.randint(M, (E,)), torch.randint(N, (E,))) if edges is None else edges
        self.pattern, self.c, self.normalised = Pattern(source, target, M, N), c, normalised
        E = source.numel()

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, dtype=torch.float64).to(dtype).requires_grad_()

        self.scoring: Any = TermScores(activation)
        terms: list[Tensor | None]
        if kind == "projected":
            self.scoring, terms = ProjectedScores(activation), [draw(c, W), draw(c, W)]
        elif kind == "products":
            self.scoring, terms = ProductScores(), [draw(M, c * D), draw(N, c * D)]
        elif kind.startswith("hidden"):
            entry = draw(E, c * D) if "entries" in kind else None
            terms = [draw(M, c * D), draw(N, c * D), entry, draw(c, D)]
        else:
            rows = {"source": M, "target": N, "entry": E}
            terms = [draw(rows[k], c) if kind in (k, "all") else None for k in rows] + [None]
        self.all = [draw(M, c * W), draw(E, c) if factors else None, *terms]

    @property
    def sums(self) -> Sums:
        return Sums(self.scoring, self.normalised, self.pattern, self.c)

    @property
    def inputs(self) -> list[Tensor]:
        return [t for t in self.all if t is not None]

    def run(self, given: list[Tensor | None] | None = None) -> Tensor:
        z, factor, *terms = self.all if given is None else given
        assert z is not None
        return scored_attention(self.sums, z, terms, factor)

    def both(self, down: Tensor | None = None) -> tuple[Tensor, ...]:
        """The result and all gradients."""
        y = self.run()
        down = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).to(y) if down is None else down
        return y.detach(), *torch.autograd.grad(y, self.inputs, down, materialize_grads=True)


def in_torch(case: Case) -> tuple[Tensor, ...]:
    with pytest.MonkeyPatch.context() as m:
        m.setattr(scored, "supports", lambda *_: False)
        return case.both()


def check(case: Case, **tolerance: float) -> None:
    form = case.scoring.form(case.all[2:], case.c)
    assert onepass.supports(case.sums, form, case.all)  # else nothing is compared here
    for found, expected in zip(case.both(), in_torch(case), strict=True):
        torch.testing.assert_close(found, expected, **tolerance)


@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    activation=st.sampled_from(ACTIVATIONS),
    c=st.sampled_from([1, 2, 3, 4, 5, 8, 9, 16]),
    W=st.sampled_from([1, 2, 3, 4, 7, 8, 9, 16, 20, 33]),
    D=st.sampled_from([1, 3, 4, 8, 11, 16]),
    normalised=st.booleans(),
    factors=st.booleans(),
    sizes=st.tuples(st.integers(1, 30), st.integers(1, 30), st.integers(0, 150)),
    known=st.sampled_from([0, onepass._KNOWN]),
    seed=st.integers(0, 1000),
)
def test_kernels_and_twin_agree(known: int, seed: int, **arguments: Any) -> None:
    torch.manual_seed(seed)
    with pytest.MonkeyPatch.context() as m:
        m.setattr(onepass, "_KNOWN", known)
        check(Case(**arguments))


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    activation=st.sampled_from(ACTIVATIONS),
    c=st.sampled_from([1, 2, 3, 8, 9]),
    W=st.sampled_from([1, 2, 3, 8, 20]),
    normalised=st.booleans(),
    factors=st.booleans(),
    sizes=st.tuples(st.integers(1, 30), st.integers(1, 5), st.integers(0, 400)),
    learns=st.sampled_from([(True, False), (False, True), (True, True)]),
    seed=st.integers(0, 1000),
)
def test_weights_that_are_observed(seed: int, learns: tuple[bool, bool], **arguments: Any) -> None:
    """They are what the sums were made with; derivatives of the sums, of the weights and of both, once and twice."""
    torch.manual_seed(seed)
    case = Case(**arguments)
    z, factor, *terms = case.all
    about = case.sums, z, terms, factor
    assert z is not None
    some = torch.randn(case.pattern.N, z.shape[1], dtype=z.dtype), torch.randn(case.pattern.E, case.c, dtype=z.dtype)

    def loss(found: tuple[Tensor, Tensor]) -> Tensor:
        parts = zip(learns, some, found, strict=True)
        return sum(((down * t.sin()).sum() for learnt, down, t in parts if learnt), z[:0].sum())

    def all_of() -> list[Tensor]:
        found = scored.observed_attention(*about)
        once = torch.autograd.grad(loss(found), case.inputs, retain_graph=True, materialize_grads=True)
        first = torch.autograd.grad(loss(found), case.inputs, create_graph=True, materialize_grads=True)
        again = sum(((t * t.detach().cos()).sum() for t in first), z[:0].sum())
        second = torch.autograd.grad(again, case.inputs, materialize_grads=True)
        return [t.detach() for t in (*found, *once, *first, *second)]

    mine = all_of()
    torch.testing.assert_close(mine[0], case.run().detach())
    with torch.no_grad():
        torch.testing.assert_close(scored.observed_attention(*about)[1], mine[1])
    with pytest.MonkeyPatch.context() as m:
        m.setattr(scored, "supports", lambda *_: False)
        for found, expected in zip(mine, all_of(), strict=True):
            scale = expected.abs().max().clamp(min=1) if expected.numel() else 1
            torch.testing.assert_close(found / scale, expected / scale)
    if arguments["normalised"] and not arguments["factors"]:
        sums = torch.zeros(case.pattern.N, case.c, dtype=z.dtype)
        for n, w in zip(case.pattern.row.tolist(), mine[1], strict=True):
            sums[n] += w
        torch.testing.assert_close(sums[sums > 0], torch.ones_like(sums[sums > 0]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [1, 8, 12])
def test_single_precision(kind: str, width: int) -> None:
    torch.manual_seed(0)
    case = Case(kind, nn.LeakyReLU(0.2), c=8, W=width, D=8, factors=True, sizes=(40, 40, 300), dtype=torch.float32)
    exact = Case(kind, nn.LeakyReLU(0.2), c=8, W=width, D=8, factors=True, sizes=(40, 40, 300))
    exact.pattern = case.pattern
    exact.all = [None if t is None else t.detach().double().requires_grad_() for t in case.all]
    for found, expected in zip(case.both(), in_torch(exact), strict=True):
        scale = max(1.0, expected.abs().max().item())
        torch.testing.assert_close(found.double() / scale, expected / scale, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_activations_are_as_exact_as_torchs(activation: Any, dtype: torch.dtype) -> None:
    """Each source is seen by one target, alone."""
    tiny = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 1e-6, -1e-6, 1e3, -1e3, torch.nan, torch.inf], dtype=dtype)
    u = torch.cat([torch.linspace(-30, 30, 2001, dtype=dtype), tiny]).unsqueeze(1).requires_grad_()
    line, z = torch.arange(len(u)), torch.ones(len(u), 1, dtype=dtype)
    pattern = Pattern(line, line, len(u), len(u))
    y = scored_attention(Sums(TermScores(activation), False, pattern, 1), z, (u, None, None, None))
    expected = u * 1 if activation is None else activation(u)
    close = {"rtol": 1e-6 if dtype == torch.float32 else 1e-14, "atol": 1e-37, "equal_nan": True}
    torch.testing.assert_close(y, expected, **close)
    close["atol"] = 4 * torch.finfo(dtype).eps  # of 1 - tanh(u)^2 the last digits cancel
    mine, theirs = (torch.autograd.grad(v.sum(), u)[0][:-2] for v in (y, expected))
    torch.testing.assert_close(mine, theirs, **close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exponentials_are_exact(dtype: torch.dtype) -> None:
    """Of pairs of entries, one of which has the score 0, the weights."""
    u = torch.linspace(-80, 0, 4001, dtype=dtype)
    score = torch.stack([u, torch.zeros_like(u)], 1).view(-1, 1)
    target, line = torch.arange(len(u)).repeat_interleave(2), torch.arange(2 * len(u))
    z = torch.tensor([1.0, 0.0], dtype=dtype).repeat(len(u)).unsqueeze(1)
    pattern = Pattern(line, target, len(line), len(u))
    y = scored_attention(Sums(TermScores(), True, pattern, 1), z, (score, None, None, None))
    exact = u.double().sigmoid().to(dtype)
    torch.testing.assert_close(y.squeeze(1), exact, rtol=3e-7 if dtype == torch.float32 else 1e-15, atol=0)


@pytest.mark.parametrize("c", [1, 2, 8])
def test_hub(c: int) -> None:
    """More entries of one target, and of one source, than a block has; some blocks have larger scores than before."""
    torch.manual_seed(0)
    line = torch.arange(500)
    for edges in ((line, torch.zeros_like(line)), (torch.zeros_like(line), line)):
        case = Case("all", nn.LeakyReLU(0.2), c=c, W=4, sizes=(500, 500, 500), edges=edges)
        with torch.no_grad():
            assert case.all[2] is not None
            case.all[2].add_(torch.linspace(-20, 20, 500).unsqueeze(1))
        check(case)


@pytest.mark.parametrize("kind", ["all", "entry"])
def test_scores_that_are_large_or_hidden(kind: str) -> None:
    torch.manual_seed(0)
    case = Case(kind, c=3, sizes=(9, 6, 60))
    entry = case.all[4]
    assert entry is not None
    with torch.no_grad():
        entry.mul_(1e4)
        entry[::3, 0] = -torch.inf
        entry[:, 1] = -torch.inf  # nobody has a weight
        entry[case.pattern.row == 2] = -torch.inf
    check(case)
    y, *gradients = case.both()
    assert not y.view(6, 3, 3)[:, 1].any()
    assert not y[2].any()
    assert all(g.isfinite().all() for g in gradients)


def test_what_is_no_number_is_passed_on() -> None:
    case = Case("source", sizes=(5, 5, 5), edges=(torch.tensor([0, 1, 2, 3, 4]), torch.tensor([0, 0, 1, 2, 2])))
    assert case.all[2] is not None
    for value in (torch.nan, torch.inf):
        with torch.no_grad():
            case.all[2][1] = value
        y = case.run()
        assert y[0].isnan().all()
        assert y[1:].isfinite().all()


def check_threads(results: Callable[[], Sequence[Tensor]]) -> None:
    """The same bits with one, two and three threads."""
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(results())
    finally:
        torch.set_num_threads(threads)
    for others in found[1:]:
        for a, b in zip(found[0], others, strict=True):
            assert a.equal(b)


@pytest.mark.parametrize("kind", ["all", "hidden", "projected", "products"])
def test_any_number_of_threads_gives_the_same_bits(kind: str) -> None:
    torch.manual_seed(0)
    case = Case(kind, nn.LeakyReLU(0.2), c=8, W=8, D=8, factors=True, sizes=(500, 500, 20_000), dtype=torch.float32)
    check_threads(case.both)
    check(case, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("known", [0, onepass._KNOWN])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_that_are_asked_for_one_by_one(kind: str, known: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onepass, "_KNOWN", known)
    case = Case(kind, torch.tanh, W=8, factors=True)
    _, *together = case.both()
    there = [i for i, t in enumerate(case.all) if t is not None]
    for place, expected in zip(there, together, strict=True):
        one = [None if t is None else t if i == place else t.detach() for i, t in enumerate(case.all)]
        y = case.run(one)
        down = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).to(y.dtype)
        torch.testing.assert_close(torch.autograd.grad(y, one[place], down)[0], expected)


def test_rows_may_stand_anywhere() -> None:
    """Columns of a wider table, rows that are one row, and gradients that are expanded."""
    case, M, N = Case("source", c=3, factors=True), 7, 5
    wide = torch.randn(M, 9, dtype=torch.float64)
    for source in (wide[:, 3:6], wide[:, ::3], wide[:1, :3].expand(M, 3)):
        z, factor = torch.randn(9, M, dtype=torch.float64).t(), torch.randn(1, 3, dtype=torch.float64).expand(20, 3)
        given = [t.detach().requires_grad_() for t in (z, factor, source)]
        case.all = [*given, None, None, None]
        check(case)
        dense = Case("source", c=3)
        dense.pattern, dense.all = (
            case.pattern,
            [
                None if t is None else t.detach().clone(memory_format=torch.contiguous_format).requires_grad_()
                for t in case.all
            ],
        )
        down = torch.ones(1, dtype=torch.float64).expand(N, 9)
        for a, b in zip(case.both(down), dense.both(down.contiguous()), strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("order", [(0, 2, 3), (3, 0, 2)], ids=["z first", "targets first"])
@pytest.mark.parametrize(("c", "W"), [(2, 3), (8, 8), (4, 1)])
@pytest.mark.parametrize("kind", ["source", "target", "all", "hidden", "products", "projected"])
def test_columns_of_wider_rows(
    kind: str, c: int, W: int, order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows and terms that lie side by side are read where they are, and have gradients that do, too."""
    monkeypatch.setattr(onepass, "_WIDE", 0)
    case = Case(kind, nn.LeakyReLU(0.2), c=c, W=W, D=W, sizes=(6, 6, 20))
    expected = case.both()
    places = [i for i in order if case.all[i] is not None and len(case.all[i]) == 6]
    tables = [case.all[i].detach() for i in places]
    wide = torch.cat([torch.full((6, 1), math.nan), *tables, torch.full((6, 2), math.nan)], 1)
    columns = wide[:, 1:-2].split([t.shape[1] for t in tables], 1)
    for i, t in zip(places, columns, strict=True):
        case.all[i] = t.detach().requires_grad_()
    found = case.both()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    given = [i for i, t in enumerate(case.all) if t is not None]
    gradients = [found[1 + given.index(i)] for i in places]
    assert len(places) == 1 or side_by_side(gradients) is not None


@pytest.mark.parametrize("normalised", [True, False], ids=["softmax", ""])
@pytest.mark.parametrize(("c", "W"), [(2, 3), (8, 8), (4, 1)])
@pytest.mark.parametrize("kind", ["all", "hidden", "hidden, entries", "products"])
@pytest.mark.parametrize("known", [0, onepass._KNOWN], ids=["told", ""])
def test_scores_of_the_very_rows_that_are_summed(
    kind: str, c: int, W: int, normalised: bool, known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such rows have one gradient, that of the sums and of the scores."""
    monkeypatch.setattr(onepass, "_KNOWN", known)
    case = Case(kind, torch.tanh, c=c, W=1 if kind == "all" else W, D=W, normalised=normalised, factors=True)
    case.all[2] = case.all[0]
    check(case)


@pytest.mark.parametrize("same", [(2, 3), (0, 3), (0, 2, 3)], ids=["terms", "z and targets", "all"])
@pytest.mark.parametrize("kind", ["all", "hidden", "products"])
def test_one_tensor_in_several_places(kind: str, same: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each place has a gradient of its own, or they have one for all."""
    monkeypatch.setattr(onepass, "_WIDE", 0)
    case = Case(kind, torch.tanh, W=1 if kind == "all" else 3, sizes=(6, 6, 20))
    for i in same:
        case.all[i] = case.all[same[0]]
    check(case)


def test_what_kernels_do_not_take_goes_another_way() -> None:
    case = Case("source")
    form, z = case.scoring.form(case.all[2:], 2), case.all[0]
    assert activation_code(torch.sin) is None
    assert TermScores(torch.sin).form(case.all[2:], 2) is None
    assert z is not None
    assert not onepass.supports(case.sums, form, [z, torch.zeros(7, 2)])  # of another dtype
    assert not onepass.supports(case.sums, form, [z.to("meta")])
    activation = nn.LeakyReLU(0.2)
    activation.register_forward_hook(lambda *_: None)
    assert activation_code(activation) is None


def test_indices_out_of_range_reach_no_memory() -> None:
    case = Case("source", sizes=(7, 5, 20))
    case.pattern.by_target.other[3] = 7
    with pytest.raises(ValueError, match="integers from 0 to 6"):
        case.run()
    case.pattern.by_target.other[3] = -1
    with pytest.raises(ValueError, match="integers from 0 to 6"):
        case.run()


def test_tensors_of_other_sizes_are_refused() -> None:
    case = Case("source", factors=True)
    for place in (1, 2):
        given = list(case.all)
        t = given[place]
        assert t is not None
        given[place] = t.detach()[1:]
        with pytest.raises(ValueError, match="pass those of this pattern"):
            case.run(given)


@pytest.mark.parametrize(
    ("kind", "place", "expected"),
    [
        ("source", 0, "7 rows of 2 heads"),
        ("projected", 0, "5 rows of 2 heads, which are targets too"),
        ("source", 2, "7 rows of 2"),
        ("target", 3, "5 rows of 2"),
        ("entry", 4, "20 rows of 2"),
        ("hidden", 5, "a vector for each of 2 heads"),
        ("projected", 2, "a vector for each of 2 heads"),
        ("projected", 3, "a vector for each of 2 heads"),
        ("products", 3, "5 rows of 6"),
    ],
)
def test_kernels_refuse_what_they_would_read_beyond(kind: str, place: int, expected: str) -> None:
    """Whoever calls them: rows that are too few, and rows or vectors that are too narrow."""
    case = Case(kind)
    form, t = case.scoring.form(case.all[2:], case.c), case.all[place]
    assert form is not None
    assert t is not None
    for less in (t[1:], t[:, 1:]):
        z, _, *terms = [less if i == place else given for i, given in enumerate(case.all)]
        with pytest.raises(ValueError, match=expected):
            onepass.Attend(case.sums, form, (z, None, None, None, None, *terms))


@pytest.mark.parametrize("wrong", ["activation", "factors", "targets", "softmax", "heads"])
def test_wrong_calls_fail(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above can fail: kernels that are told something else do not pass it."""
    real = onepass.Attend._run

    def run(self: Any, *rest: Any) -> None:
        kept = dict(self.__dict__)
        if wrong == "activation":
            self.form = self.form._replace(activation=activation_code(nn.LeakyReLU(0.3)))
        elif wrong == "factors":
            self.factor = self.factor.flip(0)
        elif wrong == "targets":
            self.terms = (self.terms[0], self.terms[1].flip(0), *self.terms[2:])
        elif wrong == "softmax":
            self.terms = (None, *self.terms[1:])
        else:
            self.z = self.z.flip(1)
        try:
            real(self, *rest)
        finally:
            self.__dict__.update(kept)

    torch.manual_seed(0)
    case = Case("all", nn.LeakyReLU(0.2), factors=True)
    check(case)
    monkeypatch.setattr(onepass.Attend, "_run", run)
    with pytest.raises(AssertionError):
        check(case)


MECHANISMS = ["mechanisms.inner", "mechanisms.outer"]


def test_large_graphs_hold_nothing_of_the_size_of_all_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """GAT, GATv2 and products, these with features of edges too, go in one step, which torch takes head by head."""
    torch.manual_seed(0)
    fits = [f"pyg_basisconv.{module}.one_pass_fits" for module in ("bases.bound_attention", *MECHANISMS)]
    monkeypatch.setattr("pyg_basisconv.bases.bound_attention.BLOCK", 10)
    for module in MECHANISMS:
        monkeypatch.setattr(f"pyg_basisconv.{module}.HELD", 10)
    calls, real = [], onepass.Attend.forward
    monkeypatch.setattr(onepass.Attend, "forward", lambda self, *a, **k: (calls.append(a), real(self, *a, **k))[1])
    edges, x, z = torch.randint(20, (2, 60)), torch.randn(20, 8).double(), torch.randn(60, 3).double()
    for score in (
        mechanisms.Additive(projected=True).then(nn.LeakyReLU(0.2)),
        mechanisms.MLP(projected=True, activation=nn.LeakyReLU(0.2)),
        mechanisms.Dot(4),
        mechanisms.Dot(4, edge_dim=3),
    ):
        given = {"edge_attr": z} if getattr(score, "edge_dim", 0) else {}
        conv = BasisConv(8, 6, bases.Attention(2, score, bases.Adjacency()), theta.Heads()).double()
        calls.clear()
        y = conv(x, edges, **given)
        assert calls, score
        with monkeypatch.context() as m:
            for name in fits:
                m.setattr(name, lambda *_: False)
            calls.clear()
            again = BasisConv(8, 6, bases.Attention(2, score, bases.Adjacency()), theta.Heads()).double()
            again.load_state_dict(conv.state_dict())
            torch.testing.assert_close(again(x, edges, **given), y)
            assert not calls, score


def test_softmax_of_one_is_one() -> None:
    """By hand: y_0 is the mean of two rows, under scores that are equal; y_1 is a row with the weight e / (1 + e)."""
    z = torch.tensor([[2.0], [4.0], [8.0]])
    pattern = Pattern(torch.tensor([0, 1, 2, 0]), torch.tensor([0, 0, 1, 1]), 3, 3)
    terms = torch.tensor([[0.0], [0.0], [1.0]]), None, None, None
    y = scored_attention(Sums(TermScores(), True, pattern, 1), z, terms)
    share = math.e / (1 + math.e)
    torch.testing.assert_close(y, torch.tensor([[3.0], [8 * share + 2 * (1 - share)], [0.0]]))


@pytest.mark.parametrize("activation", [nn.LeakyReLU(0.2), torch.relu, torch.tanh])
@pytest.mark.parametrize("kind", ["source", "target", "all", "projected"])
def test_factors_without_gradient(kind: str, activation: Any) -> None:
    """As dropout draws them; the gradient of targets' terms may then need no pass over the entries."""
    torch.manual_seed(0)
    case = Case(kind, activation, c=3, W=5, factors=True, sizes=(30, 30, 200))
    case.all[1] = case.all[1].detach() * (torch.rand(200, 3) > 0.3)
    learns = [t for t in case.inputs if t.requires_grad]
    found, expected = [], []
    for into, way in ((found, case.run), (expected, lambda: in_torch_once(case))):
        y = way()
        into += [y, *torch.autograd.grad(y.sin().sum(), learns)]
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def in_torch_once(case: Case) -> Tensor:
    with pytest.MonkeyPatch.context() as m:
        m.setattr(scored, "supports", lambda *_: False)
        return case.run()


def test_targets_alike_take_no_second_pass() -> None:
    """What is summed above zero is kept for targets' terms of a leaky ReLU alone, and where entries learn nothing."""

    def keeps(kind: str, activation: Any) -> bool:
        case = Case(kind, activation, W=4, sizes=(9, 9, 30))
        form = case.scoring.form(case.all[2:], case.c)
        call = onepass.Attend(case.sums, form, (case.all[0], *[None] * 4, *case.all[2:]))
        return call.forward(keep=True)[1][1] is not None

    leaky = nn.LeakyReLU(0.2)
    assert keeps("projected", leaky)
    assert keeps("target", torch.relu)
    for kind, activation in (("projected", torch.tanh), ("all", leaky), ("source", leaky), ("hidden", leaky)):
        assert not keeps(kind, activation)
