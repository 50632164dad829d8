"""What autograd records inside of an operator, kept for the operator's derivative."""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ..cache import constituents

_AUTOGRAD = (
    DispatchKey.AutogradFunctionality,
    DispatchKey.AutogradOther,
    DispatchKey.AutogradNestedTensor,
    DispatchKey.ADInplaceOrView,
)


class Record(NamedTuple):
    """What autograd recorded of one evaluation.

    outputs: where the record ends, for each result through which a gradient passes, and None for other results.
    leaves: the tensors where the record begins, some of which may be parameters of the layer.
    inputs: where the record begins, even if a leaf no longer requires a gradient.
    saved: replaces the operator's arguments among what autograd saved.
    """

    outputs: list[GradientEdge | None]
    leaves: list[Tensor]
    inputs: list[GradientEdge]
    saved: "SavedArguments"


_RECORDS: dict[int, Record] = {}  # by the number in their ticket


def keep_record(found: Sequence[Tensor], leaves: list[Tensor], saved: "SavedArguments") -> Tensor:
    """Keeps the record of results while the ticket that is returned lives; 0 is in it if there is none.

    leaves: the arguments that need a gradient.
    """
    ticket = torch.zeros((), dtype=torch.int64, device="cpu")
    if any(y.requires_grad for y in found):
        number = id(ticket)
        outputs = [_gradient_edge(y) if y.requires_grad else None for y in found]
        _RECORDS[number] = Record(outputs, leaves, [get_gradient_edge(t) for t in leaves], saved)
        ticket.fill_(number)
        weakref.finalize(ticket, _RECORDS.pop, number, None)
    return ticket


def find_record(ticket: Tensor) -> Record | None:
    """The record of a ticket, or None if no gradient passed through its results."""
    record = _RECORDS.get(int(ticket))
    if record is None and int(ticket):
        raise RuntimeError(
            "saved_tensors_hooks: the gradient of a compiled layer needs what it saved, and no copies of it"
        )
    return record


def _gradient_edge(y: Tensor) -> GradientEdge:
    return get_gradient_edge(y.view_as(y) if y.grad_fn is None else y)  # a leaf has no edge to its results


class SavedArguments:
    """Hooks for what autograd saves: of the operator's arguments they keep the index and the view, not the memory.

    Compiled code may reuse the memory of an argument after the call. It passes the arguments again to the derivative.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._given: Sequence[Tensor] = ()
        self._lock = RLock()  # not a variable of the thread: autograd may unpack in a thread of its own
        self.others: set[int] = set()  # the storages of all else that was saved
        self._index = {storage_id(t): i for i, t in sorted(enumerate(tensors), key=lambda it: it[1].numel())}
        self._layout = [(t.stride(), t.storage_offset()) for t in tensors]

    @contextmanager
    def given(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Within it, the arguments are these; for one derivative at a time, or for one within another."""
        with self._lock:
            before, self._given = self._given, tensors
            try:
                yield
            finally:
                self._given = before

    def pack(self, t: Tensor) -> Any:
        parts = [storage_id(part) for part in constituents(t)]
        index = self._index.get(parts[0]) if t.layout == torch.strided else None
        if index is None:
            self.others.update(parts)
            return t.detach()  # its history would refer to itself, and never be freed
        return index, t.shape, t.stride(), t.storage_offset() - self._layout[index][1]

    def unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        index, shape, stride, offset = packed
        t = self._given[index].detach()
        if t.stride() != self._layout[index][0]:
            laid_out = torch.empty_strided(t.shape, self._layout[index][0], dtype=t.dtype, device=t.device)
            t = laid_out.copy_(t)
        if (t.shape, t.stride(), 0) == (shape, stride, offset):
            return t
        return t.as_strided(shape, stride, t.storage_offset() + offset)


@contextmanager
def recording() -> Iterator[None]:
    """Lets autograd record what is computed inside of an operator."""
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    for key in _AUTOGRAD:
        excluded = excluded.remove(key)
    with torch._C._ForceDispatchKeyGuard(included, excluded), torch.enable_grad():
        yield


def storage_id(t: Tensor) -> int:
    """Equal for tensors that share memory."""
    return t.untyped_storage()._cdata
