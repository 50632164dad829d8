"""A whole layer as one operator, for `torch.compile`.

A compiled graph holds `torch.ops.basisconv.layer`, whose result's shape is known beforehand; when it runs, the layer is
evaluated as it is without compilation: checked, bound, planned, and from the same caches. Its derivative is an operator
too, which follows the record that autograd made inside of the first.
"""

import os
import secrets
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from threading import RLock
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C import DispatchKey
from torch.autograd.graph import GradientEdge, get_gradient_edge, saved_tensors_hooks
from torch.nn.modules.dropout import _DropoutNd

from .cache import by_value, underived
from .errors import reject
from .kernels.op import LIBRARY

_AUTOGRAD = (
    DispatchKey.AutogradFunctionality,
    DispatchKey.AutogradOther,
    DispatchKey.AutogradNestedTensor,
    DispatchKey.ADInplaceOrView,
)
_NONE = -(1 << 40)  # in the place of a size that is not given
_READ_AGAIN = {"mask", "valid", "edge_attr", "attn_mask", "key_padding_mask"}  # and not by autograd, for the derivative
_NUMBERED: dict[int, weakref.ref[Any]] = {}


def _anew() -> tuple["count[int]", Any]:
    """Numbers that no other process has, as what it has compiled is kept on disk; and a lock that no thread holds."""
    return count(secrets.randbits(40) << 22), RLock()


def _forked() -> None:
    global _COUNT, _ONE_AT_A_TIME
    _COUNT, _ONE_AT_A_TIME = _anew()


_COUNT, _ONE_AT_A_TIME = _anew()  # thread may change the state of what draws
if hasattr(os, "register_at_fork"):  # not on Windows, which has no forks
    os.register_at_fork(after_in_child=_forked)


def serial_number(thing: Any) -> int:
    """A number by which an operator can name a layer, or a bound basis, for as long as it lives."""
    number = next(_COUNT)
    # What dies takes its entry along. A `WeakValueDictionary` does so too, at several times the cost.
    _NUMBERED[number] = weakref.ref(thing, partial(_NUMBERED.pop, number))
    return number


def numbered(number: int) -> Any:
    """What has a number."""
    return _NUMBERED[number]()


def operates(layer: Any, *given: Any) -> bool:
    """Whether torch.compile is tracing, and the operator can stand for a call.

    So it can with dense tensors, a layer that knows its widths, and neither a transform of torch.func nor an explainer,
    whose mask is none of the arguments.
    """
    if not torch.compiler.is_dynamo_compiling() or torch.compiler.is_exporting():
        return False
    replica = getattr(layer, "_is_replica", False)  # its tensors are no parameters
    if replica or layer.explain or layer.is_lazy or torch._C._are_functorch_transforms_active():
        return False
    return not any(isinstance(t, Tensor) and t.layout != torch.strided for t in given)


def _draws(part: nn.Module) -> bool:
    return part.training and (bool(getattr(part, "dropout", 0.0)) or isinstance(part, _DropoutNd))


def call(layer: Any, given: dict[str, Any]) -> Tensor:
    """The layer's result for such arguments, by the operator."""
    return results(layer, given)[0]


def results(layer: Any, given: dict[str, Any]) -> list[Tensor]:
    """All that a layer returns for such arguments, by the operator; torch.compile sees this function of a layer.

    Args:
        layer: to be called: a `BasisConv`, or what has the same `evaluate`, `laid_out`, `likeness` and `serial`.
        given: the arguments of its `evaluate` by name; what is None is left out.
    """
    tensors: list[Tensor] = []
    names: list[str] = []  # of tensors, "=" between those of the same one; parameters have a dot in front
    lengths: list[str] = []  # of what is in numbers, and which way flags are
    numbers: list[int] = []
    bound = -1

    def add(name: str, tensor: Tensor) -> None:
        for i, other in enumerate(tensors):
            if other is tensor:
                names[i] += "=" + name
                return
        tensors.append(tensor)
        names.append(name)

    for name, value in given.items():
        if value is None:
            continue
        if isinstance(value, Tensor):
            add(name, value)
        elif isinstance(value, bool):
            lengths.append(f"{name}:{value}")
        elif name == "x":
            for part, end in zip(value, ("x_src", "x_dst"), strict=True):
                if part is not None:
                    add(end, part)
        elif name in ("size", "grid"):
            listed = value if isinstance(value, tuple | list) else (value,) * (2 if name == "size" else 1)
            numbers.extend([_NONE if n is None else n for n in listed])
            lengths.append(f"{name}:{len(listed)}")
        elif name == "lambda_max" and isinstance(value, float | int):
            tensors.append(torch.scalar_tensor(value, dtype=torch.float64))
            names.append("number")
        elif name == "edge_index" and hasattr(value, "serial"):
            bound = value.serial
            onto = (value.N,) if value.target_grid is None else value.target_grid
            numbers.extend(onto)
            lengths.append(f"onto:{len(onto)}")
        else:
            reject(name, "a tensor, under torch.compile", type(value).__name__, "call this layer outside of it")
    for name, parameter in layer.named_parameters():
        tensors.append(parameter)
        names.append("." + name)
    if any(_draws(part) for part in layer.modules()):
        tensors.append(torch.randint(1 << 60, ()))  # two calls are two draws, and one that is made again is the same
        names.append("seed")
    device = tensors[0].device.type
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    grad = torch.is_grad_enabled()
    wanted = [grad and t.requires_grad for t in tensors]
    about = ",".join(names), ",".join(lengths), numbers, bound, wanted, autocast
    found: list[Tensor] = torch.ops.basisconv.layer(tensors, layer.serial, *about)[0]
    return found


