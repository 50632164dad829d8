"""Every reproduced system against its reference, in float64, forward and all gradients."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.func import functional_call

from . import bases
from .conv import BasisConv
from .convert import convert
from .orders import ORDERS
from .theta import Pass

TOLERANCE = 1e-10
N, P, Q = 12, 5, 4


class Case(NamedTuple):
    """Two functions that should be one.

    ours, reference: the functions; of modules, the parameters are compared too.
    leaves: what they are differentiated by.
    call: how a function is called with the leaves.
    """

    ours: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    leaves: Sequence[Tensor]
    call: Callable[..., Tensor] = lambda function, *leaves: function(*leaves)


class System(NamedTuple):
    """A row of the table: what is reproduced, which implementation says so, and the cases to compare."""

    name: str
    reference: str
    cases: Callable[[], Iterator[Case]]


class Result(NamedTuple):
    """The largest relative errors of a system over its cases."""

    cases: int
    forward: float
    gradients: float

    @property
    def ok(self) -> bool:
        return self.cases > 0 and max(self.forward, self.gradients) <= TOLERANCE


SYSTEMS: dict[str, System] = {}


def system(name: str, reference: str) -> Callable[[Callable[[], Iterator[Case]]], Callable[[], Iterator[Case]]]:
    """Makes a generator of cases a row of the table."""

    def register(cases: Callable[[], Iterator[Case]]) -> Callable[[], Iterator[Case]]:
        SYSTEMS[name] = System(name, reference, cases)
        return cases

    return register


def verify(row: System) -> Result:
    """The largest relative errors of a system, always of the same random numbers.

    >>> verify(SYSTEMS['GCN']).ok
    True
    """
    forward = gradients = 0.0
    count = 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for case in row.cases():
            ours, theirs = compare(case)
            forward = max(forward, relative_error(ours[0], theirs[0]))
            gradients = max(gradients, *map(relative_error, ours[1:], theirs[1:]))
            count += 1
    return Result(count, forward, gradients)


def compare(case: Case) -> tuple[list[Tensor], list[Tensor]]:
    """The output and every gradient, of ours and of the reference, in one order."""
    probe: Tensor | None = None
    results = []
    for function in (case.ours, case.reference):
        leaves = [leaf.detach().clone().requires_grad_() for leaf in case.leaves]
        parameters = list(function.parameters()) if isinstance(function, nn.Module) else []
        y = case.call(function, *leaves)
        probe = torch.randn_like(y) if probe is None else probe
        inputs = [*leaves, *parameters]
        grads = torch.autograd.grad((y * probe).sum(), inputs, allow_unused=True, materialize_grads=True)
        values = [(p.detach(), g) for p, g in zip(parameters, grads[len(leaves) :], strict=True)]
        results.append(([y.detach(), *grads[: len(leaves)]], values))
    (ours, found), (theirs, wanted) = results
    for mine, reference in _counterparts(found, wanted):
        ours.append(mine)
        theirs.append(reference)
    return ours, theirs


def relative_error(value: Tensor, reference: Tensor) -> float:
    """The largest difference over the largest entry of the reference; infinite where something is not finite.

    >>> relative_error(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]))
    0.25
    """
    if value.shape != reference.shape or not bool(torch.isfinite(value).all()):
        return float("inf")
    if not reference.numel():
        return 0.0
    scale = float(reference.abs().max())
    return float((value - reference).abs().max()) / (scale or 1.0)


_Values = list[tuple[Tensor, Tensor]]


def _counterparts(ours: _Values, theirs: _Values) -> Iterator[tuple[Tensor, Tensor]]:
    """Gradients of the parameters in pairs: a (Q, P) weight of PyG's stands in one of our (K, P, Q), where it is found.

    A value that stands nowhere, and one of ours that is nobody's, are errors.
    """
    free = [(v, g) for value, grad in ours for v, g in zip(*map(_members, (value, grad)), strict=True)]
    for value, grad in theirs:
        for turned, wanted in ((value, grad), (value.t(), grad.t())):
            at = next((i for i, (v, _) in enumerate(free) if torch.equal(v, turned)), None)
            if at is not None:
                yield free.pop(at)[1], wanted
                break
        else:
            raise LookupError(f"a parameter of the reference, {tuple(value.shape)}, has no counterpart")
    if free:
        raise LookupError(f"{len(free)} parameters have no counterpart in the reference")


def _members(value: Tensor) -> list[Tensor]:
    """The matrices of a (K, P, Q) weight; a bias that stands in one comes out as the vector that it was."""
    if value.dim() != 3:
        return [value]
    return [value[0, 0]] if value.shape[:2] == (1, 1) else list(value)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns of text, the first row above a rule."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def graph(loops: Sequence[int] = (2,)) -> tuple[Tensor, Tensor]:
    """A directed graph with parallel edges, some loops and an isolated node, and positive weights."""
    edge_index = torch.randint(0, N - 1, (2, 3 * N))  # node N - 1 is alone
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    edge_index = torch.cat([edge_index, edge_index[:, :3], torch.tensor([list(loops)] * 2)], 1)
    return edge_index, torch.rand(edge_index.shape[1], dtype=torch.float64) + 0.1


def features(*shape: int) -> Tensor:
    """Random numbers in float64."""
    return torch.randn(*shape, dtype=torch.float64)


def drawn(module: Any) -> Any:
    """A module in float64 with random parameters, no two alike."""
    module = module.double()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


# What is added to (P, Q) in the making of each layer; all of them are converted.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "GCNConv": [
        {},
        {"improved": True},
        {"add_self_loops": False},
        {"normalize": False},
        {"bias": False},
        {"cached": True},
        {"flow": "target_to_source"},
        {"normalize": False, "aggr": "mean"},
        {"decomposed_layers": 2},
    ],
    "ChebConv": [
        *({"K": K, "normalization": norm} for K in (1, 2, 4) for norm in ("sym", "rw", None)),
        {"K": 3, "bias": False},
        {"K": 3, "flow": "target_to_source"},
        {"K": 3, "normalization": "rw", "flow": "target_to_source"},
    ],
    "TAGConv": [
        {},
        {"K": 0},
        {"K": 2, "normalize": False},
        {"bias": False},
        {"flow": "target_to_source"},
        {"K": 2, "normalize": False, "aggr": "mean"},
    ],
    "SGConv": [
        {},
        {"K": 0},
        {"K": 3},
        {"K": 2, "add_self_loops": False},
        {"K": 2, "cached": True, "bias": False},
        {"K": 2, "flow": "target_to_source"},
    ],
    "SSGConv": [
        {"alpha": 0.1},
        {"alpha": 0.3, "K": 3},
        {"alpha": 0.0, "K": 2, "add_self_loops": False},
        {"alpha": 0.1, "K": 2, "cached": True, "bias": False},
        {"alpha": 0.1, "K": 2, "flow": "target_to_source"},
    ],
    "MixHopConv": [
        {},
        {"powers": [1]},
        {"powers": [0, 3]},
        {"powers": [2, 0, 1]},
        {"powers": [1, 2, 1]},
        {"powers": [1, 1], "bias": False},
        {"add_self_loops": False},
        {"bias": False},
        {"flow": "target_to_source"},
    ],
    "LGConv": [{}, {"normalize": False}, {"normalize": False, "aggr": "mean"}, {"flow": "target_to_source"}],
    "SimpleConv": [
        *(
            {"aggr": aggr, "combine_root": root}
            for aggr in ("sum", "mean")
            for root in (None, "sum", "cat", "self_loop")
        ),
        {"aggr": "add", "flow": "target_to_source"},
    ],
    "GraphConv": [
        {},
        {"aggr": "mean"},
        {"bias": False},
        {"flow": "target_to_source"},
    ],
    "SAGEConv": [
        {},
        {"aggr": "sum"},
        {"normalize": True},
        {"root_weight": False},
        {"root_weight": False, "normalize": True},
        {"project": True},
        {"project": True, "normalize": True, "root_weight": False},
        {"bias": False},
        {"flow": "target_to_source"},
    ],
    "ClusterGCNConv": [
        {},
        {"diag_lambda": 0.7},
        {"diag_lambda": 0.7, "add_self_loops": False},
        {"bias": False},
        {"diag_lambda": 0.7, "flow": "target_to_source"},
    ],
    "LEConv": [{}, {"bias": False}, {"flow": "target_to_source"}],
}
WITHOUT_WEIGHTS = ("SAGEConv", "ClusterGCNConv")
WITHOUT_CHANNELS = ("LGConv", "SimpleConv")


def layer(kind: str, **options: Any) -> Any:
    """A PyG layer with random parameters."""
    return drawn(getattr(pyg, kind)(*(() if kind in WITHOUT_CHANNELS else (P, Q)), **options))


def converted(kind: str, options: dict[str, Any]) -> Iterator[Case]:
    """A PyG layer and what `convert` makes of it: without weights, in a batch, and with weights."""
    reference = layer(kind, **options)
    ours = convert(reference)
    # PyG's ClusterGCNConv is defined for one loop per node, if need be given in order.
    every = kind == "ClusterGCNConv" and not options.get("add_self_loops", True)
    edge_index, weight = graph(range(N) if every else (2,))
    # PyG counts the first axis of x for SimpleConv's loops, and has no batch there.
    shapes = [(N, P)] if options.get("combine_root") == "self_loop" else [(N, P), (2, N, P)]
    for shape in shapes:
        forget(reference)
        yield Case(ours, reference, [features(*shape)], lambda f, x: f(x, edge_index))
    if kind not in WITHOUT_WEIGHTS:
        forget(reference)
        yield Case(ours, reference, [features(N, P), weight], lambda f, x, w: f(x, edge_index, w))


def forget(reference: Any) -> None:
    """What a reference with cached=True kept of another graph."""
    for name in ("_cached_edge_index", "_cached_adj_t", "_cached_x", "_cached_h"):
        if hasattr(reference, name):
            setattr(reference, name, None)


def _conv(basis: bases.Basis, P: int, Q: int, order: str = "auto") -> Callable[..., Tensor]:
    """The convolution as a function of x, Theta and the graph."""
    conv = BasisConv(P, Q, basis, order=order, bias=False).double()
    return lambda x, theta, *graph: functional_call(conv, {"theta.weight": theta}, (x, *graph))


def _formula(x: Tensor, A: Tensor, theta: Tensor) -> Tensor:
    return torch.einsum("...mp,kmn,kpq->...nq", x, A, theta)


@system("triangle", "dense einsum, three orders")
def _triangle() -> Iterator[Case]:
    edge_index, weight = graph()
    kind = torch.randint(0, 3, weight.shape)
    shared = torch.rand(weight.numel(), 3, dtype=torch.float64)
    for order in ORDERS:
        conv = _conv(bases.Edges(3), P, Q, order)
        for x in (features(N, P), features(2, 3, N, P)):
            yield Case(
                lambda x, w, theta, conv=conv: conv(x, theta, edge_index, w, kind),
                lambda x, w, theta: _formula(x, _dense(edge_index, w, kind, 3), theta),
                [x, weight, features(3, P, Q)],
            )
            yield Case(
                lambda x, w, theta, conv=conv: conv(x, theta, edge_index, w),
                lambda x, w, theta: _formula(x, torch.stack([_dense(edge_index, v)[0] for v in w.unbind(1)]), theta),
                [x, shared, features(3, P, Q)],
            )


@system("mixed product", "dense einsum of a o b")
def _mixed_product() -> Iterator[Case]:
    edge_index, weight = graph()
    kind = torch.randint(0, 3, weight.shape)
    # All of x at once, so that what comes out is the operator itself: (M P, N Q) from the identity.
    eye = torch.eye(N * P, dtype=torch.float64).view(N * P, N, P)
    for order in ORDERS:
        conv = _conv(bases.Edges(3), P, Q, order)
        yield Case(
            lambda w, theta, conv=conv: conv(eye, theta, edge_index, w, kind).view(N, P, N, Q),
            lambda w, theta: torch.einsum("kmn,kpq->mpnq", _dense(edge_index, w, kind, 3), theta),
            [weight, features(3, P, Q)],
        )


@system("composition", "two layers, one after the other")
def _composition() -> Iterator[Case]:
    edge_index, weight = graph()
    families = [bases.Identity() + bases.Adjacency("mean"), bases.Diffusion(2), bases.Chebyshev(3)]
    for first, second in zip(families, families[1:] + families[:1], strict=True):
        one, two = _conv(first, P, 3), _conv(second, 3, Q)
        for order in ORDERS:
            both = _conv(first @ second, P, Q, order)
            yield Case(
                lambda x, w, a, b, both=both: both(x, torch.einsum("kpr,lrq->klpq", a, b).flatten(0, 1), edge_index, w),
                lambda x, w, a, b, one=one, two=two: two(one(x, a, edge_index, w), b, edge_index, w),
                [features(N, P), weight, features(first.K, P, 3), features(second.K, 3, Q)],
            )


def _dense(edge_index: Tensor, weight: Tensor, kind: Tensor | None = None, K: int = 1) -> Tensor:
    """(K, N, N) the matrices of typed edges."""
    kind = torch.zeros_like(edge_index[0]) if kind is None else kind
    return weight.new_zeros(K, N, N).index_put((kind, edge_index[0], edge_index[1]), weight, accumulate=True)


def _inverse(degree: Tensor) -> Tensor:
    return torch.where(degree == 0, 0, 1 / torch.where(degree == 0, 1, degree))


def _polynomials(S: Tensor, K: int, chebyshev: bool = False) -> Tensor:
    family = [torch.eye(N, dtype=S.dtype), S][:K]
    while len(family) < K:
        family.append(2 * S @ family[-1] - family[-2] if chebyshev else S @ family[-1])
    return torch.stack(family)


@system("ChebNet, dense", "the sum of dense T_k(2 L / lambda - I)")
def _chebyshev() -> Iterator[Case]:
    edge_index, weight = graph()

    def reference(x: Tensor, w: Tensor, theta: Tensor) -> Tensor:
        W = _dense(edge_index, w)[0]
        W = W - torch.diag(W.diagonal())
        root = _inverse(W.sum(1)).sqrt()
        eye = torch.eye(N, dtype=W.dtype)
        L = eye - root[:, None] * W * root[None, :]
        return _formula(x, _polynomials(2 * L / 1.7 - eye, len(theta), chebyshev=True), theta)

    for K in (1, 2, 5):
        conv = _conv(bases.Chebyshev(K, lambda_max=1.7), P, Q)
        yield Case(
            lambda x, w, theta, conv=conv: conv(x, theta, edge_index, w),
            reference,
            [features(N, P), weight, features(K, P, Q)],
        )


@system("diffusion", "the formula of DCRNN, dense")
def _diffusion() -> Iterator[Case]:
    edge_index, weight = graph()

    def reference(x: Tensor, w: Tensor, theta: Tensor) -> Tensor:
        W = _dense(edge_index, w)[0]
        steps = [_inverse(V.sum(1))[:, None] * V for V in (W, W.t())]
        return _formula(x, torch.cat([_polynomials(S, len(theta) // 2) for S in steps]), theta)

    for K in (1, 2, 4):
        conv = _conv(bases.Diffusion(K), P, Q)
        yield Case(
            lambda x, w, theta, conv=conv: conv(x, theta, edge_index, w),
            reference,
            [features(N, P), weight, features(2 * K, P, Q)],
        )


@system("APPNP", "torch_geometric.nn.APPNP")
def _appnp() -> Iterator[Case]:
    edge_index, weight = graph()
    for K, alpha, loops in ((1, 0.5, True), (4, 0.1, True), (10, 0.2, False)):
        powers = bases.Powers(K + 1, bases.Adjacency("sym", self_loops=loops))
        C = [alpha * (1 - alpha) ** k for k in range(K)] + [(1 - alpha) ** K]
        ours = BasisConv(-1, -1, bases.Mix(C, powers), Pass(), bias=False)
        reference = pyg.APPNP(K, alpha, add_self_loops=loops)
        yield Case(ours, reference, [features(N, P), weight], lambda f, x, w: f(x, edge_index, w))


def _layer(name: str, kind: str) -> None:
    """One row for a layer that `convert` takes, over its options."""
    system(name, f"torch_geometric.nn.{kind}")(
        lambda: chain.from_iterable(converted(kind, options) for options in OPTIONS[kind])
    )


_layer("GCN", "GCNConv")
_layer("ChebNet", "ChebConv")
_layer("TAG, powers", "TAGConv")
_layer("SGC, one power", "SGConv")
_layer("SSGC, mixed powers", "SSGConv")
_layer("MixHop, powers as heads", "MixHopConv")
_layer("LightGCN", "LGConv")
_layer("sum and mean", "SimpleConv")
_layer("GraphConv", "GraphConv")
_layer("SAGE", "SAGEConv")
_layer("Cluster-GCN", "ClusterGCNConv")
_layer("local extremum", "LEConv")
