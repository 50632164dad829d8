"""`a + b`: the concatenation of families."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial, reduce
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor

from ..basis import Basis, BoundBasis, Compact, Compaction, Direction, EdgeList, End, Native, Work, check_bases
from ..bound import CONSTRUCTORS, Derived
from ..cache import cached_property, kept
from ..edge_set import EdgeSet
from ..errors import reject
from ..graph import Graph
from ..kernels import Matchings, NonzeroRows
from ..kernels.grids import Ints
from ..kernels.lists import List, lists_of
from ..orders.compacted import on_all_rows
from ..theta import Theta
from ..typed_edges import ListedEdges, TypedEdges, check_members, dense
from .composed import Composed


def _numbered(parts: Iterable[Any]) -> Iterator[tuple[Any, int]]:
    """Each part, with the number of its first member."""
    return zip(parts, accumulate((part.K for part in parts), initial=0), strict=False)


class BoundConcat(Derived):
    """The members of several families of the same M and N, in order."""

    def __init__(self, parts: Sequence[BoundBasis]) -> None:
        self.parts = tuple(parts)
        first = self.parts[0]
        self.M, self.N, self.dtype, self.device = first.M, first.N, first.dtype, first.device
        self.K = 0
        for part in self.parts:
            if part.M != self.M or part.N != self.N:
                reject("basis", f"matrices of {self.M} x {self.N}", f"{part.M} x {part.N}", "add families of one size")
            self.K += part.K
            self.source_grid = part.source_grid if self.source_grid is None else self.source_grid
            self.target_grid = part.target_grid if self.target_grid is None else self.target_grid
            self.batch = part.batch if len(part.batch) > len(self.batch) else self.batch

    def _split(self, z: Tensor | Sequence[Tensor | None]) -> Iterator[tuple[BoundBasis, Any]]:
        z = check_members(z, self.K)
        if isinstance(z, Tensor):
            return zip(self.parts, z.split([part.K for part in self.parts]), strict=True)
        return ((part, z[start : start + part.K]) for part, start in _numbered(self.parts))

    def iterate(self, x: Tensor) -> Iterator[Tensor]:
        return chain.from_iterable(part.iterate(x) for part in self.parts)

    def combine(self, z: Tensor | Sequence[Tensor | None]) -> Tensor:
        sums = (
            part.combine(z_part)
            for part, z_part in self._split(z)
            if isinstance(z_part, Tensor) or any(z_k is not None for z_k in z_part)
        )
        return reduce(torch.add, sums)

    def each(self, z: Tensor) -> Tensor:
        return torch.cat([part.each(dense(z_part)) for part, z_part in self._split(z)])

    @kept
    def takes_rows(self) -> bool:
        return all(part.takes_rows for part in self.parts)

    def expand_rows(self, x: Tensor) -> Tensor:
        if self.typed is not None:
            return self.typed.expand_rows(x)
        return torch.cat([part.expand_rows(x) for part in self.parts], 1)

    def combine_rows(self, z: Tensor) -> Tensor:
        if self.typed is not None:
            return self.typed.combine_rows(z)
        width = z.shape[1] // self.K
        blocks = z.split([part.K * width for part in self.parts], 1)
        first, *others = (part.combine_rows(b.contiguous()) for part, b in zip(self.parts, blocks, strict=True))
        return sum(others, first)

    @kept
    def adjoint(self) -> BoundBasis:
        return self.remake([part.adjoint for part in self.parts]) if self.typed is None else self.typed.adjoint

    @property
    def total(self) -> BoundBasis | None:
        return super().total if self.typed is None else self.typed.total

    @property
    def nonzero_rows(self) -> NonzeroRows | None:
        return None if self.typed is None else self.typed.nonzero_rows

    @kept
    def typed(self) -> TypedEdges | None:
        starts, lists = [start for _, start in _numbered(self.parts)], [part.lists for part in self.parts]
        if all(lists) and lists_of(self.dtype, self.K * max(self.M, self.N)):
            entries = [e.from_member(start) for some, start in zip(lists, starts, strict=True) for e in some]
            return ListedEdges(self.K, self.M, self.N, entries, self.dtype)
        typed = [family for part in self.parts if (family := part.typed) is not None]
        if len(typed) < len(self.parts):
            return None
        sets = [part.edge_set for part in typed]
        kinds = [e.kinds.int() + start for e, start in zip(sets, starts, strict=True)]
        weight = None
        if any(part.weight is not None for part in typed):
            one = torch.ones(1, dtype=self.dtype, device=self.device)
            weight = torch.cat([one.expand(part.E) if part.weight is None else part.weight for part in typed])
        source, target = torch.cat([e.source for e in sets]), torch.cat([e.target for e in sets])
        return TypedEdges(EdgeSet(self.K, self.M, self.N, torch.cat(kinds), source, target), weight, self.dtype)

    def __getitem__(self, index: int | Ints) -> "BoundConcat":
        """One graph of a batch."""
        return BoundConcat([part[index] if part.batch else part for part in self.parts])  # type: ignore[index]

    def edges(self) -> EdgeList:
        lists = []
        for part, start in _numbered(self.parts):
            kind, source, target, weight = part.edges()
            lists.append((kind.long() + start, source.long(), target.long(), weight))
        return EdgeList(*(torch.cat(column) for column in zip(*lists, strict=True)))

    def remake(self, parts: Sequence[BoundBasis]) -> "BoundConcat":
        return BoundConcat(parts)

    def work(self, direction: Direction) -> Work:
        return reduce(Work.plus, (part.work(direction) for part in self.parts))

    @property
    def alpha(self) -> Tensor | None:
        found = [alpha for part in self.parts if (alpha := part.alpha) is not None]
        rows = min((len(alpha) for alpha in found), default=0)
        return torch.cat([alpha[:rows] for alpha in found], 1) if found else None

    @property
    def native_family(self) -> BoundBasis | None:
        fast = [part.native_family for part in self.parts]
        if not any(fast):
            return None
        return BoundConcat([part if quick is None else quick for part, quick in zip(self.parts, fast, strict=True)])

    @kept
    def matchings(self) -> Matchings | None:
        parts = [part.matchings for part in self.parts]
        first = parts[0]
        if first is None or any(part is None or (part.M, part.N) != (first.M, first.N) for part in parts):
            return None
        return Matchings([run for part in parts if part is not None for run in part.pairs], first.M, first.N)

    def compact(self, side: End) -> Compact | None:
        tiled = super().compact(side)
        if tiled is not None:
            return tiled
        parts = [part.compact(side) for part in self.parts]
        if not any(parts):
            return None
        found = [part or on_all_rows(whole, side) for part, whole in zip(parts, self.parts, strict=True)]
        adding = next((part for part in found if part.adds_bias), None)  # the bias is added once

        def run(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
            blocks = weight.split([part.K for part in self.parts])
            given = [
                (x, theirs) if bias is None or part is not adding else (x, theirs, bias)
                for part, theirs in zip(found, blocks, strict=True)
            ]
            return reduce(torch.add, (part.run(*own) for part, own in zip(found, given, strict=True)))

        sizes = [part.sizes for part in found]
        gather = reduce(Work.plus, (one.gather for one in sizes))
        scatter = reduce(Work.plus, (one.scatter for one in sizes))
        rows, products, launches = map(
            sum, zip(*((one.rows, one.products, one.launches) for one in sizes), strict=True)
        )
        return Compact(run, Compaction(side, gather, rows, scatter, products, launches), adding is not None)

    @property
    def mixing(self) -> Work | None:
        lists = [part.typed for part in self.parts if part.typed is not None]
        if len(lists) < len(self.parts) or not any(part.mixing for part in lists):
            return None
        return Work(sum(part.E for part in lists), self.N, 1)

    @cached_property
    def stencil(self) -> Any:
        one = next((part.stencil for part in self.parts if part.stencil is not None), None)
        if one is None:
            return None
        found = [part.offsets_in(one) for part in self.parts]
        offsets = [offset for part in found if part is not None for offset in part]
        return None if None in found else one.with_offsets(offsets)

    def native(self, theta: Theta, width: int) -> Native | None:
        one = self.stencil
        return super().native(theta, width) if one is None else one.native(theta, width)

    @property
    def native_cost(self) -> tuple[int, int, int]:
        operations, numbers, kernels = zip(*(part.native_cost for part in self.parts), strict=True)
        return sum(operations), sum(numbers), sum(kernels)


class ListedConcat(BoundConcat):
    """The concatenation of families whose edges are numpy lists; its parts are bound on first use only."""

    takes_rows = True
    typed: ListedEdges

    def __init__(self, basis: "Concat", graph: Graph, lists: Sequence[List]) -> None:
        self.K, self.M, self.N, self.dtype, self.device = basis.K, graph.M, graph.N, graph.dtype, graph.device
        self.typed = ListedEdges(self.K, self.M, self.N, lists, self.dtype)
        self._bind = partial(basis.bind_parts, graph.bare)

    @kept
    def parts(self) -> Sequence[BoundBasis]:
        return tuple(self._bind())

    @cached_property
    def adjoint(self) -> BoundBasis:
        return self.typed.adjoint

    def __reduce__(self) -> tuple[Any, ...]:
        return BoundConcat, (self.parts,)


class Concat(Composed):
    """`a + b`: the matrices of a, then those of b.

    Args:
        *parts: the families.

    >>> from pyg_basisconv import bases
    >>> bases.Identity() + bases.Laplacian('sym')
    Identity() + Laplacian(norm='sym')
    """

    precedence = 0

    def __init__(self, *parts: Basis) -> None:
        check_bases(*parts)
        flat: list[Any] = [p for part in parts for p in (part.parts if isinstance(part, Concat) else [part])]
        super().__init__(sum(part.K for part in flat), *flat)
        grids = [part.variance_gain for part in flat if part.axes is not None]
        self.variance_gain = sum(grids) if grids else max(part.variance_gain for part in flat)

    @property
    def variance_gains(self) -> Sequence[float]:
        if self.axes is not None:
            return super().variance_gains
        # For graphs, each part is initialised as if it were alone.
        return [gain for part in self._parts for gain in part.variance_gains]

    def build(self, graph: Graph) -> BoundBasis:
        content = graph.content
        if content is None:
            lists = self.listed(graph)
            return super().build(graph) if lists is None else ListedConcat(self, graph, lists)
        own = ((part, content.for_members(start, start + part.K)) for part, start in _numbered(self._parts))
        return BoundConcat([part.on(graph.holding(members)) for part, members in own])

    @property
    def letters(self) -> str | None:
        found = [part.letters for part in self._parts]
        return None if None in found else "".join(found)  # type: ignore[arg-type]

    def listed(self, graph: Graph) -> Sequence[List] | None:
        found: list[List] = []
        for part, start in _numbered(self._parts):
            lists = part.listed(graph)
            if lists is None:
                return None
            found += [edges.from_member(start) for edges in lists]
        return found if lists_of(graph.dtype, self.K * max(graph.M, graph.N)) else None

    def join(self, bound: list[BoundBasis]) -> BoundBasis:
        return BoundConcat(bound)

    def __repr__(self) -> str:
        return " + ".join(repr(part) for part in self.parts)


CONSTRUCTORS["+"] = Concat
