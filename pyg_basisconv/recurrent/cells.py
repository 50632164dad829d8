"""Recurrent cells whose linear maps are convolutions on any structure."""

import copy
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from ..basis import Basis
from ..conv import BasisConv
from ..errors import check_choice, check_count, check_flags, reject
from ..grid import GridConv
from ..kernels.op import autocasting
from ..theta import Theta


class BasisCell(nn.Module):
    r"""The base class of the cells: :math:`W \star x + b` and :math:`U \star h`, each one convolution for all gates.

    The gates are blocks of H channels of a convolution's result, in an order that the cell defines. Each convolution
    has parameters of its own, including those of a basis that learns.

    Args:
        in_channels: P, or -1 to find it in the first call.
        hidden_channels: H.
        basis: the family A, with as many targets as sources, see `pyg_basisconv.bases`.
        theta: the kind of parameter of each convolution; `theta.Full()` by default.
        bias: whether to add b.
        images: whether x and h are images (\*, P, \*grid) instead of rows (\*, M, P).
        gates: the number of gates that x is convolved to.
        hidden_gates: the number of gates that h is convolved to.

    Shapes:
        - x: (\*, M, P), leading batch dimensions allowed; or an image, (\*, P, \*grid)
        - h and the result: (\*, M, H); or (\*, H, \*grid)

    >>> from pyg_basisconv import bases
    >>> cell = BasisGRUCell(2, 5, bases.Identity())
    >>> isinstance(cell, BasisCell), cell.read(torch.randn(7, 2)).shape, cell.begin(torch.randn(7, 2), None).shape
    (True, torch.Size([7, 15]), torch.Size([7, 5]))
    """

    names: ClassVar[tuple[str, ...]] = ("h",)  # of the tensors of the state

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        basis: Basis,
        theta: Theta | None,
        bias: bool,
        images: bool,
        gates: int,
        hidden_gates: int,
    ) -> None:
        super().__init__()
        check_count("hidden_channels", hidden_channels)
        check_flags(bias=bias, images=images)
        self.hidden_channels, self.images = hidden_channels, images
        self.input = self._conv(in_channels, gates, basis, theta, bias)
        self.hidden = self._conv(hidden_channels, hidden_gates, basis, theta, False)

    def _conv(self, width: int, gates: int, basis: Basis, theta: Theta | None, bias: bool) -> BasisConv:
        """A convolution to some gates, with parameters of its own."""
        layer = GridConv if self.images else BasisConv
        if isinstance(basis, Basis) and (basis.reads_content or any(True for _ in basis.parameters())):
            basis = copy.deepcopy(basis)
        return layer(width, gates * self.hidden_channels, basis, copy.deepcopy(theta), bias=bias)

    @property
    def widths(self) -> tuple[int, ...]:
        """The channels of the tensors of the state."""
        return (self.hidden_channels,) * len(self.names)

    @property
    def in_channels(self) -> int:
        """P; -1 if only the first call will tell it."""
        return cast(int, self.input.in_channels)

    @property
    def basis(self) -> Basis:
        """The family; where it learns, that of the input."""
        return self.input.basis

    def reset_parameters(self) -> None:
        """Resets all parameters."""
        for part in self.children():
            part.reset_parameters()  # type: ignore[operator]

    def forward(self, x: Tensor, edge_index: Any = None, h: Any = None, **structure: Any) -> Any:
        r"""One step; returns the new state.

        Args:
            x: (\*, M, P), or (\*, P, \*grid) for images.
            edge_index: as for `BasisConv`; so are further arguments (`edge_weight`, `edge_type`, ...).
            h: the state, (\*, M, H) or (\*, H, \*grid), or several of them as the cell says; zeros for None.
            **structure: see edge_index.
        """
        if edge_index is not None:
            structure["edge_index"] = edge_index
        return self.step(self.read(x, **structure), self.begin(x, h), **structure)

    def read(self, x: Tensor, **structure: Any) -> Tensor:
        """The contribution of x to all gates: (*, M, G H), or (*, G H, *grid)."""
        if isinstance(x, tuple | list):
            reject("x", "a tensor", type(x).__name__, "sources and targets are the same in a recurrent cell")
        if structure.get("return_attention"):
            reject("return_attention", "False", True, "ask a layer for it, such as cell.input")
        gates: Tensor = self.input(self._laid_out(x), **structure)
        rows, targets = x.shape[self.rows(x)], gates.shape[self.rows(gates)]
        if rows != targets:
            fix = "give a window padding='same', and a graph M = N"
            reject("basis", f"as many targets as sources, {tuple(rows)}, since a state is both", tuple(targets), fix)
        return gates

    def step(self, gates: Tensor, h: Any, **structure: Any) -> Any:
        """The next state, from the contribution of x to the gates, and the state."""
        raise NotImplementedError

    def begin(self, x: Tensor, h: Any) -> Any:
        """The state before the first step: h, checked, or zeros for such an x."""
        axis = self.channels(x) % x.dim()
        shapes = [(*x.shape[:axis], width, *x.shape[axis + 1 :]) for width in self.widths]
        several = len(self.names) > 1
        if h is None:
            zeros = tuple(self._laid_out(x.new_zeros(shape, layout=torch.strided)) for shape in shapes)
            return zeros if several else zeros[0]
        states = h if several else (h,)
        if not isinstance(states, tuple | list) or len(states) != len(self.names):
            got = f"{len(h)} parts" if isinstance(h, tuple | list) else type(h).__name__
            reject("h", f"a tuple ({', '.join(self.names)})", got, "pass what the step before returned")
        for name, shape, state in zip(self.names, shapes, states, strict=True):
            if not isinstance(state, Tensor):
                reject(name, "a tensor", type(state).__name__, "pass what the step before returned")
            if state.shape != shape:
                reject(name, f"shape {shape}, as x", tuple(state.shape), "pass the state of this batch, or None")
            if state.device != x.device:
                reject(name, f"a tensor on {x.device}, where x is", state.device, "move it with .to(device)")
            if not state.is_floating_point() or (state.dtype != x.dtype and not autocasting(x.device)):
                reject(name, f"dtype {x.dtype}, as x", state.dtype, "convert it with .to()")
        laid_out = tuple(self._laid_out(state) for state in states)
        return laid_out if several else laid_out[0]

    def _laid_out(self, x: Tensor) -> Tensor:
        """The same rows with the nodes outermost in memory, as sparse products read them without a copy."""
        if self.images or self.basis.axes is not None or self.basis.reads_content or not isinstance(x, Tensor):
            return x
        return x.movedim(-2, 0).contiguous().movedim(0, -2) if x.dim() > 2 and x.layout == torch.strided else x

    def channels(self, x: Tensor) -> int:
        """The axis of the channels, from the end."""
        if not self.images:
            return -1
        axes = self.basis.axes
        return -1 - (max(1, x.dim() - 2) if axes is None else axes)

    def rows(self, x: Tensor) -> slice:
        """The axes of the nodes or the grid."""
        return slice(self.channels(x) + 1, None) if self.images else slice(-2, -1)

    def __repr__(self) -> str:
        said = [str(self.in_channels), str(self.hidden_channels), str(self.basis), str(self.input.theta)]
        said += ["images=True"] if self.images else []
        said += [more] if (more := self.extra_repr()) else []
        return f"{type(self).__name__}({', '.join(said)})"


