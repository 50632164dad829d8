"""Tests of equivariance: actions that move the input of a layer, and an assertion."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch_geometric.data.data import BaseData

from .bases import group as groups
from .errors import check_flags, reject, shape_or_type

__all__ = ["Action", "Permutation", "Symmetry", "Translation", "Trivial", "assert_equivariant"]

_TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
_COUNTS = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


class Action:
    """How the input of a layer is moved, and how its output should move with it.

    An action of your own defines `input`; and `arguments` and `output`, where these move in another way.

    >>> class Negative(Action):
    ...     def input(self, x):
    ...         return -x
    >>> assert_equivariant(torch.nn.Linear(3, 2, bias=False), Negative(), torch.randn(5, 3))
    """

    def input(self, x: Any) -> Any:
        """The input, moved."""
        raise NotImplementedError(f"{type(self).__name__} does not say how the input moves")

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The other arguments of the call, for the moved input."""
        return args, kwargs

    def output(self, y: Tensor) -> Tensor:
        """The output, moved."""
        return self.input(y)


def assert_equivariant(
    layer: Callable[..., Tensor],
    action: Action,
    x: Any,
    *args: Any,
    output_action: Action | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    **kwargs: Any,
) -> None:
    r"""Asserts that moving the input moves the output: :math:`f(g x) = g f(x)`.

    A layer that draws random numbers, or mixes the entries of a batch, should be in evaluation mode. It gets copies of
    the arguments, which it may write to. The results are compared by `torch.testing.assert_close`.

    Args:
        layer: f, a module or a function that returns a tensor.
        action: g, see `Translation`, `Symmetry`, `Permutation`, or one of your own.
        x: the input of f; best random, since equal numbers could hide a wrong move.
        *args: further arguments of f.
        output_action: how the output should move, if not as the input does: for images over a group, or with a stride;
            `Trivial()` for invariance, :math:`f(g x) = f(x)`.
        rtol: entries may differ by atol + rtol times the entry; both are 1e-10 in float64, 1e-4 in float32, 1e-2 in
            float16 and 5e-2 in bfloat16, and 0 for integers and booleans.
        atol: see rtol.
        **kwargs: further arguments of f.

    Raises:
        AssertionError: if the results differ, with the largest difference and its place; or if the output is empty.

    >>> from torch import nn
    >>> from pyg_basisconv import BasisConv, GridConv, bases

    A circular convolution is equivariant to translations, one with zero padding is not:

    >>> x = torch.randn(2, 3, 6, 5, dtype=torch.float64)
    >>> circular = bases.Window(None, (3, 3), padding=1, padding_mode='circular')
    >>> assert_equivariant(GridConv(3, 4, circular).double(), Translation((2, 1)), x)
    >>> assert_equivariant(nn.Conv2d(3, 4, 3, padding=1).double(), Translation((2, 1)), x)
    Traceback (most recent call last):
    ...
    AssertionError: Conv2d is not equivariant under Translation((2, 1)): ...

    Its mean over the grid is invariant:

    >>> pooled = nn.Sequential(GridConv(3, 4, circular), nn.AdaptiveAvgPool2d(1)).double()
    >>> assert_equivariant(pooled, Translation((2, 1)), x, output_action=Trivial())

    The nodes of a graph may be numbered in any order:

    >>> conv = BasisConv(3, 4, bases.Adjacency('sym')).double()
    >>> x, edge_index = torch.randn(5, 3, dtype=torch.float64), torch.randint(5, (2, 9))
    >>> assert_equivariant(conv, Permutation([3, 0, 4, 1, 2]), x, edge_index)
    """
    out = action if output_action is None else output_action
    for name, given in (("action", action), ("output_action", out)):
        if not isinstance(given, Action):
            reject(name, "an Action", repr(given), "make one, such as Translation(1)")
    if not callable(layer):
        reject("layer", "a module or a function", repr(layer), "pass what is to be called")
    with torch.no_grad():
        expected = out.output(_called(layer, (x, *args), kwargs))
        args, kwargs = action.arguments(args, kwargs)
        found = _called(layer, (action.input(x), *args), kwargs)
    moves = repr(action) if output_action is None else f"{action} with {output_action} on its output"
    title = getattr(layer, "__name__", type(layer).__name__)
    if not expected.numel():
        shape = tuple(expected.shape)
        raise AssertionError(f"{title} under {moves}: its output is empty, {shape}, so that nothing is compared")
    dtype = expected.dtype.to_real() if expected.is_complex() else expected.dtype
    default = _TOLERANCES.get(dtype, 0.0)
    torch.testing.assert_close(
        found,
        expected,
        rtol=default if rtol is None else rtol,
        atol=default if atol is None else atol,
        msg=lambda said: f"{title} is not equivariant under {moves}: {said}",
    )


