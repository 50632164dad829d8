"""Encoder and decoder for forecasts."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ..bases import Diffusion
from ..errors import check_count, reject
from .cells import BasisGRUCell
from .sequence import BasisRNN, bound_once


class DCRNN(nn.Module):
    r"""Diffusion convolutional recurrent network: forecasts for the nodes of a graph (Li et al., arXiv:1707.01926).

    An encoder of gated units over `bases.Diffusion(K)` reads the sequence. A decoder of the same kind starts from its
    states and an input of zeros, and computes step by step

    .. math:: s_t = \mathrm{GRU}(\tilde y_{t-1}, s_{t-1}), \qquad y_t = s_t W + b

    where :math:`\tilde y_{t-1}` is its own last output or, with the probability `teacher` of the call, the last target
    (scheduled sampling, Bengio et al., arXiv:1506.03099), drawn for each sequence at each step. `train()` and `eval()`
    change nothing: leave `teacher` out in a test.

    Args:
        in_channels: P of the input.
        hidden_channels: H, of each unit.
        out_channels: Q of the output.
        K: the number of powers of the random walk in each direction, with the zeroth; the paper's K is one less.
        num_layers: of the encoder, and of the decoder.
        horizon: the number of steps that are forecast.
        batch_first: whether sequences are (B, T, ...) instead of (T, B, ...).

    Shapes:
        - x: (T, \*, M, P), leading batch dimensions allowed; with `batch_first` (B, T, M, P); or a `PackedSequence`
        - y: (horizon, \*, M, Q); with `batch_first` (B, horizon, M, Q)

    >>> model = DCRNN(2, 16, 1, K=3, horizon=6)
    >>> edge_index = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
    >>> model(torch.randn(12, 8, 5, 2), edge_index).shape
    torch.Size([6, 8, 5, 1])
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        K: int,
        num_layers: int = 1,
        horizon: int = 12,
        batch_first: bool = False,
    ) -> None:
        super().__init__()
        check_count("out_channels", out_channels)
        check_count("num_layers", num_layers)
        check_count("horizon", horizon)
        basis = Diffusion(K)

        def layers(width: int) -> list[BasisGRUCell]:
            widths = [width, *[hidden_channels] * (num_layers - 1)]
            return [BasisGRUCell(P, hidden_channels, basis) for P in widths]

        self.encoder = BasisRNN(layers(in_channels), batch_first)
        self.decoder = nn.ModuleList(layers(out_channels))
        self.out = nn.Linear(hidden_channels, out_channels)
        self.out_channels, self.horizon, self.batch_first = out_channels, horizon, batch_first

    def reset_parameters(self) -> None:
        """Resets all parameters."""
        for part in (self.encoder, *self.decoder, self.out):
            part.reset_parameters()  # type: ignore[operator]

    def forward(
        self,
        x: Tensor | PackedSequence,
        edge_index: Any,
        edge_weight: Tensor | None = None,
        *,
        targets: Tensor | None = None,
        teacher: float = 0.0,
    ) -> Tensor:
        r"""Forecasts the steps after x.

        Args:
            x: the sequence, see Shapes above.
            edge_index: the graph in any layout that `BasisConv` takes, or `bases.Diffusion(K)`, bound.
            edge_weight: (E,)
            targets: the true steps, shaped as y.
            teacher: the probability that a target is read instead of an output, see `inverse_sigmoid`.
        """
        if not 0 <= teacher <= 1:
            reject("teacher", "a probability, from 0 to 1", teacher, "inverse_sigmoid gives one that falls")
        structure = {"edge_index": edge_index, "edge_weight": edge_weight}
        structure = {name: value for name, value in structure.items() if value is not None}
        states = self.encoder(x, **structure)[1]
        y = states[-1].new_zeros(*states[-1].shape[:-1], self.out_channels)
        taught = self._targets(targets, y) if teacher else None
        structure = bound_once(self.decoder[0], y, structure)  # type: ignore[arg-type]
        steps: list[Tensor] = []
        for t in range(self.horizon):
            if t and taught is not None:
                drawn = torch.rand(*y.shape[:-2], 1, 1, device=y.device) < teacher
                y = torch.where(drawn, taught[t - 1], y)
            above = y
            for i, cell in enumerate(self.decoder):
                states[i] = above = cell(above, h=states[i], **structure)
            y = self.out(above)
            steps.append(y)
        return torch.stack(steps, 1 if self.batch_first else 0)

    def _targets(self, targets: Tensor | None, y: Tensor) -> Tensor:
        """(horizon, *, M, Q), checked."""
        if targets is None:
            reject("targets", "the true steps, for teacher > 0", None, "pass targets, or teacher=0")
        if not isinstance(targets, Tensor) or targets.device != y.device:
            got = f"a tensor on {targets.device}" if isinstance(targets, Tensor) else type(targets).__name__
            reject("targets", f"a tensor on {y.device}, where x is", got, "stack the steps, and move them with .to()")
        steps = targets.transpose(0, 1) if self.batch_first and targets.dim() > 1 else targets
        if steps.shape != (self.horizon, *y.shape):
            shape = [self.horizon, *y.shape]
            if self.batch_first:
                shape[:2] = shape[1::-1]
            reject("targets", f"shape {tuple(shape)}, as y", tuple(targets.shape), "give a target for each step")
        return steps

    def extra_repr(self) -> str:
        return f"horizon={self.horizon}"


def inverse_sigmoid(step: float, decay: float) -> float:
    r"""The probability :math:`\tau / (\tau + e^{i / \tau})` of reading a target in training step i.

    For scheduled sampling (arXiv:1506.03099), as in arXiv:1707.01926: it falls from nearly one, over one half at step
    :math:`\tau \log \tau`, to zero.

    Args:
        step: i, from 0 on.
        decay: :math:`\tau`, from 1 on.

    >>> [round(inverse_sigmoid(step, decay=100), 3) for step in (0, 300, 461, 600, 10**6)]
    [0.99, 0.833, 0.499, 0.199, 0.0]
    """
    if not decay >= 1:
        reject("decay", "a number from 1 on", decay, "a larger one falls later")
    if not step >= 0:
        reject("step", "a number from 0 on", step, "count the steps of the training")
    weight = decay * math.exp(-step / decay)
    return weight / (weight + 1)
