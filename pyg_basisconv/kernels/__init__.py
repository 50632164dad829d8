"""The primitive operations. Kernels read sparsity patterns and tensors; they do not depend on bases or parameters."""

from .attend import Piece, attend
from .contract import a_first, summed, theta_first, times_theta
from .dense import Affine, affine, contracted, matmul, matmuls, repeated
from .edge_products import EdgeProductScores, edge_products
from .hidden_layer import hidden
from .multihead import softmax
from .nonzero import NonzeroRows, a_first_nonzero
from .pattern import Pattern
from .products import sddmm, spmm, spmm_rows
from .scored import attention, scored_attention
from .scoring import ProductScores, ProjectedScores, Sums, TermScores, Valued, at_entries, inner
from .tiled import Matchings, gather_matmul
from .typed import Pairs, typed_matmul

__all__ = ["Affine", "EdgeProductScores", "Matchings", "NonzeroRows", "Pairs", "Pattern", "Piece", "ProductScores"]
__all__ += ["ProjectedScores", "Sums", "TermScores", "Valued", "a_first", "a_first_nonzero", "affine", "at_entries"]
__all__ += ["attend", "attention", "contracted", "edge_products", "gather_matmul", "hidden", "inner", "matmul"]
__all__ += ["matmuls", "repeated", "scored_attention", "sddmm", "softmax", "spmm", "spmm_rows", "summed", "theta_first"]
__all__ += ["times_theta", "typed_matmul"]
