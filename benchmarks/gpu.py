"""On a GPU, in parts: each run measures rows for some minutes, and leaves out those that an earlier one has measured.

`python -m benchmarks --gpu FOLDER` writes a file for each row as soon as it is measured; run it until nothing is left.
After a change of the package's code it begins again, and so it does under BASISCONV_KERNELS=triton: without it torch's
operations are measured. Before all rows come the tests of what a GPU runs, which resume in the same way, and those of
kernels once more under compute-sanitizer, where it is found; they run in several processes side by side, as most of
their time is that of compiling kernels. Behind the rows comes the grid of the planner, to which its rates are fitted at
the end. What ends its process, or leaves the device useless, is not tried again.
"""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

import torch

import pyg_basisconv
from pyg_basisconv import backends

from . import memcheck, on_device, orders, rates
from .data import Missing
from .flex import FlexRow
from .gpu_rows import gpu_rows
from .machine import machine
from .report import Report
from .result import Bench, Result, Row, Target
from .rows import rows

MINUTES = 8.0  # after which no test and no row is begun
PROCESSES = min(16, os.cpu_count() or 1)  # that run tests


def code() -> str:
    """A mark of the package's code, and of whether the kernels in Triton are in use."""
    found = hashlib.sha256()
    for file in sorted(Path(pyg_basisconv.__file__).parent.rglob("*.py")):
        found.update(file.read_bytes())
    return found.hexdigest()[:12] + "-triton" * (backends()["triton"] == "in use")


def written(folder: Path, name: str) -> Path:
    """The file of a row, for this code."""
    return folder / code() / (re.sub(r"[^\w]+", "_", name) + ".json")


def measure(todo: Sequence[Row], bench: Bench, folder: Path, seconds: float) -> int:
    """Measures rows until the time is over, at least one; the number of those that are left."""
    left = [row for row in todo if not written(folder, row.name).exists()]
    until = monotonic() + seconds
    while left:
        row = left.pop(0)
        print(row.name, file=sys.stderr, flush=True)
        file = written(folder, row.name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"missing": f"- failed: {row.name}: it ended its process"}))  # until more is known
        try:
            found: dict[str, Any] = {"result": asdict(row.run(bench))}
        except Missing as error:
            found = {"missing": f"- skipped: {row.name}: {error}"}
        except Exception as error:  # the others are measured all the same
            found = {"missing": f"- failed: {row.name}: {type(error).__name__}: {error}"}
        file.write_text(json.dumps(found | {"graphs": [str(one) for one in bench.graphs.values()]}, indent=1))
        if monotonic() > until or on_device.useless():
            break
    return len(left)


def results(todo: Sequence[Row], folder: Path) -> Iterator[Result | dict[str, Any] | str]:
    """What has been measured until now; of a point of the planner's grid a dictionary; for what could not be, why."""
    for row in todo:
        file = written(folder, row.name)
        if file.exists():
            found = json.loads(file.read_text())
            if "missing" in found:
                yield found["missing"]
            elif isinstance(row, rates.PointRow):
                yield found["result"]
            else:
                yield Result(**found["result"] | {"target": Target(**found["result"]["target"])})


def all_tested(home: Path, until: float) -> bool:
    """Runs tests, and those of kernels under a sanitizer, until a time; whether none are left."""
    tool = memcheck.sanitizer()
    checks: dict[str, tuple[list[str], Sequence[str]]] = {"tests": ([], ())}
    if tool:
        checks["memcheck"] = memcheck.prefix(tool, home), on_device.KERNELS
    for name, (prefix, tests) in checks.items():
        done = home / f"{name}.done"
        if done.exists():
            continue
        seconds = until - monotonic()
        if seconds <= 0:
            return False
        with ThreadPoolExecutor(PROCESSES) as processes:
            parts = range(PROCESSES)
            left = [*processes.map(lambda part: untested(home, name, part, seconds, prefix, tests), parts)]  # noqa: B023
        if any(left):
            return False
        done.touch()
    return True


def untested(
    home: Path, name: str, part: int, seconds: float, prefix: Sequence[str] = (), tests: Sequence[str] = ()
) -> bool:
    """Runs a part of the tests in a process of its own until the time is over; whether some are left.

    prefix: of the command, by which the process is checked. tests: files; all, if there are none.
    """
    file = home / f"{name}.{part}.jsonl"
    fixed = str(file.resolve()), str(seconds), str(part), str(PROCESSES)
    command = [*prefix, sys.executable, "-m", "benchmarks.on_device", *fixed, *tests]
    environment = os.environ | (memcheck.ENVIRONMENT if prefix else {})
    try:
        status, printed, errors = alone(command, environment, seconds + 60)
    except subprocess.TimeoutExpired:  # one of them hangs
        return True
    if status not in (0, memcheck.ERRORS):
        print(f"the process of the tests failed: {errors.strip()[-500:]}", file=sys.stderr)
        return not prefix or file.exists()  # a check that cannot begin is given up
    return bool(json.loads(printed.splitlines()[-1])["left"])


def alone(command: Sequence[str], environment: dict[str, str], seconds: float) -> tuple[int, str, str]:
    """Runs a process: its status, and what it prints. After some seconds it is ended, with those that it has begun."""
    root = Path(__file__).parent.parent
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=root, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            printed, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, printed, errors


def told(home: Path) -> str:
    """What became of the tests until now."""
    found = on_device.outcomes(*sorted(home.glob("tests.*.jsonl")))
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(Counter(found.values()).items()))
    bad = [f"- {outcome}: {test}" for test, outcome in found.items() if outcome not in ("passed", "skipped")]
    return "\n".join([f"tests: {counts or 'none'}", *bad])


def run(folder: Path, only: Sequence[str] | None, quick: bool) -> None:
    """One part, and the table of what there is."""
    if not torch.cuda.is_available():
        sys.exit(
            f"--gpu: expected a CUDA device, got none (kernels in Triton: {backends()['triton']}); run it on a GPU"
        )
    grid = [rates.PointRow(point) for point in orders.points()]
    wanted = [row for row in [*gpu_rows(), FlexRow(), *rows(), *grid] if "cuda" in row.devices]
    todo = [row for row in wanted if not only or any(text.lower() in row.name.lower() for text in only)]
    home, until = folder / code(), monotonic() + 60 * MINUTES
    bench = Bench(quick, "cuda")
    left = len(todo)
    if all_tested(home, until) and monotonic() < until:
        left = measure(todo, bench, folder, until - monotonic())
    found = list(results(todo, folder))
    report = Report(
        bench,
        machine("cuda") | {"code": code(), **backends()},
        [one for one in found if isinstance(one, Result)],
        [one for one in found if isinstance(one, str)],
    )
    checks, missing = f"{told(home)}\n{memcheck.told(home)}", "\n".join(report.missing)
    text = f"{report.head}\n{checks}\n\n{report.table}\n\n{missing}"
    timed = [one for one in found if isinstance(one, dict)]
    if timed and not left:
        text += "\n\nThe planner's rates:\n\n" + "\n".join(rates.fit(timed, quick, "cuda"))
    (folder / "RESULTS.md").write_text(text + "\n")
    print(f"{text}\n\n{left} rows are left: run it again" if left else text)
