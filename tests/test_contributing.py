"""What CONTRIBUTING.md tells to write works, together with the tests that it tells to write."""

import re
from pathlib import Path

import pytest

from pyg_basisconv.convert import registry
from tests.mechanisms import oracle as attention_oracle

TEXT = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTIONS = {
    title.lower().replace(" ", "-"): re.findall(r"^```python(?: continued)?\n(.*?)^```", body, re.MULTILINE | re.DOTALL)
    for title, body in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
}
WORKED = {title: blocks for title, blocks in SECTIONS.items() if blocks}


@pytest.mark.parametrize("title", WORKED)
def test_section_works(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a section run one after the other, and leave no trace in the registries."""
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    monkeypatch.setattr(attention_oracle, "SCORES", dict(attention_oracle.SCORES))
    names = {"__name__": __name__}
    for block in WORKED[title]:
        exec(compile(block, "CONTRIBUTING.md", "exec"), names)


def test_every_kind_of_addition_is_worked_out() -> None:
    assert {"errors", "a-basis", "a-theta", "a-mechanism", "a-conversion"} <= WORKED.keys()


def test_files_that_are_named_are_there() -> None:
    root = Path(__file__).parent.parent
    for name in re.findall(r"`((?:tests|benchmarks|pyg_basisconv)[\w/]*(?:\.\w+)?)`", TEXT):
        assert (root / name).exists(), name
