"""Graphs with several types of nodes and of edges: a convolution of all of them, and the way to rows of one x."""

from .conv import HeteroBasisConv
from .stacking import split, stack

__all__ = ["HeteroBasisConv", "split", "stack"]
