"""What the arguments of each public class may be, by their annotations, and else said again.

A domain says of a value that it belongs to an argument (True), that it does not (False), or that this is left open
(None), as for numbers of numpy or for sizes beyond all memory.
"""

import math
from collections.abc import Callable
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from pyg_basisconv import BasisConv, GridConv, bases, blocks, mechanisms, testing, theta, transforms, walks
from tests.fuzz.support import JUNK, ODD

Domain = Callable[[Any], bool | None]


def is_number(v: Any) -> bool:
    return isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) and abs(v) < 2**60


def flag(v: Any) -> bool | None:
    return True if isinstance(v, bool) else None if type(v) is int else False


def count(least: int = 1) -> Domain:
    def domain(v: Any) -> bool | None:
        if isinstance(v, Tensor) and not v.dim() and not v.is_floating_point():
            return None
        if isinstance(v, np.integer) or (type(v) is int and v > 1000):
            return None
        return type(v) is int and v >= least

    return domain


def among(*options: Any) -> Domain:
    return lambda v: any(v is option or (isinstance(v, str) and v == option) for option in options)


def number(v: Any) -> bool | None:
    return None if isinstance(v, bool | np.number) or (type(v) is int and v > 2**60) else is_number(v)


def share(v: Any) -> bool | None:
    return None if isinstance(v, bool | np.number) else is_number(v) and 0 <= v < 1


def optional(domain: Domain) -> Domain:
    return lambda v: True if v is None else domain(v)


def a(*kinds: type) -> Domain:
    return lambda v: isinstance(v, kinds)


def sizes(axes: int, least: int = 0) -> Domain:
    one = count(least)

    def domain(v: Any) -> bool | None:
        if isinstance(v, list | tuple) and len(v) == axes:
            found = [one(n) for n in v]
            return False if False in found else None if None in found else True
        return one(v) if not isinstance(v, list | tuple) else False

    return domain


def even(v: Any) -> bool | None:
    return count()(v) and v % 2 == 0


def open_(v: Any) -> None:
    return None


def annotated(hint: Any) -> tuple[Domain, list[Any]] | None:
    """The domain that an annotation says, and values of it; None where it leaves more open than the class does."""
    told, args = get_origin(hint), get_args(hint)
    if hint is bool:
        return flag, [True, False]
    if hint is int:
        return count(), [1, 2]
    if told is Literal:
        return among(*args), list(args)
    if told in (Union, UnionType) and len(args) == 2 and args[1] is type(None):
        inner = annotated(args[0])
        return None if inner is None else (optional(inner[0]), [None, *inner[1]])
    return None


small = bases.Window(None, 3, padding=1)
OPERATOR = (lambda v: v is None or (isinstance(v, bases.Basis) and v.K == 1), [None, bases.Adjacency()])
MODES = (among("zeros", "circular", "reflect", "replicate"), ["zeros", "circular", "replicate"])
OPEN, ABSENT = (optional(open_), [None]), (lambda v: False if flag(v) is False else v is False or None, [False])
EVEN, HEADS = (even, [2, 4]), (lambda v: None if count()(v) else count()(v), [2])
DIM, DROPOUT = (lambda v: False if v is None else count()(v), [1, 3]), (share, [0.0, 0.1])
ORDERS = ["auto", "a_first", "theta_first", "phi", "native", "compacted", "mixed"]
LAYER = {
    "in_channels": (count(-1), [0, 1, 2, -1]),
    "basis": (lambda v: isinstance(v, bases.Basis) and not v.reads_content, [bases.Powers(2)]),
    "theta": (optional(a(theta.Theta)), [None]),
    "order": (among(*ORDERS), ORDERS[:4]),
}

