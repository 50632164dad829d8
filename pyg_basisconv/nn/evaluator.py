"""Evaluates a layer as its rule would convert it, on views of the layer's own parameters, taken in each call."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode
from torch_geometric.nn.conv import MessagePassing
from torch_geometric.typing import SparseTensor

from ..convert.registry import Unchanged, apply_rule, check_as_made

_OF_CALLS = ("_cached", "_evaluators", "_flat_weights")  # names of what calls keep, such as weights that once were
_UNREAD = ("training", "forward")  # attributes that are no options
_MESSAGES = ("_propagate", "_message", "_aggregate", "_edge_update")
_EXPLAIN = itemgetter("_explain")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Place(NamedTuple):
    """Where the numbers of a tensor lie in its storage.

    >>> Place.of(torch.zeros(2, 3).t())
    Place(shape=torch.Size([3, 2]), stride=(1, 3), offset=0)
    """

    shape: torch.Size
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, t: Tensor) -> "Place":
        return cls(t.shape, t.stride(), int(t.storage_offset()))


class Moved(Exception):
    """A parameter of the layer is elsewhere, or has another shape or layout than when the evaluator was made."""


Read = Callable[[], Tensor]  # gives a tensor of the layer as it is now


def _given(owner: nn.Module, name: str, place: Place) -> Read:
    """Reads a parameter, or the tensor that pruning or a hypernetwork set in its place."""
    table: dict[str, Any] = owner._parameters if name in owner._parameters else vars(owner)
    shape, stride, _ = place

    def read() -> Tensor:
        t: Tensor | None = table.get(name)
        if t is None or t.stride() != stride or t.shape != shape:
            raise Moved
        return t

    return read


def _joined(join: Callable[..., Tensor], parts: Sequence[Read], dim: int) -> Read:
    """Reads several tensors as one, by `torch.stack` or `torch.cat`."""
    return lambda: join([read() for read in parts], dim)


def _part(whole: Read, place: Place, part: Place) -> Read:
    """Reads a view of a tensor."""
    if part == place:
        return whole
    view = _view(place, part)
    return lambda: view(whole())


def _view(whole: Place, part: Place) -> Callable[[Tensor], Tensor]:
    """Views a part of a tensor; where the part has all of it, by operations whose way back copies nothing."""
    (shape, stride, _), offset = part, part.offset - whole.offset
    axes = sorted(range(len(shape)), key=lambda axis: -stride[axis])  # as they follow each other in memory
    sizes, dims = [shape[axis] for axis in axes], [axes.index(axis) for axis in range(len(shape))]
    in_order = _is_dense(whole.shape, whole.stride) and _is_dense(sizes, [stride[axis] for axis in axes])
    if not in_order or shape.numel() < whole.shape.numel():
        return lambda t: t.as_strided(shape, stride, t.storage_offset() + offset)
    if sizes == list(whole.shape):
        return lambda t: t.permute(dims)
    if dims == sorted(dims):
        return lambda t: t.view(shape)
    if dims[:-2] == sorted(dims)[:-2]:  # the weight of a Linear: `mT` is quicker than `permute`
        return lambda t: t.view(sizes).mT
    return lambda t: t.view(sizes).permute(dims)


def _is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    return torch.empty_strided(shape, stride, device="meta").is_contiguous()


class _Reading(TorchFunctionMode):
    """While a rule runs, copies are views, and joins are recorded.

    Each parameter of the converted layer then shares its storage with a parameter of the layer, or with a join.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.joined: list[tuple[Tensor, Callable[..., Tensor], Sequence[Tensor], int]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.clone:
            return args[0]
        if func not in (torch.stack, torch.cat):
            return func(*args, **(kwargs or {}))
        tensors, dim = args[0], args[1] if len(args) > 1 else (kwargs or {}).get("dim", 0)
        if len(tensors) == 1:
            return tensors[0].unsqueeze(dim) if func is torch.stack else tensors[0]
        turned = func is torch.stack and dim == 0 and all(t.dim() == 2 and t.t().is_contiguous() for t in tensors)
        if turned:  # weights as Linear keeps them are joined as they are, and the result is turned, once
            tensors, dim = [t.t() for t in tensors], 1
        result = func(tensors, dim)
        self.joined.append((result, func, tensors, dim))
        return result.permute(1, 2, 0) if turned else result


class Evaluator:
    """The conversion of a drop-in layer by the rule of its kind, whose parameters are views of the layer's own; raises
    `Unchanged` with the reason, where no rule covers the layer.
    """

    @torch.inference_mode(False)
    def __init__(self, layer: nn.Module, kind: type[nn.Module]) -> None:
        check_as_made(layer)  # before a copy, which tensors that are computed from parameters refuse
        twin, reading = _twin(layer, kind), _Reading()
        with reading:
            self.module = apply_rule(twin, kind)
        wholes: dict[int, tuple[Read, Place]] = {
            _storage(t): (_given(layer.get_submodule(path), name, place := Place.of(t)), place)
            for path, one in twin.named_modules()
            for _, name, t in _tensors(one)
        }

        unread = {_storage(p): name.rpartition(".") for name, p in twin.named_parameters()}
        owners = set()  # of parameters that are read

        def part(t: Tensor) -> Read:
            if _storage(t) not in wholes:
                raise Unchanged("its rule computes new numbers, but a drop-in can only read those of the layer")
            if _storage(t) in unread:
                owners.add(unread.pop(_storage(t))[0])
            return _part(*wholes[_storage(t)], Place.of(t))

        for result, join, tensors, dim in reading.joined:
            wholes[_storage(result)] = _joined(join, [part(t) for t in tensors], dim), Place.of(result)
        held = [found for one in self.module.modules() for found in _tensors(one) if isinstance(found[2], nn.Parameter)]
        # Where the parameters of the conversion stand, and how each is read: one that stands twice, where it is first.
        self.slots: list[tuple[dict[str, Any], str, Read]] = []
        first: dict[int, Read] = {}
        for own, name, p in held:
            self.slots.append((own, name, first.get(id(p)) or part(p)))
            first.setdefault(id(p), partial(own.__getitem__, name))
        for owner, dot, name in unread.values():
            if owner in owners:  # a Linear, say, that has a bias where it had none by default
                raise Unchanged(f"its rule does not read {owner}{dot}{name}")
        self.draws = any(_draws(one) for one in self.module.modules())
        self.draws_alike = all(_draws_alike(one) for one in self.module.modules() if _draws(one))
        inner = [one for one in layer.modules() if one is not layer]
        self.hooks = [vars(one)[name] for one in inner for name in _HOOKS]
        every = [found for one in layer.modules() for found in vars(one).items()]
        self.hooks += [table for name, table in every if name.endswith("_hooks") and name.startswith(_MESSAGES)]
        self.explained = [vars(one) for one in inner if isinstance(one, MessagePassing)]
        # What is the same in each call, unless the layer was changed: a table, a name and the value there.
        self.members: list[tuple[dict[str, Any], str, Any]] = []
        for one in layer.modules():
            self.members += [(one._modules, name, child) for name, child in one._modules.items()]
            self.members += [(one._parameters, name, None) for name, p in one._parameters.items() if p is None]
            self.members += [(one._buffers, name, None) for name, b in one._buffers.items() if b is None]
        for one in inner:
            options = ((name, value) for name, value in vars(one).items() if not isinstance(value, Tensor))
            options = ((name, value) for name, value in options if name[:1] != "_" and name not in _UNREAD)
            self.members += [(vars(one), name, value) for name, value in (("forward", None), *options)]
        # Buffers that the conversion holds, such as the statistics of a norm, are those of the layer in each call.
        # The others gave it numbers when it was made.
        of_layer = {id(b): (table, name) for table, name, b in _buffers(layer)}
        kept = [(own, name, id(b)) for own, name, b in _buffers(self.module) if id(b) in of_layer]
        self.buffers = [(own, name, *of_layer[key]) for own, name, key in kept]
        read = of_layer.keys() - {key for *_, key in kept}
        self.members += [(own, name, b) for own, name, b in _buffers(layer) if id(b) in read]
        self.constants = [b for _, _, b in _buffers(layer) if id(b) in read]
        self.versions = [_version(b) for b in self.constants]

    @property
    def observed(self) -> bool:
        """Whether a hook, or an explainer of an inner layer, observes how the layer computes."""
        return any(self.hooks) or any(map(_EXPLAIN, self.explained))

    def draws_otherwise(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call in training draws other random numbers than the layer would, after the same seed."""
        if not self.draws:
            return False
        return not (self.draws_alike and all(map(_in_order, (*args[1:], *kwargs.values()))))

    @property
    def current(self) -> bool:
        """Whether the layer's modules and options, and the buffers that gave numbers, are as when this was made."""
        for own, name, part in self.members:  # a generator takes longer
            if own.get(name) is not part:
                return False
        return [_version(b) for b in self.constants] == self.versions

    def __call__(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for own, name, read in self.slots:
            own[name] = read()
        for own, name, table, of_layer in self.buffers:
            own[name] = table[of_layer]
        module = self.module
        if module.training != layer.training:
            module.train(layer.training)
        return _row_major(module.forward(*args, **kwargs))


def _row_major(y: Any) -> Any:
    """A result of a batch, whose rows stand node by node, in the order of its axes: users of PyG call `view` on it."""
    by_node = type(y) is Tensor and y.dim() > 2 and not y.is_contiguous() and y.movedim(-2, 0).is_contiguous()
    return y.contiguous() if by_node else y


def _twin(layer: nn.Module, kind: type[nn.Module]) -> nn.Module:
    """A copy of the layer as PyG's own class, with parameters that take no memory, and without hooks.

    Tied parameters have one each, since any of them may be replaced later. All else that modules hold, rules only read:
    the copy shares it, whatever it is.
    """
    twins: dict[nn.Module | None, Any] = {one: object.__new__(type(one)) for one in layer.modules()}
    twins |= {layer: object.__new__(kind), None: None}
    for one in layer.modules():
        held = {name: value for name, value in vars(one).items() if one is not layer or not name.startswith(_OF_CALLS)}
        held |= {name: OrderedDict() for name in held if name.endswith("_hooks")}
        held |= {name: held[name].copy() for name in ("_parameters", "_buffers")}
        held["_modules"] = {name: twins[child] for name, child in one._modules.items()}
        vars(twins[one]).update(held)
        for table, name, t in list(_tensors(twins[one])):
            table[name] = nn.Parameter(torch.empty_like(t, device="meta"), t.is_floating_point())
    twin: nn.Module = twins[layer]
    return twin


def _tensors(module: nn.Module) -> Iterator[tuple[dict[str, Any], str, Tensor]]:
    """The parameters of a module, and the tensors that pruning and hypernetworks set in the place of some: for each the
    table that holds it, its name there, and the tensor.
    """
    for table in (module._parameters, vars(module)):
        yield from ((table, name, t) for name, t in table.items() if isinstance(t, Tensor))


def _buffers(module: nn.Module) -> Iterator[tuple[dict[str, Any], str, Tensor]]:
    """The buffers of a module: for each the table that holds it, its name there, and the tensor."""
    for one in module.modules():
        yield from ((one._buffers, name, b) for name, b in one._buffers.items() if b is not None)


def _version(t: Tensor) -> int | None:
    return None if t.is_inference() else t._version


def _storage(t: Tensor) -> int:
    return t.untyped_storage()._cdata


def _draws(part: nn.Module) -> bool:
    """Whether a module draws random numbers in training."""
    return bool(getattr(part, "dropout", 0.0) or getattr(part, "draws", False)) or isinstance(part, _DropoutNd)


def _draws_alike(part: nn.Module) -> bool:
    """Whether it, or a part of it, draws the numbers that the layer would, for edges in order."""
    if getattr(part, "draws", False):
        return False
    return any(getattr(one, "draws_at_once", False) and one.dropout for one in part.modules())


def _in_order(given: Any) -> bool:
    """Whether edges, if an argument has some, are in the order in which the layer, too, computes their weights."""
    if isinstance(given, dict):
        return all(map(_in_order, given.values()))
    if isinstance(given, Tensor):
        return type(given) in (Tensor, nn.Parameter) and given.layout is torch.strided
    return not isinstance(given, SparseTensor)
