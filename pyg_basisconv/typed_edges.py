"""Families with their edges written out, which every other family can be brought to."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from .backend import uses_triton
from .bound import CONSTRUCTORS, EdgeList, Explicit
from .cache import cached_property, kept
from .costs import Direction, Work
from .edge_set import EdgeSet
from .entries import Entries
from .errors import reject, shape_or_type
from .kernels import Matchings, NonzeroRows, Pattern, attention, shared, spmm, spmm_rows, typed_matmul
from .kernels.lists import List, Matrix, compressed, ends, kinds, paired, weights
from .kernels.op import acc_dtype, autocasting
from .kernels.pattern import extremes, in_range, select
from .orders.compacted import Compact, Compaction, End
from .sparse import Evaluate, Sparse


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

    @property
    def _into(self) -> Matrix:
        """From M sources to the K members of N targets."""
        return self._expand.compressed

    @property
    def _from(self) -> Matrix:
        """From the K members of M sources to N targets."""
        return self._combine.compressed

    @property
    def by_target(self) -> Matrix | None:
        return self._into if self.K == 1 and self.takes_rows else None

    def expand_rows(self, x: Tensor) -> Tensor:
        return spmm_rows(x, *self._into, join=self.K)

    def combine_rows(self, z: Tensor) -> Tensor:
        return self.expand_rows(z) if self.K == 1 else spmm_rows(z, *self._from, split=self.K)

    @property
    def total(self) -> "TypedEdges":
        return self if self.K == 1 else self._merged

    @kept
    def _merged(self) -> "TypedEdges":
        return TypedEdges(self.edge_set.merged, self.weight, self.dtype)

    @property
    def typed(self) -> "TypedEdges":
        return self

    @kept
    def matchings(self) -> Matchings | None:
        return None if self.weight is not None or self.K == 1 else self.edge_set.matchings

    def compact(self, side: End) -> Compact | None:
        e = self.edge_set
        if self.K == 1:
            return None
        tiled = super().compact(side)
        if tiled is not None:
            return tiled
        source = side == "source"
        pairs = e.T.pairs if source else e.pairs
        edges, rows = Work(self.E, pairs.count), Work(pairs.count, pairs.count)
        gather, scatter = (rows, edges) if source else (edges, rows)
        # Weights in the order in which they were given may be a tensor of the user's, who may change it unseen.
        held = None if self.learns or pairs.order is None else self._held

        def run(x: Tensor, weight: Tensor) -> Tensor:
            return typed_matmul(x, weight, self._by_pair(side, pairs.order), pairs, source, held)

        launches = 1 if uses_triton(self.device) else pairs.members
        return Compact(run, Compaction(side, gather, pairs.count, scatter, pairs.members, launches))

    def _by_pair(self, side: End, order: Tensor | None) -> Tensor | None:
        """The weights in the order of the pairs; cached if they are constants."""
        if self.weight is None:
            return None
        if self.learns or order is None:
            return select(self.weight, order)
        return self.keep(side, lambda: select(cast(Tensor, self.weight), order))

    @property
    def mixing(self) -> Work | None:
        return Work(self.E, self.N, 1) if self.K > 1 else None

    def mixed(self, coefficients: Tensor) -> "SharedEdges":
        e, C = self.edge_set, coefficients.to(self.dtype).t()  # (K, H)
        weight = spmm(C, None, e.type_pattern)  # (E, H), a gather whose derivative is summed in a fixed order
        if self.weight is not None:
            weight = weight * self.weight.unsqueeze(1)
        return SharedEdges(e.merged, weight, self.dtype)

    def edges(self) -> EdgeList:
        e = self.edge_set
        weight = torch.ones(self.E, dtype=self.dtype, device=self.device)
        kept = (e.kinds, e.source, e.target, weight if self.weight is None else self.weight)
        return EdgeList(*(t.clone() for t in kept))  # the caller may write to them

    @property
    def explicit(self) -> "Explicit":
        return self

    def iterate(self, x: Tensor) -> Iterable[Tensor]:
        return members(self.expand(x), self.K)

    def expand(self, x: Tensor) -> Tensor:
        y = self._expand.apply(x)  # (*, N K, P)
        return y.unsqueeze(0) if self.K == 1 else self._members(y)

    def _members(self, y: Tensor) -> Tensor:
        """(*, N K, P) -> (K, *, N, P), a view."""
        return y.view(*y.shape[:-2], self.N, self.K, y.shape[-1]).movedim(-2, 0)

    def combine(self, z: Tensor | Sequence[Tensor | None]) -> Tensor:
        if self.K == 1:
            return self._expand.apply(members(z, 1)[0])
        z = dense(check_members(z, self.K))
        return self._combine.apply(self._by_node(z))  # (*, N, Q)

    def each(self, z: Tensor) -> Tensor:
        return self._members(self._each.apply(self._by_node(z)))  # (K, *, N, D)

    def _by_node(self, z: Tensor) -> Tensor:
        """(K, *, M, D) -> (*, M K, D)"""
        return z.movedim(0, -2).reshape(*z.shape[1:-2], self.M * self.K, z.shape[-1])

    def work(self, direction: Direction) -> Work:
        rows = self.N if direction == "combine" else self.K * self.N
        return Work(self.E, rows, 1)


class ListedEdges(TypedEdges):
    """Constant typed edges on the CPU, in numpy lists; an `EdgeSet` is made on first use only.

    So a graph that is new in every step is bound in a few operations.
    """

    learns = requires_grad = False
    evaluate = None
    takes_rows = True
    device = torch.device("cpu")

    def __init__(self, K: int, M: int, N: int, lists: Sequence[List], dtype: torch.dtype) -> None:
        self.K, self.M, self.N, self.lists, self.dtype = K, M, N, lists, dtype

    @kept
    def edge_set(self) -> EdgeSet:
        return EdgeSet(self.K, self.M, self.N, None if self.K == 1 else kinds(self.lists), *ends(self.lists))

    @kept
    def weight(self) -> Tensor | None:
        return weights(self.lists, self.dtype)

    @cached_property
    def _into(self) -> Matrix:
        return compressed(self.lists, self.K, (self.M, self.N), "target", self.dtype)

    @cached_property
    def _from(self) -> Matrix:
        return compressed(self.lists, self.K, (self.M, self.N), "source", self.dtype)

    def find_entries(self) -> Entries:
        if self.K > 1:
            return super().find_entries()
        pattern = Pattern(*ends(self.lists), self.M, self.N)
        vars(self).setdefault("edge_set", EdgeSet.of_pattern(pattern))  # which shares what follows from the entries
        return Entries(pattern, weights(self.lists, self.dtype))

    @kept
    def nonzero_rows(self) -> NonzeroRows | None:
        K, M, N, E, dtype = self.K, self.M, self.N, self.E, self.dtype
        if K == 1 or not E:
            return None
        entries, at, counts = paired(self.lists, K, (M, N), dtype)
        return NonzeroRows(ListedEdges(1, M, at.size, [entries], dtype), torch.from_numpy(at), counts)

    @kept
    def _merged(self) -> "ListedEdges":
        return ListedEdges(1, self.M, self.N, [List(0, e.source, e.target, e.weight) for e in self.lists], self.dtype)

    @cached_property
    def adjoint(self) -> "ListedEdges":  # cached in the portable path, too: transforms do not see numpy arrays
        return ListedEdges(self.K, self.N, self.M, [e.T for e in self.lists], self.dtype)

    @property
    def T(self) -> "ListedEdges":
        return self.adjoint

    def _of(self, edge_set: EdgeSet, weight: Tensor | None, evaluate: Evaluate | None) -> TypedEdges:
        return TypedEdges(edge_set, weight, self.dtype, evaluate)

    @property
    def E(self) -> int:
        return sum(e.source.size for e in self.lists)


class SharedEdges(Explicit):
    """Every edge belongs to all matrices of the family; (E, K) weights on one pattern."""

    weight: Tensor

    @property
    def _matrices(self) -> list[Sparse]:
        # Views of weights that learn are made for each use, as an in-place update would detach older ones.
        return self._columns() if self.learns else self.keep("columns", self._columns)

    def _columns(self) -> list[Sparse]:
        columns = self.weight.t().contiguous().unbind(0)  # (E,) each, as kernels read them
        return [self._sparse(self.edge_set.expand, column) for column in columns]

    def __init__(
        self, edge_set: EdgeSet, weight: Tensor | None, dtype: torch.dtype, evaluate: Evaluate | None = None
    ) -> None:
        super().__init__(edge_set, weight, dtype, evaluate)
        self.K = self.weight.shape[1]

    def edges(self) -> EdgeList:
        e, E = self.edge_set, self.E
        kind = torch.arange(self.K, device=self.device).repeat_interleave(E)
        weight = torch.cat(self.weight.unbind(1))  # always a copy
        return EdgeList(kind, e.source.repeat(self.K), e.target.repeat(self.K), weight)

    @property
    def _pattern(self) -> Pattern:
        return self.edge_set.expand

    @kept
    def _fixed_weights(self) -> Tensor:
        return select(self.weight, self._pattern.by_target.order)

    def _weights(self, dtype: torch.dtype) -> Tensor:
        """(E, K) by target, in the dtype of x, which autocast may have changed."""
        weight = select(self.weight, self._pattern.by_target.order) if self.learns else self._fixed_weights
        return weight if weight.dtype == dtype else weight.to(dtype)

    def iterate(self, x: Tensor) -> Iterable[Tensor]:
        if self.evaluate is not None:
            return (matrix.apply(x) for matrix in self._matrices)
        if x.dim() == 2:
            return shared.Expanded(x, self._weights(x.dtype), self._pattern)
        return members(self.expand(x), self.K)

    def runs(self, x: Tensor) -> int | None:
        return shared.runs_of(x, self.K, self.N) if self.evaluate is None and x.dim() == 2 else None

    def expand(self, x: Tensor) -> Tensor:
        if self.evaluate is not None:
            return super().expand(x)
        flat = x.movedim(-2, 0)  # (M, *, P)
        y = shared.expand(flat.flatten(1), self._weights(x.dtype), self._pattern)
        return y.view(self.N, self.K, *flat.shape[1:]).movedim((1, 0), (0, -2))  # (K, *, N, P)

    def combine(self, z: Tensor | Sequence[Tensor | None]) -> Tensor:
        if self.evaluate is not None:
            parts = [matrix.apply(z_k) for matrix, z_k in zip(self._matrices, z, strict=True) if z_k is not None]
            return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]
        rows = dense(check_members(z, self.K)).movedim(-2, 0)  # (M, K, *, Q)
        y = shared.combine(rows.flatten(1), self._weights(rows.dtype), self._pattern)
        return y.view(self.N, *rows.shape[2:]).movedim(0, -2)  # (*, N, Q)

    def each(self, z: Tensor) -> Tensor:
        z = cast(Tensor, check_members(z, self.K))
        if z.dim() == 3 and self.K > 1 and self.evaluate is None and not autocasting(z.device):
            weight = self._weights(acc_dtype(z.dtype))  # of all matrices, in one pass over the edges
            return attention(weight.t(), None, z, False, self._pattern)
        return torch.stack([matrix.apply(z_k) for matrix, z_k in zip(self._matrices, z, strict=True)])

    def work(self, direction: Direction) -> Work:
        if direction == "each" or not shared.runs_on(self.device):
            return Work(self.E, self.N, 1).times(self.K)
        if direction == "expand":  # a gathered row serves all matrices
            return Work(self.E, self.K * self.N, 1, self.K * self.E)
        return Work(self.K * self.E, self.N, 1, self.K * self.E)


def explicit(K: int, M: int, N: int, edges: EdgeList, dtype: torch.dtype | None = None) -> TypedEdges:
    """The bound basis of a list of edges, checked.

    >>> edges = EdgeList(torch.tensor([0, 1]), torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([1., 2.]))
    >>> explicit(2, 2, 2, edges).expand(torch.tensor([[1.], [10.]])).squeeze(-1)
    tensor([[ 0.,  1.],
            [20.,  0.]])
    """
    if not isinstance(edges, EdgeList):
        reject("edges", "an EdgeList of four tensors", type(edges).__name__, "return bases.EdgeList(type, source, ...)")
    for name, part in edges._asdict().items():
        if not isinstance(part, Tensor):
            fix = "one entry per edge: zeros for a single type, ones as weights"
            reject(f"edges.{name}", "a tensor, (E,)", shape_or_type(part), fix)
    kind, source, target, weight = edges
    if weight.dim() != 1:
        reject("edges.weight", "a number for each edge, (E,)", tuple(weight.shape), "flatten it")
    for name, index, size in (("type", kind, K), ("source", source, M), ("target", target, N)):
        if index.is_floating_point():
            reject(f"edges.{name}", "integers", index.dtype, "convert it with .long()")
        if index.shape != weight.shape:
            got = f"{tuple(index.shape)}, beside weights of {tuple(weight.shape)}"
            reject(f"edges.{name}", "as many numbers as edges.weight has", got, "give one of each per entry")
        if not in_range(index, size):
            fix = "correct the edges of the basis"
            reject(f"edges.{name}", f"indices from 0 to {size - 1}", "{} to {}".format(*extremes(index)), fix)
    return TypedEdges(EdgeSet(K, M, N, kind, source, target), weight, dtype or weight.dtype)


CONSTRUCTORS["explicit"] = explicit


def members(z: Tensor | Sequence[Tensor | None], K: int) -> Sequence[Any]:
    """The K members of z as a sequence. A single member is not made by `unbind`, whose views cannot be written to."""
    z = check_members(z, K)
    if not isinstance(z, Tensor):
        return z
    return z.unbind(0) if K > 1 else (z.squeeze(0),)


def check_members(z: Tensor | Sequence[Tensor | None], K: int) -> Tensor | Sequence[Tensor | None]:
    """z, if it has K members, and one that is not None; rejects others."""
    if len(z) != K:
        reject("z", f"{K} members, one for each matrix", len(z), "stack them along the first axis")
    if not isinstance(z, Tensor) and all(z_k is None for z_k in z):
        reject("z", "at least one member that is not None", z, "there is nothing to combine")
    return z


def dense(z: Tensor | Sequence[Tensor | None]) -> Tensor:
    """(K, *, M, Q) from a sequence in which None means zeros."""
    if isinstance(z, Tensor):
        return z
    like = next(z_k for z_k in z if z_k is not None)
    if len(z) == 1:
        return like.unsqueeze(0)  # no copy
    return torch.stack([torch.zeros_like(like) if z_k is None else z_k for z_k in z])