# Of each class the arguments whose annotation does not say their domain, with values that they may have.
OTHERS: dict[Callable[..., Any], dict[str, tuple[Domain, list[Any]]]] = {
    bases.Adjacency: {
        "self_loops": (lambda v: isinstance(v, bool) or number(v), [True, False, 0.5]),
        "diagonal": (number, [0.0, 0.5, -1]),
    },
    bases.Laplacian: {},
    bases.Chebyshev: {"lambda_max": (lambda v: v is None or (number(v) and v > 0), [None, 2])},
    bases.Powers: {"operator": OPERATOR},
    bases.Diffusion: {},
    bases.Wavelets: {"operator": OPERATOR},
    bases.Edges: {},
    bases.Relations: {},
    bases.Walks: {
        "sorts": (open_, [["0.1"], {"a": "0.^1"}]),
        "relations": (open_, [None, 3, ["0", "1"]]),
        "norm": (among(None, "mean", "row", "sym"), [None, "mean"]),
        "per": (among("walk", "step"), ["walk"]),
        "memory_limit": (count(0), [0, 1000]),
    },
    bases.Mix: {
        "coefficients": (open_, [[0.5, 1.0], torch.ones(3, 2)]),
        "basis": (lambda v: isinstance(v, bases.Basis) and v.K == 2, [bases.Powers(2)]),
    },
    bases.Product: {"first": (a(bases.Basis), [bases.Powers(2)]), "second": (a(bases.Basis), [bases.Adjacency()])},
    bases.Transpose: {"basis": (a(bases.Basis), [bases.Powers(2)])},
    bases.Causal: {},
    bases.Bags: {},
    bases.Shifts: {
        "shape": (optional(sizes(1)), [None, 4, (5,)]),
        "offsets": (open_, [[0], [0, -1], range(-1, 2)]),
        "padding_mode": MODES,
    },
    bases.Window: {
        "shape": (optional(lambda v: sizes(2)(v) and None), [None, (4, 5)]),
        "kernel_size": (lambda v: sizes(2, 1)(v) and None, [(3, 2), (1, 1)]),
        "stride": (sizes(2, 1), [1, (1, 2)]),
        "padding": (lambda v: v == "valid" if isinstance(v, str) else sizes(2)(v), [0, 1, (0, 1), "valid"]),
        "dilation": (lambda v: sizes(2, 1)(v) and None, [1]),
        "padding_mode": (MODES[0], ["zeros"]),
        "transposed": (lambda v: None if v is True else flag(v), [False]),  # it goes with few of the others
        "output_padding": (lambda v: (type(v) is int and v == 0) or None, [0]),
        "sites": OPEN,
    },
    bases.Group: {
        "group": (open_, ["p4", "p4m", [[0, 1], [1, 0]]]),
        "window": OPEN,
        "lift": (lambda v: v is False, [False]),
    },
    bases.FiniteGroup: {
        "table": (open_, [[[0, 1], [1, 0]]]),
        "action": (optional(open_), [None, [[[1]], [[-1]]]]),
    },
    bases.Attention: {
        "mechanism": (a(mechanisms.Mechanism), [mechanisms.Dot(2)]),
        "mask": (optional(a(bases.Basis)), [None, bases.Causal()]),
        "dropout": (share, [0.0, 0.5]),
    },
    theta.Heads: {"shared": (flag, [False])},
    theta.LowRank: {},
    theta.Depthwise: {"dropout": DROPOUT},
    theta.Pass: {
        "scale": (
            lambda v: (all(map(is_number, v)) if v else None) if isinstance(v, list | tuple) else number(v),
            [1.0, 2, [1.0, 0.5]],
        ),
    },
    theta.Grouped: {},
    theta.Kernel: {
        "size": (
            lambda v: all(count()(size) is not False for size in v) if isinstance(v, tuple | list) and v else False,
            [(3,), (2, 2)],
        ),
    },
    theta.Separable: {},
    mechanisms.Additive: {"target": (among("default", "own", None), ["default", "own", None])},
    mechanisms.Dot: {
        "dim": DIM,
        "scale": (optional(number), [None, 0.5]),
        "projected": ABSENT,
        "edge_dim": (count(0), [0, 2]),
    },
    mechanisms.MLP: {
        "dim": DIM,
        "activation": (lambda v: v is None or callable(v), [None, torch.tanh, nn.ReLU()]),
        "projected": ABSENT,
        "target": (among("own", None), ["own", None]),
        "gated": ABSENT,
        "edge_dim": (count(0), [0, 2]),
    },
    mechanisms.Edge: {},
    mechanisms.Relative: {"window": (open_, [(-1, 2), (0, 0)]), "period": OPEN},
    mechanisms.Tap: {"offsets": (open_, [[0], [-1, 0, 1]])},
    BasisConv: LAYER
    | {
        "aggr": (among("add", "sum"), ["add", "sum"]),
        "flow": (among("source_to_target", "target_to_source"), ["source_to_target", "target_to_source"]),
    },
    GridConv: LAYER | {"basis": (LAYER["basis"][0], [small]), "order": (among(*ORDERS), ORDERS[:5])},
    blocks.LightweightConv: {"channels": EVEN, "heads": HEADS, "dropout": DROPOUT},
    blocks.AttentionPooling: {},
    blocks.CausalAttention: {"channels": EVEN, "heads": HEADS, "dropout": DROPOUT},
    blocks.RoutingBlock: {"channels": EVEN, "heads": HEADS},
    transforms.ToGrid: {
        "window": (a(bases.Window, bases.Shifts), [small]),
        "attr": (lambda v: isinstance(v, str) or False, ["x", "image"]),
        "mask": (lambda v: isinstance(v, str) or False, ["mask"]),
    },
    testing.Translation: {"shifts": (open_, [1, (1, 2)])},
    testing.Symmetry: {
        "group": (lambda v: v in ("p4", "p4m") if isinstance(v, str) else isinstance(v, bases.FiniteGroup), ["p4"]),
        "element": (lambda v: None if isinstance(v, np.integer) else type(v) is int and 0 <= v < 4, [0, 3]),
    },
    testing.Permutation: {"order": (open_, [[1, 0], (0,)]), "targets": OPEN},
    walks.Vocabulary: {"names": (open_, [["a", "b"]]), "ends": OPEN, "aliases": OPEN},
}


def arguments_of(kind: Callable[..., Any]) -> dict[str, tuple[Domain, list[Any]]]:
    """The domain of each argument, and values of it."""
    hints = get_type_hints(kind.__init__)
    told = {name: found for name, hint in hints.items() if (found := annotated(hint)) is not None}
    return told | OTHERS[kind]


CONSTRUCTORS = {kind.__name__: (kind, arguments_of(kind)) for kind in OTHERS}


@st.composite
def constructions(draw: st.DrawFn) -> tuple[str, dict[str, Any], bool | None]:
    """A class, the arguments that it is called with, and whether these are in order: True, False, or None for open."""
    name = draw(st.sampled_from(sorted(CONSTRUCTORS)))
    _, arguments = CONSTRUCTORS[name]
    given = {argument: draw(st.sampled_from(values)) for argument, (_, values) in arguments.items()}
    verdict: bool | None = True
    if draw(st.integers(0, 3)):
        changed = draw(st.sampled_from(sorted(arguments)))
        odd = draw(st.sampled_from(sorted(JUNK | ODD)))
        given[changed] = (JUNK | ODD)[odd]()
        verdict = arguments[changed][0](given[changed])
    return name, given, verdict
