"""Folds neighbouring linear layers of a model into one layer."""

from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import UninitializedParameter
from torch.utils._pytree import tree_leaves

from ..conv import BasisConv
from ..convert.registry import Unchanged, convertible, rebuild
from ..convert.rgcn import ConvertedRGCN
from ..errors import reject
from ..grid import GridConv
from ..testing import cloned
from ..theta import Depthwise, Theta
from . import tracing
from .affine import LINEARS, NORMS, AffineMap, by_matrix, of_linear, of_norm, unwrapped
from .compose import LAYERS, Comparison
from .rewrites import after, before, plain, pointwise, together
from .tracing import Absorbed, LayerCall, Trace


def fold(model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    r"""A copy of a model, for inference, in which neighbouring linear layers are folded into one: in exact arithmetic
    the same function.

    Two layers are neighbours where only the second reads the result of the first, with nothing but dropout between
    them. They are found by tracing the model's forward with torch.fx, and folded:

    - batch norm after a convolution or a linear layer: always;
    - a linear layer or a 1x1 convolution before or after another layer, or batch norm before one: where this adds no
      multiply-adds per entry;
    - two convolutions on the same graph or grid (Prop. 3, see `compose`): where the plan estimates that it pays for the
      example call, and never without one.

    Convolutions are `BasisConv`, `GridConv`, and the layers that `convert` turns into one of these. Layers that are
    called twice, that have hooks, or whose basis is computed from content stay as they are. In the copy, the folded
    layer takes the place of one of the two, and the other returns its argument; everything else is a copy of the
    model's own. Layers of torch become a layer of torch where there is one, others a `BasisConv` or `GridConv`.

    Args:
        model: in eval mode; it stays as it is.
        *args: of an example call. The plan decides for this call, in which the copy is then compared with the model.
            Without one, required arguments are taken to be tensors, and others to be left out.
        **kwargs: of the same.

    Returns:
        The copy. Its attribute `folded` has a line for each folded layer; `left` has, by name, the reasons for
        neighbours that were not folded, and for parts of the model that torch.fx cannot trace.

    Raises:
        ValueError: if the model is in training mode, if torch.fx cannot trace it (because values or shapes decide what
            it does, say), or if the copy's result in the example call differs from the model's.

    >>> cnn = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()
    >>> folded = fold(cnn)
    >>> folded.folded
    ['0, 1 -> Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))']
    >>> image = torch.randn(2, 3, 16, 16)
    >>> torch.testing.assert_close(folded(image), cnn(image))
    """
    _check_model(model)
    traced = Trace(torch.fx.Graph(), {}) if tracing.is_layer(model) else tracing.trace(model, args, kwargs)
    folder = _Folder(traced, bool(args or kwargs))
    with torch.no_grad():
        steps = [step for step in folder.steps() if step.absorbed]

    def calls_change(some: list[_Step]) -> bool:
        return str(tracing.trace(_with(model, traced, some), args, kwargs).graph) != str(traced.graph)

    asked = [step for step in steps if calls_change([step])] if steps and calls_change(steps) else []
    steps = [step for step in steps if step not in asked]
    folded = _with(model, traced, steps)
    if steps and (args or kwargs):
        _check_same(model, folded, args, kwargs)
    folded.folded = [f"{', '.join(step.names)} -> {step.made}" for step in steps]
    reasons = {", ".join(step.names): "the model asks what its layers are" for step in asked}
    folded.left = folder.left | traced.opaque | reasons
    return folded  # type: ignore[no-any-return]


def _with(model: nn.Module, traced: Trace, steps: list["_Step"]) -> Any:
    """A copy of a model in which steps take the place of their layers."""
    made = {id(step.call.module): step.made for step in steps}
    absorbed = {id(traced.parts[name]): gone for step in steps for name, gone in step.absorbed.items()}
    return tracing.copied(model, {**made, **absorbed}).eval()


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        reject("model", "a model", type(model).__name__, "pass an nn.Module")
    fix = "call model.eval() before: what is folded is for inference"
    if model.training:
        reject("model", "a model in eval mode", "one in training mode", fix)
    for name, part in model.named_modules():
        if isinstance(part, _BatchNorm) and part.training:
            reject("model", "a model in eval mode", f"a batch norm in training mode, {name}", fix)
    taken = [name for name in ("folded", "left") if hasattr(model, name)]
    if taken and not (isinstance(vars(model).get("folded"), list) and isinstance(vars(model).get("left"), dict)):
        fix = "rename it, or fold the parts of the model"
        reject("model", "one without an attribute of the name folded or left", taken, fix)


def _check_same(model: nn.Module, folded: nn.Module, args: Any, kwargs: Any) -> None:
    """Checks that the copy gives the same results as the model in the example call."""
    found = []
    for one in (model, folded):
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(0)
            given, named = cloned((args, kwargs))
            found.append(tree_leaves(tracing.copied(one)(*given, **named)))
    for a, b in zip(*found, strict=True):
        if isinstance(a, Tensor) and a.is_floating_point() and a.layout == torch.strided:
            apart, size = float((b - a).double().norm()), float(a.double().norm())
            if apart > torch.finfo(a.dtype).eps ** 0.5 * 10 * size:
                fix = "fold those of its parts that have no such forward"
                reject("model", "a forward that does the same with folded layers", f"a difference of {apart:.3g}", fix)


@dataclass(eq=False)
class _Step:
    """A layer of the model, or several that are folded.

    names: of the layers in the model.
    call: of the layer whose place it takes.
    x: what it reads.
    layer: as a BasisConv; None for a batch norm.
    affine: the same as an affine map of each entry, if it is one.
    absorbed: what takes the places of the other layers.
    gain: how many times faster it is, as the plan estimates it.
    """

    names: list[str]
    call: LayerCall
    x: Any
    layer: BasisConv | None
    affine: AffineMap | None = None
    absorbed: dict[str, Absorbed] = field(default_factory=dict)
    gain: float = 1.0

    @property
    def images(self) -> bool:
        return isinstance(self.layer, GridConv)

    def on(self, images: bool) -> BasisConv:
        """As a layer on images, or on nodes."""
        return self.layer or cast(AffineMap, self.affine).layer(images)

    @cached_property
    def made(self) -> nn.Module | None:
        """The module that takes the place: a layer of torch in the place of one, if there is one."""
        if self.layer is None or isinstance(self.call.module, BasisConv) or self.call.others:
            return self.layer
        return plain(self.layer)


class _Folder:
    """Folds the neighbours of a traced model; `known` says whether there is an example call."""

    def __init__(self, traced: Trace, known: bool) -> None:
        self.traced, self.parts, self.known = traced, traced.parts, known
        self.left: dict[str, str] = {}

    def steps(self) -> list[_Step]:
        """The linear layers, folded where that pays."""
        runs: list[list[_Step]] = []
        ends: dict[Any, list[_Step]] = {}  # the run that ends at a call
        for call in tracing.calls(self.traced):
            if (step := _step(call)) is not None:
                run = ends.get(call.source, [])
                if not run:
                    runs.append(run)
                run.append(step)
                ends[call.node] = run
        return [step for run in runs for step in self._run(run)]

    def _run(self, steps: list[_Step]) -> list[_Step]:
        """Folds neighbours: pairs with an affine map first, then the pair with the largest gain."""

        @cache
        def attempt(a: _Step, b: _Step) -> _Step | Unchanged:
            try:
                return self._merged(a, b)
            except Unchanged as reason:
                return reason

        while True:
            made = [attempt(a, b) for a, b in pairwise(steps)]
            found = {i: step for i, step in enumerate(made) if isinstance(step, _Step)}
            if not found:
                names = [", ".join(step.names) for step in steps]
                self.left |= {f"{a} and {b}": str(why) for (a, b), why in zip(pairwise(names), made, strict=True)}
                return steps
            i = max(found, key=lambda i: found[i].gain)
            steps[i : i + 2] = [found[i]]

    def _merged(self, a: _Step, b: _Step) -> _Step:
        """Two steps as one; raises Unchanged where that is not possible or does not pay."""
        axes = self._axes(a, b)
        dtype, device = self._numbers(a, b)
        images = a.images or b.images
        first, second = a.on(images), b.on(images)
        given = first.theta.outputs(first.theta.P)
        if -1 not in (first.theta.P, second.theta.P) and given != second.theta.P:
            raise Unchanged(f"{given} channels are given, and {second.theta.P} read")
        behind = b.affine is not None and a.layer is not None
        at, other = (a, b) if behind or a.affine is None else (b, a)
        if not behind and tracing.writes_between(a.call.node, b.call.node, self.parts):
            raise Unchanged("something is changed in place between them")
        if b.affine is not None and behind:
            layer = after(first, b.affine)
        elif a.affine is not None:
            layer = before(a.affine, second)
        else:
            self._check_call(a, b)
            layer = together(first, second, first)
        layer = layer.to(device, dtype).eval()
        gain = float("inf")  # affine maps come first
        if a.affine is None and b.affine is None:
            gain = _gain(a, b, layer)
        else:
            _check_pays(first, second, layer, a.affine, b.affine)
        layer.requires_grad_(any(t.requires_grad for t in self._tensors(a, b)))
        absorbed = a.absorbed | b.absorbed | {other.call.name: Absorbed(other.call.module, axes)}
        affine = None if a.affine is None or b.affine is None else _affine(layer)
        return _Step(a.names + b.names, at.call, a.x, layer, affine, absorbed, gain)

    def _axes(self, a: _Step, b: _Step) -> int | None:
        """The number of axes that the argument of a batch norm has to have, if one of the two is a batch norm."""
        if a.layer is not None and b.layer is not None:
            if a.images != b.images:
                raise Unchanged("one reads images, and the other does not")
            return None
        norm, other = (a, b) if a.layer is None else (b, a)
        if other.layer is None:
            raise Unchanged("both are batch norms")
        axes = NORMS[type(unwrapped(norm.call.module))]
        own = other.layer.basis.axes if norm is a else other.layer.basis.target_axes
        fits = own in (None, axes - 2) if other.images else axes == 3
        axes = axes if other.images else 2
        if not fits or (self.known and tracing.value(b.x).dim() != axes):
            raise Unchanged("the channels of the batch norm are on another axis")
        return axes

    def _tensors(self, a: _Step, b: _Step) -> list[Tensor]:
        return [t for name in a.names + b.names for t in self.parts[name].state_dict(keep_vars=True).values()]

    def _numbers(self, a: _Step, b: _Step) -> tuple[torch.dtype, torch.device]:
        """The dtype and device of both."""
        found = {(t.dtype, t.device) for t in self._tensors(a, b) if t.is_floating_point()}
        if len(found) > 1:
            raise Unchanged("they differ in dtype or device")
        return found.pop() if found else (torch.get_default_dtype(), torch.device("cpu"))

    def _check_call(self, a: _Step, b: _Step) -> None:
        if not tracing.same_argument(a.call.others, b.call.others):
            raise Unchanged("their graphs, or other arguments, are not the same")
        if not self.known:
            raise Unchanged("only an example call can say whether it pays")
        if not isinstance(a.x, torch.fx.Node) or (a.images and a.call.others):
            raise Unchanged("what they read is not one tensor")


def _gain(a: _Step, b: _Step, layer: BasisConv) -> float:
    """How many times faster one layer is than two, as the plan estimates; raises Unchanged where that does not pay."""
    others = {name: tracing.value(given) for name, given in a.call.others.items()}
    x, between = tracing.value(a.x), tracing.value(b.x)
    plans = cast(BasisConv, a.layer).plan(x, **others), cast(BasisConv, b.layer).plan(between, **others)
    comparison = Comparison(plans, layer.plan(x, **others))
    if not comparison.pays:
        raise Unchanged(f"it would be {comparison.gain:.2f} times as fast, says the plan")
    return comparison.gain


def _step(call: LayerCall) -> _Step | None:
    """A layer as a step, if it is affine and does not depend on the features."""
    norm = unwrapped(call.module)
    if any(map(tracing.hooked, call.module.modules())):
        return None
    if type(norm) in NORMS:
        known = of_norm(norm)
        return None if known is None else _Step([call.name], call, call.x, None, known)
    layer = _known(call.module)
    if layer is None:
        return None
    return _Step([call.name], call, call.x, layer, None if call.others else _affine(layer))


def _known(module: Any) -> BasisConv | None:
    """A layer as a BasisConv, if it can be folded."""
    if type(module) in LINEARS:
        lazy = isinstance(module.weight, UninitializedParameter)
        return None if lazy else of_linear(module).layer(images=False)
    if convertible(module):
        try:
            module = rebuild(module, set())
        except Unchanged:
            return None
    if type(module) not in (*LAYERS, ConvertedRGCN) or module.is_lazy or module.basis.reads_content or module.explain:
        return None
    return cast(BasisConv, module)


def _affine(layer: BasisConv) -> AffineMap | None:
    """A layer as an affine map of each entry, if it is one."""
    theta = by_matrix(layer.theta)
    if not pointwise(layer.basis) or theta.lifts or theta.P < 0:
        return None
    matrix = theta.diagonals()[0] if isinstance(theta, Depthwise) else theta.dense()[0]
    return AffineMap(matrix.double(), None if layer.bias is None else layer.bias.double())


def _check_pays(
    first: BasisConv, second: BasisConv, layer: BasisConv, a: AffineMap | None, b: AffineMap | None
) -> None:
    """Checks that folding adds no multiply-adds per entry, neither by Theta nor by the width at which A is applied."""
    if b is not None and b.matrix.dim() == 1:
        return
    stacked, folded = _multiply_adds(first.theta) + _multiply_adds(second.theta), _multiply_adds(layer.theta)
    if folded > stacked:
        raise Unchanged(f"{folded} multiply-adds for an entry instead of {stacked}")
    structure = second if b is None else first
    width, wider = (min(one.theta.P, one.theta.Q) for one in (structure, layer))
    if (a is None or b is None) and wider > width:
        raise Unchanged("the basis would be applied to more channels")


def _multiply_adds(theta: Theta) -> int:
    constants = 0 if theta.constant_values is None else theta.constant_values.numel()
    return sum(p.numel() for p in theta.parameters()) - constants
