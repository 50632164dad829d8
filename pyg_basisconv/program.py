"""Programs: functions that evaluate a call like an earlier one, with the same graph and plan.

Here is what a layer keeps, and how it recognises a call; the programs themselves are at the end of conv.py and grid.py.
"""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor as in_batch  # of `autograd.grad(is_grads_batched=True)`
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch_geometric import EdgeIndex
from torch_geometric.typing import SparseTensor

from .backend import on_gpu
from .cache import Entry, Witness, constituents, drop_expired, drop_oldest, place
from .costs import rounded
from .features import is_head
from .graph import sizes
from .layouts import layout
from .theta.base import Step

_PLAIN = (Tensor, Parameter)
_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)
_LIMIT = 8  # programs that a layer keeps
FORMS = 32  # forms of calls whose plans it keeps


class Call(NamedTuple):
    """The arguments of `BasisConv.forward`, see there."""

    x: Any
    edge_index: Any = None
    edge_weight: Any = None
    edge_type: Any = None
    edge_attr: Any = None
    size: Any = None
    batch: Any = None
    lambda_max: Any = None
    mask: Any = None
    valid: Any = None
    grid: Any = None
    edge_values: Any = None
    image: bool = False  # whether x is an image, see `GridConv`


Program = Callable[[Any, Call], Any]  # from the layer and a call to its result
Builder = Callable[[Any, Any, Any], Program | None]  # from the basis, another graph, and how x is read


class Evaluation(NamedTuple):
    """How a call is evaluated that is bound and planned.

    result: computes the result of this very call.
    program: computes the results of later calls like it.
    build: makes the program for another graph without a plan; it returns None if that graph has to be bound and
        planned, and is None if every graph has to be.
    step: the order in one step, if a graph that is new need not be bound for it, see `TransientEdges`.
    """

    result: Callable[[], Any]
    program: Program
    build: Builder | None = None
    step: Step | None = None


class Form(NamedTuple):
    """What is kept of calls of one form, see `form`: the plan, and how to make a program for another graph, if they
    have no arguments beyond those that are read for it; see `Evaluation`.
    """

    plan: Any
    build: Builder | None = None
    step: Step | None = None


class Programs:
    """The programs that a layer has made, by the keys of their calls, see `call_key`.

    A key has the identity and version of all integers, the form of all features, and the modes that change a result.
    Floating point numbers that a family was bound to, such as weights of edges, are compared: see `Witness`. A program
    holds what was bound to a graph, and looks parameters up by name when it runs, as they may have been replaced.
    """

    def __init__(self) -> None:
        self._kept: dict[Hashable, Entry] = {}  # while its tensors are there, no other storage has their address
        self.forms: dict[Hashable, Form] = {}  # see `form`
        self._asked: dict[int, bool] = {}  # hashes of the keys of recent calls

    def __reduce__(self) -> tuple[type["Programs"], tuple[()]]:
        return Programs, ()  # a copy makes its own

    def __len__(self) -> int:
        return len(self._kept)

    def asked_before(self, key: Hashable) -> bool:
        """Whether a recent call had this key. If every graph comes only once, no program needs to be kept."""
        here = hash(key)
        before = self._asked.pop(here, False)
        self._asked[here] = True
        drop_oldest(self._asked, _LIMIT)
        return before

    def find(self, key: Hashable, basis: Any, call: Call) -> Program | None:
        """The program of an earlier call that was like this one."""
        kept = self._kept.get(key)
        if kept is None or (kept.witness.compares and not kept.witness.agrees(_parts(basis, call))):
            return None
        return kept.value

    def keep(self, key: Hashable, basis: Any, call: Call, program: Program, seen: Witness) -> None:
        """Keeps a program, unless the tensors that it was made from have changed since `seen`, see `witness`."""
        if seen.compares and not seen.agrees(_parts(basis, call)):  # a change of integers changes the key
            return
        kept = self._kept
        drop_expired(kept)
        kept.pop(key, None)
        drop_oldest(kept, _LIMIT - 1)
        kept[key] = Entry(seen, program)


