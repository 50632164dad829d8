"""What mkdocs does beside its own: pages that stand elsewhere in the repository, formulas without a script, and links
from names to the reference.

Formulas become MathML, which browsers show by themselves, so that the site needs no other host.
"""

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
ELSEWHERE = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "results.md": "benchmarks/RESULTS.md",
}
PAGES = {source: name for name, source in ELSEWHERE.items()}
DISPLAY, INLINE = re.compile(r"\$\$(.+?)\$\$", re.DOTALL), re.compile(r":math:<code>(.+?)</code>", re.DOTALL)
PRIME = re.compile(r"'\^(\\\w+|\w|\{[^}]*\})")
REFERENCE = {  # the page of each name
    name: path.name
    for path in sorted((ROOT / "docs" / "reference").glob("*.md"))
    for name in re.findall(r"^::: (\S+)$", path.read_text("utf-8"), re.MULTILINE)
}
# Code in a line, unless it is a link or within a block, which begins with a name.
CODE = re.compile(r"(<pre\b.*?</pre>|<a\b.*?</a>)|<code>((?:\w+\.)*\w+)([^<]*)</code>", re.DOTALL)
LINK = re.compile(r'(\]\(|\b(?:src|srcset)=")(?!https?:|#)([^)#"\s]+)')


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that stand elsewhere."""
    for name, source in ELSEWHERE.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links lead to pages of the site; to a file that has none, its name is left without a link."""
    source = ROOT / ELSEWHERE.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def link(match: re.Match[str]) -> str:
        target = (source.parent / match[2]).resolve().relative_to(ROOT).as_posix()
        name = PAGES.get(target, target.removeprefix("docs/") if target.startswith("docs/") else None)
        if name is None or files.get_file_from_path(name) is None:
            return match[0] if target.startswith("docs/") else f"{match[1]}#"
        return match[1] + "../" * page.file.src_uri.count("/") + name

    return DISPLAY.sub(lambda match: mathml(match[1], "block"), LINK.sub(link, markdown)).replace(
        "```python continued", "```python"
    )


def on_page_content(content: str, page: Any, **kwargs: Any) -> str:
    """Formulas of docstrings; and names that the reference has lead there, once in each section."""
    content = INLINE.sub(lambda match: mathml(html.unescape(match[1]), "inline"), content)
    if page.file.src_uri.startswith("reference/"):
        return content
    up = "../" * page.file.src_uri.count("/")
    return "".join(with_links(section, up) for section in re.split(r"(?=<h2\b)", content))


def with_links(section: str, up: str) -> str:
    """A part of a page, whose first mention of each name of the reference is a link. up: the path to the site."""
    met = set()

    def link(match: re.Match[str]) -> str:
        name = match[2] and full_name(match[2])
        if not name or name in met:
            return match[0]
        met.add(name)
        address = f"{up}reference/{REFERENCE[name].removesuffix('.md')}.html#{name}"
        return f'<a href="{address}">{match[0]}</a>'

    return CODE.sub(link, section)


def full_name(written: str) -> str | None:
    """The one name of the reference that ends so, such as `bases.Walks`.

    `nn` is torch's, where nothing is before it. A word that could be an argument or a method (`heads`, `read`) is none,
    unless it is a function that one imports from `pyg_basisconv`.
    """
    if written.startswith("nn.") or (re.fullmatch("[a-z]+", written) and f"pyg_basisconv.{written}" not in REFERENCE):
        return None
    found = [name for name in REFERENCE if f".{name}".endswith(f".{written}")]
    return found[0] if len(found) == 1 else None


def mathml(tex: str, display: str) -> str:
    """A formula as MathML. A prime before an exponent is part of it, as in TeX."""
    return convert(PRIME.sub(r"^{\\prime \1}", " ".join(tex.split())), display=display)
