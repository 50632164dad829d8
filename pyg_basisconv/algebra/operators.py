"""Linear operators Phi, (M, N, P, Q), given as tensors or layers, and their entries at the places of a family."""

from typing import Any

import torch
from torch import Tensor, nn

from ..basis import BoundBasis
from ..cache import constituents
from ..conv import BasisConv
from ..convert.layers import Converted
from ..convert.registry import convertible
from ..errors import reject
from .affine import LINEARS, NORMS, unwrapped
from .compose import linear_layer
from .gram import Places


class Operator:
    """A linear operator, whose entries at some places can be read for some channels of x at a time.

    P, Q: the number of channels of x and y; outside: the squared norm of all other entries of the channels that were
    read so far.
    """

    def __init__(self, places: Places, P: int, Q: int) -> None:
        self.places, self.P, self.Q, self.outside = places, P, Q, 0.0

    @property
    def rows(self) -> int:
        """The number of entries in memory for each channel."""
        return self.places.U

    def at(self, channels: range) -> Tensor:
        """(U, g, Q) the entries at the places, float64."""
        raise NotImplementedError

    def restore(self, theta: Tensor) -> Tensor:
        """(K, P, Q) the parameter, from the channels of this operator to those of the layer."""
        return theta


class Numbers(Operator):
    """An operator given as a tensor: (M, N, P, Q), or (M, N) for one channel, dense, or sparse in m and n, and maybe in
    p, or in p and q.
    """

    def __init__(self, phi: Tensor, places: Places, sizes: tuple[int, int]) -> None:
        phi = phi if phi.layout in (torch.strided, torch.sparse_coo) else phi.to_sparse()
        _check_numbers(phi, places, sizes)
        super().__init__(places, *(phi.shape[2:] if phi.dim() == 4 else (1, 1)))
        if phi.layout == torch.strided:
            flat = phi.reshape(-1, self.P, self.Q)
            energy = torch.linalg.vector_norm(flat.detach(), dim=(1, 2), dtype=torch.float64).square()
            energy[places.place] = 0
            self.outside = float(energy.sum())
            self.index, self.values = torch.arange(places.U, device=phi.device).unsqueeze(0), flat[places.place]
            return
        phi = phi.coalesce()
        if phi.sparse_dim() < 2:
            fix = "use .to_sparse(2)"
            reject("phi", "a tensor that is sparse in its first two axes", f"in {phi.sparse_dim()}", fix)
        index, values = phi.indices(), phi.values().view(-1, 1, 1) if phi.dim() == 2 else phi.values()
        row, there = places.find(index[0] * sizes[1] + index[1])
        self.outside = float(values.detach()[~there].double().square().sum())
        self.index, self.values = torch.cat([row.unsqueeze(0), index[2:]])[:, there], values[there]

    def at(self, channels: range) -> Tensor:
        index, values = self.index, self.values
        if len(index) > 1:  # p, among the sparse axes
            some = (index[1] >= channels.start) & (index[1] < channels.stop)
            index, values = index[:, some], values[some]
            index = torch.cat([index[:1], index[1:2] - channels.start, index[2:]])
        else:
            values = values[:, channels.start : channels.stop]
        found = torch.zeros(self.rows, len(channels), self.Q, dtype=torch.float64, device=values.device)
        return found.index_put(tuple(index), values.double())


def _check_numbers(phi: Tensor, places: Places, sizes: tuple[int, int]) -> None:
    if phi.dim() not in (2, 4) or tuple(phi.shape[:2]) != sizes:
        expected = f"({sizes[0]}, {sizes[1]}, P, Q) or ({sizes[0]}, {sizes[1]}), the sizes of the basis"
        reject("phi", expected, tuple(phi.shape), "give the operator from all sources to all targets")
    if not phi.is_floating_point():
        reject("phi", "real numbers", phi.dtype, "convert it with .double()")
    if phi.device != places.place.device:
        reject("phi", f"a tensor on {places.place.device}, as the basis", phi.device, "move one to the other")
    if not constituents(phi.detach())[-1].isfinite().all():
        reject("phi", "finite numbers", "some that are not", "correct them")
    if not all(phi.shape[2:]):
        reject("phi", "at least one channel in and out", tuple(phi.shape), "there is nothing to decompose")


