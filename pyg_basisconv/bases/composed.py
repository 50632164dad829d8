"""Families made of families: side by side, products, transposes, fixed mixtures."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain
from typing import Any, cast

import torch
from torch import Tensor

from ..basis import Basis, BoundBasis, Compact, Compaction, Direction, EdgeList, End, Native, Work
from ..bound import COMPOSITES, Explicit, ListedEdges, TypedEdges, counted, dense, members
from ..cache import cached_property, kept
from ..edge_set import EdgeSet
from ..errors import check_depth, reject
from ..graph import Graph
from ..kernels import Meetings
from ..kernels.lists import List, lists_of
from ..orders.compacted import on_all_rows
from ..portable import portable, refuse
from ..theta import Theta

Change = Callable[[Explicit], Explicit]


def one_list(parts: Sequence[BoundBasis]) -> TypedEdges | None:
    """Families of the same M and N, one after the other, as one list of edges; None where that costs too much."""
    first, K = parts[0], sum([part.K for part in parts])
    starts = [0, *accumulate([part.K for part in parts])]
    lists = [part.lists for part in parts]
    if all(lists) and lists_of(first.dtype, K * max(first.M, first.N)):
        entries = [e.from_member(start) for some, start in zip(lists, starts, strict=False) for e in some]
        return ListedEdges(K, first.M, first.N, entries, first.dtype)
    typed = [family for part in parts if (family := part.typed) is not None]
    if len(typed) < len(parts):
        return None
    sets = [part.edge_set for part in typed]
    kinds = [
        torch.full((e.source.numel(),), start, dtype=torch.int32, device=first.device)
        if e.K == 1
        else e.type.int() + start
        for e, start in zip(sets, starts, strict=False)
    ]
    weight = None
    if any(part.weight is not None for part in typed):
        one = torch.ones(1, dtype=first.dtype, device=first.device)
        weight = torch.cat([one.expand(part.E) if part.weight is None else part.weight for part in typed])
    source, target = torch.cat([e.source for e in sets]), torch.cat([e.target for e in sets])
    return TypedEdges(EdgeSet(K, first.M, first.N, torch.cat(kinds), source, target), weight, first.dtype)


class BoundConcat(BoundBasis):
    """Families of the same M and N, one after the other."""

    parts: Sequence[BoundBasis]

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

    def _split(
        self, z: Tensor | Sequence[Tensor | None]
    ) -> Iterator[tuple[BoundBasis, Tensor | Sequence[Tensor | None]]]:
        z, sizes = counted(z, self.K), [part.K for part in self.parts]
        if isinstance(z, Tensor):
            yield from zip(self.parts, z.split(sizes), strict=True)
            return
        start = 0
        for part in self.parts:
            yield part, z[start : start + part.K]
            start += part.K

    def iterate(self, x: Tensor) -> Iterator[Tensor]:
        return chain.from_iterable(part.iterate(x) for part in self.parts)

    def combine(self, z: Tensor | Sequence[Tensor | None]) -> Tensor:
        some = [
            part.combine(z_part)
            for part, z_part in self._split(z)
            if isinstance(z_part, Tensor) or any(z_k is not None for z_k in z_part)
        ]
        total = some[0]
        for y in some[1:]:
            total = total + y
        return total

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
        return BoundConcat([part.adjoint for part in self.parts]) if self.typed is None else self.typed.adjoint

    @property
    def total(self) -> BoundBasis | None:
        return super().total if self.typed is None else self.typed.total

    @kept
    def typed(self) -> TypedEdges | None:
        return one_list(self.parts)

    def __getitem__(self, index: int | tuple[int, ...]) -> "BoundConcat":
        """One graph of a batch."""
        return BoundConcat([part[index] if part.batch else part for part in self.parts])  # type: ignore[index]

    def edges(self) -> EdgeList:
        lists, start = [], 0
        for part in self.parts:
            kind, source, target, weight = part.edges()
            lists.append((kind.long() + start, source.long(), target.long(), weight))
            start += part.K
        return EdgeList(*(torch.cat(column) for column in zip(*lists, strict=True)))

    @property
    def requires_grad(self) -> bool:
        return any(part.requires_grad for part in self.parts)

    @property
    def T(self) -> "BoundConcat":
        return BoundConcat([part.T for part in self.parts])

    def work(self, direction: Direction) -> Work:
        first, *others = (part.work(direction) for part in self.parts)
        for other in others:
            first = first.plus(other)
        return first

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
    def meetings(self) -> Meetings | None:
        parts = [part.meetings for part in self.parts]
        first = parts[0]
        if first is None or any(part is None or (part.M, part.N) != (first.M, first.N) for part in parts):
            return None
        return Meetings([run for part in parts if part is not None for run in part.runs], first.M, first.N)

    def compact(self, side: End) -> Compact | None:
        tiled = super().compact(side)
        if tiled is not None:
            return tiled
        parts = [part.compact(side) for part in self.parts]
        if not any(parts):
            return None
        found = [part or on_all_rows(whole, side) for part, whole in zip(parts, self.parts, strict=True)]

        def run(x: Tensor, weight: Tensor) -> Tensor:
            blocks = weight.split([part.K for part in self.parts])
            total = found[0].run(x, blocks[0])
            for part, theirs in zip(found[1:], blocks[1:], strict=True):
                total = total + part.run(x, theirs)
            return total

        sizes = [part.sizes for part in found]
        enter, leave = Work(), Work()
        for one in sizes:
            enter, leave = enter.plus(one.enter), leave.plus(one.leave)
        rows, products = sum(one.rows for one in sizes), sum(one.products for one in sizes)
        return Compact(run, Compaction(side, enter, rows, leave, products))

    @property
    def mixing(self) -> Work | None:
        lists = [part.typed for part in self.parts if part.typed is not None]
        if len(lists) < len(self.parts) or not any(part.mixing for part in lists):
            return None
        return Work(sum(part.edge_set.source.numel() for part in lists), self.N, 1)

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
        found: Native | None = super().native(theta, width) if one is None else one.native(theta, width)
        return found

    @property
    def native_cost(self) -> tuple[int, int, int]:
        operations, numbers, kernels = zip(*(part.native_cost for part in self.parts), strict=True)
        return sum(operations), sum(numbers), sum(kernels)

    def map(self, change: Change) -> "BoundConcat":
        return BoundConcat([part.map(change) for part in self.parts])

    def moved(self, device: torch.device) -> "BoundConcat":
        return BoundConcat([part.moved(device) for part in self.parts])


class ListedConcat(BoundConcat):
    """The same of a graph on the CPU, where the edges of all are in lists, and these are all that is needed as a rule.

    Its parts are bound when they are first asked for.
    """

    takes_rows = True

    def __init__(self, basis: "Concat", graph: Graph, lists: Sequence[List]) -> None:
        self.K, self.M, self.N, self.dtype, self.device = basis.K, graph.M, graph.N, graph.dtype, graph.device
        self.typed = ListedEdges(self.K, self.M, self.N, lists, self.dtype)
        self._bind = partial(basis.bind_parts, graph.bare)

    @property
    def parts(self) -> Sequence[BoundBasis]:  # type: ignore[override]
        """The families."""
        return self._bound

    @kept
    def _bound(self) -> Sequence[BoundBasis]:
        return tuple(self._bind())

    def __reduce__(self) -> tuple[Any, ...]:
        return BoundConcat, (self.parts,)

    def expand_rows(self, x: Tensor) -> Tensor:
        return self.typed.expand_rows(x)

    def combine_rows(self, z: Tensor) -> Tensor:
        return self.typed.combine_rows(z)

    @property
    def adjoint(self) -> BoundBasis:
        return self.typed.adjoint


class BoundProduct(BoundBasis):
    r"""All products :math:`A'_k A''_l`, at k K'' + l; none of them is built."""

    def __init__(self, first: BoundBasis, second: BoundBasis) -> None:
        if first.N != second.M:
            reject("basis", f"{first.N} rows in the second factor", second.M, "multiply families whose sizes join")
        if (first.dtype, first.device) != (second.dtype, second.device):
            got = f"{second.dtype} on {second.device}"
            reject("basis", f"a second factor of {first.dtype} on {first.device}", got, "bind both alike")
        self.first, self.second = self.factors = first, second
        self.K, self.M, self.N = first.K * second.K, first.M, second.N
        self.source_grid, self.target_grid = first.source_grid, second.target_grid
        if second.target_grid is None and second.M == second.N:  # an identity, in some form
            self.target_grid = first.target_grid
        self.dtype, self.device = first.dtype, first.device
        self.batch = max(first.batch, second.batch, key=len)

    def iterate(self, x: Tensor) -> Iterator[Tensor]:
        return chain.from_iterable(self.second.iterate(u) for u in self.first.iterate(x))

    def combine(self, z: Tensor | Sequence[Tensor | None]) -> Tensor:
        z = dense(counted(z, self.K)).unflatten(0, (self.first.K, self.second.K))  # (K', K'', *, M, Q)
        return self.second.combine(self.first.combine(z))

    def each(self, z: Tensor) -> Tensor:
        z = z.unflatten(0, (self.first.K, self.second.K))  # (K', K'', *, M, D)
        z = self.first.each(z).transpose(0, 1)  # (K'', K', *, N', D)
        return self.second.each(z).transpose(0, 1).flatten(0, 1)

    @kept
    def takes_rows(self) -> bool:
        # Where both factors are several, the members of the transposed family stand in another order.
        return 1 in (self.first.K, self.second.K) and self.first.takes_rows and self.second.takes_rows

    def expand_rows(self, x: Tensor) -> Tensor:
        return self.second.expand_rows(self.first.expand_rows(x))

    def combine_rows(self, z: Tensor) -> Tensor:
        return self.second.combine_rows(self.first.combine_rows(z))

    @kept
    def adjoint(self) -> BoundBasis:
        return BoundProduct(self.second.adjoint, self.first.adjoint)

    def edges(self) -> EdgeList:
        refuse("basis", "a product that is applied, and not written out", self)
        # The products of all members at once: one matrix with rows (k, m), times one with columns (l, n).
        wide = self.dtype if self.dtype in (torch.float32, torch.float64) else torch.float32
        k, m, j, v = self.first.edges()
        second, i, n, w = self.second.edges()
        K2, N = self.second.K, self.N
        left = torch.sparse_coo_tensor(
            torch.stack([k.long() * self.M + m.long(), j.long()]),
            v.to(wide),
            (self.first.K * self.M, self.first.N),
        )
        right = torch.sparse_coo_tensor(
            torch.stack([i.long(), second.long() * N + n.long()]), w.to(wide), (self.first.N, K2 * N)
        )
        product = torch.sparse.mm(left, right).coalesce()
        row, column = product.indices()
        kind = (row // self.M) * K2 + column // N
        return EdgeList(kind, row % self.M, column % N, product.values().to(self.dtype))

    @property
    def requires_grad(self) -> bool:
        return self.first.requires_grad or self.second.requires_grad

    @property
    def T(self) -> BoundBasis:
        # (A' A'')^T = A''^T A'^T, whose natural order is (l, k): brought back to (k, l).
        product = BoundProduct(self.second.T, self.first.T)
        order = [j * self.first.K + i for i in range(self.first.K) for j in range(self.second.K)]
        return BoundMix([[float(n == one) for n in range(self.K)] for one in order], product)

    def work(self, direction: Direction) -> Work:
        first, second = self.first.work(direction), self.second.work(direction)
        if direction == "expand":
            return first.plus(second.times(self.first.K))
        if direction == "combine":
            return first.times(self.second.K).plus(second)
        return first.times(self.second.K).plus(second.times(self.first.K))

    def map(self, change: Change) -> "BoundProduct":
        return BoundProduct(self.first.map(change), self.second.map(change))

    def moved(self, device: torch.device) -> "BoundProduct":
        return BoundProduct(self.first.moved(device), self.second.moved(device))


def _nothing(t: Tensor) -> Tensor:
    """Zeros, whatever t has; a function of t all the same, which has a gradient."""
    return t.masked_fill(torch.ones((), dtype=torch.bool, device=t.device), 0)


class BoundMix(BoundBasis):
    r"""Fixed mixtures :math:`B_h = \sum_k C_{hk} A_k` of a family."""

    def __init__(self, coefficients: Sequence[Sequence[float]], family: BoundBasis) -> None:
        self.family = family
        self.coefficients = [list(row) for row in coefficients]
        self.K, self.M, self.N = len(self.coefficients), family.M, family.N
        self.source_grid, self.target_grid = family.source_grid, family.target_grid
        self.dtype, self.device, self.batch = family.dtype, family.device, family.batch

    def _matrix(self) -> Tensor:
        return torch.tensor(self.coefficients, dtype=self.dtype, device=self.device)

    def iterate(self, x: Tensor) -> Iterator[Tensor]:
        mixed: list[Tensor | None] = [None] * self.K
        for k, u in enumerate(self.family.iterate(x)):
            for h, row in enumerate(self.coefficients):
                if row[k]:
                    now = mixed[h]
                    mixed[h] = (u if row[k] == 1 else row[k] * u) if now is None else torch.add(now, u, alpha=row[k])
        return iter([_nothing(u) if u_h is None else u_h for u_h in mixed])

    def combine(self, z: Tensor | Sequence[Tensor | None]) -> Tensor:
        given = [(h, z_h) for h, z_h in enumerate(members(z, self.K)) if z_h is not None]
        spread: list[Tensor | None] = []
        for k in range(self.family.K):
            total: Tensor | None = None
            for h, z_h in given:
                c = self.coefficients[h][k]
                if c:
                    scaled = z_h if c == 1 else c * z_h
                    total = scaled if total is None else total + scaled
            spread.append(total)
        if all(total is None for total in spread):
            spread[0] = _nothing(given[0][1])
        return self.family.combine(spread)

    def each(self, z: Tensor) -> Tensor:
        # Member h of the mixture sees only z_h: the whole family is applied to each.
        return torch.stack([self._one(h).combine([z_h]) for h, z_h in enumerate(z)])

    def _one(self, h: int) -> "BoundMix":
        return BoundMix([self.coefficients[h]], self.family)

    def edges(self) -> EdgeList:
        if not all(all(row) for row in self.coefficients):
            refuse("basis", "a mixture without zeros, where it is written out", self)
        kind, source, target, weight = self.family.edges()
        lists = []
        for h, row in enumerate(self._matrix()):
            factor = row.index_select(0, kind.long())
            some = slice(None) if portable() else factor.nonzero().squeeze(1)
            lists.append([t[some] for t in (torch.full_like(kind, h), source, target, weight * factor)])
        return EdgeList(*(torch.cat(column) for column in zip(*lists, strict=True)))

    @property
    def requires_grad(self) -> bool:
        return self.family.requires_grad

    @property
    def T(self) -> "BoundMix":
        return BoundMix(self.coefficients, self.family.T)

    def work(self, direction: Direction) -> Work:
        if direction == "each":
            return self.family.work("combine").times(self.K)
        return self.family.work(direction)

    def map(self, change: Change) -> "BoundMix":
        return BoundMix(self.coefficients, self.family.map(change))

    def moved(self, device: torch.device) -> "BoundMix":
        return BoundMix(self.coefficients, self.family.moved(device))


class Composed(Basis):
    """A basis made of others."""

    keeps_members = False  # True where each matrix is made of one matrix of a part, in the same place

    def __init__(self, K: int, *parts: Basis) -> None:
        super().__init__(K)
        self.depth = check_depth("basis", *parts)
        self.parts = torch.nn.ModuleList(parts)
        self.needs_edges = any(part.needs_edges for part in parts)
        self.reads_target = any(part.reads_target for part in parts)
        self.reads_content = any(part.reads_content for part in parts)
        self.pools = any(part.pools for part in parts)
        self.counts_batch = any(part.counts_batch for part in parts)
        self.variance_gain = parts[0].variance_gain
        self.axes = next((part.axes for part in parts if part.axes is not None), None)

    @cached_property
    def _parts(self) -> Sequence[Basis]:
        """The same without the detour by `nn.Module.__getattr__`."""
        return cast(Sequence[Basis], tuple(self.parts))

    def complete(self, source: int, target: int, inner: int) -> None:
        for part in self._parts:
            part.complete(source, target, inner)

    def sized(
        self, M: int | None, N: int | None, batch: Any, grid: tuple[int, ...] | None
    ) -> tuple[int | None, int | None]:
        for part in self._sized:
            M, N = part.sized(M, N, batch, grid)
        return M, N

    @cached_property
    def _sized(self) -> list[Basis]:
        """The parts that may know sizes of their own."""
        return [part for part in self._parts if type(part).sized is not Basis.sized]

    def reach(self, grid: tuple[int, ...]) -> tuple[int, ...] | None:
        return next((r for part in self.parts if (r := part.reach(grid)) is not None), None)  # type: ignore[operator]

    def reset_parameters(self) -> None:
        for part in self.parts:
            part.reset_parameters()  # type: ignore[operator]

    def build(self, graph: Graph) -> BoundBasis:
        if graph.content is not None and not self.keeps_members:
            graph = graph.holding(graph.content.within(members=None))
        return self.join(self.bind_parts(graph))

    def bind_parts(self, graph: Graph) -> list[BoundBasis]:
        """Each part, bound."""
        return [part.on(graph) for part in self._parts]

    def join(self, bound: list[BoundBasis]) -> BoundBasis:
        """The bound basis, of bound parts."""
        raise NotImplementedError


def real(numbers: Any, dtype: torch.dtype | None = None) -> Tensor:
    """Numbers as a dense tensor of what can be looked at; a `TypeError` for what is none."""
    found = numbers if isinstance(numbers, Tensor) else torch.as_tensor(numbers, dtype=dtype)
    if found.is_complex() or found.is_meta or found.layout != torch.strided:
        raise TypeError("no dense real numbers")
    return found if dtype is None else found.to(dtype)


def check_bases(*parts: object) -> None:
    """Rejects what is no basis, and to be made of nothing."""
    for part in parts or (None,):
        if not isinstance(part, Basis):
            reject("basis", "a Basis", repr(part), "choose one from pyg_basisconv.bases")


class Concat(Composed):
    """`a + b`: the matrices of a, then those of b.

    Args:
        *parts: the families, side by side.

    >>> from pyg_basisconv import bases
    >>> bases.Identity() + bases.Laplacian('sym')
    Identity() + Laplacian(norm='sym')
    """

    def __init__(self, *parts: Basis) -> None:
        check_bases(*parts)
        flat: list[Any] = [p for part in parts for p in (part.parts if isinstance(part, Concat) else [part])]
        super().__init__(sum(part.K for part in flat), *flat)
        grids = [part.variance_gain for part in flat if part.axes is not None]
        self.variance_gain = sum(grids) if grids else 1  # families of graphs side by side are drawn as each by itself

    def build(self, graph: Graph) -> BoundBasis:
        content = graph.content
        if content is None:
            lists = self.listed(graph)
            return super().build(graph) if lists is None else ListedConcat(self, graph, lists)
        bound, start = [], 0
        for part in self._parts:
            bound.append(part.on(graph.holding(content.of(start, start + part.K))))
            start += part.K
        return BoundConcat(bound)

    def listed(self, graph: Graph) -> Sequence[List] | None:
        found: list[List] = []
        start = 0
        for part in self._parts:
            lists = part.listed(graph)
            if lists is None:
                return None
            found += [edges.from_member(start) for edges in lists] if start else lists
            start += part.K
        return found if lists_of(graph.dtype, self.K * max(graph.M, graph.N)) else None

    def join(self, bound: list[BoundBasis]) -> BoundBasis:
        return BoundConcat(bound)

    def __repr__(self) -> str:
        return " + ".join(repr(part) for part in self.parts)


class Product(Composed):
    r"""`a @ b`: all products :math:`A'_k A''_l`, first a then b, K = K' K'' (Prop. 3: composition).

    Args:
        first: a.
        second: b, from the targets of a.

    >>> from pyg_basisconv import bases
    >>> (bases.Powers(2) @ bases.Diffusion(2)).K
    8
    """

    def __init__(self, first: Basis, second: Basis) -> None:
        check_bases(first, second)
        super().__init__(first.K * second.K, first, second)
        self.variance_gain = first.variance_gain * second.variance_gain
        self.reads_target = first.reads_target and self.axes is None  # on a grid, the sources' own

    @property
    def factors(self) -> tuple[Basis, Basis]:  # type: ignore[override]
        first, second = self.parts
        return first, second  # type: ignore[return-value]

    @property
    def target_axes(self) -> int | None:
        first, second = self.parts
        return (first if second.axes is None else second).target_axes  # type: ignore[return-value]

    def sized(
        self, M: int | None, N: int | None, batch: Any, grid: tuple[int, ...] | None
    ) -> tuple[int | None, int | None]:
        first, second = self.parts
        M, between = first.sized(M, None, batch, grid)  # type: ignore[operator]
        on = None if grid is None else self._between(grid)
        _, N = second.sized(between, N, batch, on)  # type: ignore[operator]
        return M, between if N is None and not second.needs_edges else N

    def reach(self, grid: tuple[int, ...]) -> tuple[int, ...] | None:
        second, between = self.parts[1], self._between(grid)
        found = second.reach(between)  # type: ignore[operator]
        return between if found is None and not (second.needs_edges or second.pools) else found  # type: ignore[no-any-return]

    def _between(self, grid: tuple[int, ...]) -> tuple[int, ...]:
        """The grid of the targets of the first, where it says one: an identity leaves it as it is."""
        found: tuple[int, ...] | None = self.parts[0].reach(grid)  # type: ignore[operator]
        return grid if found is None else found

    def build(self, graph: Graph) -> BoundBasis:
        if graph.content is not None:
            graph = graph.holding(graph.content.within(members=None))
        return BoundProduct(*one_after_other(*self.parts, graph))  # type: ignore[arg-type, call-arg]

    def join(self, bound: list[BoundBasis]) -> BoundBasis:
        return BoundProduct(*bound)

    def accept(self, bound: BoundBasis) -> BoundBasis:
        if self.turned(bound):
            fix = "pass first_bound @ second_bound"
            reject("edge_index", f"the factors of {self} in their order", "another order", fix)
        return bound

    def turned(self, bound: BoundBasis) -> bool:
        """Whether a bound product has the same factors in another order, as far as is known what these are."""
        mine, theirs = _factors(self), _bound_factors(bound)
        return mine != theirs and Counter(mine) == Counter(theirs)

    def __repr__(self) -> str:
        return " @ ".join(f"({part!r})" if isinstance(part, Concat) else repr(part) for part in self.parts)


def _factors(basis: Basis) -> list[Hashable]:
    """The keys of what a product is made of."""
    if type(basis) is not Product:
        return [basis.key]
    return [key for part in basis.parts for key in _factors(part)]  # type: ignore[arg-type]


def _bound_factors(bound: BoundBasis) -> list[Hashable]:
    """The same of a bound one; None for what is not known."""
    if isinstance(bound, BoundProduct):
        return _bound_factors(bound.first) + _bound_factors(bound.second)
    return [None if bound.origin is None else bound.origin[0].key]


def one_after_other(first: Basis, second: Basis, graph: Graph) -> tuple[BoundBasis, BoundBasis]:
    """Two families, bound: the first from the sources, and the second from where the first one ends."""
    between = first.sized(graph.M, None, graph.batch, graph.grid)[1]
    start = graph if first.needs_edges else graph.between(graph.M, graph.M if between is None else between, graph.grid)
    before, behind = first.on(start), graph.from_intermediate
    if second.needs_edges:
        return before, second.on(behind if before.target_grid is None else behind.over(before.target_grid))
    return before, second.on(behind.between(before.N, graph.N, before.target_grid or graph.grid))


class Transpose(Composed):
    """`a.T`: the transposed matrices.

    >>> from pyg_basisconv import bases
    >>> bases.Adjacency('rw').T
    Adjacency(norm='rw').T
    """

    keeps_members = True

    def __init__(self, basis: Basis) -> None:
        check_bases(basis)
        super().__init__(basis.K, basis)
        self.axes = basis.target_axes

    @property
    def target_axes(self) -> int | None:
        return self.parts[0].axes  # type: ignore[return-value]

    def sized(
        self, M: int | None, N: int | None, batch: Any, grid: tuple[int, ...] | None
    ) -> tuple[int | None, int | None]:
        N, M = self.parts[0].sized(N, M, batch, self._inner(grid, batch))  # type: ignore[operator]
        return M, N

    def reach(self, grid: tuple[int, ...]) -> tuple[int, ...] | None:
        if self.target_axes is None:
            return None
        shapes = (getattr(part, "shape", None) for part in self.parts.modules())
        return next((shape for shape in shapes if shape is not None), grid)

    def build(self, graph: Graph) -> BoundBasis:
        return super().build(graph.over(self._inner(graph.grid, graph.batch))).T

    def _inner(self, grid: tuple[int, ...] | None, batch: Any) -> tuple[int, ...] | None:
        """The sources' grid of the family that is transposed: its own, or for want of it that of the call."""
        if grid is None:
            return None
        own: Any = self.parts[0].sized(None, None, batch, None)  # type: ignore[operator]
        return grid if own[0] is None else None

    def join(self, bound: list[BoundBasis]) -> BoundBasis:
        return bound[0]

    @property
    def T(self) -> Basis:
        return self.parts[0]  # type: ignore[return-value]

    def __repr__(self) -> str:
        part = self.parts[0]
        return f"({part!r}).T" if isinstance(part, Concat | Product) else f"{part!r}.T"


