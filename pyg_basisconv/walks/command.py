"""The command `python -m pyg_basisconv walks FILE`."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ..errors import reject
from .config import Knowledge, graph_of, load_walks
from .document import Document
from .grammar import Sort, parse
from .report import followed, joined, report, text_of_followed, text_of_joined, text_of_report
from .suggestions import suggested, text_of_suggested


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
    about += "whose lines are entity<tab>label"
    command.add_argument("--suggest", metavar="TARGET", help=about)
    about = "with --suggest: a relation that the sorts must not use; may be repeated"
    command.add_argument("--without", action="append", default=[], metavar="RELATION", help=about)
    about = "with --suggest: the most steps of a sort, 3 by default"
    command.add_argument("--length", type=int, default=3, metavar="STEPS", help=about)
    command.add_argument("--most", type=int, default=10, metavar="SORTS", help="with --suggest: the most sorts")
    about = "with --suggest: the least share of the entities in question from which a sort has walks, 0.01 by default"
    command.add_argument("--support", type=float, default=0.01, metavar="SHARE", help=about)
    about = "with --suggest: sorts that go somewhere and the same way back"
    command.add_argument("--symmetric", action="store_true", help=about)
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
    if options.suggest is not None:
        if options.sort or options.start is not None or options.end is not None:
            reject("--suggest", "no --sort, --from or --to beside it", "one", "ask one thing at a time")
        settings = {name: getattr(options, name) for name in ("length", "most", "support", "symmetric")}
        graph = graph_of(Document(Path(options.file)))
        proposal = suggested(graph, options.suggest, options.without, **settings)
        return _json(proposal) if options.json else text_of_suggested(proposal)
    if options.without:
        reject("--without", "--suggest beside it", "it alone", "leave it out")
    knowledge = load_walks(options.file)
    sorts = _sorts(knowledge, options.sort)
    if options.start is None:
        if options.end is not None:
            reject("--to", "--from beside it", "it alone", "say where the walks begin, or follow the inverse")
        found, text = report(knowledge, sorts), text_of_report
    elif options.end is None:
        found, text = followed(knowledge, sorts, knowledge.entity(options.start)), text_of_followed
    else:
        ends = knowledge.entity(options.start), knowledge.entity(options.end)
        found, text = joined(knowledge, sorts, *ends), text_of_joined
    return _json(found) if options.json else text(found)


def _json(found: Any) -> str:
    return json.dumps(found, ensure_ascii=False, indent=2)


def _sorts(knowledge: Knowledge, written: list[str] | None) -> dict[str, Sort]:
    named = dict(zip(knowledge.basis.names, knowledge.basis.sorts, strict=True))
    if written is None:
        return named
    found = {}
    for text in written:
        sort = named[text] if text in named else parse(text, knowledge.relations)
        found[text if text in named else sort.text] = sort
    return found


def _print(text: str) -> None:
    """Prints a text; characters that the terminal cannot encode are escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))
