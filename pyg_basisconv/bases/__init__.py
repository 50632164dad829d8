"""The kinds of basis, one file per family."""

from ..basis import Basis, BoundBasis, EdgeList
from .adjacency import Adjacency, Degree, Laplacian
from .attention import Attention
from .bound_attention import BoundAttention
from .bound_walks import BoundWalks
from .composition import Composition
from .concat import Concat
from .edge_functions import EdgeFunctions, EdgeNetwork, Gaussians, Points
from .edges import Edges
from .group import FiniteGroup, Group
from .identity import Identity
from .masks import Bags, Causal, Complete
from .mix import Mix
from .polynomial import Chebyshev, Diffusion, Powers
from .product import Product
from .published import GAT, GCN, GATv2
from .relations import Relations
from .resampling import Resampling
from .shifts import Shifts
from .spline import Spline
from .transpose import Transpose
from .walks import Walks
from .wavelets import Wavelets
from .window import Window

__all__ = ["GAT", "GCN", "Adjacency", "Attention", "Bags", "Basis", "BoundAttention", "BoundBasis", "BoundWalks"]
__all__ += ["Causal", "Chebyshev", "Complete", "Composition", "Concat", "Degree", "Diffusion", "EdgeFunctions"]
__all__ += ["EdgeList", "EdgeNetwork", "Edges", "FiniteGroup", "GATv2", "Gaussians", "Group", "Identity", "Laplacian"]
__all__ += ["Mix", "Points", "Powers", "Product", "Relations", "Resampling", "Shifts", "Spline", "Transpose", "Walks"]
__all__ += ["Wavelets", "Window"]
