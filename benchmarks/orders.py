"""The planner over a grid of sizes: whether it picks the fastest order, and what it loses otherwise.

`python -m benchmarks.orders` times every possible order, interleaved with the others, after comparing the results. It
prints predicted and measured seconds, to calibrate `costs.MACHINES`; `benchmarks.rates` does so.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyg_basisconv import BasisConv, bases, theta
from pyg_basisconv.costs import Problem
from pyg_basisconv.orders import ORDERS

from .compare import assert_close, step
from .machine import machine
from .measure import FULL, QUICK, Effort, clock, interleave, median_ratio
from .table import markdown, milliseconds

GOOD, WANTED = 0.10, 0.95  # the loss that counts as none, and the target for the share of such points
HOPELESS = 20  # an order that is so many times slower than the fastest is timed once


class Scene(NamedTuple):
    """Sizes, whether to run the backward pass, and whether x needs a gradient."""

    N: int
    degree: int
    P: int
    Q: int
    B: int = 1
    grad_x: bool = False
    backward: bool = True
    cached: bool = False


class Point(NamedTuple):
    """A family and a kind of parameter on a scene."""

    family: str
    scene: Scene
    theta: str = "Full"

    def __str__(self) -> str:
        N, degree, P, Q, B, grad_x, backward, cached = self.scene
        extra = [f"B={B}"] * (B > 1) + (["fwd+bwd" + ", dx" * grad_x] if backward else ["fwd"]) + ["cached"] * cached
        family = self.family if self.theta == "Full" else f"{self.family}, {self.theta}"
        return ", ".join([family, f"N={N}, degree {degree}, {P} -> {Q}", *extra])


FAMILIES: dict[str, Callable[[], bases.Basis]] = {
    "Adjacency": lambda: bases.Adjacency("sym", self_loops=True),
    "Identity + Adjacency": lambda: bases.Identity() + bases.Adjacency("mean"),
    "Chebyshev K=3": lambda: bases.Chebyshev(3),
    "Edges K=4": lambda: bases.Edges(4),
    "Powers K=6": lambda: bases.Powers(6),
    "Edges K=32": lambda: bases.Edges(32),
    "Relations K=201": lambda: bases.Relations(100, "mean", inverse=True, self_loop=True),
    "Walks K=12": lambda: bases.Walks([f"{r}.^{r}{step}" for r in range(4) for step in ("", ".0", ".1")], 4),
}
THETAS: dict[str, Callable[[], theta.Theta]] = {
    "Full": theta.Full,
    "Separable(1)": theta.Separable,
    "Separable(6)": lambda: theta.Separable(6),
    "Grouped(4)": lambda: theta.Grouped(4),
}

# The number of edge types of each family.
TYPES: dict[type, Callable[[Any], int]] = {
    bases.Edges: lambda basis: basis.K,
    bases.Relations: lambda basis: basis.num_relations,
    bases.Walks: lambda basis: len(basis.vocabulary),
}

SCENES = [
    Scene(8, 3, 4, 4, grad_x=True),
    Scene(8, 3, 4, 4, B=512),
    Scene(20, 4, 4, 8, B=256, grad_x=True),
    Scene(50, 5, 16, 16, B=64),
    Scene(200, 8, 8, 8, B=16, grad_x=True),
    Scene(1000, 5, 64, 16),
    Scene(1000, 5, 16, 64, grad_x=True),
    Scene(2708, 4, 1433, 16),
    Scene(2708, 4, 16, 7, grad_x=True),
    Scene(10_000, 10, 32, 128, grad_x=True),
    Scene(10_000, 10, 64, 64, grad_x=True),
    Scene(20_000, 10, 128, 8, B=4, backward=False),
    Scene(100_000, 10, 64, 64, grad_x=True),
    Scene(100_000, 5, 16, 64),
    Scene(100_000, 20, 64, 16, backward=False),
]


def points() -> list[Point]:
    """Four families on every scene, and some more."""
    grid = [Point(family, scene) for family in list(FAMILIES)[:4] for scene in SCENES]
    more = [Scene(50, 5, 16, 16, B=64), Scene(2708, 4, 1433, 16), Scene(10_000, 10, 64, 64, grad_x=True)]
    grid += [Point(family, scene) for family in ("Powers K=6", "Edges K=32") for scene in more]
    typed = [
        Scene(50, 5, 16, 16, grad_x=True),
        Scene(1000, 5, 64, 16),
        Scene(10_000, 10, 16, 64, backward=False),
        Scene(20_000, 20, 64, 64, grad_x=True),
    ]
    grid += [Point("Relations K=201", scene, kind) for kind in THETAS for scene in typed]
    grid += [Point("Walks K=12", scene) for scene in typed]
    return grid + [Point(family, Scene(2708, 4, 1433, 16, cached=True)) for family in ("Adjacency", "Chebyshev K=3")]


def shrunk(point: Point) -> Point:
    s = point.scene
    return point._replace(scene=s._replace(N=min(s.N, 100), P=min(s.P, 32), Q=min(s.Q, 16), B=min(s.B, 8)))


def prepared(point: Point, device: str) -> tuple[BasisConv, tuple[Any, ...]]:
    """The layer of a point, and the arguments of a call."""
    torch.manual_seed(0)
    s, basis = point.scene, FAMILIES[point.family]()
    edge_index = torch.randint(s.N, (2, s.N * s.degree), device=device)
    types = TYPES.get(type(basis), lambda basis: 0)(basis)
    typed = (torch.randint(types, (edge_index.shape[1],), device=device),) if types else ()
    x = torch.randn(*([s.B] if s.B > 1 else []), s.N, s.P, device=device, requires_grad=s.grad_x)
    return BasisConv(s.P, s.Q, basis, THETAS[point.theta](), cached=s.cached).to(device), (x, edge_index, None, *typed)


def problem(point: Point, device: str) -> Problem:
    """The sizes by which a point's call is planned."""
    conv, call = prepared(point, device)
    with torch.set_grad_enabled(point.scene.backward):
        return conv.plan(*call).problem


