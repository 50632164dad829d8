"""Layers of `pyg_basisconv.nn` in the place of PyG's: what users have who change one import."""

from collections.abc import Callable
from functools import partial
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
    """A layer of PyG, and that of `pyg_basisconv.nn` in its place. make_of: makes it of a library."""

    def __init__(self, make_of: Callable[[Any], nn.Module]) -> None:
        self.make_of = make_of

    def make(self) -> nn.Module:
        return self.make_of(pyg)

    def convert(self, layer: nn.Module) -> nn.Module:
        """Ours, with the parameters of PyG's."""
        ours = self.make_of(of_nn)
        ours.load_state_dict(layer.state_dict())
        return ours.to(next(layer.parameters()))


def drop_ins(width: int) -> list[tuple[str, DropIn]]:
    """The layers above, with names of their rows."""
    return [(f"{name}, of nn", DropIn(partial(make, width=width))) for name, make in LAYERS.items()]
