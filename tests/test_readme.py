"""Every Python block of the README and of the pages in docs/ runs, by itself or after those it continues; and no link
is broken."""

import ast
import inspect
import re
import shlex
from functools import partial
from pathlib import Path

import pytest
import torch

from pyg_basisconv import bases
from pyg_basisconv.__main__ import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[tuple[str, str]]:
    """The blocks of a page, each with a name: the page, and the heading above it. One that continues joins the last."""
    text, found = page.read_text("utf-8"), []
    for match in re.finditer(r"^```python( continued)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if match[1]:
            found[-1] = (found[-1][0], found[-1][1] + match[2])
            continue
        above = re.findall(r"^##? ([A-Z].*)$", text[: match.start()], re.MULTILINE)[-1]
        found.append((f"{page.stem}-{above.lower().replace(' ', '-')}", match[2]))
    return found


BLOCKS = [block for page in PAGES for block in blocks(page)]


COMPILED = [pytest.param(code, id=name) for name, code in BLOCKS if "torch.compile" in code]


def run(block: str) -> None:
    exec(compile(block, "a page", "exec"), {"__name__": "page"})


@pytest.mark.parametrize("block", [pytest.param(code, id=name) for name, code in BLOCKS])
def test_block_runs(block: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))  # no compiler of C++: see below
    run(block)


@pytest.mark.slow
@pytest.mark.parametrize("block", COMPILED)
def test_block_runs_compiled_for_the_machine(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    run(block)


def test_blocks_assert_what_they_show() -> None:
    assert len(blocks(PAGES[0])) >= 3
    assert all("assert" in code for _, code in BLOCKS)


# Commands of this package with what they print, of which pages may leave out lines.
SHOWN = [
    pytest.param(match[1], match[2], id=f"{page.stem}-{match[1]}")
    for page in PAGES
    for match in re.finditer(
        r"^    \$ python -m pyg_basisconv (.*)\n((?:    .*\n|\n(?=    ))+)", page.read_text("utf-8"), re.MULTILINE
    )
]


@pytest.mark.parametrize(("command", "shown"), SHOWN)
def test_a_command_prints_what_is_shown(
    command: str, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(shlex.split(command)) == 0
    printed = capsys.readouterr().out.splitlines()
    lines = [line.removeprefix("    ") for line in shown.splitlines()]
    assert len(lines) > 3
    assert [line for line in lines if line not in ("...", *printed)] == []


def test_the_sort_of_the_readme_is_in_the_file() -> None:
    text, walks = PAGES[0].read_text("utf-8"), (ROOT / "datasets" / "films" / "walks.toml").read_text("utf-8")
    assert re.search(r"^    (genres_of_roles = .*)$", text, re.MULTILINE)[1] in walks
    assert any(command.startswith("walks datasets/films/walks.toml") for command, _ in (p.values for p in SHOWN))


def test_the_table_of_bases_has_their_defaults() -> None:
    rows = re.findall(r"^\| (`[A-Z].*?`) \|", (ROOT / "docs" / "bases.md").read_text("utf-8"), re.MULTILINE)
    shown = {name: arguments for row in rows for name, arguments in re.findall(r"`(\w+)\((.*?)\)`", row)}
    assert len(shown) > 25
    for name, arguments in shown.items():
        signature = inspect.signature(getattr(bases, name)).parameters
        for argument in filter(None, re.split(r", (?![^(]*\))", arguments)):
            if argument == "...":
                continue
            word, _, value = argument.partition("=")
            default = signature[word].default
            if word == "operator":  # which None stands for
                assert value.removesuffix(")") in repr(getattr(bases, name)(2).operator).replace("norm=", "")
            else:
                assert default == (ast.literal_eval(value) if value else inspect.Parameter.empty), (name, word)


def test_the_readme_is_short() -> None:
    assert len(PAGES[0].read_text("utf-8").splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_no_link_is_broken(page: Path) -> None:
    text = page.read_text("utf-8")
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", text) + re.findall(r'\b(?:src|srcset)="([^"]+)"', text)
    assert [target for target in targets if not (page.parent / target).exists()] == []
