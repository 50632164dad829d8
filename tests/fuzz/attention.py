"""Attentions with drawn mechanisms, masks and calls, and what may be wrong with them."""

from typing import Any

import torch
from hypothesis import strategies as st

from tests.mechanisms.cases import MASKS, NORMALISATIONS, SCORES, THETAS, Case, Inputs


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """One attention, and one call of it; small."""
    mechanism, fixed = SCORES[draw(st.sampled_from(sorted(SCORES)))]
    c = Case(mechanism, **fixed)
    M, E = draw(st.integers(1, 4)), draw(st.sampled_from([0, 2, 3, 4]))
    own = "mask" in fixed
    mask = c.mask if own else draw(st.sampled_from(sorted(set(MASKS) - {"bags"})))
    square = own or mask not in ("graph", "none", "Complete", "causal-start", "causal-end") or c.edge_dim > 0
    N = None if square or draw(st.booleans()) else draw(st.integers(1, 4))
    if c.edge_dim and mask not in ("graph", "loops", "keep"):
        mask = "graph"
    kind = draw(st.sampled_from(sorted(THETAS)))
    lead = draw(st.sampled_from([(), (), (2,)])) if not c.edge_dim else ()
    form = "" if c.edge_dim else draw(st.sampled_from(["", "", "bool", "float", "valid", "bool heads", "float valid"]))
    form += " batch" if lead and "heads" in form else ""  # the axis of heads is behind those of the batch
    return c.but(
        mask=mask,
        theta=kind,
        normalize=draw(st.sampled_from(NORMALISATIONS)),
        weighted=mask in ("graph", "loops", "keep", "sym") and draw(st.booleans()),
        heads=draw(st.sampled_from([1, 2])),
        M=M,
        N=N,
        E=E,
        lead=lead,
        call=form,
        seed=draw(st.integers(0, 50)),
    )


def wrong(c: Case, made: Inputs) -> dict[str, dict[str, Any]]:
    """Arguments that do not fit the call."""
    M, N, x = c.M, c.targets, made.x
    elsewhere = {"device": "meta"}
    found: dict[str, dict[str, Any]] = {
        "mask of another shape": {"mask": torch.ones(M + 1, N, dtype=torch.bool)},
        "mask of another width": {"mask": torch.zeros(M, N + 2, dtype=x.dtype)},
        "mask of integers": {"mask": torch.ones(M, N).long()},
        "mask of complex numbers": {"mask": torch.ones(M, N, dtype=torch.complex64)},
        "mask of heads": {"mask": torch.ones(c.heads + 5, M, N, dtype=torch.bool)},
        "mask of one axis": {"mask": torch.ones(M, dtype=torch.bool)},
        "mask of lists": {"mask": [[True] * N] * M},
        "mask of words": {"mask": "causal"},
        "mask elsewhere": {"mask": torch.ones(M, N, dtype=torch.bool, **elsewhere)},
        "mask that is sparse": {"mask": torch.ones(M, N).to_sparse()},
        "valid of another length": {"valid": torch.ones(M + 1, dtype=torch.bool)},
        "valid of numbers": {"valid": torch.ones(*c.lead, M)},
        "valid of lists": {"valid": [True] * M},
        "valid of more axes": {"valid": torch.ones(3, 3, *c.lead, M, dtype=torch.bool)},
        "valid elsewhere": {"valid": torch.ones(*c.lead, M, dtype=torch.bool, **elsewhere)},
        "lambda_max": {"lambda_max": -1.0},
        "edge_type": {"edge_type": "a"},
        "grid": {"grid": (-1, 2)},
        "size": {"size": (M + 1, N)},
        "edge_attr": {"edge_attr": torch.ones(7, 5, dtype=x.dtype)},
        "edge_attr of lists": {"edge_attr": [[1.0]]},
    }
    if c.edge_dim:
        found["no edge_attr"] = {"edge_attr": None}
        found["edge_attr of float32"] = {"edge_attr": made.edge_attr.float()}
        found["edge_attr elsewhere"] = {"edge_attr": made.edge_attr.to("meta")}
        found["edge_attr of integers"] = {"edge_attr": made.edge_attr.long()}
    return found
