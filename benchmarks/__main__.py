"""The command line: measures rows, and prints the table and whether the targets were met."""

import argparse
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from . import gpu, orders
from .report import measured
from .table import NOTES


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    p.add_argument("--only", action="append", metavar="TEXT", help="rows with TEXT in them (may be given again)")
    p.add_argument("--quick", action="store_true", help="small sizes and few rounds, as a smoke test")
    p.add_argument("--orders", action="store_true", help="the orders of the planner instead, see benchmarks.orders")
    p.add_argument("--json", type=Path, metavar="FILE", help="a file for all measurements")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--gpu", type=Path, metavar="FOLDER", help="all that a GPU runs, in parts, see benchmarks.gpu")
    p.add_argument("--threads", type=int, help="of torch on the CPU")
    return p


def table(only: Sequence[str] | None, quick: bool, device: str) -> dict[str, Any]:
    """Measures and prints."""
    report = measured(only, quick, device)
    print("\n".join([report.head, *report.graphs]))
    print(f"\n{report.table}\n")
    print(f"{NOTES}\n\n{report.closing}")
    return report.all


def main(arguments: Sequence[str] | None = None) -> None:
    args = parser().parse_args(arguments)
    if args.threads:
        torch.set_num_threads(args.threads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about sparse layouts, which are in beta
        if args.gpu:
            return gpu.run(args.gpu, args.only, args.quick)
        found = (
            orders.table(args.only, args.quick, args.device)
            if args.orders
            else table(args.only, args.quick, args.device)
        )
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
