"""A row with a limit on the memory of a whole process: GATConv on 25 million edges.

PyG's layer needs over 24 GB, and is not run; values are compared on the edges into some of the nodes.
"""

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch_geometric.nn import GATConv

from pyg_basisconv import convert

from .compare import assert_close
from .contest import checked
from .result import Bench, Result, Target

WIDTH, HEADS, SEEN = 64, 8, 1000


class ResidentRow:
    """Runs in a process of its own."""

    name = "GATConv 8 heads, 25M edges, in a process of its own"
    target = Target(resident=12_000_000_000)
    devices = ("cpu",)

    def run(self, bench: Bench) -> Result:
        N, E = (10_000, 250_000) if bench.quick else (1_000_000, 25_000_000)
        found = in_a_process("benchmarks.resident", N, E, torch.get_num_threads())
        about = {"work": self.name, "graph": "25M edges", "E": E, "P": WIDTH, "Q": WIDTH, "gradients": "Theta, x"}
        return Result(target=self.target, **about, **found)


def in_a_process(module: str, *arguments: object) -> dict[str, Any]:
    """The last line that a module prints when it runs in a process of its own."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def peak() -> int:
    """The peak memory of this process in bytes, without that of the program that started it."""
    return _status("VmHWM")


def held() -> int:
    """The memory of this process in bytes; its peak where the system does not tell."""
    return _status("VmRSS")


def _status(field: str) -> int:
    status = Path("/proc/self/status")
    if status.is_file():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith(field))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def measured(N: int, E: int) -> dict[str, Any]:
    """Time and peak memory of forward and backward, with the first call; then the comparison of values."""
    torch.manual_seed(0)
    reference = GATConv(WIDTH, WIDTH // HEADS, heads=HEADS)
    edge_index = torch.randint(N, (2, E))
    x = torch.randn(N, WIDTH, requires_grad=True)
    ours = checked(convert(reference))
    gradient = torch.randn(N, WIDTH)
    seconds = []
    for _ in range(2):
        start = perf_counter()
        y = ours(x, edge_index)
        torch.autograd.grad(y, [x, *ours.parameters()], gradient)
        seconds.append(perf_counter() - start)
    found = {"ours_seconds": seconds[-1], "resident": peak()}
    few = edge_index[:, edge_index[1] < SEEN]
    with torch.no_grad():
        assert_close(y[:SEEN], reference(x, few)[:SEEN], "the value")
    return found


if __name__ == "__main__":
    p = argparse.ArgumentParser("python -m benchmarks.resident", description=__doc__)
    for name in ("nodes", "edges", "threads"):
        p.add_argument(name, type=int)
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    print(json.dumps(measured(args.nodes, args.edges)))
