"""Results kept for as long as the tensors they came from live and stay as they were."""

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

from .backend import KERNELS
from .portable import faked, portable

_T = TypeVar("_T")
_PLAIN = (Tensor, Parameter)
# What `torch.multiprocessing.reductions.StorageWeakRef` calls, by two more functions each.
_expired, _release = torch.UntypedStorage._expired, torch.UntypedStorage._free_weak_ref
_LASTING = 8  # results kept that depend on no tensor: only this limit ever drops them
_ROOM = 64 << 20  # bytes of tensors that a cache has keys of
_NEWEST = 4  # entries that stay, whatever their size
_NOTHING: Any = object()
_LOOKS = 8  # entries that are looked at at most when one more comes
_DOUBTED = ContextVar("_DOUBTED", default=False)
_BLOCKS = (torch.sparse_bsr, torch.sparse_bsc)  # layouts that nothing here takes


class cached_property(functools.cached_property[_T]):
    """As Python has it from 3.12 on: the lock of before is one for all instances, and a fork leaves it taken."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        return vars(instance).setdefault(self.attrname, self.func(instance))


def lasting(build: Callable[..., _T], *args: Any) -> _T:
    """What `build(*args)` gives, made outside of inference mode: tensors made in it could not be trained with later."""
    if not torch.is_inference_mode_enabled():
        return build(*args)
    with torch.inference_mode(False), torch.no_grad():
        return build(*args)


class kept(cached_property[Any]):
    """A cached property of tensors; its first use may fall into inference mode and its next into training.

    What is computed in the portable path is not kept: it may have no numbers, or be a transform's.
    """

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        return memo(vars(instance), self.attrname, self.func, instance)


def memo(store: dict[Any, Any], key: Hashable, build: Callable[..., Any], *args: Any) -> Any:
    """What `build(*args)` gave when first asked for under `key` of a store; the same as for `kept` holds."""
    found = store.get(key, _NOTHING)
    if found is not _NOTHING:
        return found
    if portable():
        return build(*args)
    return store.setdefault(key, lasting(build, *args) if torch.is_inference_mode_enabled() else build(*args))


def shorten(store: dict[Any, Any], limit: int) -> None:
    """Lets go of the oldest that is kept; other threads may do so at the same time."""
    if len(store) > limit:
        for key in list(store)[:-limit]:
            store.pop(key, None)


def underived(thing: object) -> dict[str, Any]:
    """The attributes of a thing without its cached properties, which a copy finds anew: for `__getstate__`."""
    cls = type(thing)
    own = vars(thing).copy()  # which other threads may add to
    return {name: v for name, v in own.items() if not isinstance(getattr(cls, name, None), functools.cached_property)}


class View:
    """A view of a parameter that is kept while no gradients are recorded, and made again where its memory is another's.

    What the memory holds may change; nothing refers to the parameter itself. What is no view is made each time.

    Args:
        parameters: where the parameter is found.
        name: of the parameter.
        make: makes it of the parameter that there is now.

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
    """Tells whether some tensors still hold what they held.

    Integers are known by their storage, shape and version. Numbers of a model are known by value: fused optimisers,
    `torch.distributed` and `.data` write to them without raising the version. On the CPU a compiled kernel takes a
    fingerprint of 128 bits, in a microsecond for a thousand numbers and in less time than a copy for millions;
    elsewhere they are compared with a copy.

    >>> t = torch.ones(3)
    >>> witness = Witness([t])
    >>> t.data[0] = 2
    >>> witness.agrees([t])
    False
    """

    __slots__ = ("_marks", "_refs", "_versions", "compares", "nbytes", "places")

    def __init__(self, parts: Sequence[Tensor]) -> None:
        doubted = _DOUBTED.get()
        self.nbytes, self.compares = 0, False  # whether it compares numbers
        self.places: list[Hashable] = []  # by which they are found again
        self._versions: list[int | None] = []
        self._refs: list[Any] = []  # weak references to storages
        self._marks: list[Tensor | tuple[int, int] | None] = []  # copies, or fingerprints
        for t in parts:
            storage, is_float = t.untyped_storage(), t.is_floating_point()
            self.places.append(_place(t))
            self._versions.append(None if is_float else t._version)
            self._refs.append(storage._weak_ref())
            compared = is_float or doubted
            self._marks.append((_fingerprint(t) or t.detach().clone()) if compared else None)
            self.nbytes += t.nbytes
            self.compares |= compared

    @property
    def expired(self) -> bool:
        """Whether one of them is gone."""
        for ref in self._refs:  # noqa: SIM110 - a generator takes longer
            if _expired(ref):
                return True
        return False

    def __del__(self, release: Callable[[Any], None] = _release) -> None:  # torch may be gone when Python ends
        for ref in self._refs:
            release(ref)

    def agrees(self, parts: Sequence[Tensor]) -> bool:
        """Whether these, which stand where those of before stood, hold the same numbers."""
        for t, place, version, mark in zip(parts, self.places, self._versions, self._marks, strict=True):
            if version is not None and version != t._version:
                return False
            if t.untyped_storage()._cdata != place[0] or t.shape != place[2]:  # type: ignore[index]
                return False
            if mark is not None and not (torch.equal(mark, t) if isinstance(mark, Tensor) else mark == _fingerprint(t)):
                return False
        return True


