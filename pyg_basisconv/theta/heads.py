"""Parameters of heads: values of each member, concatenated, averaged, or projected again."""

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import check_choice, check_count, check_flags, reject
from ..kernels import Affine, matmul, repeated
from ..kernels.multihead import to_heads
from ..portable import few
from ..printing import arguments
from ..sparse_input import sparse_matmul
from .base import Blocks, Members, Theta, add_bias, glorot, param

# Inputs of up to so many numbers are multiplied by torch as they are, the fastest forward; `matmul` is for larger ones.
_SMALL = 1 << 16


class Values(Theta):
    r"""Values :math:`x V_k + \beta_k` of K members, which subclasses combine.

    Args:
        bias: whether the values have a bias :math:`\beta`, which A is applied to: :math:`A_k^\top (x V_k + \beta_k)`.
    """

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        check_flags(bias=bias)
        self.bias = bias
        self.register_parameter("value_bias", None)

    def build(self, K: int, P: int, Q: int) -> "Theta":
        new = "weight" not in self._parameters
        if new and self.bias:
            members, _, D = self.shape(K, max(P, 0), Q)
            self.value_bias = nn.Parameter(torch.zeros(members, D))
        return super().build(K, P, Q)

    def reset_parameters(self) -> None:
        glorot(self.weight, self.P, self.weight.shape[-1])
        if self.value_bias is not None:
            nn.init.zeros_(self.value_bias)

    @property
    def lifts(self) -> bool:
        return self.value_bias is not None

    def lift(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 1), value=1.0) if self.lifts else x

    @property
    def lifted(self) -> Tensor:
        """(K, P, D), or (K, P + 1, D) with the bias in its last row."""
        weight, bias, *_ = self.map
        return weight if bias is None else torch.cat([weight, bias.unsqueeze(1)], 1)

    @property
    def map(self) -> Affine:
        """The values of all members, side by side."""
        return Affine(param(self, "weight"), param(self, "value_bias"))

    @property
    def by_rows(self) -> bool:
        return type(self) in (Heads, LowRank)  # subclasses may use their members in another way

    @property
    def affine(self) -> Affine | None:
        return self.map if self.by_rows else None

    def rows(self, x: Tensor) -> Tensor:
        return all_heads(x, *self.map[:3])

    def project(self, x: Tensor) -> Members:
        return to_heads(self.rows(x), self.K)


class Heads(Values):
    r"""One matrix per member, P x D, whose outputs stand side by side (Q = K D) or are averaged (Q = D).

    Args:
        combine: 'concat' or 'mean'.
        bias: whether the values have a bias, (K, D), beside the bias of the layer.
        shared: whether all members have the same matrix, and bias.

    Raises:
        ValueError: if K does not divide Q, under 'concat'.

    >>> Heads().build(2, 3, 8).weight.shape, Heads(shared=True).build(2, 3, 8).weight.shape
    (torch.Size([2, 3, 4]), torch.Size([1, 3, 4]))
    """

    def __init__(self, combine: Literal["concat", "mean"] = "concat", bias: bool = False, shared: bool = False) -> None:
        super().__init__(bias)
        check_choice("combine", combine, "concat", "mean")
        check_flags(shared=shared)
        self.combine, self.shared = combine, shared

    def shape(self, K: int, P: int, Q: int) -> tuple[int, ...]:
        if self.combine == "concat" and Q % K:
            reject("out_channels", f"a multiple of the {K} members that are concatenated", Q, "or use combine='mean'")
        return 1 if self.shared else K, P, Q // K if self.combine == "concat" else Q

    @property
    def map(self) -> Affine:
        return repeated(param(self, "weight"), param(self, "value_bias"), self.K) if self.shared else super().map

    def contract(self, u: Iterable[Tensor]) -> Tensor:
        heads = [matmul(u_k, weight) for u_k, weight in zip(u, self.lifted.unbind(0), strict=True)]
        return torch.cat(heads, -1) if self.combine == "concat" else torch.stack(heads).mean(0)

    def gather(self, family: Any, z: Members) -> Tensor:
        y = super().gather(family, z)
        return y / self.K if self.sums else y

    def join(self, y: Tensor, bias: Tensor | None = None) -> Tensor:
        return add_bias(y.unflatten(-1, (self.K, self.Q)).mean(-2) if self.sums else y, bias)

    def dense(self, width: int = -1) -> Tensor:
        weight = self.lifted
        if self.sums:
            return weight / self.K
        blocks = torch.diag_embed(weight.permute(1, 2, 0))  # (P, D, K, K)
        return blocks.permute(3, 0, 2, 1).flatten(-2)  # (K, P, K D)

    def blocks(self, width: int) -> Blocks | None:
        return Blocks(self.dense().unsqueeze(1)) if self.sums and self.value_bias is None else None

    def takes_edge_values(self, values: Theta) -> bool:
        if not isinstance(values, Heads) or getattr(values, "K", None) is None:  # it is not built
            return False
        alike = (values.K, values.Q, values.combine) == (self.K, self.Q, self.combine)
        return alike and values.value_bias is None

    @property
    def sums(self) -> bool:
        return self.combine == "mean"

    @property
    def inner(self) -> int:
        return self.Q // self.K if self.combine == "concat" else self.Q

    def extra_repr(self) -> str:
        return arguments(self, f"combine={self.combine!r}", bias=False, shared=False)


