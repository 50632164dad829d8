"""The kinds of parameter: K matrices Theta_k, P x Q, and what they do to an input and to an output."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from .basis import BoundBasis
from .errors import reject
from .kernels import matmul
from .sparse_input import sparse_matmul


class Theta(nn.Module):
    """A parameter of a convolution. It says its form when it is made, and gets its sizes from the layer.

    A kind gives `reset_parameters`, `project`, `contract`, `dense`, and `shape(K, P, Q)` of its weight.
    """

    weight: nn.Parameter | UninitializedParameter
    K: int
    P: int
    Q: int

    def build(self, K: int, P: int, Q: int) -> "Theta":
        """Makes the parameters for K matrices P x Q; P = -1 leaves them open until `complete`."""
        if "weight" in self._parameters:
            if (self.K, self.P, self.Q) != (K, P, Q):
                reject(
                    "theta",
                    f"sizes K, P, Q = {(K, P, Q)}",
                    (self.K, self.P, self.Q),
                    "give each layer its own",
                )
            return self
        if Q < 1:
            reject("out_channels", "a positive integer", Q, "only theta.Pass takes any width")
        self.K, self.P, self.Q = K, P, Q
        if P < 0:
            self.weight = UninitializedParameter()
        else:
            self.weight = nn.Parameter(torch.empty(self.shape(K, P, Q)))
            self.reset_parameters()
        return self

    def complete(self, P: int) -> None:
        """Gives parameters that were left open their size."""
        assert isinstance(self.weight, UninitializedParameter)
        self.P = P
        self.weight.materialize(self.shape(self.K, P, self.Q))  # type: ignore[no-untyped-call]
        self.reset_parameters()

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        if isinstance(self.weight, UninitializedParameter):
            destination[prefix + "weight"] = self.weight
        else:
            super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        saved = state_dict.get(prefix + "weight")
        if isinstance(self.weight, UninitializedParameter):
            if isinstance(saved, UninitializedParameter):
                return
            if saved is not None:
                self.complete(saved.shape[1])
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def shape(self, K: int, P: int, Q: int) -> tuple[int, ...]:
        """(K, P, ...) the shape of the weight."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Draws the parameters anew."""
        raise NotImplementedError

    def project(self, x: Tensor) -> Sequence[Tensor]:
        r""":math:`x \Theta_k`: (*, M, P) -> K times (*, M, D); D is Q where the members are summed."""
        raise NotImplementedError

    def contract(self, u: Iterable[Tensor]) -> Tensor:
        r""":math:`\sum_k u_k \Theta_k` of K tensors (*, N, P), as they come -> (*, N, Q)."""
        raise NotImplementedError

    def gather(self, basis: BoundBasis, z: Sequence[Tensor]) -> Tensor:
        """What the basis makes of projected inputs, as a rule their sum: K times (*, M, D) -> (*, N, Q)."""
        return basis.combine(z)

    def dense(self) -> Tensor:
        """(K, P, Q) the matrices written out."""
        raise NotImplementedError

    @property
    def sums(self) -> bool:
        """True where `gather` is `combine`; otherwise it needs `each`."""
        return True

    @property
    def inner(self) -> int:
        """D, the width of one projected member."""
        return self.Q

    def extra_repr(self) -> str:
        return ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"


def _glorot(weight: Tensor, P: int, Q: int) -> None:
    bound = math.sqrt(6 / max(1, P + Q))
    with torch.no_grad():
        weight.uniform_(-bound, bound)


class Full(Theta):
    r"""K free matrices, :math:`\Theta` of shape (K, P, Q): K P Q numbers, drawn as Glorot and Bengio do.

    >>> theta = Full().build(2, 3, 4)
    >>> theta.weight.shape, [z.shape for z in theta.project(torch.ones(5, 3))]
    (torch.Size([2, 3, 4]), [torch.Size([5, 4]), torch.Size([5, 4])])
    """

    def shape(self, K: int, P: int, Q: int) -> tuple[int, ...]:
        return K, P, Q

    def reset_parameters(self) -> None:
        _glorot(self.weight, self.P, self.Q)

    def project(self, x: Tensor) -> Sequence[Tensor]:
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


class Heads(Theta):
    r"""One matrix per member, P x D, whose outputs stand side by side (Q = K D) or are averaged (Q = D).

    Args:
        combine: 'concat' or 'mean'.

    >>> Heads().build(2, 3, 8).weight.shape
    torch.Size([2, 3, 4])
    """

    def __init__(self, combine: Literal["concat", "mean"] = "concat") -> None:
        super().__init__()
        if combine not in ("concat", "mean"):
            reject("combine", "'concat' or 'mean'", repr(combine), "see help(theta.Heads)")
        self.combine = combine

    def shape(self, K: int, P: int, Q: int) -> tuple[int, ...]:
        if self.combine == "concat" and Q % K:
            reject(
                "out_channels",
                f"a multiple of the {K} members that are concatenated",
                Q,
                "or use combine='mean'",
            )
        return K, P, Q // K if self.combine == "concat" else Q

    def reset_parameters(self) -> None:
        _glorot(self.weight, self.P, self.weight.shape[-1])

    def project(self, x: Tensor) -> Sequence[Tensor]:
        z = project(x, self.weight)
        return z if self.combine == "concat" else [z_k / self.K for z_k in z]

    def contract(self, u: Iterable[Tensor]) -> Tensor:
        heads = [matmul(u_k, weight) for u_k, weight in zip(u, self.weight.unbind(0), strict=True)]
        return torch.cat(heads, -1) if self.combine == "concat" else torch.stack(heads).mean(0)

    def gather(self, basis: BoundBasis, z: Sequence[Tensor]) -> Tensor:
        if self.sums:
            return basis.combine(z)
        return basis.each(torch.stack([*z])).movedim(0, -2).flatten(-2)  # (K, *, N, D) -> (*, N, K D)

    def dense(self) -> Tensor:
        if self.sums:
            return self.weight / self.K
        blocks = torch.diag_embed(self.weight.permute(1, 2, 0))  # (P, D, K, K)
        return blocks.permute(3, 0, 2, 1).flatten(-2)  # (K, P, K D)

    @property
    def sums(self) -> bool:
        return self.combine == "mean"

    @property
    def inner(self) -> int:
        return self.Q // self.K if self.combine == "concat" else self.Q

    def extra_repr(self) -> str:
        return f"combine={self.combine!r}"


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

    def project(self, x: Tensor) -> Sequence[Tensor]:
        return [x if x.layout == torch.strided else x.to_dense()] * self.K

    def contract(self, u: Iterable[Tensor]) -> Tensor:
        total: Tensor | None = None
        for u_k in u:
            total = u_k if total is None else total + u_k
        assert total is not None
        return total

    def dense(self) -> Tensor:
        return torch.eye(self.Q).expand(self.K, self.Q, self.Q)


def project(x: Tensor, weight: Tensor) -> Sequence[Tensor]:
    """All x Theta_k in one product, in which x is read once: (*, M, P), (K, P, Q) -> K times (*, M, Q)."""
    K, P, Q = weight.shape
    flat = weight.squeeze(0) if K == 1 else weight.transpose(0, 1).reshape(P, K * Q)
    z = matmul(x, flat) if x.layout == torch.strided else sparse_matmul(x, flat)  # (*, M, K Q)
    return (z,) if K == 1 else z.unflatten(-1, (K, Q)).unbind(-2)
