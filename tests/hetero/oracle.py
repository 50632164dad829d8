"""`HeteroBasisConv` by its definition, one type of edges after the other, with dense matrices."""

from torch import Tensor

from pyg_basisconv.hetero import HeteroBasisConv
from tests import oracle
from tests.oracle import Graph
from tests.walks import oracle as kg

EdgeType = tuple[str, str, str]


def by_types(
    conv: HeteroBasisConv, x: dict[str, Tensor], graphs: dict[EdgeType, Graph], norm: str | None
) -> dict[str, Tensor]:
    """The result for the edges of some types, whose graphs have one relation each."""
    y = {t: x[t].new_zeros(*x[t].shape[:-1], conv.out_channels) for _, _, t in graphs}
    for t, root in conv.roots.items():
        if t in x:
            y[t] = y.get(t, 0) + x[t] @ root.weight[0]
    for edge_type, g in graphs.items():
        s, _, t = edge_type
        own, r = conv.convs[s].theta, conv.starting[s].index(edge_type)
        Theta = oracle.theta(type(own).__name__, own.K, own.P, own.Q, dict(own.named_parameters()))
        y[t] = y[t] + oracle.apply(kg.relations(g, 1, norm), x[s], Theta[r : r + 1])
    return {t: value + conv.bias[t] if t in conv.bias else value for t, value in y.items()}
