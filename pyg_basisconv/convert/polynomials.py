"""The layers that are polynomials of one normalised matrix."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import ChebConv, GCNConv, LGConv, MixHopConv, SGConv, SSGConv, TAGConv

from ..bases import Adjacency, Chebyshev, Mix, Powers
from ..basis import Basis
from ..conv import BasisConv
from ..theta import Heads
from .build import basis_conv, mean, only_sum, plain
from .layers import Signature
from .registry import REVERSED, over, rule


def families(layer: Any, loops: bool | float, family: Callable[[Adjacency], Basis]) -> dict[str, Any]:
    """A function of the normalised adjacency, for every layout of the graph.

    Where the graph has loops already, and loops are to be added, PyG keeps those of an edge_index, adds to those of a
    torch.sparse matrix, and replaces those of a SparseTensor; and loops weigh 1 where no edge has a weight.
    """
    only_sum(layer)
    if not loops:
        return {"basis": family(Adjacency("sym"))}
    others = {
        "sparse": family(Adjacency("sym", loops, existing="add")),
        "sparse_tensor": family(Adjacency("sym", loops, existing="replace")),
    }
    if loops != 1:
        others["bare"] = family(Adjacency("sym", True))
    return {"basis": family(Adjacency("sym", loops)), "others": others}


@rule(
    GCNConv,
    "GCN",
    [
        {},
        {"improved": True},
        {"add_self_loops": False},
        {"normalize": False},
        {"bias": False},
        {"cached": True},
        REVERSED,
        {"normalize": False, "aggr": "mean"},
        {"decomposed_layers": 2},
    ],
)
def gcn(layer: Any) -> BasisConv:
    """One matrix: the binding is cached in any case, against the graph, so `cached` needs nothing."""
    if layer.normalize:
        loops = 2.0 if layer.improved else True
        kinds = families(layer, layer.add_self_loops and loops, lambda S: S)
    else:
        kinds = {"basis": plain(layer)}
    return basis_conv(layer, [layer.lin], bias=layer.bias, call=_call(layer), messages="theta_first", **kinds)


@rule(LGConv, "LightGCN", [{}, {"normalize": False}, {"normalize": False, "aggr": "mean"}, REVERSED])
def lg(layer: Any) -> BasisConv:
    """The same without a parameter."""
    basis = families(layer, False, lambda S: S)["basis"] if layer.normalize else plain(layer)
    return basis_conv(layer, [], basis, call=_call(layer))


@rule(
    TAGConv,
    "TAG, powers",
    [{}, {"K": 0}, {"bias": False}, REVERSED, *over({"K": 2, "normalize": False}, aggr=("add", "mean"))],
)
def tag(layer: Any) -> BasisConv:
    """The powers from 0 to K."""
    K = len(layer.lins)
    if layer.normalize:
        basis = families(layer, False, lambda S: Powers(K, S))["basis"]
    else:
        basis = Powers(K, plain(layer))
    return basis_conv(layer, layer.lins, basis, layer.bias, call=_call(layer))


@rule(
    SGConv,
    "SGC, one power",
    [
        *over(K=(1, 0, 3)),
        *({"K": 2} | more for more in ({"add_self_loops": False}, {"cached": True, "bias": False}, REVERSED)),
    ],
)
def sg(layer: Any) -> BasisConv:
    """The last power alone."""
    return _mixture(layer, [0.0] * layer.K + [1.0])


@rule(
    SSGConv,
    "SSGC, mixed powers",
    [
        {"alpha": 0.1},
        {"alpha": 0.3, "K": 3},
        {"alpha": 0.0, "K": 2, "add_self_loops": False},
        {"alpha": 0.1, "K": 2, "cached": True, "bias": False},
        {"alpha": 0.1, "K": 2} | REVERSED,
    ],
)
def ssg(layer: Any) -> BasisConv:
    """The mean of the powers from 1 on, with alpha of the zeroth."""
    return _mixture(layer, [layer.alpha, *[(1 - layer.alpha) / layer.K for _ in range(layer.K)]])


@rule(
    ChebConv,
    "ChebNet",
    [
        *over(K=(1, 2, 4), normalization=("sym", "rw", None)),
        {"K": 3, "bias": False},
        *over({"K": 3} | REVERSED, normalization=("sym", "rw")),
    ],
)
def cheb(layer: Any) -> BasisConv:
    """Chebyshev polynomials; PyG takes the Laplacian of the edges as they are given, whatever the flow."""
    only_sum(layer)
    basis: Basis = Chebyshev(len(layer.lins), layer.normalization)
    if layer.flow == "target_to_source":
        new = basis_conv(layer, layer.lins, basis.T, layer.bias, call=_call(layer))
        new.flow = "source_to_target"
        return new
    return basis_conv(layer, layer.lins, basis, layer.bias, call=_call(layer))


@rule(
    MixHopConv,
    "MixHop, powers as heads",
    [
        {},
        *over(powers=([1], [0, 3], [2, 0, 1], [1, 2, 1])),
        {"powers": [1, 1], "bias": False},
        {"add_self_loops": False},
        {"bias": False},
        REVERSED,
    ],
)
def mixhop(layer: Any) -> nn.Module:
    """Powers side by side; one that repeats is computed once."""
    distinct = list(dict.fromkeys(layer.powers))
    K = max(distinct) + 1
    rows = [[float(k == p) for k in range(K)] for p in distinct]
    ordered = distinct == list(range(K))
    kinds = families(layer, layer.add_self_loops, lambda S: Powers(K, S) if ordered else Mix(rows, Powers(K, S)))
    linears = [layer.lins[p] for p in distinct]
    repeats = len(layer.powers) > len(distinct)
    bias = None if repeats else layer.bias
    conv = basis_conv(layer, linears, bias=bias, call=_call(layer), theta=Heads(), heads=len(distinct), **kinds)
    return Repeat(conv, [distinct.index(p) for p in layer.powers], layer.bias) if repeats else conv


class Repeat(nn.Module):
    """Some heads of a convolution several times, and a bias.

    Args:
        conv: with `theta.Heads`.
        heads: which of its heads to take, one after the other.
        bias: of the width of the result.
    """

    def __init__(self, conv: BasisConv, heads: Sequence[int], bias: nn.Parameter | None) -> None:
        super().__init__()
        self.conv, self.heads = conv, list(heads)
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), bias.requires_grad)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        y = self.conv(*args, **kwargs)
        heads = y.unflatten(-1, (max(self.heads) + 1, -1))
        y = torch.cat([heads[..., h, :] for h in self.heads], dim=-1)
        return y if self.bias is None else y + self.bias

    def reset_parameters(self) -> None:
        """Draws Theta anew and sets the bias to zero."""
        self.conv.reset_parameters()
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def _mixture(layer: Any, coefficients: list[float]) -> BasisConv:
    K = len(coefficients)
    kinds = families(layer, layer.add_self_loops, lambda S: Mix(coefficients, Powers(K, S)))
    return basis_conv(layer, [layer.lin], bias=layer.lin.bias, call=_call(layer), cached=layer.cached, **kinds)


def _call(layer: Any) -> Signature:
    return Signature.of(layer, merge=mean(layer))
