"""The composition of two layers as one."""

from itertools import product
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from ..bases import Composition
from ..bases.composition import Constants
from ..basis import Basis
from ..conv import BasisConv
from ..convert import convert, grids
from ..convert.layers import Converted, Signature
from ..costs import MACHINES, Problem, Tally
from ..errors import check_flags, reject
from ..grid import GridConv
from ..plan import Plan
from ..theta import Chain, Pass, Theta
from .affine import LINEARS, NORMS, of_linear, of_norm, unwrapped
from .products import Joined, Rows, join, products_of
from .tracing import hooked

# Subclasses may compute something else.
LAYERS = (BasisConv, GridConv, Converted, grids.ConvertedGrid, grids.ConvertedTransposed)


def compose(first: nn.Module, second: nn.Module, same_graph: bool = True) -> BasisConv:
    r"""One layer that does what two do: second(first(x)) in exact arithmetic, and its gradients.

    Its basis is that of all products :math:`A'_k A''_l`, its parameter :math:`\Theta'_k \Theta''_l` (J.-M. Andreoli,
    arXiv:1905.01289, Prop. 3). It shares its parameters with the two layers, so that training one trains the others,
    too. (Parameters that are replaced, by `load_state_dict(assign=True)`, say, are no longer shared.) The first layer's
    bias b' becomes :math:`\sum_l (A''^\top_l 1) \, b' \Theta''_l`, which is added at each target. Where that is exact,
    two windows become a window, polynomials of one operator a polynomial, walks longer walks, and an identity
    disappears.

    The layer is called as the first one is, with one graph or grid, and its weights, for both. `compare` tells whether
    it is faster.

    Args:
        first: a `BasisConv` or `GridConv` over a basis that reads no content; or a layer that `convert` turns into one,
            an `nn.Linear`, or a batch norm in eval mode, of which a copy is composed.
        second: the same; it is applied to the result of the first.
        same_graph: False if each layer has a graph of its own. Then call `composed(x, first_bound @ second_bound)`, of
            `first.basis` and `second.basis`, bound.

    Returns:
        A `GridConv` if both are, else a `BasisConv`.

    Raises:
        ValueError: for layers that do not fit, attention and activations.

    >>> import torch
    >>> from pyg_basisconv import BasisConv, bases
    >>> first, second = BasisConv(8, 16, bases.Powers(3)), BasisConv(16, 4, bases.Powers(2))
    >>> both = compose(first, second)
    >>> both.basis
    Composition(Powers(K=3, operator=Adjacency(norm='sym')), Powers(K=2, operator=Adjacency(norm='sym')), ...)
    >>> x, edge_index = torch.randn(5, 8), torch.randint(5, (2, 12))
    >>> torch.testing.assert_close(both(x, edge_index), second(first(x, edge_index), edge_index))
    """
    check_flags(same_graph=same_graph)
    one, then = linear_layers(first, second)
    if same_graph and one.basis.needs_edges and then.basis.counts_batch:
        fix = "pass same_graph=False, and bind each basis"
        reject("second", "as many targets as the first layer, on one graph", then.basis, fix)
    constants = Constants(one.bias is not None, one.theta.lifts, then.theta.lifts)
    any_constants = any(constants) or one.theta.has_constants or then.theta.has_constants

    def joined(first: Basis, second: Basis) -> Joined:
        found = join(first, second) if same_graph else Joined(products_of(first) @ products_of(second))
        return found._replace(basis=Composition(first, second, constants, found.basis)) if any_constants else found

    both = joined(one.basis, then.basis)
    theta = _chained(one, then, both.mixtures)
    about = theta.P, theta.Q, both.basis, theta
    flow = (one if one.basis.needs_edges else then).flow
    call, readings = _common_call(one, then)
    if call is None:
        kind = GridConv if isinstance(one, GridConv) else BasisConv
        layer = kind(*about, bias=False, flow=flow)
    else:
        read = {name: joined(*bases) for name, bases in readings.items()}
        if any(other.mixtures != both.mixtures for other in read.values()):
            reject("second", "a basis that joins alike for graphs in all layouts", then.basis, "use BasisConvs")
        others = {name: other.basis for name, other in read.items()}
        layer = Converted(call, *about, bias=False, flow=flow, others=others)
    layer.bias = then.bias
    layer.takes_pairs = not same_graph
    layer.takes_sources = one.takes_sources and not one.basis.reads_target
    layer.training = then.training  # .train() would set the mode of the two layers as well
    return layer


