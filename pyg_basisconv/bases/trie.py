"""Products of sparse matrices that begin alike: what they share is applied once, on the rows that it reaches."""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from copy import copy
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..basis import Work
from ..bound import Change, Explicit, TypedEdges
from ..cache import cached_property
from ..edge_set import EdgeSet
from ..graph import gather
from ..kernels.pattern import index_dtype

Key = tuple[Hashable, bool]  # which factor, and whether it is turned round
Path = tuple[Key, ...]
_Branch = tuple[int, int, list[tuple[int, Path]]]  # a node, its depth, and the chains that go on from it


class Factor(NamedTuple):
    """A sparse square matrix. source, target: (E,); weight: (E,), or None for ones."""

    source: Tensor
    target: Tensor
    weight: Tensor | None = None

    @property
    def T(self) -> "Factor":
        """The same transposed."""
        return Factor(self.target, self.source, self.weight)


class Leaf(NamedTuple):
    """The end of a chain of a member, and the rows that it reaches, None for all."""

    member: int
    rows: Tensor | None


class Restricted(NamedTuple):
    """A factor on the rows that are reached before it.

    matrix: from these to those that it reaches; T: transposed; rows: (n,) which it reaches; starts: behind the root,
    from which of all rows it goes.
    """

    matrix: Explicit
    T: Explicit
    rows: Tensor
    starts: Tensor | None = None

    @property
    def entries(self) -> int:
        """How many places of the matrix there are."""
        return self.matrix.edge_set.source.numel()

    def map(self, change: Change, device: torch.device) -> "Restricted":
        """The same with other matrices."""
        starts = None if self.starts is None else self.starts.to(device)
        return Restricted(change(self.matrix), change(self.T), self.rows.to(device), starts)


class Node:
    """A product of factors. parent: the node of all of them but the last; part: the last; members: those of which a
    chain ends here; children: how many nodes go on from here.
    """

    def __init__(self, parent: int, part: Restricted) -> None:
        self.parent, self.part = parent, part
        self.members: list[int] = []
        self.children = 0


