"""Convolution of images, in torch's layout."""

import math
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from . import compiled
from .bases.grid import OnImages
from .basis import Basis, BoundBasis
from .content import Inputs
from .conv import BasisConv
from .errors import reject
from .kernels.grids import Ints
from .layouts import check_form
from .plan import Plan
from .portable import faked, settled
from .theta import Theta

_KNOWN = 16


class GridConv(BasisConv):
    r"""A `BasisConv` that takes and returns images as torch lays them out, for an `nn.Sequential`.

    With `bases.Window` and `theta.Full`, `Grouped` or `Depthwise` it is `torch.nn.Conv2d` and its like, evaluated by
    the very same kernels; but any basis will do that has as many targets as sources, or says what grid they are.

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

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        basis: Basis,
        theta: Theta | None = None,
        order: str = "auto",
        bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, basis, theta, order, bias, **kwargs)
        # Of calls that torch's kernel takes, by what they have in common: the family, and its levels.
        self._known: dict[Hashable, tuple[OnImages, Tensor | None]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_known": {}}  # a copy finds its own

    def _replicate_for_data_parallel(self) -> "GridConv":
        replica: GridConv = super()._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
        replica._known = {}  # or the copies of each call would stay
        return replica

    def forward(self, image: Tensor, **kwargs: Any) -> Any:  # type: ignore[override]
        """Applies the layer; further arguments are those of `BasisConv`, such as `mask` for attention."""
        observed = kwargs.pop("return_attention", False)
        if compiled.operates(self, image) and not observed:
            return compiled.call(self, {"image": image, **kwargs})
        return self.evaluate_image(image, observed, **kwargs)

    @torch.compiler.disable
    @settled
    def evaluate_image(self, image: Tensor, observed: bool = False, **kwargs: Any) -> Any:
        """What `forward` does, see `evaluate`."""
        watched = kwargs or observed or not isinstance(image, Tensor) or image.is_nested
        key = None if watched else self._likeness(image)
        known = self._known.get(key)
        if known is not None:
            family, levels = known
            native = family.native(self.theta, image.shape[-len(family.shape) - 1])
            assert native is not None
            assert native.of_image is not None
            return self._carry(native.of_image(image, self.bias), levels, family.grid)
        x, grid = self._flat(image, kwargs)
        asked = None if isinstance(kwargs.get("edge_index"), BoundBasis) else grid
        inputs, bound = self._bind(x, grid=asked, observed=observed, **kwargs)
        if bound.shape not in (None, grid):
            reject(
                "image", f"a grid {bound.shape}, as the bound basis", grid, "bind the basis to the grid of the image"
            )
        y = self._narrowed(self._of_image(image, grid, inputs, bound, key))
        return (y, bound) if observed else y

    def laid_out(self, y: Tensor, given: dict[str, Any]) -> Tensor:
        if "image" not in given:
            return super().laid_out(y, given)
        form = last_format(given["image"]) if y.dim() == given["image"].dim() else None
        return y.contiguous(memory_format=torch.contiguous_format if form is None else form)

    def likeness(self, given: dict[str, Any], unknown: Callable[[], int]) -> Tensor:
        image = given.get("image")
        if image is None:
            return super().likeness(given, unknown)
        x, grid = self._flat(image, given)
        y = super().likeness({**given, "x": x, "grid": grid}, unknown).transpose(-1, -2)  # (*, Q, N)
        targets = given.get("onto") or self.basis.reach(grid)
        if targets is None or len(targets) != len(grid):
            targets = grid if math.prod(grid) == y.shape[-1] else (y.shape[-1],)
        return self.laid_out(y.unflatten(-1, targets), given)

    def _of_image(self, image: Tensor, grid: Ints, inputs: Inputs, bound: BoundBasis, key: Hashable | None) -> Tensor:
        chosen, native = self._choose(inputs.x, bound)
        if chosen.order == "native" and native is not None and native.of_image and image.dim() == len(grid) + 2:
            if key is not None and isinstance(bound, OnImages):
                if len(self._known) >= _KNOWN:
                    self._known.clear()
                self._known[key] = bound, inputs.levels
            return self._carry(native.of_image(image, self.bias), inputs.levels, bound.grid)
        y = self._evaluate(inputs, bound, chosen, native)
        targets = bound.grid or (grid if math.prod(grid) == bound.N else (bound.N,))
        y = self._carry(y.transpose(-1, -2).unflatten(-1, targets), inputs.levels, targets)  # (*, Q, *targets), a view
        # torch's own kernels keep the memory format; the other orders have channels last.
        return y if chosen.order == "native" else like(y, image)

    def _carry(self, y: Tensor, levels: Tensor | None, targets: Ints | None) -> Tensor:
        """The image, and what becomes of the constants of a `bases.Composition`."""
        if levels is None:
            return y
        return y + self.constants(levels).to(y.dtype).t().unflatten(-1, targets or (-1,))

    def _likeness(self, image: Tensor) -> Hashable | None:
        """What calls have in common that are checked, bound and planned alike; None where torch looks into the call."""
        watched = torch._C._are_functorch_transforms_active() or torch._C._is_any_autocast_enabled()
        if watched or torch.compiler.is_compiling() or faked():
            return None
        parameters = (*self.theta.parameters(), self.bias)
        learnt = tuple((p.dtype, p.device, p.requires_grad) for p in parameters if p is not None)
        about = image.shape, image.layout, image.dtype, image.device, image.requires_grad
        return (*about, torch.is_grad_enabled(), self.basis, self.theta, learnt, self.order, self.cached, self._fused)

    @settled
    def plan(self, image: Tensor, **kwargs: Any) -> Plan:  # type: ignore[override]
        """What each order would cost for a call with its gradients, and which one is taken; called as the layer is."""
        x, grid = self._flat(image, kwargs)
        return super().plan(x, grid=grid, **kwargs)

    def _flat(self, image: Tensor, kwargs: dict[str, Any]) -> tuple[Tensor, tuple[int, ...]]:
        """(*, P, *grid) -> (*, M, P), a view; and the grid."""
        if "grid" in kwargs:
            reject("grid", "None beside an image, which says it", kwargs["grid"], "leave it out")
        axes = self.basis.axes
        if not isinstance(image, Tensor):
            reject("image", "a tensor (*, P, *grid)", type(image).__name__, "convert it with torch.as_tensor")
        check_form("image", image)
        if axes is None:
            axes = max(1, image.dim() - 2)
        if image.dim() <= axes:
            reject("image", f"at least {axes + 1} axes, (*, P, *grid)", tuple(image.shape), "add the missing ones")
        channels = image.shape[-axes - 1]
        if self.in_channels not in (-1, channels):
            expected = f"{self.in_channels} channels on axis {-axes - 1}"
            reject("image", expected, f"{channels}, of {tuple(image.shape)}", "correct it, or in_channels")
        return image.flatten(-axes).transpose(-1, -2), tuple(image.shape[-axes:])


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
