"""The operator that stands for a layer in compiled code, and its derivative."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.dropout import _DropoutNd

from ..cache import compared_by_value, without_cached
from .arguments import Flattened, arguments, is_float, tensor_indices
from .recording import SavedArguments, find_record, keep_record, recording, storage_id
from .serial import in_each_process, of_serial

LIBRARY = torch.library.Library("basisconv", "DEF")
# Arguments that the derivative may read even if no gradient is computed for them. It can read them in other ways than
# from what autograd saved, so that it gets copies.
_READ_AGAIN = {"mask", "valid", "edge_attr", "attn_mask", "key_padding_mask"}
_LOCK: Any  # held by the one thread that draws random numbers, or sets hooks aside


@in_each_process  # a thread that a child does not have may hold the lock of its parent
def _new_lock() -> None:
    global _LOCK
    _LOCK = RLock()


def applies(layer: Any, *given: Any) -> bool:
    """Whether torch.compile is tracing, and the operator can stand for a call with these tensors.

    It takes dense tensors, and layers that know their widths. It does not support transforms of torch.func, nor
    explainers, whose mask is not an argument.
    """
    if not torch.compiler.is_dynamo_compiling() or torch.compiler.is_exporting():
        return False
    replica = getattr(layer, "_is_replica", False)  # the tensors of a replica are not parameters
    if replica or layer.is_explained or layer.is_lazy or torch._C._are_functorch_transforms_active():
        return False
    return not any(isinstance(t, Tensor) and t.layout != torch.strided for t in given)


def _draws(part: nn.Module) -> bool:
    drops = bool(getattr(part, "dropout", 0.0)) or isinstance(part, _DropoutNd)
    return drops and part.training  # last: torch.compile traces anew when what is read changes


def results(layer: Any, given: dict[str, Any]) -> list[Tensor]:
    """All results of a layer for these arguments, by the operator. torch.compile traces this function.

    Args:
        layer: a `BasisConv`, or a module with the same `evaluate`, `laid_out`, `fake_result` and `serial`.
        given: the arguments of its `evaluate` by name; None is left out.
    """
    flat = Flattened()
    for name, value in given.items():
        if name == "edge_index" and hasattr(value, "serial"):  # a bound basis
            flat.add("onto", (value.N,) if value.target_grid is None else value.target_grid)
            flat.add("bound", value.serial)
        elif value is not None:
            flat.add(name, value)
    for name, parameter in layer.named_parameters():
        flat.add_parameter(name, parameter)
    if any(_draws(part) for part in layer.modules()):
        # Each call draws anew; a call that is made again, as with checkpoints, draws the same.
        flat.add("seed", torch.randint(1 << 60, (), device="cpu"))
    tensors, device = flat.tensors, flat.tensors[0].device.type
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    grad = torch.is_grad_enabled()
    needs = [grad and t.requires_grad for t in tensors]
    operator = torch.ops.basisconv.layer
    return operator(tensors, layer.serial, flat.text, flat.integers, needs, autocast)[0]


@torch.compiler.disable  # torch.compile would trace it when the operator runs
def _layer(
    tensors: list[Tensor], layer: int, text: str, integers: list[int], needs: list[bool], autocast: torch.dtype | None
) -> tuple[list[Tensor], Tensor]:
    grad, index, owner = any(needs), tensor_indices(text), of_serial(layer)
    own = {index["." + name]: parameter for name, parameter in owner.named_parameters()}
    again = {index[name] for name in _READ_AGAIN & index.keys()} if grad else set()
    leaves = list(tensors)
    for i, t in enumerate(tensors):
        if i in own and _is_same(t, own[i], needs[i], grad):
            leaves[i] = own[i]
        elif needs[i]:
            leaves[i] = t.detach().requires_grad_()
        elif i in again:
            leaves[i] = t.clone()
    given = arguments(text, leaves, integers)
    parameters = {name[1:]: given.pop(name) for name in index if name.startswith(".")}
    seed = given.pop("seed", None)
    if is_float(text, "lambda_max"):
        given["lambda_max"] = float(given["lambda_max"])
    if given.pop("onto", None) is not None:
        given["edge_index"] = of_serial(given.pop("bound"))
    owner = _with_parameters(owner, parameters)
    saved = SavedArguments(leaves)
    with ExitStack() as stack:
        stack.enter_context(compared_by_value())
        if seed is not None:
            stack.enter_context(_LOCK)
            stack.enter_context(_seeded(int(seed), tensors[0].device))
        if grad:
            stack.enter_context(recording())
            stack.enter_context(saved_tensors_hooks(saved.pack, saved.unpack))
        if autocast is not None:
            stack.enter_context(torch.autocast(tensors[0].device.type, autocast))
        found = _as_list(owner.laid_out(owner.evaluate(**given), given))
        ticket = keep_record(found, [t for t, needed in zip(leaves, needs, strict=True) if needed], saved)
    held = saved.others.union(map(storage_id, tensors))
    return [_unaliased(y.detach(), held) for y in found], ticket


def _is_same(given: Tensor, own: Tensor, needs: bool, grad: bool) -> bool:
    """Whether a parameter that the operator was given can be replaced by the layer's own.

    A parameter with hooks cannot: they are for the user's own gradient, and would run in the operator's, too.
    """
    if type(own) is not nn.Parameter or own._backward_hooks or (grad and own.requires_grad != needs):
        return False
    same_form = (given.shape, given.stride(), given.dtype) == (own.shape, own.stride(), own.dtype)
    return same_form and given.data_ptr() == own.data_ptr()


def _with_parameters(layer: nn.Module, parameters: dict[str, Tensor]) -> Any:
    """A copy of the layer with these parameters; parts that have no parameters are shared with the layer.

    The layer itself is not changed, not even for a moment, as other threads read it.
    """
    replaced = {id(p): parameters[name] for name, p in layer.named_parameters() if parameters[name] is not p}
    if not replaced:
        return layer
    copies: dict[nn.Module | None, nn.Module | None] = {None: None}

    def copied(part: nn.Module | None) -> nn.Module | None:
        if part not in copies:
            copies[part] = part
            if part is not None and next(part.parameters(), None) is not None:
                copies[part] = copy = object.__new__(type(part))
                own = {name: replaced.get(id(p), p) for name, p in part._parameters.items()}
                parts = {name: copied(child) for name, child in part._modules.items()}
                vars(copy).update(without_cached(part), _parameters=own, _modules=parts)
        return copies[part]

    return copied(layer)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seeds the generators, and restores them afterwards."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def _as_list(found: Any) -> list[Tensor]:
    """The results of a layer; a `BasisConv` has one."""
    return [found] if isinstance(found, Tensor) else list(found)


def _unaliased(t: Tensor, held: set[int]) -> Tensor:
    """A result in memory that nothing else shares, as compiled code may write to it; adds its storage to `held`."""
    t = t.clone() if storage_id(t) in held else t
    held.add(storage_id(t))
    return t


def _layer_fake(
    tensors: list[Tensor], layer: int, text: str, integers: list[int], needs: list[bool], autocast: torch.dtype | None
) -> tuple[list[Tensor], Tensor]:
    given, owner = arguments(text, tensors, integers), of_serial(layer)
    found = _as_list(owner.fake_result(given, torch.library.get_ctx().new_dynamic_size))
    if autocast is not None:
        dtypes = (
            [autocast] if len(found) == 1 and not hasattr(owner, "dtypes") else owner.dtypes(found, given, autocast)
        )
        plain = (torch.float64, torch.int64, torch.int32)
        found = [y if y.dtype in plain else y.to(dtype) for y, dtype in zip(found, dtypes, strict=True)]
    return found, torch.empty((), dtype=torch.int64, device="cpu")


def _layer_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[list[Tensor], Tensor]) -> None:
    tensors, _, _, integers, ctx.needs, _ = inputs
    ctx.no_integers = None if integers else []  # the gradient of an empty list, which torch takes for one of tensors
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1], *(y for y in output[0] if not y.is_floating_point()))
    ctx.save_for_backward(output[1], *tensors)


def _layer_backward(ctx: Any, grads: list[Tensor | None], _: Tensor) -> tuple[Any, ...]:
    ticket, *tensors = ctx.saved_tensors
    which = [i for i, grad in enumerate(grads) if grad is not None]
    given = [grads[i] for i in which]
    found = iter(torch.ops.basisconv.layer_backward(given, which, ticket, tensors, ctx.needs))
    return [next(found) if needed else None for needed in ctx.needs], None, None, ctx.no_integers, None, None


@contextmanager
def _without_hooks(leaves: list[Tensor]) -> Iterator[None]:
    """Sets aside the hooks that parameters were given after the call, see `_is_same`."""
    if not any(t._backward_hooks for t in leaves):
        yield
        return
    with _LOCK:
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
    grads: list[Tensor], which: list[int], ticket: Tensor, tensors: list[Tensor], needs: list[bool]
) -> list[Tensor]:
    """The gradients of the arguments that need one, for those of the results with the indices `which`."""
    inputs = [t for t, needed in zip(tensors, needs, strict=True) if needed]
    record = find_record(ticket)
    outputs = [None] * len(which) if record is None else [record.outputs[i] for i in which]
    pairs = [(edge, grad) for edge, grad in zip(outputs, grads, strict=True) if edge is not None]
    if record is None or not pairs:  # no argument that needs a gradient had a part in these results
        return [t.new_zeros(t.shape) for t in inputs]
    with recording(), _without_hooks(record.leaves), record.saved.given(tensors):
        edges, given = [edge for edge, _ in pairs], [grad for _, grad in pairs]
        found = torch.autograd.grad(edges, record.inputs, given, retain_graph=True, allow_unused=True)
    held = {storage_id(t) for t in (*grads, *tensors)}
    made = (t.new_zeros(t.shape) if g is None else g.contiguous() for g, t in zip(found, inputs, strict=True))
    return [_unaliased(g, held) for g in made]


def _backward_fake(
    grads: list[Tensor], which: list[int], ticket: Tensor, tensors: list[Tensor], needs: list[bool]
) -> list[Tensor]:
    return [t.new_empty(t.shape) for t, needed in zip(tensors, needs, strict=True) if needed]


def _refuse_second_derivative(ctx: Any, *grads: Any) -> Any:
    raise NotImplementedError("create_graph=True: a compiled layer is differentiable once; call it uncompiled")


_ARGUMENTS = "str text, SymInt[] integers, bool[] needs, ScalarType? autocast"
LIBRARY.define(
    f"layer(Tensor[] tensors, int layer, {_ARGUMENTS}) -> (Tensor[], Tensor)",
    tags=torch.Tag.cudagraph_unsafe,
)
LIBRARY.impl("layer", _layer, "CompositeExplicitAutograd")
torch.library.register_fake("basisconv::layer", _layer_fake, lib=LIBRARY)
torch.library.register_autograd("basisconv::layer", _layer_backward, setup_context=_layer_context, lib=LIBRARY)
LIBRARY.define("layer_backward(Tensor[] grads, int[] which, Tensor ticket, Tensor[] tensors, bool[] needs) -> Tensor[]")
LIBRARY.impl("layer_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("basisconv::layer_backward", _backward_fake, lib=LIBRARY)
torch.library.register_autograd("basisconv::layer_backward", _refuse_second_derivative, lib=LIBRARY)
