"""Layers of PyG, under options that their recipes are checked with, and calls of them on drawn graphs."""

from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

from pyg_basisconv.verify import P, made
from pyg_basisconv.verify.recipes import R, takes
from tests.convert.conversion import LINEAR, OPTIONS

KINDS = [*LINEAR, "GATConv", "GATv2Conv", "TransformerConv", "FeaStConv", "RGCNConv", "FastRGCNConv"]
# With as many loops as drawn, PyG's FeaStConv fails without edges, and ClusterGCNConv has them in order.
LEFT_OUT = {"FeaStConv": {"add_self_loops"}, "ClusterGCNConv": {"add_self_loops"}}
LAYERS = [
    (kind, options)
    for kind in KINDS
    for options in OPTIONS[kind]
    if not ({"flow", "edge_dim"} | LEFT_OUT.get(kind, set())) & options.keys()
]


@st.composite
def layers(draw: st.DrawFn) -> tuple[nn.Module, tuple[Any, ...]]:
    """A layer of PyG in float64, and the arguments of a call: edges that differ, weights that are positive."""
    kind, options = draw(st.sampled_from(LAYERS))
    M = draw(st.integers(1, 5))
    torch.manual_seed(draw(st.integers(0, 50)))
    layer = made(kind, options)
    pairs = [(m, n) for m in range(M) for n in range(M)]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=7, unique=True))
    arguments = [
        torch.randn(M, P, dtype=torch.float64),
        torch.tensor(edges, dtype=torch.long).view(-1, 2).t().contiguous(),
    ]
    if takes(layer, "edge_type"):
        arguments.append(torch.randint(R, (len(edges),)))
    elif takes(layer, "edge_weight") and draw(st.booleans()):
        arguments.append(torch.rand(len(edges), dtype=torch.float64) + 0.1)
    return layer, tuple(arguments)
