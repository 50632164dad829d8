"""Adjacency, degree and Laplacian matrices, with normalisations."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..backend import starts_triton
from ..basis import Basis, BoundBasis, EdgeList
from ..edge_set import EdgeSet
from ..errors import check_choice, reject
from ..graph import Graph
from ..kernels import Pattern, spmm
from ..kernels.lists import List, laplacian, looped, over_degrees
from ..kernels.op import Backward, Grads, needs_gradient, recorded
from ..kernels.pattern import positions, select
from ..portable import any_seen, with_plain
from ..printing import arguments
from ..typed_edges import ListedEdges, TypedEdges
from .identity import target_diagonal

# The norms of other libraries, and what they are here.
_MEANT = {
    "gcn": "a GCN's is bases.Adjacency('sym', self_loops=True)",
    "symmetric": "it is called 'sym'",
    "both": "it is called 'sym'",
    "row": "'rw' divides by what leaves the source, 'mean' by the number of edges into the target",
    "right": "it is called 'mean'",
    "left": "it is called 'rw'",
}


class GraphMatrix(Basis):
    """One matrix on the graph's edges, with or without loops. A subclass computes its weights in `matrix`."""

    reads_types = False
    binds_unseen = True

    def matrix(self, graph: Graph) -> tuple[EdgeSet, Tensor | None]:
        """The entries and their weights, None for ones."""
        raise NotImplementedError

    def build(self, graph: Graph) -> BoundBasis:
        lists = self.listed(graph)
        if lists is not None:
            return ListedEdges(1, graph.M, graph.N, lists, graph.dtype)
        return TypedEdges(*self.matrix(graph), graph.dtype)


