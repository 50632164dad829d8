"""The table as GitHub markdown, and whether the targets were met."""

from collections.abc import Sequence

from .rows import Result

HEAD = ["work", "gradients", "PyG, best of its layouts", "PyG ms", "ours ms", "ratio", "target"]
HEAD += ["peak MB, PyG / ours", "largest allocation MB, PyG / ours", "of the ceiling"]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table; all columns but the first ones are aligned to the right."""
    columns = list(zip(head, *rows, strict=True))
    widths = [max(3, *map(len, column)) for column in columns]

    def line(cells: Sequence[str]) -> str:
        pairs = enumerate(zip(cells, widths, strict=True))
        return "| " + " | ".join(c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in pairs) + " |"

    rule = [":" + "-" * (w - 1) if i < left else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return "\n".join([line(head), line(rule), *map(line, rows)])


NOTES = """\
PyG has the best of its layouts, ours an edge_index; x is constant where it has no gradient. Memory is above the inputs.
The ceiling is the time that the operations and bytes of the plan take at the measured rates, over the measured time. A
gathered row counts once per edge, so that a cache may lift it above 100 %.\
"""


def cells(r: Result) -> list[str]:
    """One line."""
    return [
        f"{r.work}, {r.P} -> {r.Q}",
        r.gradients,
        r.layout,
        milliseconds(r.peer_seconds),
        milliseconds(r.ours_seconds),
        f"{r.ratio:.3g}",
        f">= {r.target:g}",
        f"{megabytes(r.peer_memory)} / {megabytes(r.ours_memory)}",
        f"{megabytes(r.peer_largest)} / {megabytes(r.ours_largest)}",
        "-" if r.of_ceiling is None else f"{r.of_ceiling:.0%}",
    ]


def milliseconds(seconds: float) -> str:
    return amount(seconds * 1e3)


def megabytes(size: int | None) -> str:
    return "-" if size is None else amount(size / 1e6)


def amount(x: float) -> str:
    return f"{x:.3g}" if x < 999 else f"{x:,.0f}"


def verdicts(results: Sequence[Result]) -> list[str]:
    """One line for every target of its own, one for all the others together, one for memory."""
    lines = [line(r.met, f"{r.work}: {r.ratio:.3g} times, target >= {r.target:g}") for r in results if r.target > 1]
    rest = [r for r in results if r.target == 1]
    if rest:
        least = min(rest, key=lambda r: r.ratio)
        good = sum(r.met for r in rest)
        text = f"any layer, any size: {good} of {len(rest)} rows >= 1; least: {least.ratio:.3g} times, {least.work}"
        lines.append(line(good == len(rest), text))
    large = [r for r in results if r.graph == "large" and r.ours_largest is not None]
    if large:
        widest = max(large, key=lambda r: r.ours_largest or 0)
        limit, largest = 4 * widest.E * widest.Q, widest.ours_largest or 0
        text = f"no allocation of E x {widest.Q} ({megabytes(limit)} MB): "
        text += f"the largest has {megabytes(largest)} MB, {widest.work}"
        lines.append(line(largest < limit, text))
    return lines


def refusals(results: Sequence[Result]) -> list[str]:
    """The layouts that could not be used with PyG's layers."""
    found = {(r.work.split(",")[0], layout): why for r in results for layout, why in r.skipped.items()}
    return [f"- PyG's {name} does not take {layout}: {why}" for (name, layout), why in found.items()]


def line(met: bool, text: str) -> str:
    return f"- {'met' if met else 'MISSED'}: {text}"
