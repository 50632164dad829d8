"""The command `python -m pyg_basisconv plan LAYER P Q`: what a layer would cost on a graph of these sizes."""

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from inspect import signature
from typing import Any

import torch
import torch_geometric.nn
from torch import Tensor, nn

from .basis import Basis
from .conv import BasisConv
from .convert import convert
from .convert.refused import why_not
from .convert.registry import known_layers
from .errors import check_count, check_probability, reject
from .expressions import read
from .plan import Plan

_LAYERS = {  # PyG's own, and none that a drop-in took the place of
    kind.__name__: kind for kind in known_layers() if getattr(torch_geometric.nn, kind.__name__, None) is kind
}


def add_plan(commands: Any) -> None:
    """Adds the command to the subparsers of a parser."""
    about = (
        "Prints what each order of multiplication would cost for a layer on a random graph of these sizes, with "
        "gradients, and which one is taken; nothing of it is computed."
    )
    command = commands.add_parser("plan", help="what a layer would cost on a graph of these sizes", description=about)
    what = "a layer of PyG, such as GCNConv or 'GATConv(heads=8)'; or a basis, such as 'Identity() + Chebyshev(3)'"
    command.add_argument("layer", help=what)
    command.add_argument("P", type=int, help="channels of x")
    command.add_argument("Q", type=int, help="channels of y; of a layer of PyG, its out_channels")
    command.add_argument("--nodes", type=int, required=True, metavar="M")
    command.add_argument("--edges", type=int, required=True, metavar="E")
    command.add_argument("--types", type=int, metavar="R", help="of edges, for bases and layers that read them")
    command.add_argument("--theta", metavar="EXPR", help="the parameter beside a basis, such as 'Heads()'")
    command.add_argument("--zeros", type=float, default=0, metavar="SHARE", help="of x, which is then sparse")


def plan_command(options: argparse.Namespace) -> int:
    """Prints the plans; a mistake is one line on stderr, and exit code 2."""
    try:
        for name in ("P", "Q", "nodes", "edges", "types"):
            if name != "types" or options.types is not None:
                check_count(name, getattr(options, name))
        check_probability("zeros", options.zeros)
        for conv, plan in _plans(_layer(options), options):
            print(conv, plan, sep="\n")
    except ValueError as error:
        print("python -m pyg_basisconv plan: error:", " ".join(str(error).splitlines()), file=sys.stderr)
        return 2
    return 0


def _layer(options: argparse.Namespace) -> nn.Module:
    """The layer, made of `BasisConv`s."""
    text = options.layer if "(" in options.layer else f"{options.layer}()"
    name = text.partition("(")[0].strip()
    reason = why_not(name) if hasattr(torch_geometric.nn, name) else None
    if name not in _LAYERS and reason is not None:
        reject("layer", "a layer of the form", name, reason)
    found = read(text, {name: partial(_of_pyg, kind, options) for name, kind in _LAYERS.items()})
    if name in _LAYERS:
        if options.theta is not None:
            reject("--theta", "a basis beside it", options.layer, "leave it out: a layer has a parameter of its own")
        return found
    if not isinstance(found, Basis):
        reject("layer", "a layer of PyG, or a basis", options.layer, "such as 'Chebyshev(3)'")
    theta = None if options.theta is None else read(options.theta)
    try:
        return BasisConv(options.P, options.Q, found, theta)
    except RuntimeError as error:
        reject("P, Q", "widths whose parameters fit into memory", f"{options.P}, {options.Q}", str(error))


def _of_pyg(kind: type[nn.Module], options: argparse.Namespace, *unnamed: Any, **given: Any) -> nn.Module:
    """A layer of PyG, converted."""
    if unnamed:
        reject("layer", "arguments by name", options.layer, "write them as in 'GATConv(heads=8)'")
    widths = {"in_channels": options.P, "out_channels": options.Q, "channels": options.P}
    arguments = {name: widths[name] for name in signature(kind).parameters if name in widths} | given
    try:
        made = kind(**arguments)
    except (ArithmeticError, AssertionError, RuntimeError) as error:  # what PyG and torch raise for unusable numbers
        got, fix = str(error) or type(error).__name__, f"correct the arguments of {options.layer}"
        reject("layer", f"arguments that {kind.__name__} can be made with", got, fix)
    left: dict[str, str] = {}
    layer = convert(made, left)
    for reason in left.values():
        reject("layer", "a layer of the form", options.layer, reason)
    return layer


def _plans(layer: nn.Module, options: argparse.Namespace) -> Iterator[tuple[BasisConv, Plan]]:
    """The plan of each `BasisConv` in a call, which gives zeros in its place."""
    found = []

    def instead(conv: BasisConv, *args: Any, **kwargs: Any) -> Tensor:
        found.append((conv, conv.plan(*args, **kwargs)))
        return torch.zeros(found[-1][1].problem.N, found[-1][1].problem.Q)

    for conv in layer.modules():
        if isinstance(conv, BasisConv):
            conv.forward = partial(instead, conv)  # type: ignore[method-assign]
    M, E, R = options.nodes, options.edges, options.types
    try:
        x, edge_index = _features(M, options.P, options.zeros), torch.randint(M, (2, E))
        types = {} if R is None else {"edge_type": torch.randint(R, (E,))}
    except RuntimeError as error:
        reject("--nodes, --edges", "a graph that fits into memory", f"{M}, {E}", str(error))
    try:
        layer(x, edge_index, **types)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        if R is None and "edge_type" in str(error):
            reject("--types", "the number of types of edges, which this layer reads", None, "add --types R")
        if isinstance(error, ValueError):
            raise
        if "edge_type" in str(error):
            reject("--types", "a layer that reads types of edges", options.layer, "leave it out")
        reject("layer", "one that is called with x and edges", options.layer, "give its basis")
    return iter(found)


def _features(M: int, P: int, zeros: float) -> Tensor:
    """(M, P) features of which only the form matters."""
    if not zeros:
        return torch.ones(1).expand(M, P)
    there = round(P * (1 - zeros))
    columns = torch.arange(there).repeat(M)
    return torch.sparse_csr_tensor(torch.arange(M + 1) * there, columns, torch.ones(M * there), (M, P))
