"""Caches of results, which last as long as the tensors that they came from live and stay unchanged."""

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

from .backend import KERNELS
from .portable import in_fake_mode, portable

_T = TypeVar("_T")
Place = tuple[Any, ...]  # of a tensor: see `place`
_PLAIN = (Tensor, Parameter)
# What `torch.multiprocessing.reductions.StorageWeakRef` wraps in two Python functions each.
_expired, _release = torch.UntypedStorage._expired, torch.UntypedStorage._free_weak_ref
_WITHOUT_TENSORS = 8  # results kept that depend on no tensor, which only this limit drops
_MAX_BYTES = 64 << 20  # of all tensors that are keys of a cache
_NEWEST = 4  # entries that stay, whatever their size
_MISSING: Any = object()
_CHECKED = 8  # entries that `drop_expired` checks at most
_COMPARED_BY_VALUE = ContextVar("_COMPARED_BY_VALUE", default=False)
_BLOCKS = (torch.sparse_bsr, torch.sparse_bsc)  # layouts that nothing here takes


class cached_property(functools.cached_property[_T]):
    """Python's, as it is from 3.12 on: before, one lock serves all instances, and a fork may leave it locked. What is
    cached is made outside of inference mode, as later calls may train.
    """

    if not TYPE_CHECKING:  # there, it has the type that Python's has

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            if instance is None:
                return self
            inferring = torch.is_inference_mode_enabled()
            made = outside_inference_mode(self.func, instance) if inferring else self.func(instance)
            return vars(instance).setdefault(self.attrname, made)


def outside_inference_mode(build: Callable[..., _T], *args: Any) -> _T:
    """The result of `build(*args)`, made outside of inference mode, since its tensors could not be used in training."""
    if not torch.is_inference_mode_enabled():
        return build(*args)
    with torch.inference_mode(False), torch.no_grad():
        return build(*args)


class kept(cached_property[_T]):
    """A cached property that holds tensors. In the portable path, where these may be fake ones or a transform's,
    nothing is cached.
    """

    if not TYPE_CHECKING:

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            if instance is None:
                return self
            return memo(vars(instance), self.attrname, self.func, instance)


def memo(store: dict[Any, Any], key: Hashable, build: Callable[..., _T], *args: Any) -> _T:
    """The result of `build(*args)`, cached in a dictionary under `key`, as `kept` does for attributes."""
    found = store.get(key, _MISSING)
    if found is not _MISSING:
        return found
    if portable():
        return build(*args)
    made = outside_inference_mode(build, *args) if torch.is_inference_mode_enabled() else build(*args)
    return store.setdefault(key, made)


def drop_expired(store: "dict[Hashable, Entry]") -> None:
    """Drops entries whose tensors have been deleted, from those that were checked longest ago to one that stays.

    (Until its weak references are gone, no other storage gets the address of a deleted one.)
    """
    for key in list(store)[:_CHECKED]:  # a copy of the keys, as other threads may add to them
        entry = store.pop(key, None)
        if entry is not None and not entry.witness.expired:
            store[key] = entry
            return


def drop_oldest(store: dict[Any, Any], limit: int) -> None:
    """Drops the oldest entries beyond a limit; other threads may do so at the same time."""
    if len(store) > limit:
        for key in list(store)[:-limit]:
            store.pop(key, None)


def without_cached(thing: object) -> dict[str, Any]:
    """The attributes of an object without its cached properties, for `__getstate__`: a copy computes them again."""
    cls = type(thing)
    own = vars(thing).copy()  # other threads may add to the original
    return {name: v for name, v in own.items() if not isinstance(getattr(cls, name, None), functools.cached_property)}


class View:
    """A view of a parameter, cached where no gradients are recorded for as long as the parameter has the same memory.

    The numbers in it may change. It holds no reference to the parameter itself, which it finds in a dictionary by name;
    `make` returns the view of the one that is there at the time. A result that is not a view is not cached.

    >>> parameters = {"weight": torch.ones(2, 3)}
    >>> turned = View(parameters, "weight", lambda: parameters["weight"].t())
    >>> with torch.no_grad():
    ...     turned().shape, turned() is turned()
    (torch.Size([3, 2]), True)
    """

    __slots__ = ("_kept", "_make", "_name", "_parameters")

    def __init__(self, parameters: Mapping[str, Any], name: str, make: Callable[[], Tensor]) -> None:
        self._parameters, self._name, self._make = parameters, name, make
        self._kept: tuple[Tensor, Hashable] | None = None

    def __call__(self) -> Tensor:
        t = self._parameters.get(self._name)
        if t is None or torch.is_grad_enabled():
            return self._make()
        here = t.data_ptr(), t.shape, t.stride(), t.dtype
        kept = self._kept
        if kept is not None and kept[1] == here:
            return kept[0]
        view = self._make().detach()
        self._kept = (view, here) if view.data_ptr() == here[0] else None
        return view


