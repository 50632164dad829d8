"""Two layers against their composition, over families, sizes and widths, where the plan says that it pays."""

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pyg_basisconv import BasisConv, GridConv, bases
from pyg_basisconv.algebra import compare, compose
from pyg_basisconv.bases import Basis

from .compare import assert_close, step
from .machine import machine
from .measure import FULL, QUICK, Effort, interleave, median_ratio
from .table import markdown, milliseconds

WANTED, NEVER = 1.2, 0.95

FAMILIES: dict[str, Callable[[], Basis]] = {
    "GCN": lambda: bases.Adjacency("sym", True),
    "Chebyshev(3)": lambda: bases.Chebyshev(3),
    "Diffusion(2)": lambda: bases.Diffusion(2),
    "SAGE": lambda: bases.Identity() + bases.Adjacency("mean"),
    "Identity": bases.Identity,
    "3x3": lambda: bases.Window(None, (3, 3)),
    "3x3 padded": lambda: bases.Window(None, (3, 3), padding=1),
    "1x1": lambda: bases.Window(None, (1, 1)),
}
ON_GRAPHS = [
    ("GCN", "GCN"),
    ("Chebyshev(3)", "Chebyshev(3)"),
    ("Diffusion(2)", "Diffusion(2)"),
    ("SAGE", "SAGE"),
    ("GCN", "Chebyshev(3)"),
    ("GCN", "Identity"),
    ("Identity", "Chebyshev(3)"),
]
ON_IMAGES = [("3x3", "1x1"), ("1x1", "3x3"), ("3x3", "3x3"), ("3x3 padded", "1x1"), ("3x3 padded", "3x3 padded")]
GRAPHS = ((2_708, 10_556), (20_000, 300_000))
WIDTHS = ((64, 256, 16), (16, 64, 64), (128, 128, 128), (64, 16, 64), (16, 256, 16))
IMAGES = ((16, 32),)  # their number, and the pixels along each side
CHANNELS = ((16, 64, 16), (32, 32, 32), (64, 16, 64), (3, 32, 8))


class Point(NamedTuple):
    """Two families; nodes and edges, or images and their size; widths; and whether parameters are trained."""

    first: str
    second: str
    sizes: tuple[int, int]
    widths: tuple[int, int, int]
    learns: bool

    @property
    def images(self) -> bool:
        return (self.first, self.second) in ON_IMAGES

    def __str__(self) -> str:
        on = f"{self.sizes[0]} images of {self.sizes[1]}" if self.images else f"{self.sizes[0]} nodes"
        widths = " -> ".join(map(str, self.widths))
        return f"{self.first}, {self.second}; {on}; {widths}; {'forward + backward' if self.learns else 'forward'}"


def points() -> Iterator[Point]:
    for pairs, sizes, widths in ((ON_GRAPHS, GRAPHS, WIDTHS), (ON_IMAGES, IMAGES, CHANNELS)):
        for a, b in pairs:
            yield from (Point(a, b, s, w, learns) for s in sizes for w in widths for learns in (False, True))


