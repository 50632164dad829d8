"""Composition, decomposition and inspection of layers, as the one formula allows them."""

from .compose import Comparison, compare, compose
from .decompose import Decomposition, decompose
from .folding import fold
from .gram import Gram, gram
from .heads import HeadReport, explain_head

__all__ = ["Comparison", "Decomposition", "Gram", "HeadReport"]
__all__ += ["compare", "compose", "decompose", "explain_head", "fold", "gram"]
