"""Every Python block of the README runs, by itself."""

import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
TITLES = [
    re.findall(r"^## (.+)$", TEXT[: TEXT.index(block)], re.MULTILINE)[-1].lower().replace(" ", "-") for block in BLOCKS
]
# What is compiled for the machine, by a compiler of C++, takes a quarter of a minute.
RUN = [
    pytest.param(block, id=title, marks=pytest.mark.slow if "torch.compile" in block else ())
    for block, title in zip(BLOCKS, TITLES, strict=True)
]


@pytest.mark.parametrize("block", RUN)
def test_block_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})


def test_there_are_blocks_and_they_assert() -> None:
    assert len(BLOCKS) >= 4
    assert all("assert" in block for block in BLOCKS)
