"""The kinds of parameter: K matrices Theta_k, P x Q."""

from .base import Blocks, Theta, project
from .blocks import Grouped, Kernel, Separable
from .chain import Chain
from .channels import Depthwise, Split
from .full import Full, Pass
from .heads import Heads, LowRank

__all__ = ["Blocks", "Chain", "Depthwise", "Full", "Grouped", "Heads", "Kernel", "LowRank", "Pass", "Separable"]
__all__ += ["Split", "Theta", "project"]

default = Full  # the parameter of a layer without theta=
