"""The bars of the README show its table."""

from pathlib import Path

import pytest

from benchmarks import picture

ROWS = picture.rows((picture.ROOT / "README.md").read_text("utf-8"))


def test_all_rows_of_the_table_are_read() -> None:
    table = (picture.ROOT / "README.md").read_text("utf-8").partition("\n## Measured\n")[2].partition("\n## ")[0]
    assert len(ROWS) == sum(line.startswith("|") for line in table.splitlines()) - 2  # the head and its rule
    assert picture.Row("ChebConv K=3, Cora", 9.7, 177) in ROWS


@pytest.mark.parametrize("name", picture.INK)
def test_the_picture_is_the_one_that_is_drawn(name: str, tmp_path: Path) -> None:
    drawn = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for path in drawn:
        picture.draw(ROWS, path, picture.INK[name])
    assert drawn[0].read_bytes() == drawn[1].read_bytes()
    for svg in (drawn[0].read_text("utf-8"), (picture.ROOT / "docs" / name).read_text("utf-8")):
        assert picture.INK[name] in svg
        for row in ROWS:
            assert f">{row.work}</text>" in svg
            assert all(f">{value:g}</text>" in svg for value in row[1:])
