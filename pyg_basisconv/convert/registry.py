"""The registry: from a type of layer to the rule that rebuilds it, with the checks that all rules share."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple, TypeVar

import torch
import torch_geometric.nn
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils.parametrize import is_parametrized
from torch_geometric.nn.conv import GCNConv, MessagePassing

from ..conv import BasisConv
from .checkpoints import Original, is_lazy
from .refused import UNKNOWN, why_not

Options = dict[str, Any]
_MADE = ("conv", "nn", "phi", "pos_nn", "attn_nn")  # options that are modules, made by functions of the two widths
Rebuild = TypeVar("Rebuild", bound=Callable[[Any], nn.Module])
REVERSED: Options = {"flow": "target_to_source"}


class Rule(NamedTuple):
    """How layers of one type are rebuilt.

    node_dim: the axis of their nodes.
    system: what the layer is called in the table of `verify`; empty for one that is not there.
    checked: the options that the rule is checked under.
    given: options that it takes in the place of the layer's defaults.
    alone: whether only the layer itself is converted, and not where a model has it: its own code is as fast.
    """

    rebuild: Callable[[Any], nn.Module]
    node_dim: int
    system: str
    checked: list[Options]
    given: Options
    alone: bool


_RULES: dict[type, Rule] = {}
METHODS = {"forward", "message", "aggregate", "message_and_aggregate", "update", "edge_update", "_conv_forward"}


class Unchanged(Exception):
    """The reason why a layer, or two that could be one, are left as they are."""


def rule(
    layer: type,
    system: str = "",
    options: Sequence[Options] = (),
    fixed: Sequence[str] = (),
    node_dim: int = -2,
    given: Options | None = None,
    alone: bool = False,
) -> Callable[[Rebuild], Rebuild]:
    """Registers the function or class that converts layers of exactly this type, or raises `Unchanged`.

    It makes parameters as copies of views, by `build.parameter`, and joins several by `torch.stack` and `torch.cat`. A
    drop-in, see `pyg_basisconv.nn`, can then find each number in the layer's own parameters, and reads it there.

    Args:
        layer: the type.
        system: what the layer is called in the table of `pyg_basisconv.verify`.
        options: those it is checked under, there and in the tests, besides its defaults and each of its flags turned
            round: keyword arguments of its constructor.
        fixed: flags that are not turned round.
        node_dim: PyG's, for features (M, P): 0 where the layer takes no other.
        given: options that are taken throughout in the place of the layer's defaults.
        alone: see `Rule`.
    """

    def register(function: Rebuild) -> Rebuild:
        flags = turned_round(layer, fixed)
        every = [(given or {}) | one for one in flags + [one for one in options if one not in flags]]
        _RULES[layer] = Rule(function, node_dim, system, every, given or {}, alone)
        return function

    return register


def turned_round(layer: type, fixed: Sequence[str] = ()) -> list[Options]:
    """The defaults of a layer, and each of its flags turned round; the flow of messages, which `kwargs` take, is one.

    >>> from torch_geometric.nn import GraphConv
    >>> turned_round(GraphConv)
    [{}, {'bias': False}, {'flow': 'target_to_source'}]
    """
    found: list[Options] = [{}]
    for name, parameter in arguments_of(layer).items():
        if isinstance(parameter.default, bool) and name not in fixed:
            found.append({name: not parameter.default})
        if parameter.kind == parameter.VAR_KEYWORD and "flow" not in fixed:
            found.append(REVERSED)
    return found


def arguments_of(layer: type) -> Mapping[str, inspect.Parameter]:
    """Those of a constructor, by name; of one that takes any, those of the base that it hands them on to.

    >>> list(arguments_of(nn.GRU))[:4]
    ['mode', 'input_size', 'hidden_size', 'num_layers']
    """
    found = (inspect.signature(one).parameters for one in layer.__mro__)
    return next(names for names in found if "args" not in names)


def combinations(more: Options | None = None, **values: Sequence[Any]) -> list[Options]:
    """Options with each combination of these values, each with some more.

    >>> combinations({"heads": 2}, concat=(True, False))
    [{'heads': 2, 'concat': True}, {'heads': 2, 'concat': False}]
    """
    return [(more or {}) | dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]


def share_rule(layer: type, other: type) -> None:
    """Gives another class the rule of a layer."""
    _RULES[other] = _RULES[layer]._replace(system="")


def known_layers() -> dict[type, Options]:
    """All types that have a rule, with the options that it takes in the place of their defaults."""
    return {layer: known.given for layer, known in _RULES.items()}


def file_of(layer: type) -> str:
    """The file of this folder that has the rule of a layer.

    >>> file_of(nn.GRU)
    'rows.py'
    """
    return _RULES[layer].rebuild.__module__.rpartition(".")[2] + ".py"


def sweeps() -> dict[str, dict[type, Sequence[Options]]]:
    """The options that rules are checked under, by the name of the system and by layer."""
    found: dict[str, dict[type, Sequence[Options]]] = {}
    for layer, known in _RULES.items():
        if known.system:
            found.setdefault(known.system, {})[layer] = known.checked
    return found


def example(kind: type, options: Options | None = None, P: int = 8, Q: int = 8, **given: Any) -> Any:
    """A layer with these options; what else its constructor requires is taken from `given`, by name, or small.

    >>> from torch_geometric.nn import ChebConv
    >>> example(ChebConv, {"normalization": "rw"}, K=2)
    ChebConv(8, 8, K=2, normalization=rw)
    """
    networks = {"NNConv": of_edges, "CFConv": lambda P, Q: nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 5))}
    known: Options = {"in_channels": P, "out_channels": Q, "channels": P, "in_features": P, "out_features": Q}
    known |= {"input_size": P, "hidden_size": 5, "hidden_channels": 5, "num_layers": 2, "embed_dim": 8, "num_heads": 2}
    known |= {"num_relations": 3, "K": 3, "alpha": 0.1, "first_aggr": True, "conv": GCNConv, "kernel_size": 3, "dim": 2}
    known |= {"metadata": (["a", "b"], [("a", "to", "b")]), "num_node_types": 3, "num_edge_types": 4, "edge_dim": 3}
    known |= {"edge_type_emb_dim": 2, "edge_attr_emb_dim": 5, "num_filters": 5, "cutoff": 5.0, "filter_size": 2}
    known |= {"output_size": 3, "downscale_factor": 2, "upscale_factor": 2, "num_embeddings": 7, "embedding_dim": P}
    known |= {"nn": networks.get(kind.__name__, _network)} | given
    needed = [name for name, p in arguments_of(kind).items() if p.default is p.empty and name in known]
    chosen = {name: known[name] for name in needed if name not in (options or {})} | (options or {})
    return kind(**{name: value(P, Q) if name in _MADE else value for name, value in chosen.items()})


def of_edges(P: int, Q: int) -> nn.Module:
    """From two features of an edge to a matrix P x Q."""
    return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, P * Q))


def _network(P: int, Q: int) -> nn.Module:
    return nn.Sequential(nn.Linear(P, Q), nn.ReLU(), nn.Linear(Q, Q))


def apply_rule(layer: Any, kind: type) -> nn.Module:
    """What the rule of a type makes of a layer that is as its class makes it, see `check_as_made`; or `Unchanged`."""
    known = _RULES[kind]
    _clear_lazy_biases(layer)
    if getattr(layer, "node_dim", known.node_dim) not in (-2, known.node_dim):
        raise Unchanged(f"node_dim={layer.node_dim}: BasisConv has the nodes on axis -2")
    try:
        with torch.inference_mode(False):  # views and sums of parameters say whether they are frozen
            return known.rebuild(layer)
    except AttributeError as error:
        if not any(error.obj is part for one in layer.modules() for part in (one, *one._modules.values())):
            raise  # no part of the layer lacks something: the rule is wrong
        raise Unchanged(f"another module stands in the place of one of its own: {error}") from error


def check_as_made(layer: Any) -> None:
    """Rejects a layer with a method of its own in the place of its class's, or with parametrizations."""
    if METHODS & vars(layer).keys():
        raise Unchanged(f"its {min(METHODS & vars(layer).keys())}() was replaced")
    for name, part in layer.named_modules():
        if "forward" in vars(part) or isinstance(part, torch.jit.ScriptModule):
            raise Unchanged(f"the forward() of its {name} was replaced")
        if is_parametrized(part):
            raise Unchanged("its parameters are computed from others")


