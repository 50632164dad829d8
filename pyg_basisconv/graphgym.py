"""A layer for `torch_geometric.graphgym`; importing this module registers it and its configuration.

```yaml
gnn:
  layer_type: basisconv
  basis: Identity() + Chebyshev(K=3)
  theta: Full()
```
"""

from typing import Any

from torch import nn
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.models.layer import LayerConfig
from torch_geometric.graphgym.register import register_config, register_layer

from .conv import BasisConv
from .expressions import read


def basisconv_cfg(config: Any) -> None:
    """Adds `gnn.basis` and `gnn.theta` to a configuration; the defaults are those of a GCN.

    >>> from torch_geometric.graphgym.config import cfg
    >>> cfg.gnn.basis
    "Adjacency('sym', self_loops=True)"
    """
    config.gnn.basis = "Adjacency('sym', self_loops=True)"
    config.gnn.theta = "Full()"


@register_layer("basisconv")
class BasisConvLayer(nn.Module):
    """`BasisConv` with the basis and the parameter of the configuration; each layer has its own.

    It reads what the batch has of `edge_weight`, `batch` and `lambda_max`; and of `edge_type` and `edge_attr`, if the
    basis does.

    Args:
        layer_config: the widths, and whether there is a bias.
        **kwargs: ignored.

    >>> from torch_geometric.data import Data
    >>> from torch_geometric.graphgym.models.layer import LayerConfig
    >>> import torch
    >>> layer = BasisConvLayer(LayerConfig(dim_in=8, dim_out=4))
    >>> layer(Data(x=torch.randn(3, 8), edge_index=torch.tensor([[0, 1], [1, 2]]))).x.shape
    torch.Size([3, 4])
    """

    def __init__(self, layer_config: LayerConfig, **kwargs: Any) -> None:
        super().__init__()
        basis, kind = read(cfg.gnn.basis), read(cfg.gnn.theta)
        self.model = BasisConv(layer_config.dim_in, layer_config.dim_out, basis, kind, bias=layer_config.has_bias)

    def forward(self, batch: Any) -> Any:
        """Replaces the features of the batch's nodes."""
        basis = self.model.basis
        given = {name: batch.get(name) for name in ("edge_weight", "batch", "lambda_max")}
        given["edge_type"] = batch.get("edge_type") if basis.reads_types else None
        given["edge_attr"] = batch.get("edge_attr") if basis.reads_edges else None
        batch.x = self.model(batch.x, batch.edge_index if basis.takes_edges else None, **given)
        return batch


register_config("basisconv", basisconv_cfg)
if cfg is not None:  # else GraphGym's dependencies are missing, about which it warns
    basisconv_cfg(cfg)  # GraphGym made its configuration before this function was registered
