"""The command line `python -m benchmarks.picture`: draws the table of measured results of the README as bars.

One file is for light pages, one for dark ones: `docs/results.svg`, `docs/results-dark.svg`.
"""

import argparse
import re
from pathlib import Path
from typing import NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure

ROOT = Path(__file__).parent.parent
ROW = re.compile(r"^\| (?P<work>[^|]+) \| (?P<time>[\d.]+) \| (?P<memory>[\d.]+) \|$", re.MULTILINE)
INK = {"results.svg": "#24292f", "results-dark.svg": "#e6edf3"}  # of letters, for light pages and for dark ones
TIME, MEMORY = "#2c6fbb", "#e0913a"


class Row(NamedTuple):
    """What PyG or torch takes for some work, as a multiple of what ours takes."""

    work: str
    time: float
    memory: float


def rows(readme: str) -> list[Row]:
    """The rows of the table, under the heading Measured."""
    table = readme.partition("\n## Measured\n")[2].partition("\n## ")[0]
    return [Row(m["work"].replace("`", ""), float(m["time"]), float(m["memory"])) for m in ROW.finditer(table)]


def draw(found: list[Row], path: Path, ink: str) -> None:
    """Draws a bar of time and one of memory for each row, on a scale of powers."""
    # Text as text and fixed ids make a small and reproducible file.
    style = {"svg.fonttype": "none", "svg.hashsalt": "results", "text.color": ink, "axes.edgecolor": ink}
    with rc_context(style | {f"{axis}tick.color": ink for axis in "xy"}):
        figure = Figure(figsize=(8.4, 0.5 + 0.42 * len(found)), layout="constrained")
        axes = figure.subplots()
        for i, row in enumerate(found):
            for value, colour, at in ((row.time, TIME, i - 0.19), (row.memory, MEMORY, i + 0.19)):
                axes.barh(at, value - 1, 0.34, left=1, color=colour)
                side, space = ("left", 1.04) if value >= 1 else ("right", 0.96)
                axes.text(value * space, at, f"{value:g}", va="center", ha=side, fontsize=8)
        axes.set_xscale("log")
        axes.set(xlim=(0.5, 2.2 * max(max(row.time, row.memory) for row in found)), ylim=(len(found) - 0.5, -0.5))
        axes.set_yticks(range(len(found)), [row.work for row in found], fontsize=9)
        axes.set_xticks([1, 10, 100], ["1", "10", "100"])
        axes.minorticks_off()
        axes.axvline(1, color=ink, linewidth=0.8)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        for colour, name in ((TIME, "time, peer / ours"), (MEMORY, "peak memory, peer / ours")):
            axes.bar(0, 0, color=colour, label=name)
        axes.legend(loc="upper right", frameon=False, fontsize=9)
        figure.savefig(path, transparent=True, metadata={"Date": None})


def main() -> None:
    p = argparse.ArgumentParser("python -m benchmarks.picture", description=__doc__)
    p.add_argument("folder", type=Path, nargs="?", default=ROOT / "docs")
    folder = p.parse_args().folder
    found = rows((ROOT / "README.md").read_text("utf-8"))
    for name, ink in INK.items():
        draw(found, folder / name, ink)


if __name__ == "__main__":
    main()
