"""Every linear graph layer as one operator: y = sum_k A_k^T x Theta_k + b."""

from . import bases, blocks, mechanisms, models, serialization, theta
from .batching import block_diagonal
from .conv import BasisConv
from .convert import convert
from .grid import GridConv
from .hetero import HeteroBasisConv
from .walks.config import Knowledge, load_walks

__version__ = "0.1.0"
__all__ = [
    "BasisConv",
    "GridConv",
    "HeteroBasisConv",
    "Knowledge",
    "__version__",
    "bases",
    "block_diagonal",
    "blocks",
    "convert",
    "load_walks",
    "mechanisms",
    "models",
    "serialization",
    "theta",
]
