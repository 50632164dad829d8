"""Faults that were found from outside: each stood here as a test that failed, before it was mended."""

from collections.abc import Iterator
from typing import Any

import contract
import pytest
import torch
from cases import CASES
from torch import Tensor
from torch_geometric import nn as geometric

from pyg_basisconv import BasisConv, bases, compose
from pyg_basisconv.bases import BoundBasis
from pyg_basisconv.convert import convert

DOUBLE = torch.float64


# What a call returns is the caller's own: whatever is written to it, later results are as they were.

# One graph for each family of the registry.
FAMILIES = list({name.split("-")[0]: name for name in reversed(CASES)}.values())


def spoil(given: Any) -> None:
    """Writes to all the tensors in what a call returned."""
    if isinstance(given, tuple | list):
        for part in given:
            spoil(part)
    elif isinstance(given, Tensor) and given.layout == torch.sparse_coo:
        spoil([given.indices(), given.values()])
    elif isinstance(given, Tensor):
        given.data.fill_(0 if given.dtype in (torch.int32, torch.int64) else 7)


def returned(bound: BoundBasis) -> Iterator[Any]:
    """What a bound family, the same turned round, and the same written out give when they are asked."""
    for b in (bound, bound.T, bound.explicit, bound.explicit.T):
        K, M = b.K, b.M
        yield b.edges()
        yield b.to_coo()
        yield b.to_dense()
        yield b.expand(contract.draw(M, 3))
        yield list(b.iterate(contract.draw(M, 3)))
        yield b.combine(contract.draw(K, M, 3))
        yield b.each(contract.draw(K, M, 3))


def results(bound: BoundBasis, conv: BasisConv) -> list[Tensor]:
    x = contract.draw(bound.M, 3)
    outcome = [contract.take(conv, path)((x, None), bound).detach() for path in contract.PATHS]
    return [*outcome, bound.to_dense().clone(), bound.T.to_dense().clone(), bound.to_coo().to_dense()]


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_bound_basis_returns_may_be_written_to(name: str) -> None:
    case = CASES[name]
    basis = case.basis()
    bound = contract.bind(basis, case.graph())
    conv = contract.make(basis)
    before = results(bound, conv)
    for _ in range(2):  # what is kept is there the second time
        for given in returned(bound):
            spoil(given)
    for a, b in zip(results(bound, conv), before, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("layout", ["edge_index", "sparse"])
@pytest.mark.parametrize("kind", [geometric.GATConv, geometric.GATv2Conv])
def test_the_edges_that_attention_returns_may_be_written_to(kind: Any, layout: str) -> None:
    """Those with the loops that the layer adds, which are made once for a graph."""
    layer = convert(kind(3, 2, heads=2).double())
    x, edges = contract.draw(5, 3), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 3]])
    if layout == "sparse":
        edges = torch.sparse_coo_tensor(edges.flip(0), torch.ones(4, dtype=DOUBLE), (5, 5)).coalesce()

    def run() -> tuple[Tensor, Tensor]:
        y, (found, *_) = layer(x, edges, return_attention_weights=True)
        return y, found

    y, found = run()
    before, expected = y.clone(), found.clone()
    for _ in range(2):
        spoil(run())
    for a, b in zip(run(), (before, expected), strict=True):
        assert torch.equal(*((t.to_dense() if t.is_sparse else t) for t in (a, b)))


def test_the_constants_of_two_layers_may_be_written_to() -> None:
    both = compose(*(contract.make(bases.Adjacency(), P=3, Q=3) for _ in range(2)))  # with biases
    edges, x = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 3]]), contract.draw(4, 3)
    bound = both.basis.bind(edges, size=4, dtype=DOUBLE)
    before = both(x, bound).detach()
    assert bound.levels.any()
    spoil(bound.levels)
    assert torch.equal(both(x, bound), before)
