"""Graphs with several types of nodes and edges: a convolution, and features of all types as rows of one x."""

from .conv import HeteroBasisConv
from .stacking import split, stack

__all__ = ["HeteroBasisConv", "split", "stack"]