class Trie:
    """Chains of factors, where those that begin alike have one path.

    A factor with one successor only is multiplied with it where their product has no more walks, in a count that costs
    one inner product, than the two have entries.

    Args:
        chains: the chains of each member, whose products are summed.
        factor: what a key stands for.
        M: how many rows there are.
        dtype: of the matrices.
        device: of the matrices.
        merge: how many entries a product may have that is written out: none where weights learn.
    """

    def __init__(
        self,
        chains: Sequence[Sequence[Path]],
        factor: Callable[[Key], Factor],
        M: int,
        dtype: torch.dtype,
        device: torch.device,
        merge: float = math.inf,
    ) -> None:
        self.M, self.dtype, self.device = M, dtype, device
        factor, parts = cache(factor), dict[tuple[Key, int | None], Restricted]()
        self.nodes: list[Node] = []  # parents before children, and what ends below a node before its next sibling
        self.at_root: list[int] = []
        # Parents are numbered from 1 on, the root is 0.
        todo: list[_Branch] = []
        self._branch(0, 0, [(member, chain) for member, several in enumerate(chains) for chain in several], todo)
        while todo:
            parent, depth, group = todo.pop()
            before = self.nodes[parent - 1] if parent else None
            part = self._follow(group[0][1][depth], before, factor, parts)
            alone = before is not None and before.children == 1 and not before.members
            if (
                before is not None
                and alone
                and _walks(before.part, part) <= min(merge, before.part.entries + part.entries)
            ):
                before.part = _merged(before.part, part)
                index = parent
            else:
                self.nodes.append(Node(parent, part))
                index = len(self.nodes)
            if part.rows.numel():
                self._branch(index, depth + 1, group, todo)
        self._prune()
        starts = [node.part.starts for node in self.nodes if node.part.starts is not None]
        self.counts = [start.numel() for start in starts]
        self.entrance: Explicit | None = None
        if starts:
            rows = torch.cat(starts)
            places = torch.arange(rows.numel(), device=rows.device)
            self.entrance = TypedEdges(EdgeSet(1, M, rows.numel(), None, rows, places), None, dtype)

    def _prune(self) -> None:
        """Drops what leads nowhere: no rows are reached, or no chain ends there or behind."""
        alive = [bool(node.members) for node in self.nodes]
        for index in reversed(range(len(self.nodes))):
            if alive[index] and self.nodes[index].parent:
                alive[self.nodes[index].parent - 1] = True
        place = {0: 0} | {old: new for new, old in enumerate((i for i, one in enumerate(alive, 1) if one), 1)}
        self.nodes = [node for node, one in zip(self.nodes, alive, strict=True) if one]
        for node in self.nodes:
            node.parent, node.children = place[node.parent], 0
        for node in self.nodes:
            if node.parent:
                self.nodes[node.parent - 1].children += 1

    def _branch(self, index: int, depth: int, group: list[tuple[int, Path]], todo: "list[_Branch]") -> None:
        """What goes on from a node, by the next key; what ends stays with it."""
        branches: dict[Key, list[tuple[int, Path]]] = {}
        ends = self.nodes[index - 1].members if index else self.at_root
        for member, chain in group:
            if len(chain) > depth:
                branches.setdefault(chain[depth], []).append((member, chain))
            else:
                ends.append(member)
        if index:
            self.nodes[index - 1].children = len(branches)
        todo += [(index, depth, branch) for branch in reversed(branches.values())]

    def _follow(
        self,
        key: Key,
        before: Node | None,
        factor: Callable[[Key], Factor],
        parts: dict[tuple[Key, int | None], Restricted],
    ) -> Restricted:
        """One factor more. From the same rows it is the same, and in long chains they soon are."""
        rows = None if before is None else before.part.rows
        place = key, None if rows is None else id(rows)
        if place not in parts:
            part = self._restricted(factor(key), rows)
            known = (one.rows for (other, _), one in parts.items() if other == key)
            alike = next((one for one in known if torch.equal(one, part.rows)), part.rows)
            parts[place] = part._replace(rows=alike)
        return parts[place]

    def _restricted(self, factor: Factor, rows: Tensor | None) -> Restricted:
        """A factor on some rows, and on those that it reaches from there."""
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
        """What it costs to go through it."""
        return self._work(sum(n.part.rows.numel() for n in self.nodes))

    @cached_property
    def work_back(self) -> Work:
        """What it costs to come back from its ends, and to add up where they start."""
        return self._work(sum(n.part.matrix.M for n in self.nodes) + self.M)

    def _work(self, rows: int) -> Work:
        gathered = 2 * sum(self.counts)  # at the entrance: read and written
        return Work(sum(n.part.entries for n in self.nodes), rows + gathered, len(self.nodes) + 1)

    @cached_property
    def work_apart(self) -> Work:
        """What it costs where each chain is gone through by itself."""
        total = Work()
        for node in self.nodes:
            for step in self._path(node) if node.members else []:
                total = total.plus(Work(step.part.entries, step.part.rows.numel(), 1).times(len(node.members)))
        return total

    def _path(self, node: Node) -> list[Node]:
        """The nodes from the root to one."""
        path = [node]
        while path[-1].parent:
            path.append(self.nodes[path[-1].parent - 1])
        return path[::-1]

    @cached_property
    def leaves(self) -> int:
        """How many ends of chains there are."""
        return sum(len(n.members) for n in self.nodes) + len(self.at_root)

    def widen(self, x: Tensor) -> Tensor:
        """X in the dtype in which it is computed."""
        return x.to(torch.promote_types(x.dtype, self.dtype))

    @cached_property
    def reached(self) -> int:
        """How many rows the ends of all chains have."""
        return sum(len(n.members) * n.part.rows.numel() for n in self.nodes) + len(self.at_root) * self.M

    def forward(self, x: Tensor) -> Iterator[tuple[Leaf, Tensor]]:
        """For each chain of a member, the product's transpose times x: (*, M, W) -> (*, n, W) on the rows reached."""
        for member in self.at_root:
            yield Leaf(member, None), x
        held: dict[int, tuple[Tensor, int]] = {}
        first = iter(self._enter(x))
        for index, node in enumerate(self.nodes, 1):
            if node.parent:
                before, left = held.pop(node.parent)
                if left > 1:
                    held[node.parent] = before, left - 1
            else:
                before = next(first)
            value = node.part.matrix.combine([before])
            if node.children:
                held[index] = value, node.children
            for member in node.members:
                yield Leaf(member, node.part.rows), value

    def _enter(self, x: Tensor) -> Sequence[Tensor]:
        """The rows from which the nodes behind the root start, gathered at once, as is their derivative."""
        return [] if self.entrance is None else self.entrance.combine([x]).split(self.counts, -2)

    def adjoint(self, value: Callable[[Leaf], Tensor | None]) -> Tensor | None:
        """The sum over all chains of the product times what a value gives it: (*, n, W) each -> (*, M, W)."""
        totals: dict[int, Tensor] = {}
        entered: list[Tensor | None] = []

        def add(index: int, term: Tensor | None) -> None:
            if term is not None:
                totals[index] = totals[index] + term if index in totals else term

        for index in range(len(self.nodes), 0, -1):
            node = self.nodes[index - 1]
            for member in node.members:
                add(index, value(Leaf(member, node.part.rows)))
            back = node.part.T.combine([totals.pop(index)]) if index in totals else None
            if node.parent:
                add(node.parent, back)
            else:
                entered.append(back)
        like = next((back for back in entered if back is not None), None)
        if self.entrance is not None and like is not None:
            parts = [
                like.new_zeros(*like.shape[:-2], count, like.shape[-1]) if back is None else back
                for back, count in zip(reversed(entered), self.counts, strict=True)
            ]
            add(0, self.entrance.T.combine([torch.cat(parts, -2)]))
        for member in self.at_root:
            add(0, value(Leaf(member, None)))
        return totals.get(0)

    def along(self, x: Callable[[int], Tensor]) -> Iterator[tuple[Leaf, Tensor]]:
        """As `forward`, where each member has an x of its own."""
        for member in self.at_root:
            yield Leaf(member, None), x(member)
        for node in self.nodes:
            for member in node.members:
                path = self._path(node)
                assert path[0].part.starts is not None  # it is behind the root
                value = x(member).index_select(-2, path[0].part.starts)
                for step in path:
                    value = step.part.matrix.combine([value])
                yield Leaf(member, node.part.rows), value

    def products(self, check: Callable[[int, float], None]) -> Iterator[tuple[int, Tensor]]:
        """For each chain of a member, the product, written out: (M, M), sparse.

        Args:
            check: is told of a member and how many entries its product may have, before they are made.
        """
        for member in self.at_root:
            places = torch.arange(self.M, device=self.device).expand(2, -1)
            yield member, torch.sparse_coo_tensor(places, torch.ones_like(places[0], dtype=self.dtype), [self.M] * 2)
        held: dict[int, tuple[Tensor, int]] = {}
        for index, node in enumerate(self.nodes, 1):
            product = _coo(node.part.matrix)
            if node.part.starts is not None:
                start, column = product.indices()
                places = torch.stack([node.part.starts.index_select(0, start), column])
                product = torch.sparse_coo_tensor(places, product.values(), (self.M, product.shape[1])).coalesce()
            else:
                before, left = held.pop(node.parent)
                if left > 1:
                    held[node.parent] = before, left - 1
                member = self._some_member(index)
                check(member, _bound(before, product))
                product = torch.sparse.mm(before, product).coalesce()
            if node.children:
                held[index] = product, node.children
            for member in node.members:
                (source, target), values = product.indices(), product.values()
                places = torch.stack([source, node.part.rows.index_select(0, target)])
                yield member, torch.sparse_coo_tensor(places, values, (self.M, self.M))

    def _some_member(self, index: int) -> int:
        """A member of which a chain goes through a node: the first that ends behind it."""
        return next(member for node in self.nodes[index - 1 :] for member in node.members)

    def map(self, change: Change, device: torch.device) -> "Trie":
        """The same with other matrices."""
        trie = copy(self)
        trie.device = device
        parts = {id(node.part): node.part for node in self.nodes}
        mapped = {name: part.map(change, device) for name, part in parts.items()}
        trie.nodes = [copy(node) for node in self.nodes]
        for node in trie.nodes:
            node.part = mapped[id(node.part)]
        trie.entrance = None if self.entrance is None else change(self.entrance)
        return trie