# The indices in a call of the tensors that a family is bound to, of weights among them, of content, and of others.
_STRUCTURE, _WEIGHTS, _CONTENT, _SIZE, _VALUES = (1, 2, 3, 6, 7), 2, (4, 8, 9), 5, 11


def _parts(basis: Any, call: Call) -> list[Tensor]:
    """The dense tensors that a family is bound to."""
    found: list[Tensor] = []
    for i in _STRUCTURE:
        t = call[i]
        if i == _WEIGHTS and reads_in_each_call(basis, t):
            continue
        if type(t) is Tensor and t.layout is torch.strided:
            found.append(t)
        elif isinstance(t, Tensor) or type(t) is SparseTensor:
            held = (t,) if type(t) is Tensor else layout(t).tensors
            found += [part for one in held if one is not None for part in constituents(one)]
    return found


def witness(basis: Any, call: Call) -> Witness:
    """Of the tensors that a family is to be bound to."""
    return Witness(_parts(basis, call))


def call_key(layer: Any, call: Call) -> Hashable | None:
    """The key of a call among the programs of a layer, or None if no program of it may be kept.

    It has four parts: what the choice of a program depends on for any graph, the shapes of the features, the edges, and
    the further arguments with their indices in the call.

    It is None

    - under transforms, and while something traces; of a batch of gradients, but not of plain tensors beside it, as
      where a checkpoint computes a call again;
    - with hooks, with explainers, and with a parameter or a basis that changes in each call;
    - where weights of edges learn, unless they are an argument of their own and the basis reads no content;
    - for arguments that are no plain tensors or numbers.
    """
    x, edges, weights, kind, attr, size, batch, lambda_max, mask, valid, grid, of_edges, image = call
    modules = layer._modules
    theta, basis = modules["theta"], modules["basis"]
    own = theta._parameters
    weight = own.get("weight")
    if weight is None and "weight" not in own:
        weight = theta.reference
    if weight is None and basis.reads_content:  # whose parameters x is compared with, instead
        weight = next(basis.parameters(), None)
    if (
        torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or forward_ad._current_level >= 0
        or layer._explain
        or not layer._fused
        or theta._forward_pre_hooks
        or not basis.keeps
    ):
        return None
    if type(x) in _PLAIN and not x.is_nested and not in_batch(x):
        shapes: Any = x.shape
        features: Any = x.dtype, x.layout, x.device, x.requires_grad
    elif isinstance(x, tuple | list) and len(x) == 2 and _plain(x[0]) and (x[1] is None or _plain(x[1])):
        shapes = tuple([None if t is None else t.shape for t in x])
        of_both = [None if t is None else (t.dtype, t.layout, t.device, t.requires_grad) for t in x]
        features = *of_both, x[0] is x[1], x[1] is not None and is_head(x[1], x[0])
    else:
        return None
    numbers = None if weight is None else (weight.dtype, weight.device, weight.requires_grad)
    training = basis.has_custom and basis.training
    chosen = theta, basis, training, layer.order, layer.cached, layer.flow, torch.is_grad_enabled(), image
    modes = torch._C._is_any_autocast_enabled() and _autocast()
    graph = None if edges is None else _identity(edges) or _identity_of_edges(edges)
    if graph is None and edges is not None:
        return None
    about = features, numbers, chosen, modes
    if weights is kind is attr is size is batch is lambda_max is mask is valid is grid is of_edges is None:  # as a rule
        return about, shapes, graph, ()
    others: list[Hashable] = []
    found: Hashable | None
    for i, t in enumerate(call[2:-1], 2):
        if t is None:
            continue
        if i == _WEIGHTS and reads_in_each_call(basis, t):
            found = (t.shape, t.dtype, t.layout, t.device) if _plain(t) else None
        elif i in _STRUCTURE:
            found = t if type(t) in (int, float) else _identity(t)
        elif i in _CONTENT:
            found = (t.shape, t.dtype, t.layout, t.device, t.requires_grad) if _plain(t) else None
        elif i == _VALUES:
            w: Any = getattr(t, "weight", None)
            found = (t, w.shape, w.dtype, w.device, w.requires_grad) if _plain(w) else None
        else:
            found = _numbers(t)
        if found is None:
            return None
        others.append((i, found))
    return about, shapes, graph, tuple(others)


