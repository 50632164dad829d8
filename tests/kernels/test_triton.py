"""The kernels in Triton, on a GPU or interpreted on the CPU (`make test-triton`), against torch's indexing."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings, strategies as st
from torch import Tensor, nn
from torch_geometric import nn as pyg

from pyg_basisconv import BasisConv, backends, bases, convert
from pyg_basisconv.backend import uses_triton
from pyg_basisconv.kernels import Pattern, Sums, Valued, onepass, products, scored_attention, sddmm, spmm, spmm_rows
from pyg_basisconv.kernels.activations import activation_code
from pyg_basisconv.kernels.op import acc_dtype
from pyg_basisconv.kernels.scored import _plain
from tests.kernels import test_compiled_features as features, test_compiled_gate as gates, test_scored as few
from tests.kernels.test_compiled_attention import ACTIVATIONS, KINDS, Case

SMALL = 4, 3, 9
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if not uses_triton(DEVICE):
    pytest.skip(f"triton: {backends()['triton']}", allow_module_level=True)

from pyg_basisconv.kernels.triton import launch  # noqa: E402 - only where it is installed
from pyg_basisconv.kernels.triton.attention import TritonAttend  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of infinities
LEAKY = nn.LeakyReLU(0.2)
EXACT = {"rtol": 1e-10, "atol": 1e-10}
HALF = [torch.float16] + [torch.bfloat16] * (DEVICE.type == "cuda")  # numpy has no bfloat16


def put(case: Any) -> Any:
    """The same on the device."""
    case.pattern = case.pattern.to(DEVICE)
    name = "all" if isinstance(case, Case) else "tensors"
    given = [None if t is None else t.detach().to(DEVICE).requires_grad_() for t in getattr(case, name)]
    setattr(case, name, given)
    return case


def down(y: Tensor) -> Tensor:
    return torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape).to(y)


def oracle(case: Case) -> tuple[Tensor, ...]:
    """The result and all gradients, by torch's indexing of single entries, in float64 on the CPU."""
    inputs = [None if t is None else t.detach().cpu().double().requires_grad_() for t in case.all]
    z, factor, *terms = inputs
    c, (m, n), E = case.c, (t.cpu().long() for t in case.pattern.ends), case.pattern.E
    rows = z.view(len(z), c, -1)
    scoring = case.scoring
    if type(scoring).__name__ == "ProductScores":
        key, query = (t.view(len(t), c, -1) for t in terms)
        s = (key[m] * query[n]).sum(-1)
    elif type(scoring).__name__ == "ProjectedScores":
        a, b = terms
        s = (rows * a).sum(-1)[m] + (rows * b).sum(-1)[n]
        s = s if scoring.activation is None else scoring.activation(s)
    else:
        source, target, entry, out = terms
        u = sum(t[at] for t, at in ((source, m), (target, n), (entry, torch.arange(E))) if t is not None)
        v = u if scoring.activation is None else scoring.activation(u)
        s = v if out is None else (v.view(E, *out.shape) * out).sum(-1)
    if case.normalised:
        for k in n.unique():  # torch's own softmax, of each target by itself; of nothing it is no number
            hidden = (s[n == k] == -torch.inf).all(0)
            weight = s[n == k].masked_fill(hidden, 0).softmax(0).masked_fill(hidden, 0)
            s = s.index_copy(0, (n == k).nonzero().squeeze(1), weight)
    s = s if factor is None else s * factor
    y = z.new_zeros(case.pattern.N, *rows.shape[1:]).index_add(0, n, s.unsqueeze(-1) * rows[m]).flatten(1)
    grads = torch.autograd.grad(y, [t for t in inputs if t is not None], down(y), materialize_grads=True)
    return y.detach(), *grads


def results(case: Any) -> tuple[Tensor, ...]:
    y, inputs = case.run(), case.inputs if isinstance(case, Case) else [t for t in case.tensors if t is not None]
    return y.detach(), *torch.autograd.grad(y, inputs, down(y), materialize_grads=True)