def _coo(matrix: Explicit) -> Tensor:
    """(M, N), sparse."""
    _, source, target, weight = matrix.edges()
    places = torch.stack([source.long(), target.long()])
    return torch.sparse_coo_tensor(places, weight, (matrix.M, matrix.N)).coalesce()


def _bound(first: Tensor, second: Tensor) -> float:
    """How many entries the product of two sparse matrices has at most: its walks, or the places that it may reach."""
    (row, middle), (start, column) = first.indices(), second.indices()
    into = torch.bincount(middle, minlength=first.shape[1]).double()
    out = torch.bincount(start, minlength=first.shape[1]).double()
    return min(float(into @ out), float(row.unique().numel()) * float(column.unique().numel()))


def _walks(first: Restricted, second: Restricted) -> float:
    """How many pairs of an edge of the first and an edge of the second meet: the entries of their product at most."""
    a, b = first.matrix.edge_set, second.matrix.edge_set
    into = torch.bincount(a.target, minlength=a.N).double()
    return float(into @ torch.bincount(b.source, minlength=a.N).double())


def _merged(first: Restricted, second: Restricted) -> Restricted:
    """Both factors as one matrix."""
    product = torch.sparse.mm(_coo(first.matrix), _coo(second.matrix)).coalesce()
    (source, target), values = product.indices(), product.values().clone()  # of its own, and not of a sparse tensor
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
    """A matrix from M rows to some."""
    narrow = index_dtype(M, rows.numel())
    ends = source.to(narrow, copy=True), target.to(narrow, copy=True)
    matrix = TypedEdges(EdgeSet(1, M, rows.numel(), None, *ends), weight, dtype)
    return Restricted(matrix, matrix.T, rows, starts)
