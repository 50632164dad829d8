"""Decomposition: the parameter that brings a layer nearest to a linear operator."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..basis import Basis, BoundBasis, bound_basis
from ..conv import BasisConv
from ..errors import check_count, check_flags, reject
from .gram import Gram, Places
from .operators import Numbers, Operator, layer_of, of_layer
from .probing import Probed

_NUMBERS = 1 << 20  # entries of Phi that are processed at a time
_REFINEMENTS = 10  # at most; one is enough unless the matrices are nearly dependent
_SHOWN = 20


@dataclass(frozen=True, repr=False, eq=False)
class Decomposition:
    r"""What `decompose` found: :math:`\Phi = \sum_k A_k \circ \Theta_k + ` a residual.

    Attributes:
        theta: (K, P, Q), float64; the one of least norm where several are equally near.
        unexplained: the squared norm of the residual.
        norm: the squared norm of Phi.
        on: (K,) the squared norm of the residual at the entries of each A_k.
        gain: (K,) by how much `unexplained` would grow without A_k.
        gram: of the basis: its rank, and the matrices that depend on others.
        basis: as a description; None if it was bound by other means.
        bound: the same, bound.
        dtype: of Phi.

    >>> import torch
    >>> from pyg_basisconv import bases
    >>> phi = torch.tensor([[1., 2., 0.], [0., 1., 4.], [3., 0., 1.]])
    >>> found = decompose(phi, bases.Shifts(3, [0, 1]))
    >>> found.theta.flatten(), found.unexplained
    (tensor([1., 3.], dtype=torch.float64), 11.0)
    >>> print(found)
    M=3  N=3  P=1  Q=1  K=2: rank 2, condition 1
    explained: 65.625% of 32, unexplained 11
      k    |Theta_k|^2       gain  left on A_k
      0              1          3            0
      1              9         18            2
    """

    theta: Tensor
    unexplained: float
    norm: float
    on: Tensor
    gain: Tensor
    gram: Gram
    basis: Basis | None = field(repr=False)
    bound: BoundBasis = field(repr=False)
    dtype: torch.dtype = field(repr=False)

    @property
    def r2(self) -> float:
        """The part of the squared norm that is explained; 1 where there is nothing to explain."""
        return 1 - self.unexplained / self.norm if self.norm else 1.0

    def layer(self) -> BasisConv:
        """A `BasisConv` with this parameter and no bias, in the dtype of Phi."""
        if self.basis is None or self.basis.reads_content:
            got = "a bound one made by other means" if self.basis is None else self.basis
            reject("basis", "a Basis that does not depend on x, or one bound from it", got, "pass the Basis")
        _, P, Q = self.theta.shape
        layer = BasisConv(P, Q, self.basis, bias=False).to(device=self.theta.device, dtype=self.dtype)
        with torch.no_grad():
            layer.weight.copy_(self.theta)
        return layer

    def __repr__(self) -> str:
        K, P, Q = self.theta.shape
        return f"Decomposition(K={K}, P={P}, Q={Q}, r2={self.r2:.6g}, unexplained={self.unexplained:.3g})"

    def __str__(self) -> str:
        (K, P, Q), b, g = self.theta.shape, self.bound, self.gram
        lines = [
            f"M={b.M}  N={b.N}  P={P}  Q={Q}  K={K}: rank {g.rank}, condition {g.condition:.3g}",
            f"explained: {100 * self.r2:.6g}% of {self.norm:.4g}, unexplained {self.unexplained:.4g}",
            f"  {'k':<3} {'|Theta_k|^2':>12} {'gain':>10} {'left on A_k':>12}",
        ]
        columns = (self.theta.detach().square().sum((1, 2)), self.gain, self.on)
        least = torch.finfo(torch.float64).eps ** 2 * self.norm * K  # below it, all is rounding
        rows = torch.stack(columns, 1)[:_SHOWN]
        for k, (size, gain, on) in enumerate(torch.where(rows.abs() <= least, 0, rows).tolist()):
            lines.append(f"  {k:<3} {size:>12.4g} {gain:>10.4g} {on:>12.4g}")
        lines += [f"  ... and {K - _SHOWN} more"] if K > _SHOWN else []
        return "\n".join([*lines, *g.dependent])


def decompose(
    phi: Any,
    basis: Basis | BoundBasis,
    in_channels: int | None = None,
    unique: bool = False,
    phi_basis: BoundBasis | None = None,
) -> Decomposition:
    r"""The Theta for which :math:`\sum_k A_k \circ \Theta_k` is nearest to a linear operator :math:`\Phi`.

    It is the least squares solution over all entries, (M, N, P, Q): exact where the matrices span Phi, and unique where
    they are independent (J.-M. Andreoli, arXiv:1905.01289, Prop. 1). Only entries of Phi at which some matrix has one
    are read; the solution follows from the inner products of the matrices, see `gram`, in double precision. Gradients
    pass from theta to a tensor phi, and to the parameters of a `BasisConv`. Matrices that are dependent to about 1e-7
    of their size count as dependent.

    Args:
        phi: the operator, one of

            - a tensor (M, N, P, Q), or (M, N) for one channel, dense or in a `torch.sparse` layout;
            - a `BasisConv` or `GridConv`, a layer that `convert` turns into one, `nn.Linear`, or a batch norm in eval
              mode, each without its bias. A layer of PyG is read as it is when called with edge_index and the weights
              that the basis was bound with;
            - any other linear function from (B, M, P) to (B, N, Q). Sources without a common target are probed
              together, so that it takes about P times as many inputs as a target has sources. If a random input shows
              that it has entries elsewhere, it is called on all M P unit inputs, unless these are too many. No gradient
              passes through it.
        basis: the family A, bound; or a basis that needs no edges, and whose size is known.
        in_channels: P, of a function.
        unique: whether to reject a basis with dependent matrices; else theta is the solution of least norm.
        phi_basis: the basis of a layer, bound; by default it is bound to the graph or grid of `basis`.

    Raises:
        ValueError: for an operator of other sizes, a function that is not linear on random inputs, or dependent
            matrices where theta is to be unique.

    >>> import torch
    >>> from pyg_basisconv import bases
    >>> layer = torch.nn.Conv2d(3, 4, 3, padding=1).double()
    >>> found = decompose(layer, bases.Window((8, 8), 3, padding=1))
    >>> found.r2, torch.allclose(found.theta, layer.weight.flatten(2).permute(2, 1, 0))
    (1.0, True)
    >>> x = torch.randn(5, 64, 3, dtype=torch.float64)
    >>> image = x.transpose(1, 2).unflatten(2, (8, 8))
    >>> torch.allclose(found.layer()(x), torch.conv2d(image, layer.weight, padding=1).flatten(2).transpose(1, 2))
    True
    >>> decompose(lambda x: x.cumsum(1), bases.Shifts(4, [0, 1]), in_channels=1).theta.flatten()
    tensor([1., 1.], dtype=torch.float64)
    """
    check_flags(unique=unique)
    if in_channels is not None:
        check_count("in_channels", in_channels)
    bound = _bound(phi, basis)
    places = Places.of(bound)
    gram = places.gram
    if unique and gram.dependent:
        fix = "leave these out, or take the theta of least norm with unique=False"
        reject("basis", f"{bound.K} independent matrices, for a unique theta", ", ".join(gram.dependent), fix)
    operator, dtype = _operator(phi, bound, places, in_channels, phi_basis)
    origin = None if bound.origin is None else bound.origin[0]
    return _solve(operator, bound, basis if isinstance(basis, Basis) else origin, dtype)


def _bound(phi: Any, basis: Basis | BoundBasis) -> BoundBasis:
    """The basis, bound; on the device of phi, and to the sizes of a tensor phi if it has none of its own."""
    if isinstance(basis, BoundBasis):
        return basis
    like = next(phi.parameters(), None) if isinstance(phi, nn.Module) else phi if isinstance(phi, Tensor) else None
    sized = like is phi and like is not None and like.dim() >= 2
    with nullcontext() if like is None else like.device:
        return bound_basis(basis, size=tuple(phi.shape[:2])) if sized else bound_basis(basis)


def _operator(
    phi: Any, bound: BoundBasis, places: Places, in_channels: int | None, phi_basis: BoundBasis | None
) -> tuple[Operator, torch.dtype]:
    """Phi as an operator, and its dtype."""
    layer, sizes = layer_of(phi), (bound.M, bound.N)
    if layer is not None:
        dtype = next((p.dtype for p in layer.parameters()), torch.float64)
        return of_layer(layer, bound, places, in_channels, phi_basis), dtype
    if phi_basis is not None:
        reject("phi_basis", "None, where phi is no layer", type(phi_basis).__name__, "leave it out")
    if isinstance(phi, Tensor):
        numbers = Numbers(phi, places, sizes)
        if in_channels not in (None, numbers.P):
            reject("in_channels", f"P of phi, {tuple(phi.shape)}", in_channels, "leave it out")
        return numbers, phi.dtype
    if not callable(phi):
        reject("phi", "a tensor, a layer or a linear function", type(phi).__name__, "see help(decompose)")
    if in_channels is None:
        reject("in_channels", "the width P that the function takes", None, "give it")
    function = Probed(phi, places, sizes, in_channels)
    return function, function.dtype


def _solve(operator: Operator, bound: BoundBasis, basis: Basis | None, dtype: torch.dtype) -> Decomposition:
    """Least squares for some channels of x at a time; each channel is a problem of its own."""
    places, gram, pattern = operator.places, operator.places.gram, operator.places.pattern
    step = max(1, _NUMBERS // max(1, operator.rows * operator.Q))
    found, on = [], torch.zeros(bound.K, dtype=torch.float64, device=places.place.device)
    inside = norm = 0.0
    for start in range(0, operator.P, step):
        channels = range(start, min(operator.P, start + step))
        values = operator.at(channels).flatten(1)  # (U, g Q)
        theta = gram.solve(places.products(values))
        with torch.no_grad():
            more, left = _refined(values, theta, places)
            energy = torch.linalg.vector_norm(left, dim=1).square()
            on += pattern.products(energy.unsqueeze(1)).squeeze(1)
            inside += float(energy.sum())
            norm += float(torch.linalg.vector_norm(values).square())
        found.append((theta + more).unflatten(1, (len(channels), operator.Q)))
    theta = operator.restore(torch.cat(found, 1))
    return Decomposition(
        theta=theta,
        unexplained=inside + operator.outside,
        norm=norm + operator.outside,
        on=on,
        gain=theta.detach().square().sum((1, 2)) * gram.squared_distances,
        gram=gram,
        basis=basis,
        bound=bound,
        dtype=dtype,
    )


def _refined(values: Tensor, theta: Tensor, places: Places) -> tuple[Tensor, Tensor]:
    """The correction of theta by iterative refinement, since a Gram matrix squares the condition; and the residual."""
    more, left = torch.zeros_like(theta), values - places.sums(theta)
    size = whole = float(torch.linalg.vector_norm(values))
    for _ in range(_REFINEMENTS):
        step = places.gram.basic(places.products(left))
        change = places.sums(step)
        last, size = size, float(torch.linalg.vector_norm(change))
        if not size < last / 2:
            break
        more += step
        left -= change
        if size <= torch.finfo(torch.float64).eps * whole:
            break
    return more, left