def check(case: Case, **tolerance: float) -> None:
    form = case.scoring.form(case.all[2:], case.c)
    assert onepass.supports(case.sums, form, case.all)  # else nothing is compared here
    for found, expected, like in zip(results(case), oracle(case), [case.all[0], *case.inputs], strict=True):
        assert (found.dtype, found.device) == (like.dtype, like.device)
        torch.testing.assert_close(found.cpu().double(), expected, **(tolerance or EXACT))


@pytest.mark.parametrize("normalised", [True, False], ids=["softmax", "sums"])
@pytest.mark.parametrize("kind", KINDS)
def test_forms(kind: str, normalised: bool) -> None:
    check(put(Case(kind, torch.tanh, c=3, W=5, D=3, factors=True, normalised=normalised, sizes=SMALL)))


@settings(max_examples=12, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    activation=st.sampled_from(ACTIVATIONS),
    c=st.sampled_from([1, 2, 3, 5, 8]),
    W=st.sampled_from([1, 3, 8, 33]),
    D=st.sampled_from([1, 3, 16]),
    normalised=st.booleans(),
    factors=st.booleans(),
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(0, 20)),
    seed=st.integers(0, 1000),
)
def test_forms_and_sizes(seed: int, **arguments: Any) -> None:
    torch.manual_seed(seed)
    check(put(Case(**arguments)))


