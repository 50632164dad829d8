"""The registry of attentions: mechanisms, masks, normalisations, parameters and calls, beside what they should give."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import grad

from pyg_basisconv import BasisConv, bases, mechanisms, theta
from tests import cases, oracle as matrices
from tests.mechanisms import oracle
from tests.mechanisms.oracle import DOUBLE, Entry, Mechanism

R = 2  # attributes of an edge


def leaf(kind: str, **options: Any) -> Mechanism:
    """A mechanism of the library beside its description."""
    return Mechanism(kind, getattr(mechanisms, kind)(**options), options)


def biaffine() -> Mechanism:
    module = mechanisms.Biaffine()
    first, second = (part for part in module.modules() if type(part).__name__ in ("Bilinear", "Additive"))
    parts = (Mechanism("Bilinear", first), Mechanism("Additive", second, {"bias": True}))
    return Mechanism("sum", module, parts=parts)


def perceptron(dim: int, *parts: Mechanism, **options: Any) -> Mechanism:
    module = mechanisms.Perceptron(dim, *(part.module for part in parts), **options)
    return Mechanism("Perceptron", module, options, parts)


def gat() -> Mechanism:
    return leaf("Additive", projected=True).then(nn.LeakyReLU(0.2))


def dot(**options: Any) -> Mechanism:
    return leaf("Dot", **{"dim": 3, "bias": True} | options)


@dataclass(frozen=True)
class Case:
    """One attention, and one call of it."""

    mechanism: Callable[[], Mechanism] = gat
    mask: str = "graph"
    theta: str = "Heads"
    normalize: str | None = "source"
    weighted: bool = False
    heads: int = 2
    M: int = 6
    N: int | None = None  # None: self-attention
    P: int = 4
    P_dst: int | None = None
    E: int = 12
    lead: tuple[int, ...] = ()
    edge_dim: int = 0
    call: str = ""  # what the call masks: bool, float, with leading dimensions or heads, and which sources are there
    beside: str = ""  # another family, side by side
    seed: int = 0

    @property
    def Q(self) -> int:
        return self.P if self.theta.split("+")[0].split("(")[0] in ("Pass", "Split", "Depthwise") else 4

    @property
    def cross(self) -> bool:
        return self.N is not None

    @property
    def targets(self) -> int:
        if self.mask == "bags":
            return max(bag_of(self.M), default=-1) + 1
        return self.M if self.N is None else self.N

    def but(self, **changes: Any) -> "Case":
        return replace(self, **changes)


def bag_of(M: int) -> list[int]:
    """Three bags, unsorted, of which the second is empty."""
    return [(0, 2, 2, 0, 2, 0, 0)[m % 7] for m in range(M)]


OFFSETS = [-2, -1, 0, 1]
MASKS: dict[str, tuple[Callable[[], bases.Basis | None], Callable[["Case", "Inputs"], list[Entry]]]] = {
    # name: (the basis, its entries)
    "graph": (lambda: bases.Adjacency(), lambda c, i: i.entries),
    "loops": (
        lambda: bases.Adjacency(self_loops=True, existing="replace"),
        lambda c, i: oracle.with_loops(i.entries, c.M, 1.0, "replace", i.of_loops),
    ),
    "keep": (
        lambda: bases.Adjacency(self_loops=2.0),
        lambda c, i: oracle.with_loops(i.entries, c.M, 2.0, "keep", i.of_loops),
    ),
    "sym": (
        lambda: bases.Adjacency("sym", True, "add"),
        lambda c, i: oracle.symmetric(oracle.with_loops(i.entries, c.M, 1.0, "add"), c.M),
    ),
    "walks": (
        lambda: bases.Powers(3, bases.Adjacency()),
        lambda c, i: i.written(lambda g: matrices.powers(matrices.adjacency(g), 3).sum(0, True)),
    ),
    "none": (lambda: None, lambda c, i: oracle.everywhere(c.M, c.targets)),
    "Complete": (bases.Complete, lambda c, i: oracle.everywhere(c.M, c.targets)),
    "band": (lambda: bases.Shifts(None, OFFSETS), lambda c, i: oracle.band(c.M, c.targets, OFFSETS)),
    "causal": (lambda: bases.Causal(), lambda c, i: oracle.causal(c.M, c.targets)),
    "causal-start": (lambda: bases.Causal("start"), lambda c, i: oracle.causal(c.M, c.targets, "start")),
    "causal-end": (lambda: bases.Causal("end"), lambda c, i: oracle.causal(c.M, c.targets, "end")),
    "bags": (lambda: bases.Bags(), lambda c, i: oracle.bags(bag_of(c.M))),
}
OF_A_GRAPH = ("graph", "loops", "keep", "sym", "walks")
BESIDE: dict[str, tuple[Callable[[], bases.Basis], int, Callable[["Case", "Inputs"], Tensor]]] = {
    # name: (the family, its K, its matrices)
    "shifts": (
        lambda: bases.Shifts(None, [-1, 2]),
        2,
        lambda c, i: torch.stack(
            [torch.tensor([[float(n - m == d) for n in range(c.M)] for m in range(c.M)]).double() for d in (-1, 2)]
        ),
    ),
    "identity": (bases.Identity, 1, lambda c, i: torch.eye(c.M, dtype=DOUBLE)[None]),
    "adjacency": (lambda: bases.Adjacency("mean"), 1, lambda c, i: matrices.adjacency(i.graph, "mean")),
}


@dataclass
class Inputs:
    """The tensors of a call; all in float64."""

    case: Case
    x: Tensor
    y: Tensor | None = None
    graph: matrices.Graph | None = None
    weight: Tensor | None = None
    edge_attr: Tensor | None = None
    mask: Tensor | None = None
    valid: Tensor | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def of_loops(self) -> int:
        """How many attributes, which are zeros, loops have that a mask adds; 0 where edges have none."""
        return 0 if self.edge_attr is None or "pairs" in self.case.call else self.case.edge_dim

    @property
    def target(self) -> Tensor | None:
        """What stands at the targets."""
        return self.y if self.case.cross else None if self.case.mask == "bags" else self.x

    @property
    def entries(self) -> list[Entry]:
        own = self.edge_attr is not None and self.edge_attr.dim() == 2  # of one graph
        return oracle.graph(self.graph.edges, self.weight, self.edge_attr if own else None)

    def written(self, family: Callable[..., Tensor], *args: Any) -> list[Entry]:
        """The distinct places of a matrix."""
        A = family(self.graph.but(weight=self.weight), *args)[0]
        places = [(m, n) for m in range(A.shape[0]) for n in range(A.shape[1]) if A[m, n] != 0]
        return [Entry(m, n, A[m, n]) for m, n in places]

    def leaves(self) -> dict[str, Tensor]:
        """What a gradient may reach."""
        found = {"x": self.x, "y": self.y, "edge_weight": self.weight, "edge_attr": self.edge_attr, "mask": self.mask}
        return {name: t for name, t in found.items() if t is not None and t.is_floating_point()}

    def require_grad(self) -> "Inputs":
        for t in self.leaves().values():
            t.requires_grad_()
        return self

    def to(self, dtype: torch.dtype) -> "Inputs":
        def cast(t: Tensor | None) -> Tensor | None:
            return t.detach().to(dtype) if t is not None and t.is_floating_point() else t

        parts = {name: cast(getattr(self, name)) for name in ("x", "y", "weight", "edge_attr", "mask")}
        return replace(self, **parts)

    def one(self, index: tuple[int, ...]) -> "Inputs":
        """One element of the batch."""

        def at(t: Tensor | None) -> Tensor | None:
            return t[index] if t is not None and t.shape[: len(index)] == self.case.lead else t

        return replace(
            self,
            case=self.case.but(lead=()),
            x=self.x[index],
            y=at(self.y),
            mask=at(self.mask) if "batch" in self.case.call else self.mask,
            edge_attr=at(self.edge_attr) if "each" in self.case.call else self.edge_attr,
            valid=None if self.valid is None else self.valid[index],
        )

    def arguments(self) -> tuple[tuple, dict[str, Any]]:
        """Of the call."""
        c = self.case
        named: dict[str, Any] = dict(self.extra)
        edges = None
        if self.graph is not None:
            edges = torch.tensor(self.graph.edges, dtype=torch.long).reshape(-1, 2).t().contiguous()
            named["edge_weight"] = self.weight
        for name in ("edge_attr", "mask", "valid"):
            if getattr(self, name) is not None:
                named[name] = getattr(self, name)
        if c.mask == "bags":
            named["batch"] = torch.tensor(bag_of(c.M), dtype=torch.long)
        return ((self.x, self.y) if c.cross else self.x, edges), named


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def inputs(c: Case) -> Inputs:
    """The tensors of a case."""
    M, N, s = c.M, c.targets, 10 * c.seed
    made = Inputs(c, draw(*c.lead, M, c.P, seed=s))
    if c.cross:
        made.y = draw(*c.lead, N, c.P if c.P_dst is None else c.P_dst, seed=s + 1)
    if c.mask in OF_A_GRAPH or c.beside == "adjacency":
        made.graph = cases.graph(M=M, N=c.N, E=c.E, seed=c.seed)
        made.weight = made.graph.weight
    if c.edge_dim:
        shape = (made.graph.E,) if made.graph is not None and "pairs" not in c.call else (M, N)
        made.edge_attr = draw(*(c.lead if "each" in c.call else ()), *shape, c.edge_dim, seed=s + 2)
    lead = c.lead if "batch" in c.call else ()
    heads = (c.heads,) if "heads" in c.call else ()
    if "bool" in c.call:
        made.mask = draw(*lead, *heads, M, N, seed=s + 3) > -0.4
        made.mask[..., :, N // 2] = False  # a target with nothing to look at
    if "float" in c.call:
        made.mask = draw(*lead, *heads, M, N, seed=s + 4)
    if "valid" in c.call:
        made.valid = torch.rand(*c.lead, M, generator=torch.Generator().manual_seed(s + 5)) > 0.35
    return made


THETAS: dict[str, Callable[[Case], theta.Theta]] = {
    "Full": lambda c: theta.Full(),
    "Heads": lambda c: theta.Heads(),
    "Heads(mean)": lambda c: theta.Heads("mean"),
    "Heads+bias": lambda c: theta.Heads(bias=True),
    "Heads(mean)+bias": lambda c: theta.Heads("mean", bias=True),
    "LowRank": lambda c: theta.LowRank(3),
    "LowRank+bias": lambda c: theta.LowRank(3, bias=True),
    "Pass": lambda c: theta.Pass(),
    "Split": lambda c: theta.Split(),
    "Depthwise": lambda c: theta.Depthwise(shared=2),
    "Depthwise+softmax": lambda c: theta.Depthwise(shared=2, normalize="softmax"),
}


def fill(module: nn.Module, seed: int = 20, scale: float = 0.7) -> None:
    """Draws every parameter, biases too."""
    for i, p in enumerate(module.parameters()):
        p.data = (scale * draw(*p.shape, seed=seed + i)).to(p.dtype)


def layer(c: Case, dropout: float = 0.0, **changes: Any) -> tuple[BasisConv, Mechanism]:
    """The layer of a case in float64, and the mechanism that is in it; changes are to what the library is told."""
    told = c.but(**changes)
    a = told.mechanism()
    how = {"normalize": told.normalize, "dropout": dropout, "weighted": told.weighted}
    basis: bases.Basis = bases.Attention(told.heads, a.module, MASKS[told.mask][0](), **how)
    if c.beside:
        basis = basis + BESIDE[c.beside][0]()
    widths = c.P if c.P_dst is None else (c.P, c.P_dst)
    conv = BasisConv(widths, c.Q, basis, THETAS[c.theta](c)).double()
    fill(conv)
    return conv, a


def poison() -> None:
    """Leaves nothing but NaN in the memory that is freed next: whoever reads what is not theirs finds one."""
    for dtype in (torch.float32, DOUBLE):
        for size in (1, 2, 4, 6, 8, 12, 16, 24, 32):
            torch.full((size,), torch.nan, dtype=dtype)


def call(conv: BasisConv, made: Inputs, **changes: Any) -> Any:
    args, named = made.arguments()
    poison()
    return conv(*args, **named | changes)


def allowed(c: Case, made: Inputs) -> tuple[Tensor | None, Tensor | None]:
    """(K, M, N) what one call, without leading dimensions, allows and adds."""
    K, M, N = c.heads, c.M, c.targets
    keep, added = torch.ones(K, M, N, dtype=torch.bool), None
    if made.mask is not None and made.mask.dtype == torch.bool:
        keep = keep & made.mask.expand(K, M, N)
    elif made.mask is not None:
        added = made.mask.expand(K, M, N)
    if made.valid is not None:
        keep = keep & made.valid[:, None]
    return keep, added


def entries_of(c: Case, i: Inputs) -> list[Entry]:
    """Where targets may look; with attributes of all pairs, these are those of the pair."""
    found = MASKS[c.mask][1](c, i)
    return found if c.edge_dim == 0 or i.edge_attr.dim() == 2 else [e._replace(z=i.edge_attr[e.m, e.n]) for e in found]


def terms(c: Case, i: Inputs, conv: BasisConv) -> tuple[list[Entry], tuple, oracle.Theta]:
    """The entries of a call without leading dimensions, what else the oracle asks for, and the parameter."""
    t = oracle.theta(c.theta, c.heads + (BESIDE[c.beside][1] if c.beside else 0), c.P, c.Q, conv.theta)
    return entries_of(c, i), (c.normalize, c.weighted, t.values, t.value_bias, *allowed(c, i)), t


def reference(c: Case, made: Inputs, conv: BasisConv, a: Mechanism) -> tuple[Tensor, Tensor]:
    """A: (K, *, M, N) and y: (*, N, Q), from the definition."""
    families, results = [], []
    for index in oracle.batches(c.lead):
        i = made.one(index)
        entries, how, t = terms(c, i, conv)
        A = oracle.family(a, c.heads, i.x, i.target, c.targets, entries, *how)
        if c.beside:
            A = torch.cat([A, BESIDE[c.beside][2](c, i)])
        families.append(A)
        results.append(oracle.apply(A, i.x, t.matrices, t.bias, conv.bias))
    K, N = c.heads + (BESIDE[c.beside][1] if c.beside else 0), c.targets
    if not families:
        return torch.zeros(K, *c.lead, c.M, N, dtype=DOUBLE), torch.zeros(*c.lead, N, c.Q, dtype=DOUBLE)
    return torch.stack(families, 1).reshape(K, *c.lead, c.M, N), torch.stack(results).reshape(*c.lead, N, c.Q)


@dataclass
class Expected:
    """What a case should give, its gradients included."""

    A: Tensor
    y: Tensor
    down: Tensor
    gradients: dict[str, Tensor]


_EXPECTED: dict[Case, Expected] = {}


def expected(c: Case) -> Expected:
    """From the oracle, once."""
    if c not in _EXPECTED:
        conv, a = layer(c)
        made = inputs(c).require_grad()
        A, y = reference(c, made, conv, a)
        down = draw(*y.shape, seed=77)
        leaves = made.leaves() | dict(conv.named_parameters())
        found = [torch.zeros_like(t) for t in leaves.values()]
        if y.requires_grad:
            found = grad(y, list(leaves.values()), down, allow_unused=True, materialize_grads=True)
        _EXPECTED[c] = Expected(A.detach(), y.detach(), down, dict(zip(leaves, found, strict=True)))
    return _EXPECTED[c]


# Every kind of score: (the mechanism, the case in which it stands).
SCORES: dict[str, tuple[Callable[[], Mechanism], dict[str, Any]]] = {
    "Additive": (lambda: leaf("Additive"), {}),
    "Additive(bias)": (lambda: leaf("Additive", bias=True), {}),
    "Additive(None)": (lambda: leaf("Additive", target=None), {}),
    "Additive(projected)": (lambda: leaf("Additive", projected=True), {}),
    "Additive(projected,own)": (lambda: leaf("Additive", projected=True, target="own"), {}),
    "Additive(projected,None,bias)": (lambda: leaf("Additive", projected=True, target=None, bias=True), {}),
    "GAT": (gat, {}),
    "Bilinear": (lambda: leaf("Bilinear"), {}),
    "Biaffine": (biaffine, {}),
    "Dot": (lambda: leaf("Dot", dim=3), {}),
    "Dot(bias)": (dot, {}),
    "Dot(scale=0.3)": (lambda: dot(scale=0.3), {}),
    "Dot(projected)": (lambda: leaf("Dot", projected=True), {}),
    "Dot(edge,key)": (lambda: dot(edge_dim=R), {"edge_dim": R}),
    "Dot(edge,both)": (lambda: dot(edge_dim=R, mix="both"), {"edge_dim": R}),
    "Dot(edge,cross)": (lambda: dot(edge_dim=R, mix="cross", bias=False), {"edge_dim": R}),
    "MLP": (lambda: leaf("MLP", dim=3), {}),
    "MLP(bias)": (lambda: leaf("MLP", dim=3, bias=True, activation=torch.sin), {}),
    "MLP(None)": (lambda: leaf("MLP", dim=3, target=None), {}),
    "MLP(gated)": (lambda: leaf("MLP", dim=3, target=None, gated=True), {}),
    "MLP(edge)": (lambda: leaf("MLP", dim=3, edge_dim=R), {"edge_dim": R}),
    "GATv2": (lambda: leaf("MLP", projected=True, activation=nn.LeakyReLU(0.2)), {}),
    "GATv2(shared,edge,bias)": (
        lambda: leaf("MLP", projected=True, target="shared", activation=nn.LeakyReLU(0.2), edge_dim=R, bias=True),
        {"edge_dim": R},
    ),
    "Cosine": (lambda: 1.7 * leaf("Cosine"), {}),
    "Relative(window)": (lambda: leaf("Relative", window=(-2, 3)), {}),
    "Uniform": (lambda: leaf("Uniform"), {}),
    "Relative(period)": (lambda: leaf("Relative", period=3), {}),
    "Tap": (lambda: leaf("Tap", offsets=OFFSETS), {"mask": "band"}),
    "Edge": (lambda: leaf("Edge", dim=R), {"edge_dim": R}),
    "Edge(inner)": (lambda: leaf("Edge", dim=R, inner=3), {"edge_dim": R}),
    "Perceptron": (lambda: perceptron(5, leaf("Dot", dim=3), leaf("Additive")), {}),
    "Perceptron(edge)": (lambda: perceptron(5, dot(), edge_dim=R, activation=nn.Tanh()), {"edge_dim": R}),
    "Cinar": (lambda: leaf("MLP", dim=3) + leaf("Relative", window=(-1, 1)) + leaf("Relative", period=2), {}),
    "edge-GAT": (
        lambda: (leaf("Additive", projected=True) + leaf("Edge", dim=R, inner=4)).then(nn.LeakyReLU(0.2)),
        {"edge_dim": R},
    ),
    "edge-MLP(loops)": (lambda: leaf("MLP", projected=True, edge_dim=R), {"edge_dim": R, "mask": "keep"}),
    "Edge(loops)": (lambda: leaf("Edge", dim=R), {"edge_dim": R, "mask": "loops"}),
    "product": (lambda: leaf("Cosine") * leaf("Additive") + 0.5 * leaf("Bilinear"), {}),
}
NORMALISATIONS = ("source", "target", "heads", "sigmoid", "tanh", None)


def _cases() -> Iterator[tuple[str, Case]]:
    for name, (mechanism, changes) in SCORES.items():
        c = Case(mechanism, **changes)
        yield f"{name}-{c.mask}", c
        if c.mask == "graph":
            yield f"{name}-dense", c.but(mask="none", M=5)
            wide = "projected" in name or "GAT" in name or "Cosine" in name or "product" in name or "shared" in name
            narrow = {} if wide else {"P_dst": 3}
            yield f"{name}-cross", c.but(mask="none", M=5, N=3, **narrow)
            yield f"{name}-bipartite", c.but(M=6, N=4, **narrow)
    for mask in MASKS:
        square = {"graph", "none", "Complete", "band", "causal-start", "causal-end"}
        if mask == "bags":
            pool = Case(lambda: leaf("MLP", dim=3, target=None), mask, "Pass", heads=1)
            yield "pooling", pool
            yield "pooling-gated", pool.but(mechanism=lambda: leaf("MLP", dim=3, target=None, gated=True))
            yield "pooling-heads", pool.but(heads=2, theta="Heads", lead=(2,), call="bool")
            continue
        for kind, mechanism in (("dot", dot), ("gat", gat)):
            yield f"{kind}-{mask}", Case(mechanism, mask)
            yield f"{kind}-{mask}-batch", Case(mechanism, mask, "LowRank" if kind == "dot" else "Heads", lead=(2,), M=5)
        if mask in square:
            for M, N in ((6, 3), (3, 5)):
                yield f"dot-{mask}-{M}x{N}", Case(dot, mask, "LowRank+bias", M=M, N=N, P_dst=3, lead=(2, 3), heads=2)
    for i, how in enumerate(NORMALISATIONS):
        for mask in ("graph", "none"):
            yield f"{how}-gat-{mask}", Case(gat, mask, normalize=how, heads=2)
            yield f"{how}-dot-{mask}-batch", Case(dot, mask, "LowRank", normalize=how, heads=3, lead=(2,), M=5)
        yield f"{how}-weighted", Case(gat, "loops", normalize=how, weighted=True)
        yield f"{how}-edge", Case(lambda: leaf("Additive") + leaf("Edge", dim=R), normalize=how, edge_dim=R)
        yield f"{how}-mapped", Case(lambda: leaf("Additive").then(nn.LeakyReLU(0.2)), normalize=how)
        yield f"{how}-weighted-sym", Case(dot, "sym", normalize=how, weighted=True, theta="Full")
        form = ("bool", "float", "bool heads valid")[i % 3]
        yield f"{how}-{form.replace(' ', '-')}", Case(dot, "none", normalize=how, call=form)
    for kind in THETAS:
        for name, mask in (("graph", "graph"), ("dense", "none"), ("band", "band")):
            yield f"{kind}-dot-{name}", Case(dot, mask, kind, lead=() if mask == "graph" else (2,))
        yield f"{kind}-gat", Case(gat, "loops", kind)
        yield f"{kind}-dot-projected", Case(lambda: leaf("Dot", projected=True), "none", kind, M=5, N=4)
    yield "DynamicConv", Case(lambda: leaf("Tap", offsets=OFFSETS), "band", "Split", lead=(2,))
    for form in (
        "bool",
        "float",
        "valid",
        "bool valid",
        "float valid",
        "bool batch",
        "float batch heads",
        "bool heads",
        "float heads",
    ):
        for kind, mask, mechanism in (("dense", "none", dot), ("causal", "causal", dot), ("graph", "graph", gat)):
            name = f"{kind}-{form.replace(' ', '-')}"
            yield name, Case(mechanism, mask, call=form, lead=(2,) if "batch" in form else ())
    yield "valid-batch-dense", Case(dot, "none", "LowRank", call="valid batch", lead=(2, 3), M=5)
    yield "cross-bool-batch", Case(dot, "none", "LowRank", call="bool batch valid", lead=(2,), M=5, N=4, P_dst=3)
    for kind, mechanism, mask in (("gat", gat, "graph"), ("dot", dot, "graph")):
        yield f"{kind}-no-edge", Case(mechanism, mask, E=0)
        yield f"{kind}-no-edge-bipartite", Case(mechanism, mask, E=0, M=4, N=3)
    for mask in ("graph", "loops", "none", "causal", "band"):
        yield f"dot-{mask}-one-node", Case(dot, mask, "LowRank", M=1, E=2)
    yield "dot-no-source", Case(dot, "none", M=0, N=3)
    yield "dot-no-target", Case(dot, "none", M=3, N=0)
    yield "dot-no-batch", Case(dot, "none", lead=(0,))
    for beside in BESIDE:
        yield f"dot+{beside}", Case(dot, "none", "LowRank", beside=beside, lead=(2,), M=5)
        yield f"gat+{beside}", Case(gat, "graph", "Heads(mean)", beside=beside)
    places = ("graph", "loops", "band", "causal", "walks")
    for i, kind in enumerate(("Dot(edge,key)", "MLP(edge)", "edge-GAT", "Perceptron(edge)")):
        for mask in places[i % 2 :: 2]:  # no mask knows of the mechanism
            yield f"{kind}-pairs-{mask}", Case(SCORES[kind][0], mask, edge_dim=R, call="pairs", lead=(2,), M=5)
        for form, lead in (("each", (2,)), ("each", (2, 3)), ("each pairs", (2,))):  # each graph has its own
            mask = "graph" if form == "each" else "none"
            name = f"{kind}-{form.replace(' ', '-')}-{len(lead)}"
            yield name, Case(SCORES[kind][0], mask, edge_dim=R, call=form, lead=lead, M=5)
    yield "edge-GAT-each-loops", Case(SCORES["edge-GAT"][0], "loops", call="each", lead=(2,), edge_dim=R)
    for kind, mechanism in (("gat", gat), ("dot", dot)):
        yield f"{kind}-few-edges", Case(mechanism, M=12, E=2, lead=(2,) if kind == "dot" else ())
        yield f"{kind}-few-edges-target", Case(mechanism, M=12, E=2, normalize="target")
    yield "one-head", Case(gat, "loops", heads=1)
    yield "four-heads", Case(dot, "graph", heads=4)


CASES = dict(_cases())
