"""Every linear graph layer as one operator: y = sum_k A_k^T x Theta_k + b."""

from . import bases, mechanisms, theta
from .conv import BasisConv
from .convert import convert

__version__ = "0.1.0"
__all__ = ["BasisConv", "__version__", "bases", "convert", "mechanisms", "theta"]