class Witness:
    """Tells whether some tensors still have the numbers that they had when it was made.

    Integers count as unchanged while their storage, shape and version are the same. Floating point numbers are compared
    by value, since fused optimisers, `torch.distributed` and `.data` write to them without raising the version. On the
    CPU a compiled kernel computes a fingerprint of 128 bits, in a microsecond for a thousand numbers and in less time
    than a copy takes for millions; elsewhere they are compared with a copy.

    >>> t = torch.ones(3)
    >>> witness = Witness([t])
    >>> t.data[0] = 2
    >>> witness.agrees([t])
    False
    """

    __slots__ = ("_marks", "_refs", "_versions", "compares", "nbytes", "places")

    def __init__(self, parts: Sequence[Tensor], places: Sequence[Place] | None = None) -> None:
        compare_all = _COMPARED_BY_VALUE.get()
        self.nbytes, self.compares = 0, False  # True if it compares any by value
        self.places = [place(t) for t in parts] if places is None else places
        self._versions: list[int | None] = []
        self._refs: list[Any] = []  # weak references to storages
        self._marks: list[Tensor | tuple[int, int] | None] = []  # copies, or fingerprints
        for t in parts:
            storage, is_float = t.untyped_storage(), t.is_floating_point()
            self._versions.append(None if is_float else t._version)
            self._refs.append(storage._weak_ref())
            compared = is_float or compare_all
            self._marks.append((_fingerprint(t) or t.detach().clone()) if compared else None)
            self.nbytes += t.nbytes
            self.compares |= compared

    @property
    def expired(self) -> bool:
        """Whether one of the tensors has been deleted."""
        for ref in self._refs:  # noqa: SIM110 - a generator takes longer
            if _expired(ref):
                return True
        return False

    def __del__(self, release: Callable[[Any], None] = _release) -> None:  # torch may be gone when Python ends
        for ref in getattr(self, "_refs", ()):  # none, where the constructor was interrupted
            release(ref)

    def agrees(self, parts: Sequence[Tensor]) -> bool:
        """Whether these tensors have the memory and the numbers of those that it was made of."""
        for t, there, version, mark in zip(parts, self.places, self._versions, self._marks, strict=True):
            if version is not None and version != t._version:
                return False
            if t.untyped_storage()._cdata != there[0] or t.shape != there[2]:
                return False
            if mark is not None and not (torch.equal(mark, t) if isinstance(mark, Tensor) else mark == _fingerprint(t)):
                return False
        return True


def _fingerprint(t: Tensor) -> tuple[int, int] | None:
    """128 bits that depend on all numbers of a tensor; None where there is no kernel for it."""
    if KERNELS is None or not (type(t) in _PLAIN and t.is_cpu and t.is_contiguous()) or t.is_neg():
        return None
    return KERNELS.fingerprint(t.data_ptr(), t.nbytes)


class Entry(NamedTuple):
    """What was made of some tensors, and whether these are still the same."""

    witness: Witness
    value: Any


