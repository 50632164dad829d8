"""Layers of `pyg_basisconv.nn` in the place of PyG's: what users have who change one import."""

from collections.abc import Callable
from typing import Any

from torch import nn
from torch_geometric import nn as pyg

from pyg_basisconv import nn as of_nn

HEADS = 8
LAYERS: dict[str, Callable[[Any, int], nn.Module]] = {  # made of a library's layers, for a width
    "GCNConv": lambda library, width: library.GCNConv(width, width),
    "GraphConv": lambda library, width: library.GraphConv(width, width),
    "GATConv 8 heads": lambda library, width: library.GATConv(width, width // HEADS, HEADS),
    "TransformerConv 8 heads": lambda library, width: library.TransformerConv(width, width // HEADS, HEADS),
}


class DropIn:
    """One of these layers: PyG's, and ours of it. width: of the features."""

    def __init__(self, name: str, width: int) -> None:
        self.name, self._make, self._width = f"{name}, of nn", LAYERS[name], width

    def make(self) -> nn.Module:
        return self._make(pyg, self._width)

    def convert(self, layer: nn.Module) -> nn.Module:
        """The layer of `pyg_basisconv.nn` with the parameters of PyG's."""
        ours = self._make(of_nn, self._width)
        ours.load_state_dict(layer.state_dict())
        return ours.to(next(layer.parameters()))
