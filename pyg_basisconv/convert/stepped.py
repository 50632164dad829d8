"""Layers with a network before, after or between their sums over the neighbours."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import AntiSymmetricConv, ARMAConv, GatedGraphConv, PDNConv, SAGEConv
from torch_geometric.typing import SparseTensor

from ..errors import reject
from .build import adjacency, basis_conv, check_initialized, parameter, takes_mean
from .layers import Composite, Signature
from .polynomials import polynomial
from .registry import combinations, rebuild_part, rule


@rule(PDNConv, "PDN, weights by a network", [{"normalize": False, "aggr": "mean"}])
class ConvertedPDN(Composite):
    """A GCN, whose edges are weighted by a network of their features."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.call, self.network = Signature.of(layer, merge=takes_mean(layer)), deepcopy(layer.mlp)
        weight = layer.lin.weight.t().unsqueeze(0)
        weighted = replace(self.call, names=("x", "edge_index", "edge_weight"))
        loops = layer.normalize and layer.add_self_loops
        self.conv = polynomial(layer, weight, bias=layer.bias, loops=loops, call=weighted)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        call = self.call.read(args, kwargs)
        edges, features = call["edge_index"], call.get("edge_attr")
        if isinstance(edges, SparseTensor):
            features = edges.storage.value()
        weight = None if features is None else self.network(features).squeeze(-1)
        if isinstance(edges, SparseTensor):
            edges, weight = edges.set_value(weight, layout="coo"), None
        y: Tensor = self.conv(x=call["x"], edge_index=edges, edge_weight=weight)
        return y


@rule(GatedGraphConv, "gated, GRU steps", [{"aggr": "mean", "num_layers": 1}])
class ConvertedGated(Composite):
    """Sums of the neighbours, each the input of a GRU cell whose state is x, padded by zeros."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        A, self.call = adjacency(layer), Signature.of(layer, merge=takes_mean(layer))
        self.convs = nn.ModuleList(basis_conv(layer, matrix.unsqueeze(0), A) for matrix in layer.weight)
        self.cell, self.out_channels = deepcopy(layer.rnn), layer.out_channels

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        call = self.call.read(args, kwargs)
        x: Tensor = call.pop("x")
        if x.shape[-1] > self.out_channels:
            fix = "make the layer as wide as its features"
            reject("x", f"at most {self.out_channels} channels", str(x.shape[-1]), fix)
        x = F.pad(x, (0, self.out_channels - x.shape[-1]))
        for conv in self.convs:
            x = self.cell(conv(x, **call), x)
        return x


@rule(
    ARMAConv,
    "ARMA, stacked steps",
    [*combinations({"num_stacks": 2, "num_layers": 3}, shared_weights=(True, False)), {"act": None}],
)
class ConvertedARMA(Composite):
    r"""The mean over stacks of :math:`x_{t+1} = \sigma(S^\top x_t \Theta_t + x \Theta'_t + b_t)`."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        check_initialized(layer)
        self.call, self.conv = Signature.of(layer), polynomial(layer, [])
        self.steps, self.dropout, self.act = layer.num_layers, layer.dropout, deepcopy(layer.act)
        self.first, self.later = parameter(layer.init_weight), parameter(layer.weight)
        self.root, self.bias = parameter(layer.root_weight), parameter(layer.bias)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        call = self.call.read(args, kwargs)
        x: Tensor = call.pop("x").unsqueeze(-3)  # (*, 1, M, P), for the stacks
        y, shared = x, len(self.root) == 1
        for t in range(self.steps):
            step = 0 if shared else t
            weight = self.first if t == 0 else self.later[max(step - 1, 0)]
            y = self.conv(y @ weight, **call)
            y = y + F.dropout(x, self.dropout, self.training) @ self.root[step]
            y = y if self.bias is None else y + self.bias[step]
            y = y if self.act is None else self.act(y)
        return y.mean(dim=-3)


@rule(
    AntiSymmetricConv,
    "anti-symmetric steps",
    [
        {"num_iters": 3, "epsilon": 0.3, "gamma": 0.2},
        {"act": None},
        {"act": "elu", "act_kwargs": {"alpha": 0.7}},
        {"phi": lambda P, Q: SAGEConv(P, P)},
    ],
)
class ConvertedAntiSymmetric(Composite):
    r"""Steps :math:`x + \epsilon \sigma(x (W - W^\top - \gamma I)^\top + \phi(x) + b)` of a converted layer
    :math:`\phi`.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.phi, self.act, self.steps = rebuild_part(layer.phi), deepcopy(layer.act), layer.num_iters
        self.epsilon, self.gamma = layer.epsilon, layer.gamma
        self.W, self.bias = parameter(layer.W), parameter(layer.bias)

    def forward(self, x: Tensor, edge_index: Any, *args: Any, **kwargs: Any) -> Tensor:
        W = self.W.t() - self.W - torch.eye(len(self.W), dtype=self.W.dtype, device=self.W.device) * self.gamma
        for _ in range(self.steps):
            h = x @ W + self.phi(x, edge_index, *args, **kwargs)
            h = h if self.bias is None else h + self.bias
            x = x + self.epsilon * (h if self.act is None else self.act(h))
        return x
