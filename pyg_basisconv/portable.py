"""The portable path, for calls that must not read the values of tensors."""

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .errors import reject

_VMAP = torch._C._parse_dispatch_key("VmapMode") or "VmapMode"
P = ParamSpec("P")
R = TypeVar("R")
_MODE: ContextVar[bool | None] = ContextVar("_MODE", default=None)  # `portable()` at the start of the current call


def portable() -> bool:
    """Whether to use plain torch operations of static shapes, which read no values, instead of kernels.

    It is True under `torch.export` (and so ONNX), whose tensors have no values and whose sizes are symbols, under
    transforms of `torch.func`, and under forward-mode derivatives. Nothing that is computed there is cached.

    Few functions ask: `with_plain` chooses between two functions that do the same, and `any_seen` takes values that
    cannot be read for valid ones.
    """
    compiling = torch.compiler.is_dynamo_compiling()
    found = None if compiling else _MODE.get()
    if found is not None:
        return found
    if forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active():
        return True
    # The vmap of `autograd.grad(is_grads_batched=True)` is not a functorch transform, but sets a dispatch key.
    if not compiling and torch._C._dispatch_tls_is_dispatch_key_included(_VMAP):
        return True
    return torch.compiler.is_exporting() and (compiling or in_fake_mode())


def fixed_mode(function: Callable[P, R]) -> Callable[P, R]:
    """Makes `portable()` constant within a call, as other threads may change the level of forward mode meanwhile."""
    return _in_mode(None, function)


def with_kernels(function: Callable[P, R]) -> Callable[P, R]:
    """Makes `portable()` False within a call, for callers that know that it is."""
    return _in_mode(False, function)


def _in_mode(mode: bool | None, function: Callable[P, R]) -> Callable[P, R]:
    """The function, within which `portable()` is `mode`; what it is at the start of each call, if that is None."""

    @wraps(function)
    def on_one_path(*args: P.args, **kwargs: P.kwargs) -> R:
        token = _MODE.set(portable() if mode is None else mode)
        try:
            return function(*args, **kwargs)
        finally:
            _MODE.reset(token)

    return on_one_path


def with_plain(plain: Callable[..., Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Pairs a function with its plain form, of the same arguments, which takes its place in the portable path.

    >>> @with_plain(lambda: "by plain operations")
    ... def evaluated() -> str:
    ...     return "by a kernel"
    >>> evaluated()
    'by a kernel'
    >>> with forward_ad.dual_level():
    ...     evaluated()
    'by plain operations'
    """

    def pair(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def choose(*args: P.args, **kwargs: P.kwargs) -> R:
            chosen: Callable[..., R] = plain if portable() else function
            return chosen(*args, **kwargs)

        return choose

    return pair


def any_seen(condition: Tensor) -> bool:
    """Whether a condition holds anywhere; False in the portable path, where no values may be read.

    >>> any_seen(torch.tensor([1., -1.]) < 0)
    True
    """
    return not portable() and bool(condition.any())


def few(numbers: float, most: int) -> bool:
    """Whether there are few enough numbers to hold them at once; True for a symbol, whose comparison would be a guard.

    >>> few(100, 10), few(10, 10)
    (False, True)
    """
    symbol = torch.compiler.is_dynamo_compiling() or not isinstance(numbers, int | float)
    return symbol or numbers <= most


def in_fake_mode() -> bool:
    """Whether new tensors are fake ones, which have no values and must not be cached."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def refuse(argument: str, expected: str, got: object) -> None:
    """Rejects an argument in the portable path, since its values would have to be read."""
    if portable():
        fix = "or bind the basis beforehand, and pass what is bound in place of edge_index"
        reject(argument, f"{expected}, under torch.export and torch.func", got, fix)


def checked(index: Tensor, size: int) -> Tensor:
    """The index, with `size` for each entry out of range, so that gathers and scatters raise in every runtime.

    Some runtimes count negative indices from the end, or let an index beyond the end of a row reach the next row.

    >>> checked(torch.tensor([0, 2, -1, 3]), 3).tolist()
    [0, 2, 3, 3]
    """
    return torch.where((index >= 0) & (index < size), index, size)
