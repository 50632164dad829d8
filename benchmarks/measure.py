"""Interleaved timings, peak memory, and the machine's ceilings."""

import gc
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

Work = Callable[[], object]


class Effort(NamedTuple):
    """How long to measure: the least rounds and seconds, and the seconds that one timing should last."""

    rounds: int
    seconds: float
    burst: float
    most_rounds: int = 500


FULL = Effort(rounds=5, seconds=0.5, burst=0.01)
QUICK = Effort(rounds=2, seconds=0.01, burst=0.001)


class Memory(NamedTuple):
    """Bytes above those held before: at the peak, and of the largest single allocation (None if unknown)."""

    peak: int
    largest: int | None


class Ceilings(NamedTuple):
    """Bytes per second of a large copy, operations per second of a large float32 product."""

    bandwidth: float
    arithmetic: float

    def seconds(self, operations: float, moved: float) -> float:
        """The least time for these operations and bytes."""
        return max(operations / self.arithmetic, moved / self.bandwidth)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Sets torch's threads within a context."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def clock(work: Work, times: int, device: str) -> float:
    """Seconds per call."""
    synchronize(device)
    start = perf_counter()
    for _ in range(times):
        work()
    synchronize(device)
    return (perf_counter() - start) / times


def interleave(works: Sequence[Work], effort: Effort, device: str = "cpu") -> list[list[float]]:
    """Seconds per call of each work in each round; each round runs all, in rotating order.

    A fast work is called several times in a row, as in a training loop, so that it finds its own data in the cache.
    """
    calls = []
    for work in works:
        once = clock(work, 1, device)  # warm-up of caches and the allocator
        if once < 1:
            once = clock(work, 1 if once > effort.burst else 3, device)
        calls.append(max(1, round(effort.burst / max(once, 1e-6))))
    seconds: list[list[float]] = [[] for _ in works]
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        start, done = perf_counter(), 0
        while done < effort.rounds or (perf_counter() - start < effort.seconds and done < effort.most_rounds):
            for k in range(len(works)):
                i = (k + done) % len(works)
                seconds[i].append(clock(works[i], calls[i], device))
            done += 1
    finally:
        if enabled:
            gc.enable()
    return seconds


def median_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    """The median of the ratios in each round, since disturbances affect both works of a round."""
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))


def memory(work: Work, device: str = "cpu") -> Memory:
    """The memory that a warm call allocates through torch; on the CPU, without workspaces of libraries such as MKL."""
    if device == "cuda":
        synchronize(device)
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        work()
        synchronize(device)
        return Memory(torch.cuda.max_memory_allocated() - held, None)
    gc.collect()  # garbage that is freed during the work would hide allocations
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        result = work()
    del result
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    events = sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: e["ts"])
    held = peak = largest = 0
    for event in events:
        size = event["args"]["Bytes"]
        held += size
        peak, largest = max(peak, held), max(largest, size)
    return Memory(peak, largest)


def ceilings(device: str = "cpu", quick: bool = False) -> Ceilings:
    """The best of a few runs of a large `copy_` (read and written) and a large float32 product."""
    numbers, n = (1 << 20, 256) if quick else (1 << 26, 2048)
    if device == "cuda" and not quick:
        numbers, n = 1 << 29, 8192
    a, b = torch.ones(numbers, device=device), torch.empty(numbers, device=device)
    m = torch.randn(n, n, device=device)
    repeats = 3 if quick else 10
    b.copy_(a), m @ m
    copy = min(clock(lambda: b.copy_(a), 1, device) for _ in range(repeats))
    product = min(clock(lambda: m @ m, 1, device) for _ in range(repeats))
    return Ceilings(2 * 4 * numbers / copy, 2 * n**3 / product)
