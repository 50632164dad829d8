"""The matrices that a graph gives directly: adjacency, degree and Laplacian, normalised."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..basis import Basis, BoundBasis, EdgeList
from ..bound import ListedEdges, TypedEdges
from ..edge_set import edge_set
from ..errors import check_choice, reject
from ..graph import Graph, Structure
from ..kernels import Pattern, spmm
from ..kernels.lists import List, laplacian, looped, over_degrees
from ..kernels.pattern import positions
from ..portable import portable
from ..printing import arguments
from .identity import target_diagonal

# What users of other libraries call the norms.
_MEANT = {
    "gcn": "a GCN's is bases.Adjacency('sym', self_loops=True)",
    "symmetric": "it is called 'sym'",
    "both": "it is called 'sym'",
    "row": "'rw' divides by what leaves the source, 'mean' by the number of edges into the target",
    "right": "it is called 'mean'",
    "left": "it is called 'rw'",
}


class GraphMatrix(Basis):
    """One matrix of the graph's edges, and maybe loops, with weights of its own: a kind gives these in `matrix`."""

    def matrix(self, graph: Graph) -> tuple[Structure, Tensor | None]:
        """The entries and their weights, None for ones."""
        raise NotImplementedError

    def build(self, graph: Graph) -> BoundBasis:
        lists = self.listed(graph)
        if lists is not None:
            return ListedEdges(1, graph.M, graph.N, lists, graph.dtype)
        return single(*self.matrix(graph), graph.dtype)


class Adjacency(GraphMatrix):
    r"""The weighted adjacency matrix W of the graph, :math:`W_{mn}` for an edge m to n, with its normalisations. K = 1.

    With :math:`d_n = \sum_m W_{mn}` and :math:`o_m = \sum_n W_{mn}`; what would divide by zero is zero:

    ========== ==============================================================================================
    norm       :math:`A_{mn}`
    ========== ==============================================================================================
    None       :math:`W_{mn}`
    ``'sym'``  :math:`d_m^{-1/2} W_{mn} d_n^{-1/2}` (Kipf and Welling, arXiv:1609.02907)
    ``'mean'`` :math:`W_{mn}` over the number of edges into n: the mean of the messages
    ``'rw'``   :math:`W_{mn} / o_m`: the probability of a step from m to n in a random walk
    ========== ==============================================================================================

    Args:
        norm: one of the table.
        self_loops: True, or the weight of the loop that each node gets before normalisation; 0 is none.
        existing: what self_loops does where the graph has a loop: `'keep'` it instead (the last one, if it is there
            several times), `'add'` to it, or `'replace'` it.
        diagonal: lambda in :math:`A + \lambda \, diag(A)` (Cluster-GCN, arXiv:1905.07953).

    >>> Adjacency('sym', self_loops=True).bind(torch.tensor([[0, 1], [1, 0]])).to_coo().to_dense()
    tensor([[[0.5000, 0.5000],
             [0.5000, 0.5000]]])
    """

    def __init__(
        self,
        norm: Literal["sym", "mean", "rw"] | None = None,
        self_loops: bool | float = False,
        existing: Literal["keep", "add", "replace"] = "keep",
        diagonal: float = 0.0,
    ) -> None:
        super().__init__(1)
        meant = _MEANT.get(str(norm), "see the table in help(bases.Adjacency)")
        check_choice("norm", norm, None, "sym", "mean", "rw", fix=meant)
        check_choice("existing", existing, "keep", "add", "replace", fix="it says what becomes of present loops")
        for name, value in (("self_loops", self_loops), ("diagonal", diagonal)):
            if not isinstance(value, int | float) or not math.isfinite(value):
                reject(name, "a finite number", repr(value), "give a weight")
        self.norm, self.existing, self.diagonal = norm, existing, float(diagonal)
        self.self_loops = self_loops if self_loops or existing == "replace" else False

    def listed(self, graph: Graph) -> Sequence[List] | None:
        of_ones = self.self_loops is False or self.self_loops == 1  # a loop of weight 0 takes those away that are there
        edges = graph.as_list if of_ones and not self.diagonal and self.existing != "add" else None
        if edges is None:
            return None
        if self.self_loops:
            check_square(graph, "for self loops", "use a basis without self loops")
            edges = looped(edges, graph.N)
        if self.norm == "sym":
            check_square(graph, "for norm='sym'", "use norm='mean'")
        if self.norm is not None:
            edges = edges._replace(weight=over_degrees(edges, 1, (graph.M, graph.N), self.norm, graph.dtype))
        return [edges]

    def matrix(self, graph: Graph) -> tuple[Structure, Tensor | None]:
        structure, weight = self._with_loops(graph)
        masked = weight if graph.mask is None else self._with_loops(graph.with_masked_weights)[1]
        if self.norm is not None:
            weight = normalise(structure, weight, self.norm, graph.acc_dtype, masked)
        else:
            weight = masked
        if self.diagonal:
            loop = structure.memo("is_loop", lambda: structure.source == structure.target)
            weight = _ones(structure, graph.acc_dtype) if weight is None else weight
            weight = torch.where(loop, weight * (1 + self.diagonal), weight)
        return structure, weight

    def _with_loops(self, graph: Graph) -> tuple[Structure, Tensor | None]:
        """The edges and loops, and their weights, None for ones."""
        if self.self_loops is not False:
            return _with_loops(graph, float(self.self_loops), self.existing)
        return graph.structure, None if graph.weight is None else graph.weights

    def extra_repr(self) -> str:
        return arguments(self, norm=None, self_loops=False, existing="keep", diagonal=0.0)

    def edge_ids(self, graph: Graph) -> Tensor | None:
        if type(self) is not Adjacency or (self.existing == "add" and self.self_loops is not False):
            return None
        if self.self_loops is False:
            return torch.arange(graph.E, device=graph.device)
        return _split(graph).edge_ids(graph.structure, self.existing == "keep")


