"""The families whose edges are written out: typed edges, and shared edges with K weights each."""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any, cast

import torch
from torch import Tensor

from .basis import BoundBasis, Compact, Compaction, Direction, EdgeList, Side, Work
from .cache import kept, underived
from .errors import reject
from .graph import Structure, lifting
from .kernels import Meetings, Pairs, Pattern, spmm, spmm_rows, typed_matmul
from .kernels.pattern import index_dtype
from .portable import checked, portable

# Evaluates one sparse matrix on (*, M, W) by other means than the kernel; see BasisConv's message passing.
Evaluate = Callable[["Sparse", Tensor], Tensor]


class Sparse:
    """One sparse matrix, M x N: a pattern and (E,) weights in the pattern's order, None for ones."""

    def __init__(
        self, pattern: Pattern, weight: Tensor | None, evaluate: Evaluate | None = None, learns: bool = False
    ) -> None:
        self.pattern, self.weight, self.evaluate = pattern, weight, evaluate
        self.learns = learns or (weight is not None and weight.requires_grad)

    @kept
    def _by_target(self) -> Tensor:
        """The weights in the order of targets, for weights that no gradient reaches."""
        return _permute(cast(Tensor, self.weight), self.pattern.by_target.order)

    @kept
    def _by_source(self) -> Tensor:
        """The same in the order of sources."""
        return _permute(cast(Tensor, self.weight), self.pattern.by_source.order)

    def apply(self, x: Tensor) -> Tensor:
        """A^T x: (*, M, W) -> (*, N, W)."""
        if x.dim() == 2:
            return self._apply(x) if self.evaluate is None else self.evaluate(self, x)
        if self.evaluate is not None:
            return self.evaluate(self, x)
        # Batches lie side by side in the width: one product for all of them.
        flat = x.movedim(-2, 0)  # (M, *, W)
        y = self._apply(flat.reshape(x.shape[-2], prod(flat.shape[1:])))
        return y.reshape(self.pattern.N, *flat.shape[1:]).movedim(0, -2)  # (*, N, W)

    def rows(self, x: Tensor) -> Tensor:
        """A^T x for fixed weights, without a record for gradients: (M, W) -> (N, W)."""
        weight = None if self.weight is None else self._by_target
        return spmm_rows(x, weight, *self.pattern.by_target[:2])

    def _apply(self, x: Tensor) -> Tensor:
        if self.weight is None:
            return spmm(x, None, self.pattern)
        if self.learns:  # now, or when it was bound: its owner may change it
            return spmm(x, _permute(self.weight, self.pattern.by_target.order).to(x.dtype), self.pattern)
        needs = torch.is_grad_enabled() and x.requires_grad
        weight, t_weight = self._by_target, self._by_source if needs else None
        if weight.dtype != x.dtype:  # under autocast
            weight, t_weight = weight.to(x.dtype), None if t_weight is None else t_weight.to(x.dtype)
        return spmm(x, weight, self.pattern, t_weight)


def _permute(weight: Tensor, order: Tensor | None) -> Tensor:
    return weight if order is None else weight.index_select(0, order)


