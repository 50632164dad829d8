"""Two tiers: `make test` leaves out tests marked `slow`, and all but n cases of those marked `sweep(n)`."""

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

    for case in sorted(random.Random(0).sample(cases, len(cases)), key=shows_nothing_new)[sweep.args[0] :]:
        case.add_marker("slow")
