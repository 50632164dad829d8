"""The kinds of parameter: K matrices Theta_k, P x Q, and what they do to an input and to an output."""

from .base import Theta, project
from .channels import Depthwise, Split
from .full import Full, Pass
from .heads import Heads, LowRank

__all__ = ["Depthwise", "Full", "Heads", "LowRank", "Pass", "Split", "Theta", "project"]
