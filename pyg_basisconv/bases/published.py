"""The families of published layers, under the names of the layers."""

from typing import Any

from torch import nn

from ..errors import refuse_arguments
from ..mechanisms import MLP, Additive
from .adjacency import Adjacency
from .attention import Attention


def GCN(**kwargs: Any) -> Adjacency:
    """The one matrix of a graph convolution (Kipf and Welling, arXiv:1609.02907); with `theta.Full`.

    Args:
        **kwargs: refused, with what takes the place of an argument of PyG's layer.

    >>> GCN()
    Adjacency(norm='sym', self_loops=True)
    """
    refuse_arguments(kwargs, "bases.GCN")
    return Adjacency("sym", self_loops=True)


def GAT(heads: int = 1, negative_slope: float = 0.2, dropout: float = 0.0, **kwargs: Any) -> Attention:
    """Attention on a graph with loops (Velickovic et al., arXiv:1710.10903); with `theta.Heads`.

    Without `theta.Heads()` a layer sums its heads, each with a matrix of the whole width, which is not GAT.

    Args:
        heads: K.
        negative_slope: of the activation of scores.
        dropout: of the normalised scores, in training.
        **kwargs: refused, with what takes the place of an argument of PyG's layer.

    >>> GAT(8)
    Attention(8, Additive(projected=True).then(LeakyReLU(negative_slope=0.2)), mask=Adjacency(self_loops=True))
    """
    refuse_arguments(kwargs, "bases.GAT")
    score = Additive(projected=True).then(nn.LeakyReLU(negative_slope))
    return Attention(heads, score, Adjacency(self_loops=True), dropout=dropout)


def GATv2(heads: int = 1, negative_slope: float = 0.2, dropout: float = 0.0, **kwargs: Any) -> Attention:
    """The same with a hidden layer in place of a sum (Brody et al., arXiv:2105.14491); with `theta.Heads(bias=True)`.

    Args:
        heads: K.
        negative_slope: of the hidden layer's activation.
        dropout: of the normalised scores, in training.
        **kwargs: refused, with what takes the place of an argument of PyG's layer.

    >>> GATv2(8)
    Attention(8, MLP(projected=True, activation=LeakyReLU(negative_slope=0.2), bias=True), mask=Adjacency(...))
    """
    refuse_arguments(kwargs, "bases.GATv2")
    score = MLP(projected=True, activation=nn.LeakyReLU(negative_slope), bias=True)
    return Attention(heads, score, Adjacency(self_loops=True), dropout=dropout)