class EdgeSet:
    """E typed places (k, m, n) in a family of K matrices, M x N, and the three matrices that evaluate it.

    The family is a matrix from M to N K for expand, from M K to N for combine, and from M K to N K for each: the
    members of a node stand together. For a single matrix these are the same.
    """

    def __init__(
        self,
        K: int,
        M: int,
        N: int,
        type: Tensor | None,
        source: Tensor,
        target: Tensor,
        pattern: Pattern | None = None,
    ) -> None:
        self.K, self.M, self.N = K, M, N
        self.source, self.target = source, target
        self._type = type
        self.alive: Tensor | None = None  # see `Structure`
        if K == 1 and pattern is not None:
            self.__dict__["expand"] = pattern

    def __getstate__(self) -> dict[str, Any]:
        return underived(self)

    @property
    def type(self) -> Tensor:
        return torch.zeros_like(self.source) if self._type is None else self._type

    def _members(self, size: int, end: Tensor) -> Tensor:
        """The member of a node at which each edge begins or ends, of K members of each node."""
        K = self.K
        if portable():  # what is no node, or no type, is not to be another one
            there = (end >= 0) & (end < size) & (self.type >= 0) & (self.type < K)
            return checked(torch.where(there, end * K + self.type, -1), K * size)
        dtype = index_dtype(K * size)
        return torch.add(self.type.to(dtype), end.to(dtype), alpha=K)

    @kept
    def expand(self) -> Pattern:
        if self.K == 1:
            return Pattern(self.source, self.target, self.M, self.N)
        return Pattern(self.source, self._members(self.N, self.target), self.M, self.N * self.K)

    @kept
    def combine(self) -> Pattern:
        if self.K == 1:
            return self.expand
        return Pattern(self._members(self.M, self.source), self.target, self.M * self.K, self.N)

    @kept
    def each(self) -> Pattern:
        if self.K == 1:
            return self.expand
        source = self._members(self.M, self.source)
        return Pattern(source, self._members(self.N, self.target), self.M * self.K, self.N * self.K)

    @kept
    def meetings(self) -> Meetings | None:
        """Who meets whom, where each source and target meets one in each matrix, and most of them do."""
        if portable():
            return None
        E, least, most = self.source.numel(), self.K * min(self.M, self.N), self.K * max(self.M, self.N)
        if not most <= 4 * E <= 4 * least or not E:
            return None
        for size, end in ((self.N, self.target), (self.M, self.source)):
            if int(torch.bincount(self._members(size, end)).max()) > 1:
                return None
        kind = self.type.long()
        by_type = Pattern(self.source, kind * self.N + self.target, self.M, self.K * self.N)
        ptr, source, _ = by_type.by_target
        bounds, target = ptr[:: self.N].tolist(), by_type.row.long() % self.N
        runs = [(source[a:b].long(), target[a:b]) for a, b in pairwise(bounds)]
        return Meetings(runs, self.M, self.N)

    @kept
    def pairs(self) -> Pairs:
        """The edges by the distinct pairs of type and target."""
        return Pairs(self.type, self.source, self.target, (self.K, self.M, self.N))

    @kept
    def by_pair(self) -> Structure:
        """The edges from pairs of type and source to pairs of type and target: distinct ones, where these are known."""
        if portable():
            each = self.each
            structure = Structure(each.source, each.target, None, each.M, each.N)
            structure.alive = self.alive
            return structure
        source, target = self.T.pairs, self.pairs
        return Structure(source.place, target.place, None, source.count, target.count)

    @kept
    def merged(self) -> "EdgeSet":
        """The edges without their types, as entries of one matrix."""
        return EdgeSet(1, self.M, self.N, None, self.source, self.target)

    @kept
    def typing(self) -> Pattern:
        """The type of each edge, as a matrix from K types to E edges."""
        return lifting(self.type, self.K)

    @kept
    def T(self) -> "EdgeSet":
        """The places turned round; what expands here combines there."""
        turned = EdgeSet(self.K, self.N, self.M, self._type, self.target, self.source)
        turned.alive = self.alive
        for mine, theirs in (("expand", "combine"), ("combine", "expand"), ("each", "each")):
            if mine in self.__dict__:
                turned.__dict__[theirs] = self.__dict__[mine].T
        return turned

    def move(self, device: torch.device) -> "EdgeSet":
        kind = None if self._type is None else self._type.to(device)
        return EdgeSet(self.K, self.M, self.N, kind, self.source.to(device), self.target.to(device))


class Explicit(BoundBasis):
    """A family with its edges written out."""

    edge_set: EdgeSet
    weight: Tensor | None
    evaluate: Evaluate | None

    def __init__(
        self, edge_set: EdgeSet, weight: Tensor | None, dtype: torch.dtype, evaluate: Evaluate | None = None
    ) -> None:
        self.edge_set, self.evaluate, self.dtype = edge_set, evaluate, dtype
        self.weight = None if weight is None else weight.to(dtype)
        self.K, self.M, self.N = edge_set.K, edge_set.M, edge_set.N
        self.device = edge_set.source.device
        self.learns = self.requires_grad

    def _sparse(self, pattern: Pattern, weight: Tensor | None) -> Sparse:
        return Sparse(pattern, weight, self.evaluate, self.learns)

    @property
    def requires_grad(self) -> bool:
        return self.weight is not None and self.weight.requires_grad

    @property
    def T(self) -> "Explicit":
        return type(self)(self.edge_set.T, self.weight, self.dtype, self.evaluate)

    def map(self, change: "Callable[[Explicit], Explicit]") -> "Explicit":
        return change(self)

    def move(self, device: torch.device) -> "Explicit":
        weight = None if self.weight is None else self.weight.to(device)
        return type(self)(self.edge_set.move(device), weight, self.dtype, self.evaluate)

    def via(self, evaluate: Evaluate) -> "Explicit":
        """The same family whose matrices are applied by `evaluate` instead of the kernel."""
        return type(self)(self.edge_set, self.weight, self.dtype, evaluate)


