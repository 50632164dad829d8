"""The layers with attention that `convert` takes: PyG's on graphs, torch's on sequences."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

from ..convert import convert
from .comparison import Case, over_options
from .data import N, P, Q, drawn, features, graph

E, R = 8, 3  # the width of a Transformer here, and that of the features of edges

# What is added to (P, Q) in the making of each layer; all of them are converted.
ATTENTION: dict[str, list[dict[str, Any]]] = {
    "GATConv": [
        {},
        {"heads": 3},
        {"heads": 3, "concat": False, "negative_slope": 0.4},
        {"heads": 2, "add_self_loops": False, "bias": False},
        {"heads": 2, "residual": True},
        {"heads": 2, "concat": False, "residual": True, "bias": False},
        *({"heads": 2, "edge_dim": R, "fill_value": fill} for fill in ("mean", "add", 0.7, "max")),
        {"heads": 2, "edge_dim": R, "add_self_loops": False},
        {"edge_dim": 1},
        {"heads": 2, "aggr": "mean"},
        {"heads": 2, "edge_dim": R, "flow": "target_to_source"},
    ],
    "GATv2Conv": [
        {},
        {"heads": 3},
        {"heads": 3, "concat": False, "negative_slope": 0.4},
        {"heads": 2, "share_weights": True},
        {"heads": 2, "share_weights": True, "bias": False},
        {"heads": 2, "add_self_loops": False, "bias": False, "residual": True},
        *({"heads": 2, "edge_dim": R, "fill_value": fill} for fill in ("mean", "add", 0.7)),
        {"heads": 2, "edge_dim": R, "add_self_loops": False},
        {"heads": 2, "flow": "target_to_source"},
    ],
    "TransformerConv": [
        {},
        {"heads": 3},
        {"heads": 3, "concat": False},
        {"heads": 2, "beta": True},
        {"heads": 2, "beta": True, "concat": False, "edge_dim": R},
        {"heads": 2, "edge_dim": R},
        {"heads": 2, "edge_dim": R, "bias": False},
        {"heads": 2, "root_weight": False},
        {"heads": 2, "edge_dim": R, "flow": "target_to_source"},
    ],
    "AGNNConv": [{}, {"requires_grad": False}, {"add_self_loops": False}, {"flow": "target_to_source"}],
    "FAConv": [
        {},
        {"eps": 0.0},
        {"eps": 0.3, "add_self_loops": False},
        {"normalize": False},
        {"cached": True},
        {"flow": "target_to_source"},
    ],
    "SuperGATConv": [
        {},
        {"heads": 3, "concat": False},
        {"heads": 2, "attention_type": "SD"},
        {"heads": 2, "add_self_loops": False, "bias": False},
    ],
    "FeaStConv": [
        {},
        {"heads": 3},
        {"heads": 2, "add_self_loops": False, "bias": False},
        {"heads": 2, "aggr": "add"},
        {"heads": 2, "flow": "target_to_source"},
    ],
    "ResGatedGraphConv": [
        {},
        {"act": nn.Tanh()},
        {"edge_dim": R},
        {"edge_dim": R, "root_weight": False, "bias": False},
        {"aggr": "mean"},
        {"flow": "target_to_source"},
    ],
    "RGATConv": [
        {},
        {"heads": 2},
        {"heads": 2, "concat": False, "num_bases": 2},
        {"heads": 4, "num_blocks": 1, "bias": False},
        {"heads": 2, "edge_dim": R},
        {"heads": 2, "attention_mode": "multiplicative-self-attention", "edge_dim": R},
        {"heads": 2, "attention_mode": "multiplicative-self-attention", "dim": 3},
        {"heads": 2, "attention_mode": "multiplicative-self-attention", "dim": 2, "concat": False, "mod": "additive"},
        {"heads": 2, "attention_mechanism": "within-relation", "edge_dim": R},
        *({"heads": 2, "mod": mod} for mod in ("additive", "scaled", "f-additive", "f-scaled")),
        *({"heads": 2, "mod": mod, "attention_mechanism": "within-relation"} for mod in ("additive", "scaled")),
        {"heads": 2, "edge_dim": R, "flow": "target_to_source"},
    ],
}
WEIGHTS = ("GATConv", "GATv2Conv", "TransformerConv", "FAConv", "RGATConv")  # those that can return them
# By what a layer is made, where it is not (P, Q).
CHANNELS: dict[str, tuple[int, ...]] = {"AGNNConv": (), "FAConv": (P,), "RGATConv": (P, Q, 3)}


def attending(kind: str, options: dict[str, Any], channels: Any = None) -> Any:
    """A PyG layer with random parameters; SuperGAT does not draw pairs that are no edges in evaluation only."""
    channels = CHANNELS.get(kind, (P, Q)) if channels is None else channels
    made = drawn(getattr(pyg, kind)(*channels, **options))
    return made.eval() if kind == "SuperGATConv" else made


def extras(kind: str, options: dict[str, Any], edges: int, nodes: int) -> dict[str, Tensor]:
    """What the call of a layer takes besides x and edge_index."""
    given = {}
    if kind == "FAConv":
        given["x_0"] = features(nodes, P)
        if not options.get("normalize", True):
            given["edge_weight"] = features(edges)
    if options.get("edge_dim"):
        given["edge_attr"] = features(edges, options["edge_dim"])
    return given


def called(edge_index: Any, names: tuple[str, ...], **more: Any) -> Callable[..., Any]:
    """A call of a layer with x and other leaves, by name."""
    return lambda f, x, *leaves: f(x=x, edge_index=edge_index, **dict(zip(names, leaves, strict=True)), **more)


def attention_cases(kind: str, options: dict[str, Any]) -> Iterator[Case]:
    """A layer and what `convert` makes of it: its result, and the weights that it returns."""
    reference = attending(kind, options)
    ours = convert(reference)
    edge_index, _ = graph()
    given = extras(kind, options, edge_index.shape[1], N)
    leaves = [features(N, P), *given.values()]
    more = {"edge_type": torch.randint(0, 3, (edge_index.shape[1],))} if kind == "RGATConv" else {}
    call = called(edge_index, tuple(given), **more)
    yield Case(ours, reference, leaves, call)
    if kind in WEIGHTS:
        weighed = called(edge_index, tuple(given), return_attention_weights=True, **more)
        yield Case(ours, reference, leaves, lambda f, *leaves: _flat(weighed(f, *leaves)))
    if kind == "GATConv" and options.get("edge_dim"):  # PyG then leaves the term of the edges out
        yield Case(ours, reference, leaves[:1], called(edge_index, ()))


def _flat(outcome: Any) -> Tensor:
    y, (_, alpha) = outcome
    return torch.cat([y.flatten(), alpha.flatten()])


for _name, _kind in {
    "GAT": "GATConv",
    "GATv2": "GATv2Conv",
    "Transformer on a graph": "TransformerConv",
    "AGNN, cosine": "AGNNConv",
    "FAGCN, signed tanh": "FAConv",
    "RGAT, relational": "RGATConv",
    "SuperGAT": "SuperGATConv",
    "FeaStNet, softmax over k": "FeaStConv",
    "channel-wise gates": "ResGatedGraphConv",
}.items():
    over_options(_name, _kind, attention_cases, ATTENTION)