def _fingerprint(t: Tensor) -> tuple[int, int] | None:
    """128 bits that tell what a tensor holds, where there is a kernel for that."""
    if KERNELS is None or not (type(t) in _PLAIN and t.is_cpu and t.is_contiguous()) or t.is_neg():
        return None
    return KERNELS.fingerprint(t.data_ptr(), t.nbytes)  # type: ignore[no-any-return]


class _Entry(NamedTuple):
    witness: Witness
    value: Any


class IdentityCache:
    """A memo whose keys are tensors, by storage and view; see `Witness` for how a change is noticed.

    What is kept must own its memory (hold no alias of a key), so that the key can die. Entries whose tensors are gone
    leave as others come; the oldest ones do where there are more than `limit`, or where their keys take more than a
    fixed number of bytes.

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
        self._lasting: dict[Hashable, Any] = {}

    def __reduce__(self) -> tuple[type["IdentityCache"], tuple[int]]:
        return IdentityCache, (self._limit,)  # a copy knows other tensors

    def __len__(self) -> int:
        return len(self._entries)

    def get(
        self,
        tensors: tuple[Tensor | None, ...],
        extra: Hashable,
        build: Callable[[], Any],
        seen: Witness | None = None,
    ) -> Any:
        """What `build()` gave when last called for these very tensors and `extra`, or gives now.

        seen: a witness of the tensors from before the call, where there is one.
        """
        if seen is None and (portable() or torch.compiler.is_compiling() or faked()):
            return build()
        parts: list[Tensor] = []
        key: list[Hashable] = [extra]
        for t in tensors:
            if t is None:
                key.append(None)
                continue
            if type(t) not in _PLAIN or t.requires_grad or t.layout in _BLOCKS or t.is_inference():
                return build()
            key.append((t.layout, t.shape))
            parts += (t,) if t.layout is torch.strided else constituents(t)
        if not parts:
            return self._without_tensors(tuple(key), build)
        key += map(_place, parts) if seen is None else seen.places
        place = tuple(key)
        entry = self._entries.get(place)
        if entry is not None and entry.witness.agrees(parts):
            return entry.value
        witness = lasting(Witness, parts) if seen is None else seen
        self._sweep(witness.nbytes)
        value = lasting(build)
        if not witness.compares or witness.agrees(parts):  # nobody has written to them meanwhile
            self._entries.pop(place, None)
            self._entries[place] = _Entry(witness, value)
        return value

    def _without_tensors(self, key: Hashable, build: Callable[[], Any]) -> Any:
        found = self._lasting.pop(key, None)
        if found is None:
            found = lasting(build)
        self._lasting[key] = found  # those that are asked for stay
        shorten(self._lasting, _LASTING)
        return found

    def _sweep(self, nbytes: int) -> None:
        """Makes room for one more, of so many bytes: of the entries that were looked at longest ago, those leave whose
        tensors are gone, down to the first that is alive.

        A storage that has died keeps its address until its weak references go.
        """
        entries = self._entries
        for key in list(entries)[:_LOOKS]:  # at once: other threads may add to them
            entry = entries.pop(key, None)
            if entry is not None and not entry.witness.expired:
                entries[key] = entry
                break
        shorten(entries, self._limit - 1)
        if nbytes * self._limit <= _ROOM:  # of such as many fit as there may be: the others were counted as they came
            return
        room = _ROOM
        for i, (key, entry) in enumerate(reversed(list(entries.items()))):
            room -= entry.witness.nbytes
            if room < 0 and i >= _NEWEST:
                entries.pop(key, None)


def once(function: Callable[..., _T]) -> Callable[..., _T]:
    """A function of tensors and other arguments, computed once for as long as these are the same, see `IdentityCache`.

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
