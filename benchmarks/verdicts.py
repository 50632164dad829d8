"""Whether the targets were met."""

import math
from collections.abc import Sequence

from .result import Result
from .table import megabytes

MANY = 100_000_000  # bytes of E x Q numbers; allocations are judged on graphs at least as large


def verdicts(results: Sequence[Result]) -> list[str]:
    """A line for each target of a single row, of a group, and of a series, and one for allocations."""
    lines = [line(good, f"{r.work}: {text}") for r in results if not r.target.group for good, text in r.judged]
    for group in dict.fromkeys(r.target.group for r in results if r.target.group):
        lines.append(of_group(group, [r for r in results if r.target.group == group]))
    for series in dict.fromkeys(r.series for r in results if r.target.slope is not None):
        lines += of_series(series, [r for r in results if r.series == series])
    return lines + of_allocations(results)


def of_group(group: str, rows: Sequence[Result]) -> str:
    least = min(rows, key=lambda r: r.ratio or 0)
    good = sum(r.met for r in rows)
    text = f"{group}: {good} of {len(rows)} rows {least.target}; least: {least.ratio:.3g} times, {least.work}"
    return line(good == len(rows), text)


def of_series(series: str, rows: Sequence[Result]) -> list[str]:
    """The exponent of the time in the length, which is 1 if it is linear."""
    lengths = [r.length for r in rows]
    if len(set(lengths)) < 3:
        return []
    found, most = slope(lengths, [r.ours_seconds for r in rows]), rows[0].target.slope
    assert most is not None
    text = f"{series}: time grows with the length to the power of {found:.3g}, target <= {most:g}"
    return [line(found <= most, text)]


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of the least squares line through (log x, log y)."""
    u, v = [math.log(value) for value in x], [math.log(value) for value in y]
    mean_u, mean_v = sum(u) / len(u), sum(v) / len(v)
    shared = sum((a - mean_u) * (b - mean_v) for a, b in zip(u, v, strict=True))
    return shared / sum((a - mean_u) ** 2 for a in u)


def of_allocations(results: Sequence[Result]) -> list[str]:
    """Checks that no allocation on a large graph has a number per edge and channel."""
    large = [r for r in results if r.ours_largest is not None and 4 * r.E * r.Q >= MANY]
    if not large:
        return []
    worst = max(large, key=lambda r: (r.ours_largest or 0) / (r.E * r.Q))
    limit, largest = 4 * worst.E * worst.Q, worst.ours_largest or 0
    text = f"no allocation of E x Q numbers: the largest, for its graph, has {megabytes(largest)} MB "
    return [line(largest < limit, text + f"of {megabytes(limit)}, {worst.work}")]


def refusals(results: Sequence[Result]) -> list[str]:
    """The ways in which peers failed, with the errors."""
    found = {(r.work.split(",")[0], way): why for r in results for way, why in r.skipped.items()}
    return [f"- {name}: the peer fails with {way}: {why}" for (name, way), why in found.items()]


def line(met: bool, text: str) -> str:
    return f"- {'met' if met else 'MISSED'}: {text}"
