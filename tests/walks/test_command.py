"""`python -m pyg_basisconv walks`."""

import io
import json
import shlex
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

import pyg_basisconv.walks.counting
from pyg_basisconv.__main__ import main

FILMS = str(Path(__file__).parents[2] / "datasets" / "films" / "walks.toml")
ROOT = Path(__file__).parents[2]
PREFIX = "python -m pyg_basisconv walks: error: "


def found(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["walks", FILMS, *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def write(folder: Path, facts: str, sorts: str) -> str:
    (folder / "facts.tsv").write_text(facts, "utf-8")
    (folder / "walks.toml").write_text(f'[graph]\ntriples = "facts.tsv"\n[sorts]\n{sorts}', "utf-8")
    return str(folder / "walks.toml")


def test_only_the_beginning_is_read() -> None:
    """As `| head` does: no error is printed when the pipe has no reader."""
    command = [sys.executable, "-m", "pyg_basisconv", "walks", FILMS]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 1


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["walks", FILMS]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("192 entities, 375 facts, 8 relations (65 Person, 54 Character, 33 Work")
    start = lines.index("genres_of_roles = played.characterIn.genre")
    assert lines[start + 1 : start + 6] == [
        "  length     3",
        "  instances  132",
        "  density    0.25 % of all pairs",
        "  starts     47 of 192 entities (24.5%)",
        "  ends       13 of 192 entities (6.8%)",
    ]
    assert lines[start + 6].startswith("  cost       ")
    assert lines[start + 7].startswith("  samples    ")
    assert lines[start + 7].count(" - ") == 3
    assert "acquaintances = (actedIn.^actedIn){1,2}" in lines
    assert "  length     2 to 4" in lines
    assert "  instances  1,922" in lines


def test_entities_of_no_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, "a\tr\tb\na\ts\tc\nc\ts\td\n", 'one = "r"\n[types]\nr = ["A", "B"]')
    assert main(["walks", file]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "4 entities, 3 facts, 2 relations (1 A, 1 B, 2 of no type)"


def test_a_sort_of_the_file_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    (sort,) = found(capsys, "--sort", "genres_of_roles")["sorts"]
    assert (sort["name"], sort["sort"]) == ("genres_of_roles", "played.characterIn.genre")


def test_walks_from_one_entity_to_another(capsys: pytest.CaptureFixture[str]) -> None:
    ends = ["--from", "Leonard Nimoy", "--to", "Science fiction"]
    facts = {tuple(line.split("\t")) for line in (Path(FILMS).parent / "triples.tsv").read_text("utf-8").splitlines()}
    (sort,) = found(capsys, "--sort", "genres_of_roles", *ends)["sorts"]
    assert sort["instances"] == len(sort["walks"]) == 7
    for actor, role, work, genre in sort["walks"]:
        assert (actor, genre) == ("Leonard Nimoy", "Science fiction")
        assert {(actor, "played", role), (role, "character in", work), (work, "genre", genre)} <= facts
    assert len({tuple(walk) for walk in sort["walks"]}) == 7
    assert main(["walks", FILMS, "--sort", "genres_of_roles", "--sort", "played", *ends]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "from Leonard Nimoy to Science fiction"
    assert lines[3] == "  7 walks"
    assert lines[-2:] == ["played", "  no walk"]


def test_the_share_of_the_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of twenty entities with the relation, one has a walk that could say something about it."""
    facts = "".join(f"a{i}\tr\tb{i % 2}\n" for i in range(20)) + "a0\ts\tb0\n"
    file = write(tmp_path, facts, "")
    command = ["walks", file, "--suggest", "r", "--length", "1"]
    assert main([*command, "--support", "0.2"]) == 2
    assert capsys.readouterr().err.endswith("larger, or support smaller, or let sorts use more relations\n")
    assert main(command) == 0
    assert '= "s"' in capsys.readouterr().out
    assert main([*command, "--support", "1.5"]) == 2
    assert capsys.readouterr().err.startswith(PREFIX + "support: expected a number from 0 to below 1, got 1.5")


def test_an_end_needs_a_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["walks", FILMS, "--to", "Science fiction"]) == 2
    assert capsys.readouterr().err.startswith(PREFIX + "--to: expected --from beside it")


def test_where_no_walk_is_it_says_where_they_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, "a\tr\tb\nb\ts\tc\nd\tt\te\n", 'none = "r.s.t"\nsome = "r.s"\neither = "(r.t|r.s.^t)"')
    assert main(["walks", file]) == 0
    text = capsys.readouterr().out
    assert text.count("no walk") == 2
    assert "no walk    they end before step 3, t" in text
    assert "no walk    they end before step 3, ^t" in text


@pytest.mark.parametrize(
    ("sort", "fix"),
    [
        ("played*", "a repeat has an end: write relation{0,3}"),
        ("played+", "a repeat has an end: write relation{1,3}"),
        ("played/characterIn", "steps are joined by dots: relation.relation"),
        ('"played"', "a name with a blank in it is written in <>"),
        ("-played", "the inverse is written ^relation"),
        ("~played", "the inverse is written ^relation"),
        ("played^-1", "the inverse is written ^relation"),
        ("played -> characterIn", "steps are joined by dots: relation.relation"),
        ("played > characterIn", "steps are joined by dots: relation.relation"),
        ("played characterIn", "steps are joined by dots: relation.relation"),
        ("partOf{2,}", "write relation{2}, or relation{0,2}"),
        ("plaid", "did you mean 'played'"),
    ],
)
def test_signs_of_other_languages(sort: str, fix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["walks", FILMS, f"--sort={sort}"]) == 2
    assert fix in capsys.readouterr().err


def test_samples_are_walks(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {tuple(line.split("\t")) for line in (Path(FILMS).parent / "triples.tsv").read_text("utf-8").splitlines()}
    walks = found(capsys)["sorts"][0]["samples"]
    assert len(walks) == 3
    for actor, role, work, genre in walks:
        assert {(actor, "played", role), (role, "character in", work), (work, "genre", genre)} <= facts
    assert walks == found(capsys)["sorts"][0]["samples"], "the same every time"


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    report = found(capsys)
    assert {name: report[name] for name in ("nodes", "edges", "relations")} == {
        "nodes": 192,
        "edges": 375,
        "relations": 8,
    }
    assert report["types"]["Work"] == 33
    assert [s["name"] for s in report["sorts"]][:2] == ["genres_of_roles", "genres_directed"]
    first = report["sorts"][0]
    assert (first["instances"], first["instances_exact"], first["starts"], first["ends"]) == (132, True, 47, 13)
    assert first["density"] == pytest.approx(92 / 192**2)
    assert first["density_exact"] is True
    assert 0 < first["cost"] <= 60 + 71 + 48
    assert (first["shortest"], first["longest"]) == (3, 3)


def test_a_sort_that_is_not_in_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    report = found(capsys, "--sort", "directed.^directed", "--sort", "<part of>")
    assert [s["name"] for s in report["sorts"]] == ["directed.^directed", "partOf"]
    assert report["sorts"][1]["instances"] == report["sorts"][1]["cost"] == 17


def test_from(capsys: pytest.CaptureFixture[str]) -> None:
    report = found(capsys, "--from", "Leonard Nimoy")
    assert report["from"] == "Leonard Nimoy"
    first = report["sorts"][0]
    assert first["instances"] == 10
    assert {r["entity"]: r["walks"] for r in first["reached"]} == {
        "Science fiction": 7,
        "Action": 1,
        "Horror": 1,
        "Spy": 1,
    }
    assert main(["walks", FILMS, "--from", "Leonard Nimoy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == ["from Leonard Nimoy", "", "genres_of_roles = played.characterIn.genre", "  7  Science fiction"]
    assert "  and 3 more" in lines


def test_from_and_sort(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["walks", FILMS, "--from", "七人の侍", "--sort", "^directed"]) == 0
    assert capsys.readouterr().out == "from 七人の侍\n\n^directed\n  1  黒澤明\n"
    assert main(["walks", FILMS, "--from", "七人の侍", "--sort", "directed"]) == 0
    assert capsys.readouterr().out == "from 七人の侍\n\ndirected\n  nothing\n"


def test_very_many_walks(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact below 2^53, then about so many, then beyond all numbers; and a density that is a bound."""
    facts = "".join(f"n{a}\tr\tn{b}\n" for a in range(8) for b in range(8))
    path = write(tmp_path, facts, 'a = "r{16}"\nb = "r{17}"\nc = "r{400}"')
    monkeypatch.setattr(pyg_basisconv.walks.counting, "WORK", 17 * (64 + 8))
    assert main(["walks", path, "--json"]) == 0
    a, b, c = json.loads(capsys.readouterr().out)["sorts"]
    assert (a["instances"], a["instances_exact"]) == (8**17, True)
    assert (b["instances"], b["instances_exact"]) == (8.0**18, False)
    assert (c["instances"], c["instances_exact"], c["samples"]) == (None, False, [])
    assert a["density_exact"] is True
    assert c["density_exact"] is False
    assert c["density"] == 1.0
    assert main(["walks", path]) == 0
    text = capsys.readouterr().out
    assert "  instances  2,251,799,813,685,248\n" in text
    assert "  instances  about 1.801e+16\n" in text
    assert "  instances  more than 1e308\n" in text
    assert "  density    at most 100 % of all pairs\n" in text


def test_a_relation_between_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "a\tr\tb\n", 'twice = "r.r"\nperhaps = "r{0,1}"')
    assert main(["walks", path]) == 0
    text = capsys.readouterr().out
    assert "  instances  0\n" in text
    assert "samples    a - b\n" in text or "samples    a\n" in text or "samples    b\n" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.toml"], "none.toml: expected a file with TOML, got no file of this name"),
        ([FILMS, "--sort", "played..genre"], "sorts: expected a relation, got '.' at column 8 of 'played..genre'"),
        ([FILMS, "--sort", "plaid"], "did you mean 'played'?"),
        ([FILMS, "--sort", "genres_of_role"], "of the sorts in the file, did you mean 'genres_of_roles'"),
        ([FILMS, "--sort", "zzz"], "there are 'played', 'characterIn', "),
        ([FILMS, "--length", "2"], "--length: expected --suggest beside it"),
        ([FILMS, "--most", "3"], "--most: expected --suggest beside it"),
        ([FILMS, "--support", "0"], "--support: expected --suggest beside it"),
        ([FILMS, "--symmetric"], "--symmetric: expected --suggest beside it"),
        ([FILMS, "--suggest", "genre", "--length", "0"], "length: expected an integer from 1 on, got 0"),
        ([FILMS, "--sort", "played.genre"], "a step from Character, got 'genre' from Work"),
        ([FILMS, "--sort", ""], "expected a relation, got the end"),
        ([FILMS, "--from", "Leonrad Nimoy"], "got 'Leonrad Nimoy'; did you mean 'Leonard Nimoy' or"),
    ],
)
def test_mistakes(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert main(["walks", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(PREFIX)
    assert printed.err.count("\n") == 1
    assert words in printed.err


def test_a_sort_is_tried_before_any_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "facts.tsv").write_text("a\tr\tb\nb\tr\tc\n")
    path = tmp_path / "walks.toml"
    path.write_text('[graph]\ntriples = "facts.tsv"\n')
    assert main(["walks", str(path), "--sort", "r.r"]) == 0
    assert "  samples    a - b - c\n" in capsys.readouterr().out
    assert main(["walks", str(path), "--sort", "r.r", "--from", "a", "--to", "c"]) == 0
    assert "  1 walk\n  a - b - c\n" in capsys.readouterr().out
    assert main(["walks", str(path)]) == 2
    assert "[sorts]: expected at least one sort, got none" in capsys.readouterr().err


def test_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["walks"])
    assert caught.value.code == 2
    assert "FILE" in capsys.readouterr().err.upper()


def test_a_terminal_without_the_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", output)
    assert main(["walks", FILMS, "--from", "七人の侍", "--sort", "^directed"]) == 0
    output.flush()
    assert output.buffer.getvalue().startswith(rb"from \u4e03\u4eba")  # type: ignore[attr-defined]


def test_blanks_in_mistakes_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "a b\tr\tc\n", 'a = "r"')
    assert main(["walks", path, "--from", "a  b"]) == 2
    assert "got 'a  b'; did you mean 'a b'?" in capsys.readouterr().err