class Degree(Basis):
    r"""The diagonal of in-degrees, :math:`A_{nn} = d_n = \sum_m W_{mn}`. K = 1.

    In a bipartite call it reads the target's own features.

    >>> Degree().bind(torch.tensor([[0, 1], [1, 1]])).to_coo().to_dense()
    tensor([[[0., 0.],
             [0., 2.]]])
    """

    reads_target = True

    def __init__(self) -> None:
        super().__init__(1)

    def build(self, graph: Graph) -> BoundBasis:
        return super().build(graph.masked(None))  # a degree is no edge

    def edges(self, graph: Graph) -> EdgeList:
        weight = None if graph.weight is None else graph.weights
        degree = sums(graph.structure.pattern, weight, graph.acc_dtype)  # (N,)
        return target_diagonal(graph, degree.to(graph.dtype))


class Laplacian(GraphMatrix):
    r"""The Laplacian of the graph without its loops, with :math:`D = diag(o)`, :math:`o_m = \sum_n W_{mn}`. K = 1.

    None gives :math:`D - W`, 'sym' :math:`I - D^{-1/2} W D^{-1/2}`, 'rw' :math:`I - D^{-1} W`.

    Args:
        norm: one of these.

    >>> Laplacian().bind(torch.tensor([[0, 1], [1, 0]])).to_coo().to_dense()
    tensor([[[ 1., -1.],
             [-1.,  1.]]])
    """

    def __init__(self, norm: Literal["sym", "rw"] | None = None) -> None:
        super().__init__(1)
        check_choice("norm", norm, None, "sym", "rw")
        self.norm = norm

    def matrix(self, graph: Graph) -> tuple[Structure, Tensor]:
        """The edges, the N loops last, and their weights."""
        split = _split(graph)
        w = split.without_loops(graph.weights)
        loopless = split.loopless
        degree = sums(loopless.pattern.T, w, graph.acc_dtype)
        if graph.mask is not None:
            w = _select(graph.with_masked_weights.weights, split.plain)
        if self.norm is None:
            return split.loops, torch.cat([-w, degree])
        if self.norm == "sym":
            inverse = root(degree)
            w = loopless.at_source(inverse) * w * loopless.at_target(inverse)
        else:
            w = loopless.at_source(reciprocal(degree)) * w
        return split.loops, torch.cat([-w, torch.ones_like(degree)])

    def listed(self, graph: Graph) -> Sequence[List] | None:
        edges = graph.as_list
        if edges is None:
            return None
        check_square(graph, "for self loops", "use a basis without self loops")
        return [laplacian(edges, graph.N, self.norm, graph.dtype)]

    def extra_repr(self) -> str:
        return arguments(self, norm=None)


