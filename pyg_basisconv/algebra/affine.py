"""Affine maps of each entry by itself: linear layers, batch norms."""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch_geometric.nn import BatchNorm, Linear

from ..bases import Identity
from ..conv import BasisConv
from ..grid import GridConv
from ..theta import Depthwise, Full, Grouped, Kernel, Theta

# With the number of axes of the images that each takes.
NORMS: dict[type[nn.Module], int] = {nn.BatchNorm1d: 3, nn.BatchNorm2d: 4, nn.BatchNorm3d: 5}
LINEARS = (nn.Linear, Linear)


class AffineMap(NamedTuple):
    """The map x T + b of each entry.

    matrix: T, (P, Q), or (P,) for a diagonal.
    shift: b, (Q,).
    """

    matrix: Tensor
    shift: Tensor | None

    def layer(self, images: bool) -> BasisConv:
        """The same as a layer over the identity."""
        matrix = self.matrix.unsqueeze(0)
        theta = depthwise(matrix) if self.matrix.dim() == 1 else full(matrix)
        new = (GridConv if images else BasisConv)(theta.P, theta.Q, Identity(), theta)
        new.bias = None if self.shift is None else nn.Parameter(self.shift.clone())
        return new


def unwrapped(module: Any) -> Any:
    """The batch norm of torch inside PyG's; any other module is returned as it is."""
    return module.module if type(module) is BatchNorm else module


def of_linear(linear: Any) -> AffineMap:
    """The map of a linear layer, in double precision."""
    return AffineMap(linear.weight.double().t(), None if linear.bias is None else linear.bias.double())


def of_norm(norm: Any) -> AffineMap | None:
    """The map of a batch norm in eval mode, in double precision; None where it uses statistics of the batch."""
    if norm.running_mean is None:
        return None
    numbers = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    mean, variance, weight, bias = (cast(Tensor, None if t is None else t.double()) for t in numbers)
    scale, shift = fuse_conv_bn_weights(torch.ones_like(mean)[:, None], None, mean, variance, norm.eps, weight, bias)
    return AffineMap(scale.flatten(), shift)


class FullWithConstants(Full):
    """Free matrices, and the factors (J, Q) of the constants of a `bases.Composition`."""

    def __init__(self, constants: Tensor) -> None:
        super().__init__()
        self.constants = nn.Parameter(constants)

    @property
    def constant_values(self) -> Tensor | None:  # type: ignore[override]
        return self.constants


def full(weight: Tensor, constants: Tensor | None = None) -> Full:
    """Matrices (K, P, Q), and maybe constants (J, Q), as a parameter."""
    new = Full() if constants is None else FullWithConstants(constants.detach().clone())
    new.K, new.P, new.Q = weight.shape
    new.weight = nn.Parameter(weight.detach().clone())
    return new


def depthwise(diagonals: Tensor) -> Depthwise:
    """Diagonals (K, P) as a parameter."""
    new = Depthwise()
    new.K, new.P = diagonals.shape
    new.Q = new.P
    new.weight = nn.Parameter(diagonals.detach())
    return new


def by_matrix(theta: Theta) -> Theta:
    """A parameter as it is; a `Kernel` as one that stores matrix by matrix, so that products with them are easy.

    >>> by_matrix(Kernel((3, 3), groups=2).build(9, 4, 6))
    Grouped(groups=2)
    """
    if not isinstance(theta, Kernel):
        return theta
    blocks = theta.matrices  # (K, g, P / g, Q / g)
    _, g, p, q = blocks.shape
    if g == 1:
        return full(blocks.squeeze(1))
    if p == q == 1:
        return depthwise(blocks.flatten(1))
    new = Grouped(g)
    new.K, new.P, new.Q = theta.K, theta.P, theta.Q
    new.weight = nn.Parameter(blocks.detach().clone())
    return new
