"""Compute-sanitizer, NVIDIA's check of each access of a kernel to the memory of a GPU, around the tests of kernels."""

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

ERRORS = 86  # the status of a process in which it found some
# Each tensor is an allocation of its own, beyond whose end nothing is allowed.
ENVIRONMENT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


def sanitizer() -> str | None:
    """Where it is, in the path or in CUDA's toolkit; None if it is not there."""
    toolkit = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return shutil.which("compute-sanitizer", path=f"{os.environ.get('PATH', '')}{os.pathsep}{toolkit}/bin")


def prefix(tool: str, folder: Path) -> list[str]:
    """What comes before the command of a process that is to be checked; the process has a log of its own."""
    log = folder.resolve() / "memcheck.%p.log"
    return [tool, "--tool", "memcheck", "--error-exitcode", str(ERRORS), "--log-file", str(log)]


def told(folder: Path) -> str:
    """What was found until now."""
    texts = {log.name: log.read_text() for log in sorted(folder.glob("memcheck.*.log"))}
    found = {name: errors(text.splitlines()) for name, text in texts.items()}
    if not found:
        return "memcheck: nothing was checked" + (
            "" if sanitizer() else "; compute-sanitizer was not found, which comes with CUDA's toolkit"
        )
    bad = [f"- {name}: {count or 'ended early'}" for name, count in found.items() if count != 0]
    return "\n".join([f"memcheck: {sum(filter(None, found.values()))} errors", *bad])


def errors(log: Iterable[str]) -> int | None:
    """The number of errors that a log tells of; None if its process ended before that was known.

    >>> errors(["========= COMPUTE-SANITIZER", "========= ERROR SUMMARY: 2 errors"])
    2
    """
    found = [match for line in log if (match := re.search(r"ERROR SUMMARY: (\d+) error", line))]
    return int(found[-1][1]) if found else None
