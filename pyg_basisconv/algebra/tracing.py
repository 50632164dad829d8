"""Which layers of a model read which others: its own forward, followed by torch.fx."""

import builtins
import operator
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from inspect import Parameter, signature, unwrap
from typing import Any
from weakref import ref

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate, map_arg
from torch.fx.proxy import Proxy, TraceError
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_map
from torch_geometric.data.data import BaseData
from torch_geometric.nn import (
    BatchNorm,
    Linear,
    MessagePassing,
    Sequential,
    global_add_pool,
    global_max_pool,
    global_mean_pool,
)

from ..convert.layers import Converted
from ..errors import reject

_CONSTANTS = (type(None), bool, int, float, complex, str, torch.Size, torch.dtype, torch.device, torch.layout)
_POOLS = (global_add_pool, global_max_pool, global_mean_pool)


@dataclass
class Site:
    """A module where a model calls it, once.

    Args:
        name: of the module.
        module: itself.
        node: of the call.
        x: what it reads first, as an argument of torch.fx.
        others: its other arguments by name, without those that are None.
    """

    name: str
    module: nn.Module
    node: fx.Node
    x: Any
    others: dict[str, Any]


class Example:
    """The arguments of a call.

    Args:
        args: by position.
        kwargs: by name.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs = args, kwargs

    @property
    def own(self) -> "Example":
        """The same with copies of tensors and data, which may be written to."""
        return Example(*tree_map(owned, (self.args, self.kwargs)))


def owned(given: Any) -> Any:
    """A copy of what may be written to."""
    return given.clone() if isinstance(given, Tensor | BaseData) else given


def value(argument: Any) -> Any:
    """What an argument of torch.fx was in the example call."""
    return map_arg(argument, lambda node: node.meta["value"])


class Passed(nn.Module):
    """Stands where a layer was that is folded into another, and gives its argument back.

    Args:
        layer: what was there; its numbers, such as in_channels, are kept for who asks.
        axes: how many the argument has; None for any number.

    >>> gone = Passed(nn.Linear(2, 3))
    >>> gone(torch.ones(2)), gone.out_features
    (tensor([1., 1.]), 3)
    """

    def __init__(self, layer: nn.Module, axes: int | None = None) -> None:
        super().__init__()
        numbers = {name: v for name, v in vars(layer).items() if isinstance(v, int | float) and name[0] != "_"}
        vars(self).update(numbers)
        self.first, self.axes = names_of(layer)[0], axes

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The first argument; the others are what the layer would read."""
        x = args[0] if args else kwargs[self.first]
        if self.axes is not None and x.dim() != self.axes:
            fix = "a batch norm has its channels on the second axis: fold the model with an example call"
            reject(self.first, f"{self.axes} axes, for which a batch norm was folded", tuple(x.shape), fix)
        return x

    def extra_repr(self) -> str:
        return "" if self.axes is None else f"axes={self.axes}"


def chains(model: nn.Module, example: Example | None) -> tuple[list[list[Site]], dict[str, str]]:
    """All modules that are called once, each with those that read nothing but the result of the one before.

    What leaves its argument as it is, such as dropout in eval mode, counts as nothing between two modules.

    Args:
        model: is followed, and stays as it is.
        example: a call of it; without one, arguments that have defaults are those, and the others any tensors.

    Returns:
        The chains; and by their names the parts of the model that could not be followed into, with the reason.
    """
    if _is_layer(model):
        return [], {}
    graph, escaped, asked, opaque = _follow(model, example)
    parts = dict(model.named_modules())
    times: Counter[int] = Counter(id(parts[name]) for name in asked)
    for node in graph.nodes:
        if node.op == "call_module":
            times.update(id(part) for part in parts[node.target].modules())
        if node.op == "get_attr":  # something of it is read without a call
            path = node.target.split(".")
            times.update(id(parts.get(".".join(path[:i]))) for i in range(1, len(path) + 1))
    sites = {
        node: site
        for node in graph.nodes
        if node.op == "call_module" and times[id(parts[node.target])] == 1
        if (site := _site(node, parts[node.target])) is not None
    }
    after: dict[fx.Node, Site] = {}
    for site in sites.values():
        before = _source(site, parts, escaped)
        if before is not None and before in sites:
            after[before] = site
    readers = {site.node for site in after.values()}
    return [list(_from(site, after)) for node, site in sites.items() if node not in readers], opaque


