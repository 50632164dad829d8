"""Sorts of walks that a graph suggests for a target."""

import math
from collections.abc import Iterator
from functools import reduce
from heapq import heappush, heappushpop, nlargest
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from ..bases.edges import check_types
from ..errors import check_count, check_flags, check_probability, reject
from ..kernels.pattern import extremes
from ..reading import read_graph
from .counting import Instances
from .grammar import Sort, parse, quoted
from .vocabulary import Vocabulary
from .wording import shown

Way = tuple[int, bool]  # a relation, and whether it is followed against its direction
BEAM = 1000  # beginnings of each length that are continued
POOL = 200  # sorts that are compared with each other
EXAMPLES = 3
ALIKE = 1e-6  # a sort of whose squares a smaller share is its own predicts only what others predict


class Suggestion(NamedTuple):
    """A sort that explains a target, as `suggest_sorts` finds it.

    Attributes:
        sort: of walks, as `bases.Walks` takes it; `sort.text` is how it is written.
        gain: the share that it removes, beyond the sorts before it, of the squared error of predicting by frequency.
        coverage: the share of the facts that its walks find.
        confidence: of the walks from a start, the share that end in a fact.
        examples: some of its walks that find facts, each the nodes that it passes.

    >>> import torch
    >>> edges, types = torch.tensor([[0, 1, 2, 3], [4, 4, 5, 5]]), torch.zeros(4, dtype=torch.long)
    >>> (found,) = suggest_sorts(edges, types, torch.tensor([0, 0, 1, 1, -1, -1]), ["acted"], length=2)
    >>> found.sort.text, found.coverage, found.examples[0]
    ('acted.^acted', 1.0, (0, 4, 1))
    """

    sort: Sort
    gain: float
    coverage: float
    confidence: float
    examples: tuple[tuple[int, ...], ...]


def suggest_sorts(
    edge_index: Tensor,
    edge_type: Tensor,
    target: str | int | Tensor,
    relations: Any = None,
    length: int = 3,
    most: int = 10,
    symmetric: bool = False,
    samples: int = 256,
    width: int = 256,
    support: float = 0.01,
    least: float = 1e-3,
) -> list[Suggestion]:
    r"""Suggests sorts of walks that predict a relation, or the labels of nodes, best first.

    A sort k predicts of a node s, the start of its walks, :math:`f_k(s, c)`: for a relation, the share of the
    walks from s that end in c; for labels, the share of those that end in another labelled node which end in one with
    label c. No walk uses what is to be predicted: the facts of the relation at s, or the labels of s. With
    :math:`y(s, c)` one for a fact and zero otherwise, and :math:`f_0` the frequency of c at the other starts,

    .. math:: \min_w \sum_{s, c} \bigl(y(s, c) - \sum_{k \in \{0\} \cup S} w_k f_k(s, c)\bigr)^2

    is what the sorts S leave unexplained. Of the 200 sorts that lower it most by themselves, they join S one by one,
    each time the one that lowers it most, if what it adds is positive. Nothing of size N x N is made: walks are
    followed from some starts, from all where there are few; where a walk may end in too many nodes, `width` of them are
    followed, in proportion to the walks; and of the beginnings of sorts that have the same length, the 1,000 with walks
    from most starts are continued.

    The squared error takes the place of the confidence by which rules are ranked in AMIE+ (L. Galárraga et al., 2015)
    and AnyBURL (C. Meilicke et al., 2019), the shares are the features of path ranking (N. Lao and W. Cohen, 2010).

    Args:
        edge_index: (2, E) heads and tails.
        edge_type: (E,) relations.
        target: the name or id of a relation, whose tails are predicted, or `^name`, for its heads; or labels, (N,)
            integers, -1 where there is none, or (N, C) zeros and ones, where a node without labels has a row of zeros.
        relations: their names, as `bases.Walks` takes them.
        length: the most steps.
        most: the most sorts.
        symmetric: whether walks go somewhere and the same way back, as `played.^played`: metapaths.
        samples: the most starts.
        width: the most nodes that are followed from one start.
        support: the least share of the starts that have a walk.
        least: the least gain.

    Raises:
        ValueError: for a relation that the graph does not have, a target without facts, and if no sort predicts any.

    >>> import torch
    >>> edges, types = torch.tensor([[0, 1, 2, 3], [4, 4, 5, 5]]), torch.zeros(4, dtype=torch.long)
    >>> (found,) = suggest_sorts(edges, types, torch.tensor([0, 0, 1, 1, -1, -1]), ["acted"], length=2)
    >>> found.sort, found.coverage, found.confidence, found.examples[0]
    (Sort(text='acted.^acted'), 1.0, 1.0, (0, 4, 1))
    """
    for name, number in {"length": length, "most": most, "samples": samples, "width": width}.items():
        check_count(name, number)
    check_flags(symmetric=symmetric)
    for name, share in {"support": support, "least": least}.items():
        check_probability(name, share)
    if symmetric and length < 2:
        reject("length", "at least 2 where symmetric=True", length, "a walk there and back has two steps")
    words = Vocabulary.of(relations)
    edges, types = _edges_of(edge_index, edge_type, words)
    search = _Search(edges, types, _target(edges, types, target, words, samples), width)
    floor = max(1, math.ceil(support * len(search.facts.starts)))
    pool, seen = _best(search, search.ways(length, floor, symmetric))
    if not pool:
        fix = "make length larger, or support smaller, or let sorts use more relations"
        if symmetric:
            fix = f"ask without symmetric, as walks there and back end where they can start; or {fix}"
        got = f"{seen} sort{'s' * (seen > 1)} with walks of up to {length} step{'s' * (length > 1)}"
        got = f"{got} that predict no more than a constant would" if seen else "no sort with walks"
        reject("target", "a sort whose walks predict something of it", got, fix)
    return [
        Suggestion(_sort(ways, words), gain, *search.measures(predicted), search.examples(ways, predicted, words))
        for ways, predicted, gain in _chosen(search.facts, pool, most, least)
    ]


