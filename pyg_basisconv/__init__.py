"""Every linear graph layer as one operator: y = sum_k A_k^T x Theta_k + b."""

from . import bases, blocks, mechanisms, models, nn, plot, serialization, theta
from .algebra import compose, decompose, explain_head, fold, gram
from .backend import backends
from .batching import block_diagonal
from .conv import BasisConv
from .convert import convert
from .grid import GridConv
from .hetero import HeteroBasisConv
from .recurrent import BasisGRUCell, BasisLSTMCell, BasisRNN, BasisRNNCell
from .walks.config import Knowledge, load_walks

__version__ = "0.1.0"
__all__ = [
    "BasisConv",
    "BasisGRUCell",
    "BasisLSTMCell",
    "BasisRNN",
    "BasisRNNCell",
    "GridConv",
    "HeteroBasisConv",
    "Knowledge",
    "__version__",
    "backends",
    "bases",
    "block_diagonal",
    "blocks",
    "compose",
    "convert",
    "decompose",
    "explain_head",
    "fold",
    "gram",
    "load_walks",
    "mechanisms",
    "models",
    "nn",
    "plot",
    "serialization",
    "theta",
]
