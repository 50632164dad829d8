"""Rows that only a GPU runs: hubs, graphs of a hundred million edges, captured steps, compiled peers, and launches."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch_geometric.nn import GATConv, GCNConv, RGCNConv, TransformerConv

from pyg_basisconv import convert
from pyg_basisconv.kernels import Pattern, spmm

from .compare import assert_close
from .measure import interleave, median_ratio, memory
from .result import Bench, Result, Row, Target

Step = Callable[[], Any]


class HubRow:
    """GAT where one node has a quarter of all edges, against a graph of as many edges where all have as many."""

    name = "GATConv 8 heads, a hub, against a regular graph"
    devices = ("cuda",)

    def run(self, bench: Bench) -> Result:
        N, E = (2_000, 40_000) if bench.quick else (200_000, 4_000_000)
        torch.manual_seed(0)
        layer = convert(GATConv(64, 8, heads=8)).to(bench.device)
        x = torch.randn(N, 64, device=bench.device, requires_grad=True)
        source, target = torch.randint(N, (E,)), torch.arange(E) % N
        hub = torch.where(torch.arange(E) < E // 4, 0, target)
        graphs = [torch.stack([source, end]).to(bench.device) for end in (target, hub)]
        works = [training(layer, x, graph) for graph in graphs]
        regular, ours = interleave(works, bench.effort, bench.device)
        return compared(self.name, regular, ours, E, 64, Target(ratio=1 / 1.3), "regular")


class CapturedRow:
    """A training step on Cora's size captured in a CUDA graph, against PyG's step, as it is."""

    devices = ("cuda",)

    def __init__(self, layer: type[torch.nn.Module], options: dict[str, Any]) -> None:
        self.layer, self.options, self.name = layer, options, f"{layer.__name__}, 2,708 nodes, a captured step"

    def run(self, bench: Bench) -> Result:
        torch.manual_seed(0)
        peer = self.layer(64, 8, **self.options).to(bench.device)
        x = torch.randn(2708, 64, device=bench.device, requires_grad=True)
        edges = torch.randint(2708, (2, 10556), device=bench.device)
        ours = captured(training(convert(peer), x, edges))
        theirs, mine = interleave([training(peer, x, edges), ours], bench.effort, bench.device)
        return compared(self.name, theirs, mine, 10556, 64, Target(ratio=5), "edge_index")


class CompiledRow:
    """A training step against that of PyG's layer under `torch.compile`."""

    devices = ("cuda",)

    def __init__(self, layer: type[torch.nn.Module], target: Target) -> None:
        self.layer, self.target, self.name = layer, target, f"{layer.__name__} 8 heads, large, against PyG compiled"

    def run(self, bench: Bench) -> Result:
        graph = bench.graph("large")
        torch.manual_seed(0)
        peer = self.layer(graph.x.shape[1], 8, heads=8).to(bench.device)
        x = graph.x.clone().requires_grad_()
        ours = training(convert(peer), x, graph.edge_index)
        compiled = training(torch.compile(peer), x, graph.edge_index)
        assert_close(ours()[0], compiled()[0], f"{self.name}: the gradient of x")
        theirs, mine = interleave([compiled, ours], bench.effort, bench.device)
        return compared(self.name, theirs, mine, graph.E, 64, self.target, "compiled")


class SparseRow:
    """A product with a sparse matrix in a fixed order of sums, against torch's: on a GPU, cuSPARSE's."""

    name = "sparse product of width 64, against cuSPARSE"
    devices = ("cuda",)

    def run(self, bench: Bench) -> Result:
        graph = bench.graph("large")
        (source, target), N = graph.edge_index, graph.N
        pattern = Pattern(source, target, N, N)
        weight = torch.rand(graph.E, device=bench.device)
        ptr, index = pattern.one_way
        matrix = torch.sparse_csr_tensor(ptr, index, weight, (N, N))
        x = graph.x[:, :64].contiguous()
        assert_close(spmm(x, weight, pattern), matrix @ x, self.name)
        theirs, mine = interleave([lambda: matrix @ x, lambda: spmm(x, weight, pattern)], bench.effort, bench.device)
        return compared(self.name, theirs, mine, graph.E, x.shape[1], Target(ratio=1), "CSR", "none")


