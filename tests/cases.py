"""The registry: every kind of basis, on graphs with and without what is difficult, beside its oracle."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pyg_basisconv import bases
from pyg_basisconv.bases import Basis
from tests import oracle
from tests.bases.grids import oracle as grids
from tests.oracle import Graph
from tests.walks import oracle as kg


def graph(M: int = 6, N: int | None = None, E: int = 14, seed: int = 0, **kwargs) -> Graph:
    """A random directed weighted graph with loops, repeated edges (and loops), and an isolated last node."""
    N, square = M if N is None else N, N is None
    generator = torch.Generator().manual_seed(seed)

    def draw(size: int, count: int) -> list[int]:
        return torch.randint(max(1, size - 1), (count,), generator=generator).tolist()

    edges = list(zip(draw(M, E), draw(N, E), strict=True))
    if E:
        edges += [edges[0], edges[1]]
    if E and square:
        edges += [(0, 0), (M // 2, M // 2), (0, 0)]
    weight = 0.5 + torch.rand(len(edges), generator=generator, dtype=torch.float64)
    return Graph(M, N, edges, weight, **kwargs)


def unweighted(**kwargs) -> Graph:
    return graph(**kwargs).but(weight=None)


def undirected(**kwargs) -> Graph:
    g = graph(**kwargs)
    return g.but(edges=g.edges + g.turned.edges, weight=torch.cat([g.weight, g.weight]))


def typed(K: int, weighted: bool = True, **kwargs) -> Graph:
    g = graph(**kwargs)
    types = [(e * 7 + 1) % max(1, K - 1) for e in range(g.E)]  # the last type has no edge
    return g.but(type=types, weight=g.weight if weighted else None)


def shared(K: int, **kwargs) -> Graph:
    g = graph(**kwargs)
    return g.but(weight=torch.rand(g.E, K, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) - 0.5)


def batched(lambda_max: Tensor | float | None) -> Graph:
    """Two graphs side by side, nodes 0-3 and 4-5."""
    edges = [(0, 1), (1, 0), (1, 2), (2, 3), (3, 3), (4, 5), (5, 4), (4, 5)]
    weight = torch.linspace(0.5, 1.5, len(edges), dtype=torch.float64)
    return Graph(6, 6, edges, weight, batch=[0, 0, 0, 0, 1, 1], lambda_max=lambda_max)


# A family and a graph may each be difficult in its own way.
SQUARE = {
    "random": graph,
    "ones": unweighted,
    "none": lambda: graph(E=0),
    "one-node": lambda: graph(M=1, E=2),
    "no-node": lambda: Graph(0, 0, []),
}
BIPARTITE = {
    "M>N": lambda: graph(M=6, N=3),
    "M<N": lambda: graph(M=3, N=7),
    "N=0": lambda: Graph(3, 0, []),
    "M=0": lambda: Graph(0, 3, []),
}


@dataclass
class Case:
    """One family on one graph, with the dense matrices that it should be."""

    basis: Callable[[], Basis]
    graph: Callable[[], Graph]
    matrices: Callable[[Graph], Tensor]
    marks: set[str] = field(default_factory=set)


SITES = [(3, 0), (0, 1), (1, 1), (2, 3), (1, 2), (0, 0)]
S3 = [
    [0, 1, 2, 3, 4, 5],
    [1, 0, 4, 5, 2, 3],
    [2, 3, 0, 1, 5, 4],
    [3, 2, 5, 4, 0, 1],
    [4, 5, 1, 0, 3, 2],
    [5, 4, 3, 2, 1, 0],
]

FAMILIES: dict[str, tuple[Callable[[], Basis], Callable[[Graph], Tensor], str]] = {
    # name: (basis, oracle, the graphs it takes: a: any shape, s: square, r: random only; p: places have a meaning)
    "Edges(1)": (lambda: bases.Edges(), lambda g: oracle.edges(g, 1), "a"),
    "Identity": (lambda: bases.Identity(), oracle.identity, "s"),
    "Adjacency": (lambda: bases.Adjacency(), oracle.adjacency, "a"),
    "Adjacency(mean)": (lambda: bases.Adjacency("mean"), lambda g: oracle.adjacency(g, "mean"), "a"),
    "Adjacency(rw)": (lambda: bases.Adjacency("rw"), lambda g: oracle.adjacency(g, "rw"), "a"),
    "Adjacency(sym)": (lambda: bases.Adjacency("sym"), lambda g: oracle.adjacency(g, "sym"), "s"),
    "GCN": (lambda: bases.Adjacency("sym", True), lambda g: oracle.adjacency(g, "sym", True), "s"),
    "Adjacency(mean,2,add)": (
        lambda: bases.Adjacency("mean", 2.0, "add"),
        lambda g: oracle.adjacency(g, "mean", 2.0, "add"),
        "r",
    ),
    "Adjacency(rw,loops,replace)": (
        lambda: bases.Adjacency("rw", True, "replace"),
        lambda g: oracle.adjacency(g, "rw", True, "replace"),
        "r",
    ),
    "Adjacency(loops,diagonal)": (
        lambda: bases.Adjacency(None, 0.5, diagonal=0.3),
        lambda g: oracle.adjacency(g, None, 0.5, diagonal=0.3),
        "r",
    ),
    "Adjacency(sym,diagonal)": (
        lambda: bases.Adjacency("sym", diagonal=-0.5),
        lambda g: oracle.adjacency(g, "sym", diagonal=-0.5),
        "s",
    ),
    "Degree": (bases.Degree, oracle.degree, "s"),
    "Laplacian": (lambda: bases.Laplacian(), oracle.laplacian, "s"),
    "Laplacian(sym)": (lambda: bases.Laplacian("sym"), lambda g: oracle.laplacian(g, "sym"), "s"),
    "Laplacian(rw)": (lambda: bases.Laplacian("rw"), lambda g: oracle.laplacian(g, "rw"), "r"),
    "Powers(1)": (lambda: bases.Powers(1), lambda g: oracle.powers(oracle.adjacency(g, "sym"), 1), "r"),
    "Powers(4)": (lambda: bases.Powers(4), lambda g: oracle.powers(oracle.adjacency(g, "sym"), 4), "s"),
    "Powers(3,rw.T)": (
        lambda: bases.Powers(3, bases.Adjacency("rw").T),
        lambda g: oracle.powers(oracle.transpose(oracle.adjacency(g, "rw")), 3),
        "r",
    ),
    "Diffusion(3)": (lambda: bases.Diffusion(3), lambda g: oracle.diffusion(g, 3), "s"),
    "Diffusion(2,out)": (lambda: bases.Diffusion(2, "out"), lambda g: oracle.diffusion(g, 2, "out"), "r"),
    "Diffusion(2,in)": (lambda: bases.Diffusion(2, "in"), lambda g: oracle.diffusion(g, 2, "in"), "r"),
    "Chebyshev(1)": (lambda: bases.Chebyshev(1), lambda g: oracle.chebyshev(g, 1), "r"),
    "Chebyshev(2)": (lambda: bases.Chebyshev(2), lambda g: oracle.chebyshev(g, 2), "r"),
    "Chebyshev(4)": (lambda: bases.Chebyshev(4), lambda g: oracle.chebyshev(g, 4), "s"),
    "Chebyshev(3,None)": (lambda: bases.Chebyshev(3, None), lambda g: oracle.chebyshev(g, 3, None), "s"),
    "Chebyshev(3,rw,1.7)": (
        lambda: bases.Chebyshev(3, "rw", 1.7),
        lambda g: oracle.chebyshev(g, 3, "rw", 1.7),
        "r",
    ),
    "Wavelets(3)": (lambda: bases.Wavelets(3), lambda g: oracle.wavelets(oracle.adjacency(g, "rw"), 3), "s"),
    "Wavelets(1,sym)": (
        lambda: bases.Wavelets(1, bases.Adjacency("sym")),
        lambda g: oracle.wavelets(oracle.adjacency(g, "sym"), 1),
        "r",
    ),
    "Wavelets(4,high)": (
        lambda: bases.Wavelets(4, low_pass=False),
        lambda g: oracle.wavelets(oracle.adjacency(g, "rw"), 4, low_pass=False),
        "r",
    ),
    "Wavelets(2,Product).T": (
        lambda: bases.Wavelets(2, bases.Adjacency("mean") @ bases.Adjacency("rw")).T,
        lambda g: oracle.transpose(
            oracle.wavelets(oracle.product(oracle.adjacency(g, "mean"), oracle.adjacency(g, "rw")), 2)
        ),
        "r",
    ),
    "Sum": (
        lambda: bases.Identity() + bases.Adjacency("mean") + bases.Chebyshev(3),
        lambda g: oracle.concat(oracle.identity(g), oracle.adjacency(g, "mean"), oracle.chebyshev(g, 3)),
        "s",
    ),
    "Product": (
        lambda: bases.Powers(2) @ bases.Diffusion(2, "out"),
        lambda g: oracle.product(oracle.powers(oracle.adjacency(g, "sym"), 2), oracle.diffusion(g, 2, "out")),
        "s",
    ),
    "Product.T": (
        lambda: (bases.Powers(3) @ (bases.Adjacency() + bases.Laplacian("rw"))).T,
        lambda g: oracle.transpose(
            oracle.product(
                oracle.powers(oracle.adjacency(g, "sym"), 3),
                oracle.concat(oracle.adjacency(g), oracle.laplacian(g, "rw")),
            )
        ),
        "r",
    ),
    "Adjacency(rw).T": (
        lambda: bases.Adjacency("rw").T,
        lambda g: oracle.transpose(oracle.adjacency(g, "rw")),
        "s",
    ),
    "Sum.T": (
        lambda: (bases.Identity() + bases.Diffusion(2)).T,
        lambda g: oracle.transpose(oracle.concat(oracle.identity(g), oracle.diffusion(g, 2))),
        "r",
    ),
    "Shifts": (lambda: bases.Shifts(None, [0, -1, 2, 9]), lambda g: oracle.shifts(g, [0, -1, 2, 9]), "ap"),
    # Of a grid of the six nodes of the random graph, whose edges they do not see.
    "Shifts(2,3)": (
        lambda: bases.Shifts((2, 3), [(0, 0), (1, -1), (0, 2)]),
        lambda g: grids.shifts((2, 3), [(0, 0), (1, -1), (0, 2)]),
        "rp",
    ),
    "Shifts(2,3,circular)": (
        lambda: bases.Shifts((2, 3), [(0, 1), (1, 1)], padding_mode="circular"),
        lambda g: grids.shifts((2, 3), [(0, 1), (1, 1)], "circular"),
        "rp",
    ),
    "Window(2,3)": (
        lambda: bases.Window((2, 3), (1, 3), padding=(0, 1)),
        lambda g: grids.window((2, 3), (1, 3), padding=(0, 1)),
        "rp",
    ),
    "Window(6)": (lambda: bases.Window(None, 3, padding=1), lambda g: grids.window((6,), (3,), padding=1), "rp"),
    "Window(2,3,replicate)": (
        lambda: bases.Window((2, 3), 2, padding="same", padding_mode="replicate"),
        lambda g: grids.window((2, 3), (2, 2), padding="same", padding_mode="replicate"),
        "rp",
    ),
    "Window(2,3,mean)": (
        lambda: bases.Window((2, 3), 3, padding=1, norm="mean"),
        lambda g: grids.window((2, 3), (3, 3), padding=1, norm="mean"),
        "rp",
    ),
    "Window(2,3,transposed).T": (
        lambda: bases.Window((2, 3), (2, 1), padding=(1, 0), dilation=(2, 1), transposed=True).T,
        lambda g: oracle.transpose(grids.window((2, 3), (2, 1), padding=(1, 0), dilation=(2, 1), transposed=True)),
        "rp",
    ),
    "Window(sites)": (
        lambda: bases.Window((4, 4), 3, padding=1, sites=torch.tensor(SITES)),
        lambda g: grids.sites(SITES, (4, 4), (3, 3), padding=1)[0],
        "rp",
    ),
    "Group(S3)": (lambda: bases.Group(S3), lambda g: grids.group(S3), "rp"),
    "Group(C2,window)": (
        lambda: bases.Group(bases.FiniteGroup([[0, 1], [1, 0]], [[[1]], [[-1]]]), bases.Window((3,), 3, padding=1)),
        lambda g: grids.group_window((3,), (3,), [[0, 1], [1, 0]], lambda h, d: (d[0] * (-1) ** h,), padding=1),
        "rp",
    ),
    "Window+Adjacency": (
        lambda: bases.Window((3, 2), (2, 1), padding="same") + bases.Adjacency("mean"),
        lambda g: oracle.concat(grids.window((3, 2), (2, 1), padding="same"), oracle.adjacency(g, "mean")),
        "rp",
    ),
    "Adjacency@Window": (
        lambda: bases.Adjacency("rw") @ bases.Window((3, 2), (3, 1), padding=(1, 0)),
        lambda g: oracle.product(oracle.adjacency(g, "rw"), grids.window((3, 2), (3, 1), padding=(1, 0))),
        "rp",
    ),
    "Resampling(average)": (
        lambda: bases.Resampling((2, 3), 2, size=(3, 2)),
        lambda g: grids.resampling((2, 3), (3, 2), "average"),
        "rp",
    ),
    "Resampling(nearest)": (
        lambda: bases.Resampling((2, 3), 2, size=(3, 2), mode="nearest"),
        lambda g: grids.resampling((2, 3), (3, 2), "nearest"),
        "rp",
    ),
    "Resampling(linear)": (
        lambda: bases.Resampling((2, 3), 2, scale=(1.5, 0.7), mode="linear"),
        lambda g: grids.resampling((2, 3), (3, 2), "linear", (1.5, 0.7)),
        "rp",
    ),
    "Resampling(corners)": (
        lambda: bases.Resampling((2, 3), 2, size=(3, 2), mode="linear", align_corners=True),
        lambda g: grids.resampling((2, 3), (3, 2), "corners"),
        "rp",
    ),
    "Complete": (bases.Complete, oracle.complete, "a"),
    "Causal": (bases.Causal, oracle.causal, "sp"),
    "Causal(start)": (lambda: bases.Causal("start"), oracle.causal, "ap"),
    "Causal(end)": (lambda: bases.Causal("end"), lambda g: oracle.causal(g, "end"), "ap"),
    "Identity+Shifts": (
        lambda: bases.Adjacency("mean") + bases.Shifts(None, [1]),
        lambda g: oracle.concat(oracle.adjacency(g, "mean"), oracle.shifts(g, [1])),
        "rp",
    ),
    "Mix": (
        lambda: bases.Mix([[0.5, 0.0, -2.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]], bases.Chebyshev(3)),
        lambda g: oracle.mix([[0.5, 0.0, -2.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]], oracle.chebyshev(g, 3)),
        "s",
    ),
    "Powers-2Powers.T": (
        lambda: bases.Powers(2) - 2 * bases.Powers(2).T,
        lambda g: (
            oracle.powers(oracle.adjacency(g, "sym"), 2)
            - 2 * oracle.transpose(oracle.powers(oracle.adjacency(g, "sym"), 2))
        ),
        "r",
    ),
    "Mix(nothing)": (
        lambda: bases.Mix([[0.0, 0.0], [0.0, 0.0]], bases.Powers(2)),
        lambda g: oracle.mix([[0.0, 0.0], [0.0, 0.0]], oracle.powers(oracle.adjacency(g, "sym"), 2)),
        "r",
    ),
    "Mix(last).T": (
        lambda: bases.Mix([0.0, 0.0, 1.0], bases.Powers(3)).T,
        lambda g: oracle.transpose(oracle.mix([[0.0, 0.0, 1.0]], oracle.powers(oracle.adjacency(g, "sym"), 3))),
        "r",
    ),
    "Mix+Product": (
        lambda: bases.Mix([[1.0, 2.0]], bases.Powers(2)) + bases.Adjacency("rw") @ bases.Adjacency("rw").T,
        lambda g: oracle.concat(
            oracle.mix([[1.0, 2.0]], oracle.powers(oracle.adjacency(g, "sym"), 2)),
            oracle.product(oracle.adjacency(g, "rw"), oracle.transpose(oracle.adjacency(g, "rw"))),
        ),
        "r",
    ),
}

CASES: dict[str, Case] = {}
for _name, (_basis, _matrices, _kind) in FAMILIES.items():
    _graphs = {"r": {"random": graph}, "s": SQUARE, "a": SQUARE | BIPARTITE}[_kind[0]]
    for _graph_name, _graph in _graphs.items():
        CASES[f"{_name}-{_graph_name}"] = Case(_basis, _graph, _matrices, {"positions"} if "p" in _kind else set())
CASES["Complete-batch"] = Case(bases.Complete, lambda: Graph(6, 6, [], batch=[2, 0, 0, 2, 3, 0]), oracle.complete)
CASES["Causal-batch"] = Case(
    bases.Causal, lambda: Graph(6, 6, [], batch=[2, 0, 0, 2, 3, 0]), oracle.causal, {"positions"}
)
for _norm in (None, "mean"):
    CASES[f"Bags({_norm})-batch"] = Case(
        lambda _norm=_norm: bases.Bags(_norm),
        lambda: Graph(6, 3, [], batch=[2, 0, 0, 2, 2, 0]),
        lambda g, _norm=_norm: oracle.bags(g, _norm),
        {"positions"},
    )

for _name, _graph in {
    "typed": lambda: typed(3),
    "typed-ones": lambda: typed(3, weighted=False),
    "typed-M>N": lambda: typed(3, M=6, N=4),
    "typed-none": lambda: typed(3, E=0),
    "typed-no-node": lambda: Graph(0, 0, [], type=[]),
    "shared": lambda: shared(3),
    "shared-M<N": lambda: shared(3, M=4, N=6),
    "shared-none": lambda: shared(3, E=0),
}.items():
    CASES[f"Edges(3)-{_name}"] = Case(lambda: bases.Edges(3), _graph, lambda g: oracle.edges(g, 3))
CASES["Edges(1)-shared"] = Case(lambda: bases.Edges(), lambda: shared(1), lambda g: oracle.edges(g, 1))
CASES["Edges(1)-typed"] = Case(lambda: bases.Edges(), lambda: typed(1), lambda g: oracle.edges(g, 1))
CASES["Edges(3).T-typed-M>N"] = Case(
    lambda: bases.Edges(3).T.T, lambda: typed(3, M=6, N=4), lambda g: oracle.edges(g, 3)
)
CASES["Identity+Edges(3)-typed"] = Case(
    lambda: bases.Identity() + bases.Edges(3),
    lambda: typed(3),
    lambda g: oracle.concat(oracle.identity(g), oracle.edges(g, 3)),
)
CASES["Edges@Edges-typed"] = Case(
    lambda: bases.Edges(2) @ bases.Edges(2).T,
    lambda: typed(2, M=5, N=4),
    lambda g: oracle.product(oracle.edges(g, 2), oracle.transpose(oracle.edges(g, 2))),
)

for _name, _eigen in {
    "scalar": 1.7,
    "tensor": torch.tensor(1.7).double(),
    "per-graph": torch.tensor([1.3, 2.1]).double(),
}.items():
    CASES[f"Chebyshev(4)-lambda-{_name}"] = Case(
        lambda: bases.Chebyshev(4), lambda _eigen=_eigen: batched(_eigen), lambda g: oracle.chebyshev(g, 4)
    )
TYPED = {
    "typed": lambda: typed(3),
    "typed-ones": lambda: typed(3, weighted=False),
    "typed-none": lambda: typed(3, E=0),
    "typed-one-node": lambda: typed(3, M=1, E=2),
    "typed-no-node": lambda: Graph(0, 0, [], type=[]),
}
TYPED_BIPARTITE = {
    "typed-M>N": lambda: typed(3, M=6, N=4),
    "typed-M<N": lambda: typed(3, M=3, N=7),
    "typed-N=0": lambda: Graph(3, 0, [], type=[]),
    "typed-M=0": lambda: Graph(0, 3, [], type=[]),
}
RELATIONS: dict[str, tuple[dict, dict[str, Callable[[], Graph]]]] = {
    "Relations(3)": ({}, TYPED | TYPED_BIPARTITE),
    "Relations(3,mean)": ({"norm": "mean"}, {"typed-M>N": TYPED_BIPARTITE["typed-M>N"]}),
    "Relations(3,row)": ({"norm": "row"}, TYPED | TYPED_BIPARTITE),
    "Relations(3,sym)": ({"norm": "sym"}, {"typed-M<N": TYPED_BIPARTITE["typed-M<N"]}),
    "Relations(3,inverse)": ({"inverse": True}, {"typed-ones": TYPED["typed-ones"]}),
    "Relations(3,loop)": ({"self_loop": True}, {"typed-ones": TYPED["typed-ones"]}),
    "Relations(3,mean,inverse,loop)": ({"norm": "mean", "inverse": True, "self_loop": True}, TYPED),
    "Relations(3,row,inverse)": ({"norm": "row", "inverse": True}, {"typed-ones": TYPED["typed-ones"]}),
    "Relations(3,row,inverse,loop)": ({"norm": "row", "inverse": True, "self_loop": True}, {"typed": TYPED["typed"]}),
    "Relations(3,sym,inverse)": ({"norm": "sym", "inverse": True}, {"typed-ones": TYPED["typed-ones"]}),
}
for _name, (_options, _graphs) in RELATIONS.items():
    for _graph_name, _graph in _graphs.items():
        CASES[f"{_name}-{_graph_name}"] = Case(
            lambda _options=_options: bases.Relations(3, **_options),
            _graph,
            lambda g, _options=_options: kg.relations(g, 3, **_options),
        )
CASES["Relations(1,mean)-typed-ones"] = Case(
    lambda: bases.Relations(1, "mean"), lambda: typed(1, weighted=False), lambda g: kg.relations(g, 1, "mean")
)
CASES["Relations(1,inverse)-typed-ones"] = Case(
    lambda: bases.Relations(1, inverse=True), lambda: typed(1, weighted=False), lambda g: kg.relations(g, 1, None, True)
)
CASES["Relations(2,row)-batch"] = Case(
    lambda: bases.Relations(2, "row", inverse=True),
    lambda: batched(None).but(type=[0, 1, 1, 0, 1, 0, 1, 1]),
    lambda g: kg.relations(g, 2, "row", True),
)
CASES["Relations(3,mean).T-typed-M>N"] = Case(
    lambda: bases.Relations(3, "mean").T.T, TYPED_BIPARTITE["typed-M>N"], lambda g: kg.relations(g, 3, "mean")
)
CASES["Identity+Relations@Relations-typed-ones"] = Case(
    lambda: bases.Identity() + bases.Relations(2, "row") @ bases.Relations(2, "mean", inverse=True),
    lambda: typed(3).but(weight=None),
    lambda g: oracle.concat(
        oracle.identity(g), oracle.product(kg.relations(g, 2, "row"), kg.relations(g, 2, "mean", True))
    ),
)


def attributed(g: Graph, D: int = 2) -> Graph:
    """The graph with features of edges from 0 to 1, both included, in sixteenths, which any precision has."""
    numbers = torch.randint(17, (g.E, D), generator=torch.Generator().manual_seed(2))
    if g.E:
        numbers[0], numbers[-1] = 0, 16
    return g.but(edge_attr=numbers.double() / 16)


class Learnt:
    """A basis with parameters, and an oracle that reads them where they are when it is asked."""

    def __init__(self, make: Callable[[], Basis], K: int, values: Callable[..., Any], norm: str | None = None) -> None:
        self.make, self.K, self.values, self.norm = make, K, values, norm

    def __call__(self) -> Basis:
        self.basis = self.make().double()
        return self.basis

    def matrices(self, g: Graph) -> Tensor:
        parameters = [parameter.double() for parameter in self.basis.parameters()]
        return oracle.functions(g, self.K, self.values(*parameters), self.norm)


def network() -> Basis:
    return bases.EdgeNetwork(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh()), 3)


POINTS = [[0.0, 0.0], [0.5, 0.25], [1.0, 1.0]]
FUNCTIONS: dict[str, Learnt] = {
    "Gaussians(3)": Learnt(lambda: bases.Gaussians(3, 2), 3, oracle.gaussians),
    "Gaussians(2,mean)": Learnt(lambda: bases.Gaussians(2, 2, "mean"), 2, oracle.gaussians, "mean"),
    "EdgeNetwork(3)": Learnt(network, 4, oracle.hidden_units),
    "Points(linear)": Learnt(lambda: bases.Points(POINTS, 0.75), 3, lambda: oracle.influences(POINTS, 0.75, "linear")),
    "Points(gaussian)": Learnt(
        lambda: bases.Points(POINTS, 0.75, "gaussian"), 3, lambda: oracle.influences(POINTS, 0.75, "gaussian")
    ),
    "Spline(3,2)": Learnt(
        lambda: bases.Spline((3, 2), is_open=(True, False)), 6, lambda: oracle.splines([3, 2], 1, [True, False])
    ),
    "Spline(4,3,2)": Learnt(lambda: bases.Spline((4, 3), 2), 12, lambda: oracle.splines([4, 3], 2, [True, True])),
    "Spline(4,2,3,closed,mean)": Learnt(
        lambda: bases.Spline((4, 2), 3, False, "mean"), 8, lambda: oracle.splines([4, 2], 3, [False, False]), "mean"
    ),
}
OF_EDGES = {f"attributed-{name}": g for name, g in (SQUARE | BIPARTITE).items()} | {"attributed": graph}
for _name, _learnt in FUNCTIONS.items():
    for _graph_name, _graph in OF_EDGES.items():
        CASES[f"{_name}-{_graph_name}"] = Case(_learnt, lambda _graph=_graph: attributed(_graph()), _learnt.matrices)
_spline, _gauss = FUNCTIONS["Spline(3,2)"], FUNCTIONS["Gaussians(3)"]
CASES["Identity+Spline-attributed"] = Case(
    lambda: bases.Identity() + _spline(),
    lambda: attributed(graph()),
    lambda g: oracle.concat(oracle.identity(g), _spline.matrices(g)),
)
CASES["Gaussians@Spline.T-attributed-M>N"] = Case(
    lambda: _gauss() @ _spline().T,
    lambda: attributed(graph(M=6, N=3)),
    lambda g: oracle.product(_gauss.matrices(g), oracle.transpose(_spline.matrices(g))),
)
CASES["Mix(Gaussians)-attributed"] = Case(
    lambda: bases.Mix([[1.0, 0.0, -2.0]], _gauss()),
    lambda: attributed(graph()),
    lambda g: oracle.mix([[1.0, 0.0, -2.0]], _gauss.matrices(g)),
)

# Of the relations a, b, c of `steps`, and d, which has no edge.
_a, _b, _c, _d = ([(r, False)] for r in range(4))
_A, _B, _C = ([(r, True)] for r in range(3))
SORTS: dict[str, kg.Sort] = {
    "a": [[_a]],
    "^b": [[_B]],
    "a.b": [[_a, _b]],
    "a.b.c": [[_a, _b, _c]],
    "a.b.^b": [[_a, _b, _B]],
    "b.c": [[_b, _c]],
    "^a.b.c": [[_A, _b, _c]],
    "d": [[_d]],
    "a.d.b": [[_a, _d, _b]],
    "(a|^c)": [[[(0, False), (2, True)]]],
    "b.(a|^b).c": [[_b, [(0, False), (1, True)], _c]],
    "(a.b|c)": [[_a, _b], [_c]],
    "b.(a.b|^c).a": [[_b, _a, _b, _a], [_b, _C, _a]],
    "a{3}": [[_a, _a, _a]],
    "b.a{1,2}": [[_b, _a], [_b, _a, _a]],
    "c{0,2}": [[], [_c], [_c, _c]],
    "(a.^b){2}": [[_a, _B, _a, _B]],
    "^(a.b)": [[_B, _A]],
}
WALKS: dict[str, tuple[str, dict]] = {
    "Walks": ("b.c a.b.c ^a.b.c a.b.^b d", {}),
    "Walks(one)": ("a.b.c", {}),
    "Walks(alternatives)": ("(a|^c) b.(a|^b).c (a.b|c) b.(a.b|^c).a", {}),
    "Walks(repeats)": ("a{3} b.a{1,2} c{0,2} (a.^b){2}", {}),
    "Walks(twice)": ("a.b a.b ^(a.b) a", {}),
    "Walks(row)": ("a.b c{0,2} a.d.b (a.b|c)", {"norm": "row"}),
    "Walks(mean)": ("^b a.b.^b b.a{1,2}", {"norm": "mean"}),
    "Walks(sym)": ("a.b ^a.b.c c{0,2} d", {"norm": "sym"}),
    "Walks(step,row)": ("a.b c{0,2} b.(a|^b).c", {"norm": "row", "per": "step"}),
    "Walks(step,mean)": ("a.b.^b b.a{1,2} (a|^c)", {"norm": "mean", "per": "step"}),
    "Walks(step,sym)": ("a.b ^a.b.c (a.b|c) d", {"norm": "sym", "per": "step"}),
    "Walks(binary)": ("a.b.^b c{0,2} b.(a.b|^c).a d", {"binary": True}),
    "Walks(binary,mean)": ("a a.b.^b (a.b|c)", {"norm": "mean", "binary": True}),
    "Walks(binary,sym)": ("a.b (a|^c) b.a{1,2}", {"norm": "sym", "binary": True}),
}


def steps(weighted: bool = True, E: int = 24, **kwargs) -> Graph:
    """The random graph with the relations a, b, c, of several edges at a node; d has no edge."""
    return typed(4, weighted, E=E, **kwargs)


def walks(sorts: str, **options) -> Basis:
    """Walks of sorts that are written side by side."""
    return bases.Walks(sorts.split(), list("abcd"), **options)


def sequences(sorts: str) -> list[kg.Sort]:
    return [SORTS[sort] for sort in sorts.split()]


STEPS = {
    "steps": steps,
    "steps-ones": lambda: steps(weighted=False),
    "steps-none": lambda: steps(E=0),
    "steps-one-node": lambda: steps(M=1, E=3),
    "steps-no-node": lambda: Graph(0, 0, [], type=[]),
}
ON = {"Walks": tuple(STEPS), "Walks(row)": tuple(STEPS), "Walks(step,mean)": ("steps",), "Walks(binary)": ("steps",)}
for _name, (_sorts, _options) in WALKS.items():
    for _graph_name, _graph in ((name, STEPS[name]) for name in ON.get(_name, ("steps-ones",))):
        CASES[f"{_name}-{_graph_name}"] = Case(
            lambda _sorts=_sorts, _options=_options: walks(_sorts, **_options),
            _graph,
            lambda g, _sorts=_sorts, _options=_options: kg.walks(g, sequences(_sorts), **_options),
        )

# Those of the graph alone: `edge_attr` is content, and its families are not what the algebra takes.
CONSTANT = [name for name in CASES if "attributed" not in name]
