"""Results kept for as long as the tensors they came from live and stay as they were."""

from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Parameter

_Key = tuple[Hashable, ...]


class kept(cached_property[Any]):
    """A cached property of tensors; its first use may fall into inference mode and its next into training."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        with torch.inference_mode(False):
            return super().__get__(instance, owner)


class IdentityCache:
    """A memo whose keys are tensors, by storage, view and version, never by value or by shape.

    An in-place change of a tensor, or another tensor in the same place, is another key. What is kept must own its
    memory (hold no alias of a key), so that the key can die; entries whose tensors are gone leave at the next miss.
    Writes that torch does not count (`tensor.data`, shared NumPy memory) cannot be seen.

    >>> cache = IdentityCache()
    >>> t = torch.zeros(2)
    >>> cache.get((t,), 'sum', lambda: 'first'), cache.get((t,), 'sum', lambda: 'again')
    ('first', 'first')
    >>> _ = t.add_(1)
    >>> cache.get((t,), 'sum', lambda: 'again')
    'again'
    """

    def __init__(self) -> None:
        self._entries: dict[_Key, tuple[list[StorageWeakRef], Any]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, tensors: tuple[Tensor | None, ...], extra: Hashable, build: Callable[[], Any]) -> Any:
        """What `build()` gave when last called for these very tensors and `extra`, or gives now."""
        if torch.compiler.is_compiling() or not all(_can_identify(t) for t in tensors):
            return build()
        key: _Key = (extra, *(_identity(t) for t in tensors))
        entry = self._entries.get(key)
        if entry is not None:
            return entry[1]
        # A storage that has died keeps its address until its weak references go: no key can be met by a newcomer.
        for dead in [k for k, (refs, _) in list(self._entries.items()) if any(r.expired() for r in refs)]:
            self._entries.pop(dead, None)
        with torch.inference_mode(False):
            value = build()
        refs = [StorageWeakRef(t.untyped_storage()) for t in tensors if t is not None]
        self._entries[key] = (refs, value)
        return value


def _can_identify(t: Tensor | None) -> bool:
    return t is None or (type(t) in (Tensor, Parameter) and not t.is_inference() and not t.requires_grad)


def _identity(t: Tensor | None) -> Hashable:
    if t is None:
        return None
    return t.untyped_storage()._cdata, t.storage_offset(), t.shape, t.stride(), t.dtype, t._version
