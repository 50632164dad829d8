"""Two tiers: `make test` leaves out tests marked `slow`, and all but n cases of those marked `sweep(n)`.

`sweep(n, *ids)` keeps the cases of these ids, too: those that are the only ones to reach some line.
"""

import random
from collections.abc import Sequence

import pytest


def leave_few(cases: Sequence[pytest.Item]) -> None:
    """Of a sweep that many are marked `slow`: those are left that show the most words of the ids, which name values."""
    sweep, seen = cases[0].get_closest_marker("sweep"), set()
    if sweep is None:
        return

    def shows_nothing_new(case: pytest.Item) -> bool:
        words = set(enumerate(case.name.partition("[")[2].rstrip("]").split("-")))
        known = words <= seen
        seen.update(words)
        return known

    n, *kept = sweep.args
    ids = {case.name.partition("[")[2][:-1]: case for case in cases}
    if len(cases) > n + len(kept) and not ids.keys() >= set(kept):
        raise pytest.UsageError(f"{cases[0].name} and its like: none is {sorted(set(kept) - ids.keys())}")
    for case in sorted(random.Random(0).sample(cases, len(cases)), key=shows_nothing_new)[n:]:
        if case not in [ids.get(name) for name in kept]:
            case.add_marker("slow")
