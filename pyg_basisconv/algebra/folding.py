"""A model with its linear neighbours in one layer each."""

from copy import deepcopy
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import UninitializedParameter
from torch.utils._pytree import tree_leaves
from torch_geometric.nn import BatchNorm

from ..conv import BasisConv
from ..convert.registry import Left, convertible, rebuild
from ..convert.rgcn import Related
from ..errors import reject
from ..grid import GridConv
from ..theta import Depthwise, Theta
from .chains import Site, alike, chains, value, writes_between
from .channels import LINEARS, NORMS, Channels, multiplying, normalising
from .compose import LAYERS, Comparison
from .following import Example, hooked
from .merging import after, before, pointwise, together
from .passed import Passed
from .plain import plain

_LAYERS = (*LAYERS, Related)


def fold(model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    r"""A copy of a model, for inference, in which neighbours that are linear are one layer each: in exact arithmetic
    the same function.

    Two layers are neighbours where one alone reads what the other gives, with nothing between them but dropout. They
    are found by following the model's own forward with torch.fx, and folded:

    - batch norm after a convolution or a linear layer: always;
    - a linear layer or a 1x1 convolution before or after another layer, or batch norm before one: where this adds no
      multiply-adds for an entry;
    - two convolutions on the same graph or grid (Prop. 3, see `compose`): where the plan says that it pays for the
      example call, and never without one.

    Convolutions are `BasisConv` and `GridConv`, and what `convert` makes one of these. Layers that are called twice,
    that have hooks, or whose basis is computed from content stay as they are. In the copy the folded layer stands in
    the place of one of the two, and the other gives its argument back; all else is the model's own. It is a layer of
    torch where those were and there is one, and else a `BasisConv` or `GridConv`.

    Args:
        model: in eval mode; it stays as it is.
        *args: of an example call. With one, a forward may depend on shapes and values, and is taken to do always what
            it does then; without one, arguments that have defaults are taken to be left out.
        **kwargs: of the same.

    Returns:
        The copy. Its attribute `folded` says in a line each what was folded; `left` has, by name, the reasons for
        neighbours that were not, and for parts of the model that torch.fx cannot follow into.

    Raises:
        ValueError: a model in training mode, or one that torch.fx cannot follow, with the reason; a copy that does not
            give in the example call what the model gives.

    >>> cnn = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()
    >>> folded = fold(cnn)
    >>> folded.folded
    ['0, 1 -> Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))']
    >>> image = torch.randn(2, 3, 16, 16)
    >>> torch.testing.assert_close(folded(image), cnn(image))
    """
    if not isinstance(model, nn.Module):
        reject("model", "a model", type(model).__name__, "pass an nn.Module")
    _check_eval(model)
    _check_names(model)
    example = Example(args, kwargs) if args or kwargs else None
    found, opaque = chains(model, example)
    folder = _Folder(dict(model.named_modules()), example is not None)
    copies: dict[int, Any] = {}
    lines = []
    with torch.no_grad():
        for chain in found:
            for step in folder.folded(chain):
                if step.passed:
                    layer = step.made()
                    copies[id(step.site.module)] = layer
                    copies.update((id(folder.parts[name]), part) for name, part in step.passed.items())
                    lines.append(f"{', '.join(step.names)} -> {layer}")
    folded: Any = deepcopy(model, copies)
    folded.folded, folded.left = lines, folder.left | opaque
    folded.eval()
    if lines and example is not None:
        _check_same(model, folded, example)
    return folded  # type: ignore[no-any-return]


def _check_same(model: nn.Module, folded: nn.Module, example: Example) -> None:
    """Whether the copy gives what the model gives: a forward may ask what torch.fx does not see it ask."""
    found = []
    for one in (model, folded):
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(0)
            found.append(tree_leaves(deepcopy(one)(*example.own.args, **example.own.kwargs)))
    for expected, got in zip(*found, strict=True):
        if not isinstance(expected, Tensor) or not expected.is_floating_point() or expected.layout != torch.strided:
            continue
        apart, size = float((got - expected).double().norm()), float(expected.double().norm())
        if apart > torch.finfo(expected.dtype).eps ** 0.5 * 10 * size:
            fix = "fold those of its parts that have no such forward"
            reject("model", "a forward that does the same with folded layers", f"a difference of {apart:.3g}", fix)


def _check_eval(model: nn.Module) -> None:
    fix = "call model.eval() before: what is folded is for inference"
    if model.training:
        reject("model", "a model in eval mode", "one in training mode", fix)
    for name, part in model.named_modules():
        if isinstance(part, _BatchNorm) and part.training:
            reject("model", "a model in eval mode", f"a batch norm in training mode, {name}", fix)


def _check_names(model: nn.Module) -> None:
    """Whether the attributes of the copy that say what was folded are free, or a fold before has made them."""
    own = vars(model)
    if isinstance(own.get("folded"), list) and isinstance(own.get("left"), dict):
        return
    taken = [name for name in ("folded", "left") if hasattr(model, name)]
    if taken:
        fix = "rename it, or fold the parts of the model"
        reject("model", "one without an attribute of the name folded or left", taken, fix)


@dataclass
class _Step:
    """A layer, or what several of them became.

    names: theirs; site: where the layer stands; x: what it reads; layer: itself, None for a batch norm; images: whether
    it reads images, None where a batch norm may; channels: where it has no structure; axes: those of the images that a
    batch norm takes; passed: what stands where the others were; gain: how many times faster it is, says the plan.
    """

    names: list[str]
    site: Site
    x: Any
    layer: BasisConv | None
    images: bool | None
    channels: Channels | None = None
    axes: int | None = None
    passed: dict[str, Passed] = field(default_factory=dict)
    gain: float = 1.0

    def made(self) -> nn.Module | None:
        """What is to stand there: one of torch's layers where they stood, if there is one."""
        if self.layer is None or isinstance(self.site.module, BasisConv) or self.site.others:
            return self.layer
        return plain(self.layer)


class _Folder:
    """Folds what is in a chain of neighbours.

    Args:
        parts: of the model, by name.
        known: whether there is an example call.
    """

    def __init__(self, parts: dict[str, nn.Module], known: bool) -> None:
        self.parts, self.known = parts, known
        self.left: dict[str, str] = {}

    def folded(self, chain: list[Site]) -> list[_Step]:
        """The linear layers of a chain, folded as far as it pays."""
        found = [_step(site) for site in chain]
        runs = [[step for step in run if step] for _, run in groupby(found, lambda step: step is None)]
        return [step for run in runs for step in self._run(run)]

    def _run(self, steps: list[_Step]) -> list[_Step]:
        """Neighbours, folded: those of which one has no structure first, and then the two that gain most."""
        tried: dict[str, _Step | Left] = {}
        while True:
            for structured in (False, True):
                found = {
                    i: step
                    for i, (a, b) in enumerate(pairwise(steps))
                    if (a.channels is None and b.channels is None) is structured
                    and isinstance(step := self._tried(tried, a, b), _Step)
                }
                if found:
                    break
            else:
                self.left.update((pair, str(tried[pair])) for pair in map(_pair, steps, steps[1:]))
                return steps
            i = max(found, key=lambda i: found[i].gain)
            steps[i : i + 2] = [found[i]]

    def _tried(self, tried: dict[str, _Step | Left], a: _Step, b: _Step) -> _Step | Left:
        pair = _pair(a, b)
        if pair not in tried:
            try:
                tried[pair] = self._merged(a, b)
            except Left as reason:
                tried[pair] = reason
        return tried[pair]

    def _merged(self, a: _Step, b: _Step) -> _Step:
        """Two steps in one, where this can be and pays."""
        images, axes = self._images(a, b)
        like = self._like(a, b)
        first, second = (_layer(step, images) for step in (a, b))
        _check_widths(first.theta, second.theta)
        behind = b.channels is not None and a.layer is not None
        at, other = (a, b) if behind or a.channels is None else (b, a)
        if not behind and writes_between(a.site.node, b.site.node, self.parts):
            raise Left("something is changed in place between them")
        if b.channels is not None and behind:
            layer = after(first, b.channels)
        elif a.channels is not None:
            layer = before(a.channels, second)
        else:
            self._check_same(a, b)
            layer = together(first, second, first)
        layer = layer.to(like.device, like.dtype).eval()
        gain = 1.0
        if a.channels is None and b.channels is None:
            gain = _compared(a, b, layer)
        else:
            _check_pays(first, second, layer, a.channels, b.channels)
        for parameter in layer.parameters():
            parameter.requires_grad_(self._learns(a, b))
        passed = a.passed | b.passed | {other.site.name: Passed(other.site.module, axes)}
        channels = None if a.channels is None or b.channels is None else _channels(layer)
        return _Step(a.names + b.names, at.site, a.x, layer, images, channels, None, passed, gain)

    def _images(self, a: _Step, b: _Step) -> tuple[bool, int | None]:
        """Whether both read images; and how many axes these have, where one is a batch norm."""
        kinds = {step.images for step in (a, b)} - {None}
        if len(kinds) != 1:
            raise Left("one reads images, and the other does not" if kinds else "both are batch norms")
        images = True in kinds
        norm, other = (a, b) if a.layer is None else (b, a)
        if norm.axes is None or other.layer is None:
            return images, None
        axes = norm.axes if images else 2
        own = other.layer.basis.axes if norm is a else other.layer.basis.target_axes
        fits = own in (None, axes - 2) if images else norm.axes == 3
        if not fits or (self.known and value(b.x).dim() != axes):
            raise Left("the channels of the batch norm are on another axis")
        return images, axes

    def _tensors(self, a: _Step, b: _Step) -> list[torch.Tensor]:
        return [t for name in a.names + b.names for t in self.parts[name].state_dict(keep_vars=True).values()]

    def _like(self, a: _Step, b: _Step) -> torch.Tensor:
        """A tensor of the dtype and device of both."""
        found = [t for t in self._tensors(a, b) if t.is_floating_point()]
        if len({(t.dtype, t.device) for t in found}) > 1:
            raise Left("they differ in dtype or device")
        return found[0] if found else torch.empty(0)

    def _learns(self, a: _Step, b: _Step) -> bool:
        return any(t.requires_grad for t in self._tensors(a, b))

    def _check_same(self, a: _Step, b: _Step) -> None:
        if not alike(a.site.others, b.site.others):
            raise Left("their graphs, or other arguments, are not the same")
        if not self.known:
            raise Left("only an example call can say whether it pays")
        if not isinstance(a.x, torch.fx.Node) or (a.images and a.site.others):
            raise Left("what they read is not one tensor")


def _compared(a: _Step, b: _Step, layer: BasisConv) -> float:
    """How many times faster than two layers is one that does the same, where the plan says that this pays."""
    others = {name: value(given) for name, given in a.site.others.items()}
    x, between = value(a.x), value(b.x)
    one, then = cast(BasisConv, a.layer), cast(BasisConv, b.layer)
    plans = one.plan(x, **others), then.plan(between, **others)
    comparison = Comparison(plans, layer.plan(x, **others))
    if not comparison.pays:
        raise Left(f"it would be {comparison.gain:.2f} times as fast, says the plan")
    return comparison.gain


def _pair(a: _Step, b: _Step) -> str:
    return f"{', '.join(a.names)} and {', '.join(b.names)}"


def _step(site: Site) -> _Step | None:
    """A layer that is linear, but for its bias, and known beforehand."""
    module = site.module
    if any(map(hooked, module.modules())):
        return None
    norm: Any = module.module if type(module) is BatchNorm else module
    if type(norm) in NORMS:
        known = normalising(norm)
        return None if known is None else _Step([site.name], site, site.x, None, None, known, NORMS[type(norm)])
    layer = _known(module)
    if layer is None:
        return None
    channels = None if site.others else _channels(layer)
    return _Step([site.name], site, site.x, layer, isinstance(layer, GridConv), channels)


def _known(module: nn.Module) -> BasisConv | None:
    """A layer as a BasisConv, if it is one that can be folded."""
    layer: Any = module
    if type(layer) in LINEARS:
        if isinstance(layer.weight, UninitializedParameter):
            return None
        return multiplying(layer).layer(images=False)
    if convertible(layer):
        try:
            layer = rebuild(layer, set())
        except Left:
            return None
    if type(layer) not in _LAYERS:
        return None
    return None if layer.is_lazy or layer.basis.reads_content or layer.explain else layer


def _channels(layer: BasisConv) -> Channels | None:
    """What a layer does, where it has no structure."""
    theta = layer.theta
    if not pointwise(layer.basis) or theta.lifts or theta.P < 0:
        return None
    bias = None if layer.bias is None else layer.bias.double()
    if isinstance(theta, Depthwise):
        return Channels(theta.diagonals()[0].double(), bias)
    return Channels(theta.dense()[0].double(), bias)


def _layer(step: _Step, images: bool) -> BasisConv:
    if step.layer is not None:
        return step.layer
    assert step.channels is not None
    return step.channels.layer(images)


def _check_widths(first: Theta, second: Theta) -> None:
    given, taken = first.outputs(first.P), second.P
    if -1 not in (first.P, taken) and given != taken:
        raise Left(f"{given} channels are given, and {taken} read")


def _check_pays(first: BasisConv, second: BasisConv, layer: BasisConv, a: Channels | None, b: Channels | None) -> None:
    """Whether no multiply-adds are added for an entry: by Theta, and by the width at which the basis is applied."""
    if b is not None and b.matrix.dim() == 1:
        return
    stacked, folded = _numbers(first.theta) + _numbers(second.theta), _numbers(layer.theta)
    if folded > stacked:
        raise Left(f"{folded} multiply-adds for an entry instead of {stacked}")
    structure = second if b is None else first
    width, wider = (min(one.theta.P, one.theta.Q) for one in (structure, layer))
    if (a is None or b is None) and wider > width:
        raise Left("the basis would be applied to more channels")


def _numbers(theta: Theta) -> int:
    constants = 0 if theta.constant_values is None else theta.constant_values.numel()
    return sum(p.numel() for p in theta.parameters()) - constants
