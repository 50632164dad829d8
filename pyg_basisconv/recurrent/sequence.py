"""Recurrent networks over sequences, with truncated backpropagation and several layers."""

from collections.abc import Iterable, Sequence
from math import prod
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map

from ..basis import BoundBasis
from ..errors import check_count, check_flags, reject
from ..kernels.op import autocasting
from ..portable import few
from .cells import BasisCell

# Up to so many numbers in the gates of a step, the overhead of a call dominates: one call then serves all steps.
_SMALL = 1 << 16


class BasisRNN(nn.Module):
    r"""Runs one cell, or several in layers, over sequences.

    The structure is bound once for a sequence; where steps are small, the contribution of x to the gates is computed
    for all steps at once.

    Args:
        cells: a cell, or a list of them: each runs over the outputs of the one before.
        batch_first: whether sequences are (B, T, ...) instead of (T, B, ...).

    Shapes:
        - x: (T, \*, M, P), or (T, B, P, \*grid) for images; with `batch_first` (B, T, M, P); or sequences of several
          lengths, packed by `torch.nn.utils.rnn`: (S, M, P) or (S, P, \*grid), where S is the sum of the lengths
        - outputs: as x, with H channels
        - state: of the cell as for one step, (\*, M, H); a list of states for a list of cells

    >>> from pyg_basisconv import bases
    >>> from pyg_basisconv.recurrent import BasisGRUCell
    >>> rnn = BasisRNN(BasisGRUCell(2, 16, bases.Diffusion(2)))
    >>> edge_index = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
    >>> outputs, state = rnn(torch.randn(12, 64, 5, 2), edge_index)
    >>> outputs.shape, state.shape
    (torch.Size([12, 64, 5, 16]), torch.Size([64, 5, 16]))
    """

    def __init__(self, cells: BasisCell | Sequence[BasisCell], batch_first: bool = False) -> None:
        super().__init__()
        check_flags(batch_first=batch_first)
        self.single = isinstance(cells, BasisCell)
        layers = list(cells) if isinstance(cells, Iterable) and not isinstance(cells, str) else [cells]
        if not layers or not all(isinstance(cell, BasisCell) for cell in layers):
            got = [type(cell).__name__ for cell in layers]
            reject("cells", "a cell, or a list of them", got, "such as BasisGRUCell(...)")
        for i in range(1, len(layers)):
            before, cell = layers[i - 1], layers[i]
            if cell.in_channels not in (-1, before.hidden_channels):
                expected = f"in_channels = {before.hidden_channels}, the hidden_channels of the cell before"
                reject(f"cells[{i}]", expected, cell.in_channels, "or leave it open with -1")
            if cell.images != before.images:
                reject(f"cells[{i}]", f"images={before.images}, as the cell before", cell.images, "make them alike")
        self.cells = nn.ModuleList(layers)
        self.batch_first = batch_first

    def reset_parameters(self) -> None:
        """Resets all parameters."""
        for cell in self._layers:
            cell.reset_parameters()

    @property
    def _layers(self) -> list[BasisCell]:
        return list(self.cells)  # type: ignore[arg-type]

    def forward(
        self,
        x: Tensor | PackedSequence,
        edge_index: Any = None,
        h: Any = None,
        *,
        truncate: int | None = None,
        **structure: Any,
    ) -> tuple[Any, Any]:
        """Runs the sequences; returns the outputs of all steps, and the state after the last one of each sequence.

        Args:
            x: the sequences, see Shapes above.
            edge_index: as for `BasisConv`; so are further arguments (`edge_weight`, `edge_type`, ...).
            h: the state before the first step; zeros for None.
            truncate: the number of steps after which the state is detached, for truncated backpropagation.
            **structure: see edge_index.
        """
        if truncate is not None:
            check_count("truncate", truncate)
        if edge_index is not None:
            structure["edge_index"] = edge_index
        if isinstance(x, PackedSequence):
            self._check(x.data, "S", 1)
            return self._packed(x, h, truncate, structure)
        self._check(x, *(("B, T", 2) if self.batch_first else ("T, *", 1)))
        steps = x.transpose(0, 1) if self.batch_first else x
        outputs, state = self._run(steps, h, None, truncate, structure)
        return outputs.transpose(0, 1) if self.batch_first else outputs, state

    def _begin(self, h: Any) -> list[Any]:
        """The states before the first step, one for each cell; None for zeros."""
        if h is None:
            return [None] * len(self.cells)
        if self.single:
            return [h]
        if not isinstance(h, tuple | list) or len(h) != len(self.cells):
            got = f"{len(h)} of them" if isinstance(h, tuple | list) else type(h).__name__
            reject("h", f"a list of {len(self.cells)} states, one for each cell", got, "or None for zeros")
        return list(h)

    def _packed(
        self, x: PackedSequence, h: Any, truncate: int | None, structure: dict[str, Any]
    ) -> tuple[PackedSequence, Any]:
        for name, axes in (("mask", 2), ("valid", 1)):
            given = structure.get(name)
            if isinstance(given, Tensor) and given.dim() > axes:
                got, fix = f"shape {tuple(given.shape)}", "run sequences of one length at a time"
                reject(name, "one for all sequences, where these are packed", got, fix)
        order, back = x.sorted_indices, x.unsorted_indices
        data, state = self._run(x.data, h, x.batch_sizes.tolist(), truncate, structure, order)
        if back is not None:
            state = tree_map(lambda t: t.index_select(0, back), state)
        return PackedSequence(data, x.batch_sizes, order, back), state

    def _run(self, x: Tensor, h: Any, *options: Any) -> tuple[Tensor, Any]:
        """Runs all cells, see `_run_cell`."""
        ends = []
        for cell, before in zip(self._layers, self._begin(h), strict=True):
            x, end = _run_cell(cell, x, before, *options)
            ends.append(end)
        return x, ends[0] if self.single else ends

    def _check(self, x: Any, before: str, least: int) -> None:
        """Checks that x has at least `least` axes before those of one graph or image, and at least one step."""
        if not isinstance(x, Tensor):
            reject("x", "a tensor, or a PackedSequence", type(x).__name__, "stack the steps")
        first = self._layers[0]
        axes = first.basis.axes or 1 if first.images else 1
        if x.dim() < least + 1 + axes:
            expected = f"a sequence ({before}, {'P, *grid' if first.images else 'M, P'})"
            reject("x", expected, f"shape {tuple(x.shape)}", "a single step is for the cell itself")
        if not x.shape[least - 1]:
            reject("x", "at least one step", f"shape {tuple(x.shape)}, with T = 0", "leave empty sequences out")


