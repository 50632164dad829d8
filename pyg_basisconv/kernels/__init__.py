"""The primitives, one door each. Kernels know sparsity patterns and tensors, and nothing of bases or parameters."""

from .dense import matmul
from .pattern import Pattern
from .products import sddmm, spmm

__all__ = ["Pattern", "matmul", "sddmm", "spmm"]
