"""Every reproduced system against its reference, in float64, forward and all gradients."""

from ..convert.registry import sweeps
from . import graphs, grids, pairs, recurrent, walks  # noqa: F401 (each registers systems)
from .algebra import FOLDED, with_statistics
from .comparison import (
    SYSTEMS,
    TOLERANCE,
    Case,
    Result,
    System,
    compare,
    formula,
    relative_error,
    system,
    table,
    verify,
)
from .data import GRIDS, N, P, Q, drawn, features, graph
from .recipes import cases, forget, made

__all__ = [
    "FOLDED",
    "GRIDS",
    "SYSTEMS",
    "TOLERANCE",
    "Case",
    "N",
    "P",
    "Q",
    "Result",
    "System",
    "cases",
    "compare",
    "drawn",
    "features",
    "forget",
    "formula",
    "graph",
    "made",
    "relative_error",
    "sweeps",
    "system",
    "table",
    "verify",
    "with_statistics",
]