class Mix(Composed):
    r"""Fixed mixtures of a family: :math:`B_h = \sum_k C_{hk} A_k`, H matrices of K.

    A row of the identity selects one member (SGC is the last power alone), a row of numbers is a fixed polynomial
    (personalised PageRank, SSGC).

    Args:
        coefficients: C, (H, K), or (K,) for one mixture.
        basis: the family.

    >>> from pyg_basisconv import bases
    >>> Mix([0., 0., 1.], bases.Powers(3))
    Mix([[0.0, 0.0, 1.0]], Powers(K=3, operator=Adjacency(norm='sym')))
    """

    def __init__(self, coefficients: Sequence[float] | Sequence[Sequence[float]] | Tensor, basis: Basis) -> None:
        if not isinstance(basis, Basis):
            reject("basis", "a Basis", repr(basis), "choose one from pyg_basisconv.bases")
        try:
            C = real(coefficients, torch.float64)
        except (TypeError, ValueError, RuntimeError):
            reject("coefficients", f"numbers of shape (H, {basis.K})", repr(coefficients), "give rows of one length")
        C = C.unsqueeze(0) if C.dim() == 1 else C
        if C.dim() != 2 or C.shape[1] != basis.K or not C.shape[0]:
            reject("coefficients", f"shape (H, {basis.K})", tuple(C.shape), f"one number for each matrix of {basis}")
        if not bool(torch.isfinite(C).all()):
            reject("coefficients", "finite numbers", C.tolist(), "remove what is not finite")
        super().__init__(C.shape[0], basis)
        self.coefficients: list[list[float]] = C.tolist()

    def join(self, bound: list[BoundBasis]) -> BoundBasis:
        return BoundMix(self.coefficients, bound[0])

    def __repr__(self) -> str:
        return f"Mix({self.coefficients}, {self.parts[0]!r})"


COMPOSITES.update({"+": Concat, "mix": Mix, "@": Product, "T": Transpose, "bound @": BoundProduct})
