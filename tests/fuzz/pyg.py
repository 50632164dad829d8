"""Layers of several node types, models, edges in data, and blocks: with drawn arguments, and with wrong ones."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric.data import Data

from pyg_basisconv import theta as thetas
from pyg_basisconv.blocks import AttentionPooling, CausalAttention, RoutingBlock
from pyg_basisconv.hetero import HeteroBasisConv
from pyg_basisconv.models import BasisGNN
from tests.contract import DOUBLE, THETAS, expected, tensors, widths
from tests.fuzz import calls as fuzz_calls
from tests.fuzz.calls import Call
from tests.fuzz.families import Family, families, graphs
from tests.fuzz.support import JUNK, alien, junk, numbers
from tests.hetero.oracle import EdgeType, by_types
from tests.oracle import Graph

NORMS = (None, "mean", "row", "sym")
PARTS = ("index", "type", "weight")


@dataclass
class Typed:
    """A layer of several types of nodes, and its arguments."""

    conv: HeteroBasisConv
    graphs: dict[EdgeType, Graph]
    norm: str | None
    x: Any
    edges: Any
    weights: Any

    def run(self) -> dict[str, Tensor]:
        return self.conv(self.x, self.edges, self.weights)

    def reference(self) -> dict[str, Tensor]:
        return by_types(self.conv, self.x, self.graphs, self.norm)


@st.composite
def typed(draw: st.DrawFn) -> Typed:
    """Valid ones: types without nodes, edges that are not there, and one node type with many types of edges."""
    sizes = {name: draw(st.integers(0, 3)) for name in "abc"[: draw(st.integers(1, 3))]}
    ends = st.tuples(st.sampled_from(sorted(sizes)), st.sampled_from(["r", "s"]), st.sampled_from(sorted(sizes)))
    edge_types = draw(st.lists(ends, min_size=1, max_size=4, unique=True))
    if draw(st.integers(0, 5)) == 0:
        edge_types += [("a", str(i), "a") for i in range(17)]
    kind, norm = draw(st.sampled_from(["Full", "Full", "Grouped", "Separable"])), draw(st.sampled_from(NORMS))
    P = {name: draw(st.sampled_from([2, 4] if kind == "Grouped" else [1, 2, 3])) for name in sizes}
    build = {"Full": thetas.Full, "Grouped": lambda: thetas.Grouped(2), "Separable": lambda: thetas.Separable(2)}
    options = {"root_weight": draw(st.booleans()), "bias": draw(st.booleans())}
    conv = HeteroBasisConv(P, 2, (list(sizes), edge_types), norm, build[kind](), **options).to(DOUBLE)
    for seed, parameter in enumerate(conv.parameters()):
        parameter.data = numbers(*parameter.shape, seed=seed)
    lead = draw(st.sampled_from([(), (), (2,), (0,)]))
    x = {name: numbers(*lead, n, P[name], seed=i) for i, (name, n) in enumerate(sizes.items())}
    found: dict[EdgeType, Graph] = {}
    for edge_type in edge_types[-3:]:
        if draw(st.integers(0, 4)):
            M, N = sizes[edge_type[0]], sizes[edge_type[2]]
            pair = st.tuples(st.integers(0, max(M - 1, 0)), st.integers(0, max(N - 1, 0)))
            edges = draw(st.lists(pair, max_size=5 if M and N else 0))
            weight = numbers(len(edges)).abs() if draw(st.booleans()) else None
            found[edge_type] = Graph(M, N, edges, weight, type=[0] * len(edges))
    told = {edge_type: tensors(g) for edge_type, g in found.items()}
    edges = {edge_type: arguments["edge_index"] for edge_type, arguments in told.items()}
    weights = {t: arguments["edge_weight"] for t, arguments in told.items() if "edge_weight" in arguments}
    return Typed(conv, found, norm, x, edges, weights)


def untyped(c: Typed, draw: Callable) -> None:
    """Makes one thing of a call wrong."""
    part = draw(st.sampled_from(["x", "edges", "weights"]))
    if draw(st.integers(0, 5)) == 0:
        setattr(c, part, draw(alien))
    elif draw(st.integers(0, 5)) == 0:
        setattr(c, part, getattr(c, part) | {draw(st.sampled_from(["z", 0, ("a", "z", "a"), None])): torch.ones(2, 2)})
    elif part == "x" or not c.edges:
        _wrong_features(c, draw)
    else:
        _wrong_edges(c, part, draw)


def _wrong_edges(c: Typed, part: str, draw: Callable) -> None:
    t = draw(st.sampled_from(sorted(c.edges)))
    edges, E = c.edges[t], c.edges[t].shape[1]
    if part == "weights":
        other = [torch.ones(E + 1), torch.ones(E).long(), torch.ones(E, 1), torch.tensor(1.0), [1.0] * E, draw(junk)]
        other += [torch.ones(E, dtype=DOUBLE, device="meta")] if E else []
        c.weights = c.weights | {t: draw(st.sampled_from(other))}
        return
    g = c.graphs[t]
    other = [edges.double(), edges.bool(), edges[0], edges[:1], edges[None], edges.tolist(), draw(junk), None]
    other += [torch.zeros(g.N, g.M + 1).to_sparse(), torch.zeros(g.N + 1, g.M).to_sparse_csr()]
    other += [torch.tensor([[m], [n]]) for m, n in [(g.M, 0), (0, g.N), (-1, 0), (0, -1), (2**40, 0), (0, -(2**31))]]
    c.edges = c.edges | {t: draw(st.sampled_from(other))}


def _wrong_features(c: Typed, draw: Callable) -> None:
    name = draw(st.sampled_from(sorted(c.x)))
    if draw(st.booleans()) and any(name in (t[0], t[2]) for t in c.edges):
        c.x = {t: x for t, x in c.x.items() if t != name}
        return
    if name not in c.conv.convs and name not in c.conv.roots:  # it only says how many nodes there are
        c.x = c.x | {name: draw(alien)}
        return
    x = c.x[name]
    other = [torch.cat([x, x], -1), x[..., :0], x.float(), x.long(), x > 0, x.flatten(), x.to("meta"), x.tolist(), None]
    other += [x[None]] if len(c.x) > 1 else []
    c.x = c.x | {name: draw(st.sampled_from([*other, draw(junk)]))}


@dataclass
class Model:
    """A model and its arguments."""

    model: BasisGNN
    call: Call
    kind: str

    def run(self) -> Tensor:
        return self.model(self.call.x, **self.call.arguments)

    def reference(self) -> Tensor:
        """One layer after the other, each with dense matrices."""
        model, x, results = self.model, self.call.source, []
        A = self.call.family.matrices(self.call.graph)
        for i, conv in enumerate(model.convs):
            x = expected(conv, A, x, self.kind)
            if i == model.num_layers - 1 and model.jk_mode is None:
                return x
            x = model.norms[i](x).relu()
            results.append(x)
        joined = {
            None: lambda: x,
            "last": lambda: x,
            "cat": lambda: torch.cat(results, -1),
            "max": lambda: torch.stack(results).amax(0),
        }[model.jk_mode]()
        return model.lin(joined) if hasattr(model, "lin") else joined


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Valid ones, on graphs with as many targets as sources."""
    family = replace(draw(families), square=True)
    g = draw(graphs(family))
    kind = draw(st.sampled_from(["Full", "Full", "LowRank", "Separable", "Heads(mean)"]))
    layers, jk = draw(st.integers(1, 3)), draw(st.sampled_from([None, None, "last", "cat", "max"]))
    norm, bias = draw(st.sampled_from([None, "batch_norm"])), draw(st.booleans())
    P, Q = widths(kind, family.basis.K, 3, 2)
    model = BasisGNN(
        P, 2, layers, Q, basis=family.basis, theta=THETAS[kind](), jk=jk, norm=norm, bias=bias, dropout=0.5
    ).to(DOUBLE)
    for seed, parameter in enumerate(model.parameters()):
        parameter.data = numbers(*parameter.shape, seed=seed) / 2
    model.eval()
    x = numbers(g.M, P, seed=draw(st.integers(0, 9)))
    return Model(model, Call(family, g, kind, model.convs[0], x, x, tensors(g)), kind)


