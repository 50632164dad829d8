"""GINConv (Xu et al., arXiv:1810.00826) as a sum over a node and its neighbours, and an MLP."""

import copy
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import GINConv

from pyg_basisconv import BasisConv, bases, convert, theta


class SumThenMLP(nn.Module):
    """The same function as a GINConv with eps = 0, whose MLP begins with a linear map."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        assert float(layer.eps) == 0
        P = layer.nn[0].in_features
        self.sum = BasisConv(P, P, bases.Identity() + bases.Adjacency(), theta.Pass(), bias=False)
        self.nn = layer.nn

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return self.nn(self.sum(x, edge_index))


def mlp(P: int, Q: int) -> nn.Module:
    return nn.Sequential(nn.Linear(P, Q), nn.ReLU(), nn.Linear(Q, Q))


def gin(P: int, Q: int) -> GINConv:
    return GINConv(mlp(P, Q))


def with_gin(model: nn.Module) -> nn.Module:
    """The conversion of a model, in which each GINConv becomes a `SumThenMLP`, whose first linear layer is part
    of the convolution; what `convert` makes of a GINConv has its network behind.
    """
    return convert(replaced(copy.deepcopy(model)), left={})


def replaced(module: nn.Module) -> nn.Module:
    if isinstance(module, GINConv):
        return SumThenMLP(module)
    for name, child in module.named_children():
        setattr(module, name, replaced(child))
    return module
