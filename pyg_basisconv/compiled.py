"""A whole layer as one operator, for `torch.compile`.

A compiled graph holds `torch.ops.basisconv.layer`, whose result's shape is known beforehand; when it runs, the layer is
evaluated as it is without compilation: checked, bound, planned, and from the same caches. Its derivative is an operator
too, which follows the record that autograd made inside of the first.
"""

import ast
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

from .cache import by_value, shorten, underived
from .errors import reject
from .kernels.op import LIBRARY

_AUTOGRAD = (
    DispatchKey.AutogradFunctionality,
    DispatchKey.AutogradOther,
    DispatchKey.AutogradNestedTensor,
    DispatchKey.ADInplaceOrView,
)
_READ_AGAIN = {"mask", "valid", "edge_attr", "attn_mask", "key_padding_mask"}  # and not by autograd, for the derivative
_LIVING: dict[int, weakref.ref[Any]] = {}
_READ: dict[str, dict[str, Any]] = {}  # the forms of calls, see `arguments`
_FORMS = 1024  # that are kept


_COUNT: "count[int]"
_ONE_AT_A_TIME: Any  # thread may change the state of what draws


def _renew() -> None:
    """Numbers that no other process has, as what it has compiled is kept on disk; and a lock that no thread holds."""
    global _COUNT, _ONE_AT_A_TIME
    _COUNT, _ONE_AT_A_TIME = count(secrets.randbits(40) << 22), RLock()


_renew()
if hasattr(os, "register_at_fork"):  # not on Windows, which has no forks
    os.register_at_fork(after_in_child=_renew)


def serial_number(thing: Any) -> int:
    """A number by which an operator can name a layer, or a bound basis, for as long as it lives."""
    number = next(_COUNT)
    # What dies takes its entry along. A `WeakValueDictionary` does so too, at several times the cost.
    _LIVING[number] = weakref.ref(thing, partial(_LIVING.pop, number))
    return number


def of_serial(number: int) -> Any:
    """What has a number."""
    return _LIVING[number]()


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
    numbers: list[int] = []
    form = ""  # the literal of a dictionary, see `arguments`

    def place(name: str, value: Any) -> str:
        if isinstance(value, Tensor):
            for i, other in enumerate(tensors):
                if other is value:
                    return f"'t{i}'"
            tensors.append(value)
            return f"'t{len(tensors) - 1}'"
        if value is None or isinstance(value, bool):
            return str(value)
        if isinstance(value, float):  # which torch.compile would take for a constant
            tensors.append(torch.scalar_tensor(value, dtype=torch.float64))
            return f"'f{len(tensors) - 1}'"
        if isinstance(value, int):
            numbers.append(value)
            return f"'n{len(numbers) - 1}'"
        if isinstance(value, tuple | list):
            return "(" + "".join([place(name, part) + "," for part in value]) + ")"
        return reject(name, "a tensor, under torch.compile", type(value).__name__, "call this layer outside of it")

    for name, value in given.items():
        if name == "edge_index" and hasattr(value, "serial"):
            onto = (value.N,) if value.target_grid is None else value.target_grid
            form += f"'onto':{place(name, onto)},'bound':{place(name, value.serial)},"
        elif value is not None:
            form += f"'{name}':{place(name, value)},"
    for name, parameter in layer.named_parameters():
        tensors.append(parameter)
        form += f"'.{name}':'t{len(tensors) - 1}',"
    if any(_draws(part) for part in layer.modules()):
        # Two calls are two draws, and one that is made again is the same.
        form += f"'seed':{place('seed', torch.randint(1 << 60, ()))},"
    device = tensors[0].device.type
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    grad = torch.is_grad_enabled()
    wanted = [grad and t.requires_grad for t in tensors]
    found: list[Tensor] = torch.ops.basisconv.layer(tensors, layer.serial, form, numbers, wanted, autocast)[0]
    return found


def _places(form: str) -> dict[str, Any]:
    """The literal, read: what stands there is read only."""
    found = _READ.get(form)  # torch.compile would warn of an `lru_cache`
    if found is None:
        found = _READ[form] = ast.literal_eval(f"{{{form}}}")
        shorten(_READ, _FORMS)
    return found


def arguments(form: str, tensors: Sequence[Tensor], numbers: Sequence[int]) -> dict[str, Any]:
    """What `results` writes down, by name: t3 and n3 are a tensor and a number, f3 is the tensor of a float.

    Parameters have a dot in front.

    >>> arguments("'x':('t0',None),'size':('n0','n1'),", [torch.zeros(1)], [3, 4])
    {'x': (tensor([0.]), None), 'size': (3, 4)}
    """

    def at(place: Any) -> Any:
        if isinstance(place, tuple):
            return tuple(map(at, place))
        return (numbers if place[0] == "n" else tensors)[int(place[1:])] if isinstance(place, str) else place

    return {name: at(place) for name, place in _places(form).items()}