def test_names_do_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(
        tmp_path, "\x1b[31m\tr\x00\tb\x85\u2028c\n", '"a\\nb" = "<r\\u0000>"\n[types]\n"r\\u0000" = ["A\\nB", "C"]'
    )
    assert main(["walks", path]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert lines[0] == r"2 entities, 1 facts, 1 relations (1 A\nB, 1 C)"
    assert lines[2] == r"a\nb = r\x00"
    assert r"  samples    \x1b[31m - b\x85\u2028c" in lines
    assert main(["walks", path, "--from", "\x1b[31m"]) == 0
    assert capsys.readouterr().out == "from \\x1b[31m\n\na\\nb = r\\x00\n  1  b\\x85\\u2028c\n"


@pytest.mark.slow
def test_no_sort_takes_minutes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What sequences share is counted once: of 2^9 or 3^4 sequences, and of long ones where no walk dies out."""
    facts = "".join(f"n{a}\t{r}\tn{(a * 7 + 1) % 100}\n" for a in range(100) for r in "rs")
    path = write(tmp_path, facts, 'a = "r{2000}"\nb = "(r|s.s){9}"\nc = "((r|^s){0,2}|s){4}"')
    start = time.process_time()
    assert main(["walks", path, "--json"]) == 0
    assert time.process_time() - start < 30
    a, b, c = json.loads(capsys.readouterr().out)["sorts"]
    assert a["instances"] == 100
    assert b["instances"] == 100 * 2**9
    assert c["instances"] == 100 * (1 + 2 + 4 + 1) ** 4


def test_a_bound_of_the_cost(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    exact = found(capsys, "--sort", "(directed|genre.^genre)")["sorts"][0]
    monkeypatch.setattr(pyg_basisconv.walks.counting, "WORK", 31 + 48 + 48 + 3 * 192)
    assert found(capsys, "--sort", "(directed|genre.^genre)")["sorts"][0] == exact
    assert exact["cost_exact"] is True
    monkeypatch.setattr(pyg_basisconv.walks.counting, "WORK", 31 + 48 + 48 + 3 * 192 - 1)
    bound = found(capsys, "--sort", "(directed|genre.^genre)")["sorts"][0]
    assert bound | {name: exact[name] for name in ("density", "density_exact")} == exact | {
        "cost": 31 + 48 + 48,
        "cost_exact": False,
    }
    assert bound["density"] >= exact["density"]
    assert bound["cost"] >= exact["cost"]
    assert main(["walks", FILMS, "--sort", "(directed|genre.^genre)"]) == 0
    assert "  cost       at most 127 multiply-adds per channel\n" in capsys.readouterr().out


def test_the_page_shows_what_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "knowledge-graphs.md").read_text("utf-8")
    command, shown = text.split("    $ python -m pyg_basisconv walks ")[1].split("    ...\n")[0].split("\n", 1)
    monkeypatch.chdir(ROOT)
    assert main(["walks", *shlex.split(command, comments=True)]) == 0
    assert capsys.readouterr().out.startswith(textwrap.dedent(shown))
    assert "  cost " in shown