class Adjacency(GraphMatrix):
    r"""The weighted adjacency matrix W of the graph, :math:`W_{mn}` for an edge m to n, with its normalisations. K = 1.

    With :math:`d_n = \sum_m W_{mn}` and :math:`o_m = \sum_n W_{mn}`; division by zero gives zero:

    | norm | :math:`A_{mn}` |
    | --- | --- |
    | None | :math:`W_{mn}` |
    | `'sym'` | :math:`d_m^{-1/2} W_{mn} d_n^{-1/2}` (Kipf and Welling, arXiv:1609.02907) |
    | `'mean'` | :math:`W_{mn}` over the number of edges into n: the mean of the messages |
    | `'rw'` | :math:`W_{mn} / o_m`: the probability of a step from m to n in a random walk |

    Args:
        norm: one of the table.
        self_loops: True, or the weight of the loop that each node gets before normalisation; 0 is none.
        existing: what self_loops does where the graph has a loop: `'keep'` it instead (the last one, if it is there
            several times), `'add'` to it, or `'replace'` it.
        diagonal: lambda in :math:`A + \lambda \, diag(A)` (Cluster-GCN, arXiv:1905.07953).

    Raises:
        ValueError: with `'sym'` or loops, for other numbers of sources than of targets; under `'sym'`, for negative
            degrees.

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

    @property
    def _of_ones(self) -> bool:
        """Whether edges without weights, and loops, have the weight 1 each."""
        plain = self.self_loops is False or self.self_loops == 1  # loops of weight 0 replace the graph's own
        return plain and not self.diagonal and self.existing != "add"

    @property
    def letters(self) -> str | None:
        if not self._of_ones:
            return None
        letter = "n" if self.norm is None else self.norm[0]
        return letter.upper() if self.self_loops else letter

    def listed(self, graph: Graph) -> Sequence[List] | None:
        edges = graph.as_list if self._of_ones else None
        if edges is None:
            return None
        if self.self_loops:
            check_square(graph, "for self loops", "use a basis without self loops")
            edges = looped(edges, graph.N)
        elif self.norm == "sym":
            check_square(graph, "for norm='sym'", "use norm='mean'")
        if self.norm is not None:
            weight = over_degrees(edges, 1, (graph.M, graph.N), self.norm, graph.dtype)
            edges = List(edges.kind, edges.source, edges.target, weight)
        return [edges]

    def matrix(self, graph: Graph) -> tuple[EdgeSet, Tensor | None]:
        structure, weight = self._with_loops(graph)
        masked = weight if graph.mask is None else self._with_loops(graph.with_masked_weights)[1]
        if self.norm is not None:
            weight = normalise(structure, weight, self.norm, graph.acc_dtype, masked)
        else:
            weight = masked
        if self.diagonal:
            loop = structure.memo("is_loop", lambda: structure.source == structure.target)
            weight = loop.new_ones(loop.shape, dtype=graph.acc_dtype) if weight is None else weight
            weight = torch.where(loop, weight * (1 + self.diagonal), weight)
        return structure, weight

    def _with_loops(self, graph: Graph) -> tuple[EdgeSet, Tensor | None]:
        """The edges and loops, and their weights, None for ones."""
        if self.self_loops is not False:
            return _with_loops(graph, float(self.self_loops), self.existing)
        return graph.structure, None if graph.weight is None else graph.weights

    def extra_repr(self) -> str:
        return arguments(self, norm=None, self_loops=False, existing="keep", diagonal=0.0)

    def edge_ids(self, graph: Graph) -> Tensor | slice | None:
        if type(self) is not Adjacency or (self.existing == "add" and self.self_loops is not False):
            return None
        if self.self_loops is False:
            return slice(None)
        return _split(graph).edge_ids(graph.structure, self.existing == "keep")


class Degree(Basis):
    r"""The diagonal of in-degrees, :math:`A_{nn} = d_n = \sum_m W_{mn}`. K = 1.

    In a bipartite call it reads the target's own features.

    >>> Degree().bind(torch.tensor([[0, 1], [1, 1]])).to_coo().to_dense()
    tensor([[[0., 0.],
             [0., 2.]]])
    """

    reads_target = True
    reads_types = False

    def __init__(self) -> None:
        super().__init__(1)

    def build(self, graph: Graph) -> BoundBasis:
        return super().build(graph.masked(None))  # degrees are not edges, and cannot be masked

    def edges(self, graph: Graph) -> EdgeList:
        weight = None if graph.weight is None else graph.weights
        degree = sum_by_target(graph.structure.expand, weight, graph.acc_dtype)  # (N,)
        return target_diagonal(graph, degree.to(graph.dtype))


class Laplacian(GraphMatrix):
    r"""The Laplacian of the graph without its loops, with :math:`D = diag(o)`, :math:`o_m = \sum_n W_{mn}`. K = 1.

    Args:
        norm: None for :math:`D - W`, 'sym' for :math:`I - D^{-1/2} W D^{-1/2}`, 'rw' for :math:`I - D^{-1} W`.

    Raises:
        ValueError: for other numbers of sources than of targets; under 'sym', for negative degrees.

    >>> Laplacian().bind(torch.tensor([[0, 1], [1, 0]])).to_coo().to_dense()
    tensor([[[ 1., -1.],
             [-1.,  1.]]])
    """

    def __init__(self, norm: Literal["sym", "rw"] | None = None) -> None:
        super().__init__(1)
        check_choice("norm", norm, None, "sym", "rw")
        self.norm = norm

    def matrix(self, graph: Graph) -> tuple[EdgeSet, Tensor]:
        """The edges followed by N loops, and their weights."""
        check_square(graph, *_DIAGONAL)
        split = _split(graph)
        w = split.without_loops(graph.weights)
        loopless = split.loopless
        degree = sum_by_target(loopless.expand.T, w, graph.acc_dtype)
        if graph.mask is not None:
            w = select(graph.with_masked_weights.weights, split.plain)
        if self.norm is None:
            return split.loops, torch.cat([-w, degree])
        if self.norm == "sym":
            _check_degrees(loopless, degree)
            inverse = power_or_zero(degree, -0.5)
            w = loopless.at_source(inverse) * w * loopless.at_target(inverse)
        else:
            w = loopless.at_source(reciprocal(degree)) * w
        return split.loops, torch.cat([-w, torch.ones_like(degree)])

    def listed(self, graph: Graph) -> Sequence[List] | None:
        edges = graph.as_list
        if edges is None:
            return None
        check_square(graph, *_DIAGONAL)
        return [laplacian(edges, graph.N, self.norm, graph.dtype)]

    def extra_repr(self) -> str:
        return arguments(self, norm=None)


_DIAGONAL = "for the diagonal of the Laplacian", "take bases.Adjacency('mean')"


def check_square(graph: Graph | EdgeSet | BoundBasis, why: str, fix: str) -> None:
    """Rejects a graph with different numbers of sources and targets."""
    if graph.M != graph.N:
        reject("graph", f"as many sources as targets, {why}", (graph.M, graph.N), fix)


class _Split(NamedTuple):
    """The edges of a square graph, separated from its loops.

    plain, loop: positions of the edges that are not loops, and of loops; None if the graph has no loops.
    loopless: the edges without loops; loops: the same followed by one loop per node.
    is_loop: (E,) in the portable path, where loops stay in `loopless`, with the weight 0.
    """

    plain: Tensor | None
    loop: Tensor | None
    loopless: EdgeSet
    loops: EdgeSet
    is_loop: Tensor | None = None

    @property
    def has_loops(self) -> bool:
        """Whether the graph may have loops."""
        return self.plain is not None or self.is_loop is not None

    def without_loops(self, weight: Tensor) -> Tensor:
        """The weights of `loopless`, of those of all edges."""
        return select(weight, self.plain) if self.is_loop is None else torch.where(self.is_loop, 0, weight)

    def last_loop(self, s: EdgeSet) -> Tensor:
        """(N,) the position of each node's last loop among all edges, E if it has none."""
        node = select(s.source, self.loop)
        place = torch.arange(node.numel(), device=node.device) if self.loop is None else self.loop
        if self.is_loop is not None:
            place = torch.where(self.is_loop, place, -1)
        last_loop = place.new_full((s.N,), -1).scatter_reduce(0, node.long(), place, "amax")
        return torch.where(last_loop < 0, s.source.numel(), last_loop)

    def edge_ids(self, s: EdgeSet, keeps: bool) -> Tensor:
        """The graph's edge at each entry of `loops`, -1 for added loops. keeps: whether the graph's own loops stay."""
        edges = torch.arange(s.E, device=s.source.device)
        own = select(edges, self.plain) if self.is_loop is None else torch.where(self.is_loop, -1, edges)
        last_loop = self.last_loop(s) if keeps and self.has_loops else edges.new_full((s.N,), s.E)
        return torch.cat([own, torch.where(last_loop == s.E, -1, last_loop)])


