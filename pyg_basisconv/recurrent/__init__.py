"""Recurrent cells whose linear maps are convolutions on any structure, and networks of them."""

from .cells import BasisCell, BasisGRUCell, BasisLSTMCell, BasisRNNCell
from .seq2seq import DCRNN, inverse_sigmoid
from .sequence import BasisRNN

__all__ = ["DCRNN", "BasisCell", "BasisGRUCell", "BasisLSTMCell", "BasisRNN", "BasisRNNCell", "inverse_sigmoid"]
