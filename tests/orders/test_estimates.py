"""What the orders are estimated to cost is what `estimates.txt` says, for each family, attention and kind of parameter
that costs something else than those before it.

Where a count or a rate is to change:

    python -m tests.orders.test_estimates > tests/orders/estimates.txt
"""

from functools import partial
from itertools import product
from pathlib import Path

import pytest

from pyg_basisconv import bases
from pyg_basisconv.backend import KERNELS
from pyg_basisconv.costs import MACHINES, Problem
from pyg_basisconv.plan import plan
from tests import cases
from tests.bases.test_contract import PLAIN, WITH_ALL
from tests.contract import THETAS, draw, make, tensors
from tests.mechanisms import cases as attentions
from tests.orders.test_compacted import FAMILIES

FILE = Path(__file__).with_name("estimates.txt")
LEARNS = ((), ("x",), ("theta",), ("basis",), ("x", "theta", "basis"))


MORE = {"Window(sites)+Identity": (lambda: cases.CASES["Window(sites)-random"].basis() + bases.Identity(), cases.graph)}


def of_family(name: str, kind: str = "Full", order: str = "auto", P: int = 3) -> Problem:
    case = cases.CASES.get(name)
    make_basis, graph = (case.basis, case.graph) if case else (MORE | FAMILIES)[name][:2]
    g = graph()
    conv = make(make_basis(), kind, order, P)
    x = draw(g.M, conv.in_channels)
    return conv.plan(x if g.M == g.N else (x, None), **tensors(g), size=(g.M, g.N)).problem


def of_attention(name: str) -> Problem:
    case = attentions.CASES[name]
    args, named = attentions.inputs(case).arguments()
    return attentions.layer(case)[0].plan(*args, **named).problem


PROBLEMS = {name: partial(of_family, name) for name in PLAIN}
for _kind in THETAS:
    PROBLEMS |= {f"{name}, {_kind}": partial(of_family, name, _kind) for name in (*WITH_ALL, "Window(2,3)-random")}
PROBLEMS["Window(6)-random, Depthwise(softmax) of 8 channels"] = partial(  # which share their taps
    of_family, "Window(6)-random", "Depthwise(softmax)", P=8
)
TILED = ("Window(sites)-random", "Window(sites)+Identity")
for _name, _kind in (*product((*FAMILIES, *TILED), ("Full",)), *product((*TILED, "Relations"), ("Separable",))):
    PROBLEMS[f"compacted {_name}, {_kind}"] = partial(of_family, _name, _kind, "compacted")
PROBLEMS |= {f"Attention {name}": partial(of_attention, name) for name in attentions.CASES}


def estimated(name: str) -> str:
    """The orders that are possible; and their operations, bytes, memory and seconds, summed over these orders and all
    that may learn, for one entry, and for several whose rows fill no cache, on the CPU and on a GPU.
    """
    problem, total, possible = PROBLEMS[name](), [0, 0, 0, 0.0], {}
    for (B, size), learns, device in product(((1, 1), (3, 1 << 16)), LEARNS, MACHINES):
        given = {f"grad_{of}": of in learns for of in ("x", "theta", "basis")}
        given |= {"B": B, "M": size * problem.M, "N": size * problem.N, "device": device}
        for e in plan(problem._replace(**given)).estimates:
            if not e.refused:
                possible[e.order] = None
                total = [a + b for a, b in zip(total, (e.operations, e.bytes, e.memory, e.seconds), strict=True)]
    return "{}; {} operations, {} bytes, {} in memory, {:.10e} s".format(" ".join(possible), *total)


def table() -> dict[str, str]:
    return dict(line.split(": ") for line in FILE.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("name", table())
@pytest.mark.skipif(KERNELS is None, reason="the kernels that were not built read more")
def test_orders_are_estimated_to_cost_what_the_table_says(name: str) -> None:
    (counts, seconds), (expected, time) = (text[:-2].rsplit(", ", 1) for text in (estimated(name), table()[name]))
    assert counts == expected
    assert float(seconds) == pytest.approx(float(time), rel=1e-9)


if __name__ == "__main__":
    found = {estimated(name): name for name in reversed(PROBLEMS)}
    print(*(f"{name}: {line}" for line, name in reversed(found.items())), sep="\n")