def _mark_loops(s: EdgeSet) -> _Split:
    is_loop, nodes = s.source == s.target, _nodes(s)
    loops = EdgeSet(1, s.M, s.N, None, torch.cat([s.source, nodes]), torch.cat([s.target, nodes]))
    loops.alive = torch.cat([~is_loop, torch.ones_like(nodes, dtype=torch.bool)])
    return _Split(None, None, s, loops, is_loop)


@with_plain(_mark_loops)
def _take_loops(s: EdgeSet) -> _Split:
    is_loop, nodes = s.source == s.target, _nodes(s)
    plain, loop = None, positions(is_loop)
    if loop.numel():
        plain = positions(~is_loop)
    source, target = select(s.source, plain), select(s.target, plain)
    loops = EdgeSet(1, s.M, s.N, None, torch.cat([source, nodes]), torch.cat([target, nodes]))
    return _Split(plain, loop, EdgeSet(1, s.M, s.N, None, source, target), loops)


def _nodes(s: EdgeSet) -> Tensor:
    return torch.arange(s.N, dtype=s.source.dtype, device=s.source.device)


def _split(graph: Graph) -> _Split:
    s = graph.structure
    check_square(graph, "for self loops", "use a basis without self loops")
    return s.memo("split", lambda: _take_loops(s))


def _with_loops(graph: Graph, fill: float, existing: str) -> tuple[EdgeSet, Tensor | None]:
    split = _split(graph)
    if graph.weight is None and fill == 1 and split.is_loop is None and not (existing == "add" and split.has_loops):
        return split.loops, None  # all are ones
    w = graph.weights
    loops = torch.full((graph.N,), fill, dtype=w.dtype, device=w.device)
    if existing == "add" and split.has_loops:
        s = graph.structure
        is_loop = s.memo("is_loop", lambda: s.source == s.target)
        loops = loops + sum_by_target(s.expand, torch.where(is_loop, w, 0), w.dtype)
    elif existing == "keep" and split.has_loops:
        loops = F.pad(w, (0, 1), value=fill).index_select(0, split.last_loop(graph.structure))
    return split.loops, torch.cat([split.without_loops(w), loops])


def normalise(s: EdgeSet, weight: Tensor | None, norm: str, dtype: torch.dtype, masked: Tensor | None = None) -> Tensor:
    """(E,) the normalised weights; or `masked` weights, times the factors that normalise `weight`.

    norm: as in `Adjacency`; or 'ends', which is 'sym' with the out-degree of the source for its in-degree.
    """
    dtype = dtype if weight is None else weight.dtype
    scaled = weight if masked is None else masked
    if norm == "mean":
        count = sum_by_target(s.expand, None if s.alive is None else s.alive.to(dtype), dtype)
        return _over_degrees(s, scaled, None, count, -1.0)
    if norm == "rw":
        return _over_degrees(s, scaled, sum_by_target(s.expand.T, weight, dtype), None, -1.0)
    if norm == "sym":
        check_square(s, "for norm='sym'", "use norm='mean'")
        if weight is not None and scaled is weight:
            return _symmetric(s, weight)
    in_degree = sum_by_target(s.expand, weight, dtype)
    out = in_degree if norm == "sym" else sum_by_target(s.expand.T, weight, dtype)
    if weight is not None:  # counts are never negative
        _check_degrees(s, out, in_degree)
    return _over_degrees(s, scaled, out, in_degree, -0.5)