def _run_cell(
    cell: BasisCell,
    x: Tensor,
    h: Any,
    sizes: list[int] | None,
    truncate: int | None,
    structure: dict[str, Any],
    order: Tensor | None = None,
) -> tuple[Tensor, Any]:
    """One cell over (T, *, M, P), or over packed (S, M, P) with `sizes` sequences at each step, which were given in
    another order: the outputs, and the state after the last step of each sequence.
    """
    first = x[0] if sizes is None else x[: sizes[0]]
    state = cell.begin(first, h)
    if order is not None:
        state = tree_map(lambda s: s.index_select(0, order), state)
    structure = bound_once(cell, first, structure)
    whole, outputs, ended = _calls_cell(cell), [], []
    for t, part in enumerate(_steps(x, sizes) if whole else _gates(cell, x, first, sizes, structure)):
        if sizes is not None and t and sizes[t] < sizes[t - 1]:
            ended.append(tree_map(itemgetter(slice(sizes[t], None)), state))
            state = tree_map(itemgetter(slice(sizes[t])), state)
        if truncate is not None and t and t % truncate == 0:
            state = tree_map(Tensor.detach, state)
        state = cell(part, h=state, **structure) if whole else cell.step(part, state, **structure)
        outputs.append(state if isinstance(state, Tensor) else state[0])
    if ended:
        state = tree_map(lambda *parts: torch.cat(parts), state, *ended[::-1])
    return torch.stack(outputs) if sizes is None else torch.cat(outputs), state


def _calls_cell(cell: BasisCell) -> bool:
    """Whether steps have to call the cell itself, because it has a forward of its own or hooks."""
    own = "forward" in vars(cell) or type(cell).forward is not BasisCell.forward
    return own or bool(cell._forward_hooks or cell._forward_pre_hooks or cell._backward_hooks)


def _steps(x: Tensor, sizes: list[int] | None) -> Sequence[Tensor]:
    return x.unbind(0) if sizes is None else x.split(sizes)


def _gates(
    cell: BasisCell, x: Tensor, first: Tensor, sizes: list[int] | None, structure: dict[str, Any]
) -> Iterable[Tensor]:
    """The contribution of x to the gates at each step; for all at once if steps are small and share their matrices."""
    numbers = first.numel() // max(1, first.shape[cell.channels(first)]) * cell.input.out_channels
    if cell.basis.reads_content or not few(numbers, _SMALL):
        return (cell.read(step, **structure) for step in _steps(x, sizes))
    if sizes is not None:
        return cell.read(x, **structure).split(sizes)
    if not cell.images:
        return cell.read(x, **structure).unbind(0)
    batch = x.shape[: x.dim() + cell.channels(first)]
    return cell.read(x.flatten(0, len(batch) - 1), **structure).unflatten(0, batch).unbind(0)


def bound_once(cell: BasisCell, x: Tensor, structure: dict[str, Any]) -> dict[str, Any]:
    """The structure, bound once, if the matrices are the same in all steps."""
    edge_index, basis = structure.get("edge_index"), cell.basis
    learns = basis.reads_content or any(True for _ in basis.parameters())
    if edge_index is None or isinstance(edge_index, BoundBasis) or learns or torch.compiler.is_compiling():
        return structure
    if not structure.keys() <= {"edge_index", "edge_weight", "edge_type", "size", "batch", "lambda_max", "grid"}:
        return structure  # the layer checks the other arguments
    rows = tuple(x.shape[cell.rows(x)])
    given: dict[str, Any] = {"size": prod(rows), "dtype": x.dtype} | structure
    weight = structure.get("edge_weight")
    if isinstance(weight, Tensor) and autocasting(x.device):
        given["dtype"] = weight.dtype
    if cell.images:
        given["grid"] = rows
    return {"edge_index": basis.bind(**given)}
