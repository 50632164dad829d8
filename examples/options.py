"""Options that the scripts share."""

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch


def parser(name: str, about: str | None, epilog: str | None = None) -> argparse.ArgumentParser:
    """The parser of examples/NAME.py, described by the first line of its docstring."""
    return argparse.ArgumentParser(
        prog=f"python -m examples.{name}",
        description=(about or "").splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        epilog=epilog,
    )


def add_root(parser: argparse.ArgumentParser, dataset: str, downloads: bool = True) -> None:
    """Adds --root, the folder of the data, to which they may be downloaded."""
    lies = f"where {dataset}/raw lies" + (", or is downloaded to" if downloads else "")
    parser.add_argument(
        "--root",
        type=Path,
        default=Path(os.environ.get("BASISCONV_DATA") or "datasets"),
        help=f"{lies}; the environment variable BASISCONV_DATA sets it, too",
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    """Adds --device, see `check_device`."""
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default, help="where to train")


def check_device(parser: argparse.ArgumentParser, device: str) -> None:
    """Ends the script if there is no such device."""
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter where torch is built without CUDA
        parser.error(f"--device {device}: {str(error).splitlines()[0]}")


def add_machine(parser: argparse.ArgumentParser, threads: str = "of torch", quick: str | None = None) -> None:
    """Adds --device and --threads, and --quick where it is described, for `parsed`."""
    add_device(parser)
    if quick is not None:
        parser.add_argument("--quick", action="store_true", help=f"{quick}, as a smoke test")
    parser.add_argument("--threads", type=at_least(1, int), default=1, help=threads)


def parsed(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of a script, whose --device is checked and whose --threads are set."""
    options = parser.parse_args(arguments)
    check_device(parser, options.device)
    torch.set_num_threads(options.threads)
    return options


def at_least(least: float, kind: type[int] | type[float]) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = kind(text)
        if not value >= least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, not {text}")
        return value

    return number
