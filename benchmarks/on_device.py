"""The tests of what a GPU runs, for some minutes: each test is run once, and what became of it is kept in a file.

`python -m benchmarks.on_device FILE SECONDS PART PARTS [TESTS]` runs those of which the file does not tell yet, of
every PARTS tests the one of number PART. A test that ended its process is not run again. After an error that leaves the
device useless, the rest is for a process of its own.
"""

import argparse
import json
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import torch

TESTS = Path(__file__).parent.parent / "tests"
KERNELS = tuple(f"tests/kernels/test_{name}.py" for name in ("triton", "triton_bind", "triton_typed"))


def useless() -> bool:
    """Whether a GPU answers no more in this process, as after a read out of bounds."""
    try:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


class Resumed:
    """A plugin of pytest that leaves out what is known, and stops when the time is over; left: how many are unknown.

    part, parts: of every so many tests it runs the one of this number.
    """

    def __init__(self, file: Path, seconds: float, part: int, parts: int) -> None:
        self.file, self.until, self.left = file, monotonic() + seconds, 0
        self.ours = slice(part, None, parts)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        known = outcomes(self.file)
        wanted = [one for one in items if one.get_closest_marker("cuda") or one.nodeid.startswith(KERNELS)]
        items[:] = [one for one in wanted[self.ours] if one.nodeid not in known]
        self.left = len(items)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(nodeid, "ended its process")  # until more is known

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or not report.passed:
            self._write(report.nodeid, report.outcome, report.longreprtext)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        yield
        self.left -= 1
        if monotonic() > self.until or useless():
            item.session.shouldstop = "the rest is for the next part"

    def _write(self, test: str, outcome: str, text: str = "") -> None:
        with self.file.open("a") as lines:
            lines.write(json.dumps({"test": test, "outcome": outcome, "text": text}) + "\n")


def outcomes(*files: Path) -> dict[str, str]:
    """What became of each test, the last that is known."""
    lines = [line for file in files if file.is_file() for line in file.read_text().splitlines()]
    return {found["test"]: found["outcome"] for found in map(json.loads, lines)}


def run(file: Path, seconds: float, part: int, parts: int, *arguments: str) -> int:
    """Runs tests until the time is over; the number of those that are left."""
    plugin = Resumed(file, seconds, part, parts)
    file.parent.mkdir(parents=True, exist_ok=True)
    pytest.main(["-q", "-p", "no:cacheprovider", f"--rootdir={TESTS.parent}", *(arguments or [str(TESTS)])], [plugin])
    return plugin.left


if __name__ == "__main__":
    p = argparse.ArgumentParser("python -m benchmarks.on_device", description=__doc__)
    p.add_argument("file", type=Path)
    p.add_argument("seconds", type=float)
    p.add_argument("part", type=int)
    p.add_argument("parts", type=int)
    p.add_argument("tests", nargs="*", help="the files of some; all, if none are named")
    args = p.parse_args()
    print(json.dumps({"left": run(args.file, args.seconds, args.part, args.parts, *args.tests)}))