def _clear_lazy_biases(layer: nn.Module) -> None:
    """Sets to zero the biases that a lazy Linear of PyG leaves as its memory was, until its first call draws them."""
    for part in layer.modules():
        weight, bias = part._parameters.get("weight"), part._parameters.get("bias")
        if isinstance(weight, UninitializedParameter) and type(bias) is nn.Parameter:
            nn.init.zeros_(bias)


def convertible(module: nn.Module, alone: bool = False) -> bool:
    """Whether a module is a layer that is converted, or left with a reason; by itself, or in a model."""
    made = isinstance(module, BasisConv) or getattr(module, "rebuilt", False)
    known = [kind for kind, one in _RULES.items() if alone or not one.alone]
    return isinstance(module, (MessagePassing, *known)) and not made


def rebuild(layer: Any, shared: set[int]) -> nn.Module:
    """The layer made of BasisConvs; raises `Unchanged` with the reason, where it cannot be reproduced.

    shared: the ids of tied parameters, which the copies would untie.
    """
    known = _RULES.get(type(layer))
    if known is None:
        if isinstance(layer, LazyModuleMixin):  # until its first call
            raise Unchanged("it is lazy: call it once before")
        if is_parametrized(layer):
            raise Unchanged("its parameters are computed from others")
        name, parent = type(layer).__name__, next((t for t in type(layer).__mro__ if t in _RULES), None)
        reason = why_not(name) if getattr(torch_geometric.nn, name, None) is type(layer) else None
        if reason is None and parent is not None:
            reason = f"a subclass of {parent.__name__} may compute something else"
        raise Unchanged(reason or UNKNOWN)
    if any(_hooks(part) for part in (*layer.modules(), *layer.parameters())):
        raise Unchanged("it has hooks, which see what happens inside")
    if any(id(p) in shared for p in layer.parameters()):
        raise Unchanged("it shares a parameter with another layer")
    check_as_made(layer)
    new = apply_rule(layer, type(layer))
    # Where a root is turned off afterwards, as by a DirGNNConv, there are parameters that nothing reads.
    read = all(getattr(part, "root_weight", True) is not False for part in layer.modules())
    if read and not is_lazy(layer) and _numbers(layer) != _numbers(new):
        raise Unchanged("it has other parameters than its class makes, such as a bias of one of its matrices")
    if getattr(layer, "explain", None) is False:
        for part in new.modules():
            if isinstance(part, MessagePassing):
                part.explain = False
    for name in ("in_channels", "out_channels"):
        if hasattr(layer, name):
            setattr(new, name, getattr(layer, name))
    new.register_load_state_dict_pre_hook(Original(layer, known.rebuild, _constants(layer)))
    return new.train(layer.training)