def arguments(
    tensors: Sequence[Tensor], names: str, lengths: str, numbers: Sequence[int]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The arguments by name, and the parameters, of what `call` makes of them."""
    named = {one: t for some, t in zip(names.split(","), tensors, strict=True) for one in some.split("=")}
    given: dict[str, Any] = {name: t for name, t in named.items() if not name.startswith(".")}
    if "x_src" in given:
        given["x"] = given.pop("x_src"), given.pop("x_dst", None)
    start = 0
    for name, length in (one.split(":") for one in lengths.split(",") if one):
        if length in ("True", "False"):
            given[name] = length == "True"
            continue
        given[name] = tuple(numbers[start : start + int(length)])
        start += int(length)
    if "size" in given:
        M, N = given["size"]
        given["size"] = None if M == _NONE else M, None if N == _NONE else N
    return given, {name[1:]: t for name, t in named.items() if name.startswith(".")}


class _Record(NamedTuple):
    """What autograd recorded of one evaluation.

    ends: where the record ends, one for each result that a gradient comes back from, and None for the others; leaves:
    where it begins, of which some may be parameters of the layer; starts: the same, whether they still require a
    gradient or not; lent: takes the operator's arguments, for as long as it is read.
    """

    ends: list[GradientEdge | None]
    leaves: list[Tensor]
    starts: list[GradientEdge]
    lent: "_Lent"


_RECORDS: dict[int, _Record] = {}


class _Lent:
    """Keeps of what autograd saves only the place, where it is an argument of the operator.

    Compiled code gives its memory to others as it sees fit, and hands the arguments over again for the derivative.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._again: Sequence[Tensor] = ()
        self._reading = RLock()  # autograd may unpack in a thread of its own, so that none can have what is its own
        self.others: set[int] = set()  # the storages of all else that was saved
        self._of = {_storage(t): i for i, t in sorted(enumerate(tensors), key=lambda it: it[1].numel())}
        self._about = [(t.stride(), t.storage_offset()) for t in tensors]

    @contextmanager
    def given(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Where the arguments are there again; for one derivative at a time, or for one within another."""
        with self._reading:
            before, self._again = self._again, tensors
            try:
                yield
            finally:
                self._again = before

    def pack(self, t: Tensor) -> Any:
        storage = _storage(t)
        place = self._of.get(storage)
        if place is None:
            self.others.add(storage)
            return t.detach()  # with its history it would hold, by what it keeps, itself
        return place, t.shape, t.stride(), t.storage_offset() - self._about[place][1]

    def unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        place, shape, stride, offset = packed
        t = self._again[place].detach()
        if t.stride() != self._about[place][0]:
            laid_out = torch.empty_strided(t.shape, self._about[place][0], dtype=t.dtype, device=t.device)
            t = laid_out.copy_(t)
        if (t.shape, t.stride(), 0) == (shape, stride, offset):
            return t
        return t.as_strided(shape, stride, t.storage_offset() + offset)


@contextmanager
def _recording() -> Iterator[None]:
    """Lets autograd see what is computed inside of an operator."""
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    for key in _AUTOGRAD:
        excluded = excluded.remove(key)
    with torch._C._ForceDispatchKeyGuard(included, excluded), torch.enable_grad():
        yield


@contextmanager
def _drawing(seed: int, device: torch.device) -> Iterator[None]:
    """Draws what the seed says, and leaves all generators as they were."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def _is_own(given: Tensor, own: Tensor, wanted: bool, grad: bool) -> bool:
    """Whether a parameter that an operator was given is the layer's own, which then need not be exchanged.

    One with hooks is not taken: they are for the user's own gradient, and would run in the operator's, too.
    """
    if type(own) is not nn.Parameter or own._backward_hooks or (grad and own.requires_grad != wanted):
        return False
    return given.data_ptr() == own.data_ptr() and _form(given) == _form(own)


def _form(t: Tensor) -> tuple[Any, ...]:
    return t.shape, t.stride(), t.dtype


def _holding(layer: nn.Module, parameters: dict[str, Tensor]) -> Any:
    """A copy of the layer with these tensors as its parameters; parts of it that have no parameter are its own.

    In the layer itself nothing is exchanged, not for a moment: other threads read it.
    """
    instead = {id(p): parameters[name] for name, p in layer.named_parameters() if parameters[name] is not p}
    if not instead:
        return layer
    copies: dict[nn.Module | None, nn.Module | None] = {None: None}

    def copied(part: nn.Module | None) -> nn.Module | None:
        if part not in copies:
            copies[part] = part
            if part is not None and next(part.parameters(), None) is not None:
                copies[part] = copy = object.__new__(type(part))
                held = {name: instead.get(id(p), p) for name, p in part._parameters.items()}
                parts = {name: copied(child) for name, child in part._modules.items()}
                vars(copy).update(underived(part), _parameters=held, _modules=parts)
        return copies[part]

    return copied(layer)


def _layer(
    tensors: list[Tensor],
    layer: int,
    names: str,
    lengths: str,
    numbers: list[int],
    bound: int,
    wanted: list[bool],
    autocast: torch.dtype | None,
) -> tuple[list[Tensor], Tensor]:
    grad = any(wanted)
    leaves = list(tensors)
    own = {"." + name: p for name, p in numbered(layer).named_parameters()}
    for i, name in enumerate(names.split(",")):
        if name in own and _is_own(tensors[i], own[name], wanted[i], grad):
            leaves[i] = own[name]
        elif wanted[i]:
            leaves[i] = tensors[i].detach().requires_grad_()
        elif grad and not _READ_AGAIN.isdisjoint(name.split("=")):
            leaves[i] = tensors[i].clone()  # what is computed from them may be kept in other ways than autograd's
    given, parameters = arguments(leaves, names, lengths, numbers)
    seed = given.pop("seed", None)
    if "number" in given:
        given["lambda_max"] = float(given.pop("number"))
    if given.pop("onto", None) is not None:
        given["edge_index"] = numbered(bound)
    owner = _holding(numbered(layer), parameters)
    lent = _Lent(leaves)
    with ExitStack() as stack:
        stack.enter_context(by_value())
        if seed is not None:
            stack.enter_context(_ONE_AT_A_TIME)
            stack.enter_context(_drawing(int(seed), tensors[0].device))
        if grad:
            stack.enter_context(_recording())
            stack.enter_context(saved_tensors_hooks(lent.pack, lent.unpack))
        if autocast is not None:
            stack.enter_context(torch.autocast(tensors[0].device.type, autocast))
        found = _listed(owner.laid_out(owner.evaluate(**given), given))
        ticket = torch.zeros((), dtype=torch.int64)
        if any(y.requires_grad for y in found):
            number = id(ticket)
            ends = [_end(y) if y.requires_grad else None for y in found]
            sought = [t for t, w in zip(leaves, wanted, strict=True) if w]
            _RECORDS[number] = _Record(ends, sought, [get_gradient_edge(t) for t in sought], lent)
            ticket.fill_(number)
            weakref.finalize(ticket, _RECORDS.pop, number, None)
    held = lent.others.union(map(_storage, tensors))
    return [_own(y.detach(), held) for y in found], ticket


def _listed(found: Any) -> list[Tensor]:
    """The results of a layer, of which a `BasisConv` has one."""
    return [found] if isinstance(found, Tensor) else list(found)


def _end(y: Tensor) -> GradientEdge:
    return get_gradient_edge(y.view_as(y) if y.grad_fn is None else y)  # of a leaf there is none


def _storage(t: Tensor) -> int:
    return t.untyped_storage()._cdata


def _own(t: Tensor, held: set[int]) -> Tensor:
    """The result of an operator, in memory that nobody else holds: compiled code may write to it."""
    t = t.clone() if _storage(t) in held else t
    held.add(_storage(t))
    return t


def _layer_fake(
    tensors: list[Tensor],
    layer: int,
    names: str,
    lengths: str,
    numbers: list[int],
    bound: int,
    wanted: list[bool],
    autocast: torch.dtype | None,
) -> tuple[list[Tensor], Tensor]:
    given, _ = arguments(tensors, names, lengths, numbers)
    owner = numbered(layer)
    found = _listed(owner.likeness(given, torch.library.get_ctx().new_dynamic_size))
    if autocast is not None:
        dtypes = (
            [autocast] if len(found) == 1 and not hasattr(owner, "dtypes") else owner.dtypes(found, given, autocast)
        )
        plain = (torch.float64, torch.int64, torch.int32)
        found = [y if y.dtype in plain else y.to(dtype) for y, dtype in zip(found, dtypes, strict=True)]
    return found, torch.empty((), dtype=torch.int64)


def _layer_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[list[Tensor], Tensor]) -> None:
    tensors, _, _, _, numbers, _, ctx.wanted, _ = inputs
    ctx.numbers = None if numbers else []  # torch takes an empty list for one of tensors
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1], *(y for y in output[0] if not y.is_floating_point()))
    ctx.save_for_backward(output[1], *tensors)


