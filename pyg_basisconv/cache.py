"""Results kept for as long as the tensors they came from live and stay as they were."""

import functools
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Parameter

from .portable import faked, portable

_T = TypeVar("_T")
_PLAIN = (Tensor, Parameter)
_LASTING = 8  # how much is kept that depends on no tensor, which nothing else would make leave
_DOUBTED = ContextVar("_DOUBTED", default=False)
_BLOCKS = (torch.sparse_bsr, torch.sparse_bsc)  # layouts that nothing here takes


class cached_property(functools.cached_property[_T]):
    """As Python has it from 3.12 on: the lock of before is one for all instances, and a fork leaves it taken."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        return vars(instance).setdefault(self.attrname, self.func(instance))


class kept(cached_property[Any]):
    """A cached property of tensors; its first use may fall into inference mode and its next into training.

    What is computed in the portable path is not kept: it may have no numbers, or be a transform's.
    """

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is not None and portable():
            return self.func(instance)
        with torch.inference_mode(False):
            return super().__get__(instance, owner)


def memo(store: dict[Any, Any], key: Hashable, build: Callable[[], Any]) -> Any:
    """What `build()` gave when first asked for under `key` of a store; the same as for `kept` holds."""
    if key in store:
        return store[key]
    if portable():
        return build()
    with torch.inference_mode(False):
        return store.setdefault(key, build())


def shorten(store: dict[Any, Any], limit: int) -> None:
    """Lets go of the oldest that is kept; other threads may do so at the same time."""
    for key in list(store)[:-limit]:
        store.pop(key, None)


def underived(thing: object) -> dict[str, Any]:
    """The attributes of a thing without its cached properties, which a copy finds anew: for `__getstate__`."""
    cls = type(thing)
    own = vars(thing).copy()  # which other threads may add to
    return {name: v for name, v in own.items() if not isinstance(getattr(cls, name, None), functools.cached_property)}


class _Entry(NamedTuple):
    """What is kept, and what it was made of: versions and storages, and copies where a version may not tell."""

    versions: list[int]
    refs: list[StorageWeakRef]
    value: Any
    copies: list[Tensor] | None

    def of(self, versions: list[int], parts: list[Tensor]) -> bool:
        if self.versions != versions:
            return False
        return self.copies is None or all(map(torch.equal, self.copies, parts))


class IdentityCache:
    """A memo whose keys are tensors, by storage, view and version, never by value or by shape.

    An in-place change of a tensor, or another tensor in the same place, is another key. What is kept must own its
    memory (hold no alias of a key), so that the key can die; entries whose tensors are gone leave at the next miss, and
    the oldest ones when there are more than `limit`.
    Writes that torch does not count (`tensor.data`, shared NumPy memory) cannot be seen; those of compiled code can,
    see `by_value`.

    >>> cache = IdentityCache()
    >>> t = torch.zeros(2)
    >>> cache.get((t,), 'sum', lambda: 'first'), cache.get((t,), 'sum', lambda: 'again')
    ('first', 'first')
    >>> _ = t.add_(1)
    >>> cache.get((t,), 'sum', lambda: 'again')
    'again'
    """

    def __init__(self, limit: int = 256) -> None:
        self._limit = limit
        self._entries: dict[Hashable, _Entry] = {}
        self._lasting: dict[Hashable, _Entry] = {}
        self._last: tuple[Hashable, list[_Seen], Any] | None = None

    def __reduce__(self) -> tuple[type["IdentityCache"], tuple[int]]:
        return IdentityCache, (self._limit,)  # a copy knows other tensors

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, tensors: tuple[Tensor | None, ...], extra: Hashable, build: Callable[[], Any]) -> Any:
        """What `build()` gave when last called for these very tensors and `extra`, or gives now."""
        if portable() or torch.compiler.is_compiling() or faked():
            return build()
        # Most calls repeat the one before, with the same Python objects: these are recognised without a look at
        # their storages.
        last = self._last
        if last is not None and last[0] == extra and len(last[1]) == len(tensors) and all(map(_seen, last[1], tensors)):
            return last[2]
        for t in tensors:
            if t is None:
                continue
            if type(t) not in _PLAIN or t.requires_grad or t.is_inference() or t.layout in _BLOCKS:
                return build()
        parts = [part for t in tensors if t is not None for part in constituents(t)]
        places = (None if t is None else (t.layout, t.shape) for t in tensors)
        key = (extra, *places, *(_place(part) for part in parts))
        versions = [part._version for part in parts]
        entry = self._entries.get(key) if parts else self._lasting.get(key)
        if entry is not None and not parts:
            self._lasting.pop(key, None)  # those that are asked for stay
            self._lasting[key] = entry
        if entry is None or not entry.of(versions, parts):
            # A storage that has died keeps its address until its weak references go: a newcomer has another key.
            for dead in [k for k, e in self._entries.copy().items() if any(r.expired() for r in e.refs)]:
                self._entries.pop(dead, None)
            self._last = None
            with torch.inference_mode(False):
                value = build()
            copies = [part.clone() for part in parts] if _DOUBTED.get() else None
            entry = _Entry(versions, [StorageWeakRef(part.untyped_storage()) for part in parts], value, copies)
            kept_apart, limit = (self._entries, self._limit) if parts else (self._lasting, _LASTING)
            kept_apart.pop(key, None)
            kept_apart[key] = entry
            shorten(kept_apart, limit)
        if entry.copies is None:
            self._last = extra, [_see(t) for t in tensors], entry.value
        return entry.value


@contextmanager
def by_value() -> Iterator[None]:
    """Where tensors may be written to without torch's counting it: what is kept of them is compared by value."""
    token = _DOUBTED.set(True)
    try:
        yield
    finally:
        _DOUBTED.reset(token)


def constituents(t: Tensor) -> tuple[Tensor, ...]:
    """The strided tensors that a tensor consists of: indices first and values last, where it is sparse."""
    if t.layout == torch.sparse_csr:
        return t.crow_indices(), t.col_indices(), t.values()
    if t.layout == torch.sparse_csc:
        return t.ccol_indices(), t.row_indices(), t.values()
    if t.layout == torch.sparse_coo:
        return t._indices(), t.values() if t.is_coalesced() else t._values()
    return (t,)


def _place(t: Tensor) -> Hashable:
    return t.untyped_storage()._cdata, t.storage_offset(), t.shape, t.stride(), t.dtype


_Seen = tuple[weakref.ref[Tensor], int, int] | None


def _see(t: Tensor | None) -> _Seen:
    return None if t is None else (weakref.ref(t), t._version, _address(t))


def _seen(seen: _Seen, t: Tensor | None) -> bool:
    if seen is None or t is None:
        return seen is None and t is None
    ref, version, address = seen
    return ref() is t and t._version == version and _address(t) == address and not t.requires_grad


def _address(t: Tensor) -> int:
    return t.data_ptr() if t.layout == torch.strided else 0