def _numbers(module: nn.Module) -> int:
    """How many numbers a module learns: a converted layer has those of the layer, in another arrangement."""
    return sum(p.numel() for p in module.parameters())


def _constants(layer: nn.Module) -> list[str]:
    """The names of the buffers of layers that are converted; those of networks within them, such as the statistics of a
    batch norm, stay with these networks.
    """
    parts = [(f"{name}." if name else "", part) for name, part in layer.named_modules() if type(part) in _RULES]
    return [prefix + name for prefix, part in parts for name, _ in part.named_buffers(recurse=False)]


def rebuild_part(layer: Any) -> nn.Module:
    """A layer inside of another, made of BasisConvs; the other is left where this one is."""
    try:
        return rebuild(layer, set())
    except Unchanged as reason:
        raise Unchanged(f"its {type(layer).__name__} is left: {reason}") from reason


def _hooks(module: nn.Module | nn.Parameter) -> bool:
    """Whether a user registered a hook; a lazy Linear of PyG has one of its own, and so have converted layers."""
    if isinstance(module, nn.Parameter):
        return bool(module._backward_hooks or module._post_accumulate_grad_hooks)
    own = getattr(module, "_hook", None)
    own_id = getattr(own, "id", None)
    tables = [table for name, table in vars(module).items() if name.endswith("_hooks") and table]
    hooks = [hook for table in tables for key, hook in table.items() if key != own_id]
    return not all(isinstance(getattr(hook, "hook", None), Original) for hook in hooks)