def _indices(form: str) -> dict[str, int]:
    """Which tensors the arguments are that are one each."""
    return {name: int(p[1:]) for name, p in _places(form).items() if isinstance(p, str) and p[0] == "t"}


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


@torch.compiler.disable  # it would be looked into when the operator runs
def _layer(
    tensors: list[Tensor], layer: int, form: str, numbers: list[int], wanted: list[bool], autocast: torch.dtype | None
) -> tuple[list[Tensor], Tensor]:
    grad, at, owner = any(wanted), _indices(form), of_serial(layer)
    own = {at["." + name]: parameter for name, parameter in owner.named_parameters()}
    again = {at[name] for name in _READ_AGAIN & at.keys()} if grad else set()
    leaves = list(tensors)
    for i, t in enumerate(tensors):
        if i in own and _is_own(t, own[i], wanted[i], grad):
            leaves[i] = own[i]
        elif wanted[i]:
            leaves[i] = t.detach().requires_grad_()
        elif i in again:
            leaves[i] = t.clone()  # what is computed from it may be kept in other ways than autograd's
    given = arguments(form, leaves, numbers)
    parameters = {name[1:]: given.pop(name) for name in at if name.startswith(".")}
    seed = given.pop("seed", None)
    if _places(form).get("lambda_max", "")[:1] == "f":
        given["lambda_max"] = float(given["lambda_max"])
    if given.pop("onto", None) is not None:
        given["edge_index"] = of_serial(given.pop("bound"))
    owner = _holding(owner, parameters)
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
    tensors: list[Tensor], layer: int, form: str, numbers: list[int], wanted: list[bool], autocast: torch.dtype | None
) -> tuple[list[Tensor], Tensor]:
    given, owner = arguments(form, tensors, numbers), of_serial(layer)
    found = _listed(owner.likeness(given, torch.library.get_ctx().new_dynamic_size))
    if autocast is not None:
        dtypes = (
            [autocast] if len(found) == 1 and not hasattr(owner, "dtypes") else owner.dtypes(found, given, autocast)
        )
        plain = (torch.float64, torch.int64, torch.int32)
        found = [y if y.dtype in plain else y.to(dtype) for y, dtype in zip(found, dtypes, strict=True)]
    return found, torch.empty((), dtype=torch.int64)


def _layer_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[list[Tensor], Tensor]) -> None:
    tensors, _, _, numbers, ctx.wanted, _ = inputs
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
    return back, None, None, ctx.numbers, None, None


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


@torch.compiler.disable
def _backward(
    grads: list[Tensor], which: list[int], ticket: Tensor, tensors: list[Tensor], wanted: list[bool]
) -> list[Tensor]:
    like = [t for t, w in zip(tensors, wanted, strict=True) if w]
    record = _RECORDS.get(int(ticket))
    if record is None and int(ticket):
        raise RuntimeError(
            "saved_tensors_hooks: the gradient of a compiled layer needs what it saved, and no copies of it"
        )
    ends = [None] * len(which) if record is None else [record.ends[i] for i in which]
    met = [(end, grad) for end, grad in zip(ends, grads, strict=True) if end is not None]
    if record is None or not met:  # nothing that is wanted had a part in the result
        return [t.new_zeros(t.shape) for t in like]
    with _recording(), _unhooked(record.leaves), record.lent.given(tensors):
        edges, down = [end for end, _ in met], [grad for _, grad in met]
        found = torch.autograd.grad(edges, record.starts, down, retain_graph=True, allow_unused=True)
    held = {_storage(t) for t in (*grads, *tensors)}
    made = (t.new_zeros(t.shape) if g is None else g.contiguous() for g, t in zip(found, like, strict=True))
    return [_own(g, held) for g in made]


def _backward_fake(
    grads: list[Tensor], which: list[int], ticket: Tensor, tensors: list[Tensor], wanted: list[bool]
) -> list[Tensor]:
    return [t.new_empty(t.shape) for t, w in zip(tensors, wanted, strict=True) if w]


def _twice(ctx: Any, *grads: Any) -> Any:
    raise NotImplementedError("create_graph=True: a compiled layer is differentiable once; call it uncompiled")


_ABOUT = "str form, SymInt[] numbers, bool[] wanted, ScalarType? autocast"
LIBRARY.define(
    f"layer(Tensor[] tensors, int layer, {_ABOUT}) -> (Tensor[], Tensor)",
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
