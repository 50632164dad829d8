"""Transforms of data, in the style of `torch_geometric.transforms`."""

from .basis import AddBasis, InducedBasis
from .to_grid import ToGrid

__all__ = ["AddBasis", "InducedBasis", "ToGrid"]
