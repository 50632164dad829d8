"""Bases whose weights are functions of the features of edges."""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch_geometric.nn.inits import reset

from ..backend import on_gpu
from ..basis import Basis, BoundBasis
from ..edge_set import EdgeSet, gather, gather_pattern
from ..errors import check_choice, check_count, check_flags, reject, shape_or_type
from ..graph import Graph
from ..kernels import Pattern, spmm
from ..kernels.op import autocasting
from ..mechanisms.base import upcast
from ..portable import any_seen, few, with_plain
from ..printing import arguments
from ..typed_edges import SharedEdges
from .adjacency import normalise
from .composed import real

Norm = Literal["mean"] | None

_HELD = 1 << 16  # numbers


class EdgeFunctions(Basis):
    r"""Functions of the features of edges: :math:`A_{kmn} = \sum_{e: m \to n} w_e \varphi_k(z_e)`.

    z is `edge_attr`, (E, D), with a gradient if it learns. A subclass defines `values(z)`, the functions; a layer holds
    E K numbers of them, and nothing of size E x P. Theta is drawn for functions of which few are large at any edge, as
    bumps and splines are; where all of them are, set `self.variance_gain = K`.

    Args:
        K: how many functions.
        dim: D; None for any.
        norm: 'mean' to divide by the number of edges into n.

    >>> import torch
    >>> class Cosines(EdgeFunctions):
    ...     def values(self, z):
    ...         return (z * torch.arange(self.K, dtype=z.dtype)).cos()  # (E, K)
    >>> edge_index, z = torch.tensor([[0, 1], [2, 2]]), torch.tensor([[0.], [torch.pi]])
    >>> Cosines(2, 1, norm='mean').bind(edge_index, edge_attr=z).to_coo().to_dense()[1]
    tensor([[ 0.0000,  0.0000,  0.5000],
            [ 0.0000,  0.0000, -0.5000],
            [ 0.0000,  0.0000,  0.0000]])
    """

    reads_content = reads_edges = True
    reads_types = False
    needs_finite = False  # True if features that are not finite are refused

    def __init__(self, K: int, dim: int | None = None, norm: Norm = None) -> None:
        super().__init__(K)
        if dim is not None:
            check_count("dim", dim)
        check_choice("norm", norm, None, "mean")
        self.dim, self.norm = dim, norm

    def values(self, z: Tensor) -> Tensor:
        """(E, D) -> (E, K) the functions, for features in float32 at least."""
        raise NotImplementedError(f"{type(self).__name__} gives no values(z)")

    def build(self, graph: Graph) -> BoundBasis:
        s, z, weight = graph.structure, self._features(graph), None if graph.weight is None else graph.weights
        z = finite(s, z) if self.needs_finite else z
        if self.norm is not None:
            weight = graph.memo("mean of edges", lambda: normalise(s, weight, "mean", graph.acc_dtype))
        return self.family(s, z, graph.apply_mask(weight), graph.dtype)

    def family(self, s: EdgeSet, z: Tensor, weight: Tensor | None, dtype: torch.dtype) -> BoundBasis:
        """The bound family of the features of edges and what multiplies them, (E,) or None."""
        s, z, weight = _by_target(s, z, weight)
        values = self._values_of(z)
        return SharedEdges(s, values if weight is None else values * weight.unsqueeze(1), dtype)

    def _values_of(self, z: Tensor) -> Tensor:
        found, shape = self.values(upcast(z)), (z.shape[0], self.K)
        if not isinstance(found, Tensor) or found.shape != shape:
            reject("values", f"{shape}, one column for each of K functions", shape_or_type(found), f"correct {self}")
        return found

    def _features(self, graph: Graph) -> Tensor:
        """(E, D) the features of the edges, checked."""
        z, content, E = graph.edge_attr, graph.content, graph.E
        width = "D" if self.dim is None else str(self.dim)
        if not isinstance(z, Tensor):
            fix = "pass edge_attr= by its name: the third argument is edge_weight"
            reject("edge_attr", f"({E}, {width}) features of edges, for {self}", z, fix)
        if z.layout != torch.strided or z.dim() != 2 or z.shape[0] != E or self.dim not in (None, z.shape[1]):
            got = tuple(z.shape) if z.layout == torch.strided else z.layout
            fix = "give one row for each edge, of the width that the basis was made for"
            reject("edge_attr", f"shape ({E}, {width}), for {self}", got, fix)
        if z.device != graph.device:
            reject("edge_attr", f"a tensor on {graph.device}, where the graph is", z.device, "move it there")
        if z.dtype != graph.dtype and not (autocasting(z.device) and z.is_floating_point()):
            reject("edge_attr", f"dtype {graph.dtype}, as x", z.dtype, f"convert it with .to({graph.dtype})")
        for name in ("mask", "valid"):
            if content is not None and getattr(content, name) is not None:
                reject(name, f"None beside {self}", "a tensor", "leave edges out, or give them edge_weight=0")
        return z