def run(point: Point, effort: Effort, device: str = "cpu") -> dict[str, Any]:
    """Asserts equality, asks the plan, and times both."""
    torch.manual_seed(0)
    kind = GridConv if point.images else BasisConv
    P, R, Q = point.widths
    first = kind(P, R, FAMILIES[point.first]()).to(device)
    second = kind(R, Q, FAMILIES[point.second]()).to(device)
    call: tuple[Tensor, ...]
    if point.images:
        call = (torch.randn(point.sizes[0], P, point.sizes[1], point.sizes[1], device=device),)
    else:
        N, E = point.sizes
        call = (torch.randn(N, P, device=device), torch.randint(N, (2, E), device=device))
    both, rest = compose(first, second), call[1:]
    for layer in (first, second, both):
        nn.init.normal_(layer.bias)
        layer.requires_grad_(point.learns)
    leaves = [*first.parameters(), *second.parameters()]
    with torch.set_grad_enabled(point.learns):
        found = compare(first, second, *call)
        gradient = torch.randn_like(both(*call))

    def work(layers: Callable[[], Tensor]) -> Callable[[], tuple[Tensor, ...]]:
        def once() -> tuple[Tensor, ...]:
            if point.learns:
                return step(layers, leaves, gradient)
            with torch.no_grad():
                return (layers(),)

        return once

    works = [work(lambda: second(first(*call), *rest)), work(lambda: both(*call))]
    for a, b in zip(*(one() for one in works), strict=True):
        assert_close(a, b, str(point))
    stacked, composed = interleave(works, effort, device)
    return {
        "point": str(point),
        "order": found.composed.order,
        "K": both.basis.K,
        "stacked": statistics.median(stacked),
        "composed": statistics.median(composed),
        "predicted": found.gain,
        "pays": found.pays,
        "gain": median_ratio(stacked, composed),
    }


def table(only: Sequence[str] | None, quick: bool, device: str) -> dict[str, Any]:
    """Measures and prints."""
    about = machine(device)
    print(", ".join(f"{name} {value}" for name, value in about.items()) + "\n")
    wanted = [p for p in points() if not only or any(text.lower() in str(p).lower() for text in only)]
    if quick:
        wanted = [p._replace(sizes=(50, 200) if not p.images else (2, 8)) for p in random.Random(0).sample(wanted, 8)]
    found = []
    for point in wanted:
        print(f"\r\033[K{point}", end="", file=sys.stderr, flush=True)
        found.append(run(point, QUICK if quick else FULL, device))
    print("\r\033[K", end="", file=sys.stderr, flush=True)
    head = ["point", "order", "K", "stacked ms", "composed ms", "predicted", "pays", "measured"]
    print(markdown(head, [cells(r) for r in found], left=2) + "\n")
    print("\n".join(closing := summary(found)))
    return {"machine": about, "quick": quick, "points": found, "summary": closing}


def cells(r: dict[str, Any]) -> list[str]:
    times = milliseconds(r["stacked"]), milliseconds(r["composed"])
    return [
        r["point"],
        r["order"],
        str(r["K"]),
        *times,
        f"{r['predicted']:.2f}",
        "yes" if r["pays"] else "-",
        f"{r['gain']:.2f}",
    ]


def summary(found: Sequence[dict[str, Any]]) -> list[str]:
    """The gains where the plan says that it pays, and elsewhere."""
    chosen = sorted((r for r in found if r["pays"]), key=lambda r: r["gain"])
    left = [r for r in found if not r["pays"]]
    if not chosen:
        return [f"- the plan says of none of {len(found)} points that it pays"]
    gains = [r["gain"] for r in chosen]
    lines = [
        f"- of {len(chosen)} of {len(found)} points the plan says that it pays: {min(gains):.2f} to {max(gains):.2f} "
        f"times as fast, {statistics.median(gains):.2f} in the median (target: >= {WANTED}, never < {NEVER})",
        f"- {sum(g >= WANTED for g in gains)} of them gain {WANTED} or more, {sum(g < NEVER for g in gains)} lose",
    ]
    lines += [f"- {r['gain']:.2f}: {r['point']}" for r in chosen if r["gain"] < WANTED]
    return [*lines, f"- of the other {len(left)}, {sum(r['gain'] >= WANTED for r in left)} would gain {WANTED} or more"]


def main(arguments: Sequence[str] | None = None) -> None:
    p = argparse.ArgumentParser("python -m benchmarks.composed", description=__doc__)
    p.add_argument("--only", action="append", metavar="TEXT", help="points with TEXT in them (may be given again)")
    p.add_argument("--quick", action="store_true", help="small sizes and few rounds, as a smoke test")
    p.add_argument("--json", type=Path, metavar="FILE", help="a file for all measurements")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    args = p.parse_args(arguments)
    found = table(args.only, args.quick, args.device)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
