"""The table as GitHub markdown."""

from collections.abc import Sequence

from .result import Result

HEAD = ["work", "gradients", "peer, its best way", "peer ms", "ours ms", "ratio", "target"]
HEAD += ["peak MB, peer / ours", "largest allocation MB, peer / ours", "of the ceiling"]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table; all columns after the first `left` ones are aligned to the right."""
    columns = list(zip(head, *rows, strict=True))
    widths = [max(3, *map(len, column)) for column in columns]

    def line(cells: Sequence[str]) -> str:
        pairs = enumerate(zip(cells, widths, strict=True))
        return "| " + " | ".join(c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in pairs) + " |"

    rule = [":" + "-" * (w - 1) if i < left else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return "\n".join([line(head), line(rule), *map(line, rows)])


NOTES = """\
PyG has the best of its layouts, ours an edge_index, or on grids nothing; for small calls PyG has what is said. x is
constant where it has no gradient; where x is sparse, PyG has it sparse too if it takes it and is faster so.
"forward" is without gradients. Memory is above the inputs; in a process of its own it is that of the process. The
ceiling is the time that the operations and bytes of the plan take at the measured rates, over the measured time. A
gathered row counts once per edge, so that a cache may lift it above 100 %.\
"""


def cells(r: Result) -> list[str]:
    """One line."""
    return [
        f"{r.work}, {r.P} -> {r.Q}" if r.P else r.work,
        r.gradients,
        r.way or "-",
        milliseconds(r.peer_seconds),
        milliseconds(r.ours_seconds),
        "-" if r.ratio is None else f"{r.ratio:.3g}",
        str(r.target),
        f"{megabytes(r.peer_memory)} / {megabytes(r.ours_memory if r.resident is None else r.resident)}",
        f"{megabytes(r.peer_largest)} / {megabytes(r.ours_largest)}",
        "-" if r.of_ceiling is None else f"{r.of_ceiling:.0%}",
    ]


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else amount(seconds * 1e3)


def megabytes(size: int | None) -> str:
    return "-" if size is None else amount(size / 1e6)


def amount(x: float) -> str:
    return f"{x:.3g}" if x < 999 else f"{x:,.0f}"