class TypedEdges(Explicit):
    """Each edge belongs to one matrix of the family; (E,) weights."""

    @kept
    def _expand(self) -> Sparse:
        return self._sparse(self.edge_set.expand, self.weight)

    @kept
    def _combine(self) -> Sparse:
        return self._expand if self.K == 1 else self._sparse(self.edge_set.combine, self.weight)

    @kept
    def _each(self) -> Sparse:
        return self._expand if self.K == 1 else self._sparse(self.edge_set.each, self.weight)

    @property
    def takes_rows(self) -> bool:
        return not self.learns and self.evaluate is None

    def expand_rows(self, x: Tensor) -> Tensor:
        y = self._expand.rows(x)  # (N K, P)
        return y if self.K == 1 else y.view(self.N, self.K * x.shape[1])

    def combine_rows(self, z: Tensor) -> Tensor:
        return self._combine.rows(z if self.K == 1 else z.view(self.M * self.K, z.shape[1] // self.K))

    @kept
    def adjoint(self) -> "TypedEdges":
        return self.T  # type: ignore[return-value]

    @property
    def typed(self) -> "TypedEdges":
        return self

    @kept
    def meetings(self) -> Meetings | None:
        return None if self.weight is not None or self.K == 1 else self.edge_set.meetings

    def compact(self, side: Side) -> Compact | None:
        e = self.edge_set
        if self.K == 1 or portable():
            return None
        tiled = super().compact(side)
        if tiled is not None:
            return tiled
        source = side == "source"
        pairs = e.T.pairs if source else e.pairs
        edges, rows = Work(e.source.numel(), pairs.count), Work(pairs.count, pairs.count)
        enter, leave = (rows, edges) if source else (edges, rows)

        def run(x: Tensor, weight: Tensor) -> Tensor:
            return typed_matmul(x, weight, self._by_pair(side, pairs.order), pairs, turned=source)

        return Compact(run, Compaction(side, enter, pairs.count, leave, pairs.members))

    def _by_pair(self, side: Side, order: Tensor | None) -> Tensor | None:
        """The weights in the order of the pairs; kept where no gradient reaches them."""
        if self.weight is None:
            return None
        if self.learns or order is None:
            return _permute(self.weight, order)
        held: dict[Side, Tensor] = self.__dict__.setdefault("_held", {})
        if side not in held:
            with torch.inference_mode(False):
                held[side] = self.weight.index_select(0, order)
        return held[side]

    @property
    def mixing(self) -> Work | None:
        return Work(self.edge_set.source.numel(), self.N, 1) if self.K > 1 else None

    def mixed(self, coefficients: Tensor) -> "SharedEdges":
        e, C = self.edge_set, coefficients.to(self.dtype).t()  # (K, H)
        weight = spmm(C, None, e.typing)  # (E, H), a gather whose derivative is summed in a fixed order
        if self.weight is not None:
            weight = weight * self.weight.unsqueeze(1)
        return SharedEdges(e.merged, weight, self.dtype)

    def edges(self) -> EdgeList:
        e = self.edge_set
        weight = torch.ones(e.source.numel(), dtype=self.dtype, device=self.device)
        kept = (e.type, e.source, e.target, weight if self.weight is None else self.weight)
        return EdgeList(*(t.clone() for t in kept))  # whoever asks may write to them

    @property
    def explicit(self) -> "Explicit":
        return self

    def iterate(self, x: Tensor) -> Iterator[Tensor]:
        return iter(self.expand(x))

    def expand(self, x: Tensor) -> Tensor:
        y = self._expand.apply(x)  # (*, N K, P)
        return y.unsqueeze(0) if self.K == 1 else self._apart(y)

    def _apart(self, y: Tensor) -> Tensor:
        """(*, N K, P) -> (K, *, N, P), a view."""
        return y.unflatten(-2, (self.N, self.K)).movedim(-2, 0)

    def combine(self, z: Tensor | Sequence[Tensor | None]) -> Tensor:
        if self.K == 1:
            return self._expand.apply(cast(Tensor, members(z, 1)[0]))
        z = dense(counted(z, self.K))
        return self._combine.apply(z.movedim(0, -2).flatten(-3, -2))  # (*, M K, Q) -> (*, N, Q)

    def each(self, z: Tensor) -> Tensor:
        return self._apart(self._each.apply(z.movedim(0, -2).flatten(-3, -2)))  # (*, M K, D) -> (*, N K, D)

    def work(self, direction: Direction) -> Work:
        rows = self.N if direction == "combine" else self.K * self.N
        return Work(self.edge_set.source.numel(), rows, 1)


class SharedEdges(Explicit):
    """Every edge belongs to all matrices of the family; (E, K) weights on one pattern."""

    @property
    def _matrices(self) -> list[Sparse]:
        # Views of weights that learn are taken anew: in-place steps would cut older ones from the gradient.
        return self._columns() if self.learns else self._fixed_columns

    @kept
    def _fixed_columns(self) -> list[Sparse]:
        return self._columns()

    def _columns(self) -> list[Sparse]:
        assert self.weight is not None
        return [self._sparse(self.edge_set.expand, self.weight[:, k]) for k in range(self.K)]

    def __init__(
        self, edge_set: EdgeSet, weight: Tensor | None, dtype: torch.dtype, evaluate: Evaluate | None = None
    ) -> None:
        super().__init__(edge_set, weight, dtype, evaluate)
        assert self.weight is not None
        self.K = self.weight.shape[1]

    def edges(self) -> EdgeList:
        assert self.weight is not None
        e, E = self.edge_set, self.edge_set.source.numel()
        kind = torch.arange(self.K, device=self.device).repeat_interleave(E)
        weight = torch.cat(self.weight.unbind(1))  # always a copy
        return EdgeList(kind, e.source.repeat(self.K), e.target.repeat(self.K), weight)

    def iterate(self, x: Tensor) -> Iterator[Tensor]:
        return (matrix.apply(x) for matrix in self._matrices)

    def combine(self, z: Tensor | Sequence[Tensor | None]) -> Tensor:
        parts = [matrix.apply(z_k) for matrix, z_k in zip(self._matrices, z, strict=True) if z_k is not None]
        return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]

    def each(self, z: Tensor) -> Tensor:
        return torch.stack([matrix.apply(z_k) for matrix, z_k in zip(self._matrices, z, strict=True)])

    def work(self, direction: Direction) -> Work:
        return Work(self.edge_set.source.numel(), self.N, 1).times(self.K)


def members(z: Tensor | Sequence[Tensor | None], K: int) -> Sequence[Tensor | None]:
    """The K members of z, as a sequence."""
    z = counted(z, K)
    return z.unbind(0) if isinstance(z, Tensor) else z


def counted(z: Tensor | Sequence[Tensor | None], K: int) -> Tensor | Sequence[Tensor | None]:
    """The same, where it has K members."""
    if len(z) != K:
        reject("z", f"{K} members, one for each matrix", len(z), "stack them along the first axis")
    return z


def dense(z: Tensor | Sequence[Tensor | None]) -> Tensor:
    """(K, *, M, Q) from a sequence in which None is a zero."""
    if isinstance(z, Tensor):
        return z
    like = next(z_k for z_k in z if z_k is not None)
    return torch.stack([torch.zeros_like(like) if z_k is None else z_k for z_k in z])


def explicit(K: int, M: int, N: int, edges: EdgeList, dtype: torch.dtype | None = None) -> TypedEdges:
    """The bound basis of a list of edges, checked.

    >>> edges = EdgeList(torch.tensor([0, 1]), torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([1., 2.]))
    >>> explicit(2, 2, 2, edges).expand(torch.tensor([[1.], [10.]])).squeeze(-1)
    tensor([[ 0.,  1.],
            [20.,  0.]])
    """
    kind, source, target, weight = edges
    for name, index, size in (("type", kind, K), ("source", source, M), ("target", target, N)):
        if index.shape != weight.shape:
            reject(
                f"edges.{name}",
                f"the shape of the weights, {tuple(weight.shape)}",
                tuple(index.shape),
                "one each",
            )
        if not portable() and index.numel() and not 0 <= int(index.min()) <= int(index.max()) < size:
            got = (int(index.min()), int(index.max()))
            reject(f"edges.{name}", f"indices from 0 to {size - 1}", got, "correct the edges of the basis")
    return TypedEdges(EdgeSet(K, M, N, None if K == 1 else kind, source, target), weight, dtype or weight.dtype)


def one_list(parts: Sequence[TypedEdges]) -> TypedEdges:
    """Families of the same M and N, one after the other, as one list of edges."""
    first, K, sets = parts[0], sum(part.K for part in parts), [part.edge_set for part in parts]
    starts = accumulate((part.K for part in parts), initial=0)
    kinds = [
        torch.full((e.source.numel(),), start, dtype=torch.int32, device=first.device)
        if e.K == 1
        else e.type.int() + start
        for e, start in zip(sets, starts, strict=False)
    ]
    weight = None
    if any(part.weight is not None for part in parts):
        weight = torch.cat([_ones(part) if part.weight is None else part.weight for part in parts])
    source, target = torch.cat([e.source for e in sets]), torch.cat([e.target for e in sets])
    return TypedEdges(EdgeSet(K, first.M, first.N, torch.cat(kinds), source, target), weight, first.dtype)


def _ones(part: Explicit) -> Tensor:
    return torch.ones(part.edge_set.source.numel(), dtype=part.dtype, device=part.device)


def beside(index: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Numbers in several ranges of some sizes, as numbers in one range.

    >>> beside([torch.tensor([0, 2]), torch.tensor([1])], [3, 2])
    tensor([0, 2, 4], dtype=torch.int32)
    """
    first = accumulate(sizes, initial=0)
    numbers = torch.cat([one.long() + start for one, start in zip(index, first, strict=False)])
    return numbers.to(index_dtype(sum(sizes)))
