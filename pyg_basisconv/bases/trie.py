"""Products of sparse matrices with common prefixes, which are applied once, and only to the rows that they reach."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from ..basis import Work
from ..bound import Change, Explicit
from ..cache import cached_property
from ..edge_set import EdgeSet, gather
from ..kernels.pattern import index_dtype
from ..typed_edges import TypedEdges

Key = tuple[Hashable, bool]  # the name of a factor, and whether it is transposed
Path = tuple[Key, ...]
_T = TypeVar("_T")


class Factor(NamedTuple):
    """A sparse square matrix. source, target: (E,); weight: (E,), or None for ones."""

    source: Tensor
    target: Tensor
    weight: Tensor | None = None

    @property
    def T(self) -> "Factor":
        """The same transposed."""
        return Factor(self.target, self.source, self.weight)


class ChainEnd(NamedTuple):
    """The end of a member's chain, and the rows that it reaches, None for all."""

    member: int
    rows: Tensor | None


class Restricted(NamedTuple):
    """A factor, restricted to the rows that are reached before it.

    matrix: from these to the rows that it reaches; T: its transpose; rows: (n,) the rows that it reaches; starts: for
    first factors, the rows from which it has edges.
    """

    matrix: Explicit
    T: Explicit
    rows: Tensor
    starts: Tensor | None = None

    @property
    def entries(self) -> int:
        """The number of entries of the matrix."""
        return self.matrix.edge_set.source.numel()

    def map(self, change: Change, device: torch.device) -> "Restricted":
        """The same with other matrices."""
        starts = None if self.starts is None else self.starts.to(device)
        return Restricted(change(self.matrix), change(self.T), self.rows.to(device), starts)


@dataclass(eq=False)
class Node:
    """A product of factors. parent: the node of all but the last; part: the last; member: one whose chain leads here;
    members: whose chains end here; children: the number of child nodes.
    """

    parent: int
    part: Restricted
    member: int
    members: list[int] = field(default_factory=list)
    children: int = 0