@with_plain(lambda s, z, weight: (s, z, weight))
def _by_target(s: EdgeSet, z: Tensor, weight: Tensor | None) -> tuple[EdgeSet, Tensor, Tensor | None]:
    """The edges sorted by target, in which order kernels read their weights: these are then never permuted."""
    order = s.expand.by_target.order
    if order is None:
        return s, z, weight

    def build() -> tuple[EdgeSet, Pattern]:
        _, source, _ = s.expand.by_target
        return EdgeSet(1, s.M, s.N, None, source, s.expand.row), gather_pattern(order, s.E)

    arranged, gathers = s.memo("by target", build)
    z = spmm(z, None, gathers) if z.requires_grad else z.index_select(0, order)  # whose derivative has a fixed order
    return arranged, z, None if weight is None else gather(weight, order, lambda: gathers)


def _squares(z: Tensor, points: Tensor, scale: Tensor) -> Tensor:
    """(E, K) the sum over d of scale_kd (z_d - points_kd)^2; of many edges without E x K x D numbers.

    The difference is taken first, as of two products that are large and alike few digits would be left.
    """
    if few(z.shape[0] * points.numel(), _HELD):  # (D, K, E), whose rows are long: along short ones torch is slow
        each = z.t().contiguous().unsqueeze(1)
        points, scale = (t.t().contiguous().unsqueeze(-1) for t in (points, scale))
        return (each - points).square().mul(scale).sum(0).t()
    total = z.new_zeros(())
    for z_d, p, s in zip(z.t(), points.t().unsqueeze(-1), scale.t().unsqueeze(-1), strict=True):
        total = torch.addcmul(total, (z_d - p).square(), s)  # (K, E)
    return total.t()  # as kernels read it


def finite(s: EdgeSet, z: Tensor) -> Tensor:
    """The features of edges; rejects those that are not finite. A GPU would wait: there the first of a graph are looked
    at, and later ones become NaN.
    """
    zero_or_nan = z.detach() * 0

    def look() -> None:
        if any_seen(zero_or_nan):
            reject("edge_attr", "finite numbers", z[~torch.isfinite(z)][0].item(), "remove what is not finite")

    s.check("features", look)
    return z + zero_or_nan if on_gpu(z) else z


