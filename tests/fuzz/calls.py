"""Calls of a layer on a graph, and what may be wrong with them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric.typing import SparseTensor

from pyg_basisconv import BasisConv
from tests.contract import DOUBLE, THETAS, layouts, make
from tests.fuzz.families import Family, families, graphs
from tests.fuzz.support import numbers
from tests.oracle import Graph

TOLERANCES = {DOUBLE: 1e-10, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 3e-2}


@dataclass
class Call:
    """A layer and its arguments, as a user has them, with what they mean."""

    family: Family
    graph: Graph
    kind: str
    conv: BasisConv
    source: Tensor  # the features of the sources
    x: Any  # what is passed for them
    arguments: dict[str, Any]
    wrong: list[str] = field(default_factory=list)

    def run(self) -> Any:
        return self.conv(self.x, **self.arguments)

    def __repr__(self) -> str:
        return f"{self.conv} of {self.kind} on {self.graph}, x {self.x}, wrong: {self.wrong}, {self.arguments}"


def strange_views(x: Tensor, how: str) -> Tensor:
    """The same numbers in another layout of memory."""
    if how == "transposed":
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    if how == "sliced":
        wide = torch.full((*x.shape[:-1], 2 * x.shape[-1] + 1), torch.nan, dtype=x.dtype)
        wide[..., 1::2] = x
        return wide[..., 1::2]
    if how == "parameter":
        return nn.Parameter(x)
    return x


VALUES = ("plain", "plain", "plain", "zeros", "large", "negative", "huge", "nonfinite")
PATHS = ("auto", "auto", "a_first", "theta_first", "phi", "message", "message/a_first")


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Valid ones."""
    family, values = draw(families), draw(st.sampled_from(VALUES))
    g = draw(graphs(family, values))
    dtype = DOUBLE if values == "huge" else draw(st.sampled_from([DOUBLE, DOUBLE, DOUBLE, *TOLERANCES]))
    kind, path = draw(st.sampled_from(sorted(THETAS))), draw(st.sampled_from(PATHS))
    if values == "nonfinite" and path == "phi":
        path = "auto"  # a dense product by the user's own word
    conv = make(family.basis, kind, path, draw(st.integers(1, 3)), draw(st.integers(1, 2)), bias=draw(st.booleans()))
    conv = conv.to(dtype)
    lead = draw(st.sampled_from([(), (), (), (2,), (0,), (1, 2)]))
    x = numbers(*lead, g.M, conv.in_channels, seed=draw(st.integers(0, 99)))
    x = {"zeros": x * 0, "large": x * 1e3}.get(values, x).to(dtype)
    if values == "nonfinite" and x.numel():
        place = draw(st.integers(0, x.numel() - 1))
        x.view(-1)[place] = draw(st.sampled_from([torch.nan, torch.inf, -torch.inf]))
    if g.weight is not None:
        g = g.but(weight=g.weight.to(dtype))
    found = list(layouts(g))
    arguments = found[draw(st.integers(0, len(found) - 1))][1] if draw(st.booleans()) else found[1][1]
    arguments = {name: _as(value, dtype) for name, value in arguments.items()}
    x = strange_views(x, draw(st.sampled_from(["plain", "plain", "transposed", "sliced", "parameter"])))
    return Call(family, g, kind, conv, x, x if g.M == g.N else (x, None), arguments | {"size": (g.M, g.N)})


def _as(value: Any, dtype: torch.dtype) -> Any:
    floating = isinstance(value, Tensor) and type(value) is Tensor and value.is_floating_point()
    return value.to(dtype) if floating or isinstance(value, SparseTensor) else value


# What may be done to a valid call. Each change gives the call back, or None where it does not apply to it.
Change = Callable[[Call, st.DataObject], None]


def _edges(c: Call) -> Tensor | None:
    """The (2, E) tensor of a call, where that is what it has, with an edge in it."""
    edge_index = c.arguments.get("edge_index")
    usual = type(edge_index) is Tensor and edge_index.layout == torch.strided
    return edge_index.clone() if usual and edge_index.numel() else None


