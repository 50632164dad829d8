"""The command line: prints the table, and whether the targets were met."""

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from . import orders
from .data import Missing
from .machine import machine
from .result import Bench, Result
from .rows import rows
from .table import HEAD, NOTES, cells, markdown
from .verdicts import refusals, verdicts


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    p.add_argument("--only", action="append", metavar="TEXT", help="rows with TEXT in them (may be given again)")
    p.add_argument("--quick", action="store_true", help="small sizes and few rounds, to see that it runs")
    p.add_argument("--orders", action="store_true", help="the orders of the planner instead, see benchmarks.orders")
    p.add_argument("--json", type=Path, metavar="FILE", help="where to write everything that was measured")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--threads", type=int, help="of torch on the CPU")
    return p


def table(only: Sequence[str] | None, quick: bool, device: str) -> dict[str, Any]:
    """Measures and prints."""
    bench, about = Bench(quick, device), machine(device)
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    limits = bench.ceilings
    print(f"ceilings: {limits.bandwidth / 1e9:.3g} GB/s copied, {limits.arithmetic / 1e9:.3g} Gop/s in a product")

    results: list[Result] = []
    missing: list[str] = []
    for row in rows():
        wanted = not only or any(text.lower() in row.name.lower() for text in only)
        if wanted and device in row.devices:
            print(f"\r\033[K{row.name}", end="", file=sys.stderr, flush=True)
            try:
                results.append(row.run(bench))
            except Missing as error:
                missing.append(f"- skipped: {row.name}: {error}")
    print("\r\033[K", end="", file=sys.stderr, flush=True)
    for one in bench.graphs.values():
        print(one)
    print("\n" + markdown(HEAD, [cells(r) for r in results], left=3) + "\n")
    closing = ["- targets are not judged with --quick"] if quick else verdicts(results)
    print("\n".join([NOTES, "", *missing, *refusals(results), *closing]))
    return {
        "machine": about,
        "ceilings": limits._asdict(),
        "quick": quick,
        "graphs": [str(one) for one in bench.graphs.values()],
        "rows": [asdict(r) | {"met": r.met} for r in results],
        "skipped": missing,
        "targets": closing,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    args = parser().parse_args(arguments)
    if args.threads:
        torch.set_num_threads(args.threads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the peers' layouts are in beta
        found = (
            orders.table(args.only, args.quick, args.device)
            if args.orders
            else table(args.only, args.quick, args.device)
        )
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
