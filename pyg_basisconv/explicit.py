"""Families whose edges are written out, and what is made of several of them."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from .bound import BoundBasis, Explicit, ListedEdges, SharedEdges, TypedEdges, counted, dense, explicit, members
from .edge_set import EdgeSet
from .kernels.lists import List, lists_of
from .kernels.pattern import index_dtype
from .sparse import Sparse

__all__ = [
    "EdgeSet",
    "Explicit",
    "ListedEdges",
    "SharedEdges",
    "Sparse",
    "TypedEdges",
    "counted",
    "dense",
    "disjoint",
    "explicit",
    "members",
    "one_list",
]


def one_list(parts: Sequence[BoundBasis]) -> TypedEdges | None:
    """Families of the same M and N, one after the other, as one list of edges; None where that costs too much."""
    first, K = parts[0], 0
    starts: list[int] = []
    entries: list[List] = []
    listed = True
    for part in parts:
        lists = part.lists
        listed &= bool(lists)
        entries += [e.from_member(K) for e in lists] if K else lists
        starts.append(K)
        K += part.K
    if listed and lists_of(first.dtype, K * max(first.M, first.N)):
        return ListedEdges(K, first.M, first.N, entries, first.dtype)
    typed = [family for part in parts if (family := part.typed) is not None]
    if len(typed) < len(parts):
        return None
    sets = [part.edge_set for part in typed]
    kinds = [
        torch.full((e.source.numel(),), start, dtype=torch.int32, device=first.device)
        if e.K == 1
        else e.type.int() + start
        for e, start in zip(sets, starts, strict=True)
    ]
    weight = None
    if any(part.weight is not None for part in typed):
        weight = torch.cat([_ones(part) if part.weight is None else part.weight for part in typed])
    source, target = torch.cat([e.source for e in sets]), torch.cat([e.target for e in sets])
    return TypedEdges(EdgeSet(K, first.M, first.N, torch.cat(kinds), source, target), weight, first.dtype)


def _ones(part: Explicit) -> Tensor:
    return torch.ones(part.edge_set.source.numel(), dtype=part.dtype, device=part.device)


def disjoint(index: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Numbers in several ranges of some sizes, as numbers in one range.

    >>> disjoint([torch.tensor([0, 2]), torch.tensor([1])], [3, 2])
    tensor([0, 2, 4], dtype=torch.int32)
    """
    first = accumulate(sizes, initial=0)
    numbers = torch.cat([one.long() + start for one, start in zip(index, first, strict=False)])
    return numbers.to(index_dtype(sum(sizes)))