class LowRank(Values):
    r"""Value and output projections, :math:`\Theta_k = V_k O_k`, as in multi-head attention: the heads' values, side by
    side, times one matrix. K D (P + Q) numbers instead of K P Q (Vaswani et al., arXiv:1706.03762).

    Args:
        dim: D, the width of a value.
        bias: whether the values have a bias, (K, D), beside the bias of the layer.

    Attributes:
        weight: V, (K, P, D).
        output: O, (K, D, Q).

    >>> theta = LowRank(2).build(4, 3, 8)
    >>> theta.weight.shape, theta.output.shape, theta.dense().shape
    (torch.Size([4, 3, 2]), torch.Size([4, 2, 8]), torch.Size([4, 3, 8]))
    """

    makes_results, sums = True, False

    def __init__(self, dim: int, bias: bool = False) -> None:
        super().__init__(bias)
        check_count("dim", dim)
        self.dim = dim

    def build(self, K: int, P: int, Q: int) -> "Theta":
        if "output" not in self._parameters and Q > 0:
            self.output = nn.Parameter(torch.empty(K, self.dim, Q))
            glorot(self.output, K * self.dim, Q)
        return super().build(K, P, Q)

    def shape(self, K: int, P: int, Q: int) -> tuple[int, ...]:
        return K, P, self.dim

    def reset_parameters(self) -> None:
        super().reset_parameters()
        glorot(self.output, self.K * self.dim, self.Q)

    def contract(self, u: Iterable[Tensor]) -> Tensor:
        values = [matmul(u_k, weight) for u_k, weight in zip(u, self.lifted.unbind(0), strict=True)]
        return matmul(torch.cat(values, -1), self.output.flatten(0, 1))

    def join(self, y: Tensor, bias: Tensor | None = None) -> Tensor:
        bias = bias if bias is None or bias.dtype == y.dtype else bias.to(y.dtype)
        return product(y, param(self, "output").flatten(0, 1), bias)

    def dense(self, width: int = -1) -> Tensor:
        return self.lifted @ self.output

    @property
    def inner(self) -> int:
        return self.dim

    def extra_repr(self) -> str:
        return arguments(self, f"dim={self.dim}", bias=False)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None, scale: float = 1.0) -> Tensor:
    """Returns s (x W + b): (*, M, P), (P, Q), (Q) -> (*, M, Q)."""
    numbers = x.numel() if x.layout == torch.strided else math.inf
    if few(numbers, _SMALL):
        if bias is not None and (scale != 1 or x.dim() == 2):
            flat = x if x.dim() == 2 else x.reshape(x.numel() // max(1, x.shape[-1]), x.shape[-1])
            z = torch.addmm(bias, flat, weight, beta=scale, alpha=scale)
            return z if x.dim() == 2 else z.view(*x.shape[:-1], weight.shape[1])
        z = x @ weight if bias is None else F.linear(x, weight.t(), bias)
        return z if scale == 1 else z * scale
    weight = weight if scale == 1 else weight * scale  # the weight is smaller than the result
    bias = bias if bias is None or scale == 1 else bias * scale
    if x.layout == torch.strided:
        return matmul(x, weight, bias)
    z = sparse_matmul(x, weight)
    return z if bias is None else z + bias


def all_heads(x: Tensor, weight: Tensor, bias: Tensor | None = None, scale: float = 1.0) -> Tensor:
    """All s (x W_k + b_k) in one product, side by side, see `Affine`: (*, M, P), (K, P, D), (K, D) -> (*, M, K D)."""
    bias = bias if bias is None or bias.dim() == 1 else bias.flatten()  # flattening a vector would make a view
    return product(x, Affine(weight).matrix, bias, scale)
