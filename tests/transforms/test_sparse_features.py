"""ToSparseFeatures: the same layers, on data, batches and node types."""

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import DataLoader, RandomNodeLoader

from pyg_basisconv import BasisConv, bases
from pyg_basisconv.transforms import ToSparseFeatures


def data(nodes: int = 20) -> Data:
    x = torch.eye(30)[torch.randint(30, (nodes,))]
    return Data(x=x, edge_index=torch.randint(nodes, (2, 50)), words=x * 2)


def test_the_layer_is_the_same() -> None:
    dense, conv = data(), BasisConv(30, 4, bases.GCN())
    sparse = ToSparseFeatures()(dense)
    assert (sparse.x.layout, sparse.words.layout) == (torch.sparse_csr, torch.strided)
    assert dense.x.layout == torch.strided  # the data that came are left as they were
    torch.testing.assert_close(conv(sparse.x, sparse.edge_index), conv(dense.x, dense.edge_index))


@pytest.mark.parametrize("convert", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csc, torch.Tensor.to_sparse_csr])
def test_other_layouts(convert) -> None:
    given = data()
    sparse = ToSparseFeatures()(Data(x=convert(given.x)))
    assert sparse.x.layout == torch.sparse_csr
    assert torch.equal(sparse.x.to_dense(), given.x)


def test_small_graphs_are_batched() -> None:
    graphs = [data(nodes) for nodes in (5, 9, 7)]
    batch = next(iter(DataLoader([ToSparseFeatures()(graph) for graph in graphs], 3)))
    assert batch.x.layout == torch.sparse_csr
    assert torch.equal(batch.x.to_dense(), torch.cat([graph.x for graph in graphs]))


def test_samples_are_turned_one_by_one() -> None:
    for sample in RandomNodeLoader(data(), num_parts=2):
        batch = ToSparseFeatures()(sample)
        assert batch.x.layout == torch.sparse_csr
        assert batch.x.shape == (10, 30)


def test_types_of_nodes_and_names() -> None:
    hetero = HeteroData(a={"x": torch.eye(5)}, b={"x": torch.eye(3)}, c={"num_nodes": 4})
    found = ToSparseFeatures()(hetero)
    assert found["a"].x.layout == found["b"].x.layout == torch.sparse_csr
    assert "x" not in found["c"]
    named = ToSparseFeatures("words")(data())
    assert (named.x.layout, named.words.layout) == (torch.strided, torch.sparse_csr)


@pytest.mark.parametrize(
    ("given", "attr", "said"),
    [
        (Data(num_nodes=3), "x", "data.x: expected features (M, P), got None; name them with attr="),
        (Data(x=torch.randn(3)), "x", "data.x: expected features (M, P), got (3,); name them with attr="),
        (data(), "word", "data.word: expected features (M, P), got None; name them with attr="),
        (HeteroData(a={"num_nodes": 3}), "x", "data.x: expected features (M, P), got None; name them with attr="),
    ],
)
def test_bad_input_is_named(given, attr: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"^data") as error:
        ToSparseFeatures(attr)(given)
    assert str(error.value) == said
