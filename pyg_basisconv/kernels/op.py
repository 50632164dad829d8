"""Declares a primitive once: its computation, its shape and its derivative."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ..portable import portable

LIBRARY = torch.library.Library("basisconv", "DEF")
_PLAIN = (Tensor, Parameter)


def derivative(
    plain: Callable[..., Tensor | Sequence[Tensor]], inputs: Sequence[Any], grad: Tensor | Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """That of a plain form by its inputs, None for those that need none; to be differentiated again, and transformed.

    Args:
        plain: of the inputs.
        inputs: tensors, and whatever else it takes.
        grad: of its result, or of each of its results.
    """
    with torch.enable_grad():
        # Views: what one input is made of another is not to be followed.
        own = [t.view_as(t) if isinstance(t, Tensor) and t.requires_grad else t for t in inputs]
        needed = [isinstance(t, Tensor) and t.requires_grad for t in own]
        wanted = [t for t, need in zip(own, needed, strict=True) if need]
        options = {"create_graph": True, "allow_unused": True, "materialize_grads": True}
        found = iter(torch.autograd.grad(plain(*own), wanted, grad, **options))
    return tuple(next(found) if need else None for need in needed)


def primitive(
    schema: str,
    compute: Callable[..., Tensor],
    fake: Callable[..., Tensor],
    setup_context: Callable[..., None],
    backward: Callable[..., Any],
    plain: Callable[..., Tensor],
) -> Callable[..., Tensor]:
    """Registers `torch.ops.basisconv.NAME` and returns the function to call.

    Plain tensors in eager mode go through an autograd function, whose rule is the one that the operator has: the
    dispatcher would cost more than the computation does on a small graph. Traced tensors go through the operator.
    In the portable path, see `portable`, the plain form is evaluated instead.
    """
    name = schema.split("(", 1)[0]
    LIBRARY.define(schema)
    LIBRARY.impl(name, compute, "CompositeExplicitAutograd")
    torch.library.register_fake(f"basisconv::{name}", fake, lib=LIBRARY)

    def listed(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        # For an argument that is a list of tensors, the last one here, an operator wants a list.
        return (*backward(ctx, grad)[:-1], [None] * len(ctx.arrays))

    torch.library.register_autograd(f"basisconv::{name}", listed, setup_context=setup_context, lib=LIBRARY)
    operator = getattr(torch.ops.basisconv, name).default

    def forward(ctx: Any, *args: Any) -> Tensor:
        result = compute(*args)
        setup_context(ctx, args, result)
        return result

    rule = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    eager = type(name, (torch.autograd.Function,), rule)

    def call(first: Tensor, *rest: Any) -> Tensor:
        if portable():
            return plain(first, *rest)
        if torch.compiler.is_compiling() or type(first) not in _PLAIN:
            result: Tensor = operator(first, *rest)
            return result
        if not torch.is_grad_enabled():
            return compute(first, *rest)
        return eager.apply(first, *rest)  # type: ignore[attr-defined, no-any-return]

    return call


def wide(x: Tensor) -> torch.dtype:
    """Where sums of many terms are made: float32 at least."""
    return x.dtype if x.dtype in (torch.float32, torch.float64) else torch.float32


def autocasting(device: torch.device) -> bool:
    """Whether products are made in a narrower dtype there; never on a device that torch knows no autocast for."""
    if not torch._C._is_any_autocast_enabled():
        return False
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def autocast(x: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the dtype in which products are made, as torch is told."""
    if not autocasting(x.device) or x.dtype == torch.float64:
        return x, *others
    dtype = torch.get_autocast_dtype(x.device.type)
    return tuple(t.to(dtype) for t in (x, *others))