class Trie:
    """The chains of factors of each member, whose products are summed, merged by their common prefixes.

    A factor with only one successor is multiplied with it if their product has at most as many walks, which is an inner
    product to count, as the two have entries, and no more than `merge`, which is 0 if weights learn.
    """

    def __init__(
        self,
        chains: Sequence[Sequence[Path]],
        factor: Callable[[Key], Factor],
        M: int,
        dtype: torch.dtype,
        device: torch.device,
        merge: float,
    ) -> None:
        self.M, self.dtype, self.device = M, dtype, device
        factor, parts = cache(factor), dict[tuple[Key, int], Restricted]()
        nodes, places = list[Node](), dict[tuple[int, Key], int]()  # nodes are numbered from 1 on, the root is 0
        self.ending_at_root: list[int] = []
        for member, chain in ((member, chain) for member, several in enumerate(chains) for chain in several):
            at, rows, ends = 0, None, self.ending_at_root
            for key in chain:
                if (at, key) not in places:
                    nodes.append(Node(at, self._restrict_cached(key, rows, factor, parts), member))
                    places[at, key] = len(nodes)
                at = places[at, key]
                rows, ends = nodes[at - 1].part.rows, nodes[at - 1].members
                if not rows.numel():
                    break
            else:
                ends.append(member)
        self.nodes = _arranged(nodes, merge)
        starts = [node.part.starts for node in self.nodes if node.part.starts is not None]
        self.counts = [start.numel() for start in starts]
        self.root_gather: Explicit | None = None
        if starts:
            rows = torch.cat(starts)
            places_of_rows = torch.arange(rows.numel(), device=rows.device)
            self.root_gather = TypedEdges(EdgeSet(1, M, rows.numel(), None, rows, places_of_rows), None, dtype)

    def _restrict_cached(
        self,
        key: Key,
        rows: Tensor | None,
        factor: Callable[[Key], Factor],
        parts: dict[tuple[Key, int], Restricted],
    ) -> Restricted:
        """The restriction of a factor to some rows; cached, as in long chains these are soon the same."""
        place = key, id(rows)
        if place not in parts:
            part = self._restrict(factor(key), rows)
            known = (one.rows for (other, _), one in parts.items() if other == key)
            alike = next((one for one in known if torch.equal(one, part.rows)), part.rows)
            parts[place] = part._replace(rows=alike)
        return parts[place]

    def _restrict(self, factor: Factor, rows: Tensor | None) -> Restricted:
        """The restriction of a factor to some rows, None for those from which it has edges."""
        source, target, weight = factor
        M = self.M
        if rows is not None:
            place = torch.full((self.M,), -1, dtype=torch.int32, device=rows.device)
            place[rows] = torch.arange(rows.numel(), dtype=torch.int32, device=rows.device)
            source, M = place.index_select(0, source), rows.numel()
            some = (source >= 0).nonzero().squeeze(1)
            source, target = source.index_select(0, some), target.index_select(0, some)
            weight, starts = None if weight is None else gather(weight, some), None
        else:
            starts, source = torch.unique(source, return_inverse=True)
            M, starts = starts.numel(), starts.long()
        rows, target = torch.unique(target, return_inverse=True)
        return _part(source, target, weight, M, rows.long(), starts, self.dtype)

    @cached_property
    def work(self) -> Work:
        """The cost of `forward`."""
        return self._work(sum(n.part.rows.numel() for n in self.nodes))

    @cached_property
    def work_back(self) -> Work:
        """The cost of `adjoint`."""
        return self._work(sum(n.part.matrix.M for n in self.nodes) + self.M)

    def _work(self, rows: int) -> Work:
        gathered = 2 * sum(self.counts)  # rows read and written at the root
        return Work(sum(n.part.entries for n in self.nodes), rows + gathered, len(self.nodes) + 1)

    @cached_property
    def work_each(self) -> Work:
        """The cost of `each_path`."""
        total, along = Work(), [Work()]  # along: of the way from the root to each node
        for node in self.nodes:
            along.append(along[node.parent].plus(Work(node.part.entries, node.part.rows.numel(), 1)))
            total = total.plus(along[-1].times(len(node.members)))
        return total

    @cached_property
    def num_ends(self) -> int:
        """The number of chains."""
        return sum(len(n.members) for n in self.nodes) + len(self.ending_at_root)

    def widen(self, x: Tensor) -> Tensor:
        """Converts x to the dtype of the computation."""
        return x.to(torch.promote_types(x.dtype, self.dtype))

    @cached_property
    def reached(self) -> int:
        """The total number of rows at the ends of all chains."""
        return sum(len(n.members) * n.part.rows.numel() for n in self.nodes) + len(self.ending_at_root) * self.M

    def forward(self, x: Tensor) -> Iterator[tuple[ChainEnd, Tensor]]:
        """For each chain, the transposed product times x: (*, M, W) -> (*, n, W) on the rows that it reaches."""
        for member in self.ending_at_root:
            yield ChainEnd(member, None), x
        # The rows from which first factors start, gathered in one operation.
        first = [] if self.root_gather is None else self.root_gather.combine([x]).split(self.counts, -2)
        for node, value in self._through(first, lambda before, node: node.part.matrix.combine([before])):
            for member in node.members:
                yield ChainEnd(member, node.part.rows), value

    def _through(self, first: Iterable[_T], times: Callable[[_T, Node], _T]) -> Iterator[tuple[Node, _T]]:
        """Each node with what is made, by the factors on the way to it, of the value that its first factor reads."""
        held, starts = dict[int, tuple[_T, int]](), iter(first)
        for index, node in enumerate(self.nodes, 1):
            if node.parent:
                before, left = held.pop(node.parent)
                if left > 1:
                    held[node.parent] = before, left - 1
            else:
                before = next(starts)
            value = times(before, node)
            if node.children:
                held[index] = value, node.children
            yield node, value

    def adjoint(self, value: Callable[[ChainEnd], Tensor | None]) -> Tensor | None:
        """The sum over all chains of the product times value(end): (*, n, W) each -> (*, M, W)."""
        totals: dict[int, Tensor] = {}
        entered: list[Tensor | None] = []

        def add(index: int, term: Tensor | None) -> None:
            if term is not None:
                totals[index] = totals[index] + term if index in totals else term

        for index in range(len(self.nodes), 0, -1):
            node = self.nodes[index - 1]
            for member in node.members:
                add(index, value(ChainEnd(member, node.part.rows)))
            back = node.part.T.combine([totals.pop(index)]) if index in totals else None
            if node.parent:
                add(node.parent, back)
            else:
                entered.append(back)
        like = next((back for back in entered if back is not None), None)
        if self.root_gather is not None and like is not None:
            parts = [
                like.new_zeros(*like.shape[:-2], count, like.shape[-1]) if back is None else back
                for back, count in zip(reversed(entered), self.counts, strict=True)
            ]
            add(0, self.root_gather.T.combine([torch.cat(parts, -2)]))
        for member in self.ending_at_root:
            add(0, value(ChainEnd(member, None)))
        return totals.get(0)

    def each_path(self, x: Callable[[int], Tensor]) -> Iterator[tuple[ChainEnd, Tensor]]:
        """`forward` with an x for each member."""
        for member in self.ending_at_root:
            yield ChainEnd(member, None), x(member)
        for node in self.nodes:
            path = [node]
            while path[-1].parent:
                path.append(self.nodes[path[-1].parent - 1])
            for member in node.members:
                assert path[-1].part.starts is not None  # the first factor
                value = x(member).index_select(-2, path[-1].part.starts)
                for step in reversed(path):
                    value = step.part.matrix.combine([value])
                yield ChainEnd(member, node.part.rows), value

    def products(self, check: Callable[[int, float], None]) -> Iterator[tuple[int, Tensor]]:
        """For each chain, its member and the product as a sparse (M, M) matrix. `check` is called with a member and the
        most entries that its product may have, before it is built.
        """

        def times(before: Tensor, node: Node) -> Tensor:
            matrix = _coo(node.part.matrix)
            if node.parent:
                check(node.member, _max_entries(before, matrix))
                return torch.sparse.mm(before, matrix).coalesce()
            start, column = matrix.indices()  # of the rows `before`
            places = torch.stack([before.index_select(0, start), column])
            return _sparse(places, matrix.values(), (self.M, matrix.shape[1])).coalesce()

        for member in self.ending_at_root:
            places = torch.arange(self.M, device=self.device).expand(2, -1)
            yield member, _sparse(places, torch.ones_like(places[0], dtype=self.dtype), (self.M, self.M))
        first = (node.part.starts for node in self.nodes if node.part.starts is not None)
        for node, product in self._through(first, times):
            for member in node.members:
                (source, target), values = product.indices(), product.values()
                places = torch.stack([source, node.part.rows.index_select(0, target)])
                yield member, _sparse(places, values, (self.M, self.M))

    def map(self, change: Change, device: torch.device) -> "Trie":
        """The same with other matrices."""
        trie = copy(self)
        trie.device = device
        parts = {id(node.part): node.part for node in self.nodes}
        mapped = {name: part.map(change, device) for name, part in parts.items()}
        trie.nodes = [replace(node, part=mapped[id(node.part)]) for node in self.nodes]
        trie.root_gather = None if self.root_gather is None else change(self.root_gather)
        return trie


