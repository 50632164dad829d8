"""Convolution of images, in torch's layout."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .basis import BoundBasis, ImageFunction
from .binding import Binding
from .cache import Witness
from .conv import BasisConv
from .errors import refuse_arguments, reject
from .kernels.grids import Ints
from .layouts import check_form
from .orders import ORDERS
from .plan import Plan
from .program import Call, Evaluation, Program
from .theta.base import param


class GridConv(BasisConv):
    r"""A `BasisConv` that takes and returns images as torch lays them out, for an `nn.Sequential`.

    With `bases.Window` and `theta.Full`, `Kernel`, `Grouped` or `Depthwise` it is `torch.nn.Conv2d` and its like,
    evaluated by the very same kernels; but any basis will do that has as many targets as sources, or says what grid
    they are.

    Args:
        in_channels: P, or -1 to find it in the first call.
        out_channels: Q.
        basis: such as `bases.Window`, `Shifts` or `Group`; one without a shape takes images of any size.
        theta: the kind of parameter; `theta.Full()` by default.
        order: 'auto', or one that is to be taken, see `plan`.
        bias: whether b is there.
        **kwargs: of `BasisConv`.

    Shapes:
        - image: (\*, P, \*grid), leading batch dimensions, or none; its memory format (`torch.channels_last`) is kept
        - returned: (\*, Q, \*targets)

    Raises:
        ValueError: an image of another size or number of channels.

    >>> import torch
    >>> from pyg_basisconv import GridConv, bases
    >>> layer = GridConv(3, 8, bases.Window(None, (3, 3), stride=2, padding=1))
    >>> layer(torch.randn(5, 3, 32, 28)).shape
    torch.Size([5, 8, 16, 14])
    """

    def forward(self, image: Tensor, *, return_attention: bool = False, **kwargs: Any) -> Any:  # type: ignore[override]
        """Applies the layer; further arguments are those of `BasisConv`, such as `mask` for attention."""
        refuse_arguments(
            {name: value for name, value in kwargs.items() if name not in Call._fields}, "GridConv.forward"
        )
        return self._run(Call(image, image=True, **kwargs), return_attention)

    def _bind(self, call: Call, observed: bool = False, seen: Witness | None = None) -> Binding:
        if not call.image:
            return super()._bind(call, observed, seen)
        flat, grid = self._flat(call)
        bound = super()._bind(flat, observed, seen)
        shape = bound.family.source_grid
        if shape not in (None, grid):
            reject("image", f"a grid {shape}, as the bound basis", grid, "bind the basis to the grid of the image")
        return bound

    def _evaluation(self, call: Call, bound: Binding, chosen: Plan, observed: bool) -> Evaluation:
        if not call.image:
            return super()._evaluation(call, bound, chosen, observed)
        function, family = self._image_function(call, bound, chosen), bound.family
        targets = family.target_grid
        if function is not None:
            program = partial(_run_on_image, function, family.constant_weights, targets)
            given = partial(_run_bound_on_image, chosen.order)  # a program does not keep a family that each call has
            return Evaluation(partial(program, self, call), given if bound.graph is None else program)
        of_rows = super()._evaluation(call, bound, chosen, observed)
        as_image = partial(self._as_image, image=call.x, targets=targets, N=family.N, order=chosen.order)
        program = partial(_run_on_rows, of_rows.program, targets, family.N, chosen.order)
        return Evaluation(lambda: as_image(of_rows.result()), program)

    def _image_function(self, call: Call, bound: Binding, chosen: Plan) -> ImageFunction | None:
        """The chosen order, where it takes and gives images."""
        family, image = bound.family.matrices, call.x
        if family.source_grid is None or image.dim() != len(family.source_grid) + 2:
            return None
        return ORDERS[chosen.order].on_images(family, self.theta, bound.inputs.x.shape[-1])

    def _as_image(self, y: Tensor, image: Tensor, targets: Ints | None, N: int, order: str) -> Tensor:
        """(*, N, Q) -> (*, Q, *targets), a view."""
        grid = tuple(image.shape[-self._axes(image) :])
        y = y.transpose(-1, -2).unflatten(-1, targets or (grid if math.prod(grid) == N else (N,)))
        # torch's own kernels keep the memory format; the other orders have channels last.
        return y if ORDERS[order].keeps_format else like(y, image)

    def laid_out(self, y: Tensor, given: dict[str, Any]) -> Tensor:
        if not given.get("image"):
            return super().laid_out(y, given)
        form = last_format(given["x"]) if y.dim() == given["x"].dim() else None
        return y.contiguous(memory_format=torch.contiguous_format if form is None else form)

    def fake_result(self, given: dict[str, Any], unknown: Callable[[], int]) -> Tensor:
        if not given.get("image"):
            return super().fake_result(given, unknown)
        flat, grid = self._flat(Call(given["x"], grid=given.get("grid")))
        y = super().fake_result({**given, "x": flat.x, "grid": grid}, unknown).transpose(-1, -2)  # (*, Q, N)
        targets = given.get("onto") or self.basis.target_shape(grid)
        if targets is None or len(targets) != len(grid):
            targets = grid if math.prod(grid) == y.shape[-1] else (y.shape[-1],)
        return self.laid_out(y.unflatten(-1, targets), given)

    def _axes(self, image: Tensor) -> int:
        """How many axes the grid has."""
        axes = self.basis.axes
        return max(1, image.dim() - 2) if axes is None else axes

    def plan(self, image: Tensor, **kwargs: Any) -> Plan:  # type: ignore[override]
        """What each order would cost for a call with its gradients, and which one is taken; called as the layer is."""
        return super().plan(image, image=True, **kwargs)

    def _flat(self, call: Call) -> tuple[Call, tuple[int, ...]]:
        """The call on the rows of its image, which is checked; and the grid."""
        image = call.x
        if call.grid is not None:
            reject("grid", "None beside an image, which says it", call.grid, "leave it out")
        if not isinstance(image, Tensor):
            reject("image", "a tensor (*, P, *grid)", type(image).__name__, "convert it with torch.as_tensor")
        check_form("image", image)
        axes = self._axes(image)
        if image.dim() <= axes:
            reject("image", f"at least {axes + 1} axes, (*, P, *grid)", tuple(image.shape), "add the missing ones")
        channels = image.shape[-axes - 1]
        if self.in_channels not in (-1, channels):
            expected = f"{self.in_channels} channels on axis {-axes - 1}"
            fix = (
                f"correct it, or in_channels; {self.basis} is for a grid of {axes} axes, a plane takes pairs as (3, 3)"
            )
            reject("image", expected, f"{channels}, of {tuple(image.shape)}", fix)
        return _on_rows(call, axes), tuple(image.shape[-axes:])


def _on_rows(call: Call, axes: int) -> Call:
    """The call with (*, M, P), a view, in the place of its image (*, P, *grid)."""
    image = call.x
    grid = None if isinstance(call.edge_index, BoundBasis) else tuple(image.shape[-axes:])
    return call._replace(x=image.flatten(-axes).transpose(-1, -2), grid=grid, image=False)


def _run_on_image(
    function: ImageFunction, constant_weights: Tensor | None, targets: Ints | None, layer: BasisConv, call: Call
) -> Tensor:
    """An order that takes and gives images, and what becomes of constants."""
    y = function(call.x, param(layer, "bias"))
    if constant_weights is not None:
        y = y + layer.constant_part(constant_weights).to(y.dtype).t().unflatten(-1, targets or (-1,))
    return layer.narrowed(y) if torch._C._is_any_autocast_enabled() else y


def _run_bound_on_image(order: str, layer: BasisConv, call: Call) -> Tensor:
    """The same on a bound family, which the call has in the place of its edges."""
    family = layer.basis.accept(call.edge_index)
    function = ORDERS[order].on_images(family.matrices, layer.theta, call.x.shape[1])
    assert function is not None  # it was chosen for a call like this one
    return _run_on_image(function, family.constant_weights, family.target_grid, layer, call)


def _run_on_rows(program: Program, targets: Ints | None, N: int, order: str, layer: GridConv, call: Call) -> Tensor:
    """The program of an order that takes rows, on an image; it may evaluate the call on rows anew."""
    y = program(layer, _on_rows(call, layer._axes(call.x)))
    return layer._as_image(y, call.x, targets, N, order)


def like(y: Tensor, image: Tensor) -> Tensor:
    """A result in the memory format of an image, where that has one."""
    if torch._C._are_functorch_transforms_active():  # under which none can be asked for
        return y
    form = last_format(image) if y.dim() == image.dim() else None
    if form is not None:
        return y.contiguous(memory_format=form)
    return y.contiguous() if image.is_contiguous() else y


def last_format(x: Tensor) -> torch.memory_format | None:
    """The format that has the channels last, where a kernel or images are laid out so and not as contiguous ones."""
    form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if form is None:
        return None
    plain, last = (torch.empty(x.shape, device="meta", memory_format=f) for f in (torch.contiguous_format, form))
    return form if x.stride() == last.stride() != plain.stride() else None
