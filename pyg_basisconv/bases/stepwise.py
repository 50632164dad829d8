"""Walks in the portable path, which may not read indices: products of the matrices of steps, on all nodes."""

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from ..basis import BoundBasis, EdgeList
from ..edge_set import EdgeSet
from ..errors import reject
from ..graph import Graph
from ..portable import refuse
from ..typed_edges import TypedEdges
from ..walks import Step
from .adjacency import inverse_sqrt, reciprocal
from .concat import BoundConcat
from .identity import BoundIdentity
from .mix import BoundMix
from .product import BoundProduct
from .relations import Norm, normalised


class Stepwise(BoundConcat):
    """One family for each sort; for the portable path, see `BoundWalks`."""

    def edges(self) -> EdgeList:
        refuse("basis", "a family that is applied, and not written out", self)
        raise NotImplementedError

    def remake(self, parts: Sequence[BoundBasis]) -> "Stepwise":
        return Stepwise(parts)


def stepwise(graph: Graph, sorts: Sequence[Sequence[Sequence[Step]]], norm: Norm, each: Norm) -> Stepwise:
    """Binds walks, whose sorts are sequences of steps, with a norm of the walks, and one of each step."""
    steps = dict.fromkeys(step for several in sorts for sequence in several for step in sequence)
    if graph.structure.type is None and not steps.keys() <= {((0, False),), ((0, True),)}:
        reject("edge_type", "a relation for each edge", None, "pass edge_type")

    def bound(weights: Tensor, dtype: torch.dtype) -> list[BoundBasis]:
        matrices = {step: _matrix(graph, step, weights, each, dtype) for step in steps}

        def product(sequence: Sequence[Step]) -> BoundBasis:
            factors: list[BoundBasis] = [matrices[step] for step in sequence]
            return reduce(BoundProduct, factors) if factors else BoundIdentity(graph.M, dtype, graph.device)

        every = [[product(sequence) for sequence in several] for several in sorts]
        return [BoundMix([[1.0] * len(one)], BoundConcat(one)) if len(one) > 1 else one[0] for one in every]

    found = bound(graph.weights, graph.dtype)
    if norm is None:
        return Stepwise(found)
    ones = torch.ones(graph.M, 1, dtype=graph.acc_dtype, device=graph.device)
    counted = bound(graph.weights if norm != "mean" else torch.ones_like(graph.source, dtype=ones.dtype), ones.dtype)
    scale = inverse_sqrt if norm == "sym" else reciprocal
    if norm != "mean":
        before = (_diagonal(scale(one.T.combine([ones])), graph) for one in counted)
        found = [BoundProduct(D, one) for D, one in zip(before, found, strict=True)]
    if norm != "row":
        after = (_diagonal(scale(one.combine([ones])), graph) for one in counted)
        found = [BoundProduct(one, D) for one, D in zip(found, after, strict=True)]
    return Stepwise(found)


def _matrix(graph: Graph, step: Step, weights: Tensor, norm: Norm, dtype: torch.dtype) -> TypedEdges:
    """The matrix of a step: all edges, once for each alternative, with the weight 0 for other relations."""
    s = graph.structure
    ends = [(s.target, s.source) if inverse else (s.source, s.target) for _, inverse in step]
    source, target = (torch.cat(side) for side in zip(*ends, strict=True))
    every = [torch.ones_like(s.source, dtype=torch.bool) if s.type is None else s.type == r for r, _ in step]
    alive = torch.cat(every)
    edges = EdgeSet(1, graph.M, graph.N, None, source, target, alive)
    weight = torch.where(alive, weights.repeat(len(step)), 0)
    return TypedEdges(edges, normalised(edges, weight, norm, graph.acc_dtype), dtype)


def _diagonal(values: Tensor, graph: Graph) -> TypedEdges:
    nodes = torch.arange(graph.M, device=graph.device)
    return TypedEdges(EdgeSet(1, graph.M, graph.M, None, nodes, nodes), values.squeeze(1), graph.dtype)
