"""Layers whose matrices are functions of the features of edges."""

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GMMConv, NNConv, SplineConv
from torch_geometric.nn.conv import spline_conv
from torch_geometric.nn.dense.linear import Linear

from ..bases import EdgeNetwork, Gaussians, Identity, Spline
from ..basis import Basis
from .build import META, basis_conv, check_frozen_alike, check_initialized, fill, takes_mean
from .composite import WithRoot, copied
from .edges import with_features
from .registry import Unchanged, combinations, rule, turned_round

_AGGREGATIONS = combinations(aggr=("add", "mean"))


class OnEdges(WithRoot):
    """Functions of `edge_attr`, (E, D), or the values of a sparse matrix, and the root."""

    def compute(self, x: Any, **call: Any) -> Tensor:
        return super().compute(**with_features({"x": x, **call}))


def _on_edges(layer: Any, matrices: Tensor, basis: Basis, root: Linear | None) -> nn.Module:
    """A family on the neighbours, (K, P, Q), the bias of the layer, and the matrix of its root."""
    conv = basis_conv(layer, matrices, basis, layer.bias)
    return OnEdges(layer, conv, None if root is None else basis_conv(layer, [root], Identity()))


def _norm(layer: Any) -> Any:
    return "mean" if takes_mean(layer) else None


@rule(GMMConv, "MoNet", _AGGREGATIONS, fixed=("separate_gaussians", "root_weight"))
def gmm(layer: Any) -> nn.Module:
    """Gaussians; without `root_weight` PyG's own call fails, unless it is given (x, None)."""
    if layer.separate_gaussians:
        raise Unchanged("separate_gaussians=True has a Gaussian for each pair of channels")
    check_initialized(layer)
    K = layer.kernel_size
    with META:
        basis = Gaussians(K, layer.dim, _norm(layer))
    fill(basis, mean=layer.mu, width=layer.sigma)
    matrices = layer.g.unflatten(1, (K, -1)).transpose(0, 1)  # (K, P, Q)
    return _on_edges(layer, matrices, basis, getattr(layer, "root", None))


@rule(NNConv, "NNConv, ECC", _AGGREGATIONS)
def edge_network(layer: Any) -> nn.Module:
    """The units before the last Linear of the network; the columns of that Linear are the matrices."""
    check_initialized(layer)
    hidden, last = _without_last(layer.nn)
    P, Q = layer.in_channels_l, layer.out_channels
    if len(last.weight) != P * Q:
        raise Unchanged(f"its network has {len(last.weight)} outputs instead of {P} x {Q}")
    matrices = last.weight.view(P, Q, -1).permute(2, 0, 1)  # (h, P, Q)
    if last.bias is not None:
        check_frozen_alike(last.weight, last.bias)
        matrices = torch.cat([matrices, last.bias.view(1, P, Q)])
    basis = EdgeNetwork(hidden, last.weight.shape[1], last.bias is not None, _norm(layer))
    return _on_edges(layer, matrices, basis, layer.lin if layer.root_weight else None)


def _without_last(network: Any) -> tuple[nn.Module, Any]:
    """A copy of a network without the Linear that it ends in, and that Linear."""
    if type(network) in (nn.Linear, Linear):
        return nn.Identity(), network
    if type(network) is not nn.Sequential or not len(network):
        raise Unchanged(f"its network does not end in a Linear, but in a {type(network).__name__}")
    *before, end = network
    inner, last = _without_last(end)
    return nn.Sequential(*map(copied, before), *([] if isinstance(inner, nn.Identity) else [inner])), last


def spline(layer: Any) -> nn.Module:
    """B-splines."""
    check_initialized(layer)
    sizes, is_open = layer.kernel_size.tolist(), layer.is_open_spline.bool().tolist()
    try:
        basis = Spline(sizes, layer.degree, is_open, _norm(layer))
    except ValueError as error:
        raise Unchanged(str(error)) from None
    return _on_edges(layer, layer.weight, basis, layer.lin if layer.root_weight else None)


if spline_conv.spline_basis is not None:  # or PyG has no such layer
    _OPEN = combinations({"kernel_size": [3, 4]}, is_open_spline=(True, False), degree=(1, 2))
    rule(SplineConv, "SplineCNN", [*_AGGREGATIONS, *_OPEN, *turned_round(SplineConv)])(spline)
