"""The layer that sums paths of all lengths, with learnt weights."""

from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor
from torch_geometric.nn import PANConv
from torch_geometric.typing import WITH_TORCH_SPARSE, SparseTensor

from ..bases import Adjacency, Identity
from ..cache import once
from .build import basis_conv, check_sum, parameter
from .composite import GraphLayer
from .edges import read_edges
from .registry import Unchanged, combinations, rule


class Paths(NamedTuple):
    """The pairs of nodes that paths of up to some length join, by target.

    target, source: (U,); counts: (U, L + 1) the numbers of paths of each length; share: (U,) the product of the
    normalisations of the two ends; inverse: (N, 1) the normalisation of a node.
    """

    target: Tensor
    source: Tensor
    counts: Tensor
    share: Tensor
    inverse: Tensor


@rule(PANConv, "PAN, path integrals" if WITH_TORCH_SPARSE else "", combinations(filter_size=(0, 1, 3)), fixed=["flow"])
class ConvertedPAN(GraphLayer):
    r""":math:`D^{-1/2} (\sum_k w_0 \cdots w_k \, A^k)^\top D^{-1/2} x \Theta + b`, and the matrix that multiplies
    x; D counts its entries. The sum is evaluated step by step; the matrix is made of powers that are kept.

    Where torch_sparse is not installed, which PyG's layer needs, the matrix is a tensor in the layout COO.
    """

    kept = ("weight",)

    def __init__(self, layer: Any) -> None:
        super().__init__(layer, values="drop")
        check_sum(layer)
        if layer.flow != "source_to_target":
            raise Unchanged("flow='target_to_source', which PyG refuses as well")
        self.conv, self.map = basis_conv(layer, [], Adjacency()), basis_conv(layer, [layer.lin], Identity())
        self.bias = parameter(layer.lin.bias)

    def compute(self, x: Tensor, edge_index: Any) -> tuple[Tensor, Any]:
        N, L = x.shape[0], len(self.weight) - 1
        read = read_edges(edge_index, False, N)
        found = _paths(read.edge_index, read.values, N, L, x.dtype)
        narrow = self.map.theta.Q <= self.map.theta.P
        start = found.inverse * (self.map(x) if narrow else x)
        y = start
        for w in self.weight[1:].flip(0):
            y = start + w * self.conv(y, edge_index)
        y = self.weight[0] * found.inverse * y
        y = y if narrow else self.map(y)
        value = (found.counts @ self.weight.cumprod(0)) * found.share
        return y if self.bias is None else y + self.bias, _matrix(found, value, N)


def _matrix(found: Paths, value: Tensor, N: int) -> Any:
    if not WITH_TORCH_SPARSE:
        indices = torch.stack([found.target, found.source])
        return torch.sparse_coo_tensor(indices, value, (N, N), is_coalesced=True)
    about = {"row": found.target, "col": found.source, "value": value}
    return SparseTensor(**about, sparse_sizes=(N, N), is_sorted=True, trust_data=True)


@once
def _paths(edges: Tensor, values: Tensor | None, N: int, L: int, dtype: torch.dtype) -> Paths:
    source, target = edges.cpu().numpy()
    weight = np.ones(len(source)) if values is None else values.detach().cpu().double().numpy()
    A, power = csr_array((weight, (target, source)), (N, N)), _identity(N)
    powers = [power, *(power := power @ A for _ in range(L))]
    pairs = [p.tocoo() for p in powers]
    places = [p.row.astype(np.int64) * N + p.col for p in pairs]
    every = np.unique(np.concatenate(places))
    counts = np.zeros((len(every), L + 1))
    for k, (p, place) in enumerate(zip(pairs, places, strict=True)):
        counts[np.searchsorted(every, place), k] = p.data
    row, column = (torch.from_numpy(t).to(edges.device) for t in np.divmod(every, N))
    degree = torch.bincount(row, minlength=N).to(edges.device, dtype)
    inverse = degree.pow(-0.5).masked_fill(degree == 0, 0)
    share = inverse[row] * inverse[column]
    return Paths(row, column, torch.from_numpy(counts).to(edges.device, dtype), share, inverse.unsqueeze(1))


def _identity(N: int) -> csr_array:
    return csr_array((np.ones(N), np.arange(N), np.arange(N + 1)), (N, N))
