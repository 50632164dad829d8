"""Which layers of a model read which others."""

import operator
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import fx, nn
from torch.fx.node import map_arg
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd

from .following import CONSTANTS, Example, follow, hooked, is_layer
from .passed import Passed, names_of


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


def chains(model: nn.Module, example: Example | None) -> tuple[list[list[Site]], dict[str, str]]:
    """All modules that are called once, each with those that read nothing but the result of the one before.

    What leaves its argument as it is, such as dropout in eval mode, counts as nothing between two modules.

    Args:
        model: is followed, and stays as it is.
        example: a call of it; without one, arguments that have defaults are those, and the others any tensors.

    Returns:
        The chains; and by their names the parts of the model that could not be followed into, with the reason.
    """
    if is_layer(model):
        return [], {}
    graph, escaped, asked, opaque = follow(model, example)
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
        return not is_layer(part) or any(getattr(inner, "inplace", False) for inner in part.modules())
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
    return type(a) is type(b) and isinstance(a, CONSTANTS) and bool(a == b)


def value(argument: Any) -> Any:
    """What an argument of torch.fx was in the example call."""
    return map_arg(argument, lambda node: node.meta["value"])
