"""The command `python -m pyg_basisconv walks FILE`."""

import argparse
import json
import sys
from typing import Any

from .config import Knowledge, load_walks
from .grammar import Sort, parse
from .report import followed, report, text_of_followed, text_of_report


def add_walks(commands: Any) -> None:
    """Adds the command to the subparsers of a parser."""
    about = "Reads a configuration of walks, and reports on the walks of each sort in its graph."
    command = commands.add_parser("walks", help="report on sorts of walks in a graph", description=about)
    command.add_argument("file", help="a configuration in TOML; see pyg_basisconv.load_walks")
    command.add_argument(
        "--sort", action="append", metavar="EXPR", help="this sort, not those of the file; may be repeated"
    )
    command.add_argument("--from", dest="start", metavar="ENTITY", help="follow the sorts from this entity")
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
    knowledge = load_walks(options.file)
    sorts = _sorts(knowledge, options.sort)
    if options.start is None:
        found, text = report(knowledge, sorts), text_of_report
    else:
        found, text = followed(knowledge, sorts, knowledge.entity(options.start)), text_of_followed
    return json.dumps(found, ensure_ascii=False, indent=2) if options.json else text(found)


def _sorts(knowledge: Knowledge, written: list[str] | None) -> dict[str, Sort]:
    if written is None:
        return dict(zip(knowledge.basis.names, knowledge.basis.sorts, strict=True))
    parsed = [parse(sort, knowledge.relations) for sort in written]
    return {sort.text: sort for sort in parsed}


def _print(text: str) -> None:
    """Prints a text; characters that the terminal cannot encode are escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))
