"""The pages of Start are notebooks, too: each is run while the site is built, shows what it printed, and is offered.

A page has one home, its Markdown. What fails in its notebook is an error of the build.
"""

import os
import re
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.structure.files import File, Files
from nbclient import NotebookClient
from nbformat import NotebookNode, v4
from traitlets.config import Config

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```python(?: continued)?\n(.*?)^```\n?", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^]]+)\]\((?!https?:)[^)]+\)")  # to pages of the site, which a notebook leaves
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
IPC = Config(KernelManager={"transport": "ipc"})  # no port is opened
ENVIRONMENT = os.environ | {"PYTHONWARNINGS": "ignore:IProgress not found"}  # bars that move, of which there are none


def on_files(files: Files, config: Any) -> Files:
    """Adds the notebooks, executed."""
    for page in [file for file in files if file.src_uri.startswith("start/")]:
        notebook = of_page(page.content_string)
        client = NotebookClient(notebook, config=IPC, record_timing=False, resources={"metadata": {"path": str(ROOT)}})
        client.execute(env=ENVIRONMENT)
        files.append(File.generated(config, name(page.src_uri), content=nbformat.writes(notebook)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links a page to its notebook, and shows under each block what it printed there."""
    file = files.get_file_from_path(name(page.file.src_uri))
    if file is None:
        return markdown
    cells = iter(cell for cell in nbformat.reads(file.content_string, 4).cells if cell.cell_type == "code")
    title, text = markdown.split("\n", 1)
    text = BLOCK.sub(lambda block: block[0] + printed(next(cells)), text)
    link = f"[This page as a notebook]({Path(file.src_uri).name})"
    return f"{title}\n\n{link}; run it in a clone, where `datasets/` is.\n{text}"


def name(page: str) -> str:
    """The notebook of a page."""
    return page.removesuffix(".md") + ".ipynb"


def of_page(markdown: str) -> NotebookNode:
    """A cell for each block of Python, and for each text between two."""
    parts = [part.strip() for part in BLOCK.split(LINK.sub(r"\1", markdown))]  # text and code in turn
    cells = [(v4.new_code_cell if i % 2 else v4.new_markdown_cell)(part) for i, part in enumerate(parts) if part]
    return v4.new_notebook(cells=cells, metadata=KERNEL)


def printed(cell: NotebookNode) -> str:
    """What a cell printed, as a block."""
    text = "".join(output.text for output in cell.outputs if output.get("name") == "stdout")
    return f"\n```text\n{text}```\n" if text else ""