def _edges_of(edge_index: Any, edge_type: Any, words: Vocabulary) -> tuple[Tensor, Tensor]:
    """(2, E) the ends of the edges and (E,) their types, checked, on the CPU."""
    graph = read_graph(edge_index, edge_type=edge_type)
    kinds = graph.structure.type
    if kinds is None or not kinds.numel():
        reject("edge_index, edge_type", "a graph with edges, and their relations", "none", "without there is no walk")
    check_types(*extremes(kinds), None if words.open else len(words))
    return torch.stack([graph.source, graph.target]).cpu().long(), kinds.cpu().long()


class _Facts(NamedTuple):
    """The facts that are to be predicted, of the starts s that were drawn.

    starts: (S,) nodes.
    y: (S, C) facts.
    prior: (S, C) how frequent each c is at other starts.
    ends: (N, C) what a walk predicts that ends in a node.
    counted: (N,) whether the walks that end in a node count.
    way: the relation to be predicted; None for labels, where a walk back to its start predicts nothing.
    """

    starts: np.ndarray
    y: csr_matrix
    prior: np.ndarray
    ends: csr_matrix
    counted: np.ndarray
    way: Way | None


def _target(edges: Tensor, types: Tensor, target: Any, words: Vocabulary, samples: int) -> _Facts:
    N = int(edges.max()) + 1
    if isinstance(target, Tensor):
        every = _labels(target.cpu(), N)
        nodes = np.unique(every.nonzero()[0])
        y, ends, counted, way = every[nodes], every, np.diff(every.indptr) > 0, None
    else:
        way = _way(target, words, types)
        heads, tails = (edges.flip(0) if way[1] else edges)[:, types == way[0]].numpy()
        nodes, rows = np.unique(heads, return_inverse=True)
        cs, columns = np.unique(tails, return_inverse=True)
        y = _ones(rows, columns, (len(nodes), len(cs)))
        ends, counted = _ones(cs, np.arange(len(cs)), (N, len(cs))), np.ones(N, bool)
    if len(nodes) < 2:
        reject("target", "facts of two nodes or more", f"those of {len(nodes)}", "there is nothing to learn from")
    frequency = np.asarray(y.sum(0))
    if len(nodes) > samples:
        drawn = np.sort(np.random.RandomState(0).permutation(len(nodes))[:samples])
        prior = (frequency - y[drawn].toarray()) / (len(nodes) - 1)
        return _Facts(nodes[drawn], y[drawn], prior, ends, counted, way)
    return _Facts(nodes, y, (frequency - y.toarray()) / (len(nodes) - 1), ends, counted, way)