def check_square(graph: Graph | Structure | BoundBasis, why: str, fix: str) -> None:
    """Rejects a graph between different sources and targets."""
    if graph.M != graph.N:
        reject("graph", f"as many sources as targets, {why}", (graph.M, graph.N), fix)


def single(structure: Structure, weight: Tensor | None, dtype: torch.dtype) -> TypedEdges:
    """The bound basis of one matrix."""
    return TypedEdges(edge_set(structure), weight, dtype)


class _Split(NamedTuple):
    """The edges of a square graph, parted from its loops.

    plain, loop: positions of the edges that are no loops, and of those that are, None for all;
    loopless: the edges without them; loops: those with one loop per node behind; is_loop: (E,) of each edge, in the
    portable path, where loops stay among the others: without a weight.
    """

    plain: Tensor | None
    loop: Tensor | None
    loopless: Structure
    loops: Structure
    is_loop: Tensor | None = None

    @property
    def some(self) -> bool:
        """Whether there may be loops."""
        return self.plain is not None or self.is_loop is not None

    def without_loops(self, weight: Tensor) -> Tensor:
        """Of the weights of all edges those of `loopless`."""
        return _select(weight, self.plain) if self.is_loop is None else torch.where(self.is_loop, 0, weight)

    def last(self, s: Structure) -> Tensor:
        """(N,) the position of the last loop of each node among all edges, E where it has none."""
        node = _select(s.source, self.loop)
        place = torch.arange(node.numel(), device=node.device) if self.loop is None else self.loop
        if self.is_loop is not None:
            place = torch.where(self.is_loop, place, -1)
        last = place.new_full((s.N,), -1).scatter_reduce(0, node.long(), place, "amax")
        return torch.where(last < 0, s.source.numel(), last)

    def edge_ids(self, s: Structure, keeps: bool) -> Tensor:
        """The edge that each of `loops` is, -1 for one that is added; whether the graph's own loops are kept."""
        edges = torch.arange(s.E, device=s.source.device)
        own = _select(edges, self.plain) if self.is_loop is None else torch.where(self.is_loop, -1, edges)
        last = self.last(s) if keeps and self.some else edges.new_full((s.N,), s.E)
        return torch.cat([own, torch.where(last == s.E, -1, last)])


def _split(graph: Graph) -> _Split:
    s = graph.structure
    check_square(graph, "for self loops", "use a basis without self loops")

    def build() -> _Split:
        is_loop = s.source == s.target
        nodes = torch.arange(s.N, dtype=s.source.dtype, device=s.source.device)
        if portable():
            loops = Structure(torch.cat([s.source, nodes]), torch.cat([s.target, nodes]), None, s.M, s.N)
            loops.alive = torch.cat([~is_loop, torch.ones_like(nodes, dtype=torch.bool)])
            return _Split(None, None, s, loops, is_loop)
        plain, loop = None, positions(is_loop)
        if loop.numel():
            plain = positions(~is_loop)
        source, target = _select(s.source, plain), _select(s.target, plain)
        loops = Structure(torch.cat([source, nodes]), torch.cat([target, nodes]), None, s.M, s.N)
        return _Split(plain, loop, Structure(source, target, None, s.M, s.N), loops)

    split: _Split = s.memo("split", build)
    return split


