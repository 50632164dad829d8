"""Declares a primitive once: its computation, its shape and its derivative."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn import Parameter

LIBRARY = torch.library.Library("basisconv", "DEF")
_PLAIN = (Tensor, Parameter)


def once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A derivative that has none itself; torch's own way to say so is silent where a second one is asked of inputs."""

    @wraps(backward)
    def checked(ctx: Any, grad: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise NotImplementedError(
                "create_graph=True: scores of hidden layers, and attention on more entries than are evaluated at once, "
                "are differentiable once"
            )
        return backward(ctx, grad)

    return checked


def refuse_transforms(name: str, *arguments: Any) -> None:
    """Says that a kernel has no rule for the transforms of `torch.func`, where one of them wraps an argument."""
    active = torch._C._are_functorch_transforms_active()
    if active and any(isinstance(t, Tensor) and is_functorch_wrapped_tensor(t) for t in arguments):
        raise NotImplementedError(
            f"the kernel {name} has no rule for torch.func transforms; for matrices that are not computed from "
            "content, layer.fuse = False takes the message path, which has"
        )


def primitive(
    schema: str,
    compute: Callable[..., Tensor],
    fake: Callable[..., Tensor],
    setup_context: Callable[..., None],
    backward: Callable[..., Any],
) -> Callable[..., Tensor]:
    """Registers `torch.ops.basisconv.NAME` and returns the function to call.

    Plain tensors in eager mode go through an autograd function, whose rule is the one that the operator has: the
    dispatcher would cost more than the computation does on a small graph. Traced tensors go through the operator.
    The transforms of `torch.func` and forward-mode derivatives are refused.
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
        if torch._C._are_functorch_transforms_active():
            refuse_transforms(name, first, *rest)
            return compute(first, *rest)
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


def autocast(x: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the dtype in which products are made, as torch is told."""
    if not torch.is_autocast_enabled(x.device.type) or x.dtype == torch.float64:
        return x, *others
    dtype = torch.get_autocast_dtype(x.device.type)
    return tuple(t.to(dtype) for t in (x, *others))
