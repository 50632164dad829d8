"""The contract over the registry."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pyg_basisconv import bases
from tests.cases import BIPARTITE, CASES, FAMILIES, SQUARE
from tests.contract import CHECKS, ORDERS, PATHS, THETAS, bind

# The algebra is tested on every graph; what follows from it, or is the kernels' alone, on one of each kind.
ALGEBRA = ("members", "written_out", "gradients")
DIFFICULT = tuple({*SQUARE, *BIPARTITE} - {"random"})
PLAIN = [name for name in CASES if not name.endswith(DIFFICULT)]
SPARSE = ["Edges(1)-random", "Edges(1)-none", "Edges(1)-no-node", "Edges(3)-typed", "Edges(3)-shared", "Sum-random"]

# Kinds of parameter, views of x and modes meet what a family is bound to: each form of it, and grids in several ways.
FORMS = [
    *("Edges(1)-random", "Edges(1)-no-node", "Edges(3)-typed", "Edges(3)-shared", "Adjacency-ones", "Identity-random"),
    *("Powers(4)-random", "Wavelets(3)-random", "Diffusion(3)-random", "Mix-random", "Product-random", "Walks-steps"),
    *("Causal-random", "Complete-random", "Shifts-random", "Window(2,3,mean)-random", "Window(2,3,replicate)-random"),
    *("Window(sites)-random", "Group(S3)-random", "Group(C2,window)-random", "Relations(3)-typed-ones"),
    *("EdgeNetwork(3)-attributed", "Spline(3,2)-attributed", "Resampling(linear)-random"),
]
PLAIN_FORMS = [name for name in FORMS if name in PLAIN]
WHERE = {
    "sparse_features": SPARSE,
    "thetas": FORMS,
    "strides": PLAIN_FORMS,
    "inference": PLAIN_FORMS,
    **dict.fromkeys(ALGEBRA, CASES),
}
PAIRS = [
    (case, check)
    for case in CASES
    for check in CHECKS
    if case in WHERE.get(check, PLAIN)
    if check != "permutation" or "positions" not in CASES[case].marks
]


# Families meet parameters in two methods: all kinds on two forms, and some of them, in turn, on each other form.
WITH_ALL = ("Edges(3)-typed", "Powers(4)-random")


def in_turn(check: str, case: str) -> dict[str, Any]:
    """The share of a check that a case takes: each family, and each graph, meets all of it, but not each pair."""
    turn, kinds = list(CASES).index(case), list(THETAS)
    if check == "gradients" and case not in PLAIN:
        return {"paths": PATHS[turn % 3 :: 3]}
    if check == "freshness":
        return {"orders": ("auto", ORDERS[1 + turn % 3])}
    if check == "precision":
        return {"turn": turn}
    if check == "thetas" and case not in WITH_ALL:
        return {"kinds": kinds[FORMS.index(case) % 5 :: 5]}
    if check == "sparse_features":
        return {"kinds": kinds[SPARSE.index(case) % 3 :: 3]}
    return {}


def parameters() -> Iterator[Any]:
    """Values and gradients of each family are looked at first; of all else, one pair in 24."""
    known = set()
    for i, (case, check) in enumerate(PAIRS):
        family = case.rpartition("-")[0]
        first = check == "gradients" and family not in known
        known |= {family} if first else set()
        yield pytest.param(case, check, id=f"{check}-{case}", marks=[] if first or i % 24 == 0 else pytest.mark.slow)


@pytest.mark.parametrize(("case", "check"), [*parameters()])
def test_contract(case: str, check: str) -> None:
    c = CASES[case]
    CHECKS[check](c.basis(), c.graph(), c.matrices, **in_turn(check, case))


def test_parameters_meet_every_form() -> None:
    def form(name: str) -> str:
        return type(bind(CASES[name].basis(), CASES[name].graph())).__name__

    assert set(map(form, FORMS)) == set(map(form, CASES))


def test_numbers_of_a_basis_are_read_under_any_default_device() -> None:
    makers = [make for name, (make, *_) in FAMILIES.items() if name != "Window(sites)"]  # sites are a tensor
    makers += [lambda: 2 * bases.Identity(), lambda: bases.Identity() - bases.Adjacency()]
    for make in makers:
        with torch.device("meta"):
            made = make()
        assert repr(made) == repr(make())
