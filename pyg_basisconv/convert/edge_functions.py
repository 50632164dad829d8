"""The layers whose matrices are functions of the edges' features."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GMMConv, NNConv
from torch_geometric.nn.dense.linear import Linear

from ..bases import EdgeNetwork, Gaussians, Identity
from ..basis import Basis
from .build import META, basis_conv, check_frozen_alike, check_initialized, fill, takes_mean
from .edges import read_edges
from .layers import Signature, WithRoot
from .registry import Left, combinations, rule


class OfEdgeFeatures(WithRoot):
    """Reads the edges of a sparse layout without their values, as PyG does where it is given features."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        call = self.call.read(args, kwargs)
        call["edge_index"] = read_edges(call["edge_index"], False, 0, self.call.flow).edge_index
        return super().forward(**call)


def _layer(layer: Any, basis: Basis, weight: Tensor, root: Linear | None) -> nn.Module:
    """The neighbours by a basis and (K, P, Q), and the node itself by a linear layer."""
    conv = basis_conv(layer, weight, basis, layer.bias)
    conv.target_channels = -1  # they are not read
    return OfEdgeFeatures(Signature.of(layer), conv, None if root is None else basis_conv(layer, [root], Identity()))


@rule(GMMConv, "MoNet, Gaussians of edges", [{"aggr": "add", "dim": 3}], fixed=["separate_gaussians", "root_weight"])
def gmm(layer: Any) -> nn.Module:
    r""":math:`\sum_k w_k(a) \, x_m G_k`, with K Gaussians w_k of the edges' features. (Without a root PyG's fails.)"""
    check_initialized(layer)
    if layer.separate_gaussians:
        raise Left("a Gaussian for each pair of channels, which is E x P x Q numbers")
    with META:
        basis = Gaussians(layer.kernel_size, layer.dim, "mean" if takes_mean(layer) else None)
    fill(basis, mean=layer.mu, width=layer.sigma)
    weight = layer.g.unflatten(1, (layer.kernel_size, -1)).transpose(0, 1)
    return _layer(layer, basis, weight, layer.root)


@rule(NNConv, "NNConv, networks of edges", combinations(aggr=("add", "mean"), root_weight=(True, False)))
def nnconv(layer: Any) -> nn.Module:
    """The last linear layer of the network is Theta, what is before it the basis."""
    check_initialized(layer)
    first: Any
    last: Any
    *first, last = layer.nn if isinstance(layer.nn, nn.Sequential) else (layer.nn,)
    if type(last) not in (Linear, nn.Linear):
        raise Left(f"its network ends in a {type(last).__name__}, and not in a Linear")
    weight, units = last.weight, last.in_features if isinstance(last, nn.Linear) else last.in_channels
    matrices = weight.t().unflatten(1, (layer.in_channels_l, layer.out_channels))  # (h, P, Q)
    if last.bias is not None:
        check_frozen_alike(weight, last.bias)
        matrices = torch.cat([matrices, last.bias.view(1, layer.in_channels_l, layer.out_channels)])
    norm = "mean" if takes_mean(layer) else None
    basis = EdgeNetwork(nn.Sequential(*map(deepcopy, first)), units, last.bias is not None, norm)  # type: ignore[arg-type]
    return _layer(layer, basis, matrices, layer.lin if layer.root_weight else None)
