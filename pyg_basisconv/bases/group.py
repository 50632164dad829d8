"""Finite groups, and group convolutions."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from ..basis import BoundBasis, Direction, EdgeList, Native, Work
from ..cache import kept
from ..errors import check_flags, reject
from ..graph import Graph
from ..kernels.grids import Ints
from ..printing import arguments
from ..theta import Blocks, Theta
from .bound_grid import BoundGrid, ImageFamily, Lattice, convolve_window, with_grids
from .composed import real
from .gridded import Gridded
from .window import Window


class FiniteGroup:
    """A finite group, given by its multiplication table, with its action on a grid.

    Args:
        table: (G, G) integers, `table[a][b]` = a b.
        action: (G, r, r) signed permutation matrices, by which each element maps the positions of a grid with r axes;
            None for the trivial action.

    Raises:
        ValueError: if this is not a group, or not an action of it.

    >>> cyclic = FiniteGroup([[0, 1, 2], [1, 2, 0], [2, 0, 1]])
    >>> cyclic.order, cyclic.inverse
    (3, [0, 2, 1])
    """

    def __init__(self, table: Any, action: Any = None) -> None:
        self.table = self._checked(table)
        self.order = len(self.table)
        self.unit = next(e for e, row in enumerate(self.table) if row == list(range(self.order)))
        self.inverse = [row.index(self.unit) for row in self.table]
        self.action: list[list[list[int]]] | None = None if action is None else self._checked_action(action)

    @staticmethod
    def _checked(table: Any) -> list[list[int]]:
        t = real(table)
        if t is None:
            reject("group", "a (G, G) table of integers", type(table).__name__, "table[a][b] is the product a b")
        if t.is_floating_point() or t.dtype == torch.bool or t.dim() != 2 or len(set(t.shape)) > 1:
            reject("group", "a (G, G) table of integers", f"{t.dtype} {tuple(t.shape)}", "table[a][b] is a b")
        t, G = t.long().cpu(), t.shape[0]
        if not G or int(t.min()) < 0 or int(t.max()) >= G:
            reject("group", f"products among the elements 0 to {G - 1}", t.tolist(), "number the elements from 0 on")
        elements = torch.arange(G, device=t.device)
        units = [e for e in range(G) if torch.equal(t[e], elements)]  # from the left: of a group it is the one
        if not units:
            reject("group", "an identity, whose row and column are 0, 1, 2 ...", "none", "correct the table")
        for name, lines in (("row", t), ("column", t.t())):
            wrong = (lines.sort(1).values != elements).any(1)
            if bool(wrong.any()):
                at = int(wrong.nonzero()[0])
                reject("group", "an inverse for each element", f"{name} {at} with repeats", "correct the table")
        for a in range(G):  # (a b) c = a (b c) for all b and c at once
            if not torch.equal(t[t[a]], t[a][t]):
                reject("group", "an associative product", f"(a b) c != a (b c) for a = {a}", "correct the table")
        return t.tolist()

    def _checked_action(self, action: Any) -> list[list[list[int]]]:
        A = real(action)
        if A is None:
            reject("action", "(G, r, r) matrices", type(action).__name__, "one for each element")
        A = A.cpu()
        if A.dim() != 3 or A.shape[0] != self.order or A.shape[1] != A.shape[2] or not A.shape[1]:
            reject("action", f"({self.order}, r, r) matrices", tuple(A.shape), "one for each element")
        if not torch.equal(A, A.long().to(A.dtype)):
            reject("action", "integers", A.tolist(), "each is a signed permutation matrix")
        A = A.long()
        if bool((A.abs().sum(1) != 1).any()) or bool((A.abs().sum(2) != 1).any()):
            reject("action", "signed permutation matrices", A.tolist(), "one 1 or -1 in each row and column")
        products = torch.einsum("aij,bjk->abik", A, A)
        if not torch.equal(products, A[torch.tensor(self.table, device=A.device)]):
            reject("action", "matrices that multiply as the group", "others", "action[a] @ action[b] = action[a b]")
        return A.tolist()

    @classmethod
    def _of_matrices(cls, matrices: Sequence[Tensor]) -> "FiniteGroup":
        """The group that some signed permutation matrices are."""
        known = {tuple(m.flatten().tolist()): i for i, m in enumerate(matrices)}
        table = [[known[tuple((a @ b).flatten().tolist())] for b in matrices] for a in matrices]
        return cls(table, torch.stack(list(matrices)))

    def __repr__(self) -> str:
        mine = self.table, self.action
        known = next((name for name, group in _NAMED.items() if (group.table, group.action) == mine), None)
        return f"FiniteGroup({self.table}, {self.action})" if known is None else repr(known)


def _square(reflections: bool) -> list[Tensor]:
    """The symmetries of a square: quarter turns, as by torch.rot90; then reflections of the last axis, turned."""
    turn, flip, one = torch.tensor([[[0, -1], [1, 0]], [[1, 0], [0, -1]], [[1, 0], [0, 1]]], device="cpu")
    turns = [one, turn, turn @ turn, turn @ turn @ turn]
    return turns + [t @ flip for t in turns] * reflections


p4 = FiniteGroup._of_matrices(_square(reflections=False))
p4m = FiniteGroup._of_matrices(_square(reflections=True))
_NAMED = {"p4": p4, "p4m": p4m}


class BoundGroup(ImageFamily):
    """Convolution over a group and a window, which is bound to the grid of one group element (a sheet).

    taps: (G, K') for each element, the tap of the window to which it maps each tap; lift: whether the sources are one
    sheet, instead of one for each element.
    """

    def __init__(self, group: FiniteGroup, window: BoundGrid, taps: list[list[int]], lift: bool, M: int) -> None:
        self.group, self.window, self.taps, self.lift = group, window, taps, lift
        G = group.order
        self.K, self.M, self.N = window.K * (1 if lift else G), M, window.N * G
        self.dtype, self.device = window.dtype, window.device
        self.source_grid = window.source_grid if lift else (G, *window.source_grid)
        self.target_grid = (G, *window.target_grid)

    def edges(self) -> EdgeList:
        tap, source, target, weight = self.window.edges()
        M, N = self.window.sources, self.window.N
        parts = [
            (self._members[tap, s, h], s * M + source, h * N + target, weight)
            for h in range(self.group.order)
            for s in range(self._members.shape[1])
        ]
        return EdgeList(*map(torch.cat, zip(*parts, strict=True)))

    @property
    def T(self) -> BoundBasis:
        return with_grids(self.explicit.T, self.target_grid, self.source_grid)

    def work(self, direction: Direction) -> Work:
        G = self.group.order
        entries = self.window.entries * G * (1 if self.lift else G)
        return Work(entries, self.N if direction == "combine" else self.K * self.N, 1)

    def moved(self, device: torch.device) -> "BoundGroup":
        return BoundGroup(self.group, self.window.moved(device), self.taps, self.lift, self.M)

    @kept
    def _members(self) -> Tensor:
        """(K', S, G) the member at each tap of the window, from each sheet of sources to each sheet of targets."""
        places = torch.tensor(self.taps, device="cpu").argsort(1).t()  # (K', G)
        elements = torch.tensor(self.group.table, device="cpu")[self.group.inverse].t()  # (G, G) h^-1 s
        members = places.unsqueeze(1) + (0 if self.lift else self.window.K * elements)
        return members.to(self.device)

    def native(self, theta: Theta, width: int) -> Native | None:
        window = self.window.window
        blocks = theta.blocks(width)
        if window is None or blocks is None or blocks.weight.shape[1] > 1 or blocks.then is not None or not self.N:
            return None
        G, S = self.group.order, 1 if self.lift else self.group.order
        P, Q = blocks.weight.shape[2:]

        def on(image: Tensor, bias: Tensor | None) -> Tensor:
            # One convolution of the plane, whose channels are the pairs of channel and sheet.
            now = cast(Blocks, theta.blocks(width))  # read again, as the parameter may have changed
            kernel = now.weight.to(image).squeeze(1)[self._members]  # (K', S, G, P, Q)
            kernel = kernel.permute(0, 3, 1, 4, 2).reshape(-1, 1, P * S, Q * G)
            own = None if bias is None else bias.repeat_interleave(G)
            y = convolve_window(image.reshape(-1, P * S, *self.window.source_grid), kernel, own, window)
            return y.unflatten(1, (Q, G))

        operations = 2 * window.taps * self.window.N * P * S * Q * G
        return self.native_on_images(on, operations, self.sources * P + self.N * Q)


class Group(Gridded):
    r"""Convolution over a finite group, or over a group and a grid that it acts on.

    On the group alone: :math:`y(g) = \sum_u x(u) \, \theta(g^{-1} u)`, one matrix for each element r, which maps x(g r)
    to y(g). With a window, on translations t and elements h: :math:`y(h, t) = \sum_{k,r} x(t + h \delta_k, h r) \,
    \Theta_{r,k}`, where :math:`\delta_k` are the window's taps from its centre; lifted from a plain image,
    :math:`y(h, t) = \sum_k x(t + h \delta_k) \, \Theta_k`. Such layers commute with the group (T. Cohen and M. Welling,
    Group Equivariant Convolutional Networks, arXiv:1602.07576; J.-M. Andreoli, arXiv:1905.01289).

    Args:
        group: 'p4', quarter turns of the plane; 'p4m', also its reflections; or a `FiniteGroup`; or its table, without
            an action on the grid.
        window: a `Window`, which is turned by each element; None for functions on the group alone.
        lift: whether x is on the plain grid, instead of on the group times the grid.

    Raises:
        ValueError: for a window that an element does not map to itself, as one that is not square.

    Grids: of the sources (G, *shape), or (\*shape) lifted; of the targets (G, *targets).

    >>> from pyg_basisconv import GridConv, bases
    >>> lifting = GridConv(1, 8, Group('p4', bases.Window(None, (3, 3), padding=1), lift=True))
    >>> conv = GridConv(8, 8, Group('p4', bases.Window(None, (3, 3), padding=1)))
    >>> conv(lifting(torch.randn(2, 1, 6, 6))).shape
    torch.Size([2, 8, 4, 6, 6])
    """

    def __init__(self, group: Any, window: Window | None = None, lift: bool = False) -> None:
        if isinstance(group, str):
            if group not in _NAMED:
                reject("group", "'p4', 'p4m', a FiniteGroup or a multiplication table", repr(group), "give a table")
            group = _NAMED[group]
        elif not isinstance(group, FiniteGroup):
            group = FiniteGroup(group)
        if window is not None and (not isinstance(window, Window) or window.sites is not None):
            reject("window", "a Window of a whole grid, or None", window, "make one with bases.Window")
        check_flags(lift=lift)
        if lift and window is None:
            reject("window", "a Window, to lift from its grid", None, "pass one, or lift=False")
        G = group.order
        inner = 1 if window is None else window.K
        axes = 1 if window is None else window.axes + (not lift)
        shape: Ints | None = (G,)
        if window is not None:
            shape = window.shape if lift or window.shape is None else (G, *window.shape)
        super().__init__(inner * (1 if lift else G), shape, axes)
        self.group, self.window, self.lift = group, window, lift
        self._taps = [[0]] * G if window is None else [list(order) for order in self._turned(window)]

    def _turned(self, window: Window) -> Iterator[list[int]]:
        """For each element, the tap of the window to which it maps each tap."""
        axes = window.axes
        action = self.group.action
        if action is None:
            yield from (list(range(window.K)) for _ in range(self.group.order))
            return
        if len(action[0]) != axes:
            reject("window", f"a window with {len(action[0])} axes, for {self.group}", axes, "take one that it acts on")
        # Twice the offset from the centre, which is an integer for even windows, too.
        along = [
            [(2 * tap - k + 1) * d for tap in range(k)]
            for k, d in zip(window.kernel_size, window.dilation, strict=True)
        ]
        taps = list(itertools.product(*along))
        index = {tap: k for k, tap in enumerate(taps)}
        for matrix in action:
            moved = [tuple(sum(c * v for c, v in zip(row, tap, strict=True)) for row in matrix) for tap in taps]
            if any(tap not in index for tap in moved):
                got = (window.kernel_size, window.dilation)
                reject("window", f"one that {self.group} maps to itself, such as a square", got, "take a square one")
            yield [index[tap] for tap in moved]

    @property
    def target_axes(self) -> int:
        return 1 if self.window is None else 1 + self.window.axes

    def target_shape(self, grid: Ints) -> Ints:
        if self.window is None:
            return grid
        if not self.lift and grid[0] != self.group.order:
            reject("grid", f"{self.group.order} sheets on its first axis", grid, "lift the image first")
        return (self.group.order, *self.window.target_shape(grid if self.lift else grid[1:]))

    def build(self, graph: Graph) -> BoundBasis:
        shape = self.shape_of(graph)
        rows = self.rows_of(graph, math.prod(shape))
        if self.window is None:
            sheet: Any = BoundGrid(Lattice((), (), (), ()), [()], 1, graph.dtype, graph.device)  # 1 x 1
        else:
            sheet = self.window.on_grid(shape if self.lift else shape[1:], graph.dtype, graph.device)
        return BoundGroup(self.group, sheet, self._taps, self.lift, rows)

    def extra_repr(self) -> str:
        shown = [self.group] if self.window is None else [self.group, self.window]
        return arguments(self, *shown, lift=False)
