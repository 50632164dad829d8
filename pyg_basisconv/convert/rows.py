"""Torch's layers without a graph or a grid: recurrent ones, linear ones, and embeddings."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map

from ..bases import Adjacency, Identity
from ..cache import once
from ..conv import BasisConv
from ..errors import reject
from ..portable import any_seen
from ..program import Call
from ..reading import check_integers
from ..recurrent import BasisCell, BasisGRUCell, BasisLSTMCell, BasisRNN, BasisRNNCell
from ..theta import Pass
from .build import META, basis_conv, check_parameters, parameter
from .composite import Composite
from .grids import weight_of
from .layers import PrintsAsBase
from .registry import Options, Unchanged, combinations, rule


class ProjectedLSTMCell(BasisLSTMCell):
    """An LSTM over the identity whose h is multiplied by a matrix, to R channels, in each step."""

    def __init__(self, P: int, H: int, R: int, bias: bool) -> None:
        super().__init__(P, H, Identity(), bias=bias)
        self.hidden = self._conv(R, 4, Identity(), None, False)
        self.projection = BasisConv(H, R, Identity(), bias=False)

    @property
    def widths(self) -> tuple[int, ...]:
        return self.projection.out_channels, self.hidden_channels

    def projected(self, h: Tensor) -> Tensor:
        y: Tensor = self.projection(h)
        return y


def cell_of(layer: Any, suffix: str = "") -> BasisCell:
    """A cell with those parameters of a layer whose names end in `suffix`."""
    names = [f"{kind}_{end}{suffix}" for end in ("ih", "hh", "hr") for kind in ("weight", "bias")]
    given: list[Any] = [getattr(layer, name, None) for name in names]
    check_parameters(*given)
    W, b, U, d, R, _ = given
    P, H, bias = W.shape[1], layer.hidden_size, layer.bias
    cell: Any
    with META:
        if isinstance(layer, nn.LSTM | nn.LSTMCell):
            cell = BasisLSTMCell(P, H, Identity(), bias=bias) if R is None else ProjectedLSTMCell(P, H, len(R), bias)
        elif isinstance(layer, nn.GRU | nn.GRUCell):
            cell = BasisGRUCell(P, H, Identity(), bias=bias, reset="after")
        else:
            # nn.RNN reads its mode, the cell its nonlinearity.
            mode: Any = layer.mode.removeprefix("RNN_").lower() if isinstance(layer, nn.RNN) else layer.nonlinearity
            cell = BasisRNNCell(P, H, Identity(), bias=bias, nonlinearity=mode)
    for conv, weight, shift in ((cell.input, W, b), (cell.hidden, U, d)):
        conv.theta.weight, conv.bias = parameter(weight.t().unsqueeze(0)), parameter(shift)
    if R is not None:
        cell.projection.theta.weight = parameter(R.t().unsqueeze(0))
    return cell


class ConvertedCell(Composite):
    """A cell with the call of a `torch.nn.GRUCell`, or of its like."""

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        self.cell = cell_of(layer)

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        if input.dim() > 1:
            return self.cell(input, h=hx)
        state = None if hx is None else tree_map(lambda s: s.unsqueeze(0), hx)
        return tree_map(lambda s: s.squeeze(0), self.cell(input.unsqueeze(0), h=state))


class ConvertedSequences(Composite):
    """Cells along sequences, with the call of a `torch.nn.GRU`, or of its like."""

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        ways = ("", "_reverse")[: 1 + layer.bidirectional]
        cells = [cell_of(layer, f"_l{i}{way}") for i in range(layer.num_layers) for way in ways]
        self.rnns = nn.ModuleList(map(BasisRNN, cells))
        self.widths = cells[0].widths

    def forward(self, input: Tensor | PackedSequence, hx: Any = None) -> tuple[Any, Any]:
        packed = input if isinstance(input, PackedSequence) else None
        x: Tensor = input.data if isinstance(input, PackedSequence) else input
        if x.dim() != 2 and (packed is not None or x.dim() != 3):
            expected = "(T, P), (T, B, P), or (B, T, P) with batch_first" if packed is None else "(S, P), packed"
            reject("input", expected, tuple(x.shape), "one sequence, or a batch of them")
        by_batch = self.batch_first and x.dim() == 3
        x = (x.transpose(0, 1) if by_batch else x).unsqueeze(-2)  # each entry of a batch is a graph of one node
        states = self._states(hx, x.shape[1:-2] if packed is None else packed.batch_sizes[:1])
        runs, ends = zip(self.rnns, states, strict=True), []
        turns = [lambda t: t, _turning(packed)][: 1 + self.bidirectional]
        for layer in range(self.num_layers):
            x = F.dropout(x, self.dropout, self.training) if layer else x
            found = []
            for turn in turns:
                rnn, state = next(runs)
                y, end = rnn(turn(x) if packed is None else packed._replace(data=turn(x)), h=state)
                found.append(turn(y if packed is None else y.data))
                ends.append(end)
            x = torch.cat(found, -1)
        x = x.squeeze(-2)
        end = tree_map(lambda *parts: torch.stack(parts).squeeze(-2), *ends)
        return packed._replace(data=x) if packed is not None else x.transpose(0, 1) if by_batch else x, end

    def _states(self, hx: Any, batch: Iterable[int]) -> list[Any]:
        """The state of each cell before the first step; None for zeros."""
        if hx is None:
            return [None] * len(self.rnns)
        parts = hx if isinstance(hx, tuple | list) else (hx,)
        shapes = [(len(self.rnns), *map(int, batch), width) for width in self.widths]
        given = [tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__ for part in parts]
        if given != shapes:
            reject("hx", f"shapes {shapes}", given, "pass what the call before returned")
        states = zip(*(part.unsqueeze(-2) for part in parts), strict=True)
        return [state if len(parts) > 1 else state[0] for state in states]


def _turning(packed: PackedSequence | None) -> Callable[[Tensor], Tensor]:
    """Turns the steps of all sequences round, of which packed ones have several lengths."""
    if packed is None:
        return lambda t: t.flip(0)
    sizes = packed.batch_sizes
    there = sizes.unsqueeze(1) > torch.arange(int(sizes[0]), device=sizes.device)  # (T, B)
    step, entry = there.nonzero(as_tuple=True)
    row = (sizes.cumsum(0) - sizes)[there.sum(0)[entry] - 1 - step] + entry
    return lambda t: t.index_select(0, row.to(t.device))


_OPTIONS: list[Options] = [
    {"num_layers": 3, "dropout": 0.5},
    *combinations({"bidirectional": True}, num_layers=(1, 2), batch_first=(False, True)),
    {"bidirectional": True, "num_layers": 2, "bias": False},
]
_MORE: dict[type[nn.Module], list[Options]] = {
    nn.RNN: [{"nonlinearity": "relu", "num_layers": 2}],
    nn.GRU: [],
    nn.LSTM: [{"proj_size": 2}, {"proj_size": 2, "num_layers": 2, "bidirectional": True, "bias": False}],
}
for _kind, _more in _MORE.items():
    rule(_kind, f"{_kind.__name__}, sequences", _OPTIONS + _more, alone=True)(ConvertedSequences)
rule(nn.RNNCell, "RNN cell", [{"nonlinearity": "relu"}], alone=True)(ConvertedCell)
rule(nn.GRUCell, "GRU cell", alone=True)(ConvertedCell)
rule(nn.LSTMCell, "LSTM cell", alone=True)(ConvertedCell)


class ConvertedLinear(PrintsAsBase, BasisConv):
    r"""A `BasisConv` with the call of a `torch.nn.Linear`, which takes (P,) and (\*, P)."""

    def forward(self, input: Tensor) -> Tensor:  # type: ignore[override]
        y: Tensor = self._run(Call(input.unsqueeze(0) if input.dim() == 1 else input), False)
        return y.squeeze(0) if input.dim() == 1 else y


@rule(nn.Linear, "fully connected", [{"in_features": 1}, {"out_features": 1, "bias": False}], alone=True)
def linear(layer: Any) -> nn.Module:
    """One matrix over the identity."""
    matrices = weight_of(layer).t().unsqueeze(0)
    return basis_conv(layer, matrices, Identity(), layer.bias, kind=ConvertedLinear)


class ConvertedBags(Composite):
    """The rows of a table, along the edges from each to the bags that hold it."""

    kept = ("weight",)

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        if layer.mode == "max":
            raise Unchanged("mode='max' is not linear")
        for name in ("max_norm", "scale_grad_by_freq", "sparse"):
            if getattr(layer, name):
                raise Unchanged(f"{name}={getattr(layer, name)}")
        self.conv = BasisConv(-1, -1, Adjacency("mean" if layer.mode == "mean" else None), Pass(), bias=False)

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        if input.dim() != (2 if offsets is None else 1):
            reject("input", "(B, N) indices, or one axis with offsets", tuple(input.shape), "pass offsets for one axis")
        check_integers("input", input)
        if per_sample_weights is not None and self.mode != "sum":
            reject(
                "per_sample_weights", "None, unless mode='sum'", f"some for {self.mode!r}", "make it with mode='sum'"
            )
        if per_sample_weights is not None and per_sample_weights.shape != input.shape:
            given = tuple(per_sample_weights.shape)
            reject("per_sample_weights", f"shape {tuple(input.shape)}, as input", given, "give each index a weight")
        if offsets is None:  # a bag in each row
            bags, size = torch.arange(len(input), device=input.device).repeat_interleave(input.shape[1]), len(input)
        else:
            bags = bags_of(offsets, len(input), self.include_last_offset)
            size = len(offsets) - self.include_last_offset
        edges = torch.stack([input.flatten().long(), bags.long()])
        weights = None if per_sample_weights is None else per_sample_weights.flatten()
        if self.padding_idx is not None:
            held = edges[0] != self.padding_idx
            edges, weights = edges[:, held], None if weights is None else weights[held]
        y: Tensor = self.conv((self.weight, None), edges, weights, size=(len(self.weight), size))
        return y


@once
def bags_of(offsets: Tensor, count: int, to_the_end: bool) -> Tensor:
    """The bag of each of so many indices: the last one that begins there or before.

    Of offsets whose last is no bag, but the end of the indices, torch's own kernels disagree on what an earlier end is.
    """
    if offsets.dim() != 1 or not len(offsets):
        reject("offsets", "one axis, with the start of each bag", tuple(offsets.shape), "pass where each bag begins")
    check_integers("offsets", offsets)
    last = offsets[-1]
    wrong = offsets[0] != 0, (offsets.diff() < 0).any(), last != count if to_the_end else last > count
    if not torch.compiler.is_compiling() and any_seen(torch.stack(wrong)):
        end = f"{count} as the last" if to_the_end else f"at most {count}"
        expected = f"0 first, then no less than the one before, and {end}, the number of indices"
        reject("offsets", expected, offsets.tolist(), "give the start of each bag")
    numbers = torch.arange(count, dtype=offsets.dtype, device=offsets.device)
    return torch.searchsorted(offsets.contiguous(), numbers, right=True) - 1


rule(
    nn.EmbeddingBag,
    "bags of embeddings",
    [*combinations(mode=("sum", "mean"), include_last_offset=(False, True)), {"mode": "sum", "padding_idx": 2}]
    + [{"padding_idx": -1}],
    fixed=("scale_grad_by_freq", "sparse"),
    alone=True,
)(ConvertedBags)
