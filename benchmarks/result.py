"""Rows, their targets and their results."""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from .data import Graph, graph
from .measure import FULL, QUICK, Ceilings, Effort, ceilings, threads

CLOSE = Effort(rounds=15, seconds=3.0, burst=0.02)


class Bench:
    """What all rows of a run share: the device, the effort, the machine's ceilings, and a cache of graphs.

    compiles: whether peers may be faster under `torch.compile`, too, which takes a minute for some.
    """

    def __init__(self, quick: bool = False, device: str = "cpu") -> None:
        self.quick, self.device, self.compiles = quick, device, device == "cuda" and not quick
        self.effort: Effort = QUICK if quick else FULL
        self.ceilings: Ceilings = ceilings(device, quick)
        self.graphs: dict[str, Any] = {}

    def graph(self, size: str) -> Graph:
        return self.keep(size, lambda: graph(size, self.quick).to(self.device))

    def keep(self, name: str, make: Callable[[], Any]) -> Any:
        """The cached graph of this name, made if need be; the report prints it."""
        if name not in self.graphs:
            self.graphs[name] = make()
        return self.graphs[name]

    @property
    def closely(self) -> "Bench":
        """The same with more rounds, for pairs that should take about the same time."""
        return self.at(CLOSE)

    def at(self, effort: Effort) -> "Bench":
        """The same with another effort, unless it is quick."""
        other = copy.copy(self)
        other.effort = QUICK if self.quick else effort
        return other


@dataclass(frozen=True)
class Target:
    """The targets of a row; None for no target.

    ratio: the peer's time over ours, at least.
    memory: the peer's peak memory over ours, at least.
    peak: our bytes, at most.
    resident: the bytes of the whole process, at most.
    seconds: our time, at most.
    slope: the exponent of the time in the length, over all rows of a series, at most.
    group: the name of rows that are judged together, in one line.
    """

    ratio: float | None = None
    memory: float | None = None
    peak: int | None = None
    resident: int | None = None
    seconds: float | None = None
    slope: float | None = None
    group: str = ""

    def __str__(self) -> str:
        parts = [
            f">= {self.ratio:g}" if self.ratio is not None else "",
            f"memory <= 1/{self.memory:g}" if self.memory is not None else "",
            f"peak <= {self.peak / 1e6:g} MB" if self.peak is not None else "",
            f"resident <= {self.resident / 1e9:g} GB" if self.resident is not None else "",
            f"<= {self.seconds:g} s" if self.seconds is not None else "",
        ]
        return ", ".join(filter(None, parts)) or "-"


@dataclass(kw_only=True)
class Result:
    """A measurement, in seconds and bytes; None for unknown values, and without a peer."""

    work: str
    graph: str = ""
    E: int = 0
    P: int = 0  # stays 0 where nothing is multiplied
    Q: int = 0
    gradients: str
    way: str = ""  # the peer's fastest
    target: Target
    peer_seconds: float | None = None
    ours_seconds: float
    ratio: float | None = None
    peer_memory: int | None = None
    ours_memory: int | None = None
    peer_largest: int | None = None
    ours_largest: int | None = None
    resident: int | None = None
    of_ceiling: float | None = None
    order: str = ""
    series: str = ""
    length: int = 0
    skipped: dict[str, str] = field(default_factory=dict)  # ways in which the peer failed, and the errors

    @property
    def judged(self) -> list[tuple[bool, str]]:
        """For each target of its own, whether it was met, and the figures."""
        t, found = self.target, []
        if t.ratio is not None and self.ratio is not None:
            found.append((self.ratio >= t.ratio, f"{self.ratio:.3g} times, target >= {t.ratio:g}"))
        if t.memory is not None and self.peer_memory is not None and self.ours_memory is not None:
            saved = self.peer_memory / max(1, self.ours_memory)
            found.append((saved >= t.memory, f"1/{saved:.3g} of the peak memory, target <= 1/{t.memory:g}"))
        if t.peak is not None and self.ours_memory is not None:
            text = f"{self.ours_memory / 1e6:.3g} MB at the peak, target <= {t.peak / 1e6:g} MB"
            found.append((self.ours_memory <= t.peak, text))
        if t.resident is not None and self.resident is not None:
            text = f"{self.resident / 1e9:.3g} GB resident at most, target <= {t.resident / 1e9:g} GB"
            found.append((self.resident <= t.resident, text))
        if t.seconds is not None:
            text = f"{self.ours_seconds:.3g} s, target <= {t.seconds:g} s"
            found.append((self.ours_seconds <= t.seconds, text))
        return found

    @property
    def met(self) -> bool:
        return all(good for good, _ in self.judged)

    @property
    def lost(self) -> bool:
        """Whether it misses its target, or is slower than the peer."""
        return not self.met or (self.ratio is not None and self.ratio < 1)


class Row(Protocol):
    """A comparison with its name, target and devices."""

    @property
    def name(self) -> str: ...

    @property
    def devices(self) -> tuple[str, ...]: ...

    def run(self, bench: Bench) -> Result: ...


@dataclass(frozen=True)
class Within:
    """A row that runs within a context, which its name tells."""

    row: Row
    note: str
    around: Callable[[], AbstractContextManager[Any]]

    @property
    def name(self) -> str:
        return f"{self.row.name}, {self.note}"

    @property
    def devices(self) -> tuple[str, ...]:
        return self.row.devices

    def run(self, bench: Bench) -> Result:
        with self.around():
            return replace(self.row.run(bench), work=self.name)


def one_thread(row: Row) -> Within:
    """A row in one thread of torch."""
    return Within(row, "one thread", lambda: threads(1))


def in_double(row: Row) -> Within:
    """A row in double precision, as the default dtype."""
    return Within(row, "float64", _double)


@contextmanager
def _double() -> Iterator[None]:
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
