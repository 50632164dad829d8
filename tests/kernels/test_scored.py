"""Attention whose scores are made on the way, against loops over the entries."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from pyg_basisconv.kernels import (
    EdgeProductScores,
    Pattern,
    ProductScores,
    ProjectedScores,
    Sums,
    TermScores,
    Valued,
    edge_products,
    onepass,
    scored,
    scored_attention,
)
from pyg_basisconv.kernels.activations import activation_code
from pyg_basisconv.kernels.scored import attention
from pyg_basisconv.kernels.scoring import activation_grad
from tests.kernels.test_kernels import Largest

N, D, W, F = 4, 2, 3, 5
SOURCE, TARGET = torch.tensor([0, 3, 2, 2, 1, 0]), torch.tensor([3, 0, 0, 0, 3, 1])  # nothing enters 2
E = len(SOURCE)
LEAKY = nn.LeakyReLU(0.2)


@pytest.mark.parametrize(
    "activation", [None, LEAKY, torch.sigmoid, torch.tanh, nn.ELU()], ids=["", "leaky", "sigmoid", "tanh", "elu"]
)
def test_gradients_of_activations(activation: Any) -> None:
    u, down = torch.randn(2, 7, dtype=torch.float64)
    u.requires_grad_()
    (expected,) = torch.autograd.grad(u.clone() if activation is None else activation(u), u, down)
    torch.testing.assert_close(activation_grad(activation, u, down), expected)


def test_an_activation_without_a_hash_has_no_code() -> None:
    class Unhashable:
        __hash__ = None

        def __call__(self, u: Tensor) -> Tensor:
            return u.tanh()

    assert activation_code(Unhashable()) is None
    assert activation_code(torch.tanh) is not None


def pattern() -> Pattern:
    return Pattern(SOURCE, TARGET, N, N)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def by_target() -> list[tuple[int, int, int]]:
    """The place, the source and the target of each entry, in the order of targets."""
    order = sorted(range(E), key=lambda e: int(TARGET[e]))  # stable
    return [(place, int(SOURCE[e]), int(TARGET[e])) for place, e in enumerate(order)]


def activated(u: Tensor, activation: Any) -> Tensor:
    return u if activation is None else activation(u)


def own(t: Tensor, i: int, k: int, c: int) -> Tensor:
    """What head k of c has in row i."""
    return t[i].view(c, -1)[k]


Score = Callable[..., Tensor]  # of the tensors and z, the entry, the source, the target, the head and their count


def of_terms(t: Any, z: Tensor, e: int, m: int, n: int, k: int, c: int, activation: Any = None) -> Tensor:
    source, target, entry, out = t
    terms = [own(s, i, k, c) for s, i in ((source, m), (target, n), (entry, e)) if s is not None]
    v = activated(torch.stack(terms).sum(0), activation)
    return v[0] if out is None else (v * out[k]).sum()


def of_listed(t: Any, z: Tensor, e: int, m: int, n: int, k: int, c: int, activation: Any = None) -> Tensor:
    """The terms of entries stand in the order in which these were given."""
    order = sorted(range(E), key=lambda i: int(TARGET[i]))  # stable
    return of_terms([*t[:2], t[2][order], t[3]], z, e, m, n, k, c, activation)


def of_projected(t: Any, z: Tensor, e: int, m: int, n: int, k: int, c: int, activation: Any = None) -> Tensor:
    return activated((own(z, m, k, c) * t[0][k]).sum() + (own(z, n, k, c) * t[1][k]).sum(), activation)


def of_products(t: Any, z: Tensor, e: int, m: int, n: int, k: int, c: int, activation: Any = None) -> Tensor:
    return (own(t[0], m, k, c) * own(t[1], n, k, c)).sum()


def of_keyed(t: Any, z: Tensor, e: int, m: int, n: int, k: int, c: int, activation: Any = None) -> Tensor:
    return ((own(t[0], m, k, c) + t[2][e] @ t[3][k]) * own(t[1], n, k, c)).sum()


def terms(*there: bool, hidden: bool = False) -> Callable[[int], list[Tensor | None]]:
    """Those of sources, targets and entries that there are."""

    def make(c: int) -> list[Tensor | None]:
        width = c * D if hidden else c
        found = [draw(rows, width) if is_there else None for rows, is_there in zip((N, N, E), there, strict=True)]
        return [*found, draw(c, D) if hidden else None]

    return make


CASES: dict[str, tuple[Any, Callable[[int], list[Tensor | None]], Score]] = {
    "both ends": (TermScores(LEAKY), terms(True, True, False), of_terms),
    "sources": (TermScores(), terms(True, False, False), of_terms),
    "targets and entries": (TermScores(torch.sigmoid), terms(False, True, True), of_terms),
    "all": (TermScores(torch.tanh), terms(True, True, True), of_terms),
    "hidden": (TermScores(LEAKY), terms(True, True, False, hidden=True), of_terms),
    "hidden, all": (TermScores(torch.tanh), terms(True, True, True, hidden=True), of_terms),
    "hidden, sources": (TermScores(torch.tanh), terms(True, False, False, hidden=True), of_terms),
    "all, as given": (TermScores(torch.tanh, listed=True), terms(True, True, True), of_listed),
    "hidden, as given": (TermScores(torch.tanh, listed=True), terms(True, True, True, hidden=True), of_listed),
    "projected": (ProjectedScores(LEAKY), lambda c: [draw(c, W), draw(c, W)], of_projected),
    "projected, alone": (ProjectedScores(), lambda c: [draw(c, W), draw(c, W)], of_projected),
    "products": (ProductScores(), lambda c: [draw(N, c * D), draw(N, c * D)], of_products),
    "products with edges": (
        EdgeProductScores(),
        lambda c: [draw(N, c * D), draw(N, c * D), draw(E, F), draw(c, F, D)],
        of_keyed,
    ),
}


def valued_with(kind: str, tensors: list[Any], c: int) -> tuple[Tensor, Tensor]:
    """Features of the entries, those that their keys are made of where they have some, and a map."""
    return (tensors[2] if kind == "products with edges" else draw(E, F)), draw(c, F, W)


def expected(
    kind: str, t: Any, z: Tensor, factor: Tensor | None, normalised: bool, c: int, values: Valued | None = None
) -> Tensor:
    scoring, _, score = CASES[kind]
    activation, y = getattr(scoring, "activation", None), torch.zeros(N, c, W, dtype=torch.float64)
    for k in range(c):
        for n in range(N):
            into = [(e, m) for e, m, target in by_target() if target == n]
            weights = [score(t, z, e, m, n, k, c, activation).item() for e, m in into]
            if normalised:
                total = sum(math.exp(w) for w in weights)
                weights = [math.exp(w) / total for w in weights]
            for (e, m), w in zip(into, weights, strict=True):
                row = own(z, m, k, c) if values is None else own(z, m, k, c) + values.features[e] @ values.map[k]
                y[n, k] += w * (1 if factor is None else factor[e, k].item()) * row.detach()
    return y.flatten(1)


@pytest.fixture(params=[1 << 20, 1], ids=["rows", "heads"])
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are gathered; where there are more, heads are taken one by one."""
    for name in ("multihead", "scored"):
        monkeypatch.setattr(f"pyg_basisconv.kernels.{name}.HELD", request.param)


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("valued", [False, True], ids=["", "values"])
@pytest.mark.parametrize(
    ("normalised", "factors", "c"),
    [(False, False, 2), (False, True, 2), (True, False, 2), (True, True, 2), (True, True, 1)],
)
@pytest.mark.parametrize("kind", CASES)
@pytest.mark.sweep(36)
def test_scored_attention(kind: str, normalised: bool, factors: bool, c: int, valued: bool) -> None:
    scoring, make, _ = CASES[kind]
    tensors, z, factor = make(c), draw(N, c * W), draw(E, c) if factors else None
    of_entries = valued_with(kind, tensors, c) if valued else (None, None)
    all_of_them = (z, factor, *of_entries, *tensors)
    inputs = [t for i, t in enumerate(all_of_them) if t is not None and not any(t is s for s in all_of_them[:i])]

    def call(*given: Tensor) -> Tensor:
        held = [
            None if t is None else next(g for s, g in zip(inputs, given, strict=True) if s is t) for t in all_of_them
        ]
        z, factor, features, map, *tensors = held
        values = Valued(features, map) if valued else None
        return scored_attention(Sums(scoring, normalised, pattern(), c), z, tensors, factor, values)

    found = call(*inputs)
    values = Valued(*of_entries) if valued else None
    torch.testing.assert_close(found, expected(kind, tensors, z, factor, normalised, c, values))
    with torch.no_grad():
        torch.testing.assert_close(call(*inputs), found)
    assert gradcheck(call, inputs)


