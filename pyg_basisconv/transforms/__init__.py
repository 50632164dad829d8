"""Transforms of data, in the style of `torch_geometric.transforms`."""

from .basis import AddBasis, InducedBasis
from .sparse_features import ToSparseFeatures
from .to_grid import ToGrid

__all__ = ["AddBasis", "InducedBasis", "ToGrid", "ToSparseFeatures"]
