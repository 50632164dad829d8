"""PyG's own tests of its layers, with each layer passed through `convert` right after its construction; or with the
imports of layers replaced by those of `pyg_basisconv.nn`, and nothing else.

    python -m tests.nn.pyg_own [--nn] [DIR [FILE ...]]

DIR is the folder `test` of PyG's sources, which its wheel does not have; by default the environment variable PYG_TESTS,
or the one beside an installed clone. It prints what became of each file, and what of it was not run: of PyG's
statements, only those that are about the text of a layer, TorchScript, or private attributes; with `--nn` only the
last. All others count.
"""

import ast
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch_geometric.nn
from torch import nn

import pyg_basisconv.nn as drop_in
from pyg_basisconv import convert
from pyg_basisconv.nn.evaluator import Evaluator

CONVERTED = """gcn cheb tag sg ssg graph sage cluster_gcn le mixhop lg simple rgcn gat gatv2 transformer agnn feast
hypergraph"""
MORE = "res_gated_graph supergat fa rgat signed dir_gnn han hgt hetero"  # of drop-ins
# All but NNConv's, which compares its float32 with itself at a tolerance of 1e-8 where numbers are near zero, and
# SplineConv's, which needs pyg-lib.
LATER = """antisymmetric arma eg film gated_graph gcn2 general gin gmm heat mf pan pdn point_transformer"""
OTHERS = ["test_appnp.py", "test_label_prop.py", "test_static_graph.py", "test_wl_conv_continuous.py"]
DENSE = [f"test_dense_{name}_conv.py" for name in ("gat", "gcn", "gin", "graph", "sage")]
FILES = [f"test_{name}_conv.py" for name in CONVERTED.split()]
OF_DROP_INS = [*FILES, *(f"test_{name}_conv.py" for name in f"{MORE} {LATER}".split()), *OTHERS, *DENSE]
OF_DROP_INS += ["test_to_hetero_transformer.py"]

TEXT = "the text of a layer"
SCRIPT = "TorchScript"
PRIVATE = "a private attribute of PyG's layer, or the name of one"

# What `convert` may leave as it is: another reason fails the test.
REFUSED = "options that its recipe covers"  # what a drop-in says of others, for which PyG's own is to be used
LEFT = re.compile(r"aggr=.* is not linear, or not a sum or mean$|a subclass of \w+ may compute something else$")


class Dropped(NamedTuple):
    """A statement that is not run."""

    test: str
    line: int
    reason: str


def neutral(source: str, without: Sequence[str] = (TEXT, SCRIPT, PRIVATE)) -> tuple[str, list[Dropped]]:
    """The source, on the same lines, without the statements that are not run, for these reasons; and these."""
    lines, dropped = source.splitlines(), []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef) or not function.name.startswith("test"):
            continue
        for statement, reason in _dropped(function.body, set()):
            if reason not in without:
                continue
            first, last = statement.lineno - 1, statement.end_lineno or statement.lineno
            lines[first:last] = [" " * statement.col_offset + "pass", *[""] * (last - first - 1)]
            dropped.append(Dropped(function.name, statement.lineno, reason))
    return "\n".join(lines) + "\n", dropped