def _set(c: Call, name: str, value: Any) -> str:
    c.arguments[name] = value
    return "refused"


def beyond(c: Call, draw: Callable) -> str:
    edge_index = _edges(c)
    if edge_index is None:
        return ""
    row, e = draw(st.integers(0, 1)), draw(st.integers(0, edge_index.shape[1] - 1))
    most = c.graph.N if row else c.graph.M
    edge_index[row, e] = draw(st.sampled_from([most, most + 7, 2**31 - 1, -1, -7, -(2**31)]))
    return _set(c, "edge_index", edge_index)


def edges_of_another_kind(c: Call, draw: Callable) -> str:
    edge_index = _edges(c)
    if edge_index is None:
        return ""
    dtypes = [torch.float32, torch.bool, torch.int16, torch.uint8, torch.complex64, torch.float16]
    return _set(c, "edge_index", edge_index.to(draw(st.sampled_from(dtypes))))


def edges_in_another_shape(c: Call, draw: Callable) -> str:
    edge_index = _edges(c)
    if edge_index is None:
        return ""
    others = [edge_index[0], edge_index[None], edge_index[:1], edge_index.repeat(2, 1), edge_index[0, 0]]
    others += [edge_index.t()] if edge_index.shape[1] != 2 else []
    return _set(c, "edge_index", draw(st.sampled_from(others)))


def edges_elsewhere(c: Call, draw: Callable) -> str:
    edge_index = _edges(c)
    return "" if edge_index is None else _set(c, "edge_index", edge_index.to("meta"))


def edges_of_python(c: Call, draw: Callable) -> str:
    edge_index = _edges(c)
    if edge_index is None:
        return ""
    return _set(
        c, "edge_index", draw(st.sampled_from([edge_index.tolist(), edge_index.numpy(), "edges", 3, object(), {}]))
    )


def matrix_of_another_shape(c: Call, draw: Callable) -> str:
    A = torch.zeros(c.graph.N + draw(st.integers(0, 1)), c.graph.M + 1, dtype=c.source.dtype)
    for name in ("edge_weight", "edge_type"):
        c.arguments.pop(name, None)
    return _set(c, "edge_index", draw(st.sampled_from([A.to_sparse_coo, A.to_sparse_csr, A.to_sparse_csc]))())


def matrix_of_another_layout(c: Call, draw: Callable) -> str:
    A = torch.ones(2, 2).to_sparse_bsr((1, 1))
    return _set(c, "edge_index", draw(st.sampled_from([A, torch.ones(2, 2, 2).to_sparse()])))


def weights_that_do_not_fit(c: Call, draw: Callable) -> str:
    E, dtype = c.graph.E, c.source.dtype
    other = torch.float32 if dtype == DOUBLE else DOUBLE
    K = c.family.columns + 1 if c.family.columns else 2
    values = torch.ones(E, K) if c.family.columns else torch.ones(E)
    wrong = [
        torch.ones(E + 1, dtype=dtype),
        torch.ones(E, dtype=other),
        torch.ones(E).long(),
        torch.ones(E).bool(),
        torch.ones(E, dtype=torch.complex64),
        torch.tensor(1.0, dtype=dtype),
        torch.ones(E, 1, 1, dtype=dtype),
        torch.ones(E, dtype=dtype, device="meta"),
        values.tolist(),
        values.numpy(),
        "ones",
        1.0,
    ]
    return _set(c, "edge_weight", draw(st.sampled_from(wrong)))


def types_that_do_not_fit(c: Call, draw: Callable) -> str:
    E, R = c.graph.E, c.family.types
    wrong = [
        torch.zeros(E + 1).long(),
        torch.zeros(E),
        torch.zeros(E).bool(),
        torch.zeros(E, 1).long(),
        torch.tensor(0),
        torch.zeros(E, dtype=torch.long, device="meta"),
        [0] * E,
        np.zeros(E, dtype=int),
        "a",
        0,
    ]
    if R and E:
        kinds = torch.tensor(c.graph.type)
        kinds[draw(st.integers(0, E - 1))] = draw(st.sampled_from([-1, R + 2, 2**40, -(2**40)]))
        wrong += [kinds] * 4
    return _set(c, "edge_type", draw(st.sampled_from(wrong)))