def form(layer: Any, key: Any, call: Call) -> Hashable | None:
    """The key that a call shares with calls on other graphs of about its size; None if sizes depend on its numbers.

    key: its own, see `call_key`.
    """
    about, shapes, _, others = key
    basis = layer._modules["basis"]
    if basis.counts_batch or torch._C._get_tracing_state():  # under torch.jit, sizes are tensors
        return None
    found: list[Hashable] = [about, basis.training]
    for shape in (shapes,) if isinstance(shapes, torch.Size) else shapes:
        found.append(None if shape is None else (shape[:-2], *map(rounded, shape[-2:-1]), shape[-1:]))
    for i, seen in ((1, None), *others):
        t = call[i]
        if i == _VALUES:
            found.append(seen)
        elif i == _SIZE:
            found.append((i, *[None if n is None else rounded(n) for n in sizes(t)]))
        elif t is None or isinstance(t, float):
            found.append(i)
        elif isinstance(t, Tensor):
            entries = t._nnz() if t.layout in _SPARSE else t.numel()
            in_each_call = i == _WEIGHTS and reads_in_each_call(basis, t)
            found.append((i, type(t), t.dtype, t.layout, t.dim(), rounded(entries), in_each_call))
        else:
            return None
    return tuple(found)


def _autocast() -> Hashable:
    """The dtype that each device casts to, where it does."""
    return tuple([torch.get_autocast_dtype(d) if torch.is_autocast_enabled(d) else None for d in ("cpu", "cuda")])


def reads_in_each_call(basis: Any, weight: Any) -> bool:
    """Whether a family is bound to weights of edges in each call: to those that learn, or are computed anew; and on a
    GPU, where a comparison with earlier ones would wait, to all that it takes unseen.
    """
    if not isinstance(weight, Tensor) or basis.reads_content:
        return False
    return weight.requires_grad or basis.weights_are_new or (basis.binds_unseen and on_gpu(weight))


def _plain(t: Any) -> bool:
    return type(t) in _PLAIN and not t.is_nested and not in_batch(t)


def _numbers(n: Any) -> Hashable | None:
    """The key of a size, or of the shape of a grid."""
    if type(n) is int:
        return n
    fits = isinstance(n, tuple | list) and all(one is None or type(one) is int for one in n)
    return tuple(n) if fits else None


def _identity(t: Any) -> Hashable | None:
    """The place and version of a dense tensor that a family is bound to; None for anything else."""
    if type(t) is not Tensor or t.layout is not torch.strided:
        return None
    dtype = t.dtype
    integer = dtype is torch.int64
    if t.is_nested or t.is_inference() or (not integer and (t.requires_grad or in_batch(t))):
        return None
    version = t._version if integer or not dtype.is_floating_point else None
    here = t.untyped_storage()._cdata, t.storage_offset(), t.shape, t.stride(), dtype  # as `place`, without its call
    return here, version


def _identity_of_edges(edges: Any) -> Hashable | None:
    """The same of edges in another layout, or of a bound family in their place."""
    if hasattr(edges, "serial"):  # of a bound family
        return None if edges.requires_grad else edges.serial
    if not (type(edges) in (EdgeIndex, SparseTensor) or (isinstance(edges, Tensor) and edges.layout in _SPARSE)):
        return None
    held = layout(edges)
    key: list[Hashable] = [held.form]
    for t in held.tensors:
        if t is None:
            key.append(None)
            continue
        if type(t) not in _PLAIN or t.requires_grad or t.is_inference():
            return None
        for part in constituents(t):
            version = None if part.is_floating_point() else part._version
            key.append((place(part), version))
    return tuple(key)