def run(point: Point, effort: Effort, device: str = "cpu") -> dict[str, Any]:
    """Times the orders of one point."""
    s, (conv, call) = point.scene, prepared(point, device)
    x = call[0]
    leaves = [*conv.parameters(), *([x] if s.grad_x else [])]
    gradient = torch.randn(*x.shape[:-1], s.Q, device=device)

    def work(order: str) -> Callable[[], tuple[Tensor, ...]]:
        def once() -> tuple[Tensor, ...]:
            conv.order = order
            if s.backward:
                return step(lambda: conv(*call), leaves, gradient)
            with torch.no_grad():
                return (conv(*call),)

        return once

    conv.order = "auto"
    with torch.set_grad_enabled(s.backward):
        plan = conv.plan(*call)
    possible = {e.order: e for e in plan.estimates if not e.refused}
    works = {order: work(order) for order in possible}
    expected = works[plan.order]()
    for order, other in works.items():
        for a, b in zip(other(), expected, strict=True):
            assert_close(a, b, f"{point}: {order}")
    once = {order: clock(other, 1, device) for order, other in works.items()}
    close = [order for order in works if once[order] <= HOPELESS * min(once.values())]
    times = dict(zip(close, interleave([works[order] for order in close], effort, device), strict=True))
    seconds = {order: statistics.median(times[order]) if order in close else once[order] for order in works}
    fastest = min(seconds, key=lambda order: seconds[order])
    loss = seconds[plan.order] / seconds[fastest] - 1
    if plan.order in times:  # round by round, where there are rounds
        loss = max(0.0, median_ratio(times[plan.order], times[fastest]) - 1)
    return {
        "point": str(point),
        "chosen": plan.order,
        "fastest": fastest,
        "loss": loss,
        "orders": {
            order: {"seconds": seconds[order], "predicted": e.seconds, "operations": e.operations, "bytes": e.bytes}
            for order, e in possible.items()
        },
    }


def table(only: Sequence[str] | None, quick: bool, device: str) -> dict[str, Any]:
    """Measures and prints."""
    about = machine(device)
    print(", ".join(f"{name} {value}" for name, value in about.items()) + "\n")
    found = []
    for point in points():
        if only and not any(text.lower() in str(point).lower() for text in only):
            continue
        print(f"\r\033[K{point}", end="", file=sys.stderr, flush=True)
        found.append(run(shrunk(point), QUICK, device) if quick else run(point, FULL, device))
    print("\r\033[K", end="", file=sys.stderr, flush=True)
    names = list(ORDERS)
    head = ["point", "chosen", "fastest", *(f"{order} ms (predicted)" for order in names), "loss"]
    print(markdown(head, [cells(r, names) for r in found], left=3))
    print("\n" + "\n".join(closing := summary(found, names)))
    return {"machine": about, "quick": quick, "points": found, "summary": closing}


def cells(result: dict[str, Any], names: Sequence[str]) -> list[str]:
    measured = [result["orders"].get(order) for order in names]
    times = ["-" if m is None else f"{milliseconds(m['seconds'])} ({milliseconds(m['predicted'])})" for m in measured]
    return [result["point"], result["chosen"], result["fastest"], *times, f"{result['loss']:.0%}"]


def summary(found: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    """The share of points without a loss, the worst points, and the errors of the predictions."""
    good = sum(r["loss"] <= GOOD for r in found)
    lines = [f"- {good} of {len(found)} points lose at most {GOOD:.0%} (target: {WANTED:.0%} of them)"]
    bad = sorted((r for r in found if r["loss"] > GOOD), key=lambda r: -r["loss"])
    lines += [f"- loses {r['loss']:.0%}: {r['point']}: {r['chosen']} for {r['fastest']}" for r in bad[:10]]
    for order in names:
        logs = [math.log(m["seconds"] / m["predicted"]) for r in found if (m := r["orders"].get(order))]
        if logs:
            middle, spread = statistics.median(logs), statistics.pstdev(logs)
            lines.append(
                f"- {order}: measured / predicted is {math.exp(middle):.2g}, times or over {math.exp(spread):.2g}"
            )
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    p = argparse.ArgumentParser("python -m benchmarks.orders", description=__doc__)
    p.add_argument("--only", action="append", metavar="TEXT", help="points with TEXT in them (may be given again)")
    p.add_argument("--quick", action="store_true", help="small sizes and few rounds, to see that it runs")
    p.add_argument("--json", type=Path, metavar="FILE", help="where to write everything that was measured")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--threads", type=int, help="of torch on the CPU")
    args = p.parse_args(arguments)
    if args.threads:
        torch.set_num_threads(args.threads)
    found = table(args.only, args.quick, args.device)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