def _layer_backward(ctx: Any, grads: list[Tensor | None], _: Tensor) -> tuple[Any, ...]:
    ticket, *tensors = ctx.saved_tensors
    which = [i for i, grad in enumerate(grads) if grad is not None]
    down = [grads[i] for i in which]
    found = iter(torch.ops.basisconv.layer_backward(down, which, ticket, tensors, ctx.wanted))
    back = [next(found) if w else None for w in ctx.wanted]
    return back, None, None, None, ctx.numbers, None, None, None


@contextmanager
def _unhooked(leaves: list[Tensor]) -> Iterator[None]:
    """Sets hooks aside that parameters were given after the call, see `_is_own`."""
    if not any(t._backward_hooks for t in leaves):
        yield
        return
    with _ONE_AT_A_TIME:
        aside = [(t, t._backward_hooks) for t in leaves if t._backward_hooks]
        try:
            for t, _ in aside:
                t._backward_hooks = None
            yield
        finally:
            for t, hooks in aside:
                t._backward_hooks = hooks


def _backward(
    grads: list[Tensor], which: list[int], ticket: Tensor, tensors: list[Tensor], wanted: list[bool]
) -> list[Tensor]:
    like = [t for t, w in zip(tensors, wanted, strict=True) if w]
    if not int(ticket):  # nothing that is wanted had a part in the result
        return [t.new_zeros(t.shape) for t in like]
    record = _RECORDS.get(int(ticket))
    if record is None:
        raise RuntimeError(
            "saved_tensors_hooks: the gradient of a compiled layer needs what it saved, and no copies of it"
        )
    met = [(end, grad) for i, grad in zip(which, grads, strict=True) if (end := record.ends[i]) is not None]
    ends, down = [end for end, _ in met], [grad for _, grad in met]
    if not ends:
        return [t.new_zeros(t.shape) for t in like]
    with _recording(), _unhooked(record.leaves), record.lent.given(tensors):
        found = torch.autograd.grad(ends, record.starts, down, retain_graph=True, allow_unused=True)
    held = {_storage(t) for t in (*grads, *tensors)}
    made = (t.new_zeros(t.shape) if g is None else g.contiguous() for g, t in zip(found, like, strict=True))
    return [_own(g, held) for g in made]


