"""What verification compares with: each layer's options, cases, their sizes and values are those of `compared.txt`.

A case that is lost, or an option that is given no more, would fail no comparison. Where they are to change, or torch
draws other numbers:

    python -m tests.verify.test_compared > tests/verify/compared.txt
"""

from pathlib import Path

import pytest
import torch

from pyg_basisconv.verify import cases, forget
from tests.convert.conversion import OPTIONS

FILE = Path(__file__).with_name("compared.txt")
FORMAT = "{:<22} {:>7} {:>5} {:>8} {:>8}  {:.10e}"


def compared(kind: str) -> str:
    """How many options, cases, and numbers in inputs and in outputs, and the sum of the outputs' mean sizes."""
    count = inputs = outputs = 0
    size = 0.0
    torch.manual_seed(0)
    for options in OPTIONS[kind]:
        for case in cases(kind, options):
            forget(case.reference)
            with torch.no_grad():
                y = case.call(case.reference, *case.leaves)
            count += 1
            inputs += sum(leaf.numel() for leaf in case.leaves)
            outputs += y.numel()
            size += float(y.double().abs().mean()) if y.numel() else 0.0
    return FORMAT.format(kind, len(OPTIONS[kind]), count, inputs, outputs, size)


@pytest.mark.parametrize("kind", OPTIONS)
def test_layers_are_compared_in_the_cases_of_the_table(kind: str) -> None:
    (line,) = [line for line in FILE.read_text().splitlines() if line.split()[0] == kind]
    *counts, size = compared(kind).split()
    *expected, mean = line.split()
    assert counts == expected
    assert float(size) == pytest.approx(float(mean), rel=1e-8)


if __name__ == "__main__":
    print(*map(compared, OPTIONS), sep="\n")