class LargestRow:
    """A training step on a hundred million edges, for its memory; no peer could hold it."""

    name = "GATConv 8 heads, 100M edges"
    devices = ("cuda",)

    def run(self, bench: Bench) -> Result:
        N, E = (2_000, 100_000) if bench.quick else (2_000_000, 100_000_000)
        torch.manual_seed(0)
        x = torch.randn(N, 64, device=bench.device, requires_grad=True)
        step = training(
            convert(GATConv(64, 8, heads=8)).to(bench.device), x, torch.randint(N, (2, E), device=bench.device)
        )
        (seconds,) = interleave([step], bench.effort, bench.device)
        return Result(
            work=self.name, E=E, P=64, Q=64, gradients="all", target=Target(peak=40_000_000_000),
            ours_seconds=min(seconds), ours_memory=memory(step, bench.device).peak,
        )  # fmt: skip


class LaunchesRow:
    """What a warm call starts on the device, copies included. types: of the edges, if they have any."""

    devices = ("cuda",)

    def __init__(self, layer: type[torch.nn.Module], types: int = 0) -> None:
        self.layer, self.types = layer, types
        self.name = f"launches of {layer.__name__}, 2,708 nodes" + f", {types} types" * (types > 0)

    def run(self, bench: Bench) -> Result:
        torch.manual_seed(0)
        layer = convert(self.layer(64, 64, *[self.types] * (self.types > 0))).to(bench.device)
        x, edges = (t.to(bench.device) for t in (torch.randn(2708, 64), torch.randint(2708, (2, 10556))))
        call = (edges, torch.randint(self.types, (10556,), device=bench.device)) if self.types else (edges,)
        step, counts = training(layer, x.requires_grad_(), *call), []
        with torch.no_grad():
            (seconds,) = interleave([lambda: layer(x, *call)], bench.effort, bench.device)
            counts.append(launches(lambda: layer(x, *call)))
        step(), step()
        counts.append(launches(step))
        work = f"{self.name}: {counts[0]} forward, {counts[1]} in a training step"
        return Result(work=work, E=10556, P=64, Q=64, gradients="none", target=Target(), ours_seconds=min(seconds))


def gpu_rows() -> list[Row]:
    """Of all rows for a GPU, those that the CPU has none of."""
    captured = [CapturedRow(GCNConv, {}), CapturedRow(GATConv, {"heads": 8})]
    compiled = [CompiledRow(GATConv, Target(ratio=3)), CompiledRow(TransformerConv, Target(ratio=3))]
    counted = [LaunchesRow(GCNConv), LaunchesRow(GATConv), LaunchesRow(RGCNConv, types=474)]
    return [HubRow(), *captured, *compiled, SparseRow(), LargestRow(), *counted]


def launches(work: Step) -> int:
    """How many kernels and copies a call starts on a GPU."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return sum(event.device_type == DeviceType.CUDA for event in recorded.events())


def training(layer: torch.nn.Module, x: Tensor, *edges: Tensor) -> Step:
    """Forward and backward. edges: and what belongs to them."""
    inputs = [x, *layer.parameters()]
    return lambda: torch.autograd.grad(layer(x, *edges).sum(), inputs)


def captured(step: Step) -> Step:
    """The replay of a step that was captured after some calls on another stream, as torch demands."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def compared(
    name: str, peer: list[float], ours: list[float], E: int, P: int, target: Target, way: str, gradients: str = "all"
) -> Result:
    return Result(
        work=name, E=E, P=P, Q=P, gradients=gradients, way=way, target=target,
        peer_seconds=min(peer), ours_seconds=min(ours), ratio=median_ratio(peer, ours),
    )  # fmt: skip
