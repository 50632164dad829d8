"""The layers of PyG that are not of the form (A, Theta): the reasons, and the nearest layer that is."""

from collections import Counter
from typing import NamedTuple

import torch_geometric.nn as pyg


class Refused(NamedTuple):
    """Why a layer has no drop-in.

    nearest: the name of the nearest drop-in, or what to use instead.
    """

    reason: str
    nearest: str

    def __str__(self) -> str:
        return f"{self.reason}; the nearest that is here is {self.nearest}"


_PAIRS = "its messages are a network on pairs of nodes, (x_m, x_n)"
_EDGES = "its messages are a network on pairs of nodes and on features of the edge"
_SPACE = "its messages are a network on positions of nodes, and their maximum is taken"
_FUSED = "its kernels are compiled for CUDA, by another library"

REFUSED: dict[str, Refused] = {
    "CGConv": Refused(_EDGES, "ResGatedGraphConv"),
    "CuGraphGATConv": Refused(_FUSED, "GATConv"),
    "CuGraphRGCNConv": Refused(_FUSED, "RGCNConv"),
    "CuGraphSAGEConv": Refused(_FUSED, "SAGEConv"),
    "DNAConv": Refused("it attends to the results of the layers before it, not to neighbours", "TransformerConv"),
    "DynamicEdgeConv": Refused(f"{_PAIRS}, and their maximum is taken", "GATv2Conv"),
    "EdgeConv": Refused(f"{_PAIRS}, and as a rule their maximum is taken", "GATv2Conv"),
    "FusedGATConv": Refused(_FUSED, "GATConv"),
    "GENConv": Refused("its messages pass through an activation, and are weighted channel by channel", "GATv2Conv"),
    "GINEConv": Refused("its messages pass through an activation, and so does their sum", "GraphConv"),
    "GravNetConv": Refused("its graph is computed from x in each call", "GATConv, on a graph of neighbours"),
    "MeshCNNConv": Refused("it takes maxima and differences of neighbours on a mesh", "GraphConv"),
    "PNAConv": Refused("it takes maxima, minima and deviations of its messages", "SAGEConv"),
    "PPFConv": Refused(_SPACE, "GATConv, with edge_dim"),
    "PointConv": Refused(_SPACE, "GATConv, with edge_dim"),
    "PointGNNConv": Refused(_SPACE, "GATConv, with edge_dim"),
    "PointNetConv": Refused(_SPACE, "GATConv, with edge_dim"),
    "SplineConv": Refused(
        "PyG's needs pyg-lib, which is not installed", "GMMConv; or make a BasisConv of bases.Spline"
    ),
    "WLConv": Refused("it gives colours, and has no gradient", "SimpleConv"),
    "XConv": Refused("a network permutes and weighs the neighbours together", "TransformerConv"),
}


PARTLY: dict[str, str] = {  # options that the recipe of a layer refuses
    "EGConv": "aggregators other than sums and means",
    "FiLMConv": "an activation of messages, the default",
    "GMMConv": "separate Gaussians for pairs of channels",
    "GeneralConv": "dot products of messages of both ends",
    "HANConv": "the reversed flow",
    "HGTConv": "the reversed flow",
    "NNConv": "networks that end in no Linear",
    "ResGatedGraphConv": "activations that have parameters",
    "SAGEConv": "a projection with the reversed flow",
    "SplineConv": "all without pyg-lib, which PyG's needs; make a BasisConv of bases.Spline then",
    "WLConvContinuous": "the reversed flow",
}
UNKNOWN = "no BasisConv of it is known"
_HOLDERS = ("HeteroConv", "GPSConv", "MessagePassing")  # they contain drop-ins, or drop-ins derive from them
_TITLE = """## Which layers of PyG are of the form

All of `torch_geometric.nn.conv`: {counts}. It is partly where a recipe refuses some options;
an `aggr` other than a sum or a mean, or a mean where the layer normalises its edges itself, is refused by all.
`HeteroConv` and `GPSConv` hold layers, which are converted. Of torch's layers above, `nn.EmbeddingBag` is refused with
a maximum, a largest norm, or gradients that are sparse or scaled, `nn.Upsample` with `mode='bicubic'`,
`mode='area'` or `recompute_scale_factor`.
"""


def as_text() -> str:
    """The table in Markdown that says of each of PyG's layers whether it has a recipe, as docs/RECIPES.md has it."""
    rows = []
    for name in sorted({getattr(pyg, name).__name__ for name in pyg.conv.classes} - set(_HOLDERS)):
        no = ("no", *REFUSED[name]) if name in REFUSED else ("yes", "", "")
        rows.append((f"`{name}`", *(("partly", PARTLY[name], "") if name in PARTLY else no)))
    said = Counter(answer for _, answer, *_ in rows)
    title = _TITLE.format(counts=", ".join(f"{said[answer]} {answer}" for answer in ("yes", "partly", "no")))
    rows = [("layer", "recipe", "what is refused, or why", "the nearest"), ("---", "---", "---", "---"), *rows]
    return "\n".join([title, *(f"| {' | '.join(row)} |" for row in rows)])


def why_not(name: str) -> str | None:
    """Why PyG's class of this name has no drop-in, and is not converted; None for classes that are exported unchanged.

    >>> why_not("CuGraphGATConv")
    'its kernels are compiled for CUDA, by another library; the nearest that is here is GATConv'
    >>> why_not("global_mean_pool")
    """
    if name in REFUSED:
        return str(REFUSED[name])
    found = getattr(pyg, name)
    where = getattr(found, "__module__", "")
    layer = isinstance(found, type) and where.startswith("torch_geometric.nn.conv") and name not in _HOLDERS
    return UNKNOWN if layer else None
