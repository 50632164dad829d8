"""Layers of PyG with drawn arguments, and calls of them."""

from typing import Any

import torch
import torch_geometric.nn as pyg
from hypothesis import strategies as st
from torch import Tensor, nn

flags = st.booleans()
# What each takes beside the widths, and what its call does: (weights, types or attributes of edges).
LAYERS: dict[str, tuple[dict[str, st.SearchStrategy[Any]], str]] = {
    "GCNConv": ({"improved": flags, "add_self_loops": flags, "normalize": st.just(True), "bias": flags}, "weights"),
    "ChebConv": ({"K": st.integers(1, 4), "normalization": st.sampled_from(["sym", "rw"]), "bias": flags}, "weights"),
    "TAGConv": ({"K": st.integers(0, 3), "normalize": flags, "bias": flags}, "weights"),
    "SGConv": ({"K": st.integers(0, 3), "add_self_loops": flags, "bias": flags}, "weights"),
    "SSGConv": ({"alpha": st.sampled_from([0.0, 0.1, 0.7]), "K": st.integers(1, 3), "bias": flags}, "weights"),
    "GraphConv": ({"aggr": st.sampled_from(["add", "mean"]), "bias": flags}, "weights"),
    "LEConv": ({"bias": flags}, "weights"),
    "ClusterGCNConv": ({"diag_lambda": st.sampled_from([0.0, 0.5]), "bias": flags}, ""),
    "SAGEConv": ({"aggr": st.sampled_from(["mean", "add"]), "root_weight": flags, "bias": flags}, ""),
    "MixHopConv": ({"powers": st.sampled_from([[0, 1], [0, 1, 2], [1]]), "bias": flags}, "weights"),
    "GATConv": ({"heads": st.integers(1, 2), "concat": flags, "add_self_loops": flags, "bias": flags}, ""),
    "GATv2Conv": ({"heads": st.integers(1, 2), "concat": flags, "share_weights": flags, "bias": flags}, ""),
    "TransformerConv": ({"heads": st.integers(1, 2), "concat": flags, "beta": flags, "root_weight": flags}, ""),
    "FeaStConv": ({"heads": st.integers(1, 2), "bias": flags}, ""),
    "RGCNConv": (
        {
            "num_relations": st.just(3),
            "num_bases": st.sampled_from([None, 2]),
            "aggr": st.sampled_from(["mean", "add"]),
        },
        "types",
    ),
    "FastRGCNConv": ({"num_relations": st.just(3), "root_weight": flags}, "types"),
}


@st.composite
def layers(draw: st.DrawFn) -> tuple[nn.Module, tuple[Any, ...]]:
    """A layer of PyG in float64, and the arguments of a call: edges that differ, weights that are positive."""
    name = draw(st.sampled_from(sorted(LAYERS)))
    options, reads = LAYERS[name]
    P, Q, M = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    torch.manual_seed(draw(st.integers(0, 50)))
    layer = getattr(pyg, name)(P, Q, **{option: draw(values) for option, values in options.items()}).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    pairs = [(m, n) for m in range(M) for n in range(M)]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=7, unique=True))
    x = torch.randn(M, P, dtype=torch.float64)
    arguments: list[Tensor] = [torch.tensor(edges, dtype=torch.long).reshape(-1, 2).t().contiguous()]
    if reads == "types":
        arguments.append(torch.randint(3, (len(edges),)))
    elif reads and draw(flags):
        arguments.append(torch.rand(len(edges), dtype=torch.float64) + 0.1)
    return layer, (x, *arguments)
