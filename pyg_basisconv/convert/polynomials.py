"""The layers that are polynomials of one normalised matrix."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import APPNP, ChebConv, GCNConv, LGConv, MixHopConv, SGConv, SSGConv, TAGConv
from torch_geometric.nn.dense.linear import Linear

from ..bases import Adjacency, Chebyshev, Mix, Powers
from ..basis import Basis
from ..conv import BasisConv
from ..theta import Heads
from .build import adjacency, basis_conv, check_sum, takes_mean
from .composite import GraphLayer
from .layers import Signature
from .registry import REVERSED, Unchanged, combinations, rule, turned_round


def polynomial(
    layer: Any,
    linears: Sequence[Linear] | Tensor,
    function: Callable[[Adjacency], Basis] = lambda S: S,
    bias: Tensor | None = None,
    loops: bool | float = False,
    **kwargs: Any,
) -> BasisConv:
    """A function of the normalised adjacency, or of the plain one where the layer does not normalise.

    Where the graph has loops already, and loops are to be added, PyG keeps those of an edge_index, adds to those of a
    torch.sparse matrix, and replaces those of a SparseTensor; and loops weigh 1 where no edge has a weight.

    Args:
        layer: of PyG.
        linears: one for each matrix of the basis, or their (K, P, Q).
        function: from the adjacency to the basis.
        bias: b.
        loops: whether loops are added, or their weight.
        **kwargs: of `basis_conv`.
    """
    kwargs = {"call": Signature.of(layer, merge=takes_mean(layer))} | kwargs
    if not getattr(layer, "normalize", True):
        return basis_conv(layer, linears, function(adjacency(layer)), bias, **kwargs)
    check_sum(layer)
    if loops:
        kwargs["others"] = {
            "sparse": function(Adjacency("sym", loops, existing="add")),
            "sparse_tensor": function(Adjacency("sym", loops, existing="replace")),
        }
        if loops != 1:
            kwargs["others"]["bare"] = function(Adjacency("sym", True))
    return basis_conv(layer, linears, function(Adjacency("sym", loops)), bias, **kwargs)


@rule(GCNConv, "GCN", [{"add_self_loops": False}, {"normalize": False, "aggr": "mean"}, {"decomposed_layers": 2}])
def gcn(layer: Any) -> BasisConv:
    """One matrix. `cached` asks for nothing more: what is bound to a graph is kept in any case."""
    loops = layer.add_self_loops and (2.0 if layer.improved else True)
    return polynomial(layer, [layer.lin], bias=layer.bias, loops=loops, messages="theta_first")


@rule(LGConv, "LightGCN", [{"normalize": False, "aggr": "mean"}])
def lg(layer: Any) -> BasisConv:
    """The same without a parameter."""
    return polynomial(layer, [])


@rule(TAGConv, "TAG, powers", [{"K": 0}, *combinations({"K": 2, "normalize": False}, aggr=("add", "mean"))])
def tag(layer: Any) -> BasisConv:
    """The powers from 0 to K."""
    return polynomial(layer, layer.lins, lambda S: Powers(len(layer.lins), S), layer.bias)


@rule(SGConv, "SGC, one power", [{"K": 0}, {"K": 3}, *({"K": 2} | one for one in turned_round(SGConv))])
def sg(layer: Any) -> BasisConv:
    """The last power alone."""
    return mixture(layer, [0.0] * layer.K + [1.0])


@rule(
    SSGConv,
    "SSGC, mixed powers",
    [{"alpha": 0.3, "K": 3}, {"alpha": 0.0}, *({"K": 2} | one for one in turned_round(SSGConv))],
)
def ssg(layer: Any) -> BasisConv:
    """The mean of the powers from 1 on, with alpha of the zeroth."""
    return mixture(layer, [layer.alpha, *[(1 - layer.alpha) / layer.K for _ in range(layer.K)]])


@rule(APPNP, "APPNP", combinations({"alpha": 0.2}, K=(0, 1, 10)))
def appnp(layer: Any) -> BasisConv:
    r"""Powers, weighted by :math:`\alpha (1 - \alpha)^k`: of a walk that returns with probability :math:`\alpha`."""
    if layer.dropout:
        raise Unchanged("it drops edges in training")
    K, stays = layer.K, 1 - layer.alpha
    coefficients = [*(layer.alpha * stays**k for k in range(K)), stays**K]
    return polynomial(layer, [], lambda S: Mix(coefficients, Powers(K + 1, S)), loops=layer.add_self_loops)


@rule(
    ChebConv,
    "ChebNet",
    [*combinations(K=(1, 2, 4), normalization=("sym", "rw", None)), {"normalization": "rw"} | REVERSED],
)
def cheb(layer: Any) -> BasisConv:
    """Chebyshev polynomials; PyG takes the Laplacian of the edges as they are given, whatever the flow."""
    check_sum(layer)
    basis: Basis = Chebyshev(len(layer.lins), layer.normalization)
    turned = layer.flow == "target_to_source"
    new = basis_conv(layer, layer.lins, basis.T if turned else basis, layer.bias, call=Signature.of(layer))
    new.flow = "source_to_target"
    return new


@rule(
    MixHopConv,
    "MixHop, powers as heads",
    [*combinations(powers=([1], [0, 3], [2, 0, 1], [1, 2, 1])), {"powers": [1, 1], "bias": False}],
)
def mixhop(layer: Any) -> nn.Module:
    """Concatenated powers; one that repeats is computed once."""
    powers = list(dict.fromkeys(layer.powers))
    K, H = max(powers) + 1, len(powers)
    rows = [[float(k == p) for k in range(K)] for p in powers]
    linears, repeats = [layer.lins[p] for p in powers], len(layer.powers) > H
    conv = polynomial(
        layer,
        linears,
        lambda S: Powers(K, S) if powers == list(range(K)) else Mix(rows, Powers(K, S)),
        None if repeats else layer.bias,
        layer.add_self_loops,
        theta=Heads(),
        heads=H,
    )
    return Repeat(layer, conv, [powers.index(p) for p in layer.powers]) if repeats else conv


class Repeat(GraphLayer):
    """Some heads of a convolution several times, and a bias.

    Args:
        layer: whose bias it takes over.
        conv: with `theta.Heads`.
        heads: which of its heads to take, one after the other.
    """

    kept = ("bias",)

    def __init__(self, layer: Any, conv: BasisConv, heads: list[int]) -> None:
        super().__init__(layer)
        self.conv, self.heads = conv, heads

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        y = self.conv(*args, **kwargs)
        heads = y.unflatten(-1, (max(self.heads) + 1, -1))
        y = torch.cat([heads[..., h, :] for h in self.heads], dim=-1)
        return y if self.bias is None else y + self.bias


def mixture(layer: Any, coefficients: list[float]) -> BasisConv:
    """One matrix for a sum of powers."""
    K = len(coefficients)
    return polynomial(
        layer,
        [layer.lin],
        lambda S: Mix(coefficients, Powers(K, S)),
        layer.lin.bias,
        layer.add_self_loops,
        cached=layer.cached,
    )
