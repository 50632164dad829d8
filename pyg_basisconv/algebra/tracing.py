"""Traces a model with torch.fx, to find which layers read which others."""

import operator
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import Any
from weakref import ref

import torch
import torch_geometric.nn
from torch import Tensor, fx, nn
from torch.fx.graph import inplace_methods
from torch.fx.node import map_arg
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_map
from torch_geometric.nn import Aggregation, MessagePassing, Sequential

from ..convert.composite import Composite
from ..convert.layers import Converted
from ..errors import reject
from ..testing import cloned

_CONSTANTS = (type(None), bool, int, float, complex, str, torch.Size, torch.dtype, torch.device, torch.layout)
_POOLS = tuple(getattr(torch_geometric.nn, f"global_{how}_pool") for how in ("add", "max", "mean"))
# The modules that define them.
_LAYERS = ("torch.nn.", *(f"torch_geometric.nn.{name}." for name in ("conv", "dense", "norm")))


class Absorbed(nn.Identity):
    """Takes the place of a layer that is folded into another, and returns its first argument.

    Args:
        layer: the folded layer, whose numbers, such as in_channels, can still be read here.
        axes: the number of axes that the argument has to have; None for any.

    >>> gone = Absorbed(nn.Linear(2, 3))
    >>> gone("x"), gone.out_features
    ('x', 3)
    """

    def __init__(self, layer: nn.Module, axes: int | None = None) -> None:
        super().__init__()
        vars(self).update({name: v for name, v in vars(layer).items() if isinstance(v, int | float) and name[0] != "_"})
        self.first, self.axes = names_of(layer)[0], axes

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        x = args[0] if args else kwargs[self.first]
        if self.axes is not None and x.dim() != self.axes:
            fix = "a batch norm has its channels on the second axis: fold the model with an example call"
            reject(self.first, f"{self.axes} axes, for which a batch norm was folded", tuple(x.shape), fix)
        return x

    def extra_repr(self) -> str:
        return "" if self.axes is None else f"axes={self.axes}"


def names_of(module: nn.Module) -> list[str]:
    """The names of a module's arguments, in order."""
    return list(module.call.names if isinstance(module, Converted) else signature(module.forward).parameters)


def hooked(module: nn.Module) -> bool:
    """Whether a module has hooks, or a forward of its own that replaces its class's."""
    own = vars(module)
    return "forward" in own or any(own[name] for name in own if name.endswith("_hooks") and "state_dict" not in name)


def is_layer(module: nn.Module) -> bool:
    """Whether a module is a leaf of the trace."""
    if isinstance(module, MessagePassing | Aggregation | Absorbed) and not isinstance(module, Composite):
        return True
    return type(module).__module__.startswith(_LAYERS) and not isinstance(module, nn.Sequential)


@dataclass
class Trace:
    """What a model does in a call.

    graph: of torch.fx; `node.meta["value"]` is the node's value in the example call, if there is one.
    parts: the modules of the model by name.
    held: nodes whose result is still referenced after the call, by an attribute, say.
    opaque: the names of parts that cannot be traced, and the reasons.
    """

    graph: fx.Graph
    parts: dict[str, nn.Module]
    held: set[fx.Node] = field(default_factory=set)
    opaque: dict[str, str] = field(default_factory=dict)


def trace(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Trace:
    """Traces a model down to its layers; without an example call, required arguments are taken to be tensors."""
    opaque: dict[str, str] = {}
    known = bool(args or kwargs)
    given = (args, kwargs) if known else ((), dict.fromkeys(_required(model), ...))
    while True:
        tracer, root = _Tracer(given, opaque), copied(model)
        _record_pools(root)
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                with _aggregations_as_modules():
                    graph = tracer.trace(root)
                if known:
                    _Recorder(root, graph=graph).run(*cloned(tracer.given))
            held = {node for proxy, node in tracer.proxies if proxy() is not None}
            return Trace(graph, dict(model.named_modules()), held, opaque)
        except _Opaque as part:
            opaque[part.name] = part.reason
        except Exception as error:
            fix = "fold those of its parts whose calls do not depend on values or shapes, such as model.encoder"
            reject("model", "a model that torch.fx can trace", f"{type(model).__name__}: {_said(error)}", fix)


def copied(model: nn.Module, copies: dict[int, Any] | None = None) -> nn.Module:
    """A deep copy; `copies` has those of some parts, by their id."""
    try:
        return deepcopy(model, copies)
    except Exception as error:
        fix = "such as weights that are computed: torch.nn.utils.remove_weight_norm or prune.remove make them plain"
        reject("model", "one that can be copied by copy.deepcopy", _said(error), fix)


def _required(model: Any) -> list[str]:
    if isinstance(model, Sequential):  # of PyG: its forward takes *args
        return list(model.signature.param_dict)
    required = [p for p in signature(model.forward).parameters.values() if p.default is Parameter.empty]
    return [p.name for p in required if p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)]


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0].rstrip(":. ")