@pytest.mark.parametrize(
    ("c", "W", "D", "fits"),
    [(1, 2048, 3, True), (8, 512, 3, True), (2, 3, 2048, True), (2, 2049, 3, False), (2, 3, 2049, False)],
    ids=["one head", "many heads", "wide keys", "a head too wide", "keys too wide"],
)
def test_a_head_of_up_to_2048_columns_fits_a_program(c: int, W: int, D: int, fits: bool) -> None:
    case = put(Case("products", c=c, W=W, D=D, sizes=SMALL))
    assert onepass.supports(case.sums, case.scoring.form(case.all[2:], c), case.all) == fits


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of more than eight entries are cut into pieces."""
    monkeypatch.setattr(launch, "SPLIT", 8)


@pytest.mark.usefixtures("short")
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(degrees=st.lists(st.integers(0, 30), min_size=1, max_size=600), wide=st.booleans())
def test_rows_are_cut(degrees: list[int], wide: bool) -> None:
    """The pieces of long rows side by side, in their order."""
    assume(sum(degrees) > 8)
    degree = torch.tensor(degrees, device=DEVICE, dtype=torch.int64 if wide else torch.int32)
    ptr = nn.functional.pad(degree.cumsum(0), (1, 0)).to(degree)
    found = launch.pieces_of(ptr, sum(degrees))
    long = [k for k, d in enumerate(degrees) if d > 8]
    if found is None:
        assert not long
        return
    row, start, long_rows, _ = found
    assert [k for k, _, _ in long_rows.tolist()] == long
    assert [i for _, first, last in long_rows.tolist() for i in range(first, last)] == list(range(len(row)))
    for k, first, last in long_rows.tolist():
        assert row[first:last].eq(k).all()
        assert start[first:last].tolist() == list(range(int(ptr[k]), int(ptr[k + 1]), 8))


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("normalised", [True, False], ids=["softmax", "sums"])
@pytest.mark.parametrize("kind", ["all", "hidden, entries", "projected", "products"])
def test_long_rows(kind: str, normalised: bool) -> None:
    """Hubs of 8, 9 and 41 entries by target and by source; some of their pieces have no weight, or nearly all of it."""
    hubs = torch.tensor([0] * 41 + [3] * 9 + [1] * 8 + [4])
    others = torch.arange(len(hubs)) % 6
    source, target = torch.cat([others, hubs]), torch.cat([hubs, others])
    case = Case(kind, LEAKY, c=3, W=5, factors=True, normalised=normalised, sizes=(6, 6, 0), edges=(source, target))
    if kind == "all" and normalised:
        with torch.no_grad():
            into = case.pattern.row == 0
            case.all[4][into] = torch.linspace(-30, 30, int(into.sum()), dtype=torch.float64).unsqueeze(1)
            case.all[4][into.nonzero()[:8, 0], 1] = -torch.inf
            case.all[4][case.pattern.row == 3, 2] = -torch.inf
    check(put(case))
    for ptr in case.pattern.both_ways[::2]:
        pieces, degree = launch.pieces_of(ptr, case.pattern.E), ptr.diff()
        assert pieces.long_rows[:, 0].equal((degree > 8).nonzero().squeeze(1))
        assert (degree[0], *pieces.long_rows[0, 1:]) == (51, 0, 7)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_precisions(kind: str, dtype: torch.dtype) -> None:
    """Inputs are read as they are; sums are float32, and what is given back is rounded once."""
    check(put(Case(kind, LEAKY, c=2, W=4, factors=True, sizes=SMALL, dtype=dtype)), **tolerance(dtype))


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    eps = max(torch.finfo(dtype).eps, 1e-5)
    return {"rtol": 2 * eps, "atol": 2 * eps}


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_half_precision_does_not_round_pieces(dtype: torch.dtype) -> None:
    """A hub of entries of one hundredth, which half precision would not add to a sum of hundreds."""
    E = 60
    pattern = Pattern(torch.arange(E), torch.zeros(E, dtype=torch.long), E, 1).to(DEVICE)
    x = torch.full((E, 2), 0.01, dtype=dtype, device=DEVICE)
    x[0] = 1000
    expected = x.double().sum(0, keepdim=True).to(dtype)
    assert spmm(x, None, pattern).equal(expected)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda act: getattr(act, "__name__", str(act)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_activations_are_as_exact_as_torchs(activation: Any, dtype: torch.dtype) -> None:
    tiny = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 1e-6, -1e-6, 1e3, -1e3, torch.nan, torch.inf], dtype=dtype)
    u = torch.cat([torch.linspace(-20, 20, 101, dtype=dtype), tiny]).unsqueeze(1)
    c = len(u)  # one entry, of which each number has a head
    once = torch.zeros(1, dtype=torch.long)
    case = Case("entry", activation, c=c, W=1, normalised=False, sizes=(1, 1, 0), dtype=dtype, edges=(once, once))
    case.all[0], case.all[4], u = torch.ones(1, c, dtype=dtype), u.t().contiguous().requires_grad_(), u.t()
    y, _, slope = results(put(case))
    expected = u * 1 if activation is None else activation(u)
    close = {"rtol": 4e-6 if dtype == torch.float32 else 1e-14, "atol": 1e-36, "equal_nan": True}
    torch.testing.assert_close(y.cpu(), expected.detach(), **close)
    u = u.clone().requires_grad_()
    theirs = torch.autograd.grad(u * 1 if activation is None else activation(u), u, down(expected))[0]
    close["atol"] = 8 * torch.finfo(dtype).eps  # of 1 - tanh(u)^2 the last digits cancel
    torch.testing.assert_close(slope.cpu()[:, :-2], theirs[:, :-2], **close)


@pytest.mark.parametrize("kind", ["all", "entry"])
def test_scores_that_are_large_or_hidden(kind: str) -> None:
    case = Case(kind, c=3, sizes=(9, 6, 60))
    with torch.no_grad():
        entry = case.all[4]
        entry.mul_(1e4)
        entry[::3, 0] = -torch.inf
        entry[:, 1] = -torch.inf  # nobody has a weight
        entry[case.pattern.row == 2] = -torch.inf
    y, *gradients = results(put(case))
    check(case)
    assert not y.view(6, 3, 3)[:, 1].any()
    assert not y[2].any()
    assert all(g.isfinite().all() for g in gradients)


def test_what_is_no_number_is_passed_on() -> None:
    edges = torch.tensor([0, 1, 2, 3, 4]), torch.tensor([0, 0, 1, 2, 2])
    for value in (torch.nan, torch.inf):
        case = put(Case("source", sizes=(5, 5, 0), edges=edges))
        with torch.no_grad():
            case.all[2][1] = value
        y = case.run()
        assert y[0].isnan().all()
        assert y[1:].isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_that_are_asked_for_one_by_one(kind: str) -> None:
    case = put(Case(kind, torch.tanh, factors=True, sizes=SMALL))
    _, *together = results(case)
    there = [i for i, t in enumerate(case.all) if t is not None]
    for place, expected in zip(there, together, strict=True):
        one = [None if t is None else t if i == place else t.detach() for i, t in enumerate(case.all)]
        y = case.run(one)
        torch.testing.assert_close(torch.autograd.grad(y, one[place], down(y))[0], expected)


def test_rows_may_stand_anywhere() -> None:
    """Columns of a wider table, rows that are one row, factors of any strides."""
    wide = torch.randn(7, 9, dtype=torch.float64)
    case = Case("source", c=3)
    for source in (wide[:, 3:6], wide[:, ::3], wide[:1, :3].expand(7, 3)):
        for factor in (torch.randn(20, 1).double().expand(20, 3), torch.randn(3, 20).double().t()):
            given = [torch.randn(9, 7, dtype=torch.float64).t(), factor, source, None, None, None]
            case.all = [t if t is None else t.to(DEVICE).detach().requires_grad_() for t in given]
            case.pattern = case.pattern.to(DEVICE)
            check(case)


def test_indices_out_of_range_reach_no_memory() -> None:
    """Where compiled kernels stop, these pass over such entries: to tell of them they had to wait for the device."""
    case = put(Case("source", c=2, normalised=False))
    case.pattern.by_target.other[3] = 7
    case.pattern.by_target.other[5] = -1
    factor = torch.ones(20, 2, dtype=torch.float64)
    factor[[3, 5]] = 0
    found = case.run()
    case.pattern.by_target.other[[3, 5]] = 0
    case.all[1] = factor.to(DEVICE)
    torch.testing.assert_close(found, case.run())


def test_tensors_of_other_sizes_are_refused() -> None:
    case = put(Case("source", factors=True))
    for place in (1, 2):
        given = list(case.all)
        given[place] = given[place].detach()[1:]
        with pytest.raises(ValueError, match="pass those of this pattern"):
            case.run(given)


@pytest.mark.usefixtures("short")
def test_same_bits() -> None:
    case = put(Case("hidden, entries", LEAKY, c=4, W=8, factors=True, sizes=(6, 6, 90), dtype=torch.float32))
    first, again = results(case), results(case)
    assert all(a.equal(b) for a, b in zip(first, again, strict=True))


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("E", [5, 20])
def test_a_result_may_be_written_to(E: int) -> None:
    case = put(Case("all", c=1, W=2, sizes=(4, 1, E)))
    expected = torch.autograd.grad(nn.functional.elu(case.run()).sum(), case.inputs)
    found = torch.autograd.grad(nn.functional.elu_(case.run()).sum(), case.inputs)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_second_derivatives() -> None:
    case = put(Case("source", torch.tanh, c=1, W=1, sizes=(2, 1, 2)))
    inputs = case.inputs
    places = [i for i, t in enumerate(case.all) if t is not None]

    def run(*tensors: Tensor) -> Tensor:
        return case.run([tensors[places.index(i)] if i in places else None for i in range(6)])

    assert torch.autograd.gradgradcheck(run, inputs)


@pytest.mark.parametrize("wrong", ["activation", "factors", "targets", "heads"])
def test_wrong_calls_fail(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: kernels that are told something else do not pass it."""
    real = TritonAttend._launch

    def run(self: Any, *rest: Any, **options: Any) -> None:
        kept = dict(self.__dict__)
        if wrong == "activation":
            self.form = self.form._replace(activation=activation_code(nn.LeakyReLU(0.3)))
        rest = list(rest)
        if wrong == "factors":
            rest = [t.flip(0) if t is self.factor else t for t in rest]
        elif wrong == "targets":
            rest = [t.flip(0) if t is self.terms[1] else t for t in rest]
        elif wrong == "heads":
            rest = [t.flip(1) if t is self.z else t for t in rest]
        try:
            real(self, *rest, **options)
        finally:
            self.__dict__.update(kept)

    case = put(Case("all", LEAKY, factors=True))
    check(case)
    monkeypatch.setattr(TritonAttend, "_launch", run)
    with pytest.raises(AssertionError):
        check(case)