class IdentityCache:
    """A cache whose keys are tensors, by storage and view; see `Witness` for how a change is noticed.

    Values must own their memory: an alias of a key would keep the key alive. Entries whose tensors have been deleted
    are dropped as others are added, and so are the oldest where there are more than `limit`, or where their keys take
    more than a fixed number of bytes.

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
        self._entries: dict[Hashable, Entry] = {}
        self._lasting: dict[Hashable, Any] = {}

    def __reduce__(self) -> tuple[type["IdentityCache"], tuple[int]]:
        return IdentityCache, (self._limit,)  # a copy starts empty

    def __len__(self) -> int:
        return len(self._entries)

    def get(
        self,
        tensors: tuple[Tensor | None, ...],
        extra: Hashable,
        build: Callable[[], _T],
        seen: Witness | None = None,
    ) -> _T:
        """The result of `build()`, cached under these very tensors and `extra`.

        seen: a witness of the tensors from before the call, where there is one; nothing traces or transforms it then.
        """
        if seen is None and (portable() or torch.compiler.is_compiling() or in_fake_mode()):
            return build()
        parts: list[Tensor] = []
        forms: list[Hashable] = []
        for t in tensors:
            if t is None:
                forms.append(None)
                continue
            if type(t) not in _PLAIN or t.requires_grad or t.layout in _BLOCKS or t.is_inference():
                return build()
            if t.layout is torch.strided:
                forms.append(t.layout)
                parts.append(t)
            else:
                forms.append((t.layout, t.shape))
                parts += constituents(t)
        if not parts:
            return self._without_tensors((extra, *forms), build)
        places = [place(t) for t in parts] if seen is None else seen.places
        return self._get((extra, *forms, *places), parts, places, build, seen)

    def get_at(self, where: Place, t: Tensor, extra: Hashable, build: Callable[[], _T], seen: Witness | None) -> _T:
        """`get` for one strided tensor whose place is known, while nothing traces or transforms it."""
        return self._get((extra, torch.strided, where), [t], [where], build, seen)

    def _get(
        self,
        key: Hashable,
        parts: Sequence[Tensor],
        places: Sequence[Place],
        build: Callable[[], _T],
        seen: Witness | None,
    ) -> _T:
        entry = self._entries.get(key)
        if entry is not None and entry.witness.agrees(parts):
            return entry.value
        if torch.is_inference_mode_enabled():
            return outside_inference_mode(self._get, key, parts, places, build, seen)
        witness = Witness(parts, places) if seen is None else seen
        self._sweep(witness.nbytes)
        value = build()
        if not witness.compares or witness.agrees(parts):  # nobody has written to the tensors meanwhile
            self._entries.pop(key, None)
            self._entries[key] = Entry(witness, value)
        return value

    def _without_tensors(self, key: Hashable, build: Callable[[], _T]) -> _T:
        found = self._lasting.pop(key, None)
        if found is None:
            found = outside_inference_mode(build)
        self._lasting[key] = found  # now the newest
        drop_oldest(self._lasting, _WITHOUT_TENSORS)
        return found

    def _sweep(self, nbytes: int) -> None:
        """Makes room for an entry whose keys have so many bytes."""
        entries = self._entries
        drop_expired(entries)
        drop_oldest(entries, self._limit - 1)
        if nbytes * self._limit <= _MAX_BYTES:  # too small to matter; larger ones were counted when they were added
            return
        room = _MAX_BYTES
        for i, (key, entry) in enumerate(reversed(list(entries.items()))):
            room -= entry.witness.nbytes
            if room < 0 and i >= _NEWEST:
                entries.pop(key, None)


def once(function: Callable[..., _T]) -> Callable[..., _T]:
    """A function whose results are cached by its arguments, tensors and others, as in an `IdentityCache`.

    >>> turned = once(lambda edges: edges.flip(0))
    >>> edges = torch.tensor([[0], [1]])
    >>> turned(edges) is turned(edges)
    True
    """
    cache = IdentityCache()

    @functools.wraps(function)
    def found(*args: Any) -> _T:
        tensors, others = ([a for a in args if isinstance(a, Tensor) == of_tensors] for of_tensors in (True, False))
        return cache.get(tuple(tensors), tuple(others), lambda: function(*args))

    return found


@contextmanager
def compared_by_value() -> Iterator[None]:
    """Within it integers are compared by value, too: compiled code writes to tensors without raising their version."""
    token = _COMPARED_BY_VALUE.set(True)
    try:
        yield
    finally:
        _COMPARED_BY_VALUE.reset(token)


def constituents(t: Tensor) -> tuple[Tensor, ...]:
    """The strided tensors that a tensor consists of: indices first and values last, where it is sparse."""
    if t.layout == torch.sparse_csr:
        return t.crow_indices(), t.col_indices(), t.values()
    if t.layout == torch.sparse_csc:
        return t.ccol_indices(), t.row_indices(), t.values()
    if t.layout == torch.sparse_coo:
        return t._indices(), t.values() if t.is_coalesced() else t._values()
    return (t,)


def place(t: Tensor) -> Place:
    """Where a tensor is in memory, and its form."""
    return t.untyped_storage()._cdata, t.storage_offset(), t.shape, t.stride(), t.dtype
