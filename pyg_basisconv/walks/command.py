"""The command `python -m pyg_basisconv walks FILE`."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ..errors import reject
from . import report as reports
from .config import Knowledge, graph_of, load_walks
from .document import Document
from .grammar import Sort, parse
from .vocabulary import NamedGraph
from .wording import suggestion

_SUGGESTING = ("without", "length", "most", "support", "symmetric")  # options beside --suggest


def add_walks(commands: Any) -> None:
    """Adds the command to the subparsers of a parser."""
    about = "Reads a configuration of walks, and reports on the walks of each sort in its graph."
    command = commands.add_parser("walks", help="report on sorts of walks in a graph", description=about)
    command.add_argument("file", help="a configuration in TOML; see pyg_basisconv.load_walks")
    about = "this sort, or the sort of this name in the file, and no others; may be repeated"
    command.add_argument("--sort", action="append", metavar="EXPR", help=about)
    command.add_argument("--from", dest="start", metavar="ENTITY", help="follow the sorts from this entity")
    command.add_argument("--to", dest="end", metavar="ENTITY", help="with --from: show the walks that end here")
    about = "suggest sorts that tell the tails of this relation, the heads of ^RELATION, or the labels in this file, "
    about += "whose lines are entity<tab>label; its path starts at the current folder"
    command.add_argument("--suggest", metavar="TARGET", help=about)
    about = "with --suggest: a relation that the sorts must not use; may be repeated"
    command.add_argument("--without", action="append", metavar="RELATION", help=about)
    about = "with --suggest: the most steps of a sort, 3 by default"
    command.add_argument("--length", type=int, metavar="STEPS", help=about)
    command.add_argument("--most", type=int, metavar="SORTS", help="with --suggest: the most sorts, 10 by default")
    about = "with --suggest: the least share of the entities in question from which a sort has walks, 0.01 by default"
    command.add_argument("--support", type=float, metavar="SHARE", help=about)
    about = "with --suggest: sorts that go somewhere and the same way back"
    command.add_argument("--symmetric", action="store_true", default=None, help=about)
    command.add_argument("--json", action="store_true", help="print JSON")


def walks_command(options: argparse.Namespace) -> int:
    """Prints the report; a mistake is one line on stderr, and exit code 2."""
    try:
        _print(_answer(options))
    except ValueError as error:
        print("python -m pyg_basisconv walks: error:", " ".join(str(error).splitlines()), file=sys.stderr)
        return 2
    return 0


def _answer(options: argparse.Namespace) -> str:
    given = {name: value for name in _SUGGESTING if (value := getattr(options, name)) is not None}
    if options.suggest is not None:
        if options.sort or options.start is not None or options.end is not None:
            reject("--suggest", "no --sort, --from or --to beside it", "one", "ask one thing at a time")
        without = given.pop("without", [])
        proposal = reports.suggested(graph_of(Document(Path(options.file))), options.suggest, without, **given)
        return _json(proposal) if options.json else reports.text_of_suggested(proposal)
    for name in given:
        reject(f"--{name}", "--suggest beside it", "it alone", "leave it out")
    document = Document(Path(options.file))
    graph = graph_of(document) if options.sort and not document.table("sorts") else load_walks(options.file)
    sorts = _sorts(graph, options.sort)
    if options.start is None:
        if options.end is not None:
            fix = "name the entity where the walks begin, or take it for --from and the inverse of the sort"
            reject("--to", "--from beside it", "it alone", fix)
        found, text = reports.report(graph, sorts), reports.text_of_report
    elif options.end is None:
        found, text = reports.followed(graph, sorts, graph.entity(options.start)), reports.text_of_followed
    else:
        ends = graph.entity(options.start), graph.entity(options.end)
        found, text = reports.joined(graph, sorts, *ends), reports.text_of_joined
    return _json(found) if options.json else text(found)


def _json(found: Any) -> str:
    return json.dumps(found, ensure_ascii=False, indent=2)


def _sorts(graph: NamedGraph, written: list[str] | None) -> dict[str, Sort]:
    """Those that are asked for, by their names in the file or as written; all of the file without them."""
    named = dict(zip(graph.basis.names, graph.basis.sorts, strict=True)) if isinstance(graph, Knowledge) else {}
    if written is None:
        return named
    found = {}
    for text in written:
        try:
            sort = named[text] if text in named else parse(text, graph.relations)
        except ValueError as error:
            meant = suggestion(text, named, "")
            raise ValueError(f"{error}; of the sorts in the file, {meant}" if meant else str(error)) from None
        found[text if text in named else sort.text] = sort
    return found


def _print(text: str) -> None:
    """Prints a text; characters that the terminal cannot encode are escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))
