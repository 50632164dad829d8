"""Conversion: layers, alone or inside models, as the same function made of `BasisConv`s."""

import copy
import pkgutil
import warnings
from collections import Counter
from importlib import import_module

from torch import Tensor, nn

from ..errors import reject
from .registry import Unchanged, convertible, rebuild

__all__ = ["convert"]

for _file in pkgutil.iter_modules(__path__, f"{__name__}."):
    import_module(_file.name)  # registers the rules that it has


def convert(module: nn.Module, left: dict[str, str] | None = None) -> nn.Module:
    r"""The same function made of `BasisConv`s: of one layer, or of all layers in a model.

    It converts PyG's layers, torch's attention (`nn.MultiheadAttention`, also inside `nn.TransformerEncoderLayer` and
    its like) and torch's layers on grids, which become `GridConv`s: `nn.Conv2d`, `nn.ConvTranspose2d` and
    `nn.AvgPool2d`, the same in one and three dimensions, and `nn.Unfold`.

    The result is a new module with parameters of its own; the original stays as it is. It is called as the original is,
    and gives the same outputs and gradients. The matrix of each `Linear` of a layer becomes one :math:`\Theta_k`. A
    checkpoint of the original may be loaded before the conversion or after it: `load_state_dict` of the result takes
    checkpoints of both. dtype, device, training mode, frozen parameters and layers that a model uses in several places
    carry over. Lazy layers stay lazy (`BasisConv` then draws their parameters); some, such as a lazy `GATConv`, are
    left, and have to be called once before. A layer with `cached=True` never returns the result of another graph.

    Layers that rearrange or resample a grid (`nn.AdaptiveAvgPool2d`, `nn.Upsample`, `nn.Fold`, `nn.PixelShuffle`, and
    their like), `nn.Linear`, `nn.EmbeddingBag`, and the recurrent `nn.RNN`, `nn.GRU`, `nn.LSTM` and their cells are
    converted alone, but stay as they are in a model: it would gain nothing. Layers that cannot be reproduced are left,
    too: inside a model as a copy, alone as the given layer itself.

    Args:
        module: a layer, or any module that contains some.
        left: a dict to be filled with the name of each layer that is left, and the reason; without it one warning lists
            them.

    >>> import torch
    >>> from torch_geometric.nn import CGConv, GCNConv
    >>> convert(GCNConv(8, 4))
    BasisConv(8, 4, Adjacency(norm='sym', self_loops=True), Full())
    >>> convert(torch.nn.Conv2d(3, 8, 3, padding=1))
    GridConv(3, 8, Window(None, (3, 3), padding=1), Kernel(size=(3, 3)))
    >>> model = torch.nn.ModuleList([GCNConv(8, 4), CGConv(4)])
    >>> left = {}
    >>> same = convert(model, left)
    >>> left
    {'1': 'CGConv: its messages are a network on pairs of nodes and on features of the edge; the nearest ...'}
    >>> x, edge_index = torch.randn(3, 8), torch.tensor([[0, 1, 2], [1, 2, 0]])
    >>> torch.testing.assert_close(same[0](x, edge_index), model[0](x, edge_index))
    """
    if not isinstance(module, nn.Module):
        reject("module", "a layer or a model", type(module).__name__, "pass an nn.Module")
    shared = _shared(module)
    copies: dict[int, object] = {}
    reasons: dict[str, str] = {}
    for name, part in module.named_modules():
        if convertible(part, alone=part is module):
            try:
                copies[id(part)] = rebuild(part, shared)
            except Unchanged as reason:
                reasons[name] = f"{type(part).__name__}: {reason}"
    if left is not None:
        left.update(reasons)
    elif reasons:
        lines = [f"  {name or 'the layer'}: {reason}" for name, reason in reasons.items()]
        total = len(copies) + len(reasons)
        warnings.warn("\n".join([f"convert left {len(reasons)} of {total} layers as they were", *lines]), stacklevel=2)
    made = bool(copies)
    if convertible(module, alone=True) and not made and reasons:
        return module
    for part in module.modules():
        # What a hook computes before each call, such as a normalised weight, is no leaf, and deepcopy refuses it.
        computed = [v for v in vars(part).values() if isinstance(v, Tensor) and not v.is_leaf]
        copies.update((id(value), value.detach().clone()) for value in computed)
    # Wherever the model holds a layer, even in a plain list, its copy holds the converted one.
    converted: nn.Module = copy.deepcopy(module, copies)
    for part in converted.modules():
        if made and isinstance(part, nn.TransformerEncoder):
            part.use_nested_tensor = False  # torch's fast path reads the weights of its own attention
    return converted


def _shared(module: nn.Module) -> set[int]:
    """The ids of parameters that several modules hold, or one module under several names."""
    seen = Counter(id(p) for part in module.modules() for p in part._parameters.values() if p is not None)
    return {p for p, times in seen.items() if times > 1}