class LayerOperator(Operator):
    r"""An operator given as a layer, by its bound basis and its parameter.

    Its P Q pairs of channels are turned into K' orthonormal mixtures, where that is fewer: norms of residuals are the
    same. weight: Theta', (K', P, Q).
    """

    def __init__(self, bound: BoundBasis, weight: Tensor, places: Places) -> None:
        self.shape, self.flat = weight.shape[1:], weight.flatten(1).double()
        self.turn = torch.linalg.qr(self.flat.detach().t()).Q  # (P Q, K')
        self.turned = self.flat.detach() @ self.turn
        super().__init__(places, self.turn.shape[1], 1)
        self.inside, self.beyond = Places.of(bound).among(places)

    @property
    def rows(self) -> int:
        return max(self.inside.U, self.beyond.U)

    def at(self, channels: range) -> Tensor:
        some = self.turned[:, channels.start : channels.stop]
        if self.beyond.row.numel():
            self.outside += float(torch.linalg.vector_norm(self.beyond.sums(some).detach()).square())
        return self.inside.sums(some).unsqueeze(2)

    def restore(self, theta: Tensor) -> Tensor:
        found = theta.detach().squeeze(2) @ self.turn.t()
        if torch.is_grad_enabled() and (self.flat.requires_grad or theta.requires_grad):
            linear = self.places.gram.solve(self.places.inner_products(self.inside) @ self.flat)
            found = linear + (found - linear.detach())  # `found` is more precise; the gradient is that of `linear`
        return found.unflatten(1, self.shape)


def layer_of(phi: Any) -> BasisConv | None:
    """Phi as a layer, converted if need be; None for other functions."""
    if isinstance(phi, BasisConv):
        return phi
    if isinstance(phi, nn.Module) and (convertible(phi) or type(unwrapped(phi)) in (*NORMS, *LINEARS)):
        made = linear_layer(phi, "phi", images=False)
        for parameter in made.parameters():  # the copy is not the caller's
            parameter.requires_grad_(False)
        return made
    return None


def weight_of(layer: BasisConv, in_channels: int | None) -> Tensor:
    """(K, P, Q) Theta as dense matrices, for a layer that may take any width."""
    if layer.is_lazy:
        reject("phi", "a layer whose width is known", "in_channels = -1", "call it once before")
    P = layer.theta.P if layer.theta.P >= 0 else in_channels
    if P is None:
        reject("in_channels", f"the width P, of {layer}, which takes any", None, "give it")
    if in_channels not in (None, P):
        reject("in_channels", f"{P}, of {layer}", in_channels, "leave it out")
    return layer.theta.dense(P)[:, :P]  # rows after P are biases of values


def bound_like(layer: BasisConv, bound: BoundBasis) -> BoundBasis:
    """The basis of a layer, bound to the graph or grid of another basis."""
    basis = layer.basis
    if basis.reads_content:
        fix = "pass phi_basis=A of y, A = layer(x, ..., return_attention=True)"
        reject("phi", "a layer whose basis does not depend on x", f"{basis}, computed from it", fix)
    grid = bound.source_grid if (basis.axes or 0) > 1 else None
    if bound.origin is not None:
        graph = bound.origin[1]
        graph = graph.T if basis.needs_edges and layer.flow == "target_to_source" else graph
        if isinstance(layer, Converted):  # as PyG reads such a graph
            basis = layer.others.get(graph.kind or ("bare" if graph.weight is None else ""), basis)
        return basis.on(graph if grid is None else graph.on_grid(grid))
    if basis.needs_edges:
        reject("phi_basis", f"the edges that {basis} needs", None, "pass phi_basis=layer.basis.bind(edge_index)")
    return basis.on_grid(grid, torch.float64, bound.device, (bound.M, bound.N))


def of_layer(
    layer: BasisConv, bound: BoundBasis, places: Places, in_channels: int | None, own: BoundBasis | None
) -> LayerOperator:
    """A layer as an operator from the sources of a bound basis to its targets."""
    weight = weight_of(layer, in_channels)
    if not isinstance(own, BoundBasis | None):
        reject("phi_basis", "a bound basis", own, "pass phi_basis=basis.bind(...)")
    found = bound_like(layer, bound) if own is None else own
    if (found.M, found.N) != (bound.M, bound.N):
        expected = f"an operator of {bound.M} x {bound.N}, the sizes of the basis"
        reject("phi", expected, f"{found.M} x {found.N}, of {layer}", "bind both to one graph or grid")
    if weight.shape[0] != found.K:
        reject("phi_basis", f"{weight.shape[0]} matrices, as {layer.basis}", found.K, "bind the basis of the layer")
    if weight.device != places.place.device:
        reject("phi", f"a layer on {places.place.device}, as the basis", weight.device, "move one to the other")
    return LayerOperator(found, weight, places)
