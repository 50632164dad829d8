"""Anything into what works with PyG's own data and models: what the definition says, or a ValueError or TypeError."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch_geometric.data import Data

from pyg_basisconv import bases, block_diagonal
from pyg_basisconv.blocks import AttentionPooling
from pyg_basisconv.transforms import AddBasis, InducedBasis
from tests import test_blocks as blocks
from tests.contract import DOUBLE, bind, close, expected, make
from tests.fuzz import pyg
from tests.fuzz.families import families, graphs
from tests.fuzz.support import alien, anything, fuzz, junk, numbers, refused


@fuzz(100, equal=0.4, refused=0.2)
def test_typed_edges(data: st.data()) -> str:
    """`HeteroBasisConv` is the sum over the types of edges."""
    c = data.draw(pyg.typed())
    if data.draw(st.booleans()):
        pyg.untyped(c, data.draw)
        assert refused(c.run), f"was let through: {c}"
        return "refused"
    y, reference = c.run(), c.reference()
    assert set(y) == set(reference)
    for t in y:
        close(y[t], reference[t], 1e-9)
    return "equal"


@fuzz(80, equal=0.4, refused=0.15)
def test_models(data: st.data()) -> str:
    """`BasisGNN` is its layers, one after the other."""
    c = data.draw(pyg.models())
    if data.draw(st.booleans()):
        pyg.spoil(c, data.draw)
        assert refused(c.run), f"was let through: {c}"
        return "refused"
    reference = c.reference()
    torch.testing.assert_close(c.run(), reference, rtol=1e-9, atol=1e-9 * (1 + float(reference.detach().abs().sum())))
    return "equal"


@fuzz(100, equal=0.1, refused=0.3)
def test_edges_in_data(data: st.data()) -> str:
    """The edges of `AddBasis` are the basis, and those of `InducedBasis` its rows and columns."""
    family, g, graph = data.draw(pyg.data())
    A = family.matrices(g)
    if data.draw(st.integers(0, 4)) == 0:
        wrong = data.draw(junk)
        name = data.draw(st.sampled_from(["edge_index", "data", "basis"]))
        if name == "edge_index":
            graph.edge_index = wrong
            assert refused(lambda: AddBasis(family.basis)(graph)), f"{wrong} was let through"
        elif name == "data":
            assert refused(lambda: AddBasis(family.basis)(wrong))
        else:
            assert refused(lambda: AddBasis(data.draw(alien.filter(lambda b: not isinstance(b, bases.Adjacency)))))
        return "refused"
    out = AddBasis(family.basis)(graph)
    edges = out.basis_edge_index, out.basis_edge_type, out.basis_edge_weight
    close(pyg.dense(len(A), g.M, edges), A, 1e-9)
    layer = make(bases.Edges(len(A)), P=2, Q=2)
    close(layer(out.x, edges[0], edges[2], edges[1]), expected(layer, A, out.x), 1e-8)
    if data.draw(st.integers(0, 3)) == 0:
        wrong = pyg.wrong_attributes(out)
        name = data.draw(st.sampled_from(sorted(wrong)))
        out.update(wrong[name])
        assert refused(lambda: InducedBasis(out)), f"{name} was let through"
        return "refused"
    induced = InducedBasis(out)
    several = data.draw(st.integers(1, 2))
    orders = [data.draw(st.permutations(range(g.M)))[: data.draw(st.integers(0, g.M))] for _ in range(several)]
    n_id = torch.tensor([n for order in orders for n in order], dtype=torch.long)
    sample = torch.tensor([s for s, order in enumerate(orders) for _ in order], dtype=torch.long)
    batch = Data(num_nodes=len(n_id), n_id=n_id, batch=sample)
    if data.draw(st.integers(0, 3)) == 0:
        wrong = pyg.wrong_samples(n_id[sample == 0], g.M)
        name = data.draw(st.sampled_from(sorted(wrong)))
        given = {"n_id": n_id[sample == 0], "num_nodes": len(orders[0])} | wrong[name]
        assert refused(lambda: induced(Data(**given))), f"{name} was let through"
        return "refused"
    got = induced(batch)
    found = pyg.dense(len(A), len(n_id), (got.basis_edge_index, got.basis_edge_type, got.basis_edge_weight))
    close(found, A[:, n_id][:, :, n_id] * (sample[:, None] == sample), 1e-9)
    return "equal"


@fuzz(100, equal=0.4, refused=0.2)
def test_blocks_of_graphs(data: st.data()) -> str:
    """`block_diagonal` is torch.block_diag of each matrix, also of families that are not alike."""
    family = data.draw(families)
    several = data.draw(st.lists(graphs(family), min_size=1, max_size=3))
    bounds = [bind(family.basis, g) for g in several]
    matrices = [family.matrices(g) for g in several]
    if data.draw(st.integers(0, 2)) == 0:
        one = bounds[0]
        place = data.draw(st.integers(0, len(bounds)))
        other = [
            bind(family.basis + bases.Adjacency(), several[0]) if family.types == family.columns == 0 else None,
            bases.Identity().bind(size=2, dtype=torch.float32),
            family.basis,
            one.to_dense(),
            data.draw(junk),
        ]
        wrong = [*bounds[:place], data.draw(st.sampled_from(other)), *bounds[place:]]
        kind = data.draw(st.sampled_from([wrong, wrong, wrong, [], one, data.draw(anything)]))
        assert refused(lambda: block_diagonal(kind)), f"{kind} was let through"
        return "refused"
    if data.draw(st.booleans()):
        bounds, matrices = [*bounds, bounds[0].T], [*matrices, matrices[0].transpose(1, 2)]
    joined = block_diagonal(bounds)
    A = torch.stack([torch.block_diag(*parts) for parts in zip(*matrices, strict=True)])
    A = A.reshape(len(A), joined.M, joined.N)
    close(joined.to_dense(), A, 1e-9)
    close(joined.T.to_dense(), A.transpose(1, 2), 1e-9)
    x = numbers(joined.M, 2)
    close(joined.expand(x), A.transpose(1, 2) @ x, 1e-8)
    return "equal"


@fuzz(80, equal=0.4, refused=0.15)
def test_calls_of_blocks(data: st.data()) -> str:
    """Each block is its formula, on sequences of any length, or refuses what is no sequence."""
    name = data.draw(st.sampled_from(sorted(blocks.BLOCKS)))
    block = blocks.make(name).eval()
    pools = isinstance(block, AttentionPooling)
    lead = data.draw(st.sampled_from([(), (2,), (0,), (1, 2)]))
    N = 7 if pools else data.draw(st.integers(0, 6))
    x = numbers(*lead, N, 6, seed=data.draw(st.integers(0, 9)))
    if data.draw(st.integers(0, 2)) == 0:
        wrong = pyg.wrong_inputs(block, x)
        name = data.draw(st.sampled_from(sorted(wrong)))
        assert refused(lambda: block(wrong[name])), f"{name} was let through"
        told, other = pyg.READ.get(type(block)), data.draw(alien)
        assert told is None or refused(lambda: block(x, **{told: other})), f"{other} was let through"
        return "refused"
    y = blocks.call(block, x)
    assert y.dtype == DOUBLE
    assert y.shape == (*lead, 3 if pools else N, 6)
    if x[..., 0].numel() < 2:  # of which a block may take no mean or variance
        return "equal"
    if "Routing" in name:
        y = block.train()(x)
    close(y, blocks.BLOCKS[name][1](block, x), 1e-9)
    return "equal"


def edges_and(**changes: Any) -> Data:
    """The attributes that `AddBasis` gives to a ring of three nodes, but for some."""
    ring = torch.tensor([[0, 1, 2], [1, 2, 0]])
    out = AddBasis(bases.Adjacency())(Data(x=torch.ones(3, 1), edge_index=ring))
    return out.update(changes)


def sampled(**sample: Any) -> Data:
    return InducedBasis(edges_and())(Data(num_nodes=2, **sample))


FOUND: dict[str, Callable[[], Any]] = {
    "source beyond the nodes": lambda: InducedBasis(edges_and(basis_edge_index=torch.tensor([[5, 1, 2], [1, 2, 0]]))),
    "target beyond the nodes": lambda: InducedBasis(edges_and(basis_edge_index=torch.tensor([[0, 1, 2], [1, 2, 7]]))),
    "floating ends": lambda: InducedBasis(edges_and(basis_edge_index=torch.ones(2, 3))),
    "fewer weights than ends": lambda: InducedBasis(edges_and(basis_edge_weight=torch.ones(2))),
    "complex samples": lambda: sampled(n_id=torch.arange(2), batch=torch.zeros(2, dtype=torch.complex64)),
    "nodes elsewhere": lambda: sampled(n_id=torch.arange(2, device="meta")),
    **{
        f"{name} into {block}": lambda block=block, x=x: blocks.make(block)(x)
        for block in ("LightweightConv-3", "DynamicConv-3", "CausalAttention", "RoutingBlock", "AttentionPooling")
        for name, x in {"nothing": None, "wider": numbers(2, 7), "float32": torch.ones(2, 6)}.items()
    },
}


@pytest.mark.parametrize("name", FOUND)
def test_found_before(name: str) -> None:
    assert refused(FOUND[name])
