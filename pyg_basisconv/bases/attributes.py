"""Families whose weights are functions of the edges' features: continuous kernels, for meshes, points and molecules."""

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn

from ..basis import Basis, BoundBasis
from ..bound import SharedEdges, TypedEdges
from ..edge_set import EdgeSet, edge_set
from ..errors import check_choice, check_count, check_flags, reject
from ..graph import Graph
from ..kernels.op import acc_dtype
from ..portable import portable
from ..printing import arguments
from ..theta.base import glorot
from .adjacency import reciprocal, sum_by_target


class OfAttributes(Basis):
    r"""K matrices of the graph's edges, :math:`A_{kmn} = \sum_{e: m \to n} w_k(a_e)`, for features a_e of the edges.

    A subclass has the functions w_k, in `weights`. Weights of edges, `edge_weight`, are factors beside them.

    Args:
        K: how many matrices.
        norm: 'mean' to divide by the number of edges into n; None for the sum.
    """

    reads_content = True
    reads_edges = True

    def __init__(self, K: int, norm: Literal["mean"] | None = None) -> None:
        check_choice("norm", norm, None, "mean")
        super().__init__(K)
        self.norm = norm

    def weights(self, edge_attr: Tensor) -> Tensor:
        """(E, D) -> (E, K)."""
        raise NotImplementedError

    def build(self, graph: Graph) -> BoundBasis:
        weight = self.weights(self._features(graph))
        factor = self._factor(graph)
        weight = weight if factor is None else weight * factor.to(weight.dtype).unsqueeze(1)
        return SharedEdges(edge_set(graph.structure), weight, graph.dtype)

    def _features(self, graph: Graph) -> Tensor:
        """(E, D) the features of the edges of a call, checked."""
        content = graph.content
        if content is None:
            reject("edge_attr", f"features of the edges, which {self} reads", None, "call the layer with edge_attr=")
        edge_attr = content.edge_features
        content.check(graph.sources, graph.N, self.K)
        if edge_attr.dim() != 2:
            reject(
                "edge_attr", "shape (E, D)", tuple(edge_attr.shape), "give the edges of the pairs, and their features"
            )
        return edge_attr

    def _factor(self, graph: Graph) -> Tensor | None:
        """(E,) what the weights are multiplied by: the edges' own, an explainer's mask, and 1 / degree for a mean."""
        factor = graph.apply_mask(None if graph.weight is None else graph.weights)
        if self.norm is None:
            return factor
        share = graph.memo("over_in_degree", lambda: _over_in_degree(graph))
        return share if factor is None else factor * share

    def edge_ids(self, graph: Graph) -> Tensor | None:
        return torch.arange(graph.E, device=graph.device) if self.K == 1 else None


def _over_in_degree(graph: Graph) -> Tensor:
    """(E,) 1 over the number of edges into each edge's target."""
    count = sum_by_target(graph.structure.pattern, None, graph.acc_dtype)
    return reciprocal(count).index_select(0, graph.target.long())


