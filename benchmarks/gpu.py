"""On a GPU, in parts: each run measures rows for some minutes, and leaves out those that an earlier one has measured.

`python -m benchmarks --gpu FOLDER` writes a file for each row as soon as it is measured; run it until nothing is left.
After a change of the package's code it begins again, and so it does under BASISCONV_KERNELS=triton: without it torch's
operations are measured. Before all rows come the tests of what a GPU runs.
"""

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import GATConv, GCNConv

import pyg_basisconv
from pyg_basisconv import backends, convert

from .data import Missing
from .machine import machine
from .measure import interleave, median_ratio
from .report import Report
from .result import Bench, Result, Row, Target
from .rows import rows

TESTS = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/kernels/test_triton.py", "tests/test_cuda.py"]
MINUTES = 8.0  # after which no row is begun

Step = Callable[[], object]


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


def training(layer: torch.nn.Module, x: Tensor, edges: Tensor) -> Step:
    """Forward and backward."""
    inputs = [x, *layer.parameters()]
    return lambda: torch.autograd.grad(layer(x, edges).sum(), inputs)


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


def compared(name: str, peer: list[float], ours: list[float], E: int, P: int, target: Target, way: str) -> Result:
    return Result(
        work=name, E=E, P=P, Q=P, gradients="all", way=way, target=target,
        peer_seconds=min(peer), ours_seconds=min(ours), ratio=median_ratio(peer, ours),
    )  # fmt: skip


def code() -> str:
    """A mark of the package's code, and of whether the kernels in Triton are in use."""
    found = hashlib.sha256()
    for file in sorted(Path(pyg_basisconv.__file__).parent.rglob("*.py")):
        found.update(file.read_bytes())
    return found.hexdigest()[:12] + "-triton" * (backends()["triton"] == "in use")


def written(folder: Path, name: str) -> Path:
    """The file of a row, for this code."""
    return folder / code() / (re.sub(r"[^\w]+", "_", name) + ".json")


def measure(todo: Sequence[Row], bench: Callable[[], Bench], folder: Path, seconds: float) -> int:
    """Measures rows until the time is over, at least one; the number of those that are left."""
    left = [row for row in todo if not written(folder, row.name).exists()]
    start, shared = monotonic(), bench() if left else None
    while shared is not None and left:
        row = left.pop(0)
        print(row.name, file=sys.stderr, flush=True)
        try:
            found: dict[str, Any] = {"result": asdict(row.run(shared))}
        except Missing as error:
            found = {"missing": f"- skipped: {row.name}: {error}"}
        except Exception as error:  # the others are measured all the same
            found = {"missing": f"- failed: {row.name}: {type(error).__name__}: {error}"}
        file = written(folder, row.name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found | {"graphs": [str(one) for one in shared.graphs.values()]}, indent=1))
        if monotonic() - start > seconds:
            break
    return len(left)


def results(todo: Sequence[Row], folder: Path) -> Iterator[Result | str]:
    """What has been measured until now; for a row that could not be, why."""
    for row in todo:
        file = written(folder, row.name)
        if file.exists():
            found = json.loads(file.read_text())
            if "missing" in found:
                yield found["missing"]
            else:
                yield Result(**found["result"] | {"target": Target(**found["result"]["target"])})


def run(folder: Path, only: Sequence[str] | None, quick: bool) -> None:
    """One part, and the table of what there is."""
    if not torch.cuda.is_available():
        sys.exit(
            f"--gpu: expected a CUDA device, got none (kernels in Triton: {backends()['triton']}); run it on a GPU"
        )
    own: list[Row] = [HubRow(), CapturedRow(GCNConv, {}), CapturedRow(GATConv, {"heads": 8})]
    wanted = [row for row in [*own, *rows()] if "cuda" in row.devices]
    todo = [row for row in wanted if not only or any(text.lower() in row.name.lower() for text in only)]
    log = folder / code() / "tests.txt"
    if not log.exists():
        tests = subprocess.run([sys.executable, *TESTS], capture_output=True, text=True, timeout=540)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(tests.stdout + tests.stderr)
        print(tests.stdout.strip().splitlines()[-1])
    left = measure(todo, lambda: Bench(quick, "cuda"), folder, 60 * MINUTES)
    found = list(results(todo, folder))
    report = Report(
        Bench(True, "cuda"),
        machine("cuda") | {"code": code(), **backends()},
        [one for one in found if isinstance(one, Result)],
        [one for one in found if isinstance(one, str)],
    )
    text = f"{report.head}\n\n{report.table}\n\n" + "\n".join(report.missing)
    (folder / "RESULTS.md").write_text(text + "\n")
    print(f"{text}\n\n{left} rows are left: run it again" if left else text)