def spoil(c: Model, draw: Callable) -> None:
    """Makes one thing of a call wrong."""
    if draw(st.booleans()) and draw(st.sampled_from(fuzz_calls.CHANGES[:10]))(c.call, draw):
        return
    x = c.call.source
    other = [x[..., :0], torch.cat([x, x], -1), x.float(), x.long(), x.tolist(), x.flatten(), None, x.to("meta")]
    c.call.x = draw(st.sampled_from([*other, (x,), (x, None, None), draw(junk)]))


@st.composite
def data(draw: st.DrawFn) -> tuple[Family, Graph, Data]:
    """A basis, and a graph of one kind of nodes."""
    family = replace(draw(families), square=True)
    g = draw(graphs(family))
    return family, g, Data(x=numbers(g.M, 2), num_nodes=g.M, **tensors(g))


def dense(K: int, N: int, edges: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """(K, N, N) of typed weighted edges, by a loop."""
    A = torch.zeros(K, N, N, dtype=DOUBLE)
    for (m, n), k, w in zip(edges[0].t().tolist(), edges[1].tolist(), edges[2], strict=True):
        A[k, m, n] += w
    return A


def wrong_samples(n_id: Tensor, N: int) -> dict[str, Any]:
    """Attributes of a sample that do not fit."""
    n = len(n_id)
    wrong: dict[str, Any] = {f"{part} {name}": {part: JUNK[name]()} for part in ("n_id", "batch") for name in JUNK}
    wrong |= {
        "floating": {"n_id": n_id.double()},
        "complex": {"batch": torch.zeros(n, dtype=torch.complex64)},
        "half": {"batch": torch.zeros(n).half()},
        "longer": {"n_id": torch.cat([n_id, n_id.new_zeros(1)])},
        "two axes": {"n_id": n_id[None]},
        "none": {"n_id": None},
        "elsewhere": {"n_id": n_id.to("meta")},
        "samples elsewhere": {"batch": n_id.to("meta")},
        "sparse": {"n_id": n_id.to_sparse()},
    }
    if n:
        wrong["beyond"] = {"n_id": torch.cat([n_id[1:], n_id.new_tensor([N])])}
        wrong["negative"] = {"n_id": torch.cat([n_id[1:], n_id.new_tensor([-1])])}
    if n > 1:
        wrong["twice"] = {"n_id": torch.cat([n_id[1:], n_id[1:2]])}
    return wrong


def wrong_attributes(out: Data) -> dict[str, Any]:
    """What AddBasis never gives."""
    ends, kind, weight = out.basis_edge_index, out.basis_edge_type, out.basis_edge_weight
    N = out.num_nodes
    wrong = {f"{part} {name}": {f"basis_edge_{part}": make()} for part in PARTS for name, make in JUNK.items()}
    wrong |= {
        "three rows": {"basis_edge_index": torch.cat([ends, ends[:1]])},
        "one row": {"basis_edge_index": ends[:1]},
        "one axis": {"basis_edge_index": ends[0]},
        "floating": {"basis_edge_index": ends.double()},
        "fewer types": {"basis_edge_type": torch.cat([kind, kind.new_zeros(1)])},
        "more weights": {"basis_edge_weight": torch.cat([weight, weight.new_zeros(1)])},
        "elsewhere": {"basis_edge_index": ends.to("meta")},
        "types elsewhere": {"basis_edge_type": kind.to("meta")},
        "weights elsewhere": {"basis_edge_weight": weight.to("meta")},
        "whole weights": {"basis_edge_weight": weight.long()},
        "no weights": {"basis_edge_weight": None},
    }
    if ends.numel():
        for name, row, value in (("target", 1, N), ("source", 0, N), ("below", 1, -1), ("source below", 0, -1)):
            changed = ends.clone()
            changed[row, 0] = value
            wrong[name] = {"basis_edge_index": changed}
    return wrong


READ = {AttentionPooling: "batch", CausalAttention: "mask", RoutingBlock: "mask"}  # beside x


def wrong_inputs(block: nn.Module, x: Tensor) -> dict[str, Any]:
    """What no block takes."""
    wrong = {name: make() for name, make in JUNK.items()}
    if not isinstance(block, AttentionPooling):
        wrong["sparse"] = x.reshape(-1, 6).to_sparse()
    return wrong | {
        "wider": torch.cat([x, x], -1),
        "no channels": x[..., :0],
        "float32": x.float(),
        "integers": x.long(),
        "bools": x > 0,
        "one axis": x.new_zeros(6),
        "elsewhere": x.to("meta"),
        "pair": (x, x),
        "None": None,
        "list": x.tolist(),
    }
