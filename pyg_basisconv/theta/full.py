"""Free matrices, and the parameter without any."""

import math
from collections.abc import Iterable, Sequence
from typing import Literal, TypeGuard

import torch
from torch import Tensor

from ..errors import check_choice, reject
from ..kernels import Affine, matmuls, summed
from ..kernels.contract import Rows
from ..kernels.op import add_times
from ..printing import arguments
from .base import KNOWN, STEPS, Blocks, Members, Step, Theta, add_bias, glorot, param, project
from .heads import all_heads


class Full(Theta):
    r"""K free matrices, :math:`\Theta` of shape (K, P, Q): K P Q numbers, drawn as Glorot and Bengio do.

    >>> theta = Full().build(2, 3, 4)
    >>> theta.weight.shape, [z.shape for z in theta.project(torch.ones(5, 3))]
    (torch.Size([2, 3, 4]), [torch.Size([5, 4]), torch.Size([5, 4])])
    """

    makes_results = True
    of_types = True
    sums_runs = True

    def shape(self, K: int, P: int, Q: int) -> tuple[int, ...]:
        return K, P, Q

    def reset_parameters(self) -> None:
        glorot(self.weight, self.P, self.Q, self.variance_gains)

    @property
    def by_rows(self) -> bool:
        return type(self) is Full  # a subclass may use its weight in another way

    @property
    def affine(self) -> Affine | None:
        return Affine(param(self, "weight")) if self.by_rows else None

    def rows(self, x: Tensor) -> Tensor:
        return all_heads(x, param(self, "weight"))

    def project(self, x: Tensor) -> Members:
        return project(x, self.weight)

    def contract(self, u: Iterable[Tensor]) -> Tensor:
        return matmuls(u, self.weight)

    def step(self, order: str) -> Step | None:
        plain = type(self).project is Full.project and type(self).contract is Full.contract
        return STEPS.get(order) if plain else None  # a subclass may use its weight in another way

    def dense(self, width: int = -1) -> Tensor:
        return self.weight

    def blocks(self, width: int) -> Blocks | None:
        return Blocks(self.weight.unsqueeze(1))

    def kernel(self, width: int) -> Tensor:
        return param(self, "weight").permute(2, 1, 0)