@pytest.mark.skipif(onepass.KERNELS is None, reason="the kernels are not built")
@pytest.mark.parametrize("kind", ["all", "hidden, all", "products", "products with edges"])
def test_each_gradient_of_attention_with_values_alone(kind: str) -> None:
    """Those of what is stored at entries, and summed for the sources, are made for nobody else."""
    scoring, make, _ = CASES[kind]
    tensors = make(2)
    given = [draw(N, 2 * W), draw(E, 2), *valued_with(kind, tensors, 2), *tensors]

    def call(learnt: list[int]) -> Tensor:
        z, factor, features, map, *scored = (t if t is None or i in learnt else t.detach() for i, t in enumerate(given))
        if kind == "products with edges":
            scored[2] = features
        y = scored_attention(Sums(scoring, True, pattern(), 2), z, scored, factor, Valued(features, map))
        return (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)).sum()

    there = [i for i, t in enumerate(given) if t is not None and not (kind == "products with edges" and i == 6)]
    together = torch.autograd.grad(call(there), [given[i] for i in there])
    for i, one in zip(there, together, strict=True):
        (found,) = torch.autograd.grad(call([i]), given[i])
        torch.testing.assert_close(found, one)


@pytest.mark.parametrize("of_query", [False, True], ids=["", "of queries"])
@pytest.mark.parametrize("of_key", [False, True], ids=["", "of keys"])
def test_edge_products(of_key: bool, of_query: bool) -> None:
    c = 2
    inputs = [draw(N, c * D), draw(N, c * D), *(draw(E, c * D) for there in (of_key, of_query) if there)]

    def call(key: Tensor, query: Tensor, *more: Tensor) -> Tensor:
        rest = iter(more)
        return edge_products(c, held, key, query, next(rest) if of_key else None, next(rest) if of_query else None)

    rest, held = iter(inputs[2:]), pattern()
    a, b = next(rest) if of_key else torch.zeros(E, c * D), next(rest) if of_query else torch.zeros(E, c * D)
    found = call(*inputs)
    for e, m, n in by_target():
        for k in range(c):
            left, right = own(inputs[0], m, k, c) + own(a, e, k, c), own(inputs[1], n, k, c) + own(b, e, k, c)
            torch.testing.assert_close(found[e, k], sum(x * y for x, y in zip(left, right, strict=True)))
    with torch.no_grad():
        torch.testing.assert_close(call(*inputs), found)
    assert gradcheck(call, inputs)
    assert gradgradcheck(call, inputs)
    mapped = torch.func.vmap(lambda key: call(key, *inputs[1:]))(inputs[0].unsqueeze(0))
    torch.testing.assert_close(mapped[0], found)


