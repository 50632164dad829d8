"""Tables of results that the scripts print."""

import statistics
from collections.abc import Sequence

from rich import box
from rich.table import Table


def table(name: str, *headings: str) -> Table:
    """A table without rows: a column of names at the left, and columns of numbers; narrow, for 80 columns."""
    made = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    made.add_column(name, no_wrap=True)
    for heading in headings:
        made.add_column(heading, justify="right", no_wrap=True)
    return made


def spread(values: Sequence[float], digits: int = 3, sign: str = "") -> str:
    """Mean and standard deviation; the mean alone of one value."""
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{sign}.{digits}f}{deviation}"
