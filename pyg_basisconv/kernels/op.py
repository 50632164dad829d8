"""Records kernels for autograd; and what kernels share."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch.compiler import is_dynamo_compiling
from torch.nn import Parameter

from ..backend import is_watched
from ..portable import portable, with_plain

PLAIN = (Tensor, Parameter)  # types whose operations nobody overrides


def raw_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`function.apply` in C++, without Python's checks for transforms of `torch.func`; not to be called under these."""
    backward = function.backward
    untraced = torch.compiler.disable(backward)

    def derive(ctx: Any, *grads: Any) -> Any:
        # Compiled autograd would trace it, and with it the addresses that kernels are given, of this call alone.
        return (untraced if is_dynamo_compiling() or get_eval_frame_callback() else backward)(ctx, *grads)

    function.backward = staticmethod(derive)  # type: ignore[assignment]
    return super(torch.autograd.Function, function).apply  # type: ignore[misc, no-any-return]


def derivative(
    plain: Callable[..., Tensor | Sequence[Tensor]], inputs: Sequence[Any], grad: Tensor | Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """The derivative of a plain form by its inputs, tensors and others, None for those that need none; differentiable
    again. grad: the gradient of its result, or of each of its results, None for those that nothing reads.
    """
    with torch.enable_grad():
        # Views cut the graph, in case one input was computed from another.
        own = [t.view_as(t) if isinstance(t, Tensor) and t.requires_grad else t for t in inputs]
        needed = [isinstance(t, Tensor) and t.requires_grad for t in own]
        wanted = [t for t, need in zip(own, needed, strict=True) if need]
        options = {"create_graph": True, "allow_unused": True, "materialize_grads": True}
        ys, grads = ([t] if isinstance(t, Tensor) else t for t in (plain(*own), grad))
        read: list[Any] = [(y, g) for y, g in zip(ys, grads, strict=True) if g is not None]
        found = iter(torch.autograd.grad([y for y, _ in read], wanted, [g for _, g in read], **options))
    return tuple(next(found) if need else None for need in needed)


def add_optional(a: Any, b: Any) -> Any:
    """The sum of two terms that may be None."""
    return a if b is None else b if a is None else a + b


def add_times(total: Tensor | None, factor: float, z: Tensor) -> Tensor:
    """The total, None for zero, plus a number times z; z itself, if that is all."""
    if total is None:
        return z if factor == 1 else factor * z
    return torch.add(total, z, alpha=factor)


def needs_gradient(*tensors: Tensor | None) -> bool:
    """Whether one of the tensors requires a gradient."""
    for t in tensors:  # noqa: SIM110 - a generator takes longer
        if t is not None and t.requires_grad:
            return True
    return False


def compilable(x: Tensor, *others: Tensor | None) -> bool:
    """Whether the compiled kernels may read these: plain contiguous tensors of one dtype on the CPU, which nothing
    watches.
    """
    if not x.is_cpu or is_watched():
        return False
    for t in (x, *others):
        if t is not None and not (type(t) in PLAIN and t.dtype == x.dtype and t.is_contiguous() and not t.is_neg()):
            return False
    return True


def differentiated_again() -> bool:
    """Whether a derivative, as it is computed, is itself recorded for autograd, or transformed; see `portable`."""
    return torch.is_grad_enabled() or portable()


class Backward(NamedTuple):
    """What a derivative is given: the gradient of the result, which tensors need one, and the arguments and further
    tensors of the computation, see `recorded`.
    """

    grad: Any  # a tensor; of several results a tuple, with None for those that nothing reads
    needs: Sequence[bool]
    fixed: tuple[Any, ...]
    tensors: Sequence[Any]
    further: Sequence[Any]


Grads = Sequence[Tensor | None]  # of the tensors


def recorded(
    fixed: int,
    compute: Callable[..., tuple[Any, Sequence[Tensor | None]]],
    backward: Callable[[Backward], Grads],
    plain: Callable[..., Any],
    nested: bool = False,
) -> Callable[..., Any]:
    """A function with a derivative of its own, recorded for autograd where one of its tensors learns.

    It is differentiable any number of times: a derivative that is differentiated again is that of the plain form.

    Args:
        fixed: the number of arguments before the first tensor; all that follow are tensors or None.
        compute: of the arguments, the result, or a tuple of them, and further tensors that the derivative reads.
        backward: returns the gradients of the tensors that need one.
        plain: of the arguments, the result by differentiable torch operations; for the portable path, too.
        nested: whether `backward` consists of differentiable functions, so that it is differentiated again itself.
    """

    def forward(ctx: Any, *args: Any) -> Any:
        result, further = compute(*args)
        ctx.save_for_backward(*args[fixed:], *further)
        ctx.fixed, ctx.count = args[:fixed], len(args) - fixed
        ctx.set_materialize_grads(isinstance(result, Tensor))
        return result

    def derive(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        saved, count, grad = ctx.saved_tensors, ctx.count, grads if len(grads) > 1 else grads[0]
        if not nested and differentiated_again():
            return derivative(plain, (*ctx.fixed, *saved[:count]), grad)
        needs = ctx.needs_input_grad[fixed:]
        return *[None] * fixed, *backward(Backward(grad, needs, ctx.fixed, saved[:count], saved[count:]))

    rule = {"forward": staticmethod(forward), "backward": staticmethod(derive)}
    record = raw_apply(type(compute.__name__, (torch.autograd.Function,), rule))

    @with_plain(plain)
    def call(*args: Any) -> Any:
        if torch.is_grad_enabled() and needs_gradient(*args[fixed:]):
            return record(*args)
        return compute(*args)[0]

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