def _way(target: Any, words: Vocabulary, types: Tensor) -> Way:
    """The relation that is to be predicted, and whether its heads are, instead of its tails."""
    is_id = isinstance(target, Integral) and not isinstance(target, bool)
    name = str(target) if words.open or not is_id else None
    inverse = name is not None and words.find(name) is None and name.startswith("^")
    name = name[1:] if name is not None and inverse else name
    found = words.find(name) if name is not None else int(target)
    if found is None or not bool((types == found).any()):
        got = shown(target)
        fix = words.suggestion(name) if name is not None else "take the id of a relation that has edges"
        if found is not None and (words.open or 0 <= found < len(words)):
            got += ", which has no facts in edge_type"
            fix = "leave them in: no walk uses those of the entity that it starts from"
        reject("target", "labels, or a relation with facts", got, fix)
    return found, inverse


def _labels(labels: Tensor, N: int) -> csr_matrix:
    """(N, C) the labels of nodes."""
    if labels.dim() not in (1, 2) or len(labels) < N or not labels.numel():
        reject("target", f"labels of {N} nodes or more", tuple(labels.shape), "give -1 where there is none")
    if labels.dim() == 2:
        if not bool(((labels == 0) | (labels == 1)).all()):
            reject("target", "zeros and ones in a matrix of labels", "others", "or give one integer for each node")
        rows, columns = labels.nonzero().t().numpy()
        return _ones(rows, columns, tuple(labels.shape))
    if labels.is_floating_point() or labels.is_complex():
        reject("target", "integers as labels", labels.dtype, "number the classes")
    rows = (labels >= 0).nonzero()[:, 0].numpy()
    classes, columns = np.unique(labels[rows].numpy(), return_inverse=True)
    return _ones(rows, columns, (len(labels), len(classes)))


def _ones(rows: np.ndarray, columns: np.ndarray, shape: Any) -> csr_matrix:
    """A matrix of zeros and ones."""
    found = csr_matrix((np.ones(len(rows)), (rows, columns)), shape)
    found.data[:] = 1  # repeated facts count once
    return found


