"""Every reproduced system against its reference, in float64, forward and all gradients."""

from .algebra import FOLDED, with_statistics
from .comparison import SYSTEMS, TOLERANCE, Case, Result, System, compare, relative_error, system, table, verify
from .data import N, P, Q, drawn, features, graph
from .graphs import OPTIONS, WITHOUT_WEIGHTS, converted, forget, layer
from .grids import GRIDS, LAYERS, gridded, torch_layer
from .heads import ATTENTION, attending, attention_cases
from .knowledge import KNOWLEDGE, knowing, knowledge_cases
from .pairs import formula
from .recurrent import GATES
from .typed import RELATIONS
from .walks import SORTS

__all__ = [
    "ATTENTION",
    "FOLDED",
    "GATES",
    "GRIDS",
    "KNOWLEDGE",
    "LAYERS",
    "OPTIONS",
    "RELATIONS",
    "SORTS",
    "SYSTEMS",
    "TOLERANCE",
    "WITHOUT_WEIGHTS",
    "Case",
    "N",
    "P",
    "Q",
    "Result",
    "System",
    "attending",
    "attention_cases",
    "compare",
    "converted",
    "drawn",
    "features",
    "forget",
    "formula",
    "graph",
    "gridded",
    "knowing",
    "knowledge_cases",
    "layer",
    "relative_error",
    "system",
    "table",
    "torch_layer",
    "verify",
    "with_statistics",
]
