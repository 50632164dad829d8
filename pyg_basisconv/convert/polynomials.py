"""The layers that are polynomials of one matrix."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array, eye_array
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import APPNP, ChebConv, GCNConv, LGConv, MixHopConv, PANConv, SGConv, SSGConv, TAGConv
from torch_geometric.nn.dense.linear import Linear
from torch_geometric.typing import WITH_TORCH_SPARSE, SparseTensor

from ..bases import Adjacency, Chebyshev, Identity, Mix, Powers
from ..basis import Basis
from ..bound import Explicit
from ..cache import once
from ..conv import BasisConv
from ..theta import Heads
from ..typed_edges import TypedEdges
from .build import adjacency, basis_conv, check_sum, parameter
from .composite import GraphLayer
from .edges import read_edges
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
    torch.sparse matrix, and replaces those of a SparseTensor; and loops weigh 1 where no edge has a weight. The other
    arguments are those of `basis_conv`.
    """
    kwargs = {"call": Signature.of(layer)} | kwargs
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
def appnp(layer: Any) -> nn.Module:
    r"""Powers, weighted by :math:`\alpha (1 - \alpha)^k`: of a walk that returns with probability :math:`\alpha`."""
    K, stays = layer.K, 1 - layer.alpha
    coefficients = [*(layer.alpha * stays**k for k in range(K)), stays**K]
    walk = polynomial(layer, [], lambda S: Mix(coefficients, Powers(K + 1, S)), loops=layer.add_self_loops)
    return DroppedSteps(layer, walk) if layer.dropout else walk


class DroppedSteps(GraphLayer):
    r"""The steps of a walk one by one in training, :math:`(1 - \alpha) S_t^\top x_t + \alpha x`, where each drops some
    entries of the matrix that the step before left; else the walk of all steps.
    """

    draws_at_once = True

    def __init__(self, layer: Any, walk: BasisConv) -> None:
        super().__init__(layer)
        self.walk, self.step = walk, polynomial(layer, [], loops=layer.add_self_loops)

    def compute(self, **call: Any) -> Tensor:
        return self._dropping(**call) if self.training else self.walk(**call)

    @torch.compiler.disable  # which cannot trace what a basis is bound to
    def _dropping(self, x: Tensor, **call: Any) -> Tensor:
        y, S = x, self.step._bind(self.step.call.arguments((), {"x": x, **call})).family
        for _ in range(self.K):
            S = S.map(self._dropped)
            y = (1 - self.alpha) * S.combine([y]) + self.alpha * x
        return y

    def _dropped(self, matrix: Explicit) -> Explicit:
        weight = matrix.edges().weight if matrix.weight is None else matrix.weight
        return TypedEdges(matrix.edge_set, F.dropout(weight, self.dropout), matrix.dtype)


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
    """The heads of a convolution with these numbers, one after the other, of which some repeat, and a bias."""

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

    def mixed(S: Adjacency) -> Basis:
        return Mix(coefficients, Powers(len(coefficients), S))

    return polynomial(layer, [layer.lin], mixed, layer.lin.bias, layer.add_self_loops, cached=layer.cached)


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
        read = read_edges(edge_index)
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
        return torch.sparse_coo_tensor(indices, value, (N, N), device=value.device, is_coalesced=True)
    about = {"row": found.target, "col": found.source, "value": value}
    return SparseTensor(**about, sparse_sizes=(N, N), is_sorted=True, trust_data=True)


@once
def _paths(edges: Tensor, values: Tensor | None, N: int, L: int, dtype: torch.dtype) -> Paths:
    source, target = edges.cpu().numpy()
    weight = np.ones(len(source)) if values is None else values.detach().cpu().double().numpy()
    A, power = csr_array((weight, (target, source)), (N, N)), eye_array(N, format="csr")
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
