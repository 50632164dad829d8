"""An order of contraction: a name, a cost in plain integers or a reason against it, and an evaluation."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from ..content import Inputs
from ..costs import Estimate, Problem
from ..theta import Theta

ImageFunction = Callable[[Tensor, Tensor | None], Tensor]  # from an image and the bias to an image

MESSAGES = "hooks, decomposed_layers or fuse=False ask for messages"  # a reason for which most orders are refused


class Contracted(NamedTuple):
    """The result of an order.

    y: the output; kept: arrays cached for later calls, with which y may share memory; biased: whether y has the bias.
    """

    y: Tensor
    kept: tuple[Tensor, ...] = ()
    biased: bool = False


class Order:
    """One way of contracting A, x and Theta.

    Everything particular to an order is in its class; the layer and the plan rely on the attributes below. What it
    needs of a family is a method of `BoundBasis` with a default, which families override in their own files.
    """

    name: str
    measures = False  # True if it reads more of a family than its sizes, see `measure`
    always: tuple[str, ...] = ()  # the forms, "" if it has none, that are possible whatever the graph
    reads_numbers = False  # True if it looks at values of tensors, which torch.export and torch.func do not allow
    mixes_nodes = False  # True if a dense product may spread NaN and infinities to nodes that are not linked
    keeps_products = False  # True if it takes the A_k^T x that a cached layer keeps
    keeps_format = False  # True if an image keeps its memory format

    def measure(self, family: Any, inputs: Inputs, messages: bool, forced: bool) -> Any:
        """What it needs to know of a family beyond its sizes, a hashable value of plain integers; None if it cannot
        evaluate the family.

        family: a `BoundBasis`; messages: whether PyG's message passing is to be used; forced: whether the user asks for
        this order, so that it is measured even if it cannot pay.
        """
        return None

    def estimate(self, p: Problem, offer: Any) -> Estimate:
        """What it costs, or why it is not possible, for some sizes and the result of `measure`."""
        raise NotImplementedError

    def grounds(self, p: Problem, offer: Any) -> str:
        """The reason why it is the fastest, if it is, as `Plan.why` prints it."""
        raise NotImplementedError

    def run(self, family: Any, inputs: Inputs, bias: Tensor | None, form: str, cached: bool) -> Contracted | None:
        """Evaluates the layer; None if it cannot any more, as the basis was changed after the order was chosen.

        bias: b; adding it is optional, see `Contracted`; form: that of the estimate; cached: whether results that
        depend on x alone are cached.
        """
        raise NotImplementedError

    def on_images(self, family: Any, theta: Theta, width: int) -> ImageFunction | None:
        """The evaluation from images (B, P, *grid) to images (B, Q, *grid), if it takes them."""
        return None

    def refuse(self, reason: str) -> Estimate:
        """The estimate of an order that is not possible."""
        return Estimate(self.name, 0, 0, 0, math.inf, reason)
