"""Asserts that two layers have equal values and gradients, before anything is timed."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

TOLERANCE = 1e-4  # float32, relative to the largest value


def step(call: Callable[[], Tensor], leaves: Sequence[Tensor], gradient: Tensor) -> tuple[Tensor, ...]:
    """Forward and backward: y, and the gradient of <y, gradient> with respect to every leaf."""
    y = call()
    return (y.detach(), *torch.autograd.grad(y, list(leaves), gradient))


def largest(x: Tensor) -> float:
    return float(x.detach().abs().max()) if x.numel() else 0.0


def assert_close(ours: Tensor, peers: Tensor, what: str, scale: float = 0.0) -> None:
    """Compares relative to the peer's largest value, or a given one, since rounding of float32 sums scales with it."""
    atol = TOLERANCE * max(scale, largest(peers))
    torch.testing.assert_close(ours, peers, rtol=TOLERANCE, atol=atol, msg=lambda text: f"{what} differs: {text}")


def assert_same_gradients(
    twin: nn.Module,
    convert: Callable[[nn.Module], nn.Module],
    peers: Sequence[Tensor],
    ours: Sequence[Tensor],
    what: str,
) -> None:
    """Compares the gradients of all parameters.

    The peer's gradients are written into the parameters of a twin, so that its conversion transposes and stacks them as
    it does the parameters. A gradient that is zero but for rounding (of a bias that softmax cancels) is compared on a
    thousandth of the scale of the others.
    """
    scale = 1e-3 * max(map(largest, peers), default=0.0)
    with torch.no_grad():
        for p, gradient in zip(twin.parameters(), peers, strict=True):
            p.copy_(gradient)
    expected = convert(twin)
    for (name, p), gradient in zip(expected.named_parameters(), ours, strict=True):
        assert_close(gradient, p.detach(), f"{what}: the gradient of {name}", scale)