def _backward_fake(
    grads: list[Tensor], which: list[int], ticket: Tensor, tensors: list[Tensor], wanted: list[bool]
) -> list[Tensor]:
    return [t.new_empty(t.shape) for t, w in zip(tensors, wanted, strict=True) if w]


def _twice(ctx: Any, *grads: Any) -> Any:
    raise NotImplementedError("create_graph=True: a compiled layer is differentiable once; call it uncompiled")


_ABOUT = "str names, str lengths, SymInt[] numbers, SymInt bound, bool[] wanted"
LIBRARY.define(
    f"layer(Tensor[] tensors, int layer, {_ABOUT}, ScalarType? autocast) -> (Tensor[], Tensor)",
    tags=torch.Tag.cudagraph_unsafe,
)
LIBRARY.impl("layer", _layer, "CompositeExplicitAutograd")
torch.library.register_fake("basisconv::layer", _layer_fake, lib=LIBRARY)
torch.library.register_autograd("basisconv::layer", _layer_backward, setup_context=_layer_context, lib=LIBRARY)
LIBRARY.define(
    "layer_backward(Tensor[] grads, int[] which, Tensor ticket, Tensor[] tensors, bool[] wanted) -> Tensor[]"
)
LIBRARY.impl("layer_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("basisconv::layer_backward", _backward_fake, lib=LIBRARY)
torch.library.register_autograd("basisconv::layer_backward", _twice, lib=LIBRARY)
