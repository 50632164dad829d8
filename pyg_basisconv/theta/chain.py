"""The parameter of two layers, one after the other."""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from ..cache import IdentityCache, by_value
from ..errors import reject
from .base import Theta
from .full import Full


class Chain(Full):
    r"""All products :math:`\Theta'_k \Theta''_l`, at k K'' + l, of the parameters of two layers, which it shares; or
    fixed mixtures of them, where the basis of the composed layer has fewer matrices than there are pairs.

    Nothing of its own is learnt: gradients go to both parameters. The products are made anew where a gradient is
    wanted, and else kept for as long as both are as they were. (J.-M. Andreoli, arXiv:1905.01289, Prop. 3.)

    Args:
        first: :math:`\Theta'`, (K', P, R).
        second: :math:`\Theta''`, (K'', R, Q).
        mixtures: J rows of K' K'' numbers, the mixtures of the products; None for the products themselves.
        shift: (R,) the bias of the first layer, if there is one.

    >>> first, second = Full().build(2, 3, 4), Full().build(5, 4, 6)
    >>> Chain(first, second).weight.shape
    torch.Size([10, 3, 6])
    """

    shift: nn.Parameter | None

    def __init__(
        self,
        first: Theta,
        second: Theta,
        mixtures: Sequence[Sequence[float]] | None = None,
        shift: nn.Parameter | None = None,
    ) -> None:
        super().__init__()
        self.first, self.second, self.mixed = first, second, mixtures
        self.register_parameter("shift", shift)
        P, between = first.P, second.P
        if between < 0:
            between = shift.numel() if shift is not None else first.outputs(P) if P >= 0 else -1
        if P < 0 <= between:  # of a parameter that takes any width
            P = between if first.outputs(1) == 1 else between // first.K
        if min(P, between) < 0:
            reject("first", "layers of which one has in_channels", "-1 in both", "give the width")
        self.P, self.between = P, between
        self.K = first.K * second.K if mixtures is None else len(mixtures)
        self.Q = second.outputs(self.between)
        self._made = IdentityCache(4)

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
    def sample(self) -> Tensor | None:
        return next(self.parameters(), None)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """(K, P, Q) the products, or their mixtures."""
        return self._kept("weight", self._weight)

    @property
    def carried(self) -> Tensor | None:  # type: ignore[override]
        """(J, Q) what `bases.Composition` says of the biases, or None where there is none."""
        return self._kept("carried", self._carried) if self._levels else None

    @property
    def _levels(self) -> bool:
        second = self.second.carried is not None or self.second.lifts
        return second or self.shift is not None or self.first.carried is not None or self.first.lifts

    def _kept(self, name: str, build: object) -> Tensor:
        parameters = tuple(self.parameters())
        kind = parameters[0].device.type if parameters else "cpu"
        plain = torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
        with by_value(), plain:  # parameters are also written to by `.data`
            made: Tensor = self._made.get(parameters, name, build)  # type: ignore[arg-type]
        return made

    def _dense(self) -> tuple[Tensor, Tensor]:
        """The matrices of both, in the dtype that is learnt; with the rows of the values' biases, if they have any."""
        like = self.sample
        first, second = self.first.dense(self.P), self.second.dense(self.between)
        return (first.double(), second.double()) if like is None else (first.to(like), second.to(like))

    def _weight(self) -> Tensor:
        first, second = self._dense()
        first, second = first[:, : self.P], second[:, : self.between]
        if self.mixed is None:
            return _products(first, second)
        return torch.tensordot(_numbers(self.mixed, first), _products(first, second), 1)

    def _carried(self) -> Tensor:
        first, second = self._dense()
        rows = [] if self.second.carried is None else [self.second.carried]
        rows += [second[:, self.between]] if self.second.lifts else []
        before = [] if self.shift is None else [self.shift.unsqueeze(0)]
        before += [] if self.first.carried is None else [self.first.carried]
        before += [first[:, self.P]] if self.first.lifts else []
        if before:
            levels = torch.cat([b.to(second) for b in before])  # (J', R)
            rows.append(_products(levels.unsqueeze(1), second[:, : self.between]).squeeze(1))
        return torch.cat(rows)

    def extra_repr(self) -> str:
        mixed = "" if self.mixed is None else f", {len(self.mixed)} mixtures"
        return f"{self.first!r}, {self.second!r}{mixed}"


def _products(first: Tensor, second: Tensor) -> Tensor:
    """(K', P, R), (K'', R, Q) -> (K' K'', P, Q), as one product."""
    K, P, R = first.shape
    L, _, Q = second.shape
    flat = first.reshape(K * P, R) @ second.transpose(0, 1).reshape(R, L * Q)
    return flat.view(K, P, L, Q).transpose(1, 2).reshape(K * L, P, Q)


def _numbers(rows: Sequence[Sequence[float]], like: Tensor) -> Tensor:
    return torch.tensor(rows, dtype=like.dtype, device=like.device)
