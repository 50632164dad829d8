r"""Drop-in layers: `from pyg_basisconv.nn import GATConv` in the place of `from torch_geometric.nn import GATConv`.

Each is PyG's own class, or torch's, evaluated by its recipe as a `BasisConv`: the constructor, the call, the defaults
and the parameters are those of the original, under their names. So the same seed gives the same numbers, the
`state_dict` of either loads into either, and `isinstance(layer, torch_geometric.nn.GATConv)` is true. It prints as
PyG's does; `convert(layer)` gives the `BasisConv` that it is, which prints the spelling that one could have typed.

A call takes the parameters as they are at that moment, as views; nothing is kept twice. It is PyG's own code that runs
where somebody looks inside, or means to: under hooks and explainers, under `torch.compile`, `torch.export` and
`torch.func` (call `convert` before to have one operator there), in a subclass with messages of its own, in the first
call of a lazy layer, and in training where the layer draws random numbers (dropout of attention), to draw the same.

Options that no recipe covers are a `ValueError` when the layer is made. A layer that has no recipe is an `ImportError`,
which says why, and which one is nearest. What is no layer on graphs, such as `global_mean_pool`, `Sequential`,
`HeteroConv` and `to_hetero`, is PyG's own, so that an import can be exchanged as it stands.

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
ImportError: EdgeConv: its messages are a network on pairs of nodes, ...; the nearest that is here is GATv2Conv
"""

from functools import cache
from typing import TYPE_CHECKING, Any

import torch.nn
import torch_geometric.nn

from ..convert.registry import known_layers
from .dropin import DropIn, drop_in
from .refused import why_not

if TYPE_CHECKING:  # what editors show
    from torch.nn import (
        AvgPool1d as AvgPool1d,
    )
    from torch.nn import (
        AvgPool2d as AvgPool2d,
    )
    from torch.nn import (
        AvgPool3d as AvgPool3d,
    )
    from torch.nn import (
        Conv1d as Conv1d,
    )
    from torch.nn import (
        Conv2d as Conv2d,
    )
    from torch.nn import (
        Conv3d as Conv3d,
    )
    from torch.nn import (
        ConvTranspose1d as ConvTranspose1d,
    )
    from torch.nn import (
        ConvTranspose2d as ConvTranspose2d,
    )
    from torch.nn import (
        ConvTranspose3d as ConvTranspose3d,
    )
    from torch.nn import (
        MultiheadAttention as MultiheadAttention,
    )
    from torch.nn import (
        Unfold as Unfold,
    )
    from torch_geometric.nn import (
        AGNNConv as AGNNConv,
    )
    from torch_geometric.nn import (
        ChebConv as ChebConv,
    )
    from torch_geometric.nn import (
        ClusterGCNConv as ClusterGCNConv,
    )
    from torch_geometric.nn import (
        DirGNNConv as DirGNNConv,
    )
    from torch_geometric.nn import (
        FAConv as FAConv,
    )
    from torch_geometric.nn import (
        FastRGCNConv as FastRGCNConv,
    )
    from torch_geometric.nn import (
        FeaStConv as FeaStConv,
    )
    from torch_geometric.nn import (
        GATConv as GATConv,
    )
    from torch_geometric.nn import (
        GATv2Conv as GATv2Conv,
    )
    from torch_geometric.nn import (
        GCNConv as GCNConv,
    )
    from torch_geometric.nn import (
        GraphConv as GraphConv,
    )
    from torch_geometric.nn import (
        HANConv as HANConv,
    )
    from torch_geometric.nn import (
        HGTConv as HGTConv,
    )
    from torch_geometric.nn import (
        HypergraphConv as HypergraphConv,
    )
    from torch_geometric.nn import (
        LEConv as LEConv,
    )
    from torch_geometric.nn import (
        LGConv as LGConv,
    )
    from torch_geometric.nn import (
        MixHopConv as MixHopConv,
    )
    from torch_geometric.nn import (
        ResGatedGraphConv as ResGatedGraphConv,
    )
    from torch_geometric.nn import (
        RGATConv as RGATConv,
    )
    from torch_geometric.nn import (
        RGCNConv as RGCNConv,
    )
    from torch_geometric.nn import (
        SAGEConv as SAGEConv,
    )
    from torch_geometric.nn import (
        SGConv as SGConv,
    )
    from torch_geometric.nn import (
        SignedConv as SignedConv,
    )
    from torch_geometric.nn import (
        SimpleConv as SimpleConv,
    )
    from torch_geometric.nn import (
        SSGConv as SSGConv,
    )
    from torch_geometric.nn import (
        SuperGATConv as SuperGATConv,
    )
    from torch_geometric.nn import (
        TAGConv as TAGConv,
    )
    from torch_geometric.nn import (
        TransformerConv as TransformerConv,
    )

_SOURCES = (torch_geometric.nn, torch.nn)
_LAYERS = {
    kind.__name__: kind
    for kind in known_layers()
    if any(getattr(source, kind.__name__, None) is kind for source in _SOURCES)
}

__all__ = ["DropIn", "drop_in", *_LAYERS]


@cache
def _made(name: str) -> type[torch.nn.Module]:
    return drop_in(_LAYERS[name], __name__)


def __getattr__(name: str) -> Any:
    if name in _LAYERS:
        return _made(name)  # not before, and not among the names of this module, whose examples are run
    if name.startswith("__") or not hasattr(torch_geometric.nn, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    reason = why_not(name)
    if reason is not None:
        raise ImportError(f"{name}: {reason}", name=name)
    return getattr(torch_geometric.nn, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