def _arranged(nodes: list[Node], merge: float) -> list[Node]:
    """Depth first, without those below which no chain ends, and with factors that are better multiplied merged."""
    children: list[list[int]] = [[] for _ in range(len(nodes) + 1)]  # the last first
    for index, node in reversed([*enumerate(nodes, 1)]):
        if node.members or children[index]:
            children[node.parent].append(index)
    found: list[Node] = []
    stack = [(index, 0) for index in children[0]]
    while stack:
        index, parent = stack.pop()
        node, before = nodes[index - 1], found[parent - 1] if parent else None
        alone = before is not None and before.children == 1 and not before.members
        if before is not None and alone and _pays(before.part, node.part, merge):
            before.part, before.members = _merged(before.part, node.part), node.members
        else:
            before = Node(parent, node.part, node.member, node.members)
            found.append(before)
            parent = len(found)
        before.children = len(children[index])
        stack += [(child, parent) for child in children[index]]
    return found


def _coo(matrix: Explicit) -> Tensor:
    """(M, N), sparse."""
    _, source, target, weight = matrix.edges()
    places = torch.stack([source.long(), target.long()])
    return _sparse(places, weight, (matrix.M, matrix.N)).coalesce()


def _sparse(places: Tensor, values: Tensor, size: tuple[int, int]) -> Tensor:
    return torch.sparse_coo_tensor(places, values, size, device=values.device)


def _max_entries(first: Tensor, second: Tensor) -> float:
    """The most entries of the product of two sparse matrices: its walks, or its nonempty rows times columns."""
    (row, middle), (start, column) = first.indices(), second.indices()
    out = torch.bincount(start, minlength=first.shape[1])
    return min(float(out[middle].sum()), float(row.unique().numel()) * float(column.unique().numel()))


def _pays(first: Restricted, second: Restricted, most: float) -> bool:
    """Whether the walks along an edge of the first and an edge of the second, of which there are at least as many as
    entries of the product, are at most the entries of the two.
    """
    a, b = first.matrix.edge_set, second.matrix.edge_set
    walks = float(torch.bincount(b.source, minlength=a.N)[a.target].sum())
    return walks <= min(most, first.entries + second.entries)


def _merged(first: Restricted, second: Restricted) -> Restricted:
    """The product of two factors as one."""
    product = torch.sparse.mm(_coo(first.matrix), _coo(second.matrix)).coalesce()
    (source, target), values = product.indices(), product.values().clone()  # a view would keep the product alive
    return _part(source, target, values, first.matrix.M, second.rows, first.starts, first.matrix.dtype)


def _part(
    source: Tensor,
    target: Tensor,
    weight: Tensor | None,
    M: int,
    rows: Tensor,
    starts: Tensor | None,
    dtype: torch.dtype,
) -> Restricted:
    """The restricted factor with these entries, from M rows to `rows`."""
    narrow = index_dtype(M, rows.numel())
    ends = source.to(narrow, copy=True), target.to(narrow, copy=True)
    matrix = TypedEdges(EdgeSet(1, M, rows.numel(), None, *ends), weight, dtype)
    return Restricted(matrix, matrix.T, rows, starts)