@pytest.mark.parametrize("c", [4, 9, 33])
@pytest.mark.parametrize("there", [set(gates.NAMES), {"source"}, {"target", "values"}], ids=["all", "source", "values"])
@pytest.mark.parametrize("listed", [False, True], ids=["", "as given"])
def test_gates(there: set[str], c: int, listed: bool) -> None:
    """Values of entries, which are added to the rows; terms of entries, by target or as they were given."""
    case = put(gates.Case(there, c, listed=listed))
    found = results(case)
    inputs = [t if t is None else t.detach().cpu().requires_grad_() for t in case.tensors]
    z, factor, values, source, target, entry = inputs
    (m, n), order = (t.cpu().long() for t in case.pattern.ends), case.pattern.by_target.order
    at_entry = order.cpu().long() if listed else torch.arange(case.pattern.E)
    weight = sum(t[at] for t, at in ((source, m), (target, n), (entry, at_entry)) if t is not None).sigmoid()
    weight = weight if factor is None else weight * factor
    y = z.new_zeros(case.pattern.N, c).index_add(0, n, weight * (z[m] if values is None else z[m] + values))
    expected = y, *torch.autograd.grad(y, [t for t in inputs if t is not None], down(y))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.cpu(), b.detach(), **EXACT)


@pytest.mark.parametrize("dtype", [torch.float64, *HALF], ids=str)
@pytest.mark.parametrize("kind", ["all", "hidden, all", "products", "products with edges"])
def test_values_of_entries(kind: str, dtype: torch.dtype) -> None:
    """They are mapped in the precision of sums."""
    scoring, make, _ = few.CASES[kind]
    z, values = few.draw(few.N, 2 * few.W).detach().to(dtype), (few.draw(few.E, few.F), few.draw(2, few.F, few.W))
    drawn = [t if t is None else t.detach() for t in (*values, *make(2))]
    given = [z, *(t if t is None else t.to(acc_dtype(dtype)) for t in drawn)]
    results = []
    for device, run in ((DEVICE, None), (torch.device("cpu"), _plain)):
        precise = dtype if run is None else torch.float64
        own = [t if t is None else t.to(device).to(t.dtype if run is None else precise) for t in given]
        z, features, map, *terms = (t if t is None else t.requires_grad_() for t in own)
        sums = Sums(scoring, True, few.pattern().to(device), 2)
        if run is None:
            y = scored_attention(sums, z, terms, None, Valued(features, map))
        else:
            y = run(sums, z, None, None, features, map, *terms)
        inputs = [t for t in (z, features, map, *terms) if t is not None]
        results.append([y, *torch.autograd.grad(y, inputs, down(y))])
    for found, expected in zip(*results, strict=True):
        rounding = max(5e-3, 2 * torch.finfo(dtype).eps)
        close = EXACT if dtype == torch.float64 else {"rtol": rounding, "atol": rounding}
        torch.testing.assert_close(found.cpu().double(), expected, **close)