class _Opaque(Exception):
    """A part of a model cannot be traced."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason


class _Proxy(fx.Proxy):
    """A proxy that isinstance takes for the argument or tensor that it stands for, and that records changes in place:
    fx.Proxy would trace x += y as x = x + y.
    """

    __class__ = property(lambda self: self.node.meta.get("class", Tensor))  # type: ignore[assignment]

    def __setattr__(self, name: str, to: Any) -> None:
        fx.Proxy.__setattr__(self, name, to)
        if name not in ("node", "tracer"):
            self.tracer.create_proxy("call_function", setattr, (self, name, to), {})


def _recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda proxy, *others: proxy.tracer.create_proxy("call_function", function, (proxy, *others), {})


for _name in inplace_methods:  # iadd, setitem and so on
    setattr(_Proxy, f"__{_name}__", _recorded(getattr(operator, _name)))


def _record_pools(root: nn.Module) -> None:
    """Wraps the pools that PyG's Sequential keeps as attributes, where torch.fx does not find them."""
    for part in root.modules():
        pools = {name: f for name, f in vars(part).items() if any(f is pool for pool in _POOLS)}
        vars(part).update({name: _recorded(pool) for name, pool in pools.items()})


class _Tracer(fx.Tracer):
    """Traces down to layers and opaque parts."""

    proxy_buffer_attributes = True

    def __init__(self, arguments: tuple[tuple[Any, ...], dict[str, Any]], opaque: dict[str, str]) -> None:
        super().__init__(autowrap_functions=_POOLS)
        self._autowrap_search.append(torch_geometric.nn)  # PyG's own code finds the pools there
        self.arguments, self.opaque = arguments, opaque
        self.given: list[Any] = []  # for the placeholders
        self.proxies: list[tuple[ref[fx.Proxy], fx.Node]] = []

    def proxy(self, node: fx.Node) -> fx.Proxy:
        proxy = _Proxy(node, self)
        self.proxies.append((ref(proxy), node))
        return proxy

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name in self.opaque or is_layer(m) or hooked(m)

    def create_arg(self, a: Any) -> Any:
        return a.node if type(a) is _Proxy else super().create_arg(a)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        args, kwargs = tree_map(self._placeholder, self.arguments)
        return lambda: self.root.forward(*args, **kwargs), []

    def _placeholder(self, given: Any) -> Any:
        """A proxy for an argument; constants, such as None, are kept."""
        if isinstance(given, _CONSTANTS):
            return given
        self.given.append(given)
        proxy = self.create_proxy("placeholder", f"given_{len(self.given)}", (), {})
        proxy.node.meta["class"] = Tensor if given is ... else type(given)
        return proxy

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        try:
            return super().call_module(m, forward, args, kwargs)
        except _Opaque:
            raise
        except Exception as error:
            raise _Opaque(self.path_of_module(m), _said(error)) from error


class _Recorder(fx.Interpreter):
    """Records the value of each node."""

    def run_node(self, n: fx.Node) -> Any:
        n.meta["value"] = super().run_node(n)
        return n.meta["value"]


@contextmanager
def _aggregations_as_modules() -> Iterator[None]:
    """Calls PyG's aggregations as plain modules: their own __call__ reads its arguments, which cannot be traced."""
    own = Aggregation.__call__
    Aggregation.__call__ = lambda module, *args, **kwargs: nn.Module.__call__(module, *args, **kwargs)
    try:
        yield
    finally:
        Aggregation.__call__ = own


