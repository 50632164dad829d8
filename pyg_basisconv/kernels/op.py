"""Registers primitives with torch: computation, shape and derivative; and what kernels share."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ..portable import portable

LIBRARY = torch.library.Library("basisconv", "DEF")
PLAIN = (Tensor, Parameter)  # types whose operations nobody overrides


def raw_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`function.apply` in C++, without Python's checks for transforms of `torch.func`; not to be called under these."""
    return super(torch.autograd.Function, function).apply  # type: ignore[misc, no-any-return]


def derivative(
    plain: Callable[..., Tensor | Sequence[Tensor]], inputs: Sequence[Any], grad: Tensor | Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """The derivative of a plain form by its inputs, None for those that need none; differentiable again.

    Args:
        plain: a function of the inputs, made of torch operations.
        inputs: its arguments, tensors and others.
        grad: the gradient of its result, or of each of its results.
    """
    with torch.enable_grad():
        # Views cut the graph, in case one input was computed from another.
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

    Plain tensors in eager mode go through an autograd function with the same rule as the operator, as the dispatcher
    costs more than the computation on a small graph. Traced tensors go through the operator. In the portable path, see
    `portable`, the plain form is evaluated.
    """
    name = schema.split("(", 1)[0]
    LIBRARY.define(schema)
    LIBRARY.impl(name, compute, "CompositeExplicitAutograd")
    torch.library.register_fake(f"basisconv::{name}", fake, lib=LIBRARY)

    def listed(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        # The last argument is a list of tensors, for which an operator wants a list of gradients.
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
        if torch.compiler.is_compiling() or type(first) not in PLAIN:
            result: Tensor = operator(first, *rest)
            return result
        if not torch.is_grad_enabled():
            return compute(first, *rest)
        return eager.apply(first, *rest)  # type: ignore[attr-defined, no-any-return]

    return call


def acc_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums of such numbers are accumulated: float32 at least.

    >>> acc_dtype(torch.bfloat16), acc_dtype(torch.float64)
    (torch.float32, torch.float64)
    """
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def autocasting(device: torch.device) -> bool:
    """Whether autocast is enabled on a device; False for devices without autocast."""
    if not torch._C._is_any_autocast_enabled():
        return False
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def autocast(x: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the dtype of products under autocast, if it is enabled."""
    if not autocasting(x.device) or x.dtype == torch.float64:
        return x, *others
    dtype = torch.get_autocast_dtype(x.device.type)
    return tuple(t.to(dtype) for t in (x, *others))