class WithFeatures(features.Case):
    """An attention whose entries have features, on the device."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pattern = self.pattern.to(DEVICE)

        def there(t: Tensor | None) -> Tensor | None:
            return self.features if t is first else None if t is None else t.detach().to(DEVICE).requires_grad_()

        first, self.features = self.features, self.features.detach().to(DEVICE).requires_grad_()
        self.z, self.map, self.factor, *self.terms = map(there, (self.z, self.map, self.factor, *self.terms))


def check_features(case: WithFeatures, **closeness: float) -> None:
    """Against torch's operations, in float64 on the CPU."""
    seen: list[Any] = []
    with pytest.MonkeyPatch.context() as m:
        real = TritonAttend.forward
        m.setattr(TritonAttend, "forward", lambda self, *a: (seen.append(self.features), real(self, *a))[1])
        found = results(case)
    assert len(seen) == 1  # else nothing is compared here
    assert seen[0] is not None
    given = [case.z, case.factor, case.features, case.map, *case.terms]
    copies = {id(t): t.detach().cpu().double().requires_grad_() for t in given if t is not None}
    z, factor, table, map, *terms = (None if t is None else copies[id(t)] for t in given)
    valued = (None, None) if case.kind == "keys" else (table, map.expand(case.c, -1, -1))
    sums = Sums(case.scoring, case.normalised, case.pattern.to(torch.device("cpu")), case.c)
    y = _plain(sums, z, factor, None, *valued, *terms)
    expected = y, *torch.autograd.grad(y, [copies[id(t)] for t in case.inputs], down(y))
    for mine, theirs, like in zip(found, expected, [case.z, *case.inputs], strict=True):
        assert (mine.dtype, mine.device) == (like.dtype, like.device)
        torch.testing.assert_close(mine.cpu().double(), theirs.detach(), **(closeness or EXACT))


