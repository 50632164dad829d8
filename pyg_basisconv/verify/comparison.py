"""A system against its reference: the output, and the gradients of all inputs and parameters."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

TOLERANCE = 1e-10


class Case(NamedTuple):
    """Two functions that should be equal.

    ours, reference: the functions; where they are modules, gradients of parameters are compared, too.
    leaves: the inputs, by which both are differentiated.
    call: calls a function with the leaves.
    """

    ours: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    leaves: Sequence[Tensor]
    call: Callable[..., Tensor] = lambda function, *leaves: function(*leaves)


class System(NamedTuple):
    """A row of the table: what is reproduced, its reference, and the cases to compare."""

    name: str
    reference: str
    cases: Callable[[], Iterator[Case]]


class Result(NamedTuple):
    """The largest relative errors of a system over its cases."""

    cases: int
    forward: float
    gradients: float

    @property
    def ok(self) -> bool:
        return self.cases > 0 and max(self.forward, self.gradients) <= TOLERANCE


def verify(row: System) -> Result:
    """The largest relative errors of a system; the random numbers are always the same.

    >>> from pyg_basisconv.verify import SYSTEMS
    >>> verify(SYSTEMS['GCN']).ok
    True
    """
    forward = gradients = 0.0
    count = 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for case in row.cases():
            ours, theirs = compare(case)
            forward = max(forward, relative_error(ours[0], theirs[0]))
            gradients = max(gradients, *map(relative_error, ours[1:], theirs[1:]))
            count += 1
    return Result(count, forward, gradients)


def compare(case: Case, *others: Callable[..., Tensor]) -> list[list[Tensor]]:
    """The output and every gradient: of ours, of the reference, and of others, which are called in the same way."""
    probe: Tensor | None = None
    outcomes = []
    for function in (case.reference, case.ours, *others):
        leaves = [leaf.detach().clone().requires_grad_() for leaf in case.leaves]
        parameters = list(function.parameters()) if isinstance(function, nn.Module) else []
        y = case.call(function, *leaves)
        probe = torch.randn_like(y) if probe is None else probe
        inputs = [*leaves, *parameters]
        grads = torch.autograd.grad((y * probe).sum(), inputs, allow_unused=True, materialize_grads=True)
        values, of_values = _by_value(parameters, grads[len(leaves) :])
        outcomes.append((values, [y.detach(), *grads[: len(leaves)], of_values]))
    (wanted, theirs), (_, ours), *rest = outcomes
    for values, _ in outcomes:
        if not torch.equal(values, wanted):
            count = f"{values.numel()} and {wanted.numel()} numbers"
            raise LookupError(f"the parameters of the two, {count}, differ: some have no counterpart")
    return [ours, theirs, *(found for _, found in rest)]


def relative_error(value: Tensor, reference: Tensor) -> float:
    """The largest difference, relative to the largest entry of the reference; infinite if an entry is not finite.

    >>> relative_error(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]))
    0.25
    """
    if value.shape != reference.shape or not bool(torch.isfinite(value).all()):
        return float("inf")
    if not reference.numel():
        return 0.0
    scale = float(reference.abs().max())
    return float((value - reference).abs().max()) / (scale or 1.0)


def _by_value(parameters: Sequence[Tensor], grads: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """All numbers in some parameters, in ascending order, and their gradients.

    Two layers may store the same random numbers in different layouts; sorting pairs them by value.
    """
    none = torch.zeros(0, dtype=torch.float64)
    values, found = (torch.cat([none, *(t.detach().flatten() for t in some)]) for some in (parameters, grads))
    order = found.argsort()  # orders equal numbers, such as the zeros of a fresh bias, by their gradients
    order = order[values[order].argsort(stable=True)]
    return values[order], found[order]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns of text; a line separates the first row."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])
