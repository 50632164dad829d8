"""Conversion: layers, alone or inside models, as the same function made of `BasisConv`s."""

import copy
import warnings
from collections import Counter

from torch import Tensor, nn

from ..errors import reject
from . import (  # noqa: F401 (each fills the registry)
    additive,
    directed,
    gated,
    grids,
    heterogeneous,
    hypergraphs,
    multihead,
    polynomials,
    relational,
    rgcn,
    smooth,
    sums,
    supervised,
    transformer,
)
from .registry import Left, convertible, rebuild

__all__ = ["convert"]


def convert(module: nn.Module, left: dict[str, str] | None = None) -> nn.Module:
    r"""The same function made of `BasisConv`s, for one layer of PyG or for all the layers of a model; and for two kinds
    of layers of torch: attention, `nn.MultiheadAttention`, wherever it is (in `nn.TransformerEncoderLayer`, say), and
    layers on grids, `nn.Conv2d`, `nn.ConvTranspose2d`, `nn.AvgPool2d`, the same in one and three dimensions, and
    `nn.Unfold`, which become `GridConv`s.

    The result is called as the original is, gives the same outputs and the same gradients, and is a new module with
    parameters of its own: the original stays as it is. The matrix of each `Linear` of a layer becomes one
    :math:`\Theta_k`; a checkpoint of the original may be loaded before, or into the result by `load_state_dict`, which
    takes checkpoints of both. dtype, device, training mode, frozen parameters and layers that stand in several places
    of the model carry over; layers that are still lazy stay lazy (their parameters are then drawn by `BasisConv`). A
    layer with `cached=True` never returns the result of another graph.

    Parameters of converted convolutions lie in memory as the kernels did, so that nothing is copied in a call: they are
    not contiguous, which `torch.nn.utils.parameters_to_vector`, and with it `torch.optim.LBFGS`, does not take; and a
    memory format is to be chosen before. The plan may evaluate many tiny images by one product with an operator: a NaN
    in one place of an image then reaches all of it, unless `order='native'` is set.

    Of layers for knowledge graphs, `RGCNConv` and `FastRGCNConv` become one operator, over `bases.Relations`;
    `HypergraphConv` one over a product of incidence matrices; `SignedConv` and `DirGNNConv` some of what they are made
    of; `HANConv` and `HGTConv` one for each type of edges, or for all, beside what of them is not linear. Where PyG
    answers otherwise than it says, calls are refused: of `FastRGCNConv` with numbers of nodes other than 0, 1, 2, ...,
    and of `HGTConv` with the types of edges in another order than that of its metadata.

    One gradient is another, and on purpose: where a node has several weighted loops, layers that set loops anew
    (`GCNConv`, say) take the weight of the last one. PyG gives its gradient to all the loops of that node, though the
    others have no part in the result; here they get zero, as finite differences say.

    What cannot be reproduced is left as it was: inside a model as a copy, and alone as the very layer that was given.

    Args:
        module: a layer, or any module that has some in it.
        left: a dict to be filled with the name of each layer that is left, and the reason; without it they are told in
            one warning.

    >>> import torch
    >>> from torch_geometric.nn import CGConv, GCNConv
    >>> convert(GCNConv(8, 4))
    BasisConv(8, 4, Adjacency(norm='sym', self_loops=True), Full())
    >>> convert(torch.nn.Conv2d(3, 8, 3, padding=1))
    GridConv(3, 8, Window(None, (3, 3), padding=1), Full())
    >>> model = torch.nn.ModuleList([GCNConv(8, 4), CGConv(4)])
    >>> left = {}
    >>> same = convert(model, left)
    >>> left
    {'1': 'CGConv: no BasisConv of it is known'}
    >>> x, edge_index = torch.randn(3, 8), torch.tensor([[0, 1, 2], [1, 2, 0]])
    >>> torch.testing.assert_close(same[0](x, edge_index), model[0](x, edge_index))
    """
    if not isinstance(module, nn.Module):
        reject("module", "a layer or a model", type(module).__name__, "pass an nn.Module")
    shared = _shared(module)
    copies: dict[int, object] = {}
    reasons: dict[str, str] = {}
    for name, part in module.named_modules():
        if convertible(part):
            try:
                copies[id(part)] = rebuild(part, shared)
            except Left as reason:
                reasons[name] = f"{type(part).__name__}: {reason}"
    if left is not None:
        left.update(reasons)
    elif reasons:
        lines = [f"  {name or 'the layer'}: {reason}" for name, reason in reasons.items()]
        total = len(copies) + len(reasons)
        warnings.warn("\n".join([f"convert left {len(reasons)} of {total} layers as they were", *lines]), stacklevel=2)
    made = bool(copies)
    if convertible(module) and not made and reasons:
        return module
    for part in module.modules():
        # What a hook computes before each call, as weight normalisation does, has a past that cannot be copied.
        computed = [v for v in vars(part).values() if isinstance(v, Tensor) and not v.is_leaf]
        copies.update((id(value), value.detach().clone()) for value in computed)
    # Wherever the model holds a layer, be it in a plain list, its copy holds what the layer became.
    converted: nn.Module = copy.deepcopy(module, copies)
    for part in converted.modules():
        if made and isinstance(part, nn.TransformerEncoder):
            part.use_nested_tensor = False  # a path of torch that reads the weights of its own attention
    return converted


def _shared(module: nn.Module) -> set[int]:
    """The parameters that several modules hold, or one under several names, by identity."""
    seen = Counter(id(p) for part in module.modules() for p in part._parameters.values() if p is not None)
    return {p for p, times in seen.items() if times > 1}
