"""One row of the table: a layer on a graph, PyG's at its best configuration against ours."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pyg_basisconv import BasisConv, convert

from .compare import assert_close, assert_same_gradients, step
from .data import SIZES, Graph
from .layers import LAYERS, LAYOUTS, Layer, lay_out, layer, layouts, peer
from .measure import Ceilings, Effort, Work, clock, interleave, median_ratio, memory


class Row(NamedTuple):
    """What is measured: a layer on one of the graphs; layouts: those open to PyG, None for all; target: least ratio."""

    layer: Layer
    size: str
    target: float
    sparse_x: bool = False
    layouts: tuple[str, ...] | None = None
    note: str = ""

    @property
    def name(self) -> str:
        return ", ".join(filter(None, [self.layer.name, self.size, "sparse x" * self.sparse_x, self.note]))


@dataclass
class Result:
    """What was measured. Seconds, bytes; None where it is not known."""

    work: str
    graph: str
    E: int
    P: int
    Q: int
    gradients: str
    layout: str
    peer_seconds: float
    ours_seconds: float
    ratio: float
    target: float
    peer_memory: int
    ours_memory: int
    peer_largest: int | None
    ours_largest: int | None
    of_ceiling: float | None
    order: str
    skipped: dict[str, str]  # layouts that PyG's layer does not take, and why

    @property
    def met(self) -> bool:
        return self.ratio >= self.target


def rows() -> list[Row]:
    """Those with a target of their own first, then every layer of the conversion list."""
    sparse = tuple(name for name in LAYOUTS if name != "edge_index")
    cheb, gcn, tag = layer("ChebConv K=3"), layer("GCNConv"), layer("TAGConv K=3")
    own = [
        Row(cheb, "Cora", 15),
        Row(cheb, "Cora", 100, sparse_x=True),
        Row(gcn, "Cora", 1.2),
        Row(gcn, "Cora", 8, sparse_x=True),
        Row(gcn, "large", 10, layouts=("edge_index",), note="against edge_index"),
        Row(gcn, "large", 2.5, layouts=sparse, note="against sparse layouts"),
        Row(tag, "PubMed-sized", 8),
    ]
    have = {(row.layer.name, row.size) for row in own}
    every = [Row(one, size, 1) for size in ("Cora", "PubMed-sized", "medium") for one in LAYERS]
    large = [Row(layer(name), "large", 1) for name in ("ChebConv K=3", "SAGEConv mean")]
    return own + [row for row in every + large if (row.layer.name, row.size) not in have]


def run(row: Row, graph: Graph, ceilings: Ceilings, effort: Effort, device: str) -> Result:
    """Asserts equality, chooses PyG's best layout, and measures."""
    P, Q = graph.x.shape[1], SIZES[row.size][3]
    torch.manual_seed(0)
    state = {name: value.to(device) for name, value in row.layer.make(P, Q, False).state_dict().items()}
    # A first layer reads data, a later one features that need a gradient; so does a layer without parameters.
    grad_x = row.size in ("medium", "large") or not state
    x = graph.x.clone().requires_grad_(grad_x)
    our_x = graph.sparse_x if row.sparse_x else x

    def make(layout: str) -> nn.Module:
        return peer(row.layer, layout, P, Q, not grad_x, state)

    def leaves(module: nn.Module) -> list[Tensor]:
        return [*module.parameters(), *([x] if grad_x else [])]

    ours, edges = convert(make("edge_index")), lay_out(graph, "edge_index")
    with torch.no_grad():
        gradient = torch.randn_like(ours(our_x, *edges))

    def work(module: nn.Module, x: Tensor, edges: tuple[Any, ...]) -> Callable[[], tuple[Tensor, ...]]:
        return lambda: step(lambda: module(x, *edges), leaves(module), gradient)

    expected, found = work(make("edge_index"), x, edges)(), work(ours, our_x, edges)()
    assert_close(found[0], expected[0], f"{row.name}: the value")
    if grad_x:
        assert_close(found[-1], expected[-1], f"{row.name}: the gradient of x")
    last = -1 if grad_x else None
    assert_same_gradients(make("edge_index"), convert, expected[1:last], found[1:last], row.name)

    def build(layout: str) -> Work:
        candidate = work(make(layout), x, lay_out(graph, layout))
        for value, other in zip(candidate(), expected, strict=True):
            assert_close(value, other, "the result")
        return candidate

    layout, peers, skipped = best(row.layouts or layouts(row.layer), build, device)
    plans = planned(ours, lambda: ours(our_x, *edges))
    if not plans:
        raise RuntimeError(f"{row.name}: nothing was converted, so that there is nothing to compare")
    # Without parameters the plan counts a product with the identity, which is not computed.
    ceiling = sum(ceilings.seconds(e.operations, e.bytes) for e in plans) if state else None
    gradients = ["Theta"] * bool(state) + ["x"] * grad_x
    return measure(
        peers,
        work(ours, our_x, edges),
        effort,
        device,
        work=row.name,
        graph=graph.name,
        E=graph.E,
        P=P,
        Q=Q,
        gradients=", ".join(gradients),
        layout=layout,
        target=row.target,
        ceiling=ceiling,
        order=", ".join(e.order for e in plans),
        skipped=skipped,
    )


def measure(peers: Work, ours: Work, effort: Effort, device: str, *, ceiling: float | None, **fields: Any) -> Result:
    """Interleaved timings, then the peak memory of one call of each."""
    peer_times, our_times = interleave([peers, ours], effort, device)
    peer_memory, our_memory = memory(peers, device), memory(ours, device)
    ours_seconds = statistics.median(our_times)
    return Result(
        peer_seconds=statistics.median(peer_times),
        ours_seconds=ours_seconds,
        ratio=median_ratio(peer_times, our_times),
        peer_memory=peer_memory.peak,
        ours_memory=our_memory.peak,
        peer_largest=peer_memory.largest,
        ours_largest=our_memory.largest,
        of_ceiling=None if ceiling is None else ceiling / ours_seconds,
        **fields,
    )


def best(names: Iterable[str], build: Callable[[str], Work], device: str) -> tuple[str, Work, dict[str, str]]:
    """PyG in the fastest of the layouts, by the best of a few calls (one, if that takes over a second).

    `build` calls it once, and raises what it raises. The third part says why a layout is out: not every layer takes
    every one, and each refuses in its own way.
    """
    found: dict[str, tuple[float, Work]] = {}
    skipped: dict[str, str] = {}
    for name in names:
        try:
            work = build(name)
        except Exception as error:
            skipped[name] = f"{type(error).__name__}: {error}".splitlines()[0][:100]
            continue
        seconds = clock(work, 1, device)
        found[name] = min(seconds, clock(work, 2, device)) if seconds < 1 else seconds, work
    name = min(found, key=lambda name: found[name][0])
    return name, found[name][1], skipped


def planned(module: nn.Module, call: Work) -> list[Any]:
    """The estimates of the orders that every BasisConv inside takes in a call."""
    calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def note(conv: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((conv, args, kwargs))

    convs = [m for m in module.modules() if isinstance(m, BasisConv)]
    hooks = [conv.register_forward_pre_hook(note, with_kwargs=True) for conv in convs]
    try:
        call()
    finally:
        for hook in hooks:
            hook.remove()
    plans = [conv.plan(*args, **kwargs) for conv, args, kwargs in calls]
    return [plan[plan.order] for plan in plans]
