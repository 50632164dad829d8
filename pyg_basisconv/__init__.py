"""Every linear graph layer as one operator: y = sum_k A_k^T x Theta_k + b."""

from . import bases, blocks, mechanisms, theta
from .conv import BasisConv
from .convert import convert
from .grid import GridConv
from .walks.config import Knowledge, load_walks

__version__ = "0.1.0"
__all__ = [
    "BasisConv",
    "GridConv",
    "Knowledge",
    "__version__",
    "bases",
    "blocks",
    "convert",
    "load_walks",
    "mechanisms",
    "theta",
]
