"""Every linear graph layer as one operator: y = sum_k A_k^T x Theta_k + b.

    >>> import torch
    >>> from pyg_basisconv import BasisConv, bases
    >>> conv = BasisConv(8, 4, bases.Chebyshev(K=3))  # P, Q, and which entries see which: the basis A
    >>> conv(torch.randn(3, 8), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])).shape
    torch.Size([3, 4])

Where to look, by `help(pyg_basisconv.NAME)`:

    layers       BasisConv; GridConv for images; HeteroBasisConv for a HeteroData; BasisRNN and its cells for sequences
    A            bases: of graphs, knowledge graphs, grids, attention; a + b, a @ b and a.T are bases, too
    Theta        theta: free, grouped, heads, low rank, ...
    scores       mechanisms: what bases.Attention scores pairs by
    from PyG     nn: its layers by their names; convert(model): a model that you have
    walks        load_walks: sorts of walks from a file; suggest_sorts: from the graph; walks: their syntax
    algebra      compose, fold, decompose, explain_head, gram
    ready made   models.BasisGNN; blocks; recurrent.DCRNN
    data         transforms: AddBasis, InducedBasis, ToGrid, ToSparseFeatures; hetero.stack and split; block_diagonal
    looking      conv.plan(x, edge_index): the orders and their costs; plot; testing: symmetries; backends()

Commands: `python -m pyg_basisconv {plan,recipes,verify,walks}`.
"""

from . import bases, blocks, mechanisms, models, nn as nn, plot, serialization, theta
from .algebra import compose, decompose, explain_head, fold, gram
from .backend import backends
from .batching import block_diagonal
from .conv import BasisConv
from .convert import convert
from .grid import GridConv
from .hetero import HeteroBasisConv
from .recurrent import BasisGRUCell, BasisLSTMCell, BasisRNN, BasisRNNCell
from .walks.config import Knowledge, load_walks
from .walks.suggest import Suggestion, suggest_sorts

__version__ = "0.2.0"
__all__ = ["BasisConv", "BasisGRUCell", "BasisLSTMCell", "BasisRNN", "BasisRNNCell", "GridConv", "HeteroBasisConv"]
__all__ += ["Knowledge", "Suggestion", "__version__", "backends", "bases", "block_diagonal", "blocks", "compose"]
__all__ += ["convert", "decompose", "explain_head", "fold", "gram", "load_walks", "mechanisms", "models", "plot"]
__all__ += ["serialization", "suggest_sorts", "theta"]  # without `nn`, which would hide the `nn` of torch