def sizes_that_do_not_fit(c: Call, draw: Callable) -> str:
    M, N = c.graph.M, c.graph.N
    wrong = [
        (M + 1, N),
        (M, N, 1),
        (M,),
        (),
        -1,
        (M, -1),
        float(M),
        (float(M), N),
        "all",
        torch.tensor([M, N]),
        {M, N + 1},
    ]
    wrong += [(N, M)] if M != N else []
    return _set(c, "size", draw(st.sampled_from(wrong)))


def features_that_do_not_fit(c: Call, draw: Callable) -> str:
    x, lead = c.source.detach(), c.source.shape[:-2]
    other = torch.float32 if x.dtype == DOUBLE else DOUBLE
    wrong = [
        None,
        x.tolist(),
        x.numpy() if x.dtype == DOUBLE else [[1.0]],
        "x",
        1.0,
        x.sum(),
        x.flatten(),
        x.long(),
        x > 0,
        x.to(torch.complex64),
        x.to("meta"),
        torch.cat([x, x], -2) if c.graph.M else x.new_ones(1, x.shape[-1]),
        (x, None, None),
        (x,),
        (),
        (None, x),
        (x, x[0]) if not lead and c.graph.M else (x, 3),
        {"x": x},
    ]
    if c.conv.weight is not None:
        wrong += [torch.cat([x, x], -1), x[..., :0], x.to(other)]
    c.x = draw(st.sampled_from(wrong))
    return "refused"


def what_is_not_read(c: Call, draw: Callable) -> str:
    """What only attention reads, only grids, or only Laplacians."""
    name = draw(st.sampled_from(["edge_attr", "mask", "valid", "grid", "lambda_max", "batch"]))
    M, N, E = c.graph.M, c.graph.N, c.graph.E
    wrong: dict[str, list[Any]] = {
        "edge_attr": [torch.ones(E, 2), "attr", [1.0]],
        "mask": [torch.ones(M, N).bool(), "causal", [True]],
        "valid": [torch.ones(M).bool(), "all", 3],
        "grid": [(-1, 2), "a", (1.5,), torch.tensor(M), (), (M, None), True],
        "lambda_max": [0, -1.0, float("nan"), float("inf"), "exact", [1.0], torch.tensor(-1.0), torch.zeros(0), 1j]
        + [torch.ones(2), torch.ones(1, device="meta"), torch.tensor(1j), np.ones(1)],
        "batch": ["a", 0, [0] * M, np.zeros(M, dtype=int), torch.zeros(M, dtype=torch.long, device="meta")],
    }
    return _set(c, name, draw(st.sampled_from(wrong[name])))


CHANGES = (
    beyond,
    beyond,
    edges_of_another_kind,
    edges_in_another_shape,
    edges_elsewhere,
    edges_of_python,
    matrix_of_another_shape,
    matrix_of_another_layout,
    weights_that_do_not_fit,
    types_that_do_not_fit,
    sizes_that_do_not_fit,
    features_that_do_not_fit,
    what_is_not_read,
)
READS = {  # the argument that a change is to
    change: name
    for name, changes in {
        "edge_index": CHANGES[:8],
        "edge_weight": CHANGES[8:9],
        "edge_type": CHANGES[9:10],
        "size": CHANGES[10:11],
        "x": CHANGES[11:12],
        "more": CHANGES[12:],
    }.items()
    for change in changes
}


@st.composite
def wrong_calls(draw: st.DrawFn) -> Call:
    """Calls with one thing wrong, or several."""
    c = draw(calls())
    for change in draw(st.lists(st.sampled_from(CHANGES), min_size=1, max_size=3, unique_by=lambda f: READS[f])):
        if change(c, draw):
            c.wrong.append(change.__name__)
    return c
