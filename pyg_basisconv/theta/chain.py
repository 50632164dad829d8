"""The parameter of two layers in sequence."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import reject
from ..kernels import matmuls
from ..kernels.op import autocasting
from .base import Members, Step, Theta, project
from .full import Full


class Chain(Full):
    r"""All products :math:`\Theta'_k \Theta''_l`, at k K'' + l, of the parameters of two layers, which it shares; or
    fixed mixtures of them, if the basis of the composed layer has fewer matrices than there are pairs.

    It has no parameters of its own: gradients go to those of both layers. Each call computes the products; `fold`
    stores them. (J.-M. Andreoli, arXiv:1905.01289, Prop. 3.)

    Args:
        first: :math:`\Theta'`, (K', P, R).
        second: :math:`\Theta''`, (K'', R, Q).
        mixtures: J rows of K' K'' numbers, the mixtures of the products; None for the products themselves.
        shift: (R,) the bias of the first layer, if there is one.

    >>> first, second = Full().build(2, 3, 4), Full().build(5, 4, 6)
    >>> Chain(first, second).weight.shape
    torch.Size([10, 3, 6])
    """

    makes_results = False
    sums_runs = False  # it reads the first product by itself
    shift: nn.Parameter | None
    mixing: Tensor | None

    def __init__(
        self,
        first: Theta,
        second: Theta,
        mixtures: Sequence[Sequence[float]] | None = None,
        shift: nn.Parameter | None = None,
    ) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.register_parameter("shift", shift)
        self._rows, like = mixtures, self.reference
        device = torch.device("cpu") if like is None else like.device
        rows = None if mixtures is None else torch.tensor(mixtures, dtype=torch.float64, device=device)
        self.register_buffer("mixing", rows, persistent=False)
        P, between = first.P, second.P
        if between < 0:
            between = shift.numel() if shift is not None else first.outputs(P) if P >= 0 else -1
        if P < 0 <= between:  # the first takes any width
            P = first.inputs(between)
        if min(P, between) < 0:
            reject("first", "layers of which one has in_channels", "-1 in both", "give the width")
        self.P, self.between = P, between
        self.K = first.K * second.K if mixtures is None else len(mixtures)
        self.Q = second.outputs(self.between)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "Chain":
        super()._apply(fn, recurse)
        if self.mixing is not None:  # restores constants that a narrower dtype has rounded, or meta has dropped
            self.mixing = torch.tensor(self._rows, dtype=torch.float64, device=self.mixing.device)
        return self

    def built(self, K: int, P: int, Q: int) -> bool:
        if (self.K, self.P, self.Q) != (K, P, Q):
            reject("theta", f"sizes K, P, Q = {(K, P, Q)}", (self.K, self.P, self.Q), "give each layer its own")
        return True

    def reset_parameters(self) -> None:
        self.first.reset_parameters()
        self.second.reset_parameters()
        if self.shift is not None:
            nn.init.zeros_(self.shift)

    @property
    def reference(self) -> Tensor | None:
        parameters = list(self.parameters())
        return next((p for p in parameters if p.requires_grad), parameters[0] if parameters else None)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """(K, P, Q) the products, or their mixtures."""
        with _without_autocast(self.reference):
            found = _products(self._matrices(self.first, self.P), self._matrices(self.second, self.between))
            return found if self.mixing is None else torch.tensordot(self.mixing.to(found), found, 1)

    def step(self, order: str) -> Step | None:
        return None  # each order computes the products by `_weight_for`

    def project(self, x: Tensor) -> Members:
        return project(x, self._weight_for(x))

    def contract(self, u: Iterable[Tensor]) -> Tensor:
        members = iter(u)
        first = next(members)
        return matmuls(chain([first], members), self._weight_for(first))

    def _weight_for(self, x: Tensor) -> Tensor:
        """The products; in dtype and on the device of x, if there are no parameters."""
        return self.weight if self.reference is not None else self.weight.to(x)

    @property
    def has_constants(self) -> bool:
        return self.shift is not None or any(part.has_constants or part.lifts for part in (self.first, self.second))

    @property
    def constant_values(self) -> Tensor | None:  # type: ignore[override]
        """(J, Q) the values of the constants of `bases.Composition`, or None if there are none."""
        if not self.has_constants:
            return None
        with _without_autocast(self.reference):
            own = self._own_constants(self.second, self.between)
            before = [] if self.shift is None else [self.shift.unsqueeze(0)]
            before += self._own_constants(self.first, self.P)
            if before:
                matrices = self._matrices(self.second, self.between)
                constants = torch.cat([b.to(matrices) for b in before]).unsqueeze(1)  # (J, 1, R)
                own.append(_products(constants, matrices).squeeze(1))
            return torch.cat(own)

    def _matrices(self, theta: Theta, width: int) -> Tensor:
        """(K, P, Q) of one of both, in the dtype of the parameters."""
        return self._dense(theta, width)[:, :width]

    def _own_constants(self, theta: Theta, width: int) -> list[Tensor]:
        """The constants of one of both: its own, (J, Q), and the biases of its values, (K, Q)."""
        constants = theta.constant_values
        rows = [] if constants is None else [constants]
        return rows + [self._dense(theta, width)[:, width]] if theta.lifts else rows

    def _dense(self, theta: Theta, width: int) -> Tensor:
        like, dense = self.reference, theta.dense(width)
        return dense.double() if like is None else dense.to(like)

    def extra_repr(self) -> str:
        mixed = "" if self.mixing is None else f", {len(self.mixing)} mixtures"
        return f"{self.first!r}, {self.second!r}{mixed}"


def _products(first: Tensor, second: Tensor) -> Tensor:
    """(K', P, R), (K'', R, Q) -> (K' K'', P, Q), as one product."""
    K, P, R = first.shape
    L, _, Q = second.shape
    flat = first.reshape(K * P, R) @ second.transpose(0, 1).reshape(R, L * Q)
    return flat.view(K, P, L, Q).transpose(1, 2).reshape(K * L, P, Q)


def _without_autocast(like: Tensor | None) -> AbstractContextManager[object]:
    """Disables autocast, which would round both the product of parameters and that with features."""
    device = torch.device("cpu") if like is None else like.device
    return torch.autocast(device.type, enabled=False) if autocasting(device) else nullcontext()
