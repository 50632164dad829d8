"""GINConv (Xu et al., arXiv:1810.00826), whose MLP begins with a linear map."""

from torch import nn
from torch_geometric.nn import GINConv


def mlp(P: int, Q: int) -> nn.Module:
    return nn.Sequential(nn.Linear(P, Q), nn.ReLU(), nn.Linear(Q, Q))


def gin(P: int, Q: int) -> GINConv:
    return GINConv(mlp(P, Q))
