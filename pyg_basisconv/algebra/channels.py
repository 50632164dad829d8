"""What is done to each entry by itself, as a layer over the identity."""

from typing import Any, NamedTuple

from torch import Tensor, nn
from torch_geometric.nn import Linear

from ..bases import Identity
from ..conv import BasisConv
from ..grid import GridConv
from ..theta import Depthwise, Full

NORMS = {nn.BatchNorm1d: 3, nn.BatchNorm2d: 4, nn.BatchNorm3d: 5}  # and the axes of the images that each takes
LINEARS = (nn.Linear, Linear)


class Channels(NamedTuple):
    """What is done to each entry by itself: x T + b.

    matrix: T, (P, Q), or (P,) a diagonal; shift: b, (Q,).
    """

    matrix: Tensor
    shift: Tensor | None

    def layer(self, images: bool) -> BasisConv:
        """The same as a layer over the identity."""
        diagonal = self.matrix.dim() == 1
        theta = depthwise(self.matrix.unsqueeze(0)) if diagonal else full(self.matrix.unsqueeze(0))
        new = (GridConv if images else BasisConv)(theta.P, theta.Q, Identity(), theta, bias=False)
        new.bias = None if self.shift is None else nn.Parameter(self.shift.clone())
        return new


def multiplying(linear: Any) -> Channels:
    """What a linear layer does, in double precision."""
    bias = None if linear.bias is None else linear.bias.double()
    return Channels(linear.weight.double().t(), bias)


def normalising(norm: Any) -> Channels | None:
    """What a batch norm does in eval mode; None where it takes the statistics of the batch."""
    if norm.running_mean is None:
        return None
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    scale = scale if norm.weight is None else scale * norm.weight.double()
    shift = -norm.running_mean.double() * scale
    return Channels(scale, shift if norm.bias is None else shift + norm.bias.double())


class Written(Full):
    """Free matrices, and what the constants of a `bases.Composition` are multiplied by.

    Args:
        constants: (J, Q).

    >>> import torch
    >>> Written(torch.ones(1, 4)).build(2, 3, 4).constant_values
    Parameter containing:
    tensor([[1., 1., 1., 1.]], requires_grad=True)
    """

    def __init__(self, constants: Tensor) -> None:
        super().__init__()
        self.constants = nn.Parameter(constants)

    @property
    def constant_values(self) -> Tensor | None:  # type: ignore[override]
        return self.constants


def full(weight: Tensor, constants: Tensor | None = None) -> Full:
    """Matrices (K, P, Q) as a parameter; constants: of it, (J, Q)."""
    new = Full() if constants is None else Written(constants.detach().clone())
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
