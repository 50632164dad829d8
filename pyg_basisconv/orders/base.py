"""What an order of contraction is: a name, a cost in plain integers or a reason against it, and how it is done."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from ..content import Inputs
from ..costs import Estimate, Problem
from ..theta import Theta

OnImage = Callable[[Tensor, Tensor | None], Tensor]  # from an image and the bias to an image


MESSAGES = "hooks, decomposed_layers or fuse=False ask for messages"  # a reason for which most orders are refused


class Contracted(NamedTuple):
    """What an order gives.

    y: the result; kept: arrays that are kept for later calls, and that y may share its memory with; biased: whether the
    bias is in it.
    """

    y: Tensor
    kept: tuple[Tensor, ...] = ()
    biased: bool = False


class Order:
    """One way of contracting A, x and Theta.

    All that is particular to an order stands in its class: the layer and the plan go by what is declared here. What it
    asks of a family is a method of `BoundBasis` with a default, which a family overrides in its own file.
    """

    name: str
    measures = False  # True if it reads more of a family than its sizes, see `measure`
    always = False  # True if no graph makes it impossible where it is possible for one
    reads_numbers = False  # True if it looks at numbers, which torch.export and torch.func have none of
    mixes_nodes = False  # True if a dense product brings what is not finite to nodes that are not linked, by its zeros
    keeps_format = False  # True if an image comes out in the memory format that it came in

    def measure(self, family: Any, inputs: Inputs, messages: bool, asked: bool) -> Any:
        """What it alone reads of a family, a hashable value of plain integers; None where the family has nothing.

        Args:
            family: a `BoundBasis`.
            inputs: the features and the parameter.
            messages: whether PyG's message passing is to be used.
            asked: whether the user asks for this order, so that it is measured even where it cannot pay.
        """
        return None

    def estimate(self, p: Problem, offer: Any) -> Estimate:
        """What it costs, or why it is not possible, for some sizes and what `measure` found."""
        raise NotImplementedError

    def grounds(self, p: Problem, offer: Any) -> str:
        """Why it is fast where it is the fastest."""
        raise NotImplementedError

    def run(self, family: Any, inputs: Inputs, bias: Tensor | None, form: str, cached: bool) -> Contracted:
        """The result.

        Args:
            family: a `BoundBasis`.
            inputs: the features and the parameter.
            bias: b, which need not be added.
            form: that of the estimate.
            cached: whether what follows from x alone is kept.
        """
        raise NotImplementedError

    def on_images(self, family: Any, theta: Theta, width: int) -> OnImage | None:
        """The same from images (B, P, *grid) to images (B, Q, *grid), where it takes them."""
        return None

    def refuse(self, reason: str) -> Estimate:
        """The estimate where it is not possible."""
        return Estimate(self.name, 0, 0, 0, math.inf, reason)
