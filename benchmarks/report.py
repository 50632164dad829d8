"""Measures rows, and reports the results."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .data import Missing
from .machine import machine
from .result import Bench, Result
from .rows import rows
from .table import HEAD, cells, markdown
from .verdicts import refusals, verdicts


@dataclass(frozen=True)
class Report:
    """bench: what the rows share; about: the machine; missing: a line for each row whose data is missing."""

    bench: Bench
    about: dict[str, Any]
    results: list[Result]
    missing: list[str]

    @property
    def head(self) -> str:
        """The machine and its ceilings."""
        limits = self.bench.ceilings
        about = ", ".join(f"{name} {value}" for name, value in self.about.items())
        return (
            f"{about}\nceilings: {limits.bandwidth / 1e9:.3g} GB/s copied, "
            f"{limits.arithmetic / 1e9:.3g} Gop/s in a product"
        )

    @property
    def graphs(self) -> list[str]:
        return [str(one) for one in self.bench.graphs.values()]

    @property
    def table(self) -> str:
        """Rows that are slower than the peer come first."""
        ordered = sorted(self.results, key=lambda r: not r.lost)
        return markdown(HEAD, [cells(r) for r in ordered], left=3)

    @property
    def targets(self) -> list[str]:
        """Missed targets come first."""
        if self.bench.quick:
            return ["- targets are not judged with --quick"]
        return sorted(verdicts(self.results), key=lambda line: line.startswith("- met"))

    @property
    def closing(self) -> str:
        return "\n".join([*self.missing, *refusals(self.results), *self.targets])

    @property
    def all(self) -> dict[str, Any]:
        return {
            "machine": self.about,
            "ceilings": self.bench.ceilings._asdict(),
            "quick": self.bench.quick,
            "graphs": self.graphs,
            "rows": [asdict(r) | {"met": r.met} for r in self.results],
            "skipped": self.missing,
            "targets": self.targets,
        }


def measured(only: Sequence[str] | None, quick: bool, device: str) -> Report:
    """Runs the rows whose names contain one of the texts, or all rows, and shows which one is running."""
    report = Report(Bench(quick, device), machine(device), [], [])
    for row in rows():
        wanted = not only or any(text.lower() in row.name.lower() for text in only)
        if wanted and device in row.devices:
            print(f"\r\033[K{row.name}", end="", file=sys.stderr, flush=True)
            try:
                report.results.append(row.run(report.bench))
            except Missing as error:
                report.missing.append(f"- skipped: {row.name}: {error}")
    print("\r\033[K", end="", file=sys.stderr, flush=True)
    return report