@pytest.mark.parametrize("normalised", [True, False], ids=["softmax", "sums"])
@pytest.mark.parametrize("kind", features.KINDS)
def test_features_of_entries(kind: str, normalised: bool) -> None:
    for F in (4, 1):  # of one feature, the products of queries and maps do not stand row by row
        check_features(WithFeatures(kind, c=3, F=F, factors=True, normalised=normalised, sizes=SMALL))


def test_heads_that_do_not_fit_one_program_share_the_gradients_of_features() -> None:
    case = WithFeatures("keys and values", c=3, W=33, sizes=SMALL)
    assert launch.blocks(launch.NARROW, 3, 33)["HB"] < 3
    check_features(case)


@pytest.mark.parametrize("kind", features.KINDS)
def test_features_without_columns_are_not_read(kind: str) -> None:
    """A kernel reads one at least."""
    case = WithFeatures(kind, F=0, sizes=SMALL)
    valued = (None, None) if case.kind == "keys" else (case.features, case.map)
    torch.testing.assert_close(case.run(), _plain(case.sums, case.z, None, None, *valued, *case.terms))
    for gradient, like in zip(results(case)[1:], case.inputs, strict=True):
        assert gradient.shape == like.shape


@settings(max_examples=12, deadline=None)
@given(
    kind=st.sampled_from(features.KINDS),
    c=st.sampled_from([1, 2, 3, 5, 9]),
    W=st.sampled_from([2, 3, 8, 33]),
    D=st.sampled_from([1, 3, 16]),
    F=st.sampled_from([1, 2, 5, 17]),
    normalised=st.booleans(),
    factors=st.booleans(),
    shared=st.booleans(),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 12)),
    seed=st.integers(0, 1000),
)
def test_features_of_entries_and_sizes(seed: int, **arguments: Any) -> None:
    torch.manual_seed(seed)
    check_features(WithFeatures(**arguments))


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("kind", ["terms", "projected", "keys", "keys and values"])
def test_features_of_long_rows(kind: str) -> None:
    """Targets and sources of ten entries and more, which several programs share; heads in several blocks."""
    for c, W in ((2, 3), (9, 33)):
        check_features(WithFeatures(kind, c=c, W=W, factors=True, sizes=(2, 2, 24)))


@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("kind", features.KINDS)
def test_features_in_precisions(kind: str, dtype: torch.dtype) -> None:
    check_features(WithFeatures(kind, factors=True, sizes=SMALL, dtype=dtype), **tolerance(dtype))


@pytest.mark.parametrize("kind", features.KINDS)
def test_features_whose_gradients_are_asked_for_one_by_one(kind: str) -> None:
    features.check_one_by_one(WithFeatures(kind, factors=True, sizes=SMALL))


