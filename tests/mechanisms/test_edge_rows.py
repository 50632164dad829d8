"""Features of edges, or of all pairs, of each graph in a batch."""

import pytest
import torch

from pyg_basisconv import BasisConv, bases
from pyg_basisconv.mechanisms import Edge


def test_features_of_edges_or_of_pairs() -> None:
    """Where a shape may be either, the call says which."""

    conv = BasisConv(3, 2, bases.Attention(1, Edge(2), bases.Adjacency()))
    edge_index, x = torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.randn(3, 3, 3)
    with pytest.raises(ValueError, match="edge_attr: expected a shape of pairs or of 3 graphs' edges, but not of both"):
        conv(x, edge_index, edge_attr=torch.randn(3, 3, 2))
    z = torch.randn(3, 3, 2)
    pairs = conv(x, edge_index, edge_attr=z.expand(3, 3, 3, 2))
    torch.testing.assert_close(pairs, conv(x, edge_index, edge_attr=z[edge_index[0], edge_index[1]]))
