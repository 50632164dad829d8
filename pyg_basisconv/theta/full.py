"""Free matrices, and none at all."""

from collections.abc import Iterable

import torch
from torch import Tensor

from ..errors import reject
from ..kernels import matmul
from .base import Members, Theta, glorot, project


class Full(Theta):
    r"""K free matrices, :math:`\Theta` of shape (K, P, Q): K P Q numbers, drawn as Glorot and Bengio do.

    >>> theta = Full().build(2, 3, 4)
    >>> theta.weight.shape, [z.shape for z in theta.project(torch.ones(5, 3))]
    (torch.Size([2, 3, 4]), [torch.Size([5, 4]), torch.Size([5, 4])])
    """

    def shape(self, K: int, P: int, Q: int) -> tuple[int, ...]:
        return K, P, Q

    def reset_parameters(self) -> None:
        glorot(self.weight, self.P, self.Q)

    def project(self, x: Tensor) -> Members:
        return project(x, self.weight)

    def contract(self, u: Iterable[Tensor]) -> Tensor:
        total: Tensor | None = None
        for u_k, weight in zip(u, self.weight.unbind(0), strict=True):
            y_k = matmul(u_k, weight)
            total = y_k if total is None else total + y_k
        assert total is not None
        return total

    def dense(self) -> Tensor:
        return self.weight


class Pass(Theta):
    """No parameter: P = Q and every Theta_k is the identity, so that the layer is the sum of the A_k^T x.

    With in_channels = out_channels = -1 any width is taken.

    >>> Pass().build(1, 4, 4).dense().shape
    torch.Size([1, 4, 4])
    """

    def build(self, K: int, P: int, Q: int) -> "Theta":
        if P != Q:
            reject("out_channels", f"in_channels, {P}, under theta.Pass", Q, "use theta.Full")
        self.K, self.P, self.Q = K, P, Q
        self.register_parameter("weight", None)
        return self

    def reset_parameters(self) -> None:
        """There is nothing to draw."""

    def project(self, x: Tensor) -> Members:
        return [x if x.layout == torch.strided else x.to_dense()] * self.K

    def contract(self, u: Iterable[Tensor]) -> Tensor:
        total: Tensor | None = None
        for u_k in u:
            total = u_k if total is None else total + u_k
        assert total is not None
        return total

    def dense(self) -> Tensor:
        return torch.eye(self.Q).expand(self.K, self.Q, self.Q)