class Comparison(NamedTuple):
    """The estimated costs of two layers and of the one that replaces them.

    stacked: the plans of the two.
    composed: the plan of the one.
    constants: its seconds for products of parameters, which are computed in each call, and for biases.

    >>> import torch
    >>> from pyg_basisconv import BasisConv, bases
    >>> one, two = BasisConv(16, 2, bases.Powers(3)), BasisConv(2, 512, bases.Diffusion(3))
    >>> found = compare(one, two, torch.randn(500, 16), torch.randint(500, (2, 4000)))
    >>> found.pays, len(found.stacked)
    (False, 2)
    """

    stacked: tuple[Plan, Plan]
    composed: Plan
    constants: float = 0.0

    @property
    def gain(self) -> float:
        """How many times faster the one layer is."""
        before = sum(plan.chosen.seconds for plan in self.stacked)
        return before / max(self.composed.chosen.seconds + self.constants, 1e-9)

    @property
    def pays(self) -> bool:
        """Whether composing is worth while, with a margin for what a plan does not know."""
        return self.gain > MARGIN

    def __str__(self) -> str:
        lines = [f"{name}\n{plan}" for name, plan in zip(("first", "second"), self.stacked, strict=True)]
        verdict = "composed, it pays" if self.pays else "composed, it does not pay"
        return "\n".join([*lines, f"{verdict}: {self.gain:.2f} times as fast\n{self.composed}"])


MARGIN = 1.3  # with a larger gain, every measured composition was faster, see benchmarks.composed


def compare(first: nn.Module, second: nn.Module, *args: Any, **kwargs: Any) -> Comparison:
    """What `compose` would gain in a call, by the plans of both layers and of the composed one.

    Args:
        first: as in `compose`.
        second: the same.
        *args: of a call of the first and of the composed layer; the second is called with the same, but for x.
        **kwargs: the same.

    >>> import torch
    >>> from pyg_basisconv import BasisConv, bases
    >>> wide, narrow = BasisConv(16, 512, bases.Adjacency('sym')), BasisConv(512, 16, bases.Adjacency('sym'))
    >>> compare(wide, narrow, torch.randn(1000, 16), torch.randint(1000, (2, 8000))).pays
    True
    """
    one, then = linear_layers(first, second)
    both = compose(one, then)
    with torch.no_grad():
        between = one(*args, **kwargs)
    name = "image" if isinstance(one, GridConv) else "x"
    x = args[0] if args else kwargs[name]
    rest = {key: value for key, value in kwargs.items() if key != name}
    given = [*one.parameters(), x[0] if isinstance(x, tuple | list) else x]
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in given)
    plans = one.plan(*args, **kwargs), then.plan(between.requires_grad_(learns), *args[1:], **rest)
    whole = both.plan(*args, **kwargs)
    return Comparison(plans, whole, _extra_seconds(both, whole.problem, learns))


def _extra_seconds(both: BasisConv, p: Problem, learns: bool) -> float:
    """Seconds for products of two parameters, and for constants."""
    machine, theta = MACHINES[p.device], both.theta
    tally, steps = Tally(machine, p.itemsize), 3 if learns else 1
    if isinstance(theta, Chain):
        pairs = theta.first.K * theta.second.K
        tally.product(theta.first.K * p.P, theta.between, theta.second.K * p.Q, steps)
        if theta.mixing is not None:
            tally.product(p.K, pairs, p.P * p.Q, steps)
        tally.seconds += (steps - 1) * machine.small
    if isinstance(both.basis, Composition):
        tally.product(p.N, 1, p.Q, steps)
        tally.kernel(0, 3 * p.B * p.N * p.Q, 1.0)
    return tally.seconds


def linear_layers(first: nn.Module, second: nn.Module) -> tuple[BasisConv, BasisConv]:
    """Both as layers that can be composed; rejects layers that cannot be, or do not fit."""
    made = _layer(first), _layer(second)
    of_images = any(NORMS.get(type(module), 0) > 3 for module in (first, second))
    images = of_images or any(isinstance(layer, GridConv) for layer in made)
    one, then = linear_layer(first, "first", images, made[0]), linear_layer(second, "second", images, made[1])
    if isinstance(one, GridConv) != isinstance(then, GridConv):
        kinds = type(one).__name__, type(then).__name__
        reject("second", "two layers on images, or two on nodes", kinds, "make both a GridConv, or both a BasisConv")
    given, taken = one.theta.outputs(one.theta.P), then.theta.P
    if -1 not in (given, taken) and given != taken:
        reject("second", f"in_channels = {given}, as many as the first layer gives", taken, "correct one of them")
    if one.basis.needs_edges and then.basis.needs_edges and one.flow != then.flow:
        reject("second", f"flow = {one.flow!r}, as the first layer", then.flow, "turn the edges of one of them round")
    a, b = ({(p.dtype, p.device) for p in layer.parameters()} for layer in (one, then))
    if a and b and a != b:
        reject("second", f"parameters of {_kinds(a)}, as the first layer", _kinds(b), "move one to the other")
    if one.basis.axes is not None and then.basis.axes is not None and one.basis.target_axes != then.basis.axes:
        axes = f"a grid of {one.basis.target_axes} axes, as the first layer gives"
        reject("second", axes, then.basis.axes, "compose layers on the same grid")
    return one, then


