"""What mkdocs does beside its own: pages that stand elsewhere in the repository, and formulas without a script.

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


def on_page_content(content: str, **kwargs: Any) -> str:
    """Formulas of docstrings."""
    return INLINE.sub(lambda match: mathml(html.unescape(match[1]), "inline"), content)


def mathml(tex: str, display: str) -> str:
    """A formula as MathML. A prime before an exponent is part of it, as in TeX."""
    return convert(PRIME.sub(r"^{\\prime \1}", " ".join(tex.split())), display=display)
