"""The order that uses a vendor's kernel: torch's convolutions on grids, and torch's attention over all pairs."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from ..content import Inputs
from ..costs import MACHINES, Estimate, Problem, Tally
from ..theta import Theta
from ..theta.base import add_bias
from .base import MESSAGES, Contracted, ImageFunction, Order


class Native(NamedTuple):
    """An evaluation by a vendor's kernel, and its cost for one entry of the batch.

    run: from the inputs and the bias to the output; operations, numbers: arithmetic, and numbers read and written;
    kernels: how many are launched; projects: whether the kernel reads x Theta, and not x; on_images: `run` from
    images (B, P, *grid) to images (B, Q, *grid), if it takes them.
    """

    run: Callable[[Inputs, Tensor | None], Tensor]
    operations: int
    numbers: int
    kernels: int
    projects: bool = False
    on_images: ImageFunction | None = None


class NativeKernel(Order):
    """A vendor's kernel, applied to x Theta or to x."""

    name, measures, keeps_format = "native", True, True

    def measure(self, family: Any, inputs: Inputs, messages: bool, forced: bool) -> tuple[int, int, int, bool] | None:
        native: Native | None = family.native(inputs.theta, inputs.x.size(-1))
        if native is None or not (inputs.x.size(-1) or native.projects):  # torch convolves no image without channels
            return None
        return native[1:5]

    def estimate(self, p: Problem, offer: tuple[int, int, int, bool] | None) -> Estimate:
        if offer is None:
            return self.refuse("no vendor's kernel evaluates this basis with this parameter")
        if p.messages:
            return self.refuse(f"{MESSAGES}, and it sends none")
        t = Tally(MACHINES[p.device], p.itemsize)
        operations, numbers, kernels, projects = offer
        if p.sparse_x and not projects:
            return self.refuse("x is sparse, and the kernel reads it whole")
        back = p.grad_theta or p.grad_x or p.grad_basis
        learns = p.learns and projects
        if learns:
            t.product(p.B * p.M, p.P, p.K * p.inner)
        share, start = (0.5, t.machine.small) if projects else (1.0, t.machine.small / 4 + p.B * t.machine.image)
        for _ in range(3 if back else 1):  # the backward pass takes about twice as long
            t.kernel(operations * p.B, numbers * p.B, share)
            t.seconds += kernels * start
        if p.grad_theta and learns:
            t.product(p.P, p.B * p.M, p.K * p.inner)
        if p.grad_x and learns:
            t.product(p.B * p.M, p.K * p.inner, p.P)
        if p.grad_basis:  # keys and queries
            t.product(p.B * p.M, p.K * p.inner, p.P)
            t.product(p.B * p.N, p.K * p.inner, p.P)
        memory = (2 * p.K * p.B * p.M * p.inner if projects else p.B * p.M * p.P) + 2 * p.B * p.N * p.Q
        return t.estimate(self.name, memory)

    def grounds(self, p: Problem, offer: Any) -> str:
        return "a vendor's kernel does all of it"

    def run(self, family: Any, inputs: Inputs, bias: Tensor | None, form: str, cached: bool) -> Contracted | None:
        native: Native | None = family.native(inputs.theta, inputs.x.size(-1))
        return None if native is None else Contracted(native.run(inputs, bias), biased=True)

    def on_images(self, family: Any, theta: Theta, width: int) -> ImageFunction | None:
        native: Native | None = family.native(theta, width)
        return None if native is None else native.on_images


def after_theta(fast: Any, theta: Theta, width: int) -> Native:
    """Theta first, then a family that a kernel evaluates at the cost `native_cost`. width: P."""

    def run(inputs: Inputs, bias: Tensor | None) -> Tensor:
        return add_bias(theta.gather(fast, inputs.projected), bias)

    operations, numbers, kernels = fast.native_cost
    inner = theta.inner if theta.inner > 0 else width
    return Native(run, operations * inner, numbers * inner, kernels, projects=True)