class BasisRNNCell(BasisCell):
    r"""A plain recurrent cell: :math:`h' = \tanh(W \star x + U \star h + b)`, with :math:`\star` a convolution
    :math:`\sum_k A_k^\top x \, \Theta_k`.

    Over `bases.Identity` it is `torch.nn.RNNCell`.

    Args:
        in_channels, hidden_channels, basis, theta, bias, images: as in `BasisCell`.
        nonlinearity: 'tanh' or 'relu'.

    >>> from pyg_basisconv import bases
    >>> cell = BasisRNNCell(3, 8, bases.Adjacency('mean'))
    >>> h = cell(torch.randn(4, 3), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]))
    >>> cell(torch.randn(4, 3), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), h).shape
    torch.Size([4, 8])
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        basis: Basis,
        theta: Theta | None = None,
        bias: bool = True,
        images: bool = False,
        nonlinearity: Literal["tanh", "relu"] = "tanh",
    ) -> None:
        super().__init__(in_channels, hidden_channels, basis, theta, bias, images, 1, 1)
        check_choice("nonlinearity", nonlinearity, "tanh", "relu")
        self.nonlinearity = nonlinearity

    def step(self, gates: Tensor, h: Tensor, **structure: Any) -> Tensor:
        total = gates + self.hidden(h, **structure)
        return total.tanh() if self.nonlinearity == "tanh" else total.relu()

    def extra_repr(self) -> str:
        return "" if self.nonlinearity == "tanh" else f"nonlinearity={self.nonlinearity!r}"


class BasisGRUCell(BasisCell):
    r"""A gated recurrent unit (Cho et al., arXiv:1406.1078); over `bases.Diffusion` the cell of DCRNN
    (Li et al., arXiv:1707.01926).

    .. math::
        r, z &= \sigma(W_{r, z} \star x + U_{r, z} \star h + b_{r, z}) \\
        n &= \tanh(W_n \star x + U_n \star (r \odot h) + b_n) \\
        h' &= z \odot h + (1 - z) \odot n

    With reset='after' the reset gate comes after the convolution,
    :math:`n = \tanh(W_n \star x + b_n + r \odot (U_n \star h + b'_n))`, as in `torch.nn.GRUCell`, which it is over
    `bases.Identity`. The blocks of channels are in the order r, z, n; `input` has W and b, `hidden` has U (and b' with
    reset='after', for all three, as in torch), and `candidate` has U_n with reset='before'.

    Args:
        in_channels, hidden_channels, basis, theta, bias, images: as in `BasisCell`.
        reset: 'before' or 'after'.

    >>> from pyg_basisconv import bases
    >>> cell = BasisGRUCell(2, 16, bases.Diffusion(3))
    >>> cell(torch.randn(64, 5, 2), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])).shape
    torch.Size([64, 5, 16])
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        basis: Basis,
        theta: Theta | None = None,
        bias: bool = True,
        images: bool = False,
        reset: Literal["before", "after"] = "before",
    ) -> None:
        check_choice("reset", reset, "before", "after", fix="see help(BasisGRUCell)")
        before = reset == "before"
        super().__init__(in_channels, hidden_channels, basis, theta, bias, images, 3, 2 if before else 3)
        self.reset = reset
        if before:
            self.candidate = self._conv(hidden_channels, 1, basis, theta, False)
        elif bias:
            self.hidden.bias = nn.Parameter(torch.zeros(3 * hidden_channels))

    def step(self, gates: Tensor, h: Tensor, **structure: Any) -> Tensor:
        of_h, axis, H = self.hidden(h, **structure), self.channels(gates), self.hidden_channels
        of_rz, of_n = gates.split([2 * H, H], axis)
        if self.reset == "before":
            r, z = (of_rz + of_h).sigmoid_().chunk(2, axis)
            n = (of_n + self.candidate(r * h, **structure)).tanh_()
        else:
            h_rz, h_n = of_h.split([2 * H, H], axis)
            r, z = (of_rz + h_rz).sigmoid_().chunk(2, axis)
            n = (of_n + r * h_n).tanh_()
        return torch.lerp(n.to(h.dtype), h, z.to(h.dtype))  # under autocast, the state keeps its dtype

    def extra_repr(self) -> str:
        return "" if self.reset == "before" else f"reset={self.reset!r}"


