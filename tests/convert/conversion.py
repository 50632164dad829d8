"""What tests of conversion have in common: the registry's layers and options, and comparisons."""

import copy
import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import pyg_basisconv.nn as drop_in
from pyg_basisconv import convert
from pyg_basisconv.verify import Case, cases, compare, forget, sweeps
from pyg_basisconv.verify.recipes import of_torch

OPTIONS: dict[str, list[dict[str, Any]]] = {}  # all that recipes are checked under, by layer
for kinds in sweeps().values():
    for kind, sweep in kinds.items():
        OPTIONS.setdefault(kind.__name__, []).extend(sweep)

# Layers of x, edge_index and what is beside them: those whose weights are computed from features, and linear ones.
ATTENDING = ["GATConv", "GATv2Conv", "TransformerConv", "FAConv", "SuperGATConv", "RGATConv", "AGNNConv", "FeaStConv"]
ATTENDING += ["ResGatedGraphConv"]
LINEAR = ["GCNConv", "ChebConv", "TAGConv", "SGConv", "SSGConv", "MixHopConv", "LGConv", "SimpleConv", "GraphConv"]
LINEAR += ["SAGEConv", "ClusterGCNConv", "LEConv"]
KNOWLEDGE = ["RGCNConv", "FastRGCNConv", "HypergraphConv", "SignedConv", "DirGNNConv", "HANConv", "HGTConv"]


def takes_edges(kind: str) -> bool:
    """Whether a layer is called with edges, as those of PyG are but for those on dense matrices."""
    return not (of_torch(kind) or kind.startswith("Dense"))


def over(some: Callable[[str, list[dict]], Sequence[dict]]) -> list[Any]:
    """Parameters of a test: a layer and options, of those that are checked."""
    return [
        pytest.param(kind, options, id="-".join([kind, *(f"{k}={v}" for k, v in options.items() if not callable(v))]))
        for kind, sweep in OPTIONS.items()
        for options in some(kind, sweep)
    ]


SWEEP = over(lambda kind, sweep: sweep)
FIRST = over(lambda kind, sweep: sweep[:1])
ENDS = over(lambda kind, sweep: [sweep[0], sweep[-1]])
GRAPHS = over(lambda kind, sweep: sweep[:1] if takes_edges(kind) else [])


def example(kind: str, options: dict) -> Case:
    """The first of the cases that a layer is checked on."""
    case = next(cases(kind, options))
    forget(case.reference)
    return case


def runner(case: Case) -> Callable[[Any], Tensor]:
    """Calls a layer as it is called in a case."""
    return lambda f: case.call(f, *case.leaves)


def agree(case: Case, tolerance: float = 1e-10, *others: nn.Module) -> None:
    """Forward and every gradient, relative to the largest entry; of others, too, that are to be the same."""
    first, reference, *rest = compare(case, *others)
    for found in (first, *rest):
        for ours, theirs in zip(found, reference, strict=True):
            scale = float(theirs.abs().max()) if theirs.numel() else 0.0
            torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance * (scale or 1.0))


def float32(case: Case) -> Case:
    forget(case.reference)
    modules = [copy.deepcopy(f).float() for f in (case.ours, case.reference)]
    return Case(*modules, [leaf.float() for leaf in case.leaves], case.call)


def like(reference: nn.Module) -> Any:
    """A drop-in with the options and parameters of a layer, made without its constructor."""
    kind = drop_in._made(type(reference))
    new = object.__new__(kind)
    vars(new).update(copy.deepcopy(vars(reference)))
    new._changed()
    return new


def evaluated(new: Any) -> bool:
    """Whether the last call of a drop-in was evaluated by its recipe."""
    return new._evaluators.known and new._evaluators.found is not None


def through_a_file(state: dict[str, Tensor]) -> dict[str, Tensor]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def same_state(ours: nn.Module | dict, expected: nn.Module | dict) -> None:
    states = [dict(f.state_dict() if isinstance(f, nn.Module) else f) for f in (ours, expected)]
    torch.testing.assert_close(*states, rtol=0, atol=0)


def left_of(module: nn.Module) -> dict[str, str]:
    left: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # torch_geometric's, from Python 3.13 on
        warnings.filterwarnings("ignore", "Failing to pass a value to the 'type_params'", DeprecationWarning)
        ours = convert(module, left)
    if left and isinstance(module, pyg.MessagePassing):
        assert ours is module
    return left
