"""Layers in which each target chooses, mixes or scales what its neighbours send."""

from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.nn import EGConv, FiLMConv, MFConv
from torch_geometric.nn.dense.linear import Linear
from torch_geometric.utils import add_remaining_self_loops, is_torch_sparse_tensor

from ..bases import Adjacency, Relations
from ..basis import Basis
from ..cache import constituents, once
from ..errors import reject
from ..portable import any_seen
from ..theta import Heads, Pass
from .build import adjacency, basis_conv, check_frozen_alike, check_initialized, stack, takes_mean
from .composite import GraphLayer
from .edges import count_edges, count_targets, counts, read_edges
from .layers import both, pair
from .registry import Unchanged, combinations, rule
from .typed_linear import TypedLinear

_has_weights = once(lambda matrix: any_seen(constituents(matrix)[-1] != 1))
_with_loops = once(lambda edges: add_remaining_self_loops(edges)[0])


@rule(
    EGConv,
    "EGC, mixed sums",
    [
        *combinations({"num_heads": 2, "num_bases": 3}, aggregators=(["sum"], ["mean"], ["mean", "symnorm", "sum"])),
        {"num_heads": 2, "aggregators": ["sum", "mean"], "add_self_loops": False},
    ],
    node_dim=0,
)
class ConvertedEG(GraphLayer):
    r""":math:`y_{nh} = \sum_{kb} w_{nhkb} \, (A_k^\top x \Theta_b)_n` for sums and means :math:`A_k`; coefficients w
    are computed from the target.
    """

    kept = ("bases_lin", "comb_lin", "bias")

    def __init__(self, layer: Any) -> None:
        check_initialized(layer)
        norms = {"sum": None, "mean": "mean", "symnorm": "sym"}
        names = layer.aggregators
        if not norms.keys() >= set(names):
            raise Unchanged(f"aggregators={names} are not sums or means")
        loops = layer.add_self_loops and "symnorm" in names
        super().__init__(layer, values="reject" if len(names) > 1 else "keep", merge="mean" in names)

        def family(loops: bool, normed: Any = "keep", others: Any = "keep") -> Basis:
            existing = {"symnorm": normed, "sum": others, "mean": others}
            return reduce(add, (Adjacency(norms[name], loops, existing[name]) for name in names))  # type: ignore[arg-type]

        # Of a sparse matrix PyG's norm counts a loop that is there beside the new one; other sums count it once.
        sparse = {"sparse": family(True, "add", "replace"), "sparse_tensor": family(True, "replace", "replace")}
        others = sparse if loops else None
        theta = Pass(combine="concat")
        self.conv = basis_conv(layer, [], family(loops), call=self.call, theta=theta, others=others)
        self.mixed = "symnorm" in names and len(names) > 1
        # Without 'symnorm' PyG adds loops up to the last node that has an edge.
        self.up_to_last = layer.add_self_loops and not loops

    def compute(self, x: Tensor, edge_index: Any) -> Tensor:
        if self.mixed and is_torch_sparse_tensor(edge_index) and _has_weights(edge_index):
            fix = "PyG's EGConv reads them for 'symnorm' alone: make them ones"
            reject("edge_index", "a sparse matrix of ones", "other values", fix)
        if self.up_to_last:
            edge_index = _with_loops(edge_index)
        weight = self.comb_lin(x).unflatten(-1, (self.num_heads, -1))  # (N, H, K B)
        bases = self.bases_lin(x)
        sums = self.conv((bases, bases), edge_index).unflatten(-1, (weight.shape[-1], -1))  # (N, K B, D)
        y = (weight @ sums).flatten(-2)
        return y if self.bias is None else y + self.bias


@rule(MFConv, "molecular fingerprints", [{"max_degree": 2}, {"aggr": "mean"}])
class ConvertedMF(GraphLayer):
    r""":math:`A^\top x \Theta_d + x \Theta'_d + b_d`, for the degree d of the target."""

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        check_initialized(layer)
        self.sums, both = basis_conv(layer, [], adjacency(layer)), (stack(layer.lins_l), stack(layer.lins_r))
        check_frozen_alike(*both)
        biases = [lin.bias for lin in layer.lins_l]
        check_frozen_alike(*biases)
        self.maps = TypedLinear(torch.cat(both, 1), None if biases[0] is None else torch.stack(biases))

    def compute(self, x: Any, edge_index: Any, size: Any = None) -> Tensor:
        source, target = pair(x)
        N = target.shape[-2] if target is not None else count_targets(edge_index, source) if size is None else size[1]
        size = source.shape[-2], N
        edges = read_edges(edge_index, self.flow, size=size).edge_index
        h = self.sums((source, None), edges, size=size)
        if target is None:
            target = h.new_zeros(*h.shape[:-1], self.maps.weight.shape[1] - h.shape[-1])
        y: Tensor = self.maps(torch.cat([h, target], -1), degrees(edges, N, self.max_degree, self.flow))
        return y


@once
def degrees(edges: Tensor, N: int, largest: int, flow: str) -> Tensor:
    """The degree of each target, up to the largest."""
    return count_edges(edges, N, torch.long, flow).squeeze(1).clamp(max=largest)


@rule(FiLMConv, "GNN-FiLM, linear", combinations(num_relations=(1, 5), aggr=("add", "mean")), given={"act": None})
class ConvertedFiLM(GraphLayer):
    r""":math:`\sum_r \gamma_{rn} \odot (A_r^\top x \Theta_r)_n + \beta_{rn} (A_r^\top 1)_n`, with :math:`\beta` and
    :math:`\gamma` that each target computes from itself; and the same of its own features.
    """

    kept = ("lin_skip", "film_skip", "films")

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        check_initialized(layer)
        if layer.act is not None:
            raise Unchanged("its messages pass through an activation, unless act=None")
        R, P, Q = layer.num_relations, layer.lins[0].in_channels, layer.lins[0].out_channels
        # Of all relations one product is quicker than one for each of them, unless it makes wider rows to be summed.
        order = "theta_first" if Q <= P else "auto"
        family = Relations(R, "mean" if takes_mean(layer) else None)
        self.conv = basis_conv(layer, layer.lins, family, theta=Heads(), heads=R, order=order)

    def compute(self, x: Any, edge_index: Any, edge_type: Tensor | None = None) -> Tensor:
        source, target = both(x, "FiLMConv")
        size, R = (source.shape[-2], target.shape[-2]), self.num_relations
        edge_index, values, *_ = read_edges(edge_index, self.flow, size=size)
        kind = None
        if R > 1:
            kind = values if edge_type is None else edge_type
            assert kind is not None, "FiLMConv needs edge_type"
        sums = self.conv((source, None), edge_index, edge_type=kind, size=size).unflatten(-1, (R, -1))
        beta, gamma = self.film_skip(target).chunk(2, -1)
        y = torch.addcmul(beta, gamma, self.lin_skip(target))
        beta, gamma = self._all_films(target).unflatten(-1, (R, 2, -1)).unbind(-2)  # (*, N, R, Q)
        count = counts(self.conv, source, edge_index, size, kind).to(sums.dtype).unsqueeze(-1)
        return y + torch.addcmul(gamma * sums, beta, count).sum(-2)

    def _all_films(self, target: Tensor) -> Tensor:
        """The results of the R networks side by side; where these are linear, by one product."""
        films = self.films
        if all(type(film) is Linear and film.bias is not None for film in films):
            weight, bias = (torch.cat([getattr(film, name) for film in films]) for name in ("weight", "bias"))
            return F.linear(target, weight, bias)
        return torch.cat([film(target) for film in films], -1)
