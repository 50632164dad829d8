"""Features that are mostly zeros as sparse matrices."""

from typing import Any

from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import BaseTransform

from ..errors import reject, shape_or_type


class ToSparseFeatures(BaseTransform):
    r"""Turns features that are mostly zeros into a `torch.sparse_csr` matrix, which a layer multiplies as such.

    `pyg_basisconv.nn.Dropout` drops among its entries. PyG's `DataLoader` puts such matrices below each other; its
    loaders of samples take no rows out of one: turn each sample, `NeighborLoader(..., transform=ToSparseFeatures())`.

    Args:
        attr: the name of the features; of a `HeteroData`, those of all node types that have them.

    Raises:
        ValueError: for data without such a matrix.

    >>> import torch
    >>> from pyg_basisconv import BasisConv, bases
    >>> data = ToSparseFeatures()(Data(x=torch.eye(100), edge_index=torch.randint(100, (2, 400))))
    >>> data.x.layout
    torch.sparse_csr
    >>> BasisConv(100, 8, bases.GCN())(data.x, data.edge_index).shape
    torch.Size([100, 8])
    """

    def __init__(self, attr: str = "x") -> None:
        self.attr = attr

    def forward(self, data: Data | HeteroData) -> Data | HeteroData:
        stores = [store for store in data.node_stores if self.attr in store]
        for store in stores or data.node_stores[:1]:
            store[self.attr] = self._sparse(store.get(self.attr))
        return data

    def _sparse(self, x: Any) -> Tensor:
        if not isinstance(x, Tensor) or x.dim() != 2:
            reject(f"data.{self.attr}", "features (M, P)", shape_or_type(x), "name them with attr=")
        return x.to_sparse_csr()