@pytest.mark.parametrize("wrong", ["features", "to_values", "to_keys"])
def test_wrong_features_fail(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, made = WithFeatures("keys and values", sizes=SMALL), TritonAttend.__init__

    def make(self: Any, *args: Any) -> None:
        made(self, *args)
        setattr(self, wrong, getattr(self, wrong).flip(0))

    check_features(case)
    monkeypatch.setattr(TritonAttend, "__init__", make)
    with pytest.raises(AssertionError):
        check_features(case)


@pytest.fixture
def no_zeros() -> Iterator[None]:
    """New memory is filled with what is no number."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("no_zeros")
@pytest.mark.parametrize("kind", ["gate", "gate, as given", "terms", "keys and values"])
def test_entries_that_are_passed_over_have_gradients_of_zero(kind: str) -> None:
    """Of factors, terms, values and features."""
    if kind.startswith("gate"):
        case: Any = put(gates.Case(set(gates.NAMES), 4, listed=kind != "gate"))
        of_entries = [case.tensors[i] for i in (1, 2, 5)]
    else:
        case = WithFeatures(kind, factors=True)
        of_entries = [case.factor, case.features, *([case.terms[2]] if kind == "terms" else [])]
    out = [3, 5]
    case.pattern.by_target.other[out] = torch.tensor([-1, 7], dtype=torch.int32, device=DEVICE)
    y = case.run()
    *found, entry = torch.autograd.grad(y, of_entries, down(y))
    if kind.endswith("given"):
        entry = entry[case.pattern.by_target.order]
    for gradient in (*found, entry):
        assert not gradient[out].any()
        assert gradient.isfinite().all()


def test_a_graph_of_another_size_is_not_compiled_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors of dropout, where those of a head stand side by side: what kernels are compiled for does not tell E."""
    seen: list[Any] = []
    real = launch.RowLists.run
    monkeypatch.setattr(launch.RowLists, "run", lambda self, *a, **b: (seen.append((a[0], b)), real(self, *a, **b))[1])
    for E in (20, 23):
        case = Case("source", c=3, sizes=(7, 5, E))
        case.all[1] = torch.randn(3, E, dtype=torch.float64).t().requires_grad_()
        check(put(case))
    first, second = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    assert first == second


def matrix(dtype: torch.dtype = torch.float64, W: int = 3, M: int = 5) -> tuple[Pattern, Tensor, Tensor, Tensor]:
    """Twenty entries, none of target 3 and most of target 1; numbers of them, of sources and of targets."""
    target = torch.tensor([1] * 14 + [0, 2, 4, 4, 0, 2])
    pattern = Pattern(torch.randint(M, (20,)), target, M, 5).to(DEVICE)
    drawn = [torch.randn(size, dtype=torch.float64).to(DEVICE, dtype) for size in ((20,), (M, W), (5, W))]
    return pattern, *(t.requires_grad_() for t in drawn)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("W", [1, 5, 130])
def test_sparse_products(W: int, dtype: torch.dtype) -> None:
    """Both, by loops over the entries, and their gradients, which are the two of them."""
    pattern, weight, x, y = matrix(dtype, W)
    ends = [t.tolist() for t in pattern.ends]
    w64, x64, y64 = (t.detach().cpu().double().requires_grad_() for t in (weight, x, y))
    sums, inner = [torch.zeros(W, dtype=torch.float64) for _ in range(5)], []
    for e, (m, n) in enumerate(zip(*ends, strict=True)):
        sums[n] = sums[n] + w64[e] * x64[m]
        inner.append((x64[m] * y64[n]).sum())
    for found, inputs, expected, like in (
        (spmm(x, weight, pattern), (weight, x), torch.stack(sums), (w64, x64)),
        (sddmm(x, y, pattern), (x, y), torch.stack(inner), (x64, y64)),
    ):
        mine = found, *torch.autograd.grad(found, inputs, down(found))
        theirs = expected, *torch.autograd.grad(expected, like, down(expected))
        scale = max(1.0, *(t.abs().max().item() for t in theirs))
        for a, b in zip(mine, theirs, strict=True):
            assert a.dtype == dtype
            close = EXACT if dtype == torch.float64 else tolerance(dtype)
            torch.testing.assert_close(a.detach().cpu().double() / scale, b.detach() / scale, **close)


def test_products_of_nothing() -> None:
    """No entries, no columns, no sources; and integers of 64 bits."""
    none = torch.zeros(0, dtype=torch.long)
    for M, W in ((0, 3), (4, 0), (4, 3)):
        pattern, x = Pattern(none, none, M, 2).to(DEVICE), torch.randn(M, W, device=DEVICE)
        assert spmm(x, None, pattern).equal(torch.zeros(2, W, device=DEVICE))
        assert sddmm(x, torch.randn(2, W, device=DEVICE), pattern).shape == (0,)
    pattern, weight, x, _ = matrix()
    ptr, index = pattern.one_way
    assert spmm_rows(x, weight, ptr.long(), index.long()).equal(spmm_rows(x, weight, ptr, index))


def test_products_go_by_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else would take them; rows are split and joined as elsewhere."""
    pattern, weight, x, _ = matrix()
    expected = spmm(x, weight, pattern)
    for name in ("KERNELS", "_by_torch"):
        monkeypatch.setattr(products, name, object())
    ptr, index = pattern.one_way
    assert spmm_rows(x, weight, ptr, index).equal(expected)
    two = spmm_rows(x.repeat(1, 2), weight, ptr, index * 2, split=2)
    assert two.equal(expected)


@pytest.mark.usefixtures("short")
def test_long_rows_stay_whole_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    ptr = torch.tensor([0, 20], device=DEVICE)
    assert launch.pieces_of(ptr, 20) is not None
    if DEVICE.type == "cuda":
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert launch.pieces_of(ptr.clone(), 20) is None
        assert launch.pieces_of(ptr, 20) is not None


LAYERS = {
    "GAT": lambda: pyg.GATConv(4, 3, heads=2, edge_dim=2),
    "GATv2": lambda: pyg.GATv2Conv(4, 3, heads=2, edge_dim=2),
    "Transformer": lambda: pyg.TransformerConv(4, 3, heads=2, edge_dim=2),
    "ResGated": lambda: pyg.ResGatedGraphConv(4, 5, edge_dim=2),
    "GCN": lambda: pyg.GCNConv(4, 3),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyG's, and what they are converted to, twice: the second call may be replayed."""
    calls, real = [], launch.RowLists.run
    monkeypatch.setattr(launch.RowLists, "run", lambda self, *a, **b: (calls.append(1), real(self, *a, **b))[1])
    theirs = LAYERS[name]().double().to(DEVICE)
    mine = convert(theirs)
    edges = torch.randint(5, (2, 14), device=DEVICE)
    x = torch.randn(5, 4, dtype=torch.float64, device=DEVICE, requires_grad=True)
    more = () if name == "GCN" else (torch.randn(14, 2, dtype=torch.float64, device=DEVICE, requires_grad=True),)
    found = []
    for layer in (theirs, mine, mine):
        y = layer(x, edges, *more)
        found.append((y.detach(), *torch.autograd.grad(y.square().sum(), (x, *more))))
    assert calls  # a graph so small may be multiplied as a dense matrix later
    for results_of in found[1:]:
        for a, b in zip(results_of, found[0], strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", LAYERS)
def test_launches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass of a kernel forward; backward one over sources, and for attention one over targets before it."""
    calls, real = [], launch.RowLists.run
    monkeypatch.setattr(launch.RowLists, "run", lambda self, *a, **b: (calls.append(1), real(self, *a, **b))[1])
    layer = BasisConv(4, 3, bases.GCN(), order="theta_first") if name == "GCN" else convert(LAYERS[name]())
    layer, edges = layer.to(DEVICE), torch.randint(5, (2, 14), device=DEVICE)
    x = torch.randn(5, 4, device=DEVICE, requires_grad=True)
    more = () if name == "GCN" else (torch.randn(14, 2, device=DEVICE),)
    for _ in range(2):  # the second call may be replayed
        calls.clear()
        y = layer(x, edges, *more)
        forward = len(calls)
        torch.autograd.grad(y.sum(), (x, *layer.parameters()))
        assert (forward, len(calls)) == ((1, 2) if name == "GCN" else (1, 3))
