"""Every layer that has a recipe against PyG's or torch's own, in float64, forward and all gradients."""

from ..convert.registry import sweeps
from .comparison import TOLERANCE, Case, Result, System, compare, relative_error, table, verify
from .recipes import GRIDS, SYSTEMS, N, P, Q, cases, drawn, features, forget, graph, made

__all__ = ["GRIDS", "SYSTEMS", "TOLERANCE", "Case", "N", "P", "Q", "Result", "System"]
__all__ += ["cases", "compare", "drawn", "features", "forget", "graph", "made", "relative_error", "sweeps", "table"]
__all__ += ["verify"]
