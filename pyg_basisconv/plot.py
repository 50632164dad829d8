"""Pictures of families, of attention heads and their projections, and of the costs in a plan, by matplotlib."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .basis import Basis, BoundBasis, bound_basis
from .errors import check_count, reject
from .plan import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["costs", "heads", "spy"]

CELLS = 128  # of a picture of a matrix along each axis, at most
MEMBERS = 16  # matrices that are drawn by default
_CHOSEN, _OTHER = "#2c6fbb", "#bbbbbb"


def spy(basis: Basis | BoundBasis, *args: Any, members: Iterable[int] | None = None, **kwargs: Any) -> "Figure":
    """Draws the matrices of a family, with sources downwards and targets to the right.

    Each cell of a picture has the colour of its entry, or of the sum of its entries where a matrix is too large.

    Args:
        basis: bound, or to be bound with the other arguments.
        *args: of `Basis.bind`, such as edge_index.
        members: the numbers of the matrices; by default the first 16.
        **kwargs: of `Basis.bind`.

    >>> import torch
    >>> from pyg_basisconv import bases, plot
    >>> figure = plot.spy(bases.Powers(3), torch.tensor([[0, 1, 2], [1, 2, 3]]), size=4)
    >>> [axes.get_title() for axes in figure.axes]
    ['$A_{0}$', '$A_{1}$', '$A_{2}$']
    """
    bound = bound_basis(basis, *args, **kwargs)
    if not isinstance(members, Iterable | None):
        reject("members", "numbers of matrices", repr(members), "such as [0, 2]")
    shown = list(range(min(bound.K, MEMBERS)) if members is None else members)
    for k in shown:
        check_count("members", k, least=0, most=bound.K - 1)
    if not shown:
        reject("members", "at least one", shown, "leave it out")
    kind, source, target, weight = bound.edges()
    columns = len(shown) if len(shown) <= 5 else math.ceil(math.sqrt(len(shown)))
    rows = math.ceil(len(shown) / columns)
    figure = _figure((1.7 * columns, 1.9 * rows))
    for place, k in enumerate(shown, 1):
        mine = kind == k
        picture = _raster(source[mine], target[mine], weight[mine], bound.M, bound.N)
        axes = figure.add_subplot(rows, columns, place, title=f"$A_{{{k}}}$")
        _draw(axes, picture, bound.M, bound.N)
    return figure


def heads(report: Any, index: int | tuple[int, ...] = 0) -> "Figure":
    r"""Draws each attention head in a column: its matrix, the nearest one in the span of the basis, and the residual.

    All have one scale of colours. Above each head is its :math:`R^2` in this graph.

    Args:
        report: a `HeadReport`, of `explain_head`.
        index: of the graph in the batch.

    >>> import torch
    >>> from pyg_basisconv import BasisConv, bases, explain_head, mechanisms, plot
    >>> conv = BasisConv(8, 8, bases.Attention(2, mechanisms.Dot(4), bases.Causal()))
    >>> figure = plot.heads(explain_head(conv, torch.randn(3, 10, 8), bases.Shifts(None, range(4))), index=2)
    >>> len(figure.axes)
    6
    """
    attention, nearest = report.matrices(index)  # (H, M, N)
    H, M, N = attention.shape
    scale = max((t.abs().max().item() for t in (attention, nearest) if t.numel()), default=0.0) or 1.0
    rest = attention - nearest
    r2 = 1 - rest.square().sum((1, 2)) / attention.square().sum((1, 2)).clamp(min=torch.finfo(torch.float64).tiny)
    figure = _figure((1.5 * H + 0.4, 4.9))
    grid = figure.subplots(3, H, squeeze=False)
    for row, name, matrices in zip(grid, ("head", "projection", "rest"), (attention, nearest, rest), strict=True):
        for axes, matrix in zip(row, matrices, strict=True):
            source, target = matrix.nonzero(as_tuple=True)
            _draw(axes, _raster(source, target, matrix[source, target], M, N), M, N, scale)
        row[0].set_ylabel(name)
    for h, axes in enumerate(grid[0]):
        axes.set_title(f"{h}: $R^2$ = {r2[h]:.2f}", fontsize=10)
    return figure


def costs(plan: Plan) -> "Figure":
    """Draws the orders of a plan as bars of estimated time, bytes moved and memory; the chosen one is coloured.

    Args:
        plan: of `BasisConv.plan`.

    >>> import torch
    >>> from pyg_basisconv import BasisConv, bases, plot
    >>> conv = BasisConv(64, 4, bases.Chebyshev(K=3))
    >>> figure = plot.costs(conv.plan(torch.randn(50, 64), torch.randint(50, (2, 400))))
    >>> [axes.get_title() for axes in figure.axes]
    ['time, ms', 'moved, MB', 'memory, MB']
    """
    possible = [e for e in plan.estimates if not e.refused]
    names = [e.name for e in possible]
    colours = [_CHOSEN if e.order == plan.order else _OTHER for e in possible]
    measures = {
        "time, ms": [1e3 * e.seconds for e in possible],
        "moved, MB": [1e-6 * e.bytes for e in possible],
        "memory, MB": [1e-6 * e.memory for e in possible],
    }
    figure = _figure((9, 0.8 + 0.4 * len(possible)))
    panels = figure.subplots(1, len(measures), sharey=True, squeeze=False)[0]
    for axes, (title, values) in zip(panels, measures.items(), strict=True):
        bars = axes.barh(names, values, color=colours)
        axes.bar_label(bars, [f"{value:.3g}" for value in values], padding=3)
        axes.set(title=title, xticks=[], xlim=(0, 1.25 * max(values) or 1))
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    panels[0].invert_yaxis()
    return figure


def _figure(size: tuple[float, float]) -> "Figure":
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures are drawn by matplotlib: pip install matplotlib") from error
    return Figure(figsize=size, layout="constrained")


def _raster(source: Tensor, target: Tensor, weight: Tensor, M: int, N: int) -> Tensor:
    """The sums of the entries of a matrix in each of at most 128 x 128 cells."""
    rows, columns = (max(1, min(size, CELLS)) for size in (M, N))
    cell = source.long() * rows // max(1, M) * columns + target.long() * columns // max(1, N)
    total = torch.zeros(rows * columns, dtype=torch.float64, device=weight.device)
    return total.index_add(0, cell, weight.detach().double()).view(rows, columns).cpu()


def _draw(axes: "Axes", picture: Tensor, M: int, N: int, scale: float | None = None) -> None:
    """Draws zeros white, positive entries blue, and negative ones red."""
    largest = scale or picture.abs().max().item() or 1.0
    axes.imshow(picture.numpy(), cmap="RdBu", vmin=-largest, vmax=largest, interpolation="none", aspect="auto")
    axes.set_box_aspect(min(3, max(1 / 3, M / max(1, N))))
    axes.set(xticks=[], yticks=[])
