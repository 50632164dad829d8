"""The kinds of basis, one file per family."""

from ..basis import Basis, BoundBasis, EdgeList
from .adjacency import Adjacency, Degree, Laplacian
from .composed import Concat, Mix, Product, Transpose
from .edges import Edges
from .identity import Identity
from .polynomial import Chebyshev, Diffusion, Powers

__all__ = [
    "Adjacency",
    "Basis",
    "BoundBasis",
    "Chebyshev",
    "Concat",
    "Degree",
    "Diffusion",
    "EdgeList",
    "Edges",
    "Identity",
    "Laplacian",
    "Mix",
    "Powers",
    "Product",
    "Transpose",
]
