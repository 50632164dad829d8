"""Layers with a network before, after or between their sums over the neighbours."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import AntiSymmetricConv, ARMAConv, GatedGraphConv, LabelPropagation, PDNConv, SAGEConv
from torch_geometric.typing import SparseTensor

from ..bases import Adjacency
from ..errors import reject
from .build import adjacency, basis_conv, check_initialized, matrix
from .composite import Composite, GraphLayer
from .layers import Signature
from .polynomials import polynomial
from .registry import combinations, rebuild_part, rule


@rule(PDNConv, "PDN, weights by a network", [{"normalize": False, "aggr": "mean"}])
class ConvertedPDN(GraphLayer):
    """A GCN, whose edges are weighted by a network of their features."""

    kept = ("mlp",)

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        weighted = Signature.of(layer, ("x", "edge_index", "edge_weight"))
        loops = layer.normalize and layer.add_self_loops
        weight = matrix(layer.lin, nn.Linear).t().unsqueeze(0)
        self.conv = polynomial(layer, weight, bias=layer.bias, loops=loops, call=weighted)
        self.conv.basis.weights_are_new = True

    def compute(self, x: Tensor, edge_index: Any, edge_attr: Tensor | None = None) -> Any:
        sparse = isinstance(edge_index, SparseTensor)
        features = edge_index.storage.value() if sparse else edge_attr
        weight = None if features is None else self.mlp(features).squeeze(-1)
        if sparse:
            edge_index, weight = edge_index.set_value(weight, layout="coo"), None
        return self.conv(x=x, edge_index=edge_index, edge_weight=weight)


@rule(GatedGraphConv, "gated, GRU steps", [{"aggr": "mean", "num_layers": 1}])
class ConvertedGated(GraphLayer):
    """Sums of the neighbours, each the input of a GRU cell whose state is x, padded by zeros."""

    kept = ("rnn",)

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        A = adjacency(layer)
        self.convs = nn.ModuleList(basis_conv(layer, matrix.unsqueeze(0), A) for matrix in layer.weight)

    def compute(self, x: Tensor, **call: Any) -> Tensor:
        if x.shape[-1] > self.out_channels:
            fix = "make the layer as wide as its features"
            reject("x", f"at most {self.out_channels} channels", str(x.shape[-1]), fix)
        x = x if x.shape[-1] == self.out_channels else F.pad(x, (0, self.out_channels - x.shape[-1]))
        for conv in self.convs:
            x = self.rnn(conv((x, x), **call), x)
        return x


@rule(
    ARMAConv,
    "ARMA, stacked steps",
    [*combinations({"num_stacks": 2, "num_layers": 3}, shared_weights=(True, False)), {"act": None}],
)
class ConvertedARMA(GraphLayer):
    r"""The mean over stacks of :math:`x_{t+1} = \sigma(S^\top x_t \Theta_t + x \Theta'_t + b_t)`."""

    kept = ("init_weight", "weight", "root_weight", "bias", "act")

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        check_initialized(layer)
        self.conv = polynomial(layer, [])

    def compute(self, x: Tensor, **call: Any) -> Tensor:
        x = x.unsqueeze(-3)  # (*, 1, M, P), for the stacks
        y = x
        for t in range(self.num_layers):
            step = 0 if self.shared_weights else t
            weight = self.init_weight if t == 0 else self.weight[max(step - 1, 0)]
            y = self.conv(y @ weight, **call)
            y = y + F.dropout(x, self.dropout, self.training) @ self.root_weight[step]
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

    kept = ("W", "bias", "act")

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        self.phi = rebuild_part(layer.phi)

    def forward(self, x: Tensor, edge_index: Any, *args: Any, **kwargs: Any) -> Tensor:
        W = self.W.t() - self.W - torch.eye(len(self.W), dtype=self.W.dtype, device=self.W.device) * self.gamma
        for _ in range(self.num_iters):
            h = x @ W + self.phi(x, edge_index, *args, **kwargs)
            h = h if self.bias is None else h + self.bias
            x = x + self.epsilon * (h if self.act is None else self.act(h))
        return x


@rule(LabelPropagation, "labels, propagated", [{"num_layers": 3, "alpha": 0.7}, {"num_layers": 0}])
class ConvertedLabelPropagation(GraphLayer):
    r"""Steps :math:`\alpha A^\top y + (1 - \alpha) y_0`, each followed by a function; without gradients, as PyG's.

    Weights of edges that are given are taken as they are. Others are normalised in the dtype of y; PyG does so in
    torch's default dtype.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        call = Signature.of(layer, ("x", "edge_index", "edge_weight"))
        self.conv, self.weighted = polynomial(layer, [], call=call), basis_conv(layer, [], Adjacency(), call=call)

    @torch.no_grad()
    def forward(
        self,
        y: Tensor,
        edge_index: Any,
        mask: Tensor | None = None,
        edge_weight: Tensor | None = None,
        post_step: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        if y.dtype == torch.long and y.shape[0] == y.numel():
            y = F.one_hot(y.view(-1)).to(torch.get_default_dtype())
        if mask is not None:
            known, y = y, torch.zeros_like(y)
            y[mask] = known[mask]
        held = isinstance(edge_index, SparseTensor) and edge_index.has_value()
        conv = self.weighted if held or (edge_weight is not None and isinstance(edge_index, Tensor)) else self.conv
        given, start = (edge_index, edge_weight), (1 - self.alpha) * y
        for _ in range(self.num_layers):
            y = torch.add(start, conv(y, *given), alpha=self.alpha)
            y = y.clamp_(0.0, 1.0) if post_step is None else post_step(y)
        return y