@pytest.mark.parametrize(
    ("kind", "normalised"),
    [*((kind, True) for kind in CASES), ("all", False), ("projected", False), ("products", False)],
)
@pytest.mark.sweep(1)
def test_second_derivatives(kind: str, normalised: bool) -> None:
    scoring, make, _ = CASES[kind]
    c, tensors = 2, make(2)
    z, places = draw(N, c * W), [i for i, t in enumerate(tensors) if t is not None]

    def call(z: Tensor, *given: Tensor) -> Tensor:
        held: list[Tensor | None] = [None] * len(tensors)
        for i, t in zip(places, given, strict=True):
            held[i] = t
        return scored_attention(Sums(scoring, normalised, pattern(), c), z, held)

    assert gradgradcheck(call, (z, *(t for t in tensors if t is not None)))


@pytest.mark.parametrize("kind", CASES)
def test_gradients_that_are_asked_for_one_by_one(kind: str) -> None:
    scoring, make, _ = CASES[kind]
    all_of_them = [draw(N, 2 * W), *make(2)]
    down = draw(N, 2 * W).detach()

    def grads(wanted: list[int]) -> list[Tensor]:
        given = [t if t is None or i in wanted else t.detach() for i, t in enumerate(all_of_them)]
        y = scored_attention(Sums(scoring, True, pattern(), 2), given[0], given[1:])
        return list(torch.autograd.grad(y, [given[i] for i in wanted], down))

    there = [i for i, t in enumerate(all_of_them) if t is not None]
    for i, together in zip(there, grads(there), strict=True):
        torch.testing.assert_close(grads([i])[0], together)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    """Sums are taken in float32."""
    scoring, make, _ = CASES["both ends"]
    tensors, z = [None if t is None else t.detach().float() for t in make(2)], draw(N, 2 * W).detach().to(dtype)
    y = scored_attention(Sums(scoring, True, pattern(), 2), z, tensors)
    assert y.dtype == dtype
    exact = [None if t is None else t.double() for t in tensors]
    torch.testing.assert_close(y, expected("both ends", exact, z.double(), None, True, 2).to(dtype))