class BasisLSTMCell(BasisCell):
    r"""A long short-term memory; over `bases.Window` a ConvLSTM (Shi et al., arXiv:1506.04214).

    .. math::
        i &= \sigma(W_i \star x + U_i \star h + V_i \odot c + b_i) \\
        f &= \sigma(W_f \star x + U_f \star h + V_f \odot c + b_f) \\
        g &= \tanh(W_g \star x + U_g \star h + b_g) \\
        c' &= f \odot c + i \odot g \\
        o &= \sigma(W_o \star x + U_o \star h + V_o \odot c' + b_o) \\
        h' &= o \odot \tanh(c')

    Over `bases.Identity`, without the peepholes V, it is `torch.nn.LSTMCell`. The blocks of channels are in the order
    i, f, g, o; `input` has W and b, `hidden` has U, and `peephole` V, in the order i, f, o.

    Args:
        in_channels, hidden_channels, basis, theta, bias, images: as in `BasisCell`.
        peepholes: False; True for V with a number per channel; or the number of nodes, or the grid of the images, for
            a number per channel and position, as in Shi et al. They begin as zeros.

    Shapes:
        - state (h, c) and the result: each as h in `BasisCell`
        - peephole: (3, H), (3, N, H) or (3, H, \*grid)

    >>> from pyg_basisconv import bases
    >>> cell = BasisLSTMCell(3, 8, bases.Window(None, (3, 3), padding='same'), images=True, peepholes=(16, 16))
    >>> h, c = cell(torch.randn(5, 3, 16, 16))
    >>> h.shape
    torch.Size([5, 8, 16, 16])
    """

    names = ("h", "c")
    peephole: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        basis: Basis,
        theta: Theta | None = None,
        bias: bool = True,
        images: bool = False,
        peepholes: bool | int | Sequence[int] = False,
    ) -> None:
        super().__init__(in_channels, hidden_channels, basis, theta, bias, images, 4, 4)
        self.positions = _positions(peepholes, images)
        shape = (hidden_channels, *self.positions) if images else (*self.positions, hidden_channels)
        self.register_parameter("peephole", None if peepholes is False else nn.Parameter(torch.zeros(3, *shape)))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.peephole is not None:
            nn.init.zeros_(self.peephole)

    def step(self, gates: Tensor, h: tuple[Tensor, Tensor], **structure: Any) -> tuple[Tensor, Tensor]:
        state, c = h
        V = self._peepholes(c)
        i, f, g, o = (gates + self.hidden(state, **structure)).chunk(4, self.channels(gates))
        if V is not None:
            i, f = i + V[0] * c, f + V[1] * c
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        if V is not None:
            o = o + V[2] * c
        return self.projected(o.sigmoid() * c.tanh()), c

    def projected(self, h: Tensor) -> Tensor:
        """The state that is given, and read in the next step; a subclass may project it."""
        return h

    def _peepholes(self, c: Tensor) -> Tensor | None:
        """(3, ...) V, to be broadcast over the batch of c."""
        peephole = self.peephole
        if peephole is None:
            return None
        axes = -1 - self.channels(c)  # after the channels
        if not self.positions:
            return peephole.view(3, -1, *(1,) * axes)
        if c.shape[self.rows(c)] != self.positions:
            got = tuple(c.shape[self.rows(c)])
            reject("x", f"{self.positions} as positions, which the peepholes are for", got, "peepholes=True fits all")
        return peephole

    def extra_repr(self) -> str:
        return "" if self.peephole is None else f"peepholes={self.positions or True}"


def _positions(peepholes: Any, images: bool) -> tuple[int, ...]:
    """The sizes of nodes or grid if each has peepholes of its own; empty for one number per channel."""
    if isinstance(peepholes, bool):
        return ()
    positions = (peepholes,) if isinstance(peepholes, int) else peepholes
    known = isinstance(positions, tuple | list) and all(isinstance(size, int) for size in positions)
    if not known or not positions or (len(positions) > 1 and not images):
        expected = "False, True, or " + ("the shape of the grid" if images else "the number of nodes")
        reject("peepholes", expected, repr(peepholes), "True has one number per channel")
    for size in positions:
        check_count("peepholes", size)
    return tuple(positions)
