"""Attention in one step from content to result, see `ContentStep`: by rows, by a vendor's kernel, or as a mask says.

A step is used for later calls, and asks the basis of each: nothing here holds a family, which holds its content.
"""

from functools import partial
from typing import Any

from torch import Tensor

from ..basis import BoundBasis
from ..bound import ContentStep
from ..content import Content, Inputs
from ..entries import Entries
from ..graph import Graph
from ..theta import Theta
from .replay import Replays
from .weighing import attend_all_pairs, attend_given, attend_in_rows


def is_mask(basis: Any) -> bool:
    """Whether the weights are what the call adds to the scores."""
    dropped = basis.training and basis.dropout
    return basis.mechanism.is_zero and basis.normalize is None and not (basis.weighted or dropped)


def step_of_pairs(mask: Any, entries: Entries, dtype: Any) -> ContentStep:
    """All pairs in one step by the vendor's kernel, for batches of sequences without a mask, or a causal one."""

    def run(basis: Any, content: Content, bias: Tensor | None) -> Tensor | tuple[Tensor, BoundBasis] | None:
        if basis.mask is not mask or (basis.weighted and entries.has_weight):
            return None
        weighing = basis.weighing(content, entries)
        y, weights = attend_all_pairs(weighing, entries, content.inputs, bias, content.observed)
        if y is None or not content.observed:
            return y
        family = basis.family_of(content, weighing, entries, dtype)
        family._pair_weights = weights
        return y, family

    return ContentStep(run)


def step_of_mask(mask: Any, order: str) -> ContentStep:
    """The step of matrices that the call gives as its mask."""

    def replay(basis: Any, theta: Theta, x: Tensor, bias: Tensor | None, call: Any) -> Tensor | None:
        if basis.mask is not mask or not is_mask(basis):
            return None
        return attend_given(call.mask, Inputs(x, theta), bias, order)

    return ContentStep(replay=replay)


def step_by_rows(mask: Any, entries: Entries, replays: Replays) -> ContentStep:
    """The step of any content on the entries of a mask; the replays are shared by all graphs."""

    def run(basis: Any, content: Content, bias: Tensor | None) -> Tensor | tuple[Tensor, BoundBasis] | None:
        if basis.mask is not mask:
            return None
        weighing, observed = basis.weighing(content, entries), content.observed
        if observed:
            if weighing.dropout is not None:
                return None
            weighing = weighing._replace(score=weighing.score.snapshot())
        y, weights = attend_in_rows(weighing, entries, content.inputs, bias, content, observed)
        if not observed:
            replays.record(basis, content, weighing, entries)
            return y
        family = basis.family_of(content, weighing, entries, content.x.dtype)
        family._weights = weights
        return y, family

    return ContentStep(run, partial(replays, entries), partial(_step_on, mask, replays))


def _step_on(mask: Any, replays: Replays, basis: Any, graph: Graph) -> ContentStep | None:
    """The same on another graph; None if the mask is another, or the graph too large to be evaluated in one piece."""
    if basis.mask is not mask:
        return None
    entries = basis.entries_on(graph)
    if not graph.N or not basis.in_one_piece(entries):
        return None
    if replays.read_edges:
        basis.number_edges(entries, graph)
    step = step_by_rows(mask, entries, replays)
    evaluate: Any = step.run

    def run(basis: Any, content: Content, bias: Tensor | None) -> Any:
        basis.check(content, entries, graph)
        return evaluate(basis, content, bias)

    return step._replace(run=run)