class _Search:
    """Walks from the starts of facts along edges, (2, E), of types, (E,): to `width` nodes at most from each."""

    def __init__(self, edges: Tensor, types: Tensor, facts: _Facts, width: int) -> None:
        self.edges, self.types, self.facts, self.width = edges, types, facts, width
        (heads, tails), kinds = edges.numpy(), types.numpy()
        self.N, R = facts.ends.shape[0], int(kinds.max()) + 1
        here, ways = np.concatenate([heads, tails]), np.concatenate([2 * kinds, 2 * kinds + 1])
        there, shape = np.concatenate([tails, heads]), (self.N, 2 * R)
        # The step along relation r is in the rows from 2 r N on, that against its direction in those from (2 r + 1) N.
        self.steps = csr_matrix((np.ones(len(here)), (ways * self.N + here, there)), (2 * R * self.N, self.N))
        self.leave = _ones(here, ways, shape)
        predicts = (np.diff(facts.ends.indptr) > 0)[there]
        self.arrive = _ones(here[predicts], ways[predicts], shape)  # with a step to where walks predict something

    def ways(self, length: int, floor: int, symmetric: bool) -> Iterator[tuple[tuple[Way, ...], csr_matrix]]:
        """The sequences of steps with walks from enough starts, and what they predict."""
        level: list[tuple[Way, ...]] = [()]
        farthest = length // 2 if symmetric else length
        for at in range(1, farthest + 1):
            found: dict[tuple[Way, ...], int] = {}  # from how many starts there are such walks
            for begin in level:
                here = self.walk(begin)
                out = self.leave if symmetric or at < farthest else self.arrive
                starts = np.bincount((here @ out).indices, minlength=out.shape[1])
                for way in np.flatnonzero(starts >= floor).tolist():
                    step = (way // 2, bool(way % 2))
                    there = self._step(here, step)
                    if symmetric:
                        back = [(r, not inverse) for r, inverse in reversed((*begin, step))]
                        yield (*begin, step, *back), self.predict(reduce(self._step, back, there))
                    else:
                        yield (*begin, step), self.predict(there)
                    reached = int((np.diff(there.indptr) > 0).sum())
                    if reached >= floor:
                        found[(*begin, step)] = reached
            level = nlargest(BEAM, found, key=found.__getitem__)  # of equal ones the first

    def walk(self, ways: tuple[Way, ...]) -> csr_matrix:
        """(S, N) the number of walks from each start to each node."""
        S = len(self.facts.starts)
        return reduce(self._step, ways, _ones(np.arange(S), self.facts.starts, (S, self.N)))

    def _step(self, here: csr_matrix, way: Way) -> csr_matrix:
        relation, inverse = way  # no walk uses the facts of its start
        leaves, arrives = way == self.facts.way, (relation, not inverse) == self.facts.way
        there = (self.away_from_start(here) if leaves else here) @ self.matrix(way)
        return self._thinned(self.away_from_start(there) if arrives else there)

    def matrix(self, way: Way) -> csr_matrix:
        """(N, N) of a step."""
        begin = (2 * way[0] + way[1]) * self.N
        at = self.steps.indptr[begin : begin + self.N + 1]
        part = slice(at[0], at[-1])
        return csr_matrix((self.steps.data[part], self.steps.indices[part], at - at[0]), (self.N, self.N))

    def away_from_start(self, here: csr_matrix) -> csr_matrix:
        """The walks that are not at their start."""
        found = here.copy()
        found.data[here.indices == np.repeat(self.facts.starts, np.diff(here.indptr))] = 0
        found.eliminate_zeros()
        return found

    def _thinned(self, here: csr_matrix) -> csr_matrix:
        """Of rows with too many nodes, `width` at equal distances along the sum of the walks, with equal weights."""
        sizes = np.diff(here.indptr)
        many = sizes > self.width
        if not many.any():
            return here
        here.sort_indices()
        total, first, last = here.data.cumsum(), here.indptr[:-1][many, None], here.indptr[1:][many, None]
        below = np.append(0, total)[here.indptr]
        each = np.diff(below) / self.width
        at = below[:-1][many, None] + each[many, None] * (np.arange(self.width) + 0.5)
        drawn, times = np.unique(np.searchsorted(total, at).clip(first, last - 1), return_counts=True)
        row = np.repeat(np.arange(len(sizes)), sizes)
        data = np.where(many[row], 0, here.data)
        data[drawn] = times * each[row[drawn]]
        found = csr_matrix((data, here.indices, here.indptr), here.shape)
        found.eliminate_zeros()
        return found

    def predict(self, here: csr_matrix) -> csr_matrix:
        """(S, C) the shares of the walks that predict c."""
        here = here if self.facts.way is not None else self.away_from_start(here)
        number = here @ self.facts.counted
        found = (here @ self.facts.ends).tocsr()
        found.data /= np.repeat(number, np.diff(found.indptr))
        return found

    def measures(self, predicted: csr_matrix) -> tuple[float, float]:
        """Coverage and confidence."""
        right = predicted.multiply(self.facts.y)
        return right.nnz / self.facts.y.nnz, float(right.sum() / predicted.sum())

    def examples(self, ways: tuple[Way, ...], predicted: csr_matrix, words: Vocabulary) -> tuple[tuple[int, ...], ...]:
        """Walks of different starts that find facts, the clearest first."""
        right, here = predicted.multiply(self.facts.y).tocoo(), self.walk(ways)
        sort, used = _sort(ways, words), self.types.new_tensor([relation for relation, _ in ways])
        along = torch.isin(self.types, used)
        edges, types = self.edges[:, along], self.types[along]
        predicted_relation, inverse = self.facts.way or (None, False)
        found: dict[int, tuple[int, ...]] = {}
        for at in np.argsort(-right.data, kind="stable").tolist():
            row, c = int(right.row[at]), int(right.col[at])
            start = int(self.facts.starts[row])
            if start not in found:
                reached = here[row].multiply(self.facts.ends[:, [c]].T).tocoo()
                nodes = [int(n) for n in reached.col if self.facts.way is not None or n != start]
                kept = (types != predicted_relation) | (edges[int(inverse)] != start)
                walks = Instances(sort, words, edges[:, kept], types[kept], self.N)
                found[start] = tuple(walks.between(start, nodes[0], 1)[0])
            if len(found) == EXAMPLES:
                break
        return tuple(found.values())


def _sort(ways: tuple[Way, ...], words: Vocabulary) -> Sort:
    return parse(".".join("^" * inverse + quoted(words.shown(relation)) for relation, inverse in ways), words)


class _Fit:
    """The squares of the facts that are not explained yet."""

    def __init__(self, facts: _Facts) -> None:
        self.axes: list[np.ndarray] = []  # orthonormal: of the prior, and of the sorts that were chosen
        self.rest = facts.y.toarray().ravel()
        self.rounding = np.finfo(float).eps * float(self.rest @ self.rest)
        self.add(facts.prior.ravel())
        self.squares = float(self.rest @ self.rest)

    def gain(self, predicted: csr_matrix) -> float:
        """The squares that a (S, C) matrix would explain; 0 where it points away from the rest."""
        S, C = predicted.shape
        at, values = np.repeat(np.arange(S) * C, np.diff(predicted.indptr)) + predicted.indices, predicted.data
        squares = values @ values
        own = squares - sum((values @ axis[at]) ** 2 for axis in self.axes)
        towards = values @ self.rest[at]
        return float(towards**2 / own) if towards > 0 and own > ALIKE * squares else 0.0

    def add(self, direction: np.ndarray) -> None:
        for axis in self.axes:
            direction = direction - (axis @ direction) * axis
        if size := float(np.sqrt(direction @ direction)):
            self.axes.append(direction / size)
            self.rest = self.rest - (self.axes[-1] @ self.rest) * self.axes[-1]
            if self.rest @ self.rest <= self.rounding:
                self.rest = np.zeros_like(self.rest)


def _best(search: _Search, found: Iterator[tuple[tuple[Way, ...], csr_matrix]]) -> tuple[list[Any], int]:
    """The sequences that explain most by themselves, of equal ones the first; and how many were looked at."""
    fit, best, at = _Fit(search.facts), list[Any](), -1
    for at, (ways, predicted) in enumerate(found):
        gain = fit.gain(predicted)
        if gain > 0:
            (heappush if len(best) < POOL else heappushpop)(best, (gain, -at, ways, predicted))
    return [(ways, predicted) for *_, ways, predicted in sorted(best, reverse=True)], at + 1


def _chosen(
    facts: _Facts, pool: list[Any], most: int, least: float
) -> Iterator[tuple[tuple[Way, ...], csr_matrix, float]]:
    """The sequences that explain most beyond those before them, with the shares."""
    fit = _Fit(facts)
    for _ in range(most):
        gains = [fit.gain(predicted) for _, predicted in pool]
        gain, (ways, predicted) = max(gains), pool[int(np.argmax(gains))]
        if not fit.squares or gain <= 0 or gain / fit.squares < least:
            return
        yield ways, predicted, gain / fit.squares
        fit.add(predicted.toarray().ravel())
