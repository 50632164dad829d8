"""Sorts of walks, and files that say them, with a character or a line out of place."""

from pathlib import Path

from hypothesis import strategies as st

from tests.walks.test_properties import sorts

SYMBOLS = ".|^(){}<>,0123456789ab *?!\"'\\\t\n-"


def disturbed(draw: st.DrawFn, text: str, symbols: str) -> str:
    """The text with some characters left out, put in, or doubled."""
    for _ in range(draw(st.integers(0, 3))):
        i = draw(st.integers(0, len(text)))
        text = draw(
            st.sampled_from(
                [
                    text[:i] + text[i + 1 :],
                    text[:i] + draw(st.sampled_from(symbols)) + text[i:],
                    text[:i] + text[i : i + 4] + text[i:],
                ]
            )
        )
    return text


@st.composite
def texts(draw: st.DrawFn) -> str:
    """How sorts are nearly written."""
    return disturbed(draw, draw(sorts)[0], SYMBOLS)


FACTS = [("a", "r", "b"), ("b", "s", "c"), ("a", "s", "c"), ("c", "r", "a"), ("b", "r", "b")]
LINES = {
    "graph": ["[graph]", 'triples = "facts.tsv"'],
    "relations": ["[relations]", 'short = "r"'],
    "types": ["[types]", 'r = ["A", "A"]', 's = ["A", "A"]'],
    "sorts": ["[sorts]", 'one = "r.s"', 'two = ["r", "^s"]', 'three = "(r|^s){1,2}"'],
    "walks": ["[walks]", 'norm = "row"', 'per = "walk"', "binary = false", "memory_limit = 1_000_000"],
}
WORDS = ['""', "3", "[]", "{}", "true", '"r.q"', '"nobody.tsv"', '"../x"', "nan", '"\\u0000"', '["r", 3]', "1979-05-27"]


@st.composite
def files(draw: st.DrawFn) -> tuple[str, str, bool]:
    """A configuration, a table, and whether neither was changed."""
    lines = [line for section in LINES.values() for line in section]
    rows = ["\t".join(fact) for fact in FACTS]
    plain = draw(st.booleans())
    if not plain:
        for _ in range(draw(st.integers(1, 2))):
            i = draw(st.integers(0, len(lines) - 1))
            what = draw(st.sampled_from(["gone", "twice", "value", "name", "characters", "table"]))
            if what == "gone":
                lines = lines[:i] + lines[i + 1 :] or [""]
            elif what == "twice":
                lines.insert(i, lines[i])
            elif what == "value" and "=" in lines[i]:
                lines[i] = lines[i].split("=")[0] + "= " + draw(st.sampled_from(WORDS))
            elif what == "name" and "=" in lines[i]:
                lines[i] = draw(st.sampled_from(["x", "norm", "triples", '"r.s"', "r"])) + " =" + lines[i].split("=")[1]
            elif what == "characters":
                lines[i] = disturbed(draw, lines[i], SYMBOLS + "[]=#")
            else:
                j = draw(st.integers(0, len(rows) - 1))
                rows[j] = draw(
                    st.sampled_from([rows[j] + "\tx", rows[j].replace("\t", " "), "", "\t\t", "\x00\t\x00\t\x00"])
                )
    return "\n".join(lines) + "\n", "\n".join(rows) + "\n", plain


def write(folder: Path, toml: str, table: str) -> Path:
    (folder / "facts.tsv").write_text(table, encoding="utf-8")
    path = folder / "walks.toml"
    path.write_text(toml, encoding="utf-8")
    return path
