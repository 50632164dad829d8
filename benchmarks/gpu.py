"""On a GPU, in parts: each run measures rows for some minutes, and leaves out those that an earlier one has measured.

`python -m benchmarks --gpu FOLDER` writes a file for each row as soon as it is measured; run it until nothing is left.
After a change of the package's code it begins again, and so it does under BASISCONV_KERNELS=triton: without it torch's
operations are measured. Before all rows come the tests of what a GPU runs, which resume in the same way. What ends its
process, or leaves the device useless, is not tried again.
"""

import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

import torch

import pyg_basisconv
from pyg_basisconv import backends

from . import on_device
from .data import Missing
from .gpu_rows import gpu_rows
from .machine import machine
from .report import Report
from .result import Bench, Result, Row, Target
from .rows import rows

MINUTES = 8.0  # after which no test and no row is begun


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


def results(todo: Sequence[Row], folder: Path) -> Iterator[Result | str]:
    """What has been measured until now; for a row that could not be, why."""
    for row in todo:
        file = written(folder, row.name)
        if file.exists():
            found = json.loads(file.read_text())
            if "missing" in found:
                yield found["missing"]
            else:
                yield Result(**found["result"] | {"target": Target(**found["result"]["target"])})


def tests_are_left(file: Path, seconds: float) -> bool:
    """Runs tests in a process of their own until the time is over; whether some are left."""
    command = [sys.executable, "-m", "benchmarks.on_device", str(file.resolve()), str(seconds)]
    root = Path(__file__).parent.parent
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=seconds + 60)
    except subprocess.TimeoutExpired:  # one of them hangs
        return True
    if done.returncode:
        print(f"the process of the tests failed: {done.stderr.strip()[-500:]}", file=sys.stderr)
        return True
    return bool(json.loads(done.stdout.splitlines()[-1])["left"])


def told(file: Path) -> str:
    """What became of the tests until now."""
    found = on_device.outcomes(file)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(Counter(found.values()).items()))
    bad = [f"- {outcome}: {test}" for test, outcome in found.items() if outcome not in ("passed", "skipped")]
    return "\n".join([f"tests: {counts or 'none'}", *bad])


def run(folder: Path, only: Sequence[str] | None, quick: bool) -> None:
    """One part, and the table of what there is."""
    if not torch.cuda.is_available():
        sys.exit(
            f"--gpu: expected a CUDA device, got none (kernels in Triton: {backends()['triton']}); run it on a GPU"
        )
    wanted = [row for row in [*gpu_rows(), *rows()] if "cuda" in row.devices]
    todo = [row for row in wanted if not only or any(text.lower() in row.name.lower() for text in only)]
    until, log, done = monotonic() + 60 * MINUTES, folder / code() / "tests.jsonl", folder / code() / "tests.done"
    if not done.exists() and not tests_are_left(log, 60 * MINUTES):
        done.touch()
    bench = Bench(quick, "cuda")
    left = len(todo)
    if done.exists() and monotonic() < until:
        left = measure(todo, bench, folder, until - monotonic())
    found = list(results(todo, folder))
    report = Report(
        bench,
        machine("cuda") | {"code": code(), **backends()},
        [one for one in found if isinstance(one, Result)],
        [one for one in found if isinstance(one, str)],
    )
    text = f"{report.head}\n{told(log)}\n\n{report.table}\n\n" + "\n".join(report.missing)
    (folder / "RESULTS.md").write_text(text + "\n")
    print(f"{text}\n\n{left} rows are left: run it again" if left else text)
