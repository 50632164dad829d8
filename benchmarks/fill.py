"""The command line `python -m benchmarks.fill`: measures the sections of RESULTS.md that say by which arguments.

Such a section stands between `<!-- python -m benchmarks ARGUMENTS -->` and `<!-- end -->`; what is there is replaced.
"""

import argparse
import re
import shlex
import warnings
from collections.abc import Sequence
from pathlib import Path

from .__main__ import parser
from .report import Report, measured

RESULTS = Path(__file__).parent / "RESULTS.md"
SECTION = re.compile(r"(<!-- python -m benchmarks (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def section(report: Report) -> str:
    parts = [report.head, *report.graphs], [report.table], [report.closing]
    return "\n".join("\n".join(part) + "\n" for part in parts)


def given(arguments: str) -> argparse.Namespace:
    return parser().parse_args(shlex.split(arguments))


def filled(text: str, quick: bool = False) -> str:
    """The text with its sections measured anew."""

    def replaced(match: re.Match[str]) -> str:
        asked = given(match[2])
        return f"{match[1]}\n{section(measured(asked.only, quick or asked.quick, asked.device))}\n{match[3]}"

    return SECTION.sub(replaced, text)


def main(arguments: Sequence[str] | None = None) -> None:
    p = argparse.ArgumentParser("python -m benchmarks.fill", description=__doc__)
    p.add_argument("file", type=Path, nargs="?", default=RESULTS)
    p.add_argument("--quick", action="store_true", help="small sizes and few rounds, as a smoke test")
    args = p.parse_args(arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about sparse layouts, which are in beta
        args.file.write_text(filled(args.file.read_text(), args.quick))


if __name__ == "__main__":
    main()