class Trivial(Action):
    """Moves nothing; on the output, it stands for invariance.

    >>> x = torch.randn(5, 3)
    >>> assert_equivariant(lambda x: x.sum(0), Permutation([3, 0, 4, 1, 2]), x, output_action=Trivial(), rtol=1e-4)
    """

    def input(self, x: Any) -> Any:
        return x

    def __repr__(self) -> str:
        return "Trivial()"


@dataclass(frozen=True)
class Translation(Action):
    r"""Translates images along the last r axes, circularly: :math:`(g x)(t) = x(t - s)`.

    Args:
        shifts: s, an integer, or one for each of the r axes.

    Shapes: (\*, \*shape)

    >>> Translation((0, 1)).input(torch.arange(6).view(2, 3))
    tensor([[2, 0, 1],
            [5, 3, 4]])
    """

    shifts: int | Sequence[int]

    def __post_init__(self) -> None:
        if not self._shifts or any(isinstance(s, bool) or not isinstance(s, int) for s in self._shifts):
            reject("shifts", "an integer for each axis", repr(self.shifts), "such as (1, 2)")

    @property
    def _shifts(self) -> tuple[int, ...]:
        return tuple(self.shifts) if isinstance(self.shifts, Sequence) else (self.shifts,)

    def input(self, x: Any) -> Tensor:
        r = len(self._shifts)
        return _image(x, r).roll(self._shifts, tuple(range(-r, 0)))

    def __repr__(self) -> str:
        return f"Translation({self.shifts})"


@dataclass(frozen=True)
class Symmetry(Action):
    r"""Rotates or reflects images by an element g of a group: :math:`(g x)(t) = x(g^{-1} t)`, about the centre.

    Images over the group have an axis for it, before those of the grid, which is permuted as well, by
    multiplication from the left: :math:`(g x)(h, t) = x(g^{-1} h, g^{-1} t)`.

    Args:
        group: 'p4', whose element g turns by g times 90 degrees counter-clockwise; 'p4m', whose elements from 4 on
            reflect the last axis first; or a `bases.group.FiniteGroup`, over which images end with its axis if it acts
            on no grid.
        element: g.
        lifted: whether images are over the group.

    Shapes: (\*, \*shape); lifted, (\*, G, \*shape)

    >>> x = torch.arange(4).view(2, 2)
    >>> Symmetry('p4', 1).input(x)
    tensor([[1, 3],
            [0, 2]])
    >>> Symmetry('p4m', 4).input(x)
    tensor([[1, 0],
            [3, 2]])
    >>> Symmetry('p4', 1, lifted=True).input(torch.arange(4).view(4, 1, 1)).flatten()
    tensor([3, 0, 1, 2])
    """

    group: Any
    element: int
    lifted: bool = False

    def __post_init__(self) -> None:
        check_flags(lifted=self.lifted)
        group, g = self._group, self.element
        if isinstance(g, bool) or not isinstance(g, int) or not 0 <= g < group.order:
            reject("element", f"an element of the group, 0 to {group.order - 1}", repr(g), "choose one of them")

    @property
    def _group(self) -> groups.FiniteGroup:
        if isinstance(self.group, groups.FiniteGroup):
            return self.group
        if self.group not in ("p4", "p4m"):
            reject("group", "'p4', 'p4m' or a FiniteGroup", repr(self.group), "take one from bases.group")
        return groups.p4 if self.group == "p4" else groups.p4m

    def input(self, x: Any) -> Tensor:
        group = self._group
        matrix = [] if group.action is None else group.action[self.element]
        x = _image(x, len(matrix) + self.lifted)
        first = x.dim() - len(matrix)
        if self.lifted:
            if x.shape[first - 1] != group.order:
                expected = f"an axis of the {group.order} elements before those of the grid"
                reject("x", expected, tuple(x.shape), "an image that is not over the group has lifted=False")
            sheets = group.table[group.inverse[self.element]]
            x = x.index_select(first - 1, torch.tensor(sheets, device=x.device))
        turned = [i for i, row in enumerate(matrix, first) if sum(row) < 0]
        axes = [first + axis for row in matrix for axis, entry in enumerate(row) if entry]  # one for each row
        return x.permute(*range(first), *axes).flip(turned)

    def __repr__(self) -> str:
        lifted = ", lifted=True" if self.lifted else ""
        return f"Symmetry({self.group!r}, {self.element}{lifted})"


