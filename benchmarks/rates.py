"""Fits the planner's rates to what `benchmarks.orders` measures on a machine.

`python -m benchmarks.orders --json FILE`, then `python -m benchmarks.rates FILE`, prints the rates for `costs.MACHINES`
by which the planner predicts these times best, how well it does with them, and how well it did before.
"""

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pyg_basisconv.costs import MACHINES, Machine, Problem
from pyg_basisconv.orders import ORDERS

from . import orders
from .orders import Point
from .result import Bench

# All but what is known: the size of the cache, and how fast the system gives new memory.
FITTED = "arithmetic", "stream", "gather", "gather_cached", "sparse", "dense", "small", "image"
STEPS = 4.0, 2.0, 1.4, 1.2, 1.1, 1.05  # by which a rate is multiplied or divided


class Timed(NamedTuple):
    """The sizes of a call, and the seconds that each order takes."""

    problem: Problem
    seconds: dict[str, float]

    @property
    def predicted(self) -> dict[str, float]:
        """The seconds that the planner expects."""
        offers = dict(self.problem.offers)
        return {name: ORDERS[name].estimate(self.problem, offers.get(name)).seconds for name in self.seconds}

    @property
    def loss(self) -> float:
        """How much longer than the fastest order the one takes that is expected to be the fastest."""
        expected = self.predicted
        return self.seconds[min(expected, key=lambda name: expected[name])] / min(self.seconds.values()) - 1


@dataclass(frozen=True)
class Found:
    """What `orders.run` returns."""

    point: str
    chosen: str
    fastest: str
    loss: float
    orders: dict[str, dict[str, float]]


class PointRow:
    """A point of the planner's grid, measured as the rows of the table are."""

    devices = ("cpu", "cuda")

    def __init__(self, point: Point) -> None:
        self.point, self.name = point, f"orders: {point}"

    def run(self, bench: Bench) -> Found:
        point = orders.shrunk(self.point) if bench.quick else self.point
        return Found(**orders.run(point, bench.effort, bench.device))


@contextmanager
def rates(device: str, machine: Machine) -> Iterator[None]:
    """Other rates of a device within a context."""
    before = MACHINES[device]
    MACHINES[device] = machine
    try:
        yield
    finally:
        MACHINES[device] = before


def error(timed: Sequence[Timed]) -> float:
    """The factor by which predictions are wrong, in the geometric mean."""
    logs = [abs(math.log(one.seconds[name] / s)) for one in timed for name, s in one.predicted.items()]
    return math.exp(statistics.fmean(logs))


def fitted(timed: Sequence[Timed], device: str) -> Machine:
    """The rates of the least error, of two digits: from those of today, one after the other is changed as it helps."""

    def of(machine: Machine) -> float:
        with rates(device, machine):
            return error(timed)

    best = MACHINES[device]
    least = of(best)
    for step in STEPS:
        before = math.inf
        while least < before:
            before = least
            for name in FITTED:
                tried = [best, *(best._replace(**{name: getattr(best, name) * by}) for by in (step, 1 / step))]
                least, best = min((of(machine), machine) for machine in tried)
    return best._replace(**{name: float(f"{getattr(best, name):.2g}") for name in FITTED})


def fit(found: Sequence[dict[str, Any]], quick: bool, device: str) -> list[str]:
    """The rates that fit what was measured of points, how good they are, and how good those of today are."""
    known = {str(one): one for one in (map(orders.shrunk, orders.points()) if quick else orders.points())}
    timed = [
        Timed(orders.problem(known[one["point"]], device), {name: m["seconds"] for name, m in one["orders"].items()})
        for one in found
    ]
    best, lines = fitted(timed, device), []
    for what, machine in (("today", MACHINES[device]), ("fitted", best)):
        with rates(device, machine):
            good = sum(one.loss <= orders.GOOD for one in timed)
            share = f"{good} of {len(timed)} points lose at most {orders.GOOD:.0%}"
            lines.append(f"- {what}: predictions are wrong by a factor of {error(timed):.2f}; {share}")
    values = ", ".join(f"{name}={value:g}" for name, value in best._asdict().items())
    return [*lines, f'- `MACHINES["{device}"] = Machine({values})`']


def main(arguments: Sequence[str] | None = None) -> None:
    p = argparse.ArgumentParser("python -m benchmarks.rates", description=__doc__)
    p.add_argument("file", type=Path, help="what `python -m benchmarks.orders --json` wrote")
    p.add_argument("--device", choices=sorted(MACHINES), default="cpu", help="on which it was measured")
    args = p.parse_args(arguments)
    measured = json.loads(args.file.read_text())
    print("\n".join(fit(measured["points"], measured["quick"], args.device)))


if __name__ == "__main__":
    main()