class Gaussians(EdgeFunctions):
    r"""Gaussians with learnt means and widths:
    :math:`\varphi_k(z) = exp(-\frac{1}{2} \sum_d (z_d - \mu_{kd})^2 / (10^{-15} + \sigma_{kd}^2))`.

    (MoNet, Monti et al., arXiv:1611.08402, as in PyG's `GMMConv`.)

    Args:
        K: how many.
        dim: D, the width of `edge_attr`.
        norm: 'mean' to divide by the number of edges into n.

    >>> import torch
    >>> from pyg_basisconv import BasisConv, bases
    >>> conv = BasisConv(8, 4, bases.Gaussians(5, 2, norm='mean'))
    >>> edge_index, z = torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.rand(3, 2)
    >>> conv(torch.randn(3, 8), edge_index, edge_attr=z).shape, conv.basis.mean.shape
    (torch.Size([3, 4]), torch.Size([5, 2]))
    """

    needs_finite = True

    def __init__(self, K: int, dim: int, norm: Norm = None) -> None:
        super().__init__(K, dim, norm)
        check_count("dim", dim)
        self.mean = nn.Parameter(torch.empty(K, dim))
        self.width = nn.Parameter(torch.empty(K, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the means and widths anew, as PyG does."""
        nn.init.xavier_uniform_(self.mean)
        nn.init.xavier_uniform_(self.width)

    def values(self, z: Tensor) -> Tensor:
        scale = (1e-15 + upcast(self.width).square()).reciprocal()
        return _squares(z, upcast(self.mean), scale).mul(-0.5).exp()

    def extra_repr(self) -> str:
        return arguments(self, self.K, self.dim, norm=None)


class EdgeNetwork(EdgeFunctions):
    r"""The units of a network on the features of edges, and one more of ones: :math:`\varphi(z) = (h(z), 1)`.

    With `theta.Full` this is the matrix of each edge that a last `Linear(units, P Q)` would make of h,
    :math:`\Theta(z) = \sum_k h_k(z) W_k + b`, of which only the h + 1 numbers of each edge are held, instead of P Q.
    (NNConv, Gilmer et al., arXiv:1704.01212; ECC, arXiv:1704.02901.) With `theta.Depthwise` it is the continuous filter
    of SchNet (arXiv:1706.08566).

    All members meet at every edge. So Theta is drawn with 1 / (units + 1) of the variance of a single matrix: the sum
    then starts at the size of x, if the units are of size one.

    Args:
        network: h, from (E, D) to (E, units), without that last Linear.
        units: how many.
        bias: whether to add the matrix of ones.
        norm: 'mean' to divide by the number of edges into n.

    >>> import torch
    >>> from pyg_basisconv import BasisConv, bases
    >>> hidden = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU())
    >>> conv = BasisConv(8, 4, bases.EdgeNetwork(hidden, 16))
    >>> edge_index, z = torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.rand(3, 3)
    >>> conv(torch.randn(3, 8), edge_index, edge_attr=z).shape, conv.weight.shape
    (torch.Size([3, 4]), torch.Size([17, 8, 4]))
    """

    def __init__(self, network: nn.Module, units: int, bias: bool = True, norm: Norm = None) -> None:
        check_count("units", units)
        check_flags(bias=bias)
        if not isinstance(network, nn.Module):
            reject("network", "a torch.nn.Module", repr(network), "such as Sequential(Linear(D, 16), ReLU())")
        super().__init__(units + bias, _width(network), norm)
        self.network, self.units, self.bias = network, units, bias
        self.variance_gain = self.K

    def reset_parameters(self) -> None:
        """Draws the parameters of the network anew."""
        reset(self.network)

    def _values_of(self, z: Tensor) -> Tensor:
        h = self.network(z)  # in its own precision
        if not isinstance(h, Tensor) or h.shape != (z.shape[0], self.units):
            expected = f"outputs of shape (E, {self.units})"
            reject("network", expected, shape_or_type(h), "correct units, or the network")
        h = upcast(h)
        return torch.cat([h, h.new_ones(h.shape[0], 1)], 1) if self.bias else h

    def extra_repr(self) -> str:
        return arguments(self, _spelled(self.network), self.units, bias=True, norm=None)


def _width(network: nn.Module) -> int | None:
    """The width that a network reads, where it begins with a Linear that knows it."""
    while type(network) is nn.Sequential and len(network):
        network = network[0]
    known = type(network) is nn.Linear and network.in_features > 0
    return network.in_features if known else None  # type: ignore[return-value]


def _spelled(module: nn.Module) -> str:
    """What makes a module, in one line."""
    if type(module) is nn.Sequential:
        return f"Sequential({', '.join(map(_spelled, module))})"
    return " ".join(repr(module).split())


class Points(EdgeFunctions):
    r"""How near the features of an edge, as a rule a relative position, are to each of K points:
    :math:`\varphi_k(z) = max(0, 1 - |z - p_k| / \sigma)`, or :math:`exp(-|z - p_k|^2 / 2 \sigma^2)`.

    (KPConv, rigid, Thomas et al., arXiv:1904.08889.)

    Args:
        points: p, (K, D).
        extent: sigma.
        influence: 'linear', the former, or 'gaussian', the latter.
        norm: 'mean' to divide by the number of edges into n.

    >>> import torch
    >>> family = Points([[0., 0.], [1., 0.]], extent=2.)
    >>> edge_index, z = torch.tensor([[0], [1]]), torch.tensor([[1., 0.]])
    >>> family.bind(edge_index, edge_attr=z).to_coo().to_dense()[:, 0, 1]
    tensor([0.5000, 1.0000])
    """

    needs_finite = True
    points: Tensor

    def __init__(
        self, points: Any, extent: float, influence: Literal["linear", "gaussian"] = "linear", norm: Norm = None
    ) -> None:
        p = real(points)
        if p is None or p.dim() != 2 or not p.numel() or not bool(torch.isfinite(p).all()):
            reject("points", "finite numbers of shape (K, D)", repr(points)[:200], "give one row for each point")
        if isinstance(extent, bool) or not isinstance(extent, int | float) or not 0 < extent < float("inf"):
            reject("extent", "a positive number", repr(extent), "give the distance at which the influence ends")
        check_choice("influence", influence, "linear", "gaussian")
        super().__init__(len(p), p.shape[1], norm)
        own = p.detach().clone()
        own = own if own.is_floating_point() else own.to(torch.get_default_dtype())
        self.register_buffer("points", own, persistent=False)
        self.extent, self.influence = float(extent), influence

    def values(self, z: Tensor) -> Tensor:
        points = upcast(self.points).to(z.dtype)
        square = _squares(z, points, torch.ones_like(points))  # (E, K)
        if self.influence == "gaussian":
            return (square / (-2 * self.extent**2)).exp()
        at = square == 0  # where the root has no derivative
        distance = torch.where(at, 0, torch.where(at, 1, square).sqrt())
        return (1 - distance / self.extent).clamp(min=0)

    def extra_repr(self) -> str:
        return arguments(self, self.points.tolist(), self.extent, influence="linear", norm=None)
