"""Layers of PyG that have a network of their own, or features of edges; some wide enough that no gradient vanishes."""

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.nn.models.schnet import CFConv, ShiftedSoftplus


def network(P: int, Q: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(P, hidden), nn.ReLU(), nn.Linear(hidden, Q))


def gin(P: int, Q: int) -> nn.Module:
    """Whose network begins with a linear map (Xu et al., arXiv:1810.00826)."""
    return pyg.GINConv(network(P, Q, Q))


def normed_gin(P: int, Q: int) -> nn.Module:
    """With a batch norm in its network, as it is commonly used."""
    return pyg.GINConv(nn.Sequential(nn.Linear(P, Q), nn.BatchNorm1d(Q), nn.ReLU(), nn.Linear(Q, Q)))


def nn_conv(P: int, Q: int, dim: int) -> nn.Module:
    return pyg.NNConv(P, Q, network(dim, P * Q, 32))


def gmm_conv(P: int, Q: int, dim: int) -> nn.Module:
    layer = pyg.GMMConv(P, Q, dim=dim, kernel_size=25)
    with torch.no_grad():
        layer.sigma.abs_().add_(0.3)
    return layer


def point_transformer(P: int, Q: int) -> nn.Module:
    return pyg.PointTransformerConv(P, Q, network(3, Q, Q), network(Q, Q, Q))


def cf_conv(width: int, dim: int) -> nn.Module:
    filters = nn.Sequential(nn.Linear(dim, width), ShiftedSoftplus(), nn.Linear(width, width))
    return CFConv(width, width, width, filters, 5.0)


def general(P: int, Q: int, dim: int) -> nn.Module:
    return pyg.GeneralConv(P, Q, dim, heads=4, attention=True)


def gatv2_on_edges(P: int, Q: int, dim: int, heads: int = 8) -> nn.Module:
    return pyg.GATv2Conv(P, Q // heads, heads, edge_dim=dim)


def transformer_on_edges(P: int, Q: int, dim: int, heads: int = 8) -> nn.Module:
    return pyg.TransformerConv(P, Q // heads, heads, edge_dim=dim)


def heat(P: int, Q: int, types: int, dim: int) -> nn.Module:
    return pyg.HEATConv(P, Q // 2, types, types, 4, dim, 4, heads=2)


class PAN(nn.Module):
    """The value of a PANConv, without its matrix."""

    def __init__(self, P: int, Q: int) -> None:
        super().__init__()
        self.conv = pyg.PANConv(P, Q, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        y: Tensor = self.conv(x, edge_index)[0]
        return y