def _kinds(found: set[tuple[torch.dtype, torch.device]]) -> str:
    return ", ".join(f"{dtype} on {device}" for dtype, device in found)


def _layer(module: nn.Module) -> nn.Module:
    """A layer, converted if need be."""
    if isinstance(module, BasisConv) or not isinstance(module, nn.Module):
        return module
    return convert(module, {})


def linear_layer(module: nn.Module, name: str, images: bool, made: nn.Module | None = None) -> BasisConv:
    """A layer as a BasisConv; rejects layers that are not affine, or whose basis depends on the features.

    name: of the argument, for errors; images: whether the other layer is one on images; made: the conversion, if there
    is one already.
    """
    fix = "compose layers that have nothing else between them"
    if not isinstance(module, nn.Module):
        reject(name, "a layer", type(module).__name__, "pass a BasisConv")
    layer = _pointwise(module, name, images) or (_layer(module) if made is None else made)
    for part in layer.modules():
        if isinstance(part, BasisConv) and part.basis.reads_content:
            got = f"{type(module).__name__}, whose {part.basis} is computed from it"
            reject(name, "a basis that does not depend on x", got, "fix its matrices first, by bases.Edges")
    if not isinstance(layer, BasisConv) or type(layer) not in LAYERS:
        reject(name, "a layer that is linear in x", f"{type(module).__name__}, which is not, or not known to be", fix)
    if any(map(hooked, module.modules())):
        reject(name, "a layer without hooks", "hooks, which see what happens inside", "remove them before")
    if layer.is_lazy:
        reject(name, "a layer whose width is known", "in_channels = -1", "call it once before")
    if any(getattr(part, "dropout", 0) for part in layer.theta.modules()):
        reject(name, "a parameter that drops nothing", layer.theta, "set its dropout to 0")
    return layer


def _pointwise(module: nn.Module, name: str, images: bool) -> BasisConv | None:
    """A linear layer or batch norm of torch as a layer over the identity; a copy."""
    norm = unwrapped(module)
    if type(norm) in NORMS:
        affine = None if norm.training else of_norm(norm)
        if affine is None:
            got = "training" if norm.training else "track_running_stats=False"
            reject(name, "a batch norm in eval mode, with statistics of its own", got, "call .eval() before")
        like = norm.running_mean
    elif type(module) in LINEARS:
        if images:
            reject(name, "a layer on images", "nn.Linear, which is not", "use nn.Conv2d with a kernel of 1")
        if isinstance(module.weight, UninitializedParameter):
            reject(name, "a layer whose width is known", "in_channels = -1", "call it once before")
        affine, like = of_linear(module), module.weight
    else:
        return None
    return affine.layer(images).to(like.device, like.dtype).train(module.training)


def _common_call(one: BasisConv, then: BasisConv) -> tuple[Signature | None, dict[str, tuple[Basis, Basis]]]:
    """The call of converted layers, and their bases for the graphs that they read differently, by the layout."""
    converted = [layer for layer in (one, then) if isinstance(layer, Converted)]
    if not converted:
        return None, {}
    ways = [layer.call if isinstance(layer, Converted) else None for layer in (one, then) if layer.basis.needs_edges]
    if len({("keep", False) if call is None else (call.values, call.merge) for call in ways}) > 1:
        kinds = [layer.call.layer if isinstance(layer, Converted) else "BasisConv" for layer in (one, then)]
        reject("second", f"a layer that reads sparse graphs as {kinds[0]} does", kinds[1], "compose layers of one kind")
    call = max((layer.call for layer in converted), key=lambda c: len(c.names))
    kinds_of_graph = {name for layer in converted for name in layer.others}
    return call, {name: (_reads(one, name), _reads(then, name)) for name in sorted(kinds_of_graph)}


def _reads(layer: BasisConv, name: str) -> Basis:
    """The basis of a layer for a layout of graphs."""
    return layer.others.get(name, layer.basis) if isinstance(layer, Converted) else layer.basis


def _chained(one: BasisConv, then: BasisConv, mixtures: Rows | None) -> Theta:
    """The parameter of the composition; it is plain where both are."""
    first, second = one.theta, then.theta
    if not type(first) is type(second) is Pass or {first.combine, second.combine} != {"sum"} or one.bias is not None:
        return Chain(first, second, mixtures, one.bias)
    scales = [s * t for s, t in product(first.scales, second.scales)]
    mixed = scales if mixtures is None else [sum(c * s for c, s in zip(row, scales, strict=True)) for row in mixtures]
    return Pass(mixed).build(len(mixed), first.P if second.P < 0 else second.P, second.Q if first.Q < 0 else first.Q)