def _from(site: Site | None, after: dict[fx.Node, Site]) -> Iterator[Site]:
    while site is not None:
        yield site
        site = after.get(site.node)


def names_of(module: nn.Module) -> list[str]:
    """The names of a module's arguments, in order."""
    if isinstance(module, Converted):
        return list(module.call.names)
    return list(signature(module.forward).parameters)


def _site(node: fx.Node, module: nn.Module) -> Site | None:
    names = names_of(module)
    if len(node.args) > len(names):
        return None
    given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    if not names or names[0] not in given:
        return None
    x = given.pop(names[0])
    return Site(str(node.target), module, node, x, {name: v for name, v in given.items() if v is not None})


def _source(site: Site, parts: dict[str, nn.Module], escaped: set[fx.Node]) -> fx.Node | None:
    """The node whose result a module reads, and nobody else does; escaped: what else is read."""
    node, reader = site.x, site.node
    if not isinstance(node, fx.Node) or _within(node, site.others):
        return None
    while list(node.users) == [reader] and node not in escaped:
        if not _is_nothing(node, parts):
            return node
        first = getattr(parts.get(str(node.target)), "first", "input")
        given = node.args[0] if node.args else node.kwargs[first]
        if not isinstance(given, fx.Node):
            return None
        node, reader = given, node
    return None


def _within(node: fx.Node, argument: Any) -> bool:
    found: set[fx.Node] = set()
    map_arg(argument, found.add)
    return node in found


def _is_nothing(node: fx.Node, parts: dict[str, nn.Module]) -> bool:
    """Whether a node gives what it gets."""
    if node.op == "call_module":
        part: Any = parts[str(node.target)]
        dropout = isinstance(part, _DropoutNd) and not (part.training and part.p)
        return (dropout or type(part) in (nn.Identity, Passed)) and not hooked(part)
    if node.op == "call_function" and node.target is F.dropout:
        given = dict(zip(("input", "p", "training"), node.args, strict=False)) | dict(node.kwargs)
        return given.get("training", True) is False or bool(given.get("p") == 0)
    return False


def hooked(module: nn.Module) -> bool:
    """Whether somebody looks into the calls of a module, or has put another function in the place of its forward."""
    own = vars(module)
    return "forward" in own or any(own[name] for name in own if name.endswith("_hooks") and "state_dict" not in name)


def writes_between(first: fx.Node, last: fx.Node, parts: dict[str, nn.Module]) -> bool:
    """Whether something is changed in place after one node, and before another."""
    node = first.next
    while node is not last:
        if _writes(node, parts) and not _is_nothing(node, parts):
            return True
        node = node.next
    return False


def _writes(node: fx.Node, parts: dict[str, nn.Module]) -> bool:
    name = getattr(node.target, "__name__", str(node.target))
    if node.op == "call_module":
        part = parts[str(node.target)]
        return not _is_layer(part) or any(getattr(inner, "inplace", False) for inner in part.modules())
    if node.op == "call_method":
        return name.endswith("_")
    in_place = name.startswith("i") and node.target is getattr(operator, name, None)
    changes = node.target in (operator.setitem, setattr) or in_place
    return changes or name.endswith("_") or "out" in node.kwargs or node.kwargs.get("inplace") is True


def alike(a: Any, b: Any) -> bool:
    """Whether two arguments are the same: one value, or the same attribute or item of the same."""
    if a is b:
        return True
    if isinstance(a, fx.Node) and isinstance(b, fx.Node):
        read = a.op == b.op == "call_function" and a.target is b.target and a.target in (getattr, operator.getitem)
        return read and not a.kwargs and alike(a.args, b.args)
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(alike(a[name], b[name]) for name in a)
    return type(a) is type(b) and isinstance(a, _CONSTANTS) and bool(a == b)


