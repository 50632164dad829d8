r"""Drop-in layers: `from pyg_basisconv.nn import GATConv` in the place of `from torch_geometric.nn import GATConv`.

Each is a subclass of PyG's layer, or torch's, that is evaluated as a `BasisConv`. The constructor, the call, the
defaults and the names of the parameters are those of the original. So the same seed gives the same numbers, the
`state_dict` of either loads into either, and `isinstance(layer, torch_geometric.nn.GATConv)` is true. It prints as
PyG's does; `convert(layer)` gives the `BasisConv`, which prints as one could have typed it.

A call reads the current parameters as views, without copies. PyG's own code runs where it can be observed: under hooks,
explainers, `torch.compile`, `torch.export` and `torch.func`, in a subclass with messages of its own, and where we would
draw other random numbers than the layer. The page "In PyG" of the documentation has all cases.

A layer that is not linear in its features stays PyG's: importing one from here raises an `ImportError` with the reason,
and options such as `aggr="max"` a `ValueError` in the constructor; import those from `torch_geometric.nn`. All else
there, such as `global_mean_pool`, `Sequential`, `HeteroConv` and `to_hetero`, is here as PyG has it. So are its models,
such as `GCN`, which make PyG's layers: `convert(model)` replaces those. Of a name that PyG and torch both have, such as
`Linear`, this is PyG's.

>>> import torch
>>> from pyg_basisconv import convert
>>> from pyg_basisconv.nn import GATConv
>>> conv = GATConv(8, 4, heads=2)
>>> conv
GATConv(8, 4, heads=2)
>>> conv(torch.randn(3, 8), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
torch.Size([3, 8])
>>> list(conv.state_dict())
['att_src', 'att_dst', 'bias', 'lin.weight']
>>> from pyg_basisconv.nn import EdgeConv
Traceback (most recent call last):
...
ImportError: EdgeConv: its messages are a network on pairs of nodes, ...; torch_geometric.nn has EdgeConv itself
"""

from functools import cache
from typing import TYPE_CHECKING, Any

import torch.nn
import torch_geometric.nn

from ..convert.refused import why_not
from ..convert.registry import known_layers
from ..walks.wording import suggestion
from .dropin import DropIn, drop_in
from .dropout import Dropout

if TYPE_CHECKING:  # names for editors: PyG's, of which most are here, and torch's layers
    from torch.nn import (
        GRU as GRU,
        LSTM as LSTM,
        RNN as RNN,
        AdaptiveAvgPool1d as AdaptiveAvgPool1d,
        AdaptiveAvgPool2d as AdaptiveAvgPool2d,
        AdaptiveAvgPool3d as AdaptiveAvgPool3d,
        AvgPool1d as AvgPool1d,
        AvgPool2d as AvgPool2d,
        AvgPool3d as AvgPool3d,
        Conv1d as Conv1d,
        Conv2d as Conv2d,
        Conv3d as Conv3d,
        ConvTranspose1d as ConvTranspose1d,
        ConvTranspose2d as ConvTranspose2d,
        ConvTranspose3d as ConvTranspose3d,
        EmbeddingBag as EmbeddingBag,
        Fold as Fold,
        GRUCell as GRUCell,
        LSTMCell as LSTMCell,
        MultiheadAttention as MultiheadAttention,
        PixelShuffle as PixelShuffle,
        PixelUnshuffle as PixelUnshuffle,
        RNNCell as RNNCell,
        Unfold as Unfold,
        Upsample as Upsample,
        UpsamplingBilinear2d as UpsamplingBilinear2d,
        UpsamplingNearest2d as UpsamplingNearest2d,
    )
    from torch_geometric.nn import *  # noqa: F403
    from torch_geometric.nn.aggr import *  # noqa: F403
    from torch_geometric.nn.conv import *  # noqa: F403
    from torch_geometric.nn.dense import *  # noqa: F403
    from torch_geometric.nn.models import *  # noqa: F403
    from torch_geometric.nn.norm import *  # noqa: F403
    from torch_geometric.nn.pool import *  # noqa: F403

_KNOWN = set(known_layers())
_LAYERS = {  # by all names that a layer has, such as NNConv and ECConv; of one that both have (Linear), PyG's
    name: kind
    for name, kind in {**vars(torch.nn), **vars(torch_geometric.nn)}.items()
    if isinstance(kind, type) and kind in _KNOWN
}

__all__ = ["DropIn", "Dropout", "drop_in", *(name for name, kind in _LAYERS.items() if name == kind.__name__)]


@cache
def _made(kind: type[torch.nn.Module]) -> type[torch.nn.Module]:
    return drop_in(kind, __name__)


def __getattr__(name: str) -> Any:
    if name in _LAYERS:
        return _made(_LAYERS[name])  # made on demand, so that doctests do not collect PyG's docstrings here
    if name.startswith("__") or not hasattr(torch_geometric.nn, name):
        meant = "" if name.startswith("_") else suggestion(name, __dir__(), "")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{meant and f'; {meant}'}")
    reason = why_not(name)
    if reason is not None:
        raise ImportError(f"{name}: {reason}; torch_geometric.nn has {name} itself", name=name)
    return getattr(torch_geometric.nn, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