class Pass(Theta):
    r"""No parameter: every :math:`\Theta_k` is a fixed number times the identity, so that the layer is a sum or mean of
    the A_k^T x (P = Q), or their concatenation (Q = K P); or of the A_k^T x_k, of channels of their own (P = K Q).

    With in_channels = out_channels = -1 it takes any width.

    Args:
        scale: :math:`s` or :math:`s_k`, one number or K, in :math:`\Theta_k = s_k I`.
        combine: 'sum'; 'concat', where output channel k P + p is channel p of member k; or its transpose 'split', where
            input channel k Q + q is channel q of member k, and the members are added.

    >>> Pass().build(1, 4, 4).dense().shape
    torch.Size([1, 4, 4])
    >>> Pass([1, 0.5], combine='concat').build(2, 1, 2).dense()
    tensor([[[1.0000, 0.0000]],
            [[0.0000, 0.5000]]], dtype=torch.float64)
    >>> Pass(combine='split').build(2, 6, 3).dense().shape
    torch.Size([2, 6, 3])
    """

    def __init__(
        self, scale: float | Sequence[float] = 1.0, combine: Literal["sum", "concat", "split"] = "sum"
    ) -> None:
        super().__init__()
        if not (_is_number(scale) or (isinstance(scale, list | tuple) and all(map(_is_number, scale)))):
            reject("scale", "a number, or a list of K numbers", repr(scale), "all of them finite")
        check_choice("combine", combine, "sum", "concat", "split")
        self.scale = float(scale) if _is_number(scale) else tuple(map(float, scale))  # type: ignore[arg-type]
        self.combine = combine

    def build(self, K: int, P: int, Q: int) -> "Theta":
        if self.built(K, P, Q):
            return self
        if isinstance(self.scale, tuple) and len(self.scale) != K:
            reject("scale", f"{K} numbers, one for each member", len(self.scale), "or give one number for all")
        self.K, self.P, self.Q = K, P, Q
        right = self.outputs(P) if P > 0 else -1
        if right != Q:
            fixes = {"concat": "the members stand side by side", "split": "the members have channels of their own"}
            fix = fixes.get(self.combine, "or use theta.Full")
            reject("out_channels", f"{right}, under {self} with in_channels = {P}", Q, fix)
        self.register_parameter("weight", None)
        return self

    def reset_parameters(self) -> None:
        """There is nothing to draw."""

    @property
    def scales(self) -> tuple[float, ...]:
        """The K numbers."""
        return self.scale if isinstance(self.scale, tuple) else (self.scale,) * self.K

    @property
    def _exact_scales(self) -> Tensor:
        """(K,) as exact as in Python, and on the CPU, whatever torch's default device is."""
        return torch.tensor(self.scales, dtype=torch.float64, device="cpu")

    @property
    def common_scale(self) -> float | None:
        scale = self.scale
        if type(self) is not Pass or (self.combine != "sum" and self.K > 1):  # subclasses do more
            return None
        return scale if isinstance(scale, float) else scale[0] if len(set(scale)) == 1 else None

    @property
    def by_rows(self) -> bool:
        return type(self) is Pass and self.K == 1 and self.scales == (1.0,)  # others would copy x

    def rows(self, x: Tensor) -> Tensor:
        return x if x.layout == torch.strided else x.to_dense()

    def step(self, order: str) -> Step | None:
        return _summed if order in STEPS and order != KNOWN and self.common_scale is not None else None

    def project(self, x: Tensor) -> Members:
        x = x if x.layout == torch.strided else x.to_dense()
        scaled = {scale: _times(x, scale) for scale in set(self.scales)}
        return [self._own(scaled[scale], k) for k, scale in enumerate(self.scales)]

    def _own(self, x: Tensor, k: int) -> Tensor:
        """The channels that member k reads."""
        return x.unflatten(-1, (self.K, -1)).select(-2, k) if self.splits else x

    def contract(self, u: Iterable[Tensor]) -> Tensor:
        pairs = zip((self._own(u_k, k) for k, u_k in enumerate(u)), self.scales, strict=True)
        if not self.sums:
            return torch.cat([_times(u_k, scale) for u_k, scale in pairs], -1)
        total: Tensor | None = None
        for u_k, scale in pairs:
            total = add_times(total, scale, u_k)
        assert total is not None
        return total

    def dense(self, width: int = -1) -> Tensor:
        P, scales = self._input_width(width), self._exact_scales
        if self.combine == "sum":
            return torch.eye(P, dtype=scales.dtype, device=scales.device) * scales.view(-1, 1, 1)
        own = P if self.combine == "concat" else self.outputs(P)
        eye = torch.eye(own, dtype=scales.dtype, device=scales.device)
        both = torch.kron(scales.diag(), eye).view(self.K, len(eye), self.K, len(eye))
        return both.flatten(2) if self.combine == "concat" else both.flatten(0, 1).transpose(0, 1)

    def blocks(self, width: int) -> Blocks | None:
        if self.splits or not self.sums:  # most of them are zeros
            return None
        return Blocks(self._exact_scales.view(-1, 1, 1, 1).expand(-1, self._input_width(width), 1, 1))

    def _input_width(self, width: int) -> int:
        if self.P < 0 and width < 0:
            reject("width", "the width of an input", width, "this parameter takes any")
        return width if self.P < 0 else self.P

    def outputs(self, P: int) -> int:
        if self.combine == "split" and P >= 0 and P % self.K:
            reject(
                "in_channels", f"a multiple of the {self.K} members, which have channels of their own", P, "correct it"
            )
        return {"sum": P, "concat": self.K * P, "split": P // self.K}[self.combine]

    def inputs(self, Q: int) -> int:
        return {"sum": Q, "concat": Q // self.K, "split": self.K * Q}[self.combine]

    @property
    def splits(self) -> bool:
        """Whether each member reads channels of its own."""
        return self.combine == "split"

    @property
    def sums(self) -> bool:
        return self.combine != "concat"

    @property
    def inner(self) -> int:
        return self.Q if self.sums else self.Q // self.K

    def extra_repr(self) -> str:
        return arguments(self, scale=1.0, combine="sum")


def _summed(theta: Theta, x: Tensor, bias: Tensor | None, A: Rows) -> Tensor:
    scale = theta.common_scale  # None if it has changed since the step was chosen
    return add_bias(theta.contract([*A.expand(x)]) if scale is None else _times(summed(x, A), scale), bias)


def _is_number(scale: object) -> TypeGuard[float]:
    return isinstance(scale, int | float) and not isinstance(scale, bool) and math.isfinite(scale)


def _times(x: Tensor, scale: float) -> Tensor:
    return x if scale == 1.0 else x * scale