@dataclass
class LayerCall:
    """A call of a layer.

    name: of the layer.
    module: the layer.
    node: the call.
    x: its first argument.
    others: all other arguments that are not None.
    source: the call whose result it reads as x, if it alone reads that; modules that return their argument, such as
        dropout in eval mode, may stand between the two.
    """

    name: str
    module: nn.Module
    node: fx.Node
    x: Any
    others: dict[str, Any]
    source: fx.Node | None


def calls(traced: Trace) -> list[LayerCall]:
    """The calls of the layers that are called once."""
    times = _uses(traced)
    nodes = [node for node in traced.graph.nodes if node.op == "call_module"]
    once = [_call(node, traced) for node in nodes if times[id(traced.parts[node.target])] == 1]
    return [call for call in once if call is not None]


def _uses(traced: Trace) -> Counter[int]:
    """How often each module is called, by itself or inside another one, or has an attribute read."""
    times: Counter[int] = Counter()
    for node in traced.graph.nodes:
        if node.op == "call_module":
            times.update(id(part) for part in traced.parts[node.target].modules())
        if node.op == "get_attr":
            path = node.target.split(".")
            times.update(id(traced.parts.get(".".join(path[:i]))) for i in range(1, len(path) + 1))
    return times


def _call(node: fx.Node, traced: Trace) -> LayerCall | None:
    name = str(node.target)
    module = traced.parts[name]
    names = names_of(module)
    given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    if len(node.args) > len(names) or not names or names[0] not in given:
        return None
    x = given.pop(names[0])
    others = {argument: v for argument, v in given.items() if v is not None}
    return LayerCall(name, module, node, x, others, _source(node, x, others, traced))


def _source(reader: fx.Node, x: Any, others: dict[str, Any], traced: Trace) -> fx.Node | None:
    """The node whose result a call reads as x, if nothing else reads it."""
    node: Any = x
    elsewhere = set[fx.Node]()
    map_arg(others, elsewhere.add)
    if node in elsewhere:
        return None
    while isinstance(node, fx.Node) and list(node.users) == [reader] and node not in traced.held:
        if not returns_argument(node, traced.parts):
            return node
        node, reader = node.args[0] if node.args else None, node
    return None


def returns_argument(node: fx.Node, parts: dict[str, nn.Module]) -> bool:
    """Whether a node returns its argument."""
    if node.op == "call_module":
        part: Any = parts[str(node.target)]
        dropout = isinstance(part, _DropoutNd) and not (part.training and part.p)
        return (dropout or type(part) in (nn.Identity, Absorbed)) and not hooked(part)
    if node.op == "call_function" and node.target is F.dropout:
        given = dict(zip(("input", "p", "training"), node.args, strict=False)) | dict(node.kwargs)
        return given.get("training", True) is False or bool(given.get("p") == 0)
    return False


def writes_between(first: fx.Node, last: fx.Node, parts: dict[str, nn.Module]) -> bool:
    """Whether anything is changed in place between two nodes."""
    node = first.next
    while node is not last and (returns_argument(node, parts) or not _writes(node, parts)):
        node = node.next
    return node is not last


def _writes(node: fx.Node, parts: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        part = parts[str(node.target)]
        return not is_layer(part) or any(getattr(inner, "inplace", False) for inner in part.modules())
    name = getattr(node.target, "__name__", str(node.target))
    written = "out" in node.kwargs or node.kwargs.get("inplace") is True
    return name in ("setattr", *inplace_methods) or name.endswith("_") or written


def same_argument(a: Any, b: Any) -> bool:
    """Whether two arguments are the same value, or the same attribute or item of the same value."""
    return _text(a) == _text(b)


def _text(argument: Any) -> str:
    def node_text(node: fx.Node) -> str:
        read = node.op == "call_function" and node.target in (getattr, operator.getitem)
        return f"{node.target} of {_text(node.args)}" if read else f"%{node.name}"

    return repr(map_arg(argument, node_text))


def value(argument: Any) -> Any:
    """The value of an argument of torch.fx in the example call."""
    return map_arg(argument, lambda node: node.meta["value"])