def _dropped(body: Sequence[ast.stmt], scripted: set[str]) -> Iterator[tuple[ast.stmt, str]]:
    """The statements that are not run.

    Args:
        body: of a function.
        scripted: the names that hold what TorchScript made, or what that returned; brought up to date.
    """
    for statement in body:
        if isinstance(statement, ast.If | ast.With | ast.For):
            yield from _dropped([*statement.body, *getattr(statement, "orelse", [])], scripted)
            continue
        reason = _reason(statement, scripted)
        if isinstance(statement, ast.Assign):
            names = {n.id for target in statement.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
            scripted -= names
            if reason == SCRIPT:
                scripted |= names
        if reason is not None:
            yield statement, reason


def _reason(statement: ast.stmt, scripted: set[str]) -> str | None:
    """Why a statement is not run, or None."""
    if isinstance(statement, ast.Expr | ast.Assign | ast.Assert):
        nodes = list(ast.walk(statement))
        text = [ast.unparse(n) for n in nodes if isinstance(n, ast.Attribute)]
        read = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        if any(t.startswith("torch.jit.") for t in text) or scripted & read:
            return SCRIPT
    if isinstance(statement, ast.Assert):
        asked = statement.test
        first = ast.unparse(asked.left) if isinstance(asked, ast.Compare) and len(asked.ops) == 1 else ""
        if re.fullmatch(r"(str|repr)\(\w+\)|\w+\.__(str|repr)__\(\)", first):
            return TEXT
        if re.fullmatch(r"\w+\._\w+ is (not )?None|\w+\.propagate\.__module__\.endswith\(\S+\)", ast.unparse(asked)):
            return PRIVATE
    return None


def converting(layer: type, made: list[tuple[str, str]]) -> type:
    """A class that looks like the layer's, but gives the converted layer when it is called.

    Args:
        layer: of PyG.
        made: takes the test in which a layer was made, and the reason for which it was left, or "".
    """

    class Converting(type(layer)):  # type: ignore[misc]
        def __call__(cls, *args: Any, **kwargs: Any) -> nn.Module:
            given = layer(*args, **kwargs) if cls is face else super().__call__(*args, **kwargs)
            left: dict[str, str] = {}
            new = convert(given, left)
            reason = left.get("", "")
            expected = LEFT.search(reason) if reason else type(new) is not type(given)
            assert expected, f"{cls.__name__} was not converted: {reason}"
            made.append((os.environ["PYTEST_CURRENT_TEST"].split(" ")[0], reason))
            new.converted_from = cls
            return new

        def __instancecheck__(cls, instance: object) -> bool:
            return super().__instancecheck__(instance) or issubclass(getattr(instance, "converted_from", object), cls)

    face = Converting(layer.__name__, (layer,), {"__module__": layer.__module__, "__doc__": layer.__doc__})
    return face


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


def replace(patch: pytest.MonkeyPatch, names: Iterable[str], made: list[tuple[str, str]]) -> None:
    """Has drop-ins imported in the place of PyG's layers, and notes each of their calls that a recipe evaluates."""
    evaluate = Evaluator.__call__

    def noting(self: Evaluator, *args: Any) -> Any:
        made.append((os.environ["PYTEST_CURRENT_TEST"].split(" ")[0], ""))
        return evaluate(self, *args)

    patch.setattr(Evaluator, "__call__", noting)
    for name in names:
        patch.setattr(torch_geometric.nn, name, getattr(drop_in, name))


def run(folder: Path, files: Sequence[str], through_nn: bool = False) -> bool:
    """Runs the files of a folder, prints what came of it, and says whether all is well."""
    report, dropped, made = Report(), {}, []
    originals = {name: vars(torch_geometric.nn)[name] for name in drop_in.__all__ if name in vars(torch_geometric.nn)}
    with tempfile.TemporaryDirectory() as own, pytest.MonkeyPatch.context() as patch:
        copies = str(Path(own, "tests"))  # pytest lists the folder above, and that of all files for a time is long
        Path(copies).mkdir()
        patch.setenv("FULL_TEST", "1")  # what PyG runs seldom is run, too
        patch.delenv("PYTEST_ADDOPTS", raising=False)
        patch.chdir(copies)
        for name in ["conftest.py", *files]:
            for found in sorted(folder.rglob(name))[:1]:
                text, dropped[name] = neutral(found.read_text(), *([(PRIVATE,)] if through_nn else []))
                Path(copies, name).write_text(text)
        if through_nn:
            replace(patch, originals, made)
        else:
            for name, layer in originals.items():
                patch.setattr(torch_geometric.nn, name, converting(layer, made))
        without = [word for plugin in ("cacheprovider", "logging", "warnings") for word in ("-p", f"no:{plugin}")]
        options = ["-qq", "--no-summary", "--import-mode=importlib", "-c", os.devnull, "--rootdir", copies]
        pytest.main([*without, *options, copies], plugins=[report])
        for name, module in list(sys.modules.items()):  # or the next run would take these files for its own
            if Path(copies) in Path(getattr(module, "__file__", None) or "").parents:
                del sys.modules[name]
    return show(report, files, dropped, made)


def show(report: Report, files: Sequence[str], dropped: dict[str, list[Dropped]], made: list[tuple[str, str]]) -> bool:
    """Prints the tables, and says whether all is well."""
    print("\n".join(["", *report.failures]))
    width = max(len(name) for name in files)
    print(f"\n{'file':{width}}  tests  passed  failed  skipped  layers converted  left")
    well = True
    for name in files:
        passed, failed, skipped = (report.counts[name, outcome] for outcome in ("passed", "failed", "skipped"))
        left = [bool(reason) for test, reason in made if test.startswith(f"{name}::")]
        total, done = passed + failed + skipped, left.count(False)
        well &= passed > 0 and not failed and done > 0
        note = "" if name in dropped else "  not found"
        print(f"{name:{width}}  {total:5}  {passed:6}  {failed:6}  {skipped:7}  {done:16}  {sum(left):4}{note}")
    _list("refused", [f"{test}: {reason}" for test, reason in report.refused.items()])
    _list("left as they are by convert", [f"{test}: {reason}" for test, reason in made if reason])
    _list("skipped", [f"{test}: {reason}" for test, reason in report.skipped.items()])
    lines: dict[tuple[str, str, str], list[int]] = {}
    for name, found in dropped.items():
        for test, line, reason in found:
            lines.setdefault((name, test, reason), []).append(line)
    _list(
        "not run",
        [f"{name}::{test}: {reason}; lines {', '.join(map(str, at))}" for (name, test, reason), at in lines.items()],
    )
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
    through_nn = "--nn" in arguments
    arguments = [argument for argument in arguments if argument != "--nn"]
    folder = Path(arguments[0]) if arguments else sources()
    if folder is None:
        print("PyG's tests are not here: name their folder, or set PYG_TESTS", file=sys.stderr)
        return 2
    files = list(arguments[1:]) or (OF_DROP_INS if through_nn else FILES)
    return 0 if run(folder.resolve(), files, through_nn) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
