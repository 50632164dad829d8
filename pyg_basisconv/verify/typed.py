"""Attention between nodes of several types: one source per node and relation, with features in a block of its own."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor
from torch.func import functional_call

from .. import bases
from ..conv import BasisConv
from ..mechanisms import Dot
from ..theta import Heads
from .comparison import Case, system
from .data import drawn, features

WIDTHS, COUNTS = {"a": 6, "b": 3}, {"a": 7, "b": 4}  # of features, and of nodes
RELATIONS = [("a", "to", "b"), ("b", "of", "a"), ("a", "in", "a")]
H, D = 2, 3  # heads, and the width of one
Parameters = dict[str, Tensor]


def blocks(*parts: Tensor) -> Tensor:
    """(M, columns) the rows (x, 1) of the parts, as a block-diagonal matrix."""
    return torch.block_diag(*(F.pad(x, (0, 1), value=1.0) for x in parts))


def projections(p: Parameters, kind: str) -> list[Tensor]:
    """The (H, P + 1, D) of keys, queries and values of a node type, their biases in the last row."""
    whole = torch.cat([p[f"kqv_lin.lins.{kind}.weight"].t(), p[f"kqv_lin.lins.{kind}.bias"].unsqueeze(0)])
    return [part.unflatten(1, (H, D)).transpose(0, 1) for part in whole.chunk(3, 1)]


def matrices(p: Parameters) -> Parameters:
    """The parameters of the BasisConv, from PyG's matrices for each node type and for each relation."""
    keys, values, T = [], [], len(RELATIONS)
    for t, relation in enumerate(RELATIONS):
        key, _, value = projections(p, relation[0])
        keys.append(key @ p["k_rel.weight"][t::T] * p["p_rel." + "__".join(relation)].view(H, 1, 1))
        values.append(value @ p["v_rel.weight"][t::T])
    queries = [projections(p, kind)[1] for kind in WIDTHS]
    key, query, value = (torch.cat(parts, 1) for parts in (keys, queries, values))
    return {"basis.mechanism.key": key, "basis.mechanism.query": query, "theta.weight": value}


@system("HGT, typed", "torch_geometric.nn.HGTConv")
def _hgt() -> Iterator[Case]:
    reference = drawn(pyg.HGTConv(WIDTHS, H * D, (list(WIDTHS), RELATIONS), H))
    names = [name for name, _ in reference.named_parameters()]
    edges = {r: torch.stack([torch.randint(COUNTS[k], (12,)) for k in (r[0], r[2])]) for r in RELATIONS}
    start, before, spread = {"a": 0, "b": COUNTS["a"]}, 0, []
    for (source, _, target), found in edges.items():
        spread.append(found + torch.tensor([[before], [start[target]]]))
        before += COUNTS[source]
    P = sum(WIDTHS[source] + 1 for source, _, _ in RELATIONS), sum(WIDTHS.values()) + len(WIDTHS)
    conv = BasisConv(P, H * D, bases.Attention(H, Dot(D), bases.Adjacency()), Heads(), bias=False).double()

    def ours(a: Tensor, b: Tensor, *leaves: Tensor) -> Tensor:
        p, x = dict(zip(names, leaves, strict=True)), {"a": a, "b": b}
        sources = blocks(*(x[source] for source, _, _ in RELATIONS))
        y = functional_call(conv, matrices(p), ((sources, blocks(a, b)), torch.cat(spread, 1)))
        outcome = []
        for kind, part in zip(WIDTHS, F.gelu(y).split(list(COUNTS.values())), strict=True):
            z = F.linear(part, p[f"out_lin.lins.{kind}.weight"], p[f"out_lin.lins.{kind}.bias"])
            if z.shape[1] == WIDTHS[kind]:
                alpha = p[f"skip.{kind}"].sigmoid()
                z = alpha * z + (1 - alpha) * x[kind]
            outcome.append(z)
        return torch.cat(outcome)

    def theirs(a: Tensor, b: Tensor, *leaves: Tensor) -> Tensor:
        y = functional_call(reference, dict(zip(names, leaves, strict=True)), ({"a": a, "b": b}, edges))
        return torch.cat([y["a"], y["b"]])

    yield Case(ours, theirs, [features(COUNTS[k], WIDTHS[k]) for k in WIDTHS] + list(reference.parameters()))
