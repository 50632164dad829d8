"""PyG's own tests of its layers, with the imports of layers replaced by those of `pyg_basisconv.nn`, and nothing else.

    python -m tests.nn.pyg_own [DIR [FILE ...]]

DIR is the folder `test` of PyG's sources, which its wheel does not have; by default the environment variable PYG_TESTS,
or the one beside an installed clone. It prints what became of each file, and what of it was not run: of PyG's
statements, only those about private attributes. All others count.
"""

import ast
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch_geometric.nn

import pyg_basisconv.nn as drop_in
from pyg_basisconv.nn.evaluator import Evaluator

# All but NNConv's, which compares its float32 with itself at a tolerance of 1e-8 where numbers are near zero, and
# SplineConv's, which needs pyg-lib.
LAYERS = """gcn cheb tag sg ssg graph sage cluster_gcn le mixhop lg simple rgcn gat gatv2 transformer agnn feast
hypergraph res_gated_graph supergat fa rgat signed dir_gnn han hgt hetero antisymmetric arma eg film gated_graph gcn2
general gin gmm heat mf pan pdn point_transformer"""
OTHERS = ["test_appnp.py", "test_label_prop.py", "test_static_graph.py", "test_to_hetero_transformer.py"]
OTHERS += [f"test_dense_{name}_conv.py" for name in ("gat", "gcn", "gin", "graph", "sage")]
FILES = [*(f"test_{name}_conv.py" for name in LAYERS.split()), "test_wl_conv_continuous.py", *OTHERS]

PRIVATE = re.compile(r"\w+\._\w+ is (not )?None|\w+\.propagate\.__module__\.endswith\(\S+\)")
REFUSED = "options that its recipe covers"  # what a drop-in says of others, for which PyG's own is to be used


def neutral(source: str) -> tuple[str, dict[str, list[int]]]:
    """The source, on the same lines, without what tests assert of private attributes; and these lines of each test."""
    lines, dropped = source.splitlines(), {}
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef) or not function.name.startswith("test"):
            continue
        for statement in ast.walk(function):
            if isinstance(statement, ast.Assert) and PRIVATE.fullmatch(ast.unparse(statement.test)):
                first, last = statement.lineno - 1, statement.end_lineno or statement.lineno
                lines[first:last] = [" " * statement.col_offset + "pass", *[""] * (last - first - 1)]
                dropped.setdefault(function.name, []).append(statement.lineno)
    return "\n".join(lines) + "\n", dropped


class Report:
    """What became of each test, for pytest as a plugin."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.skipped: dict[str, str] = {}
        self.failures: list[str] = []
        self.refused: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Counts a test once: where it ran, or where it could not be set up or torn down."""
        if report.when != "call" and report.passed:
            return
        self.counts[Path(report.location[0]).name, report.outcome] += 1
        if report.skipped:
            self.skipped[report.nodeid] = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else "")
        if report.failed:
            if REFUSED in report.longreprtext:
                self.counts[Path(report.location[0]).name, "failed"] -= 1
                said = [line for line in report.longreprtext.splitlines() if REFUSED in line]
                self.refused[report.nodeid] = said[-1].removeprefix("E").strip()
            else:
                self.failures.append(f"{report.nodeid}\n{report.longreprtext}")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Counts a file that cannot be imported."""
        if report.failed:
            self.counts[Path(report.nodeid).name, "failed"] += 1
            self.failures.append(f"{report.nodeid}\n{report.longreprtext}")


def replace(patch: pytest.MonkeyPatch, made: list[str]) -> None:
    """Has drop-ins imported in the place of PyG's layers, and notes the test of each call that a recipe evaluates."""
    evaluate = Evaluator.__call__

    def noting(self: Evaluator, *args: Any) -> Any:
        made.append(os.environ["PYTEST_CURRENT_TEST"].split(" ")[0])
        return evaluate(self, *args)

    patch.setattr(Evaluator, "__call__", noting)
    for name in drop_in.__all__:
        if name in vars(torch_geometric.nn):
            patch.setattr(torch_geometric.nn, name, getattr(drop_in, name))


def run(folder: Path, files: Sequence[str]) -> bool:
    """Runs the files of a folder, prints what came of it, and says whether all is well."""
    report, dropped, made = Report(), {}, []
    with tempfile.TemporaryDirectory() as own, pytest.MonkeyPatch.context() as patch:
        copies = str(Path(own, "tests"))  # pytest lists the folder above, and that of all files for a time is long
        Path(copies).mkdir()
        patch.setenv("FULL_TEST", "1")  # what PyG runs seldom is run, too
        patch.delenv("PYTEST_ADDOPTS", raising=False)
        patch.chdir(copies)
        for name in ["conftest.py", *files]:
            for found in sorted(folder.rglob(name))[:1]:
                text, dropped[name] = neutral(found.read_text())
                Path(copies, name).write_text(text)
        replace(patch, made)
        without = [word for plugin in ("cacheprovider", "logging", "warnings") for word in ("-p", f"no:{plugin}")]
        options = ["-qq", "--no-summary", "--import-mode=importlib", "-c", os.devnull, "--rootdir", copies]
        pytest.main([*without, *options, copies], plugins=[report])
        for name, module in list(sys.modules.items()):  # or the next run would take these files for its own
            if Path(copies) in Path(getattr(module, "__file__", None) or "").parents:
                del sys.modules[name]
    return show(report, files, dropped, made)


def show(report: Report, files: Sequence[str], dropped: dict[str, dict[str, list[int]]], made: list[str]) -> bool:
    """Prints the tables, and says whether all is well."""
    print("\n".join(["", *report.failures]))
    width = max(len(name) for name in files)
    print(f"\n{'file':{width}}  tests  passed  failed  skipped  calls evaluated")
    well = True
    for name in files:
        passed, failed, skipped = (report.counts[name, outcome] for outcome in ("passed", "failed", "skipped"))
        total, done = passed + failed + skipped, sum(test.startswith(f"{name}::") for test in made)
        well &= passed > 0 and not failed and done > 0
        note = "" if name in dropped else "  not found"
        print(f"{name:{width}}  {total:5}  {passed:6}  {failed:6}  {skipped:7}  {done:15}{note}")
    _list("refused", [f"{test}: {reason}" for test, reason in report.refused.items()])
    _list("skipped", [f"{test}: {reason}" for test, reason in report.skipped.items()])
    lines = [(f"{name}::{test}", at) for name, found in dropped.items() for test, at in found.items()]
    _list("not run", [f"{test}: lines {', '.join(map(str, at))}" for test, at in lines])
    return well


def _list(title: str, rows: Sequence[str]) -> None:
    if rows:
        print("\n".join([f"\n{title}:", *(f"  {row}" for row in dict.fromkeys(rows))]))


def sources() -> Path | None:
    """The folder of PyG's tests, where it is there."""
    given = os.environ.get("PYG_TESTS")
    if given:
        return Path(given)
    beside = Path(torch_geometric.__file__).parents[1] / "test"
    return beside if (beside / "nn" / "conv" / "test_gcn_conv.py").is_file() else None


def main(arguments: Sequence[str]) -> int:
    """Runs the script; 0 where all is well."""
    folder = Path(arguments[0]) if arguments else sources()
    if folder is None:
        print("PyG's tests are not here: name their folder, or set PYG_TESTS", file=sys.stderr)
        return 2
    return 0 if run(folder.resolve(), arguments[1:] or FILES) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
