"""Products of sparse matrices that begin alike: what they share is applied once, on the rows that it reaches."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from copy import copy
from typing import NamedTuple

import torch
from torch import Tensor

from ..basis import Work
from ..explicit import EdgeSet, Explicit, TypedEdges
from ..kernels import Pattern, spmm

Key = tuple[Hashable, bool]  # which factor, and whether it is turned round
Chain = tuple[Key, ...]
Change = Callable[[Explicit], Explicit]


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


class Node:
    """A product of factors. parent: the node of all of them but the last; matrix: the last, from the rows that the
    parent reaches to those that this reaches; rows: which these are, (n,); starts: behind the root, from which of all
    rows the matrix goes; members: those of which a chain ends here.
    """

    def __init__(
        self, parent: int, matrix: Explicit, rows: Tensor, starts: Tensor | None = None, members: Sequence[int] = ()
    ) -> None:
        self.parent, self.matrix, self.rows, self.starts = parent, matrix, rows, starts
        self.members = list(members)
        self.T = matrix.T
        self.children = 0

    @property
    def entries(self) -> int:
        """How many places of the matrix there are."""
        return self.matrix.edge_set.source.numel()

    def map(self, change: Change, device: torch.device) -> "Node":
        """The same with another matrix."""
        starts = None if self.starts is None else self.starts.to(device)
        node = Node(self.parent, change(self.matrix), self.rows.to(device), starts, self.members)
        node.children = self.children
        return node


class Trie:
    """Chains of factors, where those that begin alike have one path.

    A factor with one successor only is multiplied with it where their product has no more walks, in a count that costs
    one inner product, than the two have entries.

    Args:
        chains: the chains of each member, whose products are summed.
        factor: what a key stands for.
        M: how many rows there are.
        dtype: of the matrices.
        merge: whether products may be written out: not where weights learn.
    """

    def __init__(
        self,
        chains: Sequence[Sequence[Chain]],
        factor: Callable[[Key], Factor],
        M: int,
        dtype: torch.dtype,
        merge: bool = True,
    ) -> None:
        self.M, self.dtype = M, dtype
        self.nodes: list[Node] = []  # parents before children, and what ends below a node before its next sibling
        self.at_root: list[int] = []
        # Parents are numbered from 1 on, the root is 0.
        todo: list[tuple[int, list[tuple[int, Chain]]]] = []
        self._branch(0, [(member, chain) for member, several in enumerate(chains) for chain in several], todo)
        while todo:
            parent, group = todo.pop()
            alone = parent > 0 and self.nodes[parent - 1].children == 1 and not self.nodes[parent - 1].members
            node = self._follow(parent, factor(group[0][1][0]))
            before = self.nodes[parent - 1] if alone and merge else None
            if before is not None and _walks(before, node) <= before.entries + node.entries:
                self.nodes[parent - 1] = _merged(before, node)
                index = parent
            else:
                self.nodes.append(node)
                index = len(self.nodes)
            if node.rows.numel():
                self._branch(index, [(member, chain[1:]) for member, chain in group], todo)
        self._prune()
        starts = [node.starts for node in self.nodes if node.starts is not None]
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

    def _branch(
        self, index: int, group: list[tuple[int, Chain]], todo: list[tuple[int, list[tuple[int, Chain]]]]
    ) -> None:
        """What goes on from a node, by the next key; what ends stays with it."""
        branches: dict[Key, list[tuple[int, Chain]]] = {}
        ends = self.nodes[index - 1].members if index else self.at_root
        for member, chain in group:
            if chain:
                branches.setdefault(chain[0], []).append((member, chain))
            else:
                ends.append(member)
        if index:
            self.nodes[index - 1].children = len(branches)
        todo += [(index, branch) for branch in reversed(branches.values())]

    def _follow(self, parent: int, factor: Factor) -> Node:
        """One factor more, from the rows that are reached."""
        source, target, weight = factor
        M = self.M
        if parent:
            rows = self.nodes[parent - 1].rows
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
        edges = EdgeSet(1, M, rows.numel(), None, source, target)
        return Node(parent, TypedEdges(edges, weight, self.dtype), rows.long(), starts)

    @property
    def work(self) -> Work:
        """What it costs to go through it."""
        rows = sum(n.rows.numel() for n in self.nodes)
        return Work(sum(n.entries for n in self.nodes), rows + 2 * sum(self.counts), len(self.nodes) + 1)

    @property
    def work_back(self) -> Work:
        """What it costs to come back from its ends."""
        rows = sum(n.matrix.M for n in self.nodes)
        return Work(sum(n.entries for n in self.nodes), rows + 2 * sum(self.counts) + self.M, len(self.nodes) + 1)

    @property
    def work_apart(self) -> Work:
        """What it costs where each chain is gone through by itself."""
        total = Work()
        for node in self.nodes:
            for step in self._path(node) if node.members else []:
                total = total.plus(Work(step.entries, step.rows.numel(), 1).times(len(node.members)))
        return total

    def _path(self, node: Node) -> list[Node]:
        """The nodes from the root to one."""
        path = [node]
        while path[-1].parent:
            path.append(self.nodes[path[-1].parent - 1])
        return path[::-1]

    @property
    def leaves(self) -> int:
        """How many ends of chains there are."""
        return sum(len(n.members) for n in self.nodes) + len(self.at_root)

    def widen(self, x: Tensor) -> Tensor:
        """X in the dtype in which it is computed."""
        return x.to(torch.promote_types(x.dtype, self.dtype))

    @property
    def reached(self) -> int:
        """How many rows the ends of all chains have."""
        return sum(len(n.members) * n.rows.numel() for n in self.nodes) + len(self.at_root) * self.M

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
            value = node.matrix.combine([before])
            if node.children:
                held[index] = value, node.children
            for member in node.members:
                yield Leaf(member, node.rows), value

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
                add(index, value(Leaf(member, node.rows)))
            back = node.T.combine([totals.pop(index)]) if index in totals else None
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
                assert path[0].starts is not None  # it is behind the root
                value = x(member).index_select(-2, path[0].starts)
                for step in path:
                    value = step.matrix.combine([value])
                yield Leaf(member, node.rows), value

    def products(self, check: Callable[[int, float], None]) -> Iterator[tuple[int, Tensor]]:
        """For each chain of a member, the product, written out: (M, M), sparse.

        Args:
            check: is told of a member and how many entries its product may have, before they are made.
        """
        eye = torch.arange(self.M)
        for member in self.at_root:
            device = self.nodes[0].rows.device if self.nodes else torch.device("cpu")
            places = eye.to(device).expand(2, -1)
            yield member, torch.sparse_coo_tensor(places, torch.ones_like(places[0], dtype=self.dtype), [self.M] * 2)
        held: dict[int, tuple[Tensor, int]] = {}
        for index, node in enumerate(self.nodes, 1):
            product = _coo(node.matrix)
            if node.starts is not None:
                start, column = product.indices()
                places = torch.stack([node.starts.index_select(0, start), column])
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
                places = torch.stack([source, node.rows.index_select(0, target)])
                yield member, torch.sparse_coo_tensor(places, values, (self.M, self.M))

    def _some_member(self, index: int) -> int:
        """A member of which a chain goes through a node: the first that ends behind it."""
        return next(member for node in self.nodes[index - 1 :] for member in node.members)

    def map(self, change: Change, device: torch.device) -> "Trie":
        """The same with other matrices."""
        trie = copy(self)
        trie.nodes = [node.map(change, device) for node in self.nodes]
        trie.entrance = None if self.entrance is None else change(self.entrance)
        return trie


def gather(values: Tensor, index: Tensor) -> Tensor:
    """(V,) -> (n,) the values at some places; as a sparse product where its gradient is summed, in a fixed order."""
    if not values.requires_grad:
        return values.index_select(0, index)
    places = torch.arange(index.numel(), device=index.device)
    return spmm(values.unsqueeze(1), None, Pattern(index, places, values.numel(), index.numel())).squeeze(1)


def _coo(matrix: Explicit) -> Tensor:
    """(M, N), in float32 or float64."""
    (_, source, target, weight), dtype = matrix.edges(), matrix.dtype
    wide = dtype if dtype in (torch.float32, torch.float64) else torch.float32
    places = torch.stack([source.long(), target.long()])
    return torch.sparse_coo_tensor(places, weight.to(wide), (matrix.M, matrix.N)).coalesce()


def _bound(first: Tensor, second: Tensor) -> float:
    """How many entries the product of two sparse matrices has at most: its walks, or the places that it may reach."""
    (row, middle), (start, column) = first.indices(), second.indices()
    into = torch.bincount(middle, minlength=first.shape[1]).double()
    out = torch.bincount(start, minlength=first.shape[1]).double()
    return min(float(into @ out), float(row.unique().numel()) * float(column.unique().numel()))


def _walks(first: Node, second: Node) -> float:
    """How many pairs of an edge of the first and an edge of the second meet: the entries of their product at most."""
    a, b = first.matrix.edge_set, second.matrix.edge_set
    into = torch.bincount(a.target, minlength=a.N).double()
    return float(into @ torch.bincount(b.source, minlength=a.N).double())


def _merged(first: Node, second: Node) -> Node:
    """Both factors as one matrix."""
    product = torch.sparse.mm(_coo(first.matrix), _coo(second.matrix)).coalesce()
    source, target = product.indices()
    edges = EdgeSet(1, first.matrix.M, second.matrix.N, None, source, target)
    return Node(first.parent, TypedEdges(edges, product.values(), first.matrix.dtype), second.rows, first.starts)
