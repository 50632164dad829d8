"""What the arguments of each public class may be, said again and apart from the classes.

A domain says of a value that it belongs to an argument (True), that it does not (False), or that this is left open
(None), as for numbers of numpy or for sizes beyond all memory.
"""

import math
from collections.abc import Callable
from typing import Any

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


small = bases.Window(None, 3, padding=1)
# name: (the class, {argument: (its domain, values that it may have)}); an argument that has no default comes first.
CONSTRUCTORS: dict[str, tuple[Callable[..., Any], dict[str, tuple[Domain, list[Any]]]]] = {
    "Adjacency": (
        bases.Adjacency,
        {
            "norm": (among(None, "sym", "mean", "rw"), [None, "sym", "mean", "rw"]),
            "self_loops": (lambda v: isinstance(v, bool) or number(v), [True, False, 0.5]),
            "existing": (among("keep", "add", "replace"), ["keep", "add", "replace"]),
            "diagonal": (number, [0.0, 0.5, -1]),
        },
    ),
    "Laplacian": (bases.Laplacian, {"norm": (among(None, "sym", "rw"), [None, "sym", "rw"])}),
    "Chebyshev": (
        bases.Chebyshev,
        {
            "K": (count(), [1, 3]),
            "norm": (among(None, "sym", "rw"), [None, "sym", "rw"]),
            "lambda_max": (lambda v: among(None, "exact")(v) or (number(v) and v > 0), [None, "exact", 2]),
        },
    ),
    "Powers": (
        bases.Powers,
        {
            "K": (count(), [1, 3]),
            "operator": (lambda v: v is None or (isinstance(v, bases.Basis) and v.K == 1), [None, bases.Adjacency()]),
        },
    ),
    "Diffusion": (
        bases.Diffusion,
        {"K": (count(), [1, 2]), "direction": (among("both", "out", "in"), ["both", "out", "in"])},
    ),
    "Wavelets": (
        bases.Wavelets,
        {
            "J": (count(), [1, 3]),
            "operator": (lambda v: v is None or (isinstance(v, bases.Basis) and v.K == 1), [None, bases.Adjacency()]),
            "low_pass": (flag, [True, False]),
        },
    ),
    "Edges": (bases.Edges, {"K": (count(), [1, 3])}),
    "Relations": (
        bases.Relations,
        {
            "num_relations": (count(), [1, 3]),
            "norm": (among(None, "mean", "row", "sym"), [None, "mean", "row", "sym"]),
            "inverse": (flag, [True, False]),
            "self_loop": (flag, [True, False]),
        },
    ),
    "Walks": (
        bases.Walks,
        {
            "sorts": (open_, [["0.1"], {"a": "0.^1"}]),
            "relations": (open_, [None, 3, ["0", "1"]]),
            "norm": (among(None, "mean", "row", "sym"), [None, "mean"]),
            "per": (among("walk", "step"), ["walk"]),
            "binary": (flag, [True, False]),
            "memory_limit": (count(0), [0, 1000]),
        },
    ),
    "Mix": (
        bases.Mix,
        {
            "coefficients": (open_, [[0.5, 1.0], torch.ones(3, 2)]),
            "basis": (lambda v: isinstance(v, bases.Basis) and v.K == 2, [bases.Powers(2)]),
        },
    ),
    "Product": (
        bases.Product,
        {"first": (a(bases.Basis), [bases.Powers(2)]), "second": (a(bases.Basis), [bases.Adjacency()])},
    ),
    "Transpose": (bases.Transpose, {"basis": (a(bases.Basis), [bases.Powers(2)])}),
    "Causal": (bases.Causal, {"align": (among(None, "start", "end"), [None, "start", "end"])}),
    "Bags": (bases.Bags, {"norm": (among(None, "mean"), [None, "mean"])}),
    "Shifts": (
        bases.Shifts,
        {
            "shape": (optional(sizes(1)), [None, 4, (5,)]),
            "offsets": (open_, [[0], [0, -1], range(-1, 2)]),
            "padding_mode": (among("zeros", "circular", "reflect", "replicate"), ["zeros", "circular", "replicate"]),
        },
    ),
    "Window": (
        bases.Window,
        {
            "shape": (optional(lambda v: sizes(2)(v) and None), [None, (4, 5)]),
            "kernel_size": (lambda v: sizes(2, 1)(v) and None, [(3, 2), (1, 1)]),
            "stride": (sizes(2, 1), [1, (1, 2)]),
            "padding": (lambda v: v == "valid" if isinstance(v, str) else sizes(2)(v), [0, 1, (0, 1), "valid"]),
            "dilation": (sizes(2, 1), [1]),
            "padding_mode": (among("zeros", "circular", "reflect", "replicate"), ["zeros"]),
            "transposed": (lambda v: None if v is True else flag(v), [False]),  # it goes with few of the others
            "output_padding": (lambda v: (type(v) is int and v == 0) or None, [0]),
            "ceil_mode": (flag, [True, False]),
            "norm": (among(None, "mean", "padded"), [None, "mean", "padded"]),
            "sites": (optional(open_), [None]),
        },
    ),
    "Group": (
        bases.Group,
        {
            "group": (open_, ["p4", "p4m", [[0, 1], [1, 0]]]),
            "window": (optional(open_), [None]),
            "lift": (lambda v: v is False, [False]),
            "action": (optional(open_), [None]),
        },
    ),
    "FiniteGroup": (
        bases.FiniteGroup,
        {"table": (open_, [[[0, 1], [1, 0]]]), "action": (optional(open_), [None, [[[1]], [[-1]]]])},
    ),
    "Attention": (
        bases.Attention,
        {
            "heads": (count(), [1, 2]),
            "mechanism": (a(mechanisms.Mechanism), [mechanisms.Dot(2)]),
            "mask": (optional(a(bases.Basis)), [None, bases.Causal()]),
            "normalize": (
                among("source", "target", "heads", "sigmoid", "tanh", None),
                ["source", "target", "heads", "sigmoid", "tanh", None],
            ),
            "dropout": (share, [0.0, 0.5]),
            "weighted": (flag, [True, False]),
        },
    ),
    "Heads": (
        theta.Heads,
        {"combine": (among("concat", "mean"), ["concat", "mean"]), "bias": (flag, [True, False])},
    ),
    "LowRank": (theta.LowRank, {"dim": (count(), [1, 3]), "bias": (flag, [True, False])}),
    "Depthwise": (
        theta.Depthwise,
        {
            "shared": (optional(count()), [None, 2]),
            "normalize": (among(None, "softmax"), [None, "softmax"]),
            "dropout": (share, [0.0, 0.1]),
        },
    ),
    "Pass": (
        theta.Pass,
        {
            "scale": (
                lambda v: (all(map(is_number, v)) if v else None) if isinstance(v, list | tuple) else number(v),
                [1.0, 2, [1.0, 0.5]],
            ),
            "combine": (among("sum", "concat", "split"), ["sum", "concat", "split"]),
        },
    ),
    "Grouped": (theta.Grouped, {"groups": (count(), [1, 2])}),
    "Kernel": (
        theta.Kernel,
        {
            "size": (
                lambda v: all(count()(size) is not False for size in v) if isinstance(v, tuple | list) and v else False,
                [(3,), (2, 2)],
            ),
            "groups": (count(), [1, 2]),
            "transposed": (flag, [True, False]),
        },
    ),
    "Separable": (theta.Separable, {"H": (count(), [1, 2]), "depthwise": (flag, [True, False])}),
    "Additive": (
        mechanisms.Additive,
        {
            "projected": (flag, [True, False]),
            "target": (among("default", "own", None), ["default", "own", None]),
            "bias": (flag, [True, False]),
        },
    ),
    "Dot": (
        mechanisms.Dot,
        {
            "dim": (lambda v: False if v is None else count()(v), [1, 3]),
            "scale": (optional(number), [None, 0.5]),
            "bias": (flag, [True, False]),
            "projected": (lambda v: False if flag(v) is False else v is False or None, [False]),
            "edge_dim": (count(0), [0, 2]),
            "mix": (among("key", "both", "cross"), ["key", "both", "cross"]),
        },
    ),
    "MLP": (
        mechanisms.MLP,
        {
            "dim": (lambda v: False if v is None else count()(v), [1, 3]),
            "activation": (lambda v: v is None or callable(v), [None, torch.tanh, nn.ReLU()]),
            "projected": (lambda v: False if flag(v) is False else v is False or None, [False]),
            "target": (among("own", None), ["own", None]),
            "gated": (lambda v: False if flag(v) is False else v is False or None, [False]),
            "bias": (flag, [True, False]),
            "edge_dim": (count(0), [0, 2]),
        },
    ),
    "Edge": (mechanisms.Edge, {"dim": (count(), [1, 2]), "inner": (optional(count()), [None, 2])}),
    "Relative": (mechanisms.Relative, {"window": (open_, [(-1, 2), (0, 0)]), "period": (optional(open_), [None])}),
    "Tap": (mechanisms.Tap, {"offsets": (open_, [[0], [-1, 0, 1]])}),
    "BasisConv": (
        BasisConv,
        {
            "in_channels": (lambda v: (type(v) is int and v == -1) or count()(v), [1, 2, -1]),
            "out_channels": (count(), [1, 2]),
            "basis": (lambda v: isinstance(v, bases.Basis) and not v.reads_content, [bases.Powers(2)]),
            "theta": (optional(a(theta.Theta)), [None]),
            "order": (
                among("auto", "a_first", "theta_first", "phi", "native", "compacted", "mixed"),
                ["auto", "a_first", "theta_first", "phi"],
            ),
            "bias": (flag, [True, False]),
            "cached": (flag, [True, False]),
            "aggr": (among("add", "sum"), ["add", "sum"]),
            "flow": (among("source_to_target", "target_to_source"), ["source_to_target", "target_to_source"]),
        },
    ),
    "GridConv": (
        GridConv,
        {
            "in_channels": (lambda v: (type(v) is int and v == -1) or count()(v), [1, 2, -1]),
            "out_channels": (count(), [1, 2]),
            "basis": (lambda v: isinstance(v, bases.Basis) and not v.reads_content, [small]),
            "theta": (optional(a(theta.Theta)), [None]),
            "order": (
                among("auto", "a_first", "theta_first", "phi", "native", "compacted", "mixed"),
                ["auto", "a_first", "theta_first", "phi", "native"],
            ),
            "bias": (flag, [True, False]),
        },
    ),
    "LightweightConv": (
        blocks.LightweightConv,
        {
            "channels": (even, [2, 4]),
            "heads": (lambda v: None if count()(v) else count()(v), [2]),
            "taps": (count(), [1, 3]),
            "causal": (flag, [True, False]),
            "dropout": (share, [0.0, 0.1]),
        },
    ),
    "AttentionPooling": (
        blocks.AttentionPooling,
        {"channels": (count(), [1, 2]), "hidden": (count(), [1, 3]), "gated": (flag, [True, False])},
    ),
    "CausalAttention": (
        blocks.CausalAttention,
        {
            "channels": (even, [2, 4]),
            "heads": (lambda v: None if count()(v) else count()(v), [2]),
            "dropout": (share, [0.0, 0.1]),
            "bias": (flag, [True, False]),
        },
    ),
    "RoutingBlock": (
        blocks.RoutingBlock,
        {
            "channels": (even, [2, 4]),
            "heads": (lambda v: None if count()(v) else count()(v), [2]),
            "hidden": (count(), [1, 3]),
        },
    ),
    "ToGrid": (
        transforms.ToGrid,
        {
            "window": (a(bases.Window, bases.Shifts), [small]),
            "attr": (lambda v: isinstance(v, str) or False, ["x", "image"]),
            "mask": (lambda v: isinstance(v, str) or False, ["mask"]),
        },
    ),
    "Translation": (testing.Translation, {"shifts": (open_, [1, (1, 2)])}),
    "Symmetry": (
        testing.Symmetry,
        {
            "group": (lambda v: v in ("p4", "p4m") if isinstance(v, str) else isinstance(v, bases.FiniteGroup), ["p4"]),
            "element": (lambda v: None if isinstance(v, np.integer) else type(v) is int and 0 <= v < 4, [0, 3]),
            "lifted": (flag, [True, False]),
        },
    ),
    "Permutation": (testing.Permutation, {"order": (open_, [[1, 0], (0,)]), "targets": (optional(open_), [None])}),
    "Vocabulary": (
        walks.Vocabulary,
        {"names": (open_, [["a", "b"]]), "ends": (optional(open_), [None]), "aliases": (optional(open_), [None])},
    ),
}


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
