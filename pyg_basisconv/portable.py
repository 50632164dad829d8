"""Where tensors are not to be looked at: the portable path."""

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .errors import reject

_VMAP = torch._C._parse_dispatch_key("VmapMode") or "VmapMode"
P = ParamSpec("P")
R = TypeVar("R")
_MODE: ContextVar[bool | None] = ContextVar("_MODE", default=None)  # what a call found when it began


def portable() -> bool:
    """Whether plain torch operations are wanted, of static shapes and without a look at values, instead of kernels.

    So it is under `torch.export` (and with it ONNX), whose tensors have no numbers and whose sizes are symbols; where
    transforms of `torch.func` are active, and under forward-mode derivatives. What is computed there is not kept.
    """
    if torch.compiler.is_dynamo_compiling():
        return _now()
    found = _MODE.get()
    return _now() if found is None else found


def _now() -> bool:
    if forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active() or exporting():
        return True
    # The vmap of `autograd.grad(is_grads_batched=True)` is none of the transforms.
    return not torch.compiler.is_dynamo_compiling() and torch._C._dispatch_tls_is_dispatch_key_included(_VMAP)


def fixed_mode(function: Callable[P, R]) -> Callable[P, R]:
    """The function, on one path in each call: the level of forward mode is of all threads, and may change midway."""

    @wraps(function)
    def on_one_path(*args: P.args, **kwargs: P.kwargs) -> R:
        token = _MODE.set(portable())
        try:
            return function(*args, **kwargs)
        finally:
            _MODE.reset(token)

    return on_one_path


def exporting() -> bool:
    """Whether this thread exports: what torch says is of all threads."""
    return torch.compiler.is_exporting() and (torch.compiler.is_dynamo_compiling() or faked())


def faked() -> bool:
    """Whether tensors are made that have no numbers, so that nothing that is made of them may be kept."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def refuse(argument: str, expected: str, got: object) -> None:
    """Says that something cannot be had without a look at values."""
    if portable():
        fix = "or bind the basis beforehand, and pass what is bound in place of edge_index"
        reject(argument, f"{expected}, under torch.export and torch.func", got, fix)


def checked(index: Tensor, size: int) -> Tensor:
    """The index, with `size` where it is no number of `size` places: gathers and scatters then raise, everywhere.

    A negative index is a place counted from the end to some runtimes, and one beyond the end of a row may be another's.

    >>> checked(torch.tensor([0, 2, -1, 3]), 3).tolist()
    [0, 2, 3, 3]
    """
    return torch.where((index >= 0) & (index < size), index, size)
