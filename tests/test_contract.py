"""The contract over the registry."""

import pytest
from cases import BIPARTITE, CASES, SQUARE
from contract import CHECKS

# The algebra is tested on every graph; what follows from it, or is the kernels' alone, on one of each kind.
ALGEBRA = ("members", "written_out", "adjoint", "orders", "gradients")
DIFFICULT = tuple({*SQUARE, *BIPARTITE} - {"random"})
PLAIN = [name for name in CASES if not name.endswith(DIFFICULT)]
SPARSE = ["Edges(1)-random", "Edges(1)-none", "Edges(1)-no-node", "Edges(3)-typed", "Edges(3)-shared", "Sum-random"]
PAIRS = [
    (case, check)
    for case in CASES
    for check in CHECKS
    if check in ALGEBRA or (case in SPARSE if check == "sparse_features" else case in PLAIN)
    if check != "permutation" or "positions" not in CASES[case].marks
]


@pytest.mark.parametrize(("case", "check"), PAIRS, ids=[f"{check}-{case}" for case, check in PAIRS])
def test_contract(case: str, check: str) -> None:
    c = CASES[case]
    CHECKS[check](c.basis(), c.graph(), c.matrices)
