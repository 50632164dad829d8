"""Walks, bound: sums of products of the matrices of their steps."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..basis import BoundBasis, Compact, Compaction, Direction, EdgeList, End, Work
from ..bound import Change
from ..cache import cached_property
from ..edge_set import EdgeSet, disjoint, gather
from ..errors import reject
from ..graph import Graph
from ..kernels import matmul
from ..portable import refuse
from ..typed_edges import members
from ..walks import Step
from .adjacency import inverse_sqrt, reciprocal
from .edges import count_types
from .relations import Norm, normalised
from .trie import ChainEnd, Factor, Key, Path, Trie

_T = TypeVar("_T")

_ENTRY = 24  # bytes per entry of a sparse matrix
_MOST = 1e15  # walks from or to a node up to which float32 can represent their number and its inverse


class Steps:
    """The matrices of steps on a graph: edges of the relations of a step, of which there are so many, None for any, in
    its direction; each normalised.
    """

    def __init__(self, graph: Graph, relations: int | None, norm: Norm) -> None:
        s = graph.structure
        if s.type is None and relations != 1:
            reject("edge_type", "a relation for each edge", None, "pass edge_type")
        count_types(s, relations)
        self.edges, self.weight = s, None if graph.weight is None else graph.weights
        self.dtype, self.acc_dtype = graph.dtype, graph.acc_dtype
        self.mask, self.norm = graph.mask, norm
        self.merge = not self.learns  # products of weights that learn are not written out

    @property
    def device(self) -> torch.device:
        """The device of the edges."""
        return self.edges.source.device

    @property
    def learns(self) -> bool:
        """Whether a gradient passes through the weights."""
        return any(t is not None and t.requires_grad for t in (self.weight, self.mask))

    def replace(self, **changes: Any) -> "Steps":
        """The same with some attributes changed."""
        steps = copy(self)
        steps.__dict__.update(changes)
        return steps

    @property
    def unweighted(self) -> "Steps":
        """The same without weights, normalisation and mask."""
        return self.replace(weight=None, norm=None, mask=None)

    def to(self, device: torch.device) -> "Steps":
        """The same on another device."""
        weight = None if self.weight is None else self.weight.to(device)
        return self.replace(edges=self.edges.to(device), weight=weight)

    def union(self, *others: "Steps") -> "Steps":
        """The steps on the disjoint union of several graphs, of one device and dtype."""
        several = self, *others
        sets = [one.edges for one in several]
        sizes, kinds = [e.M for e in sets], [torch.zeros_like(e.source) if e.type is None else e.type for e in sets]
        ends = (disjoint(one, sizes) for one in ([e.source for e in sets], [e.target for e in sets]))
        steps = self.replace(edges=EdgeSet(1, sum(sizes), sum(sizes), torch.cat([k.long() for k in kinds]), *ends))
        if any(one.weight is not None for one in several):
            ones = [torch.ones(one.edges.E, dtype=one.acc_dtype, device=one.device) for one in several]
            steps.weight = torch.cat([w if s.weight is None else s.weight for s, w in zip(several, ones, strict=True)])
        steps.merge = not steps.learns
        return steps

    def __call__(self, key: Key) -> Factor:
        """The matrix of a step, or its transpose."""
        step, turned = key
        factor = self._edges(step)  # type: ignore[arg-type]
        return factor.T if turned else factor

    def _edges(self, step: Step) -> Factor:
        e = self.edges
        order, firsts = e.memo("by type", lambda: _by_type(e))
        sources, targets, places = [], [], []
        for relation, inverse in step:
            some = relation < len(firsts) - 1
            place = order[firsts[relation] : firsts[relation + 1]] if some else order[:0]
            ends = e.source.index_select(0, place), e.target.index_select(0, place)
            source, target = ends[::-1] if inverse else ends
            sources.append(source)
            targets.append(target)
            places.append(place)
        source, target, place = torch.cat(sources), torch.cat(targets), torch.cat(places)
        weight = None if self.weight is None else gather(self.weight, place)
        edges = EdgeSet(1, e.M, e.M, None, source, target)
        weight = normalised(edges, weight, self.norm, self.acc_dtype)
        if self.mask is not None:
            mask = gather(self.mask, place)
            weight = mask if weight is None else weight * mask
        return Factor(source, target, weight)


def _by_type(edges: EdgeSet) -> tuple[Tensor, list[int]]:
    """(E,) the edges sorted by type, and the first of each type followed by E."""
    if edges.type is None:
        return torch.arange(edges.E, device=edges.source.device), [0, edges.E]
    kinds, order = torch.sort(edges.type.long(), stable=True)
    types = torch.arange(count_types(edges, None) + 1, device=order.device)
    return order, torch.searchsorted(kinds, types).tolist()


class _Chains(NamedTuple):
    """The products of each member, as keys of their factors; the factors that are not steps, by key; and the dtype of
    the computation.
    """

    chains: Sequence[Sequence[Path]]
    others: Mapping[Hashable, Factor]
    dtype: torch.dtype


class BoundWalks(BoundBasis):
    """Each member is a sum of products of sparse matrices, computed in float32 at least.

    Args:
        sorts: the products of each member, as steps, the keys of their factors.
        steps: the matrices of steps.
        texts: the names of members in errors.
        limit: the most bytes of a product that has to be built.
        norm: of the walks.
        binary: whether several walks between two nodes count as one.
        turned: whether all members are transposed.

    >>> from pyg_basisconv import bases
    >>> walks = bases.Walks(["0.0"], 1).bind(torch.tensor([[0, 0, 1, 2], [1, 2, 3, 3]]), size=4)
    >>> walks.count(0), [ends.tolist() for ends in walks.ends_of(0)]
    (2.0, [[2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 2.0]])
    """

    def __init__(
        self,
        sorts: Sequence[Sequence[Path]],
        steps: Steps,
        texts: Sequence[str],
        limit: int,
        norm: Norm = None,
        binary: bool = False,
        turned: bool = False,
    ) -> None:
        self.sorts, self.texts, self.limit = sorts, texts, limit
        self.steps = steps.replace(weight=None, norm=None) if binary else steps
        self.norm, self.binary, self.turned = norm, binary, turned
        self.K, self.M, self.N = len(sorts), steps.edges.M, steps.edges.M
        self.dtype, self.device = steps.dtype, steps.device

    def _replace(self, **changes: Any) -> "BoundWalks":
        about = {name: getattr(self, name) for name in ("sorts", "steps", "texts", "limit", "norm", "binary", "turned")}
        return BoundWalks(**(about | changes))

    def keep(self, name: Hashable, build: Callable[[], _T]) -> _T:
        if name not in self._held and torch.compiler.is_exporting():
            refuse("basis", "walks that were applied once since they were bound", self)
        return super().keep(name, build)

    @property
    def forward(self) -> Trie:
        """The trie of chains from their beginnings."""
        return self.keep("forward", lambda: self._trie(self.turned))

    @property
    def backward(self) -> Trie:
        """The trie of chains from their ends, with all factors transposed."""
        return self.keep("backward", lambda: self._trie(not self.turned))

    def _trie(self, turned: bool) -> Trie:
        chains, others, dtype = self._chains

        def factor(key: Key) -> Factor:
            what, back = key
            if what not in others:
                return self.steps(key)
            return others[what].T if back else others[what]

        if turned:  # from their ends, with transposed factors
            chains = [[tuple((what, not back) for what, back in reversed(c)) for c in several] for several in chains]
        most = self.limit / _ENTRY if self.steps.merge else 0
        return Trie(chains, factor, self.M, dtype, self.device, most)

    @property
    def _chains(self) -> _Chains:
        """The chains: the sorts, or for `binary` products that are built; with diagonal factors for the norm."""
        return self.keep("chains", self._build_chains)

    def _build_chains(self) -> _Chains:
        if self.norm is not None:
            return self._normalised(self.norm)
        if not self.binary:
            return _Chains(self.sorts, {}, self.steps.acc_dtype)
        others: dict[Hashable, Factor] = {}
        for k, several in enumerate(self.sorts):
            one = self._replace(sorts=[several], texts=[self.texts[k]], binary=False, turned=False)
            others["binary", k] = one._binary_factor
        return _Chains([[((what, False),)] for what in others], others, self.steps.acc_dtype)

    @property
    def _binary_factor(self) -> Factor:
        """The matrix of ones of a single sort; with a mask, the share of walks that it leaves."""
        count = torch.sparse.sum(self.unweighted.to_coo(), 0)
        source, target = count.indices()
        if self.steps.mask is None:
            return Factor(source, target)
        _, start, end, left = self.edges()
        place = torch.searchsorted(source * self.N + target, start * self.N + end)
        return Factor(source, target, torch.zeros_like(count.values()).index_add(0, place, left) / count.values())

    def _normalised(self, norm: str) -> _Chains:
        masked = self._replace(norm=None, turned=False)
        plain = masked if self.steps.mask is None else masked._replace(steps=self.steps.replace(mask=None))
        before, after = norm in ("row", "sym"), norm in ("mean", "sym")
        sums: dict[Hashable, Tensor] = {}
        if before:
            sums |= {("before", k): total for k, total in enumerate(plain.T.column_sums)}
        if after:
            counted = plain if norm == "sym" else plain._replace(steps=self.steps.unweighted)
            sums |= {("after", k): total for k, total in enumerate(counted.column_sums)}
        totals = [total.detach() for total in sums.values() if total.numel()]
        weight = self.steps.weight
        finite = weight is None or bool(weight.isfinite().all())
        if finite and any(bool(total.isinf().any()) for total in totals):
            fix = "shorten the sort, or use per='step'"
            reject("sorts", "walks that a float64 can count, to be normalised", "more from or to one node", fix)
        one = torch.ones(1, device=self.device)
        sizes = torch.cat([total[total.isfinite() & (total != 0)].abs() for total in totals] or [one])
        chains, others, dtype = masked._chains
        if sizes.numel() and (float(sizes.max()) > _MOST or float(sizes.min()) < 1 / _MOST):
            dtype = torch.float64
        scale = inverse_sqrt if norm == "sym" else reciprocal
        others = {**others, **{what: _diagonal(total, scale, dtype) for what, total in sums.items()}}
        chains = [
            [((("before", k), False),) * before + chain + ((("after", k), False),) * after for chain in several]
            for k, several in enumerate(chains)
        ]
        return _Chains(chains, others, dtype)

    @property
    def T(self) -> "BoundWalks":
        turned = self._replace(turned=not self.turned)
        for mine, theirs in (("forward", "backward"), ("backward", "forward"), ("chains", "chains")):
            if mine in self._held:
                turned._held[theirs] = self._held[mine]
        turned.device = self.device
        return turned

    @property
    def requires_grad(self) -> bool:
        return self.steps.learns

    def iterate(self, x: Tensor) -> Iterator[Tensor]:
        trie = self.forward
        return iter(self._sums(trie.forward(trie.widen(x)), x))

    def combine(self, z: Tensor | Sequence[Tensor | None]) -> Tensor:
        z, trie = members(z, self.K), self.backward

        def value(leaf: ChainEnd) -> Tensor | None:
            z_k = z[leaf.member]
            return None if z_k is None else trie.widen(_rows(z_k, leaf))

        like = next(z_k for z_k in z if z_k is not None)
        total = trie.adjoint(value)
        return self._zeros(like.shape[-1], like) if total is None else total.to(like.dtype)

    def each(self, z: Tensor) -> Tensor:
        trie = self.forward
        return torch.stack(self._sums(trie.each_path(lambda member: trie.widen(z[member])), z[0]))

    def _sums(self, num_ends: Iterator[tuple[ChainEnd, Tensor]], x: Tensor) -> list[Tensor]:
        """The members, each the sum of its chains; zeros for a member without."""
        totals: dict[int, Tensor] = {}
        for (member, rows), value in num_ends:
            total = totals.get(member)
            if rows is None:
                total = value if total is None else total + value
            elif total is None:
                shape = *value.shape[:-2], self.N, value.shape[-1]
                total = value.new_zeros(shape).index_copy(-2, rows, value)
            else:
                total = total.index_add(-2, rows, value)
            totals[member] = total
        nothing = self._zeros(x.shape[-1], x)
        return [totals[member].to(x.dtype) if member in totals else nothing for member in range(self.K)]

    def _zeros(self, width: int, x: Tensor, *others: Tensor) -> Tensor:
        """(*, N, width) zeros that depend on these tensors for autograd."""
        zero = torch.stack([t.flatten()[:0].sum() for t in (x, *others)]).sum()
        return x.new_zeros(*x.shape[:-2], self.N, width) + zero

    @property
    def _sized(self) -> "BoundWalks":
        """The same walks for estimates of cost, which do not depend on weights that learn."""
        return self.unweighted if self.steps.learns else self

    @cached_property
    def unweighted(self) -> "BoundWalks":
        """The walks without weights and norm."""
        return self._replace(steps=self.steps.unweighted, norm=None, binary=False)

    def compact(self, side: End) -> Compact:
        sized = self._sized
        trie = sized.forward if side == "target" else sized.backward
        rows = Work(trie.reached, trie.reached, trie.num_ends)
        gather_work, scatter_work = (trie.work, rows) if side == "target" else (rows, trie.work_back)
        run = self._from_targets if side == "target" else self._from_sources
        return Compact(run, Compaction(side, gather_work, trie.reached, scatter_work, trie.num_ends, trie.num_ends))

    def _from_targets(self, x: Tensor, weight: Tensor) -> Tensor:
        trie, matrices = self.forward, weight.unbind(0)
        total, dtype = trie.widen(self._zeros(weight.shape[1] * weight.shape[3], x, weight)), x.dtype
        for leaf, value in trie.forward(trie.widen(x)):
            product = _times_blocks(value.to(x.dtype), matrices[leaf.member])
            dtype, product = product.dtype, product.to(total.dtype)  # autocast narrows products
            if leaf.rows is None:
                total += product
            else:
                total.index_add_(-2, leaf.rows, product)
        return total.to(dtype)

    def _from_sources(self, x: Tensor, weight: Tensor) -> Tensor:
        trie, matrices = self.backward, weight.unbind(0)
        dtype = x.dtype

        def value(leaf: ChainEnd) -> Tensor:
            nonlocal dtype
            product = _times_blocks(_rows(x, leaf), matrices[leaf.member])
            dtype = product.dtype  # autocast narrows products
            return trie.widen(product)

        total = trie.adjoint(value)
        return (self._zeros(weight.shape[1] * weight.shape[3], x, weight) if total is None else total).to(dtype)

    def edges(self) -> EdgeList:
        none = torch.empty(0, dtype=torch.long, device=self.device)
        kinds, places, weights = [none], [torch.stack([none, none])], [none.to(self.dtype)]
        for member, product in self.forward.products(self._check):
            product = product.coalesce()
            places.append(product.indices())
            weights.append(product.values().to(self.dtype))
            kinds.append(torch.full_like(places[-1][0], member))
        source, target = torch.cat(places, 1)
        return EdgeList(torch.cat(kinds), source, target, torch.cat(weights))

    def _check(self, member: int, entries: float) -> None:
        """Rejects a product of too many entries to be built."""
        if entries * _ENTRY > self.limit:
            got = f"up to {entries:.3g} entries, {entries * _ENTRY:.3g} bytes, for {self.texts[member]}"
            fix = "raise memory_limit, or apply the walks without writing them out"
            reject("sorts", f"products of {self.limit:,} bytes at most where they are written out", got, fix)

    @property
    def column_sums(self) -> list[Tensor]:
        """For each member (N,) the sums over the sources, in float64."""
        ones = torch.ones(self.M, 1, dtype=torch.float64, device=self.device)
        return [total.squeeze(-1) for total in self.iterate(ones)]

    def ends_of(self, k: int) -> tuple[Tensor, Tensor]:
        """The numbers of walks of member k that begin, (M,), and end, (N,), at each node; in float64, unweighted."""
        if isinstance(k, str):
            reject("k", "the number of a sort", repr(k), f"that of a name is basis.names.index({k!r})")
        one = self.unweighted._replace(sorts=[self.sorts[k]], texts=[self.texts[k]])
        return one.T.column_sums[0], one.column_sums[0]

    def count(self, k: int) -> float:
        """The number of walks of member k."""
        return float(self.ends_of(k)[1].sum())

    def work(self, direction: Direction) -> Work:
        sized = self._sized
        if direction == "expand":
            return sized.forward.work.plus(Work(0, self.K * self.N, self.K))
        if direction == "combine":
            return sized.backward.work_back.plus(Work(sized.backward.reached, 0, self.K))
        return sized.forward.work_each.plus(Work(0, self.K * self.N, self.K))

    def map(self, change: Change) -> "BoundWalks":
        return self._moved(change, self.device)

    def moved(self, device: torch.device) -> "BoundWalks":
        moved = self._moved(lambda part: part.moved(device), device)
        moved.steps = self.steps.to(device)
        return moved

    @property
    def union_key(self) -> Hashable:
        """What walks on several graphs must have in common for `union`."""
        sorts = tuple(map(tuple, self.sorts))
        return sorts, self.norm, self.binary, self.turned, self.steps.norm

    def union(self, *others: "BoundWalks") -> "BoundWalks":
        """The same walks on the disjoint union of their graphs."""
        steps = self.steps.union(*(other.steps for other in others))
        return self._replace(steps=steps, limit=self.limit + sum(other.limit for other in others))

    def _moved(self, change: Change, device: torch.device) -> "BoundWalks":
        """The same with other matrices; valid while weights that learn do not change."""
        moved = self._replace()
        moved.device = device
        moved._held["forward"] = self.forward.map(change, device)
        moved._held["backward"] = self.backward.map(change, device)
        return moved


def _diagonal(total: Tensor, scale: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Factor:
    nodes = total.detach().nonzero().squeeze(1)
    return Factor(nodes, nodes, gather(scale(total), nodes).to(dtype))


def _rows(x: Tensor, leaf: ChainEnd) -> Tensor:
    return x if leaf.rows is None else x.index_select(-2, leaf.rows)


def _times_blocks(x: Tensor, blocks: Tensor) -> Tensor:
    """The product with a block-diagonal matrix: (*, n, P), (g, P / g, Q / g) -> (*, n, Q)."""
    if len(blocks) == 1:
        return matmul(x, blocks[0])
    return torch.einsum("...gp,gpq->...gq", x.unflatten(-1, (len(blocks), -1)), blocks).flatten(-2)