@dataclass(frozen=True)
class Permutation(Action):
    r"""Renumbers the nodes of a graph: the i-th node of the new graph is order[i] of the old one.

    It renumbers the ends of edges, the first argument after x or `edge_index`, and permutes `batch`, `valid` and
    `mask`, if they are passed by name. All other arguments, such as those of edges, stay as they are.

    Args:
        order: a permutation of 0 .. M-1.
        targets: that of the targets, 0 .. N-1, in a bipartite call with x = (x_src, x_dst).

    Shapes: (\*, M, P)

    >>> action = Permutation([2, 0, 1])
    >>> action.input(torch.tensor([[10], [11], [12]])).flatten()
    tensor([12, 10, 11])
    >>> action.arguments((torch.tensor([[0, 1], [1, 2]]),), {})
    ((tensor([[1, 2],
            [2, 0]]),), {})
    >>> action.arguments((), {'batch': torch.tensor([0, 0, 1])})
    ((), {'batch': tensor([1, 0, 0])})
    """

    order: Sequence[int]
    targets: Sequence[int] | None = None

    def __post_init__(self) -> None:
        for name in ("order", "targets"):
            given = getattr(self, name)
            listed = isinstance(given, Tensor) and given.layout == torch.strided and not given.is_meta
            value = given.tolist() if listed else given
            if value is None and name == "targets":
                continue
            if not isinstance(value, Sequence) or sorted(value) != list(range(len(value))):
                reject(name, "each number from 0 on once", repr(value), "such as torch.randperm(M)")
            object.__setattr__(self, name, tuple(value))

    def input(self, x: Any) -> Any:
        if isinstance(x, tuple | list):
            source, target = x
            return _take(source, self.order, -2), None if target is None else self.output(target)
        return _take(x, self.order, -2)

    def output(self, y: Tensor) -> Tensor:
        return _take(y, self._ends[1], -2)

    @property
    def _ends(self) -> tuple[Sequence[int], Sequence[int]]:
        return self.order, self.order if self.targets is None else self.targets

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Renumbers edges, and permutes what belongs to nodes."""
        for value in args:
            if isinstance(value, Tensor) and value.shape == (len(self.order),) and value.dtype in _COUNTS:
                expected = "a tensor with a number for each node to be named"
                fix = "pass it as batch=, which is permuted, or by its name, such as edge_type=, if it is of edges"
                reject("args", expected, f"{tuple(value.shape)} by place", fix)
        axes = {"batch": (-1,), "valid": (-1,), "mask": (-2, -1)}  # sources, and targets
        moved = dict(kwargs)
        for name in kwargs.keys() & axes.keys():
            for axis, order in zip(axes[name], self._ends, strict=False):
                moved[name] = None if moved[name] is None else _take(moved[name], order, axis)
        if "edge_index" in moved:
            moved["edge_index"] = self._edges(moved["edge_index"])
        return (*map(self._edges, args[:1]), *args[1:]), moved

    def _edges(self, value: Any) -> Tensor | None:
        if value is None:
            return None
        if not isinstance(value, Tensor) or value.dim() != 2:
            expected, fix = "(2, E) integers, or a torch.sparse matrix", "pass edges in one of these layouts"
            reject("edge_index", expected, shape_or_type(value), fix)
        source, target = (torch.tensor(order, device=value.device).argsort() for order in self._ends)
        M, N = len(source), len(target)
        if value.layout != torch.strided:
            if value.shape != (N, M):
                expected = f"the transposed adjacency of {N} targets and {M} sources"
                reject("edge_index", expected, tuple(value.shape), "give each node its number")
            value = value.to_sparse_coo().coalesce()
            ends = torch.stack([target[value.indices()[0]], source[value.indices()[1]]])
            return torch.sparse_coo_tensor(ends, value.values(), (N, M), device=value.device).coalesce()
        first, last = (end.as_subclass(Tensor) for end in value)
        if value.numel() and (int(value.min()) < 0 or int(first.max()) >= M or int(last.max()) >= N):
            reject(
                "edge_index", f"edges from {M} nodes to {N}", f"one of {int(value.max())}", "give each node its number"
            )
        return torch.stack([source[first], target[last]])

    def __repr__(self) -> str:
        targets = "" if self.targets is None else f", targets={list(self.targets)}"
        return f"Permutation({list(self.order)}{targets})"


def _called(layer: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """A copy of the output for copies of the arguments: the layer may write to all of them, also in its next call."""
    y: Any = layer(*cloned(args), **cloned(kwargs))
    if not isinstance(y, Tensor):
        reject("layer", "a tensor as its output", type(y).__name__, "wrap it in a function that returns one")
    return y.clone()


def cloned(arguments: Any) -> Any:
    """The arguments of a call with tensors and PyG's data copied, also inside of containers: it may write to them."""
    return tree_map(lambda a: a.clone() if isinstance(a, Tensor | BaseData) else a, arguments)


def _take(x: Any, order: Sequence[int], axis: int) -> Tensor:
    """A tensor with its nodes along an axis in the new order."""
    size = x.shape[axis] if isinstance(x, Tensor) and x.dim() >= -axis else None
    if size != len(order):
        expected, fix = f"a tensor with {len(order)} nodes along axis {axis}", "number as many nodes as there are"
        reject("order", expected, shape_or_type(x), fix)
    return x.index_select(axis, torch.tensor(order, device=x.device))


def _image(x: Any, axes: int) -> Tensor:
    """X, checked: an image (*, *shape)."""
    if not isinstance(x, Tensor) or x.layout != torch.strided or x.dim() < axes:
        got = f"{x.layout} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        reject("x", f"a dense tensor with at least {axes} axes", got, "images are (B, P, *shape)")
    return x