class Gaussians(OfAttributes):
    r"""Gaussians of the edges' features with learnt means and widths, :math:`w_k(a) = \exp(-\frac{1}{2} \sum_d (a_d -
    \mu_{kd})^2 / (\varepsilon + \sigma_{kd}^2))`: MoNet (F. Monti et al., arXiv:1611.08402), PyG's `GMMConv`.

    Args:
        K: how many Gaussians.
        dim: D, the number of features of an edge.
        norm: 'mean' to divide by the number of edges into the target; None for the sum.

    Raises:
        ValueError: in a call whose edge_attr is not (E, D).

    >>> from pyg_basisconv import BasisConv, bases
    >>> conv = BasisConv(4, 2, bases.Gaussians(5, dim=3, norm="mean"))
    >>> conv(torch.randn(6, 4), torch.randint(6, (2, 9)), edge_attr=torch.randn(9, 3)).shape
    torch.Size([6, 2])
    """

    def __init__(self, K: int, dim: int, norm: Literal["mean"] | None = None) -> None:
        super().__init__(K, norm)
        check_count("dim", dim)
        self.dim = dim
        self.mean, self.width = nn.Parameter(torch.empty(K, dim)), nn.Parameter(torch.empty(K, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws means and widths, as Glorot and Bengio do."""
        glorot(self.mean, self.K, self.dim)
        glorot(self.width, self.K, self.dim)

    def weights(self, edge_attr: Tensor) -> Tensor:
        if edge_attr.shape[1] != self.dim:
            reject("edge_attr", f"{self.dim} features of each edge", edge_attr.shape[1], "correct it, or dim")
        wide = acc_dtype(edge_attr.dtype)
        away = edge_attr.to(wide).unsqueeze(1) - self.mean.to(wide)  # (E, K, D)
        found = (-0.5 * away.square() / (1e-15 + self.width.to(wide).square())).sum(-1).exp()
        return found.to(edge_attr.dtype)

    def extra_repr(self) -> str:
        return arguments(self, str(self.K), f"dim={self.dim}", norm=None)


class EdgeNetwork(OfAttributes):
    r"""The outputs of a network that reads the edges' features, :math:`w_k(a) = network(a)_k`, and 1 behind them.

    With a free parameter it is the layer of NNConv (J. Gilmer et al., arXiv:1704.01212), whose network makes a matrix
    for each edge, P x Q: its last linear layer is Theta, and its bias the last of the K = units + 1 matrices. So there
    are units + 1 numbers for an edge, instead of P Q.

    Args:
        network: (E, D) -> (E, units).
        units: how many numbers it gives for an edge.
        constant: whether a matrix of ones follows, K = units + 1.
        norm: 'mean' to divide by the number of edges into the target; None for the sum.

    Raises:
        ValueError: in a call where the network's result is not (E, units).

    >>> from torch import nn
    >>> from pyg_basisconv import BasisConv, bases
    >>> network = nn.Sequential(nn.Linear(3, 8), nn.ReLU())
    >>> conv = BasisConv(4, 2, bases.EdgeNetwork(network, units=8))
    >>> conv(torch.randn(6, 4), torch.randint(6, (2, 9)), edge_attr=torch.randn(9, 3)).shape
    torch.Size([6, 2])
    """

    def __init__(
        self, network: nn.Module, units: int, constant: bool = True, norm: Literal["mean"] | None = None
    ) -> None:
        check_count("units", units)
        check_flags(constant=constant)
        if not isinstance(network, nn.Module):
            reject("network", "a Module, (E, D) -> (E, units)", type(network).__name__, "such as an nn.Sequential")
        super().__init__(units + constant, norm)
        self.network, self.units, self.constant = network, units, constant

    def reset_parameters(self) -> None:
        """Draws the parameters of the network's layers anew."""
        for part in self.network.modules():
            again = getattr(part, "reset_parameters", None)
            if callable(again):
                again()

    def weights(self, edge_attr: Tensor) -> Tensor:
        found: Tensor = self.network(edge_attr)
        if not isinstance(found, Tensor) or found.shape != (edge_attr.shape[0], self.units):
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            reject("network", f"one that gives (E, {self.units})", got, "correct units, or the network")
        return torch.cat([found, torch.ones_like(found[:, :1])], 1) if self.constant else found

    def extra_repr(self) -> str:
        return arguments(self, " ".join(repr(self.network).split()), f"units={self.units}", constant=True, norm=None)


class Spline(OfAttributes):
    r"""B-splines on a grid of control points, for features of edges in [0, 1]: SplineCNN (M. Fey et al.,
    arXiv:1711.08920). K is the number of control points, of which each edge has (degree + 1)^D.

    The weight of a point is the product over the axes of the B-spline at :math:`v = a_d (n_d - degree)`, or
    :math:`v = a_d n_d` on a closed axis, on which the last point is followed by the first.

    Args:
        kernel_size: (n_1, ..., n_D) control points of each axis; the first axis is the fastest in k.
        degree: of the splines, 1, 2 or 3.
        is_open: whether an axis has ends; False for angles. One for all axes, or one for each.
        norm: 'mean' to divide by the number of edges into the target; None for the sum.

    Raises:
        ValueError: in a call whose edge_attr is not (E, D), or not in [0, 1], with the edge.

    >>> from pyg_basisconv import BasisConv, bases
    >>> conv = BasisConv(4, 2, bases.Spline((5, 5)))
    >>> conv(torch.randn(6, 4), torch.randint(6, (2, 9)), edge_attr=torch.rand(9, 2)).shape
    torch.Size([6, 2])
    """

    def __init__(
        self,
        kernel_size: Sequence[int],
        degree: int = 1,
        is_open: bool | Sequence[bool] = True,
        norm: Literal["mean"] | None = None,
    ) -> None:
        sizes = tuple(kernel_size) if isinstance(kernel_size, tuple | list) else (kernel_size,)
        check_count("degree", degree, 1, max(_PIECES))
        for n in sizes:
            check_count("kernel_size", n)
        if not sizes or min(sizes) <= degree:  # type: ignore[type-var]
            reject("kernel_size", f"more than {degree} control points on each axis", kernel_size, "add some")
        ends = tuple(is_open) if isinstance(is_open, tuple | list) else (is_open,) * len(sizes)
        if len(ends) != len(sizes) or not all(isinstance(one, bool) for one in ends):
            reject("is_open", f"one flag, or one for each of {len(sizes)} axes", is_open, "give True or False")
        super().__init__(prod(sizes), norm)  # type: ignore[arg-type]
        self.kernel_size, self.degree, self.is_open = sizes, degree, ends

    def build(self, graph: Graph) -> BoundBasis:
        kind, weight = self._points(self._features(graph))  # (E, S)
        factor = self._factor(graph)
        weight = weight if factor is None else weight * factor.to(weight.dtype).unsqueeze(1)
        S = kind.shape[1]
        source, target = (end.repeat_interleave(S) for end in (graph.source, graph.target))
        edges = EdgeSet(self.K, graph.M, graph.N, None if self.K == 1 else kind.flatten(), source, target)
        return TypedEdges(edges, weight.flatten(), graph.dtype)

    def weights(self, edge_attr: Tensor) -> Tensor:
        kind, weight = self._points(edge_attr)
        return weight.new_zeros(len(weight), self.K).scatter_add(1, kind, weight)

    def _points(self, edge_attr: Tensor) -> tuple[Tensor, Tensor]:
        """(E, S) the control points of each edge, and their weights; S = (degree + 1)^D."""
        self._check(edge_attr)
        wide = acc_dtype(edge_attr.dtype)
        points, weights = [], []
        for d, (n, is_open) in enumerate(zip(self.kernel_size, self.is_open, strict=True)):
            v = edge_attr[:, d].to(wide) * (n - self.degree if is_open else n)
            first = v.detach().floor()
            if is_open:  # what lies on the last end belongs to the piece before it
                first = first.clamp(max=n - self.degree - 1)
            rest, first = v - first, first.long()
            weights.append([piece(rest) for piece in _PIECES[self.degree]])
            points.append([(first + j) % n for j in range(self.degree + 1)])
        steps = [prod(self.kernel_size[:d]) for d in range(len(self.kernel_size))]
        kind = [sum(s * p for s, p in zip(steps, some, strict=True)) for some in product(*points)]
        weight = [torch.stack(some).prod(0) for some in product(*weights)]
        return torch.stack(kind, 1), torch.stack(weight, 1).to(edge_attr.dtype)  # type: ignore[arg-type]

    def _check(self, edge_attr: Tensor) -> None:
        D = len(self.kernel_size)
        if edge_attr.shape[1] != D:
            reject("edge_attr", f"{D} features of each edge, one for each axis", edge_attr.shape[1], "correct it")
        if portable():
            return
        outside = ~((edge_attr >= 0) & (edge_attr <= 1)).all(1)
        if bool(outside.any()):
            edge = int(outside.nonzero()[0])
            got, fix = f"{edge_attr[edge].tolist()} at edge {edge}", "divide by the largest, as PyG's transforms do"
            reject("edge_attr", "numbers in [0, 1]", got, fix)

    def extra_repr(self) -> str:
        ends = self.is_open[0] if len(set(self.is_open)) == 1 else self.is_open
        shown = [str(self.kernel_size), *([f"degree={self.degree}"] if self.degree != 1 else [])]
        shown += [] if ends is True else [f"is_open={ends}"]
        return arguments(self, *shown, norm=None)


# The pieces of uniform B-splines over one interval, by degree: functions of the place in it, from 0 to 1.
_PIECES = {
    1: (lambda r: 1 - r, lambda r: r),
    2: (lambda r: 0.5 * (1 - r).square(), lambda r: 0.5 + r - r.square(), lambda r: 0.5 * r.square()),
    3: (
        lambda r: (1 - r) ** 3 / 6,
        lambda r: (3 * r**3 - 6 * r.square() + 4) / 6,
        lambda r: (1 + 3 * r + 3 * r.square() - 3 * r**3) / 6,
        lambda r: r**3 / 6,
    ),
}