@pytest.mark.parametrize("held", [0, 1 << 20], ids=["many", "few"])
def test_one_table_for_all_heads(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not copied for each head where it is large; the sums, and all gradients, are those of the definition."""
    monkeypatch.setattr(scored, "HELD", held)
    pattern = Pattern(torch.tensor([0, 2, 1, 2]), torch.tensor([1, 0, 1, 1]), 3, 2)
    table = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)  # by target, as the pattern sorts entries
    found = attention(weight, None, table.expand(2, 3, 2), False, pattern)
    source = pattern.by_target.other.tolist()
    rows = [[[0.0] * 2 for _ in range(2)] for _ in range(2)]
    for k in range(2):
        for e, (m, n) in enumerate(zip(source, pattern.row.tolist(), strict=True)):
            for d in range(2):
                rows[k][n][d] = rows[k][n][d] + weight[k, e] * table[m, d]
    expected = torch.stack([torch.stack([torch.stack(list(row)) for row in head]) for head in rows])
    torch.testing.assert_close(found, expected)
    down = torch.randn_like(found)
    for a, b in zip(
        *(torch.autograd.grad(y, [table, weight], down, retain_graph=True) for y in (found, expected)), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_one_table_for_all_heads_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where as many numbers are gathered as are not held: of two entries among fifty sources, for three heads."""
    entries, table, weights = Pattern(torch.tensor([0, 49]), torch.tensor([0, 1]), 50, 2), draw(50, 4), draw(3, 2)
    found = []
    for held, largest in ((1 << 20, 3 * 50 * 4), (0, 50 * 4)):
        monkeypatch.setattr(scored, "HELD", held)
        with Largest() as mode:
            found.append(attention(weights, None, table.expand(3, 50, 4), False, entries))
        assert mode.numel == largest
    torch.testing.assert_close(*found)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_trace_records_operations_of_torch() -> None:
    """And not memory that nothing writes to."""
    pattern = Pattern(torch.tensor([0, 2, 1, 3]), torch.tensor([1, 0, 1, 2]), 4, 3)
    sums = Sums(TermScores(torch.relu), True, pattern, 2)

    def attended(z: Tensor) -> Tensor:
        return scored_attention(sums, z, (z[:, :2], None, None, None))

    first, second = torch.randn(2, 4, 6)
    traced = torch.jit.trace(attended, (first,), check_trace=False)
    torch.testing.assert_close(traced(second), attended(second))