def _plain_over_degrees(
    s: EdgeSet, weight: Tensor | None, out: Tensor | None, into: Tensor | None, exponent: float
) -> Tensor:
    """(E,) the weights, or ones, times powers of the degrees of the sources and of the targets, if these are given."""
    over_out = None if out is None else power_or_zero(out, exponent)
    over_into = over_out
    if into is not out:
        over_into = None if into is None else power_or_zero(into, exponent)
    ends = (s.at_source, over_out), (s.at_target, over_into)
    factors = [at(power) for at, power in ends if power is not None]
    total = factors[0] if weight is None else factors[0] * weight
    return total if len(factors) == 1 else total * factors[1]


@with_plain(_plain_over_degrees)
def _over_degrees(
    s: EdgeSet, weight: Tensor | None, out: Tensor | None, into: Tensor | None, exponent: float
) -> Tensor:
    learns = torch.is_grad_enabled() and needs_gradient(weight, out, into)
    if starts_triton(s.source.device) and not learns:
        from ..kernels.triton.bind import over_degrees as by_triton

        return by_triton(s.source, s.target, weight, out, into, exponent)
    return _plain_over_degrees(s, weight, out, into, exponent)


def _checked_degrees(s: EdgeSet, weight: Tensor) -> Tensor:
    """(N,) the sums of the weights of edges into each node."""
    degree = sum_by_target(s.expand, weight, weight.dtype)
    _check_degrees(s, degree)
    return degree


def _normalised(s: EdgeSet, weight: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    scale = power_or_zero(_checked_degrees(s, weight), -0.5)
    factor = scale.index_select(0, s.source) * scale.index_select(0, s.target)
    return factor * weight, (factor, scale)


def _normalised_backward(given: Backward) -> Grads:
    r"""With g the gradient of a result y, that of :math:`d_n` is :math:`-\frac{1}{2} d_n^{-1}` times the sum of g y
    over the edges into n and out of n.
    """
    grad, _, (s,), (weight,), (factor, scale) = given
    d_factor = grad * factor
    total = d_factor * weight
    sums = sum_by_target(s.expand, total, total.dtype) + sum_by_target(s.expand.T, total, total.dtype)
    d_degree = sums.mul_(scale.square()).mul_(-0.5)
    return (d_factor.add_(d_degree.index_select(0, s.target)),)


def _plain_symmetric(s: EdgeSet, weight: Tensor) -> Tensor:
    degree = _checked_degrees(s, weight)
    return _plain_over_degrees(s, weight, degree, degree, -0.5)


_record = recorded(1, _normalised, _normalised_backward, _plain_symmetric)


@with_plain(_plain_symmetric)
def _symmetric(s: EdgeSet, weight: Tensor) -> Tensor:
    """The weights d_m^-1/2 w_mn d_n^-1/2, with a derivative of their own."""
    if starts_triton(weight.device) and not (torch.is_grad_enabled() and weight.requires_grad):
        degree = _checked_degrees(s, weight)
        return _over_degrees(s, weight, degree, degree, -0.5)
    return _record(s, weight)


def sum_by_target(pattern: Pattern, weight: Tensor | None, dtype: torch.dtype) -> Tensor:
    """(N,) the sum of the weights of the edges into each target, in a fixed order of summation; None for ones."""
    if weight is None:
        return pattern.in_degree.to(dtype)
    if not weight.is_cuda:  # there it adds in order, and needs no sorted weights
        return weight.new_zeros(pattern.N).index_add(0, pattern.target, weight)
    ones = torch.ones(pattern.M, 1, dtype=dtype, device=pattern.source.device)
    return spmm(ones, select(weight, pattern.by_target.order), pattern).squeeze(1)


def _power_where_not_zero(x: Tensor, exponent: float) -> Tensor:
    zero = x == 0
    # Replaced by 1 first, whose gradient is finite.
    return torch.where(zero, 0, torch.where(zero, 1, x) ** exponent)


@with_plain(_power_where_not_zero)
def power_or_zero(x: Tensor, exponent: float) -> Tensor:
    """The power of x, zero where x is zero."""
    return _power_where_not_zero(x, exponent) if x.requires_grad else (x**exponent).masked_fill_(x == 0, 0)


def reciprocal(total: Tensor) -> Tensor:
    """1 / total, zero where total is zero."""
    return power_or_zero(total, -1.0)


def _check_degrees(s: EdgeSet, *degrees: Tensor) -> None:
    """Rejects negative degrees, as `EdgeSet.check` does."""
    s.check(("degrees", len(degrees)), lambda: _reject_negative(*degrees))


def _reject_negative(*degrees: Tensor) -> None:
    """Rejects negative degrees, which have no root."""
    for degree in degrees:
        if any_seen(degree < 0):
            got = float(degree.detach().min())
            reject("edge_weight", "degrees of at least 0, for norm='sym'", got, "use another norm")


def inverse_sqrt(degree: Tensor) -> Tensor:
    """1 / sqrt(degree), zero where degree is zero; rejects negative degrees."""
    _reject_negative(degree)
    return power_or_zero(degree, -0.5)