class _Opaque(Exception):
    """A part of a model that cannot be followed into."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(":. ")


def _follow(model: nn.Module, example: Example | None) -> tuple[fx.Graph, set[fx.Node], set[str], dict[str, str]]:
    """The calls of a model, what of them is read otherwise, parts whose type is asked for, and parts not followed."""
    opaque: dict[str, str] = {}
    while True:
        try:
            root = deepcopy(model)
        except Exception as error:
            fix = "such as weights that are computed: torch.nn.utils.remove_weight_norm or prune.remove make them plain"
            reject("model", "one that can be copied by copy.deepcopy", _said(error), fix)
        try:
            follower = _Follower(example, opaque)
            with torch.no_grad(), torch.random.fork_rng(devices=[]), _instances(root.forward, follower):
                graph = follower.trace(root)
            asked = {name for name, part in root.named_modules() if part in follower.asked}
            return graph, follower.seen | follower.kept(), asked, opaque
        except _Opaque as part:
            opaque[part.name] = part.reason
        except Exception as error:
            fix = "pass an example call, fold(model, x, ...), or fold those of its parts that can be followed"
            if example is not None:
                fix = "fold those of its parts that can be followed, such as model.encoder"
            reject("model", "a model that torch.fx can follow", f"{type(model).__name__}: {_said(error)}", fix)


def _is_layer(module: nn.Module) -> bool:
    """Whether a module is called as a whole, and not followed into."""
    if isinstance(module, nn.Sequential):
        return False
    of_torch = type(module).__module__.startswith("torch.nn.")
    return of_torch or isinstance(module, MessagePassing) or type(module) in (BatchNorm, Linear, Passed)


class _Stand(Proxy):
    """Stands for a value while a model is followed; with an example call it knows the value."""

    tracer: "_Follower"

    def __getattr__(self, name: str) -> Any:
        if self.tracer.example is None:
            return super().__getattr__(name)
        found = getattr(self.tracer.known(self), name)
        if callable(found) and not isinstance(found, nn.Module):
            return super().__getattr__(name)
        return self.tracer.create_proxy("call_function", getattr, (self, name), {})

    def __setattr__(self, name: str, to: Any) -> None:
        super().__setattr__(name, to)
        if name not in ("node", "tracer"):
            self.tracer.create_proxy("call_function", setattr, (self, name, to), {})

    def __len__(self) -> int:
        return len(self.tracer.read(self))

    def __int__(self) -> int:
        return int(self.tracer.read(self))

    def __float__(self) -> float:
        return float(self.tracer.read(self))

    def __index__(self) -> int:
        return operator.index(self.tracer.read(self))

    def __contains__(self, item: Any) -> bool:
        return item in self.tracer.read(self)

    def __setitem__(self, place: Any, to: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, place, to), {})


def _asked(model: Any) -> list[str]:
    """The arguments without which a model cannot be called."""
    if isinstance(model, Sequential):  # of PyG, whose forward may take anything
        return list(model.signature.param_dict)
    asked = [p for p in signature(model.forward).parameters.values() if p.default is Parameter.empty]
    return [p.name for p in asked if p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)]


def _recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args: self.tracer.create_proxy("call_function", function, (self, *args), {})


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"):
    # torch.fx takes x += y for x = x + y, but a tensor changes.
    setattr(_Stand, f"__i{_name}__", _recorded(getattr(operator, f"__i{_name}__")))


class _Follower(fx.Tracer):
    """Follows a model into all parts but layers; with an example call, by the values that there are."""

    proxy_buffer_attributes = True

    def __init__(self, example: Example | None, opaque: dict[str, str]) -> None:
        super().__init__(autowrap_functions=_POOLS)
        self.example, self.opaque = example, opaque
        self.evaluates = False
        self.seen: set[fx.Node] = set()
        self.asked: set[nn.Module] = set()
        self.stands: list[tuple[ref[Proxy], fx.Node]] = []

    def proxy(self, node: fx.Node) -> Proxy:
        stand = _Stand(node, self)
        self.stands.append((ref(stand), node))
        return stand

    def kept(self) -> set[fx.Node]:
        """What somebody has kept: an attribute, a list, a closure, ..."""
        return {node for stand, node in self.stands if stand() is not None}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name in self.opaque or _is_layer(m) or hooked(m)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        args, kwargs = self._call()
        return lambda: self.root.forward(*args, **kwargs), []

    def _call(self) -> tuple[Any, dict[str, Any]]:
        """The arguments of the call, with stands for what is not constant."""
        count = 0

        def stand(given: Any) -> Any:
            nonlocal count
            if isinstance(given, _CONSTANTS):
                return given
            count += 1
            proxy = self.create_proxy("placeholder", f"given_{count}", (), {})
            proxy.node.meta["value"] = owned(given)
            return proxy

        if self.example is not None:
            return map_aggregate(self.example.args, stand), map_aggregate(self.example.kwargs, stand)  # type: ignore[return-value]
        return (), {name: self.create_proxy("placeholder", name, (), {}) for name in _asked(self.root)}

    def create_arg(self, a: Any) -> Any:
        return a.node if isinstance(a, Proxy) else super().create_arg(a)

    def create_proxy(self, kind: str, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        proxy = super().create_proxy(kind, *args, **kwargs)
        if self.example is None or kind == "placeholder":
            return proxy
        found = self._evaluated(proxy.node)
        return found if isinstance(found, _CONSTANTS) else proxy

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self.evaluates:
            return forward(*args, **kwargs)
        name = self.path_of_module(m)
        if self.is_leaf_module(m, name):
            return super().call_module(m, forward, args, kwargs)
        try:
            with _instances(m.forward, self):
                return super().call_module(m, forward, args, kwargs)
        except _Opaque:
            raise
        except Exception as error:
            raise _Opaque(name, _said(error)) from error

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val if self.evaluates else super().getattr(attr, attr_val, parameter_proxy_cache)

    def to_bool(self, obj: Proxy) -> bool:
        return bool(self.read(obj))

    def iter(self, obj: Proxy) -> Iterator[Any]:
        found = self.read(obj)
        return iter(found) if isinstance(found, dict) else iter([obj[i] for i in range(len(found))])  # type: ignore[index]

    def keys(self, obj: Proxy) -> Any:
        return self.read(obj).keys()

    def read(self, obj: Proxy) -> Any:
        """The value that something stands for, which is read where no node records it."""
        self.seen.add(obj.node)
        return self.known(obj)

    def known(self, obj: Proxy) -> Any:
        """The value that something stands for."""
        if self.example is None:
            raise TraceError("what its forward does depends on values or shapes")
        return self._evaluated(obj.node)

    def _evaluated(self, node: fx.Node) -> Any:
        if "value" not in node.meta:
            args, kwargs = (map_arg(a, self._evaluated) for a in (node.args, node.kwargs))
            nested, self.evaluates = self.evaluates, True
            try:
                node.meta["value"] = self._run(node, args, kwargs)  # type: ignore[arg-type]
            finally:
                self.evaluates = nested
        return node.meta["value"]

    def _run(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if node.op == "call_module":
            return self.root.get_submodule(str(node.target))(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.root)
        return node.target(*args, **kwargs)  # type: ignore[operator]


@contextmanager
def _instances(function: Any, follower: _Follower) -> Iterator[None]:
    """Lets a function take what stands for a value for an instance of its type, and notes whose type it asks for."""
    scope, name = getattr(unwrap(function), "__globals__", {}), "isinstance"

    def isinstance_(thing: Any, kind: Any) -> bool:
        if builtins.isinstance(thing, nn.Module):
            follower.asked.add(thing)
        if type(thing) is not _Stand:
            return builtins.isinstance(thing, kind)
        if thing.tracer.example is None:
            return issubclass(Tensor, kind)
        return builtins.isinstance(thing.tracer.known(thing), kind)

    if name in scope:
        yield
        return
    scope[name] = isinstance_
    try:
        yield
    finally:
        del scope[name]
