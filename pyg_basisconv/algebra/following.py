"""A model's own forward, followed by torch.fx: into all parts but layers."""

import builtins
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from inspect import Parameter, signature, unwrap
from typing import Any
from weakref import ref

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate, map_arg
from torch.fx.proxy import Proxy, TraceError
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

from ..errors import reject
from .passed import Passed

CONSTANTS = (type(None), bool, int, float, complex, str, torch.Size, torch.dtype, torch.device, torch.layout)
_POOLS = (global_add_pool, global_max_pool, global_mean_pool)


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


def follow(model: nn.Module, example: Example | None) -> tuple[fx.Graph, set[fx.Node], set[str], dict[str, str]]:
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


class _Opaque(Exception):
    """A part of a model that cannot be followed into."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(":. ")


def hooked(module: nn.Module) -> bool:
    """Whether somebody looks into the calls of a module, or has put another function in the place of its forward."""
    own = vars(module)
    return "forward" in own or any(own[name] for name in own if name.endswith("_hooks") and "state_dict" not in name)


def is_layer(module: nn.Module) -> bool:
    """Whether a module is called as a whole, and not followed into."""
    if isinstance(module, nn.Sequential):
        return False
    of_torch = type(module).__module__.startswith("torch.nn.")
    return of_torch or isinstance(module, MessagePassing) or type(module) in (BatchNorm, Linear, Passed)


def _asked(model: Any) -> list[str]:
    """The arguments without which a model cannot be called."""
    if isinstance(model, Sequential):  # of PyG, whose forward may take anything
        return list(model.signature.param_dict)
    asked = [p for p in signature(model.forward).parameters.values() if p.default is Parameter.empty]
    return [p.name for p in asked if p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)]


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
        return module_qualified_name in self.opaque or is_layer(m) or hooked(m)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        args, kwargs = self._call()
        return lambda: self.root.forward(*args, **kwargs), []

    def _call(self) -> tuple[Any, dict[str, Any]]:
        """The arguments of the call, with stands for what is not constant."""
        count = 0

        def stand(given: Any) -> Any:
            nonlocal count
            if isinstance(given, CONSTANTS):
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
        return found if isinstance(found, CONSTANTS) else proxy

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
