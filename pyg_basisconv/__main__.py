"""The command line: `python -m pyg_basisconv verify`, `recipes`, and `walks FILE`."""

import argparse
import os
import sys
from collections.abc import Sequence

from .convert import refused
from .convert.spellings import as_text
from .planning import add_plan, plan_command
from .verify import SYSTEMS, table, verify
from .walks.command import add_walks, walks_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command, and returns the exit code.

    >>> main(['verify', '--only', 'APPNP', '--list'])
    system  reference
    -------------------------------
    APPNP   torch_geometric.nn.APPNP
    0
    """
    parser = argparse.ArgumentParser(prog="python -m pyg_basisconv")
    commands = parser.add_subparsers(dest="command", required=True)
    about = "Compares every layer that has a recipe with PyG's or torch's own in float64; exits with 1 where one fails."
    command = commands.add_parser("verify", help="compare with the references", description=about)
    command.add_argument("--list", action="store_true", help="list the systems without comparing")
    command.add_argument("--only", action="append", metavar="NAME", help="this system, or layer; may be repeated")
    about = "Lists PyG's and torch's layers with the basis and theta of each, as in docs/RECIPES.md."
    commands.add_parser("recipes", help="list layers with their basis and theta", description=about)
    add_plan(commands)
    add_walks(commands)
    options = parser.parse_args(arguments)
    if options.command == "recipes":
        print(as_text(), refused.as_text(), sep="\n\n")
        return 0
    if options.command == "plan":
        return plan_command(options)
    if options.command == "walks":
        return walks_command(options)
    wanted = {name: _systems(name) for name in options.only or ()}
    for name, found in wanted.items():
        if not found:
            command.error(f"no system or layer is called {name!r}; there are {', '.join(map(repr, SYSTEMS))}")
    return verify_command([one for found in wanted.values() for one in found] or list(SYSTEMS), options.list)


def _systems(name: str) -> list[str]:
    """The system of a name, or those whose reference is the layer of this name."""
    layers = {s.name: s.reference.rpartition(".")[2].split(", ") for s in SYSTEMS.values()}
    return [name] if name in SYSTEMS else [system for system, of in layers.items() if name in of]


def verify_command(names: Sequence[str], only_list: bool) -> int:
    """Compares the systems of these names, and prints the table."""
    systems = [SYSTEMS[name] for name in names]
    if only_list:
        print(table([("system", "reference"), *((s.name, s.reference) for s in systems)]))
        return 0
    rows = [("system", "reference", "cases", "forward", "gradients", "verdict")]
    failed = False
    for s in systems:
        try:
            r = verify(s)
        except Exception as error:  # an error in one row must not hide the others
            rows.append((s.name, s.reference, "", "", "", f"FAILS: {type(error).__name__}: {error}"))
            failed = True
        else:
            verdict = "ok" if r.ok else "FAILS"
            rows.append((s.name, s.reference, str(r.cases), f"{r.forward:.1e}", f"{r.gradients:.1e}", verdict))
            failed = failed or not r.ok
    print(table(rows))
    return int(failed)


def quietly() -> int:
    """`main`, for output of which somebody reads only the beginning, as `| head` does."""
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes what is left when it ends
        return 1
    return code


if __name__ == "__main__":
    raise SystemExit(quietly())