def _with_loops(graph: Graph, fill: float, existing: str) -> tuple[Structure, Tensor | None]:
    split = _split(graph)
    if graph.weight is None and fill == 1 and split.is_loop is None and not (existing == "add" and split.some):
        return split.loops, None  # all are ones
    w = graph.weights
    loops = torch.full((graph.N,), fill, dtype=w.dtype, device=w.device)
    if existing == "add" and split.some:
        s = graph.structure
        is_loop = s.memo("is_loop", lambda: s.source == s.target)
        loops = loops + sums(s.pattern, torch.where(is_loop, w, 0), w.dtype)
    elif existing == "keep" and split.some:
        loops = F.pad(w, (0, 1), value=fill).index_select(0, split.last(graph.structure))
    return split.loops, torch.cat([split.without_loops(w), loops])


def normalise(
    s: Structure, weight: Tensor | None, norm: str, dtype: torch.dtype, masked: Tensor | None = None
) -> Tensor:
    """(E,) the weights of the edges, normalised; or other numbers of the edges, by what normalises these.

    norm: as in `Adjacency`; or 'ends', 'sym' with what leaves the source in place of what enters it.
    """
    dtype = dtype if weight is None else weight.dtype
    if norm == "mean":
        count = sums(s.pattern, None if s.alive is None else s.alive.to(dtype), dtype)
        factors = [s.at_target(reciprocal(count))]
    elif norm == "rw":
        factors = [s.at_source(reciprocal(sums(s.pattern.T, weight, dtype)))]
    else:
        if norm == "sym":
            check_square(s, "for norm='sym'", "use norm='mean'")
        in_degree = sums(s.pattern, weight, dtype)
        out = in_degree if norm == "sym" else sums(s.pattern.T, weight, dtype)
        scale = root if weight is not None else partial(power, exponent=-0.5)  # numbers of edges are never negative
        factors = [s.at_source(scale(out)), s.at_target(scale(in_degree))]
    scaled = weight if masked is None else masked
    total = factors[0] if scaled is None else factors[0] * scaled
    return total if len(factors) == 1 else total * factors[1]


def _ones(structure: Structure, dtype: torch.dtype) -> Tensor:
    return torch.ones(structure.source.numel(), dtype=dtype, device=structure.source.device)


def sums(pattern: Pattern, weight: Tensor | None, dtype: torch.dtype) -> Tensor:
    """(N,) the sum of the weights of the edges into each target, in a fixed order of summation; None for ones."""
    if weight is None:
        return pattern.in_degree.to(dtype)
    ones = torch.ones(pattern.M, 1, dtype=dtype, device=pattern.source.device)
    order = pattern.by_target.order
    w = weight if order is None else weight.index_select(0, order)
    return spmm(ones, w, pattern).squeeze(1)


def power(x: Tensor, exponent: float) -> Tensor:
    """X ** exponent, zero where x is; the inner one keeps an infinite slope out of the gradient."""
    zero = x == 0
    return torch.where(zero, 0, torch.where(zero, 1, x) ** exponent)


def reciprocal(total: Tensor) -> Tensor:
    """1 / total, zero where it is."""
    return power(total, -1.0)


def root(degree: Tensor) -> Tensor:
    """1 / sqrt(degree)."""
    if not portable() and bool((degree < 0).any()):
        got = float(degree.detach().min())
        reject("edge_weight", "degrees of at least 0, for norm='sym'", got, "use another norm")
    return power(degree, -0.5)


def _select(x: Tensor, positions: Tensor | None) -> Tensor:
    return x if positions is None else x.index_select(0, positions)
