"""R-GCN: a matrix for each relation, for nodes with features and without."""

from copy import copy
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import FastRGCNConv, RGCNConv
from torch_geometric.nn.inits import reset
from torch_geometric.typing import SparseTensor

from ..bases import Identity, Relations
from ..cache import once
from ..conv import BasisConv
from ..errors import reject
from ..kernels.pattern import extremes, in_range
from ..plan import Plan
from ..reading import read_graph
from ..theta import Full, Grouped, Separable, Theta
from .build import META, basis_conv, fill, parameter, takes_mean
from .edges import is_matrix, read_edges
from .layers import Converted, Signature, parts_of
from .registry import Options, rule

_CHECKED: list[Options] = [
    parameter | more
    for more in ({}, {"aggr": "add"}, {"root_weight": False}, {"bias": False})
    for parameter in ({}, {"num_bases": 2}, {"num_blocks": 2})
]


@rule(RGCNConv, "R-GCN", _CHECKED, node_dim=0)
@rule(FastRGCNConv, "R-GCN, fast", _CHECKED, node_dim=0)
class ConvertedRGCN(Converted):
    r"""A `BasisConv` over `bases.Relations`, with the call of RGCNConv.

    The root is the last of the matrices. It is a BasisConv of its own, `root`, if targets have another width, if the
    relations share parameters, or if only one of the two is frozen. Nodes without features are given by their numbers
    instead of x, which select rows of :math:`\Theta_k`.

    A mean is taken for each relation, as PyG documents and as its loop over relations does (its segment product, with
    pyg_lib, takes one mean over the edges of all). The result has the dtype of x; PyG's loop has float32 at least.
    """

    def __init__(self, layer: Any) -> None:
        weight, root, R = layer.weight, layer.root, layer.num_relations
        theta: Theta = Full()
        if layer.num_bases is not None:
            theta = Separable(layer.num_bases)
        elif layer.num_blocks is not None:
            theta = Grouped(layer.num_blocks)
        free = root is not None and type(theta) is Full and weight.requires_grad == root.requires_grad
        within = free and weight.shape[1] == root.shape[0]
        basis = Relations(R, "mean" if takes_mean(layer) else None, self_loop=within)
        call, P, Q = Signature.of(layer), layer.in_channels_l, layer.out_channels
        about = {"flow": layer.flow, "decomposed_layers": layer.decomposed_layers}
        with META:
            super().__init__(call, P, Q, basis, theta, bias=False, **about)
        fill(self.theta, weight=torch.cat([weight, root.unsqueeze(0)]) if within else weight)
        if layer.num_bases is not None:
            fill(self.theta, mix=layer.comp.t())
        apart = root is not None and not within
        self.root = basis_conv(layer, root.unsqueeze(0), Identity()) if apart else None
        self.bias = parameter(layer.bias)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        x, edge_index, edge_type = self._inputs(args, kwargs)
        if not _has_features(x):
            return self._forward_numbers(x, edge_index, edge_type)
        x = x if self.root is None else parts_of(x)  # which has as many rows as there are targets
        y: Tensor = BasisConv.forward(self, x, edge_index, None, edge_type)
        return y if self.root is None else y + self.root(x[1])

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan of a call; takes what the PyG layer takes. Numbers of nodes count as one-hot features."""
        x, edge_index, edge_type = self._inputs(args, kwargs)
        if _has_features(x):
            return BasisConv.plan(self, x, edge_index, None, edge_type)
        like = copy(self)
        like.order = "theta_first"  # selecting rows of Theta comes first
        source, target = parts_of(x)
        one_hot, size = self._one_hot(source), (self._count(source), self._count(target))
        given = (one_hot, None) if isinstance(x, tuple | list) else one_hot
        return BasisConv.plan(like, given, edge_index, None, edge_type, size=size)

    def reset_parameters(self) -> None:
        """Resets all parameters."""
        super().reset_parameters()
        for part in self.children():
            reset(part)

    def _forward_numbers(self, x: Any, edge_index: Any, edge_type: Tensor | None) -> Tensor:
        """The result for numbers of nodes."""
        (source, target), apart = parts_of(x), isinstance(x, tuple | list)
        weight, bias = self.theta.dense(), self.bias  # (K, P, Q)
        graph = read_graph(
            edge_index,
            edge_type=edge_type,
            size=(self._count(source), self._count(target)),
            dtype=weight.dtype,
            device=weight.device,
            flow=self.flow,
            target_row=None if apart else 0,
        )
        bound = self.basis.on(self.masked(graph))
        if not self._fused:
            bound = bound.map(lambda part: part.via(self._by_messages))
        y = bound.combine(weight if source is None else weight.index_select(1, source))
        own = None
        if self.root is not None:
            own = self.root.weight[0]
        elif apart and self.basis.self_loop:
            own = weight[-1]
        if own is not None:
            y = y + (own if target is None else own.index_select(0, target))
        return y if bias is None else y + bias

    def _inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Tensor | None]:
        """x, which has features or numbers of both sides, the edges, and their types."""
        call = self.call.read(args, kwargs)
        source, target = parts_of(call["x"])
        if target is None and isinstance(call["x"], tuple | list):
            reject("x[1]", "features of the targets, or their numbers", None, "pass (x_src, x_dst)")
        floats = [t is not None and t.is_floating_point() for t in (source, target)]
        if any(floats) and not all(floats):
            reject("x", "features of both sides, or numbers of both", "one of each", "give features to both")
        if not any(floats):
            self._check_numbers(source, target)
        return call["x"], *self._edges(call["edge_index"], call.get("edge_type"))

    def _check_numbers(self, source: Tensor | None, target: Tensor | None) -> None:
        if isinstance(self.theta, Grouped):
            reject("x", "features, in a layer with num_blocks", "numbers of nodes", "use num_bases")
        if self.call.layer == "FastRGCNConv" and source is not None and not _in_order(source):
            fix = "convert an RGCNConv, which reads them"
            reject("x", "the numbers 0, 1, 2, ... of its nodes, for which FastRGCNConv takes all", "others", fix)
        for numbers in (source, target):
            if numbers is None:
                continue
            if numbers.dtype not in (torch.int64, torch.int32):
                reject("x", "numbers of nodes, torch.int64", numbers.dtype, "convert them with .long()")
            if not _in_range(numbers, self.theta.P):
                fix = "number the nodes from 0 on, or make the layer with more in_channels"
                reject("x", f"numbers of nodes from 0 to {self.theta.P - 1}", extremes(numbers), fix)

    def _edges(self, edge_index: Any, edge_type: Tensor | None) -> tuple[Any, Tensor | None]:
        """The edges and their types, which may be the values of a sparse matrix."""
        if not is_matrix(edge_index):
            return edge_index, edge_type
        read = read_edges(edge_index, self.flow)
        ignored = isinstance(edge_index, SparseTensor) and self.call.layer == "RGCNConv"
        return read.edge_index, read.values if edge_type is None or ignored else edge_type

    def _count(self, numbers: Tensor | None) -> int:
        return self.theta.P if numbers is None else numbers.numel()

    def _one_hot(self, numbers: Tensor | None) -> Tensor:
        """(M, P) the one-hot features of the nodes; sparse."""
        rows = torch.arange(self._count(numbers), device=self.weight.device)
        places = torch.stack([rows, rows if numbers is None else numbers.long()])
        ones, size = self.weight.new_ones(len(rows)), (len(rows), self.theta.P)
        return torch.sparse_coo_tensor(places, ones, size, device=ones.device, is_coalesced=True)


_in_range = once(in_range)


def _has_features(x: Any) -> bool:
    """Whether x has features (M, P) and (N, P'), not numbers (M,) and (N,), or None for all numbers in order."""
    source, _ = parts_of(x)
    return source is not None and source.is_floating_point()


@once
def _in_order(numbers: Tensor) -> bool:
    return torch.equal(numbers, torch.arange(len(numbers), dtype=numbers.dtype, device=numbers.device))
